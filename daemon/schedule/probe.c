/* Probes: steps that belong to no job and show what each placement of a model costs now. daemon/placement/outlook.c
 * says which one is due and what the times mean. This file runs them beside the jobs, and gives a new sequence its
 * placement.
 *
 * Only workers that differ in bits need this. There a sequence keeps the placement of its first step, and sequences of
 * several placements run side by side, each in steps of its own. While a probe waits, the lane gets no other steps, so
 * that it has the devices for itself; other models' steps go on, because they are part of what a placement costs.
 *
 * Probes run while a job that follows "measured" is there, and for a while after the last one. A machine at rest is
 * left alone: a GPU that sleeps is not woken up to be measured. A probe has a page table and a page of its own. Where
 * there is no page, it is left out. */
#include "daemon/schedule/private.h"

#include "common/log.h"

/* How long after the last job. */
#define AFTERWARDS_NS (10 * TDM_NSEC_PER_SEC)
#define LATER_NS (100 * TDM_NSEC_PER_MSEC)
/* After such a pause somebody waits for a first token, so a probe waits. A program that sends job after job makes
 * shorter ones. */
#define PAUSE_NS TDM_NSEC_PER_SEC
/* The time to wake a worker hardly matters for steps that take longer than this. */
#define SHORT_NS (20 * TDM_NSEC_PER_MSEC)

/* ---- what new sequences take ---- */

static bool follows(const struct tdm_scheduler *s, const struct sequence *q)
{
        return tdm_scheduler_placement_of(s, q->job) == TDM_PLACEMENT_ANY;
}

/* It has begun: its outlook starts with what the trial has found. */
static void probe_begin(struct tdm_scheduler *s, struct lane *lane)
{
        if (lane->probe.begun)
                return;
        lane->probe.begun = true;
        lane->outlook.found = tdm_fleet_found(s->fleet, lane->model->id);
}

static enum tdm_placement choice(struct tdm_scheduler *s, struct lane *lane,
                                 const struct tdm_placement_workers *workers)
{
        uint32_t n_on[TDM_N_PLACEMENTS] = { 0 };
        enum tdm_placement found;
        struct sequence *q;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                enum tdm_placement p = follows(s, q) ? q->kept : tdm_scheduler_placement_of(s, q->job);

                if (!q->is_draft && !q->job->finished && !q->job->paused)
                        n_on[p]++;
        }
        probe_begin(s, lane);
        found = tdm_outlook_choose(&lane->outlook, n_on, !workers->shares_cpus, tdm_scheduler_now(s));
        return tdm_placement_measured(workers, found);
}

void tdm_scheduler_keep_placements(struct tdm_scheduler *s, struct lane *lane)
{
        struct tdm_placement_workers workers;
        bool asked = false;
        struct sequence *q;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->kept != TDM_PLACEMENT_ANY || !follows(s, q))
                        continue;
                if (!asked)
                        tdm_fleet_placement_workers(s->fleet, lane->model->id, &workers);
                asked = true;
                if (workers.equal_bits)
                        return;
                q->kept = choice(s, lane, &workers);
        }
}

/* ---- a probe's step ---- */

/* A page of each pool holds the rows of a probe. */
static struct tdm_pages_need one_page(const struct lane *lane)
{
        struct tdm_pages_need need;

        for (int g = 0; g < TDM_KV_POOLS; g++)
                need.n[g] = lane->model->geometry.n_layers[g] > 0;
        return need;
}

static void write_step(struct tdm_scheduler *s, struct lane *lane, const struct flight *f, uint32_t slot,
                       struct tdm_step_head *head)
{
        const struct tdm_steps_layout *l = &lane->model->layout;
        uint8_t *base = lane->model->steps->base;
        struct tdm_step_row *rows = tdm_steps_rows(base, l, slot);
        uint32_t n_vocab = tdm_model_hparams(lane->model)->n_vocab;

        head->step_id = ++s->last_step_id;
        head->epoch = tdm_fleet_epoch(s->fleet);
        head->n_rows = f->n_rows;
        head->n_seqs = head->n_logits = 1;
        for (uint32_t i = 0; i < f->n_rows; i++)
                rows[i] = (struct tdm_step_row){ .token = i % n_vocab,
                                                 .position = i,
                                                 .logits = i + 1 == f->n_rows ? 0 : UINT32_MAX };
        tdm_steps_seqs(base, l, slot)[0] =
                (struct tdm_step_seq){ .table = f->table, .n_rows = f->n_rows, .state = TDM_STEP_NO_STATE };
        tdm_steps_seqs(base, l, slot)[0].state.to = f->pages[TDM_KV_STATE];
        tdm_steps_logits(base, l, slot)[0] = (struct tdm_step_logits){
                .row = f->n_rows - 1,
                .target = UINT32_MAX,
                .sampling = { .top_p = 1, .repeat_penalty = 1 },
        };
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                uint32_t *table = tdm_steps_table(base, l, f->table, (enum tdm_kv_group)g);

