/* Jobs whose result is a vector or scores: of a text, of a query with a document, of classes. */
#include "client-lib/job.h"

void tandem_embed_options_init_sized(struct tandem_embed_options *options, size_t size)
{
        struct tandem_embed_options full = { .struct_size = size, .text_size = SIZE_MAX };

        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

void tandem_rerank_options_init_sized(struct tandem_rerank_options *options, size_t size)
{
        struct tandem_rerank_options full = { .struct_size = size, .query_size = SIZE_MAX, .document_size = SIZE_MAX };

        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

void tandem_classify_options_init_sized(struct tandem_classify_options *options, size_t size)
{
        struct tandem_classify_options full = { .struct_size = size, .text_size = SIZE_MAX, .second_size = SIZE_MAX };

        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

void vector_forget(struct tandem_job *job)
{
        for (size_t i = 0; job->labels && i < job->n_vector; i++)
                free(job->labels[i]);
        free(steal_ptr(&job->labels));
        free(steal_ptr(&job->vector));
        job->n_vector = 0;
}

const char *vector_take(struct tandem_job *job, const Tandem__Vector *wire)
{
        if (!job->embedding || job->vector || wire->n_numbers == 0)
                return "a vector came that does not belong here";
        if (wire->n_labels != (job->classifying ? wire->n_numbers : 0))
                return "a vector came with another number of labels";
        job->vector = malloc(wire->n_numbers * sizeof(*job->vector));
        if (!job->vector)
                return "there is no memory for a vector";
        memcpy(job->vector, wire->numbers, wire->n_numbers * sizeof(*job->vector));
        job->n_vector = wire->n_numbers;
        job->result.probability = wire->probability;
        if (!job->classifying)
                return NULL;
        job->labels = calloc(job->n_vector, sizeof(*job->labels));
        for (size_t i = 0; job->labels && i < job->n_vector; i++) {
                job->labels[i] = strdup(wire->labels[i]);
                if (!job->labels[i])
                        return "there is no memory for labels";
        }
        return job->labels ? NULL : "there is no memory for labels";
}

/* The model that is asked for: each kind of request has it in its own place. */
static void put_model(Tandem__Request *request, Tandem__ModelRef *ref)
{
        if (request->kind_case == TANDEM__REQUEST__KIND_EMBED)
                request->embed->model = ref;
        else if (request->kind_case == TANDEM__REQUEST__KIND_RERANK)
                request->rerank->model = ref;
        else
                request->classify->model = ref;
}

static int start(struct tandem *t, Tandem__Request *request, const char *model,
                 const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                 struct tandem_error *err)
{
        _cleanup_(job_unrefp) struct tandem_job *job = NULL;
        _cleanup_(closep) int fd = -1;
        Tandem__ModelRef ref;
        int code = job_open(t, callbacks, userdata, model, &job, &ref, &fd, err);

        if (code != TANDEM_OK)
                return code;
        job->embedding = true;
        job->classifying = request->kind_case == TANDEM__REQUEST__KIND_CLASSIFY;
        put_model(request, &ref);
        return job_send(t, &job, request, fd, ret, err);
}

int tandem_embed(struct tandem *t, const struct tandem_embed_options *given, const struct tandem_callbacks *callbacks,
                 void *userdata, struct tandem_job **ret, struct tandem_error *err)
{
        struct tandem_embed_options o;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Embed embed = TANDEM__EMBED__INIT;

        tandem_embed_options_init(&o);
        memcpy(&o, given, TDM_MIN(given->struct_size, sizeof(o)));
        if (!o.text)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "there is no text to embed");
        embed.text = lib_bytes(o.text, o.text_size);
        embed.dimensions = o.dimensions;
        embed.priority = (Tandem__Priority)o.priority;
        embed.deadline_ms = o.deadline_ms;
        request.kind_case = TANDEM__REQUEST__KIND_EMBED;
        request.embed = &embed;
        return start(t, &request, o.model, callbacks, userdata, ret, err);
}

int tandem_rerank(struct tandem *t, const struct tandem_rerank_options *given, const struct tandem_callbacks *callbacks,
                  void *userdata, struct tandem_job **ret, struct tandem_error *err)
{
        struct tandem_rerank_options o;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Rerank rerank = TANDEM__RERANK__INIT;

        tandem_rerank_options_init(&o);
        memcpy(&o, given, TDM_MIN(given->struct_size, sizeof(o)));
        if (!o.query || !o.document)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "there is no %s", o.query ? "document" : "query");
        rerank.query = lib_bytes(o.query, o.query_size);
        rerank.document = lib_bytes(o.document, o.document_size);
        rerank.priority = (Tandem__Priority)o.priority;
        rerank.deadline_ms = o.deadline_ms;
        request.kind_case = TANDEM__REQUEST__KIND_RERANK;
        request.rerank = &rerank;
        return start(t, &request, o.model, callbacks, userdata, ret, err);
}

int tandem_classify(struct tandem *t, const struct tandem_classify_options *given,
                    const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                    struct tandem_error *err)
{
        struct tandem_classify_options o;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Classify classify = TANDEM__CLASSIFY__INIT;

        tandem_classify_options_init(&o);
        memcpy(&o, given, TDM_MIN(given->struct_size, sizeof(o)));
        if (!o.text)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "there is no text to classify");
        classify.text = lib_bytes(o.text, o.text_size);
        classify.pair = o.second != NULL;
        if (o.second)
                classify.second = lib_bytes(o.second, o.second_size);
        classify.raw = o.raw;
        classify.priority = (Tandem__Priority)o.priority;
        classify.deadline_ms = o.deadline_ms;
        request.kind_case = TANDEM__REQUEST__KIND_CLASSIFY;
        request.classify = &classify;
        return start(t, &request, o.model, callbacks, userdata, ret, err);
}

static bool has_vector(const struct tandem_job *job)
{
        return job->done && job->result.reason <= TANDEM_REASON_LENGTH && job->vector;
}

const float *tandem_job_vector(const struct tandem_job *job, size_t *ret_n)
{
        if (!has_vector(job))
                return NULL;
        if (ret_n)
                *ret_n = job->n_vector;
        return job->vector;
}

const char *const *tandem_job_labels(const struct tandem_job *job, size_t *ret_n)
{
        if (!has_vector(job) || !job->labels)
                return NULL;
        if (ret_n)
                *ret_n = job->n_vector;
        return (const char *const *)job->labels;
}
