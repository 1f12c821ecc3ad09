/* Jobs of the bus: how they begin, what becomes of what they say, and when they are forgotten.
 *
 * A job's output goes two ways: into its pipe, and into a text that GetText() reads. Both are capped, for the job, for
 * its user and for all; the job itself goes on whatever becomes of them, so a reader that stands still holds up
 * no job. Both see the same text: well-formed UTF-8 without NUL.
 *
 * A job ends when its owner leaves the bus, unless it was asked to linger. After its end it can be looked at for a
 * while. */
#include "daemon/faces/dbus/private.h"

#include <math.h>
#include "common/log.h"

#define MAX_OBJECTS 1024u

static const struct tdm_job_events job_events;

/* ---- finding and forgetting ---- */

struct bus_job *bus_job_find(struct tdm_dbus *bus, const char *path)
{
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (strcmp(job->path, path) == 0)
                        return job;
        return NULL;
}

bool bus_job_is_seen_by(const struct bus_job *job, const struct bus_peer *peer)
{
        return job->uid == peer->uid || bus_peer_is_root(peer);
}

bool bus_job_knows(const struct tdm_dbus *bus, const struct bus_peer *peer)
{
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node) {
                if (job->owner == peer)
                        return true;
                for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++)
                        if (job->watchers[i] == peer)
                                return true;
        }
        return false;
}

static void drop_text(struct bus_job *job)
{
        if (job->text)
                explicit_bzero(job->text, job->text_capacity);
        free(steal_ptr(&job->text));
        job->text_size = job->text_capacity = 0;
}

void bus_job_cancel(struct bus_job *job)
{
        if (!job->ended)
                tdm_scheduler_cancel(job->bus->scheduler, job->job, NULL);
}

void bus_job_free(struct bus_job *job)
{
        if (!job->ended) {
                tdm_job_listen(job->job, NULL, NULL);
                bus_job_cancel(job);
        }
        tdm_list_remove(&job->node);
        bus_journal_end(job);
        bus_stream_deinit(&job->stream);
        drop_text(job);
        tdm_job_unref(job->job);
        tdm_model_unref(job->model);
        free(job);
}

/* With a word to those who watch it. */
void bus_job_forget(struct bus_job *job)
{
        if (job->owner)
                bus_interfaces_removed(job->bus, job->path, BUS_JOB, job->owner->name);
        for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++)
                if (job->watchers[i] && job->watchers[i] != job->owner)
                        bus_interfaces_removed(job->bus, job->path, BUS_JOB, job->watchers[i]->name);
        bus_job_free(job);
}

/* false: there is nothing that has ended (of this user, or at all). */
static bool forget_oldest(struct tdm_dbus *bus, bool of_uid, uid_t uid)
{
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (job->ended && (!of_uid || job->login == uid)) {
                        bus_job_forget(job);
                        return true;
                }
        return false;
}

void bus_job_peer_left(struct tdm_dbus *bus, struct bus_peer *peer)
{
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node) {
                for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++)
                        if (job->watchers[i] == peer)
                                job->watchers[i] = NULL;
                if (job->owner != peer)
                        continue;
                job->owner = NULL;
                job->changed = true;
                if (job->lingers)
                        continue;
                if (job->ended)
                        bus_job_forget(job);
                else
                        bus_job_cancel(job); /* it is forgotten when it has ended */
        }
}

/* ---- memory ---- */

static uint64_t kept_bytes(const struct tdm_dbus *bus, bool of_uid, uid_t uid)
{
        struct bus_job *job;
        uint64_t n = 0;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (!of_uid || job->login == uid)
                        n += job->text_capacity + job->stream.capacity +
                             (job->journal ? bus_journal_held(job->journal) : 0);
        return n;
}

bool bus_may_keep(struct tdm_dbus *bus, uid_t uid, uint64_t more)
{
        while (kept_bytes(bus, true, uid) + more > BUS_MAX_KEPT_BYTES_PER_UID)
                if (!forget_oldest(bus, true, uid))
                        return false;
        while (kept_bytes(bus, false, 0) + more > BUS_MAX_KEPT_BYTES)
                if (!forget_oldest(bus, false, 0))
                        return false;
        return true;
}

