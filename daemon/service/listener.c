/* The lock is a file beside the socket, held with flock() and removed at the end. The kernel drops the lock of a
 * crashed daemon, so it is never stale, and its holder may remove a dead socket without a race. The file itself comes
 * and goes, so a lock only counts while the path still leads to the file that was locked. */
#include "daemon/service/listener.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "common/log.h"
#include "daemon/service/passed.h"

#define ACCEPTS_PER_TURN 32
#define PAUSE_NS (100 * TDM_NSEC_PER_MSEC)

struct tdm_listener {
        int fd, lock_fd;
        bool passed;
        bool bound;
        struct tdm_passed stored;
        char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
        char lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
        struct tdm_source *io, *pause;
        tdm_accept_fn fn;
        void *userdata;
};

static int on_connect(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_listener *l = userdata;

        for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
                int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (client >= 0) {
                        l->fn(client, l->userdata);
                        continue;
                }
                if (errno == EINTR || errno == ECONNABORTED)
                        continue;
                if (errno == EAGAIN)
                        return 0;
                /* Out of descriptors or memory. Without a pause the loop would report the connection again and again.
                 */
                tdm_log_warning("cannot accept a connection: %s", strerror(errno));
                tdm_source_set_io_events(l->io, 0);
                tdm_source_arm(l->pause, tdm_now_ns() + PAUSE_NS);
                return 0;
        }
        return 0;
}

static int on_pause_over(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_listener *l = userdata;

        return tdm_source_set_io_events(l->io, EPOLLIN);
}

static int make_directory(const char *path, bool system, struct tdm_error *err)
{
        char dir[sizeof(((struct sockaddr_un *)0)->sun_path)], *slash;

        snprintf(dir, sizeof(dir), "%s", path);
        slash = strrchr(dir, '/');
        if (!slash || slash == dir)
                return 0;
        *slash = '\0';
        if (mkdir(dir, system ? 0755 : 0700) < 0 && errno != EEXIST)
                return tdm_error_set(err, -errno, "cannot make the socket's directory %s: %s", dir, strerror(errno));
        return 0;
}

/* " (pid 4711)": the process that listens on the path; "" where that is not known. */
static const char *whose_socket(const char *path, char *to, size_t size)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct ucred who;
        socklen_t len = sizeof(who);

        to[0] = '\0';
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.pid > 0)
                snprintf(to, size, " (pid %d)", (int)who.pid);
        return to;
}

