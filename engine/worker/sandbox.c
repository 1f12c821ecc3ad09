/* The sandbox of a worker. A worker handles what other people wrote (weights of unknown origin, prompts) and runs a
 * driver next to it, so it keeps only what computing needs: memory, threads that exist, the fds it has.
 *
 * Two nets on purpose: Landlock takes the file system away whole where the device allows it, seccomp takes the system
 * calls. Opening a file answers EACCES and does not kill, because libraries try optional files (locale, /sys) and cope.
 * What this will not do: guard against the other holder of a shared segment, or against a kernel bug behind the calls
 * that are left. */
#include "engine/worker/sandbox.h"

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "common/log.h"

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#define LANDLOCK_VERSION_FLAG 1u

/* struct landlock_ruleset_attr as of ABI 6; older kernels take a prefix of it. */
struct ruleset {
        uint64_t fs;
        uint64_t net;
        uint64_t scoped;
};

#define FS_EXECUTE (UINT64_C(1) << 0)
#define FS_WRITE_FILE (UINT64_C(1) << 1)
#define FS_READ_FILE (UINT64_C(1) << 2)
#define FS_READ_DIR (UINT64_C(1) << 3)
#define FS_TRUNCATE (UINT64_C(1) << 14)
#define FS_IOCTL_DEV (UINT64_C(1) << 15)
#define FS_READ (FS_EXECUTE | FS_READ_FILE | FS_READ_DIR)
/* All that may be said of what is no folder. */
#define FS_OF_A_FILE (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)

/* A ruleset that forbids every right that this ABI knows, and no rule yet that would give one back. *ret_abi 0: a
 * kernel without it, or with it switched off: said by describe(). */
static int new_ruleset(int *ret_fd, struct ruleset *ret_rules, int *ret_abi)
{
        struct ruleset rules = { 0 };
        size_t size = sizeof(rules.fs);
        long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION_FLAG);
        int fd;

        *ret_abi = 0;
        if (abi < 1)
                return 0;
        rules.fs = (UINT64_C(1) << 13) - 1;
        if (abi >= 2)
                rules.fs |= UINT64_C(1) << 13; /* refer */
        if (abi >= 3)
                rules.fs |= UINT64_C(1) << 14; /* truncate */
        if (abi >= 5)
                rules.fs |= UINT64_C(1) << 15; /* ioctl on devices */
        if (abi >= 4) {
                rules.net = 3; /* bind, connect over TCP */
                size = offsetof(struct ruleset, scoped);
        }
        if (abi >= 6) {
                rules.scoped = 3; /* abstract Unix sockets, signals to others */
                size = sizeof(rules);
        }
        fd = (int)syscall(SYS_landlock_create_ruleset, &rules, size, 0);
        if (fd < 0)
                return -errno;
        *ret_fd = fd;
        *ret_rules = rules;
        *ret_abi = (int)abi;
        return 0;
}

static int enforce(struct tdm_sandbox *s, int fd, int abi)
{
        if (syscall(SYS_landlock_restrict_self, fd, 0) < 0)
                return -errno;
        s->landlock = abi;
        return 0;
}

int tdm_sandbox_files(struct tdm_sandbox *s)
{
        struct ruleset rules;
        _cleanup_(closep) int fd = -1;
        int abi = 0, r;

        if (s->off)
                return 0;
        r = new_ruleset(&fd, &rules, &abi);
        if (r == 0 && abi > 0)
                r = enforce(s, fd, abi);
        s->no_files = r == 0 && abi > 0;
        return r;
}

/* ---- what a driver may open ---- */

/* A loader that looks for a driver reads these: programs and libraries, descriptions of devices, its own process. Of
 * /etc what tells loaders and drivers where each other is. Where one does not exist there is nothing to allow. */
static const char *const readable[] = {
        "/usr",
        "/lib",
        "/lib64",
        "/opt",
        "/sys",
        "/proc/self",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/stat",
        "/proc/version",
        "/proc/devices",
        "/proc/modules",
        "/proc/driver",
        "/proc/sys/vm",
        "/proc/sys/kernel/osrelease",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/vulkan",
        "/etc/OpenCL",
        "/etc/glvnd",
        "/etc/drirc",
        "/etc/nvidia",
};
/* The same for what our environment tells the loaders: lists of folders or of files, separated by
 * colons. A file's folder is meant too, since descriptions name libraries beside them. */
