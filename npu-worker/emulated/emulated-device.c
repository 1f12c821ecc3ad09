/* An NPU that is not there: buffers, contexts and a command queue behind the C functions of XRT's xrt.h, so that the
 * whole of the real XRT front end runs above it.
 *
 * It is as strict as the NPU's driver, and stricter where a real device forgives by luck: every buffer has two copies,
 * the host's and the device's, and data moves between them on sync only; a buffer without a kind, in the wrong memory
 * group or too small for its command is refused; user memory must be page-aligned and is counted against
 * RLIMIT_MEMLOCK; an import must be a dma-buf; a command that takes 2 s is killed and takes its context with it. Faults
 * come from the control page (control.h). Every refusal is counted and, with TANDEM_NPU_EMULATED_TRACE, printed.
 *
 * One device, opened once at a time. A queue of commands and one thread that runs them in order. What it will not do:
 * be a model of an NPU's speed. */
#include "npu-worker/emulated/control.h"
#include "npu-worker/emulated/emulated-device.h"
#include "npu-worker/emulated/program.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define MAX_BUFFERS 16384u
#define QUEUE 256u
#define PAGE 4096u
#define WATCHDOG_NS (2 * TDM_NSEC_PER_SEC)
#define SLOW_NS (300 * TDM_NSEC_PER_MSEC)
#define SUSPEND_NS (500 * TDM_NSEC_PER_MSEC)
#define DMA_BUF_FS_MAGIC UINT32_C(0x444d4142)
/* Memory groups, in the order in which make-programs.c writes them into the xclbin. */
#define GROUP_DATA 0u
#define GROUP_INSTRUCTIONS 1u
#define OPCODE_RUN 3u

/* Functions of the C++ objects that glue.c tells about. The first registers a handle with XRT and returns a shared_ptr.
 * The second makes an xclbin known. */
void *tdm_emulated_core_register(void *ret_shared_ptr, void *handle,
                                 unsigned index) __asm__("_ZN8xrt_core17get_userpf_deviceEPvj");
void tdm_emulated_core_axlf(void *device,
                            const struct axlf *image) __asm__("_ZN8xrt_core6device13register_axlfEPK4axlf");

struct buffer {
        bool used;
        bool is_user;    /* host is the caller's */
        bool is_command; /* one copy: the queue's own memory */
        uint32_t flags;  /* kind and memory group */
        uint64_t size_bytes;
        uint64_t mapped_bytes;
        uint64_t address; /* the device's */
        uint8_t *host;
        uint8_t *device;
        int fd; /* -1: cannot be exported */
};

struct emulated {
        pthread_mutex_t lock;
        pthread_cond_t work, done;
        struct buffer buffers[MAX_BUFFERS]; /* 0 is none */
        unsigned n_handles;                 /* all handles in use are below */
        uint64_t next_address;
        uint64_t user_bytes, memlock_bytes;
        unsigned queue[QUEUE], head, tail;
        unsigned n_done;     /* since somebody waited */
        unsigned n_contexts; /* open */
        bool opened;
        bool context_lost;
        bool gone;
        struct tdm_emulated_control *control, own_control;
        void *shared_ptr[2]; /* XRT's, kept */
        pthread_t thread;
};

static struct emulated emulated = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .work = PTHREAD_COND_INITIALIZER,
        .done = PTHREAD_COND_INITIALIZER,
        .next_address = UINT64_C(0x4000000000),
        .n_handles = 1,
        .control = &emulated.own_control,
};

static void refuse(const char *fmt, ...) _printf_(1, 2);
static void refuse(const char *fmt, ...)
{
        static int trace = -1;
        va_list ap;

        atomic_fetch_add(&emulated.control->n_refused, 1);
        if (trace < 0)
                trace = getenv("TANDEM_NPU_EMULATED_TRACE") != NULL;
        if (!trace)
                return;
        fprintf(stderr, "emulated NPU: ");
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        fprintf(stderr, "\n");
}

/* ---- life ---- */

static void control_open(void)
{
        const char *path = getenv(TDM_EMULATED_CONTROL_ENV);
        _cleanup_(closep) int fd = -1;
        struct stat st;
        void *p;

        if (!path)
                return;
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < TDM_EMULATED_CONTROL_BYTES) {
                fprintf(stderr, "emulated NPU: %s is not a control page of %u bytes\n", path,
                        TDM_EMULATED_CONTROL_BYTES);
                return;
        }
        p = mmap(NULL, TDM_EMULATED_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p != MAP_FAILED)
                emulated.control = p;
}

