/* Which object, interface and method a call means, and the interfaces that every object has: Introspectable,
 * Properties, ObjectManager. Tables say what there is (manager.c, job-object.c, status.c); the XML of proto/ says the
 * same to others, and a test holds the two equal.
 *
 * A job that the caller may not see is not there: same answer, same time, whether or not it exists. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

struct target {
        const struct bus_interface *interface;
        void *object;
        bool only_look; /* another user's job, seen by polkit's leave */
        bool folder;    /* no object, but there are some below */
};

static const char standard_xml[] = "  <interface name=\"" BUS_INTROSPECTABLE "\">\n"
                                   "    <method name=\"Introspect\">\n"
                                   "      <arg name=\"xml_data\" type=\"s\" direction=\"out\"/>\n"
                                   "    </method>\n"
                                   "  </interface>\n"
                                   "  <interface name=\"org.freedesktop.DBus.Peer\">\n"
                                   "    <method name=\"Ping\"/>\n"
                                   "    <method name=\"GetMachineId\">\n"
                                   "      <arg name=\"machine_uuid\" type=\"s\" direction=\"out\"/>\n"
                                   "    </method>\n"
                                   "  </interface>\n";

static const char properties_xml[] = "  <interface name=\"" BUS_PROPERTIES "\">\n"
                                     "    <method name=\"Get\">\n"
                                     "      <arg name=\"interface_name\" type=\"s\" direction=\"in\"/>\n"
                                     "      <arg name=\"property_name\" type=\"s\" direction=\"in\"/>\n"
                                     "      <arg name=\"value\" type=\"v\" direction=\"out\"/>\n"
                                     "    </method>\n"
                                     "    <method name=\"GetAll\">\n"
                                     "      <arg name=\"interface_name\" type=\"s\" direction=\"in\"/>\n"
                                     "      <arg name=\"properties\" type=\"a{sv}\" direction=\"out\"/>\n"
                                     "    </method>\n"
                                     "    <method name=\"Set\">\n"
                                     "      <arg name=\"interface_name\" type=\"s\" direction=\"in\"/>\n"
                                     "      <arg name=\"property_name\" type=\"s\" direction=\"in\"/>\n"
                                     "      <arg name=\"value\" type=\"v\" direction=\"in\"/>\n"
                                     "    </method>\n"
                                     "    <signal name=\"PropertiesChanged\">\n"
                                     "      <arg name=\"interface_name\" type=\"s\"/>\n"
                                     "      <arg name=\"changed_properties\" type=\"a{sv}\"/>\n"
                                     "      <arg name=\"invalidated_properties\" type=\"as\"/>\n"
                                     "    </signal>\n"
                                     "  </interface>\n";

static const char object_manager_xml[] = "  <interface name=\"" BUS_OBJECT_MANAGER "\">\n"
                                         "    <method name=\"GetManagedObjects\">\n"
                                         "      <arg name=\"objects\" type=\"a{oa{sa{sv}}}\" direction=\"out\"/>\n"
                                         "    </method>\n"
                                         "    <signal name=\"InterfacesAdded\">\n"
                                         "      <arg name=\"object\" type=\"o\"/>\n"
                                         "      <arg name=\"interfaces\" type=\"a{sa{sv}}\"/>\n"
                                         "    </signal>\n"
                                         "    <signal name=\"InterfacesRemoved\">\n"
                                         "      <arg name=\"object\" type=\"o\"/>\n"
                                         "      <arg name=\"interfaces\" type=\"as\"/>\n"
                                         "    </signal>\n"
                                         "  </interface>\n";

/* ---- finding ---- */

/* The rest of `path` below `prefix`, without the slash ("" for prefix itself); NULL: it is not below. */
static const char *below(const char *path, const char *prefix)
{
        size_t n = strlen(prefix);

        if (strncmp(path, prefix, n) != 0 || (path[n] != '\0' && path[n] != '/'))
                return NULL;
        return path[n] ? path + n + 1 : path + n;
}

static bool find_job(struct bus_peer *peer, const char *path, enum bus_polkit others, struct target *ret)
{
        struct bus_job *job = bus_job_find(peer->bus, path), *other;
        const char *rest;

        if (job && (bus_job_is_seen_by(job, peer) || others == BUS_POLKIT_YES)) {
                *ret = (struct target){ .interface = &bus_job_interface,
                                        .object = job,
                                        .only_look = !bus_job_is_seen_by(job, peer) };
                return true;
        }
        tdm_list_for_each(other, &peer->bus->jobs, struct bus_job, node) {
                rest = below(other->path, path);
                if (rest && rest[0] && bus_job_is_seen_by(other, peer))
                        ret->folder = true;
        }
        return ret->folder;
}

