/* dma-bufs: a segment's memory once more, as what drivers of devices import. Made by tandemd (udmabuf, over the
 * segment's own memfds: nothing is copied), checked by the worker that gets it.
 *
 * A dma-buf holds the pages that a segment has when it is made, so such a segment is never punched (common/shm.c
 * refuses it). CPU and device may see the same memory through caches of their own: tdm_dmabuf_to_device() comes after
 * the last access by any CPU and before a device begins, tdm_dmabuf_to_cpu() after the device is done. On a machine
 * whose devices see the CPU's caches (x86) both cost one system call and do nothing. On other machines they clean or
 * drop the caches of the whole buffer, so no thread may write to any part of it meanwhile. Not thread-safe. */
#ifndef TDM_COMMON_DMABUF_H
#define TDM_COMMON_DMABUF_H

#include "common/shm.h"

/* How hidden rows get to a device: the key `activations` of tandem.conf. */
enum tdm_activations {
        TDM_ACTIVATIONS_AUTO,   /* as a dma-buf where that can be, else as memory of the process */
        TDM_ACTIVATIONS_DMABUF, /* as a dma-buf; a model is refused where that cannot be */
        TDM_ACTIVATIONS_MEMFD,
};
const char *tdm_activations_name(enum tdm_activations activations);
int tdm_activations_from_name(const char *name); /* -EINVAL */

/* Makes one dma-buf of the whole segment, in segment->dmabuf_fd. The CPUs have it first. It pins the segment's memory.
 * Call it before any other process gets the segment. -ENOENT, -EACCES: no /dev/udmabuf, or no right to open it. Other
 * errors are the kernel's (-EINVAL also for a segment larger than its limit). The message says what to do. */
int tdm_dmabuf_create(struct tdm_segment *segment, struct tdm_error *err);
/* Takes an fd from outside for this segment, on success only. TDM_E_PROTOCOL: no dma-buf, or of another size. */
int tdm_dmabuf_import(struct tdm_segment *segment, int fd, struct tdm_error *err);

/* 0 or a negative errno. */
int tdm_dmabuf_to_device(int fd);
int tdm_dmabuf_to_cpu(int fd);

#endif
