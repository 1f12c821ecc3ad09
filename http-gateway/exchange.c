/* Suspending is where the traps are. A suspended connection is not watched by libmicrohttpd, so its socket is polled
 * here for EPOLLRDHUP: a client that leaves while its prompt is read is seen. A client that shuts down its sending side
 * alone counts as gone, as everywhere in HTTP. */
#include "http-gateway/exchange.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include "common/log.h"
#include "http-gateway/backend.h"
#include "http-gateway/reading.h"
#include "http-gateway/takeover.h"

#define STREAM_BLOCK_BYTES (16u << 10)

struct exchange *exchange_new(struct server *s, struct peer *peer, struct MHD_Connection *mhd)
{
        struct exchange *x = calloc(1, sizeof(*x));

        if (!x)
                return NULL;
        x->server = s;
        x->peer = peer;
        x->mhd = mhd;
        x->begun_ns = x->moved_ns = tdm_now_ns();
        snprintf(x->id, sizeof(x->id), "req_%08llx%08llx", (unsigned long long)(x->begun_ns & 0xffffffff),
                 (unsigned long long)++s->next_id);
        tdm_list_append(&s->exchanges, &x->node);
        s->n_exchanges++;
        peer->exchange = x;
        return x;
}

int exchange_hold(struct exchange *x, uint64_t bytes, struct failure *f)
{
        struct failure why;

        while (owner_hold(x->owner, bytes, &why) != 0) {
                if (server_make_room(x->server, why.status == 429 ? x->owner : NULL, x))
                        continue;
                *f = why;
                if (x->held_bytes > x->owner->held_bytes / 2)
                        f->retry_ms = 0; /* it is too large by itself */
                return f->status;
        }
        x->held_bytes += bytes;
        return 0;
}

void exchange_release(struct exchange *x, uint64_t bytes)
{
        if (bytes > 0)
                owner_release(x->owner, bytes);
        x->held_bytes -= bytes;
}

static void drop_body(struct exchange *x)
{
        exchange_release(x, x->body.size);
        buffer_free(&x->body);
}

static void drop_work(struct exchange *x)
{
        generation_free(steal_ptr(&x->generation));
        if (x->ask)
                backend_forget(steal_ptr(&x->ask));
        if (x->reading)
                reading_forget(steal_ptr(&x->reading));
}

void exchange_free(struct exchange *x)
{
        if (!x)
                return;
        if (x->status > 0)
                x->server->metrics.by_class[TDM_MIN(x->status / 100, 5)]++;
        drop_work(x);
        tdm_source_destroyp(&x->hang_up);
        drop_body(x);
        buffer_free(&x->out);
        if (x->free_state)
                x->free_state(x->state);
        exchange_release(x, x->held_bytes);
        if (x->counted)
                owner_end_request(x->owner);
        owner_unref(x->owner);
        tdm_list_remove(&x->node);
        x->server->n_exchanges--;
        if (x->peer) {
                x->peer->exchange = NULL;
                x->peer->since_ns = tdm_now_ns();
        }
        free(x);
}

/* ---- suspending ---- */

static int on_hang_up(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct exchange *x = userdata;

        tdm_log_debug("%s: the client has left", x->id);
        x->server->metrics.hang_ups++;
        exchange_break(x);
        return 0;
}

static void exchange_suspend(struct exchange *x)
{
        if (x->suspended)
                return;
        MHD_suspend_connection(x->mhd);
        x->suspended = true;
        if (!x->hang_up && tdm_loop_add_io(x->server->loop, x->peer->fd, EPOLLRDHUP, on_hang_up, x, &x->hang_up) < 0)
                x->hang_up = NULL; /* a hang-up is then seen by the next byte that is sent */
}

void exchange_wake(struct exchange *x)
{
        if (!x->suspended)
                return;
        if (!x->streaming || x->stream_ended || x->broken)
                tdm_source_destroyp(&x->hang_up); /* a stream keeps it: it is suspended again after each token */
        x->suspended = false;
        MHD_resume_connection(x->mhd);
        server_run_soon(x->server);
}

void exchange_break(struct exchange *x)
{
        x->broken = true;
        tdm_source_destroyp(&x->hang_up);
        drop_work(x);
        if (x->peer)
                (void)shutdown(x->peer->fd, SHUT_RDWR);
        exchange_wake(x);
}

void exchange_abandon(struct exchange *x)
{
        exchange_break(x);
        drop_body(x);
        if (x->counted)
                owner_end_request(x->owner);
        x->counted = false;
}

/* ---- the body ---- */

/* A peer sends a whole request of its client's, and the tokens that the client has beside it. */
size_t exchange_most_body(const struct exchange *x)
{
        bool of_peer = x->route && strcmp(x->route->path, TAKEOVER_PATH) == 0;

        return MAX_BODY_BYTES + (of_peer ? PEERS_PART_BYTES : 0);
}

void exchange_take_body(struct exchange *x, const char *data, size_t size)
{
        x->body_seen += size;
        if (x->discard) {
                if (x->body_seen > MAX_DRAIN_BYTES)
                        exchange_break(x);
                return;
        }
        if (x->body.size + size > exchange_most_body(x))
                failure_set(&x->failure, 413, "request_too_large", NULL, "a body may have at most %zu bytes",
                            exchange_most_body(x));
        else if (exchange_hold(x, size, &x->failure) == 0) {
                buffer_add(&x->body, data, size);
                if (!x->body.failed)
                        return;
                exchange_release(x, size);
                failure_set(&x->failure, 503, "no_memory", NULL, "no memory for the request's body");
        }
        drop_body(x);
        x->discard = true;
}

/* ---- answers ---- */

