/* The prefix cache: what is found and what is not, whom pages belong to, and what goes first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/cache/prefix.h"

#define PAGE TDM_KV_PAGE_TOKENS
#define MAX_TOKENS (16 * PAGE)

static struct tdm_pages *pages;
static struct tdm_prefix *prefix;
static struct tdm_kv_geometry kv;
static struct tdm_hparams hp;

static void set_up_pools(uint32_t n_full, uint32_t n_window, uint32_t n_states)
{
        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, n_full, n_window, n_states), 0);
        assert_int_equal(tdm_pages_new(&pages, &kv, NULL), 0);
        assert_int_equal(tdm_prefix_new(&prefix, pages, &hp, &kv), 0);
}

static void set_up(uint32_t n_full, uint32_t n_window, uint32_t window)
{
        hp = (struct tdm_hparams){ .n_layers = 6,
                                   .d_model = 64,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 32,
                                   .n_ctx = 4096,
                                   .window = window };
        tdm_hparams_all_layers(&hp);
        hp.layers[5].window = 0;
        set_up_pools(n_full, n_window, 0);
}

static void tear_down(void)
{
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                assert_int_equal(tdm_pages_used(pages, (enum tdm_kv_group)g), 0);
                assert_int_equal(tdm_pages_reserved(pages, (enum tdm_kv_group)g), 0);
        }
        tdm_prefix_destroyp(&prefix);
        tdm_pages_destroyp(&pages);
}

/* A sequence as the scheduler has one. */
struct seq {
        uid_t uid;
        uint32_t numerics;
        uint32_t ids[MAX_TOKENS];
        uint32_t table[TDM_KV_GROUPS][MAX_TOKENS / PAGE];
        uint32_t first[TDM_KV_GROUPS], n; /* pages */
        struct tdm_prefix_cursor cursor;
};

static void seq_init(struct seq *q, uid_t uid, uint32_t numerics, uint32_t first_id)
{
        *q = (struct seq){ .uid = uid, .numerics = numerics };
        for (uint32_t i = 0; i < MAX_TOKENS; i++)
                q->ids[i] = first_id + i;
        memset(q->table, 0xff, sizeof(q->table));
}

/* Positions that belong together: no beginning may end within. */
static struct {
        uint32_t first, end;
} whole;

static bool whole_may_cut(const void *userdata, uint32_t n)
{
        assert_ptr_equal(userdata, &whole);
        return n <= whole.first || n >= whole.end;
}

static struct tdm_prefix_tables tables(struct seq *q)
{
        return (struct tdm_prefix_tables){ .pages = { q->table[0], q->table[1] },
                                           .first_page = { q->first[0], q->first[1] },
                                           .may_cut = whole.end ? whole_may_cut : NULL,
                                           .userdata = &whole };
}

static void promise(uint32_t n_full, uint32_t n_window)
{
        struct tdm_pages_need need = { { n_full, kv.n_layers[TDM_KV_WINDOW] ? n_window : 0 } };

        assert_true(tdm_pages_reserve(pages, &need));
}

static uint32_t take(struct seq *q, uint32_t n_max)
{
        struct tdm_pages_need room = { { tdm_pages_room(pages, TDM_KV_FULL), tdm_pages_room(pages, TDM_KV_WINDOW),
                                         tdm_pages_room(pages, TDM_KV_STATE) } };
        struct tdm_pages_need states = { .n[TDM_KV_STATE] = room.n[TDM_KV_STATE] };
        struct tdm_prefix_tables t = tables(q);
        uint32_t n;

        assert_true(tdm_pages_reserve(pages, &room));
        n = tdm_prefix_take(prefix, q->uid, q->numerics, q->ids, n_max, &t, &q->cursor);
        q->n = n / PAGE;
        if (n > 0)
                memcpy(q->first, t.first_page, sizeof(q->first));
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                struct tdm_pages_need rest = { 0 };

                rest.n[g] = kv.n_layers[g] ? room.n[g] - (q->n - q->first[g]) : 0;
                tdm_pages_unreserve(pages, &rest);
        }
        if (n > 0 && kv.n_layers[TDM_KV_STATE]) {
                states.n[TDM_KV_STATE]--;
                tdm_pages_free(pages, TDM_KV_STATE, t.state_page, false);
        }
        tdm_pages_unreserve(pages, &states);
        return n;
}

