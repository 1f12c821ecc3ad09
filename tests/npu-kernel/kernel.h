/* The emulated driver's objects. One lock for all of it: the loop holds it but while it sleeps, the firmware's thread
 * but while it computes. References are counted as DRM counts them: a handle, a mapping, a job and a device buffer's
 * heap each hold one, so that closing a handle early is as harmless, and as harmful, as with a driver. */
#ifndef TESTS_NPU_KERNEL_KERNEL_H
#define TESTS_NPU_KERNEL_KERNEL_H

#include <pthread.h>
#include <sys/types.h>

#include "common/util.h"
#include "npu-worker/emulated/control.h"
#include "tests/npu-kernel/protocol.h"
#include "tests/npu-kernel/uapi.h"

#define HEAP_BASE UINT64_C(0x4000000) /* of the device: where the first heap lies */
#define HEAP_BYTES (UINT64_C(64) << 20)
#define HEAP_MAX_BYTES (UINT64_C(512) << 20)
#define DEV_ALIGN (UINT64_C(1) << 15)
#define PAGE_BYTES UINT64_C(4096)
#define N_COLUMNS 8u
#define N_CORE_ROWS 4u
#define MAX_CONTEXTS 16u
#define MAX_QUEUED 4u /* jobs of a context, before a submission waits */
#define MAX_HANDLES 65536u

struct profile {
        const char *name;
        bool user_pointers; /* CREATE_BO with a table of addresses; GET_ARRAY came with it */
        bool import;        /* of buffers that another file exported */
        bool growth;        /* of the heap, and device buffers across its parts */
};

struct bo {
        unsigned refs;
        uint32_t type;
        uint64_t size, offset; /* offset: what mmap() is given */
        int fd;                /* -1: device buffers, which lie in a heap */
        ino_t inode;
        uint8_t *host;   /* what the processes see */
        uint8_t *device; /* what the NPU sees: the same, or with --shadow a copy that syncs keep */
        uint64_t address;
        struct client *owner; /* of heaps and device buffers; NULL: that file was closed */
        unsigned n_heaps;     /* of the owner, that a device buffer keeps */
        uint64_t user_va;     /* of user pointers */
        struct bo *next;
};

struct mapping {
        uint64_t address, len;
        struct bo *bo;
        struct mapping *next;
};

struct syncobj {
        unsigned refs;
        uint64_t submitted, done; /* points below these */
        int fd;                   /* a token, once exported; else -1 */
        ino_t inode;
        struct syncobj *next;
};

struct job {
        struct context *context;
        struct bo *command, **args;
        uint32_t n_args;
        uint64_t seq;
        struct job *next;
};

struct context {
        uint32_t id, hw_id, first_column, n_columns;
        struct xdna_qos qos;
        bool ready, lost;
        uint32_t n_cus;
        uint32_t cu_programs[32]; /* what each PDI is, by its second word */
        struct syncobj *sync;
        uint64_t seq, completed, errors;
        struct job *queue, *running;
        struct client *client;
        struct context *next;
};

struct table {
        void **entry;
        uint32_t n;
};

struct client {
        int fd;
        pid_t pid;
        uid_t uid;
        bool control, dead; /* control: no file of the device; dead: the device went while it was open */
        struct table bos, syncobjs;
        struct context *contexts;
        uint32_t last_context;
        uint8_t *heap_host, *heap_device; /* [HEAP_MAX_BYTES], reserved */
        struct bo *heaps[HEAP_MAX_BYTES / HEAP_BYTES];
        unsigned n_heaps;
        uint64_t heap_bytes, heap_used;
        struct bo *device_bos; /* by address */
        struct mapping *mappings;
        struct client *next;
};

struct pending { /* a reply that is not due yet */
        struct client *client;
        int reply_fd;
        struct npk_request request;
        uint8_t *extra;
        uint64_t deadline_ns;
        struct pending *next;
};

enum fault {
        FAULT_NONE,
        FAULT_ERROR,    /* the command ends with an error */
        FAULT_HANG,     /* it does not end: the watchdog stops the context */
        FAULT_CONTEXT,  /* the context is lost */
        FAULT_GONE,     /* each call fails until the file is opened anew */
        FAULT_SLOW,     /* it takes 0.3 s longer */
        FAULT_SUSPEND,  /* the machine sleeps for half a second; the driver makes the contexts anew, as in tree */
        FAULT_ASLEEP,   /* the same, and no context wakes up */
        FAULT_REMOVED,  /* gone, and there is no device for a second */
        FAULT_FIRMWARE, /* neither command nor watchdog ever ends */
        N_FAULTS
};

