/* Compiles and proves the kernels of a program when its model is loaded, so that none is later: those that choose.c
 * says for each operation and each class of rows. Each is asked for once in a pass. */
#include "gpu-worker/vulkan/kernels/kernels-private.h"

#define CLASSES_MAX 128u
#define SEEN 512u

/* ---- classes of rows ---- */

/* Numbers of rows, at most `most`: whatever choose.c says of any number it says of one of these too. record/dry.c tries
 * the first numbers behind them. */
static unsigned list_rows(uint32_t most, uint32_t ret[CLASSES_MAX])
{
        static const uint32_t firsts[] = { 1, 2, 4, 8, 16, 32, 48, 64 };
        unsigned n = 0;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(firsts); i++)
                if (firsts[i] < most)
                        ret[n++] = firsts[i];
        if (most > 64)
                ret[n++] = 65;
        for (uint32_t rows = 80; rows < most; rows += rows < 256 ? 16 : rows < 512 ? 64 : rows)
                ret[n++] = rows;
        ret[n++] = most;
        return n;
}

/* The most rows of any class. Experts' classes count the rows of the tile, not the slots. */
static uint32_t class_rows_max(const struct tdm_vk_model *m, const struct tdm_vk_op *op)
{
        return op->rows == TDM_VK_ROWS_STEP   ? m->limits.max_rows :
               op->rows == TDM_VK_ROWS_LOGITS ? m->logits.rows :
                                                m->tile_rows;
}

/* Norms, with and without what the chain makes of them. */
static unsigned list_norms(const struct tdm_vk_model *m, const struct tdm_vk_op *op,
                           struct tdm_vk_class ret[CLASSES_MAX])
{
        const bool chains = tdm_vk_chain_wanted(m->device);
        unsigned n = 0;

        for (unsigned way = 0; way < 8; way++) {
                const struct tdm_vk_class class = {
                        .n_rows = 2, .is_few = way & 1, .rehearses = way & 2, .is_fused = way & 4
                };

                if ((way & 3 && !chains) || (class.is_fused && op->fused_with == TDM_VK_NO_OP))
                        continue;
                ret[n++] = class;
        }
        return n;
}

/* The kernel that rotates rows too (TDM_VK_PART_ALL) is compiled and proven with attention's others: attend.c. */
static unsigned list_attention(const struct tdm_vk_model *m, const struct tdm_vk_op *op,
                               struct tdm_vk_class ret[CLASSES_MAX])
{
        const uint32_t heads = m->kinds[tdm_vk_kind_of(m, op->layer)].queries_heads;

        ret[0] = (struct tdm_vk_class){ .n_rows = 2, .many = true, .item_heads = heads };
        ret[1] = (struct tdm_vk_class){ .n_rows = 1, .item_heads = heads };
        ret[2] = (struct tdm_vk_class){ .n_rows = 1, .item_heads = 1 };
        return m->attention.is_f16 ? 2 : 3;
}

/* All that choose.c tells apart for this operation and that are compiled here. */
static unsigned list_classes(const struct tdm_vk_model *m, const struct tdm_vk_op *op,
                             struct tdm_vk_class ret[CLASSES_MAX])
{
        uint32_t rows[CLASSES_MAX];
        unsigned n = 0, n_rows;

        if (op->kind == TDM_VK_OP_NORM || op->kind == TDM_VK_OP_ADD)
                return list_norms(m, op, ret);
        if (op->kind == TDM_VK_OP_ATTEND)
                return list_attention(m, op, ret);
        n_rows = list_rows(class_rows_max(m, op), rows);
        for (unsigned i = 0; i < n_rows; i++) {
                ret[n++] = (struct tdm_vk_class){ .n_rows = rows[i] };
                if (rows[i] <= TDM_VK_FLAGGED_ROWS && m->f16_rows)
                        ret[n++] = (struct tdm_vk_class){ .n_rows = rows[i], .is_flagged = true };
        }
        return n;
}

/* ---- passes ---- */

