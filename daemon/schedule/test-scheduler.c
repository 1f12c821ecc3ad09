/* The scheduler against a double of the fleet: one subject a test, with schedules that are written out. */
#include "daemon/schedule/test-world.h"

#include <math.h>
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
        .clock_ns = world_now, /* no step is long because this thread has no CPU */
};

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

static void add_job(struct world *w, uint32_t n_prompt, uint32_t max_tokens, uid_t uid, enum tdm_job_priority priority)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, n_prompt, max_tokens);
        submit(w, c, 0, uid, priority, TDM_PLACEMENT_ANY, 0);
}

static void test_batches(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 4; i++)
                add_job(&w, 3, 10, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        drive(&w);
        assert_int_equal(w.fleet.n_max_seqs, 4);
        assert_true(w.fleet.n_submitted <= 12); /* and not 40 */
        world_close(&w);
}

static void test_refusals(void **state)
{
        struct tdm_error err;
        struct tdm_job *job;
        struct tdm_job_params p = { .identity = 7, .ids = (uint32_t[]){ 400 }, .n_ids = 1 };
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 6; i++)
                add_job(&w, 3, 10, 7, TDM_JOB_INTERACTIVE);
        assert_int_equal(tdm_job_new(&job, &p, &err), 0);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_QUOTA);
        for (int i = 0; i < 2; i++)
                add_job(&w, 3, 10, 8, TDM_JOB_INTERACTIVE);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_BUSY);
        tdm_scheduler_drain(w.s);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_DRAINING);
        tdm_job_unref(job);
        drive(&w); /* nothing had begun: all end as draining */
        for (uint32_t i = 0; i < w.n_jobs; i++)
                assert_int_equal(w.jobs[i].error, TDM_E_DRAINING);
        world_close(&w);
}

static void test_bad_prompts(void **state)
{
        struct world w;
        struct client_job *c;

        world_open(&w, 1, 8, 64, &plain);
        add_job(&w, N_CTX, 1, 1, TDM_JOB_INTERACTIVE); /* no room for an answer */
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 4, 4);
        c->prompt[2] = 1000000;
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        add_job(&w, 200, 100, 1, TDM_JOB_INTERACTIVE); /* 10 pages; there are 8 */
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_TOO_LONG);
        assert_int_equal(w.jobs[1].error, TDM_E_BAD_REQUEST);
        assert_int_equal(w.jobs[2].error, TDM_E_NO_MEMORY);
        assert_false(w.jobs[0].accepted || w.jobs[1].accepted || w.jobs[2].accepted);
        world_close(&w);
}

static void test_implicit_limit(void **state)
{
        struct world w;

        world_open(&w, 1, 4, 64, &plain);
        add_job(&w, 20, 0, 1, TDM_JOB_INTERACTIVE); /* the rest of the context would be 300; the cache holds 128 */
        drive(&w);
        assert_int_equal(w.jobs[0].end, TDM_JOB_END_LENGTH);
        assert_int_equal(w.jobs[0].n_got, 4 * TDM_KV_PAGE_TOKENS - 20);
        world_close(&w);
}

/* A worker hangs, and jobs leave the queue: those behind them hear of it though no step ends. */
static void test_positions_while_a_step_hangs(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_sequences = 1;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 5; i++)
                add_job(&w, 3, 2, 1, TDM_JOB_INTERACTIVE);
        while (!w.jobs[4].accepted)
                assert_true(tdm_loop_turn(w.loop, TDM_NSEC_PER_SEC) >= 0);
        assert_int_equal(w.jobs[4].told_position, 3);
        for (uint32_t gone = 1; gone < 4; gone++) {
                tdm_scheduler_cancel(w.s, w.jobs[gone].job, NULL);
                for (int i = 0; i < 60 && w.jobs[4].told_position != 3 - gone; i++)
                        assert_true(tdm_loop_turn(w.loop, TDM_NSEC_PER_SEC) >= 0);
                assert_int_equal(w.jobs[4].told_position, 3 - gone);
        }
        assert_int_equal(w.fleet.n_submitted, 1);
        drive(&w);
        world_close(&w);
}

