/* libmicrohttpd's epoll descriptor is one source of the loop among others; MHD_run() is called when it is readable,
 * when a suspended connection was resumed, and when libmicrohttpd's own timeouts want it.
 *
 * Its idle timeout starts again with every byte, so a client that sends one byte a second would hold a connection for
 * ever. The tick ends connections by the time that a whole request, or the next one, may take. */
#include "http-gateway/server.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "common/background.h"
#include "common/log.h"
#include "common/notify.h"
#include "http-gateway/backend.h"
#include "http-gateway/exchange.h"
#include "http-gateway/generation.h"
#include "http-gateway/guard.h"
#include "http-gateway/head.h"
#include "http-gateway/listen.h"

#define TICK_NS TDM_NSEC_PER_SEC
#define LATE_NS (100 * TDM_NSEC_PER_MSEC) /* a tick that is later than this is late */
#define MHD_IDLE_S 300u
#define STALLED_NS (60 * TDM_NSEC_PER_SEC) /* a client that reads nothing of what waits for it */
#define UNREAD_NS (10 * TDM_NSEC_PER_SEC)  /* an answer that does not move for so long waits for its client */
#define TRIM_BYTES ((uint64_t)16 << 20)    /* when the held memory has shrunk by this, the system gets it back */
#define DRAIN_NS (8 * TDM_NSEC_PER_SEC)
#define HALF_NS TDM_NSEC_PER_SEC /* a request that is not whole after that is slow, and makes room for others */
#define N_READERS 2u
#define SPARE_DESCRIPTORS 64u
#define WANTED_DESCRIPTORS (4 * MAX_CONNECTIONS)

/* ---- the head of a request ---- */

/* ---- room ---- */

bool server_make_room(struct server *s, const struct owner *owner, const struct exchange *asker)
{
        uint64_t now_ns = tdm_now_ns();
        struct exchange *x, *found = NULL;

        tdm_list_for_each(x, &s->exchanges, struct exchange, node) {
                if (x == asker || !x->counted || x->ran || now_ns - x->begun_ns < HALF_NS ||
                    (owner && x->owner != owner))
                        continue;
                if (!found || x->owner->n_requests > found->owner->n_requests ||
                    (x->owner == found->owner && x->begun_ns < found->begun_ns))
                        found = x;
        }
        if (!found)
                return false;
        tdm_log_info("%s: half a request, which makes room for another", found->id);
        exchange_abandon(found);
        return true;
}

static int begin_request(struct exchange *x, struct failure *f)
{
        struct failure why;

        while (owner_begin_request(x->owner, &why) != 0)
                if (!server_make_room(x->server, why.status == 429 ? x->owner : NULL, x)) {
                        *f = why;
                        return f->status;
                }
        x->counted = true;
        return 0;
}

static void answer_options(struct exchange *x, const struct head *h, int status)
{
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ";
        struct buffer nothing = { 0 };

        if (h->wants_headers && strspn(h->wants_headers, allowed) == strlen(h->wants_headers) &&
            strlen(h->wants_headers) < sizeof(x->allow_headers))
                memcpy(x->allow_headers, h->wants_headers, strlen(h->wants_headers) + 1);
        exchange_answer_text(x, status, NULL, &nothing);
}

