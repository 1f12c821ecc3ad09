/* A model on a device: its weights, its cache, and every buffer that a step needs. What its layers compute is said in
 * program/, by which kernels in kernels/, and it is recorded in record/. Here is what they share.
 *
 * weights.c brings the weights onto the device, or imports them, and finds each matrix. sizes.c finds the kinds of
 * layers, tiles and strides. program/buffers.c allocates the rest. load/load.c calls them and owns the model. One
 * thread uses a model. Functions that return int return 0, a TDM_E_* outcome or -errno, and fill err then. */
#ifndef TDM_GPU_WORKER_VULKAN_MODEL_MODEL_H
#define TDM_GPU_WORKER_VULKAN_MODEL_MODEL_H

#include "engine/host/pooling.h"
#include "engine/host/rope.h"
#include "gpu-worker/vulkan/memory/kv.h"

/* A matrix [rows][cols] in panels of 16 rows. */
struct tdm_vk_matrix {
        uint64_t address;
        uint32_t type, act; /* type: with TDM_VK_DEINTERLEAVED or TDM_VK_FRAGMENTS where it is */
        /* For rows of F16 (kernels/f16-rows.c): the factors of its rows and of its outputs, and what its weights were
         * divided by. Powers of two. */
        float x_scale, y_scale;
        float divisor;
        uint32_t rows, cols;
        uint32_t n_panels, panel_bytes;
};

/* Experts of a layer: matrices of all of them, one below the other, as the segment has them. */
struct tdm_vk_experts {
        uint32_t n, n_used, d_expert; /* n 0: none */
        struct tdm_vk_matrix router, gate, up, down;
        uint64_t router_bias, gate_bias, up_bias, down_bias;  /* 0: none */
        bool beside;                                          /* a dense FFN runs beside them */
        bool gate_up_is_one;                                  /* gate is both, and an expert's lie behind each other */
        float z_scale;                                        /* of the router's numbers */
        uint64_t scales;                                      /* of the experts' weights; 0: none */
        uint64_t router_gain, norm, post_dense, post_experts; /* gains, beside a dense FFN */
};

struct tdm_vk_layer {
        struct tdm_vk_matrix q, k, v, o, gate, up, down;
        /* How many of q, k, v there are: 3; 2 where values are keys; 1 where the layer reads another's keys and values.
         * Those that are not there are q. */
        uint32_t n_qkv;
        bool v_norm;       /* without gains */
        float query_scale; /* of attention on f16 units (kernels/f16-rows.c): what queries are multiplied with */
        uint64_t attn_norm, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffw_norm; /* addresses of gains; 0: none */
        uint64_t q_wide, k_wide; /* gains of one norm of all heads, in place of q_norm and k_norm; 0: none */
        bool is_late;            /* q_norm and k_norm stand behind RoPE */
        uint64_t qkv_bias, o_bias, down_bias; /* of biases; 0: none */
        uint32_t activation;                  /* enum tdm_activation */
        uint64_t sinks;                       /* 0: none */
        struct tdm_vk_experts experts;
        /* At the layer's end (shaders/norm/side.comp); 0: none. */
        struct tdm_vk_matrix input_gate, input_proj;
        uint64_t input_norm, output_scale;
        /* Where there are several streams; 0: there are none. */
        struct tdm_vk_matrix laurel_l, laurel_r, altup_router;
        uint64_t laurel_norm, altup_norm, predict, correct, correct_scale;
};

/* What attention of the layers of one kind shares: those with a window, and those without. */
#define TDM_VK_KINDS 2u
struct tdm_vk_kind {
        bool used;
        enum tdm_kv_group group; /* its pages' */
        uint32_t layer;          /* the first of it */
        uint32_t n_heads, n_kv_heads, head_dim;
        uint32_t rope;                     /* of the recipe's */
        uint32_t window;                   /* keys that a row sees up to its own, its own included; 0: all */
        bool both;                         /* and as many behind it */
        uint32_t queries_heads, many_rows; /* of an attention item: heads, rows at most */
};

/* A step as shaders see it, and where its hidden rows are. One for each slot that run() has been called with. */
struct tdm_vk_slot {
        const float *key; /* run()'s hidden; NULL: free */
        uint64_t used;    /* when, for choosing the one to forget */
        uint64_t hidden;  /* device address of row 0 */
        bool in_place;
        struct tdm_vk_buffer hidden_buffer; /* where not in place */
        struct tdm_vk_buffer step;          /* shared memory: layout in step/step.c */
        /* what it holds now */
        uint64_t step_id;
        uint32_t epoch, next_block; /* next_block 0: nothing */
        bool on_device;             /* hidden rows are newer there than in the step's memory */
        uint32_t n_rows, n_logits, n_tiles;
        bool many;                         /* attention with several rows an item */
        bool several;                      /* a sequence has several rows, with an item each */
        bool flags;                        /* its kernels may leave flagged words (record/) */
        uint32_t item_heads[TDM_VK_KINDS]; /* and this many heads */
        uint32_t attention_layers;         /* done of this step, and written behind */
};

