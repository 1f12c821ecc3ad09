/* Command line and environment, and what follows from all sources together. Each value is checked where it comes from,
 * so that the message can name the place. */
#include "daemon/service/config.h"
#include "daemon/service/config-private.h"
#include "common/cpus.h"
#include "common/user-socket.h"

#include <getopt.h>
#include <inttypes.h>

const char tdm_config_help[] =
        "usage: tandemd [OPTION]...\n"
        "Runs language models on the NPU and the GPU and serves them on a socket.\n"
        "\n"
        "  --user            serve this user: socket $XDG_RUNTIME_DIR/tandem/socket (default)\n"
        "  --system          serve everybody: socket /run/tandem/socket\n"
        "  --socket PATH     listen there instead\n"
        "  --bus BUS         serve D-Bus there: session, system, an address or none (default: session, with --system\n"
        "                    system)\n"
        "  --model FILE      a model file to serve under its file's name; may be repeated, the first is the default\n"
        "  --config FILE     read this file and FILE.d/*.conf instead of tandem.conf\n"
        "  --check-config    read the configuration, print what it comes to, say what is wrong, and end\n"
        "  --version         print the version\n"
        "  --help            print this\n"
        "\n"
        "Environment:\n"
        "  TANDEM_MODEL_PATH     directories of models, separated by colons, searched first\n"
        "  TANDEM_NPU            device of the NPU worker: auto, required, xrt, emulated, host,\n"
        "                        off\n"
        "  TANDEM_GPU            device of the GPU worker: auto, required, vulkan, host, off\n"
        "  TANDEM_LOG            error, warning, info or debug\n"
        "over the configuration file:\n"
        "  TANDEM_NPU_PROGRAMS   directory of NPU programs\n"
        "  TANDEM_NPU_MEMORY_MB  budget of the NPU's buffers\n"
        "  TANDEM_NPU_FORMAT     bf16, int8, int4: numbers in NPU programs\n"
        "  TANDEM_GPU_DEVICE     which GPU: part of its name, or its number\n"
        "for tests, over the configuration file:\n"
        "  TANDEM_PRECISION      default, precise, f32\n"
        "  TANDEM_KV_TYPE        f16, f32, q8_0\n"
        "  TANDEM_PLACEMENT      measured, split, npu, gpu\n"
        "  TANDEM_PREFIX_STORE   auto, off, or a size: what is kept on disk\n"
        "  TANDEM_THREADS        threads of each worker\n"
        "  TANDEM_NPU_CPUS, TANDEM_GPU_CPUS  CPUs of a worker, like 0,2-5\n"
        "  TANDEM_PREFILL_ROWS   row budget of a step\n"
        "  TANDEM_HANG_MS        shortest silence of a worker that counts as a hang\n"
        "\n"
        "Signals: SIGTERM and SIGINT end the daemon; running jobs have 5 seconds. SIGHUP reads the configuration "
        "again.\n";

int tdm_config_init(struct tdm_config *c)
{
        *c = (struct tdm_config){
                .max_jobs = 256,
                .max_jobs_per_user = 128,
                .max_rows = 512,
                .max_sequences = 64,
                .prefix_cache = true,
                .prefix_store = TDM_CONFIG_AUTO_STORE,
                .idle_unload_s = 300,
                .placement = TDM_PLACEMENT_ANY,
                .draft_max = TDM_MAX_GUESSES,
                .log_level = TDM_LOG_INFO,
        };
        c->models = calloc(1, sizeof(*c->models));
        return c->models ? 0 : -ENOMEM;
}

static void strv_free(char **v)
{
        for (char **p = v; v && *p; p++)
                free(*p);
        free(v);
}

void tdm_config_deinit(struct tdm_config *c)
{
        free(c->socket);
        free(c->bus);
        free(c->file);
        free(c->gateway_user);
        free(c->default_model);
        strv_free(c->models);
        strv_free(c->model_dirs);
        strv_free(c->drafts);
        strv_free(c->files);
        for (int i = 0; i < TDM_N_WORKERS; i++) {
                free(c->requested[i]);
                free(c->cpus[i]);
        }
        free(c->npu_programs);
        free(c->gpu_device);
        free(c->npu_format);
        *c = (struct tdm_config){ 0 };
}

