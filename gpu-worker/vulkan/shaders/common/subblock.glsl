// The types of engine/weights/subblock.h: how 32 columns of one lane are read. Quants come out as signed bytes, less
// the type's offset. `type` is a constant wherever these are called, so that all but one way disappears.

// What IQ1, IQ2 and IQ3 are packed as is for kernels that ask for it: the others never see it.
#ifdef TDM_SUBBLOCK_GRIDS
#define TDM_SUBBLOCK_GRID(type)                                                                                        \
        ((type) == TDM_VK_GRID1 || (type) == TDM_VK_GRID2 || (type) == TDM_VK_GRID3_XXS || (type) == TDM_VK_GRID3_S)
// Not the macro above: glslc 2023.2 cannot optimise constants that are nested so.
#define TDM_SUBBLOCK_OR_GRID(type)                                                                                     \
        || (type) == TDM_VK_GRID1 || (type) == TDM_VK_GRID2 || (type) == TDM_VK_GRID3_XXS || (type) == TDM_VK_GRID3_S
#define TDM_SUBBLOCK_THREE(type) ((type) == TDM_VK_GRID1 || (type) == TDM_VK_GRID2) // bits a code
#else
#define TDM_SUBBLOCK_OR_GRID(type)
#endif

bool tdm_subblock_type(const uint type)
{
        return type == TDM_VK_Q4_1 || type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type >= TDM_VK_Q2_K &&
                type <= TDM_VK_Q6_K ||
               type == TDM_VK_IQ4_NL || type == TDM_VK_IQ4_XS || type == TDM_VK_MXFP4 TDM_SUBBLOCK_OR_GRID(type);
}

// As macros, since a constant cannot be what a function returns.
#define TDM_SUBBLOCK_HAS_MIN(type)                                                                                     \
        ((type) == TDM_VK_Q4_1 || (type) == TDM_VK_Q5_1 || (type) == TDM_VK_Q2_K || (type) == TDM_VK_Q4_K ||           \
         (type) == TDM_VK_Q5_K)
#define TDM_SUBBLOCK_SUB16(type)                                                                                       \
        ((type) == TDM_VK_Q2_K || (type) == TDM_VK_Q3_K || (type) == TDM_VK_Q6_K TDM_SUBBLOCK_OR_GRID(type))

// Sums of bytes belong to 32 columns all the same: Q2_K's scales of 16 columns are whole numbers, which quants are
// multiplied with, times the unit's d.
#define TDM_SUBBLOCK_WHOLE(type) (!TDM_SUBBLOCK_SUB16(type) || (type) == TDM_VK_Q2_K)

// So d is the scale of all blocks of a unit. Two of them, of which the first one is even, are added up before they meet
// it.
#define TDM_SUBBLOCK_PAIRS(type) ((type) == TDM_VK_Q2_K)

bool tdm_subblock_has_min(const uint type)
{
        return TDM_SUBBLOCK_HAS_MIN(type);
}

// Scale and minimum belong to 16 columns, not to 32.
bool tdm_subblock_sub16(const uint type)
{
        return TDM_SUBBLOCK_SUB16(type);
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
        return type == TDM_VK_Q5_0 || type == TDM_VK_Q3_K || type == TDM_VK_Q6_K ||
                type == TDM_VK_IQ4_NL TDM_SUBBLOCK_OR_GRID(type) ? 1 : 2;
}

uint tdm_subblock_scale_bytes(const uint type)
{
        if (tdm_subblock_unit_blocks(type) == 1)
                return 0;
#ifdef TDM_SUBBLOCK_GRIDS
        if (TDM_SUBBLOCK_GRID(type))
                return 128;
#endif
        return type == TDM_VK_IQ4_XS ? 64 : type == TDM_VK_Q2_K || type == TDM_VK_Q6_K ? 256 : 192;
}

