/* The NPU as a device, on the emulated one: how far a model's distribution is from the reference in bf16 and in int8,
 * that int4 gives the host's bits, that rows get the same bits in every company and chunk and after every fault, that
 * both sides' counters agree, and that a budget too small leaves layers to the CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/f16.h"
#include "engine/weights/weights.h"
#include "npu-worker/device/npu-device.h"
#include "npu-worker/emulated/control.h"
#include "npu-worker/xrt/load.h"
#include "tests/golden/golden-file.h"
#include "tests/golden/runner.h"

#ifdef TANDEM_SANITIZED /* twenty times slower */
#define N_ROWS 40u
#define MAX_CASE_ROWS 100u
#else
#define N_ROWS 200u
#define MAX_CASE_ROWS UINT32_MAX
#endif
#define MAX_ROWS 256u

static struct tdm_emulated_control *control;
static struct runner_model tale, tale4;    /* the second: its attention in Q4_0 */
static struct golden_file golden, golden4; /* the second: of tale4, by the host in f32 */

/* A row of a matrix whose place in the segment it takes. */
static void put_q4_0_row(uint8_t *weights, const struct tdm_weights_tensor *t, uint32_t row, const float *values)
{
        uint8_t *panel = weights + t->offset + row / TDM_PANEL_ROWS * t->panel_bytes;
        uint8_t *quants = panel + TDM_ALIGN_UP((size_t)t->cols / 32 * TDM_PANEL_ROWS * 2, (size_t)64);
        uint32_t lane = row % TDM_PANEL_ROWS;

        for (uint32_t b = 0; b < t->cols / 32; b++, values += 32, quants += 256) {
                float most = 0, scale;
                uint16_t half;

                for (uint32_t i = 0; i < 32; i++)
                        if (fabsf(values[i]) > fabsf(most))
                                most = values[i];
                half = tdm_f32_to_f16(most / -8);
                scale = tdm_f16_to_f32(half);
                memcpy(panel + (b * TDM_PANEL_ROWS + lane) * 2, &half, 2);
                for (uint32_t i = 0; i < 16; i++) {
                        unsigned two[2];

                        for (uint32_t j = 0; j < 2; j++) {
                                float q = scale != 0 ? rintf(values[i + 16 * j] / scale) : 0;

                                two[j] = (unsigned)(fmaxf(fminf(q, 7), -8) + 8);
                        }
                        quants[i / 4 * 64 + 4 * lane + i % 4] = (uint8_t)(two[0] | two[1] << 4);
                }
        }
}

/* tale with Q4_0 in place of what its attention has: smaller, so that each matrix fits its place. */
static void make_tale4(void)
{
        static const enum tdm_tensor_kind kinds[] = { TDM_TENSOR_Q, TDM_TENSOR_K, TDM_TENSOR_V, TDM_TENSOR_O };
        size_t size = tdm_weights_header(tale.weights)->size_bytes;
        struct tdm_error err = {};

        tale4 = tale;
        tale4.weights = aligned_alloc(4096, TDM_ALIGN_UP(size, (size_t)4096));
        memcpy(tale4.weights, tale.weights, size);
        tale4.hp = &tdm_weights_header(tale4.weights)->hparams;
        for (uint32_t layer = 0; layer < tale.hp->n_layers; layer++)
                for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                        const struct tdm_weights_tensor *from = tdm_weights_find(tale.weights, kinds[i], layer);
                        struct tdm_weights_tensor *to =
                                (struct tdm_weights_tensor *)tdm_weights_find(tale4.weights, kinds[i], layer);
                        float values[1024];

                        to->type = TDM_TYPE_Q4_0;
                        to->panel_bytes = tdm_weights_panel_bytes(TDM_TYPE_Q4_0, to->cols);
                        to->size_bytes = TDM_DIV_UP(to->rows, TDM_PANEL_ROWS) * to->panel_bytes;
                        assert_true(to->size_bytes <= from->size_bytes && to->cols <= 1024);
                        for (uint32_t row = 0; row < to->rows; row++) {
                                tdm_weights_row(tale.weights, from, row, values);
                                put_q4_0_row(tale4.weights, to, row, values);
                        }
                }
        if (tdm_weights_check(tale4.weights, size, size, &err) != 0)
                fail_msg("%s", err.message);
}

