#version 460
// y = x Wᵀ for many rows, on integer matrix units of a shape that the device names: m rows by n outputs by k columns, k
// 16 or 32. The bits of matvec.comp or, compiled with SUBBLOCK, of matvec-subblock.comp: the products of a block, or of
// each half of it, are summed as integers, exactly, and what is done in floats has the same order.
//
// Nothing is taken for granted of where an element of a matrix lies in registers. Weights, rows and results go through
// shared memory. Scales become matrices of the units' results: a load whose rows, or columns, lie 0 apart. So an
// element and its scales meet in the same place.
//
// A workgroup makes a tile of rows and outputs, each subgroup a piece of it, and walks along all of K. What is loaded
// of some blocks of 32 lies in shared memory while the next are on their way to registers. Segments are loops of their
// own, as in matmul-int8-wide.comp.
//
// Kept compiled (compile.py): it needs a compiler that knows cooperative matrices.
#define UNCHAINED // it never waits for another kernel
#ifndef EMULATED
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#endif
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#include "gpu-worker/vulkan/shaders/common/shared-tiles.h"
layout(local_size_x_id = 3) in;
layout(constant_id = 0) const uint FORM = TDM_VK_Q4_0; // type, TDM_VK_DEINTERLEAVED
layout(constant_id = 1) const uint ACT = TDM_VK_ACT_I8;
layout(constant_id = 2) const uint SHAPE = TDM_VK_TILES(4, 2, 1, 2) | TDM_VK_TILES_UNIT(16, 16, 16, 32);
layout(constant_id = 3) const uint THREADS = 128;
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };
#include "gpu-worker/vulkan/shaders/common/panels.glsl"
#ifdef SUBBLOCK
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
#include "gpu-worker/vulkan/shaders/common/subblock-halves.glsl"
const bool HALVES = TDM_SUBBLOCK_SUB16(TYPE), HAS_MIN = TDM_SUBBLOCK_HAS_MIN(TYPE), WHOLE = TDM_SUBBLOCK_WHOLE(TYPE);
// Two blocks share a scale, and are added up before they meet it: as in matvec-subblock.comp.
const bool PAIRS = TDM_SUBBLOCK_PAIRS(TYPE);
#else
const bool HALVES = false, HAS_MIN = false, WHOLE = true, DEINTERLEAVED = FORM >= TDM_VK_DEINTERLEAVED;
const bool PAIRS = false;
#endif

const uint M = TDM_VK_TILES_M(SHAPE), N = TDM_VK_TILES_N(SHAPE), K = TDM_VK_TILES_K(SHAPE),
           SUBGROUP = TDM_VK_TILES_SUBGROUP(SHAPE), BLOCKS = TDM_VK_TILES_BLOCKS(SHAPE);
const uint ROW_TILES = TDM_VK_TILES_ROWS(SHAPE), OUT_TILES = TDM_VK_TILES_OUTS(SHAPE);
const uint ROW_GROUPS = TDM_VK_TILES_ROW_GROUPS(SHAPE), OUT_GROUPS = THREADS / SUBGROUP / ROW_GROUPS;
const uint ROWS = ROW_GROUPS * ROW_TILES * M, OUTS = OUT_GROUPS * OUT_TILES * N; // of the workgroup
#ifdef SUBBLOCK
// Weights are 2^FOLD times as much, and so are sums: their bytes then take fewer instructions.
const int FOLD = TYPE == TDM_VK_Q6_K                          ? 2
               : TYPE == TDM_VK_Q5_0                          ? 3
               : TYPE == TDM_VK_Q3_K && ACT == TDM_VK_ACT_I8 ? 5
                                                              : 0;
