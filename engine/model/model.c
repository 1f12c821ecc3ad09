/* From a file's keys and tensor table to the description of a Gemma 3 model.
 *
 * Nothing is guessed from a model's name. A key that would change the result and that we do not follow (another RoPE
 * scaling, attention soft-capping, biases, experts) is refused rather than ignored: a model that loads computes what
 * its makers meant. Whether a tensor's type can be computed with is decided by engine/weights/weights.h. */
#include "engine/model/model.h"

#include <inttypes.h>
#include <math.h>

#define A "gemma3."

#define WIDTH_MAX 65536u
#define VOCAB_MAX (1u << 21)
#define CTX_MAX (1u << 20)
#define FULL_EVERY 6u /* five sliding layers, then a full one */
#define LAYERS_27B 62u

static const char *const block_kind_names[TDM_N_BLOCK_KINDS] = {
        [TDM_BLOCK_EMBED] = "embed", [TDM_BLOCK_ATTENTION] = "attention", [TDM_BLOCK_FFN] = "ffn",
        [TDM_BLOCK_HEAD] = "head",   [TDM_BLOCK_SAMPLE] = "sample",
};

/* What a tensor is called: "blk.<layer>.<name>.weight", or without the layer. */
static const struct tensor_name {
        const char *name;
        bool per_layer;
} tensor_names[TDM_N_TENSOR_KINDS] = {
        [TDM_TENSOR_TOKEN_EMBD] = { "token_embd", false },
        [TDM_TENSOR_OUTPUT] = { "output", false },
        [TDM_TENSOR_OUTPUT_NORM] = { "output_norm", false },
        [TDM_TENSOR_ATTN_NORM] = { "attn_norm", true },
        [TDM_TENSOR_Q] = { "attn_q", true },
        [TDM_TENSOR_K] = { "attn_k", true },
        [TDM_TENSOR_V] = { "attn_v", true },
        [TDM_TENSOR_Q_NORM] = { "attn_q_norm", true },
        [TDM_TENSOR_K_NORM] = { "attn_k_norm", true },
        [TDM_TENSOR_O] = { "attn_output", true },
        [TDM_TENSOR_POST_ATTN_NORM] = { "post_attention_norm", true },
        [TDM_TENSOR_FFN_NORM] = { "ffn_norm", true },
        [TDM_TENSOR_GATE] = { "ffn_gate", true },
        [TDM_TENSOR_UP] = { "ffn_up", true },
        [TDM_TENSOR_DOWN] = { "ffn_down", true },
        [TDM_TENSOR_POST_FFW_NORM] = { "post_ffw_norm", true },
};

/* Parts of a model that text does not touch: the towers that see and hear. */
static const char *const harmless_prefixes[] = { "v.", "mm.", "a." };

const char *tdm_block_kind_name(enum tdm_block_kind kind)
{
        return (unsigned)kind < TDM_N_BLOCK_KINDS ? block_kind_names[kind] : "unknown";
}

static int check_u32(struct tdm_error *err, const char *what, uint32_t v, uint32_t min, uint32_t max)
{
        if (v < min || v > max)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is %u, it must be from %u to %u", what, v, min, max);
        return 0;
}

static int check_float(struct tdm_error *err, const char *what, float v, float min, float max)
{
        if (!(v >= min && v <= max)) /* also NaN */
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is %g, it must be from %g to %g", what, (double)v,
                                     (double)min, (double)max);
        return 0;
}

/* What the kernels are written for. */
static int check_multiples(const struct tdm_hparams *hp, struct tdm_error *err)
{
        if (hp->d_model % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the embedding length %u is not a multiple of 32, which is not "
                                     "supported",
                                     hp->d_model);
        if (hp->d_ff % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the feed-forward length %u is not a multiple of 32, which is "
                                     "not supported",
                                     hp->d_ff);
        if (hp->head_dim % 16)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the head dimension %u is not a multiple of 16, which is not "
                                     "supported",
                                     hp->head_dim);
        if ((uint64_t)hp->n_heads * hp->head_dim % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "%u heads of dimension %u are not a multiple of 32 together, "
                                     "which is not supported",
                                     hp->n_heads, hp->head_dim);
        return 0;
}

