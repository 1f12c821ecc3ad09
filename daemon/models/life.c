/* A model's way through its states: read, described, weights built, mapped by the workers, ready. leave.c has its end.
 *
 * Memory is decided here, on the loop, between the two stages of loading: the model's need is compared with the memory
 * that is available, and idle models leave first. KV pages are sparse memory, so their budget is only used as jobs need
 * it. */
#include "daemon/models/private.h"

#include <math.h>

#include "common/log.h"

#define WAIT_NS (3 * TDM_NSEC_PER_SEC)
#define LEFT_NS (2 * TDM_NSEC_PER_SEC)
/* Memory that is left to the rest of the system. */
#define MEMORY_MARGIN_BYTES (UINT64_C(64) << 20)
#define MIN_KV_TOKENS 512u
/* The most bytes of a second embedding's rows in one step. Gemma 3n and 4 have up to 43 KiB for a token as f32, which
 * is 21 MiB for 512 rows. */
#define INPUTS_MAX_BYTES (UINT64_C(32) << 20)
#define MIB(bytes) ((double)(bytes) / (1024.0 * 1024.0))

int tdm_model_check_file(struct tdm_model *model, struct tdm_error *err)
{
        struct tdm_file_identity now;
        struct tdm_error reason;
        const char *part = NULL;
        int r;

        if (model->state == TDM_MODEL_FAILED) {
                *err = model->error;
                return model->error.code;
        }
        r = tdm_file_identify(model->fd, &now);
        if (r == 0 && tdm_file_identity_equal(&now, &model->identity)) {
                part = model->metadata ? tdm_model_parts_changed(model->metadata->parts) : NULL;
                if (!part && model->metadata)
                        part = tdm_model_projector_changed(model->metadata->projector);
                if (!part)
                        return 0;
        }
        if (part)
                tdm_error_set(&reason, TDM_E_MODEL_CHANGED,
                              "part %.*s of a model changed while it was in use; ask again to load it anew",
                              TDM_UTF8_CUT(part, 200));
        else if (r < 0)
                tdm_error_set(&reason, TDM_E_MODEL_CHANGED, "model file %.*s cannot be looked at any more: %s",
                              TDM_UTF8_CUT(tdm_model_told_path(model), 200), strerror(-r));
        else if (now.size_bytes != model->identity.size_bytes)
                tdm_error_set(&reason, TDM_E_MODEL_CHANGED,
                              "model file %.*s changed while it was in use: %llu bytes, was %llu; ask again to load "
                              "it anew",
                              TDM_UTF8_CUT(tdm_model_told_path(model), 200), (unsigned long long)now.size_bytes,
                              (unsigned long long)model->identity.size_bytes);
        else
                tdm_error_set(&reason, TDM_E_MODEL_CHANGED,
                              "model file %.*s was written to while it was in use; ask again to load it anew",
                              TDM_UTF8_CUT(tdm_model_told_path(model), 200));
        if (err)
                *err = reason;
        tdm_model_fail(model, &reason);
        return TDM_E_MODEL_CHANGED;
}

static void fail_errno(struct tdm_model *model, int r, const char *what)
{
        struct tdm_error err;

        tdm_error_set(&err, r == -ENOMEM ? TDM_E_NO_MEMORY : TDM_E_INTERNAL, "cannot %s of model %s: %s", what,
                      tdm_model_told_name(model), strerror(-r));
        tdm_model_fail(model, &err);
}

