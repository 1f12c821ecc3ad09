// units.glsl where there are no matrix units and a subgroup has any size: 32 threads of a workgroup are one subgroup,
// and each product goes through shared memory, element by element, in the order of fragments.glsl. For tests: whatever
// is
// loaded, unpacked or put in a wrong place gives wrong sums, as on a GPU. A product has barriers, so all threads of a
// workgroup must come to as many: a subgroup without work computes what does not count. Before this: THREADS.
#define UNIT_LANE (gl_LocalInvocationIndex % 32u)
#define UNIT_INDEX (gl_LocalInvocationIndex / 32u)
#define UNIT_SHUFFLE_XOR(value, mask) unit_shuffle_xor(value, mask)
#define UNIT_BARRIER barrier()
#define UNIT_A float16_t[8]
#define UNIT_B float16_t[4]
#define SUMS vec4
#define LOADS_STAY
// llvmpipe rounds an fma of f16 twice.
#define UNIT_FMA(a, b, c) f16vec2(fma(vec2(a), vec2(b), vec2(c)))
#define UNIT_END(begin, length, chunks) (begin + length)
#define UNIT_HAS_WORK(condition) true
#define UNIT_COUNTS(condition) unit_counts = condition;

bool unit_counts = true; // what this thread's products are added up for

shared uint s_unit_a[THREADS * 4], s_unit_b[THREADS * 2];

uint unit_shuffle_xor(uint value, uint mask)
{
        barrier();
        s_unit_a[gl_LocalInvocationIndex] = value;
        barrier();
        return s_unit_a[gl_LocalInvocationIndex ^ mask];
}

// Of thread t: outputs t / 4 and eight further, by rows t % 4 * 2 and the next.
vec4 coopMatMulAdd(float16_t a[8], float16_t b[4], vec4 c)
{
        uint thread = gl_LocalInvocationIndex, first = thread / 32 * 32, lane = thread % 32;
        vec4 before = c;

        barrier();
        for (uint i = 0; i < 4; i++)
                s_unit_a[thread * 4 + i] = packFloat2x16(f16vec2(a[i * 2], a[i * 2 + 1]));
        for (uint i = 0; i < 2; i++)
                s_unit_b[thread * 2 + i] = packFloat2x16(f16vec2(b[i * 2], b[i * 2 + 1]));
        barrier();
        for (uint i = 0; i < 8; i++) { // columns 2 i and 2 i + 1
                uint from_a = (first + lane / 4 * 4 + i % 4) * 4 + i / 4,
                     from_b = (first + lane % 4 * 8 + i % 4) * 2 + i / 4;
                vec2 g = unpackHalf2x16(s_unit_a[from_a]), g8 = unpackHalf2x16(s_unit_a[from_a + 2]),
                     row = unpackHalf2x16(s_unit_b[from_b]), next = unpackHalf2x16(s_unit_b[from_b + 8]);

                for (uint k = 0; k < 2; k++)
                        c = fma(vec4(g[k], g[k], g8[k], g8[k]), vec4(row[k], next[k], row[k], next[k]), c);
        }
        return unit_counts ? c : before;
}
