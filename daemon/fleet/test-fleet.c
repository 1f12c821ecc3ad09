/* The fleet against real workers: a model is built in memory from models/sprout.gguf, two sequences are in flight at
 * once, and whatever happens to the workers, the tokens are those of the undisturbed run. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/ring-layout.h"
#include "common/sigbus.h"
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
#define PATIENCE_NS (60 * TDM_NSEC_PER_SEC)
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
        enum tdm_placement placement; /* EITHER: all on a worker that is up */
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

static uint32_t expected[N_JOBS][N_TOTAL];
static bool have_expected;

static int plan_of(struct rig *rig, enum tdm_placement placement, uint8_t *plan, bool *ret_degraded)
{
        struct tdm_placement_workers workers;

        tdm_fleet_placement_workers(rig->fleet, &workers);
        return tdm_placement_plan(&workers, &rig->model.hparams, placement, plan, ret_degraded);
}

static void job_submit(struct rig *rig, unsigned index)
{
        struct job *job = &rig->jobs[index];
        const struct tdm_steps_layout *l = &rig->model.layout;
        uint8_t *base = rig->model.steps->base;
        struct tdm_step_head *head = tdm_steps_head(base, l, index);
        struct tdm_step_row *rows = tdm_steps_rows(base, l, index);
        uint32_t n = TDM_MIN(MAX_ROWS, job->n_tokens - job->n_done);
        bool last = job->n_done + n == job->n_tokens;
        enum tdm_placement placement = rig->placement;
        bool degraded;

        if (rig->hold || job->step_id != 0 || job->n_tokens >= N_TOTAL)
                return;
        memset(head, 0, sizeof(*head));
        head->step_id = ++rig->next_step_id;
        head->epoch = tdm_fleet_epoch(rig->fleet);
        head->n_rows = n;
        head->n_seqs = 1;
        head->n_logits = last;
        if (placement == TDM_PLACEMENT_EITHER)
                placement = tdm_fleet_worker_is_up(rig->fleet, TDM_WORKER_GPU) ? TDM_PLACEMENT_GPU : TDM_PLACEMENT_NPU;
        if (plan_of(rig, placement, head->plan, &degraded) < 0)
                return;
        for (uint32_t i = 0; i < n; i++)
                rows[i] = (struct tdm_step_row){ .token = job->tokens[job->n_done + i],
                                                 .position = job->n_done + i,
                                                 .logits = last && i == n - 1 ? 0 : UINT32_MAX };
        if (rig->bad_token)
                rows[0].token = UINT32_MAX;
        tdm_steps_seqs(base, l, index)[0] = (struct tdm_step_seq){ .table = index, .n_rows = n };
        tdm_steps_logits(base, l, index)[0] = (struct tdm_step_logits){
                .row = n - 1,
                .target = UINT32_MAX,
                .sampling = { .temperature = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 7 + index },
        };
        job->n_rows = n;
        job->step_id = head->step_id;
        if (tdm_fleet_submit(rig->fleet, rig->model.model_id, index) < 0)
                job->step_id = 0;
}

static void jobs_submit(struct rig *rig)
{
        for (unsigned i = 0; i < N_JOBS; i++)
                job_submit(rig, i);
}

static void on_ready(uint32_t epoch, void *userdata)
{
        struct rig *rig = userdata;

        assert_int_equal(epoch, tdm_fleet_epoch(rig->fleet));
        assert_true(tdm_fleet_is_ready(rig->fleet));
        rig->n_ready++;
        rig->ready_at_ns = tdm_now_ns();
        jobs_submit(rig);
}

static void on_step_done(uint32_t model_id, uint32_t slot, uint64_t step_id, void *userdata)
{
        struct rig *rig = userdata;
        struct job *job = &rig->jobs[slot];
        const struct tdm_result *result =
                (const struct tdm_result *)(rig->model.results->base + slot * rig->model.layout.results_slot_bytes);

        assert_int_equal(model_id, rig->model.model_id);
        assert_int_equal(step_id, job->step_id);
        job->step_id = 0;
        job->n_done += job->n_rows;
        if (job->n_done == job->n_tokens)
                job->tokens[job->n_tokens++] = result->token;
        rig->n_steps++;
        job_submit(rig, slot);
        if (rig->hook)
                rig->hook(rig, rig->n_steps);
}

static void on_step_failed(uint32_t model_id, uint32_t slot, uint64_t step_id, const struct tdm_error *err,
                           void *userdata)
{
        struct rig *rig = userdata;

        assert_int_equal(step_id, rig->jobs[slot].step_id);
        rig->jobs[slot].step_id = 0;
        rig->step_error = *err;
}

static void on_reset(uint32_t epoch, enum tdm_worker_index worker, const char *reason, uint32_t guilty_model,
                     uint32_t guilty_slot, uint64_t guilty_step, void *userdata)
{
        struct rig *rig = userdata;

        assert_false(tdm_fleet_is_ready(rig->fleet));
        rig->n_resets++;
        rig->reset_at_ns = tdm_now_ns();
        rig->guilty_step = guilty_step;
        snprintf(rig->reason, sizeof(rig->reason), "%s", reason);
        for (unsigned i = 0; i < N_JOBS; i++)
                rig->jobs[i].step_id = 0;
}

static void on_model_failed(uint32_t model_id, const struct tdm_error *err, void *userdata)
{
        struct rig *rig = userdata;

        rig->model_error = *err;
}

static void on_model_ready(uint32_t model_id, void *userdata)
{
        struct rig *rig = userdata;

        rig->n_model_ready++;
        if (tdm_fleet_is_ready(rig->fleet))
                jobs_submit(rig);
}

/* ---- building ---- */

static void build_model(struct rig *rig)
{
        struct tdm_fleet_model *m = &rig->model;
        struct tdm_steps_limits limits = {
                .max_rows = MAX_ROWS, .max_seqs = 4, .max_logits = 4, .n_tables = N_JOBS, .table_entries = PAGES_PER_JOB
        };
        struct tdm_weights_plan *plan;
        struct tdm_error err = { 0 };
        int fd = open("models/sprout.gguf", O_RDONLY | O_CLOEXEC);

        assert_true(fd >= 0);
        if (tdm_gguf_open(&rig->gguf, fd, "sprout.gguf", &err) != 0 ||
            tdm_model_describe(rig->gguf, &rig->description, &err) != 0 ||
            tdm_weights_plan_new(&plan, &rig->description, &err) != 0)
                fail_msg("%s", err.message);
        m->model_id = 1;
        m->name = "sprout";
        m->hparams = rig->description.hparams;
        assert_int_equal(tdm_segment_create(&m->weights, "weights", tdm_weights_plan_size(plan)), 0);
        if (tdm_weights_build(plan, rig->gguf, m->weights->base, 1, NULL, NULL, &err) != 0)
                fail_msg("%s", err.message);
        tdm_weights_plan_destroy(plan);
        assert_int_equal(tdm_segment_seal(m->weights), 0);
        m->n_sealed = m->weights->n_chunks;

        assert_int_equal(tdm_kv_geometry_init(&m->kv_geometry, &m->hparams, TDM_KV_F16, N_JOBS * PAGES_PER_JOB,
                                              N_JOBS * PAGES_PER_JOB),
                         0);
        tdm_steps_layout(&limits, &m->layout);
        assert_int_equal(tdm_segment_create(&m->kv, "kv", m->kv_geometry.size_bytes), 0);
        assert_int_equal(tdm_segment_create(&m->steps, "steps", m->layout.size_bytes), 0);
        assert_int_equal(tdm_segment_create(&m->results, "results", m->layout.results_bytes), 0);
        assert_int_equal(tdm_segment_create(&m->activations, "activations",
                                            (uint64_t)TDM_STEP_SLOTS * MAX_ROWS * m->hparams.d_model * sizeof(float)),
                         0);
        tdm_steps_format(m->steps->base, &m->layout);
        for (unsigned i = 0; i < N_JOBS; i++)
                for (unsigned g = 0; g < TDM_KV_GROUPS; g++)
                        for (unsigned p = 0; p < PAGES_PER_JOB; p++)
                                tdm_steps_table(m->steps->base, &m->layout, i, (enum tdm_kv_group)g)[p] =
                                        i * PAGES_PER_JOB + p;
}

