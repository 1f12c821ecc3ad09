/* What the emulated NPU executes: an "instruction stream" of a few words that names an operation and its shape, where a
 * real NPU's stream configures its DMAs; and the operations themselves, with an NPU's numerics.
 *
 *   gemm: C [M][N] = A [M][K] · B [K][N]. bf16 products are summed in f32, int8 products in int32, as AIE cores do.
 *   ORDER (bf16): per output eight partial sums, product k goes to partial k % 8, k ascending, folded as a tree (i with
 *   i + 4, + 2, + 1); a product of two bf16 values is exact in f32. The order depends on neither M nor N:
 *   "lanes8" in manifests.
 *
 * int4 (npu-worker/manifest/manifest.h): weights of 4 bits and rows of int8 or int16 are summed exactly over each 32
 * of K, and the sums are added in f32 by one fma each, K ascending: "blocks32".
 *
 * Layouts of B: columns, that is [N][K], a weight matrix as it is (mlir-aie's b_col_maj); or tiles of 8 x 8, the int8
 * tiles of AIE2 laid out ahead: [K / 8][N / 8][8 k][8 n]; or int4's blocks 16x8. A and C are rows. The
 * host's buffers are never looked at here: pointers are into the device's copies, and each length has been checked
 * against the operation's needs. */
#ifndef TDM_NPU_EMULATED_PROGRAM_H
#define TDM_NPU_EMULATED_PROGRAM_H

#include "common/util.h"
#include "npu-worker/manifest/attention-abi.h"
#include "npu-worker/manifest/manifest.h"

#define TDM_EMULATED_MAGIC UINT32_C(0x554e5054) /* "TPNU" */
#define TDM_EMULATED_OP_GEMM 1u
#define TDM_EMULATED_OP_ATTENTION 2u
#define TDM_EMULATED_MAX_ARGS 5u
#define TDM_EMULATED_GEMM_WORDS 7u /* an attention has all of them */
#define TDM_EMULATED_TILE 8u
#define TDM_EMULATED_MAX_SIZE 65536u

enum tdm_emulated_type {
        TDM_EMULATED_BF16 = 1,
        TDM_EMULATED_INT8 = 2,
        TDM_EMULATED_INT4 = 3,
        TDM_EMULATED_INT4A16 = 4
};
enum tdm_emulated_layout { TDM_EMULATED_COLUMNS = 1, TDM_EMULATED_TILES = 2, TDM_EMULATED_BLOCKS = 3 };
#define TDM_EMULATED_BLOCK_K 16u /* what a block is cut into */
#define TDM_EMULATED_BLOCK_N 8u

struct tdm_emulated_program {
        uint32_t magic;
        uint32_t op;
        uint32_t type;     /* enum tdm_emulated_type, of A and B */
        uint32_t b_layout; /* enum tdm_emulated_layout */
        uint32_t m, k, n;
        uint32_t n_heads, n_kv_heads, head_dim, pages; /* attention: npu-worker/manifest/attention-abi.h */
};

/* False: no NPU would have been built such a program, or it is not one. */
bool tdm_emulated_program_check(const void *instructions, uint32_t n_words, struct tdm_emulated_program *ret);
/* How long each argument must be at least; returns how many there are. The last of an attention is what the head says.
 */
unsigned tdm_emulated_program_bytes(const struct tdm_emulated_program *program, uint64_t *bytes);
/* Multiplications of its matrix products. */
uint64_t tdm_emulated_program_macs(const struct tdm_emulated_program *program);
/* The parts of run(). */
void tdm_emulated_program_gemm(const struct tdm_emulated_program *program, const void *a, const void *b, void *c);
bool tdm_emulated_program_attention(const struct tdm_emulated_program *program, void *const *data,
                                    uint64_t cache_bytes);
/* False: the head of an attention says what cannot be. data: A, B, C (D, E); cache_bytes of E. */
bool tdm_emulated_program_run(const struct tdm_emulated_program *program, void *const *data, uint64_t cache_bytes);

#endif
