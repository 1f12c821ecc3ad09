/* Memory in huge pages, where the kernel gives them: weights are read from end to end for every token, and in pages of
 * 4 KiB each of them costs a walk through the page tables, in a virtual machine through two.
 *
 * Shared memory gets none by itself (shmem_enabled is "never" nearly everywhere); MADV_COLLAPSE, since Linux 6.1, asks
 * for one without regard to that. Every process that maps such memory at a multiple of TDM_HUGEPAGE_BYTES, as segments
 * do (common/shm.h), sees it as huge pages. */
#ifndef TDM_COMMON_HUGEPAGE_H
#define TDM_COMMON_HUGEPAGE_H

#include "common/error.h"

#define TDM_HUGEPAGE_BYTES (UINT64_C(2) << 20) /* of x86-64; elsewhere madvise() refuses */

/* Puts [base, base + n * TDM_HUGEPAGE_BYTES) into n huge pages. base: a multiple of TDM_HUGEPAGE_BYTES, mapped for
 * writing; best not written yet, since what is there is kept by copying it. Negative errno: it stays in small pages,
 * and is no worse than before; -EINVAL when this kernel has no huge pages for it at all. */
int tdm_hugepage_make(uint8_t *base, size_t n);

/* The same for whoever asks for many, with one count of refusals for all of them (0 at first; any thread): memory that
 * is used up to the ends does not get huge pages by asking once more, so after a few it does nothing. */
void tdm_hugepage_try(uint8_t *base, size_t n, _Atomic uint32_t *n_refused);
bool tdm_hugepage_hopeless(const _Atomic uint32_t *n_refused);

#endif
