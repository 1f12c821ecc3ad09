/* Workers and models as objects, the lists and the status, and the tick that tells of changes.
 *
 * Everything is gathered from its owner when it is asked for. Changes of workers and models are no user's secret
 * and go to all listeners; a loading model says how far it is at most ten times a second. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"
#include "daemon/faces/status.h"

#define WORKERS_LOOK_NS (500 * TDM_NSEC_PER_MSEC) /* while one of them is on its way up */

const char *const bus_worker_names[TDM_N_WORKERS] = { [TDM_WORKER_NPU] = "npu", [TDM_WORKER_GPU] = "gpu" };

static struct tdm_status_source bus_status_source(const struct tdm_dbus *bus)
{
        return (struct tdm_status_source){
                .models = bus->models,
                .scheduler = bus->scheduler,
                .fleet = bus->fleet,
                .socket = bus->socket,
                .started_ns = bus->started_ns,
                .draining = bus->draining,
                .sees_all = !bus->system, /* signals and properties go to everybody */
        };
}

/* ---- fields: the rows of common/status-fields.def, as properties and as entries ---- */

#define BUS_TOLD true
#define BUS_ASKED false

struct field {
        enum { FIELD_TEXT, FIELD_U32, FIELD_U64, FIELD_REAL, FIELD_BOOL } type;
        char bus_type;
        size_t at;
};

#define FIELD(TYPE, type_of_struct, field, BUS_TYPE)                                                                   \
        {                                                                                                              \
                FIELD_##TYPE, BUS_TYPE, offsetof(type_of_struct, field)                                                \
        }

static const struct field worker_fields[] = {
#define WORKER_FIELD(TYPE, field, BUS_TYPE, ...) FIELD(TYPE, struct tdm_worker_fields, field, BUS_TYPE),
#include "common/status-fields.def"
};

static const struct field model_fields[] = {
#define MODEL_FIELD(TYPE, field, BUS_TYPE, ...) FIELD(TYPE, struct tdm_model_fields, field, BUS_TYPE),
#include "common/status-fields.def"
};

static const struct field daemon_fields[] = {
#define DAEMON_FIELD(TYPE, field, BUS_TYPE, ...) FIELD(TYPE, struct tdm_daemon_fields, field, BUS_TYPE),
#include "common/status-fields.def"
};

static const char *const daemon_keys[] = {
#define DAEMON_FIELD(TYPE, field, BUS_TYPE, bus_name, ...) bus_name,
#include "common/status-fields.def"
};

static void write_field(struct bus_writer *w, const struct field *field, const void *fields)
{
        const void *at = (const char *)fields + field->at;

        switch (field->type) {
        case FIELD_TEXT:
                bus_write_string(w, *(const char *const *)at);
                break;
        case FIELD_U32:
                bus_write_u32(w, *(const uint32_t *)at);
                break;
        case FIELD_U64:
                if (field->bus_type == 'u')
                        bus_write_u32(w, (uint32_t) * (const uint64_t *)at);
                else
                        bus_write_u64(w, *(const uint64_t *)at);
                break;
        case FIELD_REAL:
                bus_write_double(w, *(const double *)at);
                break;
        case FIELD_BOOL:
                bus_write_bool(w, *(const bool *)at);
                break;
        }
}

/* ---- workers ---- */

/* Beside the rows: shares, which need an earlier look, and what counts several things. */
enum worker_extra { W_BUSY_SHARE, W_PLACEMENT_SHARE, W_BLOCKS_DONE, W_DEVICE_SHARE, W_DEVICE_USE, N_WORKER_EXTRAS };

#define PROPERTY(TYPE, field, BUS_TYPE, bus_name, changes) { bus_name, (const char[]){ BUS_TYPE, '\0' }, changes },

