/* Placement alone: names, plans, what "measured" is, routes, shares, the trial, and the file of its results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include "daemon/placement/placement.h"

static const struct tdm_hparams hp = { .n_layers = 2, .d_model = 8, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8 };

static struct tdm_placement_workers both_up(void)
{
        return (struct tdm_placement_workers){ .of = { { .usable = true, .up = true }, { .usable = true, .up = true } },
                                               .equal_bits = true };
}

static void test_names(void **state)
{
        for (int i = 0; i < (int)TDM_N_ASKED_PLACEMENTS; i++)
                assert_int_equal(tdm_placement_from_name(tdm_placement_name((enum tdm_placement)i)), i);
        assert_int_equal(tdm_placement_from_name(""), TDM_PLACEMENT_ANY);
        assert_int_equal(tdm_placement_from_name("both"), -EINVAL);
        for (int i = TDM_N_ASKED_PLACEMENTS; i < TDM_N_PLACEMENTS; i++)
                assert_int_equal(tdm_placement_from_name(tdm_placement_name((enum tdm_placement)i)), -EINVAL);
        for (int i = 0; i < TDM_N_PLACEMENTS; i++)
                assert_string_not_equal(tdm_placement_text((enum tdm_placement)i), "unknown");
        assert_string_equal(tdm_placement_text(TDM_N_PLACEMENTS), "unknown");
}

static void test_plans(void **state)
{
        struct tdm_placement_workers w = both_up();
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        bool degraded;

        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_SPLIT, plan, &degraded), 0);
        assert_false(degraded);
        for (uint32_t b = 0; b < tdm_model_n_blocks(&hp); b++)
                assert_int_equal(plan[b],
                                 tdm_block_kind(&hp, b) == TDM_BLOCK_ATTENTION ? TDM_WORKER_NPU : TDM_WORKER_GPU);
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_BALANCED, plan, NULL), -EINVAL);

        /* Away for a while: its steps wait, unless nobody has asked for it. */
        w.of[TDM_WORKER_NPU].usable = false;
        w.degraded = true;
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_NPU, plan, &degraded), 0);
        assert_true(degraded);
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_GPU, plan, &degraded), 0);
        assert_false(degraded);
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_ANY, plan, &degraded), 0);
        assert_true(degraded);
        for (uint32_t b = 0; b < tdm_model_n_blocks(&hp); b++)
                assert_int_equal(plan[b], TDM_WORKER_GPU);

        w.of[TDM_WORKER_NPU].given_up = true;
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_SPLIT, plan, NULL), -EHOSTDOWN);
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_NPU, plan, NULL), -EHOSTDOWN);
        assert_int_equal(tdm_placement_plan(&w, &hp, TDM_PLACEMENT_ANY, plan, NULL), 0);
}

static void test_measured(void **state)
{
        struct tdm_placement_workers w = both_up();

        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_NPU), TDM_PLACEMENT_BALANCED);
        w.shares_cpus = true;
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_NPU), TDM_PLACEMENT_STANDBY);
        w.equal_bits = false;
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_NPU), TDM_PLACEMENT_NPU);
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_ANY), TDM_PLACEMENT_SPLIT);
        w.of[TDM_WORKER_NPU].usable = false;
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_NPU), TDM_PLACEMENT_GPU);
}

