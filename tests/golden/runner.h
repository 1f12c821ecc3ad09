/* Runs a model on the host device, or beside another one, without any daemon: loads a GGUF, builds steps in a segment
 * of its own, keeps page tables with scattered page numbers, frees window pages as they slide out, and fills every free
 * page with NaNs, so that a read of what is not there shows. Test code: ends the program with a message where something
 * fails. */
#ifndef TANDEM_TESTS_RUNNER_H
#define TANDEM_TESTS_RUNNER_H

#include "engine/device/device.h"

#define RUNNER_TABLES 8u

struct runner_model {
        uint8_t *weights;
        const struct tdm_hparams *hp;
        /* Rows of the file that travel in steps; NULL: the model has none. */
        struct tdm_gguf *gguf;
        const uint8_t *inputs;
        uint32_t input_bytes;
};

void runner_model_load(struct runner_model *ret, const char *path);
/* Before any device has loaded it: YaRN's range is rounded to whole pairs. Some references are made so. */
void runner_model_round_yarn(struct runner_model *model);
void runner_model_unload(struct runner_model *model);

struct runner_options {
        const struct tdm_device_ops *ops; /* of the device that runs attention; NULL: the host device */
        enum tdm_precision precision;
        enum tdm_kv_type kv_type; /* 0: the precision's own */
        const char *cpu;          /* TANDEM_CPU; NULL: the best */
        unsigned n_threads;
        unsigned split_threads; /* not 0: attention runs on a second device with this many threads */
        uint32_t max_rows;      /* of a step; 0: 256 */
        uint32_t logits_rows;   /* fewer than the device would hold at once; 0: its own number */
        uint32_t max_positions; /* of a sequence, 0: the model's context */
        uint32_t max_pictures;  /* of a step */
};

struct runner;

struct runner *runner_new(const struct runner_model *model, const struct runner_options *options);
void runner_destroy(struct runner *runner);
const char *runner_describe(const struct runner *runner);                        /* the device that runs attention */
const struct tdm_device_model *runner_device_model(const struct runner *runner); /* of the same */
uint64_t runner_n_saturated(const struct runner *runner);
/* Time spent in blocks of a kind since the last reset. */
double runner_block_seconds(const struct runner *runner, int kind);
void runner_reset_seconds(struct runner *runner);

/* Rows that stand in place of ids. */
struct runner_picture {
        uint32_t first, n; /* positions */
        const float *rows; /* [n][d_model] */
};

/* Rows of one sequence: ids[first … first + n - 1] at those positions. A part has the whole of a picture or none of it.
 */
struct runner_part {
        uint32_t table;
        const uint32_t *ids; /* [n_ids] */
        uint32_t n_ids, first, n;
        uint32_t n_logits; /* of the last rows, this many, scored against the next id where there is one */
        bool whole;        /* and of the first row, so that no row behind it stops before the last layer */
        struct tdm_sampling sampling;
        const struct runner_picture *pictures; /* [n_pictures], from left to right; their ids are 0 */
        uint32_t n_pictures;
};

/* One step. hidden [rows of all parts][residual_width] and results [n_logits of all parts] may be NULL. */
void runner_step(struct runner *runner, const struct runner_part *parts, uint32_t n_parts, float *hidden,
                 struct tdm_result *results);
/* Forgets a sequence: its pages are free, and NaN, again. */
void runner_forget(struct runner *runner, uint32_t table);

#endif
