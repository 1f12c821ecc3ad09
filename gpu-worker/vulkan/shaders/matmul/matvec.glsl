// What matvec.comp and matvec-gelu.comp share: y = x Wᵀ for ROWS rows and the PANELS panels of 16 outputs that
// panel_of() names, in 256 threads: thread = (segment of K, lane), so that neighbours read neighbours and each chain of
// additions is short. ORDER of an output: see shared.h; of a quantised block acc = fma(float(isum) * w_scale, x_scale,
// acc), of float activations acc = fma(w, x, acc) for each column. ROWS and PANELS change only who loads what. Weights
// are on their way before the row is there (chain.c), and a single row goes through shared memory: a thread that reads
// it block by block from far away waits for each.
#include "gpu-worker/vulkan/shaders/common/shared-registers.h"
const bool DEINTERLEAVED = FORM >= TDM_VK_DEINTERLEAVED;
const uint AHEAD = TDM_VK_MATVEC_AHEAD(SHAPE);   // blocks whose weights are on their way at once
const uint PANELS = TDM_VK_MATVEC_PANELS(SHAPE); // of a workgroup: what is loaded of a row is used for each
const uint WORDS = TYPE == TDM_VK_Q4_0 ? 4 : 8;
// columns of F32 rows whose weights and values are asked for at once, where a weight is no more than a load
const uint FLOATS = TYPE == TDM_VK_F32 || TYPE == TDM_VK_F16 || TYPE == TDM_VK_BF16 ? (ROWS > 4 ? 4 : 16) : 1;
const uint PLANES = ACT == TDM_VK_ACT_I16 ? 2 : 1;
// 2: AHEAD blocks are on their way while AHEAD others are used
#ifdef UNCHAINED
const uint SETS = TDM_VK_MATVEC_SETS(SHAPE & ~TDM_VK_MATVEC_ROLLED);
#define ROUND_END(n) ((SHAPE & TDM_VK_MATVEC_ROLLED) != 0 ? (n) + NOTHING(p.cols) : (n))
#else
const uint SETS = TDM_VK_MATVEC_SETS(SHAPE);
#define ROUND_END(n) n
#endif
// blocks of each segment that lie in shared memory at once, a multiple of SETS * AHEAD; 0: none
const uint STAGED = TDM_VK_MATVEC_STAGED(SHAPE);
const uint STAGE_WORDS = STAGED == 0 ? 1 : TDM_VK_SEGMENTS * PLANES * STAGED * 2,
        STAGE_LOADS = (STAGE_WORDS + 255) / 256;
const uint SCALE_SUMS_LOADS = STAGED == 0 ? 1 : (TDM_VK_SEGMENTS * STAGED + 255) / 256;

#ifdef UNCHAINED
const bool LOADS_PAST = true;
const uint ROWS_AT_ONCE = 4;
#else
const bool LOADS_PAST = false;
const uint ROWS_AT_ONCE = 16;
#endif

shared float s_part[TDM_VK_SEGMENTS][ROWS * PANELS][16];
shared uvec4 s_row[STAGE_WORDS]; // [segment][plane][block][half]
shared uvec2 s_scale_starts[STAGED == 0 ? 1 : TDM_VK_SEGMENTS * STAGED];           // [segment][block]

int dot8(int s, uvec4 w_low, uvec4 w_high, uvec4 x_low, uvec4 x_high)
{
        [[unroll]] for (uint i = 0; i < 4; i++) {
                s += tdm_sdot(int(w_low[i]), int(x_low[i]), 0);
                s += tdm_sdot(int(w_high[i]), int(x_high[i]), 0);
        }
        return s;
}

// Weights of Q4_0 are 0 … 15 here, and -8 times the sum of a block's values is added. With more rows it is less to make
// them -8 … 7, in the high halves of bytes: 16 times as much, and so is a block's sum, which stays below 2^22. Then
// MAGIC's last place is 1/16.
const bool SIXTEENFOLD = TYPE == TDM_VK_Q4_0 && ACT == TDM_VK_ACT_I8 && ROWS >= 4;
const int MAGIC_START = SIXTEENFOLD ? 0x49400000 : MAGIC;
const float MAGIC_LESS = SIXTEENFOLD ? 786432.0 : MAGIC_VALUE; // 1.5 * 2^19