static void test_routes(void **state)
{
        struct tdm_pace pace = { 0 };
        struct tdm_placement_model model = { .hparams = &hp, .pace = &pace, .measured = TDM_PLACEMENT_BALANCED };
        struct tdm_placement_load load = { .workers = both_up() };
        struct tdm_placement_work work = { .n_decode = 8, .prompt_rows = 400, .max_rows = 512, .may_relay = true };
        struct tdm_share share, other;
        struct tdm_route routes[2];

        /* Both may run steps; the one that is three times as fast comes first and gets more. */
        for (unsigned i = 0; i < 2; i++) {
                tdm_pace_note(&pace, TDM_WORKER_NPU, 4 + 100 * i, 1, 1000000);
                tdm_pace_note(&pace, TDM_WORKER_GPU, 4 + 100 * i, 1, 3000000);
        }
        assert_int_equal(tdm_placement_choose(&model, &load, routes), 2);
        assert_int_equal(routes[0].worker, TDM_WORKER_NPU);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(routes[i].error, 0);
                assert_true(routes[i].whole && routes[i].shared && !routes[i].degraded);
                for (uint32_t b = 0; b < tdm_model_n_blocks(&hp); b++)
                        assert_int_equal(routes[i].plan[b], routes[i].worker);
        }
        tdm_placement_share(&pace, &routes[0], &work, &share);
        tdm_placement_share(&pace, &routes[1], &work, &other);
        assert_int_equal(share.n_decode + other.n_decode, 8);
        assert_true(share.n_decode > other.n_decode);
        assert_true(share.relay && share.chunk_rows > other.chunk_rows && share.prompt_rows > other.prompt_rows);

        /* A worker that has its step gets no second one; alone there is nothing to share. */
        load.n_steps[TDM_WORKER_NPU] = 1;
        assert_int_equal(tdm_placement_choose(&model, &load, routes), 1);
        assert_int_equal(routes[0].worker, TDM_WORKER_GPU);
        load.workers.of[TDM_WORKER_NPU].up = false;
        assert_int_equal(tdm_placement_choose(&model, &load, routes), 1);
        assert_false(routes[0].shared);
        tdm_placement_share(&pace, &routes[0], &work, &share);
        assert_int_equal(share.n_decode, UINT32_MAX);
        assert_false(share.relay);

        /* The split stands on one worker while the other one is away; not for one that is given up. */
        model.asked = TDM_PLACEMENT_SPLIT;
        assert_int_equal(tdm_placement_choose(&model, &load, routes), 1);
        assert_int_equal(routes[0].error, 0);
        assert_int_equal(routes[0].plan[1], TDM_WORKER_GPU);
        load.workers.of[TDM_WORKER_NPU].usable = false;
        load.workers.of[TDM_WORKER_NPU].given_up = true;
        assert_int_equal(tdm_placement_choose(&model, &load, routes), 1);
        assert_int_equal(routes[0].error, -EHOSTDOWN);
}

/* The device that takes least wins; one that is hopeless with one row is not tried with many. */
static void test_trial(void **state)
{
        static const uint64_t one_ns[] = {
                [TDM_PLACEMENT_SPLIT] = 30, [TDM_PLACEMENT_NPU] = 20, [TDM_PLACEMENT_GPU] = 90
        };
        struct tdm_placement_trial t = { 0 };
        uint32_t n_rows, n_many[TDM_N_ASKED_PLACEMENTS] = { 0 };
        bool more = true;
        char text[200];

        for (unsigned i = 0; more; i++) {
                enum tdm_placement p = tdm_placement_trial_next(&t, 16, &n_rows);

                assert_true(i < 1000);
                assert_true(n_rows == 1 || n_rows == 16);
                n_many[p] += n_rows == 16;
                more = tdm_placement_trial_took(&t, one_ns[p] * TDM_NSEC_PER_MSEC * (n_rows == 1 ? 1 : 2));
        }
        assert_int_equal(tdm_placement_trial_result(&t), TDM_PLACEMENT_NPU);
        assert_true(n_many[TDM_PLACEMENT_NPU] > 0 && n_many[TDM_PLACEMENT_SPLIT] > 0);
        assert_int_equal(n_many[TDM_PLACEMENT_GPU], 0);
        tdm_placement_trial_describe(&t, text, sizeof(text));
        assert_string_equal(text,
                            "one row, 16 rows: split 30.00, 60.00 ms; npu 20.00, 40.00 ms; gpu 90.00, 1440.00 ms");

        assert_true(tdm_placement_trial_lost(&t));
        assert_true(tdm_placement_trial_lost(&t));
        assert_false(tdm_placement_trial_lost(&t));
}

/* ---- the outlook ---- */

#define MS TDM_NSEC_PER_MSEC

/* Two devices: what a layer of one row, and each further row, takes on each; a placement's time follows. */
struct devices {
        uint64_t row_ns[TDM_N_WORKERS];
        uint64_t now, probes_ns;
        unsigned n_probes, noise, seed; /* noise: percent that a step may take longer, in half of all cases */
};

static uint64_t noisy(struct devices *d, uint64_t ns)
{
        if (d->noise == 0 || rand_r(&d->seed) % 2)
                return ns;
        return ns + ns * ((unsigned)rand_r(&d->seed) % d->noise) / 100;
}

