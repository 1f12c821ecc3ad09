/* One or two devices and the bookkeeping that tandemd does elsewhere: see test-drive.h. */
#include <assert.h>
#include <math.h>
#include <sys/mman.h>

#include "common/dmabuf.h"
#include "gpu-worker/vulkan/tests/test-drive.h"

struct drive {
        const uint8_t *weights;
        const struct tdm_hparams *hp;
        struct drive_options options;
        struct tdm_kv_geometry kv;
        struct tdm_steps_limits limits;
        struct tdm_steps_layout layout;
        uint8_t *kv_base, *steps, *activations;
        uint64_t activations_bytes;
        struct tdm_segment *shared; /* activations with a dma-buf; NULL: mapped here */
        struct tdm_step *step;
        struct tdm_result *results;
        uint32_t *free_pages[TDM_KV_GROUPS];
        uint32_t n_free[TDM_KV_GROUPS];
        uint64_t step_id;
        uint32_t epoch;
        _Atomic uint64_t heartbeat;
        struct tdm_device *devices[2];
        struct tdm_device_model *models[2];
        double differences[TDM_N_BLOCK_KINDS];
};

static _Noreturn void fail(const char *what, const struct tdm_error *err, int code)
{
        fprintf(stderr, "%s: %s (%d)\n", what, err ? err->message : "", code);
        exit(1);
}

static void *map(uint64_t size_bytes)
{
        void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
                fail("mmap", NULL, -errno);
        return p;
}

static void free_page(struct drive *d, int group, uint32_t page)
{
        if (!d->options.keep_pages)
                memset(d->kv_base + d->kv.offset[group] + page * d->kv.page_bytes[group], 0xff,
                       d->kv.page_bytes[group]);
        d->free_pages[group][d->n_free[group]++] = page;
}

static uint32_t *table_of(struct drive *d, uint32_t table, int group)
{
        return tdm_steps_table(d->steps, &d->layout, table, (enum tdm_kv_group)group);
}

static void pages_init(struct drive *d)
{
        uint32_t random = 12345;

        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t n = d->kv.n_pages[group];

                d->free_pages[group] = calloc(n + 1, sizeof(uint32_t));
                for (uint32_t page = 0; page < n; page++)
                        free_page(d, group, page);
                for (uint32_t i = n; i > 1; i--) {
                        uint32_t j = (random = random * 1664525 + 1013904223) / 7 % i, page = d->free_pages[group][j];

                        d->free_pages[group][j] = d->free_pages[group][i - 1];
                        d->free_pages[group][i - 1] = page;
                }
                for (uint32_t t = 0; t < d->limits.n_tables; t++)
                        memset(table_of(d, t, group), 0xff, d->limits.table_entries * sizeof(uint32_t));
        }
}

#define PIECES 7u

static int load_in_pieces(struct drive *d, unsigned i, const struct tdm_device_model_config *config,
                          struct tdm_error *err)
{
        const struct tdm_device_ops *ops = d->options.ops[i];
        const struct tdm_weights_header *header = tdm_weights_header(d->weights);
        const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = TDM_ALIGN_UP(header->size_bytes, page);
        struct tdm_device_model_config begin = *config;
        uint64_t n = TDM_ALIGN_UP(header->tensors_offset + header->n_tensors * sizeof(struct tdm_weights_tensor), page);
        int r;

        begin.kv_base = NULL;
        if (mprotect((void *)(d->weights + n), size - n, PROT_NONE) < 0)
                return -errno;
        r = ops->load_begin(d->devices[i], &begin, &d->models[i], err);
        for (unsigned k = 1; k <= PIECES && r == 0; k++) {
                uint64_t until = k < PIECES ? TDM_ALIGN_UP(n + (size - n) / PIECES, page) : size;

                if (mprotect((void *)(d->weights + n), until - n, PROT_READ | PROT_WRITE) < 0)
                        return -errno;
                n = until;
                r = ops->load_weights(d->models[i], n, err);
                if (k == PIECES / 2 && config->kv_base)
                        ops->set_kv(d->models[i], config->kv_base);
        }
        return r == 0 ? ops->load_end(d->models[i], err) : r;
}

