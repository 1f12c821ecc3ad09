// The types of engine/weights/subblock.h: how 32 columns of one lane are read. Quants come out as signed bytes, less
// the type's offset. `type` is a constant wherever these are called, so that all but one way disappears.

bool tdm_subblock_type(const uint type)
{
        return type == TDM_VK_Q4_1 || type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type >= TDM_VK_Q2_K &&
                type <= TDM_VK_Q6_K ||
               type == TDM_VK_IQ4_NL || type == TDM_VK_IQ4_XS || type == TDM_VK_MXFP4;
}

bool tdm_subblock_has_min(const uint type)
{
        return type == TDM_VK_Q4_1 || type == TDM_VK_Q5_1 || type == TDM_VK_Q2_K || type == TDM_VK_Q4_K ||
                type == TDM_VK_Q5_K;
}

// Scale and minimum belong to 16 columns, not to 32.
bool tdm_subblock_sub16(const uint type)
{
        return type == TDM_VK_Q2_K || type == TDM_VK_Q3_K || type == TDM_VK_Q6_K;
}

uint tdm_subblock_unit_blocks(const uint type)
{
        return type == TDM_VK_Q4_1 || type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type == TDM_VK_IQ4_NL ||
                type == TDM_VK_MXFP4 ? 1 : 8;
}

// Of a unit, in front; 0: a byte, an exponent.
uint tdm_subblock_n_f16(const uint type)
{
        if (type == TDM_VK_MXFP4)
                return 0;
        return type == TDM_VK_Q5_0 || type == TDM_VK_Q3_K || type == TDM_VK_Q6_K || type == TDM_VK_IQ4_NL ? 1 : 2;
}

uint tdm_subblock_scale_bytes(const uint type)
{
        if (tdm_subblock_unit_blocks(type) == 1)
                return 0;
        return type == TDM_VK_IQ4_XS ? 64 : type == TDM_VK_Q2_K || type == TDM_VK_Q6_K ? 256 : 192;
}

uint tdm_subblock_block_bytes(const uint type)
{
        return type == TDM_VK_Q2_K ? 128 : type == TDM_VK_Q3_K ? 192 : type == TDM_VK_Q6_K ? 384
             : type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type == TDM_VK_Q5_K ? 320 : 256;
}

uint64_t tdm_subblock_unit(const uint type, uint64_t panel, uint cols, uint u)
{
        uint front_bytes = type == TDM_VK_MXFP4 ? 16 : tdm_subblock_n_f16(type) * 32;
        uint front = (cols / 32 / tdm_subblock_unit_blocks(type) * front_bytes + 63) / 64 * 64;

        return panel + front + uint64_t(u) * (tdm_subblock_scale_bytes(type) +
                tdm_subblock_unit_blocks(type) * tdm_subblock_block_bytes(type));
}

struct tdm_subblock_slice {
        uint word[8]; // columns 4 g … 4 g + 3
        float scale[2], min[2]; // of each half
};

// Four nibbles, a byte each, to what they stand for.
uint tdm_subblock_iq4(uint nibbles)
{
        const uvec4 table = uvec4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
        uint r = 0;

        for (uint i = 0; i < 4; i++) {
                uint n = nibbles >> 8 * i & 15u;

                r |= (table[n >> 2] >> 8 * (n & 3u) & 0xffu) << 8 * i;
        }
        return r;
}

// Four nibbles of MXFP4, a byte each, to twice what they stand for. Magnitudes are 0, 1, 2, 3, 4, 6, 8, 12.
uint tdm_subblock_e2m1(uint nibbles)
{
        uint r = 0;

        for (uint i = 0; i < 4; i++) {
                uint n = nibbles >> 8 * i & 7u, m = n < 4 ? n : (2u | n & 1u) << (n >> 1) - 1;

                r |= ((nibbles >> 8 * i & 8u) != 0 ? 256 - m & 0xffu : m) << 8 * i;
        }
        return r;
}

uint tdm_subblock_scale_byte(U32s scales, uint lane, uint i)
{
        return scales.v[i / 4 * 16 + lane] >> i % 4 * 8 & 0xffu;
}

