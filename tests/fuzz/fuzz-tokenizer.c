/* Any text with any small vocabulary. The input: a byte of flags, the number of pieces, each piece as type, length and
 * bytes; what is left is the text. A length of 15 says that the piece's bytes are followed by how often they are
 * repeated. Byte pieces are added, so that every text must come back exactly.
 *
 * Most of an execution is spent on reading the vocabulary. The number of pieces is the second byte modulo 41. Where
 * that byte divided by 41 is even, all 256 byte pieces are added. Where it is odd, only those of bytes that occur in
 * the input are, and an unknown piece.
 *
 * Bits 3 and 4 of the flags say which kind of tokenizer: 1 is byte-level, 2 is Gemma 4's, others SentencePiece. Those
 * two get a merge for every byte that makes a piece longer, and for every two pieces that follow each other; bit 1
 * turns their order round, so that merges come before those that make their parts. Bits 5 to 7 choose a pre-tokenizer.
 *
 * An input that takes longer than fuzz-time.h allows is a finding. fuzz-long.c is the same with the text repeated up
 * to 64 KiB, which takes a hundred times as long. */
#include <assert.h>
#include <sys/random.h>

/* What writes the vocabulary is not under test: its branches are neither counted nor compared. */
#ifdef TDM_FUZZ
#define WRITER_BEGIN _Pragma("clang attribute push(__attribute__((no_sanitize(\"coverage\"))), apply_to = function)")
#define WRITER_END _Pragma("clang attribute pop")
#else
#define WRITER_BEGIN
#define WRITER_END
#endif

#include "engine/text/tokenizer-private.h"
#include "common/utf8.h"
#include "tests/fuzz/fuzz-time.h"
WRITER_BEGIN
#include "engine/file/test-gguf-builder.h"
WRITER_END

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
        bool sparse, used[256]; /* used: the bytes that need a piece */
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
        memset(in->used, true, sizeof(in->used));
        if (size < 2)
                return;
        in->flags = data[0];
        n = data[1] % (PIECES_MAX + 1);
        in->sparse = data[1] / (PIECES_MAX + 1) % 2;
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
        if (!in->sparse)
                return;
        memset(in->used, false, sizeof(in->used));
        for (size_t i = 0; i < in->text_size; i++)
                in->used[in->text[i]] = true;
        for (uint32_t i = 0; i < in->n_pieces; i++) {
                for (unsigned k = 0; k < in->pieces[i].size; k++)
                        in->used[in->pieces[i].text[k]] = true;
        }
}

static uint64_t hash_seed;

/* Of one input the hash tables have one seed, so that a finding comes again. */
ssize_t getrandom(void *out, size_t size, unsigned flags)
{
        (void)flags;
        memset(out, 0, size);
        memcpy(out, &hash_seed, TDM_MIN(size, sizeof(hash_seed)));
        return (ssize_t)size;
}

static void choose_seed(const uint8_t *data, size_t size)
{
        hash_seed = size;
        for (size_t i = 0; i < size; i++)
                hash_seed = (hash_seed ^ data[i]) * UINT64_C(0x100000001b3);
}

WRITER_BEGIN

/* The byte pieces, and an unknown one where some bytes have none. Returns how many. */
static uint32_t build_bytes_used(struct gguf_builder *b, const struct input *in, uint8_t *types)
{
        static const char digits[] = "0123456789ABCDEF";
        char byte[] = "<0x00>";
        uint32_t n = 0;

        for (unsigned i = 0; i < 256; i++) {
                if (!in->used[i])
                        continue;
                byte[3] = digits[i / 16];
                byte[4] = digits[i % 16];
                build_u64(b, 6);
                build_bytes(b, byte, 6);
                types[n++] = 6;
        }
        if (in->sparse) {
                build_string(b, "<unk>");
                types[n++] = 2;
        }
        return n;
}

/* The unknown piece is the last one. */
static void build_unknown(struct gguf_builder *b, const struct input *in, uint32_t n_pieces)
{
        if (in->sparse)
                build_key_u32(b, "tokenizer.ggml.unknown_token_id", n_pieces - 1);
}

static unsigned kind_of(const struct input *in)
{
        return in->flags >> 3 & 3;
}

/* Pieces and merges of a tokenizer with merges. */
struct merged {
        struct gguf_builder tokens, merges;
        uint8_t types[PIECES_MAX * 32 + 513];
        uint32_t n, n_merges;
};

