/* Workers and models as objects, the lists and the status, and the tick that tells of changes.
 *
 * Everything is gathered from its owner when it is asked for. Changes of workers and models concern nobody's privacy
 * and go to all who listen; a loading model says how far it is at most ten times a second. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"

#define WORKERS_LOOK_NS (500 * TDM_NSEC_PER_MSEC) /* while one of them is on its way up */

const char *const bus_worker_names[TDM_N_WORKERS] = { [TDM_WORKER_NPU] = "npu", [TDM_WORKER_GPU] = "gpu" };

/* ---- workers ---- */

enum worker_property {
        W_NAME,
        W_REQUESTED,
        W_DEVICE,
        W_DETAIL,
        W_STATE,
        W_PID,
        W_RESTARTS,
        W_LAST_EXIT,
        W_SANDBOX,
        W_NUMERICS_ID,
        W_BUSY_SHARE,
        W_PLACEMENT_SHARE,
        W_BLOCKS_DONE,
        W_REASON,
        W_PLAN,
        W_DEVICE_SHARE,
        W_DEVICE_USE,
        N_WORKER_PROPERTIES
};

static const struct bus_property worker_properties[N_WORKER_PROPERTIES] = {
        [W_NAME] = { "Name", "s", false },
        [W_REQUESTED] = { "Requested", "s", false },
        [W_DEVICE] = { "Device", "s", true },
        [W_DETAIL] = { "Detail", "s", true },
        [W_STATE] = { "State", "s", true },
        [W_PID] = { "ProcessId", "u", true },
        [W_RESTARTS] = { "Restarts", "u", true },
        [W_LAST_EXIT] = { "LastExit", "s", true },
        [W_SANDBOX] = { "Sandbox", "s", true },
        [W_NUMERICS_ID] = { "NumericsId", "s", true },
        [W_BUSY_SHARE] = { "BusyShare", "d", false },
        [W_PLACEMENT_SHARE] = { "PlacementShare", "d", false },
        [W_BLOCKS_DONE] = { "BlocksDone", "a{st}", false },
        [W_REASON] = { "Reason", "s", true },
        [W_PLAN] = { "Plan", "s", false },
        [W_DEVICE_SHARE] = { "DeviceShare", "d", false },
        [W_DEVICE_USE] = { "DeviceUse", "a{st}", false },
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

/* Of the time since it was last looked at, which is a second ago or more. */
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
        struct tdm_worker_status s;

        tdm_fleet_worker_status(bus->fleet, index, &s);
        switch ((enum worker_property)i) {
        case W_NAME:
                bus_write_string(w, bus_worker_names[index]);
                break;
        case W_REQUESTED:
                bus_write_string(w, s.requested);
                break;
        case W_DEVICE:
                bus_write_string(w, s.device);
                break;
        case W_DETAIL:
                bus_write_string(w, s.detail);
                break;
        case W_STATE:
                bus_write_string(w, tdm_worker_state_name(s.state));
                break;
        case W_PID:
                bus_write_u32(w, s.pid > 0 ? (uint32_t)s.pid : 0);
                break;
        case W_RESTARTS:
                bus_write_u32(w, s.restarts);
                break;
        case W_LAST_EXIT:
                bus_write_string(w, s.last_exit);
                break;
        case W_SANDBOX:
                bus_write_string(w, s.sandbox);
                break;
        case W_NUMERICS_ID:
                bus_write_string(w, s.numerics_id);
                break;
        case W_BUSY_SHARE:
                bus_write_double(w, busy_share(bus, index, s.busy_ns));
                break;
        case W_PLACEMENT_SHARE:
                bus_write_double(w, placement_share(bus, index));
                break;
        case W_BLOCKS_DONE:
                bus_open(w, DBUS_TYPE_ARRAY, "{st}");
                for (int k = 0; k < TDM_N_BLOCK_KINDS; k++) {
                        bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
                        bus_write_string(w, tdm_block_kind_name((enum tdm_block_kind)k));
                        bus_write_u64(w, s.done[k].blocks);
                        bus_close(w);
                }
                bus_close(w);
                break;
        case W_REASON:
                bus_write_string(w, s.reason);
                break;
        case W_PLAN:
                bus_write_string(w, s.plan);
                break;
        case W_DEVICE_SHARE:
                bus_write_double(w, device_share(&s.use));
                break;
        case W_DEVICE_USE:
                write_use(w, &s.use);
                break;
        case N_WORKER_PROPERTIES:
                break;
        }
}