static void start_jobs(struct rig *rig, enum tdm_placement placement)
{
        rig->placement = placement;
        memset(rig->jobs, 0, sizeof(rig->jobs));
        for (unsigned i = 0; i < N_JOBS; i++) {
                rig->jobs[i].n_tokens = N_PROMPT;
                for (unsigned t = 0; t < N_PROMPT; t++)
                        rig->jobs[i].tokens[t] = 2 + (t * 37 + i * 11) % 200;
        }
}

static struct rig *rig_new_with(const struct tdm_fleet_config *config)
{
        static const struct tdm_fleet_callbacks callbacks = {
                .on_ready = on_ready,
                .on_step_done = on_step_done,
                .on_step_failed = on_step_failed,
                .on_reset = on_reset,
                .on_model_failed = on_model_failed,
                .on_model_ready = on_model_ready,
        };
        struct rig *rig = calloc(1, sizeof(*rig));
        struct tdm_error err = { 0 };

        assert_non_null(rig);
        if (tdm_loop_new(&rig->loop, &err) != 0)
                fail_msg("%s", err.message);
        build_model(rig);
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = true;
        if (tdm_fleet_new(&rig->fleet, rig->loop, config, &callbacks, rig, &err) != 0 ||
            tdm_fleet_add_model(rig->fleet, &rig->model, &err) != 0)
                fail_msg("%s", err.message);
        return rig;
}

static struct rig *rig_new(void)
{
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };

        return rig_new_with(&config);
}

/* Time that passed, without the time in which a worker's main thread or this one was ready to run and had no CPU. On a
 * machine that has nothing else to do this is the time on the clock. */
struct stopwatch {
        uint64_t begin_ns;
        pid_t worker;                /* 0: none */
        uint64_t worker_ns, self_ns; /* waited before the beginning */
        uint64_t worker_waited_ns;   /* waited since, as last seen: the worker may be gone when it is asked for */
};

static uint64_t waited_ns(pid_t pid)
{
        unsigned long long waited = 0;
        char path[40];
        FILE *f;

        snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
        f = fopen(path, "re");
        if (!f)
                return 0;
        if (fscanf(f, "%*u %llu", &waited) != 1)
                waited = 0;
        fclose(f);
        return waited;
}

static struct stopwatch stopwatch_start(pid_t worker)
{
        return (struct stopwatch){ .begin_ns = tdm_now_ns(),
                                   .worker = worker,
                                   .worker_ns = worker ? waited_ns(worker) : 0,
                                   .self_ns = waited_ns(getpid()) };
}

static uint64_t stopwatch_ns(struct stopwatch *w)
{
        uint64_t passed, waited, now = w->worker ? waited_ns(w->worker) : 0;

        w->worker_waited_ns = TDM_MAX(w->worker_waited_ns, now - TDM_MIN(now, w->worker_ns));
        waited = w->worker_waited_ns + waited_ns(getpid()) - w->self_ns;
        passed = tdm_now_ns() - w->begin_ns;
        return passed - TDM_MIN(passed, waited);
}

static void rig_free_within(struct rig *rig, uint64_t limit_ns)
{
        struct stopwatch watch = stopwatch_start(0);

        tdm_fleet_destroy(rig->fleet);
        assert_true(stopwatch_ns(&watch) < limit_ns);
        tdm_loop_destroy(rig->loop);
        tdm_segment_destroy(rig->model.weights);
        tdm_segment_destroy(rig->model.kv);
        tdm_segment_destroy(rig->model.steps);
        tdm_segment_destroy(rig->model.results);
        tdm_segment_destroy(rig->model.activations);
        tdm_model_description_deinit(&rig->description);
        tdm_gguf_close(rig->gguf);
        free(rig);
}

static void rig_free(struct rig *rig)
{
        rig_free_within(rig, 2 * TDM_NSEC_PER_SEC + TDM_NSEC_PER_SEC / 2);
}

#define wait_for(rig, condition)                                                                                       \
        do {                                                                                                           \
                uint64_t until_ = tdm_now_ns() + PATIENCE_NS;                                                          \
                while (!(condition)) {                                                                                 \
                        if (tdm_now_ns() > until_)                                                                     \
                                fail_msg("waited in vain for %s", #condition);                                         \
                        assert_int_equal(tdm_loop_turn((rig)->loop, 20 * TDM_NSEC_PER_MSEC), 0);                       \
                }                                                                                                      \
        } while (0)

/* Ready comes with the first of the two. */
static bool is_whole(const struct rig *rig)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (tdm_fleet_usable(&rig->fleet->workers[i]) &&
                    !tdm_fleet_worker_is_up(rig->fleet, (enum tdm_worker_index)i))
                        return false;
        return tdm_fleet_is_ready(rig->fleet);
}

static bool jobs_finished(const struct rig *rig)
{
        for (unsigned i = 0; i < N_JOBS; i++)
                if (rig->jobs[i].n_tokens < N_TOTAL)
                        return false;
        return true;
}

/* Runs both jobs to their end and compares with the undisturbed run. */
static void run_jobs(struct rig *rig, enum tdm_placement placement)
{
        wait_for(rig, is_whole(rig));
        start_jobs(rig, placement);
        rig->hold = false;
        rig->n_steps = 0;
        jobs_submit(rig);
        wait_for(rig, jobs_finished(rig));
        rig->hold = true;
        for (unsigned i = 0; i < N_JOBS; i++) {
                if (!have_expected)
                        memcpy(expected[i], rig->jobs[i].tokens, sizeof(expected[i]));
                assert_memory_equal(rig->jobs[i].tokens, expected[i], sizeof(expected[i]));
        }
        have_expected = true;
}

static pid_t worker_pid(struct rig *rig, enum tdm_worker_index worker)
{
        struct tdm_worker_status status;

        tdm_fleet_worker_status(rig->fleet, worker, &status);
        assert_true(status.pid > 0); /* kill(0) would be us */
        return status.pid;
}

/* -1: not to be read from here (the worker is not dumpable). */
static int worker_maps(struct rig *rig, enum tdm_worker_index worker, const char *what)
{
        char path[64], line[512];
        FILE *file;
        int n = 0, lines = 0;

        snprintf(path, sizeof(path), "/proc/%d/maps", (int)worker_pid(rig, worker));
        file = fopen(path, "re");
        if (!file)
                return -1;
        while (fgets(line, sizeof(line), file)) {
                lines++;
                n += strstr(line, what) != NULL;
        }
        fclose(file);
        return lines > 0 ? n : -1;
}

/* ---- tests ---- */

