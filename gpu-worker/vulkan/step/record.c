/* Blocks as command buffers: each reads top to bottom here. A recording depends on shapes and addresses only (which
 * slot, which blocks, how many rows and logits), never on tokens, positions or pages, and is used again for the next
 * step of its shape.
 *
 * Every kernel waits for the one before it: at a barrier, or on its own where both can (chain.c). Where a block follows
 * another in one run, the end of the one and the beginning of the next are one kernel (norm.comp).
 *
 * Longer than 800 lines: a recording is one order of dispatches over one recorder, read from top to bottom. */
#include <assert.h>
#include <math.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/step/step-private.h"

struct recorder {
        struct tdm_vk_model *m;
        struct tdm_vk_device *device;
        VkCommandBuffer commands;
        struct tdm_vk_recording *recording;
        struct tdm_vk_step_layout layout;
        const struct tdm_vk_work *work;
        uint64_t step;            /* address of the slot's step buffer */
        uint32_t first_row, rows; /* of the tile */
        uint32_t at;              /* where in a row's residual a block reads and adds */
        bool acts_ready;          /* the next block's input was rounded by the end of the last one */
        /* The dispatches before the next one. DONE: they are done for it. UNDER_WAY: it needs a barrier. CHAINED: it
         * can wait for chain_groups of dispatch chain_index. FLAGGED: it must read that one's flagged words. */
        enum { DONE, UNDER_WAY, CHAINED, FLAGGED } before;
        uint32_t chain_index, chain_groups;
        uint32_t hidden_index, hidden_groups; /* of the dispatch that last wrote hidden rows; 0: it is done */
        /* what the kernels of a single row, or of a few, leave for the next one is flagged: chain.c */
        bool flagged;
        /* The next dispatch has the inputs of the one before, and its outputs lie beside: it waits for what that one
         * waited for, and what follows waits for both. */
        bool beside;
        bool last_chained; /* the dispatch before was, with this chain_wait */
        uint32_t last_wait;
};
#define READS_FLAGS 1u
#define LEAVES_FLAGS 2u

/* Kernels, copies and the host: everything before is done and seen by everything after. */
static void barrier_all(const struct recorder *r)
{
        tdm_vk_barrier(r->device, r->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                       VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT |
                               VK_PIPELINE_STAGE_HOST_BIT,
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                               VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT);
}

static bool can_chain(const struct recorder *r, const struct tdm_vk_pipeline *pipeline)
{
        return r->device->chained && !r->device->profiling && pipeline->shader != TDM_VK_MATMUL_INT8_WIDE &&
               pipeline->shader != TDM_VK_MATMUL_INT8_ANY &&
               ((pipeline->shader != TDM_VK_MATMUL_F16_WIDE && pipeline->shader != TDM_VK_MATMUL_F16_WIDE_EXPERTS) ||
                r->rows <= TDM_VK_F16_ROWS_MAX) &&
               r->chain_index + 1 < TDM_VK_CHAIN_WORDS;
}

/* Before a dispatch. push ends with TDM_VK_CHAIN; flags: of what pushed addresses point to. */
static void set(struct recorder *r, const struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                unsigned flags)
{
        struct {
                TDM_VK_CHAIN
        } chain = { 0 };
        uint8_t all[TDM_VK_PUSH_BYTES];

        r->beside = r->beside && r->last_chained == can_chain(r, pipeline);
        if (!r->beside && (r->before == UNDER_WAY || (r->before == CHAINED && !can_chain(r, pipeline)))) {
                tdm_vk_barrier(r->device, r->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
                r->before = DONE;
        }
        if (can_chain(r, pipeline)) {
                chain.chain = r->m->chain.address;
                chain.chain_index = r->beside ? r->chain_index : ++r->chain_index;
                chain.chain_wait = r->beside            ? r->last_wait :
                                   r->before == FLAGGED ? TDM_VK_CHAIN_FLAGS :
                                   r->before == CHAINED ? r->chain_groups :
                                                          0;
                r->last_wait = chain.chain_wait;
                if (flags & LEAVES_FLAGS)
                        chain.chain_index |= TDM_VK_CHAIN_FLAGS;
        }
        assert((chain.chain_wait == TDM_VK_CHAIN_FLAGS) == !!(flags & READS_FLAGS) && (chain.chain || !flags));
        r->last_chained = chain.chain != 0;
        memcpy(all, push, push_bytes - sizeof(chain));
        memcpy(all + push_bytes - sizeof(chain), &chain, sizeof(chain));
        if (pipeline->pipeline) /* else the recording is not used: tdm_vk_record() */
                r->device->vk.CmdBindPipeline(r->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
        r->device->vk.CmdPushConstants(r->commands, r->device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes, all);
        r->before = flags & LEAVES_FLAGS ? FLAGGED : chain.chain ? CHAINED : UNDER_WAY;
}

/* After a dispatch, of so many workgroups. */
static void done(struct recorder *r, struct tdm_vk_pipeline *pipeline, uint32_t groups)
{
        r->chain_groups = r->beside ? r->chain_groups + groups : groups;
        r->beside = false;
        if (r->device->profiling && r->recording->n_marks + 1 < TDM_VK_MAX_QUERIES) {
                r->recording->marks[r->recording->n_marks++] = pipeline;
                r->device->vk.CmdWriteTimestamp(r->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, r->device->queries,
                                                r->recording->n_marks);
        }
}

static void dispatch_flagged(struct recorder *r, struct tdm_vk_pipeline *pipeline, const void *push,
                             uint32_t push_bytes, uint32_t x, uint32_t y, unsigned flags)
{
        set(r, pipeline, push, push_bytes, flags);
        if (pipeline->pipeline)
                r->device->vk.CmdDispatch(r->commands, x, y, 1);
        done(r, pipeline, x * y);
}

static void dispatch(struct recorder *r, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                     uint32_t x, uint32_t y)
{
        dispatch_flagged(r, pipeline, push, push_bytes, x, y, 0);
}

/* ---- pieces ---- */

unsigned tdm_vk_matmul_group(const struct tdm_vk_model *m, const struct tdm_vk_matrix *const *matrices,
                             unsigned n_matrices, struct tdm_vk_matmul_push *ret, uint32_t *ret_panels)
{
        const struct tdm_vk_matrix *a = matrices[0];
        unsigned n = tdm_vk_group_of(matrices, n_matrices, ret_panels);

        *ret = (struct tdm_vk_matmul_push){ .x = m->acts[a->act].address,
                                            .w0 = a->address,
                                            .panel1 = UINT32_MAX,
                                            .panel2 = UINT32_MAX,
                                            .panel_bytes = a->panel_bytes,
                                            .cols = a->cols,
                                            .n_out = a->rows,
                                            .n_rows = 1,
                                            .y_scale = a->y_scale,
                                            .scale_sums = m->scale_sums[a->act].address,
                                            .scale_sums_rows = m->scale_sums_rows };
        for (unsigned k = 1, panel = a->n_panels; k < n; panel += matrices[k++]->n_panels) {
                *(k == 1 ? &ret->w1 : &ret->w2) = matrices[k]->address;
                *(k == 1 ? &ret->panel1 : &ret->panel2) = panel;
                ret->n_out += matrices[k]->rows;
        }
        return n;
}

/* Where flagged kernels leave their outputs for the next one: of the first row. */
static uint64_t flagged_y(const struct recorder *r)
{
        return r->m->chain.address + TDM_VK_FLAGGED_Y;
}

static uint64_t flagged_acts(const struct recorder *r, uint32_t act)
{
        return r->m->chain.address + r->m->flagged_acts[act];
}

static struct tdm_vk_pipeline *flagged_kernel(const struct recorder *r, const struct tdm_vk_matrix *first,
                                              uint32_t n_panels, uint32_t *ret_panels)
{
        uint32_t rows;

        return r->rows > 1 ? tdm_vk_f16_rows_kernel(r->device, first, n_panels, r->rows, 0, ret_panels) :
                             tdm_vk_choose_kernel(r->device, first, n_panels, 1, ret_panels, &rows);
}

/* Of a single row or a few: reads flagged words or not and leaves some. A dispatch for each type, side by side. */
static void multiply_flagged(struct recorder *r, const struct tdm_vk_matrix *const *matrices, unsigned n_matrices)
{
        unsigned reads = r->before == FLAGGED ? READS_FLAGS : 0;
        uint64_t y = flagged_y(r);

        for (unsigned i = 0, n; i < n_matrices; i += n) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels, panels;
                struct tdm_vk_pipeline *pipeline;

                n = tdm_vk_matmul_group(r->m, matrices + i, n_matrices - i, &push, &n_panels);
                if (reads)
                        push.x = flagged_acts(r, matrices[i]->act);
                push.y = y;
                push.n_rows = r->rows;
                push.flag_stride = r->m->flag_stride;
                pipeline = flagged_kernel(r, matrices[i], n_panels, &panels);
                r->beside = i > 0;
                dispatch_flagged(r, pipeline, &push, sizeof(push), TDM_DIV_UP(n_panels, panels), 1,
                                 reads | LEAVES_FLAGS);
                y += push.n_out * sizeof(uint64_t);
        }
}

/* Whether all of these, of one input, are multiplied by kernels that know of flagged words. */
static bool matrices_flag(const struct tdm_vk_model *m, const struct tdm_vk_matrix *const *matrices,
                          unsigned n_matrices)
{
        for (unsigned i = 0; i < n_matrices;) {
                const struct tdm_vk_matrix *first = matrices[i];
                uint32_t n_panels;

                i += tdm_vk_group_of(matrices + i, n_matrices - i, &n_panels);
                if (first->act != matrices[0]->act || !tdm_vk_matrices_flag(m->device, first, n_panels))
                        return false;
        }
        return true;
}

/* Those of a single row can, where each kernel knows of them. The down projection may do without. Of several rows it
 * does, and the slot says whether the others can. */
bool tdm_vk_record_flags(const struct tdm_vk_model *m, const struct tdm_vk_work *work)
{
        const struct tdm_vk_device *device = m->device;
        const struct tdm_vk_slot *slot = work->slot;

        if (!device->chained || device->profiling || !slot->flags || (work->n + 1) * 6 >= TDM_VK_CHAIN_WORDS)
                return false;
        if (slot->n_rows > 1)
                return true;
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                if (m->kinds[kind].used && !tdm_vk_attend_merges(m, kind, slot->many, slot->item_heads[kind]))
                        return false;
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v };

                /* There is one buffer of flagged words for each form: what reads the one would meet what writes the
                 * other. */
                if (l->q.act == l->o.act || l->experts.n > 0 || l->n_qkv < 3 || l->v_norm || tdm_vk_has_side(m, i))
                        return false;
                if (!matrices_flag(m, qkv, 3) || !tdm_vk_matrices_flag(device, &l->o, l->o.n_panels) ||
                    !tdm_vk_gelu_flags(device, l) || tdm_subblock_type(l->down.type) ||
                    l->down.n_panels > device->max_groups_x)
                        return false;
        }
        return true;
}

