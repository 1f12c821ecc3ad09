/* Timelines of DRM sync objects. A point is done when all below it are: contexts end in order, and a signal from user
 * space skips forward. Point 0 means the latest that was submitted, as in DRM. */
#include "tests/npu-kernel/kernel.h"

#include <sys/mman.h>
#include <sys/stat.h>

void syncobj_unref(struct syncobj *sync)
{
        if (!sync || --sync->refs > 0)
                return;
        for (struct syncobj **p = &kernel.syncobjs; *p; p = &(*p)->next)
                if (*p == sync) {
                        *p = sync->next;
                        break;
                }
        closep(&sync->fd);
        free(sync);
}

int syncobj_new(struct client *client, bool signaled, struct syncobj **ret, uint32_t *ret_handle)
{
        struct syncobj *sync = calloc(1, sizeof(*sync));
        int r;

        if (!sync)
                return -ENOMEM;
        sync->refs = 1;
        sync->fd = -1;
        sync->submitted = sync->done = signaled ? 1 : 0;
        r = table_add(&client->syncobjs, sync, ret_handle);
        if (r < 0) {
                free(sync);
                return r;
        }
        sync->next = kernel.syncobjs;
        kernel.syncobjs = sync;
        if (ret) {
                sync->refs++;
                *ret = sync;
        }
        return 0;
}

int syncobj_create(struct client *client, struct npk_request *r)
{
        struct drm_syncobj_new *c = (void *)r->arg;

        if (c->flags & ~1u) {
                refuse("flags 0x%x of a sync object", c->flags);
                return -EINVAL;
        }
        return syncobj_new(client, c->flags & 1, NULL, &c->handle);
}

int syncobj_destroy(struct client *client, struct npk_request *r)
{
        const struct drm_handle_pad *d = (void *)r->arg;
        struct syncobj *sync = d->pad ? NULL : table_remove(&client->syncobjs, d->handle);

        if (!sync) {
                refuse("destroying sync object %u, which names nothing", d->handle);
                return -EINVAL;
        }
        syncobj_unref(sync);
        return 0;
}

int syncobj_export(struct client *client, struct npk_request *r, struct answer *answer)
{
        const struct drm_syncobj_fd *e = (void *)r->arg;
        struct syncobj *sync = table_get(&client->syncobjs, e->handle);
        struct stat st;

        if (e->pad || e->flags) { /* sync files: nobody here asks for one */
                refuse("flags 0x%x of a sync object's export", e->flags);
                return -EINVAL;
        }
        if (!sync) {
                refuse("exporting sync object %u, which names nothing", e->handle);
                return -EINVAL;
        }
        if (sync->fd < 0) {
                sync->fd = memfd_create("syncobj", MFD_CLOEXEC);
                if (sync->fd < 0 || fstat(sync->fd, &st) < 0)
                        return -ENOMEM;
                sync->inode = st.st_ino;
        }
        answer->fd = sync->fd;
        return 0;
}

int syncobj_import(struct client *client, struct npk_request *r, int fd)
{
        struct drm_syncobj_fd *e = (void *)r->arg;
        struct stat st;

        if (e->pad || e->flags) {
                refuse("flags 0x%x of a sync object's import", e->flags);
                return -EINVAL;
        }
        if (fd < 0 || fstat(fd, &st) < 0) {
                refuse("importing a sync object from a descriptor that is not open");
                return -EINVAL;
        }
        for (struct syncobj *sync = kernel.syncobjs; sync; sync = sync->next)
                if (sync->fd >= 0 && sync->inode == st.st_ino) {
                        int error = table_add(&client->syncobjs, sync, &e->handle);

                        if (error == 0)
                                sync->refs++;
                        return error;
                }
        refuse("importing a sync object from what is none");
        return -EINVAL;
}

static uint64_t point_at(const uint8_t *extra, uint32_t n, uint32_t i)
{
        uint64_t point;

        memcpy(&point, extra + (size_t)n * sizeof(uint32_t) + (size_t)i * sizeof(point), sizeof(point));
        return point;
}

static struct syncobj *lookup(struct client *client, const uint8_t *extra, uint32_t i)
{
        uint32_t handle;
        struct syncobj *sync;

        memcpy(&handle, extra + (size_t)i * sizeof(handle), sizeof(handle));
        sync = table_get(&client->syncobjs, handle);
        if (!sync)
                refuse("sync object %u, which names nothing", handle);
        return sync;
}

int syncobj_signal(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        const struct drm_timeline_array *a = (void *)r->arg;

        if (a->flags || a->n_handles == 0) {
                refuse("a signal of %u sync objects", a->n_handles);
                return -EINVAL;
        }
        if (r->fault)
                return -EFAULT;
        for (uint32_t i = 0; i < a->n_handles; i++)
                if (!lookup(client, extra, i))
                        return -ENOENT;
        for (uint32_t i = 0; i < a->n_handles; i++) {
                struct syncobj *sync = lookup(client, extra, i);
                uint64_t end = point_at(extra, a->n_handles, i) + 1;

                sync->done = TDM_MAX(sync->done, end);
                sync->submitted = TDM_MAX(sync->submitted, end);
        }
        return 0;
}

int syncobj_query(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer)
{
        const struct drm_timeline_array *a = (void *)r->arg;

        if (a->flags & ~1u || a->n_handles == 0) {
                refuse("a query of %u sync objects", a->n_handles);
                return -EINVAL;
        }
        if (r->fault)
                return -EFAULT;
        for (uint32_t i = 0; i < a->n_handles; i++) {
                const struct syncobj *sync = lookup(client, extra, i);
                uint64_t end;

                if (!sync)
                        return -ENOENT;
                end = a->flags & 1 ? sync->submitted : sync->done;
                end = end ? end - 1 : 0;
                memcpy(answer->extra + (size_t)i * sizeof(end), &end, sizeof(end));
        }
        answer->n_extra = a->n_handles * (uint32_t)sizeof(uint64_t);
        return 0;
}

int syncobj_wait(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        struct drm_timeline_wait *w = (void *)r->arg;
        uint32_t n_done = 0;

        if (w->flags & ~(uint32_t)(DRM_WAIT_ALL | DRM_WAIT_FOR_SUBMIT | DRM_WAIT_AVAILABLE | DRM_WAIT_DEADLINE) ||
            w->n_handles == 0) {
                refuse("a wait for %u sync objects with flags 0x%x", w->n_handles, w->flags);
                return -EINVAL;
        }
        if (r->fault)
                return -EFAULT;
        for (uint32_t i = 0; i < w->n_handles; i++) {
                const struct syncobj *sync = lookup(client, extra, i);
                uint64_t point;

                if (!sync)
                        return -ENOENT;
                point = point_at(extra, w->n_handles, i);
                if (point == 0)
                        point = sync->submitted ? sync->submitted - 1 : 0;
                if (sync->submitted <= point && !(w->flags & (DRM_WAIT_FOR_SUBMIT | DRM_WAIT_AVAILABLE))) {
                        refuse("a wait for point %llu, which was not submitted", (unsigned long long)point);
                        return -EINVAL;
                }
                if ((w->flags & DRM_WAIT_AVAILABLE ? sync->submitted : sync->done) > point) {
                        if (n_done == 0)
                                w->first_signaled = i;
                        n_done++;
                }
        }
        if (w->flags & DRM_WAIT_ALL ? n_done == w->n_handles : n_done > 0)
                return 0;
        return -EAGAIN;
}
