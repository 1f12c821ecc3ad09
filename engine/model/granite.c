/* Granite 3, with experts and without: Llama with four scales. Experts may have a shared one beside them. Formulas:
 * Hugging Face transformers' modeling_granite.py and modeling_granitemoe.py.
 *
 * The embedding is multiplied by e, what a block adds to the residual by r, scores by a scale of the file, and logits
 * are divided by s. No device knows r. Every block reads the residual through a norm, which does not see its size. So
 * the residual is kept divided by r: its embedding is multiplied by e / r, and what blocks add stays as it is. Only the
 * norms' epsilon sees the size: it is divided by r². Some files switch RoPE off. */
#include <math.h>
#include "engine/model/private.h"

#define SCALE_MIN 1e-2
#define SCALE_MAX 1e3

static int begin_as(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp,
                    struct tdm_recipe *recipe, struct tdm_error *err)
{
        bool turns = true;
        int r = tdm_refuse_window(architecture, hp, err);

        if (r || (r = tdm_key_get_bool(g, architecture, "rope.scaling.finetuned", &turns, err)))
                return r;
        tdm_plain_recipe(g, architecture, hp, TDM_ROPE_NEIGHBOURS, 0, recipe);
        for (uint32_t i = 0; i < hp->n_layers && !turns; i++)
                recipe->layers[i].rope = TDM_ROPE_NONE;
        return 0;
}

/* A scale of the file; 1 where it has none, or 0. */
static int read_scale(const struct tdm_gguf *g, const char *architecture, const char *key, float *ret,
                      struct tdm_error *err)
{
        float scale = 1;
        int r = tdm_key_get_float(g, architecture, key, &scale, err);

        if (r == 0 && scale == 0)
                scale = 1;
        if (r == 0)
                r = tdm_check_float(err, key, scale, SCALE_MIN, SCALE_MAX);
        if (r == 0)
                *ret = scale;
        return r;
}

static int end_as(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                  struct tdm_error *err)
{
        float embedding, residual, logits = 0;
        int r;

        if ((r = read_scale(g, architecture, "embedding_scale", &embedding, err)) ||
            (r = read_scale(g, architecture, "residual_scale", &residual, err)) ||
            (r = tdm_key_get_float(g, architecture, "logit_scale", &logits, err)))
                return r;
        if (logits == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.logit_scale is missing", architecture);
        if ((r = tdm_check_float(err, "logit_scale", logits, SCALE_MIN, SCALE_MAX)))
                return r;
        recipe->embed_scale = embedding / residual;
        recipe->norm_eps /= residual * residual;
        recipe->logit_scale = 1 / logits;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                if (recipe->layers[i].query_scale == 0) /* the file says so for "as usual" */
                        recipe->layers[i].query_scale = (float)(1.0 / sqrt((double)hp->layers[i].head_dim));
        return tdm_rope_read_scaling(g, architecture, hp, &recipe->ropes[0], err);
}

static const char *const scales[] = { "embedding_scale", "residual_scale", "logit_scale", NULL };

static int granite_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        return begin_as("granite", g, hp, recipe, err);
}

static int granite_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        return end_as("granite", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_granite = {
        .name = "granite",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .reads = scales,
        .begin = granite_begin,
        .end = granite_end,
};

static int granitemoe_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                            struct tdm_error *err)
{
        int r = begin_as("granitemoe", g, hp, recipe, err);

        for (uint32_t i = 0; r == 0 && i < hp->n_layers; i++) /* unless the file says more */
                recipe->layers[i].d_expert = hp->layers[i].d_ff;
        return r;
}

static int granitemoe_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                          struct tdm_error *err)
{
        int r = tdm_experts_with_shared(g, "granitemoe", false, hp, recipe, err);

        return r ? r : end_as("granitemoe", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_granitemoe = {
        .name = "granitemoe",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .reads = scales,
        .begin = granitemoe_begin,
        .end = granitemoe_end,
};
