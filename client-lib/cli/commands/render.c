/* tandem render: the prompt that a conversation becomes, and who wrote which part of it. */
#include "client-lib/cli/cli.h"
#include "common/grow.h"
#include "engine/grammar/json.h"

struct render_options {
        const char *model;
        uint32_t thinking;
        bool json;
};

extern const struct command command_render;

#define MAX_DEPTH 200u

/* A conversation as JSON, and what the library takes. */
struct render_chat {
        struct tdm_json json;
        struct tandem_message *messages;
        struct tandem_message_details *details;
        const struct tandem_message_details **details_ptrs;
        struct tandem_call **calls; /* [n]: of each message */
        size_t n;
        char **strings; /* owned */
        size_t n_strings, capacity;
        char *tools;       /* NULL: none */
        char *variables;   /* of the template; NULL: none */
        uint32_t thinking; /* what these say of it; 0: nothing */
        const char *from;  /* in messages: the file's name, or "standard input" */
};

static void render_chat_deinit(struct render_chat *chat)
{
        for (size_t i = 0; chat->calls && i < chat->n; i++)
                free(chat->calls[i]);
        for (size_t i = 0; i < chat->n_strings; i++)
                free(chat->strings[i]);
        free(chat->strings);
        free(chat->calls);
        free(chat->details_ptrs);
        free(chat->details);
        free(chat->messages);
        free(chat->tools);
        free(chat->variables);
        tdm_json_deinit(&chat->json);
}

/* Takes text over. Returns it, or NULL without memory. */
static char *keep_string(struct render_chat *chat, char *text)
{
        if (text && tdm_grow(&chat->strings, &chat->capacity, chat->n_strings + 1, 32, sizeof(*chat->strings)) < 0) {
                free(text);
                return NULL;
        }
        if (text)
                chat->strings[chat->n_strings++] = text;
        return text;
}

static enum tdm_json_type node_type(const struct render_chat *chat, uint32_t node)
{
        return node == TDM_JSON_NONE ? TDM_JSON_NULL : (enum tdm_json_type)tdm_json_get(&chat->json, node)->type;
}

static int refuse_node(const struct render_chat *chat, uint32_t node, const char *what)
{
        char at[128];

        return complain("%s, %s: %s", chat->from, tdm_json_pointer(&chat->json, node, at, sizeof(at)), what);
}

/* A member that is not known would make another prompt than the one that is asked for. names: NULL at the end. */
static int refuse_unknown_members(const struct render_chat *chat, uint32_t object, const char *const *names)
{
        for (uint32_t node = tdm_json_get(&chat->json, object)->first; node != TDM_JSON_NONE;
             node = tdm_json_get(&chat->json, node)->next) {
                const char *const *name = names;
                size_t size = tdm_json_get(&chat->json, node)->key_size;

                while (*name && (strlen(*name) != size || memcmp(*name, tdm_json_key(&chat->json, node), size) != 0))
                        name++;
                if (!*name)
                        return refuse_node(chat, node, "this member is not known here");
        }
        return 0;
}

/* A member that is a text without a NUL, or is not there. */
static int take_text(struct render_chat *chat, uint32_t object, const char *name, const char **ret)
{
        uint32_t node = tdm_json_member(&chat->json, object, name);
        const struct tdm_json_node *n;

        if (node_type(chat, node) == TDM_JSON_NULL)
                return 0;
        if (node_type(chat, node) != TDM_JSON_STRING)
                return refuse_node(chat, node, "this is to be a text");
        n = tdm_json_get(&chat->json, node);
        if (n->text_size > 0 && memchr(tdm_json_text(&chat->json, node), 0, n->text_size))
                return refuse_node(chat, node, "this text may hold no NUL");
        *ret = keep_string(chat, strndup(tdm_json_text(&chat->json, node), n->text_size));
        return *ret ? 0 : complain("no memory for the conversation");
}

static char *print_node(const struct render_chat *chat, uint32_t node)
{
        struct tdm_json_buffer text = { 0 };

        tdm_json_print(&chat->json, node, &text);
        tdm_json_write(&text, "", 1);
        if (!text.failed)
                return text.data;
        free(text.data);
        return NULL;
}

