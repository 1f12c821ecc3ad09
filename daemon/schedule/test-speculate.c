/* Guesses, against a double of the fleet: every pattern of right and wrong ones, planted faults, lookup, the choice of
 * how many. test-random.c has them in random schedules. */
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
        .draft_max = TDM_MAX_GUESSES,
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
        return world_next(ids, n, job->sampling.seed, job->sampling.repeat_penalty != 1,
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

        config.guess = script;
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
                        assert_true(c->job->n_accepted > 0 && c->job->n_accepted < c->job->n_drafted);
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

        config.guess = script;
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

        config.guess = all_right;
        for (uint32_t max_tokens = 1; max_tokens <= 40; max_tokens++) {
                struct client_job *c;

                world_open(&w, max_tokens, 64, 64, &config);
                c = add_job(&w, 3, max_tokens);
                start(&w, c);
                drive(&w);
                check_result(c, n_vocab(&w));
                assert_int_equal(c->end, TDM_JOB_END_LENGTH);
                assert_int_equal(c->job->n_accepted, c->job->n_drafted);
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

        config.guess = all_right;
        /* The longest of them alone needs ten pages. */
        world_open(&w, 5, 11, 64, &config);
        for (uint32_t i = 0; i < 3; i++)
                start(&w, add_job(&w, 30 + i, 240));
        w.n_jobs = w.n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++) {
                struct fake_step *s = some_step(&w);

                for (uint32_t k = 0; k < w.n_jobs; k++)
                        n_without += w.jobs[k].job->unguessed == TDM_UNGUESSED_MEMORY;
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

/* ---- lookup ---- */

static void test_lookup(void **state)
{
        const uint32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 9, 8, 1, 2, 3, 4 };
        uint32_t guesses[8], n;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        assert_int_equal(tdm_lookup_new(&lookup), 0);
        n = tdm_lookup_guess(lookup, ids, 7, 8, guesses, &match);
        assert_int_equal(n, 0);
        /* Behind 2 3 4 stood 5. */
        n = tdm_lookup_guess(lookup, ids, 10, 3, guesses, &match);
        assert_int_equal(n, 3);
        assert_int_equal(match.length, 3);
        assert_memory_equal(guesses, &ids[4], 3 * sizeof(ids[0]));
        /* 1 2 3 4 agrees further back than 2 3 4, though that stands later. */
        n = tdm_lookup_guess(lookup, ids, 16, 8, guesses, &match);
        assert_int_equal(n, 8);
        assert_int_equal(match.length, 4);
        assert_false(match.behind_changed);
        assert_memory_equal(guesses, &ids[4], 8 * sizeof(ids[0]));
        tdm_lookup_destroy(lookup);
}

/* A text that repeats is guessed on beyond its end; one that is long is read a piece a call. */
static void test_lookup_repeats(void **state)
{
        uint32_t ids[9000], guesses[8], n = 0;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(ids); i++)
                ids[i] = i % 5;
        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(n, 0);
                n = tdm_lookup_guess(lookup, ids, TDM_ARRAY_SIZE(ids), 8, guesses, &match);
        }
        assert_int_equal(n, 8);
        assert_int_equal(match.length, TDM_LOOKUP_MOST);
        for (uint32_t i = 0; i < n; i++)
                assert_int_equal(guesses[i], i % 5);
        tdm_lookup_destroy(lookup);
}

/* A text and its copy, in which some tokens are changed. */
static uint32_t make_copy(uint32_t *ids, uint32_t n_text, uint32_t n_copied, uint32_t change_every)
{
        for (uint32_t i = 0; i < n_text; i++)
                ids[i] = 1000 + i;
        for (uint32_t i = 0; i < n_copied; i++)
                ids[n_text + i] = i % change_every == change_every - 1 ? 5000 + i : ids[i];
        return n_text + n_copied;
}

static uint32_t guess_once(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids, uint32_t *ret,
                           struct tdm_lookup_match *match)
{
        return tdm_lookup_guess(lookup, ids, n_ids, TDM_MAX_GUESSES, ret, match);
}

/* Behind a changed token the copy goes on where it stood, also while too few tokens stand behind it to be found. */
static void test_lookup_behind_changed(void **state)
{
        uint32_t ids[400], guesses[TDM_MAX_GUESSES], n_text = 100;
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        make_copy(ids, n_text, 60, 16);
        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (uint32_t n_copied = 1; n_copied <= 60; n_copied++) {
                uint32_t n = guess_once(lookup, ids, n_text + n_copied, guesses, &match);
                uint32_t behind = n_copied % 16; /* tokens behind the last change */

                if (n_copied < TDM_LOOKUP_LEAST) {
                        assert_int_equal(n, 0);
                        continue;
                }
                assert_int_equal(n, TDM_MAX_GUESSES);
                assert_memory_equal(guesses, &ids[n_copied], n * sizeof(*ids));
                assert_int_equal(match.behind_changed, behind == 0);
                /* Those before the change count as far as the one before that; where there is none, all do. */
                assert_int_equal(match.length, n_copied < 16 ? n_copied : 15 + behind);
        }
        tdm_lookup_destroy(lookup);
}