void tdm_config_strv_clear(char ***v)
{
        strv_free(*v);
        *v = NULL;
}

int tdm_config_strv_add(char ***v, const char *value, size_t len)
{
        size_t n = 0;
        char **bigger;

        while (*v && (*v)[n])
                n++;
        bigger = realloc(*v, (n + 2) * sizeof(*bigger));
        if (!bigger)
                return -ENOMEM;
        *v = bigger;
        bigger[n] = strndup(value, len);
        bigger[n + 1] = NULL;
        return bigger[n] ? 0 : -ENOMEM;
}

int tdm_config_set_string(char **to, const char *value)
{
        char *copy = strdup(value);

        if (!copy)
                return -ENOMEM;
        free(*to);
        *to = copy;
        return 0;
}

int tdm_config_parse_number(const char *value, uint64_t min, uint64_t max, uint64_t *ret, char *why, size_t why_size)
{
        char *end;
        uint64_t n;

        errno = 0;
        n = strtoull(value, &end, 10);
        if (value[0] < '0' || value[0] > '9' || *end || errno) {
                snprintf(why, why_size, "\"%.60s\" is not a number", value);
                return -EINVAL;
        }
        if (n < min || n > max) {
                snprintf(why, why_size, "%.30s is out of range; allowed is %" PRIu64 " to %" PRIu64, value, min, max);
                return -EINVAL;
        }
        *ret = n;
        return 0;
}