/* Computes up to n pages of rows. */
static void run(struct seq *q, uint32_t n)
{
        struct tdm_prefix_tables t;

        while (q->n < n) {
                promise(1, 1);
                for (int g = 0; g < TDM_KV_GROUPS; g++)
                        if (kv.n_layers[g])
                                q->table[g][q->n] = tdm_pages_alloc(pages, (enum tdm_kv_group)g, q->uid);
                q->n++;
        }
        t = tables(q);
        tdm_prefix_add(prefix, q->uid, q->numerics, q->ids, q->n * PAGE, &t, &q->cursor);
}

static void leave(struct seq *q)
{
        for (int g = 0; g < TDM_KV_GROUPS; g++)
                for (uint32_t i = q->n; kv.n_layers[g] && i > q->first[g]; i--)
                        tdm_pages_free(pages, (enum tdm_kv_group)g, q->table[g][i - 1], false);
        q->n = 0;
        memset(&q->cursor, 0, sizeof(q->cursor));
        memset(q->first, 0, sizeof(q->first));
        memset(q->table, 0xff, sizeof(q->table));
}

static void slide(struct seq *q, uint32_t n)
{
        while (q->first[TDM_KV_WINDOW] < n)
                tdm_pages_free(pages, TDM_KV_WINDOW, q->table[TDM_KV_WINDOW][q->first[TDM_KV_WINDOW]++], true);
}

/* What is known ends within a picture: then it is taken up to the page before the picture. */
static void test_whole(void **state)
{
        struct seq a, b;
        uint32_t x;

        set_up(20, 20, 40);
        x = tdm_prefix_numerics(prefix, "x", 1);
        seq_init(&a, 1000, x, 300);
        seq_init(&b, 1000, x, 300);
        run(&a, 6);
        whole.first = 2 * PAGE + 5;
        whole.end = 4 * PAGE + 1;
        assert_int_equal(take(&b, 4 * PAGE), 2 * PAGE);
        leave(&b);
        assert_int_equal(take(&b, 5 * PAGE), 5 * PAGE);
        leave(&b);
        whole.first = 2 * PAGE;
        whole.end = 4 * PAGE;
        assert_int_equal(take(&b, 3 * PAGE), 2 * PAGE);
        leave(&b);
        assert_int_equal(take(&b, 4 * PAGE), 4 * PAGE);
        leave(&b);
        whole.first = 1;
        assert_int_equal(take(&b, 3 * PAGE), 0);
        whole.end = 0;
        leave(&b);
        leave(&a);
        tear_down();
}

static void test_found_by_content(void **state)
{
        uint32_t x, y;
        struct seq a, b;

        set_up(16, 16, 3 * PAGE);
        x = tdm_prefix_numerics(prefix, "x", 1);
        y = tdm_prefix_numerics(prefix, "y", 1);
        assert_int_not_equal(x, y);
        assert_int_equal(tdm_prefix_numerics(prefix, "x", 1), x);
        seq_init(&a, 1, x, 100);
        run(&a, 4);
        assert_int_equal(tdm_prefix_n_entries(prefix), 4);

        seq_init(&b, 1, x, 100);
        assert_int_equal(take(&b, 4 * PAGE), 4 * PAGE); /* while the other still runs */
        assert_int_equal(b.table[TDM_KV_FULL][3], a.table[TDM_KV_FULL][3]);
        assert_int_equal(b.first[TDM_KV_WINDOW], 1); /* position 128 sees from 33 on */
        assert_int_equal(b.table[TDM_KV_WINDOW][0], TDM_KV_NO_PAGE);
        assert_int_equal(b.table[TDM_KV_WINDOW][1], a.table[TDM_KV_WINDOW][1]);
        assert_int_equal(tdm_pages_used(pages, TDM_KV_FULL), 4);
        leave(&b);
        leave(&a);
        assert_int_equal(tdm_pages_idle(pages, TDM_KV_FULL), 4);

        assert_int_equal(take(&b, 4 * PAGE - 1), 3 * PAGE);
        leave(&b);
        b.ids[2 * PAGE + 31]++; /* one id differs */
        assert_int_equal(take(&b, 4 * PAGE), 2 * PAGE);
        leave(&b);
        b.ids[0]++;
        assert_int_equal(take(&b, 4 * PAGE), 0);
        seq_init(&b, 2, x, 100); /* another user */
        assert_int_equal(take(&b, 4 * PAGE), 0);
        seq_init(&b, 1, y, 100); /* other bits */
        assert_int_equal(take(&b, 4 * PAGE), 0);
        /* The same page elsewhere is another page. */
        seq_init(&b, 1, x, 100);
        memmove(b.ids, b.ids + PAGE, 4 * PAGE * sizeof(b.ids[0]));
        assert_int_equal(take(&b, 4 * PAGE), 0);
        tear_down();
}

