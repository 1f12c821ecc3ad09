/* Who calls: the uid behind a unique name, asked of the bus once and kept while the name lives.
 *
 * Until the answer is there a peer's calls wait in order. What waits is measured and capped, for all and for each user,
 * so that no peer can fill memory with calls that cannot be served yet. A call that is longer or has more values than
 * any honest one is refused before its contents are looked at. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

#define CREDENTIALS_TIMEOUT_MS 20000

/* ---- peers ---- */

void bus_peer_free(struct bus_peer *peer)
{
        struct tdm_dbus *bus = peer->bus;
        struct bus_held *held;
        struct bus_load *load;

        bus_forget_asking(&peer->asking);
        tdm_list_for_each(held, &peer->held, struct bus_held, node)
                bus_held_free(held);
        tdm_list_for_each(load, &peer->loads, struct bus_load, node)
                bus_load_free(load);
        bus_embed_peer_left(peer);
        bus_job_peer_left(bus, peer);
        if (peer->name)
                bus_restore_owner_left(bus, peer->name);
        tdm_list_remove(&peer->node);
        bus->n_peers--;
        if (peer->account)
                tdm_account_release(peer->account, TDM_RESOURCE_CALLERS, 1);
        tdm_account_unref(peer->account);
        free(peer->name);
        free(peer);
}

static struct bus_peer *peer_find(struct tdm_dbus *bus, const char *name)
{
        /* Backwards: those heard of last are asked for first. */
        for (struct tdm_list *at = bus->peers.prev; at != &bus->peers; at = at->prev) {
                struct bus_peer *peer = tdm_list_entry(at, struct bus_peer, node);

                if (strcmp(peer->name, name) == 0)
                        return peer;
        }
        return NULL;
}

struct bus_peer *bus_peer_of(struct tdm_dbus *bus, DBusMessage *message)
{
        const char *sender = dbus_message_get_sender(message);

        return sender ? peer_find(bus, sender) : NULL;
}

void bus_peer_left(struct tdm_dbus *bus, const char *name)
{
        struct bus_peer *peer = peer_find(bus, name);

        if (peer)
                bus_peer_free(peer);
}

static void serve_held(struct bus_peer *peer)
{
        struct bus_held *held;

        tdm_list_for_each(held, &peer->held, struct bus_held, node) {
                DBusMessage *message;

                if (held->asking || held->reading)
                        continue; /* came by way of one before it, and waits for polkit or its pictures now */
                message = dbus_message_ref(held->message);
                bus_held_free(held);
                bus_object_call(peer, message, BUS_ANYBODY, BUS_POLKIT_UNKNOWN);
                bus_message_done(peer->bus, peer, message);
        }
}

/* The uid of a GetConnectionCredentials answer. */
static int read_uid(DBusMessage *reply, uid_t *ret)
{
        DBusMessageIter args, entries, entry, value;
        dbus_uint32_t uid;
        const char *key;

        if (!dbus_message_has_signature(reply, "a{sv}") || !dbus_message_iter_init(reply, &args))
                return -EINVAL;
        for (dbus_message_iter_recurse(&args, &entries);
             dbus_message_iter_get_arg_type(&entries) == DBUS_TYPE_DICT_ENTRY; dbus_message_iter_next(&entries)) {
                dbus_message_iter_recurse(&entries, &entry);
                dbus_message_iter_get_basic(&entry, &key);
                dbus_message_iter_next(&entry);
                dbus_message_iter_recurse(&entry, &value);
                if (strcmp(key, "UnixUserID") != 0 || dbus_message_iter_get_arg_type(&value) != DBUS_TYPE_UINT32)
                        continue;
                dbus_message_iter_get_basic(&value, &uid);
                *ret = uid;
                return 0;
        }
        return -ENOENT;
}

static void refuse_held(struct bus_peer *peer, int code, const char *text)
{
        struct bus_held *held;

        tdm_list_for_each(held, &peer->held, struct bus_held, node)
                bus_reply_failed(peer->bus, held->message, code, text);
        bus_peer_free(peer);
}

/* Forgets a peer without jobs and calls; the bus is asked about it again when it calls. account NULL: of any user. */
static bool forget_one(struct tdm_dbus *bus, const struct tdm_account *account)
{
        struct bus_peer *peer;

        tdm_list_for_each(peer, &bus->peers, struct bus_peer, node) {
                if (!peer->known || (account && peer->account != account) || !tdm_list_empty(&peer->held) ||
                    !tdm_list_empty(&peer->loads) || !tdm_list_empty(&peer->embeds) || bus_job_knows(bus, peer))
                        continue;
                bus_peer_free(peer);
                return true;
        }
        return false;
}