static void test_fair_and_interactive_first(void **state)
{
        struct tdm_scheduler_config config = plain;
        uint32_t order[8], n = 0;
        struct world w;

        config.max_sequences = 1;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 3; i++)
                add_job(&w, 3, 2, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 2, 1, TDM_JOB_BACKGROUND);
        add_job(&w, 3, 2, 2, TDM_JOB_INTERACTIVE); /* another user: not behind all of the first one's */
        w.n_jobs = w.n_arrived;
        while (n < 5) {
                struct fake_step *s;

                turn(&w);
                s = some_step(&w);
                if (s)
                        finish_step(&w, s);
                for (uint32_t i = 0; i < 5; i++) {
                        bool known = false;

                        for (uint32_t k = 0; k < n; k++)
                                known = known || order[k] == i;
                        if (w.jobs[i].done && !known)
                                order[n++] = i;
                }
        }
        assert_int_equal(order[0], 0);
        assert_int_equal(order[1], 4);
        assert_int_equal(order[2], 1);
        assert_int_equal(order[4], 3); /* background at last */
        world_close(&w);
}

static void test_culprit_alone(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 4; i++)
                add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        w.jobs[2].job->ids[1] = KILLER; /* before it is looked at */
        w.jobs[2].killer = true;
        drive(&w);
        for (uint32_t i = 0; i < 4; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        assert_int_equal(w.jobs[2].error, TDM_E_DEVICE_FAULT);
        assert_true(w.fleet.epoch <= 7); /* halving, not one by one without end */
        world_close(&w);
}

static void test_no_worker(void **state)
{
        struct world w;
        struct client_job *c;

        world_open(&w, 1, 64, 64, &plain);
        w.fleet.down[TDM_WORKER_NPU] = true;
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 4, 4);
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_SPLIT, 0);
        add_job(&w, 4, 4, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_NO_WORKER);
        assert_int_equal(w.jobs[1].end, TDM_JOB_END_LENGTH);
        assert_true(w.jobs[1].job->stats.degraded);
        world_close(&w);
}

static const struct client_job *add_alike(struct world *w, uint32_t like, uint32_t n_prompt, uid_t uid)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, n_prompt, 4);
        memcpy(c->prompt, w->jobs[like].prompt, TDM_MIN(n_prompt, w->jobs[like].n_prompt) * sizeof(c->prompt[0]));
        submit(w, c, 0, uid, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        drive(w);
        check_result(c, tdm_model_hparams(w->fleet.models[0])->n_vocab);
        return c;
}

