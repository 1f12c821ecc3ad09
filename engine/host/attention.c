/* Who computes which span of whose keys: see attention.h. The arithmetic is in the kernels.
 *
 * Rows of one sequence that follow each other and the heads of one kv head make an item: a call of attend_span() serves
 * them all, so that a key is loaded once for several queries. Usually a thread takes an item and goes through its
 * spans. A single long sequence has too few items for that; then the unit of work is one span of one item, in waves
 * that fit the scratch, each followed by the merge. */
#include <assert.h>
#include <math.h>

#include "engine/host/attention.h"

#define ITEM_QUERIES 32u      /* of an item, at most, where a single row has not more */
#define ITEM_QUERIES_APART 8u /* the same where spans are computed apart: scratch grows with it */
#define SLOTS_PER_THREAD 16u
#define SLOTS_BYTES_MAX (UINT64_C(16) << 20)
#define CALL_QUERIES 64u /* in one call of attend_span() */
/* Multiplications and additions of an item, at most: the heart beats after each, every few milliseconds. More is cut
 * into spans. The C reference needs some 4 ns for one. */
#define ITEM_MACS_MAX (UINT64_C(256) << 20)
#define ITEM_MACS_MAX_C (UINT64_C(4) << 20)

struct block { /* rows of one sequence */
        uint32_t seq, first_row, n_rows;
};

struct unit { /* one span of one item */
        uint32_t item, span;
};

struct tdm_attention {
        uint32_t max_rows, max_queries, n_slots, scratch_stride;
        uint32_t width;       /* of a partial result: head_dim, then m and l, padded to a cache line */
        struct block *blocks; /* [max_rows] */
        struct unit *units;   /* [n_slots] */
        float *running;       /* [max_rows * n_heads][2]: m, l */
        float *partial;       /* [n_slots][max_queries][width] */
        float *scratch;       /* [n_threads][scratch_stride] */
        size_t memory_bytes;
};

/* One call's values, read by all threads. */
struct job {
        struct tdm_attention *a;
        const struct tdm_kernels *kernels;
        const struct tdm_hparams *hp;
        const struct tdm_layer_sizes *sizes; /* of the layer */
        const struct tdm_kv_geometry *kv;
        const uint8_t *kv_base;
        const struct tdm_step *step;
        enum tdm_kv_group group;
        uint32_t layer;
        uint32_t window; /* of the layer; 0: none */
        bool is_both;    /* rows see those behind them too */
        uint32_t reach;  /* then; UINT32_MAX: all */
        uint32_t first_row;
        uint32_t n_units;   /* of this wave */
        const float *q;     /* [n_rows][n_heads][head_dim] */
        const float *sinks; /* [n_heads]; NULL: none */
        float softcap;      /* of scores; 0: none */
        float *out;         /* [n_rows][n_heads][head_dim] */
};

static void *attention_alloc(size_t n, size_t size, size_t *total)
{
        size_t bytes = TDM_ALIGN_UP(n * size, (size_t)64);

        *total += bytes;
        return aligned_alloc(64, bytes);
}