static const char *const readable_env[] = {
        "LD_LIBRARY_PATH",   "VK_DRIVER_FILES",    "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH",
        "VK_ADD_LAYER_PATH", "LIBGL_DRIVERS_PATH", "XILINX_XRT",       "TANDEM_NPU_PROGRAMS",
};
static const char *const shared_nodes[] = { "/dev/null", "/dev/zero", "/dev/urandom" };
static const char *const nodes[TDM_N_WORKERS][4] = {
        [TDM_WORKER_NPU] = { "/dev/accel/*" },
        [TDM_WORKER_GPU] = { "/dev/dri/*", "/dev/nvidia[0-9]*", "/dev/nvidia-*", "/dev/nvidiactl" },
};

struct path_rule {
        uint64_t rights;
        int32_t fd;
} __attribute__((packed));

static void allow(int ruleset, const struct ruleset *rules, const char *path, uint64_t rights)
{
        _cleanup_(closep) int fd = open(path, O_PATH | O_CLOEXEC);
        struct path_rule rule = { .rights = rights & rules->fs, .fd = fd };
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return;
        if (!S_ISDIR(st.st_mode))
                rule.rights &= FS_OF_A_FILE;
        if (syscall(SYS_landlock_add_rule, ruleset, 1 /* beneath this path */, &rule, 0) < 0)
                tdm_log_debug("cannot allow %s: %s", path, strerror(errno));
}

static void allow_list(int ruleset, const struct ruleset *rules, const char *list)
{
        _cleanup_(freep) char *copy = list ? strdup(list) : NULL;
        char *rest = copy, *path;

        while (copy && (path = strsep(&rest, ":"))) {
                struct stat st;
                char *slash;

                if (path[0] != '/')
                        continue;
                if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
                        slash = strrchr(path, '/');
                        if (slash > path)
                                *slash = 0;
                }
                allow(ruleset, rules, path, FS_READ);
        }
}

static void allow_nodes(int ruleset, const struct ruleset *rules, const char *pattern)
{
        glob_t found;

        if (pattern && glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
                for (size_t i = 0; i < found.gl_pathc; i++)
                        allow(ruleset, rules, found.gl_pathv[i], FS_READ | FS_WRITE_FILE | FS_IOCTL_DEV);
                globfree(&found);
        }
}

/* A folder of our own for compiled shaders, so that no other program's cache has to be open to us. */
static void allow_cache(int ruleset, const struct ruleset *rules)
{
        const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        char path[4096];
        int n;

        if (cache && cache[0] == '/')
                n = snprintf(path, sizeof(path), "%s/tandem", cache);
        else if (home && home[0] == '/')
                n = snprintf(path, sizeof(path), "%s/.cache/tandem", home);
        else
                return;
        if (n >= (int)sizeof(path) || (mkdir(path, 0700) < 0 && errno != EEXIST))
                return; /* then nothing is kept */
        allow(ruleset, rules, path, rules->fs & ~(FS_EXECUTE | FS_IOCTL_DEV));
        setenv("MESA_SHADER_CACHE_DIR", path, 0);
        setenv("__GL_SHADER_DISK_CACHE_PATH", path, 0);
}

/* Beside the worker (a build tree): the folder above the one that the program lies in. */
static void allow_own_tree(int ruleset, const struct ruleset *rules)
{
        char path[4096], *slash;
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

        for (int i = 0; n > 0 && i < 2; i++) {
                path[n] = 0;
                slash = strrchr(path, '/');
                n = slash ? slash - path : 0;
                if (slash)
                        *slash = 0;
        }
        if (n > 1)
                allow(ruleset, rules, path, FS_READ);
}

int tdm_sandbox_driver_files(struct tdm_sandbox *s, enum tdm_worker_index worker, const char *more)
{
        const char *control = getenv("TANDEM_NPU_EMULATED_CONTROL"); /* how tests talk to the emulated NPU */
        struct ruleset rules;
        _cleanup_(closep) int fd = -1;
        int abi = 0, r;

        if (s->off)
                return 0;
        r = new_ruleset(&fd, &rules, &abi);
        if (r < 0 || abi == 0)
                return r;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(readable); i++)
                allow(fd, &rules, readable[i], FS_READ);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(readable_env); i++)
                allow_list(fd, &rules, getenv(readable_env[i]));
        allow_list(fd, &rules, more);
        allow_own_tree(fd, &rules);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(shared_nodes); i++)
                allow(fd, &rules, shared_nodes[i], FS_READ_FILE | FS_WRITE_FILE);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(nodes[worker]); i++)
                allow_nodes(fd, &rules, nodes[worker][i]);
        if (worker == TDM_WORKER_GPU)
                allow_cache(fd, &rules);
        if (control)
                allow(fd, &rules, control, FS_READ_FILE | FS_WRITE_FILE);
        return enforce(s, fd, abi);
}

