/* Messages with file descriptors are given up beside the loop.
 *
 * libdbus closes a message's descriptors with its last reference, and to close a file asks its file system, which may
 * be a user's (FUSE) and never answer. So such a message is given up on a thread. libdbus has
 * references of its own while it dispatches: on_message() (bus.c) takes one more, and it goes to the thread when the
 * dispatch is over. One thread at most hangs for each account. When too many messages wait, tandemd leaves the bus
 * until they are closed: no more descriptors come, and the socket is served.
 *
 * Of a user's own daemon the descriptors are that user's, and are closed at once. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

#define CLOSING_THREADS 4u
#define CLOSING_MAX 256u
#define UNKNOWN_USER UINT64_MAX /* the sender was not asked for yet */

struct closing {
        struct tdm_dbus *bus;
        DBusConnection *connection; /* referenced: its counters know the message */
        DBusMessage *message;
};

static void run_closing(void *task)
{
        dbus_message_unref(((struct closing *)task)->message);
}

static void on_message_closed(void *task, bool ran)
{
        struct closing *closing = task;
        struct tdm_dbus *bus = closing->bus;

        if (!ran)
                dbus_message_unref(closing->message);
        bus->files.n_closing--;
        bus_look_at_watches(bus);
        if (closing->connection)
                dbus_connection_unref(closing->connection);
        free(closing);
}

void bus_message_done(struct tdm_dbus *bus, const struct bus_peer *peer, DBusMessage *message)
{
        uint64_t user = peer && peer->account ? peer->account->identity : UNKNOWN_USER;
        struct closing *closing = NULL;

        if (bus->system && dbus_message_contains_unix_fds(message))
                closing = malloc(sizeof(*closing));
        if (closing && !bus->files.closer &&
            tdm_background_new_pool(&bus->files.closer, bus->loop, CLOSING_THREADS) < 0)
                free(steal_ptr(&closing));
        if (!closing) {
                dbus_message_unref(message);
                return;
        }
        *closing = (struct closing){ .bus = bus, .message = message };
        if (bus->connection || bus->leaving)
                closing->connection = dbus_connection_ref(bus->connection ? bus->connection : bus->leaving);
        bus->files.n_closing++;
        if (tdm_background_add_for(bus->files.closer, user, run_closing, on_message_closed, closing) < 0)
                on_message_closed(closing, false);
        if (bus->files.n_closing > CLOSING_MAX && bus->connection && !bus->lost) {
                tdm_log_warning("%u messages with files wait to be closed; tandemd leaves the bus until they are",
                                bus->files.n_closing);
                bus->lost = true;
                tdm_source_schedule(bus->dispatch);
        }
}

bool bus_closes_too_many(const struct tdm_dbus *bus)
{
        return bus->files.n_closing > CLOSING_MAX / 2;
}

/* Closes the fds of messages that came and were not dispatched. */
void bus_close_undispatched(struct tdm_dbus *bus, DBusConnection *connection)
{
        DBusMessage *message;

        while (bus->system && (message = dbus_connection_pop_message(connection)))
                bus_message_done(bus, NULL, message);
}
