/* Calls that wait for something, and how big they are. What waits is capped, for all and for each user. */
#include "daemon/faces/dbus/private.h"

#include <inttypes.h>

#define TOO_LONG "the call has more than %" PRIu64 " bytes or %" PRIu64 " values"

/* ---- how big is it? ---- */

struct measure {
        uint64_t bytes, values;
};

/* The bytes of a number, for types that arrays hold as plain numbers; 0: another type. */
static unsigned number_bytes(int type)
{
        switch (type) {
        case DBUS_TYPE_BYTE:
                return 1;
        case DBUS_TYPE_INT16:
        case DBUS_TYPE_UINT16:
                return 2;
        case DBUS_TYPE_BOOLEAN:
        case DBUS_TYPE_INT32:
        case DBUS_TYPE_UINT32:
                return 4;
        case DBUS_TYPE_INT64:
        case DBUS_TYPE_UINT64:
        case DBUS_TYPE_DOUBLE:
                return 8;
        default:
                return 0;
        }
}

static bool measure_values(DBusMessageIter *at, struct measure *m)
{
        DBusMessageIter inner;
        const char *s;
        unsigned size;
        int type;

        for (; (type = dbus_message_iter_get_arg_type(at)) != DBUS_TYPE_INVALID; dbus_message_iter_next(at)) {
                m->bytes += 8;
                if (++m->values > BUS_MAX_CALL_VALUES || m->bytes > BUS_MAX_CALL_BYTES)
                        return false;
                switch (type) {
                case DBUS_TYPE_STRING:
                case DBUS_TYPE_OBJECT_PATH:
                case DBUS_TYPE_SIGNATURE:
                        dbus_message_iter_get_basic(at, &s);
                        m->bytes += strlen(s);
                        break;
                case DBUS_TYPE_ARRAY:
                        size = number_bytes(dbus_message_iter_get_element_type(at));
                        if (size > 0) { /* its elements are not gone over */
                                m->bytes += size * (uint64_t)dbus_message_iter_get_element_count(at);
                                break;
                        }
                        /* fall through */
                case DBUS_TYPE_VARIANT:
                case DBUS_TYPE_STRUCT:
                case DBUS_TYPE_DICT_ENTRY:
                        dbus_message_iter_recurse(at, &inner);
                        if (!measure_values(&inner, m))
                                return false;
                        break;
                }
                if (m->bytes > BUS_MAX_CALL_BYTES)
                        return false;
        }
        return true;
}

int bus_call_measure(DBusMessage *message, uint64_t *ret_bytes, struct tdm_error *err)
{
        struct measure m = { 0 };
        DBusMessageIter args;

        if (dbus_message_iter_init(message, &args) && !measure_values(&args, &m))
                return tdm_error_set(err, TDM_E_TOO_LONG, TOO_LONG, BUS_MAX_CALL_BYTES, BUS_MAX_CALL_VALUES);
        *ret_bytes = m.bytes;
        return 0;
}

/* ---- calls that wait ---- */

void bus_held_free(struct bus_held *held)
{
        struct tdm_dbus *bus = held->peer->bus;

        bus_forget_asking(&held->asking);
        bus_pictures_forget(held->reading);
        tdm_list_remove(&held->node);
        bus->n_held--;
        bus->n_held_with_fds -= held->fds;
        if (held->charged)
                tdm_account_release(held->peer->account, TDM_RESOURCE_CALLS, 1);
        bus->held_bytes -= held->size_bytes;
        bus_message_done(bus, held->peer, held->message);
        free(held);
}

int bus_peer_hold(struct bus_peer *peer, DBusMessage *message, uint64_t more_bytes, struct bus_held **ret,
                  struct tdm_error *err)
{
        struct tdm_dbus *bus = peer->bus;
        unsigned n = 0, n_fds = 0;
        uint64_t bytes = 0, own_bytes;
        struct bus_peer *p;
        struct bus_held *held;
        bool fds = dbus_message_contains_unix_fds(message);
        int r;

        r = bus_call_measure(message, &own_bytes, err);
        if (r != 0)
                return r;
        own_bytes += more_bytes;
        tdm_list_for_each(p, &bus->peers, struct bus_peer, node)
                if (p == peer || (p->account && p->account == peer->account))
                        tdm_list_for_each(held, &p->held, struct bus_held, node) {
                                n++;
                                n_fds += held->fds;
                                bytes += held->size_bytes;
                        }
        /* A user may have half of what the others leave. */
        if (fds && n_fds >= (BUS_MAX_HELD_WITH_FDS + 1 - (bus->n_held_with_fds - n_fds)) / 2)
                return tdm_error_set(err, TDM_E_BUSY,
                                     "too many calls with file descriptors wait already; try again later");
        if (n >= BUS_MAX_HELD_PER_UID || bytes + own_bytes > BUS_MAX_HELD_BYTES_PER_UID)
                return tdm_error_set(err, TDM_E_QUOTA, "%u calls of this caller wait already", n);
        if (bus->n_held >= BUS_MAX_HELD || bus->held_bytes + own_bytes > BUS_MAX_HELD_BYTES)
                return tdm_error_set(err, TDM_E_BUSY, "%u calls wait already; try again later", bus->n_held);
        r = peer->account ? tdm_account_charge(peer->account, TDM_RESOURCE_CALLS, 1, err) : 0;
        if (r != 0)
                return r;
        held = calloc(1, sizeof(*held));
        if (!held) {
                if (peer->account)
                        tdm_account_release(peer->account, TDM_RESOURCE_CALLS, 1);
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        }
        held->charged = peer->account != NULL;
        held->peer = peer;
        held->message = dbus_message_ref(message);
        held->size_bytes = own_bytes;
        held->fds = fds;
        bus->n_held_with_fds += fds;
        tdm_list_append(&peer->held, &held->node);
        bus->n_held++;
        bus->held_bytes += own_bytes;
        *ret = held;
        return 0;
}
