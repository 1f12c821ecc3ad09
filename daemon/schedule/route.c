/* Where a step goes and how much it gets.
 *
 * Most placements leave no choice. With "balanced" (two workers of equal bits that do not take from each other) every
 * step runs wholly on one worker, and both are to be done at the same moment, so that all sequences advance alike and
 * the weights are read by both at about the same time. How fast a worker is, is learned from the time that its last
 * steps kept it busy; so when one gets slower its share shrinks within a few steps. A worker that is left with nothing
 * is tried again every now and then, or nobody would learn that it has recovered.
 *
 * Two workers of equal bits that do take from each other (the same CPUs): all goes to one, and to the other while that
 * one is away. When it has become much slower than it was, the other is tried with a step, and takes over if it is
 * faster. */
#include "daemon/schedule/private.h"

#include <math.h>

/* What a step costs besides its rows (its weights have to be read), in rows. Only how fast shares settle depends on it:
 * they settle where both workers take equally long. */
#define STEP_OVERHEAD_ROWS 8.0
#define FEW_ROWS 48u
#define PACE_WEIGHT 0.3
#define FORGET_NS (2 * TDM_NSEC_PER_SEC)
/* Slower than this part of its best: worth a step on the other worker. Faster by this factor: worth changing. */
#define SLOWED 0.7
#define CHANGE 1.4
/* Bests fade, for the same rows take longer when there is more to attend to. */
#define FADE 0.9995
/* Fewer rows of a prompt than this are not worth the weights that are read for them. */
#define MIN_CHUNK_ROWS 32u

static uint32_t max_load(const struct tdm_scheduler *s, bool balanced, bool both)
{
        if (s->config.steps_in_flight > 0)
                return balanced ? TDM_DIV_UP(s->config.steps_in_flight, 2u) : s->config.steps_in_flight;
        /* While one worker does attention of a step, the other can do another one's FFN; on shared CPUs it cannot. */
        return both && !tdm_scheduler_workers(s).shares_cpus ? 2 : 1;
}

/* ---- pace ---- */

static unsigned pace_class(uint32_t n_rows)
{
        return n_rows > FEW_ROWS;
}

void tdm_scheduler_note_pace(struct lane *lane, enum tdm_worker_index worker, uint32_t n_rows, uint64_t busy_ns)
{
        double *pace = &lane->pace[worker][pace_class(n_rows)].rows_per_ns;
        double now;

        if (busy_ns == 0 || busy_ns > 3600 * TDM_NSEC_PER_SEC)
                return;
        now = (STEP_OVERHEAD_ROWS + n_rows) / (double)busy_ns;
        *pace = *pace > 0 ? *pace + PACE_WEIGHT * (now - *pace) : now;
        lane->pace[worker][pace_class(n_rows)].measured_ns = tdm_now_ns();
        lane->best_pace[worker][pace_class(n_rows)] = fmax(now, FADE * lane->best_pace[worker][pace_class(n_rows)]);
}

/* This worker's part of the speed of both, for steps of that kind; half when nobody knows. */
static double share_of(const struct lane *lane, enum tdm_worker_index worker, unsigned kind)
{
        double own = lane->pace[worker][kind].rows_per_ns, other = lane->pace[!worker][kind].rows_per_ns;

        if (own <= 0 || other <= 0) {
                own = lane->pace[worker][!kind].rows_per_ns;
                other = lane->pace[!worker][!kind].rows_per_ns;
        }
        return own > 0 && other > 0 ? own / (own + other) : 0.5;
}

static bool is_forgotten(const struct lane *lane, enum tdm_worker_index worker)
{
        uint64_t last = TDM_MAX(lane->pace[worker][0].measured_ns, lane->pace[worker][1].measured_ns);

        return last != 0 && tdm_now_ns() - last > FORGET_NS;
}

/* ---- routes ---- */

