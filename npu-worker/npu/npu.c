/* Opening an NPU and keeping it going: see npu.h. Products are in product.c. */
#include "npu-worker/npu/private.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include "common/log.h"
#include "npu-worker/manifest/files.h"
#include "npu-worker/xrt/load.h"

#ifndef TDM_NPU_PROGRAMS_DIR
#define TDM_NPU_PROGRAMS_DIR "/usr/share/tandem/npu"
#endif
#define BUDGET_SHARE 4u /* of the machine's memory, one part in this many */
#define SLICE_MS 50u    /* of waiting, between two beats of the heart */
#define LIMIT_MS 5000u  /* the driver's watchdog speaks after 2 s: who is silent this long will not speak */
#define MAX_TRIES 4u
#define EMULATED_PROGRAMS "../lib/npu-emulated/programs"

/* The names of devices, and the names of their sets of programs. */
static const struct {
        const char *part, *generation;
} generations[] = {
        { "Phoenix", "phoenix" }, { "Hawk", "phoenix" },  { "npu1", "phoenix" },
        { "Strix", "strix" },     { "Krackan", "strix" }, { "npu4", "strix" },
};

void tdm_npu_leave(const struct tdm_npu *npu, const char *what)
{
        tdm_log_error("the NPU cannot go on: %s; this process leaves for a new one", what);
        /* No destructor may run: XRT's would free a run that has not finished, and abort. */
        _exit(EXIT_FAILURE);
}

int tdm_npu_xrt_error(const struct tdm_npu *npu, int r, struct tdm_error *err, const char *what)
{
        const char *words = npu->xrt->error();

        return tdm_error_set(err, r, "%s: %s%s%s", what, strerror(-r), words[0] ? ": " : "", words);
}

/* ---- opening ---- */

/* AMD's driver library maps its heap locked, so that a small limit shows as a mapping that fails. */
#define HEAP_BYTES (UINT64_C(64) << 20)

static int no_device(struct tdm_npu *npu, int r, struct tdm_error *err)
{
        char what[256];

        if ((r != -EAGAIN && r != -ENOMEM) || npu->memlock_bytes >= HEAP_BYTES)
                return tdm_npu_xrt_error(npu, r, err,
                                         "XRT opens no NPU (is there one, is its driver amdxdna loaded, may this "
                                         "user open /dev/accel/accel0?)");
        snprintf(what, sizeof(what),
                 "this process may lock %llu MiB, and AMD's driver library locks a heap of 64 MiB "
                 "(LimitMEMLOCK=; see tandem doctor)",
                 (unsigned long long)npu->memlock_bytes >> 20);
        return tdm_npu_xrt_error(npu, r, err, what);
}

static int generation_of(struct tdm_npu *npu, bool emulated, const char **ret)
{
        char name[128];

        *ret = NULL;
        if (emulated) {
                *ret = "emulated";
                return 0;
        }
        if (npu->xrt->device_name(npu->device, name, sizeof(name)) < 0)
                return 0; /* what the set was built for is then believed */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(generations); i++)
                if (strstr(name, generations[i].part))
                        *ret = generations[i].generation;
        return 0;
}

static int load_programs(struct tdm_npu *npu, const struct tdm_npu_config *config, struct tdm_error *err)
{
        _cleanup_(freep) void *image = NULL;
        const char *generation;
        char path[4096];
        size_t size;
        int r;

        r = generation_of(npu, config->emulated, &generation);
        if (r != 0)
                return r;
        if (config->programs) {
                r = snprintf(path, sizeof(path), "%s", config->programs) < (int)sizeof(path) ? 0 : -ENAMETOOLONG;
        } else if (config->emulated) {
                r = tdm_xrt_program_path(EMULATED_PROGRAMS, path, sizeof(path));
        } else if (!generation) {
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "this NPU is of a generation that is not known here; "
                                     "npu-programs = DIRECTORY in tandem.conf names a set of programs for it");
        } else {
                snprintf(path, sizeof(path), TDM_NPU_PROGRAMS_DIR "/%s", generation);
        }
        if (r < 0)
                return tdm_error_set(err, r, "path of the NPU programs: %s", strerror(-r));
        r = tdm_npu_manifest_load(path, generation, &npu->manifest, err);
        if (r != 0)
                return r;

        snprintf(path, sizeof(path), "%s/%s", npu->manifest->directory, npu->manifest->xclbin);
        r = tdm_npu_read_file(path, TDM_XCLBIN_MAX_BYTES, &image, &size, err);
        if (r == 0)
                r = tdm_xclbin_check(image, size, path, err);
        if (r != 0)
                return r;
        r = npu->xrt->device_load(npu->device, image, size);
        if (r < 0) {
                char what[320];

                snprintf(what, sizeof(what), "the NPU does not take %.250s (built for another device?)", path);
                return tdm_npu_xrt_error(npu, r, err, what);
        }
        return 0;
}

