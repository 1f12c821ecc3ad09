/* How a request of the library in a program (preload.c) reaches the emulated driver: one of two files is linked in. */
#ifndef TESTS_NPU_KERNEL_WAY_H
#define TESTS_NPU_KERNEL_WAY_H

#include <stdbool.h>

#include "tests/npu-kernel/protocol.h"

/* Where what stands for /sys and /dev lies, in NPK_TREE. NULL: there is no device. */
const char *npk_directory(void);
bool npk_is_ours(int fd);
/* This thread is in the emulated driver: what it maps and closes is its own. */
bool npk_is_kernel(void);
/* Whether a mapping that is asked for as locked is, and counts against RLIMIT_MEMLOCK as with a real device. */
bool npk_locks(void);
/* A file of the device, or -1 and errno. stand_in: what open() would open in the tree. */
int npk_open(const char *stand_in, int flags);
/* 0 or -errno. extra is read up to r->n_extra; what comes back goes to ret_extra [NPK_MAX_EXTRA], and the reply's arg
 * into r. *ret_fd is the caller's. */
int npk_request(int fd, struct npk_request *r, const void *extra, int send_fd, uint8_t *ret_extra,
                uint32_t *ret_n_extra, int *ret_fd);
/* Moves a descriptor out of the way of programs that count on a number. */
int npk_high(int fd);

#endif
