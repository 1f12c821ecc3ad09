/* Makes the list of a model's operations: see program.h. Nothing else in the Vulkan device knows their order. Each
 * function below reads from top to bottom as its part of a step runs. */
#include <math.h>

#include "gpu-worker/vulkan/program/program.h"

#define OPS_GROWTH 64u

struct builder {
        const struct tdm_vk_model *m;
        struct tdm_vk_program *program;
        uint32_t layer;
        bool is_out_of_memory;
};

/* ---- pieces ---- */

static struct tdm_vk_rows rows_in(enum tdm_vk_array array, uint32_t at, uint32_t stride)
{
        return (struct tdm_vk_rows){ .array = array, .at = at, .stride = stride };
}

/* Returns the operation, for what only some have: it may move when the next one is added. */
static struct tdm_vk_op *add_op(struct builder *b, const struct tdm_vk_op *op)
{
        static struct tdm_vk_op dropped;
        struct tdm_vk_program *p = b->program;

        if (p->n_ops == p->n_max) {
                struct tdm_vk_op *ops = realloc(p->ops, (p->n_max + OPS_GROWTH) * sizeof(*ops));

                if (!ops) {
                        b->is_out_of_memory = true;
                        return &dropped;
                }
                p->ops = ops;
                p->n_max += OPS_GROWTH;
        }
        p->ops[p->n_ops] = *op;
        p->ops[p->n_ops].layer = b->layer;
        p->ops[p->n_ops].fused_with = TDM_VK_NO_OP;
        return &p->ops[p->n_ops++];
}

static const struct tdm_vk_matrix *matrix_part_of(struct builder *b, const struct tdm_vk_matrix *matrix, uint32_t first,
                                                  uint32_t n)
{
        struct tdm_vk_program *p = b->program;

        p->parts[p->n_parts] = tdm_vk_matrix_rows(matrix, first, n);
        return &p->parts[p->n_parts++];
}

static void add_multiply(struct builder *b, const struct tdm_vk_matrix *matrix, struct tdm_vk_rows y)
{
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_MULTIPLY,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { matrix },
                                       .n_matrices = 1,
                                       .y = y });
}

/* Rounds rows of f32 for a matrix. */
static struct tdm_vk_op *add_rounding(struct builder *b, const struct tdm_vk_matrix *matrix, struct tdm_vk_rows x,
                                      uint64_t gain)
{
        return add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                              .rows = TDM_VK_ROWS_TILE,
                                              .variant = TDM_VK_SIDE_COPY,
                                              .matrices = { matrix },
                                              .n_matrices = 1,
                                              .x = x,
                                              .gains = { gain },
                                              .n = matrix->cols });
}

static struct tdm_vk_op *add_norm(struct builder *b, uint64_t gain, uint32_t at)
{
        return add_op(b, &(struct tdm_vk_op){
                                 .kind = TDM_VK_OP_NORM, .rows = TDM_VK_ROWS_TILE, .gains = { gain }, .at = at });
}

/* A block's input where no norm stands before it: the residual itself, once for each form of rounded rows. */
static void add_inputs(struct builder *b, const struct tdm_vk_matrix *const *matrices, unsigned n, uint32_t at)
{
        for (unsigned i = 0, earlier; i < n; i++) {
                for (earlier = 0; earlier < i && matrices[earlier]->act != matrices[i]->act;)
                        earlier++;
                if (earlier == i)
                        add_rounding(b, matrices[i], rows_in(TDM_VK_HIDDEN, at, b->m->hp.residual_width), 0);
        }
}

static void set_matrices(struct tdm_vk_op *op, const struct tdm_vk_matrix *const *matrices, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                op->matrices[op->n_matrices++] = matrices[i];
}

/* Where attention and FFN are parallel, attention's sum is left behind the residual, and the FFN's is made of that. */
static void add_sum(struct builder *b, uint64_t gain, uint64_t bias, uint32_t at, bool is_ffn)
{
        const int32_t d = tdm_vk_is_parallel(b->m) ? (int32_t)b->m->hp.d_model : 0;

        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_ADD,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .gains = { gain },
                                       .bias = bias,
                                       .at = at + (is_ffn ? (uint32_t)d : 0),
                                       .leaves = is_ffn ? -d : d });
}

