// What stands for the AIE API in tests, so that npu-worker/programs/kernels.cc runs on a CPU: vectors are arrays, and
// operations loops. Written to AMD's description of the API (AI Engine API User Guide), for what kernels.cc uses.
// Addresses must be aligned as a core's loads and stores are.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

using int8 = int8_t;
using int32 = int32_t;
using uint16 = uint16_t;
using uint32 = uint32_t;

struct bfloat16 {
        uint16_t bits;
        operator float() const
        {
                uint32_t word = uint32_t(bits) << 16;
                float f;

                std::memcpy(&f, &word, sizeof(f));
                return f;
        }
};
struct int4 {}; // two in a byte, the first below
struct accfloat {};
struct acc32 {};

namespace aie {

template <typename T> constexpr unsigned bits_of = std::is_same_v<T, int4> ? 4 : 8 * sizeof(T);

template <typename T, unsigned N> struct vector {
        std::array<uint8_t, N * bits_of<T> / 8> bytes;

        auto get(unsigned i) const
        {
                if constexpr (std::is_same_v<T, int4>) {
                        return int32_t(int8_t(bytes[i / 2] << (i % 2 ? 0 : 4)) >> 4);
                } else {
                        T t;

                        std::memcpy(&t, &bytes[i * sizeof(T)], sizeof(T));
                        return t;
                }
        }
        void set(unsigned i, T t)
        {
                std::memcpy(&bytes[i * sizeof(T)], &t, sizeof(T));
        }
        template <typename U> auto cast_to() const
        {
                vector<U, N * bits_of<T> / bits_of<U>> v;

                std::memcpy(v.bytes.data(), bytes.data(), bytes.size());
                return v;
        }
        template <unsigned M> auto extract(unsigned i) const
        {
                vector<T, M> v;

                for (unsigned j = 0; j < M; j++)
                        v.set(j, get(i * M + j));
                return v;
        }
};

template <unsigned N> struct mask {
        std::array<bool, N> is;
};

inline void check_aligned(const void *p, size_t bytes)
{
        size_t wanted = bytes < 32 ? bytes : 32;

        if (reinterpret_cast<uintptr_t>(p) % wanted != 0) {
                std::fprintf(stderr, "%zu bytes at an address that is no multiple of %zu\n", bytes, wanted);
                std::abort();
        }
}

template <unsigned N, typename T> vector<std::remove_const_t<T>, N> load_v(T *p)
{
        vector<std::remove_const_t<T>, N> v;

        check_aligned(p, v.bytes.size());
        std::memcpy(v.bytes.data(), p, v.bytes.size());
        return v;
}

template <typename T, unsigned N> void store_v(T *p, const vector<T, N> &v)
{
        check_aligned(p, v.bytes.size());
        std::memcpy(p, v.bytes.data(), v.bytes.size());
}

template <typename T, unsigned N, typename F> vector<T, N> each(F f)
{
        vector<T, N> v;

        for (unsigned i = 0; i < N; i++)
                v.set(i, f(i));
        return v;
}

template <typename T, unsigned N> vector<T, N> zeros()
{
        return each<T, N>([](unsigned) { return T(0); });
}
template <typename T, unsigned N> vector<T, N> broadcast(T t)
{
        return each<T, N>([t](unsigned) { return t; });
}
template <typename T, unsigned N> vector<T, N> add(const vector<T, N> &a, const vector<T, N> &b)
{
        return each<T, N>([&](unsigned i) { return T(uint32_t(a.get(i)) + uint32_t(b.get(i))); });
}
template <typename T, unsigned N> vector<T, N> add(const vector<T, N> &a, T b)
{
        return add(a, broadcast<T, N>(b));
}
template <typename T, unsigned N> vector<T, N> bit_and(T a, const vector<T, N> &b)
{
        return each<T, N>([&](unsigned i) { return a & b.get(i); });
}
template <typename T, unsigned N> vector<T, N> bit_or(const vector<T, N> &a, const vector<T, N> &b)
{
        return each<T, N>([&](unsigned i) { return a.get(i) | b.get(i); });
}
template <typename T, unsigned N> vector<T, N> upshift(const vector<T, N> &a, unsigned n)
{
        return each<T, N>([&](unsigned i) { return T(uint32_t(a.get(i)) << n); });
}
template <typename T, unsigned N> vector<T, N> downshift(const vector<T, N> &a, unsigned n)
{
        return each<T, N>([&](unsigned i) { return a.get(i) >> n; });
}
template <typename T, unsigned N> mask<N> lt(const vector<T, N> &a, T b)
{
        mask<N> m;

        for (unsigned i = 0; i < N; i++)
                m.is[i] = a.get(i) < b;
        return m;
}
template <typename T, unsigned N> vector<T, N> select(const vector<T, N> &a, T b, const mask<N> &m)
{
        return each<T, N>([&](unsigned i) { return m.is[i] ? b : a.get(i); });
}
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N> &a, const vector<T, N> &b, unsigned)
{
        auto at = [&](unsigned i) { return i % 2 ? b.get(i / 2) : a.get(i / 2); };

        return { each<T, N>(at), each<T, N>([&](unsigned i) { return at(N + i); }) };
}
template <typename T, unsigned N, typename... V> auto concat(const vector<T, N> &first, const V &...rest)
{
        const vector<T, N> all[] = { first, rest... };

        return each<T, N * (1 + sizeof...(V))>([&](unsigned i) { return all[i / N].get(i % N); });
}
template <unsigned N> vector<float, N> to_float(const vector<int32, N> &v)
{
        return each<float, N>([&](unsigned i) { return float(v.get(i)); });
}

