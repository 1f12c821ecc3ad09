/* The files of a set: see files.h. */
#include "npu-worker/manifest/files.h"

#include <fcntl.h>
#include <sys/stat.h>

/* struct axlf of xclbin.h, the parts that lead to others. */
#define XCLBIN_MAGIC "xclbin2"
#define XCLBIN_LENGTH_OFFSET 304u
#define XCLBIN_N_SECTIONS_OFFSET 448u
#define XCLBIN_SECTIONS_OFFSET 456u
#define XCLBIN_SECTION_BYTES 40u
#define XCLBIN_SECTION_PLACE 24u /* u64 offset, u64 size */
#define XCLBIN_MAX_SECTIONS 256u

static uint64_t get_u64(const uint8_t *p)
{
        uint64_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static uint32_t get_u32(const uint8_t *p)
{
        uint32_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

int tdm_xclbin_check(const void *image, uint64_t size_bytes, const char *path, struct tdm_error *err)
{
        const uint8_t *p = image;
        uint32_t n_sections;

        if (size_bytes < XCLBIN_SECTIONS_OFFSET || memcmp(p, XCLBIN_MAGIC, sizeof(XCLBIN_MAGIC)) != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "%s is not an xclbin (%llu bytes, no \"" XCLBIN_MAGIC "\" in front)", path,
                                     (unsigned long long)size_bytes);
        if (get_u64(p + XCLBIN_LENGTH_OFFSET) != size_bytes)
                return tdm_error_set(
                        err, TDM_E_BAD_MODEL, "%s says that it has %llu bytes and has %llu (truncated copy?)", path,
                        (unsigned long long)get_u64(p + XCLBIN_LENGTH_OFFSET), (unsigned long long)size_bytes);
        n_sections = get_u32(p + XCLBIN_N_SECTIONS_OFFSET);
        if (n_sections == 0 || n_sections > XCLBIN_MAX_SECTIONS ||
            XCLBIN_SECTIONS_OFFSET + (uint64_t)n_sections * XCLBIN_SECTION_BYTES > size_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s has %u sections, which its %llu bytes cannot hold", path,
                                     n_sections, (unsigned long long)size_bytes);
        for (uint32_t i = 0; i < n_sections; i++) {
                const uint8_t *place = p + XCLBIN_SECTIONS_OFFSET + i * XCLBIN_SECTION_BYTES + XCLBIN_SECTION_PLACE;
                uint64_t offset = get_u64(place), size = get_u64(place + 8);

                if (offset > size_bytes || size > size_bytes - offset)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "%s: section %u lies outside of the file", path, i);
        }
        return 0;
}

int tdm_npu_read_file(const char *path, uint64_t max_bytes, void **ret, size_t *ret_size, struct tdm_error *err)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        _cleanup_(freep) uint8_t *data = NULL;
        struct stat st;
        size_t n = 0;

        if (fd < 0 || fstat(fd, &st) < 0)
                return tdm_error_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode) || st.st_size <= 0 || (uint64_t)st.st_size > max_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is not a file of 1 to %llu bytes", path,
                                     (unsigned long long)max_bytes);
        data = malloc((size_t)st.st_size + 1);
        if (!data)
                return tdm_error_set(err, -ENOMEM, "no memory for the %lld bytes of %s", (long long)st.st_size, path);
        while (n < (size_t)st.st_size) {
                ssize_t got = read(fd, data + n, (size_t)st.st_size - n);

                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0)
                        return tdm_error_set(err, got < 0 ? -errno : TDM_E_MODEL_CHANGED, "cannot read %s: %s", path,
                                             got < 0 ? strerror(errno) : "it became shorter meanwhile");
                n += (size_t)got;
        }
        data[n] = 0; /* for readers of text; not counted */
        *ret = steal_ptr(&data);
        *ret_size = n;
        return 0;
}
