/* Jobs whose result is a vector or a score: taking it, and which models make which results. */
#include "daemon/jobs/job.h"

#include <math.h>

bool tdm_job_take_vector(struct tdm_job *job, const float *vector, uint32_t width, uint64_t now_ns)
{
        bool is_score = job->kind == TDM_JOB_RERANK;
        uint32_t n = is_score ? 1 : job->request.dimensions ? TDM_MIN(job->request.dimensions, width) : width;
        _cleanup_(freep) float *own = malloc(n * sizeof(*own));
        double sum = 0;

        for (uint32_t i = 0; i < width; i++)
                if (!isfinite(vector[i]))
                        return false;
        job->stats.first_token_ns = job->stats.last_token_ns = now_ns;
        if (!own) {
                struct tdm_error err;

                tdm_error_set(&err, TDM_E_NO_MEMORY, "out of memory for the job's vector");
                tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
                return true;
        }
        memcpy(own, vector, n * sizeof(*own));
        for (uint32_t i = 0; i < n && n < width && !is_score; i++)
                sum += (double)own[i] * (double)own[i];
        for (uint32_t i = 0; i < n && sum > 0; i++)
                own[i] = (float)((double)own[i] / sqrt(sum));
        job->vector = steal_ptr(&own);
        job->n_vector = n;
        tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
        return true;
}

/* Whether the model makes what the job wants. */
static int check_result(const struct tdm_job *job, const struct tdm_recipe *recipe, struct tdm_error *err)
{
        if (recipe->n_labels > 0 && job->kind != TDM_JOB_RERANK)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model ranks documents, and makes no %s; `tandem rerank` asks for it",
                                     job->kind == TDM_JOB_EMBED ? "vectors" : "text");
        if (recipe->n_labels == 0 && job->kind == TDM_JOB_RERANK)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model makes %s, and ranks no documents: its file has no reranker's head; "
                                     "take a reranker",
                                     recipe->pooling == TDM_POOLING_NONE ? "text" : "vectors of texts");
        if (!tdm_job_wants_vector(job) && recipe->pooling != TDM_POOLING_NONE)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model makes vectors of texts and no text; `tandem embed` asks for them");
        if (job->kind == TDM_JOB_EMBED && recipe->pooling == TDM_POOLING_NONE)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model makes text and no vectors: its file names no pooling; take an "
                                     "embedding model");
        return 0;
}

int tdm_job_check_model(const struct tdm_job *job, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                        uint32_t max_rows, struct tdm_error *err)
{
        int r = check_result(job, recipe, err);

        if (r != 0 || !tdm_job_wants_vector(job))
                return r;
        if (tdm_recipe_is_whole(recipe) && job->n_ids > max_rows)
                return tdm_error_set(
                        err, TDM_E_TOO_LONG, "%s has %u tokens; this model takes it as a whole, of at most %u",
                        job->kind == TDM_JOB_RERANK ? tdm_job_prompt_name(job) : "the text", job->n_ids, max_rows);
        if (job->request.dimensions > hp->d_model)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "dimensions: %u were asked for, the model's vectors have %u",
                                     job->request.dimensions, hp->d_model);
        return 0;
}