static uint32_t fixed(struct tdm_scheduler *s, const struct class *c, enum tdm_placement placement, struct route *ret)
{
        const struct tdm_hparams *hp = tdm_model_hparams(c->lane->model);
        bool uses[TDM_N_WORKERS] = { false };
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        const struct tdm_placement_workers workers = tdm_scheduler_workers(s);
        uint32_t most;

        *ret = (struct route){ .placement = placement };
        ret->error = tdm_placement_plan(&workers, hp, placement, plan, NULL);
        if (ret->error < 0)
                return 1;
        for (uint32_t b = 0; b < tdm_model_n_blocks(hp); b++)
                uses[plan[b] == TDM_WORKER_NPU ? TDM_WORKER_NPU : TDM_WORKER_GPU] = true;
        most = max_load(s, false, uses[TDM_WORKER_NPU] && uses[TDM_WORKER_GPU]);
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                if (uses[w] && (!tdm_fleet_worker_is_up(s->fleet, (enum tdm_worker_index)w) || s->load[w] >= most))
                        return 0;
        ret->worker = uses[TDM_WORKER_GPU] ? TDM_WORKER_GPU : TDM_WORKER_NPU;
        ret->width = most;
        return 1;
}

static const enum tdm_placement worker_placement[TDM_N_WORKERS] = { [TDM_WORKER_NPU] = TDM_PLACEMENT_NPU,
                                                                    [TDM_WORKER_GPU] = TDM_PLACEMENT_GPU };

static uint32_t balanced(struct tdm_scheduler *s, const struct class *c, struct route ret[2])
{
        /* A single sequence goes to the faster one. */
        enum tdm_worker_index first = share_of(c->lane, TDM_WORKER_GPU, 0) >= 0.5 ? TDM_WORKER_GPU : TDM_WORKER_NPU;
        uint32_t n = 0, most = max_load(s, true, false);

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                enum tdm_worker_index w = i == 0 ? first : (enum tdm_worker_index) !first;

                if (tdm_fleet_worker_is_up(s->fleet, w) && s->load[w] < most)
                        ret[n++] = (struct route){ .placement = worker_placement[w], .balanced = true, .worker = w };
        }
        return n;
}

/* The other worker has shown lately that it is faster, or this one is so slow that it is worth a try. */
static bool change(const struct lane *lane, enum tdm_worker_index own, bool *ret_try)
{
        uint64_t now = tdm_now_ns();

        *ret_try = false;
        for (unsigned kind = 0; kind < 2; kind++) {
                double mine = lane->pace[own][kind].rows_per_ns, theirs = lane->pace[!own][kind].rows_per_ns;
                bool fresh = now - lane->pace[own][kind].measured_ns<FORGET_NS, known = theirs> 0 &&
                             now - lane->pace[!own][kind].measured_ns < FORGET_NS;

                if (!fresh || mine >= SLOWED * lane->best_pace[own][kind])
                        continue;
                if (known && theirs > CHANGE * mine)
                        return true;
                *ret_try = *ret_try || !known;
        }
        return false;
}

static uint32_t either(struct tdm_scheduler *s, const struct class *c, struct route ret[2])
{
        enum tdm_worker_index w = c->lane->prefers_npu ? TDM_WORKER_NPU : TDM_WORKER_GPU;
        bool tries = false;

        if (!tdm_fleet_worker_is_up(s->fleet, w)) {
                w = (enum tdm_worker_index) !w;
        } else if (tdm_fleet_worker_is_up(s->fleet, (enum tdm_worker_index) !w)) {
                if (change(c->lane, w, &tries))
                        c->lane->prefers_npu = !c->lane->prefers_npu;
                if (tries || c->lane->prefers_npu != (w == TDM_WORKER_NPU))
                        w = (enum tdm_worker_index) !w;
        }
        if (!tdm_fleet_worker_is_up(s->fleet, w) || s->load[w] >= max_load(s, false, false))
                return 0;
        /* Paced like a balanced step, without shares. */
        ret[0] = (struct route){ .placement = worker_placement[w], .balanced = true, .worker = w, .width = 1 };
        return 1;
}

/* "split" while one of the two is away for a moment: the other one alone, where that gives the same bits.
 * TDM_PLACEMENT_SPLIT: nobody is away, or nobody may stand in. */
static enum tdm_placement stand_in(const struct tdm_scheduler *s, const struct class *c)
{
        bool npu = tdm_fleet_worker_is_up(s->fleet, TDM_WORKER_NPU),
             gpu = tdm_fleet_worker_is_up(s->fleet, TDM_WORKER_GPU);
        const struct tdm_placement_workers workers = tdm_scheduler_workers(s);
        uint8_t plan[TDM_MAX_BLOCKS + 1];

