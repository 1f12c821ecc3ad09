/* The name on the bus, and when a daemon that ends gives it up.
 *
 * Where a service manager starts the daemon for a call, the bus keeps calls to a name that nobody owns until the next
 * daemon owns it. So the name is given up early: at once, or when the last job of a caller has ended, since its caller
 * may know the daemon by that name alone. Calls that are refused until then are answered when the name is free: a
 * caller that calls again reaches the next daemon. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

#define REQUEST_TIMEOUT_MS 20000

static bool any_job_runs(const struct tdm_dbus *bus)
{
        struct bus_job *job;

        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (!job->ended)
                        return true;
        return false;
}

static void name_release(struct tdm_dbus *bus)
{
        DBusMessage *message =
                dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS, DBUS_INTERFACE_DBUS, "ReleaseName");
        const char *name = BUS_NAME;

        if (message && dbus_message_append_args(message, DBUS_TYPE_STRING, &name, DBUS_TYPE_INVALID)) {
                dbus_message_set_no_reply(message, TRUE);
                bus_send(bus, message);
        } else if (message) {
                dbus_message_unref(message);
        }
}

static void on_name(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct tdm_dbus *bus = userdata;
        dbus_uint32_t how = 0;
        DBusError error = DBUS_ERROR_INIT;

        if (reply && dbus_set_error_from_message(&error, reply))
                tdm_log_error("cannot own the name " BUS_NAME
                              " on bus %s: %s (does the bus's policy allow this user to own it?)",
                              bus->address, error.message);
        else if (reply && dbus_message_get_args(reply, NULL, DBUS_TYPE_UINT32, &how, DBUS_TYPE_INVALID) &&
                 how == DBUS_REQUEST_NAME_REPLY_IN_QUEUE)
                tdm_log_warning("the name " BUS_NAME " on bus %s belongs to somebody else now; waiting for it",
                                bus->address);
        else
                tdm_log_info("serving on bus %s as " BUS_NAME, bus->address);
        dbus_error_free(&error);
        if (reply)
                dbus_message_unref(reply);
        bus_forget_asking(&bus->asking);
}

void bus_name_request(struct tdm_dbus *bus)
{
        DBusMessage *message =
                dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS, DBUS_INTERFACE_DBUS, "RequestName");
        const char *name = BUS_NAME;
        dbus_uint32_t flags = 0;

        if (message &&
            dbus_message_append_args(message, DBUS_TYPE_STRING, &name, DBUS_TYPE_UINT32, &flags, DBUS_TYPE_INVALID) &&
            bus_ask(bus, steal_ptr(&message), REQUEST_TIMEOUT_MS, on_name, bus, &bus->asking) == 0)
                return;
        if (message)
                dbus_message_unref(message);
        bus->lost = true;
        tdm_source_schedule(bus->dispatch);
}

void bus_name_give_up(struct tdm_dbus *bus)
{
        if (bus->name_given_up)
                return;
        bus->name_given_up = true;
        name_release(bus);
        bus_send_refusals(bus); /* the bus hears of the name first */
}

void bus_name_may_go(struct tdm_dbus *bus)
{
        if (bus->draining && !any_job_runs(bus))
                bus_name_give_up(bus);
}
