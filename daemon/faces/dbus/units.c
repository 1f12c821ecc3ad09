/* What systemd is asked.
 *
 * To kill a worker that is a unit of its own. A worker that is stopped, or hangs in its driver,
 * cannot be ended by hanging up, and a process of another user is not ours to signal. systemd lets us by a polkit rule
 * for exactly these units (systemd/polkit.rules). Nothing waits for the answer: that the process is gone is known by
 * its pidfd, and the fleet asks again while it is not.
 *
 * Which units it stops: a daemon that is told to end does not know whether another one follows. Everybody may ask that.
 */
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

/* ---- which units it stops ---- */

/* a(usssoo): number, unit, type, state, and two paths */
static bool unit_is_stopped(DBusMessage *reply, const char *unit)
{
        DBusMessageIter args, jobs, job;
        const char *name, *type;

        if (!dbus_message_has_signature(reply, "a(usssoo)") || !dbus_message_iter_init(reply, &args))
                return false;
        dbus_message_iter_recurse(&args, &jobs);
        for (; dbus_message_iter_get_arg_type(&jobs) == DBUS_TYPE_STRUCT; dbus_message_iter_next(&jobs)) {
                dbus_message_iter_recurse(&jobs, &job);
                dbus_message_iter_next(&job);
                dbus_message_iter_get_basic(&job, &name);
                dbus_message_iter_next(&job);
                dbus_message_iter_get_basic(&job, &type);
                if (strcmp(name, unit) == 0 && strcmp(type, "stop") == 0)
                        return true;
        }
        return false;
}

static void on_jobs(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct bus_stop_question *q = &((struct tdm_dbus *)userdata)->stop_question;
        bool stops = reply && unit_is_stopped(reply, q->unit);

        bus_forget_asking(&q->asking);
        if (reply)
                dbus_message_unref(reply);
        q->answer(stops, q->userdata);
}

int tdm_dbus_ask_stops(struct tdm_dbus *bus, const char *unit, void (*answer)(bool stops, void *userdata),
                       void *userdata)
{
        struct bus_writer w;
        DBusMessage *ask;

        if (!bus || !bus->registered)
                return -ENOTCONN;
        bus_writer_init(&w, dbus_message_new_method_call(SYSTEMD_NAME, "/org/freedesktop/systemd1",
                                                         SYSTEMD_NAME ".Manager", "ListJobs"));
        ask = bus_writer_finish(&w);
        if (!ask)
                return -ENOMEM;
        dbus_message_set_auto_start(ask, FALSE);
        bus_forget_asking(&bus->stop_question.asking);
        bus->stop_question.answer = answer;
        bus->stop_question.userdata = userdata;
        snprintf(bus->stop_question.unit, sizeof(bus->stop_question.unit), "%s", unit);
        return bus_ask(bus, ask, ANSWER_MS, on_jobs, bus, &bus->stop_question.asking);
}
