/* Long prompts, pictures and grammars become what the scheduler needs of them on threads. The job waits meanwhile. */
#include "daemon/schedule/private.h"

/* A long prompt in the tokenizer's thread; the job may end meanwhile. */
struct encoding {
        struct tdm_scheduler *s;
        struct tdm_job *job;     /* referenced */
        struct tdm_model *model; /* referenced: its tokenizer is in use */
        struct tdm_job_encoded result;
        float *rows; /* of its pictures so far, owned; NULL: it has none yet */
        size_t n_read;
        uint8_t hashes[TDM_MAX_JOB_PICTURES][TDM_PICTURE_HASH_BYTES];
};

static void run_encoding(void *task)
{
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *vocabulary = NULL;
        struct encoding *e = task;

        if (e->job->prompt.is_text || e->job->prompt.is_chat)
                tdm_job_encode(e->job, e->model->metadata->tokenizer, e->model->metadata->chat,
                               tdm_model_hparams(e->model), &e->result);
        if (e->result.r != 0 || !tdm_job_has_grammar(e->job))
                return;
        e->result.r = tdm_model_make_vocabulary(e->model, &vocabulary);
        if (e->result.r == -E2BIG)
                e->result.r = tdm_error_set(&e->result.error, TDM_E_UNSUPPORTED,
                                            "the pieces of this model's vocabulary are too long for grammars and "
                                            "schemas");
        else if (e->result.r < 0)
                tdm_error_set(&e->result.error, e->result.r, "cannot hold the model's vocabulary as a trie: %s",
                              strerror(-e->result.r));
        else
                e->result.r = tdm_constraint_compile(e->job->text.constraint, e->model->metadata->chat,
                                                     e->model->metadata->tokenizer, vocabulary, &e->result.error);
}

/* The next picture's file becomes rows, in processes of their own. One at a time, so that a job of many pictures does
 * not keep a thread while others wait. */
static void run_picture(void *task)
{
        struct encoding *e = task;
        const struct tdm_picture_files *files = &e->job->prompt.pictures;
        struct tdm_model_projector *projector = e->model->metadata->projector;
        const uint32_t n_rows = tdm_model_projector_rows(projector), width = tdm_model_projector_width(projector);
        const size_t i = e->n_read, each = (size_t)n_rows * width;
        struct tdm_error why = { 0 };
        int r = 0;

        if (!e->rows)
                e->rows = malloc(files->n * each * sizeof(*e->rows));
        if (!e->rows)
                r = tdm_error_set(&why, -ENOMEM, "out of memory for the rows of pictures");
        else if (atomic_load_explicit(&e->job->prompt.cancel_encoding, memory_order_relaxed))
                r = tdm_error_set(&why, TDM_E_CANCELLED, "the job has ended");
        else
                r = tdm_model_projector_read(projector, e->job->identity, files->items[i].file.data,
                                             files->items[i].file.size, &e->job->prompt.cancel_encoding,
                                             e->rows + i * each, e->hashes[i], &why);
        if (r != 0 && r != TDM_E_CANCELLED)
                tdm_error_prefix(&why, "picture %zu", i + 1);
        if (r == 0 && ++e->n_read == files->n)
                r = tdm_job_place_pictures(e->job, &e->result, e->hashes, n_rows, width, steal_ptr(&e->rows), &why);
        e->result.r = r;
        e->result.error = why;
}

static void end_encoding(struct encoding *e, bool ran)
{
        tdm_job_end_encoding(e->job, ran ? &e->result : NULL);
        if (!ran)
                tdm_job_encoded_deinit(&e->result);
        if (ran) {
                if (tdm_job_has_grammar(e->job))
                        tdm_model_made_vocabulary(e->model);
                tdm_source_schedule(e->s->work);
        }
        tdm_job_unref(e->job);
        tdm_model_unref(e->model);
        free(e->rows);
        free(e);
}

static void on_picture(void *task, bool ran);

static int add_picture(struct encoding *e)
{
        int r = tdm_background_add_for(e->s->threads[THREADS_PICTURES], e->job->login, run_picture, on_picture, e);

        return r < 0 ? tdm_error_set(&e->result.error, TDM_E_BUSY,
                                     "too many pictures wait to be read; try again later") :
                       0;
}

static void on_picture(void *task, bool ran)
{
        struct encoding *e = task;

        if (ran && e->result.r == 0 && e->n_read < e->job->prompt.pictures.n) {
                e->result.r = add_picture(e);
                if (e->result.r == 0)
                        return;
        }
        end_encoding(e, ran);
}

/* What refuses the job does so before a picture is read: the length of the prompt, the model's place, which the tower
 * lives and leaves with, and the memory for the rows, which is charged. True: a thread makes them. */
static bool start_pictures(struct encoding *e)
{
        struct tdm_job_encoded *result = &e->result;
        const struct tdm_model_projector *projector = e->model->metadata->projector;
        const size_t n = e->job->prompt.pictures.n;
        uint32_t n_rows;

        if (n == 0 || result->r != 0 || e->job->finished)
                return false;
        n_rows = tdm_model_projector_rows(projector);
        result->r = tdm_model_check_pictures(e->model, &result->error);
        if (result->r == 0)
                result->r = tdm_job_check_length(e->job, result, n_rows, tdm_model_hparams(e->model), &result->error);
        if (result->r == 0)
                result->r = tdm_model_want(e->model, e->job->account, &result->error);
        if (result->r == 0)
                result->r = tdm_job_pictures_reserve(
                        &e->job->pictures, (uint64_t)n * n_rows * tdm_model_projector_width(projector) * sizeof(float),
                        e->job->account, &result->error);
        if (result->r == 0)
                result->r = add_picture(e);
        return result->r == 0;
}

static void on_encoded(void *task, bool ran)
{
        struct encoding *e = task;

        if (!ran || !start_pictures(e))
                end_encoding(e, ran);
}

bool tdm_scheduler_start_encoding(struct tdm_scheduler *s, struct tdm_job *job)
{
        struct encoding *e = calloc(1, sizeof(*e));

        if (!e)
                return false;
        *e = (struct encoding){ .s = s, .job = tdm_job_ref(job), .model = tdm_model_ref(job->model) };
        if (tdm_background_add_for(s->threads[THREADS_TEXTS], job->login, run_encoding, on_encoded, e) < 0) {
                tdm_job_unref(e->job);
                tdm_model_unref(e->model);
                free(e);
                return false;
        }
        tdm_job_begin_encoding(job);
        return true;
}
