/* The asking side of tandem-picture-worker; see process.h. The memory for rows is this process's, and of a fixed
 * length. What comes back is copied once and then checked: the worker has read a stranger's files. */
#include "engine/vision/process.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/spawn.h"
#include "engine/vision/process-abi.h"

#define TRIES 2u
#define LOOK_MS UINT64_C(100) /* how often it is looked whether the job has ended */

struct tower_patience {
        uint64_t deadline_ns;
        const atomic_bool *cancelled; /* NULL: never */
        const atomic_uint *n_waiting; /* who else needs the process */
};

struct tdm_tower_process {
        pthread_mutex_t lock;
        atomic_uint n_waiting; /* for the lock */
        struct tdm_tower_process_config config;
        char *program, *name;
        pid_t pid; /* 0: none runs */
        int socket;
};

/* What an answer can be, beside an error: there is none, because the process has ended or breaks the rules. */
enum { ANSWERED = 0, TOWER_DIED = -EPIPE };

static int order_send(int socket, const struct tdm_tower_order *order, const int *fds, size_t n_fds)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control = { 0 };
        struct iovec iov = { .iov_base = (void *)(uintptr_t)order, .iov_len = sizeof(*order) };
        struct msghdr msg = { .msg_iov = &iov,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = CMSG_SPACE(n_fds * sizeof(int)) };
        ssize_t n;

        *CMSG_FIRSTHDR(&msg) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(n_fds * sizeof(int)),
                                                 .cmsg_level = SOL_SOCKET,
                                                 .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds, n_fds * sizeof(int));
        do
                n = sendmsg(socket, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n < 0 ? TOWER_DIED : 0;
}

static int patience_check(const struct tower_patience *until, struct tdm_error *err)
{
        if (until->cancelled && atomic_load_explicit(until->cancelled, memory_order_relaxed))
                return tdm_error_set(err, TDM_E_CANCELLED, "the job has ended");
        if (tdm_now_ns() >= until->deadline_ns)
                return tdm_error_set(err, TDM_E_DEADLINE, "the picture was not read in the time that a picture has");
        return 0;
}

/* Another job's picture is in the process until then. 0: the lock is taken. */
static int lock_take(struct tdm_tower_process *t, const struct tower_patience *until, struct tdm_error *err)
{
        int r = ETIMEDOUT;

        atomic_fetch_add(&t->n_waiting, 1);
        while (r == ETIMEDOUT) {
                struct timespec end;

                clock_gettime(CLOCK_MONOTONIC, &end);
                end.tv_nsec += (long)(LOOK_MS * TDM_NSEC_PER_MSEC);
                end.tv_sec += end.tv_nsec / TDM_NSEC_PER_SEC;
                end.tv_nsec %= TDM_NSEC_PER_SEC;
                r = pthread_mutex_clocklock(&t->lock, CLOCK_MONOTONIC, &end);
                if (r == ETIMEDOUT && patience_check(until, NULL) != 0)
                        break;
        }
        atomic_fetch_sub(&t->n_waiting, 1);
        if (r != 0 && r != ETIMEDOUT)
                return -r;
        if (r == 0 && patience_check(until, NULL) == 0)
                return 0;
        if (r == 0)
                pthread_mutex_unlock(&t->lock);
        return patience_check(until, err);
}

/* A job that has ended gives up its picture only where nobody waits for the process, which would have to load again. */
static int answer_await(int socket, const struct tower_patience *until, struct tdm_tower_answer *ret,
                        struct tdm_error *err)
{
        for (;;) {
                struct pollfd pollfd = { .fd = socket, .events = POLLIN };
                uint64_t now = tdm_now_ns();
                ssize_t n;
                int r;

                if (now >= until->deadline_ns || atomic_load(until->n_waiting) == 0) {
                        r = patience_check(until, err);
                        if (r != 0)
                                return r;
                }
                r = poll(&pollfd, 1, (int)TDM_MIN((until->deadline_ns - now) / TDM_NSEC_PER_MSEC + 1, LOOK_MS));
                if (r == 0 || (r < 0 && errno == EINTR))
                        continue;
                if (r < 0)
                        return -errno;
                n = recv(socket, ret, sizeof(*ret), MSG_DONTWAIT);
                if (n < 0 && (errno == EINTR || errno == EAGAIN))
                        continue;
                return n == (ssize_t)sizeof(*ret) && ret->magic == TDM_TOWER_MAGIC ? ANSWERED : TOWER_DIED;
        }
}

/* The worker's own words, which are printed. */
static int answer_say(const struct tdm_tower_answer *answer, struct tdm_error *err)
{
        char text[sizeof(answer->message)];
        size_t n = strnlen(answer->message, sizeof(text) - 1);

        if (answer->code == 0)
                return 0;
        for (size_t i = 0; i < n; i++)
                text[i] = answer->message[i] >= 0x20 && answer->message[i] < 0x7f ? answer->message[i] : '?';
        text[n] = 0;
        return tdm_error_set(err, answer->code > 0 && answer->code < TDM_E_MAX ? answer->code : TDM_E_INTERNAL,
                             "the picture cannot be read: %s", n > 0 ? text : "no reason was given");
}

static void tower_end(struct tdm_tower_process *t)
{
        if (t->pid == 0)
                return;
        kill(t->pid, SIGKILL);
        while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR)
                ;
        t->pid = 0;
        closep(&t->socket);
}

