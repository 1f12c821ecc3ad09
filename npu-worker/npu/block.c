/* Attention blocks as one command each: see block.h. */
#include "npu-worker/npu/block.h"
#include "npu-worker/npu/private.h"

#include <assert.h>

#include "common/log.h"

struct tdm_npu_block {
        struct tdm_npu *npu;
        struct tdm_npu_block *next;
        struct tdm_npu_block_plan plan;
        uint32_t n_variants, max_rows;
        struct tdm_xrt_buffer *a, *c, *table;
        void *a_map, *c_map, *table_map;
        uint64_t cache_bytes, reserved_bytes;
        struct tdm_xrt_buffer *cache;    /* NULL: none yet */
        uint8_t *cache_host, *cache_map; /* the arena's; the buffer's where it is a copy, else NULL */
        struct tdm_xrt_run *runs[TDM_NPU_MAX_VARIANTS];
};

struct tdm_npu_block_weights {
        struct tdm_npu_block *block;
        struct tdm_xrt_buffer *buffer;
        void *map;
};

static uint32_t q_width(const struct tdm_npu_block_plan *plan)
{
        return plan->n_heads * plan->head_dim;
}

static uint64_t a_bytes(const struct tdm_npu_block *b, uint32_t n_rows)
{
        return (uint64_t)n_rows * b->plan.d_model * 2;
}

static uint64_t c_bytes(const struct tdm_npu_block *b, uint32_t n_rows)
{
        return (uint64_t)n_rows * b->plan.d_model * 4;
}

static uint64_t table_bytes(const struct tdm_npu_block *b, uint32_t n_rows)
{
        return tdm_npu_attention_table_bytes(n_rows, b->plan.head_dim, b->plan.pages);
}

static uint64_t weights_bytes(const struct tdm_npu_block_plan *plan)
{
        return 2 * (uint64_t)plan->d_model * (plan->width + q_width(plan));
}

/* ---- making ---- */

void tdm_npu_block_free_runs(struct tdm_npu_block *b)
{
        for (uint32_t v = 0; v < b->n_variants; v++) {
                if (b->runs[v])
                        b->npu->xrt->run_free(b->runs[v]);
                b->runs[v] = NULL;
        }
}

int tdm_npu_block_make_runs(struct tdm_npu_block *b, struct tdm_error *err)
{
        const struct tdm_xrt_front *xrt = b->npu->xrt;

        for (uint32_t v = 0; v < b->n_variants; v++) {
                const struct tdm_npu_program *p = b->plan.variants[v];
                int r = tdm_npu_run_new(b->npu, p, &b->runs[v], err);

                if (r != 0)
                        return r;
                r = xrt->run_set_buffer(b->runs[v], TDM_NPU_ARG_DATA + p->argument[0], b->a);
                if (r == 0)
                        r = xrt->run_set_buffer(b->runs[v], TDM_NPU_ARG_DATA + p->argument[2], b->c);
                if (r == 0)
                        r = xrt->run_set_buffer(b->runs[v], TDM_NPU_ARG_DATA + p->argument[3], b->table);
                if (r < 0)
                        return tdm_npu_xrt_error(b->npu, r, err, "an NPU command does not take its arguments");
        }
        return 0;
}

struct tdm_npu_block *tdm_npu_block_next(const struct tdm_npu_block *block)
{
        return block->next;
}

int tdm_npu_block_new(struct tdm_npu *npu, const struct tdm_npu_block_plan *plan, uint32_t max_rows,
                      uint64_t cache_bytes, struct tdm_npu_block **ret, struct tdm_error *err)
{
        struct tdm_npu_block *b = calloc(1, sizeof(*b));
        int r;

        if (!b)
                return tdm_error_set(err, -ENOMEM, "no memory for an attention block on the NPU");
        b->npu = npu;
        b->cache_bytes = cache_bytes;
        b->plan = *plan;
        while (b->n_variants < plan->n_variants &&
               (b->n_variants == 0 || plan->variants[b->n_variants - 1]->m < max_rows))
                b->n_variants++;
        b->max_rows = plan->variants[b->n_variants - 1]->m;
        b->next = npu->blocks;
        npu->blocks = b;
        if (cache_bytes > tdm_npu_budget_left(npu)) {
                tdm_npu_block_destroy(b);
                return tdm_error_set(err, TDM_E_NO_MEMORY, "the NPU's budget has no room for a cache of %llu MiB",
                                     (unsigned long long)(cache_bytes >> 20));
        }
        npu->used_bytes += b->reserved_bytes = cache_bytes;
        r = tdm_npu_buffer(npu, a_bytes(b, b->max_rows), TDM_NPU_ARG_DATA, &b->a, &b->a_map, err);
        if (r == 0)
                r = tdm_npu_buffer(npu, c_bytes(b, b->max_rows), TDM_NPU_ARG_DATA, &b->c, &b->c_map, err);
        if (r == 0)
                r = tdm_npu_buffer(npu, table_bytes(b, b->max_rows), TDM_NPU_ARG_DATA, &b->table, &b->table_map, err);
        if (r == 0) {
                memset(b->a_map, 0, a_bytes(b, b->max_rows));
                r = tdm_npu_block_make_runs(b, err);
        }
        if (r != 0) {
                tdm_npu_block_destroy(b);
                return r;
        }
        *ret = b;
        return 0;
}

