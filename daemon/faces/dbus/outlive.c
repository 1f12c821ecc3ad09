/* What is noted of a job of the bus, so that it outlives this daemon: its call as it came, and then each token, its
 * text and its output, before they are told (journal.h). The service manager keeps the journal and the pipe, each under
 * a name of its own. A job that has ended keeps its journal for as long as its object is there. Its pipe is given up
 * when it has all: the manager's copy holds back the end of the file. Where the manager reads late, it is told again:
 * until it has the journal, a daemon that ends waits for the job as for one without.
 *
 * A job without a journal ends with the daemon: where no manager keeps descriptors, where its call brought descriptors
 * or is too long, where it goes on behind tokens that it was given, and where memory for the journal ran out. */
#include "daemon/faces/dbus/private.h"

#include <inttypes.h>
#include <sys/random.h>
#include "common/log.h"
#include "common/notify.h"

#define RETRY_NS (20 * TDM_NSEC_PER_MSEC)

/* ---- what the manager keeps ---- */

/* What it did not hear yet: its queue was full. It hears words in their order: what it drops makes room for what it is
 * to keep, and a pipe comes before its journal, since a journal alone would begin a job whose reader is gone. */
struct bus_word {
        struct tdm_list node;
        struct bus_job *job; /* whose pipe or journal it is to keep; NULL: it is to drop something */
        bool of_pipe;
        char name[40];
};

/* false: there is no room, so the word is to be said again. */
static bool word_say(const struct bus_word *w, int *ret)
{
        struct bus_job *job = w->job;

        if (!job)
                *ret = tdm_notify_forget(w->name, false);
        else
                *ret = tdm_notify_store(w->name, w->of_pipe ? job->stream.fd : bus_journal_fd(job->journal));
        /* The second: too many descriptors are under way. */
        if (*ret == -EAGAIN || *ret == -ETOOMANYREFS || *ret == -ENOBUFS)
                return false;
        if (*ret == 0 && job && !w->of_pipe)
                job->job->reattaches = true;
        return true;
}

/* Says it now or later. A negative errno: never. */
static int word_put(struct tdm_dbus *bus, const struct bus_word *word)
{
        struct bus_word *w;
        int r;

        if (tdm_list_empty(&bus->journals.words) && word_say(word, &r))
                return r;
        w = malloc(sizeof(*w));
        if (!w)
                return -ENOMEM;
        *w = *word;
        tdm_list_append(&bus->journals.words, &w->node);
        bus_tick_soon(bus, tdm_now_ns() + RETRY_NS);
        return 0;
}

static void word_free(struct bus_word *w)
{
        tdm_list_remove(&w->node);
        free(w);
}

void bus_stored_forget(struct tdm_dbus *bus, const char *name)
{
        struct bus_word word = { 0 }, *w;

        tdm_list_for_each(w, &bus->journals.words, struct bus_word, node)
                if (w->job && strcmp(w->name, name) == 0) {
                        word_free(w); /* it never heard of it */
                        return;
                }
        snprintf(word.name, sizeof(word.name), "%s", name);
        (void)word_put(bus, &word);
}

uint64_t bus_stored_tick(struct tdm_dbus *bus, uint64_t now_ns)
{
        while (!tdm_list_empty(&bus->journals.words)) {
                struct bus_word *w = tdm_list_entry(bus->journals.words.next, struct bus_word, node);
                struct bus_job *job = w->job;
                int r;

                if (!word_say(w, &r))
                        return now_ns + RETRY_NS;
                word_free(w);
                if (r < 0 && job)
                        bus_journal_give_up(job, r);
        }
        return 0;
}

void bus_stored_end(struct tdm_dbus *bus)
{
        bool waits = true; /* no tick comes that could say it again */
        struct bus_word *w;

        tdm_list_for_each(w, &bus->journals.words, struct bus_word, node) {
                if (!w->job)
                        waits = tdm_notify_forget(w->name, waits) != -EAGAIN && waits;
                word_free(w);
        }
}

static void pipe_name(const struct bus_job *job, char name[40])
{
        snprintf(name, 40, "%.30s" BUS_STORED_PIPE, job->stored_as);
}

/* The reader finds the end of the file when the manager has dropped its copy. */
static void forget_pipe(struct bus_job *job)
{
        char name[40];

        if (!job->pipe_stored)
                return;
        job->pipe_stored = false;
        pipe_name(job, name);
        bus_stored_forget(job->bus, name);
}

