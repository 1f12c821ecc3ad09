/* The fleet and silent workers: a worker that gets no CPU is not hung, one that is stopped is. */
#include "daemon/fleet/test-rig.h"

#include <dirent.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* Nothing is owed, and still it is noticed; a healthy one answers and is left in peace. */
static void stopped_idle(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU],
                                *gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        struct patience patience;
        struct stopwatch watch;

        wait_for(rig, is_whole(rig));
        wait_for(rig, npu->silence.ping_sent >= 1 && atomic_load(&npu->progress->answered) == npu->silence.ping_sent);
        watch = stopwatch_start(0);
        kill(npu->process.pid, SIGSTOP);
        wait_for(rig, rig->n_resets == 1);
        assert_true(stopwatch_ns(&watch) < 3 * TDM_NSEC_PER_SEC + 2 * HANG_NS);
        assert_non_null(strstr(npu->record.last_exit, "ping"));
        assert_non_null(strstr(npu->record.last_exit, "stopped"));
        wait_for(rig, is_whole(rig));
        assert_int_equal(gpu->record.restarts, 0);

        /* In reserve while the other one works. */
        rig->n_resets = 0;
        kill(npu->process.pid, SIGSTOP);
        start_jobs(rig, TDM_PLACEMENT_GPU);
        rig->hold = false;
        patience = patience_begin(rig);
        while (rig->n_resets == 0) {
                jobs_submit(rig);
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
                if (jobs_finished(rig))
                        start_jobs(rig, TDM_PLACEMENT_GPU);
                assert_false(patience_is_over(&patience, rig));
        }
        assert_int_equal(gpu->record.restarts, 0);
        rig->hold = true;
        wait_for(rig, rig->jobs[0].step_id == 0 && rig->jobs[1].step_id == 0);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

/* All threads of a process. SCHED_IDLE: they run only when no other thread wants the CPU. An ordinary user may choose
 * it, and may not choose another one afterwards: false. */
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

        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        if (pid != 0) { /* here too: it may get no CPU for a while to do it itself */
                sched_setaffinity(pid, sizeof(set), &set);
                return pid;
        }
        sched_setaffinity(0, sizeof(set), &set);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!nice(-20); /* where it may: it only makes it worse for the others */
        for (;;)
                __asm__ volatile("");
}

static int first_cpu(void)
{
        cpu_set_t set;
        int first = 0;

        assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
        while (!CPU_ISSET(first, &set))
                first++;
        return first;
}

/* The rig's NPU worker, on a CPU that others want. */
struct hunger {
        char cpu[16];
        pid_t spinners[2];
};

static struct rig *rig_to_starve(struct hunger *h)
{
        struct tdm_fleet_config config = {
                .worker_dir = TANDEM_BIN_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };
        struct rig *rig;

        snprintf(h->cpu, sizeof(h->cpu), "%d", first_cpu());
        config.cpus[TDM_WORKER_NPU] = h->cpu;
        rig = rig_new_with(&config);
        wait_for(rig, is_whole(rig));
        return rig;
}

static void hunger_begin(struct hunger *h, struct rig *rig)
{
        assert_true(set_class(worker_pid(rig, TDM_WORKER_NPU), SCHED_IDLE));
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(h->spinners); i++)
                h->spinners[i] = spinner(first_cpu());
}

/* Its class is not left to it: on a machine with other work it would starve on. */
static void hunger_end(struct hunger *h, struct rig *rig)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(h->spinners); i++) {
                kill(h->spinners[i], SIGKILL);
                waitpid(h->spinners[i], NULL, 0);
        }
        (void)set_class(worker_pid(rig, TDM_WORKER_NPU), SCHED_OTHER);
}

static void starved_rig_free(struct rig *rig)
{
        if (set_class(worker_pid(rig, TDM_WORKER_NPU), SCHED_OTHER))
                rig_free(rig);
        else /* still starved where others want its CPU: to die it needs some, and gets a thousandth of it */
                rig_free_within(rig, 3 * PATIENCE_NS);
}

