/* The fleet's public functions, and the pump: on_pump() looks at the whole state and does what is due.
 *
 * Ready means that every usable worker is up, has every model, and has acknowledged the current epoch. Of two workers
 * that give the same bits one is enough; the other one joins when it is up. Readiness begins with on_ready and ends
 * with a reset. Between the two the owner may submit steps. The fleet never repeats a step by itself: steps in flight
 * are void after a loss, and the owner issues them again. */
#include "daemon/fleet/private.h"

#include <sys/resource.h>

#define HANG_MIN_MS 500u
#ifdef TANDEM_SANITIZED
#define HANG_MIN_DEFAULT_MS (10u * HANG_MIN_MS)
#else
#define HANG_MIN_DEFAULT_MS HANG_MIN_MS
#endif
#define HANG_MS_MAX 600000u
#define QUARANTINE_NS (5 * TDM_NSEC_PER_SEC)
#define RETRY_NS TDM_NSEC_PER_SEC
/* After a sleep the firmware of a device may be loaded anew, and its node appears when that is done. */
#define DEVICE_LATE_NS (10 * TDM_NSEC_PER_SEC)
/* Chunks of weights in one message, and the most chunks that a worker has been sent and has not yet answered for. These
 * are some milliseconds of work, so that the next message is there before the worker is done. */
#define WEIGHTS_AT_ONCE 4u

static const char *const worker_names[TDM_N_WORKERS] = { [TDM_WORKER_NPU] = "npu", [TDM_WORKER_GPU] = "gpu" };
static const char *const worker_env[TDM_N_WORKERS] = {
        [TDM_WORKER_NPU] = "TANDEM_NPU", [TDM_WORKER_GPU] = "TANDEM_GPU"
};

static bool loaded_everywhere(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (tdm_fleet_usable(&f->workers[i]) && entry->on[i].load != TDM_FLEET_LOADED)
                        return false;
        return true;
}

/* Every worker that could get a step has the model. */
static bool may_be_announced(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry)
{
        unsigned n_loaded = 0;

        if (loaded_everywhere(f, entry))
                return true;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                const struct tdm_fleet_worker *w = &f->workers[i];

                if (w->process.phase != TDM_FLEET_PROCESS_UP || !tdm_fleet_usable(w))
                        continue;
                if (entry->on[i].load != TDM_FLEET_LOADED)
                        return false;
                n_loaded++;
        }
        return n_loaded > 0 && tdm_fleet_equal_bits(f, NULL);
}

static bool loaded_nowhere(const struct tdm_fleet_entry *entry)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (entry->on[i].load != TDM_FLEET_ABSENT)
                        return false;
        return true;
}

/* ---- the pump ---- */

static void pump_requests(struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct tdm_fleet_worker *w = &f->workers[i];

                if (w->link.ring_fault) {
                        w->link.ring_fault = false;
                        tdm_fleet_ring_fault(w, "its consumer index is impossible");
                }
                if (w->link.bad_results) {
                        w->link.bad_results = false;
                        tdm_fleet_worker_breach(w, "its results make no sense");
                }
                if (w->link.send_error != 0) {
                        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "cannot send it a message: %s",
                                              strerror(-w->link.send_error));
                        w->link.send_error = 0;
                }
                if (w->reopen_wanted && !w->restart_wanted && w->state != TDM_WORKER_QUARANTINED &&
                    (w->process.phase == TDM_FLEET_PROCESS_STARTING || w->process.phase == TDM_FLEET_PROCESS_UP))
                        tdm_fleet_worker_leave(w, w->restart_reason);
                w->reopen_wanted = false;
                if (!w->restart_wanted)
                        continue;
                w->restart_wanted = false;
                w->record.deaths = 0;
                w->record.idle_deaths = 0;
                w->record.ring_faults = 0;
                tdm_fleet_forgive(w);
                w->record.quarantines = 0;
                w->pinned = false;
                w->no_device = false;
                w->process.start_at_ns = 0;
                if (w->state == TDM_WORKER_QUARANTINED &&
                    (w->process.phase == TDM_FLEET_NO_PROCESS || w->record.retrying)) {
                        /* The other worker has run alone. A new epoch gives it rings to this one. */
                        w->state = w->process.phase == TDM_FLEET_NO_PROCESS ||
                                                   w->process.phase == TDM_FLEET_PROCESS_DYING ?
                                           TDM_WORKER_RESTARTING :
                                           TDM_WORKER_STARTING;
                        w->record.retrying = false;
                        tdm_fleet_end_epoch(f, w->index, w->restart_reason, 0);
                } else if (w->process.phase == TDM_FLEET_PROCESS_STARTING || w->process.phase == TDM_FLEET_PROCESS_UP) {
                        tdm_fleet_worker_leave(w, w->restart_reason);
                }
        }
}