#define TDM_VK_ARRIVALS_BYTES (TDM_VK_ARRIVALS * sizeof(uint32_t)) /* at the front of what holds partial results */
#define TDM_VK_SERIALS (UINT32_MAX / TDM_VK_LAYERS_MAX)
#define TDM_VK_HEAD_DIM_MAX 512u
#define TDM_VK_MAX_REGIONS 256u
#define TDM_VK_INT8_ROWS_MAX 64u /* of a dispatch of MATMUL_INT8, which reads tdm_vk_rounded.sums */
#define TDM_VK_GAVE_UP_WORD 4u   /* of tdm_vk_model.counters: a kernel gave up waiting (device/chain.c) */

/* Where rows of f32 lie that operations leave for each other (program/program.h). */
enum tdm_vk_array {
        TDM_VK_NOWHERE,
        TDM_VK_HIDDEN,      /* the slot's hidden rows */
        TDM_VK_STEP_INPUTS, /* inputs of layers, in the step */
        /* from here on each has a buffer of its own */
        TDM_VK_ROUTER_Y,    /* the numbers that experts are chosen by */
        TDM_VK_HIDDEN_EXPS, /* of slots: gate, up */
        TDM_VK_EXPERTS_Y,   /* what experts beside a dense FFN give */
        TDM_VK_PARTS_EXPS,  /* of slots */
        TDM_VK_X0,          /* of the step: the tokens' rows of the embedding */
        TDM_VK_EMBEDDED,    /* the same, rounded for per_layer_proj, in tiles of embedded_bytes */
        TDM_VK_INPUT,       /* a layer's own input */
        TDM_VK_INPUT_GATE,
        TDM_VK_ALTUP, /* a router's numbers of streams */
        TDM_VK_RANK,  /* of the low-rank branch */
        TDM_VK_SIDE_Y,
        TDM_VK_FOLDED, /* streams of rows that want logits, made one */
        TDM_VK_UNFOLDED,
        TDM_VK_Y, /* matrix products, of heads or of hidden rows */
        TDM_VK_LOGITS_Y,
        TDM_VK_N_ARRAYS
};

struct tdm_vk_recording;
struct tdm_vk_program;

/* Runs of tensors on the device. */
struct tdm_vk_regions {
        struct tdm_vk_buffer buffers[TDM_VK_MAX_REGIONS];
        uint64_t begin[TDM_VK_MAX_REGIONS]; /* in the segment */
        uint64_t end[TDM_VK_MAX_REGIONS];
        /* The one tensor of a region that lies by rows or columns there: it is brought as panels. Else NULL. */
        const struct tdm_weights_tensor *tensors[TDM_VK_MAX_REGIONS];
        unsigned n;
        uint64_t uploaded_bytes; /* of the segment: on their way to the device, or there */
        bool are_imported;
};

/* Small matrices beside the layers; rows 0: none. */
struct tdm_vk_side_weights {
        struct tdm_vk_matrix per_layer_proj; /* [layer][per_layer_width] */
        uint64_t per_layer_norm;
        struct tdm_vk_matrix altup_proj, altup_unembd; /* of each stream but the first */
        struct tdm_vk_buffer embedded_sums;            /* of TDM_VK_EMBEDDED: scales and sums, in tiles; size 0: none */
        uint64_t embedded_bytes;
};

/* Hidden rows of all slots where they are used in place. */
struct tdm_vk_activations {
        uint8_t *base;
        uint64_t size_bytes;
        struct tdm_vk_buffer buffer; /* imported; size 0: not */
        int dmabuf;                  /* as which it was imported, borrowed; 0: as memory of the process */
        const char *no_dmabuf;       /* why not, where there was one; NULL: there was none */
};

struct tdm_vk_attention {
        uint32_t max_slots, max_items;  /* of partial results, and items, per tile */
        uint32_t step_serial;           /* of the step that was filled in last: below TDM_VK_SERIALS */
        bool has_sinks;                 /* in some layer */
        bool is_f16;                    /* on f16 units, which rows of F16 are the condition for */
        struct tdm_vk_buffer partial;   /* results */
        struct tdm_vk_buffer rotations; /* struct tdm_vk_rotation [n_layers]; size 0: none */
};

