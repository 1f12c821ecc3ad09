/* The connection to the bus: registration, dispatch, and what happens when the bus goes.
 *
 * libdbus' own helpers for a bus (dbus_bus_get, dbus_bus_register, dbus_bus_request_name) wait for answers; here Hello,
 * RequestName and AddMatch are ordinary calls whose answers come through the loop. Only connect() itself is waited for,
 * and on a Unix socket it does not wait. A bus that is not there or that hangs up is tried again, less and less often.
 *
 * Two things keep a flood from doing harm: messages are handled for a millisecond in one turn of the loop, so that
 * steps are not kept waiting, and not at all while the bus has not taken what was said before. What is not read stays
 * with the sender. */
#include "daemon/faces/dbus/private.h"

#include <signal.h>
#include "common/log.h"

#define DISPATCH_MAX 32u
#define DISPATCH_NS TDM_NSEC_PER_MSEC
#define RETRY_MIN_NS (250 * TDM_NSEC_PER_MSEC)
#define RETRY_MAX_NS (30 * TDM_NSEC_PER_SEC)
#define LOOK_AGAIN_NS (5 * TDM_NSEC_PER_MSEC)
#define CALL_TIMEOUT_MS 20000
/* A message with more fds than libdbus expects ends the connection, so it must expect what any bus lets through. And
 * what waits here (peer.c) must be less than what makes libdbus stop reading: answers come the same way. */
#define MAX_FDS 4096
#define MAX_RECEIVED_BYTES (4L * (long)BUS_MAX_HELD_BYTES)

static void on_dispatch_status(DBusConnection *connection, DBusDispatchStatus status, void *userdata)
{
        struct tdm_dbus *bus = userdata;

        if (status != DBUS_DISPATCH_COMPLETE)
                tdm_source_schedule(bus->dispatch);
}

/* ---- losing it ---- */

static void retry_later(struct tdm_dbus *bus)
{
        tdm_source_arm(bus->retry, tdm_now_ns() + bus->retry_ns);
        bus->retry_ns = TDM_MIN(2 * bus->retry_ns, RETRY_MAX_NS);
}

void bus_tear_down(struct tdm_dbus *bus)
{
        DBusConnection *connection = steal_ptr(&bus->connection);
        struct bus_peer *peer;

        bus->leaving = connection;
        bus->registered = bus->lost = false;
        bus_forget_asking(&bus->asking);
        bus_forget_asking(&bus->stop_question.asking);
        bus_forget_refusals(bus);
        tdm_list_for_each(peer, &bus->peers, struct bus_peer, node)
                bus_peer_free(peer);
        if (connection)
                bus_close_undispatched(bus, connection);
        bus->leaving = NULL;
        if (!connection)
                return;
        dbus_connection_set_dispatch_status_function(connection, NULL, NULL, NULL);
        dbus_connection_close(connection);
        dbus_connection_set_watch_functions(connection, NULL, NULL, NULL, NULL, NULL);
        dbus_connection_set_timeout_functions(connection, NULL, NULL, NULL, NULL, NULL);
        dbus_connection_unref(connection);
        bus->lost = false; /* whatever its last callbacks thought */
}

static int on_retry(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_dbus *bus = userdata;

        if (!bus->connection && bus_closes_too_many(bus))
                retry_later(bus);
        else if (!bus->connection)
                bus_connect(bus);
        else
                tdm_source_schedule(bus->dispatch);
        return 0;
}

