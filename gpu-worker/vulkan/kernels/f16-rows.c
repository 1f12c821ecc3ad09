/* Rows of F16. They are used where a device has f16 matrix units, every kernel for them is proven, and a model's layers
 * are of Q4_0, Q8_0, F16, BF16 or types of engine/weights/subblock.h. Then rows go into its matrices as f16, for one
 * row as for many: 11 bits of each value instead of 8 or 15 with a scale for each 32. The units themselves sum a whole
 * segment of K.
 *
 * What f16 lacks is range. So each matrix' rows are multiplied with a power of two, the same for all rows: the largest
 * with which no value of any input can leave f16. Inputs are bounded by what makes them:
 * - A norm leaves gain[k] n[k] with sum n² <= d, so at most sqrt(d) max|gain|.
 * - The FFN's hidden values are at most |gate| |up|, and attention's result is at most the largest value. Each of these
 *   products is at most sqrt(d) sqrt(sum (w gain)²) (Cauchy and Schwarz; shaders/weights/bound.comp).
 *
 * Typical values are far below these bounds: by the root of d for one product, by d for the hidden values, which are
 * two products. f16 keeps its 11 bits down to 2^29 below a bound. That is enough for most models. It is too little for
 * hidden values where gains undo large residuals, as in Gemma 3: the bound is 2^31 above the largest value that occurs,
 * and most values become zero in f16. So the bound of hidden values is at most HIDDEN_MOST. A value above twice that is
 * clamped (some past 10^5 are known), and the smallest step is 2^-13. With a scale for each row, computed from the row,
 * bound and clamp would not be needed.
 *
 * Weights have a range too. Q4_0's scales are stored times up to 2^24 (shaders/common/f16.glsl). So larger ones are
 * divided by one power of two for the matrices that one input goes into. A scale that is below 2^-14 then is rounded to
 * a multiple of 2^-24. MXFP4's are whole exponents: scales below 2^-28 become 0. Weights of F16 stay what they are.
 * BF16 has a range that f16 lacks. So a matrix of BF16 is multiplied with a power of two that brings its largest weight
 * to 2^14 or more. Weights down to 2^-31 of the largest are exact in f16 then. Smaller ones lose less than 2^-39 of it.
 *
 * Small models of Q4_0 and Q8_0 keep rows of 8 and 15 bits. One row of them spends its time between kernels, where the
 * kernels of matvec.glsl are faster (docs/notes/gpu-throughput.md has the figures). A model with a matrix
 * of a type of engine/weights/subblock.h, F16 or BF16, or with experts, has rows of F16 at any size, since its other
 * kernel is far slower. The choice follows from the model's sizes and types alone, so a restart changes nothing.
 * TANDEM_VULKAN_HALVES=on|off overrides it in tests. */
#include <math.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels.h"

/* Attention on f16 units is causal and has one size of heads, and the bounds are of layers without these. */
#define BIT(feature) TDM_FEATURE_BIT(TDM_FEATURE_##feature)
#define NOT_F16                                                                                                        \
        (BIT(BIDIRECTIONAL) | BIT(ROPE_BY_LAYER) | BIT(V_NORM) | BIT(V_IS_K) | BIT(SHARED_KV) | BIT(HEADS_BY_LAYER) |  \
         BIT(FF_BY_LAYER) | BIT(PER_LAYER_INPUT) | BIT(OUTPUT_SCALE) | BIT(SPARSITY) | BIT(STREAMS) |                  \
         BIT(DENSE_BESIDE) | BIT(NO_NORM_BEFORE) | BIT(QK_NORM_WIDE) | BIT(QK_NORM_LATE) | BIT(PARALLEL) |             \
         BIT(CENTERED) | BIT(QUERY_GROWTH) | BIT(ATTENTION_SOFTCAP))
#define MOST 32768.0f /* half of what f16 holds: sums of squares are rounded too */
#define F16_MOST 65504.0f
#define HIDDEN_MOST 0x1p26f
#define ROTATION_MOST 2.0f                  /* the root of two, by YaRN's factor, which is below 1.4 */
#define FFN_WEIGHTS_MIN (UINT64_C(1) << 26) /* of a layer: more than a 1B has, fewer than a 4B */

static const struct tdm_weights_tensor *find_tensor(const struct tdm_vk_model *m, enum tdm_tensor_kind kind,
                                                    uint32_t layer)
{
        return tdm_weights_find(m->weights, kind, layer);
}

static bool tensor_fits(const struct tdm_weights_tensor *t)
{
        return t->layout == TDM_LAYOUT_PANEL16 && tdm_vk_type_f16(t->type) && t->cols % TDM_VK_CHUNK_COLS == 0;
}

