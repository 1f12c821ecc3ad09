/* No text of a conversation becomes a control piece: 200 messages for each template of a folder, which spell every
 * marker that the template has, whole and in parts, in messages, thoughts, tool results, names, arguments and tools.
 * TANDEM_CHAT_TEMPLATES names another folder, of *.jinja files, than the tree's own. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "common/utf8.h"
#include "engine/chat/test-vocabularies.h"
#include "engine/grammar/json.h"

#define N_MESSAGES 200
#define TURNS 10
#define MARKERS_MAX 96u
#define TEXT_MAX 800u
#define STRANGER "q7Zk" /* in all texts of a conversation, and in no template */

static uint32_t random_state;

static uint32_t random_below(uint32_t n)
{
        random_state = random_state * 1664525u + 1013904223u;
        return (random_state >> 8) % n;
}

/* ---- a vocabulary of the template's markers ---- */

struct forge {
        struct marker markers[MARKERS_MAX];
        char texts[MARKERS_MAX][48];
        struct vocabulary vocabulary;
};

static void marker_add(struct forge *f, const char *text, size_t size)
{
        uint32_t n = f->vocabulary.n;

        for (uint32_t i = 0; i < n; i++)
                if (strlen(f->texts[i]) == size && memcmp(f->texts[i], text, size) == 0)
                        return;
        if (n == MARKERS_MAX || size >= sizeof(f->texts[0]))
                return;
        memcpy(f->texts[n], text, size);
        f->markers[n] = (struct marker){ f->texts[n], 3 };
        f->vocabulary.n++;
}

/* <…> and […] without blanks or quotes. */
static void markers_find(struct forge *f, const char *source)
{
        for (const char *at = source; (at = strpbrk(at, "<[")); at++) {
                size_t size = strcspn(at + 1, *at == '<' ? "<> \n'\"{}\\+" : "[] \n'\"{}\\+abcdefghijklmnopqrstuvwxyz");
                char end = at[1 + size];

                if (size >= 2 && end == (*at == '<' ? '>' : ']'))
                        marker_add(f, at, size + 2);
        }
}

static void forge_begin(struct forge *f, const char *source)
{
        *f = (struct forge){ .vocabulary = { .family = "any", .markers = f->markers, .add_bos = true, .eos = 1 } };
        marker_add(f, "<|a-bos|>", 9);
        marker_add(f, "<|an-eos|>", 10);
        markers_find(f, source);
}

/* ---- messages ---- */

/* Markers, whole or cut, each with a sign of whose it is behind it, and letters. */
static struct tdm_chat_text text_forge(const struct forge *f, char *room)
{
        size_t size = 0;

        for (uint32_t n = 2 + random_below(14); n > 0; n--) {
                const char *marker = f->texts[random_below(f->vocabulary.n)];
                size_t whole = strlen(marker), cut = random_below(3) ? whole : random_below((uint32_t)whole);

                cut = tdm_utf8_cut(marker, cut);
                memcpy(room + size, marker, cut);
                size += cut;
                memcpy(room + size, STRANGER, strlen(STRANGER));
                size += strlen(STRANGER);
                if (random_below(2))
                        room[size++] = "x \n<|"[random_below(5)];
        }
        return (struct tdm_chat_text){ room, size };
}

struct talk {
        struct tdm_chat_message messages[2 * TURNS];
        struct tdm_chat_call calls[2 * TURNS];
        char rooms[6 * TURNS][TEXT_MAX];
        char arguments[2 * TURNS][4 * TEXT_MAX];
        char tools[8 * TEXT_MAX];
        size_t n, n_rooms;
        struct tdm_chat_options options;
};

static struct tdm_chat_text talk_text(struct talk *t, const struct forge *f)
{
        return text_forge(f, t->rooms[t->n_rooms++]);
}

static struct tdm_chat_message *talk_add(struct talk *t, const struct forge *f, enum tdm_chat_role role)
{
        struct tdm_chat_text text = talk_text(t, f);
        struct tdm_chat_message *m = &t->messages[t->n++];

        *m = (struct tdm_chat_message){ .role = role, .text = text.data, .size = text.size };
        return m;
}

static size_t json_put(char *to, const char *before, struct tdm_chat_text text, const char *after)
{
        struct tdm_json_buffer quoted = { 0 };
        size_t size;

        tdm_json_write_string(&quoted, text.data, text.size);
        size = (size_t)sprintf(to, "%s%.*s%s", before, (int)quoted.size, quoted.data, after);
        free(quoted.data);
        return size;
}

static void talk_add_call(struct talk *t, const struct forge *f)
{
        struct tdm_chat_message *m = talk_add(t, f, TDM_CHAT_ASSISTANT);
        struct tdm_chat_call *call = &t->calls[t->n];
        char *at = t->arguments[t->n];

        m->size = 0;
        at += json_put(at, "{", talk_text(t, f), ":");
        json_put(at, "[", talk_text(t, f), "]}");
        *call = (struct tdm_chat_call){ { "abc123XYZ", 9 }, talk_text(t, f), { t->arguments[t->n], 0 } };
        call->arguments.size = strlen(call->arguments.data);
        m->calls = call;
        m->n_calls = 1;
        m = talk_add(t, f, TDM_CHAT_TOOL);
        m->call_id = call->id;
        m->name = call->name;
}

