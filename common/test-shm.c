/* Segments: chunks are one range, sizes and seals are enforced, a reader cannot write, sealed means sealed for all. */
#include "common/shm.h"
#include "common/test-hugepage.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static unsigned open_fds(void)
{
        unsigned n = 0;

        for (int fd = 0; fd < 1024; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void test_chunks(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t size = 2 * TDM_SEGMENT_CHUNK_BYTES + 5000;
        struct stat st;

        assert_int_equal(tdm_segment_create(&s, "weights", size), 0);
        assert_int_equal(s->size_bytes, 2 * TDM_SEGMENT_CHUNK_BYTES + 8192);
        assert_int_equal(s->n_chunks, 3);
        assert_int_equal((uintptr_t)s->base % 4096, 0);
        assert_int_equal(tdm_segment_resident(s), 0);

        /* one range across the seams, and each chunk has its part */
        memset(s->base + TDM_SEGMENT_CHUNK_BYTES - 100, 0xa5, 200);
        s->base[s->size_bytes - 1] = 0x77;
        for (unsigned i = 0; i < 3; i++) {
                uint8_t b[100];

                assert_int_equal(fstat(s->fds[i], &st), 0);
                assert_int_equal(st.st_size, i < 2 ? TDM_SEGMENT_CHUNK_BYTES : 8192);
                assert_int_equal(st.st_mode & 07777, 0400);
                assert_int_equal(fcntl(s->fds[i], F_GETFD), FD_CLOEXEC);
                assert_int_equal(fcntl(s->fds[i], F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
                                 F_SEAL_SHRINK | F_SEAL_GROW);
                assert_int_equal(ftruncate(s->fds[i], 4096), -1);
                assert_int_equal(ftruncate(s->fds[i], 64 << 20), -1);
                if (i == 0) {
                        assert_int_equal(pread(s->fds[0], b, 100, (off_t)TDM_SEGMENT_CHUNK_BYTES - 100), 100);
                        assert_int_equal(b[0], 0xa5);
                } else if (i == 1) {
                        assert_int_equal(pread(s->fds[1], b, 100, 0), 100);
                        assert_int_equal(b[99], 0xa5);
                } else {
                        assert_int_equal(pread(s->fds[2], b, 1, 8191), 1);
                        assert_int_equal(b[0], 0x77);
                }
        }
        assert_int_equal(tdm_segment_resident(s), 3 * 4096);
}

static void test_sizes(void **state)
{
        struct tdm_segment *s = NULL;

        assert_int_equal(tdm_segment_create(&s, "none", 0), -EINVAL);
        assert_int_equal(tdm_segment_create(&s, "huge", TDM_SEGMENT_CHUNK_BYTES * TDM_SEGMENT_MAX_CHUNKS + 1), -EFBIG);
        assert_int_equal(tdm_segment_create(&s, "wrap", UINT64_MAX), -EFBIG);
        assert_null(s);
        assert_int_equal(tdm_segment_create(&s, "exact", TDM_SEGMENT_CHUNK_BYTES), 0);
        assert_int_equal(s->n_chunks, 1);
        tdm_segment_destroyp(&s);
        assert_int_equal(tdm_segment_create(&s, "a name that is far too long for its field", 1), 0);
        assert_int_equal(s->size_bytes, 4096);
        tdm_segment_destroyp(&s);
        tdm_segment_destroy(NULL);
}

/* Huge pages stay huge through the seal and in a process that imports them. A segment shorter than a huge page begins
 * at any page. */
static void test_huge_pages(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL, *reader = NULL;
        uint64_t size = TDM_SEGMENT_CHUNK_BYTES + 3 * TDM_HUGEPAGE_BYTES / 2, whole = size - TDM_HUGEPAGE_BYTES / 2;
        struct tdm_error err;
        int fds[2], r = 0;

        assert_int_equal(tdm_segment_create(&s, "weights", size), 0);
        assert_int_equal((uintptr_t)s->base % TDM_HUGEPAGE_BYTES, 0);
        for (uint64_t at = 0; at < whole && r == 0; at += TDM_HUGEPAGE_BYTES)
                r = tdm_hugepage_make(s->base + at, 1);
        for (uint64_t at = 0; at < size; at += 4096)
                s->base[at + 7] = (uint8_t)(at / 4096 * 11);
        if (r == 0) { /* this kernel has huge pages for such memory */
                assert_int_equal(tdm_segment_resident(s), size);
                assert_int_equal(test_huge_bytes(s), whole);
        } else
                assert_true(r == -EINVAL || r == -ENOMEM || r == -EAGAIN || r == -EBUSY);
        assert_int_equal(tdm_segment_seal(s), 0);
        assert_int_equal(tdm_segment_dup_fds(s, false, fds), 0);
        if (tdm_segment_import(&reader, "weights", fds, 2, size, TDM_SEGMENT_CHUNK_BYTES, false, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal((uintptr_t)reader->base % TDM_HUGEPAGE_BYTES, 0);
        for (uint64_t at = 0; at < size; at += 4096) {
                assert_int_equal(reader->base[at], 0);
                assert_int_equal(reader->base[at + 7], (uint8_t)(at / 4096 * 11));
                assert_int_equal(s->base[at + 7], (uint8_t)(at / 4096 * 11));
        }
        if (r == 0) {
                assert_int_equal(test_huge_bytes(s), whole);
                assert_int_equal(test_huge_bytes(reader), whole);
        }
}

static void test_punch(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t size = TDM_SEGMENT_CHUNK_BYTES + MIB, at = TDM_SEGMENT_CHUNK_BYTES - 64 * 4096, resident;

        assert_int_equal(tdm_segment_create(&s, "kv", size), 0);
        memset(s->base + at, 0x5a, 128 * 4096); /* across the seam */
        resident = tdm_segment_resident(s);
        assert_true(resident >= 128 * 4096);
        /* partial pages at both ends stay */
        assert_int_equal(tdm_segment_punch(s, at + 1, 128 * 4096 - 2), 0);
        assert_int_equal(tdm_segment_resident(s), resident - 126 * 4096);
        assert_int_equal(s->base[at + 4095], 0x5a);
        assert_int_equal(s->base[at + 4096], 0);
        assert_int_equal(s->base[TDM_SEGMENT_CHUNK_BYTES], 0);
        assert_int_equal(s->base[at + 127 * 4096 - 1], 0);
        assert_int_equal(s->base[at + 127 * 4096], 0x5a);
        assert_int_equal(tdm_segment_punch(s, at + 10, 100), 0); /* less than a page: nothing */
        assert_int_equal(s->base[at + 10], 0x5a);
        assert_int_equal(tdm_segment_punch(s, size + 1, 0), -EINVAL);
        assert_int_equal(tdm_segment_punch(s, 0, size + 1), -EINVAL);
        assert_int_equal(tdm_segment_punch(s, 4096, UINT64_MAX - 100), -EINVAL);
        assert_int_equal(tdm_segment_punch(s, 0, size), 0);
        assert_int_equal(tdm_segment_resident(s), 0);
}

static void test_seal(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t size = TDM_SEGMENT_CHUNK_BYTES + 4096;
        int rw[2], fds[2];
        void *p;

        assert_int_equal(tdm_segment_create(&s, "weights", size), 0);
        memset(s->base + TDM_SEGMENT_CHUNK_BYTES - 4, 0x31, 8);
        assert_int_equal(tdm_segment_dup_fds(s, true, rw), 0);
        assert_int_equal(tdm_segment_seal(s), 0);
        assert_false(s->writable);
        assert_int_equal(s->base[TDM_SEGMENT_CHUNK_BYTES], 0x31);
        for (unsigned i = 0; i < 2; i++) {
                int seals = fcntl(s->fds[i], F_GET_SEALS);

                assert_true(seals & F_SEAL_WRITE);
                assert_true(seals & F_SEAL_SEAL);
                /* also for a process that got a writable fd before */
                p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, rw[i], 0);
                assert_true(p == MAP_FAILED);
                assert_int_equal(pwrite(rw[i], "x", 1, 0), -1);
                close(rw[i]);
        }
        assert_int_equal(mprotect(s->base, 4096, PROT_READ | PROT_WRITE), -1);
        assert_int_equal(tdm_segment_punch(s, 0, 4096), -EPERM);
        assert_int_equal(tdm_segment_seal(s), -EPERM);
        assert_int_equal(tdm_segment_dup_fds(s, true, fds), -EPERM);
        assert_int_equal(tdm_segment_dup_fds(s, false, fds), 0);
        close(fds[0]);
        close(fds[1]);
}

/* While another process can still write, sealing fails and says so. */
static void test_seal_busy(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL, *other = NULL;
        int fd;

        assert_int_equal(tdm_segment_create(&s, "weights", 4096), 0);
        assert_int_equal(tdm_segment_dup_fds(s, true, &fd), 0);
        assert_int_equal(tdm_segment_import(&other, "weights", &fd, 1, 4096, 4096, true, NULL), 0);
        assert_int_equal(tdm_segment_seal(s), -EBUSY);
}

static void write_to(volatile uint8_t *p)
{
        *p = 1;
}

static void test_import_readonly(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        uint64_t size = TDM_SEGMENT_CHUNK_BYTES + 4096;
        unsigned before;
        struct tdm_error e;

        for (int sealed = 0; sealed < 2; sealed++) {
                struct tdm_segment *in = NULL;
                int fds[2], again[2];
                void *p;

                tdm_segment_destroyp(&s);
                assert_int_equal(tdm_segment_create(&s, "weights", size), 0);
                s->base[TDM_SEGMENT_CHUNK_BYTES + 17] = 0x42;
                if (sealed)
                        assert_int_equal(tdm_segment_seal(s), 0);
                before = open_fds();
                assert_int_equal(tdm_segment_dup_fds(s, false, fds), 0);
                assert_int_equal(fcntl(fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
                p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
                assert_true(p == MAP_FAILED);
                assert_int_equal(tdm_segment_import(&in, "weights", fds, 2, size, TDM_SEGMENT_CHUNK_BYTES, true, &e),
                                 TDM_E_PROTOCOL);
                assert_non_null(strstr(e.message, "read-only"));
                assert_null(in);
                assert_int_equal(tdm_segment_import(&in, "weights", fds, 2, size, TDM_SEGMENT_CHUNK_BYTES, false, &e),
                                 0);
                assert_int_equal(in->base[TDM_SEGMENT_CHUNK_BYTES + 17], 0x42);
                assert_int_equal(mprotect(in->base, 4096, PROT_READ | PROT_WRITE), -1);
                assert_int_equal(tdm_segment_punch(in, 0, 4096), -EPERM);
                assert_int_equal(tdm_segment_dup_fds(in, true, again), -EPERM);
                if (!sealed) { /* shared, not copied */
                        s->base[5] = 9;
                        assert_int_equal(in->base[5], 9);
                }
                tdm_segment_destroyp(&in);
                assert_int_equal(open_fds(), before); /* it owned what it took */
        }
}

/* The child is another user: it cannot reopen the file, and need not. */
static void test_import_other_uid(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        int fds[2], status;
        pid_t pid;

        if (geteuid() != 0) {
                print_message("skipped: needs root to become another user\n");
                skip();
        }
        assert_int_equal(tdm_segment_create(&s, "weights", TDM_SEGMENT_CHUNK_BYTES + 1), 0);
        s->base[3] = 0x99;
        assert_int_equal(tdm_segment_seal(s), 0);
        assert_int_equal(tdm_segment_dup_fds(s, false, fds), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct tdm_segment *in;
                char path[40];
                int again[2];

                if (setresuid(65534, 65534, 65534) < 0)
                        _exit(1);
                if (tdm_segment_import(&in, "weights", fds, 2, s->size_bytes, s->chunk_bytes, false, NULL) != 0)
                        _exit(2);
                if (in->base[3] != 0x99)
                        _exit(3);
                snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[0]);
                if (open(path, O_RDWR | O_CLOEXEC) >= 0 || fchmod(fds[0], 0600) == 0)
                        _exit(4);
                if (tdm_segment_dup_fds(in, false, again) != 0)
                        _exit(5);
                /* and the write that a compromised worker would try */
                signal(SIGSEGV, SIG_DFL);
                write_to(in->base);
                _exit(6);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status))
                assert_int_equal(WTERMSIG(status), SIGSEGV);
        close(fds[0]);
        close(fds[1]);
}

static void test_import_writable(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL, *in = NULL;
        int fds[2], status;
        pid_t pid;

        assert_int_equal(tdm_segment_create(&s, "kv", TDM_SEGMENT_CHUNK_BYTES + 4096), 0);
        assert_int_equal(tdm_segment_dup_fds(s, true, fds), 0);
        assert_int_equal(tdm_segment_import(&in, "kv", fds, 2, s->size_bytes, s->chunk_bytes, true, NULL), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                in->base[TDM_SEGMENT_CHUNK_BYTES + 1] = 0x66;
                _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(s->base[TDM_SEGMENT_CHUNK_BYTES + 1], 0x66);
}

static int sealed_memfd(off_t size, int seals)
{
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, size), 0);
        if (seals)
                assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
        return fd;
}

static void test_import_refuses(void **state)
{
        const int both = F_SEAL_SHRINK | F_SEAL_GROW;
        struct tdm_segment *s = NULL;
        struct tdm_error e;
        unsigned before;
        char path[] = "/tmp/tandem-test-shm-XXXXXX";
        int fds[2], file;

        fds[0] = sealed_memfd(8192, both);
        fds[1] = sealed_memfd(4096, both);
        before = open_fds();
        assert_int_equal(tdm_segment_import(&s, "x", fds, 2, 12288, 8192, false, &e), 0);
        tdm_segment_destroyp(&s);
        assert_int_equal(open_fds(), before - 2);
        fds[0] = sealed_memfd(8192, both);
        fds[1] = sealed_memfd(4096, both);

        /* sizes that do not add up, however they are told */
        const struct {
                unsigned n;
                uint64_t size, chunk;
        } bad[] = {
                { 2, 16384, 8192 },
                { 2, 12288, 4096 },
                { 2, 12287, 8192 },
                { 1, 12288, 8192 },
                { 0, 0, 8192 },
                { 2, 12288, 0 },
                { 2, 12288, 8191 },
                { 2, 8192, 8192 },
                { 2, 12288, 12288 },
                { 2, UINT64_MAX, 1 },
                { 2, UINT64_MAX - 4095, UINT64_C(1) << 63 },
                { 5000, 5000 * 4096, 4096 },
                { 2, UINT64_C(1) << 40, UINT64_C(1) << 39 },
        };
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++) {
                assert_int_equal(tdm_segment_import(&s, "x", fds, bad[i].n, bad[i].size, bad[i].chunk, false, &e),
                                 TDM_E_PROTOCOL);
                assert_null(s);
        }
        assert_true(fcntl(fds[0], F_GETFD) >= 0); /* a refused fd stays the caller's */
        close(fds[0]);
        close(fds[1]);

        fds[0] = sealed_memfd(4096, F_SEAL_GROW);
        assert_int_equal(tdm_segment_import(&s, "x", fds, 1, 4096, 4096, false, &e), TDM_E_PROTOCOL);
        assert_non_null(strstr(e.message, "change its size"));
        close(fds[0]);
        fds[0] = sealed_memfd(4096, F_SEAL_SHRINK);
        assert_int_equal(tdm_segment_import(&s, "x", fds, 1, 4096, 4096, false, &e), TDM_E_PROTOCOL);
        close(fds[0]);

        file = mkstemp(path);
        assert_true(file >= 0);
        assert_int_equal(ftruncate(file, 4096), 0);
        assert_int_equal(tdm_segment_import(&s, "x", &file, 1, 4096, 4096, false, &e), TDM_E_PROTOCOL);
        close(file);
        unlink(path);
        file = -1;
        assert_int_equal(tdm_segment_import(&s, "x", &file, 1, 4096, 4096, false, &e), TDM_E_PROTOCOL);
        assert_null(s);
}

/* Chunk by chunk: what is sealed can be handed out and read while the rest is still written. */
static void test_pieces(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL, *in = NULL;
        const uint64_t chunk = TDM_SEGMENT_CHUNK_BYTES, size = 2 * chunk + 4096;
        struct tdm_error e;
        int fds[4], numbers[3];

        assert_int_equal(tdm_segment_create(&s, "weights", size), 0);
        memset(s->base + chunk - 4, 0x31, 8);
        memcpy(numbers, s->fds, sizeof(numbers));
        assert_int_equal(tdm_segment_seal_until(s, 1), 0);
        assert_int_equal(s->n_sealed, 1);
        assert_memory_equal(s->fds, numbers, sizeof(numbers)); /* other threads may be using these numbers */
        assert_int_equal(mprotect(s->base, 4096, PROT_READ | PROT_WRITE), -1);
        s->base[chunk + 4] = 0x32; /* still can be written */

        assert_int_equal(tdm_segment_dup_chunks(s, 0, 1, fds), 0);
        assert_int_equal(fcntl(fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
        if (tdm_segment_import_first(&in, "weights", fds, 1, size, chunk, &e) != 0)
                fail_msg("%s", e.message);
        assert_int_equal(tdm_segment_mapped_bytes(in), chunk);
        assert_int_equal(in->base[chunk - 4], 0x31);

        s->base[size - 1] = 0x33;
        assert_int_equal(tdm_segment_seal_until(s, 100), 0); /* all there are */
        assert_int_equal(s->n_sealed, 3);
        assert_int_equal(tdm_segment_seal(s), -EPERM);
        assert_int_equal(tdm_segment_dup_chunks(s, 1, 2, fds), 0);
        fds[2] = fds[3] = fds[1];
        assert_int_equal(tdm_segment_import_more(in, fds, 3, &e), TDM_E_PROTOCOL);
        assert_int_equal(tdm_segment_import_more(in, fds + 1, 2, &e), TDM_E_PROTOCOL); /* the last one is shorter */
        assert_int_equal(tdm_segment_mapped_bytes(in), chunk);
        assert_int_equal(tdm_segment_import_more(in, fds, 1, &e), 0);
        assert_int_equal(tdm_segment_import_more(in, fds + 1, 1, &e), 0);
        assert_int_equal(tdm_segment_mapped_bytes(in), size);
        assert_int_equal(in->base[chunk], 0x31);
        assert_int_equal(in->base[chunk + 4], 0x32);
        assert_int_equal(in->base[size - 1], 0x33);
        assert_int_equal(tdm_segment_import_more(in, fds, 1, &e), TDM_E_PROTOCOL);
        assert_int_equal(tdm_segment_seal_until(in, 1), -EPERM); /* an importer must not seal */
}

/* No part of a segment reaches a core dump. The kernel shows that as "dd" in smaps. */
static void test_not_dumped(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;

        assert_int_equal(tdm_segment_create(&s, "kv", 4096), 0);
        for (int sealed = 0; sealed < 2; sealed++) {
                _cleanup_(fclosep) FILE *f = fopen("/proc/self/smaps", "re");
                char line[512], range[40];
                bool here = false, seen = false;

                assert_non_null(f);
                snprintf(range, sizeof(range), "%lx-", (unsigned long)s->base);
                while (fgets(line, sizeof(line), f)) {
                        if (strncmp(line, range, strlen(range)) == 0)
                                here = true;
                        else if (here && strncmp(line, "VmFlags:", 8) == 0) {
                                assert_non_null(strstr(line, " dd"));
                                seen = true;
                                break;
                        }
                }
                assert_true(seen);
                if (!sealed)
                        assert_int_equal(tdm_segment_seal(s), 0);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_chunks),
                cmocka_unit_test(test_sizes),
                cmocka_unit_test(test_huge_pages),
                cmocka_unit_test(test_punch),
                cmocka_unit_test(test_seal),
                cmocka_unit_test(test_seal_busy),
                cmocka_unit_test(test_import_readonly),
                cmocka_unit_test(test_import_other_uid),
                cmocka_unit_test(test_import_writable),
                cmocka_unit_test(test_import_refuses),
                cmocka_unit_test(test_pieces),
                cmocka_unit_test(test_not_dumped),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
