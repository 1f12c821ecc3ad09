/* See test-fake-daemon.h. Simple on purpose: a poll loop with a 5 ms tick, blocking writes, everything asserted. */
#include "client-lib/test-fake-daemon.h"
#include "common/conn.h"

#undef NDEBUG /* the checks are the point */
#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define MAX_JOBS 64
#define TEXT_TOKENS 5u   /* of a text that ends by itself */
#define MOST_TOKENS 200u /* as many as asked for, up to this many */

struct fake_job {
        bool used;
        uint32_t request;
        uint64_t id;
        char model[32];
        uint32_t index, max;
        uint64_t next_ns;
        unsigned stage;
        size_t n_chat;
};

struct conn {
        int fd;
        const struct fake_config *config;
        size_t sent;
        bool broken;
        bool left; /* the client has closed its end */
        struct fake_job jobs[MAX_JOBS];
        uint64_t next_job;
};

static void send_bytes(struct conn *c, const uint8_t *data, size_t size)
{
        size_t at = 0;

        while (at < size && !c->broken) {
                size_t n = size - at;
                uint8_t byte;
                ssize_t k;

                if (c->config->fragment)
                        n = TDM_MIN(n, c->config->fragment);
                if (c->config->cut_after != SIZE_MAX)
                        n = TDM_MIN(n, c->config->cut_after - c->sent);
                if (n == 0) {
                        c->broken = true;
                        return;
                }
                if (c->config->flip_at == c->sent) {
                        byte = data[at] ^ c->config->flip;
                        k = send(c->fd, &byte, 1, MSG_NOSIGNAL);
                } else {
                        if (c->config->flip_at > c->sent && c->config->flip_at - c->sent < n)
                                n = c->config->flip_at - c->sent;
                        k = send(c->fd, data + at, n, MSG_NOSIGNAL);
                }
                if (k < 0) {
                        c->broken = c->left = true;
                        return;
                }
                at += (size_t)k;
                c->sent += (size_t)k;
        }
}

static void send_frame(struct conn *c, const uint8_t *data, size_t size)
{
        uint8_t *frame = malloc(size + 4);

        assert(frame);
        for (unsigned i = 0; i < 4; i++)
                frame[i] = (uint8_t)(size >> (8 * i));
        memcpy(frame + 4, data, size);
        send_bytes(c, frame, size + 4);
        free(frame);
}

static void send_reply(struct conn *c, uint32_t id, Tandem__Reply *reply)
{
        uint8_t *data;
        size_t size;

        reply->id = id;
        size = tandem__reply__get_packed_size(reply);
        data = malloc(size + 1);
        assert(data);
        tandem__reply__pack(reply, data);
        send_frame(c, data, size);
        free(data);
}

#define REPLY(kind, field, message)                                                                                    \
        Tandem__Reply reply = TANDEM__REPLY__INIT;                                                                     \
        reply.kind_case = TANDEM__REPLY__KIND_##kind;                                                                  \
        reply.field = (message)

static void send_error(struct conn *c, uint32_t id, const char *code, const char *message)
{
        Tandem__Error error = TANDEM__ERROR__INIT;
        REPLY(ERROR, error, &error);

        error.code = (char *)(uintptr_t)code;
        error.message = (char *)(uintptr_t)message;
        send_reply(c, id, &reply);
}

static void send_ok(struct conn *c, uint32_t id)
{
        Tandem__Ok ok = TANDEM__OK__INIT;
        REPLY(OK, ok, &ok);

        send_reply(c, id, &reply);
}

static void send_accepted(struct conn *c, struct fake_job *job)
{
        Tandem__Accepted accepted = TANDEM__ACCEPTED__INIT;
        REPLY(ACCEPTED, accepted, &accepted);

        accepted.job = job->id;
        accepted.prompt_tokens = 23;
        accepted.model = job->model;
        accepted.max_tokens = job->max;
        send_reply(c, job->request, &reply);
}