/* Arguments are an object, or the text of one as OpenAI has it. */
static int take_call(struct render_chat *chat, uint32_t item, struct tandem_call *to)
{
        static const char *const names[] = { "id", "type", "index", "function", "name", "arguments", NULL };
        static const char *const of_function[] = { "name", "arguments", NULL };
        uint32_t function = tdm_json_member(&chat->json, item, "function"), arguments;
        int r;

        if (function == TDM_JSON_NONE)
                function = item;
        if (node_type(chat, function) != TDM_JSON_OBJECT)
                return refuse_node(chat, function, "a call is an object with a function's name and arguments");
        to->id = to->name = "";
        r = refuse_unknown_members(chat, item, names);
        if (r == 0 && function != item)
                r = refuse_unknown_members(chat, function, of_function);
        if (r == 0)
                r = take_text(chat, item, "id", &to->id);
        if (r == 0)
                r = take_text(chat, function, "name", &to->name);
        if (r != 0)
                return r;
        arguments = tdm_json_member(&chat->json, function, "arguments");
        if (node_type(chat, arguments) != TDM_JSON_OBJECT)
                return take_text(chat, function, "arguments", &to->arguments);
        to->arguments = keep_string(chat, print_node(chat, arguments));
        return to->arguments ? 0 : complain("no memory for the conversation");
}

static int take_chat_calls(struct render_chat *chat, uint32_t message, size_t i)
{
        uint32_t list = tdm_json_member(&chat->json, message, "tool_calls"), item;
        size_t n = 0;
        int r = 0;

        if (node_type(chat, list) == TDM_JSON_NULL)
                return 0;
        if (node_type(chat, list) != TDM_JSON_ARRAY)
                return refuse_node(chat, list, "this is to be a list of calls");
        chat->calls[i] = calloc(tdm_json_get(&chat->json, list)->n + 1, sizeof(*chat->calls[i]));
        if (!chat->calls[i])
                return complain("no memory for the conversation");
        for (item = tdm_json_get(&chat->json, list)->first; item != TDM_JSON_NONE && r == 0;
             item = tdm_json_get(&chat->json, item)->next) {
                if (node_type(chat, item) != TDM_JSON_OBJECT)
                        return refuse_node(chat, item, "a call is an object with a function's name and arguments");
                r = take_call(chat, item, &chat->calls[i][n++]);
        }
        chat->details[i].calls = chat->calls[i];
        chat->details[i].n_calls = n;
        return r;
}

static int take_part(struct render_chat *chat, uint32_t part, struct tdm_json_buffer *joined)
{
        static const char *const names[] = { "type", "text", NULL };
        const char *type = "";
        uint32_t text;
        int r;

        if (node_type(chat, part) != TDM_JSON_OBJECT)
                return refuse_node(chat, part, "a part is {\"type\": \"text\", \"text\": …}");
        r = take_text(chat, part, "type", &type);
        if (r != 0)
                return r;
        if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0)
                return refuse_node(chat, part, "this is no part of text; models read text only");
        text = tdm_json_member(&chat->json, part, "text");
        if (node_type(chat, text) != TDM_JSON_STRING)
                return refuse_node(chat, part, "this part has no text");
        tdm_json_write(joined, tdm_json_text(&chat->json, text), tdm_json_get(&chat->json, text)->text_size);
        return refuse_unknown_members(chat, part, names);
}

/* A text, or a list of parts of text, which are joined as the HTTP gateway joins them. */
static int take_content(struct render_chat *chat, uint32_t content, struct tandem_message *message)
{
        struct tdm_json_buffer joined = { 0 };
        int r = 0;

        message->text = "";
        if (node_type(chat, content) == TDM_JSON_STRING) {
                message->text = tdm_json_text(&chat->json, content);
                message->size = tdm_json_get(&chat->json, content)->text_size;
        }
        if (node_type(chat, content) == TDM_JSON_STRING || node_type(chat, content) == TDM_JSON_NULL)
                return 0;
        if (node_type(chat, content) != TDM_JSON_ARRAY)
                return refuse_node(chat, content, "this is to be a text, or a list of parts of text");
        for (uint32_t part = tdm_json_get(&chat->json, content)->first; part != TDM_JSON_NONE && r == 0;
             part = tdm_json_get(&chat->json, part)->next)
                r = take_part(chat, part, &joined);
        message->size = joined.size;
        tdm_json_write(&joined, "", 1);
        message->text = keep_string(chat, joined.failed ? NULL : steal_ptr(&joined.data));
        free(joined.data);
        return r != 0 || message->text ? r : complain("no memory for the conversation");
}

