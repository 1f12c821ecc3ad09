/* The parts of `tandem report`: each appends a section for a person to read. */
#ifndef TANDEM_CLI_REPORT_REPORT_H
#define TANDEM_CLI_REPORT_REPORT_H

#include "client-lib/cli/cli.h"

/* ---- sensors.c: watts, temperatures and clocks, as the kernel's files give them ---- */

enum { MAX_SENSORS = 64, MAX_SENSOR_PIDS = 8 };

enum sensor_kind {
        SENSOR_VALUE,  /* the file holds the value */
        SENSOR_ENERGY, /* the file counts microjoules up: the value is their rate */
        SENSOR_CLOCKS, /* the mean over all CPUs */
        SENSOR_CPU,    /* the share of one CPU that a process takes */
};

struct sensor {
        enum sensor_kind kind;
        char name[64];
        const char *unit;
        char path[320];
        double scale; /* of the file's number */
        uint64_t last, last_ns;
        bool has_last;
        double min, sum, max;
        unsigned n;
};

struct sensors {
        const char *root; /* in which /sys and /proc lie; "": this machine's */
        struct sensor sensors[MAX_SENSORS];
        size_t n;
};

void sensors_find(struct sensors *s, const char *root);
void sensors_add_process(struct sensors *s, const char *name, uint64_t pid);
/* A value that comes from elsewhere; added at its first call. */
void sensors_tell(struct sensors *s, const char *name, const char *unit, double value);
void sensors_sample(struct sensors *s, uint64_t now_ns);
void sensors_write(const struct sensors *s, struct buf *to); /* a table */

/* ---- distance.c ---- */

/* How far the demo model's log-probabilities are from those that another program computed in float64. */
void report_distance(struct buf *to, struct tandem *tandem);
extern const char report_golden_json[]; /* made of tests/golden/tale.golden.json */

/* ---- speeds.c ---- */

/* `tandem bench` by this program; and pairs with llama-bench, where that is in $PATH and file (or NULL) is the model's.
 * An exit status. */
int report_speeds(struct buf *to, struct cli *cli, const char *model, const char *file);
/* What the GPU worker's program measures; nothing where it measures nothing. */
void report_gpu_memory(struct buf *to);

/* ---- load.c ---- */

/* Keeps n_jobs jobs running for this long. An exit status. */
int report_load(struct buf *to, struct tandem *tandem, const char *model, double seconds, unsigned n_jobs,
                const char *root);

/* ---- redact.c ---- */

/* Leaves out what is personal: this user's name and home, other homes, the machine's name, folders of models. */
void report_redact(struct buf *text);

#endif
