/* Frames: the kernel may cut and glue the bytes anywhere, and each frame still comes out whole, with its own fds. A
 * frame that is too long is refused when its header has arrived. */
#include "common/test-frames.h"

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

/* Random frames with random fds, cut at random: what is read is compared with what was sent. */
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
                tdm_frame_header(wire, what == 0 ? 100u << 20 : what == 1 ? UINT32_MAX : what == 2 ? MAX_FRAME + 1 : 8);
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
                assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EPROTO); /* and at every later call */
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

/* A reader without fds takes many frames and a part with one read, and fds end it. */
static void test_without_fds(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        unsigned before = open_fds(), n_frames = 0;
        uint8_t wire[8192];
        const uint8_t *data;
        size_t n = 0, size;
        unsigned n_fds;
        int fds[2], tok, *f;

        make_pair(fds);
        tdm_frame_reader_without_fds(r);
        for (unsigned i = 0; i < 50; i++)
                n += put_frame(wire + n, "0123456789abcdefghij", i % 21);
        send_raw(fds[0], wire, n - 3, NULL, 0);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), n - 3);
        assert_true(tdm_frame_reader_drained(r));
        for (; tdm_frame_reader_next(r, &data, &size, &f, &n_fds) == 1; n_frames++)
                assert_int_equal(size, n_frames % 21);
        assert_int_equal(n_frames, 49);
        assert_true(tdm_frame_reader_mid_frame(r));
        send_raw(fds[0], wire + n - 3, 3, NULL, 0);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 3);
        assert_int_equal(tdm_frame_reader_next(r, &data, &size, &f, &n_fds), 1);
        assert_memory_equal(data, "0123456", 7);

        memset(wire, 'x', sizeof(wire));
        tdm_frame_header(wire, sizeof(wire) - TDM_FRAME_HEADER_BYTES);
        send_raw(fds[0], wire, sizeof(wire), NULL, 0);
        n = 0;
        do {
                ssize_t more = tdm_frame_reader_fill(r, fds[1]);

                assert_true(more > 0);
                if (n == 0)
                        assert_false(tdm_frame_reader_drained(r)); /* it makes room by what has come */
                n += (size_t)more;
        } while (n < sizeof(wire));
        assert_int_equal(tdm_frame_reader_next(r, &data, &size, &f, &n_fds), 1);
        assert_int_equal(size, sizeof(wire) - TDM_FRAME_HEADER_BYTES);

        tok = token(1);
        send_raw(fds[0], wire, 8, &tok, 1);
        close(tok);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), -EPROTO);
        assert_int_equal(open_fds(), before + 2);
        close(fds[0]);
        close(fds[1]);
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

/* Bytes that come one by one make the buffer grow by a part of its size, not with each of them. */
static void test_single_bytes(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = NULL;
        unsigned n_growths = 0;
        size_t held = 0;
        uint8_t wire[4];
        int fds[2];

        assert_int_equal(tdm_frame_reader_new(&r, 1u << 20), 0);
        make_pair(fds);
        tdm_frame_header(wire, 1u << 20);
        send_raw(fds[0], wire, 4, NULL, 0);
        assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 4);
        for (size_t i = 0; i < 20000; i++) {
                send_raw(fds[0], "x", 1, NULL, 0);
                assert_int_equal(tdm_frame_reader_fill(r, fds[1]), 1);
                n_growths += tdm_frame_reader_held(r) > held;
                held = tdm_frame_reader_held(r);
        }
        assert_true(n_growths < 20);
        assert_true(held <= 2 * 20004);
        close(fds[0]);
        close(fds[1]);
}

/* A caller that never takes its frames gets an error; the buffer does not grow without end. */
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
        for (int i = 0; i < 5; i++) /* and it goes on when the caller takes them */
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

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_split_bytes),  cmocka_unit_test(test_coalesced),
                cmocka_unit_test(test_random_cuts),  cmocka_unit_test(test_taking_fds),
                cmocka_unit_test(test_refused),      cmocka_unit_test(test_truncated_control),
                cmocka_unit_test(test_without_fds),  cmocka_unit_test(test_memory_follows_bytes),
                cmocka_unit_test(test_single_bytes), cmocka_unit_test(test_reader_full),
                cmocka_unit_test(test_blocking_big),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