        if (npu == gpu || !workers.equal_bits)
                return TDM_PLACEMENT_SPLIT;
        /* Off, or quarantined for long, is not away: who forces a placement is told. */
        if (tdm_placement_plan(&workers, tdm_model_hparams(c->lane->model), TDM_PLACEMENT_SPLIT, plan, NULL) < 0)
                return TDM_PLACEMENT_SPLIT;
        return worker_placement[npu ? TDM_WORKER_NPU : TDM_WORKER_GPU];
}

uint32_t tdm_scheduler_routes(struct tdm_scheduler *s, const struct class *c, struct route ret[2])
{
        bool degraded = tdm_fleet_is_degraded(s->fleet);
        uint32_t n;

        if (c->placement == TDM_PLACEMENT_SPLIT) {
                enum tdm_placement now = stand_in(s, c);

                n = fixed(s, c, now, ret);
                ret->degraded = now != TDM_PLACEMENT_SPLIT && degraded;
                return n;
        }
        if (c->placement != TDM_PLACEMENT_ANY)
                return fixed(s, c, c->placement, ret);
        switch (tdm_fleet_measured(s->fleet, c->lane->model->id)) {
        case TDM_PLACEMENT_NPU:
                n = fixed(s, c, TDM_PLACEMENT_NPU, ret);
                break;
        case TDM_PLACEMENT_GPU:
                n = fixed(s, c, TDM_PLACEMENT_GPU, ret);
                break;
        case TDM_PLACEMENT_EITHER:
                n = either(s, c, ret);
                break;
        case TDM_PLACEMENT_BALANCED:
                n = balanced(s, c, ret);
                break;
        default:
                n = fixed(s, c, TDM_PLACEMENT_SPLIT, ret);
        }
        for (uint32_t i = 0; i < n; i++)
                ret[i].degraded = degraded;
        return n;
}

/* ---- shares ---- */

/* Sequences that generate on worker 0, of n: both workers take equally long then. It moves by whole sequences only, so
 * that a difference within the noise moves nothing. */
static void set_quota(struct lane *lane, uint32_t n)
{
        double share = share_of(lane, (enum tdm_worker_index)0, pace_class(n / 2));
        double want = share * (n + STEP_OVERHEAD_ROWS) - (1 - share) * STEP_OVERHEAD_ROWS;

        want = TDM_MIN(TDM_MAX(want, 0.0), (double)n);
        if (lane->quota_of != n || lane->quota > n || fabs(want - lane->quota) >= 1)
                lane->quota = (uint32_t)lround(want);
        lane->quota_of = n;
        if (n < 2)
                return;
        if (lane->quota == 0 && is_forgotten(lane, (enum tdm_worker_index)0))
                lane->quota = 1;
        else if (lane->quota == n && is_forgotten(lane, (enum tdm_worker_index)1))
                lane->quota = n - 1;
}

void tdm_scheduler_deal(struct tdm_scheduler *s, const struct class *c, const struct route *route, struct deal *ret)
{
        uint32_t n_decode = 0, min_chunk = TDM_MAX(1u, TDM_MIN(MIN_CHUNK_ROWS, s->config.max_rows / 8));
        uint64_t prompt_rows = 0;
        struct lane *lane = c->lane;
        struct tdm_job *job;
        double share;

        *ret = (struct deal){ .n_decode = UINT32_MAX, .prompt_rows = UINT32_MAX, .chunk_rows = UINT32_MAX };
        if (!route->balanced || route->width == 1 ||
            !tdm_fleet_worker_is_up(s->fleet, (enum tdm_worker_index) !route->worker))
                return;
        tdm_list_for_each(job, &lane->active, struct tdm_job, seq.node)
        {
                if (!tdm_class_has(s, c, job))
                        continue;
                if (tdm_job_is_decoding(job))
                        n_decode++;
                else
                        prompt_rows += tdm_job_pending_rows(job);
        }
        set_quota(lane, n_decode);
        ret->n_decode = route->worker == 0 ? lane->quota : n_decode - lane->quota;
        share = share_of(lane, route->worker, 1);
        ret->prompt_rows = TDM_MAX(min_chunk, (uint32_t)TDM_MIN(ceil(share * (double)prompt_rows), 1e6));
        ret->marks = !s->config.no_chains && !c->suspects;
        if (ret->marks)
                ret->chunk_rows = TDM_MAX(min_chunk, (uint32_t)(share * s->config.max_rows));
}
