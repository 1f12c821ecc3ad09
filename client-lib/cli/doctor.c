/* See doctor.h. Everything is read from files of the kernel: no device is started and no library of a driver is loaded,
 * so that a broken driver cannot take the doctor with it. */
#include "client-lib/cli/doctor.h"

#include "client-lib/cli/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>

#define SYSTEM_SOCKET "/run/tandem/socket"

enum { MAX_DEVICES = 16 };

#define NPU_HEAP_BYTES (UINT64_C(64) << 20)

/* A device that a worker could use, as its bus and its driver's class show it. */
struct device {
        char name[64];   /* "renderD128", "accel0", or its address on the bus */
        char driver[48]; /* "": none */
        unsigned vendor, product;
        bool has_node, opens;
        char fails[96]; /* why its node does not open */
        char firmware[64];
};

struct doctor {
        struct buf *to;
        const char *root;
        unsigned n_problems;
        struct device gpus[MAX_DEVICES], npus[MAX_DEVICES];
        size_t n_gpus, n_npus;
        bool gpu_ready, npu_ready, lavapipe;
};

static void write_ok(struct doctor *d, const char *what, const char *fmt, ...) _printf_(3, 4);
static void write_note(struct doctor *d, const char *what, const char *fmt, ...) _printf_(3, 4);
static void write_problem(struct doctor *d, const char *mend, const char *what, const char *fmt, ...) _printf_(4, 5);

static void write_finding(struct doctor *d, const char *state, const char *what, const char *fmt, va_list args)
{
        char text[1024];

        vsnprintf(text, sizeof(text), fmt, args);
        buf_printf(d->to, "%-5s %-12s %s\n", state, what, term_safe(text));
}

static void write_ok(struct doctor *d, const char *what, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        write_finding(d, "ok", what, fmt, args);
        va_end(args);
}

static void write_note(struct doctor *d, const char *what, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        write_finding(d, "note", what, fmt, args);
        va_end(args);
}

/* mend: the command that helps. */
static void write_problem(struct doctor *d, const char *mend, const char *what, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        write_finding(d, "MEND", what, fmt, args);
        va_end(args);
        buf_printf(d->to, "%-18s %s\n", "", mend);
        d->n_problems++;
}

/* ---- files of the kernel ---- */

static void path_on_machine(const struct doctor *d, char *to, size_t size, const char *fmt, ...) _printf_(4, 5);
static void path_on_machine(const struct doctor *d, char *to, size_t size, const char *fmt, ...)
{
        int n = snprintf(to, size, "%s", d->root);
        va_list args;

        va_start(args, fmt);
        vsnprintf(to + n, size - (size_t)n, fmt, args);
        va_end(args);
}

/* The first line; "" where there is none. */
static void read_line(const char *path, char *to, size_t size)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);

        if (fd >= 0)
                close(fd);
        to[TDM_MAX(n, 0)] = '\0';
        to[strcspn(to, "\n")] = '\0';
}

static unsigned read_hex(const char *folder, const char *name)
{
        char path[5000], text[32];

        snprintf(path, sizeof(path), "%s/%s", folder, name);
        read_line(path, text, sizeof(text));
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

/* Calls fn for each name in the folder, in no order. */
static void each_entry(const struct doctor *d, const char *folder, const char *prefix,
                       void (*fn)(struct doctor *d, const char *path, const char *name), struct doctor *self)
{
        char path[4096], entry[4400];
        struct dirent *e;
        DIR *dir;

        path_on_machine(d, path, sizeof(path), "%s", folder);
        dir = opendir(path);
        if (!dir)
                return;
        while ((e = readdir(dir))) {
                if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, strlen(prefix)) != 0)
                        continue;
                snprintf(entry, sizeof(entry), "%s/%s", path, e->d_name);
                fn(self, entry, e->d_name);
        }
        closedir(dir);
}

/* ---- CPU, memory, kernel ---- */

