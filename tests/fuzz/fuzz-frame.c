/* The frame reader under arbitrary bytes, cut and sprinkled with fds arbitrarily, against a parser that sees the whole
 * stream at once.
 *
 * An input is a sequence of sends: one byte of low 7 bits n-1 and high bit "with an fd", then n bytes. It is read
 * twice: by a reader that receives the fds, and by a guarded one, for which somebody else does.
 *
 * That takes time, nearly all of it in the kernel, where the pieces are sent and received. To time the reader alone,
 * both read the same once more from memory: recvmsg() and close() are wrapped. How often recvmsg() is called is bounded
 * as well. */
#include "common/conn.h"

#include <fcntl.h>
#include <sys/socket.h>
#include "tests/fuzz/fuzz-time.h"

/* Frames that are longer are refused: short inputs reach that too. A frame of a long input may fill the stream. */
#define SHORT_FRAME_BYTES 300u
#define LONG_INPUT_BYTES 4096u

#define CHECK(condition)                                                                                               \
        do {                                                                                                           \
                if (!(condition)) {                                                                                    \
                        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
                        abort();                                                                                       \
                }                                                                                                      \
        } while (0)

#define GLUED_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size);

ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
int __real_close(int fd);
int __wrap_close(int fd);

static struct model {
        uint8_t bytes[1 << 16];                    /* all that was sent */
        bool fd_begins[1 << 16], fd_ends[1 << 16]; /* of each byte: it is the first, the last of a send with an fd */
        size_t n, received;                        /* received: of what is read from memory */
        size_t at;                                 /* where the next frame should begin */
        uint32_t max_frame_bytes;
        unsigned n_sends, n_frames, n_calls;
        unsigned fds_sent, fds_seen;
        bool in_memory;
} m;

/* The fd of all messages in memory: nothing that is open. */
#define MEMORY_FD (1 << 30)

/* As the kernel does: what came before a send with an fd is glued to it, what came after it is not. */
static ssize_t receive_from_memory(struct msghdr *msg, int flags)
{
        struct iovec *iov = &msg->msg_iov[0];
        size_t n = 0, most = TDM_MIN(iov->iov_len, m.n - m.received);
        struct cmsghdr *c = msg->msg_controllen >= CMSG_LEN(sizeof(int)) ? msg->msg_control : NULL;
        int fd = MEMORY_FD;
        bool with = false;

        if (most == 0) {
                errno = EAGAIN;
                return -1;
        }
        do
                with |= m.fd_begins[m.received + n++];
        while (n < most && !(with && m.fd_ends[m.received + n - 1]));
        memcpy(iov->iov_base, m.bytes + m.received, n);
        msg->msg_flags = with && !c ? MSG_CTRUNC : 0;
        msg->msg_controllen = with && c ? CMSG_SPACE(sizeof(int)) : 0;
        if (with && c) {
                *c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                       .cmsg_type = SCM_RIGHTS,
                                       .cmsg_len = CMSG_LEN(sizeof(int)) };
                memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        }
        if (!(flags & MSG_PEEK))
                m.received += n;
        return (ssize_t)n;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
        m.n_calls++;
        return m.in_memory ? receive_from_memory(msg, flags) : __real_recvmsg(fd, msg, flags);
}

int __wrap_close(int fd)
{
        return fd == MEMORY_FD ? 0 : __real_close(fd);
}

static void send_piece(int fd, const uint8_t *data, size_t size, int with)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = size };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (with >= 0) {
                struct cmsghdr *c;

                memset(&control, 0, sizeof(control));
                msg.msg_control = control.bytes;
                msg.msg_controllen = sizeof(control.bytes);
                c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(c), &with, sizeof(int));
        }
        CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)size);
}

/* How long the frame says it is whose header lies at this byte. */
static uint32_t told_at(size_t at)
{
        const uint8_t *p = m.bytes + at;

        return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void check_frames(struct tdm_frame_reader *r)
{
        const uint8_t *data;
        unsigned n_fds;
        size_t size;
        int *fds;

        while (tdm_frame_reader_next(r, &data, &size, &fds, &n_fds) == 1) {
                uint32_t told;

                CHECK(m.n - m.at >= 4);
                told = told_at(m.at);
                CHECK(told <= m.max_frame_bytes && size == told);
                CHECK(m.n - m.at - 4 >= size);
                CHECK(memcmp(data, m.bytes + m.at + 4, size) == 0);
                m.at += 4 + size;
                m.n_frames++;
                m.fds_seen += n_fds;
                for (unsigned i = 0; i < n_fds; i++)
                        CHECK(m.in_memory ? fds[i] == MEMORY_FD : fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
                if (n_fds > 0 && size % 2)
                        closep(&fds[0]); /* taken */
        }
}

/* As a gate does: the byte that fds ride on, and the fds. */
static int receive_first(struct tdm_frame_reader *r, int fd)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(16 * sizeof(int))];
        } control;
        uint8_t first;
        struct iovec iov = { .iov_base = &first, .iov_len = 1 };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        struct cmsghdr *c;
        int got = -1, k;

        CHECK(recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) == 1);
        c = CMSG_FIRSTHDR(&msg);
        CHECK(!c || c->cmsg_len == CMSG_LEN(sizeof(int)));
        if (c)
                memcpy(&got, CMSG_DATA(c), sizeof(got));
        k = tdm_frame_reader_push(r, first, &got, got >= 0);
        if (k < 0)
                closep(&got);
        return k;
}

