#include "common/user-socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OTHER_UID 64999u /* nobody's */

static void test_runtime_dir(void **state)
{
        char path[64];

        setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
        assert_int_equal(tdm_user_socket(path, sizeof(path), false), 0);
        assert_string_equal(path, "/run/user/7/tandem/socket");
        assert_int_equal(tdm_user_socket(path, 10, false), -ENAMETOOLONG);
        unsetenv("XDG_RUNTIME_DIR");
        if (geteuid() == 0)
                assert_int_equal(tdm_user_socket(path, sizeof(path), true), -ENOENT);
}

/* What a user without a session gets. The path is only written where it may be used. */
static int as_other_user(bool create, const char *want)
{
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                char path[64] = "";
                int r;

                if (setresuid(OTHER_UID, OTHER_UID, OTHER_UID) != 0)
                        _exit(99);
                r = tdm_user_socket(path, sizeof(path), create);
                _exit(strcmp(path, want) == 0 ? -r : 98);
        }
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void test_tmp(void **state)
{
        static const char dir[] = "/tmp/tandem-64999", path[] = "/tmp/tandem-64999/socket";
        struct stat st;

        if (geteuid() != 0)
                skip();
        unsetenv("XDG_RUNTIME_DIR");
        (void)rmdir(dir);
        assert_int_equal(as_other_user(false, path), 0); /* a client does not make it */
        assert_int_equal(stat(dir, &st), -1);
        assert_int_equal(as_other_user(true, path), 0);
        assert_int_equal(stat(dir, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_int_equal(st.st_uid, OTHER_UID);
        assert_int_equal(as_other_user(true, path), 0);
        assert_int_equal(chmod(dir, 0770), 0);
        assert_int_equal(as_other_user(false, ""), EPERM);
        assert_int_equal(chmod(dir, 0700), 0);
        assert_int_equal(chown(dir, 0, 0), 0); /* somebody was there first */
        assert_int_equal(as_other_user(true, ""), EPERM);
        assert_int_equal(rmdir(dir), 0);
        assert_int_equal(symlink("/etc", dir), 0);
        assert_int_equal(as_other_user(true, ""), EPERM);
        assert_int_equal(unlink(dir), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_runtime_dir),
                cmocka_unit_test(test_tmp),
        };

        return cmocka_run_group_tests_name("user-socket", tests, NULL, NULL);
}
