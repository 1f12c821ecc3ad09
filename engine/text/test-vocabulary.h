/* Vocabularies and golden tokenizations of tests/golden/tokens/, for tests. Each line of a file is a word and what
 * follows it:
 *
 *   model, pre          the keys of those names
 *   piece TYPE TEXT     a piece, in order
 *   merge LEFT RIGHT    a merge, in order; without piece lines each makes a piece, behind the 256 bytes
 *   special TYPE TEXT   a piece behind those
 *   case TEXT           a text, with \\ \n \r \t \xNN
 *   ids, plain          its ids with special text parsed; and without, where they differ
 *
 * Without piece lines the vocabulary is filled with unused pieces [PADn] up to a multiple of 64. */
#ifndef TDM_ENGINE_TEST_VOCABULARY_H
#define TDM_ENGINE_TEST_VOCABULARY_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer-private.h"

struct test_case {
        char *text;
        size_t size;
        uint32_t *ids, *plain; /* plain may be ids */
        size_t n_ids, n_plain;
};

struct test_vocabulary {
        char model[32], pre[32];
        char **texts; /* of pieces */
        uint8_t *types;
        size_t n, capacity;
        char **merges;
        size_t n_merges, merges_capacity;
        struct test_case *cases;
        size_t n_cases, cases_capacity;
};

/* Makes room for one more element. */
#define TEST_ROOM(array, n, capacity)                                                                                  \
        do {                                                                                                           \
                if ((n) >= (capacity)) {                                                                               \
                        (capacity) = 2 * (capacity) + 64;                                                              \
                        (array) = realloc((array), (capacity) * sizeof(*(array)));                                     \
                        assert_non_null(array);                                                                        \
                }                                                                                                      \
        } while (0)

static inline void test_add_piece(struct test_vocabulary *v, const char *text, uint8_t type)
{
        size_t capacity = v->capacity;

        TEST_ROOM(v->texts, v->n, v->capacity);
        TEST_ROOM(v->types, v->n, capacity);
        v->texts[v->n] = strdup(text);
        v->types[v->n++] = type;
}

/* GPT-2's character of a byte, as UTF-8. */
static inline void test_byte_character(unsigned byte, char out[static 3])
{
        unsigned c = byte, n = 256;

        for (unsigned b = 0; b <= byte; b++) {
                if ((b >= 33 && b <= 126) || (b >= 161 && b != 173))
                        continue;
                c = b == byte ? n : c;
                n++;
        }
        if (c < 0x80) {
                out[0] = (char)c;
                out[1] = 0;
        } else {
                out[0] = (char)(0xc0 | c >> 6);
                out[1] = (char)(0x80 | (c & 0x3f));
                out[2] = 0;
        }
}

/* Those that can be seen come first. */
static inline void test_add_bytes(struct test_vocabulary *v)
{
        char text[3];

        for (int hidden = 0; hidden < 2; hidden++) {
                for (unsigned b = 0; b < 256; b++) {
                        if (hidden == !((b >= 33 && b <= 126) || (b >= 161 && b != 173))) {
                                test_byte_character(b, text);
                                test_add_piece(v, text, TDM_PIECE_NORMAL);
                        }
                }
        }
}

static inline size_t test_unescape(char *text)
{
        char *to = text;

        for (const char *from = text; *from; from++) {
                char hex[3] = { 0 };

                if (*from != '\\') {
                        *to++ = *from;
                        continue;
                }
                switch (*++from) {
                case 'n':
                        *to++ = '\n';
                        break;
                case 'r':
                        *to++ = '\r';
                        break;
                case 't':
                        *to++ = '\t';
                        break;
                case 'x':
                        memcpy(hex, from + 1, 2);
                        *to++ = (char)strtoul(hex, NULL, 16);
                        from += 2;
                        break;
                default:
                        *to++ = *from;
                }
        }
        return (size_t)(to - text);
}

static inline uint32_t *test_numbers(const char *text, size_t *ret_n)
{
        uint32_t *numbers = calloc(strlen(text) + 1, sizeof(*numbers));
        size_t n = 0;
        char *end;

        for (;; text = end) {
                unsigned long v = strtoul(text, &end, 10);

                if (end == text)
                        break;
                numbers[n++] = (uint32_t)v;
        }
        *ret_n = n;
        return numbers;
}

