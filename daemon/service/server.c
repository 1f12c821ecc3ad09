/* Starts and ends the parts of the daemon in order. Start: the socket's lock first (a second daemon must not start
 * workers), the workers last, then the service manager is told. End: no new clients, no new jobs, running jobs have
 * their time, clients read what is queued for them, the workers leave, and at last the memory is freed that they share.
 */
#include "daemon/service/server.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/background.h"
#include "common/cache-dir.h"
#include "common/log.h"
#include "common/notify.h"
#include "common/sigbus.h"
#include "daemon/accounts/subuids.h"
#include "daemon/cache/page-store.h"
#include "daemon/faces/socket/face.h"
#include "daemon/faces/dbus/dbus.h"
#include "daemon/service/ending.h"
#include "daemon/service/heap.h"
#include "daemon/service/listener.h"
#include "daemon/service/pressure.h"
#include "daemon/service/reload.h"
#include "daemon/service/sleep.h"
#include "daemon/service/terminal.h"
#include "daemon/service/watchdog.h"
#include "daemon/service/worker-dir.h"

/* if the configuration does not say; a step may have all rows while no sequence generates */
#define PREFILL_ROWS 256u
#define TRIM_NS (2 * TDM_NSEC_PER_SEC) /* how often that is looked at while there is work */
/* More than the accounts give out: they say no first, and to the one who has too much. */
#define MAX_PENDING_BYTES (UINT64_C(256) << 20)

struct server {
        struct tdm_loop *loop;
        struct tdm_accounts *accounts;
        struct tdm_background *background; /* asks the system's user database */
        struct tdm_listener *listener;
        struct tdm_models *models;
        struct tdm_page_store *page_store; /* NULL: no prefixes are kept on disk */
        struct tdm_scheduler *scheduler;
        struct tdm_face *face;
        struct tdm_dbus *dbus; /* NULL: no bus is wanted */
        struct tdm_fleet *fleet;
        struct tdm_sleep *sleep; /* NULL: no bus is wanted */
        struct tdm_watchdog *watchdog;
        struct tdm_pressure *pressure; /* NULL: not watched */
        struct tdm_source *sigterm, *sigint, *sighup;
        struct tdm_terminal *terminal;
        const struct tdm_config *config; /* what is in force */
        struct tdm_config reread;        /* its owner once it was read again */

        struct tdm_source *trim; /* timer */
        bool trim_is_due, trimming;
        struct tdm_ending *ending;
};

/* ---- the fleet's voice ---- */

static void on_ready(uint32_t epoch, void *userdata)
{
        struct server *s = userdata;

        tdm_models_on_fleet_ready(s->models);
        tdm_dbus_on_workers_changed(s->dbus);
        tdm_scheduler_on_fleet_ready(s->scheduler);
}

static void on_epoch_ended(void *userdata)
{
        tdm_dbus_on_workers_changed(((struct server *)userdata)->dbus);
}

static void on_model_failed(uint32_t model_id, const struct tdm_error *err, void *userdata)
{
        tdm_models_on_model_failed(((struct server *)userdata)->models, model_id, err);
}

static void on_model_ready(uint32_t model_id, void *userdata)
{
        tdm_models_on_model_ready(((struct server *)userdata)->models, model_id);
}

static void on_kill_unit(const char *unit, void *userdata)
{
        tdm_dbus_kill_unit(((struct server *)userdata)->dbus, unit);
}

static int ask_authority(const struct tdm_face_process *who, tdm_face_answer_fn answer, void *request, void **ret,
                         void *userdata)
{
        struct tdm_dbus_question *question;
        int r = tdm_dbus_ask_load(((struct server *)userdata)->dbus, who->pid, who->start_time, who->uid, answer,
                                  request, &question);

        if (r == 0)
                *ret = question;
        return r;
}

static void forget_authority(void *question)
{
        tdm_dbus_forget_question(question);
}

static const struct tdm_fleet_callbacks fleet_callbacks = {
        .on_ready = on_ready,
        .on_epoch_ended = on_epoch_ended,
        .on_model_failed = on_model_failed,
        .on_model_ready = on_model_ready,
        .on_kill_unit = on_kill_unit,
};

