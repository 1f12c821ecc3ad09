#include "client-lib/cli/conversation.h"
#include "client-lib/cli/cli.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

/* Room for so many more messages. */
static bool make_message_room(struct conversation *c, size_t more)
{
        size_t capacity = TDM_MAX(TDM_MAX(c->capacity * 2, c->n + more), (size_t)16);
        struct tandem_message *messages;
        const struct tandem_message_details **details;

        if (c->n + more <= c->capacity)
                return true;
        messages = realloc(c->messages, capacity * sizeof(*messages));
        if (messages)
                c->messages = messages;
        details = messages ? realloc(c->details, capacity * sizeof(*details)) : NULL;
        if (!details)
                return false;
        c->details = details;
        c->capacity = capacity;
        return true;
}

bool conversation_add(struct conversation *c, const char *role, const char *text, size_t size)
{
        char *copy = malloc(size + 1);

        if (!copy || !make_message_room(c, 1)) {
                free(copy);
                complain("no memory for the conversation");
                return false;
        }
        memcpy(copy, text, size);
        copy[size] = '\0';
        c->details[c->n] = NULL;
        c->messages[c->n++] = (struct tandem_message){ role, copy, size };
        return true;
}

bool conversation_move(struct conversation *from, size_t at, struct conversation *to)
{
        size_t n = from->n - at;

        if (n == 0)
                return true;
        if (!make_message_room(to, n)) {
                complain("no memory for the conversation");
                return false;
        }
        memcpy(to->messages + to->n, from->messages + at, n * sizeof(*to->messages));
        memcpy(to->details + to->n, from->details + at, n * sizeof(*to->details));
        to->n += n;
        from->n = at;
        return true;
}

size_t conversation_last_question(const struct conversation *c)
{
        for (size_t i = c->n; i-- > 0;)
                if (strcmp(c->messages[i].role, "user") == 0)
                        return i;
        return c->n;
}

bool call_is_whole(const struct tandem_call *call)
{
        json_t *arguments = json_loads(call->arguments, JSON_ALLOW_NUL, NULL);
        bool whole = json_is_object(arguments);

        json_decref(arguments);
        return whole;
}

static char *copy_call_text(char **at, const char *text)
{
        char *copy = *at;
        size_t size = strlen(text) + 1;

        memcpy(copy, text, size);
        *at += size;
        return copy;
}

/* In one piece, with the texts behind it. */
static struct tandem_message_details *copy_calls(const struct tandem_call *calls, size_t n_calls)
{
        size_t bytes = 0;
        struct tandem_message_details *details;
        struct tandem_call *to;
        char *at;

        for (size_t i = 0; i < n_calls; i++)
                bytes += strlen(calls[i].id) + strlen(calls[i].name) + strlen(calls[i].arguments) + 3;
        details = calloc(1, sizeof(*details) + n_calls * sizeof(*calls) + bytes);
        if (!details)
                return NULL;
        to = (struct tandem_call *)(details + 1);
        at = (char *)(to + n_calls);
        *details = (struct tandem_message_details){ .struct_size = sizeof(*details), .calls = to };
        for (size_t i = 0; i < n_calls; i++)
                if (call_is_whole(&calls[i]))
                        to[details->n_calls++] =
                                (struct tandem_call){ .id = copy_call_text(&at, calls[i].id),
                                                      .name = copy_call_text(&at, calls[i].name),
                                                      .arguments = copy_call_text(&at, calls[i].arguments) };
        return details;
}

bool conversation_add_calls(struct conversation *c, const char *text, size_t size, const struct tandem_call *calls,
                            size_t n_calls)
{
        struct tandem_message_details *details = copy_calls(calls, n_calls);

        if (!details) {
                complain("no memory for the conversation");
                return false;
        }
        if (!conversation_add(c, "assistant", text, size)) {
                free(details);
                return false;
        }
        c->details[c->n - 1] = details;
        return true;
}

static void free_message(struct conversation *c, size_t at)
{
        free((char *)(uintptr_t)c->messages[at].text);
        free((void *)(uintptr_t)c->details[at]);
}

void conversation_forget(struct conversation *c)
{
        while (c->n_aside > 0)
                free_message(c, c->n + --c->n_aside);
}

void conversation_cut(struct conversation *c, size_t keep)
{
        while (c->n > keep)
                free_message(c, --c->n);
}

void conversation_free(struct conversation *c)
{
        conversation_forget(c);
        conversation_cut(c, 0);
        free(c->messages);
        free(c->details);
        *c = (struct conversation){ 0 };
}