static void send_progress(struct conn *c, struct fake_job *job, int state, uint64_t done, uint64_t total,
                          uint32_t queue)
{
        Tandem__Progress progress = TANDEM__PROGRESS__INIT;
        REPLY(PROGRESS, progress, &progress);

        progress.job = job->id;
        progress.state = (Tandem__JobState)state;
        progress.done = done;
        progress.total = total;
        progress.queue_position = queue;
        send_reply(c, job->request, &reply);
}

static void send_token(struct conn *c, struct fake_job *job, const void *text, size_t size)
{
        Tandem__Token token = TANDEM__TOKEN__INIT, *list[] = { &token };
        Tandem__Tokens tokens = TANDEM__TOKENS__INIT;
        REPLY(TOKENS, tokens, &tokens);

        token.id = 100 + job->index;
        token.text = (ProtobufCBinaryData){ .len = size, .data = (uint8_t *)(uintptr_t)text };
        token.logprob = -0.5f - (float)job->index / 10;
        tokens.job = job->id;
        tokens.index = job->index++;
        tokens.n_tokens = 1;
        tokens.tokens = list;
        send_reply(c, job->request, &reply);
}

/* Part of a call of a tool; the first one names it. */
static void send_call_token(struct conn *c, struct fake_job *job, const char *name, const char *arguments)
{
        Tandem__CallDelta delta = TANDEM__CALL_DELTA__INIT, *deltas[] = { &delta };
        Tandem__Token token = TANDEM__TOKEN__INIT, *list[] = { &token };
        Tandem__Tokens tokens = TANDEM__TOKENS__INIT;
        REPLY(TOKENS, tokens, &tokens);

        delta.id = (char *)(uintptr_t)(name[0] ? "call_1" : "");
        delta.name = (char *)(uintptr_t)name;
        delta.arguments = (ProtobufCBinaryData){ .len = strlen(arguments), .data = (uint8_t *)(uintptr_t)arguments };
        token.id = 100 + job->index;
        token.n_calls = 1;
        token.calls = deltas;
        tokens.job = job->id;
        tokens.index = job->index++;
        tokens.n_tokens = 1;
        tokens.tokens = list;
        send_reply(c, job->request, &reply);
}

static void send_done(struct conn *c, struct fake_job *job, int reason, const char *code, const char *tail)
{
        Tandem__Done done = TANDEM__DONE__INIT;
        Tandem__Error error = TANDEM__ERROR__INIT;
        REPLY(DONE, done, &done);

        done.job = job->id;
        done.reason = (Tandem__DoneReason)reason;
        if (code) {
                error.code = (char *)(uintptr_t)code;
                error.message = (char *)(uintptr_t) "the fake device died";
                done.error = &error;
        }
        done.prompt_tokens = 23;
        done.cached_tokens = 4;
        done.generated_tokens = job->index;
        done.ttft_ms = 83.25;
        done.prefill_tps = 1000;
        done.decode_tps = 212.4;
        done.recoveries = strcmp(job->model, "recover") == 0;
        done.numerics_id = (char *)(uintptr_t) "fake-1";
        done.text = (ProtobufCBinaryData){ .len = strlen(tail), .data = (uint8_t *)(uintptr_t)tail };
        send_reply(c, job->request, &reply);
        job->used = false;
        if (c->config->hang_up)
                c->broken = true;
}

static void send_plain_token(struct conn *c, struct fake_job *job)
{
        static const char *const words[] = { "Once", " upon", " a", " time", ".\n" };
        char text[32];

        if (job->n_chat > 0 && job->index == 0)
                snprintf(text, sizeof(text), "turn %zu", (job->n_chat + 1) / 2);
        else
                snprintf(text, sizeof(text), "%s", words[job->index % 5]);
        send_token(c, job, text, strlen(text));
}

