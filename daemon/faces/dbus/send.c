/* Messages to the bus: signals, calls to other services, and answers. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

void bus_send(struct tdm_dbus *bus, DBusMessage *message)
{
        if (!message)
                return;
        if (bus->connection && bus->registered && !dbus_connection_send(bus->connection, message, NULL))
                tdm_log_error("out of memory for a message to the bus");
        dbus_message_unref(message);
}

int bus_ask(struct tdm_dbus *bus, DBusMessage *message, int timeout_ms, DBusPendingCallNotifyFunction fn,
            void *userdata, DBusPendingCall **ret)
{
        DBusPendingCall *pending = NULL;
        int r = -ENOTCONN;

        if (bus->connection) {
                r = -ENOMEM;
                if (dbus_connection_send_with_reply(bus->connection, message, &pending, timeout_ms)) {
                        if (!pending)
                                r = -ENOTCONN;
                        else if (dbus_pending_call_set_notify(pending, fn, userdata, NULL))
                                r = 0;
                        else {
                                dbus_pending_call_cancel(pending);
                                dbus_pending_call_unref(pending);
                        }
                }
        }
        dbus_message_unref(message);
        if (r == 0)
                *ret = pending;
        return r;
}

void bus_forget_asking(DBusPendingCall **asking)
{
        if (!*asking)
                return;
        dbus_pending_call_cancel(*asking);
        dbus_pending_call_unref(*asking);
        *asking = NULL;
}

/* ---- answers ---- */

/* "no-model" is dev.tandem.Tandem1.Error.NoModel: the names of the wire, spelt as D-Bus does. */
const char *bus_error_name(int code)
{
        static char names[TDM_E_MAX][64];
        char *name = names[code > 0 && code < TDM_E_MAX ? code : TDM_E_INTERNAL];
        bool upper = true;
        size_t n;

        if (name[0])
                return name;
        n = (size_t)snprintf(name, sizeof(names[0]), "%s", BUS_ERROR);
        for (const char *p = tdm_error_name(code); *p && n + 1 < sizeof(names[0]); p++) {
                if (*p != '-')
                        name[n++] = (char)(upper ? *p - 'a' + 'A' : *p);
                upper = *p == '-';
        }
        name[n] = '\0';
        return name;
}

DBusMessage *bus_reply_new(DBusMessage *call)
{
        return dbus_message_get_no_reply(call) ? NULL : dbus_message_new_method_return(call);
}

void bus_reply_ok(struct tdm_dbus *bus, DBusMessage *call)
{
        bus_send(bus, bus_reply_new(call));
}

/* NULL: none is wanted, or there is no memory. */
static DBusMessage *error_new(DBusMessage *call, const char *name, const char *text)
{
        struct bus_writer w;

        if (dbus_message_get_no_reply(call))
                return NULL;
        bus_writer_init(&w, dbus_message_new_error(call, name, NULL));
        bus_write_string(&w, text);
        return bus_writer_finish(&w);
}

void bus_reply_error(struct tdm_dbus *bus, DBusMessage *call, const char *name, const char *text)
{
        bus_send(bus, error_new(call, name, text));
}

/* While the name of a daemon that ends is not given up, the refusal waits for that (name.c). */
static void refuse_when_free(struct tdm_dbus *bus, DBusMessage *refusal)
{
        if (refusal && bus->draining && !bus->name_given_up && bus->refused.n < BUS_MAX_REFUSALS)
                bus->refused.messages[bus->refused.n++] = refusal;
        else
                bus_send(bus, refusal);
}

void bus_send_refusals(struct tdm_dbus *bus)
{
        for (unsigned i = 0; i < bus->refused.n; i++)
                bus_send(bus, bus->refused.messages[i]);
        bus->refused.n = 0;
}

void bus_forget_refusals(struct tdm_dbus *bus)
{
        while (bus->refused.n > 0)
                dbus_message_unref(bus->refused.messages[--bus->refused.n]);
}

void bus_reply_failed(struct tdm_dbus *bus, DBusMessage *call, int code, const char *text)
{
        DBusMessage *reply = error_new(call, bus_error_name(code), text && text[0] ? text : "the request failed");

        if (code == TDM_E_DRAINING)
                refuse_when_free(bus, reply);
        else
                bus_send(bus, reply);
}

void bus_reply_finish(struct tdm_dbus *bus, DBusMessage *call, struct bus_writer *w)
{
        bool wanted = w->message != NULL;
        DBusMessage *reply = bus_writer_finish(w);

        if (!reply && wanted)
                bus_reply_failed(bus, call, TDM_E_NO_MEMORY, "out of memory for the answer");
        bus_send(bus, reply);
}
