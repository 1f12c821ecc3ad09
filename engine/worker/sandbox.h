/* What a worker gives up before it handles users' data: files (Landlock), system calls (seccomp), being read by its
 * siblings (not dumpable). Best effort by kernel, and what is missing is said, because `tandem status` shows it.
 *
 * Order matters. Landlock binds the calling thread and the threads it makes later, so what a driver may open is settled
 * before any driver is loaded (tdm_sandbox_driver_files()), and the rest is given up (tdm_sandbox_files()) before a
 * device that needs no files makes its threads; seccomp comes last and binds all threads at once. TANDEM_SANDBOX=off
 * leaves all of it out (for debuggers), and so do sanitizer builds, which need /proc and more. */
#ifndef TDM_ENGINE_WORKER_SANDBOX_H
#define TDM_ENGINE_WORKER_SANDBOX_H

#include "engine/device/device.h"

struct tdm_sandbox {
        bool off;
        const char *off_reason;
        bool not_dumpable;
        int landlock; /* ABI in force, 0: none */
        bool no_files;
        bool seccomp;
        bool makes_code; /* the device's driver maps memory executable */
        char text[128];
};

/* No core dumps, no ptrace by others, no new privileges, and from now on no socket, no io_uring, no other process's
 * memory (EPERM), whatever a driver does as it is opened. Call first, with one thread. */
int tdm_sandbox_init(struct tdm_sandbox *sandbox);
/* Leaves only what a driver needs of the file system: libraries and descriptions of devices to read; the nodes of this
 * worker's kind of device, and a folder for compiled shaders, to write. No new TCP, no signals to others. more: a
 * folder that was configured, or NULL. */
int tdm_sandbox_driver_files(struct tdm_sandbox *sandbox, enum tdm_worker_index worker, const char *more);
/* No file system at all, no new TCP, no signals to others. */
int tdm_sandbox_files(struct tdm_sandbox *sandbox);
/* Only the system calls of a worker that has everything it needs. Files can be opened no more (EACCES), what no worker
 * ever does (sockets, exec, io_uring, ptrace, …) kills the process, the rest is EPERM. */
int tdm_sandbox_syscalls(struct tdm_sandbox *sandbox);
/* "landlock 4, seccomp, not dumpable", or what is missing. */
const char *tdm_sandbox_describe(struct tdm_sandbox *sandbox);

#endif
