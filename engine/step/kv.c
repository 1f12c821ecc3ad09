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
                         uint32_t n_full_pages, uint32_t n_window_pages, uint32_t n_states)
{
        const uint32_t n_pages[TDM_KV_POOLS] = {
                [TDM_KV_FULL] = n_full_pages, [TDM_KV_WINDOW] = n_window_pages, [TDM_KV_STATE] = n_states
        };
        struct tdm_kv_geometry g = { .type = type };
        uint64_t bytes[TDM_KV_POOLS] = { 0 }; /* of a page: cannot overflow, sizes have ranges */

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_sizes *sizes = &hp->layers[i];
                enum tdm_kv_group group = tdm_kv_group_of(hp, i);

                if (sizes->kv_layer != i) {
                        g.layers[i] = g.layers[sizes->kv_layer];
                        continue;
                }
                if (sizes->n_state > 0) {
                        g.layers[i] = (struct tdm_kv_layer){ .group = TDM_KV_STATE, .offset = bytes[TDM_KV_STATE] };
                        bytes[TDM_KV_STATE] += TDM_ALIGN_UP(sizes->n_state * UINT64_C(4), UINT64_C(64));
                        g.n_layers[TDM_KV_STATE]++;
                        continue;
                }
                g.layers[i] = (struct tdm_kv_layer){ .group = group,
                                                     .n_kv_heads = sizes->n_kv_heads,
                                                     .head_dim = sizes->head_dim,
                                                     .offset = bytes[group],
                                                     .part_bytes = tdm_kv_part_bytes(type, sizes->head_dim) };
                bytes[group] += tdm_kv_layer_bytes(&g, i);
                g.n_layers[group]++;
        }
        for (int group = 0; group < TDM_KV_POOLS; group++) {
                uint64_t all;

                g.n_pages[group] = g.n_layers[group] ? n_pages[group] : 0;
                g.page_bytes[group] = TDM_ALIGN_UP(bytes[group], UINT64_C(4096));
                g.offset[group] = g.size_bytes;
                if (__builtin_mul_overflow(g.page_bytes[group], (uint64_t)g.n_pages[group], &all) ||
                    __builtin_add_overflow(g.size_bytes, all, &g.size_bytes) || g.size_bytes > (UINT64_C(1) << 46))
                        return -EOVERFLOW;
        }
        *kv = g;
        return 0;
}

bool tdm_kv_geometry_equal(const struct tdm_kv_geometry *a, const struct tdm_kv_geometry *b)
{
        return a->type == b->type && a->size_bytes == b->size_bytes &&
               memcmp(a->n_layers, b->n_layers, sizeof(a->n_layers)) == 0 &&
               memcmp(a->n_pages, b->n_pages, sizeof(a->n_pages)) == 0 &&
               memcmp(a->page_bytes, b->page_bytes, sizeof(a->page_bytes)) == 0 &&
               memcmp(a->offset, b->offset, sizeof(a->offset)) == 0 &&
               memcmp(a->layers, b->layers, sizeof(a->layers)) == 0;
}

uint32_t tdm_kv_first_layer(const struct tdm_hparams *hp, enum tdm_kv_group group)
{
        uint32_t i = 0;

        while (i < hp->n_layers && tdm_kv_group_of(hp, i) != group)
                i++;
        return i;
}
