/* Dispatches the kernels of attention and of experts; emit.c has those of all other operations. */
#include <assert.h>

#include "gpu-worker/vulkan/record/private.h"

/* The kernel that rotates rows too; NULL: rotate.comp and one that does not. A row's last item waits for the others,
 * which takes for granted what chained dispatches do. Partial results are told apart by step and layer, not by tile. */
static struct tdm_vk_pipeline *rotating_kernel(const struct emitter *e, const struct tdm_vk_op *op,
                                               const struct tdm_vk_class *class)
{
        struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel_if_any(e->m, op, TDM_VK_PART_ALL, class, NULL, NULL);

        return pipeline && chain_takes(&e->chain, pipeline) ? pipeline : NULL;
}

void emit_attend(struct emitter *e, const struct tdm_vk_op *op)
{
        struct tdm_vk_model *m = e->m;
        const uint32_t layer = op->layer;
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);
        const uint32_t kind_index = tdm_vk_kind_of(m, layer);
        const struct tdm_vk_kind *kind = &m->kinds[kind_index];
        uint32_t tile = e->first_row / m->tile_rows, cols = kind->n_heads * kind->head_dim;
        const struct tdm_vk_rotate_push rotate = {
                .qkv = m->arrays[TDM_VK_Y].address,
                .rows = e->step + e->layout.rows,
                .table = e->step + e->layout.tables[kind->group],
                .angles = e->step + e->layout.angles[kind_index],
                .q_gain = l->qkv_bias ? l->qkv_bias : l->q_norm,
                .k_gain = l->k_norm,
                .pieces = m->cache.layers[layer].pieces,
                .page_bytes = m->cache.layers[layer].page_bytes,
                .piece_shift = m->cache.layers[layer].piece_shift,
                .counters = m->counters.address,
                .log = e->log,
                .part_bytes = (uint32_t)m->kv.layers[layer].part_bytes,
                .first_row = e->first_row,
                .n_heads = kind->n_heads,
                .n_kv_heads = kind->n_kv_heads,
                .head_dim = kind->head_dim,
                .table_entries = m->limits.table_entries,
                .eps = m->recipe.norm_eps,
                .query_scale = m->recipe.layers[layer].query_scale,
        };
        uint32_t item_heads = e->work->slot->item_heads[kind_index];
        bool merges = tdm_vk_attend_merges(m, kind_index, e->work->slot->many, item_heads);
        const struct tdm_vk_class class = { .n_rows = e->n_rows,
                                            .many = e->work->slot->many,
                                            .several = e->work->slot->several || (e->is_flagged && e->n_rows > 1),
                                            .may_rotate = !e->work->slot->many && e->work->slot->n_tiles == 1,
                                            .item_heads = item_heads };
        struct tdm_vk_pipeline *rotating = rotating_kernel(e, op, &class);
        const struct tdm_vk_attend_push push = {
                .qkv = m->arrays[TDM_VK_Y].address,
                .rows = rotate.rows,
                .table = rotate.table,
                .items = e->step + e->layout.items[kind_index] +
                         (uint64_t)tile * m->attention.max_items * sizeof(struct tdm_vk_item),
                .partial = m->attention.partial.address + TDM_VK_ARRIVALS_BYTES,
                .acts = e->is_flagged ? emit_flagged_acts(e, l->o.act) : m->rounded.acts[l->o.act].address,
                .scale_sums = e->is_flagged ? 0 : emit_scale_sums(e, l->o.act, e->n_rows),
                .scale_sums_rows = m->rounded.sums_rows,
                .act_scale = l->o.x_scale,
                .pieces = m->cache.layers[layer].pieces,
                .page_bytes = rotate.page_bytes,
                .piece_shift = rotate.piece_shift,
                .part_bytes = rotate.part_bytes,
                .first_row = e->first_row,
                .n_heads = kind->n_heads,
                .n_kv_heads = kind->n_kv_heads,
                .table_entries = m->limits.table_entries,
                .window = kind->window,
                .query_scale = l->query_scale,
                /* attend.comp calls it p_softcap */
                .score_scale = m->attention.is_f16 ? 1 / l->query_scale : m->recipe.layers[layer].attention_softcap,
        };
        struct tdm_vk_attend_rotating_push rotating_push = tdm_vk_attend_rotating(
                &push, m->attention.rotations.address + layer * sizeof(struct tdm_vk_rotation), e->log, layer + 1);
        const struct tdm_vk_merge_push merge = {
                .partial = push.partial,
                .row_items = e->step + e->layout.row_items[kind_index],
                .sinks = l->sinks,
                .acts = m->rounded.acts[l->o.act].address,
                .scale_sums = emit_scale_sums(e, l->o.act, e->n_rows),
                .scale_sums_rows = m->rounded.sums_rows,
                .act_scale = l->o.x_scale,
                .first_row = e->first_row,
                .n_heads = kind->n_heads,
                .head_dim = kind->head_dim,
        };
        const unsigned flags = e->is_flagged ? (rotating ? READS_FLAGS : 0) | LEAVES_FLAGS : 0;

        static_assert(sizeof(rotate) <= TDM_VK_PUSH_BYTES && sizeof(push) <= TDM_VK_PUSH_BYTES,
                      "push constants fit everywhere");
        rotating_push.partial = m->attention.partial.address + tdm_vk_partial_flagged(m);
        if (!rotating)
                chain_dispatch(&e->chain, tdm_vk_op_kernel(m, op, TDM_VK_PART_ROTATE, &class, NULL, NULL), &rotate,
                               sizeof(rotate), kind->n_heads + (tdm_vk_owns_kv(m, layer) ? 2 * kind->n_kv_heads : 0),
                               e->n_rows, e->is_flagged ? READS_FLAGS : 0);
        chain_dispatch_indirect(&e->chain,
                                rotating ? rotating : tdm_vk_op_kernel(m, op, TDM_VK_PART_ATTEND, &class, NULL, NULL),
                                rotating ? (const void *)&rotating_push : &push, sizeof(push),
                                e->work->slot->step.buffer, tdm_vk_step_args(&e->layout, tile, kind_index),
                                merges ? e->n_rows * kind->n_heads / item_heads : TDM_VK_CHAIN_ALL, flags);
        if (!merges)
                emit_dispatch(e, tdm_vk_op_kernel(m, op, TDM_VK_PART_MERGE, &class, NULL, NULL), &merge, sizeof(merge),
                              TDM_DIV_UP(cols, 1024), e->n_rows);
}