static int setup(void **state)
{
        int fd = memfd_create("control", 0);
        char path[64];

        if (ftruncate(fd, TDM_EMULATED_CONTROL_BYTES) < 0)
                return -1;
        control = mmap(NULL, TDM_EMULATED_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        setenv(TDM_EMULATED_CONTROL_ENV, path, 1);
        runner_model_load(&tale, "models/tale.gguf");
        make_tale4();
        golden_file_read(&golden, "tests/golden/tale.golden.json");
        golden_file_read(&golden4, "tests/golden/tale.golden.json");
        return 0;
}

/* "blocks": bf16, and a set of programs that has attention over pages. "host": no NPU; it and "int4" take Q4_0. */
static struct runner *new_runner(const char *format, unsigned n_threads)
{
        bool host = strcmp(format, "host") == 0, q4 = host || strcmp(format, "int4") == 0;
        const struct runner_options o = { .ops = host ? NULL : &tdm_emulated_device_ops,
                                          .n_threads = n_threads,
                                          .max_rows = MAX_ROWS,
                                          .max_positions = 2048 };
        char programs[4096];

        unsetenv("TANDEM_NPU_PROGRAMS");
        if (strcmp(format, "blocks") == 0) {
                assert_int_equal(
                        tdm_xrt_program_path("../lib/npu-emulated/programs-attention", programs, sizeof(programs)), 0);
                setenv("TANDEM_NPU_PROGRAMS", programs, 1);
                format = "bf16";
        }
        setenv("TANDEM_NPU_FORMAT", format, 1);
        return runner_new(q4 ? &tale4 : &tale, &o);
}

static double logprob_of(const struct tdm_result *result, uint32_t id)
{
        for (uint32_t i = 0; i < result->n_top; i++)
                if (result->top[i].id == id)
                        return result->top[i].logprob;
        return -INFINITY;
}

/* The mean over positions of the largest difference over the reference's top ten, as in golden-host.c. With `make` the
 * model's own distribution becomes the reference. */
static void distance(struct runner *runner, const struct golden_file *reference, bool make, double *ret_mean,
                     double *ret_first)
{
        static struct tdm_result results[MAX_ROWS];
        double sum = 0;
        uint32_t n = 0, n_same = 0;

        for (uint32_t i = 0; i < reference->n_cases; i++) {
                const struct golden_case *c = &reference->cases[i];
                uint32_t n_rows = c->prompt_len - 1 + c->n_top;

                if (n_rows > MAX_CASE_ROWS)
                        continue;
                for (uint32_t first = 0, rows; first < n_rows; first += rows) {
                        struct runner_part part = { .ids = c->ids,
                                                    .n_ids = c->n_ids,
                                                    .first = first,
                                                    .sampling = {
                                                            .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP } };

                        part.n = part.n_logits = rows = TDM_MIN(MAX_ROWS, n_rows - first);
                        runner_step(runner, &part, 1, NULL, results);
                        for (uint32_t r = 0; r < rows; r++) {
                                uint32_t at = first + r + 1 - c->prompt_len;
                                double largest = 0;

                                if (first + r + 1 < c->prompt_len || at >= c->n_top)
                                        continue;
                                for (uint32_t k = 0; make && k < GOLDEN_TOP; k++) {
                                        c->top[at][k].id = results[r].top[k].id;
                                        c->top[at][k].logprob = results[r].top[k].logprob;
                                }
                                for (uint32_t k = 0; k < GOLDEN_TOP; k++)
                                        largest = fmax(largest, fabs(logprob_of(&results[r], c->top[at][k].id) -
                                                                     c->top[at][k].logprob));
                                sum += largest;
                                n_same += results[r].token == c->top[at][0].id;
                                n++;
                        }
                }
                runner_forget(runner, 0);
        }
        *ret_mean = sum / n;
        *ret_first = 100.0 * n_same / n;
}

/* Attention in bf16 or int8, the FFN as the host has it by default. The limits are a tenth above what was measured. */
static void test_distance(void **state)
{
        static const struct {
                const char *format;
                double mean, first;
        } limits[] = { { "bf16", 0.0745, 98 }, { "int8", 0.1255, 97 }, { "blocks", 0.0745, 98 } };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(limits); i++) {
                struct runner *runner = new_runner(limits[i].format, 2);
                struct tdm_npu_share share;
                double mean, first;

                distance(runner, &golden, false, &mean, &first);
                tdm_npu_device_share(runner_device_model(runner), &share);
                print_message("%s: mean %.5f, first choice %.2f%%; %.1f%% of attention's multiplications on the NPU, "
                              "%llu submissions\n",
                              limits[i].format, mean, first,
                              100.0 * (double)share.npu_macs / (double)(share.npu_macs + share.host_macs),
                              (unsigned long long)share.counters.n_submissions);
                if (MAX_CASE_ROWS == UINT32_MAX)
                        assert_true(mean <= limits[i].mean && first >= limits[i].first);
                assert_int_equal(share.n_npu_layers, share.n_layers);
                assert_non_null(strstr(tdm_emulated_device_ops.plan(runner_device_model(runner)),
                                       "12 of 12 attention layers on the NPU"));
                runner_destroy(runner);
        }
}