bool bus_may_keep_journal(const struct tdm_dbus *bus, uid_t uid, uint64_t more)
{
        return kept_bytes(bus, true, uid) + more <= BUS_MAX_KEPT_BYTES_PER_UID / 2 &&
               kept_bytes(bus, false, 0) + more <= BUS_MAX_KEPT_BYTES / 2;
}

static bool grow_text(struct bus_job *job, size_t size)
{
        size_t capacity = TDM_MIN(TDM_MAX((size_t)1024, 2 * (job->text_size + size)), (size_t)BUS_MAX_TEXT_BYTES);
        char *bigger;

        if (job->text_size + size > BUS_MAX_TEXT_BYTES || !bus_may_keep(job->bus, job->login, capacity))
                return false;
        bigger = malloc(capacity);
        if (!bigger)
                return false;
        if (job->text_size)
                memcpy(bigger, job->text, job->text_size);
        size = job->text_size;
        drop_text(job);
        job->text = bigger;
        job->text_size = size;
        job->text_capacity = capacity;
        return true;
}

static void keep_text(struct bus_job *job, const char *text, size_t size)
{
        job->text_bytes += size;
        if (job->text_truncated || size == 0)
                return;
        if (job->text_size + size > job->text_capacity && !grow_text(job, size)) {
                job->text_truncated = true; /* what follows would have a hole before it */
                return;
        }
        memcpy(job->text + job->text_size, text, size);
        job->text_size += size;
        bus_journal_text(job, text, size);
}

void bus_job_restore_text(struct bus_job *job, const char *text, size_t size)
{
        if (size > 0 && !grow_text(job, size)) {
                job->text_truncated = true;
                return;
        }
        if (size > 0)
                memcpy(job->text, text, size);
        job->text_size = size;
}

static void put_out(struct bus_job *job, const char *data, size_t size)
{
        size_t room = BUS_MAX_OUTPUT_BYTES;
        struct bus_stream *s = &job->stream;

        if (bus_journal_output(job, data, size))
                return;
        /* Asked only when it would have to grow: counting goes through all jobs. */
        if (s->size + size > s->capacity && s->size > 0 && !bus_may_keep(job->bus, job->login, 2 * (s->size + size)))
                room = 0;
        bus_stream_write(s, data, size, room);
}

/* ---- events ---- */

static void event_begin(struct bus_job *job, struct bus_line *l, const char *event)
{
        l->size = 0;
        bus_line_add(l, "{\"seq\":%llu,\"event\":\"%s\"", (unsigned long long)job->sequence++, event);
}

static void put_event(struct bus_job *job, struct bus_line *l)
{
        bus_line_add(l, "}\n");
        put_out(job, l->text, l->size);
}

static void touch(struct bus_job *job)
{
        job->changed = true;
        bus_tick_soon(job->bus, job->changed_ns + BUS_CHANGED_NS);
}

static void on_bus_job_accepted(struct tdm_job *j, void *userdata)
{
        struct bus_job *job = userdata;
        struct bus_line l;

        touch(job);
        if (job->output == BUS_OUTPUT_EVENTS && !bus_journal_has(job, BUS_JOURNAL_ACCEPTED)) {
                event_begin(job, &l, "accepted");
                bus_line_add(&l, ",\"prompt_tokens\":%u,\"max_tokens\":%u", j->prompt_tokens, j->max_tokens);
                put_event(job, &l);
        }
        bus_journal_settle(job, BUS_JOURNAL_ACCEPTED);
}

static void on_bus_job_progress(struct tdm_job *j, void *userdata)
{
        struct bus_job *job = userdata;
        struct bus_line l;

        touch(job);
        if (job->output != BUS_OUTPUT_EVENTS)
                return;
        event_begin(job, &l, "progress");
        bus_line_add(&l, ",\"state\":\"%s\",\"done\":%llu,\"total\":%llu,\"queue_position\":%u",
                     tdm_job_state_name(j->state), (unsigned long long)j->progress.done,
                     (unsigned long long)j->progress.total,
                     j->state == TDM_JOB_QUEUED ? j->progress.queue_position : 0);
        put_event(job, &l);
        bus_journal_settle(job, 0);
}

