/* Models as a worker has them: segments mapped, every claim about them checked, buffers made. Weights may come chunk by
 * chunk; once the last one is there and the device has them all, nothing is allocated any more.
 *
 * Sizes are never taken from a message: they follow from the hparams in the sealed weights, from the limits in the
 * steps segment and from the page counts, and a segment that is too small for them is refused. */
#include "engine/worker/private.h"

#include "common/dmabuf.h"
#include "common/log.h"

static const char *const segment_names[TDM_WORKER_N_SEGS] = {
        [TDM_WORKER_SEG_WEIGHTS] = "weights",
        [TDM_WORKER_SEG_STEPS] = "steps",
        [TDM_WORKER_SEG_ACTIVATIONS] = "activations",
        [TDM_WORKER_SEG_RESULTS] = "results",
};
static const bool segment_writable[TDM_WORKER_N_SEGS] = {
        [TDM_WORKER_SEG_ACTIVATIONS] = true,
        [TDM_WORKER_SEG_RESULTS] = true,
};

/* A device needs the segment's mapping and no fds, and a thousand open fds would reach the process's limit. */
static void close_fds(struct tdm_worker_segment *from, struct tdm_segment *segment)
{
        for (unsigned i = 0; i < from->n_fds; i++)
                from->fds[i] = -1;
        for (unsigned i = 0; i < segment->n_mapped; i++)
                closep(&segment->fds[i]);
}

/* Chunks that come later are those of weights alone. */
static int import_segment(struct tdm_worker_segment *from, const char *name, bool writable, bool in_pieces,
                          struct tdm_segment **ret, struct tdm_error *err)
{
        int r = in_pieces ? tdm_segment_import_first(ret, name, from->fds, from->n_fds, from->size_bytes,
                                                     from->chunk_bytes, err) :
                            tdm_segment_import(ret, name, from->fds, from->n_fds, from->size_bytes, from->chunk_bytes,
                                               writable, err);

        if (r != 0)
                return r;
        close_fds(from, *ret);
        if (from->dmabuf_fd < 0)
                return 0;
        r = tdm_dmabuf_import(*ret, from->dmabuf_fd, err);
        if (r == 0)
                from->dmabuf_fd = -1;
        return r;
}

static void model_clear(struct tdm_worker_model *m)
{
        if (m->device_model)
                m->device->ops->model_unload(m->device_model);
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++)
                tdm_step_destroy(m->steps[i]);
        for (unsigned i = 0; i < TDM_WORKER_N_SEGS; i++)
                tdm_segment_destroy(m->segments[i]);
        tdm_segment_destroy(m->kv);
        free(m->drawn);
        memset(m, 0, sizeof(*m));
}

static struct tdm_worker_model *worker_model_find(struct tdm_worker *w, uint32_t model_id)
{
        for (unsigned i = 0; model_id != 0 && i < TDM_PROGRESS_MODELS; i++)
                if (w->models[i].model_id == model_id)
                        return &w->models[i];
        return NULL;
}

struct tdm_worker_model *tdm_worker_model_find(struct tdm_worker *w, uint32_t model_id)
{
        struct tdm_worker_model *m = worker_model_find(w, model_id);

        return m && !m->loading ? m : NULL;
}

static int need_bytes(const struct tdm_segment *segment, uint64_t bytes, struct tdm_error *err)
{
        if (segment->size_bytes >= bytes)
                return 0;
        return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s has %llu bytes, needs %llu", segment->name,
                             (unsigned long long)segment->size_bytes, (unsigned long long)bytes);
}

/* Checks and copies what the segments say about the model. */
static int model_describe(struct tdm_worker_model *m, const struct tdm_worker_command *command, struct tdm_error *err)
{
        const struct tdm_segment *weights = m->segments[TDM_WORKER_SEG_WEIGHTS];
        const struct tdm_segment *steps = m->segments[TDM_WORKER_SEG_STEPS];
        struct tdm_steps_limits limits;
        int r;

        r = tdm_weights_check(weights->base, weights->size_bytes, tdm_segment_mapped_bytes(weights), err);
        if (r != 0)
                return r;
        m->hparams = tdm_weights_header(weights->base)->hparams;
        r = tdm_hparams_check(&m->hparams, err);
        if (r != 0)
                return r;

        r = tdm_steps_check(steps->base, steps->size_bytes, &limits, err);
        if (r != 0)
                return r;
        tdm_steps_layout(&limits, &m->layout);
        r = need_bytes(steps, m->layout.size_bytes, err);
        if (r == 0)
                r = need_bytes(m->segments[TDM_WORKER_SEG_RESULTS], m->layout.results_bytes, err);
        if (r == 0)
                r = need_bytes(m->segments[TDM_WORKER_SEG_ACTIVATIONS],
                               (uint64_t)TDM_STEP_SLOTS * limits.max_rows * m->hparams.residual_width * sizeof(float),
                               err);
        if (r != 0)
                return r;

        if (!tdm_kv_type_name((enum tdm_kv_type)command->kv_type))
                return tdm_error_set(err, TDM_E_PROTOCOL, "unknown KV type %u", command->kv_type);
        r = tdm_kv_geometry_init(&m->geometry, &m->hparams, (enum tdm_kv_type)command->kv_type,
                                 command->kv_pages[TDM_KV_FULL], command->kv_pages[TDM_KV_WINDOW],
                                 command->kv_pages[TDM_KV_STATE]);
        if (r < 0)
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "a KV cache of %u and %u pages and %u states cannot be addressed",
                                     command->kv_pages[TDM_KV_FULL], command->kv_pages[TDM_KV_WINDOW],
                                     command->kv_pages[TDM_KV_STATE]);
        return 0;
}

