/* The fleet and a peer that scribbles over its rings, or cries without need. */
#include "daemon/fleet/test-rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "common/ring-layout.h"

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
                atomic_store(&tdm_ring_shared(f->workers[TDM_WORKER_GPU].link.ring_to)->produced, 5000);
                break;
        case 1: /* towards tandemd */
                ring = tdm_ring_shared(f->workers[TDM_WORKER_GPU].link.ring_from);
                atomic_store(&ring->produced, atomic_load(&ring->produced) + 4000);
                break;
        case 2: /* between the workers */
                atomic_store(&map_ring(f->rings.fds[TDM_WORKER_NPU].to_peer)->produced, 12345);
                break;
        case 3: /* the consumer's index, which the producer checks */
                atomic_store(&map_ring(f->rings.fds[TDM_WORKER_NPU].from_peer)->consumed, 1u << 30);
                break;
        case 4: { /* a step that is done though nobody submitted it */
                struct tdm_ring_shared *from = tdm_ring_shared(f->workers[TDM_WORKER_GPU].link.ring_from);
                uint32_t at = atomic_load(&from->produced);
                const uint64_t one = 1;

                from->entries[at % from->n_entries] = (struct tdm_desc){
                        .kind = TDM_DESC_DONE, .epoch = f->epoch, .step_id = 99, .model_id = 1, .slot = 0
                };
                atomic_store(&from->produced, at + 1);
                assert_int_equal(write(tdm_ring_eventfd(f->workers[TDM_WORKER_GPU].link.ring_from), &one, sizeof(one)),
                                 8);
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
        /* One run of the jobs may have too few steps in which somebody looks in time. */
        for (unsigned i = 0; i < 100 && rig->n_resets < 5; i++) {
                rig->hook_after = 0;
                run_jobs(rig, TDM_PLACEMENT_SPLIT);
        }
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
        /* The stop is no hang, also where the thread that ends it waits for a CPU. */
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_BIN_DIR,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = 600 * TDM_NSEC_PER_SEC };
        struct rig *rig = rig_new_with(&config);
        const struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU],
                                      *gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        struct crier c = { 0 };
        pthread_t thread;

        wait_for(rig, is_whole(rig));
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                assert_true((c.fds[w] = fcntl(tdm_ring_eventfd(rig->fleet->workers[w].link.ring_from), F_DUPFD_CLOEXEC,
                                              3)) >= 0);
        c.pid = worker_pid(rig, TDM_WORKER_GPU);
        assert_int_equal(pthread_create(&thread, NULL, cry, &c), 0);
        for (unsigned i = 0; i < 100 && gpu->link.await.n_waits == 0; i++)
                run_jobs(rig, TDM_PLACEMENT_SPLIT); /* the thread may begin late */
        atomic_store(&c.stop, true);
        pthread_join(thread, NULL);
        assert_int_equal(rig->n_resets, 0);
        assert_true(gpu->link.await.n_waits > 0 && gpu->link.await.n_waits <= rig->n_steps + TDM_STEP_SLOTS);
        assert_int_equal(npu->link.await.n_waits, 0); /* no step ends there */
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

                atomic_store(&tdm_ring_shared(rig->fleet->workers[TDM_WORKER_GPU].link.ring_to)->consumed, 77);
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

/* A compromised worker accuses its peer in every epoch, or without end. The jobs give the same tokens on the honest
 * worker, which is restarted at most with the liar and is never quarantined. The liar ends few epochs. */
static void false_accusations(const char *variable, const char *what, enum tdm_worker_index liar)
{
        /* The liar is not back for a moment when its state is looked at, however long the jobs take. */
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_FAULTY_DIR,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = HANG_NS,
                                                 .quarantine_ns = 600 * TDM_NSEC_PER_SEC };
        struct tdm_worker_status honest, accuser;
        uint64_t until;
        struct rig *rig;

        setenv(variable, what, 1);
        rig = rig_new_with(&config);
        wait_for(rig, rig->n_resets >= 1 && tdm_fleet_is_ready(rig->fleet));
        for (unsigned i = 0; i < 3; i++) {
                start_jobs(rig, TDM_PLACEMENT_STANDBY);
                rig->hold = false;
                jobs_submit(rig);
                wait_for(rig, jobs_finished(rig));
                rig->hold = true;
                for (unsigned j = 0; j < N_JOBS; j++)
                        assert_memory_equal(rig->jobs[j].tokens, expected[j], sizeof(expected[j]));
        }
        wait_for(rig, rig->fleet->workers[liar].state == TDM_WORKER_QUARANTINED);
        until = tdm_now_ns() + 3 * TDM_NSEC_PER_SEC;
        while (tdm_now_ns() < until)
                assert_int_equal(tdm_loop_turn(rig->loop, 20 * TDM_NSEC_PER_MSEC), 0);
        tdm_fleet_worker_status(rig->fleet, (enum tdm_worker_index) !liar, &honest);
        tdm_fleet_worker_status(rig->fleet, liar, &accuser);
        assert_true(honest.restarts <= 1);
        assert_int_equal(honest.state, TDM_WORKER_READY);
        assert_true(tdm_fleet_epoch(rig->fleet) < 40);
        assert_int_equal(accuser.state, TDM_WORKER_QUARANTINED);
        assert_true(strstr(accuser.last_exit, "accuses") || strstr(accuser.last_exit, "reports a ring"));
        rig_free(rig);
        unsetenv(variable);
}

