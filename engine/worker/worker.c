/* Life of a worker process: what it is given (an open socket as fd 3; as a unit a listening one, listen.c), the device
 * it opens, what it gives up, and the two threads. The order is the point: not dumpable before anything arrives, the
 * file sandbox before threads exist, the system-call sandbox before the first model. */
#include "engine/worker/private.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "common/log.h"
#include "common/spawn.h"
#include "engine/worker/listen.h"

/* How long to spin for a descriptor before sleeping, at most: whether it pays is learned. */
#define SPIN_US_HOST 50u
/* which needs no cores meanwhile: as long as the daemon takes from one step of 32 rows to the next */
#define SPIN_US_DEVICE 150u
#define SPIN_US_MAX 100000u

#ifdef TANDEM_SANITIZED
/* A race in a worker must not go by as a line in a log: it ends the worker, which the tests count. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
        return "halt_on_error=1:atexit_sleep_ms=0";
}
#endif

static uint64_t spin_ns(bool host)
{
        const char *e = getenv("TANDEM_SPIN_US");
        unsigned long usual = host ? SPIN_US_HOST : SPIN_US_DEVICE, us;
        char *end;

        if (!e || !*e)
                return usual * UINT64_C(1000);
        errno = 0;
        us = strtoul(e, &end, 10);
        if (errno != 0 || *end || us > SPIN_US_MAX) {
                tdm_log_warning("TANDEM_SPIN_US=%s is not a number up to %u; using %lu", e, SPIN_US_MAX, usual);
                return usual * UINT64_C(1000);
        }
        return us * UINT64_C(1000);
}

/* 0 and *ret_fd, or 2 for a person who tries to start us by hand. */
static int parse_args(const struct tdm_worker_program *program, int argc, char **argv, int *ret_fd)
{
        int fd = TDM_WORKER_CONTROL_FD, type = 0;
        socklen_t len = sizeof(type);

        for (int i = 1; i < argc; i++) {
                char *end = NULL;

                if (strcmp(argv[i], "--control-fd") == 0 && i + 1 < argc) {
                        long n = strtol(argv[++i], &end, 10);

                        if (*end == 0 && n >= 0 && n < INT32_MAX) {
                                fd = (int)n;
                                continue;
                        }
                }
                fprintf(stderr,
                        "usage: %s --control-fd N\nThis program is started by tandemd and does nothing alone.\n",
                        program->name);
                return 2;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_STREAM) {
                fprintf(stderr,
                        "%s: fd %d is not a socket: this program is started by tandemd and does nothing alone.\n",
                        program->name, fd);
                return 2;
        }
        *ret_fd = fd;
        return 0;
}

/* 0; or an exit status; or -ETIMEDOUT: tandemd did not connect, which is no failure. */
static int accept_daemon(int *ret_fd)
{
        struct tdm_error err = { 0 };
        int r = tdm_worker_accept(ret_fd, &err);

        if (r == 0)
                return 0;
        tdm_log(r == -ETIMEDOUT ? TDM_LOG_INFO : TDM_LOG_ERROR, "%s", err.message);
        return r == -ETIMEDOUT ? r : EXIT_FAILURE;
}

static void prepare_process(int control_fd, bool is_unit)
{
        const struct rlimit no_core = { 0, 0 };

        /* The socket's end says it too, but only to a thread that reads. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_CORE, &no_core);
        fcntl(control_fd, F_SETFD, FD_CLOEXEC);
        /* Ctrl-C, a closed terminal and the end of tandemd's service reach all its processes at once. They are
         * tandemd's business: running jobs need their workers to the end. A unit of its own is stopped by itself. */
        tdm_spawned_ignore(SIGINT);
        tdm_spawned_ignore(SIGHUP);
        if (!is_unit)
                tdm_spawned_ignore(SIGTERM);
        signal(SIGPIPE, SIG_IGN);
}