static void send_future(struct conn *c, struct fake_job *job)
{
        /* id = request, field 99 (length-delimited, 3 bytes), field 98 (varint) */
        uint8_t data[] = { 0x08, (uint8_t)job->request, 0x9a, 0x06, 0x03, 'a', 'b', 'c', 0x90, 0x06, 0x07 };

        assert(job->request < 128);
        send_frame(c, data, sizeof(data));
        send_progress(c, job, 77, 1, 2, 3);
}

/* The tokens of "bytes". */
static const char *const odd_texts[] = { "a\x1b[31mb",
                                         "\"\\\n\t\x01",
                                         "\xff\xc3",
                                         "\xc2\x9b"
                                         "31m",
                                         "gr\xc3\xbc\xc3\x9f",
                                         "" };

/* The tokens of "markup", cut where it is hard. */
static const char *const markup_texts[] = { "#",  "# A **hea", "d*",  "*ing\nbo",    "l **d",  "** `co", "de`\n#tag\n",
                                            "``", "`c\n# x\n", "```", "\n####### s", "even\n#" };

static void step_job(struct conn *c, struct fake_job *job)
{
        uint64_t now = tdm_now_ns();
        unsigned stage;

        if (now < job->next_ns)
                return;
        stage = job->stage++;
        if (strcmp(job->model, "stuck") == 0 || strcmp(job->model, "deaf") == 0) {
                if (stage == 0 && strcmp(job->model, "stuck") == 0)
                        send_accepted(c, job);
                job->next_ns = UINT64_MAX;
                return;
        }
        if (stage == 0 && strcmp(job->model, "loading") == 0) {
                send_progress(c, job, TANDEM__JOB_STATE__JOB_LOADING, 43, 100, 0);
                job->next_ns = now + 150 * TDM_NSEC_PER_MSEC;
                return;
        }
        if (strcmp(job->model, "loads") == 0) {
                send_progress(c, job, TANDEM__JOB_STATE__JOB_LOADING, 43, 100, 0);
                job->next_ns = UINT64_MAX;
                return;
        }
        if (stage == 0 && strcmp(job->model, "queued") == 0) {
                send_progress(c, job, TANDEM__JOB_STATE__JOB_QUEUED, 0, 0, 3);
                job->next_ns = now + 150 * TDM_NSEC_PER_MSEC;
                return;
        }
        if (job->index == 0)
                send_accepted(c, job);
        if (stage == 0 && strcmp(job->model, "reading") == 0) {
                send_progress(c, job, TANDEM__JOB_STATE__JOB_PREFILL, 1024, 1718, 0);
                job->next_ns = now + 150 * TDM_NSEC_PER_MSEC;
                return;
        }
        if (strcmp(job->model, "slow") == 0 || strcmp(job->model, "flood") == 0) {
                send_plain_token(c, job);
                if (job->index == job->max)
                        send_done(c, job, TANDEM__DONE_REASON__DONE_LENGTH, NULL, "");
                job->next_ns = now + (job->model[0] == 's' ? 20 * TDM_NSEC_PER_MSEC : 0);
                return;
        }
        if (strcmp(job->model, "bytes") == 0) {
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(odd_texts); i++)
                        send_token(c, job, odd_texts[i], strlen(odd_texts[i]));
                send_done(c, job, TANDEM__DONE_REASON__DONE_STOP, NULL, "\xef\xbf\xbd");
                return;
        }
        if (strcmp(job->model, "markup") == 0) {
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(markup_texts); i++)
                        send_token(c, job, markup_texts[i], strlen(markup_texts[i]));
                send_done(c, job, TANDEM__DONE_REASON__DONE_STOP, NULL, "");
                return;
        }
        if (strcmp(job->model, "calls") == 0 || strcmp(job->model, "callcut") == 0) {
                bool cut = strcmp(job->model, "callcut") == 0;

                send_call_token(c, job, "weather", "{\"city\": ");
                if (!cut)
                        send_call_token(c, job, "", "\"Ulm\"}");
                send_done(c, job, cut ? TANDEM__DONE_REASON__DONE_LENGTH : TANDEM__DONE_REASON__DONE_STOP, NULL, "");
                return;
        }
        while (job->index < job->max && !c->broken) {
                send_plain_token(c, job);
                if (job->index != 2)
                        continue;
                if (strcmp(job->model, "die") == 0)
                        c->broken = true;
                if (strcmp(job->model, "fault") == 0) {
                        send_done(c, job, TANDEM__DONE_REASON__DONE_ERROR, "device-fault", "");
                        return;
                }
                if (strcmp(job->model, "gap") == 0)
                        job->index++;
                if (strcmp(job->model, "future") == 0)
                        send_future(c, job);
                if (strcmp(job->model, "recover") == 0 && stage < 10) {
                        send_progress(c, job, TANDEM__JOB_STATE__JOB_RECOVERING, 0, 0, 0);
                        job->stage = 10;
                        job->next_ns = now + 150 * TDM_NSEC_PER_MSEC;
                        return;
                }
        }
        if (!c->broken)
                send_done(c, job,
                          job->max == TEXT_TOKENS ? TANDEM__DONE_REASON__DONE_STOP : TANDEM__DONE_REASON__DONE_LENGTH,
                          NULL, "");
}

