/* Memory of the cache's twin (kv-pages.c), on a segment as tandemd makes them: what is asked for comes, ahead and at
 * once, and no more; what was written stays. Where this kernel has no huge pages only the last can be seen. */
#include <unistd.h>

#include "common/test-hugepage.h"
#include "gpu-worker/vulkan/memory/kv-pages.h"

#define N_LAYERS 40u
#define N_PAGES 24u
#define PAGE_BYTES (N_LAYERS * 65536ull) /* 4 heads of 128 in f16 */

static _Atomic uint64_t heartbeat;
static struct tdm_pool *threads;
static struct tdm_kv_geometry kv;
static bool has_huge;

static int begin(void **state)
{
        static struct tdm_hparams hp = { .n_layers = N_LAYERS, .n_kv_heads = 4, .n_heads = 8, .head_dim = 128 };
        struct tdm_segment *s;

        tdm_hparams_all_layers(&hp);
        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, N_PAGES, 0, 0), 0);
        assert_int_equal(kv.page_bytes[TDM_KV_FULL], PAGE_BYTES);
        assert_int_equal(tdm_segment_create(&s, "probe", TDM_HUGEPAGE_BYTES), 0);
        has_huge = tdm_hugepage_make(s->base, 1) == 0;
        tdm_segment_destroy(s);
        return tdm_pool_new(&threads, 3, &heartbeat);
}

static int end(void **state)
{
        tdm_pool_destroy(threads);
        return 0;
}

static void mark(struct tdm_segment *s, bool check)
{
        for (uint64_t at = 0; at < s->size_bytes; at += 3 * PAGE_BYTES / 2)
                if (check)
                        assert_int_equal(s->base[at + 5], (uint8_t)(at / 4096 * 7 + 1));
                else
                        s->base[at + 5] = (uint8_t)(at / 4096 * 7 + 1);
}

/* Whole huge pages that pages [first, end) touch. */
static uint64_t bytes_of(uint32_t first, uint32_t end)
{
        uint64_t from = first * PAGE_BYTES / TDM_HUGEPAGE_BYTES, to = TDM_DIV_UP(end * PAGE_BYTES, TDM_HUGEPAGE_BYTES);

        return (TDM_MIN(to, kv.size_bytes / TDM_HUGEPAGE_BYTES) - from) * TDM_HUGEPAGE_BYTES;
}

/* The thread's work: soon, and then no more. */
static void expect(const struct tdm_segment *s, uint64_t bytes)
{
        for (int i = 0; i < 1000 && has_huge && test_huge_bytes(s) < bytes; i++)
                usleep(10000);
        usleep(20000);
        assert_int_equal(test_huge_bytes(s), has_huge ? bytes : 0);
}

static void asked_for(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        struct tdm_vk_pages *p;

        assert_int_equal(tdm_segment_create(&s, "kv", kv.size_bytes), 0);
        mark(s, false);
        assert_int_equal(tdm_vk_pages_new(&p, &kv, s->base, threads), 0);
        assert_non_null(p);
        expect(s, bytes_of(0, N_PAGES / 4));

        for (int twice = 0; twice < 2; twice++) { /* the second time there is nothing left to ask for */
                for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                        tdm_vk_pages_want(p, layer, 12);
                tdm_vk_pages_make(p);
                assert_int_equal(test_huge_bytes(s), has_huge ? bytes_of(0, N_PAGES / 4) + bytes_of(12, 13) : 0);
        }
        /* 13 were wanted; two sequences, and a quarter of the eleven that are left. */
        tdm_vk_pages_ahead(p, 2);
        expect(s, bytes_of(0, 13 + 2 + 2));
        tdm_vk_pages_ahead(p, 1);
        expect(s, bytes_of(0, 13 + 2 + 2));
        tdm_vk_pages_ahead(p, 1000);
        expect(s, bytes_of(0, N_PAGES));
        /* the end is no whole huge page: it stays as it is */
        tdm_vk_pages_want(p, N_LAYERS - 1, N_PAGES - 1);
        tdm_vk_pages_make(p);
        mark(s, true);
        tdm_vk_pages_free(p);
        mark(s, true);
}

/* After free() no page is still being asked for, so the segment can be unmapped. */
static void ended_at_once(void **state)
{
        for (unsigned i = 0; i < 50; i++) {
                struct tdm_segment *s;
                struct tdm_vk_pages *p;

                assert_int_equal(tdm_segment_create(&s, "kv", kv.size_bytes), 0);
                assert_int_equal(tdm_vk_pages_new(&p, &kv, s->base, threads), 0);
                if (i % 2)
                        tdm_vk_pages_ahead(p, i);
                if (i % 5 == 0)
                        usleep(i * 20);
                tdm_vk_pages_free(p);
                tdm_segment_destroy(s);
        }
        tdm_vk_pages_free(NULL);
}

static void not_aligned(void **state)
{
        struct tdm_vk_pages *p = (struct tdm_vk_pages *)&kv;

        assert_int_equal(tdm_vk_pages_new(&p, &kv, (uint8_t *)4096, threads), 0);
        assert_null(p);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(asked_for), cmocka_unit_test(ended_at_once),
                                            cmocka_unit_test(not_aligned) };

        return cmocka_run_group_tests(tests, begin, end);
}
