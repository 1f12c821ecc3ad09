/* XRT for C: the one face that the rest of the worker sees of it.
 *
 * XRT drives an NPU through C++ only, so one C++ file (front.cc) fills this table and lives in a module of its own,
 * tandem-xrt.so, that is loaded when an NPU is asked for: a machine without XRT runs the same worker and is told what
 * is missing. Two flavours of XRT compile (front.cc says how): with contexts and run lists, and Debian's 2.13 without.
 *
 * One thread calls. No exception crosses: every failure is a negative errno, and error() then holds XRT's own words
 * until the next call. Handles are freed by the caller, runs before their context, contexts and buffers before the
 * device. A run that has not finished must never be freed: XRT ends the process then. wait() says whether it has. */
#ifndef TDM_NPU_XRT_FRONT_H
#define TDM_NPU_XRT_FRONT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TDM_XRT_FRONT_ABI 2u
#define TDM_XRT_FRONT_SYMBOL "tdm_xrt_front"
#define TDM_XRT_MAX_ARGS 16u

struct tdm_xrt_device;
struct tdm_xrt_context; /* a hardware context and the kernel in it; lost contexts are freed and made again */
struct tdm_xrt_buffer;
struct tdm_xrt_run;

enum tdm_xrt_memory {
        TDM_XRT_INSTRUCTIONS, /* cacheable: what a command's instructions lie in */
        TDM_XRT_DATA,         /* host memory that the NPU reads and writes */
};

enum tdm_xrt_state {
        TDM_XRT_DONE,
        TDM_XRT_RUNNING, /* not finished within the time: must not be freed */
        TDM_XRT_ERROR,   /* the NPU refused the command; the context lives */
        TDM_XRT_TIMEOUT, /* the driver's watchdog ended it; the context is lost */
        TDM_XRT_ABORTED, /* ended without having run, as all do in a lost context */
};

struct tdm_xrt_front {
        uint32_t abi;
        const char *flavour; /* "2.13 (no contexts)" */
        const char *(*error)(void);

        int (*device_open)(unsigned index, struct tdm_xrt_device **ret);
        void (*device_close)(struct tdm_xrt_device *device);
        int (*device_name)(struct tdm_xrt_device *device, char *ret, size_t size); /* "NPU Phoenix" */
        /* The image has been checked by tdm_xclbin_check(). */
        int (*device_load)(struct tdm_xrt_device *device, const void *xclbin, size_t size_bytes);

        int (*context_new)(struct tdm_xrt_device *device, const char *kernel, struct tdm_xrt_context **ret);
        void (*context_free)(struct tdm_xrt_context *context);
        int (*context_group)(struct tdm_xrt_context *context, unsigned arg); /* memory group of an argument */

        int (*buffer_new)(struct tdm_xrt_device *device, size_t size_bytes, enum tdm_xrt_memory memory, unsigned group,
                          struct tdm_xrt_buffer **ret);
        /* Memory of the caller's: page-aligned, counted against RLIMIT_MEMLOCK. */
        int (*buffer_user)(struct tdm_xrt_device *device, void *p, size_t size_bytes, unsigned group,
                           struct tdm_xrt_buffer **ret);
        /* A dma-buf; the fd stays the caller's. */
        int (*buffer_import)(struct tdm_xrt_device *device, int fd, struct tdm_xrt_buffer **ret);
        void *(*buffer_map)(struct tdm_xrt_buffer *buffer);
        int (*buffer_to_device)(struct tdm_xrt_buffer *buffer, size_t size_bytes);   /* the first size_bytes */
        int (*buffer_from_device)(struct tdm_xrt_buffer *buffer, size_t size_bytes); /* the same */
        /* a part of it */
        int (*buffer_part)(struct tdm_xrt_buffer *buffer, size_t offset, size_t size_bytes, int to_device);
        void (*buffer_free)(struct tdm_xrt_buffer *buffer);

        int (*run_new)(struct tdm_xrt_context *context, struct tdm_xrt_run **ret);
        int (*run_set_number)(struct tdm_xrt_run *run, unsigned arg, uint64_t value, unsigned size_bytes); /* 4 or 8 */
        int (*run_set_buffer)(struct tdm_xrt_run *run, unsigned arg, struct tdm_xrt_buffer *buffer);
        void (*run_free)(struct tdm_xrt_run *run);

        /* Starts them in order, as one submission where XRT has run lists. Returns how many submissions it took, or
         * -errno: then those before the one that failed may have been started, which wait() finds out. */
        int (*submit)(struct tdm_xrt_context *context, struct tdm_xrt_run *const *runs, unsigned n_runs);
        /* The worst of the runs' states (enum tdm_xrt_state) once all have finished or time is up. */
        int (*wait)(struct tdm_xrt_context *context, struct tdm_xrt_run *const *runs, unsigned n_runs,
                    unsigned timeout_ms);
};

#ifdef __cplusplus
}
#endif
#endif
