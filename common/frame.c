/* Frames on a byte stream with fds riding on them, and the blocking half of conn.h.
 *
 * Which frame do fds belong to? The sender attaches them to the first byte of their frame. The kernel delivers them
 * with the recvmsg() that takes that byte, but may glue bytes without fds in front. So a read never takes more than the
 * rest of the frame at hand and the next header: then at most one frame begins in it, and the fds are that frame's.
 * Fds that come where no frame begins are a breach of protocol. The price is one more system call for a lone frame.
 *
 * A guarded reader never receives fds itself, because a process that received one must close it, and closing a file of
 * a hanging FUSE server never returns. It looks at a frame's first byte before it takes it (the kernel says by
 * MSG_CTRUNC that fds ride on it), and leaves it to the caller. All its other reads have no room for fds: the kernel
 * drops what came, without flushing it.
 *
 * A reader without fds takes whatever has arrived with one call. Fds are a breach there, and the kernel drops them too.
 *
 * Memory: a frame's length is checked as soon as its header has arrived. The buffer is at most twice as large as the
 * bytes that arrived, so a peer must send bytes to make us hold memory. This file does not know what a frame says. */
#include "common/frame.h"

#include <poll.h>
#include <sys/socket.h>

#define READ_MIN_BYTES 4096u
#define KEEP_BYTES (64u << 10) /* an empty buffer larger than this is given back */
#define KERNEL_MAX_FDS 253u
/* One frame may be waiting to be taken while the next one begins. */
#define PENDING_MAX_FDS (2 * TDM_CONN_MAX_FDS)

struct pending_fds {
        uint64_t frame_start; /* stream offset of their frame's first byte */
        unsigned n;
};

struct tdm_frame_reader {
        uint32_t max_frame_bytes;
        uint8_t *buf;
        size_t capacity;
        size_t start;          /* first byte not yet given out */
        size_t scan;           /* first byte of the first frame that is not complete */
        size_t end;            /* end of what has arrived */
        uint64_t offset;       /* stream offset of buf[0] */
        const char *broken;    /* why, once the peer broke the rules */
        uint32_t refused_size; /* of a frame that is too long */
        bool guarded;
        bool without_fds;
        bool drained; /* the last read took less than it had room for */

        int fds[PENDING_MAX_FDS]; /* in order of arrival */
        unsigned n_fds;
        struct pending_fds groups[PENDING_MAX_FDS];
        unsigned n_groups;
        int out_fds[TDM_CONN_MAX_FDS]; /* of the frame given out last */
        unsigned n_out_fds;
};

void tdm_frame_header(uint8_t header[TDM_FRAME_HEADER_BYTES], uint32_t size)
{
        for (unsigned i = 0; i < TDM_FRAME_HEADER_BYTES; i++)
                header[i] = (uint8_t)(size >> (8 * i));
}