/* As it stands in a file: GPT-2's characters, or U+2581 for a space. */
static size_t write_text(bool bytes, const uint8_t *text, size_t size, uint8_t *out)
{
        size_t n = 0;

        for (size_t i = 0; i < size; i++) {
                unsigned c = text[i];

                if (bytes) {
                        if (!((c >= 33 && c <= 126) || (c >= 161 && c != 173)))
                                c = c <= 32 ? 256 + c : c == 173 ? 256 + 67 : 256 + 33 + (c - 127);
                        if (c >= 0x80) {
                                out[n++] = (uint8_t)(0xc0 | c >> 6);
                                c = 0x80 | (c & 0x3f);
                        }
                        out[n++] = (uint8_t)c;
                } else if (c == ' ') {
                        memcpy(out + n, "\xe2\x96\x81", 3);
                        n += 3;
                } else
                        out[n++] = (uint8_t)c;
        }
        return n;
}

static void add_piece(struct merged *m, bool bytes, uint8_t type, const uint8_t *text, size_t size)
{
        uint8_t out[512];
        size_t n = size;

        if (type == 1)
                n = write_text(bytes, text, size, out);
        else
                memcpy(out, text, size);
        build_u64(&m->tokens, n);
        build_bytes(&m->tokens, out, n);
        m->types[m->n++] = type;
}

static void add_merge(struct merged *m, bool bytes, const uint8_t *text, size_t left, size_t right)
{
        uint8_t out[512];
        size_t n = write_text(bytes, text, left, out);

        out[n++] = ' ';
        n += write_text(bytes, text + left, right, out + n);
        build_u64(&m->merges, n);
        build_bytes(&m->merges, out, n);
        m->n_merges++;
}

/* Whether the characters of a piece may be merged byte by byte: in Gemma 4's kind those of ASCII. */
static bool is_plain(bool bytes, const uint8_t *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                if (!bytes && (text[i] >= 0x80 || text[i] == '\n' || text[i] == 0))
                        return false;
        }
        return true;
}

static struct merged *merge(const struct input *in)
{
        struct merged *m = calloc(1, sizeof(*m));
        bool bytes = kind_of(in) == 1;

        assert(m);
        for (unsigned b = 0; b < (bytes ? 256u : 128u); b++) {
                uint8_t byte = (uint8_t)b;

                if (in->used[b])
                        add_piece(m, bytes, 1, &byte, 1);
        }
        for (int merges = 0; merges < 2; merges++) {
                for (uint32_t k = 0; k < in->n_pieces; k++) {
                        uint32_t i = in->flags & 2 ? in->n_pieces - 1 - k : k;
                        const uint8_t *text = in->pieces[i].text;
                        size_t size = in->pieces[i].size, next = i + 1 < in->n_pieces ? in->pieces[i + 1].size : 0;
                        uint8_t both[32];

                        if (in->pieces[i].type != 1) {
                                if (!merges)
                                        add_piece(m, bytes, in->pieces[i].type, text, size);
                                continue;
                        }
                        if (!is_plain(bytes, text, size))
                                continue;
                        for (size_t n = 2; n <= size; n++) {
                                if (merges)
                                        add_merge(m, bytes, text, n - 1, 1);
                                else
                                        add_piece(m, bytes, 1, text, n);
                        }
                        if (size == 0 || next == 0 || in->pieces[i + 1].type != 1 ||
                            !is_plain(bytes, in->pieces[i + 1].text, next))
                                continue;
                        memcpy(both, text, size);
                        memcpy(both + size, in->pieces[i + 1].text, next);
                        if (merges)
                                add_merge(m, bytes, both, size, next);
                        else
                                add_piece(m, bytes, 1, both, size + next);
                }
        }
        return m;
}

static struct tdm_tokenizer *open_tokenizer(struct gguf_builder *b)
{
        static int fd = -1;
        struct tdm_gguf *g = NULL;
        struct tdm_tokenizer *t = NULL;
        struct tdm_error err;

        if (fd < 0)
                fd = memfd_create("fuzz", MFD_CLOEXEC);
        if (ftruncate(fd, (off_t)b->size) < 0 || pwrite(fd, b->data, b->size, 0) != (ssize_t)b->size)
                abort();
        build_reset(b);
        if (tdm_gguf_open(&g, fd, "fuzz", &err) || tdm_tokenizer_new(&t, g, &err)) {
                fprintf(stderr, "%s\n", err.message);
                abort();
        }
        tdm_gguf_close(g);
        return t;
}

static struct tdm_tokenizer *build_merged(const struct input *in)
{
        struct merged *m = merge(in);
        struct gguf_builder b = { 0 };
        bool bytes = kind_of(in) == 1;
        struct tdm_tokenizer *t;