static void talk_make(struct talk *t, const struct forge *f, bool with_system, bool with_tools)
{
        char *at = t->tools;

        *t = (struct talk){ 0 };
        if (with_system)
                talk_add(t, f, TDM_CHAT_SYSTEM);
        while (t->n + 4 < TURNS) {
                talk_add(t, f, TDM_CHAT_USER);
                if (with_tools)
                        talk_add_call(t, f);
                talk_add(t, f, TDM_CHAT_ASSISTANT)->thinking =
                        with_tools ? (struct tdm_chat_text){ 0 } : talk_text(t, f);
        }
        talk_add(t, f, TDM_CHAT_USER);
        if (!with_tools)
                return;
        at += json_put(at, "[{\"type\":\"function\",\"function\":{\"name\":", talk_text(t, f), ",\"description\":");
        at += json_put(at, "", talk_text(t, f), ",\"parameters\":{\"type\":\"object\",\"properties\":{");
        at += json_put(at, "", talk_text(t, f), ":{\"type\":\"string\",\"description\":");
        json_put(at, "", talk_text(t, f), "}},\"required\":[]}}}]");
        t->options.tools = (struct tdm_chat_text){ t->tools, strlen(t->tools) };
}

/* ---- what may not be ---- */

/* Each control piece lies within one of the template's spans, and the pieces read like the prompt. */
static void prompt_check(const char *name, const struct chat *c, const struct forge *f, const struct tdm_chat_prompt *p)
{
        uint32_t *ids = malloc((p->size + 2) * sizeof(*ids));
        ssize_t n = tdm_chat_encode(c->chat, p, NULL, ids, p->size + 2);
        size_t at = 0, span = 0;

        assert_true(n > 0 && (size_t)n <= p->size + 2);
        for (ssize_t i = p->lacks_bos; i < n; i++) {
                const char *piece;
                size_t size = tdm_tokenizer_piece(c->tokenizer, ids[i], true, &piece);

                assert_true(at + size <= p->size);
                assert_memory_equal(p->text + at, piece, size);
                while (p->spans[span].end <= at)
                        span++;
                if (ids[i] < f->vocabulary.n && (!p->spans[span].is_trusted || p->spans[span].end < at + size))
                        fail_msg("%s: %.*s at %zu is a conversation's", name, (int)size, piece, at);
                at += size;
        }
        assert_int_equal(at, p->size);
        for (at = 0, span = 0; span < p->n_spans; at = p->spans[span++].end)
                if (p->spans[span].is_trusted && memmem(p->text + at, p->spans[span].end - at, STRANGER, 4))
                        fail_msg("%s: %.*s is taken for the template's", name, (int)(p->spans[span].end - at),
                                 p->text + at);
        free(ids);
}

/* Returns how many messages the prompts had. */
static size_t template_check(const char *name, const char *source)
{
        static struct talk talk;
        struct forge f;
        struct chat c;
        size_t n = 0, n_tools = 0;

        forge_begin(&f, source);
        c = open_chat_with(&f.vocabulary, source, NULL);
        for (unsigned i = 0; n < N_MESSAGES && i < 4 * N_MESSAGES / TURNS; i++) {
                struct tdm_chat_prompt prompt;
                struct tdm_error err = { 0 };

                talk_make(&talk, &f, i & 1, i & 2 && tdm_chat_has_tools(c.chat));
                if (tdm_chat_render(c.chat, talk.messages, talk.n, &talk.options, &prompt, &err) != 0)
                        continue; /* without a system's message, or tools, more take it */
                prompt_check(name, &c, &f, &prompt);
                n += talk.n;
                n_tools += talk.options.tools.size > 0;
                tdm_chat_prompt_deinit(&prompt);
        }
        if (n > 0 && n_tools == 0 && tdm_chat_has_tools(c.chat))
                fail_msg("%s takes no conversation with tools", name);
        close_chat(&c);
        return n;
}

static void test_injection(void **state)
{
        const char *given = getenv("TANDEM_CHAT_TEMPLATES");
        const char *folder = given ? given : "tests/golden/chat/templates";
        DIR *dir = opendir(folder);
        size_t n_templates = 0, n_refusing = 0;

        assert_non_null(dir);
        for (struct dirent *e; (e = readdir(dir));) {
                static char source[1 << 18];
                char path[512];
                size_t size;
                FILE *file;

                if (!strstr(e->d_name, ".jinja"))
                        continue;
                snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
                file = fopen(path, "re");
                assert_non_null(file);
                size = fread(source, 1, sizeof(source) - 1, file);
                source[size] = '\0';
                fclose(file);
                random_state = (uint32_t)size;
                n_templates++;
                if (template_check(e->d_name, source) < N_MESSAGES) {
                        print_message("%s takes fewer than %u messages\n", e->d_name, N_MESSAGES);
                        n_refusing++;
                }
        }
        closedir(dir);
        print_message("%zu templates, %zu of them take fewer messages\n", n_templates, n_refusing);
        assert_true(n_templates > 0 && n_refusing <= (given ? n_templates / 5 : 0));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_injection) };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