template <typename A, unsigned N> struct accum {
        std::array<float, N> values;

        void from_vector(const vector<float, N> &v)
        {
                for (unsigned i = 0; i < N; i++)
                        values[i] = v.get(i);
        }
        template <typename T> vector<T, N> to_vector() const
        {
                return each<T, N>([&](unsigned i) { return T(values[i]); });
        }
};
template <unsigned N> accum<accfloat, N> mul(const vector<float, N> &a, const vector<float, N> &b)
{
        accum<accfloat, N> r;

        for (unsigned i = 0; i < N; i++)
                r.values[i] = a.get(i) * b.get(i);
        return r;
}
template <unsigned N>
accum<accfloat, N> mac(const accum<accfloat, N> &c, const vector<float, N> &a, const vector<float, N> &b)
{
        accum<accfloat, N> r;

        for (unsigned i = 0; i < N; i++)
                r.values[i] = std::fma(a.get(i), b.get(i), c.values[i]);
        return r;
}

// C [M][N] += A [M][K] * B [K][N], rows of rows.
template <unsigned M, unsigned K, unsigned N, typename A, typename B> struct mmul {
        using sum = std::conditional_t<std::is_same_v<A, bfloat16>, float, int32>;
        static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;
        static_assert((std::is_same_v<A, bfloat16> && M == 4 && K == 8 && (N == 4 || N == 8)) ||
                              (std::is_same_v<B, int8> && M == 4 && K == 8 && N == 8) ||
                              (std::is_same_v<B, int4> && M == 4 && K == 16 && N == 8),
                      "a core has no such multiplication");
        std::array<sum, size_C> c;

        mmul() = default;
        explicit mmul(const vector<sum, size_C> &v)
        {
                for (unsigned i = 0; i < size_C; i++)
                        c[i] = v.get(i);
        }
        void mul(const vector<A, size_A> &a, const vector<B, size_B> &b)
        {
                c.fill(0);
                mac(a, b);
        }
        void mac(const vector<A, size_A> &a, const vector<B, size_B> &b)
        {
                for (unsigned m = 0; m < M; m++)
                        for (unsigned n = 0; n < N; n++)
                                for (unsigned k = 0; k < K; k++)
                                        c[m * N + n] += sum(a.get(m * K + k)) * sum(b.get(k * N + n));
        }
        template <typename T> vector<T, size_C> to_vector() const
        {
                return each<T, size_C>([&](unsigned i) { return T(c[i]); });
        }
};

} // namespace aie
