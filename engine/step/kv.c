/* Geometry of the paged KV cache. Arithmetic only: who owns which page is the daemon's business (daemon/cache/pages.c),
 * what is written there the device's. */
#include "engine/step/kv.h"

static const char *const names[] = { [TDM_KV_F16] = "f16", [TDM_KV_F32] = "f32", [TDM_KV_Q8_0] = "q8_0" };

const char *tdm_kv_type_name(enum tdm_kv_type type)
{
        return (unsigned)type < TDM_ARRAY_SIZE(names) ? names[type] : NULL;
}

int tdm_kv_type_from_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(names); i++)
                if (names[i] && strcmp(name, names[i]) == 0)
                        return (int)i;
        return -EINVAL;
}

int tdm_kv_geometry_init(struct tdm_kv_geometry *kv, const struct tdm_hparams *hp, enum tdm_kv_type type,
                         uint32_t n_full_pages, uint32_t n_window_pages)
{
        struct tdm_kv_geometry g = { .type = type, .n_kv_heads = hp->n_kv_heads, .head_dim = hp->head_dim };

        for (uint32_t l = 0; l < hp->n_layers; l++)
                g.n_layers[tdm_kv_group_of(hp, l)]++;
        g.n_pages[TDM_KV_FULL] = g.n_layers[TDM_KV_FULL] ? n_full_pages : 0;
        g.n_pages[TDM_KV_WINDOW] = g.n_layers[TDM_KV_WINDOW] ? n_window_pages : 0;
        g.part_bytes = tdm_kv_part_bytes(type, hp->head_dim);

        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint64_t bytes = g.part_bytes * hp->n_kv_heads * g.n_layers[group];
                uint64_t all;

                g.page_bytes[group] = TDM_ALIGN_UP(bytes, UINT64_C(4096));
                g.offset[group] = g.size_bytes;
                if (__builtin_mul_overflow(g.page_bytes[group], (uint64_t)g.n_pages[group], &all) ||
                    __builtin_add_overflow(g.size_bytes, all, &g.size_bytes) || g.size_bytes > (UINT64_C(1) << 46))
                        return -EOVERFLOW;
        }
        *kv = g;
        return 0;
}

const struct tdm_rope_recipe *tdm_kv_group_rope(const struct tdm_hparams *hp, const struct tdm_recipe *recipe,
                                                enum tdm_kv_group group)
{
        for (uint32_t l = 0; l < hp->n_layers; l++)
                if (tdm_kv_group_of(hp, l) == group)
                        return recipe->layers[l].rope == TDM_ROPE_NONE ? NULL : &recipe->ropes[recipe->layers[l].rope];
        return NULL;
}

uint32_t tdm_kv_layer_index(const struct tdm_hparams *hp, uint32_t layer)
{
        uint32_t index = 0;

        for (uint32_t l = 0; l < layer; l++)
                if (tdm_kv_group_of(hp, l) == tdm_kv_group_of(hp, layer))
                        index++;
        return index;
}
