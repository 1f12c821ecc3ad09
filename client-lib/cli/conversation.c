#include "client-lib/cli/conversation.h"
#include "client-lib/cli/cli.h"
#include "common/base64.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#define PICTURE_WEIGHT 1024u /* 256 tokens, each as text of four bytes */

/* Room for so many more messages. */
static bool make_message_room(struct conversation *c, size_t more)
{
        size_t capacity = TDM_MAX(TDM_MAX(c->capacity * 2, c->n + more), (size_t)16);
        struct tandem_message *messages;
        const struct tandem_message_details **details;
        struct cli_pictures *pictures;

        if (c->n + more <= c->capacity)
                return true;
        messages = realloc(c->messages, capacity * sizeof(*messages));
        if (messages)
                c->messages = messages;
        details = messages ? realloc(c->details, capacity * sizeof(*details)) : NULL;
        if (details)
                c->details = details;
        pictures = details ? realloc(c->pictures, capacity * sizeof(*pictures)) : NULL;
        if (!pictures)
                return false;
        c->pictures = pictures;
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
        c->pictures[c->n] = (struct cli_pictures){ 0 };
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
        memcpy(to->pictures + to->n, from->pictures + at, n * sizeof(*to->pictures));
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
        cli_pictures_free(&c->pictures[at]);
}

void conversation_take_pictures(struct conversation *c, struct cli_pictures *pictures)
{
        cli_pictures_free(&c->pictures[c->n - 1]);
        c->pictures[c->n - 1] = *pictures;
        *pictures = (struct cli_pictures){ 0 };
}

static size_t count_pictures(const struct conversation *c, size_t *ret_bytes)
{
        size_t n = 0;

        *ret_bytes = 0;
        for (size_t i = 0; i < c->n; i++)
                for (size_t k = 0; k < c->pictures[i].n; k++, n++)
                        *ret_bytes += c->pictures[i].items[k].picture->file.size;
        return n;
}

const char *conversation_lacks_room(const struct conversation *c)
{
        size_t bytes, n = count_pictures(c, &bytes);

        return pictures_lack_room(n, bytes);
}