/* Guard first, then framing, then what is asked for and by whom. Sets the exchange's failure, or its answer. */
static void check_head(struct exchange *x, const char *url, const char *method, const char *version, struct head *h)
{
        struct server *s = x->server;
        struct failure *f = &x->failure;
        struct sockaddr_storage local = { 0 };
        socklen_t size = sizeof(local);

        if (getsockname(x->peer->fd, (struct sockaddr *)&local, &size) < 0)
                local.ss_family = AF_UNSPEC;
        if (strcmp(method, "HEAD") == 0)
                method = "GET";
        if (head_check_framing(h, version, f) != 0) {
                x->must_close = true;
                return;
        }
        url = head_take_target(h, url);
        x->route = routes_find(method, url, &x->dialect, x->arg, x->allow);
        if (guard_check_host(s->config, &local, h->host, f) != 0) {
                s->metrics.refused_hosts++;
                return;
        }
        if (h->origin && guard_check_origin(s->config, &local, h->origin, f) != 0) {
                s->metrics.refused_origins++;
                return;
        }
        if (h->origin)
                snprintf(x->origin, sizeof(x->origin), "%.255s", h->origin);
        if (strcmp(url, "*") == 0 && strcmp(method, "OPTIONS") == 0) { /* of the server, not of a path */
                snprintf(x->allow, sizeof(x->allow), "GET, HEAD, POST, DELETE, OPTIONS");
                answer_options(x, h, 200);
                return;
        }
        if (!x->route && !x->allow[0]) {
                failure_set(
                        f, 404, "not_found", NULL,
                        "there is no %.200s here; there are POST /v1/chat/completions, /v1/completions, "
                        "/v1/responses, /v1/embeddings (OpenAI's API), /v1/messages (Anthropic's), /api/chat, "
                        "/api/generate, /api/embed (Ollama's), GET /v1/models, /api/tags, /health, /metrics and others",
                        url);
                return;
        }
        if (strcmp(method, "OPTIONS") == 0) {
                answer_options(x, h, 204);
                return;
        }
        if (!x->route) {
                failure_set(f, 405, "method_not_allowed", NULL, "%.20s is not taken here, but %s", method, x->allow);
                return;
        }
        if (!x->route->without_key && guard_check_key(s->config, h->authorization, h->x_api_key, &x->label, f) != 0) {
                s->metrics.refused_keys++;
                return;
        }
        x->owner = x->label ? owners_get_label(&s->owners, x->label) : owner_ref(x->peer->network);
        if (!x->owner) {
                failure_set(f, 503, "no_memory", NULL, "no memory for this request");
                return;
        }
        if (s->draining) {
                failure_set(f, 503, "draining", NULL, "this server is shutting down");
                f->retry_ms = 1000;
                return;
        }
        if (h->content_encoding && *h->content_encoding && strcasecmp(h->content_encoding, "identity") != 0) {
                failure_set(f, 415, "unsupported_encoding", NULL,
                            "the body's Content-Encoding is %.40s; send it as it is, without one", h->content_encoding);
                return;
        }
        if (begin_request(x, f) != 0)
                return;
        if (h->length && strtoull(h->length, NULL, 10) > exchange_most_body(x))
                failure_set(f, 413, "request_too_large", NULL, "a body may have at most %zu bytes",
                            exchange_most_body(x));
}

/* An answer that is known before the body has come waits for it: closing with unread bytes would reset the connection,
 * and the client might never read the answer. Not where the end of the body is in doubt, where it is too long to be
 * worth it, or where the client asked before sending it. */
static bool may_wait_for_body(const struct exchange *x, const struct head *h)
{
        return !x->must_close && !h->expect && (!h->length || strtoull(h->length, NULL, 10) <= MAX_DRAIN_BYTES);
}

static enum MHD_Result on_request(void *userdata, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **request)
{
        struct exchange *x = *request;
        struct head head = { 0 };

        if (x) {
                if (*size > 0) {
                        exchange_take_body(x, data, *size);
                        *size = 0;
                        return x->broken ? MHD_NO : MHD_YES;
                }
                return exchange_continue(x);
        }
        {
                struct server *s = userdata;
                const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
                struct peer *peer = info ? info->socket_context : NULL;

                x = peer ? exchange_new(s, peer, mhd) : NULL;
        }
        if (!x)
                return MHD_NO;
        *request = x;
        head_read(&head, mhd, method, version);
        check_head(x, url, method, version, &head);
        if (x->failure.status != 0 || x->status != 0) {
                x->discard = true;
                if (!may_wait_for_body(x, &head)) {
                        x->must_close = true;
                        return exchange_continue(x);
                }
        }
        return MHD_YES;
}

static void on_completed(void *userdata, struct MHD_Connection *mhd, void **request,
                         enum MHD_RequestTerminationCode why)
{
        exchange_free(*request);
        *request = NULL;
}

/* Since when a connection waits for its client; UINT64_MAX: it does not. */
static uint64_t waits_since(const struct peer *peer, uint64_t now_ns)
{
        const struct exchange *x = peer->exchange;

        if (!x)
                return peer->since_ns;
        if (!x->ran)
                return x->begun_ns;
        return x->queued && now_ns - x->moved_ns > UNREAD_NS ? x->moved_ns : UINT64_MAX;
}

/* Ends one connection that waits for its client: of the network that has most of them, the one that waits longest.
 * network: only of this one; NULL: any. The newest waits too, so there is always one. */
