/* The sandbox of a worker. A worker handles what other people wrote (weights of unknown origin, prompts) and runs a
 * driver next to it, so it keeps only what computing needs: memory, threads that exist, the fds it has.
 *
 * Two nets on purpose: Landlock takes the file system away whole where the device allows it, seccomp takes the system
 * calls. Opening a file answers EACCES and does not kill, because libraries try optional files (locale, /sys) and cope.
 * What this will not do: guard against the other holder of a shared segment, or against a kernel bug behind the calls
 * that are left. */
#include "engine/worker/sandbox.h"

#include <sched.h>
#include <fcntl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
#define LANDLOCK_VERSION_FLAG 1u

/* struct landlock_ruleset_attr as of ABI 6; older kernels take a prefix of it. */
struct ruleset {
        uint64_t fs;
        uint64_t net;
        uint64_t scoped;
};

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
        return 0;
}

int tdm_sandbox_files(struct tdm_sandbox *s)
{
        struct ruleset rules = { 0 };
        size_t size = sizeof(rules.fs);
        _cleanup_(closep) int fd = -1;
        long abi;

        if (s->off)
                return 0;
        abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION_FLAG);
        if (abi < 1)
                return 0; /* a kernel without it, or with it switched off: said by describe() */

        /* Every right that this ABI knows, and no rule that would give one back. */
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
        if (syscall(SYS_landlock_restrict_self, fd, 0) < 0)
                return -errno;
        s->landlock = (int)abi;
        return 0;
}

/* What a running worker calls: memory, the threads it has, time, the fds it holds, a line for the log, its own end. */
static const char *const allowed[] = {
        "futex", "futex_waitv", "set_robust_list", "get_robust_list", "rseq", "membarrier", "restart_syscall",
        "brk", "munmap", "mremap", "madvise", "mlock", "munlock",
        "read", "readv", "preadv2", "write", "writev", "recvmsg", "sendmsg", "recvfrom", "sendto", "shutdown",
        "close", "fstat", "lseek", "poll", "ppoll", "getsockopt",
        "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
        "sched_yield", "sched_getaffinity", "sched_setaffinity", "getcpu", "getpid", "gettid", "getuid", "geteuid", "getgid", "getegid",
        "getrandom", "getrusage", "sysinfo", "uname",
        "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
        "exit", "exit_group",
};

/* What no worker ever has a reason to try: somebody else is at the wheel. */
static const char *const fatal[] = {
        "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4",
        "execve", "execveat", "fork", "vfork",
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
        "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key",
        "mount", "umount2", "pivot_root", "chroot", "unshare", "setns",
        "init_module", "finit_module", "delete_module", "kexec_load", "reboot",
        "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "capset",
};

static const char *const no_files[] = {
        "open", "openat", "openat2", "creat", "stat", "lstat", "statx", "access", "faccessat", "faccessat2", "readlink",
        "readlinkat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "truncate",
        "memfd_create",
};

/* What a device's driver goes on doing in our process once it is open: talking to its nodes, opening them again to map
 * memory, compiling, starting threads. Without it a GPU cannot be used at all. */
static const char *const driver[] = {
        "ioctl", "open", "openat", "stat", "lstat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
        "newfstatat", "fstatfs", "statfs", "getdents64", "pread64", "pwrite64", "memfd_create", "ftruncate", "fallocate", "fcntl",
        "dup", "eventfd2", "pipe2", "mincore", "msync", "get_mempolicy", "sched_setscheduler", "sched_getscheduler",
        "sched_get_priority_max", "sched_get_priority_min", "setpriority", "getpriority", "prctl", "tgkill", "epoll_create1",
        "epoll_ctl", "epoll_wait", "epoll_pwait",
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

static int add_driver(scmp_filter_ctx ctx)
{
        int r = add_list(ctx, SCMP_ACT_ALLOW, driver, TDM_ARRAY_SIZE(driver));

        /* Threads, never processes. clone3()'s flags lie in memory: libc falls back to clone(). */
        if (r == 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD | CLONE_VM, CLONE_THREAD | CLONE_VM));
        return r == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) : r;
}

/* Calls that are fine with some arguments only. A driver's list has some of them without conditions: those rules win. */
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
        char landlock[24];

        if (s->off) {
                snprintf(s->text, sizeof(s->text), "off (%s)", s->off_reason);
                return s->text;
        }
        snprintf(landlock, sizeof(landlock), s->landlock ? "landlock %d" : "no landlock", s->landlock);
        snprintf(s->text, sizeof(s->text), "%s, %s%s, %s", landlock, s->seccomp ? "seccomp" : "no seccomp",
                 s->seccomp && s->makes_code ? " (with files and ioctl, for the driver)" : "",
                 s->not_dumpable ? "not dumpable" : "dumpable");
        return s->text;
}
