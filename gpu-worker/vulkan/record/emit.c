/* Dispatches the kernels of each operation; those of attention and of experts are in emit-layers.c. Where a block
 * follows another in one run, the end of the one and the beginning of the next are one kernel (norm.comp). */
#include "gpu-worker/vulkan/record/private.h"

/* ---- addresses ---- */

uint64_t emit_flagged_y(const struct emitter *e)
{
        return e->m->chain.address + TDM_VK_FLAGGED_Y;
}

uint64_t emit_flagged_acts(const struct emitter *e, uint32_t act)
{
        return e->m->chain.address + e->m->flagged.acts[act];
}

uint64_t emit_scale_sums(const struct emitter *e, uint32_t act, uint32_t n_rows)
{
        return n_rows <= TDM_VK_INT8_ROWS_MAX ? e->m->rounded.sums[act].address : 0;
}

static uint64_t hidden_rows(const struct emitter *e)
{
        return e->work->slot->hidden + (uint64_t)e->first_row * e->m->hp.residual_width * sizeof(float);
}

uint64_t emit_address(const struct emitter *e, const struct tdm_vk_rows *rows)
{
        const uint64_t from_tile = ((uint64_t)e->first_row * rows->stride + rows->at) * sizeof(float);

        switch (rows->array) {
        case TDM_VK_NOWHERE:
                return 0;
        case TDM_VK_HIDDEN:
                return hidden_rows(e) + rows->at * sizeof(float);
        case TDM_VK_STEP_INPUTS:
                return e->step + e->layout.inputs + from_tile;
        case TDM_VK_X0:
                return e->m->arrays[TDM_VK_X0].address + from_tile;
        default:
                return e->m->arrays[rows->array].address + rows->at * sizeof(float);
        }
}

/* The tile's rounded rows of the embedding, and their scales. */
static uint64_t embedded_acts(const struct emitter *e)
{
        return e->m->arrays[TDM_VK_EMBEDDED].address + e->first_row / e->m->tile_rows * e->m->side.embedded_bytes;
}

static uint64_t embedded_sums(const struct emitter *e)
{
        const struct tdm_vk_model *m = e->m;

        return m->side.embedded_sums.size_bytes ?
                       m->side.embedded_sums.address + (uint64_t)(e->first_row / m->tile_rows) * m->rounded.sums_rows *
                                                               (m->hp.d_model / TDM_BLOCK_VALUES) * 8 :
                       0;
}

/* Rows of an operation in this recording. */
static uint32_t recorded_rows(const struct emitter *e, const struct tdm_vk_op *op)
{
        return op->rows == TDM_VK_ROWS_STEP   ? e->work->slot->n_rows :
               op->rows == TDM_VK_ROWS_LOGITS ? e->work->n_logits :
                                                e->n_rows;
}

static uint64_t gathered_rows(const struct emitter *e)
{
        return e->step + e->layout.gather + e->work->first_logit * sizeof(uint32_t);
}

void emit_dispatch(struct emitter *e, struct tdm_vk_pipeline *pipeline, const void *push, uint32_t push_bytes,
                   uint32_t x, uint32_t y)
{
        chain_dispatch(&e->chain, pipeline, push, push_bytes, x, y, 0);
}

/* The only kernel of an operation. */
static void dispatch_op(struct emitter *e, const struct tdm_vk_op *op, const void *push, uint32_t push_bytes,
                        uint32_t x, uint32_t y)
{
        const struct tdm_vk_class class = { .n_rows = recorded_rows(e, op) };

        emit_dispatch(e, tdm_vk_op_kernel(e->m, op, TDM_VK_PART_FIRST, &class, NULL, NULL), push, push_bytes, x, y);
}

/* ---- products ---- */

