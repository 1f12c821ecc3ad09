/* Jobs whose text follows a grammar, against a double of the fleet that draws among what the masks allow: alone, in
 * company, with masks that come too late, workers that are lost, too little memory, and workers that lie. */
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

static const struct tdm_scheduler_config plain = {
        .max_jobs = 16,
        .max_jobs_per_uid = 16,
        .max_pending_bytes = 1 << 20,
        .max_rows = 32,
        .prefill_rows = 16,
        .max_sequences = 4,
        .steps_in_flight = 1,
};

/* The random choices of the double are about even among the pieces, so texts have to be short by themselves. */
static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99},\"b\":{"
        "\"enum\":"
        "[\"x\",\"yy\",\"zzz\"]}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":6},\"minItems\":2,\"maxItems\":4}",
        "{\"type\":\"string\",\"minLength\":3000,\"pattern\":\"^[a-z ]*$\"}", /* longer than its job may be */
        "{\"type\":\"number\",\"minimum\":-5,\"maximum\":17.5}",
};
#define N_SCHEMAS TDM_ARRAY_SIZE(schemas)
/* Its states differ by where letters of either half stood: masks of it take more than a quick look. */
#define HARD "(.*[a-m].*[n-z]){100}"

static void add(struct world *w, const char *schema, const char *regex, uint32_t max_tokens, uint64_t seed)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, 1 + 30 * (uint32_t)(seed % 4), max_tokens);
        for (uint32_t i = 0; i < c->n_prompt; i++)
                c->prompt[i] = 400 + (uint32_t)seed * 100 + i;
        c->seed = seed;
        c->schema = schema;
        c->regex = regex;
        submit(w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
}

/* resets: after this many steps the workers are lost, about. */
static void drive(struct world *w, unsigned resets)
{
        w->n_jobs = w->n_arrived;
        for (uint32_t i = 0; i < 200000 && !all_done(w); i++) {
                struct fake_step *s = some_step(w);

                if (!w->fleet.ready)
                        become_ready(w);
                else if (s && resets && pick(w, resets) == 0)
                        reset(w, NULL);
                else if (s)
                        finish_step(w, s);
                else
                        usleep(100); /* a thread compiles, or makes a mask */
                turn(w);
        }
        assert_true(all_done(w));
}

/* The text of a job, by a matcher of the test's own. */
static void check_text(const struct world *w, const struct client_job *c)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *v = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;

        if (c->schema)
                assert_int_equal(tdm_grammar_new_schema(&g, c->schema, strlen(c->schema), 0, NULL, NULL), 0);
        else
                assert_int_equal(tdm_grammar_new_regex(&g, c->regex, strlen(c->regex), NULL, NULL), 0);
        assert_int_equal(tdm_vocabulary_new_tokenizer(&v, w->fleet.models[0]->metadata->tokenizer,
                                                      tdm_model_hparams(w->fleet.models[0])->n_vocab),
                         0);
        assert_int_equal(tdm_matcher_new(&m, g, v), 0);
        for (uint32_t i = 0; i < c->n_got; i++)
                assert_int_equal(tdm_matcher_accept(m, c->got[i]), 1);
        if (c->end == TDM_JOB_END_STOP)
                assert_true(tdm_matcher_is_whole(m));
        assert_int_equal(c->incomplete, !tdm_matcher_is_whole(m));
}

static void check_same(const struct world *w, const struct client_job *c, const struct client_job *want)
{
        assert_int_equal(c->end, want->end);
        assert_int_equal(c->n_got, want->n_got);
        assert_memory_equal(c->got, want->got, c->n_got * sizeof(c->got[0]));
        check_text(w, c);
}

static void alone(struct client_job *ret, const char *schema, const char *regex, uint32_t max_tokens, uint64_t seed)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add(&w, schema, regex, max_tokens, seed);
        drive(&w, 0);
        *ret = w.jobs[0];
        check_text(&w, &w.jobs[0]);
        assert_true(w.fleet.n_late == 0 || w.s->stats.slow_masks > 0);
        world_close(&w);
}