static void placements(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu, gpu;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_model_ready, 1);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_int_equal(npu.state, TDM_WORKER_READY);
        assert_string_equal(npu.device, "host");
        assert_string_equal(npu.requested, "host");
        assert_true(strlen(npu.sandbox) > 0);
        assert_int_equal(npu.done[TDM_BLOCK_ATTENTION].blocks, rig->n_steps * rig->model.hparams.n_layers);
        assert_int_equal(npu.done[TDM_BLOCK_FFN].blocks, 0);
        assert_int_equal(gpu.done[TDM_BLOCK_FFN].blocks, rig->n_steps * rig->model.hparams.n_layers);
        assert_int_equal(gpu.done[TDM_BLOCK_ATTENTION].blocks, 0);
        assert_int_equal(gpu.done[TDM_BLOCK_SAMPLE].blocks, rig->n_steps);
        assert_true(npu.busy_ns > 0 && npu.scratch_bytes > 0 &&
                    npu.done[TDM_BLOCK_ATTENTION].rows >= N_JOBS * (N_TOTAL - 1));
        assert_true(tdm_fleet_model_scratch(rig->fleet, 1) >= npu.scratch_bytes + gpu.scratch_bytes);

        /* The KV cache goes to who runs attention, when it does. */
        assert_int_equal(rig->fleet->models[0]->on[TDM_WORKER_GPU].kv, TDM_FLEET_KV_NONE);
        assert_true(worker_maps(rig, TDM_WORKER_NPU, "memfd:tandem-kv") != 0);
        assert_true(worker_maps(rig, TDM_WORKER_GPU, "memfd:tandem-kv") <= 0);
        run_jobs(rig, TDM_PLACEMENT_GPU);
        assert_int_equal(rig->fleet->models[0]->on[TDM_WORKER_GPU].kv, TDM_FLEET_KV_GRANTED);
        assert_true(worker_maps(rig, TDM_WORKER_GPU, "memfd:tandem-kv") != 0);
        run_jobs(rig, TDM_PLACEMENT_NPU);
        run_jobs(rig, TDM_PLACEMENT_ANY);
        assert_int_equal(tdm_fleet_recoveries(rig->fleet), 0);
        assert_int_equal(rig->n_resets, 0);
        rig_free(rig);
}

/* Kills at a different place of the run each time, then everything at once. */
static void kill_hook(struct rig *rig, uint32_t n_steps)
{
        static const struct {
                uint32_t step;
                bool npu, gpu;
        } kills[] = { { 1, true, false },  { 5, false, true },  { 13, true, true },
                      { 14, true, false }, { 40, false, true }, { 60, true, true } };

        if (rig->hook_state < TDM_ARRAY_SIZE(kills) && n_steps >= kills[rig->hook_state].step) {
                if (kills[rig->hook_state].npu)
                        kill(worker_pid(rig, TDM_WORKER_NPU), SIGKILL);
                if (kills[rig->hook_state].gpu)
                        kill(worker_pid(rig, TDM_WORKER_GPU), SIGKILL);
                rig->hook_state++;
        }
}

static void killed(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu;
        uint64_t t0;

        rig->hook = kill_hook;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->hook_state, 6);
        assert_true(rig->n_resets >= 4 && rig->n_resets <= 6);
        assert_int_equal(tdm_fleet_recoveries(rig->fleet), rig->n_resets);
        assert_int_equal(rig->guilty_step, 0); /* a signal from outside is nobody's fault */
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_true(npu.restarts >= 3);
        assert_non_null(strstr(npu.last_exit, "signal 9"));
        assert_true(npu.done[TDM_BLOCK_ATTENTION].blocks >= rig->n_steps * rig->model.hparams.n_layers);

        /* Idle, with nothing in flight. */
        wait_for(rig, is_whole(rig));
        t0 = tdm_now_ns();
        kill(worker_pid(rig, TDM_WORKER_GPU), SIGKILL);
        wait_for(rig, !tdm_fleet_is_ready(rig->fleet));
        wait_for(rig, is_whole(rig));
        print_message("from kill -9 to ready: %.1f ms\n", (double)(rig->ready_at_ns - t0) / 1e6);
        rig->hook = NULL;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* A signal that is the process's own doing puts the step under suspicion; one from outside blames nobody. */
static void blamed(void **state)
{
        static const struct {
                int signo;
                uint64_t guilty;
        } deaths[] = { { SIGKILL, 0 }, { SIGSEGV, 77777 }, { SIGTERM, 0 }, { SIGABRT, 77777 } };
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *w = &rig->fleet->workers[TDM_WORKER_NPU];

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(deaths); i++) {
                struct tdm_fleet_step *step = &rig->fleet->models[0]->steps[0];

                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                /* As if it were in that step: what it publishes is believed for this. */
                *step = (struct tdm_fleet_step){ .step_id = 77777, .n_blocks = 3, .queued = true };
                atomic_store(&w->progress->running, tdm_progress_pack(77777, 1));
                rig->guilty_step = 1;
                kill(w->pid, deaths[i].signo);
                wait_for(rig, rig->n_resets == i + 1);
                assert_int_equal(rig->guilty_step, deaths[i].guilty);
                wait_for(rig, is_whole(rig));
        }
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

static void stop_hook(struct rig *rig, uint32_t n_steps)
{
        if ((n_steps == 11 && rig->hook_state == 0) || (n_steps == 50 && rig->hook_state == 1)) {
                kill(worker_pid(rig, rig->hook_state == 0 ? TDM_WORKER_NPU : TDM_WORKER_GPU), SIGSTOP);
                rig->hook_state++;
        }
}

static void stopped(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu, gpu;

        rig->hook = stop_hook;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 2);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_int_equal(npu.restarts, 1);
        assert_int_equal(gpu.restarts, 1);
        assert_non_null(strstr(npu.last_exit, "no progress for"));
        assert_non_null(strstr(npu.last_exit, "in attention"));
        assert_non_null(strstr(npu.last_exit, "stopped"));
        assert_non_null(strstr(gpu.last_exit, "no progress for"));
        assert_int_equal(rig->guilty_step, 0);

        /* One dies while the other is stopped: its silence about the new epoch is found too. */
        wait_for(rig, is_whole(rig));
        kill(worker_pid(rig, TDM_WORKER_GPU), SIGSTOP);
        kill(worker_pid(rig, TDM_WORKER_NPU), SIGKILL);
        wait_for(rig, rig->n_resets == 3);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* A process that SIGKILL does not end is given up, its models with it. There is none such here: it is said to be one.
 */
static void abandoned(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *w = &rig->fleet->workers[TDM_WORKER_GPU];
        struct tdm_error err = { 0 };

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        kill(w->pid, SIGSTOP); /* so that it does not leave when it is asked */
        tdm_fleet_worker_leave(w, "a test");
        tdm_fleet_worker_abandon(w);
        wait_for(rig, rig->model_error.code != 0);
        assert_int_equal(rig->model_error.code, TDM_E_NO_WORKER);
        wait_for(rig, is_whole(rig));
        assert_int_equal(w->state, TDM_WORKER_QUARANTINED);
        rig->model.model_id = 2;
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), 0);
        wait_for(rig, rig->n_model_ready == 2);
        run_jobs(rig, TDM_PLACEMENT_NPU);

        /* It goes after all, and may come back when an admin says so. */
        kill(w->pid, SIGKILL);
        wait_for(rig, w->phase == TDM_FLEET_NO_PROCESS);
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_GPU, "a test"), 0);
        wait_for(rig, rig->n_resets == 2);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* tandemd is killed: nobody stays behind. */
static void orphans(void **state)
{
        pid_t pids[TDM_N_WORKERS] = { 0 }, daemon;
        int pair[2], status;

        assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
        assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
        daemon = fork();
        if (daemon == 0) {
                struct rig *rig = rig_new();

                wait_for(rig, is_whole(rig));
                for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                        pids[i] = worker_pid(rig, (enum tdm_worker_index)i);
                if (write(pair[1], pids, sizeof(pids)) != sizeof(pids))
                        _exit(1);
                for (;;)
                        tdm_loop_turn(rig->loop, TDM_NSEC_PER_SEC);
        }
        assert_int_equal(read(pair[0], pids, sizeof(pids)), sizeof(pids));
        kill(daemon, SIGKILL);
        assert_int_equal(waitpid(daemon, &status, 0), daemon);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                pid_t r = 0;

                for (int ms = 0; ms < 10000 && r == 0; ms += 5) {
                        r = waitpid(pids[i], &status, WNOHANG);
                        if (r == 0)
                                usleep(5000);
                }
                assert_int_equal(r, pids[i]);
        }
        close(pair[0]);
        close(pair[1]);
        assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