void exchange_answer_text(struct exchange *x, int status, const char *content_type, struct buffer *text)
{
        if (x->status != 0)
                return;
        buffer_free(&x->out);
        x->out = *text;
        *text = (struct buffer){ 0 };
        x->status = x->out.failed ? 500 : status;
        x->content_type = content_type;
        exchange_wake(x);
}

void exchange_answer_exact(struct exchange *x, int status, json_t *json, const struct exact *numbers)
{
        _cleanup_(buffer_free) struct buffer text = { 0 };

        exact_write(&text, numbers, json);
        json_decref(json);
        exchange_answer_text(x, status, "application/json", &text);
}

void exchange_answer_json(struct exchange *x, int status, json_t *json)
{
        _cleanup_(buffer_free) struct buffer text = { 0 };

        json_write(&text, json);
        exchange_answer_text(x, status, "application/json", &text);
}

void exchange_fail(struct exchange *x, const struct failure *f)
{
        if (x->status != 0)
                return;
        if (f != &x->failure)
                x->failure = *f;
        exchange_answer_json(x, f->status, failure_json(f, x->dialect, x->id));
}

void exchange_begin_stream(struct exchange *x, const char *content_type)
{
        if (x->status != 0)
                return;
        x->status = 200;
        x->content_type = content_type;
        x->streaming = true;
        exchange_wake(x);
}

void exchange_end_stream(struct exchange *x)
{
        x->stream_ended = true;
        tdm_source_destroyp(&x->hang_up);
        exchange_wake(x);
}

static ssize_t read_stream(void *userdata, uint64_t position, char *to, size_t max)
{
        struct exchange *x = userdata;
        size_t n;

        if (x->broken || x->out.failed)
                return MHD_CONTENT_READER_END_WITH_ERROR;
        n = buffer_take(&x->out, to, max);
        if (n > 0) {
                x->moved_ns = tdm_now_ns();
                if (x->generation)
                        generation_drained(x->generation);
                return (ssize_t)n;
        }
        if (x->stream_ended)
                return MHD_CONTENT_READER_END_OF_STREAM;
        exchange_suspend(x);
        return 0;
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
        if (MHD_add_response_header(response, name, value) != MHD_YES)
                tdm_log_debug("cannot add the header %s", name);
}

static void add_headers(struct exchange *x, struct MHD_Response *response)
{
        char number[32];

        if (x->content_type)
                add_header(response, "Content-Type", x->content_type);
        if (x->policy[0]) {
                add_header(response, "Content-Security-Policy", x->policy);
                add_header(response, "Referrer-Policy", "no-referrer");
                add_header(response, "Cache-Control", "no-store");
                add_header(response, "Vary", "Accept");
        }
        add_header(response, "X-Content-Type-Options", "nosniff");
        add_header(response, x->dialect == DIALECT_ANTHROPIC ? "request-id" : "x-request-id", x->id);
        if (x->streaming) {
                add_header(response, "Cache-Control", "no-cache");
                add_header(response, "X-Accel-Buffering", "no");
        }
        if (x->origin[0]) {
                add_header(response, "Access-Control-Allow-Origin", x->origin);
                add_header(response, "Vary", "Origin");
                add_header(response, "Access-Control-Expose-Headers",
                           "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, "
                           "x-tandem-warning");
        }
        if (x->allow_headers[0])
                add_header(response, "Access-Control-Allow-Headers", x->allow_headers);
        if (x->allow[0]) {
                add_header(response, "Allow", x->allow);
                if (x->origin[0]) {
                        add_header(response, "Access-Control-Allow-Methods", x->allow);
                        add_header(response, "Access-Control-Max-Age", "600");
                }
        }
        if (x->warning[0])
                add_header(response, "x-tandem-warning", x->warning);
        if (x->failure.status == 415)
                add_header(response, "Accept-Encoding", "identity");
        if (x->failure.status == 401)
                add_header(response, "WWW-Authenticate", "Bearer");
        if (x->failure.retry_ms > 0) {
                snprintf(number, sizeof(number), "%u", TDM_DIV_UP(x->failure.retry_ms, 1000u));
                add_header(response, "Retry-After", number);
                snprintf(number, sizeof(number), "%u", x->failure.retry_ms);
                add_header(response, "retry-after-ms", number);
        }
        if (x->failure.status >= 400)
                add_header(response, "x-should-retry", x->failure.retry_ms > 0 ? "true" : "false");
        if (x->must_close || x->server->draining)
                add_header(response, "Connection", "close");
}

static enum MHD_Result queue_answer(struct exchange *x)
{
        struct MHD_Response *response;
        enum MHD_Result r;

        if (x->streaming)
                response =
                        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, x, NULL);
        else
                response = MHD_create_response_from_buffer(x->out.size, x->out.data ? x->out.data : (void *)"",
                                                           MHD_RESPMEM_PERSISTENT);
        if (!response)
                return MHD_NO;
        add_headers(x, response);
        r = MHD_queue_response(x->mhd, (unsigned)x->status, response);
        MHD_destroy_response(response);
        x->queued = r == MHD_YES;
        x->moved_ns = tdm_now_ns();
        return r;
}

/* The head and the body are there, or an answer is. */
enum MHD_Result exchange_continue(struct exchange *x)
{
        if (x->broken)
                return MHD_NO;
        if (!x->ran) {
                x->ran = true;
                x->begun_ns = x->moved_ns = tdm_now_ns();
                if (x->failure.status != 0)
                        exchange_fail(x, &x->failure);
                else if (x->status == 0)
                        x->route->run(x);
        }
        if (x->broken)
                return MHD_NO;
        if (x->status != 0)
                return queue_answer(x);
        exchange_suspend(x);
        return MHD_YES;
}