/* Rows that are rounded for matrices, by their form. */
struct tdm_vk_rounded {
        struct tdm_vk_buffer acts[TDM_VK_N_ACTS]; /* size 0: form not used */
        struct tdm_vk_buffer sums[TDM_VK_N_ACTS]; /* scales and sums: see tdm_vk_matmul_push; size 0: none reads them */
        uint32_t sums_rows;
};

/* Flagged words of a row (device/chain.c), which lie behind those of the chain: matrix products, and from these offsets
 * rounded rows. */
struct tdm_vk_flagged {
        uint64_t acts[TDM_VK_N_ACTS]; /* 0: form not used */
        uint32_t stride;              /* bytes from row to row */
        uint8_t few_rows[4];          /* enum tdm_vk_few, of rows up to 1, 2, 4 and 8: kernels/few-rows.c */
};

struct tdm_vk_logits {
        uint32_t rows, stride;
        bool is_whole; /* all of them come to the host: it changes them before it draws */
        struct tdm_vk_buffer host;
        /* maxima [rows][maxima_stride], then those of each TDM_VK_LOGITS_EACH logits [rows][tops_stride] */
        struct tdm_vk_buffer scan;
        /* sums [rows][sums_stride], then tops again, then what gather.comp found [rows][maxima_stride + 1] */
        struct tdm_vk_buffer scan_host;
        uint32_t maxima_stride, tops_stride, sums_stride;
};

/* A shorter step for the later blocks; all NULL where every layer has keys of its own (step/early.c). */
struct tdm_vk_early {
        struct tdm_shorter *shorter;
        struct tdm_vk_slot slot;
        VkBufferCopy *copies; /* [max_seqs] */
};

struct tdm_vk_model {
        struct tdm_vk_device *device;
        const uint8_t *weights;
        struct tdm_hparams hp;
        struct tdm_recipe recipe;
        struct tdm_kv_geometry kv;
        struct tdm_steps_limits limits;
        enum tdm_precision precision;

        /* weights.c */
        struct tdm_vk_regions regions;
        struct tdm_vk_layer *layers;
        struct tdm_vk_matrix output, embedding;
        struct tdm_vk_side_weights side;
        uint64_t output_norm;

        struct tdm_vk_program *program; /* program/build.c */

        struct tdm_vk_kv cache;

        /* sizes.c, program/buffers.c */
        struct tdm_vk_activations activations;
        struct tdm_vk_kind kinds[TDM_VK_KINDS];
        uint32_t tile_rows;
        struct tdm_vk_attention attention;
        bool f16_rows; /* layers' rows are F16: kernels/f16-rows.c */
        struct tdm_vk_rounded rounded;
        struct tdm_vk_buffer arrays[TDM_VK_N_ARRAYS]; /* size 0: no operation uses it */
        struct tdm_vk_buffer hidden_host, counters;
        struct tdm_vk_buffer chain; /* TDM_VK_CHAIN_WORDS, then flagged words of each row that may be flagged */
        struct tdm_vk_flagged flagged;
        struct tdm_vk_buffer biases;  /* [n_layers][q, k, v]; size 0: none */
        struct tdm_vk_buffer choices; /* lists of experts: tdm_vk_experts_lists(); size 0: none */
        struct tdm_vk_logits logits;
        struct tdm_rope rope[TDM_VK_KINDS];
        struct tdm_pooler *pooling; /* in place of head and sample; NULL: the model makes text */
        uint8_t *sampler_scratch;   /* [n_threads][sampler_stride] */
        size_t sampler_stride;
        uint64_t memory_bytes;

        /* step/, record/ */
        struct tdm_vk_slot slots[TDM_STEP_SLOTS];
        struct tdm_vk_early early;
        struct tdm_vk_recording *recordings; /* record/cache.c */
        uint64_t clock;
        uint32_t submission_row_blocks; /* rows times blocks of a submission: bounds how long the device is busy */

        char plan[512];
};

/* Rows first … of a matrix. first: a multiple of TDM_PANEL_ROWS. */
static inline struct tdm_vk_matrix tdm_vk_matrix_rows(const struct tdm_vk_matrix *matrix, uint32_t first, uint32_t n)
{
        struct tdm_vk_matrix part = *matrix;

        part.address += (uint64_t)(first / TDM_PANEL_ROWS) * matrix->panel_bytes;
        part.rows = n;
        part.n_panels = TDM_DIV_UP(n, TDM_PANEL_ROWS);
        return part;
}

static inline bool tdm_vk_is_parallel(const struct tdm_vk_model *m)
{
        return m->recipe.residual == TDM_RESIDUAL_PARALLEL;
}

static inline bool tdm_vk_is_centered(const struct tdm_vk_model *m)
{
        return m->recipe.norm_kind == TDM_NORMS_CENTERED;
}