bool tdm_vk_f16_wanted(const struct tdm_vk_model *m)
{
        static const enum tdm_tensor_kind dense[] = { TDM_TENSOR_Q,    TDM_TENSOR_K,  TDM_TENSOR_V,   TDM_TENSOR_O,
                                                      TDM_TENSOR_GATE, TDM_TENSOR_UP, TDM_TENSOR_DOWN },
                                          of_experts[] = { TDM_TENSOR_Q,         TDM_TENSOR_K,
                                                           TDM_TENSOR_V,         TDM_TENSOR_O,
                                                           TDM_TENSOR_GATE_EXPS, TDM_TENSOR_UP_EXPS,
                                                           TDM_TENSOR_DOWN_EXPS };
        bool pays = 3ull * m->hp.d_model * m->hp.d_ff >= FFN_WEIGHTS_MIN;

        if (!m->device->units.f16 || m->device->memory.import || m->precision != TDM_PRECISION_DEFAULT ||
            tdm_recipe_features(&m->recipe, &m->hp) & NOT_F16)
                return false;
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                bool has_experts = m->recipe.layers[i].n_experts > 0;

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(dense); k++) {
                        const struct tdm_weights_tensor *t = find_tensor(m, (has_experts ? of_experts : dense)[k], i);

                        if (!tensor_fits(t))
                                return false;
                        pays = pays || tdm_subblock_type(t->type) || tdm_vk_type_plain(t->type) || has_experts;
                }
                /* a panel is of one expert */
                if (has_experts && (m->recipe.layers[i].d_expert % TDM_VK_CHUNK_COLS || m->hp.d_model % TDM_PANEL_ROWS))
                        return false;
        }
        return tdm_vk_switch(TDM_VK_SWITCH_HALVES) ? !tdm_vk_switch_is(TDM_VK_SWITCH_HALVES, "off") : pays;
}

/* The largest power of two with which `bound` stays in range. */
static float scale_for(float bound)
{
        int exponent;

        if (!(bound > 0) || !isfinite(bound))
                return bound > 0 ? 0x1p-100f : 1;
        frexpf(MOST / bound, &exponent);
        return ldexpf(1, TDM_MAX(TDM_MIN(exponent - 1, 100), -100));
}

/* The largest of a layer's gains or biases; 0: there are none. */
static float largest_gain(const struct tdm_vk_model *m, enum tdm_tensor_kind kind, uint32_t layer)
{
        const struct tdm_weights_tensor *t = find_tensor(m, kind, layer);
        const float *gain = t ? (const float *)(m->weights + t->offset) : NULL;
        float most = 0;

        for (uint32_t i = 0; t && i < t->cols; i++)
                most = fmaxf(most, fabsf(gain[i]));
        return most;
}

static bool is_q4_0(uint32_t type)
{
        return (type & ~TDM_VK_FRAGMENTS) == TDM_TYPE_Q4_0;
}

static bool is_subblock(uint32_t type)
{
        return tdm_subblock_type(TDM_VK_FORM_TYPE(type));
}

static bool type_is_plain(uint32_t type)
{
        return tdm_vk_type_plain(TDM_VK_FORM_TYPE(type));
}

/* The largest weight, divided by what bound.comp takes for its scale. */
static float largest_weight(uint32_t type)
{
        return is_subblock(type) || type_is_plain(type) ? 1 : is_q4_0(type) ? 8 : 128;
}

/* The largest scale of a type: weights of Q8_0 and of the types with a table become f16 by way of it, of the others it
 * is stored times 2^24 at most (shaders/common/f16.glsl). */
static float scale_most(uint32_t type)
{
        switch (TDM_VK_FORM_TYPE(type)) {
        case TDM_TYPE_Q8_0:
        case TDM_TYPE_IQ4_NL:
        case TDM_TYPE_IQ4_XS:
                return F16_MOST / 128;
        case TDM_TYPE_MXFP4: /* half of what a quant of 1 stands for, which is 2^16 in f16 at most */
                return 1;
        default:
                return F16_MOST * 0x1p-24f;
        }
}

/* Words of a layer's bounds, two each: how large products can be, and the largest scale. Products are asked for of V,
 * of the FFN and, where queries have no norm, of Q; the rest have a place for theirs. Q and K share one: the larger
 * counts. */
enum { VALUES, HIDDEN = 2, QUERIES = 4, KEYS = 4, OUTPUT = 6, DOWN = 8, WORDS = 10 };

