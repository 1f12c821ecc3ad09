/* Flags, environment and file: what is taken, what wins, and what is refused with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/config.h"

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
#define LOAD(c, err, ...) load(c, err, (int)TDM_ARRAY_SIZE(((const char *[]){ __VA_ARGS__ })), (const char *[]){ __VA_ARGS__ })

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

        write_file("# a comment\n[daemon]\nsocket = /run/x\nmodels = /a:/b\nmax-jobs = 7\nmax-jobs-per-user=3\nnew-key = 1\n"
                   "[engine]\nthreads = 2\nprecision = precise\nplacement = split\nkv-memory = 3M\nmax-rows = 64\n"
                   "kv-type = q8_0\nprefix-cache = off\n"
                   "prefill-rows = 32\nmax-sequences = 8\nsteps-in-flight = 2\nhang-ms = 900\n");
        assert_int_equal(LOAD(&c, &err, "--config", path), 0);
        assert_string_equal(c.socket, "/run/x");
        assert_string_equal(c.model_dirs[0], "/a");
        assert_string_equal(c.model_dirs[1], "/b");
        assert_null(c.model_dirs[2]);
        assert_int_equal(c.max_jobs, 7);
        assert_int_equal(c.max_jobs_per_user, 3);
        assert_int_equal(c.threads, 2);
        assert_int_equal(c.precision, TDM_PRECISION_PRECISE);
        assert_int_equal(c.kv_type, TDM_KV_Q8_0);
        assert_int_equal(c.placement, TDM_PLACE_SPLIT);
        assert_int_equal(c.kv_bytes, 3 << 20);
        assert_false(c.prefix_cache);
        assert_int_equal(c.max_rows, 64);
        assert_int_equal(c.prefill_rows, 32);
        assert_int_equal(c.max_sequences, 8);
        assert_int_equal(c.steps_in_flight, 2);
        assert_int_equal(c.hang_ms, 900);
        tdm_config_deinit(&c);
}

static void test_file_refused(void **state)
{
        char text[600] = "[daemon]\nsocket = ";

        assert_int_equal(refused("[engine]\n\nthreads = many\n", "tandemd.conf:3"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nsteps-in-flight = 5\n", "0 to 4"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nthreads = -1\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nprecision = half\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-type = q4_0\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-memory = 99999999999G\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nkv-memory = G\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nprefix-cache = maybe\n", ":2"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine\n", ":1"), TDM_E_BAD_REQUEST);
        assert_int_equal(refused("[engine]\nnonsense\n", ":2"), TDM_E_BAD_REQUEST);
        memset(text + 18, 'x', 500);
        text[518] = '\0';
        assert_int_equal(refused(text, ":2"), TDM_E_BAD_REQUEST);
}

static void test_precedence(void **state)
{
        struct tdm_config c;
        struct tdm_error err;

        write_file("[daemon]\nsocket = /run/x\n[engine]\nthreads = 2\nprefill-rows = 9\n");
        setenv("TANDEM_THREADS", "5", 1);
        setenv("TANDEM_NPU", "off", 1);
        assert_int_equal(LOAD(&c, &err, "--config", path, "--socket", "/run/y", "--model", "a.gguf", "--model=b.gguf"), 0);
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
        snprintf(path, sizeof(path), "%s/tandemd.conf", dir);
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
                cmocka_unit_test(test_file),
                cmocka_unit_test(test_file_refused),
                cmocka_unit_test(test_precedence),
                cmocka_unit_test(test_flags),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