uint tdm_subblock_block_bytes(const uint type)
{
#ifdef TDM_SUBBLOCK_GRIDS
        if (TDM_SUBBLOCK_THREE(type))
                return 192;
#endif
        return type == TDM_VK_Q2_K ? 128 : type == TDM_VK_Q3_K ? 192 : type == TDM_VK_Q6_K ? 384
             : type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type == TDM_VK_Q5_K ? 320 : 256;
}

// Where in a panel a lane's first words lie, in bytes: of the numbers in front, of the units behind them. They do not
// change along a row, but compilers make them anew for each block that is read, where they are not made before.
struct tdm_subblock_own {
        uint front, units, lane;
};

tdm_subblock_own tdm_subblock_own_of(const uint type, uint cols, uint lane)
{
        uint front_bytes = type == TDM_VK_MXFP4 ? 16 : tdm_subblock_n_f16(type) * 32;
        uint units = (cols / 32 / tdm_subblock_unit_blocks(type) * front_bytes + 63) / 64 * 64;

        return tdm_subblock_own(lane * 2, units + lane * 4, lane);
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

#ifdef TDM_SUBBLOCK_GRIDS
// Four codes of GRID1 … GRID3_S, a byte each, to what they stand for.
uint tdm_subblock_grid_values(const uint type, uint codes)
{
        const uvec4 table = type == TDM_VK_GRID1     ? uvec4(0x000901f9u, 0x0007fff7u, 0, 0)
                          : type == TDM_VK_GRID2     ? uvec4(0x002b1908u, 0x00d5e7f8u, 0, 0)
                          : type == TDM_VK_GRID3_XXS ? uvec4(0x0e0a0602u, 0x1f1a1612u, 0xf2f6fafeu, 0xe1e6eaeeu)
                                                     : uvec4(0x07050301u, 0x0f0d0b09u, 0xf9fbfdffu, 0xf1f3f5f7u);
        uint r = 0;

        for (uint i = 0; i < 4; i++) {
                uint n = codes >> 8 * i & 15u;

                r |= (table[n >> 2] >> 8 * (n & 3u) & 0xffu) << 8 * i;
        }
        return r;
}
#endif

// What is loaded of a block, as it lies: of its unit's scales those words, and of the numbers in front those, that its
// type's scales and minima are made of.
struct tdm_subblock_raw {
        uint word[6], scales[4], front[2];
};

tdm_subblock_raw tdm_subblock_load(const uint type, uint64_t panel, tdm_subblock_own own, uint b)
{
        const uint blocks = tdm_subblock_unit_blocks(type), n_f16 = tdm_subblock_n_f16(type),
                scale_bytes = tdm_subblock_scale_bytes(type), block_bytes = tdm_subblock_block_bytes(type);
        uint u = b / blocks, i = b % blocks, unit = own.units + u * (scale_bytes + blocks * block_bytes);
        U32s scales = U32s(panel + uint64_t(unit)), words = U32s(panel + uint64_t(unit + i * block_bytes));
        U16s front = U16s(panel + uint64_t(own.front + u * n_f16 * 32));
        const uint planes = scale_bytes / 4; // of words
        tdm_subblock_raw raw;

        if (type == TDM_VK_MXFP4)
                raw.front[0] = uint(TDM_AT(U16s, 2, panel, u * 8 + own.lane / 2, 0));
        else
                raw.front[0] = uint(front.v[0]);
        if (n_f16 == 2)
                raw.front[1] = uint(front.v[16]);
        if (type == TDM_VK_Q4_K || type == TDM_VK_Q5_K) {
                [[unroll]] for (uint k = 0; k < 3; k++)
                        raw.scales[k] = scales.v[k * 16];
        } else if (type == TDM_VK_Q2_K || type == TDM_VK_Q6_K) { // both halves' are of one word
                raw.scales[0] = TDM_AT(U32s, 4, panel, unit / 4 + i / 2 * 16, 0);
        } else if (type == TDM_VK_IQ4_XS) {
                raw.scales[0] = scales.v[i / 8 * 16];
        } else if (type == TDM_VK_Q3_K) { // of each half: the low bits, the high ones
                [[unroll]] for (uint h = 0; h < 2; h++) {
                        raw.scales[h] = scales.v[(2 * i + h) % 8 / 4 * 16];
                        raw.scales[2 + h] = scales.v[(8 + (2 * i + h) % 4) / 4 * 16];
                }
        }
#ifdef TDM_SUBBLOCK_GRIDS
        if (TDM_SUBBLOCK_GRID(type)) // both halves' are of one word
                raw.scales[0] = scales.v[i % 4 / 2 * 16];
#endif
        [[unroll]] for (uint k = 0; k < block_bytes / 64; k++)
                raw.word[k] = words.v[planes + k * 16];
        return raw;
}

// Scale and minimum of block i of a unit of Q4_K or Q5_K, 6 bits each: of the first four blocks a byte each of words 0
// and 1, of the others four bits of a byte of word 2, and two of what is left of words 0 and 1. Lanes that are at
// different blocks do not part ways.
uvec2 tdm_subblock_six(const uint scales[4], uint i)
{
        bool early = i < 4;
        uint byte = i % 4 * 8, upper = byte + (early ? 0 : 2), a = scales[0] >> upper, b = scales[1] >> upper,
             c = scales[2] >> byte;

        return uvec2((early ? a : c) & 15u | a & 48u, (early ? b : c >> 4) & 15u | b & 48u);
}

tdm_subblock_slice tdm_subblock_slice_of(const uint type, tdm_subblock_raw raw, tdm_subblock_own own, uint b)
{
        uint i = b % tdm_subblock_unit_blocks(type);
        tdm_subblock_slice block;
        precise float d, d_min = 0;

        if (type == TDM_VK_MXFP4) {
                uint e = raw.front[0] >> 8 * (own.lane & 1u) & 0xffu;

                // 2^(e - 128). Less than the smallest normal number: 0, as devices may take it for 0.
                d = uintBitsToFloat(e < 2 ? 0 : e - 1 << 23);
        } else {
                d = tdm_f16(raw.front[0]);
        }
        if (tdm_subblock_has_min(type))
                d_min = tdm_f16(raw.front[1]);
        for (uint h = 0; h < 2; h++) {
                block.scale[h] = d;
                block.min[h] = type == TDM_VK_Q4_1 || type == TDM_VK_Q5_1 ? d_min : 0;
        }
        if (type == TDM_VK_IQ4_XS) {
                uint s = raw.scales[0] >> i / 2 % 4 * 8 + i % 2 * 4 & 15u | (raw.front[1] >> 2 * i & 3u) << 4;

                block.scale[0] = block.scale[1] = d * float(int(s) - 32);
        } else if (type == TDM_VK_Q4_K || type == TDM_VK_Q5_K) {
                uvec2 six = tdm_subblock_six(raw.scales, i);

                block.scale[0] = block.scale[1] = d * float(six.x);
                block.min[0] = block.min[1] = -(d_min * float(six.y));
        } else if (type == TDM_VK_Q2_K || type == TDM_VK_Q6_K) {
                uint two = raw.scales[0] >> i % 2 * 16;

                for (uint h = 0; h < 2; h++) {
                        uint s = two >> 8 * h & 0xffu;

                        if (type == TDM_VK_Q2_K) {
                                block.scale[h] = d * float(s & 15u);
                                block.min[h] = -(d_min * float(s >> 4));
                        } else {
                                block.scale[h] = d * float(int(two) << (24 - 8 * h) >> 24);
                        }
                }
        } else if (type == TDM_VK_Q3_K) {
                for (uint h = 0; h < 2; h++) {
                        uint at = 2 * i + h, low = raw.scales[h] >> at % 4 * 8 + at / 8 * 4 & 15u,
                             high = raw.scales[2 + h] >> at % 4 * 8 + 2 * (at / 4) & 3u;

                        block.scale[h] = d * float(int(low | high << 4) - 32);
                }
        }
#ifdef TDM_SUBBLOCK_GRIDS
        if (TDM_SUBBLOCK_GRID(type)) {
                d *= type == TDM_VK_GRID3_S ? 1.0 : type == TDM_VK_GRID3_XXS ? 0.5 : 0.125;
                for (uint h = 0; h < 2; h++) {
                        uint at = 2 * i + h, s = raw.scales[0] >> at % 4 * 8 + at / 8 * 4 & 15u;

                        block.scale[h] = d * float(2 * s + 1);
                }
        }
#endif

        [[unroll]] for (uint g = 0; g < 8; g++) {
                uint word, offset = 0;

                if (type == TDM_VK_Q2_K || type == TDM_VK_Q3_K) {
                        word = raw.word[g / 4] >> g % 4 * 2 & 0x03030303u;
                        if (type == TDM_VK_Q3_K) {
                                word |= (raw.word[2] >> g & 0x01010101u) << 2;
                                offset = 4;
                        }
                } else {
                        word = raw.word[g % 4] >> g / 4 * 4 & 0x0f0f0f0fu;
                        if (type == TDM_VK_Q5_0 || type == TDM_VK_Q5_1 || type == TDM_VK_Q5_K)
                                word |= (raw.word[4] >> g & 0x01010101u) << 4;
                        if (type == TDM_VK_Q6_K)
                                word |= (raw.word[4 + g / 4] >> g % 4 * 2 & 0x03030303u) << 4;
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
#ifdef TDM_SUBBLOCK_GRIDS
                if (TDM_SUBBLOCK_THREE(type))
                        word = raw.word[g / 4] >> g % 4 * 2 & 0x03030303u | (raw.word[2] >> g & 0x01010101u) << 2;
                if (TDM_SUBBLOCK_GRID(type))
                        word = tdm_subblock_grid_values(type, word);
#endif
                block.word[g] = word;
        }
        return block;
}

// Of a block of Q2_K: d, and its scales as what d was multiplied with. bytes: quants are times that.
float tdm_subblock_split(tdm_subblock_raw raw, uint b, inout tdm_subblock_slice block, const bool bytes)
{
        uint two = raw.scales[0] >> b % 8 % 2 * 16;

        [[unroll]] for (uint h = 0; h < 2; h++) {
                uint s = two >> 8 * h & 15u;

                block.scale[h] = float(s);
                [[unroll]] for (uint g = 0; g < 4; g++)
                        if (bytes)
                                block.word[h * 4 + g] *= s;
        }
        return tdm_f16(raw.front[0]);
}

// Group g of a block of Q5_0, eight times what slice_of() makes of it: in fewer instructions, and a byte still.
uint tdm_subblock_eightfold(tdm_subblock_raw raw, uint g)
{
        uint low = (g < 4 ? raw.word[g] << 3 : raw.word[g % 4] >> 1) & 0x78787878u, high = ~raw.word[4] << 7 - g;

        return low | high & 0x80808080u;
}

tdm_subblock_slice tdm_subblock_read_at(const uint type, uint64_t panel, tdm_subblock_own own, uint b)
{
        return tdm_subblock_slice_of(type, tdm_subblock_load(type, panel, own, b), own, b);
}

tdm_subblock_slice tdm_subblock_read(const uint type, uint64_t panel, uint cols, uint b, uint lane)
{
        return tdm_subblock_read_at(type, panel, tdm_subblock_own_of(type, cols, lane), b);
}

// A weight: exact, or rounded once.
float tdm_subblock_value(const uint type, tdm_subblock_slice block, uint col)
{
        precise float q = float(int(block.word[col / 4]) << (24 - col % 4 * 8) >> 24), v;

        v = q * block.scale[col / 16];
        return tdm_subblock_has_min(type) ? fma(q, block.scale[col / 16], block.min[col / 16]) : v;
}
