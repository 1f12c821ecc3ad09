/* dma-bufs: a segment's memory once more, as what drivers of devices import. Made by tandemd (udmabuf, over the
 * segment's own memfds: nothing is copied), checked by the worker that gets it.
 *
 * A dma-buf holds the pages that a segment has when it is made, so such a segment is never punched (common/shm.c
 * refuses it). CPU and device may see the same memory through caches of their own: tdm_dmabuf_to_device() comes after
 * the last access by any CPU and before a device begins, tdm_dmabuf_to_cpu() after the device is done. On a machine
 * whose devices see the CPU's caches (x86) both cost one system call and do nothing; on another one they are about the
 * whole buffer, so that nobody may write elsewhere in it meanwhile. Not thread-safe. */
#ifndef TDM_COMMON_DMABUF_H
#define TDM_COMMON_DMABUF_H

#include "common/shm.h"

/* How hidden rows get to a device: the key `activations` of tandem.conf. */
enum tdm_activations {
        TDM_ACTIVATIONS_AUTO,   /* as a dma-buf where that can be, else as memory of the process */
        TDM_ACTIVATIONS_DMABUF, /* so or not at all */
        TDM_ACTIVATIONS_MEMFD,
};
const char *tdm_activations_name(enum tdm_activations activations);
int tdm_activations_from_name(const char *name); /* -EINVAL */

/* The whole segment as one dma-buf, in segment->dmabuf_fd; CPUs have it first. Its memory is there for good from then
 * on (pinned). Before the segment is handed to anybody. -ENOENT, -EACCES: no /dev/udmabuf, or not for us; others as the
 * kernel says (-EINVAL: also what is larger than its limit). The message says what to do. */
int tdm_dmabuf_create(struct tdm_segment *segment, struct tdm_error *err);
/* Takes an fd from outside for this segment, on success only. TDM_E_PROTOCOL: no dma-buf, or of another size. */
int tdm_dmabuf_import(struct tdm_segment *segment, int fd, struct tdm_error *err);

/* 0 or a negative errno. */
int tdm_dmabuf_to_device(int fd);
int tdm_dmabuf_to_cpu(int fd);

#endif
