/* How a test talks to the emulated NPU: a page that it maps from the file named by TANDEM_NPU_EMULATED_CONTROL when it
 * is opened. The test writes a fault, the next command takes it (and only that one, in whichever process it runs);
 * counters go the other way. A number whose place is fixed, so that a script can read and write it. */
#ifndef TDM_NPU_EMULATED_CONTROL_H
#define TDM_NPU_EMULATED_CONTROL_H

#include <stdatomic.h>
#include "common/util.h"

#define TDM_EMULATED_CONTROL_ENV "TANDEM_NPU_EMULATED_CONTROL"
#define TDM_EMULATED_CONTROL_BYTES 4096u

enum tdm_emulated_fault {
        TDM_EMULATED_FAULT_NONE,
        TDM_EMULATED_FAULT_ERROR,    /* the command ends with an error, its output is garbage */
        TDM_EMULATED_FAULT_HANG,     /* it never ends; the watchdog kills it after 2 s and with it the context */
        TDM_EMULATED_FAULT_CONTEXT,  /* the context is lost: this and all later commands in it are aborted */
        TDM_EMULATED_FAULT_GONE,     /* the device is gone: every call fails until the process opens it anew */
        TDM_EMULATED_FAULT_FIRMWARE, /* neither the command nor the watchdog ever answers */
        TDM_EMULATED_FAULT_SLOW,     /* it takes 0.3 s longer */
        TDM_EMULATED_FAULT_SUSPEND,  /* half a second of nothing, then all contexts are lost: the machine slept */
        TDM_EMULATED_N_FAULTS
};

struct tdm_emulated_control {
        _Atomic uint32_t fault;      /* 0: enum tdm_emulated_fault, set by the test, cleared when it is taken */
        _Atomic uint32_t n_faults;   /* 4: taken */
        _Atomic uint64_t n_commands; /* 8: that completed */
        _Atomic uint64_t n_macs;     /* 16: multiplications that they did */
        _Atomic uint64_t n_contexts; /* 24: opened */
        _Atomic uint64_t n_refused;  /* 32: calls that a driver would have refused */
        _Atomic uint64_t bytes_to_device, bytes_from_device; /* 40, 48 */
        _Atomic uint64_t absent_until_ns; /* 56: of tdm_now_ns(), set by the test: until then nothing can be opened */
};

#endif
