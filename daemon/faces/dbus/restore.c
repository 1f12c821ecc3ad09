/* Jobs of the bus that an earlier daemon began. The service manager passes their journals and pipes, under the names
 * that they were given to it by (outlive.c).
 *
 * The bus is asked who the owners are. One that has left gets nothing: its jobs are forgotten, but for those that
 * linger. Then each job begins anew under its old path: its call is read as if it came now, and its tokens are given to
 * it as drawn, but for the last COMPARED. Those are drawn again and compared, bit by bit: so a model that was exchanged
 * is found out. A job that had ended is shown again, and what its pipe had not taken goes. The name is requested when
 * all are there, so no call misses its object.
 *
 * Journals come from outside, and the sums in them are no seal. What one says is checked as a caller's words are. */
#include "daemon/faces/dbus/private.h"

#include <sys/stat.h>
#include "common/id-list.h"
#include "common/log.h"
#include "common/notify.h"

#define COMPARED TDM_ARRAY_SIZE(((struct bus_job *)NULL)->last)

struct bus_stored {
        struct tdm_list node;
        struct bus_journal *journal;
        int pipe_fd; /* -1: nobody reads */
        char name[40], pipe_name[40];
        bool asked; /* the bus, who its owner is */
        bool left;  /* its owner; the job lingers */
};

static void stored_free(struct bus_stored *st)
{
        tdm_list_remove(&st->node);
        bus_journal_free(st->journal);
        closep(&st->pipe_fd);
        free(st);
}

static void stored_drop(struct tdm_dbus *bus, struct bus_stored *st, const char *why)
{
        tdm_log_info("job %s of an earlier daemon is forgotten: %s", bus_journal_head(st->journal)->path, why);
        bus_stored_forget(bus, st->name);
        if (st->pipe_fd >= 0)
                bus_stored_forget(bus, st->pipe_name);
        stored_free(st);
}

/* ---- what the manager passes ---- */

static bool is_of_kind(int fd, mode_t kind)
{
        struct stat st;

        return fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == kind;
}

static bool is_known(const struct tdm_dbus *bus, const char *name)
{
        struct bus_stored *st;

        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                if (strcmp(st->name, name) == 0)
                        return true;
        return false;
}

/* libdbus ends the program over a name that is none. */
static bool is_a_unique_name(const char *name)
{
        return name[0] == ':' && dbus_validate_bus_name(name, NULL);
}

static void take_journal(struct tdm_dbus *bus, struct tdm_dbus_stored *from)
{
        struct bus_stored *st;
        struct tdm_error err = { 0 };

        if (!is_of_kind(from->fd, S_IFREG) || is_known(bus, from->name))
                return;
        st = calloc(1, sizeof(*st));
        if (!st)
                return;
        tdm_list_init(&st->node);
        st->pipe_fd = -1;
        snprintf(st->name, sizeof(st->name), "%s", from->name);
        snprintf(st->pipe_name, sizeof(st->pipe_name), "%.30s" BUS_STORED_PIPE, from->name);
        if (bus_journal_open(&st->journal, from->fd, &err) != 0) {
                tdm_log_warning("a job of an earlier daemon is forgotten: its journal cannot be used, %s", err.message);
                stored_free(st);
                return;
        }
        from->fd = -1;
        if (!is_a_unique_name(bus_journal_head(st->journal)->owner)) {
                stored_drop(bus, st, "no bus has an owner of its name");
                return;
        }
        tdm_list_append(&bus->journals.stored, &st->node);
}

static void take_pipe(struct bus_stored *st, struct tdm_dbus_stored *stored, size_t n)
{
        for (size_t i = 0; i < n && st->pipe_fd < 0; i++)
                if (strcmp(st->pipe_name, stored[i].name) == 0 && is_of_kind(stored[i].fd, S_IFIFO))
                        st->pipe_fd = steal_fd(&stored[i].fd);
}

static unsigned most_journals(void)
{
        const char *n = getenv("FDSTORE") ? getenv("FDSTORE") : getenv("TANDEM_FDSTORE");

        return n && getenv("NOTIFY_SOCKET") ? (unsigned)TDM_MIN(strtoul(n, NULL, 10), 1024ul) / 2 : 0;
}

void bus_restore_take(struct tdm_dbus *bus, struct tdm_dbus_stored *stored, size_t n)
{
        struct bus_stored *st;

        bus->journals.max = most_journals();
        for (size_t i = 0; i < n; i++)
                take_journal(bus, &stored[i]);
        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                take_pipe(st, stored, n);
        /* A pipe that stayed open would hold back its reader's end of the file. */
        for (size_t i = 0; i < n; i++)
                if (stored[i].fd >= 0) {
                        bus_stored_forget(bus, stored[i].name);
                        closep(&stored[i].fd);
                }
}

void bus_restore_none(struct tdm_dbus_stored *stored, size_t n)
{
        bool waits = true; /* no tick comes that could say it again */

        for (size_t i = 0; i < n; i++) {
                waits = tdm_notify_forget(stored[i].name, waits) != -EAGAIN && waits;
                closep(&stored[i].fd);
        }
}

