/* Which kernels compute an operation of a program for a class of rows. This is the only place that knows it: need.c
 * compiles what it says, load/tune.c measures it, and record/ dispatches it. A kernel for matrix units is taken where
 * it is proven. The last one of a list always can be taken, but not of a few flagged rows. */
#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"

static unsigned one_kernel(struct tdm_vk_kernel *ret, enum tdm_vk_shader shader, uint32_t c0, uint32_t c1, uint32_t c2)
{
        *ret = (struct tdm_vk_kernel){ .shader = shader, .constants = { c0, c1, c2, 0 }, .fits = true };
        return 1;
}

/* ---- norms ---- */

/* The forms of rows that an operation leaves, a bit each. Where it is fused, the operation behind it says them. */
static uint32_t norm_forms(const struct tdm_vk_model *m, const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        const struct tdm_vk_op *of = op;
        uint32_t forms = 0;

        if (op->kind == TDM_VK_OP_ADD)
                of = class->is_fused ? &m->program->ops[op->fused_with] : NULL;
        for (unsigned i = 0; of && i < of->n_matrices; i++)
                forms |= 1u << of->matrices[i]->act;
        return forms ? forms : 1u << TDM_VK_ACT_NONE;
}

/* part: the form. The first one adds. Where an expert's router reads the row too, one kernel leaves both forms. */
static unsigned norm_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                             const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        uint32_t forms = norm_forms(m, op, class), flags = class->is_few ? TDM_VK_NORM_FEW : 0;
        bool is_beside = forms == (1u << TDM_VK_ACT_F32 | 1u << TDM_VK_ACT_F16);

        if (is_beside)
                forms = 1u << TDM_VK_ACT_F16;
        if (!(forms >> part & 1))
                return 0;
        if (op->kind == TDM_VK_OP_ADD && !(forms & ((1u << part) - 1)))
                flags |= (uint32_t)TDM_VK_NORM_ADD | (class->rehearses ? TDM_VK_NORM_REHEARSES : 0u) |
                         (op->gains[0] ? 0u : TDM_VK_NORM_PLAIN) | (op->leaves ? TDM_VK_NORM_ELSEWHERE : 0u);
        if (is_beside)
                flags |= TDM_VK_NORM_BESIDE;
        if (tdm_vk_is_centered(m) && part != TDM_VK_ACT_NONE)
                flags |= TDM_VK_NORM_CENTERED;
        return one_kernel(ret, TDM_VK_NORM, flags, part, tdm_vk_norm_per(m));
}

/* ---- products ---- */

/* The part-th group of matrices that one dispatch multiplies; 0: there is none. */
static unsigned group_at(const struct tdm_vk_matrix *const *matrices, unsigned n_matrices, unsigned part,
                         const struct tdm_vk_matrix **ret_first, uint32_t *ret_panels)
{
        for (unsigned i = 0, n; i < n_matrices; i += n, part--) {
                n = tdm_vk_group_of(matrices + i, n_matrices - i, ret_panels);
                *ret_first = matrices[i];
                if (part == 0)
                        return n;
        }
        return 0;
}

bool tdm_vk_op_is_flagged(const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        /* The hidden values of several rows are too long for a workgroup's shared memory. */
        return class->is_flagged && op->rows == TDM_VK_ROWS_TILE && (op->kind != TDM_VK_OP_DOWN || class->n_rows == 1);
}

static unsigned product_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned n_matrices,
                                unsigned part, const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_matrix *first;
        uint32_t n_panels;

        if (!group_at(op->matrices, n_matrices, part, &first, &n_panels))
                return 0;
        if (class->n_rows > 1 && tdm_vk_op_is_flagged(op, class))
                return tdm_vk_f16_rows_kernels(m->device, first, n_panels, class->n_rows, 0, ret);
        return tdm_vk_matrix_kernels(m->device, first, n_panels, class->n_rows, ret);
}