static void pump_processes(struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct tdm_fleet_worker *w = &f->workers[i];

                uint64_t at_ns = w->state == TDM_WORKER_QUARANTINED ? w->record.try_at_ns : w->process.start_at_ns;

                if (w->state == TDM_WORKER_OFF || w->process.phase != TDM_FLEET_NO_PROCESS ||
                    (w->state == TDM_WORKER_QUARANTINED && at_ns == 0))
                        continue;
                if (tdm_now_ns() < at_ns) {
                        tdm_source_arm(w->process.start_timer, at_ns);
                        continue;
                }
                w->record.retrying = w->state == TDM_WORKER_QUARANTINED;
                tdm_fleet_worker_start(w);
        }
}

/* When a worker that is retried is up and has every model again, its quarantine ends with a new epoch. Before that
 * neither the other worker nor the owner of the fleet is told of it. */
static void pump_retry(struct tdm_fleet_worker *w)
{
        struct tdm_fleet *f = w->fleet;

        if (!w->record.retrying || w->process.phase != TDM_FLEET_PROCESS_UP)
                return;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && tdm_fleet_is_whole(f->models[i]) &&
                    f->models[i]->on[w->index].load != TDM_FLEET_LOADED)
                        return;
        tdm_log_info("%s worker is back from quarantine", w->name);
        w->record.retrying = false;
        w->state = TDM_WORKER_STARTING;
        w->record.deaths =
                TDM_FLEET_MAX_DEATHS - 1; /* one more before it finishes a step, and it is quarantined again */
        if (w->record.spent)
                tdm_fleet_on_probation(w);
        tdm_fleet_end_epoch(f, w->index, "a worker is back from quarantine", 0);
}

/* How many chunks of the weights the worker may have by now. A few at a time, so that it reads other messages between
 * them. */
static unsigned n_to_send(const struct tdm_fleet_entry *entry, unsigned worker)
{
        unsigned most = TDM_MIN(entry->on[worker].n_sent + WEIGHTS_AT_ONCE,
                                entry->on[worker].n_taken + TDM_FLEET_CHUNKS_ON_THE_WAY);

        return TDM_MIN(entry->model.n_sealed, most);
}

static void note_sent(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry, unsigned first)
{
        w->link.n_sent++;
        for (unsigned i = first; i < entry->on[w->index].n_sent; i++)
                entry->on[w->index].sent_in[i % TDM_FLEET_CHUNKS_ON_THE_WAY] = w->link.n_sent;
}

/* Sends the worker what it lacks of the model, or tells it to unload. A worker that waits for weights which will never
 * come does not answer by itself, so it is told to unload too. */
static int pump_model(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry)
{
        enum tdm_fleet_load *load = &entry->on[w->index].load;
        unsigned *n_sent = &entry->on[w->index].n_sent, first = *n_sent;
        bool waits = *load == TDM_FLEET_LOADING && *n_sent < entry->n_chunks;
        int r;

        if (entry->leaving) {
                if (*load != TDM_FLEET_LOADED && !waits)
                        return 0;
                *load = TDM_FLEET_UNLOADING;
                return tdm_fleet_wire_unload(w, entry->model.model_id);
        }
        if (*load == TDM_FLEET_ABSENT) {
                *load = TDM_FLEET_LOADING;
                *n_sent = entry->on[w->index].n_taken = 0;
                *n_sent = n_to_send(entry, w->index);
                note_sent(w, entry, 0);
                r = tdm_fleet_wire_load(w, entry, *n_sent);
                if (r < 0 || !entry->on[w->index].wants_kv)
                        return r;
                entry->on[w->index].kv = TDM_FLEET_KV_ASKED;
                return tdm_fleet_wire_kv(w, entry);
        }
        if (waits && n_to_send(entry, w->index) > first) {
                *n_sent = n_to_send(entry, w->index);
                note_sent(w, entry, first);
                tdm_fleet_pump_soon(w->fleet); /* perhaps for one more */
                return tdm_fleet_wire_weights(w, entry, first, *n_sent);
        }
        return 0;
}

