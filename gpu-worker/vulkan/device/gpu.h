/* One GPU: opening it, its memory, its compiled kernels, submissions. Everything that needs no model.
 *
 * gpu.c finds and opens it, submit.c submits and waits, buffer.c allocates and uploads, pipeline.c compiles kernels,
 * pipeline-cache.c keeps them on disk, matrix-units.c asks for cooperative matrices, heaps.c says which memory counts,
 * switches.c reads the environment, chain.c lets kernels follow each other without barriers. vk.c loads libvulkan.
 *
 * Not thread-safe: one thread opens, uses and closes a device; the device's own pool of threads copies and compiles.
 * Functions that return int return 0, a TDM_E_* outcome or -errno, and fill err then (NULL: the caller does not need
 * it). A fault of the device is TDM_E_DEVICE_FAULT and sets `lost`: the worker must be restarted. A kernel that cannot
 * be compiled, or was not, is TDM_E_DEVICE_FAULT alone. Sizes are in bytes, times in ns. */
#ifndef TDM_GPU_WORKER_VULKAN_DEVICE_GPU_H
#define TDM_GPU_WORKER_VULKAN_DEVICE_GPU_H

#include "common/pool.h"
#include "engine/device/device.h"
#include "gpu-worker/vulkan/device/vk.h"
#include "gpu-worker/vulkan/shaders/common/shared.h"
#include "gpu-worker/vulkan/shaders/common/shared-experts.h"
#include "gpu-worker/vulkan/shaders/common/shared-norm.h"
#include "gpu-worker/vulkan/shaders/common/shared-side.h"
#include "gpu-worker/vulkan/shaders/common/shared-streams.h"
#include "gpu-worker/vulkan/shaders/common/shared-registers.h"
#include "gpu-worker/vulkan/shaders/common/shared-tiles.h"

struct tdm_vk_device;

/* ---- buffer.c ---- */

enum tdm_vk_place {
        TDM_VK_DEVICE_MEMORY, /* not mapped */
        TDM_VK_SHARED_MEMORY, /* mapped, written by the host, read by the device; on the device where that can be */
        TDM_VK_HOST_MEMORY,   /* mapped, cached: read by the host too */
};

/* Owned by what embeds it: deinit frees the memory. All zero: no buffer. */
struct tdm_vk_buffer {
        VkBuffer buffer;
        VkDeviceMemory memory;
        VkDeviceAddress address;
        uint64_t size_bytes;
        uint64_t counted_bytes; /* in tdm_vk_device.memory.used_bytes */
        uint8_t *map;           /* NULL: not mapped */
};

/* what: for the message. TDM_E_NO_MEMORY with sizes. */
int tdm_vk_buffer_init(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint64_t size_bytes,
                       enum tdm_vk_place place, const char *what, struct tdm_error *err);
/* Uses host memory in place; base and size are multiples of device->memory.import_align. -EOPNOTSUPP where the driver
 * will not. */
int tdm_vk_buffer_import(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint8_t *base,
                         uint64_t size_bytes);
/* The same for a dma-buf of that size, which stays the caller's. -EOPNOTSUPP and what is in the way, a few words. */
int tdm_vk_buffer_import_dmabuf(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, int fd, uint64_t size_bytes,
                                const char **ret_why);
void tdm_vk_buffer_deinit(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer);
/* Memory of the device that is left, and that it has. */
void tdm_vk_memory_left(struct tdm_vk_device *device, uint64_t *ret_left, uint64_t *ret_total);
/* Copies n bytes from host memory into a device buffer, through the device's staging ring. `from` may change
 * afterwards. Kernels that are submitted later see the copy; the buffer is freed only after the device was waited for.
 */
int tdm_vk_upload(struct tdm_vk_device *device, struct tdm_vk_buffer *to, uint64_t offset, const uint8_t *from,
                  uint64_t n, struct tdm_error *err);

/* ---- switches.c ---- */

/* Variables of the environment, for tests and comparisons. docs/gpu.md says what each does. */
enum tdm_vk_switch {
        TDM_VK_SWITCH_DEVICE,
        TDM_VK_SWITCH_MEMORY,
        TDM_VK_SWITCH_KERNELS,
        TDM_VK_SWITCH_MATRICES,
        TDM_VK_SWITCH_CHAIN,
        TDM_VK_SWITCH_TUNE,
        TDM_VK_SWITCH_HALVES,
        TDM_VK_SWITCH_ROWS,
        TDM_VK_SWITCH_LOGITS,
        TDM_VK_SWITCH_SUBMISSION,
        TDM_VK_SWITCH_PIECE_KIB,
        TDM_VK_N_SWITCHES
};
const char *tdm_vk_switch_name(enum tdm_vk_switch which);
/* NULL: it is not set, or empty. */
const char *tdm_vk_switch(enum tdm_vk_switch which);
bool tdm_vk_switch_is(enum tdm_vk_switch which, const char *word);

