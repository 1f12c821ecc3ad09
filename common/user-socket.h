/* Where the daemon of one user listens, and that user's clients look: $XDG_RUNTIME_DIR/tandem/socket. A shell of su or
 * cron, and a container, have no such variable: then it is in /run/user/UID, where that is there, else in
 * /tmp/tandem-UID. Both belong to the user alone. */
#ifndef TDM_COMMON_USER_SOCKET_H
#define TDM_COMMON_USER_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

/* create: makes /tmp/tandem-UID where it is needed. 0, or -errno and nothing written; -ENOENT: root has none without
 * the variable; -EPERM: somebody else has made /tmp/tandem-UID, or others may write into it. */
int tdm_user_socket(char *to, size_t size, bool create);

#endif