        if (!bytes)
                m->n += build_bytes_used(&m->tokens, in, m->types + m->n);
        else if (in->sparse)
                add_piece(m, bytes, 2, (const uint8_t *)"<unk>", 5);
        build_header(&b, 0, (bytes ? 5 : 4) + in->sparse);
        build_key_string(&b, "tokenizer.ggml.model", bytes ? "gpt2" : "gemma4");
        if (bytes) {
                size_t n_pre = 0;

                while (tdm_pretokenizer_at(n_pre))
                        n_pre++;
                build_key_string(&b, "tokenizer.ggml.pre", tdm_pretokenizer_at((in->flags >> 5) % n_pre)->names[0]);
        }
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, m->n);
        build_bytes(&b, m->tokens.data, m->tokens.size);
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, m->n);
        build_bytes(&b, m->types, m->n);
        build_array(&b, "tokenizer.ggml.merges", VALUE_STRING, m->n_merges);
        build_bytes(&b, m->merges.data, m->merges.size);
        build_unknown(&b, in, m->n);
        t = open_tokenizer(&b);
        build_reset(&m->tokens);
        build_reset(&m->merges);
        free(m);
        return t;
}

static struct tdm_tokenizer *build(const struct input *in)
{
        struct gguf_builder b = { 0 }, bytes = { 0 };
        float scores[PIECES_MAX + 257];
        uint8_t types[PIECES_MAX + 257];
        uint32_t n;

        if (kind_of(in) == 1 || kind_of(in) == 2)
                return build_merged(in);
        n = in->n_pieces + build_bytes_used(&bytes, in, types + in->n_pieces);
        build_header(&b, 0, 5u + in->sparse);
        build_key_string(&b, "tokenizer.ggml.model", "llama");
        build_array(&b, "tokenizer.ggml.tokens", VALUE_STRING, n);
        for (uint32_t i = 0; i < in->n_pieces; i++) {
                build_u64(&b, (uint64_t)in->pieces[i].size * in->pieces[i].times);
                for (unsigned k = 0; k < in->pieces[i].times; k++)
                        build_bytes(&b, in->pieces[i].text, in->pieces[i].size);
                types[i] = in->pieces[i].type;
        }
        build_bytes(&b, bytes.data, bytes.size);
        build_reset(&bytes);
        for (uint32_t i = 0; i < n; i++)
                scores[i] = (float)((i * 7u) % 5u); /* out of order, and many the same */
        build_array(&b, "tokenizer.ggml.scores", VALUE_F32, n);
        build_bytes(&b, scores, n * sizeof(*scores));
        build_array(&b, "tokenizer.ggml.token_type", VALUE_U8, n);
        build_bytes(&b, types, n);
        build_key_bool(&b, "tokenizer.ggml.add_space_prefix", in->flags & 1);
        build_unknown(&b, in, n);
        return open_tokenizer(&b);
}

WRITER_END

/* Whether the pieces are the text, byte for byte. */
static bool comes_back(const struct input *in, const struct tdm_tokenizer *t)
{
        if (t->kind == TDM_TOKENIZER_SPM)
                return !(in->flags & 1);
        if (t->kind == TDM_TOKENIZER_GEMMA4)
                return in->text_size == 0 || !memmem(in->text, in->text_size, "\xe2\x96\x81", 3);
        return !t->pretokenizer->nfc;
}

/* The pieces of all ids are the text; without a prefix, byte for byte. */
static void check_pieces(const struct input *in, const struct tdm_tokenizer *t, const uint32_t *ids, ssize_t n)
{
        size_t at = 0;

        for (ssize_t i = 0; i < n; i++) {
                const char *piece;
                size_t size = tdm_tokenizer_piece(t, ids[i], true, &piece);

                assert(ids[i] < tdm_tokenizer_n_vocab(t) && size > 0);
                if (!comes_back(in, t))
                        continue;
                assert(size <= in->text_size - at && memcmp(piece, in->text + at, size) == 0);
                at += size;
        }
        assert(!comes_back(in, t) || at == in->text_size);
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
        uint64_t start;

        if (in->text_size == 0)
                return;
        for (size_t at = 0; at < LONG_TEXT; at += in->text_size)
                memcpy(text + at, in->text, TDM_MIN(in->text_size, LONG_TEXT - at));
        do {
                struct tdm_encode_budget budget = { .steps = TDM_ENCODE_STEPS(LONG_TEXT) };
                ssize_t n;

                start = fuzz_now_ns();
                n = tdm_tokenizer_encode_within(t, text, LONG_TEXT, flags, &budget, NULL, 0);
                assert(n > 0 && (size_t)n <= 3 * LONG_TEXT + 1);
        } while (fuzz_again(start));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static uint32_t ids[3 * TEXT_MAX], again[3 * TEXT_MAX];
        uint64_t start = fuzz_now_ns();
        struct input in;
        struct tdm_tokenizer *t;
        unsigned flags;
        ssize_t n;

        choose_seed(data, size);
        split(&in, data, size);
        t = build(&in);
        flags = in.flags & 2 ? TDM_TOKENIZE_SPECIAL : 0;
        n = tdm_tokenizer_encode(t, (const char *)in.text, in.text_size, flags, ids, 3 * TEXT_MAX);
        assert(n >= 0 && (size_t)n <= 3 * in.text_size + 1);
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