/* Where two changes are close, and where little agreed before, nothing is gone on with. */
static void test_lookup_gives_up(void **state)
{
        uint32_t guesses[TDM_MAX_GUESSES];
        struct tdm_lookup_match match;

        for (uint32_t every = 2; every <= 16; every++) {
                uint32_t ids[400], n_text = 100, n_ids = make_copy(ids, n_text, every, every), n = 0;
                struct tdm_lookup *lookup;

                assert_int_equal(tdm_lookup_new(&lookup), 0);
                for (uint32_t i = n_text; i <= n_ids; i++)
                        n = guess_once(lookup, ids, i, guesses, &match);
                assert_int_equal(n, every > TDM_LOOKUP_BEFORE_CHANGE ? TDM_MAX_GUESSES : 0);
                ids[n_ids] = 6000;
                assert_int_equal(guess_once(lookup, ids, n_ids + 1, guesses, &match), 0);
                tdm_lookup_destroy(lookup);
        }
}

/* Steps of a copy of 240 tokens in which every 16th is changed, as the benchmark has it. */
static void test_lookup_steps(void **state)
{
        uint32_t ids[500], guesses[TDM_MAX_GUESSES], n_text = 240, n_steps = 0, n_ids = make_copy(ids, n_text, 240, 16);
        struct tdm_lookup_match match;
        struct tdm_lookup *lookup;

        assert_int_equal(tdm_lookup_new(&lookup), 0);
        for (uint32_t at = n_text + 1; at < n_ids; n_steps++) {
                uint32_t n = guess_once(lookup, ids, at, guesses, &match), right = 0;

                while (right < n && at + right + 1 < n_ids && guesses[right] == ids[at + right])
                        right++;
                at += right + 1;
        }
        /* Two before anything is found, then one for each change. */
        assert_int_equal(n_steps, 17);
        tdm_lookup_destroy(lookup);
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
                        most_guesses = TDM_MAX(most_guesses, w->jobs[k].job->n_guesses);
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
        assert_true(w.jobs[0].job->n_drafted <= 20);
        assert_int_equal(w.jobs[0].job->unguessed, TDM_UNGUESSED_LAST);
        world_close(&w);

        /* Eight jobs whose rows cost: no guesses to speak of, though every one would be right. */
        run_edit(&w, 1000, 1000000, 8);
        assert_true(w.fleet.n_submitted > 90);
        world_close(&w);
}

static uint64_t cost_seed;

/* 0.9 to 1.1, and sometimes twice as much. */
static double disturbed(void)
{
        double x;

        cost_seed = cost_seed * UINT64_C(6364136223846793005) + 1;
        x = (double)(cost_seed >> 40) / (1 << 24);
        return (0.9 + 0.2 * x) * (x > 0.97 ? 2 : 1);
}

static void took(struct lane *lane, uint32_t n_rows, uint32_t n_passes, bool is_draft, double ns)
{
        struct sequence q = { .is_draft = is_draft };
        struct flight_seq fs = { .seq = &q };
        const struct flight f = { .n_rows = n_rows, .n_passes = n_passes, .n_ran = n_passes, .n_seqs = 1, .seqs = &fs };

        tdm_scheduler_note_cost(lane, &f, (uint64_t)ns);
}

/* A step of few rows takes 4 % more for each. The machine becomes three times as slow meanwhile, and steps are
 * disturbed. What rows add is found all the same. */
static void test_costs_on_a_busy_machine(void **state)
{
        struct lane *lane = calloc(1, sizeof(*lane));
        float one;

        assert_non_null(lane);
        for (uint32_t run = 0; run < 20; run++) {
                uint32_t n_plain = 0;

                memset(lane, 0, sizeof(*lane));
                cost_seed = run;
                for (uint32_t i = 0; i < 200; i++) {
                        double speed = 1 + 2 * (double)i / 200;
                        bool plain_step = tdm_scheduler_step_cost(lane, 1, 1) == 0;
                        uint32_t n_rows = plain_step ? 1 : 2 + (i * 7 + i / 5) % 5;

                        n_plain += plain_step;

                        took(lane, n_rows, 1, false, 1e7 * speed * (0.96 + 0.04 * n_rows) * disturbed());
                }
                assert_in_range(n_plain, 1, 12);
                one = tdm_scheduler_step_cost(lane, 1, 1);
                for (uint32_t n = 2; n <= 6; n++) {
                        float part = tdm_scheduler_step_cost(lane, n, 1) / one;

                        assert_true(part < 1.3f * (0.96f + 0.04f * (float)n));
                        assert_true(part > 0.8f * (0.96f + 0.04f * (float)n));
                }
        }
        free(lane);
}