static const struct golden_case *longest_case(void)
{
        const struct golden_case *longest = &golden.cases[0];

        for (uint32_t i = 1; i < golden.n_cases; i++)
                if (golden.cases[i].n_ids > longest->n_ids)
                        longest = &golden.cases[i];
        assert_true(longest->n_ids >= N_ROWS);
        return longest;
}

/* Hidden rows of ids[0 … N_ROWS), `chunk` at a time, beside n_others sequences; a fault before every step. */
static float *rows(const char *format, uint32_t chunk, uint32_t n_others, unsigned n_threads,
                   const enum tdm_emulated_fault *faults, uint32_t n_faults, struct tdm_npu_share *ret_share)
{
        struct runner *runner = new_runner(format, n_threads);
        const struct golden_case *c = longest_case();
        uint32_t d = tale.hp->d_model;
        float *hidden = calloc(MAX_ROWS, d * sizeof(float)), *all = calloc(N_ROWS, d * sizeof(float));
        uint32_t n_step = 0;

        for (uint32_t first = 0, n; first < N_ROWS; first += n) {
                struct runner_part parts[RUNNER_TABLES];
                uint32_t at = n_others / 2, before = 0;

                n = TDM_MIN(chunk, N_ROWS - first);
                for (uint32_t i = 0; i <= n_others; i++) {
                        const struct golden_case *other = &golden.cases[(i + 1) % golden.n_cases];

                        parts[i] = (struct runner_part){ .table = i,
                                                         .ids = other->ids,
                                                         .n_ids = other->n_ids,
                                                         .first = 0,
                                                         .n = 1 + (i * 5 + n_step) % 9 };
                        runner_forget(runner, i == at ? RUNNER_TABLES - 1 : i);
                        if (i < at)
                                before += parts[i].n;
                }
                parts[at] =
                        (struct runner_part){ .table = at, .ids = c->ids, .n_ids = c->n_ids, .first = first, .n = n };
                if (n_faults)
                        atomic_store(&control->fault, faults[n_step % n_faults]);
                runner_step(runner, parts, n_others + 1, hidden, NULL);
                memcpy(all + (size_t)first * d, hidden + (size_t)before * d, (size_t)n * d * sizeof(float));
                n_step++;
        }
        if (ret_share)
                tdm_npu_device_share(runner_device_model(runner), ret_share);
        runner_destroy(runner);
        free(hidden);
        return all;
}