static int order_do(struct tdm_tower_process *t, const struct tdm_tower_order *order, const int *fds, size_t n_fds,
                    const struct tower_patience *until, struct tdm_error *err)
{
        struct tdm_tower_answer answer = { 0 };
        int r = order_send(t->socket, order, fds, n_fds);

        if (r == 0)
                r = answer_await(t->socket, until, &answer, err);
        if (r == 0 && answer.code == 0 && (answer.n_rows != t->config.n_rows || answer.n_out != t->config.n_out))
                r = TOWER_DIED;
        if (r != 0 || (order->kind == TDM_TOWER_LOAD && answer.code != 0))
                tower_end(t);
        return r != 0 ? r : answer_say(&answer, err);
}

static int tower_start(struct tdm_tower_process *t, const struct tower_patience *until, struct tdm_error *err)
{
        const struct tdm_tower_order order = { .magic = TDM_TOWER_MAGIC,
                                               .kind = TDM_TOWER_LOAD,
                                               .n_threads = t->config.n_threads,
                                               .act = t->config.act,
                                               .kv = t->config.kv };
        char *argv[] = { t->program, NULL };
        _cleanup_(closep) int ours = -1, theirs = -1;
        int pair[2], r;

        if (t->pid != 0)
                return 0;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        ours = pair[0];
        theirs = pair[1];
        r = tdm_spawn(t->program, argv, theirs, TDM_TOWER_SOCKET_FD, &t->pid);
        if (r < 0) {
                t->pid = 0;
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "cannot start %s, which reads pictures: %s", t->program,
                                     strerror(-r));
        }
        t->socket = steal_fd(&ours);
        closep(&theirs); /* or its end would not be seen */
        return order_do(t, &order, &t->config.fd, 1, until, err);
}

/* Memory of just this length, for the worker to write to. */
static int rows_memory_new(size_t bytes, int *ret_fd)
{
        _cleanup_(closep) int fd = memfd_create("tandem-picture-rows", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        *ret_fd = steal_fd(&fd);
        return 0;
}

static int rows_copy(int fd, float *out, size_t n)
{
        const float *at = mmap(NULL, n * sizeof(*out), PROT_READ, MAP_SHARED, fd, 0);

        if (at == MAP_FAILED)
                return -errno;
        memcpy(out, at, n * sizeof(*out));
        munmap((void *)(uintptr_t)at, n * sizeof(*out));
        for (size_t i = 0; i < n; i++)
                if (!isfinite(out[i]))
                        return -EDOM;
        return 0;
}

static int tower_run_once(struct tdm_tower_process *t, const struct tdm_picture *picture,
                          const struct tower_patience *until, float *out, struct tdm_error *err)
{
        const struct tdm_tower_order order = { .magic = TDM_TOWER_MAGIC,
                                               .kind = TDM_TOWER_RUN,
                                               .width = picture->size.width,
                                               .height = picture->size.height };
        const size_t n = (size_t)t->config.n_rows * t->config.n_out;
        _cleanup_(closep) int memory = -1;
        int r = rows_memory_new(n * sizeof(*out), &memory);

        if (r == 0)
                r = tower_start(t, until, err);
        if (r == 0)
                r = order_do(t, &order, (const int[]){ picture->fd, memory }, 2, until, err);
        if (r == 0)
                r = rows_copy(memory, out, n);
        return r == -EDOM ?
                       tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "%s makes numbers of this picture that are none: the file is damaged", t->name) :
                       r;
}

int tdm_tower_process_new(struct tdm_tower_process **ret, const struct tdm_tower_process_config *config)
{
        _cleanup_(tdm_tower_process_destroyp) struct tdm_tower_process *t = calloc(1, sizeof(*t));

        if (!t)
                return -ENOMEM;
        pthread_mutex_init(&t->lock, NULL);
        t->config = *config;
        t->socket = -1;
        t->program = strdup(config->program);
        t->name = strdup(config->name);
        if (!t->program || !t->name)
                return -ENOMEM;
        *ret = steal_ptr(&t);
        return 0;
}

int tdm_tower_process_run(struct tdm_tower_process *t, const struct tdm_picture *picture, uint64_t deadline_ns,
                          const atomic_bool *cancelled, float *out, struct tdm_error *err)
{
        const struct tower_patience until = { deadline_ns, cancelled, &t->n_waiting };
        int r = lock_take(t, &until, err);

        if (r != 0)
                return r < 0 ? tdm_error_set(err, r, "cannot read the picture: %s", strerror(-r)) : r;
        r = TOWER_DIED;
        for (unsigned i = 0; i < TRIES && r == TOWER_DIED; i++)
                r = tower_run_once(t, picture, &until, out, err);
        pthread_mutex_unlock(&t->lock);
        if (r == TOWER_DIED)
                return tdm_error_set(err, TDM_E_INTERNAL,
                                     "the process that reads pictures ended %u times without an "
                                     "answer",
                                     TRIES);
        return r < 0 ? tdm_error_set(err, r, "cannot read the picture: %s", strerror(-r)) : r;
}

void tdm_tower_process_rest(struct tdm_tower_process *t)
{
        if (pthread_mutex_trylock(&t->lock) != 0)
                return;
        tower_end(t);
        pthread_mutex_unlock(&t->lock);
}

void tdm_tower_process_destroy(struct tdm_tower_process *t)
{
        if (!t)
                return;
        tower_end(t);
        pthread_mutex_destroy(&t->lock);
        free(t->program);
        free(t->name);
        free(t);
}

void tdm_tower_process_destroyp(struct tdm_tower_process **t)
{
        tdm_tower_process_destroy(*t);
        *t = NULL;
}