/* Text as it goes out: cleaned, kept, and into the pipe where that has plain text. Returns its new size. */
static size_t bus_job_take_text(struct bus_job *job, const char *text, size_t size, char *clean)
{
        size = bus_clean_text(text, size, clean);
        keep_text(job, clean, size);
        if (job->output == BUS_OUTPUT_TEXT && size > 0)
                put_out(job, clean, size);
        return size;
}

/* Adds what a token of a chat has beside its text: the model's thoughts, and pieces of its calls. */
static void put_parts(struct bus_job *job, const struct tdm_job_token *t)
{
        static const char *const events[] = { [TDM_FORM_PART_THINKING] = "thinking",
                                              [TDM_FORM_PART_CALL] = "call",
                                              [TDM_FORM_PART_ARGUMENTS] = "arguments" };

        for (size_t i = 0; i < t->n_parts && job->output == BUS_OUTPUT_EVENTS; i++) {
                const struct tdm_form_part *part = &t->parts[i];
                _cleanup_(freep) char *clean = NULL;
                struct bus_line l;

                if (part->kind == TDM_FORM_PART_TEXT)
                        continue;
                clean = malloc(3 * part->size + 1);
                if (!clean) {
                        job->stream.cut = true;
                        bus_stream_finish(&job->stream);
                        return;
                }
                event_begin(job, &l, events[part->kind]);
                if (part->kind != TDM_FORM_PART_THINKING)
                        bus_line_add(&l, ",\"call\":%u", part->call);
                if (part->kind == TDM_FORM_PART_CALL)
                        bus_line_add_json(&l, "id", part->id, strlen(part->id));
                bus_line_add_json(&l, part->kind == TDM_FORM_PART_CALL ? "name" : "text", clean,
                                  bus_clean_text(part->data, part->size, clean));
                put_event(job, &l);
        }
}

/* The client keeps it, in case that another daemon has to go on. */
static void add_numerics(struct bus_job *job, struct bus_line *l)
{
        const char *id = job->job->stats.numerics_id;

        if (strcmp(job->told_numerics, id) == 0)
                return;
        snprintf(job->told_numerics, sizeof(job->told_numerics), "%s", id);
        bus_line_add_json(l, "numerics_id", id, strlen(id));
}

static void on_bus_job_token(struct tdm_job *j, uint32_t index, const struct tdm_job_token *t, void *userdata)
{
        struct bus_job *job = userdata;
        char small[1024], *clean = small;
        struct bus_line l;
        size_t size;

        if (bus_journal_repeats(job, index, t))
                return;
        if (3 * t->size > sizeof(small))
                clean = malloc(3 * t->size);
        if (!clean) {
                job->text_truncated = job->stream.cut = true;
                bus_stream_finish(&job->stream);
                return;
        }
        size = bus_job_take_text(job, t->text, t->size, clean);
        touch(job);
        if (job->output == BUS_OUTPUT_EVENTS) {
                event_begin(job, &l, "token");
                bus_line_add(&l, ",\"index\":%u,\"id\":%u,\"logprob\":%.6g", index, t->id,
                             isfinite(t->logprob) ? (double)t->logprob : 0.0);
                for (uint32_t i = 0; i < t->n_top; i++)
                        bus_line_add(&l, "%s[%u,%.6g]", i == 0 ? ",\"top\":[" : ",", t->top[i].id,
                                     (double)t->top[i].logprob);
                if (t->n_top > 0)
                        bus_line_add(&l, "]");
                add_numerics(job, &l);
                bus_line_add_json(&l, "text", clean, size);
                put_event(job, &l);
                put_parts(job, t);
        }
        bus_journal_settle(job, 0);
        if (clean != small)
                free(clean);
}

static const char *end_name(const struct tdm_job *j)
{
        static const char *const names[] = { [TDM_JOB_END_STOP] = "stop",
                                             [TDM_JOB_END_LENGTH] = "length",
                                             [TDM_JOB_END_CANCELLED] = "cancelled",
                                             [TDM_JOB_END_ERROR] = "error" };

        return names[j->end];
}