static void steps_limits(const struct tdm_model *model, struct tdm_steps_limits *ret)
{
        const struct tdm_models *m = model->models;

        *ret = (struct tdm_steps_limits){
                .max_rows = tdm_model_max_rows(model),
                .max_seqs = m->max_sequences,
                /* More than one for each sequence, as guesses need them (daemon/speculate). */
                .max_logits = TDM_MIN(TDM_MIN(TDM_MAX(8 * m->max_sequences, 64u), m->max_rows), TDM_MAX_STEP_LOGITS),
                .n_tables = m->max_sequences + TDM_PROBE_TABLES,
                .table_entries = TDM_DIV_UP(tdm_model_hparams(model)->n_ctx, TDM_KV_PAGE_TOKENS),
                .mask_words = TDM_DIV_UP(tdm_model_hparams(model)->n_vocab, 64u),
                .input_bytes = model->metadata->inputs.row_bytes,
                .max_pictures = tdm_model_max_pictures(model),
                .vector_width = tdm_model_recipe(model)->pooling ? tdm_model_hparams(model)->d_model : 0,
        };
}

/* Checks the bytes of the file that rows carry. They are copied on the loop, and again by each worker before a step
 * begins, so they have a bound. */
static int check_inputs(const struct tdm_model *model, const struct tdm_steps_limits *limits, struct tdm_error *err)
{
        uint64_t bytes = (uint64_t)limits->max_rows * limits->input_bytes;

        if (bytes <= INPUTS_MAX_BYTES)
                return 0;
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "model %s has %u bytes for each token in its second embedding, so %u rows (max-rows) need "
                             "%.1f MiB, and at most %.0f are supported; set max-rows to %u or less",
                             tdm_model_told_name(model), limits->input_bytes, limits->max_rows, MIB(bytes),
                             MIB(INPUTS_MAX_BYTES), (unsigned)(INPUTS_MAX_BYTES / limits->input_bytes));
}

static uint64_t pages_bytes(const struct tdm_hparams *hp, enum tdm_kv_type type, const struct tdm_pages_need *n)
{
        struct tdm_kv_geometry kv;

        if (tdm_kv_geometry_init(&kv, hp, type, n->n[TDM_KV_FULL], n->n[TDM_KV_WINDOW], n->n[TDM_KV_STATE]) < 0)
                return UINT64_MAX / 4;
        return kv.size_bytes;
}

static uint64_t least_cache_bytes(const struct tdm_model *model)
{
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        uint32_t n = TDM_DIV_UP(TDM_MIN(hp->n_ctx, MIN_KV_TOKENS), TDM_KV_PAGE_TOKENS);

        return pages_bytes(hp, model->kv_type, &(struct tdm_pages_need){ { n, n, TDM_PAGES_STATES } });
}

/* Pages of a cache of at most budget bytes. TDM_E_NO_MEMORY: not one fits. */
static int plan_pages(const struct tdm_model *model, uint64_t budget, struct tdm_pages_need *ret, struct tdm_error *err)
{
        const struct tdm_models *m = model->models;

        tdm_pages_plan(tdm_model_hparams(model), model->kv_type, budget, m->max_sequences, m->max_rows, ret);
        for (unsigned g = 0; g < TDM_KV_POOLS; g++)
                if (model->geometry.n_layers[g] && ret->n[g] == 0)
                        return tdm_error_set(
                                err, TDM_E_NO_MEMORY,
                                "a KV cache of %.1f MiB (kv-memory) has no room for a single page of model %s",
                                MIB(budget), tdm_model_told_name(model));
        return 0;
}

/* The process that has the vision tower copies the file. */
static uint64_t tower_bytes(const struct tdm_model *model)
{
        const struct tdm_model_projector *p = model->metadata->projector;

        return p && !tdm_model_projector_why_not(p) ? tdm_model_projector_bytes(p) : 0;
}

/* Memory that both workers take by themselves, with their copies of the steps. */
static uint64_t scratch_bytes(const struct tdm_model *model, const struct tdm_steps_limits *limits)
{
        uint64_t each = tdm_recipe_scratch_bytes(tdm_model_recipe(model), tdm_model_hparams(model), limits->max_rows);

        return TDM_N_WORKERS * (each + (uint64_t)TDM_STEP_SLOTS * limits->max_rows * limits->input_bytes);
}