/* ---- memory ---- */

static void run_trim(void *task)
{
        tdm_heap_trim();
}

static void on_trimmed(void *task, bool ran)
{
        ((struct server *)task)->trimming = false;
}

/* Not put off by who comes meanwhile: clients may come and go all the time. */
static void trim_later(struct server *s)
{
        if (!s->trim_is_due)
                tdm_source_arm(s->trim, tdm_now_ns() + TRIM_NS);
        s->trim_is_due = true;
}

/* A heap keeps what was freed below what is still in use: the queues of slow readers, say. Looked at for as long as
 * there are clients, and once more. */
static int on_trim(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct server *s = userdata;

        s->trim_is_due = false;
        if (s->trimming || tdm_face_n_connections(s->face) > 0)
                trim_later(s);
        if (!s->trimming && tdm_background_add(s->background, run_trim, on_trimmed, s) == 0)
                s->trimming = true;
        return 0;
}

static void on_model_changed(struct tdm_model *model, void *userdata)
{
        struct server *s = userdata;

        tdm_scheduler_on_model_changed(s->scheduler, model);
        tdm_face_on_model_changed(s->face, model);
        tdm_dbus_on_model_changed(s->dbus, model);
        if (model->state == TDM_MODEL_GONE || model->state == TDM_MODEL_FAILED)
                trim_later(s);
}

static void on_rows(struct tdm_model *model, void *userdata)
{
        struct server *s = userdata;

        tdm_scheduler_on_model_changed(s->scheduler, model);
}

static void on_accept(int fd, void *userdata)
{
        struct server *s = userdata;

        if (tdm_face_n_connections(s->face) == 0)
                trim_later(s);
        tdm_face_accept(s->face, fd);
}

/* ---- the end ---- */

static int on_end_signal(struct tdm_source *source, int signo, void *userdata)
{
        struct server *s = userdata;

        tdm_ending_begin(s->ending, &s->listener, signo == SIGINT ? "interrupted" : "terminated");
        return 0;
}

static void on_terminal_gone(void *userdata)
{
        struct server *s = userdata;

        if (!tdm_ending_has_begun(s->ending))
                tdm_ending_begin(s->ending, &s->listener,
                                 "the terminal that it was started from has gone (nohup or a service keeps it "
                                 "running)");
}

/* ---- users ---- */

/* The limits of a system daemon, which serves everybody: a user may have half of what the others leave.
 * docs/security.md says why each is what it is. */
static const struct tdm_resource_limit limits[TDM_N_RESOURCES] = {
        [TDM_RESOURCE_CONNECTIONS] = { .capacity = 512, .reserve = 32, .floor = 4, .share_percent = 50 },
        [TDM_RESOURCE_CALLERS] = { .capacity = 1024, .reserve = 64, .floor = 4, .share_percent = 50 },
        [TDM_RESOURCE_FRAME_BYTES] = { .capacity = UINT64_C(256) << 20,
                                       .reserve = UINT64_C(32) << 20,
                                       .floor = UINT64_C(1) << 20,
                                       .share_percent = 50 },
        [TDM_RESOURCE_WAITING_BYTES] = { .capacity = UINT64_C(128) << 20,
                                         .reserve = UINT64_C(16) << 20,
                                         .floor = UINT64_C(1) << 20,
                                         .share_percent = 50 },
        [TDM_RESOURCE_CALLS] = { .capacity = 224, .reserve = 16, .floor = 2, .share_percent = 50 },
        [TDM_RESOURCE_MODELS] = { .capacity = 32, .reserve = 2, .floor = 1, .share_percent = 50 },
        [TDM_RESOURCE_FILES] = { .capacity = 16, .reserve = 2, .floor = 1, .share_percent = 50 },
        [TDM_RESOURCE_LOADS] = { .capacity = 32, .reserve = 4, .floor = 1, .share_percent = 50 },
        [TDM_RESOURCE_METADATA_BYTES] = { .capacity = UINT64_C(1) << 30,
                                          .reserve = UINT64_C(128) << 20,
                                          .floor = UINT64_C(64) << 20,
                                          .share_percent = 50 },
        [TDM_RESOURCE_GRAMMAR_BYTES] = { .capacity = UINT64_C(512) << 20,
                                         .reserve = UINT64_C(64) << 20,
                                         .floor = UINT64_C(16) << 20,
                                         .share_percent = 50 },
};

