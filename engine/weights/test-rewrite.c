/* Types that are packed as another one (rewrite.c): what a file's blocks stand for is what the packed rows hold. Known
 * blocks were decoded by another program; random ones are decoded here once more, one value at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "engine/weights/weights-private.h"

#define BLOCKS 3u
#define VALUES 256u /* of a block of a ternary type */

static uint64_t random_state = 1;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

/* Rewrites and packs a row of n_blocks blocks, and reads it back. */
static void row_through(uint32_t type, const uint8_t *row, uint32_t n_blocks, float *y)
{
        uint32_t packed = tdm_weights_packed_type(type);
        const struct tdm_type_info *to = tdm_type_info(packed);
        struct tdm_weights_tensor t = {
                .type = packed, .layout = TDM_LAYOUT_PANEL16, .rows = 1, .cols = n_blocks * to->block_values
        };
        _cleanup_(freep) uint8_t *rewritten = malloc((size_t)n_blocks * to->block_bytes), *panel = NULL;

        t.panel_bytes = tdm_weights_panel_bytes(packed, t.cols);
        panel = aligned_alloc(64, t.panel_bytes);
        assert_non_null(rewritten);
        assert_non_null(panel);
        tdm_weights_rewrite(type, rewritten, row, n_blocks);
        assert_true(tdm_subblock_pack_panel(packed, panel, rewritten, 0, 1, t.cols));
        tdm_weights_row(panel, &t, 0, y);
}

static float d_of(const uint8_t *p)
{
        return tdm_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* A block, and what it stands for by its d: "-0+2" for -1 to 2. */
static const struct {
        uint32_t type, d_at;
        uint8_t block[66];
        const char *values;
} known
        [] = {
                { TDM_TYPE_TQ1_0,
                  52,
                  { 0x51, 0xa3, 0x95, 0x82, 0xb9, 0x65, 0x1b, 0x4f, 0xdf, 0xa8, 0x5b, 0x91, 0x81, 0xc6,
                    0x3c, 0xe1, 0xd4, 0xc5, 0xce, 0xf3, 0xcc, 0x3d, 0x3b, 0x3e, 0xc7, 0x4b, 0x93, 0xa2,
                    0x2b, 0x0b, 0x5b, 0x35, 0x32, 0xf3, 0x72, 0x9d, 0x46, 0x32, 0x87, 0xd8, 0xa3, 0x6b,
                    0x40, 0xfb, 0x28, 0x97, 0xfc, 0x23, 0x93, 0xa2, 0x85, 0x49, 0x00, 0x3a },
                  "-000+0--+0000+-++++++---+-00--0-+++0---+0+-+0-+00-0+0+++-+++0--0"
                  "++-000++++--0+-+0+-0----+0-+00-+0-++00+-0+0-0+-+0++000-0++0-0-00"
                  "00--0+0+0-+++0+----+0-+0++0-00++-+00--0+00-+-0+-0+0++000+-++0++0"
                  "+0-00++0++-+0-+--0-00--+--+0-+0+++-+-++00+-00++-000-++0+-++00--+" },
                { TDM_TYPE_TQ2_0,
                  64,
                  { 0x39, 0x34, 0x7a, 0x60, 0xcc, 0x80, 0x73, 0x23, 0xbe, 0x57, 0x5f, 0xc6, 0xb1, 0x6e,
                    0xcd, 0x86, 0x1d, 0x67, 0xcc, 0xf8, 0x05, 0xe9, 0xcd, 0xec, 0x1d, 0x69, 0x1c, 0x96,
                    0x42, 0x9f, 0xc7, 0x88, 0xb7, 0x95, 0xed, 0xa3, 0xea, 0xf6, 0x21, 0x45, 0x5f, 0xdf,
                    0x44, 0xe7, 0x32, 0x04, 0x57, 0xf3, 0xb7, 0x99, 0x04, 0xbf, 0xfa, 0x97, 0x04, 0x6c,
                    0x18, 0xd5, 0x91, 0xd4, 0x32, 0x98, 0xc8, 0x42, 0x00, 0xb6 },
                  "0-+---22+22+0+0+02--000-00-++22-+0+-2---2020-220202+0+222+20-20+"
                  "222+--2+200-2+--0+-2-+-+0+00-0----002+0-+002+02+-022-222-0-+0+2+"
                  "2002++0022-2+-2220-2+2---00-+--+002-+0-02200-00-0+02+002+0-0-++-"
                  "20+++2+-00-+2-0220-220-+000020--++2+22-00202--02++-+2+-0-2+2-+20" },
        };

static void test_known(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(known); i++) {
                float y[VALUES], d = d_of(known[i].block + known[i].d_at);

                assert_int_equal(strlen(known[i].values), VALUES);
                row_through(known[i].type, known[i].block, 1, y);
                for (unsigned k = 0; k < VALUES; k++)
                        assert_true(y[k] == d * (float)(strchr("-0+2", known[i].values[k]) - "-0+2" - 1));
        }
}

