/* Sizes: filling them, and checking them. */
#include "engine/model/private.h"

static const char *const block_kind_names[TDM_N_BLOCK_KINDS] = {
        [TDM_BLOCK_EMBED] = "embed", [TDM_BLOCK_ATTENTION] = "attention", [TDM_BLOCK_FFN] = "ffn",
        [TDM_BLOCK_HEAD] = "head",   [TDM_BLOCK_SAMPLE] = "sample",
};

const char *tdm_block_kind_name(enum tdm_block_kind kind)
{
        return (unsigned)kind < TDM_N_BLOCK_KINDS ? block_kind_names[kind] : "unknown";
}

void tdm_hparams_all_layers(struct tdm_hparams *hp)
{
        hp->residual_width = hp->d_model;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                hp->layers[i] = (struct tdm_layer_sizes){ .n_heads = hp->n_heads,
                                                          .n_kv_heads = hp->n_kv_heads,
                                                          .head_dim = hp->head_dim,
                                                          .d_ff = hp->d_ff,
                                                          .window = hp->window,
                                                          .kv_layer = i };
}

static struct tdm_layer_sizes largest(const struct tdm_hparams *hp)
{
        struct tdm_layer_sizes most = { 0 };

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                most.n_heads = TDM_MAX(most.n_heads, hp->layers[i].n_heads);
                most.n_kv_heads = TDM_MAX(most.n_kv_heads, hp->layers[i].n_kv_heads);
                most.head_dim = TDM_MAX(most.head_dim, hp->layers[i].head_dim);
                most.d_ff = TDM_MAX(most.d_ff, hp->layers[i].d_ff);
                most.window = TDM_MAX(most.window, hp->layers[i].window);
        }
        return most;
}

void tdm_hparams_take_largest(struct tdm_hparams *hp)
{
        struct tdm_layer_sizes most = largest(hp);

        hp->n_heads = most.n_heads;
        hp->n_kv_heads = most.n_kv_heads;
        hp->head_dim = most.head_dim;
        hp->d_ff = most.d_ff;
        hp->window = most.window;
}

/* Checks the multiples that kernels are written for. */
static int check_multiples(const struct tdm_layer_sizes *l, struct tdm_error *err)
{
        if (l->d_ff % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the feed-forward length %u is not a multiple of 32, which is not supported",
                                     l->d_ff);
        if (l->head_dim % 4 || l->head_dim < 16)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the head dimension %u is not a multiple of 4 from 16 on, which is not supported",
                                     l->head_dim);
        return 0;
}

/* Its numbers are in their ranges. */
static int check_layer(const struct tdm_hparams *hp, uint32_t i, struct tdm_error *err)
{
        const struct tdm_layer_sizes *l = &hp->layers[i], *owner;

        if (l->n_kv_heads > l->n_heads)
                return tdm_check_u32(err, "the number of key heads", l->n_kv_heads, 1, l->n_heads);
        if ((uint64_t)l->n_heads * l->head_dim > TDM_WIDTH_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%u heads of dimension %u are more than %u together",
                                     l->n_heads, l->head_dim, TDM_WIDTH_MAX);
        if (l->n_heads % l->n_kv_heads)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%u heads cannot share %u key heads evenly", l->n_heads,
                                     l->n_kv_heads);
        if (l->kv_layer > i)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it reads the keys of layer %u, which comes later",
                                     l->kv_layer);
        if (l->n_state > TDM_STATE_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "its state has %u numbers, at most %u are allowed",
                                     l->n_state, TDM_STATE_MAX);
        if (l->n_state > 0 && (l->kv_layer != i || l->window != 0))
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it has a state, and keys of another layer or a window");
        owner = &hp->layers[l->kv_layer];
        if (owner->kv_layer != l->kv_layer || owner->n_kv_heads != l->n_kv_heads || owner->head_dim != l->head_dim ||
            owner->window != l->window || owner->n_state != l->n_state)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "it reads the keys of layer %u, which has none of its own or of another shape",
                                     l->kv_layer);
        return check_multiples(l, err);
}

static int check_layers(const struct tdm_hparams *hp, struct tdm_error *err)
{
        static const struct tdm_layer_sizes none;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                int r = check_layer(hp, i, err);

                if (r != 0)
                        return err ? tdm_error_prefix(err, "layer %u", i) : r;
        }
        for (uint32_t i = hp->n_layers; i < TDM_MAX_LAYERS; i++)
                if (memcmp(&hp->layers[i], &none, sizeof(none)) != 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "layer %u has sizes, but there are only %u layers",
                                             i, hp->n_layers);
        return 0;
}

int tdm_hparams_check(const struct tdm_hparams *hp, struct tdm_error *err)
{
        struct tdm_layer_sizes most;
        int r = tdm_keys_check_sizes(hp, err);

        if (r != 0)
                return r;
        if (hp->d_model % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the embedding length %u is not a multiple of 32, which is not supported",
                                     hp->d_model);
        if (hp->residual_width % hp->d_model || hp->residual_width < hp->d_model ||
            hp->residual_width / hp->d_model > TDM_MAX_STREAMS + 1)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "a residual of %u numbers cannot hold streams of %u",
                                     hp->residual_width, hp->d_model);
        if ((r = check_layers(hp, err)))
                return r;
        most = largest(hp);
        if (hp->n_heads != most.n_heads || hp->n_kv_heads != most.n_kv_heads || hp->head_dim != most.head_dim ||
            hp->d_ff != most.d_ff || hp->window != most.window)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the model's sizes are not the largest of its layers");
        return 0;
}
