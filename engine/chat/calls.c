/* A model's turn, taken apart as it comes: text, thoughts, calls of tools. See tools.h.
 *
 * A machine over bytes. In text it looks for the family's marks and holds back what may be the beginning of one, and
 * white space, which is dropped where a call follows. A call is an object with a name and arguments; the grammar fixes
 * the order of its members, so the machine counts quotes and braces. */
#include "engine/chat/private.h"
#include "engine/chat/tools-private.h"

#include <sys/random.h>

enum state {
        IN_TEXT,    /* that people read */
        IN_THOUGHT, /* up to a mark */
        IN_START,   /* CALLS_WHOLE: text or an object? */
        IN_OBJECT,  /* before the arguments of a call */
        IN_ARGUMENTS,
        BEHIND_CALL, /* nothing but another call may follow */
        IN_HEADER,   /* CALLS_CHANNELLED: of a message */
};

enum mark { OPEN_CALL, OPEN_THOUGHT, CLOSE_THOUGHT, END_MESSAGE, MESSAGE, N_MARKS };

/* Of the form of calls; NULL: none. */
static const char *const mark_texts[][N_MARKS] = {
        [TDM_CHAT_CALLS_NONE] = { [OPEN_THOUGHT] = "<think>", [CLOSE_THOUGHT] = "</think>" },
        [TDM_CHAT_CALLS_TAGGED] = { [OPEN_CALL] = "<tool_call>",
                                    [OPEN_THOUGHT] = "<think>",
                                    [CLOSE_THOUGHT] = "</think>" },
        [TDM_CHAT_CALLS_LISTED] = { [OPEN_CALL] = "[TOOL_CALLS]" },
        [TDM_CHAT_CALLS_WHOLE] = { NULL },
        [TDM_CHAT_CALLS_CHANNELLED] = { [END_MESSAGE] = "<|end|>", [MESSAGE] = "<|message|>" },
};

struct tdm_chat_parser {
        enum tdm_chat_call_form calls;
        bool splits_thinking;
        bool with_calls; /* else what would be one is text */
        enum state state;
        struct {
                char bytes[TDM_CHAT_MARK_MAX];
                size_t size;
        } marks[N_MARKS];
        char held[TDM_CHAT_MARK_MAX]; /* the beginning of a mark */
        size_t n_held;
        struct tdm_json_buffer blanks; /* white space that is not given out yet */
        struct tdm_json_buffer head;   /* of an object, a header or a start, as far as it came */
        bool said;                     /* this text or thought has begun */
        bool in_string, escaped;       /* of arguments, and of an object's head */
        unsigned depth, n_quotes;
        uint32_t n_calls;
        struct tdm_json_buffer out;
        struct part {
                enum tdm_chat_part_kind kind;
                uint32_t call;
                size_t at, size;
                char id[TDM_CHAT_CALL_ID_BYTES + 1];
        } * parts;
        size_t n_parts, parts_capacity;
        struct tdm_chat_part *given; /* [parts_capacity] */
        bool failed;
};

int tdm_chat_parser_new(struct tdm_chat_parser **ret, const struct tdm_chat *chat, bool with_calls,
                        bool thought_is_open)
{
        const struct tdm_chat_template *t = tdm_chat_template_for(chat, with_calls);
        /* Messages in channels are taken apart for thoughts too. */
        bool has_form = with_calls || t->calls == TDM_CHAT_CALLS_CHANNELLED;
        enum tdm_chat_call_form form = has_form ? t->calls : TDM_CHAT_CALLS_NONE;
        struct tdm_chat_parser *p;

        if (with_calls ? form == TDM_CHAT_CALLS_NONE : !tdm_chat_template_thinks(t))
                return -EOPNOTSUPP;
        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->calls = form;
        p->with_calls = with_calls;
        p->splits_thinking = t->splits_thinking;
        for (unsigned i = 0; i < N_MARKS; i++) {
                const char *text = mark_texts[form][i];
                bool of_thoughts = i == OPEN_THOUGHT || i == CLOSE_THOUGHT;

                if (text && (t->splits_thinking || !of_thoughts))
                        p->marks[i].size = tdm_chat_mark_bytes(chat->tokenizer, text, p->marks[i].bytes,
                                                               sizeof(p->marks[i].bytes));
        }
        p->state = form == TDM_CHAT_CALLS_WHOLE      ? IN_START :
                   form == TDM_CHAT_CALLS_CHANNELLED ? IN_HEADER :
                   thought_is_open                   ? IN_THOUGHT :
                                                       IN_TEXT;
        *ret = p;
        return 0;
}

