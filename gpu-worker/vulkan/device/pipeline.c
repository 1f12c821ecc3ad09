/* Kernels: one row of the table for each shader, one pipeline for each set of specialization constants that a model
 * needs. All are compiled when a model is loaded. */
#include <assert.h>
#include <stdarg.h>

#include "engine/host/kernels.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/device/gpu-private.h"
#include "spirv.h"

static_assert(TDM_VK_ACT_F32 == TDM_ACT_F32 && TDM_VK_ACT_I8 == TDM_ACT_I8 && TDM_VK_ACT_I16 == TDM_ACT_I16 &&
                      TDM_VK_ACT_F16 == TDM_N_ACTS && TDM_VK_ACT_NONE == TDM_VK_N_ACTS,
              "shaders and host name activations alike");
#define IS_ALIKE(name, type, kind) &&TDM_VK_##type == TDM_TYPE_##type
static_assert(TDM_VK_F32 == TDM_TYPE_F32 && TDM_VK_F16 == TDM_TYPE_F16 && TDM_VK_BF16 == TDM_TYPE_BF16 &&
                      TDM_VK_Q4_0 == TDM_TYPE_Q4_0 &&
                      TDM_VK_Q8_0 == TDM_TYPE_Q8_0 TDM_SUBBLOCK_TYPES_OF_GPUS(IS_ALIKE) TDM_SUBBLOCK_GRIDS(IS_ALIKE),
              "shaders and host name types alike");
static_assert(TDM_VK_KV_F16 == TDM_KV_F16 && TDM_VK_KV_F32 == TDM_KV_F32 && TDM_VK_KV_Q8_0 == TDM_KV_Q8_0 &&
                      TDM_VK_PAGE_TOKENS == TDM_KV_PAGE_TOKENS && TDM_VK_SPAN == TDM_ATTENTION_SPAN,
              "shaders and host see one cache");

struct shader {
        const char *name;
        const uint32_t *code, *end;
};
#define SHADER_CODE(name, symbol)                                                                                      \
        {                                                                                                              \
                name, tdm_spirv_##symbol, tdm_spirv_##symbol##_end                                                     \
        }
#define SHADER(number, name, symbol) [TDM_VK_##number] = SHADER_CODE(name, symbol),
static const struct shader shaders[TDM_VK_N_SHADERS] = {
#include "gpu-worker/vulkan/shaders/common/kernels.def"
};
#undef SHADER
/* The same kernels for weights of the types of engine/weights/subblock.h. */
static const struct shader subblock_shaders[TDM_VK_N_SHADERS] = {
        [TDM_VK_MATMUL_INT8_ANY] = SHADER_CODE("matmul-int8-any-subblock", matmul_int8_any_subblock),
        [TDM_VK_MATVEC_F16] = SHADER_CODE("matvec-f16-subblock", matvec_f16_subblock),
        [TDM_VK_MATMUL_F16] = SHADER_CODE("matmul-f16-subblock", matmul_f16_subblock),
        [TDM_VK_MATMUL_F16_WIDE] = SHADER_CODE("matmul-f16-wide-subblock", matmul_f16_wide_subblock),
        [TDM_VK_MATVEC_F16_EXPERTS] = SHADER_CODE("matvec-f16-subblock-experts", matvec_f16_subblock_experts),
        [TDM_VK_MATMUL_F16_EXPERTS] = SHADER_CODE("matmul-f16-subblock-experts", matmul_f16_subblock_experts),
        [TDM_VK_MATMUL_F16_WIDE_EXPERTS] =
                SHADER_CODE("matmul-f16-wide-subblock-experts", matmul_f16_wide_subblock_experts),
};

/* The same where no kernel waits for another (common.glsl). */
static const struct shader unchained_shaders[TDM_VK_N_SHADERS] = {
        [TDM_VK_NORM] = SHADER_CODE("norm", norm_unchained),
        [TDM_VK_MATVEC] = SHADER_CODE("matvec", matvec_unchained),
        [TDM_VK_MATVEC_GELU] = SHADER_CODE("matvec-gelu", matvec_gelu_unchained),
        [TDM_VK_MATVEC_SUBBLOCK] = SHADER_CODE("matvec-subblock", matvec_subblock_unchained),
        [TDM_VK_ATTEND] = SHADER_CODE("attend", attend_unchained),
        [TDM_VK_ROUTER] = SHADER_CODE("router", router_unchained),
        [TDM_VK_MATVEC_EXPERTS] = SHADER_CODE("matvec-experts", matvec_experts_unchained),
};

/* matvec-f16.comp for several rows: of weights as above, and of those of sub-blocks. */
static const struct shader rows_shaders[2] = {
        SHADER_CODE("matvec-f16-rows", matvec_f16_rows),
        SHADER_CODE("matvec-f16-rows-subblock", matvec_f16_rows_subblock),
};

struct tdm_vk_code (*tdm_vk_emulated_code)(enum tdm_vk_shader shader, bool subblock);

