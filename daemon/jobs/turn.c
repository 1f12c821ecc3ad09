/* See turn.h. The parser of the model's form does the work; here its parts are kept until they were told. */
#include "daemon/jobs/turn.h"

#include "daemon/jobs/job.h"
#include "engine/grammar/compose.h"

/* Room for what one token adds: its text, a stop string, then the texts of its other parts. */
struct room {
        char *data;
        size_t capacity;
        struct tdm_form_part *parts;
        size_t parts_capacity;
};

struct tdm_turn {
        const struct tdm_tokenizer *tokenizer;
        struct tdm_form_parser *parser;
        uint32_t thinking_tokens;
        struct room rooms[1 + TDM_MAX_GUESSES];
        uint32_t room_at;
};

int tdm_turn_new(struct tdm_turn **ret, const struct tdm_chat *chat, const struct tdm_tokenizer *tokenizer,
                 struct tdm_chat_text tools, enum tdm_form_prompt prompt, unsigned flags)
{
        struct tdm_turn *turn = calloc(1, sizeof(*turn));
        int r = turn ? tdm_chat_parser_new(&turn->parser, chat, tools, prompt, flags) : -ENOMEM;

        if (r == 0) {
                turn->tokenizer = tokenizer;
                *ret = turn;
                return 0;
        }
        free(turn);
        *ret = NULL;
        return r == -EOPNOTSUPP && tools.size == 0 ? 0 : r;
}

void tdm_turn_destroy(struct tdm_turn *turn)
{
        if (!turn)
                return;
        tdm_form_parser_destroy(turn->parser);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(turn->rooms); i++) {
                free(turn->rooms[i].data);
                free(turn->rooms[i].parts);
        }
        free(turn);
}

static int room_grow(struct room *room, size_t size, size_t n_parts)
{
        if (size > room->capacity) {
                char *data = realloc(room->data, size);

                if (!data)
                        return -ENOMEM;
                room->data = data;
                room->capacity = size;
        }
        if (n_parts > room->parts_capacity) {
                struct tdm_form_part *parts = reallocarray(room->parts, n_parts, sizeof(*parts));

                if (!parts)
                        return -ENOMEM;
                room->parts = parts;
                room->parts_capacity = n_parts;
        }
        return 0;
}

/* Copies parts, whose memory the parser uses again for the next token. */
static int keep_parts(struct room *room, const struct tdm_form_part *parts, size_t n, struct tdm_job_token *token)
{
        size_t n_text = 0, n_other = 0, n_kept = 0, at;

        for (size_t i = 0; i < n; i++)
                *(parts[i].kind == TDM_FORM_PART_TEXT ? &n_text : &n_other) += parts[i].size;
        if (room_grow(room, n_text + TDM_MAX_STOP_BYTES + n_other, n) < 0)
                return -ENOMEM;
        at = n_text + TDM_MAX_STOP_BYTES;
        n_text = 0;
        for (size_t i = 0; i < n; i++) {
                bool is_text = parts[i].kind == TDM_FORM_PART_TEXT;
                char *to = room->data + (is_text ? n_text : at);

                if (parts[i].size > 0)
                        memcpy(to, parts[i].data, parts[i].size);
                *(is_text ? &n_text : &at) += parts[i].size;
                if (is_text)
                        continue;
                room->parts[n_kept] = parts[i];
                room->parts[n_kept++].data = to;
        }
        token->text = room->data;
        token->size = n_text;
        token->parts = room->parts;
        token->n_parts = n_kept;
        return 0;
}

int tdm_turn_take(struct tdm_turn *turn, uint32_t id, const char *data, size_t size, struct tdm_job_token *token)
{
        enum tdm_chat_place before = tdm_turn_place(turn);
        const struct tdm_form_part *parts;
        char marker[1 + TDM_MARKER_MAX];
        struct room *room = &turn->rooms[turn->room_at];
        const char *piece;
        size_t n_parts;

        turn->room_at = (turn->room_at + 1) % TDM_ARRAY_SIZE(turn->rooms);
        if (size == 0 && tdm_tokenizer_piece(turn->tokenizer, id, false, &piece) == 0) {
                size = tdm_vocabulary_marker(turn->tokenizer, id, marker, sizeof(marker));
                data = marker;
        }
        if (tdm_form_parser_push(turn->parser, data, size, &parts, &n_parts) < 0)
                return -ENOMEM;
        turn->thinking_tokens += before != TDM_CHAT_IN_ANSWER || tdm_turn_place(turn) != TDM_CHAT_IN_ANSWER;
        return keep_parts(room, parts, n_parts, token);
}

void tdm_turn_begin_answer(struct tdm_turn *turn)
{
        tdm_form_parser_begin_answer(turn->parser);
}

enum tdm_chat_place tdm_turn_place(const struct tdm_turn *turn)
{
        return tdm_chat_parser_place(turn->parser);
}

uint32_t tdm_turn_thinking_tokens(const struct tdm_turn *turn)
{
        return turn->thinking_tokens;
}

/* Only text is left to say: a call or a thought that was cut off stays so. */
size_t tdm_turn_finish(struct tdm_turn *turn, char *data, size_t size)
{
        const struct tdm_form_part *parts;
        size_t n_parts, n = 0;

        for (unsigned i = 0; i < 2; i++) {
                if ((i == 0 ? tdm_form_parser_push(turn->parser, data, size, &parts, &n_parts) :
                              tdm_form_parser_finish(turn->parser, &parts, &n_parts)) < 0)
                        return n;
                for (size_t k = 0; k < n_parts; k++) {
                        if (parts[k].kind != TDM_FORM_PART_TEXT || n + parts[k].size > TDM_TURN_TAIL_BYTES)
                                continue;
                        memcpy(data + n, parts[k].data, parts[k].size);
                        n += parts[k].size;
                }
        }
        return n;
}