static int check_layers(const struct tdm_hparams *hp, struct tdm_error *err)
{
        for (uint32_t i = 0; i < TDM_MAX_LAYERS; i++) {
                if (hp->layer_is_full[i] > (i < hp->n_layers))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the attention kind of layer %u is invalid", i);
                if (i < hp->n_layers && hp->window == 0 && !hp->layer_is_full[i])
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "layer %u has sliding attention without a window",
                                             i);
        }
        return 0;
}

int tdm_hparams_check(const struct tdm_hparams *hp, struct tdm_error *err)
{
        int r;

        if ((r = check_u32(err, "the number of layers", hp->n_layers, 1, TDM_MAX_LAYERS)) ||
            (r = check_u32(err, "the embedding length", hp->d_model, 1, WIDTH_MAX)) ||
            (r = check_u32(err, "the number of heads", hp->n_heads, 1, WIDTH_MAX)) ||
            (r = check_u32(err, "the number of key heads", hp->n_kv_heads, 1, hp->n_heads)) ||
            (r = check_u32(err, "the head dimension", hp->head_dim, 1, WIDTH_MAX)) ||
            (r = check_u32(err, "the feed-forward length", hp->d_ff, 1, WIDTH_MAX)) ||
            (r = check_u32(err, "the vocabulary size", hp->n_vocab, 1, VOCAB_MAX)) ||
            (r = check_u32(err, "the context length", hp->n_ctx, 1, CTX_MAX)) ||
            (r = check_u32(err, "the attention window", hp->window, 0, CTX_MAX)))
                return r;
        if ((uint64_t)hp->n_heads * hp->head_dim > WIDTH_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%u heads of dimension %u are more than %u together",
                                     hp->n_heads, hp->head_dim, WIDTH_MAX);
        if (hp->n_heads % hp->n_kv_heads)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%u heads cannot share %u key heads evenly", hp->n_heads,
                                     hp->n_kv_heads);
        if ((r = check_multiples(hp, err)) ||
            (r = check_float(err, "the epsilon of the norms", hp->norm_eps, 1e-12f, 0.1f)) ||
            (r = check_float(err, "the RoPE base of full layers", hp->rope_base_full, 1.0f, 1e12f)) ||
            (r = check_float(err, "the RoPE base of sliding layers", hp->rope_base_window, 1.0f, 1e12f)) ||
            (r = check_float(err, "the RoPE scaling factor", hp->rope_factor_full, 1e-3f, 1e6f)) ||
            (r = check_float(err, "the query scale", hp->query_scale, 1e-6f, 1e3f)) ||
            (r = check_float(err, "the embedding scale", hp->embed_scale, 1e-3f, 1e6f)) ||
            (r = check_float(err, "the logit soft-capping", hp->logit_softcap, 0.0f, 1e6f)))
                return r;
        return check_layers(hp, err);
}

/* A whole number; where a file has one for each layer, they must agree. */
static int get_u32(const struct tdm_gguf *g, const char *key, bool required, uint32_t *v, struct tdm_error *err)
{
        uint64_t value, other, n;
        int r;

        r = tdm_gguf_get_u64(g, key, &value);
        if (r == -ENOENT && !required)
                return 0;
        if (r == -ENOENT)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing", key);
        if (r < 0 && tdm_gguf_get_array_size(g, key, &n) == 0) {
                if (n > TDM_MAX_LAYERS)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s has %" PRIu64 " numbers, at most one for each of %u layers is "
                                             "allowed",
                                             key, n, TDM_MAX_LAYERS);
                r = tdm_gguf_get_array_u64(g, key, 0, &value);
                for (uint64_t i = 1; r == 0 && i < n; i++) {
                        r = tdm_gguf_get_array_u64(g, key, i, &other);
                        if (r == 0 && other != value)
                                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                                     "the key %s differs between layers, which is "
                                                     "not supported",
                                                     key);
                }
        }
        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a whole number of 0 or more", key);
        if (value > UINT32_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is %" PRIu64 ", which is far too much", key,
                                     value);
        *v = (uint32_t)value;
        return 0;
}

static int get_float(const struct tdm_gguf *g, const char *key, bool required, float *v, struct tdm_error *err)
{
        double value;
        int r;

        r = tdm_gguf_get_f64(g, key, &value);
        if (r == -ENOENT && !required)
                return 0;
        if (r == -ENOENT)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing", key);
        if (r < 0 || !isfinite(value) || fabs(value) > 1e30)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a usable number", key);
        *v = (float)value;
        return 0;
}

