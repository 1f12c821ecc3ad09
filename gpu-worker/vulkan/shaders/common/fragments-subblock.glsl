// Where the weights of the types of engine/weights/subblock.h lie in the order of fragments.glsl: a panel has as many
// bytes as it had, and what belongs to a unit of 256 columns (Q4_1, Q5_0, Q5_1, IQ4_NL: to a chunk of 64) stays there.
// A pair is of outputs g and g + 8, in a word's low and high half; thread t has output t / 4 as g.
//
//   front, of a unit: [g] pairs of d (and of dmin, negative; IQ4_XS: of scales_h)
//          of a chunk: [g] pairs of d of its two blocks (and of m)
//   chunk: [thread] quants: four words, one for 16 columns (Q2_K, Q3_K: two, one for 32); then, of types with 3, 5 or
//          6 bits, [thread] the rest of them: one word (6 bits: two, one for 32 columns); then its scales
//   scales: Q6_K, Q2_K: [g] bytes of 16 columns each, in two words: of columns 0, 16 of g, of g + 8; 32, 48. A byte of
//                       Q6_K is its scale plus 128.
//           Q3_K, Q4_K, Q5_K: four pairs of 6 bits, f0 … f3: the scales of 16 columns each (Q3_K), or the scales of
//                       both blocks, then their minima. [g] words: in each half f0, f1 six bits further, the lowest 4
//                       of f2; then [g] 16 bits: in each byte f3 and the rest of f2.
//           IQ4_XS:     [g] 16 bits: a byte of each of the pair, of both blocks the lowest 4 bits
//
// The low half of a word has quants of a column c, the high half the same of column c + 1. A kernel reads quants of
// output g from a half's lowest bit on, and those of g + 8 from TDM_FRAGMENT_PLACE on. So quants lie where they are
// read, or where one shift brings them there: a half has as many whole quants as fit, and the bits that are left over
// make up the last ones. Below, g0 is a quant of output g and column c, and g8 one of column c + 8; h0 and h8 are those
// of output g + 8; (j) says of which 16 columns of the chunk. A half has, from its lowest bit on:
//
//   2 bits  word j / 2        g0(j), g0(j + 1), h0 of both, g8 of both, h8 of both
//   4 bits  word j            g0, h0, g8, h8; of IQ4_NL and IQ4_XS a byte has c and c + 1: g0, g8, then, in the high
//                             half, h0, h8
//   3 bits  word j / 2        g0(j), h0(j), g8(j), h8(j), g0(j + 1), a bit of h8(3)
//           the rest          g8(1), h0(1), g8(3), h0(3), h8(1), a bit of h8(3)
//   5 bits  word j            g0, h0, g8, a bit of h8(3)
//           the rest          h8(1), h8(0), h8(2), a bit of h8(3)
//   6 bits  word j            the lowest four bits of g8, then h0, g0
//           the rest, j / 2   the highest two bits of g8(j), of g8(j + 1), then h8(j), h8(j + 1)
//
// The first word has the lowest bit of h8(3), the rest its highest.
//
// MXFP4: the front has of a chunk [g] words of four bytes: of both blocks of g, then of g + 8: the exponent of the f16
// that a nibble's f16 is multiplied with (f16-subblock.glsl); 0: none, the weights are 0. In a half of a word the sign
// and the three other bits of the same four quants lie at 15 and 9, 12 and 6, 14 and 3, 13 and 0, in the order g, g + 8
// of column c, then of c + 8.
//
// Macros, as lengths of arrays are made of them.
#define TDM_FRAGMENT_UNIT_TYPES \
        (1u << TDM_VK_Q2_K | 1u << TDM_VK_Q3_K | 1u << TDM_VK_Q4_K | 1u << TDM_VK_Q5_K | 1u << TDM_VK_Q6_K | \
         1u << TDM_VK_IQ4_XS)
#define TDM_FRAGMENT_UNIT_CHUNKS(type) ((TDM_FRAGMENT_UNIT_TYPES >> (type) & 1u) != 0 ? 4u : 1u)
#define TDM_FRAGMENT_IS_TABLE(type) ((type) == TDM_VK_IQ4_NL || (type) == TDM_VK_IQ4_XS)
// Of a quant.
#define TDM_FRAGMENT_BITS(type) \
        ((type) == TDM_VK_Q2_K ? 2u : (type) == TDM_VK_Q3_K ? 3u : (type) == TDM_VK_Q6_K ? 6u : \
         (type) == TDM_VK_Q5_0 || (type) == TDM_VK_Q5_1 || (type) == TDM_VK_Q5_K ? 5u : 4u)
// f16 in front, of a unit or block and an output.
#define TDM_FRAGMENT_N_F16(type) \
        ((type) == TDM_VK_Q5_0 || (type) == TDM_VK_Q3_K || (type) == TDM_VK_Q6_K || (type) == TDM_VK_IQ4_NL ? 1u : 2u)
// Of a unit.
#define TDM_FRAGMENT_SCALE_BYTES(type) \
        (TDM_FRAGMENT_UNIT_CHUNKS(type) == 1u ? 0u : (type) == TDM_VK_IQ4_XS ? 64u : \
         (type) == TDM_VK_Q2_K || (type) == TDM_VK_Q6_K ? 256u : 192u)
// Of a chunk: all, and where the rest of its quants and its scales begin.
#define TDM_FRAGMENT_CHUNK_BYTES(type) (TDM_FRAGMENT_SCALE_BYTES(type) / 4u + TDM_FRAGMENT_BITS(type) * 128u)
#define TDM_FRAGMENT_HIGH_AT(type) (TDM_FRAGMENT_BITS(type) <= 3u ? 256u : 512u)
#define TDM_FRAGMENT_SCALES_AT(type) (TDM_FRAGMENT_BITS(type) * 128u)
// Of a unit, or a chunk.
#define TDM_FRAGMENT_FRONT_WORDS(type) \
        ((type) == TDM_VK_MXFP4 ? 8u : TDM_FRAGMENT_N_F16(type) * (TDM_FRAGMENT_UNIT_CHUNKS(type) == 1u ? 16u : 8u))
#define TDM_FRAGMENT_FRONT_BYTES(type, cols) \
        (((cols) / 64 / TDM_FRAGMENT_UNIT_CHUNKS(type) * TDM_FRAGMENT_FRONT_WORDS(type) * 4 + 63) / 64 * 64)

// From which bit of a half the quants of outputs g + 8 are read.
#define TDM_FRAGMENT_PLACE(type) \
        (TDM_FRAGMENT_BITS(type) == 3u ? 3u : TDM_FRAGMENT_BITS(type) == 5u ? 5u : 4u)
// What d is stored times, of outputs g (eight 0) and g + 8 (1): see f16-subblock.glsl.
#define TDM_FRAGMENT_FACTOR(type, eight) \
        ((eight) == 0u ? 16777216.0 : 16777216.0 / float(1u << TDM_FRAGMENT_PLACE(type)))

// Where MXFP4's i-th quant of a half has its sign and its other bits.
#define TDM_FRAGMENT_E2M1_SIGN(i) ((i) == 0u ? 15u : (i) == 1u ? 12u : 16u - (i))
#define TDM_FRAGMENT_E2M1_REST(i) ((3u - (i)) * 3u)

// What a nibble of IQ4_NL and IQ4_XS stands for.
float tdm_fragment_table(uint nibble)
{
        const uvec4 table = uvec4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);

        return float(int(table[nibble >> 2] >> 8 * (nibble & 3u) & 0xffu) - 128);
}
