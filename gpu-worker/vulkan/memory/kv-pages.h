/* The twin's memory, in huge pages: see kv-pages.c. Only kv.c uses it. One thread calls; a thread of its own makes
 * pages ahead. */
#ifndef TDM_GPU_WORKER_VULKAN_MEMORY_KV_PAGES_H
#define TDM_GPU_WORKER_VULKAN_MEMORY_KV_PAGES_H

#include "common/pool.h"
#include "engine/step/kv.h"

struct tdm_vk_pages;

/* *ret is NULL where it cannot be had in huge pages; base stays mapped until free. The pool is used by make() alone. */
int tdm_vk_pages_new(struct tdm_vk_pages **ret, const struct tdm_kv_geometry *kv, uint8_t *base,
                     struct tdm_pool *threads);
void tdm_vk_pages_free(struct tdm_vk_pages *pages); /* NULL: nothing */
/* A layer of a page of the cache will be written; then make() asks for all that was never asked for. */
void tdm_vk_pages_want(struct tdm_vk_pages *pages, uint32_t layer, uint32_t page);
void tdm_vk_pages_make(struct tdm_vk_pages *pages);
/* So many sequences may soon want a page each; does not wait. */
void tdm_vk_pages_ahead(struct tdm_vk_pages *pages, uint32_t n_seqs);

#endif
