/* Sockets that a service manager passes, by sd_listen_fds' protocol. It is short, so this needs no library. */
#include "daemon/service/passed.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "common/log.h"

#define LISTEN_FDS_START 3
#define MAX_PASSED 1024

static int int_option(int fd, int option)
{
        socklen_t len = sizeof(int);
        int value;

        return getsockopt(fd, SOL_SOCKET, option, &value, &len) < 0 ? -errno : value;
}

/* The nth of names separated by colons; false when there are fewer. */
static bool name_is(const char *names, long n, const char *wanted)
{
        size_t len;

        for (; names && n > 0; n--) {
                names = strchr(names, ':');
                names = names ? names + 1 : NULL;
        }
        if (!names)
                return false;
        len = strcspn(names, ":");
        return len == strlen(wanted) && memcmp(names, wanted, len) == 0;
}

/* The nth name, where it is of what an earlier daemon left. */
static bool is_stored(const char *names, long n, char *to, size_t size)
{
        size_t len;

        for (; names && n > 0; n--) {
                names = strchr(names, ':');
                names = names ? names + 1 : NULL;
        }
        if (!names || strncmp(names, TDM_DBUS_STORED, strlen(TDM_DBUS_STORED)) != 0)
                return false;
        len = strcspn(names, ":");
        if (len >= size)
                return false;
        memcpy(to, names, len);
        to[len] = '\0';
        return true;
}

void tdm_passed_deinit(struct tdm_passed *passed)
{
        for (size_t i = 0; i < passed->n; i++)
                closep(&passed->items[i].fd);
        free(steal_ptr(&passed->items));
        passed->n = 0;
}

/* Takes those out of the n descriptors; their number. */
static long take_stored(const char *names, long n, struct tdm_passed *ret)
{
        struct tdm_dbus_stored one;
        long n_stored = 0;

        for (long i = 0; i < n; i++) {
                if (!is_stored(names, i, one.name, sizeof(one.name)))
                        continue;
                one.fd = (int)(LISTEN_FDS_START + i);
                n_stored++;
                if (!ret->items)
                        ret->items = calloc((size_t)n, sizeof(*ret->items));
                if (!ret->items || fcntl(one.fd, F_SETFD, FD_CLOEXEC) < 0)
                        close(one.fd);
                else
                        ret->items[ret->n++] = one;
        }
        return n_stored;
}

static int check_socket(int fd, struct tdm_error *err)
{
        int flags;

        if (int_option(fd, SO_DOMAIN) != AF_UNIX || int_option(fd, SO_TYPE) != SOCK_STREAM ||
            int_option(fd, SO_ACCEPTCONN) != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "what the service manager passed is not a listening Unix stream socket");
        flags = fcntl(fd, F_GETFL);
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return tdm_error_set(err, -errno, "cannot take the service manager's socket: %s", strerror(errno));
        return 0;
}

int tdm_listen_fd(int *ret_fd, struct tdm_passed *ret_passed, struct tdm_error *err)
{
        const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
        _cleanup_(freep) char *names = getenv("LISTEN_FDNAMES") ? strdup(getenv("LISTEN_FDNAMES")) : NULL;
        bool ours = pid && fds && strtol(pid, NULL, 10) == getpid();
        long n = ours ? strtol(fds, NULL, 10) : 0, chosen = -1, n_stored;
        char name[sizeof(((struct tdm_dbus_stored *)0)->name)];
        int r;

        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        *ret_fd = -1;
        if (n <= 0)
                return 0;
        if (n > MAX_PASSED)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager passed %ld descriptors; tandemd takes one socket", n);
        n_stored = take_stored(names, n, ret_passed);
        if (n_stored == n)
                return 0;
        for (long i = 0; i < n; i++)
                if (name_is(names, i, TDM_LISTEN_NAME)) {
                        if (chosen >= 0)
                                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                                     "the service manager passed several sockets named " TDM_LISTEN_NAME
                                                     "; tandemd takes one");
                        chosen = i;
                }
        for (long i = 0; i < n && chosen < 0 && n - n_stored == 1; i++)
                if (!is_stored(names, i, name, sizeof(name)))
                        chosen = i;
        if (chosen < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the service manager passed %ld descriptors and none is named " TDM_LISTEN_NAME
                                     " (FileDescriptorName=)",
                                     n);
        r = check_socket((int)(LISTEN_FDS_START + chosen), err);
        if (r != 0)
                return r;
        for (long i = 0; i < n; i++)
                if (i != chosen && !is_stored(names, i, name, sizeof(name))) {
                        tdm_log_warning("the service manager passed descriptor %ld, which is not named " TDM_LISTEN_NAME
                                        "; it is closed",
                                        LISTEN_FDS_START + i);
                        close((int)(LISTEN_FDS_START + i));
                }
        *ret_fd = (int)(LISTEN_FDS_START + chosen);
        return 0;
}