// Quants of four bits that are looked up: two of a byte at once.
const bool TABLE = TYPE == TDM_VK_IQ4_NL || TYPE == TDM_VK_IQ4_XS || TYPE == TDM_VK_MXFP4;
#else
const int FOLD = 0;
#endif
// Sums begin as MAGIC (panels.glsl), whose last place is then 1 / 2^FOLD: where they are small enough. Else they are
// converted, and what is folded is undone in the scales.
const bool MAGIC_FITS = ACT == TDM_VK_ACT_I8 || TYPE == TDM_VK_Q4_0 || TYPE == TDM_VK_Q3_K;
const int MAGIC_START = MAGIC_BITS - (FOLD << 23);
const float MAGIC_LESS = FOLD == 0 ? MAGIC_VALUE : FOLD == 2 ? 3145728.0 : FOLD == 3 ? 1572864.0 : 393216.0;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
const uint N_SUMS = WHOLE ? 1 : 2, N_MINS = PAIRS ? 2 : 1; // of a block
// Units of K = 32 for a half of it: the weights of the other half are 0.
const bool PADDED = !WHOLE && K == 32;
const uint W_UNITS = PADDED ? 2 : 32 / K, X_UNITS = 32 / K, SUM_UNITS = W_UNITS / N_SUMS; // of a block, of a sum
// Times 16 bytes, of an output and a row in shared memory: no bank twice.
const uint W_BLOCK = PADDED ? 4 : 2, W_STRIDE = BLOCKS * W_BLOCK + 1, X_STRIDE = BLOCKS * 2 + 1;
const uint X_ITEMS = ROWS * BLOCKS * 2; // of 16 bytes
// Of a thread.
const uint W_LOADS = (HALVES ? 2 : 1) * OUTS * BLOCKS / THREADS, X_LOADS = (X_ITEMS + THREADS - 1) / THREADS;
const uint SCALE_LOADS = (ROWS * BLOCKS + THREADS - 1) / THREADS;

#include "gpu-worker/vulkan/shaders/common/units-any.glsl"
const uint SUMS = ROW_TILES * OUT_TILES * ELEMENTS; // of a thread
// Of the sums over all segments these are in registers. The others lie in shared memory where registers are few: each
// is used once a segment.
const uint OWN_TOTALS = SUMS - (ROW_TILES < 3 || !HALVES ? 0 : ACT == TDM_VK_ACT_I16 || PAIRS ? 12 : 0);

const uint TURNED = THREADS / SUBGROUP * (M * N / 4), // at the end, of all subgroups
           W_SHARED = OUTS * W_STRIDE > TURNED ? OUTS * W_STRIDE : TURNED;
shared uvec4 s_weights[W_SHARED]; // [output][block]
shared uvec4 s_rows[PLANES * ROWS * X_STRIDE];
// Of numbers: four each, since a unit loads them from where 16 bytes begin.
shared float s_totals[OWN_TOTALS == SUMS ? 1 : (SUMS - OWN_TOTALS) * THREADS];
shared vec4 s_weight_scales[BLOCKS * N_SUMS * OUTS / 4], s_row_scales[BLOCKS * ROWS / 4];
#ifdef SUBBLOCK
shared vec4 s_weight_mins[HAS_MIN ? BLOCKS * N_MINS * OUTS / 4 : 1],
        s_row_sums[HAS_MIN ? BLOCKS * N_MINS * ROWS / 4 : 1];
shared uint s_table[TABLE ? 256 : 1]; // of a byte: what its lower four bits stand for, and in bit 16 the upper ones
#endif
#define NUMBER(array, i) array[(i) / 4][(i) % 4]

// On their way: blocks of an output, halves of blocks of a row.
uvec4 rows[X_LOADS * PLANES];
uint row_scales[SCALE_LOADS];
#ifdef SUBBLOCK
tdm_subblock_raw w[W_LOADS];
tdm_subblock_half w_half[W_LOADS];
tdm_subblock_own own;
uint units; // where in a panel they begin
// Of minima: sums of blocks; where those are of halves, which are summed here, the scales of the rows that are loaded.
uint row_sums[SCALE_LOADS], half_scales[X_LOADS];
uint half_scale_at[X_LOADS];
#else
uvec4 w_low[W_LOADS], w_high[W_LOADS];
uint16_t w_scale[W_LOADS];
#endif
uint64_t panels[W_LOADS];
uint row_at[X_LOADS], row_scale_at[SCALE_LOADS];

// Of the i-th block of weights that a thread loads, in the tile: the panel, the same in a subgroup where the compiler
// can see it; the block and the lane. HALVES: a half of a block, and the block too is the same in a subgroup. PAIRS:
// both blocks of a pair, one after the other, which are all BLOCKS; the workgroup has as many panels as subgroups, or a
// multiple (kernels.c).
uint items_thread(uint i)
{
        return UNIT_INDEX * SUBGROUP + UNIT_LANE + i * THREADS;
}