/* Window pages that slid out are the first to be taken; without them a beginning is only good where the window still
 * is. */
static void test_window(void **state)
{
        struct seq a, b, c;
        uint32_t x;

        set_up(16, 6, 2 * PAGE);
        x = tdm_prefix_numerics(prefix, "x", 1);
        seq_init(&a, 1, x, 100);
        run(&a, 4);
        slide(&a, 2);
        leave(&a);
        seq_init(&b, 1, x, 100);
        assert_int_equal(take(&b, 4 * PAGE), 4 * PAGE);
        assert_int_equal(b.first[TDM_KV_WINDOW], 2);
        leave(&b);
        seq_init(&c, 2, x, 5000);
        run(&c, 3); /* two free ones, and one that slid out: page 1 */
        assert_int_equal(tdm_prefix_n_entries(prefix), 7);
        assert_int_equal(take(&b, 2 * PAGE), PAGE); /* position 32 needs page 0, position 64 page 1 too */
        leave(&b);
        assert_int_equal(take(&b, 3 * PAGE), PAGE); /* 1 and 2 */
        leave(&b);
        assert_int_equal(take(&b, 4 * PAGE), 4 * PAGE); /* 2 and 3: still there */
        leave(&b);
        /* Whoever reads it again gives the page that was missing. */
        leave(&c);
        run(&b, 2);
        leave(&b);
        assert_int_equal(tdm_prefix_n_entries(prefix), 7);
        assert_int_equal(take(&b, 2 * PAGE), 2 * PAGE);
        leave(&b);
        tear_down();
}

static void test_leaves_first(void **state)
{
        struct seq a, b, c;
        uint32_t x;

        set_up(6, 6, 0);
        x = tdm_prefix_numerics(prefix, "x", 1);
        seq_init(&a, 1, x, 100);
        run(&a, 3);
        leave(&a);
        seq_init(&b, 1, x, 100);
        memset(b.ids + 2 * PAGE, 1, sizeof(b.ids) - 2 * PAGE * sizeof(b.ids[0])); /* parts after two pages */
        assert_int_equal(take(&b, 3 * PAGE), 2 * PAGE);
        run(&b, 3);
        leave(&b);
        assert_int_equal(tdm_prefix_n_entries(prefix), 4);
        seq_init(&c, 1, x, 9000);
        run(&c, 3); /* two are free; a's last page is the coldest */
        assert_int_equal(tdm_prefix_n_entries(prefix), 6);
        assert_int_equal(take(&a, 3 * PAGE), 2 * PAGE);
        leave(&a);
        assert_int_equal(take(&b, 3 * PAGE), 3 * PAGE);
        leave(&b);
        run(&c, 6); /* everything */
        assert_int_equal(tdm_prefix_n_entries(prefix), 6);
        assert_int_equal(take(&a, 3 * PAGE), 0);
        leave(&c);
        tear_down();
}

