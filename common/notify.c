/* The protocol is short, so this needs no library. */
#include "common/notify.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/log.h"

void tdm_notify(const char *state)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = -1;
        size_t len;

        if (!path || (path[0] != '/' && path[0] != '@'))
                return;
        len = strlen(path);
        if (len >= sizeof(address.sun_path))
                return;
        memcpy(address.sun_path, path, len);
        if (path[0] == '@')
                address.sun_path[0] = '\0';
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
                tdm_log_debug("cannot notify the service manager: %s", strerror(errno));
}
