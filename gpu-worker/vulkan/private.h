/* What the files of the vulkan device share. device.c opens a GPU; memory.c has its buffers; pipeline.c its kernels;
 * model.c loads a model; kv.c keeps the cache and its twin; step.c writes what shaders read about a step;
 * kernels.c, kernels-half.c and kernels-attend.c say which kernels a model wants; record.c turns blocks into command
 * buffers; run.c submits them and samples.
 *
 * Memory is either imported (unified memory: weights, cache and hidden rows are used where they lie in the shared
 * segments) or copied (a discrete GPU: weights are uploaded once, the cache lives on the device and is written behind
 * into its segment, hidden rows are copied where a block of another worker follows). */
#ifndef TDM_GPU_WORKER_VULKAN_PRIVATE_H
#define TDM_GPU_WORKER_VULKAN_PRIVATE_H

#include "engine/host/kernels.h"
#include "common/pool.h"
#include "engine/host/rope.h"
#include "gpu-worker/vulkan/shaders/shared.h"
#include "gpu-worker/vulkan/device/vk.h"
#include "gpu-worker/vulkan/vulkan.h"

/* ---- memory.c ---- */

enum tdm_vk_place {
        TDM_VK_DEVICE_MEMORY, /* not mapped */
        TDM_VK_SHARED_MEMORY, /* mapped, written by the host, read by the device; on the device where that can be */
        TDM_VK_HOST_MEMORY,   /* mapped, cached: read by the host too */
};

struct tdm_vk_buffer {
        VkBuffer buffer;
        VkDeviceMemory memory;
        VkDeviceAddress address;
        uint64_t size_bytes;
        uint64_t counted_bytes; /* in tdm_vk_device.memory_used */
        uint8_t *map;
};

struct tdm_vk_device;
/* what: for the message. TDM_E_NO_MEMORY with sizes. */
int tdm_vk_buffer_init(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint64_t size_bytes,
                       enum tdm_vk_place place, const char *what, struct tdm_error *err);
/* Uses host memory in place; base and size are multiples of device->import_align. -EOPNOTSUPP where the driver will
 * not. */
int tdm_vk_buffer_import(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, uint8_t *base,
                         uint64_t size_bytes);
/* The same for a dma-buf of that size, which stays the caller's. -EOPNOTSUPP and what is in the way, a few words. */
int tdm_vk_buffer_import_dmabuf(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer, int fd, uint64_t size_bytes,
                                const char **ret_why);
void tdm_vk_buffer_deinit(struct tdm_vk_device *device, struct tdm_vk_buffer *buffer);
/* Memory of the device that is left, and that it has. */
void tdm_vk_memory_left(struct tdm_vk_device *device, uint64_t *ret_left, uint64_t *ret_total);
/* Copies from host memory into a device buffer, through the device's staging ring. `from` may change afterwards;
 * kernels that are submitted later see it, and whoever frees the buffer waits for the device first. */
int tdm_vk_upload(struct tdm_vk_device *device, struct tdm_vk_buffer *to, uint64_t offset, const uint8_t *from,
                  uint64_t n, struct tdm_error *err);

/* ---- pipeline.c ---- */

enum tdm_vk_shader {
        TDM_VK_EMBED,
        TDM_VK_TURN,
        TDM_VK_NORM,
        TDM_VK_MATVEC,
        TDM_VK_MATGELU,   /* a single row's gate and up, and GELU after them */
        TDM_VK_MATVEC_K,  /* of the types of engine/weights/subblock.h */
        TDM_VK_MATDIRECT, /* the same bits for some rows at once, where the device has integer matrix units */
        TDM_VK_MATWIDE,   /* and for hundreds */
        TDM_VK_BOUND,
        TDM_VK_MATHALFSINGLE, /* a single row of f16, where the device has f16 matrix units */
        TDM_VK_MATHALF,       /* up to 32 */
        TDM_VK_MATHALFWIDE,   /* and hundreds */
        TDM_VK_ROTATE,
        TDM_VK_ATTEND,
        TDM_VK_ATTENDHALF,     /* of a single row, where the device has f16 matrix units */
        TDM_VK_ATTENDHALFWIDE, /* and of many */
        TDM_VK_MERGE,
        TDM_VK_GELU,
        TDM_VK_LOGITS, /* what the sampler wants to know of all of them */
        TDM_VK_GATHER, /* those that it wants to see */
        TDM_VK_N_SHADERS
};
#define TDM_VK_N_CONSTANTS 4

