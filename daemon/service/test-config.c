/* Flags, environment and file: what is taken, what wins, and what is refused with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include "daemon/service/config.h"

static char dir[] = "/tmp/tandem-test-config-XXXXXX";
static char path[128];

static void write_file(const char *text)
{
        FILE *f = fopen(path, "w");

        assert_non_null(f);
        fputs(text, f);
        assert_int_equal(fclose(f), 0);
}

static int load(struct tdm_config *c, struct tdm_error *err, int argc, const char *const *argv)
{
        char *copy[16];

        copy[0] = (char *)"tandemd";
        for (int i = 0; i < argc; i++)
                copy[i + 1] = (char *)argv[i];
        copy[argc + 1] = NULL;
        assert_int_equal(tdm_config_init(c), 0);
        return tdm_config_load(c, argc + 1, copy, err);
}
#define LOAD(c, err, ...)                                                                                              \
        load(c, err, (int)TDM_ARRAY_SIZE(((const char *[]){ __VA_ARGS__ })), (const char *[]){ __VA_ARGS__ })

static int refused(const char *text, const char *place)
{
        struct tdm_config c;
        struct tdm_error err;
        int r;

        write_file(text);
        r = LOAD(&c, &err, "--config", path);
        tdm_config_deinit(&c);
        if (r == TDM_E_BAD_REQUEST && !strstr(err.message, place))
                fail_msg("%s does not name %s", err.message, place);
        return r;
}

static void test_file(void **state)
{
        struct tdm_config c;
        struct tdm_error err;

        write_file("# a comment\n[daemon]\nsocket = /run/x\nmodels = /a:/b\nmax-jobs = "
                   "7\nmax-jobs-per-user=3\nmax-running-per-user = 2\n"
                   "max-tokens-per-user = 1000\ngateway-user = web\ndefault-model = gemma\nnew-key = 1\n"
                   "[engine]\nthreads = 2\nprecision = precise\nplacement = split\nkv-memory = 3M\nmax-rows = 64\n"
                   "draft = a=b, c=d e=f\nkv-type = q8_0\nprefix-cache = off\nprefix-store = 3G\nidle-unload = 10min\n"
                   "prefill-rows = 32\nmax-sequences = 8\nsteps-in-flight = 2\nhang-ms = 900\n");
        assert_int_equal(LOAD(&c, &err, "--config", path), 0);
        assert_string_equal(c.socket, "/run/x");
        assert_string_equal(c.model_dirs[0], "/a");
        assert_string_equal(c.model_dirs[1], "/b");
        assert_null(c.model_dirs[2]);
        assert_string_equal(c.drafts[0], "a=b");
        assert_string_equal(c.drafts[2], "e=f");
        assert_null(c.drafts[3]);
        assert_int_equal(c.max_jobs, 7);
        assert_int_equal(c.max_jobs_per_user, 3);
        assert_int_equal(c.max_running_per_user, 2);
        assert_int_equal(c.max_tokens_per_user, 1000);
        assert_string_equal(c.gateway_user, "web");
        assert_string_equal(c.default_model, "gemma");
        assert_int_equal(c.threads, 2);
        assert_int_equal(c.precision, TDM_PRECISION_PRECISE);
        assert_int_equal(c.kv_type, TDM_KV_Q8_0);
        assert_int_equal(c.placement, TDM_PLACEMENT_SPLIT);
        assert_int_equal(c.kv_bytes, 3 << 20);
        assert_false(c.prefix_cache);
        assert_int_equal(c.prefix_store, UINT64_C(3) << 30);
        assert_int_equal(c.idle_unload_s, 600);
        assert_int_equal(c.max_rows, 64);
        assert_int_equal(c.prefill_rows, 32);
        assert_int_equal(c.max_sequences, 8);
        assert_int_equal(c.steps_in_flight, 2);
        assert_int_equal(c.hang_ms, 900);
        tdm_config_deinit(&c);
}

static void test_npu_keys(void **state)
{
        struct tdm_config c;
        struct tdm_error err;

        write_file(
                "[engine]\nnpu = emulated\nnpu-programs = /srv/npu\nnpu-memory = 96M\nnpu-format = int8\ngpu = host\n"
                "gpu-device = Radeon 780M\ngpu-memory = 3G\nactivations = dma-buf\n");
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/run/y"), 0);
        assert_string_equal(c.requested[TDM_WORKER_NPU], "emulated");
        assert_string_equal(c.requested[TDM_WORKER_GPU], "host");
        assert_string_equal(c.npu_programs, "/srv/npu");
        assert_string_equal(c.npu_format, "int8");
        assert_int_equal(c.npu_bytes, 96 << 20);
        assert_string_equal(c.gpu_device, "Radeon 780M");
        assert_int_equal(c.gpu_bytes, UINT64_C(3) << 30);
        assert_int_equal(c.activations, TDM_ACTIVATIONS_DMABUF);
        tdm_config_deinit(&c);

        setenv("TANDEM_NPU_MEMORY_MB", "3", 1);
        setenv("TANDEM_NPU_FORMAT", "int4", 1);
        setenv("TANDEM_NPU_PROGRAMS", "/elsewhere", 1);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/run/y"), 0);
        assert_string_equal(c.npu_programs, "/elsewhere");
        assert_string_equal(c.npu_format, "int4");
        assert_int_equal(c.npu_bytes, 3 << 20);
        tdm_config_deinit(&c);
        setenv("TANDEM_NPU_FORMAT", "f16", 1);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/run/y"), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "bf16, int8, int4"));
        tdm_config_deinit(&c);
        unsetenv("TANDEM_NPU_MEMORY_MB");
        unsetenv("TANDEM_NPU_FORMAT");
        unsetenv("TANDEM_NPU_PROGRAMS");

        assert_int_equal(refused("[engine]\nnpu = tpu\n", ":2: npu: \"tpu\" is not one of auto, required, xrt"),
                         TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nnpu = aut\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\ngpu = xrt\n", ":2: gpu: \"xrt\" is not one of auto, required, vulkan"),
                         TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nnpu-format = int2\n", "bf16, int8, int4"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nnpu-memory = lots\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nactivations = dmabuf\n", "auto, dma-buf, memfd"), TDM_E_BAD_REQUEST);
}

static void test_file_refused(void **state)
{
        char text[600] = "[daemon]\nsocket = ";

        assert_int_equal(refused("[engine]\n\nthreads = many\n", "tandem.conf:3"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nsteps-in-flight = 5\n", "0 to 4"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nthreads = -1\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nprecision = half\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-type = q4_0\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-memory = 99999999999G\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-memory = G\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nprefix-cache = maybe\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nprefix-store = much\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nidle-unload = 3weeks\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nidle-unload = 99999999h\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine\n", ":1"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nnonsense\n", ":2"), TDM_E_BAD_REQUEST);
        memset(text + 18, 'x', 500);
        text[518] = '\0';
        assert_int_equal(refused(text, ":2"), TDM_E_BAD_REQUEST);
}

static void write_at(const char *sub, const char *name, const char *text)
{
        char at[300];
        FILE *f;

        snprintf(at, sizeof(at), "%s/%s", dir, sub);
        assert_true(mkdir(at, 0700) == 0 || errno == EEXIST);
        snprintf(at, sizeof(at), "%s/%s/%s", dir, sub, name);
        f = fopen(at, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

static void remove_at(const char *sub, const char *name)
{
        char at[300];

        snprintf(at, sizeof(at), "%s/%s/%s", dir, sub, name);
        (void)unlink(at);
        snprintf(at, sizeof(at), "%s/%s", dir, sub);
        (void)rmdir(at);
}

/* The file, then drop-ins by name; those beside the file stand in for the vendor's of the same name. */
static void test_drop_ins(void **state)
{
        char vendor[300], beside[300];
        const char *dirs[] = { vendor, beside, NULL };
        struct tdm_config c;
        struct tdm_error err;

        snprintf(vendor, sizeof(vendor), "%s/vendor", dir);
        snprintf(beside, sizeof(beside), "%s.d", path);
        write_file("[daemon]\nmodels = /a:/b\n[engine]\nthreads = 1\nprefill-rows = 1\n");
        write_at("vendor", "10-a.conf", "[engine]\nthreads = 10\nmax-rows = 10\n");
        write_at("vendor", "20-b.conf", "[engine]\nthreads = 20\nmax-sequences = 20\n");
        write_at("tandem.conf.d", "10-a.conf", "[engine]\nprefill-rows = 2\nstrange = 1\n[odd]\nkey = 1\n");
        write_at("tandem.conf.d", "30-c.conf.bak", "nonsense\n");
        write_at("tandem.conf.d", ".hidden.conf", "nonsense\n");
        write_at("tandem.conf.d", "15-c.conf", "[daemon]\nlog = debug\nmodels = /c\n[engine]\nthreads = 15\n");

        assert_int_equal(tdm_config_init(&c), 0);
        assert_int_equal(tdm_config_read_files(&c, path, dirs, &err), 0);
        assert_int_equal(c.threads, 20);
        assert_int_equal(c.prefill_rows, 2);
        assert_int_equal(c.max_rows, 512); /* the vendor's 10-a.conf is not read */
        assert_int_equal(c.max_sequences, 20);
        assert_int_equal(c.log_level, TDM_LOG_DEBUG);
        assert_string_equal(c.model_dirs[0], "/c");
        assert_null(c.model_dirs[1]);
        assert_int_equal(c.n_warnings, 2);
        assert_string_equal(c.files[0], path);
        assert_non_null(strstr(c.files[1], "tandem.conf.d/10-a.conf"));
        assert_non_null(strstr(c.files[2], "tandem.conf.d/15-c.conf"));
        assert_non_null(strstr(c.files[3], "vendor/20-b.conf"));
        assert_null(c.files[4]);
        tdm_config_deinit(&c);

        /* --config takes the directory beside it */
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/x"), 0);
        assert_int_equal(c.threads, 15);
        tdm_config_deinit(&c);

        write_at("tandem.conf.d", "15-c.conf", "[engine]\nthreads = no\n");
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/x"), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "tandem.conf.d/15-c.conf:2"));
        tdm_config_deinit(&c);

        remove_at("tandem.conf.d", "10-a.conf");
        remove_at("tandem.conf.d", "15-c.conf");
        remove_at("tandem.conf.d", ".hidden.conf");
        remove_at("tandem.conf.d", "30-c.conf.bak");
        remove_at("vendor", "10-a.conf");
        remove_at("vendor", "20-b.conf");
}

