#version 460
// The blocks of 64 logits that the sampler wants to see, to where they would be if all came to the host.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push { tdm_vk_gather_push p; };

void main()
{
        uint64_t wanted = p.wanted + uint64_t(gl_WorkGroupID.y) * p.wanted_stride * 4; // how many, which
        uint64_t row = uint64_t(gl_WorkGroupID.y) * p.logits_stride * 4;
        uint n = min(U32s(wanted).v[0], p.wanted_stride - 1);

        for (uint i = gl_WorkGroupID.x * 4 + gl_LocalInvocationID.x / 64; i < n; i += gl_NumWorkGroups.x * 4) {
                uint at = U32s(wanted).v[1 + i] * 64 + gl_LocalInvocationID.x % 64;

                if (at < p.logits_stride)
                        U32s(p.host + row).v[at] = U32s(p.logits + row).v[at];
        }
}