struct subuids {
        struct server *s;
        struct tdm_uid_range *ranges;
        size_t n;
        int r;
};

static void run_subuids(void *task)
{
        const char *path = getenv("TANDEM_SUBUIDS"); /* for tests */
        struct subuids *t = task;

        t->r = tdm_subuids_read(path ? path : TDM_SUBUIDS_PATH, tdm_uid_of_name, &t->ranges, &t->n);
}

static void on_subuids(void *task, bool ran)
{
        struct subuids *t = task;

        if (ran && t->r == 0)
                t->r = tdm_accounts_set_ranges(t->s->accounts, t->ranges, t->n);
        if (ran && t->r < 0)
                tdm_log_warning("cannot read the subordinate uids, each counts as a user of its own: %s",
                                strerror(-t->r));
        else if (ran)
                tdm_log_debug("%zu ranges of subordinate uids", t->n);
        free(t->ranges);
        free(t);
}

/* Beside the loop: names are looked up in the system's user database, which may be on a network. */
static void read_subuids(struct server *s)
{
        struct subuids *t = calloc(1, sizeof(*t));

        if (!t)
                return;
        t->s = s;
        if (tdm_background_add(s->background, run_subuids, on_subuids, t) < 0)
                free(t);
}

static int set_up_accounts(struct server *s, const struct tdm_config *config, struct tdm_error *err)
{
        struct tdm_resource_limit own[TDM_N_RESOURCES];
        int r;

        memcpy(own, limits, sizeof(own));
        own[TDM_RESOURCE_JOBS] = (struct tdm_resource_limit){
                .capacity = config->max_jobs, .reserve = config->max_jobs / 16, .floor = 1, .share_percent = 50
        };
        for (unsigned i = 0; !config->system && i < TDM_N_RESOURCES; i++) {
                own[i].labelled_percent = own[i].share_percent;
                own[i].share_percent = 100; /* there is one user, and root */
        }
        r = tdm_accounts_new(&s->accounts, own);
        if (r == 0)
                r = tdm_background_new(&s->background, s->loop);
        if (r < 0)
                return tdm_error_set(err, r, "cannot set up the users' accounts: %s", strerror(-r));
        if (config->system)
                read_subuids(s);
        return 0;
}

/* ---- the gateway ---- */

struct gateway_user {
        struct server *s;
        char *name;
        uid_t uid;
        int r;
};

static void run_gateway_user(void *task)
{
        struct gateway_user *t = task;

        t->r = tdm_uid_of_name(t->name, &t->uid);
}

static void on_gateway_user(void *task, bool ran)
{
        struct gateway_user *t = task;

        if (ran) {
                bool found = t->r == 0;

                tdm_face_set_gateway(t->s->face, found ? TDM_FACE_GATEWAY_KNOWN : TDM_FACE_GATEWAY_NONE, t->uid);
                if (!found)
                        tdm_log_info("there is no user %s (gateway-user): tandem-http cannot tell its keys apart",
                                     t->name);
        }
        free(t->name);
        free(t);
}

/* The one user who may speak for others: of a user's daemon that user, of the system's the gateway's own. Its name is
 * looked up beside the loop, as subordinate uids are. */
static int set_up_gateway(struct server *s, const struct tdm_config *config)
{
        const char *name = config->gateway_user ? config->gateway_user : TDM_CONFIG_GATEWAY_USER;
        struct gateway_user *t;
        char *end;
        unsigned long uid;
        int r;

        if (!config->system) {
                tdm_face_set_gateway(s->face, TDM_FACE_GATEWAY_KNOWN, geteuid());
                return 0;
        }
        uid = strtoul(name, &end, 10);
        if (name[0] >= '0' && name[0] <= '9' && !*end && uid < UINT32_MAX) {
                tdm_face_set_gateway(s->face, TDM_FACE_GATEWAY_KNOWN, (uid_t)uid);
                return 0;
        }
        t = calloc(1, sizeof(*t));
        if (!t)
                return -ENOMEM;
        *t = (struct gateway_user){ .s = s, .name = strdup(name) };
        r = t->name ? tdm_background_add(s->background, run_gateway_user, on_gateway_user, t) : -ENOMEM;
        if (r < 0) {
                free(t->name);
                free(t);
                return r;
        }
        tdm_face_set_gateway(s->face, TDM_FACE_GATEWAY_ASKED, 0);
        return 0;
}