/* Calls of a running worker: memory, the threads it has, time, the fds it holds, a line for the log, its own end. */
static const char *const allowed[] = {
        "futex",
        "futex_waitv",
        "set_robust_list",
        "get_robust_list",
        "rseq",
        "membarrier",
        "restart_syscall",
        "brk",
        "munmap",
        "mremap",
        "madvise",
        "mlock",
        "munlock",
        "read",
        "readv",
        "pread64",
        "preadv2",
        "write",
        "writev",
        "recvmsg",
        "sendmsg",
        "recvfrom",
        "sendto",
        "shutdown",
        "close",
        "fstat",
        "fstatfs",
        "lseek",
        "poll",
        "ppoll",
        "getsockopt",
        "clock_gettime",
        "clock_getres",
        "clock_nanosleep",
        "nanosleep",
        "gettimeofday",
        "time",
        "sched_yield",
        "sched_getaffinity",
        "sched_setaffinity",
        "getcpu",
        "getpid",
        "gettid",
        "getuid",
        "geteuid",
        "getgid",
        "getegid",
        "getrandom",
        "getrusage",
        "sysinfo",
        "uname",
        "rt_sigaction",
        "rt_sigprocmask",
        "rt_sigreturn",
        "sigaltstack",
        "exit",
        "exit_group",
};

/* Calls that no worker ever has a reason for: a worker that makes one has been taken over. */
static const char *const fatal[] = {
        "socket",
        "socketpair",
        "connect",
        "bind",
        "listen",
        "accept",
        "accept4",
        "execve",
        "execveat",
        "fork",
        "vfork",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "process_madvise",
        "kcmp",
        "pidfd_getfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "keyctl",
        "add_key",
        "request_key",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "unshare",
        "setns",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "reboot",
        "setuid",
        "setgid",
        "setreuid",
        "setregid",
        "setresuid",
        "setresgid",
        "capset",
};

static const char *const no_files[] = {
        "open",   "openat",    "openat2",    "creat",    "stat",       "lstat",    "statx",
        "access", "faccessat", "faccessat2", "readlink", "readlinkat", "unlink",   "unlinkat",
        "rename", "renameat",  "renameat2",  "mkdir",    "mkdirat",    "truncate", "memfd_create",
};

/* Calls that a device's driver goes on making in our process once it is open: talking to its nodes, opening them again
 * to map memory, compiling, starting threads. Without it a GPU cannot be used at all. */
static const char *const driver[] = {
        "ioctl",
        "open",
        "openat",
        "stat",
        "lstat",
        "statx",
        "access",
        "faccessat",
        "faccessat2",
        "readlink",
        "readlinkat",
        "newfstatat",
        "fstatfs",
        "statfs",
        "getdents64",
        "pread64",
        "pwrite64",
        "memfd_create",
        "ftruncate",
        "fallocate",
        "fcntl",
        "dup",
        "eventfd2",
        "pipe2",
        "mincore",
        "msync",
        "get_mempolicy",
        "sched_setscheduler",
        "sched_getscheduler",
        "sched_get_priority_max",
        "sched_get_priority_min",
        "setpriority",
        "getpriority",
        "prctl",
        "tgkill",
        "epoll_create1",
        "epoll_ctl",
        "epoll_wait",
        "epoll_pwait",
};

static int add_list(scmp_filter_ctx ctx, uint32_t action, const char *const *names, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                int nr = seccomp_syscall_resolve_name(names[i]), r;

                if (nr == __NR_SCMP_ERROR && strcmp(names[i], "futex_waitv") == 0)
                        nr = 449; /* libseccomp may be older than the call */
                if (nr == __NR_SCMP_ERROR)
                        continue; /* not of this machine */
                r = seccomp_rule_add(ctx, action, nr, 0);
                if (r < 0 && r != -EDOM && r != -EEXIST)
                        return r;
        }
        return 0;
}

/* While a device is opened its driver may do what it likes, but for what no driver has a reason to: sockets, io_uring,
 * other processes. Refused and not killed for, since a library may try (syslog, a service that is not there) and cope.
 */
