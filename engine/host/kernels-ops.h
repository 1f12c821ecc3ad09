/* Constants of the elementwise kernels, shared by the C reference and the SIMD files so that they cannot drift apart.
 */
#ifndef TDM_ENGINE_HOST_KERNELS_OPS_H
#define TDM_ENGINE_HOST_KERNELS_OPS_H

/* exp(x) = 2^n exp(r), n = rint(x log2 e), r = x - n ln 2 in two steps, |r| <= ln 2 / 2.
 * exp(r) = 1 + r + r² (C2 + C3 r + … + C6 r⁴), fitted for the least largest relative error, 3.1e-9 (0.05 ulp); the sum
 * is Horner's, by fmaf, which leaves under 1 ulp in all (test-kernels-ops.c). n comes from adding 1.5 · 2²³, whose last
 * bits are then n. 2^n is multiplied in as two halves, so that results below FLT_MIN are rounded once and those above
 * FLT_MAX become infinite. Below EXP_MIN all is 0, above EXP_MAX all is infinite; NaN stays NaN. */
#define TDM_EXP_MIN (-104.0f)
#define TDM_EXP_MAX 89.0f
#define TDM_EXP_LOG2E 0x1.715476p0f
#define TDM_EXP_MAGIC 0x1.8p23f
#define TDM_EXP_MAGIC_BITS 0x4b400000
#define TDM_EXP_LN2_HI 0x1.62e430p-1f
#define TDM_EXP_LN2_LO (-0x1.05c610p-29f)
#define TDM_EXP_C2 0x1.fffffcp-2f
#define TDM_EXP_C3 0x1.555492p-3f
#define TDM_EXP_C4 0x1.5558f2p-5f
#define TDM_EXP_C5 0x1.123a20p-7f
#define TDM_EXP_C6 0x1.6a23cep-10f

/* gelu: u = 2z = 2 sqrt(2 / pi) (g + 0.044715 g³). */
#define TDM_GELU_CUBE 0.044715f
#define TDM_GELU_TWO_SQRT_2_PI 1.5957691216057308f

/* Exact gelu: erfc(z) = t (C1 + C2 t + … + C5 t⁴) exp(-z²), t = 1 / (1 + P z), z >= 0, at most 1.5e-7 off (Abramowitz
 * and Stegun, 7.1.26). */
#define TDM_ERFC_P 0.3275911f
#define TDM_ERFC_C1 0.254829592f
#define TDM_ERFC_C2 (-0.284496736f)
#define TDM_ERFC_C3 1.421413741f
#define TDM_ERFC_C4 (-1.453152027f)
#define TDM_ERFC_C5 1.061405429f
#define TDM_SQRT_HALF 0.70710678118654752f

/* Clamped SwiGLU: g sigmoid(ALPHA g) (u + 1), g at most LIMIT, u within ±LIMIT. */
#define TDM_SWIGLU_LIMIT 7.0f
#define TDM_SWIGLU_ALPHA 1.702f

#define TDM_F16_MAX 65504.0f
#define TDM_KV_Q8_MAX (127.0f * TDM_F16_MAX) /* so that the scale fits f16 */

#endif