/* A file's string for a message: printable, of bounded length. */
static const char *quote(struct tdm_gguf_string s, char buffer[static 64])
{
        size_t n = TDM_MIN(s.size, (size_t)60);

        for (size_t i = 0; i < n; i++)
                buffer[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i] : '?';
        memcpy(buffer + n, s.size > n ? "..." : "", s.size > n ? 4 : 1);
        return buffer;
}

static bool string_is(struct tdm_gguf_string s, const char *text)
{
        return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static int check_architecture(const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string s;
        uint32_t n_files = 1;
        char buffer[64];
        int r;

        r = tdm_gguf_get_string(g, "general.architecture", &s);
        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key general.architecture is %s",
                                     r == -ENOENT ? "missing" : "not a string");
        if (!string_is(s, "gemma3"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "its architecture is \"%s\", only \"gemma3\" is supported",
                                     quote(s, buffer));
        r = get_u32(g, "split.count", false, &n_files, err);
        if (r)
                return r;
        if (n_files > 1)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "it is one of %u parts; merge them into one file",
                                     n_files);
        return 0;
}

/* Keys that would change the result and that nothing here follows. */
static int check_features(const struct tdm_gguf *g, uint32_t head_dim, struct tdm_error *err)
{
        uint32_t n_experts = 0, rope_dim = head_dim;
        float softcap = 0.0f;
        bool causal = true;
        int r;

        if ((r = get_u32(g, A "expert_count", false, &n_experts, err)) ||
            (r = get_u32(g, A "rope.dimension_count", false, &rope_dim, err)) ||
            (r = get_float(g, A "attn_logit_softcapping", false, &softcap, err)))
                return r;
        if (tdm_gguf_get_bool(g, A "attention.causal", &causal) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key " A "attention.causal is not a boolean");
        if (n_experts > 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "it is a mixture of %u experts, which is not supported",
                                     n_experts);
        if (rope_dim != head_dim)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "it rotates %u of %u dimensions of a head, only all of them is "
                                     "supported",
                                     rope_dim, head_dim);
        if (softcap != 0.0f)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "it soft-caps attention scores at %g, which is not supported", (double)softcap);
        if (!causal)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "its attention is not causal, which is not supported");
        return 0;
}

static int get_rope(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        struct tdm_gguf_string type = { "linear", 6 };
        char buffer[64];
        int r;

        hp->rope_base_full = 1e6f;
        hp->rope_base_window = 1e4f;
        hp->rope_factor_full = 1.0f;
        if ((r = get_float(g, A "rope.freq_base", false, &hp->rope_base_full, err)) ||
            (r = get_float(g, A "rope.freq_base_swa", false, &hp->rope_base_window, err)) ||
            (r = get_float(g, A "rope.scale_linear", false, &hp->rope_factor_full, err)) || /* its name of old */
            (r = get_float(g, A "rope.scaling.factor", false, &hp->rope_factor_full, err)))
                return r;
        if (tdm_gguf_get_string(g, A "rope.scaling.type", &type) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key " A "rope.scaling.type is not a string");
        if (string_is(type, "none"))
                hp->rope_factor_full = 1.0f;
        else if (!string_is(type, "linear"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "its RoPE scaling is \"%s\", only \"linear\" is supported",
                                     quote(type, buffer));
        if (hp->rope_factor_full == 0.0f) /* written by some converters for "none" */
                hp->rope_factor_full = 1.0f;
        return 0;
}

/* Which layers see everything. The pattern is a number (every n-th layer) or, for each layer, whether it slides. */
static int get_windows(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        const char *key = A "attention.sliding_window_pattern";
        uint32_t every = FULL_EVERY;
        uint64_t n, slides;
        int r;

        r = get_u32(g, A "attention.sliding_window", false, &hp->window, err);
        if (r)
                return r;
        r = tdm_gguf_get_array_size(g, key, &n);
        if (r == 0 && n < hp->n_layers)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is for %" PRIu64 " layers, the model has %u",
                                     key, n, hp->n_layers);
        if (r < 0) {
                n = 0;
                r = get_u32(g, key, false, &every, err);
                if (r || (r = check_u32(err, key, every, 1, UINT32_MAX)))
                        return r;
        }
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                slides = (i + 1) % every != 0;
                if (n > 0 && tdm_gguf_get_array_u64(g, key, i, &slides) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s is neither a number nor an array of numbers", key);
                hp->layer_is_full[i] = hp->window == 0 || slides == 0;
        }
        return 0;
}

/* The 27B divides by the width of a head as if heads filled the embedding, the others by the real one. */
static int get_scales(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        float scalar = hp->n_layers == LAYERS_27B ? (float)hp->d_model / (float)hp->n_heads : (float)hp->head_dim;
        int r;

        r = get_float(g, A "attention.query_pre_attn_scalar", false, &scalar, err);
        if (r)
                return r;
        hp->query_scale = (float)(1.0 / sqrt((double)scalar));
        hp->embed_scale = (float)sqrt((double)hp->d_model);
        if ((r = get_float(g, A "attention.scale", false, &hp->query_scale, err)))
                return r;
        return get_float(g, A "final_logit_softcapping", false, &hp->logit_softcap, err);
}

static int get_vocab(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        const struct tdm_gguf_tensor *embd = tdm_gguf_find_tensor(g, "token_embd.weight");
        uint64_t n_tokens = 0;
        uint32_t n_vocab;
        int r;

        if (!embd)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor token_embd.weight is missing");
        if (embd->dims[1] > VOCAB_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "tensor token_embd.weight has %" PRIu64 " rows, at most %u are "
                                     "allowed",
                                     embd->dims[1], VOCAB_MAX);
        hp->n_vocab = n_vocab = (uint32_t)embd->dims[1];
        r = get_u32(g, A "vocab_size", false, &n_vocab, err);
        if (r)
                return r;
        if (n_vocab != hp->n_vocab)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key " A "vocab_size is %u, but tensor token_embd.weight has %u "
                                     "rows",
                                     n_vocab, hp->n_vocab);
        if (tdm_gguf_get_array_size(g, "tokenizer.ggml.tokens", &n_tokens) == 0 && n_tokens > hp->n_vocab)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "its tokenizer has %" PRIu64 " pieces, but tensor "
                                     "token_embd.weight has only %u rows",
                                     n_tokens, hp->n_vocab);
        return 0;
}