/* For people: what "auto" took, and why not the device before it. */
static void explain_choice(struct tdm_worker *w, const struct tdm_worker_device *taken, const char *passed_over)
{
        const char *name = strcmp(taken->name, "host") == 0 ? "the CPU" : taken->name;

        if (passed_over[0])
                snprintf(w->why_auto, sizeof(w->why_auto), "auto took %s: %.220s", name, passed_over);
        else if (taken->probe)
                snprintf(w->why_auto, sizeof(w->why_auto), "auto took %s: its device answers", name);
}

/* "required": the accelerator, or the reason why there is none. Never the CPU. */
static int require_device(const struct tdm_worker_program *program, const struct tdm_device_config *config,
                          const struct tdm_worker_device **ret, struct tdm_error *err)
{
        const struct tdm_worker_device *d = NULL;
        int r;

        for (unsigned i = 0; i < program->n_devices && !d; i++)
                if (program->devices[i].is_accelerator)
                        d = &program->devices[i];
        if (!d || !d->ops)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "device %s: this build has none",
                                     d ? d->name : "required");
        r = d->probe ? d->probe(config, err) : 0;
        if (r != 0)
                return tdm_error_prefix(err, "device %s", d->name);
        *ret = d;
        return 0;
}

static int choose_device(struct tdm_worker *w, const char *requested, const struct tdm_device_config *config,
                         const struct tdm_worker_device **ret, struct tdm_error *err)
{
        const struct tdm_worker_program *program = w->program;
        bool any = strcmp(requested, "auto") == 0 || !requested[0];
        char known[128] = "auto, required", passed_over[256] = "";

        if (strcmp(requested, "required") == 0)
                return require_device(program, config, ret, err);
        for (unsigned i = 0; i < program->n_devices; i++) {
                const struct tdm_worker_device *d = &program->devices[i];
                struct tdm_error why = { 0 };

                if (any && d->ops && d->probe && d->probe(config, &why) != 0) {
                        tdm_log_info("not taking the device %s: %s", d->name, why.message);
                        snprintf(passed_over, sizeof(passed_over), "%.255s", why.message);
                        continue;
                }
                if (any && !d->ops)
                        snprintf(passed_over, sizeof(passed_over), "this build has no %s device", d->name);
                if (d->ops && (any || strcmp(requested, d->name) == 0)) {
                        if (any)
                                explain_choice(w, d, passed_over);
                        *ret = d;
                        return 0;
                }
                if (strcmp(requested, d->name) == 0)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "this build has no %s device yet; ask for host or auto", d->name);
                if (strcmp(d->name, "auto") != 0) /* a program that says itself what auto takes */
                        snprintf(known + strlen(known), sizeof(known) - strlen(known), ", %s", d->name);
        }
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "there is no device \"%s\"; known are %s and off", requested,
                             known);
}

static int open_progress(struct tdm_worker *w, int fd, struct tdm_error *err)
{
        int r = tdm_segment_import(&w->progress_segment, "progress", &fd, 1, TDM_PROGRESS_BYTES, TDM_PROGRESS_BYTES,
                                   true, err);

        if (r != 0) {
                closep(&fd);
                return r;
        }
        w->progress = (struct tdm_progress *)w->progress_segment->base;
        if (w->progress->magic != TDM_PROGRESS_MAGIC || w->progress->abi != TDM_PROGRESS_ABI)
                return tdm_error_set(err, TDM_E_PROTOCOL, "the progress segment has ABI %u, this program speaks %u",
                                     w->progress->abi, TDM_PROGRESS_ABI);
        return 0;
}

