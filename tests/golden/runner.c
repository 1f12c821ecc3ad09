/* A host device with a model, and the bookkeeping that tandemd does elsewhere: see runner.h. */
#include <fcntl.h>
#include <sys/mman.h>

#include "common/sigbus.h"
#include "engine/host/forward.h"
#include "tests/golden/runner.h"

#define SPOILED 256u /* pages of a group */
#define STATES 3u    /* of a table: two that take turns, and one that is kept of a step */

struct runner {
        const struct runner_model *model;
        struct tdm_kv_geometry kv;
        struct tdm_steps_limits limits;
        struct tdm_steps_layout layout;
        uint8_t *kv_base, *steps;
        struct tdm_step *step;
        float *hidden;                       /* [max_rows][residual_width] */
        struct tdm_result *results;          /* [max_logits] */
        uint32_t *free_pages[TDM_KV_GROUPS]; /* a stack, shuffled */
        uint32_t n_free[TDM_KV_GROUPS];
        uint32_t state_at[RUNNER_TABLES][STATES]; /* positions that a table's state pages are behind; 0: none */
        uint64_t step_id;
        _Atomic uint64_t heartbeat;
        struct tdm_device *devices[2];
        struct tdm_device_model *models[2];
        unsigned n_devices;
        uint64_t block_begin_ns, kind_ns[TDM_N_BLOCK_KINDS];
};

static _Noreturn void fail(const char *what, const struct tdm_error *err, int code)
{
        fprintf(stderr, "%s: %s (%d)\n", what, err ? err->message : "", code);
        exit(1);
}

/* Anonymous memory: page-aligned, zero, and only what is touched is there. */
static void *map(uint64_t size_bytes)
{
        void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
                fail("mmap", NULL, -errno);
        return p;
}

void runner_model_load(struct runner_model *ret, const char *path)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        struct tdm_model_description description = {};
        struct tdm_error err = {};
        int r = tdm_sigbus_init();

        if (r < 0 || fd < 0)
                fail(path, NULL, r < 0 ? r : -errno);
        r = tdm_gguf_open(&gguf, fd, path, &err);
        if (!r)
                r = tdm_model_describe(gguf, &description, &err);
        if (!r)
                r = tdm_weights_plan_new(&plan, &description, &err);
        if (r)
                fail(path, &err, r);
        ret->weights = map(tdm_weights_plan_size(plan));
        r = tdm_weights_build(plan, gguf, ret->weights, 1, NULL, NULL, &err);
        if (!r)
                r = tdm_weights_check(ret->weights, tdm_weights_plan_size(plan), tdm_weights_plan_size(plan), &err);
        if (r)
                fail(path, &err, r);
        ret->hp = &tdm_weights_header(ret->weights)->hparams;
        ret->input_bytes = tdm_weights_input_bytes(ret->weights);
        for (uint32_t i = 0; ret->input_bytes && i < description.n_tensors; i++)
                if (description.tensors[i].kind == TDM_TENSOR_PER_LAYER_EMBD)
                        ret->inputs = tdm_gguf_tensor_data(gguf, description.tensors[i].tensor);
        ret->gguf = ret->inputs ? steal_ptr(&gguf) : NULL;
        tdm_model_description_deinit(&description);
}

void runner_model_round_yarn(struct runner_model *model)
{
        struct tdm_recipe *recipe = &((struct tdm_weights_header *)(void *)model->weights)->recipe;

        for (uint32_t i = 0; i < recipe->n_ropes; i++)
                recipe->ropes[i].yarn_is_rounded = recipe->ropes[i].scaling == TDM_ROPE_YARN;
}

void runner_model_unload(struct runner_model *model)
{
        munmap(model->weights, tdm_weights_header(model->weights)->size_bytes);
        tdm_gguf_close(model->gguf);
}

/* Bytes that are no numbers, so that a row that nobody wrote is seen when it is read. */
static void spoil_page(struct runner *r, enum tdm_kv_group group, uint32_t page)
{
        memset(r->kv_base + r->kv.offset[group] + page * r->kv.page_bytes[group], 0xff, r->kv.page_bytes[group]);
}

static void free_page(struct runner *r, enum tdm_kv_group group, uint32_t page)
{
        spoil_page(r, group, page);
        r->free_pages[group][r->n_free[group]++] = page;
}