static size_t chat_bytes(const Tandem__Generate *g)
{
        size_t bytes = 0;

        for (size_t i = 0; i < g->n_chat; i++)
                bytes += g->chat[i]->text.len;
        return bytes;
}

static void got_generate(struct conn *c, uint32_t id, const Tandem__Generate *g)
{
        struct fake_job *job = NULL;
        const char *name = g->model && !g->model->from_fd ? g->model->name : "";

        if (strcmp(name, "busy") == 0) {
                send_error(c, id, "busy", "64 jobs run already");
                return;
        }
        if (strcmp(name, "ending") == 0) {
                send_error(c, id, "draining", "it ends");
                return;
        }
        if (strcmp(name, "unborn") == 0) {
                send_error(c, id, "cancelled", "cancelled before it began");
                return;
        }
        if (strcmp(name, "long") == 0 || (strcmp(name, "short") == 0 && chat_bytes(g) > 100)) {
                send_error(c, id, "too-long", "the prompt has 9000 tokens, the context 4096");
                return;
        }
        for (unsigned i = 0; i < MAX_JOBS && !job; i++)
                if (!c->jobs[i].used)
                        job = &c->jobs[i];
        assert(job);
        *job = (struct fake_job){
                .used = true, .request = id, .id = 7 + c->next_job++, .max = g->max_tokens, .n_chat = g->n_chat
        };
        snprintf(job->model, sizeof(job->model), "%s", name);
        if (strcmp(name, "flood") == 0 || c->config->too_many)
                job->max = UINT32_MAX;
        else if (strcmp(name, "bytes") == 0)
                job->max = TDM_ARRAY_SIZE(odd_texts);
        else if (strcmp(name, "markup") == 0)
                job->max = TDM_ARRAY_SIZE(markup_texts);
        else if (job->max == 0)
                job->max = strcmp(name, "slow") == 0 ? UINT32_MAX : TEXT_TOKENS;
        else if (job->max > MOST_TOKENS && strcmp(name, "slow") != 0)
                job->max = TEXT_TOKENS;
}

