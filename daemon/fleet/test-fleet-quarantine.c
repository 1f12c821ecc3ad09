/* The fleet and workers that cannot start: quarantine, the way back from it, and the survivor that goes on alone. */
#include "daemon/fleet/test-rig.h"

#include <fcntl.h>

#include <sys/stat.h>

static void retry_now(struct tdm_fleet_worker *w)
{
        assert_true(w->record.try_at_ns > tdm_now_ns());
        w->record.try_at_ns = tdm_now_ns();
        tdm_fleet_pump_soon(w->fleet);
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
        config.quarantine_ns = 600 * TDM_NSEC_PER_SEC; /* no retry comes by itself */
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
        /* Who needs it waits for one retry. */
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_NPU, plan, &degraded), 0);
        assert_true(degraded);
        retry_now(&rig->fleet->workers[TDM_WORKER_NPU]);
        wait_for(rig, rig->fleet->workers[TDM_WORKER_NPU].record.quarantines == 2);
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
        /* The stopped survivor is not missed, however long the other one takes to come back. */
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_BIN_DIR,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = 600 * TDM_NSEC_PER_SEC,
                                                 .control_ns = 600 * TDM_NSEC_PER_SEC };
        struct rig *rig = rig_new_with(&config);
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];
        pid_t pid, survivor;

        wait_for(rig, is_whole(rig));
        pid = worker_pid(rig, TDM_WORKER_NPU);
        survivor = worker_pid(rig, TDM_WORKER_GPU);
        kill(survivor, SIGSTOP);
        kill(pid, SIGKILL);
        wait_for(rig, npu->process.pid != 0 && npu->process.pid != pid &&
                              npu->link.epoch_acked == tdm_fleet_epoch(rig->fleet));
        assert_int_equal(tdm_loop_turn(rig->loop, 0), 0);
        assert_false(tdm_fleet_is_ready(rig->fleet));
        assert_int_equal(worker_pid(rig, TDM_WORKER_GPU), survivor);
        kill(survivor, SIGCONT);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_int_equal(worker_pid(rig, TDM_WORKER_GPU), survivor);
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
        uint64_t begin_ns = 0;
        unsigned n;

        assert_non_null(mkdtemp(dir));
        write_script(dir, "tandem-npu-worker", "#!/bin/sh\nexit 3\n");
        link_worker(dir, "tandem-gpu-worker");
        rig = rig_new_with(&config);
        npu = &rig->fleet->workers[TDM_WORKER_NPU];
        wait_for(rig, npu->state == TDM_WORKER_QUARANTINED && tdm_fleet_is_ready(rig->fleet));
        n = TDM_MAX(npu->record.quarantines, 2u);
        /* begin_ns is before the turn in which the retry fails. */
        wait_for(rig, npu->record.quarantines > n || (begin_ns = tdm_now_ns()) == 0);
        assert_int_equal(npu->state, TDM_WORKER_QUARANTINED);
        /* 50, 100, 200 … */
        assert_true(npu->record.try_at_ns >= begin_ns + (config.quarantine_ns << (npu->record.quarantines - 1)));
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
        npu->record.deaths = TDM_FLEET_MAX_DEATHS - 1;
        npu->record.quarantines = 0; /* a slow machine has had many, and the next would be long */
        kill(npu->process.pid, SIGKILL);
        wait_for(rig, npu->record.retrying);
        assert_int_equal(npu->state, TDM_WORKER_QUARANTINED);
        link_worker(dir, "tandem-npu-worker");
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_NPU, "a test"), 0);
        wait_for(rig, npu->state != TDM_WORKER_QUARANTINED && !npu->record.retrying);
        kill(npu->process.pid, SIGKILL);
        wait_for(rig, is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        snprintf(path, sizeof(path), "%s/tandem-npu-worker", dir);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem-gpu-worker", dir);
        unlink(path);
        rmdir(dir);
}

/* A worker whose device is gone says so. Its device was there before, so it is tried again: soon, then as after any
 * quarantine. */
static void device_comes_back(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256];
        uint32_t n_restarts;
        const struct tdm_fleet_config config = {
                .worker_dir = dir,
                .requested = { "host", "host" },
                .n_threads = 1,
                .hang_min_ns = HANG_NS,
                .quarantine_ns = 50 * TDM_NSEC_PER_MSEC,
        };
        struct tdm_fleet_worker *npu;
        struct rig *rig;

        assert_non_null(mkdtemp(dir));
        link_worker(dir, "tandem-npu-worker");
        link_worker(dir, "tandem-gpu-worker");
        rig = rig_new_with(&config);
        npu = &rig->fleet->workers[TDM_WORKER_NPU];
        wait_for(rig, is_whole(rig));
        for (unsigned i = 0; i < 2; i++) {
                strcpy(npu->about.device, "none"); /* what it is asked for in its next life */
                kill(npu->process.pid, SIGKILL);
                wait_for(rig, strstr(npu->record.last_exit, "there is no device") != NULL);
                if (i == 1) {
                        wait_for(rig, npu->state == TDM_WORKER_QUARANTINED);
                        assert_true(npu->record.try_at_ns > 0);
                }
                assert_false(npu->no_device);
                strcpy(npu->about.device, "host");
                wait_for(rig, npu->state == TDM_WORKER_READY && is_whole(rig));
                run_jobs(rig, TDM_PLACEMENT_SPLIT);
        }
        /* After a sleep it may be missing for longer than that. */
        strcpy(npu->about.device, "none");
        n_restarts = npu->record.restarts;
        tdm_fleet_reopen(rig->fleet, TDM_WORKER_NPU, "the machine slept");
        wait_for(rig, npu->record.restarts > n_restarts + TDM_FLEET_MAX_DEATHS + 1);
        assert_non_null(strstr(npu->record.last_exit, "there is no device"));
        assert_int_not_equal(npu->state, TDM_WORKER_QUARANTINED);
        strcpy(npu->about.device, "host");
        wait_for(rig, npu->state == TDM_WORKER_READY && is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
        snprintf(path, sizeof(path), "%s/tandem-npu-worker", dir);
        unlink(path);
        snprintf(path, sizeof(path), "%s/tandem-gpu-worker", dir);
        unlink(path);
        rmdir(dir);
}

