/* How fast this machine's memory can be read, which bounds how fast it generates for one job, and how fast its CPU
 * multiplies, which bounds how fast it reads. */
#ifndef TANDEM_CLI_ROOFLINE_H
#define TANDEM_CLI_ROOFLINE_H

#include "common/util.h"

struct roofline {
        uint64_t total_bytes, available_bytes; /* of memory */
        unsigned n_threads;
        double memory_bytes_per_s;
        double cpu_macs_per_s; /* of roofline_measure_cpu(): multiplications with an addition */
        const char *cpu_how;   /* by which instructions */
};

/* Reads memory with a thread for each CPU that this process may use, for about a fifth of a second. */
void roofline_measure(struct roofline *ret);
/* Multiplies and adds f32 in registers on as many threads, for about a fifth of a second. */
void roofline_measure_cpu(struct roofline *ret);

#endif