static void test_alone(void **state)
{
        unsigned n_stopped = 0;

        for (uint64_t seed = 0; seed < 20; seed++) {
                struct client_job c;

                alone(&c, schemas[seed % N_SCHEMAS], NULL, 200, seed);
                n_stopped += c.end == TDM_JOB_END_STOP;
        }
        assert_true(n_stopped >= 12);
}

/* A file's matrices may have more rows than its tokenizer has pieces. A mask has a bit for each row, and allows none of
 * those without a piece. */
static void test_rows_without_piece(void **state)
{
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *all = NULL, *few = NULL;
        struct world w;

        world_rows_without_piece = 200000;
        world_open(&w, 1, 64, 64, &plain);
        assert_int_equal(tdm_model_make_vocabulary(w.fleet.models[0], &all), 0);
        assert_int_equal(tdm_vocabulary_n_words(all), w.fleet.models[0]->layout.limits.mask_words);
        /* And the other way round. */
        assert_int_equal(tdm_vocabulary_new_tokenizer(&few, w.fleet.models[0]->metadata->tokenizer, 100), 0);
        assert_int_equal(tdm_vocabulary_n_words(few), 2);
        world_close(&w);
        for (uint64_t seed = 0; seed < N_SCHEMAS; seed++) {
                struct client_job c;

                alone(&c, schemas[seed], NULL, 60, seed);
                assert_true(c.n_got > 0);
        }
        world_rows_without_piece = 0;
}

/* The same ids in company, with late masks, with lost workers, and with two steps in flight. */
static void test_same_ids(void **state)
{
        struct client_job want[8];
        struct tdm_scheduler_config config = plain;
        uint32_t n_late = 0;

        for (unsigned i = 0; i < 8; i++)
                alone(&want[i], schemas[i % N_SCHEMAS], NULL, 60, i);
        for (unsigned round = 0; round < 40; round++) {
                struct world w;

                config.steps_in_flight = 1 + round % 3;
                world_open(&w, 100 + round, 64, 64, &config);
                w.fleet.late = round % 4;
                w.fleet.measured = round % 5 == 0 ? TDM_PLACEMENT_BALANCED : w.fleet.measured;
                for (unsigned i = 0; i < 8; i++)
                        add(&w, schemas[i % N_SCHEMAS], NULL, 60, i);
                drive(&w, round % 3 == 0 ? 0 : 10);
                for (unsigned i = 0; i < 8; i++)
                        check_same(&w, &w.jobs[i], &want[i]);
                n_late += w.fleet.n_late;
                world_close(&w);
        }
        assert_true(n_late > 100);
}

/* Guesses from what the job will say; of some the second or a later one is wrong, at times by what no grammar allows.
 */
static uint32_t guess_of(void *data, const struct tdm_job *job, uint32_t most, uint32_t *ret)
{
        const struct client_job *want = (const struct client_job *)data + (job->ids[0] - 400) / 100;
        uint32_t n = TDM_MIN(most, 1 + (job->generated * 7 + (uint32_t)job->id) % 5);
        uint32_t wrong_at = job->generated * 5 % 7;

        n = TDM_MIN(n, want->n_got - TDM_MIN(want->n_got, job->generated));
        for (uint32_t i = 0; i < n; i++)
                ret[i] = want->got[job->generated + i];
        if (wrong_at < n)
                ret[wrong_at] = job->generated % 2 ? 300 : want->got[(job->generated + 3) % want->n_got];
        return n;
}

/* The same where a layer keeps a state: a row that has to run again was never in it. */
static void test_states(void **state)
{
        world_states = 40;
        test_same_ids(state);
        world_states = 0;
}

