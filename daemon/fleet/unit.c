/* A worker that is a unit of its own: the service manager owns its listening socket and starts it when we connect. It
 * is not our child, and mostly not our user's. This file has what differs from worker.c: how the worker is reached,
 * which process it is, how it ended, and how it is killed.
 *
 * Which process: SO_PEERCRED and SO_PEERPIDFD of such a connection name the process that listened, which is the
 * manager. It must be root or our own user, so that no third process stands between us and the worker. The worker
 * itself is known by its first byte, to which the kernel adds the sender (SCM_PIDFD, else SCM_CREDENTIALS and
 * pidfd_open(); the connection is still open then, so the pid is still this process's). Nothing is handed over before
 * that byte.
 *
 * How it ended: only a parent can wait for a process, so the pidfd is asked (PIDFD_GET_INFO, Linux 6.15). An older
 * kernel does not say. The step that the worker was in is then suspected, because a step that kills workers must be
 * found; a suspected step that does no harm is acquitted when it runs alone.
 *
 * How it is killed: we hang up first, and the worker's control thread ends the process. A worker that is stopped, or
 * hangs in the kernel, needs SIGKILL. Only the manager may send it, and the fleet's owner asks the manager. */
#include "daemon/fleet/private.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

/* struct pidfd_info up to what is asked for, and the ioctl: newer than the headers of this system. */
struct exit_info {
        uint64_t mask;
        uint64_t cgroupid;
        uint32_t pid, tgid, ppid;
        uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
        int32_t exit_code;
};
static_assert(sizeof(struct exit_info) == 64, "as the kernel knows it");
#define GET_EXIT_INFO _IOWR(0xff, 11, struct exit_info)
#define INFO_EXIT (UINT64_C(1) << 3)

/* The manager reaps it, and how it ended is known only then. */
#define REAPED_NS (200 * TDM_NSEC_PER_MSEC)
#define LOOK_NS (2 * TDM_NSEC_PER_MSEC)

int tdm_fleet_unit_init(struct tdm_fleet_worker *w, const char *folder, struct tdm_error *err)
{
        struct sockaddr_un address;

        if (asprintf(&w->socket_path, "%s/%s-worker.socket", folder, w->name) < 0) {
                w->socket_path = NULL;
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        if (strlen(w->socket_path) >= sizeof(address.sun_path))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "TANDEM_WORKER_SOCKETS: the path %.80s… is longer than %zu bytes", w->socket_path,
                                     sizeof(address.sun_path) - 1);
        snprintf(w->unit, sizeof(w->unit), "tandem-%s-worker.service", w->name);
        return 0;
}

/* ---- beginning ---- */

static void want_sender(int fd, int on)
{
        (void)setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
        (void)setsockopt(fd, SOL_SOCKET, SO_PASSPIDFD, &on, sizeof(on)); /* a kernel before 6.5 has only the other */
}

/* 1, or 0 when it was no greeting, or a negative errno. */
static int read_greeting(int fd, struct ucred *ret_who, int *ret_pidfd)
{
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int)) + 64];
        } control;
        char byte = 0;
        struct iovec io = { .iov_base = &byte, .iov_len = 1 };
        struct msghdr m = {
                .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
        };
        ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

        if (n < 0)
                return -errno;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
                if (c->cmsg_level != SOL_SOCKET)
                        continue;
                if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof(*ret_who)))
                        memcpy(ret_who, CMSG_DATA(c), sizeof(*ret_who));
                else if (c->cmsg_type == SCM_PIDFD && c->cmsg_len == CMSG_LEN(sizeof(int)))
                        memcpy(ret_pidfd, CMSG_DATA(c), sizeof(int));
                else if (c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(0)) {
                        /* The message should have no fds; those that it has are ours to close. */
                        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
                                int extra;

                                memcpy(&extra, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
                                closep(&extra);
                        }
                }
        }
        return n == 1 && byte == TDM_WORKER_GREETING;
}

static bool hung_up(int fd)
{
        struct pollfd p = { .fd = fd, .events = POLLRDHUP };

        return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR));
}

/* The unit's CPUAffinity= sets its CPUs. What the configuration asks for can only be compared with it. */
static void look_at_cpus(struct tdm_fleet_worker *w)
{
        cpu_set_t ours, its;
        char text[64];

        if (sched_getaffinity(0, sizeof(ours), &ours) < 0 || sched_getaffinity(w->process.pid, sizeof(its), &its) < 0)
                return;
        if (w->is_bound && !CPU_EQUAL(&its, &w->cpus) &&
            sched_setaffinity(w->process.pid, sizeof(w->cpus), &w->cpus) < 0) {
                tdm_cpus_format(&w->cpus, text, sizeof(text));
                tdm_log_warning(
                        "cannot bind the %s worker to the CPUs %s: %s; put CPUAffinity= into %s (systemctl edit %s)",
                        w->name, text, strerror(errno), w->unit, w->unit);
        } else if (w->is_bound)
                return;
        w->cpus = its;
        w->is_bound = !CPU_EQUAL(&its, &ours);
}

