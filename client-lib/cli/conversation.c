#include "client-lib/cli/conversation.h"
#include "client-lib/cli/cli.h"

#include <fcntl.h>
#include <jansson.h>

bool conversation_add(struct conversation *c, const char *role, const char *text, size_t size)
{
        char *copy = malloc(size + 1);

        if (c->n == c->capacity) {
                size_t capacity = TDM_MAX(c->capacity * 2, (size_t)16);
                struct tandem_message *p = realloc(c->messages, capacity * sizeof(*p));

                if (p) {
                        c->messages = p;
                        c->capacity = capacity;
                }
        }
        if (!copy || c->n == c->capacity) {
                free(copy);
                complain("no memory for the conversation");
                return false;
        }
        memcpy(copy, text, size);
        copy[size] = '\0';
        c->messages[c->n++] = (struct tandem_message){ role, copy, size };
        return true;
}

static void free_text(const struct tandem_message *message)
{
        free((char *)(uintptr_t)message->text);
}

void conversation_cut(struct conversation *c, size_t keep)
{
        while (c->n > keep)
                free_text(&c->messages[--c->n]);
}

void conversation_free(struct conversation *c)
{
        conversation_cut(c, 0);
        free(c->messages);
        *c = (struct conversation){ 0 };
}

bool conversation_has_system(const struct conversation *c)
{
        return c->n > 0 && strcmp(c->messages[0].role, "system") == 0;
}

static void remove_at(struct conversation *c, size_t at, size_t n)
{
        for (size_t i = at; i < at + n; i++)
                free_text(&c->messages[i]);
        memmove(c->messages + at, c->messages + at + n, (c->n - at - n) * sizeof(*c->messages));
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
                c->messages[0] = message;
                if (c->n > 1 && strcmp(c->messages[1].role, "system") == 0)
                        remove_at(c, 1, 1);
        } else if (conversation_has_system(c)) {
                remove_at(c, 0, 1);
        }
        return true;
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
                remove_at(c, first, end - first);
                n_turns++;
        }
        return n_turns;
}

bool conversation_save(const struct conversation *c, const char *path)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        _cleanup_(closep) int fd = -1;
        int r;

        buf_puts(&b, "{\"messages\":[");
        for (size_t i = 0; i < c->n; i++) {
                buf_puts(&b, i ? ",\n{" : "\n{");
                json_field_string(&b, "role", c->messages[i].role);
                json_key(&b, "content");
                json_text(&b, c->messages[i].text, c->messages[i].size);
                buf_puts(&b, "}");
        }
        buf_puts(&b, "\n]}\n");
        if (b.failed) {
                complain("no memory to save the conversation");
                return false;
        }
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0) {
                complain("cannot write %s: %s", path, strerror(errno));
                return false;
        }
        r = write_all(fd, b.data, b.size);
        if (r < 0)
                complain("cannot write %s: %s", path, strerror(-r));
        return r == 0;
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
                const json_t *content = json_object_get(item, "content");
                const char *role = known_role(json_string_value(json_object_get(item, "role")));

                if (!role || !json_is_string(content) || (i > 0 && strcmp(role, "system") == 0)) {
                        complain("%s is no saved conversation: message %zu has no role and content that a chat knows",
                                 path, i + 1);
                        break;
                }
                if (!conversation_add(&loaded, role, json_string_value(content), json_string_length(content)))
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
