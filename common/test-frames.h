/* Shared by the tests of frames and of connections: socket pairs, raw sends, fds that can be told apart. */
#ifndef TDM_COMMON_TEST_FRAMES_H
#define TDM_COMMON_TEST_FRAMES_H

#include "common/conn.h"
#include "common/frame.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#define MS TDM_NSEC_PER_MSEC
#define MAX_FRAME 70000u

static inline unsigned open_fds(void)
{
        unsigned n = 0;

        for (int fd = 0; fd < 2048; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static inline void make_pair(int fds[2])
{
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static inline void set_nonblocking(int fd)
{
        assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

/* An fd that can be told from others: a memfd of that size. */
static inline int token(unsigned id)
{
        int fd = memfd_create("token", MFD_CLOEXEC);

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)id), 0);
        return fd;
}

static inline unsigned token_id(int fd)
{
        struct stat st;

        assert_int_equal(fstat(fd, &st), 0);
        return (unsigned)st.st_size;
}

/* Bytes with fds in one sendmsg, framed or not. */
static inline void send_raw(int fd, const void *data, size_t size, const int *fds, unsigned n_fds)
{
        char control[CMSG_SPACE(253 * sizeof(int))] = { 0 };
        struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = size };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (n_fds > 0) {
                struct cmsghdr *c;

                msg.msg_control = control;
                msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        assert_int_equal(sendmsg(fd, &msg, MSG_NOSIGNAL), size);
}

static inline size_t put_frame(uint8_t *to, const void *data, uint32_t size)
{
        tdm_frame_header(to, size);
        memcpy(to + 4, data, size);
        return 4 + size;
}

static inline struct tdm_frame_reader *reader_new(void)
{
        struct tdm_frame_reader *r;

        assert_int_equal(tdm_frame_reader_new(&r, MAX_FRAME), 0);
        return r;
}

static inline void expect_frame(struct tdm_frame_reader *r, int fd, const void *data, size_t size, unsigned first_token,
                                unsigned n_tokens)
{
        const uint8_t *got;
        size_t got_size;
        unsigned n;
        int *fds, k;

        while ((k = tdm_frame_reader_next(r, &got, &got_size, &fds, &n)) == 0)
                assert_true(tdm_frame_reader_fill(r, fd) > 0);
        assert_int_equal(k, 1);
        assert_int_equal(got_size, size);
        assert_memory_equal(got, data, size);
        assert_int_equal(n, n_tokens);
        for (unsigned i = 0; i < n; i++) {
                assert_int_equal(token_id(fds[i]), first_token + i);
                assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        }
}

#endif
