/* The table of hyperparameters: under which key a file has each, its type, its range, its default and where it goes.
 *
 * Keys are read in the table's order, so a default may be made of what stands above. The ranges hold for files and for
 * what a worker was handed alike: tdm_hparams_check() and tdm_recipe_check() walk through the same rows. A key that
 * would change the result and that an architecture does not follow is refused, not ignored: a model that loads computes
 * what its makers meant. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include "engine/model/private.h"

#define KEY_MAX 128u

enum key_type { U32, FLOAT, BOOL };
enum place { SIZES, LAYER_SIZES, RECIPE, LAYER_RECIPE, ROPE, NOWHERE };

/* Who has the key: every architecture and file; every architecture; those that follow it. */
enum need { REQUIRED, COMMON, FOLLOWED };

struct row {
        const char *key;  /* behind "<architecture>."; NULL: no key of its own, the architecture computes it */
        const char *what; /* for messages */
        uint8_t type;     /* enum key_type */
        uint8_t need;     /* enum need */
        bool is_first;    /* its range is checked as it is read: later rows divide by it or loop up to it */
        uint8_t rope;     /* ROPE: which of the recipe's; the range holds for all */
        uint8_t place;    /* enum place: in each layer of hparams or recipe, or once in them */
        uint16_t offset;
        double min, max;
        /* COMMON: where a file has no such key. NULL: 0. */
        uint32_t (*otherwise)(const struct tdm_hparams *hp, uint32_t layer);
        /* FOLLOWED, for an architecture that does not follow it: the value that changes nothing, and the words before
         * and behind any other value in the refusal. The second is NULL where the value says nothing more. */
        double neutral;
        const char *refusal[2];
};

static uint32_t as_heads(const struct tdm_hparams *hp, uint32_t layer)
{
        return hp->layers[layer].n_heads;
}

static uint32_t share_of_embedding(const struct tdm_hparams *hp, uint32_t layer)
{
        return hp->d_model / hp->layers[layer].n_heads;
}

#define IN_SIZES(field) .place = SIZES, .offset = offsetof(struct tdm_hparams, field)
#define IN_LAYER_SIZES(field) .place = LAYER_SIZES, .offset = offsetof(struct tdm_layer_sizes, field)
#define IN_RECIPE(field) .place = RECIPE, .offset = offsetof(struct tdm_recipe, field)
#define IN_LAYER_RECIPE(field) .place = LAYER_RECIPE, .offset = offsetof(struct tdm_layer_recipe, field)
#define IN_ROPE(which, field) .place = ROPE, .rope = which, .offset = offsetof(struct tdm_rope_recipe, field)

