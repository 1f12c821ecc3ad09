// A span's own (o, m, l) into the running one on its left: the same operations wherever it happens. l = 0: nothing yet.
struct tdm_running {
        float m, l;
};

// The factors of the old and of the new; false: the new one is taken as it is.
bool tdm_merge(inout tdm_running into, float m, float l, out float old_factor, out float new_factor)
{
        precise float a, b, sum;
        float largest;

        if (into.l == 0) {
                into.m = m;
                into.l = l;
                old_factor = 0;
                new_factor = 1;
                return false;
        }
        largest = max(into.m, m);
        precise float old_distance = into.m - largest, new_distance = m - largest;
        a = tdm_exp(old_distance);
        b = tdm_exp(new_distance);
        precise float add = l * b;
        sum = fma(into.l, a, add);
        into.m = largest;
        into.l = sum;
        old_factor = a;
        new_factor = b;
        return true;
}

// What one item leaves and another one of the same dispatch reads.
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Partials { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer Partial32x2s { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer PartialF32x4s { vec4 v[]; };

shared bool s_is_last;

// Whether this workgroup's item is the last of a row's n_items to come: then all their results are there. at: of the
// row and heads, in the words before `partial`. Every thread must come here.
bool tdm_last_item(uint64_t partial, uint at, uint n_items)
{
        uint64_t arrivals = partial - TDM_VK_ARRIVALS * 4;
        uint n_done = tdm_chain_count(arrivals, at);

        if (gl_LocalInvocationIndex == 0) {
                s_is_last = n_done == n_items;
                if (s_is_last)
                        Chain(arrivals).v[at] = 0;
                memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        }
        barrier();
        return s_is_last;
}

// Partial results that are asked for at once: 4, or 6 where a single row waits for them.
#ifndef MERGE_AHEAD
#define MERGE_AHEAD 4
#endif

// Four neighbouring dimensions of a row's head: the partial results of its items, merged from left to right and
// divided. They lie slot_step apart; slot: the head's in the first.
vec4 tdm_merge_items(uint64_t partial, uint slot, uint slot_step, uint n, uint head_dim, uint d)
{
        tdm_running running = tdm_running(0, 0);
        precise vec4 o = vec4(0);

        for (uint first = 0; first < n; first += MERGE_AHEAD) {
                vec4 spans[MERGE_AHEAD];
                uvec2 ml[MERGE_AHEAD];

                [[unroll]] for (uint i = 0; i < MERGE_AHEAD; i++) { // asked for at once
                        uint64_t item = partial + uint64_t(slot + min(first + i, n - 1) * slot_step) *
                                TDM_VK_PARTIAL_WIDTH(head_dim) * 4;

                        ml[i] = Partial32x2s(item).v[head_dim / 2];
                        spans[i] = PartialF32x4s(item).v[d / 4];
                }
#define MERGE_ITEM(i) \
                if (first + i < n && uintBitsToFloat(ml[i].y) > 0) { \
                        float old_factor, new_factor; \
                        bool merged = tdm_merge(running, uintBitsToFloat(ml[i].x), uintBitsToFloat(ml[i].y), \
                                old_factor, new_factor); \
                        precise vec4 add = spans[i] * new_factor; \
\
                        o = merged ? fma(o, vec4(old_factor), add) : spans[i]; \
                }
#if MERGE_AHEAD == 6 // no loop: shaderc of 2023 unrolls it wrongly
#define MERGE_ITEMS MERGE_ITEM(0) MERGE_ITEM(1) MERGE_ITEM(2) MERGE_ITEM(3) MERGE_ITEM(4) MERGE_ITEM(5)
#else
#define MERGE_ITEMS MERGE_ITEM(0) MERGE_ITEM(1) MERGE_ITEM(2) MERGE_ITEM(3)
#endif
                MERGE_ITEMS
        }
        precise float inverse = 1.0 / running.l;
        precise vec4 divided = o * inverse;

        return divided;
}