static void look_at_cpu(struct doctor *d)
{
        char path[4096], text[4096], model[128] = "an unknown CPU";
        bool avx2 = false, avx512 = false, vnni = false;
        unsigned n = 0;
        FILE *f;

        path_on_machine(d, path, sizeof(path), "/proc/cpuinfo");
        f = fopen(path, "re");
        while (f && fgets(text, sizeof(text), f)) {
                char *value = strchr(text, ':');

                if (!value)
                        continue;
                value += strspn(value + 1, " ") + 1;
                value[strcspn(value, "\n")] = '\0';
                if (strncmp(text, "processor", 9) == 0)
                        n++;
                else if (strncmp(text, "model name", 10) == 0)
                        snprintf(model, sizeof(model), "%s", value);
                else if (strncmp(text, "flags", 5) == 0) {
                        avx2 = strstr(value, " avx2 ") != NULL;
                        avx512 = strstr(value, " avx512bw ") != NULL;
                        vnni = strstr(value, " avx512_vnni") != NULL;
                }
        }
        if (f)
                fclose(f);
        if (avx512 || avx2)
                write_ok(d, "CPU", "%s, %u threads, %s", model, n,
                         vnni   ? "AVX-512 with VNNI" :
                         avx512 ? "AVX-512" :
                                  "AVX2: a CPU with AVX-512 computes about twice as fast");
        else
                write_note(d, "CPU", "%s, %u threads, no AVX2: plain C is used, which is several times slower", model,
                           n);
}

static void look_at_memory(struct doctor *d)
{
        unsigned long long total = 0, available = 0;
        char path[4096], text[128];
        FILE *f;

        path_on_machine(d, path, sizeof(path), "/proc/meminfo");
        f = fopen(path, "re");
        while (f && fgets(text, sizeof(text), f)) {
                (void)sscanf(text, "MemTotal: %llu", &total);
                (void)sscanf(text, "MemAvailable: %llu", &available);
        }
        if (f)
                fclose(f);
        write_ok(d, "memory", "%s, of which %s are available: models larger than that do not load",
                 human_bytes((uint64_t)total << 10), human_bytes((uint64_t)available << 10));
}

static void look_at_kernel(struct doctor *d, unsigned *ret_version)
{
        char path[4096], release[96], uring[16];
        unsigned major = 0, minor = 0;

        path_on_machine(d, path, sizeof(path), "/proc/sys/kernel/osrelease");
        read_line(path, release, sizeof(release));
        (void)sscanf(release, "%u.%u", &major, &minor);
        *ret_version = major * 1000 + minor;
        path_on_machine(d, path, sizeof(path), "/proc/sys/kernel/io_uring_disabled");
        read_line(path, uring, sizeof(uring));
        if (strcmp(uring, "2") == 0 || strcmp(uring, "1") == 0)
                write_problem(d, "sudo sysctl kernel.io_uring_disabled=0", "kernel",
                              "Linux %s, where io_uring is switched off: tandemd does not start", release);
        else if (*ret_version < 5019)
                write_problem(d, "sudo apt install linux-image-amd64", "kernel",
                              "Linux %s; tandemd needs 5.19 or newer", release);
        else
                write_ok(d, "kernel", "Linux %s", release);
}

/* Soft limit of locked memory; UINT64_MAX: none. From the file and not by getrlimit(), so that a folder can stand for a
 * machine. */
static bool read_memlock(const struct doctor *d, uint64_t *ret)
{
        char path[4096], text[256];
        bool found = false;
        FILE *f;

        path_on_machine(d, path, sizeof(path), "/proc/self/limits");
        f = fopen(path, "re");
        while (f && !found && fgets(text, sizeof(text), f)) {
                const char *value = text + sizeof("Max locked memory") - 1;

                if (strncmp(text, "Max locked memory", sizeof("Max locked memory") - 1) != 0)
                        continue;
                found = true;
                value += strspn(value, " ");
                *ret = strncmp(value, "unlimited", 9) == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
        }
        if (f)
                fclose(f);
        return found;
}

