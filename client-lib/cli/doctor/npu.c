/* The doctor looks at an NPU: why its driver gives it no node, and the libraries and programs that its worker needs.
 *
 * Where the facts are from:
 * - amdxdna came with Linux 6.14 (its release notes).
 * - With amd_iommu=off or iommu=off the driver says "Running without IOMMU not supported" and leaves the device alone:
 *   aie2_init() of amdxdna; owners saw it when a distribution had set it for them (noamsto/nix-amd-ai 123).
 * - The driver of Linux up to 6.19 takes firmware of protocol 6 alone, and fails with "Incompatible firmware protocol
 *   major 7" on what linux-firmware brings since early 2026; Linux 7.0 takes both (amd/xdna-driver 1074, 1257).
 * - The firmware lies in amdnpu/PRODUCT_REVISION/ (modinfo amdxdna).
 * - XRT and its xdna plugin are built together; with different releases XRT finds no device (amd/xdna-driver 957). */
#include "client-lib/cli/doctor/machine.h"

static const char *const library_places[] = { "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib",
                                              "/opt/xilinx/xrt/lib" };

/* ---- why there is no node ---- */

static unsigned n_entries; /* of the folder that is looked at */

static void count_entry(struct doctor *d, const char *path, const char *name)
{
        n_entries++;
}

static bool has_entry(struct doctor *d, const char *folder, const char *prefix)
{
        n_entries = 0;
        doctor_each(d, folder, prefix, count_entry);
        return n_entries > 0;
}

static bool has_firmware(struct doctor *d, const struct device *n)
{
        char folder[128];

        snprintf(folder, sizeof(folder), "/lib/firmware/amdnpu/%04x_%02x", n->product, n->revision);
        if (has_entry(d, folder, "npu"))
                return true;
        snprintf(folder, sizeof(folder), "/usr/lib/firmware/amdnpu/%04x_%02x", n->product, n->revision);
        return has_entry(d, folder, "npu");
}

/* The driver is there and has not taken the device. */
static void explain_refused(struct doctor *d, const struct device *n)
{
        const char *word = doctor_booted_with(d, "amd_iommu=off") ? "amd_iommu=off" :
                           doctor_booted_with(d, "iommu=off")     ? "iommu=off" :
                                                                    NULL;
        char mend[320];

        if (word) {
                snprintf(mend, sizeof(mend),
                         "take %s out of GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then: sudo update-grub && "
                         "sudo reboot",
                         word);
                doctor_problem(d, RANK_NPU, mend, "NPU",
                               "Linux was started with %s, and the driver amdxdna does not run an NPU without the "
                               "IOMMU: the NPU stays hidden",
                               word);
        } else if (!has_entry(d, "/sys/class/iommu", "")) {
                doctor_problem(
                        d, RANK_NPU, "switch on \"IOMMU\" (also: \"AMD-Vi\") in the firmware setup, then restart",
                        "NPU",
                        "the machine's IOMMU is switched off, and the driver amdxdna does not run an NPU without "
                        "it: the NPU stays hidden");
        } else if (!has_firmware(d, n)) {
                snprintf(mend, sizeof(mend),
                         "update linux-firmware, so that /lib/firmware/amdnpu/%04x_%02x/ is there, then: sudo modprobe "
                         "-r amdxdna; sudo modprobe amdxdna",
                         n->product, n->revision);
                doctor_problem(d, RANK_NPU, mend, "NPU",
                               "AMD (%04x:%04x, revision %02x): its firmware is not installed, so the driver amdxdna "
                               "cannot start it",
                               n->vendor, n->product, n->revision);
        } else if (d->kernel < 7000) {
                doctor_problem(d, RANK_NPU,
                               "install Linux 7.0 or newer and restart; sudo dmesg | grep amdxdna says whether it is "
                               "\"Incompatible firmware protocol\"",
                               "NPU",
                               "the driver amdxdna of Linux %u.%u has not started the NPU (%04x:%04x): it refuses "
                               "firmware of protocol 7, which linux-firmware brings since 2026",
                               d->kernel / 1000, d->kernel % 1000, n->vendor, n->product);
        } else {
                doctor_problem(
                        d, RANK_NPU,
                        "update linux-firmware and restart; sudo dmesg | grep amdxdna says what the driver "
                        "missed",
                        "NPU",
                        "the driver amdxdna has not started the NPU (%04x:%04x): its firmware is older than this "
                        "driver takes, or does not answer",
                        n->vendor, n->product);
        }
}

static void explain_no_node(struct doctor *d, const struct device *n)
{
        bool amd = n->vendor == 0x1022, mine;
        const char *module = amd ? "amdxdna" : "intel_vpu";
        char mend[512];

        mine = strcmp(n->driver, module) == 0 || (!n->driver[0] && doctor_has(d, "/sys/module", module));
        if (amd && d->kernel < 6014 && !n->driver[0] && !mine) {
                doctor_problem(d, RANK_NPU, "sudo apt install -t stable-backports linux-image-amd64", "NPU",
                               "AMD (%04x:%04x) is there; its driver amdxdna comes with Linux 6.14, and this is %u.%u",
                               n->vendor, n->product, d->kernel / 1000, d->kernel % 1000);
        } else if (n->driver[0] && !mine) {
                snprintf(mend, sizeof(mend),
                         "sudo sh -c 'echo %s >/sys/bus/pci/drivers/%s/unbind; modprobe %s; echo %s "
                         ">/sys/bus/pci/drivers/%s/bind'",
                         n->name, n->driver, module, n->name, module);
                doctor_problem(d, RANK_NPU, mend, "NPU", "%s (%04x:%04x) belongs to the driver %s, not to %s",
                               doctor_vendor(n->vendor), n->vendor, n->product, n->driver, module);
        } else if (mine && amd) {
                explain_refused(d, n);
        } else {
                snprintf(mend, sizeof(mend), "sudo modprobe %s", module);
                doctor_problem(d, RANK_NPU, mend, "NPU", "%s (%04x:%04x) at %s has no driver", doctor_vendor(n->vendor),
                               n->vendor, n->product, n->name);
        }
}