/* A pass over all parts of all operations; one candidate list after another. */
struct pass {
        struct tdm_vk_model *m;
        int (*each)(struct pass *pass, const struct tdm_vk_kernel *kernels, unsigned n, struct tdm_error *err);
        bool only_single;
        struct tdm_vk_kernel seen[SEEN]; /* kernels that were asked for, by a hash */
};

static int pass_op(struct pass *pass, const struct tdm_vk_op *op, struct tdm_error *err)
{
        struct tdm_vk_kernel kernels[TDM_VK_CANDIDATES];
        struct tdm_vk_class classes[CLASSES_MAX];
        unsigned n_classes = list_classes(pass->m, op, classes);
        int r = 0;

        for (unsigned i = 0; i < n_classes && r == 0; i++) {
                bool has_any = false;

                for (unsigned part = 0; part < TDM_VK_N_PARTS && r == 0; part++) {
                        unsigned n = tdm_vk_op_kernels(pass->m, op, part, &classes[i], kernels);

                        has_any = has_any || n > 0;
                        if (n > 0 && (!pass->only_single || classes[i].n_rows == 1))
                                r = pass->each(pass, kernels, n, err);
                }
                if (r == 0 && !has_any && !classes[i].is_flagged) /* few flagged rows may have none: few-rows.c */
                        r = tdm_error_set(err, TDM_E_DEVICE_FAULT,
                                          "vulkan device: no kernel computes the operation %s of %u rows",
                                          tdm_vk_op_name(op->kind), classes[i].n_rows);
        }
        return r;
}

static int pass_run(struct pass *pass, struct tdm_error *err)
{
        const struct tdm_vk_program *p = pass->m->program;
        int r = 0;

        for (uint32_t i = 0; i < p->n_ops && r == 0; i++)
                r = pass_op(pass, &p->ops[i], err);
        return r;
}

/* Whether it was asked for in this pass: a model's layers are mostly alike. */
static bool was_seen(struct pass *pass, const struct tdm_vk_kernel *k)
{
        uint32_t hash = (uint32_t)k->shader;
        struct tdm_vk_kernel *seen;

        for (unsigned i = 0; i < TDM_VK_N_CONSTANTS; i++)
                hash = (hash ^ k->constants[i]) * 0x9e3779b1u;
        seen = &pass->seen[hash >> 16 & (SEEN - 1)];
        if (seen->fits && seen->shader == k->shader && memcmp(seen->constants, k->constants, sizeof(k->constants)) == 0)
                return true;
        *seen = *k;
        seen->fits = true;
        return false;
}

static bool is_f16_product(const struct tdm_vk_kernel *k)
{
        return k->shader == TDM_VK_MATVEC_F16 || k->shader == TDM_VK_MATMUL_F16 ||
               k->shader == TDM_VK_MATMUL_F16_WIDE || tdm_vk_experts_f16_kernel(k->shader);
}

static bool is_int8_product(const struct tdm_vk_kernel *k)
{
        return k->shader == TDM_VK_MATMUL_INT8 || k->shader == TDM_VK_MATMUL_INT8_WIDE ||
               k->shader == TDM_VK_MATMUL_INT8_ANY;
}

static bool is_plain_product(const struct tdm_vk_kernel *k)
{
        return k->shader == TDM_VK_MATVEC || k->shader == TDM_VK_MATVEC_GELU || k->shader == TDM_VK_MATVEC_SUBBLOCK ||
               k->shader == TDM_VK_MATVEC_EXPERTS;
}

static int need_f16(struct pass *pass, const struct tdm_vk_kernel *kernels, unsigned n, struct tdm_error *err)
{
        struct tdm_vk_device *device = pass->m->device;
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_kernel *k = &kernels[i];

                if (!is_f16_product(k) || (k->fits && was_seen(pass, k)))
                        continue;
                r = k->fits ? tdm_vk_pipeline_need(device, k->shader, k->constants, err) : 0;
                if (r == 0)
                        r = tdm_vk_prove_f16_need(device, k->constants[0] & ~TDM_VK_FRAGMENTS,
                                                  TDM_VK_F16_SHAPE_GELU(k->constants[1]), err);
        }
        return r;
}

