/* Sleep: systemd-logind tells before the machine sleeps and after, and waits a few seconds for those who asked it to (a
 * delay inhibitor). A connection of its own to the system's bus, whichever bus the face serves.
 *
 * Nothing waits: Hello, the match and Inhibit are calls whose answers come through the loop. No system bus, or no
 * logind on it, is no error: then sleep comes unannounced. What this will not do: decide what to do about it. */
#include "daemon/faces/dbus/private.h"

#include <unistd.h>
#include "common/log.h"

#define LOGIND_NAME "org.freedesktop.login1"
#define LOGIND_PATH "/org/freedesktop/login1"
#define LOGIND_MANAGER LOGIND_NAME ".Manager"
#define SYSTEM_BUS "unix:path=/run/dbus/system_bus_socket"
#define CALL_TIMEOUT_MS 20000
#define RETRY_MIN_NS (5 * TDM_NSEC_PER_SEC)
#define RECEIVED_MAX (64 * 1024)
#define FDS_MAX 4
#define RETRY_MAX_NS (600 * TDM_NSEC_PER_SEC)

struct tdm_logind {
        struct tdm_loop *loop;
        struct tdm_logind_callbacks callbacks;
        void *userdata;
        DBusConnection *connection; /* NULL: not connected */
        DBusPendingCall *asking;    /* Hello, then Inhibit */
        struct tdm_source *dispatch, *retry;
        uint64_t retry_ns;
        bool lost;     /* to be torn down */
        bool asleep;   /* said so, and not yet that it is over */
        char *owner;   /* logind's unique name; NULL: it has not answered yet */
        int inhibitor; /* open: the machine does not sleep yet */
};

/* ---- watches on the loop ---- */

static void remove_watch(DBusWatch *watch, void *userdata)
{
        tdm_source_destroy(dbus_watch_get_data(watch));
        dbus_watch_set_data(watch, NULL, NULL);
}

static dbus_bool_t add_watch(DBusWatch *watch, void *userdata)
{
        struct tdm_logind *logind = userdata;
        struct tdm_source *source;

        remove_watch(watch, NULL);
        if (!dbus_watch_get_enabled(watch))
                return TRUE;
        if (tdm_loop_add_io(logind->loop, dbus_watch_get_unix_fd(watch), bus_watch_events(watch), bus_on_watch, watch,
                            &source) < 0)
                return FALSE;
        dbus_watch_set_data(watch, source, NULL);
        return TRUE;
}

static void lose(struct tdm_logind *logind)
{
        logind->lost = true;
        tdm_source_schedule(logind->dispatch);
}

static void toggle_watch(DBusWatch *watch, void *userdata)
{
        if (!add_watch(watch, userdata))
                lose(userdata);
}

static void on_dispatch_status(DBusConnection *connection, DBusDispatchStatus status, void *userdata)
{
        if (status != DBUS_DISPATCH_COMPLETE)
                tdm_source_schedule(((struct tdm_logind *)userdata)->dispatch);
}

/* ---- coming and going ---- */

static void forget(struct tdm_logind *logind)
{
        DBusConnection *connection = steal_ptr(&logind->connection);

        bus_forget_asking(&logind->asking);
        closep(&logind->inhibitor);
        freep(&logind->owner);
        logind->owner = NULL;
        logind->lost = false;
        if (!connection)
                return;
        dbus_connection_set_dispatch_status_function(connection, NULL, NULL, NULL);
        dbus_connection_close(connection);
        dbus_connection_set_watch_functions(connection, NULL, NULL, NULL, NULL, NULL);
        dbus_connection_set_timeout_functions(connection, NULL, NULL, NULL, NULL, NULL);
        dbus_connection_unref(connection);
}

static void wake(struct tdm_logind *logind)
{
        if (!logind->asleep)
                return;
        logind->asleep = false;
        logind->callbacks.awake(logind->userdata);
}

static void retry_later(struct tdm_logind *logind)
{
        forget(logind);
        wake(logind); /* logind cannot say it here any more */
        tdm_source_arm(logind->retry, tdm_now_ns() + logind->retry_ns);
        logind->retry_ns = TDM_MIN(2 * logind->retry_ns, RETRY_MAX_NS);
}

