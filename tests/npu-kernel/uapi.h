/* What a program and the kernel driver amdxdna say to each other, as far as it is emulated here: numbers and layouts
 * only. Sources: Linux, include/uapi/drm/amdxdna_accel.h, drm.h and the command packet that
 * drivers/accel/amdxdna/amdxdna_ctx.h reads. Written down here because Debian 12 has no such headers, and because a
 * test must not change when a header does. A prefix XDNA or DRM keeps them apart from the system's own. */
#ifndef TESTS_NPU_KERNEL_UAPI_H
#define TESTS_NPU_KERNEL_UAPI_H

#include <assert.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define XDNA_IOCTL_TYPE 'd'
#define XDNA_REQUEST(nr, type) _IOWR(XDNA_IOCTL_TYPE, nr, type)

/* Requests by their number alone: DRM looks a request up by its number and takes its size as it comes. */
enum {
        DRM_NR_VERSION = 0x00,
        DRM_NR_GEM_CLOSE = 0x09,
        DRM_NR_GET_CAP = 0x0c,
        DRM_NR_PRIME_EXPORT = 0x2d,
        DRM_NR_PRIME_IMPORT = 0x2e,
        XDNA_NR_CREATE_CONTEXT = 0x40,
        XDNA_NR_DESTROY_CONTEXT,
        XDNA_NR_CONFIG_CONTEXT,
        XDNA_NR_CREATE_BO,
        XDNA_NR_BO_INFO,
        XDNA_NR_SYNC_BO,
        XDNA_NR_EXECUTE,
        XDNA_NR_GET_INFO,
        XDNA_NR_SET_STATE,
        XDNA_NR_WAIT_OUT_OF_TREE,
        XDNA_NR_GET_ARRAY,
        DRM_NR_SYNCOBJ_CREATE = 0xbf,
        DRM_NR_SYNCOBJ_DESTROY = 0xc0,
        DRM_NR_SYNCOBJ_EXPORT = 0xc1,
        DRM_NR_SYNCOBJ_IMPORT = 0xc2,
        DRM_NR_TIMELINE_WAIT = 0xca,
        DRM_NR_TIMELINE_QUERY = 0xcb,
        DRM_NR_TIMELINE_SIGNAL = 0xcd,
};

enum { XDNA_BO_SHARE = 1, XDNA_BO_HEAP, XDNA_BO_DEV, XDNA_BO_COMMAND };
enum { XDNA_CONFIG_CUS, XDNA_CONFIG_DEBUG_ON, XDNA_CONFIG_DEBUG_OFF };
enum { XDNA_SYNC_TO_DEVICE, XDNA_SYNC_FROM_DEVICE };
#define XDNA_NO_ADDRESS UINT64_MAX

struct xdna_qos {
        uint32_t gops, fps, dma_bandwidth, latency, frame_exec_time, priority;
};
struct xdna_create_context {
        uint64_t ext, ext_flags, qos;
        uint32_t queue_bo, log_bo, max_opc, n_tiles, mem_size, doorbell, handle, syncobj;
};
struct xdna_destroy_context {
        uint32_t handle, pad;
};
struct xdna_config_context {
        uint32_t handle, type;
        uint64_t value;
        uint32_t value_bytes, pad;
};
struct xdna_cus {
        uint16_t n_cus, pad[3];
        struct {
                uint32_t bo;
                uint8_t function, pad[3];
        } cu[];
};
struct xdna_create_bo {
        uint64_t flags, vaddr, size;
        uint32_t type, handle;
};
struct xdna_va_table {
        int32_t dmabuf_fd;
        uint32_t n_entries;
        struct {
                uint64_t vaddr, len;
        } entry[];
};
struct xdna_bo_info {
        uint64_t ext, ext_flags;
        uint32_t handle, pad;
        uint64_t map_offset, vaddr, device_address;
};
struct xdna_sync_bo {
        uint32_t handle, direction;
        uint64_t offset, size;
};
struct xdna_execute {
        uint64_t ext, ext_flags;
        uint32_t context, type;
        uint64_t commands, args;
        uint32_t n_commands, n_args;
        uint64_t seq;
};
struct xdna_get_info {
        uint32_t param, size;
        uint64_t buffer;
};
struct xdna_get_array {
        uint32_t param, element_size, n_elements, pad;
        uint64_t buffer;
};
enum {
        XDNA_INFO_AIE_STATUS,
        XDNA_INFO_METADATA,
        XDNA_INFO_AIE_VERSION,
        XDNA_INFO_CLOCKS,
        XDNA_INFO_SENSORS,
        XDNA_INFO_CONTEXTS,
        XDNA_INFO_FIRMWARE = 8,
        XDNA_INFO_POWER_MODE,
        XDNA_INFO_TELEMETRY,
        XDNA_INFO_FORCE_PREEMPT,
        XDNA_INFO_RESOURCES,
        XDNA_INFO_FRAME_PREEMPT,
};
enum { XDNA_ARRAY_CONTEXTS, XDNA_ARRAY_CONTEXT, XDNA_ARRAY_LAST_ERROR, XDNA_ARRAY_BO_USAGE = 6 };
enum { XDNA_SET_POWER_MODE, XDNA_SET_FORCE_PREEMPT = 3, XDNA_SET_FRAME_PREEMPT };
#define XDNA_POWER_MODE_MAX 4u

