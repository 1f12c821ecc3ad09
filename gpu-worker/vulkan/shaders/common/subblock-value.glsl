// One weight of a panel in the order of fragments-subblock.glsl, with the bits of tdm_subblock_value() of what it was
// repacked from, where that was divided by 1.
#include "gpu-worker/vulkan/shaders/common/fragments-subblock.glsl"

float tdm_pair(uint word, uint lane)
{
        return tdm_f16(word >> lane / 8 * 16 & 0xffffu);
}

// Six bits of the f-th field of a chunk.
uint tdm_fragment_six(uint64_t scales, uint lane, uint f)
{
        uint word = U32s(scales).v[lane % 8] >> lane / 8 * 16,
                rest = uint(U16s(scales + 32).v[lane % 8]) >> lane / 8 * 8 & 0xffu;

        return f == 0 ? word & 63u : f == 1 ? word >> 6 & 63u : f == 2 ? word >> 12 & 15u | rest >> 6 << 4 : rest & 63u;
}

// A quant of a type without a table, of the j-th 16 columns. `eight`: of output g + 8, `late`: of column c + 8, `next`:
// of the column one further.
uint tdm_fragment_quant(const uint type, uint64_t low, uint thread, uint j, uint late, uint eight, uint next)
{
        const uint bits = TDM_FRAGMENT_BITS(type), n_low = bits <= 3 ? 2 : 4;
        uint first = thread * n_low, rest = TDM_FRAGMENT_HIGH_AT(type) / 4 + thread * (bits - n_low);
#define HALF(word) (U32s(low).v[word] >> next * 16 & 0xffffu)

        if (bits == 2)
                return HALF(first + j / 2) >> late * 8 + eight * 4 + j % 2 * 2 & 3u;
        if (bits == 4)
                return HALF(first + j) >> late * 8 + eight * 4 & 15u;
        if (bits == 6) {
                if (late == 0)
                        return HALF(first + j) >> 10 - eight * 6 & 63u;
                if (eight == 1)
                        return HALF(rest + j / 2) >> 4 + j % 2 * 6 & 63u;
                return HALF(first + j) & 15u | (HALF(rest + j / 2) >> j % 2 * 2 & 3u) << 4;
        }
        if (j == 3 && late == 1 && eight == 1) {
                uint u = 0;

                for (uint i = 0; i < bits; i++)
                        u |= (HALF(i < n_low ? first + i : rest) >> 15) << i;
                return u;
        }
        if (bits == 5) {
                if (late == 1 && eight == 1)
                        return HALF(rest) >> (j == 0 ? 5 : j == 1 ? 0 : 10) & 31u;
                return HALF(first + j) >> late * 10 + eight * 5 & 31u;
        }
        if (j % 2 == 0)
                return HALF(first + j / 2) >> late * 6 + eight * 3 & 7u;
        if (late == 0 && eight == 0)
                return HALF(first + j / 2) >> 12 & 7u;
        return HALF(rest) >> (late == 1 && eight == 1 ? 12 : j / 2 * 6 + eight * 3) & 7u;
#undef HALF
}

float tdm_fragment_value(const uint type, uint64_t panel, uint cols, uint k, uint lane)
{
        const uint chunks = TDM_FRAGMENT_UNIT_CHUNKS(type), n_f16 = TDM_FRAGMENT_N_F16(type),
                   bits = TDM_FRAGMENT_BITS(type);
        uint c = k / 64, j = k / 16 % 4, b = j / 2, late = k / 8 % 2, eight = lane / 8, own = lane % 8, next = k % 2;
        uint thread = own * 4 + k % 8 / 2, front = (c / chunks * 8 + own) * (TDM_FRAGMENT_FRONT_WORDS(type) / 8);
        uint64_t low = panel + TDM_FRAGMENT_FRONT_BYTES(type, cols) + uint64_t(c) * TDM_FRAGMENT_CHUNK_BYTES(type),
                 scales = low + TDM_FRAGMENT_SCALES_AT(type);
        precise float scale, add = 0, q;
        uint u;

        if (type == TDM_VK_MXFP4) {
                uint i = eight + late * 2, word = U32s(low).v[thread * 4 + j] >> next * 16;
                uint e = U32s(panel).v[c * 8 + own] >> eight * 16 + b * 8 & 0xffu;
                precise float v = tdm_f16((word >> TDM_FRAGMENT_E2M1_SIGN(i) & 1u) << 15 |
                                          (word >> TDM_FRAGMENT_E2M1_REST(i) & 7u) << 9) * tdm_f16(e << 10);

                return v;
        }
        if (TDM_FRAGMENT_IS_TABLE(type))
                u = U32s(low).v[thread * 4 + j] >> eight * 16 + late * 8 + next * 4 & 15u;
        else
                u = tdm_fragment_quant(type, low, thread, j, late, eight, next);
        q = float(u);

        if (chunks == 1) {
                scale = tdm_pair(U32s(panel).v[front + b], lane);
                if (n_f16 == 2)
                        add = tdm_pair(U32s(panel).v[front + 2 + b], lane);
        } else {
                scale = tdm_pair(U32s(panel).v[front], lane);
                if (n_f16 == 2 && type != TDM_VK_IQ4_XS)
                        add = tdm_pair(U32s(panel).v[front + 1], lane);
                if (type == TDM_VK_IQ4_XS) {
                        uint s = uint(U16s(scales).v[own]) >> eight * 8 + b * 4 & 15u |
                                (U32s(panel).v[front + 1] >> eight * 16 + c % 4 * 4 + b * 2 & 3u) << 4;

                        scale = scale * float(int(s) - 32);
                } else if (type == TDM_VK_Q2_K || type == TDM_VK_Q6_K) {
                        uint s = U32s(scales).v[own * 2 + b] >> eight * 16 + j % 2 * 8 & 0xffu;

                        scale = scale * (type == TDM_VK_Q6_K ? float(int(s) - 128) : float(s & 15u));
                        add = type == TDM_VK_Q2_K ? add * float(s >> 4) : 0;
                } else if (type == TDM_VK_Q3_K) {
                        scale = scale * float(int(tdm_fragment_six(scales, lane, j)) - 32);
                } else {
                        scale = scale * float(tdm_fragment_six(scales, lane, b));
                        add = add * float(tdm_fragment_six(scales, lane, 2 + b));
                }
        }
        if (TDM_FRAGMENT_IS_TABLE(type)) {
                precise float v = tdm_fragment_table(u) * scale;

                return v;
        }
        scale = scale / TDM_FRAGMENT_FACTOR(type, eight);
        if (type == TDM_VK_Q5_0 || type == TDM_VK_Q3_K || type == TDM_VK_Q6_K) {
                precise float v = (q - (type == TDM_VK_Q5_0 ? 16.0 : type == TDM_VK_Q3_K ? 4.0 : 32.0)) * scale;

                return v;
        }
        return fma(q, scale, add);
}
