/* An open NPU: the XRT device, its context with the set of programs, products that run on it, and what is done when it
 * fails.
 *
 * A product is a matrix product planned for one shape; the weights of each layer are put into buffers of the device
 * once, the buffers of input and output and the commands are shared by all layers of that shape. run() is synchronous.
 *
 * Faults. A command that ends with an error is sent again; a context that is lost (the watchdog killed a command, or
 * all commands are aborted) is made anew and the product repeated, which changes no bit since inputs are still there.
 * The process leaves where that does not help, where a command goes on after it was killed, or where the device is
 * gone. XRT aborts it anyway when an unfinished run is freed, and only a new process starts with a clean device.
 * tandemd sees a worker that died, and the jobs go on.
 *
 * One thread calls, but for put and get, which the pool's threads call for different rows. */
#ifndef TDM_NPU_NPU_H
#define TDM_NPU_NPU_H

#include <stdatomic.h>
#include "npu-worker/plan/plan.h"
#include "npu-worker/xrt/front.h"

struct tdm_npu;
struct tdm_npu_product;
struct tdm_npu_weights;

struct tdm_npu_config {
        bool emulated;
        const char *programs;  /* directory; NULL: the usual one */
        uint64_t budget_bytes; /* of buffers; 0: a quarter of the machine's memory */
        _Atomic uint64_t *heartbeat;
};

struct tdm_npu_counters {
        uint64_t n_submissions;
        uint64_t n_commands;
        uint64_t n_macs;     /* multiplications of rows and weights that are really there */
        uint64_t n_retries;  /* of submissions */
        uint64_t n_contexts; /* made anew */
};

/* Everything that needs files is opened here: afterwards they may be taken away. */
int tdm_npu_open(struct tdm_npu **ret, const struct tdm_npu_config *config, struct tdm_error *err);
void tdm_npu_close(struct tdm_npu *npu);
const struct tdm_npu_manifest *tdm_npu_manifest(const struct tdm_npu *npu);
const struct tdm_npu_counters *tdm_npu_counters(const struct tdm_npu *npu);
const char *tdm_npu_flavour(const struct tdm_npu *npu);
uint64_t tdm_npu_memlock(const struct tdm_npu *npu); /* RLIMIT_MEMLOCK; UINT64_MAX: none */
uint64_t tdm_npu_budget_left(const struct tdm_npu *npu);
uint64_t tdm_npu_budget(const struct tdm_npu *npu);
/* Ends this process, for what only a new one can mend. */
_Noreturn void tdm_npu_leave(const struct tdm_npu *npu, const char *what);

/* max_rows at a time; fewer where no program takes this many: tdm_npu_product_rows(). */
int tdm_npu_product_new(struct tdm_npu *npu, const struct tdm_npu_plan *plan, uint32_t max_rows,
                        struct tdm_npu_product **ret, struct tdm_error *err);
void tdm_npu_product_destroy(struct tdm_npu_product *product);
uint32_t tdm_npu_product_rows(const struct tdm_npu_product *product);
enum tdm_npu_type tdm_npu_product_type(const struct tdm_npu_product *product);

/* TDM_E_NO_MEMORY: over the budget. Filled by fill(), output for output, in any order and by any thread, then finish().
 */
int tdm_npu_weights_new(struct tdm_npu_product *product, struct tdm_npu_weights **ret, struct tdm_error *err);
void tdm_npu_weights_fill(struct tdm_npu_weights *weights, uint32_t output, const float *values); /* [cols] */
/* The same where the product is in int4: q [cols], a scale for each 32 of them. Outputs 2 i and 2 i + 1 share bytes:
 * one thread fills both. */
void tdm_npu_weights_fill_q4(struct tdm_npu_weights *weights, uint32_t output, const int8_t *q, const uint16_t *scales);
int tdm_npu_weights_finish(struct tdm_npu_weights *weights, struct tdm_error *err);
void tdm_npu_weights_destroy(struct tdm_npu_weights *weights);

void tdm_npu_product_put(struct tdm_npu_product *product, uint32_t row, const float *x); /* [cols] */
/* Rows 0 … n_rows - 1, at most tdm_npu_product_rows(). Does not return where no retry helps. */
void tdm_npu_product_run(struct tdm_npu_product *product, const struct tdm_npu_weights *weights, uint32_t n_rows);
/* Outputs first … first + n - 1 of a row. */
void tdm_npu_product_get(const struct tdm_npu_product *product, const struct tdm_npu_weights *weights, uint32_t row,
                         uint32_t first, uint32_t n, float *y);

#endif
