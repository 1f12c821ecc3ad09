/* Long prompts, and grammars, become what the scheduler needs of them on a thread. The job waits meanwhile. */
#include "daemon/schedule/private.h"

/* A long prompt in the tokenizer's thread; the job may end meanwhile. */
struct encoding {
        struct tdm_scheduler *s;
        struct tdm_job *job;     /* referenced */
        struct tdm_model *model; /* referenced: its tokenizer is in use */
        struct tdm_job_encoded result;
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

static void on_encoded(void *task, bool ran)
{
        struct encoding *e = task;

        tdm_job_end_encoding(e->job, ran ? &e->result : NULL);
        if (ran) {
                if (tdm_job_has_grammar(e->job))
                        tdm_model_made_vocabulary(e->model);
                tdm_source_schedule(e->s->work);
        }
        tdm_job_unref(e->job);
        tdm_model_unref(e->model);
        free(e);
}

bool tdm_scheduler_start_encoding(struct tdm_scheduler *s, struct tdm_job *job)
{
        struct encoding *e = calloc(1, sizeof(*e));

        if (!e)
                return false;
        *e = (struct encoding){ .s = s, .job = tdm_job_ref(job), .model = tdm_model_ref(job->model) };
        if (tdm_background_add_for(s->background, job->login, run_encoding, on_encoded, e) < 0) {
                tdm_job_unref(e->job);
                tdm_model_unref(e->model);
                free(e);
                return false;
        }
        tdm_job_begin_encoding(job);
        return true;
}