/* The format, restated: the digits of a byte come out at its top when it is multiplied by 3. */
static int ternary_value(uint32_t type, const uint8_t *p, uint32_t k)
{
        uint32_t at = k < 160 ? k % 32 :
                      k < 240 ? 32 + k % 16 :
                                48 + k % 4,
                 digit = k < 160 ? k / 32 :
                         k < 240 ? (k - 160) / 16 :
                                   (k - 240) / 4,
                 fraction = p[at], top = 0;

        if (type == TDM_TYPE_TQ2_0)
                return (p[k / 128 * 32 + k % 32] >> 2 * (k / 32 % 4) & 3) - 1;
        for (uint32_t i = 0; i <= digit; i++) {
                fraction *= 3;
                top = fraction >> 8;
                fraction &= 255;
        }
        return (int)top - 1;
}

static void test_random(void **state)
{
        for (unsigned round = 0; round < 200; round++) {
                uint32_t type = round % 2 ? TDM_TYPE_TQ1_0 : TDM_TYPE_TQ2_0, size = tdm_type_info(type)->block_bytes;
                uint8_t row[BLOCKS * 66];
                float y[BLOCKS * VALUES];

                for (unsigned i = 0; i < BLOCKS * size; i++)
                        row[i] = (uint8_t)random_u32();
                for (unsigned i = 1; i <= BLOCKS; i++)
                        row[i * size - 1] &= 0xbf; /* finite */
                row_through(type, row, BLOCKS, y);
                for (unsigned k = 0; k < BLOCKS * VALUES; k++) {
                        const uint8_t *block = row + k / VALUES * size;
                        float want = d_of(block + size - 2) * (float)ternary_value(type, block, k % VALUES);

                        assert_true(y[k] == want);
                }
        }
}

/* A d that is not finite is refused as of any type. */
static void test_not_finite(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(known); i++) {
                _cleanup_(freep) uint8_t *panel = aligned_alloc(64, tdm_weights_panel_bytes(TDM_TYPE_Q2_K, VALUES));
                uint8_t block[66], rewritten[84];

                assert_non_null(panel);
                memcpy(block, known[i].block, sizeof(block));
                block[known[i].d_at + 1] |= 0x7c;
                tdm_weights_rewrite(known[i].type, rewritten, block, 1);
                assert_false(tdm_subblock_pack_panel(TDM_TYPE_Q2_K, panel, rewritten, 0, 1, VALUES));
        }
}

/* A rewritten block has as many values: rows of both end with blocks together. */
static void test_blocks(void **state)
{
        static const uint32_t types[] = { TDM_TYPE_MXFP4_PAIRS, TDM_TYPE_TQ1_0, TDM_TYPE_TQ2_0 };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                uint32_t packed = tdm_weights_packed_type(types[i]);

                assert_int_not_equal(packed, types[i]);
                assert_true(tdm_weights_type_supported(packed));
                assert_int_equal(tdm_type_info(packed)->block_values, tdm_type_info(types[i])->block_values);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_known),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_not_finite),
                cmocka_unit_test(test_blocks),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