static uint64_t time_of(const struct devices *d, enum tdm_placement p, uint32_t n_rows)
{
        uint64_t n = 8 + n_rows, npu = d->row_ns[TDM_WORKER_NPU] * n, gpu = d->row_ns[TDM_WORKER_GPU] * n;

        switch (p) {
        case TDM_PLACEMENT_NPU:
                return npu;
        case TDM_PLACEMENT_GPU:
                return gpu;
        case TDM_PLACEMENT_FRONT_QUARTER:
                return (npu + 3 * gpu) / 4;
        default:
                return (npu + gpu) / 2;
        }
}

/* Rounds until `until`, with jobs whose steps have 4 rows between the probes. */
static void look(struct tdm_outlook *o, struct devices *d, enum tdm_placement jobs, uint64_t until)
{
        while (d->now < until) {
                struct tdm_probe probe;
                uint64_t ns;

                if (d->now >= o->due_ns && tdm_outlook_next(o, 512, false, true, d->now, &probe)) {
                        ns = noisy(d, time_of(d, probe.placement, probe.n_rows));
                        d->now += ns;
                        d->probes_ns += ns;
                        d->n_probes++;
                        tdm_outlook_took(o, &probe, ns, 0, d->now);
                        continue;
                }
                ns = noisy(d, time_of(d, jobs, 4));
                d->now += ns;
                tdm_outlook_note_step(o, jobs, 4, ns, d->now);
        }
}

static void test_outlook(void **state)
{
        struct tdm_outlook o = { .found = TDM_PLACEMENT_GPU };
        struct devices d = { .row_ns = { [TDM_WORKER_NPU] = 150000, [TDM_WORKER_GPU] = 100000 }, .now = 1 };
        uint32_t n_on[TDM_N_PLACEMENTS] = { 0 };
        struct tdm_probe probe;
        char text[256];

        look(&o, &d, TDM_PLACEMENT_GPU, 10000 * MS);
        assert_int_equal(o.found, TDM_PLACEMENT_GPU);
        tdm_outlook_describe(&o, text, sizeof(text));
        assert_non_null(strstr(text, "one row, 32 rows: split 1.12,"));
        assert_non_null(strstr(text, " gpu 0.90, 4.00 ms"));

        /* The GPU has half its speed: within 2.5 s another one is found, while jobs go on with the old one. */
        d.row_ns[TDM_WORKER_GPU] = 200000;
        look(&o, &d, TDM_PLACEMENT_GPU, 12500 * MS);
        assert_int_equal(o.found, TDM_PLACEMENT_NPU);
        /* It is back: no job runs there, so it takes a round to see. */
        d.row_ns[TDM_WORKER_GPU] = 100000;
        look(&o, &d, TDM_PLACEMENT_NPU, 22500 * MS);
        assert_int_equal(o.found, TDM_PLACEMENT_GPU);

        /* A difference within the noise moves nothing. */
        d.row_ns[TDM_WORKER_GPU] = 160000;
        look(&o, &d, TDM_PLACEMENT_GPU, 40000 * MS);
        assert_int_equal(o.found, TDM_PLACEMENT_GPU);

        /* A quiet hour: rounds take a fiftieth of the time. */
        d.probes_ns = 0;
        look(&o, &d, TDM_PLACEMENT_GPU, 400000 * MS);
        assert_true(d.probes_ns < 360000 * MS / 45);

        /* Noise does not, either: steps that often take up to twice their time, with the alarms that follow from it. */
        for (unsigned seed = 0; seed < 10; seed++) {
                struct tdm_outlook noisy_outlook = o;
                struct devices noisy_devices = d;

                noisy_devices.noise = 100;
                noisy_devices.seed = seed;
                noisy_devices.probes_ns = 0;
                for (unsigned i = 0; i < 600; i++) {
                        look(&noisy_outlook, &noisy_devices, TDM_PLACEMENT_GPU, (400000 + i * 1000) * MS);
                        assert_int_equal(noisy_outlook.found, TDM_PLACEMENT_GPU);
                }
                assert_true(noisy_devices.probes_ns < 600000 * MS / 10);
        }

        /* Many sequences on one of two about equal devices: the next one takes the other, unless the two take each
         * other's time. */
        assert_int_equal(tdm_outlook_choose(&o, n_on, true, d.now), TDM_PLACEMENT_GPU);
        n_on[TDM_PLACEMENT_GPU] = 8;
        assert_int_equal(tdm_outlook_choose(&o, n_on, true, d.now), TDM_PLACEMENT_NPU);
        assert_int_equal(tdm_outlook_choose(&o, n_on, false, d.now), TDM_PLACEMENT_GPU);
        assert_int_equal(tdm_outlook_choose(&o, n_on, true, d.now + 200000 * MS), TDM_PLACEMENT_GPU); /* stale */

        /* One that dies of it is left out, the present one too. */
        for (unsigned i = 0; i < 3;) {
                if (!tdm_outlook_next(&o, 512, true, true, d.now, &probe))
                        continue;
                if (probe.placement == TDM_PLACEMENT_GPU) {
                        tdm_outlook_void(&o, &probe, true, d.now);
                        i++;
                } else
                        tdm_outlook_took(&o, &probe, time_of(&d, probe.placement, probe.n_rows), 0, d.now);
        }
        while (tdm_outlook_next(&o, 512, true, true, d.now, &probe)) {
                assert_int_not_equal(probe.placement, TDM_PLACEMENT_GPU);
                tdm_outlook_took(&o, &probe, time_of(&d, probe.placement, probe.n_rows), 0, d.now);
        }
        assert_int_not_equal(o.found, TDM_PLACEMENT_GPU);
}