static int on_dispatch(struct tdm_source *source, void *userdata)
{
        struct tdm_dbus *bus = userdata;
        uint64_t until_ns = tdm_now_ns() + DISPATCH_NS;

        if (!bus->connection)
                return 0;
        for (unsigned i = 0; i < DISPATCH_MAX && !bus->lost && (i == 0 || tdm_now_ns() < until_ns); i++) {
                if (dbus_connection_get_outgoing_size(bus->connection) > BUS_MAX_OUTGOING_BYTES) {
                        tdm_source_arm(bus->retry, tdm_now_ns() + LOOK_AGAIN_NS);
                        return 0;
                }
                DBusDispatchStatus status = dbus_connection_dispatch(bus->connection);

                if (bus->dispatched) {
                        DBusMessage *message = steal_ptr(&bus->dispatched);

                        bus_message_done(bus, bus_peer_of(bus, message), message);
                }
                switch (status) {
                case DBUS_DISPATCH_COMPLETE:
                        return 0;
                case DBUS_DISPATCH_NEED_MEMORY:
                        tdm_source_arm(bus->retry, tdm_now_ns() + LOOK_AGAIN_NS);
                        return 0;
                case DBUS_DISPATCH_DATA_REMAINS:
                        break;
                }
        }
        if (bus->lost) {
                tdm_log_info("the bus has hung up; its clients' jobs end, and it is tried again");
                bus_tear_down(bus);
                retry_later(bus);
        } else
                tdm_source_schedule(bus->dispatch);
        return 0;
}

/* ---- registration ---- */

static DBusMessage *call_bus(const char *member)
{
        return dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS, DBUS_INTERFACE_DBUS, member);
}

static void watch_leavers(struct tdm_dbus *bus)
{
        const char *rule = "type='signal',sender='" DBUS_SERVICE_DBUS "',path='" DBUS_PATH_DBUS
                           "',interface='" DBUS_INTERFACE_DBUS "',member='NameOwnerChanged',arg2=''";
        DBusMessage *message = call_bus("AddMatch");

        if (message && dbus_message_append_args(message, DBUS_TYPE_STRING, &rule, DBUS_TYPE_INVALID)) {
                dbus_message_set_no_reply(message, TRUE);
                bus_send(bus, message);
                return;
        }
        if (message)
                dbus_message_unref(message);
        bus->lost = true; /* without it a job would outlive its owner */
        tdm_source_schedule(bus->dispatch);
}

static void begin_stored(struct tdm_dbus *bus)
{
        struct tdm_error err;
        char owner[256];

        bus_restore_begin(bus);
        while (bus_restore_next(bus, owner))
                if (bus_peer_want(bus, owner, &err) != 0) {
                        tdm_log_warning("the bus cannot be asked who %s is: %s", owner, err.message);
                        bus_restore_owner_left(bus, owner);
                }
        if (!bus->asking)
                bus_restore_look(bus);
}

static void on_hello(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct tdm_dbus *bus = userdata;
        DBusError error = DBUS_ERROR_INIT;
        const char *name;

        bus_forget_asking(&bus->asking);
        if (reply && !dbus_set_error_from_message(&error, reply) &&
            dbus_message_get_args(reply, &error, DBUS_TYPE_STRING, &name, DBUS_TYPE_INVALID) &&
            dbus_bus_set_unique_name(bus->connection, name)) {
                bus->registered = true;
                bus->retry_ns = RETRY_MIN_NS;
                watch_leavers(bus);
                if (!bus->draining)
                        begin_stored(bus);
        } else {
                tdm_log_warning("bus %s does not take tandemd: %s", bus->address,
                                error.message ? error.message : "no answer");
                bus->lost = true;
                tdm_source_schedule(bus->dispatch);
        }
        dbus_error_free(&error);
        if (reply)
                dbus_message_unref(reply);
}

