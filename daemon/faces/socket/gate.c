/* tandemd's side of the gates; see gate.h. A gate starts when an order finds none idle, and ends when it was idle for
 * a while. */
#include "daemon/faces/socket/gate-private.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/list.h"
#include "common/log.h"
#include "common/spawn.h"
#include "common/utf8.h"

/* A file system that needs longer only to say what it is. */
#define ANSWER_NS (5 * TDM_NSEC_PER_SEC)
#define IDLE_NS (2 * TDM_NSEC_PER_SEC)
#define REAP_NS (20 * TDM_NSEC_PER_MSEC)

struct tdm_gate {
        struct tdm_list node;
        struct tdm_gates *gates;
        pid_t pid;
        int fd; /* -1: it has ended, and is to be reaped */
        struct tdm_source *io, *timer;
        bool busy;                   /* until it says that it is idle */
        struct tdm_account *account; /* is charged while it is busy */
        tdm_gate_fn fn;              /* NULL: the order was given up */
        void *userdata;
};

struct tdm_gates {
        struct tdm_loop *loop;
        struct tdm_list list;
};

static void gate_release_fds(struct tdm_gate *gate)
{
        if (gate->account)
                tdm_account_release(gate->account, TDM_RESOURCE_FILES, 1);
        tdm_account_unref(steal_ptr(&gate->account));
        gate->busy = false;
}

/* Without waiting: one that hangs ends later, and then the daemon's own end reaps it or the service manager does. */
static void gate_free(struct tdm_gate *gate)
{
        gate_release_fds(gate);
        tdm_source_destroyp(&gate->io);
        tdm_source_destroyp(&gate->timer);
        closep(&gate->fd);
        tdm_list_remove(&gate->node);
        free(gate);
}

static void answer_error(struct tdm_gate *gate, int code, const char *text)
{
        tdm_gate_fn fn = gate->fn;
        struct tdm_error err;

        if (!fn)
                return;
        gate->fn = NULL;
        tdm_error_set(&err, code, "%s", text);
        fn(&err, 0, NULL, 0, gate->userdata);
}

/* It ends, or has ended. */
static void retire(struct tdm_gate *gate)
{
        tdm_source_destroyp(&gate->io);
        closep(&gate->fd);
        gate_release_fds(gate);
        tdm_source_arm(gate->timer, tdm_now_ns() + REAP_NS);
}

/* An answer that is late, a gate that was idle for long, or a process that may be reaped. */
static int on_gate_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_gate *gate = userdata;

        if (gate->fd >= 0 && !gate->busy)
                retire(gate);
        else if (gate->fd >= 0)
                answer_error(gate, TDM_E_BAD_REQUEST, "the file system of the file passed does not answer");
        else if (waitpid(gate->pid, NULL, WNOHANG) != 0)
                gate_free(gate);
        else
                tdm_source_arm(gate->timer, now_ns + REAP_NS);
        return 0;
}

static void take_answer(struct tdm_gate *gate, const struct gate_answer *answer, int fd)
{
        int fds[GATE_MAX_FDS];
        tdm_gate_fn fn = gate->fn;

        if (!fn || answer->n_fds > GATE_MAX_FDS || answer->error != 0) {
                closep(&fd);
                answer_error(gate, TDM_E_PROTOCOL, "the fds that were announced did not come");
                return;
        }
        for (unsigned i = 0; i < answer->n_fds; i++)
                fds[i] = answer->verdict;
        if (answer->n_fds == 1 && answer->verdict == 0)
                fds[0] = fd;
        gate->fn = NULL;
        fn(NULL, (uint8_t)answer->first, fds, answer->n_fds, gate->userdata);
}

static int on_gate_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_gate *gate = userdata;
        struct gate_answer answer;
        int file;
        ssize_t n = gate_receive(gate->fd, &answer, sizeof(answer), &file, MSG_DONTWAIT);

        if (n == -EAGAIN)
                return 0;
        if (n != sizeof(answer)) {
                closep(&file);
                retire(gate);
                answer_error(gate, TDM_E_INTERNAL, "the process that receives files has ended");
                return 0;
        }
        tdm_source_arm(gate->timer, 0);
        if (answer.n_fds != GATE_IDLE) {
                take_answer(gate, &answer, file);
                return 0;
        }
        closep(&file);
        answer_error(gate, TDM_E_INTERNAL, "the process that receives files did not answer");
        gate_release_fds(gate);
        tdm_source_arm(gate->timer, tdm_now_ns() + IDLE_NS);
        return 0;
}

