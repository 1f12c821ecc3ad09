/* Shared by the tests of the fleet: a model built in memory from models/sprout.gguf, and two sequences in flight at
 * once. Whatever happens to the workers, the tokens are those of the undisturbed run. */
#ifndef TDM_DAEMON_FLEET_TEST_RIG_H
#define TDM_DAEMON_FLEET_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/fleet/private.h"

#define N_JOBS 2u
#define N_PROMPT 20u
#define N_TOTAL 60u
#define PAGES_PER_JOB 4u /* of 32 positions each */
#define MAX_ROWS 16u

#ifdef TANDEM_SANITIZED
#define HANG_NS (2000 * TDM_NSEC_PER_MSEC)
#define PATIENCE_NS (120 * TDM_NSEC_PER_SEC)
#else
#define HANG_NS (300 * TDM_NSEC_PER_MSEC)
#define PATIENCE_NS (20 * TDM_NSEC_PER_SEC)
#endif

struct job {
        uint32_t tokens[N_TOTAL];
        uint32_t n_tokens, n_done; /* known, and of these in the cache */
        uint64_t step_id;          /* in flight; 0: none */
        uint32_t n_rows;
};

struct rig {
        struct tdm_loop *loop;
        struct tdm_fleet *fleet;
        struct tdm_gguf *gguf;
        struct tdm_model_description description;
        struct tdm_fleet_model model;
        struct job jobs[N_JOBS];
        enum tdm_placement placement; /* STANDBY: all on a worker that is up */
        uint64_t next_step_id;
        bool hold; /* submit nothing */
        bool bad_token;
        uint32_t n_steps, n_ready, n_resets, n_model_ready;
        uint64_t ready_at_ns, reset_at_ns, killed_at_ns, resumed_at_ns;
        struct tdm_error model_error, step_error;
        char reason[256];
        uint64_t guilty_step;
        /* called after each finished step, with the number of steps so far */
        void (*hook)(struct rig *rig, uint32_t n_steps);
        uint32_t hook_state, hook_after;
};

extern uint32_t expected[N_JOBS][N_TOTAL]; /* tokens of the undisturbed run */

/* Runs the tests, after an undisturbed run of both jobs whose tokens are the expected ones. */
int rig_run_tests(const char *name, const struct CMUnitTest *tests, size_t n);

int plan_of(struct rig *rig, enum tdm_placement placement, uint8_t *plan, bool *ret_degraded);
void jobs_submit(struct rig *rig);
void start_jobs(struct rig *rig, enum tdm_placement placement);
struct rig *rig_new_with(const struct tdm_fleet_config *config);
struct rig *rig_new(void);
/* Time that passed, without the time in which a worker's main thread or this one was ready to run and had no CPU. On a
 * machine that has nothing else to do this is the time on the clock. */
struct stopwatch {
        uint64_t begin_ns;
        pid_t worker;                /* 0: none */
        uint64_t worker_ns, self_ns; /* waited before the beginning */
        uint64_t worker_waited_ns;   /* waited since, as last seen: the worker may be gone when it is asked for */
};
struct stopwatch stopwatch_start(pid_t worker);
uint64_t stopwatch_ns(struct stopwatch *w);
void rig_free_within(struct rig *rig, uint64_t limit_ns);
void rig_free(struct rig *rig);

/* How long wait_for() waits: PATIENCE_NS without the time in which this process or one of the rig's workers had no CPU
 * though it was ready to run. A worker that came or died meanwhile counts as far as it can be asked now. */
struct patience {
        uint64_t begin_ns, self_ns;
        pid_t workers[TDM_N_WORKERS];
        uint64_t workers_ns[TDM_N_WORKERS];
};
struct patience patience_begin(struct rig *rig);
bool patience_is_over(const struct patience *patience, struct rig *rig);

#define wait_for(rig, condition)                                                                                       \
        do {                                                                                                           \
                struct patience patience_ = patience_begin(rig);                                                       \
                while (!(condition)) {                                                                                 \
                        if (patience_is_over(&patience_, rig))                                                         \
                                fail_msg("waited in vain for %s", #condition);                                         \
                        assert_int_equal(tdm_loop_turn((rig)->loop, 20 * TDM_NSEC_PER_MSEC), 0);                       \
                }                                                                                                      \
        } while (0)

/* Ready comes with the first of the two. */
bool is_whole(const struct rig *rig);
bool jobs_finished(const struct rig *rig);
/* Runs both jobs to their end and compares with the undisturbed run. */
void run_jobs(struct rig *rig, enum tdm_placement placement);
pid_t worker_pid(struct rig *rig, enum tdm_worker_index worker);
/* Forgets what the worker's blocks took. A deadline is many times as long as the slowest, and one may have had no CPU
 * for a second. */
void forget_times(struct rig *rig, enum tdm_worker_index worker);
/* -1: not to be read from here (the worker is not dumpable). */
int worker_maps(struct rig *rig, enum tdm_worker_index worker, const char *what);
/* Kills at a different place of the run each time, then everything at once. */
void kill_hook(struct rig *rig, uint32_t n_steps);
void write_script(const char *dir, const char *name, const char *text);
void link_worker(const char *dir, const char *name);

#endif