static int on_greeting(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;
        struct ucred who = { 0 };
        int r = read_greeting(fd, &who, &w->process.pidfd);

        if (r == -EAGAIN || r == -EINTR)
                return 0;
        if (r <= 0 || who.pid <= 0) { /* this process is no worker of ours, so we may not kill it */
                closep(&w->process.pidfd);
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "%s left before it said who it is; see journalctl -u %s",
                                      w->unit, w->unit);
                return 0;
        }
        w->process.pid = who.pid;
        if (w->process.pidfd < 0) {
                w->process.pidfd = (int)syscall(SYS_pidfd_open, w->process.pid, 0);
                if (w->process.pidfd < 0 || hung_up(fd)) {
                        closep(&w->process.pidfd);
                        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "%s left right after it had started", w->unit);
                        return 0;
                }
        }
        want_sender(fd, 0);
        tdm_source_destroyp(&w->link.greeting);
        tdm_log_debug("%s: process %d of user %u", w->unit, (int)who.pid, (unsigned)who.uid);
        look_at_cpus(w);
        fd = steal_fd(&w->link.greeting_fd);
        r = tdm_fleet_worker_talk(w, fd);
        if (r < 0)
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "cannot be set up: %s", strerror(-r));
        return 0;
}

int tdm_fleet_unit_connect(struct tdm_fleet_worker *w)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = -1;
        struct ucred listener;
        socklen_t len = sizeof(listener);
        int r;

        memcpy(address.sun_path, w->socket_path, strlen(w->socket_path));
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        want_sender(fd, 1); /* before the connection, so that the first byte carries its sender */
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
                r = -errno;
                tdm_log_debug("cannot connect to %s: %s", w->socket_path, strerror(-r));
                return r;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &len) < 0)
                return -errno;
        if (listener.uid != 0 && listener.uid != geteuid()) {
                tdm_log_error(
                        "%s is served by user %u, who is neither root nor this daemon's user: nothing is handed to it",
                        w->socket_path, (unsigned)listener.uid);
                return -EPERM;
        }
        r = tdm_loop_add_io(w->fleet->loop, fd, EPOLLIN, on_greeting, w, &w->link.greeting);
        if (r < 0)
                return r;
        w->link.greeting_fd = steal_fd(&fd);
        w->process.phase = TDM_FLEET_PROCESS_STARTING;
        w->process.started_ns = tdm_now_ns();
        return 0;
}

/* ---- end ---- */

/* 0 and how it ended; -EAGAIN: not known yet; another error: it will never be known. */
static int exit_of(int pidfd, siginfo_t *ret)
{
        struct exit_info info = { .mask = INFO_EXIT };

        if (ioctl(pidfd, GET_EXIT_INFO, &info) < 0)
                return errno == ESRCH ? -EAGAIN : -errno;
        if (!(info.mask & INFO_EXIT))
                return -EAGAIN;
        ret->si_pid = 1;
        if (WIFEXITED(info.exit_code)) {
                ret->si_code = CLD_EXITED;
                ret->si_status = WEXITSTATUS(info.exit_code);
        } else {
                ret->si_code = CLD_KILLED;
                ret->si_status = WTERMSIG(info.exit_code);
        }
        return 0;
}

static int look_at_exit(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;
        siginfo_t si = { 0 };
        int r = exit_of(w->process.pidfd, &si);

        if (r == -EAGAIN && now_ns - w->process.exited_ns < REAPED_NS)
                tdm_source_arm(source, now_ns + LOOK_NS);
        else
                tdm_fleet_worker_ended(w, r == 0 ? &si : NULL);
        return 0;
}

int tdm_fleet_unit_exited(struct tdm_fleet_worker *w)
{
        w->process.exited_ns = tdm_now_ns();
        tdm_source_destroyp(&w->process.exit_source); /* the loop would report this fd again and again */
        if (!w->process.exit_timer) {
                int r = tdm_loop_add_timer(w->fleet->loop, look_at_exit, w, &w->process.exit_timer);

                if (r < 0) {
                        tdm_fleet_worker_ended(w, NULL);
                        return 0;
                }
        }
        return look_at_exit(w->process.exit_timer, w->process.exited_ns, w);
}

void tdm_fleet_unit_kill(struct tdm_fleet_worker *w)
{
        struct tdm_fleet *f = w->fleet;
        uint64_t now = tdm_now_ns();

        if (w->process.kill_asked_ns != 0 && now - w->process.kill_asked_ns < TDM_NSEC_PER_SEC)
                return;
        w->process.kill_asked_ns = now;
        if (f->callbacks.on_kill_unit)
                f->callbacks.on_kill_unit(w->unit, f->userdata);
}

/* A process that has left already must not be killed: its unit may run the next one by now. */
void tdm_fleet_unit_give_up(struct tdm_fleet_worker *w)
{
        if (w->link.greeting_fd >= 0 && !hung_up(w->link.greeting_fd))
                tdm_fleet_unit_kill(w);
}

void tdm_fleet_unit_deinit(struct tdm_fleet_worker *w)
{
        tdm_source_destroyp(&w->link.greeting);
        closep(&w->link.greeting_fd);
        tdm_source_destroyp(&w->process.exit_timer);
}