static const struct bus_property worker_properties[TDM_ARRAY_SIZE(worker_fields) + N_WORKER_EXTRAS] = {
#define WORKER_FIELD PROPERTY
#include "common/status-fields.def"
        { "BusyShare", "d", false },   { "PlacementShare", "d", false }, { "BlocksDone", "a{st}", false },
        { "DeviceShare", "d", false }, { "DeviceUse", "a{st}", false },
};

static uint64_t blocks_done(struct tdm_dbus *bus, enum tdm_worker_index index)
{
        struct tdm_worker_status s;
        uint64_t n = 0;

        tdm_fleet_worker_status(bus->fleet, index, &s);
        for (int k = 0; k < TDM_N_BLOCK_KINDS; k++)
                n += s.done[k].blocks;
        return n;
}

/* How busy the worker was, as a share of the time since the last look, which is a second ago or more. */
static double busy_share(struct tdm_dbus *bus, enum tdm_worker_index index, uint64_t busy_ns)
{
        __typeof__(bus->workers[0]) *w = &bus->workers[index];
        uint64_t now = tdm_now_ns();

        if (now - w->looked_ns >= TDM_NSEC_PER_SEC) {
                w->busy_share = w->looked_ns && busy_ns >= w->busy_ns ?
                                        TDM_MIN(1.0, (double)(busy_ns - w->busy_ns) / (double)(now - w->looked_ns)) :
                                        0;
                w->looked_ns = now;
                w->busy_ns = busy_ns;
        }
        return w->busy_share;
}

static double placement_share(struct tdm_dbus *bus, enum tdm_worker_index index)
{
        uint64_t all = 0;

        for (int i = 0; i < TDM_N_WORKERS; i++)
                all += blocks_done(bus, (enum tdm_worker_index)i);
        return all ? (double)blocks_done(bus, index) / (double)all : 0;
}

static void write_count(struct bus_writer *w, const char *name, uint64_t n)
{
        bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
        bus_write_string(w, name);
        bus_write_u64(w, n);
        bus_close(w);
}

/* Empty where the device does not count; of the driver's numbers those that it gives. */
static void write_use(struct bus_writer *w, const struct tdm_device_use *use)
{
        const struct {
                const char *name;
                uint32_t value;
        } given[] = { { "power-mw", use->power_mw },
                      { "utilisation-permille", use->utilisation_permille },
                      { "temperature-mc", use->temperature_mc } };

        bus_open(w, DBUS_TYPE_ARRAY, "{st}");
        if (use->blocks + use->submissions + use->host_macs > 0) {
                write_count(w, "device-macs", use->device_macs);
                write_count(w, "host-macs", use->host_macs);
                write_count(w, "blocks", use->blocks);
                write_count(w, "submissions", use->submissions);
                write_count(w, "commands", use->commands);
                write_count(w, "repeats", use->repeats);
                write_count(w, "contexts-renewed", use->contexts);
        }
        if (use->sampled_ns) {
                for (size_t i = 0; i < TDM_ARRAY_SIZE(given); i++)
                        if (given[i].value != TDM_DEVICE_UNKNOWN)
                                write_count(w, given[i].name, given[i].value);
                write_count(w, "contexts", use->n_contexts);
                write_count(w, "context-errors", use->context_errors);
        }
        bus_close(w);
}

static double device_share(const struct tdm_device_use *use)
{
        uint64_t all = use->device_macs + use->host_macs;

        return all ? (double)use->device_macs / (double)all : 0;
}