// What a block's products are added to, from the sum of its values.
int start_of(int sum)
{
        return (TYPE == TDM_VK_Q4_0 && !SIXTEENFOLD ? -8 * sum : 0) + MAGIC_START;
}

uint panel_of(uint i);

float acc[ROWS * PANELS];
uint64_t panels[PANELS], x[ROWS];
uvec4 w_low[SETS * AHEAD * PANELS], w_high[SETS * AHEAD * PANELS];
uint16_t w_scale[SETS * AHEAD * PANELS];

void load_weights(const uint set, uint b, uint b1, uint lane)
{
        uint scales_bytes = tdm_scales_bytes(p.cols);

        [[unroll]] for (uint u = 0; u < AHEAD; u++)
                [[unroll]] for (uint i = 0; i < PANELS; i++) {
                        uint block = min(b + u, b1 - 1), own = block * 16 + lane, at = block * WORDS * 16 + lane,
                                k = (set * AHEAD + u) * PANELS + i;
                        uint64_t quants = panels[i] + scales_bytes;

                        w_scale[k] = TDM_AT(U16s, 2, panels[i], own, 0);
                        if (DEINTERLEAVED) {
                                w_low[k] = TDM_AT(U32x4s, 16, quants, own * (WORDS / 4), 0);
                                if (TYPE == TDM_VK_Q8_0)
                                        w_high[k] = TDM_AT(U32x4s, 16, quants, own * 2, 1);
                                continue;
                        }
#define WORD(i) TDM_AT(U32s, 4, quants, at, 16 * i)
                        w_low[k] = uvec4(WORD(0), WORD(1), WORD(2), WORD(3));
                        if (TYPE == TDM_VK_Q8_0)
                                w_high[k] = uvec4(WORD(4), WORD(5), WORD(6), WORD(7));
                }
}

// Blocks first … first + STAGED - 1 of each segment of the row; all on their way before the first is put down.
void stage(uint64_t x, uint first, uint length, uint nb)
{
        uint flag = STAGE_LOADS <= TDM_VK_FLAGGED_LOADS ? tdm_flag_read(p.chain_index, p.chain_wait) : 0,
                at[STAGE_LOADS], scale_sums_at[SCALE_SUMS_LOADS];
        uvec4 row[STAGE_LOADS];
        uvec2 scale_sums[SCALE_SUMS_LOADS];

        [[unroll]] for (uint k = 0; k < STAGE_LOADS; k++) {
                uint i = min(k * 256 + gl_LocalInvocationID.x, STAGE_WORDS - 1);
                uint block = min(i / (PLANES * STAGED * 2) * length + first + i / 2 % STAGED, nb - 1),
                        plane = i / (STAGED * 2) % PLANES;

                at[k] = plane * (p.cols / 16) + block * 2 + i % 2;
        }
        [[unroll]] for (uint k = 0; k < SCALE_SUMS_LOADS; k++) {
                uint i = min(k * 256 + gl_LocalInvocationID.x, TDM_VK_SEGMENTS * STAGED - 1);

                scale_sums_at[k] = TDM_VK_ACT_SCALES(ACT, p.cols) / 4 +
                        min(i / STAGED * length + first + i % STAGED, nb - 1);
        }
#define STAGE_FLAGGED \
        [[unroll]] for (uint k = 0; k < STAGE_LOADS; k++) \
                row[k] = tdm_flagged4(x, at[k], flag, there); \
        [[unroll]] for (uint k = 0; k < SCALE_SUMS_LOADS; k++) \
                scale_sums[k] = uvec2(tdm_flagged(x, scale_sums_at[k], flag, there), \
                        tdm_flagged(x, scale_sums_at[k] + nb, flag, there));
#define LOOK_FLAGGED \
        tdm_flagged(x, gl_LocalInvocationID.x * (p.cols / 128), flag, there);
        if (flag != 0) {
                // A few words of the row are looked at until they are there: if hundreds of workgroups asked for all of
                // it again and again, the kernel that they wait for would be slower.
                if (first == 0 && gl_LocalInvocationID.x < 32)
                        TDM_UNTIL(p.chain, there, LOOK_FLAGGED)
                barrier();
                TDM_UNTIL(p.chain, there, STAGE_FLAGGED)
        } else {
                [[unroll]] for (uint k = 0; k < STAGE_LOADS; k++)
                        row[k] = TDM_AT(Act32x4s, 16, x, at[k], 0);
                [[unroll]] for (uint k = 0; k < SCALE_SUMS_LOADS; k++)
                        scale_sums[k] = uvec2(TDM_AT(Act32s, 4, x, scale_sums_at[k], 0),
                                TDM_AT(Act32s, 4, x, scale_sums_at[k] + nb, 0));
        }
        [[unroll]] for (uint k = 0; k < STAGE_LOADS; k++)
                s_row[min(k * 256 + gl_LocalInvocationID.x, STAGE_WORDS - 1)] = row[k];
        [[unroll]] for (uint k = 0; k < SCALE_SUMS_LOADS; k++)
                s_scale_starts[min(k * 256 + gl_LocalInvocationID.x, TDM_VK_SEGMENTS * STAGED - 1)] =
                        uvec2(scale_sums[k].x, uint(start_of(int(scale_sums[k].y))));
}

