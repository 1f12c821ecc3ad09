/* SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012): a hash of bytes under a secret key. Whoever chooses the
 * bytes and does not know the key cannot make two texts with one hash. Also a checksum that finds any damage. Any
 * thread. */
#ifndef TDM_COMMON_SIPHASH_H
#define TDM_COMMON_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define TDM_SIPHASH_KEY_BYTES 16u
#define TDM_SIPHASH_BYTES 16u

struct tdm_siphash {
        uint64_t v[4];
        uint64_t n_bytes;
        uint8_t rest[8]; /* of the bytes so far, those that fill no word */
};

void tdm_siphash_init(struct tdm_siphash *hash, const uint8_t key[TDM_SIPHASH_KEY_BYTES]);
void tdm_siphash_add(struct tdm_siphash *hash, const void *data, size_t size);
void tdm_siphash_end(struct tdm_siphash *hash, uint8_t ret[TDM_SIPHASH_BYTES]);

#endif