static int on_dispatch(struct tdm_source *source, void *userdata)
{
        struct tdm_logind *logind = userdata;

        if (logind->connection && !logind->lost &&
            dbus_connection_dispatch(logind->connection) != DBUS_DISPATCH_COMPLETE)
                tdm_source_schedule(logind->dispatch);
        if (logind->lost)
                retry_later(logind);
        return 0;
}

static int logind_ask(struct tdm_logind *logind, DBusMessage *message, DBusPendingCallNotifyFunction fn)
{
        bool sent = message &&
                    dbus_connection_send_with_reply(logind->connection, message, &logind->asking, CALL_TIMEOUT_MS) &&
                    logind->asking;

        if (message)
                dbus_message_unref(message);
        if (sent && dbus_pending_call_set_notify(logind->asking, fn, logind, NULL))
                return 0;
        bus_forget_asking(&logind->asking);
        return -ENOMEM;
}

/* ---- talking ---- */

static void on_inhibited(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct tdm_logind *logind = userdata;
        DBusError error = DBUS_ERROR_INIT;
        int fd = -1;

        bus_forget_asking(&logind->asking);
        if (reply && !dbus_set_error_from_message(&error, reply) &&
            dbus_message_get_args(reply, &error, DBUS_TYPE_UNIX_FD, &fd, DBUS_TYPE_INVALID)) {
                freep(&logind->owner);
                logind->owner = strdup(dbus_message_get_sender(reply) ?: "");
                closep(&logind->inhibitor);
                logind->inhibitor = fd;
                logind->retry_ns = RETRY_MIN_NS;
                tdm_log_debug("the machine's sleep waits for running steps");
        } else {
                tdm_log_debug("sleep will come unannounced: %s", error.message ? error.message : "no answer");
        }
        dbus_error_free(&error);
        if (reply)
                dbus_message_unref(reply);
}

static void inhibit(struct tdm_logind *logind)
{
        static const char *const args[] = { "sleep", "Tandem", "running steps end first", "delay" };
        DBusMessage *message = dbus_message_new_method_call(LOGIND_NAME, LOGIND_PATH, LOGIND_MANAGER, "Inhibit");

        bus_forget_asking(&logind->asking);
        if (message)
                dbus_message_set_auto_start(message, FALSE);
        for (size_t i = 0; message && i < TDM_ARRAY_SIZE(args); i++)
                if (!dbus_message_append_args(message, DBUS_TYPE_STRING, &args[i], DBUS_TYPE_INVALID)) {
                        dbus_message_unref(message);
                        message = NULL;
                }
        if (logind_ask(logind, message, on_inhibited) < 0)
                lose(logind);
}

static bool logind_watch_sleep(struct tdm_logind *logind)
{
        static const char *const rules[] = {
                "type='signal',sender='" LOGIND_NAME "',path='" LOGIND_PATH "',interface='" LOGIND_MANAGER
                "',member='PrepareForSleep'",
                "type='signal',sender='" DBUS_SERVICE_DBUS "',path='" DBUS_PATH_DBUS "',interface='" DBUS_INTERFACE_DBUS
                "',member='NameOwnerChanged',arg0='" LOGIND_NAME "'",
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(rules); i++) {
                DBusMessage *message = dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS,
                                                                    DBUS_INTERFACE_DBUS, "AddMatch");
                bool sent =
                        message && dbus_message_append_args(message, DBUS_TYPE_STRING, &rules[i], DBUS_TYPE_INVALID);

                if (sent) {
                        dbus_message_set_no_reply(message, TRUE);
                        sent = dbus_connection_send(logind->connection, message, NULL);
                }
                if (message)
                        dbus_message_unref(message);
                if (!sent)
                        return false;
        }
        return true;
}

static void on_hello(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct tdm_logind *logind = userdata;
        const char *name;

        bus_forget_asking(&logind->asking);
        if (reply && dbus_message_get_args(reply, NULL, DBUS_TYPE_STRING, &name, DBUS_TYPE_INVALID) &&
            dbus_bus_set_unique_name(logind->connection, name) && logind_watch_sleep(logind))
                inhibit(logind);
        else
                lose(logind);
        if (reply)
                dbus_message_unref(reply);
}

/* Every program on the bus may send us a signal, so the sender is checked. */
static bool is_from_logind(const struct tdm_logind *logind, DBusMessage *message)
{
        const char *sender = dbus_message_get_sender(message);

        return logind->owner && sender && strcmp(sender, logind->owner) == 0;
}

