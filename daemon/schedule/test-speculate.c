/* Guesses, against a double of the fleet: every pattern of right and wrong ones, planted faults, the choice of how
 * many. test-random.c has them in random schedules. */
#include "daemon/schedule/test-world.h"

#include <math.h>

#include "common/log.h"
#include "common/sigbus.h"

static const struct tdm_scheduler_config plain = {
        .max_jobs = MAX_JOBS,
        .max_jobs_per_uid = MAX_JOBS,
        .max_pending_bytes = 1 << 20,
        .max_rows = 64,
        .prefill_rows = 16,
        .max_sequences = 4,
        .steps_in_flight = 1,
        .speculate.draft_max = TDM_MAX_GUESSES,
};

static uint32_t n_vocab(const struct world *w)
{
        return tdm_model_hparams(w->fleet.models[0])->n_vocab;
}

static void drive(struct world *w)
{
        w->n_jobs = w->n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(w); i++) {
                struct fake_step *s = some_step(w);

                if (!w->fleet.ready)
                        become_ready(w);
                else if (s)
                        finish_step(w, s);
                turn(w);
        }
        assert_true(all_done(w));
}

static struct client_job *add_job(struct world *w, uint32_t n_prompt, uint32_t max_tokens)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, n_prompt, max_tokens);
        return c;
}

static void start(struct world *w, struct client_job *c)
{
        submit(w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
}

/* ---- patterns ---- */

static uint32_t script_n, script_right;
static uint32_t seen[TDM_MAX_GUESSES + 1][TDM_MAX_GUESSES + 1]; /* guesses of a step, right ones */
static const struct tdm_job *seen_job;
static uint32_t seen_ids, seen_n;

static uint32_t right_one(const struct tdm_job *job, const uint32_t *ids, uint32_t n)
{
        return world_next(ids, n, job->request.sampling.seed, job->request.sampling.repeat_penalty != 1,
                          tdm_model_hparams(job->model)->n_vocab);
}

/* All pairs of a number and a number of right ones, in turn. What became of the last is seen in the job's length. */
static uint32_t script(void *userdata, const struct tdm_job *job, uint32_t most, uint32_t *ret)
{
        uint32_t ids[2 * N_CTX], n_ids = job->n_ids, n;

        if (seen_job == job && seen_n > 0) {
                uint32_t n_right = job->n_ids - seen_ids - 1;

                assert_true(n_right <= seen_n);
                seen[seen_n][n_right]++;
        }
        if (++script_right > script_n) {
                script_right = 0;
                script_n = script_n % TDM_MAX_GUESSES + 1;
        }
        n = TDM_MIN(script_n, most);
        memcpy(ids, job->ids, n_ids * sizeof(*ids));
        for (uint32_t i = 0; i < n; i++, n_ids++) {
                ids[n_ids] = right_one(job, ids, n_ids);
                ret[i] = i == script_right ? 300 + (ids[n_ids] - 299) % 100 : ids[n_ids];
        }
        seen_job = job;
        seen_ids = job->n_ids;
        seen_n = n;
        return n;
}

static void test_patterns(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.speculate.guess = script;
        script_n = script_right = seen_n = 0;
        memset(seen, 0, sizeof(seen));
        for (unsigned round = 0; round < 8; round++) {
                world_open(&w, 1 + round, 64, 64, &config);
                for (uint32_t i = 0; i < 4; i++) {
                        struct client_job *c = add_job(&w, 3 + i, 250);

                        c->penalty = i % 2;
                        seen_n = 0; /* a new job may have the address of an old one */
                        start(&w, c);
                        drive(&w);
                        check_result(c, n_vocab(&w));
                        assert_true(c->job->stats.n_accepted > 0 && c->job->stats.n_accepted < c->job->stats.n_drafted);
                }
                world_close(&w);
        }
        for (uint32_t n = 1; n <= TDM_MAX_GUESSES; n++)
                for (uint32_t right = 0; right <= n; right++)
                        if (seen[n][right] == 0)
                                fail_msg("never were %u of %u guesses right", right, n);
}

/* ---- faults ---- */

/* Whether a job got a wrong token. */
static bool goes_wrong(enum fault fault)
{
        struct tdm_scheduler_config config = plain;
        bool wrong = false;
        struct world w;

        config.speculate.guess = script;
        seen_n = 0; /* a new job may have the address of an old one */
        world_open(&w, 3, 64, 64, &config);
        w.fleet.fault = fault;
        for (uint32_t i = 0; i < 4; i++) {
                struct client_job *c = add_job(&w, 3, 60);

                c->penalty = true;
                start(&w, c);
        }
        drive(&w);
        for (uint32_t i = 0; i < w.n_jobs; i++)
                wrong = wrong || has_wrong_token(&w.jobs[i], n_vocab(&w));
        world_close(&w);
        return wrong;
}

static void test_faults(void **state)
{
        assert_false(goes_wrong(FAULT_NONE));
        for (int fault = FAULT_NONE + 1; fault < N_FAULTS; fault++)
                if (!goes_wrong((enum fault)fault))
                        fail_msg("fault %d is not found", fault);
}

/* ---- ends ---- */

/* The last token of a job is one that a guess would have gone past. */
static uint32_t all_right(void *userdata, const struct tdm_job *job, uint32_t most, uint32_t *ret)
{
        uint32_t ids[2 * N_CTX], n_ids = job->n_ids;

        assert_true(most < job->max_tokens - job->generated);
        memcpy(ids, job->ids, n_ids * sizeof(*ids));
        for (uint32_t i = 0; i < most; i++, n_ids++)
                ret[i] = ids[n_ids] = right_one(job, ids, n_ids);
        return most;
}

static void test_ends(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.speculate.guess = all_right;
        for (uint32_t max_tokens = 1; max_tokens <= 40; max_tokens++) {
                struct client_job *c;

                world_open(&w, max_tokens, 64, 64, &config);
                c = add_job(&w, 3, max_tokens);
                start(&w, c);
                drive(&w);
                check_result(c, n_vocab(&w));
                assert_int_equal(c->end, TDM_JOB_END_LENGTH);
                assert_int_equal(c->job->stats.n_accepted, c->job->stats.n_drafted);
                /* The prompt's step draws one, each other one seventeen at most. */
                assert_int_equal(w.fleet.n_submitted, 1 + TDM_DIV_UP(max_tokens - 1, TDM_MAX_GUESSES + 1));
                world_close(&w);
        }
}

/* Guesses take free pages only. Where there are none, the jobs go on without. */
static void test_no_pages(void **state)
{
        struct tdm_scheduler_config config = plain;
        uint32_t n_without = 0;
        struct world w;

        config.speculate.guess = all_right;
        /* The longest of them alone needs ten pages. */
        world_open(&w, 5, 11, 64, &config);
        for (uint32_t i = 0; i < 3; i++)
                start(&w, add_job(&w, 30 + i, 240));
        w.n_jobs = w.n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++) {
                struct fake_step *s = some_step(&w);

                for (uint32_t k = 0; k < w.n_jobs; k++)
                        n_without += w.jobs[k].job->stats.unguessed == TDM_UNGUESSED_MEMORY;
                if (s)
                        finish_step(&w, s);
                turn(&w);
        }
        assert_true(all_done(&w));
        assert_true(n_without > 0);
        for (uint32_t i = 0; i < w.n_jobs; i++)
                check_result(&w.jobs[i], n_vocab(&w));
        world_close(&w);
}