/* ---- several streams ---- */

static struct tdm_vk_op *add_streams(struct builder *b, uint32_t variant, enum tdm_vk_op_rows rows, uint32_t at)
{
        const uint32_t d = b->m->hp.d_model;

        return add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_STREAMS,
                                              .rows = rows,
                                              .variant = variant,
                                              .x = rows_in(TDM_VK_NOWHERE, 0, d),
                                              .y = rows_in(TDM_VK_NOWHERE, 0, d),
                                              .n = d,
                                              .at = at });
}

/* The router's numbers of the row at `at`, and what they do to the streams. */
static void route_streams(struct builder *b, uint32_t at, uint32_t variant)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        struct tdm_vk_op *op = add_streams(b, TDM_VK_STREAMS_ROUTE, TDM_VK_ROWS_TILE, at);

        op->matrices[0] = &l->altup_router;
        op->n_matrices = 1;
        op->gains[0] = l->altup_norm;
        op->factors[0] = 1.0f / (float)m->hp.d_model;
        add_multiply(b, &l->altup_router, rows_in(TDM_VK_ALTUP, 0, TDM_VK_STREAMS_MAX));
        op = add_streams(b, variant, TDM_VK_ROWS_TILE, m->recipe.active_stream);
        op->x = rows_in(TDM_VK_ALTUP, 0, TDM_VK_STREAMS_MAX);
        op->coefficients = variant == TDM_VK_STREAMS_PREDICT ? l->predict : l->correct;
}

/* The streams of the rows whose logits are wanted, made one. */
static void fold_streams(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const uint32_t d = m->hp.d_model;

        for (uint32_t i = 1; i < m->recipe.n_streams; i++) {
                const struct tdm_vk_matrix *matrix = matrix_part_of(b, &m->side.altup_unembd, (i - 1) * d, d);
                struct tdm_vk_op *op = add_streams(b, TDM_VK_STREAMS_GATHER, TDM_VK_ROWS_LOGITS, i * d);

                op->y = rows_in(TDM_VK_UNFOLDED, 0, d);
                add_rounding(b, matrix, rows_in(TDM_VK_UNFOLDED, 0, d), 0)->rows = TDM_VK_ROWS_LOGITS;
                add_multiply(b, matrix, rows_in(TDM_VK_SIDE_Y, 0, d));
                b->program->ops[b->program->n_ops - 1].rows = TDM_VK_ROWS_LOGITS;
                op = add_streams(b, TDM_VK_STREAMS_FOLD, TDM_VK_ROWS_LOGITS, i * d);
                op->x = rows_in(TDM_VK_SIDE_Y, 0, d);
                op->y = rows_in(TDM_VK_FOLDED, 0, d);
                op->factors[0] = 1.0f / (float)m->recipe.n_streams;
        }
}

/* ---- blocks ---- */

static void add_embed(struct builder *b, struct tdm_vk_rows y)
{
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_EMBED,
                                       .rows = TDM_VK_ROWS_STEP,
                                       .matrices = { &b->m->embedding },
                                       .n_matrices = 1,
                                       .y = y });
}

/* Once in a submission: the tokens' rows of the embedding, rounded for what makes inputs of layers of them. */
static void build_inputs(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_rows x0 = rows_in(TDM_VK_X0, 0, m->hp.d_model);

        if (m->recipe.per_layer_width == 0 && !tdm_vk_has_streams(m))
                return;
        add_embed(b, x0);
        if (m->recipe.per_layer_width > 0)
                add_rounding(b, &m->side.per_layer_proj, x0, 0)->y.array = TDM_VK_EMBEDDED;
}

