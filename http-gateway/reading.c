/* Two tasks: one counts what the values will take, the loop charges that, and the other one makes them. */
#include "http-gateway/reading.h"

#include "common/background.h"
#include "common/log.h"

#define HERE_BYTES ((size_t)16 << 10) /* a body that the loop reads itself, in less than a millisecond */
#define MAX_TOLD 64u                  /* names of unknown members that the log has told */

struct reading {
        struct exchange *x; /* NULL: it has gone */
        _Atomic bool forgotten;
        struct server *server;
        const struct reader *reader;
        const char *path;
        struct owner *owner; /* is charged with … */
        uint64_t held_bytes;
        struct buffer body;
        size_t bytes; /* what the values take */
        struct generation_request *request;
        struct failure failure;
};

/* ---- on a thread ---- */

static void count_body(void *task)
{
        struct reading *rd = task;

        if (!rd->forgotten)
                json_count(rd->body.data, rd->body.size, &rd->bytes, &rd->failure);
}

static int take_body(struct reading *rd, struct failure *f)
{
        struct exact numbers = { 0 };
        json_t *json = json_parse_object(rd->body.data, rd->body.size, &numbers, f);

        if (!json) {
                exact_free(&numbers);
                return f->status;
        }
        rd->request = generation_request_new(json, &numbers);
        if (!rd->request)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        rd->request->path = rd->path;
        rd->request->bytes = rd->bytes;
        if (rd->reader->table && params_check(rd->reader->table, rd->request->json, &rd->request->warnings, f) != 0)
                return f->status;
        rd->request->stream = json_get_bool(rd->request->json, "stream", false);
        rd->reader->take(rd->request, f);
        rd->bytes = rd->request->bytes; /* of pictures less is left */
        return f->status;
}

static void read_body(void *task)
{
        struct reading *rd = task;

        if (!rd->forgotten)
                take_body(rd, &rd->failure);
        buffer_free(&rd->body);
}

static void free_request(void *task)
{
        generation_request_free(task);
}

/* ---- on the loop ---- */

static void on_freed(void *task, bool ran)
{
        if (!ran)
                generation_request_free(task);
}

void reading_free_request(struct server *s, struct generation_request *r)
{
        if (!r)
                return;
        if (r->bytes <= HERE_BYTES * 16 || tdm_background_add(s->readers, free_request, on_freed, r) < 0)
                generation_request_free(r);
}

static void free_reading(struct reading *rd)
{
        reading_free_request(rd->server, rd->request);
        buffer_free(&rd->body);
        if (rd->held_bytes > 0)
                owner_release(rd->owner, rd->held_bytes);
        owner_unref(rd->owner);
        free(rd);
}

void reading_forget(struct reading *rd)
{
        rd->x = NULL;
        rd->forgotten = true;
}

/* Names of members that no table knows: in the answer's head, and once for each in the log. */
static void exchange_warn(struct exchange *x, const struct generation_request *r)
{
        static char told[MAX_TOLD][PARAMS_NAME_BYTES];
        static unsigned n_told;

        if (!r->warnings.text[0])
                return;
        snprintf(x->warning, sizeof(x->warning), "%s", r->warnings.text);
        for (unsigned i = 0; i < r->warnings.n; i++) {
                unsigned k = 0;

                while (k < n_told && strcmp(told[k], r->warnings.names[i]) != 0)
                        k++;
                if (k < n_told || n_told == MAX_TOLD)
                        continue;
                memcpy(told[n_told++], r->warnings.names[i], PARAMS_NAME_BYTES);
                tdm_log_info("'%s' of %s is not used here; requests that have it are answered without it (said once)",
                             r->warnings.names[i], x->route->path);
        }
}

static void answer_reading(struct exchange *x, struct reading *rd)
{
        /* What the values take is the exchange's from here on; the body has gone. */
        x->held_bytes += rd->held_bytes;
        rd->held_bytes = 0;
        if (rd->request)
                exchange_warn(x, rd->request);
        if (rd->failure.status != 0)
                exchange_fail(x, &rd->failure);
        else
                rd->reader->start(x, steal_ptr(&rd->request));
}

static void on_read(void *task, bool ran)
{
        struct reading *rd = task;
        struct exchange *x = rd->x;

        if (rd->held_bytes > rd->bytes) { /* the body's */
                owner_release(rd->owner, rd->held_bytes - rd->bytes);
                rd->held_bytes = rd->bytes;
        }
        if (x) {
                x->reading = NULL;
                if (ran)
                        answer_reading(x, rd);
        }
        free_reading(rd);
}

static int reading_hold(struct reading *rd, struct failure *f)
{
        struct exchange *x = rd->x;

        /* By way of the exchange, which may make room. */
        if (exchange_hold(x, rd->bytes, f) != 0)
                return f->status;
        x->held_bytes -= rd->bytes;
        rd->held_bytes += rd->bytes;
        return 0;
}

static void on_counted(void *task, bool ran)
{
        struct reading *rd = task;
        struct failure *f = &rd->failure;

        if (ran && rd->x && f->status == 0 && reading_hold(rd, f) == 0) {
                if (tdm_background_add_for(rd->server->readers, rd->owner->id, read_body, on_read, rd) == 0)
                        return;
                failure_set(f, 503, "busy", NULL, "too many requests wait to be read here; try again");
                f->retry_ms = 1000;
        }
        rd->bytes = 0;
        on_read(rd, ran);
}

/* A small body: all of it at once. */
static void read_here(struct reading *rd)
{
        count_body(rd);
        if (rd->failure.status == 0 && reading_hold(rd, &rd->failure) == 0)
                read_body(rd);
        else
                rd->bytes = 0;
        on_read(rd, true);
}

void exchange_read(struct exchange *x, const struct reader *reader)
{
        struct reading *rd = calloc(1, sizeof(*rd));
        struct failure f;

        if (!rd) {
                failure_set(&f, 503, "no_memory", NULL, "no memory for this request");
                exchange_fail(x, &f);
                return;
        }
        *rd = (struct reading){ .x = x,
                                .server = x->server,
                                .reader = reader,
                                .path = x->route->path,
                                .owner = owner_ref(x->owner),
                                .held_bytes = x->body.size,
                                .body = x->body };
        x->held_bytes -= x->body.size;
        x->body = (struct buffer){ 0 };
        x->reading = rd;
        if (rd->body.size <= HERE_BYTES) {
                read_here(rd);
                return;
        }
        if (tdm_background_add_for(x->server->readers, rd->owner->id, count_body, on_counted, rd) < 0) {
                failure_set(&rd->failure, 503, "busy", NULL, "too many requests wait to be read here; try again");
                rd->failure.retry_ms = 1000;
                on_read(rd, true);
        }
}