/* ---- the service manager ---- */

/* Queued jobs count only where nothing runs: behind other jobs they wait for those. */
static bool has_work(void *userdata)
{
        struct server *s = userdata;
        struct tdm_scheduler_stats stats;
        struct tdm_job *job;

        if (!s->fleet || !tdm_fleet_is_ready(s->fleet))
                return false; /* the workers start; the fleet watches that by itself */
        if (tdm_scheduler_is_held(s->scheduler))
                return false; /* the machine is about to sleep, or wakes: no step may run */
        tdm_scheduler_stats(s->scheduler, &stats);
        tdm_list_for_each(job, tdm_scheduler_jobs(s->scheduler), struct tdm_job, node) {
                if (job->finished || job->paused || job->prompt.encoding)
                        continue;
                if (job->state == TDM_JOB_PREFILL || job->state == TDM_JOB_DECODE || job->state == TDM_JOB_RECOVERING)
                        return true;
                if (job->state == TDM_JOB_QUEUED && stats.n_running == 0 && job->model &&
                    job->model->state == TDM_MODEL_READY)
                        return true;
        }
        return false;
}

/* All of these numbers only grow, so their sum stands still only when each of them does. */
static uint64_t server_progress(void *userdata)
{
        struct server *s = userdata;
        struct tdm_scheduler_stats stats;
        uint64_t sum;

        tdm_scheduler_stats(s->scheduler, &stats);
        sum = stats.steps_done + stats.n_done + stats.n_failed + stats.n_cancelled + stats.evictions;
        for (int i = 0; s->fleet && i < TDM_N_WORKERS; i++) {
                struct tdm_worker_status status;

                tdm_fleet_worker_status(s->fleet, i, &status);
                sum += status.restarts + status.handovers;
                for (int kind = 0; kind < TDM_N_BLOCK_KINDS; kind++)
                        sum += status.done[kind].blocks;
        }
        return sum + (s->fleet ? tdm_fleet_epoch(s->fleet) : 0);
}

static const char *describe_fleet(const struct tdm_fleet *fleet)
{
        const char *missed = tdm_fleet_missed_name(fleet);

        if (missed)
                return strcmp(missed, "npu") == 0 ? ", jobs are refused: npu = required and no NPU can be used" :
                                                    ", jobs are refused: gpu = required and no GPU can be used";
        return tdm_fleet_is_degraded(fleet) ? ", a worker is quarantined" : "";
}

static void describe(char *text, size_t size, void *userdata)
{
        struct server *s = userdata;
        struct tdm_scheduler_stats stats;

        tdm_scheduler_stats(s->scheduler, &stats);
        if (tdm_ending_has_begun(s->ending))
                snprintf(text, size, "Ending, %u to go", stats.n_running + stats.n_queued);
        else if (stats.n_running + stats.n_queued == 0)
                snprintf(text, size, "Idle%s", describe_fleet(s->fleet));
        else
                snprintf(text, size, "%u running, %u waiting%s", stats.n_running, stats.n_queued,
                         describe_fleet(s->fleet));
}

static const struct tdm_watchdog_ops watchdog_ops = { .has_work = has_work,
                                                      .progress = server_progress,
                                                      .describe = describe };