/* 1, which ends the pass: one is not proven and has nothing that takes its work. */
static int check_proven(struct pass *pass, const struct tdm_vk_kernel *kernels, unsigned n, struct tdm_error *err)
{
        const struct tdm_vk_kernel *k = &kernels[n - 1];

        (void)err;
        return !is_f16_product(k) || k->spare ||
                               (k->fits && tdm_vk_pipeline_proven(pass->m->device, k->shader, k->constants[0],
                                                                  k->constants[1], k->constants[2], k->constants[3])) ?
                       0 :
                       1;
}

/* Asks for kernels of integer matrix units and for what they are compared with, and for all kernels that are not for
 * products. If a kernel of units cannot be compiled, that is no error here. */
static int need_units(struct pass *pass, const struct tdm_vk_kernel *kernels, unsigned n, struct tdm_error *err)
{
        struct tdm_vk_device *device = pass->m->device;
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_kernel *k = &kernels[i];

                if (is_plain_product(k) || is_f16_product(k) || was_seen(pass, k))
                        continue;
                r = tdm_vk_pipeline_need(device, k->shader, k->constants, err);
                if (r == 0 && is_int8_product(k))
                        r = tdm_vk_prove_need(device, k->constants[0], k->constants[1], err);
        }
        return r;
}

static int need_chosen(struct pass *pass, const struct tdm_vk_kernel *kernels, unsigned n, struct tdm_error *err)
{
        const struct tdm_vk_kernel *k = tdm_vk_kernel_chosen(pass->m->device, kernels, n);

        return !k || was_seen(pass, k) ? 0 : tdm_vk_pipeline_need(pass->m->device, k->shader, k->constants, err);
}

/* ---- what a load asks for ---- */

int tdm_vk_kernels_need_f16(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct pass pass = { .m = m, .each = need_f16 };

        return pass_run(&pass, err);
}

bool tdm_vk_kernels_f16_proven(struct tdm_vk_model *m)
{
        struct pass pass = { .m = m, .each = check_proven };

        return pass_run(&pass, NULL) == 0;
}

/* Kernels for integer matrix units first, together with all that has nothing to do with them: what they are proven for
 * needs no other. */
int tdm_vk_kernels_prepare_units(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct pass pass = { .m = m, .each = need_units };
        int r = 0;

        m->device->deferring = true;
        if (tdm_vk_chain_wanted(m->device)) {
                uint32_t probe[TDM_VK_N_CONSTANTS];

                tdm_vk_kernels_probe(m, probe);
                r = tdm_vk_pipeline_need(m->device, TDM_VK_GELU, probe, err);
        }
        if (r == 0)
                r = pass_run(&pass, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(m->device, err);
        if (r == 0)
                r = tdm_vk_prove(m->device, err);
        m->device->deferring = false;
        return r;
}

int tdm_vk_kernels_prepare_rest(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct pass f16 = { .m = m, .each = need_f16 }, rest = { .m = m, .each = need_chosen };
        int r = 0;

        m->device->deferring = true;
        if (m->f16_rows) /* in shapes that were tuned just now */
                r = pass_run(&f16, err);
        if (r == 0)
                r = pass_run(&rest, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(m->device, err);
        m->device->deferring = false;
        return r == 0 && m->f16_rows ? tdm_vk_prove_f16(m->device, err) : r;
}

/* Rows of F16 have theirs since their proof. */
int tdm_vk_kernels_need_single(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct pass pass = { .m = m, .each = need_chosen, .only_single = true };

        return m->f16_rows ? 0 : pass_run(&pass, err);
}

void tdm_vk_kernels_probe(const struct tdm_vk_model *m, uint32_t ret[TDM_VK_N_CONSTANTS])
{
        memset(ret, 0, TDM_VK_N_CONSTANTS * sizeof(*ret));
        ret[0] = m->layers[0].activation;
        ret[1] = m->layers[0].o.act;
}