/* Two compute the same at the same time: the second one's copies are its own, what it adds hangs on the first one's. */
static void test_copies(void **state)
{
        struct seq a, b, c;
        uint32_t x;

        set_up(8, 8, 0);
        x = tdm_prefix_numerics(prefix, "x", 1);
        seq_init(&a, 1, x, 100);
        seq_init(&b, 1, x, 100);
        run(&a, 2);
        run(&b, 3);
        assert_int_equal(tdm_prefix_n_entries(prefix), 3);
        leave(&a);
        seq_init(&c, 2, x, 9000);
        run(&c, 5); /* three are free: a's two go, b's third is forgotten with them */
        assert_int_equal(tdm_prefix_n_entries(prefix), 5);
        run(&b, 3);
        assert_int_equal(tdm_prefix_n_entries(prefix), 5); /* nothing new was full */
        leave(&c);
        run(&b, 4); /* its own pages, from the beginning */
        seq_init(&c, 1, x, 100);
        assert_int_equal(take(&c, 8 * PAGE), 4 * PAGE);
        assert_int_equal(c.table[TDM_KV_FULL][0], b.table[TDM_KV_FULL][0]);
        leave(&c);
        leave(&b);
        tear_down();
}

/* Comes to a border with a state, which is kept. */
static void pass(struct seq *q, uint32_t n, bool passes)
{
        const struct tdm_pages_need one = { .n[TDM_KV_STATE] = 1 };
        struct tdm_prefix_tables t;
        uint32_t page;

        for (; q->n < n; q->n++) {
                promise(1, 0);
                q->table[TDM_KV_FULL][q->n] = tdm_pages_alloc(pages, TDM_KV_FULL, q->uid);
        }
        assert_true(tdm_pages_reserve(pages, &one));
        page = tdm_pages_alloc(pages, TDM_KV_STATE, q->uid);
        t = tables(q);
        t.states[0] = (struct tdm_prefix_state){ .page = page, .n = n * PAGE, .passes = passes };
        tdm_prefix_add(prefix, q->uid, q->numerics, q->ids, n * PAGE, &t, &q->cursor);
        tdm_pages_free(pages, TDM_KV_STATE, page, false);
}

static uint32_t n_found(uint32_t numerics, uint32_t n_max)
{
        struct seq q;
        uint32_t n;

        seq_init(&q, 1, numerics, 100);
        n = take(&q, n_max * PAGE);
        leave(&q);
        return n / PAGE;
}

/* A sequence that goes on drops the state of its last border, but not where another one has come to it since. */
static void test_borders(void **state)
{
        struct seq a, b;
        uint32_t x;

        set_up(16, 0, 0);
        tear_down();
        for (unsigned i = 0; i < 5; i++)
                hp.layers[i].n_state = 64;
        set_up_pools(16, 0, 8);
        x = tdm_prefix_numerics(prefix, "x", 1);
        seq_init(&a, 1, x, 100);
        seq_init(&b, 1, x, 100);
        pass(&a, 1, true);
        pass(&a, 2, true);
        assert_int_equal(n_found(x, 1), 0); /* its own: it has passed that */
        pass(&b, 1, true);
        pass(&b, 2, false); /* to stay */
        pass(&a, 3, true);
        assert_int_equal(n_found(x, 2), 2);
        pass(&b, 3, true);
        pass(&a, 4, true);
        assert_int_equal(n_found(x, 3), 3); /* where b is */
        pass(&b, 4, true);
        assert_int_equal(n_found(x, 3), 2);
        assert_int_equal(n_found(x, 4), 4);
        pass(&b, 5, true);
        pass(&a, 5, true);
        assert_int_equal(n_found(x, 4), 2);
        leave(&a);
        leave(&b);
        tear_down();
}

static void test_many_numerics(void **state)
{
        struct seq a;
        char key[2] = "a";

        set_up(8, 8, 2 * PAGE);
        seq_init(&a, 1, tdm_prefix_numerics(prefix, "first", 5), 100);
        run(&a, 2);
        for (int i = 0; i < 40; i++, key[0]++)
                assert_true(tdm_prefix_numerics(prefix, key, 1) > 0);
        run(&a, 4); /* nobody knows any more what made them */
        assert_int_equal(tdm_prefix_n_entries(prefix), 0);
        leave(&a);
        assert_int_equal(tdm_pages_idle(pages, TDM_KV_FULL), 0);
        tear_down();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_whole),   cmocka_unit_test(test_found_by_content),
                cmocka_unit_test(test_window),  cmocka_unit_test(test_leaves_first),
                cmocka_unit_test(test_copies),  cmocka_unit_test(test_many_numerics),
                cmocka_unit_test(test_borders),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
