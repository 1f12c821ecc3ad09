/* The connection on the loop: it ends once, with the right reason, and may be destroyed anywhere; its peer may be slow,
 * silent, greedy or dead. */
#include "common/test-frames.h"

struct side {
        struct tdm_conn *conn;
        unsigned frames, closed, n_fds, bad;
        uint64_t bytes;
        struct tdm_error err;
        int result;          /* of on_frame */
        bool destroy_inside; /* on_frame destroys the connection */
        bool keep;           /* on_closed leaves it to the test */
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
        /* the frame must be readable to the end of the call, even after the connection was destroyed */
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
                                               .stall_timeout_ns = 20000 * MS };

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
        uint64_t until = tdm_now_ns() + 20000 * MS;

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

/* Half a frame whose bytes come slowly. Returns the longest time that may have been between two of them for the
 * connection. */
static uint64_t slow_half(struct side *s, int peer, uint64_t *ret_sent_ns)
{
        uint64_t sent_ns = tdm_now_ns(), before_ns, gap_ns = 0;

        send_raw(peer, "\5\0", 2, NULL, 0);
        for (int i = 0; i < 6 && s->closed == 0; i++) {
                before_ns = sent_ns;
                while (s->closed == 0 && tdm_now_ns() < before_ns + 50 * MS)
                        assert_int_equal(tdm_loop_turn(loop, 5 * MS), 0);
                sent_ns = tdm_now_ns();
                if (s->closed == 0)
                        send_raw(peer, "\0", 1, NULL, 0);
                assert_int_equal(tdm_loop_turn(loop, MS), 0);
                gap_ns = TDM_MAX(gap_ns, tdm_now_ns() - before_ns);
        }
        *ret_sent_ns = sent_ns;
        return gap_ns;
}

static void test_conn_stall(void **state)
{
        struct tdm_conn_limits short_ones = limits;
        struct side s;
        int peer;
        uint64_t start, sent;

        short_ones.stall_timeout_ns = 200 * MS;
        peer = side_make(&s, &short_ones);
        /* silence between frames is no stall */
        assert_int_equal(tdm_frame_send(peer, "x", 1, NULL, 0), 0);
        turn_until(&s.frames, 1);
        start = tdm_now_ns();
        while (tdm_now_ns() < start + 250 * MS)
                assert_int_equal(tdm_loop_turn(loop, 10 * MS), 0);
        assert_int_equal(s.closed, 0);
        /* a slow frame whose bytes keep coming is not too late, either; once more where this thread had no CPU */
        for (unsigned i = 0; slow_half(&s, peer, &sent) >= short_ones.stall_timeout_ns; i++) {
                assert_true(i < 20);
                tdm_conn_destroyp(&s.conn);
                close(peer);
                peer = side_make(&s, &short_ones);
                assert_int_equal(tdm_frame_send(peer, "x", 1, NULL, 0), 0);
                turn_until(&s.frames, 1);
        }
        assert_int_equal(s.closed, 0);
        turn_until(&s.closed, 1);
        assert_true(tdm_now_ns() - sent >= short_ones.stall_timeout_ns);
        assert_int_equal(s.err.code, TDM_E_PROTOCOL);
        assert_non_null(strstr(s.err.message, "half a frame"));
        assert_int_equal(s.frames, 1);
        close(peer);
}

/* A frame whose bytes drip is over after its own limit, and what it holds is told. */
static uint64_t held;
static int n_holds;

static int on_hold(uint64_t bytes, struct tdm_error *err, void *userdata)
{
        n_holds++;
        if (bytes > 100000)
                return tdm_error_set(err, TDM_E_QUOTA, "too much");
        held = bytes;
        return 0;
}

