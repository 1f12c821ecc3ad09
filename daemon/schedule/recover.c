/* What the loss of a worker means for the jobs: they lose time, and nothing else.
 *
 * Rows in flight go back to their sequences. None of them were committed, so the same rows are issued again when the
 * fleet is ready. The sequences of a step that killed its worker become suspects. They run again, but share steps only
 * with each other, so the other sequences go on. When their step kills again, they are split into halves, and so on,
 * until each part is one sequence. A sequence that kills its worker twice while it runs alone is the culprit: its
 * job ends with an error. A step that only fails, while its worker lives (worker_lives), says clearly whose fault it
 * is: its sequences are split at once, and the job of one that was alone in it ends the first time. A finished step
 * acquits every sequence in it. */
#include "daemon/schedule/private.h"

#include "common/log.h"

/* One death may have another cause than the job. Each further one costs all jobs a pause. */
#define MAX_DEATHS_ALONE 2u

static void suspect(struct sequence *q, struct suspects *g)
{
        g->n_refs++;
        tdm_suspects_unref(q->suspects);
        q->suspects = g;
}

/* The new group waits behind every class that has waited longer, so innocent sequences get a step in between. */
static struct suspects *group_new(struct tdm_scheduler *s)
{
        struct suspects *g = calloc(1, sizeof(*g));

        if (g) {
                g->n_refs = 1;
                g->stamp = ++s->stamp;
        }
        return g;
}

static void end_culprit(struct sequence *q, const char *reason, unsigned n)
{
        struct tdm_error err;

        if (n > 1)
                tdm_error_set(&err, TDM_E_DEVICE_FAULT, "the job brought its worker down %u times, alone (%s)", n,
                              reason);
        else
                tdm_error_set(&err, TDM_E_DEVICE_FAULT, "the device cannot run this job: %s", reason);
        tdm_log_warning("job %llu ends: %s", (unsigned long long)q->job->id, err.message);
        tdm_job_finish(q->job, TDM_JOB_END_ERROR, &err);
}

static void blame_one(struct tdm_scheduler *s, struct sequence *q, bool worker_lives, const char *reason)
{
        struct suspects *g = q->suspects;

        if (worker_lives) {
                end_culprit(q, reason, 1);
                return;
        }
        if (!g || g->n_refs > 1) { /* no group yet, or one that it shares with sequences outside this step */
                g = group_new(s);
                if (!g)
                        return;
                suspect(q, g);
                tdm_suspects_unref(g);
        }
        g->stamp = ++s->stamp;
        if (++g->n_alone >= MAX_DEATHS_ALONE)
                end_culprit(q, reason, g->n_alone);
}

static void put_into_group(struct tdm_scheduler *s, struct flight *f, uint32_t from, uint32_t to)
{
        struct suspects *g = group_new(s);

        if (!g)
                return; /* their groups stay, and they are tried again */
        for (uint32_t i = from; i < to; i++)
                suspect(f->seqs[i].seq, g);
        tdm_suspects_unref(g);
}

void tdm_scheduler_blame(struct tdm_scheduler *s, struct flight *f, bool worker_lives, const char *reason)
{
        struct lane *lane = tdm_scheduler_lane(s, f->seqs[0].seq->job->model->id);
        bool again = false;

        if (f->seqs[0].seq->is_draft) {
                tdm_companion_blame(lane, f);
                return;
        }
        for (uint32_t i = 0; i < f->n_seqs; i++)
                again = again || f->seqs[i].seq->suspects;
        if (f->n_seqs == 1)
                blame_one(s, f->seqs[0].seq, worker_lives, reason);
        else if (again || worker_lives) {
                put_into_group(s, f, 0, f->n_seqs / 2);
                put_into_group(s, f, f->n_seqs / 2, f->n_seqs);
        } else
                put_into_group(s, f, 0, f->n_seqs);
}

void tdm_scheduler_on_step_failed(uint32_t model_id, uint32_t slot, uint64_t step_id, const struct tdm_error *err,
                                  void *scheduler)
{
        struct tdm_scheduler *s = scheduler;
        struct lane *lane = tdm_scheduler_lane(s, model_id);
        struct flight *f = lane && slot < TDM_STEP_SLOTS ? &lane->flights[slot] : NULL;

        if (!f || !f->used || f->step_id != step_id)
                return;
        if (f->probes) {
                tdm_log_warning("model %s: a probe of %s failed: %s", lane->model->name,
                                tdm_placement_text(f->placement), err->message);
                tdm_scheduler_probe_lost(s, lane);
                tdm_scheduler_land(s, lane, f, false);
                tdm_scheduler_run(s);
                return;
        }
        tdm_log_warning("step %llu of model %s with %u jobs failed: %s", (unsigned long long)step_id, lane->model->name,
                        f->n_seqs, err->message);
        tdm_scheduler_blame(s, f, true, err->message);
        tdm_scheduler_land(s, lane, f, false);
        tdm_scheduler_run(s);
        tdm_scheduler_finish_done(s, model_id);
}

void tdm_scheduler_on_reset(const char *reason, uint32_t guilty_model, uint32_t guilty_slot, uint64_t guilty_step,
                            void *scheduler)
{
        struct tdm_scheduler *s = scheduler;
        struct sequence *q;
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        q->draft.waits = false;
                        /* All admitted jobs, in flight or not, count it: none gets rows until the fleet is ready
                         * again. */
                        tdm_job_count_recovery(q->job);
                        if (!q->job->finished)
                                tdm_job_set_state(q->job, TDM_JOB_RECOVERING);
                }
                for (uint32_t slot = 0; slot < TDM_STEP_SLOTS; slot++) {
                        struct flight *f = &lane->flights[slot];

                        if (!f->used)
                                continue;
                        if (lane->model->id == guilty_model && slot == guilty_slot && f->step_id == guilty_step) {
                                if (f->probes)
                                        tdm_scheduler_probe_lost(s, lane);
                                else
                                        tdm_scheduler_blame(s, f, false, reason);
                        }
                        tdm_scheduler_land(s, lane, f, false);
                }
        }
        tdm_scheduler_run(s);
}
