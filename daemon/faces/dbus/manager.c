/* The Manager: what can be asked of the daemon as a whole. */
#include "daemon/faces/dbus/private.h"

#include "common/log.h"
#include "daemon/faces/status.h"

#define INTERFACE_VERSION_NOW 1u
#define MAX_LOADS 16u /* that one caller waits for */

/* ---- models ---- */

void bus_load_free(struct bus_load *load)
{
        tdm_list_remove(&load->node);
        bus_message_done(load->peer->bus, load->peer, load->call);
        tdm_model_unref(load->model);
        free(load);
}

/* Says how it went, and is gone; true when that is known. */
static bool answer_load(struct bus_peer *peer, struct bus_load *load)
{
        const struct tdm_model *model = load->model;
        char path[BUS_MAX_PATH];
        struct bus_writer w;

        if (model->state == TDM_MODEL_READY) {
                bus_model_path(model, path);
                bus_writer_init(&w, bus_reply_new(load->call));
                bus_write_path(&w, path);
                bus_reply_finish(peer->bus, load->call, &w);
        } else if (model->state == TDM_MODEL_FAILED)
                bus_reply_failed(peer->bus, load->call, model->error.code, model->error.message);
        else if (model->state == TDM_MODEL_GONE)
                bus_reply_failed(peer->bus, load->call, TDM_E_NO_MODEL, "the model was unloaded meanwhile");
        else
                return false;
        bus_load_free(load);
        return true;
}

void bus_manager_model_changed(struct tdm_dbus *bus, struct tdm_model *model)
{
        struct bus_load *load;
        struct bus_peer *peer;

        tdm_list_for_each(peer, &bus->peers, struct bus_peer, node)
                tdm_list_for_each(load, &peer->loads, struct bus_load, node)
                        if (load->model == model)
                                answer_load(peer, load);
}

static int wait_for_model(struct bus_peer *peer, DBusMessage *message, struct tdm_model *model, struct tdm_error *err)
{
        struct bus_load *load;
        unsigned n = 0;
        int r;

        tdm_list_for_each(load, &peer->loads, struct bus_load, node)
                n++;
        if (n >= MAX_LOADS)
                return tdm_error_set(err, TDM_E_QUOTA, "%u calls of this caller wait for models already", n);
        load = calloc(1, sizeof(*load));
        if (!load)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        load->peer = peer;
        load->call = dbus_message_ref(message);
        load->model = tdm_model_ref(model);
        tdm_list_append(&peer->loads, &load->node);
        if (answer_load(peer, load))
                return 0;
        r = tdm_model_want(model, peer->account, err); /* may be answered, and gone, where it is 0 */
        if (r != 0)
                bus_load_free(load);
        return r;
}

static void load_model(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_dbus *bus = peer->bus;
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        struct tdm_error err = { 0 };
        char path[BUS_MAX_PATH];
        struct bus_writer w;
        const char *name;
        bool wait = false;
        int r, fd = -1;

        dbus_message_iter_get_basic(args, &name);
        dbus_message_iter_next(args);
        r = bus_read_load(args, &wait, &fd, &err);
        if (r == 0 && bus->draining)
                r = tdm_error_set(&err, TDM_E_DRAINING, "tandemd is shutting down and loads no models; call again");
        if (r == 0)
                r = tdm_models_open(bus->models, peer->account, name, fd, &model, &err);
        tdm_models_close_file(bus->models, peer->account, fd);
        if (r == 0)
                tdm_model_keep(model, peer->account, 0);
        if (r == 0 && wait) {
                r = wait_for_model(peer, message, model, &err);
                if (r == 0)
                        return;
        } else if (r == 0 && model->state != TDM_MODEL_READY)
                r = tdm_model_want(model, peer->account, &err);
        if (r != 0) {
                bus_reply_failed(bus, message, r, err.message);
                return;
        }
        bus_model_path(model, path);
        bus_writer_init(&w, bus_reply_new(message));
        bus_write_path(&w, path);
        bus_reply_finish(bus, message, &w);
}

void bus_unload_model(struct bus_peer *peer, DBusMessage *message, const char *name)
{
        struct tdm_error err = { 0 };
        int r = tdm_models_unload(peer->bus->models, name, &err);

        if (r != 0) {
                bus_reply_failed(peer->bus, message, r, err.message);
                return;
        }
        tdm_log_info("a model is unloaded, asked for by user %u over the bus", (unsigned)peer->uid);
        bus_reply_ok(peer->bus, message);
}

static void unload_model(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_error err = { 0 };
        const char *name;
        int r;

        dbus_message_iter_get_basic(args, &name);
        dbus_message_iter_next(args);
        r = bus_read_no_options(args, &err);
        if (r != 0)
                bus_reply_failed(peer->bus, message, r, err.message);
        else
                bus_unload_model(peer, message, name);
}

static void list_models(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_error err = { 0 };
        struct bus_writer w;
        int r = bus_read_no_options(args, &err);

        if (r != 0) {
                bus_reply_failed(peer->bus, message, r, err.message);
                return;
        }
        bus_writer_init(&w, bus_reply_new(message));
        bus_write_models(&w, peer);
        bus_reply_finish(peer->bus, message, &w);
}

/* ---- the rest ---- */

static void generate(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_job_generate(peer, message, args, false);
}

static void chat(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_job_generate(peer, message, args, true);
}

static void embed(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_embed_call(peer, message, args, TDM_JOB_EMBED);
}

