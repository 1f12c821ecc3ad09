/* What C and GLSL both know: push constants, records that the host writes and shaders read, and a few layouts. Both
 * sides include this file, so that they cannot drift apart; every struct is made of u32, f32 and u64 with the u64
 * first, which C and std430 lay out alike. Addresses are device addresses: no descriptors anywhere. At most 128 bytes
 * each. */
#ifndef TDM_VULKAN_SHADERS_SHARED_H
#define TDM_VULKAN_SHADERS_SHARED_H

#ifdef VULKAN /* glslang's own macro: this is GLSL */
#define TDM_U32 uint
#define TDM_U64 uint64_t
#define TDM_F32 float
#else
#include <stdint.h>
#define TDM_U32 uint32_t
#define TDM_U64 uint64_t
#define TDM_F32 float
#endif

/* As enum tdm_act. */
#define TDM_VK_ACT_F32 0
#define TDM_VK_ACT_I8 1
#define TDM_VK_ACT_I16 2
/* What shaders alone know: f16 in the order of the matrix units' fragments (fragments.glsl). A second buffer of them is
 * for what is made from rows of the first while those are read. */
#define TDM_VK_ACT_F16 3
#define TDM_VK_ACT_F16_AFTER 4
#define TDM_VK_ACT_NONE 5 /* a kernel that leaves no activations */
#define TDM_VK_N_ACTS 5

/* As enum tdm_type, checked in pipeline.c. */
#define TDM_VK_F32 0
#define TDM_VK_F16 1
#define TDM_VK_Q4_0 2
#define TDM_VK_Q4_1 3
#define TDM_VK_Q5_0 6
#define TDM_VK_Q5_1 7
#define TDM_VK_Q8_0 8
#define TDM_VK_Q2_K 10
#define TDM_VK_Q3_K 11
#define TDM_VK_Q4_K 12
#define TDM_VK_Q5_K 13
#define TDM_VK_Q6_K 14
#define TDM_VK_IQ4_NL 20
#define TDM_VK_IQ4_XS 23
#define TDM_VK_BF16 30
#define TDM_VK_MXFP4 39
#define TDM_VK_GRID1 60
#define TDM_VK_GRID2 61
#define TDM_VK_GRID3_XXS 62
#define TDM_VK_GRID3_S 63

/* In a kernel's TYPE, of Q4_0 and Q8_0: each output's words of a block lie beside each other (repack.comp), not each
 * word's of the 16 outputs. */
#define TDM_VK_DEINTERLEAVED 64
/* The same, in the order of the matrix units' fragments (fragments.glsl). */
#define TDM_VK_FRAGMENTS 128

/* 15 bits of the 16, so that a block's sum with weights of 4 bits stays below 2^22: then it needs no conversion to
 * become a float (matvec.glsl). */
#define TDM_VK_I16_STEP 128
#define TDM_VK_I16_MOST 16256 /* 127 * 128 */

#define TDM_VK_KV_F16 1
#define TDM_VK_KV_F32 2
#define TDM_VK_KV_Q8_0 3
#define TDM_VK_PAGE_TOKENS 32
#define TDM_VK_SPAN 256

/* A row of activations: F32 [cols]; I8: q i8 [cols], scale f32 [nb], sum i32 [nb]; I16: hi i8 [cols], lo i8 [cols],
 * scale f32 [nb], sum i32 [nb] of TDM_VK_I16_STEP hi + lo. nb = cols / 32. */
#define TDM_VK_ACT_SCALES(act, cols) ((act) * (cols))
#define TDM_VK_ACT_SUMS(act, cols) ((act) * (cols) + (cols) / 8)
#define TDM_VK_ACT_STRIDE(act, cols)                                                                                   \
        ((act) >= TDM_VK_ACT_F16 ? (cols)*2 :                                                                          \
         (act) == TDM_VK_ACT_F32 ? (cols)*4 :                                                                          \
                                   ((act) * (cols) + (cols) / 4 + 63) / 64 * 64)

/* K is cut into this many segments of ceil(nb / SEGMENTS) blocks of 32; each is summed in order, then the segments'
 * sums from the first to the last. So an order follows from cols alone. */