int tdm_attention_new(struct tdm_attention **ret, const struct tdm_hparams *hp, uint32_t max_rows, unsigned n_threads)
{
        uint32_t heads_per_kv = 1;
        struct tdm_attention *a = calloc(1, sizeof(*a));
        uint64_t slot_bytes;

        if (!a)
                return -ENOMEM;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                heads_per_kv = TDM_MAX(heads_per_kv, hp->layers[i].n_heads / hp->layers[i].n_kv_heads);
        a->max_rows = max_rows;
        a->max_queries = TDM_MAX(ITEM_QUERIES_APART, heads_per_kv);
        a->width = TDM_ALIGN_UP(hp->head_dim + 2, 16u);
        slot_bytes = (uint64_t)a->max_queries * a->width * sizeof(float);
        a->n_slots =
                (uint32_t)TDM_MAX(TDM_MIN(SLOTS_PER_THREAD * (uint64_t)n_threads, SLOTS_BYTES_MAX / slot_bytes), 1u);
        a->scratch_stride = TDM_ALIGN_UP(TDM_ATTEND_SCRATCH(hp->head_dim), 16u);
        a->blocks = attention_alloc(max_rows, sizeof(*a->blocks), &a->memory_bytes);
        a->units = attention_alloc(a->n_slots, sizeof(*a->units), &a->memory_bytes);
        a->running = attention_alloc((size_t)max_rows * hp->n_heads, 2 * sizeof(float), &a->memory_bytes);
        a->partial = attention_alloc((size_t)a->n_slots * a->max_queries, a->width * sizeof(float), &a->memory_bytes);
        a->scratch = attention_alloc(n_threads, a->scratch_stride * sizeof(float), &a->memory_bytes);
        if (!a->blocks || !a->units || !a->running || !a->partial || !a->scratch) {
                tdm_attention_destroy(a);
                return -ENOMEM;
        }
        *ret = a;
        return 0;
}

void tdm_attention_destroy(struct tdm_attention *a)
{
        if (!a)
                return;
        free(a->blocks);
        free(a->units);
        free(a->running);
        free(a->partial);
        free(a->scratch);
        free(a);
}

size_t tdm_attention_scratch_bytes(const struct tdm_attention *a)
{
        return a->memory_bytes;
}

/* The picture that a row is of; NULL: none. */
static const struct tdm_step_picture *picture_of(const struct job *job, uint32_t row)
{
        uint32_t picture = job->step->rows[row].picture;

        return picture ? &job->step->pictures[picture - 1] : NULL;
}

/* The first key that a row sees. A picture is seen whole from within, also what a window leaves behind. */
static uint32_t first_key(const struct job *job, uint32_t row)
{
        const struct tdm_step_picture *picture = picture_of(job, row);
        uint32_t position = job->step->rows[row].position, first;

        if (job->is_both)
                return position > job->reach ? position - job->reach : 0;
        first = job->window && position + 1 > job->window ? position + 1 - job->window : 0;
        return picture ? TDM_MIN(first, position - (row - picture->first_row)) : first;
}

/* The last one. */
static uint32_t last_key(const struct job *job, uint32_t row)
{
        const struct tdm_step *step = job->step;
        uint32_t position = step->rows[row].position;
        const struct tdm_step_seq *seq = &step->seqs[step->rows[row].seq];
        const struct tdm_step_picture *picture = picture_of(job, row);

        if (!job->is_both)
                return picture ? position + (picture->first_row + picture->n_rows - 1 - row) : position;
        return position + TDM_MIN(job->reach, seq->first_row + seq->n_rows - 1 - row);
}

/* Spans of an item: first and last. Of rows that follow each other none sees a key before the first one's first, and
 * none one behind the last one's last. */
static void block_spans(const struct job *job, const struct block *block, uint32_t *first, uint32_t *last)
{
        *first = first_key(job, block->first_row) / TDM_ATTENTION_SPAN;
        *last = last_key(job, block->first_row + block->n_rows - 1) / TDM_ATTENTION_SPAN;
}

/* Query i of an item is head i % heads_per_kv of its row i / heads_per_kv: where it lies in q, out and running. */
static size_t query_index(const struct job *job, const struct block *block, uint32_t kv_head, uint32_t i)
{
        uint32_t heads_per_kv = job->sizes->n_heads / job->sizes->n_kv_heads;

        return (size_t)(block->first_row - job->first_row + i / heads_per_kv) * job->sizes->n_heads +
               kv_head * heads_per_kv + i % heads_per_kv;
}

static struct tdm_attend_query running_query(const struct job *job, size_t index)
{
        return (struct tdm_attend_query){
                .q = job->q + index * job->sizes->head_dim,
                .o = job->out + index * job->sizes->head_dim,
                .m = job->a->running + 2 * index,
                .l = job->a->running + 2 * index + 1,
        };
}

