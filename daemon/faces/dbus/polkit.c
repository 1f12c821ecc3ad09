/* May they? On a user's own bus: the user and root may do everything. On the system's: what polkit says, asked on the
 * bus and answered from the loop; root and the daemon's own user are not asked about.
 *
 * Where there is no polkit, every user may generate within the quotas (as over the socket) and only root may do
 * the rest. Any other answer than a clear yes is a no: polkit that fails, that does not know the action (the policy
 * file is not installed), or that would have to ask a person the caller did not offer to ask. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

#define POLKIT_NAME "org.freedesktop.PolicyKit1"
#define ASKING_A_PERSON_MS 120000
#define ANSWER_MS 10000

static const char *const action_ids[] = {
        [BUS_GENERATE] = BUS_NAME ".generate",
        [BUS_MANAGE_MODELS] = BUS_NAME ".manage-models",
        [BUS_RESTART_WORKER] = BUS_NAME ".restart-worker",
        [BUS_VIEW_OTHERS] = BUS_NAME ".view-others",
};

static void call_go_on(struct bus_peer *peer, DBusMessage *message, enum bus_action action, bool yes, const char *why)
{
        char text[512];

        if (action == BUS_VIEW_OTHERS) /* a no only means that there is nothing to be seen */
                bus_object_call(peer, message, BUS_ANYBODY, yes ? BUS_POLKIT_YES : BUS_POLKIT_NO);
        else if (yes)
                bus_object_call(peer, message, action, BUS_POLKIT_UNKNOWN);
        else {
                snprintf(text, sizeof(text), "user %u may not: %s", (unsigned)peer->uid, why);
                bus_reply_failed(peer->bus, message, TDM_E_DENIED, text);
        }
}

/* (bba{ss}) */
static bool read_answer(DBusMessage *reply, enum bus_action action, char *why, size_t size)
{
        DBusMessageIter args, answer;
        dbus_bool_t yes, challenge;
        const char *error;

        if (!reply) {
                snprintf(why, size, "out of memory");
                return false;
        }
        error = dbus_message_get_error_name(reply);
        if (error &&
            (strcmp(error, DBUS_ERROR_SERVICE_UNKNOWN) == 0 || strcmp(error, DBUS_ERROR_NAME_HAS_NO_OWNER) == 0)) {
                snprintf(why, size, "there is no polkit on this bus, and so only root may do that");
                return action == BUS_GENERATE;
        }
        if (error) {
                DBusError e = DBUS_ERROR_INIT;

                dbus_set_error_from_message(&e, reply);
                tdm_log_warning("polkit does not answer for action %s: %s", action_ids[action], e.message);
                snprintf(why, size, "polkit does not answer for action %s: %.*s", action_ids[action],
                         TDM_UTF8_CUT(e.message, 200));
                dbus_error_free(&e);
                return false;
        }
        if (!dbus_message_has_signature(reply, "(bba{ss})") || !dbus_message_iter_init(reply, &args)) {
                snprintf(why, size, "polkit's answer makes no sense");
                return false;
        }
        dbus_message_iter_recurse(&args, &answer);
        dbus_message_iter_get_basic(&answer, &yes);
        dbus_message_iter_next(&answer);
        dbus_message_iter_get_basic(&answer, &challenge);
        snprintf(why, size, "polkit action %s is not granted%s", action_ids[action],
                 challenge ? "; it could be after authentication, by an agent that can ask for it" : "");
        return yes;
}

static void on_answer(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct bus_held *held = userdata;
        struct bus_peer *peer = held->peer;
        DBusMessage *message = dbus_message_ref(held->message);
        struct tdm_dbus *bus = peer->bus;
        enum bus_action action = held->action;
        char why[400];
        bool yes = read_answer(reply, action, why, sizeof(why));

        bus_held_free(held);
        if (reply)
                dbus_message_unref(reply);
        call_go_on(peer, message, action, yes, why);
        bus_message_done(bus, bus_peer_of(bus, message), message);
}

static DBusMessage *question(const struct bus_peer *peer, enum bus_action action, bool interactive)
{
        struct bus_writer w;

        bus_writer_init(&w, dbus_message_new_method_call(POLKIT_NAME, "/org/freedesktop/PolicyKit1/Authority",
                                                         POLKIT_NAME ".Authority", "CheckAuthorization"));
        bus_open(&w, DBUS_TYPE_STRUCT, NULL);
        bus_write_string(&w, "system-bus-name");
        bus_open(&w, DBUS_TYPE_ARRAY, "{sv}");
        bus_entry_string(&w, "name", peer->name);
        bus_close(&w);
        bus_close(&w);
        bus_write_string(&w, action_ids[action]);
        bus_open(&w, DBUS_TYPE_ARRAY, "{ss}");
        bus_close(&w);
        bus_write_u32(&w, interactive);
        bus_write_string(&w, ""); /* nothing to cancel it by: it is forgotten when the caller leaves */
        return bus_writer_finish(&w);
}

/* ---- of processes that are not on the bus ---- */

