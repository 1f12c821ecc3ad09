/* Matrix products on the NPU: buffers, commands, one submission, and what follows a failure. See npu.h. */
#include "npu-worker/npu/private.h"

#include <assert.h>

struct tdm_npu_weights {
        struct tdm_npu_product *product;
        struct tdm_xrt_buffer **tiles; /* [commands] */
        void **maps;
        float *scale; /* [n_segments][rows] */
};

static uint64_t a_bytes(const struct tdm_npu_product *p, uint32_t n_rows)
{
        return n_rows * tdm_npu_row_bytes(p->plan.type, p->plan.k);
}

static uint64_t c_bytes(const struct tdm_npu_product *p, uint32_t n_rows)
{
        return (uint64_t)n_rows * p->plan.n * 4;
}

/* ---- making ---- */

void tdm_npu_product_free_runs(struct tdm_npu_product *p)
{
        for (uint32_t i = 0; p->runs && i < p->n_variants * tdm_npu_plan_commands(&p->plan); i++) {
                if (p->runs[i])
                        p->npu->xrt->run_free(p->runs[i]);
                p->runs[i] = NULL;
        }
}

static int make_run(struct tdm_npu_product *p, const struct tdm_npu_program *program, uint32_t command,
                    struct tdm_xrt_run **ret, struct tdm_error *err)
{
        const struct tdm_xrt_front *xrt = p->npu->xrt;
        int r = tdm_npu_run_new(p->npu, program, ret, err);

        if (r != 0)
                return r;
        r = xrt->run_set_buffer(*ret, TDM_NPU_ARG_DATA + program->argument[0], p->a[command % p->plan.n_segments]);
        if (r == 0)
                r = xrt->run_set_buffer(*ret, TDM_NPU_ARG_DATA + program->argument[2], p->c[command]);
        return r < 0 ? tdm_npu_xrt_error(p->npu, r, err, "an NPU command does not take its arguments") : 0;
}

int tdm_npu_product_make_runs(struct tdm_npu_product *p, struct tdm_error *err)
{
        uint32_t n = tdm_npu_plan_commands(&p->plan);

        for (uint32_t v = 0; v < p->n_variants; v++)
                for (uint32_t i = 0; i < n; i++) {
                        int r = make_run(p, p->plan.variants[v], i, &p->runs[v * n + i], err);

                        if (r != 0)
                                return r;
                }
        return 0;
}

int tdm_npu_product_new(struct tdm_npu *npu, const struct tdm_npu_plan *plan, uint32_t max_rows,
                        struct tdm_npu_product **ret, struct tdm_error *err)
{
        uint32_t n = tdm_npu_plan_commands(plan);
        struct tdm_npu_product *p = calloc(1, sizeof(*p));
        int r = 0;

        if (!p)
                return tdm_error_set(err, -ENOMEM, "no memory for an NPU product");
        p->npu = npu;
        p->plan = *plan;
        p->n_variants = tdm_npu_plan_variant(plan, max_rows) + 1;
        p->max_rows = plan->variants[p->n_variants - 1]->m;
        p->a = calloc(plan->n_segments, sizeof(*p->a));
        p->a_map = calloc(plan->n_segments, sizeof(*p->a_map));
        p->c = calloc(n, sizeof(*p->c));
        p->c_map = calloc(n, sizeof(*p->c_map));
        p->runs = calloc((size_t)p->n_variants * n, sizeof(struct tdm_xrt_run *));
        p->row_scale = calloc((size_t)p->max_rows * plan->n_segments, sizeof(*p->row_scale));
        if (!p->a || !p->a_map || !p->c || !p->c_map || !p->runs || !p->row_scale)
                r = tdm_error_set(err, -ENOMEM, "no memory for an NPU product");
        for (uint32_t s = 0; r == 0 && s < plan->n_segments; s++) {
                r = tdm_npu_buffer(npu, a_bytes(p, p->max_rows), TDM_NPU_ARG_DATA, &p->a[s], &p->a_map[s], err);
                if (r == 0)
                        /* rows of a program that a step does not fill */
                        memset(p->a_map[s], 0, a_bytes(p, p->max_rows));
        }
        for (uint32_t i = 0; r == 0 && i < n; i++)
                r = tdm_npu_buffer(npu, c_bytes(p, p->max_rows), TDM_NPU_ARG_DATA, &p->c[i], (void **)&p->c_map[i],
                                   err);
        if (r == 0)
                r = tdm_npu_product_make_runs(p, err);
        p->next = npu->products;
        npu->products = p;
        if (r != 0) {
                tdm_npu_product_destroy(p);
                return r;
        }
        *ret = p;
        return 0;
}