static void look_at_limits(struct doctor *d)
{
        uint64_t locked;
        char path[4096];
        int fd;

        if (!read_memlock(d, &locked))
                ;
        else if (locked == UINT64_MAX)
                write_ok(d, "memlock", "no limit of locked memory");
        else if (d->npu_ready && locked < NPU_HEAP_BYTES)
                write_problem(
                        d,
                        "echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/90-tandem.conf   (then "
                        "log "
                        "in anew)",
                        "memlock",
                        "%s may be locked, and the NPU's driver library locks 64 MiB: a daemon of your own finds no "
                        "NPU "
                        "(the system service has no limit)",
                        human_bytes(locked));
        else
                write_ok(d, "memlock", "%s of memory may be locked; only an NPU would need more", human_bytes(locked));
        path_on_machine(d, path, sizeof(path), "/dev/udmabuf");
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0) {
                close(fd);
                write_ok(d, "udmabuf", "opens: a GPU can share the daemon's memory");
        } else if (!d->gpu_ready) {
                write_ok(d, "udmabuf", "not there or not open to this user; only a GPU would need it");
        } else if (errno == ENOENT) {
                write_note(d, "udmabuf", "there is no /dev/udmabuf: rows are copied to a GPU (sudo modprobe udmabuf)");
        } else {
                write_note(d, "udmabuf", "%s: rows are copied to a GPU (sudo usermod -aG kvm $USER)", strerror(errno));
        }
}

static void look_at_groups(struct doctor *d)
{
        static const char *const wanted[] = { "render", "video", "kvm" };
        gid_t groups[256];
        char in[64] = "", out[64] = "";
        int n = getgroups(TDM_ARRAY_SIZE(groups), groups);

        if (d->root[0])
                return;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(wanted); i++) {
                const struct group *g = getgrnam(wanted[i]);
                bool member = g && getegid() == g->gr_gid;
                char *to;

                for (int k = 0; g && k < n; k++)
                        member = member || groups[k] == g->gr_gid;
                to = member ? in : out;
                snprintf(to + strlen(to), sizeof(in) - strlen(to), "%s%s", *to ? ", " : "", wanted[i]);
        }
        if (d->n_gpus + d->n_npus == 0)
                write_ok(d, "groups", "render, video, kvm: only a GPU or an NPU would need them");
        else
                write_ok(d, "groups", "%s is in %s%s%s", geteuid() == 0 ? "root" : "this user",
                         in[0] ? in : "none of the device groups", out[0] ? ", not in " : "", out);
}

/* ---- devices ---- */

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
        char folder[4500], file[4600], node[4096];

        *dev = (struct device){ 0 };
        snprintf(dev->name, sizeof(dev->name), "%.60s", name);
        snprintf(folder, sizeof(folder), "%s/device", path);
        read_driver(folder, dev->driver, sizeof(dev->driver));
        dev->vendor = read_hex(folder, "vendor");
        dev->product = read_hex(folder, "device");
        snprintf(file, sizeof(file), "%s/fw_version", folder);
        read_line(file, dev->firmware, sizeof(dev->firmware));
        path_on_machine(d, node, sizeof(node), "%s/%s", node_folder, name);
        try_node(dev, node);
}

static void add_render_node(struct doctor *d, const char *path, const char *name)
{
        if (d->n_gpus < MAX_DEVICES)
                add_class_device(d, &d->gpus[d->n_gpus++], path, name, "/dev/dri");
}

static void add_accel(struct doctor *d, const char *path, const char *name)
{
        if (d->n_npus < MAX_DEVICES)
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
        if (is_known_driver(devices, *n, vendor, product) || *n == MAX_DEVICES)
                return;
        dev = &devices[(*n)++];
        *dev = (struct device){ .vendor = vendor, .product = product };
        snprintf(dev->name, sizeof(dev->name), "%.60s", name);
        read_driver(path, dev->driver, sizeof(dev->driver));
}

static const char *vendor_name(unsigned vendor)
{
        return vendor == 0x1002 || vendor == 0x1022 ? "AMD" :
               vendor == 0x8086                     ? "Intel" :
               vendor == 0x10de                     ? "NVIDIA" :
                                                      "other";
}

/* ---- Vulkan ---- */

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