#define TDM_VK_SEGMENTS 16
#define TDM_VK_SEGMENT_BLOCKS(cols) (((cols) / 32 + TDM_VK_SEGMENTS - 1) / TDM_VK_SEGMENTS)

/* Rows of F16: tiles of 8 rows, of each the chunks of 64 columns, 1 KB each. A segment is of so many chunks. */
#define TDM_VK_CHUNK_COLS 64
#define TDM_VK_SEGMENT_CHUNKS(cols) (((cols) / TDM_VK_CHUNK_COLS + TDM_VK_SEGMENTS - 1) / TDM_VK_SEGMENTS)

/* Blocks of 32 that matmul-int8-wide.comp takes at a time: it needs as many. */
#define TDM_VK_WIDE_BLOCKS 4

/* A thread of matvec.glsl loads at most so many times 16 bytes of a flagged row at once: more would take registers from
 * others. */
#define TDM_VK_FLAGGED_LOADS 3

/* ---- specialization constants that hold several numbers ---- */

/* FORM of weights: a type, with TDM_VK_DEINTERLEAVED or TDM_VK_FRAGMENTS or neither. */
#define TDM_VK_FORM_TYPE(form) ((form)&63u)

/* SHAPE of matvec.comp and matvec-gelu.comp (matvec.glsl says what each number is). */
#define TDM_VK_MATVEC_SHAPE(ahead, panels, sets, staged) ((ahead) | (panels) << 8 | (sets) << 16 | (staged) << 24)
#define TDM_VK_MATVEC_AHEAD(shape) ((shape)&255u)
#define TDM_VK_MATVEC_PANELS(shape) ((shape) >> 8 & 255u)
#define TDM_VK_MATVEC_SETS(shape) ((shape) >> 16 & 255u)
#define TDM_VK_MATVEC_STAGED(shape) ((shape) >> 24)

/* OUT of matvec-gelu.comp: the form of what it leaves, and enum tdm_activation. */
#define TDM_VK_GELU_OUT(act, activation) ((act) | (activation) << 8)
#define TDM_VK_GELU_OUT_ACT(out) ((out)&255u)
#define TDM_VK_GELU_OUT_ACTIVATION(out) ((out) >> 8)

/* SHAPE of matvec-f16.comp. gelu: 0, or 1 and enum tdm_activation, here and below. */
#define TDM_VK_MATVEC_F16_SHAPE(groups, panels, rounds, sets, gelu)                                                    \
        ((groups) | (panels) << 8 | (rounds) << 16 | (sets) << 20 | (gelu) << 24)
#define TDM_VK_MATVEC_F16_GROUPS(shape) ((shape)&255u)
#define TDM_VK_MATVEC_F16_PANELS(shape) ((shape) >> 8 & 255u)
#define TDM_VK_MATVEC_F16_ROUNDS(shape) ((shape) >> 16 & 15u)
#define TDM_VK_MATVEC_F16_SETS(shape) ((shape) >> 20 & 15u)
/* ROOM of it: chunks of a segment; with several rows (at most 4, here a power of two) also those of a row in shared
 * memory; then rows less one. */
#define TDM_VK_MATVEC_F16_ROOM(segment, all, rows) ((segment) | (all) << 8 | ((rows)-1) << 24)
#define TDM_VK_MATVEC_F16_CHUNKS(room) ((room)&255u)
#define TDM_VK_MATVEC_F16_ALL(room) ((room) >> 8 & 65535u)
#define TDM_VK_MATVEC_F16_ROWS(room) (((room) >> 24) + 1)

/* SHAPE of matmul-f16.comp: tiles of 8 rows, panels, rounds. */
#define TDM_VK_MATMUL_F16_SHAPE(tiles, panels, rounds, gelu) ((tiles) | (panels) << 8 | (rounds) << 16 | (gelu) << 24)
#define TDM_VK_MATMUL_F16_PANELS(shape) ((shape) >> 8 & 255u)
#define TDM_VK_MATMUL_F16_ROUNDS(shape) ((shape) >> 16 & 255u)