bool conversation_has_system(const struct conversation *c)
{
        return c->n > 0 && strcmp(c->messages[0].role, "system") == 0;
}

static void remove_at(struct conversation *c, size_t at, size_t n)
{
        for (size_t i = at; i < at + n; i++)
                free_message(c, i);
        memmove(c->messages + at, c->messages + at + n, (c->n - at - n) * sizeof(*c->messages));
        memmove(c->details + at, c->details + at + n, (c->n - at - n) * sizeof(*c->details));
        c->n -= n;
}

bool conversation_set_system(struct conversation *c, const char *text)
{
        struct tandem_message message;

        if (*text) {
                if (!conversation_add(c, "system", text, strlen(text)))
                        return false;
                message = c->messages[c->n - 1];
                memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof(*c->messages));
                memmove(c->details + 1, c->details, (c->n - 1) * sizeof(*c->details));
                c->messages[0] = message;
                c->details[0] = NULL;
                if (c->n > 1 && strcmp(c->messages[1].role, "system") == 0)
                        remove_at(c, 1, 1);
        } else if (conversation_has_system(c)) {
                remove_at(c, 0, 1);
        }
        return true;
}

static void swap_messages(struct conversation *c, size_t from, size_t to)
{
        for (; from + 1 < to; from++, to--) {
                struct tandem_message message = c->messages[from];
                const struct tandem_message_details *details = c->details[from];

                c->messages[from] = c->messages[to - 1];
                c->details[from] = c->details[to - 1];
                c->messages[to - 1] = message;
                c->details[to - 1] = details;
        }
}

/* The messages from `at` to the end, aside ones too, with the first `by` of them moved behind the others. */
static void rotate_messages(struct conversation *c, size_t at, size_t by)
{
        size_t end = c->n + c->n_aside;

        swap_messages(c, at, at + by);
        swap_messages(c, at + by, end);
        swap_messages(c, at, end);
}

void conversation_take_back(struct conversation *c)
{
        size_t first = conversation_has_system(c);

        rotate_messages(c, first, c->n - first);
        c->n += c->n_aside;
        c->n_aside = 0;
}

size_t conversation_trim(struct conversation *c)
{
        size_t first = conversation_has_system(c), bytes = 0, gone = 0, n_turns = 0;

        for (size_t i = first; i < c->n; i++)
                bytes += c->messages[i].size;
        while (gone * 4 <= bytes) {
                size_t end = first + 1;

                while (end < c->n && strcmp(c->messages[end].role, "user") != 0)
                        end++;
                if (end >= c->n)
                        break; /* the last turn */
                for (size_t i = first; i < end; i++)
                        gone += c->messages[i].size;
                rotate_messages(c, first, end - first);
                c->n -= end - first;
                c->n_aside += end - first;
                n_turns++;
        }
        return n_turns;
}

static void save_calls(struct buf *b, const struct tandem_message_details *details)
{
        if (!details || details->n_calls == 0)
                return;
        json_key(b, "tool_calls");
        for (size_t i = 0; i < details->n_calls; i++) {
                buf_puts(b, i ? ",{" : "[{");
                json_field_string(b, "id", details->calls[i].id);
                json_field_string(b, "type", "function");
                json_key(b, "function");
                buf_puts(b, "{");
                json_field_string(b, "name", details->calls[i].name);
                json_field_string(b, "arguments", details->calls[i].arguments);
                buf_puts(b, "}}");
        }
        buf_puts(b, "]");
}

static bool holds_conversation(const char *path)
{
        json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
        bool holds = json_is_array(json_object_get(root, "messages"));

        json_decref(root);
        return holds;
}

static bool say_unwritten(const char *path, int error)
{
        complain("cannot write %s: %s", path, strerror(error));
        return false;
}

/* A terminal, a pipe, a device. */
static bool write_over(const char *path, const struct buf *text)
{
        _cleanup_(closep) int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        int r = fd < 0 ? -errno : write_all(fd, text->data, text->size);

        return r == 0 || say_unwritten(path, -r);
}

