/* The configuration file. inih parses the lines, and a table says what each key means. inih cuts lines that are longer
 * than its buffer, and does not say which line a key came from, so this file reads and counts the lines. */
#include "daemon/service/config-private.h"
#include "common/cpus.h"

#include <ini.h>
#include <inttypes.h>
#include "common/log.h"

enum kind {
        KIND_NUMBER,
        KIND_BYTES,
        KIND_STRING,
        KIND_DIRS,
        KIND_PRECISION,
        KIND_KV_TYPE,
        KIND_PLACEMENT,
        KIND_SPECULATION,
        KIND_DRAFTS,
        KIND_CPUS,
        KIND_SWITCH,
        KIND_SECONDS,
        KIND_LOG,
        KIND_NPU,
        KIND_GPU,
        KIND_NPU_FORMAT,
        KIND_ACTIVATIONS,
        KIND_STORE
};

static const struct key {
        const char *section, *name;
        enum kind kind;
        size_t offset;
        uint64_t min, max;
} keys[] = {
        { "daemon", "log", KIND_LOG, offsetof(struct tdm_config, log_level), 0, 0 },
        { "daemon", "socket", KIND_STRING, offsetof(struct tdm_config, socket), 0, 0 },
        { "daemon", "models", KIND_DIRS, offsetof(struct tdm_config, model_dirs), 0, 0 },
        { "daemon", "default-model", KIND_STRING, offsetof(struct tdm_config, default_model), 0, 0 },
        { "daemon", "max-jobs", KIND_NUMBER, offsetof(struct tdm_config, max_jobs), 1, 65536 },
        { "daemon", "max-jobs-per-user", KIND_NUMBER, offsetof(struct tdm_config, max_jobs_per_user), 1, 65536 },
        { "daemon", "max-running-per-user", KIND_NUMBER, offsetof(struct tdm_config, max_running_per_user), 0, 65536 },
        { "daemon", "max-tokens-per-user", KIND_NUMBER, offsetof(struct tdm_config, max_tokens_per_user), 0,
          UINT32_MAX },
        { "daemon", "gateway-user", KIND_STRING, offsetof(struct tdm_config, gateway_user), 0, 0 },
        { "engine", "threads", KIND_NUMBER, offsetof(struct tdm_config, threads), 0, TDM_CONFIG_MAX_THREADS },
        { "engine", "precision", KIND_PRECISION, offsetof(struct tdm_config, precision), 0, 0 },
        { "engine", "kv-type", KIND_KV_TYPE, offsetof(struct tdm_config, kv_type), 0, 0 },
        { "engine", "placement", KIND_PLACEMENT, offsetof(struct tdm_config, placement), 0, 0 },
        { "engine", "speculation", KIND_SPECULATION, offsetof(struct tdm_config, speculation), 0, 0 },
        { "engine", "draft-max", KIND_NUMBER, offsetof(struct tdm_config, draft_max), 1, TDM_MAX_GUESSES },
        { "engine", "draft", KIND_DRAFTS, offsetof(struct tdm_config, drafts), 0, 0 },
        { "engine", "activations", KIND_ACTIVATIONS, offsetof(struct tdm_config, activations), 0, 0 },
        { "engine", "kv-memory", KIND_BYTES, offsetof(struct tdm_config, kv_bytes), 0, UINT64_C(1) << 40 },
        { "engine", "idle-unload", KIND_SECONDS, offsetof(struct tdm_config, idle_unload_s), 0, UINT64_C(365) * 86400 },
        { "engine", "prefix-cache", KIND_SWITCH, offsetof(struct tdm_config, prefix_cache), 0, 0 },
        { "engine", "prefix-store", KIND_STORE, offsetof(struct tdm_config, prefix_store), 0, TDM_CONFIG_MAX_STORE },
        { "engine", "max-rows", KIND_NUMBER, offsetof(struct tdm_config, max_rows), 1, TDM_MAX_STEP_ROWS },
        { "engine", "prefill-rows", KIND_NUMBER, offsetof(struct tdm_config, prefill_rows), 0, TDM_MAX_STEP_ROWS },
        { "engine", "max-sequences", KIND_NUMBER, offsetof(struct tdm_config, max_sequences), 1, TDM_MAX_STEP_SEQS },
        { "engine", "steps-in-flight", KIND_NUMBER, offsetof(struct tdm_config, steps_in_flight), 0, TDM_STEP_SLOTS },
        { "engine", "npu", KIND_NPU, offsetof(struct tdm_config, requested[TDM_WORKER_NPU]), 0, 0 },
        { "engine", "npu-programs", KIND_STRING, offsetof(struct tdm_config, npu_programs), 0, 0 },
        { "engine", "npu-memory", KIND_BYTES, offsetof(struct tdm_config, npu_bytes), 0, UINT64_C(1) << 44 },
        { "engine", "npu-format", KIND_NPU_FORMAT, offsetof(struct tdm_config, npu_format), 0, 0 },
        { "engine", "gpu", KIND_GPU, offsetof(struct tdm_config, requested[TDM_WORKER_GPU]), 0, 0 },
        { "engine", "gpu-device", KIND_STRING, offsetof(struct tdm_config, gpu_device), 0, 0 },
        { "engine", "gpu-memory", KIND_BYTES, offsetof(struct tdm_config, gpu_bytes), 0, UINT64_C(1) << 44 },
        { "engine", "npu-cpus", KIND_CPUS, offsetof(struct tdm_config, cpus[TDM_WORKER_NPU]), 0, 0 },
        { "engine", "gpu-cpus", KIND_CPUS, offsetof(struct tdm_config, cpus[TDM_WORKER_GPU]), 0, 0 },
        { "engine", "hang-ms", KIND_NUMBER, offsetof(struct tdm_config, hang_ms), 0, TDM_CONFIG_MAX_HANG_MS },
};