bool conversation_list_pictures(const struct conversation *c, struct tandem_picture **ret, size_t *ret_n)
{
        size_t bytes, n = count_pictures(c, &bytes), at = 0;

        *ret_n = n;
        *ret = n ? calloc(n, sizeof(**ret)) : NULL;
        if (n && !*ret) {
                complain("no memory for pictures");
                return false;
        }
        for (size_t i = 0; i < c->n; i++) {
                cli_pictures_put(&c->pictures[i], (uint32_t)i, *ret + at);
                at += c->pictures[i].n;
        }
        return true;
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
        free(c->pictures);
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
        memmove(c->pictures + at, c->pictures + at + n, (c->n - at - n) * sizeof(*c->pictures));
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
                memmove(c->pictures + 1, c->pictures, (c->n - 1) * sizeof(*c->pictures));
                c->messages[0] = message;
                c->details[0] = NULL;
                c->pictures[0] = (struct cli_pictures){ 0 };
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
                struct cli_pictures pictures = c->pictures[from];

                c->messages[from] = c->messages[to - 1];
                c->details[from] = c->details[to - 1];
                c->pictures[from] = c->pictures[to - 1];
                c->messages[to - 1] = message;
                c->details[to - 1] = details;
                c->pictures[to - 1] = pictures;
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

/* What a message takes of the context, in bytes of text. */
static size_t message_weight(const struct conversation *c, size_t at)
{
        return c->messages[at].size + c->pictures[at].n * PICTURE_WEIGHT;
}

size_t conversation_trim(struct conversation *c)
{
        size_t first = conversation_has_system(c), bytes = 0, gone = 0, n_turns = 0;

        for (size_t i = first; i < c->n; i++)
                bytes += message_weight(c, i);
        while (gone * 4 <= bytes) {
                size_t end = first + 1;

                while (end < c->n && strcmp(c->messages[end].role, "user") != 0)
                        end++;
                if (end >= c->n)
                        break; /* the last turn */
                for (size_t i = first; i < end; i++)
                        gone += message_weight(c, i);
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

static void save_text_part(struct buf *b, const char *text, size_t size, const char **comma)
{
        if (size == 0)
                return;
        buf_printf(b, "%s{", *comma);
        json_field_string(b, "type", "text");
        json_key(b, "text");
        json_text(b, text, size);
        buf_puts(b, "}");
        *comma = ",";
}

static void save_picture_part(struct buf *b, const struct cli_picture *picture, const char **comma)
{
        size_t n = tdm_base64_length(picture->file.size);
        _cleanup_(freep) char *text = malloc(n);

        if (!text) {
                b->failed = true;
                return;
        }
        tdm_base64_write(picture->file.data, picture->file.size, text);
        buf_printf(b, "%s{", *comma);
        json_field_string(b, "type", "image_url");
        json_key(b, "image_url");
        buf_puts(b, "{\"url\":\"data:image/");
        for (const char *c = picture->kind; *c; c++) {
                char small = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;

                buf_add(b, &small, 1);
        }
        buf_puts(b, ";base64,");
        buf_add(b, text, n);
        buf_puts(b, "\"}}");
        *comma = ",";
}

/* A text, or parts of it with pictures between. */
static void save_content(struct buf *b, const struct tandem_message *message, const struct cli_pictures *pictures)
{
        const char *comma = "";
        size_t at = 0;

        json_key(b, "content");
        if (pictures->n == 0) {
                json_text(b, message->text, message->size);
                return;
        }
        buf_puts(b, "[");
        for (size_t i = 0; i < pictures->n; i++) {
                save_text_part(b, message->text + at, pictures->items[i].offset - at, &comma);
                save_picture_part(b, pictures->items[i].picture, &comma);
                at = pictures->items[i].offset;
        }
        save_text_part(b, message->text + at, message->size - at, &comma);
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
                save_content(&b, &c->messages[i], &c->pictures[i]);
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

/* The picture of a data: URL. NULL: *ret_wrong says why; "": it is complained about. */
static struct cli_picture *load_picture(const json_t *part, size_t number, const char **ret_wrong)
{
        const json_t *url = json_object_get(json_object_get(part, "image_url"), "url");
        const char *text = json_string_value(url), *begin = text ? strstr(text, ";base64,") : NULL;
        _cleanup_(buf_freep) struct buf file = { 0 };
        char name[32];
        size_t size, at;

        if (!begin || strncmp(text, "data:", 5) != 0) {
                *ret_wrong = "has a picture that is no data: URL in base64";
                return NULL;
        }
        begin += strlen(";base64,");
        size = json_string_length(url) - (size_t)(begin - text);
        file.data = malloc(size / 4 * 3 + 1);
        file.capacity = size / 4 * 3 + 1;
        *ret_wrong = "has a picture in damaged base64";
        if (!file.data || tdm_base64_read(begin, size, file.data, &file.size, &at) != TDM_BASE64_OK)
                return NULL;
        *ret_wrong = "";
        snprintf(name, sizeof(name), "picture %zu", number);
        return cli_picture_new(&file, name);
}

/* Of a user's message: texts and pictures, in the parts that save_content() writes. NULL, or what is wrong. */
static const char *load_parts(struct conversation *c, const json_t *parts)
{
        _cleanup_(buf_freep) struct buf text = { 0 };
        _cleanup_(cli_pictures_free) struct cli_pictures pictures = { 0 };
        const char *wrong;
        json_t *part;
        size_t i;

        json_array_foreach(parts, i, part)
        {
                const char *type = json_string_value(json_object_get(part, "type"));
                const json_t *words = json_object_get(part, "text");
                struct cli_picture *picture;

                if (type && strcmp(type, "text") == 0 && json_is_string(words)) {
                        buf_add(&text, json_string_value(words), json_string_length(words));
                } else if (type && strcmp(type, "image_url") == 0) {
                        picture = load_picture(part, pictures.n + 1, &wrong);
                        if (!picture)
                                return wrong;
                        if (!cli_pictures_add(&pictures, picture, text.size))
                                return "";
                } else {
                        return "has a part that is neither a text nor a picture";
                }
        }
        buf_add(&text, "", 0);
        if (text.failed) {
                complain("no memory for the conversation");
                return "";
        }
        if (!conversation_add(c, "user", text.data, text.size))
                return "";
        conversation_take_pictures(c, &pictures);
        return NULL;
}

/* A message, with the calls of tools that it may have. NULL, or what it has not. */
static const char *load_message(struct conversation *c, const json_t *item)
{
        const json_t *content = json_object_get(item, "content"), *list = json_object_get(item, "tool_calls"), *call;
        const char *role = known_role(json_string_value(json_object_get(item, "role"))), *wrong = NULL;
        struct tandem_call *calls;
        size_t i;

        if (role && json_is_array(content) && strcmp(role, "user") == 0)
                return load_parts(c, content);
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
