/* Each dispatch of a recording waits for the one before: by a barrier, or by itself where both kernels can
 * (device/chain.c). */
#include <assert.h>

#include "gpu-worker/vulkan/record/private.h"

bool tdm_vk_record_flags(const struct tdm_vk_model *m, const struct tdm_vk_work *work)
{
        const struct tdm_vk_slot *slot = work->slot;

        /* Each dispatch has a word. Two blocks, attention and an FFN, have at most twelve that are flagged. */
        if (!m->device->chained || m->device->profiling || !slot->flags || (work->n + 1) * 6 >= TDM_VK_CHAIN_WORDS)
                return false;
        if (slot->n_rows > 1) /* the slot says whether they can: kernels/few-rows.c */
                return true;
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                if (m->kinds[kind].used && !tdm_vk_attend_merges(m, kind, slot->many, slot->item_heads[kind]))
                        return false;
        return tdm_vk_program_flags(m, 1);
}

bool chain_takes(const struct chain *c, const struct tdm_vk_pipeline *pipeline)
{
        return c->device->chained && !c->device->profiling && pipeline->shader != TDM_VK_MATMUL_INT8_WIDE &&
               pipeline->shader != TDM_VK_MATMUL_INT8_ANY &&
               ((pipeline->shader != TDM_VK_MATMUL_F16_WIDE && pipeline->shader != TDM_VK_MATMUL_F16_WIDE_EXPERTS) ||
                c->n_rows <= TDM_VK_F16_ROWS_MAX) &&
               c->index + 1 < TDM_VK_CHAIN_WORDS;
}

void chain_barrier_all(struct chain *c)
{
        tdm_vk_barrier(c->device, c->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                       VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT |
                               VK_PIPELINE_STAGE_HOST_BIT,
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                               VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT);
}

/* Before a dispatch. */
static void begin_dispatch(struct chain *c, const struct tdm_vk_pipeline *pipeline, const void *push,
                           uint32_t push_bytes, unsigned flags)
{
        struct {
                TDM_VK_CHAIN
        } chain = { 0 };
        uint8_t all[TDM_VK_PUSH_BYTES];

        c->is_beside = c->is_beside && c->was_chained == chain_takes(c, pipeline);
        if (!c->is_beside &&
            (c->before == WAITING_UNDER_WAY || (c->before == WAITING_CHAINED && !chain_takes(c, pipeline)))) {
                tdm_vk_barrier(c->device, c->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
                c->before = WAITING_DONE;
        }
        if (chain_takes(c, pipeline)) {
                chain.chain = c->words;
                chain.chain_index = c->is_beside ? c->index : ++c->index;
                chain.chain_wait = c->is_beside                 ? c->last_wait :
                                   c->before == WAITING_FLAGGED ? TDM_VK_CHAIN_FLAGS :
                                   c->before == WAITING_CHAINED ? c->groups :
                                                                  0;
                c->last_wait = chain.chain_wait;
                if (flags & LEAVES_FLAGS)
                        chain.chain_index |= TDM_VK_CHAIN_FLAGS;
        }
        assert((chain.chain_wait == TDM_VK_CHAIN_FLAGS) == !!(flags & READS_FLAGS) && (chain.chain || !flags));
        c->was_chained = chain.chain != 0;
        memcpy(all, push, push_bytes - sizeof(chain));
        memcpy(all + push_bytes - sizeof(chain), &chain, sizeof(chain));
        if (pipeline->pipeline) /* else the recording is not used: tdm_vk_record() */
                c->device->vk.CmdBindPipeline(c->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
        c->device->vk.CmdPushConstants(c->commands, c->device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, all);
        c->before = flags & LEAVES_FLAGS ? WAITING_FLAGGED : chain.chain ? WAITING_CHAINED : WAITING_UNDER_WAY;
}

/* After a dispatch of this many workgroups. */
static void end_dispatch(struct chain *c, struct tdm_vk_pipeline *pipeline, uint32_t groups)
{
        struct tdm_vk_recording *recording = c->recording;

        c->groups = c->is_beside ? c->groups + groups : groups;
        c->is_beside = false;
        if (c->device->profiling && recording->n_marks + 1 < TDM_VK_MAX_QUERIES) {
                recording->marks[recording->n_marks++] = pipeline;
                c->device->vk.CmdWriteTimestamp(c->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, c->device->queries,
                                                recording->n_marks);
        }
}

void chain_dispatch(struct chain *c, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                    uint32_t x, uint32_t y, unsigned flags)
{
        begin_dispatch(c, pipeline, push, push_bytes, flags);
        if (pipeline->pipeline)
                c->device->vk.CmdDispatch(c->commands, x, y, 1);
        end_dispatch(c, pipeline, x * y);
}

void chain_dispatch_indirect(struct chain *c, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                             VkBuffer buffer, uint64_t offset, uint32_t groups, unsigned flags)
{
        begin_dispatch(c, pipeline, push, push_bytes, flags);
        if (pipeline->pipeline)
                c->device->vk.CmdDispatchIndirect(c->commands, buffer, offset);
        end_dispatch(c, pipeline, groups);
}
