/* IQ1, IQ2 and IQ3 against another program, bit for bit: random blocks, rewritten, packed and read back, have the
 * values that the Python package `gguf` of the format's makers computes (tools/make-grid-goldens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "engine/weights/weights-private.h"

#define BLOCKS 1024u
#define VALUES 256u /* of a block */
#define ROW_BLOCKS 4u
#define SHOWN 32u

/* The first values of the first block are whole numbers of units-ths of its d; hash: of all values' bits. */
static const struct golden {
        uint32_t type, units;
        uint64_t hash;
        int16_t shown[SHOWN];
} goldens[] = {
        { TDM_TYPE_IQ1_S, 8, UINT64_C(0x79a6110fc3b2e1fa), { 7, -49, 63, 63, 7,   -49, -49, 7,   -49, 7, -49,
                                                             7, 63,  7,  7,  -49, 63,  7,   -49, 7,   7, 7,
                                                             7, 63,  7,  7,  63,  7,   63,  -49, 63,  63 } },
        { TDM_TYPE_IQ1_M, 8, UINT64_C(0x99bd6150ceedfff8), { -49, -49, -49, 63, 63, 63, 63, -49, 7,  -49, 7,
                                                             -49, 63,  63,  63, 7,  -1, -1, -9,  -1, 7,   7,
                                                             -1,  -1,  -1,  -9, -1, -1, -1, -1,  -9, -9 } },
        { TDM_TYPE_IQ2_XXS, 8, UINT64_C(0x88abc82fbc3e141d), { -56,  56,   -175, -56,  56,   301,  56,   -175,
                                                               -301, 175,  175,  56,   301,  -175, 175,  56,
                                                               56,   56,   301,  -175, -301, 56,   -301, -175,
                                                               56,   -301, -56,  56,   -56,  301,  301,  -56 } },
        { TDM_TYPE_IQ2_XS, 8, UINT64_C(0x8cc5871e66fade97), { -136, 425, 425, 731,  -425, -136, 425,  -136,
                                                              425,  136, 425, 425,  731,  731,  -425, -136,
                                                              425,  136, 731, -136, 136,  136,  425,  -136,
                                                              -136, 425, 136, -425, -136, 136,  731,  -136 } },
        { TDM_TYPE_IQ2_S, 8, UINT64_C(0x8019b66364963917), { 475,  -817, 475,   -152, 152,  817,   152,  -152,
                                                             -475, -817, -152,  -152, -152, -817,  152,  475,
                                                             1075, 1075, -1075, -200, 1075, 1075,  -200, -200,
                                                             -200, -200, -625,  -200, 1075, -1075, 200,  625 } },
        { TDM_TYPE_IQ3_XXS, 4, UINT64_C(0x61a5104f8d39c587), { 12,   12,  132,  -84,  60,  12,   12,   -60,
                                                               -156, -60, 36,   132,  -12, -186, -84,  -60,
                                                               12,   36,  -12,  84,   36,  -60,  36,   12,
                                                               -60,  -12, -132, -132, -60, -132, -132, -12 } },
        { TDM_TYPE_IQ3_S, 1, UINT64_C(0xc09269a852a30a8b), { -119, 17,  153, -51,  85,   187, -221, -17, 153, -51, -17,
                                                             85,   -17, -17, -153, -153, -17, 17,   85,  -51, 187, 153,
                                                             17,   17,  -85, 187,  -17,  -85, -17,  17,  -85, 119 } },
};

/* d, whole, and the byte with its exponent. */
static float d_of(uint32_t type, const uint8_t *block)
{
        uint16_t d = 0;

        if (type != TDM_TYPE_IQ1_M)
                return tdm_f16_to_f32(tdm_load_u16(block));
        for (unsigned i = 0; i < 4; i++)
                d |= (uint16_t)(block[49 + 2 * i] >> 4 << 4 * i);
        return tdm_f16_to_f32(d);
}

static size_t d_byte(uint32_t type)
{
        return type == TDM_TYPE_IQ1_M ? 55 : 1;
}

