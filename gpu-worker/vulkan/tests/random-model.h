/* A Gemma 3 of a known size with random weights, made in memory in the layout of the weights segment, without any file:
 * for benchmarks and tests of devices. Values are small and finite, so that what is computed stays so; nothing is
 * learned. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_RANDOM_MODEL_H
#define TDM_GPU_WORKER_VULKAN_TESTS_RANDOM_MODEL_H

#include "engine/weights/weights.h"

/* "1b", "4b", "12b", "27b" (as FACTS of the real ones), "tiny" (odd sizes, quickly computed), "tiny-128" and
 * "tiny-256" (heads of that size). false: no such size. */
bool random_model_hparams(const char *size, struct tdm_hparams *ret);
/* Matrices of `type`, the embedding of `embedding_type`. A checked segment, page-aligned; NULL and a message on stderr.
 */
uint8_t *random_model_new(const struct tdm_hparams *hp, uint32_t type, uint32_t embedding_type);
/* The same with another type for the values' and the down projections of every second layer, as mixed files have. */
uint8_t *random_model_new_mixed(const struct tdm_hparams *hp, uint32_t type, uint32_t more_type,
                                uint32_t embedding_type);
void random_model_destroy(uint8_t *weights);

#endif