static int open_device(struct tdm_worker *w, const struct tdm_worker_init *init, struct tdm_error *err)
{
        const struct tdm_device_config config = {
                .n_threads = init->n_threads,
                .heartbeat = &w->progress->heartbeat,
                .counters = &w->progress->device,
                .device_name = init->device_name[0] ? init->device_name : NULL,
                .programs = init->programs[0] ? init->programs : NULL,
                .memory_bytes = init->memory_bytes,
                .number_format = init->number_format[0] ? init->number_format : NULL,
        };
        const struct tdm_worker_device *device = NULL;
        int r;

        /* Looking for a device loads drivers: what they may open is settled before. */
        r = tdm_sandbox_driver_files(&w->sandbox, w->program->index, init->programs);
        if (r < 0)
                return tdm_error_set(err, r, "cannot give up most of the file system: %s", strerror(-r));
        r = choose_device(w, init->requested, &config, &device, err);
        if (r != 0)
                return r;
        w->sandbox.makes_code = device->makes_code;
        w->spin_max_ns = spin_ns(!device->makes_code);
        w->wakes_early = device->makes_code && w->spin_max_ns > 0;
        w->wakes_bursts = w->spin_max_ns > 0 && tdm_spin_has_cores();
        if (!device->needs_files) {
                r = tdm_sandbox_files(&w->sandbox);
                if (r < 0)
                        return tdm_error_set(err, r, "cannot give up the file system: %s", strerror(-r));
        }
        r = device->ops->open(&w->device, &config, err);
        if (r != 0)
                return tdm_error_prefix(err, "device %s", device->name);
        /* Before the sandbox closes, as all that is opened. */
        return w->device->ops->left_to_host.features || w->device->ops->left_to_host.types ?
                       tdm_host_device_ops.open(&w->host, &config, err) :
                       0;
}

/* From Init to the last command. */
static int worker_serve(struct tdm_worker *w)
{
        struct tdm_worker_init init = { .progress_fd = -1 };
        struct tdm_error err = { 0 };
        int r;

        r = tdm_worker_receive_init(w, &init, &err);
        if (r == 0 && (init.abi != TDM_WORKER_ABI || init.worker != w->program->index))
                r = tdm_error_set(&err, -EPROTO,
                                  "tandemd speaks ABI 0x%x to worker %u, this is ABI 0x%x, worker %u: "
                                  "programs of different versions?",
                                  init.abi, init.worker, TDM_WORKER_ABI, (unsigned)w->program->index);
        if (r != 0) {
                closep(&init.progress_fd);
                tdm_log_error("%s", err.message);
                return r;
        }
        r = open_progress(w, init.progress_fd, &err);
        if (r == 0)
                r = open_device(w, &init, &err);
        if (r != 0) {
                tdm_worker_send_no_device(w, err.message);
                return r;
        }
        r = tdm_worker_control_start(w);
        if (r == 0)
                r = tdm_sandbox_syscalls(&w->sandbox);
        if (r < 0) {
                tdm_log_error("cannot start its control thread or its sandbox: %s", strerror(-r));
                return r;
        }
        tdm_worker_send_hello(w);
        tdm_log_debug("%s (%s), sandbox: %s", w->device->ops->name, w->device->ops->describe(w->device),
                      tdm_sandbox_describe(&w->sandbox));
        return tdm_worker_run(w);
}

int tdm_worker_main(const struct tdm_worker_program *program, int argc, char **argv)
{
        static struct tdm_worker worker;
        struct tdm_worker *w = &worker;
        bool is_unit = tdm_worker_is_unit(); /* what says so is gone after the connection */
        int r;

        tdm_log_init(program->name);
        r = is_unit ? accept_daemon(&w->control_fd) : parse_args(program, argc, argv, &w->control_fd);
        if (r != 0)
                return r > 0 ? r : EXIT_SUCCESS;
        prepare_process(w->control_fd, is_unit);
        w->program = program;
        r = tdm_sandbox_init(&w->sandbox);
        if (r == 0)
                r = tdm_worker_control_init(w);
        if (r < 0) {
                tdm_log_error("cannot start: %s", strerror(-r));
                return EXIT_FAILURE;
        }
        r = worker_serve(w);

        for (unsigned i = 0; i < TDM_PROGRESS_MODELS; i++)
                tdm_worker_model_unload(w, w->models[i].model_id);
        for (unsigned i = 0; i < TDM_WORKER_N_RINGS; i++)
                tdm_ring_destroyp(&w->rings[i]);
        if (w->device)
                w->device->ops->close(w->device);
        if (w->host)
                w->host->ops->close(w->host);
        tdm_segment_destroyp(&w->progress_segment);
        /* The control thread may be in recv() and stays there: the process ends with it. */
        if (!w->control_started)
                tdm_worker_control_deinit(w);
        return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