                for (uint32_t i = 0; i < l->limits.table_entries; i++)
                        table[i] = i == 0 && lane->model->geometry.n_layers[g] ? f->pages[g] : TDM_KV_NO_PAGE;
        }
}

static void give_back(struct lane *lane, const struct flight *f)
{
        for (int g = 0; !lane->dead && g < TDM_KV_POOLS; g++)
                if (lane->model->geometry.n_layers[g])
                        tdm_pages_free(lane->model->pages, (enum tdm_kv_group)g, f->pages[g], true);
}

static void take_off(struct tdm_scheduler *s, struct lane *lane, struct flight *f, uint64_t step_id)
{
        f->used = f->probes = true;
        f->degraded = f->done = f->doomed = f->charged = f->relays = f->wants_masks = f->paced = f->reads = false;
        f->step_id = step_id;
        f->after = f->lone_ns = 0;
        f->n_seqs = f->n_logits = 0;
        f->placement = lane->probe.what.placement;
        f->issued_ns = tdm_scheduler_now(s);
        f->workers = 0;
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                if (tdm_placement_uses(f->placement, (enum tdm_worker_index)w)) {
                        f->workers |= (uint8_t)(1u << w);
                        s->load[w]++;
                }
        lane->n_flights++;
        lane->probe.n_in_flight++;
        s->n_in_flight++;
        tdm_model_step_begin(lane->model);
}

static int issue(struct tdm_scheduler *s, struct lane *lane, const struct tdm_placement_workers *workers)
{
        struct tdm_model *model = lane->model;
        const struct tdm_pages_need need = one_page(lane);
        struct tdm_step_head head = { 0 };
        struct flight *f = lane->flights;
        uint32_t slot;
        int r;

        while (f->used)
                f++;
        slot = (uint32_t)(f - lane->flights);
        f->n_rows = lane->probe.what.n_rows;
        f->table = s->config.max_sequences + lane->probe.n_in_flight; /* tables that no sequence gets */
        r = tdm_placement_plan(workers, tdm_model_hparams(model), lane->probe.what.placement, head.plan, NULL);
        if (r < 0)
                return r;
        if (!tdm_pages_reserve(model->pages, &need))
                return -ENOSPC;
        for (int g = 0; g < TDM_KV_POOLS; g++)
                if (need.n[g])
                        f->pages[g] = tdm_pages_alloc(model->pages, (enum tdm_kv_group)g, UINT64_MAX);
        write_step(s, lane, f, slot, &head);
        tdm_model_step_begin(model); /* its segments stay, should it fail */
        r = tdm_model_read_inputs(model, tdm_steps_rows(model->steps->base, &model->layout, slot), f->n_rows,
                                  tdm_steps_inputs(model->steps->base, &model->layout, slot));
        r = r != 0 ? -EIO : tdm_fleet_submit(s->fleet, model->id, slot, &head);
        if (r < 0)
                give_back(lane, f);
        else
                take_off(s, lane, f, head.step_id);
        tdm_model_step_end(model);
        return r;
}

/* ---- when ---- */

static void over(struct tdm_scheduler *s, struct lane *lane, bool good)
{
        uint64_t now = tdm_scheduler_now(s);
        struct lane_probe *p = &lane->probe;

        p->waits = false;
        if (good)
                tdm_outlook_took(&lane->outlook, &p->what, now - p->posted_ns, p->posted_ns - p->since_ns, now);
        else
                tdm_outlook_void(&lane->outlook, &p->what, false, now);
}

void tdm_scheduler_probe_lost(struct tdm_scheduler *s, struct lane *lane)
{
        lane->probe.failed = true;
        /* The place of the round does not move twice for one probe: over() moves it. */
        lane->outlook.of[lane->probe.what.candidate].n_lost++;
}

/* A worker without jobs may sleep, and its caches hold other things. To wake it takes as long as a short step does. So
 * the first short step of a probe does not count, and a second one follows. */
static bool needs_another(const struct lane_probe *p, uint64_t now)
{
        return !p->failed && !p->what.many && !p->awake && now - p->posted_ns < SHORT_NS;
}

