/* Buffer objects: memory shared with the processes as memfds, which also stand for dma-bufs. What a driver checks is
 * checked here with the same errno; what only an IOMMU would find, firmware.c finds. */
#include "tests/npu-kernel/kernel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MEMFD_NAME "amdxdna-bo"

void bo_unref(struct bo *bo)
{
        if (!bo || --bo->refs > 0)
                return;
        if (bo->type == XDNA_BO_DEV) {
                struct client *client = bo->owner;

                client->heap_used -= bo->size;
                for (struct bo **p = &client->device_bos; *p; p = &(*p)->next)
                        if (*p == bo) {
                                *p = bo->next;
                                break;
                        }
                for (unsigned i = 0; i < bo->n_heaps; i++)
                        bo_unref(client->heaps[i]);
                free(bo);
                return;
        }
        for (struct bo **p = &kernel.bos; *p; p = &(*p)->next)
                if (*p == bo) {
                        *p = bo->next;
                        break;
                }
        if (bo->device && bo->device != bo->host)
                munmap(bo->device, bo->size);
        if (bo->host)
                munmap(bo->host, bo->size);
        closep(&bo->fd);
        free(bo);
}

/* Of a file that is there already, or a new one (fd -1). */
static int bo_new(uint64_t size, uint32_t type, int fd, struct bo **ret)
{
        struct bo *bo = calloc(1, sizeof(*bo));
        struct stat st;

        if (!bo)
                return -ENOMEM;
        bo->refs = 1;
        bo->type = type;
        bo->size = size;
        bo->address = XDNA_NO_ADDRESS;
        bo->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (bo->fd < 0 || (fd < 0 && ftruncate(bo->fd, (off_t)size) < 0) ||
            (fd < 0 && fcntl(bo->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) ||
            fstat(bo->fd, &st) < 0)
                goto no_memory;
        bo->inode = st.st_ino;
        bo->host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, bo->fd, 0);
        if (bo->host == MAP_FAILED) {
                bo->host = NULL;
                goto no_memory;
        }
        bo->device = bo->host;
        if (kernel.shadow && type != XDNA_BO_COMMAND) {
                bo->device = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (bo->device == MAP_FAILED) {
                        bo->device = NULL;
                        goto no_memory;
                }
        }
        bo->offset = kernel.next_offset;
        kernel.next_offset += TDM_ALIGN_UP(size, PAGE_BYTES);
        bo->next = kernel.bos;
        kernel.bos = bo;
        *ret = bo;
        return 0;
no_memory:
        if (bo->host)
                munmap(bo->host, size);
        closep(&bo->fd);
        free(bo);
        return -ENOMEM;
}

static const struct mapping *mapping_of(const struct client *client, const struct bo *bo)
{
        for (const struct mapping *m = client->mappings; m; m = m->next)
                if (m->bo == bo)
                        return m;
        return NULL;
}

/* A context is told the heap's address, so all of it must be mapped, in one piece. */
bool bo_heap_is_mapped(const struct client *client)
{
        uint64_t next = 0;

        for (unsigned i = 0; i < client->n_heaps; i++) {
                const struct mapping *m = mapping_of(client, client->heaps[i]);

                if (!m || m->len < client->heaps[i]->size || (i > 0 && m->address != next))
                        return false;
                next = m->address + client->heaps[i]->size;
        }
        return client->n_heaps > 0;
}

