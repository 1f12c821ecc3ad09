/* A model's turn, taken apart as it comes: the parser of its template's form. See tools.h. */
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

struct tdm_chat_parser {
        struct tdm_form_parser *parser;
        struct tdm_chat_part *parts; /* [capacity] */
        size_t capacity;
};

int tdm_chat_parser_new(struct tdm_chat_parser **ret, const struct tdm_chat *chat, struct tdm_chat_text tools,
                        bool thought_is_open)
{
        const struct tdm_chat_template *t = tdm_chat_template_for(chat, tools.size > 0);
        const struct tdm_form_use use = { .tools = tools.size > 0 ? tools.data : NULL,
                                          .tools_size = tools.size,
                                          .prompt = thought_is_open ? TDM_FORM_PROMPT_OPEN : TDM_FORM_PROMPT_SILENT };
        _cleanup_(tdm_chat_parser_destroyp) struct tdm_chat_parser *p = NULL;
        int r;

        if (tools.size > 0 ? !tdm_chat_has_tools(chat) : !tdm_chat_template_thinks(t))
                return -EOPNOTSUPP;
        p = calloc(1, sizeof(*p));
        r = p ? tdm_form_parser_new(&p->parser, t->form, chat->tokenizer, &use) : -ENOMEM;
        if (r == 0)
                *ret = steal_ptr(&p);
        return r;
}

void tdm_chat_parser_destroy(struct tdm_chat_parser *p)
{
        if (!p)
                return;
        tdm_form_parser_destroy(p->parser);
        free(p->parts);
        free(p);
}

void tdm_chat_parser_destroyp(struct tdm_chat_parser **p)
{
        tdm_chat_parser_destroy(*p);
}

enum tdm_chat_place tdm_chat_parser_place(const struct tdm_chat_parser *p)
{
        return tdm_form_parser_is_thinking(p->parser)  ? TDM_CHAT_IN_THOUGHT :
               tdm_form_parser_is_in_header(p->parser) ? TDM_CHAT_BEFORE_ANSWER :
                                                         TDM_CHAT_IN_ANSWER;
}

static int parts_hand_out(struct tdm_chat_parser *p, const struct tdm_form_part *parts, size_t n,
                          const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        static const enum tdm_chat_part_kind kinds[] = { [TDM_FORM_PART_TEXT] = TDM_CHAT_PART_TEXT,
                                                         [TDM_FORM_PART_THINKING] = TDM_CHAT_PART_THINKING,
                                                         [TDM_FORM_PART_CALL] = TDM_CHAT_PART_CALL,
                                                         [TDM_FORM_PART_ARGUMENTS] = TDM_CHAT_PART_ARGUMENTS };

        if (n > p->capacity) {
                struct tdm_chat_part *more = reallocarray(p->parts, n, sizeof(*more));

                if (!more)
                        return -ENOMEM;
                p->parts = more;
                p->capacity = n;
        }
        for (size_t i = 0; i < n; i++) {
                p->parts[i] =
                        (struct tdm_chat_part){ kinds[parts[i].kind], parts[i].call, parts[i].data, parts[i].size, "" };
                memcpy(p->parts[i].id, parts[i].id, sizeof(p->parts[i].id));
        }
        *ret_parts = p->parts;
        *ret_n = n;
        return 0;
}

int tdm_chat_parser_push(struct tdm_chat_parser *p, const char *data, size_t size,
                         const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        const struct tdm_form_part *parts;
        size_t n;
        int r = tdm_form_parser_push(p->parser, data, size, &parts, &n);

        return r < 0 ? r : parts_hand_out(p, parts, n, ret_parts, ret_n);
}

int tdm_chat_parser_finish(struct tdm_chat_parser *p, const struct tdm_chat_part **ret_parts, size_t *ret_n)
{
        const struct tdm_form_part *parts;
        size_t n;
        int r = tdm_form_parser_finish(p->parser, &parts, &n);

        return r < 0 ? r : parts_hand_out(p, parts, n, ret_parts, ret_n);
}
