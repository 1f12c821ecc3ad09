/* Ties the emulated device to XRT 2.13's own front end.
 *
 * XRT's device layer consists of a C++ singleton and a device class that call the C functions of xrt.h. Their objects
 * come from Debian's libxrt_swemu.a, the layer of XRT's own software emulation (CMakeLists.txt extracts four of them),
 * and refer to more than the emulated NPU has: AI engine graphs, profiling, reset. Those are answered here with "not
 * supported", by mangled name, since a C file cannot say it otherwise. Nothing of this is in the worker: it is linked
 * into the emulated libxrt_core.so.2 only, and breaks at link time, not at run time, should Debian's XRT ever change.
 */
#include "npu-worker/emulated/emulated-device.h"

/* A symbol of C++ and what it answers. The result is an int or a pointer, and nothing reads the arguments. */
#define UNSUPPORTED(name, symbol)                                                                                      \
        long name(void) __asm__(symbol);                                                                               \
        __attribute__((visibility("default"))) long name(void)                                                         \
        {                                                                                                              \
                return -ENOSYS;                                                                                        \
        }

UNSUPPORTED(tdm_glue_graph_end, "_Z11xclGraphEndPvm")
UNSUPPORTED(tdm_glue_graph_run, "_Z11xclGraphRunPvi")
UNSUPPORTED(tdm_glue_graph_wait, "_Z12xclGraphWaitPvm")
UNSUPPORTED(tdm_glue_graph_close, "_Z13xclGraphClosePv")
UNSUPPORTED(tdm_glue_graph_reset, "_Z13xclGraphResetPv")
UNSUPPORTED(tdm_glue_graph_resume, "_Z14xclGraphResumePv")
UNSUPPORTED(tdm_glue_graph_read, "_Z15xclGraphReadRTPPvPKcPcm")
UNSUPPORTED(tdm_glue_graph_suspend, "_Z15xclGraphSuspendPv")
UNSUPPORTED(tdm_glue_graph_wait_done, "_Z16xclGraphWaitDonePvi")
UNSUPPORTED(tdm_glue_graph_time, "_Z17xclGraphTimeStampPv")
UNSUPPORTED(tdm_glue_graph_update, "_Z17xclGraphUpdateRTPPvPKcS1_m")
UNSUPPORTED(tdm_glue_cma, "_Z12xclCmaEnablePvbm")
UNSUPPORTED(tdm_glue_sync_aie, "_Z12xclSyncBOAIEPvRN3xrt2boEPKc18xclBOSyncDirectionmm")
UNSUPPORTED(tdm_glue_sync_aie_nb, "_Z14xclSyncBOAIENBPvRN3xrt2boEPKc18xclBOSyncDirectionmm")
UNSUPPORTED(tdm_glue_reset_array, "_Z16xclResetAIEArrayPv")
UNSUPPORTED(tdm_glue_open_aie, "_Z17xclAIEOpenContextPvN3xrt3aie11access_modeE")
UNSUPPORTED(tdm_glue_reset_device, "_Z22xclInternalResetDevicePv12xclResetKind")
UNSUPPORTED(tdm_glue_scheduler, "_Z22xclUpdateSchedulerStatPv")
UNSUPPORTED(tdm_glue_gmio_wait, "_Z11xclGMIOWaitPvPKc")
UNSUPPORTED(tdm_glue_profile_read, "_Z16xclReadProfilingPvi")
UNSUPPORTED(tdm_glue_profile_stop, "_Z16xclStopProfilingPvi")
UNSUPPORTED(tdm_glue_profile_start, "_Z17xclStartProfilingPviPKcS1_j")

void *tdm_glue_graph_open(void) __asm__("_Z12xclGraphOpenPvPKhPKcN3xrt5graph11access_modeE");
__attribute__((visibility("default"))) void *tdm_glue_graph_open(void)
{
        return NULL;
}

int tdm_glue_close_handle(int fd) __asm__("_Z20xclCloseExportHandlei");
__attribute__((visibility("default"))) int tdm_glue_close_handle(int fd)
{
        return close(fd);
}

void *tdm_glue_handle_check(void *handle) __asm__("_ZN12xclcpuemhal29CpuemShim11handleCheckEPv");
__attribute__((visibility("default"))) void *tdm_glue_handle_check(void *handle)
{
        return handle;
}

unsigned tdm_glue_query(void *shim,
                        int key) __asm__("_ZN12xclcpuemhal29CpuemShim11deviceQueryEN8xrt_core5query8key_typeE");
__attribute__((visibility("default"))) unsigned tdm_glue_query(void *shim, int key)
{
        return 0;
}

int tdm_glue_load_meta(xclDeviceHandle h, const struct axlf *image) __asm__("_Z17xclLoadXclBinMetaPvPK4axlf");
__attribute__((visibility("default"))) int tdm_glue_load_meta(xclDeviceHandle h, const struct axlf *image)
{
        return xclLoadXclBin(h, image);
}

/* ---- the rest of xrt.h: a real NPU has none of it either ---- */

int xclReClock2(xclDeviceHandle h, unsigned short region, const unsigned short *frequency)
{
        return -ENOSYS;
}

int xclP2pEnable(xclDeviceHandle h, bool enable, bool force)
{
        return -ENOSYS;
}

size_t xclWrite(xclDeviceHandle h, enum xclAddressSpace space, uint64_t offset, const void *p, size_t size)
{
        return 0;
}

size_t xclRead(xclDeviceHandle h, enum xclAddressSpace space, uint64_t offset, void *p, size_t size)
{
        return 0;
}

ssize_t xclUnmgdPread(xclDeviceHandle h, unsigned flags, void *p, size_t size, uint64_t offset)
{
        return -ENOSYS;
}

ssize_t xclUnmgdPwrite(xclDeviceHandle h, unsigned flags, const void *p, size_t size, uint64_t offset)
{
        return -ENOSYS;
}

int xclRegRead(xclDeviceHandle h, uint32_t ip, uint32_t offset, uint32_t *ret)
{
        return -ENOSYS;
}

int xclRegWrite(xclDeviceHandle h, uint32_t ip, uint32_t offset, uint32_t value)
{
        return -ENOSYS;
}