static const struct shader *shader_of(const struct tdm_vk_device *device, enum tdm_vk_shader shader,
                                      const uint32_t *constants)
{
        bool subblock = subblock_shaders[shader].code && tdm_subblock_type(TDM_VK_FORM_TYPE(constants[0]));

        if (unchained_shaders[shader].code && !tdm_vk_chain_wanted(device))
                return &unchained_shaders[shader];
        if (shader == TDM_VK_MATVEC_F16 && TDM_VK_MATVEC_F16_ROWS(constants[3]) > 1)
                return &rows_shaders[subblock];
        return subblock ? &subblock_shaders[shader] : &shaders[shader];
}

static struct tdm_vk_pipeline *find_pipeline(struct tdm_vk_device *device, enum tdm_vk_shader shader,
                                             const uint32_t *constants)
{
        for (unsigned i = 0; i < device->n_pipelines; i++)
                if (device->pipelines[i].shader == shader &&
                    memcmp(device->pipelines[i].constants, constants, sizeof(device->pipelines[i].constants)) == 0)
                        return &device->pipelines[i];
        return NULL;
}

struct tdm_vk_pipeline *tdm_vk_pipeline_get(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                            uint32_t c1, uint32_t c2, uint32_t c3)
{
        struct tdm_vk_pipeline *pipeline = find_pipeline(device, shader, (const uint32_t[]){ c0, c1, c2, c3 });

        if (pipeline && pipeline->pipeline)
                return pipeline;
        device->missing = (struct tdm_vk_pipeline){ .shader = shader, .constants = { c0, c1, c2, c3 } };
        snprintf(device->missing.name, sizeof(device->missing.name), "%s-%u-%u-%u-%u",
                 shader_of(device, shader, device->missing.constants)->name, c0, c1, c2, c3);
        return &device->missing;
}

struct tdm_vk_pipeline *tdm_vk_pipeline_missing(struct tdm_vk_device *device, const char *format, ...)
{
        va_list args;

        device->missing = (struct tdm_vk_pipeline){ .shader = TDM_VK_N_SHADERS };
        va_start(args, format);
        vsnprintf(device->missing.name, sizeof(device->missing.name), format, args);
        va_end(args);
        return &device->missing;
}

int tdm_vk_pipelines_check(struct tdm_vk_device *device, struct tdm_error *err)
{
        int r = 0;

        if (device->missing.name[0])
                r = tdm_error_set(err, TDM_E_DEVICE_FAULT, "vulkan device: the kernel %s was not compiled at load",
                                  device->missing.name);
        device->missing = (struct tdm_vk_pipeline){ 0 };
        return r;
}

struct tdm_vk_pipeline *tdm_vk_pipeline_compiled(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                                 uint32_t c1, uint32_t c2, uint32_t c3)
{
        struct tdm_vk_pipeline *pipeline = find_pipeline(device, shader, (const uint32_t[]){ c0, c1, c2, c3 });

        return pipeline && pipeline->pipeline ? pipeline : NULL;
}

struct tdm_vk_pipeline *tdm_vk_pipeline_proven(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                               uint32_t c1, uint32_t c2, uint32_t c3)
{
        struct tdm_vk_pipeline *pipeline = tdm_vk_pipeline_compiled(device, shader, c0, c1, c2, c3);

        return pipeline && pipeline->proven ? pipeline : NULL;
}

void tdm_vk_matrix_tile(const struct tdm_vk_pipeline *pipeline, uint32_t *ret_panels, uint32_t *ret_rows)
{
        bool wide = pipeline->shader == TDM_VK_MATMUL_INT8_WIDE;
        const uint32_t shape = pipeline->constants[2];

        if (pipeline->shader == TDM_VK_MATMUL_INT8_ANY) {
                uint32_t row_groups = TDM_VK_TILES_ROW_GROUPS(shape),
                         out_groups = pipeline->constants[3] / TDM_VK_TILES_SUBGROUP(shape) / row_groups;

                *ret_panels = out_groups * TDM_VK_TILES_OUTS(shape) * TDM_VK_TILES_N(shape) / TDM_PANEL_ROWS;
                *ret_rows = row_groups * TDM_VK_TILES_ROWS(shape) * TDM_VK_TILES_M(shape);
                return;
        }
        *ret_panels = wide ? 8 : pipeline->constants[3];
        *ret_rows = wide ? pipeline->constants[2] / 4 : pipeline->constants[2] * 8;
}