/* What of the model the device leaves to the host device; NULL: nothing. */
static const char *model_left_to_host(const struct tdm_worker_model *m, const struct tdm_device_ops *ops)
{
        const struct tdm_device_needs needs =
                tdm_device_needs_of(m->segments[TDM_WORKER_SEG_WEIGHTS]->base, m->layout.limits.max_pictures);
        const struct tdm_device_needs *left = &ops->left_to_host;

        for (unsigned i = 0; i < TDM_N_FEATURES; i++)
                if (needs.features & left->features & UINT64_C(1) << i)
                        return tdm_feature_name((enum tdm_feature)i);
        for (uint32_t i = 0; i < 64; i++)
                if (needs.types & left->types & UINT64_C(1) << i)
                        return tdm_type_info(i)->name;
        return NULL;
}

/* A model that the worker's device leaves to the host device runs there whole, with pictures and without. */
static void model_choose_device(struct tdm_worker *w, struct tdm_worker_model *m)
{
        const char *left = model_left_to_host(m, w->device->ops);

        m->device = left ? w->host : w->device;
        if (!left)
                return;
        snprintf(m->plan, sizeof(m->plan), "runs on the CPU (%s), as the %s device does not compute %s",
                 w->host->ops->describe(w->host), w->device->ops->name, left);
        tdm_log_info("model %s %s", m->name, m->plan);
}

/* Gives the device the weights that are there and that it can use. Once it has all of them, the model is loaded. */
static int model_feed(struct tdm_worker_model *m, struct tdm_error *err)
{
        const struct tdm_device_ops *ops = m->device->ops;
        const struct tdm_segment *weights = m->segments[TDM_WORKER_SEG_WEIGHTS];
        uint64_t t0 = tdm_now_ns(), t1;
        int r = ops->load_begin ? ops->load_weights(m->device_model, tdm_segment_mapped_bytes(weights), err) : 0;

        t1 = tdm_now_ns();
        m->weights_ns += t1 - t0;
        if (r != 0 || weights->n_mapped < weights->n_chunks)
                return r;
        r = ops->load_begin ? ops->load_end(m->device_model, err) :
                              ops->model_load(m->device, &m->config, &m->device_model, err);
        if (r != 0)
                return r;
        m->loading = false;
        if (m->kv && !ops->load_begin)
                ops->set_kv(m->device_model, m->kv->base);
        tdm_log_debug("model %s: taken in %.0f ms: made ready in %.0f, %.1f MiB of weights in %.0f, finished in %.0f",
                      m->name, (double)(tdm_now_ns() - m->begun_ns) / 1e6, (double)m->begin_ns / 1e6,
                      (double)weights->size_bytes / 0x1p20, (double)m->weights_ns / 1e6,
                      (double)(tdm_now_ns() - t1) / 1e6);
        return 0;
}

static int model_load(struct tdm_worker *w, struct tdm_worker_model *m, struct tdm_worker_command *command,
                      struct tdm_error *err)
{
        int r;

