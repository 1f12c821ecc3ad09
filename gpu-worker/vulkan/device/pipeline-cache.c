/* Compiled kernels and the shapes that were measured best (load/tune.c) on disk, so that only the first start of a
 * driver's version compiles and measures. The file lies in the worker's own folder ($XDG_CACHE_HOME/tandem, else
 * ~/.cache/tandem); without one nothing is kept.
 *
 * It is not trusted: it must be a plain file of this user that nobody else may write, of a sane size, made for this
 * very device and driver, and whole (a checksum, which finds damage; that nobody else writes there is what keeps malice
 * out). Anything else is as if there were none, and is replaced. Never an error: a cache only saves time.
 *
 * It is held open from the beginning and written in place, its header last: most kernels are compiled when a model is
 * loaded, and then a worker can name no files any more. */
#include <fcntl.h>
#include <sys/stat.h>

#include "common/fnv.h"
#include "gpu-worker/vulkan/device/gpu-private.h"

#define MAGIC UINT32_C(0x4b565454) /* "TTVK" */
#define VERSION 5u
#define BYTES_MAX (UINT64_C(64) << 20)

struct cache_header {
        uint32_t magic, version;
        uint32_t vendor, device, driver, reserved;
        uint8_t uuid[VK_UUID_SIZE];
        uint64_t bytes, checksum;
};
static_assert(sizeof(struct cache_header) == 56, "as it lies in the file");

/* Follows the head. Behind it lies what the driver gave. */
struct cache_tuned {
        uint32_t n, reserved;
        struct tdm_vk_tuned tuned[TDM_VK_MAX_TUNED];
};

static uint64_t checksum_of(const uint8_t *data, size_t n)
{
        return tdm_fnv64(TDM_FNV64_BEGIN, data, n);
}

static bool path_of(const struct tdm_vk_device *device, char *path, size_t size)
{
        const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        char uuid[2 * VK_UUID_SIZE + 1];
        int n;

        for (unsigned i = 0; i < VK_UUID_SIZE; i++)
                snprintf(uuid + 2 * i, 3, "%02x", device->properties.pipelineCacheUUID[i]);
        if (cache && cache[0] == '/')
                n = snprintf(path, size, "%s/tandem/kernels-%s", cache, uuid);
        else if (home && home[0] == '/')
                n = snprintf(path, size, "%s/.cache/tandem/kernels-%s", home, uuid);
        else
                return false;
        return n > 0 && (size_t)n < size - 8;
}

static void header_init(const struct tdm_vk_device *device, struct cache_header *header, const uint8_t *data, size_t n)
{
        *header = (struct cache_header){ .magic = MAGIC,
                                         .version = VERSION,
                                         .vendor = device->properties.vendorID,
                                         .device = device->properties.deviceID,
                                         .driver = device->properties.driverVersion,
                                         .bytes = n,
                                         .checksum = checksum_of(data, n) };
        memcpy(header->uuid, device->properties.pipelineCacheUUID, VK_UUID_SIZE);
}

static bool read_all(int fd, uint8_t *to, size_t n)
{
        for (size_t done = 0; done < n;) {
                ssize_t r = read(fd, to + done, n - done);

                if (r <= 0)
                        return false;
                done += (size_t)r;
        }
        return true;
}

static bool write_all(int fd, const void *from, size_t n, size_t at)
{
        for (size_t done = 0; done < n;) {
                ssize_t r = pwrite(fd, (const uint8_t *)from + done, n - done, (off_t)(at + done));

                if (r <= 0)
                        return false;
                done += (size_t)r;
        }
        return true;
}