static unsigned gate_up_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                                const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);

        if (!tdm_vk_gate_up_fuses(l, class->n_rows))
                return part == TDM_VK_PART_ACTIVATE ? one_kernel(ret, TDM_VK_GELU, l->activation, l->down.act, 0) :
                                                      product_kernels(m, op, 2, part, class, ret);
        if (part != TDM_VK_PART_FUSED)
                return 0;
        if (class->n_rows > 1 && class->is_flagged)
                return tdm_vk_f16_rows_kernels(m->device, &l->gate, 2 * l->gate.n_panels, class->n_rows,
                                               1 + l->activation, ret);
        return tdm_vk_gate_up_kernels(m->device, l, class->n_rows, ret);
}

/* ---- attention ---- */

static unsigned attend_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                               const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);
        const uint32_t kind = tdm_vk_kind_of(m, op->layer), heads = tdm_vk_heads_of(l),
                       growth = m->recipe.query_growth > 0 ? tdm_f32_to_bits(m->recipe.query_growth) : 0;

        switch (part) {
        case TDM_VK_PART_ROTATE:
                one_kernel(ret, TDM_VK_ROTATE, m->kv.type, heads | (uint32_t)l->is_late << 8, growth);
                ret->constants[3] = m->recipe.query_growth_every;
                return 1;
        case TDM_VK_PART_ATTEND:
                *ret = tdm_vk_attend_kernel(m, kind, class->many, class->item_heads, l->o.act);
                return 1;
        case TDM_VK_PART_MERGE:
                return tdm_vk_attend_merges(m, kind, class->many, class->item_heads) ?
                               0 :
                               one_kernel(ret, TDM_VK_MERGE, 0, l->o.act, 0);
        case TDM_VK_PART_ALL:
                return class->may_rotate && heads == TDM_VK_HEADS_NORMED && !l->is_late &&
                       tdm_vk_attend_rotating_kernel(m, kind, l->o.act, class->several, ret);
        default:
                return 0;
        }
}

/* ---- experts ---- */

static unsigned route_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                              const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_experts *e = &tdm_vk_op_layer(m, op)->experts;

        if (part == TDM_VK_PART_CHOOSE)
                return one_kernel(ret, TDM_VK_CHOOSE, m->recipe.layers[op->layer].router == TDM_ROUTER_SOFTMAX_ALL, 0,
                                  0);
        if (part == TDM_VK_PART_GROUP) /* a single row's slots are its ranks where rows are F16 */
                return tdm_vk_is_f16(&e->gate) && class->n_rows == 1 ? 0 : one_kernel(ret, TDM_VK_GROUP, 0, 0, 0);
        if (part != TDM_VK_PART_PRODUCTS)
                return 0;
        if (!tdm_vk_router_takes(&e->router))
                return product_kernels(m, op, 1, 0, class, ret);
        one_kernel(ret, TDM_VK_ROUTER, tdm_vk_router_rows(m->device, class->n_rows), 0, 0);
        ret->panels = 1;
        ret->rows = ret->constants[0];
        return 1;
}

/* The product with matrices[part]; is_fused: with gate, up and the activation behind them. */
static unsigned expert_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part, bool is_fused,
                               const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);
        const struct tdm_vk_matrix *a = op->matrices[part];
        const uint32_t item_rows = tdm_vk_item_rows(&l->experts, class->n_rows);

        if (!tdm_vk_is_f16(&l->experts.gate))
                return one_kernel(ret, TDM_VK_MATVEC_EXPERTS, a->type, a->act, item_rows);
        *ret = tdm_vk_expert_kernel(m->device, a, item_rows, is_fused ? 1 + l->activation : 0);
        return 1;
}

static unsigned experts_gate_up_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                                        const struct tdm_vk_class *class, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);
        const struct tdm_vk_experts *e = &l->experts;

        if (tdm_vk_is_f16(&e->gate) && tdm_vk_experts_fuse(e))
                return part == TDM_VK_PART_FUSED ? expert_kernels(m, op, 0, true, class, ret) : 0;
        if (part == TDM_VK_PART_ACTIVATE)
                return one_kernel(ret, TDM_VK_GELU, l->activation, e->down.act, 0);
        return part < (e->gate_up_is_one ? 1u : 2u) ? expert_kernels(m, op, part, false, class, ret) : 0;
}

