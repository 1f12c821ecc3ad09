/* The device of "auto": an NPU where there is one that works, else the host device, with the reason, which `tandem
 * status` shows. */
#include "npu-worker/device/npu-device.h"

#include <glob.h>

#include "common/log.h"

#define NODES "/dev/accel/accel*"

static struct tdm_device_ops noted_ops; /* the host's, but for what it says of itself */
static char note[256];

const char *tdm_npu_missing_at(const char *nodes)
{
        glob_t found;
        const char *missing = NULL;
        int r = glob(nodes, GLOB_NOSORT, NULL, &found);

        if (r != 0)
                return "there is no " NODES " (no NPU, or its driver amdxdna is not loaded)";
        missing = "no permission to open " NODES " (is this user in the group render?)";
        for (size_t i = 0; i < found.gl_pathc; i++)
                if (access(found.gl_pathv[i], R_OK | W_OK) == 0)
                        missing = NULL;
        globfree(&found);
        return missing;
}

const char *tdm_npu_missing(void)
{
        return tdm_npu_missing_at(NODES);
}

static const char *noted_reason(const struct tdm_device *device)
{
        return note;
}

static int open_noted(struct tdm_device **ret, const struct tdm_device_config *config, const char *why,
                      struct tdm_error *err)
{
        int r = tdm_host_device_ops.open(ret, config, err);

        if (r != 0)
                return r;
        snprintf(note, sizeof(note), "auto took the CPU: %.230s", why);
        noted_ops = tdm_host_device_ops;
        noted_ops.reason = noted_reason;
        (*ret)->ops = &noted_ops;
        return 0;
}

static int no_device_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        const char *missing = tdm_npu_missing();

        return open_noted(ret, config, missing ? missing : "not asked for", err);
}

static int auto_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        struct tdm_error why = {};

        if (tdm_xrt_device_ops.open(ret, config, &why) == 0)
                return 0;
        tdm_log_warning("the NPU is not taken: attention runs on the CPU"); /* why has been logged */
        return open_noted(ret, config, why.message, err);
}

/* Only open() is called through these: the device that it returns has its own table. */
const struct tdm_device_ops tdm_npu_auto_device_ops = { .name = "auto", .open = auto_open };
const struct tdm_device_ops tdm_npu_no_device_ops = { .name = "host", .open = no_device_open };