static void judge_gpu(struct doctor *d, const struct device *g)
{
        bool nvidia = g->vendor == 0x10de;
        bool has_icd = g->vendor == 0x1002 ? icds.radeon : g->vendor == 0x8086 ? icds.intel : nvidia && icds.nvidia;
        const char *module = g->vendor == 0x1002 ? "amdgpu" : nvidia ? "nvidia" : "i915";
        char mend[256];

        if (!g->has_node && g->driver[0] && strcmp(g->driver, module) != 0 && strcmp(g->driver, "xe") != 0) {
                snprintf(mend, sizeof(mend),
                         "sudo sh -c 'echo %s >/sys/bus/pci/drivers/%s/unbind; modprobe %s; echo %s "
                         ">/sys/bus/pci/drivers/%s/bind'",
                         g->name, g->driver, module, g->name, module);
                write_problem(d, mend, "GPU",
                              "%s (%04x:%04x) belongs to the driver %s, which offers no Vulkan; %s does",
                              vendor_name(g->vendor), g->vendor, g->product, g->driver, module);
        } else if (!g->has_node) {
                snprintf(mend, sizeof(mend), "sudo modprobe %s", module);
                write_problem(d, mend, "GPU", "%s (%04x:%04x) at %s has no driver that gives it a node in /dev/dri",
                              vendor_name(g->vendor), g->vendor, g->product, g->name);
        } else if (!g->opens) {
                write_problem(d, "sudo usermod -aG render,video $USER   (then log in anew)", "GPU",
                              "%s, driver %s: /dev/dri/%s does not open: %s", vendor_name(g->vendor), g->driver,
                              g->name, g->fails);
        } else if (nvidia && strcmp(g->driver, "nouveau") == 0) {
                write_problem(
                        d, "sudo apt install nvidia-driver", "GPU",
                        "NVIDIA with the driver nouveau: it runs at its lowest clock; NVIDIA's own driver is needed");
        } else if (!has_icd) {
                write_problem(d, nvidia ? "sudo apt install nvidia-vulkan-icd" : "sudo apt install mesa-vulkan-drivers",
                              "GPU", "%s, driver %s: there is no Vulkan driver for it in /usr/share/vulkan/icd.d",
                              vendor_name(g->vendor), g->driver);
        } else {
                write_ok(d, "GPU", "%s (%04x:%04x), driver %s, /dev/dri/%s", vendor_name(g->vendor), g->vendor,
                         g->product, g->driver, g->name);
                d->gpu_ready = true;
        }
}

static bool node_exists(const struct doctor *d, const char *folder, const char *file)
{
        char path[4096];

        path_on_machine(d, path, sizeof(path), "%s/%s", folder, file);
        return access(path, F_OK) == 0;
}

/* Looks at the software between an NPU that opens and the worker. */
static void look_at_npu_software(struct doctor *d, const struct device *n)
{
        static const char *const places[] = { "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib",
                                              "/opt/xilinx/xrt/lib" };
        const char *generation = n->product == 0x1502 ? "phoenix" : "strix";
        bool library = false;
        char folder[512];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(places); i++)
                library |= node_exists(d, places[i], "libxrt_driver_xdna.so.2");
        if (!library)
                write_problem(d,
                              "sudo apt install libxrt-npu2   (Debian sid; elsewhere AMD's XRT with its xdna driver)",
                              "NPU driver",
                              "AMD's library libxrt_driver_xdna.so.2 is not installed: the NPU worker uses the "
                              "CPU");
        snprintf(folder, sizeof(folder), "%s/%s", TDM_NPU_PROGRAMS_DIR, generation);
        if (!node_exists(d, folder, "manifest"))
                write_note(d, "NPU programs",
                           "%s has no set of programs: the NPU worker uses the CPU. In Tandem's sources "
                           "npu-worker/programs/build --device %s --out DIR builds one (docs/npu-kernels.md)",
                           folder, n->product == 0x1502 ? "npu1" : "npu2");
        else
                write_ok(d, "NPU programs", "%s", folder);
}