/* Sends the worker the models and the rings that it lacks. */
static void pump_messages(struct tdm_fleet *f, struct tdm_fleet_worker *w)
{
        int r = 0;

        for (unsigned i = 0; i < TDM_FLEET_MODELS && r == 0; i++)
                if (f->models[i])
                        r = pump_model(w, f->models[i]);
        if (r == 0 && f->rings.made && !w->record.retrying && w->link.epoch_sent != f->epoch) {
                w->link.epoch_sent = f->epoch;
                r = tdm_fleet_wire_epoch(w);
        }
        if (r < 0)
                tdm_fleet_cannot_send(w, r);
        else if (tdm_fleet_owes_control(w))
                tdm_fleet_watch_soon(f);
}

/* For the user whose job is refused. */
static void explain_missed(const struct tdm_fleet_worker *w, struct tdm_error *err)
{
        const char *device = w->index == TDM_WORKER_NPU ? "NPU" : "GPU";

        tdm_error_set(err, TDM_E_NO_WORKER,
                      "%s = required is set and the %s cannot be used (%s), so no model runs; `tandem doctor` says how "
                      "to mend it, and %s = auto in tandem.conf lets the CPU compute",
                      w->name, device, w->record.last_exit, w->name);
}

/* No worker is left to run a model, or none that may. Its owner would wait for on_ready for ever, so the models
 * fail. */
static void pump_nobody_left(struct tdm_fleet *f)
{
        const struct tdm_fleet_worker *npu = &f->workers[TDM_WORKER_NPU], *gpu = &f->workers[TDM_WORKER_GPU];
        const struct tdm_fleet_worker *missed = tdm_fleet_missed(f);

        if (!(missed && tdm_fleet_given_up(missed)) && !(tdm_fleet_given_up(npu) && tdm_fleet_given_up(gpu)))
                return;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                struct tdm_fleet_entry *entry = f->models[i];

                if (!entry || entry->leaving)
                        continue;
                entry->leaving = true;
                entry->failed = true;
                if (missed) {
                        explain_missed(missed, &entry->error);
                        continue;
                }
                tdm_error_set(&entry->error, TDM_E_NO_WORKER,
                              "no worker is left to run %s (npu %s: %s; gpu %s: %s); see the log, then `tandem restart "
                              "npu` or "
                              "`tandem restart gpu`",
                              entry->name, tdm_worker_state_name(npu->state), npu->record.last_exit,
                              tdm_worker_state_name(gpu->state), gpu->record.last_exit);
        }
}

static void pump_models(struct tdm_fleet *f)
{
        pump_nobody_left(f);
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                struct tdm_fleet_entry *entry = f->models[i];

                if (!entry)
                        continue;
                if (entry->failed) {
                        entry->failed = false;
                        if (f->callbacks.on_model_failed)
                                f->callbacks.on_model_failed(entry->model.model_id, &entry->error, f->userdata);
                }
                if (entry->leaving && loaded_nowhere(entry)) {
                        f->models[i] = NULL;
                        free(entry);
                        f->ready_note = true;
                        continue;
                }
                if (!entry->leaving && !entry->announced && may_be_announced(f, entry) &&
                    tdm_fleet_try_placements(f, entry)) {
                        entry->announced = true;
                        if (f->callbacks.on_model_ready)
                                f->callbacks.on_model_ready(entry->model.model_id, f->userdata);
                }
        }
}

