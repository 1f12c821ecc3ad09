/* The bytes are taken as little-endian words of 64 bits. The last word holds the bytes that are left, and the number of
 * all bytes above them. */
#include "common/siphash.h"

#include <string.h>

static inline uint64_t rotate_left(uint64_t x, unsigned n)
{
        return x << n | x >> (64 - n);
}

static inline void sip_round(uint64_t v[4])
{
        v[0] += v[1];
        v[1] = rotate_left(v[1], 13) ^ v[0];
        v[0] = rotate_left(v[0], 32);
        v[2] += v[3];
        v[3] = rotate_left(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate_left(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate_left(v[1], 17) ^ v[2];
        v[2] = rotate_left(v[2], 32);
}

static inline void sip_word(uint64_t v[4], uint64_t word)
{
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
}

static inline uint64_t load_word(const uint8_t *bytes)
{
        uint64_t word;

        memcpy(&word, bytes, sizeof(word));
        return word;
}

void tdm_siphash_init(struct tdm_siphash *hash, const uint8_t key[TDM_SIPHASH_KEY_BYTES])
{
        uint64_t k0 = load_word(key), k1 = load_word(key + 8);

        *hash = (struct tdm_siphash){ .v = { k0 ^ UINT64_C(0x736f6d6570736575),
                                             k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                                             k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573) } };
}

void tdm_siphash_add(struct tdm_siphash *hash, const void *data, size_t size)
{
        const uint8_t *bytes = data;
        size_t n_rest = hash->n_bytes % 8;
        uint64_t v[4];

        hash->n_bytes += size;
        if (n_rest > 0 || size < 8) {
                size_t n = size < 8 - n_rest ? size : 8 - n_rest;

                if (n > 0)
                        memcpy(hash->rest + n_rest, bytes, n);
                if (n_rest + n < 8)
                        return;
                sip_word(hash->v, load_word(hash->rest));
                bytes += n;
                size -= n;
        }
        memcpy(v, hash->v, sizeof(v)); /* in registers, while there are words */
        for (; size >= 8; bytes += 8, size -= 8)
                sip_word(v, load_word(bytes));
        memcpy(hash->v, v, sizeof(v));
        if (size > 0)
                memcpy(hash->rest, bytes, size);
}

void tdm_siphash_end(struct tdm_siphash *hash, uint8_t ret[TDM_SIPHASH_BYTES])
{
        uint64_t *v = hash->v, last = hash->n_bytes << 56, half;

        for (size_t i = 0; i < hash->n_bytes % 8; i++)
                last |= (uint64_t)hash->rest[i] << 8 * i;
        sip_word(v, last);
        v[2] ^= 0xee;
        for (int i = 0; i < 4; i++)
                sip_round(v);
        half = v[0] ^ v[1] ^ v[2] ^ v[3];
        memcpy(ret, &half, sizeof(half));
        v[1] ^= 0xdd;
        for (int i = 0; i < 4; i++)
                sip_round(v);
        half = v[0] ^ v[1] ^ v[2] ^ v[3];
        memcpy(ret + 8, &half, sizeof(half));
}