/* Written beside it first: what is there stays whole until the new one is. A link stays one. */
static bool replace_file(const char *path, const struct buf *text)
{
        _cleanup_(freep) char *beside = NULL, *behind_links = realpath(path, NULL);
        struct stat st;
        int fd, r;

        if (stat(path, &st) == 0 && st.st_size > 0 && !holds_conversation(path)) {
                complain("%s is there already, and is no saved conversation; it is left as it is", path);
                return false;
        }
        if (asprintf(&beside, "%s.XXXXXX", behind_links ? behind_links : path) < 0) {
                beside = NULL;
                return say_unwritten(path, ENOMEM);
        }
        fd = mkostemp(beside, O_CLOEXEC);
        if (fd < 0)
                return say_unwritten(path, errno);
        r = write_all(fd, text->data, text->size);
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (close(fd) < 0 && r == 0)
                r = -errno;
        if (r == 0 && rename(beside, behind_links ? behind_links : path) < 0)
                r = -errno;
        if (r == 0)
                return true;
        unlink(beside);
        return say_unwritten(path, -r);
}

bool conversation_save(const struct conversation *c, const char *path)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct stat st;

        buf_puts(&b, "{\"messages\":[");
        for (size_t i = 0; i < c->n; i++) {
                buf_puts(&b, i ? ",\n{" : "\n{");
                json_field_string(&b, "role", c->messages[i].role);
                json_key(&b, "content");
                json_text(&b, c->messages[i].text, c->messages[i].size);
                save_calls(&b, c->details[i]);
                buf_puts(&b, "}");
        }
        buf_puts(&b, "\n]}\n");
        if (b.failed) {
                complain("no memory to save the conversation");
                return false;
        }
        return stat(path, &st) < 0 || S_ISREG(st.st_mode) ? replace_file(path, &b) : write_over(path, &b);
}

/* NULL: it is none that a chat has. */
static const char *known_role(const char *role)
{
        static const char *const roles[] = { "system", "user", "assistant" };

        for (size_t i = 0; role && i < TDM_ARRAY_SIZE(roles); i++)
                if (strcmp(role, roles[i]) == 0)
                        return roles[i];
        return NULL;
}

/* A message, with the calls of tools that it may have. NULL, or what it has not. */
static const char *load_message(struct conversation *c, const json_t *item)
{
        const json_t *content = json_object_get(item, "content"), *list = json_object_get(item, "tool_calls"), *call;
        const char *role = known_role(json_string_value(json_object_get(item, "role"))), *wrong = NULL;
        struct tandem_call *calls;
        size_t i;

        if (!role || !json_is_string(content) || (c->n > 0 && strcmp(role, "system") == 0))
                return "has no role and content that a chat knows";
        if (json_array_size(list) == 0)
                return conversation_add(c, role, json_string_value(content), json_string_length(content)) ? NULL : "";
        calls = calloc(json_array_size(list), sizeof(*calls));
        json_array_foreach(list, i, call)
        {
                const json_t *function = json_object_get(call, "function");

                if (!calls)
                        break;
                calls[i].id = json_string_value(json_object_get(call, "id"));
                calls[i].name = json_string_value(json_object_get(function, "name"));
                calls[i].arguments = json_string_value(json_object_get(function, "arguments"));
                if (!calls[i].id || !calls[i].name || !calls[i].arguments || !call_is_whole(&calls[i]))
                        wrong = "has a call of a tool without id, name or arguments";
        }
        if (strcmp(role, "assistant") != 0)
                wrong = "calls tools, and is not the assistant's";
        if (!wrong && (!calls || !conversation_add_calls(c, json_string_value(content), json_string_length(content),
                                                         calls, json_array_size(list))))
                wrong = "";
        free(calls);
        return wrong;
}

bool conversation_load(struct conversation *c, const char *path)
{
        _cleanup_(buf_freep) struct buf text = { 0 };
        struct conversation loaded = { 0 };
        json_t *root, *item;
        json_error_t error;
        size_t i;

        if (!read_all(path, MAX_INPUT_BYTES, &text))
                return false;
        root = json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (!root) {
                complain("%s is no saved conversation: %s (line %d)", path, error.text, error.line);
                return false;
        }
        json_array_foreach(json_object_get(root, "messages"), i, item)
        {
                const char *wrong = load_message(&loaded, item);

                if (!wrong)
                        continue;
                if (*wrong) /* else it is complained about */
                        complain("%s is no saved conversation: message %zu %s", path, i + 1, wrong);
                break;
        }
        if (i < json_array_size(json_object_get(root, "messages"))) {
                conversation_free(&loaded);
                json_decref(root);
                return false;
        }
        if (!json_is_array(json_object_get(root, "messages"))) {
                complain("%s is no saved conversation: there is no list \"messages\"", path);
                json_decref(root);
                return false;
        }
        json_decref(root);
        conversation_free(c);
        *c = loaded;
        return true;
}