static const struct tdm_vk_matrix *gate_of(const struct tdm_vk_layer *l)
{
        return l->experts.n ? &l->experts.gate : &l->gate;
}
static const struct tdm_vk_matrix *up_of(const struct tdm_vk_layer *l)
{
        return l->experts.n ? &l->experts.up : &l->up;
}
static const struct tdm_vk_matrix *down_of(const struct tdm_vk_layer *l)
{
        return l->experts.n ? &l->experts.down : &l->down;
}

/* TYPE0 or TYPE1 of bound.comp. */
static uint32_t bound_type(const struct tdm_vk_matrix *a)
{
        return is_subblock(a->type) || type_is_plain(a->type) ? TDM_VK_FORM_TYPE(a->type) : 0;
}

static int need_bound(struct tdm_vk_model *m, const struct tdm_vk_matrix *a, const struct tdm_vk_matrix *b,
                      struct tdm_error *err)
{
        return tdm_vk_pipeline_need(m->device, TDM_VK_BOUND,
                                    (const uint32_t[]){ bound_type(a), b ? bound_type(b) : 0, 0, 0 }, err);
}

static int need_bounds(struct tdm_vk_model *m, struct tdm_error *err)
{
        int r = need_bound(m, &m->output, NULL, err);

        if (r == 0)
                r = need_bound(m, &m->embedding, NULL, err);
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *alone[] = { &l->q, &l->k, &l->v, &l->o, down_of(l) };

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(alone) && r == 0; k++)
                        r = need_bound(m, alone[k], NULL, err);
                if (r == 0)
                        r = need_bound(m, gate_of(l), up_of(l), err);
        }
        return r;
}

static void bound_matrix(struct tdm_vk_model *m, VkCommandBuffer commands, const struct tdm_vk_matrix *a,
                         const struct tdm_vk_matrix *b, uint64_t gains, uint32_t word)
{
        struct tdm_vk *vk = &m->device->vk;
        struct tdm_vk_bound_push push = { .gains = gains,
                                          .bounds = m->arrays[TDM_VK_Y].address + word * sizeof(uint32_t),
                                          .w0 = a->address,
                                          .w1 = b ? b->address : 0,
                                          .panel_bytes = a->panel_bytes,
                                          .panel_bytes1 = b ? b->panel_bytes : 0,
                                          .cols = a->cols };

        vk->CmdBindPipeline(
                commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                tdm_vk_pipeline_get(m->device, TDM_VK_BOUND, bound_type(a), b ? bound_type(b) : 0, 0, 0)->pipeline);

        for (uint32_t n; push.panel0 < a->n_panels; push.panel0 += n) {
                n = TDM_MIN(a->n_panels - push.panel0, m->device->max_groups_x);
                vk->CmdPushConstants(commands, m->device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(push), &push);
                vk->CmdDispatch(commands, n, 1, 1);
        }
}

/* [layer][WORDS], and at last those of the output matrix and the embedding. */
static int find_bounds(struct tdm_vk_model *m, const float **ret, struct tdm_error *err)
{
        uint64_t bytes = (m->hp.n_layers + 1ull) * WORDS * sizeof(uint32_t);
        uint32_t others = m->hp.n_layers * WORDS;
        const VkBufferCopy copy = { .size = bytes };
        const char *what = "bounding the rows";
        struct tdm_vk_device *device = m->device;
        VkCommandBuffer commands;
        int r = need_bounds(m, err);

        if (r == 0 && (bytes > m->arrays[TDM_VK_Y].size_bytes || bytes > device->stages[0].size_bytes))
                r = tdm_error_set(err, TDM_E_UNSUPPORTED, "vulkan device: %u layers are too many", m->hp.n_layers);
        if (r == 0)
                r = tdm_vk_once_begin(device, &commands, what, err);
        if (r != 0)
                return r;
        device->vk.CmdFillBuffer(commands, m->arrays[TDM_VK_Y].buffer, 0, bytes, 0);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];

                bound_matrix(m, commands, &l->v, NULL, l->attn_norm, i * WORDS + VALUES);
                bound_matrix(m, commands, gate_of(l), up_of(l), l->ffn_norm, i * WORDS + HIDDEN);
                bound_matrix(m, commands, &l->q, NULL, l->q_norm ? 0 : l->attn_norm, i * WORDS + QUERIES);
                bound_matrix(m, commands, &l->k, NULL, l->q_norm ? 0 : l->attn_norm, i * WORDS + KEYS);
                bound_matrix(m, commands, &l->o, NULL, 0, i * WORDS + OUTPUT);
                bound_matrix(m, commands, down_of(l), NULL, 0, i * WORDS + DOWN);
        }
        if (m->output.type & TDM_VK_FRAGMENTS)
                bound_matrix(m, commands, &m->output, NULL, 0, others);
        if (m->embedding.type & TDM_VK_FRAGMENTS)
                bound_matrix(m, commands, &m->embedding, NULL, 0, others);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                       VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        device->vk.CmdCopyBuffer(commands, m->arrays[TDM_VK_Y].buffer, device->stages[0].buffer, 1, &copy);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
        *ret = (const float *)device->stages[0].map;
        return tdm_vk_once_end(device, what, err);
}

