/* Where keys and values lie (kv.c): parts of all layers that own some fill a page without holes or overlaps, layers may
 * differ in their heads, and a layer that reads another's finds that one's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/step/kv.h"

/* Seven layers; those of index 2 and 5 are full, with longer heads; the last three own nothing. */
static struct tdm_hparams mixed(void)
{
        struct tdm_hparams hp = { .n_layers = 7,
                                  .d_model = 64,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .head_dim = 32,
                                  .d_ff = 64,
                                  .window = 40,
                                  .n_vocab = 8,
                                  .n_ctx = 64 };

        tdm_hparams_all_layers(&hp);
        for (uint32_t i = 2; i < 7; i += 3) {
                hp.layers[i].window = 0;
                hp.layers[i].head_dim = 64;
                hp.layers[i].n_kv_heads = 1;
        }
        hp.layers[4].kv_layer = hp.layers[6].kv_layer = 3;
        hp.layers[5].kv_layer = 2;
        tdm_hparams_take_largest(&hp);
        return hp;
}

static int by_number(const void *a, const void *b)
{
        const uint64_t *x = a, *y = b;

        return *x < *y ? -1 : *x > *y;
}

static void layers_differ(void **state)
{
        static const enum tdm_kv_type types[] = { TDM_KV_F16, TDM_KV_F32, TDM_KV_Q8_0 };
        struct tdm_hparams hp = mixed();
        struct tdm_error err;

        assert_int_equal(tdm_hparams_check(&hp, &err), 0);
        for (size_t t = 0; t < TDM_ARRAY_SIZE(types); t++) {
                uint64_t small = tdm_kv_part_bytes(types[t], 32), large = tdm_kv_part_bytes(types[t], 64);
                struct tdm_kv_geometry kv;

                assert_int_equal(tdm_kv_geometry_init(&kv, &hp, types[t], 5, 3, 0), 0);
                assert_int_equal(kv.n_layers[TDM_KV_FULL], 1);
                assert_int_equal(kv.n_layers[TDM_KV_WINDOW], 3);
                assert_int_equal(kv.page_bytes[TDM_KV_FULL], TDM_ALIGN_UP(large, UINT64_C(4096)));
                assert_int_equal(kv.page_bytes[TDM_KV_WINDOW], TDM_ALIGN_UP(3 * 2 * small, UINT64_C(4096)));
                assert_int_equal(kv.offset[TDM_KV_WINDOW], 5 * kv.page_bytes[TDM_KV_FULL]);
                assert_int_equal(kv.size_bytes, 5 * kv.page_bytes[TDM_KV_FULL] + 3 * kv.page_bytes[TDM_KV_WINDOW]);
                assert_int_equal(tdm_kv_layer_bytes(&kv, 0), 2 * small);
                assert_int_equal(tdm_kv_layer_bytes(&kv, 5), large);
                assert_int_equal(tdm_kv_first_layer(&hp, TDM_KV_FULL), 2);
                assert_int_equal(tdm_kv_first_layer(&hp, TDM_KV_WINDOW), 0);
        }
}

/* Every part of every page, sorted: each begins where the one before ends, but for the padding of pages. */
static void no_overlap(void **state)
{
        struct tdm_hparams hp = mixed();
        struct tdm_kv_geometry kv;
        uint64_t parts[128][2], sum = 0;
        unsigned n = 0;

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 5, 3, 0), 0);
        for (uint32_t layer = 0; layer < hp.n_layers; layer++) {
                const struct tdm_kv_layer *l = &kv.layers[layer];

                assert_int_equal(l->group, tdm_kv_group_of(&hp, layer));
                assert_int_equal(l->head_dim, hp.layers[layer].head_dim);
                assert_int_equal(l->n_kv_heads, hp.layers[layer].n_kv_heads);
                for (uint32_t page = 0; page < kv.n_pages[l->group]; page++)
                        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
                                uint64_t at = tdm_kv_part_offset(&kv, layer, page, head);

                                if (hp.layers[layer].kv_layer != layer) {
                                        assert_int_equal(
                                                at, tdm_kv_part_offset(&kv, hp.layers[layer].kv_layer, page, head));
                                        continue;
                                }
                                assert_true(n < TDM_ARRAY_SIZE(parts));
                                parts[n][0] = at;
                                parts[n++][1] = l->part_bytes;
                                sum += l->part_bytes;
                        }
        }
        qsort(parts, n, sizeof(parts[0]), by_number);
        for (unsigned i = 0; i < n; i++)
                assert_true(parts[i][0] + parts[i][1] <= (i + 1 < n ? parts[i + 1][0] : kv.size_bytes));
        assert_true(sum <= kv.size_bytes && kv.size_bytes < sum + 8 * 4096);
}

static void equal(void **state)
{
        struct tdm_hparams hp = mixed();
        struct tdm_kv_geometry a, b;

        assert_int_equal(tdm_kv_geometry_init(&a, &hp, TDM_KV_F16, 5, 3, 0), 0);
        b = a;
        assert_true(tdm_kv_geometry_equal(&a, &b));
        b.layers[6].offset += 64;
        assert_false(tdm_kv_geometry_equal(&a, &b));
        b = a;
        b.n_pages[TDM_KV_WINDOW]++;
        assert_false(tdm_kv_geometry_equal(&a, &b));
        assert_int_equal(tdm_kv_geometry_init(&b, &hp, TDM_KV_F32, UINT32_MAX, UINT32_MAX, 0), -EOVERFLOW);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(layers_differ), cmocka_unit_test(no_overlap),
                                            cmocka_unit_test(equal) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