static void assert_same(float *a, float *b, const char *what)
{
        if (memcmp(a, b, (size_t)N_ROWS * tale.hp->d_model * sizeof(float)) != 0)
                fail_msg("%s: other bits", what);
        free(b);
}

static void test_exact(void **state)
{
        static const enum tdm_emulated_fault faults[] = { TDM_EMULATED_FAULT_ERROR, TDM_EMULATED_FAULT_CONTEXT,
                                                          TDM_EMULATED_FAULT_NONE, TDM_EMULATED_FAULT_CONTEXT };
        const char *formats[] = { "bf16", "int8", "blocks", "int4" };
        struct tdm_npu_share share;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(formats); i++) {
                const char *format = formats[i];

                float *want = rows(format, 64, 0, 1, NULL, 0, &share);
                uint64_t n_faults = atomic_load(&control->n_faults);

                assert_same(want, rows(format, 1, 0, 1, NULL, 0, &share), "one row at a time");
                assert_same(want, rows(format, 7, 0, 2, NULL, 0, &share), "chunks of 7, two threads");
                assert_same(want, rows(format, 180, 0, 2, NULL, 0, &share), "one large chunk");
                assert_same(want, rows(format, 13, 5, 2, NULL, 0, &share), "beside five others");
                assert_int_equal(share.counters.n_retries, 0);
                assert_same(want, rows(format, 9, 3, 2, faults, TDM_ARRAY_SIZE(faults), &share), "with faults");
                assert_true(share.counters.n_retries >= 4 && share.counters.n_contexts >= 2);
                assert_true(atomic_load(&control->n_faults) - n_faults >= 4);
                free(want);
        }
}

/* Q4_0 in int4 programs: the CPU's bits, so its distance too, which is held against the CPU's in f32. */
static void test_int4(void **state)
{
        struct runner *runner = runner_new(&tale4, &(struct runner_options){ .precision = TDM_PRECISION_F32,
                                                                             .n_threads = 2,
                                                                             .max_rows = MAX_ROWS,
                                                                             .max_positions = 2048 });
        double mean, first, host_mean, host_first;
        struct tdm_npu_share share;
        const char *plan;
        float *want;

        distance(runner, &golden4, true, &mean, &first);
        assert_true(mean == 0 && first == 100);
        runner_destroy(runner);
        runner = new_runner("int4", 2);
        plan = tdm_emulated_device_ops.plan(runner_device_model(runner));
        if (!strstr(plan,
                    "12 of 12 attention layers on the NPU in int4: qkv 1 command of 256x384, output 1 of 256x256"))
                fail_msg("%s", plan);
        distance(runner, &golden4, false, &mean, &first);
        runner_destroy(runner);
        runner = new_runner("host", 2);
        distance(runner, &golden4, false, &host_mean, &host_first);
        runner_destroy(runner);
        print_message("int4: mean %.5f, first choice %.2f%%; the host with the same weights %.5f, %.2f%%\n", mean,
                      first, host_mean, host_first);
        assert_true(mean == host_mean && first == host_first);
        if (MAX_CASE_ROWS == UINT32_MAX)
                assert_true(mean > 0 && mean <= 0.1 && first >= 97);
        want = rows("host", 7, 0, 1, NULL, 0, NULL);
        assert_same(want, rows("int4", 64, 0, 2, NULL, 0, &share), "int4 and the host");
        free(want);
        assert_true(share.npu_macs > 3 * share.host_macs);
}