void bus_restore_end(struct tdm_dbus *bus)
{
        struct bus_stored *st;

        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                stored_free(st);
}

/* ---- beginning one anew ---- */

/* The call as it came. NULL: it is none of those. */
static DBusMessage *stored_call(struct bus_stored *st, bool *ret_chat)
{
        size_t size = bus_journal_head(st->journal)->request_size;
        char *bytes = bus_journal_read_request(st->journal);
        DBusMessage *call = bytes ? dbus_message_demarshal(bytes, (int)size, NULL) : NULL;

        if (bytes)
                explicit_bzero(bytes, size);
        free(bytes);
        if (!call)
                return NULL;
        *ret_chat = dbus_message_has_signature(call, "a(ss)a{sv}");
        if (dbus_message_get_type(call) == DBUS_MESSAGE_TYPE_METHOD_CALL &&
            (*ret_chat || dbus_message_has_signature(call, "sa{sv}")))
                return call;
        dbus_message_unref(call);
        return NULL;
}

static bool path_is_ours(const char *path)
{
        return strncmp(path, BUS_ROOT "/jobs/", strlen(BUS_ROOT "/jobs/")) == 0 && dbus_validate_path(path, NULL);
}

/* Its tokens but for the last ones, as the option has them; *last has those. NULL: no memory. */
static char *drawn_of(struct bus_stored *st, struct bus_journal_token *last)
{
        size_t n = bus_journal_state(st->journal)->n_tokens, n_drawn = n - TDM_MIN(n, (size_t)COMPARED);
        _cleanup_(freep) struct bus_journal_token *tokens = bus_journal_read_tokens(st->journal);
        _cleanup_(freep) uint32_t *ids = malloc((n_drawn + 1) * sizeof(*ids));

        if (!tokens || !ids)
                return NULL;
        for (size_t i = 0; i < n_drawn; i++)
                ids[i] = tokens[i].id;
        for (size_t i = n_drawn; i < n; i++)
                last[i % COMPARED] = tokens[i];
        return tdm_id_list_format(ids, n_drawn);
}

static void lessen_deadline(struct tdm_job_options *o, uint64_t begun_ns)
{
        uint64_t gone_ms = (tdm_now_ns() - begun_ns) / TDM_NSEC_PER_MSEC;

        if (o->deadline_ms > 0)
                o->deadline_ms = gone_ms < o->deadline_ms ? o->deadline_ms - (uint32_t)gone_ms : 1;
}

/* What the job had told. Its journal and its pipe become the job's. */
static int put_back(struct bus_job *job, struct bus_stored *st)
{
        const struct bus_journal_state *s = bus_journal_state(st->journal);
        _cleanup_(freep) char *text = bus_journal_read_text(st->journal);

        if (!text)
                return -ENOMEM;
        bus_job_restore_text(job, text, s->text_size);
        explicit_bzero(text, s->text_size);
        snprintf(job->path, sizeof(job->path), "%s", bus_journal_head(st->journal)->path);
        job->text_bytes = s->text_bytes;
        job->text_truncated |= (s->flags & BUS_JOURNAL_TRUNCATED) != 0;
        job->sequence = s->sequence;
        job->lingers = (s->flags & BUS_JOURNAL_LINGERS) != 0;
        job->n_earlier = s->n_tokens;
        if (s->n_tokens > 0)
                snprintf(job->told_numerics, sizeof(job->told_numerics), "%s", s->numerics);
        job->stream.over = job->stream.cut = (s->flags & BUS_JOURNAL_CUT) != 0; /* or there would be a hole */
        snprintf(job->stored_as, sizeof(job->stored_as), "%s", st->name);
        job->journal = steal_ptr(&st->journal);
        job->bus->journals.n++;
        job->stream.fd = steal_fd(&st->pipe_fd);
        if (job->stream.fd >= 0)
                job->stream.journal = job->journal;
        job->pipe_stored = job->stream.fd >= 0;
        job->job->reattaches = true;
        return 0;
}

static int read_call(struct bus_stored *st, DBusMessage *call, bool chat, struct bus_request *request,
                     struct tdm_error *err)
{
        DBusMessageIter args;
        int r;

        if (!dbus_message_iter_init(call, &args))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its call is empty");
        r = bus_read_request(&args, chat, request, err);
        if (r != 0)
                return r;
        lessen_deadline(&request->params.options, bus_journal_head(st->journal)->begun_ns);
        request->output = (enum bus_output)bus_journal_head(st->journal)->output;
        request->restored = true;
        return 0;
}

/* What it said stays, and it has ended or begins behind that. Nothing fails after put_back(): the journal is its. */
static int restore_job(struct tdm_dbus *bus, const struct bus_job_owner *owner, struct bus_stored *st,
                       struct bus_request *request, struct tdm_error *err)
{
        const struct bus_journal_state *s = bus_journal_state(st->journal);
        bool ended = s->flags & BUS_JOURNAL_ENDED;
        struct bus_journal_token last[COMPARED] = { 0 };
        _cleanup_(freep) char *drawn = drawn_of(st, last);
        struct tdm_job_ended end;
        struct bus_job *job;
        int r;

