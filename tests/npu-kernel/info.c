/* What the driver tells: GET_INFO, GET_ARRAY, SET_STATE, and the files of sysfs. The device is a Strix (npu4), its
 * figures from Linux's drivers/accel/amdxdna/npu4_regs.c; versions that nothing real has. */
#include "tests/npu-kernel/kernel.h"

#include <fcntl.h>
#include <sys/stat.h>

#define FIRMWARE "255.0.0.1"
#define PCI_ADDRESS "0000:c5:00.1"

static const struct xdna_metadata metadata = {
        .columns = N_COLUMNS,
        .rows = N_CORE_ROWS + 2,
        .major = 4,
        .minor = 1,
        .core = { .rows = N_CORE_ROWS, .first_row = 2, .dma_channels = 2, .locks = 16, .events = 8 },
        .mem = { .rows = 1, .first_row = 1, .dma_channels = 6, .locks = 64, .events = 8 },
        .shim = { .rows = 1, .first_row = 0, .dma_channels = 2, .locks = 16, .events = 8 },
        .column_bytes = 4096,
};
static const uint32_t npu_clock_mhz = 1267, h_clock_mhz = 1800;

/* Copies as much as the caller has room for, as copy_to_user of a fixed size does where the buffer is large enough. */
static int give(struct npk_request *r, const void *data, uint32_t size, struct answer *answer)
{
        if (r->fault)
                return -EFAULT;
        memcpy(answer->extra, data, size);
        answer->n_extra = size;
        return 0;
}

static void context_entry(const struct client *client, const struct context *c, struct xdna_context_entry *ret)
{
        *ret = (struct xdna_context_entry){
                .id = c->id,
                .hw_id = c->hw_id,
                .first_column = c->first_column,
                .n_columns = c->n_columns,
                .pid = client->pid,
                .submissions = c->seq,
                .completions = c->completed,
                .errors = c->errors,
                .priority = c->qos.priority,
                .heap_usage = client->heap_used,
                .state = 1,
                .gops = c->qos.gops,
                .fps = c->qos.fps,
                .dma_bandwidth = c->qos.dma_bandwidth,
                .latency = c->qos.latency,
                .frame_exec_time = c->qos.frame_exec_time,
        };
}

static int contexts(struct npk_request *r, struct answer *answer)
{
        struct xdna_get_info *info = (void *)r->arg;
        uint32_t n = 0, n_fit = TDM_MIN(info->size, NPK_MAX_EXTRA) / (uint32_t)sizeof(struct xdna_context_info);

        for (const struct client *client = kernel.clients; client; client = client->next)
                for (const struct context *c = client->contexts; c; c = c->next, n++) {
                        struct xdna_context_info one = {
                                .id = c->id,
                                .first_column = c->first_column,
                                .n_columns = c->n_columns,
                                .pid = client->pid,
                                .submissions = c->seq,
                                .completions = c->completed,
                                .errors = c->errors,
                        };

                        if (n < n_fit)
                                memcpy(answer->extra + n * sizeof(one), &one, sizeof(one));
                }
        if (n > 0 && r->fault)
                return -EFAULT;
        if (n > n_fit && !kernel.profile->user_pointers) {
                refuse("a list of %u contexts into %u bytes", n, info->size);
                return -EINVAL;
        }
        answer->n_extra = TDM_MIN(n, n_fit) * (uint32_t)sizeof(struct xdna_context_info);
        /* Kernels with GET_ARRAY say what is left of the buffer, those before what they need of it. */
        info->size = kernel.profile->user_pointers ? info->size - answer->n_extra : answer->n_extra;
        return 0;
}

/* The head, the map from the firmware's contexts to the driver's, and nothing that firmware would have written. */
static int telemetry(struct npk_request *r, const uint8_t *extra, struct answer *answer)
{
        const struct xdna_get_info *info = (void *)r->arg;
        uint32_t head[4 + MAX_CONTEXTS] = {};

        if (info->size <= sizeof(head) || info->size - sizeof(head) > 4u << 20) {
                refuse("telemetry into %u bytes", info->size);
                return -EINVAL;
        }
        if (r->fault || r->n_extra < 16)
                return -EFAULT;
        memcpy(head, extra, 16);
        if (head[2] != 0) {
                refuse("telemetry of type %u", head[2]);
                return -EINVAL;
        }
        head[0] = 1;
        head[1] = 0;
        head[3] = MAX_CONTEXTS;
        for (const struct client *client = kernel.clients; client; client = client->next)
                for (const struct context *c = client->contexts; c; c = c->next)
                        head[4 + c->hw_id - 1] = c->id;
        answer->n_extra = TDM_MIN(info->size, NPK_MAX_EXTRA);
        memset(answer->extra, 0, answer->n_extra);
        memcpy(answer->extra, head, sizeof(head));
        return 0;
}

