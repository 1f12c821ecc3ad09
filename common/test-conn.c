/* Frames: however the bytes are cut or glued, frames and their fds come out whole and together; whatever is too much is
 * refused by its header; the non-blocking connection ends once, with the right reason, and may be destroyed anywhere. */
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

static unsigned open_fds(void)
{
        unsigned n = 0;

        for (int fd = 0; fd < 2048; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void make_pair(int fds[2])
{
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void set_nonblocking(int fd)
{
        assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

/* An fd that can be told from others: a memfd of that size. */
static int token(unsigned id)
{
        int fd = memfd_create("token", MFD_CLOEXEC);

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)id), 0);
        return fd;
}

static unsigned token_id(int fd)
{
        struct stat st;

        assert_int_equal(fstat(fd, &st), 0);
        return (unsigned)st.st_size;
}

/* Bytes with fds in one sendmsg, framed or not. */
static void send_raw(int fd, const void *data, size_t size, const int *fds, unsigned n_fds)
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

static size_t put_frame(uint8_t *to, const void *data, uint32_t size)
{
        tdm_frame_header(to, size);
        memcpy(to + 4, data, size);
        return 4 + size;
}

/* ---- reader ---- */

static struct tdm_frame_reader *reader_new(void)
{
        struct tdm_frame_reader *r;

        assert_int_equal(tdm_frame_reader_new(&r, MAX_FRAME), 0);
        return r;
}

static void expect_frame(struct tdm_frame_reader *r, int fd, const void *data, size_t size, unsigned first_token,
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

static void test_split_bytes(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        uint8_t wire[64];
        size_t n = 0;
        int fds[2];

        make_pair(fds);
        n += put_frame(wire + n, "hello", 5);
        n += put_frame(wire + n, "", 0);
        n += put_frame(wire + n, "world!", 6);
        assert_false(tdm_frame_reader_mid_frame(r));
        for (size_t i = 0; i < n; i++) {
                const uint8_t *data;
                size_t size;
                unsigned n_fds;
                int *f, k;

                send_raw(fds[0], wire + i, 1, NULL, 0);
                assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 1);
                k = tdm_frame_reader_next(r, &data, &size, &f, &n_fds);
                assert_int_equal(k, i == 8 || i == 12 || i == 22);
                assert_int_equal(tdm_frame_reader_mid_frame(r), k == 0);
                if (k && i == 22)
                        assert_memory_equal(data, "world!", 6);
        }
        close(fds[0]);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 0);
        close(fds[1]);
}

/* Many frames in one send, with fds here and there: by the reader's rule only the first may carry some. */
static void test_coalesced(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds();
        uint8_t wire[8192];
        size_t n = 0;
        int fds[2], tok[3];

        make_pair(fds);
        for (int i = 0; i < 100; i++)
                n += put_frame(wire + n, "0123456789abcdefghij", (uint32_t)i % 21);
        for (unsigned i = 0; i < 3; i++)
                tok[i] = token(10 + i);
        send_raw(fds[0], wire, n, tok, 3);
        for (unsigned i = 0; i < 100; i++)
                expect_frame(r, fds[1], "0123456789abcdefghij", i % 21, 10, i == 0 ? 3 : 0);

        /* without fds, then with: the kernel glues these two, the fds are the second's */
        send_raw(fds[0], wire, n, NULL, 0);
        put_frame(wire, "with", 4);
        send_raw(fds[0], wire, 8, tok, 2);
        send_raw(fds[0], wire, 8, NULL, 0);
        send_raw(fds[0], wire, 8, tok + 1, 1);
        expect_frame(r, fds[1], "", 0, 0, 0);
        for (unsigned i = 1; i < 100; i++)
                expect_frame(r, fds[1], "0123456789abcdefghij", i % 21, 0, 0);
        expect_frame(r, fds[1], "with", 4, 10, 2);
        expect_frame(r, fds[1], "with", 4, 0, 0);
        expect_frame(r, fds[1], "with", 4, 11, 1);
        for (unsigned i = 0; i < 3; i++)
                close(tok[i]);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EBADF); /* closes what was not taken */
        assert_int_equal(open_fds(), before);
}

