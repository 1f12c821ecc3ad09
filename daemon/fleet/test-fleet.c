/* The fleet and losses of its workers: killed, stopped, restarted, left behind; and which devices they take. */
#include "daemon/fleet/test-rig.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

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
        } deaths[] = { { SIGKILL, 0 }, { SIGSEGV, 77777 }, { SIGABRT, 77777 } };
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *w = &rig->fleet->workers[TDM_WORKER_NPU];

        /* A SIGTERM that all processes of the service get is tandemd's business. */
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        kill(w->process.pid, SIGTERM);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(rig->n_resets, 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(deaths); i++) {
                struct tdm_fleet_step *step = &rig->fleet->models[0]->steps[0];

                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                /* When the jobs are finished, the worker may still have to write that it is out of its last step. That
                 * must not fall on what is written here. */
                wait_for(rig, atomic_load(&w->progress->running) == 0);
                /* As if it were in that step: what it publishes is believed for this. */
                *step = (struct tdm_fleet_step){ .step_id = 77777, .n_blocks = 3, .queued = true };
                atomic_store(&w->progress->running, tdm_progress_pack(77777, 1));
                rig->guilty_step = 1;
                kill(w->process.pid, deaths[i].signo);
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
                enum tdm_worker_index worker = rig->hook_state == 0 ? TDM_WORKER_NPU : TDM_WORKER_GPU;

                kill(worker_pid(rig, worker), SIGSTOP);
                forget_times(rig, worker);
                /* Its steps tell, and no ping, also where its peer gets no CPU for a while to hand it one. */
                rig->fleet->workers[worker].silence.pinged_ns = tdm_now_ns();
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
        kill(w->process.pid, SIGSTOP); /* so that it does not leave when it is asked */
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
        kill(w->process.pid, SIGKILL);
        wait_for(rig, w->process.phase == TDM_FLEET_NO_PROCESS);
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

/* "auto" is decided once: a worker that comes back opens what it had, or nothing for now, until an admin says
 * otherwise. */
static void same_device_again(void **state)
{
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "auto", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct rig *rig = rig_new_with(&config);
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];

        wait_for(rig, is_whole(rig));
        assert_string_equal(npu->about.device, "host");
        assert_false(tdm_fleet_wants_panels(rig->fleet));
        strcpy(rig->fleet->workers[TDM_WORKER_GPU].about.device, "vulkan");
        assert_true(tdm_fleet_wants_panels(rig->fleet));
        strcpy(rig->fleet->workers[TDM_WORKER_GPU].about.device, "host");
        snprintf(npu->about.device, sizeof(npu->about.device), "xrt"); /* as if it had been one, which is gone */
        kill(npu->process.pid, SIGKILL);
        wait_for(rig, npu->state == TDM_WORKER_QUARANTINED);
        assert_non_null(strstr(npu->record.last_exit, "xrt"));
        assert_true(npu->record.try_at_ns > 0); /* the same one is looked for again, and no other */
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "a test"), 0);
        wait_for(rig, npu->state == TDM_WORKER_READY);
        assert_string_equal(npu->about.device, "host");
        rig_free(rig);
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

/* A terminal that ends just after tandemd has started ends no worker, whatever the worker has come to. */
static void signalled_at_once(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", script[512];
        struct tdm_fleet_config config = { .worker_dir = dir, .n_threads = 1, .hang_min_ns = HANG_NS };
        static const char *const names[] = { "tandem-npu-worker", "tandem-gpu-worker" };
        struct rig *rig;

        assert_non_null(mkdtemp(dir));
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                snprintf(script, sizeof(script),
                         "#!/bin/sh\nkill -HUP $$\nkill -INT $$\nkill -TERM $$\nexec %s/%s \"$@\"\n", TANDEM_BIN_DIR,
                         names[i]);
                write_script(dir, names[i], script);
        }
        rig = rig_new_with(&config);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                char path[600];

                assert_int_equal(rig->fleet->workers[i].record.restarts, 0);
                snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
                unlink(path);
        }
        rig_free(rig);
        rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(placements),
                cmocka_unit_test(killed),
                cmocka_unit_test(blamed),
                cmocka_unit_test(stopped),
                cmocka_unit_test(restarted),
                cmocka_unit_test(devices),
                cmocka_unit_test(same_device_again),
                cmocka_unit_test(bad_steps),
                cmocka_unit_test(abandoned),
                cmocka_unit_test(orphans),
                cmocka_unit_test(signalled_at_once),
        };

        return rig_run_tests("test-fleet", tests, TDM_ARRAY_SIZE(tests));
}
