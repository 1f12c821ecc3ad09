/* The blocks that run on a shorter step (engine/step/shorter.h): it is a step in a slot of its own, to which the hidden
 * rows are copied, and from which they come back. Rows that are left out stay as they were, and where the step's rows
 * lie in another memory than the device's they are not even brought. */
#include "gpu-worker/vulkan/step/step.h"

int tdm_vk_early_init(struct tdm_vk_model *m)
{
        if (tdm_shorter_new(&m->early.shorter, &m->hp, m->recipe.pooling != TDM_POOLING_NONE, m->limits.max_rows,
                            &m->limits) < 0)
                return -ENOMEM;
        if (!m->early.shorter)
                return 0;
        m->early.copies = calloc(m->limits.max_seqs, sizeof(*m->early.copies));
        return m->early.copies ? 0 : -ENOMEM;
}

void tdm_vk_early_deinit(struct tdm_vk_model *m)
{
        tdm_shorter_free(m->early.shorter);
        free(m->early.copies);
}

/* A slot's hidden rows. */
static VkBuffer rows_of(const struct tdm_vk_model *m, const struct tdm_vk_slot *slot, uint64_t *ret_offset)
{
        *ret_offset = slot->in_place ? slot->hidden - m->activations.buffer.address : 0;
        return slot->in_place ? m->activations.buffer.buffer : slot->hidden_buffer.buffer;
}

static void copy_rows(struct tdm_vk_device *device, VkCommandBuffer commands, VkBuffer from, VkBuffer to,
                      const VkBufferCopy *pieces, uint32_t n)
{
        device->vk.CmdCopyBuffer(commands, from, to, n, pieces);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT |
                               VK_PIPELINE_STAGE_HOST_BIT,
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                               VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT);
}

/* Finds a step's rows in the shorter step. Rows of a sequence are consecutive there, so each sequence is one piece. */
static uint32_t list_pieces(struct tdm_vk_model *m, const struct tdm_step *shorter, const uint32_t *from,
                            uint64_t offset, bool back)
{
        uint64_t bytes = (uint64_t)m->hp.residual_width * sizeof(float);
        uint32_t n = 0;

        for (uint32_t seq = 0; seq < shorter->head.n_seqs; seq++) {
                const struct tdm_step_seq *s = &shorter->seqs[seq];
                uint64_t far, near = s->first_row * bytes;

                if (!s->n_rows)
                        continue;
                far = offset + from[s->first_row] * bytes;
                m->early.copies[n++] = (VkBufferCopy){ back ? near : far, back ? far : near, s->n_rows * bytes };
        }
        return n;
}

/* All rows of a step, which lie one behind the other. */
static VkBufferCopy all_rows(const struct tdm_vk_model *m, const struct tdm_step *step)
{
        return (VkBufferCopy){ .size = (uint64_t)step->head.n_rows * m->hp.residual_width * sizeof(float) };
}

int tdm_vk_early_begin(struct tdm_vk_model *m, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                       const uint32_t *from, const float *hidden, struct tdm_error *err)
{
        const char *what = "copying hidden rows";
        bool is_elsewhere = !slot->in_place && !slot->on_device;
        struct tdm_vk_slot *early = &m->early.slot;
        VkCommandBuffer commands;
        uint64_t offset;
        VkBuffer rows = rows_of(m, slot, &offset);
        uint32_t n = list_pieces(m, shorter, from, offset, false);
        int r = 0;

        if (m->attention.step_serial + 1 >= TDM_VK_SERIALS)
                r = tdm_vk_partial_clear(m, err);
        if (r == 0)
                r = tdm_vk_once_begin(m->device, &commands, what, err);
        if (r != 0)
                return r;
        if (is_elsewhere) {
                const VkBufferCopy all = all_rows(m, shorter);

                for (uint32_t i = 0; i < n; i++)
                        memcpy(m->hidden_host.map + m->early.copies[i].dstOffset,
                               (const uint8_t *)hidden + m->early.copies[i].srcOffset, m->early.copies[i].size);
                m->device->counters.hidden_copies++;
                copy_rows(m->device, commands, m->hidden_host.buffer, early->hidden_buffer.buffer, &all, 1);
        } else {
                copy_rows(m->device, commands, rows, early->hidden_buffer.buffer, m->early.copies, n);
                slot->on_device = true;
        }
        r = tdm_vk_once_end(m->device, what, err);
        if (r != 0)
                return r;
        early->hidden = early->hidden_buffer.address;
        tdm_vk_step_fill(m, early, shorter);
        early->on_device = true;
        return 0;
}

int tdm_vk_early_end(struct tdm_vk_model *m, struct tdm_vk_slot *slot, const struct tdm_step *shorter,
                     const uint32_t *from, float *hidden, struct tdm_error *err)
{
        const char *what = "copying hidden rows back";
        bool is_elsewhere = !slot->in_place && !slot->on_device;
        const VkBufferCopy all = all_rows(m, shorter);
        VkCommandBuffer commands;
        uint64_t offset;
        VkBuffer rows = rows_of(m, slot, &offset);
        uint32_t n = list_pieces(m, shorter, from, offset, true);
        int r = tdm_vk_once_begin(m->device, &commands, what, err);

        if (r != 0)
                return r;
        if (is_elsewhere)
                copy_rows(m->device, commands, m->early.slot.hidden_buffer.buffer, m->hidden_host.buffer, &all, 1);
        else
                copy_rows(m->device, commands, m->early.slot.hidden_buffer.buffer, rows, m->early.copies, n);
        r = tdm_vk_once_end(m->device, what, err);
        if (r != 0 || !is_elsewhere)
                return r;
        for (uint32_t i = 0; i < n; i++)
                memcpy((uint8_t *)hidden + m->early.copies[i].dstOffset,
                       m->hidden_host.map + m->early.copies[i].srcOffset, m->early.copies[i].size);
        m->device->counters.hidden_copies++;
        return 0;
}

int tdm_vk_early_bring(struct tdm_vk_model *m, struct tdm_vk_slot *slot, float *hidden, struct tdm_error *err)
{
        const char *what = "bringing hidden rows";
        const VkBufferCopy all = { .size = (uint64_t)slot->n_rows * m->hp.residual_width * sizeof(float) };
        VkCommandBuffer commands;
        int r;

        if (slot->in_place || !slot->on_device)
                return 0;
        r = tdm_vk_once_begin(m->device, &commands, what, err);
        if (r != 0)
                return r;
        copy_rows(m->device, commands, slot->hidden_buffer.buffer, m->hidden_host.buffer, &all, 1);
        r = tdm_vk_once_end(m->device, what, err);
        if (r != 0)
                return r;
        memcpy(hidden, m->hidden_host.map, all.size);
        m->device->counters.hidden_copies++;
        slot->on_device = false;
        return 0;
}
