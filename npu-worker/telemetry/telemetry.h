/* What the driver amdxdna tells of an NPU and of this process's contexts on it: power, utilisation of its columns,
 * temperature, errors. Optional: without the driver, or with one that knows less, what is not told stays unknown. Asked
 * at most once a second and only while the NPU works, since asking wakes it up.
 *
 * The driver's interface is the kernel's (include/uapi/drm/amdxdna_accel.h), written down here as far as it is used,
 * because the headers of Debian 12 do not have it. Not tried with a driver: tested against an ioctl() of the test's
 * own. */
#ifndef TDM_NPU_WORKER_TELEMETRY_H
#define TDM_NPU_WORKER_TELEMETRY_H

#include <assert.h>
#include <stddef.h>
#include "common/util.h"
#include "engine/device/counters.h"

#define TDM_XDNA_GET_INFO 0xc0106447ul /* _IOWR('d', 0x40 + 7, struct tdm_xdna_info) */
enum { TDM_XDNA_SENSORS = 4, TDM_XDNA_CONTEXTS = 5 };
enum { TDM_XDNA_SENSOR_POWER, TDM_XDNA_SENSOR_UTILISATION, TDM_XDNA_SENSOR_TEMPERATURE };

struct tdm_xdna_info {
        uint32_t param;
        uint32_t size_bytes; /* of the buffer; the driver changes it, not always to the same meaning: never trusted */
        uint64_t buffer;
};
struct tdm_xdna_sensor {
        char label[64];
        uint32_t input, max, average, highest;
        char status[64], units[16];
        int8_t exponent; /* input is in units of ten to this power */
        uint8_t type;
        uint8_t pad[6];
};
struct tdm_xdna_context {
        uint32_t id, first_column, n_columns, pad;
        int64_t pid;
        uint64_t submissions, completions, migrations, preemptions, errors;
};
static_assert(sizeof(struct tdm_xdna_info) == 16, "the kernel's layout");
static_assert(sizeof(struct tdm_xdna_sensor) == 168 && offsetof(struct tdm_xdna_sensor, units) == 144,
              "the kernel's layout");
static_assert(sizeof(struct tdm_xdna_context) == 64, "the kernel's layout");

struct tdm_npu_telemetry {
        int fd;                                                 /* -1: there is none */
        int (*ioctl)(int fd, unsigned long request, void *arg); /* 0 or -errno */
        int64_t pid;
        uint64_t asked_ns;
};

/* Opens the first NPU of that driver, if there is one. Before the sandbox. */
void tdm_npu_telemetry_open(struct tdm_npu_telemetry *telemetry);
void tdm_npu_telemetry_close(struct tdm_npu_telemetry *telemetry);
/* Asks when it is time, and writes what was told. A driver that knows neither is not asked again. */
void tdm_npu_telemetry_sample(struct tdm_npu_telemetry *telemetry, uint64_t now_ns,
                              struct tdm_device_counters *counters);

#endif