/* All instruction files of the type: read now, since files may be out of reach when a model comes. */
static int load_instructions(struct tdm_npu *npu, struct tdm_error *err)
{
        for (uint32_t i = 0; i < npu->manifest->n_programs; i++) {
                const struct tdm_npu_program *p = &npu->manifest->programs[i];
                struct tdm_npu_instructions *to = &npu->instructions[i];
                char path[512];
                size_t size;
                int r;

                if (p->op != TDM_NPU_GEMM && p->op != TDM_NPU_GEMV && p->op != TDM_NPU_ATTENTION)
                        continue;
                snprintf(path, sizeof(path), "%s/%s", npu->manifest->directory, p->instructions);
                r = tdm_npu_read_file(path, TDM_NPU_MAX_INSTRUCTIONS, &to->words, &size, err);
                if (r != 0)
                        return r;
                if (size % 4 != 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "%s has %zu bytes, not a number of 32-bit words (not an "
                                             "instruction file?)",
                                             path, size);
                to->n_words = (uint32_t)(size / 4);
        }
        return 0;
}

static int context_new(struct tdm_npu *npu, struct tdm_error *err)
{
        int r = npu->xrt->context_new(npu->device, npu->manifest->kernel, &npu->context);
        char what[128];

        if (r < 0) {
                npu->context = NULL;
                snprintf(what, sizeof(what), "the NPU gives no context for kernel %s", npu->manifest->kernel);
                return tdm_npu_xrt_error(npu, r, err, what);
        }
        for (unsigned arg = 0; arg < TDM_ARRAY_SIZE(npu->groups); arg++) {
                if (arg != TDM_NPU_ARG_INSTRUCTIONS && arg < TDM_NPU_ARG_DATA)
                        continue;
                r = npu->xrt->context_group(npu->context, arg);
                if (r < 0)
                        return tdm_npu_xrt_error(npu, r, err,
                                                 "the kernel does not have the arguments of an NPU program");
                npu->groups[arg] = (unsigned)r;
        }
        return 0;
}

int tdm_npu_open(struct tdm_npu **ret, const struct tdm_npu_config *config, struct tdm_error *err)
{
        struct tdm_npu *npu = calloc(1, sizeof(*npu));
        struct rlimit locked;
        struct sysinfo info;
        int r;

        if (!npu)
                return tdm_error_set(err, -ENOMEM, "no memory for the NPU");
        npu->heartbeat = config->heartbeat;
        npu->budget_bytes = config->budget_bytes;
        /* Asked now: the sandbox will not let us. */
        npu->memlock_bytes = UINT64_MAX;
        if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
                npu->memlock_bytes = locked.rlim_cur;
        if (npu->budget_bytes == 0 && sysinfo(&info) == 0)
                npu->budget_bytes = (uint64_t)info.totalram * info.mem_unit / BUDGET_SHARE;
        r = tdm_xrt_load(config->emulated, &npu->xrt, err);
        if (r == 0) {
                r = npu->xrt->device_open(0, &npu->device);
                if (r < 0) {
                        npu->device = NULL;
                        r = no_device(npu, r, err);
                }
        }
        if (r == 0)
                r = load_programs(npu, config, err);
        if (r == 0)
                r = load_instructions(npu, err);
        if (r == 0)
                r = context_new(npu, err);
        if (r != 0) {
                tdm_npu_close(npu);
                return r;
        }
        *ret = npu;
        return 0;
}

