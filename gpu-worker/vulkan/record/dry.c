/* Records steps of all classes of rows once a model is loaded, and drops what was recorded: a kernel that a recording
 * asks for and that was not compiled then fails the load and not a job. It takes some milliseconds. */
#include "gpu-worker/vulkan/record/record.h"

#define ROWS_MAX 24u

/* Numbers of rows that are recorded alike with all numbers up to the next one: by their kernels (list_rows() in
 * kernels/need.c), or as one tile. */
static unsigned list_rows(const struct tdm_vk_model *m, uint32_t ret[ROWS_MAX])
{
        static const uint32_t firsts[] = { 1,   2,   3,   5,   9,   17,  33,  49,  65,  81, 97,
                                           113, 129, 145, 161, 177, 193, 209, 225, 241, 257 };
        unsigned n = 0;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(firsts); i++)
                if (firsts[i] <= m->limits.max_rows)
                        ret[n++] = firsts[i];
        ret[n++] = m->tile_rows;
        if (m->limits.max_rows > m->tile_rows)
                ret[n++] = m->limits.max_rows;
        return n;
}

/* Records the blocks as submissions of at most n of them. */
static int record_blocks(struct tdm_vk_model *m, struct tdm_vk_slot *slot, uint32_t n, struct tdm_error *err)
{
        const uint32_t end = tdm_model_n_blocks(&m->hp) - 1;
        int r = 0;

        for (uint32_t first = 0; first < end && r == 0; first += n) {
                struct tdm_vk_work work = { .slot = slot, .first = first, .n = TDM_MIN(n, end - first) };

                if (first + work.n == end && !m->pooling)
                        work.n_logits = TDM_MIN(slot->n_rows, m->logits.rows);
                r = tdm_vk_record_dry(m, &work, err);
        }
        return r;
}

/* In every way in which step.c cuts attention for this many rows. */
static int record_rows(struct tdm_vk_model *m, struct tdm_vk_slot *slot, uint32_t n_rows, struct tdm_error *err)
{
        const enum tdm_vk_few few = tdm_vk_few_rows(m, n_rows);
        int r = 0;

        slot->n_rows = n_rows;
        slot->n_tiles = TDM_DIV_UP(n_rows, m->tile_rows);
        for (unsigned way = 0; way < 4 && r == 0; way++) {
                bool is_one_head = way & 1;

                slot->several = way & 2;
                if ((slot->several && n_rows == 1) || (is_one_head && m->attention.is_f16))
                        continue;
                slot->many = slot->several && few == TDM_VK_FEW_NOT;
                slot->flags = n_rows == 1 || few == TDM_VK_FEW_FLAGGED;
                for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                        slot->item_heads[kind] = is_one_head && !slot->many ? 1 : m->kinds[kind].queries_heads;
                r = record_blocks(m, slot, TDM_VK_SUBMISSION_BLOCKS_MAX, err);
                if (r == 0)
                        r = record_blocks(m, slot, 1, err);
        }
        return r;
}

int tdm_vk_record_all_dry(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_slot slot = m->slots[0];
        uint32_t rows[ROWS_MAX];
        unsigned n = list_rows(m, rows);
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++)
                r = record_rows(m, &slot, rows[i], err);
        tdm_vk_record_forget(m);
        return r;
}
