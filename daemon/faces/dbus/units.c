/* Asks systemd to kill a worker that is a unit of its own. A worker that is stopped, or hangs in its driver,
 * cannot be ended by hanging up, and a process of another user is not ours to signal. systemd lets us by a polkit rule
 * for exactly these units (systemd/polkit.rules). Nothing waits for the answer: that the process is gone is known by
 * its pidfd, and the fleet asks again while it is not. */
#include "daemon/faces/dbus/private.h"

#include <signal.h>
#include "common/log.h"

#define SYSTEMD_NAME "org.freedesktop.systemd1"
#define ANSWER_MS 5000

/* No userdata: the bus may be gone by then. */
static void on_killed(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        DBusError error = DBUS_ERROR_INIT;

        if (reply && dbus_set_error_from_message(&error, reply)) {
                tdm_log_error("systemd does not kill a worker that hangs: %s (is polkit there, and the rule that lets "
                              "this user?)",
                              error.message);
                dbus_error_free(&error);
        }
        if (reply)
                dbus_message_unref(reply);
        dbus_pending_call_unref(pending);
}

void tdm_dbus_kill_unit(struct tdm_dbus *bus, const char *unit)
{
        DBusPendingCall *pending;
        struct bus_writer w;
        DBusMessage *ask;
        int32_t signo = SIGKILL;
        int r = -ENOTCONN;

        if (bus && bus->registered) {
                bus_writer_init(&w, dbus_message_new_method_call(SYSTEMD_NAME, "/org/freedesktop/systemd1",
                                                                 SYSTEMD_NAME ".Manager", "KillUnit"));
                bus_write_string(&w, unit);
                bus_write_string(&w, "all");
                bus_write(&w, DBUS_TYPE_INT32, &signo);
                ask = bus_writer_finish(&w);
                r = ask ? bus_ask(bus, ask, ANSWER_MS, on_killed, NULL, &pending) : -ENOMEM;
        }
        if (r == 0)
                tdm_log_info("asking systemd to kill %s", unit);
        else
                tdm_log_error("cannot ask systemd to kill %s: %s; systemctl kill -s KILL %s does it", unit,
                              r == -ENOTCONN ? "there is no bus" : strerror(-r), unit);
}