static void restart_hook(struct rig *rig, uint32_t n_steps)
{
        if (n_steps % 20 == 10)
                assert_int_equal(tdm_fleet_restart(rig->fleet, n_steps % 40 == 10 ? TDM_WORKER_NPU : TDM_WORKER_GPU,
                                                   "asked by a test"),
                                 0);
}

static void restarted(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu;

        rig->hook = restart_hook;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_true(npu.restarts >= 1);
        assert_string_equal(npu.last_exit, "asked by a test");
        assert_true(rig->n_resets >= 2);
        rig_free(rig);
}

/* ---- a peer that scribbles ---- */

static struct tdm_ring_shared *map_ring(int fd)
{
        struct stat st;
        void *p;

        assert_int_equal(fstat(fd, &st), 0);
        p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(p != MAP_FAILED);
        return p; /* leaked on purpose: the test is short */
}

/* Five kinds of scribble, each at every step until it has ended an epoch: an index that its honest owner writes again
 * before anybody looks at it has done no harm, and every epoch has rings of its own. */
static void scribble_hook(struct rig *rig, uint32_t n_steps)
{
        struct tdm_fleet *f = rig->fleet;
        struct tdm_ring_shared *ring;

        if (rig->hook_state < rig->n_resets) {
                rig->hook_state++;
                rig->hook_after = n_steps + 3;
        }
        if (n_steps < rig->hook_after)
                return;
        switch (rig->hook_state) {
        case 0: /* an index that cannot be, towards a worker */
                atomic_store(&tdm_ring_shared(f->workers[TDM_WORKER_GPU].ring_to)->produced, 5000);
                break;
        case 1: /* towards tandemd */
                ring = tdm_ring_shared(f->workers[TDM_WORKER_GPU].ring_from);
                atomic_store(&ring->produced, atomic_load(&ring->produced) + 4000);
                break;
        case 2: /* between the workers */
                atomic_store(&map_ring(f->rings.fds[TDM_WORKER_NPU].to_peer)->produced, 12345);
                break;
        case 3: /* the consumer's index, which the producer checks */
                atomic_store(&map_ring(f->rings.fds[TDM_WORKER_NPU].from_peer)->consumed, 1u << 30);
                break;
        case 4: { /* a step that is done though nobody submitted it */
                struct tdm_ring_shared *from = tdm_ring_shared(f->workers[TDM_WORKER_GPU].ring_from);
                uint32_t at = atomic_load(&from->produced);
                const uint64_t one = 1;

                from->slots[at % from->n_slots] = (struct tdm_desc){
                        .kind = TDM_DESC_DONE, .epoch = f->epoch, .step_id = 99, .model_id = 1, .slot = 0
                };
                atomic_store(&from->produced, at + 1);
                assert_int_equal(write(tdm_ring_eventfd(f->workers[TDM_WORKER_GPU].ring_from), &one, sizeof(one)), 8);
                break;
        }
        default:
                break;
        }
}

static void scribbled(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu, gpu;

        rig->hook = scribble_hook;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 5);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_int_equal(npu.restarts, 0); /* the epoch ended and nothing else */
        assert_int_equal(gpu.restarts, 0);
        assert_non_null(strstr(rig->reason, "ring"));
        rig_free(rig);
}

/* Workers that say all the time that a step is nearly done, one of them also while it stands still: each step is waited
 * for once at most, by the ring that it will come from, and nothing else changes. */
struct crier {
        int fds[TDM_N_WORKERS];
        pid_t pid;
        _Atomic bool stop;
};

static void *cry(void *arg)
{
        struct crier *c = arg;
        const uint64_t one = 1;
        uint64_t stopped_ns = 0;

        for (unsigned i = 0; !atomic_load(&c->stop); i++) {
                if (i == 50) {
                        kill(c->pid, SIGSTOP);
                        stopped_ns = tdm_now_ns();
                }
                /* Not so long that it is taken for one that hangs, where this thread waits for a CPU. */
                if (stopped_ns && (i >= 350 || tdm_now_ns() - stopped_ns > HANG_NS / 4)) {
                        kill(c->pid, SIGCONT);
                        stopped_ns = 0;
                }
                for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                        if (write(c->fds[w], &one, sizeof(one)) < 0)
                                return NULL;
                usleep(20);
        }
        kill(c->pid, SIGCONT);
        return NULL;
}

static void woken_early(void **state)
{
        struct rig *rig = rig_new();
        const struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU],
                                      *gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        struct crier c = { 0 };
        pthread_t thread;

        wait_for(rig, is_whole(rig));
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                assert_true((c.fds[w] = fcntl(tdm_ring_eventfd(rig->fleet->workers[w].ring_from), F_DUPFD_CLOEXEC,
                                              3)) >= 0);
        c.pid = worker_pid(rig, TDM_WORKER_GPU);
        assert_int_equal(pthread_create(&thread, NULL, cry, &c), 0);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        atomic_store(&c.stop, true);
        pthread_join(thread, NULL);
        assert_int_equal(rig->n_resets, 0);
        assert_true(gpu->await.n_waits > 0 && gpu->await.n_waits <= rig->n_steps + TDM_STEP_SLOTS);
        assert_int_equal(npu->await.n_waits, 0); /* no step ends there */
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                close(c.fds[w]);
        rig_free(rig);
}

/* The same worker's ring again and again: then it has to go. */
static void scribbled_often(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status gpu;

        wait_for(rig, is_whole(rig));
        for (unsigned i = 0; i < TDM_FLEET_MAX_RING_FAULTS; i++) {
                uint32_t epoch = tdm_fleet_epoch(rig->fleet);

                atomic_store(&tdm_ring_shared(rig->fleet->workers[TDM_WORKER_GPU].ring_to)->consumed, 77);
                start_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig->hold = false;
                jobs_submit(rig);
                rig->hold = true;
                wait_for(rig, is_whole(rig) && tdm_fleet_epoch(rig->fleet) > epoch);
        }
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_int_equal(gpu.restarts, 1);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* ---- workers that cannot ---- */

static void write_script(const char *dir, const char *name, const char *text)
{
        char path[256];
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        unlink(path);
        file = fopen(path, "we");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        assert_int_equal(chmod(path, 0700), 0);
}

static void link_worker(const char *dir, const char *name)
{
        char path[256], target[512];

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        snprintf(target, sizeof(target), "%s/%s", TANDEM_BIN_DIR, name);
        unlink(path);
        assert_int_equal(symlink(target, path), 0);
}

static void quarantined(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256];
        struct tdm_fleet_config config = { .n_threads = 1, .hang_min_ns = HANG_NS };
        struct tdm_worker_status npu;
        struct tdm_error err = { 0 };
        uint8_t plan[TDM_MAX_BLOCKS];
        bool degraded = false;
        struct rig *rig;

        assert_non_null(mkdtemp(dir));
        config.worker_dir = dir;
        config.quarantine_ns = 50 * TDM_NSEC_PER_MSEC;
        write_script(dir, "tandem-npu-worker", "#!/bin/sh\nexit 3\n");
        write_script(dir, "tandem-gpu-worker", "#!/bin/sh\nexit 4\n");

        /* Both: then nobody waits for ever. */
        rig = rig_new_with(&config);
        wait_for(rig, rig->model_error.code != 0);
        config.quarantine_ns = 300 * TDM_NSEC_PER_MSEC;
        assert_int_equal(rig->model_error.code, TDM_E_NO_WORKER);
        assert_non_null(strstr(rig->model_error.message, "status 4"));
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), TDM_E_NO_WORKER);
        rig_free(rig);

        link_worker(dir, "tandem-gpu-worker");
        rig = rig_new_with(&config);
        wait_for(rig, is_whole(rig));
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_int_equal(npu.state, TDM_WORKER_QUARANTINED);
        assert_string_equal(npu.last_exit, "exited with status 3");
        assert_true(npu.restarts >= TDM_FLEET_MAX_DEATHS - 1);

        assert_int_equal(plan_of(rig, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_true(degraded);
        assert_int_equal(plan[1], TDM_WORKER_GPU);
        /* Who needs it waits for a trial, and for no other. */
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_NPU, plan, &degraded), 0);
        assert_true(degraded);
        wait_for(rig, rig->fleet->workers[TDM_WORKER_NPU].quarantines == 2);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_SPLIT, plan, &degraded), -EHOSTDOWN);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_NPU, plan, &degraded), -EHOSTDOWN);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_BALANCED, plan, &degraded), -EINVAL);
        run_jobs(rig, TDM_PLACEMENT_ANY);

        /* Mended, and told so. */
        link_worker(dir, "tandem-npu-worker");
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "mended"), 0);
        wait_for(rig, rig->n_resets == 1);
        wait_for(rig, is_whole(rig));
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_false(degraded);
        assert_int_equal(plan[1], TDM_WORKER_NPU);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        snprintf(path, sizeof(path), "%s/tandem-npu-worker", dir);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem-gpu-worker", dir);
        unlink(path);
        rmdir(dir);
}