/* For matrix units: only used where it is proven, and not missed where it cannot be compiled. */
static inline bool tdm_vk_matrix_kernel(enum tdm_vk_shader shader)
{
        return shader == TDM_VK_MATDIRECT || shader == TDM_VK_MATWIDE || shader == TDM_VK_MATHALFSINGLE ||
               shader == TDM_VK_MATHALF || shader == TDM_VK_MATHALFWIDE || shader == TDM_VK_ATTENDHALF ||
               shader == TDM_VK_ATTENDHALFWIDE;
}

struct tdm_vk_pipeline {
        enum tdm_vk_shader shader;
        uint32_t constants[TDM_VK_N_CONSTANTS];
        VkPipeline pipeline;
        bool tried, proven; /* kernels for matrix units: whether it gives the bits of its reference on this device
                             * (prove.c, prove-half.c, prove-attend.c) */
        char name[32];      /* for profiles */
        uint64_t profile_n, profile_ns;
};
#define TDM_VK_MAX_PIPELINES 256u

/* Compiles where it is not there yet: at load, never in run(). */
int tdm_vk_pipeline_need(struct tdm_vk_device *device, enum tdm_vk_shader shader,
                         const uint32_t constants[TDM_VK_N_CONSTANTS], struct tdm_error *err);
/* Compiles all that were needed while device->deferring was set, on all threads, and ends that. Those that the driver
 * cannot compile can be needed again; the first is told of, where it is no kernel for matrix units. */
int tdm_vk_pipelines_compile(struct tdm_vk_device *device, struct tdm_error *err);
/* One that was needed before. */
struct tdm_vk_pipeline *tdm_vk_pipeline_get(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                            uint32_t c1, uint32_t c2, uint32_t c3);
/* One that the driver could compile; else NULL. */
struct tdm_vk_pipeline *tdm_vk_pipeline_compiled(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                                 uint32_t c1, uint32_t c2, uint32_t c3);
/* A kernel for matrix units, where it is proven; else NULL. */
struct tdm_vk_pipeline *tdm_vk_pipeline_proven(struct tdm_vk_device *device, enum tdm_vk_shader shader, uint32_t c0,
                                               uint32_t c1, uint32_t c2, uint32_t c3);
void tdm_vk_pipelines_deinit(struct tdm_vk_device *device);

/* From this one on: none is in use. */
void tdm_vk_pipelines_forget(struct tdm_vk_device *device, unsigned first);

/* ---- tune.c ---- */

/* Of a kernel of a single row: tune.c says what the numbers are. groups 0: of no kernel for rows of F16. */
struct tdm_vk_shape {
        uint8_t panels, ahead, sets, groups;
};

/* A kernel of a single row and the shape that was found best for matrices of these sizes; as it lies on disk. shader:
 * MATVEC or MATGELU; where act says that rows are F16 it is MATHALFSINGLE that does the same, with so many groups,
 * panels, rounds (ahead) and sets. */
struct tdm_vk_tuned {
        uint32_t shader, type, act, cols, n_panels;
        struct tdm_vk_shape shape;
};
#define TDM_VK_MAX_TUNED 128u

struct tdm_vk_matrix;
struct tdm_vk_model;
const struct tdm_vk_tuned *tdm_vk_tuned(const struct tdm_vk_device *device, uint32_t shader,
                                        const struct tdm_vk_matrix *matrix, uint32_t n_panels);
