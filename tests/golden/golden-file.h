/* Reference values of a model, as tools like golden.py and gemma_ref.py write them: a JSON array of cases, or an
 * object with such an array. Test code:
 * reads files of this tree, and ends the program with a message on anything else. */
#ifndef TANDEM_TESTS_GOLDEN_FILE_H
#define TANDEM_TESTS_GOLDEN_FILE_H

#include "common/util.h"

#define GOLDEN_TOP 10u

struct golden_case {
        uint32_t *ids; /* [n_ids] */
        uint32_t n_ids;
        uint32_t prompt_len; /* 1 where the file says nothing: every position counts */
        double *nll;         /* [n_nll]: of ids[i + 1] after ids[0 … i] */
        uint32_t n_nll;
        struct {
                uint32_t id;
                double logprob;
        } (*top)[GOLDEN_TOP]; /* [n_top]: top[i] is the distribution after ids[0 … prompt_len - 1 + i] */
        uint32_t n_top;
        double *gap; /* [n_gap], n_top or 0: of a mixture of experts, from the last one in use to the next */
        uint32_t n_gap;
        double *vector; /* [n_vector] of the text, where the model makes vectors: nll and top are empty then */
        uint32_t n_vector;
};

struct golden_file {
        struct golden_case *cases;
        uint32_t n_cases;
};

void golden_file_read(struct golden_file *ret, const char *path);
void golden_file_deinit(struct golden_file *file);

#endif