static inline void test_line(struct test_vocabulary *v, char *line)
{
        char *word = line, *rest = strchr(line, ' ');
        struct test_case *last = v->n_cases ? &v->cases[v->n_cases - 1] : NULL;

        if (rest)
                *rest++ = 0;
        else
                rest = line + strlen(line);
        if (strcmp(word, "model") == 0)
                snprintf(v->model, sizeof(v->model), "%s", rest);
        else if (strcmp(word, "pre") == 0)
                snprintf(v->pre, sizeof(v->pre), "%s", rest);
        else if (strcmp(word, "piece") == 0 || strcmp(word, "special") == 0) {
                if (v->n == 0 && word[0] == 's')
                        test_add_bytes(v);
                rest[test_unescape(rest)] = 0;
                rest[1] = 0;
                test_add_piece(v, rest + 2, (uint8_t)atoi(rest));
        } else if (strcmp(word, "merge") == 0) {
                TEST_ROOM(v->merges, v->n_merges, v->merges_capacity);
                v->merges[v->n_merges++] = strdup(rest);
        } else if (strcmp(word, "case") == 0) {
                TEST_ROOM(v->cases, v->n_cases, v->cases_capacity);
                last = &v->cases[v->n_cases++];
                *last = (struct test_case){ .text = strdup(rest) };
                last->size = test_unescape(last->text);
        } else if (strcmp(word, "ids") == 0) {
                last->plain = last->ids = test_numbers(rest, &last->n_ids);
                last->n_plain = last->n_ids;
        } else if (strcmp(word, "plain") == 0)
                last->plain = test_numbers(rest, &last->n_plain);
        else
                assert_int_equal(word[0], '#');
}

/* Merges make pieces where the file lists none; a merge may spell an older one. */
static inline void test_complete(struct test_vocabulary *v)
{
        struct test_vocabulary all = *v;

        if (strcmp(v->model, "gpt2") != 0)
                return;
        all.texts = NULL;
        all.types = NULL;
        all.n = all.capacity = 0;
        test_add_bytes(&all);
        for (size_t i = 0; i < v->n_merges; i++) {
                char text[2 * TDM_PIECE_BYTES_MAX], *space;
                bool known = false;

                snprintf(text, sizeof(text), "%s", v->merges[i]);
                space = strchr(text + 1, ' ');
                memmove(space, space + 1, strlen(space));
                for (size_t k = 0; k < all.n && !known; k++)
                        known = strcmp(all.texts[k], text) == 0;
                if (!known)
                        test_add_piece(&all, text, TDM_PIECE_NORMAL);
        }
        for (size_t i = 256; i < v->n; i++) /* behind the bytes that came with the first special piece */
                test_add_piece(&all, v->texts[i], v->types[i]);
        while (all.n % 64) {
                char text[32];

                snprintf(text, sizeof(text), "[PAD%zu]", all.n);
                test_add_piece(&all, text, TDM_PIECE_UNUSED);
        }
        for (size_t i = 0; i < v->n; i++)
                free(v->texts[i]);
        free(v->texts);
        free(v->types);
        *v = all;
}

static inline struct test_vocabulary test_vocabulary_read(const char *path)
{
        struct test_vocabulary v = { 0 };
        FILE *f = fopen(path, "re");
        char *line = NULL;
        size_t capacity = 0;
        ssize_t n;

        assert_non_null(f);
        while ((n = getline(&line, &capacity, f)) > 0) {
                line[n - 1] = 0;
                test_line(&v, line);
        }
        free(line);
        fclose(f);
        test_complete(&v);
        return v;
}

static inline void test_vocabulary_free(struct test_vocabulary *v)
{
        for (size_t i = 0; i < v->n; i++)
                free(v->texts[i]);
        for (size_t i = 0; i < v->n_merges; i++)
                free(v->merges[i]);
        for (size_t i = 0; i < v->n_cases; i++) {
                if (v->cases[i].plain != v->cases[i].ids)
                        free(v->cases[i].plain);
                free(v->cases[i].ids);
                free(v->cases[i].text);
        }
        free(v->texts);
        free(v->types);
        free(v->merges);
        free(v->cases);
}

/* A GGUF with this vocabulary and nothing else. template may be NULL. */
static inline struct tdm_gguf *test_vocabulary_gguf(const struct test_vocabulary *v, const char *template)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        struct tdm_error err;
        int fd;

        build_header(&b, 0, 4u + (v->pre[0] != 0) + (template != NULL));
        build_key_string(&b, "tokenizer.ggml.model", v->model);
        if (v->pre[0])
                build_key_string(&b, "tokenizer.ggml.pre", v->pre);
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, v->n);
        for (size_t i = 0; i < v->n; i++)
                build_string(&b, v->texts[i]);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, v->n);
        build_bytes(&b, v->types, v->n);
        build_array(&b, "tokenizer.ggml.merges", VALUE_STRING, v->n_merges);
        for (size_t i = 0; i < v->n_merges; i++)
                build_string(&b, v->merges[i]);
        if (template)
                build_key_string(&b, "tokenizer.chat_template", template);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        if (tdm_gguf_open(&g, fd, "test", &err))
                fail_msg("%s", err.message);
        close(fd);
        return g;
}

static inline struct tdm_tokenizer *test_vocabulary_tokenizer(const struct test_vocabulary *v)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = test_vocabulary_gguf(v, NULL);
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        if (tdm_tokenizer_new(&t, g, &err))
                fail_msg("%s", err.message);
        return t;
}

#endif