/* The worker has everything that a step can need. */
static bool is_equipped(const struct tdm_fleet *f, const struct tdm_fleet_worker *w)
{
        if (!tdm_fleet_usable(w) || w->process.phase != TDM_FLEET_PROCESS_UP || w->link.epoch_acked != f->epoch)
                return false;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && (f->models[i]->leaving || (tdm_fleet_is_whole(f->models[i]) &&
                                                               f->models[i]->on[w->index].load != TDM_FLEET_LOADED)))
                        return false;
        return true;
}

static bool may_be_ready(const struct tdm_fleet *f)
{
        unsigned n_usable = 0, n_equipped = 0;
        bool awaited = false; /* a required accelerator, which begins again */

        if (!f->rings.made || tdm_fleet_missed(f))
                return false;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                const struct tdm_fleet_worker *w = &f->workers[i];

                /* A dying worker may still write into the segments. */
                if (w->process.phase == TDM_FLEET_PROCESS_DYING && !w->process.abandoned)
                        return false;
                /* This worker may still be in a block of an earlier epoch. It would write where the repeated step
                 * writes. */
                if (w->process.phase == TDM_FLEET_PROCESS_UP && w->link.epoch_acked != 0 &&
                    w->link.epoch_acked != f->epoch)
                        return false;
                n_usable += tdm_fleet_usable(w);
                n_equipped += is_equipped(f, w);
                awaited = awaited || (w->is_required && !is_equipped(f, w));
        }
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && f->models[i]->leaving)
                        return false;
        /* Where both workers give the same bits, the survivor goes on alone, and the other one joins later. */
        return n_equipped > 0 && (n_equipped == n_usable || (!awaited && tdm_fleet_equal_bits(f, NULL)));
}

static void pump_ready(struct tdm_fleet *f)
{
        bool note = f->ready_note;

        if (!f->ready && may_be_ready(f)) {
                tdm_fleet_trace(f, TDM_TRACE_READY, 0, 0, f->epoch);
                f->ready = true;
                note = true;
        }
        for (unsigned i = 0; f->ready && i < TDM_N_WORKERS; i++) {
                struct tdm_fleet_worker *w = &f->workers[i];

                if (w->link.ready_epoch == f->epoch || !is_equipped(f, w))
                        continue;
                w->link.ready_epoch = f->epoch;
                w->state = TDM_WORKER_READY;
                note = true;
                tdm_fleet_pump_soon(f); /* a trial of placements may wait for this worker */
        }
        if (!f->ready || !note)
                return;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && f->models[i]->leaving)
                        return; /* on_ready promises that no worker reads a removed model any more */
        f->ready_note = false;
        if (f->callbacks.on_ready)
                f->callbacks.on_ready(f->epoch, f->userdata);
}

static int on_pump(struct tdm_source *source, void *userdata)
{
        struct tdm_fleet *f = userdata;
        bool up = false;

        pump_requests(f);
        pump_processes(f);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                pump_retry(&f->workers[i]);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                up |= f->workers[i].process.phase == TDM_FLEET_PROCESS_UP && tdm_fleet_usable(&f->workers[i]);
        if (up && !f->rings.made) {
                int r = tdm_fleet_make_rings(f);

                if (r < 0) { /* out of fds or memory, which may pass */
                        tdm_log_error("cannot make rings for the workers: %s; trying again", strerror(-r));
                        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                                if (f->workers[i].process.start_timer)
                                        tdm_source_arm(f->workers[i].process.start_timer, tdm_now_ns() + RETRY_NS);
                }
        }
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (f->workers[i].process.phase == TDM_FLEET_PROCESS_UP &&
                    (tdm_fleet_usable(&f->workers[i]) || f->workers[i].record.retrying))
                        pump_messages(f, &f->workers[i]);
        pump_models(f);
        pump_ready(f);
        return 0;
}

/* ---- public functions ---- */

