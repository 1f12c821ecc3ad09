/* What the placements of a model cost now, on two devices that differ in bits, and which one a new job takes.
 *
 * The trial at load (measure.c) sees the machine as it was then. Later a device gets slower or faster: its clock
 * follows heat and power, another process uses it, another model's jobs do. So the same steps are run again while jobs
 * run, one at a time, between theirs. This file says which is next and what the times mean. daemon/schedule/probe.c
 * runs them.
 *
 * Of the last probes of one kind the shortest counts, so those that were disturbed change nothing. Where the steps of
 * jobs have become slower or faster, on average over many, older probes are forgotten. A placement has to be clearly
 * cheaper than the present one. Otherwise noise would move new jobs back and forth, and change their tokens.
 *
 * Where the workers do not take each other's time, a new job also looks at the jobs that run: a slower device that is
 * idle can be better than a faster one that is full. Then two placements run side by side. */
#include "daemon/placement/placement.h"

#define MANY_ROWS 32u
/* Steps of decode for each step of many rows, as in measure.c. */
#define WEIGHT_OF_DECODE 32.0
/* All new jobs take another placement if it costs at most this part of the one that was found before. */
#define BETTER 0.8
/* The same for one new job, because of the jobs that run. Their time beside each other is a guess and not measured. */
#define BETTER_BESIDE 0.7
/* A placement whose step of one row takes this many times as long as the best is probed in every eighth round. */
#define HOPELESS 4u
#define RARELY 8u
/* While rounds are urgent, a placement is probed only below this many times the cost of the best. */
#define NEAR 3.0
/* Times as long as with one row, where nothing is known. */
#define UNKNOWN_MANY 8u
#define MAX_AGAIN (SURE + 2u)
/* Probes of a measurement: the shortest one counts as undisturbed. */
#define SURE 4u
#define MAX_LOST 3u
/* The longest probe while a job waits. */
#define LONGEST_NS (250 * TDM_NSEC_PER_MSEC)
#define GAP_NS (20 * TDM_NSEC_PER_MSEC)
/* How long jobs run between two probes, in times of the probe: usually, and after a change was seen. */
#define GAP_SHARE 10u
#define URGENT_SHARE 3u
#define ROUND_SHARE 50u
#define ROUND_MIN_NS (3 * TDM_NSEC_PER_SEC)
#define ROUND_MAX_NS (60 * TDM_NSEC_PER_SEC)
/* A change of jobs' own steps that makes a round due, and how long after the last round it does so. */
#define SLOWER 1.3
#define FASTER 0.75
#define ALARM_NS (2 * TDM_NSEC_PER_SEC)
#define ALARM_SHARE 5u
#define PACE_WEIGHT 0.1
#define BASE_WEIGHT 0.01
#define PACE_OVERHEAD_ROWS 8.0
/* A probe that shows such a change is made again soon. */
#define CHANGED 1.2
/* A probe that is older than this says nothing about now. */
#define STALE_NS (90 * TDM_NSEC_PER_SEC)

static const enum tdm_placement candidates[TDM_N_CANDIDATES] = {
        TDM_PLACEMENT_SPLIT,         TDM_PLACEMENT_NPU,        TDM_PLACEMENT_GPU,
        TDM_PLACEMENT_FRONT_QUARTER, TDM_PLACEMENT_FRONT_HALF, TDM_PLACEMENT_SPLIT_HALF,
};

static uint64_t value(const struct tdm_outlook *o, unsigned i, unsigned many)
{
        const uint64_t *took = o->of[i].took_ns[many];
        uint64_t best = took[0];

        for (unsigned k = 1; k < TDM_N_TIMES && took[k]; k++)
                best = TDM_MIN(best, took[k]);
        return best;
}

static bool pace_is_known(const struct tdm_outlook *o, unsigned i)
{
        return value(o, i, 0) > 0 && value(o, i, 1) > 0 && o->of[i].n_lost < MAX_LOST;
}

/* A step of each of n sequences that generate. */
static double decode_ns(const struct tdm_outlook *o, unsigned i, uint32_t n)
{
        double one = (double)value(o, i, 0), many = (double)value(o, i, 1);

        if (n >= o->many_rows || o->many_rows < 2)
                return many * n / TDM_MAX(o->many_rows, 1u);
        return one + (many - one) * (n - 1) / (o->many_rows - 1);
}