/* A worker that gets a CPU for a moment each second is slow, not hung. */
static void starved(void **state)
{
        struct hunger hunger;
        struct rig *rig = rig_to_starve(&hunger);
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];
        uint64_t until, longest = 0;

        hunger_begin(&hunger, rig);
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        until = tdm_now_ns() + 5 * HANG_NS;
        while (tdm_now_ns() < until && !jobs_finished(rig)) {
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
                longest = TDM_MAX(longest, npu->silence.sample.forgiven_ns);
        }
        assert_int_equal(npu->record.restarts, 0);
        assert_int_equal(rig->n_resets, 0);
        print_message("forgiven: up to %.0f ms\n", (double)longest / 1e6);
        hunger_end(&hunger, rig);
        wait_for(rig, jobs_finished(rig));
        assert_int_equal(rig->n_resets, 0);
        starved_rig_free(rig);
}

/* Nor is one that has no CPU to take a model. */
static void starved_with_a_model(void **state)
{
        struct hunger hunger;
        struct rig *rig = rig_to_starve(&hunger);
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];
        struct tdm_fleet_model second = rig->model;
        const uint64_t control_ns = rig->fleet->control_ns;
        struct tdm_error err = { 0 };
        uint64_t until;

        hunger_begin(&hunger, rig);
        rig->fleet->control_ns = HANG_NS;
        second.model_id = 2;
        if (tdm_fleet_add_model(rig->fleet, &second, &err) != 0)
                fail_msg("%s", err.message);
        until = tdm_now_ns() + 5 * HANG_NS;
        while (tdm_now_ns() < until)
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
        print_message("forgiven: %.0f ms\n", (double)npu->silence.control_sample.forgiven_ns / 1e6);
        assert_int_equal(npu->record.restarts, 0);
        assert_int_equal(rig->n_resets, 0);
        hunger_end(&hunger, rig);
        rig->fleet->control_ns = control_ns;
        wait_for(rig, rig->n_model_ready == 2);
        assert_int_equal(npu->record.restarts, 0);
        tdm_fleet_remove_model(rig->fleet, 2);
        wait_for(rig, !tdm_fleet_find(rig->fleet, 2));
        starved_rig_free(rig);
}

/* What counts as starved, and what does not. */
static void starved_or_not(void **state)
{
        const uint64_t tick = 100 * TDM_NSEC_PER_MSEC, most = 10 * TDM_NSEC_PER_SEC;
        struct tdm_fleet_sample sample = { 0 };
        const struct sched_param param = { 0 };
        const int first = first_cpu();
        pid_t hog, pid;

        hog = spinner(first);
        pid = spinner(first);
        assert_int_equal(sched_setscheduler(pid, SCHED_IDLE, &param), 0);
        usleep(50000);
        assert_int_equal(tdm_fleet_starved_ns(&sample, pid, tick, most), 0);
        usleep(200000);
        assert_true(tdm_fleet_starved_ns(&sample, pid, tick, most) > tick / 2); /* wants to run and may not */
        for (unsigned i = 0; i < 100; i++) {
                usleep(2000);
                tdm_fleet_starved_ns(&sample, pid, TDM_NSEC_PER_SEC, most);
        }
        assert_int_equal(sample.forgiven_ns, most); /* not for ever */
        kill(hog, SIGKILL);
        waitpid(hog, NULL, 0);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        memset(&sample, 0, sizeof(sample));
        pid = spinner(first);
        kill(pid, SIGSTOP);
        assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
        tdm_fleet_starved_ns(&sample, pid, tick, most);
        usleep(100000);
        assert_true(tdm_fleet_starved_ns(&sample, pid, tick, most) < tick / 10); /* wants nothing */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        assert_int_equal(tdm_fleet_starved_ns(&sample, pid, tick, most), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(stopped_idle),
                cmocka_unit_test(starved),
                cmocka_unit_test(starved_with_a_model),
                cmocka_unit_test(starved_or_not),
        };

        return rig_run_tests("test-fleet-starved", tests, TDM_ARRAY_SIZE(tests));
}