static void write_worker(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t i)
{
        enum tdm_worker_index index = (enum tdm_worker_index)((const char *const *)object - bus_worker_names);
        const struct tdm_status_source source = bus_status_source(bus);
        struct tdm_worker_shown shown;
        const struct tdm_worker_status *s = &shown.from;

        tdm_status_of_worker(&source, index, &shown);
        if (i < TDM_ARRAY_SIZE(worker_fields)) {
                write_field(w, &worker_fields[i], &shown.fields);
                return;
        }
        switch ((enum worker_extra)(i - TDM_ARRAY_SIZE(worker_fields))) {
        case W_BUSY_SHARE:
                bus_write_double(w, busy_share(bus, index, s->busy_ns));
                break;
        case W_PLACEMENT_SHARE:
                bus_write_double(w, placement_share(bus, index));
                break;
        case W_BLOCKS_DONE:
                bus_open(w, DBUS_TYPE_ARRAY, "{st}");
                for (int k = 0; k < TDM_N_BLOCK_KINDS; k++)
                        write_count(w, tdm_block_kind_name((enum tdm_block_kind)k), s->done[k].blocks);
                bus_close(w);
                break;
        case W_DEVICE_SHARE:
                bus_write_double(w, device_share(&s->use));
                break;
        case W_DEVICE_USE:
                write_use(w, &s->use);
                break;
        case N_WORKER_EXTRAS:
                break;
        }
}

void bus_restart_worker(struct bus_peer *peer, DBusMessage *message, enum tdm_worker_index index)
{
        struct tdm_dbus *bus = peer->bus;
        char text[160];
        int r;

        tdm_status_asked_by(text, sizeof(text), peer->uid);
        r = bus->fleet ? tdm_fleet_restart(bus->fleet, index, text) : -ENOENT;
        if (r == 0) {
                tdm_log_info("worker %s is restarted, %s over the bus", bus_worker_names[index], text);
                bus_reply_ok(bus, message);
                tdm_dbus_on_workers_changed(bus);
                return;
        }
        snprintf(text, sizeof(text), r == -ENOENT ? "worker %s is off" : "cannot restart worker %s",
                 bus_worker_names[index]);
        bus_reply_failed(bus, message, r == -ENOENT ? TDM_E_NO_WORKER : TDM_E_INTERNAL, text);
}

static void restart(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_error err = { 0 };
        int r = bus_read_no_options(args, &err);

        if (r != 0)
                bus_reply_failed(peer->bus, message, r, err.message);
        else
                bus_restart_worker(peer, message,
                                   (enum tdm_worker_index)((const char *const *)object - bus_worker_names));
}

static const struct bus_method worker_methods[] = { { "Restart", "a{sv}", BUS_RESTART_WORKER, restart } };

const struct bus_interface bus_worker_interface = {
        .name = BUS_WORKER,
        .methods = worker_methods,
        .n_methods = TDM_ARRAY_SIZE(worker_methods),
        .properties = worker_properties,
        .n_properties = TDM_ARRAY_SIZE(worker_properties),
        .write = write_worker,
};

/* true: one of them is on its way, and there will be news. */
static bool look_at_workers(struct tdm_dbus *bus)
{
        bool moving = false;

        for (int i = 0; bus->fleet && i < TDM_N_WORKERS; i++) {
                __typeof__(bus->workers[0]) *w = &bus->workers[i];
                struct tdm_worker_status s;
                char path[BUS_MAX_PATH];

                tdm_fleet_worker_status(bus->fleet, (enum tdm_worker_index)i, &s);
                moving = moving || (s.state != TDM_WORKER_READY && s.state != TDM_WORKER_OFF);
                if (w->state == s.state && w->pid == s.pid && w->restarts == s.restarts)
                        continue;
                w->state = s.state;
                w->pid = s.pid;
                w->restarts = s.restarts;
                snprintf(path, sizeof(path), BUS_ROOT "/workers/%s", bus_worker_names[i]);
                bus_properties_changed(bus, path, &bus_worker_interface, (void *)&bus_worker_names[i], NULL);
        }
        return moving;
}

void tdm_dbus_on_workers_changed(struct tdm_dbus *bus)
{
        if (bus)
                bus_tick_soon(bus, tdm_now_ns() + BUS_CHANGED_NS);
}

/* ---- models ---- */

static const struct bus_property model_properties[] = {
#define MODEL_FIELD PROPERTY
#include "common/status-fields.def"
};

static void write_model(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t i)
{
        const struct tdm_status_source source = bus_status_source(bus);
        struct tdm_model_shown shown;

        tdm_status_of_model(&source, object, &shown);
        write_field(w, &model_fields[i], &shown.fields);
}

