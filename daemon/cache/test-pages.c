/* The page allocator: reservations, zeroing between users, and how a budget is shared between the groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/cache/pages.h"

static struct tdm_hparams hparams(uint32_t n_ctx, uint32_t window)
{
        struct tdm_hparams hp = { .n_layers = 12,
                                  .d_model = 256,
                                  .n_heads = 4,
                                  .n_kv_heads = 1,
                                  .head_dim = 64,
                                  .n_ctx = n_ctx,
                                  .window = window };

        tdm_hparams_all_layers(&hp);
        for (uint32_t l = 5; l < hp.n_layers; l += 6)
                hp.layers[l].window = 0;
        return hp;
}

static void test_reserve(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128);
        struct tdm_pages_need a = { { 6, 3 } }, b = { { 5, 1 } }, c = { { 4, 5 } }, never = { { 11, 1 } };
        struct tdm_kv_geometry kv;
        struct tdm_pages *p;

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 10, 8, 0), 0);
        assert_int_equal(tdm_pages_new(&p, &kv, NULL), 0);
        assert_false(tdm_pages_possible(p, &never));
        assert_true(tdm_pages_reserve(p, &a));
        assert_false(tdm_pages_reserve(p, &b)); /* full group */
        assert_true(tdm_pages_reserve(p, &c));
        assert_int_equal(tdm_pages_reserved(p, TDM_KV_FULL), 10);
        assert_int_equal(tdm_pages_reserved(p, TDM_KV_WINDOW), 8);
        tdm_pages_unreserve(p, &a);
        assert_true(tdm_pages_reserve(p, &b));
        tdm_pages_unreserve(p, &b);
        tdm_pages_unreserve(p, &c);
        assert_int_equal(tdm_pages_reserved(p, TDM_KV_FULL), 0);
        tdm_pages_destroy(p);
}

static void test_alloc_is_exclusive(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128);
        struct tdm_pages_need all = { { 10, 8 } };
        struct tdm_kv_geometry kv;
        struct tdm_pages *p;
        bool seen[10] = { false };
        uint32_t pages[10];

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 10, 8, 0), 0);
        assert_int_equal(tdm_pages_new(&p, &kv, NULL), 0);
        assert_true(tdm_pages_reserve(p, &all));
        for (int i = 0; i < 10; i++) {
                pages[i] = tdm_pages_alloc(p, TDM_KV_FULL, 1);
                assert_true(pages[i] < 10);
                assert_false(seen[pages[i]]);
                seen[pages[i]] = true;
        }
        assert_int_equal(tdm_pages_used(p, TDM_KV_FULL), 10);
        for (int i = 0; i < 10; i++)
                tdm_pages_free(p, TDM_KV_FULL, pages[i], false);
        assert_int_equal(tdm_pages_used(p, TDM_KV_FULL), 0);
        tdm_pages_destroy(p);
}

static struct tdm_pages *reclaiming;
static uint32_t n_reclaimed, reclaimed[8];

static void reclaim(enum tdm_kv_group group, uint32_t coldest, void *userdata)
{
        reclaimed[n_reclaimed++] = coldest;
        tdm_pages_drop(reclaiming, group, coldest);
}

/* What is kept is shared by those who know its content, and goes, coldest first, when somebody wants a page. */
static void test_kept_and_shared(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128);
        struct tdm_pages_need all = { { 4, 0 } }, one = { { 1, 0 } };
        struct tdm_kv_geometry kv;
        uint32_t pages[4];

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 4, 1, 0), 0);
        assert_int_equal(tdm_pages_new(&reclaiming, &kv, NULL), 0);
        tdm_pages_set_reclaim(reclaiming, reclaim, NULL);
        assert_true(tdm_pages_reserve(reclaiming, &all));
        for (int i = 0; i < 4; i++) {
                pages[i] = tdm_pages_alloc(reclaiming, TDM_KV_FULL, 1);
                tdm_pages_keep(reclaiming, TDM_KV_FULL, pages[i]);
        }
        assert_int_equal(tdm_pages_room(reclaiming, TDM_KV_FULL), 0);
        for (int i = 0; i < 4; i++)
                tdm_pages_free(reclaiming, TDM_KV_FULL, pages[i], i == 2); /* cold to warm: 2 0 1 3 */
        assert_int_equal(tdm_pages_idle(reclaiming, TDM_KV_FULL), 4);
        assert_int_equal(tdm_pages_used(reclaiming, TDM_KV_FULL), 0);
        assert_int_equal(tdm_pages_room(reclaiming, TDM_KV_FULL), 4);

        assert_true(tdm_pages_reserve(reclaiming, &all));
        tdm_pages_share(reclaiming, TDM_KV_FULL, pages[0]);
        tdm_pages_share(reclaiming, TDM_KV_FULL, pages[0]); /* two have it: one page used, two promises */
        assert_int_equal(tdm_pages_used(reclaiming, TDM_KV_FULL), 1);
        assert_int_equal(tdm_pages_room(reclaiming, TDM_KV_FULL), 1);
        assert_int_equal(tdm_pages_alloc(reclaiming, TDM_KV_FULL, 2), pages[2]);
        assert_int_equal(tdm_pages_alloc(reclaiming, TDM_KV_FULL, 2), pages[1]);
        assert_int_equal(n_reclaimed, 2);
        assert_int_equal(tdm_pages_reserved(reclaiming, TDM_KV_FULL), 0);
        tdm_pages_free(reclaiming, TDM_KV_FULL, pages[0], false);
        assert_true(tdm_pages_is_used(reclaiming, TDM_KV_FULL, pages[0]));
        tdm_pages_drop(reclaiming, TDM_KV_FULL, pages[0]); /* not kept, still used */
        assert_int_equal(tdm_pages_used(reclaiming, TDM_KV_FULL), 3);
        tdm_pages_free(reclaiming, TDM_KV_FULL, pages[0], false);
        assert_true(tdm_pages_reserve(reclaiming, &one));
        assert_int_equal(tdm_pages_alloc(reclaiming, TDM_KV_FULL, 2), pages[0]); /* free before idle */
        assert_int_equal(tdm_pages_idle(reclaiming, TDM_KV_FULL), 1);
        tdm_pages_destroy(reclaiming);
}

