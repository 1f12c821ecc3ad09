/* Shares, floors, root's reserve, login accounts with subordinate uids, the file that lists them, and labels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/accounts/subuids.h"

#define C TDM_RESOURCE_CONNECTIONS

static struct tdm_accounts *make(uint64_t capacity, uint64_t reserve, uint64_t floor, unsigned percent)
{
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        struct tdm_accounts *accounts;

        for (unsigned r = 0; r < TDM_N_RESOURCES; r++)
                limits[r] = (struct tdm_resource_limit){ capacity, reserve, floor, percent };
        assert_int_equal(tdm_accounts_new(&accounts, limits), 0);
        return accounts;
}

/* Takes one at a time until it is refused; how many it got. */
static uint64_t take_all(struct tdm_account *account)
{
        uint64_t n = 0;

        while (tdm_account_charge(account, C, 1, NULL) == 0)
                n++;
        return n;
}

static void give_all(struct tdm_account *account)
{
        tdm_account_release(account, C, account->used[C]);
        tdm_account_unref(account);
}

static void test_shares(void **state)
{
        struct tdm_accounts *accounts = make(1024, 24, 1, 50);
        struct tdm_account *user[12], *root = tdm_accounts_get(accounts, 0);
        const uint64_t want[] = { 500, 250, 125, 62, 31, 16, 8, 4, 2, 1, 1, 0 };
        uint64_t total = 0;

        for (unsigned i = 0; i < 12; i++) {
                user[i] = tdm_accounts_get(accounts, 1000 + i);
                assert_int_equal(take_all(user[i]), want[i]);
                total += want[i];
        }
        assert_int_equal(total, 1000);
        assert_int_equal(tdm_accounts_total(accounts, C), 1000);
        assert_int_equal(take_all(root), 24); /* the reserve, that nobody else got */
        tdm_account_release(user[0], C, 100);
        assert_true(take_all(user[11]) > 0); /* who comes late gets of what is given back */
        for (unsigned i = 0; i < 12; i++)
                give_all(user[i]);
        give_all(root);
        assert_int_equal(tdm_accounts_total(accounts, C), 0);
        tdm_accounts_destroy(accounts);
}

/* Who is charged more than its share keeps it, and gets no more. All have as much together as before. */
static void test_moving(void **state)
{
        struct tdm_accounts *accounts = make(30, 0, 1, 50);
        struct tdm_account *a = tdm_accounts_get(accounts, 1000), *b = tdm_accounts_get(accounts, 1001);

        assert_int_equal(tdm_account_share(a, C), 15);
        assert_int_equal(take_all(a), 15);
        assert_int_equal(tdm_account_share(b, C), 7);
        assert_int_equal(take_all(b), 7);
        tdm_account_move(a, b, C, 5);
        assert_int_equal(b->used[C], 12);
        assert_int_equal(tdm_account_share(b, C), 10);
        assert_int_equal(tdm_account_available(b, C), 0);
        assert_int_equal(tdm_accounts_total(accounts, C), 22);
        assert_int_equal(take_all(a), 0); /* it has 10, and half of 18 is 9 */
        tdm_account_move(a, b, C, 2);
        assert_int_equal(take_all(a), 0);
        tdm_account_move(b, NULL, C, 14);
        assert_int_equal(tdm_accounts_total(accounts, C), 8);
        assert_int_equal(take_all(a), 7);
        give_all(a);
        give_all(b);
        tdm_accounts_destroy(accounts);
}

static void test_floor(void **state)
{
        struct tdm_accounts *accounts = make(32, 2, 2, 25);
        struct tdm_account *greedy = tdm_accounts_get(accounts, 1000), *late = tdm_accounts_get(accounts, 1001);

        assert_int_equal(take_all(greedy), 7); /* a quarter of 30 */
        assert_int_equal(take_all(late), 5);   /* a quarter of 23 */
        give_all(greedy);
        for (unsigned i = 0; i < 6; i++) {
                struct tdm_account *more = tdm_accounts_get(accounts, 2000 + i);

                assert_true(take_all(more) >= 2);
        }
        while (!tdm_list_empty(tdm_accounts_list(accounts)))
                give_all(tdm_list_entry(tdm_accounts_list(accounts)->next, struct tdm_account, node));
        tdm_accounts_destroy(accounts);
}

static void test_large_numbers(void **state)
{
        struct tdm_accounts *accounts = make(UINT64_MAX, 5, 1, 99);
        struct tdm_account *a = tdm_accounts_get(accounts, 1000);
        uint64_t available = tdm_account_available(a, C);

        assert_true(available > UINT64_MAX / 100 * 98);
        assert_int_equal(tdm_account_charge(a, C, UINT64_MAX, NULL), TDM_E_QUOTA);
        assert_int_equal(tdm_account_charge(a, C, available, NULL), 0);
        assert_int_equal(tdm_account_charge(a, C, 1, NULL), TDM_E_QUOTA);
        assert_int_equal(a->n_refused[C], 2);
        give_all(a);
        tdm_accounts_destroy(accounts);
}

