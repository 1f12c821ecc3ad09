/* The watches of the connection that is served, on the loop: libdbus turns them on and off, on another thread too. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

/* A watch that is off has no source at all: epoll always reports a hang-up, and would wake the loop without end. */
static dbus_bool_t on_toggle_watch_to(DBusWatch *watch, struct tdm_dbus *bus)
{
        struct tdm_source *source = dbus_watch_get_data(watch);
        int r;

        if (!dbus_watch_get_enabled(watch)) {
                tdm_source_destroy(source);
                dbus_watch_set_data(watch, NULL, NULL);
                return TRUE;
        }
        if (source)
                return tdm_source_set_io_events(source, bus_watch_events(watch)) == 0;
        r = tdm_loop_add_io(bus->loop, dbus_watch_get_unix_fd(watch), bus_watch_events(watch), bus_on_watch, watch,
                            &source);
        if (r < 0)
                return FALSE;
        dbus_watch_set_data(watch, source, NULL);
        return TRUE;
}

static dbus_bool_t on_add_watch(DBusWatch *watch, void *userdata)
{
        struct tdm_dbus *bus = userdata;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(bus->watches); i++)
                if (!bus->watches[i]) {
                        bus->watches[i] = watch;
                        return on_toggle_watch_to(watch, bus);
                }
        return FALSE;
}

static void on_toggle_watch(DBusWatch *watch, void *userdata)
{
        struct tdm_dbus *bus = userdata;

        /* A message that is given up on a thread may let libdbus read again; the loop looks when the thread is done. */
        if (!pthread_equal(pthread_self(), bus->loop_thread))
                return;
        if (!on_toggle_watch_to(watch, bus)) {
                tdm_log_error("out of memory for the connection to the bus");
                bus->lost = true;
                tdm_source_schedule(bus->dispatch);
        }
}

void bus_look_at_watches(struct tdm_dbus *bus)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bus->watches); i++)
                if (bus->watches[i])
                        on_toggle_watch(bus->watches[i], bus);
}

static void on_remove_watch(DBusWatch *watch, void *userdata)
{
        struct tdm_dbus *bus = userdata;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(bus->watches); i++)
                if (bus->watches[i] == watch)
                        bus->watches[i] = NULL;
        tdm_source_destroy(dbus_watch_get_data(watch));
        dbus_watch_set_data(watch, NULL, NULL);
}

bool bus_put_watches(struct tdm_dbus *bus, DBusConnection *connection)
{
        return dbus_connection_set_watch_functions(connection, on_add_watch, on_remove_watch, on_toggle_watch, bus,
                                                   NULL);
}
