/* A step leaves flight, done or void, and a job that is finished and in no step any more leaves its lane. */
#include "daemon/schedule/private.h"

#include <assert.h>

void tdm_scheduler_retire(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct tdm_job *job = q->job;

        assert(job->finished && !q->in_flight);
        if (job->state == TDM_JOB_DONE || q->is_draft)
                return;
        tdm_companion_retire(s, q);
        s->pending_bytes -= q->charged_bytes;
        q->charged_bytes = 0;
        tdm_job_set_state(job, TDM_JOB_DONE);
        if (q->table != UINT32_MAX)
                tdm_scheduler_release(s, lane, q);
        tdm_suspects_unref(steal_ptr(&q->suspects));
        tdm_list_remove(&q->queue);
        tdm_list_append(&s->ended, &q->queue);
        switch (job->end) {
        case TDM_JOB_END_CANCELLED:
                s->stats.n_cancelled++;
                break;
        case TDM_JOB_END_ERROR:
                s->stats.n_failed++;
                break;
        default:
                s->stats.n_done++;
        }
}

void tdm_flight_drop(struct flight *f)
{
        f->n_seqs = f->n_logits = 0;
        f->used = false;
}

void tdm_scheduler_land(struct tdm_scheduler *s, struct lane *lane, struct flight *f, bool committed)
{
        if (!f->charged)
                tdm_scheduler_charge(s, lane, f, false);
        if (f->probes)
                tdm_scheduler_probe_landed(s, lane, f, committed);
        for (uint32_t i = 0; i < f->n_seqs; i++) {
                struct sequence *q = f->seqs[i].seq;

                if (--q->in_flight > 0)
                        continue;
                q->n_issued = q->n_committed;
                if (!lane->dead)
                        tdm_sequence_drop_kept(lane, q);
                if (q->job->finished)
                        tdm_scheduler_retire(s, lane, q);
        }
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++)
                if (lane->flights[i].used && lane->flights[i].after == f->step_id) {
                        lane->flights[i].after = 0;
                        lane->flights[i].doomed = lane->flights[i].doomed || !committed;
                }
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                s->load[w] -= f->workers >> w & 1;
        tdm_flight_drop(f);
        lane->n_flights--;
        s->n_in_flight--;
        tdm_model_step_end(lane->model); /* last: it may free the model's segments */
}