static void put_done(struct bus_job *job, const char *tail, size_t tail_size)
{
        const struct tdm_job *j = job->job;
        struct bus_line l;

        event_begin(job, &l, "done");
        bus_line_add(&l, ",\"reason\":\"%s\"", end_name(j));
        bus_line_add_json(&l, "text", tail, tail_size);
        if (j->end == TDM_JOB_END_ERROR) {
                char message[3 * TDM_ERROR_MESSAGE_MAX];

                bus_line_add_json(&l, "error", bus_error_name(j->error.code), strlen(bus_error_name(j->error.code)));
                bus_line_add_json(&l, "message", message,
                                  bus_clean_text(j->error.message, strlen(j->error.message), message));
        }
        bus_line_add(&l, ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"generated_tokens\":%u", j->prompt_tokens,
                     j->stats.cached_tokens, j->generated);
        bus_line_add(&l, ",\"ttft_ms\":%.3f,\"prefill_tps\":%.3f,\"decode_tps\":%.3f", tdm_job_ttft_ms(j),
                     tdm_job_prefill_tps(j), tdm_job_decode_tps(j));
        bus_line_add(&l, ",\"recoveries\":%u,\"degraded\":%s,\"incomplete\":%s", j->stats.recoveries,
                     j->stats.degraded ? "true" : "false", j->text.incomplete ? "true" : "false");
        bus_line_add(&l, ",\"drafted\":%llu,\"accepted\":%llu,\"thinking_tokens\":%u",
                     (unsigned long long)j->stats.n_drafted, (unsigned long long)j->stats.n_accepted,
                     tdm_job_thinking_tokens(j));
        put_event(job, &l);
}

static void say_finished(struct bus_job *job, const char *destination)
{
        DBusMessage *message = dbus_message_new_signal(job->path, BUS_JOB, "Finished");
        struct bus_writer w;

        if (message && !dbus_message_set_destination(message, destination)) {
                dbus_message_unref(message);
                return;
        }
        bus_writer_init(&w, message);
        bus_write_string(&w, end_name(job->job));
        bus_open(&w, DBUS_TYPE_ARRAY, "{sv}");
        bus_job_write_end(&w, job);
        bus_close(&w);
        bus_send(job->bus, bus_writer_finish(&w));
}

static void tell_changed(struct bus_job *job, uint64_t now_ns)
{
        job->changed = false;
        job->changed_ns = now_ns;
        if (job->owner)
                bus_properties_changed(job->bus, job->path, &bus_job_interface, job, job->owner->name);
        for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++)
                if (job->watchers[i] && job->watchers[i] != job->owner)
                        bus_properties_changed(job->bus, job->path, &bus_job_interface, job, job->watchers[i]->name);
}

static void bus_job_tell_end(struct bus_job *job)
{
        touch(job);
        if (job->owner)
                say_finished(job, job->owner->name);
        for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++)
                if (job->watchers[i] && job->watchers[i] != job->owner)
                        say_finished(job, job->watchers[i]->name);
}

/* An earlier daemon began it. Its call was good then, so one that is refused now meets another model. */
static bool meets_another_model(const struct bus_job *job)
{
        const struct tdm_job *j = job->job;

        if (j->end == TDM_JOB_END_STOP || j->end == TDM_JOB_END_LENGTH)
                return job->differs || j->generated < job->n_earlier;
        return j->end == TDM_JOB_END_ERROR && job->n_earlier > 0 &&
               (j->error.code == TDM_E_BAD_REQUEST || j->error.code == TDM_E_TOO_LONG);
}

static void end_as_changed(struct bus_job *job)
{
        struct tdm_job *j = job->job;
        const struct tdm_error why = j->error;

        if (meets_another_model(job)) {
                bus_journal_say_differs(&j->error, j->end == TDM_JOB_END_ERROR ? why.message : "");
                j->end = TDM_JOB_END_ERROR;
        }
        if (job->differs || j->error.code == TDM_E_MODEL_CHANGED)
                j->text.tail_size = 0; /* it may have a part of the other model's character */
}