static void pages_init(struct runner *r)
{
        uint32_t random = 12345;

        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t n = r->kv.n_pages[group];

                r->free_pages[group] = calloc(n + 1, sizeof(uint32_t));
                for (uint32_t page = 0; page < n; page++)
                        r->free_pages[group][r->n_free[group]++] = page;
                for (uint32_t i = n; i > 1; i--) {
                        uint32_t j = (random = random * 1664525 + 1013904223) / 7 % i, page = r->free_pages[group][j];

                        r->free_pages[group][j] = r->free_pages[group][i - 1];
                        r->free_pages[group][i - 1] = page;
                }
                /* A long context has gigabytes of pages. These are the next ones, and others are spoiled when taken. */
                for (uint32_t i = n - TDM_MIN(n, SPOILED); i < n; i++)
                        spoil_page(r, (enum tdm_kv_group)group, r->free_pages[group][i]);
                for (uint32_t t = 0; t < RUNNER_TABLES; t++)
                        memset(tdm_steps_table(r->steps, &r->layout, t, (enum tdm_kv_group)group), 0xff,
                               r->limits.table_entries * sizeof(uint32_t));
        }
}

struct runner *runner_new(const struct runner_model *model, const struct runner_options *o)
{
        struct runner *r = calloc(1, sizeof(*r));
        uint32_t max_positions = o->max_positions ? o->max_positions : model->hp->n_ctx;
        struct tdm_error err = {};
        int ret;

        r->model = model;
        r->limits = (struct tdm_steps_limits){
                .max_rows = o->max_rows ? o->max_rows : 256,
                .max_seqs = TDM_MIN(RUNNER_TABLES, o->max_rows ? o->max_rows : 256),
                .max_logits = TDM_MAX_STEP_LOGITS,
                .n_tables = RUNNER_TABLES,
                .table_entries = TDM_DIV_UP(max_positions, TDM_KV_PAGE_TOKENS),
                .input_bytes = model->input_bytes,
                .max_pictures = o->max_pictures,
        };
        ret = tdm_kv_geometry_init(&r->kv, model->hp, o->kv_type ? o->kv_type : tdm_precision_kv_type(o->precision, 0),
                                   RUNNER_TABLES * r->limits.table_entries, RUNNER_TABLES * r->limits.table_entries,
                                   STATES * RUNNER_TABLES);
        if (ret < 0)
                fail("geometry of the KV cache", NULL, ret);
        if (tdm_steps_limits_check(&r->limits, &err))
                fail("limits", &err, 0);
        tdm_steps_layout(&r->limits, &r->layout);
        r->kv_base = map(r->kv.size_bytes);
        r->steps = map(r->layout.size_bytes);
        tdm_steps_format(r->steps, &r->layout);
        r->hidden = map((uint64_t)r->limits.max_rows * model->hp->residual_width * sizeof(float));
        r->results = calloc(r->limits.max_logits, sizeof(*r->results));
        if (tdm_step_new(&r->step, &r->limits) < 0)
                abort();
        pages_init(r);

        if (o->cpu)
                setenv("TANDEM_CPU", o->cpu, 1);
        else
                unsetenv("TANDEM_CPU");
        r->n_devices = o->split_threads ? 2 : 1;
        for (unsigned i = 0; i < r->n_devices; i++) {
                struct tdm_device_config config = { .n_threads = i ? o->split_threads : o->n_threads,
                                                    .heartbeat = &r->heartbeat };
                struct tdm_device_model_config model_config = {
                        .weights = model->weights,
                        .kv = r->kv,
                        .kv_base = i == r->n_devices - 1 ? r->kv_base : NULL,
                        .limits = r->limits,
                        .precision = o->precision,
                };

                const struct tdm_device_ops *ops = i == r->n_devices - 1 && o->ops ? o->ops : &tdm_host_device_ops;

                ret = ops->open(&r->devices[i], &config, &err);
                if (!ret)
                        ret = ops->model_load(r->devices[i], &model_config, &r->models[i], &err);
                if (ret)
                        fail(ops->name, &err, ret);
                if (o->logits_rows && ops == &tdm_host_device_ops) /* a large vocabulary would do it */
                        ((struct tdm_host_model *)r->models[i])->logits_rows = o->logits_rows;
        }
        return r;
}