// clang-format off
static const struct row rows[TDM_N_KEYS] = {
        [TDM_KEY_N_LAYERS] = { "block_count", "the number of layers", U32, REQUIRED, true,
                IN_SIZES(n_layers), .min = 1, .max = TDM_MAX_LAYERS },
        [TDM_KEY_D_MODEL] = { "embedding_length", "the embedding length", U32, REQUIRED,
                IN_SIZES(d_model), .min = 1, .max = TDM_WIDTH_MAX },
        [TDM_KEY_N_CTX] = { "context_length", "the context length", U32, REQUIRED,
                IN_SIZES(n_ctx), .min = 1, .max = TDM_CTX_MAX },
        [TDM_KEY_N_VOCAB] = { "vocab_size", "the vocabulary size", U32, COMMON,
                IN_SIZES(n_vocab), .min = 1, .max = TDM_VOCAB_MAX },
        [TDM_KEY_N_HEADS] = { "attention.head_count", "the number of heads", U32, REQUIRED, true,
                IN_LAYER_SIZES(n_heads), .min = 1, .max = TDM_WIDTH_MAX },
        [TDM_KEY_N_KV_HEADS] = { "attention.head_count_kv", "the number of key heads", U32, COMMON,
                IN_LAYER_SIZES(n_kv_heads), .min = 1, .max = TDM_WIDTH_MAX, .otherwise = as_heads },
        [TDM_KEY_HEAD_DIM] = { "attention.key_length", "the head dimension", U32, COMMON,
                IN_LAYER_SIZES(head_dim), .min = 1, .max = TDM_HEAD_DIM_MAX, .otherwise = share_of_embedding },
        [TDM_KEY_D_FF] = { "feed_forward_length", "the feed-forward length", U32, REQUIRED,
                IN_LAYER_SIZES(d_ff), .min = 1, .max = TDM_WIDTH_MAX },
        [TDM_KEY_WINDOW] = { "attention.sliding_window", "the attention window", U32, COMMON,
                IN_LAYER_SIZES(window), .min = 0, .max = TDM_CTX_MAX },

        [TDM_KEY_NORM_EPS] = { "attention.layer_norm_rms_epsilon", "the epsilon of the norms", FLOAT, REQUIRED,
                IN_RECIPE(norm_eps), .min = 1e-12, .max = 0.1 },
        [TDM_KEY_EMBED_SCALE] = { NULL, "the embedding scale", FLOAT, FOLLOWED,
                IN_RECIPE(embed_scale), .min = 1e-3, .max = 1e6 },
        [TDM_KEY_LOGIT_SOFTCAP] = { "final_logit_softcapping", "the logit soft-capping", FLOAT, FOLLOWED,
                IN_RECIPE(logit_softcap), .min = 0, .max = 1e6, .neutral = 0,
                .refusal = { "it soft-caps logits at ", "" } },
        [TDM_KEY_ROPE_BASE] = { "rope.freq_base", "the RoPE base", FLOAT, FOLLOWED,
                IN_ROPE(0, base), .min = 1, .max = 1e12, .neutral = 1e4,
                .refusal = { "its RoPE base is ", "" } },
        [TDM_KEY_ROPE_BASE_WINDOW] = { "rope.freq_base_swa", "the RoPE base", FLOAT, FOLLOWED,
                IN_ROPE(1, base), .min = 1, .max = 1e12, .neutral = 1e4,
                .refusal = { "the RoPE base of its sliding layers is ", "" } },
        [TDM_KEY_ROPE_FACTOR_OLD] = { "rope.scale_linear", "the RoPE scaling factor", FLOAT, FOLLOWED,
                IN_ROPE(0, factor), .min = 1e-3, .max = 1e6, .neutral = 1,
                .refusal = { "it scales RoPE by ", "" } },
        [TDM_KEY_ROPE_FACTOR] = { "rope.scaling.factor", "the RoPE scaling factor", FLOAT, FOLLOWED,
                IN_ROPE(0, factor), .min = 1e-3, .max = 1e6, .neutral = 1,
                .refusal = { "it scales RoPE by ", "" } },
        [TDM_KEY_ROPE_DIMS] = { "rope.dimension_count", "the number of rotated dimensions", U32, FOLLOWED,
                IN_ROPE(0, n_dims), .min = 2, .max = TDM_HEAD_DIM_MAX },
        [TDM_KEY_QUERY_SCALE] = { "attention.scale", "the query scale", FLOAT, FOLLOWED,
                IN_LAYER_RECIPE(query_scale), .min = 1e-6, .max = 1e3, .neutral = 0,
                .refusal = { "it scales queries by ", "" } },
        [TDM_KEY_ATTENTION_SOFTCAP] = { "attn_logit_softcapping", "the soft-capping of attention", FLOAT, FOLLOWED,
                IN_LAYER_RECIPE(attention_softcap), .min = 0, .max = 1e6, .neutral = 0,
                .refusal = { "it soft-caps attention scores at ", "" } },
        [TDM_KEY_N_EXPERTS] = { "expert_count", "the number of experts", U32, FOLLOWED,
                IN_LAYER_RECIPE(n_experts), .min = 0, .max = TDM_MAX_EXPERTS, .neutral = 0,
                .refusal = { "it is a mixture of ", " experts" } },
        [TDM_KEY_N_EXPERTS_USED] = { "expert_used_count", "the number of experts in use", U32, FOLLOWED,
                IN_LAYER_RECIPE(n_experts_used), .min = 0, .max = TDM_MAX_EXPERTS_USED, .neutral = 0,
                .refusal = { "it uses ", " experts" } },
        [TDM_KEY_D_EXPERT] = { "expert_feed_forward_length", "the width of an expert", U32, FOLLOWED,
                IN_LAYER_RECIPE(d_expert), .min = 0, .max = TDM_WIDTH_MAX, .neutral = 0,
                .refusal = { "its experts have ", " neurons" } },
        [TDM_KEY_CAUSAL] = { "attention.causal", "whether attention is causal", BOOL, FOLLOWED,
                .place = NOWHERE, .neutral = 1, .refusal = { "its attention is not causal", NULL } },
};
// clang-format on

