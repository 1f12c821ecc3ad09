/* Runs the trial of a model's placements (daemon/placement/measure.c) on two devices that differ in bits.
 *
 * The trial runs when the model is loaded, before on_model_ready. Its result holds for the model and the pair of
 * devices, over restarts of a worker or of tandemd, and when the model is loaded again, until the scheduler's probes
 * find another one (daemon/schedule/probe.c). Devices of equal bits need no trial: there the scheduler follows the
 * load.
 *
 * The steps are posted like any other, in slot 0 with ids of their own, and use the first page of the cache, which no
 * job has yet. After a device was lost in three of them, or could not run them, the placement is split. */
#include "daemon/fleet/private.h"

static void identity(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry, char *text, size_t size)
{
        snprintf(text, size, "%s %llu %u %s %s", entry->name, (unsigned long long)entry->model.weights->size_bytes,
                 (unsigned)entry->model.precision, f->workers[TDM_WORKER_NPU].about.numerics_id,
                 f->workers[TDM_WORKER_GPU].about.numerics_id);
}

static void remember(struct tdm_fleet *f, struct tdm_fleet_entry *entry, enum tdm_placement placement)
{
        char text[TDM_PLACEMENT_IDENTITY];

        entry->measured = placement;
        /* A worker that runs no attention of the model does not get the KV segment again when it comes back. */
        entry->on[TDM_WORKER_NPU].wants_kv = tdm_placement_uses(placement, TDM_WORKER_NPU);
        entry->on[TDM_WORKER_GPU].wants_kv = placement != TDM_PLACEMENT_SPLIT && placement != TDM_PLACEMENT_NPU;
        identity(f, entry, text, sizeof(text));
        tdm_placement_store_add(f->store, text, placement);
}

/* known: the trial has come to its end. */
static void trial_settle(struct tdm_fleet *f, struct tdm_fleet_entry *entry, bool known)
{
        struct tdm_fleet_trial *t = &entry->trial;
        char text[TDM_PLACEMENT_IDENTITY];

        t->done = true;
        t->step_id = 0;
        remember(f, entry, known ? tdm_placement_trial_result(&t->trial) : TDM_PLACEMENT_SPLIT);
        if (!known) {
                tdm_log_warning("model %s: its plans could not be tried out: %s; taking %s", entry->name,
                                t->why.code ? t->why.message : "a device was lost",
                                tdm_placement_text(entry->measured));
                return;
        }
        tdm_placement_store_save(f->store);
        tdm_placement_trial_describe(&t->trial, text, sizeof(text));
        tdm_log_info("model %s: %s is the cheapest plan (%s)", entry->name, tdm_placement_text(entry->measured), text);
}

void tdm_fleet_set_found(struct tdm_fleet *f, uint32_t model_id, enum tdm_placement placement, const char *why)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        if (!entry || entry->leaving || !entry->trial.done || entry->measured == placement)
                return;
        remember(f, entry, placement);
        tdm_placement_store_save(f->store);
        tdm_log_info("model %s: %s is the cheapest plan now, for new jobs (%s)", entry->name,
                     tdm_placement_text(placement), why);
}

static int write_step(struct tdm_fleet *f, struct tdm_fleet_entry *entry, enum tdm_placement placement, uint32_t n_rows,
                      struct tdm_step_head *head)
{
        const struct tdm_steps_layout *l = &entry->model.layout;
        uint8_t *base = entry->model.steps->base;
        struct tdm_step_row *rows = tdm_steps_rows(base, l, 0);
        struct tdm_placement_workers workers;

        memset(head, 0, sizeof(*head));
        head->step_id = TDM_FLEET_OWN_STEPS + ++f->n_own_steps;
        head->epoch = f->epoch;
        head->n_rows = n_rows;
        head->n_seqs = 1;
        head->n_logits = 1;
        for (uint32_t i = 0; i < n_rows; i++)
                rows[i] = (struct tdm_step_row){ .token = i % entry->model.hparams.n_vocab,
                                                 .position = i,
                                                 .logits = i + 1 == n_rows ? 0 : UINT32_MAX };
        tdm_steps_seqs(base, l, 0)[0] = (struct tdm_step_seq){ .n_rows = n_rows, .state = TDM_STEP_NO_STATE };
        tdm_steps_seqs(base, l, 0)[0].state.to = 0;
        tdm_steps_logits(base, l, 0)[0] = (struct tdm_step_logits){
                .row = n_rows - 1,
                .target = UINT32_MAX,
                .sampling = { .top_p = 1, .repeat_penalty = 1 },
        };
        for (unsigned g = 0; g < TDM_KV_GROUPS; g++)
                tdm_steps_table(base, l, 0, (enum tdm_kv_group)g)[0] = 0;
        tdm_fleet_placement_workers(f, entry->model.model_id, &workers);
        return tdm_placement_plan(&workers, &entry->model.hparams, placement, head->plan, NULL);
}

static void post_next(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_trial *t = &entry->trial;
        enum tdm_placement placement;
        struct tdm_step_head head;
        uint32_t n_rows;
        int r;

        placement = tdm_placement_trial_next(&t->trial, entry->model.layout.limits.max_rows, &n_rows);
        t->posted_ns = tdm_now_ns(); /* before posting: the step may be done before this thread runs again */
        r = write_step(f, entry, placement, n_rows, &head);
        if (r == 0)
                r = tdm_fleet_submit(f, entry->model.model_id, 0, &head);
        if (r == -EAGAIN)
                return; /* on the next pump */
        if (r < 0) {
                tdm_log_warning("model %s: cannot try out its plans: %s", entry->name, strerror(-r));
                trial_settle(f, entry, false);
                return;
        }
        t->step_id = entry->steps[0].step_id;
        t->why.code = 0;
}

bool tdm_fleet_try_placements(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_trial *t = &entry->trial;
        char text[TDM_PLACEMENT_IDENTITY];
        enum tdm_placement found;

        if (t->done || tdm_fleet_equal_bits(f, entry) || tdm_fleet_link_is_cut(f) ||
            !tdm_fleet_usable(&f->workers[TDM_WORKER_NPU]) || !tdm_fleet_usable(&f->workers[TDM_WORKER_GPU]))
                return true;
        identity(f, entry, text, sizeof(text));
        found = tdm_placement_store_find(f->store, text);
        if (found != TDM_PLACEMENT_ANY) {
                entry->measured = found;
                t->done = true;
                return true;
        }
        if (t->step_id != 0 && entry->steps[0].step_id == t->step_id)
                return false;  /* the step is in flight */
        if (t->step_id != 0) { /* the step is void: a worker was lost, or could not run it */
                t->step_id = 0;
                if (!tdm_placement_trial_lost(&t->trial))
                        trial_settle(f, entry, false);
        }
        if (!t->done && tdm_fleet_worker_is_up(f, TDM_WORKER_NPU) && tdm_fleet_worker_is_up(f, TDM_WORKER_GPU))
                post_next(f, entry);
        return t->done;
}

void tdm_fleet_trial_step_failed(struct tdm_fleet *f, struct tdm_fleet_entry *entry, const struct tdm_error *err)
{
        entry->trial.why = *err;
        tdm_fleet_pump_soon(f);
}

void tdm_fleet_trial_step_done(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_trial *t = &entry->trial;

        t->step_id = 0;
        tdm_fleet_pump_soon(f);
        if (!tdm_placement_trial_took(&t->trial, tdm_now_ns() - t->posted_ns))
                trial_settle(f, entry, true);
}