/* Random frames, random cuts, random fds, read as they come: against what was sent. */
static void test_random_cuts(void **state)
{
        uint64_t rnd = 0x9e3779b97f4a7c15u;
        static uint8_t body[5000];
        unsigned before = open_fds();

        for (size_t i = 0; i < sizeof(body); i++)
                body[i] = (uint8_t)(i * 7);
        for (int round = 0; round < 40; round++) {
                _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
                size_t sizes[20];
                unsigned toks[20];
                int fds[2];

                make_pair(fds);
                for (unsigned i = 0; i < 20; i++) {
                        uint8_t wire[5004];
                        size_t n, done = 0;
                        int tok[4];

                        rnd ^= rnd << 13;
                        rnd ^= rnd >> 7;
                        rnd ^= rnd << 17;
                        sizes[i] = rnd & 1 ? rnd % 40 : rnd % sizeof(body);
                        toks[i] = rnd >> 32 & 1 ? (unsigned)(rnd >> 40 & 3) : 0;
                        n = put_frame(wire, body, (uint32_t)sizes[i]);
                        for (unsigned k = 0; k < toks[i]; k++)
                                tok[k] = token(i * 10 + k);
                        while (done < n) {
                                size_t piece = round % 2 ? n : 1 + (rnd >> (done % 50)) % 700;

                                piece = TDM_MIN(piece, n - done);
                                send_raw(fds[0], wire + done, piece, tok, done == 0 ? toks[i] : 0);
                                done += piece;
                        }
                        for (unsigned k = 0; k < toks[i]; k++)
                                close(tok[k]);
                }
                for (unsigned i = 0; i < 20; i++)
                        expect_frame(r, fds[1], body, sizes[i], i * 10, toks[i]);
                close(fds[0]);
                assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 0);
                close(fds[1]);
        }
        assert_int_equal(open_fds(), before);
}

static void test_taking_fds(void **state)
{
        struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds(), n;
        const uint8_t *data;
        size_t size;
        int fds[2], tok[3], *got, taken;

        make_pair(fds);
        for (unsigned i = 0; i < 3; i++)
                tok[i] = token(i);
        assert_int_equal(tdm_frame_send(fds[0], "x", 1, tok, 3), 0);
        assert_int_equal(tdm_frame_send(fds[0], "", 0, tok, 2), 0); /* never read */
        while (tdm_frame_reader_next(r, &data, &size, &got, &n) == 0)
                assert_true(tdm_frame_reader_fill(r, fds[1]) > 0);
        assert_int_equal(n, 3);
        taken = steal_fd(&got[1]);
        set_nonblocking(fds[1]);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EAGAIN); /* closes the two others */
        assert_int_equal(token_id(taken), 1);
        close(taken);
        tdm_frame_reader_destroy(r);
        for (unsigned i = 0; i < 3; i++)
                close(tok[i]);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(open_fds(), before);
}

static void test_refused(void **state)
{
        unsigned before = open_fds();
        int tok[253];

        for (unsigned i = 0; i < 253; i++)
                tok[i] = token(i);
        for (int what = 0; what < 6; what++) {
                struct tdm_frame_reader *r = reader_new();
                uint8_t wire[16];
                struct tdm_error e;
                int fds[2], k = 0;

                make_pair(fds);
                set_nonblocking(fds[1]);
                tdm_frame_header(wire, what == 0   ? 100u << 20
                                       : what == 1 ? UINT32_MAX
                                       : what == 2 ? MAX_FRAME + 1
                                                   : 8);
                if (what <= 2)
                        send_raw(fds[0], wire, 4, NULL, 0);
                else if (what == 3) /* fds in the middle of a frame */ {
                        send_raw(fds[0], wire, 6, NULL, 0);
                        send_raw(fds[0], wire, 2, tok, 1);
                } else if (what == 4) /* in the middle of a header */ {
                        send_raw(fds[0], wire, 2, NULL, 0);
                        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 2);
                        send_raw(fds[0], wire + 2, 2, tok, 1);
                } else /* more than the cap, though not more than the kernel's */
                        send_raw(fds[0], wire, 12, tok, 253);
                for (int i = 0; i < 10 && k >= 0; i++)
                        k = (int)tdm_frame_reader_fill(r, fds[1]);
                assert_int_equal(k, -EPROTO);
                assert_int_equal(tdm_frame_reader_explain(r, &e), TDM_E_PROTOCOL);
                if (what == 0)
                        assert_string_equal(e.message,
                                            "the peer sent a frame of 104857600 bytes; at most 70000 are allowed");
                assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EPROTO); /* for ever */
                tdm_frame_reader_destroy(r);
                close(fds[0]);
                close(fds[1]);
        }
        for (unsigned i = 0; i < 253; i++)
                close(tok[i]);
        assert_int_equal(open_fds(), before);
}