void tdm_chat_parser_destroy(struct tdm_chat_parser *p)
{
        if (!p)
                return;
        free(p->blanks.data);
        free(p->head.data);
        free(p->out.data);
        free(p->parts);
        free(p->given);
        free(p);
}

void tdm_chat_parser_destroyp(struct tdm_chat_parser **p)
{
        tdm_chat_parser_destroy(*p);
}

enum tdm_chat_place tdm_chat_parser_place(const struct tdm_chat_parser *p)
{
        return p->state == IN_THOUGHT ? TDM_CHAT_IN_THOUGHT :
               p->state == IN_HEADER  ? TDM_CHAT_BEFORE_ANSWER :
                                        TDM_CHAT_IN_ANSWER;
}

/* ---- what goes out ---- */

static struct part *add_part(struct tdm_chat_parser *p, enum tdm_chat_part_kind kind)
{
        if (p->n_parts == p->parts_capacity) {
                size_t capacity = TDM_MAX(p->parts_capacity * 2, (size_t)8);
                struct part *parts = reallocarray(p->parts, capacity, sizeof(*parts));
                struct tdm_chat_part *given;

                if (parts)
                        p->parts = parts;
                given = parts ? reallocarray(p->given, capacity, sizeof(*given)) : NULL;
                if (!given) {
                        p->failed = true;
                        return NULL;
                }
                p->given = given;
                p->parts_capacity = capacity;
        }
        p->parts[p->n_parts] =
                (struct part){ .kind = kind, .call = p->n_calls ? p->n_calls - 1 : 0, .at = p->out.size };
        return &p->parts[p->n_parts++];
}

static void give(struct tdm_chat_parser *p, enum tdm_chat_part_kind kind, const char *data, size_t size)
{
        struct part *part = p->n_parts > 0 ? &p->parts[p->n_parts - 1] : NULL;

        if (size == 0)
                return;
        if (!part || part->kind != kind || kind == TDM_CHAT_PART_CALL)
                part = add_part(p, kind);
        if (!part)
                return;
        tdm_json_write(&p->out, data, size);
        part->size += size;
}

static void make_id(char *id)
{
        static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        uint8_t bytes[TDM_CHAT_CALL_ID_BYTES] = { 0 };

        /* Of a few bytes it fails only before the kernel has entropy; then ids are less random, and calls still differ
         * from what else is in the conversation by their names. */
        (void)!getrandom(bytes, sizeof(bytes), GRND_NONBLOCK);
        for (unsigned i = 0; i < TDM_CHAT_CALL_ID_BYTES; i++)
                id[i] = letters[bytes[i] % (sizeof(letters) - 1)];
        id[TDM_CHAT_CALL_ID_BYTES] = '\0';
}

static void give_call(struct tdm_chat_parser *p, const char *name, size_t size)
{
        struct part *part;

        p->n_calls++;
        part = add_part(p, TDM_CHAT_PART_CALL);
        if (!part)
                return;
        make_id(part->id);
        tdm_json_write(&p->out, name, size);
        part->size = size;
}

