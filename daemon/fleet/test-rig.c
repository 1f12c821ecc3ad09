#include "daemon/fleet/test-rig.h"

#include <fcntl.h>
#include <sys/stat.h>
#include "common/sigbus.h"

uint32_t expected[N_JOBS][N_TOTAL];
static bool have_expected;

int plan_of(struct rig *rig, enum tdm_placement placement, uint8_t *plan, bool *ret_degraded)
{
        struct tdm_placement_workers workers;

        tdm_fleet_placement_workers(rig->fleet, rig->model.model_id, &workers);
        return tdm_placement_plan(&workers, &rig->model.hparams, placement, plan, ret_degraded);
}

static void job_submit(struct rig *rig, unsigned index)
{
        struct job *job = &rig->jobs[index];
        const struct tdm_steps_layout *l = &rig->model.layout;
        uint8_t *base = rig->model.steps->base;
        struct tdm_step_head head = { 0 };
        struct tdm_step_row *rows = tdm_steps_rows(base, l, index);
        uint32_t n = TDM_MIN(MAX_ROWS, job->n_tokens - job->n_done);
        bool last = job->n_done + n == job->n_tokens;
        enum tdm_placement placement = rig->placement;
        bool degraded;

        if (rig->hold || job->step_id != 0 || job->n_tokens >= N_TOTAL)
                return;
        head.step_id = ++rig->next_step_id;
        head.epoch = tdm_fleet_epoch(rig->fleet);
        head.n_rows = n;
        head.n_seqs = 1;
        head.n_logits = last;
        if (placement == TDM_PLACEMENT_STANDBY)
                placement = tdm_fleet_worker_is_up(rig->fleet, TDM_WORKER_GPU) ? TDM_PLACEMENT_GPU : TDM_PLACEMENT_NPU;
        if (plan_of(rig, placement, head.plan, &degraded) < 0)
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
        job->step_id = head.step_id;
        if (tdm_fleet_submit(rig->fleet, rig->model.model_id, index, &head) < 0)
                job->step_id = 0;
}

void jobs_submit(struct rig *rig)
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

static void on_reset(const char *reason, uint32_t guilty_model, uint32_t guilty_slot, uint64_t guilty_step,
                     void *userdata)
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
                                              N_JOBS * PAGES_PER_JOB, 0),
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

void start_jobs(struct rig *rig, enum tdm_placement placement)
{
        rig->placement = placement;
        memset(rig->jobs, 0, sizeof(rig->jobs));
        for (unsigned i = 0; i < N_JOBS; i++) {
                rig->jobs[i].n_tokens = N_PROMPT;
                for (unsigned t = 0; t < N_PROMPT; t++)
                        rig->jobs[i].tokens[t] = 2 + (t * 37 + i * 11) % 200;
        }
}

struct rig *rig_new_with(const struct tdm_fleet_config *config)
{
        static const struct tdm_fleet_callbacks callbacks = {
                .on_ready = on_ready,
                .on_model_failed = on_model_failed,
                .on_model_ready = on_model_ready,
        };
        static const struct tdm_fleet_step_events steps = {
                .done = on_step_done,
                .failed = on_step_failed,
                .reset = on_reset,
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
        tdm_fleet_listen(rig->fleet, &steps, rig);
        return rig;
}

struct rig *rig_new(void)
{
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };

        return rig_new_with(&config);
}

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

struct stopwatch stopwatch_start(pid_t worker)
{
        return (struct stopwatch){ .begin_ns = tdm_now_ns(),
                                   .worker = worker,
                                   .worker_ns = worker ? waited_ns(worker) : 0,
                                   .self_ns = waited_ns(getpid()) };
}

uint64_t stopwatch_ns(struct stopwatch *w)
{
        uint64_t passed, waited, now = w->worker ? waited_ns(w->worker) : 0;

        w->worker_waited_ns = TDM_MAX(w->worker_waited_ns, now - TDM_MIN(now, w->worker_ns));
        waited = w->worker_waited_ns + waited_ns(getpid()) - w->self_ns;
        passed = tdm_now_ns() - w->begin_ns;
        return passed - TDM_MIN(passed, waited);
}