static int take_lock(struct tdm_listener *l, struct tdm_error *err)
{
        char pid[32];

        for (int attempt = 0; attempt < 10; attempt++) {
                _cleanup_(closep) int fd = open(l->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
                struct stat locked, there;

                if (fd < 0)
                        return tdm_error_set(err, -errno, "cannot open the lock %s: %s", l->lock_path, strerror(errno));
                if (flock(fd, LOCK_EX | LOCK_NB) < 0)
                        return tdm_error_set(err, errno == EWOULDBLOCK ? TDM_E_BUSY : -errno,
                                             "another tandemd%s serves %s already; end it first or give another "
                                             "--socket",
                                             whose_socket(l->path, pid, sizeof(pid)), l->path);
                if (fstat(fd, &locked) == 0 && stat(l->lock_path, &there) == 0 && locked.st_ino == there.st_ino &&
                    locked.st_dev == there.st_dev) {
                        l->lock_fd = steal_fd(&fd);
                        return 0;
                }
        }
        return tdm_error_set(err, TDM_E_BUSY, "the lock %s changes hands all the time", l->lock_path);
}

/* Whether the process that listens at the other end has died. The kernel takes the rings of a killed process down
 * behind its end, and until then a socket that they wait on still takes connections. */
static bool is_left_behind(int fd)
{
        struct ucred who = { 0 };
        socklen_t len = sizeof(who);

        return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.pid > 0 && kill(who.pid, 0) < 0 &&
               errno == ESRCH;
}

/* Removes a socket that no daemon answers on; anything else at the path stays. */
static int clear_path(struct tdm_listener *l, const struct sockaddr_un *address, struct tdm_error *err)
{
        _cleanup_(closep) int fd = -1;
        struct stat st;
        char pid[32];
        bool answers;

        if (lstat(l->path, &st) < 0)
                return errno == ENOENT ? 0 :
                                         tdm_error_set(err, -errno, "cannot look at %s: %s", l->path, strerror(errno));
        if (!S_ISSOCK(st.st_mode))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "%s is there and is not a socket; remove it or give another --socket", l->path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return tdm_error_set(err, -errno, "cannot make a socket: %s", strerror(errno));
        answers = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0;
        if ((answers && !is_left_behind(fd)) || (!answers && errno == EAGAIN))
                return tdm_error_set(err, TDM_E_BUSY,
                                     "another process%s answers on %s already; end it first or give another --socket",
                                     whose_socket(l->path, pid, sizeof(pid)), l->path);
        if (unlink(l->path) < 0 && errno != ENOENT)
                return tdm_error_set(err, -errno, "cannot remove the stale socket %s: %s", l->path, strerror(errno));
        return 0;
}

static int bind_path(struct tdm_listener *l, const char *path, bool system, struct tdm_error *err)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        mode_t old;
        int r;

        if (strlen(path) >= sizeof(address.sun_path))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the socket's path is longer than %zu bytes: %.80s…",
                                     sizeof(address.sun_path) - 1, path);
        memcpy(address.sun_path, path, strlen(path));
        memcpy(l->path, address.sun_path, sizeof(l->path));
        snprintf(l->lock_path, sizeof(l->lock_path), "%s.lock", l->path);
        r = make_directory(path, system, err);
        if (r == 0)
                r = take_lock(l, err);
        if (r == 0)
                r = clear_path(l, &address, err);
        if (r != 0)
                return r;
        l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->fd < 0)
                return tdm_error_set(err, -errno, "cannot make a socket: %s", strerror(errno));
        old = umask(system ? 0111 : 0177);
        r = bind(l->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
        umask(old);
        if (r == 0) {
                l->bound = true;
                r = listen(l->fd, 128) < 0 ? -errno : 0;
        }
        return r < 0 ? tdm_error_set(err, r, "cannot listen on %s: %s", path, strerror(-r)) : 0;
}

int tdm_listener_new(struct tdm_listener **ret, struct tdm_loop *loop, const char *path, bool system, tdm_accept_fn fn,
                     void *userdata, struct tdm_error *err)
{
        _cleanup_(tdm_listener_destroyp) struct tdm_listener *l = calloc(1, sizeof(*l));
        int r;

        if (!l)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        l->fd = l->lock_fd = -1;
        l->fn = fn;
        l->userdata = userdata;
        r = tdm_listen_fd(&l->fd, &l->stored, err);
        if (r != 0)
                return r;
        if (l->fd >= 0) {
                struct sockaddr_un address = { 0 };
                socklen_t len = sizeof(address);

                l->passed = true;
                if (getsockname(l->fd, (struct sockaddr *)&address, &len) == 0)
                        snprintf(l->path, sizeof(l->path), "%.107s", address.sun_path);
        } else {
                r = bind_path(l, path, system, err);
                if (r != 0)
                        return r;
        }
        r = tdm_loop_add_io(loop, l->fd, EPOLLIN, on_connect, l, &l->io);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_pause_over, l, &l->pause);
        if (r < 0)
                return tdm_error_set(err, r, "cannot watch the socket: %s", strerror(-r));
        *ret = steal_ptr(&l);
        return 0;
}

void tdm_listener_destroy(struct tdm_listener *l)
{
        if (!l)
                return;
        tdm_source_destroyp(&l->io);
        tdm_source_destroyp(&l->pause);
        if (l->bound)
                (void)unlink(l->path);
        closep(&l->fd);
        if (l->lock_fd >= 0)
                (void)unlink(l->lock_path);
        closep(&l->lock_fd);
        tdm_passed_deinit(&l->stored);
        free(l);
}

void tdm_listener_destroyp(struct tdm_listener **l)
{
        tdm_listener_destroy(*l);
        *l = NULL;
}

bool tdm_listener_is_passed(const struct tdm_listener *l)
{
        return l->passed;
}

struct tdm_passed *tdm_listener_stored(struct tdm_listener *l)
{
        return &l->stored;
}

const char *tdm_listener_path(const struct tdm_listener *l)
{
        return l->path;
}