/* ---- one key of a file ---- */

static const char *full_key(const char *architecture, const char *key, char ret[static KEY_MAX])
{
        snprintf(ret, KEY_MAX, "%s.%s", architecture, key);
        return ret;
}

/* Whether an array of n numbers can be one for each layer. */
static int check_array(const char *key, uint64_t n, struct tdm_error *err)
{
        if (n > TDM_MAX_LAYERS)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key %s has %" PRIu64 " numbers, at most one for each of %u layers is allowed",
                                     key, n, TDM_MAX_LAYERS);
        return 0;
}

/* A number as its row's type has it. -ENOENT: the file has no such key, in which case *ret is left alone. An array of a
 * number for each layer: layer says which is wanted. */
static int get_number(const struct tdm_gguf *g, const char *key, enum key_type type, uint32_t layer, double *ret,
                      struct tdm_error *err)
{
        uint64_t whole = 0, n = 0;
        double value = 0;
        bool truth = false;
        int r;

        if (type == FLOAT) {
                r = tdm_gguf_get_f64(g, key, &value);
                if (r < 0 && r != -ENOENT && tdm_gguf_get_array_size(g, key, &n) == 0) {
                        if ((r = check_array(key, n, err)))
                                return r;
                        r = tdm_gguf_get_array_f64(g, key, layer, &value);
                }
                if (r != -ENOENT && (r < 0 || !isfinite(value) || fabs(value) > 1e30))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a usable number", key);
        } else if (type == BOOL) {
                r = tdm_gguf_get_bool(g, key, &truth);
                value = truth;
                if (r == -EINVAL)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a boolean, nor 0 or 1", key);
        } else {
                r = tdm_gguf_get_u64(g, key, &whole);
                if (r < 0 && r != -ENOENT && tdm_gguf_get_array_size(g, key, &n) == 0) {
                        if ((r = check_array(key, n, err)))
                                return r;
                        r = tdm_gguf_get_array_u64(g, key, layer, &whole);
                }
                if (r < 0 && r != -ENOENT && r != -ERANGE)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a whole number of 0 or more",
                                             key);
                if (whole > UINT32_MAX)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is %" PRIu64 ", which is far too much",
                                             key, whole);
                value = (double)whole;
        }
        if (r == -ERANGE)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is for %" PRIu64 " layers, the model has more",
                                     key, n);
        if (r == 0)
                *ret = value;
        return r;
}

int tdm_key_get_u32(const struct tdm_gguf *g, const char *architecture, const char *key, uint32_t *ret,
                    struct tdm_error *err)
{
        char buffer[KEY_MAX];
        double value = *ret;
        int r = get_number(g, full_key(architecture, key, buffer), U32, 0, &value, err);

        if (r == 0)
                *ret = (uint32_t)value;
        return r == -ENOENT ? 0 : r;
}

int tdm_key_get_bool(const struct tdm_gguf *g, const char *architecture, const char *key, bool *ret,
                     struct tdm_error *err)
{
        char buffer[KEY_MAX];
        double value = 0;
        int r = get_number(g, full_key(architecture, key, buffer), BOOL, 0, &value, err);

        if (r == 0)
                *ret = value != 0;
        return r == -ENOENT ? 0 : r;
}

int tdm_key_get_float(const struct tdm_gguf *g, const char *architecture, const char *key, float *ret,
                      struct tdm_error *err)
{
        char buffer[KEY_MAX];
        double value = 0;
        int r = get_number(g, full_key(architecture, key, buffer), FLOAT, 0, &value, err);

        if (r == 0)
                *ret = (float)value;
        return r == -ENOENT ? 0 : r;
}

/* ---- fields ---- */

static uint32_t n_places(const struct row *row, const struct tdm_hparams *hp)
{
        return row->place == LAYER_SIZES || row->place == LAYER_RECIPE ? hp->n_layers : 1;
}