/* The part of a span that a row sees; false: none. */
static bool row_range(const struct job *job, uint32_t row, uint32_t base, uint32_t *lo, uint32_t *hi)
{
        uint32_t first = first_key(job, row), last = last_key(job, row);

        if (last < base || first >= base + TDM_ATTENTION_SPAN)
                return false;
        *lo = first > base ? first - base : 0;
        *hi = TDM_MIN(last + 1, base + TDM_ATTENTION_SPAN) - base;
        return true;
}

/* The item's queries over one span, into the running results or, with partial [queries][width], apart. */
static void attend_queries(const struct job *job, uint32_t item, uint32_t span_index, float *partial, unsigned thread)
{
        const struct block *block = &job->a->blocks[item / job->sizes->n_kv_heads];
        uint32_t kv_head = item % job->sizes->n_kv_heads, heads_per_kv = job->sizes->n_heads / job->sizes->n_kv_heads;
        uint32_t base = span_index * TDM_ATTENTION_SPAN, lowest = TDM_ATTENTION_SPAN, highest = 0, lo, hi;
        const uint32_t *table = job->step->tables[job->group] + (size_t)block->seq * job->step->table_entries +
                                base / TDM_KV_PAGE_TOKENS;
        struct tdm_attend_query queries[CALL_QUERIES];
        struct tdm_attend_span span = {
                .type = (enum tdm_kv_type)job->kv->type,
                .head_dim = job->sizes->head_dim,
                .queries = queries,
                .softcap = job->softcap,
                .scratch = job->a->scratch + (size_t)thread * job->a->scratch_stride,
        };

        for (uint32_t row = 0; row < block->n_rows; row++) {
                if (!row_range(job, block->first_row + row, base, &lo, &hi))
                        continue;
                lowest = TDM_MIN(lowest, lo);
                highest = TDM_MAX(highest, hi);
        }
        for (uint32_t t = lowest; t < highest; t += TDM_KV_PAGE_TOKENS - t % TDM_KV_PAGE_TOKENS)
                span.parts[t / TDM_KV_PAGE_TOKENS] =
                        job->kv_base + tdm_kv_part_offset(job->kv, job->layer, table[t / TDM_KV_PAGE_TOKENS], kv_head);
        for (uint32_t i = 0; i < block->n_rows * heads_per_kv; i++) {
                struct tdm_attend_query query = running_query(job, query_index(job, block, kv_head, i));

                if (!row_range(job, block->first_row + i / heads_per_kv, base, &query.lo, &query.hi))
                        continue;
                if (partial) {
                        query.o = partial + (size_t)i * job->a->width;
                        query.m = query.o + job->sizes->head_dim;
                        query.l = query.m + 1;
                }
                queries[span.n_queries++] = query;
                if (span.n_queries == CALL_QUERIES) {
                        job->kernels->attend_span(&span);
                        span.n_queries = 0;
                }
        }
        if (span.n_queries)
                job->kernels->attend_span(&span);
}

/* The factor of a row's sum of values. head: counted over all heads. */
static float final_scale(const struct job *job, const struct tdm_attend_query *query, uint32_t head)
{
        float sink, most, e[2];

        if (!job->sinks)
                return 1.0f / *query->l;
        sink = job->sinks[head];
        most = *query->m > sink ? *query->m : sink;
        e[0] = *query->m - most;
        e[1] = sink - most;
        job->kernels->exp_array(e, 2, e);
        return e[0] / fmaf(*query->l, e[0], e[1]);
}

/* o / l, with one rounding more than a quotient. */
static void attention_finish_item(const struct job *job, uint32_t item)
{
        const struct block *block = &job->a->blocks[item / job->sizes->n_kv_heads];
        uint32_t n_queries = block->n_rows * (job->sizes->n_heads / job->sizes->n_kv_heads);

        for (uint32_t i = 0; i < n_queries; i++) {
                size_t index = query_index(job, block, item % job->sizes->n_kv_heads, i);
                struct tdm_attend_query query = running_query(job, index);
                float scale = final_scale(job, &query, (uint32_t)(index % job->sizes->n_heads));

                for (uint32_t d = 0; d < job->sizes->head_dim; d++)
                        query.o[d] *= scale;
        }
}