struct reader {
        struct tdm_config *config;
        const char *path;
        FILE *file;
        unsigned line;
        int r;
        struct tdm_error *err;
};

static char *read_line(char *buffer, int size, void *stream)
{
        struct reader *reader = stream;
        size_t len;

        if (reader->r != 0 || !fgets(buffer, size, reader->file))
                return NULL;
        reader->line++;
        len = strlen(buffer);
        if (len > 0 && buffer[len - 1] != '\n' && !feof(reader->file)) {
                reader->r = tdm_error_set(reader->err, TDM_E_BAD_REQUEST, "%s:%u: the line is longer than %d bytes",
                                          reader->path, reader->line, size - 2);
                return NULL;
        }
        return buffer;
}

static int parse_bytes(const char *value, uint64_t max, uint64_t *ret, char *why, size_t why_size)
{
        size_t len = strlen(value);
        unsigned shift = 0;
        char digits[32];
        uint64_t n;

        if (len > 0)
                switch (value[len - 1]) {
                case 'K':
                        shift = 10;
                        break;
                case 'M':
                        shift = 20;
                        break;
                case 'G':
                        shift = 30;
                        break;
                }
        len -= shift != 0;
        if (len >= sizeof(digits)) {
                snprintf(why, why_size, "\"%.60s\" is not a size", value);
                return -EINVAL;
        }
        memcpy(digits, value, len);
        digits[len] = '\0';
        if (tdm_config_parse_number(digits, 0, max >> shift, &n, why, why_size) < 0)
                return -EINVAL;
        *ret = n << shift;
        return 0;
}

static int parse_seconds(const char *value, uint64_t max, uint32_t *ret, char *why, size_t why_size)
{
        static const struct {
                const char *name;
                uint32_t seconds;
        } units[] = { { "", 1 }, { "s", 1 }, { "min", 60 }, { "h", 3600 } };
        size_t len = strspn(value, "0123456789");
        char digits[32];
        uint64_t n;

        if (strcmp(value, "off") == 0) {
                *ret = 0;
                return 0;
        }
        for (size_t i = 0; len > 0 && len < sizeof(digits) && i < TDM_ARRAY_SIZE(units); i++) {
                if (strcmp(value + len, units[i].name) != 0)
                        continue;
                memcpy(digits, value, len);
                digits[len] = '\0';
                if (tdm_config_parse_number(digits, 0, max / units[i].seconds, &n, why, why_size) < 0)
                        return -EINVAL;
                *ret = (uint32_t)n * units[i].seconds;
                return 0;
        }
        snprintf(why, why_size, "\"%.60s\" is no time like 30s, 10min, 2h, nor off", value);
        return -EINVAL;
}