/* matrices: of one input, in rising order of their outputs, which lie beside each other in y [rows][y_stride]. */
static void multiply(struct recorder *r, const struct tdm_vk_matrix *const *matrices, unsigned n_matrices,
                     uint32_t n_rows, uint64_t y, uint32_t y_stride)
{
        for (unsigned i = 0, n; i < n_matrices; i += n) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels, panels, rows;
                struct tdm_vk_pipeline *pipeline;

                n = tdm_vk_matmul_group(r->m, matrices + i, n_matrices - i, &push, &n_panels);
                push.y = y;
                push.n_rows = n_rows;
                push.y_stride = y_stride;
                pipeline = tdm_vk_choose_kernel(r->device, matrices[i], n_panels, n_rows, &panels, &rows);
                for (uint32_t groups; push.panel0 < n_panels; push.panel0 += groups * panels) {
                        groups = TDM_MIN(TDM_DIV_UP(n_panels - push.panel0, panels), r->device->max_groups_x);
                        r->beside = i > 0 || push.panel0 > 0;
                        dispatch(r, pipeline, &push, sizeof(push), groups, TDM_DIV_UP(n_rows, rows));
                }
                y += push.n_out * sizeof(float);
        }
}

/* The same of one matrix, whose input does not lie where its form's does. */
static void multiply_rows(struct recorder *r, const struct tdm_vk_matrix *matrix, uint32_t n_rows, uint64_t x,
                          uint64_t scale_sums, uint64_t y, uint32_t y_stride)
{
        struct tdm_vk_matmul_push push;
        uint32_t n_panels, panels, rows;
        struct tdm_vk_pipeline *pipeline;

        tdm_vk_matmul_group(r->m, &matrix, 1, &push, &n_panels);
        push.x = x;
        push.scale_sums = scale_sums;
        push.y = y;
        push.n_rows = n_rows;
        push.y_stride = y_stride;
        pipeline = tdm_vk_choose_kernel(r->device, matrix, n_panels, n_rows, &panels, &rows);
        for (uint32_t groups; push.panel0 < n_panels; push.panel0 += groups * panels) {
                groups = TDM_MIN(TDM_DIV_UP(n_panels - push.panel0, panels), r->device->max_groups_x);
                r->beside = push.panel0 > 0;
                dispatch(r, pipeline, &push, sizeof(push), groups, TDM_DIV_UP(n_rows, rows));
        }
}

/* Of the tile's rows, for the next kernel. */
static void multiply_tile(struct recorder *r, const struct tdm_vk_matrix *const *matrices, unsigned n_matrices,
                          uint32_t y_stride)
{
        if (r->flagged)
                multiply_flagged(r, matrices, n_matrices);
        else
                multiply(r, matrices, n_matrices, r->rows, r->m->y.address, y_stride);
}

/* Where rows of activations are rounded for a kernel that reads it; 0: none will. */
static uint64_t scale_sums_of(const struct recorder *r, uint32_t act, uint32_t n_rows)
{
        return n_rows <= TDM_VK_INT8_ROWS_MAX ? r->m->scale_sums[act].address : 0;
}

bool tdm_vk_gate_up_push(const struct tdm_vk_model *m, const struct tdm_vk_layer *l, uint32_t n_rows,
                         struct tdm_vk_matmul_push *ret)
{
        *ret = (struct tdm_vk_matmul_push){ .x = m->acts[l->gate.act].address,
                                            .w0 = l->gate.address,
                                            .w1 = l->up.address,
                                            .panel1 = l->gate.n_panels,
                                            .panel2 = UINT32_MAX,
                                            .panel_bytes = l->gate.panel_bytes,
                                            .cols = l->gate.cols,
                                            .n_out = l->gate.rows + l->up.rows,
                                            .n_rows = n_rows,
                                            .y_scale = l->gate.y_scale,
                                            .act_scale = l->down.x_scale,
                                            .acts = m->acts[l->down.act].address,
                                            .out_scale_sums = m->scale_sums[l->down.act].address,
                                            .scale_sums_rows = m->scale_sums_rows };
        return tdm_vk_gelu_fits(l, n_rows);
}

static uint64_t hidden_rows(const struct recorder *r)
{
        return r->work->slot->hidden + (uint64_t)r->first_row * r->m->hp.residual_width * sizeof(float);
}

/* What a block adds to the hidden rows at its end: the norm of y, or y with a bias. */
struct added {
        uint64_t gain, bias; /* 0: none */
};

/* Rows so few that a kernel for each leaves room for the next one's to begin early. Those that an expert's router reads
 * too have a kernel of their own. */
static bool norms_few(const struct recorder *r, const struct tdm_vk_matrix *const *matrices, unsigned n_matrices)
{
        for (unsigned i = 0; i < n_matrices; i++)
                if (matrices[i]->act == TDM_VK_ACT_F32)
                        return false;
        return r->rows > 1 && r->rows <= TDM_VK_FEW_ROWS_MAX && !r->work->slot->many &&
               (r->flagged || r->before == CHAINED);
}

