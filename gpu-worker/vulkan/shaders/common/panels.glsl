// The panels of up to three matrices that a kernel multiplies in one dispatch: of tdm_vk_matmul_push p, whose weights
// have FORM and whose rows ACT.
const uint TYPE = TDM_VK_FORM_TYPE(FORM);

// Added to a block's sum that is below 2^22, these are the bits of the float MAGIC_VALUE + sum, whose last place is 1:
// so it needs no conversion. 0 where a sum can be larger.
#define MAGIC (ACT == TDM_VK_ACT_I8 ? MAGIC_BITS : TYPE == TDM_VK_Q4_0 ? MAGIC_BITS : 0)
const int MAGIC_BITS = 0x4b400000;
const float MAGIC_VALUE = 12582912.0; // 1.5 * 2^23

#ifndef EXPERTS // f16-experts.glsl has its own
uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}
#endif

// 0 … 15 to -8 … 7, four at once, of the high halves of the bytes. 16 times as much where rows have 8 bits, which takes
// one instruction and leaves a block's sum small enough: scales are WEIGHTS_SCALE of what they were.
#define WEIGHTS_SCALE (ACT == TDM_VK_ACT_I8 ? TYPE == TDM_VK_Q4_0 ? 0.0625 : 1.0 : 1.0)

uvec4 tdm_weights4(uvec4 q)
{
        return ACT == TDM_VK_ACT_I8 ? q & 0xf0f0f0f0u ^ 0x80808080u :
                (q >> 4 & 0x0f0f0f0fu | 0x80808080u) - 0x08080808u ^ 0x80808080u;
}