static void got_score(struct conn *c, uint32_t id, const Tandem__Score *s)
{
        static const uint32_t text_ids[] = { 2, 10, 11 };
        const uint32_t *ids = s->n_ids ? s->ids : text_ids;
        size_t n = s->n_ids ? s->n_ids : 3;
        struct fake_job job = { .request = id, .id = 99, .model = "tale" };
        uint32_t top_ids[64];
        float top_logprobs[64];

        send_accepted(c, &job);
        for (uint32_t k = 0; k < 64; k++) {
                top_ids[k] = 1000 + k;
                top_logprobs[k] = -0.1f * (float)(k + 1);
        }
        for (size_t first = 0; first < n; first += 2) {
                Tandem__ScoredPosition p[2], *list[2] = { &p[0], &p[1] };
                Tandem__ScoreChunk chunk = TANDEM__SCORE_CHUNK__INIT;
                REPLY(SCORE, score, &chunk);

                for (unsigned i = 0; i < 2; i++) {
                        tandem__scored_position__init(&p[i]);
                        p[i].nll = first + i + 1 < n ? (float)(first + i) + 0.1f : 0;
                        p[i].n_top_ids = p[i].n_top_logprobs = s->top;
                        p[i].top_ids = top_ids;
                        p[i].top_logprobs = top_logprobs;
                }
                chunk.first = (uint32_t)first + (strcmp(s->model->name, "oddscore") == 0 && first > 0);
                chunk.n_positions = chunk.n_ids = TDM_MIN(n - first, (size_t)2);
                chunk.positions = list;
                chunk.ids = (uint32_t *)(uintptr_t)ids + first;
                send_reply(c, id, &reply);
        }
        send_done(c, &job, TANDEM__DONE_REASON__DONE_STOP, NULL, "");
}

/* The first message's text, whose first byte is the template's. */
static void got_render(struct conn *c, uint32_t id, const Tandem__Generate *g)
{
        Tandem__Rendered message = TANDEM__RENDERED__INIT;
        uint32_t n = (uint32_t)g->chat[0]->text.len, ends[] = { 1, n };
        protobuf_c_boolean of_template[] = { true, false };
        REPLY(RENDERED, rendered, &message);

        ends[1] += strcmp(g->model->name, "longspan") == 0;
        ends[0] += strcmp(g->model->name, "backspan") == 0 ? n : 0;
        message.text = g->chat[0]->text;
        message.n_ids = message.n_span_ends = 2;
        message.n_span_template = 2 - (strcmp(g->model->name, "fewspans") == 0);
        message.ids = message.span_ends = ends;
        message.span_template = of_template;
        send_reply(c, id, &reply);
}

static void got_tokenize(struct conn *c, uint32_t id, const Tandem__Tokenize *t)
{
        Tandem__TokenizeReply message = TANDEM__TOKENIZE_REPLY__INIT;
        uint32_t ids[4096];
        REPLY(TOKENIZE, tokenize, &message);

        if (!t->no_bos)
                ids[message.n_ids++] = 2;
        for (size_t i = 0; i < t->text.len && message.n_ids < TDM_ARRAY_SIZE(ids); i++)
                ids[message.n_ids++] = t->text.data[i];
        message.ids = ids;
        send_reply(c, id, &reply);
}

static void fill_model(Tandem__ModelStatus *m)
{
        tandem__model_status__init(m);
        m->name = (char *)(uintptr_t) "tale";
        m->path = (char *)(uintptr_t) "/proc/self/exe"; /* a file that is there */
        m->state = (char *)(uintptr_t) "loaded";
        m->architecture = (char *)(uintptr_t) "gemma3";
        m->quantisation = (char *)(uintptr_t) "Q8_0";
        m->placement = (char *)(uintptr_t) "split";
        m->precision = (char *)(uintptr_t) "default";
        m->kv_type = (char *)(uintptr_t) "f16";
        m->chat = (char *)(uintptr_t) "gemma";
        m->capabilities = (char *)(uintptr_t) "completion tools";
        m->file_bytes = 12345678;
        m->weights_bytes = 12000000;
        m->kv_bytes = 1 << 24;
        m->kv_used_bytes = 1 << 20;
        m->context = 4096;
        m->is_default = true;
}

