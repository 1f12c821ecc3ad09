/* Huge pages are asked for before they are filled: the kernel then clears one page and has nothing to copy. */
#include "common/hugepage.h"

#include <assert.h>
#include <stdatomic.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

int tdm_hugepage_make(uint8_t *base, size_t n)
{
        assert((uintptr_t)base % TDM_HUGEPAGE_BYTES == 0);
        /* The kernel refuses a range that has no page yet. Another process may be writing there. */
        for (size_t i = 0; i < n; i++)
                atomic_fetch_or_explicit((_Atomic uint8_t *)(base + i * TDM_HUGEPAGE_BYTES), 0, memory_order_relaxed);
        return madvise(base, n * TDM_HUGEPAGE_BYTES, MADV_COLLAPSE) < 0 ? -errno : 0;
}

#define REFUSALS_MAX 16u

bool tdm_hugepage_hopeless(const _Atomic uint32_t *n_refused)
{
        return atomic_load_explicit(n_refused, memory_order_relaxed) >= REFUSALS_MAX;
}

void tdm_hugepage_try(uint8_t *base, size_t n, _Atomic uint32_t *n_refused)
{
        int r;

        if (tdm_hugepage_hopeless(n_refused))
                return;
        r = tdm_hugepage_make(base, n);
        if (r < 0)
                atomic_fetch_add_explicit(n_refused, r == -EINVAL ? REFUSALS_MAX : 1, memory_order_relaxed);
}