static void *run_commands(void *arg);

/* A driver knows it of itself. A worker in its sandbox cannot ask any more: then what was true before goes on. */
static void ask_limit(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
                emulated.memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

unsigned xclProbe(void)
{
        return 1;
}

xclDeviceHandle xclOpen(unsigned index, const char *log, enum xclVerbosityLevel level)
{
        static bool started;

        if (index != 0 || emulated.opened) {
                refuse("device %u: there is one, and it is opened once at a time", index);
                return NULL;
        }
        if (!started) {
                control_open();
                if (pthread_create(&emulated.thread, NULL, run_commands, NULL) != 0)
                        return NULL;
                started = true;
        }
        if (tdm_now_ns() < atomic_load(&emulated.control->absent_until_ns))
                return NULL;
        emulated.memlock_bytes = UINT64_MAX;
        ask_limit();
        tdm_emulated_core_register(emulated.shared_ptr, &emulated, index);
        emulated.opened = true;
        return &emulated;
}

/* The thread stays and waits for the next one who opens. */
void xclClose(xclDeviceHandle h)
{
        emulated.opened = false;
}

int xclLoadXclBin(xclDeviceHandle h, const struct axlf *image)
{
        if (emulated.gone)
                return -ENODEV;
        if (strncmp((const char *)image->m_header.m_platformVBNV, "tandem-emulated",
                    sizeof(image->m_header.m_platformVBNV)) != 0) {
                refuse("an xclbin for %.32s", (const char *)image->m_header.m_platformVBNV);
                return -EINVAL;
        }
        tdm_emulated_core_axlf(emulated.shared_ptr[0], image);
        return 0;
}

int xclOpenContext(xclDeviceHandle h, const xuid_t uuid, unsigned ip, bool shared)
{
        int r = 0;

        pthread_mutex_lock(&emulated.lock);
        if (emulated.gone)
                r = -ENODEV;
        else if (emulated.n_contexts++ == 0)
                emulated.context_lost = false;
        if (r == 0)
                atomic_fetch_add(&emulated.control->n_contexts, 1);
        pthread_mutex_unlock(&emulated.lock);
        return r;
}

int xclCloseContext(xclDeviceHandle h, const xuid_t uuid, unsigned ip)
{
        pthread_mutex_lock(&emulated.lock);
        if (emulated.n_contexts > 0)
                emulated.n_contexts--;
        pthread_mutex_unlock(&emulated.lock);
        return 0;
}

int xclGetDeviceInfo2(xclDeviceHandle h, struct xclDeviceInfo2 *info)
{
        memset(info, 0, sizeof(*info));
        snprintf(info->mName, sizeof(info->mName), "tandem-emulated");
        info->mDataAlignment = PAGE;
        return 0;
}

/* ---- buffers ---- */

static struct buffer *buffer_of(unsigned handle)
{
        return handle > 0 && handle < MAX_BUFFERS && emulated.buffers[handle].used ? &emulated.buffers[handle] : NULL;
}

static void buffer_clear(struct buffer *b)
{
        if (b->host && !b->is_user)
                munmap(b->host, b->mapped_bytes);
        if (b->device && !b->is_command)
                munmap(b->device, b->mapped_bytes);
        if (b->is_user)
                emulated.user_bytes -= b->size_bytes;
        closep(&b->fd);
        memset(b, 0, sizeof(*b));
}

static void *map(uint64_t bytes, int fd)
{
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);

        return p == MAP_FAILED ? NULL : p;
}

/* With the lock held. host: the caller's memory, or NULL. Takes fd. Returns the handle, 0 where nothing can be had. */
static unsigned buffer_new(uint64_t size_bytes, uint32_t flags, void *host, int fd)
{
        struct buffer *b = NULL;
        unsigned handle;

        for (handle = 1; handle < emulated.n_handles && emulated.buffers[handle].used; handle++)
                ;
        if (handle == MAX_BUFFERS || size_bytes == 0 || emulated.gone) {
                closep(&fd);
                return 0;
        }
        emulated.n_handles = TDM_MAX(emulated.n_handles, handle + 1);
        b = &emulated.buffers[handle];
        *b = (struct buffer){ .used = true,
                              .flags = flags,
                              .size_bytes = size_bytes,
                              .fd = fd,
                              .is_user = host != NULL,
                              .is_command = flags & XCL_BO_FLAGS_EXECBUF };
        b->mapped_bytes = TDM_ALIGN_UP(size_bytes, (uint64_t)PAGE);
        b->host = host ? host : map(b->mapped_bytes, fd);
        b->device = b->is_command ? b->host : map(b->mapped_bytes, -1);
        if (host)
                emulated.user_bytes += size_bytes;
        if (!b->host || !b->device) {
                buffer_clear(b);
                return 0;
        }
        /* The old content of the device's memory is not zero. */
        if (!b->is_command)
                memset(b->device, 0xff, TDM_MIN(b->mapped_bytes, (uint64_t)PAGE));
        b->address = emulated.next_address;
        emulated.next_address += TDM_ALIGN_UP(b->mapped_bytes + PAGE, UINT64_C(0x100000));
        return handle;
}