static void got_status(struct conn *c, uint32_t id)
{
        Tandem__Status status = TANDEM__STATUS__INIT;
        Tandem__WorkerStatus workers[2], *worker_list[] = { &workers[0], &workers[1] };
        Tandem__BlockCount blocks[2], *block_list[] = { &blocks[0], &blocks[1] };
        Tandem__DeviceTelemetry telemetry = TANDEM__DEVICE_TELEMETRY__INIT;
        Tandem__DeviceUse use = TANDEM__DEVICE_USE__INIT;
        Tandem__ModelStatus model, *model_list[] = { &model };
        REPLY(STATUS, status, &status);

        fill_model(&model);
        for (unsigned i = 0; i < 2; i++) {
                tandem__block_count__init(&blocks[i]);
                blocks[i].kind = (char *)(uintptr_t)(i ? "ffn" : "attention");
                blocks[i].blocks = 120 + i;
                blocks[i].rows = 4000;
                blocks[i].seconds = 0.25;
                tandem__worker_status__init(&workers[i]);
                workers[i].name = (char *)(uintptr_t)(i ? "gpu" : "npu");
                workers[i].requested = (char *)(uintptr_t) "auto";
                workers[i].device = (char *)(uintptr_t) "host";
                workers[i].detail = (char *)(uintptr_t) "AVX-512, 2 threads";
                workers[i].state = (char *)(uintptr_t) "ready";
                workers[i].pid = 4000 + i;
                workers[i].restarts = i;
                workers[i].last_exit = (char *)(uintptr_t)(i ? "killed by \x1b[31m signal 9" : "");
                workers[i].n_blocks = 1;
                workers[i].blocks = &block_list[i];
        }
        use.device_macs = 900;
        use.host_macs = 100;
        use.blocks = 7;
        use.submissions = use.commands = 15;
        use.repeats = use.contexts = 1;
        telemetry.power_w = 1.25;
        telemetry.utilisation = 0.375;
        telemetry.temperature_c = -1; /* not given */
        telemetry.contexts = 1;
        telemetry.context_errors = 3;
        use.telemetry = &telemetry;
        workers[0].use = &use;
        workers[0].plan = (char *)(uintptr_t) "tale: 12 of 12 attention layers";
        workers[1].reason = (char *)(uintptr_t) "auto took the CPU: \x1b[31m no GPU";
        status.version = (char *)(uintptr_t) "0.1.0";
        status.pid = 3999;
        status.uptime_s = 61.5;
        status.n_workers = 2;
        status.workers = worker_list;
        status.n_models = 1;
        status.models = model_list;
        status.recoveries = 1;
        status.socket = (char *)(uintptr_t) "/run/tandem/socket";
        send_reply(c, id, &reply);
}

static void got_models(struct conn *c, uint32_t id)
{
        Tandem__ModelStatus model, *list[] = { &model };
        Tandem__Models models = TANDEM__MODELS__INIT;
        REPLY(MODELS, models, &models);

        fill_model(&model);
        models.n_models = 1;
        models.models = list;
        send_reply(c, id, &reply);
}

static void got_jobs(struct conn *c, uint32_t id)
{
        Tandem__JobStatus job = TANDEM__JOB_STATUS__INIT, *list[] = { &job };
        Tandem__Jobs jobs = TANDEM__JOBS__INIT;
        REPLY(JOBS, jobs, &jobs);

        job.job = 7;
        job.state = TANDEM__JOB_STATE__JOB_DECODE;
        job.model = (char *)(uintptr_t) "tale";
        job.prompt_tokens = 23;
        jobs.n_jobs = 1;
        jobs.jobs = list;
        send_reply(c, id, &reply);
}

