/* Draft models, against a double of the fleet: every number of right guesses, a draft that is late, kills workers, is
 * unloaded or has no pages, and planted faults. test-random.c has drafts in random schedules.
 *
 * The double draws for all models alike, so a companion whose pages and positions are right guesses right, except where
 * the test lets model 1 draw another token. */
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

static struct world w;

static struct tdm_scheduler_config plain(void)
{
        return (struct tdm_scheduler_config){
                .max_jobs = MAX_JOBS,
                .max_jobs_per_uid = MAX_JOBS,
                .max_pending_bytes = 1 << 20,
                .max_rows = 64,
                .prefill_rows = 16,
                .max_sequences = 8,
                .steps_in_flight = 1,
                .speculate.draft_max = TDM_MAX_GUESSES,
                .speculate.all_guesses = true,
                .placement = TDM_PLACEMENT_GPU, /* of one worker, so that it draws bursts */
                .open_draft = world_open_draft,
                .open_data = &w,
        };
}

static uint32_t n_vocab(void)
{
        return tdm_model_hparams(w.fleet.models[0])->n_vocab;
}

static void drive(void)
{
        w.n_jobs = w.n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++) {
                struct fake_step *s = some_step(&w);

                if (!w.fleet.ready)
                        become_ready(&w);
                else if (s)
                        finish_step(&w, s);
                turn(&w);
        }
        assert_true(all_done(&w));
}

/* Steps of companions may outlive their jobs. */
static void finish_all(void)
{
        struct fake_step *s;

        while ((s = some_step(&w))) {
                finish_step(&w, s);
                turn(&w);
        }
}

static struct client_job *start(const char *draft, uint32_t n_prompt, uint32_t max_tokens, bool penalty)
{
        struct client_job *c = &w.jobs[w.n_arrived++];

        make_prompt(&w, c, n_prompt, max_tokens);
        c->draft = draft;
        c->penalty = penalty;
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        return c;
}

static void check_all(void)
{
        finish_all();
        for (uint32_t i = 0; i < w.n_jobs; i++)
                check_result(&w.jobs[i], n_vocab());
}

static uint32_t n_guesses_right(void)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < w.n_jobs; i++)
                n += (uint32_t)w.jobs[i].job->stats.n_accepted;
        return n;
}

static unsigned one_in;

static bool some_miss(uint32_t position)
{
        return position * 2654435761u / 65536 % one_in == 0;
}

/* ---- patterns ---- */

static void test_patterns(void **state)
{
        struct tdm_scheduler_config config = plain();

        for (uint32_t k = 1; k <= TDM_MAX_GUESSES; k++) {
                uint64_t seen[TDM_MAX_GUESSES + 1] = { 0 };

                config.speculate.draft_max = k;
                for (unsigned round = 0; round < 12; round++) {
                        world_open(&w, 1 + round, 64, 64, &config);
                        one_in = 2 + round;
                        config.placement = round % 4 == 3 ? TDM_PLACEMENT_SPLIT : TDM_PLACEMENT_GPU;
                        w.fleet.misses = round ? some_miss : NULL;
                        for (uint32_t i = 0; i < 4; i++)
                                start("draft", 3 + 20 * i, 200, i % 2);
                        drive();
                        check_all();
                        for (uint32_t i = 0; i < 4; i++) {
                                const struct tdm_job *job = w.jobs[i].job;

                                assert_true(job->stats.n_drafted > 0);
                                assert_true(round || job->stats.n_accepted == job->stats.n_drafted);
                                for (uint32_t n = 0; n < k; n++)
                                        seen[n] += job->stats.drafted_at[n] - job->stats.accepted_at[n];
                                seen[k] += job->stats.accepted_at[k - 1];
                        }
                        world_close(&w);
                }
                for (uint32_t n = 0; n <= k; n++)
                        if (seen[n] == 0)
                                fail_msg("never were just %u of %u guesses right", n, k);
        }
}

/* ---- faults ---- */

static bool goes_wrong(enum fault fault, uint32_t model, uint32_t *ret_right)
{
        struct tdm_scheduler_config config = plain();
        bool wrong = false;

        world_open(&w, 3, 64, 64, &config);
        one_in = 4;
        w.fleet.misses = some_miss;
        w.fleet.fault = fault;
        w.fleet.fault_model = model;
        for (uint32_t i = 0; i < 4; i++)
                start("draft", 3, 100, true);
        drive();
        finish_all();
        for (uint32_t i = 0; i < w.n_jobs; i++)
                wrong = wrong || has_wrong_token(&w.jobs[i], n_vocab());
        *ret_right = n_guesses_right();
        world_close(&w);
        return wrong;
}