static int aie_status(struct npk_request *r, const uint8_t *extra, struct answer *answer)
{
        struct xdna_aie_status status;

        if (r->fault || r->n_extra < sizeof(status))
                return -EFAULT;
        memcpy(&status, extra, sizeof(status));
        if (status.size > metadata.columns * metadata.column_bytes) {
                refuse("the status of tiles into %u bytes", status.size);
                return -EINVAL;
        }
        status.columns = 0;
        for (const struct client *client = kernel.clients; client; client = client->next)
                for (const struct context *c = client->contexts; c; c = c->next)
                        status.columns |= ((1u << c->n_columns) - 1) << c->first_column;
        memcpy(answer->extra, &status, sizeof(status));
        memset(answer->extra + sizeof(status), 0, status.size);
        answer->n_extra = (uint32_t)sizeof(status) + status.size;
        return 0;
}

int info_get(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer)
{
        const struct xdna_get_info *info = (void *)r->arg;
        uint8_t state[8] = {};

        (void)client;
        switch (info->param) {
        case XDNA_INFO_AIE_STATUS:
                return aie_status(r, extra, answer);
        case XDNA_INFO_METADATA:
                return give(r, &metadata, sizeof(metadata), answer);
        case XDNA_INFO_AIE_VERSION:
                return give(r, (uint32_t[]){ metadata.major, metadata.minor }, 8, answer);
        case XDNA_INFO_CLOCKS: {
                const struct xdna_clock clocks[2] = { { .name = "MP-NPU Clock", .mhz = npu_clock_mhz },
                                                      { .name = "H Clock", .mhz = h_clock_mhz } };

                return give(r, clocks, sizeof(clocks), answer);
        }
        case XDNA_INFO_CONTEXTS:
                return contexts(r, answer);
        case XDNA_INFO_FIRMWARE:
                return give(r, (uint32_t[]){ 255, 0, 0, 1 }, 16, answer);
        case XDNA_INFO_POWER_MODE:
                state[0] = kernel.power_mode;
                return give(r, state, sizeof(state), answer);
        case XDNA_INFO_SENSORS: /* none in tree; to ask is no wrong use */
                return -EOPNOTSUPP;
        default:
                break;
        }
        if (kernel.profile->user_pointers)
                switch (info->param) {
                case XDNA_INFO_TELEMETRY:
                        return telemetry(r, extra, answer);
                case XDNA_INFO_RESOURCES: {
                        const struct xdna_resources resources = { .clock_max = h_clock_mhz,
                                                                  .tops_max = 50,
                                                                  .tasks_max = MAX_CONTEXTS,
                                                                  .tasks = context_count() };

                        return give(r, &resources, sizeof(resources), answer);
                }
                case XDNA_INFO_FORCE_PREEMPT:
                case XDNA_INFO_FRAME_PREEMPT:
                        state[0] = info->param == XDNA_INFO_FORCE_PREEMPT ? kernel.force_preempt : kernel.frame_preempt;
                        return give(r, state, sizeof(state), answer);
                default:
                        break;
                }
        refuse("a question about %u", info->param);
        return -EOPNOTSUPP;
}

int info_array(struct client *client, struct npk_request *r, const uint8_t *extra, struct answer *answer)
{
        struct xdna_get_array *a = (void *)r->arg;
        uint32_t size = TDM_MIN(a->element_size, (uint32_t)sizeof(struct xdna_context_entry)), n = 0;
        struct xdna_bo_usage usage;

        if (!kernel.profile->user_pointers) {
                refuse("GET_ARRAY, which this kernel does not have");
                return -EINVAL;
        }
        if (a->pad || a->n_elements == 0 || a->element_size == 0) {
                refuse("an array of %u elements of %u bytes", a->n_elements, a->element_size);
                return -EINVAL;
        }
        switch (a->param) {
        case XDNA_ARRAY_CONTEXTS:
                if (a->element_size > 4096 || a->n_elements > 1024) {
                        refuse("an array of %u elements of %u bytes", a->n_elements, a->element_size);
                        return -EINVAL;
                }
                for (const struct client *other = kernel.clients; other; other = other->next)
                        for (const struct context *c = other->contexts; c && n < a->n_elements; c = c->next) {
                                struct xdna_context_entry entry;

                                context_entry(other, c, &entry);
                                memcpy(answer->extra + (size_t)n++ * size, &entry, size);
                        }
                if (n > 0 && r->fault)
                        return -EFAULT;
                a->element_size = size;
                a->n_elements = n;
                answer->n_extra = n * size;
                return 0;
        case XDNA_ARRAY_LAST_ERROR:
                a->n_elements = 0; /* no asynchronous error of a tile is emulated */
                return 0;
        case XDNA_ARRAY_BO_USAGE:
                if (a->n_elements != 1 || r->fault || r->n_extra < 8) {
                        refuse("the use of buffers of %u processes", a->n_elements);
                        return r->fault ? -EFAULT : -EINVAL;
                }
                usage = (struct xdna_bo_usage){};
                memcpy(&usage.pid, extra, 8);
                if (usage.pid == 0)
                        return -EINVAL;
                for (const struct client *other = kernel.clients; other; other = other->next) {
                        if (other->pid != usage.pid)
                                continue;
                        for (uint32_t i = 0; i < other->bos.n; i++) {
                                const struct bo *bo = other->bos.entry[i];

                                if (!bo || bo->type == XDNA_BO_DEV)
                                        continue;
                                usage.total += bo->size;
                                usage.internal += bo->type == XDNA_BO_SHARE ? 0 : bo->size;
                        }
                        usage.heap += other->heap_used;
                }
                answer->n_extra = TDM_MIN(a->element_size, (uint32_t)sizeof(usage));
                memcpy(answer->extra, &usage, answer->n_extra);
                return 0;
        default:
                (void)client;
                refuse("an array of %u", a->param);
                return -EOPNOTSUPP;
        }
}