/* ---- experts ---- */

/* Items at most: the host does not know how many there are. */
static uint32_t most_items(const struct emitter *e, const struct tdm_vk_experts *experts)
{
        const uint32_t item_rows = tdm_vk_item_rows(experts, e->n_rows), n_slots = e->n_rows * experts->n_used;

        return TDM_MIN(TDM_MIN(experts->n, n_slots) + n_slots / item_rows, n_slots);
}

static void multiply_router(struct emitter *e, const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        const struct tdm_vk_matrix *router = op->matrices[0];
        struct tdm_vk_matmul_push push;
        uint32_t n_panels, panels, rows;
        struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel(e->m, op, TDM_VK_PART_PRODUCTS, class, &panels, &rows);

        if (pipeline->shader != TDM_VK_ROUTER) {
                emit_product(e, op, 1, class);
                return;
        }
        tdm_vk_matmul_group(e->m, &router, 1, &push, &n_panels);
        push.y = emit_address(e, &op->y);
        push.n_rows = e->n_rows;
        push.y_stride = op->y.stride;
        emit_dispatch(e, pipeline, &push, sizeof(push), TDM_DIV_UP(router->rows, TDM_VK_ROUTER_OUTS),
                      TDM_DIV_UP(e->n_rows, rows));
}

void emit_route(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_experts *x = &tdm_vk_op_layer(m, op)->experts;
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const uint64_t at = m->choices.address;
        const struct tdm_vk_choose_push choose = { .z = emit_address(e, &op->y),
                                                   .bias = x->router_bias,
                                                   .ids = at + lists.ids,
                                                   .weights = at + lists.weights,
                                                   .scales = x->scales,
                                                   .z_stride = x->n,
                                                   .z_scale = x->z_scale,
                                                   .n_experts = x->n,
                                                   .n_used = x->n_used };
        const struct tdm_vk_group_push group = { .ids = at + lists.ids,
                                                 .slots = at + lists.slots,
                                                 .slot_rows = at + lists.slot_rows,
                                                 .items = at + lists.items,
                                                 .n_rows = e->n_rows,
                                                 .n_experts = x->n,
                                                 .n_used = x->n_used,
                                                 .item_rows = tdm_vk_item_rows(x, e->n_rows) };
        struct tdm_vk_pipeline *grouping = tdm_vk_op_kernel_if_any(m, op, TDM_VK_PART_GROUP, &class, NULL, NULL);

        multiply_router(e, op, &class);
        emit_dispatch(e, tdm_vk_op_kernel(m, op, TDM_VK_PART_CHOOSE, &class, NULL, NULL), &choose, sizeof(choose),
                      e->n_rows, 1);
        if (grouping)
                emit_dispatch(e, grouping, &group, sizeof(group), 1, 1);
}

/* A product of the tile's slots with one of each expert's matrices. by_slot: x has a row for each slot. */
static void multiply_plain(struct emitter *e, const struct tdm_vk_op *op, unsigned part, uint64_t bias, bool by_slot,
                           uint32_t at)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_experts *x = &tdm_vk_op_layer(m, op)->experts;
        const struct tdm_vk_matrix *matrix = op->matrices[part];
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const struct tdm_vk_experts_push push = { .x = m->rounded.acts[matrix->act].address,
                                                  .weights = matrix->address,
                                                  .bias = bias,
                                                  .y = emit_address(e, &op->y) + at * sizeof(float),
                                                  .items = m->choices.address + lists.items,
                                                  .slot_rows = by_slot ? 0 : m->choices.address + lists.slot_rows,
                                                  .panel_bytes = matrix->panel_bytes,
                                                  .n_panels = matrix->n_panels / x->n,
                                                  .cols = matrix->cols,
                                                  .y_stride = op->y.stride };

        emit_dispatch(e, tdm_vk_op_kernel(m, op, part, &class, NULL, NULL), &push, sizeof(push), push.n_panels,
                      most_items(e, x));
}

