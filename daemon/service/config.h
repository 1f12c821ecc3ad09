/* What tandemd was told: defaults, then the configuration file, then the environment, then the command line.
 *
 * The file (INI): --config, else /etc/tandem/tandem.conf (--system) or $XDG_CONFIG_HOME/tandem/tandem.conf, where they
 * exist; then the drop-ins FILE.d/<name>.conf (--system: of /usr/lib/tandem/tandem.conf.d too), sorted by name.
 *   [daemon]  log = error|warning|info|debug
 *             socket = PATH              models = DIR:DIR…          default-model = NAME
 *             max-jobs = N               max-jobs-per-user = N
 *             max-running-per-user = N   max-tokens-per-user = N (0: as many as there is room for)
 *             gateway-user = NAME|UID    (tandem-http; of --system: who may speak for others)
 *   [engine]  threads = N (0: all)       precision = default|precise|f32
 *             placement = measured|split|npu|gpu (measured)
 *             speculation = auto|off|lookup|draft (auto)  draft-max = 1…16
 *             draft = MODEL=DRAFT, MODEL=DRAFT… (which model guesses for which; none)
 *             kv-memory = BYTES[K|M|G] (0: a quarter of what is free)
 *             max-rows = N               prefill-rows = N       max-sequences = N
 *             steps-in-flight = 0…4 (0: what the placement needs)              hang-ms = N
 *             kv-type = f16|f32|q8_0     (precision f32 has f32 always)
 *             prefix-cache = on|off      (beginnings that were read before are not read again)
 *             prefix-store = auto|off|BYTES[K|M|G]  (what of them is kept on disk, for each user; auto)
 *             activations = auto|dma-buf|memfd  (how hidden rows get to a GPU)
 *             idle-unload = off|N[s|min|h]  (models that were not used for this long leave memory)
 *             npu-cpus, gpu-cpus = LIST of CPUs for that worker, like 0,2-5 (none: all)
 * An unknown key or section is warned of, a value out of range is an error; both name file and line. A key that is
 * given again replaces what it had, lists included. */
#ifndef TDM_DAEMON_SERVICE_CONFIG_H
#define TDM_DAEMON_SERVICE_CONFIG_H

#include "common/dmabuf.h"
#include "common/log.h"
#include "daemon/jobs/job.h"
#include "engine/device/device.h"

struct tdm_config {
        bool system, user; /* as the flags say */
        bool help, version;
        bool check; /* --check-config */
        char *socket;
        char *bus;
        char *file;          /* --config */
        char **models;       /* --model, NULL-terminated */
        char **model_dirs;   /* of the file, NULL-terminated; may be NULL */
        char *default_model; /* name; NULL: tale */
        char **files;        /* that were read, in order; may be NULL */
        uint32_t n_warnings;
        int argc; /* borrowed, to read everything again */
        char **argv;
        enum tdm_log_level log_level;
        uint32_t max_jobs;
        uint32_t max_jobs_per_user;
        uint32_t max_running_per_user; /* 0: no cap of its own */
        uint32_t max_tokens_per_user;  /* prompts and asked-for answers of all jobs of a user; 0: no cap */
        char *gateway_user;            /* name or number; NULL: TDM_CONFIG_GATEWAY_USER */
        uint32_t threads;
        enum tdm_precision precision;
        enum tdm_kv_type kv_type;     /* 0: f16 */
        enum tdm_placement placement; /* TDM_PLACEMENT_ANY: measured */
        enum tdm_speculation speculation;
        uint32_t draft_max;
        char **drafts; /* "MODEL=DRAFT", NULL-terminated; may be NULL */
        uint64_t kv_bytes;
        enum tdm_activations activations;
        bool prefix_cache;
        uint64_t prefix_store;  /* bytes on disk for each user; 0: off, TDM_CONFIG_AUTO_STORE: as tandemd thinks */
        uint32_t idle_unload_s; /* 0: off */
        uint32_t max_rows;
        uint32_t prefill_rows; /* 0: as server.c has it */
        uint32_t max_sequences;
        uint32_t steps_in_flight; /* 0: what the placement needs */
        uint32_t hang_ms;
        char *requested[TDM_N_WORKERS]; /* TANDEM_NPU, TANDEM_GPU; NULL: auto */
        char *cpus[TDM_N_WORKERS];      /* checked by tdm_cpus_parse(); NULL: all */
        char *npu_programs;             /* directory of NPU programs; NULL: the installed ones */
        char *npu_format;               /* "bf16", "int8", "int4"; NULL: bf16 */
        uint64_t npu_bytes;             /* of the NPU's buffers; 0: a quarter of memory */
        char *gpu_device;               /* part of a GPU's name, or its number; NULL: the best */
        uint64_t gpu_bytes;             /* of a GPU's own memory; 0: what its driver gives */
};

#define TDM_CONFIG_AUTO_STORE UINT64_MAX
#define TDM_CONFIG_GATEWAY_USER "tandem-http" /* systemd/sysusers.conf */

int tdm_config_init(struct tdm_config *config); /* the defaults */
void tdm_config_deinit(struct tdm_config *config);

/* All three in order, then what follows from the whole (socket, limits that belong together). TDM_E_BAD_REQUEST: a
 * wrong flag or value. With help or version set, nothing but the flags has been looked at. */
int tdm_config_load(struct tdm_config *config, int argc, char **argv, struct tdm_error *err);

int tdm_config_read_file(struct tdm_config *config, const char *path, struct tdm_error *err);
/* The main file (NULL: none) and the drop-ins of these directories (NULL-terminated; a later one wins over an earlier
 * one where names are equal). */
int tdm_config_read_files(struct tdm_config *config, const char *main_path, const char *const *dirs,
                          struct tdm_error *err);
/* The same sources once more, into a new configuration (initialised here, the caller's to deinit even after an error).
 */
int tdm_config_load_again(const struct tdm_config *old, struct tdm_config *ret, struct tdm_error *err);
/* Says in the log what is different, and whether it takes effect now or at the next start. */
void tdm_config_log_changes(const struct tdm_config *old, const struct tdm_config *now);
/* The resulting configuration, as a configuration file. */
void tdm_config_print(const struct tdm_config *config, FILE *to);
int tdm_config_read_environment(struct tdm_config *config, struct tdm_error *err);
extern const char tdm_config_help[];

#endif