static int gate_new(struct tdm_gates *gates, struct tdm_gate **ret)
{
        char *argv[] = { (char *)"tandemd", (char *)TDM_GATE_OPTION, NULL };
        struct tdm_gate *gate = calloc(1, sizeof(*gate));
        _cleanup_(closep) int theirs = -1;
        int pair[2], r;

        if (!gate)
                return -ENOMEM;
        gate->gates = gates;
        gate->fd = -1;
        tdm_list_append(&gates->list, &gate->node);
        r = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
        if (r == 0) {
                gate->fd = pair[0];
                theirs = pair[1];
                r = tdm_loop_add_timer(gates->loop, on_gate_timer, gate, &gate->timer);
        }
        if (r == 0)
                r = tdm_loop_add_io(gates->loop, gate->fd, EPOLLIN, on_gate_io, gate, &gate->io);
        if (r == 0)
                r = tdm_spawn("/proc/self/exe", argv, theirs, GATE_CONTROL_FD, &gate->pid);
        if (r < 0) {
                gate_free(gate);
                return r;
        }
        *ret = gate;
        return 0;
}

int tdm_gates_new(struct tdm_gates **ret, struct tdm_loop *loop)
{
        struct tdm_gates *gates = calloc(1, sizeof(*gates));

        if (!gates)
                return -ENOMEM;
        gates->loop = loop;
        tdm_list_init(&gates->list);
        *ret = gates;
        return 0;
}

void tdm_gates_destroy(struct tdm_gates *gates)
{
        struct tdm_gate *gate;

        if (!gates)
                return;
        tdm_list_for_each(gate, &gates->list, struct tdm_gate, node)
                gate_free(gate);
        free(gates);
}

void tdm_gates_destroyp(struct tdm_gates **gates)
{
        tdm_gates_destroy(*gates);
        *gates = NULL;
}

/* Without a gate the byte is taken alone. The kernel drops the fds then, and nothing is flushed. */
static int drop(int fd, tdm_gate_fn fn, void *userdata, struct tdm_error *err)
{
        static const int verdict = TDM_GATE_QUOTA;
        uint8_t first;

        if (recv(fd, &first, 1, MSG_DONTWAIT) != 1)
                return tdm_error_set(err, TDM_E_PROTOCOL, "the fds that were announced did not come");
        fn(NULL, first, &verdict, 1, userdata);
        return 0;
}

int tdm_gates_receive(struct tdm_gates *gates, struct tdm_account *account, int fd, bool trusted, tdm_gate_fn fn,
                      void *userdata, struct tdm_gate **ret, struct tdm_error *err)
{
        struct gate_order order = { .trusted = trusted };
        struct tdm_gate *gate, *found = NULL;
        int r;

        *ret = NULL;
        r = tdm_account_charge(account, TDM_RESOURCE_FILES, 1, err);
        if (r != 0)
                return drop(fd, fn, userdata, err);
        tdm_list_for_each(gate, &gates->list, struct tdm_gate, node)
                if (!gate->busy && gate->fd >= 0)
                        found = gate;
        r = found ? 0 : gate_new(gates, &found);
        if (r == 0)
                r = gate_send(found->fd, &order, sizeof(order), fd);
        if (r < 0) {
                tdm_account_release(account, TDM_RESOURCE_FILES, 1);
                return tdm_error_set(err, TDM_E_INTERNAL, "cannot start the process that receives files: %s",
                                     strerror(-r));
        }
        found->busy = true;
        found->account = tdm_account_ref(account);
        found->fn = fn;
        found->userdata = userdata;
        tdm_source_arm(found->timer, tdm_now_ns() + ANSWER_NS);
        *ret = found;
        return 0;
}

void tdm_gate_forget(struct tdm_gate *gate)
{
        if (gate)
                gate->fn = NULL;
}

int tdm_gate_explain(enum tdm_gate_verdict verdict, const char *name, struct tdm_error *err)
{
        switch (verdict) {
        case TDM_GATE_NOT_A_FILE:
                return tdm_error_set(err, TDM_E_NO_MODEL, "cannot open model %.*s: it is not a regular file",
                                     TDM_UTF8_CUT(name, 200));
        case TDM_GATE_FOREIGN:
                return tdm_error_set(err, TDM_E_NO_MODEL,
                                     "cannot open model %.*s: its file system is one that a user serves (FUSE), or "
                                     "stands on one, and may hang; copy the file to a disk, or ask the administrator "
                                     "to put it into a model directory",
                                     TDM_UTF8_CUT(name, 200));
        case TDM_GATE_QUOTA:
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "cannot receive the file of model %.*s: too many files of this user are being "
                                     "received, or hang",
                                     TDM_UTF8_CUT(name, 200));
        case TDM_GATE_TOO_MANY:
                break;
        }
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "a model passed as a file needs exactly one fd");
}