/* The field of a row, in layer `layer` where it is in every layer, of rope `rope` where it is in every one. */
static void *field(const struct row *row, struct tdm_hparams *hp, struct tdm_recipe *recipe, uint32_t layer,
                   uint32_t rope)
{
        uint8_t *base = row->place == SIZES        ? (uint8_t *)hp :
                        row->place == LAYER_SIZES  ? (uint8_t *)&hp->layers[layer] :
                        row->place == RECIPE       ? (uint8_t *)recipe :
                        row->place == LAYER_RECIPE ? (uint8_t *)&recipe->layers[layer] :
                                                     (uint8_t *)&recipe->ropes[rope];

        return base + row->offset;
}

static void set_field(const struct row *row, void *field, double value)
{
        if (row->type == FLOAT)
                *(float *)field = (float)value;
        else
                *(uint32_t *)field = (uint32_t)value;
}

static int check_field(const struct row *row, const char *what, const void *field, struct tdm_error *err)
{
        if (row->type == FLOAT)
                return tdm_check_float(err, what, *(const float *)field, row->min, row->max);
        return tdm_check_u32(err, what, *(const uint32_t *)field, (uint32_t)row->min, (uint32_t)row->max);
}

/* ---- reading ---- */

/* Reads a row's key into its field, or into that of every layer. Returns -ENOENT where the file has no such key. */
static int read_row(const struct tdm_gguf *g, const struct tdm_architecture *a, const struct row *row,
                    struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err)
{
        char key[KEY_MAX], named[KEY_MAX + 16];
        double first = 0;
        int r;

        full_key(a->name, row->key, key);
        snprintf(named, sizeof(named), "the key %s", key);
        for (uint32_t layer = 0; layer < n_places(row, hp); layer++) {
                void *to = field(row, hp, recipe, layer, row->rope);
                double value = 0;

                r = get_number(g, key, (enum key_type)row->type, layer, &value, err);
                if (r != 0)
                        return r;
                first = layer == 0 ? value : first;
                if (value != first && !a->layers_may_differ)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "the key %s differs between layers, which is not supported", key);
                set_field(row, to, value);
                if (row->is_first && (r = check_field(row, named, to, err)))
                        return r;
        }
        return 0;
}

static int check_value_length(const struct tdm_gguf *g, const struct tdm_architecture *a, const struct tdm_hparams *hp,
                              struct tdm_error *err)
{
        uint32_t length = hp->layers[0].head_dim;
        int r = tdm_key_get_u32(g, a->name, "attention.value_length", &length, err);

        if (r == 0 && length != hp->layers[0].head_dim)
                r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                  "keys of %u and values of %u dimensions differ, which is not supported",
                                  hp->layers[0].head_dim, length);
        return r;
}

static bool is_size(const struct row *row)
{
        return row->place == SIZES || row->place == LAYER_SIZES;
}

/* Files count the blocks of a draft head among block_count; they lie behind the layers, and no text needs them. */
static int take_draft_blocks(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_hparams *hp,
                             struct tdm_error *err)
{
        uint32_t n = 0;
        int r = tdm_key_get_u32(g, a->name, "nextn_predict_layers", &n, err);

        if (r == 0 && n >= hp->n_layers)
                r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                  "it is a draft head and not a model: of %u blocks the key %s.nextn_predict_layers "
                                  "takes %u",
                                  hp->n_layers, a->name, n);
        if (r == 0)
                hp->n_layers -= n;
        return r;
}

int tdm_keys_read_sizes(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_hparams *hp,
                        struct tdm_error *err)
{
        struct row as_of_expert = rows[TDM_KEY_D_FF];
        char key[KEY_MAX];

        as_of_expert.key = rows[TDM_KEY_D_EXPERT].key;
        for (const struct row *row = rows; row < rows + TDM_N_KEYS; row++) {
                int r;

                if (!is_size(row))
                        continue;
                r = read_row(g, a, row, hp, NULL, err);
                if (r == -ENOENT && row == &rows[TDM_KEY_D_FF] && a->has_only_experts)
                        r = read_row(g, a, &as_of_expert, hp, NULL, err);
                if (r == -ENOENT && row->need == REQUIRED)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing",
                                             full_key(a->name, row->key, key));
                if (r == -ENOENT)
                        for (uint32_t layer = 0; layer < n_places(row, hp); layer++)
                                set_field(row, field(row, hp, NULL, layer, 0),
                                          row->otherwise ? row->otherwise(hp, layer) : 0);
                else if (r != 0)
                        return r;
                if (row == &rows[TDM_KEY_N_LAYERS] && (r = take_draft_blocks(g, a, hp, err)))
                        return r;
        }
        for (uint32_t layer = 0; layer < hp->n_layers; layer++)
                hp->layers[layer].kv_layer = layer;
        hp->residual_width = hp->d_model;
        return check_value_length(g, a, hp, err);
}

