/* Compiles every kernel that models would use, by the device's own code, with a Vulkan driver whose GPU is not there
 * (Mesa's RADV with RADV_FORCE_FAMILY, or Intel's driver on its shim), and writes what the driver tells of each:
 * FOLDER/kernels.tsv has a line for each executable, FOLDER/NAME.isa its machine code. Nothing is executed: this says
 * what a compiler made, not what a GPU does with it.
 *
 * usage: compile-kernels [-d] [-p PRECISION] FOLDER MODEL…
 *   MODEL: FILE.gguf, or SIZE:TYPE[+MORE] as in bench-vulkan (4b:Q4_K+Q6_K: Q4_K_M's mixture), of which two layers and
 *   a part of the vocabulary are made; -d: the GPU has memory of its own
 *
 * Kernels for matrix units count as proven, so that what would be chosen is what is compiled. */
#include <unistd.h>

#include "gpu-worker/vulkan/device/gpu.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/vulkan.h"
#include "tests/golden/runner.h"
#include "tests/gpu-compilers/empty-device.h"

#define LAYERS 2u    /* one with a window, one without */
#define VOCAB 32768u /* an output matrix that is as much work for a GPU as the whole one */
#define POSITIONS 1024u
#define ROWS 512u
#define NAMES_MAX 4096u

static const char *folder;
static FILE *table;
static struct tdm_vk_device *device;
static char seen[NAMES_MAX][48];
static unsigned n_seen;

static _Noreturn void fail(const char *what, const char *why)
{
        fprintf(stderr, "compile-kernels: %s: %s\n", what, why);
        exit(1);
}

/* ---- what is told of a kernel ---- */

static void write_code(const char *name, const VkPipelineExecutableInfoKHR *which)
{
        VkPipelineExecutableInternalRepresentationKHR all[16];
        uint32_t n = TDM_ARRAY_SIZE(all);
        char path[4096];

        for (uint32_t i = 0; i < n; i++)
                all[i] = (VkPipelineExecutableInternalRepresentationKHR){
                        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR
                };
        if (empty_device_functions.representations(empty_device_functions.device, which, &n, all) < 0)
                fail(name, "the driver does not show its code");
        for (uint32_t i = 0; i < n; i++)
                all[i].pData = calloc(1, all[i].dataSize + 1);
        empty_device_functions.representations(empty_device_functions.device, which, &n, all);
        for (uint32_t i = 0; i < n; i++) {
                if (strstr(all[i].name, "ssembly")) {
                        FILE *f;

                        snprintf(path, sizeof(path), "%s/%s.%u.isa", folder, name, which->executableIndex);
                        f = fopen(path, "w");
                        if (!f || fputs(all[i].pData, f) < 0 || fclose(f) != 0)
                                fail(path, strerror(errno));
                }
                free(all[i].pData);
        }
}

static void write_kernel(const char *name, VkPipeline pipeline)
{
        const VkPipelineInfoKHR info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline };
        VkPipelineExecutablePropertiesKHR executables[8];
        uint32_t n = TDM_ARRAY_SIZE(executables);

        for (uint32_t i = 0; i < n; i++)
                executables[i] = (VkPipelineExecutablePropertiesKHR){
                        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR
                };
        if (empty_device_functions.properties(empty_device_functions.device, &info, &n, executables) < 0)
                fail(name, "the driver tells nothing of its kernels");
        for (uint32_t e = 0; e < n; e++) {
                const VkPipelineExecutableInfoKHR which = { .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                                            .pipeline = pipeline,
                                                            .executableIndex = e };
                VkPipelineExecutableStatisticKHR statistics[64];
                uint32_t n_statistics = TDM_ARRAY_SIZE(statistics);

                for (uint32_t i = 0; i < n_statistics; i++)
                        statistics[i] = (VkPipelineExecutableStatisticKHR){
                                .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR
                        };
                if (empty_device_functions.statistics(empty_device_functions.device, &which, &n_statistics,
                                                      statistics) < 0)
                        fail(name, "the driver has no statistics");
                fprintf(table, "kernel=%s\texecutable=%u\tsubgroup=%u", name, e, executables[e].subgroupSize);
                for (uint32_t i = 0; i < n_statistics; i++)
                        if (statistics[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR)
                                fprintf(table, "\t%s=%g", statistics[i].name, statistics[i].value.f64);
                        else
                                fprintf(table, "\t%s=%llu", statistics[i].name,
                                        (unsigned long long)statistics[i].value.u64);
                fprintf(table, "\n");
                write_code(name, &which);
        }
}