void tdm_npu_close(struct tdm_npu *npu)
{
        if (!npu)
                return;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(npu->instructions); i++) {
                if (npu->instructions[i].buffer)
                        npu->xrt->buffer_free(npu->instructions[i].buffer);
                free(npu->instructions[i].words);
        }
        if (npu->context)
                npu->xrt->context_free(npu->context);
        if (npu->device)
                npu->xrt->device_close(npu->device);
        free(npu->manifest);
        free(npu);
}

/* ---- buffers and contexts ---- */

int tdm_npu_buffer(struct tdm_npu *npu, uint64_t bytes, unsigned arg, struct tdm_xrt_buffer **ret, void **ret_map,
                   struct tdm_error *err)
{
        struct tdm_xrt_buffer *buffer;
        char what[128];
        int r;

        bytes = TDM_ALIGN_UP(bytes, UINT64_C(4096));
        if (bytes > npu->budget_bytes - TDM_MIN(npu->used_bytes, npu->budget_bytes))
                return tdm_error_set(err, TDM_E_NO_MEMORY,
                                     "the NPU's budget of %llu MiB has no room for %llu bytes more "
                                     "(npu-memory in tandem.conf raises it)",
                                     (unsigned long long)(npu->budget_bytes >> 20), (unsigned long long)bytes);
        r = npu->xrt->buffer_new(npu->device, bytes,
                                 arg == TDM_NPU_ARG_INSTRUCTIONS ? TDM_XRT_INSTRUCTIONS : TDM_XRT_DATA,
                                 npu->groups[arg], &buffer);
        if (r < 0) {
                snprintf(what, sizeof(what), "no NPU buffer of %llu bytes (RLIMIT_MEMLOCK too small?)",
                         (unsigned long long)bytes);
                return tdm_npu_xrt_error(npu, r, err, what);
        }
        *ret_map = npu->xrt->buffer_map(buffer);
        if (!*ret_map) {
                npu->xrt->buffer_free(buffer);
                return tdm_npu_xrt_error(npu, -ENOMEM, err, "an NPU buffer cannot be mapped");
        }
        npu->used_bytes += bytes;
        *ret = buffer;
        return 0;
}

void tdm_npu_buffer_free(struct tdm_npu *npu, struct tdm_xrt_buffer *buffer, uint64_t bytes)
{
        if (!buffer)
                return;
        npu->xrt->buffer_free(buffer);
        npu->used_bytes -= TDM_ALIGN_UP(bytes, UINT64_C(4096));
}

int tdm_npu_instructions(struct tdm_npu *npu, const struct tdm_npu_program *program, struct tdm_npu_instructions **ret,
                         struct tdm_error *err)
{
        struct tdm_npu_instructions *i = &npu->instructions[program - npu->manifest->programs];
        void *map;
        int r;

        if (!i->buffer) {
                r = tdm_npu_buffer(npu, (uint64_t)i->n_words * 4, TDM_NPU_ARG_INSTRUCTIONS, &i->buffer, &map, err);
                if (r != 0)
                        return r;
                memcpy(map, i->words, (size_t)i->n_words * 4);
                r = npu->xrt->buffer_to_device(i->buffer, (size_t)i->n_words * 4);
                if (r < 0)
                        return tdm_npu_xrt_error(npu, r, err, "instructions do not reach the NPU");
        }
        *ret = i;
        return 0;
}

void tdm_npu_renew_context(struct tdm_npu *npu, const char *reason)
{
        struct tdm_error err = {};
        int r;

        tdm_log_warning("the NPU's context is made anew: %s", reason);
        npu->counters.n_contexts++;
        for (struct tdm_npu_product *p = npu->products; p; p = p->next)
                tdm_npu_product_free_runs(p);
        for (struct tdm_npu_block *b = npu->blocks; b; b = tdm_npu_block_next(b))
                tdm_npu_block_free_runs(b);
        npu->xrt->context_free(npu->context);
        r = context_new(npu, &err);
        for (struct tdm_npu_product *p = npu->products; p && r == 0; p = p->next)
                r = tdm_npu_product_make_runs(p, &err);
        for (struct tdm_npu_block *b = npu->blocks; b && r == 0; b = tdm_npu_block_next(b))
                r = tdm_npu_block_make_runs(b, &err);
        if (r != 0)
                tdm_npu_leave(npu, err.message);
}