uint panel_of(uint i)
{
        return PAIRS  ? UNIT_INDEX + i / BLOCKS * (THREADS / SUBGROUP)
             : HALVES ? (UNIT_INDEX + i * (THREADS / SUBGROUP)) / BLOCKS
             : BLOCKS * 16 % SUBGROUP == 0 ? (UNIT_INDEX * SUBGROUP + i * THREADS) / (BLOCKS * 16)
                                           : items_thread(i) / (BLOCKS * 16);
}

uint block_of(uint i)
{
        return PAIRS  ? i % BLOCKS
             : HALVES ? (UNIT_INDEX + i * (THREADS / SUBGROUP)) % BLOCKS : items_thread(i) / 16 % BLOCKS;
}

void load(uint b)
{
        uint lane = UNIT_LANE % 16;

        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
#ifdef SUBBLOCK
                if (HALVES) {
                        w_half[i] = tdm_subblock_half_load(TYPE, panels[i], units, b + block_of(i), lane,
                                                           UNIT_LANE / 16);
                        if (PAIRS && i % BLOCKS != 0) { // both blocks' scales are of the same words
                                w_half[i].scales[0] = w_half[i - 1].scales[0];
                                w_half[i].front = w_half[i - 1].front;
                        }
                } else
                        w[i] = tdm_subblock_load(TYPE, panels[i], own, b + block_of(i));
#else
                const uint words = TYPE == TDM_VK_Q4_0 ? 4 : 8;
                uint at = block_of(i) * 16 + lane;
                uint64_t quants = panels[i] + tdm_scales_bytes(p.cols) + uint64_t(b * (words * 64));

                w_scale[i] = TDM_AT(U16s, 2, panels[i] + uint64_t(b * 32), at, 0);
                if (DEINTERLEAVED) {
                        w_low[i] = TDM_AT(U32x4s, 16, quants, at * (words / 4), 0);
                        if (TYPE == TDM_VK_Q8_0)
                                w_high[i] = TDM_AT(U32x4s, 16, quants, at * 2, 1);
                        continue;
                }
                at = block_of(i) * (words * 16) + lane;
#define WORD(k) TDM_AT(U32s, 4, quants, at, 16 * k)
                w_low[i] = uvec4(WORD(0), WORD(1), WORD(2), WORD(3));
                if (TYPE == TDM_VK_Q8_0)
                        w_high[i] = uvec4(WORD(4), WORD(5), WORD(6), WORD(7));
#endif
        }
        [[unroll]] for (uint plane = 0; plane < PLANES; plane++)
                [[unroll]] for (uint i = 0; i < X_LOADS; i++)
                        rows[plane * X_LOADS + i] =
                                TDM_AT(Act32x4s, 1, p.x + uint64_t(plane * p.cols) + uint64_t(b) * 32, row_at[i], 0);
        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++) {
                row_scales[i] = TDM_AT(Act32s, 1, p.x + uint64_t(b) * 4, row_scale_at[i], 0);
#ifdef SUBBLOCK
                if (HAS_MIN && !HALVES) // sums lie behind scales
                        row_sums[i] = TDM_AT(Act32s, 1, p.x + uint64_t(p.cols / 8) + uint64_t(b) * 4, row_scale_at[i],
                                             0);
#endif
        }
#ifdef SUBBLOCK
        [[unroll]] for (uint i = 0; i < X_LOADS; i++)
                if (PAIRS)
                        half_scales[i] = TDM_AT(Act32s, 1, p.x + uint64_t(b) * 4, half_scale_at[i], 0);
#endif
}

#ifdef SUBBLOCK
// What minima are multiplied with: as in matvec-subblock.comp.
float sum_of(uint scale, int sum)
{
        precise float product = uintBitsToFloat(scale) * float(sum);

        return product;
}

int sum16(int s, uvec4 x)
{
        [[unroll]] for (uint i = 0; i < 4; i++)
                s += tdm_sdot(0x01010101, int(x[i]), 0);
        return s;
}
#endif

