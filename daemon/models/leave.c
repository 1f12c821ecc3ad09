/* A model's end: it fails, or is not needed any more, and gives back what it had. What loads, places and lists models
 * calls this, and this calls none of it.
 *
 * Segments of a model that left are kept until the workers have unmapped them (struct left_segments). */
#include "daemon/models/private.h"

#include "common/log.h"

/* How long the failure of a refused file is shown: meanwhile the file may be mended, or gone. */
#define FAILED_NS (3 * TDM_NSEC_PER_SEC)

void tdm_model_notify(struct tdm_model *model)
{
        struct tdm_models *m = model->models;

        for (unsigned i = 0; i < m->n_observers; i++)
                m->observers[i].fn(model, m->observers[i].userdata);
}

uint64_t tdm_model_spent_until(const struct tdm_model *model)
{
        return model->use.last_ns + FAILED_NS;
}

bool tdm_model_is_spent(const struct tdm_model *model)
{
        return model->state == TDM_MODEL_FAILED && model->use.n_jobs == 0 && model->use.n_steps == 0 && !model->load;
}

uint64_t tdm_model_leaves_at(const struct tdm_model *model)
{
        if (model->state != TDM_MODEL_READY || model->use.n_jobs > 0 || model->use.n_steps > 0)
                return UINT64_MAX;
        if (model->superseded)
                return model->use.last_ns;
        if (model->use.keep_until_ns > 0)
                return model->use.keep_until_ns;
        return model->models->idle_ns > 0 ? model->use.last_ns + model->models->idle_ns : UINT64_MAX;
}

void tdm_models_arm_tick(struct tdm_models *m)
{
        uint64_t now = tdm_now_ns(), at = UINT64_MAX;
        struct tdm_model *model;

        if (!tdm_list_empty(&m->left) || tdm_models_have_too_many_described(m))
                at = now + MODELS_TICK_NS;
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model->load || model->state == TDM_MODEL_WAITING || model->state == TDM_MODEL_MAPPING)
                        at = now + MODELS_TICK_NS;
                else if (tdm_model_is_spent(model))
                        at = TDM_MIN(at, TDM_MAX(tdm_model_spent_until(model), now + 1));
                else if (model->use.n_jobs > 0)
                        at = TDM_MIN(at, now + MODELS_FILE_CHECK_NS);
                else
                        at = TDM_MIN(at, TDM_MAX(tdm_model_leaves_at(model), now + 1));
        }
        tdm_source_arm(m->tick, at == UINT64_MAX ? 0 : at);
}

void tdm_models_free_left(struct tdm_models *m, uint64_t before_ns)
{
        struct left_segments *g;

        tdm_list_for_each(g, &m->left, struct left_segments, node) {
                if (g->since_ns >= before_ns)
                        continue;
                tdm_list_remove(&g->node);
                for (size_t i = 0; i < TDM_ARRAY_SIZE(g->segments); i++)
                        tdm_segment_destroy(g->segments[i]);
                free(g);
        }
}

void tdm_model_leave(struct tdm_model *model)
{
        struct tdm_models *m = model->models;
        struct tdm_segment *segments[5];
        struct left_segments *g;

        if (model->in_fleet && m->fleet)
                tdm_fleet_remove_model(m->fleet, model->id);
        if (model->metadata)
                tdm_model_projector_rest(model->metadata->projector);
        tdm_prefix_destroyp(&model->prefix);
        tdm_pages_destroyp(&model->pages);
        if (model->metadata && !model->load)
                tdm_model_metadata_trim(model->metadata); /* a failed one must not keep its file mapped */
        if (!model->load)
                tdm_model_charge_read(model);
        tdm_model_give_place(model);
        segments[0] = steal_ptr(&model->weights);
        segments[1] = steal_ptr(&model->kv);
        segments[2] = steal_ptr(&model->activations);
        segments[3] = steal_ptr(&model->steps);
        segments[4] = steal_ptr(&model->results);
        g = model->in_fleet && m->fleet ? calloc(1, sizeof(*g)) : NULL;
        if (g) {
                memcpy(g->segments, segments, sizeof(segments));
                g->since_ns = tdm_now_ns();
                tdm_list_append(&m->left, &g->node);
                tdm_models_arm_tick(m);
        } else
                for (size_t i = 0; i < TDM_ARRAY_SIZE(segments); i++)
                        tdm_segment_destroy(segments[i]);
        model->in_fleet = false;
}

