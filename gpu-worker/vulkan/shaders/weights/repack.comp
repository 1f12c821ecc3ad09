#version 460
// A matrix of Q4_0 or Q8_0 as it lies in a weights segment, repacked where it lies on the device: of each block of a
// panel, from word after word of the 16 outputs to output after output with its words beside each other, so that
// kernels read 16 bytes at once; or of each chunk into the order of fragments.glsl, scales times p.scale. One of F16 or
// BF16 has the order of f16.glsl, as f16 times p.scale. Only what was copied to the device is repacked: all workers
// share a segment that is imported.
#include "gpu-worker/vulkan/shaders/common/common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint WORDS = 4; // of an output's block: 4, 8, of F16 and BF16 16
layout(constant_id = 1) const uint FORM = TDM_VK_DEINTERLEAVED; // or TDM_VK_FRAGMENTS, of F16 and BF16 with the type
layout(push_constant) uniform Push { tdm_vk_repack_push p; };

shared uint s_word[WORDS == 16 ? 512 : 256]; // whole blocks, or chunks

const uint CHUNK = WORDS * 32; // words

// The value of an output and column of a chunk that begins at `base`, as it is stored.
uint stored(uint base, uint lane, uint k)
{
        uint b = k / 32, at = k % 32;

        return WORDS == 4 ? s_word[base + (b * 4 + at / 4 % 4) * 16 + lane] >> (at % 4 * 8 + at / 16 * 4) & 15u
                          : s_word[base + (b * 8 + at / 4) * 16 + lane] >> at % 4 * 8 & 255u;
}

uint fragment(uint base, uint i)
{
        uint thread = WORDS == 4 ? i / 4 : i % 128 / 4, own = thread / 4, c = thread % 4 * 2, word = 0;
        uint j = WORDS == 4 ? i % 4 : i / 128 * 2 + i % 4 / 2;

        for (uint n = 0; n < (WORDS == 4 ? 8 : 4); n++) {
                uint late = WORDS == 4 ? n / 2 % 2 : n % 2, next = WORDS == 4 ? n / 4 : n / 2;
                uint lane = own + (WORDS == 4 ? n % 2 : i % 2) * 8;

                word |= stored(base, lane, j * 16 + late * 8 + c + next) << n * (WORDS == 4 ? 4 : 8);
        }
        return word;
}

// What is stored for a scale: the one that counts is f16, and what it is stored times is a power of two (f16.glsl). One
// too large, which no finite file has, becomes the largest.
uint scale(uint f16_bits, uint lane)
{
        float counts = tdm_f16(p.scale == 1.0 ? f16_bits : tdm_to_f16(tdm_f16(f16_bits) * p.scale));

        return tdm_to_f16(clamp(counts * tdm_fragment_factor(WORDS == 4 ? TDM_VK_Q4_0 : TDM_VK_Q8_0, lane), -65504.0,
                65504.0));
}

// F16 and BF16: a workgroup has a chunk. 16 bits of an output and column become f16, times p.scale.
uint half_of(uint lane, uint k)
{
        uint bits = s_word[k * 8 + lane / 2] >> lane % 2 * 16 & 0xffffu;
        float w = TDM_VK_FORM_TYPE(FORM) == TDM_VK_BF16 ? uintBitsToFloat(bits << 16) : tdm_f16(bits);

        return TDM_VK_FORM_TYPE(FORM) == TDM_VK_F16 && p.scale == 1.0 ?
                bits : tdm_to_f16(clamp(w * p.scale, -65504.0, 65504.0));
}

void plain()
{
        uint64_t panel = p.weights + uint64_t(p.panel0 + gl_WorkGroupID.y) * p.panel_bytes;
        U32s words = U32s(panel + uint64_t(gl_WorkGroupID.x) * 2048);

        for (uint i = gl_LocalInvocationID.x; i < 512; i += 256)
                s_word[i] = words.v[i];
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < 512; i += 256) {
                uint thread = i / 4 % 32, lane = thread / 4 + i / 2 % 2 * 8,
                     k = i / 128 * 16 + i % 2 * 8 + thread % 4 * 2;

                words.v[i] = half_of(lane, k) | half_of(lane, k + 1) << 16;
        }
}

void main()
{
        if (WORDS == 16) {
                plain();
                return;
        }

        uint thread = gl_LocalInvocationID.x, at = gl_WorkGroupID.x * 256 + thread, within = thread % (WORDS * 16);
        uint64_t panel = p.weights + uint64_t(p.panel0 + gl_WorkGroupID.y) * p.panel_bytes;
        U32s words = U32s(panel + tdm_scales_bytes(p.cols));
        bool used = at < p.cols / 32 * WORDS * 16;

        if (FORM == TDM_VK_DEINTERLEAVED) {
                if (used)
                        s_word[thread - within + within % 16 * WORDS + within / 16] = words.v[at];
                barrier();
                if (used)
                        words.v[at] = s_word[thread];
                return;
        }

        uint scale_word = gl_WorkGroupID.x * (256 / CHUNK) * 16 + thread, lane = thread % 16 / 2 + thread % 2 * 8,
                scales = 0;
        bool has_scale = thread < 256 / CHUNK * 16 && scale_word < p.cols / 4;

        if (used)
                s_word[thread] = words.v[at];
        if (has_scale)
                scales = uint(U16s(panel).v[scale_word / 16 * 32 + lane]) |
                        uint(U16s(panel).v[scale_word / 16 * 32 + 16 + lane]) << 16;
        barrier();
        if (used)
                words.v[at] = fragment(thread - thread % CHUNK, thread % CHUNK);
        if (has_scale)
                U32s(panel).v[scale_word] = scale(scales & 0xffffu, lane) | scale(scales >> 16, lane) << 16;
}