/* ---- how many ---- */

/* The double's texts do not repeat, so a job of this test is told what its text will be: the prompt ends with the
 * beginning of a text that stands in it. */
static struct client_job *add_edit(struct world *w, uint32_t n_copied)
{
        struct client_job *c = add_job(w, 4, n_copied);
        uint32_t text[N_CTX], n = 4;

        memcpy(text, c->prompt, 4 * sizeof(*text));
        for (uint32_t i = 0; i < n_copied; i++, n++)
                text[n] = 300 + i % 100;
        memcpy(c->prompt, text, n * sizeof(*text));
        memcpy(c->prompt + n, text, 4 * sizeof(*text));
        c->n_prompt = n + 4;
        return c;
}

static uint32_t most_guesses;

static uint32_t copies(uint32_t position)
{
        return 300 + (position - 108) % 100;
}

/* Replays a text as what the double draws, and counts the rows that steps have. */
static void run_edit(struct world *w, uint64_t step_ns, uint64_t row_ns, uint32_t n_jobs)
{
        struct tdm_scheduler_config config = plain;

        config.clock_ns = world_now;
        config.max_sequences = 8;
        world_open(w, 7, 200, 200, &config);
        w->fleet.step_ns[0] = step_ns;
        w->fleet.row_ns[0] = row_ns;
        w->fleet.replay = copies;
        for (uint32_t i = 0; i < n_jobs; i++)
                start(w, add_edit(w, 100));
        most_guesses = 0;
        w->n_jobs = w->n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(w); i++) {
                struct fake_step *s = some_step(w);

                for (uint32_t k = 0; k < n_jobs; k++)
                        most_guesses = TDM_MAX(most_guesses, w->jobs[k].job->stats.n_guesses);
                if (s)
                        finish_step(w, s);
                turn(w);
        }
        assert_true(all_done(w));
        for (uint32_t i = 0; i < n_jobs; i++)
                for (uint32_t k = 0; k < 100; k++)
                        assert_int_equal(w->jobs[i].got[k], 300 + k % 100);
}

static void test_length_follows_cost(void **state)
{
        struct world w;
        uint32_t n_steps;

        /* Rows cost next to nothing: nearly all steps give many tokens. */
        run_edit(&w, 1000000, 1000, 1);
        n_steps = w.fleet.n_submitted;
        assert_true(n_steps < 50);
        assert_true(most_guesses > 4);
        world_close(&w);

        /* A row costs as much as a step: guesses cannot gain, and only the first few are tried. */
        run_edit(&w, 1000, 1000000, 1);
        assert_true(w.fleet.n_submitted > 80);
        assert_true(w.jobs[0].job->stats.n_drafted <= 20);
        assert_int_equal(w.jobs[0].job->stats.unguessed, TDM_UNGUESSED_LAST);
        world_close(&w);

        /* Eight jobs whose rows cost: no guesses to speak of, though every one would be right. */
        run_edit(&w, 1000, 1000000, 8);
        assert_true(w.fleet.n_submitted > 90);
        world_close(&w);
}

static void test_off(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.speculate.mode = TDM_SPECULATION_OFF;
        world_open(&w, 7, 64, 64, &config);
        for (uint32_t i = 0; i < 4; i++)
                start(&w, add_edit(&w, 20));
        drive(&w);
        for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(w.jobs[i].job->stats.n_drafted, 0);
                assert_int_equal(w.jobs[i].job->stats.unguessed, TDM_UNGUESSED_OFF);
                check_result(&w.jobs[i], n_vocab(&w));
        }
        world_close(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_patterns), cmocka_unit_test(test_faults),
                cmocka_unit_test(test_ends),     cmocka_unit_test(test_no_pages),
                cmocka_unit_test(test_off),      cmocka_unit_test(test_length_follows_cost),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
