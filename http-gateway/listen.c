/* Opening the listening socket, or taking the one that a service manager passes: see listen.h. */
#include "http-gateway/listen.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>
#include "common/log.h"
#include "http-gateway/port-owner.h"

#define LISTEN_FDS_START 3
#define BACKLOG 512
/* What the kernel holds for a client that does not read; its jobs are paused that much earlier. */
#define SEND_BUFFER_BYTES (64 << 10)

static bool is_loopback(const struct sockaddr_storage *address)
{
        if (address->ss_family == AF_INET)
                return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
        return address->ss_family == AF_UNIX ||
               (address->ss_family == AF_INET6 &&
                IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr));
}

static int take_passed(struct config *c, int fd, struct tdm_error *err)
{
        socklen_t len = sizeof(int);
        int listens = 0, type = 0, flags;

        c->address_size = sizeof(c->address);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 || !listens ||
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_STREAM ||
            getsockname(fd, (struct sockaddr *)&c->address, &c->address_size) < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "what the service manager passed is not a listening stream socket");
        flags = fcntl(fd, F_GETFL);
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return tdm_error_set(err, -errno, "cannot take the service manager's socket: %s", strerror(errno));
        c->loopback = is_loopback(&c->address);
        c->listen = "the service manager's socket";
        if (!c->loopback && c->n_keys == 0 && !c->without_keys)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager's socket can be reached from other machines: give "
                                     "--api-key-file, or --without-keys to let everybody in");
        return 0;
}

int listen_open(struct config *c, int *ret_fd, struct tdm_error *err)
{
        const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
        _cleanup_(closep) int fd = -1;
        char owner[160];
        int one = 1, r;

        if (pid && fds && strtol(pid, NULL, 10) == getpid() && strtol(fds, NULL, 10) > 0) {
                if (strtol(fds, NULL, 10) != 1)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "the service manager passed %.10s descriptors; tandem-http takes one",
                                             fds);
                fd = LISTEN_FDS_START;
                unsetenv("LISTEN_PID");
                unsetenv("LISTEN_FDS");
                unsetenv("LISTEN_FDNAMES");
                r = take_passed(c, fd, err);
                if (r != 0)
                        return r;
                (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){ SEND_BUFFER_BYTES }, sizeof(int));
                *ret_fd = steal_fd(&fd);
                return 0;
        }
        fd = socket(c->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return tdm_error_set(err, -errno, "cannot make a socket for %s: %s", c->listen, strerror(errno));
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){ SEND_BUFFER_BYTES }, sizeof(int)); /* inherited */
        if (bind(fd, (const struct sockaddr *)&c->address, c->address_size) < 0 || listen(fd, BACKLOG) < 0) {
                if (errno == EADDRINUSE) {
                        if (!port_owner((const struct sockaddr *)&c->address, owner, sizeof(owner)))
                                snprintf(owner, sizeof(owner), "a process that /proc does not show");
                        return tdm_error_set(err, TDM_E_BUSY,
                                             "%s is taken by %s: end that one, or listen elsewhere, as with --listen "
                                             "127.0.0.1:11435",
                                             c->listen, owner);
                }
                return tdm_error_set(err, -errno, "cannot listen on %s: %s", c->listen, strerror(errno));
        }
        *ret_fd = steal_fd(&fd);
        return 0;
}

int listen_say_who_has(const char *addresses)
{
        _cleanup_(freep) char *copy = strdup(addresses);
        char *rest = copy, *word, owner[160];
        int status = 0;

        while (copy && (word = strsep(&rest, " \t\n"))) {
                struct sockaddr_storage address;
                socklen_t size;

                if (!config_parse_address(word, &address, &size) ||
                    !port_owner((const struct sockaddr *)&address, owner, sizeof(owner)))
                        continue;
                tdm_log_error("%s is taken by %s. End that one, or move tandem-http.socket: systemctl edit "
                              "tandem-http.socket, with the lines [Socket], ListenStream= and "
                              "ListenStream=127.0.0.1:11435",
                              word, owner);
                status = 1;
        }
        return status;
}

unsigned listen_port(int fd)
{
        struct sockaddr_storage address = { 0 };
        socklen_t size = sizeof(address);

        if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
                return 0;
        return address.ss_family == AF_INET  ? ntohs(((struct sockaddr_in *)&address)->sin_port) :
               address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port) :
                                               0;
}