#ifdef SUBBLOCK
// A scale of sums that are converted: without what is folded, which is exact.
float unfolded(float scale)
{
        return MAGIC_FITS || FOLD == 0 ? scale : FOLD == 2 ? scale * 0.25 : scale * 0.125;
}

void put_half(uint i, uint b)
{
        uint h = UNIT_LANE / 16, block = block_of(i), out_in_tile = panel_of(i) * 16 + UNIT_LANE % 16;
        uint to = out_in_tile * W_STRIDE + block * W_BLOCK, min_to = (block * 2 + h) * OUTS + out_in_tile,
             scale_to = WHOLE ? block * OUTS + out_in_tile : min_to;
        vec2 scales = tdm_subblock_half_scales(TYPE, w_half[i], b + block, h);

        s_weights[to + h * (W_BLOCK - 1)] = tdm_subblock_half_words(TYPE, FOLD != 0, w_half[i], b + block, h);
        if (PADDED)
                s_weights[to + 1 + h] = uvec4(0);
        NUMBER(s_weight_scales, scale_to) = unfolded(scales.x);
        if (HAS_MIN)
                NUMBER(s_weight_mins, min_to) = scales.y;
}

// What the eight quants of a word stand for: of its lower halves of bytes, of the upper ones.
uvec2 look_up(uint word)
{
        uint a = s_table[word & 0xffu] | s_table[word >> 8 & 0xffu] << 8,
             b = s_table[word >> 16 & 0xffu] | s_table[word >> 24] << 8;

        return uvec2(a & 0xffffu | b << 16, a >> 16 | b & 0xffff0000u);
}

void make_table()
{
        for (uint n = UNIT_INDEX * SUBGROUP + UNIT_LANE; TABLE && n < 256; n += THREADS) {
                uint two = n & 15u | n >> 4 << 16;

                two = TYPE == TDM_VK_MXFP4 ? tdm_subblock_e2m1(two) : tdm_subblock_iq4(two) ^ 0x80808080u;
                s_table[n] = two & 0x00ff00ffu;
        }
}
#endif

// What came, into shared memory.
void put(uint b)
{
        uint lane = UNIT_LANE % 16, thread = items_thread(0);

        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
#ifdef SUBBLOCK
                if (HALVES) {
                        put_half(i, b);
                        continue;
                }
#endif
                uint block = block_of(i), out_in_tile = panel_of(i) * 16 + lane;
                uint to = out_in_tile * W_STRIDE + block * W_BLOCK, scale_to = block * OUTS + out_in_tile;
                uvec4 low, high;

#ifdef SUBBLOCK
                tdm_subblock_slice slice = tdm_subblock_slice_of(TYPE, w[i], own, b + block);

                low = uvec4(slice.word[0], slice.word[1], slice.word[2], slice.word[3]);
                high = uvec4(slice.word[4], slice.word[5], slice.word[6], slice.word[7]);
                [[unroll]] for (uint g = 0; g < 4; g++)
                        if (TYPE == TDM_VK_Q5_0) {
                                low[g] = tdm_subblock_eightfold(w[i], g);
                                high[g] = tdm_subblock_eightfold(w[i], g + 4);
                        } else if (TABLE) {
                                uvec2 both = look_up(w[i].word[g]);

                                low[g] = both.x;
                                high[g] = both.y;
                        }
                NUMBER(s_weight_scales, scale_to) = unfolded(slice.scale[0]);
                if (HAS_MIN)
                        NUMBER(s_weight_mins, scale_to) = slice.min[0];
#else
                if (TYPE == TDM_VK_Q4_0 && ACT == TDM_VK_ACT_I8) { // as tdm_weights4()
                        uvec4 both = w_low[i] ^ 0x88888888u;

                        low = both << 4 & 0xf0f0f0f0u;
                        high = both & 0xf0f0f0f0u;
                } else if (TYPE == TDM_VK_Q4_0) {
                        low = tdm_weights4(w_low[i] << 4);
                        high = tdm_weights4(w_low[i]);
                } else {
                        low = w_low[i] ^ 0x80808080u;
                        high = w_high[i] ^ 0x80808080u;
                }
                NUMBER(s_weight_scales, scale_to) = tdm_f16(uint(w_scale[i])) * WEIGHTS_SCALE;
#endif
                s_weights[to] = low;
                s_weights[to + 1] = high;
        }
        [[unroll]] for (uint plane = 0; plane < PLANES; plane++)
                [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                        uint at = i * THREADS + thread;

                        if (X_ITEMS % THREADS == 0 || at < X_ITEMS)
                                s_rows[thread / (2 * BLOCKS) * X_STRIDE + thread % (2 * BLOCKS) +
                                       (plane * ROWS + i * (THREADS / (2 * BLOCKS))) * X_STRIDE] =
                                        rows[plane * X_LOADS + i];
                }
        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++) {
                uint at = i * THREADS + thread;

                if (ROWS * BLOCKS % THREADS != 0 && at >= ROWS * BLOCKS)
                        break;
                NUMBER(s_row_scales, at % BLOCKS * ROWS + at / BLOCKS) = uintBitsToFloat(row_scales[i]);
#ifdef SUBBLOCK
                if (HAS_MIN && !HALVES)
                        NUMBER(s_row_sums, at % BLOCKS * ROWS + at / BLOCKS) = sum_of(row_scales[i], int(row_sums[i]));
#endif
        }