/* The kernel could not install all fds (here: no more numbers): a breach, and the ones that came are closed. */
static void test_truncated_control(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds();
        struct rlimit old, lim;
        int fds[2], tok[8];

        make_pair(fds);
        for (unsigned i = 0; i < 8; i++)
                tok[i] = token(i);
        assert_int_equal(tdm_frame_send(fds[0], "x", 1, tok, 8), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        lim = old;
        lim.rlim_cur = (rlim_t)tok[7] + 3;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EPROTO);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        for (unsigned i = 0; i < 8; i++)
                close(tok[i]);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(open_fds(), before);
}

/* A header alone must not make us allocate what it promises. */
static void test_memory_follows_bytes(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = NULL;
        struct rlimit old, lim;
        uint8_t wire[4];
        int fds[2];

        assert_int_equal(tdm_frame_reader_new(&r, UINT32_MAX), 0);
        make_pair(fds);
        tdm_frame_header(wire, 0xf0000000u);
        send_raw(fds[0], wire, 4, NULL, 0);
        send_raw(fds[0], "abc", 3, NULL, 0);
        assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
#ifndef TANDEM_SANITIZED
        lim = old;
        lim.rlim_cur = UINT64_C(1) << 30;
        assert_int_equal(setrlimit(RLIMIT_AS, &lim), 0);
#else
        (void)lim;
#endif
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 4);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 3);
        assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
        assert_true(tdm_frame_reader_mid_frame(r));
        close(fds[0]);
        close(fds[1]);
}

/* A caller that never takes its frames is stopped, not fed without end. */
static void test_reader_full(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = NULL;
        uint8_t wire[4 + 100];
        ssize_t n = 0;
        int fds[2];

        assert_int_equal(tdm_frame_reader_new(&r, 100), 0);
        make_pair(fds);
        memset(wire, 1, sizeof(wire));
        tdm_frame_header(wire, 100);
        for (int i = 0; i < 5; i++)
                send_raw(fds[0], wire, sizeof(wire), NULL, 0);
        for (int i = 0; i < 100 && n >= 0; i++)
                n = tdm_frame_reader_fill(r, fds[1]);
        assert_int_equal(n, -ENOBUFS);
        for (int i = 0; i < 5; i++) /* and goes on when it does */
                expect_frame(r, fds[1], wire + 4, 100, 0, 0);
        close(fds[0]);
        close(fds[1]);
}

static void *big_sender(void *arg)
{
        int *fds = arg;
        static uint8_t big[MAX_FRAME];
        int tok = token(77);

        for (size_t i = 0; i < sizeof(big); i++)
                big[i] = (uint8_t)(i * 13);
        for (int i = 0; i < 50; i++)
                if (tdm_frame_send(fds[0], big, sizeof(big), &tok, i % 2) != 0)
                        return arg;
        close(tok);
        return NULL;
}

/* Frames larger than the socket's buffer, sent blocking and through a non-blocking fd alike. */
static void test_blocking_big(void **state)
{
        static uint8_t big[MAX_FRAME];

        for (size_t i = 0; i < sizeof(big); i++)
                big[i] = (uint8_t)(i * 13);
        for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
                _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
                pthread_t t;
                void *bad;
                int fds[2];

                make_pair(fds);
                assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &(int){ 4096 }, sizeof(int)), 0);
                if (nonblocking)
                        set_nonblocking(fds[0]);
                assert_int_equal(pthread_create(&t, NULL, big_sender, fds), 0);
                for (unsigned i = 0; i < 50; i++)
                        expect_frame(r, fds[1], big, sizeof(big), 77, i % 2);
                pthread_join(t, &bad);
                assert_null(bad);
                close(fds[1]);
                assert_int_equal(tdm_frame_send(fds[0], "x", 1, NULL, 0), -EPIPE);
                assert_int_equal(tdm_frame_send(fds[0], "x", 1, big_sender == NULL ? NULL : fds, 241), -EINVAL);
                close(fds[0]);
        }
}

/* ---- connection ---- */

struct side {
        struct tdm_conn *conn;
        unsigned frames, closed, n_fds, bad;
        uint64_t bytes;
        struct tdm_error err;
        int result;         /* of on_frame */
        bool destroy_inside; /* on_frame destroys the connection */
        bool keep;          /* on_closed leaves it to the test */
        bool echo;
        int taken; /* an fd taken out of a frame */
};

