/* Few owners are there at a time, at most one for each connection and key, so they are looked for one after another. */
#include "http-gateway/owners.h"

#include <assert.h>
#include <netinet/in.h>

#define RETRY_MS 1000u

void owners_init(struct owners *owners)
{
        *owners = (struct owners){ 0 };
        tdm_list_init(&owners->all);
}

static struct network network_of(const struct sockaddr *address)
{
        struct network n = { 0 };
        const struct in6_addr *six = NULL;
        const void *four = NULL;

        if (address && address->sa_family == AF_INET)
                four = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
        else if (address && address->sa_family == AF_INET6)
                six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (six && IN6_IS_ADDR_V4MAPPED(six))
                four = six->s6_addr + 12;
        if (four && *(const uint8_t *)four != 127) {
                n.bytes[0] = 4;
                memcpy(n.bytes + 1, four, 4);
        } else if (!four && six && !IN6_IS_ADDR_LOOPBACK(six)) {
                n.bytes[0] = 6;
                memcpy(n.bytes + 1, six->s6_addr, 8);
        }
        return n;
}

static struct owner *owner_get(struct owners *owners, const char *label, struct network network)
{
        struct owner *o;

        tdm_list_for_each(o, &owners->all, struct owner, node) {
                if (label ? o->label && strcmp(o->label, label) == 0 :
                            !o->label && memcmp(&o->network, &network, sizeof(network)) == 0)
                        return owner_ref(o);
        }
        o = calloc(1, sizeof(*o));
        if (!o)
                return NULL;
        *o = (struct owner){
                .owners = owners, .n_refs = 1, .id = ++owners->last_id, .label = label, .network = network
        };
        tdm_list_append(&owners->all, &o->node);
        return o;
}

struct owner *owners_get_label(struct owners *owners, const char *label)
{
        return owner_get(owners, label, (struct network){ 0 });
}

struct owner *owners_get_network(struct owners *owners, const struct sockaddr *address)
{
        return owner_get(owners, NULL, network_of(address));
}

bool owner_is_this_machine(const struct owner *o)
{
        static const struct network loopback = { 0 };

        return !o->label && memcmp(&o->network, &loopback, sizeof(loopback)) == 0;
}

struct owner *owner_ref(struct owner *o)
{
        o->n_refs++;
        return o;
}

void owner_unref(struct owner *o)
{
        if (!o || --o->n_refs > 0)
                return;
        assert(o->held_bytes == 0 && o->n_requests == 0 && o->n_peers == 0);
        tdm_list_remove(&o->node);
        free(o);
}

int owner_hold(struct owner *o, uint64_t bytes, struct failure *f)
{
        uint64_t others = o->owners->held_bytes - o->held_bytes;

        if (bytes > OWNERS_MAX_BYTES || o->owners->held_bytes + bytes > OWNERS_MAX_BYTES) {
                failure_set(
                        f, 503, "busy", NULL,
                        "all requests together hold %llu MiB of memory here, and this one needs more; try again when "
                        "some have ended",
                        (unsigned long long)(o->owners->held_bytes >> 20));
                f->retry_ms = RETRY_MS;
                return f->status;
        }
        if (o->held_bytes + bytes > TDM_MAX((OWNERS_MAX_BYTES - others) / 2, OWNERS_FLOOR_BYTES)) {
                failure_set(f, 429, "rate_limit_exceeded", NULL,
                            "your requests hold %llu MiB of memory here, and this one needs more than your share; wait "
                            "until some have ended, ask for less at once, or for a stream",
                            (unsigned long long)(o->held_bytes >> 20));
                f->retry_ms = RETRY_MS;
                return f->status;
        }
        o->held_bytes += bytes;
        o->owners->held_bytes += bytes;
        o->owners->peak_bytes = TDM_MAX(o->owners->peak_bytes, o->owners->held_bytes);
        return 0;
}

int owner_begin_request(struct owner *o, struct failure *f)
{
        unsigned others = o->owners->n_requests - o->n_requests,
                 share = TDM_MAX((OWNERS_MAX_REQUESTS - others) / 2, OWNERS_FLOOR_REQUESTS);
        bool full = o->owners->n_requests >= OWNERS_MAX_REQUESTS;

        if (full || o->n_requests >= share) {
                failure_set(f, full ? 503 : 429, full ? "busy" : "rate_limit_exceeded", NULL,
                            "%u requests %sare under way here, and no more are taken; try again when some have ended",
                            full ? o->owners->n_requests : o->n_requests, full ? "" : "of yours ");
                f->retry_ms = RETRY_MS;
                return f->status;
        }
        o->n_requests++;
        o->owners->n_requests++;
        return 0;
}

void owner_end_request(struct owner *o)
{
        assert(o->n_requests > 0);
        o->n_requests--;
        o->owners->n_requests--;
}

void owner_release(struct owner *o, uint64_t bytes)
{
        assert(bytes <= o->held_bytes);
        o->held_bytes -= bytes;
        o->owners->held_bytes -= bytes;
}
