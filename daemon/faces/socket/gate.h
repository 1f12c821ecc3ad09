/* The gate: fds that users pass to a system daemon are received by other processes, which pass on what is harmless.
 *
 * A process that has received an fd must close it, and to close one asks its file system (flush). A file system that a
 * user serves (FUSE) may never answer. Then the thread hangs until that user lets go, no signal wakes it, and its
 * process cannot end. So tandemd receives no fd of a stranger. It sees that fds ride on a byte of a connection
 * (common/frame.c) and hands the connection to a gate, a process of its own (gate-process.c). That one receives, looks,
 * and passes on one regular file of a file system that no user serves. If it hangs, it hangs alone: its account is
 * charged for it (TDM_RESOURCE_FILES) until it comes back, and tandemd ends without it.
 *
 * Loop thread only. */
#ifndef TDM_DAEMON_FACES_SOCKET_GATE_H
#define TDM_DAEMON_FACES_SOCKET_GATE_H

#include "common/loop.h"
#include "daemon/accounts/accounts.h"

#define TDM_GATE_OPTION "--gate" /* of tandemd: run as a gate, with the control socket on fd 3 */

/* Stands in place of an fd that was not passed on. -1: an fd that was taken. */
enum tdm_gate_verdict {
        TDM_GATE_NOT_A_FILE = -2, /* not a regular file */
        TDM_GATE_FOREIGN = -3,    /* of a file system that a user serves, or that stands on one */
        TDM_GATE_TOO_MANY = -4,   /* more than one came */
        TDM_GATE_QUOTA = -5,      /* no gate is left for this account */
};

struct tdm_gates;
struct tdm_gate;

/* first: the byte that the fds rode on. fds: one fd, to be taken, or n_fds verdicts. err (else NULL): nothing was
 * received, and the connection cannot go on. */
typedef void (*tdm_gate_fn)(const struct tdm_error *err, uint8_t first, const int *fds, unsigned n_fds, void *userdata);

int tdm_gates_new(struct tdm_gates **ret, struct tdm_loop *loop);
/* Gates that are busy are left to themselves. */
void tdm_gates_destroy(struct tdm_gates *gates);
void tdm_gates_destroyp(struct tdm_gates **gates);

/* Receives the next byte of the connection fd (borrowed) with its fds; fn is called from the loop. trusted: files of
 * any file system are passed on. account is charged. */
int tdm_gates_receive(struct tdm_gates *gates, struct tdm_account *account, int fd, bool trusted, tdm_gate_fn fn,
                      void *userdata, struct tdm_gate **ret, struct tdm_error *err);
/* The caller waits for it no longer; fn is not called. */
void tdm_gate_forget(struct tdm_gate *gate);
/* The error that a verdict means. */
int tdm_gate_explain(enum tdm_gate_verdict verdict, const char *name, struct tdm_error *err);

/* gate-process.c: the process itself; returns its exit status. */
int tdm_gate_run(int control);

#endif
