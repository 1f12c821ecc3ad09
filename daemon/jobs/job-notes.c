/* What the scheduler and the faces write into a job: where it stands, who listens, and what is counted of it. */
#include "daemon/jobs/job.h"

void tdm_job_listen(struct tdm_job *job, const struct tdm_job_events *events, void *userdata)
{
        job->events = events;
        job->userdata = events ? userdata : NULL;
}

void tdm_job_pause(struct tdm_job *job, bool paused)
{
        job->paused = paused;
}

void tdm_job_enter(struct tdm_job *job, uint64_t id, struct tdm_model *model)
{
        job->id = id;
        job->model = model;
}

void tdm_job_accept(struct tdm_job *job, uint64_t now_ns)
{
        job->accepted = true;
        job->stats.accepted_ns = now_ns;
}

void tdm_job_set_state(struct tdm_job *job, enum tdm_job_state state)
{
        job->state = state;
}

void tdm_job_cut_limit(struct tdm_job *job, uint64_t max_tokens)
{
        job->max_tokens = (uint32_t)TDM_MIN((uint64_t)job->max_tokens, max_tokens);
}

void tdm_job_cut_back(struct tdm_job *job, uint32_t n_ids)
{
        job->n_ids = TDM_MIN(job->n_ids, n_ids);
}

void tdm_job_begin_encoding(struct tdm_job *job)
{
        job->prompt.encoding = true;
}

void tdm_job_end_encoding(struct tdm_job *job, const struct tdm_job_encoded *result)
{
        job->prompt.encoding = false;
        if (!result)
                return;
        job->prompt.encoded = true;
        job->prompt.from_text = *result;
}

void tdm_job_begin_mask(struct tdm_job *job)
{
        job->text.masking = true;
}

void tdm_job_end_mask(struct tdm_job *job, bool slow)
{
        job->text.masking = false;
        job->text.slow_masks = slow;
}

/* ---- progress ---- */

void tdm_job_note_position(struct tdm_job *job, uint32_t queue_position)
{
        job->progress.queue_position = queue_position;
}

void tdm_job_note_progress(struct tdm_job *job, uint64_t done, uint64_t total)
{
        job->progress.done = done;
        job->progress.total = total;
}

void tdm_job_note_prefilled(struct tdm_job *job, uint32_t n_tokens)
{
        job->progress.prefilled_tokens = TDM_MIN(n_tokens, job->prompt_tokens);
}

bool tdm_job_tell_accepted(struct tdm_job *job)
{
        bool first = !job->progress.told_accepted;

        job->progress.told_accepted = true;
        return first;
}

/* ---- statistics ---- */

void tdm_job_note_issued(struct tdm_job *job, uint64_t now_ns)
{
        if (job->stats.prefill_ns == 0)
                job->stats.prefill_ns = now_ns;
}

void tdm_job_note_scores(struct tdm_job *job, uint64_t now_ns)
{
        job->stats.last_token_ns = now_ns;
}

void tdm_job_note_cached(struct tdm_job *job, uint32_t n_tokens)
{
        job->stats.cached_tokens = TDM_MIN(n_tokens, job->prompt_tokens);
}

void tdm_job_note_committed(struct tdm_job *job, bool degraded, uint32_t n_reread)
{
        job->stats.degraded = job->stats.degraded || degraded;
        job->stats.reread_tokens += n_reread;
}

void tdm_job_note_compared(struct tdm_job *job)
{
        job->drawn.is_compared = true;
}

void tdm_job_note_numerics(struct tdm_job *job, const char *numerics_id)
{
        if (strcmp(job->stats.numerics_id, numerics_id) != 0)
                snprintf(job->stats.numerics_id, sizeof(job->stats.numerics_id), "%s", numerics_id);
}

void tdm_job_note_guesses(struct tdm_job *job, uint32_t n, enum tdm_unguessed why)
{
        job->stats.n_guesses = n;
        job->stats.unguessed = why;
}

void tdm_job_count_guess(struct tdm_job *job, uint32_t place, bool right)
{
        job->stats.drafted_at[place]++;
        job->stats.accepted_at[place] += right;
        job->stats.n_accepted += right;
}

void tdm_job_count_guesses(struct tdm_job *job, uint32_t n)
{
        job->stats.n_drafted += n;
}

void tdm_job_count_eviction(struct tdm_job *job)
{
        job->stats.evictions++;
}

void tdm_job_count_recovery(struct tdm_job *job)
{
        job->stats.recoveries++;
}

/* ---- jobs of an earlier process ---- */

void tdm_job_read_end(const struct tdm_job *job, struct tdm_job_ended *ret)
{
        memset(ret, 0, sizeof(*ret)); /* padding too */
        ret->end = job->end;
        ret->incomplete = job->text.incomplete;
        ret->prompt_tokens = job->prompt_tokens;
        ret->max_tokens = job->max_tokens;
        ret->generated = job->generated;
        ret->thinking_tokens = tdm_job_thinking_tokens(job);
        if (job->end == TDM_JOB_END_ERROR) {
                ret->error.code = job->error.code;
                snprintf(ret->error.message, sizeof(ret->error.message), "%s", job->error.message);
        }
        ret->progress = job->progress;
        ret->stats = job->stats;
}

/* Read as the byte that it is: no program may read a bool of another value. */
static bool is_bool(const bool *b)
{
        uint8_t byte;

        memcpy(&byte, b, sizeof(byte));
        return byte <= 1;
}

int tdm_job_restore_end(struct tdm_job *job, const struct tdm_job_ended *ended)
{
        if (!is_bool(&ended->incomplete) || !is_bool(&ended->progress.told_accepted) ||
            !is_bool(&ended->stats.degraded) || (unsigned)ended->end > TDM_JOB_END_ERROR ||
            (unsigned)ended->stats.unguessed >= TDM_N_UNGUESSED ||
            !memchr(ended->error.message, '\0', sizeof(ended->error.message)) ||
            !memchr(ended->stats.numerics_id, '\0', sizeof(ended->stats.numerics_id)))
                return -EINVAL;
        job->finished = true;
        job->state = TDM_JOB_DONE;
        job->end = ended->end;
        job->error = ended->error;
        job->text.incomplete = ended->incomplete;
        job->prompt_tokens = ended->prompt_tokens;
        job->max_tokens = ended->max_tokens;
        job->generated = ended->generated;
        job->earlier_thinking_tokens = ended->thinking_tokens;
        job->progress = ended->progress;
        job->stats = ended->stats;
        return 0;
}