static int take_message(struct render_chat *chat, uint32_t node, size_t i)
{
        static const char *const names[] = { "role",       "content",      "thinking", "reasoning_content",
                                             "tool_calls", "tool_call_id", "name",     NULL };
        struct tandem_message_details *details = &chat->details[i];
        struct tandem_message *message = &chat->messages[i];
        int r;

        if (node_type(chat, node) != TDM_JSON_OBJECT)
                return refuse_node(chat, node, "a message is an object with role and content");
        r = take_content(chat, tdm_json_member(&chat->json, node, "content"), message);
        if (r != 0)
                return r;
        *details = (struct tandem_message_details){ .struct_size = sizeof(*details) };
        chat->details_ptrs[i] = details;
        message->role = "";
        r = refuse_unknown_members(chat, node, names);
        if (r == 0)
                r = take_text(chat, node, "role", &message->role);
        if (r == 0 && strcmp(message->role, "developer") == 0)
                message->role = "system";
        if (r == 0)
                r = take_text(chat, node, "thinking", &details->thinking);
        if (r == 0 && !details->thinking)
                r = take_text(chat, node, "reasoning_content", &details->thinking);
        if (r == 0)
                r = take_text(chat, node, "tool_call_id", &details->call_id);
        if (r == 0)
                r = take_text(chat, node, "name", &details->name);
        return r ? r : take_chat_calls(chat, node, i);
}

/* A member of the root as it was written; the daemon checks it. */
static int take_value(struct render_chat *chat, const char *name, char **ret)
{
        uint32_t node = tdm_json_member(&chat->json, 0, name);

        if (node_type(chat, node) == TDM_JSON_NULL)
                return 0;
        *ret = print_node(chat, node);
        return *ret ? 0 : complain("no memory for the conversation");
}

static bool node_is_named(const struct render_chat *chat, uint32_t node, const char *name)
{
        size_t size = tdm_json_get(&chat->json, node)->key_size;

        return strlen(name) == size && memcmp(name, tdm_json_key(&chat->json, node), size) == 0;
}

/* The variables that switch thinking are an option of the request's. As --think says them: */
static int take_switch(struct render_chat *chat, uint32_t node)
{
        static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
        static const uint32_t levels[] = { TANDEM_THINKING_OFF,    TANDEM_THINKING_LOW,  TANDEM_THINKING_LOW,
                                           TANDEM_THINKING_MEDIUM, TANDEM_THINKING_HIGH, TANDEM_THINKING_HIGH };
        const struct tdm_json_node *n = tdm_json_get(&chat->json, node);
        enum tdm_json_type type = node_type(chat, node);
        uint32_t said = 0;

        if (type == TDM_JSON_NULL)
                return 0;
        if (!node_is_named(chat, node, "reasoning_effort")) {
                if (type != TDM_JSON_TRUE && type != TDM_JSON_FALSE)
                        return refuse_node(chat, node, "this is to be true or false");
                said = type == TDM_JSON_TRUE ? TANDEM_THINKING_ON : TANDEM_THINKING_OFF;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(efforts) && said == 0 && type == TDM_JSON_STRING; i++)
                if (strlen(efforts[i]) == n->text_size &&
                    memcmp(efforts[i], tdm_json_text(&chat->json, node), n->text_size) == 0)
                        said = levels[i];
        if (said == 0)
                return refuse_node(chat, node, "this is to be none, minimal, low, medium, high or xhigh");
        if (chat->thinking != 0 && (chat->thinking == TANDEM_THINKING_OFF) != (said == TANDEM_THINKING_OFF))
                return refuse_node(chat, node, "another variable, or --think, says the opposite of this");
        chat->thinking = TDM_MAX(chat->thinking, said);
        return 0;
}