unsigned tdm_vk_matmul_group(const struct tdm_vk_model *m, const struct tdm_vk_matrix *const *matrices,
                             unsigned n_matrices, struct tdm_vk_matmul_push *ret, uint32_t *ret_panels)
{
        const struct tdm_vk_matrix *a = matrices[0];
        unsigned n = tdm_vk_group_of(matrices, n_matrices, ret_panels);

        *ret = (struct tdm_vk_matmul_push){ .x = m->rounded.acts[a->act].address,
                                            .w0 = a->address,
                                            .panel1 = UINT32_MAX,
                                            .panel2 = UINT32_MAX,
                                            .panel_bytes = a->panel_bytes,
                                            .cols = a->cols,
                                            .n_out = a->rows,
                                            .n_rows = 1,
                                            .y_scale = a->y_scale,
                                            .scale_sums = m->rounded.sums[a->act].address,
                                            .scale_sums_rows = m->rounded.sums_rows };
        for (unsigned k = 1, panel = a->n_panels; k < n; panel += matrices[k++]->n_panels) {
                *(k == 1 ? &ret->w1 : &ret->w2) = matrices[k]->address;
                *(k == 1 ? &ret->panel1 : &ret->panel2) = panel;
                ret->n_out += matrices[k]->rows;
        }
        return n;
}

void tdm_vk_gate_up_push(const struct tdm_vk_model *m, const struct tdm_vk_layer *l, uint32_t n_rows,
                         struct tdm_vk_matmul_push *ret)
{
        *ret = (struct tdm_vk_matmul_push){ .x = m->rounded.acts[l->gate.act].address,
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
                                            .acts = m->rounded.acts[l->down.act].address,
                                            .out_scale_sums = m->rounded.sums[l->down.act].address,
                                            .scale_sums_rows = m->rounded.sums_rows };
}

/* A product of a single row or a few. It leaves flagged words, and reads such words where the kernel before left some.
 * Each type has a dispatch, and they run side by side. */
static void product_flagged(struct emitter *e, const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        unsigned reads = e->chain.before == WAITING_FLAGGED ? READS_FLAGS : 0, part = 0;
        uint64_t y = emit_flagged_y(e);

        for (unsigned i = 0, n; i < op->n_matrices; i += n) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels, panels;
                struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel(e->m, op, part++, class, &panels, NULL);

                n = tdm_vk_matmul_group(e->m, op->matrices + i, op->n_matrices - i, &push, &n_panels);
                if (reads)
                        push.x = emit_flagged_acts(e, op->matrices[i]->act);
                push.y = y;
                push.n_rows = e->n_rows;
                push.flag_stride = e->m->flagged.stride;
                e->chain.is_beside = i > 0;
                chain_dispatch(&e->chain, pipeline, &push, sizeof(push), TDM_DIV_UP(n_panels, panels), 1,
                               reads | LEAVES_FLAGS);
                y += push.n_out * sizeof(uint64_t);
        }
}

void emit_product(struct emitter *e, const struct tdm_vk_op *op, unsigned n_matrices, const struct tdm_vk_class *class)
{
        const bool is_embedded = op->x.array == TDM_VK_EMBEDDED;
        uint64_t y = emit_address(e, &op->y);
        unsigned part = 0;

        for (unsigned i = 0, n; i < n_matrices; i += n) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels, panels, rows;
                struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel(e->m, op, part++, class, &panels, &rows);

                n = tdm_vk_matmul_group(e->m, op->matrices + i, n_matrices - i, &push, &n_panels);
                push.x = is_embedded ? embedded_acts(e) : push.x;
                push.scale_sums = is_embedded ? embedded_sums(e) : push.scale_sums;
                push.y = y;
                push.n_rows = class->n_rows;
                push.y_stride = op->y.stride;
                for (uint32_t groups; push.panel0 < n_panels; push.panel0 += groups * panels) {
                        groups = TDM_MIN(TDM_DIV_UP(n_panels - push.panel0, panels), e->m->device->max_groups_x);
                        e->chain.is_beside = i > 0 || push.panel0 > 0;
                        emit_dispatch(e, pipeline, &push, sizeof(push), groups, TDM_DIV_UP(class->n_rows, rows));
                }
                y += push.n_out * sizeof(float);
        }
}

static void emit_multiply(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_class class = { .n_rows = recorded_rows(e, op), .is_flagged = e->is_flagged };

        if (tdm_vk_op_is_flagged(op, &class))
                product_flagged(e, op, &class);
        else
                emit_product(e, op, op->n_matrices, &class);
}