/* Both devices are slow: jobs wait for no long step. A placement that is hopeless is tried rarely. */
static void test_outlook_slow(void **state)
{
        struct tdm_outlook o = { .found = TDM_PLACEMENT_GPU };
        struct devices d = { .row_ns = { [TDM_WORKER_NPU] = 100000000, [TDM_WORKER_GPU] = 4000000 }, .now = 1 };
        unsigned n_npu = 0, n_rounds = 0;
        uint64_t longest = 0;
        struct tdm_probe probe;

        while (n_rounds < 40) {
                uint64_t ns;

                if (!tdm_outlook_next(&o, 512, false, true, d.now, &probe)) {
                        n_rounds++;
                        continue;
                }
                ns = time_of(&d, probe.placement, probe.n_rows);
                if (probe.placement == TDM_PLACEMENT_NPU)
                        n_npu++;
                else if (n_rounds > 0 && probe.many)
                        longest = TDM_MAX(longest, ns);
                tdm_outlook_took(&o, &probe, ns, 0, d.now += ns);
        }
        assert_int_equal(o.found, TDM_PLACEMENT_GPU);
        assert_true(n_npu <= 6);
        assert_true(longest <= 250 * MS);
}

/* A device is slowed at any moment of a job's first seconds, while its outlook is still young: new jobs take the other
 * one within ten seconds, also where probes of many rows take long. */
static void test_outlook_young(void **state)
{
        for (uint64_t change = 500 * MS; change <= 12000 * MS; change += 250 * MS) {
                struct tdm_outlook o = { .found = TDM_PLACEMENT_GPU };
                struct devices d = { .row_ns = { [TDM_WORKER_NPU] = 1200000, [TDM_WORKER_GPU] = 700000 }, .now = 1 };

                look(&o, &d, TDM_PLACEMENT_GPU, change);
                assert_int_equal(o.found, TDM_PLACEMENT_GPU);
                d.row_ns[TDM_WORKER_GPU] *= 3;
                look(&o, &d, TDM_PLACEMENT_GPU, change + 8000 * MS);
                assert_int_equal(o.found, TDM_PLACEMENT_NPU);
        }
}

/* A device was hopeless, so its steps of many rows were never timed. Then the other one gets slower and goes on
 * changing, with an alarm each time. The guess for the first one does not depend on which of the two new jobs take. */
static void test_outlook_guesses(void **state)
{
        struct tdm_outlook o = { .found = TDM_PLACEMENT_GPU };
        struct devices d = { .row_ns = { [TDM_WORKER_NPU] = 100000, [TDM_WORKER_GPU] = 10000 }, .now = 1 };

        look(&o, &d, TDM_PLACEMENT_GPU, 15000 * MS);
        assert_int_equal(o.found, TDM_PLACEMENT_GPU);
        for (uint64_t at = 15000; at < 60000; at += 2500) {
                d.row_ns[TDM_WORKER_GPU] = at % 5000 ? 140000 : 250000;
                look(&o, &d, TDM_PLACEMENT_GPU, (at + 2500) * MS);
                assert_int_not_equal(o.found, TDM_PLACEMENT_GPU);
                if (at > 25000)
                        assert_int_equal(o.found, TDM_PLACEMENT_NPU);
        }
}