/* A stopped worker's progress says that it answers. Else a ping would find it before its claim does, where its peer has
 * no CPU. */
static bool has_reason(const struct rig *rig, struct tdm_fleet_worker *liar)
{
        if (liar->progress)
                atomic_store(&liar->progress->answered, liar->silence.ping_sent);
        return rig->reason[0];
}

/* A worker stops, and says in its progress that the block which it has is done: its honest peer, which was never given
 * the next one, is not taken for one that hangs. Again and again, each time in another epoch. */
static void false_progress(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu, gpu;

        wait_for(rig, is_whole(rig));
        for (unsigned i = 0; i < 2; i++) {
                struct tdm_fleet_worker *liar = &rig->fleet->workers[TDM_WORKER_NPU];
                const uint32_t epoch = tdm_fleet_epoch(rig->fleet);
                const struct tdm_fleet_step *step = NULL;
                pid_t pid = worker_pid(rig, TDM_WORKER_NPU);
                uint32_t block = 0;

                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig->reason[0] = 0;
                forget_times(rig, TDM_WORKER_GPU);
                kill(pid, SIGSTOP);
                start_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig->hold = false;
                jobs_submit(rig);
                rig->hold = true;
                for (unsigned s = 0; s < TDM_STEP_SLOTS; s++) {
                        step = &rig->fleet->models[0]->steps[s];
                        for (block = 1; step->step_id && block < step->n_blocks; block++)
                                if (step->plan[block - 1] == TDM_WORKER_NPU && step->plan[block] == TDM_WORKER_GPU)
                                        break;
                        if (step->step_id)
                                atomic_store(&liar->progress->steps[rig->fleet->models[0]->index][s],
                                             tdm_progress_pack(step->step_id, block));
                }
                wait_for(rig, has_reason(rig, liar));
                assert_non_null(strstr(rig->reason, "says that it handed a step on"));
                kill(pid, SIGCONT);
                wait_for(rig, is_whole(rig) && tdm_fleet_epoch(rig->fleet) > epoch);
        }
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_int_equal(gpu.restarts, 0);
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig_free(rig);
}

static void gpu_lies(void **state)
{
        false_accusations("TANDEM_FAULT_GPU", "accuse=0", TDM_WORKER_GPU);
}

static void npu_lies(void **state)
{
        false_accusations("TANDEM_FAULT_NPU", "accuse=0", TDM_WORKER_NPU);
}

static void gpu_cries(void **state)
{
        false_accusations("TANDEM_FAULT_GPU", "cry=0", TDM_WORKER_GPU);
}

/* Scribbles, and has jobs run, until that ends the epoch. The ring's owner may write the index again before its peer
 * looks at it. Then no harm was done. */
static bool scribbled_to_peer(struct rig *rig, uint32_t epoch)
{
        if (tdm_fleet_epoch(rig->fleet) > epoch)
                return true;
        if (rig->jobs[0].step_id != 0 || rig->jobs[1].step_id != 0)
                return false;
        atomic_store(&map_ring(rig->fleet->rings.fds[TDM_WORKER_NPU].to_peer)->produced, 12345);
        start_jobs(rig, TDM_PLACEMENT_SPLIT);
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        return false;
}

/* A worker that scribbles on the ring between the two makes the honest one accuse it. Nobody can tell that from a false
 * accusation. The link is cut, both go on without it, and neither is quarantined. */
static void scribbling_peer(void **state)
{
        struct rig *rig = rig_new();
        const struct tdm_fleet_worker *w = rig->fleet->workers;

        wait_for(rig, is_whole(rig));
        for (unsigned i = 0; i < TDM_FLEET_MAX_RING_FAULTS; i++) {
                uint32_t epoch = tdm_fleet_epoch(rig->fleet);

                wait_for(rig, scribbled_to_peer(rig, epoch));
                wait_for(rig, is_whole(rig));
        }
        assert_true(tdm_fleet_link_is_cut(rig->fleet));
        assert_false(rig->fleet->rings.has_peer);
        assert_int_equal(w[TDM_WORKER_NPU].record.restarts, 1);
        assert_int_equal(w[TDM_WORKER_GPU].record.restarts, 1);
        run_jobs(rig, TDM_PLACEMENT_GPU);
        run_jobs(rig, TDM_PLACEMENT_NPU);
        wait_for(rig, !tdm_fleet_link_is_cut(rig->fleet) && is_whole(rig));
        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        assert_true(rig->fleet->rings.has_peer);
        assert_int_equal(w[TDM_WORKER_NPU].record.restarts, 1);
        rig_free(rig);
}