static void emit_activation(struct emitter *e, const struct tdm_vk_op *op, unsigned part,
                            const struct tdm_vk_rows *from, const struct tdm_vk_matrix *down)
{
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const struct tdm_vk_gelu_push push = { .y = emit_address(e, from),
                                               .acts = e->m->rounded.acts[down->act].address,
                                               .scale_sums = emit_scale_sums(e, down->act, e->n_rows),
                                               .scale_sums_rows = e->m->rounded.sums_rows,
                                               .act_scale = down->x_scale,
                                               .d_ff = from->stride / 2 };

        emit_dispatch(e, tdm_vk_op_kernel(e->m, op, part, &class, NULL, NULL), &push, sizeof(push),
                      TDM_DIV_UP(push.d_ff, 1024), e->n_rows);
}

static void emit_gate_up(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(e->m, op);
        const struct tdm_vk_class class = { .n_rows = e->n_rows, .is_flagged = e->is_flagged };
        unsigned flags = e->is_flagged ? READS_FLAGS : 0;
        struct tdm_vk_matmul_push push;
        uint32_t panels, rows;
        struct tdm_vk_pipeline *fused = tdm_vk_op_kernel_if_any(e->m, op, TDM_VK_PART_FUSED, &class, &panels, &rows);

        if (!fused) {
                emit_product(e, op, 2, &class);
                emit_activation(e, op, TDM_VK_PART_ACTIVATE, &op->y, &l->down);
                return;
        }
        tdm_vk_gate_up_push(e->m, l, e->n_rows, &push);
        push.flag_stride = e->m->flagged.stride;
        if (e->is_flagged)
                push.x = emit_flagged_acts(e, l->gate.act);
        if (e->is_flagged && e->n_rows == 1 && tdm_vk_matrices_flag(e->m->device, &l->down, l->down.n_panels)) {
                push.acts = emit_flagged_acts(e, l->down.act);
                push.out_scale_sums = 0;
                flags |= LEAVES_FLAGS;
        }
        chain_dispatch(&e->chain, fused, &push, sizeof(push), TDM_DIV_UP(l->gate.n_panels, panels),
                       TDM_DIV_UP(e->n_rows, rows), flags);
}

/* ---- norms ---- */

/* Whether there are few enough rows that a workgroup for each leaves room for the next kernel to begin early. Rows that
 * an expert's router reads too have a kernel of their own. */
static bool is_few(const struct emitter *e, const struct tdm_vk_op *rounds)
{
        for (unsigned i = 0; rounds && i < rounds->n_matrices; i++)
                if (rounds->matrices[i]->act == TDM_VK_ACT_F32)
                        return false;
        return e->n_rows > 1 && e->n_rows <= TDM_VK_FEW_ROWS_MAX && !e->work->slot->many &&
               (e->is_flagged || e->chain.before == WAITING_CHAINED);
}

/* op: NORM or ADD. rounds: the operation for whose matrices rows are rounded; NULL: for none. */
static void emit_norm(struct emitter *e, const struct tdm_vk_op *op, const struct tdm_vk_op *rounds)
{
        struct tdm_vk_model *m = e->m;
        const bool reads_flags = e->chain.before == WAITING_FLAGGED, adds = op->kind == TDM_VK_OP_ADD;
        const struct tdm_vk_class class = { .n_rows = e->n_rows,
                                            .is_fused = adds && rounds,
                                            .is_few = is_few(e, rounds),
                                            .rehearses = reads_flags ||
                                                         (is_few(e, rounds) && e->chain.before == WAITING_CHAINED) };
        struct tdm_vk_norm_push push = { .y = reads_flags ? emit_flagged_y(e) : m->arrays[TDM_VK_Y].address,
                                         .add_gain = !adds        ? 0 :
                                                     op->gains[0] ? op->gains[0] :
                                                                    op->bias,
                                         .hidden = hidden_rows(e) + op->at * sizeof(float),
                                         .hidden_stride = m->hp.residual_width,
                                         .gain = rounds ? rounds->gains[0] : 0,
                                         .d = m->hp.d_model,
                                         .y_stride = reads_flags ? m->flagged.stride / (uint32_t)sizeof(float) :
                                                                   m->hp.d_model,
                                         .eps = m->recipe.norm_eps,
                                         .scale_sums_rows = m->rounded.sums_rows,
                                         .hidden_index = e->hidden_index,
                                         .hidden_wait = e->is_flagged || class.is_few ? e->hidden_groups : 0,
                                         .flag_stride = m->flagged.stride,
                                         .TDM_VK_NORM_LEAVES = (uint32_t)op->leaves };
        const unsigned reads = reads_flags ? READS_FLAGS : 0, leaves = e->is_flagged && rounds ? LEAVES_FLAGS : 0;
        uint32_t forms = 0;

        for (unsigned i = 0; rounds && i < rounds->n_matrices; i++) {
                forms |= 1u << rounds->matrices[i]->act;
                push.act_scale = rounds->matrices[i]->x_scale;
        }
        if (forms == (1u << TDM_VK_ACT_F32 | 1u << TDM_VK_ACT_F16)) /* of experts: one kernel leaves both */
                push.beside = m->rounded.acts[TDM_VK_ACT_F32].address;
        for (uint32_t act = 0; act <= TDM_VK_ACT_NONE; act++) {
                struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel_if_any(m, op, act, &class, NULL, NULL);

                if (!pipeline)
                        continue;
                if (act != TDM_VK_ACT_NONE) {
                        push.acts = e->is_flagged ? emit_flagged_acts(e, act) : m->rounded.acts[act].address;
                        push.scale_sums = e->is_flagged ? 0 : emit_scale_sums(e, act, e->n_rows);
                }
                chain_dispatch(&e->chain, pipeline, &push, sizeof(push), e->n_rows, 1, reads | leaves);
        }
        e->hidden_index = e->chain.index;
        e->hidden_groups = e->n_rows;
}

