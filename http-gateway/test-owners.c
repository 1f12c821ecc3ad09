/* Which addresses are one network, and what each owner may have of what the others leave. */
#include "http-gateway/owners.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static struct owner *at(struct owners *owners, const char *address)
{
        struct sockaddr_in four = { .sin_family = AF_INET };
        struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
        struct owner *o;

        if (inet_pton(AF_INET, address, &four.sin_addr) == 1)
                o = owners_get_network(owners, (struct sockaddr *)&four);
        else if (inet_pton(AF_INET6, address, &six.sin6_addr) == 1)
                o = owners_get_network(owners, (struct sockaddr *)&six);
        else
                o = owners_get_network(owners, NULL); /* a local socket */
        assert_non_null(o);
        return o;
}

static void test_networks(void **state)
{
        static const struct {
                const char *a, *b;
                bool same;
        } pairs[] = { { "127.0.0.1", "127.255.3.4", true },
                      { "127.0.0.1", "::1", true },
                      { "127.0.0.1", "::ffff:127.9.9.9", true },
                      { "127.0.0.1", "local", true },
                      { "127.0.0.1", "128.0.0.1", false },
                      { "192.0.2.1", "192.0.2.2", false },
                      { "192.0.2.1", "::ffff:192.0.2.1", true },
                      { "2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", true },
                      { "2001:db8:1:2::1", "2001:db8:1:3::1", false },
                      { "::2", "127.0.0.1", false },
                      { "::", "0.0.0.0", false } };
        struct owners owners;

        owners_init(&owners);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(pairs); i++) {
                struct owner *a = at(&owners, pairs[i].a), *b = at(&owners, pairs[i].b);

                if ((a == b) != pairs[i].same)
                        fail_msg("%s and %s", pairs[i].a, pairs[i].b);
                owner_unref(a);
                owner_unref(b);
        }
        assert_true(tdm_list_empty(&owners.all));
}

static void test_labels(void **state)
{
        struct owners owners;
        struct owner *a, *b, *c;

        owners_init(&owners);
        a = owners_get_label(&owners, "key:a");
        b = owners_get_label(&owners, "key:b");
        c = owners_get_label(&owners, strcpy((char[8]){ 0 }, "key:a"));
        assert_ptr_equal(a, c);
        assert_ptr_not_equal(a, b);
        assert_int_not_equal(a->id, b->id);
        owner_unref(a);
        owner_unref(b);
        owner_unref(c);
}

static void test_memory(void **state)
{
        struct owners owners;
        struct owner *o[8];
        struct failure f = { 0 };

        owners_init(&owners);
        for (unsigned i = 0; i < 8; i++)
                o[i] = at(&owners, (char[]){ '1', '.', '1', '.', '1', '.', (char)('1' + i), '\0' });
        for (unsigned i = 0; i < 5; i++) /* 128, 64, 32, 16, 8 MiB */
                while (owner_hold(o[i], MIB, &f) == 0)
                        ;
        assert_int_equal(o[0]->held_bytes, 128 * MIB);
        assert_int_equal(o[1]->held_bytes, 64 * MIB);
        assert_int_equal(o[4]->held_bytes, 8 * MIB);
        assert_int_equal(f.status, 429);
        assert_int_equal(f.retry_ms, 1000);
        assert_int_equal(owner_hold(o[5], 8 * MIB, &f), 0); /* what is left */
        assert_int_equal(owner_hold(o[6], MIB, &f), 503);
        assert_int_equal(owner_hold(o[6], UINT64_MAX, &f), 503);
        assert_int_equal(owners.held_bytes, OWNERS_MAX_BYTES);
        owner_release(o[0], 128 * MIB);
        assert_int_equal(owner_hold(o[6], 64 * MIB, &f), 0);
        for (unsigned i = 1; i < 8; i++)
                owner_release(o[i], o[i]->held_bytes);
        assert_int_equal(owners.held_bytes, 0);
        for (unsigned i = 0; i < 8; i++)
                owner_unref(o[i]);
}

static void test_requests(void **state)
{
        struct owners owners;
        struct owner *a, *b;
        struct failure f = { 0 };

        owners_init(&owners);
        a = owners_get_label(&owners, "a");
        b = owners_get_label(&owners, "b");
        while (owner_begin_request(a, &f) == 0)
                ;
        assert_int_equal(f.status, 429);
        assert_int_equal(a->n_requests, OWNERS_MAX_REQUESTS / 2);
        while (owner_begin_request(b, &f) == 0)
                ;
        assert_int_equal(b->n_requests, OWNERS_MAX_REQUESTS / 4);
        while (a->n_requests > 0)
                owner_end_request(a);
        while (b->n_requests > 0)
                owner_end_request(b);
        assert_int_equal(owners.n_requests, 0);
        owner_unref(a);
        owner_unref(b);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_networks),
                cmocka_unit_test(test_labels),
                cmocka_unit_test(test_memory),
                cmocka_unit_test(test_requests),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