static int get_hparams(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_error *err)
{
        uint32_t value_length;
        int r;

        if ((r = get_u32(g, A "block_count", true, &hp->n_layers, err)) ||
            (r = check_u32(err, "the key " A "block_count", hp->n_layers, 1, TDM_MAX_LAYERS)) ||
            (r = get_u32(g, A "embedding_length", true, &hp->d_model, err)) ||
            (r = get_u32(g, A "attention.head_count", true, &hp->n_heads, err)) ||
            (r = check_u32(err, "the key " A "attention.head_count", hp->n_heads, 1, WIDTH_MAX)))
                return r;
        hp->n_kv_heads = hp->n_heads;
        hp->head_dim = hp->d_model / hp->n_heads;
        if ((r = get_u32(g, A "attention.head_count_kv", false, &hp->n_kv_heads, err)) ||
            (r = get_u32(g, A "attention.key_length", false, &hp->head_dim, err)))
                return r;
        value_length = hp->head_dim;
        if ((r = get_u32(g, A "attention.value_length", false, &value_length, err)) ||
            (r = get_u32(g, A "feed_forward_length", true, &hp->d_ff, err)) ||
            (r = get_u32(g, A "context_length", true, &hp->n_ctx, err)) ||
            (r = get_float(g, A "attention.layer_norm_rms_epsilon", true, &hp->norm_eps, err)))
                return r;
        if (value_length != hp->head_dim)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "keys of %u and values of %u dimensions differ, which is not "
                                     "supported",
                                     hp->head_dim, value_length);
        if ((r = check_features(g, hp->head_dim, err)) || (r = get_rope(g, hp, err)) || (r = get_windows(g, hp, err)) ||
            (r = get_scales(g, hp, err)) || (r = get_vocab(g, hp, err)))
                return r;
        return tdm_hparams_check(hp, err);
}