/* Rounds the tile's rows for `matrices`, in each form that one of them takes; added: y is added first. */
static void norm(struct recorder *r, const struct added *added, uint64_t gain,
                 const struct tdm_vk_matrix *const *matrices, unsigned n_matrices)
{
        struct tdm_vk_model *m = r->m;
        const bool is_flagged = r->before == FLAGGED;
        const bool is_few = norms_few(r, matrices, n_matrices);
        struct tdm_vk_norm_push push = { .y = is_flagged ? flagged_y(r) : m->y.address,
                                         .add_gain = !added      ? 0 :
                                                     added->gain ? added->gain :
                                                                   added->bias,
                                         .hidden = hidden_rows(r) + r->at * sizeof(float),
                                         .hidden_stride = m->hp.residual_width,
                                         .gain = gain,
                                         .d = m->hp.d_model,
                                         .y_stride =
                                                 is_flagged ? m->flag_stride / (uint32_t)sizeof(float) : m->hp.d_model,
                                         .eps = m->recipe.norm_eps,
                                         .scale_sums_rows = m->scale_sums_rows,
                                         .hidden_index = r->hidden_index,
                                         .hidden_wait = r->flagged || is_few ? r->hidden_groups : 0,
                                         .flag_stride = m->flag_stride };
        const uint32_t few = is_few ? TDM_VK_NORM_FEW : 0;
        uint32_t flags = few;
        unsigned forms = 0, reads = is_flagged ? READS_FLAGS : 0, leaves = r->flagged ? LEAVES_FLAGS : 0;

        if (added)
                flags |= (uint32_t)TDM_VK_NORM_ADD |
                         (is_flagged || (is_few && r->before == CHAINED) ? TDM_VK_NORM_REHEARSES : 0u) |
                         (added->gain ? 0u : TDM_VK_NORM_PLAIN);
        for (unsigned i = 0; i < n_matrices; i++) {
                forms |= 1u << matrices[i]->act;
                push.act_scale = matrices[i]->x_scale;
        }
        if (!forms)
                dispatch_flagged(
                        r, tdm_vk_pipeline_get(r->device, TDM_VK_NORM, flags, TDM_VK_ACT_NONE, tdm_vk_norm_per(m), 0),
                        &push, sizeof(push), r->rows, 1, reads);
        if (forms == (1u << TDM_VK_ACT_F32 | 1u << TDM_VK_ACT_F16)) { /* of experts: one kernel leaves both */
                forms = 1u << TDM_VK_ACT_F16;
                flags |= TDM_VK_NORM_BESIDE;
                push.beside = m->acts[TDM_VK_ACT_F32].address;
        }
        for (uint32_t act = 0; act < TDM_VK_N_ACTS; act++) {
                if (!(forms >> act & 1))
                        continue;
                push.acts = r->flagged ? flagged_acts(r, act) : m->acts[act].address;
                push.scale_sums = r->flagged ? 0 : scale_sums_of(r, act, r->rows);
                dispatch_flagged(r, tdm_vk_pipeline_get(r->device, TDM_VK_NORM, flags, act, tdm_vk_norm_per(m), 0),
                                 &push, sizeof(push), r->rows, 1, reads | leaves);
                flags = few; /* added once */
        }
        r->hidden_index = r->chain_index;
        r->hidden_groups = r->rows;
}

static void norm_for_ffn(struct recorder *r, const struct added *added, const struct tdm_vk_layer *l)
{
        const struct tdm_vk_experts *e = &l->experts;

        if (e->n > 0)
                norm(r, added, l->ffn_norm, (const struct tdm_vk_matrix *[]){ &e->router, &e->gate, &e->up }, 3);
        else
                norm(r, added, l->ffn_norm, (const struct tdm_vk_matrix *[]){ &l->gate, &l->up }, 2);
}

bool tdm_vk_record_joins(const struct tdm_vk_model *m, uint32_t block)
{
        return !tdm_vk_has_streams(m) && (tdm_block_kind(&m->hp, block) == TDM_BLOCK_FFN ?
                                                  !tdm_vk_has_side(m, tdm_block_layer(block)) :
                                                  tdm_block_kind(&m->hp, block) != TDM_BLOCK_ATTENTION ||
                                                          !m->layers[tdm_block_layer(block)].experts.beside);
}

/* What the next block begins with, at the end of this one, where that follows. */
static void end_block(struct recorder *r, uint32_t block, const struct added *added)
{
        struct tdm_vk_model *m = r->m;
        uint32_t next = block + 1;

        if (r->work->slot->n_tiles == 1 && tdm_vk_record_joins(m, block) &&
            (next < r->work->first + r->work->n || r->work->joins)) {
                const struct tdm_vk_layer *l = next <= 2 * m->hp.n_layers ? &m->layers[tdm_block_layer(next)] : NULL;

                r->acts_ready = l != NULL;
                if (l && tdm_block_kind(&m->hp, next) == TDM_BLOCK_ATTENTION) {
                        norm(r, added, l->attn_norm, (const struct tdm_vk_matrix *[]){ &l->q, &l->k, &l->v }, l->n_qkv);
                        return;
                }
                if (l) {
                        norm_for_ffn(r, added, l);
                        return;
                }
        }
        norm(r, added, 0, NULL, 0);
}

/* ---- blocks ---- */

static void embed_rows(struct recorder *r, uint64_t to, uint32_t stride)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_embed_push push = {
                .weights = m->embedding.address,
                .hidden = to,
                .hidden_stride = stride,
                .rows = r->step + r->layout.rows,
                .d = m->hp.d_model,
                .panel_bytes = m->embedding.panel_bytes,
                .scale = m->recipe.embed_scale * (m->embedding.type & TDM_VK_FRAGMENTS ? m->embedding.divisor : 1)
        };

        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_EMBED, m->embedding.type, 0, 0, 0), &push, sizeof(push),
                 r->work->slot->n_rows, TDM_DIV_UP(m->hp.d_model, 256u));
        r->hidden_index = r->chain_index;
        r->hidden_groups = r->chain_groups;
}

/* The kernel that rotates rows too; NULL: rotate.comp and one that does not. A row's last item waits for the others,
 * which takes for granted what chained dispatches do; and partial results are told apart by step and layer, not by
 * tile. */
static struct tdm_vk_pipeline *rotating_kernel(const struct recorder *r, uint32_t kind,
                                               const struct tdm_vk_layer *layer)
{
        const struct tdm_vk_slot *slot = r->work->slot;
        bool several = slot->several || (r->flagged && slot->n_rows > 1);
        struct tdm_vk_pipeline *pipeline = tdm_vk_heads_of(layer) == TDM_VK_HEADS_NORMED ?
                                                   tdm_vk_attend_rotating_kernel(r->m, kind, layer->o.act, several) :
                                                   NULL;

        return pipeline && can_chain(r, pipeline) && !slot->many && slot->n_tiles == 1 ? pipeline : NULL;
}