static int env_number(const char *name, uint64_t min, uint64_t max, uint32_t *to, struct tdm_error *err)
{
        const char *value = getenv(name);
        char why[128];
        uint64_t n;

        if (!value || !value[0])
                return 0;
        if (tdm_config_parse_number(value, min, max, &n, why, sizeof(why)) < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %s", name, why);
        *to = (uint32_t)n;
        return 0;
}

static int env_cpus(const char *name, char **to, struct tdm_error *err)
{
        const char *value = getenv(name);
        cpu_set_t set;
        char why[160];

        if (!value || !value[0])
                return 0;
        if (tdm_cpus_parse(value, &set, why, sizeof(why)) < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %s", name, why);
        return tdm_config_set_string(to, value) < 0 ? tdm_error_set(err, -ENOMEM, "out of memory") : 0;
}

int tdm_config_placement(const char *value)
{
        return strcmp(value, "measured") == 0 ? TDM_PLACEMENT_ANY : tdm_placement_from_name(value);
}

static int env_npu(struct tdm_config *c, struct tdm_error *err)
{
        const char *programs = getenv("TANDEM_NPU_PROGRAMS"), *format = getenv("TANDEM_NPU_FORMAT");
        uint32_t mb = 0;
        int r = env_number("TANDEM_NPU_MEMORY_MB", 1, 1u << 24, &mb, err);

        if (r != 0)
                return r;
        if (mb > 0)
                c->npu_bytes = (uint64_t)mb << 20;
        if (format && format[0] && strcmp(format, "bf16") != 0 && strcmp(format, "int8") != 0 &&
            strcmp(format, "int4") != 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "TANDEM_NPU_FORMAT: \"%.60s\" is not one of " TDM_CONFIG_NPU_FORMATS, format);
        if ((programs && programs[0] && tdm_config_set_string(&c->npu_programs, programs) < 0) ||
            (format && format[0] && tdm_config_set_string(&c->npu_format, format) < 0))
                return tdm_error_set(err, -ENOMEM, "out of memory");
        return 0;
}

static int env_gpu(struct tdm_config *c, struct tdm_error *err)
{
        const char *device = getenv("TANDEM_GPU_DEVICE");

        if (device && device[0] && tdm_config_set_string(&c->gpu_device, device) < 0)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        return 0;
}

int tdm_config_read_environment(struct tdm_config *c, struct tdm_error *err)
{
        static const char *const device_names[TDM_N_WORKERS] = {
                [TDM_WORKER_NPU] = "TANDEM_NPU", [TDM_WORKER_GPU] = "TANDEM_GPU"
        };
        static const char *const cpu_names[TDM_N_WORKERS] = {
                [TDM_WORKER_NPU] = "TANDEM_NPU_CPUS", [TDM_WORKER_GPU] = "TANDEM_GPU_CPUS"
        };
        const char *value = getenv("TANDEM_PRECISION");
        int r;

        if (value && value[0]) {
                r = tdm_precision_from_name(value);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "TANDEM_PRECISION: \"%.60s\" is not one of default, precise, f32", value);
                c->precision = (enum tdm_precision)r;
        }
        value = getenv("TANDEM_KV_TYPE");
        if (value && value[0]) {
                r = tdm_kv_type_from_name(value);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "TANDEM_KV_TYPE: \"%.60s\" is not one of f16, f32, q8_0", value);
                c->kv_type = (enum tdm_kv_type)r;
        }
        value = getenv("TANDEM_PLACEMENT");
        if (value && value[0]) {
                r = tdm_config_placement(value);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "TANDEM_PLACEMENT: \"%.60s\" is not one of measured, split, npu, gpu",
                                             value);
                c->placement = (enum tdm_placement)r;
        }
        value = getenv("TANDEM_PREFIX_STORE");
        if (value && value[0]) {
                char why[160];

                if (tdm_config_parse_store(value, TDM_CONFIG_MAX_STORE, &c->prefix_store, why, sizeof(why)) < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "TANDEM_PREFIX_STORE: %s", why);
        }
        value = getenv("TANDEM_LOG");
        r = value ? tdm_log_level_from_name(value) : -EINVAL; /* the log has warned of an unknown level when it began */
        if (r >= 0)
                c->log_level = (enum tdm_log_level)r;
        for (int i = 0; i < TDM_N_WORKERS; i++) {
                value = getenv(device_names[i]);
                if (value && value[0] && tdm_config_set_string(&c->requested[i], value) < 0)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                r = env_cpus(cpu_names[i], &c->cpus[i], err);
                if (r != 0)
                        return r;
        }
        r = env_number("TANDEM_THREADS", 0, TDM_CONFIG_MAX_THREADS, &c->threads, err);
        if (r == 0)
                r = env_npu(c, err);
        if (r == 0)
                r = env_gpu(c, err);
        if (r == 0)
                r = env_number("TANDEM_PREFILL_ROWS", 0, TDM_MAX_STEP_ROWS, &c->prefill_rows, err);
        if (r == 0)
                r = env_number("TANDEM_HANG_MS", 0, TDM_CONFIG_MAX_HANG_MS, &c->hang_ms, err);
        return r;
}

