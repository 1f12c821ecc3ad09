/* libdbus's watches and timeouts in the loop's terms, for both connections of this folder: to the bus that is served,
 * and to logind's. libdbus says which events and times it waits for, and the loop calls it. */
#include "daemon/faces/dbus/private.h"

#include <sys/epoll.h>

uint32_t bus_watch_events(DBusWatch *watch)
{
        unsigned flags = dbus_watch_get_flags(watch);

        return (flags & DBUS_WATCH_READABLE ? (uint32_t)EPOLLIN : 0) |
               (flags & DBUS_WATCH_WRITABLE ? (uint32_t)EPOLLOUT : 0);
}

int bus_on_watch(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        unsigned flags = (events & EPOLLIN ? DBUS_WATCH_READABLE : 0u) |
                         (events & EPOLLOUT ? DBUS_WATCH_WRITABLE : 0u) | (events & EPOLLERR ? DBUS_WATCH_ERROR : 0u) |
                         (events & EPOLLHUP ? DBUS_WATCH_HANGUP : 0u);

        dbus_watch_handle(userdata, flags); /* out of memory: it is called again, for the condition holds */
        return 0;
}

static uint64_t interval_ns(DBusTimeout *timeout)
{
        return (uint64_t)TDM_MAX(dbus_timeout_get_interval(timeout), 1) * TDM_NSEC_PER_MSEC;
}

static int on_timeout(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        DBusTimeout *timeout = userdata;

        tdm_source_arm(source, now_ns + interval_ns(timeout));
        dbus_timeout_handle(timeout);
        return 0;
}

static void toggle_timeout(DBusTimeout *timeout, void *userdata)
{
        tdm_source_arm(dbus_timeout_get_data(timeout),
                       dbus_timeout_get_enabled(timeout) ? tdm_now_ns() + interval_ns(timeout) : 0);
}

static dbus_bool_t add_timeout(DBusTimeout *timeout, void *userdata)
{
        struct tdm_source *source;

        if (tdm_loop_add_timer(userdata, on_timeout, timeout, &source) < 0)
                return FALSE;
        dbus_timeout_set_data(timeout, source, NULL);
        toggle_timeout(timeout, NULL);
        return TRUE;
}

static void remove_timeout(DBusTimeout *timeout, void *userdata)
{
        tdm_source_destroy(dbus_timeout_get_data(timeout));
        dbus_timeout_set_data(timeout, NULL, NULL);
}

bool bus_put_timeouts(DBusConnection *connection, struct tdm_loop *loop)
{
        return dbus_connection_set_timeout_functions(connection, add_timeout, remove_timeout, toggle_timeout, loop,
                                                     NULL);
}

void bus_tick_soon(struct tdm_dbus *bus, uint64_t deadline_ns)
{
        deadline_ns = TDM_MAX(deadline_ns, UINT64_C(1));
        if (bus->tick_ns && bus->tick_ns <= deadline_ns)
                return;
        bus->tick_ns = deadline_ns;
        tdm_source_arm(bus->tick, deadline_ns);
}