/* ---- all ---- */

#define OWN_KERNEL(kind, kernel) [TDM_VK_OP_##kind] = TDM_VK_##kernel,

/* The kernel of a kind whose row in program.h names it. */
static unsigned own_kernel(const struct tdm_vk_op *op, struct tdm_vk_kernel *ret)
{
        static const enum tdm_vk_shader own[] = { TDM_VK_OPS(OWN_KERNEL) };

        return own[op->kind] == TDM_VK_N_SHADERS ?
                       0 :
                       one_kernel(ret, own[op->kind], op->variant, op->n_matrices ? op->matrices[0]->act : 0, 0);
}

unsigned tdm_vk_op_kernels(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                           const struct tdm_vk_class *class, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES])
{
        switch (op->kind) {
        case TDM_VK_OP_NORM:
        case TDM_VK_OP_ADD:
                return norm_kernels(m, op, part, class, ret);
        case TDM_VK_OP_MULTIPLY:
        case TDM_VK_OP_DOWN:
                return product_kernels(m, op, op->n_matrices, part, class, ret);
        case TDM_VK_OP_ATTEND:
                return attend_kernels(m, op, part, class, ret);
        case TDM_VK_OP_GATE_UP:
                return gate_up_kernels(m, op, part, class, ret);
        case TDM_VK_OP_ROUTE:
                return route_kernels(m, op, part, class, ret);
        case TDM_VK_OP_EXPERTS_GATE_UP:
                return experts_gate_up_kernels(m, op, part, class, ret);
        case TDM_VK_OP_LOGITS:
                return part < 2 ? one_kernel(ret, TDM_VK_LOGITS, part, 0, 0) :
                       part < 3 ? one_kernel(ret, TDM_VK_GATHER, 0, 0, 0) :
                                  0;
        default:
                break;
        }
        if (part != TDM_VK_PART_FIRST)
                return 0;
        switch (op->kind) {
        case TDM_VK_OP_EMBED:
                return one_kernel(ret, TDM_VK_EMBED, op->matrices[0]->type, 0, 0);
        case TDM_VK_OP_STREAMS:
                return one_kernel(ret, TDM_VK_STREAMS, op->variant, 0, 0);
        case TDM_VK_OP_ACTIVATE:
                return one_kernel(ret, TDM_VK_GELU, tdm_vk_op_layer(m, op)->activation, op->matrices[0]->act, 0);
        case TDM_VK_OP_EXPERTS_DOWN:
                return expert_kernels(m, op, 0, false, class, ret);
        case TDM_VK_OP_HEAD_NORM:
                return one_kernel(ret, TDM_VK_NORM,
                                  (tdm_vk_has_streams(m) ? 0u : TDM_VK_NORM_GATHER) |
                                          (tdm_vk_is_centered(m) ? TDM_VK_NORM_CENTERED : 0u),
                                  op->matrices[0]->act, tdm_vk_norm_per(m));
        default:
                return own_kernel(op, ret);
        }
}

const struct tdm_vk_kernel *tdm_vk_kernel_chosen(struct tdm_vk_device *device, const struct tdm_vk_kernel *kernels,
                                                 unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                if (!kernels[i].spare ||
                    (kernels[i].fits &&
                     tdm_vk_pipeline_proven(device, kernels[i].shader, kernels[i].constants[0], kernels[i].constants[1],
                                            kernels[i].constants[2], kernels[i].constants[3])))
                        return &kernels[i];
        return NULL;
}

struct tdm_vk_pipeline *tdm_vk_op_kernel_if_any(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                                                const struct tdm_vk_class *class, uint32_t *ret_panels,
                                                uint32_t *ret_rows)
{
        struct tdm_vk_kernel kernels[TDM_VK_CANDIDATES];
        const struct tdm_vk_kernel *k =
                tdm_vk_kernel_chosen(m->device, kernels, tdm_vk_op_kernels(m, op, part, class, kernels));

        if (!k)
                return NULL;
        if (ret_panels)
                *ret_panels = k->panels;
        if (ret_rows)
                *ret_rows = k->rows;
        return tdm_vk_pipeline_get(m->device, k->shader, k->constants[0], k->constants[1], k->constants[2],
                                   k->constants[3]);
}

