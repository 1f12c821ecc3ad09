/* Where the next step of a model may go, and how much of the work it gets.
 *
 * Most placements leave no choice. With TDM_PLACEMENT_BALANCED every step runs wholly on one worker, and both workers
 * are to be done at the same moment, so that all sequences advance alike and both read the weights at about the same
 * time. How fast a worker is, follows from the time that its last steps kept it busy; when it gets slower, its share
 * shrinks within a few steps. A worker without a share gets a step every now and then, or nothing would show that it is
 * fast again.
 *
 * With TDM_PLACEMENT_STANDBY all steps go to one worker, and to the other one while that one is away. When it has
 * become much slower than it was, the other one is tried with a step, and takes over if it is faster. */
#include "daemon/placement/placement.h"

#include <math.h>

/* The cost of a step besides its rows, in rows: its weights have to be read. With a mixture of experts a step of few
 * rows reads a part of them. This number decides how fast shares settle, not where: they settle where both workers take
 * equally long. */
#define STEP_OVERHEAD_ROWS 8.0
#define FEW_ROWS 48u
#define PACE_WEIGHT 0.3
#define FORGET_NS (2 * TDM_NSEC_PER_SEC)
/* Slower than this part of its best: a step on the other worker is worth its time. */
#define SLOWED 0.7
/* Faster by this factor: the other worker takes over. */
#define CHANGE 1.4
/* The best pace fades with each step, because the same rows take longer when there are more keys to attend to. */
#define FADE 0.9995
/* Fewer rows of a prompt than this are not worth reading the weights. */
#define MIN_CHUNK_ROWS 32u

static uint32_t max_steps(const struct tdm_placement_load *load, bool whole, bool both)
{
        if (load->max_steps > 0)
                return whole ? TDM_DIV_UP(load->max_steps, 2u) : load->max_steps;
        /* While one worker runs attention of a step, the other one can run an FFN of another step. On shared CPUs it
         * cannot. */
        return both && !load->workers.shares_cpus ? 2 : 1;
}

/* ---- pace ---- */

static unsigned pace_class(uint32_t n_rows)
{
        return n_rows > FEW_ROWS;
}

void tdm_pace_note(struct tdm_pace *p, enum tdm_worker_index worker, uint32_t n_rows, double share_read,
                   uint64_t busy_ns)
{
        const unsigned class = pace_class(n_rows);
        double *pace = &p->now[worker][class].rows_per_ns;
        double now;

        if (busy_ns == 0 || busy_ns > 3600 * TDM_NSEC_PER_SEC)
                return;
        now = (STEP_OVERHEAD_ROWS * share_read + n_rows) / (double)busy_ns;
        *pace = *pace > 0 ? *pace + PACE_WEIGHT * (now - *pace) : now;
        p->now[worker][class].measured_ns = tdm_now_ns();
        p->best[worker][class] = fmax(now, FADE * p->best[worker][class]);
}

/* This worker's part of the speed of both, for steps of that class; half when the pace of one is not known. */
static double worker_share(const struct tdm_pace *p, enum tdm_worker_index worker, unsigned class)
{
        double own = p->now[worker][class].rows_per_ns, other = p->now[!worker][class].rows_per_ns;

        if (own <= 0 || other <= 0) {
                own = p->now[worker][!class].rows_per_ns;
                other = p->now[!worker][!class].rows_per_ns;
        }
        return own > 0 && other > 0 ? own / (own + other) : 0.5;
}

static bool is_forgotten(const struct tdm_pace *p, enum tdm_worker_index worker)
{
        uint64_t last = TDM_MAX(p->now[worker][0].measured_ns, p->now[worker][1].measured_ns);

        return last != 0 && tdm_now_ns() - last > FORGET_NS;
}

/* ---- routes ---- */

static void set_plan(const struct tdm_placement_load *load, const struct tdm_hparams *hp, enum tdm_placement placement,
                     struct tdm_route *route)
{
        route->error = tdm_placement_plan(&load->workers, hp, placement, route->plan, &route->degraded);
}