static void attend(struct recorder *r, uint32_t layer, uint64_t log)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_layer *l = &m->layers[layer];
        const uint32_t kind_index = tdm_vk_kind_of(m, layer);
        const struct tdm_vk_kind *kind = &m->kinds[kind_index];
        uint32_t tile = r->first_row / m->tile_rows, cols = kind->n_heads * kind->head_dim;
        const struct tdm_vk_rotate_push rotate = {
                .qkv = m->y.address,
                .rows = r->step + r->layout.rows,
                .table = r->step + r->layout.tables[kind->group],
                .angles = r->step + r->layout.angles[kind_index],
                .q_gain = l->qkv_bias ? l->qkv_bias : l->q_norm,
                .k_gain = l->k_norm,
                .pieces = m->cache.layers[layer].pieces,
                .page_bytes = m->cache.layers[layer].page_bytes,
                .piece_shift = m->cache.layers[layer].piece_shift,
                .counters = m->counters.address,
                .log = log,
                .part_bytes = (uint32_t)m->kv.layers[layer].part_bytes,
                .first_row = r->first_row,
                .n_heads = kind->n_heads,
                .n_kv_heads = kind->n_kv_heads,
                .head_dim = kind->head_dim,
                .table_entries = m->limits.table_entries,
                .eps = m->recipe.norm_eps,
                .query_scale = m->recipe.layers[layer].query_scale,
        };
        uint32_t item_heads = r->work->slot->item_heads[kind_index];
        bool merges = tdm_vk_attend_merges(m, kind_index, r->work->slot->many, item_heads);
        struct tdm_vk_pipeline *rotating = rotating_kernel(r, kind_index, l);
        const struct tdm_vk_attend_push push = {
                .qkv = m->y.address,
                .rows = rotate.rows,
                .table = rotate.table,
                .items = r->step + r->layout.items[kind_index] +
                         (uint64_t)tile * m->max_items * sizeof(struct tdm_vk_item),
                .partial = m->partial.address + TDM_VK_ARRIVALS_BYTES,
                .acts = r->flagged ? flagged_acts(r, l->o.act) : m->acts[l->o.act].address,
                .scale_sums = r->flagged ? 0 : scale_sums_of(r, l->o.act, r->rows),
                .scale_sums_rows = m->scale_sums_rows,
                .act_scale = l->o.x_scale,
                .pieces = m->cache.layers[layer].pieces,
                .page_bytes = rotate.page_bytes,
                .piece_shift = rotate.piece_shift,
                .part_bytes = rotate.part_bytes,
                .first_row = r->first_row,
                .n_heads = kind->n_heads,
                .n_kv_heads = kind->n_kv_heads,
                .table_entries = m->limits.table_entries,
                .window = kind->window,
                .query_scale = l->query_scale,
                .score_scale = m->attend_f16 ? 1 / l->query_scale : 0,
        };
        struct tdm_vk_attend_rotating_push rotating_push = tdm_vk_attend_rotating(
                &push, m->rotations.address + layer * sizeof(struct tdm_vk_rotation), log, layer + 1);
        const struct tdm_vk_merge_push merge = {
                .partial = push.partial,
                .row_items = r->step + r->layout.row_items[kind_index],
                .sinks = l->sinks,
                .acts = m->acts[l->o.act].address,
                .scale_sums = scale_sums_of(r, l->o.act, r->rows),
                .scale_sums_rows = m->scale_sums_rows,
                .act_scale = l->o.x_scale,
                .first_row = r->first_row,
                .n_heads = kind->n_heads,
                .head_dim = kind->head_dim,
        };
        struct tdm_vk_pipeline *kernel =
                rotating ? rotating : tdm_vk_attend_kernel(m, kind_index, r->work->slot->many, item_heads, l->o.act);

        static_assert(sizeof(rotate) <= TDM_VK_PUSH_BYTES && sizeof(push) <= TDM_VK_PUSH_BYTES,
                      "push constants fit everywhere");
        rotating_push.partial = m->partial.address + tdm_vk_partial_flagged(m);
        if (!rotating)
                dispatch_flagged(r, tdm_vk_pipeline_get(r->device, TDM_VK_ROTATE, m->kv.type, tdm_vk_heads_of(l), 0, 0),
                                 &rotate, sizeof(rotate),
                                 kind->n_heads + (tdm_vk_owns_kv(m, layer) ? 2 * kind->n_kv_heads : 0), r->rows,
                                 r->flagged ? READS_FLAGS : 0);
        set(r, kernel, rotating ? (const void *)&rotating_push : &push, sizeof(push),
            r->flagged ? (rotating ? READS_FLAGS : 0) | LEAVES_FLAGS : 0);
        if (kernel->pipeline)
                r->device->vk.CmdDispatchIndirect(r->commands, r->work->slot->step.buffer,
                                                  tdm_vk_step_args(&r->layout, tile, kind_index));
        done(r, kernel, merges ? r->rows * kind->n_heads / item_heads : TDM_VK_CHAIN_ALL);
        if (!merges)
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_MERGE, 0, l->o.act, 0, 0), &merge, sizeof(merge),
                         TDM_DIV_UP(cols, 1024), r->rows);
}

/* ---- what a layer does beside attention and FFN ---- */

static void side(struct recorder *r, uint32_t op, uint32_t act, const struct tdm_vk_side_push *push, uint32_t n_rows)
{
        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_SIDE, op, act, 0, 0), push, sizeof(*push), n_rows, 1);
}

/* Rounds f32 rows for a matrix, in the place of its form. */
static void round_rows(struct recorder *r, const struct tdm_vk_matrix *matrix, uint64_t x, uint32_t x_stride,
                       uint64_t gain, uint32_t n_rows)
{
        struct tdm_vk_model *m = r->m;

        side(r, TDM_VK_SIDE_COPY, matrix->act,
             &(struct tdm_vk_side_push){ .x = x,
                                         .gain = gain,
                                         .acts = m->acts[matrix->act].address,
                                         .scale_sums = scale_sums_of(r, matrix->act, n_rows),
                                         .scale_sums_rows = m->scale_sums_rows,
                                         .n = matrix->cols,
                                         .x_stride = x_stride },
             n_rows);
}

static uint64_t embedded_sums(const struct recorder *r, uint32_t tile)
{
        const struct tdm_vk_model *m = r->m;

        return m->embedded_sums.size_bytes ? m->embedded_sums.address + (uint64_t)tile * m->scale_sums_rows *
                                                                                (m->hp.d_model / TDM_BLOCK_VALUES) * 8 :
                                             0;
}

/* Once for a submission with such layers: the tokens' rows of the embedding, rounded for what makes inputs of them. */
static void embed_inputs(struct recorder *r)
{
        struct tdm_vk_model *m = r->m;
        uint32_t n_rows = r->work->slot->n_rows, d = m->hp.d_model, tile = 0;
        bool wanted = tdm_vk_has_streams(m) && r->work->first == 0;

        for (uint32_t block = r->work->first; block < r->work->first + r->work->n; block++)
                wanted = wanted || (tdm_block_kind(&m->hp, block) == TDM_BLOCK_FFN &&
                                    m->recipe.layers[tdm_block_layer(block)].has_input);
        if (!wanted)
                return;
        embed_rows(r, m->x0.address, m->hp.d_model);
        for (uint32_t first = 0, n; first < n_rows && m->recipe.per_layer_width > 0; first += n, tile++) {
                n = TDM_MIN(m->tile_rows, n_rows - first);
                side(r, TDM_VK_SIDE_COPY, m->per_layer_proj.act,
                     &(struct tdm_vk_side_push){ .x = m->x0.address + (uint64_t)first * d * sizeof(float),
                                                 .acts = m->embedded.address + tile * m->embedded_bytes,
                                                 .scale_sums = n <= TDM_VK_INT8_ROWS_MAX ? embedded_sums(r, tile) : 0,
                                                 .scale_sums_rows = m->scale_sums_rows,
                                                 .n = d,
                                                 .x_stride = d },
                     n);
        }
}

/* ---- several streams ---- */

/* A push for the tile's rows. */
static struct tdm_vk_streams_push of_streams(const struct recorder *r)
{
        const struct tdm_vk_model *m = r->m;

        return (struct tdm_vk_streams_push){ .hidden = hidden_rows(r),
                                             .n = m->hp.d_model,
                                             .hidden_stride = m->hp.residual_width,
                                             .x_stride = m->hp.d_model,
                                             .y_stride = m->hp.d_model,
                                             .n_streams = m->recipe.n_streams,
                                             .at = m->recipe.active_stream,
                                             .eps = m->recipe.norm_eps };
}

static void run_streams(struct recorder *r, uint32_t op, const struct tdm_vk_streams_push *push, uint32_t n_rows)
{
        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_STREAMS, op, 0, 0, 0), push, sizeof(*push), n_rows, 1);
}

