/* How a step of two to eight rows runs where guesses are checked (docs/speculation.md): in one of three ways, of the
 * same bits. As many rows do: a kernel rotates them, the next one attends with several rows an item, the next one
 * merges. Or each row is an item of its own, and one kernel does all of it (attend-f16.comp). Or, of up to four rows,
 * kernels leave flagged words too, as those of a single row do (device/chain.c), and the matrices but `down` are
 * multiplied by matvec-f16.comp: weights are read once, as the units multiply eight rows in any case. Of rows that are
 * not flagged that kernel may multiply gate and up too.
 *
 * Which way is fastest is measured when a model is first loaded (load/tune.c) and kept with the shapes. Without that
 * they run as many rows do. TANDEM_VULKAN_ROWS=on|apart|off overrides the choice in tests. */
#include "gpu-worker/vulkan/kernels/kernels-private.h"

uint32_t tdm_vk_rows_class(uint32_t n_rows)
{
        return n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : n_rows <= TDM_VK_FEW_ROWS_MAX ? 8 : 0;
}

static unsigned index_of(uint32_t rows)
{
        return rows <= 1 ? 0 : rows <= 2 ? 1 : rows <= 4 ? 2 : 3;
}

enum tdm_vk_rows_forced tdm_vk_few_rows_forced(void)
{
        return !tdm_vk_switch(TDM_VK_SWITCH_ROWS)            ? TDM_VK_ROWS_MEASURED :
               tdm_vk_switch_is(TDM_VK_SWITCH_ROWS, "off")   ? TDM_VK_ROWS_FORCED_OFF :
               tdm_vk_switch_is(TDM_VK_SWITCH_ROWS, "apart") ? TDM_VK_ROWS_FORCED_APART :
                                                               TDM_VK_ROWS_FORCED_ON;
}

/* The key belongs to no matrix: its type and n_panels hold the sizes of attention too. */
struct tdm_vk_tuned tdm_vk_few_rows_key(const struct tdm_vk_model *m, uint32_t rows)
{
        return (struct tdm_vk_tuned){ .shader = TDM_VK_TUNED_ROWS(TDM_VK_ATTEND_F16, rows),
                                      .type = m->layers[0].gate.type | m->hp.head_dim << 16,
                                      .act = m->layers[0].o.act,
                                      .cols = m->hp.d_model,
                                      .n_panels = m->hp.n_heads << 16 | m->hp.n_kv_heads };
}

const struct tdm_vk_tuned *tdm_vk_few_rows_known(const struct tdm_vk_model *m, uint32_t rows)
{
        const struct tdm_vk_tuned key = tdm_vk_few_rows_key(m, rows);

        for (unsigned i = 0; i < m->device->n_tuned; i++)
                if (memcmp(&m->device->tuned[i], &key, offsetof(struct tdm_vk_tuned, shape)) == 0)
                        return &m->device->tuned[i];
        return NULL;
}

void tdm_vk_few_rows_find(struct tdm_vk_model *m)
{
        enum tdm_vk_rows_forced forced = tdm_vk_few_rows_forced();

        memset(m->flagged.few_rows, TDM_VK_FEW_NOT, sizeof(m->flagged.few_rows));
        if (forced == TDM_VK_ROWS_FORCED_OFF || !m->attention.is_f16 || !m->device->chained ||
            !tdm_vk_attend_rotates(m))
                return;
        for (uint32_t rows = 2; rows <= TDM_VK_FEW_ROWS_MAX; rows *= 2) {
                const struct tdm_vk_tuned *known = tdm_vk_few_rows_known(m, rows);

                if (forced == TDM_VK_ROWS_MEASURED && !(known && known->shape.panels == 1))
                        continue;
                m->flagged.few_rows[index_of(rows)] =
                        forced != TDM_VK_ROWS_FORCED_APART && tdm_vk_program_flags(m, rows) ? TDM_VK_FEW_FLAGGED :
                                                                                              TDM_VK_FEW_ITEMS;
        }
}

enum tdm_vk_few tdm_vk_few_rows(const struct tdm_vk_model *m, uint32_t n_rows)
{
        return n_rows > TDM_VK_FEW_ROWS_MAX ? TDM_VK_FEW_NOT : (enum tdm_vk_few)m->flagged.few_rows[index_of(n_rows)];
}

void tdm_vk_few_rows_describe(const struct tdm_vk_model *m, char *ret, size_t size)
{
        size_t at = 0;

        ret[0] = '\0';
        for (uint32_t rows = 2; rows <= TDM_VK_FEW_ROWS_MAX && at < size; rows *= 2) {
                enum tdm_vk_few few = tdm_vk_few_rows(m, rows);

                if (few != TDM_VK_FEW_NOT)
                        at += (size_t)snprintf(ret + at, size - at, "%s%u %s", at ? ", " : "; up to ", rows,
                                               few == TDM_VK_FEW_FLAGGED ? "flagged" : "apart");
        }
}
