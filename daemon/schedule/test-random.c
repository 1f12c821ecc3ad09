/* The scheduler against a double of the fleet, with random schedules: chunks, batches, arrivals, cancels, pauses,
 * losses at any moment, jobs that kill their worker. A step that follows another one may be done before it. */
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

static void come_back(struct world *w)
{
        w->fleet.away[0] = w->fleet.away[1] = false;
        tdm_scheduler_on_fleet_ready(w->s);
}

/* One thing that may happen. */
static void happen(struct world *w, bool losses)
{
        struct fake_step *step = some_step(w);
        struct client_job *c;

        switch (pick(w, 16)) {
        case 0:
                if (w->n_arrived < w->n_jobs)
                        arrive(w);
                break;
        case 1:
                c = w->n_arrived ? &w->jobs[pick(w, w->n_arrived)] : NULL;
                if (c && !c->done && pick(w, 12) == 0) {
                        c->cancelled = true;
                        tdm_scheduler_cancel(w->s, c->job, NULL);
                }
                break;
        case 2:
                c = w->n_arrived ? &w->jobs[pick(w, w->n_arrived)] : NULL;
                if (c && !c->done) {
                        c->job->paused = !c->job->paused;
                        tdm_scheduler_kick(w->s);
                }
                break;
        case 3:
                if (losses && w->fleet.ready && pick(w, 3) == 0)
                        reset(w, NULL);
                break;
        case 4:
                if (w->s->n_companions > 0 && pick(w, 4) == 0) {
                        tdm_companion_stop_waiting(w->s, UINT64_MAX); /* no job waits for its draft any more */
                        tdm_scheduler_run(w->s);
                        break;
                }
                __attribute__((fallthrough));
        default:
                if (!w->fleet.ready)
                        become_ready(w);
                else if ((w->fleet.away[0] || w->fleet.away[1]) && (!step || pick(w, 4) == 0))
                        come_back(w);
                else if (step)
                        finish_step(w, step);
                else if (w->n_arrived < w->n_jobs)
                        arrive(w);
        }
        turn(w);
}

static uint32_t n_hits, n_evictions; /* over all random runs */
static uint64_t n_drafted, n_accepted;

enum guessing { GUESS_NOT, GUESS_SCRIPT, GUESS_DRAFT };

static bool misses(uint32_t position)
{
        return position % 5 == 0;
}

static uint32_t next(const struct tdm_job *job, const uint32_t *ids, uint32_t n)
{
        return world_next(ids, n, job->request.sampling.seed, job->request.sampling.repeat_penalty != 1,
                          tdm_model_hparams(job->model)->n_vocab);
}

/* Guesses of which the first are right, any number of them. A wrong one may be followed by what would follow the right
 * one, or by what follows itself. */
static uint32_t script(void *userdata, const struct tdm_job *job, uint32_t most, uint32_t *ret)
{
        static unsigned draw = 1;
        uint32_t n = (uint32_t)rand_r(&draw) % (most + 1), n_right = (uint32_t)rand_r(&draw) % (n + 1);
        uint32_t ids[2 * N_CTX], n_ids = job->n_ids;
        bool strays = rand_r(&draw) % 2;

        memcpy(ids, job->ids, n_ids * sizeof(*ids));
        for (uint32_t i = 0; i < n; i++) {
                uint32_t right = next(job, ids, n_ids);

                ret[i] = i < n_right || (i > n_right && !strays) ? right : 300 + right % 100;
                ids[n_ids++] = strays ? ret[i] : right;
        }
        return n;
}

static bool with_pictures;
static uint32_t n_pictures; /* over all random runs */

#define N_KINDS 3u

/* A picture of one of few kinds, so that jobs share some. Each row shows the double the id that it has. */
static struct tdm_job_picture make_picture(uint32_t kind, uint32_t first, uint32_t n_rows)
{
        static float shown[N_KINDS][N_CTX][PICTURE_WIDTH];
        struct tdm_job_picture p = { .first = first, .n_rows = n_rows, .rows = shown[kind][0], .hash = { kind } };

        for (uint32_t k = 0; k < n_rows; k++) {
                uint32_t id = tdm_job_picture_id(p.hash, k);

                shown[kind][k][0] = (float)(id >> 16);
                shown[kind][k][1] = (float)(id & 0xffff);
        }
        return p;
}