static double cost(const struct tdm_outlook *o, unsigned i, uint32_t n)
{
        return WEIGHT_OF_DECODE * decode_ns(o, i, n) + (double)value(o, i, 1);
}

static unsigned index_of(enum tdm_placement placement)
{
        unsigned i = 0;

        while (i < TDM_N_CANDIDATES && candidates[i] != placement)
                i++;
        return i;
}

static bool is_hopeless(const struct tdm_outlook *o, unsigned i)
{
        for (unsigned k = 0; k < TDM_N_CANDIDATES; k++)
                if (value(o, k, 0) > 0 && value(o, i, 0) >= HOPELESS * value(o, k, 0))
                        return true;
        return false;
}

/* ---- rounds ---- */

/* The time with many rows, in times with one: as last seen of this placement, or else of any other. It must not depend
 * on which placement new jobs take now. Otherwise the guess would change with them, and they with the guess. */
static double times_of(const struct tdm_outlook *o, unsigned i)
{
        if (o->of[i].times > 0)
                return o->of[i].times;
        for (unsigned k = 0; k < TDM_N_CANDIDATES; k++)
                if (o->of[k].times > 0)
                        return o->of[k].times;
        return o->many_rows;
}

/* The time with many rows, where it would take too long to find out. */
static void guess_many(struct tdm_outlook *o, unsigned i)
{
        struct tdm_candidate *c = &o->of[i];

        memset(c->took_ns[1], 0, sizeof(c->took_ns[1]));
        c->old[1] = false;
        c->took_ns[1][0] = (uint64_t)(TDM_MIN(times_of(o, i), (double)o->many_rows) * (double)value(o, i, 0));
}

static bool is_near(const struct tdm_outlook *o, unsigned i)
{
        for (unsigned k = 0; k < TDM_N_CANDIDATES; k++)
                if (pace_is_known(o, k) && pace_is_known(o, i) && cost(o, i, 1) > NEAR * cost(o, k, 1))
                        return false;
        return true;
}

/* Its steps of one row alone cost too much to be taken by new jobs, whatever many rows take. */
static bool cannot_win(const struct tdm_outlook *o, unsigned i)
{
        unsigned own = index_of(o->found);

        return own < TDM_N_CANDIDATES && i != own && pace_is_known(o, own) && !o->of[own].old[0] && !o->of[i].old[0] &&
               WEIGHT_OF_DECODE * (double)value(o, i, 0) > BETTER * cost(o, own, 1);
}

/* Jobs must not wait long, nor often for what cannot win. */
static bool is_worth_it(struct tdm_outlook *o, unsigned i, bool many, bool idle)
{
        const struct tdm_candidate *c = &o->of[i];
        bool rarely = o->n_rounds % RARELY == 0, own = candidates[i] == o->found;
        uint64_t one = c->took_ns[0][0];

        if (c->n_lost >= MAX_LOST || (o->urgent && !own && !is_near(o, i)))
                return false;
        if (!many)
                return one == 0 || own || rarely || (!is_hopeless(o, i) && (idle || one <= LONGEST_NS));
        if (one == 0)
                return false; /* it was void */
        /* Many rows are the longest probes. While rounds are urgent, they would only delay the answer. */
        if (o->urgent && value(o, i, 1) > 0 && cannot_win(o, i))
                return false;
        /* If a device got slower, many rows got slower too. The next round that is not urgent measures them. */
        if (is_hopeless(o, i) || (o->urgent && (c->times > 0 || c->old[1] || (o->learned && value(o, i, 1) > 0))) ||
            (!idle && (value(o, i, 1) ?: UNKNOWN_MANY * one) > LONGEST_NS)) {
                guess_many(o, i);
                return false;
        }
        return true;
}

/* It was probed often enough, as things are now, for one of the times to be hardly disturbed. */
static bool is_sure(const struct tdm_outlook *o, unsigned i)
{
        return pace_is_known(o, i) && !o->of[i].old[0] && o->of[i].took_ns[0][SURE - 1] > 0;
}

