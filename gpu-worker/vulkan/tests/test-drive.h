/* Drives one device, or two that share a model as two workers do, in process: builds steps in a segment of its own,
 * keeps page tables with scattered page numbers and fills free pages with NaNs, so that a read of what is not there
 * shows. Test and benchmark code: ends the program with a message where something fails. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_TEST_DRIVE_H
#define TDM_GPU_WORKER_VULKAN_TESTS_TEST_DRIVE_H

#include "engine/device/device.h"

#define DRIVE_TABLES 32u

enum drive_plan {
        DRIVE_SINGLE,  /* all on the first device */
        DRIVE_SPLIT,   /* attention on the second */
        DRIVE_SWAPPED, /* all but attention on the second */
        DRIVE_COMPARE, /* each block on both, from the second's hidden rows: see drive_difference() */
};

struct drive_options {
        const struct tdm_device_ops *ops[2]; /* the second: NULL where there is none */
        enum drive_plan plan;
        enum tdm_precision precision;
        enum tdm_kv_type kv;    /* 0: the precision's own */
        uint32_t max_rows;      /* 0: 256 */
        uint32_t max_positions; /* of a sequence, 0: the model's context */
        uint32_t n_tables;      /* 0: DRIVE_TABLES */
        bool see_hidden;        /* the head is planned apart, so that hidden rows come back */
        bool keep_pages;        /* do not fill free pages (a benchmark) */
        bool anywhere;          /* do not say where hidden rows will lie */
        bool dmabuf;            /* they lie in a segment with a dma-buf: only where there is udmabuf */
        /* the first device gets its weights so, its cache between them; what is not there yet cannot be read */
        bool in_pieces;
        const uint8_t *inputs; /* rows of the model's file that travel in steps; NULL: it has none */
        uint32_t run_blocks;   /* 0: as many as there are; else no run() has more */
};

/* Rows of one sequence: ids[first … first + n - 1] at those positions. */
struct drive_part {
        uint32_t table;
        const uint32_t *ids; /* [n_ids] */
        uint32_t n_ids, first, n;
        uint32_t n_logits; /* of the last rows, this many, scored against the next id where there is one */
        struct tdm_sampling sampling;
};

struct drive;

/* weights: a checked segment, page-aligned. */
struct drive *drive_new(const uint8_t *weights, const struct drive_options *options);
void drive_destroy(struct drive *drive);
struct tdm_device *drive_device(struct drive *drive, unsigned i);
/* What the model says of itself. */
const char *drive_describe(const struct drive *drive, unsigned i);
/* The devices end and begin again; the cache's segment stays, as after the death of a worker. */
void drive_restart(struct drive *drive);
/* hidden [rows of all parts][residual_width] and results [n_logits of all parts] may be NULL. */
void drive_step(struct drive *drive, const struct drive_part *parts, uint32_t n_parts, float *hidden,
                struct tdm_result *results);
/* [n_logits of all parts][d_model] of the last step: where the model makes vectors. */
const float *drive_vectors(const struct drive *drive);
/* A sequence's pages are free, and NaN, again. */
void drive_forget(struct drive *drive, uint32_t table);
/* With DRIVE_COMPARE: the largest difference that a block of this kind made between the two devices, as a share of the
 * rows' root mean square; of sample: of log-probabilities, as it is. */
double drive_difference(const struct drive *drive, enum tdm_block_kind kind);
uint64_t drive_n_saturated(const struct drive *drive);

#endif