struct xdna_aie_status {
        uint64_t buffer;
        uint32_t size, columns;
};
struct xdna_tiles {
        uint16_t rows, first_row, dma_channels, locks, events, pad[3];
};
struct xdna_metadata {
        uint32_t column_bytes;
        uint16_t columns, rows;
        uint32_t major, minor;
        struct xdna_tiles core, mem, shim;
};
struct xdna_clock {
        char name[16];
        uint32_t mhz, pad;
};
struct xdna_context_info { /* of GET_INFO: never grows */
        uint32_t id, first_column, n_columns, pad;
        int64_t pid;
        uint64_t submissions, completions, migrations, preemptions, errors;
};
struct xdna_context_entry { /* of GET_ARRAY */
        uint32_t id, first_column, n_columns, hw_id;
        int64_t pid;
        uint64_t submissions, completions, migrations, preemptions, errors, priority, heap_usage, suspensions;
        uint32_t state, pasid, gops, fps, dma_bandwidth, latency, frame_exec_time;
        uint32_t op_index, pc, fatal_type, fatal_exception, fatal_pc, fatal_module, pad;
};
struct xdna_resources {
        uint64_t clock_max, tops_max, tasks_max, tops, tasks;
};
struct xdna_bo_usage {
        int64_t pid;
        uint64_t total, internal, heap;
};

struct drm_version_request {
        int32_t major, minor, patch;
        uint64_t name_len, name, date_len, date, desc_len, desc;
};
struct drm_cap {
        uint64_t capability, value;
};
enum { DRM_CAP_PRIME_NR = 5, DRM_CAP_SYNCOBJ_NR = 0x13, DRM_CAP_SYNCOBJ_TIMELINE_NR = 0x14 };
struct drm_handle_pad {
        uint32_t handle, pad;
};
struct drm_prime {
        uint32_t handle, flags;
        int32_t fd;
};
struct drm_syncobj_new {
        uint32_t handle, flags;
};
struct drm_syncobj_fd {
        uint32_t handle, flags;
        int32_t fd;
        uint32_t pad;
};
struct drm_timeline_wait {
        uint64_t handles, points;
        int64_t timeout_ns; /* absolute, CLOCK_MONOTONIC */
        uint32_t n_handles, flags, first_signaled, pad;
        uint64_t deadline_ns;
};
enum { DRM_WAIT_ALL = 1, DRM_WAIT_FOR_SUBMIT = 2, DRM_WAIT_AVAILABLE = 4, DRM_WAIT_DEADLINE = 8 };
struct drm_timeline_array {
        uint64_t handles, points;
        uint32_t n_handles, flags;
};

/* A command's first word: state 3:0, further masks of CUs 11:10, words that follow 22:12, operation 27:23. */
#define ERT_STATE(header) ((header)&0xfu)
#define ERT_EXTRA_MASKS(header) ((header) >> 10 & 3u)
#define ERT_COUNT(header) ((header) >> 12 & 0x7ffu)
#define ERT_OP(header) ((header) >> 23 & 0x1fu)
enum { ERT_START_CU = 0, ERT_CHAIN = 19, ERT_START_NPU = 20 };
enum {
        ERT_NEW = 1,
        ERT_QUEUED,
        ERT_RUNNING,
        ERT_COMPLETED,
        ERT_ERROR,
        ERT_ABORT,
        ERT_SUBMITTED,
        ERT_TIMEOUT,
        ERT_NO_RESPONSE
};
struct ert_chain {
        uint32_t n_commands, submit_index, error_index, reserved[3];
        uint64_t command[];
};

static_assert(sizeof(struct xdna_create_context) == 56 && sizeof(struct xdna_config_context) == 24 &&
                      sizeof(struct xdna_create_bo) == 32 && sizeof(struct xdna_bo_info) == 48 &&
                      sizeof(struct xdna_sync_bo) == 24 && sizeof(struct xdna_execute) == 56,
              "the kernel's layout");
static_assert(sizeof(struct xdna_get_info) == 16 && sizeof(struct xdna_get_array) == 24 &&
                      sizeof(struct xdna_metadata) == 64 && sizeof(struct xdna_context_info) == 64 &&
                      sizeof(struct xdna_context_entry) == 144 && sizeof(struct drm_timeline_wait) == 48,
              "the kernel's layout");

#endif
