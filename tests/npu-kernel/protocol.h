/* What the preloaded library and the server say to each other, over a SOCK_SEQPACKET socket in the directory that
 * TANDEM_NPU_KERNEL names. A connection is an open file of /dev/accel/accel0, but for those of tests, and for the one
 * that a program makes before it has a sandbox, to open files by later. The descriptor that open() returns is the
 * socket itself, so that dup(), fork(), passing it on and the end of a process mean what they mean to a driver.
 *
 * Each request carries the end of a socket pair for its reply, so that threads and processes that share the file never
 * take each other's replies and a wait blocks nobody else. The library copies what the arguments of an ioctl point to:
 * "extra" is what a driver would copy from user space, a fault says that it could not. */
#ifndef TESTS_NPU_KERNEL_PROTOCOL_H
#define TESTS_NPU_KERNEL_PROTOCOL_H

#include <stdalign.h>
#include <stdint.h>

#define NPK_ENV "TANDEM_NPU_KERNEL"
#define NPK_SOCKET "npu-kernel.socket"
#define NPK_TREE "tree" /* beside the socket: what stands for /sys and /dev */
#define NPK_MAX_ARG 64u
#define NPK_MAX_EXTRA 98304u

enum npk_kind {
        NPK_IOCTL,
        NPK_MMAP,     /* arg: offset, length; the reply has a descriptor, and where in it to map */
        NPK_MAPPED,   /* arg: offset, length, address */
        NPK_UNMAPPED, /* arg: address, length */
        NPK_CONTROL, /* extra: a line of a test's; the reply's extra is the answer. The first request of a connection */
        NPK_CHANNEL, /* this connection is no open file, but one that opens others */
        NPK_OPEN,    /* arg: i32 pid; the reply's descriptor is a new open file */
};

struct npk_request {
        uint32_t kind;
        uint32_t nr;      /* of the ioctl */
        uint32_t n_extra; /* bytes that follow */
        uint32_t fault;   /* what an argument points to cannot be read */
        alignas(8) uint8_t arg[NPK_MAX_ARG];
};

struct npk_reply {
        int32_t result; /* 0 or -errno */
        uint32_t n_extra;
        alignas(8) uint8_t arg[NPK_MAX_ARG];
};

#endif
