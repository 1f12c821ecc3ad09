/* A worker that somebody else has taken over: the shipped worker loop and host device, and a device in between
 * that tries to get out, and says on stderr what came of it. Built for tests only, into a folder of its own, and
 * never installed.
 *
 * TANDEM_HOSTILE=ATTEMPT[,ATTEMPT…] what to try, in this order; "all" of them. An attempt that the sandbox kills for
 * is the
 * last one.
 * TANDEM_HOSTILE_AT=open   as the device is opened, before the worker has given up anything but files: a driver
 *                          gone bad
 *                  load   (the default) when a model arrives: the whole sandbox is in force
 * TANDEM_HOSTILE_DEVICE=PATH the device node that is somebody else's
 * TANDEM_HOSTILE_DRIVER=1  its device is one that needs files and makes code: the wider of the two sandboxes
 *
 * Lines: "hostile: NAME at AT: refused (REASON)" or "hostile: NAME at AT: GOT IN"; before each
 * "hostile: NAME at AT: trying". */
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "engine/worker/worker.h"

#define URING_SOCKET 45 /* IORING_OP_SOCKET: newer than the headers here */

static pid_t parent;

static const char *node(void)
{
        return getenv("TANDEM_HOSTILE_DEVICE") ?: "/dev/full";
}

static int result(long r)
{
        return r < 0 ? -errno : (int)r;
}

static int try_passwd(void)
{
        return result(open("/etc/passwd", O_RDONLY | O_CLOEXEC));
}

static int try_shadow_write(void)
{
        return result(open("/etc/passwd", O_WRONLY | O_CLOEXEC));
}

static int try_create(void)
{
        return result(open("/var/tmp/tandem-hostile", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static int try_init(void)
{
        return result(open("/proc/1/environ", O_RDONLY | O_CLOEXEC));
}

static int try_parent_memory(void)
{
        char path[40];

        snprintf(path, sizeof(path), "/proc/%d/mem", (int)parent);
        return result(open(path, O_RDWR | O_CLOEXEC));
}

static int try_device(void)
{
        return result(open(node(), O_RDWR | O_CLOEXEC));
}

static int try_inet(void)
{
        return result(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int try_unix(void)
{
        return result(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int try_netlink(void)
{
        return result(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0));
}

static int try_exec(void)
{
        char *argv[] = { (char *)"true", NULL };

        return result(execv("/bin/true", argv));
}

/* One request through a ring; the way around every filter of system calls. */
static int through_uring(void (*prepare)(struct io_uring_sqe *sqe))
{
        struct io_uring_params params = { 0 };
        struct io_uring ring;
        struct io_uring_cqe *cqe;
        int r = io_uring_queue_init_params(4, &ring, &params);

        if (r < 0)
                return r;
        prepare(io_uring_get_sqe(&ring));
        r = io_uring_submit_and_wait(&ring, 1);
        if (r >= 0)
                r = io_uring_peek_cqe(&ring, &cqe) == 0 ? cqe->res : -EIO;
        return r;
}

static void prepare_passwd(struct io_uring_sqe *sqe)
{
        io_uring_prep_openat(sqe, AT_FDCWD, "/etc/passwd", O_RDONLY, 0);
}

static void prepare_device(struct io_uring_sqe *sqe)
{
        io_uring_prep_openat(sqe, AT_FDCWD, node(), O_RDWR, 0);
}

static void prepare_socket(struct io_uring_sqe *sqe)
{
        io_uring_prep_rw(URING_SOCKET, sqe, AF_INET, NULL, 0, SOCK_STREAM);
}

static int try_uring_passwd(void)
{
        return through_uring(prepare_passwd);
}

static int try_uring_device(void)
{
        return through_uring(prepare_device);
}

static int try_uring_socket(void)
{
        return through_uring(prepare_socket);
}

static const struct attempt {
        const char *name;
        int (*fn)(void); /* what it got, or a negative errno */
} attempts[] = {
        { "passwd", try_passwd },
        { "passwd-write", try_shadow_write },
        { "create", try_create },
        { "init", try_init },
        { "parent-memory", try_parent_memory },
        { "device", try_device },
        { "inet", try_inet },
        { "unix", try_unix },
        { "netlink", try_netlink },
        { "exec", try_exec },
        { "uring-passwd", try_uring_passwd },
        { "uring-device", try_uring_device },
        { "uring-socket", try_uring_socket },
};

static bool is_asked_for(const char *list, const char *name)
{
        size_t len = strlen(name);

        if (strcmp(list, "all") == 0)
                return true;
        for (const char *at = list; (at = strstr(at, name)); at += len)
                if ((at == list || at[-1] == ',') && (at[len] == 0 || at[len] == ','))
                        return true;
        return false;
}

static void misbehave(const char *now)
{
        const char *list = getenv("TANDEM_HOSTILE"), *at = getenv("TANDEM_HOSTILE_AT") ?: "load";

        for (size_t i = 0; list && strcmp(at, now) == 0 && i < TDM_ARRAY_SIZE(attempts); i++) {
                int r;

                if (!is_asked_for(list, attempts[i].name))
                        continue;
                fprintf(stderr, "hostile: %s at %s: trying\n", attempts[i].name, at);
                r = attempts[i].fn();
                if (r >= 0)
                        fprintf(stderr, "hostile: %s at %s: GOT IN\n", attempts[i].name, at);
                else
                        fprintf(stderr, "hostile: %s at %s: refused (%s)\n", attempts[i].name, at, strerror(-r));
        }
        if (list && strcmp(at, now) == 0)
                fprintf(stderr, "hostile: done at %s\n", at);
}

static int hostile_model_load(struct tdm_device *device, const struct tdm_device_model_config *config,
                              struct tdm_device_model **ret, struct tdm_error *err)
{
        misbehave("load");
        return tdm_host_device_ops.model_load(device, config, ret, err);
}

static struct tdm_device_ops opened_ops;

static int hostile_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        int r;

        misbehave("open");
        r = tdm_host_device_ops.open(ret, config, err);
        if (r != 0)
                return r;
        opened_ops = tdm_host_device_ops;
        opened_ops.model_load = hostile_model_load;
        (*ret)->ops = &opened_ops;
        return 0;
}

static const struct tdm_device_ops first_ops = { .name = "host", .open = hostile_open };

int main(int argc, char **argv)
{
        const bool driver = getenv("TANDEM_HOSTILE_DRIVER") != NULL;
        const struct tdm_worker_device devices[] = {
                { .name = "host", .ops = &first_ops, .needs_files = driver, .makes_code = driver },
        };
        const struct tdm_worker_program program = {
                .name = HOSTILE_INDEX == TDM_WORKER_NPU ? "hostile-npu-worker" : "hostile-gpu-worker",
                .index = HOSTILE_INDEX,
                .devices = devices,
                .n_devices = TDM_ARRAY_SIZE(devices),
        };

        parent = getppid(); /* the sandbox does not tell */
        return tdm_worker_main(&program, argc, argv);
}