/* Those of `like` that the prompt has whole, which begins as like's does, and maybe another one. most: rows of one. */
static void add_pictures(struct world *w, struct client_job *c, const struct client_job *like, uint32_t most)
{
        bool takes = with_pictures && !c->score && !c->killer && !c->breaker && most > 0;
        struct tdm_job_picture *p = c->pictures;
        uint32_t end = 0;

        for (uint32_t i = 0; takes && like && i < like->n_pictures; i++) {
                const struct tdm_job_picture *of = &like->pictures[i];

                if (of->first + of->n_rows > c->n_prompt ||
                    c->prompt[of->first + of->n_rows - 1] != tdm_job_picture_id(of->hash, of->n_rows - 1))
                        break;
                p[c->n_pictures++] = *of;
                end = of->first + of->n_rows;
        }
        if (takes && c->n_pictures < MAX_PICTURES && end < c->n_prompt && pick(w, 4)) {
                uint32_t first = end + pick(w, TDM_MIN(c->n_prompt - end, 40u));

                p[c->n_pictures++] =
                        make_picture(pick(w, N_KINDS), first, 1 + pick(w, TDM_MIN(most, c->n_prompt - first)));
        }
        for (uint32_t i = 0; i < c->n_prompt; i++)
                if (c->prompt[i] & TDM_PICTURE_ID)
                        c->prompt[i] = 300;
        for (uint32_t i = 0; i < c->n_pictures; i++)
                for (uint32_t k = 0; k < p[i].n_rows; k++)
                        c->prompt[p[i].first + k] = tdm_job_picture_id(p[i].hash, k);
        n_pictures += c->n_pictures;
}

/* How many steps followed another. */
static uint32_t run_random(unsigned seed, bool losses, bool culprits, enum guessing guessing)
{
        struct tdm_scheduler_stats stats;
        struct world w;
        unsigned draw = seed;
        uint32_t n_relayed, max_rows = 8 + (uint32_t)rand_r(&draw) % 40, max_seqs = 1 + (uint32_t)rand_r(&draw) % 8;
        struct tdm_scheduler_config config = {
                .max_jobs = MAX_JOBS,
                .max_jobs_per_uid = MAX_JOBS,
                .max_pending_bytes = 1 << 20,
                .max_rows = max_rows,
                .prefill_rows = 1 + (uint32_t)rand_r(&draw) % max_rows,
                .max_sequences = max_seqs,
                .steps_in_flight = (uint32_t)rand_r(&draw) % 5,
                .no_relay = (uint32_t)rand_r(&draw) % 4 == 0,
                .speculate.draft_max = guessing ? TDM_MAX_GUESSES : 0,
                .speculate.guess = guessing == GUESS_SCRIPT ? script : NULL,
                .speculate.all_guesses = guessing == GUESS_DRAFT,
                .speculate.ends_early = guessing == GUESS_DRAFT && seed % 2,
                .open_draft = world_open_draft,
                .open_data = &w,
        };
        static const enum tdm_placement kinds[] = { TDM_PLACEMENT_SPLIT,    TDM_PLACEMENT_NPU,
                                                    TDM_PLACEMENT_GPU,      TDM_PLACEMENT_STANDBY,
                                                    TDM_PLACEMENT_BALANCED, TDM_PLACEMENT_BALANCED,
                                                    TDM_PLACEMENT_BALANCED };

        /* Enough for one job of full size at least, often not for all at once. */
        world_open(&w, seed, 10 + (uint32_t)rand_r(&draw) % 40, 5 + (uint32_t)rand_r(&draw) % 20, &config);
        w.n_jobs = 1 + pick(&w, MAX_JOBS - 1);
        w.away = losses;
        w.fleet.misses = guessing == GUESS_DRAFT ? misses : NULL;
        w.fleet.is_sure = config.speculate.ends_early;
        w.fleet.measured = kinds[pick(&w, TDM_ARRAY_SIZE(kinds))];
        w.fleet.slowness[0] = pick(&w, 3) * 1000;
        w.fleet.slowness[1] = pick(&w, 3) * 1000;
        for (uint32_t i = 0; i < w.n_jobs; i++) {
                uint32_t n = pick(&w, 4) ? 1 + pick(&w, 20) : 1 + pick(&w, 250);

                const struct client_job *like = i > 0 && pick(&w, 2) ? &w.jobs[pick(&w, i)] : NULL;

                for (uint32_t k = 0; like && k < i; k++)
                        if (w.jobs[k].n_prompt > 3 * like->n_prompt)
                                like = &w.jobs[k];
                if (like && pick(&w, 4))
                        n = TDM_MAX(n, like->n_prompt);
                make_prompt(&w, &w.jobs[i], n, 1 + pick(&w, pick(&w, 4) ? 12 : 60));
                if (like) { /* it begins like another one */
                        if (!like->killer && !like->breaker)
                                memcpy(w.jobs[i].prompt, like->prompt, (1 + pick(&w, TDM_MIN(n, like->n_prompt))) * 4);
                }
                w.jobs[i].penalty = pick(&w, 3) == 0;
                w.jobs[i].score = pick(&w, 6) == 0;
                w.jobs[i].seed = pick(&w, 1000);
                if (guessing == GUESS_DRAFT && !w.jobs[i].score)
                        w.jobs[i].draft = (const char *const[]){ "draft", "draft", "self", NULL }[pick(&w, 4)];
                if (culprits && pick(&w, 6) == 0) {
                        w.jobs[i].killer = pick(&w, 2);
                        w.jobs[i].breaker = !w.jobs[i].killer;
                        w.jobs[i].prompt[pick(&w, n)] = w.jobs[i].killer ? KILLER : BREAKER;
                }
                if (with_pictures)
                        add_pictures(&w, &w.jobs[i], like, max_rows - max_seqs);
        }
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++)
                happen(&w, losses && i < 400);
        for (uint32_t i = 0; i < w.n_arrived; i++) /* the paused ones too */
                w.jobs[i].job->paused = false;
        tdm_scheduler_kick(w.s);
        turn(&w);
        for (uint32_t i = 0; i < 50000 && !all_done(&w); i++) {
                for (uint32_t k = 0; k < w.n_arrived; k++)
                        w.jobs[k].job->paused = false;
                tdm_scheduler_kick(w.s);
                happen(&w, false);
        }
        for (uint32_t i = 0; i < w.n_jobs; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        while (some_step(&w))
                finish_step(&w, some_step(&w));
        turn(&w);
        n_relayed = w.fleet.n_relayed;
        tdm_scheduler_stats(w.s, &stats);
        n_drafted += stats.drafted;
        n_accepted += stats.accepted;
        n_hits += (uint32_t)stats.prefix_hits;
        n_evictions += (uint32_t)stats.evictions;
        world_close(&w);
        return n_relayed;
}

