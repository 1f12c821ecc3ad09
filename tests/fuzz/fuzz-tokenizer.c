/* Any text with any small vocabulary. The input: a byte of flags, the number of pieces, each piece as type, length and
 * bytes; what is left is the text. A length of 15 says that the piece's bytes are followed by how often they are repeated.
 * All byte pieces are added, so that every text must come back exactly.
 *
 * An input that takes longer than fuzz-time.h allows is a finding. fuzz-long.c is the same with the text repeated up to
 * 64 KiB, which takes a hundred times as long. */
#include <assert.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer.h"
#include "common/utf8.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PIECES_MAX 40u
#define PIECE_MAX 1024u
#define TEXT_MAX 4096u
#ifndef FUZZ_LONG
#define FUZZ_LONG 0
#endif
#define LONG_TEXT 65536u

struct input {
        uint8_t flags;
        uint32_t n_pieces;
        struct {
                const uint8_t *text;
                uint8_t size, times, type;
        } pieces[PIECES_MAX];
        const uint8_t *text;
        size_t text_size;
};

static void split(struct input *in, const uint8_t *data, size_t size)
{
        uint32_t n;

        *in = (struct input){ 0 };
        if (size < 2)
                return;
        in->flags = data[0];
        n = data[1] % (PIECES_MAX + 1);
        data += 2;
        size -= 2;
        while (in->n_pieces < n && size >= 2) {
                uint8_t type = data[0] % 5 + 1, length = (uint8_t)TDM_MIN((size_t)data[1] % 16, size - 2);

                in->pieces[in->n_pieces].text = data + 2;
                in->pieces[in->n_pieces].type = type;
                in->pieces[in->n_pieces].times = 1;
                in->pieces[in->n_pieces].size = length;
                data += 2 + length;
                size -= 2 + length;
                if (length == 15 && size > 0) {
                        in->pieces[in->n_pieces].times = (uint8_t)(1u + *data % (PIECE_MAX / 15));
                        data++;
                        size--;
                }
                in->n_pieces++;
        }
        in->text = data;
        in->text_size = TDM_MIN(size, (size_t)TEXT_MAX);
}

/* The byte pieces, which are the same each time. */
static const struct gguf_builder *byte_pieces(void)
{
        static struct gguf_builder b;
        char byte[8];

        for (unsigned i = 0; b.size < 256 * 14; i++) {
                snprintf(byte, sizeof(byte), "<0x%02X>", i & 255u);
                build_string(&b, byte);
        }
        return &b;
}

static struct tdm_tokenizer *build(const struct input *in)
{
        static int fd = -1;
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;
        float scores[PIECES_MAX + 256];
        uint8_t types[PIECES_MAX + 256];

        if (fd < 0)
                fd = memfd_create("fuzz", MFD_CLOEXEC);
        build_header(&b, 0, 5);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, in->n_pieces + 256);
        for (uint32_t i = 0; i < in->n_pieces; i++) {
                build_u64(&b, (uint64_t)in->pieces[i].size * in->pieces[i].times);
                for (unsigned k = 0; k < in->pieces[i].times; k++)
                        build_bytes(&b, in->pieces[i].text, in->pieces[i].size);
        }
        build_bytes(&b, byte_pieces()->data, byte_pieces()->size);
        for (uint32_t i = 0; i < in->n_pieces + 256; i++) {
                scores[i] = (float)((i * 7u) % 5u); /* out of order, and many the same */
                types[i] = i < in->n_pieces ? in->pieces[i].type : 6;
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, in->n_pieces + 256);
        build_bytes(&b, scores, (in->n_pieces + 256) * sizeof(*scores));
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, in->n_pieces + 256);
        build_bytes(&b, types, in->n_pieces + 256);
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", in->flags & 1);
        if (ftruncate(fd, (off_t)b.size) < 0 || pwrite(fd, b.data, b.size, 0) != (ssize_t)b.size)
                abort();
        build_reset(&b);
        if (tdm_gguf_open(&g, fd, "fuzz", &err) || tdm_tokenizer_new(&t, g, &err)) {
                fprintf(stderr, "%s\n", err.message);
                abort();
        }
        tdm_gguf_close(g);
        return t;
}

/* The pieces of all ids are the text; without a prefix, byte for byte. */
static void check_pieces(const struct input *in, const struct tdm_tokenizer *t, const uint32_t *ids, ssize_t n)
{
        size_t at = 0;

        for (ssize_t i = 0; i < n; i++) {
                const char *piece;
                size_t size = tdm_tokenizer_piece(t, ids[i], true, &piece);

                assert(ids[i] < tdm_tokenizer_n_vocab(t) && size > 0);
                if (in->flags & 1)
                        continue;
                assert(size <= in->text_size - at && memcmp(piece, in->text + at, size) == 0);
                at += size;
        }
        assert(in->flags & 1 || at == in->text_size);
}

static void check_decoder(const struct tdm_tokenizer *t, const uint32_t *ids, ssize_t n, bool special)
{
        struct tdm_decoder d;
        char *out = malloc(TDM_DECODER_ROOM(t));

        assert(out);
        tdm_decoder_init(&d, t, special);
        for (ssize_t i = 0; i <= n; i++) {
                size_t size = i < n ? tdm_decoder_push(&d, ids[i], out, TDM_DECODER_ROOM(t)) :
                                      tdm_decoder_finish(&d, out, TDM_DECODER_ROOM(t));

                for (size_t k = 0; k < size;) {
                        int length = tdm_utf8_length((uint8_t *)out + k, size - k);

                        assert(length > 0);
                        k += (size_t)length;
                }
        }
        free(out);
}

/* The text again and again: whatever is slow about it is slow often. */
static void check_long(const struct input *in, const struct tdm_tokenizer *t, unsigned flags)
{
        static char text[LONG_TEXT];
        struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(LONG_TEXT) };
        uint64_t start;
        ssize_t n;

        if (in->text_size == 0)
                return;
        for (size_t at = 0; at < LONG_TEXT; at += in->text_size)
                memcpy(text + at, in->text, TDM_MIN(in->text_size, LONG_TEXT - at));
        start = fuzz_now_ns();
        n = tdm_tokenizer_encode_within(t, text, LONG_TEXT, flags, &budget, NULL, 0);
        assert(n > 0 && (size_t)n <= 2 * LONG_TEXT + 1);
        fuzz_check_time(start);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static uint32_t ids[2 * TEXT_MAX], again[2 * TEXT_MAX];
        uint64_t start = fuzz_now_ns();
        struct input in;
        struct tdm_tokenizer *t;
        unsigned flags;
        ssize_t n;

        split(&in, data, size);
        t = build(&in);
        flags = in.flags & 2 ? TDM_TOKENIZE_SPECIAL : 0;
        n = tdm_tokenizer_encode(t, (const char *)in.text, in.text_size, flags, ids, 2 * TEXT_MAX);
        assert(n >= 0 && (size_t)n <= 2 * in.text_size + 1);
        assert(tdm_tokenizer_encode(t, (const char *)in.text, in.text_size, flags, again, (size_t)n / 2) == n);
        assert(memcmp(ids, again, (size_t)n / 2 * sizeof(*ids)) == 0);
        check_pieces(&in, t, ids, n);
        check_decoder(t, ids, n, in.flags & 4);
        fuzz_check_time(start);
        if (FUZZ_LONG)
                check_long(&in, t, flags);
        tdm_tokenizer_destroy(t);
        return 0;
}