#ifdef SUBBLOCK
        [[unroll]] for (uint i = 0; i < X_LOADS && PAIRS; i++) {
                uint at = i * THREADS + thread;
                int sum = sum16(0, rows[i]);

                if (ACT == TDM_VK_ACT_I16)
                        sum = sum16(sum * TDM_VK_I16_STEP, rows[X_LOADS + i]);
                if (X_ITEMS % THREADS == 0 || at < X_ITEMS)
                        NUMBER(s_row_sums, at % (2 * BLOCKS) * ROWS + at / (2 * BLOCKS)) = sum_of(half_scales[i], sum);
        }
#endif
}

// The products of sum h of a block, of a tile of rows and the j-th of outputs.
#define MULTIPLY(isum, h, j) {                                                                                         \
        SET(isum, start)                                                                                               \
        [[unroll]] for (uint k = 0; k < SUM_UNITS; k++)                                                                \
                MULTIPLY_ADD(x[(h + k) % X_UNITS], weights[j * W_UNITS + h + k], isum)                                 \
        [[unroll]] for (uint e = 0; e < ELEMENTS && ACT == TDM_VK_ACT_I16; e++)                                        \
                isum[e] = isum[e] * TDM_VK_I16_STEP;                                                                   \
        [[unroll]] for (uint k = 0; k < SUM_UNITS && ACT == TDM_VK_ACT_I16; k++)                                       \
                MULTIPLY_ADD(x[X_UNITS + (h + k) % X_UNITS], weights[j * W_UNITS + h + k], isum)                       \
}

float value_of(int isum)
{
        precise float value = MAGIC_FITS ? intBitsToFloat(isum) - MAGIC_LESS : float(isum);

        return value;
}

// Sum h of a block, of element e, comes to `sum` in matvec.comp's order, or in matvec-subblock.comp's, where the first
// of two stays in `part` until the second is there.
#ifdef SUBBLOCK
#define ADD(sum, e, h, j) {                                                                                            \
        precise float value = value_of(isum[e]), w_scale = w_scales[j * N_SUMS + h][e], more = sum;                    \
        precise float weighted = value * w_scale, scale = w_scale * x_scale[e];                                        \
        precise float both = fma(value, w_scale, part[e]);                                                             \
                                                                                                                       \
        if (WHOLE)                                                                                                     \
                more = fma(value, scale, more);                                                                        \
        else if (h == 0)                                                                                               \
                part[e] = weighted;                                                                                    \
        else                                                                                                           \
                more = fma(both, x_scale[e], more);                                                                    \
        if (HAS_MIN)                                                                                                   \
                more = fma(w_mins[j][e], x_sum[e], more);                                                              \
        sum = more;                                                                                                    \
}
#else
#define ADD(sum, e, h, j) {                                                                                            \
        precise float weighted = value_of(isum[e]) * w_scales[j][e];                                                   \
        precise float more = fma(weighted, x_scale[e], sum);                                                           \
                                                                                                                       \
        sum = more;                                                                                                    \
}
#endif