/* With guesses each row has the mask behind the guesses before it: the same ids, also where such masks are late. */
static void test_guesses(void **state)
{
        struct client_job want[8];
        struct tdm_scheduler_config config = plain;
        uint64_t n_accepted = 0, n_wrong = 0;

        for (unsigned i = 0; i < 8; i++)
                alone(&want[i], schemas[i % N_SCHEMAS], NULL, 60, i);
        config.speculate.guess = guess_of;
        config.speculate.guess_data = want;
        config.speculate.draft_max = 8;
        for (unsigned round = 0; round < 40; round++) {
                struct world w;

                config.steps_in_flight = 1 + round % 3;
                config.max_sequences = round % 2 ? 4 : 16; /* masks of a step, too */
                world_open(&w, 100 + round, 64, 64, &config);
                w.fleet.late = round % 4;
                for (unsigned i = 0; i < 8; i++)
                        add(&w, schemas[i % N_SCHEMAS], NULL, 60, i);
                drive(&w, round % 3 == 0 ? 0 : 10);
                for (unsigned i = 0; i < 8; i++)
                        check_same(&w, &w.jobs[i], &want[i]);
                n_accepted += w.s->stats.accepted;
                n_wrong += w.s->stats.drafted - w.s->stats.accepted;
                world_close(&w);
        }
        print_message("%llu right, %llu wrong\n", (unsigned long long)n_accepted, (unsigned long long)n_wrong);
        assert_true(n_accepted > 400 && n_wrong > 100);
}

/* A job that gives its pages back and reads its tokens again goes on where its grammar is. */
static void test_pushed_out(void **state)
{
        struct client_job want[4];
        uint64_t n_evicted = 0;

        for (unsigned i = 0; i < 4; i++)
                alone(&want[i], schemas[2], NULL, 200, 1 + 4 * i);
        /* How many are pushed out depends on when the threads have compiled the jobs' grammars. */
        for (unsigned round = 0; round < 4 || (n_evicted < 2 && round < 100); round++) {
                struct world w;

                world_open(&w, 1 + round, 9, 20, &plain);
                w.fleet.late = round % 4;
                for (unsigned i = 0; i < 4; i++)
                        add(&w, schemas[2], NULL, 200, 1 + 4 * i);
                drive(&w, round % 4 == 3 ? 20 : 0);
                for (unsigned i = 0; i < 4; i++)
                        check_same(&w, &w.jobs[i], &want[i]);
                n_evicted += w.s->stats.evictions;
                world_close(&w);
        }
        assert_true(n_evicted >= 2);
}

/* A grammar whose masks take long: made on a thread, the same ids, and another's job goes on meanwhile. */
static void test_hard(void **state)
{
        struct client_job want, easy;
        struct world w;

        alone(&want, NULL, HARD, 60, 3);
        alone(&easy, schemas[0], NULL, 100, 1);
        world_open(&w, 7, 64, 64, &plain);
        add(&w, NULL, HARD, 60, 3);
        add(&w, schemas[0], NULL, 100, 1);
        drive(&w, 0);
        check_same(&w, &w.jobs[0], &want);
        check_same(&w, &w.jobs[1], &easy);
        assert_true(w.s->stats.slow_masks > 0);
        print_message("%llu masks, %llu on a thread\n", (unsigned long long)w.s->stats.masks,
                      (unsigned long long)w.s->stats.slow_masks);
        world_close(&w);
}

static void test_length(void **state)
{
        struct client_job c;

        alone(&c, schemas[0], NULL, 3, 1);
        assert_int_equal(c.end, TDM_JOB_END_LENGTH);
        assert_true(c.incomplete);
        alone(&c, NULL, "(ab)*", 4, 1); /* it may end at its limit too */
        assert_int_equal(c.incomplete, c.end == TDM_JOB_END_LENGTH && c.incomplete);
}

static void test_refused(void **state)
{
        static const struct {
                const char *schema, *regex, *message;
                int error;
        } cases[] = {
                { "{\"properties\":{\"a\":{\"pattern\":\"(?<=a)b\"}}}", NULL, "#/properties/a/pattern",
                  TDM_E_UNSUPPORTED },
                { "{\"type\":3}", NULL, "#/type", TDM_E_BAD_REQUEST },
                { "{\"type\":", NULL, "json-schema", TDM_E_BAD_REQUEST },
                { NULL, "a(b", "regex", TDM_E_BAD_REQUEST },
                { "false", NULL, "json-schema", TDM_E_UNSUPPORTED },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct world w;

                world_open(&w, 1, 64, 64, &plain);
                add(&w, cases[i].schema, cases[i].regex, 10, 1);
                drive(&w, 0);
                assert_int_equal(w.jobs[0].end, TDM_JOB_END_ERROR);
                assert_int_equal(w.jobs[0].error, cases[i].error);
                if (!strstr(w.jobs[0].message, cases[i].message))
                        fail_msg("\"%s\" does not say %s", w.jobs[0].message, cases[i].message);
                assert_false(w.jobs[0].accepted);
                world_close(&w);
        }
}

