/* A set of NPU programs: one directory with a manifest, an xclbin and an instruction file for each program.
 *
 * An NPU program does one operation of one shape: an mlir-aie or IRON build makes them ahead, none is compiled here.
 * The manifest says what each does, so that the planner (plan.h) can put a model together from what there is. It
 * comes from outside and is not trusted: every value is checked, and what is wrong is said with file, line, what was
 * found and what is allowed. All programs of a set share one xclbin, because changing it costs the NPU about 2 ms.
 *
 *   [set]                          one, first
 *   format = 1
 *   generation = phoenix           what it was built for: phoenix, strix, …, emulated
 *   xclbin = tandem.xclbin         a file in the same directory, as all are
 *   kernel = MLIR_AIE
 *
 *   [a name]                       one for each program, at most 512
 *   op = gemm                      C = A · B; gemv: the same with one row; others are known by name and not used yet
 *   shape = 64x1152x1536           rows of A x columns of A (K) x columns of B (N)
 *   type = bf16                    of A and B, C is f32; int8: C is int32; int4, int4a16: see below, C is f32
 *   a = rows                       layout in memory: rows (the only one for A and C)
 *   b = columns                    rows, columns, or tiles 8x8: [K / 8][N / 8][8 k][8 n]; of int4: blocks 16x8
 *   c = rows
 *   order = lanes8                 in which it adds up over K, a name of its own for each order: programs of one
 *                                  type, K and order give equal bits. int8 sums are exact: exact
 *   columns = 4                    of the array that it occupies
 *   instructions = gemm-64.bin     little-endian 32-bit words
 *   arguments = a b c              their order behind opcode, instructions and word count
 *
 * int4 is the file's Q4_0, which the tile unpacks. K is a multiple of 128, N of 32. Each 32 of K have one scale:
 *   A  for each row and each 128 of K: f32 scale [4], then int8 [128]; of int4a16 int8 high [128], low [128], a value
 *      being 256 high + low
 *   B  [N / 32][K / 32] blocks of 576 bytes: f16 scale [32 n], then signed 4-bit numbers [32 / 16][32 / 8][16 k][8 n]
 *      for blocks 16x8, the first of two in the low half of a byte
 * Order blocks32: acc = 0; for each 32 of K, acc = fma((f32)sum, scale of B * scale of A, acc), sum being exact in
 * int32. It is the host's order for Q4_0 (engine/host/kernels.h), with equal bits where K is not cut.
 *
 * op = attention is a whole attention block over the paged cache in one command (attention-abi.h): shape is
 * rows x d_model x width of q, k and v together, type bf16, b = columns, arguments a b c d e in some order, and two
 * keys more:
 *   heads = 4x1x256                query heads x key and value heads x values of a head
 *   pages = 64                     of a sequence, at most, 32 positions each */
#ifndef TDM_NPU_MANIFEST_H
#define TDM_NPU_MANIFEST_H

#include "common/error.h"

#define TDM_NPU_MANIFEST_NAME "manifest"
#define TDM_NPU_MAX_PROGRAMS 512u
#define TDM_NPU_MAX_ROWS 4096u
#define TDM_NPU_MAX_SIZE 65536u /* K and N */
#define TDM_NPU_MAX_ARGUMENTS 5u

enum tdm_npu_op { TDM_NPU_GEMM = 1, TDM_NPU_GEMV, TDM_NPU_RMSNORM, TDM_NPU_ROPE, TDM_NPU_SOFTMAX, TDM_NPU_ATTENTION };
enum tdm_npu_type { TDM_NPU_BF16 = 1, TDM_NPU_INT8, TDM_NPU_INT4, TDM_NPU_INT4A16 };
const char *tdm_npu_type_name(enum tdm_npu_type type);
int tdm_npu_type_from_name(const char *name); /* -EINVAL */
static inline bool tdm_npu_type_is_int4(enum tdm_npu_type type)
{
        return type == TDM_NPU_INT4 || type == TDM_NPU_INT4A16;
}

#define TDM_NPU_INT4_BLOCK 32u /* of K, and outputs */
#define TDM_NPU_INT4_BLOCK_BYTES (2u * 32 + 32 * 32 / 2)
#define TDM_NPU_INT4_PIECE 128u /* of K: of a row of A */
static inline uint32_t tdm_npu_int4_piece_bytes(enum tdm_npu_type type)
{
        return 4 * 4 + (type == TDM_NPU_INT4 ? 1 : 2) * TDM_NPU_INT4_PIECE;
}

/* A row of A, and all of B. */
static inline uint64_t tdm_npu_row_bytes(enum tdm_npu_type type, uint32_t k)
{
        if (tdm_npu_type_is_int4(type))
                return (uint64_t)k / TDM_NPU_INT4_PIECE * tdm_npu_int4_piece_bytes(type);
        return (uint64_t)k * (type == TDM_NPU_BF16 ? 2 : 1);
}
static inline uint64_t tdm_npu_weights_bytes(enum tdm_npu_type type, uint32_t k, uint32_t n)
{
        if (tdm_npu_type_is_int4(type))
                return (uint64_t)k / TDM_NPU_INT4_BLOCK * (n / TDM_NPU_INT4_BLOCK) * TDM_NPU_INT4_BLOCK_BYTES;
        return (uint64_t)k * n * (type == TDM_NPU_BF16 ? 2 : 1);
}

struct tdm_npu_layout {
        enum tdm_npu_layout_kind { TDM_NPU_ROWS = 1, TDM_NPU_COLUMNS, TDM_NPU_TILES, TDM_NPU_BLOCKS } kind;
        uint32_t tile_rows, tile_cols; /* TILES, BLOCKS */
};

struct tdm_npu_program {
        char name[48];
        enum tdm_npu_op op;
        uint32_t m, k, n;
        enum tdm_npu_type type;
        struct tdm_npu_layout b; /* A and C: rows */
        char order[16];
        uint32_t columns;
        char instructions[96];
        uint8_t argument[TDM_NPU_MAX_ARGUMENTS]; /* where A, B, C (D, E) are: 0 is the first behind the word count */
        uint8_t n_arguments;                     /* 3 or 5 */
        uint32_t n_heads, n_kv_heads, head_dim, pages; /* attention */
};

struct tdm_npu_manifest {
        char directory[256];
        char generation[24];
        char xclbin[96];
        char kernel[48];
        uint64_t hash; /* of the text: part of the numerics id */
        uint32_t n_programs;
        struct tdm_npu_program programs[TDM_NPU_MAX_PROGRAMS];
};

/* Reads directory/manifest. generation: what the device is; NULL: not known, anything goes. TDM_E_BAD_MODEL says what
 * is wrong where. Instruction files are looked at when a plan wants them. The caller frees. */
int tdm_npu_manifest_load(const char *directory, const char *generation, struct tdm_npu_manifest **ret,
                          struct tdm_error *err);
/* The same from text: for tests and fuzzing. path is for messages. */
int tdm_npu_manifest_parse(const char *text, size_t size_bytes, const char *path, const char *generation,
                           struct tdm_npu_manifest **ret, struct tdm_error *err);

#endif
