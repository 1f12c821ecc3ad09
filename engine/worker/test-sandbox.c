/* The sandbox from inside: children enter it as a worker does, try something, and tell by their exit what happened. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/ring.h"
#include "engine/worker/sandbox.h"

static int enter(struct tdm_sandbox *s)
{
        int r = tdm_sandbox_init(s);

        if (r == 0)
                r = tdm_sandbox_files(s);
        if (r == 0)
                r = tdm_sandbox_syscalls(s);
        return r;
}

/* As a worker whose device has a driver. */
static int enter_with_driver(struct tdm_sandbox *s)
{
        int r = tdm_sandbox_init(s);

        s->makes_code = true;
        if (r == 0)
                r = tdm_sandbox_driver_files(s, TDM_WORKER_GPU, "/nowhere:relative:/etc/default");
        return r == 0 ? tdm_sandbox_syscalls(s) : r;
}

static int (*how)(struct tdm_sandbox *s) = enter;

/* Exit status of the attempt, or minus the signal that ended it. */
static int in_child(int (*attempt)(void))
{
        pid_t pid = fork();
        int status = 0;

        assert_true(pid >= 0);
        if (pid == 0) {
                struct tdm_sandbox s;

                if (how(&s) < 0)
                        _exit(200);
                _exit(attempt());
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int try_open(void)
{
        return open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_create(void)
{
        return open("/tmp/tandem-sandbox-test", O_RDWR | O_CREAT | O_CLOEXEC, 0600) >= 0 ? 0 : errno;
}

static int try_socket(void)
{
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0 ? 0 : errno;
}

static int try_unix_socket(void)
{
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0 ? 0 : errno;
}

static int try_exec(void)
{
        char *argv[] = { (char *)"true", NULL };

        execv("/bin/true", argv);
        return errno;
}

static int try_fork(void)
{
        pid_t pid = (pid_t)syscall(SYS_fork);

        if (pid == 0)
                _exit(0);
        return pid > 0 ? 0 : errno;
}

static int try_thread(void)
{
        pthread_t thread;
        int r = pthread_create(&thread, NULL, (void *(*)(void *))(uintptr_t)try_open, NULL);

        return r == 0 ? 0 : r;
}

static int try_ptrace(void)
{
        return syscall(SYS_ptrace, 16 /* PTRACE_ATTACH */, getppid(), 0, 0) == 0 ? 0 : errno;
}

static int try_kill(void)
{
        return kill(getppid(), 0) == 0 ? 0 : errno;
}

static int try_executable_memory(void)
{
        return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED ? 0 : errno;
}

static int try_make_executable(void)
{
        void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        return mprotect(p, 4096, PROT_READ | PROT_EXEC) == 0 ? 0 : errno;
}

static int try_uring(void)
{
        return syscall(SYS_io_uring_setup, 1, NULL) >= 0 ? 0 : errno;
}

static int try_undump(void)
{
        return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0 ? 0 : errno;
}

static int try_library(void)
{
        return open("/usr/lib/os-release", O_RDONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_null(void)
{
        return open("/dev/null", O_RDWR | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_other_node(void)
{
        return open("/dev/full", O_RDWR | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_change_library(void)
{
        return open("/usr/lib/os-release", O_WRONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_configured(void)
{
        return open("/etc/default", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int try_way_up(void)
{
        return open("/proc/self/root/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

/* What a worker does all day. */
static int try_work(void)
{
        struct timespec ts = { .tv_nsec = 1000 };
        void *p = malloc(8u << 20), *q;
        _Atomic uint32_t kick = 0;

        if (!p)
                return 1;
        memset(p, 1, 8u << 20);
        q = realloc(p, 32u << 20);
        free(q ? q : p);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
        tdm_ring_kick(&kick);
        if (tdm_ring_wait_any(NULL, 0, &kick, 1, 1000, 1000000) != -ETIMEDOUT)
                return 2;
        if (fprintf(stderr, "%s", "") < 0 || tdm_now_ns() == 0)
                return 3;
        return q ? 0 : 4;
}

static void attempts(void **state)
{
        assert_int_equal(in_child(try_work), 0);
        assert_int_equal(in_child(try_open), EACCES);
        assert_int_equal(in_child(try_create), EACCES);
        assert_int_equal(in_child(try_socket), -SIGSYS);
        assert_int_equal(in_child(try_unix_socket), -SIGSYS);
        assert_int_equal(in_child(try_exec), -SIGSYS);
        assert_int_equal(in_child(try_fork), -SIGSYS);
        assert_int_equal(in_child(try_thread), EPERM);
        assert_int_equal(in_child(try_ptrace), -SIGSYS);
        assert_int_equal(in_child(try_kill), EPERM);
        assert_int_equal(in_child(try_executable_memory), EPERM);
        assert_int_equal(in_child(try_make_executable), EPERM);
        assert_int_equal(in_child(try_uring), -SIGSYS);
        assert_int_equal(in_child(try_undump), EPERM);
}

/* A driver's sandbox is wider, by a list. */
static void with_driver(void **state)
{
        if (syscall(444 /* landlock_create_ruleset */, NULL, 0, 1) < 1)
                skip(); /* a kernel without it: then only seccomp is there, and describe() says so */
        how = enter_with_driver;
        assert_int_equal(in_child(try_work), 0);
        assert_int_equal(in_child(try_library), 0);
        assert_int_equal(in_child(try_configured), 0);
        assert_int_equal(in_child(try_null), 0);
        assert_int_equal(in_child(try_thread), 0);
        assert_int_equal(in_child(try_executable_memory), 0);
        assert_int_equal(in_child(try_change_library), EACCES);
        assert_int_equal(in_child(try_open), EACCES);
        assert_int_equal(in_child(try_way_up), EACCES);
        assert_int_equal(in_child(try_create), EACCES);
        assert_int_equal(in_child(try_other_node), EACCES);
        assert_int_equal(in_child(try_socket), -SIGSYS);
        assert_int_equal(in_child(try_unix_socket), -SIGSYS);
        assert_int_equal(in_child(try_exec), -SIGSYS);
        assert_int_equal(in_child(try_fork), -SIGSYS);
        assert_int_equal(in_child(try_uring), -SIGSYS);
        how = enter;
}

/* The filter binds threads that exist already. */
static int ready[2], go[2];

static void *old_thread(void *arg)
{
        char c;

        if (write(ready[1], "x", 1) != 1 || read(go[0], &c, 1) != 1)
                _exit(201);
        _exit(try_open());
        return NULL;
}

static void all_threads(void **state)
{
        pid_t pid;
        int status = 0;

        assert_int_equal(pipe(ready), 0);
        assert_int_equal(pipe(go), 0);
        pid = fork();
        if (pid == 0) {
                struct tdm_sandbox s;
                pthread_t thread;
                char c;

                if (pthread_create(&thread, NULL, old_thread, NULL) != 0 || read(ready[0], &c, 1) != 1)
                        _exit(202);
                if (enter(&s) < 0 || !s.seccomp || write(go[1], "x", 1) != 1)
                        _exit(203);
                pthread_join(thread, NULL);
                _exit(204);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EACCES);
}

static void described(void **state)
{
        struct tdm_sandbox s;
        pid_t pid = fork();
        int status = 0;

        if (pid == 0) {
                const char *text;

                if (enter(&s) < 0)
                        _exit(1);
                text = tdm_sandbox_describe(&s);
                _exit(strstr(text, "landlock") && strstr(text, ", seccomp, not dumpable") ? 0 : 2);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static void off(void **state)
{
        struct tdm_sandbox s;

        setenv("TANDEM_SANDBOX", "off", 1);
        assert_int_equal(enter(&s), 0);
        assert_string_equal(tdm_sandbox_describe(&s), "off (TANDEM_SANDBOX=off)");
        assert_int_equal(prctl(PR_GET_DUMPABLE), 1);
        unsetenv("TANDEM_SANDBOX");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(off),
#ifndef TANDEM_SANITIZED /* a sanitizer needs what the sandbox takes away, so such builds have none */
                cmocka_unit_test(attempts),    cmocka_unit_test(with_driver),
                cmocka_unit_test(all_threads), cmocka_unit_test(described),
#endif
        };

#ifdef TANDEM_SANITIZED
        (void)attempts;
        (void)with_driver;
        (void)all_threads;
        (void)described;
#endif
        return cmocka_run_group_tests(tests, NULL, NULL);
}
