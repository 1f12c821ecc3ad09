/* The socket that clients connect to: its directory, its lock, stale ones, and accepting. One daemon serves one path.
 */
#ifndef TDM_DAEMON_SERVICE_LISTENER_H
#define TDM_DAEMON_SERVICE_LISTENER_H

#include "common/loop.h"
#include "daemon/service/passed.h"

struct tdm_listener;

/* fd is the callee's. */
typedef void (*tdm_accept_fn)(int fd, void *userdata);

/* Takes the lock and listens. system: everybody may connect (mode 0666, directory 0755); else 0600 and 0700. Where the
 * service manager passed a socket, that one is used and path is ignored. TDM_E_BUSY: another daemon serves the path. */
int tdm_listener_new(struct tdm_listener **ret, struct tdm_loop *loop, const char *path, bool system, tdm_accept_fn fn,
                     void *userdata, struct tdm_error *err);
/* Stops listening and removes the socket and its lock (not a socket that was passed). */
void tdm_listener_destroy(struct tdm_listener *listener);
void tdm_listener_destroyp(struct tdm_listener **listener);
/* Whether the service manager passed the socket: it stays where it is, and who connects starts the next daemon. */
bool tdm_listener_is_passed(const struct tdm_listener *listener);
/* What an earlier daemon gave to the manager; stays the listener's, but the descriptors that are set to -1. */
struct tdm_passed *tdm_listener_stored(struct tdm_listener *listener);
const char *tdm_listener_path(const struct tdm_listener *listener);

#endif
