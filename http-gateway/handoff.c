/* The answer comes without a length and ends with the connection. Its head and each line have a limit. */
#include "http-gateway/handoff.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "common/log.h"

#define MAX_HEAD_BYTES ((size_t)16 << 10)
#define MAX_LINE_BYTES ((size_t)1 << 20)
#define READ_BYTES 16384u
#define CONNECT_NS (2 * TDM_NSEC_PER_SEC)
#define SILENT_NS (15 * TDM_NSEC_PER_SEC) /* a peer says something each second, also while it reads a prompt */

struct handoff {
        struct exchange *x;
        struct choice *c;
        handoff_fn told;
        struct buffer body;
        unsigned next; /* peer of the configuration */
        const struct peer_address *peer;
        int fd;
        struct tdm_source *io;
        struct buffer out, in;
        bool connected, head_read, paused;
        uint64_t heard_ns;
        bool dead; /* freed while a callback runs */
        unsigned depth;
};

static void hang_up(struct handoff *h)
{
        tdm_source_destroyp(&h->io);
        closep(&h->fd);
        buffer_free(&h->out);
        buffer_free(&h->in);
        h->connected = h->head_read = false;
}

static int on_io(struct tdm_source *source, int fd, uint32_t events, void *userdata);

static int peer_call(struct handoff *h, const struct peer_address *peer)
{
        int r;

        hang_up(h);
        h->peer = peer;
        h->heard_ns = tdm_now_ns();
        buffer_printf(&h->out,
                      "POST " TAKEOVER_PATH " HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\n"
                      "Content-Length: %zu\r\n%s%s%s\r\n",
                      peer->name, h->body.size, peer->key[0] ? "Authorization: Bearer " : "", peer->key,
                      peer->key[0] ? "\r\n" : "");
        buffer_add(&h->out, h->body.data, h->body.size);
        if (h->out.failed)
                return -ENOMEM;
        h->fd = socket(peer->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (h->fd < 0)
                return -errno;
        if (connect(h->fd, (const struct sockaddr *)&peer->address, peer->address_size) < 0 && errno != EINPROGRESS)
                return -errno;
        r = tdm_loop_add_io(h->x->server->loop, h->fd, EPOLLOUT, on_io, h, &h->io);
        return r;
}

static void handoff_tell(struct handoff *h, const struct takeover_line *line, const char *why)
{
        h->depth++;
        h->told(h->c, line, why);
        h->depth--;
}

static void free_if_dead(struct handoff *h)
{
        if (!h->dead || h->depth > 0)
                return;
        hang_up(h);
        buffer_free(&h->body);
        free(h);
}

void handoff_next(struct handoff *h, const char *why)
{
        const struct config *config = h->x->server->config;
        char text[256];

        snprintf(text, sizeof(text), "%.200s", why);
        if (h->peer)
                tdm_log_info("%s: the peer %s: %s", h->x->id, h->peer->name, text);
        h->c->n_again = 0; /* the next one tells all of it anew */
        buffer_free(&h->c->tail);
        while (h->next < config->n_peers) {
                const struct peer_address *peer = &config->peers[h->next++];
                int r = peer_call(h, peer);

                if (r == 0) {
                        tdm_log_info("%s: goes on at %s", h->x->id, peer->name);
                        return;
                }
                snprintf(text, sizeof(text), "%s", strerror(-r));
                tdm_log_info("%s: the peer %s: %s", h->x->id, peer->name, text);
        }
        hang_up(h);
        handoff_tell(h, NULL, text);
        free_if_dead(h);
}

int handoff_new(struct handoff **ret, struct exchange *x, struct choice *c, json_t *request, handoff_fn told)
{
        struct handoff *h = calloc(1, sizeof(*h));
        struct failure f;

        if (!h) {
                json_decref(request);
                return -ENOMEM;
        }
        *h = (struct handoff){ .x = x, .c = c, .told = told, .fd = -1 };
        json_write(&h->body, request);
        if (h->body.failed || exchange_hold(x, 2 * h->body.size, &f) != 0) { /* it is copied when it is sent */
                buffer_free(&h->body);
                free(h);
                return -ENOMEM;
        }
        *ret = h;
        return 0;
}

void handoff_free(struct handoff *h)
{
        if (!h)
                return;
        h->dead = true;
        free_if_dead(h);
}

static int listen_to(struct handoff *h)
{
        tdm_source_destroyp(&h->io); /* a source without events would still be told that the peer hung up */
        return h->paused ? 0 : tdm_loop_add_io(h->x->server->loop, h->fd, EPOLLIN, on_io, h, &h->io);
}

/* Lines that are held stay so: with the next ones, or the end, they go on. */
void handoff_pause(struct handoff *h, bool pause)
{
        if (h->paused == pause)
                return;
        h->paused = pause;
        h->heard_ns = tdm_now_ns();
        if (h->connected && h->fd >= 0 && buffer_left(&h->out) == 0 && listen_to(h) < 0)
                h->heard_ns = 0; /* the next tick takes it for silent */
}

/* What the peer said meanwhile is not read yet. */
void handoff_forgive(struct handoff *h, uint64_t late_ns, uint64_t now_ns)
{
        h->heard_ns = TDM_MIN(h->heard_ns + late_ns, now_ns);
}

void handoff_tick(struct handoff *h, uint64_t now_ns)
{
        if (h->fd >= 0 && !h->paused && now_ns > h->heard_ns &&
            now_ns - h->heard_ns > (h->connected ? SILENT_NS : CONNECT_NS)) {
                h->depth++;
                handoff_next(h, h->connected ? "it says nothing any more" : "it does not answer");
                h->depth--;
                free_if_dead(h);
        }
}

/* ---- what comes and goes ---- */

/* False: the peer is no good. */
static bool send_some(struct handoff *h)
{
        if (!h->connected) {
                int error = 0;
                socklen_t size = sizeof(error);

                if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error != 0) {
                        errno = error ? error : errno;
                        return false;
                }
                h->connected = true;
        }
        while (buffer_left(&h->out) > 0) {
                ssize_t n = send(h->fd, h->out.data + h->out.start, buffer_left(&h->out), MSG_NOSIGNAL);

                if (n < 0)
                        return errno == EAGAIN || errno == EINTR;
                h->out.start += (size_t)n;
                h->heard_ns = tdm_now_ns(); /* it takes what is sent, which may be long over a slow network */
        }
        buffer_free(&h->out);
        return listen_to(h) == 0;
}