static DBusHandlerResult on_message(DBusConnection *connection, DBusMessage *message, void *userdata)
{
        struct tdm_dbus *bus = userdata;
        const char *name, *before, *after;

        if (bus->system && !bus->dispatched && dbus_message_contains_unix_fds(message))
                bus->dispatched = dbus_message_ref(message);
        if (dbus_message_is_signal(message, DBUS_INTERFACE_LOCAL, "Disconnected")) {
                bus->lost = true;
                tdm_source_schedule(bus->dispatch);
                return DBUS_HANDLER_RESULT_HANDLED;
        }
        if (dbus_message_is_signal(message, DBUS_INTERFACE_DBUS, "NameOwnerChanged") &&
            dbus_message_has_sender(message, DBUS_SERVICE_DBUS)) {
                if (dbus_message_get_args(message, NULL, DBUS_TYPE_STRING, &name, DBUS_TYPE_STRING, &before,
                                          DBUS_TYPE_STRING, &after, DBUS_TYPE_INVALID) &&
                    name[0] == ':' && after[0] == '\0')
                        bus_peer_left(bus, name);
                return DBUS_HANDLER_RESULT_HANDLED;
        }
        if (dbus_message_is_signal(message, DBUS_INTERFACE_DBUS, "NameAcquired") &&
            dbus_message_get_args(message, NULL, DBUS_TYPE_STRING, &name, DBUS_TYPE_INVALID) &&
            strcmp(name, BUS_NAME) == 0)
                tdm_log_debug("the name " BUS_NAME " is ours");
        if (dbus_message_get_type(message) == DBUS_MESSAGE_TYPE_METHOD_CALL) {
                bus_peer_call(bus, message);
                return DBUS_HANDLER_RESULT_HANDLED;
        }
        return DBUS_HANDLER_RESULT_NOT_YET_HANDLED;
}

static int set_up(struct tdm_dbus *bus)
{
        DBusConnection *c = bus->connection;
        DBusMessage *hello;

        dbus_connection_set_exit_on_disconnect(c, FALSE);
        dbus_connection_set_max_received_size(c, MAX_RECEIVED_BYTES);
        dbus_connection_set_max_message_unix_fds(c, MAX_FDS);
        dbus_connection_set_max_received_unix_fds(c, MAX_FDS);
        dbus_connection_set_dispatch_status_function(c, on_dispatch_status, bus, NULL);
        if (!bus_put_watches(bus, c) || !bus_put_timeouts(c, bus->loop) ||
            !dbus_connection_add_filter(c, on_message, bus, NULL))
                return -ENOMEM;
        hello = call_bus("Hello");
        if (!hello)
                return -ENOMEM;
        return bus_ask(bus, hello, CALL_TIMEOUT_MS, on_hello, bus, &bus->asking);
}

int bus_connect(struct tdm_dbus *bus)
{
        DBusError error = DBUS_ERROR_INIT;
        int r;

        bus->connection = dbus_connection_open_private(bus->address, &error);
        if (!bus->connection) {
                tdm_log(bus->asked_for && bus->retry_ns == RETRY_MIN_NS ? TDM_LOG_WARNING : TDM_LOG_DEBUG,
                        "cannot reach bus %s: %s; it is tried again", bus->address, error.message);
                dbus_error_free(&error);
                retry_later(bus);
                return -ENOTCONN;
        }
        r = set_up(bus);
        if (r < 0) {
                tdm_log_error("cannot set up the connection to bus %s: %s", bus->address, strerror(-r));
                bus_tear_down(bus);
                retry_later(bus);
        }
        return r;
}

/* ---- the face ---- */

/* NULL: there is none. */
static char *find_address(const struct tdm_dbus_config *config)
{
        const char *name = config->bus ? config->bus : config->system ? "system" : "session";
        const char *env, *runtime = getenv("XDG_RUNTIME_DIR");
        char *address = NULL;

        if (strcmp(name, "none") == 0)
                return NULL;
        if (strcmp(name, "system") == 0) {
                env = getenv("DBUS_SYSTEM_BUS_ADDRESS");
                return strdup(env && env[0] ? env : "unix:path=/run/dbus/system_bus_socket");
        }
        if (strcmp(name, "session") != 0)
                return strdup(name);
        env = getenv("DBUS_SESSION_BUS_ADDRESS");
        if (env && env[0])
                return strdup(env);
        if (runtime && runtime[0] == '/') {
                char path[4096];

                snprintf(path, sizeof(path), "%.4000s/bus", runtime);
                if ((config->bus || access(path, F_OK) == 0) && asprintf(&address, "unix:path=%s", path) < 0)
                        return NULL;
        }
        return address;
}