/* A key that the architecture does not follow. */
static int refuse_row(const struct tdm_gguf *g, const struct tdm_architecture *a, const struct row *row,
                      struct tdm_error *err)
{
        char key[KEY_MAX];
        double value = row->neutral;
        int r = get_number(g, full_key(a->name, row->key, key), (enum key_type)row->type, 0, &value, err);

        if (r != 0 && r != -ENOENT)
                return r;
        if (value == row->neutral)
                return 0;
        if (!row->refusal[0])
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the key %s is %g, which is not supported", key, value);
        if (!row->refusal[1])
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s, which is not supported (key %s)", row->refusal[0],
                                     key);
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s%g%s, which is not supported (key %s)", row->refusal[0], value,
                             row->refusal[1], key);
}

static bool has_default(const struct row *row, const struct tdm_recipe *recipe)
{
        return row == &rows[TDM_KEY_NORM_EPS] && recipe->norm_eps > 0;
}

int tdm_keys_read_recipe(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_hparams *hp,
                         struct tdm_recipe *recipe, struct tdm_error *err)
{
        char key[KEY_MAX];

        for (unsigned i = 0; i < TDM_N_KEYS; i++) {
                const struct row *row = &rows[i];
                int r;

                if (is_size(row) || !row->key)
                        continue;
                if (row->place == NOWHERE && a->follows >> i & 1)
                        continue; /* the architecture reads it */
                if (row->place == NOWHERE || (row->need == FOLLOWED && !(a->follows >> i & 1)))
                        r = refuse_row(g, a, row, err);
                else
                        r = read_row(g, a, row, hp, recipe, err);
                /* In some families every model has the same value. Their recipes begin with it. */
                if (r == -ENOENT && row->need == REQUIRED && !has_default(row, recipe))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing",
                                             full_key(a->name, row->key, key));
                if (r != 0 && r != -ENOENT)
                        return r;
        }
        return 0;
}

/* ---- checking ---- */

int tdm_check_u32(struct tdm_error *err, const char *what, uint32_t v, uint32_t min, uint32_t max)
{
        if (v < min || v > max)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is %u, it must be from %u to %u", what, v, min, max);
        return 0;
}

int tdm_check_float(struct tdm_error *err, const char *what, float v, double min, double max)
{
        /* Bounds are f32 numbers too: a value that a file or a division rounded to one is in. Also refuses a NaN. */
        if (!(v >= (float)min && v <= (float)max))
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is %g, it must be from %g to %g", what, (double)v, min,
                                     max);
        return 0;
}

static int check_row(const struct row *row, const struct tdm_hparams *hp, const struct tdm_recipe *recipe,
                     struct tdm_error *err)
{
        uint32_t n_ropes = row->place == ROPE ? recipe->n_ropes : 1;
        int r = 0;

        for (uint32_t layer = 0; r == 0 && layer < n_places(row, hp); layer++)
                for (uint32_t rope = 0; r == 0 && rope < n_ropes; rope++)
                        r = check_field(row, row->what,
                                        field(row, (struct tdm_hparams *)hp, (struct tdm_recipe *)recipe, layer, rope),
                                        err);
        return r;
}

/* The numbers of layers and ropes bound the loops over them. The caller has checked n_ropes. */
static_assert(TDM_KEY_N_LAYERS == 0, "its range is checked before anything is done for each layer");

int tdm_keys_check_sizes(const struct tdm_hparams *hp, struct tdm_error *err)
{
        int r = 0;

        for (unsigned i = 0; r == 0 && i < TDM_N_KEYS; i++)
                if (is_size(&rows[i]))
                        r = check_row(&rows[i], hp, NULL, err);
        return r;
}

int tdm_keys_check_recipe(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        int r = 0;

        for (unsigned i = 0; r == 0 && i < TDM_N_KEYS; i++)
                if (!is_size(&rows[i]) && rows[i].place != NOWHERE)
                        r = check_row(&rows[i], hp, recipe, err);
        return r;
}
