/* The asking side of tandem-picture-decoder; see decoder.h. The memory for pixels is this process's: it is as long as
 * the largest picture that is allowed, of which only written pages exist, and is cut and sealed when the decoder is
 * gone. What the decoder says is checked as anybody's: it has handled a stranger's bytes. */
#include "engine/image/decoder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/spawn.h"
#include "engine/image/decoder-abi.h"

#define CHANNELS 3u
/* A progressive JPEG of four inks keeps eight bytes of each pixel while it is decoded. */
#define MEMORY_PER_PIXEL 8u
#define MEMORY_MORE (UINT64_C(64) << 20)

struct running_decoder {
        pid_t pid;
        int socket;
};

static int send_order(int socket, const struct tdm_decoder_order *order, int file, int memory)
{
        const int fds[2] = { file, memory };
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(fds))];
        } control = { 0 };
        struct iovec iov = { .iov_base = (void *)(uintptr_t)order, .iov_len = sizeof(*order) };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        ssize_t n;

        *CMSG_FIRSTHDR(&msg) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(fds)),
                                                 .cmsg_level = SOL_SOCKET,
                                                 .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds, sizeof(fds));
        do
                n = sendmsg(socket, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : 0;
}

static int decoder_start(struct running_decoder *ret, const char *program)
{
        char *argv[] = { (char *)(uintptr_t)program, NULL };
        _cleanup_(closep) int ours = -1, theirs = -1;
        int pair[2], r;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        ours = pair[0];
        theirs = pair[1];
        r = tdm_spawn(program, argv, theirs, TDM_DECODER_SOCKET_FD, &ret->pid);
        if (r < 0)
                return r;
        ret->socket = steal_fd(&ours);
        return 0;
}

/* Its end, whether it wants to or not: behind this nobody else has the memory for pixels. */
static int decoder_end(struct running_decoder *decoder)
{
        int status = 0;

        kill(decoder->pid, SIGKILL);
        while (waitpid(decoder->pid, &status, 0) < 0 && errno == EINTR)
                ;
        close(decoder->socket);
        return status;
}

/* 1: there is an answer; 0: it has ended without one; or a TDM_E_* or -errno. */
static int await_answer(int socket, uint64_t deadline_ns, struct tdm_decoder_answer *ret, struct tdm_error *err)
{
        for (;;) {
                struct pollfd pollfd = { .fd = socket, .events = POLLIN };
                uint64_t now = tdm_now_ns();
                ssize_t n;
                int r;

                if (now >= deadline_ns)
                        return tdm_error_set(err, TDM_E_DEADLINE,
                                             "the picture was not decoded in the time that a picture has: make it "
                                             "smaller");
                r = poll(&pollfd, 1, (int)TDM_MIN((deadline_ns - now) / TDM_NSEC_PER_MSEC + 1, UINT64_C(60000)));
                if (r == 0 || (r < 0 && errno == EINTR))
                        continue;
                if (r < 0)
                        return -errno;
                n = recv(socket, ret, sizeof(*ret), MSG_DONTWAIT);
                if (n < 0 && (errno == EINTR || errno == EAGAIN))
                        continue;
                return n == (ssize_t)sizeof(*ret) && ret->magic == TDM_DECODER_MAGIC;
        }
}

/* A process that has ended by itself tells by its status why. One that only closed its socket is not waited for. */
static void await_end(pid_t pid)
{
        const struct timespec pause = { .tv_nsec = 2 * (long)TDM_NSEC_PER_MSEC };
        uint64_t until = tdm_now_ns() + TDM_NSEC_PER_SEC;

        for (;;) {
                siginfo_t info = { 0 };

                if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) < 0 ? errno != EINTR :
                                                                                       info.si_pid == pid)
                        return;
                if (tdm_now_ns() >= until)
                        return;
                nanosleep(&pause, NULL);
        }
}

static int say_end(int status, struct tdm_error *err)
{
        if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU))
                return tdm_error_set(err, TDM_E_DEADLINE,
                                     "the picture was not decoded in the time that a picture has: make it smaller");
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the picture ended the process that decodes it (signal %d): save it in another "
                                     "way",
                                     WTERMSIG(status));
        return tdm_error_set(err, TDM_E_INTERNAL, "the process that decodes pictures ended without an answer");
}

/* The decoder's own words, which are printed. */
static int say_answer(const struct tdm_decoder_answer *answer, struct tdm_error *err)
{
        char text[sizeof(answer->message)];
        size_t n = strnlen(answer->message, sizeof(text) - 1);

        for (size_t i = 0; i < n; i++)
                text[i] = answer->message[i] >= 0x20 && answer->message[i] < 0x7f ? answer->message[i] : '?';
        text[n] = 0;
        return tdm_error_set(err, answer->code > 0 && answer->code < TDM_E_MAX ? answer->code : TDM_E_INTERNAL, "%s",
                             n > 0 ? text : "the picture cannot be decoded");
}

