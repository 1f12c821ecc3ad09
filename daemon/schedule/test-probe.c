/* The scheduler on two devices that differ in bits: what new jobs take, what running ones keep, and what probes cost
 * and may not break. The fleet is a double; a step takes time by world_clock. */
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

#define MS TDM_NSEC_PER_MSEC

static const struct tdm_scheduler_config plain = {
        .max_jobs = 20,
        .max_jobs_per_uid = 20,
        .max_pending_bytes = 1 << 20,
        .max_rows = 32,
        .prefill_rows = 16,
        .max_sequences = 12,
        .steps_in_flight = 0,
        .clock_ns = world_now,
};

static void open_world(struct world *w, uint64_t npu_ns, uint64_t gpu_ns, uint32_t pages)
{
        world_clock = 1;
        world_open(w, 1, pages, pages, &plain);
        w->fleet.differ = true;
        w->fleet.found = TDM_PLACEMENT_GPU;
        w->fleet.block_ns[TDM_WORKER_NPU] = npu_ns;
        w->fleet.block_ns[TDM_WORKER_GPU] = gpu_ns;
        w->fleet.block_row_ns[TDM_WORKER_NPU] = npu_ns / 20;
        w->fleet.block_row_ns[TDM_WORKER_GPU] = gpu_ns / 20;
}

static struct client_job *add_job(struct world *w, uint32_t max_tokens, enum tdm_placement placement)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, 3, max_tokens);
        submit(w, c, 0, 1, TDM_JOB_INTERACTIVE, placement, 0);
        w->n_jobs = w->n_arrived;
        turn(w);
        return c;
}

/* The placement that a job keeps. */
static enum tdm_placement kept(struct world *w, const struct client_job *c)
{
        struct sequence *q;

        tdm_list_for_each(q, &w->s->sequences, struct sequence, node) {
                if (q->job == c->job)
                        return q->kept;
        }
        fail_msg("the job is over");
        return TDM_PLACEMENT_ANY;
}

static const struct lane *first_lane(struct world *w)
{
        struct lane *lane;

        tdm_list_for_each(lane, &w->s->lanes, struct lane, node)
                return lane;
        return NULL;
}

/* The oldest step ends, or time passes where there is none. */
static void one_step(struct world *w)
{
        struct fake_step *first = NULL;

        if (!w->fleet.ready)
                become_ready(w);
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(w->fleet.steps); i++) {
                struct fake_step *s = &w->fleet.steps[i];

                if (s->used && (!first || s->step_id < first->step_id))
                        first = s;
        }
        if (first)
                finish_step(w, first);
        else {
                world_clock += MS;
                tdm_scheduler_kick(w->s);
        }
        turn(w);
}

static void run_until(struct world *w, uint64_t until_ns)
{
        while (world_clock < until_ns)
                one_step(w);
}

static void finish(struct world *w)
{
        for (uint32_t i = 0; i < 40000 && !all_done(w); i++)
                one_step(w);
        for (uint32_t i = 0; i < 8 && w->s->n_in_flight > 0; i++) /* a probe may be on its way */
                one_step(w);
        for (uint32_t i = 0; i < w->n_jobs; i++)
                check_result(&w->jobs[i], tdm_model_hparams(w->fleet.models[0])->n_vocab);
        world_close(w);
}

/* One device gets half its speed while a job runs: the job stays, a new one takes the other device. */
static void test_moves(void **state)
{
        struct client_job *first, *second, *third;
        struct world w;

        open_world(&w, 300000, 200000, 64);
        add_job(&w, 10, TDM_PLACEMENT_ANY);
        run_until(&w, 5000 * MS);
        assert_true(w.jobs[0].done && w.fleet.n_probes >= 24);
        first = add_job(&w, 300, TDM_PLACEMENT_ANY);
        assert_int_equal(kept(&w, first), TDM_PLACEMENT_GPU);
        while (first->n_got < 20)
                one_step(&w);
        assert_int_equal(w.fleet.found, TDM_PLACEMENT_GPU);

        w.fleet.block_ns[TDM_WORKER_GPU] *= 3;
        w.fleet.block_row_ns[TDM_WORKER_GPU] *= 3;
        for (uint64_t until = world_clock + 5000 * MS; world_clock < until && w.fleet.found == TDM_PLACEMENT_GPU;)
                one_step(&w);
        assert_int_equal(w.fleet.found, TDM_PLACEMENT_NPU);
        assert_false(first->done);
        assert_int_equal(kept(&w, first), TDM_PLACEMENT_GPU);
        second = add_job(&w, 20, TDM_PLACEMENT_ANY);
        third = add_job(&w, 20, TDM_PLACEMENT_GPU); /* one that has asked for it */
        one_step(&w);
        assert_int_equal(kept(&w, second), TDM_PLACEMENT_NPU);
        assert_int_equal(kept(&w, third), TDM_PLACEMENT_ANY);
        finish(&w);
}

/* Short jobs, one after the other, are probed beside as long ones are. */
static void test_short_jobs(void **state)
{
        struct client_job *job;
        struct world w;

        open_world(&w, 30000, 20000, 64);
        for (unsigned i = 0; i < 20; i++) {
                uint64_t begin = world_clock;

                job = add_job(&w, 220, TDM_PLACEMENT_ANY);
                while (!job->done)
                        one_step(&w);
                assert_true(i > 0 || (world_clock - begin > 50 * MS && world_clock - begin < 100 * MS));
        }
        assert_true(w.fleet.n_probes >= 12);
        finish(&w);
}

