/* One model: what its file says, how large it is, how far its load is. */
#include "daemon/models/private.h"

#include <time.h>

#define DEFAULT_NAME "tale"
#define MAX_PICTURES 16u /* in a step */
/* An ordinary vocabulary takes some 20 us for the longest text, the worst that is known 2 ms. */
#define ENCODE_HERE_BYTES 256u
#define ENCODE_SLOW_NS UINT64_C(300000)

static const char *const state_names[] = {
        [TDM_MODEL_READING] = "loading", [TDM_MODEL_DESCRIBED] = "available", [TDM_MODEL_WAITING] = "loading",
        [TDM_MODEL_LOADING] = "loading", [TDM_MODEL_MAPPING] = "loading",     [TDM_MODEL_READY] = "loaded",
        [TDM_MODEL_FAILED] = "failed",   [TDM_MODEL_GONE] = "available",
};

const char *tdm_model_state_name(enum tdm_model_state state)
{
        return state_names[state];
}

const char *tdm_models_default_name(const struct tdm_models *m)
{
        return m->n_files ? m->files[0].name : m->default_name ? m->default_name : DEFAULT_NAME;
}

bool tdm_model_is_default(const struct tdm_model *model)
{
        return model->by_name && strcmp(model->name, tdm_models_default_name(model->models)) == 0;
}

bool tdm_model_is_described(const struct tdm_model *model)
{
        return model->metadata && model->state != TDM_MODEL_FAILED;
}

const struct tdm_recipe *tdm_model_recipe(const struct tdm_model *model)
{
        return &model->metadata->description.recipe;
}

const struct tdm_hparams *tdm_model_hparams(const struct tdm_model *model)
{
        return &model->metadata->description.hparams;
}

/* A model whose texts have to be in one step has steps with room for the longest text. */
uint32_t tdm_model_max_rows(const struct tdm_model *model)
{
        uint32_t longest = TDM_MIN(tdm_model_hparams(model)->n_ctx, TDM_MAX_STEP_ROWS);

        return tdm_recipe_is_whole(tdm_model_recipe(model)) ? TDM_MAX(model->models->max_rows, longest) :
                                                              model->models->max_rows;
}

uint32_t tdm_model_max_pictures(const struct tdm_model *model)
{
        const struct tdm_model_projector *projector = model->metadata->projector;

        if (!projector || tdm_model_projector_why_not(projector))
                return 0;
        return TDM_MIN(tdm_model_max_rows(model) / tdm_model_projector_rows(projector), MAX_PICTURES);
}

int tdm_model_check_pictures(const struct tdm_model *model, struct tdm_error *err)
{
        const struct tdm_model_projector *projector = model->metadata->projector;
        const char *why;

        if (!projector)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "model %s takes no pictures: it has no vision tower (mmproj-%s.gguf beside its "
                                     "file)",
                                     tdm_model_told_name(model), tdm_model_told_name(model));
        why = tdm_model_projector_why_not(projector);
        return why ? tdm_error_set(err, TDM_E_UNSUPPORTED, "model %s takes no pictures: its vision tower: %s",
                                   tdm_model_told_name(model), why) :
                     0;
}

double tdm_model_share_read(const struct tdm_model *model, uint32_t n_rows)
{
        return tdm_recipe_share_read(&model->metadata->description.recipe, &model->metadata->description.hparams,
                                     n_rows);
}

bool tdm_model_encodes_here(const struct tdm_model *model, size_t size_bytes)
{
        return size_bytes <= ENCODE_HERE_BYTES && !model->slow_to_encode;
}

/* The thread's own time: a busy machine makes no vocabulary slow. */
uint64_t tdm_model_encode_begin(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

void tdm_model_encode_end(struct tdm_model *model, uint64_t begin)
{
        if (tdm_model_encode_begin() - begin > ENCODE_SLOW_NS)
                model->slow_to_encode = true;
}

void tdm_model_touch(struct tdm_model *model)
{
        model->use.last_ns = tdm_now_ns();
        if (model->use.keep_until_ns > 0) {
                uint64_t idle_ns = model->models->idle_ns;

                model->use.keep_until_ns =
                        TDM_MAX(model->use.keep_until_ns, idle_ns > 0 ? model->use.last_ns + idle_ns : UINT64_MAX);
        }
}

uint64_t tdm_model_file_bytes(const struct tdm_model *model)
{
        const struct tdm_model_parts *parts = model->metadata ? model->metadata->parts : NULL;
        uint64_t bytes = model->identity.size_bytes;

        for (uint32_t i = 0; parts && i < parts->n; i++)
                bytes += parts->files[i].identity.size_bytes;
        return bytes;
}

uint64_t tdm_model_resident_bytes(const struct tdm_model *model)
{
        const struct tdm_segment *const segments[] = { model->weights, model->kv, model->activations, model->steps,
                                                       model->results };
        uint64_t bytes = 0;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(segments); i++)
                if (segments[i])
                        bytes += tdm_segment_resident(segments[i]);
        return bytes;
}

uint64_t tdm_models_resident_bytes(struct tdm_models *m)
{
        struct tdm_model *model;
        uint64_t bytes = 0;

        tdm_list_for_each(model, &m->list, struct tdm_model, node)
                bytes += tdm_model_resident_bytes(model);
        return bytes;
}

void tdm_model_progress(const struct tdm_model *model, uint64_t *ret_done, uint64_t *ret_total)
{
        *ret_done = 0;
        *ret_total = tdm_model_file_bytes(model);
        if (model->load && model->state == TDM_MODEL_LOADING)
                tdm_model_load_progress(model->load, ret_done, ret_total);
        else if (model->state == TDM_MODEL_MAPPING || model->state == TDM_MODEL_READY)
                *ret_done = *ret_total = model->metadata->weights_bytes;
}