#ifdef SUBBLOCK
// Block u of a pair comes to `parts`, and its minima to the sums, of the i-th tile of rows. What a tile needs is loaded
// where it begins, weights anew for each: so there are registers to do two operations in one instruction.
#define ADD_BLOCK_OF_PAIR(i, u, is_first) {                                                                            \
        uint x_at = own_x + u * 2, x_scale_at = own_x_scales + u * (ROWS / 4), w_at = own_weights + u * W_BLOCK,       \
             x_sum_at = own_x_scales + u * (2 * ROWS / 4), w_min_at = own_w_scales + u * (2 * OUTS / 4);               \
        INPUT x[PLANES * X_UNITS];                                                                                     \
        FLOATS x_scale, x_sums[2];                                                                                     \
                                                                                                                       \
        TILE_BARRIER                                                                                                   \
        [[unroll]] for (uint k = 0; k < PLANES * X_UNITS; k++)                                                         \
                LOAD_INPUT(x[k], x_at + ((k / X_UNITS * ROWS + i * M) * X_STRIDE + k % X_UNITS * (K / 16)))            \
        LOAD_BY_ROW(x_scale, s_row_scales, x_scale_at + i * M / 4)                                                     \
        [[unroll]] for (uint h = 0; h < 2; h++)                                                                        \
                LOAD_BY_ROW(x_sums[h], s_row_sums, x_sum_at + (h * ROWS + i * M) / 4)                                  \
        [[unroll]] for (uint j = 0; j < OUT_TILES; j++) {                                                              \
                WEIGHTS weights[W_UNITS];                                                                              \
                FLOATS w_mins[2];                                                                                      \
                RESULT isum;                                                                                           \
                                                                                                                       \
                TILE_BARRIER                                                                                           \
                [[unroll]] for (uint k = 0; k < W_UNITS; k++)                                                          \
                        LOAD_WEIGHTS(weights[k], w_at + (j * N * W_STRIDE + k * (K / 16)))                             \
                [[unroll]] for (uint h = 0; h < 2; h++)                                                                \
                        LOAD_BY_COLUMN(w_mins[h], s_weight_mins, w_min_at + (h * OUTS + j * N) / 4)                    \
                MULTIPLY(isum, 0, 0)                                                                                   \
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {                                                       \
                        uint at = j * ELEMENTS + e, sum_at = i * OUT_TILES * ELEMENTS + at;                            \
                        precise float value = value_of(isum[e]), sum = sums[sum_at];                                   \
                                                                                                                       \
                        if (is_first) {                                                                                \
                                precise float first = value * x_scale[e];                                              \
                                                                                                                       \
                                parts[at] = first;                                                                     \
                        } else {                                                                                       \
                                precise float both = fma(value, x_scale[e], parts[at]);                                \
                                                                                                                       \
                                parts[at] = both;                                                                      \
                        }                                                                                              \
                        [[unroll]] for (uint h = 0; h < 2; h++)                                                        \
                                sum = fma(w_mins[h][e], x_sums[h][e], sum);                                            \
                        sums[sum_at] = sum;                                                                            \
                }                                                                                                      \
        }                                                                                                              \
}

// Then the pair meets its scale.
#define ADD_PAIR(i) {                                                                                                  \
        [[unroll]] for (uint j = 0; j < OUT_TILES; j++) {                                                              \
                FLOATS w_scale;                                                                                        \
                                                                                                                       \
                LOAD_BY_COLUMN(w_scale, s_weight_scales, own_w_scales + j * N / 4)                                     \
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {                                                       \
                        uint at = j * ELEMENTS + e, sum_at = i * OUT_TILES * ELEMENTS + at;                            \
                        precise float sum = fma(parts[at], w_scale[e], sums[sum_at]);                                  \
                                                                                                                       \
                        sums[sum_at] = sum;                                                                            \
                }                                                                                                      \
        }                                                                                                              \
}
#endif