static void devices_open(struct drive *d)
{
        for (unsigned i = 0; i < 2 && d->options.ops[i]; i++) {
                const struct tdm_device_config config = { .heartbeat = &d->heartbeat };
                bool attends = d->options.plan == DRIVE_COMPARE || (d->options.plan == DRIVE_SPLIT) == (i == 1);
                const struct tdm_device_model_config model = {
                        .weights = d->weights,
                        .kv = d->kv,
                        .kv_base = attends ? d->kv_base : NULL,
                        .activations = d->options.anywhere ? NULL : d->activations,
                        .activations_bytes = d->options.anywhere ? 0 : d->activations_bytes,
                        .activations_dmabuf = d->shared ? d->shared->dmabuf_fd : 0,
                        .limits = d->limits,
                        .precision = d->options.precision,
                };
                struct tdm_error err = {};
                int r = d->options.ops[i]->open(&d->devices[i], &config, &err);

                if (!r && d->options.in_pieces && i == 0)
                        r = load_in_pieces(d, i, &model, &err);
                else if (!r)
                        r = d->options.ops[i]->model_load(d->devices[i], &model, &d->models[i], &err);
                if (r)
                        fail(d->options.ops[i]->name, &err, r);
        }
}

static void devices_close(struct drive *d)
{
        for (unsigned i = 0; i < 2 && d->devices[i]; i++) {
                d->options.ops[i]->model_unload(d->models[i]);
                d->options.ops[i]->close(d->devices[i]);
                d->devices[i] = NULL;
        }
}

void drive_restart(struct drive *d)
{
        devices_close(d);
        d->epoch++;
        devices_open(d);
}

struct drive *drive_new(const uint8_t *weights, const struct drive_options *o)
{
        struct drive *d = calloc(1, sizeof(*d));
        uint32_t max_rows = o->max_rows ? o->max_rows : 256, n_tables = o->n_tables ? o->n_tables : DRIVE_TABLES, pages;
        struct tdm_error err = {};
        int r;

        d->weights = weights;
        d->hp = &tdm_weights_header(weights)->hparams;
        d->options = *o;
        d->epoch = 1;
        d->limits = (struct tdm_steps_limits){
                .max_rows = max_rows,
                .max_seqs = TDM_MIN(n_tables, max_rows),
                .max_logits = TDM_MAX_STEP_LOGITS,
                .n_tables = n_tables,
                .table_entries = TDM_DIV_UP(o->max_positions ? o->max_positions : d->hp->n_ctx, TDM_KV_PAGE_TOKENS),
                .input_bytes = o->inputs ? tdm_weights_input_bytes(weights) : 0,
                .vector_width = tdm_weights_header(weights)->recipe.pooling ? d->hp->d_model : 0,
        };
        pages = n_tables * d->limits.table_entries;
        r = tdm_kv_geometry_init(&d->kv, d->hp, tdm_precision_kv_type(o->precision, o->kv), pages, pages, 0);
        if (r < 0)
                fail("geometry of the KV cache", NULL, r);
        if (tdm_steps_limits_check(&d->limits, &err))
                fail("limits", &err, 0);
        tdm_steps_layout(&d->limits, &d->layout);
        d->activations_bytes = TDM_ALIGN_UP((uint64_t)TDM_STEP_SLOTS * max_rows * d->hp->residual_width * sizeof(float),
                                            UINT64_C(4096));
        if (o->dmabuf) {
                if (tdm_segment_create(&d->shared, "activations", d->activations_bytes) != 0 ||
                    tdm_dmabuf_create(d->shared, &err) != 0)
                        fail("dma-buf", &err, 0);
                d->activations = d->shared->base;
        } else
                d->activations = map(d->activations_bytes);
        d->kv_base = map(d->kv.size_bytes);
        d->steps = map(d->layout.size_bytes);
        tdm_steps_format(d->steps, &d->layout);
        d->results = calloc(1, d->layout.results_slot_bytes);
        if (tdm_step_new(&d->step, &d->limits) < 0)
                abort();
        pages_init(d);
        devices_open(d);
        return d;
}

void drive_destroy(struct drive *d)
{
        devices_close(d);
        if (!d->shared)
                munmap(d->activations, d->activations_bytes);
        tdm_segment_destroy(d->shared);
        munmap(d->steps, d->layout.size_bytes);
        munmap(d->kv_base, d->kv.size_bytes);
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                free(d->free_pages[group]);
        tdm_step_destroy(d->step);
        free(d->results);
        free(d);
}

const char *drive_describe(const struct drive *d, unsigned i)
{
        return d->options.ops[i]->plan(d->models[i]);
}