/* Whether it could have been found here. */
bool tdm_vk_tuned_sane(const struct tdm_vk_tuned *tuned);
/* Measures what the model has and the device does not know yet. Weights are on the device. */
int tdm_vk_tune(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- cache.c ---- */

/* Compiled kernels that were kept: never an error, since nothing depends on them but time. */
void tdm_vk_cache_open(struct tdm_vk_device *device);
void tdm_vk_cache_save(struct tdm_vk_device *device);
void tdm_vk_cache_close(struct tdm_vk_device *device);

/* ---- device.c ---- */

#define TDM_VK_IN_FLIGHT 2u /* submissions */
#define TDM_VK_STAGES 5u
#define TDM_VK_STAGE_BYTES (UINT64_C(16) << 20)
#define TDM_VK_MAX_QUERIES 4096u

struct tdm_vk_device {
        struct tdm_device public;
        struct tdm_vk vk;
        VkPhysicalDevice physical;
        VkPhysicalDeviceMemoryProperties memory;
        uint32_t device_heap;
        uint64_t max_allocation;
        bool has_budget;
        uint64_t memory_limit; /* of the configuration; 0: none */
        uint64_t memory_used;  /* of the device's memory */
        bool unified;          /* memory is the host's */
        bool import;           /* and can be used in place: segments are */
        bool is_cpu;           /* a CPU implementation: it needs the cores itself, and compiles slowly */
        bool few_kernels; /* so: without those that only make a GPU faster; TANDEM_VULKAN_KERNELS=all has them (tests)
                           */
        uint64_t import_align; /* 0: cannot */
        bool has_dmabuf;       /* VK_EXT_external_memory_dma_buf */
        uint32_t max_groups_x;
        VkQueue queue;
        uint32_t queue_family;
        VkCommandPool pool;
        VkPipelineLayout layout;
        VkPhysicalDeviceProperties properties;
        VkPipelineCache cache;    /* NULL: none */
        int cache_fd;             /* of its file; -1: none */
        size_t cached_bytes;      /* that lie on disk */
        size_t loaded_bytes;      /* that lay there at the beginning */
        unsigned cache_pipelines; /* n_pipelines when it was last saved */
        unsigned cache_tuned;     /* n_tuned then */
        struct tdm_vk_pipeline pipelines[TDM_VK_MAX_PIPELINES];
        unsigned n_pipelines;
        struct tdm_vk_tuned tuned[TDM_VK_MAX_TUNED];
        unsigned n_tuned;
        bool deferring; /* kernels are put down, to be compiled together */
        /* [0]: for whoever needs a place for one submission; the others are the ring of uploads */
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
        bool chained;             /* kernels follow each other without barriers: chain.c */
        bool matrix_units;        /* there are some that MATDIRECT and MATWIDE can use */
        bool half_units;          /* and MATHALF and MATHALFWIDE */
        struct tdm_pool *threads; /* copies and sampling */
        _Atomic uint64_t *heartbeat;
        struct tdm_vulkan_counters counters;
        char description[256];
        char numerics_id[256];
};

/* Submits and waits, with a limit. 0 or TDM_E_DEVICE_FAULT. */
int tdm_vk_submit(struct tdm_vk_device *device, VkCommandBuffer commands, struct tdm_error *err);
/* The same in two halves, with time for other things between. `which` < TDM_VK_IN_FLIGHT: one submission each is under
 * way at a time; they are done in the order in which they began. */
int tdm_vk_submit_begin(struct tdm_vk_device *device, unsigned which, VkCommandBuffer commands, struct tdm_error *err);
int tdm_vk_submit_end(struct tdm_vk_device *device, unsigned which, struct tdm_error *err);
/* Commands that are recorded for one submission, into stage_commands[0], between the two; end() submits them and waits.
 * `what` is being done, for the error. */
int tdm_vk_once_begin(struct tdm_vk_device *device, VkCommandBuffer *ret, const char *what, struct tdm_error *err);
int tdm_vk_once_end(struct tdm_vk_device *device, const char *what, struct tdm_error *err);
/* One dispatch whose results the host then reads, between the two. */
int tdm_vk_once_dispatch(struct tdm_vk_device *device, const struct tdm_vk_pipeline *pipeline, const void *push,
                         uint32_t push_bytes, uint32_t x, uint32_t y, const char *what, struct tdm_error *err);
/* All memory, from what was written so in the stages before to what is read and written so in those behind. */
void tdm_vk_barrier(struct tdm_vk_device *device, VkCommandBuffer commands, VkPipelineStageFlags from,
                    VkAccessFlags written, VkPipelineStageFlags to, VkAccessFlags wanted);
int tdm_vk_fault(struct tdm_vk_device *device, const char *what, VkResult result, struct tdm_error *err);
int tdm_vk_wait(struct tdm_vk_device *device, VkFence fence, struct tdm_error *err);

/* ---- prove.c ---- */

struct tdm_vk_matrix_features {
        VkStructureType type;
        void *next;
        VkBool32 cooperative_matrix;
        VkBool32 robust;
};
enum tdm_vk_units {
        TDM_VK_UNITS_INT8, /* 16 by 8 by 32, to int32 */
        TDM_VK_UNITS_F16,  /* 16 by 8 by 16, to f32 */
};
bool tdm_vk_matrix_units(const struct tdm_vk_device *device, enum tdm_vk_units units);
/* What to enable with the extension whose name it returns. */
const char *tdm_vk_matrix_feature(struct tdm_vk_matrix_features *features);
/* The kernel that proofs of this type and rounding need. */
int tdm_vk_prove_need(struct tdm_vk_device *device, uint32_t type, uint32_t act, struct tdm_error *err);
/* What weights and rows are made of there: the same in every process. */
uint32_t tdm_vk_prove_random(uint64_t *state);
/* Those that were compiled and not yet tried. */
int tdm_vk_prove(struct tdm_vk_device *device, struct tdm_error *err);

/* ---- prove-half.c ---- */

/* The same for kernels for f16 units; type: of weights, without TDM_VK_FRAGMENTS. */
int tdm_vk_prove_half_need(struct tdm_vk_device *device, uint32_t type, struct tdm_error *err);
int tdm_vk_prove_half(struct tdm_vk_device *device, struct tdm_error *err);

/* ---- prove-attend.c ---- */

/* Attention of a single row with so many heads an item, and of many_rows; NULL: it could not be compiled. */
int tdm_vk_prove_attend(struct tdm_vk_device *device, struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *many,
                        uint32_t heads, uint32_t many_rows, struct tdm_error *err);
/* And the one that rotates rows itself, against `rotate` and `single`, which leaves rows of F16. */
int tdm_vk_prove_rotating(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotate,
                          const struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *rotating, uint32_t heads,
                          struct tdm_error *err);

/* ---- chain.c ---- */

#define TDM_VK_GAVE_UP_WORD 4u /* of tdm_vk_model.counters: somebody gave up waiting */

bool tdm_vk_chain_wanted(const struct tdm_vk_device *device);
/* Sets device->chained where dispatches of any size can follow each other so. gelu: any kernel of that name. */
int tdm_vk_chain_try(struct tdm_vk_device *device, const struct tdm_vk_pipeline *gelu,
                     const struct tdm_vk_buffer *words, struct tdm_error *err);
/* After a submission. 0 or TDM_E_DEVICE_FAULT. */
int tdm_vk_chain_check(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- model.c ---- */

struct tdm_vk_matrix {
        uint64_t address;
        uint32_t type, act;     /* type: with TDM_VK_TURNED or TDM_VK_FRAGMENTS where it is */
        float x_scale, y_scale; /* of rows of F16 (half.c): what they, and what comes out, are multiplied with */
        float divisor;          /* and what its weights were divided by, a power of two */
        uint32_t rows, cols;
        uint32_t n_panels, panel_bytes;
};

struct tdm_vk_layer {
        struct tdm_vk_matrix q, k, v, o, gate, up, down;
        float query_scale; /* of attention on f16 units (half.c): what queries are multiplied with */
        uint64_t attn_norm, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffw_norm;
        uint64_t kv_pieces; /* address of its pieces' addresses */
        uint32_t kv_first;  /* its first piece in kv_buffers */
};

/* A step as shaders see it, and where its hidden rows are. One for each slot that run() has been called with. */
struct tdm_vk_slot {
        const float *key; /* run()'s hidden; NULL: free */
        uint64_t used;    /* when, for choosing the one to forget */
        uint64_t hidden;  /* device address of row 0 */
        bool in_place;
        struct tdm_vk_buffer hidden_buffer; /* where not in place */
        struct tdm_vk_buffer step;          /* shared memory: layout in step.c */
        /* what it holds now */
        uint64_t step_id;
        uint32_t epoch, next_block; /* next_block 0: nothing */
        bool on_device;             /* hidden rows are newer there than in the step's memory */
        uint32_t n_rows, n_logits, n_tiles;
        bool many;                          /* attention with several rows an item */
        uint32_t item_heads[TDM_KV_GROUPS]; /* and so many heads */
        uint32_t attention_layers;          /* done of this step, and written behind */
};

/* A command buffer and what it was recorded for. */
struct tdm_vk_recording {
        VkCommandBuffer commands;
        uint64_t used; /* 0: never */
        const struct tdm_vk_slot *slot;
        uint64_t hidden;
        uint32_t first, n, n_rows, first_logit, n_logits, log_half, item_heads[TDM_KV_GROUPS];
        bool many, upload, download, joins, joined, profiled;
        uint32_t n_marks;
        struct tdm_vk_pipeline *marks[TDM_VK_MAX_QUERIES]; /* of each timestamp, when profiling */
};
#define TDM_VK_ARRIVALS_BYTES (TDM_VK_ARRIVALS * sizeof(uint32_t)) /* at the front of what holds partial results */
#define TDM_VK_SERIALS (UINT32_MAX / TDM_VK_LAYERS_MAX)
/* Flagged partial results lie behind the others: where. */
uint64_t tdm_vk_partial_flagged(const struct tdm_vk_model *model);
/* When serials begin again, too: an old one's results must not be taken for new ones. */
int tdm_vk_partial_clear(struct tdm_vk_model *model, struct tdm_error *err);
#define TDM_VK_RECORDINGS 256u
#define TDM_VK_HEAD_DIM_MAX 512u

/* What the device's copy of a sequence's cache is known to hold. */
struct tdm_vk_sequence {
        uint32_t n_valid; /* positions 0 … n_valid - 1 that are still in the tables; 0: nothing */
        uint32_t epoch;
        uint64_t last_hash; /* of the twin's last value row */
};

#define TDM_VK_MAX_REGIONS 256u

struct tdm_vk_model {
        struct tdm_vk_device *device;
        const uint8_t *weights;
        struct tdm_hparams hp;
        struct tdm_recipe recipe;
        struct tdm_kv_geometry kv;
        uint8_t *kv_base;
        struct tdm_steps_limits limits;
        enum tdm_precision precision;

        struct tdm_vk_buffer regions[TDM_VK_MAX_REGIONS]; /* weights: runs of tensors */
        uint64_t region_begin[TDM_VK_MAX_REGIONS];        /* in the segment */
        uint64_t region_end[TDM_VK_MAX_REGIONS];
        uint64_t uploaded_bytes; /* of the segment: on their way to the device, or there */
        unsigned n_regions;
        bool weights_imported;
        struct tdm_vk_layer *layers;
        struct tdm_vk_matrix output, embedding;
        uint64_t output_norm;

        /* kv.c */
        struct tdm_vk_buffer
                *kv_buffers; /* pieces of 1 << kv_piece_shift pages, layer by layer; or one of the imported segment */
        unsigned n_kv_buffers;
        struct tdm_vk_buffer kv_pieces; /* their addresses */
        bool kv_imported;
        uint32_t kv_page_bytes[TDM_KV_GROUPS]; /* from page to page of a layer */
        uint32_t kv_piece_shift[TDM_KV_GROUPS];
        struct tdm_error kv_error;         /* why there is no cache; code 0: there is, or none was given */
        struct tdm_vk_pages *pages;        /* NULL: the segment is what it is */
        struct tdm_vk_buffer log;          /* two halves of [layer of the submission][row][kv head][key, value] */
        struct tdm_vk_sequence *sequences; /* [n_tables] */
        uint32_t *known_pages;             /* [n_tables][groups][table_entries] */

        uint8_t *activations;
        uint64_t activations_bytes;
        struct tdm_vk_buffer activations_buffer; /* imported; size 0: not */
        int activations_dmabuf;                  /* as which it was imported, borrowed; 0: as memory of the process */
        const char *no_dmabuf;                   /* why not, where there was one; NULL: there was none */

        uint32_t tile_rows, queries_heads, many_rows; /* of an attention item: heads, rows at most */
        uint32_t max_slots, max_items;                /* of partial results, and items, per tile */
        uint32_t step_serial;                         /* of the step that was filled in last: below TDM_VK_SERIALS */
        bool half;                                    /* layers' rows are F16: half.c */
        bool attend_half;                             /* and attention is on f16 units too */
        struct tdm_vk_buffer acts[TDM_VK_N_ACTS];     /* size 0: form not used */
        struct tdm_vk_buffer sides[TDM_VK_N_ACTS];    /* see tdm_vk_matmul_push; size 0: nobody reads them */
        uint32_t side_rows;
        struct tdm_vk_buffer y, partial, logits, logits_host, hidden_host, counters;
        /* TDM_VK_CHAIN_WORDS, then flagged words of a single row (chain.c): matrix products, and */
        struct tdm_vk_buffer chain;
        uint64_t flagged_acts[TDM_VK_N_ACTS]; /* from these offsets activations in each form; 0: not used */
        struct tdm_vk_buffer rotations;       /* struct tdm_vk_rotation [n_layers]; size 0: none */
        uint32_t y_stride_max;
        uint32_t logits_rows, logits_stride;
        bool logits_whole; /* all of them come to the host: it changes them before it draws */
        /* maxima [logits_rows][maxima_stride], then those of each TDM_VK_LOGITS_EACH logits [logits_rows][tops_stride]
         */
        struct tdm_vk_buffer scan,
                /* sums [logits_rows][sums_stride], then the latter again, then what gather.comp found
                   [logits_rows][maxima_stride + 1] */
                scan_host;
        uint32_t maxima_stride, tops_stride, sums_stride;
        struct tdm_rope rope[TDM_KV_GROUPS];
        struct tdm_vk_slot slots[TDM_STEP_SLOTS];
        struct tdm_vk_recording *recordings; /* [TDM_VK_RECORDINGS] */
        uint64_t clock;
        uint32_t submission_row_blocks; /* rows times blocks of a submission: bounds how long the device is out of reach
                                         */
        uint8_t *sampler_scratch;       /* [n_threads][sampler_stride] */
        size_t sampler_stride;
        uint64_t memory_bytes;
        char plan[512];
};

/* engine/device/device.h: the three parts of load. */
int tdm_vk_model_begin(struct tdm_device *device, const struct tdm_device_model_config *config,
                       struct tdm_device_model **ret, struct tdm_error *err);
int tdm_vk_model_weights(struct tdm_device_model *model, uint64_t n_bytes, struct tdm_error *err);
int tdm_vk_model_end(struct tdm_device_model *model, struct tdm_error *err);
int tdm_vk_model_load(struct tdm_device *device, const struct tdm_device_model_config *config,
                      struct tdm_device_model **ret, struct tdm_error *err);
void tdm_vk_model_unload(struct tdm_device_model *model);
static inline uint32_t tdm_vk_q_width(const struct tdm_hparams *hp)
{
        return hp->n_heads * hp->head_dim;
}
static inline uint32_t tdm_vk_kv_width(const struct tdm_hparams *hp)
{
        return hp->n_kv_heads * hp->head_dim;
}

/* Where these begin in scan_host. */
static inline uint64_t tdm_vk_scan_tops(const struct tdm_vk_model *m)
{
        return (uint64_t)m->logits_rows * m->sums_stride * sizeof(float);
}
static inline uint64_t tdm_vk_scan_found(const struct tdm_vk_model *m)
{
        return tdm_vk_scan_tops(m) + (uint64_t)m->logits_rows * m->tops_stride * sizeof(float);
}

/* ---- kv.c ---- */

void tdm_vk_kv_set(struct tdm_vk_model *model, uint8_t *base);
void tdm_vk_kv_deinit(struct tdm_vk_model *model);
/* What one attention layer logs of a row. */
uint64_t tdm_vk_kv_log_row_bytes(const struct tdm_vk_model *model);
/* How many attention layers of n_rows rows a half of the log holds. */
uint32_t tdm_vk_kv_log_layers(const struct tdm_vk_model *model, uint32_t n_rows);
/* Before the first attention layer of a step on this device: what the step's sequences look back on is on the device.
 */
int tdm_vk_kv_begin(struct tdm_vk_model *model, const struct tdm_step *step, struct tdm_error *err);
/* After a submission with attention layers [first, first + n): their rows go from its half of the log into the twin. */
void tdm_vk_kv_behind(struct tdm_vk_model *model, const struct tdm_step *step, uint32_t first_layer, uint32_t n_layers,
                      uint32_t half);
/* All attention layers of the step have run here. */
void tdm_vk_kv_end(struct tdm_vk_model *model, const struct tdm_step *step);

/* ---- kv-pages.c ---- */

/* The twin's memory. *ret is NULL where it cannot be had in huge pages; base stays mapped until free. The pool is used
 * by make() alone. */
int tdm_vk_pages_new(struct tdm_vk_pages **ret, const struct tdm_kv_geometry *kv, uint8_t *base,
                     struct tdm_pool *threads);
void tdm_vk_pages_free(struct tdm_vk_pages *pages); /* NULL: nothing */
/* A layer of a page of the cache will be written; then make() asks for all that was never asked for. */
void tdm_vk_pages_want(struct tdm_vk_pages *pages, enum tdm_kv_group group, uint32_t page, uint32_t layer_index);
void tdm_vk_pages_make(struct tdm_vk_pages *pages);
/* So many sequences may soon want a page each; does not wait. */
void tdm_vk_pages_ahead(struct tdm_vk_pages *pages, uint32_t n_seqs);

/* ---- step.c ---- */

struct tdm_vk_step_layout {
        uint64_t rows, gather, wanted, args, tables[TDM_KV_GROUPS], angles[TDM_KV_GROUPS], items[TDM_KV_GROUPS],
                row_items[TDM_KV_GROUPS];
        uint64_t size_bytes;
};
void tdm_vk_step_layout(const struct tdm_vk_model *model, struct tdm_vk_step_layout *ret);
/* Pages of an item's first span; all else of it is filled in. table: its sequence's; first_key: what its first row sees
 * first. */
static inline void tdm_vk_item_pages(struct tdm_vk_item *item, const uint32_t *table, uint32_t first_key)
{
        uint32_t span = item->span_first * TDM_VK_SPAN,
                 end = TDM_MIN(item->position + item->n_rows, span + TDM_VK_SPAN),
                 first = TDM_MAX(first_key, span) / TDM_VK_PAGE_TOKENS, last = (end - 1) / TDM_VK_PAGE_TOKENS;

        for (uint32_t i = 0; i < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS; i++)
                item->pages[i] = table[TDM_MIN(TDM_MAX(span / TDM_VK_PAGE_TOKENS + i, first), last)];
}
/* The slot of these hidden rows, free or not. */
struct tdm_vk_slot *tdm_vk_slot_of(struct tdm_vk_model *model, const float *hidden);
void tdm_vk_step_fill(struct tdm_vk_model *model, struct tdm_vk_slot *slot, const struct tdm_step *step);
/* What gather.comp reads of a row of logits: how many, how many named, which. */
#define TDM_VK_WANTED_STRIDE (2u + TDM_HISTORY_MAX + 1u)
/* Offset of a VkDispatchIndirectCommand. */
uint64_t tdm_vk_step_args(const struct tdm_vk_step_layout *layout, uint32_t tile, enum tdm_kv_group group);

/* ---- kernels.c ---- */

/* workgroups of MATDIRECT, MATWIDE or MATHALF, as many as an H200's multiprocessors */
#define TDM_VK_UNITS_AT_ONCE 132u
#define TDM_VK_DIRECT_ROWS_MAX 64u /* of a dispatch of MATDIRECT, which reads tdm_vk_model.sides */
#define TDM_VK_HALF_ROWS_MAX 32u   /* of one of MATHALF */
/* of a segment, that its kernel for a single row has room for: what the proof takes */
#define TDM_VK_HALF_CHUNKS_MIN 4u

/* SHAPE of matvec.glsl. stage: the row goes through shared memory. */
uint32_t tdm_vk_shape_with(const struct tdm_vk_device *device, const struct tdm_vk_matrix *matrix, uint32_t panels,
                           uint32_t ahead, uint32_t sets, bool stage);
/* Whether a kernel of this shape reads flagged rows (chain.c), whether those of a single row do that these matrices, a
 * layer's gate and up, are multiplied with. */
bool tdm_vk_shape_flags(uint32_t shape, uint32_t act);
bool tdm_vk_matrices_flag(const struct tdm_vk_device *device, const struct tdm_vk_matrix *first, uint32_t n_panels);
bool tdm_vk_gelu_flags(const struct tdm_vk_device *device, const struct tdm_vk_layer *layer);
/* How many of the matrices, at most three, one dispatch can multiply: of one type and rounding, beside each other. */
unsigned tdm_vk_group_of(const struct tdm_vk_matrix *const *matrices, unsigned n_matrices, uint32_t *ret_panels);
/* Panels and rows of one workgroup of a matrix kernel. */
void tdm_vk_matrix_tile(const struct tdm_vk_pipeline *pipeline, uint32_t *ret_panels, uint32_t *ret_rows);
/* The fastest of those that give the same bits; what one workgroup of it makes. */
struct tdm_vk_pipeline *tdm_vk_choose_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *first,
                                             uint32_t n_panels, uint32_t n_rows, uint32_t *ret_panels,
                                             uint32_t *ret_rows);
/* Whether gate, up and GELU of so many rows are one kernel; which, and what one workgroup of it makes: of each of the
 * two. */
bool tdm_vk_gelu_fits(const struct tdm_vk_layer *layer, uint32_t n_rows);
struct tdm_vk_pipeline *tdm_vk_gelu_kernel(struct tdm_vk_device *device, const struct tdm_vk_layer *layer,
                                           uint32_t n_rows, uint32_t *ret_panels, uint32_t *ret_rows);
/* PER of norm.comp. */
uint32_t tdm_vk_norm_per(const struct tdm_vk_model *model);
/* Compiles all that record() can ask for; those of a single row in the shapes that they have now. */
int tdm_vk_kernels_prepare(struct tdm_vk_model *model, struct tdm_error *err);
int tdm_vk_kernels_need_single(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- kernels-half.c ---- */

static inline bool tdm_vk_is_half(const struct tdm_vk_matrix *matrix)
{
        return matrix->act >= TDM_VK_ACT_F16;
}
/* As tdm_vk_choose_kernel(), or with gelu as tdm_vk_gelu_kernel(): n_panels of both matrices. */
struct tdm_vk_pipeline *tdm_vk_half_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *first,
                                           uint32_t n_panels, uint32_t n_rows, bool gelu, uint32_t *ret_panels,
                                           uint32_t *ret_rows);
/* Constants of MATHALFSINGLE. false: it has no room for this shape. */
bool tdm_vk_half_single(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                        const struct tdm_vk_shape *shape, bool gelu, uint32_t ret[TDM_VK_N_CONSTANTS]);
/* Rows and weights of F16: what the kernels of these matrices are, and what their proofs need; to be compiled and
 * proven before the model is theirs. false: one cannot be used here. */
int tdm_vk_kernels_need_half(struct tdm_vk_model *model, struct tdm_error *err);
bool tdm_vk_kernels_half_proven(struct tdm_vk_model *model);

/* ---- kernels-attend.c ---- */

/* Whether attend.comp is its own merge: where an item is one row, whose last item to come merges all. */
bool tdm_vk_attend_merges(const struct tdm_vk_model *model, bool many, uint32_t item_heads);
/* Attention of items of one row, or many, and so many heads each; out_act: what goes into the matrix behind it, if it
 * merges. */
struct tdm_vk_pipeline *tdm_vk_attend_kernel(const struct tdm_vk_model *model, bool many, uint32_t item_heads,
                                             uint32_t out_act);
/* What record() can ask for. */
int tdm_vk_kernels_need_attend(struct tdm_vk_model *model, struct tdm_error *err);
/* That of items of one row each which rotates them too; NULL: there is none. */
struct tdm_vk_pipeline *tdm_vk_attend_rotating_kernel(const struct tdm_vk_model *model, uint32_t out_act);
/* Once tensors' addresses are known: what it wants to know of a layer. */
void tdm_vk_attend_rotations(struct tdm_vk_model *model);
/* Of models with rows of F16: compiles and proves attention's kernels for f16 units, and sets attend_half, and how
 * items are cut, where they can be used. */
int tdm_vk_kernels_attend_half(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- half.c ---- */

/* Whether this model's layers can have rows of F16 on this device, as far as its tensors and the configuration say. */
bool tdm_vk_half_wanted(const struct tdm_vk_model *model);
/* Finds each matrix' x_scale and y_scale. Its weights are on the device as they are in the segment, and its layers are
 * found. */
int tdm_vk_half_scales(struct tdm_vk_model *model, struct tdm_error *err);

/* What the weights of a tensor are divided by when they are turned: of a model with rows of F16, a power of two. */
float tdm_vk_half_divisor(const struct tdm_vk_model *model, const struct tdm_weights_tensor *tensor);

/* ---- record.c ---- */

/* Blocks first … first + n - 1 without sample; a head makes logits [first_logit, + n_logits). */
struct tdm_vk_work {
        struct tdm_vk_slot *slot;
        uint32_t first, n;
        uint32_t first_logit, n_logits; /* n_logits 0: no head */
        uint32_t log_half;              /* of the log, which this submission writes */
        bool upload, download;
        /* it ends with the norm that the next block begins with; it begins where one before did so */
        bool joins, joined;
};
int tdm_vk_record(struct tdm_vk_model *model, const struct tdm_vk_work *work, struct tdm_vk_recording **ret,
                  struct tdm_error *err);
/* After what it depends on besides the work has changed. No recording may be under way. */
void tdm_vk_record_forget(struct tdm_vk_model *model);
/* Whether its kernels leave flagged words for each other: chain.c. */
bool tdm_vk_record_flags(const struct tdm_vk_model *model, const struct tdm_vk_work *work);
/* As many of the matrices as one dispatch takes, at least one: what it is pushed for a single row (all but y), and
 * their panels. */
unsigned tdm_vk_matmul_group(const struct tdm_vk_model *model, const struct tdm_vk_matrix *const *matrices,
                             unsigned n_matrices, struct tdm_vk_matmul_push *ret, uint32_t *ret_panels);
/* false: of so many rows this layer's gate, up and GELU are not one kernel. */
bool tdm_vk_matgelu_push(const struct tdm_vk_model *model, const struct tdm_vk_layer *layer, uint32_t n_rows,
                         struct tdm_vk_matmul_push *ret);

/* ---- run.c ---- */

int tdm_vk_run(struct tdm_device_model *model, const struct tdm_step *step, uint32_t first, uint32_t n, float *hidden,
               struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata), void *userdata,
               struct tdm_error *err);

#endif