static void test_known_beginnings(void **state)
{
        struct tdm_scheduler_stats stats;
        struct client_job *c;
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 150, 20, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[0].job->stats.cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens, 128);
        assert_int_equal(add_alike(&w, 0, 128, 1)->job->stats.cached_tokens, 96); /* the last row is computed */
        assert_int_equal(add_alike(&w, 0, 129, 1)->job->stats.cached_tokens, 128);
        assert_int_equal(add_alike(&w, 0, 31, 1)->job->stats.cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 2)->job->stats.cached_tokens, 0); /* another user */
        tdm_scheduler_stats(w.s, &stats);
        assert_int_equal(stats.prefix_hits, 3);
        assert_int_equal(stats.cached_tokens, 128 + 96 + 128);

        /* What was generated is known too. */
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 168, 4);
        memcpy(c->prompt, w.jobs[0].prompt, 150 * sizeof(c->prompt[0]));
        memcpy(c->prompt + 150, w.jobs[0].got, 18 * sizeof(c->prompt[0]));
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        drive(&w);
        assert_int_equal(c->job->stats.cached_tokens, 160);

        /* A worker that comes back as another device. */
        w.fleet.numerics_id = "another";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens, 128);
        w.fleet.numerics_id = "fake";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens, 128);

        /* One that is lost half way leaves what was committed, and nothing else. */
        add_job(&w, 150, 20, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        for (int i = 0; i < 3; i++)
                finish_step(&w, some_step(&w));
        reset(&w, NULL);
        drive(&w);
        check_result(&w.jobs[w.n_arrived - 1], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* A cache for one: whoever is less important goes, comes back, and nobody notices. */
static void test_pushed_out(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct tdm_scheduler_stats stats;
        struct world w;

        config.max_jobs_per_uid = 8;
        for (unsigned seed = 1; seed <= 4; seed++) { /* 4: without a prefix cache */
                world_open(&w, seed, 9, 20, &config);
                for (int i = 0; i < 4; i++)
                        add_job(&w, 30, 200, 1 + i % 2, i == 0 ? TDM_JOB_BACKGROUND : TDM_JOB_INTERACTIVE);
                drive(&w);
                for (uint32_t i = 0; i < 4; i++)
                        check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                tdm_scheduler_stats(w.s, &stats);
                assert_true(stats.evictions >= 3);
                assert_int_equal(w.jobs[1].job->stats.evictions, 0); /* interactive, and the oldest */
                assert_true(w.jobs[0].job->stats.evictions >= 1);
                /* More each time before it comes back: 64, 128, 256 tokens. */
                for (uint32_t i = 0; i < 4; i++)
                        assert_true(w.jobs[i].job->stats.evictions <= 4);
                assert_true(stats.reread_tokens + stats.cached_tokens > 0);
                assert_int_equal(stats.prompt_tokens, 4 * 30);
                world_close(&w);
        }
}

/* Someone at the screen does not wait for what runs in the background: not for memory, not for a place. */
static void test_interactive_takes_room(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        for (int places = 0; places < 2; places++) {
                config.max_sequences = places ? 2 : 4;
                world_open(&w, 4, places ? 40 : 10, 20, &config);
                add_job(&w, 100, 60, 1, TDM_JOB_BACKGROUND);
                add_job(&w, 100, 60, 1, TDM_JOB_BACKGROUND);
                for (int i = 0; i < 20; i++) {
                        turn(&w);
                        finish_step(&w, some_step(&w));
                }
                assert_int_equal(w.jobs[0].job->state, TDM_JOB_DECODE);
                add_job(&w, 200, 10, 2, TDM_JOB_INTERACTIVE);
                while (!w.jobs[2].done) {
                        turn(&w);
                        finish_step(&w, some_step(&w));
                }
                assert_false(w.jobs[0].done || w.jobs[1].done);
                assert_int_equal(w.jobs[0].job->stats.evictions, places ? 0 : 1);
                assert_int_equal(w.jobs[1].job->stats.evictions, 1);
                drive(&w);
                for (uint32_t i = 0; i < 3; i++)
                        check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                world_close(&w);
        }
}

static uint32_t rows_of_next_step(struct world *w)
{
        struct fake_step *s;
        uint32_t n;

        turn(w);
        s = some_step(w);
        n = tdm_steps_head(s->model->steps->base, &s->model->layout, s->slot)->n_rows;
        finish_step(w, s);
        return n;
}

/* Steps are short while somebody is at the screen, and as long as they may be when nobody is. */
static void test_polite(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_rows = config.prefill_rows = 64;
        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 300, 2, 1, TDM_JOB_BACKGROUND);
        assert_int_equal(rows_of_next_step(&w), 64);
        add_job(&w, 20, 2, 1, TDM_JOB_INTERACTIVE);
        finish_step(&w, some_step(&w));
        assert_int_equal(rows_of_next_step(&w), 20 + 64 / 32); /* with its prompt */
        assert_int_equal(rows_of_next_step(&w), 1 + 64 / 8);   /* while it generates */
        assert_true(w.jobs[1].done);
        assert_int_equal(rows_of_next_step(&w), 64 / 8); /* there may be another one soon */
        w.s->interactive_ns -= 60 * TDM_NSEC_PER_SEC;
        finish_step(&w, some_step(&w));
        assert_int_equal(rows_of_next_step(&w), 64);
        drive(&w);
        world_close(&w);
}

/* A prompt is read in longer steps while nobody generates, if they are quick. */
static void test_lone(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_rows = config.lone_rows = 64;
        config.clock_ns = world_now;
        world_clock = TDM_NSEC_PER_SEC;
        world_open(&w, 1, 64, 64, &config);
        w.fleet.step_ns[0] = 1000000;
        w.fleet.row_ns[0] = 1000;
        add_job(&w, 16 + 64 + 64 + 16 + 64 + 20, 2, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 16); /* nothing is known of it yet */
        assert_int_equal(rows_of_next_step(&w), 64);
        world_clock += 270 * TDM_NSEC_PER_MSEC;
        assert_int_equal(rows_of_next_step(&w), 64); /* was issued before */
        assert_int_equal(rows_of_next_step(&w), 16); /* that one took too long */
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 64); /* was issued before */
        assert_int_equal(rows_of_next_step(&w), 23); /* the end of the one, all of the other */
        assert_int_equal(rows_of_next_step(&w), 2);  /* now it generates */
        drive(&w);
        world_close(&w);

        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 3, 40, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 3);
        add_job(&w, 200, 2, 1, TDM_JOB_INTERACTIVE);
        finish_step(&w, some_step(&w));
        for (int i = 0; i < 5; i++)
                assert_int_equal(rows_of_next_step(&w), 16); /* somebody generates */
        drive(&w);
        world_close(&w);
}