static void judge_npu(struct doctor *d, const struct device *n, unsigned kernel)
{
        bool amd = n->vendor == 0x1022;
        const char *module = amd ? "amdxdna" : "intel_vpu";
        char mend[256];

        if (!n->has_node && amd && kernel < 6014 && !n->driver[0]) {
                write_problem(d, "sudo apt install -t stable-backports linux-image-amd64", "NPU",
                              "AMD (%04x:%04x) is there; its driver amdxdna comes with Linux 6.14, this is older",
                              n->vendor, n->product);
        } else if (!n->has_node && n->driver[0] && strcmp(n->driver, module) != 0) {
                snprintf(mend, sizeof(mend),
                         "sudo sh -c 'echo %s >/sys/bus/pci/drivers/%s/unbind; modprobe %s; echo %s "
                         ">/sys/bus/pci/drivers/%s/bind'",
                         n->name, n->driver, module, n->name, module);
                write_problem(d, mend, "NPU", "%s (%04x:%04x) belongs to the driver %s, not to %s",
                              vendor_name(n->vendor), n->vendor, n->product, n->driver, module);
        } else if (!n->has_node && n->driver[0]) {
                write_problem(
                        d, "sudo dmesg | grep -i amdxdna   (its firmware is missing or too old: update linux-firmware)",
                        "NPU", "%s (%04x:%04x) has the driver %s, which made no node in /dev/accel",
                        vendor_name(n->vendor), n->vendor, n->product, n->driver);
        } else if (!n->has_node) {
                snprintf(mend, sizeof(mend), "sudo modprobe %s", module);
                write_problem(d, mend, "NPU", "%s (%04x:%04x) at %s has no driver", vendor_name(n->vendor), n->vendor,
                              n->product, n->name);
        } else if (!n->opens) {
                write_problem(d, "sudo usermod -aG render $USER   (then log in anew)", "NPU",
                              "driver %s: /dev/accel/%s does not open: %s", n->driver, n->name, n->fails);
        } else if (strcmp(n->driver, "amdxdna") != 0) {
                write_note(d, "NPU", "driver %s, /dev/accel/%s: Tandem runs on AMD's NPUs alone so far", n->driver,
                           n->name);
        } else {
                write_ok(d, "NPU", "%s (%04x:%04x), driver %s, firmware %s, /dev/accel/%s", vendor_name(n->vendor),
                         n->vendor, n->product, n->driver, n->firmware[0] ? n->firmware : "unknown", n->name);
                d->npu_ready = true;
                look_at_npu_software(d, n);
        }
}

static void look_at_devices(struct doctor *d, unsigned kernel)
{
        icds = (struct icds){ 0 };
        each_entry(d, "/usr/share/vulkan/icd.d", "", add_icd, d);
        each_entry(d, "/etc/vulkan/icd.d", "", add_icd, d);
        each_entry(d, "/sys/class/drm", "renderD", add_render_node, d);
        each_entry(d, "/sys/class/accel", "accel", add_accel, d);
        each_entry(d, "/sys/bus/pci/devices", "", add_bus_device, d);
        for (size_t i = 0; i < d->n_gpus; i++)
                judge_gpu(d, &d->gpus[i]);
        for (size_t i = 0; i < d->n_npus; i++)
                judge_npu(d, &d->npus[i], kernel);
        if (d->n_gpus == 0)
                write_note(d, "GPU", "none found%s",
                           icds.lavapipe ?
                                   "; Vulkan on the CPU (lavapipe) is installed: gpu = vulkan would use it, and the "
                                   "CPU itself is faster" :
                                   "");
        if (d->n_npus == 0)
                write_note(d, "NPU", "none found");
}

/* ---- what that means, and what the daemon says ---- */

static void say_what_runs(struct doctor *d)
{
        write_note(
                d, "npu worker", "%s",
                d->npu_ready ?
                        "computes on the NPU what has a program for its shape (docs/npu-kernels.md), where tandem-xrt "
                        "is installed; the rest on the CPU" :
                        "computes on the CPU: no NPU can be used");
        write_note(d, "gpu worker", "%s",
                   d->gpu_ready ? "computes on the GPU by Vulkan" : "computes on the CPU: no GPU can be used");
}

/* Tells what the daemon says of a worker, unless the devices above say it already. */
static void tell_worker(struct doctor *d, const char *what, const struct tandem_worker *w)
{
        bool npu = strcmp(w->name, "npu") == 0, expected = (npu ? d->n_npus : d->n_gpus) == 0;

        if (strcmp(w->device, "host") == 0 && expected && strcmp(w->requested, "auto") == 0) {
                write_ok(d, what, "%s on the CPU, as there is no %s", w->state, npu ? "NPU" : "GPU");
                return;
        }
        write_ok(d, what, "%s%s%s%s%s", w->state, w->device[0] ? " on " : "",
                 strcmp(w->device, "host") == 0 ? "the CPU" : w->device, w->detail[0] ? ": " : "", w->detail);
        if (w->reason[0])
                write_note(d, what, "%s", w->reason);
}