static void end_one(struct server *s, const struct owner *network)
{
        uint64_t now_ns = tdm_now_ns(), since_ns = UINT64_MAX;
        struct peer *peer, *found = NULL;

        tdm_list_for_each(peer, &s->peers, struct peer, node) {
                uint64_t waits_ns = waits_since(peer, now_ns);

                if (peer->leaving || waits_ns == UINT64_MAX || (network && peer->network != network))
                        continue;
                if (!found || peer->network->n_peers > found->network->n_peers ||
                    (peer->network->n_peers == found->network->n_peers && waits_ns < since_ns)) {
                        found = peer;
                        since_ns = waits_ns;
                }
        }
        if (!found)
                return;
        found->leaving = true;
        found->network->n_peers--;
        s->n_leaving++;
        if (found->exchange)
                exchange_break(found->exchange);
        else
                (void)shutdown(found->fd, SHUT_RDWR);
}

/* Descriptors are given out from the lowest free one on, so the newest tells how many are left. Some have to be: each
 * request needs a connection to tandemd. */
static bool are_descriptors_short(int newest)
{
        struct rlimit limit;

        return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
               (rlim_t)newest + TDM_MIN((rlim_t)SPARE_DESCRIPTORS, limit.rlim_cur / 4) >= limit.rlim_cur;
}

/* Where none is left, nothing was accepted either, and no new connection makes room. */
static void free_descriptors(struct server *s)
{
        int probe = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

        if (probe >= 0)
                close(probe);
        else
                for (unsigned i = 0; i < SPARE_DESCRIPTORS / 4; i++)
                        end_one(s, NULL);
}

static void on_connection(void *userdata, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
        struct server *s = userdata;
        struct peer *peer = *context;

        if (what == MHD_CONNECTION_NOTIFY_STARTED) {
                /* libmicrohttpd may answer the second call in the memory of the first. */
                const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
                int fd = info ? info->connect_fd : -1;
                struct owner *network;

                info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
                network = owners_get_network(&s->owners, info ? info->client_addr : NULL);
                peer = fd >= 0 && network ? calloc(1, sizeof(*peer)) : NULL;
                if (!peer) {
                        owner_unref(network);
                        return; /* its request is refused */
                }
                *peer = (struct peer){ .server = s, .fd = fd, .since_ns = tdm_now_ns(), .network = network };
                network->n_peers++;
                tdm_list_append(&s->peers, &peer->node);
                s->n_peers++;
                *context = peer;
                if (network->n_peers > MAX_CONNECTIONS_PER_NETWORK)
                        end_one(s, network);
                else if (s->n_peers - s->n_leaving > CROWDED_CONNECTIONS || are_descriptors_short(peer->fd))
                        end_one(s, NULL);
        } else if (peer) {
                if (peer->exchange)
                        peer->exchange->peer = NULL;
                tdm_list_remove(&peer->node);
                s->n_peers--;
                if (peer->leaving)
                        s->n_leaving--;
                else
                        peer->network->n_peers--;
                owner_unref(peer->network);
                free(peer);
                *context = NULL;
        }
}

/* ---- the loop ---- */

static void run_mhd(struct server *s)
{
        MHD_UNSIGNED_LONG_LONG wait_ms;

        if (MHD_run(s->mhd) != MHD_YES)
                tdm_log_warning("libmicrohttpd failed to run");
        if (MHD_get_timeout(s->mhd, &wait_ms) != MHD_YES)
                tdm_source_arm(s->mhd_timer, 0);
        else if (wait_ms == 0)
                tdm_source_schedule(s->run_again);
        else
                tdm_source_arm(s->mhd_timer, tdm_now_ns() + wait_ms * TDM_NSEC_PER_MSEC);
}

void server_run_soon(struct server *s)
{
        tdm_source_schedule(s->run_again);
}

static int on_mhd_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        run_mhd(userdata);
        return 0;
}

static int on_mhd_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        run_mhd(userdata);
        return 0;
}

static int on_run_again(struct tdm_source *source, void *userdata)
{
        run_mhd(userdata);
        return 0;
}