static void rerank(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_embed_call(peer, message, args, TDM_JOB_RERANK);
}

static void classify(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_embed_call(peer, message, args, TDM_JOB_CLASSIFY);
}

static void restart_worker(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_error err = { 0 };
        const char *name;
        int r;

        dbus_message_iter_get_basic(args, &name);
        dbus_message_iter_next(args);
        r = bus_read_no_options(args, &err);
        for (int i = 0; r == 0 && i < TDM_N_WORKERS; i++)
                if (strcmp(name, bus_worker_names[i]) == 0) {
                        bus_restart_worker(peer, message, (enum tdm_worker_index)i);
                        return;
                }
        if (r == 0)
                r = tdm_error_set(&err, TDM_E_BAD_REQUEST, "worker \"%.*s\" is none of npu, gpu",
                                  TDM_UTF8_CUT(name, 40));
        bus_reply_failed(peer->bus, message, r, err.message);
}

static void get_status(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct tdm_error err = { 0 };
        struct bus_writer w;
        int r = bus_read_no_options(args, &err);

        if (r != 0) {
                bus_reply_failed(peer->bus, message, r, err.message);
                return;
        }
        bus_writer_init(&w, bus_reply_new(message));
        bus_write_status(&w, peer);
        bus_reply_finish(peer->bus, message, &w);
}

enum property {
        VERSION,
        INTERFACE_VERSION,
        DEFAULT_MODEL,
        DRAINING,
        JOBS_RUNNING,
        JOBS_QUEUED,
        RECOVERIES,
        N_PROPERTIES
};

static const struct bus_property properties[N_PROPERTIES] = {
        [VERSION] = { "Version", "s", false },           [INTERFACE_VERSION] = { "InterfaceVersion", "u", false },
        [DEFAULT_MODEL] = { "DefaultModel", "s", true }, [DRAINING] = { "Draining", "b", true },
        [JOBS_RUNNING] = { "JobsRunning", "u", false },  [JOBS_QUEUED] = { "JobsQueued", "u", false },
        [RECOVERIES] = { "Recoveries", "t", false },
};

static void write_property(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t i)
{
        /* Properties go to everybody. */
        const struct tdm_status_source source = { .scheduler = bus->scheduler, .sees_all = !bus->system };
        struct tdm_scheduler_stats stats;

        tdm_status_stats(&source, &stats);
        switch ((enum property)i) {
        case VERSION:
                bus_write_string(w, TANDEM_VERSION);
                break;
        case INTERFACE_VERSION:
                bus_write_u32(w, INTERFACE_VERSION_NOW);
                break;
        case DEFAULT_MODEL:
                bus_write_string(w, tdm_models_default_name(bus->models));
                break;
        case DRAINING:
                bus_write_bool(w, bus->draining);
                break;
        case JOBS_RUNNING:
                bus_write_u32(w, stats.n_running);
                break;
        case JOBS_QUEUED:
                bus_write_u32(w, stats.n_queued);
                break;
        case RECOVERIES:
                bus_write_u64(w, bus->fleet ? tdm_fleet_recoveries(bus->fleet) : 0);
                break;
        case N_PROPERTIES:
                break;
        }
}

static const struct bus_method methods[] = {
        { "Generate", "sa{sv}", BUS_GENERATE, generate },
        { "Chat", "a(ss)a{sv}", BUS_GENERATE, chat },
        { "Embed", "asa{sv}", BUS_GENERATE, embed },
        { "Rerank", "sasa{sv}", BUS_GENERATE, rerank },
        { "Classify", "asa{sv}", BUS_GENERATE, classify },
        { "ListModels", "a{sv}", BUS_ANYBODY, list_models },
        { "LoadModel", "sa{sv}", BUS_MANAGE_MODELS, load_model },
        { "UnloadModel", "sa{sv}", BUS_MANAGE_MODELS, unload_model },
        { "RestartWorker", "sa{sv}", BUS_RESTART_WORKER, restart_worker },
        { "GetStatus", "a{sv}", BUS_ANYBODY, get_status },
};

const struct bus_interface bus_manager_interface = {
        .name = BUS_MANAGER,
        .methods = methods,
        .n_methods = TDM_ARRAY_SIZE(methods),
        .properties = properties,
        .n_properties = N_PROPERTIES,
        .write = write_property,
};

void tdm_dbus_on_default_changed(struct tdm_dbus *bus)
{
        if (bus)
                bus_properties_changed(bus, BUS_ROOT, &bus_manager_interface, bus, NULL);
}

void tdm_dbus_set_draining(struct tdm_dbus *bus)
{
        if (!bus || bus->draining)
                return;
        bus->draining = true;
        bus_properties_changed(bus, BUS_ROOT, &bus_manager_interface, bus, NULL);
        bus_name_may_go(bus);
}

void tdm_dbus_finish(struct tdm_dbus *bus)
{
        if (bus)
                bus_name_give_up(bus);
}

bool tdm_dbus_is_drained(const struct tdm_dbus *bus)
{
        struct bus_job *job;

        if (!bus)
                return true;
        if (bus->connection && dbus_connection_has_messages_to_send(bus->connection))
                return false;
        tdm_list_for_each(job, &bus->jobs, struct bus_job, node)
                if (bus_stream_is_open(&job->stream) && bus_stream_waiting(&job->stream) > 0)
                        return false;
        return true;
}
