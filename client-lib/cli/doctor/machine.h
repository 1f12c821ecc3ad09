/* What the parts of the doctor share: the machine that is looked at, its files, and what is found.
 *
 * The machine is a folder with /sys, /proc, /dev, /usr, /lib and /etc in it; "" is this machine. Everything is read
 * from files: no device is started and no library of a driver is loaded, so that a broken driver cannot take the doctor
 * with it, and so that a test can make up a machine. */
#ifndef TANDEM_CLI_DOCTOR_MACHINE_H
#define TANDEM_CLI_DOCTOR_MACHINE_H

#include "client-lib/cli/cli.h"
#include "client-lib/cli/doctor.h"

enum { DOCTOR_MAX_DEVICES = 16 };

/* What is said first of all that is found: the lowest. A thing that wants mending comes before any advice. */
enum doctor_rank {
        RANK_START, /* tandemd cannot start */
        RANK_DAEMON,
        RANK_GPU,
        RANK_NPU,
        RANK_NPU_SOFTWARE,
        RANK_WORKER,
        RANK_SPEED,
        RANK_CLOCK,
        RANK_MEMORY,
        RANK_REST,
};

/* A device that a worker could use, as its bus and its driver's class show it. */
struct device {
        char name[64];   /* "renderD128", "accel0", or its address on the bus */
        char driver[48]; /* "": none */
        unsigned vendor, product, revision;
        bool has_node, opens, ready;
        char fails[96]; /* why its node does not open */
        char firmware[64];
        char folder[4500];              /* of sysfs */
        uint64_t vram_bytes, gtt_bytes; /* 0: not said */
};

struct doctor {
        struct buf *to;
        const char *root;
        unsigned n_problems;
        unsigned kernel; /* 6014: Linux 6.14 */
        uint64_t ram_bytes;
        struct device gpus[DOCTOR_MAX_DEVICES], npus[DOCTOR_MAX_DEVICES];
        size_t n_gpus, n_npus;
        bool gpu_ready, npu_ready;

        /* The one thing that matters first. */
        unsigned first_rank; /* 0: none yet */
        char first[1100], first_mend[640];
};

void doctor_ok(struct doctor *d, const char *what, const char *fmt, ...) _printf_(3, 4);
void doctor_note(struct doctor *d, const char *what, const char *fmt, ...) _printf_(3, 4);
/* It works, and could work better. mend: what helps. */
void doctor_advise(struct doctor *d, enum doctor_rank rank, const char *mend, const char *what, const char *fmt, ...)
        _printf_(5, 6);
/* It does not work. mend: the command that helps. */
void doctor_problem(struct doctor *d, enum doctor_rank rank, const char *mend, const char *what, const char *fmt, ...)
        _printf_(5, 6);

/* ---- files ---- */
void doctor_path(const struct doctor *d, char *to, size_t size, const char *fmt, ...) _printf_(4, 5);
/* The first line; "" where there is none. */
void doctor_read_line(const char *path, char *to, size_t size);
void doctor_read(const struct doctor *d, const char *path, char *to, size_t size); /* a path on the machine */
bool doctor_has(const struct doctor *d, const char *folder, const char *file);
/* Calls fn for each name in the folder that begins so, in the order of the names. */
void doctor_each(struct doctor *d, const char *folder, const char *prefix,
                 void (*fn)(struct doctor *d, const char *path, const char *name));
/* The kernel was started with this word. */
bool doctor_booted_with(const struct doctor *d, const char *word);
/* This user's session is in the group; or the user is, and the session began before. */
bool doctor_in_group(const struct doctor *d, const char *group, bool *ret_listed);

/* ---- system.c ---- */
void doctor_look_at_cpu(struct doctor *d);
void doctor_look_at_memory(struct doctor *d);
void doctor_look_at_kernel(struct doctor *d);
void doctor_look_at_groups(struct doctor *d);
void doctor_look_at_limits(struct doctor *d);
void doctor_look_at_power(struct doctor *d);

/* ---- devices.c, npu.c ---- */
void doctor_look_at_devices(struct doctor *d);
void doctor_judge_npu(struct doctor *d, struct device *n);
const char *doctor_vendor(unsigned vendor);
const char *doctor_join_group(const struct doctor *d, const char *group, char *to, size_t size);

/* ---- gpu-use.c ---- */
void doctor_look_at_gpu_use(struct doctor *d);

/* ---- daemon.c ---- */
/* False: no daemon said what its workers do. */
bool doctor_ask_daemon(struct doctor *d, struct cli *cli);

#endif