        m->begun_ns = tdm_now_ns();
        snprintf(m->name, sizeof(m->name), "%s", command->name);
        for (unsigned i = 0; i < TDM_WORKER_N_SEGS; i++) {
                r = import_segment(&command->segments[i], segment_names[i], segment_writable[i],
                                   i == TDM_WORKER_SEG_WEIGHTS, &m->segments[i], err);
                if (r != 0)
                        return r;
        }
        r = model_describe(m, command, err);
        if (r != 0)
                return r;
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                r = tdm_step_new(&m->steps[i], &m->layout.limits);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_NO_MEMORY, "no memory for a step of %u rows",
                                             m->layout.limits.max_rows);
        }
        m->drawn = calloc(m->layout.limits.max_logits, sizeof(*m->drawn));
        if (!m->drawn)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "no memory for the results of a step of %u rows",
                                     m->layout.limits.max_rows);
        model_choose_device(w, m);
        m->loading = true;
        m->config = (struct tdm_device_model_config){
                .weights = m->segments[TDM_WORKER_SEG_WEIGHTS]->base,
                .kv = m->geometry,
                .activations = m->segments[TDM_WORKER_SEG_ACTIVATIONS]->base,
                .activations_bytes = m->segments[TDM_WORKER_SEG_ACTIVATIONS]->size_bytes,
                .activations_dmabuf = TDM_MAX(m->segments[TDM_WORKER_SEG_ACTIVATIONS]->dmabuf_fd, 0),
                .dmabuf_only = command->dmabuf_only,
                .limits = m->layout.limits,
                .precision = (enum tdm_precision)command->precision,
        };
        r = m->device->ops->load_begin ? m->device->ops->load_begin(m->device, &m->config, &m->device_model, err) : 0;
        m->begin_ns = tdm_now_ns() - m->begun_ns;
        return r == 0 ? model_feed(m, err) : r;
}

/* A model that cannot be loaded is gone. */
static int cannot_take(struct tdm_worker *w, struct tdm_worker_model *m, int r, struct tdm_error *err)
{
        char name[sizeof(m->name)];

        snprintf(name, sizeof(name), "%s", m->name);
        if (err->code == 0)
                tdm_error_set(err, r, "%s", strerror(r < 0 ? -r : EIO));
        model_clear(m);
        return tdm_error_prefix(err, "%s cannot take model %s", w->program->name, name);
}

int tdm_worker_model_load(struct tdm_worker *w, struct tdm_worker_command *command, struct tdm_worker_model **ret,
                          struct tdm_error *err)
{
        struct tdm_worker_model *m;
        int r;

        if (command->index >= TDM_PROGRESS_MODELS || command->model_id == 0 ||
            worker_model_find(w, command->model_id) || w->models[command->index].model_id != 0)
                return tdm_error_set(err, TDM_E_PROTOCOL, "model %u cannot take row %u", command->model_id,
                                     command->index);
        if (command->precision > TDM_PRECISION_F32)
                return tdm_error_set(err, TDM_E_PROTOCOL, "unknown precision %u", command->precision);

        m = &w->models[command->index];
        w->newest_model_id = TDM_MAX(w->newest_model_id, command->model_id);
        r = model_load(w, m, command, err);
        if (r != 0)
                return cannot_take(w, m, r, err);
        m->model_id = command->model_id;
        *ret = m;
        return 0;
}

int tdm_worker_model_weights(struct tdm_worker *w, struct tdm_worker_command *command, struct tdm_worker_model **ret,
                             struct tdm_error *err)
{
        struct tdm_worker_segment *more = &command->segments[0];
        struct tdm_worker_model *m = worker_model_find(w, command->model_id);
        int r;

        *ret = m;
        if (!m && command->model_id != 0 && command->model_id <= w->newest_model_id)
                return 0; /* it failed, or was unloaded, while they were on their way */
        if (!m || !m->loading)
                return tdm_error_set(err, TDM_E_PROTOCOL, "weights for model %u, which %s", command->model_id,
                                     m ? "has all" : "is not here");
        r = tdm_segment_import_more(m->segments[TDM_WORKER_SEG_WEIGHTS], more->fds, more->n_fds, err);
        if (r == 0) {
                close_fds(more, m->segments[TDM_WORKER_SEG_WEIGHTS]);
                r = model_feed(m, err);
        }
        return r == 0 ? 0 : cannot_take(w, m, r, err);
}

/* While a model is loading, too: a device that can makes its own cache ready meanwhile. */
int tdm_worker_model_kv(struct tdm_worker *w, struct tdm_worker_command *command, struct tdm_error *err)
{
        struct tdm_worker_model *m = worker_model_find(w, command->model_id);
        int r;

        if (!m || m->kv)
                return tdm_error_set(err, TDM_E_PROTOCOL, "KV cache for model %u, which %s", command->model_id,
                                     m ? "has one" : "is not here");
        r = import_segment(&command->segments[0], "kv", true, false, &m->kv, err);
        if (r == 0)
                r = need_bytes(m->kv, m->geometry.size_bytes, err);
        if (r != 0 && m->loading)
                return cannot_take(w, m, r, err);
        if (r != 0) {
                tdm_segment_destroyp(&m->kv);
                return r;
        }
        if (m->device_model)
                m->device->ops->set_kv(m->device_model, m->kv->base);
        return 0;
}

void tdm_worker_model_unload(struct tdm_worker *w, uint32_t model_id)
{
        struct tdm_worker_model *m = worker_model_find(w, model_id);

        if (m)
                model_clear(m);
}
