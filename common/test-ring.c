/* The ring by itself, with one thread at both ends: a full and an empty ring, indices that wrap, a peer that scribbles
 * on the shared memory, and what attaching refuses. test-ring-wake.c has the two ends at work at once. */
#include "common/test-ring.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

static void test_full_empty_wrap(void **state)
{
        struct tdm_desc d, got;
        struct pair p;

        pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
        assert_int_equal(tdm_ring_epoch(p.producer), 7);
        assert_int_equal(tdm_ring_eventfd(p.producer), -1);
        assert_int_equal(tdm_ring_pop(p.consumer, &got), 0);
        for (uint64_t round = 0; round < 100; round++) {
                for (uint64_t i = 0; i < 4; i++) {
                        d = step(round * 4 + i);
                        d.reserved[5] = 5;
                        d.posted_ns = 99;
                        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                }
                d = step(1000000);
                assert_int_equal(tdm_ring_push(p.producer, &d), -EAGAIN);
                for (uint64_t i = 0; i < 4; i++) {
                        assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                        d = step(round * 4 + i);
                        d.reserved[5] = 5;
                        d.posted_ns = 99;
                        assert_memory_equal(&got, &d, sizeof(d));
                }
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 0);
        }
        /* the wrong end, a wrong epoch and a wrong kind are the caller's mistakes */
        assert_int_equal(tdm_ring_push(p.consumer, &d), -EINVAL);
        assert_int_equal(tdm_ring_pop(p.producer, &got), -EINVAL);
        d.epoch = 8;
        assert_int_equal(tdm_ring_push(p.producer, &d), -EINVAL);
        d.epoch = 7;
        d.kind = 77;
        assert_int_equal(tdm_ring_push(p.producer, &d), -EINVAL);
        pair_free(&p);
}

/* Indices are free-running and must survive 2^32: both ends are moved there as if they had worked for long. */
static void test_index_wrap(void **state)
{
        struct tdm_desc d, got;
        struct pair p;

        pair_make(&p, 2, TDM_RING_WAKE_FUTEX);
        tdm_ring_set_indices(p.producer, UINT32_MAX - 3);
        tdm_ring_set_indices(p.consumer, UINT32_MAX - 3);
        for (uint64_t i = 0; i < 10; i++) {
                d = step(i);
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                d = step(i + 100);
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                assert_int_equal(tdm_ring_push(p.producer, &d), -EAGAIN);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                assert_int_equal(got.step_id, i);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                assert_int_equal(got.step_id, i + 100);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 0);
        }
        pair_free(&p);
}

/* ---- a hostile peer ---- */

static void test_scribbled_producer(void **state)
{
        const uint32_t lies[] = { 5, 6, 1000, UINT32_MAX, UINT32_MAX - 100, 1u << 31 };
        struct tdm_desc d = step(1), got;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(lies); i++) {
                struct pair p;

                pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
                atomic_store(&tdm_ring_shared(p.producer)->produced, lies[i]);
                /* the wait returns at once instead of sleeping on a dead ring */
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, NULL, 0, 0, UINT64_MAX), 0);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), -EPROTO);
                /* the ring stays dead when the index is put right again */
                atomic_store(&tdm_ring_shared(p.producer)->produced, 0);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), -EPROTO);
                assert_int_equal(tdm_ring_wait_any(&p.consumer, 1, NULL, 0, 0, UINT64_MAX), 0);
                pair_free(&p);
        }
        /* a peer that overwrites the consumer's own words changes nothing for the consumer */
        for (int round = 0; round < 2; round++) {
                struct pair p;

                pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                atomic_store(&tdm_ring_shared(p.producer)->consumed, round ? 0xdeadbeef : 3);
                tdm_ring_shared(p.producer)->n_entries = 1u << 30;
                tdm_ring_shared(p.producer)->epoch = 99;
                tdm_ring_shared(p.producer)->size_bytes = 1;
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                assert_int_equal(got.step_id, 1);
                assert_int_equal(tdm_ring_pop(p.consumer, &got), 0);
                assert_int_equal(tdm_ring_epoch(p.consumer), 7);
                assert_int_equal(atomic_load(&tdm_ring_shared(p.consumer)->consumed), 1);
                pair_free(&p);
        }
}