/* One is killed while the other is in the middle of something: that the first is back sooner does not make the fleet
 * ready, for the second may still write where the steps that are issued again will. */
static void not_ready_before_the_survivor(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];
        pid_t pid, survivor;

        wait_for(rig, is_whole(rig));
        pid = worker_pid(rig, TDM_WORKER_NPU);
        survivor = worker_pid(rig, TDM_WORKER_GPU);
        kill(survivor, SIGSTOP);
        kill(pid, SIGKILL);
        wait_for(rig, npu->pid != 0 && npu->pid != pid && npu->epoch_acked == tdm_fleet_epoch(rig->fleet));
        assert_int_equal(tdm_loop_turn(rig->loop, 0), 0);
        assert_false(tdm_fleet_is_ready(rig->fleet));
        kill(survivor, SIGCONT);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* It is tried again by itself, more and more seldom, and nobody waits for it meanwhile. */
static void back_from_quarantine(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256];
        const struct tdm_fleet_config config = {
                .worker_dir = dir,
                .requested = { "host", "host" },
                .n_threads = 1,
                .hang_min_ns = HANG_NS,
                .quarantine_ns = 50 * TDM_NSEC_PER_MSEC,
        };
        struct tdm_fleet_worker *npu;
        struct rig *rig;
        unsigned n;

        assert_non_null(mkdtemp(dir));
        write_script(dir, "tandem-npu-worker", "#!/bin/sh\nexit 3\n");
        link_worker(dir, "tandem-gpu-worker");
        rig = rig_new_with(&config);
        npu = &rig->fleet->workers[TDM_WORKER_NPU];
        wait_for(rig, npu->state == TDM_WORKER_QUARANTINED && tdm_fleet_is_ready(rig->fleet));
        n = TDM_MAX(npu->quarantines, 2u);
        wait_for(rig, npu->quarantines > n);
        assert_int_equal(npu->state, TDM_WORKER_QUARANTINED);
        assert_true(npu->try_at_ns > tdm_now_ns() + 100 * TDM_NSEC_PER_MSEC); /* 50, 100, 200 … */
        run_jobs(rig, TDM_PLACEMENT_GPU);
        assert_true(tdm_fleet_is_degraded(rig->fleet));
        assert_int_equal(rig->n_resets, 0);

        link_worker(dir, "tandem-npu-worker");
        wait_for(rig, npu->state == TDM_WORKER_READY);
        assert_int_equal(rig->n_resets, 1); /* for rings to a peer */
        wait_for(rig, is_whole(rig));
        assert_false(tdm_fleet_is_degraded(rig->fleet));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);

        /* An admin need not wait, not even while it is being tried. */
        write_script(dir, "tandem-npu-worker", "#!/bin/sh\nexec sleep 1000\n");
        npu->deaths = TDM_FLEET_MAX_DEATHS - 1;
        kill(npu->pid, SIGKILL);
        wait_for(rig, npu->on_trial);
        assert_int_equal(npu->state, TDM_WORKER_QUARANTINED);
        link_worker(dir, "tandem-npu-worker");
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "a test"), 0);
        wait_for(rig, npu->state != TDM_WORKER_QUARANTINED && !npu->on_trial);
        kill(npu->pid, SIGKILL);
        wait_for(rig, is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        snprintf(path, sizeof(path), "%s/tandem-npu-worker", dir);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem-gpu-worker", dir);
        unlink(path);
        rmdir(dir);
}

/* Both at once, with work in flight: it waits for the first one that comes back. */
static void both_back_from_quarantine(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256];
        const struct tdm_fleet_config config = {
                .worker_dir = dir,
                .requested = { "host", "host" },
                .n_threads = 1,
                .hang_min_ns = HANG_NS,
                .quarantine_ns = TDM_NSEC_PER_SEC,
        };
        static const char *const names[TDM_N_WORKERS] = { "tandem-npu-worker", "tandem-gpu-worker" };
        struct rig *rig;

        assert_non_null(mkdtemp(dir));
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                link_worker(dir, names[i]);
        rig = rig_new_with(&config);
        wait_for(rig, is_whole(rig));
        start_jobs(rig, TDM_PLACEMENT_EITHER);
        rig->hold = false;
        jobs_submit(rig);
        wait_for(rig, rig->n_steps > 10);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                write_script(dir, names[i], "#!/bin/sh\nexit 3\n");
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                kill(worker_pid(rig, (enum tdm_worker_index)i), SIGKILL);
        wait_for(rig, rig->fleet->workers[0].state == TDM_WORKER_QUARANTINED &&
                              rig->fleet->workers[1].state == TDM_WORKER_QUARANTINED);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                link_worker(dir, names[i]);
        assert_int_equal(rig->model_error.code, 0);
        wait_for(rig, jobs_finished(rig));
        for (unsigned i = 0; i < N_JOBS; i++)
                assert_memory_equal(rig->jobs[i].tokens, expected[i], sizeof(expected[i]));
        assert_int_equal(rig->model_error.code, 0);
        rig->hold = true;
        wait_for(rig, is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
                unlink(path);
        }
        rmdir(dir);
}

/* Nothing is owed, and still it is noticed; a healthy one answers and is left in peace. */
static void stopped_idle(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU],
                                *gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        struct stopwatch watch;

        wait_for(rig, is_whole(rig));
        wait_for(rig, npu->ping_sent >= 1 && atomic_load(&npu->progress->answered) == npu->ping_sent);
        watch = stopwatch_start(0);
        kill(npu->pid, SIGSTOP);
        wait_for(rig, rig->n_resets == 1);
        assert_true(stopwatch_ns(&watch) < 3 * TDM_NSEC_PER_SEC + 2 * HANG_NS);
        assert_non_null(strstr(npu->last_exit, "ping"));
        assert_non_null(strstr(npu->last_exit, "stopped"));
        wait_for(rig, is_whole(rig));
        assert_int_equal(gpu->restarts, 0);

        /* In reserve while the other one works. */
        rig->n_resets = 0;
        kill(npu->pid, SIGSTOP);
        start_jobs(rig, TDM_PLACEMENT_GPU);
        rig->hold = false;
        while (rig->n_resets == 0) {
                jobs_submit(rig);
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
                if (jobs_finished(rig))
                        start_jobs(rig, TDM_PLACEMENT_GPU);
                assert_true(tdm_now_ns() - watch.begin_ns < PATIENCE_NS);
        }
        assert_int_equal(gpu->restarts, 0);
        rig->hold = true;
        wait_for(rig, rig->jobs[0].step_id == 0 && rig->jobs[1].step_id == 0);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* ---- plans that are measured ---- */

static void append_plans(const char *text)
{
        char path[512];
        FILE *file;

        snprintf(path, sizeof(path), "%s/tandem/plans", getenv("XDG_STATE_HOME"));
        file = fopen(path, "ae");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
}