static uint64_t hang_min_ns(const struct tdm_fleet_config *config)
{
        const char *e = getenv("TANDEM_HANG_MS");
        char *end;
        unsigned long ms;

        if (config->hang_min_ns > 0)
                return config->hang_min_ns;
        if (!e || !*e)
                return HANG_MIN_DEFAULT_MS * TDM_NSEC_PER_MSEC;
        errno = 0;
        ms = strtoul(e, &end, 10);
        if (errno != 0 || *end || ms == 0 || ms > HANG_MS_MAX) {
                tdm_log_warning("TANDEM_HANG_MS=%s is not a number from 1 to %u; using %u", e, HANG_MS_MAX,
                                HANG_MIN_DEFAULT_MS);
                return HANG_MIN_DEFAULT_MS * TDM_NSEC_PER_MSEC;
        }
        return ms * TDM_NSEC_PER_MSEC;
}

/* Sending a segment of a big model opens hundreds of fds for a moment, one for each chunk. */
static void raise_fd_limit(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max)
                return;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
                tdm_log_debug("cannot raise the limit of open files: %m");
}

static int find_worker_dir(const struct tdm_fleet_config *config, char **ret, struct tdm_error *err)
{
        char path[4096], *slash;
        ssize_t n;

        if (config->worker_dir) {
                *ret = strdup(config->worker_dir);
                return *ret ? 0 : tdm_error_set(err, -ENOMEM, "out of memory");
        }
        n = readlink("/proc/self/exe", path, sizeof(path) - 1);
        if (n < 0)
                return tdm_error_set(err, -errno, "cannot tell where the worker programs are: /proc/self/exe: %m");
        path[n] = 0;
        slash = strrchr(path, '/');
        if (slash)
                *slash = 0;
        *ret = strdup(path);
        return *ret ? 0 : tdm_error_set(err, -ENOMEM, "out of memory");
}

static int on_start_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;

        tdm_fleet_pump_soon(w->fleet);
        return 0;
}

/* The CPUs of the worker. All of those in the list must be available, or the worker would be slow for no visible
 * reason. */
static int init_cpus(struct tdm_fleet_worker *w, const char *list, struct tdm_error *err)
{
        char why[160], have[64];
        cpu_set_t ours, both;

        if (sched_getaffinity(0, sizeof(ours), &ours) < 0)
                return tdm_error_set(err, -errno, "cannot tell which CPUs there are: %m");
        w->cpus = ours;
        if (!list || !*list)
                return 0;
        if (tdm_cpus_parse(list, &w->cpus, why, sizeof(why)) < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s-cpus: %s", w->name, why);
        CPU_AND(&both, &w->cpus, &ours);
        if (!CPU_EQUAL(&both, &w->cpus)) {
                tdm_cpus_format(&ours, have, sizeof(have));
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s-cpus = %.60s: tandemd may only use the CPUs %s",
                                     w->name, list, have);
        }
        w->is_bound = true;
        return 0;
}

static int worker_init(struct tdm_fleet *f, enum tdm_worker_index index, const struct tdm_fleet_config *config,
                       struct tdm_error *err)
{
        struct tdm_fleet_worker *w = &f->workers[index];
        const char *requested = config->requested[index];
        const char *sockets = config->worker_sockets ? config->worker_sockets : getenv("TANDEM_WORKER_SOCKETS");
        char path[4096];
        int r = init_cpus(w, config->cpus[index], err);

        if (r != 0)
                return r;
        if (!requested)
                requested = getenv(worker_env[index]);
        if (!requested || !*requested)
                requested = "auto";
        if (strlen(requested) >= sizeof(w->requested))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s=%s: there is no device of that name",
                                     worker_env[index], requested);
        snprintf(w->requested, sizeof(w->requested), "%s", requested);
        w->is_required = strcmp(requested, "required") == 0;
        w->state = strcmp(requested, "off") == 0 ? TDM_WORKER_OFF : TDM_WORKER_STARTING;
        if (w->state == TDM_WORKER_OFF)
                return 0;
        if (sockets && *sockets) {
                r = tdm_fleet_unit_init(w, sockets, err);
                return r != 0 ? r : tdm_loop_add_timer(f->loop, on_start_timer, w, &w->process.start_timer);
        }
        snprintf(path, sizeof(path), "%s/tandem-%s-worker", f->worker_dir, w->name);
        if (access(path, X_OK) < 0)
                return tdm_error_set(err, TDM_E_NO_WORKER,
                                     "cannot run the worker %s: %m (is it installed beside tandemd?)", path);
        return tdm_loop_add_timer(f->loop, on_start_timer, w, &w->process.start_timer);
}

