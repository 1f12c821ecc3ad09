/* Whom requests and connections count for, and how much of what all share each holds.
 *
 * A request with a key counts for the key's name, any other one for the network that its connection came from. A
 * connection always counts for its network: it is there before its first key. Addresses that one machine may choose
 * among freely are one network: all of the loopback (127.0.0.0/8, ::1, local sockets) and each /64 of IPv6.
 *
 * A request holds memory from its first byte until its answer is read: the body, its values, a whole answer while it
 * grows. Of OWNERS_MAX_BYTES an owner may hold half of what the others leave, so that some is left for the next one,
 * and OWNERS_FLOOR_BYTES while there are any. The same holds for requests under way: all owners together have fewer
 * than a network may have connections, so some of those are always free or idle.
 *
 * Loop thread only. An owner lives as long as somebody refers to it. */
#ifndef TDM_HTTP_OWNERS_H
#define TDM_HTTP_OWNERS_H

#include <sys/socket.h>
#include "common/list.h"
#include "http-gateway/errors.h"

#define OWNERS_MAX_BYTES ((uint64_t)256 << 20)
#define OWNERS_FLOOR_BYTES ((uint64_t)8 << 20)
#define OWNERS_MAX_REQUESTS 1000u
#define OWNERS_FLOOR_REQUESTS 4u

struct owners {
        struct tdm_list all;
        uint64_t held_bytes, peak_bytes; /* server.c takes the peak back to what is held */
        uint64_t last_id;
        unsigned n_requests;
};

/* The part of an address that tells networks apart; zeros for the loopback. */
struct network {
        uint8_t bytes[9];
};

struct owner {
        struct tdm_list node;
        struct owners *owners;
        unsigned n_refs;
        uint64_t id;       /* never another's */
        const char *label; /* of a key, borrowed; NULL: a network */
        struct network network;
        uint64_t held_bytes;
        unsigned n_requests;
        unsigned n_peers; /* server.c's: the network's connections, without those that it ends */
};

void owners_init(struct owners *owners); /* all must be released before it goes */

/* New references; NULL: no memory. */
struct owner *owners_get_label(struct owners *owners, const char *label);
struct owner *owners_get_network(struct owners *owners, const struct sockaddr *address);
struct owner *owner_ref(struct owner *o);
/* The owner of what comes from this machine without a key. */
bool owner_is_this_machine(const struct owner *o);
/* The last one may go only when nothing is held any more. NULL is fine. */
void owner_unref(struct owner *o);

/* 0, or a failure, and nothing is held: 429 where this owner's share is used up, 503 where all have everything. */
int owner_hold(struct owner *o, uint64_t bytes, struct failure *f);
/* The same for a request that begins. */
int owner_begin_request(struct owner *o, struct failure *f);
void owner_end_request(struct owner *o);
void owner_release(struct owner *o, uint64_t bytes);

#endif
