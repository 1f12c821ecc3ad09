/* The doctor looks for GPUs and NPUs: in the classes of their drivers and on the bus, and for the Vulkan driver of each
 * GPU. */
#include "client-lib/cli/doctor/machine.h"

#include <fcntl.h>

static unsigned read_hex(const char *folder, const char *name)
{
        char path[5000], text[32];

        snprintf(path, sizeof(path), "%s/%s", folder, name);
        doctor_read_line(path, text, sizeof(text));
        return (unsigned)strtoul(text, NULL, 16);
}

static void read_driver(const char *folder, char *to, size_t size)
{
        char path[5000], target[4096];
        const char *slash;
        ssize_t n;

        snprintf(path, sizeof(path), "%s/driver", folder);
        n = readlink(path, target, sizeof(target) - 1);
        target[TDM_MAX(n, 0)] = '\0';
        slash = strrchr(target, '/');
        snprintf(to, size, "%.40s", slash ? slash + 1 : target);
}

static uint64_t read_bytes(const char *folder, const char *name)
{
        char path[5000], text[32];

        snprintf(path, sizeof(path), "%s/%s", folder, name);
        doctor_read_line(path, text, sizeof(text));
        return strtoull(text, NULL, 10);
}

/* The command that lets this user open a node of the group. One who is in it already has to log in anew. */
const char *doctor_join_group(const struct doctor *d, const char *group, char *to, size_t size)
{
        bool listed, member = doctor_in_group(d, group, &listed);

        if (listed && !member)
                snprintf(to, size, "log out and in again: this user was put into the group %s after this session began",
                         group);
        else
                snprintf(to, size, "sudo usermod -aG render,video $USER   (then log in anew)");
        return to;
}

static void try_node(struct device *dev, const char *path)
{
        int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

        dev->has_node = fd >= 0 || errno != ENOENT;
        dev->opens = fd >= 0;
        if (fd >= 0)
                close(fd);
        else
                snprintf(dev->fails, sizeof(dev->fails), "%s", strerror(errno));
}

static void add_class_device(struct doctor *d, struct device *dev, const char *path, const char *name,
                             const char *node_folder)
{
        char file[4600], node[4096], *folder = dev->folder;

        *dev = (struct device){ 0 };
        snprintf(dev->name, sizeof(dev->name), "%.60s", name);
        snprintf(dev->folder, sizeof(dev->folder), "%s/device", path);
        read_driver(folder, dev->driver, sizeof(dev->driver));
        dev->vendor = read_hex(folder, "vendor");
        dev->product = read_hex(folder, "device");
        dev->revision = read_hex(folder, "revision");
        dev->vram_bytes = read_bytes(folder, "mem_info_vram_total");
        dev->gtt_bytes = read_bytes(folder, "mem_info_gtt_total");
        snprintf(file, sizeof(file), "%s/fw_version", folder);
        doctor_read_line(file, dev->firmware, sizeof(dev->firmware));
        doctor_path(d, node, sizeof(node), "%s/%s", node_folder, name);
        try_node(dev, node);
}

static void add_render_node(struct doctor *d, const char *path, const char *name)
{
        if (d->n_gpus < DOCTOR_MAX_DEVICES)
                add_class_device(d, &d->gpus[d->n_gpus++], path, name, "/dev/dri");
}

static void add_accel(struct doctor *d, const char *path, const char *name)
{
        if (d->n_npus < DOCTOR_MAX_DEVICES)
                add_class_device(d, &d->npus[d->n_npus++], path, name, "/dev/accel");
}

static bool is_npu(unsigned vendor, unsigned product, unsigned class)
{
        return (vendor == 0x1022 && (product == 0x1502 || product == 0x17f0)) ||
               (vendor == 0x8086 && class >> 8 == 0x1200);
}

static bool is_known_driver(const struct device *devices, size_t n, unsigned vendor, unsigned product)
{
        for (size_t i = 0; i < n; i++)
                if (devices[i].vendor == vendor && devices[i].product == product)
                        return true;
        return false;
}

/* Adds a device that is on the bus and in no class: a driver is missing, or another one has the device. */
static void add_bus_device(struct doctor *d, const char *path, const char *name)
{
        unsigned vendor = read_hex(path, "vendor"), product = read_hex(path, "device"), class = read_hex(path, "class");
        bool npu = is_npu(vendor, product, class);
        struct device *devices = npu ? d->npus : d->gpus, *dev;
        size_t *n = npu ? &d->n_npus : &d->n_gpus;

        /* 03: displays. A virtual machine's or a server's plain display adapter computes nothing. */
        if (!npu && (class >> 16 != 0x03 || (vendor != 0x1002 && vendor != 0x8086 && vendor != 0x10de)))
                return;
        if (is_known_driver(devices, *n, vendor, product) || *n == DOCTOR_MAX_DEVICES)
                return;
        dev = &devices[(*n)++];
        *dev = (struct device){ .vendor = vendor, .product = product, .revision = read_hex(path, "revision") };
        snprintf(dev->name, sizeof(dev->name), "%.60s", name);
        read_driver(path, dev->driver, sizeof(dev->driver));
}