/* What --check-config prints is a configuration that comes to the same. */
static void print_again(const char *text)
{
        _cleanup_(freep) char *first = NULL, *second = NULL;
        struct tdm_config c;
        struct tdm_error err;
        size_t size;
        FILE *f;

        write_file(text);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--check-config"), 0);
        f = open_memstream(&first, &size);
        tdm_config_print(&c, f);
        fclose(f);
        tdm_config_deinit(&c);
        if (text[0]) {
                assert_non_null(strstr(first, "\nmodels = /a:/b\n"));
                assert_non_null(strstr(first, "\nkv-memory = 3145728\n"));
        } else {
                /* and not what 0 comes to: that would be something else */
                assert_non_null(strstr(first, "\nprefill-rows = 0\n"));
        }
        assert_non_null(strstr(first, "\n# gpu-cpus = \n"));

        write_file(first);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--check-config"), 0);
        assert_true(c.check);
        assert_int_equal(c.n_warnings, 0);
        f = open_memstream(&second, &size);
        tdm_config_print(&c, f);
        fclose(f);
        tdm_config_deinit(&c);
        assert_string_equal(first, second);
}

static void test_print(void **state)
{
        print_again("");
        print_again("[daemon]\nsocket = /run/x\nmodels = /a:/b\nlog = warning\n[engine]\nkv-memory = 3M\n"
                    "kv-type = q8_0\nplacement = measured\nprecision = precise\nnpu-cpus = 0\n"
                    "npu = host\nnpu-programs = /p\nnpu-memory = 1G\nnpu-format = int8\ngpu = vulkan\n"
                    "gpu-device = radeon\ngpu-memory = 8G\nactivations = memfd\n");
}