/* The router's numbers of the row at `at`, and what they do to the streams: op. */
static void route_streams(struct recorder *r, const struct tdm_vk_layer *l, uint32_t at, uint32_t op)
{
        struct tdm_vk_model *m = r->m;
        struct tdm_vk_streams_push push = of_streams(r);

        push.at = at;
        push.y = m->acts[TDM_VK_ACT_F32].address;
        push.gain0 = l->altup_norm;
        push.factor = 1.0f / (float)m->hp.d_model;
        run_streams(r, TDM_VK_STREAMS_ROUTE, &push, r->rows);
        multiply(r, (const struct tdm_vk_matrix *[]){ &l->altup_router }, 1, r->rows, m->altup.address,
                 TDM_VK_STREAMS_MAX);
        push = of_streams(r);
        push.x = m->altup.address;
        push.x_stride = TDM_VK_STREAMS_MAX;
        push.coefficients = op == TDM_VK_STREAMS_PREDICT ? l->predict : l->correct;
        run_streams(r, op, &push, r->rows);
}

static void attention_of_streams(struct recorder *r, uint32_t layer, uint64_t log)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_layer *l = &m->layers[layer];
        const struct tdm_vk_kind *kind = &m->kinds[tdm_vk_kind_of(m, layer)];
        const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v }, *o[] = { &l->o }, *left[] = { &l->laurel_l },
                                   *right[] = { &l->laurel_r }, *normed[] = { &l->laurel_l, &l->q, &l->k, &l->v };
        uint32_t rank = m->recipe.laurel_rank, d = m->hp.d_model;
        struct tdm_vk_streams_push join;

        route_streams(r, l, tdm_vk_active_at(m), TDM_VK_STREAMS_PREDICT);
        norm(r, NULL, l->attn_norm, normed, 1 + l->n_qkv);
        multiply(r, left, 1, r->rows, m->rank.address, rank);
        multiply(r, qkv, l->n_qkv, r->rows, m->y.address, (kind->n_heads + 2 * kind->n_kv_heads) * kind->head_dim);
        attend(r, layer, log);
        multiply(r, o, 1, r->rows, m->y.address, d);
        round_rows(r, &l->laurel_r, m->rank.address, rank, 0, r->rows);
        multiply(r, right, 1, r->rows, m->side_y.address, d);
        join = of_streams(r);
        join.x = m->y.address;
        join.other = m->side_y.address;
        join.gain0 = l->post_attn_norm;
        join.gain1 = l->attn_norm;
        join.gain2 = l->laurel_norm;
        run_streams(r, TDM_VK_STREAMS_JOIN, &join, r->rows);
}

static void correct_streams(struct recorder *r, uint32_t layer)
{
        route_streams(r, &r->m->layers[layer], tdm_vk_middle_at(r->m), TDM_VK_STREAMS_CORRECT);
}

static void cut_gate(struct recorder *r, uint32_t layer)
{
        struct tdm_vk_streams_push push = of_streams(r);

        push.y = r->m->y.address;
        push.n = r->m->layers[layer].gate.rows;
        push.y_stride = 2 * push.n;
        push.factor = r->m->recipe.layers[layer].sparsity_scale;
        run_streams(r, TDM_VK_STREAMS_CUT, &push, r->rows);
}

/* The streams of the rows whose logits are wanted, made one: m->folded. */
static void fold_streams(struct recorder *r, uint64_t gather)
{
        struct tdm_vk_model *m = r->m;
        uint32_t n = r->work->n_logits, d = m->hp.d_model;
        struct tdm_vk_streams_push push = of_streams(r);

        push.hidden = r->work->slot->hidden;
        push.gather = gather;
        for (uint32_t i = 1; i < m->recipe.n_streams; i++) {
                const struct tdm_vk_matrix matrix = tdm_vk_matrix_rows(&m->altup_unembd, (i - 1) * d, d);

                push.at = i * d;
                push.y = m->unfolded.address;
                run_streams(r, TDM_VK_STREAMS_GATHER, &push, n);
                round_rows(r, &matrix, m->unfolded.address, d, 0, n);
                multiply(r, (const struct tdm_vk_matrix *[]){ &matrix }, 1, n, m->side_y.address, d);
                push.x = m->side_y.address;
                push.y = m->folded.address;
                push.factor = 1.0f / (float)m->recipe.n_streams;
                run_streams(r, TDM_VK_STREAMS_FOLD, &push, n);
        }
}

/* Rows of the embedding, and the streams beside the first. */
static void embed_block(struct recorder *r)
{
        struct tdm_vk_model *m = r->m;
        uint32_t n_rows = r->work->slot->n_rows, d = m->hp.d_model;

        embed_rows(r, r->work->slot->hidden, m->hp.residual_width);
        for (r->first_row = 0; r->first_row < n_rows && tdm_vk_has_streams(m); r->first_row += m->tile_rows) {
                struct tdm_vk_streams_push push = of_streams(r);

                r->rows = TDM_MIN(m->tile_rows, n_rows - r->first_row);
                round_rows(r, &m->altup_proj, m->x0.address + (uint64_t)r->first_row * d * sizeof(float), d, 0,
                           r->rows);
                for (uint32_t i = 1; i < m->recipe.n_streams; i++) {
                        const struct tdm_vk_matrix matrix = tdm_vk_matrix_rows(&m->altup_proj, (i - 1) * d, d);

                        multiply(r, (const struct tdm_vk_matrix *[]){ &matrix }, 1, r->rows,
                                 hidden_rows(r) + (uint64_t)i * d * sizeof(float), m->hp.residual_width);
                }
                run_streams(r, TDM_VK_STREAMS_LENGTH, &push, r->rows);
        }
}

/* A layer's own input joins the residual, and this is scaled. */
static void end_layer(struct recorder *r, uint32_t layer)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_layer *l = &m->layers[layer];
        uint32_t width = m->recipe.per_layer_width, d = m->hp.d_model, all = m->hp.n_layers * width,
                 tile = r->first_row / m->tile_rows;
        const struct tdm_vk_matrix proj = tdm_vk_matrix_rows(&m->per_layer_proj, layer * width, width);

        if (tdm_vk_has_streams(m))
                correct_streams(r, layer);
        if (!tdm_vk_has_side(m, layer))
                return;
        if (m->recipe.layers[layer].has_input) {
                multiply_rows(r, &proj, r->rows, m->embedded.address + tile * m->embedded_bytes, embedded_sums(r, tile),
                              m->input.address, width);
                side(r, TDM_VK_SIDE_INPUT, 0,
                     &(struct tdm_vk_side_push){ .y = m->input.address,
                                                 .other =
                                                         r->step + r->layout.inputs +
                                                         ((uint64_t)r->first_row * all + layer * width) * sizeof(float),
                                                 .gain = m->per_layer_norm,
                                                 .n = width,
                                                 .y_stride = width,
                                                 .other_stride = all,
                                                 .eps = m->recipe.norm_eps,
                                                 .factor = 1.0f / sqrtf((float)d),
                                                 .factor1 = sqrtf((float)width) },
                     r->rows);
                round_rows(r, &l->input_gate, hidden_rows(r) + tdm_vk_active_at(m) * sizeof(float),
                           m->hp.residual_width, l->correct_scale, r->rows);
                multiply(r, (const struct tdm_vk_matrix *[]){ &l->input_gate }, 1, r->rows, m->input_gate.address,
                         width);
                side(r, TDM_VK_SIDE_GATED, l->input_proj.act,
                     &(struct tdm_vk_side_push){ .x = m->input_gate.address,
                                                 .other = m->input.address,
                                                 .acts = m->acts[l->input_proj.act].address,
                                                 .scale_sums = scale_sums_of(r, l->input_proj.act, r->rows),
                                                 .scale_sums_rows = m->scale_sums_rows,
                                                 .n = width,
                                                 .x_stride = width,
                                                 .other_stride = width },
                     r->rows);
                multiply(r, (const struct tdm_vk_matrix *[]){ &l->input_proj }, 1, r->rows, m->y.address, d);
        }
        /* to every stream but the first, or to the only one */
        for (uint32_t i = m->recipe.n_streams > 1; i < m->recipe.n_streams; i++)
                side(r, TDM_VK_SIDE_ADD, 0,
                     &(struct tdm_vk_side_push){ .x = m->recipe.layers[layer].has_input ? m->y.address : 0,
                                                 .y = hidden_rows(r) + (uint64_t)i * d * sizeof(float),
                                                 .other = l->output_scale,
                                                 .gain = l->input_norm,
                                                 .n = d,
                                                 .x_stride = d,
                                                 .y_stride = m->hp.residual_width,
                                                 .eps = m->recipe.norm_eps },
                     r->rows);
}

