/* Where XRT comes from. The worker does not link it: most machines have none, and the one that has may get another one
 * by an upgrade. Nothing here is tried twice or replaced silently; each way of missing something has its own words.
 *
 * The layout of an xclbin's head is written down here, and not taken from XRT's headers, so that the check is also
 * there in builds that lack them. */
#include "npu-worker/xrt/load.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MODULE "tandem-xrt.so"
#ifdef TDM_NPU_EMULATED_KERNEL
#define EMULATED_KERNEL true
#else
#define EMULATED_KERNEL false
#endif

/* struct axlf of xclbin.h, the parts that lead to others. */
#define XCLBIN_MAGIC "xclbin2"
#define XCLBIN_LENGTH_OFFSET 304u
#define XCLBIN_N_SECTIONS_OFFSET 448u
#define XCLBIN_SECTIONS_OFFSET 456u
#define XCLBIN_SECTION_BYTES 40u
#define XCLBIN_SECTION_PLACE 24u /* u64 offset, u64 size */
#define XCLBIN_MAX_SECTIONS 256u

int tdm_xrt_program_path(const char *relative, char *ret, size_t size)
{
        char exe[4096];
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
        char *slash;

        if (n < 0)
                return -errno;
        exe[n] = 0;
        slash = strrchr(exe, '/');
        if (!slash)
                return -ENOENT;
        *slash = 0;
        return snprintf(ret, size, "%s/%s", exe, relative) < (int)size ? 0 : -ENAMETOOLONG;
}

/* Today's XRT is emulated below AMD's driver library: by a library that takes libc's place for what is loaded after it,
 * in a namespace of its own. */
static int load_emulated_kernel(const char *path, Lmid_t *ret, struct tdm_error *err)
{
        static void *kernel; /* there are few namespaces, and one device: once a process */

        if (!kernel)
                kernel = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
        if (!kernel || dlinfo(kernel, RTLD_DI_LMID, ret) != 0) {
                const char *why = dlerror();

                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the emulated NPU cannot be loaded: %s",
                                     why ? why : "no reason given");
        }
        return 0;
}

static int point_at_emulation(Lmid_t *ret, struct tdm_error *err)
{
        char root[4096], library[4200];
        int r = tdm_xrt_program_path("../lib/npu-emulated", root, sizeof(root));

        if (r < 0)
                return tdm_error_set(err, r, "cannot tell where this program lies: %s", strerror(-r));
        snprintf(library, sizeof(library), "%s/lib/libnpu-kernel-inside.so", root);
        if (EMULATED_KERNEL && access(library, R_OK) == 0)
                return load_emulated_kernel(library, ret, err);
        snprintf(library, sizeof(library), "%s/lib/libxrt_core.so.2", root);
        if (access(library, R_OK) < 0)
                return tdm_error_set(
                        err, TDM_E_UNSUPPORTED,
                        "the emulated NPU is not in this build (%s is missing): it is never installed, and building "
                        "it needs XRT's development files (Debian: libxrt-dev) when CMake configures",
                        library);
        /* XRT takes its device layer from here; an emulation mode of its own would take another one. */
        setenv("XILINX_XRT", root, 1);
        unsetenv("XCL_EMULATION_MODE");
        return 0;
}

int tdm_xrt_load(bool emulated, const struct tdm_xrt_front **ret, struct tdm_error *err)
{
        static const char *const places[] = { MODULE, "../lib/" MODULE };
        const struct tdm_xrt_front *front;
        char path[4096] = MODULE;
        Lmid_t space = LM_ID_BASE;
        void *module = NULL;
        int r;

        if (emulated) {
                r = point_at_emulation(&space, err);
                if (r != 0)
                        return r;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(places); i++) {
                r = tdm_xrt_program_path(places[i], path, sizeof(path));
                if (r == 0 && access(path, R_OK) == 0)
                        break;
                if (i + 1 == TDM_ARRAY_SIZE(places))
                        return tdm_error_set(
                                err, TDM_E_UNSUPPORTED,
                                "%s is not there: install the package tandem-xrt, or build with XRT's development "
                                "files (Debian 12: libxrt-dev)",
                                MODULE);
        }
        module = dlmopen(space, path, RTLD_NOW | RTLD_LOCAL);
        if (!module) {
                const char *why = dlerror();

                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "XRT is not installed or of another version (Debian 12: libxrt1): %s",
                                     why ? why : "no reason given");
        }
        front = dlsym(module, TDM_XRT_FRONT_SYMBOL);
        if (!front || front->abi != TDM_XRT_FRONT_ABI) {
                dlclose(module);
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "%s is of another version of Tandem: install both from one build", path);
        }
        *ret = front;
        return 0;
}

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