static bool find_object(struct bus_peer *peer, const char *path, enum bus_polkit others, struct target *ret)
{
        static const char *const folders[] = {
                "/", "/dev", "/dev/tandem", BUS_ROOT "/workers", BUS_ROOT "/models", BUS_ROOT "/jobs"
        };
        struct tdm_model *model;
        const char *rest;

        *ret = (struct target){ 0 };
        if (strcmp(path, BUS_ROOT) == 0) {
                *ret = (struct target){ .interface = &bus_manager_interface, .object = peer->bus };
                return true;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(folders); i++)
                if (strcmp(path, folders[i]) == 0) {
                        ret->folder = true;
                        return true;
                }
        rest = below(path, BUS_ROOT "/workers");
        for (int i = 0; rest && peer->bus->fleet && i < TDM_N_WORKERS; i++)
                if (strcmp(rest, bus_worker_names[i]) == 0) {
                        *ret = (struct target){ .interface = &bus_worker_interface,
                                                .object = (void *)&bus_worker_names[i] };
                        return true;
                }
        if (below(path, BUS_ROOT "/models")) {
                model = bus_model_find(peer->bus, path);
                *ret = (struct target){ .interface = &bus_model_interface, .object = model };
                return model != NULL;
        }
        return below(path, BUS_ROOT "/jobs") && find_job(peer, path, others, ret);
}

/* Polkit may let a user see what belongs to others; it is asked whenever what is asked for is not the caller's own. */
static bool needs_leave(struct bus_peer *peer, const char *path, bool managed, enum bus_polkit others)
{
        struct tdm_dbus *bus = peer->bus;
        struct bus_job *job;

        if (!bus->system || bus_peer_is_root(peer) || others != BUS_POLKIT_UNKNOWN)
                return false;
        if (managed) {
                tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                        if (!bus_job_is_seen_by(job, peer))
                                return true;
                return false;
        }
        if (!below(path, BUS_ROOT "/jobs") || strcmp(path, BUS_ROOT "/jobs") == 0)
                return false;
        job = bus_job_find(bus, path);
        return !job || !bus_job_is_seen_by(job, peer);
}

/* ---- Introspectable ---- */

struct text {
        char *data;
        size_t size, capacity;
        bool failed;
};

static void text_add(struct text *t, const char *s, size_t n)
{
        if (t->failed)
                return;
        if (t->size + n + 1 > t->capacity) {
                size_t capacity = 2 * (t->size + n + 1);
                char *data = realloc(t->data, capacity);

                if (!data) {
                        t->failed = true;
                        return;
                }
                t->data = data;
                t->capacity = capacity;
        }
        memcpy(t->data + t->size, s, n);
        t->size += n;
        t->data[t->size] = '\0';
}

static void add_string(struct text *t, const char *s)
{
        text_add(t, s, strlen(s));
}

/* The piece of the built-in XML that is about one interface. */
static void add_interface(struct text *t, const char *name)
{
        char open[128];
        const char *begin, *end;

        snprintf(open, sizeof(open), "  <interface name=\"%s\">", name);
        begin = strstr(bus_introspection_xml, open);
        end = begin ? strstr(begin, "  </interface>\n") : NULL;
        if (end)
                text_add(t, begin, (size_t)(end - begin) + strlen("  </interface>\n"));
}

/* The first element below path of an object's path, once each. */
static void add_child(struct text *t, const char *path, const char *object)
{
        const char *rest = strcmp(path, "/") == 0 ? object + 1 : below(object, path);
        char node[BUS_MAX_PATH + 32];
        int n;

        if (!rest || !rest[0])
                return;
        n = snprintf(node, sizeof(node), "  <node name=\"%.*s\"/>\n", (int)strcspn(rest, "/"), rest);
        if (!t->data || !strstr(t->data, node))
                text_add(t, node, (size_t)n);
}

static void add_children(struct text *t, struct bus_peer *peer, const char *path)
{
        struct tdm_dbus *bus = peer->bus;
        char object[BUS_MAX_PATH];
        struct tdm_model *model;
        struct bus_job *job;

        add_child(t, path, BUS_ROOT "/workers");
        add_child(t, path, BUS_ROOT "/models");
        add_child(t, path, BUS_ROOT "/jobs");
        for (int i = 0; bus->fleet && i < TDM_N_WORKERS; i++) {
                snprintf(object, sizeof(object), BUS_ROOT "/workers/%s", bus_worker_names[i]);
                add_child(t, path, object);
        }
        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node) {
                bus_model_path(model, object);
                add_child(t, path, object);
        }
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (bus_job_is_seen_by(job, peer))
                        add_child(t, path, job->path);
}