static void test_conn_drip(void **state)
{
        static uint8_t big[200000];
        struct tdm_conn_limits l = limits;
        struct side s;
        uint64_t start = tdm_now_ns();
        int peer;

        l.max_frame_bytes = 1 << 20;
        l.frame_timeout_ns = 400 * MS;
        l.hold = on_hold;
        peer = side_make(&s, &l);
        send_raw(peer, "\377\0\0\0", 4, NULL, 0);
        while (s.closed == 0 && tdm_now_ns() < start + 10000 * MS) { /* its bytes would come for 12 s */
                uint64_t next = tdm_now_ns() + 50 * MS;

                send_raw(peer, "", 1, NULL, 0);
                do
                        assert_int_equal(tdm_loop_turn(loop, 5 * MS), 0);
                while (s.closed == 0 && tdm_now_ns() < next);
                assert_true(held > 0 || s.closed);
        }
        assert_int_equal(s.closed, 1);
        assert_true(tdm_now_ns() - start >= 400 * MS);
        assert_int_equal(s.err.code, TDM_E_PROTOCOL);
        assert_int_equal(held, 0);
        close(peer);

        /* a frame that holds more than its owner allows, and is not late where this thread has no CPU */
        l.frame_timeout_ns = 0;
        peer = side_make(&s, &l);
        send_raw(peer, "\100\015\003\0", 4, NULL, 0);
        for (size_t sent = 0; s.closed == 0 && sent < sizeof(big);) {
                ssize_t n = send(peer, big, 20000, MSG_DONTWAIT | MSG_NOSIGNAL);

                sent += n > 0 ? (size_t)n : 0;
                assert_int_equal(tdm_loop_turn(loop, 5 * MS), 0);
        }
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, TDM_E_QUOTA);
        assert_int_equal(s.frames, 0);
        assert_int_equal(held, 0);
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
                } else if (what == 3) /* the frames that it sent before must still be delivered */ {
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

/* Finishes a connection with output of twelve frames, and reads them. Returns how many came. */
static unsigned finish_and_read(struct side *s, uint64_t *ret_finished_ns)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        static uint8_t big[60000];
        unsigned got = 0, n;
        int peer = side_make(s, NULL), *f;
        const uint8_t *data;
        size_t size;

        for (int i = 0; i < 12; i++)
                assert_int_equal(tdm_conn_send(s->conn, big, sizeof(big), NULL, 0), 0);
        *ret_finished_ns = tdm_now_ns();
        tdm_conn_finish(s->conn);
        assert_int_equal(tdm_frame_send(peer, "me too", 6, NULL, 0), 0);
        settle();
        assert_true(s->closed == 0 || tdm_now_ns() - *ret_finished_ns >= TDM_NSEC_PER_SEC);
        set_nonblocking(peer);
        for (bool last = false; got < 12 && !last;) {
                last = s->closed > 0; /* what it has sent until then may still lie there */
                if (!last)
                        assert_int_equal(tdm_loop_turn(loop, 0), 0);
                while (tdm_frame_reader_fill(r, peer) > 0)
                        while (tdm_frame_reader_next(r, &data, &size, &f, &n) == 1)
                                got++;
        }
        turn_until(&s->closed, 1);
        close(peer);
        return got;
}

