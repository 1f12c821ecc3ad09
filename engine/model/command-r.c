/* Command R (`command-r`) and Command R7B, Command A and Aya (`cohere2`). Formulas: Hugging Face transformers'
 * modeling_cohere.py and modeling_cohere2.py.
 *
 * Attention and FFN read the same norm of the residual, which takes the mean off; logits are scaled. Cohere 2 has a
 * window in three layers of four, and no RoPE in the fourth. Command R+ has norms of heads, with gains of each one's
 * own. */
#include "engine/model/private.h"

#define FULL_EVERY 4u

static int parallel_begin(const char *architecture, uint32_t norms, const struct tdm_gguf *g, struct tdm_hparams *hp,
                          struct tdm_recipe *recipe, struct tdm_error *err)
{
        float eps = 0;
        int r = tdm_key_get_float(g, architecture, "attention.layer_norm_epsilon", &eps, err);

        if (r == 0 && eps == 0)
                r = tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.attention.layer_norm_epsilon is missing",
                                  architecture);
        if (r != 0)
                return r;
        tdm_plain_recipe(g, architecture, hp, TDM_ROPE_NEIGHBOURS, norms, recipe);
        recipe->norm_eps = eps;
        recipe->norm_kind = TDM_NORMS_CENTERED;
        recipe->residual = TDM_RESIDUAL_PARALLEL;
        hp->residual_width = tdm_recipe_residual_width(recipe, hp->d_model);
        return 0;
}

static int parallel_end(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp,
                        struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r = tdm_key_get_float(g, architecture, "logit_scale", &recipe->logit_scale, err);

        return r ? r : tdm_plain_end(g, hp, recipe, err);
}

static const char *const scale[] = { "logit_scale", NULL };

static int command_r_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                           struct tdm_error *err)
{
        uint32_t norms = 0;
        char name[TDM_TENSOR_NAME_MAX];
        int r = tdm_refuse_window("command-r", hp, err);

        if (r != 0)
                return r;
        tdm_tensor_name(TDM_TENSOR_Q_NORM, 0, name);
        if (tdm_gguf_find_tensor(g, name))
                norms = TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_EACH;
        return parallel_begin("command-r", norms, g, hp, recipe, err);
}

static int command_r_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        return parallel_end("command-r", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_command_r = {
        .name = "command-r",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .reads = scale,
        .begin = command_r_begin,
        .end = command_r_end,
};

static int cohere2_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        int r;

        if (hp->layers[0].window == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key cohere2.attention.sliding_window is missing");
        if ((r = tdm_gemma_read_windows(g, "cohere2", FULL_EVERY, hp, err)) ||
            (r = parallel_begin("cohere2", 0, g, hp, recipe, err)))
                return r;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                if (hp->layers[i].window == 0)
                        recipe->layers[i].rope = TDM_ROPE_NONE;
        return 0;
}

static int cohere2_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        return parallel_end("cohere2", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_cohere2 = {
        .name = "cohere2",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .reads = scale,
        .begin = cohere2_begin,
        .end = cohere2_end,
};
