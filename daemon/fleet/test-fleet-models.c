/* The fleet and models: trials of their placements, coming and going, weights that are handed over in pieces. */
#include "daemon/fleet/test-rig.h"

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

                setenv(slow[i], "numerics=-a,slow=9000", 1); /* more than a step waits for a CPU */
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

static void models_come_and_go(void **state)
{
        struct rig *rig = rig_new();
        struct tdm_fleet_model second = rig->model;
        struct tdm_error err = { 0 };
        uint32_t n_ready;

        run_jobs(rig, TDM_PLACEMENT_SPLIT);
        n_ready = rig->n_ready;
        tdm_fleet_remove_model(rig->fleet, 1);
        assert_int_equal(tdm_fleet_submit(rig->fleet, 1, 0, &(struct tdm_step_head){ 0 }), -ENOENT);
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

/* A model whose weights come chunk by chunk does not hold up steps of others, whatever happens to the workers. */
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

/* A worker that is asked to take a model while it is in a long step, and moves, is waited for. */
static void asked_in_a_long_step(void **state)
{
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_BIN_DIR "/../faulty",
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = HANG_NS,
                                                 .control_ns = TDM_NSEC_PER_SEC };
        struct tdm_fleet_model second;
        struct tdm_error err = { 0 };
        struct rig *rig;

        setenv("TANDEM_FAULT_GPU", "long=250", 1);
        rig = rig_new_with(&config);
        wait_for(rig, is_whole(rig));
        start_jobs(rig, TDM_PLACEMENT_GPU);
        rig->jobs[0].tokens[3] = 250;
        rig->hold = false;
        jobs_submit(rig);
        rig->hold = true;
        settle(rig, HANG_NS / 2); /* it is at work */
        second = rig->model;
        second.model_id = 2;
        if (tdm_fleet_add_model(rig->fleet, &second, &err) != 0)
                fail_msg("%s", err.message);
        wait_for(rig, rig->n_model_ready == 2);
        assert_int_equal(rig->n_resets, 0);
        rig_free(rig);
        unsetenv("TANDEM_FAULT_GPU");
}

/* A model that ends each worker that takes it fails, and the workers go on with the others. */
static void deadly(void **state)
{
        static const char *const faults[][TDM_N_WORKERS] = { { "f32=abort", "f32=abort" },
                                                             { "f32=none", "f32=abort" } };
        const struct tdm_fleet_config config = {
                .worker_dir = TANDEM_FAULTY_DIR, .requested = { "host", "host" }, .n_threads = 1, .hang_min_ns = HANG_NS
        };

        if (access(TANDEM_FAULTY_DIR "/tandem-npu-worker", X_OK) < 0)
                skip();
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(faults); i++) {
                const struct tdm_fleet_worker *npu, *gpu;
                struct tdm_fleet_model second;
                uint64_t n_restarts;
                struct rig *rig;

                setenv("TANDEM_FAULT_NPU", faults[i][TDM_WORKER_NPU], 1);
                setenv("TANDEM_FAULT_GPU", faults[i][TDM_WORKER_GPU], 1);
                rig = rig_new_with(&config);
                npu = &rig->fleet->workers[TDM_WORKER_NPU];
                gpu = &rig->fleet->workers[TDM_WORKER_GPU];
                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                second = rig->model;
                second.model_id = 2;
                second.name = "deadly";
                second.precision = TDM_PRECISION_F32;
                assert_int_equal(tdm_fleet_add_model(rig->fleet, &second, NULL), 0);
                wait_for(rig, rig->model_error.code != 0);
                assert_int_equal(rig->model_error.code, TDM_E_DEVICE_FAULT);
                assert_non_null(strstr(rig->model_error.message, "while they took model deadly"));
                wait_for(rig, is_whole(rig) && !tdm_fleet_find(rig->fleet, 2));
                if (i == 0) {
                        /* The first to die may die again before the other does, and once more as the model leaves. */
                        n_restarts = npu->record.restarts + gpu->record.restarts;
                        assert_in_range(n_restarts, 2, TDM_FLEET_MAX_DEATHS);
                } else {
                        assert_int_equal(npu->record.restarts, 0);
                        assert_int_equal(gpu->record.restarts, TDM_FLEET_MAX_DEATHS - 1);
                }
                assert_int_equal(npu->record.quarantines, 0);
                assert_int_equal(gpu->record.quarantines, 0);
                run_jobs(rig, TDM_PLACEMENT_SPLIT);
                rig_free(rig);
        }
        unsetenv("TANDEM_FAULT_NPU");
        unsetenv("TANDEM_FAULT_GPU");
}

