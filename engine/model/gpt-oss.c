/* gpt-oss. Formulas: OpenAI's gpt_oss/torch/model.py and Hugging Face transformers' modeling_gpt_oss.py.
 *
 * Every second layer, from the first on, slides over a window. Every head has a sink. All products have biases. The
 * experts' SwiGLU is clamped. YaRN's range is not rounded to whole pairs, as its makers have it; llama.cpp, for lack of
 * a key, rounds it, which turns pairs of middle frequency by up to 0.9 radians more or less at position 4096. */
#include "engine/model/private.h"
#define WINDOW_EVERY 2u

/* Every second layer sees everything. Experts are as wide as what the file calls the FFN, if it says nothing else. */
static int begin_as(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp,
                    struct tdm_recipe *recipe, struct tdm_error *err)
{
        int r;

        if (hp->layers[0].window == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.attention.sliding_window is missing",
                                     architecture);
        r = tdm_gemma_read_windows(g, architecture, WINDOW_EVERY, hp, err);
        if (r != 0)
                return r;
        tdm_plain_recipe(g, architecture, hp, TDM_ROPE_HALVES, 0, recipe);
        recipe->ropes[0].scaling = TDM_ROPE_YARN;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_layer_recipe *l = &recipe->layers[i];

                l->biases = TDM_BIAS_ALL & ~(uint32_t)TDM_BIAS_CHOICE;
                l->has_sinks = 1;
                l->activation = TDM_ACTIVATION_SWIGLU_CLAMPED;
                l->d_expert = hp->layers[i].d_ff;
        }
        return 0;
}

static int end_as(const char *architecture, const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                  struct tdm_error *err)
{
        int r = tdm_experts_of_file(g, architecture, hp, recipe, err);

        if (r == 0)
                r = tdm_rope_read_scaling(g, architecture, hp, &recipe->ropes[0], err);
        recipe->ropes[0].yarn_is_rounded = 0;
        return r;
}

static int gpt_oss_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        return begin_as("gpt-oss", g, hp, recipe, err);
}

static int gpt_oss_end(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        return end_as("gpt-oss", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gpt_oss = {
        .name = "gpt-oss",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_EXPS,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .begin = gpt_oss_begin,
        .end = gpt_oss_end,
};

/* Begins with the keys as Ollama's converter writes them. */
static int begin_of_ollama(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                           struct tdm_error *err)
{
        return begin_as("gptoss", g, hp, recipe, err);
}

static int end_of_ollama(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                         struct tdm_error *err)
{
        return end_as("gptoss", g, hp, recipe, err);
}

const struct tdm_architecture tdm_architecture_gptoss = {
        .name = "gptoss",
        .fused = TDM_FUSED_QKV | TDM_FUSED_GATE_UP_IN_TURN,
        .follows = TDM_PLAIN_KEYS | TDM_EXPERT_KEYS,
        .begin = begin_of_ollama,
        .end = end_of_ollama,
};