static int take_variables(struct render_chat *chat)
{
        uint32_t object = tdm_json_member(&chat->json, 0, "chat_template_kwargs"), node;
        struct tdm_json_buffer text = { 0 };
        int r = 0;

        if (node_type(chat, object) != TDM_JSON_OBJECT)
                return take_value(chat, "chat_template_kwargs", &chat->variables);
        for (node = tdm_json_get(&chat->json, object)->first; node != TDM_JSON_NONE && r == 0;
             node = tdm_json_get(&chat->json, node)->next) {
                if (node_is_named(chat, node, "enable_thinking") || node_is_named(chat, node, "thinking") ||
                    node_is_named(chat, node, "reasoning_effort")) {
                        r = take_switch(chat, node);
                        continue;
                }
                tdm_json_write(&text, text.size > 0 ? "," : "{", 1);
                tdm_json_write_string(&text, tdm_json_key(&chat->json, node),
                                      tdm_json_get(&chat->json, node)->key_size);
                tdm_json_write(&text, ":", 1);
                tdm_json_print(&chat->json, node, &text);
        }
        if (r == 0 && text.size > 0)
                tdm_json_write(&text, "}", 2);
        if (r == 0 && text.failed)
                r = complain("no memory for the conversation");
        if (r == 0)
                chat->variables = text.data;
        else
                free(text.data);
        return r;
}

/* The tree's root is node 0. */
static int take_conversation(struct render_chat *chat)
{
        static const char *const names[] = { "messages", "tools", "chat_template_kwargs", NULL };
        bool bare = node_type(chat, 0) == TDM_JSON_ARRAY;
        uint32_t list = bare ? 0 : tdm_json_member(&chat->json, 0, "messages"), item;
        size_t i = 0;
        int r = 0;

        if (node_type(chat, list) != TDM_JSON_ARRAY || tdm_json_get(&chat->json, list)->n == 0)
                return complain("%s: there are no messages (give {\"messages\": […]}, or a list of them)", chat->from);
        if (!bare)
                r = refuse_unknown_members(chat, 0, names);
        if (r != 0)
                return r;
        chat->n = tdm_json_get(&chat->json, list)->n;
        chat->messages = calloc(chat->n, sizeof(*chat->messages));
        chat->details = calloc(chat->n, sizeof(*chat->details));
        chat->details_ptrs = calloc(chat->n, sizeof(*chat->details_ptrs));
        chat->calls = calloc(chat->n, sizeof(*chat->calls));
        if (!chat->messages || !chat->details || !chat->details_ptrs || !chat->calls)
                return complain("no memory for the conversation");
        for (item = tdm_json_get(&chat->json, list)->first; item != TDM_JSON_NONE && r == 0;
             item = tdm_json_get(&chat->json, item)->next)
                r = take_message(chat, item, i++);
        if (r == 0 && !bare)
                r = take_value(chat, "tools", &chat->tools);
        return r == 0 && !bare ? take_variables(chat) : r;
}

static int print_rendered_json(const struct tandem_rendered *rendered)
{
        _cleanup_(buf_freep) struct buf line = { 0 };

        buf_puts(&line, "{");
        json_key(&line, "text");
        json_text(&line, rendered->text, rendered->size);
        json_key(&line, "ids");
        json_ids(&line, rendered->ids, rendered->n_ids);
        json_key(&line, "spans");
        buf_puts(&line, "[");
        for (size_t i = 0; i < rendered->n_spans; i++) {
                buf_puts(&line, i ? ",{" : "{");
                json_field_u64(&line, "end", rendered->spans[i].end);
                json_field_bool(&line, "template", rendered->spans[i].of_template);
                buf_puts(&line, "}");
        }
        buf_puts(&line, "]}");
        return print_json(&line);
}

/* The template's own text is dim on a terminal. */
static int print_rendered(const struct tandem_rendered *rendered)
{
        size_t at = 0;

        if (!term_stdout_tty) {
                out_write(rendered->text, rendered->size);
                return out_finish();
        }
        for (size_t i = 0; i < rendered->n_spans; i++) {
                term_style(rendered->spans[i].of_template ? TERM_DIM : TERM_BOLD);
                out_text(rendered->text + at, rendered->spans[i].end - at);
                term_style(0);
                at = rendered->spans[i].end;
        }
        if (out_mid_line())
                out_puts("\n");
        return out_finish();
}