// Blocks b … b + AHEAD - 1 of a segment, which are j … of what is staged.
void use_weights(const uint set, uint b, uint b1, uint segment, uint j)
{
        [[unroll]] for (uint u = 0; u < AHEAD; u++) {
                uint block = min(b + u, b1 - 1); // past the end: computed, not counted, so that no load waits
                uint at_once = 0; // rows whose values are asked for together, so far
                uvec4 w_0[PANELS], w_1[PANELS];

                [[unroll]] for (uint i = 0; i < PANELS; i++) {
                        uint k = (set * AHEAD + u) * PANELS + i;

                        if (TYPE == TDM_VK_Q8_0) {
                                w_0[i] = w_low[k] ^ 0x80808080u;
                                w_1[i] = w_high[k] ^ 0x80808080u;
                        } else if (SIXTEENFOLD) {
                                uvec4 both = w_low[k] ^ 0x88888888u;

                                w_0[i] = both << 4 & 0xf0f0f0f0u;
                                w_1[i] = both & 0xf0f0f0f0u;
                        } else {
                                w_0[i] = w_low[k] & 0x0f0f0f0fu;
                                w_1[i] = w_low[k] >> 4 & 0x0f0f0f0fu;
                        }
                }
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        uvec4 high0, high1, low0, low1;
                        float x_scale;
                        int start, isum;

                        if (STAGED != 0) {
                                uint at = (segment * PLANES * STAGED + j + u) * 2;
                                uvec2 scale_start = s_scale_starts[segment * STAGED + j + u];

                                high0 = s_row[at];
                                high1 = s_row[at + 1];
                                if (ACT == TDM_VK_ACT_I16) {
                                        low0 = s_row[at + STAGED * 2];
                                        low1 = s_row[at + STAGED * 2 + 1];
                                }
                                x_scale = uintBitsToFloat(scale_start.x);
                                start = int(scale_start.y);
                        } else {
                                high0 = TDM_AT(Act32x4s, 16, x[r], block * 2, 0);
                                high1 = TDM_AT(Act32x4s, 16, x[r], block * 2, 1);
                                if (ACT == TDM_VK_ACT_I16) {
                                        low0 = TDM_AT(Act32x4s, 16, x[r], p.cols / 16 + block * 2, 0);
                                        low1 = TDM_AT(Act32x4s, 16, x[r], p.cols / 16 + block * 2, 1);
                                }
                                x_scale = TDM_AT(F32s, 4, x[r] + TDM_VK_ACT_SCALES(ACT, p.cols), block, 0);
                                start = start_of(int(TDM_AT(Act32s, 4, x[r] + TDM_VK_ACT_SUMS(ACT, p.cols), block,
                                        0)));
                        }
                        [[unroll]] for (uint i = 0; i < PANELS; i++) {
                                uint k = (set * AHEAD + u) * PANELS + i, at = r * PANELS + i;

                                if (ACT == TDM_VK_ACT_I16) {
                                        isum = dot8(0, w_0[i], w_1[i], high0, high1) * TDM_VK_I16_STEP;
                                        isum = dot8(start + isum, w_0[i], w_1[i], low0, low1);
                                } else {
                                        isum = dot8(start, w_0[i], w_1[i], high0, high1);
                                }
                                precise float exact = MAGIC != 0 ? intBitsToFloat(isum) - MAGIC_LESS : float(isum);
                                precise float weighted = exact * tdm_f16(uint(w_scale[k]));
                                precise float sum = fma(weighted, x_scale, acc[at]);
                                acc[at] = u == 0 || b + u < b1 ? sum : acc[at];
                        }
                        // The next rows' loads wait for these sums: else a compiler asks for all rows' values at once,
                        // for which registers have no room. With MAGIC a sum has no sign, so nothing is added.
                        if (MAGIC != 0 && ++at_once == ROWS_AT_ONCE && r + 1 < ROWS) {
                                block += NOTHING(uint(isum));
                                at_once = 0;
                        }
                }
        }
}