static uint8_t page_byte(const struct tdm_segment *s, const struct tdm_kv_geometry *kv, uint32_t page)
{
        return s->base[kv->offset[TDM_KV_WINDOW] + page * kv->page_bytes[TDM_KV_WINDOW] + 5];
}

static void test_zeroed_between_users(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128);
        struct tdm_pages_need need = { { 0, 1 } };
        struct tdm_segment *segment;
        struct tdm_kv_geometry kv;
        struct tdm_pages *p;
        uint32_t page;

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 2, 1, 0), 0);
        assert_int_equal(tdm_segment_create(&segment, "kv", kv.size_bytes), 0);
        assert_int_equal(tdm_pages_new(&p, &kv, segment), 0);
        assert_true(tdm_pages_reserve(p, &need));
        page = tdm_pages_alloc(p, TDM_KV_WINDOW, 1000);
        assert_false(tdm_pages_reserve(p, &need));
        memset(segment->base + kv.offset[TDM_KV_WINDOW], 0xaa, kv.page_bytes[TDM_KV_WINDOW]);
        memset(segment->base, 0xbb, kv.page_bytes[TDM_KV_FULL]); /* a neighbour's page */
        tdm_pages_free(p, TDM_KV_WINDOW, page, false);
        assert_true(tdm_pages_reserve(p, &need));
        page = tdm_pages_alloc(p, TDM_KV_WINDOW, 1000);
        assert_int_equal(page_byte(segment, &kv, page), 0xaa); /* one's own */
        tdm_pages_free(p, TDM_KV_WINDOW, page, false);
        assert_true(tdm_pages_reserve(p, &need));
        page = tdm_pages_alloc(p, TDM_KV_WINDOW, 1001);
        for (uint64_t i = 0; i < kv.page_bytes[TDM_KV_WINDOW]; i++)
                assert_int_equal(segment->base[kv.offset[TDM_KV_WINDOW] + i], 0);
        assert_int_equal(segment->base[7], 0xbb);
        tdm_pages_destroy(p);
        tdm_segment_destroy(segment);
}

static void test_need(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128), flat = hparams(4096, 0);
        struct tdm_kv_geometry kv, flat_kv;
        struct tdm_pages_need n;

        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 10, 8, 0), 0);
        assert_int_equal(tdm_kv_geometry_init(&flat_kv, &flat, TDM_KV_F16, 10, 8, 0), 0);
        n = tdm_pages_need(&hp, &kv, 1, 256);
        assert_int_equal(n.n[TDM_KV_FULL], 1);
        assert_int_equal(n.n[TDM_KV_WINDOW], 1);
        n = tdm_pages_need(&hp, &kv, 33, 256);
        assert_int_equal(n.n[TDM_KV_FULL], 2);
        n = tdm_pages_need(&hp, &kv, 4096, 256);
        assert_int_equal(n.n[TDM_KV_FULL], 128);
        assert_int_equal(n.n[TDM_KV_WINDOW], (128 + 256) / 32 + 1);
        n = tdm_pages_need(&flat, &flat_kv, 4096, 256);
        assert_int_equal(n.n[TDM_KV_WINDOW], 0);
}

static void test_plan(void **state)
{
        struct tdm_hparams hp = hparams(4096, 128);
        struct tdm_kv_geometry kv;
        struct tdm_pages_need n;

        /* Plenty: everything 64 sequences can use, and no more. */
        tdm_pages_plan(&hp, TDM_KV_F16, UINT64_C(1) << 40, 64, 256, &n);
        assert_int_equal(n.n[TDM_KV_FULL], 64 * 128);
        assert_int_equal(n.n[TDM_KV_WINDOW], 64 * 13);
        for (uint64_t budget = 1 << 16; budget < UINT64_C(1) << 34; budget *= 3) {
                tdm_pages_plan(&hp, TDM_KV_F16, budget, 64, 256, &n);
                assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, n.n[TDM_KV_FULL], n.n[TDM_KV_WINDOW], 0),
                                 0);
                assert_true(kv.size_bytes <= budget);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_reserve),
                cmocka_unit_test(test_alloc_is_exclusive),
                cmocka_unit_test(test_kept_and_shared),
                cmocka_unit_test(test_zeroed_between_users),
                cmocka_unit_test(test_need),
                cmocka_unit_test(test_plan),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