static void on_bus_job_done(struct tdm_job *j, void *userdata)
{
        struct bus_job *job = userdata;
        char clean[3 * sizeof(j->text.tail)];
        size_t size;

        tdm_job_listen(j, NULL, NULL);
        if (bus_journal_is_left(job)) {
                job->ended = true;
                job->ended_ns = tdm_now_ns();
                tdm_log_info("job %llu of the bus is left to the next daemon", (unsigned long long)j->id);
                bus_journal_leave(job);
                tdm_list_remove(&job->node);
                tdm_list_append(&job->bus->jobs, &job->node);
                bus_name_may_go(job->bus);
                return;
        }
        if (job->n_earlier > 0)
                end_as_changed(job);
        size = bus_job_take_text(job, j->text.tail, j->text.tail_size, clean);
        if (job->output == BUS_OUTPUT_EVENTS)
                put_done(job, clean, size);
        bus_stream_finish(&job->stream);
        bus_journal_note_end(job);
        job->ended = true; /* not before: room for the last text is made of jobs that have ended */
        job->ended_ns = tdm_now_ns();
        bus_job_tell_end(job);
        /* To the end of the list: those that have ended lie in the order of their ends. */
        tdm_list_remove(&job->node);
        tdm_list_append(&job->bus->jobs, &job->node);
        if (job->bus->draining)
                tell_changed(job, job->ended_ns); /* while the name is still there */
        bus_name_may_go(job->bus);
}

/* No scores: scoring is not offered on the bus. */
static const struct tdm_job_events job_events = {
        .accepted = on_bus_job_accepted,
        .progress = on_bus_job_progress,
        .token = on_bus_job_token,
        .done = on_bus_job_done,
};

/* ---- time ---- */

static bool is_stale(const struct bus_job *job, uint64_t now_ns)
{
        if (!job->ended)
                return false;
        if (!job->owner && !job->lingers)
                return true;
        return now_ns - job->ended_ns > (job->lingers ? BUS_KEEP_LINGERING_NS : BUS_KEEP_NS);
}

static void limit_ended(struct tdm_dbus *bus)
{
        unsigned n_all = 0, n;
        struct bus_job *job, *other;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                n_all += job->ended;
        while (n_all > BUS_MAX_ENDED_JOBS && forget_oldest(bus, false, 0))
                n_all--;
        if (n_all <= BUS_MAX_ENDED_JOBS_PER_UID)
                return;
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node) {
                n = 0;
                if (!job->ended)
                        continue;
                for (struct tdm_list *at = &job->node; at != &bus->jobs; at = at->next) {
                        other = tdm_list_entry(at, struct bus_job, node);
                        n += other->ended && other->login == job->login;
                }
                if (n > BUS_MAX_ENDED_JOBS_PER_UID)
                        bus_job_forget(job);
        }
}

uint64_t bus_job_tick(struct tdm_dbus *bus, uint64_t now_ns)
{
        uint64_t next_ns = bus_stored_tick(bus, now_ns);
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node) {
                uint64_t due_ns = 0;

                if (job->changed && now_ns - job->changed_ns >= BUS_CHANGED_NS)
                        tell_changed(job, now_ns);
                if (job->differs)
                        bus_journal_differs(job);
                if (is_stale(job, now_ns)) {
                        bus_job_forget(job);
                        continue;
                }
                if (job->changed)
                        due_ns = job->changed_ns + BUS_CHANGED_NS;
                else if (job->ended)
                        due_ns = job->ended_ns + (job->lingers ? BUS_KEEP_LINGERING_NS : BUS_KEEP_NS) +
                                 TDM_NSEC_PER_MSEC;
                if (due_ns && (!next_ns || due_ns < next_ns))
                        next_ns = due_ns;
        }
        limit_ended(bus);
        return next_ns;
}

/* ---- beginning ---- */