void tdm_model_retire(struct tdm_model *model)
{
        struct tdm_model *kept = tdm_model_ref(model);

        if (model->state != TDM_MODEL_FAILED) {
                model->state = TDM_MODEL_GONE;
                tdm_model_notify(model);
        }
        if (model->use.n_steps == 0)
                tdm_model_leave(model);
        /* Else with the last of its steps (tdm_model_step_end()). They are those of drafts, and no job waits for them.
         */
        tdm_model_unlist(model);
        tdm_model_unref(kept);
}

void tdm_model_fail(struct tdm_model *model, const struct tdm_error *err)
{
        if (model->state == TDM_MODEL_FAILED || model->state == TDM_MODEL_GONE)
                return;
        model->state = TDM_MODEL_FAILED;
        model->use.last_ns = tdm_now_ns();
        model->error = *err;
        if (err->code < 0)
                model->error.code = TDM_E_INTERNAL;
        tdm_log(err->code == TDM_E_CANCELLED ? TDM_LOG_DEBUG : TDM_LOG_WARNING, "model %s failed: %s", model->name,
                err->message);
        if (model->load)
                tdm_model_load_cancel(model->load);
        tdm_model_ref(model);
        tdm_model_notify(model);
        if (!model->load && model->use.n_steps == 0)
                tdm_model_leave(model);
        tdm_models_arm_tick(model->models);
        tdm_model_unref(model);
}

void tdm_model_unused(struct tdm_model *model)
{
        struct tdm_error err;

        if (model->state == TDM_MODEL_READING && model->load && !model->wanted && model->use.n_jobs == 0) {
                tdm_error_set(&err, TDM_E_CANCELLED, "all who asked for it have left");
                tdm_model_fail(model, &err);
        } else
                tdm_models_arm_tick(model->models);
}

/* ---- references ---- */

static void run_close(void *task)
{
        int *fd = task;

        closep(fd);
}

static void on_close_done(void *task, bool ran)
{
        int *fd = task;

        closep(fd);
        free(fd);
}

void tdm_models_close_file(struct tdm_models *m, const struct tdm_account *account, int fd)
{
        int *task = fd < 0 ? NULL : malloc(sizeof(*task));

        if (!task) {
                closep(&fd);
                return;
        }
        *task = fd;
        if (tdm_background_add_for(m->closer, account ? account->identity : 0, run_close, on_close_done, task) < 0)
                on_close_done(task, false);
}

struct tdm_model *tdm_model_ref(struct tdm_model *model)
{
        model->n_refs++;
        return model;
}

void tdm_model_unref(struct tdm_model *model)
{
        if (!model)
                return;
        if (--model->n_refs > 0) {
                if (model->n_refs == 1 && model->listed)
                        tdm_model_unused(model);
                return;
        }
        tdm_model_load_destroyp(&model->load);
        if (model->steps) { /* it left the list while it was in steps, and the fleet ended before these did */
                model->in_fleet = false;
                tdm_model_leave(model);
        }
        tdm_models_close_file(model->models, model->account, steal_fd(&model->fd));
        tdm_model_uncharge(model);
        tdm_model_metadata_free(model->metadata);
        free(model->name);
        free(model->path);
        free(model->fetched);
        tdm_model_forget_said(model);
        free(model);
}

void tdm_model_unrefp(struct tdm_model **model)
{
        tdm_model_unref(*model);
        *model = NULL;
}

void tdm_model_unlist(struct tdm_model *model)
{
        if (!model->listed)
                return;
        tdm_list_remove(&model->node);
        model->listed = false;
        model->models->n_models--;
        tdm_model_unref(model);
}

void tdm_model_step_begin(struct tdm_model *model)
{
        model->use.n_steps++;
}

void tdm_model_step_end(struct tdm_model *model)
{
        bool over = model->state == TDM_MODEL_FAILED || model->state == TDM_MODEL_GONE;

        if (--model->use.n_steps > 0)
                return;
        if (over && !model->load)
                tdm_model_leave(model);
        else if (!over && model->use.n_jobs == 0)
                tdm_models_arm_tick(model->models); /* it is idle from now on, and leaves when its time comes */
}