/* SHAPE of matmul-f16-wide.comp: tiles of 8 rows, chunks at once. */
#define TDM_VK_MATMUL_F16_WIDE_SHAPE(tiles, at_once, gelu) ((tiles) | (at_once) << 8 | (gelu) << 24)
#define TDM_VK_MATMUL_F16_WIDE_AT_ONCE(shape) ((shape) >> 8 & 255u)

/* Of both, and of matvec-f16.comp. */
#define TDM_VK_MATMUL_F16_TILES(shape) ((shape)&255u)
#define TDM_VK_F16_SHAPE_GELU(shape) ((shape) >> 24)
#define TDM_VK_F16_SHAPE_ACTIVATION(shape) (((shape) >> 24) - 1)

/* FORM of attention: heads of an item, and the form (TDM_VK_ACT_*) of the rows that it leaves where it merges. */
#define TDM_VK_ATTEND_FORM(heads) (heads)
#define TDM_VK_ATTEND_MERGING_FORM(heads, act) ((heads) | ((act) + 1) << 8)
#define TDM_VK_ATTEND_HEADS(form) ((form)&255u)
#define TDM_VK_ATTEND_MERGES(form) ((form) >= 256)
#define TDM_VK_ATTEND_ACT(form) (((form) >> 8) - 1)

/* ROWS of attend.comp: rows of an item, and whether they see as many keys behind them as before them. */
#define TDM_VK_ATTEND_BOTH 256u
#define TDM_VK_ATTEND_ROWS(rows) ((rows)&255u)

/* ---- records in the step buffer ---- */

struct tdm_vk_row {
        TDM_U32 token;
        TDM_U32 position;
        TDM_U32 seq;
        TDM_U32 pad0;
};

/* A piece of attention: some rows of one sequence over spans first … last. It says of its first row what a kernel would
 * else look up before it knows where the first keys lie. */
struct tdm_vk_item {
        TDM_U32 first_row; /* in the step */
        TDM_U32 n_rows;
        TDM_U32 span_first;
        TDM_U32 span_last;
        TDM_U32 slot;       /* of its first row's first head, in the partial results */
        TDM_U32 first_slot; /* of its row's first item, where it has one row */
        TDM_U32 n_items;    /* of its row */
        TDM_U32 position;   /* of its first row, as in tdm_vk_row; seq too */
        TDM_U32 seq;
        TDM_U32 serial;   /* of the step, times TDM_VK_LAYERS_MAX */
        TDM_U32 end;      /* of the keys that a row of it sees: read where rows see what is behind them */
        TDM_U32 n_before; /* rows of its sequence right before its first one, in this step and tile */
        /* of span_first; those that no row of it sees: the nearest that one does */
        TDM_U32 pages[TDM_VK_SPAN / TDM_VK_PAGE_TOKENS];
};

/* Where a row's partial results lie: slot + i * slot_step + head, i < n. */
struct tdm_vk_row_items {
        TDM_U32 slot;
        TDM_U32 slot_step;
        TDM_U32 n;
        TDM_U32 pad0;
};

#define TDM_VK_LAYERS_MAX 512u /* more than a model has */

/* A partial result: o [head_dim], m, l; l = 0: nothing was seen. */
#define TDM_VK_PARTIAL_WIDTH(head_dim) ((head_dim) + 16)

/* Where the kernel rotates (attend-f16.comp) they are flagged words, and the last item merges: a word's flag is the
 * step's serial and the layer, from 1 on. Before the others lie [row of the tile][head] words: how many items of a row
 * and its heads are done. 0 between kernels. */
#define TDM_VK_ARRIVALS 32768

/* ---- push constants ---- */

/* At the end of each: see device/chain.c. chain 0: not chained. */
/* words: [0] not 0 once a kernel gave up waiting; [i] workgroups of the i-th dispatch that are done */
#define TDM_VK_CHAIN                                                                                                   \
        TDM_U64 chain;                                                                                                 \
        TDM_U32 chain_index; /* of this dispatch */                                                                    \
        TDM_U32 chain_wait;  /* for so many of the dispatch before; 0: it is done */