static unsigned n_rounds(void)
{
        const char *rounds = getenv("TANDEM_TEST_ROUNDS");

        return rounds ? (unsigned)atoi(rounds) : 60;
}

static void test_random(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(seed, false, false, GUESS_NOT);
        assert_true(n_relayed > n_rounds());
        assert_true(n_hits > n_rounds() / 3);
        assert_true(n_evictions > n_rounds() / 3);
}

static void test_random_losses(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(100000 + seed, true, false, GUESS_NOT);
        assert_true(n_relayed > n_rounds());
}

static void test_random_culprits(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(200000 + seed, true, true, GUESS_NOT);
        assert_true(n_relayed > n_rounds());
}

static void test_random_guesses(void **state)
{
        uint32_t n_relayed = 0;

        n_drafted = n_accepted = 0;
        n_hits = n_evictions = 0;
        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(300000 + seed, seed % 2, seed % 3 == 0, GUESS_SCRIPT);
        assert_true(n_relayed > n_rounds());
        assert_true(n_hits > n_rounds() / 3);
        assert_true(n_evictions > n_rounds() / 3);
        assert_true(n_accepted > 10 * n_rounds() && n_accepted < n_drafted);
}

static void test_random_drafts(void **state)
{
        n_drafted = n_accepted = 0;
        n_evictions = 0;
        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                run_random(400000 + seed, seed % 2, seed % 3 == 0, GUESS_DRAFT);
        assert_true(n_evictions > n_rounds() / 3);
        print_message("FIGURE %llu of %llu guesses were right\n", (unsigned long long)n_accepted,
                      (unsigned long long)n_drafted);
        assert_true(n_accepted > 5 * n_rounds() && n_accepted < n_drafted);
}

/* A layer keeps a state, and the pages for it are few. */
static void test_random_states(void **state)
{
        uint32_t n_relayed = 0;

        n_drafted = n_hits = n_evictions = 0;
        for (unsigned seed = 1; seed <= n_rounds(); seed++) {
                world_states = TDM_PAGES_STATES + seed * 7 % 13;
                n_relayed +=
                        run_random(500000 + seed, seed % 2, seed % 3 == 0, seed % 4 == 0 ? GUESS_SCRIPT : GUESS_NOT);
        }
        world_states = 0;
        print_message("FIGURE %u hits, %u evictions\n", n_hits, n_evictions);
        assert_int_equal(n_relayed + n_drafted, 0);
        assert_true(n_hits > n_rounds() / 6);
        assert_true(n_evictions > n_rounds() / 3);
}

/* Every third with losses and jobs that kill, every second with guesses. */
static void test_random_pictures(void **state)
{
        uint32_t n_relayed = 0;

        n_hits = n_evictions = 0;
        with_pictures = true;
        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(600000 + seed, seed % 3 == 0, seed % 3 == 0,
                                        seed % 4 == 1 ? GUESS_SCRIPT :
                                        seed % 4 == 3 ? GUESS_DRAFT :
                                                        GUESS_NOT);
        with_pictures = false;
        print_message("FIGURE %u pictures, %u hits, %u evictions\n", n_pictures, n_hits, n_evictions);
        assert_true(n_relayed > n_rounds() / 3);
        assert_true(n_pictures > 3 * n_rounds());
        assert_true(n_hits > n_rounds() / 6);
        assert_true(n_evictions > n_rounds() / 6);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_random),          cmocka_unit_test(test_random_losses),
                cmocka_unit_test(test_random_culprits), cmocka_unit_test(test_random_guesses),
                cmocka_unit_test(test_random_drafts),   cmocka_unit_test(test_random_states),
                cmocka_unit_test(test_random_pictures),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