void server_forgive(struct server *s, uint64_t now_ns)
{
        uint64_t late_ns = s->ticked_ns > 0 && now_ns > s->ticked_ns + TICK_NS ? now_ns - s->ticked_ns - TICK_NS : 0;
        struct exchange *x;
        struct peer *peer;

        s->ticked_ns = now_ns;
        if (late_ns < LATE_NS)
                return;
        tdm_list_for_each(x, &s->exchanges, struct exchange, node) {
                if (!x->ran) /* later it tells how long the client waited */
                        x->begun_ns = TDM_MIN(x->begun_ns + late_ns, now_ns);
                x->moved_ns = TDM_MIN(x->moved_ns + late_ns, now_ns);
                if (x->generation)
                        generation_forgive(x->generation, late_ns, now_ns);
        }
        tdm_list_for_each(peer, &s->peers, struct peer, node)
                peer->since_ns = TDM_MIN(peer->since_ns + late_ns, now_ns);
}

static void tick_exchange(struct exchange *x, uint64_t now_ns)
{
        const struct config *c = x->server->config;

        if (!x->ran) {
                if (now_ns - x->begun_ns > c->request_timeout_s * TDM_NSEC_PER_SEC)
                        exchange_break(x);
                return;
        }
        if (x->streaming && buffer_left(&x->out) == 0)
                x->moved_ns = now_ns;
        if (x->queued && now_ns - x->moved_ns > (x->streaming ? STALLED_NS : 10 * STALLED_NS)) {
                tdm_log_info("%s: the client does not read; its connection is closed", x->id);
                exchange_break(x);
                return;
        }
        if (x->generation)
                generation_tick(x->generation, now_ns);
}

/* Nothing more will come. libmicrohttpd waits for an edge of epoll, and there is none when the end comes together with
 * the last bytes. */
static bool has_left(const struct peer *peer)
{
        struct pollfd p = { .fd = peer->fd, .events = POLLRDHUP };
        int unread = 0;

        return poll(&p, 1, 0) == 1 && p.revents & (POLLRDHUP | POLLHUP | POLLERR) &&
               ioctl(peer->fd, FIONREAD, &unread) == 0 && unread == 0;
}

static int on_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct server *s = userdata;
        struct exchange *x;
        struct peer *peer;

        server_forgive(s, now_ns);
        tdm_list_for_each(x, &s->exchanges, struct exchange, node)
                tick_exchange(x, now_ns);
        tdm_list_for_each(peer, &s->peers, struct peer, node) {
                bool idle = !peer->exchange;

                if ((idle && (s->draining || now_ns - peer->since_ns > s->config->idle_timeout_s * TDM_NSEC_PER_SEC)) ||
                    ((idle || !peer->exchange->ran) && has_left(peer)))
                        (void)shutdown(peer->fd, SHUT_RDWR);
        }
        backend_tick(s->backend);
        free_descriptors(s);
        /* It stops listening when accept() finds no descriptor or memory, and begins again in a later run. */
        server_run_soon(s);
        if (s->owners.peak_bytes - s->owners.held_bytes > TRIM_BYTES) {
                s->owners.peak_bytes = s->owners.held_bytes;
                (void)malloc_trim(0); /* many small values leave holes in the heap */
        }
        if (s->draining && (s->n_exchanges == 0 || now_ns > s->drain_until_ns))
                tdm_loop_exit(s->loop, 0);
        tdm_source_arm(source, now_ns + TICK_NS);
        return 0;
}

static int on_signal(struct tdm_source *source, int signo, void *userdata)
{
        struct server *s = userdata;
        MHD_socket fd;

        if (s->draining)
                return 0;
        tdm_log_info("leaving; %u requests are under way", s->n_exchanges);
        tdm_notify("STOPPING=1");
        s->draining = true;
        s->drain_until_ns = tdm_now_ns() + DRAIN_NS;
        fd = MHD_quiesce_daemon(s->mhd);
        if (fd != MHD_INVALID_SOCKET)
                close(fd);
        if (s->n_exchanges == 0)
                tdm_loop_exit(s->loop, 0);
        return 0;
}

static void log_mhd(void *userdata, const char *fmt, va_list args)
{
        char line[512];

        if (!tdm_log_enabled(TDM_LOG_DEBUG) || vsnprintf(line, sizeof(line), fmt, args) < 0)
                return;
        line[strcspn(line, "\n")] = '\0';
        tdm_log_debug("libmicrohttpd: %s", line);
}

/* ---- its life ---- */