void tdm_scheduler_probe_landed(struct tdm_scheduler *s, struct lane *lane, struct flight *f, bool good)
{
        give_back(lane, f);
        lane->probe.failed = lane->probe.failed || !good;
        if (--lane->probe.n_in_flight == 0) {
                if (needs_another(&lane->probe, tdm_scheduler_now(s)))
                        lane->probe.awake = true;
                else
                        over(s, lane, !lane->probe.failed);
        }
        f->probes = false;
}

/* A job of the lane follows what is measured, or did so lately. *idle: none does now. */
static bool probe_is_wanted(struct tdm_scheduler *s, struct lane *lane, uint64_t now, bool *idle)
{
        struct sequence *q;

        *idle = true;
        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                *idle = *idle && (q->job->finished || q->job->paused || !follows(s, q));
        }
        if (!*idle)
                lane->probe.wanted_ns = now;
        return lane->probe.wanted_ns != 0 && now - lane->probe.wanted_ns < AFTERWARDS_NS;
}

static bool may_run(const struct tdm_scheduler *s, const struct lane *lane, const struct tdm_placement_workers *workers)
{
        bool both = !workers->equal_bits && !workers->no_link;

        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                both = both && workers->of[w].usable && workers->of[w].up;
        return both && !lane->dead && !s->draining && s->config.placement == TDM_PLACEMENT_ANY;
}

/* The next probe, or what the round that is over has found. */
static bool next(struct tdm_scheduler *s, struct lane *lane, bool idle, bool pipelined, uint64_t now)
{
        const enum tdm_placement before = lane->outlook.found;
        char text[256];

        probe_begin(s, lane);
        if (tdm_outlook_next(&lane->outlook, lane->model->layout.limits.max_rows, idle, pipelined, now,
                             &lane->probe.what))
                return true;
        tdm_outlook_describe(&lane->outlook, text, sizeof(text));
        tdm_log_debug("model %s: placements cost now: %s", lane->model->name, text);
        if (lane->outlook.found != before)
                tdm_fleet_set_found(s->fleet, lane->model->id, lane->outlook.found, text);
        return false;
}

static void probe_lane(struct tdm_scheduler *s, struct lane *lane, const struct tdm_placement_workers *workers)
{
        bool pipelined = !workers->shares_cpus && s->config.steps_in_flight != 1, idle;
        uint64_t now = tdm_scheduler_now(s);
        struct lane_probe *p = &lane->probe;
        uint64_t last_ns = p->wanted_ns;

        if (p->n_in_flight > 0)
                return;
        if (!may_run(s, lane, workers) || !probe_is_wanted(s, lane, now, &idle)) {
                p->waits = false;
                return;
        }
        if (!idle && (last_ns == 0 || now - last_ns > PAUSE_NS)) /* the first job does not wait for a probe */
                lane->outlook.due_ns = TDM_MAX(lane->outlook.due_ns, now + LATER_NS);
        if (!p->waits) {
                if (now < lane->outlook.due_ns || !next(s, lane, idle, pipelined, now))
                        return;
                p->waits = true;
                p->awake = false;
                p->since_ns = now;
        }
        if (lane->n_flights > 0)
                return;
        p->failed = false;
        p->posted_ns = now;
        for (uint32_t i = 0; i < p->what.n_steps; i++)
                if (issue(s, lane, workers) < 0) {
                        p->failed = true;
                        break;
                }
        if (p->n_in_flight > 0)
                return;
        p->waits = false; /* no page now, rows of the file are being read, or a worker is on its way out */
        lane->outlook.due_ns = now + LATER_NS;
}

void tdm_scheduler_probe(struct tdm_scheduler *s)
{
        struct tdm_placement_workers workers;
        uint64_t now, due = UINT64_MAX;
        struct lane *lane;
        bool idle;

        if (!s->fleet || s->held || s->config.placement != TDM_PLACEMENT_ANY || !tdm_fleet_is_ready(s->fleet))
                return;
        now = tdm_scheduler_now(s);
        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_fleet_placement_workers(s->fleet, lane->model->id, &workers);
                if (workers.equal_bits)
                        continue;
                probe_lane(s, lane, &workers);
                if (lane->probe.n_in_flight == 0 && !lane->probe.waits && probe_is_wanted(s, lane, now, &idle) &&
                    may_run(s, lane, &workers))
                        due = TDM_MIN(due, lane->outlook.due_ns);
        }
        tdm_source_arm(s->timers.probes, due <= now + AFTERWARDS_NS ? TDM_MAX(due, now + TDM_NSEC_PER_MSEC) : 0);
}