/* 0: model->cache_budget is known. TDM_E_BUSY: memory may become free, try again. TDM_E_NO_MEMORY. */
static int plan_memory(struct tdm_model *model, const struct tdm_steps_layout *layout, uint64_t activations_bytes,
                       struct tdm_error *err)
{
        struct tdm_models *m = model->models;
        uint64_t scratch = scratch_bytes(model, &layout->limits);
        uint64_t fixed = model->metadata->weights_bytes + activations_bytes + layout->size_bytes +
                         layout->results_bytes + scratch + tower_bytes(model);
        uint64_t least_kv = least_cache_bytes(model), available = tdm_memory_available(), budget;
        struct tdm_pages_need pages;

        available -= TDM_MIN(available, MEMORY_MARGIN_BYTES);
        if (fixed + least_kv > available) {
                bool more = !model->only_draft && tdm_models_evict_one(m, model->holder, model);

                if (more || (!tdm_list_empty(&m->left) && tdm_now_ns() - model->way.waiting_ns < WAIT_NS))
                        return TDM_E_BUSY;
                return tdm_error_set(
                        err, TDM_E_NO_MEMORY,
                        "model %s needs %.1f MiB (weights %.1f, scratch of the workers %.1f, cache at least %.1f), but "
                        "only %.1f MiB are free; close something or take a smaller model",
                        tdm_model_told_name(model), MIB(fixed + least_kv), MIB(model->metadata->weights_bytes),
                        MIB(scratch), MIB(least_kv), MIB(available));
        }
        budget = m->kv_bytes ? TDM_MIN(m->kv_bytes, available - fixed) : TDM_MAX((available - fixed) / 4, least_kv);
        if (m->kv_bytes > available - fixed)
                tdm_log_warning("model %s: kv-memory of %.1f MiB is more than is free; %.1f MiB are used", model->name,
                                MIB(m->kv_bytes), MIB(budget));
        model->cache_budget = budget;
        return plan_pages(model, budget, &pages, err); /* what has no room is refused before it is read */
}

static int create_segments(struct tdm_model *model, uint64_t activations_bytes)
{
        int r = tdm_segment_create(&model->weights, "weights", model->metadata->weights_bytes);

        if (r == 0)
                r = tdm_segment_create(&model->activations, "activations", activations_bytes);
        if (r == 0)
                r = tdm_segment_create(&model->steps, "steps", model->layout.size_bytes);
        if (r == 0)
                r = tdm_segment_create(&model->results, "results", model->layout.results_bytes);
        if (r == 0)
                tdm_steps_format(model->steps->base, &model->layout);
        return r;
}

/* Once the first chunk of the weights is there. */
static struct tdm_device_needs needs_of(const struct tdm_model *model)
{
        return tdm_device_needs_of(model->weights->base, model->layout.limits.max_pictures);
}

/* The cache is made when the workers can take the model, no sooner: the hello of a
 * worker says how much memory its device has for caches. A worker that has not said hello after WAIT_NS is not waited
 * for. 0: it is made. TDM_E_BUSY: not yet. */
static int make_cache(struct tdm_model *model, struct tdm_error *err)
{
        uint64_t room = UINT64_MAX, budget = model->cache_budget;
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        const struct tdm_device_needs needs = needs_of(model);
        struct tdm_pages_need pages;
        int r;

        if (!tdm_fleet_cache_room(model->models->fleet, model->metadata->weights_bytes, &needs, &room) &&
            tdm_now_ns() - model->way.sealed_ns < WAIT_NS)
                return TDM_E_BUSY;
        /* A device with room for less cannot run attention of this model at all. Another one may. */
        if (room < budget && room >= least_cache_bytes(model)) {
                tdm_log_info("model %s: a device's memory leaves %.1f MiB to its KV cache", model->name, MIB(room));
                budget = room;
        }
        r = plan_pages(model, budget, &pages, err);
        if (r != 0)
                return r;
        r = tdm_kv_geometry_init(&model->geometry, hp, model->kv_type, pages.n[TDM_KV_FULL], pages.n[TDM_KV_WINDOW],
                                 pages.n[TDM_KV_STATE]);
        if (r == 0)
                r = tdm_segment_create(&model->kv, "kv", model->geometry.size_bytes);
        if (r == 0)
                r = tdm_pages_new(&model->pages, &model->geometry, model->kv);
        /* If rows see the rows behind them, texts with equal beginnings do not have equal rows there. */
        if (r == 0 && !model->models->no_prefix_cache && !tdm_recipe_is_whole(tdm_model_recipe(model)))
                r = tdm_prefix_new(&model->prefix, model->pages, hp, &model->geometry);
        if (r < 0 && r != -EOPNOTSUPP)
                return tdm_error_set(err, r == -ENOMEM ? TDM_E_NO_MEMORY : TDM_E_INTERNAL,
                                     "cannot create the KV cache of model %s: %s", tdm_model_told_name(model),
                                     strerror(-r));
        return 0;
}

