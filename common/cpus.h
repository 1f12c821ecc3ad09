/* Sets of CPUs as people write them ("0,2-5"), for binding a worker to some of them. No system calls: the fleet asks
 * the kernel which CPUs the machine has and the daemon may use. */
#ifndef TDM_COMMON_CPUS_H
#define TDM_COMMON_CPUS_H

#include <sched.h>
#include <stddef.h>

/* 0, or -EINVAL and a sentence in why. An empty text is refused. */
int tdm_cpus_parse(const char *text, cpu_set_t *ret, char *why, size_t why_size);
/* The shortest way to write a set; cut at size. */
void tdm_cpus_format(const cpu_set_t *set, char *text, size_t size);

#endif
