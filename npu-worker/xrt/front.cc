// XRT's C++ classes behind the C table of front.h: a translation, no decisions.
//
// Two flavours, chosen by CMake (TDM_XRT_HAS_CONTEXTS): today's XRT registers an xclbin and opens a hardware context,
// and several runs make one submission as a run list; Debian's 2.13 loads an xclbin into the device, opens a kernel,
// which is its context, and starts runs one by one. What this will not do: let an exception out, keep state of its own,
// retry.
#include <chrono>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>
#ifdef TDM_XRT_HAS_CONTEXTS
#include <xrt/experimental/xrt_kernel.h>
#include <xrt/experimental/xrt_xclbin.h>
#include <xrt/xrt_hw_context.h>
#else
#include <experimental/xrt_xclbin.h>
#endif

#include "npu-worker/xrt/front.h"

struct tdm_xrt_device {
        xrt::device device;
        xrt::uuid uuid;
};

struct tdm_xrt_context {
#ifdef TDM_XRT_HAS_CONTEXTS
        xrt::hw_context context;
        std::unique_ptr<xrt::runlist> list; // of the submission under way
#endif
        xrt::kernel kernel;
        std::vector<bool> started; // of 2.13's submission: which of the runs
};

struct tdm_xrt_buffer {
        xrt::bo bo;
};

struct tdm_xrt_run {
        xrt::run run;
};

namespace
{

#ifdef TDM_XRT_HAS_CONTEXTS
using export_handle = xrt::bo::export_handle;
#else
using export_handle = xclBufferExportHandle;
#endif

std::string last_error; // one thread calls

template <typename F> int guard(F call)
{
        last_error.clear();
        try {
                return call();
        } catch (const std::system_error &e) {
                last_error = e.what();
                int code = e.code().value();
                if (code < 0)
                        code = -code;
                return code > 0 && code < 4096 ? -code : -EIO;
        } catch (const std::bad_alloc &) {
                last_error = "no memory";
                return -ENOMEM;
        } catch (const std::exception &e) {
                last_error = e.what();
                return -EIO;
        } catch (...) {
                last_error = "an exception without a message";
                return -EIO;
        }
}

const char *error()
{
        return last_error.c_str();
}

int device_open(unsigned index, struct tdm_xrt_device **ret)
{
        return guard([&] {
                *ret = new tdm_xrt_device{ xrt::device{ index }, xrt::uuid{} };
                return 0;
        });
}

int device_name(struct tdm_xrt_device *device, char *ret, size_t size)
{
        return guard([&] {
                auto name = device->device.get_info<xrt::info::device::name>();
                if (name.empty() || name.size() >= size)
                        return -ENODATA;
                memcpy(ret, name.c_str(), name.size() + 1);
                return 0;
        });
}

template <typename T> void destroy(T *p)
{
        guard([&] {
                delete p;
                return 0;
        });
}

int device_load(struct tdm_xrt_device *device, const void *xclbin, size_t size_bytes)
{
        return guard([&] {
                auto *bytes = static_cast<const char *>(xclbin);
                xrt::xclbin image{ std::vector<char>(bytes, bytes + size_bytes) };
#ifdef TDM_XRT_HAS_CONTEXTS
                device->uuid = device->device.register_xclbin(image);
#else
                device->uuid = device->device.load_xclbin(image);
#endif
                return 0;
        });
}

int context_new(struct tdm_xrt_device *device, const char *kernel, struct tdm_xrt_context **ret)
{
        return guard([&] {
#ifdef TDM_XRT_HAS_CONTEXTS
                xrt::hw_context context{ device->device, device->uuid };
                xrt::kernel k{ context, kernel };
                *ret = new tdm_xrt_context{ std::move(context), nullptr, std::move(k), {} };
#else
                *ret = new tdm_xrt_context{ xrt::kernel{ device->device, device->uuid, kernel }, {} };
#endif
                return 0;
        });
}

int context_group(struct tdm_xrt_context *context, unsigned arg)
{
        return guard([&] { return static_cast<int>(context->kernel.group_id(static_cast<int>(arg)) & 0xffff); });
}

int buffer_new(struct tdm_xrt_device *device, size_t size_bytes, enum tdm_xrt_memory memory, unsigned group,
               struct tdm_xrt_buffer **ret)
{
        auto flags = memory == TDM_XRT_INSTRUCTIONS ? xrt::bo::flags::cacheable : xrt::bo::flags::host_only;