void runner_destroy(struct runner *r)
{
        for (unsigned i = 0; i < r->n_devices; i++) {
                r->devices[i]->ops->model_unload(r->models[i]);
                r->devices[i]->ops->close(r->devices[i]);
        }
        munmap(r->hidden, (uint64_t)r->limits.max_rows * r->model->hp->residual_width * sizeof(float));
        munmap(r->steps, r->layout.size_bytes);
        munmap(r->kv_base, r->kv.size_bytes);
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                free(r->free_pages[group]);
        tdm_step_destroy(r->step);
        free(r->results);
        free(r);
}

const char *runner_describe(const struct runner *r)
{
        return r->devices[r->n_devices - 1]->ops->describe(r->devices[r->n_devices - 1]);
}

const struct tdm_device_model *runner_device_model(const struct runner *r)
{
        return r->models[r->n_devices - 1];
}

uint64_t runner_n_saturated(const struct runner *r)
{
        return r->devices[r->n_devices - 1]->ops->n_saturated(r->models[r->n_devices - 1]);
}

static void on_block(uint32_t block, void *userdata)
{
        struct runner *r = userdata;
        uint64_t now_ns = tdm_now_ns();

        r->kind_ns[tdm_block_kind(r->model->hp, block)] += now_ns - r->block_begin_ns;
        r->block_begin_ns = now_ns;
}

double runner_block_seconds(const struct runner *r, int kind)
{
        return (double)r->kind_ns[kind] / 1e9;
}

void runner_reset_seconds(struct runner *r)
{
        memset(r->kind_ns, 0, sizeof(r->kind_ns));
}

/* Pages for [first, first + n), and none for what no later row of a window layer will see. */
static void assign_pages(struct runner *r, const struct runner_part *part)
{
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                enum tdm_kv_group group = (enum tdm_kv_group)g;
                uint32_t *table = tdm_steps_table(r->steps, &r->layout, part->table, group);
                uint32_t gone = tdm_window_first(r->model->hp, group, part->first) / TDM_KV_PAGE_TOKENS;

                if (!r->kv.n_layers[group])
                        continue;
                for (uint32_t i = 0; i < gone; i++)
                        if (table[i] != TDM_KV_NO_PAGE) {
                                free_page(r, group, table[i]);
                                table[i] = TDM_KV_NO_PAGE;
                        }
                for (uint32_t i = part->first / TDM_KV_PAGE_TOKENS;
                     i <= (part->first + part->n - 1) / TDM_KV_PAGE_TOKENS; i++)
                        if (table[i] == TDM_KV_NO_PAGE) {
                                table[i] = r->free_pages[group][--r->n_free[group]];
                                spoil_page(r, group, table[i]);
                        }
        }
}

void runner_forget(struct runner *r, uint32_t t)
{
        memset(r->state_at[t], 0, sizeof(r->state_at[t]));
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t *table = tdm_steps_table(r->steps, &r->layout, t, (enum tdm_kv_group)group);

                for (uint32_t i = 0; i < r->limits.table_entries; i++)
                        if (table[i] != TDM_KV_NO_PAGE) {
                                free_page(r, (enum tdm_kv_group)group, table[i]);
                                table[i] = TDM_KV_NO_PAGE;
                        }
        }
}

/* The state behind the rows before this part, wherever it is; the next one, and one from the part's middle, which a
 * later step may begin from, go to the others. */
static struct tdm_step_state assign_states(struct runner *r, const struct runner_part *part)
{
        uint32_t *at = r->state_at[part->table], first = part->table * STATES;
        struct tdm_step_state state = TDM_STEP_NO_STATE;
        uint32_t from = UINT32_MAX, to = 0;

        if (!r->kv.n_layers[TDM_KV_STATE])
                return state;
        for (uint32_t i = 0; i < STATES && part->first > 0; i++)
                if (at[i] == part->first)
                        from = i;
        if (part->first > 0 && from == UINT32_MAX)
                fail("no state of the position", NULL, (int)part->first);
        while (to == from)
                to++;
        if (part->first > 0)
                state.from = first + from;
        state.to = first + to;
        spoil_page(r, TDM_KV_STATE, state.to);
        at[to] = part->first + part->n;
        if (part->n > 1) {
                uint32_t kept = to + 1;

                while (kept == from)
                        kept++;
                state.kept = first + kept;
                state.n_kept = part->n / 2;
                spoil_page(r, TDM_KV_STATE, state.kept);
                at[kept] = part->first + state.n_kept;
        }
        return state;
}