static void introspect(struct bus_peer *peer, DBusMessage *message, const struct target *target)
{
        struct text t = { 0 };
        struct bus_writer w;

        add_string(&t, DBUS_INTROSPECT_1_0_XML_DOCTYPE_DECL_NODE "<node>\n");
        add_string(&t, standard_xml);
        if (target->interface) {
                add_string(&t, properties_xml);
                add_interface(&t, target->interface->name);
        }
        if (target->interface == &bus_manager_interface)
                add_string(&t, object_manager_xml);
        add_children(&t, peer, dbus_message_get_path(message));
        add_string(&t, "</node>\n");
        if (t.failed) {
                bus_reply_failed(peer->bus, message, TDM_E_NO_MEMORY, "out of memory");
        } else {
                bus_writer_init(&w, bus_reply_new(message));
                bus_write_string(&w, t.data);
                bus_reply_finish(peer->bus, message, &w);
        }
        free(t.data);
}

/* ---- Properties ---- */

static void unknown_interface(struct bus_peer *peer, DBusMessage *message, const char *name)
{
        char text[400];

        snprintf(text, sizeof(text), "object %s has no interface %.*s", dbus_message_get_path(message),
                 TDM_UTF8_CUT(name, 200));
        bus_reply_error(peer->bus, message, DBUS_ERROR_UNKNOWN_INTERFACE, text);
}

static void properties_call(struct bus_peer *peer, DBusMessage *message, const struct target *target,
                            const char *member)
{
        const struct bus_interface *interface = target->interface;
        const char *name, *property;
        char text[400];
        DBusMessageIter args;
        struct bus_writer w;
        bool known;

        dbus_message_iter_init(message, &args);
        dbus_message_iter_get_basic(&args, &name);
        known = interface && (name[0] == '\0' || strcmp(name, interface->name) == 0);
        if (!known && strcmp(name, BUS_PROPERTIES) != 0 && strcmp(name, BUS_INTROSPECTABLE) != 0 &&
            strcmp(name, DBUS_INTERFACE_PEER) != 0 &&
            !(interface == &bus_manager_interface && strcmp(name, BUS_OBJECT_MANAGER) == 0)) {
                unknown_interface(peer, message, name);
                return;
        }
        if (strcmp(member, "GetAll") == 0) {
                bus_writer_init(&w, bus_reply_new(message));
                bus_write_properties(&w, peer->bus, known ? interface : NULL, target->object, false);
                bus_reply_finish(peer->bus, message, &w);
                return;
        }
        dbus_message_iter_next(&args);
        dbus_message_iter_get_basic(&args, &property);
        for (size_t i = 0; known && i < interface->n_properties; i++) {
                if (strcmp(property, interface->properties[i].name) != 0)
                        continue;
                if (strcmp(member, "Set") == 0) {
                        snprintf(text, sizeof(text), "property %s can only be read", interface->properties[i].name);
                        bus_reply_error(peer->bus, message, DBUS_ERROR_PROPERTY_READ_ONLY, text);
                        return;
                }
                bus_writer_init(&w, bus_reply_new(message));
                bus_write_value(&w, peer->bus, interface, target->object, i);
                bus_reply_finish(peer->bus, message, &w);
                return;
        }
        snprintf(text, sizeof(text), "object %s has no property %.*s", dbus_message_get_path(message),
                 TDM_UTF8_CUT(property, 200));
        bus_reply_error(peer->bus, message, DBUS_ERROR_UNKNOWN_PROPERTY, text);
}

/* ---- ObjectManager ---- */

static void get_managed_objects(struct bus_peer *peer, DBusMessage *message, enum bus_polkit others)
{
        struct tdm_dbus *bus = peer->bus;
        char path[BUS_MAX_PATH];
        struct tdm_model *model;
        struct bus_job *job;
        struct bus_writer w;

        bus_writer_init(&w, bus_reply_new(message));
        bus_open(&w, DBUS_TYPE_ARRAY, "{oa{sa{sv}}}");
        for (int i = 0; bus->fleet && i < TDM_N_WORKERS; i++) {
                snprintf(path, sizeof(path), BUS_ROOT "/workers/%s", bus_worker_names[i]);
                bus_write_object(&w, bus, path, &bus_worker_interface, (void *)&bus_worker_names[i], true);
        }
        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node) {
                bus_model_path(model, path);
                bus_write_object(&w, bus, path, &bus_model_interface, model, true);
        }
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (bus_job_is_seen_by(job, peer) || others == BUS_POLKIT_YES)
                        bus_write_object(&w, bus, job->path, &bus_job_interface, job, true);
        bus_close(&w);
        bus_reply_finish(bus, message, &w);
}