static void test_precedence(void **state)
{
        struct tdm_config c;
        struct tdm_error err;

        write_file("[daemon]\nsocket = /run/x\n[engine]\nthreads = 2\nprefill-rows = 9\n");
        setenv("TANDEM_THREADS", "5", 1);
        setenv("TANDEM_NPU", "off", 1);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/run/y", "--model", "a.gguf", "--model=b.gguf"),
                         0);
        assert_string_equal(c.socket, "/run/y");
        assert_int_equal(c.threads, 5);
        assert_int_equal(c.prefill_rows, 9);
        assert_string_equal(c.requested[TDM_WORKER_NPU], "off");
        assert_null(c.requested[TDM_WORKER_GPU]);
        assert_string_equal(c.models[0], "a.gguf");
        assert_string_equal(c.models[1], "b.gguf");
        assert_null(c.models[2]);
        assert_true(c.max_rows >= c.max_sequences && c.max_rows >= c.prefill_rows);
        tdm_config_deinit(&c);

        setenv("TANDEM_THREADS", "x", 1);
        assert_int_equal(LOAD(&c, &err, "--socket", "/run/y"), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "TANDEM_THREADS"));
        tdm_config_deinit(&c);
        unsetenv("TANDEM_THREADS");
        unsetenv("TANDEM_NPU");
}