/* If the next block follows, the norm that it begins with comes at the end of this one. */
static void emit_add(struct emitter *e, const struct tdm_vk_op *op, bool is_followed)
{
        e->is_begun = is_followed && op->fused_with != TDM_VK_NO_OP && e->work->slot->n_tiles == 1;
        emit_norm(e, op, e->is_begun ? &e->m->program->ops[op->fused_with] : NULL);
}

static void emit_head_norm(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_matrix *output = op->matrices[0];
        struct tdm_vk_norm_push push = { .hidden = e->work->slot->hidden,
                                         .gain = op->gains[0],
                                         .act_scale = output->x_scale,
                                         .acts = m->rounded.acts[output->act].address,
                                         .scale_sums = emit_scale_sums(e, output->act, e->work->n_logits),
                                         .scale_sums_rows = m->rounded.sums_rows,
                                         .gather = gathered_rows(e),
                                         .d = m->hp.d_model,
                                         .hidden_stride = m->hp.residual_width,
                                         .eps = m->recipe.norm_eps };

        if (op->x.array != TDM_VK_HIDDEN) {
                push.hidden = emit_address(e, &op->x);
                push.hidden_stride = op->x.stride;
        }
        dispatch_op(e, op, &push, sizeof(push), e->work->n_logits, 1);
}

/* ---- beside attention and FFN ---- */

static void emit_embed(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_embed_push push = {
                .weights = m->embedding.address,
                .hidden = emit_address(e, &op->y),
                .hidden_stride = op->y.stride,
                .rows = e->step + e->layout.rows,
                .d = m->hp.d_model,
                .panel_bytes = m->embedding.panel_bytes,
                .scale = m->recipe.embed_scale * (m->embedding.type & TDM_VK_FRAGMENTS ? m->embedding.divisor : 1)
        };

        dispatch_op(e, op, &push, sizeof(push), e->work->slot->n_rows, TDM_DIV_UP(m->hp.d_model, 256u));
        e->hidden_index = e->chain.index;
        e->hidden_groups = e->chain.groups;
}

