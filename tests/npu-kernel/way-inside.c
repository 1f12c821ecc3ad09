/* The way of libnpu-kernel-inside.so: the emulated driver lives in the program that uses it, for TANDEM_NPU=emulated
 * with today's XRT. What it has is gone with the process, so no other process's view of it is emulated: tests of that
 * have the server. A file of the device is an eventfd whose number is remembered until it is closed.
 *
 * Faults and counters are those of npu-worker/emulated/control.h, as with 2.13's emulator. */
#include "tests/npu-kernel/way.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "npu-worker/emulated/control.h"
#include "tests/npu-kernel/kernel.h"

#define MAX_FILES 64u
#define ROOM_BYTES (NPK_MAX_EXTRA + 8u) /* a zero may follow */
#define POLL_NS 5000000L                /* how late a signal of another thread may be seen */

/* A request that another thread's close() overtakes keeps its file until it has ended, as a kernel's does. */
struct file {
        struct client *client; /* NULL: free */
        int fd;                /* -1: closed, and still in use */
        unsigned n_users;
};

static struct file files[MAX_FILES];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before the kernel's, or alone */
static _Thread_local bool in_kernel;

bool npk_is_kernel(void)
{
        return in_kernel;
}

/* It serves users whose limit is the usual 8 MiB, too. What that limit does is seen with the driver in a server. */
bool npk_locks(void)
{
        return false;
}

static void enter(void)
{
        in_kernel = true;
        pthread_mutex_lock(&kernel.lock);
}

static void leave(void)
{
        pthread_mutex_unlock(&kernel.lock);
        in_kernel = false;
}

const char *npk_directory(void)
{
        static char directory[4096];

        if (!directory[0]) {
                Dl_info self;
                const char *slash;

                if (dladdr((void *)(uintptr_t)npk_directory, &self) == 0 || !(slash = strrchr(self.dli_fname, '/')) ||
                    (size_t)(slash - self.dli_fname) >= sizeof(directory))
                        return NULL;
                memcpy(directory, self.dli_fname, (size_t)(slash - self.dli_fname));
        }
        return directory;
}

/* With files_lock. */
static struct file *file_of(int fd)
{
        for (size_t i = 0; fd >= 0 && i < MAX_FILES; i++)
                if (files[i].client && files[i].fd == fd)
                        return &files[i];
        return NULL;
}

bool npk_is_ours(int fd)
{
        bool ours;

        pthread_mutex_lock(&files_lock);
        ours = file_of(fd) != NULL;
        pthread_mutex_unlock(&files_lock);
        return ours;
}

/* With files_lock: frees what nobody uses any more. */
static void release(struct file *file)
{
        if (file->fd >= 0 || file->n_users > 0)
                return;
        enter();
        kernel_close(file->client);
        leave();
        free(file->client);
        file->client = NULL;
}

static struct file *use(int fd)
{
        struct file *file;

        pthread_mutex_lock(&files_lock);
        file = file_of(fd);
        if (file)
                file->n_users++;
        pthread_mutex_unlock(&files_lock);
        return file;
}

static void unuse(struct file *file)
{
        if (!file)
                return;
        pthread_mutex_lock(&files_lock);
        file->n_users--;
        release(file);
        pthread_mutex_unlock(&files_lock);
}

static void *firmware(void *unused)
{
        in_kernel = true;
        return firmware_thread(unused);
}

static void map_control(void)
{
        const char *path = getenv(TDM_EMULATED_CONTROL_ENV);
        int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
        void *page = MAP_FAILED;

        if (fd >= 0)
                page = (void *)syscall(SYS_mmap, NULL, TDM_EMULATED_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                                       fd, 0);
        if (page != MAP_FAILED)
                kernel.control = page;
        if (fd >= 0)
                syscall(SYS_close, fd);
}

static int start(void)
{
        pthread_t thread;

        if (kernel.profile)
                return 0;
        kernel_set_profile(NULL);
        map_control();
        kernel.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* nobody reads it: waits have the condition */
        return kernel.wake_fd < 0 ? -errno : -pthread_create(&thread, NULL, firmware, NULL);
}