/* A worker says (StepFailed) that a step failed in which it has no block. */
static void fault_hook(struct rig *rig, uint32_t n_steps)
{
        struct tdm_fleet_worker *npu = &rig->fleet->workers[TDM_WORKER_NPU];
        struct tdm_error err;

        if (n_steps < 4 || rig->hook_state > 0 || rig->jobs[0].step_id == 0 || !npu->link.ring_from)
                return;
        rig->hook_state++;
        tdm_error_set(&err, TDM_E_DEVICE_FAULT, "a lie");
        tdm_fleet_on_step_failed(npu, rig->fleet->epoch, rig->model.model_id, 0, rig->jobs[0].step_id, &err);
}

static void fails_of_another(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status npu, gpu;

        rig->hook = fault_hook;
        for (unsigned i = 0; i < 20; i++) { /* one lie in each round */
                rig->hook_state = 0;
                run_jobs(rig, TDM_PLACEMENT_GPU);
        }
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_NPU, &npu);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &gpu);
        assert_true(npu.restarts > 0 || npu.state == TDM_WORKER_QUARANTINED);
        assert_int_equal(gpu.restarts, 0);
        assert_int_equal(rig->step_error.code, 0);
        rig_free(rig);
}

/* A worker's counters are its own word: those that cannot be are not shown, and none falls. */
static void lying_counters(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_worker_status before, after;
        struct tdm_progress *p;
        uint64_t life_ns;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        p = rig->fleet->workers[TDM_WORKER_GPU].progress;
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &before);
        assert_true(before.busy_ns > 0 && before.done[TDM_BLOCK_FFN].blocks > 0);
        atomic_store(&p->busy_ns, 0);
        atomic_store(&p->kinds[TDM_BLOCK_FFN].blocks, 0);
        atomic_store(&p->waiting_ns, UINT64_MAX);
        atomic_store(&p->waiting_since_ns, 1);
        atomic_store(&p->handovers, UINT64_MAX);
        atomic_store(&p->kinds[TDM_BLOCK_FFN].rows, UINT64_MAX / 2);
        tdm_fleet_worker_status(rig->fleet, TDM_WORKER_GPU, &after);
        life_ns = tdm_now_ns() - after.started_ns;
        assert_true(after.busy_ns >= before.busy_ns);
        assert_true(after.done[TDM_BLOCK_FFN].blocks >= before.done[TDM_BLOCK_FFN].blocks);
        assert_true(after.waiting_ns <= life_ns && after.handovers <= life_ns);
        assert_true(after.done[TDM_BLOCK_FFN].rows <= life_ns);
        rig_free(rig);
}

/* It says that its blocks take minutes, or that there were none, or more than can be counted. */
static void slow_by_its_own_figures(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_worker *w;
        struct tdm_progress *p;
        uint64_t honest_ns;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        w = &rig->fleet->workers[TDM_WORKER_GPU];
        p = w->progress;
        honest_ns = tdm_fleet_hang_ns(w, TDM_BLOCK_FFN);
        assert_true(honest_ns >= rig->fleet->hang_min_ns && honest_ns < TDM_FLEET_HANG_MAX_NS);
        for (unsigned i = 0; i < TDM_PROGRESS_BUCKETS; i++) {
                uint64_t lied_ns;

                atomic_store(&p->kinds[TDM_BLOCK_FFN].histogram[i], UINT32_MAX);
                lied_ns = tdm_fleet_hang_ns(w, TDM_BLOCK_FFN);
                assert_true(lied_ns >= rig->fleet->hang_min_ns && lied_ns <= TDM_FLEET_HANG_MAX_NS);
        }
        assert_int_equal(tdm_fleet_hang_ns(w, TDM_BLOCK_FFN), TDM_FLEET_HANG_MAX_NS);
        for (unsigned i = 0; i < TDM_PROGRESS_BUCKETS; i++)
                atomic_store(&p->kinds[TDM_BLOCK_FFN].histogram[i], 0);
        assert_int_equal(tdm_fleet_hang_ns(w, TDM_BLOCK_FFN), rig->fleet->hang_min_ns);
        rig_free(rig);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(scribbled),
                cmocka_unit_test(scribbled_often),
                cmocka_unit_test(false_progress),
                cmocka_unit_test(woken_early),
                cmocka_unit_test(scribbling_peer),
                cmocka_unit_test(lying_counters),
                cmocka_unit_test(fails_of_another),
                cmocka_unit_test(gpu_lies),
                cmocka_unit_test(npu_lies),
                cmocka_unit_test(gpu_cries),
                cmocka_unit_test(slow_by_its_own_figures),
        };

        return rig_run_tests("test-fleet-rings", tests, TDM_ARRAY_SIZE(tests));
}