/* Past the head, if it is whole. NULL or what is wrong with it. */
static const char *read_head(struct handoff *h)
{
        const char *data = h->in.data + h->in.start, *end;
        size_t size = buffer_left(&h->in);
        int status = 0;

        end = memmem(data, size, "\r\n\r\n", 4);
        if (!end)
                return size > MAX_HEAD_BYTES ? "its answer has a head without an end" : NULL;
        if (sscanf(data, "HTTP/1.%*1[01] %3d ", &status) != 1)
                return "it answers in no HTTP";
        if (status != 200)
                return status == 401 ? "it does not know our key" :
                       status == 404 ? "it has not got the model, or takes no jobs of peers" :
                       status == 503 ? "it takes no jobs now" :
                                       "it refuses the job";
        h->in.start += (size_t)(end - data) + 4;
        h->head_read = true;
        return NULL;
}

/* NULL, or what is wrong. Stops where the choice has ended or its reader has enough. */
static const char *read_lines(struct handoff *h)
{
        while (!h->dead && h->fd >= 0 && !h->paused) {
                const char *data = h->in.data + h->in.start;
                size_t size = buffer_left(&h->in);
                const char *end = size > 0 ? memchr(data, '\n', size) : NULL;
                struct takeover_line line;

                if (!end)
                        return size > MAX_LINE_BYTES ? "it sends a line without an end" : NULL;
                takeover_read(&line, data, (size_t)(end - data));
                h->in.start += (size_t)(end - data) + 1;
                if (line.kind == TAKEOVER_BROKEN) {
                        takeover_line_free(&line);
                        return "its job has failed, or it sends what is no line of a job";
                }
                if (line.kind != TAKEOVER_NOTHING)
                        handoff_tell(h, &line, NULL);
                takeover_line_free(&line);
        }
        return NULL;
}

static const char *peer_receive(struct handoff *h)
{
        char data[READ_BYTES];
        const struct peer_address *peer = h->peer;
        const char *wrong = NULL;
        ssize_t n = recv(h->fd, data, sizeof(data), 0);

        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
        if (n == 0) {
                wrong = h->head_read ? read_lines(h) : NULL;
                return wrong || h->dead || h->peer != peer || h->fd < 0 || h->paused ? wrong : "it hung up";
        }
        h->heard_ns = tdm_now_ns();
        buffer_add(&h->in, data, (size_t)n);
        if (h->in.failed)
                return "no memory for its answer";
        if (!h->head_read)
                wrong = read_head(h);
        return wrong || !h->head_read ? wrong : read_lines(h);
}

static int on_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct handoff *h = userdata;
        const char *wrong = NULL;

        h->depth++;
        if (buffer_left(&h->out) > 0 || !h->connected) {
                if (!send_some(h))
                        wrong = strerror(errno);
        } else {
                wrong = peer_receive(h);
        }
        if (wrong && !h->dead && h->fd >= 0)
                handoff_next(h, wrong);
        h->depth--;
        free_if_dead(h);
        return 0;
}