struct kernel {
        pthread_mutex_t lock;
        pthread_cond_t work, idle;
        const struct profile *profile;
        bool shadow, quitting;
        unsigned timeout_ms; /* of the driver's watchdog */
        struct client *clients;
        struct bo *bos;
        struct syncobj *syncobjs;
        struct pending *pending;
        uint64_t next_offset;
        uint8_t power_mode, force_preempt, frame_preempt;
        enum fault fault;
        bool heap_is_full;                    /* for the next device buffer */
        uint64_t absent_until_ns;             /* of the device */
        struct tdm_emulated_control *control; /* faults and counters of a test; or NULL */
        int listener;
        int wake_fd; /* the firmware's thread to the loop: something ended */
        char last_error[256];
        struct {
                uint64_t ioctls[256], commands, chains, macs, refused, faults, unsynced;
        } n;
};

extern struct kernel kernel;

/* What a request is answered with, beyond arg which it changes in place. */
struct answer {
        uint8_t *extra; /* [NPK_MAX_EXTRA] */
        uint32_t n_extra;
        int fd;
        bool close_fd; /* after it was sent */
};

/* dispatch.c */
bool kernel_set_profile(const char *name); /* NULL: the newest */
/* 0 or -errno; -EAGAIN where kernel_may_wait() says so: not yet, ask again when something ended. With the lock. */
int kernel_answer(struct client *client, struct npk_request *r, uint8_t *extra, int fd, struct answer *answer);
bool kernel_may_wait(const struct npk_request *r);
uint64_t kernel_deadline(const struct npk_request *r);
void kernel_close(struct client *client);

/* table.c */
int table_add(struct table *table, void *p, uint32_t *ret_handle);
void *table_get(const struct table *table, uint32_t handle);
void *table_remove(struct table *table, uint32_t handle);

/* bo.c */
int bo_create(struct client *client, struct npk_request *r, const uint8_t *extra);
int bo_info(struct client *client, struct npk_request *r);
int bo_sync(struct client *client, struct npk_request *r);
int bo_close(struct client *client, struct npk_request *r);
int bo_export(struct client *client, struct npk_request *r, struct answer *answer);
int bo_import(struct client *client, struct npk_request *r, int fd);
int bo_mmap(struct client *client, struct npk_request *r, struct answer *answer);
int bo_mapped(struct client *client, struct npk_request *r);
int bo_unmapped(struct client *client, struct npk_request *r);
void bo_unref(struct bo *bo);
void bo_close_all(struct client *client);
bool bo_heap_is_mapped(const struct client *client);
/* The NPU's view of a range of a client's addresses; NULL: no buffer has all of it. ret_bo: which, for write-backs. */
uint8_t *bo_at(struct client *client, uint64_t address, uint64_t len, struct bo **ret_bo);

/* syncobj.c */
int syncobj_new(struct client *client, bool signaled, struct syncobj **ret, uint32_t *ret_handle);
void syncobj_unref(struct syncobj *sync);
int syncobj_create(struct client *client, struct npk_request *r);
int syncobj_destroy(struct client *client, struct npk_request *r);
int syncobj_export(struct client *client, struct npk_request *r, struct answer *answer);
int syncobj_import(struct client *client, struct npk_request *r, int fd);
int syncobj_signal(struct client *client, struct npk_request *r, const uint8_t *extra);
int syncobj_query(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer);
/* -EAGAIN: not yet. */
int syncobj_wait(struct client *client, struct npk_request *r, const uint8_t *extra);

/* context.c */
int context_create(struct client *client, struct npk_request *r, const uint8_t *extra);
int context_destroy(struct client *client, struct npk_request *r);
int context_config(struct client *client, struct npk_request *r, const uint8_t *extra);
/* -EAGAIN: the queue is full. */
int context_execute(struct client *client, struct npk_request *r, const uint8_t *extra);
/* By the firmware's thread: a job that it took ended with this state. */
void context_job_done(struct context *context, struct job *job, uint32_t state);
void context_destroy_all(struct client *client);
unsigned context_count(void);

/* firmware.c */
bool firmware_pdi(const void *pdi, uint64_t size, uint32_t *ret_program);
void *firmware_thread(void *unused);

/* info.c */
int info_get(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer);
int info_array(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer);
int info_set(struct client *client, struct npk_request *r, const uint8_t *extra);
int info_version(struct npk_request *r, struct answer *answer);
int info_cap(struct npk_request *r);
int tree_write(const char *directory);

/* Says why a request was refused, for tests and people; the caller returns the errno that a driver would. */
void refuse(const char *format, ...) _printf_(1, 2);

#endif
