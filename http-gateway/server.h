/* The server: connections of libmicrohttpd on the event loop, the exchanges on them, and what all of them share.
 *
 * One thread runs everything but the questions of backend.h. A `struct peer` is a TCP connection, a `struct exchange`
 * (exchange.h) one request on it. */
#ifndef TDM_HTTP_SERVER_H
#define TDM_HTTP_SERVER_H

#include <microhttpd.h>
#include "common/list.h"
#include "common/loop.h"
#include "http-gateway/config.h"
#include "http-gateway/metrics.h"
#include "http-gateway/owners.h"

#define MAX_BODY_BYTES ((size_t)8 << 20)
#define PEERS_PART_BYTES ((size_t)1 << 20)   /* more than that in a job that a peer hands over */
#define MAX_DRAIN_BYTES ((uint64_t)32 << 20) /* of a body that is too large, so that its sender reads the answer */
#define MAX_CONNECTIONS 2048u
#define CROWDED_CONNECTIONS (MAX_CONNECTIONS - 64u) /* beyond it each new one costs one that waits */
#define MAX_CONNECTIONS_PER_NETWORK 1024u
#define CONNECTION_MEMORY ((size_t)32 << 10) /* request line and headers have to fit */

struct backend;
struct exchange;
struct tdm_background;

struct peer {
        struct server *server;
        struct tdm_list node;
        int fd;            /* libmicrohttpd's */
        uint64_t since_ns; /* when it connected, or its last exchange ended */
        struct owner *network;
        bool leaving; /* its socket is shut down */
        struct exchange *exchange;
};

struct server {
        const struct config *config;
        struct tdm_loop *loop;
        struct MHD_Daemon *mhd;
        struct tdm_source *mhd_io, *mhd_timer, *run_again, *tick, *sigterm, *sigint;
        struct backend *backend;
        struct tdm_background *readers; /* of bodies: reading.h */
        struct tdm_list peers, exchanges;
        unsigned n_exchanges, n_peers, n_leaving;
        struct owners owners;
        uint64_t next_id;
        uint64_t ticked_ns;
        bool draining;
        uint64_t drain_until_ns;
        struct metrics metrics;
};

int server_run(struct config *config, struct tdm_error *err);
/* Ends a request that is slow to come whole: the oldest of the owner that has most. owner: only of this one; NULL: any.
 * False: there is none beside the asker. */
bool server_make_room(struct server *s, const struct owner *owner, const struct exchange *asker);
/* To be called first in each tick. A late tick says that this process stood still (it was stopped, or had no CPU). What
 * others sent meanwhile is unread yet, so that time does not count for those who are waited for. */
void server_forgive(struct server *s, uint64_t now_ns);
/* libmicrohttpd has something to do, though no socket says so. */
void server_run_soon(struct server *s);

#endif