static int store(struct bus_job *job)
{
        struct bus_word word = { .job = job };
        int r = 0;

        if (bus_stream_is_open(&job->stream)) {
                word.of_pipe = true;
                pipe_name(job, word.name);
                r = word_put(job->bus, &word);
                job->pipe_stored = r == 0;
        }
        if (r == 0) {
                word.of_pipe = false;
                snprintf(word.name, sizeof(word.name), "%s", job->stored_as);
                r = word_put(job->bus, &word);
        }
        return r;
}

/* ---- beginning ---- */

/* A job that has ended makes room for one that runs. */
static bool make_room(struct tdm_dbus *bus)
{
        struct bus_job *job;

        if (bus->journals.n < bus->journals.max)
                return true;
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (job->ended && job->journal && !bus_stream_is_open(&job->stream)) {
                        bus_journal_end(job);
                        return bus->journals.n < bus->journals.max;
                }
        return false;
}

static int make_journal(struct bus_job *job, const void *call, size_t size)
{
        struct bus_journal_head head;
        char *id = dbus_connection_get_server_id(job->bus->connection);

        memset(&head, 0, sizeof(head)); /* padding is written too */
        head.uid = job->uid;
        head.output = job->output;
        head.begun_ns = tdm_now_ns();
        head.request_size = size;
        snprintf(head.path, sizeof(head.path), "%s", job->path);
        snprintf(head.owner, sizeof(head.owner), "%s", job->owner->name);
        snprintf(head.bus, sizeof(head.bus), "%s", id ? id : "");
        dbus_free(id);
        return bus_journal_new(&job->journal, &head, call);
}

void bus_journal_begin(struct bus_job *job, DBusMessage *message)
{
        struct tdm_dbus *bus = job->bus;
        uint64_t number = 0;
        char *bytes = NULL;
        int size = 0, r;

        if (job->ended || !make_room(bus) || getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number) ||
            dbus_message_contains_unix_fds(message) || !dbus_message_marshal(message, &bytes, &size))
                return;
        r = bus_may_keep_journal(bus, job->login, (uint64_t)size) ? make_journal(job, bytes, (size_t)size) : -EDQUOT;
        explicit_bzero(bytes, (size_t)size);
        dbus_free(bytes);
        if (r < 0) {
                tdm_log_debug("job %" PRIu64 " has no journal: %s", job->job->id, strerror(-r));
                return;
        }
        bus->journals.n++;
        if (bus_stream_is_open(&job->stream))
                job->stream.journal = job->journal;
        snprintf(job->stored_as, sizeof(job->stored_as), TDM_DBUS_STORED "%016" PRIx64, number);
        bus_journal_settle(job, 0);
        if (!job->journal)
                return;
        r = store(job);
        if (r < 0)
                bus_journal_give_up(job, r);
}

/* ---- while it runs ---- */

static void drop_journal(struct bus_job *job)
{
        struct bus_word *w;

        tdm_list_for_each(w, &job->bus->journals.words, struct bus_word, node)
                if (w->job == job)
                        word_free(w);
        job->stream.journal = NULL;
        bus_journal_freep(&job->journal);
        job->bus->journals.n--;
}

void bus_journal_give_up(struct bus_job *job, int r)
{
        struct bus_stream *s = &job->stream;

        tdm_log_warning("the journal of job %" PRIu64 " cannot be kept: %s; the job ends with this daemon",
                        job->job->id, strerror(-r));
        job->job->reattaches = false;
        if (s->journal)
                bus_stream_leave_journal(s);
        bus_stored_forget(job->bus, job->stored_as);
        forget_pipe(job);
        drop_journal(job);
}

void bus_journal_text(struct bus_job *job, const char *text, size_t size)
{
        int r = job->journal ? bus_journal_add_text(job->journal, text, size) : 0;

        if (r < 0)
                bus_journal_give_up(job, r);
}

bool bus_journal_output(struct bus_job *job, const char *data, size_t size)
{
        struct bus_stream *s = &job->stream;
        size_t waiting, block = BUS_MAX_OUTPUT_BYTES / 16;
        int r;

        if (!s->journal)
                return false;
        if (!bus_stream_is_open(s) || s->over)
                return true;
        waiting = bus_stream_waiting(s);
        if (waiting + size > BUS_MAX_OUTPUT_BYTES ||
            (waiting / block != (waiting + size) / block && !bus_may_keep(job->bus, job->login, block))) {
                s->cut = s->over = true; /* what waits goes when it is committed */
                return true;
        }
        r = bus_journal_add_output(s->journal, data, size);
        if (r == 0)
                return true;
        bus_journal_give_up(job, r);
        return false;
}