/* A placement that leaves no choice. */
static uint32_t fixed(const struct tdm_placement_load *load, const struct tdm_hparams *hp, enum tdm_placement placement,
                      struct tdm_route *ret)
{
        bool uses[TDM_N_WORKERS] = { false };
        uint32_t most;

        *ret = (struct tdm_route){ 0 };
        set_plan(load, hp, placement, ret);
        if (ret->error < 0)
                return 1;
        for (uint32_t b = 0; b < tdm_model_n_blocks(hp); b++)
                uses[ret->plan[b]] = true;
        if (uses[TDM_WORKER_NPU] && uses[TDM_WORKER_GPU] && load->workers.no_link)
                return 0;
        most = max_steps(load, false, uses[TDM_WORKER_NPU] && uses[TDM_WORKER_GPU]);
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                if (uses[w] && (!load->workers.of[w].up || load->n_steps[w] >= most))
                        return 0;
        ret->worker = uses[TDM_WORKER_GPU] ? TDM_WORKER_GPU : TDM_WORKER_NPU;
        ret->width = most;
        return 1;
}

static enum tdm_placement whole_on(enum tdm_worker_index worker)
{
        return worker == TDM_WORKER_NPU ? TDM_PLACEMENT_NPU : TDM_PLACEMENT_GPU;
}

static struct tdm_route whole_route(const struct tdm_placement_load *load, const struct tdm_hparams *hp,
                                    enum tdm_worker_index worker)
{
        struct tdm_route route = { .whole = true, .worker = worker };

        set_plan(load, hp, whole_on(worker), &route);
        return route;
}

static uint32_t balanced(const struct tdm_placement_load *load, const struct tdm_hparams *hp,
                         const struct tdm_pace *pace, struct tdm_route ret[2])
{
        /* A single sequence goes to the faster worker. */
        enum tdm_worker_index first = worker_share(pace, TDM_WORKER_GPU, 0) >= 0.5 ? TDM_WORKER_GPU : TDM_WORKER_NPU;
        uint32_t n = 0, most = max_steps(load, true, false);

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                enum tdm_worker_index w = i == 0 ? first : (enum tdm_worker_index) !first;

                if (!load->workers.of[w].up || load->n_steps[w] >= most)
                        continue;
                ret[n] = whole_route(load, hp, w);
                ret[n++].shared = load->workers.of[!w].up;
        }
        return n;
}

/* The other worker was faster lately. *ret_try: this worker is so slow that the other one is worth a try. */
static bool should_change(const struct tdm_pace *p, enum tdm_worker_index own, bool *ret_try)
{
        uint64_t now = tdm_now_ns();

        *ret_try = false;
        for (unsigned class = 0; class < 2; class ++) {
                double mine = p->now[own][class].rows_per_ns, theirs = p->now[!own][class].rows_per_ns;
                bool fresh = now - p->now[own][class].measured_ns < FORGET_NS;
                bool known = theirs > 0 && now - p->now[!own][class].measured_ns < FORGET_NS;

                if (!fresh || mine >= SLOWED * p->best[own][class])
                        continue;
                if (known && theirs > CHANGE * mine)
                        return true;
                *ret_try = *ret_try || !known;
        }
        return false;
}

static uint32_t standby(const struct tdm_placement_load *load, const struct tdm_hparams *hp, struct tdm_pace *pace,
                        struct tdm_route ret[2])
{
        enum tdm_worker_index w = pace->prefers_npu ? TDM_WORKER_NPU : TDM_WORKER_GPU;
        bool tries = false;

        if (!load->workers.of[w].up) {
                w = (enum tdm_worker_index) !w;
        } else if (load->workers.of[!w].up) {
                if (should_change(pace, w, &tries))
                        pace->prefers_npu = !pace->prefers_npu;
                if (tries || pace->prefers_npu != (w == TDM_WORKER_NPU))
                        w = (enum tdm_worker_index) !w;
        }
        if (!load->workers.of[w].up || load->n_steps[w] >= max_steps(load, false, false))
                return 0;
        ret[0] = whole_route(load, hp, w);
        ret[0].width = 1;
        return 1;
}