/* A fault with the rows of the target shows in its tokens. A fault with the pages of the draft shows in fewer right
 * guesses, and in no token. */
static void test_faults(void **state)
{
        uint32_t right, with_fault;

        assert_false(goes_wrong(FAULT_NONE, 0, &right));
        for (int fault = FAULT_NONE + 1; fault < N_FAULTS; fault++)
                if (!goes_wrong((enum fault)fault, 0, &with_fault))
                        fail_msg("fault %d is not found", fault);
        assert_false(goes_wrong(FAULT_PAGE, 1, &with_fault));
        assert_true(with_fault < right);
}

/* ---- bursts ---- */

/* All guesses of a turn come from one step of the draft, with one plan for all blocks. On both workers at once each
 * guess is a step. */
static void test_bursts(void **state)
{
        struct tdm_scheduler_config config = plain();

        for (unsigned i = 0; i < 2; i++) {
                uint32_t n_steps;

                config.speculate.draft_max = 4;
                config.placement = i ? TDM_PLACEMENT_SPLIT : TDM_PLACEMENT_GPU;
                world_open(&w, 3, 64, 64, &config);
                start("draft", 3, 202, true);
                drive();
                check_all();
                /* 201 tokens after the first one, 5 a step. */
                assert_int_equal(w.jobs[0].job->stats.n_accepted, w.jobs[0].job->stats.n_drafted);
                assert_true(w.jobs[0].job->stats.n_drafted >= 160);
                n_steps = w.fleet.n_submitted - w.fleet.n_passes[0];
                assert_true(w.fleet.n_passes[1] >= 160);
                assert_true(i ? n_steps == w.fleet.n_passes[1] : n_steps <= w.fleet.n_passes[1] / 4 + 4);
                world_close(&w);
        }
}

static void spoil_id(struct tdm_result *r, uint32_t n_vocab)
{
        r->token = n_vocab;
}

static void spoil_none(struct tdm_result *r, uint32_t n_vocab)
{
        r->token = TDM_NO_TOKEN;
}

static void spoil_logprob(struct tdm_result *r, uint32_t n_vocab)
{
        r->logprob = 1;
}

static void spoil_n_top(struct tdm_result *r, uint32_t n_vocab)
{
        r->n_top = TDM_MAX_TOP + 1;
}

/* What a worker returns of a burst is checked like any other result. */
static void test_liars(void **state)
{
        static void (*const spoils[])(struct tdm_result *, uint32_t) = { spoil_id, spoil_none, spoil_logprob,
                                                                         spoil_n_top };
        struct tdm_scheduler_config config = plain();

        for (size_t i = 0; i < TDM_ARRAY_SIZE(spoils); i++) {
                world_open(&w, 3, 64, 64, &config);
                start("draft", 3, 60, true);
                w.n_jobs = 1;
                w.fleet.spoil = spoils[i];
                w.fleet.spoil_bursts = true;
                for (unsigned k = 0; k < 2000 && w.fleet.n_bad[0] + w.fleet.n_bad[1] == 0; k++) {
                        struct fake_step *s = some_step(&w);

                        if (s)
                                finish_step(&w, s);
                        turn(&w);
                }
                assert_int_equal(w.fleet.n_bad[0] + w.fleet.n_bad[1], 1);
                w.fleet.spoil = NULL;
                reset(&w, NULL); /* what the fleet does then */
                drive();
                check_all();
                assert_true(n_guesses_right() > 0);
                world_close(&w);
        }
}

/* ---- a draft that is lost ---- */

static void test_losses(void **state)
{
        struct tdm_scheduler_config config = plain();

        for (unsigned seed = 1; seed <= 20; seed++) {
                uint32_t i;

                world_open(&w, seed, 64, 64, &config);
                for (i = 0; i < 4; i++)
                        start("draft", 30, 150, i % 2);
                w.n_jobs = w.n_arrived;
                for (i = 0; i < 20000 && !all_done(&w); i++) {
                        struct fake_step *s = some_step(&w);

                        if (!w.fleet.ready)
                                become_ready(&w);
                        else if (i % 10 == 9)
                                reset(&w, NULL);
                        else if (s)
                                finish_step(&w, s);
                        turn(&w);
                }
                assert_true(all_done(&w));
                check_all();
                assert_true(n_guesses_right() > 0 && w.jobs[0].job->stats.recoveries > 0);
                world_close(&w);
        }
}

