/* Any text with any small vocabulary. The input: a byte of flags, the number of pieces, each piece as type, length and
 * bytes; what is left is the text. All byte pieces are added, so that every text must come back exactly. */
#include <assert.h>
#include "common/sigbus.h"
#include "engine/file/test-gguf-builder.h"
#include "engine/text/tokenizer.h"
#include "common/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PIECES_MAX 40u
#define TEXT_MAX 4096u

struct input {
        uint8_t flags;
        uint32_t n_pieces;
        struct {
                const uint8_t *text;
                uint8_t size, type;
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
                in->pieces[in->n_pieces++].size = length;
                data += 2 + length;
                size -= 2 + length;
        }
        in->text = data;
        in->text_size = TDM_MIN(size, (size_t)TEXT_MAX);
}

static struct tdm_tokenizer *build(const struct input *in)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;
        char byte[8];
        int fd;

        build_header(&b, 0, 5);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, in->n_pieces + 256);
        for (uint32_t i = 0; i < in->n_pieces; i++) {
                build_u64(&b, in->pieces[i].size);
                build_bytes(&b, in->pieces[i].text, in->pieces[i].size);
        }
        for (unsigned i = 0; i < 256; i++) {
                snprintf(byte, sizeof(byte), "<0x%02X>", i & 255u);
                build_string(&b, byte);
        }
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, in->n_pieces + 256);
        for (uint32_t i = 0; i < in->n_pieces + 256; i++)
                build_f32(&b, (float)((i * 7u) % 5u)); /* out of order, and many the same */
        build_array(&b, "tokenizer.ggml.token_type", VALUE_I32, in->n_pieces + 256);
        for (uint32_t i = 0; i < in->n_pieces + 256; i++)
                build_u32(&b, i < in->n_pieces ? in->pieces[i].type : 6);
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", in->flags & 1);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        if (tdm_gguf_open(&g, fd, "fuzz", &err) || tdm_tokenizer_new(&t, g, &err)) {
                fprintf(stderr, "%s\n", err.message);
                abort();
        }
        tdm_gguf_close(g);
        close(fd);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static uint32_t ids[2 * TEXT_MAX], again[2 * TEXT_MAX];
        struct input in;
        struct tdm_tokenizer *t;
        unsigned flags;
        ssize_t n;

        if (tdm_sigbus_init() < 0)
                abort();
        split(&in, data, size);
        t = build(&in);
        flags = in.flags & 2 ? TDM_TOKENIZE_SPECIAL : 0;
        n = tdm_tokenizer_encode(t, (const char *)in.text, in.text_size, flags, ids, 2 * TEXT_MAX);
        assert(n >= 0 && (size_t)n <= 2 * in.text_size + 1);
        assert(tdm_tokenizer_encode(t, (const char *)in.text, in.text_size, flags, again, (size_t)n / 2) == n);
        assert(memcmp(ids, again, (size_t)n / 2 * sizeof(*ids)) == 0);
        check_pieces(&in, t, ids, n);
        check_decoder(t, ids, n, in.flags & 4);
        tdm_tokenizer_destroy(t);
        return 0;
}