/* The dma-buf of the hidden rows. Where there can be none, and none is required, the log says why. */
static int make_dmabuf(struct tdm_model *model, struct tdm_error *err)
{
        enum tdm_activations wanted = model->models->activations;
        struct tdm_error why;
        int r;

        if (wanted == TDM_ACTIVATIONS_MEMFD)
                return 0;
        r = tdm_dmabuf_create(model->activations, &why);
        if (r == 0)
                return 0;
        if (wanted == TDM_ACTIVATIONS_DMABUF)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "model %s: activations = dma-buf, but %s",
                                     tdm_model_told_name(model), why.message);
        tdm_log(r == -ENOENT ? TDM_LOG_DEBUG : TDM_LOG_INFO, "model %s: hidden rows are not shared as a dma-buf: %s",
                model->name, why.message);
        return 0;
}

/* Logs which parts of the file were passed over. */
static void log_notes(const struct tdm_model *model)
{
        const char *notes[] = { model->metadata->description.notes.text,
                                tdm_tokenizer_notes(model->metadata->tokenizer) };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(notes); i++)
                if (notes[i][0])
                        tdm_log_warning("model %s: %s", model->name, notes[i]);
}

static void on_stage_done(struct tdm_model_load *load, int r, const struct tdm_error *err, void *userdata);
static void on_sealed(struct tdm_model_load *load, unsigned n_chunks, void *userdata);

/* The path that a client says is used in messages only. The kernel knows where the file lies. */
const char *tdm_model_place(const struct tdm_model *model, char *room, size_t size)
{
        char link[64];
        ssize_t n;

        if (model->by_name)
                return model->path;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", model->fd);
        n = model->models->serves_all ? -1 : readlink(link, room, size - 1);
        if (n <= 0)
                return NULL;
        room[n] = '\0';
        return room;
}

static int start_load(struct tdm_model *model)
{
        char room[4400];

        return tdm_model_load_new(&model->load, model->models->loop, model->fd,
                                  model->by_name ? model->path : tdm_model_told_path(model),
                                  tdm_model_place(model, room, sizeof(room)), on_stage_done, model);
}

int tdm_model_start(struct tdm_model *model, struct tdm_error *err)
{
        uint64_t max_bytes;
        int r = tdm_model_charge_reading(model, &max_bytes, err);

        if (r == 0)
                r = start_load(model);
        if (r != 0)
                return r;
        model->way.started_ns = tdm_now_ns();
        model->state = TDM_MODEL_READING;
        r = tdm_model_load_metadata(model->load, max_bytes, &model->models->pictures);
        if (r < 0) {
                tdm_model_load_destroyp(&model->load);
                return r;
        }
        tdm_source_arm(model->models->tick, tdm_now_ns() + MODELS_TICK_NS);
        return 0;
}