/* Rows of the embedding, and the streams beside the first. */
static void build_embed(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const uint32_t d = m->hp.d_model;

        add_embed(b, rows_in(TDM_VK_HIDDEN, 0, m->hp.residual_width));
        if (!tdm_vk_has_streams(m))
                return;
        add_rounding(b, &m->side.altup_proj, rows_in(TDM_VK_X0, 0, d), 0);
        for (uint32_t i = 1; i < m->recipe.n_streams; i++)
                add_multiply(b, matrix_part_of(b, &m->side.altup_proj, (i - 1) * d, d),
                             rows_in(TDM_VK_HIDDEN, i * d, m->hp.residual_width));
        add_streams(b, TDM_VK_STREAMS_LENGTH, TDM_VK_ROWS_TILE, m->recipe.active_stream);
}

static void add_attend(struct builder *b)
{
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_ATTEND,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { &b->m->layers[b->layer].o },
                                       .n_matrices = 1 });
}

/* One norm of all heads of queries, and one of those of keys, before they are turned. */
static void add_wide_norms(struct builder *b, struct tdm_vk_rows heads)
{
        const struct tdm_vk_layer *l = &b->m->layers[b->layer];

        for (unsigned keys = 0; keys < (l->n_qkv > 1 ? 2u : 1u); keys++)
                add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                               .rows = TDM_VK_ROWS_TILE,
                                               .variant = TDM_VK_SIDE_NORM,
                                               .y = rows_in(heads.array, keys ? l->q.rows : 0, heads.stride),
                                               .gains = { keys ? l->k_wide : l->q_wide },
                                               .n = keys ? l->k.rows : l->q.rows });
}

static void build_attention(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        const struct tdm_vk_kind *kind = &m->kinds[tdm_vk_kind_of(m, b->layer)];
        const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v };
        const struct tdm_vk_rows sums = rows_in(TDM_VK_Y, 0, m->hp.d_model),
                                 heads = rows_in(TDM_VK_Y, 0, (kind->n_heads + 2 * kind->n_kv_heads) * kind->head_dim),
                                 rank = rows_in(TDM_VK_RANK, 0, m->recipe.laurel_rank),
                                 low_rank = rows_in(TDM_VK_SIDE_Y, 0, m->hp.d_model);
        const bool has_streams = tdm_vk_has_streams(m);
        struct tdm_vk_op *op;

        if (has_streams)
                route_streams(b, tdm_vk_active_at(m), TDM_VK_STREAMS_PREDICT);
        if (l->attn_norm) {
                op = add_norm(b, l->attn_norm, tdm_vk_active_at(m));
                op->begins = !has_streams && !tdm_vk_is_parallel(m);
                if (has_streams)
                        set_matrices(op, (const struct tdm_vk_matrix *[]){ &l->laurel_l }, 1);
                set_matrices(op, qkv, l->n_qkv);
        } else {
                add_inputs(b, qkv, l->n_qkv, tdm_vk_active_at(m));
        }
        if (has_streams)
                add_multiply(b, &l->laurel_l, rank);
        op = add_op(b, &(struct tdm_vk_op){
                               .kind = TDM_VK_OP_MULTIPLY, .rows = TDM_VK_ROWS_TILE, .y = heads, .is_measured = true });
        set_matrices(op, qkv, l->n_qkv);
        if (l->q_wide)
                add_wide_norms(b, heads);
        add_attend(b);
        add_multiply(b, &l->o, sums);
        b->program->ops[b->program->n_ops - 1].is_measured = true;
        if (!has_streams) {
                add_sum(b, l->post_attn_norm, l->o_bias, tdm_vk_active_at(m), false);
                return;
        }
        add_rounding(b, &l->laurel_r, rank, 0);
        add_multiply(b, &l->laurel_r, low_rank);
        op = add_streams(b, TDM_VK_STREAMS_JOIN, TDM_VK_ROWS_TILE, m->recipe.active_stream);
        op->x = sums;
        op->other = low_rank;
        op->gains[0] = l->post_attn_norm;
        op->gains[1] = l->attn_norm;
        op->gains[2] = l->laurel_norm;
}