struct tdm_device *drive_device(struct drive *d, unsigned i)
{
        return d->devices[i];
}

uint64_t drive_n_saturated(const struct drive *d)
{
        unsigned i = d->options.plan == DRIVE_SPLIT;

        return d->options.ops[i]->n_saturated(d->models[i]);
}

void drive_forget(struct drive *d, uint32_t t)
{
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t *table = table_of(d, t, group);

                for (uint32_t i = 0; i < d->limits.table_entries; i++)
                        if (table[i] != TDM_KV_NO_PAGE) {
                                free_page(d, group, table[i]);
                                table[i] = TDM_KV_NO_PAGE;
                        }
        }
}

/* Pages for [first, first + n), and none for what no later row of a window layer will see. */
static void assign_pages(struct drive *d, const struct drive_part *part)
{
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t *table = table_of(d, part->table, group);
                uint32_t gone = tdm_window_first(d->hp, (enum tdm_kv_group)group, part->first) / TDM_KV_PAGE_TOKENS;

                if (!d->kv.n_layers[group])
                        continue;
                assert(part->first + part->n <= d->limits.table_entries * TDM_KV_PAGE_TOKENS);
                for (uint32_t i = 0; i < gone; i++)
                        if (table[i] != TDM_KV_NO_PAGE) {
                                free_page(d, group, table[i]);
                                table[i] = TDM_KV_NO_PAGE;
                        }
                for (uint32_t i = part->first / TDM_KV_PAGE_TOKENS;
                     i <= (part->first + part->n - 1) / TDM_KV_PAGE_TOKENS; i++)
                        if (table[i] == TDM_KV_NO_PAGE)
                                table[i] = d->free_pages[group][--d->n_free[group]];
        }
}

static void make_plan(const struct drive *d, uint8_t *plan)
{
        uint32_t n_blocks = tdm_model_n_blocks(d->hp);

        for (uint32_t block = 0; block < n_blocks; block++) {
                bool attention = tdm_block_kind(d->hp, block) == TDM_BLOCK_ATTENTION;

                plan[block] = d->options.plan != DRIVE_SINGLE && attention == (d->options.plan == DRIVE_SPLIT);
                if (d->options.plan == DRIVE_COMPARE) /* hidden rows are handed over each time */
                        plan[block] = TDM_MIN(block, n_blocks - 2) & 1;
        }
}

static void make_step(struct drive *d, const struct drive_part *parts, uint32_t n_parts)
{
        struct tdm_step_head *head = tdm_steps_head(d->steps, &d->layout, 0);
        struct tdm_step_row *rows = tdm_steps_rows(d->steps, &d->layout, 0);
        struct tdm_step_seq *seqs = tdm_steps_seqs(d->steps, &d->layout, 0);
        struct tdm_step_logits *logits = tdm_steps_logits(d->steps, &d->layout, 0);
        struct tdm_error err = {};
        int r;

        *head = (struct tdm_step_head){ .step_id = ++d->step_id, .epoch = d->epoch, .n_seqs = n_parts };
        make_plan(d, head->plan);
        for (uint32_t p = 0; p < n_parts; p++) {
                const struct drive_part *part = &parts[p];

                assign_pages(d, part);
                seqs[p] = (struct tdm_step_seq){ .table = part->table, .first_row = head->n_rows, .n_rows = part->n };
                for (uint32_t i = 0; i < part->n; i++) {
                        uint32_t position = part->first + i;
                        struct tdm_step_row *row = &rows[head->n_rows];

                        *row = (struct tdm_step_row){ part->ids[position], position, p, UINT32_MAX };
                        if (d->limits.input_bytes)
                                memcpy(tdm_steps_inputs(d->steps, &d->layout, 0) +
                                               (size_t)head->n_rows * d->limits.input_bytes,
                                       d->options.inputs + (size_t)row->token * d->limits.input_bytes,
                                       d->limits.input_bytes);
                        if (i + part->n_logits >= part->n) {
                                row->logits = head->n_logits;
                                logits[head->n_logits++] = (struct tdm_step_logits){
                                        .row = head->n_rows,
                                        .target = position + 1 < part->n_ids ? part->ids[position + 1] : UINT32_MAX,
                                        .sampling = part->sampling,
                                };
                        }
                        head->n_rows++;
                }
        }
        r = tdm_step_read(d->step, d->steps, &d->layout, 0, d->step_id, d->epoch, d->hp, &d->kv, &err);
        if (r)
                fail("step", &err, r);
}