static int add_dirs(char ***dirs, const char *value)
{
        int r = 0;

        while (*value && r == 0) {
                size_t len = strcspn(value, ":");

                if (len > 0)
                        r = tdm_config_strv_add(dirs, value, len);
                value += len + (value[len] == ':');
        }
        return r;
}

/* Pairs MODEL=DRAFT, with commas or spaces between them. */
static int set_drafts(char ***drafts, const char *value, char *why, size_t why_size)
{
        int r = 0;

        tdm_config_strv_clear(drafts);
        for (value += strspn(value, ", "); *value && r == 0; value += strspn(value, ", ")) {
                size_t len = strcspn(value, ", ");
                const char *equals = memchr(value, '=', len);

                if (!equals || equals == value || equals + 1 == value + len ||
                    memchr(equals + 1, '=', len - (size_t)(equals + 1 - value))) {
                        snprintf(why, why_size, "\"%.*s\" is not MODEL=DRAFT", (int)TDM_MIN(len, (size_t)60), value);
                        return -EINVAL;
                }
                r = tdm_config_strv_add(drafts, value, len);
                value += len;
        }
        return r;
}

/* The configuration has the choices of a job. */
static const struct tdm_job_option *const speculation_option = &tdm_job_options[TDM_JOB_OPTION_speculation];

static int speculation_from_name(const char *value)
{
        int i = tdm_range_choice(&speculation_option->range, value);

        return i < 0 ? -EINVAL : i;
}

/* names: "auto, xrt, host" */
static int set_word(char **to, const char *value, const char *names, char *why, size_t why_size)
{
        size_t len = strlen(value);

        for (const char *name = names; name; name = strchr(name, ' '), name += name ? 1 : 0)
                if (len > 0 && strncmp(name, value, len) == 0 && (name[len] == ',' || name[len] == 0))
                        return tdm_config_set_string(to, value);
        snprintf(why, why_size, "\"%.60s\" is not one of %s", value, names);
        return -EINVAL;
}

int tdm_config_parse_store(const char *value, uint64_t max, uint64_t *ret, char *why, size_t why_size)
{
        if (strcmp(value, "auto") == 0)
                *ret = TDM_CONFIG_AUTO_STORE;
        else if (strcmp(value, "off") == 0)
                *ret = 0;
        else
                return parse_bytes(value, max, ret, why, why_size);
        return 0;
}

