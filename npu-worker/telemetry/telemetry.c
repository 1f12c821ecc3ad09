/* Asking the driver: see telemetry.h. */
#include "npu-worker/telemetry/telemetry.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/ioctl.h>

/* Not the folder of the nodes: the sandbox lets the worker open nodes, and list /sys. */
#define DEVICES "/sys/class/accel/accel*"
#define DRIVER "amdxdna"
#define PERIOD_NS TDM_NSEC_PER_SEC
#define MAX_SENSORS 16u
#define MAX_CONTEXTS 64u

static int real_ioctl(int fd, unsigned long request, void *arg)
{
        return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

/* The numbers of the ioctls are each driver's own: another one's would mean something else. */
static bool is_ours(const char *device)
{
        char link[128], target[512];
        const char *driver;
        ssize_t n;

        snprintf(link, sizeof(link), "%.96s/device/driver", device);
        n = readlink(link, target, sizeof(target) - 1);
        if (n < 0)
                return false;
        target[n] = 0;
        driver = strrchr(target, '/');
        return driver && strcmp(driver + 1, DRIVER) == 0;
}

void tdm_npu_telemetry_open(struct tdm_npu_telemetry *t)
{
        char node[64];
        glob_t found;

        *t = (struct tdm_npu_telemetry){ .fd = -1, .ioctl = real_ioctl, .pid = getpid() };
        if (glob(DEVICES, 0, NULL, &found) != 0)
                return;
        for (size_t i = 0; i < found.gl_pathc && t->fd < 0; i++)
                if (is_ours(found.gl_pathv[i])) {
                        snprintf(node, sizeof(node), "/dev/accel/%.32s", strrchr(found.gl_pathv[i], '/') + 1);
                        t->fd = open(node, O_RDWR | O_CLOEXEC);
                }
        globfree(&found);
}

void tdm_npu_telemetry_close(struct tdm_npu_telemetry *t)
{
        closep(&t->fd);
}

static bool ask(struct tdm_npu_telemetry *t, uint32_t param, void *buffer, uint32_t size_bytes)
{
        struct tdm_xdna_info info = { .param = param, .size_bytes = size_bytes, .buffer = (uintptr_t)buffer };

        memset(buffer, 0, size_bytes); /* what the driver does not fill is known by that */
        return t->ioctl(t->fd, TDM_XDNA_GET_INFO, &info) == 0;
}

/* In thousandths of the whole unit. */
static uint32_t thousandths(const struct tdm_xdna_sensor *s)
{
        double value = s->input;

        for (int e = TDM_MAX(TDM_MIN(s->exponent, 6), -9); e != -3; e += e < -3 ? 1 : -1)
                value = e < -3 ? value / 10 : value * 10;
        return value < UINT32_MAX - 1 ? (uint32_t)value : UINT32_MAX - 1;
}

static void take_sensors(const struct tdm_xdna_sensor *sensors, struct tdm_device_counters *to)
{
        uint32_t power = TDM_DEVICE_UNKNOWN, temperature = TDM_DEVICE_UNKNOWN, n_columns = 0;
        uint64_t busy = 0;

        for (uint32_t i = 0; i < MAX_SENSORS; i++) {
                const struct tdm_xdna_sensor *s = &sensors[i];

                if (!s->label[0])
                        break;
                if (s->type == TDM_XDNA_SENSOR_POWER) {
                        power = thousandths(s);
                } else if (s->type == TDM_XDNA_SENSOR_TEMPERATURE) {
                        temperature = thousandths(s);
                } else if (s->type == TDM_XDNA_SENSOR_UTILISATION) {
                        busy += TDM_MIN(s->input, 100u);
                        n_columns++;
                }
        }
        atomic_store_explicit(&to->power_mw, power, memory_order_relaxed);
        atomic_store_explicit(&to->temperature_mc, temperature, memory_order_relaxed);
        atomic_store_explicit(&to->utilisation_permille,
                              n_columns ? (uint32_t)(busy * 10 / n_columns) : TDM_DEVICE_UNKNOWN, memory_order_relaxed);
}

static void take_contexts(const struct tdm_npu_telemetry *t, const struct tdm_xdna_context *contexts,
                          struct tdm_device_counters *to)
{
        uint64_t errors = 0;
        uint32_t n = 0;

        for (uint32_t i = 0; i < MAX_CONTEXTS; i++)
                if (contexts[i].pid == t->pid) {
                        errors += contexts[i].errors;
                        n++;
                }
        atomic_store_explicit(&to->n_contexts, n, memory_order_relaxed);
        atomic_store_explicit(&to->context_errors, errors, memory_order_relaxed);
}

void tdm_npu_telemetry_sample(struct tdm_npu_telemetry *t, uint64_t now_ns, struct tdm_device_counters *counters)
{
        struct tdm_xdna_sensor sensors[MAX_SENSORS];
        struct tdm_xdna_context contexts[MAX_CONTEXTS];
        bool has_sensors, has_contexts;

        if (t->fd < 0 || (t->asked_ns && now_ns - t->asked_ns < PERIOD_NS))
                return;
        t->asked_ns = now_ns;
        has_sensors = ask(t, TDM_XDNA_SENSORS, sensors, sizeof(sensors));
        has_contexts = ask(t, TDM_XDNA_CONTEXTS, contexts, sizeof(contexts));
        if (!has_sensors && !has_contexts) {
                tdm_npu_telemetry_close(t);
                atomic_store_explicit(&counters->sampled_ns, 0, memory_order_relaxed);
                return;
        }
        if (!has_sensors)
                memset(sensors, 0, sizeof(sensors));
        if (!has_contexts)
                memset(contexts, 0, sizeof(contexts));
        take_sensors(sensors, counters);
        take_contexts(t, contexts, counters);
        atomic_store_explicit(&counters->sampled_ns, now_ns, memory_order_relaxed);
}