/* Devices that say they differ: the slow one gets nothing, the choice is made once, and no job hears of it. */
static void measured(void **state)
{
        static const char *const slow[TDM_N_WORKERS] = { "TANDEM_FAULT_NPU", "TANDEM_FAULT_GPU" };
        static const enum tdm_placement want[TDM_N_WORKERS] = { TDM_PLACEMENT_GPU, TDM_PLACEMENT_NPU };
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_FAULTY_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };

        if (access(TANDEM_FAULTY_DIR "/tandem-npu-worker", X_OK) < 0)
                skip();
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct rig *rig;
                uint64_t n_steps;

                setenv(slow[i], "numerics=-a,slow=900", 1);
                setenv(slow[!i], "numerics=-b", 1);
                rig = rig_new_with(&config);
                wait_for(rig, rig->n_model_ready == 1);
                assert_int_equal(tdm_fleet_measured(rig->fleet, 1), want[i]);
                assert_int_equal(rig->n_steps, 0);
                assert_int_equal(rig->n_resets, 0);
                n_steps = rig->fleet->n_own_steps;
                assert_true(n_steps >= 6);

                /* It stays, over a worker's death and the model's coming back. */
                kill(worker_pid(rig, (enum tdm_worker_index)i), SIGKILL);
                wait_for(rig, rig->n_resets == 1);
                run_jobs(rig, want[i]);
                tdm_fleet_remove_model(rig->fleet, 1);
                rig->model.model_id = 2;
                wait_for(rig, tdm_fleet_add_model(rig->fleet, &rig->model, NULL) == 0);
                wait_for(rig, rig->n_model_ready == 2);
                assert_int_equal(tdm_fleet_measured(rig->fleet, 2), want[i]);
                assert_int_equal(rig->fleet->n_own_steps, n_steps);
                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig_free(rig);

                /* Over tandemd's restart too, whatever else the file says. */
                append_plans("nonsense\nsprout\tboth\n\tgpu\ncut off\tgp");
                rig = rig_new_with(&config);
                wait_for(rig, rig->n_model_ready == 1);
                assert_int_equal(tdm_fleet_measured(rig->fleet, 1), want[i]);
                assert_int_equal(rig->fleet->n_own_steps, 0);
                assert_int_equal(tdm_placement_store_n_added(rig->fleet->store), 1 + i);
                rig_free(rig);
                unsetenv(slow[i]);
                unsetenv(slow[!i]);
        }
}

/* A device that dies of being tried out: not for ever. Token 1 is in the step of many rows only. */
static void measured_to_death(void **state)
{
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_FAULTY_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct rig *rig;

        if (access(TANDEM_FAULTY_DIR "/tandem-npu-worker", X_OK) < 0)
                skip();
        setenv("TANDEM_FAULT_NPU", "numerics=-a,poison=1", 1);
        rig = rig_new_with(&config);
        wait_for(rig, rig->n_model_ready == 1);
        assert_int_equal(rig->n_resets, 3);
        assert_int_equal(tdm_fleet_measured(rig->fleet, 1), TDM_PLACEMENT_SPLIT);
        wait_for(rig, is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        unsetenv("TANDEM_FAULT_NPU");
}

/* ---- no CPU ---- */

/* All threads of a process. SCHED_IDLE: only when nobody else wants the CPU. An ordinary user may choose it, and may not
 * choose another one afterwards: false. */
static bool set_class(pid_t pid, int policy)
{
        const struct sched_param param = { 0 };
        struct dirent *entry;
        char path[40];
        bool all = true;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        dir = opendir(path);
        assert_non_null(dir);
        while ((entry = readdir(dir)))
                if (atoi(entry->d_name) > 0 && sched_setscheduler(atoi(entry->d_name), policy, &param) < 0) {
                        assert_int_equal(errno, EPERM);
                        all = false;
                }
        closedir(dir);
        return all;
}

static pid_t spinner(int cpu)
{
        cpu_set_t set;
        pid_t pid = fork();

        if (pid != 0)
                return pid;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
        (void)!nice(-20); /* where it may: it only makes it worse for the others */
        for (;;)
                __asm__ volatile("");
}

/* A worker that gets a CPU for a moment each second is slow, not hung. */
static void starved(void **state)
{
        struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct tdm_fleet_worker *npu;
        uint64_t until, longest = 0;
        pid_t spinners[2];
        char cpu[16];
        cpu_set_t set;
        struct rig *rig;
        int first = 0;

        assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
        while (!CPU_ISSET(first, &set))
                first++;
        snprintf(cpu, sizeof(cpu), "%d", first);
        config.cpus[TDM_WORKER_NPU] = cpu;
        rig = rig_new_with(&config);
        npu = &rig->fleet->workers[TDM_WORKER_NPU];
        wait_for(rig, is_whole(rig));
        assert_true(set_class(npu->pid, SCHED_IDLE));
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(spinners); i++)
                spinners[i] = spinner(first);
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        until = tdm_now_ns() + 5 * HANG_NS;
        while (tdm_now_ns() < until && !jobs_finished(rig)) {
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
                longest = TDM_MAX(longest, npu->sample.forgiven_ns);
        }
        assert_int_equal(npu->restarts, 0);
        assert_int_equal(rig->n_resets, 0);
        print_message("forgiven: up to %.0f ms\n", (double)longest / 1e6);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(spinners); i++) {
                kill(spinners[i], SIGKILL);
                waitpid(spinners[i], NULL, 0);
        }
        wait_for(rig, jobs_finished(rig));
        assert_int_equal(rig->n_resets, 0);
        if (set_class(npu->pid, SCHED_OTHER))
                rig_free(rig);
        else /* still starved where others want its CPU, and then not in time */
                rig_free_within(rig, PATIENCE_NS);
}

/* What counts as starved, and what does not. */
static void starved_or_not(void **state)
{
        const uint64_t tick = 100 * TDM_NSEC_PER_MSEC;
        struct tdm_fleet_sample sample = { 0 };
        const struct sched_param param = { 0 };
        pid_t hog, pid;
        cpu_set_t set;
        int first = 0;

        assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
        while (!CPU_ISSET(first, &set))
                first++;
        hog = spinner(first);
        pid = spinner(first);
        assert_int_equal(sched_setscheduler(pid, SCHED_IDLE, &param), 0);
        usleep(50000);
        assert_int_equal(tdm_fleet_starved_ns(&sample, pid, tick), 0);
        usleep(200000);
        assert_true(tdm_fleet_starved_ns(&sample, pid, tick) > tick / 2); /* wants to run and may not */
        for (unsigned i = 0; i < 100; i++) {
                usleep(2000);
                tdm_fleet_starved_ns(&sample, pid, TDM_NSEC_PER_SEC);
        }
        assert_int_equal(sample.forgiven_ns, 10 * TDM_NSEC_PER_SEC); /* not for ever */
        kill(hog, SIGKILL);
        waitpid(hog, NULL, 0);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        memset(&sample, 0, sizeof(sample));
        pid = spinner(first);
        kill(pid, SIGSTOP);
        assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
        tdm_fleet_starved_ns(&sample, pid, tick);
        usleep(100000);
        assert_true(tdm_fleet_starved_ns(&sample, pid, tick) < tick / 10); /* wants nothing */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        assert_int_equal(tdm_fleet_starved_ns(&sample, pid, tick), 0);
}

static void survivor_hook(struct rig *rig, uint32_t n_steps)
{
        struct tdm_fleet_worker *gpu = &rig->fleet->workers[TDM_WORKER_GPU];

        if (n_steps == 10) {
                rig->killed_at_ns = tdm_now_ns();
                kill(worker_pid(rig, TDM_WORKER_GPU), SIGKILL);
        } else if (rig->n_resets == 1 && rig->resumed_at_ns == 0) {
                rig->resumed_at_ns = tdm_now_ns();
                assert_int_not_equal(gpu->state, TDM_WORKER_READY);
        }
}