/* -EINVAL with a sentence in why, -ENOMEM. */
static int set_value(struct tdm_config *c, const struct key *key, const char *value, char *why, size_t why_size)
{
        void *to = (char *)c + key->offset;
        cpu_set_t set;
        uint64_t n;
        int r;

        switch (key->kind) {
        case KIND_NUMBER:
                r = tdm_config_parse_number(value, key->min, key->max, &n, why, why_size);
                if (r == 0)
                        *(uint32_t *)to = (uint32_t)n;
                return r;
        case KIND_BYTES:
                return parse_bytes(value, key->max, to, why, why_size);
        case KIND_STRING:
                if (value[0])
                        return tdm_config_set_string(to, value);
                snprintf(why, why_size, "needs a value");
                return -EINVAL;
        case KIND_DIRS:
                tdm_config_strv_clear(to);
                return add_dirs(to, value);
        case KIND_PRECISION:
                r = tdm_precision_from_name(value);
                snprintf(why, why_size, "\"%.60s\" is not one of default, precise, f32", value);
                if (r >= 0)
                        *(enum tdm_precision *)to = (enum tdm_precision)r;
                return TDM_MIN(r, 0);
        case KIND_KV_TYPE:
                r = tdm_kv_type_from_name(value);
                snprintf(why, why_size, "\"%.60s\" is not one of f16, f32, q8_0", value);
                if (r >= 0)
                        *(enum tdm_kv_type *)to = (enum tdm_kv_type)r;
                return TDM_MIN(r, 0);
        case KIND_PLACEMENT:
                r = tdm_config_placement(value);
                snprintf(why, why_size, "\"%.60s\" is not one of measured, split, npu, gpu", value);
                if (r >= 0)
                        *(enum tdm_placement *)to = (enum tdm_placement)r;
                return TDM_MIN(r, 0);
        case KIND_SPECULATION:
                r = speculation_from_name(value);
                snprintf(why, why_size, "\"%.60s\" is not one of auto, off, lookup, draft", value);
                if (r >= 0)
                        *(enum tdm_speculation *)to = (enum tdm_speculation)r;
                return TDM_MIN(r, 0);
        case KIND_DRAFTS:
                return set_drafts(to, value, why, why_size);
        case KIND_ACTIVATIONS:
                r = tdm_activations_from_name(value);
                snprintf(why, why_size, "\"%.60s\" is not one of auto, dma-buf, memfd", value);
                if (r >= 0)
                        *(enum tdm_activations *)to = (enum tdm_activations)r;
                return TDM_MIN(r, 0);
        case KIND_LOG:
                r = tdm_log_level_from_name(value);
                snprintf(why, why_size, "\"%.60s\" is not one of error, warning, info, debug", value);
                if (r >= 0)
                        *(enum tdm_log_level *)to = (enum tdm_log_level)r;
                return TDM_MIN(r, 0);
        case KIND_NPU:
                return set_word(to, value, "auto, required, xrt, emulated, host, off", why, why_size);
        case KIND_GPU:
                return set_word(to, value, "auto, required, vulkan, host, off", why, why_size);
        case KIND_NPU_FORMAT:
                return set_word(to, value, TDM_CONFIG_NPU_FORMATS, why, why_size);
        case KIND_CPUS:
                r = tdm_cpus_parse(value, &set, why, why_size);
                return r < 0 ? r : tdm_config_set_string(to, value);
        case KIND_SECONDS:
                return parse_seconds(value, key->max, to, why, why_size);
        case KIND_STORE:
                return tdm_config_parse_store(value, key->max, to, why, why_size);
        case KIND_SWITCH:
                if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0) {
                        *(bool *)to = value[1] == 'n';
                        return 0;
                }
                snprintf(why, why_size, "\"%.60s\" is neither on nor off", value);
                return -EINVAL;
        }
        return -EINVAL;
}

static bool is_section(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(keys); i++)
                if (strcmp(keys[i].section, name) == 0)
                        return true;
        return false;
}

static int on_key(void *userdata, const char *section, const char *name, const char *value)
{
        struct reader *reader = userdata;
        char why[160];
        int r;

        if (reader->r != 0)
                return 0;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(keys); i++) {
                if (strcmp(keys[i].section, section) != 0 || strcmp(keys[i].name, name) != 0)
                        continue;
                r = set_value(reader->config, &keys[i], value, why, sizeof(why));
                if (r == -ENOMEM)
                        reader->r = tdm_error_set(reader->err, r, "out of memory");
                else if (r < 0)
                        reader->r = tdm_error_set(reader->err, TDM_E_BAD_REQUEST, "%s:%u: %s: %s", reader->path,
                                                  reader->line, name, why);
                return reader->r == 0;
        }
        if (is_section(section))
                tdm_log_warning("%s:%u: key %s in section [%s] is unknown; ignored", reader->path, reader->line, name,
                                section);
        else
                tdm_log_warning("%s:%u: key %s: there is no section [%s]; ignored", reader->path, reader->line, name,
                                section);
        reader->config->n_warnings++;
        return 1;
}

int tdm_config_read_file(struct tdm_config *c, const char *path, struct tdm_error *err)
{
        _cleanup_(fclosep) FILE *f = fopen(path, "re");
        struct reader reader = { .config = c, .path = path, .file = f, .err = err };
        int r;

        if (!f)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot read configuration %s: %s", path, strerror(errno));
        r = ini_parse_stream(read_line, &reader, on_key, &reader);
        if (reader.r != 0)
                return reader.r;
        if (ferror(f))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot read configuration %s: it is not a readable file",
                                     path);
        if (r > 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%d: neither a [section] nor a key = value", path, r);
        if (r < 0)
                return tdm_error_set(err, -ENOMEM, "cannot read configuration %s", path);
        return 0;
}

static void print_strv(char *const *texts, const char *between, FILE *to)
{
        for (char *const *text = texts; text && *text; text++)
                fprintf(to, "%s%s", text == texts ? "" : between, *text);
}