static pid_t pid_of(struct rig *rig, int worker)
{
        struct tdm_worker_status status;

        tdm_fleet_worker_status(rig->fleet, (enum tdm_worker_index)worker, &status);
        return status.pid;
}

struct patience patience_begin(struct rig *rig)
{
        struct patience p = { .begin_ns = tdm_now_ns(), .self_ns = waited_ns(getpid()) };

        for (int i = 0; i < TDM_N_WORKERS; i++) {
                p.workers[i] = pid_of(rig, i);
                p.workers_ns[i] = p.workers[i] > 0 ? waited_ns(p.workers[i]) : 0;
        }
        return p;
}

bool patience_is_over(const struct patience *p, struct rig *rig)
{
        uint64_t passed = tdm_now_ns() - p->begin_ns, waited;

        if (passed < PATIENCE_NS)
                return false;
        waited = waited_ns(getpid()) - p->self_ns;
        for (int i = 0; i < TDM_N_WORKERS; i++) {
                pid_t pid = pid_of(rig, i);
                uint64_t ns = pid > 0 ? waited_ns(pid) : 0;

                waited += pid == p->workers[i] ? ns - TDM_MIN(ns, p->workers_ns[i]) : ns;
        }
        return passed - TDM_MIN(passed, waited) >= PATIENCE_NS;
}

void rig_free_within(struct rig *rig, uint64_t limit_ns)
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

void rig_free(struct rig *rig)
{
        rig_free_within(rig, 2 * TDM_NSEC_PER_SEC + TDM_NSEC_PER_SEC / 2);
}

bool is_whole(const struct rig *rig)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (tdm_fleet_usable(&rig->fleet->workers[i]) &&
                    !tdm_fleet_worker_is_up(rig->fleet, (enum tdm_worker_index)i))
                        return false;
        return tdm_fleet_is_ready(rig->fleet);
}

bool jobs_finished(const struct rig *rig)
{
        for (unsigned i = 0; i < N_JOBS; i++)
                if (rig->jobs[i].n_tokens < N_TOTAL)
                        return false;
        return true;
}

void run_jobs(struct rig *rig, enum tdm_placement placement)
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

pid_t worker_pid(struct rig *rig, enum tdm_worker_index worker)
{
        struct tdm_worker_status status;

        tdm_fleet_worker_status(rig->fleet, worker, &status);
        assert_true(status.pid > 0); /* kill(0) would be us */
        return status.pid;
}

void forget_times(struct rig *rig, enum tdm_worker_index worker)
{
        struct tdm_progress *p = rig->fleet->workers[worker].progress;

        for (unsigned kind = 0; kind < TDM_N_BLOCK_KINDS; kind++)
                for (unsigned i = 0; i < TDM_PROGRESS_BUCKETS; i++)
                        atomic_store(&p->kinds[kind].histogram[i], 0);
}

int worker_maps(struct rig *rig, enum tdm_worker_index worker, const char *what)
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

void kill_hook(struct rig *rig, uint32_t n_steps)
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

void write_script(const char *dir, const char *name, const char *text)
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

void link_worker(const char *dir, const char *name)
{
        char path[256], target[512];

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        snprintf(target, sizeof(target), "%s/%s", TANDEM_BIN_DIR, name);
        unlink(path);
        assert_int_equal(symlink(target, path), 0);
}

static int undisturbed_run(void **state)
{
        struct rig *rig = rig_new();

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        return 0;
}

int rig_run_tests(const char *name, const struct CMUnitTest *tests, size_t n)
{
        char state[] = "/tmp/tandem-test-state-XXXXXX", path[128];
        int r;

        if (tdm_sigbus_init() < 0 || !mkdtemp(state))
                return EXIT_FAILURE;
        setenv("XDG_STATE_HOME", state, 1);
        unsetenv("STATE_DIRECTORY");
        tdm_log_init(name);
        r = _cmocka_run_group_tests(name, tests, n, undisturbed_run, NULL);
        snprintf(path, sizeof(path), "%s/tandem/plans", state);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem", state);
        rmdir(path);
        rmdir(state);
        return r;
}