static inline bool tdm_vk_has_streams(const struct tdm_vk_model *m)
{
        return m->recipe.residual == TDM_RESIDUAL_ALTUP;
}
/* Where in a row's residual attention reads, and where the FFN reads and adds. */
static inline uint32_t tdm_vk_active_at(const struct tdm_vk_model *m)
{
        return m->recipe.active_stream * m->hp.d_model;
}
static inline uint32_t tdm_vk_middle_at(const struct tdm_vk_model *m)
{
        return tdm_vk_has_streams(m) ? m->recipe.n_streams * m->hp.d_model : 0;
}

/* Whether something stands between an FFN and the norm of the next attention: they are two kernels then. */
static inline bool tdm_vk_has_side(const struct tdm_vk_model *m, uint32_t layer)
{
        return m->recipe.layers[layer].has_input || m->recipe.layers[layer].has_output_scale;
}
static inline bool tdm_vk_has_dense(const struct tdm_vk_layer *l)
{
        return l->experts.n == 0 || l->experts.beside;
}
/* What the layer makes of keys and values of its own. */
static inline bool tdm_vk_owns_kv(const struct tdm_vk_model *m, uint32_t layer)
{
        return m->hp.layers[layer].kv_layer == layer;
}

/* Which of the model's kinds a layer is of. */
static inline uint32_t tdm_vk_kind_of(const struct tdm_vk_model *m, uint32_t layer)
{
        /* Where no layer has a window, those that turn nothing are the other kind. */
        if (!m->recipe.is_bidirectional && !m->kv.n_layers[TDM_KV_WINDOW])
                return m->recipe.layers[layer].rope == TDM_ROPE_NONE;
        return m->recipe.is_bidirectional ? m->recipe.layers[layer].reach != 0 :
                                            (uint32_t)tdm_kv_group_of(&m->hp, layer);
}

/* The widest of any layer. */
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
        return (uint64_t)m->logits.rows * m->logits.sums_stride * sizeof(float);
}
static inline uint64_t tdm_vk_scan_found(const struct tdm_vk_model *m)
{
        return tdm_vk_scan_tops(m) + (uint64_t)m->logits.rows * m->logits.tops_stride * sizeof(float);
}

static inline bool tdm_vk_is_f16(const struct tdm_vk_matrix *matrix)
{
        return matrix->act >= TDM_VK_ACT_F16;
}

/* ---- weights.c ---- */

/* Whether the device has kernels for panels of this type. */
bool tdm_vk_type_known(uint32_t type);
/* Whether the kernels for f16 matrix units know this type: its panels can be TDM_VK_FRAGMENTS. */
bool tdm_vk_type_f16(uint32_t type);
/* F16 or BF16; of the latter the weights are f16 too once they are TDM_VK_FRAGMENTS. */
bool tdm_vk_type_plain(uint32_t type);
/* How the inputs of the small matrices beside the layers are rounded. */
enum tdm_act tdm_vk_weights_side_act(enum tdm_precision precision);
/* Cuts the segment into regions of whole tensors. */
int tdm_vk_weights_find_regions(struct tdm_vk_model *model, struct tdm_error *err);
/* Uses weights where they lie, if they are in panels and the driver takes all of them so: sets
 * regions.are_imported. */
void tdm_vk_weights_import(struct tdm_vk_model *model);
/* Memory of the device for all weights that are not imported. */
int tdm_vk_weights_allocate(struct tdm_vk_model *model, struct tdm_error *err);
/* The segment's first n_bytes are on their way to the device. */
int tdm_vk_weights_upload(struct tdm_vk_model *model, uint64_t n_bytes, struct tdm_error *err);
/* Fills in layers, output and embedding, of the regions' addresses and model->f16_rows. */
void tdm_vk_weights_find(struct tdm_vk_model *model);
/* Whether some layer adds biases to queries, keys or values; and puts them where rotate.comp reads them. */
bool tdm_vk_weights_biased(const struct tdm_vk_model *model);
void tdm_vk_weights_biases(struct tdm_vk_model *model);
/* Once all are on the device: repacks (shaders/weights/repack.comp) what kernels read faster in another order. */
int tdm_vk_weights_repack(struct tdm_vk_model *model, struct tdm_error *err);

/* ---- sizes.c ---- */

/* The kinds of the model's layers. TDM_E_UNSUPPORTED: layers of one kind differ. */
int tdm_vk_kinds_find(struct tdm_vk_model *model, struct tdm_error *err);
/* Strides and limits that follow from sizes alone. The kinds are found. */
void tdm_vk_sizes_find(struct tdm_vk_model *model);

#endif