/* One user has all the places; another one comes and gets as many, no more. */
static void test_shares(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_jobs = 16;
        config.max_jobs_per_uid = 8;
        config.clock_ns = world_now;
        world_open(&w, 1, 64, 64, &config);
        w.fleet.step_ns[0] = 1000000;
        w.fleet.row_ns[0] = 1000;
        for (int i = 0; i < 8; i++)
                add_job(&w, 20, 100, 1, TDM_JOB_INTERACTIVE);
        for (int i = 0; i < 10; i++) {
                turn(&w);
                finish_step(&w, some_step(&w));
        }
        assert_int_equal(w.s->users[0].n_running, 4);
        for (int i = 0; i < 4; i++)
                add_job(&w, 20, 100, 2, TDM_JOB_INTERACTIVE);
        for (int i = 0; i < 6; i++) {
                turn(&w);
                finish_step(&w, some_step(&w));
        }
        assert_int_equal(w.s->users[0].n_running, 2);
        assert_int_equal(w.s->users[1].n_running, 2);
        assert_true(w.jobs[8].n_got > 0 && w.jobs[9].n_got > 0);
        assert_int_equal(w.jobs[0].job->stats.evictions + w.jobs[1].job->stats.evictions,
                         0); /* the younger ones went */
        assert_int_equal(w.jobs[2].job->stats.evictions + w.jobs[3].job->stats.evictions, 2);
        drive(&w);
        for (uint32_t i = 0; i < 12; i++) {
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                assert_true(w.jobs[i].job->stats.evictions <= 1);
        }
        world_close(&w);
}

/* What a compromised worker may write into its results. */
static void spoil_nan(struct tdm_result *r, uint32_t n_vocab)
{
        r->logprob = NAN;
}
static void spoil_inf(struct tdm_result *r, uint32_t n_vocab)
{
        r->logprob = INFINITY;
}
static void spoil_minus_inf(struct tdm_result *r, uint32_t n_vocab)
{
        r->logprob = -INFINITY;
}
static void spoil_positive(struct tdm_result *r, uint32_t n_vocab)
{
        r->logprob = 0.01f;
}
static void spoil_id(struct tdm_result *r, uint32_t n_vocab)
{
        r->token = n_vocab;
}
static void spoil_n_top(struct tdm_result *r, uint32_t n_vocab)
{
        r->n_top = UINT32_MAX;
}
static void spoil_target(struct tdm_result *r, uint32_t n_vocab)
{
        r->target_logprob = NAN;
}
static void spoil_target_inf(struct tdm_result *r, uint32_t n_vocab)
{
        r->target_logprob = INFINITY;
}
static void spoil_top_id(struct tdm_result *r, uint32_t n_vocab)
{
        r->top[1].id = n_vocab;
}
static void spoil_top(struct tdm_result *r, uint32_t n_vocab)
{
        r->top[0].logprob = -INFINITY;
}

