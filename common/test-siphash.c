/* The hash against the vectors of its authors, and bytes in pieces against the same bytes at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/siphash.h"
#include "common/util.h"

static uint8_t key[TDM_SIPHASH_KEY_BYTES];

static void hash_of(const uint8_t *bytes, size_t size, size_t piece, uint8_t *ret)
{
        struct tdm_siphash hash;

        tdm_siphash_init(&hash, key);
        for (size_t at = 0; at < size; at += piece)
                tdm_siphash_add(&hash, bytes + at, TDM_MIN(piece, size - at));
        tdm_siphash_end(&hash, ret);
}

/* Key 00 01 … 0f, of 0, 1 and 2 bytes 00 01 …: vectors.h of the reference implementation. */
static void test_vectors(void **state)
{
        static const uint8_t want[3][TDM_SIPHASH_BYTES] = {
                { 0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93 },
                { 0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45 },
                { 0x81, 0x77, 0x22, 0x8d, 0xa4, 0xa4, 0x5d, 0xc7, 0xfc, 0xa3, 0x8b, 0xde, 0xf6, 0x0a, 0xff, 0xe4 },
        };
        uint8_t bytes[2] = { 0, 1 }, got[TDM_SIPHASH_BYTES];

        for (uint8_t i = 0; i < sizeof(key); i++)
                key[i] = i;
        for (size_t n = 0; n < 3; n++) {
                hash_of(bytes, n, 1, got);
                assert_memory_equal(got, want[n], sizeof(got));
        }
}

static void test_pieces(void **state)
{
        uint8_t bytes[257], want[TDM_SIPHASH_BYTES], got[TDM_SIPHASH_BYTES];

        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (uint8_t)(i * 37 + 11);
        for (size_t n = 0; n <= sizeof(bytes); n++) {
                hash_of(bytes, n, sizeof(bytes), want);
                for (size_t piece = 1; piece < 20; piece++) {
                        hash_of(bytes, n, piece, got);
                        assert_memory_equal(got, want, sizeof(got));
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_vectors), cmocka_unit_test(test_pieces) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