void bus_restart_worker(struct bus_peer *peer, DBusMessage *message, enum tdm_worker_index index)
{
        struct tdm_dbus *bus = peer->bus;
        char text[160];
        int r;

        snprintf(text, sizeof(text), "asked for by user %u", (unsigned)peer->uid);
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
        .n_properties = N_WORKER_PROPERTIES,
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

enum model_property {
        M_NAME,
        M_PATH,
        M_DEFAULT,
        M_STATE,
        M_ERROR,
        M_PROGRESS,
        M_ARCHITECTURE,
        M_QUANTISATION,
        M_CHAT,
        M_PRECISION,
        M_CONTEXT,
        M_FILE_BYTES,
        M_WEIGHTS_BYTES,
        M_CACHE_BYTES,
        M_RESIDENT_BYTES,
        N_MODEL_PROPERTIES
};

static const struct bus_property model_properties[N_MODEL_PROPERTIES] = {
        [M_NAME] = { "Name", "s", false },
        [M_PATH] = { "Path", "s", false },
        [M_DEFAULT] = { "Default", "b", false },
        [M_STATE] = { "State", "s", true },
        [M_ERROR] = { "Error", "s", true },
        [M_PROGRESS] = { "Progress", "d", true },
        [M_ARCHITECTURE] = { "Architecture", "s", true },
        [M_QUANTISATION] = { "Quantisation", "s", true },
        [M_CHAT] = { "Chat", "s", true },
        [M_PRECISION] = { "Precision", "s", true },
        [M_CONTEXT] = { "Context", "u", true },
        [M_FILE_BYTES] = { "FileBytes", "t", true },
        [M_WEIGHTS_BYTES] = { "WeightsBytes", "t", true },
        [M_CACHE_BYTES] = { "CacheBytes", "t", true },
        [M_RESIDENT_BYTES] = { "ResidentBytes", "t", false },
};

static double model_progress(const struct tdm_model *model)
{
        uint64_t done, total;

        if (model->state == TDM_MODEL_READY)
                return 1;
        tdm_model_progress(model, &done, &total);
        return total ? (double)TDM_MIN(done, total) / (double)total : 0;
}

static bool is_default(struct tdm_dbus *bus, const char *name)
{
        return strcmp(name, tdm_models_default_name(bus->models)) == 0;
}

static void write_model(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t i)
{
        const struct tdm_model *model = object;
        const struct tdm_model_metadata *metadata = model->metadata;

        switch ((enum model_property)i) {
        case M_NAME:
                bus_write_string(w, model->name);
                break;
        case M_PATH:
                bus_write_string(w, model->path);
                break;
        case M_DEFAULT:
                bus_write_bool(w, is_default(bus, model->name));
                break;
        case M_STATE:
                bus_write_string(w, tdm_model_state_name(model->state));
                break;
        case M_ERROR:
                bus_write_string(w, model->state == TDM_MODEL_FAILED ? model->error.message : "");
                break;
        case M_PROGRESS:
                bus_write_double(w, model_progress(model));
                break;
        case M_ARCHITECTURE:
                bus_write_string(w, metadata ? metadata->architecture : "");
                break;
        case M_QUANTISATION:
                bus_write_string(w, metadata ? metadata->quantisation : "");
                break;
        case M_CHAT:
                bus_write_string(w, metadata ? tdm_chat_family_name(metadata->chat) : "");
                break;
        case M_PRECISION:
                bus_write_string(w, tdm_precision_name(model->precision));
                break;
        case M_CONTEXT:
                bus_write_u32(w, metadata ? tdm_model_hparams(model)->n_ctx : 0);
                break;
        case M_FILE_BYTES:
                bus_write_u64(w, model->identity.size_bytes);
                break;
        case M_WEIGHTS_BYTES:
                bus_write_u64(w, model->weights ? model->weights->size_bytes : 0);
                break;
        case M_CACHE_BYTES:
                bus_write_u64(w, model->pages ? model->geometry.size_bytes : 0);
                break;
        case M_RESIDENT_BYTES:
                bus_write_u64(w, tdm_model_resident_bytes(model));
                break;
        case N_MODEL_PROPERTIES:
                break;
        }
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
        .n_properties = N_MODEL_PROPERTIES,
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

        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node)
        {
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

        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node)
        {
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
        struct tdm_dbus *bus;
};

static void on_scanned(const char *name, const char *path, uint64_t size_bytes, void *userdata)
{
        struct scan *scan = userdata;
        struct tdm_model *model;

        tdm_list_for_each(model, tdm_models_list(scan->bus->models), struct tdm_model,
                          node) if (strcmp(model->name, name) == 0) return; /* listed already */
        bus_open(scan->w, DBUS_TYPE_ARRAY, "{sv}");
        bus_entry_string(scan->w, "name", name);
        bus_entry_string(scan->w, "path", path);
        bus_entry_string(scan->w, "state", "available");
        bus_entry_u64(scan->w, "file-bytes", size_bytes);
        bus_entry_bool(scan->w, "default", is_default(scan->bus, name));
        bus_close(scan->w);
}

void bus_write_models(struct bus_writer *w, struct tdm_dbus *bus)
{
        struct scan scan = { .w = w, .bus = bus };
        char path[BUS_MAX_PATH];
        struct tdm_model *model;

        bus_open(w, DBUS_TYPE_ARRAY, "a{sv}");
        tdm_list_for_each(model, tdm_models_list(bus->models), struct tdm_model, node)
        {
                bus_model_path(model, path);
                bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
                bus_entry_string(w, "name", model->name);
                bus_entry_string(w, "path", model->path);
                bus_entry_string(w, "state", tdm_model_state_name(model->state));
                bus_entry_u64(w, "file-bytes", model->identity.size_bytes);
                bus_entry_bool(w, "default", is_default(bus, model->name));
                bus_entry_path(w, "object", path);
                if (model->metadata) {
                        bus_entry_string(w, "architecture", model->metadata->architecture);
                        bus_entry_string(w, "quantisation", model->metadata->quantisation);
                        bus_entry_u32(w, "context", tdm_model_hparams(model)->n_ctx);
                }
                if (model->state == TDM_MODEL_FAILED)
                        bus_entry_string(w, "error", model->error.message);
                bus_close(w);
        }
        (void)tdm_models_scan(bus->models, on_scanned, &scan); /* what cannot be listed is left out */
        bus_close(w);
}

void bus_write_status(struct bus_writer *w, struct tdm_dbus *bus)
{
        struct tdm_scheduler_stats stats;

        tdm_scheduler_stats(bus->scheduler, &stats);
        bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
        bus_entry_string(w, "version", TANDEM_VERSION);
        bus_entry_u32(w, "pid", (uint32_t)getpid());
        bus_entry_double(w, "uptime", (double)(tdm_now_ns() - bus->started_ns) / 1e9);
        bus_entry_bool(w, "draining", bus->draining);
        bus_entry_u32(w, "jobs-running", stats.n_running);
        bus_entry_u32(w, "jobs-queued", stats.n_queued);
        bus_entry_u64(w, "jobs-done", stats.n_done);
        bus_entry_u64(w, "jobs-failed", stats.n_failed);
        bus_entry_u64(w, "jobs-cancelled", stats.n_cancelled);
        bus_entry_u64(w, "tokens-generated", stats.tokens_generated);
        bus_entry_u64(w, "prompt-tokens", stats.prompt_tokens);
        bus_entry_u64(w, "cached-tokens", stats.cached_tokens);
        bus_entry_u64(w, "evictions", stats.evictions);
        bus_entry_u64(w, "steps-done", stats.steps_done);
        bus_entry_u64(w, "arena-bytes", tdm_models_resident_bytes(bus->models));
        bus_entry_u32(w, "epoch", bus->fleet ? tdm_fleet_epoch(bus->fleet) : 0);
        bus_entry_u64(w, "recoveries", bus->fleet ? tdm_fleet_recoveries(bus->fleet) : 0);
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

void bus_tick_soon(struct tdm_dbus *bus, uint64_t deadline_ns)
{
        deadline_ns = TDM_MAX(deadline_ns, UINT64_C(1));
        if (bus->tick_ns && bus->tick_ns <= deadline_ns)
                return;
        bus->tick_ns = deadline_ns;
        tdm_source_arm(bus->tick, deadline_ns);
}

static int on_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
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
        return tdm_loop_add_timer(bus->loop, on_tick, bus, &bus->tick);
}
