// Integer matrix units of any shape, for matmul-int8-any.comp: M rows by N outputs by K columns of bytes, in subgroups
// of SUBGROUP. A thread has ELEMENTS of a result; which ones nobody asks. Inputs are loaded from s_rows and s_weights,
// whose rows and outputs lie X_STRIDE and W_STRIDE times 16 bytes apart.
//
// EMULATED: the same with no matrix units, in plain code, for tests on devices that have none.
const uint ELEMENTS = M * N / SUBGROUP;

#ifdef EMULATED

#define UNIT_LANE (gl_LocalInvocationIndex % SUBGROUP)
#define UNIT_INDEX (gl_LocalInvocationIndex / SUBGROUP)
#define UNIT_BARRIER barrier();
#define RESULT int[ELEMENTS]
#define FLOATS float[ELEMENTS]
#define INPUT uint // where it lies: it is read where it is multiplied
#define WEIGHTS uint
// Of a thread's e-th element; an order that no device is known to have.
#define UNIT_ROW(e) ((e) / 2 * (M * 2 / ELEMENTS) + UNIT_LANE % (M * 2 / ELEMENTS))
#define UNIT_COLUMN(e) (UNIT_LANE / (M * 2 / ELEMENTS) * 2 + (e) % 2)

#define SET(m, from) [[unroll]] for (uint e_ = 0; e_ < ELEMENTS; e_++) m[e_] = from[e_];
#define LOAD_INPUT(m, at) m = at;
#define LOAD_WEIGHTS(m, at) m = at;
#define LOAD_BY_ROW(m, array, at)                                                                                      \
        [[unroll]] for (uint e_ = 0; e_ < ELEMENTS; e_++) m[e_] = NUMBER(array, (at) * 4 + UNIT_ROW(e_));
#define LOAD_BY_COLUMN(m, array, at)                                                                                   \
        [[unroll]] for (uint e_ = 0; e_ < ELEMENTS; e_++) m[e_] = NUMBER(array, (at) * 4 + UNIT_COLUMN(e_));
#define MULTIPLY_ADD(x, w, sum)                                                                                        \
        for (uint e_ = 0; e_ < ELEMENTS; e_++)                                                                         \
                for (uint k_ = 0; k_ < K / 4; k_++)                                                                    \
                        sum[e_] += tdm_sdot(int(s_rows[x + UNIT_ROW(e_) * X_STRIDE + k_ / 4][k_ % 4]),                 \
                                            int(s_weights[w + UNIT_COLUMN(e_) * W_STRIDE + k_ / 4][k_ % 4]), 0);
// Into s_weights, row by row.
#define STORE(m, at)                                                                                                   \
        [[unroll]] for (uint e_ = 0; e_ < ELEMENTS; e_++)                                                              \
                s_weights[(at) + (UNIT_ROW(e_) * N + UNIT_COLUMN(e_)) / 4][UNIT_COLUMN(e_) % 4] =                      \
                        floatBitsToUint(m[e_]);
#define SHARED_BARRIER barrier();
#define TILE_BARRIER

#else

#define UNIT_LANE gl_SubgroupInvocationID
#define UNIT_INDEX gl_SubgroupID
#define UNIT_BARRIER { subgroupMemoryBarrierShared(); subgroupBarrier(); }
#define RESULT coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define FLOATS coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define INPUT coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

// coopMatLoad() of shared memory makes what others wrote visible at each load, which is a barrier for AMD's compiler.
// Here SHARED_BARRIER does that, once for all loads behind it.
#define COOPERATIVE extensions = ["SPV_KHR_cooperative_matrix"], capabilities = [6022], id = 4457
#define NON_PRIVATE 0x20 // among the memory operands of OpCooperativeMatrixLoadKHR
spirv_instruction(COOPERATIVE)
INPUT load_input(spirv_by_reference uvec4 from, int major, uint stride, spirv_literal int operands);
spirv_instruction(COOPERATIVE)
WEIGHTS load_weights(spirv_by_reference uvec4 from, int major, uint stride, spirv_literal int operands);
spirv_instruction(COOPERATIVE)
FLOATS load_floats(spirv_by_reference vec4 from, int major, uint stride, spirv_literal int operands);
#define SHARED_BARRIER                                                                                                 \
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared,                                \
                       gl_SemanticsAcquireRelease | gl_SemanticsMakeVisible);

// Loads of shared memory stay behind it. AMD's compiler would bring rows or weights of several tiles into registers at
// once, and has then too few to issue operations two by two.
#define TILE_BARRIER subgroupMemoryBarrierShared();

#define SET(m, from) m = from;
#define LOAD_INPUT(m, at) m = load_input(s_rows[at], gl_CooperativeMatrixLayoutRowMajor, X_STRIDE, NON_PRIVATE);
#define LOAD_WEIGHTS(m, at)                                                                                            \
        m = load_weights(s_weights[at], gl_CooperativeMatrixLayoutColumnMajor, W_STRIDE, NON_PRIVATE);
// Elements of a row, or of a column, are one number of an array, from its at-th four on.
#define LOAD_BY_ROW(m, array, at)                                                                                      \
        m = load_floats(array[at], gl_CooperativeMatrixLayoutColumnMajor, 0, NON_PRIVATE);
#define LOAD_BY_COLUMN(m, array, at)                                                                                   \
        m = load_floats(array[at], gl_CooperativeMatrixLayoutRowMajor, 0, NON_PRIVATE);
#define MULTIPLY_ADD(x, w, sum) sum = coopMatMulAdd(x, w, sum);
#define STORE(m, at) coopMatStore(m, s_weights, at, N / 4, gl_CooperativeMatrixLayoutRowMajor);

#endif