int tdm_dbus_new(struct tdm_dbus **ret, struct tdm_loop *loop, struct tdm_models *models,
                 struct tdm_scheduler *scheduler, const struct tdm_dbus_config *config, struct tdm_error *err)
{
        _cleanup_(tdm_dbus_destroyp) struct tdm_dbus *bus = NULL;
        _cleanup_(freep) char *address = find_address(config);
        int r;

        if (!address) {
                if (config->bus && strcmp(config->bus, "none") != 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "--bus %s: no session bus is known: neither DBUS_SESSION_BUS_ADDRESS nor "
                                             "XDG_RUNTIME_DIR is set; give an address, or none",
                                             config->bus);
                bus_restore_none(config->stored, config->n_stored);
                *ret = NULL;
                return 0;
        }
        if (strncmp(address, "unix:", 5) != 0)
                return tdm_error_set(
                        err, TDM_E_BAD_REQUEST,
                        "bus address %.*s is not that of a Unix socket (unix:path=…): only those carry pipes",
                        TDM_UTF8_CUT(address, 200));
        bus = calloc(1, sizeof(*bus));
        if (!bus)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        tdm_list_init(&bus->questions);
        tdm_list_init(&bus->peers);
        tdm_list_init(&bus->jobs);
        tdm_list_init(&bus->journals.stored);
        tdm_list_init(&bus->journals.words);
        bus->loop = loop;
        bus->models = models;
        bus->scheduler = scheduler;
        bus->accounts = config->accounts;
        bus->system = config->system;
        bus->asked_for = config->bus != NULL;
        bus->address = steal_ptr(&address);
        bus->socket = strdup(config->socket ? config->socket : "");
        if (!bus->socket)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        bus->started_ns = tdm_now_ns();
        bus->loop_thread = pthread_self();
        bus->retry_ns = RETRY_MIN_NS;
        r = tdm_loop_add_defer(loop, on_dispatch, bus, &bus->dispatch);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_retry, bus, &bus->retry);
        if (r == 0)
                r = bus_start_tick(bus);
        if (r < 0)
                return tdm_error_set(err, r, "cannot set up the bus face: %s", strerror(-r));
        /* A reader that has left its pipe is an answer from write(), not the end of the daemon. */
        dbus_connection_set_change_sigpipe(FALSE);
        signal(SIGPIPE, SIG_IGN);
        bus_restore_take(bus, config->stored, config->n_stored);
        (void)bus_connect(bus); /* else it is tried again */
        *ret = steal_ptr(&bus);
        return 0;
}

void tdm_dbus_set_fleet(struct tdm_dbus *bus, struct tdm_fleet *fleet)
{
        if (bus)
                bus->fleet = fleet;
}

void tdm_dbus_destroy(struct tdm_dbus *bus)
{
        struct bus_job *job;

        if (!bus)
                return;
        bus_polkit_end(bus);
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (job->journal)
                        bus_journal_leave(job);
        bus_restore_end(bus); /* first: peers that go would take theirs with them */
        bus_tear_down(bus);
        tdm_background_destroyp(&bus->files.reader);
        tdm_background_destroyp(&bus->files.closer);
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                bus_job_free(job);
        bus_stored_end(bus);
        tdm_source_destroy(bus->dispatch);
        tdm_source_destroy(bus->retry);
        tdm_source_destroy(bus->tick);
        free(bus->address);
        free(bus->socket);
        free(bus);
}

void tdm_dbus_destroyp(struct tdm_dbus **bus)
{
        tdm_dbus_destroy(*bus);
        *bus = NULL;
}