static bool kind_is_fine(uint32_t flags)
{
        uint32_t group = flags & 0xffff;

        if (flags & XCL_BO_FLAGS_EXECBUF)
                return true;
        if (flags & XCL_BO_FLAGS_CACHEABLE)
                return group == GROUP_INSTRUCTIONS;
        return (flags & XCL_BO_FLAGS_HOST_ONLY) && group == GROUP_DATA;
}

xclBufferHandle xclAllocBO(xclDeviceHandle h, size_t size, int unused, unsigned flags)
{
        unsigned handle;

        if (!kind_is_fine(flags)) {
                refuse("a buffer of %zu bytes with flags %#x: neither instructions nor data in its group", size, flags);
                errno = EINVAL;
                return NULLBO;
        }
        pthread_mutex_lock(&emulated.lock);
        handle = buffer_new(size, flags, NULL, -1);
        errno = emulated.gone ? ENODEV : ENOMEM;
        pthread_mutex_unlock(&emulated.lock);
        return handle ? handle : NULLBO;
}

xclBufferHandle xclAllocUserPtrBO(xclDeviceHandle h, void *p, size_t size, unsigned flags)
{
        unsigned handle = 0;

        /* XRT 2.13 gives user memory no kind; the group it does give. */
        if ((uintptr_t)p % PAGE != 0 || (flags & 0xffff) != GROUP_DATA) {
                refuse("user memory at %p, %zu bytes, flags %#x: not page-aligned or not in the data's group", p, size,
                       flags);
                errno = EINVAL;
                return NULLBO;
        }
        pthread_mutex_lock(&emulated.lock);
        ask_limit();
        if (emulated.user_bytes + size > emulated.memlock_bytes) {
                refuse("user memory of %zu bytes: over RLIMIT_MEMLOCK (%llu)", size,
                       (unsigned long long)emulated.memlock_bytes);
                errno = ENOMEM;
        } else {
                handle = buffer_new(size, flags, p, -1);
                errno = emulated.gone ? ENODEV : ENOMEM;
        }
        pthread_mutex_unlock(&emulated.lock);
        return handle ? handle : NULLBO;
}

xclBufferHandle xclImportBO(xclDeviceHandle h, xclBufferExportHandle fd, unsigned flags)
{
        off_t size = lseek(fd, 0, SEEK_END);
        struct statfs fs;
        unsigned handle;

        if (fstatfs(fd, &fs) < 0 ||
            ((uint32_t)fs.f_type != DMA_BUF_FS_MAGIC && !getenv("TANDEM_NPU_EMULATED_IMPORT_ANY")) || size <= 0) {
                refuse("import of fd %d, which is not a dma-buf", fd);
                errno = EINVAL;
                return NULLBO;
        }
        pthread_mutex_lock(&emulated.lock);
        handle = buffer_new((uint64_t)size, XCL_BO_FLAGS_HOST_ONLY | GROUP_DATA, NULL, fcntl(fd, F_DUPFD_CLOEXEC, 3));
        errno = emulated.gone ? ENODEV : ENOMEM;
        pthread_mutex_unlock(&emulated.lock);
        return handle ? handle : NULLBO;
}

xclBufferExportHandle xclExportBO(xclDeviceHandle h, xclBufferHandle handle)
{
        struct buffer *b = buffer_of(handle);

        return b && b->fd >= 0 ? fcntl(b->fd, F_DUPFD_CLOEXEC, 3) : NULLBOEXPORT;
}

void xclFreeBO(xclDeviceHandle h, xclBufferHandle handle)
{
        struct buffer *b;

        pthread_mutex_lock(&emulated.lock);
        b = buffer_of(handle);
        if (b)
                buffer_clear(b);
        pthread_mutex_unlock(&emulated.lock);
}

