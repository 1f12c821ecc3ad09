/* Telemetry against a driver that the test plays: what it tells is shown in the right units, what it does not tell is
 * unknown, it is asked once a second, and one that knows nothing is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <linux/ioctl.h>

#include "npu-worker/telemetry/telemetry.h"

static struct tdm_xdna_sensor sensors[4];
static struct tdm_xdna_context contexts[3];
static int sensors_answer, contexts_answer;
static unsigned n_asked;

static int fake_ioctl(int fd, unsigned long request, void *arg)
{
        struct tdm_xdna_info *info = arg;
        bool is_sensors = info->param == TDM_XDNA_SENSORS;
        size_t size = is_sensors ? sizeof(sensors) : sizeof(contexts);

        assert_int_equal(request, _IOWR('d', 0x40 + 7, struct tdm_xdna_info));
        assert_true(is_sensors || info->param == TDM_XDNA_CONTEXTS);
        assert_true(info->size_bytes >= size);
        n_asked++;
        if ((is_sensors ? sensors_answer : contexts_answer) < 0)
                return is_sensors ? sensors_answer : contexts_answer;
        memcpy((void *)(uintptr_t)info->buffer, is_sensors ? (void *)sensors : (void *)contexts, size);
        info->size_bytes = UINT32_MAX; /* nobody may believe it */
        return 0;
}

static struct tdm_npu_telemetry make(void)
{
        n_asked = 0;
        sensors_answer = contexts_answer = 0;
        memset(sensors, 0, sizeof(sensors));
        memset(contexts, 0, sizeof(contexts));
        return (struct tdm_npu_telemetry){ .fd = open("/dev/null", O_RDWR | O_CLOEXEC),
                                           .ioctl = fake_ioctl,
                                           .pid = 42 };
}

static void add_sensor(unsigned i, const char *label, uint8_t type, uint32_t input, int8_t exponent)
{
        sensors[i] = (struct tdm_xdna_sensor){ .type = type, .input = input, .exponent = exponent };
        snprintf(sensors[i].label, sizeof(sensors[i].label), "%s", label);
}

static void test_units(void **state)
{
        struct tdm_npu_telemetry t = make();
        struct tdm_device_counters c = {};

        add_sensor(0, "Total Power", TDM_XDNA_SENSOR_POWER, 1234, -3);
        add_sensor(1, "Column 0 Utilization", TDM_XDNA_SENSOR_UTILISATION, 50, 0);
        add_sensor(2, "Column 1 Utilization", TDM_XDNA_SENSOR_UTILISATION, 25, 0);
        add_sensor(3, "Temperature", TDM_XDNA_SENSOR_TEMPERATURE, 61, 0);
        contexts[0] = (struct tdm_xdna_context){ .pid = 42, .errors = 2 };
        contexts[1] = (struct tdm_xdna_context){ .pid = 7, .errors = 100 };
        contexts[2] = (struct tdm_xdna_context){ .pid = 42, .errors = 1 };
        tdm_npu_telemetry_sample(&t, 5 * TDM_NSEC_PER_SEC, &c);
        assert_int_equal(c.sampled_ns, 5 * TDM_NSEC_PER_SEC);
        assert_int_equal(c.power_mw, 1234);
        assert_int_equal(c.utilisation_permille, 375);
        assert_int_equal(c.temperature_mc, 61000);
        assert_int_equal(c.n_contexts, 2);
        assert_int_equal(c.context_errors, 3);

        /* Once a second. */
        assert_int_equal(n_asked, 2);
        tdm_npu_telemetry_sample(&t, 5 * TDM_NSEC_PER_SEC + 1, &c);
        assert_int_equal(n_asked, 2);
        add_sensor(0, "Total Power", TDM_XDNA_SENSOR_POWER, UINT32_MAX, 127);
        tdm_npu_telemetry_sample(&t, 6 * TDM_NSEC_PER_SEC, &c);
        assert_int_equal(n_asked, 4);
        assert_int_equal(c.power_mw, UINT32_MAX - 1); /* absurd, but not "unknown" and not a loop without end */
        tdm_npu_telemetry_close(&t);
}

static void test_less(void **state)
{
        struct tdm_npu_telemetry t = make();
        struct tdm_device_counters c = { .n_contexts = 9 };

        /* A kernel without the sensors, as of 6.19: contexts only. */
        sensors_answer = -EOPNOTSUPP;
        contexts[0].pid = 42;
        tdm_npu_telemetry_sample(&t, 1, &c);
        assert_int_equal(c.sampled_ns, 1);
        assert_int_equal(c.power_mw, TDM_DEVICE_UNKNOWN);
        assert_int_equal(c.utilisation_permille, TDM_DEVICE_UNKNOWN);
        assert_int_equal(c.temperature_mc, TDM_DEVICE_UNKNOWN);
        assert_int_equal(c.n_contexts, 1);
        tdm_npu_telemetry_close(&t);

        t = make();
        sensors_answer = contexts_answer = -ENODEV;
        tdm_npu_telemetry_sample(&t, 2, &c);
        assert_int_equal(c.sampled_ns, 0);
        assert_int_equal(t.fd, -1);
        tdm_npu_telemetry_sample(&t, 9 * TDM_NSEC_PER_SEC, &c);
        assert_int_equal(n_asked, 2);

        /* No device of that driver: nothing is asked at all. */
        tdm_npu_telemetry_open(&t);
        if (access("/sys/module/amdxdna", F_OK) < 0)
                assert_int_equal(t.fd, -1);
        tdm_npu_telemetry_close(&t);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_units), cmocka_unit_test(test_less) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