// Leaves the sums of segments of the workgroup's panels for rows row0 … in s_part.
void multiply(uint row0)
{
        uint lane = gl_LocalInvocationID.x & 15u, segment = gl_LocalInvocationID.x >> 4, nb = p.cols / 32;
        uint length = TDM_VK_SEGMENT_BLOCKS(p.cols), b0 = segment * length, b1 = min(b0 + length, nb);
        uint stride = TDM_VK_ACT_STRIDE(ACT, p.cols), last_panel = (p.n_out + 15) / 16 - 1;

        [[unroll]] for (uint i = 0; i < ROWS * PANELS; i++)
                acc[i] = 0;
        [[unroll]] for (uint i = 0; i < PANELS; i++)
                panels[i] = panel_address(min(panel_of(i), last_panel));
        [[unroll]] for (uint r = 0; r < ROWS; r++)
                x[r] = p.x + uint64_t(min(row0 + r, p.n_rows - 1)) * stride;
        if (ACT != TDM_VK_ACT_F32 && b0 < b1)
                load_weights(0, b0, b1, lane);
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        if (ACT == TDM_VK_ACT_F32) {
                for (uint k = b0 * 32; k < b1 * 32; k += FLOATS) {
                        float w[FLOATS * PANELS], value[FLOATS * ROWS]; // asked for at once

                        [[unroll]] for (uint j = 0; j < FLOATS; j++) {
                                [[unroll]] for (uint i = 0; i < PANELS; i++)
                                        w[j * PANELS + i] = tdm_panel_value(FORM, panels[i], p.cols, k + j, lane);
                                [[unroll]] for (uint r = 0; r < ROWS; r++)
                                        value[j * ROWS + r] = F32s(x[r]).v[k + j];
                        }
                        [[unroll]] for (uint j = 0; j < FLOATS; j++)
                                [[unroll]] for (uint i = 0; i < PANELS; i++)
                                        [[unroll]] for (uint r = 0; r < ROWS; r++)
                                                acc[r * PANELS + i] = fma(w[j * PANELS + i], value[j * ROWS + r],
                                                                          acc[r * PANELS + i]);
                }
        } else {
                uint round = STAGED == 0 ? length : STAGED;

                for (uint first = 0; first < length; first += round) {
                        if (STAGED != 0) {
                                if (first != 0)
                                        barrier();
                                stage(x[0], first, length, nb);
                                barrier();
                        }
                        for (uint pass = 0; pass < ROUND_END(round); pass += SETS * AHEAD)
                        [[unroll]] for (uint set = 0; set < SETS; set++) {
                                uint j = pass + set * AHEAD, b = b0 + first + j;

                                if (SETS == 2 && (LOADS_PAST || b + AHEAD < b1))
                                        load_weights(1 - set, b + AHEAD, b1, lane);
                                if (j < round && b < b1)
                                        use_weights(set, b, b1, segment, j);
                                // UNCHAINED: the last one again, where nothing follows: a load in a branch costs
                                // a copy of all that it loads.
                                if (SETS == 1 && (LOADS_PAST || b + AHEAD < b1))
                                        load_weights(0, b + AHEAD, b1, lane);
                        }
                }
        }
        [[unroll]] for (uint i = 0; i < ROWS * PANELS; i++)
                s_part[segment][i][lane] = acc[i];
        barrier();
}

// The sum of an output: of a row and panel.
float output_of(uint which, uint lane)
{
        uint nb = p.cols / 32, length = TDM_VK_SEGMENT_BLOCKS(p.cols), n_segments = (nb + length - 1) / length;
        precise float sum = s_part[0][which][lane];

        for (uint s = 1; s < n_segments; s++)
                sum += s_part[s][which][lane];
        return sum;
}