/* Those that are only measured (load/tune.c) are destroyed while a model is loaded, the others at the end. */
static void at_end_of(VkPipeline pipeline)
{
        const char *name = NULL;

        for (unsigned i = 0; device && i < device->n_pipelines; i++)
                if (device->pipelines[i].pipeline == pipeline)
                        name = device->pipelines[i].name;
        if (!name)
                return;
        for (unsigned i = 0; i < n_seen; i++)
                if (strcmp(seen[i], name) == 0)
                        return;
        if (n_seen == NAMES_MAX)
                fail(name, "too many kernels");
        snprintf(seen[n_seen++], sizeof(seen[0]), "%s", name);
        write_kernel(name, pipeline);
}

/* ---- proofs, which need a GPU that computes ---- */

static void believe(struct tdm_vk_pipeline *pipeline)
{
        if (pipeline && pipeline->pipeline && tdm_vk_matrix_kernel(pipeline->shader))
                pipeline->tried = pipeline->proven = true;
}

static int believe_all(struct tdm_vk_device *all)
{
        for (unsigned i = 0; i < all->n_pipelines; i++)
                believe(&all->pipelines[i]);
        return 0;
}

/* In place of the functions that proof.h declares, by --wrap. */
int __wrap_tdm_vk_prove(struct tdm_vk_device *of, struct tdm_error *err);     // NOLINT
int __wrap_tdm_vk_prove_f16(struct tdm_vk_device *of, struct tdm_error *err); // NOLINT
int __wrap_tdm_vk_prove_attend(struct tdm_vk_device *of, struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *many,
                               uint32_t heads, uint32_t many_rows, struct tdm_error *err); // NOLINT
int __wrap_tdm_vk_prove_rotating(struct tdm_vk_device *of, const struct tdm_vk_pipeline *rotate,
                                 const struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *rotating, uint32_t heads,
                                 struct tdm_error *err); // NOLINT

int __wrap_tdm_vk_prove(struct tdm_vk_device *of, struct tdm_error *err)
{
        (void)err;
        return believe_all(of);
}

int __wrap_tdm_vk_prove_f16(struct tdm_vk_device *of, struct tdm_error *err)
{
        (void)err;
        return believe_all(of);
}

int __wrap_tdm_vk_prove_attend(struct tdm_vk_device *of, struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *many,
                               uint32_t heads, uint32_t many_rows, struct tdm_error *err)
{
        (void)of, (void)heads, (void)many_rows, (void)err;
        believe(single);
        believe(many);
        return 0;
}

int __wrap_tdm_vk_prove_rotating(struct tdm_vk_device *of, const struct tdm_vk_pipeline *rotate,
                                 const struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *rotating, uint32_t heads,
                                 struct tdm_error *err)
{
        (void)of, (void)rotate, (void)single, (void)heads, (void)err;
        believe(rotating);
        return 0;
}

/* ---- models ---- */