/* While one of two workers of equal bits is away for a moment, the other one runs the steps of a split whole. While the
 * two have no rings to each other, the GPU worker does. A worker
 * that is off, or quarantined for long, is not away: then a client that has asked for the split is told. */
static enum tdm_placement split_or_stand_in(const struct tdm_placement_load *load)
{
        const struct tdm_placement_workers *workers = &load->workers;
        bool npu = workers->of[TDM_WORKER_NPU].up, gpu = workers->of[TDM_WORKER_GPU].up;

        if ((npu == gpu && !workers->no_link) || !workers->equal_bits || workers->of[TDM_WORKER_NPU].given_up ||
            workers->of[TDM_WORKER_GPU].given_up)
                return TDM_PLACEMENT_SPLIT;
        return whole_on(npu && !gpu ? TDM_WORKER_NPU : TDM_WORKER_GPU);
}

uint32_t tdm_placement_choose(const struct tdm_placement_model *model, const struct tdm_placement_load *load,
                              struct tdm_route ret[2])
{
        const struct tdm_hparams *hp = model->hparams;
        enum tdm_placement placement;
        uint32_t n;

        if (model->asked == TDM_PLACEMENT_SPLIT) {
                placement = split_or_stand_in(load);
                n = fixed(load, hp, placement, ret);
                if (placement != TDM_PLACEMENT_SPLIT)
                        ret->degraded = ret->degraded || load->workers.degraded;
                return n;
        }
        if (model->asked != TDM_PLACEMENT_ANY)
                return fixed(load, hp, model->asked, ret);
        switch (model->measured) {
        case TDM_PLACEMENT_STANDBY:
                n = standby(load, hp, model->pace, ret);
                break;
        case TDM_PLACEMENT_BALANCED:
                n = balanced(load, hp, model->pace, ret);
                break;
        default:
                n = fixed(load, hp, model->measured, ret);
        }
        for (uint32_t i = 0; i < n; i++)
                ret[i].degraded = ret[i].degraded || load->workers.degraded;
        return n;
}

/* ---- shares ---- */

/* Sets how many of n sequences that generate worker 0 gets, so that both workers take equally long. The quota moves by
 * whole sequences only, so that a difference within the noise does not move it. */
static void set_quota(struct tdm_pace *p, uint32_t n)
{
        double share = worker_share(p, (enum tdm_worker_index)0, pace_class(n / 2));
        double want = share * (n + STEP_OVERHEAD_ROWS) - (1 - share) * STEP_OVERHEAD_ROWS;

        want = TDM_MIN(TDM_MAX(want, 0.0), (double)n);
        if (p->quota_of != n || p->quota > n || fabs(want - p->quota) >= 1)
                p->quota = (uint32_t)lround(want);
        p->quota_of = n;
        if (n < 2)
                return;
        if (p->quota == 0 && is_forgotten(p, (enum tdm_worker_index)0))
                p->quota = 1;
        else if (p->quota == n && is_forgotten(p, (enum tdm_worker_index)1))
                p->quota = n - 1;
}

void tdm_placement_share(struct tdm_pace *pace, const struct tdm_route *route, const struct tdm_placement_work *work,
                         struct tdm_share *ret)
{
        uint32_t min_chunk = TDM_MAX(1u, TDM_MIN(MIN_CHUNK_ROWS, work->max_rows / 8));
        double share;

        *ret = (struct tdm_share){ .n_decode = UINT32_MAX, .prompt_rows = UINT32_MAX, .chunk_rows = UINT32_MAX };
        if (!route->shared)
                return;
        set_quota(pace, work->n_decode);
        ret->n_decode = route->worker == 0 ? pace->quota : work->n_decode - pace->quota;
        share = worker_share(pace, route->worker, 1);
        ret->prompt_rows = TDM_MAX(min_chunk, (uint32_t)TDM_MIN(ceil(share * (double)work->prompt_rows), 1e6));
        ret->relay = work->may_relay;
        if (ret->relay)
                ret->chunk_rows = TDM_MAX(min_chunk, (uint32_t)(share * work->max_rows));
}
