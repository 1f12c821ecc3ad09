/* The properties of objects, in answers and in the signals that tell of them. */
#include "daemon/faces/dbus/private.h"

void bus_write_value(struct bus_writer *w, struct tdm_dbus *bus, const struct bus_interface *interface, void *object,
                     size_t i)
{
        bus_open(w, DBUS_TYPE_VARIANT, interface->properties[i].type);
        interface->write(w, bus, object, i);
        bus_close(w);
}

void bus_write_properties(struct bus_writer *w, struct tdm_dbus *bus, const struct bus_interface *interface,
                          void *object, bool only_changing)
{
        bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
        for (size_t i = 0; interface && i < interface->n_properties; i++) {
                if (only_changing && !interface->properties[i].changes)
                        continue;
                bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
                bus_write_string(w, interface->properties[i].name);
                bus_write_value(w, bus, interface, object, i);
                bus_close(w);
        }
        bus_close(w);
}

void bus_properties_changed(struct tdm_dbus *bus, const char *path, const struct bus_interface *interface, void *object,
                            const char *destination)
{
        DBusMessage *message = dbus_message_new_signal(path, BUS_PROPERTIES, "PropertiesChanged");
        struct bus_writer w;

        if (message && destination && !dbus_message_set_destination(message, destination)) {
                dbus_message_unref(message); /* better unsaid than said to everybody */
                return;
        }
        bus_writer_init(&w, message);
        bus_write_string(&w, interface->name);
        bus_write_properties(&w, bus, interface, object, true);
        bus_open(&w, DBUS_TYPE_ARRAY, "s");
        bus_close(&w);
        bus_send(bus, bus_writer_finish(&w));
}

void bus_write_object(struct bus_writer *w, struct tdm_dbus *bus, const char *path,
                      const struct bus_interface *interface, void *object, bool in_dict)
{
        if (in_dict)
                bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
        bus_write_path(w, path);
        bus_open(w, DBUS_TYPE_ARRAY, "{sa{sv}}");
        bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
        bus_write_string(w, interface->name);
        bus_write_properties(w, bus, interface, object, false);
        bus_close(w);
        bus_close(w);
        if (in_dict)
                bus_close(w);
}

static DBusMessage *object_signal(const char *member, const char *destination)
{
        DBusMessage *message = dbus_message_new_signal(BUS_ROOT, BUS_OBJECT_MANAGER, member);

        if (message && destination && !dbus_message_set_destination(message, destination)) {
                dbus_message_unref(message);
                return NULL;
        }
        return message;
}

void bus_interfaces_added(struct tdm_dbus *bus, const char *path, const struct bus_interface *interface, void *object,
                          const char *destination)
{
        struct bus_writer w;

        bus_writer_init(&w, object_signal("InterfacesAdded", destination));
        bus_write_object(&w, bus, path, interface, object, false);
        bus_send(bus, bus_writer_finish(&w));
}

void bus_interfaces_removed(struct tdm_dbus *bus, const char *path, const char *interface, const char *destination)
{
        struct bus_writer w;

        bus_writer_init(&w, object_signal("InterfacesRemoved", destination));
        bus_write_path(&w, path);
        bus_open(&w, DBUS_TYPE_ARRAY, "s");
        bus_write_string(&w, interface);
        bus_close(&w);
        bus_send(bus, bus_writer_finish(&w));
}
