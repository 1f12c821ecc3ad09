// Rounding rows into the form that a matrix reads. Included by kernels whose workgroup has WORKERS threads, a multiple
// of 32, each with COPIES times four neighbouring values; ACT is theirs. In three steps with a barrier between them,
// each for every copy.
#include "gpu-worker/vulkan/shaders/common/fragments.glsl"
#ifndef COPIES
#define COPIES 1
#endif
#define F16_ROWS (ACT == TDM_VK_ACT_F16 || ACT == TDM_VK_ACT_F16_AFTER)
shared float s_amax[COPIES * WORKERS];
shared int s_sum[COPIES * WORKERS];

// Row `row` of those that a kernel leaves. A flagged one stands alone.
uint64_t tdm_acts_row(uint64_t acts, uint cols, uint row)
{
        return F16_ROWS ? tdm_fragment_row(acts, cols, row) : acts + uint64_t(row) * TDM_VK_ACT_STRIDE(ACT, cols);
}

// Where a row's begins.
uint64_t tdm_scale_sums(uint64_t scale_sums, uint row)
{
        return scale_sums == 0 ? 0 : scale_sums + uint64_t(row) * 8;
}

float tdm_finite(float x)
{
        return isnan(x) ? 0 : clamp(x, -3.402823466e38, 3.402823466e38);
}

void tdm_acts_look(uint copy, inout vec4 x, bool used)
{
        x = vec4(tdm_finite(x.x), tdm_finite(x.y), tdm_finite(x.z), tdm_finite(x.w));
        s_amax[copy * WORKERS + gl_LocalInvocationID.x] = used ?
                max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))) : 0;
}

float tdm_acts_round(uint copy, vec4 x, out ivec4 q)
{
        uint thread = copy * WORKERS + gl_LocalInvocationID.x, first = thread & ~7u;
        precise float scale, inverse = 0;
        float amax = 0, most = ACT == TDM_VK_ACT_I8 ? 127.0 : float(TDM_VK_I16_MOST);

        for (uint i = 0; i < 8; i++)
                amax = max(amax, s_amax[first + i]);
        scale = amax / most;
        if (scale < 1.17549435e-38)
                scale = 0;
        else
                inverse = 1 / scale;
        precise vec4 scaled = x * inverse;
        // A quotient that the device rounds up by a few places must not leave the range.
        q = ivec4(clamp(roundEven(scaled), vec4(-most), vec4(most)));
        s_sum[thread] = q.x + q.y + q.z + q.w;
        return scale;
}

// scale_sums: address of the row's (scale, sum) of block 0, those of the next block scale_sums_rows further; 0: none.
// flag: 0, or the row's words are flagged.
void tdm_acts_write(uint copy, uint64_t row, uint cols, uint col, ivec4 q, float scale, uint64_t scale_sums,
        uint scale_sums_rows, uint flag)
{
        uint thread = copy * WORKERS + gl_LocalInvocationID.x;
        ivec4 hi;
        int sum = 0;

        if (ACT == TDM_VK_ACT_I8) {
                tdm_put_word(row, col / 4, (q.x & 0xff) | (q.y & 0xff) << 8 | (q.z & 0xff) << 16 | q.w << 24, flag);
        } else {
                hi = q + TDM_VK_I16_STEP / 2 >> 7; // to the nearest, of either sign
                q -= hi * TDM_VK_I16_STEP;
                tdm_put_word(row, col / 4, (hi.x & 0xff) | (hi.y & 0xff) << 8 | (hi.z & 0xff) << 16 | hi.w << 24, flag);
                tdm_put_word(row, (cols + col) / 4, (q.x & 0xff) | (q.y & 0xff) << 8 | (q.z & 0xff) << 16 | q.w << 24,
                        flag);
        }
        if ((thread & 7u) == 0) {
                for (uint i = 0; i < 8; i++)
                        sum += s_sum[thread + i];
                tdm_put_word(row, (TDM_VK_ACT_SCALES(ACT, cols) + col / 8) / 4, floatBitsToUint(scale), flag);
                tdm_put_word(row, (TDM_VK_ACT_SUMS(ACT, cols) + col / 8) / 4, uint(sum), flag);
                if (scale_sums != 0)
                        Act32x2s(scale_sums).v[col / 32 * scale_sums_rows] = uvec2(floatBitsToUint(scale), uint(sum));
        }
}

// To nearest, ties to even, as tdm_to_f16() does it in many more instructions: test-f16-rows, and the proofs of who
// else writes such rows.
uint tdm_f16_pair(vec2 x)
{
        vec2 y = clamp(x, vec2(-65504.0), vec2(65504.0));

        return packHalf2x16(y);
}

// Four columns of a row of F16; p.act_scale is the kernel's.
void tdm_acts_f16(uint64_t row, uint col, vec4 x, uint flag)
{
        precise vec4 scaled = mix(x, vec4(0), isnan(x)) * p.act_scale;

        tdm_put_word(row, tdm_fragment_word(col, flag != 0), tdm_f16_pair(scaled.xy), flag);
        tdm_put_word(row, tdm_fragment_word(col + 2, flag != 0), tdm_f16_pair(scaled.zw), flag);
}

// Column `col` and the three after it, where there is one copy. Every thread of the workgroup must come here; those
// with `used` have col < cols.
void tdm_put_acts(uint64_t row, uint cols, uint col, vec4 x, bool used, uint64_t scale_sums, uint scale_sums_rows,
        uint flag)
{
        ivec4 q;
        float scale;

        if (ACT == TDM_VK_ACT_F32) {
                if (used)
                        F32x4s(row).v[col / 4] = x;
                return;
        }
        if (F16_ROWS) {
                if (used)
                        tdm_acts_f16(row, col, x, flag);
                return;
        }
        tdm_acts_look(0, x, used);
        barrier();
        scale = tdm_acts_round(0, x, q);
        barrier();
        if (used)
                tdm_acts_write(0, row, cols, col, q, scale, scale_sums, scale_sums_rows, flag);
}
