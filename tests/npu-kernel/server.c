/* The emulated kernel driver's process: connections, requests, what tests ask of it.
 *
 * usage: npu-kernel [--profile first|import|userptr] [--shadow] [--timeout-ms N] [--ready-fd N] DIRECTORY
 *        npu-kernel --tree DIRECTORY             writes what stands for /sys and /dev, and ends
 *
 * DIRECTORY gets a socket and what stands for /sys and /dev; a program below libnpu-kernel-preload.so that finds it in
 * TANDEM_NPU_KERNEL has an NPU. Ends at SIGTERM, and when the pipe of --ready-fd breaks. */
#include "tests/npu-kernel/kernel.h"

#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define MAX_CONNECTIONS 256u

/* ---- replies ---- */

static void reply(int fd, const struct npk_request *r, int result, const struct answer *answer)
{
        struct npk_reply head = { .result = result };
        struct iovec iov[2] = { { &head, sizeof(head) }, { answer->extra, 0 } };
        union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {};
        struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

        memcpy(head.arg, r->arg, sizeof(head.arg));
        if (result == 0) {
                head.n_extra = answer->n_extra;
                iov[1].iov_len = answer->n_extra;
        }
        if (result == 0 && answer->fd >= 0) {
                msg.msg_control = control.bytes;
                msg.msg_controllen = sizeof(control.bytes);
                control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                                 .cmsg_type = SCM_RIGHTS,
                                                 .cmsg_len = CMSG_LEN(sizeof(int)) };
                memcpy(CMSG_DATA(&control.head), &answer->fd, sizeof(int));
        }
        sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- waits ---- */

/* Takes reply_fd. */
static void keep_for_later(struct client *client, const struct npk_request *r, const uint8_t *extra, int reply_fd)
{
        struct pending *p = calloc(1, sizeof(*p)), **last = &kernel.pending;

        if (p)
                p->extra = malloc(r->n_extra + 1);
        if (!p || !p->extra) {
                free(p);
                close(reply_fd);
                return;
        }
        memcpy(p->extra, extra, r->n_extra);
        p->client = client;
        p->request = *r;
        p->reply_fd = reply_fd;
        p->deadline_ns = kernel_deadline(r);
        while (*last)
                last = &(*last)->next;
        *last = p;
}

static void serve_pending(void)
{
        alignas(8) static uint8_t room[NPK_MAX_EXTRA + 1];
        uint64_t now = tdm_now_ns();

        for (struct pending **at = &kernel.pending; *at;) {
                struct pending *p = *at;
                struct answer answer = { .extra = room, .fd = -1 };
                int result = p->client->dead                       ? -ENODEV :
                             p->request.nr == DRM_NR_TIMELINE_WAIT ? syncobj_wait(p->client, &p->request, p->extra) :
                                                                     context_execute(p->client, &p->request, p->extra);

                if (result == -EAGAIN && now < p->deadline_ns) {
                        at = &p->next;
                        continue;
                }
                reply(p->reply_fd, &p->request, result == -EAGAIN ? -ETIME : result, &answer);
                *at = p->next;
                close(p->reply_fd);
                free(p->extra);
                free(p);
        }
}

/* ---- connections ---- */

static void client_free(struct client *client)
{
        for (struct pending **at = &kernel.pending; *at;) {
                struct pending *p = *at;

                if (p->client != client) {
                        at = &p->next;
                        continue;
                }
                *at = p->next;
                close(p->reply_fd);
                free(p->extra);
                free(p);
        }
        kernel_close(client);
        close(client->fd);
        free(client);
}

static struct client *client_new(int listener)
{
        struct client *client = calloc(1, sizeof(*client));
        struct ucred peer;
        socklen_t size = sizeof(peer);

        if (!client)
                return NULL;
        client->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client->fd < 0 || getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) {
                closep(&client->fd);
                free(client);
                return NULL;
        }
        client->pid = peer.pid;
        client->uid = peer.uid;
        client->next = kernel.clients;
        kernel.clients = client;
        return client;
}

/* For a program that cannot connect: this process does it, since only a connection to the bound name bears it. */
static int open_for(const struct client *opener, const struct npk_request *r, struct answer *answer)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = NPK_SOCKET };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        struct client *client;

        if (tdm_now_ns() < kernel.absent_until_ns || fd < 0 ||
            connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                closep(&fd);
                return -ENODEV;
        }
        do /* others may have come before */
                client = client_new(kernel.listener);
        while (client && client->pid != getpid());
        if (!client) {
                close(fd);
                return -ENOMEM;
        }
        memcpy(&client->pid, r->arg, sizeof(int32_t));
        client->uid = opener->uid;
        answer->fd = fd;
        answer->close_fd = true;
        return 0;
}

/* False: the last process closed the file. */
static bool serve(struct client *client)
{
        alignas(8) static uint8_t extra[NPK_MAX_EXTRA + 1], room[NPK_MAX_EXTRA + 1];
        struct npk_request r;
        struct iovec iov[2] = { { &r, sizeof(r) }, { extra, NPK_MAX_EXTRA } };
        union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(2 * sizeof(int))];
        } cmsg = {};
        struct msghdr msg = {
                .msg_iov = iov, .msg_iovlen = 2, .msg_control = cmsg.bytes, .msg_controllen = sizeof(cmsg.bytes)
        };
        struct answer answer = { .extra = room, .fd = -1 };
        int fds[2] = { -1, -1 }, result;
        ssize_t n = recvmsg(client->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

        if (n < 0)
                return errno == EAGAIN || errno == EINTR;
        if (n == 0)
                return false;
        if (msg.msg_controllen >= CMSG_LEN(sizeof(int)) && cmsg.head.cmsg_type == SCM_RIGHTS)
                memcpy(fds, CMSG_DATA(&cmsg.head), TDM_MIN(cmsg.head.cmsg_len - CMSG_LEN(0), sizeof(fds)));
        if (fds[0] < 0 || (size_t)n < sizeof(r) || (size_t)n - sizeof(r) != r.n_extra) {
                closep(&fds[0]);
                closep(&fds[1]);
                return true;
        }
        result = r.kind == NPK_OPEN ? open_for(client, &r, &answer) : kernel_answer(client, &r, extra, fds[1], &answer);
        closep(&fds[1]);
        if (result == -EAGAIN && kernel_may_wait(&r)) {
                keep_for_later(client, &r, extra, fds[0]);
                return true;
        }
        reply(fds[0], &r, result, &answer);
        if (answer.close_fd)
                close(answer.fd);
        close(fds[0]);
        return true;
}