int tdm_fleet_new(struct tdm_fleet **ret, struct tdm_loop *loop, const struct tdm_fleet_config *config,
                  const struct tdm_fleet_callbacks *callbacks, void *userdata, struct tdm_error *err)
{
        _cleanup_(tdm_fleet_destroyp) struct tdm_fleet *f = calloc(1, sizeof(*f));
        unsigned n_off = 0;
        int r;

        if (!f)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        f->trace = malloc(sizeof(*f->trace));
        if (!f->trace)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        tdm_trace_ring_init(f->trace);
        f->loop = loop;
        f->callbacks = *callbacks;
        f->userdata = userdata;
        f->n_threads = config->n_threads;
        f->npu_memory_bytes = config->npu_memory_bytes;
        f->npu_programs = config->npu_programs ? strdup(config->npu_programs) : NULL;
        f->npu_format = config->npu_format ? strdup(config->npu_format) : NULL;
        f->gpu_memory_bytes = config->gpu_memory_bytes;
        f->gpu_device = config->gpu_device ? strdup(config->gpu_device) : NULL;
        if ((config->npu_programs && !f->npu_programs) || (config->npu_format && !f->npu_format) ||
            (config->gpu_device && !f->gpu_device))
                return tdm_error_set(err, -ENOMEM, "out of memory");
        f->hang_min_ns = hang_min_ns(config);
        f->control_ns = config->control_ns > 0 ? config->control_ns : TDM_FLEET_CONTROL_NS;
        f->quarantine_ns = config->quarantine_ns > 0 ? config->quarantine_ns : QUARANTINE_NS;
        f->epoch = 1;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                f->workers[i].fleet = f;
                f->workers[i].index = (enum tdm_worker_index)i;
                f->workers[i].name = worker_names[i];
                f->workers[i].receive = tdm_fleet_receive;
                f->workers[i].process.pidfd = f->workers[i].link.greeting_fd = -1;
        }
        tdm_fleet_close_rings(f);
        raise_fd_limit();
        r = tdm_placement_store_new(&f->store, TDM_FLEET_MODELS);
        if (r < 0)
                return tdm_error_set(err, r, "out of memory");
        r = find_worker_dir(config, &f->worker_dir, err);
        if (r != 0)
                return r;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                r = worker_init(f, (enum tdm_worker_index)i, config, err);
                if (r != 0)
                        return r;
                n_off += f->workers[i].state == TDM_WORKER_OFF;
        }
        if (n_off == TDM_N_WORKERS)
                return tdm_error_set(err, TDM_E_NO_WORKER,
                                     "TANDEM_NPU and TANDEM_GPU are both off: nobody could run a model");
        r = tdm_loop_add_defer(loop, on_pump, f, &f->pump);
        if (r == 0)
                r = tdm_fleet_watch_init(f);
        if (r == 0)
                r = tdm_fleet_conduct_init(f);
        if (r < 0)
                return tdm_error_set(err, r, "cannot watch the workers: %s", strerror(-r));
        tdm_fleet_pump_soon(f);
        *ret = steal_ptr(&f);
        return 0;
}

void tdm_fleet_destroy(struct tdm_fleet *f)
{
        if (!f)
                return;
        f->destroying = true;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (f->workers[i].process.phase != TDM_FLEET_NO_PROCESS && f->workers[i].link.conn)
                        (void)tdm_fleet_wire_quit(&f->workers[i]); /* an error means that it is gone already */
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                tdm_fleet_worker_deinit(&f->workers[i]);
        tdm_fleet_close_rings(f);
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                free(f->models[i]);
        tdm_source_destroy(f->pump);
        tdm_source_destroy(f->watch);
        tdm_source_destroy(f->link_timer);
        tdm_placement_store_destroy(f->store);
        free(f->worker_dir);
        free(f->npu_programs);
        free(f->gpu_device);
        free(f->npu_format);
        free(f->trace);
        free(f);
}

