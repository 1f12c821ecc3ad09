/* Numbers that follow from a model's sizes alone: the kinds of its layers, tiles of rows, strides. */
#include "gpu-worker/vulkan/model/model.h"

#define TILE_ROWS 512u /* rows that go through a block together */
#define LOGITS_BYTES_MAX (UINT64_C(64) << 20)
#define PARTIALS_MIN 32768u /* partial results of attention: for a few rows behind a long context */

int tdm_vk_kinds_find(struct tdm_vk_model *m, struct tdm_error *err)
{
        for (uint32_t i = m->hp.n_layers; i-- > 0;) {
                const struct tdm_layer_sizes *sizes = &m->hp.layers[i];
                const struct tdm_layer_recipe *l = &m->recipe.layers[i];
                struct tdm_vk_kind *kind = &m->kinds[tdm_vk_kind_of(m, i)];
                uint32_t window = !m->recipe.is_bidirectional ? sizes->window : l->reach ? l->reach + 1 : 0;

                if (kind->used &&
                    (kind->n_heads != sizes->n_heads || kind->n_kv_heads != sizes->n_kv_heads ||
                     kind->head_dim != sizes->head_dim || kind->rope != l->rope || kind->window != window))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: layers %u and %u, which both have %s, differ in their "
                                             "heads, their RoPE or their window; TANDEM_GPU=host runs them on the CPU",
                                             i, kind->layer, window ? "a window" : "none");
                *kind = (struct tdm_vk_kind){ .used = true,
                                              .group = tdm_kv_group_of(&m->hp, i),
                                              .layer = i,
                                              .n_heads = sizes->n_heads,
                                              .n_kv_heads = sizes->n_kv_heads,
                                              .head_dim = sizes->head_dim,
                                              .rope = l->rope,
                                              .window = window,
                                              .both = m->recipe.is_bidirectional != 0 };
        }
        return 0;
}

static void size_items(const struct tdm_vk_model *m, struct tdm_vk_kind *kind)
{
        uint32_t heads_per_kv = kind->n_heads / kind->n_kv_heads,
                 queries_max = kind->head_dim > 256 || m->device->few_kernels || m->device->few_registers ? 4 : 8;

        for (uint32_t heads = 1; heads <= TDM_MIN(heads_per_kv, queries_max); heads++)
                if (heads_per_kv % heads == 0)
                        kind->queries_heads = heads;
        kind->many_rows = queries_max / kind->queries_heads;
}

void tdm_vk_sizes_find(struct tdm_vk_model *m)
{
        const struct tdm_hparams *hp = &m->hp;

        /* If rows see the rows behind them, all keys are stored before the first query, so the step is one tile. */
        m->tile_rows = m->recipe.is_bidirectional ? m->limits.max_rows : TDM_MIN(m->limits.max_rows, TILE_ROWS);
        m->rounded.sums_rows = m->device->units.int8 ? TDM_VK_INT8_ROWS_MAX : 0;
        for (unsigned i = 0; i < TDM_VK_KINDS; i++)
                if (m->kinds[i].used)
                        size_items(m, &m->kinds[i]);
        m->attention.max_slots = TDM_MAX(m->tile_rows * hp->n_heads, PARTIALS_MIN);
        m->attention.max_items = TDM_MAX(m->tile_rows, m->attention.max_slots / hp->n_heads);
        m->logits.stride = TDM_ALIGN_UP(hp->n_vocab, 16u);
        m->logits.rows = (uint32_t)TDM_MIN(TDM_MAX(LOGITS_BYTES_MAX / (m->logits.stride * sizeof(float)), 1u),
                                           m->limits.max_logits);
        /* Tests that compare can have all logits: the choice changes no bit of what is drawn. */
        m->logits.is_whole = m->recipe.logit_softcap > 0 || tdm_vk_switch_is(TDM_VK_SWITCH_LOGITS, "whole");
        m->logits.maxima_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_MAX_BLOCK);
        m->logits.sums_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_SUM_BLOCK);
        m->logits.tops_stride = TDM_DIV_UP(hp->n_vocab, TDM_VK_LOGITS_EACH);
        m->sampler_stride = TDM_ALIGN_UP(tdm_sampler_scratch_bytes(hp->n_vocab), (size_t)64);
}