static int read_flags(struct tdm_config *c, int argc, char **argv, struct tdm_error *err)
{
        enum {
                OPT_USER = 256,
                OPT_SYSTEM,
                OPT_SOCKET,
                OPT_BUS,
                OPT_MODEL,
                OPT_CONFIG,
                OPT_CHECK,
                OPT_VERSION,
                OPT_HELP
        };
        static const struct option options[] = {
                { "user", no_argument, NULL, OPT_USER },           { "system", no_argument, NULL, OPT_SYSTEM },
                { "socket", required_argument, NULL, OPT_SOCKET }, { "bus", required_argument, NULL, OPT_BUS },
                { "model", required_argument, NULL, OPT_MODEL },   { "config", required_argument, NULL, OPT_CONFIG },
                { "check-config", no_argument, NULL, OPT_CHECK },  { "version", no_argument, NULL, OPT_VERSION },
                { "help", no_argument, NULL, OPT_HELP },           { 0 },
        };
        int opt, r = 0;

        optind = 0; /* begins anew: tests call this more than once */
        opterr = 0;
        while (r == 0 && (opt = getopt_long(argc, argv, ":", options, NULL)) != -1)
                switch (opt) {
                case OPT_USER:
                        c->user = true;
                        break;
                case OPT_SYSTEM:
                        c->system = true;
                        break;
                case OPT_SOCKET:
                        r = tdm_config_set_string(&c->socket, optarg);
                        break;
                case OPT_BUS:
                        r = tdm_config_set_string(&c->bus, optarg);
                        break;
                case OPT_MODEL:
                        r = tdm_config_strv_add(&c->models, optarg, strlen(optarg));
                        break;
                case OPT_CONFIG:
                        r = tdm_config_set_string(&c->file, optarg);
                        break;
                case OPT_CHECK:
                        c->check = true;
                        break;
                case OPT_VERSION:
                        c->version = true;
                        break;
                case OPT_HELP:
                        c->help = true;
                        break;
                case ':':
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s needs a value; see tandemd --help",
                                             argv[optind - 1]);
                default:
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s is not a flag of tandemd; see tandemd --help",
                                             argv[optind > 0 ? optind - 1 : 0]);
                }
        if (r < 0)
                return tdm_error_set(err, r, "out of memory");
        if (optind < argc)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "tandemd takes no argument \"%.100s\"; see tandemd --help",
                                     argv[optind]);
        if (c->user && c->system)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "--user and --system exclude each other");
        if (c->bus && strcmp(c->bus, "session") != 0 && strcmp(c->bus, "system") != 0 && strcmp(c->bus, "none") != 0 &&
            !strchr(c->bus, ':'))
                return tdm_error_set(
                        err, TDM_E_BAD_REQUEST,
                        "--bus \"%.60s\" is none of session, system, none, and no address (unix:path=…) either",
                        c->bus);
        if (c->socket && !c->socket[0])
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "--socket needs a path");
        return 0;
}

static int default_socket(struct tdm_config *c, struct tdm_error *err)
{
        char path[4096];
        int r;

        if (c->socket)
                return 0;
        if (c->system)
                snprintf(path, sizeof(path), "/run/tandem/socket");
        else if (getenv("LISTEN_FDS") && !getenv("XDG_RUNTIME_DIR"))
                path[0] = '\0'; /* the service manager has opened the socket */
        else if (geteuid() == 0 && !c->user && !c->check && !getenv("XDG_RUNTIME_DIR"))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "root has to say whom to serve: --system everybody, --user root alone");
        else if ((r = tdm_user_socket(path, sizeof(path), !c->check)) == -ENOENT)
                snprintf(path, sizeof(path),
                         "/run/tandem/socket"); /* root without a login session; clients look there */
        else if (r != 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "no place for the socket: XDG_RUNTIME_DIR is not set, as in a shell of su or "
                                     "cron, and /tmp/tandem-%u cannot be used: %s; give --socket PATH",
                                     (unsigned)geteuid(), r == -EPERM ? "it is another user's" : strerror(-r));
        return tdm_config_set_string(&c->socket, path);
}

int tdm_config_load(struct tdm_config *c, int argc, char **argv, struct tdm_error *err)
{
        _cleanup_(freep) char *socket = NULL;
        int r;

        c->argc = argc;
        c->argv = argv;
        r = read_flags(c, argc, argv, err);
        if (r != 0 || c->help || c->version)
                return r;
        socket = steal_ptr(&c->socket); /* the flag wins over the file */
        r = tdm_config_read_default_files(c, err);
        if (r == 0)
                r = tdm_config_read_environment(c, err);
        if (r != 0)
                return r;
        if (socket) {
                free(c->socket);
                c->socket = steal_ptr(&socket);
        }
        /* These limits depend on each other. The smallest one counts, so that a single key can be set alone. */
        c->max_rows = TDM_MAX(c->max_rows, TDM_MAX(c->prefill_rows, c->max_sequences));
        c->max_jobs_per_user = TDM_MIN(c->max_jobs_per_user, c->max_jobs);
        return default_socket(c, err);
}

int tdm_config_load_again(const struct tdm_config *old, struct tdm_config *ret, struct tdm_error *err)
{
        int r = tdm_config_init(ret);

        if (r == 0)
                r = tdm_config_load(ret, old->argc, old->argv, err);
        return r == -ENOMEM ? tdm_error_set(err, r, "out of memory") : r;
}