static struct tdm_loop *loop;

static int setup(void **state)
{
        return tdm_loop_new(&loop, NULL);
}

static int teardown(void **state)
{
        tdm_loop_destroyp(&loop);
        return 0;
}

static int on_frame(struct tdm_conn *conn, const uint8_t *data, size_t size, int *fds, unsigned n_fds, void *userdata)
{
        struct side *s = userdata;

        s->frames++;
        s->bytes += size;
        s->n_fds += n_fds;
        s->bad += s->closed > 0 || conn != s->conn;
        if (n_fds > 0 && s->taken < 0)
                s->taken = steal_fd(&fds[0]);
        if (s->destroy_inside)
                tdm_conn_destroyp(&s->conn);
        /* the frame must be readable to the end of the call, whatever happened to the connection */
        for (size_t i = 0; i < size; i++)
                s->bad += data[i] == 0xee;
        if (s->echo && s->conn)
                s->bad += tdm_conn_send(s->conn, data, size, NULL, 0) != 0;
        return s->result;
}

static void on_closed(struct tdm_conn *conn, const struct tdm_error *err, void *userdata)
{
        struct side *s = userdata;

        s->closed++;
        s->err = *err;
        s->bad += conn != s->conn;
        if (!s->keep)
                tdm_conn_destroyp(&s->conn);
}

static const struct tdm_conn_limits limits = { .max_frame_bytes = MAX_FRAME,
                                               .max_queue_bytes = 1 << 20,
                                               .stall_timeout_ns = 30 * MS };

/* A connection on the loop at one end of a socket pair; the other end is returned. */
static int side_make(struct side *s, const struct tdm_conn_limits *l)
{
        int fds[2];

        *s = (struct side){ .taken = -1 };
        make_pair(fds);
        assert_int_equal(tdm_conn_new(&s->conn, loop, fds[0], l ? l : &limits, on_frame, on_closed, s), 0);
        return fds[1];
}

static void turn_until(const unsigned *counter, unsigned value)
{
        uint64_t until = tdm_now_ns() + 3000 * MS;

        while (*counter < value && tdm_now_ns() < until)
                assert_int_equal(tdm_loop_turn(loop, 100 * MS), 0);
        assert_int_equal(*counter, value);
}

static void settle(void)
{
        for (int i = 0; i < 3; i++)
                assert_int_equal(tdm_loop_turn(loop, MS), 0);
}

static void test_conn_both_ways(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds();
        struct side s;
        int peer = side_make(&s, NULL), tok = token(5);
        pid_t pid;
        uid_t uid;
        gid_t gid;

        tdm_conn_peer(s.conn, &pid, &uid, &gid);
        assert_int_equal(pid, getpid());
        assert_int_equal(uid, getuid());
        assert_int_equal(gid, getgid());
        assert_int_equal(tdm_frame_send(peer, "one", 3, NULL, 0), 0);
        assert_int_equal(tdm_frame_send(peer, "four", 4, &tok, 1), 0);
        turn_until(&s.frames, 2);
        assert_int_equal(s.bytes, 7);
        assert_int_equal(s.n_fds, 1);
        assert_int_equal(token_id(s.taken), 5);
        close(s.taken);
        assert_int_equal(tdm_conn_send(s.conn, "back", 4, &tok, 1), 0);
        assert_int_equal(tdm_conn_queued_bytes(s.conn), 0);
        expect_frame(r, peer, "back", 4, 5, 1);
        /* byte by byte through the loop as well */
        uint8_t wire[9];
        put_frame(wire, "split", 5);
        for (unsigned i = 0; i < 9; i++) {
                send_raw(peer, wire + i, 1, NULL, 0);
                assert_int_equal(tdm_loop_turn(loop, 100 * MS), 0);
        }
        assert_int_equal(s.frames, 3);
        close(peer);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, 0);
        assert_null(s.conn);
        assert_int_equal(s.bad, 0);
        close(tok);
        tdm_frame_reader_destroyp(&r);
        assert_int_equal(open_fds(), before);
}