        return guard([&] {
                *ret = new tdm_xrt_buffer{ xrt::bo{ device->device, size_bytes, flags,
                                                    static_cast<xrt::memory_group>(group) } };
                return 0;
        });
}

int buffer_user(struct tdm_xrt_device *device, void *p, size_t size_bytes, unsigned group, struct tdm_xrt_buffer **ret)
{
        return guard([&] {
                auto memory = static_cast<xrt::memory_group>(group);
#ifdef TDM_XRT_HAS_CONTEXTS
                *ret = new tdm_xrt_buffer{ xrt::bo{ device->device, p, size_bytes, xrt::bo::flags::host_only,
                                                    memory } };
#else // 2.13 refuses every kind but the one without a name
                *ret = new tdm_xrt_buffer{ xrt::bo{ device->device, p, size_bytes, memory } };
#endif
                return 0;
        });
}

int buffer_import(struct tdm_xrt_device *device, int fd, struct tdm_xrt_buffer **ret)
{
        return guard([&] {
                *ret = new tdm_xrt_buffer{ xrt::bo{ device->device, static_cast<export_handle>(fd) } };
                return 0;
        });
}

void *buffer_map(struct tdm_xrt_buffer *buffer)
{
        void *p = nullptr;

        guard([&] {
                p = buffer->bo.map<void *>();
                return 0;
        });
        return p;
}

int buffer_to_device(struct tdm_xrt_buffer *buffer, size_t size_bytes)
{
        return guard([&] {
                buffer->bo.sync(XCL_BO_SYNC_BO_TO_DEVICE, size_bytes, 0);
                return 0;
        });
}

int buffer_from_device(struct tdm_xrt_buffer *buffer, size_t size_bytes)
{
        return guard([&] {
                buffer->bo.sync(XCL_BO_SYNC_BO_FROM_DEVICE, size_bytes, 0);
                return 0;
        });
}

int buffer_part(struct tdm_xrt_buffer *buffer, size_t offset, size_t size_bytes, int to_device)
{
        return guard([&] {
                buffer->bo.sync(to_device ? XCL_BO_SYNC_BO_TO_DEVICE : XCL_BO_SYNC_BO_FROM_DEVICE, size_bytes, offset);
                return 0;
        });
}

int run_new(struct tdm_xrt_context *context, struct tdm_xrt_run **ret)
{
        return guard([&] {
                *ret = new tdm_xrt_run{ xrt::run{ context->kernel } };
                return 0;
        });
}

int run_set_number(struct tdm_xrt_run *run, unsigned arg, uint64_t value, unsigned size_bytes)
{
        return guard([&] {
                if (size_bytes == 8)
                        run->run.set_arg(static_cast<int>(arg), value);
                else
                        run->run.set_arg(static_cast<int>(arg), static_cast<uint32_t>(value));
                return 0;
        });
}

int run_set_buffer(struct tdm_xrt_run *run, unsigned arg, struct tdm_xrt_buffer *buffer)
{
        return guard([&] {
                run->run.set_arg(static_cast<int>(arg), buffer->bo);
                return 0;
        });
}

int submit(struct tdm_xrt_context *context, struct tdm_xrt_run *const *runs, unsigned n_runs)
{
        context->started.assign(n_runs, false);
        return guard([&] {
#ifdef TDM_XRT_HAS_CONTEXTS
                context->list.reset();
                if (n_runs > 1) {
                        auto list = std::make_unique<xrt::runlist>(context->context);
                        for (unsigned i = 0; i < n_runs; i++)
                                list->add(runs[i]->run);
                        context->list = std::move(list);
                        context->list->execute();
                        context->started.assign(n_runs, true);
                        return 1;
                }
#endif
                for (unsigned i = 0; i < n_runs; i++) {
                        runs[i]->run.start();
                        context->started[i] = true;
                }
                return static_cast<int>(n_runs);
        });
}

enum tdm_xrt_state state_of(ert_cmd_state state)
{
        switch (state) {
        case ERT_CMD_STATE_COMPLETED:
                return TDM_XRT_DONE;
        case ERT_CMD_STATE_NEW:
        case ERT_CMD_STATE_QUEUED:
        case ERT_CMD_STATE_RUNNING:
        case ERT_CMD_STATE_SUBMITTED:
                return TDM_XRT_RUNNING;
        case ERT_CMD_STATE_TIMEOUT:
        case ERT_CMD_STATE_NORESPONSE:
                return TDM_XRT_TIMEOUT;
        case ERT_CMD_STATE_ABORT:
                return TDM_XRT_ABORTED;
        default:
                return TDM_XRT_ERROR;
        }
}

// wait() says "timeout" both when our time is up and when the driver's watchdog spoke: the run's own state tells them
// apart.
enum tdm_xrt_state wait_one(const xrt::run &run, std::chrono::milliseconds left)
{
        run.wait(left);
        return state_of(run.state());
}

#ifdef TDM_XRT_HAS_CONTEXTS
// A wait whose time is up throws as if a command had failed, in a state that is none of failure (2.25). Each further
// one says at once that all is done. So only its first answer is used, and then the list's own state.
int wait_list(const xrt::runlist &list, std::chrono::milliseconds timeout)
{
        auto end = std::chrono::steady_clock::now() + timeout;

        try {
                list.wait(timeout);
        } catch (const xrt::runlist::command_error &e) {
                last_error = e.what();
                if (state_of(e.get_command_state()) != TDM_XRT_RUNNING)
                        return state_of(e.get_command_state());
        }
        for (;;) {
                int state = state_of(list.state());

                if (state != TDM_XRT_RUNNING || std::chrono::steady_clock::now() >= end)
                        return state;
                std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
}
#endif

int wait(struct tdm_xrt_context *context, struct tdm_xrt_run *const *runs, unsigned n_runs, unsigned timeout_ms)
{
        auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        int worst = TDM_XRT_DONE;

#ifdef TDM_XRT_HAS_CONTEXTS
        if (context->list) // the states of its runs mean nothing
                return guard([&] { return wait_list(*context->list, std::chrono::milliseconds(timeout_ms)); });
#endif
        for (unsigned i = 0; i < n_runs; i++) {
                if (i >= context->started.size() || !context->started[i])
                        continue;
                auto now = std::chrono::steady_clock::now();
                // At least a millisecond: to XRT zero means for ever.
                auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end > now ? end - now : end - end) +
                            std::chrono::milliseconds(1);
                int state = TDM_XRT_ERROR;
                int r = guard([&] { return state = wait_one(runs[i]->run, left); });
                if (r < 0) // newer XRT throws where the command failed
                        r = guard([&] { return state = state_of(runs[i]->run.state()); });
                if (state == TDM_XRT_RUNNING)
                        return r < 0 ? r : TDM_XRT_RUNNING;
                worst = state > worst ? state : worst;
        }
        return worst;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const struct tdm_xrt_front tdm_xrt_front;
const struct tdm_xrt_front tdm_xrt_front = {
        TDM_XRT_FRONT_ABI,
#ifdef TDM_XRT_HAS_CONTEXTS
        "XRT with contexts and run lists",
#else
        "XRT 2.13",
#endif
        error,
        device_open,
        destroy<tdm_xrt_device>,
        device_name,
        device_load,
        context_new,
        destroy<tdm_xrt_context>,
        context_group,
        buffer_new,
        buffer_user,
        buffer_import,
        buffer_map,
        buffer_to_device,
        buffer_from_device,
        buffer_part,
        destroy<tdm_xrt_buffer>,
        run_new,
        run_set_number,
        run_set_buffer,
        destroy<tdm_xrt_run>,
        submit,
        wait,
};
