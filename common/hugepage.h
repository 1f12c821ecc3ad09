/* Memory in huge pages, where the kernel gives them. Weights are read from end to end for every token. Each
 * page of 4 KiB then costs a walk through the page tables, and in a virtual machine a walk through two.
 *
 * Shared memory gets no huge pages by itself (shmem_enabled is "never" nearly everywhere). MADV_COLLAPSE, since Linux
 * 6.1, asks for one without regard to that. Every process that maps such memory at a multiple of TDM_HUGEPAGE_BYTES, as
 * segments do (common/shm.h), sees it as huge pages. */
#ifndef TDM_COMMON_HUGEPAGE_H
#define TDM_COMMON_HUGEPAGE_H

#include "common/error.h"

#define TDM_HUGEPAGE_BYTES (UINT64_C(2) << 20) /* of x86-64; elsewhere madvise() refuses */

/* Puts [base, base + n * TDM_HUGEPAGE_BYTES) into n huge pages. base: a multiple of TDM_HUGEPAGE_BYTES, mapped for
 * writing; best not written yet, since the kernel copies pages that were. Negative errno: the range stays in small
 * pages and is as usable as before; -EINVAL when this kernel has no huge pages for such memory. */
int tdm_hugepage_make(uint8_t *base, size_t n);

/* The same for a caller that asks for many huge pages. refusals (0 at first; any thread) counts the refusals of all its
 * calls. A machine whose memory is nearly used up refuses every time, so after a few refusals this does nothing. */
void tdm_hugepage_try(uint8_t *base, size_t n, _Atomic uint32_t *n_refused);
bool tdm_hugepage_hopeless(const _Atomic uint32_t *n_refused);

#endif