/* Every step of the draft kills its worker, or fails. That happens a few times, and then the jobs go on without. */
static void test_hostile(void **state)
{
        struct tdm_scheduler_config config = plain();

        for (unsigned kind = 0; kind < 2; kind++) {
                world_open(&w, 2, 64, 64, &config);
                w.fleet.draft_kills = kind == 0;
                w.fleet.draft_breaks = kind == 1;
                for (uint32_t i = 0; i < 4; i++)
                        start("draft", 30, 60, false);
                drive();
                check_all();
                assert_int_equal(n_guesses_right(), 0);
                assert_int_equal(w.jobs[0].job->stats.recoveries, kind == 0 ? 3 : 0);
                for (uint32_t i = 0; i < 4; i++)
                        assert_int_equal(w.jobs[i].job->end, TDM_JOB_END_LENGTH);
                world_close(&w);
        }
}

static void test_unloaded(void **state)
{
        struct tdm_scheduler_config config = plain();
        uint32_t n_in_steps = 0;

        for (unsigned seed = 1; seed <= 40; seed++) {
                bool seen = false;

                world_open(&w, seed, 64, 64, &config);
                for (uint32_t i = 0; i < 3; i++)
                        start("draft", 30, 100, false);
                w.n_jobs = w.n_arrived;
                for (uint32_t i = 0; i < 20000 && !all_done(&w); i++) {
                        struct fake_step *s = some_step(&w);

                        /* Also while the draft has a step in flight. */
                        if (i == 6 + seed % 10) {
                                w.fleet.models[1]->state = TDM_MODEL_GONE;
                                tdm_scheduler_on_model_changed(w.s, w.fleet.models[1]);
                                n_in_steps += w.fleet.models[1]->use.n_steps > 0;
                                if (w.fleet.models[1]->use.n_steps == 0)
                                        tdm_model_leave(w.fleet.models[1]); /* else with the last of them */
                        } else if (s)
                                finish_step(&w, s);
                        turn(&w);
                        seen = seen || w.jobs[0].job->stats.unguessed == TDM_UNGUESSED_DRAFT_LOST;
                }
                assert_true(all_done(&w));
                assert_true(seen);
                check_all();
                world_close(&w);
        }
        assert_true(n_in_steps > 0 && n_in_steps < 40);
}

/* A step of the draft that never ends holds no job. */
static void test_late(void **state)
{
        struct tdm_scheduler_config config = plain();
        uint32_t n_lags = 0, i;

        config.steps_in_flight = 2;
        world_open(&w, 2, 64, 64, &config);
        start("draft", 10, 60, false);
        w.n_jobs = w.n_arrived;
        for (i = 0; i < 20000 && !all_done(&w); i++) {
                struct fake_step *s = w.fleet.steps;

                while (s < w.fleet.steps + TDM_ARRAY_SIZE(w.fleet.steps) && !(s->used && s->model == w.fleet.models[0]))
                        s++;
                if (s < w.fleet.steps + TDM_ARRAY_SIZE(w.fleet.steps))
                        finish_step(&w, s);
                else {
                        n_lags++;
                        tdm_companion_stop_waiting(w.s, UINT64_MAX);
                        tdm_scheduler_run(w.s);
                }
                turn(&w);
        }
        assert_true(all_done(&w));
        assert_true(n_lags > 0);
        check_all();
        assert_int_equal(n_guesses_right(), 0);
        world_close(&w);
}

/* ---- pages ---- */

static uint32_t run_on_few_pages(const char *draft, bool *ret_short)
{
        struct tdm_scheduler_config config = plain();
        uint32_t n_evictions = 0;

        *ret_short = false;
        /* The longest of them alone needs ten pages. */
        world_open(&w, 5, 14, 64, &config);
        for (uint32_t i = 0; i < 3; i++)
                start(draft, 30 + i, 200, false);
        w.n_jobs = w.n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++) {
                struct fake_step *s = some_step(&w);

                for (uint32_t k = 0; k < w.n_jobs; k++)
                        *ret_short = *ret_short || w.jobs[k].job->stats.unguessed == TDM_UNGUESSED_DRAFT_MEMORY;
                if (s)
                        finish_step(&w, s);
                turn(&w);
        }
        assert_true(all_done(&w));
        check_all();
        for (uint32_t i = 0; i < w.n_jobs; i++)
                n_evictions += w.jobs[i].job->stats.evictions;
        world_close(&w);
        return n_evictions;
}

