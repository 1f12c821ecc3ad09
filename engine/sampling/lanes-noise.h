/* Gumbel noise of several tokens at once: see noise.h. A token's number comes from a cheap hash of the token and two of
 * the row's keys, one multiplication and addition of which is a bijection of 32 bits: no two tokens of a row share a
 * number. */
#ifndef TDM_ENGINE_SAMPLING_LANES_NOISE_H
#define TDM_ENGINE_SAMPLING_LANES_NOISE_H

#include "engine/sampling/lanes.h"
#include "engine/sampling/noise.h"

/* 32 random bits of x: two rounds of a multiplicative hash (Wellons' lowbias32), keyed before each. */
inline_always void hash(lanes_u *x, uint32_t first_key, uint32_t second_key)
{
        lanes_u h = *x * 0x9e3779b9u + first_key;

        h ^= h >> 16;
        h *= 0x21f0aaadu;
        h ^= h >> 15;
        h ^= second_key;
        h *= 0xd35a2d97u;
        h ^= h >> 15;
        *x = h;
}

/* (bits + 1/2) / 2^32, of which only the last addition rounds */
inline_always void to_fraction(lanes_f *ret, const lanes_u *bits)
{
        *ret = __builtin_convertvector((lanes_i)(*bits >> 16), lanes_f) * 0x1p-16f +
               (__builtin_convertvector((lanes_i)(*bits & 0xffffu), lanes_f) + 0.5f) * 0x1p-32f;
}

/* ln(2^n (1 + z)) for 1 + z from sqrt(1/2) to sqrt(2): the minimax polynomial of Cephes' logf. */
inline_always void log_of(lanes_f *ret, const lanes_f *z_of, const lanes_f *n)
{
        lanes_f z = *z_of, square = z * z;
        lanes_f p = z * 7.0376836292e-2f + -1.1514610310e-1f;

        p = p * z + 1.1676998740e-1f;
        p = p * z + -1.2420140846e-1f;
        p = p * z + 1.4249322787e-1f;
        p = p * z + -1.6668057665e-1f;
        p = p * z + 2.0000714765e-1f;
        p = p * z + -2.4999993993e-1f;
        p = p * z + 3.3333331174e-1f;
        p = p * z;
        p = p * square;
        p = p + *n * -2.12194440e-4f;
        p = p - square * 0.5f;
        p = z + p;
        *ret = p + *n * 0.693359375f;
}

/* v > 0, normal, as 2^n (1 + z) */
inline_always void split(const lanes_f *v, lanes_f *z, lanes_f *n)
{
        lanes_i exponent = ((lanes_i)*v - 0x3f3504f3) >> 23; /* 0x3f3504f3: sqrt(1/2) */

        *n = __builtin_convertvector(exponent, lanes_f);
        *z = (lanes_f)((lanes_i)*v - (exponent << 23)) - 1.0f;
}

/* -ln(1 - u), where u is the fraction of random bits. Below 1/4 the fraction itself is taken, so that small numbers,
 * which make the greatest noise, have all their digits. */
inline_always void exponential(lanes_f *ret, const lanes_u *bits)
{
        lanes_u others = ~*bits;
        lanes_i small = (lanes_i)(*bits < 0x40000000u);
        lanes_f u, rest, z, n;

        to_fraction(&u, bits);
        to_fraction(&rest, &others);
        split(&rest, &z, &n);
        z = (lanes_f)(((lanes_i)-u & small) | ((lanes_i)z & ~small));
        n = (lanes_f)((lanes_i)n & ~small);
        log_of(ret, &z, &n);
        *ret = -*ret;
}

/* The least exponential number of a block. */
inline_always void least_of(lanes_f *ret, const lanes_u *blocks, const uint32_t keys[4])
{
        lanes_u bits = *blocks;

        hash(&bits, keys[2], keys[3]);
        exponential(ret, &bits);
        *ret *= 1.0f / TDM_NOISE_BLOCK;
}

inline_always void noise_of(lanes_f *ret, const lanes_f *e)
{
        lanes_f z, n;

        split(e, &z, &n);
        log_of(ret, &z, &n);
        *ret = -*ret;
}

static void noise_scores(const struct tdm_noise *noise, const float *logits, const uint32_t *ids, uint32_t n,
                         float greatest, float *scores)
{
        for (uint32_t at = 0; at < n; at += LANES) {
                uint32_t n_here = n - at < LANES ? n - at : LANES;
                lanes_u id = { 0 }, block, which, bits;
                lanes_f least, own, distance;
                lanes_i has_least;

                memcpy(&id, ids + at, n_here * sizeof(*ids));
                block = id / TDM_NOISE_BLOCK;
                least_of(&least, &block, noise->keys);
                which = block | 0x80000000u; /* no block has such a number */
                hash(&which, noise->keys[2], noise->keys[3]);
                bits = id;
                hash(&bits, noise->keys[0], noise->keys[1]);
                exponential(&own, &bits);
                has_least = (lanes_i)(which >> 26 == id % TDM_NOISE_BLOCK);
                own = (lanes_f)((lanes_i)own & ~has_least) + least;
                noise_of(&own, &own);
                load_lanes(&distance, logits + at, n_here);
                distance = (distance - greatest) * noise->inverse + own;
                memcpy(scores + at, &distance, n_here * sizeof(*scores));
        }
}

static void noise_bounds(const struct tdm_noise *noise, const float *maxima, const uint32_t *blocks, uint32_t n,
                         float greatest, float *bounds)
{
        for (uint32_t at = 0; at < n; at += LANES) {
                uint32_t n_here = n - at < LANES ? n - at : LANES;
                lanes_u block;
                lanes_f most, distance;

                for (uint32_t lane = 0; lane < LANES; lane++)
                        block[lane] = at + lane;
                if (blocks)
                        memcpy(&block, blocks + at, n_here * sizeof(*blocks));
                least_of(&most, &block, noise->keys);
                noise_of(&most, &most);
                most += TDM_NOISE_SLACK;
                load_lanes(&distance, maxima + at, n_here);
                distance = (distance - greatest) * noise->inverse + most;
                memcpy(bounds + at, &distance, n_here * sizeof(*bounds));
        }
}

static void noise_weights(const struct tdm_noise *noise, const float *logits, uint32_t n, float greatest,
                          float *weights)
{
        for (uint32_t at = 0; at < n; at += LANES) {
                uint32_t n_here = n - at < LANES ? n - at : LANES;
                lanes_f v;

                load_lanes(&v, logits + at, n_here);
                v = (v - greatest) * noise->inverse;
                exp_negative(&v);
                memcpy(weights + at, &v, n_here * sizeof(*weights));
        }
}

#endif