static void end_round(struct tdm_outlook *o, uint64_t now_ns)
{
        unsigned best = TDM_N_CANDIDATES, own = index_of(o->found);
        uint64_t gap = TDM_MIN(TDM_MAX(ROUND_SHARE * o->round_ns, ROUND_MIN_NS), ROUND_MAX_NS);

        for (unsigned i = 0; i < TDM_N_CANDIDATES; i++)
                if (is_sure(o, i) && (best == TDM_N_CANDIDATES || cost(o, i, 1) < cost(o, best, 1)))
                        best = i;
        if (best < TDM_N_CANDIDATES && best != own &&
            (own == TDM_N_CANDIDATES || o->of[own].n_lost >= MAX_LOST ||
             (is_sure(o, own) && cost(o, best, 1) < BETTER * cost(o, own, 1))))
                o->found = candidates[best];
        o->again = o->again || (o->urgent && own < TDM_N_CANDIDATES && !is_sure(o, own));
        o->urgent = o->again && o->n_again < MAX_AGAIN;
        o->n_again = o->urgent ? o->n_again + 1 : 0;
        o->due_ns = now_ns + (o->urgent ? GAP_NS : gap);
        if (o->urgent)
                o->alarm_ns = now_ns;
        if (!o->urgent) {
                /* The first ones had everything to find out. They say nothing about what an alarm will cost. */
                o->rounds_ns = o->learned ? o->round_ns : 0;
                o->round_ns = 0;
                o->learned = true;
        }
        o->again = false;
        o->at = 0;
        o->n_rounds++;
}

/* The present placement comes first: what the others have to beat is then known. */
static unsigned turn(const struct tdm_outlook *o, unsigned n)
{
        unsigned own = index_of(o->found);

        if (own == TDM_N_CANDIDATES)
                return n;
        return n == 0 ? own : n <= own ? n - 1 : n;
}

bool tdm_outlook_next(struct tdm_outlook *o, uint32_t max_rows, bool idle, bool pipelined, uint64_t now_ns,
                      struct tdm_probe *ret)
{
        o->many_rows = TDM_MIN(MANY_ROWS, max_rows);
        for (; o->at < 2 * TDM_N_CANDIDATES; o->at++) {
                unsigned i = turn(o, o->at / 2);
                bool many = o->at % 2, both;

                if (!is_worth_it(o, i, many, idle))
                        continue;
                both = tdm_placement_uses(candidates[i], TDM_WORKER_NPU) &&
                       tdm_placement_uses(candidates[i], TDM_WORKER_GPU);
                *ret = (struct tdm_probe){ .candidate = i, .many = many, .placement = candidates[i] };
                ret->n_steps = many && both && pipelined && o->many_rows > 1 ? 2 : 1;
                ret->n_rows = many ? o->many_rows / ret->n_steps : 1;
                return true;
        }
        end_round(o, now_ns);
        return false;
}

static void outlook_go_on(struct tdm_outlook *o, uint64_t spent_ns, uint64_t now_ns)
{
        o->at++;
        o->round_ns += spent_ns;
        o->due_ns = now_ns + TDM_MAX((o->urgent ? URGENT_SHARE : GAP_SHARE) * spent_ns, GAP_NS);
}

void tdm_outlook_took(struct tdm_outlook *o, const struct tdm_probe *probe, uint64_t ns, uint64_t held_ns,
                      uint64_t now_ns)
{
        struct tdm_candidate *c = &o->of[probe->candidate];
        uint64_t *took = c->took_ns[probe->many];

        ns = TDM_MAX(ns, UINT64_C(1));
        /* The first probes of all are made again at once, because they also fill caches. */
        if (took[0] == 0 || CHANGED * (double)ns < (double)value(o, probe->candidate, probe->many) ||
            (probe->placement == o->found && (double)ns > CHANGED * (double)value(o, probe->candidate, probe->many)))
                o->again = true;
        if (c->old[probe->many]) {
                memset(took, 0, TDM_N_TIMES * sizeof(*took));
                c->old[probe->many] = false;
                o->again = true;
        }
        memmove(&took[1], &took[0], (TDM_N_TIMES - 1) * sizeof(*took));
        took[0] = ns;
        if (c->took_ns[0][2] > 0 && c->took_ns[1][2] > 0) /* of fewer the shortest may be a disturbed one */
                c->times = (double)value(o, probe->candidate, 1) / (double)value(o, probe->candidate, 0);
        c->at_ns = now_ns;
        outlook_go_on(o, ns + held_ns, now_ns);
}