struct tdm_dbus_question {
        struct tdm_list node;
        struct tdm_dbus *bus;
        DBusPendingCall *asking;
        void (*answer)(bool yes, const char *why, void *userdata);
        void *userdata;
};

void tdm_dbus_forget_question(struct tdm_dbus_question *q)
{
        bus_forget_asking(&q->asking);
        tdm_list_remove(&q->node);
        q->bus->n_questions--;
        free(q);
}

static void on_question_answered(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct tdm_dbus_question *q = userdata;
        void (*answer)(bool yes, const char *why, void *userdata) = q->answer;
        void *to = q->userdata;
        char why[400];
        bool yes = read_answer(reply, BUS_MANAGE_MODELS, why, sizeof(why));

        if (reply)
                dbus_message_unref(reply);
        tdm_dbus_forget_question(q);
        answer(yes, why, to);
}

static void write_entry(struct bus_writer *w, const char *key, int type, const void *value)
{
        const char signature[] = { (char)type, '\0' };

        bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
        bus_write_string(w, key);
        bus_open(w, DBUS_TYPE_VARIANT, signature);
        bus_write(w, type, value);
        bus_close(w);
        bus_close(w);
}

int tdm_dbus_ask_load(struct tdm_dbus *bus, pid_t pid, uint64_t start_time, uid_t uid,
                      void (*answer)(bool yes, const char *why, void *userdata), void *userdata,
                      struct tdm_dbus_question **ret)
{
        struct tdm_dbus_question *q;
        struct bus_writer w;
        dbus_uint32_t id = (dbus_uint32_t)pid;
        dbus_int32_t user = (dbus_int32_t)uid;
        dbus_uint64_t time = start_time;
        int r;

        if (!bus || !bus->system || !bus->registered)
                return -ENOTCONN;
        if (bus->n_questions >= BUS_MAX_QUESTIONS)
                return -EBUSY;
        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        *q = (struct tdm_dbus_question){ .bus = bus, .answer = answer, .userdata = userdata };
        tdm_list_append(&bus->questions, &q->node);
        bus->n_questions++;
        bus_writer_init(&w, dbus_message_new_method_call(POLKIT_NAME, "/org/freedesktop/PolicyKit1/Authority",
                                                         POLKIT_NAME ".Authority", "CheckAuthorization"));
        bus_open(&w, DBUS_TYPE_STRUCT, NULL);
        bus_write_string(&w, "unix-process");
        bus_open(&w, DBUS_TYPE_ARRAY, "{sv}");
        write_entry(&w, "pid", DBUS_TYPE_UINT32, &id);
        write_entry(&w, "start-time", DBUS_TYPE_UINT64, &time);
        write_entry(&w, "uid", DBUS_TYPE_INT32, &user);
        bus_close(&w);
        bus_close(&w);
        bus_write_string(&w, action_ids[BUS_MANAGE_MODELS]);
        bus_open(&w, DBUS_TYPE_ARRAY, "{ss}");
        bus_close(&w);
        bus_write_u32(&w, 0); /* the socket has no way to offer a dialogue */
        bus_write_string(&w, "");
        {
                DBusMessage *ask = bus_writer_finish(&w);

                r = ask ? bus_ask(bus, ask, ANSWER_MS, on_question_answered, q, &q->asking) : -ENOMEM;
        }
        if (r < 0) {
                tdm_dbus_forget_question(q);
                return r;
        }
        *ret = q;
        return 0;
}

void bus_polkit_end(struct tdm_dbus *bus)
{
        struct tdm_dbus_question *q;

        tdm_list_for_each(q, &bus->questions, struct tdm_dbus_question, node) {
                void (*answer)(bool yes, const char *why, void *userdata) = q->answer;
                void *to = q->userdata;

                tdm_dbus_forget_question(q);
                answer(false, "tandemd ends", to);
        }
}

void bus_authorize(struct bus_peer *peer, DBusMessage *message, enum bus_action action)
{
        struct tdm_dbus *bus = peer->bus;
        struct tdm_error err = { 0 };
        bool interactive = action != BUS_VIEW_OTHERS && dbus_message_get_allow_interactive_authorization(message);
        struct bus_held *held;
        DBusMessage *ask;
        int r;

        if (bus_peer_is_root(peer) || (action != BUS_VIEW_OTHERS && bus_peer_is_admin(peer))) {
                call_go_on(peer, message, action, true, NULL);
                return;
        }
        if (!bus->system) { /* a user's bus: others have been turned away */
                call_go_on(peer, message, action, false, "this tandemd serves its own user only");
                return;
        }
        r = bus_peer_hold(peer, message, 0, &held, &err);
        if (r != 0) {
                bus_reply_failed(bus, message, r, err.message);
                return;
        }
        held->action = action;
        ask = question(peer, action, interactive);
        if (ask && bus_ask(bus, ask, interactive ? ASKING_A_PERSON_MS : ANSWER_MS, on_answer, held, &held->asking) == 0)
                return;
        bus_held_free(held);
        bus_reply_failed(bus, message, TDM_E_NO_MEMORY, "cannot ask polkit: out of memory");
}
