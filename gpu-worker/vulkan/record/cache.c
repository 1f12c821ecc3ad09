/* Recordings that are kept: the one that was used longest ago makes room. */
#include "gpu-worker/vulkan/record/private.h"

#define RECORDINGS 256u

int tdm_vk_recordings_init(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        VkCommandBuffer commands[RECORDINGS];
        const VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                   .commandPool = device->pool,
                                                   .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                   .commandBufferCount = RECORDINGS };
        VkResult r;

        m->recordings = calloc(RECORDINGS, sizeof(*m->recordings));
        if (!m->recordings)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for command buffers");
        r = device->vk.AllocateCommandBuffers(device->vk.device, &info, commands);
        if (r != VK_SUCCESS)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no command buffers: %s",
                                     tdm_vk_result_name(r));
        for (unsigned i = 0; i < RECORDINGS; i++)
                m->recordings[i].commands = commands[i];
        return 0;
}

void tdm_vk_recordings_deinit(struct tdm_vk_model *m)
{
        struct tdm_vk_device *device = m->device;

        for (unsigned i = 0; m->recordings && i < RECORDINGS && m->recordings[i].commands; i++)
                device->vk.FreeCommandBuffers(device->vk.device, device->pool, 1, &m->recordings[i].commands);
        free(m->recordings);
}

/* The part of a step that a recording depends on besides its work. */
static struct tdm_vk_recorded_step step_now(const struct tdm_vk_model *m, const struct tdm_vk_slot *slot)
{
        struct tdm_vk_recorded_step step = { .hidden = slot->hidden,
                                             .n_rows = slot->n_rows,
                                             .many = slot->many,
                                             .several = slot->several,
                                             .flags = slot->flags,
                                             .profiled = m->device->profiling };

        memcpy(step.item_heads, slot->item_heads, sizeof(step.item_heads));
        return step;
}

static bool same_step(const struct tdm_vk_recorded_step *a, const struct tdm_vk_recorded_step *b)
{
        return a->hidden == b->hidden && a->n_rows == b->n_rows && a->many == b->many && a->several == b->several &&
               a->flags == b->flags && a->profiled == b->profiled &&
               memcmp(a->item_heads, b->item_heads, sizeof(a->item_heads)) == 0;
}

static bool same_work(const struct tdm_vk_work *a, const struct tdm_vk_work *b)
{
        return a->slot == b->slot && a->first == b->first && a->n == b->n && a->first_logit == b->first_logit &&
               a->n_logits == b->n_logits && a->log_half == b->log_half && a->upload == b->upload &&
               a->download == b->download && a->joins == b->joins && a->joined == b->joined;
}

/* Before the blocks: hidden rows that come from the host, and the chain's words. */
static void begin_commands(struct emitter *e, const VkBufferCopy *rows)
{
        struct tdm_vk_model *m = e->m;
        struct tdm_vk *vk = &m->device->vk;
        const struct tdm_vk_slot *slot = e->work->slot;

        e->chain.recording->n_marks = 0;
        if (m->device->profiling) {
                vk->CmdResetQueryPool(e->chain.commands, m->device->queries, 0, TDM_VK_MAX_QUERIES);
                vk->CmdWriteTimestamp(e->chain.commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, m->device->queries, 0);
        }
        if (e->work->upload)
                vk->CmdCopyBuffer(e->chain.commands, m->hidden_host.buffer, slot->hidden_buffer.buffer, 1, rows);
        if (m->device->chained) /* word 0 says that a kernel gave up: it is kept */
                vk->CmdFillBuffer(e->chain.commands, m->chain.buffer, sizeof(uint32_t),
                                  TDM_VK_FLAGGED_Y - sizeof(uint32_t) +
                                          (e->is_flagged ? slot->n_rows * (uint64_t)m->flagged.stride : 0),
                                  0);
        chain_barrier_all(&e->chain);
}

/* Behind the blocks: hidden rows for the host, and whether a kernel gave up. */
static void end_commands(struct emitter *e, const VkBufferCopy *rows)
{
        struct tdm_vk_model *m = e->m;
        struct tdm_vk *vk = &m->device->vk;
        const VkBufferCopy gave_up = { .dstOffset = TDM_VK_GAVE_UP_WORD * sizeof(uint32_t), .size = sizeof(uint32_t) };

        chain_barrier_all(&e->chain);
        if (e->work->download)
                vk->CmdCopyBuffer(e->chain.commands, e->work->slot->hidden_buffer.buffer, m->hidden_host.buffer, 1,
                                  rows);
        if (e->chain.index)
                vk->CmdCopyBuffer(e->chain.commands, m->chain.buffer, m->counters.buffer, 1, &gave_up);
        if (e->work->download || e->chain.index)
                chain_barrier_all(&e->chain);
}

static VkResult record_work(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_vk_recording *c)
{
        const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
        const VkBufferCopy rows = { .size = (uint64_t)work->slot->n_rows * m->hp.residual_width * sizeof(float) };
        struct emitter e = {
                .m = m,
                .chain = { .device = m->device, .commands = c->commands, .recording = c, .words = m->chain.address },
                .work = work,
                .step = work->slot->step.address,
                .is_begun = work->joined
        };
        VkResult result = m->device->vk.BeginCommandBuffer(c->commands, &begin);

        if (result != VK_SUCCESS)
                return result;
        tdm_vk_step_layout(m, &e.layout);
        e.is_flagged = tdm_vk_record_flags(m, work);
        begin_commands(&e, &rows);
        emit_blocks(&e);
        end_commands(&e, &rows);
        return m->device->vk.EndCommandBuffer(c->commands);
}

int tdm_vk_record_dry(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_error *err)
{
        VkResult result = record_work(m, work, &m->recordings[0]);

        return result == VK_SUCCESS ? tdm_vk_pipelines_check(m->device, err) :
                                      tdm_vk_fault(m->device, "recording commands", result, err);
}

void tdm_vk_record_forget(struct tdm_vk_model *m)
{
        for (unsigned i = 0; i < RECORDINGS; i++)
                m->recordings[i].used = 0;
}

int tdm_vk_record_check(struct tdm_vk_model *m, struct tdm_error *err)
{
        const volatile uint32_t *counters = (const volatile uint32_t *)m->counters.map;

        return tdm_vk_chain_check(m->device, &counters[TDM_VK_GAVE_UP_WORD], err);
}

int tdm_vk_record(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_vk_recording **ret,
                  struct tdm_error *err)
{
        const struct tdm_vk_recorded_step step = step_now(m, work->slot);
        struct tdm_vk_recording *oldest = &m->recordings[0];
        VkResult result;

        for (unsigned i = 0; i < RECORDINGS; i++) {
                struct tdm_vk_recording *c = &m->recordings[i];

                if (c->used && same_work(&c->work, work) && same_step(&c->step, &step)) {
                        c->used = ++m->clock;
                        *ret = c;
                        return 0;
                }
                if (c->used < oldest->used)
                        oldest = c;
        }
        oldest->used = 0;
        result = record_work(m, work, oldest);
        if (result != VK_SUCCESS)
                return tdm_vk_fault(m->device, "recording commands", result, err);
        if (tdm_vk_pipelines_check(m->device, err) != 0)
                return TDM_E_DEVICE_FAULT;
        m->device->counters.recordings++;
        oldest->work = *work;
        oldest->step = step;
        oldest->used = ++m->clock;
        *ret = oldest;
        return 0;
}
