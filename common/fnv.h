/* FNV-1a: a hash of bytes for tables and checksums. It does not resist those who choose the bytes: where a user does,
 * begin with a secret seed. To hash on, pass the last result. */
#ifndef TDM_COMMON_FNV_H
#define TDM_COMMON_FNV_H

#include <stddef.h>
#include <stdint.h>

#define TDM_FNV32_BEGIN UINT32_C(0x811c9dc5)
#define TDM_FNV64_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint32_t tdm_fnv32(uint32_t hash, const void *data, size_t size)
{
        const uint8_t *bytes = data;

        for (size_t i = 0; i < size; i++)
                hash = (hash ^ bytes[i]) * UINT32_C(0x01000193);
        return hash;
}

static inline uint64_t tdm_fnv64(uint64_t hash, const void *data, size_t size)
{
        const uint8_t *bytes = data;

        for (size_t i = 0; i < size; i++)
                hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
        return hash;
}

#endif
