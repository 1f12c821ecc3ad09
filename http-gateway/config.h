/* The settings of the command line. */
#ifndef TDM_HTTP_CONFIG_H
#define TDM_HTTP_CONFIG_H

#include <sys/socket.h>
#include "common/error.h"

#define MAX_NAMES 32u
#define MAX_KEYS 256u
#define MAX_KEY_BYTES 256u

#define MAX_KEY_NAME_BYTES 63u

struct api_key {
        char label[MAX_KEY_NAME_BYTES + 8]; /* "key:NAME": whom its requests are the daemon's for; not secret */
        char key[MAX_KEY_BYTES];            /* zero-padded: a comparison takes the same time wherever two keys differ */
};

#define MAX_PEERS 8u

/* Another gateway, which goes on with jobs when this one's daemon has died. */
struct peer_address {
        char name[96]; /* ADDRESS:PORT, for logs and as the Host */
        struct sockaddr_storage address;
        socklen_t address_size;
        char key[MAX_KEY_BYTES]; /* "": none */
};

struct config {
        const char *socket; /* NULL: as every client of libtandem finds it */
        const char *listen;
        const char *key_file;
        bool without_keys, without_page;
        const char *hosts[MAX_NAMES]; /* "name" or "*.suffix" */
        unsigned n_hosts;
        const char *origins[MAX_NAMES]; /* "app://obsidian.md" or "app://" and "*" behind it */
        unsigned n_origins;
        unsigned request_timeout_s; /* for a request to come whole */
        unsigned idle_timeout_s;    /* between two requests of a connection */
        bool help, version, list_parameters;
        const char *who_has; /* addresses to look at, in place of serving */

        struct api_key *keys;
        unsigned n_keys;
        const char *peer_file;
        struct peer_address *peers;
        unsigned n_peers;
        struct sockaddr_storage address;
        socklen_t address_size;
        bool loopback;
};

extern const char config_help[];

/* 0, TDM_E_BAD_REQUEST (usage) or another failure. argv's strings are kept. */
int config_load(struct config *c, int argc, char **argv, struct tdm_error *err);
/* ADDRESS:PORT or [ADDRESS6]:PORT; a name is not looked up. False: that is neither. */
bool config_parse_address(const char *text, struct sockaddr_storage *ret, socklen_t *ret_size);
void config_deinit(struct config *c);

#endif