void tdm_fleet_destroyp(struct tdm_fleet **f)
{
        tdm_fleet_destroy(*f);
        *f = NULL;
}

int tdm_fleet_add_model(struct tdm_fleet *f, const struct tdm_fleet_model *model, struct tdm_error *err)
{
        struct tdm_fleet_entry *entry;
        const struct tdm_fleet_worker *missed = tdm_fleet_missed(f);
        unsigned index = 0;

        if (model->model_id == 0 || tdm_fleet_find(f, model->model_id))
                return tdm_error_set(err, -EINVAL, "model id %u is taken", model->model_id);
        if (missed) {
                explain_missed(missed, err);
                return TDM_E_NO_WORKER;
        }
        if (!tdm_fleet_usable(&f->workers[TDM_WORKER_NPU]) && !tdm_fleet_usable(&f->workers[TDM_WORKER_GPU]))
                return tdm_error_set(
                        err, TDM_E_NO_WORKER,
                        "no worker is left (npu %s, gpu %s); `tandem restart npu` or `tandem restart gpu` tries again",
                        tdm_worker_state_name(f->workers[TDM_WORKER_NPU].state),
                        tdm_worker_state_name(f->workers[TDM_WORKER_GPU].state));
        while (index < TDM_FLEET_MODELS && f->models[index])
                index++;
        if (index == TDM_FLEET_MODELS)
                return tdm_error_set(err, TDM_E_BUSY, "%u models are loaded, which is as many as the workers can hold",
                                     TDM_FLEET_MODELS);
        entry = calloc(1, sizeof(*entry));
        if (!entry)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        entry->model = *model;
        entry->n_chunks = model->weights->n_chunks;
        tdm_utf8_copy(entry->name, sizeof(entry->name), model->name ? model->name : "");
        entry->model.name = entry->name;
        entry->index = index;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) /* a worker that is alone runs attention too */
                entry->on[i].wants_kv = tdm_fleet_other(&f->workers[i])->state == TDM_WORKER_OFF;
        f->models[index] = entry;
        tdm_fleet_pump_soon(f);
        return 0;
}

void tdm_fleet_weights_sealed(struct tdm_fleet *f, uint32_t model_id, unsigned n_chunks)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        if (!entry || entry->leaving || n_chunks <= entry->model.n_sealed)
                return;
        entry->model.n_sealed = TDM_MIN(n_chunks, entry->n_chunks);
        tdm_fleet_pump_soon(f);
}

void tdm_fleet_remove_model(struct tdm_fleet *f, uint32_t model_id)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        if (!entry)
                return;
        entry->leaving = true;
        entry->failed = false;
        /* Its steps are void. A worker finishes the block that it is in before it unmaps the segments. */
        memset(entry->steps, 0, sizeof(entry->steps));
        tdm_fleet_pump_soon(f);
}

int tdm_fleet_restart(struct tdm_fleet *f, enum tdm_worker_index worker, const char *reason)
{
        struct tdm_fleet_worker *w;

        if ((unsigned)worker >= TDM_N_WORKERS)
                return -EINVAL;
        w = &f->workers[worker];
        if (w->state == TDM_WORKER_OFF)
                return -ENOENT;
        w->restart_wanted = true;
        snprintf(w->restart_reason, sizeof(w->restart_reason), "%s", reason ? reason : "restart asked for");
        tdm_fleet_pump_soon(f);
        return 0;
}

void tdm_fleet_reopen(struct tdm_fleet *f, enum tdm_worker_index worker, const char *reason)
{
        struct tdm_fleet_worker *w = &f->workers[worker];

        if (w->state == TDM_WORKER_OFF || w->restart_wanted)
                return;
        w->reopen_wanted = true;
        w->late_until_ns = tdm_now_ns() + DEVICE_LATE_NS;
        snprintf(w->restart_reason, sizeof(w->restart_reason), "%s", reason);
        tdm_fleet_pump_soon(f);
}
