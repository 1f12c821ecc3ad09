/* The emulated kernel driver in the process that uses it (way-inside.c): what threads do to each other's files. The
 * library that TANDEM_NPU=emulated loads is linked in here, so open(), ioctl() and close() below are its. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <cmocka.h>

#include "common/test-thread.h"
#include "common/util.h"
#include "tests/npu-kernel/uapi.h"

#define WAIT_NS (300 * TDM_NSEC_PER_MSEC)
#define CALL(fd, nr, arg) call(fd, _IOC(_IOC_READ | _IOC_WRITE, XDNA_IOCTL_TYPE, nr, sizeof(*(arg))), arg)

/* 0 or the errno. */
static int call(int fd, unsigned long code, void *arg)
{
        return ioctl(fd, code, arg) < 0 ? errno : 0;
}

struct waiter {
        int fd, result;
        uint32_t syncobj;
        _Atomic pid_t tid; /* just before it waits */
};

/* Of a point that nobody submits. */
static void *wait_in_vain(void *userdata)
{
        struct waiter *waiter = userdata;
        uint64_t point = 1;
        struct drm_timeline_wait w = { .handles = (uintptr_t)&waiter->syncobj,
                                       .points = (uintptr_t)&point,
                                       .timeout_ns = (int64_t)(tdm_now_ns() + WAIT_NS),
                                       .n_handles = 1,
                                       .flags = DRM_WAIT_FOR_SUBMIT };

        atomic_store(&waiter->tid, gettid());
        waiter->result = CALL(waiter->fd, DRM_NR_TIMELINE_WAIT, &w);
        return NULL;
}

static void close_overtakes_a_wait(void **state)
{
        (void)state;
        for (unsigned i = 0; i < 3; i++) {
                struct waiter waiter = { .fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC) };
                struct drm_syncobj_new created = {};
                struct drm_syncobj_new late = {};
                uint64_t begin = tdm_now_ns();
                pthread_t thread;

                assert_true(waiter.fd >= 0);
                assert_int_equal(CALL(waiter.fd, DRM_NR_SYNCOBJ_CREATE, &created), 0);
                waiter.syncobj = created.handle;
                assert_int_equal(pthread_create(&thread, NULL, wait_in_vain, &waiter), 0);
                while (!atomic_load(&waiter.tid) || !test_thread_sleeps(atomic_load(&waiter.tid)))
                        usleep(1000);
                assert_int_equal(close(waiter.fd), 0);
                assert_int_equal(CALL(waiter.fd, DRM_NR_SYNCOBJ_CREATE, &late), EBADF);
                assert_int_equal(pthread_join(thread, NULL), 0);
                assert_int_equal(waiter.result, ETIME); /* its file was there until then */
                assert_true(tdm_now_ns() - begin >= WAIT_NS);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(close_overtakes_a_wait) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