/* A slow reader: the queue holds frames and fds in order, and drains. */
static void test_conn_queue(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds();
        static uint8_t big[50000];
        struct side s;
        int peer = side_make(&s, NULL);

        memset(big, 0x33, sizeof(big));
        for (unsigned i = 0; i < 20; i++) {
                int tok = token(100 + i);

                assert_int_equal(tdm_conn_send(s.conn, big, sizeof(big), &tok, 1), 0);
                close(tok); /* dup'd */
        }
        assert_true(tdm_conn_queued_bytes(s.conn) > 500000);
        set_nonblocking(peer);
        for (unsigned got = 0; got < 20;) {
                const uint8_t *data;
                unsigned n;
                size_t size;
                int *f;

                assert_int_equal(tdm_loop_turn(loop, 0), 0);
                while (tdm_frame_reader_fill(r, peer) > 0)
                        while (tdm_frame_reader_next(r, &data, &size, &f, &n) == 1) {
                                assert_int_equal(size, sizeof(big));
                                assert_int_equal(n, 1);
                                assert_int_equal(token_id(f[0]), 100 + got++);
                        }
        }
        assert_int_equal(tdm_conn_queued_bytes(s.conn), 0);
        assert_int_equal(s.closed, 0);
        tdm_conn_destroyp(&s.conn);
        settle();
        assert_int_equal(s.closed, 0); /* not called by destroy */
        tdm_frame_reader_destroyp(&r);
        close(peer);
        assert_int_equal(open_fds(), before);
}

static void test_conn_queue_cap(void **state)
{
        static uint8_t big[50000];
        struct side s;
        int peer = side_make(&s, NULL), r = 0;
        unsigned sent = 0;

        while (r == 0 && sent++ < 1000)
                r = tdm_conn_send(s.conn, big, sizeof(big), NULL, 0);
        assert_int_equal(r, -ENOBUFS);
        assert_true(tdm_conn_queued_bytes(s.conn) <= limits.max_queue_bytes);
        assert_int_equal(s.closed, 0); /* not from inside send */
        assert_int_equal(tdm_conn_send(s.conn, "x", 1, NULL, 0), -EPIPE);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, TDM_E_BUSY);
        assert_non_null(strstr(s.err.message, "does not read"));
        close(peer);

        peer = side_make(&s, NULL);
        assert_int_equal(tdm_conn_send(s.conn, big, (1 << 20) - 3, NULL, 0), -ENOBUFS); /* alone too large */
        turn_until(&s.closed, 1);
        close(peer);
}

static void test_conn_oversize(void **state)
{
        struct side s;
        int peer = side_make(&s, NULL);
        uint8_t header[4];

        tdm_frame_header(header, 100u << 20);
        send_raw(peer, header, 4, NULL, 0);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, TDM_E_PROTOCOL);
        assert_non_null(strstr(s.err.message, "104857600"));
        assert_int_equal(s.frames, 0);
        close(peer);
}

static void test_conn_stall(void **state)
{
        struct side s;
        int peer = side_make(&s, NULL);
        uint64_t start;

        /* silence between frames is no stall */
        assert_int_equal(tdm_frame_send(peer, "x", 1, NULL, 0), 0);
        turn_until(&s.frames, 1);
        start = tdm_now_ns();
        while (tdm_now_ns() < start + 50 * MS)
                assert_int_equal(tdm_loop_turn(loop, 10 * MS), 0);
        assert_int_equal(s.closed, 0);
        /* a slow frame is none either, as long as it moves */
        send_raw(peer, "\5\0", 2, NULL, 0);
        for (int i = 0; i < 6; i++) {
                start = tdm_now_ns();
                while (tdm_now_ns() < start + 15 * MS)
                        assert_int_equal(tdm_loop_turn(loop, 5 * MS), 0);
                send_raw(peer, "\0", 1, NULL, 0);
        }
        assert_int_equal(s.closed, 0);
        start = tdm_now_ns();
        turn_until(&s.closed, 1);
        assert_true(tdm_now_ns() - start >= 25 * MS);
        assert_int_equal(s.err.code, TDM_E_PROTOCOL);
        assert_non_null(strstr(s.err.message, "half a frame"));
        assert_int_equal(s.frames, 1);
        close(peer);
}