static bool is_blank(char c)
{
        return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Text or a thought: white space in front is dropped where a mark opened it, and at the end where one closes it. */
static void say(struct tdm_chat_parser *p, const char *data, size_t size, bool trims_front)
{
        enum tdm_chat_part_kind kind = p->state == IN_THOUGHT ? TDM_CHAT_PART_THINKING : TDM_CHAT_PART_TEXT;
        size_t end = size;

        while (end > 0 && is_blank(data[end - 1]))
                end--;
        if (end > 0) {
                size_t front = 0;

                if (!p->said && trims_front) {
                        p->blanks.size = 0;
                        while (is_blank(data[front]))
                                front++;
                }
                give(p, kind, p->blanks.data, p->blanks.size);
                give(p, kind, data + front, end - front);
                p->blanks.size = 0;
                p->said = true;
        }
        tdm_json_write(&p->blanks, data + end, size - end);
        if (p->blanks.size >= TDM_CHAT_HELD_MAX / 2 && p->said) {
                give(p, kind, p->blanks.data, p->blanks.size);
                p->blanks.size = 0;
        } else if (p->blanks.size >= TDM_CHAT_HELD_MAX / 2)
                p->blanks.size /= 2; /* white space in front, of which a little says enough */
}

static void calls_enter_part(struct tdm_chat_parser *p, enum state state)
{
        p->state = state;
        p->said = false;
        p->blanks.size = p->head.size = 0;
        p->depth = p->n_quotes = 0;
        p->in_string = p->escaped = false;
}

/* ---- marks in texts ---- */

/* Which mark the held bytes are: N_MARKS where none; *ret_begins: they are the beginning of one. */
static unsigned which_mark(const struct tdm_chat_parser *p, bool *ret_begins)
{
        *ret_begins = false;
        for (unsigned i = 0; i < N_MARKS; i++) {
                if (p->marks[i].size < p->n_held || p->marks[i].size == 0 ||
                    memcmp(p->marks[i].bytes, p->held, p->n_held) != 0)
                        continue;
                if (p->marks[i].size == p->n_held)
                        return i;
                *ret_begins = true;
        }
        return N_MARKS;
}

/* Takes a byte of a text: returns the mark that it completes, or N_MARKS. */
static unsigned text_byte(struct tdm_chat_parser *p, char byte, bool trims_front)
{
        bool begins;
        unsigned mark;

        p->held[p->n_held++] = byte;
        for (;;) {
                mark = which_mark(p, &begins);
                if (mark < N_MARKS) {
                        p->n_held = 0;
                        return mark;
                }
                if (begins || p->n_held == 0)
                        return N_MARKS;
                say(p, p->held, 1, trims_front); /* the first byte begins no mark */
                memmove(p->held, p->held + 1, --p->n_held);
        }
}

static void calls_take_text(struct tdm_chat_parser *p, char byte)
{
        bool trims_front = p->state == IN_THOUGHT || p->splits_thinking;

        switch (text_byte(p, byte, trims_front)) {
        case OPEN_CALL:
                calls_enter_part(p, IN_OBJECT);
                break;
        case OPEN_THOUGHT:
                calls_enter_part(p, IN_THOUGHT);
                break;
        case CLOSE_THOUGHT:
                calls_enter_part(p, IN_TEXT);
                break;
        case END_MESSAGE:
                calls_enter_part(p, IN_HEADER);
                break;
        default:
                break;
        }
}

/* ---- calls ---- */

static void take_arguments(struct tdm_chat_parser *p, char byte)
{
        give(p, TDM_CHAT_PART_ARGUMENTS, &byte, 1);
        if (p->in_string) {
                if (p->escaped)
                        p->escaped = false;
                else if (byte == '\\')
                        p->escaped = true;
                else if (byte == '"')
                        p->in_string = false;
                return;
        }
        if (byte == '"')
                p->in_string = true;
        else if (byte == '{' || byte == '[')
                p->depth++;
        else if ((byte == '}' || byte == ']') && --p->depth == 0)
                calls_enter_part(p, BEHIND_CALL);
}

/* {"name": "NAME", "arguments": up to the brace that opens the arguments. Names have no escapes. */
static void take_object(struct tdm_chat_parser *p, char byte)
{
        if (byte == '"' && ++p->n_quotes == 4)
                give_call(p, p->head.data, p->head.size);
        else if (p->n_quotes == 3 && byte != '"')
                tdm_json_write(&p->head, &byte, 1);
        if (p->n_quotes == 6 && byte == '{') {
                calls_enter_part(p, IN_ARGUMENTS);
                take_arguments(p, byte);
        }
}

/* A list's next object begins with its brace, a tagged one with its mark. */
static void take_behind(struct tdm_chat_parser *p, char byte)
{
        if (p->calls == TDM_CHAT_CALLS_TAGGED) {
                bool begins;

                p->held[p->n_held++] = byte;
                while (p->n_held > 0) {
                        if (which_mark(p, &begins) == OPEN_CALL) {
                                p->n_held = 0;
                                calls_enter_part(p, IN_OBJECT);
                                return;
                        }
                        if (begins)
                                return;
                        memmove(p->held, p->held + 1, --p->n_held);
                }
        } else if (p->calls == TDM_CHAT_CALLS_LISTED && byte == '{')
                calls_enter_part(p, IN_OBJECT);
}

/* The first bytes of a turn that is a call as a whole, or none. */
static void take_start(struct tdm_chat_parser *p, char byte)
{
        static const char start[] = "{\"name\"";
        size_t n = 0;
        bool fits = true;

        tdm_json_write(&p->head, &byte, 1);
        for (size_t i = 0; i < p->head.size && n < sizeof(start) - 1; i++) {
                if (p->head.data[i] == start[n])
                        n++;
                else
                        fits = fits && n <= 1 && is_blank(p->head.data[i]);
        }
        if (fits && n < sizeof(start) - 1 && p->head.size < TDM_CHAT_HELD_MAX / 2)
                return; /* the grammar has less white space there */
        if (fits && n == sizeof(start) - 1) {
                calls_enter_part(p, IN_OBJECT);
                p->n_quotes = 2;
                return;
        }
        p->state = IN_TEXT;
        say(p, p->head.data, p->head.size, false);
}

/* A message's header up to its text: who it is to, and in which channel. */
static void take_header(struct tdm_chat_parser *p, char byte)
{
        static const char to[] = "to=functions.";
        const size_t n = p->marks[MESSAGE].size;
        const char *name, *end;

        tdm_json_write(&p->head, &byte, 1);
        if (p->head.failed || p->head.size < n ||
            memcmp(p->head.data + p->head.size - n, p->marks[MESSAGE].bytes, n) != 0)
                return;
        p->head.size -= n;
        name = p->with_calls ? memmem(p->head.data, p->head.size, to, sizeof(to) - 1) : NULL;
        if (name) {
                name += sizeof(to) - 1;
                for (end = name;
                     end < p->head.data + p->head.size && !is_blank(*end) && *end != '<' && (uint8_t)*end < 0x80;)
                        end++;
                give_call(p, name, (size_t)(end - name));
                calls_enter_part(p, IN_ARGUMENTS);
        } else
                calls_enter_part(p, memmem(p->head.data, p->head.size, "analysis", 8) ? IN_THOUGHT : IN_TEXT);
}

/* ---- the turn ---- */

static int hand_out(struct tdm_chat_parser *p, const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        if (p->failed || p->out.failed || p->blanks.failed || p->head.failed)
                return -ENOMEM;
        for (size_t i = 0; i < p->n_parts; i++) {
                const struct part *part = &p->parts[i];

                p->given[i] = (struct tdm_chat_part){ part->kind, part->call, p->out.data + part->at, part->size, "" };
                memcpy(p->given[i].id, part->id, sizeof(part->id));
        }
        *ret_parts = p->given;
        *ret_n = p->n_parts;
        return 0;
}

int tdm_chat_parser_push(struct tdm_chat_parser *p, const char *data, size_t size,
                         const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        p->n_parts = p->out.size = 0;
        for (size_t i = 0; i < size; i++) {
                switch (p->state) {
                case IN_TEXT:
                case IN_THOUGHT:
                        calls_take_text(p, data[i]);
                        break;
                case IN_START:
                        take_start(p, data[i]);
                        break;
                case IN_OBJECT:
                        take_object(p, data[i]);
                        break;
                case IN_ARGUMENTS:
                        take_arguments(p, data[i]);
                        break;
                case BEHIND_CALL:
                        take_behind(p, data[i]);
                        break;
                case IN_HEADER:
                        take_header(p, data[i]);
                        break;
                }
        }
        return hand_out(p, ret_parts, ret_n);
}

int tdm_chat_parser_finish(struct tdm_chat_parser *p, const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        p->n_parts = p->out.size = 0;
        if (p->state == IN_START)
                give(p, TDM_CHAT_PART_TEXT, p->head.data, p->head.size);
        if (p->state == IN_TEXT || p->state == IN_THOUGHT) {
                enum tdm_chat_part_kind kind = p->state == IN_THOUGHT ? TDM_CHAT_PART_THINKING : TDM_CHAT_PART_TEXT;

                if (p->n_held > 0 && (uint8_t)p->held[0] == 0xff)
                        p->n_held = 0; /* of a control piece, which is no text */
                if (p->said || p->n_held > 0)
                        give(p, kind, p->blanks.data, p->blanks.size);
                give(p, kind, p->held, p->n_held);
        }
        p->n_held = p->blanks.size = p->head.size = 0;
        return hand_out(p, ret_parts, ret_n);
}