/* true when the reader has refused the stream. */
static bool drain(struct tdm_frame_reader *r, int fd)
{
        for (;;) {
                ssize_t n = tdm_frame_reader_fill(r, fd);

                if (n == -EAGAIN || n == 0)
                        return false;
                if (n == -EREMOTEIO)
                        n = receive_first(r, fd) < 0 ? -EPROTO : 1;
                if (n == -EPROTO) {
                        check_frames(r); /* what was complete before is still whole */
                        return true;
                }
                CHECK(n > 0);
                check_frames(r);
        }
}

/* The same socket and file for all inputs: to make them takes longer than to read most inputs. */
static struct {
        int file, fds[2];
} fixture = { .file = -1 };

/* The number that the next fd gets. */
static int next_number(void)
{
        int fd = fcntl(fixture.file, F_DUPFD_CLOEXEC, 0);

        CHECK(fd >= 0);
        close(fd);
        return fd;
}

static void set_up(void)
{
        if (fixture.file >= 0)
                return;
        fixture.file = open("/dev/null", O_RDONLY | O_CLOEXEC);
        CHECK(fixture.file >= 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fixture.fds) == 0);
}

/* What a reader that refused its stream has left. The kernel drops the fds. */
static void empty_socket(void)
{
        static uint8_t rest[1 << 16];

        while (recv(fixture.fds[1], rest, sizeof(rest), MSG_DONTWAIT) > 0) {
        }
        CHECK(errno == EAGAIN);
}

static void run(const uint8_t *input, size_t input_size, bool guarded, bool in_memory)
{
        struct tdm_frame_reader *r;
        bool refused = false;
        unsigned n_glued = 0;
        size_t at = 0;
        int lowest;

        set_up();
        lowest = next_number();
        m.n = m.received = m.at = 0;
        m.n_sends = m.n_frames = m.n_calls = m.fds_sent = m.fds_seen = 0;
        m.in_memory = in_memory;
        m.max_frame_bytes = input_size > LONG_INPUT_BYTES ? sizeof(m.bytes) : SHORT_FRAME_BYTES;
        CHECK(tdm_frame_reader_new(&r, m.max_frame_bytes) == 0);
        if (guarded)
                tdm_frame_reader_guard(r);
        while (!refused && at + 1 < input_size && m.n + 128 <= sizeof(m.bytes)) {
                size_t n = TDM_MIN((size_t)(input[at] & 0x7f) + 1, input_size - at - 1);
                bool with = input[at] & 0x80;

                memcpy(m.bytes + m.n, input + at + 1, n);
                memset(m.fd_begins + m.n, 0, n);
                memset(m.fd_ends + m.n, 0, n);
                m.fd_begins[m.n] = with;
                m.n += n;
                m.fd_ends[m.n - 1] = with;
                if (!in_memory)
                        send_piece(fixture.fds[0], input + at + 1, n, with ? fixture.file : -1);
                m.n_sends++;
                m.fds_sent += with;
                /* Some sends are glued to the next one, as many as the socket has room for. */
                if (n % 3 != 0 || ++n_glued == GLUED_MAX) {
                        refused = drain(r, fixture.fds[1]);
                        n_glued = 0;
                }
                at += 1 + n;
        }
        if (!refused)
                refused = drain(r, fixture.fds[1]);
        if (!refused) {
                /* Every frame that the stream holds came out, and no fd went astray except with half a frame. */
                CHECK(m.n - m.at < 4 || m.n - m.at - 4 < told_at(m.at));
                CHECK(tdm_frame_reader_mid_frame(r) == (m.n > m.at));
                CHECK(m.fds_seen <= m.fds_sent && m.fds_sent - m.fds_seen <= (m.n > m.at ? m.fds_sent : 0));
        } else if (!in_memory)
                empty_socket();
        /* Of a frame: a look at its first byte, that byte alone, the rest of its header, its own rest. Of a send: what
         * it brings of a frame at hand, and that nothing is left, each with a look before. */
        CHECK(m.n_calls <= 4 * (m.n_frames + 1) + 4 * (m.n_sends + 1));
        tdm_frame_reader_destroy(r);
        CHECK(next_number() == lowest); /* nothing leaked */
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t input_size)
{
        uint64_t start_ns;

        run(input, input_size, false, false);
        run(input, input_size, true, false);
        do {
                start_ns = fuzz_now_ns();
                run(input, input_size, false, true);
                run(input, input_size, true, true);
                fuzz_parser_ns = fuzz_now_ns() - start_ns;
        } while (fuzz_again(start_ns));
        return 0;
}