/* A model that guesses for itself shares its cache with its companions. They push no job out. */
static void test_few_pages(void **state)
{
        bool with, without;
        uint32_t n = run_on_few_pages(NULL, &without);

        assert_true(n > 0);
        assert_true(run_on_few_pages("self", &with) <= n);
        assert_true(with && !without);
}

/* All places are taken by companions when a job arrives. */
static void test_places(void **state)
{
        struct tdm_scheduler_config config = plain();

        config.max_sequences = 4;
        world_open(&w, 6, 64, 64, &config);
        for (uint32_t i = 0; i < 2; i++)
                start("self", 10, 100, false);
        w.n_jobs = w.n_arrived;
        for (uint32_t i = 0; i < 20 && w.s->n_companions < 2; i++) {
                struct fake_step *s = some_step(&w);

                if (s)
                        finish_step(&w, s);
                turn(&w);
        }
        assert_int_equal(w.s->n_companions, 2);
        for (uint32_t i = 0; i < 2; i++)
                start("self", 10, 100, false);
        drive();
        check_all();
        assert_int_equal(w.s->n_companions, 0);
        world_close(&w);
}

/* ---- cost ---- */

static bool always(uint32_t position)
{
        return true;
}

/* The draft's first steps are slow. */
static bool slow_at_first(uint32_t position)
{
        if (position > 60)
                w.fleet.step_ns[1] = 10000;
        return false;
}

/* beside: tokens of another job that has no draft; 0: there is none. */
static void run_for_cost(uint64_t draft_ns, bool (*misses)(uint32_t position), uint64_t row_ns, uint32_t beside)
{
        struct tdm_scheduler_config config = plain();

        config.speculate.all_guesses = false;
        config.clock_ns = world_now;
        world_open(&w, 7, 200, 200, &config);
        w.fleet.step_ns[0] = 1000000;
        w.fleet.row_ns[0] = row_ns;
        w.fleet.step_ns[1] = draft_ns;
        w.fleet.row_ns[1] = 100;
        w.fleet.models[0]->metadata->weights_bytes = 1000000;
        w.fleet.models[1]->metadata->weights_bytes = 10000;
        w.fleet.misses = misses;
        start("draft", 5, 250, false);
        if (beside)
                start(NULL, 5, beside, false);
        drive();
        check_all();
}

static bool every_other(uint32_t position)
{
        w.fleet.several_ns[0] = 250000;
        return position % 2 == 0;
}

/* The second row takes a quarter of a step, and further ones nothing, as on a GPU. The draft is right half of the time.
 * Where there are two rows, unlikely ones go with them. */
static void test_rows_that_cost_nothing(void **state)
{
        const struct tdm_job *job;

        run_for_cost(1000, every_other, 100, 0);
        job = w.jobs[0].job;
        assert_true(job->stats.n_accepted > 80);
        assert_true(job->stats.n_drafted > 3 * (250 - job->stats.n_accepted));
        world_close(&w);
}

static bool every_fifth(uint32_t position)
{
        w.fleet.is_sure = true;
        return position % 5 == 0;
}

/* A burst ends behind the token of which the draft is not sure: four right ones and this one are five passes. Without
 * an end there are over 600. */
static void test_ends(void **state)
{
        const struct tdm_job *job;

        run_for_cost(100000, every_fifth, 1000, 0);
        job = w.jobs[0].job;
        assert_true(job->stats.n_accepted > 180);
        assert_true(w.fleet.n_passes[1] >= job->stats.n_accepted && w.fleet.n_passes[1] <= 290);
        world_close(&w);
}

