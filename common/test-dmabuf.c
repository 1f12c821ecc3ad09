/* dma-bufs of segments: what is refused on every machine and, where the kernel has udmabuf, that a dma-buf is the
 * segment's memory. */
#include "common/dmabuf.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <cmocka.h>

#define NODE "/dev/udmabuf"

static bool there_is_udmabuf(void)
{
        return access(NODE, R_OK | W_OK) == 0;
}

static void names(void **state)
{
        assert_int_equal(tdm_activations_from_name("auto"), TDM_ACTIVATIONS_AUTO);
        assert_int_equal(tdm_activations_from_name("dma-buf"), TDM_ACTIVATIONS_DMABUF);
        assert_int_equal(tdm_activations_from_name("memfd"), TDM_ACTIVATIONS_MEMFD);
        assert_int_equal(tdm_activations_from_name("dmabuf"), -EINVAL);
        assert_int_equal(tdm_activations_from_name(""), -EINVAL);
        assert_string_equal(tdm_activations_name(TDM_ACTIVATIONS_DMABUF), "dma-buf");
        assert_null(tdm_activations_name((enum tdm_activations)9));
}

/* Every fd that is no dma-buf of this size is refused, and the segment works without one. */
static void no_dmabufs(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        int fds[4], pipes[2];
        struct tdm_error err;

        assert_int_equal(tdm_segment_create(&s, "activations", 8192), 0);
        assert_int_equal(s->dmabuf_fd, -1);
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        assert_int_equal(tdm_segment_dup_fds(s, true, &fds[0]), 0); /* its own memory, of the right size, but a memfd */
        fds[1] = open("/dev/zero", O_RDWR | O_CLOEXEC);
        fds[2] = pipes[0];
        fds[3] = pipes[1];
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(fds); i++) {
                assert_int_equal(tdm_dmabuf_import(s, fds[i], &err), TDM_E_PROTOCOL);
                assert_non_null(strstr(err.message, "segment activations"));
                assert_int_equal(s->dmabuf_fd, -1);
                assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC); /* still the caller's */
                close(fds[i]);
        }
        assert_int_equal(tdm_dmabuf_import(s, -1, &err), TDM_E_PROTOCOL);
        assert_true(tdm_dmabuf_to_device(s->fds[0]) < 0);
        assert_true(tdm_dmabuf_to_cpu(-1) < 0);
        assert_int_equal(tdm_segment_punch(s, 0, 4096), 0);
}

static void not_here(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        struct tdm_error err;

        if (there_is_udmabuf()) {
                print_message("udmabuf is here: what its absence does cannot be seen\n");
                skip();
        }
        assert_int_equal(tdm_segment_create(&s, "activations", 4096), 0);
        assert_true(tdm_dmabuf_create(s, &err) < 0);
        assert_non_null(strstr(err.message, NODE));
        assert_int_equal(s->dmabuf_fd, -1);
}

/* More than one chunk, so that the pieces are seen to be put together in order. */
static void same_memory(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL, *in = NULL, *other = NULL;
        uint64_t size = TDM_SEGMENT_CHUNK_BYTES + 8192;
        struct tdm_error err;
        int fds[2], fd;
        uint8_t *p;

        if (!there_is_udmabuf()) {
                print_message("no " NODE " here\n");
                skip();
        }
        assert_int_equal(tdm_segment_create(&s, "activations", size), 0);
        if (tdm_dmabuf_create(s, &err) != 0)
                fail_msg("%s", err.message);
        assert_true(s->dmabuf_fd >= 0);
        assert_int_equal(fcntl(s->dmabuf_fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(lseek(s->dmabuf_fd, 0, SEEK_END), (off_t)size);
        assert_int_equal(tdm_dmabuf_create(s, &err), -EALREADY);
        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->dmabuf_fd, 0);
        assert_true(p != MAP_FAILED);
        for (uint64_t at = 0; at < size; at += 4096 * 509 + 8) {
                s->base[at] = (uint8_t)(at / 7 + 1);
                assert_int_equal(tdm_dmabuf_to_device(s->dmabuf_fd), 0);
                assert_int_equal(p[at], (uint8_t)(at / 7 + 1));
                p[at + 1] = (uint8_t)(at / 5 + 3);
                assert_int_equal(tdm_dmabuf_to_cpu(s->dmabuf_fd), 0);
                assert_int_equal(s->base[at + 1], (uint8_t)(at / 5 + 3));
        }
        p[size - 1] = 0x5a;
        assert_int_equal(s->base[size - 1], 0x5a);
        munmap(p, size);
        assert_int_equal(tdm_segment_punch(s, 0, 4096), -EBUSY);

        /* An importer takes a dma-buf of the segment's size and refuses one of another size. */
        assert_int_equal(tdm_segment_dup_fds(s, true, fds), 0);
        assert_int_equal(tdm_segment_import(&in, "activations", fds, 2, size, TDM_SEGMENT_CHUNK_BYTES, true, &err), 0);
        fd = fcntl(s->dmabuf_fd, F_DUPFD_CLOEXEC, 3);
        assert_int_equal(tdm_segment_create(&other, "smaller", 4096), 0);
        assert_int_equal(tdm_dmabuf_import(other, fd, &err), TDM_E_PROTOCOL);
        assert_non_null(strstr(err.message, "should have 4096"));
        assert_int_equal(tdm_dmabuf_import(in, fd, &err), 0);
        assert_int_equal(in->dmabuf_fd, fd);
}

/* Larger than udmabuf's limit (64 MiB unless an admin says otherwise): an error, no crash, and the segment is as it
 * was. */
static void too_large(void **state)
{
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *s = NULL;
        struct tdm_error err;

        if (!there_is_udmabuf()) {
                print_message("no " NODE " here\n");
                skip();
        }
        assert_int_equal(tdm_segment_create(&s, "activations", UINT64_C(1) << 30), 0);
        if (tdm_dmabuf_create(s, &err) == 0)
                return; /* the limit is higher here */
        assert_non_null(strstr(err.message, "size_limit_mb"));
        assert_int_equal(s->dmabuf_fd, -1);
        assert_int_equal(tdm_segment_resident(s), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names),       cmocka_unit_test(no_dmabufs), cmocka_unit_test(not_here),
                cmocka_unit_test(same_memory), cmocka_unit_test(too_large),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