static void test_conn_finish(void **state)
{
        _cleanup_(tdm_frame_reader_destroyp) struct tdm_frame_reader *r = reader_new();
        static uint8_t big[60000];
        struct side s;
        int peer = side_make(&s, NULL);
        uint64_t start;

        /* with nothing queued on_closed comes soon, but not from inside the call */
        assert_int_equal(tdm_conn_send(s.conn, "last", 4, NULL, 0), 0);
        tdm_conn_finish(s.conn);
        assert_int_equal(s.closed, 0);
        assert_int_equal(tdm_conn_send(s.conn, "later", 5, NULL, 0), -EPIPE);
        turn_until(&s.closed, 1);
        assert_int_equal(s.err.code, 0);
        expect_frame(r, peer, "last", 4, 0, 0);
        assert_int_equal(tdm_frame_reader_fill(r, peer), 0);
        close(peer);

        /* with output queued all of it arrives first, and frames that the peer sends meanwhile are dropped; once more
         * where this thread had no CPU: the peer has a second */
        for (unsigned i = 0, got = 0; got < 12; i++) {
                assert_true(i < 20);
                got = finish_and_read(&s, &start);
                assert_true(got == 12 || tdm_now_ns() - start >= TDM_NSEC_PER_SEC);
        }
        assert_int_equal(s.frames, 0);
        assert_int_equal(s.err.code, 0);

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

struct turns {
        struct side side; /* first: the connection's userdata */
        unsigned budget, asked, reads;
};

static bool may_read(void *userdata)
{
        struct turns *t = userdata;

        t->asked++;
        return t->budget > 0;
}

static void took(uint64_t ns, void *userdata)
{
        struct turns *t = userdata;

        t->reads++;
        t->budget -= t->budget > 0;
        t->side.bad += ns > 3000 * MS;
}

static int turns_make(struct turns *t, unsigned budget)
{
        const struct tdm_conn_limits l = { .max_frame_bytes = MAX_FRAME,
                                           .max_queue_bytes = 1 << 20,
                                           .stall_timeout_ns = 300 * MS,
                                           .frame_timeout_ns = 400 * MS,
                                           .may_read = may_read,
                                           .took = took };
        int peer = side_make(&t->side, &l);

        t->budget = budget;
        t->asked = t->reads = 0;
        return peer;
}

/* A connection whose turn has not come reads nothing, is told so once, and loses nothing. */
static void test_conn_turns(void **state)
{
        struct turns t;
        int peer = turns_make(&t, 3);
        unsigned before;

        for (unsigned i = 0; i < 20; i++)
                assert_int_equal(tdm_frame_send(peer, "abc", 3, NULL, 0), 0);
        for (int i = 0; i < 5; i++)
                settle();
        before = t.side.frames;
        assert_true(before >= 1 && before < 20);
        assert_int_equal(t.reads, 3);
        assert_int_equal(t.asked, 4);
        /* It sends meanwhile. */
        assert_int_equal(tdm_conn_send(t.side.conn, "def", 3, NULL, 0), 0);
        while (t.side.frames < 20) {
                assert_int_equal(t.side.closed, 0);
                t.budget = 2;
                tdm_conn_go_on(t.side.conn);
                settle();
        }
        assert_int_equal(t.side.bytes, 60);
        assert_int_equal(t.side.closed + t.side.bad, 0);
        tdm_conn_go_on(t.side.conn); /* of one that does not wait: nothing */
        close(peer);
        t.budget = 100;
        tdm_conn_go_on(t.side.conn);
        turn_until(&t.side.closed, 1);
        assert_int_equal(t.side.err.code, 0);
}

/* A frame of which we do not read a half for longer than the peer has for it. Returns how long it took otherwise. */
static uint64_t half_unread(struct turns *t, int peer)
{
        uint64_t begin_ns = tdm_now_ns(), unread_ns;
        unsigned n = 0;

        send_raw(peer, "\x08\0\0\0abcd", 8, NULL, 0);
        settle();
        send_raw(peer, "ef", 2, NULL, 0);
        settle();
        unread_ns = tdm_now_ns();
        while (tdm_now_ns() < unread_ns + 600 * MS) {
                assert_int_equal(tdm_loop_turn(loop, 10 * MS), 0);
                n++;
        }
        assert_true(n < 120); /* what lies there unread does not wake the loop */
        unread_ns = tdm_now_ns() - unread_ns;
        if (t->side.closed == 0) {
                t->budget = 100;
                tdm_conn_go_on(t->side.conn);
                settle();
        }
        if (t->side.closed == 0) {
                send_raw(peer, "gh", 2, NULL, 0);
                settle();
        }
        return tdm_now_ns() - begin_ns - unread_ns;
}

/* The time in which we did not read is not the peer's: half a frame is not late because of it. Once more where this
 * thread had no CPU. */
static void test_conn_turns_are_not_delay(void **state)
{
        struct turns t;
        int peer = turns_make(&t, 2);

        for (unsigned i = 0; half_unread(&t, peer) >= 300 * MS; i++) {
                assert_true(i < 20);
                tdm_conn_destroyp(&t.side.conn);
                close(peer);
                peer = turns_make(&t, 2);
        }
        assert_int_equal(t.side.closed, 0);
        turn_until(&t.side.frames, 1);
        assert_int_equal(t.side.bytes, 8);
        /* Its own is. */
        t.budget = 2;
        send_raw(peer, "\x08\0\0\0abcd", 8, NULL, 0);
        settle();
        t.budget = 100;
        tdm_conn_go_on(t.side.conn);
        turn_until(&t.side.closed, 1);
        assert_int_equal(t.side.err.code, TDM_E_PROTOCOL);
        close(peer);
}

/* What a peer said before it left is still heard when the turn comes, and until then the loop sleeps. */
static void test_conn_turns_after_the_peer_left(void **state)
{
        struct turns t;
        int peer = turns_make(&t, 1);
        unsigned n = 0;

        for (unsigned i = 0; i < 4; i++)
                assert_int_equal(tdm_frame_send(peer, "abc", 3, NULL, 0), 0);
        settle();
        close(peer);
        for (uint64_t until = tdm_now_ns() + 60 * MS; tdm_now_ns() < until; n++)
                assert_int_equal(tdm_loop_turn(loop, 20 * MS), 0);
        assert_true(n < 10);
        assert_int_equal(t.side.closed, 0);
        t.budget = 3;
        tdm_conn_go_on(t.side.conn);
        settle();
        assert_int_equal(t.side.closed, 0); /* put off again */
        t.budget = 100;
        tdm_conn_go_on(t.side.conn);
        turn_until(&t.side.closed, 1);
        assert_int_equal(t.side.frames, 4);
        assert_int_equal(t.side.err.code, 0);
        assert_int_equal(t.side.bad, 0);
}

/* It may go, or finish, while it waits. */
static void test_conn_turns_end(void **state)
{
        struct turns t;
        int peer = turns_make(&t, 0);

        assert_int_equal(tdm_frame_send(peer, "abc", 3, NULL, 0), 0);
        settle();
        tdm_conn_finish(t.side.conn);
        turn_until(&t.side.closed, 1);
        assert_int_equal(t.side.frames, 0);
        close(peer);

        peer = turns_make(&t, 0);
        assert_int_equal(tdm_frame_send(peer, "abc", 3, NULL, 0), 0);
        settle();
        t.budget = 100;
        t.side.destroy_inside = true;
        tdm_conn_go_on(t.side.conn);
        assert_null(t.side.conn);
        assert_int_equal(t.side.frames, 1);
        close(peer);
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
                cmocka_unit_test(test_conn_both_ways),
                cmocka_unit_test(test_conn_queue),
                cmocka_unit_test(test_conn_queue_cap),
                cmocka_unit_test(test_conn_oversize),
                cmocka_unit_test(test_conn_stall),
                cmocka_unit_test(test_conn_drip),
                cmocka_unit_test(test_conn_peer_vanishes),
                cmocka_unit_test(test_conn_send_to_dead),
                cmocka_unit_test(test_conn_destroy_inside),
                cmocka_unit_test(test_conn_finish),
                cmocka_unit_test(test_conn_fair),
                cmocka_unit_test(test_conn_turns),
                cmocka_unit_test(test_conn_turns_are_not_delay),
                cmocka_unit_test(test_conn_turns_after_the_peer_left),
                cmocka_unit_test(test_conn_turns_end),
                cmocka_unit_test(test_conn_echo_storm),
                cmocka_unit_test(test_conn_new_fails),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