void tdm_npu_product_destroy(struct tdm_npu_product *p)
{
        if (!p)
                return;
        for (struct tdm_npu_product **at = &p->npu->products; *at; at = &(*at)->next)
                if (*at == p) {
                        *at = p->next;
                        break;
                }
        tdm_npu_product_free_runs(p);
        for (uint32_t s = 0; p->a && s < p->plan.n_segments; s++)
                tdm_npu_buffer_free(p->npu, p->a[s], a_bytes(p, p->max_rows));
        for (uint32_t i = 0; p->c && i < tdm_npu_plan_commands(&p->plan); i++)
                tdm_npu_buffer_free(p->npu, p->c[i], c_bytes(p, p->max_rows));
        free(p->a);
        free(p->a_map);
        free(p->c);
        free(p->c_map);
        free(p->runs);
        free(p->row_scale);
        free(p);
}

uint32_t tdm_npu_product_rows(const struct tdm_npu_product *p)
{
        return p->max_rows;
}

enum tdm_npu_type tdm_npu_product_type(const struct tdm_npu_product *p)
{
        return p->plan.type;
}

/* ---- weights ---- */

int tdm_npu_weights_new(struct tdm_npu_product *product, struct tdm_npu_weights **ret, struct tdm_error *err)
{
        const struct tdm_npu_plan *plan = &product->plan;
        struct tdm_npu_weights *w = calloc(1, sizeof(*w));
        uint32_t n = tdm_npu_plan_commands(plan);
        int r = 0;

        if (!w)
                return tdm_error_set(err, -ENOMEM, "no memory for weights on the NPU");
        w->product = product;
        w->tiles = calloc(n, sizeof(struct tdm_xrt_buffer *));
        w->maps = calloc(n, sizeof(*w->maps));
        w->scale = calloc((size_t)plan->n_segments * plan->rows, sizeof(*w->scale));
        if (!w->tiles || !w->maps || !w->scale)
                r = tdm_error_set(err, -ENOMEM, "no memory for weights on the NPU");
        for (uint32_t i = 0; r == 0 && i < n; i++) {
                r = tdm_npu_buffer(product->npu, tdm_npu_plan_tile_bytes(plan), TDM_NPU_ARG_DATA, &w->tiles[i],
                                   &w->maps[i], err);
                if (r == 0)
                        memset(w->maps[i], 0, tdm_npu_plan_tile_bytes(plan)); /* outputs past the last */
        }
        if (r != 0) {
                tdm_npu_weights_destroy(w);
                return r;
        }
        *ret = w;
        return 0;
}

void tdm_npu_weights_fill(struct tdm_npu_weights *w, uint32_t output, const float *values)
{
        const struct tdm_npu_plan *plan = &w->product->plan;
        uint32_t tile = output / plan->n;

        assert(output < plan->rows);
        for (uint32_t s = 0; s < plan->n_segments; s++)
                w->scale[(size_t)s * plan->rows + output] = tdm_npu_put_weights(
                        plan, values + (size_t)s * plan->k, TDM_MIN(plan->k, plan->cols - s * plan->k),
                        output % plan->n, w->maps[tile * plan->n_segments + s]);
}

void tdm_npu_weights_fill_q4(struct tdm_npu_weights *w, uint32_t output, const int8_t *q, const uint16_t *scales)
{
        const struct tdm_npu_plan *plan = &w->product->plan;
        uint32_t tile = output / plan->n;

        assert(output < plan->rows);
        for (uint32_t s = 0; s < plan->n_segments; s++)
                tdm_npu_put_q4(plan, q + (size_t)s * plan->k, scales + (size_t)s * (plan->k / TDM_NPU_INT4_BLOCK),
                               TDM_MIN(plan->k, plan->cols - s * plan->k), output % plan->n,
                               w->maps[tile * plan->n_segments + s]);
}

int tdm_npu_weights_finish(struct tdm_npu_weights *w, struct tdm_error *err)
{
        struct tdm_npu *npu = w->product->npu;

        for (uint32_t i = 0; i < tdm_npu_plan_commands(&w->product->plan); i++) {
                int r = npu->xrt->buffer_to_device(w->tiles[i], tdm_npu_plan_tile_bytes(&w->product->plan));

                if (r < 0)
                        return tdm_npu_xrt_error(npu, r, err, "weights do not reach the NPU");
        }
        return 0;
}

