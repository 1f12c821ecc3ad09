// The panels of up to three matrices that a kernel multiplies in one dispatch: of tdm_vk_matmul_push p.

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(panel) * p.panel_bytes
             : panel < p.panel2 ? p.w1 + uint64_t(panel - p.panel1) * p.panel_bytes
                                : p.w2 + uint64_t(panel - p.panel2) * p.panel_bytes;
}

// 0 … 15 to -8 … 7, four at once, of the low halves of the bytes.
uvec4 tdm_signed4(uvec4 q)
{
        return (q & 0x0f0f0f0fu | 0x80808080u) - 0x08080808u ^ 0x80808080u;
}