void *xclMapBO(xclDeviceHandle h, xclBufferHandle handle, bool write)
{
        struct buffer *b = buffer_of(handle);

        return b ? b->host : NULL;
}

int xclUnmapBO(xclDeviceHandle h, xclBufferHandle handle, void *p)
{
        return 0;
}

int xclSyncBO(xclDeviceHandle h, xclBufferHandle handle, enum xclBOSyncDirection direction, size_t size, size_t offset)
{
        struct buffer *b = buffer_of(handle);

        if (emulated.gone)
                return -ENODEV;
        if (!b || offset > b->size_bytes || size > b->size_bytes - offset) {
                refuse("sync of %zu bytes at %zu, outside of buffer %u", size, offset, handle);
                return -EINVAL;
        }
        if (b->is_command)
                return 0;
        if (direction == XCL_BO_SYNC_BO_TO_DEVICE) {
                memcpy(b->device + offset, b->host + offset, size);
                atomic_fetch_add(&emulated.control->bytes_to_device, size);
        } else {
                memcpy(b->host + offset, b->device + offset, size);
                atomic_fetch_add(&emulated.control->bytes_from_device, size);
        }
        return 0;
}

int xclCopyBO(xclDeviceHandle h, xclBufferHandle to, xclBufferHandle from, size_t size, size_t to_offset,
              size_t from_offset)
{
        return -ENOSYS;
}

int xclGetBOProperties(xclDeviceHandle h, xclBufferHandle handle, struct xclBOProperties *ret)
{
        struct buffer *b = buffer_of(handle);

        if (!b)
                return -EINVAL;
        memset(ret, 0, sizeof(*ret));
        ret->handle = handle;
        ret->flags = b->flags;
        ret->size = b->size_bytes;
        ret->paddr = b->address;
        return 0;
}

/* ---- commands ---- */

/* The device's copy at an address, where size_bytes of a buffer of that group lie there, and how many there are. */
static void *find(uint64_t address, uint64_t size_bytes, uint32_t group, const char *what, uint64_t *ret_bytes)
{
        for (unsigned i = 1; i < emulated.n_handles; i++) {
                struct buffer *b = &emulated.buffers[i];

                if (!b->used || b->is_command || address < b->address || address - b->address >= b->size_bytes)
                        continue;
                if (size_bytes > b->size_bytes - (address - b->address)) {
                        refuse("%s needs %llu bytes, its buffer has %llu", what, (unsigned long long)size_bytes,
                               (unsigned long long)b->size_bytes);
                        return NULL;
                }
                if ((b->flags & 0xffff) != group) {
                        refuse("%s lies in memory group %u", what, b->flags & 0xffff);
                        return NULL;
                }
                *ret_bytes = b->size_bytes - (address - b->address);
                return b->device + (address - b->address);
        }
        refuse("%s: no buffer at address %#llx", what, (unsigned long long)address);
        return NULL;
}

/* A kernel's registers, as the xclbin places its arguments. */
struct registers {
        uint64_t opcode;
        uint64_t instructions;
        uint32_t n_words;
        uint32_t reserved;
        uint64_t data[TDM_EMULATED_MAX_ARGS]; /* A, B, C; an attention also D, E */
};

/* With the lock held; buffers stay while a command uses them, as a driver pins them, so the lock is held throughout. */
static int execute(const struct ert_start_kernel_cmd *command)
{
        struct tdm_emulated_program program;
        struct registers r;
        uint64_t bytes[TDM_EMULATED_MAX_ARGS], cache_bytes = 0;
        void *instructions, *data[TDM_EMULATED_MAX_ARGS];
        unsigned n_args;

        memcpy(&r, command->data + command->extra_cu_masks, sizeof(r));
        if (r.opcode != OPCODE_RUN) {
                refuse("opcode %llu", (unsigned long long)r.opcode);
                return ERT_CMD_STATE_ERROR;
        }
        instructions =
                find(r.instructions, (uint64_t)r.n_words * 4, GROUP_INSTRUCTIONS, "the instructions", &cache_bytes);
        if (!instructions)
                return ERT_CMD_STATE_ERROR;
        if (!tdm_emulated_program_check(instructions, r.n_words, &program)) {
                refuse("%u words that are no program", r.n_words);
                return ERT_CMD_STATE_ERROR;
        }
        n_args = tdm_emulated_program_bytes(&program, bytes);
        for (unsigned i = 0; i < n_args; i++) {
                static const char *const names[TDM_EMULATED_MAX_ARGS] = { "A", "B", "C", "D", "E" };

                data[i] = find(r.data[i], bytes[i], GROUP_DATA, names[i], &cache_bytes);
                if (!data[i])
                        return ERT_CMD_STATE_ERROR;
        }
        if (!tdm_emulated_program_run(&program, data, cache_bytes)) {
                refuse("the head of an attention that leads outside of its buffers");
                return ERT_CMD_STATE_ERROR;
        }
        atomic_fetch_add(&emulated.control->n_commands, 1);
        atomic_fetch_add(&emulated.control->n_macs, tdm_emulated_program_macs(&program));
        return ERT_CMD_STATE_COMPLETED;
}