/* Results that cannot be are a fault of the worker. No client hears of them, no job ends, and the step runs again. */
static void test_results_that_cannot_be(void **state)
{
        static const struct {
                void (*spoil)(struct tdm_result *r, uint32_t n_vocab);
                bool score;
        } cases[] = {
                { spoil_nan, false },   { spoil_inf, false },   { spoil_minus_inf, false }, { spoil_positive, false },
                { spoil_id, false },    { spoil_n_top, false }, { spoil_target, true },     { spoil_target_inf, true },
                { spoil_top_id, true }, { spoil_top, true },    { spoil_n_top, true },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct client_job *c;
                struct world w;

                world_open(&w, 1, 64, 64, &plain);
                c = &w.jobs[w.n_arrived++];
                make_prompt(&w, c, 12, 6);
                c->score = cases[i].score;
                submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
                turn(&w);
                w.fleet.spoil = cases[i].spoil;
                finish_step(&w, some_step(&w));
                turn(&w);
                assert_int_equal(w.fleet.n_bad[0] + w.fleet.n_bad[1], 1);
                assert_int_equal(c->n_got, 0);
                assert_false(c->done);
                assert_null(some_step(&w)); /* nothing more until the epoch has ended */
                w.fleet.spoil = NULL;
                reset(&w, NULL);
                become_ready(&w);
                drive(&w);
                check_result(c, tdm_model_hparams(w.fleet.models[0])->n_vocab);
                assert_int_equal(w.fleet.n_bad[0] + w.fleet.n_bad[1], 1);
                world_close(&w);
        }
}

static void on_model(struct tdm_model *model, void *userdata)
{
        struct world *w = userdata;

        tdm_scheduler_on_model_changed(w->s, model);
}

/* Where both workers make such results of one sequence, it is the model's doing: one worker has paid, the other one
 * goes on. */