static int render_conversation(struct cli *cli, const struct render_options *given, const struct render_chat *chat)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_generate_options options;
        struct tandem_rendered *rendered;
        struct tandem_error err;
        bool anew = false;
        int status;

        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        tandem_generate_options_init(&options);
        options.chat = chat->messages;
        options.chat_details = chat->details_ptrs;
        options.n_chat = chat->n;
        options.tools = chat->tools;
        options.chat_variables = chat->variables;
        options.thinking = (enum tandem_thinking)chat->thinking;
        for (;;) {
                options.model = cli_model(tandem, given->model);
                if (tandem_render(tandem, &options, &rendered, &err) == TANDEM_OK)
                        break;
                if (!cli_connect_anew(cli, &tandem, &err, &anew))
                        return complain_model(&err, given->model);
        }
        status = given->json ? print_rendered_json(rendered) : print_rendered(rendered);
        tandem_free(rendered);
        return status;
}

static int run_render(struct cli *cli, int argc, char **argv)
{
        _cleanup_(render_chat_deinit) struct render_chat chat = { 0 };
        _cleanup_(buf_freep) struct buf input = { 0 };
        struct render_options given = { 0 };
        const char *file = "-";
        struct tdm_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_render, argc, argv, &given, &file, 1, &n, &status))
                return status;
        chat.thinking = given.thinking;
        chat.from = strcmp(file, "-") == 0 ? "standard input" : file;
        if (term_stdin_tty && strcmp(file, "-") == 0)
                return args_usage_error(argv[0], "there is no conversation (give a file, or one in standard input)");
        if (!given.model && !strpbrk(file, "/.") && strcmp(file, "-") != 0 && access(file, F_OK) != 0 &&
            errno == ENOENT)
                return complain("cannot open %s: %s (a model: -m %s)", file, strerror(ENOENT), file);
        if (!read_all(file, MAX_INPUT_BYTES, &input))
                return EXIT_FAILED;
        if (tdm_json_parse(&chat.json, input.data ? input.data : "", input.size, MAX_DEPTH, &err) != 0)
                return complain("%s is no JSON: %s", chat.from, err.message);
        status = take_conversation(&chat);
        return status ? status : render_conversation(cli, &given, &chat);
}

static const struct arg args[] = {
        ARG_MODEL(struct render_options, model),
        {
                .name = "think",
                .range = { .type = TDM_VALUE_CHOICE,
                           .choices = (const char *const[]){ "auto", "off", "on", "low", "medium", "high", NULL } },
                .at = offsetof(struct render_options, thinking),
                .value = "T",
                .brief = "whether the model is to think: auto (the default), off, on, low, medium or high",
        },
        ARG_JSON(struct render_options, json, "one JSON object, with token ids and with who wrote which bytes"),
};

const struct command command_render = {
        .name = "render",
        .summary = "the prompt that a conversation becomes",
        .usage = "[-m MODEL] [--think T] [--json] [FILE]",
        .about =
                "Prints the prompt that a model's own chat template makes of a conversation. Nothing is generated. The "
                "conversation is a JSON object {\"messages\": […], \"tools\": […]} as OpenAI's API has it, or the "
                "list of messages alone, in FILE or in standard input. The object may have \"chat_template_kwargs\", "
                "variables of the template; enable_thinking, thinking and reasoning_effort there are --think. A model "
                "that cannot have such a chat refuses it "
                "here too.\n\n"
                "On a terminal the template's own text is dim and the conversation's is bold. With --json the answer "
                "is "
                "{\"text\": …, \"ids\": […], \"spans\": [{\"end\": …, \"template\": …}, …]}: each span ends at a byte "
                "of "
                "the text, and control tokens are in spans of the template alone. A beginning-of-text token that the "
                "file "
                "adds where the template writes none is in the ids only.",
        .examples = "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | tandem render --json",
        COMMAND_ARGS(args),
        .offer = OFFER_FILES,
        .run = run_render,
};