void tdm_outlook_void(struct tdm_outlook *o, const struct tdm_probe *probe, bool lost, uint64_t now_ns)
{
        o->of[probe->candidate].n_lost += lost;
        if (lost)
                memset(o->of[probe->candidate].took_ns, 0, sizeof(o->of[probe->candidate].took_ns));
        outlook_go_on(o, 0, now_ns);
}

void tdm_outlook_note_step(struct tdm_outlook *o, enum tdm_placement placement, uint32_t n_rows, uint64_t ns,
                           uint64_t now_ns)
{
        double now = (double)ns / (PACE_OVERHEAD_ROWS + n_rows), *mean = &o->pace[placement].now;
        double *base = &o->pace[placement].base;
        bool changed;

        *mean = *mean > 0 ? *mean + PACE_WEIGHT * (now - *mean) : now;
        *base = *base > 0 ? *base : now;
        changed = *mean > SLOWER * *base || *mean < FASTER * *base;
        /* A change that is seen too soon for a round stays a change until then. */
        if (!changed)
                *base += BASE_WEIGHT * (now - *base);
        if (!changed || now_ns < o->alarm_ns + TDM_MAX(ALARM_NS, ALARM_SHARE * o->rounds_ns))
                return;
        *base = *mean;
        for (unsigned i = 0; i < TDM_N_CANDIDATES; i++)
                o->of[i].old[0] = o->of[i].old[1] = true;
        o->urgent = true;
        o->at = 0; /* what this round has seen is old too */
        o->alarm_ns = now_ns;
        o->due_ns = TDM_MIN(o->due_ns, now_ns);
}

/* ---- choices ---- */

static bool meet(enum tdm_placement a, enum tdm_placement b, bool apart)
{
        return !apart || (tdm_placement_uses(a, TDM_WORKER_NPU) && tdm_placement_uses(b, TDM_WORKER_NPU)) ||
               (tdm_placement_uses(a, TDM_WORKER_GPU) && tdm_placement_uses(b, TDM_WORKER_GPU));
}

/* The cost for one more sequence: its own steps, and those of other placements that it waits for in turns. */
static double cost_beside(const struct tdm_outlook *o, unsigned i, const uint32_t *n_on, bool apart)
{
        double sum = cost(o, i, n_on[candidates[i]] + 1);

        for (unsigned k = 0; k < TDM_N_CANDIDATES; k++)
                if (k != i && n_on[candidates[k]] > 0 && pace_is_known(o, k) &&
                    meet(candidates[i], candidates[k], apart))
                        sum += WEIGHT_OF_DECODE * decode_ns(o, k, n_on[candidates[k]]);
        return sum;
}

enum tdm_placement tdm_outlook_choose(const struct tdm_outlook *o, const uint32_t *n_on, bool apart, uint64_t now_ns)
{
        unsigned own = index_of(o->found), best = own;

        if (own == TDM_N_CANDIDATES || !apart || !pace_is_known(o, own) || now_ns - o->of[own].at_ns > STALE_NS)
                return o->found;
        for (unsigned i = 0; i < TDM_N_CANDIDATES; i++)
                if (pace_is_known(o, i) && now_ns - o->of[i].at_ns <= STALE_NS &&
                    cost_beside(o, i, n_on, apart) < cost_beside(o, best, n_on, apart))
                        best = i;
        if (cost_beside(o, best, n_on, apart) < BETTER_BESIDE * cost_beside(o, own, n_on, apart))
                return candidates[best];
        return o->found;
}

void tdm_outlook_describe(const struct tdm_outlook *o, char *text, size_t size)
{
        size_t n = (size_t)snprintf(text, size, "one row, %u rows:", o->many_rows);

        for (unsigned i = 0; i < TDM_N_CANDIDATES && n < size; i++)
                if (pace_is_known(o, i))
                        n += (size_t)snprintf(text + n, size - n, " %s %.2f, %.2f ms;",
                                              tdm_placement_name(candidates[i]), (double)value(o, i, 0) / 1e6,
                                              (double)value(o, i, 1) / 1e6);
        if (n > 0 && n < size && text[n - 1] == ';')
                text[n - 1] = 0;
}
