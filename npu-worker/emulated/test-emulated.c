/* The emulated NPU through the real XRT front end and our module: that it computes what it should, refuses what a
 * driver refuses, keeps host and device apart, and fails in each of the ways that it can be told to. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "npu-worker/emulated/control.h"
#include "npu-worker/emulated/program.h"
#include "npu-worker/manifest/files.h"
#include "npu-worker/manifest/manifest.h"
#include "npu-worker/xrt/load.h"

#define M 8u
#define K 64u
#define N 16u
#define WAIT_MS 10000u

static const struct tdm_xrt_front *xrt;
static struct tdm_emulated_control *control;
static struct tdm_xrt_device *device;
static struct tdm_xrt_context *context;
static struct tdm_xrt_buffer *instructions, *a, *b, *c;

static void *map(struct tdm_xrt_buffer *buffer)
{
        void *p = xrt->buffer_map(buffer);

        assert_non_null(p);
        return p;
}

static void set_program(enum tdm_emulated_type type)
{
        const struct tdm_emulated_program program = {
                .magic = TDM_EMULATED_MAGIC,
                .op = TDM_EMULATED_OP_GEMM,
                .type = type,
                .b_layout = type == TDM_EMULATED_BF16 ? TDM_EMULATED_COLUMNS : TDM_EMULATED_TILES,
                .m = M,
                .k = K,
                .n = N,
        };

        memcpy(map(instructions), &program, 4 * TDM_EMULATED_GEMM_WORDS);
        assert_int_equal(xrt->buffer_to_device(instructions, 4 * TDM_EMULATED_GEMM_WORDS), 0);
}

static struct tdm_xrt_run *run_new(struct tdm_xrt_buffer *out)
{
        struct tdm_xrt_run *run;

        assert_int_equal(xrt->run_new(context, &run), 0);
        assert_int_equal(xrt->run_set_number(run, 0, 3, 8), 0);
        assert_int_equal(xrt->run_set_buffer(run, 1, instructions), 0);
        assert_int_equal(xrt->run_set_number(run, 2, TDM_EMULATED_GEMM_WORDS, 4), 0);
        assert_int_equal(xrt->run_set_buffer(run, 3, a), 0);
        assert_int_equal(xrt->run_set_buffer(run, 4, b), 0);
        assert_int_equal(xrt->run_set_buffer(run, 5, out), 0);
        return run;
}

/* One command from start to end. */
static int run_state(struct tdm_xrt_buffer *out)
{
        struct tdm_xrt_run *run = run_new(out);
        int r = xrt->submit(context, &run, 1);

        if (r > 0)
                r = xrt->wait(context, &run, 1, WAIT_MS);
        xrt->run_free(run);
        return r;
}