static void whole_item(void *arg, unsigned item, unsigned thread)
{
        const struct job *job = arg;
        uint32_t first, last;

        block_spans(job, &job->a->blocks[item / job->sizes->n_kv_heads], &first, &last);
        for (uint32_t span = first; span <= last; span++)
                attend_queries(job, item, span, NULL, thread);
        attention_finish_item(job, item);
}

static void one_unit(void *arg, unsigned index, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_attention *a = job->a;
        float *partial = a->partial + (size_t)index * a->max_queries * a->width;

        for (uint32_t i = 0; i < a->max_queries; i++)
                partial[(size_t)i * a->width + job->sizes->head_dim] = -INFINITY; /* m: nothing seen */
        attend_queries(job, a->units[index].item, a->units[index].span, partial, thread);
}

/* The wave's units of one item, left to right. chunk: the item, counted from the wave's first. */
static void merge_item(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        const struct tdm_attention *a = job->a;
        uint32_t item = a->units[0].item + chunk, heads_per_kv = job->sizes->n_heads / job->sizes->n_kv_heads, first,
                 last;
        const struct block *block = &a->blocks[item / job->sizes->n_kv_heads];
        bool finished = false;

        block_spans(job, block, &first, &last);
        for (uint32_t u = 0; u < job->n_units; u++) {
                if (a->units[u].item != item)
                        continue;
                for (uint32_t i = 0; i < block->n_rows * heads_per_kv; i++) {
                        struct tdm_attend_query into =
                                running_query(job, query_index(job, block, item % job->sizes->n_kv_heads, i));
                        float *o = a->partial + ((size_t)u * a->max_queries + i) * a->width;
                        struct tdm_attend_query part = { .o = o,
                                                         .m = o + job->sizes->head_dim,
                                                         .l = o + job->sizes->head_dim + 1 };

                        if (*part.m != -INFINITY)
                                job->kernels->attend_merge(&into, &part, job->sizes->head_dim);
                }
                finished = a->units[u].span == last;
        }
        if (finished)
                attention_finish_item(job, item);
}

static void run_apart(struct job *job, struct tdm_pool *pool, uint32_t n_items)
{
        struct tdm_attention *a = job->a;
        uint32_t item = 0, span, last;

        block_spans(job, &a->blocks[0], &span, &last);
        while (item < n_items) {
                job->n_units = 0;
                while (item < n_items && job->n_units < a->n_slots) {
                        a->units[job->n_units++] = (struct unit){ item, span };
                        if (span++ == last && ++item < n_items)
                                block_spans(job, &a->blocks[item / job->sizes->n_kv_heads], &span, &last);
                }
                tdm_pool_run(pool, job->n_units, one_unit, job);
                tdm_pool_run(pool, a->units[job->n_units - 1].item - a->units[0].item + 1, merge_item, job);
        }
}

/* Cuts the rows into blocks of one sequence each; returns how many, and the longest one's spans. */
static uint32_t cut_blocks(const struct job *job, uint32_t n_rows, uint32_t block_rows, uint32_t *ret_max_spans)
{
        uint32_t n_blocks = 0, end = job->first_row + n_rows, max_spans = 0;

        for (uint32_t row = job->first_row, n; row < end; row += n) {
                uint32_t seq = job->step->rows[row].seq, first, last;

                n = TDM_MIN(job->step->seqs[seq].first_row + job->step->seqs[seq].n_rows, end) - row;
                n = TDM_MIN(n, block_rows);
                job->a->blocks[n_blocks] = (struct block){ seq, row, n };
                block_spans(job, &job->a->blocks[n_blocks++], &first, &last);
                max_spans = TDM_MAX(max_spans, last - first + 1);
        }
        *ret_max_spans = max_spans;
        return n_blocks;
}