/* ---- libraries and programs ---- */

/* "2.21.75" of the library's file, found behind the link NAME.so.2; false: there is no such library. */
static bool read_release(const struct doctor *d, const char *name, char *to, size_t size)
{
        char path[4600], target[256];

        to[0] = '\0';
        for (size_t i = 0; i < TDM_ARRAY_SIZE(library_places); i++) {
                const char *version;
                ssize_t n;

                doctor_path(d, path, sizeof(path), "%s/%s.so.2", library_places[i], name);
                if (access(path, F_OK) < 0)
                        continue;
                n = readlink(path, target, sizeof(target) - 1);
                target[TDM_MAX(n, 0)] = '\0';
                version = strstr(target, ".so.");
                snprintf(to, size, "%.30s", version ? version + 4 : "");
                return true;
        }
        return false;
}

static bool has_other_abi(struct doctor *d, const char *name)
{
        char prefix[64];

        snprintf(prefix, sizeof(prefix), "%s.so.", name);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(library_places); i++)
                if (has_entry(d, library_places[i], prefix))
                        return true;
        return false;
}

/* "2.21.75" and "2.21.0" are of one release. */
static bool same_release(const char *a, const char *b)
{
        unsigned major_a = 0, minor_a = 0, major_b = 0, minor_b = 0;

        if (sscanf(a, "%u.%u", &major_a, &minor_a) != 2 || sscanf(b, "%u.%u", &major_b, &minor_b) != 2)
                return true;
        return major_a == major_b && minor_a == minor_b;
}

static void look_at_libraries(struct doctor *d)
{
        char plugin[32], core[32];
        bool has_plugin = read_release(d, "libxrt_driver_xdna", plugin, sizeof(plugin));
        bool has_core = read_release(d, "libxrt_coreutil", core, sizeof(core));

        if (!has_plugin && has_other_abi(d, "libxrt_driver_xdna"))
                doctor_problem(d, RANK_NPU_SOFTWARE,
                               "install XRT 2 with its xdna driver (Debian: libxrt-npu2), in place of the other one",
                               "NPU driver",
                               "the XRT that is installed has another ABI than 2, which Tandem is built for: the NPU "
                               "worker uses the CPU");
        else if (!has_plugin)
                doctor_problem(d, RANK_NPU_SOFTWARE,
                               "sudo apt install libxrt-npu2   (Debian sid; elsewhere AMD's XRT with its xdna driver)",
                               "NPU driver",
                               "AMD's library libxrt_driver_xdna.so.2 is not installed: the NPU worker uses the CPU");
        else if (has_core && !same_release(plugin, core))
                doctor_problem(d, RANK_NPU_SOFTWARE, "install both of one release (Debian: libxrt2 and libxrt-npu2)",
                               "NPU driver",
                               "XRT is of release %s and its xdna driver of %s: they find no NPU together", core,
                               plugin);
        else if (plugin[0])
                doctor_ok(d, "NPU driver", "XRT %s", plugin);
}

static void look_at_programs(struct doctor *d, const struct device *n)
{
        const char *generation = n->product == 0x1502 ? "phoenix" : "strix";
        char folder[512];

        snprintf(folder, sizeof(folder), "%s/%s", TDM_NPU_PROGRAMS_DIR, generation);
        if (doctor_has(d, folder, "manifest"))
                doctor_ok(d, "NPU programs", "%s", folder);
        else
                doctor_note(d, "NPU programs",
                            "%s has no set of programs: the NPU worker uses the CPU. In Tandem's sources "
                            "npu-worker/programs/build --device %s --out DIR builds one (docs/npu-kernels.md)",
                            folder, n->product == 0x1502 ? "npu1" : "npu2");
}

void doctor_judge_npu(struct doctor *d, struct device *n)
{
        char mend[512], version[64];

        if (!n->has_node) {
                explain_no_node(d, n);
        } else if (!n->opens) {
                doctor_problem(d, RANK_NPU, doctor_join_group(d, "render", mend, sizeof(mend)), "NPU",
                               "driver %s: /dev/accel/%s does not open: %s", n->driver, n->name, n->fails);
        } else if (strcmp(n->driver, "amdxdna") != 0) {
                doctor_note(d, "NPU", "driver %s, /dev/accel/%s: Tandem runs on AMD's NPUs alone so far", n->driver,
                            n->name);
        } else {
                doctor_read(d, "/sys/module/amdxdna/version", version, sizeof(version));
                doctor_ok(d, "NPU", "%s (%04x:%04x), driver amdxdna%s%s, firmware %s, /dev/accel/%s",
                          doctor_vendor(n->vendor), n->vendor, n->product, version[0] ? " " : "", version,
                          n->firmware[0] ? n->firmware : "unknown", n->name);
                d->npu_ready = n->ready = true;
                look_at_libraries(d);
                look_at_programs(d, n);
        }
}