static void tensor_shape(const struct tdm_hparams *hp, uint32_t kind, uint32_t *ret_rows, uint32_t *ret_cols)
{
        uint32_t q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
        uint32_t rows = 1, cols = hp->d_model;

        switch (kind) {
        case TDM_TENSOR_TOKEN_EMBD:
        case TDM_TENSOR_OUTPUT:
                rows = hp->n_vocab;
                break;
        case TDM_TENSOR_Q:
                rows = q;
                break;
        case TDM_TENSOR_K:
        case TDM_TENSOR_V:
                rows = kv;
                break;
        case TDM_TENSOR_Q_NORM:
        case TDM_TENSOR_K_NORM:
                cols = hp->head_dim;
                break;
        case TDM_TENSOR_O:
                rows = hp->d_model;
                cols = q;
                break;
        case TDM_TENSOR_GATE:
        case TDM_TENSOR_UP:
                rows = hp->d_ff;
                break;
        case TDM_TENSOR_DOWN:
                rows = hp->d_model;
                cols = hp->d_ff;
                break;
        default:
                break;
        }
        *ret_rows = rows;
        *ret_cols = cols;
}

static int add_tensor(struct tdm_model_description *d, const struct tdm_gguf *g, uint32_t kind, uint32_t layer,
                      struct tdm_error *err)
{
        struct tdm_tensor_ref ref = { .kind = kind, .layer = layer };
        const struct tdm_gguf_tensor *t;
        char name[64];

        if (tensor_names[kind].per_layer)
                snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, tensor_names[kind].name);
        else
                snprintf(name, sizeof(name), "%s.weight", tensor_names[kind].name);
        t = tdm_gguf_find_tensor(g, name);
        if (!t && kind == TDM_TENSOR_OUTPUT)
                return 0;
        if (!t)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s is missing", name);
        tensor_shape(&d->hparams, kind, &ref.rows, &ref.cols);
        if (t->dims[0] != ref.cols || t->dims[1] != ref.rows || t->dims[2] != 1 || t->dims[3] != 1)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "tensor %s has the shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                                     ", the model's keys want %u x %u",
                                     name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], ref.cols, ref.rows);
        ref.tensor = t;
        d->tensors[d->n_tensors++] = ref;
        return 0;
}

static bool tensor_is_harmless(const struct tdm_gguf_tensor *t)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(harmless_prefixes); i++) {
                size_t n = strlen(harmless_prefixes[i]);

                if (t->name.size > n && memcmp(t->name.data, harmless_prefixes[i], n) == 0)
                        return true;
        }
        return false;
}

/* Every tensor of the file is one that the description has, or harmless. */
static int check_unknown(const struct tdm_model_description *d, const struct tdm_gguf *g, struct tdm_error *err)
{
        _cleanup_(freep) uint8_t *known = NULL;
        uint64_t n = tdm_gguf_n_tensors(g);
        const struct tdm_gguf_tensor *first = tdm_gguf_tensor(g, 0);

        known = calloc(n, 1);
        if (!known)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (uint32_t i = 0; i < d->n_tensors; i++)
                known[d->tensors[i].tensor - first] = 1;
        for (uint64_t i = 0; i < n; i++) {
                const struct tdm_gguf_tensor *t = &first[i];

                if (!known[i] && !tensor_is_harmless(t))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "tensor %.*s is not part of a gemma3 model of %u layers "
                                             "as it is known here",
                                             (int)t->name.size, t->name.data, d->hparams.n_layers);
        }
        return 0;
}

static int describe(const struct tdm_gguf *g, struct tdm_model_description *d, struct tdm_error *err)
{
        int r;

        if ((r = check_architecture(g, err)) || (r = get_hparams(g, &d->hparams, err)))
                return r;
        d->tensors = calloc((size_t)TDM_N_TENSOR_KINDS * d->hparams.n_layers, sizeof(*d->tensors));
        if (!d->tensors)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++) {
                uint32_t n = tensor_names[kind].per_layer ? d->hparams.n_layers : 1;

                for (uint32_t layer = 0; layer < n; layer++) {
                        r = add_tensor(d, g, kind, layer, err);
                        if (r)
                                return r;
                }
        }
        return check_unknown(d, g, err);
}

int tdm_model_describe(const struct tdm_gguf *gguf, struct tdm_model_description *ret, struct tdm_error *err)
{
        struct tdm_model_description d = { 0 };
        struct tdm_error local;
        int r;

        if (!err)
                err = &local;
        r = describe(gguf, &d, err);
        if (r) {
                tdm_model_description_deinit(&d);
                tdm_error_prefix(err, "cannot use model %s", tdm_gguf_name(gguf));
                return r;
        }
        *ret = d;
        return 0;
}

void tdm_model_description_deinit(struct tdm_model_description *description)
{
        free(description->tensors);
        description->tensors = NULL;
        description->n_tensors = 0;
}
