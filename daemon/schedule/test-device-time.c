/* Shares of the device's time, by a clock that only steps move: a load of the machine changes nothing here. */
#include "daemon/schedule/depth.h"
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

static const struct tdm_scheduler_config plain = {
        .max_jobs = 8,
        .max_jobs_per_uid = 6,
        .max_pending_bytes = 1 << 20,
        .max_rows = 32,
        .prefill_rows = 16,
        .max_sequences = 4,
        .steps_in_flight = 1,
};

static void drive(struct world *w)
{
        w->n_jobs = w->n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(w); i++) {
                finish_step(w, some_step(w));
                turn(w);
        }
        assert_true(all_done(w));
}

/* Three users with models of very different cost, each with work all the time, one of them with four times as many
 * jobs: each gets a third of the device's time, and no step holds the device for long. */
static void share_device_time(bool prompts)
{
        static const uint64_t step_ns[] = { 1000000, 5000000, 50000000 }, row_ns[] = { 100000, 2000000, 60000000 };
        struct tdm_scheduler_config config = plain;
        uint64_t all = 0, begin[N_WORLD_MODELS];
        uint32_t next[6] = { 0 };
        struct world w;

        config.max_rows = config.prefill_rows = 32;
        config.clock_ns = world_now;
        world_clock = TDM_NSEC_PER_SEC;
        world_open(&w, 4, 64, 64, &config);
        for (uint32_t m = 0; m < N_WORLD_MODELS; m++) {
                w.fleet.step_ns[m] = step_ns[m];
                w.fleet.row_ns[m] = row_ns[m];
        }
        for (bool measuring = false; world_clock < 300 * TDM_NSEC_PER_SEC;) {
                struct fake_step *s;

                /* Jobs 0 to 3 are the first user's, of the cheapest model; when one ends, another begins. */
                for (uint32_t i = 0; i < TDM_ARRAY_SIZE(next); i++) {
                        struct client_job *c = &w.jobs[i];

                        if (c->job && !c->done)
                                continue;
                        tdm_job_unref(c->job);
                        make_prompt(&w, c, prompts ? 250 : 4, prompts ? 2 : 60);
                        submit(&w, c, i < 4 ? 0 : i - 3, i < 4 ? 100 : 97 + i, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY,
                               0);
                        w.n_arrived = TDM_MAX(w.n_arrived, i + 1);
                }
                turn(&w);
                s = some_step(&w);
                assert_non_null(s);
                finish_step(&w, s);
                if (!measuring && world_clock > 20 * TDM_NSEC_PER_SEC) {
                        measuring = true;
                        w.fleet.longest_ns = 0;
                        memcpy(begin, w.fleet.took_ns, sizeof(begin));
                }
        }
        for (uint32_t m = 0; m < N_WORLD_MODELS; m++)
                all += w.fleet.took_ns[m] - begin[m];
        for (uint32_t m = 0; m < N_WORLD_MODELS; m++) {
                double share = (double)(w.fleet.took_ns[m] - begin[m]) / (double)all;

                assert_true(share > 0.85 / 3 && share < 1.15 / 3);
        }
        assert_true(w.fleet.longest_ns <= 300 * TDM_NSEC_PER_MSEC);
        drive(&w);
        world_close(&w);
}

static void test_of_prompts(void **state)
{
        share_device_time(true);
}

static void test_of_answers(void **state)
{
        share_device_time(false);
}

/* When the step that is in flight will be done; now, if none is. */
static uint64_t end_of_step(struct world *w)
{
        const struct fake_step *s = some_step(w);
        const struct tdm_step_head *head;
        uint32_t m;

        if (!s)
                return world_clock;
        m = s->model->id - 1;
        head = tdm_steps_head(s->model->steps->base, &s->model->layout, s->slot);
        return world_clock + w->fleet.step_ns[m] + w->fleet.row_ns[m] * head->n_rows;
}

/* Shares of three users whose models cost what 270m, tale and sprout cost on two cores. Each user keeps n_each prompts
 * outstanding, and begins the next one some time after one has ended, as a client does that has to be told first. */