/* The same where rows are F16. With `up` it is gate, up and what follows them, else one matrix. */
static void multiply_f16(struct emitter *e, const struct tdm_vk_op *op, unsigned part, const struct tdm_vk_matrix *up,
                         uint64_t bias, uint32_t at)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_experts *x = &tdm_vk_op_layer(m, op)->experts;
        const struct tdm_vk_matrix *matrix = op->matrices[up ? 0 : part];
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const bool single = e->n_rows == 1;
        const struct tdm_vk_experts_f16_push push = { .x = m->rounded.acts[matrix->act].address,
                                                      .y = up ? 0 : emit_address(e, &op->y) + at * sizeof(float),
                                                      .w0 = matrix->address,
                                                      .w1 = up ? up->address : 0,
                                                      .acts = m->rounded.acts[x->down.act].address,
                                                      .items = m->choices.address + (single ? lists.ids : lists.items),
                                                      .slot_rows = matrix == &x->down ?
                                                                           0 :
                                                                           m->choices.address + lists.slot_rows,
                                                      .bias0 = bias,
                                                      .bias1 = up ? x->up_bias : 0,
                                                      .panel1 = matrix->n_panels / x->n,
                                                      .panel_bytes = matrix->panel_bytes,
                                                      .cols = matrix->cols,
                                                      .n_out = (up ? 2 : 1) * (matrix->rows / x->n),
                                                      .y_stride = up ? 0 : op->y.stride,
                                                      .y_scale = matrix->y_scale,
                                                      .act_scale = x->down.x_scale };
        uint32_t panels;
        struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel(m, op, part, &class, &panels, NULL);

        emit_dispatch(e, pipeline, &push, sizeof(push), TDM_DIV_UP(push.panel1, panels),
                      single ? x->n_used : most_items(e, x));
}

/* The same cases as experts_gate_up_kernels() in kernels/choose.c. */
void emit_experts_gate_up(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_experts *x = &tdm_vk_op_layer(m, op)->experts;
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const struct tdm_vk_gelu_push gelu = { .y = emit_address(e, &op->y),
                                               .acts = m->rounded.acts[x->down.act].address,
                                               .act_scale = x->down.x_scale,
                                               .d_ff = x->d_expert };

        if (tdm_vk_is_f16(&x->gate) && tdm_vk_experts_fuse(x)) {
                multiply_f16(e, op, TDM_VK_PART_FUSED, &x->up, x->gate_bias, 0);
                return;
        }
        if (tdm_vk_is_f16(&x->gate)) {
                multiply_f16(e, op, 0, NULL, x->gate_bias, 0);
                multiply_f16(e, op, 1, NULL, x->up_bias, x->d_expert);
        } else if (x->gate_up_is_one) {
                multiply_plain(e, op, 0, 0, false, 0);
        } else {
                multiply_plain(e, op, 0, x->gate_bias, false, 0);
                multiply_plain(e, op, 1, x->up_bias, false, x->d_expert);
        }
        emit_dispatch(e, tdm_vk_op_kernel(m, op, TDM_VK_PART_ACTIVATE, &class, NULL, NULL), &gelu, sizeof(gelu),
                      TDM_DIV_UP(x->d_expert, 1024), e->n_rows * x->n_used);
}

void emit_experts_down(struct emitter *e, const struct tdm_vk_op *op)
{
        if (tdm_vk_is_f16(op->matrices[0]))
                multiply_f16(e, op, 0, NULL, op->bias, 0);
        else
                multiply_plain(e, op, 0, op->bias, true, 0);
}

void emit_experts_sum(struct emitter *e, const struct tdm_vk_op *op)
{
        const struct tdm_vk_model *m = e->m;
        const struct tdm_vk_experts *x = &tdm_vk_op_layer(m, op)->experts;
        const struct tdm_vk_experts_lists lists = tdm_vk_experts_lists(m);
        const struct tdm_vk_class class = { .n_rows = e->n_rows };
        const bool is_ranked = tdm_vk_is_f16(&x->gate) && e->n_rows == 1; /* a single row's slots are its ranks */
        const struct tdm_vk_experts_sum_push push = { .parts = emit_address(e, &op->x),
                                                      .slots = is_ranked ? 0 : m->choices.address + lists.slots,
                                                      .weights = m->choices.address + lists.weights,
                                                      .y = emit_address(e, &op->y),
                                                      .d = m->hp.d_model,
                                                      .n_used = x->n_used };

        emit_dispatch(e, tdm_vk_op_kernel(m, op, TDM_VK_PART_FIRST, &class, NULL, NULL), &push, sizeof(push),
                      TDM_DIV_UP(m->hp.d_model, 256u), e->n_rows);
}