void tdm_model_continue(struct tdm_model *model)
{
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        uint64_t activations =
                (uint64_t)TDM_STEP_SLOTS * tdm_model_max_rows(model) * hp->residual_width * sizeof(float);
        struct tdm_steps_limits limits;
        struct tdm_error err;
        int r;

        if (model->state == TDM_MODEL_DESCRIBED)
                model->way.waiting_ns = tdm_now_ns();
        steps_limits(model, &limits);
        r = tdm_steps_limits_check(&limits, &err);
        if (r == 0)
                r = check_inputs(model, &limits, &err);
        if (r != 0) {
                tdm_model_fail(model, &err);
                return;
        }
        tdm_steps_layout(&limits, &model->layout);
        r = tdm_kv_geometry_init(&model->geometry, hp, model->kv_type, 1, 1, 1); /* which groups there are */
        if (r == 0)
                r = plan_memory(model, &model->layout, activations, &err);
        if (r == TDM_E_BUSY) {
                model->state = TDM_MODEL_WAITING;
                tdm_models_arm_tick(model->models);
                return;
        }
        if (r > 0) {
                tdm_model_fail(model, &err);
                return;
        }
        if (r == 0)
                r = create_segments(model, activations);
        if (r < 0) {
                fail_errno(model, r, "create the shared memory");
                return;
        }
        r = make_dmabuf(model, &err);
        if (r != 0) {
                tdm_model_fail(model, &err);
                return;
        }
        if (tdm_fleet_wants_panels(model->models->fleet))
                tdm_weights_plan_panels(model->metadata->plan);
        r = start_load(model);
        if (r == 0)
                r = tdm_model_load_weights(model->load, model->metadata, model->weights, on_sealed);
        if (r < 0) {
                tdm_model_load_destroyp(&model->load);
                fail_errno(model, r, "start building the weights");
                return;
        }
        model->state = TDM_MODEL_LOADING;
        tdm_models_arm_tick(model->models);
        tdm_model_notify(model);
}

static struct tdm_fleet_model describe_to_fleet(const struct tdm_model *model)
{
        return (struct tdm_fleet_model){
                .model_id = model->id,
                .name = tdm_model_told_name(model),
                .weights = model->weights,
                .n_sealed = model->way.n_sealed,
                .kv = model->kv,
                .activations = model->activations,
                .steps = model->steps,
                .results = model->results,
                .kv_geometry = model->geometry,
                .layout = model->layout,
                .hparams = *tdm_model_hparams(model),
                .precision = model->precision,
                .dmabuf_only = model->models->activations == TDM_ACTIVATIONS_DMABUF,
                .needs = needs_of(model),
        };
}

/* The first n_sealed chunks of the weights are sealed. The fleet gets the model as soon as its cache can be planned. */
static void hand_to_fleet(struct tdm_model *model)
{
        struct tdm_error err = { 0 };
        struct tdm_fleet_model fm;
        int r;

        if (model->in_fleet) {
                tdm_fleet_weights_sealed(model->models->fleet, model->id, model->way.n_sealed);
                return;
        }
        r = make_cache(model, &err);
        if (r == TDM_E_BUSY) /* the next tick tries again */
                return;
        if (r != 0) {
                tdm_model_fail(model, &err);
                return;
        }
        fm = describe_to_fleet(model);
        r = tdm_fleet_add_model(model->models->fleet, &fm, &err);
        if (r != 0) {
                if (!err.message[0])
                        tdm_error_set(&err, r, "the workers cannot take model %s: %s", tdm_model_told_name(model),
                                      r < 0 ? strerror(-r) : tdm_error_name(r));
                tdm_model_fail(model, &err);
                return;
        }
        model->in_fleet = true;
}

static void sealed(struct tdm_model *model, unsigned n_chunks)
{
        if (model->way.n_sealed == 0)
                model->way.sealed_ns = tdm_now_ns();
        model->way.n_sealed = n_chunks;
        hand_to_fleet(model);
}

static void on_sealed(struct tdm_model_load *load, unsigned n_chunks, void *userdata)
{
        struct tdm_model *model = userdata;

        if (model->state == TDM_MODEL_LOADING)
                sealed(model, n_chunks);
}