static void attention_block(struct recorder *r, uint32_t block, uint64_t log)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_layer *l = &m->layers[tdm_block_layer(block)];
        const struct tdm_vk_kind *kind = &m->kinds[tdm_vk_kind_of(m, tdm_block_layer(block))];
        const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v }, *o[] = { &l->o };

        r->at = tdm_vk_active_at(m);
        if (tdm_vk_has_streams(m)) {
                attention_of_streams(r, tdm_block_layer(block), log);
                return;
        }
        if (!r->acts_ready)
                norm(r, NULL, l->attn_norm, qkv, l->n_qkv);
        r->acts_ready = false;
        multiply_tile(r, qkv, l->n_qkv, (kind->n_heads + 2 * kind->n_kv_heads) * kind->head_dim);
        attend(r, tdm_block_layer(block), log);
        multiply_tile(r, o, 1, m->hp.d_model);
        end_block(r, block, &(struct added){ l->post_attn_norm, l->o_bias });
}

/* A product of the tile's slots with one of each expert's matrices. by_slot: x has a row for each slot. */
static void multiply_experts(struct recorder *r, const struct tdm_vk_experts *e, const struct tdm_vk_matrix *matrix,
                             uint64_t bias, bool by_slot, uint64_t y, uint32_t y_stride)
{
        const struct tdm_vk_model *m = r->m;
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        uint32_t item_rows = tdm_vk_item_rows(e, r->rows), n_slots = r->rows * e->n_used;
        const struct tdm_vk_experts_push push = { .x = m->acts[matrix->act].address,
                                                  .weights = matrix->address,
                                                  .bias = bias,
                                                  .y = y,
                                                  .items = m->choices.address + lists.items,
                                                  .slot_rows = by_slot ? 0 : m->choices.address + lists.slot_rows,
                                                  .panel_bytes = matrix->panel_bytes,
                                                  .n_panels = matrix->n_panels / e->n,
                                                  .cols = matrix->cols,
                                                  .y_stride = y_stride };

        /* items at most: the host does not know how many there are */
        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_MATVEC_EXPERTS, matrix->type, matrix->act, item_rows, 0),
                 &push, sizeof(push), push.n_panels, TDM_MIN(TDM_MIN(e->n, n_slots) + n_slots / item_rows, n_slots));
}

/* The same where rows are F16. With `up` it is gate, up and what follows them, else one matrix. */
static void multiply_experts_f16(struct recorder *r, const struct tdm_vk_layer *l, const struct tdm_vk_matrix *matrix,
                                 const struct tdm_vk_matrix *up, uint64_t bias, uint64_t y, uint32_t y_stride)
{
        const struct tdm_vk_model *m = r->m;
        const struct tdm_vk_experts *e = &l->experts;
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        uint32_t item_rows = tdm_vk_item_rows(e, r->rows), n_slots = r->rows * e->n_used, panels;
        bool single = r->rows == 1;
        const struct tdm_vk_experts_f16_push push = { .x = m->acts[matrix->act].address,
                                                      .y = y,
                                                      .w0 = matrix->address,
                                                      .w1 = up ? up->address : 0,
                                                      .acts = m->acts[e->down.act].address,
                                                      .items = m->choices.address + (single ? lists.ids : lists.items),
                                                      .slot_rows = matrix == &e->down ?
                                                                           0 :
                                                                           m->choices.address + lists.slot_rows,
                                                      .bias0 = bias,
                                                      .bias1 = up ? e->up_bias : 0,
                                                      .panel1 = matrix->n_panels / e->n,
                                                      .panel_bytes = matrix->panel_bytes,
                                                      .cols = matrix->cols,
                                                      .n_out = (up ? 2 : 1) * (matrix->rows / e->n),
                                                      .y_stride = y_stride,
                                                      .y_scale = matrix->y_scale,
                                                      .act_scale = e->down.x_scale };
        struct tdm_vk_pipeline *pipeline =
                tdm_vk_expert_kernel(r->device, matrix, item_rows, up ? 1 + l->activation : 0, &panels);

        /* items at most: the host does not know how many there are */
        dispatch(r, pipeline, &push, sizeof(push), TDM_DIV_UP(push.panel1, panels),
                 single ? e->n_used : TDM_MIN(TDM_MIN(e->n, n_slots) + n_slots / item_rows, n_slots));
}

static void multiply_router(struct recorder *r, const struct tdm_vk_matrix *router)
{
        struct tdm_vk_matmul_push push;
        uint32_t n_panels, rows;
        struct tdm_vk_pipeline *pipeline = tdm_vk_router_kernel(r->device, router, r->rows, &rows);

        if (!pipeline) {
                multiply(r, &router, 1, r->rows, r->m->router.address, router->rows);
                return;
        }
        tdm_vk_matmul_group(r->m, &router, 1, &push, &n_panels);
        push.y = r->m->router.address;
        push.n_rows = r->rows;
        push.y_stride = router->rows;
        dispatch(r, pipeline, &push, sizeof(push), TDM_DIV_UP(router->rows, TDM_VK_ROUTER_OUTS),
                 TDM_DIV_UP(r->rows, rows));
}

/* From the tile's rounded rows to the sums over their experts, in y. Experts beside a dense FFN have a norm of their
 * own, which is made when they are chosen. */
static void run_experts(struct recorder *r, const struct tdm_vk_layer *l, uint64_t y)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_experts *e = &l->experts;
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        const uint64_t at = m->choices.address, hidden = m->hidden_exps.address;
        const bool f16 = tdm_vk_is_f16(&e->gate), fuses = f16 && tdm_vk_experts_fuse(e);
        const struct tdm_vk_choose_push choose = { .z = m->router.address,
                                                   .bias = e->router_bias,
                                                   .ids = at + lists.ids,
                                                   .weights = at + lists.weights,
                                                   .scales = e->scales,
                                                   .z_stride = e->n,
                                                   .z_scale = e->z_scale,
                                                   .n_experts = e->n,
                                                   .n_used = e->n_used };
        const struct tdm_vk_group_push group = { .ids = at + lists.ids,
                                                 .slots = at + lists.slots,
                                                 .slot_rows = at + lists.slot_rows,
                                                 .items = at + lists.items,
                                                 .n_rows = r->rows,
                                                 .n_experts = e->n,
                                                 .n_used = e->n_used,
                                                 .item_rows = tdm_vk_item_rows(e, r->rows) };
        const struct tdm_vk_gelu_push gelu = {
                .y = hidden, .acts = m->acts[e->down.act].address, .act_scale = e->down.x_scale, .d_ff = e->d_expert
        };
        const struct tdm_vk_experts_sum_push sum = { .parts = m->parts_exps.address,
                                                     .slots = f16 && r->rows == 1 ? 0 : at + lists.slots,
                                                     .weights = at + lists.weights,
                                                     .y = y,
                                                     .d = m->hp.d_model,
                                                     .n_used = e->n_used };

        multiply_router(r, &e->router);
        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_CHOOSE, 0, 0, 0, 0), &choose, sizeof(choose), r->rows, 1);
        if (!f16 || r->rows > 1) /* a single row's slots are its ranks */
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_GROUP, 0, 0, 0, 0), &group, sizeof(group), 1, 1);
        if (e->beside)
                norm(r, NULL, e->norm, (const struct tdm_vk_matrix *[]){ &e->gate, &e->up }, 2);
        if (fuses) {
                multiply_experts_f16(r, l, &e->gate, &e->up, e->gate_bias, 0, 0);
        } else if (f16) {
                multiply_experts_f16(r, l, &e->gate, NULL, e->gate_bias, hidden, 2 * e->d_expert);
                multiply_experts_f16(r, l, &e->up, NULL, e->up_bias, hidden + e->d_expert * sizeof(float),
                                     2 * e->d_expert);
        } else if (e->gate_up_is_one) {
                multiply_experts(r, e, &e->gate, 0, false, hidden, 2 * e->d_expert);
        } else {
                multiply_experts(r, e, &e->gate, e->gate_bias, false, hidden, 2 * e->d_expert);
                multiply_experts(r, e, &e->up, e->up_bias, false, hidden + e->d_expert * sizeof(float),
                                 2 * e->d_expert);
        }
        if (!fuses)
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_GELU, l->activation, e->down.act, 0, 0), &gelu,
                         sizeof(gelu), TDM_DIV_UP(e->d_expert, 1024), r->rows * e->n_used);
        if (f16)
                multiply_experts_f16(r, l, &e->down, NULL, e->down_bias, m->parts_exps.address, m->hp.d_model);
        else
                multiply_experts(r, e, &e->down, e->down_bias, true, m->parts_exps.address, m->hp.d_model);
        dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_SUM_EXPERTS, 0, 0, 0, 0), &sum, sizeof(sum),
                 TDM_DIV_UP(m->hp.d_model, 256u), r->rows);
}

