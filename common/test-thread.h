/* For cmocka tests that wait until another thread waits. */
#ifndef TDM_COMMON_TEST_THREAD_H
#define TDM_COMMON_TEST_THREAD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <cmocka.h>

/* Whether a thread of this process sleeps in the kernel, and is not merely without a CPU. */
static bool test_thread_sleeps(pid_t tid)
{
        char path[64], line[256] = "";
        const char *state;
        FILE *f;

        snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
        f = fopen(path, "re");
        assert_non_null(f);
        assert_non_null(fgets(line, sizeof(line), f));
        fclose(f);
        state = strrchr(line, ')');
        assert_non_null(state);
        return state[2] == 'S';
}

#endif