static int no_way_out(void)
{
        static const char *const later[] = { "execve", "execveat", "fork", "vfork" };
        scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
        int r = ctx ? 0 : -ENOMEM;

        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(fatal); i++) {
                bool skip = false;

                for (size_t k = 0; k < TDM_ARRAY_SIZE(later); k++)
                        skip = skip || strcmp(fatal[i], later[k]) == 0;
                if (!skip)
                        r = add_list(ctx, SCMP_ACT_ERRNO(EPERM), &fatal[i], 1);
        }
        if (r == 0)
                r = seccomp_load(ctx);
        seccomp_release(ctx);
        /* A kernel without seccomp is shown in the status and no reason to end, as in tdm_sandbox_syscalls(). */
        return r == -EINVAL || r == -ENOSYS || r == -ECANCELED ? 0 : r;
}

int tdm_sandbox_init(struct tdm_sandbox *s)
{
        const char *e = getenv("TANDEM_SANDBOX");

        memset(s, 0, sizeof(*s));
#ifdef TANDEM_SANITIZED
        s->off = true;
        s->off_reason = "sanitizer build";
#endif
        if (e && strcmp(e, "off") == 0) {
                s->off = true;
                s->off_reason = "TANDEM_SANDBOX=off";
        }
        if (s->off)
                return 0;
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        s->not_dumpable = true;
        return no_way_out();
}

static int add_driver(scmp_filter_ctx ctx)
{
        int r = add_list(ctx, SCMP_ACT_ALLOW, driver, TDM_ARRAY_SIZE(driver));

        /* Threads, never processes. clone3()'s flags lie in memory: libc falls back to clone(). */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD | CLONE_VM, CLONE_THREAD | CLONE_VM));
        return r == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) : r;
}

/* Calls that are fine with some arguments only. A driver's list has some of them without conditions: those rules win.
 */
static int add_conditional(scmp_filter_ctx ctx, bool makes_code)
{
        static const int prctls[] = { PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, PR_GET_DUMPABLE };
        static const int fcntls[] = { F_GETFD, F_SETFD, F_GETFL, F_GET_SEALS, F_DUPFD_CLOEXEC };
        const uint64_t exec = makes_code ? 0 : PROT_EXEC;
        int r;

        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, exec, 0));
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, exec, 0));
        /* fstat() of newer libcs. */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(newfstatat), 1, SCMP_A3(SCMP_CMP_EQ, AT_EMPTY_PATH));
        /* abort(): signals to ourselves. */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                                     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(prctls); i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1,
                                     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)prctls[i]));
        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(fcntls); i++)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                                     SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)fcntls[i]));
        return r;
}

int tdm_sandbox_syscalls(struct tdm_sandbox *s)
{
        scmp_filter_ctx ctx;
        int r;

        if (s->off)
                return 0;
        ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
        if (!ctx)
                return -ENOMEM;
        /* TSYNC: the filter binds all threads of the process, which are all there by now. */
        r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
        if (r == 0)
                r = add_list(ctx, SCMP_ACT_ALLOW, allowed, TDM_ARRAY_SIZE(allowed));
        if (r == 0)
                r = add_list(ctx, SCMP_ACT_KILL_PROCESS, fatal, TDM_ARRAY_SIZE(fatal));
        if (r == 0 && s->makes_code)
                r = add_driver(ctx);
        if (r == 0)
                r = add_list(ctx, SCMP_ACT_ERRNO(EACCES), no_files, TDM_ARRAY_SIZE(no_files));
        if (r == 0)
                r = add_conditional(ctx, s->makes_code);
        if (r == 0) {
                r = seccomp_load(ctx);
                s->seccomp = r == 0;
                /* A kernel without seccomp is a thing to show, not to die of; any other failure is our mistake. */
                if (r == -EINVAL || r == -ENOSYS || r == -ECANCELED)
                        r = 0;
        }
        seccomp_release(ctx);
        return r;
}

const char *tdm_sandbox_describe(struct tdm_sandbox *s)
{
        char landlock[48];

        if (s->off) {
                snprintf(s->text, sizeof(s->text), "off (%s)", s->off_reason);
                return s->text;
        }
        snprintf(landlock, sizeof(landlock),
                 !s->landlock ? "no landlock" :
                 s->no_files  ? "landlock %d" :
                                "landlock %d (a driver's files)",
                 s->landlock);
        snprintf(s->text, sizeof(s->text), "%s, %s%s, %s", landlock, s->seccomp ? "seccomp" : "no seccomp",
                 s->seccomp && s->makes_code ? " (with files and ioctl, for the driver)" : "",
                 s->not_dumpable ? "not dumpable" : "dumpable");
        return s->text;
}