/* A worker that ends at each model, and never took one, is at fault where the other worker has the model. */
static void barren(void **state)
{
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_FAULTY_DIR,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = HANG_NS,
                                                 .quarantine_ns = 600 * TDM_NSEC_PER_SEC };
        struct tdm_fleet_worker *gpu;
        struct rig *rig;

        if (access(TANDEM_FAULTY_DIR "/tandem-npu-worker", X_OK) < 0)
                skip();
        rig = rig_new_with(&config);
        gpu = &rig->fleet->workers[TDM_WORKER_GPU];
        run_jobs(rig, TDM_PLACEMENT_ANY);
        /* As if the NPU worker had been the only one to load it. */
        rig->fleet->models[0]->on[TDM_WORKER_GPU].proved = false;
        gpu->record.took_one = false;
        setenv("TANDEM_FAULT_GPU", "load=abort", 1);
        assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_GPU, "a test"), 0);
        wait_for(rig, gpu->record.quarantines == 1);
        assert_int_equal(rig->model_error.code, 0);
        run_jobs(rig, TDM_PLACEMENT_ANY);
        rig_free(rig);
        unsetenv("TANDEM_FAULT_GPU");
}

/* The same while the other worker still takes the model: it shows whether the model is good. */
static void barren_beside_a_slow_one(void **state)
{
        const struct tdm_fleet_config config = { .worker_dir = TANDEM_FAULTY_DIR,
                                                 .requested = { "host", "host" },
                                                 .n_threads = 1,
                                                 .hang_min_ns = 600 * TDM_NSEC_PER_SEC, /* one of them is stopped */
                                                 .control_ns = 600 * TDM_NSEC_PER_SEC,
                                                 .quarantine_ns = 600 * TDM_NSEC_PER_SEC };

        if (access(TANDEM_FAULTY_DIR "/tandem-npu-worker", X_OK) < 0)
                skip();
        for (unsigned is_good = 0; is_good < 2; is_good++) {
                struct tdm_fleet_worker *npu, *gpu;
                struct tdm_fleet_model second;
                struct rig *rig;

                setenv("TANDEM_FAULT_NPU", "f32=abort", 1);
                unsetenv("TANDEM_FAULT_GPU");
                rig = rig_new_with(&config);
                npu = &rig->fleet->workers[TDM_WORKER_NPU];
                gpu = &rig->fleet->workers[TDM_WORKER_GPU];
                wait_for(rig, is_whole(rig));
                second = rig->model;
                tdm_fleet_remove_model(rig->fleet, rig->model.model_id);
                wait_for(rig, !rig->fleet->models[0]);
                /* As if no model had been there before. */
                setenv("TANDEM_FAULT_GPU", "load=abort", 1);
                assert_int_equal(tdm_fleet_restart(rig->fleet, TDM_WORKER_GPU, "a test"), 0);
                wait_for(rig, gpu->record.restarts == 1 && gpu->state == TDM_WORKER_READY);
                gpu->record.took_one = false;
                assert_int_equal(kill(npu->process.pid, SIGSTOP), 0);
                second.model_id = 2;
                second.precision = is_good ? second.precision : TDM_PRECISION_F32;
                assert_int_equal(tdm_fleet_add_model(rig->fleet, &second, NULL), 0);
                wait_for(rig, gpu->record.quarantines == 1 || rig->model_error.code != 0);
                assert_int_equal(rig->model_error.code, 0);
                assert_int_equal(rig->fleet->models[0]->on[TDM_WORKER_NPU].load, TDM_FLEET_LOADING);
                assert_int_equal(kill(npu->process.pid, SIGCONT), 0);
                wait_for(rig, rig->n_model_ready == 2 || rig->model_error.code != 0);
                assert_int_equal(rig->model_error.code, is_good ? 0 : TDM_E_DEVICE_FAULT);
                rig->model.model_id = 2;
                if (is_good)
                        run_jobs(rig, TDM_PLACEMENT_ANY);
                assert_int_equal(npu->record.quarantines, 0);
                rig_free(rig);
        }
        unsetenv("TANDEM_FAULT_NPU");
        unsetenv("TANDEM_FAULT_GPU");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(measured),
                cmocka_unit_test(measured_to_death),
                cmocka_unit_test(models_come_and_go),
                cmocka_unit_test(in_pieces),
                cmocka_unit_test(stopped_in_pieces),
                cmocka_unit_test(hung_in_pieces),
                cmocka_unit_test(asked_in_a_long_step),
                cmocka_unit_test(deadly),
                cmocka_unit_test(barren),
                cmocka_unit_test(barren_beside_a_slow_one),
        };

        return rig_run_tests("test-fleet-models", tests, TDM_ARRAY_SIZE(tests));
}