/* A configuration with an error changes nothing: the old one stays in force. */
static int on_hangup(struct tdm_source *source, int signo, void *userdata)
{
        struct server *s = userdata;
        struct tdm_config config = { 0 };
        struct tdm_error err = { 0 };
        char text[80];
        int r;

        if (tdm_ending_has_begun(s->ending) || tdm_terminal_hang_up(s->terminal))
                return 0;
        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(tdm_now_ns() / 1000));
        tdm_notify(text);
        r = tdm_config_load_again(s->config, &config, &err);
        if (r == 0) {
                tdm_config_log_changes(s->config, &config);
                r = tdm_reload_apply(&config, s->models, s->scheduler);
                if (r < 0)
                        tdm_error_set(&err, r, "out of memory");
        }
        if (r == 0) {
                tdm_config_deinit(&s->reread);
                s->reread = config;
                s->config = &s->reread;
                if (s->config->system)
                        read_subuids(s);
                tdm_dbus_on_default_changed(s->dbus);
                tdm_log_info("the configuration was read again");
                tdm_reload_check_default(s->config);
        } else {
                tdm_config_deinit(&config);
                tdm_log_error("the configuration stays as it was: %s", err.message);
        }
        tdm_notify_ready();
        return 0;
}

/* ---- the beginning ---- */

static void raise_fd_limit(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
                return;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
                tdm_log_warning("cannot raise the limit of open files: %s", strerror(errno));
}

static int set_up_loop(struct server *s, struct tdm_error *err)
{
        int r = tdm_sigbus_init();

        if (r < 0)
                return tdm_error_set(err, r, "cannot handle SIGBUS: %s", strerror(-r));
        r = tdm_loop_new(&s->loop, err);
        if (r != 0)
                return r;
        r = tdm_loop_add_signal(s->loop, SIGTERM, on_end_signal, s, &s->sigterm);
        if (r == 0)
                r = tdm_loop_add_signal(s->loop, SIGINT, on_end_signal, s, &s->sigint);
        if (r == 0)
                r = tdm_terminal_new(&s->terminal, s->loop, on_terminal_gone, s);
        if (r == 0)
                r = tdm_loop_add_signal(s->loop, SIGHUP, on_hangup, s, &s->sighup);
        if (r == 0)
                r = tdm_loop_add_timer(s->loop, on_trim, s, &s->trim);
        return r < 0 ? tdm_error_set(err, r, "cannot set up the event loop: %s", strerror(-r)) : 0;
}

static void on_memory_pressure(void *userdata)
{
        (void)tdm_models_relieve(((struct server *)userdata)->models);
}

static int set_up_models(struct server *s, const struct tdm_config *config, struct tdm_error *err)
{
        _cleanup_(tdm_strv_freep) char **dirs = NULL;
        _cleanup_(freep) char *program_dir = tdm_installed_worker_dir();
        struct tdm_models_config models = {
                .files = (const char *const *)config->models,
                .default_name = config->default_model,
                .precision = config->precision,
                .kv_type = config->kv_type,
                .kv_bytes = config->kv_bytes,
                .activations = config->activations,
                .no_prefix_cache = !config->prefix_cache,
                .serves_all = config->system,
                .idle_s = config->idle_unload_s,
                .max_rows = config->max_rows,
                .max_sequences = config->max_sequences,
                .accounts = s->accounts,
                .program_dir = program_dir,
                .n_threads = config->threads,
        };
        int r = tdm_models_default_dirs((const char *const *)config->model_dirs, &dirs);

        if (r < 0)
                return tdm_error_set(err, r, "out of memory");
        models.dirs = (const char *const *)dirs;
        r = tdm_models_new(&s->models, s->loop, &models, err);
        if (r != 0)
                return r;
        tdm_reload_check_default(config);
        r = tdm_pressure_new(&s->pressure, s->loop, on_memory_pressure, s);
        return r < 0 ? tdm_error_set(err, r, "cannot watch memory pressure: %s", strerror(-r)) : 0;
}

/* The daemon works without it. A system's daemon keeps what users wrote on disk only if it is told to. */
static void set_up_page_store(struct server *s, const struct tdm_config *config)
{
        bool is_auto = config->prefix_store == TDM_CONFIG_AUTO_STORE;
        _cleanup_(freep) char *path = NULL;
        struct tdm_error err = { 0 };
        int r;

        if (!config->prefix_cache || config->prefix_store == 0 || (is_auto && config->system))
                return;
        r = tdm_cache_dir(config->system, "prefixes", true, &path);
        if (r < 0)
                tdm_error_set(&err, r, "no folder for it: %s", strerror(-r));
        else
                r = tdm_page_store_open(&s->page_store, path, is_auto ? 0 : config->prefix_store, &err);
        if (r < 0)
                tdm_log_warning("prefixes are not kept on disk: %s", err.message);
}

