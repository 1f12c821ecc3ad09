// What a core does with what its DMAs bring, in the AIE API. One of TANDEM_BF16, TANDEM_INT8 and TANDEM_INT4A16 is
// defined. layout.py has the sizes; a step is 4 rows, 64 outputs and 128 inputs.
//
// Sums stay in the core's memory while all of K goes past, 4 rows after 4 rows, as the results of matrix
// multiplications lie: [groups of rows][64 / T][4][T]. `at` counts the group. So a sum's order depends on K alone, not
// on how many rows a program has.
#include <aie_api/aie.hpp>
#include <stdint.h>

namespace
{

constexpr unsigned rows = 4, outputs = 64, piece = 128, max_rows = 64;

#if defined(TANDEM_BF16)
using number = bfloat16;
using sum = float;
constexpr unsigned T = TANDEM_MMUL_N;
#elif defined(TANDEM_INT8)
using number = int8;
using sum = int32;
constexpr unsigned T = 8;
#else
using sum = float;
constexpr unsigned T = 8;
#endif

sum *group(int32_t *sums, const int32_t *at)
{
        return reinterpret_cast<sum *>(sums) + *at * (rows * outputs);
}

#if !defined(TANDEM_INT4A16)

using multiply = aie::mmul<rows, 8, T, number, number>;

// a [128 / 8][4][8], b [128 / 8][64 / T][8][T].
void add_piece(const number *__restrict a, const number *__restrict b, sum *__restrict c)
{
        for (unsigned n = 0; n < outputs / T; n++) {
                multiply m(aie::load_v<multiply::size_C>(c + n * multiply::size_C));

                for (unsigned k = 0; k < piece / 8; k++)
                        m.mac(aie::load_v<multiply::size_A>(a + k * multiply::size_A),
                              aie::load_v<multiply::size_B>(b + (k * (outputs / T) + n) * multiply::size_B));
                aie::store_v(c + n * multiply::size_C, m.template to_vector<sum>());
        }
}

#else

using multiply = aie::mmul<rows, 16, T, int8, int4>;
constexpr unsigned block = 32, block_bytes = 2 * block + block * block / 2, row_bytes = 16 + 2 * piece;

// 16 scales of f16 as f32. Subnormals, which are below 2^-14, become zero. Infinities and NaNs become numbers; no sound
// file has any.
// A word of 32 bits has two scales, the even one in its lower half.
aie::vector<float, 16> halves_to_float(const uint16 *p)
{
        const aie::vector<uint32, 8> two = aie::load_v<16>(p).template cast_to<uint32>();
        const aie::vector<uint32, 8> even = aie::bit_and(uint32(0xffff), two), odd = aie::downshift(two, 16);
        const auto [low, high] = aie::interleave_zip(even, odd, 1);
        const aie::vector<uint32, 16> h = aie::concat(low, high);
        const aie::vector<uint32, 16> sign = aie::upshift(aie::bit_and(uint32(0x8000), h), 16);
        const aie::vector<uint32, 16> size =
                aie::add(aie::upshift(aie::bit_and(uint32(0x7fff), h), 13), uint32(112) << 23);
        const aie::mask<16> small = aie::lt(aie::bit_and(uint32(0x7c00), h), uint32(1));

        return aie::bit_or(sign, aie::select(size, uint32(0), small)).template cast_to<float>();
}

// 16 numbers (their high or their low halves) of each of 4 rows, from byte `first` of a row on.
aie::vector<int8, 64> four_rows(const int8 *a, unsigned first)
{
        return aie::concat(aie::load_v<16>(a + first), aie::load_v<16>(a + row_bytes + first),
                           aie::load_v<16>(a + 2 * row_bytes + first), aie::load_v<16>(a + 3 * row_bytes + first));
}

// Eight outputs' values once for each of a tile's four rows.
aie::vector<float, 32> each_row(aie::vector<float, 8> v)
{
        return aie::concat(v, v, v, v);
}

aie::vector<int4, multiply::size_B> weights(const int8 *block_, unsigned k16, unsigned n8)
{
        return aie::load_v<64>(block_ + 2 * block + (k16 * (block / T) + n8) * (multiply::size_B / 2))
                .template cast_to<int4>();
}

// a [4 rows]{f32 scales [4]; int8 high [128], low [128]}; b [64 / 32][128 / 32] blocks.
void add_piece(const int8 *__restrict a, const int8 *__restrict b, sum *__restrict c)
{
        for (unsigned n = 0; n < outputs / block; n++)
                for (unsigned k = 0; k < piece / block; k++, b += block_bytes) {
                        const uint16 *halves = reinterpret_cast<const uint16 *>(b);
                        const aie::vector<float, 32> scales =
                                aie::concat(halves_to_float(halves), halves_to_float(halves + 16));
                        const float *x = reinterpret_cast<const float *>(a) + k;
                        const aie::vector<float, 32> x_scales =
                                aie::concat(aie::broadcast<float, 8>(x[0]), aie::broadcast<float, 8>(x[row_bytes / 4]),
                                            aie::broadcast<float, 8>(x[2 * row_bytes / 4]),
                                            aie::broadcast<float, 8>(x[3 * row_bytes / 4]));
                        const aie::vector<int8, 64> high0 = four_rows(a, 16 + k * block),
                                                    high1 = four_rows(a, 16 + k * block + 16),
                                                    low0 = four_rows(a, 16 + piece + k * block),
                                                    low1 = four_rows(a, 16 + piece + k * block + 16);

                        for (unsigned tile = 0; tile < block / T; tile++) {
                                const aie::vector<int4, multiply::size_B> w0 = weights(b, 0, tile),
                                                                          w1 = weights(b, 1, tile);
                                sum *to = c + (n * (block / T) + tile) * multiply::size_C;
                                multiply high, low;

                                high.mul(high0, w0);
                                high.mac(high1, w1);
                                low.mul(low0, w0);
                                low.mac(low1, w1);
                                const aie::vector<int32, 32> sums =
                                        aie::add(aie::upshift(high.template to_vector<int32>(), 8),
                                                 low.template to_vector<int32>());
                                const aie::vector<float, 32> scale =
                                        aie::mul(each_row(scales.template extract<8>(tile)), x_scales)
                                                .template to_vector<float>();
                                aie::accum<accfloat, 32> acc;

                                acc.from_vector(aie::load_v<32>(to));
                                acc = aie::mac(acc, aie::to_float(sums), scale);
                                aie::store_v(to, acc.template to_vector<float>());
                        }
                }
}

#endif

} // namespace

extern "C" {

void tandem_clear(int32_t *sums)
{
        const aie::vector<int32, 16> zero = aie::zeros<int32, 16>();

        for (unsigned i = 0; i < max_rows * outputs; i += 16)
                aie::store_v(reinterpret_cast<int32 *>(sums) + i, zero);
}

void tandem_first(int32_t *at)
{
        *at = 0;
}

void tandem_multiply(const int32_t *a, const int32_t *b, int32_t *sums, int32_t *at)
{
#if defined(TANDEM_INT4A16)
        using number = int8;
#endif
        add_piece(reinterpret_cast<const number *>(a), reinterpret_cast<const number *>(b), group(sums, at));
        ++*at;
}

// A group's sums as rows [4][64].
void tandem_take(int32_t *sums, int32_t *c, int32_t *at)
{
        const sum *from = group(sums, at);
        sum *to = reinterpret_cast<sum *>(c);

        for (unsigned n = 0; n < outputs / T; n++)
                for (unsigned r = 0; r < rows; r++)
                        aie::store_v(to + r * outputs + n * T, aie::load_v<T>(from + (n * rows + r) * T));
        ++*at;
}
}