/* The content of the file; NULL: there is none. */
static uint8_t *load_file(const struct tdm_vk_device *device, int fd, size_t *ret_n)
{
        struct cache_header header, want;
        uint8_t *data = NULL;
        struct stat st;

        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH) ||
            st.st_size < (off_t)sizeof(header) || (uint64_t)st.st_size > BYTES_MAX ||
            !read_all(fd, (uint8_t *)&header, sizeof(header)) || header.bytes != (uint64_t)st.st_size - sizeof(header))
                return NULL;
        data = malloc(header.bytes + 1);
        if (data && read_all(fd, data, header.bytes)) {
                header_init(device, &want, data, header.bytes);
                if (memcmp(&header, &want, sizeof(header)) == 0) {
                        *ret_n = header.bytes;
                        return data;
                }
        }
        free(data);
        return NULL;
}

void tdm_vk_cache_open(struct tdm_vk_device *device, bool (*sane)(const struct tdm_vk_tuned *tuned))
{
        VkPipelineCacheCreateInfo info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO };
        _cleanup_(freep) uint8_t *data = NULL;
        char path[4096];
        size_t n = 0;

        if (path_of(device, path, sizeof(path))) {
                device->kept.fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
                if (device->kept.fd >= 0)
                        data = load_file(device, device->kept.fd, &n);
                if (!data) { /* another process may hold the file open: it is not written to */
                        _cleanup_(closep) int refused = device->kept.fd;

                        unlink(path);
                        device->kept.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
                        (void)refused;
                }
        }
        if (data && n >= sizeof(struct cache_tuned)) {
                const struct cache_tuned *kept = (const struct cache_tuned *)data;

                for (uint32_t i = 0; i < TDM_MIN(kept->n, TDM_VK_MAX_TUNED); i++)
                        if (sane(&kept->tuned[i]))
                                device->tuned[device->n_tuned++] = kept->tuned[i];
                device->kept.n_tuned = device->n_tuned;
                info.initialDataSize = n - sizeof(*kept);
                info.pInitialData = data + sizeof(*kept);
        }
        if (device->vk.CreatePipelineCache(device->vk.device, &info, NULL, &device->kept.cache) != VK_SUCCESS)
                device->kept.cache = VK_NULL_HANDLE;
        device->kept.size_bytes = device->kept.loaded_bytes = device->kept.cache ? n : 0;
}

void tdm_vk_cache_save(struct tdm_vk_device *device)
{
        _cleanup_(freep) uint8_t *data = NULL;
        struct cache_header header;
        struct cache_tuned *kept;
        size_t n = 0;

        if (!device->kept.cache || device->kept.fd < 0 ||
            (device->kept.n_pipelines == device->n_pipelines && device->kept.n_tuned == device->n_tuned))
                return;
        device->kept.n_pipelines = device->n_pipelines;
        if (device->vk.GetPipelineCacheData(device->vk.device, device->kept.cache, &n, NULL) != VK_SUCCESS || n == 0 ||
            (n + sizeof(*kept) == device->kept.size_bytes && device->kept.n_tuned == device->n_tuned) ||
            n > BYTES_MAX - sizeof(header) - sizeof(*kept))
                return;
        data = calloc(1, n + sizeof(*kept));
        if (!data || device->vk.GetPipelineCacheData(device->vk.device, device->kept.cache, &n, data + sizeof(*kept)) !=
                             VK_SUCCESS)
                return;
        kept = (struct cache_tuned *)data;
        kept->n = device->kept.n_tuned = device->n_tuned;
        memcpy(kept->tuned, device->tuned, sizeof(kept->tuned));
        n += sizeof(*kept);
        header_init(device, &header, data, n);
        if (ftruncate(device->kept.fd, 0) == 0 && write_all(device->kept.fd, data, n, sizeof(header)) &&
            write_all(device->kept.fd, &header, sizeof(header), 0))
                device->kept.size_bytes = n;
}

void tdm_vk_cache_close(struct tdm_vk_device *device)
{
        if (device->kept.cache)
                device->vk.DestroyPipelineCache(device->vk.device, device->kept.cache, NULL);
        device->kept.cache = VK_NULL_HANDLE;
        if (device->kept.fd >= 0)
                close(device->kept.fd);
        device->kept.fd = -1;
}