static int heap_new(struct client *client, uint64_t size, struct bo **ret)
{
        uint8_t *host, *device;
        struct bo *bo;
        int r;

        if (size == 0 || size % HEAP_BYTES != 0 || (!kernel.profile->growth && size != HEAP_BYTES)) {
                refuse("a heap of %llu bytes", (unsigned long long)size);
                return -EINVAL;
        }
        if (!kernel.profile->growth && client->n_heaps > 0) {
                refuse("a second heap");
                return -EBUSY;
        }
        if (client->heap_bytes + size > HEAP_MAX_BYTES) {
                refuse("heaps of more than %llu bytes", (unsigned long long)HEAP_MAX_BYTES);
                return -ENOSPC;
        }
        if (!client->heap_host) {
                client->heap_host = mmap(NULL, HEAP_MAX_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                client->heap_device = mmap(NULL, HEAP_MAX_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (client->heap_host == MAP_FAILED || client->heap_device == MAP_FAILED)
                        return -ENOMEM;
        }
        r = bo_new(size, XDNA_BO_HEAP, -1, &bo);
        if (r < 0)
                return r;
        host = client->heap_host + client->heap_bytes;
        device = client->heap_device + client->heap_bytes;
        if (mmap(host, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, bo->fd, 0) == MAP_FAILED ||
            mmap(device, size, PROT_READ | PROT_WRITE,
                 kernel.shadow ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED : MAP_SHARED | MAP_FIXED,
                 kernel.shadow ? -1 : bo->fd, 0) == MAP_FAILED) {
                bo_unref(bo);
                return -ENOMEM;
        }
        bo->address = HEAP_BASE + client->heap_bytes;
        bo->owner = client;
        bo->refs++; /* the file's own */
        client->heaps[client->n_heaps++] = bo;
        client->heap_bytes += size;
        *ret = bo;
        return 0;
}

static int device_new(struct client *client, uint64_t size, struct bo **ret)
{
        uint64_t bytes = TDM_ALIGN_UP(size, PAGE_BYTES), at = HEAP_BASE;
        struct bo **p = &client->device_bos, *bo;

        if (bytes == 0 || bytes < size || bytes > HEAP_MAX_BYTES) {
                refuse("a device buffer of %llu bytes", (unsigned long long)size);
                return -EINVAL;
        }
        if (client->n_heaps == 0) {
                refuse("a device buffer without a heap");
                return kernel.profile->growth ? -EAGAIN : -EINVAL;
        }
        if (!bo_heap_is_mapped(client)) {
                refuse("a device buffer in a heap that is not mapped");
                return kernel.profile->growth ? -EAGAIN : -EINVAL;
        }
        if (kernel.heap_is_full) {
                kernel.heap_is_full = false;
                kernel.n.faults++;
                return -ENOSPC;
        }
        for (; *p && (*p)->address - at < bytes; p = &(*p)->next)
                at = TDM_ALIGN_UP((*p)->address + (*p)->size, DEV_ALIGN);
        if (at + bytes > HEAP_BASE + client->heap_bytes) {
                refuse("no room in the heap for %llu bytes", (unsigned long long)bytes);
                return kernel.profile->growth && at + bytes <= HEAP_BASE + HEAP_MAX_BYTES ? -EAGAIN : -ENOSPC;
        }
        bo = calloc(1, sizeof(*bo));
        if (!bo)
                return -ENOMEM;
        bo->refs = 1;
        bo->type = XDNA_BO_DEV;
        bo->size = bytes;
        bo->fd = -1;
        bo->address = at;
        bo->owner = client;
        bo->host = client->heap_host + (at - HEAP_BASE);
        bo->device = client->heap_device + (at - HEAP_BASE);
        bo->next = *p;
        *p = bo;
        client->heap_used += bytes;
        bo->n_heaps = client->n_heaps; /* the heap may grow meanwhile */
        for (unsigned i = 0; i < bo->n_heaps; i++)
                client->heaps[i]->refs++;
        *ret = bo;
        return 0;
}

static int user_new(const struct npk_request *r, const uint8_t *extra, struct bo **ret)
{
        const struct xdna_va_table *table = (const void *)extra;
        uint64_t size, va;
        int error;

        if (r->fault || r->n_extra < sizeof(*table) + sizeof(table->entry[0])) {
                refuse("a table of addresses that cannot be read, or without any");
                return -EINVAL;
        }
        if (table->n_entries != 1) { /* amdxdna takes more; XRT never gives more, and nothing here needs it */
                refuse("%u ranges in a table of addresses", table->n_entries);
                return -EINVAL;
        }
        va = table->entry[0].vaddr;
        size = table->entry[0].len;
        if (va % PAGE_BYTES != 0 || size % PAGE_BYTES != 0 || size == 0) {
                refuse("user memory that is not whole pages");
                return -EINVAL;
        }
        error = bo_new(size, XDNA_BO_SHARE, -1, ret);
        if (error == 0)
                (*ret)->user_va = va;
        return error;
}

int bo_create(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        struct xdna_create_bo *c = (void *)r->arg;
        struct bo *bo;
        int error;

        if (c->flags) {
                refuse("flags of a buffer");
                return -EINVAL;
        }
        if (c->vaddr && (!kernel.profile->user_pointers || c->type != XDNA_BO_SHARE)) {
                refuse("user memory for a buffer, which this kernel does not take");
                return -EINVAL;
        }
        switch (c->type) {
        case XDNA_BO_SHARE:
        case XDNA_BO_COMMAND:
                if (c->vaddr) {
                        error = user_new(r, extra, &bo);
                        break;
                }
                if (c->size == 0 || c->size > UINT64_C(1) << 40) {
                        refuse("a buffer of %llu bytes", (unsigned long long)c->size);
                        return -EINVAL;
                }
                error = bo_new(TDM_ALIGN_UP(c->size, PAGE_BYTES), c->type, -1, &bo);
                break;
        case XDNA_BO_HEAP:
                error = heap_new(client, c->size, &bo);
                break;
        case XDNA_BO_DEV:
                error = device_new(client, c->size, &bo);
                break;
        default:
                refuse("a buffer of type %u", c->type);
                return -EINVAL;
        }
        if (error < 0)
                return error;
        error = table_add(&client->bos, bo, &c->handle);
        if (error < 0)
                bo_unref(bo);
        return error;
}

static struct bo *lookup(struct client *client, uint32_t handle)
{
        struct bo *bo = table_get(&client->bos, handle);

        if (!bo)
                refuse("buffer handle %u, which names nothing", handle);
        return bo;
}

int bo_info(struct client *client, struct npk_request *r)
{
        struct xdna_bo_info *info = (void *)r->arg;
        const struct mapping *m;
        struct bo *bo;

        if (info->ext || info->ext_flags || info->pad) {
                refuse("an extension of a buffer's info");
                return -EINVAL;
        }
        bo = lookup(client, info->handle);
        if (!bo)
                return -ENOENT;
        m = mapping_of(client, bo);
        info->map_offset = bo->type == XDNA_BO_DEV ? XDNA_NO_ADDRESS : bo->offset;
        info->device_address = bo->address;
        if (bo->type == XDNA_BO_DEV)
                m = mapping_of(client, client->heaps[0]);
        info->vaddr = bo->user_va ? bo->user_va : m ? m->address : XDNA_NO_ADDRESS;
        if (bo->type == XDNA_BO_DEV && m)
                info->vaddr += bo->address - HEAP_BASE;
        return 0;
}

int bo_sync(struct client *client, struct npk_request *r)
{
        const struct xdna_sync_bo *s = (void *)r->arg;
        struct bo *bo = lookup(client, s->handle);
        uint64_t size;
        uint8_t *device;

        if (!bo)
                return -ENOENT;
        if (s->direction > XDNA_SYNC_FROM_DEVICE) {
                refuse("a sync in direction %u", s->direction);
                return -EINVAL;
        }
        if (s->offset >= bo->size || s->offset + s->size < s->offset) {
                refuse("a sync at %llu of a buffer of %llu bytes", (unsigned long long)s->offset,
                       (unsigned long long)bo->size);
                return -EINVAL;
        }
        size = TDM_MIN(s->size, bo->size - s->offset);
        device = bo->type == XDNA_BO_HEAP && bo->owner == client ? client->heap_device + (bo->address - HEAP_BASE) :
                                                                   bo->device;
        if (device != bo->host && s->direction == XDNA_SYNC_TO_DEVICE)
                memcpy(device + s->offset, bo->host + s->offset, size);
        else if (device != bo->host)
                memcpy(bo->host + s->offset, device + s->offset, size);
        return 0;
}

int bo_close(struct client *client, struct npk_request *r)
{
        const struct drm_handle_pad *c = (void *)r->arg;
        struct bo *bo;

        if (c->pad) {
                refuse("padding of a close");
                return -EINVAL;
        }
        bo = table_remove(&client->bos, c->handle);
        if (!bo) {
                refuse("closing buffer handle %u, which names nothing", c->handle);
                return -EINVAL;
        }
        bo_unref(bo);
        return 0;
}

int bo_export(struct client *client, struct npk_request *r, struct answer *answer)
{
        const struct drm_prime *p = (void *)r->arg;
        struct bo *bo;

        if (p->flags & ~(uint32_t)(O_CLOEXEC | O_RDWR)) {
                refuse("flags 0x%x of an export", p->flags);
                return -EINVAL;
        }
        bo = lookup(client, p->handle);
        if (!bo)
                return -ENOENT;
        if (bo->type == XDNA_BO_DEV || bo->user_va) {
                refuse("an export of a device buffer or of user memory");
                return -EOPNOTSUPP;
        }
        answer->fd = bo->fd;
        return 0;
}

/* Only what this driver exported: a bare memfd is no dma-buf, and there is no other exporter here. */
static bool is_exported(int fd, struct stat *ret)
{
        char link[32], name[64];
        ssize_t n;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = readlink(link, name, sizeof(name) - 1);
        if (n < 0 || fstat(fd, ret) < 0)
                return false;
        name[n] = 0;
        return strncmp(name, "/memfd:" MEMFD_NAME " ", sizeof("/memfd:" MEMFD_NAME)) == 0 &&
               fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

int bo_import(struct client *client, struct npk_request *r, int fd)
{
        struct drm_prime *p = (void *)r->arg;
        struct bo *bo = kernel.bos;
        struct stat st;
        int error;

        if (fd < 0) {
                refuse("an import of a descriptor that is not open");
                return -EBADF;
        }
        if (!is_exported(fd, &st)) {
                refuse("an import of what is no dma-buf");
                return -EINVAL;
        }
        while (bo && bo->inode != st.st_ino)
                bo = bo->next;
        for (uint32_t i = 0; bo && i < client->bos.n; i++)
                if (client->bos.entry[i] == bo) { /* DRM gives the handle that there is, without a count */
                        p->handle = i + 1;
                        return 0;
                }
        if (bo) {
                bo->refs++;
        } else { /* all handles were closed, the descriptor kept it */
                error = bo_new((uint64_t)st.st_size, XDNA_BO_SHARE, fd, &bo);
                if (error < 0)
                        return error;
        }
        error = table_add(&client->bos, bo, &p->handle);
        if (error < 0)
                bo_unref(bo);
        return error;
}

static struct bo *by_offset(struct client *client, uint64_t offset)
{
        for (uint32_t i = 0; i < client->bos.n; i++) {
                struct bo *bo = client->bos.entry[i];

                if (bo && bo->type != XDNA_BO_DEV && bo->offset == offset)
                        return bo;
        }
        return NULL;
}

int bo_mmap(struct client *client, struct npk_request *r, struct answer *answer)
{
        uint64_t *arg = (void *)r->arg;
        struct bo *bo = by_offset(client, arg[0]);

        if (!bo) {
                refuse("mapping at an offset that is no buffer of this file");
                return -EINVAL;
        }
        if (bo->user_va) {
                refuse("mapping a buffer of user memory");
                return -EINVAL;
        }
        if (arg[1] > bo->size) {
                refuse("mapping %llu bytes of a buffer of %llu", (unsigned long long)arg[1],
                       (unsigned long long)bo->size);
                return -EINVAL;
        }
        answer->fd = bo->fd;
        arg[0] = 0;
        return 0;
}

int bo_mapped(struct client *client, struct npk_request *r)
{
        const uint64_t *arg = (void *)r->arg;
        struct bo *bo = by_offset(client, arg[0]);
        struct mapping *m = bo ? malloc(sizeof(*m)) : NULL;

        if (!m)
                return -EINVAL;
        *m = (struct mapping){ .address = arg[2], .len = arg[1], .bo = bo, .next = client->mappings };
        bo->refs++;
        client->mappings = m;
        return 0;
}

/* A range that goes takes each mapping that it touches: nothing maps a part again. */
int bo_unmapped(struct client *client, struct npk_request *r)
{
        const uint64_t *arg = (void *)r->arg;

        for (struct mapping **p = &client->mappings; *p;) {
                struct mapping *m = *p;

                if (m->address >= arg[0] + arg[1] || arg[0] >= m->address + m->len) {
                        p = &m->next;
                        continue;
                }
                *p = m->next;
                bo_unref(m->bo);
                free(m);
        }
        return 0;
}

void bo_close_all(struct client *client)
{
        while (client->mappings) {
                struct mapping *m = steal_ptr(&client->mappings);

                client->mappings = m->next;
                bo_unref(m->bo);
                free(m);
        }
        for (uint32_t i = 0; i < client->bos.n; i++)
                bo_unref(client->bos.entry[i]);
        free(client->bos.entry);
        client->bos = (struct table){};
        for (unsigned i = 0; i < client->n_heaps; i++) {
                client->heaps[i]->owner = NULL; /* another file may have imported it */
                bo_unref(client->heaps[i]);
        }
        client->n_heaps = 0;
        if (client->heap_host) {
                munmap(client->heap_host, HEAP_MAX_BYTES);
                munmap(client->heap_device, HEAP_MAX_BYTES);
                client->heap_host = client->heap_device = NULL;
        }
}

uint8_t *bo_at(struct client *client, uint64_t address, uint64_t len, struct bo **ret_bo)
{
        *ret_bo = NULL;
        for (struct bo *bo = client->device_bos; bo; bo = bo->next)
                if (address >= bo->address && address - bo->address < bo->size) {
                        *ret_bo = bo;
                        return len <= bo->size - (address - bo->address) ? bo->device + (address - bo->address) : NULL;
                }
        for (const struct mapping *m = client->mappings; m; m = m->next)
                if (address >= m->address && address - m->address < m->len && m->bo->type != XDNA_BO_HEAP) {
                        *ret_bo = m->bo;
                        return len <= m->len - (address - m->address) ? m->bo->device + (address - m->address) : NULL;
                }
        for (uint32_t i = 0; i < client->bos.n; i++) {
                struct bo *bo = client->bos.entry[i];

                if (bo && bo->user_va && address >= bo->user_va && address - bo->user_va < bo->size) {
                        *ret_bo = bo;
                        return len <= bo->size - (address - bo->user_va) ? bo->device + (address - bo->user_va) : NULL;
                }
        }
        return NULL;
}