/* ---- calls ---- */

static bool check_signature(struct bus_peer *peer, DBusMessage *message, const char *want)
{
        char text[300];

        if (dbus_message_has_signature(message, want))
                return true;
        snprintf(text, sizeof(text), "%s takes arguments of type \"%s\"; \"%.*s\" came",
                 dbus_message_get_member(message), want, TDM_UTF8_CUT(dbus_message_get_signature(message), 80));
        bus_reply_error(peer->bus, message, DBUS_ERROR_INVALID_ARGS, text);
        return false;
}

static const struct {
        const char *interface, *member, *in;
} standard[] = {
        { BUS_INTROSPECTABLE, "Introspect", "" },
        { BUS_PROPERTIES, "Get", "ss" },
        { BUS_PROPERTIES, "GetAll", "s" },
        { BUS_PROPERTIES, "Set", "ssv" },
        { BUS_OBJECT_MANAGER, "GetManagedObjects", "" },
};

/* false: it is not one of them. */
static bool standard_call(struct bus_peer *peer, DBusMessage *message, const struct target *target,
                          const char *interface, const char *member, enum bus_polkit others)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(standard); i++) {
                if (strcmp(member, standard[i].member) != 0 ||
                    (interface && strcmp(interface, standard[i].interface) != 0))
                        continue;
                if (strcmp(standard[i].interface, BUS_OBJECT_MANAGER) == 0 &&
                    target->interface != &bus_manager_interface)
                        continue;
                if (strcmp(standard[i].interface, BUS_PROPERTIES) == 0 && !target->interface)
                        continue;
                if (!check_signature(peer, message, standard[i].in))
                        return true;
                if (strcmp(standard[i].interface, BUS_INTROSPECTABLE) == 0)
                        introspect(peer, message, target);
                else if (strcmp(standard[i].interface, BUS_OBJECT_MANAGER) != 0)
                        properties_call(peer, message, target, member);
                else if (needs_leave(peer, BUS_ROOT, true, others))
                        bus_authorize(peer, message, BUS_VIEW_OTHERS);
                else
                        get_managed_objects(peer, message, others);
                return true;
        }
        return false;
}

static void method_call(struct bus_peer *peer, DBusMessage *message, const struct target *target,
                        const struct bus_method *method, enum bus_action allowed)
{
        DBusMessageIter args;

        if (!check_signature(peer, message, method->in))
                return;
        if (target->only_look) {
                bus_reply_failed(peer->bus, message, TDM_E_DENIED,
                                 "this job belongs to another user: it can be looked at only");
                return;
        }
        if (method->action != BUS_ANYBODY && method->action != allowed) {
                bus_authorize(peer, message, method->action);
                return;
        }
        dbus_message_iter_init(message, &args);
        method->fn(peer, message, &args, target->object);
}

void bus_object_call(struct bus_peer *peer, DBusMessage *message, enum bus_action allowed, enum bus_polkit others)
{
        const char *path = dbus_message_get_path(message), *interface = dbus_message_get_interface(message);
        const char *member = dbus_message_get_member(message);
        struct tdm_dbus *bus = peer->bus;
        struct target target;
        char text[700];

        if (!bus->system && !bus_peer_is_admin(peer)) {
                snprintf(text, sizeof(text), "this tandemd serves user %u only", (unsigned)geteuid());
                bus_reply_failed(bus, message, TDM_E_DENIED, text);
                return;
        }
        if (needs_leave(peer, path, false, others)) {
                bus_authorize(peer, message, BUS_VIEW_OTHERS);
                return;
        }
        if (!find_object(peer, path, others, &target)) {
                snprintf(text, sizeof(text), "there is no object %.*s", TDM_UTF8_CUT(path, 400));
                bus_reply_error(bus, message, DBUS_ERROR_UNKNOWN_OBJECT, text);
                return;
        }
        if (target.interface && (!interface || strcmp(interface, target.interface->name) == 0))
                for (size_t i = 0; i < target.interface->n_methods; i++)
                        if (strcmp(member, target.interface->methods[i].name) == 0) {
                                method_call(peer, message, &target, &target.interface->methods[i], allowed);
                                return;
                        }
        if (standard_call(peer, message, &target, interface, member, others))
                return;
        snprintf(text, sizeof(text), "object %.*s has no method %.*s%s%.*s", TDM_UTF8_CUT(path, 300),
                 TDM_UTF8_CUT(interface ? interface : "", 150), interface ? "." : "", TDM_UTF8_CUT(member, 150));
        bus_reply_error(bus, message, DBUS_ERROR_UNKNOWN_METHOD, text);
}
