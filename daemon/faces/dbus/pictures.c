/* Pictures of a call that came as files. They are read on a thread, since a disk may take its time; the call waits
 * meanwhile, and counts among those of its caller that wait (peer.c), with the bytes of its pictures.
 *
 * Only regular files are read, with pread(), so a pipe or a device that never answers is refused and not waited for. A
 * file that grows or shrinks meanwhile is refused. In a daemon that serves several users a file has to lie in memory (a
 * memfd, a file of tmpfs): any other may be of a file system that a user runs and that never answers, and few threads
 * serve all. */
#include "daemon/faces/dbus/private.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define READING_THREADS 2u
#define FD_BYTES (UINT64_C(64) << 10) /* that an open file is charged as */

/* A call whose pictures are read. */
struct bus_reading {
        struct tdm_dbus *bus;
        struct bus_held *held; /* NULL: its caller has left */
        bus_pictures_fn done;
        atomic_bool left; /* the same, for the thread */
        struct tdm_account *account;
        uint64_t charged_bytes;      /* TDM_RESOURCE_WAITING_BYTES of the account, until they are the job's */
        struct bus_request *request; /* its texts lie in the held message, which the thread does not look at */
        uint8_t *bytes;              /* of all files, one behind the other */
        int r;
        struct tdm_error err;
};

static const char *kind_of(mode_t mode)
{
        return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/* Without asking the server of a file system. */
static int look_at_file(const struct tdm_dbus *bus, size_t number, int fd, uint64_t *ret_size, struct tdm_error *err)
{
        int flags = fcntl(fd, F_GETFL);
        struct statx stx;

        if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the file of picture %zu is not open for reading", number);
        if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE, &stx) < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot look at the file of picture %zu: %s", number,
                                     strerror(errno));
        if (!S_ISREG(stx.stx_mode))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "picture %zu is %s; only regular files and memfds are read", number,
                                     kind_of(stx.stx_mode));
        if (bus->system && fcntl(fd, F_GET_SEALS) < 0)
                return tdm_error_set(err, TDM_E_DENIED,
                                     "picture %zu is a file on a disk, and the system's service reads only what lies "
                                     "in memory: send its bytes, or a memfd with them",
                                     number);
        *ret_size = stx.stx_size;
        return 0;
}

/* Sizes of all files, which are charged, and where their bytes are going to be. */
static int plan_reading(struct bus_reading *reading, uint64_t *ret_size, struct tdm_error *err)
{
        struct bus_request *request = reading->request;
        uint64_t total = 0, size = 0;
        uint8_t *at;
        int r;

        for (size_t i = 0; i < request->params.n_picture_files; i++) {
                struct tdm_chat_text *file = &request->pictures[i].file;

                if (request->picture_fds[i] < 0)
                        continue;
                r = look_at_file(reading->bus, i + 1, request->picture_fds[i], &size, err);
                if (r != 0)
                        return r;
                if (size > BUS_MAX_PICTURE_BYTES - total)
                        return tdm_error_set(err, TDM_E_TOO_LONG, "the files of pictures have more than %u MiB in all",
                                             BUS_MAX_PICTURE_BYTES >> 20);
                file->size = size;
                total += size;
        }
        size = total + request->n_picture_fds * FD_BYTES;
        r = tdm_account_charge(reading->account, TDM_RESOURCE_WAITING_BYTES, size, err);
        if (r != 0)
                return r;
        reading->charged_bytes = size;
        reading->bytes = at = malloc(total + 1);
        if (!reading->bytes)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        for (size_t i = 0; i < request->params.n_picture_files; i++) {
                if (request->picture_fds[i] < 0)
                        continue;
                request->pictures[i].file.data = (const char *)at;
                at += request->pictures[i].file.size;
        }
        *ret_size = total;
        return 0;
}

static int read_opened(int fd, size_t number, uint8_t *to, size_t size, struct tdm_error *err)
{
        size_t done = 0;
        uint8_t more;
        ssize_t n;

        do {
                n = pread(fd, done < size ? to + done : &more, done < size ? size - done : 1, (off_t)done);
                if (n < 0 && errno != EINTR)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot read the file of picture %zu: %s", number,
                                             strerror(errno));
                done += n > 0 ? (size_t)n : 0;
        } while ((n != 0 && done <= size) || (n < 0 && errno == EINTR));
        if (done == size)
                return 0;
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "the file of picture %zu %s while it was read", number,
                             done < size ? "shrank" : "grew");
}

static void run_reading(void *task)
{
        struct bus_reading *reading = task;
        const struct bus_request *request = reading->request;
        uint8_t *at = reading->bytes;

        for (size_t i = 0; reading->r == 0 && i < request->params.n_picture_files; i++) {
                if (request->picture_fds[i] < 0)
                        continue;
                if (atomic_load_explicit(&reading->left, memory_order_relaxed)) /* spares work, and orders nothing */
                        return;
                reading->r =
                        read_opened(request->picture_fds[i], i + 1, at, request->pictures[i].file.size, &reading->err);
                at += request->pictures[i].file.size;
        }
}

static void uncharge_bytes(struct bus_reading *reading)
{
        tdm_account_release(reading->account, TDM_RESOURCE_WAITING_BYTES, reading->charged_bytes);
        reading->charged_bytes = 0;
}

static void reading_free(struct bus_reading *reading)
{
        uncharge_bytes(reading);
        tdm_account_unref(reading->account);
        free(reading->bytes);
        free(reading);
}

static void on_reading_done(void *task, bool ran)
{
        struct bus_reading *reading = task;
        struct bus_held *held = reading->held;

        if (!ran)
                reading->r = tdm_error_set(&reading->err, TDM_E_DRAINING, "tandemd is shutting down");
        bus_pictures_forget(reading);
        if (held) {
                uncharge_bytes(reading); /* the job is charged with them */
                reading->done(held, reading->request, reading->r, &reading->err);
        }
        bus_request_free(reading->bus, reading->account, reading->request);
        reading_free(reading);
}

void bus_pictures_drop(struct bus_reading *reading)
{
        bus_pictures_forget(reading);
        reading_free(reading);
}

void bus_pictures_forget(struct bus_reading *reading)
{
        if (!reading || !reading->held)
                return;
        reading->held->reading = NULL;
        reading->held = NULL;
        atomic_store_explicit(&reading->left, true, memory_order_relaxed);
}

int bus_pictures_look(struct tdm_dbus *bus, struct tdm_account *account, struct bus_request *request,
                      struct bus_reading **ret, uint64_t *ret_size, struct tdm_error *err)
{
        struct bus_reading *reading = calloc(1, sizeof(*reading));
        int r;

        if (!reading)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        reading->bus = bus;
        reading->account = tdm_account_ref(account);
        reading->request = request;
        r = plan_reading(reading, ret_size, err);
        if (r != 0)
                reading_free(reading);
        else
                *ret = reading;
        return r;
}

int bus_pictures_read(struct bus_reading *reading, struct bus_held *held, bus_pictures_fn done, struct tdm_error *err)
{
        struct bus_files *files = &reading->bus->files;

        reading->done = done;
        reading->held = held;
        held->reading = reading;
        if (files->reader || tdm_background_new_pool(&files->reader, reading->bus->loop, READING_THREADS) == 0)
                if (tdm_background_add_for(files->reader, reading->account->identity, run_reading, on_reading_done,
                                           reading) == 0)
                        return 0;
        return tdm_error_set(err, TDM_E_BUSY, "too many pictures wait to be read; try again later");
}