/* ---- commands ---- */

int tdm_npu_run_new(struct tdm_npu *npu, const struct tdm_npu_program *program, struct tdm_xrt_run **ret,
                    struct tdm_error *err)
{
        const struct tdm_xrt_front *xrt = npu->xrt;
        struct tdm_npu_instructions *instructions = NULL;
        int r = tdm_npu_instructions(npu, program, &instructions, err);

        if (r != 0)
                return r;
        r = xrt->run_new(npu->context, ret);
        if (r < 0)
                return tdm_npu_xrt_error(npu, r, err, "no command for the NPU");
        r = xrt->run_set_number(*ret, TDM_NPU_ARG_OPCODE, TDM_NPU_OPCODE_RUN, 8);
        if (r == 0)
                r = xrt->run_set_buffer(*ret, TDM_NPU_ARG_INSTRUCTIONS, instructions->buffer);
        if (r == 0)
                r = xrt->run_set_number(*ret, TDM_NPU_ARG_WORDS, instructions->n_words, 4);
        return r < 0 ? tdm_npu_xrt_error(npu, r, err, "an NPU command does not take its instructions") : 0;
}

const char *tdm_npu_execute(struct tdm_npu *npu, struct tdm_xrt_run *const *runs, uint32_t n, bool *lost)
{
        int state = TDM_XRT_RUNNING, r = npu->xrt->submit(npu->context, runs, n);

        *lost = true;
        if (r > 0)
                npu->counters.n_submissions += (uint64_t)r;
        /* Also after a failure: commands before it may be running. */
        for (uint32_t waited_ms = 0; state == TDM_XRT_RUNNING && waited_ms < LIMIT_MS; waited_ms += SLICE_MS) {
                state = npu->xrt->wait(npu->context, runs, n, SLICE_MS);
                atomic_fetch_add_explicit(npu->heartbeat, 1, memory_order_relaxed);
        }
        if (state == TDM_XRT_RUNNING)
                tdm_npu_leave(npu, "a command neither ends nor is ended by the driver");
        if (state < 0)
                tdm_npu_leave(npu, "the state of a command cannot be had");
        if (r < 0)
                return "a command cannot be sent";
        switch (state) {
        case TDM_XRT_DONE:
                npu->counters.n_commands += n;
                return NULL;
        case TDM_XRT_ERROR:
                *lost = false;
                return "a command ended with an error";
        case TDM_XRT_TIMEOUT:
                return "a command took too long";
        default:
                return "commands are aborted";
        }
}

void tdm_npu_try_again(struct tdm_npu *npu, const char *why, bool lost, unsigned n_tries)
{
        if (n_tries == MAX_TRIES)
                tdm_npu_leave(npu, why);
        npu->counters.n_retries++;
        /* An error that comes back is not of the command alone. */
        if (lost || n_tries > 1)
                tdm_npu_renew_context(npu, why);
}

const struct tdm_npu_manifest *tdm_npu_manifest(const struct tdm_npu *npu)
{
        return npu->manifest;
}

const struct tdm_npu_counters *tdm_npu_counters(const struct tdm_npu *npu)
{
        return &npu->counters;
}

const char *tdm_npu_flavour(const struct tdm_npu *npu)
{
        return npu->xrt->flavour;
}

uint64_t tdm_npu_memlock(const struct tdm_npu *npu)
{
        return npu->memlock_bytes;
}

uint64_t tdm_npu_budget(const struct tdm_npu *npu)
{
        return npu->budget_bytes;
}

uint64_t tdm_npu_budget_left(const struct tdm_npu *npu)
{
        return npu->budget_bytes - TDM_MIN(npu->used_bytes, npu->budget_bytes);
}