static void emit_side(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const uint32_t n_rows = recorded_rows(e, op);
        const bool has_norm = op->variant != TDM_VK_SIDE_COPY && op->variant != TDM_VK_SIDE_GATED;
        struct tdm_vk_side_push push = { .x = emit_address(e, &op->x),
                                         .other = op->coefficients ? op->coefficients : emit_address(e, &op->other),
                                         .gain = op->gains[0],
                                         .gain1 = op->gains[1],
                                         .n = op->n,
                                         .x_stride = op->x.stride,
                                         .other_stride = op->other.stride,
                                         .eps = has_norm ? m->recipe.norm_eps : 0,
                                         .factor = op->factors[0],
                                         .factor1 = op->factors[1] };

        if (op->y.array == TDM_VK_EMBEDDED) {
                push.acts = embedded_acts(e);
                push.scale_sums = n_rows <= TDM_VK_INT8_ROWS_MAX ? embedded_sums(e) : 0;
        } else if (op->n_matrices > 0) {
                push.acts = m->rounded.acts[op->matrices[0]->act].address;
                push.scale_sums = emit_scale_sums(e, op->matrices[0]->act, n_rows);
        } else {
                push.y = emit_address(e, &op->y);
                push.y_stride = op->y.stride;
        }
        if (op->n_matrices > 0)
                push.scale_sums_rows = m->rounded.sums_rows;
        dispatch_op(e, op, &push, sizeof(push), n_rows, 1);
}

static void emit_streams(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const bool is_gathered = op->rows == TDM_VK_ROWS_LOGITS;
        const struct tdm_vk_streams_push push = { .hidden = is_gathered ? e->work->slot->hidden : hidden_rows(e),
                                                  .x = emit_address(e, &op->x),
                                                  .other = emit_address(e, &op->other),
                                                  .y = op->n_matrices ? m->rounded.acts[op->matrices[0]->act].address :
                                                                        emit_address(e, &op->y),
                                                  .coefficients = op->coefficients,
                                                  .gain0 = op->gains[0],
                                                  .gain1 = op->gains[1],
                                                  .gain2 = op->gains[2],
                                                  .gather = is_gathered ? gathered_rows(e) : 0,
                                                  .n = op->n,
                                                  .hidden_stride = m->hp.residual_width,
                                                  .x_stride = op->x.stride,
                                                  .y_stride = op->y.stride,
                                                  .n_streams = m->recipe.n_streams,
                                                  .at = op->at,
                                                  .eps = m->recipe.norm_eps,
                                                  .factor = op->factors[0] };

        dispatch_op(e, op, &push, sizeof(push), recorded_rows(e, op), 1);
}

/* To the host: all logits, or what the sampler wants to know of them and to see. */
static void emit_logits(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        uint32_t n = e->work->n_logits;
        uint64_t maxima_bytes = (uint64_t)m->logits.rows * m->logits.maxima_stride * sizeof(float);
        const VkBufferCopy whole = { .size = (uint64_t)n * m->logits.stride * sizeof(float) };
        const struct tdm_vk_logits_push logits = { .logits = m->arrays[TDM_VK_LOGITS_Y].address,
                                                   .maxima = m->logits.scan.address,
                                                   .tops = m->logits.scan.address + maxima_bytes,
                                                   .host_tops = m->logits.scan_host.address + tdm_vk_scan_tops(m),
                                                   .host_sums = m->logits.scan_host.address,
                                                   .n_vocab = m->hp.n_vocab,
                                                   .logits_stride = m->logits.stride,
                                                   .maxima_stride = m->logits.maxima_stride,
                                                   .tops_stride = m->logits.tops_stride,
                                                   .sums_stride = m->logits.sums_stride };
        const struct tdm_vk_gather_push gather = { .logits = m->arrays[TDM_VK_LOGITS_Y].address,
                                                   .host = m->logits.host.address,
                                                   .maxima = m->logits.scan.address,
                                                   .wanted = e->step + e->layout.wanted +
                                                             (uint64_t)e->work->first_logit * TDM_VK_WANTED_STRIDE *
                                                                     sizeof(uint32_t),
                                                   .found = m->logits.scan_host.address + tdm_vk_scan_found(m),
                                                   .logits_stride = m->logits.stride,
                                                   .maxima_stride = m->logits.maxima_stride,
                                                   .wanted_stride = TDM_VK_WANTED_STRIDE };

        const struct tdm_vk_class class = { .n_rows = n };

        if (m->logits.is_whole) {
                chain_barrier_all(&e->chain);
                e->chain.before = WAITING_DONE;
                m->device->vk.CmdCopyBuffer(e->chain.commands, m->arrays[TDM_VK_LOGITS_Y].buffer, m->logits.host.buffer,
                                            1, &whole);
                return;
        }
        for (unsigned phase = 0; phase < 2; phase++)
                emit_dispatch(e, tdm_vk_op_kernel(m, op, phase, &class, NULL, NULL), &logits, sizeof(logits),
                              TDM_DIV_UP(m->hp.n_vocab, TDM_VK_LOGITS_EACH), n);
        emit_dispatch(e, tdm_vk_op_kernel(m, op, 2, &class, NULL, NULL), &gather, sizeof(gather), n, 1);
}