/* ---- pipeline.c ---- */

#define SHADER(name, text, symbol) TDM_VK_##name,
enum tdm_vk_shader {
#include "gpu-worker/vulkan/shaders/common/kernels.def"
        TDM_VK_N_SHADERS
};
#undef SHADER
#define TDM_VK_N_CONSTANTS 4

static inline bool tdm_vk_experts_f16_kernel(enum tdm_vk_shader shader)
{
        return shader == TDM_VK_MATVEC_F16_EXPERTS || shader == TDM_VK_MATMUL_F16_EXPERTS ||
               shader == TDM_VK_MATMUL_F16_WIDE_EXPERTS;
}

/* For matrix units: only used where it is proven, and not missed where it cannot be compiled. */
static inline bool tdm_vk_matrix_kernel(enum tdm_vk_shader shader)
{
        return shader == TDM_VK_MATMUL_INT8 || shader == TDM_VK_MATMUL_INT8_WIDE || shader == TDM_VK_MATMUL_INT8_ANY ||
               shader == TDM_VK_MATVEC_F16 || shader == TDM_VK_MATMUL_F16 || shader == TDM_VK_MATMUL_F16_WIDE ||
               tdm_vk_experts_f16_kernel(shader) || shader == TDM_VK_ATTEND_F16 || shader == TDM_VK_ATTEND_F16_WIDE;
}

struct tdm_vk_pipeline {
        enum tdm_vk_shader shader;
        uint32_t constants[TDM_VK_N_CONSTANTS];
        VkPipeline pipeline;
        bool tried, proven; /* kernels for matrix units: whether it gives the bits of its reference on this device
                             * (proof/) */
        char name[64];      /* for profiles */
        uint64_t profile_n, profile_ns;
};
/* For tests: code in which matrix units are emulated (shaders/common/units-emulated.glsl, units-any.glsl), of a
 * MATVEC_F16, MATMUL_F16 or MATMUL_F16_WIDE, of one for experts, or of a MATMUL_INT8_ANY. Where it is set before a
 * device is opened that has no such units, the device uses it. */
struct tdm_vk_code {
        const uint32_t *words;
        size_t size_bytes;
};
extern struct tdm_vk_code (*tdm_vk_emulated_code)(enum tdm_vk_shader shader, bool subblock);
#define TDM_VK_MAX_PIPELINES 640u

/* Compiles where it is not there yet: at load, never in run(). */
int tdm_vk_pipeline_need(struct tdm_vk_device *device, enum tdm_vk_shader shader,
                         const uint32_t constants[TDM_VK_N_CONSTANTS], struct tdm_error *err);
/* Compiles all that were needed while device->deferring was set, on all threads, and ends that. Those that the driver
 * cannot compile can be needed again; the first is told of, where it is no kernel for matrix units. */
int tdm_vk_pipelines_compile(struct tdm_vk_device *device, struct tdm_error *err);
/* One that was needed before. All pipelines belong to the device. One that was not is told of by device->missing, whose
 * name is set, and what is returned has no pipeline: what would dispatch it must not. */