static void share_with_clients(uint32_t n_each, uint64_t client_ns, double ret[3])
{
        static const uint64_t step_ns[] = { 2000000, 300000, 100000 }, row_ns[] = { 781000, 97000, 19300 };
        struct tdm_scheduler_config config = plain;
        uint64_t all = 0, begin[3] = { 0 }, due[MAX_JOBS] = { 0 };
        struct world w;

        config.max_rows = config.prefill_rows = 320; /* a prompt and a part of the next, as 512 and 400 */
        config.max_sequences = config.max_jobs = config.max_jobs_per_uid = MAX_JOBS;
        config.clock_ns = world_now;
        world_clock = TDM_NSEC_PER_SEC;
        world_open(&w, 4, 400, 400, &config);
        memcpy(w.fleet.step_ns, step_ns, sizeof(step_ns));
        memcpy(w.fleet.row_ns, row_ns, sizeof(row_ns));
        while (world_clock < 60 * TDM_NSEC_PER_SEC) {
                uint64_t end = end_of_step(&w);

                for (uint32_t i = 0; i < 3 * n_each; i++) {
                        struct client_job *c = &w.jobs[i];

                        if (c->done && due[i] == 0)
                                due[i] = world_clock + client_ns;
                        if ((c->job && !c->done) || due[i] > end)
                                continue;
                        due[i] = 0;
                        tdm_job_unref(c->job);
                        make_prompt(&w, c, 250, 1);
                        submit(&w, c, i % 3, 100 + i % 3, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
                        w.n_arrived = TDM_MAX(w.n_arrived, i + 1);
                }
                turn(&w);
                if (some_step(&w))
                        finish_step(&w, some_step(&w));
                else
                        world_clock += TDM_NSEC_PER_MSEC / 10;
                if (begin[0] == 0 && world_clock > 20 * TDM_NSEC_PER_SEC)
                        memcpy(begin, w.fleet.took_ns, sizeof(begin));
        }
        for (uint32_t m = 0; m < 3; m++)
                all += w.fleet.took_ns[m] - begin[m];
        for (uint32_t m = 0; m < 3; m++)
                ret[m] = (double)(w.fleet.took_ns[m] - begin[m]) / (double)all;
        drive(&w);
        world_close(&w);
}

/* A user has its share as long as a job of it waits when a step ends. With two jobs that is not so: a step takes both
 * of a cheap model, and the device goes to others for up to a quarter of a second before the client comes back. */
static void test_and_clients(void **state)
{
        double share[3];

        for (uint32_t n_each = 4; n_each <= 8; n_each += 4) {
                for (uint64_t ms = 0; ms <= 8; ms += 8) {
                        share_with_clients(n_each, ms * TDM_NSEC_PER_MSEC, share);
                        for (uint32_t m = 0; m < 3; m++)
                                assert_true(share[m] > 0.95 / 3 && share[m] < 1.05 / 3);
                }
        }
        share_with_clients(2, 6 * TDM_NSEC_PER_MSEC, share);
        assert_true(share[2] > 0.1 && share[0] < 0.5 && share[1] < 0.5);
}

/* A user who leaves for a moment after each job is not new each time. */
static void test_comes_and_goes(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct client_job *slow, *quick[2];
        struct world w;

        config.clock_ns = world_now;
        world_clock = TDM_NSEC_PER_SEC;
        world_open(&w, 4, 64, 64, &config);
        w.fleet.row_ns[0] = 100000;
        w.fleet.row_ns[1] = 100000000; /* a thousand times as much */
        slow = &w.jobs[0];
        quick[0] = &w.jobs[1];
        quick[1] = &w.jobs[2];
        w.n_arrived = 3;
        while (world_clock < 60 * TDM_NSEC_PER_SEC) {
                for (unsigned i = 0; i < 2; i++) {
                        if (quick[i]->job && !quick[i]->done)
                                continue;
                        tdm_job_unref(quick[i]->job);
                        make_prompt(&w, quick[i], 8, 150 + 80 * i);
                        submit(&w, quick[i], 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
                }
                if (!slow->job || slow->done) {
                        tdm_job_unref(slow->job);
                        make_prompt(&w, slow, 1, 1);
                        submit(&w, slow, 1, 2, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
                }
                turn(&w);
                finish_step(&w, some_step(&w));
                turn(&w);
        }
        assert_true((double)w.fleet.took_ns[0] > 0.85 * (double)w.fleet.took_ns[1]);
        drive(&w);
        world_close(&w);
}

/* What a step of rows costs that look at `depth` positions, in rows that look at none. */
static double cost_at(uint32_t n_rows, uint32_t depth, uint32_t fixed)
{
        return n_rows * ((double)depth + fixed) / fixed;
}

/* Rows times positions bound a step that goes on far behind what was learned: it costs no more than twice what was
 * right there, whatever the fixed part of a row is, from the one that is taken for it on. Steps that follow each other
 * are left alone. */
static void test_depth(void **state)
{
        static const uint32_t depths[] = { 0, 500, 4096, 20000, 100000, 1000000 };

        assert_int_equal(tdm_rows_at_depth(512, 0, 512), 512);
        assert_int_equal(tdm_rows_at_depth(512, 99488, 100000), 512);
        assert_int_equal(tdm_rows_at_depth(512, 100000, 0), 512); /* learned deep: no more rows than that */
        assert_int_equal(tdm_rows_at_depth(512, 0, 100000), 40);
        assert_int_equal(tdm_rows_at_depth(1, 0, 1000000), 1);
        assert_int_equal(tdm_rows_at_depth(UINT32_MAX, UINT32_MAX, UINT32_MAX), UINT32_MAX);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(depths); i++)
                for (size_t k = 0; k < TDM_ARRAY_SIZE(depths); k++)
                        for (uint32_t fixed = TDM_DEPTH_FIXED; fixed <= 64 * TDM_DEPTH_FIXED; fixed *= 8) {
                                uint32_t n = tdm_rows_at_depth(512, depths[i], depths[k]);

                                assert_true(n >= 1 && n <= 512);
                                assert_true(n == 1 ||
                                            cost_at(n, depths[k], fixed) <= 2.001 * cost_at(512, depths[i], fixed));
                        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_depth),          cmocka_unit_test(test_of_prompts),
                cmocka_unit_test(test_of_answers),     cmocka_unit_test(test_and_clients),
                cmocka_unit_test(test_comes_and_goes),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
