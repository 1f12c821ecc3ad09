/* What the emulated driver does with a request, whoever brought it: the server's socket (server.c) or a call from the
 * same process (way-inside.c). */
#include "tests/npu-kernel/kernel.h"

#include <stdarg.h>

struct kernel kernel = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .work = PTHREAD_COND_INITIALIZER,
        .idle = PTHREAD_COND_INITIALIZER,
        .timeout_ms = 2000,
        .next_offset = UINT64_C(0x100000000), /* where DRM's offsets begin */
};

static const struct profile profiles[] = {
        { .name = "first" },
        { .name = "import", .import = true },
        { .name = "userptr", .import = true, .user_pointers = true, .growth = true },
};

void refuse(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(kernel.last_error, sizeof(kernel.last_error), format, args);
        va_end(args);
        kernel.n.refused++;
        if (kernel.control)
                atomic_fetch_add(&kernel.control->n_refused, 1);
}

bool kernel_set_profile(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(profiles); i++)
                if (!name || strcmp(profiles[i].name, name) == 0) /* NULL: the last */
                        kernel.profile = &profiles[i];
        return kernel.profile && (!name || strcmp(kernel.profile->name, name) == 0);
}

static int dispatch(struct client *client, struct npk_request *r, const uint8_t *extra, int fd, struct answer *answer)
{
        if (client->dead || tdm_now_ns() < kernel.absent_until_ns)
                return -ENODEV;
        if (r->nr < TDM_ARRAY_SIZE(kernel.n.ioctls))
                kernel.n.ioctls[r->nr]++;
        switch (r->nr) {
        case DRM_NR_VERSION:
                return info_version(r, answer);
        case DRM_NR_GET_CAP:
                return info_cap(r);
        case DRM_NR_GEM_CLOSE:
                return bo_close(client, r);
        case DRM_NR_PRIME_EXPORT:
                return bo_export(client, r, answer);
        case DRM_NR_PRIME_IMPORT:
                return bo_import(client, r, fd);
        case XDNA_NR_CREATE_CONTEXT:
                return context_create(client, r, extra);
        case XDNA_NR_DESTROY_CONTEXT:
                return context_destroy(client, r);
        case XDNA_NR_CONFIG_CONTEXT:
                return context_config(client, r, extra);
        case XDNA_NR_CREATE_BO:
                return bo_create(client, r, extra);
        case XDNA_NR_BO_INFO:
                return bo_info(client, r);
        case XDNA_NR_SYNC_BO:
                return bo_sync(client, r);
        case XDNA_NR_EXECUTE:
                return context_execute(client, r, extra);
        case XDNA_NR_GET_INFO:
                return info_get(client, r, extra, answer);
        case XDNA_NR_GET_ARRAY:
                return info_array(client, r, extra, answer);
        case XDNA_NR_SET_STATE:
                return info_set(client, r, extra);
        case DRM_NR_SYNCOBJ_CREATE:
                return syncobj_create(client, r);
        case DRM_NR_SYNCOBJ_DESTROY:
                return syncobj_destroy(client, r);
        case DRM_NR_SYNCOBJ_EXPORT:
                return syncobj_export(client, r, answer);
        case DRM_NR_SYNCOBJ_IMPORT:
                return syncobj_import(client, r, fd);
        case DRM_NR_TIMELINE_WAIT:
                return syncobj_wait(client, r, extra);
        case DRM_NR_TIMELINE_QUERY:
                return syncobj_query(client, r, extra, answer);
        case DRM_NR_TIMELINE_SIGNAL:
                return syncobj_signal(client, r, extra);
        default:
                refuse("ioctl 0x%x, which this kernel does not have", r->nr);
                return -EINVAL;
        }
}

static uint64_t table_count(const struct table *table)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < table->n; i++)
                n += table->entry[i] != NULL;
        return n;
}