/* A few hundred chunks of lies: times that go back, ends without a beginning, tracks and kinds that nobody knows. */
static void got_trace(struct conn *c, uint32_t id)
{
        static const uint64_t odd[] = { 0, 1, UINT64_C(5000000000), UINT64_MAX / 2, UINT32_MAX };
        uint64_t state = 88172645463325252u, time_ns = UINT64_C(3600000000000);

        for (unsigned i = 0; i <= 300; i++) {
                Tandem__TraceEvent events[20], *list[20];
                Tandem__TraceChunk chunk = TANDEM__TRACE_CHUNK__INIT;
                REPLY(TRACE, trace, &chunk);

                chunk.last = i == 300;
                chunk.track = (Tandem__TraceTrack)(i % 31 == 30 ? 77 : i % 3);
                chunk.lost = i;
                chunk.events = list;
                for (unsigned k = 0; k < 20 && !chunk.last; k++) {
                        Tandem__TraceEvent *e = list[k] = &events[k];

                        state = state * 6364136223846793005u + 1442695040888963407u;
                        tandem__trace_event__init(e);
                        time_ns += (state >> 33) % 1000;
                        e->time_ns = state >> 60 == 0 ? time_ns - 700 : time_ns;
                        e->kind = (Tandem__TraceKind)((state >> 40) % 16);
                        e->step = (state >> 44) % 3;
                        e->block = (state >> 46) % 7;
                        e->layer = (state >> 49) % 3;
                        e->rows = state >> 62 ? 1 : UINT32_MAX;
                        e->arg = odd[(state >> 50) % TDM_ARRAY_SIZE(odd)];
                        e->from_peer = state >> 63;
                        chunk.n_events++;
                }
                send_reply(c, id, &reply);
        }
}

static void got_cancel(struct conn *c, uint32_t id, uint64_t job_id)
{
        for (unsigned i = 0; i < MAX_JOBS; i++) {
                struct fake_job *job = &c->jobs[i];

                if (!job->used || job->id != job_id)
                        continue;
                if (strcmp(job->model, "stuck") == 0)
                        return;
                send_ok(c, id);
                send_done(c, job, TANDEM__DONE_REASON__DONE_CANCELLED, NULL, "");
                return;
        }
        send_error(c, id, "no-job", "there is no such job");
}

static void got_hello(struct conn *c, uint32_t id, const Tandem__Hello *asked)
{
        Tandem__HelloReply hello = TANDEM__HELLO_REPLY__INIT;
        REPLY(HELLO, hello, &hello);

        if (c->config->raw) {
                send_bytes(c, c->config->raw, c->config->raw_size);
                c->broken = true;
                return;
        }
        hello.protocol = c->config->protocol ? c->config->protocol : 1;
        hello.version = (char *)(uintptr_t) "0.1.0-fake";
        if (!c->config->no_labels)
                hello.speaks_for = asked->speaks_for;
        hello.max_frame_bytes = c->config->max_frame ? c->config->max_frame : 1u << 20;
        send_reply(c, id, &reply);
}

static void got_request(struct conn *c, const uint8_t *data, size_t size, const int *fds, unsigned n_fds)
{
        Tandem__Request *r = tandem__request__unpack(NULL, size, data);

        assert(r && r->id != 0);
        fake_log_request(c->config->log, r, fds, n_fds);
        switch (r->kind_case) {
        case TANDEM__REQUEST__KIND_HELLO:
                got_hello(c, r->id, r->hello);
                break;
        case TANDEM__REQUEST__KIND_GENERATE:
                got_generate(c, r->id, r->generate);
                break;
        case TANDEM__REQUEST__KIND_RENDER:
                got_render(c, r->id, r->render);
                break;
        case TANDEM__REQUEST__KIND_SCORE:
                got_score(c, r->id, r->score);
                break;
        case TANDEM__REQUEST__KIND_TOKENIZE:
                if (strcmp(r->tokenize->model->name, "wrongkind") == 0)
                        send_ok(c, r->id);
                else if (strcmp(r->tokenize->model->name, "nobody") == 0)
                        send_error(c, r->id, "no-model", "no model is named nobody");
                else if (strcmp(r->tokenize->model->name, "deaf") != 0)
                        got_tokenize(c, r->id, r->tokenize);
                break;
        case TANDEM__REQUEST__KIND_CANCEL:
                got_cancel(c, r->id, r->cancel->job);
                break;
        case TANDEM__REQUEST__KIND_STATUS:
                got_status(c, r->id);
                break;
        case TANDEM__REQUEST__KIND_MODELS:
                got_models(c, r->id);
                break;
        case TANDEM__REQUEST__KIND_JOBS:
                got_jobs(c, r->id);
                break;
        case TANDEM__REQUEST__KIND_TRACE:
                if (r->trace->duration_ms == 1234)
                        send_error(c, r->id, "denied", "not you");
                else
                        got_trace(c, r->id);
                break;
        case TANDEM__REQUEST__KIND_UNLOAD:
                send_error(c, r->id, "a-new-code", "a message\nof two \x1b[31mlines");
                break;
        default:
                send_ok(c, r->id);
                break;
        }
        tandem__request__free_unpacked(r, NULL);
}