/* What is not Q4_0 stays in bf16, and the plan says so. */
static void test_int4_of_others(void **state)
{
        struct tdm_weights_tensor *o = (struct tdm_weights_tensor *)tdm_weights_find(tale4.weights, TDM_TENSOR_O, 3);
        struct tdm_weights_tensor q4_0 = *o, before = *tdm_weights_find(tale.weights, TDM_TENSOR_O, 3);
        struct runner *runner;
        char *saved = malloc(before.size_bytes);

        memcpy(saved, tale4.weights + o->offset, before.size_bytes);
        memcpy(tale4.weights + o->offset, tale.weights + before.offset, before.size_bytes);
        *o = before;
        runner = new_runner("int4", 1);
        assert_non_null(strstr(tdm_emulated_device_ops.plan(runner_device_model(runner)),
                               "in int4 (output in bf16: not all of it is Q4_0): qkv 1"));
        runner_destroy(runner);
        *o = q4_0;
        memcpy(tale4.weights + o->offset, saved, before.size_bytes);
        free(saved);
        setenv("TANDEM_NPU_FORMAT", "int4", 1);
        runner = runner_new(&tale, &(struct runner_options){ .ops = &tdm_emulated_device_ops, .n_threads = 1 });
        assert_non_null(strstr(tdm_emulated_device_ops.plan(runner_device_model(runner)),
                               "12 of 12 attention layers on the NPU in bf16 (int4 is for Q4_0): qkv 1"));
        runner_destroy(runner);
}

/* The watchdog's two seconds: once. */
static void test_hang(void **state)
{
        static const enum tdm_emulated_fault hang[] = { TDM_EMULATED_FAULT_HANG };
        struct tdm_npu_share share;
        float *want = rows("bf16", N_ROWS, 0, 1, NULL, 0, &share);

        assert_same(want, rows("bf16", N_ROWS, 0, 1, hang, 1, &share), "after a hang");
        assert_int_equal(share.counters.n_retries, 1);
        assert_int_equal(share.counters.n_contexts, 1);
        free(want);
}

static void test_counters(void **state)
{
        uint64_t commands = atomic_load(&control->n_commands), macs = atomic_load(&control->n_macs);
        uint64_t refused = atomic_load(&control->n_refused);
        struct tdm_npu_share share;

        free(rows("bf16", 1, 0, 1, NULL, 0, &share));
        /* Decoding one row: two submissions of one command each for a block, and no padding. */
        assert_int_equal(share.counters.n_commands, 2 * share.n_layers * N_ROWS);
        assert_int_equal(share.counters.n_submissions, share.counters.n_commands);
        assert_int_equal(share.counters.n_commands, atomic_load(&control->n_commands) - commands);
        assert_int_equal(share.counters.n_macs, atomic_load(&control->n_macs) - macs);
        assert_int_equal(share.counters.n_macs, share.npu_macs);
        assert_int_equal(atomic_load(&control->n_refused), refused);
}

/* One submission a block, and all of attention on the NPU. */
static void test_blocks(void **state)
{
        uint64_t commands = atomic_load(&control->n_commands), macs = atomic_load(&control->n_macs);
        uint64_t refused = atomic_load(&control->n_refused);
        struct tdm_npu_share share;

        free(rows("blocks", 1, 0, 1, NULL, 0, &share));
        assert_int_equal(share.counters.n_submissions, share.n_layers * N_ROWS);
        assert_int_equal(share.counters.n_commands, share.counters.n_submissions);
        assert_int_equal(share.counters.n_commands, atomic_load(&control->n_commands) - commands);
        assert_int_equal(share.counters.n_macs, atomic_load(&control->n_macs) - macs);
        assert_int_equal(share.host_macs, 0);
        assert_true(share.npu_macs > share.counters.n_macs); /* scores and values too */
        assert_int_equal(atomic_load(&control->n_refused), refused);
}

static void test_budget(void **state)
{
        struct tdm_npu_share share;

        setenv("TANDEM_NPU_MEMORY_MB", "3", 1);
        free(rows("bf16", 64, 0, 1, NULL, 0, &share));
        unsetenv("TANDEM_NPU_MEMORY_MB");
        assert_true(share.n_npu_layers > 0 && share.n_npu_layers < share.n_layers);
        assert_true(share.npu_macs > 0 && share.host_macs > 0);
}

