// Halves of blocks, of the types of subblock.glsl that have a scale for 16 columns: for kernels in which a thread loads
// one of them. `b` is the same in a subgroup, so what follows from it is computed once for all its threads; the half
// may differ.
struct tdm_subblock_half {
        uint word[5], scales[2], front[2]; // as they lie
};

// units: where in a panel the units begin.
tdm_subblock_half tdm_subblock_half_load(const uint type, uint64_t panel, uint units, uint b, uint lane, uint h)
{
        const uint n_f16 = tdm_subblock_n_f16(type), scale_bytes = tdm_subblock_scale_bytes(type),
                   block_bytes = tdm_subblock_block_bytes(type);
        uint u = b / 8, i = b % 8;
        // In 64 bits: so compilers compute them for the subgroup, where they would add 32 bits to each thread's offset.
        uint64_t front = panel + uint64_t(u) * (n_f16 * 32),
                 unit = panel + uint64_t(units) + uint64_t(u) * (scale_bytes + 8 * block_bytes),
                 block = unit + scale_bytes + uint64_t(i) * block_bytes;
        tdm_subblock_half half_of;

        half_of.front[0] = uint(TDM_AT(U16s, 2, front, lane, 0));
        if (n_f16 == 2)
                half_of.front[1] = uint(TDM_AT(U16s, 2, front, lane, 16));
        if (type == TDM_VK_Q3_K) {
                half_of.scales[0] = TDM_AT(U32s, 4, unit + uint64_t(i % 4 / 2) * 64, lane, 0);
                half_of.scales[1] = TDM_AT(U32s, 4, unit, lane, 32);
                half_of.word[1] = TDM_AT(U32s, 4, block, lane, 32);
        } else {
                half_of.scales[0] = TDM_AT(U32s, 4, unit + uint64_t(i / 2) * 64, lane, 0);
        }
        if (type == TDM_VK_Q6_K) {
                [[unroll]] for (uint k = 0; k < 4; k++)
                        half_of.word[k] = TDM_AT(U32s, 4, block, lane, k * 16);
                half_of.word[4] = TDM_AT(U32s, 4, block, lane + h * 16, 64);
        } else {
                half_of.word[0] = TDM_AT(U32s, 4, block, lane + h * 16, 0);
        }
        return half_of;
}

// Scale and minimum.
vec2 tdm_subblock_half_scales(const uint type, tdm_subblock_half half_of, uint b, uint h)
{
        uint i = b % 8, byte = i % 2 * 16 + h * 8;
        precise float d = tdm_f16(half_of.front[0]), scale, least = 0;

        if (type == TDM_VK_Q2_K) {
                uint two = half_of.scales[0] >> byte;

                scale = d; // the rest is in the bytes
                least = -(tdm_f16(half_of.front[1]) * float(two >> 4 & 15u));
        } else if (type == TDM_VK_Q3_K) {
                uint low = half_of.scales[0] >> byte + i / 4 * 4 & 15u,
                     high = half_of.scales[1] >> byte + i / 2 * 2 & 3u;

                scale = d * float(int(low | high << 4) - 32);
        } else {
                scale = d * float(int(half_of.scales[0] << 24 - byte) >> 24);
        }
        return vec2(scale, least);
}

// The quants of its four groups. folded: they stand in the upper bits of their bytes, so that their sign is in its
// place without a subtraction: Q6_K's, which always are, four times what they are, Q3_K's 32 times. Q2_K's are times
// the four bits of their half's scale.
uvec4 tdm_subblock_half_words(const uint type, const bool folded, tdm_subblock_half half_of, uint b, uint h)
{
        uvec4 words;

        [[unroll]] for (uint t = 0; t < 4; t++) {
                uint low = half_of.word[0], high;

                if (type == TDM_VK_Q6_K) { // 6 bits, of which two come to the top
                        low = (half_of.word[t] >> h * 4 & 0x0f0f0f0fu) << 2;
                        high = (half_of.word[4] ^ 0xaaaaaaaau) << 6 - t * 2;
                        words[t] = low | high & 0xc0c0c0c0u;
                } else if (type == TDM_VK_Q3_K && folded) { // 3 bits, of which one comes to the top
                        low = t == 3 ? low >> 1 : low << 5 - t * 2;
                        high = ~(half_of.word[1] >> h * 4) << 7 - t;
                        words[t] = low & 0x60606060u | high & 0x80808080u;
                } else if (type == TDM_VK_Q3_K) { // the offset: bytes stay below 132, so none borrows
                        high = half_of.word[1] >> h * 4;
                        high = (t < 2 ? high << 2 - t : high >> t - 2) & 0x04040404u;
                        words[t] = (low >> t * 2 & 0x03030303u | high) + 0x7c7c7c7cu ^ 0x80808080u;
                } else {
                        words[t] = (low >> t * 2 & 0x03030303u) * (half_of.scales[0] >> b % 2 * 16 + h * 8 & 15u);
                }
        }
        return words;
}