static void test_conn_peer_vanishes(void **state)
{
        static uint8_t big[60000];
        unsigned before = open_fds();

        for (int what = 0; what < 4; what++) {
                struct side s;
                int peer = side_make(&s, NULL), tok = token(1);

                if (what == 1) /* half a frame */
                        send_raw(peer, "\5\0\0\0ab", 6, NULL, 0);
                else if (what == 2) /* with our output queued, fds in it */ {
                        for (int i = 0; i < 10; i++)
                                assert_int_equal(tdm_conn_send(s.conn, big, sizeof(big), &tok, 1), 0);
                } else if (what == 3) /* its last words must still be heard */ {
                        for (int i = 0; i < 10; i++)
                                assert_int_equal(tdm_frame_send(peer, "bye", 3, &tok, 1), 0);
                }
                close(peer);
                turn_until(&s.closed, 1);
                assert_int_equal(s.err.code, 0);
                assert_int_equal(s.frames, what == 3 ? 10 : 0);
                settle();
                assert_int_equal(s.closed, 1);
                assert_int_equal(s.bad, 0);
                if (s.taken >= 0)
                        close(s.taken);
                close(tok);
        }
        assert_int_equal(open_fds(), before);
}

/* The peer is dead before we send: EPIPE and no SIGPIPE, on_closed later. */
static void test_conn_send_to_dead(void **state)
{
        struct side s;
        int peer = side_make(&s, NULL);

        close(peer);
        assert_int_equal(tdm_conn_send(s.conn, "x", 1, NULL, 0), -EPIPE);
        assert_int_equal(s.closed, 0);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, 0);
}

static void test_conn_destroy_inside(void **state)
{
        unsigned before = open_fds();
        static uint8_t body[30000];

        for (int what = 0; what < 4; what++) {
                struct side s;
                int peer = side_make(&s, NULL), tok = token(1);

                if (what == 0)
                        s.destroy_inside = true;
                else if (what == 1) {
                        s.destroy_inside = true;
                        s.result = -EIO;
                } else if (what == 2)
                        s.result = TDM_E_BAD_REQUEST;
                else {
                        s.result = -EIO;
                        s.keep = true;
                }
                memset(body, 0x11, sizeof(body));
                for (int i = 0; i < 3; i++)
                        assert_int_equal(tdm_frame_send(peer, body, sizeof(body), &tok, 1), 0);
                turn_until(&s.frames, 1);
                settle();
                assert_int_equal(s.frames, 1);
                assert_int_equal(s.bad, 0);
                assert_int_equal(s.closed, what >= 2);
                if (what == 2)
                        assert_int_equal(s.err.code, TDM_E_BAD_REQUEST);
                if (what == 3) {
                        assert_int_equal(s.err.code, -EIO);
                        assert_int_equal(tdm_conn_send(s.conn, "x", 1, NULL, 0), -EPIPE);
                        assert_int_equal(tdm_conn_queued_bytes(s.conn), 0);
                        tdm_conn_destroyp(&s.conn);
                }
                close(s.taken);
                close(tok);
                close(peer);
        }
        assert_int_equal(open_fds(), before);
}

static void test_conn_finish(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        static uint8_t big[60000];
        struct side s;
        int peer = side_make(&s, NULL);
        uint64_t start;

        /* nothing queued: soon, but not from inside the call */
        assert_int_equal(tdm_conn_send(s.conn, "last", 4, NULL, 0), 0);
        tdm_conn_finish(s.conn);
        assert_int_equal(s.closed, 0);
        assert_int_equal(tdm_conn_send(s.conn, "later", 5, NULL, 0), -EPIPE);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, 0);
        expect_frame(r, peer, "last", 4, 0, 0);
        assert_int_equal(tdm_frame_reader_fill(r, peer), 0);
        close(peer);

        /* queued: all of it arrives first, and what the peer says meanwhile is not heard */
        peer = side_make(&s, NULL);
        for (int i = 0; i < 12; i++)
                assert_int_equal(tdm_conn_send(s.conn, big, sizeof(big), NULL, 0), 0);
        tdm_conn_finish(s.conn);
        assert_int_equal(tdm_frame_send(peer, "me too", 6, NULL, 0), 0);
        settle();
        assert_int_equal(s.closed, 0);
        set_nonblocking(peer);
        for (unsigned got = 0; got < 12;) {
                const uint8_t *data;
                unsigned n;
                size_t size;
                int *f;

                assert_int_equal(tdm_loop_turn(loop, 0), 0);
                while (tdm_frame_reader_fill(r, peer) > 0)
                        while (tdm_frame_reader_next(r, &data, &size, &f, &n) == 1)
                                got++;
        }
        turn_until(&s.closed, 1);
        assert_int_equal(s.frames, 0);
        assert_int_equal(s.err.code, 0);
        close(peer);

        /* a peer that does not read gets a second */
        peer = side_make(&s, NULL);
        for (int i = 0; i < 12; i++)
                assert_int_equal(tdm_conn_send(s.conn, big, sizeof(big), NULL, 0), 0);
        tdm_conn_finish(s.conn);
        start = tdm_now_ns();
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, 0);
        assert_true(tdm_now_ns() - start >= 900 * MS);
        close(peer);
}