/* Commands that work where this program is: a build folder has no units, and its programs are not in PATH. */
struct local {
        char daemon[4200]; /* "tandemd", or its path */
        bool has_unit;     /* installed, or linked from another prefix */
        bool has_service;  /* and these programs are those that it runs */
};

static void find_local(struct local *c)
{
        c->has_unit = access("/usr/lib/systemd/system/tandemd.socket", F_OK) == 0 ||
                      access("/etc/systemd/system/tandemd.socket", F_OK) == 0;
        c->has_service = c->has_unit;
        if (!cli_find_program("tandemd", c->daemon, sizeof(c->daemon)) || strncmp(c->daemon, "/usr/", 5) == 0)
                snprintf(c->daemon, sizeof(c->daemon), "tandemd");
        else
                c->has_service = false;
}

static void restart_command(const struct local *c, const struct tandem_status *status, char *to, size_t size)
{
        if (c->has_unit && strcmp(status->socket, SYSTEM_SOCKET) == 0)
                snprintf(to, size, "sudo systemctl restart tandemd");
        else
                snprintf(to, size, "kill %" PRIu64 "; %.200s --user &", status->pid, c->daemon);
}

/* False: no daemon said what its workers do. */
static bool read_answers(struct doctor *d, struct cli *cli)
{
        struct local here;
        struct tandem *tandem;
        struct tandem_status *status;
        struct tandem_error err;
        char again[320];

        find_local(&here);
        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK) {
                snprintf(again, sizeof(again), "%s%.200s --user &%s",
                         here.has_service ? "sudo systemctl start tandemd.socket   (or, for yourself: " : "",
                         here.daemon, here.has_service ? ")" : "");
                write_problem(d, again, "daemon", "%s", err.message);
                return false;
        }
        if (tandem_get_status(tandem, &status, &err) != TANDEM_OK) {
                write_problem(d,
                              here.has_service ? "sudo systemctl restart tandemd" :
                                                 "end that tandemd (pkill -x tandemd) and start it anew",
                              "daemon", "%s", err.message);
                tandem_close(tandem);
                return false;
        }
        restart_command(&here, status, again, sizeof(again));
        write_ok(d, "daemon", "%s runs", status->version);
        for (size_t i = 0; i < status->n_workers; i++) {
                const struct tandem_worker *w = status->workers[i];
                char what[32], mend[512];

                snprintf(what, sizeof(what), "%.8s worker", w->name);
                if (strcmp(w->state, "quarantined") == 0) {
                        if (strncmp(w->last_exit, "device ", 7) == 0 && strcmp(w->requested, "auto") != 0)
                                snprintf(mend, sizeof(mend),
                                         "%.8s = auto in tandem.conf takes the CPU instead (man tandem.conf); then: %s",
                                         w->name, again);
                        else
                                snprintf(mend, sizeof(mend), "%s%.200s restart %.8s",
                                         strcmp(status->socket, SYSTEM_SOCKET) == 0 && geteuid() != 0 ? "sudo " : "",
                                         cli->program, w->name);
                        write_problem(d, mend, what, "is quarantined after %u restarts: %s", w->restarts,
                                      name_users(w->last_exit));
                } else {
                        tell_worker(d, what, w);
                }
        }
        tandem_status_free(status);
        tandem_close(tandem);
        return true;
}

unsigned doctor_write(struct buf *to, struct cli *cli, const char *root, bool ask_daemon)
{
        struct doctor d = { .to = to, .root = root };
        unsigned kernel;

        look_at_cpu(&d);
        look_at_memory(&d);
        look_at_kernel(&d, &kernel);
        look_at_devices(&d, kernel);
        look_at_groups(&d);
        look_at_limits(&d);
        if (!ask_daemon || !read_answers(&d, cli))
                say_what_runs(&d);
        return d.n_problems;
}