static VkResult compile_pipeline(struct tdm_vk_device *device, enum tdm_vk_shader shader, const uint32_t *constants,
                                 VkPipeline *ret)
{
        const struct shader *own = shader_of(device, shader, constants);
        bool emulated = device->units.emulated && subblock_shaders[shader].code;
        struct tdm_vk_code code =
                emulated ? tdm_vk_emulated_code(shader, own == &subblock_shaders[shader] || own == &rows_shaders[1]) :
                           (struct tdm_vk_code){ own->code, (size_t)(own->end - own->code) * sizeof(*own->code) };
        VkSpecializationMapEntry entries[TDM_VK_N_CONSTANTS];
        const VkSpecializationInfo specialization = { TDM_VK_N_CONSTANTS, entries,
                                                      TDM_VK_N_CONSTANTS * sizeof(uint32_t), constants };
        const VkShaderModuleCreateInfo module_info = { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                                       .codeSize = code.size_bytes,
                                                       .pCode = code.words };
        VkComputePipelineCreateInfo info = {
                .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                .stage = { .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                           .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                           .pName = "main",
                           .pSpecializationInfo = &specialization },
                .layout = device->layout,
        };
        const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup = {
                .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
                .requiredSubgroupSize = TDM_VK_TILES_SUBGROUP(constants[2]),
        };
        VkResult r;

        if (shader == TDM_VK_MATMUL_INT8_ANY && !emulated) {
                info.stage.pNext = &subgroup;
                info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
        }
        for (uint32_t i = 0; i < TDM_VK_N_CONSTANTS; i++)
                entries[i] = (VkSpecializationMapEntry){ i, i * (uint32_t)sizeof(uint32_t), sizeof(uint32_t) };
        r = device->vk.CreateShaderModule(device->vk.device, &module_info, NULL, &info.stage.module);
        if (r != VK_SUCCESS)
                return r;
        r = device->vk.CreateComputePipelines(device->vk.device, device->kept.cache, 1, &info, NULL, ret);
        device->vk.DestroyShaderModule(device->vk.device, info.stage.module, NULL);
        return r;
}

/* Compiles kernels that were only put down so far. Each thread takes the next one. */
struct compile_job {
        struct tdm_vk_device *device;
        unsigned waiting[TDM_VK_MAX_PIPELINES];
        VkResult results[TDM_VK_MAX_PIPELINES];
};

static void compile_one(void *arg, unsigned chunk, unsigned thread)
{
        struct compile_job *job = arg;
        struct tdm_vk_pipeline *p = &job->device->pipelines[job->waiting[chunk]];

        job->results[chunk] = compile_pipeline(job->device, p->shader, p->constants, &p->pipeline);
        if (job->results[chunk] != VK_SUCCESS)
                p->pipeline = VK_NULL_HANDLE;
        atomic_fetch_add_explicit(job->device->heartbeat, 1, memory_order_relaxed);
}

static int compile_error(const struct tdm_vk_pipeline *p, VkResult result, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_DEVICE_FAULT, "vulkan device: the driver cannot compile the kernel %s: %s",
                             p->name, tdm_vk_result_name(result));
}

int tdm_vk_pipelines_compile(struct tdm_vk_device *device, struct tdm_error *err)
{
        struct compile_job job = { .device = device };
        unsigned n = 0;
        int r = 0;

        device->deferring = false;
        for (unsigned i = 0; i < device->n_pipelines; i++)
                if (!device->pipelines[i].pipeline)
                        job.waiting[n++] = i;
        tdm_pool_run(device->threads, n, compile_one, &job);
        for (unsigned i = 0; i < n; i++)
                if (job.results[i] == VK_SUCCESS)
                        device->counters.pipelines++;
                else if (r == 0 && !tdm_vk_matrix_kernel(device->pipelines[job.waiting[i]].shader))
                        r = compile_error(&device->pipelines[job.waiting[i]], job.results[i], err);
        return r;
}

void tdm_vk_pipelines_forget(struct tdm_vk_device *device, unsigned first)
{
        for (unsigned i = first; i < device->n_pipelines; i++)
                if (device->pipelines[i].pipeline)
                        device->vk.DestroyPipeline(device->vk.device, device->pipelines[i].pipeline, NULL);
        device->n_pipelines = first;
}

int tdm_vk_pipeline_need(struct tdm_vk_device *device, enum tdm_vk_shader shader,
                         const uint32_t constants[TDM_VK_N_CONSTANTS], struct tdm_error *err)
{
        struct tdm_vk_pipeline *p;
        VkResult r;

        p = find_pipeline(device, shader, constants);
        if (p && (p->pipeline || device->deferring))
                return 0;
        if (!p && device->n_pipelines == TDM_VK_MAX_PIPELINES)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "vulkan device: models of too many different shapes were loaded; restart "
                                     "the worker");
        if (!p) {
                p = &device->pipelines[device->n_pipelines++];
                *p = (struct tdm_vk_pipeline){ .shader = shader };
                memcpy(p->constants, constants, sizeof(p->constants));
                snprintf(p->name, sizeof(p->name), "%s-%u-%u-%u-%u", shader_of(device, shader, constants)->name,
                         constants[0], constants[1], constants[2], constants[3]);
        }
        if (device->deferring)
                return 0;
        r = compile_pipeline(device, shader, constants, &p->pipeline);
        if (r != VK_SUCCESS) {
                p->pipeline = VK_NULL_HANDLE;
                return compile_error(p, r, err);
        }
        device->counters.pipelines++;
        atomic_fetch_add_explicit(device->heartbeat, 1, memory_order_relaxed);
        return 0;
}

void tdm_vk_pipelines_deinit(struct tdm_vk_device *device)
{
        for (unsigned i = 0; i < device->n_pipelines; i++)
                if (device->pipelines[i].pipeline)
                        device->vk.DestroyPipeline(device->vk.device, device->pipelines[i].pipeline, NULL);
        device->n_pipelines = 0;
}
