/* Jobs whose result is a vector or scores: taking it, and which models make which results. */
#include "daemon/jobs/job.h"

#include <math.h>

/* Of length 1 again where numbers were left out. */
static void norm(float *v, uint32_t n)
{
        double sum = 0;

        for (uint32_t i = 0; i < n; i++)
                sum += (double)v[i] * (double)v[i];
        for (uint32_t i = 0; i < n && sum > 0; i++)
                v[i] = (float)((double)v[i] / sqrt(sum));
}

/* softmax(v), in f64 from the first to the last, rounded to f32 once */
static void make_probabilities(float *v, uint32_t n)
{
        double most = (double)v[0], sum = 0;

        for (uint32_t i = 1; i < n; i++)
                most = fmax(most, (double)v[i]);
        for (uint32_t i = 0; i < n; i++)
                sum += exp((double)v[i] - most);
        for (uint32_t i = 0; i < n; i++)
                v[i] = (float)(exp((double)v[i] - most) / sum);
}

bool tdm_job_take_vector(struct tdm_job *job, const struct tdm_recipe *recipe, struct tdm_labels *labels,
                         const float *vector, uint32_t width, uint64_t now_ns)
{
        uint32_t n = job->kind == TDM_JOB_RERANK   ? 1 :
                     job->kind == TDM_JOB_CLASSIFY ? TDM_MIN(recipe->n_labels, width) :
                     job->request.dimensions       ? TDM_MIN(job->request.dimensions, width) :
                                                     width;
        _cleanup_(freep) float *own = malloc(n * sizeof(*own));

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
        if (job->kind == TDM_JOB_EMBED && n < width)
                norm(own, n);
        if (job->kind == TDM_JOB_CLASSIFY && !job->request.raw)
                make_probabilities(own, n);
        job->probability = recipe->tells_classes ? !job->request.raw : recipe->n_labels == 2;
        if (labels)
                job->labels = tdm_labels_ref(labels);
        job->vector = steal_ptr(&own);
        job->n_vector = n;
        tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
        return true;
}

/* Why the model does not make what the job wants; NULL: it does. */
static const char *fault_of(const struct tdm_job *job, const struct tdm_recipe *recipe)
{
        bool ranks = recipe->n_labels > 0 && !recipe->tells_classes, makes_text = recipe->pooling == TDM_POOLING_NONE;

        if (ranks && job->kind != TDM_JOB_RERANK)
                return job->kind == TDM_JOB_EMBED    ? "the model ranks documents, and makes no vectors; `tandem "
                                                       "rerank` asks for it" :
                       job->kind == TDM_JOB_CLASSIFY ? "the model ranks documents, and tells no classes apart; `tandem "
                                                       "rerank` asks for it" :
                                                       "the model ranks documents, and makes no text; `tandem rerank` "
                                                       "asks for it";
        if (recipe->tells_classes && job->kind != TDM_JOB_CLASSIFY)
                return job->kind == TDM_JOB_EMBED  ? "the model tells classes of texts apart, and makes no vectors; "
                                                     "`tandem classify` asks for it" :
                       job->kind == TDM_JOB_RERANK ? "the model tells classes of texts apart, and ranks no documents; "
                                                     "`tandem classify` asks for it" :
                                                     "the model tells classes of texts apart, and makes no text; "
                                                     "`tandem classify` asks for it";
        if (!ranks && job->kind == TDM_JOB_RERANK)
                return makes_text ? "the model makes text, and ranks no documents: its file has no reranker's head; "
                                    "take a reranker" :
                                    "the model makes vectors of texts, and ranks no documents: its file has no "
                                    "reranker's head; take a reranker";
        if (!recipe->tells_classes && job->kind == TDM_JOB_CLASSIFY)
                return makes_text ? "the model makes text, and tells no classes apart: its file has no head of "
                                    "several labels; take a classification model" :
                                    "the model makes vectors of texts, and tells no classes apart: its file has no "
                                    "head of several labels; take a classification model";
        if (!tdm_job_wants_vector(job) && !makes_text)
                return "the model makes vectors of texts and no text; `tandem embed` asks for them";
        if (job->kind == TDM_JOB_EMBED && makes_text)
                return "the model makes text and no vectors: its file names no pooling; take an embedding model";
        return NULL;
}

int tdm_job_check_model(const struct tdm_job *job, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                        uint32_t max_rows, struct tdm_error *err)
{
        const char *fault = fault_of(job, recipe);

        if (fault)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s", fault);
        if (!tdm_job_wants_vector(job))
                return 0;
        if (tdm_recipe_is_whole(recipe) && job->n_ids > max_rows)
                return tdm_error_set(err, TDM_E_TOO_LONG,
                                     "%s has %u tokens; this model takes it as a whole, of at most %u",
                                     tdm_job_prompt_name(job), job->n_ids, max_rows);
        if (job->request.dimensions > hp->d_model)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "dimensions: %u were asked for, the model's vectors have %u",
                                     job->request.dimensions, hp->d_model);
        return 0;
}