void tdm_npu_weights_destroy(struct tdm_npu_weights *w)
{
        if (!w)
                return;
        for (uint32_t i = 0; w->tiles && i < tdm_npu_plan_commands(&w->product->plan); i++)
                tdm_npu_buffer_free(w->product->npu, w->tiles[i], tdm_npu_plan_tile_bytes(&w->product->plan));
        free(w->tiles);
        free(w->maps);
        free(w->scale);
        free(w);
}

/* ---- running ---- */

void tdm_npu_product_put(struct tdm_npu_product *p, uint32_t row, const float *x)
{
        const struct tdm_npu_plan *plan = &p->plan;

        assert(row < p->max_rows);
        for (uint32_t s = 0; s < plan->n_segments; s++)
                p->row_scale[(size_t)row * plan->n_segments + s] =
                        tdm_npu_put_row(plan, x + (size_t)s * plan->k, TDM_MIN(plan->k, plan->cols - s * plan->k),
                                        (uint8_t *)p->a_map[s] + a_bytes(p, row));
}

/* NULL, or why it failed; `lost`: the context is. Does not return where a command may still be running. */
static const char *try_once(struct tdm_npu_product *p, const struct tdm_npu_weights *w, uint32_t variant, bool *lost)
{
        const struct tdm_npu_program *program = p->plan.variants[variant];
        const struct tdm_xrt_front *xrt = p->npu->xrt;
        uint32_t n = tdm_npu_plan_commands(&p->plan);
        struct tdm_xrt_run *const *runs = &p->runs[variant * n];
        const char *why;
        int r = 0;

        *lost = true;
        for (uint32_t i = 0; r == 0 && i < n; i++)
                r = xrt->run_set_buffer(runs[i], TDM_NPU_ARG_DATA + program->argument[1], w->tiles[i]);
        for (uint32_t s = 0; r == 0 && s < p->plan.n_segments; s++)
                r = xrt->buffer_to_device(p->a[s], a_bytes(p, program->m));
        if (r < 0)
                return "its input does not reach the NPU";
        why = tdm_npu_execute(p->npu, runs, n, lost);
        if (why)
                return why;
        for (uint32_t i = 0; r >= 0 && i < n; i++)
                r = xrt->buffer_from_device(p->c[i], c_bytes(p, program->m));
        if (r < 0)
                return "its output does not come back";
        return NULL;
}

void tdm_npu_product_run(struct tdm_npu_product *p, const struct tdm_npu_weights *w, uint32_t n_rows)
{
        uint32_t variant = tdm_npu_plan_variant(&p->plan, n_rows);
        const char *why;
        bool lost;

        assert(n_rows > 0 && n_rows <= p->max_rows && w->product == p);
        for (unsigned n_tries = 1; (why = try_once(p, w, variant, &lost)); n_tries++)
                tdm_npu_try_again(p->npu, why, lost, n_tries);
        p->npu->counters.n_macs += (uint64_t)n_rows * p->plan.rows * p->plan.cols;
}

void tdm_npu_product_get(const struct tdm_npu_product *p, const struct tdm_npu_weights *w, uint32_t row, uint32_t first,
                         uint32_t n, float *y)
{
        const struct tdm_npu_plan *plan = &p->plan;

        assert(first + n <= plan->rows);
        for (uint32_t i = 0; i < n;) {
                uint32_t output = first + i, tile = output / plan->n, column = output % plan->n;
                uint32_t end = TDM_MIN(n, i + plan->n - column);

                for (uint32_t s = 0; s < plan->n_segments; s++) {
                        const void *c = p->c_map[tile * plan->n_segments + s];
                        size_t at = (size_t)row * plan->n + column;
                        const float *scale = w->scale + (size_t)s * plan->rows + output;
                        float x_scale = p->row_scale[(size_t)row * plan->n_segments + s];

                        for (uint32_t j = 0; j < end - i; j++) {
                                float v = plan->type == TDM_NPU_INT8 ?
                                                  (float)((const int32_t *)c)[at + j] * (scale[j] * x_scale) :
                                                  ((const float *)c)[at + j];

                                y[i + j] = s == 0 ? v : y[i + j] + v;
                        }
                }
                i = end;
        }
}