/* The decoder is gone, but whoever looks at it in /proc may still hold its memory, and with it what it had mapped. */
static int seal_pixels(int memory, uint64_t deadline_ns, struct tdm_error *err)
{
        const struct timespec pause = { .tv_nsec = 2 * (long)TDM_NSEC_PER_MSEC };

        while (fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) {
                if (errno != EBUSY)
                        return -errno;
                if (tdm_now_ns() >= deadline_ns)
                        return tdm_error_set(err, TDM_E_DEADLINE,
                                             "the process that decoded the picture did not let go of it in the time "
                                             "that a picture has");
                nanosleep(&pause, NULL);
        }
        return 0;
}

static int take_pixels(struct tdm_picture **ret, int *memory, const struct tdm_decoder_answer *answer,
                       const struct tdm_decoder_limits *limits, struct tdm_error *err)
{
        _cleanup_(tdm_picture_destroyp) struct tdm_picture *picture = NULL;
        uint64_t bytes = (uint64_t)answer->width * answer->height * CHANNELS;
        void *at;
        int r;

        if (answer->width - 1 >= limits->most_side || answer->height - 1 >= limits->most_side ||
            bytes > limits->most_pixels * CHANNELS)
                return tdm_error_set(err, TDM_E_INTERNAL, "the process that decodes pictures says a size of %u x %u",
                                     answer->width, answer->height);
        if (ftruncate(*memory, (off_t)bytes) < 0)
                return -errno;
        r = seal_pixels(*memory, limits->deadline_ns, err);
        if (r != 0)
                return r;
        picture = calloc(1, sizeof(*picture));
        if (!picture)
                return -ENOMEM;
        picture->fd = -1;
        picture->size = (struct tdm_image_size){ .width = answer->width, .height = answer->height };
        at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, *memory, 0);
        if (at == MAP_FAILED)
                return -errno;
        picture->rgb = at;
        picture->fd = steal_fd(memory);
        *ret = steal_ptr(&picture);
        return 0;
}

int tdm_picture_decode(struct tdm_picture **ret, const char *program, int fd, const struct tdm_decoder_limits *limits,
                       struct tdm_error *err)
{
        uint64_t now = tdm_now_ns(), left = limits->deadline_ns > now ? limits->deadline_ns - now : 0;
        const struct tdm_decoder_order order = { .magic = TDM_DECODER_MAGIC,
                                                 .most_side = limits->most_side,
                                                 .most_pixels = limits->most_pixels,
                                                 .most_bytes = limits->most_bytes,
                                                 .memory_bytes = limits->most_pixels * MEMORY_PER_PIXEL + MEMORY_MORE,
                                                 .seconds = (uint32_t)(left / TDM_NSEC_PER_SEC) + 1 };
        _cleanup_(closep) int memory = memfd_create("tandem-picture", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        struct running_decoder decoder;
        struct tdm_decoder_answer answer = { 0 };
        int r, status;

        if (limits->most_side > TDM_IMAGE_SIDE_MAX || limits->most_pixels > UINT64_C(1) << 30 ||
            limits->most_bytes > UINT64_C(1) << 30)
                return -EINVAL;
        if (memory < 0 || ftruncate(memory, (off_t)(limits->most_pixels * CHANNELS)) < 0)
                return -errno;
        r = decoder_start(&decoder, program);
        if (r < 0)
                return tdm_error_set(err, r, "cannot start %s, which decodes pictures: %s", program, strerror(-r));
        r = send_order(decoder.socket, &order, fd, memory);
        if (r == 0 || r == -EPIPE)
                r = await_answer(decoder.socket, limits->deadline_ns, &answer, err);
        if (r == 0)
                await_end(decoder.pid);
        status = decoder_end(&decoder);
        if (r == 0)
                return say_end(status, err);
        if (r != 1)
                return r;
        return answer.code != 0 ? say_answer(&answer, err) : take_pixels(ret, &memory, &answer, limits, err);
}

void tdm_picture_destroy(struct tdm_picture *picture)
{
        if (!picture)
                return;
        if (picture->rgb)
                munmap((void *)(uintptr_t)picture->rgb, (size_t)picture->size.width * picture->size.height * CHANNELS);
        if (picture->fd >= 0)
                close(picture->fd);
        free(picture);
}

void tdm_picture_destroyp(struct tdm_picture **picture)
{
        tdm_picture_destroy(*picture);
}