/* The pictures of a part whose rows begin at first_row. */
static void add_pictures(struct runner *r, const struct runner_part *part, uint32_t first_row)
{
        struct tdm_step_head *head = tdm_steps_head(r->steps, &r->layout, 0);
        const struct tdm_hparams *hp = r->model->hp;

        for (uint32_t i = 0; i < part->n_pictures; i++) {
                const struct runner_picture *picture = &part->pictures[i];
                uint32_t row = first_row + picture->first - part->first;

                if (picture->first + picture->n <= part->first || picture->first >= part->first + part->n)
                        continue;
                if (picture->first < part->first || picture->first + picture->n > part->first + part->n ||
                    head->n_pictures == r->limits.max_pictures)
                        fail("a part cuts a picture, or a step has too many", NULL, (int)i);
                tdm_steps_pictures(r->steps, &r->layout, 0)[head->n_pictures++] =
                        (struct tdm_step_picture){ row, picture->n };
                for (uint32_t k = 0; k < picture->n; k++)
                        tdm_steps_rows(r->steps, &r->layout, 0)[row + k].picture = head->n_pictures;
                memcpy(r->hidden + (size_t)row * hp->residual_width, picture->rows,
                       (size_t)picture->n * hp->d_model * sizeof(float));
        }
}

void runner_step(struct runner *r, const struct runner_part *parts, uint32_t n_parts, float *hidden,
                 struct tdm_result *results)
{
        const struct tdm_hparams *hp = r->model->hp;
        struct tdm_step_head *head = tdm_steps_head(r->steps, &r->layout, 0);
        struct tdm_step_row *rows = tdm_steps_rows(r->steps, &r->layout, 0);
        struct tdm_step_seq *seqs = tdm_steps_seqs(r->steps, &r->layout, 0);
        struct tdm_step_logits *logits = tdm_steps_logits(r->steps, &r->layout, 0);
        uint32_t n_blocks = tdm_model_n_blocks(hp);
        struct tdm_error err = {};
        int ret;

        *head = (struct tdm_step_head){ .step_id = ++r->step_id, .n_seqs = n_parts };
        for (uint32_t p = 0; p < n_parts; p++) {
                const struct runner_part *part = &parts[p];

                assign_pages(r, part);
                seqs[p] = (struct tdm_step_seq){ .table = part->table,
                                                 .first_row = head->n_rows,
                                                 .n_rows = part->n,
                                                 .state = assign_states(r, part) };
                for (uint32_t i = 0; i < part->n; i++) {
                        uint32_t position = part->first + i;
                        struct tdm_step_row *row = &rows[head->n_rows];

                        *row = (struct tdm_step_row){ part->ids[position], position, p, UINT32_MAX };
                        if (r->model->inputs)
                                memcpy(tdm_steps_inputs(r->steps, &r->layout, 0) +
                                               (size_t)head->n_rows * r->limits.input_bytes,
                                       r->model->inputs + (size_t)row->token * r->limits.input_bytes,
                                       r->limits.input_bytes);
                        if (i + part->n_logits >= part->n || (part->whole && i == 0)) {
                                row->logits = head->n_logits;
                                logits[head->n_logits++] = (struct tdm_step_logits){
                                        .row = head->n_rows,
                                        .target = position + 1 < part->n_ids ? part->ids[position + 1] : UINT32_MAX,
                                        .sampling = part->sampling,
                                };
                        }
                        head->n_rows++;
                }
                add_pictures(r, part, seqs[p].first_row);
        }
        ret = tdm_step_read(r->step, r->steps, &r->layout, 0, r->step_id, 0, hp, &r->kv, &err);
        if (ret)
                fail("step", &err, ret);
        r->block_begin_ns = tdm_now_ns();
        for (uint32_t b = 0, n; b < n_blocks && !ret; b += n) {
                unsigned device = r->n_devices == 2 && tdm_block_kind(hp, b) == TDM_BLOCK_ATTENTION;

                n = r->n_devices == 2 && b <= 2 * hp->n_layers ? 1 : n_blocks - b;
                ret = r->devices[device]->ops->run(r->models[device], r->step, b, n, r->hidden, r->results, on_block, r,
                                                   &err);
        }
        if (ret)
                fail("run", &err, ret);
        if (hidden)
                memcpy(hidden, r->hidden, (size_t)head->n_rows * hp->residual_width * sizeof(float));
        if (results)
                memcpy(results, r->results, head->n_logits * sizeof(*results));
}