static int set_up_serving(struct server *s, const struct tdm_config *config, struct tdm_error *err)
{
        const char *guesses = getenv("TANDEM_GUESSES"); /* for tests: "all", or a file */
        bool all_guesses = guesses && strcmp(guesses, "all") == 0;
        struct tdm_scheduler_config scheduler = {
                .max_jobs = config->max_jobs,
                .max_jobs_per_uid = config->max_jobs_per_user,
                .max_running_per_uid = config->max_running_per_user,
                .max_tokens_per_uid = config->max_tokens_per_user,
                .max_pending_bytes = MAX_PENDING_BYTES,
                .max_rows = config->max_rows,
                .prefill_rows = config->prefill_rows ? config->prefill_rows : TDM_MIN(PREFILL_ROWS, config->max_rows),
                .lone_rows = config->prefill_rows ? 0 : config->max_rows,
                .max_sequences = config->max_sequences,
                .steps_in_flight = config->steps_in_flight,
                .placement = config->placement,
                .speculate = { .mode = config->speculation,
                               .draft_max = config->draft_max,
                               .all_guesses = all_guesses,
                               .guess_file = all_guesses ? NULL : guesses },
                .drafts = (const char *const *)config->drafts,
                .page_store = s->page_store,
        };
        struct tdm_face_config face = {
                .system = config->system,
                .socket = tdm_listener_path(s->listener),
                .accounts = s->accounts,
                .authority = { .ask = ask_authority, .forget = forget_authority, .userdata = s },
        };
        int r = tdm_scheduler_new(&s->scheduler, s->loop, &scheduler);

        if (r == 0)
                r = tdm_face_new(&s->face, s->loop, s->models, s->scheduler, &face);
        if (r == 0)
                r = set_up_gateway(s, config);
        if (r == 0)
                r = tdm_models_observe(s->models, on_model_changed, s);
        tdm_models_on_rows(s->models, on_rows, s);
        return r < 0 ? tdm_error_set(err, r, "cannot set up serving: %s", strerror(-r)) : 0;
}

static int set_up_fleet(struct server *s, const struct tdm_config *config, struct tdm_error *err)
{
        _cleanup_(freep) char *worker_dir = tdm_installed_worker_dir();
        struct tdm_fleet_config fleet = {
                .worker_dir = worker_dir,
                .n_threads = config->threads,
                .npu_programs = config->npu_programs,
                .npu_memory_bytes = config->npu_bytes,
                .npu_format = config->npu_format,
                .gpu_device = config->gpu_device,
                .gpu_memory_bytes = config->gpu_bytes,
                .hang_min_ns = (uint64_t)config->hang_ms * TDM_NSEC_PER_MSEC,
        };
        int r;

        for (int i = 0; i < TDM_N_WORKERS; i++) {
                fleet.requested[i] = config->requested[i];
                fleet.cpus[i] = config->cpus[i];
        }
        r = tdm_fleet_new(&s->fleet, s->loop, &fleet, &fleet_callbacks, s, err);
        if (r != 0)
                return r;
        tdm_models_set_fleet(s->models, s->fleet);
        tdm_scheduler_set_fleet(s->scheduler, s->fleet);
        tdm_face_set_fleet(s->face, s->fleet);
        return 0;
}

static int set_up_bus(struct server *s, const struct tdm_config *config, struct tdm_error *err)
{
        struct tdm_dbus_config bus = { .system = config->system,
                                       .bus = config->bus,
                                       .accounts = s->accounts,
                                       .socket = tdm_listener_path(s->listener),
                                       .stored = tdm_listener_stored(s->listener)->items,
                                       .n_stored = tdm_listener_stored(s->listener)->n };
        int r = tdm_dbus_new(&s->dbus, s->loop, s->models, s->scheduler, &bus, err);

        tdm_dbus_set_fleet(s->dbus, s->fleet);
        if (r == 0 && !(config->bus && strcmp(config->bus, "none") == 0)) {
                r = tdm_sleep_new(&s->sleep, s->loop, s->scheduler, s->fleet);
                if (r < 0)
                        r = tdm_error_set(err, r, "cannot watch for the machine's sleep: %s", strerror(-r));
        }
        return r;
}