/* of chain_index: this dispatch leaves flagged words; alone in chain_wait: the one before did */
#define TDM_VK_CHAIN_FLAGS 0x80000000u
#define TDM_VK_CHAIN_WORDS 1024u                   /* of a submission: its chained dispatches, at most, and one */
#define TDM_VK_FLAGGED_Y (TDM_VK_CHAIN_WORDS * 4u) /* from there on: a row's matrix products, flagged */
#define TDM_VK_FLAGGED_ROWS 4u                     /* at most; the next one's lie flag_stride bytes further */
#define TDM_VK_CHAIN_ALL                                                                                               \
        0x100000 /* a dispatch whose number of workgroups the host does not know adds this at its end */

struct tdm_vk_embed_push {
        TDM_U64 weights;
        TDM_U64 hidden;
        TDM_U64 rows;
        TDM_U32 d;
        TDM_U32 panel_bytes;
        TDM_F32 scale;
        TDM_U32 hidden_stride; /* in numbers; 0: d. Here and below */
        TDM_VK_CHAIN
};

#define TDM_VK_NORM_ADD 1    /* hidden += rmsnorm(y) * add_gain, first */
#define TDM_VK_NORM_GATHER 2 /* row i is row gather[i] of hidden */
/* y is flagged, and until it is there the kernel goes through its instructions once */
#define TDM_VK_NORM_REHEARSES 4
/* with ADD: hidden += y, or y + add_gain where that is not 0: a bias then */
#define TDM_VK_NORM_PLAIN 8
/* the row is left as F32 too: what a layer's experts are chosen by */
#define TDM_VK_NORM_BESIDE 16
/* of a few rows: hidden rows are waited for by themselves, and flagged acts lie flag_stride apart; with
 * TDM_VK_NORM_REHEARSES y may be counted too */
