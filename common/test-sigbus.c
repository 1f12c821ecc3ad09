/* A mapped file cut short while it is read: the guard is hit, the reader goes on with zeros; anything
 * else still dies. */
#include "common/sigbus.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cmocka.h>

#define PAGES 64u
#define SIZE (PAGES * 4096u)

struct file {
        int fd;
        uint8_t *map;
};

static struct sigaction ours;

/* cmocka puts a SIGBUS handler of its own before every test. */
static int take_back_signal(void)
{
        return sigaction(SIGBUS, &ours, NULL);
}

static void file_make(struct file *f)
{
        char path[] = "/tmp/tandem-test-sigbus-XXXXXX";
        uint8_t page[4096];

        assert_int_equal(take_back_signal(), 0);
        f->fd = mkstemp(path);
        assert_true(f->fd >= 0);
        unlink(path);
        memset(page, 0x5c, sizeof(page));
        for (unsigned i = 0; i < PAGES; i++)
                assert_int_equal(write(f->fd, page, sizeof(page)), sizeof(page));
        f->map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, f->fd, 0);
        assert_true(f->map != MAP_FAILED);
}

static void file_free(struct file *f)
{
        munmap(f->map, SIZE);
        close(f->fd);
}

static uint64_t sum(const uint8_t *p, size_t n)
{
        uint64_t s = 0;

        for (size_t i = 0; i < n; i++)
                s += ((const volatile uint8_t *)p)[i];
        return s;
}

static void test_truncated(void **state)
{
        struct tdm_sigbus_guard g;
        struct file f;

        file_make(&f);
        assert_int_equal(tdm_sigbus_guard_begin(&g, f.map, SIZE), 0);
        assert_int_equal(sum(f.map, SIZE), (uint64_t)SIZE * 0x5c);
        assert_false(tdm_sigbus_guard_hit(&g));
        assert_int_equal(ftruncate(f.fd, 10 * 4096), 0);
        assert_int_equal(sum(f.map, 10 * 4096), 10u * 4096u * 0x5c);
        assert_false(tdm_sigbus_guard_hit(&g)); /* a read of what is left of the file is no hit */
        assert_int_equal(sum(f.map, SIZE), 10u * 4096u * 0x5c);
        assert_true(tdm_sigbus_guard_hit(&g));
        tdm_sigbus_guard_end(&g);
        assert_true(tdm_sigbus_guard_hit(&g)); /* still known */
        tdm_sigbus_guard_end(&g);              /* harmless */

        /* the next user of the slot starts clean, on another file */
        struct file h;
        file_make(&h);
        assert_int_equal(tdm_sigbus_guard_begin(&g, h.map, SIZE), 0);
        assert_int_equal(sum(h.map, SIZE), (uint64_t)SIZE * 0x5c);
        assert_false(tdm_sigbus_guard_hit(&g));
        tdm_sigbus_guard_end(&g);
        assert_false(tdm_sigbus_guard_hit(&g));
        file_free(&h);
        file_free(&f);
}

static void test_nested_and_full(void **state)
{
        struct tdm_sigbus_guard g[64], one = { 0 };
        struct file f;

        file_make(&f);
        tdm_sigbus_guard_end(&one); /* ending a zeroed guard ends no other guard */
        for (unsigned i = 0; i < 64; i++)
                assert_int_equal(tdm_sigbus_guard_begin(&g[i], f.map + i * 4096, 4096), 0);
        assert_int_equal(tdm_sigbus_guard_begin(&one, f.map, SIZE), -ENOSPC);
        tdm_sigbus_guard_end(&g[63]);
        assert_int_equal(tdm_sigbus_guard_begin(&one, f.map, SIZE), 0);
        assert_int_equal(ftruncate(f.fd, 0), 0);
        assert_int_equal(f.map[5 * 4096 + 7], 0);
        for (unsigned i = 0; i < 63; i++)
                assert_int_equal(tdm_sigbus_guard_hit(&g[i]), i == 5);
        assert_true(tdm_sigbus_guard_hit(&one));
        for (unsigned i = 0; i < 63; i++)
                tdm_sigbus_guard_end(&g[i]);
        tdm_sigbus_guard_end(&one);
        file_free(&f);
}