static void ffn_block(struct recorder *r, uint32_t block)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_layer *l = &m->layers[tdm_block_layer(block)];
        const struct tdm_vk_matrix *gate_up[] = { &l->gate, &l->up }, *down[] = { &l->down };
        const struct tdm_vk_gelu_push gelu = { .y = m->y.address,
                                               .acts = m->acts[l->down.act].address,
                                               .scale_sums = scale_sums_of(r, l->down.act, r->rows),
                                               .scale_sums_rows = m->scale_sums_rows,
                                               .act_scale = l->down.x_scale,
                                               .d_ff = l->gate.rows };
        const bool is_few = r->flagged && r->rows > 1; /* the row of `down` is too long for several in shared memory */
        struct tdm_vk_matmul_push push;

        r->at = tdm_vk_middle_at(m);
        if (l->experts.beside) {
                norm(r, NULL, l->experts.router_gain, (const struct tdm_vk_matrix *[]){ &l->experts.router }, 1);
                run_experts(r, l, m->experts_y.address);
                norm(r, NULL, l->ffn_norm, gate_up, 2);
        } else if (!r->acts_ready) {
                norm_for_ffn(r, NULL, l);
        }
        r->acts_ready = false;
        if (!tdm_vk_has_dense(l)) {
                run_experts(r, l, m->y.address);
                end_block(r, block, &(struct added){ l->post_ffw_norm, l->down_bias });
                end_layer(r, tdm_block_layer(block));
                return;
        }
        if (!m->recipe.layers[tdm_block_layer(block)].is_sparse && tdm_vk_gate_up_push(m, l, r->rows, &push)) {
                unsigned flags = r->flagged ? READS_FLAGS : 0;
                uint32_t panels, rows;
                struct tdm_vk_pipeline *pipeline;

                if (is_few) {
                        pipeline = tdm_vk_f16_rows_kernel(r->device, &l->gate, 2 * l->gate.n_panels, r->rows,
                                                          1 + l->activation, &panels);
                        rows = r->rows;
                } else
                        pipeline = tdm_vk_gelu_kernel(r->device, l, r->rows, &panels, &rows);
                push.flag_stride = m->flag_stride;
                if (r->flagged)
                        push.x = flagged_acts(r, l->gate.act);
                if (r->flagged && !is_few && tdm_vk_matrices_flag(r->device, &l->down, l->down.n_panels)) {
                        push.acts = flagged_acts(r, l->down.act);
                        push.out_scale_sums = 0;
                        flags |= LEAVES_FLAGS;
                }
                dispatch_flagged(r, pipeline, &push, sizeof(push), TDM_DIV_UP(l->gate.n_panels, panels),
                                 TDM_DIV_UP(r->rows, rows), flags);
        } else {
                multiply(r, gate_up, 2, r->rows, m->y.address, 2 * l->gate.rows);
                if (m->recipe.layers[tdm_block_layer(block)].is_sparse)
                        cut_gate(r, tdm_block_layer(block));
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_GELU, l->activation, l->down.act, 0, 0), &gelu,
                         sizeof(gelu), TDM_DIV_UP(l->gate.rows, 1024), r->rows);
        }
        if (is_few)
                multiply(r, down, 1, r->rows, m->y.address, m->hp.d_model);
        else
                multiply_tile(r, down, 1, m->hp.d_model);
        if (l->experts.beside)
                side(r, TDM_VK_SIDE_BOTH, 0,
                     &(struct tdm_vk_side_push){ .x = m->experts_y.address,
                                                 .y = m->y.address,
                                                 .gain = l->experts.post_dense,
                                                 .gain1 = l->experts.post_experts,
                                                 .n = m->hp.d_model,
                                                 .x_stride = m->hp.d_model,
                                                 .y_stride = m->hp.d_model,
                                                 .eps = m->recipe.norm_eps },
                     r->rows);
        end_block(r, block, &(struct added){ l->post_ffw_norm, l->down_bias });
        end_layer(r, tdm_block_layer(block));
}

/* To the host: all logits, or what the sampler wants to know of them and to see. */
static void bring_logits(struct recorder *r)
{
        const struct tdm_vk_model *m = r->m;
        uint32_t n = r->work->n_logits;
        uint64_t maxima_bytes = (uint64_t)m->logits_rows * m->maxima_stride * sizeof(float);
        const VkBufferCopy whole = { .size = (uint64_t)n * m->logits_stride * sizeof(float) };
        const struct tdm_vk_logits_push logits = { .logits = m->logits.address,
                                                   .maxima = m->scan.address,
                                                   .tops = m->scan.address + maxima_bytes,
                                                   .host_tops = m->scan_host.address + tdm_vk_scan_tops(m),
                                                   .host_sums = m->scan_host.address,
                                                   .n_vocab = m->hp.n_vocab,
                                                   .logits_stride = m->logits_stride,
                                                   .maxima_stride = m->maxima_stride,
                                                   .tops_stride = m->tops_stride,
                                                   .sums_stride = m->sums_stride };
        const struct tdm_vk_gather_push gather = { .logits = m->logits.address,
                                                   .host = m->logits_host.address,
                                                   .maxima = m->scan.address,
                                                   .wanted = r->step + r->layout.wanted +
                                                             (uint64_t)r->work->first_logit * TDM_VK_WANTED_STRIDE *
                                                                     sizeof(uint32_t),
                                                   .found = m->scan_host.address + tdm_vk_scan_found(m),
                                                   .logits_stride = m->logits_stride,
                                                   .maxima_stride = m->maxima_stride,
                                                   .wanted_stride = TDM_VK_WANTED_STRIDE };

        for (uint32_t phase = 0; phase < 2 && !m->logits_whole; phase++)
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_LOGITS, phase, 0, 0, 0), &logits, sizeof(logits),
                         TDM_DIV_UP(m->hp.n_vocab, TDM_VK_LOGITS_EACH), n);
        if (!m->logits_whole)
                dispatch(r, tdm_vk_pipeline_get(r->device, TDM_VK_GATHER, 0, 0, 0, 0), &gather, sizeof(gather), n, 1);
        if (m->logits_whole) {
                barrier_all(r);
                r->before = DONE;
                r->device->vk.CmdCopyBuffer(r->commands, m->logits.buffer, m->logits_host.buffer, 1, &whole);
        }
}

