/* Where XRT comes from. The worker does not link it: most machines have none, and the one that has may get another one
 * by an upgrade. Nothing here is tried twice or replaced silently; each way of missing something has its own words. */
#include "npu-worker/xrt/load.h"

#include <dlfcn.h>

#define MODULE "tandem-xrt.so"
#ifdef TDM_NPU_EMULATED_KERNEL
#define EMULATED_KERNEL true
#else
#define EMULATED_KERNEL false
#endif

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