static void print_value(const struct tdm_config *c, const struct key *key, FILE *to)
{
        const void *from = (const char *)c + key->offset;
        enum tdm_placement placement;

        switch (key->kind) {
        case KIND_NUMBER:
                fprintf(to, "%" PRIu32, *(const uint32_t *)from);
                return;
        case KIND_BYTES:
                fprintf(to, "%" PRIu64, *(const uint64_t *)from);
                return;
        case KIND_STORE:
                if (*(const uint64_t *)from == TDM_CONFIG_AUTO_STORE)
                        fputs("auto", to);
                else
                        fprintf(to, *(const uint64_t *)from ? "%" PRIu64 : "off", *(const uint64_t *)from);
                return;
        case KIND_NPU:
        case KIND_GPU:
                fputs(*(char *const *)from ? *(char *const *)from : "auto", to);
                return;
        case KIND_NPU_FORMAT:
                fputs(*(char *const *)from ? *(char *const *)from : "bf16", to);
                return;
        case KIND_STRING:
        case KIND_CPUS:
                fputs(*(char *const *)from ? *(char *const *)from : "", to);
                return;
        case KIND_DIRS:
                print_strv(*(char **const *)from, ":", to);
                return;
        case KIND_DRAFTS:
                print_strv(*(char **const *)from, ", ", to);
                return;
        case KIND_PRECISION:
                fputs(tdm_precision_name(*(const enum tdm_precision *)from), to);
                return;
        case KIND_KV_TYPE:
                fputs(tdm_kv_type_name(tdm_precision_kv_type(c->precision, *(const enum tdm_kv_type *)from)), to);
                return;
        case KIND_SPECULATION:
                fputs(speculation_option->range.choices[*(const enum tdm_speculation *)from], to);
                return;
        case KIND_ACTIVATIONS:
                fputs(tdm_activations_name(*(const enum tdm_activations *)from), to);
                return;
        case KIND_PLACEMENT:
                placement = *(const enum tdm_placement *)from;
                fputs(placement == TDM_PLACEMENT_ANY ? "measured" : tdm_placement_name(placement), to);
                return;
        case KIND_SECONDS:
                fprintf(to, *(const uint32_t *)from ? "%us" : "off", *(const uint32_t *)from);
                return;
        case KIND_SWITCH:
                fputs(*(const bool *)from ? "on" : "off", to);
                return;
        case KIND_LOG:
                fputs(tdm_log_level_name(*(const enum tdm_log_level *)from), to);
                return;
        }
}

static const char *const live_keys[] = { "log", "models", "default-model", "max-jobs-per-user" }; /* reload.h */

static char *value_text(const struct tdm_config *c, const struct key *key)
{
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        if (!f)
                return NULL;
        print_value(c, key, f);
        fclose(f);
        return text;
}

void tdm_config_log_changes(const struct tdm_config *old, const struct tdm_config *now)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(keys); i++) {
                _cleanup_(freep) char *was = value_text(old, &keys[i]), *is = value_text(now, &keys[i]);
                bool live = false;

                if (!was || !is || strcmp(was, is) == 0)
                        continue;
                for (size_t k = 0; k < TDM_ARRAY_SIZE(live_keys); k++)
                        live |= strcmp(keys[i].name, live_keys[k]) == 0;
                tdm_log_info("configuration: %s = %s, was %s; takes effect %s", keys[i].name, is[0] ? is : "(none)",
                             was[0] ? was : "(none)", live ? "now" : "at the next start");
        }
}

void tdm_config_print(const struct tdm_config *c, FILE *to)
{
        const char *section = "";

        for (size_t i = 0; i < TDM_ARRAY_SIZE(keys); i++) {
                const void *from = (const char *)c + keys[i].offset;
                bool is_text = keys[i].kind == KIND_STRING || keys[i].kind == KIND_CPUS || keys[i].kind == KIND_DIRS ||
                               keys[i].kind == KIND_DRAFTS;

                if (strcmp(keys[i].section, section) != 0) {
                        section = keys[i].section;
                        fprintf(to, "[%s]\n", section);
                }
                /* These keys do not take an empty text, so an unset one is shown as a comment. */
                fprintf(to, "%s%s = ", is_text && !*(void *const *)from ? "# " : "", keys[i].name);
                print_value(c, &keys[i], to);
                fputc('\n', to);
        }
}
