/* udmabuf: one ioctl over all chunks of a segment. The chunks' memfds are sealed against shrinking already, which is
 * what udmabuf asks for, and not against writing, which it refuses. This file does not know what a segment is for. */
#include "common/dmabuf.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/dma-buf.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#define UDMABUF "/dev/udmabuf"
#define DMA_BUF_FS 0x444d4142u /* DMA_BUF_MAGIC of newer linux/magic.h */

static const char *const names[] = {
        [TDM_ACTIVATIONS_AUTO] = "auto",
        [TDM_ACTIVATIONS_DMABUF] = "dma-buf",
        [TDM_ACTIVATIONS_MEMFD] = "memfd",
};

const char *tdm_activations_name(enum tdm_activations activations)
{
        return (size_t)activations < TDM_ARRAY_SIZE(names) ? names[activations] : NULL;
}

int tdm_activations_from_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(names); i++)
                if (strcmp(names[i], name) == 0)
                        return (int)i;
        return -EINVAL;
}

int tdm_dmabuf_create(struct tdm_segment *s, struct tdm_error *err)
{
        _cleanup_(freep) struct udmabuf_create_list *list = NULL;
        _cleanup_(closep) int device = -1;
        int r;

        if (s->dmabuf_fd >= 0)
                return -EALREADY;
        device = open(UDMABUF, O_RDWR | O_CLOEXEC);
        if (device < 0) {
                r = -errno;
                return tdm_error_set(err, r, "cannot open " UDMABUF ": %s (%s)", strerror(-r),
                                     r == -ENOENT ? "this kernel has no udmabuf" : "its group may: often kvm");
        }
        list = calloc(1, sizeof(*list) + s->n_chunks * sizeof(list->list[0]));
        if (!list)
                return tdm_error_set(err, -ENOMEM, "segment %s: out of memory", s->name);
        list->flags = UDMABUF_FLAGS_CLOEXEC;
        list->count = s->n_chunks;
        for (unsigned i = 0; i < s->n_chunks; i++) {
                list->list[i].memfd = (uint32_t)s->fds[i];
                list->list[i].size = tdm_segment_chunk_size(s, i);
        }
        r = ioctl(device, UDMABUF_CREATE_LIST, list);
        if (r < 0) {
                r = -errno;
                return tdm_error_set(err, r,
                                     "udmabuf makes no dma-buf of %" PRIu64 " KiB: %s (its limit is in "
                                     "/sys/module/udmabuf/parameters/size_limit_mb)",
                                     s->size_bytes >> 10, strerror(-r));
        }
        s->dmabuf_fd = r;
        /* The kernel wants a begin before the first end. After this one the buffer belongs to the CPUs. */
        r = tdm_dmabuf_to_cpu(s->dmabuf_fd);
        if (r < 0) {
                closep(&s->dmabuf_fd);
                return tdm_error_set(err, r, "udmabuf's dma-buf cannot be handed to and fro: %s", strerror(-r));
        }
        return 0;
}

int tdm_dmabuf_import(struct tdm_segment *s, int fd, struct tdm_error *err)
{
        struct statfs fs;
        off_t size;

        if (fstatfs(fd, &fs) < 0 || (uint32_t)fs.f_type != DMA_BUF_FS)
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment %s: what came as its dma-buf is none", s->name);
        size = lseek(fd, 0, SEEK_END);
        if (size < 0 || (uint64_t)size != s->size_bytes)
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "segment %s: its dma-buf has %lld bytes, should have %" PRIu64, s->name,
                                     (long long)size, s->size_bytes);
        s->dmabuf_fd = fd;
        return 0;
}

static int sync_access(int fd, uint64_t flags)
{
        struct dma_buf_sync sync = { .flags = flags | DMA_BUF_SYNC_RW };

        while (ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) < 0)
                if (errno != EINTR && errno != EAGAIN)
                        return -errno;
        return 0;
}

int tdm_dmabuf_to_device(int fd)
{
        return sync_access(fd, DMA_BUF_SYNC_END);
}

int tdm_dmabuf_to_cpu(int fd)
{
        return sync_access(fd, DMA_BUF_SYNC_START);
}