/* From rounded rows to the sums over their experts. Experts beside a dense FFN have a norm of their own. */
static void build_experts(struct builder *b, enum tdm_vk_array y)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_experts *e = &m->layers[b->layer].experts;
        const struct tdm_vk_rows parts = rows_in(TDM_VK_PARTS_EXPS, 0, m->hp.d_model);

        b->program->slots_of_row = TDM_MAX(b->program->slots_of_row, e->n_used);
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_ROUTE,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { &e->router },
                                       .n_matrices = 1,
                                       .y = rows_in(TDM_VK_ROUTER_Y, 0, e->n) });
        if (e->beside)
                set_matrices(add_norm(b, e->norm, tdm_vk_middle_at(m)),
                             (const struct tdm_vk_matrix *[]){ &e->gate, &e->up }, 2);
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_EXPERTS_GATE_UP,
                                       .rows = TDM_VK_ROWS_SLOTS,
                                       .matrices = { &e->gate, &e->up, &e->down },
                                       .n_matrices = 3,
                                       .y = rows_in(TDM_VK_HIDDEN_EXPS, 0, 2 * e->d_expert) });
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_EXPERTS_DOWN,
                                       .rows = TDM_VK_ROWS_SLOTS,
                                       .matrices = { &e->down },
                                       .n_matrices = 1,
                                       .bias = e->down_bias,
                                       .y = parts });
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_EXPERTS_SUM,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .x = parts,
                                       .y = rows_in(y, 0, m->hp.d_model) });
}

/* Gate, up and the activation. Where the activation is sparse, it is cut between them. */
static void build_gate_up(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        const struct tdm_vk_rows both = rows_in(TDM_VK_Y, 0, 2 * l->gate.rows);
        struct tdm_vk_op *op;

        if (!m->recipe.layers[b->layer].is_sparse) {
                add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_GATE_UP,
                                               .rows = TDM_VK_ROWS_TILE,
                                               .matrices = { &l->gate, &l->up, &l->down },
                                               .n_matrices = 3,
                                               .y = both,
                                               .is_measured = true });
                return;
        }
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_MULTIPLY,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { &l->gate, &l->up },
                                       .n_matrices = 2,
                                       .y = both,
                                       .is_measured = true });
        op = add_streams(b, TDM_VK_STREAMS_CUT, TDM_VK_ROWS_TILE, m->recipe.active_stream);
        op->y = both;
        op->n = l->gate.rows;
        op->factors[0] = m->recipe.layers[b->layer].sparsity_scale;
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_ACTIVATE,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { &l->down },
                                       .n_matrices = 1,
                                       .x = both });
}

static void build_dense(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];

        build_gate_up(b);
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_DOWN,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .matrices = { &l->down },
                                       .n_matrices = 1,
                                       .y = rows_in(TDM_VK_Y, 0, m->hp.d_model),
                                       .is_measured = true });
        if (l->experts.beside)
                add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                               .rows = TDM_VK_ROWS_TILE,
                                               .variant = TDM_VK_SIDE_BOTH,
                                               .x = rows_in(TDM_VK_EXPERTS_Y, 0, m->hp.d_model),
                                               .y = rows_in(TDM_VK_Y, 0, m->hp.d_model),
                                               .gains = { l->experts.post_dense, l->experts.post_experts },
                                               .n = m->hp.d_model });
}

