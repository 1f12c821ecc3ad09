// What all kernels share: memory by address, f16, exp, sums over a workgroup, activations. Nothing here depends on the
// size of a subgroup: sums go through shared memory in an order that follows from the workgroup's size alone.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#include "gpu-worker/vulkan/shaders/common/shared.h"

// Four signed bytes against four: exact. (OpSDot; the compiler has no word of its own for it.)
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int tdm_sdot(int a, int b, spirv_literal int format);

// What one kernel writes and another reads may be read while the one that wrote it still ends (chain.c): coherent.
// UNCHAINED: for devices on which it never is, so that caches beside the cores may keep it.
#ifdef UNCHAINED
#define COHERENT
#else
#define COHERENT coherent
#endif
layout(buffer_reference, std430, buffer_reference_align = 4) COHERENT buffer F32s { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) COHERENT buffer F32x4s { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) COHERENT buffer Act32s { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) COHERENT buffer Act32x2s { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) COHERENT buffer Act32x4s { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) volatile coherent buffer Chain { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) volatile coherent buffer Flagged { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) volatile coherent buffer Flagged2s { u64vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer U32s { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U32x2s { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer U32x4s { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U64s { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer U16s { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Rows { tdm_vk_row v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Items { tdm_vk_item v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Rotation { tdm_vk_rotation v; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer RowItems { tdm_vk_row_items v[]; };

// Element index + further of an array at `base`, which is the same in all threads; further is a constant. UNCHAINED: by
// a base and an offset of 32 bits without a sign, both of which the loads of AMD's and Intel's GPUs take. An index of
// SPIR-V has a sign: with it every thread adds 64 bits.
#ifdef UNCHAINED
#define TDM_AT(type, bytes, base, index, further) type((base) + uint64_t((index) * (bytes))).v[further]
#else
#define TDM_AT(type, bytes, base, index, further) type(base).v[(index) + (further)]
#endif

// Zero for any number of things, but the driver's compiler does not know that. It unrolls loops of a known length
// whatever the shader says, and it puts known constants where they cost an instruction.
#define NOTHING(n) ((n) >> 31)

float tdm_f16(uint f16_bits)
{
        return unpackHalf2x16(f16_bits).x;
}

// To nearest, ties to even; |x| <= 65504.
uint tdm_to_f16(float x)
{
        uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;

        if (magnitude < 0x38800000u) { // f32's own adder rounds at f16's last place
                precise float shifted = uintBitsToFloat(magnitude) + 0.5;
                return sign | (floatBitsToUint(shifted) - 0x3f000000u);
        }
        bits = magnitude - 0x38000000u;
        return sign | (bits + 0xfffu + (bits >> 13 & 1u)) >> 13;
}

// As the host's kernels-ops.h. Finite or -inf input, at most 89.
float tdm_exp(float x)
{
        precise float t, n, r, p;
        int i, half_i;

        x = clamp(x, -104.0, 89.0);
        t = fma(x, 1.4426950216293335, 12582912.0);
        n = t - 12582912.0;
        r = fma(-n, 0.6931471824645996, x);
        r = fma(-n, -1.9046542121259336e-09, r);
        p = fma(0.0013814539415761828, r, 0.00836874540644514);
        p = fma(p, r, 0.04166838899254799);
        p = fma(p, r, 0.1666652113199234);
        p = fma(p, r, 0.4999999403953552);
        p = fma(p, r, 1.0);
        p = fma(p, r, 1.0);
        i = int(floatBitsToUint(t) - 0x4b400000u);
        half_i = i >> 1;
        p = p * uintBitsToFloat(uint(half_i + 127) << 23);
        return p * uintBitsToFloat(uint(i - half_i + 127) << 23);
}

// ---- the chain (chain.c) ----

const uint CHAIN_TRIES = 1 << 21; // a second or so

// Until the dispatch before is done. Every thread of the workgroup must come here, once.
void tdm_chain_wait(uint64_t chain, uint index, uint wait_for)
{
#ifndef UNCHAINED
        if (wait_for == 0 || wait_for == TDM_VK_CHAIN_FLAGS)
                return;
        if (gl_LocalInvocationIndex == 0) {
                Chain words = Chain(chain);
                bool done = false;

                // Nothing is loaded in the condition: validation layers cannot instrument that.
                for (uint tries = 1; !done && tries < CHAIN_TRIES; tries++) {
                        done = words.v[(index & ~TDM_VK_CHAIN_FLAGS) - 1] >= wait_for;
                        if (tries % 1024 == 0 && words.v[0] != 0)
                                tries = CHAIN_TRIES;
                }
                if (!done) // after a loop of any length: CPU implementations end one that is too long for them
                        words.v[0] = 1;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
#endif
}

// What this workgroup had to write is written. Every thread must come here, once.
uint tdm_chain_count(uint64_t chain, uint index)
{
        barrier();
        if (gl_LocalInvocationIndex != 0)
                return 0;
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
        return atomicAdd(Chain(chain).v[index], 1) + 1;
}

void tdm_chain_done(uint64_t chain, uint index)
{
#ifndef UNCHAINED
        if (chain != 0 && (index & TDM_VK_CHAIN_FLAGS) == 0)
                tdm_chain_count(chain, index);
#endif
}

// Of a dispatch whose number of workgroups the host does not know when it records.
void tdm_chain_done_all(uint64_t chain, uint index)
{
#ifndef UNCHAINED
        if (chain != 0 && tdm_chain_count(chain, index) == gl_NumWorkGroups.x * gl_NumWorkGroups.y)
                atomicAdd(Chain(chain).v[index], TDM_VK_CHAIN_ALL);
#endif
}

// Flagged words (chain.c): 32 bits, and in the upper half the index of the dispatch that wrote them. A row of them has
// the layout of the row that it stands for, each word twice as wide.

// The flags of what a dispatch leaves, and of what it reads; 0: not flagged.
#ifdef UNCHAINED
#define tdm_flag_left(chain_index) 0
#define tdm_flag_read(chain_index, chain_wait) 0
#else
uint tdm_flag_left(uint chain_index)
{
        return (chain_index & TDM_VK_CHAIN_FLAGS) != 0 ? chain_index & ~TDM_VK_CHAIN_FLAGS : 0;
}

uint tdm_flag_read(uint chain_index, uint chain_wait)
{
        return chain_wait == TDM_VK_CHAIN_FLAGS ? (chain_index & ~TDM_VK_CHAIN_FLAGS) - 1 : 0;
}
#endif

void tdm_put_word(uint64_t row, uint i, uint word, uint flag)
{
        if (flag != 0)
                Flagged(row).v[i] = packUint2x32(uvec2(word, flag));
        else
                Act32s(row).v[i] = word;
}

uint tdm_flagged(uint64_t row, uint i, uint flag, inout bool there)
{
        uvec2 word = unpackUint2x32(Flagged(row).v[i]);

        there = there && word.y == flag;
        return word.x;
}

// Words 2i and 2i + 1; 4i … 4i + 3.
uvec2 tdm_flagged2(uint64_t row, uint i, uint flag, inout bool there)
{
        u64vec2 both = Flagged2s(row).v[i];
        uvec2 a = unpackUint2x32(both.x), b = unpackUint2x32(both.y);

        there = there && a.y == flag && b.y == flag;
        return uvec2(a.x, b.x);
}

uvec4 tdm_flagged4(uint64_t row, uint i, uint flag, inout bool there)
{
        uvec2 a = tdm_flagged2(row, i * 2, flag, there), b = tdm_flagged2(row, i * 2 + 1, flag, there);

        return uvec4(a, b);
}

// Loads until all that a thread loads is there, or a kernel gave up waiting; `once`: does not wait for it.
#define TDM_UNTIL(chain, there, load) TDM_UNTIL_OR(chain, there, false, load)
#define TDM_UNTIL_OR(chain, there, once, load) { \
        bool there = false; \
\
        for (uint tries = 1; !there && tries < CHAIN_TRIES; tries++) { \
                there = true; \
                load \
                there = there || once; \
                if (tries % 1024 == 0 && Chain(chain).v[0] != 0) \
                        tries = CHAIN_TRIES; \
        } \
        if (!there) \
                Chain(chain).v[0] = 1; \
}

// ---- the cache ----

// A layer's pages lie in pieces of 2^shift pages each: no allocation need hold them all.
uint64_t tdm_page(uint64_t pieces, uint shift, uint page, uint page_bytes)
{
        return U64s(pieces).v[page >> shift] + uint64_t(page & (1u << shift) - 1u) * page_bytes;
}

// The first position that a row at `position` sees; window 0: none.
uint tdm_first_seen(uint position, uint window)
{
        return window != 0 && position + 1 > window ? position + 1 - window : 0;
}

// ---- the panels of a matrix ----

uint tdm_scales_bytes(uint cols)
{
        return (cols / 32 * 16 * 2 + 63) / 64 * 64;
}

// Scale of block b, lane (row of the panel) of a quantised panel.
float tdm_panel_scale(uint64_t panel, uint b, uint lane)
{
        return tdm_f16(uint(U16s(panel).v[b * 16 + lane]));
}

// Of column k and a lane of a panel in fragments (fragments.glsl): which scale, which word of its chunk, which bit of
// that.
uint tdm_fragment_scale(uint k, uint lane)
{
        return k / 64 * 32 + lane % 8 * 4 + lane / 8 * 2 + k / 32 % 2;
}

uint tdm_fragment_quants(const uint type, uint k, uint lane, out uint shift)
{
        uint j = k / 16 % 4, thread = lane % 8 * 4 + k % 8 / 2, late = k / 8 % 2;

        if (type == TDM_VK_Q8_0) {
                shift = late * 8 + k % 2 * 16;
                return k / 64 * 256 + j / 2 * 128 + thread * 4 + j % 2 * 2 + lane / 8;
        }
        shift = lane / 8 * 4 + late * 8 + k % 2 * 16;
        return k / 64 * 128 + thread * 4 + j;
}

// What a stored scale is, times the scale that counts: see f16.glsl.
float tdm_fragment_factor(const uint type, uint lane)
{
        return type != TDM_VK_Q4_0 ? 1.0 : lane < 8 ? 16777216.0 : 1048576.0;
}

// Where word g of a lane's block lies, of `words` each.
uint tdm_word(const bool deinterleaved, const uint words, uint b, uint g, uint lane)
{
        return deinterleaved ? (b * 16 + lane) * words + g : (b * words + g) * 16 + lane;
}

// Column k of a lane, dequantised exactly: one rounding at most, in q * scale.
float tdm_panel_value(const uint form, uint64_t panel, uint cols, uint k, uint lane)
{
        const uint type = TDM_VK_FORM_TYPE(form);
        const bool deinterleaved = (form & TDM_VK_DEINTERLEAVED) != 0;
        uint64_t quants = panel + tdm_scales_bytes(cols);
        uint b = k / 32, g = k % 32 / 4, word;
        int q;

        if (type == TDM_VK_F32)
                return F32s(panel).v[k * 16 + lane];
        if (type == TDM_VK_F16)
                return tdm_f16(uint(U16s(panel).v[k * 16 + lane]));
        if (type == TDM_VK_BF16)
                return uintBitsToFloat(uint(U16s(panel).v[k * 16 + lane]) << 16);
        if ((form & TDM_VK_FRAGMENTS) != 0) {
                uint shift, at = tdm_fragment_quants(type, k, lane, shift);

                word = U32s(quants).v[at] >> shift;
                q = type == TDM_VK_Q8_0 ? int(word & 0xffu) - 128 : int(word & 0xfu) - 8;
                precise float whole = float(q) * (tdm_f16(uint(U16s(panel).v[tdm_fragment_scale(k, lane)])) /
                                                  tdm_fragment_factor(type, lane));
                return whole;
        }
        if (type == TDM_VK_Q8_0) {
                word = U32s(quants).v[tdm_word(deinterleaved, 8, b, g, lane)];
                q = int(word >> k % 4 * 8 & 0xffu) - 128;
        } else {
                word = U32s(quants).v[tdm_word(deinterleaved, 4, b, g % 4, lane)];
                q = int(word >> (k % 4 * 8 + g / 4 * 4) & 0xfu) - 8;
        }
        precise float w = float(q) * tdm_panel_scale(panel, b, lane);
        return w;
}