static int make_path(struct bus_job *job, const struct bus_peer *peer, const char *token, struct tdm_error *err)
{
        char sender[260];
        size_t n = 0;

        if (!token) {
                char path[64];

                snprintf(path, sizeof(path), BUS_ROOT "/jobs/%llu", (unsigned long long)job->job->id);
                /* One of an earlier daemon may have the number. */
                for (unsigned i = 2; bus_job_find(job->bus, path); i++)
                        snprintf(path, sizeof(path), BUS_ROOT "/jobs/%llu_%u", (unsigned long long)job->job->id, i);
                snprintf(job->path, sizeof(job->path), "%s", path);
                return 0;
        }
        for (const char *p = peer->name + (peer->name[0] == ':'); *p && n + 1 < sizeof(sender); p++)
                sender[n++] =
                        (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ? *p : '_';
        sender[n] = '\0';
        snprintf(job->path, sizeof(job->path), BUS_ROOT "/jobs/%s/%s", sender, token);
        if (bus_job_find(job->bus, job->path))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "token \"%s\" is that of another job of this caller",
                                     token);
        return 0;
}

static void on_stream_writable(void *userdata)
{
        bus_journal_push(userdata);
}

int bus_job_new(struct tdm_dbus *bus, const struct bus_job_owner *owner, struct bus_request *request,
                struct bus_job **ret, struct tdm_error *err)
{
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        _cleanup_(tdm_job_unrefp) struct tdm_job *j = NULL;
        struct tdm_error lost = { 0 };
        struct bus_job *job;
        unsigned n = 0;
        int r;

        if (bus->draining)
                return tdm_error_set(err, TDM_E_DRAINING, "tandemd is shutting down and takes no jobs; call again");
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                n++;
        if (n >= MAX_OBJECTS && !forget_oldest(bus, false, 0))
                return tdm_error_set(err, TDM_E_BUSY, "%u jobs are known already; try again later", n);
        request->params.identity = owner->uid;
        request->params.account = owner->account;
        r = tdm_job_new(&j, &request->params, err);
        if (r != 0)
                return r;
        r = tdm_models_open(bus->models, owner->account, request->model, request->model_fd, &model, &lost);
        if (r != 0 && !request->restored) {
                *err = lost;
                return r;
        }
        job = calloc(1, sizeof(*job));
        if (!job)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        job->bus = bus;
        job->stream.fd = -1;
        job->stream.loop = bus->loop;
        job->stream.on_writable = on_stream_writable;
        job->stream.userdata = job;
        job->uid = owner->uid;
        job->login = owner->account->uid;
        job->owner = owner->peer;
        job->lingers = request->linger;
        job->output = request->output;
        job->ended = true; /* not begun: bus_job_free() has nothing to cancel */
        job->model = steal_ptr(&model);
        if (!job->model) {
                job->lost = lost;
                if (lost.code == 0)
                        tdm_error_set(&job->lost, r, "its model cannot be opened: %s", strerror(r < 0 ? -r : EIO));
                tdm_utf8_copy(job->asked_model, sizeof(job->asked_model), request->model ? request->model : "");
        }
        job->job = tdm_job_ref(j);
        tdm_list_init(&job->node);
        *ret = job;
        return 0;
}

static int bus_job_submit(struct bus_job *job, struct tdm_error *err)
{
        int r;

        if (!job->model) {
                *err = job->lost;
                return err->code;
        }
        tdm_job_listen(job->job, &job_events, job);
        r = tdm_scheduler_submit(job->bus->scheduler, job->job, job->model, err);
        if (r != 0)
                return r;
        job->ended = false;
        tdm_list_append(&job->bus->jobs, &job->node);
        return 0;
}

void bus_job_restored(struct bus_job *job, bool ended)
{
        struct tdm_error err;

        if (ended) {
                tdm_job_settle_charge(job->job);
                job->ended_ns = tdm_now_ns();
                tdm_list_append(&job->bus->jobs, &job->node);
                bus_stream_finish(&job->stream);
                bus_journal_settle(job, BUS_JOURNAL_ENDED);
                bus_job_tell_end(job);
        } else if (bus_job_submit(job, &err) == 0) {
                bus_journal_settle(job, 0);
        } else {
                tdm_job_finish(job->job, TDM_JOB_END_ERROR, &err);
                job->job->generated = (uint32_t)job->n_earlier; /* those that were told */
                job->ended = false;
                tdm_list_append(&job->bus->jobs, &job->node);
                on_bus_job_done(job->job, job);
        }
}