/* The least that a probe of one row took on the NPU's worker, while a job ran on the other one. */
static uint64_t probed_ns(uint64_t wake_ns)
{
        const struct tdm_candidate *npu;
        uint64_t least = UINT64_MAX;
        struct world w;

        open_world(&w, 300000, 200000, 64);
        w.fleet.wake_ns[TDM_WORKER_NPU] = wake_ns;
        add_job(&w, 300, TDM_PLACEMENT_ANY);
        while (first_lane(&w)->outlook.n_rounds < 2)
                one_step(&w);
        npu = &first_lane(&w)->outlook.of[1];
        assert_true(npu->took_ns[0][0] > 0);
        for (unsigned k = 0; k < TDM_N_TIMES && npu->took_ns[0][k] > 0; k++)
                least = TDM_MIN(least, npu->took_ns[0][k]);
        finish(&w);
        return least;
}

/* What it takes to wake a worker is not what its steps take. */
static void test_wakes(void **state)
{
        assert_int_equal(probed_ns(3 * MS), probed_ns(0));
}

/* Two devices that are about equally fast: many jobs use both, each its own for all of its life. */
static void test_side_by_side(void **state)
{
        enum tdm_placement of[10];
        struct client_job *jobs[10];
        unsigned n_npu = 0, n_gpu = 0;
        struct world w;

        open_world(&w, 110000, 100000, 96);
        w.fleet.block_row_ns[TDM_WORKER_NPU] = 27500;
        w.fleet.block_row_ns[TDM_WORKER_GPU] = 25000;
        add_job(&w, 300, TDM_PLACEMENT_ANY);
        while (first_lane(&w)->outlook.n_rounds < 2)
                one_step(&w);
        for (unsigned i = 0; i < 10; i++) {
                jobs[i] = add_job(&w, 60, TDM_PLACEMENT_ANY);
                while (kept(&w, jobs[i]) == TDM_PLACEMENT_ANY) /* a probe goes first */
                        one_step(&w);
                of[i] = kept(&w, jobs[i]);
                n_npu += of[i] == TDM_PLACEMENT_NPU;
                n_gpu += of[i] == TDM_PLACEMENT_GPU;
                one_step(&w);
        }
        assert_true(n_npu >= 3 && n_gpu >= 2);
        reset(&w, NULL);
        for (unsigned i = 0; i < 200; i++)
                one_step(&w);
        for (unsigned i = 0; i < 10; i++)
                if (!jobs[i]->done)
                        assert_int_equal(kept(&w, jobs[i]), of[i]);
        finish(&w);
}

/* Probes that kill a worker are tried three times, are nobody's fault, and the jobs go on. */
static void test_deadly(void **state)
{
        struct client_job *job;
        struct world w;

        open_world(&w, 150000, 100000, 64);
        w.fleet.probes_kill = 1 + TDM_WORKER_NPU;
        job = add_job(&w, 300, TDM_PLACEMENT_ANY);
        for (uint64_t until = 60000 * MS; !job->done && world_clock < until;)
                one_step(&w);
        assert_true(job->done);
        assert_int_equal(job->end, TDM_JOB_END_LENGTH);
        /* Five placements use that worker. */
        assert_true(w.fleet.epoch > 3 && w.fleet.epoch <= 1 + 15);
        finish(&w);
}

/* With all pages taken there is no probe; with all places taken there is. A machine at rest is not probed. */
static void test_no_room(void **state)
{
        struct world w;
        uint32_t n;

        open_world(&w, 150000, 100000, 24);
        for (unsigned i = 0; i < plain.max_sequences; i++)
                add_job(&w, 60, TDM_PLACEMENT_ANY); /* two pages each */
        while (w.jobs[0].n_got < 35)
                one_step(&w);
        n = w.fleet.n_probes;
        while (w.jobs[0].n_got < 58)
                one_step(&w);
        assert_int_equal(w.fleet.n_probes, n);
        while (!all_done(&w))
                one_step(&w);
        run_until(&w, world_clock + 9000 * MS);
        assert_true(w.fleet.n_probes > n + 10);
        run_until(&w, world_clock + 5000 * MS);
        n = w.fleet.n_probes;
        run_until(&w, world_clock + 60000 * MS);
        assert_int_equal(w.fleet.n_probes, n);
        finish(&w);
}

/* While a worker is away for long, jobs go on elsewhere, those that came meanwhile stay there. */
static void test_away(void **state)
{
        struct client_job *a, *b;
        struct world w;

        open_world(&w, 100000, 300000, 64);
        w.fleet.found = TDM_PLACEMENT_NPU;
        a = add_job(&w, 100, TDM_PLACEMENT_ANY);
        while (a->n_got < 5)
                one_step(&w);
        assert_int_equal(kept(&w, a), TDM_PLACEMENT_NPU);
        reset(&w, NULL);
        w.fleet.down[TDM_WORKER_NPU] = true;
        become_ready(&w);
        b = add_job(&w, 100, TDM_PLACEMENT_ANY);
        while (b->n_got < 5)
                one_step(&w);
        assert_true(a->n_got > 5);
        assert_int_equal(kept(&w, b), TDM_PLACEMENT_GPU);
        reset(&w, NULL);
        w.fleet.down[TDM_WORKER_NPU] = false;
        become_ready(&w);
        assert_int_equal(kept(&w, a), TDM_PLACEMENT_NPU);
        finish(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_moves),   cmocka_unit_test(test_side_by_side), cmocka_unit_test(test_deadly),
                cmocka_unit_test(test_no_room), cmocka_unit_test(test_away),         cmocka_unit_test(test_short_jobs),
                cmocka_unit_test(test_wakes),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