/* ---- blocks ---- */

/* is_followed: the next block is recorded too, or what it begins with is wanted at the end. */
static void emit_op(struct emitter *e, const struct tdm_vk_op *op, bool is_followed)
{
        switch (op->kind) {
        case TDM_VK_OP_EMBED:
                emit_embed(e, op);
                return;
        case TDM_VK_OP_NORM:
                if (!op->begins || !e->is_begun)
                        emit_norm(e, op, op);
                e->is_begun = false;
                return;
        case TDM_VK_OP_ADD:
                emit_add(e, op, is_followed);
                return;
        case TDM_VK_OP_SIDE:
                emit_side(e, op);
                return;
        case TDM_VK_OP_STREAMS:
                emit_streams(e, op);
                return;
        case TDM_VK_OP_MULTIPLY:
        case TDM_VK_OP_DOWN:
                emit_multiply(e, op);
                return;
        case TDM_VK_OP_ATTEND:
                emit_attend(e, op);
                return;
        case TDM_VK_OP_GATE_UP:
                emit_gate_up(e, op);
                return;
        case TDM_VK_OP_ACTIVATE:
                emit_activation(e, op, TDM_VK_PART_FIRST, &op->x, op->matrices[0]);
                return;
        case TDM_VK_OP_ROUTE:
                emit_route(e, op);
                return;
        case TDM_VK_OP_EXPERTS_GATE_UP:
                emit_experts_gate_up(e, op);
                return;
        case TDM_VK_OP_EXPERTS_DOWN:
                emit_experts_down(e, op);
                return;
        case TDM_VK_OP_EXPERTS_SUM:
                emit_experts_sum(e, op);
                return;
        case TDM_VK_OP_HEAD_NORM:
                emit_head_norm(e, op);
                return;
        case TDM_VK_OP_LOGITS:
                emit_logits(e, op);
                return;
        }
}

/* Tile by tile; what is of the whole step comes with the first. */
static void emit_tiles(struct emitter *e, const struct tdm_vk_ops *ops, bool is_followed)
{
        const struct tdm_vk_model *m = e->m;
        const uint32_t n_rows = e->work->slot->n_rows;

        for (e->first_row = 0; e->first_row < n_rows; e->first_row += m->tile_rows) {
                e->n_rows = e->chain.n_rows = TDM_MIN(m->tile_rows, n_rows - e->first_row);
                for (uint32_t i = ops->first; i < ops->first + ops->n; i++)
                        if (m->program->ops[i].rows != TDM_VK_ROWS_STEP || e->first_row == 0)
                                emit_op(e, &m->program->ops[i], is_followed);
        }
        e->first_row = 0;
}

void emit_blocks(struct emitter *e)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_program *p = m->program;
        const uint32_t end = e->work->first + e->work->n;
        const uint64_t log_bytes = tdm_vk_kv_log_row_bytes(&m->cache) * e->work->slot->n_rows;
        bool wants_inputs = false;

        e->log = m->cache.log.address + e->work->log_half * (m->cache.log.size_bytes / 2);
        for (uint32_t block = e->work->first; block < end; block++)
                wants_inputs = wants_inputs || p->wants_inputs[block];
        if (wants_inputs)
                emit_tiles(e, &p->inputs, false);
        for (uint32_t block = e->work->first; block < end; block++) {
                const struct tdm_vk_ops *ops = &p->blocks[block];

                if (tdm_block_kind(&m->hp, block) != TDM_BLOCK_HEAD)
                        emit_tiles(e, ops, block + 1 < end || e->work->joins);
                for (uint32_t i = ops->first; i < ops->first + ops->n && e->work->n_logits; i++)
                        if (tdm_block_kind(&m->hp, block) == TDM_BLOCK_HEAD)
                                emit_op(e, &p->ops[i], false);
                if (tdm_block_kind(&m->hp, block) == TDM_BLOCK_ATTENTION && e->log)
                        e->log += log_bytes;
        }
}