const char *doctor_vendor(unsigned vendor)
{
        return vendor == 0x1002 || vendor == 0x1022 ? "AMD" :
               vendor == 0x8086                     ? "Intel" :
               vendor == 0x10de                     ? "NVIDIA" :
                                                      "other";
}

struct icds {
        bool radeon, intel, nvidia, lavapipe;
};
static struct icds icds; /* of the run: one doctor a process */

static void add_icd(struct doctor *d, const char *path, const char *name)
{
        icds.radeon |= strncmp(name, "radeon_icd", 10) == 0 || strncmp(name, "amd_icd", 7) == 0;
        icds.intel |= strncmp(name, "intel_", 6) == 0;
        icds.nvidia |= strncmp(name, "nvidia_", 7) == 0;
        icds.lavapipe |= strncmp(name, "lvp_icd", 7) == 0;
}

static void judge_gpu(struct doctor *d, struct device *g)
{
        bool nvidia = g->vendor == 0x10de;
        bool has_icd = g->vendor == 0x1002 ? icds.radeon : g->vendor == 0x8086 ? icds.intel : nvidia && icds.nvidia;
        const char *module = g->vendor == 0x1002 ? "amdgpu" : nvidia ? "nvidia" : "i915";
        char mend[512];

        if (!g->has_node && g->driver[0] && strcmp(g->driver, module) != 0 && strcmp(g->driver, "xe") != 0) {
                snprintf(mend, sizeof(mend),
                         "sudo sh -c 'echo %s >/sys/bus/pci/drivers/%s/unbind; modprobe %s; echo %s "
                         ">/sys/bus/pci/drivers/%s/bind'",
                         g->name, g->driver, module, g->name, module);
                doctor_problem(d, RANK_GPU, mend, "GPU",
                               "%s (%04x:%04x) belongs to the driver %s, which offers no Vulkan; %s does",
                               doctor_vendor(g->vendor), g->vendor, g->product, g->driver, module);
        } else if (!g->has_node) {
                snprintf(mend, sizeof(mend), "sudo modprobe %s", module);
                doctor_problem(d, RANK_GPU, mend, "GPU",
                               "%s (%04x:%04x) at %s has no driver that gives it a node in /dev/dri",
                               doctor_vendor(g->vendor), g->vendor, g->product, g->name);
        } else if (!g->opens) {
                doctor_problem(d, RANK_GPU, doctor_join_group(d, "render", mend, sizeof(mend)), "GPU",
                               "%s, driver %s: /dev/dri/%s does not open: %s", doctor_vendor(g->vendor), g->driver,
                               g->name, g->fails);
        } else if (nvidia && strcmp(g->driver, "nouveau") == 0) {
                doctor_problem(
                        d, RANK_GPU, "sudo apt install nvidia-driver", "GPU",
                        "NVIDIA with the driver nouveau: it runs at its lowest clock; NVIDIA's own driver is needed");
        } else if (!has_icd) {
                doctor_problem(d, RANK_GPU,
                               nvidia ? "sudo apt install nvidia-vulkan-icd" : "sudo apt install mesa-vulkan-drivers",
                               "GPU", "%s, driver %s: there is no Vulkan driver for it in /usr/share/vulkan/icd.d",
                               doctor_vendor(g->vendor), g->driver);
        } else {
                doctor_ok(d, "GPU", "%s (%04x:%04x), driver %s, /dev/dri/%s", doctor_vendor(g->vendor), g->vendor,
                          g->product, g->driver, g->name);
                d->gpu_ready = g->ready = true;
        }
}

void doctor_look_at_devices(struct doctor *d)
{
        icds = (struct icds){ 0 };
        doctor_each(d, "/usr/share/vulkan/icd.d", "", add_icd);
        doctor_each(d, "/etc/vulkan/icd.d", "", add_icd);
        doctor_each(d, "/sys/class/drm", "renderD", add_render_node);
        doctor_each(d, "/sys/class/accel", "accel", add_accel);
        doctor_each(d, "/sys/bus/pci/devices", "", add_bus_device);
        for (size_t i = 0; i < d->n_gpus; i++)
                judge_gpu(d, &d->gpus[i]);
        for (size_t i = 0; i < d->n_npus; i++)
                doctor_judge_npu(d, &d->npus[i]);
        if (d->n_gpus == 0)
                doctor_note(d, "GPU", "none found%s",
                            icds.lavapipe ?
                                    "; Vulkan on the CPU (lavapipe) is installed: gpu = vulkan would use it, and the "
                                    "CPU itself is faster" :
                                    "");
        if (d->n_npus == 0)
                doctor_note(d, "NPU", "none found");
}