static void test_several(void **state)
{
        struct tdm_job_params p = { .kind = TDM_JOB_GENERATE, .ids = (uint32_t[]){ 400 }, .n_ids = 1 };
        struct tdm_error err;
        struct tdm_job *job;

        p.options.regex = "a";
        p.options.grammar = "root ::= \"a\"";
        assert_int_equal(tdm_job_new(&job, &p, &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "one of json-schema, grammar, regex and tools"));
        p.options.grammar = NULL;
        p.options.ignore_end = true;
        assert_int_equal(tdm_job_new(&job, &p, &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "ignore-end"));
}

/* What a job holds is charged to its user, and given back. */
static void test_charged(void **state)
{
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        struct tdm_accounts *accounts;
        struct tdm_account *account;
        struct tdm_job_params p = { .kind = TDM_JOB_GENERATE, .ids = (uint32_t[]){ 400 }, .n_ids = 1 };
        struct tdm_error err;
        struct tdm_job *job;

        for (int i = 0; i < TDM_N_RESOURCES; i++)
                limits[i] = (struct tdm_resource_limit){ .capacity = 1 << 20, .share_percent = 50 };
        limits[TDM_RESOURCE_GRAMMAR_BYTES].capacity = 20000;
        assert_int_equal(tdm_accounts_new(&accounts, limits), 0);
        account = tdm_accounts_get(accounts, 1000);
        p.account = account;
        p.options.json_schema = schemas[0];
        assert_int_equal(tdm_job_new(&job, &p, &err), 0);
        assert_true(account->used[TDM_RESOURCE_GRAMMAR_BYTES] > strlen(schemas[0]));
        tdm_job_unref(job);
        assert_int_equal(account->used[TDM_RESOURCE_GRAMMAR_BYTES], 0);
        limits[0].capacity = 0;
        {
                static char big[15000];

                memset(big, ' ', sizeof(big) - 1);
                p.options.json_schema = big;
                assert_int_equal(tdm_job_new(&job, &p, &err), TDM_E_QUOTA);
                assert_int_equal(account->used[TDM_RESOURCE_GRAMMAR_BYTES], 0);
        }
        tdm_account_unref(account);
        tdm_accounts_destroy(accounts);
}

/* A constraint of a hard grammar that has made its first mask. */
static struct tdm_constraint *masked_constraint(const struct world *w, struct tdm_vocabulary *v,
                                                struct tdm_account *account)
{
        struct tdm_job_options options = { .regex = HARD };
        struct tdm_constraint *c;
        struct tdm_error err;

        assert_int_equal(tdm_constraint_new(&c, &options, false, account, &err), 0);
        assert_int_equal(tdm_constraint_compile(c, NULL, w->fleet.models[0]->metadata->tokenizer, v, &err), 0);
        return c;
}

/* A user at its share: caches are emptied so that a job fits, but not the mask that took a thread, or the job would ask
 * for it again and again. */
