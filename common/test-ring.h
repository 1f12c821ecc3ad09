/* Shared by the tests of the ring: both ends of a ring in one process, and descriptors that can be told apart. */
#ifndef TDM_COMMON_TEST_RING_H
#define TDM_COMMON_TEST_RING_H

#include "common/ring-layout.h"
#include "common/ring.h"

#include <fcntl.h>
#include <setjmp.h>
#include <cmocka.h>

struct pair {
        struct tdm_ring *producer, *consumer;
};

static inline void pair_make(struct pair *p, uint32_t n_entries, enum tdm_ring_wake wake)
{
        int memfd, efd;

        assert_int_equal(tdm_ring_create(&memfd, &efd, 7, n_entries, wake), 0);
        assert_int_equal(tdm_ring_attach(&p->producer, fcntl(memfd, F_DUPFD_CLOEXEC, 3),
                                         efd < 0 ? -1 : fcntl(efd, F_DUPFD_CLOEXEC, 3), TDM_RING_PRODUCER, 7, NULL),
                         0);
        assert_int_equal(tdm_ring_attach(&p->consumer, memfd, efd, TDM_RING_CONSUMER, 7, NULL), 0);
}

static inline void pair_free(struct pair *p)
{
        tdm_ring_destroyp(&p->consumer); /* first: it may borrow the producer's mapping */
        tdm_ring_destroyp(&p->producer);
}

static inline struct tdm_desc step(uint64_t id)
{
        return (struct tdm_desc){ .kind = TDM_DESC_STEP, .epoch = 7, .step_id = id, .n_rows = (uint32_t)id ^ 0x5a5a };
}

#endif
