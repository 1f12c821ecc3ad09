#version 460
// Rows of the embedding matrix, dequantised and scaled, into the residual stream.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
#define TDM_SUBBLOCK_GRIDS
#include "gpu-worker/vulkan/shaders/common/subblock.glsl"
#include "gpu-worker/vulkan/shaders/common/subblock-value.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FORM = 0;
layout(push_constant) uniform Push { tdm_vk_embed_push p; };

const uint TYPE = TDM_VK_FORM_TYPE(FORM);

// F16 and BF16 in fragments (f16.glsl): f16.
float plain(uint64_t panel, uint k, uint lane)
{
        uint word = (k / 16 * 32 + lane % 8 * 4 + k % 8 / 2) * 4 + lane / 8 * 2 + k / 8 % 2;

        return tdm_f16(uint(U16s(panel).v[word * 2 + k % 2]));
}

void main()
{
        uint row = gl_WorkGroupID.x, token = Rows(p.rows).v[row].token;
        uint64_t panel = p.weights + uint64_t(token / 16) * p.panel_bytes;

        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
        uint k = gl_WorkGroupID.y * 256 + gl_LocalInvocationID.x;

        if (k < p.d) {
                float w = FORM == (TDM_VK_F16 | TDM_VK_FRAGMENTS) || FORM == (TDM_VK_BF16 | TDM_VK_FRAGMENTS) ?
                          plain(panel, k, token % 16)
                        : !tdm_subblock_type(TYPE) ? tdm_panel_value(FORM, panel, p.d, k, token % 16)
                        : (FORM & TDM_VK_FRAGMENTS) != 0 ? tdm_fragment_value(TYPE, panel, p.d, k, token % 16)
                        : tdm_subblock_value(TYPE, tdm_subblock_read(TYPE, panel, p.d, k / 32, token % 16), k % 32);
                precise float x = w * p.scale;
                F32s(p.hidden + uint64_t(row) * (p.hidden_stride != 0 ? p.hidden_stride : p.d) * 4).v[k] = x;
        }
        tdm_chain_done(p.chain, p.chain_index);
}