int info_set(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        const struct xdna_get_info *set = (void *)r->arg;
        uint8_t state[8];

        if (client->uid != 0) { /* DRM_ROOT_ONLY */
                refuse("a change of state by a user");
                return -EACCES;
        }
        if (set->param != XDNA_SET_POWER_MODE &&
            !(kernel.profile->user_pointers &&
              (set->param == XDNA_SET_FORCE_PREEMPT || set->param == XDNA_SET_FRAME_PREEMPT))) {
                refuse("a change of %u", set->param);
                return -EOPNOTSUPP;
        }
        if (r->fault || r->n_extra < sizeof(state))
                return -EFAULT;
        memcpy(state, extra, sizeof(state));
        for (unsigned i = 1; i < sizeof(state); i++)
                if (state[i]) {
                        refuse("padding of a state");
                        return -EINVAL;
                }
        if (state[0] > (set->param == XDNA_SET_POWER_MODE ? XDNA_POWER_MODE_MAX : 1)) {
                refuse("state %u of %u", state[0], set->param);
                return -EINVAL;
        }
        *(set->param == XDNA_SET_POWER_MODE    ? &kernel.power_mode :
          set->param == XDNA_SET_FORCE_PREEMPT ? &kernel.force_preempt :
                                                 &kernel.frame_preempt) = state[0];
        return 0;
}

int info_version(struct npk_request *r, struct answer *answer)
{
        struct drm_version_request *v = (void *)r->arg;

        v->major = 0;
        v->minor = kernel.profile->growth ? 8 : kernel.profile->user_pointers ? 6 : kernel.profile->import ? 2 : 1;
        v->patch = 0;
        memcpy(answer->extra, "amdxdna", 8); /* the library spreads it over the three buffers */
        answer->n_extra = 8;
        return 0;
}

int info_cap(struct npk_request *r)
{
        struct drm_cap *cap = (void *)r->arg;

        switch (cap->capability) {
        case DRM_CAP_PRIME_NR:
                cap->value = kernel.profile->import ? 3 : 2;
                return 0;
        case DRM_CAP_SYNCOBJ_NR:
        case DRM_CAP_SYNCOBJ_TIMELINE_NR:
                cap->value = 1;
                return 0;
        default:
                return -EINVAL;
        }
}

/* ---- what stands for /sys and /dev ---- */

static int put(const char *directory, const char *path, const char *text)
{
        char full[4096];
        FILE *f;

        snprintf(full, sizeof(full), "%s/%s", directory, path);
        for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = 0;
                if (mkdir(full, 0755) < 0 && errno != EEXIST)
                        return -errno;
                *slash = '/';
        }
        if (text[0] == '>') { /* a link */
                unlink(full);
                return symlink(text + 1, full) < 0 ? -errno : 0;
        }
        f = fopen(full, "we");
        if (!f)
                return -errno;
        fputs(text, f);
        return fclose(f) < 0 ? -errno : 0;
}

#define DEVICE "sys/devices/pci0000:c0/" PCI_ADDRESS "/"

int tree_write(const char *directory)
{
        static const struct {
                const char *path, *text;
        } files[] = {
                { DEVICE "vendor", "0x1022\n" },
                { DEVICE "device", "0x17f0\n" },
                { DEVICE "revision", "0x10\n" },
                { DEVICE "class", "0x118000\n" },
                { DEVICE "subsystem_vendor", "0x1022\n" },
                { DEVICE "subsystem_device", "0x17f0\n" },
                { DEVICE "current_link_speed", "16.0 GT/s PCIe\n" },
                { DEVICE "current_link_width", "16\n" },
                { DEVICE "device_type", "0\n" },
                { DEVICE "vbnv", "RyzenAI-npu4\n" },
                { DEVICE "fw_version", FIRMWARE "\n" },
                { DEVICE "resource", "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" },
                { DEVICE "accel/accel0/dev", "261:0\n" },
                { DEVICE "driver", ">../../../bus/pci/drivers/amdxdna" },
                { "sys/bus/pci/devices/" PCI_ADDRESS, ">../../../devices/pci0000:c0/" PCI_ADDRESS },
                { "sys/bus/pci/drivers/amdxdna/module/version", "emulated\n" },
                { "sys/bus/pci/drivers/amdxdna/" PCI_ADDRESS, ">../../../../devices/pci0000:c0/" PCI_ADDRESS },
                { "sys/class/accel/accel0/device", ">../../../devices/pci0000:c0/" PCI_ADDRESS },
                { "dev/accel/accel0", "" },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(files); i++) {
                int r = put(directory, files[i].path, files[i].text);

                if (r < 0)
                        return r;
        }
        return 0;
}