/* The other one does not come back for a while: who is left does all, and is not disturbed when it joins. */
static void survivor(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256];
        const struct tdm_fleet_config config = {
                .worker_dir = dir, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct tdm_fleet_worker *gpu;
        struct tdm_worker_status npu;
        struct rig *rig;
        pid_t old_pid;

        assert_non_null(mkdtemp(dir));
        link_worker(dir, "tandem-npu-worker");
        link_worker(dir, "tandem-gpu-worker");
        rig = rig_new_with(&config);
        gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        wait_for(rig, is_whole(rig));
        write_script(dir, "tandem-gpu-worker", "#!/bin/sh\nexec sleep 1000\n");
        rig->hook = survivor_hook;
        run_jobs(rig, TDM_PLACEMENT_EITHER);
        assert_int_equal(rig->n_resets, 1);
        assert_true(rig->resumed_at_ns > 0);
        print_message("from kill -9 to the next step of the survivor: %.1f ms\n",
                      (double)(rig->resumed_at_ns - rig->killed_at_ns) / 1e6);
        assert_int_equal(gpu->state, TDM_WORKER_STARTING);
        assert_true(tdm_fleet_is_ready(rig->fleet));
        assert_false(tdm_fleet_worker_is_up(rig->fleet, TDM_WORKER_GPU));
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_true(npu.done[TDM_BLOCK_FFN].blocks > 0);
        assert_int_equal(npu.restarts, 0);

        /* A step for one that is away is not taken, nor does its death void anything: it had no part in this epoch. */
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        assert_int_equal(rig->jobs[0].step_id, 0);
        old_pid = gpu->pid;
        kill(gpu->pid, SIGKILL);
        wait_for(rig, gpu->pid != 0 && gpu->pid != old_pid);
        assert_int_equal(rig->n_resets, 1);

        link_worker(dir, "tandem-gpu-worker");
        kill(gpu->pid, SIGKILL);
        wait_for(rig, is_whole(rig));
        assert_int_equal(rig->n_resets, 1); /* it joined the epoch that was there */
        rig->hook = NULL;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 1);
        rig_free(rig);
        snprintf(path, sizeof(path), "%s/tandem-npu-worker", dir);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem-gpu-worker", dir);
        unlink(path);
        rmdir(dir);
}

/* Dies before a step of its is finished, again and again, in the middle of work. */
static void quarantined_at_work(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu;
        bool degraded;
        uint8_t plan[TDM_MAX_BLOCKS];

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        for (unsigned i = 0; i < TDM_FLEET_MAX_DEATHS; i++) {
                struct tdm_fleet_worker *w = &rig->fleet->workers[TDM_WORKER_NPU];
                pid_t pid;

                wait_for(rig, tdm_fleet_worker_is_up(rig->fleet, TDM_WORKER_NPU));
                pid = worker_pid(rig, TDM_WORKER_NPU);
                kill(pid, SIGSTOP); /* so that it has a step and does not finish it */
                start_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig->hold = false;
                jobs_submit(rig);
                rig->hold = true;
                kill(pid, SIGKILL);
                wait_for(rig, w->pid != pid);
        }
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_int_equal(npu.state, TDM_WORKER_QUARANTINED);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_true(degraded);
        run_jobs(rig, TDM_PLACEMENT_ANY);
        rig_free(rig);
}

static void devices(void **state)
{
        struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "xrt", "auto" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct tdm_worker_status status;
        struct rig *rig = rig_new_with(&config);
        struct tdm_fleet *fleet;
        struct tdm_error err = { 0 };
        const struct tdm_fleet_callbacks none = { 0 };
        uint8_t plan[TDM_MAX_BLOCKS];
        bool degraded = true;

        wait_for(rig, is_whole(rig));
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &status);
        assert_int_equal(status.state, TDM_WORKER_QUARANTINED);
        assert_string_equal(status.requested, "xrt");
        assert_non_null(strstr(status.last_exit, "no xrt device"));
        assert_string_equal(status.device, "");
        run_jobs(rig, TDM_PLACEMENT_ANY);
        rig_free(rig);

        config.requested[TDM_WORKER_NPU] = "off";
        rig = rig_new_with(&config);
        run_jobs(rig, TDM_PLACEMENT_ANY);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &status);
        assert_int_equal(status.state, TDM_WORKER_OFF);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_false(degraded); /* as wanted */
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_SPLIT, plan, NULL), -EHOSTDOWN);
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "no"), -ENOENT);
        config.requested[TDM_WORKER_GPU] = "off";
        assert_int_equal(tdm_fleet_new(&fleet, rig->loop, &config, &none, NULL, &err), TDM_E_NO_WORKER);
        config.requested[TDM_WORKER_GPU] = "host";
        config.worker_dir = "/nonexistent";
        assert_int_equal(tdm_fleet_new(&fleet, rig->loop, &config, &none, NULL, &err), TDM_E_NO_WORKER);
        rig_free(rig);
}

/* "auto" is decided once: a worker that comes back opens what it had, or nothing, until an admin says otherwise. */
static void same_device_again(void **state)
{
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "auto", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct rig *rig = rig_new_with(&config);
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];

        wait_for(rig, is_whole(rig));
        assert_string_equal(npu->device, "host");
        snprintf(npu->device, sizeof(npu->device), "xrt"); /* as if it had been one, which is gone */
        kill(npu->pid, SIGKILL);
        wait_for(rig, npu->state == TDM_WORKER_QUARANTINED);
        assert_non_null(strstr(npu->last_exit, "xrt"));
        assert_int_equal(npu->try_at_ns, 0);
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "a test"), 0);
        wait_for(rig, npu->state == TDM_WORKER_READY);
        assert_string_equal(npu->device, "host");
        rig_free(rig);
}

/* ---- models and steps that cannot ---- */

static void models_come_and_go(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_model second = rig->model;
        struct tdm_error err = { 0 };
        uint32_t n_ready;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        n_ready = rig->n_ready;
        tdm_fleet_remove_model(rig->fleet, 1);
        assert_int_equal(tdm_fleet_submit(rig->fleet, 1, 0), -ENOENT);
        wait_for(rig, rig->n_ready > n_ready);
        assert_true(worker_maps(rig, TDM_WORKER_NPU, "memfd:tandem-weights") <= 0);
        assert_true(worker_maps(rig, TDM_WORKER_NPU, "memfd:tandem-kv") <= 0);
        assert_int_equal(rig->n_resets, 0);

        /* Weights that are not weights. */
        second.model_id = 2;
        second.weights = rig->model.activations;
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &second, &err), 0);
        wait_for(rig, rig->model_error.code != 0);
        assert_non_null(strstr(rig->model_error.message, "sprout"));
        assert_int_equal(rig->n_model_ready, 1);

        /* Removed in the middle of a step. */
        rig->model.model_id = 3;
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), 0);
        wait_for(rig, rig->n_model_ready == 2);
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        tdm_fleet_remove_model(rig->fleet, 3);
        n_ready = rig->n_ready;
        wait_for(rig, rig->n_ready > n_ready);

        rig->model.model_id = 4;
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), 0);
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), -EINVAL);
        wait_for(rig, rig->n_model_ready == 3);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 0);
        rig_free(rig);
}

/* The same weights in small chunks, as yet unsealed. */
static struct tdm_segment *weights_in_pieces(const struct rig *rig)
{
        struct tdm_segment *s;

        assert_int_equal(tdm_segment_create_in_chunks(&s, "pieces", rig->model.weights->size_bytes, 64 << 10), 0);
        assert_true(s->n_chunks > 8);
        memcpy(s->base, rig->model.weights->base, s->size_bytes);
        return s;
}

static void seal_until(struct rig *rig, struct tdm_fleet_model *m, unsigned n)
{
        assert_int_equal(tdm_segment_seal_until(m->weights, n), 0);
        m->n_sealed = n;
        tdm_fleet_weights_sealed(rig->fleet, m->model_id, n);
}