/* Milliseconds until the first wait ends by time; -1: none does. */
static int next_timeout(void)
{
        uint64_t now = tdm_now_ns(), first = UINT64_MAX;

        for (const struct pending *p = kernel.pending; p; p = p->next)
                first = TDM_MIN(first, p->deadline_ns);
        if (first == UINT64_MAX || first > INT64_MAX - 1)
                return -1;
        return first <= now ? 0 : (int)TDM_MIN(TDM_DIV_UP(first - now, TDM_NSEC_PER_MSEC), UINT64_C(60000));
}

static volatile sig_atomic_t terminated, terminated_by;

static void on_signal(int number, siginfo_t *info, void *context)
{
        (void)context;
        terminated = number;
        terminated_by = info->si_pid;
}

static void loop(int ready_fd)
{
        while (!terminated) {
                struct pollfd fds[MAX_CONNECTIONS + 3] = { { .fd = kernel.listener, .events = POLLIN },
                                                           { .fd = kernel.wake_fd, .events = POLLIN },
                                                           { .fd = ready_fd } };
                struct client *of[MAX_CONNECTIONS];
                unsigned n = 0;
                eventfd_t ignored;
                int timeout;

                pthread_mutex_lock(&kernel.lock);
                for (struct client *c = kernel.clients; c && n < MAX_CONNECTIONS; c = c->next) {
                        of[n] = c;
                        fds[3 + n++] = (struct pollfd){ .fd = c->fd, .events = POLLIN };
                }
                timeout = next_timeout();
                pthread_mutex_unlock(&kernel.lock);
                if (poll(fds, 3 + n, timeout) < 0) {
                        if (errno == EINTR)
                                continue;
                        fprintf(stderr, "npu-kernel: ends: poll: %s\n", strerror(errno));
                        break;
                }
                if (ready_fd >= 0 && fds[2].revents & (POLLERR | POLLHUP))
                        break;
                pthread_mutex_lock(&kernel.lock);
                if (fds[1].revents)
                        eventfd_read(kernel.wake_fd, &ignored);
                for (unsigned i = 0; i < n; i++)
                        if (fds[3 + i].revents && !serve(of[i]))
                                client_free(of[i]);
                serve_pending();
                if (fds[0].revents)
                        client_new(kernel.listener);
                pthread_mutex_unlock(&kernel.lock);
        }
        if (terminated && terminated_by != getppid())
                fprintf(stderr, "npu-kernel: ends: signal %d of process %d\n", (int)terminated, (int)terminated_by);
}

static int fail(const char *what, int r)
{
        fprintf(stderr, "npu-kernel: %s: %s\n", what, strerror(-r));
        return 1;
}

static int usage(void)
{
        fprintf(stderr, "usage: npu-kernel [--profile first|import|userptr] [--shadow] [--timeout-ms N] [--ready-fd N] "
                        "DIRECTORY\n       npu-kernel --tree DIRECTORY\n");
        return 2;
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "profile", required_argument, NULL, 'p' },    { "shadow", no_argument, NULL, 's' },
                { "timeout-ms", required_argument, NULL, 't' }, { "ready-fd", required_argument, NULL, 'r' },
                { "tree", required_argument, NULL, 'w' },       {}
        };
        const struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = NPK_SOCKET };
        int c, ready_fd = -1, r;
        pthread_t firmware;

        kernel_set_profile(NULL);
        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
                if (c == 'p') {
                        if (!kernel_set_profile(optarg))
                                return usage();
                } else if (c == 's') {
                        kernel.shadow = true;
                } else if (c == 't') {
                        kernel.timeout_ms = (unsigned)atoi(optarg);
                } else if (c == 'r') {
                        ready_fd = atoi(optarg);
                } else if (c == 'w') {
                        r = tree_write(optarg);
                        return r < 0 ? fail(optarg, r) : 0;
                } else {
                        return 2;
                }
        if (optind + 1 != argc)
                return usage();
        signal(SIGPIPE, SIG_IGN);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGINT, &action, NULL);
        if ((mkdir(argv[optind], 0755) < 0 && errno != EEXIST) || chdir(argv[optind]) < 0)
                return fail(argv[optind], -errno);
        r = tree_write(NPK_TREE);
        if (r < 0)
                return fail(NPK_TREE, r);
        unlink(NPK_SOCKET);
        kernel.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        kernel.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (kernel.listener < 0 || kernel.wake_fd < 0 ||
            bind(kernel.listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
            chmod(address.sun_path, 0666) < 0 || listen(kernel.listener, 64) < 0)
                return fail(address.sun_path, -errno);
        r = pthread_create(&firmware, NULL, firmware_thread, NULL);
        if (r != 0)
                return fail("thread", -r);
        if (ready_fd >= 0 && write(ready_fd, "r", 1) != 1)
                return fail("ready", -errno);
        loop(ready_fd);
        unlink(address.sun_path);
        _exit(0);
}