/* A layer's own input becomes what joins the residual. */
static void build_layer_input(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        const uint32_t width = m->recipe.per_layer_width;
        const struct tdm_vk_rows input = rows_in(TDM_VK_INPUT, 0, width), gate = rows_in(TDM_VK_INPUT_GATE, 0, width);

        add_multiply(b, matrix_part_of(b, &m->side.per_layer_proj, b->layer * width, width), input);
        b->program->ops[b->program->n_ops - 1].x.array = TDM_VK_EMBEDDED;
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .variant = TDM_VK_SIDE_INPUT,
                                       .y = input,
                                       .other = rows_in(TDM_VK_STEP_INPUTS, b->layer * width, m->hp.n_layers * width),
                                       .gains = { m->side.per_layer_norm },
                                       .n = width,
                                       .factors = { 1.0f / sqrtf((float)m->hp.d_model), sqrtf((float)width) } });
        add_rounding(b, &l->input_gate, rows_in(TDM_VK_HIDDEN, tdm_vk_active_at(m), m->hp.residual_width),
                     l->correct_scale);
        add_multiply(b, &l->input_gate, gate);
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                       .rows = TDM_VK_ROWS_TILE,
                                       .variant = TDM_VK_SIDE_GATED,
                                       .matrices = { &l->input_proj },
                                       .n_matrices = 1,
                                       .x = gate,
                                       .other = input,
                                       .n = width });
        add_multiply(b, &l->input_proj, rows_in(TDM_VK_Y, 0, m->hp.d_model));
}

/* A layer's own input joins the residual, and this is scaled. */
static void build_layer_end(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        const uint32_t d = m->hp.d_model;
        const bool has_input = m->recipe.layers[b->layer].has_input;

        if (tdm_vk_has_streams(m))
                route_streams(b, tdm_vk_middle_at(m), TDM_VK_STREAMS_CORRECT);
        if (!tdm_vk_has_side(m, b->layer))
                return;
        if (has_input)
                build_layer_input(b);
        /* to every stream but the first, or to the only one */
        for (uint32_t i = m->recipe.n_streams > 1; i < m->recipe.n_streams; i++)
                add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_SIDE,
                                               .rows = TDM_VK_ROWS_TILE,
                                               .variant = TDM_VK_SIDE_ADD,
                                               .x = rows_in(has_input ? TDM_VK_Y : TDM_VK_NOWHERE, 0, d),
                                               .y = rows_in(TDM_VK_HIDDEN, i * d, m->hp.residual_width),
                                               .coefficients = l->output_scale,
                                               .gains = { l->input_norm },
                                               .n = d });
}

static void build_ffn(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;
        const struct tdm_vk_layer *l = &m->layers[b->layer];
        const struct tdm_vk_experts *e = &l->experts;
        const struct tdm_vk_matrix *gate_up[] = { &l->gate, &l->up }, *router[] = { &e->router },
                                   *of_experts[] = { &e->router, &e->gate, &e->up };
        const bool has_dense = tdm_vk_has_dense(l);
        struct tdm_vk_op *op;

        if (e->beside) {
                set_matrices(add_norm(b, e->router_gain, tdm_vk_middle_at(m)), router, 1);
                build_experts(b, TDM_VK_EXPERTS_Y);
        }
        if (l->ffn_norm) {
                op = add_norm(b, l->ffn_norm, tdm_vk_middle_at(m));
                op->begins = !e->beside && !tdm_vk_is_parallel(m);
                set_matrices(op, has_dense ? gate_up : of_experts, has_dense ? 2 : 3);
        } else {
                add_inputs(b, has_dense ? gate_up : of_experts, has_dense ? 2 : 3, tdm_vk_middle_at(m));
        }
        if (has_dense)
                build_dense(b);
        else
                build_experts(b, TDM_VK_Y);
        add_sum(b, l->post_ffw_norm, l->down_bias, tdm_vk_middle_at(m), true);
        build_layer_end(b);
}

static void build_head(struct builder *b)
{
        const struct tdm_vk_model *m = b->m;

        if (tdm_vk_has_streams(m))
                fold_streams(b);
        add_op(b, &(struct tdm_vk_op){
                          .kind = TDM_VK_OP_HEAD_NORM,
                          .rows = TDM_VK_ROWS_LOGITS,
                          .matrices = { &m->output },
                          .n_matrices = 1,
                          .x = rows_in(tdm_vk_has_streams(m) ? TDM_VK_FOLDED : TDM_VK_HIDDEN, 0, m->hp.d_model),
                          .gains = { m->output_norm } });
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_MULTIPLY,
                                       .rows = TDM_VK_ROWS_LOGITS,
                                       .matrices = { &m->output },
                                       .n_matrices = 1,
                                       .y = rows_in(TDM_VK_LOGITS_Y, 0, m->logits.stride),
                                       .is_measured = true });
        add_op(b, &(struct tdm_vk_op){ .kind = TDM_VK_OP_LOGITS, .rows = TDM_VK_ROWS_LOGITS });
}