/* The peer is of this user: charges it to the user's account. */
static int set_owner(struct bus_peer *peer, struct tdm_error *err)
{
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = tdm_accounts_get(peer->bus->accounts, peer->uid);
        int r;

        if (!account)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        do
                r = tdm_account_charge(account, TDM_RESOURCE_CALLERS, 1, err);
        while (r != 0 && forget_one(peer->bus, account));
        if (r != 0)
                return r;
        peer->account = steal_ptr(&account);
        peer->known = true;
        return 0;
}

static void on_credentials(DBusPendingCall *pending, void *userdata)
{
        DBusMessage *reply = dbus_pending_call_steal_reply(pending);
        struct bus_peer *peer = userdata;
        struct tdm_error err = { 0 };
        int r;

        bus_forget_asking(&peer->asking);
        if (reply && dbus_message_get_type(reply) == DBUS_MESSAGE_TYPE_METHOD_RETURN &&
            read_uid(reply, &peer->uid) == 0) {
                r = set_owner(peer, &err);
                if (r == 0) {
                        bus_restore_of(peer);
                        serve_held(peer);
                } else
                        refuse_held(peer, r, err.message);
        } else /* it may have left meanwhile: then nobody hears this */
                refuse_held(peer, TDM_E_DENIED, "the bus does not say which user this caller is");
        if (reply)
                dbus_message_unref(reply);
}

static int ask_credentials(struct bus_peer *peer)
{
        DBusMessage *message = dbus_message_new_method_call(DBUS_SERVICE_DBUS, DBUS_PATH_DBUS, DBUS_INTERFACE_DBUS,
                                                            "GetConnectionCredentials");
        const char *name = peer->name;

        if (!message)
                return -ENOMEM;
        if (!dbus_message_append_args(message, DBUS_TYPE_STRING, &name, DBUS_TYPE_INVALID)) {
                dbus_message_unref(message);
                return -ENOMEM;
        }
        return bus_ask(peer->bus, message, CREDENTIALS_TIMEOUT_MS, on_credentials, peer, &peer->asking);
}

static int peer_new(struct tdm_dbus *bus, const char *name, struct bus_peer **ret, struct tdm_error *err)
{
        struct bus_peer *peer;

        if (bus->n_peers >= BUS_MAX_PEERS && !forget_one(bus, NULL))
                return tdm_error_set(err, TDM_E_BUSY, "%u callers are served already; try again later", bus->n_peers);
        peer = calloc(1, sizeof(*peer));
        if (!peer)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        peer->bus = bus;
        tdm_list_init(&peer->held);
        tdm_list_init(&peer->loads);
        tdm_list_init(&peer->embeds);
        tdm_list_append(&bus->peers, &peer->node);
        bus->n_peers++;
        peer->name = strdup(name);
        if (!peer->name || ask_credentials(peer) < 0) {
                bus_peer_free(peer);
                return tdm_error_set(err, TDM_E_NO_MEMORY, "cannot ask the bus who calls");
        }
        *ret = peer;
        return 0;
}

int bus_peer_want(struct tdm_dbus *bus, const char *name, struct tdm_error *err)
{
        struct bus_peer *peer = peer_find(bus, name);

        if (!peer)
                return peer_new(bus, name, &peer, err);
        if (peer->known)
                bus_restore_of(peer);
        return 0;
}

void bus_peer_call(struct tdm_dbus *bus, DBusMessage *message)
{
        const char *sender = dbus_message_get_sender(message);
        struct tdm_error err = { 0 };
        struct bus_peer *peer;
        struct bus_held *held;
        int r = 0;

        if (!sender)
                return; /* no bus delivers that */
        peer = peer_find(bus, sender);
        if (!peer)
                r = peer_new(bus, sender, &peer, &err);
        if (r == 0 && !peer->known) {
                r = bus_peer_hold(peer, message, 0, &held, &err);
                if (r == 0)
                        return;
        } else if (r == 0) {
                uint64_t bytes;

                r = bus_call_measure(message, &bytes, &err);
        }
        if (r != 0) {
                tdm_log_debug("call of %s refused: %s", sender, err.message);
                bus_reply_failed(bus, message, r, err.message);
                return;
        }
        tdm_list_remove(&peer->node);
        tdm_list_append(&bus->peers, &peer->node);
        bus_object_call(peer, message, BUS_ANYBODY, BUS_POLKIT_UNKNOWN);
}
