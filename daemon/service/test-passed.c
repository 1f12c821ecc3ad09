/* What is taken from a service manager: one listening socket, told apart by its name where there are several; anything
 * else is refused with a reason. Each case runs in a child, since descriptors have to lie at 3 and up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include "daemon/service/passed.h"

enum passed { LISTENING, CONNECTABLE, DATAGRAM, PLAIN_FILE };

static int make(enum passed what)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd;

        if (what == PLAIN_FILE)
                return open("/dev/null", O_RDONLY);
        fd = socket(AF_UNIX, what == DATAGRAM ? SOCK_DGRAM : SOCK_STREAM, 0);
        if (what == LISTENING && (bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) < 0 || listen(fd, 1) < 0))
                _exit(99);
        return fd;
}

static unsigned *n_stored; /* of the last call of listen_fd(): shared with its process */

/* 100 + the descriptor that was taken, 50 when it was none, or the outcome's number. */
static int listen_fd(const enum passed *what, unsigned n, const char *names, bool for_us, const char *message)
{
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                struct tdm_error err = { 0 };
                struct tdm_passed passed = { 0 };
                char text[24];
                int fd, r;

                for (unsigned i = 0; i < n; i++) {
                        fd = fcntl(make(what[i]), F_DUPFD, 200);
                        if (fd < 0 || dup2(fd, 3 + (int)i) < 0)
                                _exit(98);
                }
                snprintf(text, sizeof(text), "%d", for_us ? getpid() : getppid());
                setenv("LISTEN_PID", text, 1);
                snprintf(text, sizeof(text), "%u", n);
                setenv("LISTEN_FDS", text, 1);
                if (names)
                        setenv("LISTEN_FDNAMES", names, 1);
                r = tdm_listen_fd(&fd, &passed, &err);
                if (getenv("LISTEN_FDS") || getenv("LISTEN_PID") || getenv("LISTEN_FDNAMES"))
                        _exit(97);
                if (r != 0)
                        _exit(message && strstr(err.message, message) ? r & 0x3f : 96);
                if (fd >= 0 && (!(fcntl(fd, F_GETFD) & FD_CLOEXEC) || !(fcntl(fd, F_GETFL) & O_NONBLOCK)))
                        _exit(95);
                *n_stored = (unsigned)passed.n;
                for (size_t i = 0; i < passed.n; i++)
                        if (!(fcntl(passed.items[i].fd, F_GETFD) & FD_CLOEXEC))
                                _exit(93);
                tdm_passed_deinit(&passed);
                for (unsigned i = 0; for_us && i < n; i++)
                        if (3 + (int)i != fd && fcntl(3 + (int)i, F_GETFD) >= 0)
                                _exit(94);
                _exit(fd < 0 ? 50 : 100 + fd);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void test_one(void **state)
{
        assert_int_equal(listen_fd((enum passed[]){ LISTENING }, 1, NULL, true, NULL), 103);
        assert_int_equal(listen_fd((enum passed[]){ LISTENING }, 1, "client", true, NULL), 103);
        assert_int_equal(listen_fd((enum passed[]){ LISTENING }, 1, "tandemd.socket", true, NULL), 103);
        assert_int_equal(listen_fd((enum passed[]){ LISTENING }, 1, "client", false, NULL), 50);
        assert_int_equal(listen_fd(NULL, 0, NULL, true, NULL), 50);
}

static void test_several(void **state)
{
        const enum passed two[] = { PLAIN_FILE, LISTENING };

        assert_int_equal(listen_fd(two, 2, "stored:client", true, NULL), 104);
        assert_int_equal(listen_fd(two, 2, "stored:other", true, "none is named"), TDM_E_BAD_REQUEST & 0x3f);
        assert_int_equal(listen_fd(two, 2, NULL, true, "none is named"), TDM_E_BAD_REQUEST & 0x3f);
        assert_int_equal(listen_fd(two, 2, "client:client", true, "several"), TDM_E_BAD_REQUEST & 0x3f);
        assert_int_equal(listen_fd(two, 2, "client:stored", true, "not a listening"), TDM_E_BAD_REQUEST & 0x3f);
}

/* What an earlier daemon left, beside the socket or without it. */
static void test_stored(void **state)
{
        const enum passed three[] = { PLAIN_FILE, LISTENING, PLAIN_FILE };

        assert_int_equal(listen_fd(three, 3, "job-1:client:job-1-pipe", true, NULL), 104);
        assert_int_equal(*n_stored, 2);
        assert_int_equal(listen_fd(three, 2, "job-1:tandemd.socket", true, NULL), 104);
        assert_int_equal(*n_stored, 1);
        assert_int_equal(listen_fd(three, 1, "job-1", true, NULL), 50);
        assert_int_equal(*n_stored, 1);
        assert_int_equal(listen_fd(three, 3, "job-1:client:other", true, NULL), 104);
        assert_int_equal(*n_stored, 1);
        assert_int_equal(listen_fd(three, 2, "job-12345678901234567890123456789012345678:client", true, NULL), 104);
        assert_int_equal(*n_stored, 0);
}

static void test_wrong_kind(void **state)
{
        const enum passed wrong[] = { CONNECTABLE, DATAGRAM, PLAIN_FILE };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(wrong); i++)
                assert_int_equal(listen_fd(&wrong[i], 1, "client", true, "not a listening"), TDM_E_BAD_REQUEST & 0x3f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_one),
                cmocka_unit_test(test_several),
                cmocka_unit_test(test_stored),
                cmocka_unit_test(test_wrong_kind),
        };

        n_stored = mmap(NULL, sizeof(*n_stored), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return n_stored == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