static void load(const char *name, const uint8_t *weights, uint32_t input_bytes, enum tdm_precision precision)
{
        const struct tdm_hparams *hp = &tdm_weights_header(weights)->hparams;
        struct tdm_device_model_config config = {
                .weights = weights,
                .limits = { .max_rows = ROWS,
                            .max_seqs = 32,
                            .max_logits = TDM_MAX_STEP_LOGITS,
                            .n_tables = 32,
                            .table_entries = TDM_MIN(POSITIONS, hp->n_ctx) / TDM_KV_PAGE_TOKENS,
                            .input_bytes = input_bytes,
                            .vector_width = tdm_weights_header(weights)->recipe.pooling ? hp->d_model : 0 },
                .precision = precision,
        };
        const uint32_t pages = config.limits.n_tables * config.limits.table_entries;
        struct tdm_device_model *model;
        struct tdm_error err = {};

        if (tdm_kv_geometry_init(&config.kv, hp, tdm_precision_kv_type(precision, 0), pages, pages, 0) < 0)
                fail(name, "no cache has its sizes");
        if (tdm_vulkan_device_ops.model_load((struct tdm_device *)device, &config, &model, &err) != 0)
                fail(name, err.message);
        tdm_vulkan_device_ops.model_unload(model);
}

static uint32_t type_named(const char *name)
{
        for (uint32_t i = 0; i < TDM_TYPE_MXFP4 + 1; i++)
                if (tdm_type_info(i) && strcmp(tdm_type_info(i)->name, name) == 0)
                        return i;
        fail(name, "no such type");
}

static void load_named(const char *name, enum tdm_precision precision)
{
        char size[16], type[16], more[16];
        const char *dot = strrchr(name, '.');
        struct tdm_hparams hp;
        uint8_t *weights;
        int n;

        if (dot && strcmp(dot, ".gguf") == 0) {
                struct runner_model model;

                runner_model_load(&model, name);
                load(name, model.weights, model.input_bytes, precision);
                runner_model_unload(&model);
                return;
        }
        n = sscanf(name, "%15[^:]:%15[^+]+%15s", size, type, more);
        if (n < 2 || !random_model_hparams(size, &hp))
                fail(name, "no FILE.gguf, and no SIZE:TYPE[+MORE]");
        if (hp.n_layers > LAYERS) {
                memset(&hp.layers[LAYERS], 0, (hp.n_layers - LAYERS) * sizeof(hp.layers[0]));
                hp.n_layers = LAYERS;
                hp.layers[0].window = hp.window;
                hp.layers[1].window = 0;
        }
        hp.n_vocab = TDM_MIN(hp.n_vocab, VOCAB);
        weights = random_model_new_mixed(&hp, type_named(type), type_named(n == 3 ? more : type),
                                         type_named(n == 3 ? more : type));
        if (!weights)
                fail(name, "no such model can be made");
        load(name, weights, 0, precision);
        random_model_destroy(weights);
}

int main(int argc, char **argv)
{
        static _Atomic uint64_t heartbeat;
        const struct tdm_device_config config = { .heartbeat = &heartbeat };
        enum tdm_precision precision = TDM_PRECISION_DEFAULT;
        struct tdm_error err = {};
        char path[4096];
        int c;

        while ((c = getopt(argc, argv, "dp:")) != -1)
                if (c == 'd')
                        empty_device_type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
                else if (c == 'p' && tdm_precision_from_name(optarg) >= 0)
                        precision = (enum tdm_precision)tdm_precision_from_name(optarg);
                else
                        optind = argc;
        if (argc - optind < 2) {
                fprintf(stderr, "usage: compile-kernels [-d] [-p PRECISION] FOLDER MODEL…\n");
                return 2;
        }
        folder = argv[optind++];
        snprintf(path, sizeof(path), "%s/kernels.tsv", folder);
        table = fopen(path, "w");
        if (!table)
                fail(path, strerror(errno));
        setenv("MESA_SHADER_CACHE_DISABLE", "true", true);
        setenv("XDG_CACHE_HOME", folder, true);
        empty_device_destroys = at_end_of;
        if (tdm_vulkan_device_ops.open((struct tdm_device **)&device, &config, &err) != 0)
                fail("no device", err.message);
        printf("%s\n", tdm_vulkan_device_ops.describe((struct tdm_device *)device));
        for (int i = optind; i < argc; i++)
                load_named(argv[i], precision);
        tdm_vulkan_device_ops.close((struct tdm_device *)device);
        if (fclose(table) != 0)
                fail(path, strerror(errno));
        printf("%u kernels\n", n_seen);
        return 0;
}