struct tdm_vk_pipeline *tdm_vk_op_kernel(const struct tdm_vk_model *m, const struct tdm_vk_op *op, unsigned part,
                                         const struct tdm_vk_class *class, uint32_t *ret_panels, uint32_t *ret_rows)
{
        struct tdm_vk_pipeline *pipeline = tdm_vk_op_kernel_if_any(m, op, part, class, ret_panels, ret_rows);

        if (pipeline)
                return pipeline;
        if (ret_panels)
                *ret_panels = 1;
        if (ret_rows)
                *ret_rows = 1;
        return tdm_vk_pipeline_missing(m->device, "of part %u of the operation %s", part, tdm_vk_op_name(op->kind));
}

#define OP_NAME(kind, kernel) [TDM_VK_OP_##kind] = #kind,

const char *tdm_vk_op_name(enum tdm_vk_op_kind kind)
{
        static const char *const names[] = { TDM_VK_OPS(OP_NAME) };

        return names[kind];
}

/* ---- flagged words ---- */

/* Whether all matrices of one input are multiplied by kernels that know of flagged words. */
static bool products_flag(const struct tdm_vk_model *m, const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        struct tdm_vk_kernel kernels[TDM_VK_CANDIDATES];
        const struct tdm_vk_matrix *first;
        uint32_t n_panels;

        for (unsigned part = 0; group_at(op->matrices, op->n_matrices, part, &first, &n_panels); part++)
                if (class->n_rows == 1 ?
                            first->act != op->matrices[0]->act || !tdm_vk_matrices_flag(m->device, first, n_panels) :
                            !tdm_vk_kernel_chosen(m->device, kernels, tdm_vk_op_kernels(m, op, part, class, kernels)))
                        return false;
        return true;
}

/* A kind that is missing here keeps all steps of its model from flagged words. */
static bool op_flags(const struct tdm_vk_model *m, const struct tdm_vk_op *op, const struct tdm_vk_class *class)
{
        const struct tdm_vk_layer *l = tdm_vk_op_layer(m, op);
        struct tdm_vk_kernel kernels[TDM_VK_CANDIDATES];

        switch (op->kind) {
        case TDM_VK_OP_NORM:
        case TDM_VK_OP_ADD:
                return !tdm_vk_is_parallel(m); /* its norms are dispatches of their own: more than are counted on */
        case TDM_VK_OP_MULTIPLY:
                return products_flag(m, op, class);
        case TDM_VK_OP_ATTEND:
                /* There is one buffer of flagged words for each form: what reads the one would meet what writes the
                 * other. */
                return l->q.act != l->o.act && l->n_qkv == 3 && !l->v_norm;
        case TDM_VK_OP_GATE_UP:
                return class->n_rows == 1 ? tdm_vk_gate_up_flags(m->device, l) :
                                            tdm_vk_gate_up_fuses(l, class->n_rows) &&
                                                    tdm_vk_kernel_chosen(m->device, kernels,
                                                                         tdm_vk_op_kernels(m, op, TDM_VK_PART_FUSED,
                                                                                           class, kernels));
        case TDM_VK_OP_DOWN: /* it may do without; of several rows it does */
                return class->n_rows > 1 ||
                       (!tdm_subblock_type(l->down.type) && l->down.n_panels <= m->device->max_groups_x);
        default:
                return false;
        }
}

bool tdm_vk_program_flags(const struct tdm_vk_model *m, uint32_t n_rows)
{
        const struct tdm_vk_class class = { .n_rows = n_rows, .is_flagged = true };

        if (!m->device->chained || (n_rows > 1 && (!m->f16_rows || n_rows > TDM_VK_FLAGGED_ROWS)))
                return false;
        for (uint32_t i = 0; i < m->program->n_ops; i++)
                if (m->program->ops[i].layer != UINT32_MAX && !op_flags(m, &m->program->ops[i], &class))
                        return false;
        return true;
}