static int start_mhd(struct server *s, int fd, struct tdm_error *err)
{
        const union MHD_DaemonInfo *info;
        int r;

        s->mhd = MHD_start_daemon(
                MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, s,
                MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                MAX_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
                MHD_IDLE_S, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
        if (!s->mhd)
                return tdm_error_set(err, TDM_E_INTERNAL, "libmicrohttpd does not start on %s", s->config->listen);
        info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
        if (!info || info->epoll_fd < 0)
                return tdm_error_set(err, TDM_E_INTERNAL, "libmicrohttpd was built without epoll");
        r = tdm_loop_add_io(s->loop, info->epoll_fd, EPOLLIN, on_mhd_io, s, &s->mhd_io);
        return r < 0 ? tdm_error_set(err, r, "cannot watch connections: %s", strerror(-r)) : 0;
}

static int server_start(struct server *s, struct tdm_error *err)
{
        int r = tdm_loop_add_timer(s->loop, on_tick, s, &s->tick);

        if (r == 0)
                r = tdm_loop_add_timer(s->loop, on_mhd_timer, s, &s->mhd_timer);
        if (r == 0)
                r = tdm_loop_add_defer(s->loop, on_run_again, s, &s->run_again);
        if (r == 0)
                r = tdm_loop_add_signal(s->loop, SIGTERM, on_signal, s, &s->sigterm);
        if (r == 0)
                r = tdm_loop_add_signal(s->loop, SIGINT, on_signal, s, &s->sigint);
        if (r == 0)
                r = backend_new(&s->backend, s->loop, s->config->socket);
        if (r == 0)
                r = tdm_background_new_pool(&s->readers, s->loop, N_READERS);
        if (r < 0)
                return tdm_error_set(err, r, "cannot start the server's loop: %s", strerror(-r));
        s->ticked_ns = tdm_now_ns();
        tdm_source_arm(s->tick, s->ticked_ns + TICK_NS);
        return 0;
}

static void server_stop(struct server *s, int r)
{
        struct exchange *x;

        tdm_list_for_each(x, &s->exchanges, struct exchange, node)
                exchange_break(x);
        if (s->mhd) {
                /* What was resumed has to be seen as such: libmicrohttpd aborts on suspended connections. */
                (void)MHD_run(s->mhd);
                (void)MHD_run(s->mhd);
                MHD_stop_daemon(s->mhd);
        }
        /* A load takes as long as it takes, and only its own thread may touch its connection. */
        if (r == 0 && backend_n_asks(s->backend) > 0) {
                tdm_log_info("ended without the answers of tandemd to %u questions", backend_n_asks(s->backend));
                _exit(0);
        }
        tdm_background_destroyp(&s->readers);
        backend_free(s->backend);
        tdm_source_destroyp(&s->mhd_io);
        tdm_source_destroyp(&s->mhd_timer);
        tdm_source_destroyp(&s->run_again);
        tdm_source_destroyp(&s->tick);
        tdm_source_destroyp(&s->sigterm);
        tdm_source_destroyp(&s->sigint);
        tdm_loop_destroy(s->loop);
}

/* The usual limit is less than the connections that are taken. */
static void raise_descriptors(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= WANTED_DESCRIPTORS)
                return;
        limit.rlim_cur = TDM_MIN((rlim_t)WANTED_DESCRIPTORS, limit.rlim_max);
        (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int server_run(struct config *config, struct tdm_error *err)
{
        struct server s = { .config = config };
        _cleanup_(closep) int fd = -1;
        int r;

        owners_init(&s.owners);
        tdm_list_init(&s.peers);
        tdm_list_init(&s.exchanges);
        (void)signal(SIGPIPE, SIG_IGN);
        raise_descriptors();
        r = listen_open(config, &fd, err);
        if (r == 0)
                r = tdm_loop_new(&s.loop, err);
        if (r != 0)
                return r;
        r = server_start(&s, err);
        if (r == 0)
                r = start_mhd(&s, fd, err);
        if (r == 0) {
                tdm_log_info("answering on %s, port %u%s", config->listen, listen_port(fd),
                             config->n_keys > 0 ? ", to those with a key" : "");
                steal_fd(&fd); /* libmicrohttpd's */
                tdm_notify("READY=1");
                r = tdm_loop_run(s.loop);
                if (r < 0)
                        tdm_error_set(err, r, "the server's loop failed: %s", strerror(-r));
        }
        server_stop(&s, r);
        return r;
}