static void test_cost(void **state)
{
        run_for_cost(10000, NULL, 1000, 0);
        assert_true(w.jobs[0].job->stats.n_accepted > 150);
        world_close(&w);

        /* A step of the draft takes as long as one of the target. */
        run_for_cost(1000000, NULL, 1000, 0);
        assert_true(w.jobs[0].job->stats.n_drafted < 40);
        world_close(&w);

        /* Only its first steps do. */
        run_for_cost(1000000, slow_at_first, 1000, 0);
        assert_true(w.jobs[0].job->stats.n_accepted > 60);
        world_close(&w);

        /* The draft is never right. */
        run_for_cost(100000, always, 1000, 0);
        assert_int_equal(w.jobs[0].job->stats.n_accepted, 0);
        assert_true(w.jobs[0].job->stats.n_drafted < 40);
        world_close(&w);

        /* A row costs a tenth of a step. That pays for a job alone, and a job beside it would wait for it. */
        run_for_cost(1000, NULL, 100000, 0);
        assert_true(w.jobs[0].job->stats.n_accepted > 150);
        world_close(&w);
        run_for_cost(1000, NULL, 100000, 250);
        assert_true(w.jobs[0].job->stats.n_drafted < 20);
        world_close(&w);
        run_for_cost(1000, NULL, 1000, 250);
        assert_true(w.jobs[0].job->stats.n_accepted > 100);
        world_close(&w);

        /* The other job ends in the midst. In company it was looked at with each eighth token, alone with each. */
        run_for_cost(1000, NULL, 100000, 125);
        assert_true(w.jobs[0].job->stats.n_accepted >= 75 && w.jobs[0].job->stats.n_accepted <= 120);
        world_close(&w);
}

/* A draft that reads a prompt in a small part of a step is waited for: already the second step has all guesses. The
 * first job shows how long it takes. */
static void test_reads_soon(void **state)
{
        for (unsigned slow = 0; slow < 2; slow++) {
                struct tdm_scheduler_config config = plain();
                struct client_job *c;

                config.speculate.all_guesses = false;
                config.clock_ns = world_now;
                world_open(&w, 7, 200, 200, &config);
                w.fleet.step_ns[0] = 1000000;
                w.fleet.row_ns[0] = 1000;
                w.fleet.step_ns[1] = 10000;
                w.fleet.row_ns[1] = slow ? 10000 : 100;
                w.fleet.models[0]->metadata->weights_bytes = 1000000;
                w.fleet.models[1]->metadata->weights_bytes = 10000;
                start("draft", 60, 100, false);
                drive();
                start("draft", 60, 100, false);
                w.n_jobs = w.n_arrived;
                c = &w.jobs[1];
                for (uint32_t i = 0; i < 1000 && c->job->stats.n_drafted == 0; i++) {
                        struct fake_step *s = some_step(&w);

                        if (s)
                                finish_step(&w, s);
                        turn(&w);
                }
                if (!slow)
                        assert_true(c->job->stats.n_drafted > 1);
                else
                        assert_int_equal(c->job->stats.n_drafted, 1);
                drive();
                check_all();
                world_close(&w);
        }
}

/* ---- names ---- */

static void test_names(void **state)
{
        static const char *const drafts[] = { "fake=nothing", NULL };
        struct tdm_scheduler_config config = plain();
        struct tdm_job_params p = { .kind = TDM_JOB_GENERATE, .ids = (const uint32_t[]){ 400, 401 }, .n_ids = 2 };
        struct tdm_error err;
        struct tdm_job *job;

        config.drafts = drafts;
        world_open(&w, 1, 64, 64, &config);
        p.options = (struct tdm_job_options){ .max_tokens = 3, .draft = "other" };
        assert_int_equal(tdm_job_new(&job, &p, &err), 0);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_NO_MODEL);
        assert_string_equal(err.message, "draft: no model is named other");
        tdm_job_unref(job);
        p.options = (struct tdm_job_options){ .max_tokens = 3, .speculation = TDM_SPECULATION_DRAFT };
        assert_int_equal(tdm_job_new(&job, &p, &err), 0);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_NO_MODEL);
        tdm_job_unref(job);
        /* What the configuration names and the job does not, stops no job. */
        start(NULL, 3, 20, false);
        w.jobs[0].job->request.options.speculation = TDM_SPECULATION_AUTO;
        drive();
        check_all();
        world_close(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_patterns),   cmocka_unit_test(test_faults),
                cmocka_unit_test(test_losses),     cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_unloaded),   cmocka_unit_test(test_late),
                cmocka_unit_test(test_few_pages),  cmocka_unit_test(test_places),
                cmocka_unit_test(test_cost),       cmocka_unit_test(test_rows_that_cost_nothing),
                cmocka_unit_test(test_reads_soon), cmocka_unit_test(test_names),
                cmocka_unit_test(test_bursts),     cmocka_unit_test(test_ends),
                cmocka_unit_test(test_liars),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