void main()
{
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), stride = TDM_VK_ACT_STRIDE(ACT, p.cols),
             thread = items_thread(0);
        // All rows of some outputs at a time: weights come from memory once.
        uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        uint panel0 = p.panel0 + group / gl_NumWorkGroups.y * (OUTS / 16), row0 = group % gl_NumWorkGroups.y * ROWS;
        uint last_panel = (p.n_out + 15) / 16 - 1, last_row = p.n_rows - 1;
        uint own_outs = UNIT_INDEX % OUT_GROUPS * (OUT_TILES * N),
             own_rows = UNIT_INDEX / OUT_GROUPS * (ROW_TILES * M); // of this subgroup, in the tile
        // Where they begin in shared memory. What lies a constant further is then a constant in a load.
        uint own_weights = own_outs * W_STRIDE, own_x = own_rows * X_STRIDE, own_w_scales = own_outs / 4,
             own_x_scales = own_rows / 4;
        precise float sums[SUMS], totals[SUMS]; // [row tile][output tile][element], of the segment, of those before
        // What products are added to. Of rows in two parts the first's sum is multiplied before the second's is added.
        // The compiler does not see that it is a constant, which it would make anew.
        int magic = (ACT == TDM_VK_ACT_I16 ? MAGIC_START / TDM_VK_I16_STEP : MAGIC_START) + int(NOTHING(p.cols));
        RESULT start;

        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                panels[i] = panel_address(min(panel0 + panel_of(i), last_panel));
        }
#ifdef SUBBLOCK
        own = tdm_subblock_own_of(TYPE, p.cols, UNIT_LANE % 16);
        units = tdm_subblock_own_of(TYPE, p.cols, 0).units;
        make_table();