static void pause_unlocked(uint64_t ns)
{
        struct timespec ts = { .tv_sec = (time_t)(ns / TDM_NSEC_PER_SEC), .tv_nsec = (long)(ns % TDM_NSEC_PER_SEC) };

        pthread_mutex_unlock(&emulated.lock);
        nanosleep(&ts, NULL);
        pthread_mutex_lock(&emulated.lock);
}

/* The state that the command ends with; 0: never. */
static int run_one(const struct ert_start_kernel_cmd *command)
{
        uint32_t fault = atomic_exchange(&emulated.control->fault, TDM_EMULATED_FAULT_NONE);

        if (fault != TDM_EMULATED_FAULT_NONE)
                atomic_fetch_add(&emulated.control->n_faults, 1);
        if (emulated.context_lost)
                return ERT_CMD_STATE_ABORT;
        switch (fault) {
        case TDM_EMULATED_FAULT_ERROR:
                return ERT_CMD_STATE_ERROR;
        case TDM_EMULATED_FAULT_HANG:
                pause_unlocked(WATCHDOG_NS);
                emulated.context_lost = true;
                return ERT_CMD_STATE_TIMEOUT;
        case TDM_EMULATED_FAULT_CONTEXT:
                emulated.context_lost = true;
                return ERT_CMD_STATE_ABORT;
        case TDM_EMULATED_FAULT_SUSPEND:
                pause_unlocked(SUSPEND_NS);
                emulated.context_lost = true;
                return ERT_CMD_STATE_ABORT;
        case TDM_EMULATED_FAULT_GONE:
                emulated.gone = true;
                return ERT_CMD_STATE_ABORT;
        case TDM_EMULATED_FAULT_FIRMWARE:
                return 0;
        case TDM_EMULATED_FAULT_SLOW:
                pause_unlocked(SLOW_NS);
                break;
        default:
                break;
        }
        return execute(command);
}

static void *run_commands(void *arg)
{
        pthread_mutex_lock(&emulated.lock);
        for (;;) {
                struct buffer *b;
                int state = ERT_CMD_STATE_ABORT;

                while (emulated.head == emulated.tail)
                        pthread_cond_wait(&emulated.work, &emulated.lock);
                b = buffer_of(emulated.queue[emulated.head % QUEUE]);
                if (b)
                        state = run_one((const struct ert_start_kernel_cmd *)b->host);
                emulated.head++;
                if (!b || state == 0)
                        continue;
                ((struct ert_start_kernel_cmd *)b->host)->state = (uint32_t)state & 0xf;
                emulated.n_done++;
                pthread_cond_broadcast(&emulated.done);
        }
        return NULL;
}

int xclExecBuf(xclDeviceHandle h, xclBufferHandle handle)
{
        int r = 0;

        pthread_mutex_lock(&emulated.lock);
        if (emulated.gone)
                r = -ENODEV;
        else if (!buffer_of(handle) || !buffer_of(handle)->is_command)
                r = -EINVAL;
        else if (emulated.tail - emulated.head == QUEUE)
                r = -EBUSY;
        else {
                emulated.queue[emulated.tail++ % QUEUE] = handle;
                pthread_cond_signal(&emulated.work);
        }
        pthread_mutex_unlock(&emulated.lock);
        if (r < 0)
                errno = -r;
        return r;
}

int xclExecWait(xclDeviceHandle h, int timeout_ms)
{
        struct timespec until;
        int r = 0;
        unsigned n;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += timeout_ms % 1000 * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
                until.tv_sec++;
                until.tv_nsec -= 1000000000L;
        }
        pthread_mutex_lock(&emulated.lock);
        while (emulated.n_done == 0 && r == 0)
                r = pthread_cond_timedwait(&emulated.done, &emulated.lock, &until);
        n = emulated.n_done;
        emulated.n_done = 0;
        pthread_mutex_unlock(&emulated.lock);
        return n > 0;
}