bool bus_journal_has(const struct bus_job *job, uint64_t flag)
{
        return job->journal && (bus_journal_state(job->journal)->flags & flag);
}

void bus_journal_settle(struct bus_job *job, uint64_t flags)
{
        struct bus_journal_state *s;
        int r;

        if (!job->journal)
                return;
        s = bus_journal_state(job->journal);
        s->text_bytes = job->text_bytes;
        s->sequence = job->sequence;
        s->flags = (s->flags & (uint64_t)(BUS_JOURNAL_ACCEPTED | BUS_JOURNAL_ENDED)) | flags |
                   (job->lingers ? BUS_JOURNAL_LINGERS : 0) | (job->stream.cut ? BUS_JOURNAL_CUT : 0) |
                   (job->text_truncated ? BUS_JOURNAL_TRUNCATED : 0);
        if (job->job->stats.numerics_id[0])
                snprintf(s->numerics, sizeof(s->numerics), "%s", job->job->stats.numerics_id);
        r = bus_journal_commit(job->journal);
        if (r < 0) {
                bus_journal_give_up(job, r);
                return;
        }
        bus_journal_push(job);
}

void bus_journal_push(struct bus_job *job)
{
        int r = job->stream.journal ? bus_stream_settle(&job->stream) : 0;

        if (r < 0)
                bus_journal_give_up(job, r);
        if (!bus_stream_is_open(&job->stream)) {
                job->stream.journal = NULL;
                forget_pipe(job);
        }
}

bool bus_journal_repeats(struct bus_job *job, uint32_t index, const struct tdm_job_token *t)
{
        const struct bus_journal_token *earlier = &job->last[index % TDM_ARRAY_SIZE(job->last)];
        int r;

        if (job->differs)
                return true;
        if (index < job->n_earlier) {
                job->differs = earlier->id != t->id || memcmp(&earlier->logprob, &t->logprob, sizeof(t->logprob)) != 0;
                if (job->differs)
                        bus_tick_soon(job->bus, tdm_now_ns());
                return true;
        }
        r = job->journal ? bus_journal_add_token(job->journal, t->id, t->logprob) : 0;
        if (r < 0)
                bus_journal_give_up(job, r);
        return false;
}

void bus_journal_say_differs(struct tdm_error *err, const char *why)
{
        tdm_error_set(err, TDM_E_MODEL_CHANGED,
                      "tandemd came back with another model, or other arithmetic, under the same name%s%s",
                      why[0] ? ": " : "", why);
}

void bus_journal_differs(struct bus_job *job)
{
        struct tdm_error err;

        if (job->ended)
                return;
        bus_journal_say_differs(&err, "");
        tdm_scheduler_cancel(job->bus->scheduler, job->job, &err);
}

/* ---- its end ---- */

void bus_journal_note_end(struct bus_job *job)
{
        struct tdm_job_ended ended;
        int r;

        if (!job->journal)
                return;
        tdm_job_read_end(job->job, &ended);
        r = bus_journal_set_end(job->journal, &ended, sizeof(ended));
        if (r < 0)
                bus_journal_give_up(job, r);
        bus_journal_settle(job, BUS_JOURNAL_ENDED);
}

bool bus_journal_is_left(const struct bus_job *job)
{
        const struct tdm_job *j = job->job;

        return job->journal && j->reattaches && job->bus->draining && j->end == TDM_JOB_END_ERROR &&
               j->error.code == TDM_E_DRAINING;
}

void bus_journal_leave(struct bus_job *job)
{
        job->changed = false; /* nobody is told of an end that is none */
        if (!job->job->reattaches)
                forget_pipe(job); /* its journal was never heard of: no next daemon would drop the pipe */
        job->pipe_stored = false;
        bus_stream_deinit(&job->stream);
        drop_journal(job);
}

void bus_journal_end(struct bus_job *job)
{
        if (!job->journal)
                return;
        if (!job->bus->draining) { /* else the next daemon has the object */
                bus_stored_forget(job->bus, job->stored_as);
                forget_pipe(job);
        } else if (!job->job->reattaches) {
                forget_pipe(job);
        }
        drop_journal(job);
}
