/* Shared by the tests of whole models on the Vulkan device: models, and a device run in variants (in what memory, in
 * what chunks, beside what others) whose results must be the same bits. cmocka fails the test where they are not. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_VARIANTS_H
#define TDM_GPU_WORKER_VULKAN_TESTS_VARIANTS_H

#include "gpu-worker/vulkan/tests/test-drive.h"

#define N_IDS 1024u
#define STEP_ROWS 384u /* of a step, where bits are compared */

extern _Atomic uint64_t heartbeat;

/* A random model, and ids of its vocabulary for part(). */
uint8_t *model_new(const char *size, uint32_t type);
uint8_t *model_new_mixed(const char *size, uint32_t type, uint32_t more_type);
/* Rows of a sequence, with logits of the last few. */
struct drive_part part(uint32_t table, uint32_t first, uint32_t n);
/* Whether the device has units for rows of F16. */
bool has_f16_units(void);

struct outcome {
        float *hidden; /* [n][d_model] */
        struct tdm_result results[N_IDS];
        bool has_result[N_IDS];
        uint64_t logit_blocks; /* that came to the host */
};

struct variant {
        const char *memory;                                       /* TANDEM_VULKAN_MEMORY */
        uint32_t n_rows, chunk, n_others, run_blocks, restart_at; /* 0: never */
        bool anywhere, dmabuf, in_pieces;
        enum tdm_kv_type kv;                 /* 0: the precision's own */
        const char *submission;              /* rows times blocks in one; NULL: as always */
        const char *logits;                  /* "whole": all of them come to the host */
        uint32_t top_k;                      /* 0: as always */
        bool greedy;                         /* and nothing else is reported */
        const struct tdm_sampling *sampling; /* NULL: that of all others */
        uint32_t single_from;                /* from here on each sequence has one row in a step; 0: never */
        uint32_t few;                        /* or this many; 0: one */
        const char *rows;                    /* TANDEM_VULKAN_ROWS; NULL: as it is */
};

/* A device as a variant wants it, with the model: loading it is what takes long on a GPU. */
struct drive *drive_of(const uint8_t *weights, const struct variant *v);
/* On drive_of(v), or on that of a variant that differs in rows, chunks and sampling alone. */
struct outcome run_on(struct drive *drive, const uint8_t *weights, const struct variant *v);
struct outcome run_variant(const uint8_t *weights, const struct variant *v);
/* Returns how many blocks of logits came to the host of the first. */
uint64_t same_bits(const uint8_t *weights, const struct variant *base, const struct variant *variants,
                   unsigned n_variants);

/* Two devices with a model: to the host of one come those logits that can be chosen, to that of the other all. */
struct choosers {
        const uint8_t *weights;
        struct drive *few, *whole;
};

struct choosers choosers_new(const uint8_t *weights);
void choosers_deinit(struct choosers *c);
/* The same of two drives that have the model already. */
uint64_t same_results(const struct choosers *c, const struct variant *v);

#endif