size_t fake_serve(int fd, const struct fake_config *config)
{
        struct conn *c = calloc(1, sizeof(*c));
        struct tdm_frame_reader *reader;
        uint64_t last_ns = tdm_now_ns();
        const uint8_t *data;
        size_t size, sent;
        unsigned n_fds;
        int *fds, k;

        assert(c);
        c->fd = fd;
        c->config = config;
        k = tdm_frame_reader_new(&reader, 64u << 20);
        assert(k == 0);
        while (!c->broken) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                bool busy = false;

                for (unsigned i = 0; i < MAX_JOBS && !c->broken; i++) {
                        if (!c->jobs[i].used)
                                continue;
                        busy |= c->jobs[i].next_ns != UINT64_MAX;
                        step_job(c, &c->jobs[i]);
                }
                if (c->broken)
                        break;
                if (poll(&p, 1, busy ? 1 : config->idle_ms >= 0 ? config->idle_ms : 1000) > 0) {
                        ssize_t n = tdm_frame_reader_fill(reader, fd);

                        if (n <= 0)
                                break;
                        last_ns = tdm_now_ns();
                        while (!c->broken && tdm_frame_reader_next(reader, &data, &size, &fds, &n_fds) > 0)
                                got_request(c, data, size, fds, n_fds);
                } else if (!busy && config->idle_ms >= 0 &&
                           tdm_now_ns() - last_ns >= (uint64_t)config->idle_ms * TDM_NSEC_PER_MSEC) {
                        break;
                }
        }
        /* What it said before it left, and nobody can answer any more. */
        while (c->left && tdm_frame_reader_fill(reader, fd) > 0)
                while (tdm_frame_reader_next(reader, &data, &size, &fds, &n_fds) > 0)
                        got_request(c, data, size, fds, n_fds);
        if (config->log) {
                fputs("{\"request\":\"gone\"}\n", config->log);
                fflush(config->log);
        }
        tdm_frame_reader_destroy(reader);
        close(fd);
        sent = c->sent;
        free(c);
        return sent;
}

static void *fake_main(void *userdata)
{
        struct fake *fake = userdata;
        int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        assert(fd >= 0);
        fake->sent = fake_serve(fd, &fake->config);
        return NULL;
}

void fake_start(struct fake *fake, const struct fake_config *config)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int k;

        *fake = (struct fake){ .config = *config };
        snprintf(fake->dir, sizeof(fake->dir), "/tmp/tandem-test-XXXXXX");
        if (!mkdtemp(fake->dir))
                abort();
        snprintf(fake->path, sizeof(fake->path), "%s/socket", fake->dir);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake->path);
        fake->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        k = bind(fake->listen_fd, (struct sockaddr *)&address, sizeof(address));
        assert(k == 0);
        k = listen(fake->listen_fd, 8);
        assert(k == 0);
        k = pthread_create(&fake->thread, NULL, fake_main, fake);
        assert(k == 0);
        (void)k;
}

void fake_stop(struct fake *fake)
{
        pthread_join(fake->thread, NULL);
        close(fake->listen_fd);
        unlink(fake->path);
        rmdir(fake->dir);
}
