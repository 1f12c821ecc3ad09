/* tandem-picture-decoder: decodes one picture for the process that started it, and ends (engine/image/decoder.h).
 *
 * Before it reads a byte of the file it has given up files, sockets, new processes and everything else that a worker
 * gives up (engine/worker/sandbox.h), and has bounds on its memory, its processor time and its life. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "engine/image/decoder-abi.h"
#include "engine/worker/sandbox.h"
#include "picture-decoder/formats.h"

#define CHANNELS 3u

struct picture_job {
        struct tdm_decoder_order order;
        int file, memory; /* -1: not there */
        uint8_t *rgb;     /* memory, mapped */
};

static int receive_order(struct picture_job *ret)
{
        int fds[2];
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(fds))];
        } control;
        struct iovec iov = { .iov_base = &ret->order, .iov_len = sizeof(ret->order) };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        struct cmsghdr *c;
        ssize_t n;

        do
                n = recvmsg(TDM_DECODER_SOCKET_FD, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        c = n == (ssize_t)sizeof(ret->order) ? CMSG_FIRSTHDR(&msg) : NULL;
        if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(fds)) ||
            ret->order.magic != TDM_DECODER_MAGIC)
                return n < 0 ? -errno : -EPROTO;
        memcpy(fds, CMSG_DATA(c), sizeof(fds));
        ret->file = fds[0];
        ret->memory = fds[1];
        return 0;
}

static int set_limit(int resource, uint64_t most)
{
        const struct rlimit limit = { .rlim_cur = most, .rlim_max = most };

        return setrlimit(resource, &limit) < 0 ? -errno : 0;
}

/* What the program itself maps is counted from here on. Sanitizers map terabytes, so there is no such bound then. */
static int bound_memory(const struct tdm_decoder_order *order)
{
#ifdef TANDEM_SANITIZED
        return 0;
#else
        _cleanup_(fclosep) FILE *f = fopen("/proc/self/statm", "re");
        unsigned long pages;

        if (!f || fscanf(f, "%lu", &pages) != 1)
                return -EIO;
        return set_limit(RLIMIT_AS, (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) + 2 * order->most_bytes +
                                            order->memory_bytes);
#endif
}

static int bound_process(const struct tdm_decoder_order *order)
{
        int r = set_limit(RLIMIT_CORE, 0);

        if (r == 0)
                r = set_limit(RLIMIT_CPU, order->seconds + 1);
        if (r == 0)
                r = bound_memory(order);
        alarm(order->seconds + 1);
        return r;
}

/* The whole file, and one byte more where it is longer than it may be: then it is refused. */
static int read_file(int fd, uint64_t most, uint8_t **ret, size_t *ret_size, struct tdm_error *err)
{
        _cleanup_(freep) uint8_t *data = NULL;
        size_t size = 0, capacity = 0;

        lseek(fd, 0, SEEK_SET); /* a pipe has no start */
        for (;;) {
                ssize_t n;

                if (size == capacity) {
                        size_t larger = TDM_MIN(capacity ? 2 * capacity : (size_t)1 << 16, (size_t)most + 1);
                        uint8_t *grown = realloc(data, larger);

                        if (!grown)
                                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                                     "the picture's file takes too much memory");
                        data = grown;
                        capacity = larger;
                }
                n = read(fd, data + size, capacity - size);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot read the picture: %s", strerror(errno));
                if (n == 0)
                        break;
                size += (size_t)n;
                if (size > most)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "the picture's file has more than %llu bytes: make it smaller",
                                             (unsigned long long)most);
        }
        *ret = steal_ptr(&data);
        *ret_size = size;
        return 0;
}

static int decode(const struct picture_job *job, struct tdm_image_size *ret, struct tdm_error *err)
{
        const struct tdm_picture_limits limits = { .most_side = job->order.most_side,
                                                   .most_pixels = job->order.most_pixels };
        _cleanup_(freep) uint8_t *data = NULL;
        size_t size = 0;
        int r = read_file(job->file, job->order.most_bytes, &data, &size, err);

        return r == 0 ? tdm_picture_read(data, size, &limits, job->rgb, ret, err) : r;
}

static int send_answer(int code, struct tdm_image_size size, const struct tdm_error *err)
{
        struct tdm_decoder_answer answer = {
                .magic = TDM_DECODER_MAGIC, .code = code, .width = size.width, .height = size.height
        };
        ssize_t n;

        if (code != 0)
                snprintf(answer.message, sizeof(answer.message), "%.*s", (int)sizeof(answer.message) - 1, err->message);
        do
                n = send(TDM_DECODER_SOCKET_FD, &answer, sizeof(answer), MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n == (ssize_t)sizeof(answer) ? 0 : -EPIPE;
}

int main(void)
{
        struct picture_job job = { .file = -1, .memory = -1 };
        struct tdm_sandbox sandbox;
        struct tdm_error err = { 0 };
        struct tdm_image_size size = { 0 };
        int r = tdm_sandbox_init(&sandbox);

        if (r == 0)
                r = receive_order(&job);
        if (r == 0) {
                job.rgb =
                        mmap(NULL, job.order.most_pixels * CHANNELS, PROT_READ | PROT_WRITE, MAP_SHARED, job.memory, 0);
                r = job.rgb == MAP_FAILED ? -errno : 0;
        }
        if (r == 0)
                r = bound_process(&job.order);
        if (r == 0)
                r = tdm_sandbox_files(&sandbox);
        if (r == 0)
                r = tdm_sandbox_syscalls(&sandbox);
        if (r != 0) {
                fprintf(stderr, "<3>tandem-picture-decoder: cannot begin: %s\n", strerror(-r));
                return 1;
        }
        r = decode(&job, &size, &err);
        return send_answer(r, size, &err) < 0;
}
