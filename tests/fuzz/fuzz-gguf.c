/* Any bytes as a model file, as far as they go: container, description, tokenizer, a text, a conversation. Or as the
 * file of a projector: description, and rows of a picture where the vision tower is small. */
#include <assert.h>
#include <sys/mman.h>
#include "common/sigbus.h"
#include "engine/model/model.h"
#include "engine/chat/chat.h"
#include "engine/vision/tower.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOWER_WIDTH 64u /* of what is computed: time is for many inputs */
#define TOWER_PATCHES 64u

static volatile uint64_t seen; /* so that reads are made */

static void visit(const struct tdm_gguf *g)
{
        struct tdm_gguf_string s;
        uint64_t n, u;
        int64_t i;
        double f;
        uint64_t sum = 0;

        for (uint64_t k = 0; k < tdm_gguf_n_tensors(g); k++) {
                const struct tdm_gguf_tensor *t = tdm_gguf_tensor(g, k);
                const uint8_t *bytes = tdm_gguf_tensor_data(g, t);

                assert(t->size_bytes > 0 && t->offset + t->size_bytes <= tdm_gguf_file_size(g));
                sum += bytes[0] + bytes[t->size_bytes - 1];
        }
        seen = sum;
        if (tdm_gguf_get_array_size(g, "tokenizer.ggml.tokens", &n) < 0)
                return;
        for (uint64_t k = 0; k <= n && k < 1000; k++) {
                if (tdm_gguf_get_array_string(g, "tokenizer.ggml.tokens", k, &s) == 0 && s.size > 0)
                        seen = (uint8_t)s.data[s.size - 1];
                (void)tdm_gguf_get_array_u64(g, "tokenizer.ggml.tokens", k, &u);
                (void)tdm_gguf_get_array_i64(g, "tokenizer.ggml.token_type", k, &i);
                (void)tdm_gguf_get_array_f64(g, "tokenizer.ggml.scores", k, &f);
        }
}

static void talk(const struct tdm_gguf *g, const struct tdm_tokenizer *t)
{
        static const char text[] = "abc <start_of_turn> cab\n\n \xc3\xa9\xe2\x96\x81\xff";
        const struct tdm_chat_message messages[] = {
                { TDM_CHAT_SYSTEM, text, 3 },
                { TDM_CHAT_USER, text, sizeof(text) - 1 },
        };
        struct tdm_chat_prompt prompt;
        struct tdm_decoder decoder;
        struct tdm_chat *chat;
        struct tdm_error err;
        uint32_t ids[64];
        ssize_t n;

        assert(tdm_chat_new(&chat, g, t, 0) == 0);
        if (tdm_chat_render(chat, messages, 2, NULL, &prompt, &err) == 0) {
                assert(tdm_chat_encode(chat, &prompt, NULL, ids, 64) >= 0);
                tdm_chat_prompt_deinit(&prompt);
        }
        tdm_chat_destroy(chat);
        n = tdm_tokenizer_encode(t, text, sizeof(text) - 1, TDM_TOKENIZE_SPECIAL, ids, 64);
        assert(n > 0);
        tdm_decoder_init(&decoder, t, true);
        for (ssize_t i = 0; i < TDM_MIN(n, (ssize_t)64); i++) {
                char *out = malloc(TDM_DECODER_ROOM(t));

                assert(out && ids[i] < tdm_tokenizer_n_vocab(t));
                assert(tdm_decoder_push(&decoder, ids[i], out, TDM_DECODER_ROOM(t)) <= TDM_DECODER_ROOM(t));
                free(out);
        }
}

static bool is_small(const struct tdm_projector *p)
{
        return p->d_model <= TOWER_WIDTH && p->d_ff <= TOWER_WIDTH && p->n_out <= TOWER_WIDTH && p->n_layers <= 2 &&
               p->grid * p->grid <= TOWER_PATCHES && p->image.patch <= 16;
}

/* Whatever the numbers of the weights, the rows are written; numbers that are none are the caller's to refuse. */
static void look_at_a_picture(const struct tdm_gguf *g, const struct tdm_projector *p)
{
        static const uint8_t rgb[3 * 2 * 3] = { 255, 0, 128, 1, 2, 3, 254, 253, 252 };
        static struct tdm_pool *pool;
        const struct tdm_tower_options options = { .act = TDM_ACT_I8, .kv = TDM_KV_F16 };
        struct tdm_tower *tower = NULL;
        struct tdm_error err = { 0 };
        float *out;
        int r;

        if (!pool && tdm_pool_new(&pool, 1, NULL) < 0)
                abort();
        r = tdm_tower_new(&tower, g, tdm_kernels_choose(NULL), pool, &options, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r)
                return;
        out = malloc((size_t)tdm_tower_n_rows(tower) * p->n_out * sizeof(*out));
        assert(out && tdm_tower_run(tower, rgb, (struct tdm_image_size){ .width = 3, .height = 2 }, out, &err) == 0);
        free(out);
        tdm_tower_destroy(tower);
}

static void read_projector(const struct tdm_gguf *g)
{
        struct tdm_projector p;
        struct tdm_error err = { 0 };
        int r = tdm_projector_describe(&p, g, &err);

        assert(r == 0 || (r == err.code && err.message[0]));
        if (r)
                return;
        assert(p.grid * p.image.patch == p.image.side && p.grid % p.image.merge == 0);
        assert(p.head_dim * p.n_heads == p.d_model && p.n_layers > 0 && p.n_out > 0);
        if (is_small(&p))
                look_at_a_picture(g, &p);
}

/* What the objects hold is what they say, and a small multiple of the file. */
static void check_memory(const struct tdm_gguf *g, const struct tdm_tokenizer *t, size_t size, uint64_t counted)
{
        uint64_t held = tdm_gguf_memory(g) + (t ? tdm_tokenizer_memory(t) : 0);

        assert(held == counted);
        assert(held <= 16 * (uint64_t)size + 65536);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint64_t start;
        _Atomic uint64_t n_bytes = 0;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes };
        static int fd = -1;
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        struct tdm_model_description description;
        struct tdm_error err = { 0 };
        int r;

        if (fd < 0) {
                if (tdm_sigbus_init() < 0)
                        abort();
                fd = memfd_create("fuzz", MFD_CLOEXEC);
        }
        if (ftruncate(fd, (off_t)size) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
                abort();
        start = fuzz_now_ns(); /* to write a file of some MiB (mutate-models.c) is not the parser's work */
        r = tdm_gguf_open_within(&g, fd, "fuzz", &limits, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r) {
                assert(n_bytes == 0);
                return fuzz_again(start) ? LLVMFuzzerTestOneInput(data, size) : 0;
        }
        visit(g);
        r = tdm_model_describe(g, &description, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r == 0) {
                assert(tdm_hparams_check(&description.hparams, NULL) == 0);
                assert(tdm_recipe_check(&description.recipe, &description.hparams, NULL) == 0);
                tdm_model_description_deinit(&description);
        }
        read_projector(g);
        r = tdm_tokenizer_new_within(&t, g, &limits, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r == 0)
                talk(g, t);
        check_memory(g, t, size, n_bytes);
        return fuzz_again(start) ? LLVMFuzzerTestOneInput(data, size) : 0;
}