#define KEY_BIAS_MAX 16.0f /* that a block of q8_0 rounds by 0.06 or less */

/* Biases are added to keys before they are kept. A block of q8_0 has one scale, so that a large bias leaves few steps
 * to the numbers beside it: Qwen 2's reach some hundreds. */
static void warn_of_biases(const struct tdm_model *model)
{
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        const uint8_t *base = model->weights->base;
        float most = 0;

        if (model->kv_type != TDM_KV_Q8_0)
                return;
        for (uint32_t layer = 0; layer < hp->n_layers; layer++) {
                const struct tdm_weights_tensor *bias = tdm_weights_find(base, TDM_TENSOR_K_BIAS, layer);
                const float *values = bias ? (const float *)(const void *)(base + bias->offset) : NULL;

                for (uint64_t i = 0; bias && i < (uint64_t)bias->rows * bias->cols; i++)
                        most = fmaxf(most, fabsf(values[i]));
        }
        if (most > KEY_BIAS_MAX)
                tdm_log_warning("model %s: biases of its keys reach %.0f, and a KV cache of q8_0 rounds what is beside "
                                "them by up to %.2f: its answers are worse for it; kv-type = f16 in tandem.conf holds "
                                "them",
                                model->name, (double)most, (double)most / 254);
}

static void on_built(struct tdm_model *model)
{
        tdm_log_debug("model %s: weights read and packed after %.0f ms", model->name,
                      (double)(tdm_now_ns() - model->way.started_ns) / 1e6);
        model->state = TDM_MODEL_MAPPING;
        warn_of_biases(model);
        sealed(model, model->weights->n_chunks);
        tdm_model_metadata_trim(model->metadata); /* unmaps the file: the workers need not wait for that */
        tdm_model_charge_read(model);
        if (model->state == TDM_MODEL_MAPPING)
                tdm_model_notify(model);
}

static void on_stage_done(struct tdm_model_load *load, int r, const struct tdm_error *err, void *userdata)
{
        struct tdm_model *model = userdata;
        struct tdm_error why = *err, changed; /* err belongs to the load, which is destroyed here */

        tdm_model_ref(model);
        if (r == 0 && model->state == TDM_MODEL_READING) {
                model->metadata = tdm_model_load_take_metadata(load);
                log_notes(model);
        }
        tdm_model_load_destroyp(&model->load);
        if (model->charges.reads)
                tdm_model_charge_read(model);
        if (model->state == TDM_MODEL_FAILED && model->error.code == TDM_E_CANCELLED)
                tdm_model_retire(model); /* nobody waits for it */
        else if (model->state == TDM_MODEL_FAILED)
                tdm_model_leave(model);
        else if (r != 0) {
                if (model->models->ending)
                        tdm_error_set(&why, TDM_E_DRAINING, "tandemd is shutting down; model %s was not loaded",
                                      tdm_model_told_name(model));
                tdm_model_fail(model, &why);
        } else if (tdm_model_check_file(model, &changed) == 0) {
                if (model->state == TDM_MODEL_READING) {
                        model->state = TDM_MODEL_DESCRIBED;
                        tdm_model_notify(model);
                        if (model->state == TDM_MODEL_DESCRIBED && model->wanted)
                                tdm_model_continue(model);
                } else
                        on_built(model);
        }
        tdm_models_arm_tick(model->models);
        tdm_model_unref(model);
}

int tdm_model_need(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        int r;

        if (model->state == TDM_MODEL_FAILED || model->state == TDM_MODEL_GONE)
                return 0;
        if (model->wanted)
                return tdm_model_check_user(model, account, err);
        if (tdm_model_is_default(model))
                account = model->models->root;
        model->holder = account ? tdm_account_ref(account) : NULL;
        r = tdm_model_take_place(model, err);
        if (r != 0) { /* another user may have a place for it */
                tdm_account_unref(steal_ptr(&model->holder));
                return r;
        }
        model->wanted = true;
        model->way.started_ns = tdm_now_ns();
        if (model->state == TDM_MODEL_DESCRIBED)
                tdm_model_continue(model);
        return 0;
}