static void test_new_plans(void **state)
{
        struct tdm_placement_workers w = both_up();
        struct tdm_hparams six = hp;
        uint8_t plan[TDM_MAX_BLOCKS + 1];

        six.n_layers = 6;
        assert_int_equal(tdm_placement_plan(&w, &six, TDM_PLACEMENT_FRONT_HALF, plan, NULL), 0);
        for (uint32_t b = 0; b < tdm_model_n_blocks(&six); b++)
                assert_int_equal(plan[b], b <= 6 ? TDM_WORKER_NPU : TDM_WORKER_GPU);
        assert_int_equal(tdm_placement_plan(&w, &six, TDM_PLACEMENT_FRONT_QUARTER, plan, NULL), 0);
        for (uint32_t b = 0; b < tdm_model_n_blocks(&six); b++)
                assert_int_equal(plan[b], b <= 4 ? TDM_WORKER_NPU : TDM_WORKER_GPU);
        assert_int_equal(tdm_placement_plan(&w, &six, TDM_PLACEMENT_SPLIT_HALF, plan, NULL), 0);
        for (uint32_t b = 0; b < tdm_model_n_blocks(&six); b++)
                assert_int_equal(plan[b], b == 1 || b == 5 || b == 9 ? TDM_WORKER_NPU : TDM_WORKER_GPU);
        w.equal_bits = false;
        w.no_link = true;
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_FRONT_HALF), TDM_PLACEMENT_GPU);
        assert_int_equal(tdm_placement_measured(&w, TDM_PLACEMENT_NPU), TDM_PLACEMENT_NPU);
}

static void test_store(void **state)
{
        char dir[] = "/tmp/tandem-placement-XXXXXX", path[64], text[256] = "";
        struct tdm_placement_store *store;
        FILE *file;

        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/plans", dir);
        setenv("STATE_DIRECTORY", dir, 1);
        file = fopen(path, "we");
        assert_non_null(file);
        fputs("a 1\tnpu\nnonsense\nb 2\tboth\n\tgpu\nc 3\teither\nd 4\t\ncut off\tgp", file);
        fclose(file);
        assert_int_equal(tdm_placement_store_new(&store, 2), 0);
        assert_int_equal(tdm_placement_store_n_added(store), 1);
        assert_int_equal(tdm_placement_store_find(store, "a 1"), TDM_PLACEMENT_NPU);
        assert_int_equal(tdm_placement_store_find(store, "b 2"), TDM_PLACEMENT_ANY);
        tdm_placement_store_add(store, "e 5", TDM_PLACEMENT_SPLIT);
        tdm_placement_store_add(store, "f 6", TDM_PLACEMENT_NPU); /* in place of the oldest */
        tdm_placement_store_add(store, "e 5", TDM_PLACEMENT_FRONT_HALF);
        tdm_placement_store_add(store, "f 6", TDM_PLACEMENT_GPU); /* in place of its own */
        assert_int_equal(tdm_placement_store_find(store, "a 1"), TDM_PLACEMENT_ANY);
        tdm_placement_store_save(store);
        tdm_placement_store_destroy(store);
        file = fopen(path, "re");
        assert_non_null(file);
        text[fread(text, 1, sizeof(text) - 1, file)] = 0;
        fclose(file);
        assert_string_equal(text, "f 6\tgpu\ne 5\tfront-half\n");
        unlink(path);
        rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),         cmocka_unit_test(test_plans),
                cmocka_unit_test(test_measured),      cmocka_unit_test(test_routes),
                cmocka_unit_test(test_trial),         cmocka_unit_test(test_store),
                cmocka_unit_test(test_outlook),       cmocka_unit_test(test_outlook_slow),
                cmocka_unit_test(test_outlook_young), cmocka_unit_test(test_outlook_guesses),
                cmocka_unit_test(test_new_plans),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