/* Both at once, with work in flight: it waits for the first one that comes back. */
/* The accelerator is required: while it is missing the other worker runs nothing, and it is looked for again. */
static void required(void **state)
{
        char dir[] = "/tmp/tandem-test-fleet-XXXXXX", path[256], fault[300];
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_FAULTY_DIR,
                .requested = { "host", "required" },
                .n_threads = 1,
                .hang_min_ns = HANG_NS,
                .quarantine_ns = 50 * TDM_NSEC_PER_MSEC,
        };
        struct tdm_error err = { 0 };
        struct tdm_fleet_worker *gpu;
        struct rig *rig;
        unsigned n;

        if (access(TANDEM_FAULTY_DIR "/tandem-gpu-worker", X_OK) < 0)
                skip();
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/accelerator", dir);
        snprintf(fault, sizeof(fault), "device=%s", path);
        setenv("TANDEM_FAULT_GPU", fault, 1);
        rig = rig_new_with(&config);
        gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        wait_for(rig, rig->model_error.code != 0);
        assert_int_equal(rig->model_error.code, TDM_E_NO_WORKER);
        assert_non_null(strstr(rig->model_error.message, "gpu = required is set and the GPU cannot be used"));
        assert_non_null(strstr(rig->model_error.message, "there is no file"));
        wait_for(rig, !tdm_fleet_find(rig->fleet, rig->model.model_id));
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), TDM_E_NO_WORKER);
        assert_false(tdm_fleet_is_ready(rig->fleet));
        assert_string_equal(tdm_fleet_missed_name(rig->fleet), "gpu");

        /* It is tried again by itself, and nothing runs between two tries. */
        n = gpu->record.quarantines;
        wait_for(rig, gpu->record.quarantines > n + 1);
        assert_false(tdm_fleet_is_ready(rig->fleet));
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        wait_for(rig, gpu->state == TDM_WORKER_READY && tdm_fleet_is_ready(rig->fleet));
        assert_string_equal(gpu->about.device, "host"); /* what the worker with faults calls itself */
        assert_null(tdm_fleet_missed_name(rig->fleet));
        memset(&rig->model_error, 0, sizeof(rig->model_error));
        assert_int_equal(tdm_fleet_add_model(rig->fleet, &rig->model, &err), 0);
        run_jobs(rig, TDM_PLACEMENT_GPU);

        /* Lost for good: a model that runs is refused too. The other worker could compute it. */
        unlink(path);
        kill(gpu->process.pid, SIGKILL);
        wait_for(rig, rig->model_error.code != 0);
        assert_int_equal(rig->model_error.code, TDM_E_NO_WORKER);
        assert_non_null(strstr(rig->model_error.message, "gpu = required"));
        assert_false(tdm_fleet_is_ready(rig->fleet));
        rig_free(rig);
        unsetenv("TANDEM_FAULT_GPU");
        rmdir(dir);
}

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
        start_jobs(rig, TDM_PLACEMENT_STANDBY);
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
        /* Nor is it missed, however long the jobs take meanwhile. */
        const struct tdm_fleet_config config = { .worker_dir = dir,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = HANG_NS,
                                                 .control_ns = 600 * TDM_NSEC_PER_SEC };
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
        run_jobs(rig, TDM_PLACEMENT_STANDBY);
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

        /* A step for a worker that is away is not taken. Its death voids nothing: it had no part in this epoch. */
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        assert_int_equal(rig->jobs[0].step_id, 0);
        old_pid = gpu->process.pid;
        kill(gpu->process.pid, SIGKILL);
        wait_for(rig, gpu->process.pid != 0 && gpu->process.pid != old_pid);
        assert_int_equal(rig->n_resets, 1);

        link_worker(dir, "tandem-gpu-worker");
        kill(gpu->process.pid, SIGKILL);
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
                wait_for(rig, w->process.pid != pid);
        }
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        assert_int_equal(npu.state, TDM_WORKER_QUARANTINED);
        assert_int_equal(plan_of(rig, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_true(degraded);
        run_jobs(rig, TDM_PLACEMENT_ANY);
        rig_free(rig);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(quarantined),
                cmocka_unit_test(quarantined_at_work),
                cmocka_unit_test(not_ready_before_the_survivor),
                cmocka_unit_test(survivor),
                cmocka_unit_test(back_from_quarantine),
                cmocka_unit_test(device_comes_back),
                cmocka_unit_test(required),
                cmocka_unit_test(both_back_from_quarantine),
        };

        return rig_run_tests("test-fleet-quarantine", tests, TDM_ARRAY_SIZE(tests));
}