tdm_subblock_slice tdm_subblock_read(const uint type, uint64_t panel, uint cols, uint b, uint lane)
{
        uint u = b / tdm_subblock_unit_blocks(type), i = b % tdm_subblock_unit_blocks(type),
                n_f16 = tdm_subblock_n_f16(type);
        uint64_t unit = tdm_subblock_unit(type, panel, cols, u);
        U32s scales = U32s(unit), planes = U32s(unit + tdm_subblock_scale_bytes(type) +
                uint64_t(i) * tdm_subblock_block_bytes(type));
        uint min_bits = 0;
        tdm_subblock_slice block;
        precise float d, d_min = 0;

        if (type == TDM_VK_MXFP4) {
                uint e = uint(U16s(panel).v[u * 8 + lane / 2]) >> 8 * (lane & 1u) & 0xffu;

                // 2^(e - 128). Less than the smallest normal number: 0, as devices may take it for 0.
                d = uintBitsToFloat(e < 2 ? 0 : e - 1 << 23);
        } else {
                d = tdm_f16(uint(U16s(panel).v[u * n_f16 * 16 + lane]));
        }

        if (n_f16 == 2)
                min_bits = uint(U16s(panel).v[(u * n_f16 + 1) * 16 + lane]);
        if (tdm_subblock_has_min(type))
                d_min = tdm_f16(min_bits);
        for (uint h = 0; h < 2; h++) {
                block.scale[h] = d;
                block.min[h] = type == TDM_VK_Q4_1 || type == TDM_VK_Q5_1 ? d_min : 0;
        }
        if (type == TDM_VK_IQ4_XS) {
                uint s = tdm_subblock_scale_byte(scales, lane, i / 2) >> i % 2 * 4 & 15u |
                        (min_bits >> 2 * i & 3u) << 4;

                block.scale[0] = block.scale[1] = d * float(int(s) - 32);
        } else if (type == TDM_VK_Q4_K || type == TDM_VK_Q5_K) {
                uint later = tdm_subblock_scale_byte(scales, lane, i + 4), s, m;

                if (i < 4) {
                        s = tdm_subblock_scale_byte(scales, lane, i) & 63u;
                        m = later & 63u;
                } else {
                        s = later & 15u | tdm_subblock_scale_byte(scales, lane, i - 4) >> 6 << 4;
                        m = later >> 4 | tdm_subblock_scale_byte(scales, lane, i) >> 6 << 4;
                }
                block.scale[0] = block.scale[1] = d * float(s);
                block.min[0] = block.min[1] = -(d_min * float(m));
        } else if (tdm_subblock_sub16(type)) {
                for (uint h = 0; h < 2; h++) {
                        uint at = 2 * i + h;

                        if (type == TDM_VK_Q2_K) {
                                uint s = tdm_subblock_scale_byte(scales, lane, at);

                                block.scale[h] = d * float(s & 15u);
                                block.min[h] = -(d_min * float(s >> 4));
                        } else if (type == TDM_VK_Q3_K) {
                                uint low = at < 8 ? tdm_subblock_scale_byte(scales, lane, at) & 15u :
                                        tdm_subblock_scale_byte(scales, lane, at - 8) >> 4;
                                uint high = tdm_subblock_scale_byte(scales, lane, 8 + at % 4) >> 2 * (at / 4) & 3u;

                                block.scale[h] = d * float(int(low | high << 4) - 32);
                        } else {
                                block.scale[h] = d * float(int(tdm_subblock_scale_byte(scales, lane, at)) << 24 >> 24);
                        }
                }
        }

        [[unroll]] for (uint g = 0; g < 8; g++) {
                uint word, offset = 0;

                if (type == TDM_VK_Q2_K || type == TDM_VK_Q3_K) {
                        word = planes.v[g / 4 * 16 + lane] >> g % 4 * 2 & 0x03030303u;
                        if (type == TDM_VK_Q3_K) {
                                word |= (planes.v[32 + lane] >> g & 0x01010101u) << 2;
                                offset = 4;
                        }
                } else {
                        word = planes.v[g % 4 * 16 + lane] >> g / 4 * 4 & 0x0f0f0f0fu;
                        if (type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type == TDM_VK_Q5_K)
                                word |= (planes.v[64 + lane] >> g & 0x01010101u) << 4;
                        if (type == TDM_VK_Q6_K)
                                word |= (planes.v[(4 + g / 4) * 16 + lane] >> g % 4 * 2 & 0x03030303u) << 4;
                        if (type == TDM_VK_Q5_0)
                                offset = 16;
                        if (type == TDM_VK_Q6_K)
                                offset = 32;
                }
                if (type == TDM_VK_IQ4_NL || type == TDM_VK_IQ4_XS)
                        word = tdm_subblock_iq4(word) ^ 0x80808080u;
                else if (type == TDM_VK_MXFP4)
                        word = tdm_subblock_e2m1(word);
                else if (offset != 0)
                        word = (word | 0x80808080u) - offset * 0x01010101u ^ 0x80808080u;
                block.word[g] = word;
        }
        return block;
}

// A weight: exact, or rounded once.
float tdm_subblock_value(const uint type, tdm_subblock_slice block, uint col)
{
        precise float q = float(int(block.word[col / 4]) << (24 - col % 4 * 8) >> 24), v;

        v = q * block.scale[col / 16];
        return tdm_subblock_has_min(type) ? fma(q, block.scale[col / 16], block.min[col / 16]) : v;
}