static uint32_t header_size(const uint8_t *p)
{
        return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

ssize_t tdm_frame_send_some(int fd, const void *data, size_t size, size_t sent, const int *fds, unsigned n_fds)
{
        uint8_t header[TDM_FRAME_HEADER_BYTES];
        struct iovec iov[2];
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(TDM_CONN_MAX_FDS * sizeof(int))];
        } control;
        struct msghdr msg = { .msg_iov = iov };
        ssize_t n;

        if (size > UINT32_MAX)
                return -EMSGSIZE;
        if (n_fds > TDM_CONN_MAX_FDS)
                return -EINVAL;

        tdm_frame_header(header, (uint32_t)size);
        if (sent < sizeof(header))
                iov[msg.msg_iovlen++] = (struct iovec){ .iov_base = header + sent, .iov_len = sizeof(header) - sent };
        if (size > 0) {
                size_t skip = sent > sizeof(header) ? sent - sizeof(header) : 0;
                iov[msg.msg_iovlen++] =
                        (struct iovec){ .iov_base = (uint8_t *)(uintptr_t)data + skip, .iov_len = size - skip };
        }
        if (sent == 0 && n_fds > 0) {
                struct cmsghdr *c;

                memset(&control, 0, sizeof(control));
                msg.msg_control = control.bytes;
                msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        do
                n = sendmsg(fd, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return errno == ECONNRESET ? -EPIPE : -errno;
        return n;
}

int tdm_frame_send(int fd, const void *data, size_t size, const int *fds, unsigned n_fds)
{
        size_t sent = 0, total = TDM_FRAME_HEADER_BYTES + size;

        while (sent < total) {
                ssize_t n = tdm_frame_send_some(fd, data, size, sent, fds, n_fds);

                if (n == -EAGAIN) { /* the caller's fd happens to be non-blocking */
                        struct pollfd p = { .fd = fd, .events = POLLOUT };

                        if (poll(&p, 1, -1) < 0 && errno != EINTR)
                                return -errno;
                        continue;
                }
                if (n < 0)
                        return (int)n;
                sent += (size_t)n;
        }
        return 0;
}

int tdm_frame_reader_new(struct tdm_frame_reader **ret, uint32_t max_frame_bytes)
{
        struct tdm_frame_reader *r = calloc(1, sizeof(*r));

        if (!r)
                return -ENOMEM;
        r->max_frame_bytes = max_frame_bytes;
        *ret = r;
        return 0;
}

void tdm_frame_reader_guard(struct tdm_frame_reader *r)
{
        r->guarded = true;
}

void tdm_frame_reader_without_fds(struct tdm_frame_reader *r)
{
        r->without_fds = true;
}

bool tdm_frame_reader_drained(const struct tdm_frame_reader *r)
{
        return r->drained;
}

static void close_all(int *fds, unsigned *n)
{
        for (unsigned i = 0; i < *n; i++)
                closep(&fds[i]);
        *n = 0;
}

void tdm_frame_reader_destroy(struct tdm_frame_reader *r)
{
        if (!r)
                return;
        close_all(r->out_fds, &r->n_out_fds);
        close_all(r->fds, &r->n_fds);
        free(r->buf);
        free(r);
}

void tdm_frame_reader_destroyp(struct tdm_frame_reader **r)
{
        tdm_frame_reader_destroy(*r);
        *r = NULL;
}

/* How much may be read so that no second frame begins in it; guarded, so that no frame begins but at its start. */
static size_t read_limit(const struct tdm_frame_reader *r)
{
        size_t have = r->end - r->scan, rest;

        if (r->without_fds)
                return SIZE_MAX;
        if (have < TDM_FRAME_HEADER_BYTES)
                return TDM_FRAME_HEADER_BYTES - have;
        rest = TDM_FRAME_HEADER_BYTES + (size_t)header_size(r->buf + r->scan) - have;
        return r->guarded ? rest : rest + TDM_FRAME_HEADER_BYTES;
}

size_t tdm_frame_reader_held(const struct tdm_frame_reader *r)
{
        return r->capacity;
}

void tdm_frame_reader_trim(struct tdm_frame_reader *r)
{
        if (r->start != r->end || r->capacity <= KEEP_BYTES)
                return;
        free(r->buf);
        r->buf = NULL;
        r->capacity = 0;
        r->offset += r->start;
        r->start = r->scan = r->end = 0;
}

/* Makes room for at least one byte and at most *limit, and cuts *limit to that room. */
static int reader_make_room(struct tdm_frame_reader *r, size_t *limit)
{
        size_t max = (size_t)r->max_frame_bytes + 2 * TDM_FRAME_HEADER_BYTES, used, want;

        tdm_frame_reader_trim(r);
        if (r->start > 0 && r->end > r->start)
                memmove(r->buf, r->buf + r->start, r->end - r->start);
        r->offset += r->start;
        r->scan -= r->start;
        r->end -= r->start;
        r->start = 0;

        used = r->end;
        if (used >= max)
                return -ENOBUFS; /* the caller does not take its frames */
        want = TDM_MIN(max, used + TDM_MIN(*limit, TDM_MAX(used, (size_t)READ_MIN_BYTES)));
        /* Only where less room is left than half of what is held: else each single byte would cost a realloc(). */
        if (want > r->capacity && r->capacity - used < TDM_MIN(*limit, TDM_MAX(used / 2, (size_t)1))) {
                size_t capacity = TDM_MIN(max, TDM_MAX(want, (size_t)READ_MIN_BYTES));
                uint8_t *buf = realloc(r->buf, capacity);

                if (!buf)
                        return -ENOMEM;
                r->buf = buf;
                r->capacity = capacity;
        }
        *limit = TDM_MIN(*limit, r->capacity - used);
        return 0;
}

static int add_fds(struct tdm_frame_reader *r, const int *fds, unsigned n, uint64_t frame_start)
{
        if (n > TDM_CONN_MAX_FDS || n > PENDING_MAX_FDS - r->n_fds) {
                r->broken = "too many fds";
                return -EPROTO;
        }
        if (n == 0)
                return 0;
        memcpy(r->fds + r->n_fds, fds, n * sizeof(int));
        r->n_fds += n;
        r->groups[r->n_groups++] = (struct pending_fds){ .frame_start = frame_start, .n = n };
        return 0;
}

/* Moves received fds into the reader, or closes them all. */
static int take_fds(struct tdm_frame_reader *r, struct msghdr *msg, bool frame_begins, uint64_t frame_start)
{
        int got[KERNEL_MAX_FDS];
        unsigned n_got = 0;
        bool ok = !(msg->msg_flags & MSG_CTRUNC);

        for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
                unsigned n;

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                for (unsigned i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                        if (n_got < KERNEL_MAX_FDS)
                                got[n_got++] = fd;
                        else
                                close(fd);
                }
        }
        if (!ok && !r->guarded)
                r->broken = "more fds than fit into one message, or than this process may open (RLIMIT_NOFILE)";
        else if (!ok || (n_got > 0 && !frame_begins))
                r->broken = "fds that belong to the first byte of no frame";
        if (r->broken || add_fds(r, got, n_got, frame_start) < 0) {
                close_all(got, &n_got);
                return -EPROTO;
        }
        return 0;
}