static void counters(char *ret, size_t size)
{
        uint64_t n_files = 0, n_handles = 0, n_mappings = 0, n_bos = 0, bytes = 0, heap = 0, n_syncobjs = 0;
        size_t at;

        for (const struct client *client = kernel.clients; client; client = client->next) {
                n_files += !client->control;
                n_handles += table_count(&client->bos);
                n_syncobjs += table_count(&client->syncobjs);
                heap += client->heap_used;
                for (const struct mapping *m = client->mappings; m; m = m->next)
                        n_mappings++;
        }
        for (const struct bo *bo = kernel.bos; bo; bo = bo->next) {
                n_bos++;
                bytes += bo->size;
        }
        at = (size_t)snprintf(
                ret, size,
                "{\"profile\": \"%s\", \"files\": %llu, \"handles\": %llu, \"buffers\": %llu, \"bytes\": %llu, "
                "\"heap_used\": %llu, \"mappings\": %llu, \"syncobjs\": %llu, \"contexts\": %u, "
                "\"commands\": %llu, \"chains\": %llu, \"macs\": %llu, \"refused\": %llu, \"unsynced\": %llu, "
                "\"faults\": %llu, \"ioctls\": {",
                kernel.profile->name, (unsigned long long)n_files, (unsigned long long)n_handles,
                (unsigned long long)n_bos, (unsigned long long)bytes, (unsigned long long)heap,
                (unsigned long long)n_mappings, (unsigned long long)n_syncobjs, context_count(),
                (unsigned long long)kernel.n.commands, (unsigned long long)kernel.n.chains,
                (unsigned long long)kernel.n.macs, (unsigned long long)kernel.n.refused,
                (unsigned long long)kernel.n.unsynced, (unsigned long long)kernel.n.faults);
        for (unsigned i = 0, first = 1; i < TDM_ARRAY_SIZE(kernel.n.ioctls) && at + 40 < size; i++)
                if (kernel.n.ioctls[i]) {
                        at += (size_t)snprintf(ret + at, size - at, "%s\"0x%02x\": %llu", first ? "" : ", ", i,
                                               (unsigned long long)kernel.n.ioctls[i]);
                        first = 0;
                }
        snprintf(ret + at, size - at, "}}");
}

/* A line of a test's: "counters", "why" (the last refusal), "fault NAME". */
static int control(const char *line, struct answer *answer)
{
        static const char *const faults[N_FAULTS] = { "none", "error",   "hang",   "context", "gone",
                                                      "slow", "suspend", "asleep", "removed", "firmware" };
        char *out = (char *)answer->extra;

        out[0] = 0;
        if (strcmp(line, "counters") == 0) {
                counters(out, NPK_MAX_EXTRA);
        } else if (strcmp(line, "why") == 0) {
                snprintf(out, NPK_MAX_EXTRA, "%s", kernel.last_error);
        } else if (strncmp(line, "fault ", 6) == 0) {
                unsigned i = 0;

                if (strcmp(line + 6, "heap") == 0) {
                        kernel.heap_is_full = true;
                        return 0;
                }
                while (i < TDM_ARRAY_SIZE(faults) && strcmp(line + 6, faults[i]) != 0)
                        i++;
                if (i == TDM_ARRAY_SIZE(faults))
                        return -EINVAL;
                kernel.fault = (enum fault)i;
        } else {
                return -EINVAL;
        }
        answer->n_extra = (uint32_t)strlen(out) + 1;
        return 0;
}

int kernel_answer(struct client *client, struct npk_request *r, uint8_t *extra, int fd, struct answer *answer)
{
        switch (r->kind) {
        case NPK_IOCTL:
                return dispatch(client, r, extra, fd, answer);
        case NPK_MMAP:
                return client->dead ? -ENODEV : bo_mmap(client, r, answer);
        case NPK_MAPPED:
                return bo_mapped(client, r);
        case NPK_UNMAPPED:
                return bo_unmapped(client, r);
        case NPK_CHANNEL:
                client->control = true;
                return 0;
        case NPK_CONTROL:
                client->control = true;
                extra[r->n_extra] = 0;
                return control((const char *)extra, answer);
        default:
                return -EINVAL;
        }
}

uint64_t kernel_deadline(const struct npk_request *r)
{
        int64_t timeout = ((const struct drm_timeline_wait *)(const void *)r->arg)->timeout_ns;

        return r->nr != DRM_NR_TIMELINE_WAIT ? UINT64_MAX : timeout < 0 ? 0 : (uint64_t)timeout;
}

bool kernel_may_wait(const struct npk_request *r)
{
        return r->kind == NPK_IOCTL && (r->nr == DRM_NR_TIMELINE_WAIT || r->nr == XDNA_NR_EXECUTE);
}

/* What a file held is given back, as a driver does at its last close. The caller frees the client. */
void kernel_close(struct client *client)
{
        context_destroy_all(client);
        for (struct client **p = &kernel.clients; *p; p = &(*p)->next)
                if (*p == client) {
                        *p = client->next;
                        break;
                }
        bo_close_all(client);
}