static void test_results_that_neither_makes(void **state)
{
        struct client_job *other;
        struct world w;
        unsigned first;

        world_open(&w, 1, 64, 64, &plain);
        assert_int_equal(tdm_models_observe(w.models, on_model, &w), 0);
        add_job(&w, 12, 6, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        w.fleet.spoil = spoil_nan;
        finish_step(&w, some_step(&w));
        turn(&w);
        first = w.fleet.n_bad[TDM_WORKER_NPU] ? TDM_WORKER_NPU : TDM_WORKER_GPU;
        assert_int_equal(w.fleet.n_bad[first], 1);
        reset(&w, NULL);
        w.fleet.down[first] = true;
        become_ready(&w);
        turn(&w);
        finish_step(&w, some_step(&w));
        turn(&w);
        assert_true(w.jobs[0].done);
        assert_int_equal(w.jobs[0].error, TDM_E_BAD_MODEL);
        assert_int_equal(w.jobs[0].n_got, 0);
        assert_int_equal(w.fleet.n_bad[0] + w.fleet.n_bad[1], 1);
        assert_int_equal(w.fleet.models[0]->state, TDM_MODEL_FAILED);

        w.fleet.spoil = NULL;
        other = &w.jobs[w.n_arrived++];
        make_prompt(&w, other, 12, 6);
        submit(&w, other, 1, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        drive(&w);
        assert_int_equal(other->end, TDM_JOB_END_LENGTH);
        world_close(&w);
}

static void test_caps_of_a_user(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_running_per_uid = 1;
        config.max_tokens_per_uid = 100;
        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 30, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 30, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 1, 1, TDM_JOB_INTERACTIVE); /* 104 */
        add_job(&w, 30, 20, 2, TDM_JOB_INTERACTIVE);
        turn(&w);
        assert_true(w.jobs[2].done && !w.jobs[2].accepted);
        assert_int_equal(w.jobs[2].error, TDM_E_QUOTA);
        assert_int_equal(w.s->users[0].n_running, 1);
        assert_int_equal(w.s->users[1].n_running, 1);
        drive(&w);
        add_job(&w, 3, 1, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[4].end, TDM_JOB_END_LENGTH);
        world_close(&w);
}

static void test_deadline(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct client_job *c;
        struct world w;

        config.max_sequences = 1;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 3; i++) { /* one runs, one waits, one has time */
                if (i == 2) {
                        turn(&w);
                        finish_step(&w, some_step(&w));
                        finish_step(&w, some_step(&w));
                        /* Only now, because these steps may have taken any time. */
                        for (int k = 0; k < 2; k++)
                                w.jobs[k].job->request.deadline_ns = tdm_now_ns() + 30 * TDM_NSEC_PER_MSEC;
                }
                c = &w.jobs[w.n_arrived++];
                make_prompt(&w, c, 30, 20);
                c->deadline_ms = 600000;
                submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        }
        /* A turn when both are over, also where this thread has no CPU just then. */
        for (bool over = false; !over; turn(&w))
                over = tdm_now_ns() >= w.jobs[1].job->request.deadline_ns + 10 * TDM_NSEC_PER_MSEC;
        turn(&w);
        assert_int_equal(w.jobs[1].error, TDM_E_DEADLINE);
        assert_false(w.jobs[0].done); /* in flight still */
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_DEADLINE);
        assert_int_equal(w.jobs[0].n_got, 1);
        check_result(&w.jobs[2], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* Nobody goes in vain: what would not be enough stays. */
static void test_not_in_vain(void **state)
{
        struct world w;

        world_open(&w, 4, 12, 20, &plain);
        add_job(&w, 200, 60, 1, TDM_JOB_INTERACTIVE); /* 9 pages */
        add_job(&w, 20, 40, 1, TDM_JOB_BACKGROUND);   /* 2 pages */
        turn(&w);
        add_job(&w, 150, 10, 1, TDM_JOB_INTERACTIVE); /* 5 pages: with the background's there would be 3 */
        drive(&w);
        assert_int_equal(w.jobs[1].job->stats.evictions, 0);
        for (uint32_t i = 0; i < 3; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* Rows of two kinds of bits in one sequence: nobody may have them. */
static void test_mixed_numerics(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 150, 4, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        for (int i = 0; i < 5; i++) /* 80 rows */
                finish_step(&w, some_step(&w));
        reset(&w, NULL);
        w.fleet.numerics_id = "another";
        drive(&w);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens,
                         0); /* of the new kind: none from the start */
        w.fleet.numerics_id = "fake";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->stats.cached_tokens, 64);
        world_close(&w);
}

static void test_model_changed(void **state)
{
        struct tdm_error err;
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        assert_non_null(some_step(&w));
        tdm_error_set(&err, TDM_E_MODEL_CHANGED, "the file was rewritten");
        w.fleet.models[0]->state = TDM_MODEL_FAILED;
        w.fleet.models[0]->error = err;
        tdm_scheduler_on_model_changed(w.s, w.fleet.models[0]);
        drive(&w); /* the step in flight still lands */
        assert_int_equal(w.jobs[0].error, TDM_E_MODEL_CHANGED);
        assert_int_equal(w.jobs[1].error, TDM_E_MODEL_CHANGED);
        assert_null(w.fleet.models[0]->pages); /* and then its memory goes */
        world_close(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_batches),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_bad_prompts),
                cmocka_unit_test(test_implicit_limit),
                cmocka_unit_test(test_positions_while_a_step_hangs),
                cmocka_unit_test(test_fair_and_interactive_first),
                cmocka_unit_test(test_culprit_alone),
                cmocka_unit_test(test_no_worker),
                cmocka_unit_test(test_known_beginnings),
                cmocka_unit_test(test_mixed_numerics),
                cmocka_unit_test(test_pushed_out),
                cmocka_unit_test(test_polite),
                cmocka_unit_test(test_lone),
                cmocka_unit_test(test_not_in_vain),
                cmocka_unit_test(test_shares),
                cmocka_unit_test(test_results_that_cannot_be),
                cmocka_unit_test(test_results_that_neither_makes),
                cmocka_unit_test(test_caps_of_a_user),
                cmocka_unit_test(test_deadline),
                cmocka_unit_test(test_interactive_takes_room),
                cmocka_unit_test(test_model_changed),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        world_clock = TDM_NSEC_PER_SEC;
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
