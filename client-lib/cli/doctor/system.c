/* The doctor looks at CPU, memory, kernel, limits, groups, power and sleep.
 *
 * Where the facts are from: Linux's Documentation/admin-guide/pm (sleep states) and ABI/testing/sysfs-platform_profile,
 * sysfs-class-power. That amdxdna came with Linux 6.14: its release notes. */
#include "client-lib/cli/doctor/machine.h"

#include <fcntl.h>
#include <inttypes.h>

#define NPU_HEAP_BYTES (UINT64_C(64) << 20)

void doctor_look_at_cpu(struct doctor *d)
{
        char path[4500], text[4096], model[128] = "an unknown CPU";
        bool avx2 = false, avx512 = false, vnni = false;
        unsigned n = 0;
        FILE *f;

        doctor_path(d, path, sizeof(path), "/proc/cpuinfo");
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
                doctor_ok(d, "CPU", "%s, %u threads, %s", model, n,
                          vnni   ? "AVX-512 with VNNI" :
                          avx512 ? "AVX-512" :
                                   "AVX2: a CPU with AVX-512 computes about twice as fast");
        else
                doctor_note(d, "CPU", "%s, %u threads, no AVX2: plain C is used, which is several times slower", model,
                            n);
}

void doctor_look_at_memory(struct doctor *d)
{
        unsigned long long total = 0, available = 0;
        char path[4500], text[128];
        FILE *f;

        doctor_path(d, path, sizeof(path), "/proc/meminfo");
        f = fopen(path, "re");
        while (f && fgets(text, sizeof(text), f)) {
                (void)sscanf(text, "MemTotal: %llu", &total);
                (void)sscanf(text, "MemAvailable: %llu", &available);
        }
        if (f)
                fclose(f);
        d->ram_bytes = (uint64_t)total << 10;
        doctor_ok(d, "memory", "%s, of which %s are available: models larger than that do not load",
                  human_bytes(d->ram_bytes), human_bytes((uint64_t)available << 10));
}

void doctor_look_at_kernel(struct doctor *d)
{
        char release[96], uring[16];
        unsigned major = 0, minor = 0;

        doctor_read(d, "/proc/sys/kernel/osrelease", release, sizeof(release));
        (void)sscanf(release, "%u.%u", &major, &minor);
        d->kernel = major * 1000 + minor;
        doctor_read(d, "/proc/sys/kernel/io_uring_disabled", uring, sizeof(uring));
        if (strcmp(uring, "2") == 0 || strcmp(uring, "1") == 0)
                doctor_problem(d, RANK_START, "sudo sysctl kernel.io_uring_disabled=0", "kernel",
                               "Linux %s, where io_uring is switched off: tandemd does not start", release);
        else if (d->kernel < 5019)
                doctor_problem(d, RANK_START, "sudo apt install linux-image-amd64", "kernel",
                               "Linux %s; tandemd needs 5.19 or newer", release);
        else
                doctor_ok(d, "kernel", "Linux %s", release);
}

/* Soft limit of locked memory; UINT64_MAX: none. From the file and not by getrlimit(), so that a folder can stand for a
 * machine. */
static bool read_memlock(const struct doctor *d, uint64_t *ret)
{
        char path[4500], text[256];
        bool found = false;
        FILE *f;

        doctor_path(d, path, sizeof(path), "/proc/self/limits");
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

static void look_at_memlock(struct doctor *d)
{
        uint64_t locked;

        if (!read_memlock(d, &locked))
                return;
        if (locked == UINT64_MAX)
                doctor_ok(d, "memlock", "no limit of locked memory");
        else if (d->npu_ready && locked < NPU_HEAP_BYTES)
                doctor_problem(
                        d, RANK_NPU_SOFTWARE,
                        "echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/90-tandem.conf   (then "
                        "log in anew)",
                        "memlock",
                        "%s may be locked, and the NPU's driver library locks 64 MiB: a daemon of your own finds no "
                        "NPU (the system service has no limit)",
                        human_bytes(locked));
        else
                doctor_ok(d, "memlock", "%s of memory may be locked; only an NPU would need more", human_bytes(locked));
}

void doctor_look_at_limits(struct doctor *d)
{
        char path[4500];
        int fd;

        look_at_memlock(d);
        doctor_path(d, path, sizeof(path), "/dev/udmabuf");
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0) {
                close(fd);
                doctor_ok(d, "udmabuf", "opens: a GPU can share the daemon's memory");
        } else if (!d->gpu_ready) {
                doctor_ok(d, "udmabuf", "not there or not open to this user; only a GPU would need it");
        } else if (errno == ENOENT) {
                doctor_advise(d, RANK_REST, "sudo modprobe udmabuf", "udmabuf",
                              "there is no /dev/udmabuf: rows are copied to the GPU, which costs a little time");
        } else {
                doctor_advise(d, RANK_REST, "sudo usermod -aG kvm $USER   (then log in anew)", "udmabuf",
                              "/dev/udmabuf does not open (%s): rows are copied to the GPU, which costs a little time",
                              strerror(errno));
        }
}

