/* tandem-picture-worker: a vision tower for tandemd, which makes rows of pictures (engine/vision/process.h).
 *
 * It is confined as a worker is (engine/worker/sandbox.h) before it reads a byte of the projector's file. It sees that
 * file, and of each picture its pixels; no text, and no other file. Its threads give way to those of the workers, so
 * that a picture does not slow down texts that are being made. It ends with its socket. */
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "common/sigbus.h"
#include "engine/vision/process-abi.h"
#include "engine/vision/tower.h"
#include "engine/worker/sandbox.h"

#define CHANNELS 3u
#define NICENESS 5 /* a third of a worker's share where cores are short */

struct tower_worker {
        struct tdm_gguf *gguf;
        struct tdm_pool *pool;
        struct tdm_tower *tower;
        struct tdm_projector projector;
};

struct received_order {
        struct tdm_tower_order order;
        int fds[2]; /* -1: none */
};

static void fds_take(struct msghdr *msg, struct received_order *ret)
{
        struct cmsghdr *c = CMSG_FIRSTHDR(msg);
        size_t n;

        if (!c || c->cmsg_type != SCM_RIGHTS)
                return;
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(ret->fds, CMSG_DATA(c), TDM_MIN(n, TDM_ARRAY_SIZE(ret->fds)) * sizeof(int));
}

/* 0: there is none any more. */
static int order_receive(struct received_order *ret)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = &ret->order, .iov_len = sizeof(ret->order) };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        ssize_t n;

        ret->fds[0] = ret->fds[1] = -1;
        do
                n = recvmsg(TDM_TOWER_SOCKET_FD, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return n < 0 ? -errno : 0;
        fds_take(&msg, ret);
        return n == (ssize_t)sizeof(ret->order) && ret->order.magic == TDM_TOWER_MAGIC ? 1 : -EPROTO;
}

static int answer_send(const struct tower_worker *w, int code, const struct tdm_error *err)
{
        struct tdm_tower_answer answer = { .magic = TDM_TOWER_MAGIC, .code = code };
        ssize_t n;

        if (code == 0) {
                answer.n_rows = tdm_tower_n_rows(w->tower);
                answer.n_out = w->projector.n_out;
                answer.memory_bytes = tdm_tower_memory(w->tower);
        } else
                snprintf(answer.message, sizeof(answer.message), "%.*s", (int)sizeof(answer.message) - 1,
                         err->message[0] ? err->message : strerror(code < 0 ? -code : EIO));
        do
                n = send(TDM_TOWER_SOCKET_FD, &answer, sizeof(answer), MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n == (ssize_t)sizeof(answer) ? 0 : -EPIPE;
}

/* ---- loading ---- */

static unsigned usable_cpus(void)
{
        cpu_set_t cpus;

        return sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1u : (unsigned)CPU_COUNT(&cpus);
}

/* What is opened and started before the last of the sandbox closes. */
static int process_prepare(struct tower_worker *w, struct tdm_sandbox *sandbox, const struct tdm_tower_order *order)
{
        int r = tdm_sigbus_init();

        (void)setpriority(PRIO_PROCESS, 0, NICENESS);
        if (r == 0)
                r = tdm_sandbox_files(sandbox);
        if (r == 0)
                r = tdm_pool_new(&w->pool, order->n_threads ? order->n_threads : usable_cpus(), NULL);
        return r == 0 ? tdm_sandbox_syscalls(sandbox) : r;
}

static int tower_load(struct tower_worker *w, const struct tdm_kernels *kernels, const struct received_order *o,
                      struct tdm_error *err)
{
        const struct tdm_tower_options options = { .act = (enum tdm_act)o->order.act,
                                                   .kv = (enum tdm_kv_type)o->order.kv };
        int r = tdm_gguf_open(&w->gguf, o->fds[0], "the projector", err);

        if (r == 0)
                r = tdm_projector_describe(&w->projector, w->gguf, err);
        if (r == 0)
                r = tdm_tower_new(&w->tower, w->gguf, kernels, w->pool, &options, err);
        tdm_gguf_close(steal_ptr(&w->gguf)); /* the weights are copies */
        return r;
}

/* ---- running ---- */

static int map_fd(int fd, size_t bytes, int protection, void **ret)
{
        void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

        if (at == MAP_FAILED)
                return -errno;
        *ret = at;
        return 0;
}

static int picture_run(struct tower_worker *w, const struct received_order *o, struct tdm_error *err)
{
        const struct tdm_image_size size = { .width = o->order.width, .height = o->order.height };
        const size_t n_pixels = (size_t)size.width * size.height * CHANNELS;
        const size_t n_out = (size_t)tdm_tower_n_rows(w->tower) * w->projector.n_out * sizeof(float);
        void *rgb = NULL, *out = NULL;
        int r;

        if (size.width - 1 >= TDM_IMAGE_SIDE_MAX || size.height - 1 >= TDM_IMAGE_SIDE_MAX)
                return -EINVAL;
        r = map_fd(o->fds[0], n_pixels, PROT_READ, &rgb);
        if (r == 0)
                r = map_fd(o->fds[1], n_out, PROT_READ | PROT_WRITE, &out);
        if (r == 0)
                r = tdm_tower_run(w->tower, rgb, size, out, err);
        if (rgb)
                munmap(rgb, n_pixels);
        if (out)
                munmap(out, n_out);
        return r;
}

static int orders_serve(struct tower_worker *w)
{
        for (;;) {
                struct received_order o;
                struct tdm_error err = { 0 };
                int r = order_receive(&o);

                if (r <= 0)
                        return r;
                r = o.order.kind == TDM_TOWER_RUN ? picture_run(w, &o, &err) : -EPROTO;
                closep(&o.fds[0]);
                closep(&o.fds[1]);
                r = answer_send(w, r, &err);
                if (r < 0)
                        return r;
        }
}

int main(void)
{
        struct tower_worker w = { 0 };
        struct received_order order;
        struct tdm_sandbox sandbox;
        struct tdm_error err = { 0 };
        const struct tdm_kernels *kernels = tdm_kernels_choose(&err);
        int r = kernels ? tdm_sandbox_init(&sandbox) : -ENOTSUP;

        if (r == 0)
                r = order_receive(&order);
        if (r == 0)
                return EXIT_SUCCESS;
        r = r == 1 && order.order.kind == TDM_TOWER_LOAD ? process_prepare(&w, &sandbox, &order.order) :
            r < 0                                        ? r :
                                                           -EPROTO;
        if (r < 0) {
                fprintf(stderr, "<3>tandem-picture-worker: cannot begin: %s\n",
                        err.message[0] ? err.message : strerror(-r));
                return EXIT_FAILURE;
        }
        r = tower_load(&w, kernels, &order, &err);
        closep(&order.fds[0]);
        if (answer_send(&w, r, &err) == 0 && r == 0)
                (void)orders_serve(&w);
        tdm_tower_destroy(w.tower);
        tdm_pool_destroy(w.pool);
        return EXIT_SUCCESS;
}