void tdm_npu_block_destroy(struct tdm_npu_block *b)
{
        if (!b)
                return;
        for (struct tdm_npu_block **at = &b->npu->blocks; *at; at = &(*at)->next)
                if (*at == b) {
                        *at = b->next;
                        break;
                }
        tdm_npu_block_free_runs(b);
        tdm_npu_buffer_free(b->npu, b->a, a_bytes(b, b->max_rows));
        tdm_npu_buffer_free(b->npu, b->c, c_bytes(b, b->max_rows));
        tdm_npu_buffer_free(b->npu, b->table, table_bytes(b, b->max_rows));
        if (b->cache)
                b->npu->xrt->buffer_free(b->cache);
        b->npu->used_bytes -= b->reserved_bytes;
        free(b);
}

uint32_t tdm_npu_block_rows(const struct tdm_npu_block *b)
{
        return b->max_rows;
}

int tdm_npu_block_set_cache(struct tdm_npu_block *b, void *cache, struct tdm_error *err)
{
        const struct tdm_xrt_front *xrt = b->npu->xrt;
        unsigned group = b->npu->groups[TDM_NPU_ARG_DATA];
        int r = -ENOMEM;

        if (b->cache)
                xrt->buffer_free(b->cache);
        b->cache = NULL;
        b->cache_map = NULL;
        b->cache_host = cache;
        if (!cache)
                return 0;
        if (b->cache_bytes <= tdm_npu_memlock(b->npu)) {
                r = xrt->buffer_user(b->npu->device, cache, b->cache_bytes, group, &b->cache);
                if (r == 0)
                        return 0;
                tdm_log_warning("npu: the cache cannot be imported and is copied: %s", xrt->error());
        }
        r = xrt->buffer_new(b->npu->device, b->cache_bytes, TDM_XRT_DATA, group, &b->cache);
        if (r < 0)
                return tdm_npu_xrt_error(b->npu, r, err, "no NPU buffer for the cache");
        b->cache_map = xrt->buffer_map(b->cache);
        return b->cache_map ? 0 :
                              tdm_npu_xrt_error(b->npu, -ENOMEM, err, "the NPU's copy of the cache cannot be mapped");
}

static int part_to_device(struct tdm_npu_block *b, const struct tdm_npu_part *part)
{
        if (b->cache_map)
                memcpy(b->cache_map + part->offset, b->cache_host + part->offset, part->size_bytes);
        return b->npu->xrt->buffer_part(b->cache, part->offset, part->size_bytes, 1);
}

static int part_from_device(struct tdm_npu_block *b, const struct tdm_npu_part *part)
{
        int r = b->npu->xrt->buffer_part(b->cache, part->offset, part->size_bytes, 0);

        if (r == 0 && b->cache_map)
                memcpy(b->cache_host + part->offset, b->cache_map + part->offset, part->size_bytes);
        return r;
}

/* ---- weights ---- */

int tdm_npu_block_weights_new(struct tdm_npu_block *block, struct tdm_npu_block_weights **ret, struct tdm_error *err)
{
        struct tdm_npu_block_weights *w = calloc(1, sizeof(*w));
        int r;

        if (!w)
                return tdm_error_set(err, -ENOMEM, "no memory for weights on the NPU");
        w->block = block;
        r = tdm_npu_buffer(block->npu, weights_bytes(&block->plan), TDM_NPU_ARG_DATA, &w->buffer, &w->map, err);
        if (r != 0) {
                free(w);
                return r;
        }
        *ret = w;
        return 0;
}

void tdm_npu_block_weights_fill(struct tdm_npu_block_weights *w, bool out, uint32_t output, const float *values)
{
        const struct tdm_npu_block_plan *b = &w->block->plan;
        const struct tdm_npu_plan plan = { .k = out ? q_width(b) : b->d_model,
                                           .n = out ? b->d_model : b->width,
                                           .type = TDM_NPU_BF16,
                                           .b = { .kind = TDM_NPU_COLUMNS } };

        tdm_npu_put_weights(&plan, values, plan.k, output,
                            (uint16_t *)w->map + (out ? (size_t)b->width * b->d_model : 0));
}

