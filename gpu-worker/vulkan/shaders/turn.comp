#version 460
// A matrix of Q4_0 or Q8_0 as it lies in a weights segment, turned where it lies on the device: of each block of a panel, from
// word after word of the 16 outputs to output after output with its words beside each other. So kernels read 16 bytes at once.
// Only what was copied to the device is turned: a segment that is imported belongs to everybody.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint WORDS = 4; // of an output's block: 4, 8
layout(push_constant) uniform Push { tdm_vk_matmul_push p; };

shared uint s_word[256]; // whole blocks

void main()
{
        uint thread = gl_LocalInvocationID.x, at = gl_WorkGroupID.x * 256 + thread, within = thread % (WORDS * 16);
        U32s words = U32s(p.w0 + uint64_t(p.panel0 + gl_WorkGroupID.y) * p.panel_bytes + tdm_scales_bytes(p.cols));
        bool used = at < p.cols / 32 * WORDS * 16;

        if (used)
                s_word[thread - within + within % 16 * WORDS + within / 16] = words.v[at];
        barrier();
        if (used)
                words.v[at] = s_word[thread];
}
