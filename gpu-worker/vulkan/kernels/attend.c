/* Which kernels attention takes: of items of one row each, or many, and on f16 matrix units where rows are F16
 * (f16-rows.c) and they are proven (prove-attend.c). */
#include "gpu-worker/vulkan/kernels/kernels-private.h"

/* attend.comp's CAPPED: some layer's scores are soft-capped. The kernels of other models have no code for it. */
#define ATTEND_CAPPED 1024u

static_assert(TDM_MAX_LAYERS < TDM_VK_LAYERS_MAX, "flags of partial results tell layers apart");

bool tdm_vk_attend_merges(const struct tdm_vk_model *m, uint32_t kind, bool many, uint32_t item_heads)
{
        return !many && !m->attention.has_sinks && m->kinds[kind].head_dim % TDM_BLOCK_VALUES == 0 &&
               item_heads * m->kinds[kind].head_dim <= 1024 && m->tile_rows * m->hp.n_heads <= TDM_VK_ARRIVALS;
}

/* How many tiles of 16 queries a workgroup of ATTEND_F16_WIDE has. It has four subgroups. Two of them share a tile
 * where a head has more than 128 dimensions. */
static uint32_t f16_tiles(const struct tdm_vk_model *m)
{
        return m->hp.head_dim > 128 ? 2 : 4;
}

static bool is_capped(const struct tdm_vk_model *m)
{
        for (uint32_t i = 0; i < m->hp.n_layers; i++)
                if (m->recipe.layers[i].attention_softcap > 0)
                        return true;
        return false;
}

struct tdm_vk_kernel tdm_vk_attend_kernel(const struct tdm_vk_model *m, uint32_t kind, bool many, uint32_t item_heads,
                                          uint32_t out_act)
{
        const struct tdm_vk_kind *k = &m->kinds[kind];
        uint32_t form = tdm_vk_attend_merges(m, kind, many, item_heads) ?
                                TDM_VK_ATTEND_MERGING_FORM(item_heads, out_act) :
                                TDM_VK_ATTEND_FORM(item_heads);

        if (m->attention.is_f16)
                return (struct tdm_vk_kernel){ .shader = many ? TDM_VK_ATTEND_F16_WIDE : TDM_VK_ATTEND_F16,
                                               .constants = { m->hp.head_dim, 0, many ? f16_tiles(m) : 0, form },
                                               .fits = true };
        return (struct tdm_vk_kernel){ .shader = TDM_VK_ATTEND,
                                       .fits = true,
                                       .constants = { k->head_dim, m->kv.type,
                                                      (many ? k->many_rows : 1) | (k->both ? TDM_VK_ATTEND_BOTH : 0) |
                                                              (m->device->few_registers ? TDM_VK_ATTEND_NARROW : 0) |
                                                              (is_capped(m) ? ATTEND_CAPPED : 0),
                                                      form } };
}

/* The kernel for rows that attend-f16.comp rotates itself. several: they may be of one sequence. */
static struct tdm_vk_kernel rotating_of(const struct tdm_vk_model *m, uint32_t kind, uint32_t out_act, bool several)
{
        struct tdm_vk_kernel k = tdm_vk_attend_kernel(m, kind, false, m->kinds[kind].queries_heads, out_act);

        k.constants[2] = several ? 2 : 1;
        return k;
}

bool tdm_vk_attend_rotating_kernel(const struct tdm_vk_model *m, uint32_t kind, uint32_t out_act, bool several,
                                   struct tdm_vk_kernel *ret)
{
        *ret = rotating_of(m, kind, out_act, several);
        ret->spare = true;
        return m->attention.is_f16;
}

void tdm_vk_attend_rotations(struct tdm_vk_model *m, const uint32_t angles[TDM_VK_KINDS])
{
        for (uint32_t i = 0; i < m->hp.n_layers && m->attention.is_f16; i++)
                ((struct tdm_vk_rotation *)m->attention.rotations.map)[i] =
                        (struct tdm_vk_rotation){ .y = m->arrays[TDM_VK_Y].address,
                                                  .q_gain = m->layers[i].q_norm,
                                                  .k_gain = m->layers[i].k_norm,
                                                  .counters = m->counters.address,
                                                  .angles = angles[tdm_vk_kind_of(m, i)],
                                                  .eps = m->recipe.norm_eps,
                                                  .query_scale = m->recipe.layers[i].query_scale,
                                                  .flag_stride = m->flagged.stride };
}