/* Both workers have dealt with all that is sealed. */
static bool have_taken(const struct rig *rig, const struct tdm_fleet_model *m)
{
        const struct tdm_fleet_entry *entry = tdm_fleet_find(rig->fleet, m->model_id);

        return entry && entry->on[TDM_WORKER_NPU].n_taken == m->n_sealed &&
               entry->on[TDM_WORKER_GPU].n_taken == m->n_sealed;
}

static void add_in_pieces(struct rig *rig, struct tdm_fleet_model *ret, uint32_t model_id, unsigned n_sealed)
{
        struct tdm_error err = { 0 };

        *ret = rig->model;
        ret->model_id = model_id;
        ret->weights = weights_in_pieces(rig);
        ret->n_sealed = n_sealed;
        assert_int_equal(tdm_segment_seal_until(ret->weights, n_sealed), 0);
        if (tdm_fleet_add_model(rig->fleet, ret, &err) != 0)
                fail_msg("%s", err.message);
        wait_for(rig, have_taken(rig, ret));
}

static void settle(struct rig *rig, uint64_t ns)
{
        for (uint64_t until = tdm_now_ns() + ns; tdm_now_ns() < until;)
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
}

/* A model whose weights come chunk by chunk stands in nobody's way, whatever happens to the workers meanwhile. */
static void in_pieces(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_model second, third;
        struct tdm_error err = { 0 };
        uint32_t n_resets, n_ready;
        unsigned n_chunks;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        add_in_pieces(rig, &second, 2, 1);
        n_chunks = second.weights->n_chunks;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        settle(rig, 2 * HANG_NS); /* who waits for us is not hung */
        assert_int_equal(rig->n_resets, 0);
        assert_int_equal(rig->n_model_ready, 1);
        seal_until(rig, &second, 3);
        wait_for(rig, have_taken(rig, &second));

        rig->hook = kill_hook;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hook = NULL;
        assert_true(rig->n_resets > 0);
        wait_for(rig, is_whole(rig) && have_taken(rig, &second)); /* the new ones have begun where the old ones were */
        n_resets = rig->n_resets;
        seal_until(rig, &second, n_chunks - 1);
        wait_for(rig, have_taken(rig, &second));
        assert_int_equal(rig->n_model_ready, 1);
        seal_until(rig, &second, n_chunks);
        wait_for(rig, rig->n_model_ready == 2);
        assert_true(tdm_fleet_model_scratch(rig->fleet, 2) > 0);
        tdm_fleet_remove_model(rig->fleet, 1);
        rig->model.model_id = 2;
        run_jobs(rig, TDM_PLACEMENT_SPLIT); /* with these weights the same tokens */
        assert_int_equal(rig->n_resets, n_resets);

        /* Not all of it ever comes. */
        add_in_pieces(rig, &third, 3, 2);
        n_ready = rig->n_ready;
        tdm_fleet_remove_model(rig->fleet, 3);
        tdm_fleet_weights_sealed(rig->fleet, 3, n_chunks); /* too late */
        tdm_segment_destroy(third.weights);
        wait_for(rig, rig->n_ready > n_ready && !tdm_fleet_find(rig->fleet, 3));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, n_resets);

        /* Weights that are none are refused with the first of them, and the rest is not waited for. */
        third.model_id = 4;
        third.weights = weights_in_pieces(rig);
        memset(third.weights->base, 0, 4);
        assert_int_equal(tdm_segment_seal_until(third.weights, 2), 0);
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &third, &err), 0);
        wait_for(rig, rig->model_error.code != 0);
        seal_until(rig, &third, n_chunks);
        wait_for(rig, !tdm_fleet_find(rig->fleet, 4));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, n_resets);
        tdm_segment_destroy(third.weights);
        rig_free(rig);
        tdm_segment_destroy(second.weights);
}

/* The same for one that stops in the middle of taking weights: it is found, and its successor gets them all. */
static void stopped_in_pieces(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_model second;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        add_in_pieces(rig, &second, 2, 2);
        kill(worker_pid(rig, TDM_WORKER_GPU), SIGSTOP);
        seal_until(rig, &second, 3);
        wait_for(rig, rig->n_resets == 1);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        wait_for(rig, have_taken(rig, &second));
        seal_until(rig, &second, second.weights->n_chunks);
        wait_for(rig, rig->n_model_ready == 2);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 1);
        tdm_fleet_remove_model(rig->fleet, 2);
        wait_for(rig, !tdm_fleet_find(rig->fleet, 2));
        tdm_segment_destroy(second.weights);
        rig_free(rig);
}

/* A worker that waits for weights, and hangs in a step of another model, is missed as soon as ever. */
static void hung_in_pieces(void **state)
{
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_BIN_DIR "/../faulty",
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = HANG_NS };
        struct tdm_fleet_model second;
        struct stopwatch watch;
        struct rig *rig;

        setenv("TANDEM_FAULT_GPU", "hang=250", 1);
        rig = rig_new_with(&config);
        wait_for(rig, is_whole(rig));
        add_in_pieces(rig, &second, 2, 2);
        start_jobs(rig, TDM_PLACEMENT_GPU);
        rig->jobs[0].tokens[3] = 250;
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        watch = stopwatch_start(worker_pid(rig, TDM_WORKER_GPU));
        wait_for(rig, stopwatch_ns(&watch) >= 6 * HANG_NS || rig->n_resets == 1);
        assert_int_equal(rig->n_resets, 1);
        assert_non_null(strstr(rig->reason, "no progress"));
        rig_free(rig);
        tdm_segment_destroy(second.weights);
        unsetenv("TANDEM_FAULT_GPU");
}

static void bad_steps(void **state)
{
        struct rig *rig = rig_new();

        wait_for(rig, is_whole(rig));
        rig->bad_token = true;
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        wait_for(rig, rig->step_error.code != 0 && rig->jobs[0].step_id == 0 && rig->jobs[1].step_id == 0);
        assert_int_equal(rig->step_error.code, TDM_E_PROTOCOL);
        rig->bad_token = false;
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 0);
        rig_free(rig);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(placements),
                cmocka_unit_test(killed),
                cmocka_unit_test(blamed),
                cmocka_unit_test(stopped),
                cmocka_unit_test(restarted),
                cmocka_unit_test(scribbled),
                cmocka_unit_test(scribbled_often),
                cmocka_unit_test(woken_early),
                cmocka_unit_test(quarantined),
                cmocka_unit_test(quarantined_at_work),
                cmocka_unit_test(devices),
                cmocka_unit_test(not_ready_before_the_survivor),
                cmocka_unit_test(survivor),
                cmocka_unit_test(same_device_again),
                cmocka_unit_test(measured),
                cmocka_unit_test(measured_to_death),
                cmocka_unit_test(back_from_quarantine),
                cmocka_unit_test(stopped_idle),
                cmocka_unit_test(both_back_from_quarantine),
                cmocka_unit_test(starved),
                cmocka_unit_test(starved_or_not),
                cmocka_unit_test(models_come_and_go),
                cmocka_unit_test(bad_steps),
                cmocka_unit_test(in_pieces),
                cmocka_unit_test(stopped_in_pieces),
                cmocka_unit_test(hung_in_pieces),
                cmocka_unit_test(abandoned),
                cmocka_unit_test(orphans),
        };

        char state[] = "/tmp/tandem-test-state-XXXXXX", path[128];
        int r;

        if (tdm_sigbus_init() < 0 || !mkdtemp(state))
                return EXIT_FAILURE;
        setenv("XDG_STATE_HOME", state, 1);
        unsetenv("STATE_DIRECTORY");
        tdm_log_init("test-fleet");
        r = cmocka_run_group_tests(tests, NULL, NULL);
        snprintf(path, sizeof(path), "%s/tandem/plans", state);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem", state);
        rmdir(path);
        rmdir(state);
        return r;
}