static void test_scribbled_consumer(void **state)
{
        /* produced is 6, last seen consumed is 3: only 3..6 can be true */
        const uint32_t lies[] = { 2, 0, 7, 1000, UINT32_MAX, 1u << 31 };
        struct tdm_desc d = step(1), got;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(lies); i++) {
                struct pair p;

                pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
                for (unsigned k = 0; k < 6; k++) {
                        assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                        if (k < 3)
                                assert_int_equal(tdm_ring_pop(p.consumer, &got), 1);
                }
                atomic_store(&tdm_ring_shared(p.consumer)->consumed, lies[i]);
                assert_int_equal(tdm_ring_push(p.producer, &d), -EPROTO);
                atomic_store(&tdm_ring_shared(p.consumer)->consumed, 6);
                assert_int_equal(tdm_ring_push(p.producer, &d), -EPROTO);
                pair_free(&p);
        }
}

static void test_scribbled_descriptor(void **state)
{
        for (int what = 0; what < 3; what++) {
                struct tdm_desc d = step(1), got = step(12345);
                struct pair p;

                pair_make(&p, 4, TDM_RING_WAKE_FUTEX);
                assert_int_equal(tdm_ring_push(p.producer, &d), 0);
                if (what == 0)
                        tdm_ring_shared(p.producer)->entries[0].epoch = 8;
                else
                        tdm_ring_shared(p.producer)->entries[0].kind = what == 1 ? 0 : 0xffffffff;
                assert_int_equal(tdm_ring_pop(p.consumer, &got), -EPROTO);
                assert_int_equal(got.step_id, 12345); /* outputs only on success */
                assert_int_equal(tdm_ring_pop(p.consumer, &got), -EPROTO);
                pair_free(&p);
        }
}

static void test_attach_refuses(void **state)
{
        struct tdm_ring *ring = NULL;
        struct tdm_error e;
        int memfd, efd, plain;

        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, 0, TDM_RING_WAKE_FUTEX), -EINVAL);
        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, 1, TDM_RING_WAKE_FUTEX), -EINVAL);
        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, 3, TDM_RING_WAKE_FUTEX), -EINVAL);
        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, 8192, TDM_RING_WAKE_FUTEX), -EINVAL);

        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, 64, TDM_RING_WAKE_FUTEX), 0);
        assert_int_equal(tdm_ring_attach(&ring, memfd, -1, TDM_RING_CONSUMER, 8, &e), TDM_E_PROTOCOL);
        assert_non_null(strstr(e.message, "epoch"));
        plain = eventfd(0, EFD_CLOEXEC);
        assert_int_equal(tdm_ring_attach(&ring, memfd, plain, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
        assert_int_equal(tdm_ring_attach(&ring, plain, -1, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
        close(plain);
        assert_true(fcntl(memfd, F_GETFD) >= 0); /* a refusal leaves the fd open */

        /* every field of the header matters */
        for (unsigned field = 0; field < 7; field++) {
                struct tdm_ring_shared *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0), good;

                assert_true(s != MAP_FAILED);
                memcpy(&good, s, sizeof(good));
                ((uint32_t *)s)[field] ^= field == 2 ? 64 ^ 32 : 0x40;
                assert_int_equal(tdm_ring_attach(&ring, memfd, -1, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
                memcpy(s, &good, sizeof(good));
                munmap(s, 4096);
        }
        assert_null(ring);
        assert_int_equal(tdm_ring_attach(&ring, memfd, -1, TDM_RING_CONSUMER, 7, &e), 0);
        tdm_ring_destroyp(&ring);

        /* a memfd that could shrink under us */
        plain = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(plain, 8192), 0);
        assert_int_equal(tdm_ring_attach(&ring, plain, -1, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
        /* sealed, but no ring; and one of absurd size */
        assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        assert_int_equal(tdm_ring_attach(&ring, plain, -1, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
        close(plain);
        plain = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(plain, 1 << 30), 0);
        assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        assert_int_equal(tdm_ring_attach(&ring, plain, -1, TDM_RING_CONSUMER, 7, &e), TDM_E_PROTOCOL);
        close(plain);
}

/* A peer that makes the shared eventfd blocking and empties it must not hang us in disarm. */
static void test_eventfd_made_blocking(void **state)
{
        struct pair p;

        pair_make(&p, 4, TDM_RING_WAKE_EVENTFD);
        assert_int_equal(fcntl(tdm_ring_eventfd(p.producer), F_SETFL, 0), 0);
        alarm(60);
        tdm_ring_disarm(p.consumer);
        alarm(0);
        pair_free(&p);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_full_empty_wrap),       cmocka_unit_test(test_index_wrap),
                cmocka_unit_test(test_scribbled_producer),    cmocka_unit_test(test_scribbled_consumer),
                cmocka_unit_test(test_scribbled_descriptor),  cmocka_unit_test(test_attach_refuses),
                cmocka_unit_test(test_eventfd_made_blocking),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