static void test_what_is_said(void **state)
{
        struct tdm_accounts *accounts = make(10, 0, 0, 50);
        struct tdm_account *a = tdm_accounts_get(accounts, 1000), *b = tdm_accounts_get(accounts, 1001);
        struct tdm_error err;

        assert_int_equal(take_all(a), 5);
        assert_int_equal(tdm_account_charge(a, C, 1, &err), TDM_E_QUOTA);
        assert_non_null(strstr(err.message, "uid 1000"));
        assert_non_null(strstr(err.message, "connections"));
        assert_non_null(strstr(err.message, "close some"));
        assert_int_equal(tdm_account_charge(b, C, 6, &err), TDM_E_BUSY);
        assert_non_null(strstr(err.message, "5 of 10"));
        assert_int_equal(tdm_account_charge(b, C, 11, &err), TDM_E_QUOTA); /* never, whoever leaves */
        give_all(a);
        give_all(b);
        tdm_accounts_destroy(accounts);
}

static void test_login_accounts(void **state)
{
        const struct tdm_uid_range ranges[] = {
                { 231072, 65536, 1001 }, { 165536, 65536, 1000 }, { 200000, 5, 1002 }, /* inside 1000's: ignored */
                { 0, 100, 1003 },        { 400000, 10, 0 },       { 500000, 0, 1004 },
        };
        struct tdm_accounts *accounts = make(100, 10, 1, 50);
        struct tdm_account *login, *inside;

        assert_int_equal(tdm_accounts_set_ranges(accounts, ranges, TDM_ARRAY_SIZE(ranges)), 0);
        assert_int_equal(tdm_accounts_owner(accounts, 165536), 1000);
        assert_int_equal(tdm_accounts_owner(accounts, 231071), 1000);
        assert_int_equal(tdm_accounts_owner(accounts, 231072), 1001);
        assert_int_equal(tdm_accounts_owner(accounts, 296608), 296608);
        assert_int_equal(tdm_accounts_owner(accounts, 200002), 1000);
        assert_int_equal(tdm_accounts_owner(accounts, 0), 0);
        assert_int_equal(tdm_accounts_owner(accounts, 50), 50);
        assert_int_equal(tdm_accounts_owner(accounts, 400005), 400005);
        assert_int_equal(tdm_accounts_owner(accounts, 500000), 500000);
        login = tdm_accounts_get(accounts, 1000);
        inside = tdm_accounts_get(accounts, 170000);
        assert_ptr_equal(login, inside);
        assert_int_equal(take_all(login), 45);
        assert_int_equal(tdm_account_charge(inside, C, 1, NULL), TDM_E_QUOTA);
        tdm_account_unref(inside);
        give_all(login);
        tdm_accounts_destroy(accounts);
}

static int fake_names(const char *name, uid_t *ret)
{
        if (strcmp(name, "ada") != 0)
                return -ENOENT;
        *ret = 1000;
        return 0;
}

static void test_the_file(void **state)
{
        static const char text[] = "ada:100000:65536\n1001:165536:65536\nnobody-here:231072:65536\n\nbroken\n:1:2\n"
                                   "ada:4294967295:1\nada:-1:5\nada:4294967290:100\nada:300000:10";
        char path[] = "/tmp/test-subuids-XXXXXX";
        struct tdm_uid_range *ranges;
        int fd = mkstemp(path);
        size_t n;

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
        close(fd);
        assert_int_equal(tdm_subuids_read(path, fake_names, &ranges, &n), 0);
        assert_int_equal(n, 3);
        assert_int_equal(ranges[0].first, 100000);
        assert_int_equal(ranges[0].owner, 1000);
        assert_int_equal(ranges[1].owner, 1001);
        assert_int_equal(ranges[2].first, 300000);
        assert_int_equal(ranges[2].count, 10);
        free(ranges);
        unlink(path);
        assert_int_equal(tdm_subuids_read(path, fake_names, &ranges, &n), 0);
        assert_int_equal(n, 0);
        free(ranges);
}

static struct tdm_account *labelled(struct tdm_accounts *accounts, uid_t uid, const char *label)
{
        struct tdm_account *account;

        assert_int_equal(tdm_accounts_get_labelled(accounts, uid, label, &account, NULL), 0);
        assert_string_equal(tdm_account_label(account), label);
        assert_int_equal(account->uid, uid);
        return account;
}

