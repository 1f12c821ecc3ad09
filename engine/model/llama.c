/* Llama 2 and 3, Mistral, and finetunes of them.
 *
 * Llama 3.1 and later divide RoPE's angles by the numbers of the tensor rope_freqs: it is all that the file has of
 * their scaling. Weights in a GGUF are Meta's: RoPE pairs neighbours. Mixtral, which has the same name and experts, is
 * refused by its number of experts. */
#include "engine/model/private.h"

static int llama_begin(const struct tdm_gguf *g, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                       struct tdm_error *err)
{
        return tdm_plain_begin(g, "llama", hp, TDM_ROPE_NEIGHBOURS, 0, 0, recipe, err);
}

const struct tdm_architecture tdm_architecture_llama = {
        .name = "llama",
        .fused = TDM_FUSED_QKV,
        .follows = TDM_PLAIN_KEYS,
        .begin = llama_begin,
        .end = tdm_plain_end,
};