static int set_up_ending(struct server *s, struct tdm_error *err)
{
        const struct tdm_ending_parts parts = {
                .loop = s->loop, .models = s->models, .scheduler = s->scheduler, .face = s->face, .dbus = s->dbus
        };
        int r = tdm_ending_new(&s->ending, &parts);

        return r < 0 ? tdm_error_set(err, r, "cannot prepare the end: %s", strerror(-r)) : 0;
}

static void server_deinit(struct server *s)
{
        tdm_watchdog_destroyp(&s->watchdog);
        tdm_ending_destroyp(&s->ending);
        tdm_sleep_destroyp(&s->sleep);
        tdm_listener_destroyp(&s->listener);
        if (s->models)
                tdm_models_set_fleet(s->models, NULL);
        if (s->scheduler)
                tdm_scheduler_set_fleet(s->scheduler, NULL);
        if (s->face)
                tdm_face_set_fleet(s->face, NULL);
        tdm_dbus_set_fleet(s->dbus, NULL);
        tdm_fleet_destroyp(&s->fleet);
        tdm_background_destroyp(&s->background); /* before the face and the accounts: its last answers go to them */
        tdm_dbus_destroyp(&s->dbus);
        tdm_face_destroyp(&s->face);
        tdm_scheduler_destroyp(&s->scheduler);
        tdm_page_store_closep(&s->page_store);
        tdm_pressure_destroy(s->pressure);
        tdm_models_destroyp(&s->models);
        tdm_source_destroyp(&s->sigterm);
        tdm_source_destroyp(&s->sigint);
        tdm_source_destroyp(&s->sighup);
        tdm_terminal_destroyp(&s->terminal);
        tdm_source_destroyp(&s->trim);
        tdm_accounts_destroyp(&s->accounts);
        tdm_loop_destroyp(&s->loop);
        tdm_config_deinit(&s->reread);
}

int tdm_server_run(const struct tdm_config *config, struct tdm_error *err)
{
        _cleanup_(server_deinit) struct server s = { .config = config };
        int r;

        tdm_heap_keep_small();
        raise_fd_limit();
        signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is an error of write(), not the end */
        signal(SIGPIPE, SIG_IGN); /* so is a reader that has left, of the log for example */
        r = set_up_loop(&s, err);
        if (r == 0)
                r = set_up_accounts(&s, config, err);
        if (r == 0)
                r = tdm_listener_new(&s.listener, s.loop, config->socket, config->system, on_accept, &s, err);
        if (r == 0)
                r = set_up_models(&s, config, err);
        if (r == 0)
                set_up_page_store(&s, config);
        if (r == 0)
                r = set_up_serving(&s, config, err);
        if (r == 0)
                r = set_up_fleet(&s, config, err);
        if (r == 0)
                r = set_up_bus(&s, config, err);
        if (r == 0)
                r = set_up_ending(&s, err);
        if (r == 0) {
                r = tdm_watchdog_new(&s.watchdog, s.loop, &watchdog_ops, &s);
                if (r < 0)
                        r = tdm_error_set(err, r, "cannot set up the watchdog: %s", strerror(-r));
        }
        if (r != 0)
                return r;
        tdm_log_info("tandemd %s serves %s on %s, default model %s", TANDEM_VERSION,
                     config->system ? "the system" : "its user", tdm_listener_path(s.listener),
                     tdm_models_default_name(s.models));
        tdm_notify_ready();
        tdm_models_read_summaries(s.models);
        r = tdm_loop_run(s.loop);
        if (r < 0)
                return tdm_error_set(err, r, "the event loop failed: %s", strerror(-r));
        tdm_log_info("ended");
        return 0;
}
