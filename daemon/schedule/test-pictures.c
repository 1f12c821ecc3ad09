/* A picture that is longer than the budget of prompts, against a double of the fleet: whatever else there is to do, it
 * gets a step. test-random.c has pictures in random schedules. */
#include "daemon/schedule/test-world.h"

#include "common/log.h"
#include "common/sigbus.h"

#define MAX_ROWS 24u
#define PROMPT_ROWS 4u
#define SEQUENCES 4u
#define PICTURE_ROWS (MAX_ROWS - SEQUENCES) /* the longest that is taken */

static const struct tdm_scheduler_config plain = {
        .max_jobs = MAX_JOBS,
        .max_jobs_per_uid = MAX_JOBS,
        .max_pending_bytes = 1 << 20,
        .max_rows = MAX_ROWS,
        .prefill_rows = PROMPT_ROWS,
        .max_sequences = SEQUENCES,
        .steps_in_flight = 1,
};

/* Each row shows the double the id that it has. */
static void add_picture(struct client_job *c, uint32_t first)
{
        static float shown[PICTURE_ROWS][PICTURE_WIDTH];
        struct tdm_job_picture *p = &c->pictures[c->n_pictures++];

        *p = (struct tdm_job_picture){ .first = first, .n_rows = PICTURE_ROWS, .rows = shown[0], .hash = { 1 } };
        for (uint32_t k = 0; k < PICTURE_ROWS; k++) {
                uint32_t id = tdm_job_picture_id(p->hash, k);

                c->prompt[first + k] = id;
                shown[k][0] = (float)(id >> 16);
                shown[k][1] = (float)(id & 0xffff);
        }
}

static void one_step(struct world *w)
{
        struct fake_step *s = some_step(w);

        world_clock += TDM_NSEC_PER_MSEC;
        if (!w->fleet.ready)
                become_ready(w);
        else if (s)
                finish_step(w, s);
        turn(w);
}

/* A rival in this place has a new prompt as soon as its last one is done. */
static void keep_reading(struct world *w, uint32_t place, uid_t uid, uint32_t chunk)
{
        struct client_job *c = &w->jobs[place];

        if (c->job && !c->done)
                return;
        tdm_job_unref(c->job);
        make_prompt(w, c, 20 + 7 * place, 1); /* they do not end together */
        submit(w, c, 0, uid, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, chunk);
}

/* Steps until the picture's job has its first token; fails behind `most`. Rivals read all the time. */
static uint32_t steps_to_read(struct world *w, struct client_job *c, uint32_t n_rivals, uid_t rivals, uint32_t chunk,
                              uint32_t most)
{
        for (uint32_t n = 1; n <= most; n++) {
                for (uint32_t i = 0; i < n_rivals; i++)
                        keep_reading(w, 1 + i, rivals, chunk);
                one_step(w);
                if (c->n_got > 0)
                        return n;
        }
        fail_msg("the picture's job has no token behind %u steps", most);
        return 0;
}

static void finish(struct world *w, uint32_t n_jobs)
{
        w->n_arrived = w->n_jobs = n_jobs;
        for (uint32_t i = 0; i < 5000 && !all_done(w); i++)
                one_step(w);
        assert_true(all_done(w));
        for (uint32_t i = 0; i < n_jobs; i++)
                check_result(&w->jobs[i], tdm_model_hparams(w->fleet.models[0])->n_vocab);
        world_close(w);
}

static struct client_job *picture_job(struct world *w, uid_t uid, enum tdm_job_priority priority)
{
        struct client_job *c = &w->jobs[0];

        make_prompt(w, c, 40, 4);
        add_picture(c, 10);
        submit(w, c, 0, uid, priority, TDM_PLACEMENT_ANY, 0);
        return c;
}

static void test_alone(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        for (config.steps_in_flight = 1; config.steps_in_flight <= 4; config.steps_in_flight++) {
                world_open(&w, config.steps_in_flight, 64, 64, &config);
                (void)steps_to_read(&w, picture_job(&w, 1, TDM_JOB_INTERACTIVE), 0, 0, 0, 20);
                finish(&w, 1);
        }
}

/* The rest of its step's rows is what texts that are being made have. */
static void test_beside_answers(void **state)
{
        struct world w;

        world_open(&w, 7, 64, 64, &plain);
        for (uint32_t i = 1; i < SEQUENCES; i++) {
                make_prompt(&w, &w.jobs[i], 3, 200);
                submit(&w, &w.jobs[i], 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        }
        for (uint32_t i = 0; w.jobs[1].n_got == 0 || w.jobs[2].n_got == 0 || w.jobs[3].n_got == 0; i++) {
                assert_true(i < 50);
                one_step(&w);
        }
        (void)steps_to_read(&w, picture_job(&w, 1, TDM_JOB_INTERACTIVE), 0, 0, 0, 30);
        finish(&w, SEQUENCES);
}

static void test_beside_prompts(void **state)
{
        /* In the last two each step has a row left for a background job. */
        static const struct {
                uid_t rivals;
                enum tdm_job_priority priority;
                uint32_t chunk;
        } cases[] = { { 1, TDM_JOB_INTERACTIVE, 0 },
                      { 2, TDM_JOB_INTERACTIVE, 0 },
                      { 1, TDM_JOB_BACKGROUND, 1 },
                      { 2, TDM_JOB_BACKGROUND, 1 } };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct tdm_scheduler_config config = plain;
                struct client_job *c;
                struct world w;

                config.clock_ns = world_now;
                world_open(&w, 11 + i, 64, 64, &config);
                for (uint32_t k = 0; k < N_WORLD_MODELS; k++)
                        w.fleet.step_ns[k] = w.fleet.row_ns[k] = TDM_NSEC_PER_MSEC;
                for (uint32_t k = 1; k < SEQUENCES; k++)
                        keep_reading(&w, k, cases[i].rivals, cases[i].chunk);
                c = picture_job(&w, 1, cases[i].priority);
                print_message("FIGURE case %u: %u steps\n", i,
                              steps_to_read(&w, c, SEQUENCES - 1, cases[i].rivals, cases[i].chunk, 200));
                finish(&w, SEQUENCES);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_alone),
                cmocka_unit_test(test_beside_answers),
                cmocka_unit_test(test_beside_prompts),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