/* More rows take half as long again, which was seen once. A job alone soon tries it again. Where eight would have to
 * wait for the try, it is believed for longer. */
static void test_costs_in_company(void **state)
{
        static const struct {
                uint32_t n, n_known, n_forgotten; /* sequences; so many steps later */
        } cases[] = { { 1, 10, 30 }, { 8, 500, 1100 } };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct lane *lane = calloc(1, sizeof(*lane));
                uint32_t n = cases[i].n, steps = 0;

                assert_non_null(lane);
                took(lane, n, 1, false, 6e6);
                took(lane, n + n / 2 + 1, 1, false, 9e6);
                for (; steps < cases[i].n_known; steps++)
                        took(lane, n, 1, false, 6e6);
                assert_true(tdm_scheduler_step_cost(lane, n + n / 2 + 1, n) >
                            1.4f * tdm_scheduler_step_cost(lane, n, n));
                for (; steps < cases[i].n_forgotten; steps++)
                        took(lane, n, 1, false, 6e6);
                assert_true(tdm_scheduler_step_cost(lane, n + n / 2 + 1, n) <
                            1.1f * tdm_scheduler_step_cost(lane, n, n));
                free(lane);
        }
}

/* Eight together, one of them with a guess. The only step without guesses that was measured was disturbed, so the row
 * more seems to cost nothing, while it takes a quarter of the step. Seven texts do not wait for it for long. */
static void test_a_disturbed_base_in_company(void **state)
{
        struct lane *lane = calloc(1, sizeof(*lane));
        uint32_t n_slow = 0;

        assert_non_null(lane);
        took(lane, 8, 1, false, 7.5e6);
        for (uint32_t i = 0; i < 1000; i++) {
                float base = tdm_scheduler_step_cost(lane, 8, 8), ns = tdm_scheduler_step_cost(lane, 9, 8);
                bool guesses = base > 0 && !tdm_scheduler_others_wait(lane, 9, ns, base);

                n_slow += guesses;
                took(lane, guesses ? 9 : 8, 1, false, guesses ? 7.5e6 : 6e6);
        }
        assert_in_range(n_slow, 1, 100);
        free(lane);
}

/* A trip and a time for each pass, or all in proportion where all bursts are of one length. */
static void test_costs_of_bursts(void **state)
{
        struct lane *lane = calloc(1, sizeof(*lane));

        assert_non_null(lane);
        assert_true(tdm_scheduler_burst_cost(lane, 1, 3) == 0);
        for (uint32_t i = 0; i < 10; i++)
                took(lane, 1, 2, true, 200000);
        assert_true(fabsf(tdm_scheduler_burst_cost(lane, 1, 4) - 400000) < 1000);
        assert_true(tdm_scheduler_burst_cost(lane, 2, 4) == 0);
        for (uint32_t i = 0; i < 100; i++) {
                uint32_t n = 1 + i % 5;

                took(lane, 1, n, true, (150000 + 25000 * n) * disturbed());
        }
        assert_true(fabsf(tdm_scheduler_burst_cost(lane, 1, 1) - 175000) < 35000);
        assert_true(fabsf(tdm_scheduler_burst_cost(lane, 1, 8) - 350000) < 70000);
        tdm_scheduler_forget_bursts(lane, 1);
        assert_true(tdm_scheduler_burst_cost(lane, 1, 1) == 0);
        free(lane);
}

static void test_off(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.speculation = TDM_SPECULATION_OFF;
        world_open(&w, 7, 64, 64, &config);
        for (uint32_t i = 0; i < 4; i++)
                start(&w, add_edit(&w, 20));
        drive(&w);
        for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(w.jobs[i].job->n_drafted, 0);
                assert_int_equal(w.jobs[i].job->unguessed, TDM_UNGUESSED_OFF);
                check_result(&w.jobs[i], n_vocab(&w));
        }
        world_close(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_patterns),
                cmocka_unit_test(test_faults),
                cmocka_unit_test(test_ends),
                cmocka_unit_test(test_no_pages),
                cmocka_unit_test(test_lookup),
                cmocka_unit_test(test_lookup_repeats),
                cmocka_unit_test(test_lookup_behind_changed),
                cmocka_unit_test(test_lookup_gives_up),
                cmocka_unit_test(test_lookup_steps),
                cmocka_unit_test(test_off),
                cmocka_unit_test(test_length_follows_cost),
                cmocka_unit_test(test_costs_on_a_busy_machine),
                cmocka_unit_test(test_costs_of_bursts),
                cmocka_unit_test(test_costs_in_company),
                cmocka_unit_test(test_a_disturbed_base_in_company),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