static uint8_t *random_blocks(uint32_t type)
{
        size_t block_bytes = tdm_type_info(type)->block_bytes;
        uint8_t *blocks = malloc(BLOCKS * block_bytes);
        uint64_t state = 1;

        assert_non_null(blocks);
        for (size_t i = 0; i < BLOCKS * block_bytes; i++) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                blocks[i] = (uint8_t)(state >> 56);
        }
        for (size_t i = 0; i < BLOCKS; i++)
                blocks[i * block_bytes + d_byte(type)] &= 0xbf;
        return blocks;
}

/* Rewrites and packs a row and reads it back; false: refused. */
static bool row_through(uint32_t type, const uint8_t *row, float y[ROW_BLOCKS * VALUES])
{
        uint32_t packed = tdm_weights_packed_type(type);
        struct tdm_weights_tensor t = {
                .type = packed, .layout = TDM_LAYOUT_PANEL16, .rows = 1, .cols = ROW_BLOCKS * VALUES
        };
        _cleanup_(freep) uint8_t *rewritten = malloc((size_t)ROW_BLOCKS * tdm_type_info(packed)->block_bytes),
                                 *panel = NULL;
        bool finite;

        t.panel_bytes = tdm_weights_panel_bytes(packed, t.cols);
        panel = aligned_alloc(64, t.panel_bytes);
        assert_non_null(rewritten);
        assert_non_null(panel);
        tdm_weights_rewrite(type, rewritten, row, ROW_BLOCKS);
        finite = tdm_weights_pack_panel(packed, panel, rewritten, 0, 1, t.cols);
        tdm_weights_row(panel, &t, 0, y);
        for (uint32_t k = 0; k < t.cols; k += 37) { /* the other way to read it */
                float v = tdm_weights_value(panel, &t, 0, k);

                assert_memory_equal(&v, &y[k], sizeof(v));
        }
        return finite;
}

static void test_goldens(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(goldens); i++) {
                const struct golden *g = &goldens[i];
                size_t block_bytes = tdm_type_info(g->type)->block_bytes;
                _cleanup_(freep) uint8_t *blocks = random_blocks(g->type);
                uint64_t hash = UINT64_C(0xcbf29ce484222325);
                float y[ROW_BLOCKS * VALUES];

                for (size_t b = 0; b < BLOCKS; b += ROW_BLOCKS) {
                        assert_true(row_through(g->type, blocks + b * block_bytes, y));
                        for (unsigned k = 0; b == 0 && k < SHOWN; k++)
                                assert_true(y[k] == d_of(g->type, blocks) / (float)g->units * (float)g->shown[k]);
                        for (size_t n = 0; n < sizeof(y); n++)
                                hash = (hash ^ ((const uint8_t *)y)[n]) * UINT64_C(0x100000001b3);
                }
                assert_int_equal(hash, g->hash);
        }
}

/* A d that is not finite is refused as of any type, and whatever the bytes are, nothing beyond a table is read. */
static void test_hostile(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(goldens); i++) {
                uint32_t type = goldens[i].type;
                size_t block_bytes = tdm_type_info(type)->block_bytes;
                _cleanup_(freep) uint8_t *row = malloc(ROW_BLOCKS * block_bytes);
                float y[ROW_BLOCKS * VALUES];

                assert_non_null(row);
                memset(row, 0xff, ROW_BLOCKS * block_bytes);
                assert_false(row_through(type, row, y));
                for (size_t b = 0; b < ROW_BLOCKS; b++)
                        row[b * block_bytes + d_byte(type)] &= 0xbf;
                assert_true(row_through(type, row, y));
                row[(ROW_BLOCKS - 1) * block_bytes + d_byte(type)] |= 0x40;
                assert_false(row_through(type, row, y));
        }
}

/* A rewritten block has as many values: rows of both end with blocks together. */
static void test_blocks(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(goldens); i++) {
                uint32_t packed = tdm_weights_packed_type(goldens[i].type);

                assert_true(tdm_subblock_grid(packed));
                assert_true(tdm_weights_type_supported(packed));
                assert_false(tdm_weights_type_supported(goldens[i].type));
                assert_int_equal(tdm_type_info(packed)->block_values, tdm_type_info(goldens[i].type)->block_values);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_goldens),
                cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_blocks),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