static int bus_job_start(struct bus_peer *peer, struct bus_request *request, int *ret_fd, struct bus_job **ret,
                         struct tdm_error *err)
{
        _cleanup_(closep) int fd = -1;
        struct bus_job *job;
        const struct bus_job_owner owner = { .peer = peer, .uid = peer->uid, .account = peer->account };
        int r = bus_job_new(peer->bus, &owner, request, &job, err);

        if (r != 0)
                return r;
        if (request->token)
                r = make_path(job, peer, request->token, err);
        if (r == 0) {
                r = bus_stream_open(&job->stream, peer->bus->loop, &fd);
                if (r < 0)
                        tdm_error_set(err, r, "cannot make a pipe: %s", strerror(-r));
        }
        if (r == 0)
                r = bus_job_submit(job, err);
        if (r != 0) {
                bus_job_free(job);
                return r;
        }
        if (!request->token)
                make_path(job, peer, NULL, err);
        if (job->output == BUS_OUTPUT_NONE)
                bus_stream_finish(&job->stream);
        *ret_fd = steal_fd(&fd);
        *ret = job;
        return 0;
}

static void refuse_call(struct bus_peer *peer, DBusMessage *message, int r, const struct tdm_error *err)
{
        tdm_log_debug("job of user %u refused: %s", (unsigned)peer->uid, err->message);
        bus_reply_failed(peer->bus, message, r, err->message);
}

static void begin_call(struct bus_peer *peer, DBusMessage *message, struct bus_request *request)
{
        _cleanup_(closep) int fd = -1;
        struct tdm_error err = { 0 };
        struct bus_job *job = NULL;
        struct bus_writer w;
        int r = bus_job_start(peer, request, &fd, &job, &err);

        if (r != 0) {
                refuse_call(peer, message, r, &err);
                return;
        }
        if (request->model_fd < 0 && !request->params.options.drawn && request->params.n_picture_files == 0)
                bus_journal_begin(job, message);
        bus_writer_init(&w, bus_reply_new(message));
        bus_write_path(&w, job->path);
        bus_write(&w, DBUS_TYPE_UNIX_FD, &fd);
        bus_reply_finish(peer->bus, message, &w);
        bus_interfaces_added(peer->bus, job->path, &bus_job_interface, job, peer->name);
}

static void on_pictures_read(struct bus_held *held, struct bus_request *request, int r, const struct tdm_error *err)
{
        struct bus_peer *peer = held->peer;
        DBusMessage *message = dbus_message_ref(held->message);

        bus_held_free(held);
        if (r != 0)
                refuse_call(peer, message, r, err);
        else
                begin_call(peer, message, request);
        bus_message_done(peer->bus, peer, message);
}

/* 0: the request is taken over, and the call is answered when its pictures were read. */
static int wait_for_pictures(struct bus_peer *peer, DBusMessage *message, struct bus_request *request,
                             struct tdm_error *err)
{
        struct bus_reading *reading;
        struct bus_held *held = NULL;
        uint64_t size;
        int r = bus_pictures_look(peer->bus, peer->account, request, &reading, &size, err);

        if (r != 0)
                return r;
        r = bus_peer_hold(peer, message, size, &held, err);
        if (r == 0)
                r = bus_pictures_read(reading, held, on_pictures_read, err);
        if (r == 0)
                return 0;
        if (held)
                bus_held_free(held);
        bus_pictures_drop(reading);
        return r;
}

void bus_job_generate(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, bool chat)
{
        struct bus_request *request = calloc(1, sizeof(*request)); /* its options point into it */
        struct tdm_error err = { 0 };
        int r = request ? bus_read_request(args, chat, request, &err) :
                          tdm_error_set(&err, TDM_E_NO_MEMORY, "out of memory");

        if (r == 0 && request->n_picture_fds > 0) {
                r = wait_for_pictures(peer, message, request, &err);
                if (r == 0)
                        return; /* the request is its */
        } else if (r == 0) {
                begin_call(peer, message, request);
        }
        if (r != 0)
                refuse_call(peer, message, r, &err);
        bus_request_free(peer->bus, peer->account, request);
}