void doctor_look_at_groups(struct doctor *d)
{
        static const char *const wanted[] = { "render", "video", "kvm" };
        char in[64] = "", out[64] = "";

        for (size_t i = 0; i < TDM_ARRAY_SIZE(wanted); i++) {
                bool listed, member = doctor_in_group(d, wanted[i], &listed);
                char *to = member ? in : out;

                snprintf(to + strlen(to), sizeof(in) - strlen(to), "%s%s", *to ? ", " : "", wanted[i]);
        }
        if (d->n_gpus + d->n_npus == 0)
                doctor_ok(d, "groups", "render, video, kvm: only a GPU or an NPU would need them");
        else
                doctor_ok(d, "groups", "%s is in %s%s%s", geteuid() == 0 && !d->root[0] ? "root" : "this user",
                          in[0] ? in : "none of the device groups", out[0] ? ", not in " : "", out);
}

/* ---- power ---- */

struct supplies {
        bool battery, mains, plugged;
        char percent[16];
};
static struct supplies supplies; /* of the run: one doctor a process */

static void add_supply(struct doctor *d, const char *path, const char *name)
{
        char file[4500], type[32], value[32];

        snprintf(file, sizeof(file), "%s/scope", path);
        doctor_read_line(file, value, sizeof(value));
        if (strcmp(value, "Device") == 0) /* of a mouse, or of a phone */
                return;
        snprintf(file, sizeof(file), "%s/type", path);
        doctor_read_line(file, type, sizeof(type));
        if (strcmp(type, "Battery") == 0) {
                supplies.battery = true;
                snprintf(file, sizeof(file), "%s/capacity", path);
                doctor_read_line(file, supplies.percent, sizeof(supplies.percent));
        } else if (strcmp(type, "Mains") == 0 || strcmp(type, "USB") == 0) {
                snprintf(file, sizeof(file), "%s/online", path);
                doctor_read_line(file, value, sizeof(value));
                supplies.mains = true;
                supplies.plugged = supplies.plugged || strcmp(value, "0") > 0;
        }
}

static void look_at_supply(struct doctor *d, const char *profile)
{
        const char *on = !supplies.battery ? "mains" : supplies.mains && !supplies.plugged ? "battery" : "mains";

        if (strcmp(profile, "low-power") == 0 || strcmp(profile, "quiet") == 0 || strcmp(profile, "cool") == 0)
                doctor_advise(d, RANK_SPEED,
                              "powerprofilesctl set balanced   (or, without that program: echo balanced "
                              "| sudo tee /sys/firmware/acpi/platform_profile)",
                              "power",
                              "the power profile is %s: the firmware holds CPU, GPU and NPU at low power, so every "
                              "token takes longer",
                              profile);
        else if (strcmp(on, "battery") == 0)
                doctor_advise(d, RANK_REST, "plug it in for full speed", "power",
                              "on battery%s%s%s%s%s: the machine may hold its clocks low, and tokens cost charge",
                              supplies.percent[0] ? " at " : "", supplies.percent, supplies.percent[0] ? " %" : "",
                              profile[0] ? ", profile " : "", profile);
        else
                doctor_ok(d, "power", "on mains%s%s", profile[0] ? ", profile " : "", profile);
}

static void look_at_sleep(struct doctor *d)
{
        char states[128], kinds[64], *kind, *end;

        doctor_read(d, "/sys/power/state", states, sizeof(states));
        doctor_read(d, "/sys/power/mem_sleep", kinds, sizeof(kinds));
        kind = strchr(kinds, '[');
        end = kind ? strchr(kind, ']') : NULL;
        if (!states[0])
                return;
        if (end)
                *end = '\0';
        if (!strstr(states, "mem"))
                doctor_ok(d, "suspend", "this machine does not suspend (/sys/power/state has no \"mem\")");
        else
                doctor_ok(d, "suspend", "%s; jobs wait meanwhile and go on afterwards", end ? kind + 1 : "mem");
}

void doctor_look_at_power(struct doctor *d)
{
        char profile[64];

        supplies = (struct supplies){ 0 };
        doctor_each(d, "/sys/class/power_supply", "", add_supply);
        doctor_read(d, "/sys/firmware/acpi/platform_profile", profile, sizeof(profile));
        if (supplies.battery || profile[0])
                look_at_supply(d, profile);
        look_at_sleep(d);
}
