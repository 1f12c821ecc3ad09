/* Pictures in steps. A step has a picture whole, since its rows see each other on both sides. So a prompt is cut
 * between pictures only, and a picture is read again whole after it was lost. */
#include "daemon/schedule/private.h"

#include <assert.h>

int tdm_scheduler_check_pictures(const struct tdm_scheduler *s, const struct tdm_job *job,
                                 const struct tdm_model *model, struct tdm_error *err)
{
        uint32_t width = tdm_model_hparams(model)->d_model, most;

        if (job->pictures.n == 0)
                return 0;
        /* Before its weights are wanted a model has no steps. */
        if (model->layout.limits.max_pictures == 0 && tdm_model_max_pictures(model) == 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "model %s takes no pictures", tdm_model_told_name(model));
        most = tdm_model_max_rows(model) - s->config.max_sequences;
        if (job->pictures.width != width)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "rows of pictures have %u numbers, model %s wants %u",
                                     job->pictures.width, tdm_model_told_name(model), width);
        for (uint32_t i = 0; i < job->pictures.n; i++)
                if (job->pictures.items[i].n_rows > most)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "picture %u has %u rows, and a step of model %s has room for %u of one; "
                                             "set max-rows to %u or more",
                                             i + 1, job->pictures.items[i].n_rows, tdm_model_told_name(model), most,
                                             job->pictures.items[i].n_rows + s->config.max_sequences);
        return 0;
}

uint32_t tdm_scheduler_picture_rows(const struct lane *lane, const struct sequence *q, uint32_t n, uint32_t room,
                                    uint32_t n_pictures)
{
        const struct tdm_steps_limits *limits = &lane->model->layout.limits;
        uint32_t most = limits->max_pictures - n_pictures, in_flight = q->n_issued - q->n_committed,
                 fit = tdm_job_pictures_fit(&q->job->pictures, q->n_issued, n, most);
        const struct tdm_job_picture *picture = tdm_job_pictures_at(&q->job->pictures, q->n_issued);

        if (fit > 0 || n == 0 || most == 0 || !picture)
                return fit;
        /* A sequence reserves pages for at most max_rows in flight. */
        room = TDM_MIN(room, limits->max_rows - TDM_MIN(limits->max_rows, in_flight));
        return picture->n_rows <= room ? picture->n_rows : 0;
}

uint32_t tdm_scheduler_add_pictures(struct lane *lane, uint32_t slot, const struct tdm_job *job, uint32_t first,
                                    uint32_t n, uint32_t first_row, uint32_t n_pictures)
{
        const struct tdm_model *model = lane->model;
        const size_t width = tdm_model_hparams(model)->residual_width;
        struct tdm_step_row *rows = tdm_steps_rows(model->steps->base, &model->layout, slot);
        float *hidden = (float *)model->activations->base + (size_t)slot * model->layout.limits.max_rows * width;

        for (uint32_t i = 0; i < job->pictures.n; i++) {
                const struct tdm_job_picture *picture = &job->pictures.items[i];
                uint32_t row = first_row + picture->first - first;

                if (picture->first < first || picture->first - first >= n)
                        continue;
                assert(picture->n_rows <= n - (picture->first - first));
                memcpy(hidden + row * width, picture->rows, picture->n_rows * width * sizeof(*hidden));
                tdm_steps_pictures(model->steps->base, &model->layout, slot)[n_pictures++] =
                        (struct tdm_step_picture){ row, picture->n_rows };
                for (uint32_t k = 0; k < picture->n_rows; k++) {
                        rows[row + k].token = 0;
                        rows[row + k].picture = n_pictures;
                }
        }
        return n_pictures;
}