static void test_labels(void **state)
{
        struct tdm_accounts *accounts = make(1024, 24, 1, 50);
        struct tdm_account *plain = tdm_accounts_get(accounts, 1000), *root = tdm_accounts_get(accounts, 0);
        struct tdm_account *a = labelled(accounts, 1000, "key:a"), *b = labelled(accounts, 1000, "key:b");
        struct tdm_account *again = labelled(accounts, 1000, "key:a"), *other = labelled(accounts, 1001, "key:a");
        struct tdm_account *of_root = labelled(accounts, 0, "key:a");
        const uint64_t identity = a->identity;
        struct tdm_error err;

        assert_int_equal(plain->identity, 1000);
        assert_string_equal(tdm_account_label(plain), "");
        assert_string_equal(tdm_account_label(NULL), "");
        assert_int_equal(root->identity, 0);
        assert_ptr_equal(a, again);
        assert_true(a->identity != b->identity && a->identity != plain->identity && a->identity != other->identity);
        assert_true(of_root->identity != 0); /* no root: neither its rights nor its reserve */
        /* each has a share of its own */
        assert_int_equal(take_all(a), 500);
        assert_int_equal(take_all(b), 250);
        assert_int_equal(take_all(of_root), 125);
        assert_int_equal(take_all(plain), 62);
        assert_int_equal(tdm_account_charge(a, C, 1, &err), TDM_E_QUOTA);
        assert_non_null(strstr(err.message, "uid 1000, key:a"));
        tdm_account_unref(again);
        give_all(a);
        a = labelled(accounts, 1000, "key:a"); /* its account was gone; it is still the same one */
        assert_int_equal(a->identity, identity);
        give_all(a);
        give_all(b);
        give_all(of_root);
        give_all(plain);
        give_all(other);
        give_all(root);
        tdm_accounts_destroy(accounts);
}

/* Where a user without a label may take everything, those with one still leave something to each other. */
static void test_labelled_shares(void **state)
{
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        struct tdm_accounts *accounts;
        struct tdm_account *plain, *a;

        for (unsigned r = 0; r < TDM_N_RESOURCES; r++)
                limits[r] =
                        (struct tdm_resource_limit){ .capacity = 100, .share_percent = 100, .labelled_percent = 50 };
        assert_int_equal(tdm_accounts_new(&accounts, limits), 0);
        plain = tdm_accounts_get(accounts, 1000);
        a = labelled(accounts, 1000, "key:a");
        assert_int_equal(take_all(a), 50);
        assert_int_equal(take_all(plain), 50);
        give_all(a);
        give_all(plain);
        tdm_accounts_destroy(accounts);
}

static void test_bad_labels(void **state)
{
        char long_one[TDM_LABEL_MAX_BYTES + 2];
        const char *const bad[] = { "", " ", "a b", "a\n", "\x7f", "\xc3\xa4", long_one };
        struct tdm_accounts *accounts = make(1024, 24, 1, 50);
        struct tdm_account *account = NULL;

        memset(long_one, 'x', sizeof(long_one));
        long_one[sizeof(long_one) - 1] = '\0';
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(bad); i++)
                assert_int_equal(tdm_accounts_get_labelled(accounts, 1000, bad[i], &account, NULL), TDM_E_BAD_REQUEST);
        assert_null(account);
        give_all(labelled(accounts, 1000, long_one + 1));
        tdm_accounts_destroy(accounts);
}

/* Their number is bounded. The oldest that is not in use is forgotten, and nothing ever has its number again. */
static void test_many_labels(void **state)
{
        struct tdm_accounts *accounts = make(1024, 24, 1, 50);
        struct tdm_account *held[TDM_MAX_LABELS_PER_USER], *a, *other;
        uint64_t first, last = 0;
        struct tdm_error err;
        char text[32];

        a = labelled(accounts, 1000, "first");
        first = a->identity;
        tdm_account_unref(a);
        for (unsigned i = 0; i < 4 * TDM_MAX_LABELS_PER_USER; i++) {
                snprintf(text, sizeof(text), "hostile-%u", i);
                a = labelled(accounts, 1000, text);
                assert_true(a->identity > last);
                last = a->identity;
                tdm_account_unref(a);
        }
        a = labelled(accounts, 1000, "first");
        assert_true(a->identity > last && a->identity != first);
        tdm_account_unref(a);

        for (unsigned i = 0; i < TDM_MAX_LABELS_PER_USER; i++) {
                snprintf(text, sizeof(text), "held-%u", i);
                held[i] = labelled(accounts, 1000, text);
        }
        assert_int_equal(tdm_accounts_get_labelled(accounts, 1000, "more", &a, &err), TDM_E_QUOTA);
        assert_non_null(strstr(err.message, "speaks for 512 others"));
        other = labelled(accounts, 1001, "more"); /* another user's bound is its own */
        a = labelled(accounts, 1000, "held-7");   /* one that is known needs no room */
        assert_ptr_equal(a, held[7]);
        tdm_account_unref(a);
        first = held[7]->identity;
        tdm_account_unref(held[3]);
        held[3] = labelled(accounts, 1000, "more");
        assert_int_equal(held[7]->identity, first);
        for (unsigned i = 0; i < TDM_MAX_LABELS_PER_USER; i++)
                tdm_account_unref(held[i]);
        tdm_account_unref(other);
        tdm_accounts_destroy(accounts);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_shares),          cmocka_unit_test(test_moving),
                cmocka_unit_test(test_floor),           cmocka_unit_test(test_large_numbers),
                cmocka_unit_test(test_what_is_said),    cmocka_unit_test(test_login_accounts),
                cmocka_unit_test(test_the_file),        cmocka_unit_test(test_labels),
                cmocka_unit_test(test_labelled_shares), cmocka_unit_test(test_bad_labels),
                cmocka_unit_test(test_many_labels),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