bool tdm_vk_attend_rotates(const struct tdm_vk_model *m)
{
        const struct tdm_vk_class class = { .n_rows = 2, .several = true, .may_rotate = true };

        for (uint32_t i = 0; i < m->program->n_ops; i++)
                if (m->program->ops[i].kind == TDM_VK_OP_ATTEND &&
                    !tdm_vk_op_kernel_if_any(m, &m->program->ops[i], TDM_VK_PART_ALL, &class, NULL, NULL))
                        return false;
        return true;
}

static int need_kernel(struct tdm_vk_model *m, const struct tdm_vk_kernel *k, struct tdm_error *err)
{
        return tdm_vk_pipeline_need(m->device, k->shader, k->constants, err);
}

static struct tdm_vk_pipeline *compiled_kernel(struct tdm_vk_model *m, const struct tdm_vk_kernel *k)
{
        return tdm_vk_pipeline_compiled(m->device, k->shader, k->constants[0], k->constants[1], k->constants[2],
                                        k->constants[3]);
}

/* Heads of an item, of those that share keys: 16 queries are a subgroup's, of a single row four, and of that each of
 * 128 threads has four of the result's dimensions. */
static uint32_t f16_heads(const struct tdm_vk_model *m)
{
        uint32_t shared = m->hp.n_heads / m->hp.n_kv_heads, heads = TDM_MIN(4u, 512 / m->hp.head_dim);

        while (heads > 1 && (shared % heads || 16 % heads))
                heads--;
        return heads;
}

/* rotating: of one row of a sequence, and of several; may be missing. */
static int compile_and_prove(struct tdm_vk_model *m, uint32_t kind, const struct tdm_vk_kernel *single,
                             const struct tdm_vk_kernel *many, const struct tdm_vk_kernel rotating[2],
                             struct tdm_error *err)
{
        const struct tdm_vk_kernel rotate = { .shader = TDM_VK_ROTATE, .constants = { m->kv.type, 0, 0, 0 } };
        int r;

        m->device->deferring = true;
        r = need_kernel(m, single, err);
        if (r == 0)
                r = need_kernel(m, many, err);
        if (r == 0)
                r = need_kernel(m, &rotate, err);
        for (unsigned i = 0; i < 2 && r == 0 && rotating; i++)
                r = need_kernel(m, &rotating[i], err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(m->device, err);
        m->device->deferring = false;
        if (r == 0)
                r = tdm_vk_prove_attend(m->device, compiled_kernel(m, single), compiled_kernel(m, many),
                                        m->kinds[kind].queries_heads, m->kinds[kind].many_rows, err);
        for (unsigned i = 0;
             i < 2 && r == 0 && rotating && compiled_kernel(m, many) && compiled_kernel(m, many)->proven; i++) {
                struct tdm_vk_pipeline *p = compiled_kernel(m, &rotating[i]);

                if (p && !p->tried)
                        r = tdm_vk_prove_rotating(m->device, compiled_kernel(m, &rotate), compiled_kernel(m, single), p,
                                                  m->kinds[kind].queries_heads, err);
        }
        return r;
}

int tdm_vk_kernels_attend_f16(struct tdm_vk_model *m, struct tdm_error *err)
{
        const uint32_t kind = tdm_vk_kind_of(m, 0), act = m->layers[0].o.act; /* all kinds are alike here */
        const struct tdm_vk_kind kinds[] = { m->kinds[0], m->kinds[1] };
        const struct tdm_vk_pipeline *proven;
        struct tdm_vk_kernel single, many, rotating[2];
        int r;

        if (m->device->units.emulated || m->kv.type != TDM_KV_F16 ||
            (m->hp.head_dim != 64 && m->hp.head_dim != 128 && m->hp.head_dim != 256))
                return 0;
        m->attention.is_f16 = true;
        for (unsigned i = 0; i < TDM_VK_KINDS; i++) {
                m->kinds[i].queries_heads = f16_heads(m);
                m->kinds[i].many_rows = f16_tiles(m) * 16 / m->kinds[i].queries_heads;
        }
        single = tdm_vk_attend_kernel(m, kind, false, m->kinds[kind].queries_heads, act);
        many = tdm_vk_attend_kernel(m, kind, true, m->kinds[kind].queries_heads, act);
        rotating[0] = rotating_of(m, kind, act, false);
        rotating[1] = rotating_of(m, kind, act, true);
        r = compile_and_prove(m, kind, &single, &many,
                              tdm_vk_attend_merges(m, kind, false, m->kinds[kind].queries_heads) ? rotating : NULL,
                              err);
        proven = r == 0 ? compiled_kernel(m, &many) : NULL;
        if (proven && proven->proven)
                return 0;
        m->attention.is_f16 = false;
        memcpy(m->kinds, kinds, sizeof(kinds));
        return r;
}