static void head_block(struct recorder *r)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_matrix *output[] = { &m->output };
        struct tdm_vk_norm_push push = { .hidden = r->work->slot->hidden,
                                         .gain = m->output_norm,
                                         .act_scale = m->output.x_scale,
                                         .acts = m->acts[m->output.act].address,
                                         .scale_sums = scale_sums_of(r, m->output.act, r->work->n_logits),
                                         .scale_sums_rows = m->scale_sums_rows,
                                         .gather = r->step + r->layout.gather + r->work->first_logit * sizeof(uint32_t),
                                         .d = m->hp.d_model,
                                         .eps = m->recipe.norm_eps };

        if (tdm_vk_has_streams(m)) {
                fold_streams(r, push.gather);
                push.hidden = m->folded.address;
                push.hidden_stride = m->hp.d_model;
        }
        dispatch(r,
                 tdm_vk_pipeline_get(r->device, TDM_VK_NORM, tdm_vk_has_streams(m) ? 0 : TDM_VK_NORM_GATHER,
                                     m->output.act, tdm_vk_norm_per(m), 0),
                 &push, sizeof(push), r->work->n_logits, 1);
        multiply(r, output, 1, r->work->n_logits, m->logits.address, m->logits_stride);
        bring_logits(r);
}

static void blocks(struct recorder *r)
{
        struct tdm_vk_model *m = r->m;
        const struct tdm_vk_slot *slot = r->work->slot;
        uint64_t log = m->cache.log.address + r->work->log_half * (m->cache.log.size_bytes / 2),
                 log_bytes = tdm_vk_kv_log_row_bytes(&m->cache) * slot->n_rows;

        embed_inputs(r);
        for (uint32_t block = r->work->first; block < r->work->first + r->work->n; block++) {
                enum tdm_block_kind kind = tdm_block_kind(&m->hp, block);

                if (kind == TDM_BLOCK_EMBED)
                        embed_block(r);
                if (kind == TDM_BLOCK_HEAD && r->work->n_logits)
                        head_block(r);
                if (kind != TDM_BLOCK_ATTENTION && kind != TDM_BLOCK_FFN)
                        continue;
                for (r->first_row = 0; r->first_row < slot->n_rows; r->first_row += m->tile_rows) {
                        r->rows = TDM_MIN(m->tile_rows, slot->n_rows - r->first_row);
                        if (kind == TDM_BLOCK_ATTENTION)
                                attention_block(r, block, log);
                        else
                                ffn_block(r, block);
                }
                if (kind == TDM_BLOCK_ATTENTION && log)
                        log += log_bytes;
        }
}

/* ---- recordings ---- */

static bool fits(const struct tdm_vk_recording *c, const struct tdm_vk_work *w, bool profiling)
{
        return c->used && c->slot == w->slot && c->hidden == w->slot->hidden && c->first == w->first && c->n == w->n &&
               c->n_rows == w->slot->n_rows && c->first_logit == w->first_logit && c->n_logits == w->n_logits &&
               c->log_half == w->log_half && c->many == w->slot->many && c->several == w->slot->several &&
               c->flags == w->slot->flags && memcmp(c->item_heads, w->slot->item_heads, sizeof(c->item_heads)) == 0 &&
               c->upload == w->upload && c->download == w->download && c->joins == w->joins && c->joined == w->joined &&
               c->profiled == profiling;
}

static VkResult record(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_vk_recording *c)
{
        const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
        const VkBufferCopy rows = { .size = (uint64_t)work->slot->n_rows * m->hp.residual_width * sizeof(float) },
                           gave_up = { .dstOffset = TDM_VK_GAVE_UP_WORD * sizeof(uint32_t), .size = sizeof(uint32_t) };
        struct recorder r = { .m = m,
                              .device = m->device,
                              .commands = c->commands,
                              .recording = c,
                              .work = work,
                              .step = work->slot->step.address,
                              .acts_ready = work->joined };
        VkResult result = m->device->vk.BeginCommandBuffer(c->commands, &begin);

        if (result != VK_SUCCESS)
                return result;
        tdm_vk_step_layout(m, &r.layout);
        r.flagged = tdm_vk_record_flags(m, work);
        c->n_marks = 0;
        if (m->device->profiling) {
                m->device->vk.CmdResetQueryPool(c->commands, m->device->queries, 0, TDM_VK_MAX_QUERIES);
                m->device->vk.CmdWriteTimestamp(c->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, m->device->queries,
                                                0);
        }
        if (work->upload)
                m->device->vk.CmdCopyBuffer(c->commands, m->hidden_host.buffer, work->slot->hidden_buffer.buffer, 1,
                                            &rows);
        if (m->device->chained)
                /* word 0 says that a kernel gave up: it is kept */
                m->device->vk.CmdFillBuffer(c->commands, m->chain.buffer, sizeof(uint32_t),
                                            TDM_VK_FLAGGED_Y - sizeof(uint32_t) +
                                                    (r.flagged ? work->slot->n_rows * (uint64_t)m->flag_stride : 0),
                                            0);
        barrier_all(&r);
        blocks(&r);
        barrier_all(&r);
        if (work->download)
                m->device->vk.CmdCopyBuffer(c->commands, work->slot->hidden_buffer.buffer, m->hidden_host.buffer, 1,
                                            &rows);
        if (r.chain_index)
                m->device->vk.CmdCopyBuffer(c->commands, m->chain.buffer, m->counters.buffer, 1, &gave_up);
        if (work->download || r.chain_index)
                barrier_all(&r);
        return m->device->vk.EndCommandBuffer(c->commands);
}

int tdm_vk_record_dry(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_error *err)
{
        VkResult result = record(m, work, &m->recordings[0]);

        return result == VK_SUCCESS ? tdm_vk_pipelines_check(m->device, err) :
                                      tdm_vk_fault(m->device, "recording commands", result, err);
}

void tdm_vk_record_forget(struct tdm_vk_model *m)
{
        for (unsigned i = 0; i < TDM_VK_RECORDINGS; i++)
                m->recordings[i].used = 0;
}

int tdm_vk_record_check(struct tdm_vk_model *m, struct tdm_error *err)
{
        const volatile uint32_t *counters = (const volatile uint32_t *)m->counters.map;

        return tdm_vk_chain_check(m->device, &counters[TDM_VK_GAVE_UP_WORD], err);
}

int tdm_vk_record(struct tdm_vk_model *m, const struct tdm_vk_work *w, struct tdm_vk_recording **ret,
                  struct tdm_error *err)
{
        struct tdm_vk_recording *oldest = &m->recordings[0];
        VkResult result;

        for (unsigned i = 0; i < TDM_VK_RECORDINGS; i++) {
                struct tdm_vk_recording *c = &m->recordings[i];

                if (fits(c, w, m->device->profiling)) {
                        c->used = ++m->clock;
                        *ret = c;
                        return 0;
                }
                if (c->used < oldest->used)
                        oldest = c;
        }
        oldest->used = 0;
        result = record(m, w, oldest);
        if (result != VK_SUCCESS)
                return tdm_vk_fault(m->device, "recording commands", result, err);
        if (tdm_vk_pipelines_check(m->device, err) != 0)
                return TDM_E_DEVICE_FAULT;
        m->device->counters.recordings++;
        oldest->slot = w->slot;
        oldest->hidden = w->slot->hidden;
        oldest->first = w->first;
        oldest->n = w->n;
        oldest->n_rows = w->slot->n_rows;
        oldest->first_logit = w->first_logit;
        oldest->n_logits = w->n_logits;
        oldest->log_half = w->log_half;
        oldest->many = w->slot->many;
        oldest->several = w->slot->several;
        oldest->flags = w->slot->flags;
        memcpy(oldest->item_heads, w->slot->item_heads, sizeof(oldest->item_heads));
        oldest->upload = w->upload;
        oldest->download = w->download;
        oldest->joins = w->joins;
        oldest->joined = w->joined;
        oldest->profiled = m->device->profiling;
        oldest->used = ++m->clock;
        *ret = oldest;
        return 0;
}