/* Many small frames from a peer that never stops: others on the loop still get their turn. */
static void test_conn_fair(void **state)
{
        struct side loud, quiet;
        int peer = side_make(&loud, NULL), other = side_make(&quiet, NULL);
        unsigned sent = 0;

        set_nonblocking(peer);
        while (send(peer, "\1\0\0\0x", 5, MSG_NOSIGNAL) == 5)
                sent++;
        assert_true(sent > 200);
        assert_int_equal(tdm_frame_send(other, "x", 1, NULL, 0), 0);
        for (int i = 0; i < 2; i++)
                assert_int_equal(tdm_loop_turn(loop, 100 * MS), 0);
        assert_int_equal(quiet.frames, 1);
        assert_true(loud.frames < sent);
        tdm_conn_destroyp(&loud.conn);
        tdm_conn_destroyp(&quiet.conn);
        close(peer);
        close(other);
}

static void test_conn_echo_storm(void **state)
{
        struct side s;
        int peer = side_make(&s, NULL), status;
        pid_t pid;

        s.echo = true;
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) { /* the blocking twin as a client */
                struct tdm_frame_reader *r;
                const uint8_t *data;
                unsigned n;
                size_t size;
                int *f;

                if (tdm_frame_reader_new(&r, MAX_FRAME) < 0)
                        _exit(1);
                for (uint32_t i = 0; i < 2000; i++) {
                        uint8_t body[300];

                        memset(body, (int)(i % 200), sizeof(body));
                        if (tdm_frame_send(peer, body, i % 300, NULL, 0) < 0)
                                _exit(2);
                        while (tdm_frame_reader_next(r, &data, &size, &f, &n) == 0)
                                if (tdm_frame_reader_fill(r, peer) <= 0)
                                        _exit(3);
                        if (size != i % 300 || memcmp(data, body, size) != 0)
                                _exit(4);
                }
                tdm_frame_reader_destroy(r);
                _exit(0);
        }
        close(peer);
        /* the child's copy of our end keeps the socket open until it leaves; then the loop hears of it */
        while (s.frames < 2000 && s.closed == 0)
                assert_int_equal(tdm_loop_turn(loop, 3000 * MS), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        turn_until(&s.closed, 1);
        assert_int_equal(s.frames, 2000);
        assert_int_equal(s.bad, 0);
}

static void test_conn_new_fails(void **state)
{
        struct tdm_conn *c = NULL;
        unsigned before = open_fds();
        int file = token(1);

        assert_true(tdm_conn_new(&c, loop, file, &limits, on_frame, on_closed, NULL) < 0); /* no socket */
        assert_null(c);
        assert_true(fcntl(file, F_GETFD) >= 0);
        close(file);
        assert_int_equal(tdm_conn_new(&c, loop, -1, &limits, on_frame, on_closed, NULL), -EBADF);
        tdm_conn_destroy(NULL);
        assert_int_equal(open_fds(), before);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_split_bytes),        cmocka_unit_test(test_coalesced),
                cmocka_unit_test(test_random_cuts),        cmocka_unit_test(test_taking_fds),
                cmocka_unit_test(test_refused),            cmocka_unit_test(test_truncated_control),
                cmocka_unit_test(test_memory_follows_bytes), cmocka_unit_test(test_reader_full),
                cmocka_unit_test(test_blocking_big),       cmocka_unit_test(test_conn_both_ways),
                cmocka_unit_test(test_conn_queue),         cmocka_unit_test(test_conn_queue_cap),
                cmocka_unit_test(test_conn_oversize),      cmocka_unit_test(test_conn_stall),
                cmocka_unit_test(test_conn_peer_vanishes), cmocka_unit_test(test_conn_send_to_dead),
                cmocka_unit_test(test_conn_destroy_inside), cmocka_unit_test(test_conn_finish),
                cmocka_unit_test(test_conn_fair),          cmocka_unit_test(test_conn_echo_storm),
                cmocka_unit_test(test_conn_new_fails),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