struct tdm_vk_pipeline *tdm_vk_pipeline_get(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                            uint32_t c1, uint32_t c2, uint32_t c3);
/* In place of one that no table knows: told of by device->missing under this name, and has no pipeline. */
struct tdm_vk_pipeline *tdm_vk_pipeline_missing(struct tdm_vk_device *device, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
/* Whether all that were asked for since the last check were there: 0 or TDM_E_DEVICE_FAULT, which names one. */
int tdm_vk_pipelines_check(struct tdm_vk_device *device, struct tdm_error *err);
/* One that the driver could compile; else NULL. */
struct tdm_vk_pipeline *tdm_vk_pipeline_compiled(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                                 uint32_t c1, uint32_t c2, uint32_t c3);
/* A kernel for matrix units, where it is proven; else NULL. */
struct tdm_vk_pipeline *tdm_vk_pipeline_proven(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                               uint32_t c1, uint32_t c2, uint32_t c3);
/* Panels and rows that one workgroup of a MATMUL_INT8, MATMUL_INT8_WIDE or MATMUL_INT8_ANY pipeline makes. */
void tdm_vk_matrix_tile(const struct tdm_vk_pipeline *pipeline, uint32_t *ret_panels, uint32_t *ret_rows);
/* Destroys those from the first-th on. None of them is in use. */
void tdm_vk_pipelines_forget(struct tdm_vk_device *device, unsigned first);

/* ---- pipeline-cache.c ---- */

/* The shape of a kernel for a single row, or for a few. kernels/tuned.c says what the numbers are. groups 0: the kernel
 * is not for rows of F16. All 0: the kernel is not used. */
struct tdm_vk_shape {
        uint8_t panels, ahead, sets, groups;
};

/* A kernel of a single row and the shape that was found best for matrices of these sizes; as it lies on disk. shader:
 * MATVEC or MATVEC_GELU; where act says that rows are F16 it is MATVEC_F16 that does the same, with this many groups,
 * panels, rounds (ahead) and sets. With TDM_VK_TUNED_ROWS: of this many rows; also MATMUL_F16, with panels and rounds,
 * or with TDM_VK_TUNED_GELU the same of gate and up. ATTEND_F16: whether a few rows are items of their own (panels
 * 1). */
#define TDM_VK_TUNED_ROWS(shader, rows) ((uint32_t)(shader) | ((rows)-1u) << 16)
#define TDM_VK_TUNED_SHADER(shader) ((shader)&0xffffu)
#define TDM_VK_TUNED_GELU (1u << 31)
struct tdm_vk_tuned {
        uint32_t shader, type, act, cols, n_panels;
        struct tdm_vk_shape shape;
};
#define TDM_VK_MAX_TUNED 512u

/* Keeps compiled kernels and tuned shapes. Never an error, since they only save time. */
void tdm_vk_cache_save(struct tdm_vk_device *device);

/* ---- gpu.c ---- */

#define TDM_VK_IN_FLIGHT 2u /* submissions */
#define TDM_VK_STAGES 5u
#define TDM_VK_STAGE_BYTES (UINT64_C(16) << 20)
#define TDM_VK_MAX_QUERIES 4096u

/* Since the device was opened: see struct tdm_vulkan_counters. */
struct tdm_vk_counters {
        uint64_t allocations, pipelines, recordings, submissions, hidden_copies, logit_blocks, kv_restored_bytes;
        uint64_t rows_spared;
};

/* What memory the device has, and how much of it is in use. */
struct tdm_vk_memory {
        VkPhysicalDeviceMemoryProperties properties;
        uint32_t heaps; /* heaps.h: those that count */
        bool is_shared; /* it has none of its own */
        uint64_t max_allocation;
        bool has_budget;
        uint64_t limit_bytes;  /* of the configuration; 0: none */
        uint64_t used_bytes;   /* of the device's memory */
        bool unified;          /* it is the host's */
        bool import;           /* and can be used in place: segments are */
        uint64_t import_align; /* 0: cannot */
        bool has_dmabuf;       /* VK_EXT_external_memory_dma_buf */
};

/* Kernels and shapes as they lie on disk (pipeline-cache.c). */
struct tdm_vk_kept {
        VkPipelineCache cache; /* NULL: none */
        int fd;                /* of its file; -1: none */
        size_t size_bytes;     /* that lie on disk */
        size_t loaded_bytes;   /* that lay there at the beginning */
        unsigned n_pipelines;  /* that the device had when it was last saved */
        unsigned n_tuned;      /* the same */
};

/* Matrix units that kernels can use. */
struct tdm_vk_usable_units {
        bool int8;     /* MATMUL_INT8 and MATMUL_INT8_WIDE */
        uint32_t any;  /* MATMUL_INT8_ANY: TDM_VK_TILES_UNIT; 0: none */
        bool f16;      /* kernels for rows of F16 */
        bool emulated; /* f16, by tdm_vk_emulated_code */
};

struct tdm_vk_device {
        struct tdm_device public;
        struct tdm_vk vk;
        VkPhysicalDevice physical;
        struct tdm_vk_memory memory;
        bool is_cpu; /* a CPU implementation: it needs the cores itself, and compiles slowly */
        /* A CPU implementation does without the kernels that only make a GPU faster. Tests have them all with
         * TANDEM_VULKAN_KERNELS=all. */
        bool few_kernels;
        /* A thread has at most 128 of 32 bits: Intel's GPUs, in their smallest subgroups. Tests have the kernels for
         * that with TANDEM_VULKAN_KERNELS=few-registers. Only without a chain. */
        bool few_registers;
        uint32_t max_groups_x;
        VkQueue queue;
        uint32_t queue_family;
        VkCommandPool pool;
        VkPipelineLayout layout;
        VkPhysicalDeviceProperties properties;
        struct tdm_vk_kept kept;
        struct tdm_vk_pipeline pipelines[TDM_VK_MAX_PIPELINES];
        unsigned n_pipelines;
        struct tdm_vk_pipeline missing; /* the last one that was asked for and is not there */
        struct tdm_vk_tuned tuned[TDM_VK_MAX_TUNED];
        unsigned n_tuned;
        bool deferring; /* kernels are put down, to be compiled together */
        /* [0]: for one submission at a time (tdm_vk_once_*, proofs); the others are the ring of uploads */
        struct tdm_vk_buffer stages[TDM_VK_STAGES];
        unsigned next_stage; /* of the ring */
        VkFence stage_fences[TDM_VK_STAGES];
        VkCommandBuffer stage_commands[TDM_VK_STAGES];
        bool stage_busy[TDM_VK_STAGES];
        VkFence fences[TDM_VK_IN_FLIGHT];
        bool lost; /* every later run() fails: the worker is to be restarted */
        VkQueryPool queries;
        float ns_per_tick;
        bool profiling;
        bool chained; /* kernels follow each other without barriers: chain.c */
        struct tdm_vk_usable_units units;
        struct tdm_pool *threads; /* copies and sampling */
        _Atomic uint64_t *heartbeat;
        struct tdm_vk_counters counters;
        char description[256];
        char numerics_id[256];
};

/* As tdm_vulkan_probe(). */
int tdm_vk_device_probe(const struct tdm_device_config *config, struct tdm_error *err);
/* Opens the GPU that the configuration or the environment names, else the best. sane: whether a shape that was read
 * from disk could have been found by measuring. The caller owns *ret, and sets its `public.ops`. */
int tdm_vk_device_open(struct tdm_vk_device **ret, const struct tdm_device_config *config,
                       bool (*sane)(const struct tdm_vk_tuned *tuned), struct tdm_error *err);
/* NULL: nothing. Models are unloaded before. */
void tdm_vk_device_close(struct tdm_vk_device *device);

/* ---- submit.c ---- */

/* Submits and waits, with a limit. 0 or TDM_E_DEVICE_FAULT, here and below. */
int tdm_vk_submit(struct tdm_vk_device *device, VkCommandBuffer commands, struct tdm_error *err);
/* The same in two halves, with time for other things between. `which` < TDM_VK_IN_FLIGHT: one submission each is under
 * way at a time; they are done in the order in which they began. */
int tdm_vk_submit_begin(struct tdm_vk_device *device, unsigned which, VkCommandBuffer commands, struct tdm_error *err);
int tdm_vk_submit_end(struct tdm_vk_device *device, unsigned which, struct tdm_error *err);
/* Commands that are recorded for one submission, into stage_commands[0], between the two; end() submits them and waits.
 * `what` is being done, for the error. */
int tdm_vk_once_begin(struct tdm_vk_device *device, VkCommandBuffer *ret, const char *what, struct tdm_error *err);
int tdm_vk_once_end(struct tdm_vk_device *device, const char *what, struct tdm_error *err);
/* One dispatch of x by y workgroups whose results the host then reads. */
int tdm_vk_once_dispatch(struct tdm_vk_device *device, const struct tdm_vk_pipeline *pipeline, const void *push,
                         uint32_t push_bytes, uint32_t x, uint32_t y, const char *what, struct tdm_error *err);
/* All memory, from what was written so in the stages before to what is read and written so in those behind. */
void tdm_vk_barrier(struct tdm_vk_device *device, VkCommandBuffer commands, VkPipelineStageFlags from,
                    VkAccessFlags written, VkPipelineStageFlags to, VkAccessFlags wanted);
/* Records the fault in device->lost and returns TDM_E_DEVICE_FAULT. */
int tdm_vk_fault(struct tdm_vk_device *device, const char *what, VkResult result, struct tdm_error *err);

/* ---- chain.c ---- */

bool tdm_vk_chain_wanted(const struct tdm_vk_device *device);
/* Sets device->chained where dispatches of any size can follow each other so. gelu: any kernel of that name. words:
 * device memory for TDM_VK_CHAIN_WORDS. */
int tdm_vk_chain_try(struct tdm_vk_device *device, const struct tdm_vk_pipeline *gelu,
                     const struct tdm_vk_buffer *words, struct tdm_error *err);
/* After a submission. gave_up: the word to which its recording copied chain word 0; not 0 is a fault. */
int tdm_vk_chain_check(struct tdm_vk_device *device, const volatile uint32_t *gave_up, struct tdm_error *err);

#endif