static int open_with(const char *name, const char *value, struct tdm_error *err)
{
        _Atomic uint64_t heartbeat = 0;
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *device = NULL;
        int r;

        setenv(name, value, 1);
        r = tdm_emulated_device_ops.open(&device, &config, err);
        unsetenv(name);
        if (r == 0)
                device->ops->close(device);
        return r;
}

/* A copy of the programs with one file replaced; text NULL: left out. */
static void copy_set(const char *to, const char *file, const char *text, size_t size)
{
        char command[9000], path[4096];
        FILE *f;

        snprintf(command, sizeof(command),
                 "rm -rf %s; cp -r \"$(dirname $(readlink -f /proc/%d/exe))/../lib/npu-emulated/programs\" %s", to,
                 (int)getpid(), to);
        assert_int_equal(system(command), 0);
        snprintf(path, sizeof(path), "%s/%s", to, file);
        assert_int_equal(unlink(path), 0);
        if (!text)
                return;
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, size, f), size);
        fclose(f);
}

/* A set that has int4 with rows of int16 alone, as programs for real NPUs do. */
static void test_int4a16_alone(void **state)
{
        char directory[] = "/tmp/tandem-test-npu-XXXXXX", command[256];
        const struct runner_options o = { .ops = &tdm_emulated_device_ops, .n_threads = 1 };
        struct runner *runner;
        const char *plan;

        assert_non_null(mkdtemp(directory));
        copy_set(directory, "tale-qkv-bf16-8.insts", "abcd", 4);
        snprintf(
                command, sizeof(command),
                "cd %s && awk '/^\\[/ { left_out = /-(int4|bf16|int8)-/ } !left_out' manifest > new && mv new manifest",
                directory);
        assert_int_equal(system(command), 0);
        setenv("TANDEM_NPU_PROGRAMS", directory, 1);
        setenv("TANDEM_NPU_FORMAT", "int4", 1);
        runner = runner_new(&tale4, &o);
        unsetenv("TANDEM_NPU_PROGRAMS");
        plan = tdm_emulated_device_ops.plan(runner_device_model(runner));
        if (!strstr(plan, "12 of 12 attention layers on the NPU in int4a16: qkv 1 command of 256x384"))
                fail_msg("%s", plan);
        runner_destroy(runner);
        snprintf(command, sizeof(command), "rm -rf %s", directory);
        assert_int_equal(system(command), 0);
}

static void test_open_errors(void **state)
{
        char directory[] = "/tmp/tandem-test-npu-XXXXXX",
             manifest[] = "[set]\nformat = 1\ngeneration = phoenix\nxclbin = tandem.xclbin\n"
                          "kernel = MLIR_AIE\n[p]\nop = gemm\nshape = 8x8x8\ntype = bf16\na = rows\nb = columns\nc = "
                          "rows\norder = x\n"
                          "columns = 1\ninstructions = p\narguments = a b c\n";
        struct tdm_error err = {};

        assert_non_null(mkdtemp(directory));
        assert_int_equal(open_with("TANDEM_NPU_FORMAT", "f16", &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "number format f16 for the NPU: there is bf16, int8 and int4"));
        assert_int_equal(open_with("TANDEM_NPU_FORMAT", "int4a16", &err), TDM_E_BAD_REQUEST);
        assert_int_equal(open_with("TANDEM_NPU_MEMORY_MB", "lots", &err), TDM_E_BAD_REQUEST);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", "/nowhere", &err), -ENOENT);
        assert_non_null(strstr(err.message, "no emulated device: no NPU programs: cannot open /nowhere/manifest"));

        copy_set(directory, "tandem.xclbin", NULL, 0);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), -ENOENT);
        assert_non_null(strstr(err.message, "tandem.xclbin: No such file"));
        copy_set(directory, "tandem.xclbin", "xclbin2\0 and nothing else", 25);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "is not an xclbin"));
        copy_set(directory, "tale-qkv-bf16-8.insts", "abc", 3);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "not a number of 32-bit words"));
        copy_set(directory, "manifest", manifest, sizeof(manifest) - 1);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "generation phoenix, the device is of generation emulated"));
        copy_set(directory, "manifest", NULL, 0);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), -ENOENT);
        copy_set(directory, "tale-qkv-bf16-8.insts", "abcd", 4);
        assert_int_equal(open_with("TANDEM_NPU_PROGRAMS", directory, &err), 0);
        {
                char command[64];

                snprintf(command, sizeof(command), "rm -rf %s", directory);
                assert_int_equal(system(command), 0);
        }
}