static DBusHandlerResult on_message(DBusConnection *connection, DBusMessage *message, void *userdata)
{
        struct tdm_logind *logind = userdata;
        const char *name, *before, *after;
        dbus_bool_t sleeps;

        if (dbus_message_is_signal(message, DBUS_INTERFACE_LOCAL, "Disconnected")) {
                lose(logind);
        } else if (dbus_message_is_signal(message, DBUS_INTERFACE_DBUS, "NameOwnerChanged") &&
                   dbus_message_has_sender(message, DBUS_SERVICE_DBUS) &&
                   dbus_message_get_args(message, NULL, DBUS_TYPE_STRING, &name, DBUS_TYPE_STRING, &before,
                                         DBUS_TYPE_STRING, &after, DBUS_TYPE_INVALID) &&
                   strcmp(name, LOGIND_NAME) == 0) {
                wake(logind); /* who announced the sleep cannot announce its end any more */
                if (after[0] != '\0')
                        inhibit(logind); /* a new one knows nothing of us */
        } else if (dbus_message_is_signal(message, LOGIND_MANAGER, "PrepareForSleep") &&
                   is_from_logind(logind, message) &&
                   dbus_message_get_args(message, NULL, DBUS_TYPE_BOOLEAN, &sleeps, DBUS_TYPE_INVALID)) {
                if (sleeps && !logind->asleep) {
                        logind->asleep = true;
                        logind->callbacks.sleeping(logind->userdata);
                } else if (!sleeps) {
                        inhibit(logind);
                        wake(logind);
                }
        } else {
                return DBUS_HANDLER_RESULT_NOT_YET_HANDLED;
        }
        return DBUS_HANDLER_RESULT_HANDLED;
}

static int on_retry(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        const char *address = getenv("DBUS_SYSTEM_BUS_ADDRESS");
        struct tdm_logind *logind = userdata;
        DBusConnection *c;

        if (logind->connection)
                return 0;
        address = address && address[0] ? address : SYSTEM_BUS;
        /* Only connect() is waited for, which does not wait on a Unix socket. */
        c = strncmp(address, "unix:", 5) == 0 ? dbus_connection_open_private(address, NULL) : NULL;
        logind->connection = c;
        if (c) {
                dbus_connection_set_exit_on_disconnect(c, FALSE);
                /* Any user may send messages here. logind's are small, and one has a descriptor. */
                dbus_connection_set_max_received_size(c, RECEIVED_MAX);
                dbus_connection_set_max_message_unix_fds(c, 1);
                dbus_connection_set_max_received_unix_fds(c, FDS_MAX);
        }
        if (!c || !dbus_connection_set_watch_functions(c, add_watch, remove_watch, toggle_watch, logind, NULL) ||
            !bus_put_timeouts(c, logind->loop) || !dbus_connection_add_filter(c, on_message, logind, NULL)) {
                retry_later(logind);
                return 0;
        }
        dbus_connection_set_dispatch_status_function(c, on_dispatch_status, logind, NULL);
        if (logind_ask(logind,
                       dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS, DBUS_INTERFACE_DBUS, "Hello"),
                       on_hello) < 0)
                retry_later(logind);
        return 0;
}

/* ---- for the service ---- */

int tdm_logind_new(struct tdm_logind **ret, struct tdm_loop *loop, const struct tdm_logind_callbacks *callbacks,
                   void *userdata)
{
        struct tdm_logind *logind = calloc(1, sizeof(*logind));
        int r;

        if (!logind)
                return -ENOMEM;
        *logind = (struct tdm_logind){
                .loop = loop, .callbacks = *callbacks, .userdata = userdata, .retry_ns = RETRY_MIN_NS, .inhibitor = -1
        };
        r = tdm_loop_add_defer(loop, on_dispatch, logind, &logind->dispatch);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_retry, logind, &logind->retry);
        if (r < 0) {
                tdm_logind_destroy(logind);
                return r;
        }
        tdm_source_arm(logind->retry, tdm_now_ns());
        *ret = logind;
        return 0;
}

void tdm_logind_may_sleep(struct tdm_logind *logind)
{
        closep(&logind->inhibitor);
        logind->inhibitor = -1;
}

void tdm_logind_destroy(struct tdm_logind *logind)
{
        if (!logind)
                return;
        forget(logind);
        tdm_source_destroy(logind->dispatch);
        tdm_source_destroy(logind->retry);
        free(logind);
}