#define TDM_VK_NORM_FEW 32
struct tdm_vk_norm_push {
        TDM_U64 y;
        TDM_U64 add_gain;
        TDM_U64 hidden; /* of the tile's first row */
        TDM_U64 gain;
        TDM_U64 acts;
        TDM_U64 gather;
        TDM_U64 scale_sums; /* as in tdm_vk_matmul_push, written beside acts; 0: not */
        TDM_U64 beside;     /* with BESIDE: [row][d] */
        TDM_U32 d;
        TDM_U32 y_stride;
        TDM_F32 eps;
        TDM_U32 scale_sums_rows;
        /* where y is flagged, or was since then: hidden is of this dispatch, which has so many workgroups; 0: it is
         * there */
        TDM_U32 hidden_index;
        TDM_U32 hidden_wait;
        TDM_F32 act_scale; /* of rows of F16, here and below: what they are multiplied with, a power of two */
        TDM_U32 hidden_stride;
        TDM_U32 flag_stride; /* bytes from row to row of flagged acts */
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

/* A product with matrices: y [n_rows][y_stride], the outputs of up to three matrices of one type beside each other.
 * With GELU after it (matvec-gelu.comp, and the f16 kernels) w0 is gate, w1 is up, and acts is written, not y. */
struct tdm_vk_matmul_push {
        TDM_U64 x; /* rows of activations */
        TDM_U64 y;
        TDM_U64 w0;
        TDM_U64 w1;
        TDM_U64 w2;
        TDM_U64 scale_sums; /* scale f32 and sum i32 of x, [block][scale_sums_rows]: only matmul-int8.comp reads it */
        TDM_U32 panel1;     /* first panel of w1, of w2 */
        TDM_U32 panel2;
        TDM_U32 panel_bytes;
        TDM_U32 cols;
        TDM_U32 n_out;
        TDM_U32 n_rows;
        TDM_U32 y_stride;
        TDM_U32 panel0; /* of the dispatch */
        TDM_U32 scale_sums_rows;
        TDM_F32 y_scale;        /* of rows of F16: what sums are multiplied with */
        TDM_U64 acts;           /* with GELU: the rows of activations that it leaves, */
        TDM_U64 out_scale_sums; /* their scales and sums, 0: not, */
        TDM_F32 act_scale;      /* and what they are multiplied with, of rows of F16 */
        TDM_U32 flag_stride;    /* bytes from row to row where x, y or acts are flagged */
        TDM_VK_CHAIN
};

/* The next two have their members where tdm_vk_matmul_push had them, so the compiled code is what it was. */

/* repack.comp: a matrix in place. */
struct tdm_vk_repack_push {
        TDM_U64 unused0, unused1;
        TDM_U64 weights;
        TDM_U64 unused2, unused3, unused4;
        TDM_U32 unused5, unused6;
        TDM_U32 panel_bytes;
        TDM_U32 cols;
        TDM_U32 unused7, unused8, unused9;
        TDM_U32 panel0; /* of the dispatch */
        TDM_U32 unused10;
        TDM_F32 scale; /* what stored scales are multiplied with, a power of two */
        TDM_U64 unused11, unused12;
        TDM_F32 unused13;
        TDM_U32 unused14;
        TDM_VK_CHAIN
};

/* bound.comp: how large the products with one matrix, or of two matrices, can be. */
struct tdm_vk_bound_push {
        TDM_U64 gains;  /* f32 [cols]; 0: all are 1 */
        TDM_U64 bounds; /* two words: the bound, the largest scale */
        TDM_U64 w0;
        TDM_U64 w1; /* 0: one matrix */
        TDM_U64 unused0, unused1;
        TDM_U32 unused2, unused3;
        TDM_U32 panel_bytes;
        TDM_U32 cols;
        TDM_U32 unused4, unused5, unused6;
        TDM_U32 panel0;       /* of the dispatch */
        TDM_U32 panel_bytes1; /* of w1 */
        TDM_F32 unused8;
        TDM_U64 unused9, unused10;
        TDM_F32 unused11;
        TDM_U32 unused12;
        TDM_VK_CHAIN
};

/* What rotate.comp does to a head before it turns it: HEADS. */
#define TDM_VK_HEADS_NORMED 0 /* q_gain and k_gain are gains */
#define TDM_VK_HEADS_PLAIN 1  /* nothing */
#define TDM_VK_HEADS_BIASED 2 /* q_gain is the biases of [q, k, v], added to values too; no norm */
#define TDM_VK_HEADS_VALUES 3 /* as NORMED, and values have a norm without gains */
#define TDM_VK_HEADS_V_IS_K 4 /* the same, and values are what the keys are before their norm */
struct tdm_vk_rotate_push {
        TDM_U64 qkv; /* [n_rows of the tile][q, k, v] */
        TDM_U64 rows;
        TDM_U64 table;
        TDM_U64 angles; /* [row][cos head_dim / 2, sin head_dim / 2] */
        TDM_U64 q_gain;
        TDM_U64 k_gain;
        TDM_U64 pieces;     /* addresses of this layer's page 0, 1 << piece_shift, 2 << piece_shift, … */
        TDM_U32 page_bytes; /* from page to page of this layer */
        TDM_U32 piece_shift;
        TDM_U64 counters;
        TDM_U64 log; /* [row of the step][kv head][key, value], as stored; 0: none */
        TDM_U32 part_bytes;
        TDM_U32 first_row;
        TDM_U32 n_heads;
        TDM_U32 n_kv_heads;
        TDM_U32 head_dim;
        TDM_U32 table_entries;
        TDM_F32 eps;
        TDM_F32 query_scale;
        TDM_VK_CHAIN
};

/* Of a layer, for a kernel that rotates rows itself (attend-f16.comp). */
struct tdm_vk_rotation {
        TDM_U64 y; /* as in tdm_vk_rotate_push's qkv, where rows are not flagged */
        TDM_U64 q_gain;
        TDM_U64 k_gain;
        TDM_U64 counters;
        TDM_U32 angles; /* from the push constant's rows on */
        TDM_F32 eps;
        TDM_F32 query_scale;
        TDM_U32 flag_stride; /* bytes from row to row where they are */
};

/* What both kinds of attention are pushed, in this order. */
#define TDM_VK_ATTEND_STEP                                                                                             \
        TDM_U64 rows;                                                                                                  \
        TDM_U64 table;                                                                                                 \
        TDM_U64 items;                                                                                                 \
        TDM_U64 partial;                                                                                               \
        TDM_U64 pieces;                                                                                                \
        TDM_U32 page_bytes;                                                                                            \
        TDM_U32 piece_shift;                                                                                           \
        TDM_U32 part_bytes;                                                                                            \
        TDM_U32 first_row; /* of the tile: qkv's first */                                                              \
        TDM_U32 n_heads;                                                                                               \
        TDM_U32 n_kv_heads;                                                                                            \
        TDM_U32 table_entries;                                                                                         \
        TDM_U32 window; /* 0: none */                                                                                  \
        TDM_U64 acts;   /* as in tdm_vk_merge_push, where attention merges too */
/* query_scale and score_scale: of f16 units. What queries are multiplied with, a power of two, and 1 / query_scale. */
#define TDM_VK_ATTEND_SCALES                                                                                           \
        TDM_F32 act_scale;                                                                                             \
        TDM_F32 query_scale;                                                                                           \
        TDM_F32 score_scale;

/* Attention of rows that rotate.comp rotated. */
struct tdm_vk_attend_push {
        TDM_U64 qkv; /* [n_rows of the tile][q, k, v] */
        TDM_VK_ATTEND_STEP
        TDM_U64 scale_sums; /* as in tdm_vk_merge_push, where attention merges too */
        TDM_U32 scale_sums_rows;
        TDM_VK_ATTEND_SCALES
        TDM_VK_CHAIN
};

/* Attention that rotates a row of each sequence itself (attend-f16.comp with ROTATES). That shader is one code for
 * both, so members lie where tdm_vk_attend_push has them, and the shader calls them p_rotation, p_log and p_layer. */
struct tdm_vk_attend_rotating_push {
        TDM_U64 rotation; /* a tdm_vk_rotation */
        TDM_VK_ATTEND_STEP
        TDM_U64 log;   /* as in tdm_vk_rotate_push */
        TDM_U32 layer; /* from 1 on */
        TDM_VK_ATTEND_SCALES
        TDM_VK_CHAIN
};

struct tdm_vk_merge_push {
        TDM_U64 partial;
        TDM_U64 row_items;
        TDM_U64 sinks; /* [n_heads]; 0: none. Where there are some, attention leaves all merging to this kernel */
        TDM_U64 acts;
        TDM_U64 scale_sums;
        TDM_U32 first_row;
        TDM_U32 n_heads;
        TDM_U32 head_dim;
        TDM_U32 scale_sums_rows;
        TDM_F32 act_scale;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

struct tdm_vk_gelu_push {
        TDM_U64 y; /* [row][gate d_ff, up d_ff] */
        TDM_U64 acts;
        TDM_U64 scale_sums;
        TDM_U32 d_ff;
        TDM_U32 scale_sums_rows;
        TDM_F32 act_scale;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

struct tdm_vk_logits_push {
        TDM_U64 logits;               /* [row][logits_stride] */
        TDM_U64 maxima;               /* [row][maxima_stride], one of each 64 */
        TDM_U64 tops;                 /* [row][tops_stride], one of each TDM_VK_LOGITS_EACH */
        TDM_U64 host_tops, host_sums; /* [row][tops_stride], [row][sums_stride], one of each 256 */
        TDM_U32 n_vocab;
        TDM_U32 logits_stride;
        TDM_U32 maxima_stride;
        TDM_U32 tops_stride;
        TDM_U32 sums_stride;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};
#define TDM_VK_LOGITS_EACH 4096u /* that a workgroup takes */

struct tdm_vk_gather_push {
        TDM_U64 logits; /* [row][logits_stride] */
        TDM_U64 host;   /* the same rows */
        TDM_U64 maxima; /* [row][maxima_stride] */
        /* [row][wanted_stride]: how many of the greatest, how many more; 1 / temperature and four keys where noise
         * decides, else 0; one that nothing reads; then the blocks of 64 of those that are more */
        TDM_U64 wanted;
        TDM_U64 found; /* [row][maxima_stride + 1]: how many of the greatest came, and which */
        TDM_U32 logits_stride;
        TDM_U32 maxima_stride;
        TDM_U32 wanted_stride;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

#define TDM_VK_PUSH_BYTES 128

#endif