/* ---- the list ---- */

static void build_block(struct builder *b, uint32_t block)
{
        const struct tdm_vk_model *m = b->m;

        switch (tdm_block_kind(&m->hp, block)) {
        case TDM_BLOCK_EMBED:
                build_embed(b);
                break;
        case TDM_BLOCK_ATTENTION:
                build_attention(b);
                break;
        case TDM_BLOCK_FFN:
                build_ffn(b);
                break;
        case TDM_BLOCK_HEAD:
                build_head(b);
                break;
        default:
                break;
        }
}

/* If a block ends with a sum and the next one begins with a norm of it, one kernel can do both. */
static void find_fused(struct tdm_vk_program *p)
{
        for (uint32_t i = 1; i < p->n_blocks; i++) {
                const struct tdm_vk_ops *before = &p->blocks[i - 1], *after = &p->blocks[i];

                if (before->n && after->n && p->ops[before->first + before->n - 1].kind == TDM_VK_OP_ADD &&
                    p->ops[after->first].begins)
                        p->ops[before->first + before->n - 1].fused_with = after->first;
        }
}

static int allocate_program(const struct tdm_vk_model *m, struct tdm_vk_program **ret)
{
        struct tdm_vk_program *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->n_blocks = tdm_model_n_blocks(&m->hp) - 1;
        p->n_parts_max = m->hp.n_layers + 2 * m->recipe.n_streams;
        p->blocks = calloc(p->n_blocks, sizeof(*p->blocks));
        p->wants_inputs = calloc(p->n_blocks, sizeof(*p->wants_inputs));
        p->parts = calloc(p->n_parts_max, sizeof(*p->parts));
        *ret = p;
        return p->blocks && p->wants_inputs && p->parts ? 0 : -ENOMEM;
}

int tdm_vk_program_build(struct tdm_vk_model *m)
{
        struct builder b = { .m = m, .layer = UINT32_MAX };
        int r = m->program ? 0 : allocate_program(m, &m->program);

        if (r != 0)
                return r;
        b.program = m->program;
        b.program->n_ops = b.program->n_parts = 0;
        build_inputs(&b);
        b.program->inputs = (struct tdm_vk_ops){ 0, b.program->n_ops };
        for (uint32_t block = 0; block < b.program->n_blocks; block++) {
                const enum tdm_block_kind kind = tdm_block_kind(&m->hp, block);
                const bool is_layer = kind == TDM_BLOCK_ATTENTION || kind == TDM_BLOCK_FFN;
                const uint32_t first = b.program->n_ops;

                b.layer = is_layer ? tdm_block_layer(block) : UINT32_MAX;
                build_block(&b, block);
                b.program->blocks[block] = (struct tdm_vk_ops){ first, b.program->n_ops - first };
                b.program->wants_inputs[block] =
                        (kind == TDM_BLOCK_EMBED && tdm_vk_has_streams(m)) ||
                        (kind == TDM_BLOCK_FFN && m->recipe.layers[tdm_block_layer(block)].has_input);
        }
        find_fused(b.program);
        return b.is_out_of_memory ? -ENOMEM : 0;
}

void tdm_vk_program_free(struct tdm_vk_program *p)
{
        if (!p)
                return;
        free(p->ops);
        free(p->parts);
        free(p->blocks);
        free(p->wants_inputs);
        free(p);
}

bool tdm_vk_program_joins(const struct tdm_vk_program *p, uint32_t block)
{
        const struct tdm_vk_ops *ops = &p->blocks[block];

        return ops->n > 0 && p->ops[ops->first + ops->n - 1].fused_with != TDM_VK_NO_OP;
}