int npk_open(const char *stand_in, int flags)
{
        struct client *client = calloc(1, sizeof(*client));
        size_t i = 0;
        int r = client ? 0 : -ENOMEM;

        (void)stand_in;
        (void)flags;
        pthread_mutex_lock(&files_lock);
        enter();
        if (r == 0)
                r = start();
        while (r == 0 && i < MAX_FILES && files[i].client)
                i++;
        if (r == 0 && i == MAX_FILES)
                r = -EMFILE;
        if (r == 0 && (tdm_now_ns() < kernel.absent_until_ns ||
                       (kernel.control && tdm_now_ns() < atomic_load(&kernel.control->absent_until_ns))))
                r = -ENODEV;
        if (r == 0) {
                client->fd = eventfd(0, EFD_CLOEXEC);
                r = client->fd < 0 ? -errno : 0;
        }
        if (r == 0) {
                client->pid = getpid();
                client->uid = getuid();
                client->next = kernel.clients;
                kernel.clients = client;
                files[i] = (struct file){ .client = client, .fd = client->fd };
                r = client->fd;
        } else {
                free(client);
        }
        leave();
        pthread_mutex_unlock(&files_lock);
        if (r < 0) {
                errno = -r;
                return -1;
        }
        return r;
}

__attribute__((visibility("default"))) int close(int fd)
{
        struct file *file;

        if (in_kernel)
                return (int)syscall(SYS_close, fd);
        pthread_mutex_lock(&files_lock);
        file = file_of(fd);
        if (file) {
                file->fd = -1;
                release(file);
        }
        pthread_mutex_unlock(&files_lock);
        return (int)syscall(SYS_close, fd);
}

/* A namespace that dlmopen() made has no list of what is global, and glibc does not expect that. */
__attribute__((visibility("default"))) void *dlopen(const char *path, int flags)
{
        void *(*real)(const char *, int) = (void *(*)(const char *, int))(uintptr_t)dlsym(RTLD_NEXT, "dlopen");

        return real(path, flags & ~RTLD_GLOBAL);
}

static void sleep_until_something_ended(uint64_t deadline_ns)
{
        uint64_t left = deadline_ns - tdm_now_ns();
        struct timespec end;

        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_nsec += (long)TDM_MIN(left, (uint64_t)POLL_NS);
        end.tv_sec += end.tv_nsec / 1000000000;
        end.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&kernel.idle, &kernel.lock, &end);
}

int npk_request(int fd, struct npk_request *r, const void *extra, int send_fd, uint8_t *ret_extra,
                uint32_t *ret_n_extra, int *ret_fd)
{
        uint8_t *room = malloc(2 * ROOM_BYTES);
        struct answer answer = { .extra = room + ROOM_BYTES, .fd = -1 };
        uint64_t deadline = kernel_deadline(r);
        struct file *file;
        int result;

        if (!room)
                return -ENOMEM;
        if (r->n_extra > 0)
                memcpy(room, extra, r->n_extra);
        file = use(fd);
        enter();
        for (;;) {
                result = file ? kernel_answer(file->client, r, room, send_fd, &answer) : -EBADF;
                if (result != -EAGAIN || !kernel_may_wait(r))
                        break;
                if (tdm_now_ns() >= deadline) {
                        result = -ETIME;
                        break;
                }
                sleep_until_something_ended(deadline);
        }
        if (result == 0 && answer.fd >= 0 && ret_fd)
                *ret_fd = answer.close_fd ? answer.fd : fcntl(answer.fd, F_DUPFD_CLOEXEC, 0);
        leave();
        unuse(file);
        if (result == 0 && ret_n_extra)
                *ret_n_extra = answer.n_extra;
        if (result == 0 && ret_extra)
                memcpy(ret_extra, answer.extra, answer.n_extra);
        free(room);
        return result;
}