static void unload(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        const struct tdm_model *model = object;
        struct tdm_error err = { 0 };
        int r = bus_read_no_options(args, &err);

        if (r != 0)
                bus_reply_failed(peer->bus, message, r, err.message);
        else
                bus_unload_model(peer, message, model->name);
}

static const struct bus_method model_methods[] = { { "Unload", "a{sv}", BUS_MANAGE_MODELS, unload } };

const struct bus_interface bus_model_interface = {
        .name = BUS_MODEL,
        .methods = model_methods,
        .n_methods = TDM_ARRAY_SIZE(model_methods),
        .properties = model_properties,
        .n_properties = TDM_ARRAY_SIZE(model_properties),
        .write = write_model,
};

void bus_model_path(const struct tdm_model *model, char path[BUS_MAX_PATH])
{
        snprintf(path, BUS_MAX_PATH, BUS_ROOT "/models/%u", model->id);
}

struct tdm_model *bus_model_find(struct tdm_dbus *bus, const char *path)
{
        char own[BUS_MAX_PATH];
        struct tdm_model *model;

        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node) {
                bus_model_path(model, own);
                if (strcmp(path, own) == 0)
                        return model;
        }
        return NULL;
}

static struct bus_known_model *known_model(struct tdm_dbus *bus, uint32_t id)
{
        for (int i = 0; i < (int)TDM_MAX_MODELS; i++)
                if (bus->known[i].id == id)
                        return &bus->known[i];
        return NULL;
}

void tdm_dbus_on_model_changed(struct tdm_dbus *bus, struct tdm_model *model)
{
        struct bus_known_model *known;
        char path[BUS_MAX_PATH];

        if (!bus)
                return;
        bus_manager_model_changed(bus, model);
        bus_model_path(model, path);
        known = known_model(bus, model->id);
        if (model->state == TDM_MODEL_GONE) {
                if (known)
                        bus_interfaces_removed(bus, path, BUS_MODEL, NULL);
                if (known)
                        *known = (struct bus_known_model){ 0 };
                return;
        }
        if (!known) {
                known = known_model(bus, 0);
                if (!known)
                        return; /* more than are listed */
                *known = (struct bus_known_model){ .id = model->id, .state = model->state, .told_ns = tdm_now_ns() };
                bus_interfaces_added(bus, path, &bus_model_interface, model, NULL);
                return;
        }
        known->changed = true;
        bus_tick_soon(bus, known->told_ns + BUS_CHANGED_NS);
}

/* When there is more to say; 0: all is said. */
static uint64_t tell_of_models(struct tdm_dbus *bus, uint64_t now_ns)
{
        uint64_t next_ns = 0;
        struct tdm_model *model;

        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node) {
                struct bus_known_model *known = known_model(bus, model->id);
                char path[BUS_MAX_PATH];

                if (!known || !known->changed)
                        continue;
                if (now_ns - known->told_ns < BUS_CHANGED_NS) {
                        next_ns = next_ns ? TDM_MIN(next_ns, known->told_ns + BUS_CHANGED_NS) :
                                            known->told_ns + BUS_CHANGED_NS;
                        continue;
                }
                known->changed = false;
                known->told_ns = now_ns;
                bus_model_path(model, path);
                bus_properties_changed(bus, path, &bus_model_interface, model, NULL);
        }
        return next_ns;
}

/* ---- lists and status ---- */

struct scan {
        struct bus_writer *w;
        struct tdm_status_source source;
};