/* Sets the scales of matrices that one input goes into: their outputs are multiplied with one number. Weights are
 * divided so that what repack.comp stores of the largest scale fits f16. Infinite scales of a file stay infinite. */
static void set_scales(struct tdm_vk_matrix *const *matrices, unsigned n, float x_scale, float largest_scale)
{
        bool all_plain = true, has_bf16 = false;
        float divisor = 1;

        for (unsigned i = 0; i < n; i++) {
                all_plain = all_plain && type_is_plain(matrices[i]->type) && (matrices[i]->type & TDM_VK_FRAGMENTS);
                has_bf16 = has_bf16 || TDM_VK_FORM_TYPE(matrices[i]->type) == TDM_TYPE_BF16;
        }
        if (all_plain && has_bf16 && largest_scale > 0 && isfinite(largest_scale))
                divisor = 1 / scale_for(largest_scale * 0x1p24f);
        for (unsigned i = 0; i < n; i++)
                while (isfinite(largest_scale) && largest_scale > divisor * scale_most(matrices[i]->type))
                        divisor *= 2;
        for (unsigned i = 0; i < n; i++) {
                matrices[i]->x_scale = x_scale;
                matrices[i]->divisor = divisor;
                matrices[i]->y_scale = divisor / x_scale;
        }
}

int tdm_vk_f16_scales(struct tdm_vk_model *m, struct tdm_error *err)
{
        float root = sqrtf((float)m->hp.d_model);
        const float *bounds;
        int r;

        if (!m->f16_rows)
                return 0;
        r = find_bounds(m, &bounds, err);
        if (r != 0)
                return r;
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                struct tdm_vk_layer *l = &m->layers[i];
                const float *b = bounds + i * WORDS;
                struct tdm_vk_matrix *gate = l->experts.n ? &l->experts.gate : &l->gate,
                                     *up = l->experts.n ? &l->experts.up : &l->up,
                                     *down = l->experts.n ? &l->experts.down : &l->down;
                float values = root * largest_weight(l->v.type) * b[VALUES] + largest_gain(m, TDM_TENSOR_V_BIAS, i),
                      hidden = root * largest_weight(gate->type) * (root * largest_weight(up->type)) * b[HIDDEN];

                hidden = tdm_activation_largest((enum tdm_activation)l->activation, hidden);
                /* A head's norm leaves at most sqrt(head_dim) times its gain, rotation the root of two more. */
                l->query_scale = scale_for(sqrtf(2 * (float)m->hp.head_dim) * largest_gain(m, TDM_TENSOR_Q_NORM, i) *
                                           m->recipe.layers[i].query_scale);
                if (!l->q_norm)
                        l->query_scale = scale_for(ROTATION_MOST * m->recipe.layers[i].query_scale *
                                                   (root * largest_weight(l->q.type) * b[QUERIES] +
                                                    largest_gain(m, TDM_TENSOR_Q_BIAS, i)));
                set_scales((struct tdm_vk_matrix *[]){ &l->q, &l->k, &l->v }, 3,
                           scale_for(root * largest_gain(m, TDM_TENSOR_ATTN_NORM, i)),
                           fmaxf(b[VALUES + 1], b[QUERIES + 1]));
                set_scales((struct tdm_vk_matrix *[]){ gate, up }, 2,
                           scale_for(root * largest_gain(m, TDM_TENSOR_FFN_NORM, i)), b[HIDDEN + 1]);
                set_scales((struct tdm_vk_matrix *[]){ &l->o }, 1,
                           scale_for(m->kv.type == TDM_KV_F16 ? fminf(values, F16_MOST) : values), b[OUTPUT + 1]);
                set_scales((struct tdm_vk_matrix *[]){ down }, 1, scale_for(fminf(hidden, HIDDEN_MOST)), b[DOWN + 1]);
        }
        /* They may be one and the same. */
        set_scales((struct tdm_vk_matrix *[]){ &m->output, &m->embedding }, 2,
                   m->output.act >= TDM_VK_ACT_F16 ? scale_for(root * largest_gain(m, TDM_TENSOR_OUTPUT_NORM, 0)) : 1,
                   bounds[m->hp.n_layers * WORDS + 1]);
        return 0;
}