static int setup(void **state)
{
        struct tdm_error err = {};
        char path[4096], file[4200];
        void *image;
        size_t size;
        int fd = memfd_create("control", 0);

        if (ftruncate(fd, TDM_EMULATED_CONTROL_BYTES) < 0)
                return -1;
        control = mmap(NULL, TDM_EMULATED_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        setenv(TDM_EMULATED_CONTROL_ENV, path, 1);
        if (tdm_xrt_load(true, &xrt, &err) != 0) {
                print_message("%s\n", err.message);
                return -1;
        }
        assert_int_equal(xrt->device_open(0, &device), 0);
        assert_int_equal(tdm_xrt_program_path("../lib/npu-emulated/programs", path, sizeof(path)), 0);
        snprintf(file, sizeof(file), "%s/tandem.xclbin", path);
        assert_int_equal(tdm_npu_read_file(file, TDM_XCLBIN_MAX_BYTES, &image, &size, &err), 0);
        assert_int_equal(tdm_xclbin_check(image, size, file, &err), 0);
        assert_int_equal(xrt->device_load(device, image, size), 0);
        free(image);
        assert_int_equal(xrt->context_new(device, "MLIR_AIE", &context), 0);
        assert_int_equal(xrt->context_group(context, 1), 1);
        assert_int_equal(xrt->context_group(context, 3), 0);
        assert_int_equal(xrt->buffer_new(device, 4096, TDM_XRT_INSTRUCTIONS, 1, &instructions), 0);
        assert_int_equal(xrt->buffer_new(device, M * K * 2, TDM_XRT_DATA, 0, &a), 0);
        assert_int_equal(xrt->buffer_new(device, K * N * 2, TDM_XRT_DATA, 0, &b), 0);
        assert_int_equal(xrt->buffer_new(device, M * N * 4, TDM_XRT_DATA, 0, &c), 0);
        return 0;
}

static uint16_t bf16(float f)
{
        uint32_t bits;

        memcpy(&bits, &f, 4);
        return (uint16_t)(bits >> 16);
}

static void sync_inputs(void)
{
        assert_int_equal(xrt->buffer_to_device(a, M * K * 2), 0);
        assert_int_equal(xrt->buffer_to_device(b, K * N * 2), 0);
}

/* Small integers: every sum is exact, whatever the order. */
static int value(uint32_t i, uint32_t j)
{
        return (int)((i * 7 + j * 13) % 11) - 5;
}

static void test_bf16(void **state)
{
        uint16_t *pa = map(a), *pb = map(b);
        float *pc = map(c);

        set_program(TDM_EMULATED_BF16);
        for (uint32_t k = 0; k < K; k++) {
                for (uint32_t m = 0; m < M; m++)
                        pa[m * K + k] = bf16((float)value(m, k));
                for (uint32_t n = 0; n < N; n++)
                        pb[n * K + k] = bf16((float)value(k, n + 3));
        }
        sync_inputs();
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(xrt->buffer_from_device(c, M * N * 4), 0);
        for (uint32_t m = 0; m < M; m++)
                for (uint32_t n = 0; n < N; n++) {
                        int sum = 0;

                        for (uint32_t k = 0; k < K; k++)
                                sum += value(m, k) * value(k, n + 3);
                        assert_true(pc[m * N + n] == (float)sum);
                }
}

static void test_int8(void **state)
{
        int8_t *pa = map(a), *pb = map(b);
        int32_t *pc = map(c);

        set_program(TDM_EMULATED_INT8);
        for (uint32_t k = 0; k < K; k++) {
                for (uint32_t m = 0; m < M; m++)
                        pa[m * K + k] = (int8_t)value(m, k);
                for (uint32_t n = 0; n < N; n++)
                        pb[((k / 8 * (N / 8) + n / 8) * 8 + k % 8) * 8 + n % 8] = (int8_t)value(k, n + 3);
        }
        sync_inputs();
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(xrt->buffer_from_device(c, M * N * 4), 0);
        for (uint32_t m = 0; m < M; m++)
                for (uint32_t n = 0; n < N; n++) {
                        int sum = 0;

                        for (uint32_t k = 0; k < K; k++)
                                sum += value(m, k) * value(k, n + 3);
                        assert_int_equal(pc[m * N + n], sum);
                }
}

/* What is not synced has not happened, in either direction. */
static void test_sync(void **state)
{
        int8_t *pa = map(a);
        int32_t *pc = map(c), before;

        set_program(TDM_EMULATED_INT8);
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(xrt->buffer_from_device(c, M * N * 4), 0);
        before = pc[0];
        memset(pa, 0, M * K);
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(xrt->buffer_from_device(c, M * N * 4), 0);
        assert_int_equal(pc[0], before);
        pc[0] = 4711;
        sync_inputs();
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(pc[0], 4711);
        assert_int_equal(xrt->buffer_from_device(c, M * N * 4), 0);
        assert_int_equal(pc[0], 0);
}

static void test_refuses(void **state)
{
        struct tdm_xrt_buffer *buffer = NULL;
        uint64_t refused = atomic_load(&control->n_refused);
        uint8_t *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int fd = memfd_create("no dma-buf", 0);

        assert_true(xrt->buffer_new(device, 4096, TDM_XRT_DATA, 1, &buffer) < 0); /* the instructions' group */
        assert_true(xrt->buffer_new(device, 4096, TDM_XRT_INSTRUCTIONS, 0, &buffer) < 0);
        assert_true(xrt->buffer_user(device, memory + 64, 4096, 0, &buffer) < 0);
        assert_int_equal(ftruncate(fd, 4096), 0);
        assert_true(xrt->buffer_import(device, fd, &buffer) < 0);
        assert_true(strlen(xrt->error()) > 0);
        assert_true(xrt->buffer_to_device(c, M * N * 4 + 1) < 0);
        assert_null(buffer);
        close(fd);

        /* An output too small, and a stream that is no program. */
        assert_int_equal(xrt->buffer_new(device, M * N, TDM_XRT_DATA, 0, &buffer), 0);
        assert_int_equal(run_state(buffer), TDM_XRT_ERROR);
        xrt->buffer_free(buffer);
        memset(map(instructions), 0, 64);
        assert_int_equal(xrt->buffer_to_device(instructions, 64), 0);
        assert_int_equal(run_state(c), TDM_XRT_ERROR);
        set_program(TDM_EMULATED_INT8);
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_true(atomic_load(&control->n_refused) >= refused + 6);

        assert_int_equal(xrt->buffer_user(device, memory, 4096, 0, &buffer), 0);
        assert_ptr_equal(xrt->buffer_map(buffer), memory);
        assert_int_equal(run_state(buffer), TDM_XRT_DONE);
        xrt->buffer_free(buffer);
        munmap(memory, 8192);
}

static void test_user_memory_is_locked_memory(void **state)
{
        int status;
        pid_t pid = fork();

        if (pid == 0) { /* has no NPU thread, which allocating does not need */
                const struct rlimit limit = { 32768, 32768 };
                void *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                struct tdm_xrt_buffer *buffer;

                setrlimit(RLIMIT_MEMLOCK, &limit);
                if (xrt->buffer_user(device, memory, 65536, 0, &buffer) >= 0)
                        _exit(1);
                _exit(xrt->buffer_user(device, memory, 16384, 0, &buffer) == 0 ? 0 : 2);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static void renew_context(void)
{
        xrt->context_free(context);
        assert_int_equal(xrt->context_new(device, "MLIR_AIE", &context), 0);
}

static void test_faults(void **state)
{
        uint64_t begin;

        set_program(TDM_EMULATED_INT8);
        atomic_store(&control->fault, TDM_EMULATED_FAULT_ERROR);
        assert_int_equal(run_state(c), TDM_XRT_ERROR);
        assert_int_equal(run_state(c), TDM_XRT_DONE); /* the context lives */

        begin = tdm_now_ns();
        atomic_store(&control->fault, TDM_EMULATED_FAULT_SLOW);
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_true(tdm_now_ns() - begin >= 250 * TDM_NSEC_PER_MSEC);

        atomic_store(&control->fault, TDM_EMULATED_FAULT_CONTEXT);
        assert_int_equal(run_state(c), TDM_XRT_ABORTED);
        assert_int_equal(run_state(c), TDM_XRT_ABORTED);
        renew_context();
        assert_int_equal(run_state(c), TDM_XRT_DONE);

        begin = tdm_now_ns();
        atomic_store(&control->fault, TDM_EMULATED_FAULT_HANG);
        assert_int_equal(run_state(c), TDM_XRT_TIMEOUT);
        assert_true(tdm_now_ns() - begin >= 2 * TDM_NSEC_PER_SEC);
        assert_int_equal(run_state(c), TDM_XRT_ABORTED);
        renew_context();
        assert_int_equal(run_state(c), TDM_XRT_DONE);
        assert_int_equal(atomic_load(&control->n_faults), 4);
}

/* Last: neither the device nor the process is of use afterwards. */
static void test_ends(void **state)
{
        struct tdm_xrt_run *run = run_new(c);

        atomic_store(&control->fault, TDM_EMULATED_FAULT_FIRMWARE);
        assert_int_equal(xrt->submit(context, &run, 1), 1);
        assert_int_equal(xrt->wait(context, &run, 1, 50), TDM_XRT_RUNNING);
        /* The run is left alone. */
        atomic_store(&control->fault, TDM_EMULATED_FAULT_GONE);
        assert_int_equal(run_state(c), TDM_XRT_ABORTED);
        assert_true(run_state(c) < 0);
        assert_true(xrt->buffer_to_device(a, 64) < 0);
        assert_true(strlen(xrt->error()) > 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bf16),
                cmocka_unit_test(test_int8),
                cmocka_unit_test(test_sync),
                cmocka_unit_test(test_refuses),
                cmocka_unit_test(test_user_memory_is_locked_memory),
                cmocka_unit_test(test_faults),
                cmocka_unit_test(test_ends),
        };
        int r = cmocka_run_group_tests(tests, setup, NULL);

        fflush(NULL);
        _exit(r ? 1 : 0); /* with a run that will never finish, XRT must not be taken down */
}
