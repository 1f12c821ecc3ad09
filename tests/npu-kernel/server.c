/* The emulated kernel driver's process: connections, requests, what tests ask of it.
 *
 * usage: npu-kernel [--profile first|import|userptr] [--shadow] [--timeout-ms N] [--ready-fd N] DIRECTORY
 *
 * DIRECTORY gets a socket and what stands for /sys and /dev; a program below libnpu-kernel-preload.so that finds it in
 * TANDEM_NPU_KERNEL has an NPU. Ends at SIGTERM, and when the pipe of --ready-fd breaks. */
#include "tests/npu-kernel/kernel.h"

#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define MAX_CONNECTIONS 256u

struct kernel kernel = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .work = PTHREAD_COND_INITIALIZER,
        .idle = PTHREAD_COND_INITIALIZER,
        .timeout_ms = 2000,
        .next_offset = UINT64_C(0x100000000), /* where DRM's offsets begin */
};

static const struct profile profiles[] = {
        { .name = "first" },
        { .name = "import", .import = true },
        { .name = "userptr", .import = true, .user_pointers = true, .growth = true },
};

void refuse(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(kernel.last_error, sizeof(kernel.last_error), format, args);
        va_end(args);
        kernel.n.refused++;
}

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

/* ---- requests ---- */

static int dispatch(struct client *client, struct npk_request *r, const uint8_t *extra, int fd, struct answer *answer)
{
        if (client->dead || tdm_now_ns() < kernel.absent_until_ns)
                return -ENODEV;
        if (r->nr < TDM_ARRAY_SIZE(kernel.n.ioctls))
                kernel.n.ioctls[r->nr]++;
        switch (r->nr) {
        case DRM_NR_VERSION:
                return info_version(r, answer);
        case DRM_NR_GET_CAP:
                return info_cap(r);
        case DRM_NR_GEM_CLOSE:
                return bo_close(client, r);
        case DRM_NR_PRIME_EXPORT:
                return bo_export(client, r, answer);
        case DRM_NR_PRIME_IMPORT:
                return bo_import(client, r, fd);
        case XDNA_NR_CREATE_CONTEXT:
                return context_create(client, r, extra);
        case XDNA_NR_DESTROY_CONTEXT:
                return context_destroy(client, r);
        case XDNA_NR_CONFIG_CONTEXT:
                return context_config(client, r, extra);
        case XDNA_NR_CREATE_BO:
                return bo_create(client, r, extra);
        case XDNA_NR_BO_INFO:
                return bo_info(client, r);
        case XDNA_NR_SYNC_BO:
                return bo_sync(client, r);
        case XDNA_NR_EXECUTE:
                return context_execute(client, r, extra);
        case XDNA_NR_GET_INFO:
                return info_get(client, r, extra, answer);
        case XDNA_NR_GET_ARRAY:
                return info_array(client, r, extra, answer);
        case XDNA_NR_SET_STATE:
                return info_set(client, r, extra);
        case DRM_NR_SYNCOBJ_CREATE:
                return syncobj_create(client, r);
        case DRM_NR_SYNCOBJ_DESTROY:
                return syncobj_destroy(client, r);
        case DRM_NR_SYNCOBJ_EXPORT:
                return syncobj_export(client, r, answer);
        case DRM_NR_SYNCOBJ_IMPORT:
                return syncobj_import(client, r, fd);
        case DRM_NR_TIMELINE_WAIT:
                return syncobj_wait(client, r, extra);
        case DRM_NR_TIMELINE_QUERY:
                return syncobj_query(client, r, extra, answer);
        case DRM_NR_TIMELINE_SIGNAL:
                return syncobj_signal(client, r, extra);
        default:
                refuse("ioctl 0x%x, which this kernel does not have", r->nr);
                return -EINVAL;
        }
}

static uint64_t table_count(const struct table *table)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < table->n; i++)
                n += table->entry[i] != NULL;
        return n;
}

static void counters(char *ret, size_t size)
{
        uint64_t n_files = 0, n_handles = 0, n_mappings = 0, n_bos = 0, bytes = 0, heap = 0, n_syncobjs = 0;
        size_t at;

        for (const struct client *client = kernel.clients; client; client = client->next) {
                n_files += !client->control;
                n_handles += table_count(&client->bos);
                n_syncobjs += table_count(&client->syncobjs);
                heap += client->heap_used;
                for (const struct mapping *m = client->mappings; m; m = m->next)
                        n_mappings++;
        }
        for (const struct bo *bo = kernel.bos; bo; bo = bo->next) {
                n_bos++;
                bytes += bo->size;
        }
        at = (size_t)snprintf(
                ret, size,
                "{\"profile\": \"%s\", \"files\": %llu, \"handles\": %llu, \"buffers\": %llu, \"bytes\": %llu, "
                "\"heap_used\": %llu, \"mappings\": %llu, \"syncobjs\": %llu, \"contexts\": %u, "
                "\"commands\": %llu, \"chains\": %llu, \"macs\": %llu, \"refused\": %llu, \"unsynced\": %llu, "
                "\"faults\": %llu, \"ioctls\": {",
                kernel.profile->name, (unsigned long long)n_files, (unsigned long long)n_handles,
                (unsigned long long)n_bos, (unsigned long long)bytes, (unsigned long long)heap,
                (unsigned long long)n_mappings, (unsigned long long)n_syncobjs, context_count(),
                (unsigned long long)kernel.n.commands, (unsigned long long)kernel.n.chains,
                (unsigned long long)kernel.n.macs, (unsigned long long)kernel.n.refused,
                (unsigned long long)kernel.n.unsynced, (unsigned long long)kernel.n.faults);
        for (unsigned i = 0, first = 1; i < TDM_ARRAY_SIZE(kernel.n.ioctls) && at + 40 < size; i++)
                if (kernel.n.ioctls[i]) {
                        at += (size_t)snprintf(ret + at, size - at, "%s\"0x%02x\": %llu", first ? "" : ", ", i,
                                               (unsigned long long)kernel.n.ioctls[i]);
                        first = 0;
                }
        snprintf(ret + at, size - at, "}}");
}

