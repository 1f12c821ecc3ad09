// What kernels for f16 matrix units share, of 16 by 8 by 16: the units' inputs and sums, and two halves of a word.
//
// EMULATED: the same with no matrix units, in units-emulated.glsl, for tests on devices that have none.
#ifdef EMULATED
#include "gpu-worker/vulkan/shaders/common/units-emulated.glsl"
#else
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define UNIT_LANE gl_SubgroupInvocationID
#define UNIT_INDEX gl_SubgroupID // of the subgroup, in its workgroup
#define UNIT_SHUFFLE_XOR(value, mask) subgroupShuffleXor(value, mask)
// What a subgroup has put into shared memory is there for it.
#define UNIT_BARRIER { subgroupMemoryBarrierShared(); subgroupBarrier(); }
#define UNIT_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define UNIT_B coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
// Loads are not moved behind it. No fence, as subgroupBarrier() is one for memory too.
#define LOADS_STAY controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, 0, 0);
// Of f16, rounded once.
#define UNIT_FMA(a, b, c) fma(a, b, c)
// A subgroup's chunks of K begin … end - 1; whether it has any; which of them count. Emulated, all have as many.
#define UNIT_END(begin, length, chunks) min(begin + length, chunks)
#define UNIT_HAS_WORK(condition) condition
#define UNIT_COUNTS(condition)
#endif

#define F16X2(word) unpackFloat2x16(word)
// What a thread has of B.
#define ROWS_FRAGMENT(b, word0, word1) { \
        f16vec2 low_ = F16X2(word0), high_ = F16X2(word1); \
        b[0] = low_.x; b[1] = low_.y; b[2] = high_.x; b[3] = high_.y; }

// After it loads that are not coherent see what the dispatch before has left, so that the first-level cache may have
// it: nonprivate.
void tdm_chain_wait_cached(const uint64_t chain, const uint index, const uint wait_for)
{
        tdm_chain_wait(chain, index, wait_for);
#ifndef EMULATED
        if (wait_for != 0)
                memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
#endif
}