struct reader {
        struct file f;
        unsigned rounds;
        bool hit, wrong;
};

static void *reader_thread(void *arg)
{
        struct reader *r = arg;
        uint64_t deadline_ns = tdm_now_ns() + 60 * TDM_NSEC_PER_SEC;
        struct tdm_sigbus_guard g;

        do {
                if (tdm_sigbus_guard_begin(&g, r->f.map, SIZE) < 0)
                        return NULL;
                uint64_t s = sum(r->f.map, SIZE);
                tdm_sigbus_guard_end(&g);
                r->hit = tdm_sigbus_guard_hit(&g);
                r->wrong |= !r->hit && s != (uint64_t)SIZE * 0x5c;
        } while (!r->hit && tdm_now_ns() < deadline_ns);
        return NULL;
}

/* Several threads read, each its own map of its own file, while the files are cut. The cut is at a page boundary, so a
 * sum that is wrong without a hit is a defect. */
static void test_threads(void **state)
{
        struct reader r[4] = { 0 };
        pthread_t t[4];

        for (unsigned i = 0; i < 4; i++) {
                file_make(&r[i].f);
                assert_int_equal(pthread_create(&t[i], NULL, reader_thread, &r[i]), 0);
        }
        usleep(5000);
        for (unsigned i = 0; i < 4; i++) {
                assert_int_equal(ftruncate(r[i].f.fd, (off_t)i * 4096), 0);
                pthread_join(t[i], NULL);
                assert_true(r[i].hit);
                assert_false(r[i].wrong);
                file_free(&r[i].f);
        }
}

static int child_status(void (*fn)(struct file *))
{
        struct file f;
        int status;
        pid_t pid;

        file_make(&f);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                close(STDERR_FILENO); /* a sanitizer would print a report */
                fn(&f);
                _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        file_free(&f);
        return status;
}

static void unguarded(struct file *f)
{
        if (ftruncate(f->fd, 0) < 0)
                _exit(0);
        sum(f->map, 1);
}

static void guarded_elsewhere(struct file *f)
{
        struct tdm_sigbus_guard g;

        if (tdm_sigbus_guard_begin(&g, f->map, 4096) < 0 || ftruncate(f->fd, 0) < 0)
                _exit(0);
        sum(f->map + 4096, 1);
}

static void ended(struct file *f)
{
        struct tdm_sigbus_guard g;

        if (tdm_sigbus_guard_begin(&g, f->map, SIZE) < 0 || ftruncate(f->fd, 0) < 0)
                _exit(0);
        tdm_sigbus_guard_end(&g);
        sum(f->map, 1);
}

static void sent(struct file *f)
{
        struct tdm_sigbus_guard g;

        if (tdm_sigbus_guard_begin(&g, f->map, SIZE) < 0)
                _exit(0);
        kill(getpid(), SIGBUS);
        usleep(1000);
}

static void test_others_die(void **state)
{
        assert_int_not_equal(child_status(unguarded), 0);
        assert_int_not_equal(child_status(guarded_elsewhere), 0);
        assert_int_not_equal(child_status(ended), 0);
        assert_int_not_equal(child_status(sent), 0);
#ifndef TANDEM_SANITIZED
        assert_int_equal(WTERMSIG(child_status(unguarded)), SIGBUS);
        assert_int_equal(WTERMSIG(child_status(sent)), SIGBUS);
#endif
}

int main(void)
{
        struct tdm_sigbus_guard g;
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_truncated),
                cmocka_unit_test(test_nested_and_full),
                cmocka_unit_test(test_threads),
                cmocka_unit_test(test_others_die),
        };

        if (tdm_sigbus_guard_begin(&g, "x", 1) != -EINVAL) /* before init there is no handler */
                return 1;
        if (tdm_sigbus_init() < 0 || tdm_sigbus_init() < 0)
                return 1;
        sigaction(SIGBUS, NULL, &ours);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