/* A line of a test's: "counters", "why" (the last refusal), "fault NAME". */
static int control(const char *line, struct answer *answer)
{
        static const char *const faults[N_FAULTS] = { "none", "error",   "hang",   "context", "gone",
                                                      "slow", "suspend", "asleep", "removed" };
        char *out = (char *)answer->extra;

        out[0] = 0;
        if (strcmp(line, "counters") == 0) {
                counters(out, NPK_MAX_EXTRA);
        } else if (strcmp(line, "why") == 0) {
                snprintf(out, NPK_MAX_EXTRA, "%s", kernel.last_error);
        } else if (strncmp(line, "fault ", 6) == 0) {
                unsigned i = 0;

                if (strcmp(line + 6, "heap") == 0) {
                        kernel.heap_is_full = true;
                        return 0;
                }
                while (i < TDM_ARRAY_SIZE(faults) && strcmp(line + 6, faults[i]) != 0)
                        i++;
                if (i == TDM_ARRAY_SIZE(faults))
                        return -EINVAL;
                kernel.fault = (enum fault)i;
        } else {
                return -EINVAL;
        }
        answer->n_extra = (uint32_t)strlen(out) + 1;
        return 0;
}

static int open_for(const struct client *opener, const struct npk_request *r, struct answer *answer);

static int answer_to(struct client *client, struct npk_request *r, uint8_t *extra, int fd, struct answer *answer)
{
        switch (r->kind) {
        case NPK_IOCTL:
                return dispatch(client, r, extra, fd, answer);
        case NPK_MMAP:
                return client->dead ? -ENODEV : bo_mmap(client, r, answer);
        case NPK_MAPPED:
                return bo_mapped(client, r);
        case NPK_UNMAPPED:
                return bo_unmapped(client, r);
        case NPK_CHANNEL:
                client->control = true;
                return 0;
        case NPK_OPEN:
                return open_for(client, r, answer);
        case NPK_CONTROL:
                client->control = true;
                extra[r->n_extra] = 0;
                return control((const char *)extra, answer);
        default:
                return -EINVAL;
        }
}

static uint64_t deadline_of(const struct npk_request *r)
{
        int64_t timeout = ((const struct drm_timeline_wait *)(const void *)r->arg)->timeout_ns;

        return r->nr != DRM_NR_TIMELINE_WAIT ? UINT64_MAX : timeout < 0 ? 0 : (uint64_t)timeout;
}

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
        p->deadline_ns = deadline_of(r);
        while (*last)
                last = &(*last)->next;
        *last = p;
}

static void serve_pending(void)
{
        static uint8_t room[NPK_MAX_EXTRA + 1];
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
        context_destroy_all(client);
        for (struct client **p = &kernel.clients; *p; p = &(*p)->next)
                if (*p == client) {
                        *p = client->next;
                        break;
                }
        bo_close_all(client);
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
        static uint8_t extra[NPK_MAX_EXTRA + 1], room[NPK_MAX_EXTRA + 1];
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
        result = answer_to(client, &r, extra, fds[1], &answer);
        closep(&fds[1]);
        if (result == -EAGAIN && r.kind == NPK_IOCTL && (r.nr == DRM_NR_TIMELINE_WAIT || r.nr == XDNA_NR_EXECUTE)) {
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

static volatile sig_atomic_t terminated;

static void on_signal(int number)
{
        terminated = number;
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
                if (poll(fds, 3 + n, timeout) < 0 && errno != EINTR)
                        break;
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
}

static int fail(const char *what, int r)
{
        fprintf(stderr, "npu-kernel: %s: %s\n", what, strerror(-r));
        return 1;
}

int main(int argc, char **argv)
{
        static const struct option options[] = { { "profile", required_argument, NULL, 'p' },
                                                 { "shadow", no_argument, NULL, 's' },
                                                 { "timeout-ms", required_argument, NULL, 't' },
                                                 { "ready-fd", required_argument, NULL, 'r' },
                                                 {} };
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = NPK_SOCKET };
        int c, ready_fd = -1, r;
        pthread_t firmware;

        kernel.profile = &profiles[TDM_ARRAY_SIZE(profiles) - 1];
        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
                if (c == 'p') {
                        kernel.profile = NULL;
                        for (size_t i = 0; i < TDM_ARRAY_SIZE(profiles); i++)
                                if (strcmp(profiles[i].name, optarg) == 0)
                                        kernel.profile = &profiles[i];
                } else if (c == 's') {
                        kernel.shadow = true;
                } else if (c == 't') {
                        kernel.timeout_ms = (unsigned)atoi(optarg);
                } else if (c == 'r') {
                        ready_fd = atoi(optarg);
                } else {
                        return 2;
                }
        if (!kernel.profile || optind + 1 != argc) {
                fprintf(stderr, "usage: npu-kernel [--profile first|import|userptr] [--shadow] [--timeout-ms N] "
                                "[--ready-fd N] DIRECTORY\n");
                return 2;
        }
        signal(SIGPIPE, SIG_IGN);
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
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