void tdm_models_cancel_loads(struct tdm_models *m)
{
        struct tdm_model *model;

        m->ending = true;
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model->load)
                        tdm_model_load_cancel(model->load);
        }
}

static struct tdm_model *find_id(struct tdm_models *m, uint32_t id)
{
        struct tdm_model *model;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model->id == id)
                        return model;
        }
        return NULL;
}

static void become_ready(struct tdm_model *model)
{
        uint64_t now = tdm_now_ns();

        if (model->state != TDM_MODEL_MAPPING)
                return;
        model->state = TDM_MODEL_READY;
        tdm_model_touch(model);
        model->way.load_ms = (double)(now - model->way.started_ns) / 1e6;
        tdm_log_info("model %s loaded in %.0f ms: %s, weights %.1f MiB, cache up to %.1f MiB", model->name,
                     model->way.load_ms, model->metadata->quantisation, MIB(model->weights->size_bytes),
                     MIB(model->geometry.size_bytes));
        tdm_model_notify(model);
        tdm_models_arm_tick(model->models);
}

void tdm_models_on_model_ready(struct tdm_models *m, uint32_t id)
{
        struct tdm_model *model = find_id(m, id);

        if (model)
                become_ready(model);
}

void tdm_models_on_fleet_ready(struct tdm_models *m)
{
        /* on_model_ready says which models the workers have: this may be called while one of them is still loading. */
        tdm_models_free_left(m, UINT64_MAX);
}

void tdm_models_on_model_failed(struct tdm_models *m, uint32_t id, const struct tdm_error *err)
{
        struct tdm_model *model = find_id(m, id);

        if (!model)
                return;
        model->in_fleet = false;
        tdm_model_fail(model, err);
}

/* A model that waits for memory may unload others, so only one of them is tried in a walk over the list. */
static void continue_one_waiting(struct tdm_models *m)
{
        struct tdm_model *model, *found = NULL;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (!found && model->state == TDM_MODEL_WAITING)
                        found = model;
        }
        if (found)
                tdm_model_continue(found);
}

int tdm_models_on_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_models *m = userdata;
        bool check = now_ns - m->last_file_check_ns >= MODELS_FILE_CHECK_NS;
        struct tdm_model *model;
        struct tdm_error err;

        if (check)
                m->last_file_check_ns = now_ns;
        tdm_models_free_left(m, now_ns - LEFT_NS);
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (check && (model->use.n_jobs > 0 || model->load))
                        (void)tdm_model_check_file(model, &err); /* fails the model itself */
                if ((model->state == TDM_MODEL_LOADING || model->state == TDM_MODEL_MAPPING) && !model->in_fleet &&
                    model->way.n_sealed > 0)
                        hand_to_fleet(model);
                if (model->state == TDM_MODEL_READING || model->state == TDM_MODEL_LOADING ||
                    model->state == TDM_MODEL_MAPPING)
                        tdm_model_notify(model);
                if (tdm_model_is_spent(model) && now_ns >= tdm_model_spent_until(model)) {
                        tdm_model_retire(model);
                        continue;
                }
                if (now_ns >= tdm_model_leaves_at(model)) {
                        if (model->superseded)
                                tdm_log_info("model %s unloaded: its last job from before it was read anew has ended",
                                             model->name);
                        else
                                tdm_log_info("model %s unloaded: nobody used it for %llu s (idle-unload, or a job's "
                                             "keep-alive); %.1f MiB are free again",
                                             model->name,
                                             (unsigned long long)((now_ns - model->use.last_ns) / TDM_NSEC_PER_SEC),
                                             MIB(tdm_model_resident_bytes(model)));
                        tdm_model_retire(model);
                }
        }
        tdm_models_drop_described(m);
        continue_one_waiting(m);
        tdm_models_arm_tick(m);
        return 0;
}