        if (!drawn)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        if (s->n_tokens > COMPARED) {
                request->params.options.drawn = drawn;
                request->params.options.drawn_numerics = s->numerics;
        }
        r = bus_job_new(bus, owner, request, &job, err);
        if (r != 0)
                return r;
        memcpy(job->last, last, sizeof(last));
        if (ended &&
            (bus_journal_read_end(st->journal, &end, sizeof(end)) < 0 || tdm_job_restore_end(job->job, &end) < 0))
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "its end is none that a job comes to");
        else if (put_back(job, st) < 0)
                r = tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        if (r != 0) {
                bus_job_free(job);
                return r;
        }
        bus_job_restored(job, ended);
        return 0;
}

static void restore_one(struct tdm_dbus *bus, const struct bus_job_owner *owner, struct bus_stored *st)
{
        const struct bus_journal_head *head = bus_journal_head(st->journal);
        _cleanup_(bus_request_deinit) struct bus_request request = { .model_fd = -1 };
        char path[BUS_MAX_PATH];
        struct tdm_error err = { 0 };
        DBusMessage *call = NULL;
        bool chat = false, ended = bus_journal_state(st->journal)->flags & BUS_JOURNAL_ENDED;
        int r;

        snprintf(path, sizeof(path), "%s", head->path);
        if (head->uid != owner->uid)
                r = tdm_error_set(&err, TDM_E_DENIED, "its owner's name belongs to another user");
        else if (head->output > BUS_OUTPUT_NONE || !path_is_ours(path) || bus_job_find(bus, path) ||
                 !(call = stored_call(st, &chat)))
                r = tdm_error_set(&err, TDM_E_BAD_REQUEST, "its journal has no call that was ever taken");
        else
                r = read_call(st, call, chat, &request, &err);
        if (r == 0)
                r = restore_job(bus, owner, st, &request, &err);
        if (call)
                dbus_message_unref(call);
        if (r != 0) {
                stored_drop(bus, st, err.message);
                return;
        }
        tdm_log_info("job %s of an earlier daemon %s", path, ended ? "is shown again: it has ended" : "goes on");
        stored_free(st);
}

/* ---- who owns them ---- */

void bus_restore_look(struct tdm_dbus *bus)
{
        if (tdm_list_empty(&bus->journals.stored) && bus->registered && !bus->draining)
                bus_name_request(bus);
}

static void owner_left(struct tdm_dbus *bus, struct bus_stored *st)
{
        uid_t uid = (uid_t)bus_journal_head(st->journal)->uid;
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = NULL;

        if (!(bus_journal_state(st->journal)->flags & BUS_JOURNAL_LINGERS)) {
                stored_drop(bus, st, "its owner has left the bus");
                return;
        }
        st->left = st->asked = true;
        if (!bus->registered)
                return; /* it waits for the bus */
        account = tdm_accounts_get(bus->accounts, uid);
        if (account)
                restore_one(bus, &(const struct bus_job_owner){ .uid = uid, .account = account }, st);
        else
                stored_drop(bus, st, "out of memory");
}

void bus_restore_owner_left(struct tdm_dbus *bus, const char *owner)
{
        bool any = false;
        struct bus_stored *st;

        if (bus->draining)
                return; /* they are the next daemon's */
        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                if (strcmp(bus_journal_head(st->journal)->owner, owner) == 0) {
                        owner_left(bus, st);
                        any = true;
                }
        if (any)
                bus_restore_look(bus);
}

void bus_restore_of(struct bus_peer *peer)
{
        const struct bus_job_owner owner = { .peer = peer, .uid = peer->uid, .account = peer->account };
        struct bus_stored *st;
        bool any = false;

        if (peer->bus->draining)
                return; /* they are the next daemon's */
        tdm_list_for_each(st, &peer->bus->journals.stored, struct bus_stored, node)
                if (!st->left && strcmp(bus_journal_head(st->journal)->owner, peer->name) == 0) {
                        restore_one(peer->bus, &owner, st);
                        any = true;
                }
        if (any)
                bus_restore_look(peer->bus);
}

static struct bus_stored *next_to_ask(struct tdm_dbus *bus)
{
        struct bus_stored *st;

        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                if (!st->asked)
                        return st;
        return NULL;
}

/* Another bus gives the names of the earlier one to others. */
static bool is_of_this_bus(const struct tdm_dbus *bus, const struct bus_stored *st)
{
        char *id = dbus_connection_get_server_id(bus->connection);
        bool same = id && strcmp(id, bus_journal_head(st->journal)->bus) == 0;

        dbus_free(id);
        return same;
}

bool bus_restore_next(struct tdm_dbus *bus, char owner[256])
{
        struct bus_stored *st = next_to_ask(bus);

        if (!st)
                return false;
        st->asked = true;
        snprintf(owner, 256, "%s", bus_journal_head(st->journal)->owner);
        return true;
}

void bus_restore_begin(struct tdm_dbus *bus)
{
        struct bus_stored *st;

        tdm_list_for_each(st, &bus->journals.stored, struct bus_stored, node)
                if (st->left || !is_of_this_bus(bus, st))
                        owner_left(bus, st);
}