const float *drive_vectors(const struct drive *d)
{
        return tdm_steps_vectors(d->results, &d->limits);
}

double drive_difference(const struct drive *d, enum tdm_block_kind kind)
{
        return d->differences[kind];
}

static void note(struct drive *d, enum tdm_block_kind kind, double difference)
{
        if (!(difference <= d->differences[kind])) /* a NaN is the largest */
                d->differences[kind] = difference;
}

static void note_rows(struct drive *d, enum tdm_block_kind kind, const float *a, const float *b)
{
        size_t n = (size_t)d->step->head.n_rows * d->hp->residual_width;
        double square = 0, largest = 0;

        for (size_t i = 0; i < n; i++) {
                double difference = fabs((double)a[i] - b[i]);

                square += (double)b[i] * b[i];
                if (!(difference <= largest))
                        largest = difference;
        }
        note(d, kind, largest / sqrt(square / (double)n));
}

static int compare_blocks(struct drive *d, float *rows, struct tdm_error *err)
{
        uint32_t n_blocks = tdm_model_n_blocks(d->hp), n_rows = d->step->head.n_rows;
        struct tdm_result *results = calloc(d->limits.max_logits, sizeof(*results));
        float *before = calloc((size_t)n_rows * d->hp->residual_width, sizeof(float)),
              *after = calloc((size_t)n_rows * d->hp->residual_width, sizeof(float));
        size_t bytes = (size_t)n_rows * d->hp->residual_width * sizeof(float);
        int r = 0;

        for (uint32_t b = 0, n; b < n_blocks && r == 0; b += n) {
                enum tdm_block_kind kind = tdm_block_kind(d->hp, b);

                n = kind == TDM_BLOCK_HEAD ? 2 : 1;
                memcpy(before, rows, bytes);
                r = d->options.ops[0]->run(d->models[0], d->step, b, n, rows, results, NULL, NULL, err);
                memcpy(after, rows, bytes);
                memcpy(rows, before, bytes);
                if (r == 0)
                        r = d->options.ops[1]->run(d->models[1], d->step, b, n, rows, d->results, NULL, NULL, err);
                if (n == 1)
                        note_rows(d, kind, after, rows);
                for (uint32_t i = 0; i < d->step->head.n_logits && n == 2; i++)
                        note(d, TDM_BLOCK_SAMPLE,
                             isnan(d->results[i].target_logprob) ?
                                     0 :
                                     fabs((double)results[i].target_logprob - d->results[i].target_logprob));
        }
        free(results);
        free(before);
        free(after);
        return r;
}

void drive_step(struct drive *d, const struct drive_part *parts, uint32_t n_parts, float *hidden,
                struct tdm_result *results)
{
        uint32_t n_blocks = tdm_model_n_blocks(d->hp), most = d->options.run_blocks ? d->options.run_blocks : n_blocks;
        float *rows;
        const uint8_t *plan;
        struct tdm_error err = {};
        int r = 0;

        make_step(d, parts, n_parts);
        plan = d->step->head.plan;
        /* Slots in turn, as tandemd has several steps in flight. */
        rows = (float *)d->activations + (d->step_id % TDM_STEP_SLOTS) * d->limits.max_rows * d->hp->residual_width;
        if (d->options.see_hidden && d->options.plan == DRIVE_SINGLE)
                d->step->head.plan[n_blocks - 2] = d->step->head.plan[n_blocks - 1] =
                        1; /* as if another worker had the head */
        if (d->options.plan == DRIVE_COMPARE)
                r = compare_blocks(d, rows, &err);
        for (uint32_t b = 0, n; b < n_blocks && !r && d->options.plan != DRIVE_COMPARE; b += n) {
                unsigned device = d->options.plan == DRIVE_SINGLE ? 0 : plan[b];

                for (n = 1; b + n < n_blocks && plan[b + n] == plan[b] && (n < most || b + n == n_blocks - 1); n++)
                        ;
                r = d->options.ops[device]->run(d->models[device], d->step, b, n, rows, d->results, NULL, NULL, &err);
        }
        if (r)
                fail("run", &err, r);
        if (hidden)
                memcpy(hidden, rows, (size_t)d->step->head.n_rows * d->hp->residual_width * sizeof(float));
        if (results)
                memcpy(results, d->results, d->step->head.n_logits * sizeof(*results));
}