static void test_flags(void **state)
{
        struct tdm_config c;
        struct tdm_error err;

        assert_int_equal(LOAD(&c, &err, "--help"), 0);
        assert_true(c.help);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--system"), 0);
        assert_string_equal(c.socket, "/run/tandem/socket");
        tdm_config_deinit(&c);
        setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
        assert_int_equal(LOAD(&c, &err, "--user"), 0);
        assert_string_equal(c.socket, "/run/user/7/tandem/socket");
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--frobnicate"), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "--frobnicate"));
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--socket"), TDM_E_BAD_REQUEST);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "stray"), TDM_E_BAD_REQUEST);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--user", "--system"), TDM_E_BAD_REQUEST);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--bus", "tram"), TDM_E_BAD_REQUEST);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--bus", "unix:path=/x"), 0);
        tdm_config_deinit(&c);
        assert_int_equal(LOAD(&c, &err, "--config", "/nonexistent/x"), TDM_E_BAD_REQUEST);
        tdm_config_deinit(&c);
}

static int set_up(void **state)
{
        unsetenv("XDG_CONFIG_HOME");
        unsetenv("TANDEM_PRECISION");
        unsetenv("TANDEM_KV_TYPE");
        unsetenv("TANDEM_PLACEMENT");
        unsetenv("TANDEM_PREFILL_ROWS");
        unsetenv("TANDEM_GPU");
        if (!mkdtemp(dir))
                return -1;
        setenv("HOME", dir, 1);
        snprintf(path, sizeof(path), "%s/tandem.conf", dir);
        return 0;
}

static int tear_down(void **state)
{
        unlink(path);
        return rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_file),     cmocka_unit_test(test_file_refused), cmocka_unit_test(test_npu_keys),
                cmocka_unit_test(test_drop_ins), cmocka_unit_test(test_print),        cmocka_unit_test(test_precedence),
                cmocka_unit_test(test_flags),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