/* model NULL: a file that no model is read of. */
static void write_listed(struct bus_writer *w, const struct tdm_model *model, const struct tdm_model_fields *f)
{
        char path[BUS_MAX_PATH];

        bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
        bus_entry_string(w, "name", f->name);
        bus_entry_string(w, "path", f->path);
        bus_entry_string(w, "state", f->state);
        bus_entry_u64(w, "file-bytes", f->file_bytes);
        bus_entry_u64(w, "modified", f->modified_s);
        bus_entry_bool(w, "default", f->is_default);
        if (model) {
                bus_model_path(model, path);
                bus_entry_path(w, "object", path);
        }
        if (f->architecture[0]) {
                bus_entry_string(w, "architecture", f->architecture);
                bus_entry_string(w, "quantisation", f->quantisation);
        }
        if (model && model->metadata)
                bus_entry_u32(w, "context", f->context);
        if (model && model->state == TDM_MODEL_FAILED)
                bus_entry_string(w, "error", f->error);
        bus_close(w);
}

static void on_scanned(const char *name, const char *path, uint64_t size_bytes,
                       const struct tdm_file_identity *identity, void *userdata)
{
        struct scan *scan = userdata;
        struct tdm_model_shown shown;
        struct tdm_model *model;

        tdm_list_for_each(model, tdm_models_list(scan->source.models), struct tdm_model, node)
                if (model->by_name && strcmp(model->name, name) == 0)
                        return; /* listed already */
        if (tdm_status_of_file(&scan->source, name, path, size_bytes, identity, &shown, &model))
                write_listed(scan->w, model, &shown.fields);
}

void bus_write_models(struct bus_writer *w, struct bus_peer *peer)
{
        struct tdm_dbus *bus = peer->bus;
        struct scan scan = { .w = w, .source = bus_status_source(bus) };
        struct tdm_model *model;

        scan.source.sees_all = !bus->system || bus_peer_is_root(peer);
        scan.source.viewer = peer->account;
        bus_open(w, DBUS_TYPE_ARRAY, "a{sv}");
        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node) {
                struct tdm_model_shown shown;

                tdm_status_of_model(&scan.source, model, &shown);
                write_listed(w, model, &shown.fields);
        }
        (void)tdm_models_scan(bus->models, on_scanned, &scan); /* what cannot be listed is left out */
        bus_close(w);
}

void bus_write_status(struct bus_writer *w, struct bus_peer *peer)
{
        struct tdm_dbus *bus = peer->bus;
        struct tdm_status_source source = bus_status_source(bus);
        struct tdm_daemon_fields fields;

        source.sees_all = !bus->system || bus_peer_is_root(peer);
        source.viewer = peer->account;
        tdm_status_of_daemon(&source, &fields);
        bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
        for (size_t i = 0; i < TDM_ARRAY_SIZE(daemon_fields); i++) {
                bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
                bus_write_string(w, daemon_keys[i]);
                bus_open(w, DBUS_TYPE_VARIANT, (const char[]){ daemon_fields[i].bus_type, '\0' });
                write_field(w, &daemon_fields[i], &fields);
                bus_close(w);
                bus_close(w);
        }
        for (int i = 0; bus->fleet && i < TDM_N_WORKERS; i++) {
                struct tdm_worker_status s;
                char key[32];

                tdm_fleet_worker_status(bus->fleet, (enum tdm_worker_index)i, &s);
                snprintf(key, sizeof(key), "worker-%s", bus_worker_names[i]);
                bus_entry_string(w, key, tdm_worker_state_name(s.state));
        }
        bus_close(w);
}

/* ---- the tick ---- */

static int on_bus_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_dbus *bus = userdata;
        uint64_t jobs_ns, models_ns;

        bus->tick_ns = 0;
        jobs_ns = bus_job_tick(bus, now_ns);
        models_ns = tell_of_models(bus, now_ns);
        if (jobs_ns)
                bus_tick_soon(bus, jobs_ns);
        if (models_ns)
                bus_tick_soon(bus, models_ns);
        if (look_at_workers(bus))
                bus_tick_soon(bus, now_ns + WORKERS_LOOK_NS);
        return 0;
}

int bus_start_tick(struct tdm_dbus *bus)
{
        return tdm_loop_add_timer(bus->loop, on_bus_tick, bus, &bus->tick);
}