/* Whether fds ride on the next byte: -EREMOTEIO. The kernel also says so when they ride on a later one that it has
 * already; then none come with this byte. */
static int peek_fds(int fd)
{
        char byte;
        struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        do
                n = recvmsg(fd, &msg, MSG_PEEK | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        return msg.msg_flags & MSG_CTRUNC ? -EREMOTEIO : 0;
}

int tdm_frame_reader_push(struct tdm_frame_reader *r, uint8_t first, const int *fds, unsigned n_fds)
{
        size_t limit = 1;
        int k = r->broken || r->end != r->scan ? -EPROTO : reader_make_room(r, &limit);

        if (k < 0)
                return k;
        k = add_fds(r, fds, n_fds, r->offset + r->end);
        if (k < 0)
                return k;
        r->buf[r->end++] = first;
        return 0;
}

/* Walks over complete frames; a length that is too large is refused the moment it is known. */
static int scan_frames(struct tdm_frame_reader *r)
{
        while (r->end - r->scan >= TDM_FRAME_HEADER_BYTES) {
                uint32_t size = header_size(r->buf + r->scan);

                if (size > r->max_frame_bytes) {
                        r->broken = "a frame that is too long";
                        r->refused_size = size;
                        return -EPROTO;
                }
                if (r->end - r->scan - TDM_FRAME_HEADER_BYTES < size)
                        break;
                r->scan += TDM_FRAME_HEADER_BYTES + size;
        }
        return 0;
}

ssize_t tdm_frame_reader_fill(struct tdm_frame_reader *r, int fd)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int))];
        } control;
        struct iovec iov;
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        size_t limit, rest;
        uint64_t frame_start;
        bool frame_begins;
        ssize_t n;
        int k;

        close_all(r->out_fds, &r->n_out_fds);
        if (r->broken)
                return -EPROTO;
        if (r->guarded && r->end == r->scan) {
                k = peek_fds(fd);
                if (k < 0)
                        return k;
        } else if (!r->guarded && !r->without_fds) {
                msg.msg_control = control.bytes;
                msg.msg_controllen = sizeof(control.bytes);
        }
        limit = read_limit(r);
        k = reader_make_room(r, &limit);
        if (k < 0)
                return k;

        iov = (struct iovec){ .iov_base = r->buf + r->end, .iov_len = limit };
        do
                n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        r->drained = (size_t)n < limit;
        if (r->without_fds) {
                r->end += (size_t)n;
                if (msg.msg_flags & MSG_CTRUNC)
                        r->broken = "fds; none are expected of it";
                k = r->broken ? -EPROTO : scan_frames(r);
                return k < 0 ? k : n;
        }

        /* Bytes that still belong to the frame at hand; what comes after them begins a new one. */
        if (r->end == r->scan)
                rest = 0;
        else if (r->end - r->scan < TDM_FRAME_HEADER_BYTES)
                rest = SIZE_MAX; /* read_limit() asked for no more than this header */
        else
                rest = TDM_FRAME_HEADER_BYTES + (size_t)header_size(r->buf + r->scan) - (r->end - r->scan);
        frame_begins = (size_t)n > rest;
        frame_start = r->offset + r->end + (frame_begins ? rest : 0);

        k = take_fds(r, &msg, frame_begins, frame_start);
        r->end += (size_t)n;
        if (k == 0)
                k = scan_frames(r);
        return k < 0 ? k : n;
}

int tdm_frame_reader_explain(const struct tdm_frame_reader *r, struct tdm_error *err)
{
        if (r->refused_size > 0)
                return tdm_error_set(err, TDM_E_PROTOCOL, "the peer sent a frame of %u bytes; at most %u are allowed",
                                     r->refused_size, r->max_frame_bytes);
        return tdm_error_set(err, TDM_E_PROTOCOL, "the peer sent %s", r->broken ? r->broken : "nothing wrong");
}

int tdm_frame_reader_next(struct tdm_frame_reader *r, const uint8_t **ret_data, size_t *ret_size, int **ret_fds,
                          unsigned *ret_n_fds)
{
        uint32_t size;

        close_all(r->out_fds, &r->n_out_fds);
        if (r->start == r->scan)
                return 0;

        size = header_size(r->buf + r->start);
        if (r->n_groups > 0 && r->groups[0].frame_start == r->offset + r->start) {
                unsigned n = r->groups[0].n;

                memcpy(r->out_fds, r->fds, n * sizeof(int));
                r->n_out_fds = n;
                r->n_fds -= n;
                memmove(r->fds, r->fds + n, r->n_fds * sizeof(int));
                r->n_groups--;
                memmove(r->groups, r->groups + 1, r->n_groups * sizeof(r->groups[0]));
        }
        *ret_data = r->buf + r->start + TDM_FRAME_HEADER_BYTES;
        *ret_size = size;
        *ret_fds = r->out_fds;
        *ret_n_fds = r->n_out_fds;
        r->start += TDM_FRAME_HEADER_BYTES + size;
        return 1;
}

bool tdm_frame_reader_mid_frame(const struct tdm_frame_reader *r)
{
        return r->end > r->scan;
}