#endif
        [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
                uint at = i * THREADS + thread;

                row_at[i] = min(row0 + at / (2 * BLOCKS), last_row) * stride + at % (2 * BLOCKS) * 16;
#ifdef SUBBLOCK
                if (PAIRS)
                        half_scale_at[i] = min(row0 + at / (2 * BLOCKS), last_row) * stride +
                                TDM_VK_ACT_SCALES(ACT, p.cols) + at / 2 % BLOCKS * 4;
#endif
        }
        [[unroll]] for (uint i = 0; i < SCALE_LOADS; i++) {
                uint at = i * THREADS + thread;

                row_scale_at[i] = min(row0 + at / BLOCKS, last_row) * stride + TDM_VK_ACT_SCALES(ACT, p.cols) +
                        at % BLOCKS * 4;
        }
        [[unroll]] for (uint e = 0; e < SUMS; e++) // -0: to which a sum is added as it is
                if (e < OWN_TOTALS)
                        totals[e] = -0.0;
                else
                        s_totals[(e - OWN_TOTALS) * THREADS + thread] = -0.0;

        [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                start[e] = MAGIC_FITS ? magic : 0;

        // loaded: where what is loaded begins. The last blocks again where there are not enough, a pair that a segment
        // cuts again for the next segment.
        uint b = 0, loaded = 0;

        load(0);
        for (uint end = length; b < nb; end += length) { // a segment
                uint stop = min(end, nb);

                [[unroll]] for (uint e = 0; e < SUMS; e++)
                        sums[e] = 0;
                do {
                        uint next = min((PAIRS ? loaded : b) + BLOCKS, stop), u0 = b - loaded, u1 = next - loaded;

                        SHARED_BARRIER
                        put(loaded);
                        SHARED_BARRIER
                        loaded = min(PAIRS ? next & ~(BLOCKS - 1) : next, nb - BLOCKS);
                        load(loaded); // at the end the last ones again: a load in a branch is waited for there
#ifdef SUBBLOCK
                        float parts[OUT_TILES * ELEMENTS];

                        if (PAIRS && u1 - u0 == 2) {
                                [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                                        ADD_BLOCK_OF_PAIR(i, 0, true)
                                        ADD_BLOCK_OF_PAIR(i, 1, false)
                                        ADD_PAIR(i)
                                }
                        } else if (PAIRS) { // the other one is another segment's
                                [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                                        ADD_BLOCK_OF_PAIR(i, (u0 & BLOCKS - 1), true)
                                        ADD_PAIR(i)
                                }
                        }
#endif
                        [[dont_unroll]] for (uint v = u0; v < u1 && !PAIRS; v++) {
                                uint u = v & (BLOCKS - 1);
                                WEIGHTS weights[OUT_TILES * W_UNITS];
                                FLOATS w_scales[OUT_TILES * N_SUMS], w_mins[OUT_TILES];

                                uint w_at = own_weights + u * W_BLOCK, x_at = own_x + u * 2,
                                     w_scale_at = own_w_scales + u * (N_SUMS * OUTS / 4),
                                     x_scale_at = own_x_scales + u * (ROWS / 4),
                                     w_min_at = own_w_scales + u * (OUTS / 4);

                                [[unroll]] for (uint j = 0; j < OUT_TILES; j++) {
                                        [[unroll]] for (uint k = 0; k < W_UNITS; k++)
                                                LOAD_WEIGHTS(weights[j * W_UNITS + k],
                                                             w_at + (j * N * W_STRIDE + k * (K / 16)))
                                        [[unroll]] for (uint h = 0; h < N_SUMS; h++)
                                                LOAD_BY_COLUMN(w_scales[j * N_SUMS + h], s_weight_scales,
                                                               w_scale_at + (h * OUTS + j * N) / 4)
#ifdef SUBBLOCK
                                        if (HAS_MIN)
                                                LOAD_BY_COLUMN(w_mins[j], s_weight_mins, w_min_at + j * N / 4)
#endif
                                }
                                [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                                        TILE_BARRIER
                                        INPUT x[PLANES * X_UNITS];
                                        FLOATS x_scale, x_sum;

                                        [[unroll]] for (uint k = 0; k < PLANES * X_UNITS; k++)
                                                LOAD_INPUT(x[k], x_at + ((k / X_UNITS * ROWS + i * M) * X_STRIDE +
                                                                         k % X_UNITS * (K / 16)))
                                        LOAD_BY_ROW(x_scale, s_row_scales, x_scale_at + i * M / 4)
#ifdef SUBBLOCK
                                        if (HAS_MIN)
                                                LOAD_BY_ROW(x_sum, s_row_sums, x_scale_at + i * M / 4)
#endif
                                        [[unroll]] for (uint j = 0; j < OUT_TILES; j++) {
                                                float part[ELEMENTS];

                                                [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                                                        part[e] = 0;
                                                [[unroll]] for (uint h = 0; h < N_SUMS; h++) {
                                                        RESULT isum;

                                                        MULTIPLY(isum, h, j)
                                                        [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                                                                ADD(sums[(i * OUT_TILES + j) * ELEMENTS + e], e, h, j)
                                                }
                                        }
                                }
                        }
                        b = next;
                } while (b < stop);
                [[unroll]] for (uint e = 0; e < SUMS; e++) {
                        precise float sum;

                        if (e < OWN_TOTALS) {
                                sum = totals[e] + sums[e];
                                totals[e] = sum;
                        } else {
                                sum = s_totals[(e - OWN_TOTALS) * THREADS + thread] + sums[e];
                                s_totals[(e - OWN_TOTALS) * THREADS + thread] = sum;
                        }
                }
        }

        // Each subgroup turns its sums by a piece of shared memory of its own.
        uint piece = UNIT_INDEX * (M * N / 4);

        barrier();
        [[unroll]] for (uint tile = 0; tile < ROW_TILES * OUT_TILES; tile++) {
                uint row = row0 + own_rows + tile / OUT_TILES * M,
                     at = panel0 * 16 + own_outs + tile % OUT_TILES * N;
                FLOATS total;

                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                        uint i = tile * ELEMENTS + e;

                        if (i < OWN_TOTALS)
                                total[e] = totals[i];
                        else
                                total[e] = s_totals[(i - OWN_TOTALS) * THREADS + thread];
                }
                STORE(total, piece)
                UNIT_BARRIER
                [[unroll]] for (uint k = 0; k < M * N / 4 / SUBGROUP; k++) {
                        uint i = k * SUBGROUP + UNIT_LANE;
                        uint own_row = row + i / (N / 4), own_at = at + i % (N / 4) * 4;
                        uvec4 four = s_weights[piece + i];

                        F32s y = F32s(p.y + (uint64_t(own_row) * p.y_stride + own_at) * 4);

                        if (own_row < p.n_rows)
                                [[unroll]] for (uint c = 0; c < 4; c++)
                                        if (own_at + c < p.n_out)
                                                y.v[c] = uintBitsToFloat(four[c]);
                }
                UNIT_BARRIER
        }
}