/* Why auto takes the CPU when its NPU cannot be had; "": it does not. XRT is the emulation's in this process. */
static const char *reason_of_auto(const char *programs)
{
        static char reason[300];
        _Atomic uint64_t heartbeat = 0;
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat, .programs = programs };
        struct tdm_device *device = NULL;
        struct tdm_error err = {};

        assert_int_equal(tdm_npu_auto_device_ops.open(&device, &config, &err), 0);
        snprintf(reason, sizeof(reason), "%s", device->ops->reason ? device->ops->reason(device) : "");
        if (reason[0])
                assert_string_equal(device->ops->name, "host");
        device->ops->close(device);
        return reason;
}

static void test_auto(void **state)
{
        char directory[] = "/tmp/tandem-test-npu-XXXXXX", node[64], pattern[64], command[64];
        int status;

        assert_non_null(mkdtemp(directory));
#ifdef TDM_NPU_EMULATED_KERNEL /* only "emulated" sees it: the other tests of XRT 2.25 have a server below all */
        assert_non_null(strstr(reason_of_auto(NULL), "auto took the CPU: no xrt device: XRT opens no NPU"));
#else
        /* A device of a generation that nobody here knows, then sets that are wrong for it. */
        assert_non_null(strstr(reason_of_auto(NULL),
                               "auto took the CPU: no xrt device: this NPU is of a generation that is not known"));
        assert_non_null(strstr(reason_of_auto("/nowhere"), "cannot open /nowhere/manifest"));
        copy_set(directory, "tandem.xclbin", NULL, 0);
        assert_non_null(strstr(reason_of_auto(directory), "tandem.xclbin: No such file"));
        copy_set(directory, "manifest", "[set]\nformat = 7\n", 17);
        assert_non_null(strstr(reason_of_auto(directory), "manifest:2: format: this program reads format 1"));
        copy_set(directory, "tale-qkv-bf16-8.insts", "abcd", 4);
        assert_string_equal(reason_of_auto(directory), "");
#endif
        snprintf(command, sizeof(command), "rm -rf %s", directory);
        assert_int_equal(system(command), 0);

        /* Device nodes: none, and one that this user may not open. */
        assert_int_equal(mkdir(directory, 0755), 0);
        snprintf(pattern, sizeof(pattern), "%s/accel*", directory);
        snprintf(node, sizeof(node), "%s/accel0", directory);
        assert_non_null(strstr(tdm_npu_missing_at(pattern), "there is no /dev/accel"));
        close(open(node, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        assert_null(tdm_npu_missing_at(pattern));
        assert_int_equal(chmod(node, 0), 0);
        if (fork() == 0) {
                if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
                        _exit(0);
                _exit(strstr(tdm_npu_missing_at(pattern) ?: "", "no permission to open") ? 0 : 1);
        }
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(unlink(node) | rmdir(directory), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_distance),       cmocka_unit_test(test_int4),
                cmocka_unit_test(test_int4_of_others), cmocka_unit_test(test_exact),
                cmocka_unit_test(test_hang),           cmocka_unit_test(test_counters),
                cmocka_unit_test(test_blocks),         cmocka_unit_test(test_budget),
                cmocka_unit_test(test_open_errors),    cmocka_unit_test(test_auto),
                cmocka_unit_test(test_int4a16_alone),
        };

        return cmocka_run_group_tests(tests, setup, NULL);
}