static void attention_run(struct job *job, struct tdm_pool *pool, uint32_t n_rows)
{
        struct tdm_attention *a = job->a;
        const struct tdm_kernels *kernels = job->kernels;
        uint32_t heads_per_kv = job->sizes->n_heads / job->sizes->n_kv_heads, n_threads = tdm_pool_n_threads(pool);
        uint32_t few = TDM_MAX(ITEM_QUERIES_APART / heads_per_kv, 1u), many = TDM_MAX(ITEM_QUERIES / heads_per_kv, 1u);
        uint32_t block_rows = n_rows * job->sizes->n_kv_heads / (4 * n_threads), n_items, max_spans;
        uint64_t row_macs = UINT64_C(2) * heads_per_kv * TDM_ATTENTION_SPAN * job->sizes->head_dim; /* of a span */
        uint64_t max_macs = strcmp(kernels->name, "c") == 0 ? ITEM_MACS_MAX_C : ITEM_MACS_MAX;
        bool is_long;

        assert(n_rows <= a->max_rows);
        for (size_t i = 0; i < (size_t)n_rows * job->sizes->n_heads; i++)
                a->running[2 * i] = -INFINITY;

        block_rows = TDM_MIN(TDM_MAX(block_rows, few), many);
        for (;; block_rows = TDM_MAX(block_rows / 2, few)) {
                n_items = cut_blocks(job, n_rows, block_rows, &max_spans) * job->sizes->n_kv_heads;
                is_long = block_rows * max_spans * row_macs > max_macs;
                if (!is_long || block_rows == few)
                        break;
        }
        if (block_rows == few && (is_long || (n_threads > 1 && max_spans > 1 && n_items < 2 * n_threads)))
                run_apart(job, pool, n_items);
        else
                tdm_pool_run(pool, n_items, whole_item, job);
}

static struct job make_job(struct tdm_attention *a, const struct tdm_kernels *kernels, const struct tdm_hparams *hp,
                           const struct tdm_kv_geometry *kv, const uint8_t *kv_base, const struct tdm_step *step,
                           uint32_t layer, uint32_t first_row, const float *q, const float *sinks, float softcap,
                           float *out)
{
        return (struct job){ .a = a,
                             .kernels = kernels,
                             .hp = hp,
                             .sizes = &hp->layers[layer],
                             .kv = kv,
                             .kv_base = kv_base,
                             .step = step,
                             .group = tdm_kv_group_of(hp, layer),
                             .layer = layer,
                             .window = hp->layers[layer].window,
                             .first_row = first_row,
                             .q = q,
                             .sinks = sinks,
                             .softcap = softcap,
                             .out = out };
}

void tdm_attention_run(struct tdm_attention *a, struct tdm_pool *pool, const struct tdm_kernels *kernels,
                       const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, const uint8_t *kv_base,
                       const struct tdm_step *step, uint32_t layer, uint32_t first_row, uint32_t n_rows, const float *q,
                       const float *sinks, float softcap, float *out)
{
        struct job job = make_job(a, kernels, hp, kv, kv_base, step, layer, first_row, q, sinks, softcap, out);

        attention_run(&job, pool, n_rows);
}

void tdm_attention_run_both(struct tdm_attention *a, struct tdm_pool *pool, const struct tdm_kernels *kernels,
                            const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv, const uint8_t *kv_base,
                            const struct tdm_step *step, uint32_t layer, uint32_t first_row, uint32_t n_rows,
                            const float *q, const float *sinks, float softcap, uint32_t reach, float *out)
{
        struct job job = make_job(a, kernels, hp, kv, kv_base, step, layer, first_row, q, sinks, softcap, out);

        job.is_both = true;
        job.reach = reach > 0 ? reach : UINT32_MAX;
        attention_run(&job, pool, n_rows);
}