static void test_share_keeps_mask(void **state)
{
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *v = NULL;
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        struct tdm_accounts *accounts;
        struct tdm_account *account;
        struct tdm_constraint *c;
        const uint64_t *words;
        struct tdm_error err;
        struct world w;
        uint64_t whole, others;

        world_open(&w, 1, 64, 64, &plain);
        assert_int_equal(tdm_vocabulary_new_tokenizer(&v, w.fleet.models[0]->metadata->tokenizer,
                                                      tdm_model_hparams(w.fleet.models[0])->n_vocab),
                         0);
        for (int i = 0; i < TDM_N_RESOURCES; i++)
                limits[i] = (struct tdm_resource_limit){ .capacity = 1 << 30, .share_percent = 50 };
        assert_int_equal(tdm_accounts_new(&accounts, limits), 0);
        account = tdm_accounts_get(accounts, 1000);
        c = masked_constraint(&w, v, account);
        assert_int_equal(tdm_constraint_charge(c, &err), 0);
        whole = account->used[TDM_RESOURCE_GRAMMAR_BYTES];
        tdm_constraint_destroy(c);

        others = (UINT64_C(1) << 29) - whole * 3 / 4; /* a half is the user's share */
        assert_int_equal(tdm_account_charge(account, TDM_RESOURCE_GRAMMAR_BYTES, others, &err), 0);
        c = masked_constraint(&w, v, account);
        assert_int_equal(tdm_constraint_charge(c, &err), 0);
        assert_true(account->used[TDM_RESOURCE_GRAMMAR_BYTES] - others < whole * 3 / 4); /* emptied */
        assert_int_equal(tdm_constraint_mask(c, NULL, 0, TDM_CONSTRAINT_LOOKUP, &words, &err), 0);
        tdm_constraint_destroy(c);
        tdm_account_release(account, TDM_RESOURCE_GRAMMAR_BYTES, others);
        tdm_account_unref(account);
        tdm_accounts_destroy(accounts);
        world_close(&w);
}

/* Jobs whose schema came before find its grammar made: of one user only, and with the same ids. */
static void test_kept(void **state)
{
        struct client_job want[N_SCHEMAS];
        struct world w;

        for (unsigned i = 0; i < N_SCHEMAS; i++)
                alone(&want[i], schemas[i], NULL, 60, i);
        world_open(&w, 5, 64, 64, &plain);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < N_SCHEMAS; i++)
                        add(&w, schemas[i], NULL, 60, i);
                drive(&w, round == 2 ? 10 : 0);
                assert_int_equal(w.s->grammars.n, N_SCHEMAS);
                assert_int_equal(w.s->grammars.n_found, round * N_SCHEMAS);
                assert_int_equal(w.s->grammars.n_missed, N_SCHEMAS);
        }
        for (unsigned i = 0; i < 3 * N_SCHEMAS; i++)
                check_same(&w, &w.jobs[i], &want[i % N_SCHEMAS]);
        world_close(&w);
}

static void spoil_token(struct tdm_result *r, uint32_t n_vocab)
{
        if (r->token != TDM_NO_TOKEN)
                r->token = (r->token + 1) % n_vocab;
}

static void spoil_none(struct tdm_result *r, uint32_t n_vocab)
{
        r->token = TDM_NO_TOKEN;
}

/* A worker that reports a token that the mask forbids, or no token although the mask was there before the step,
 * lies. */
static void test_liars(void **state)
{
        static void (*const spoils[])(struct tdm_result *, uint32_t) = { spoil_token, spoil_none };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(spoils); i++) {
                struct world w;

                world_open(&w, 1, 64, 64, &plain);
                add(&w, NULL, "[a-c]{1,9}", 20, 1);
                w.fleet.spoil = spoils[i];
                w.n_jobs = 1;
                for (unsigned k = 0; k < 200000 && w.fleet.n_bad[0] + w.fleet.n_bad[1] == 0; k++) {
                        struct fake_step *s = some_step(&w);

                        if (s)
                                finish_step(&w, s);
                        else
                                usleep(100);
                        turn(&w);
                }
                assert_int_equal(w.fleet.n_bad[0] + w.fleet.n_bad[1], 1);
                assert_int_equal(w.jobs[0].n_got, 0);
                w.fleet.spoil = NULL;
                reset(&w, NULL); /* what the fleet does then */
                drive(&w, 0);
                check_text(&w, &w.jobs[0]);
                world_close(&w);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_alone),
                cmocka_unit_test(test_same_ids),
                cmocka_unit_test(test_hard),
                cmocka_unit_test(test_pushed_out),
                cmocka_unit_test(test_length),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_several),
                cmocka_unit_test(test_charged),
                cmocka_unit_test(test_share_keeps_mask),
                cmocka_unit_test(test_liars),
                cmocka_unit_test(test_kept),
                cmocka_unit_test(test_guesses),
                cmocka_unit_test(test_rows_without_piece),
                cmocka_unit_test(test_states),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