int tdm_npu_block_weights_finish(struct tdm_npu_block_weights *w, struct tdm_error *err)
{
        struct tdm_npu *npu = w->block->npu;
        int r = npu->xrt->buffer_to_device(w->buffer, weights_bytes(&w->block->plan));

        return r < 0 ? tdm_npu_xrt_error(npu, r, err, "weights do not reach the NPU") : 0;
}

void tdm_npu_block_weights_destroy(struct tdm_npu_block_weights *w)
{
        if (!w)
                return;
        tdm_npu_buffer_free(w->block->npu, w->buffer, weights_bytes(&w->block->plan));
        free(w);
}

/* ---- running ---- */

static uint32_t variant_of(const struct tdm_npu_block *b, uint32_t n_rows)
{
        uint32_t v = 0;

        while (v + 1 < b->n_variants && b->plan.variants[v]->m < n_rows)
                v++;
        return v;
}

void tdm_npu_block_table(struct tdm_npu_block *b, uint32_t n_rows, struct tdm_npu_block_table *ret)
{
        uint32_t rows = b->plan.variants[variant_of(b, n_rows)]->m;

        *ret = (struct tdm_npu_block_table){ .head = b->table_map, .n_pages = b->plan.pages };
        ret->gains = (float *)(ret->head + 1);
        ret->positions = (uint32_t *)(ret->gains + 2 * b->plan.head_dim);
        ret->cos_sin = (float *)(ret->positions + rows);
        ret->pages = (uint32_t *)(ret->cos_sin + (size_t)rows * b->plan.head_dim);
}

void tdm_npu_block_put(struct tdm_npu_block *b, uint32_t row, const float *x)
{
        const struct tdm_npu_plan plan = { .k = b->plan.d_model, .type = TDM_NPU_BF16 };

        tdm_npu_put_row(&plan, x, b->plan.d_model, (uint8_t *)b->a_map + a_bytes(b, row));
}

static const char *try_once(struct tdm_npu_block *b, const struct tdm_npu_block_weights *w, uint32_t variant,
                            const struct tdm_npu_part *reads, size_t n_reads, bool *lost)
{
        const struct tdm_npu_program *p = b->plan.variants[variant];
        const struct tdm_xrt_front *xrt = b->npu->xrt;
        int r = xrt->run_set_buffer(b->runs[variant], TDM_NPU_ARG_DATA + p->argument[1], w->buffer);

        *lost = true;
        if (r == 0)
                r = xrt->run_set_buffer(b->runs[variant], TDM_NPU_ARG_DATA + p->argument[4], b->cache);
        if (r == 0)
                r = xrt->buffer_to_device(b->a, a_bytes(b, p->m));
        if (r == 0)
                r = xrt->buffer_to_device(b->table, table_bytes(b, p->m));
        for (size_t i = 0; r == 0 && i < n_reads; i++)
                r = part_to_device(b, &reads[i]);
        return r < 0 ? "its input does not reach the NPU" : tdm_npu_execute(b->npu, &b->runs[variant], 1, lost);
}

static const char *take_back(struct tdm_npu_block *b, uint32_t variant, const struct tdm_npu_part *writes,
                             size_t n_writes)
{
        const struct tdm_xrt_front *xrt = b->npu->xrt;
        int r = xrt->buffer_from_device(b->c, c_bytes(b, b->plan.variants[variant]->m));

        for (size_t i = 0; r == 0 && i < n_writes; i++)
                r = part_from_device(b, &writes[i]);
        return r < 0 ? "its output does not come back" : NULL;
}

void tdm_npu_block_run(struct tdm_npu_block *b, const struct tdm_npu_block_weights *w, uint32_t n_rows,
                       const struct tdm_npu_part *reads, size_t n_reads, const struct tdm_npu_part *writes,
                       size_t n_writes)
{
        uint32_t variant = variant_of(b, n_rows);

        assert(n_rows > 0 && n_rows <= b->max_rows && w->block == b && b->cache);
        for (unsigned n_tries = 1;; n_tries++) {
                bool lost;
                const char *why = try_once(b, w, variant, reads, n_reads, &lost);

                if (!why) {
                        lost = true;
                        why = take_back(b, variant, writes, n_writes);
                }
                if (!why)
                        break;
                tdm_npu_try_again(b->npu, why, lost, n_tries);
        }
        b->npu->counters.n_macs += (uint64_t)n_rows * b->plan.d_model * (b->plan.width + q_width(&b->plan));
}

const float *tdm_npu_block_get(const struct tdm_npu_block *b, uint32_t row)
{
        return (const float *)b->c_map + (size_t)row * b->plan.d_model;
}
