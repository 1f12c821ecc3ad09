/* The cache of a model on a device, and its twin: the segment that other workers and later processes read.
 *
 * One thread uses it, the one that runs the model; copies into the twin run on the device's pool. Positions count
 * tokens of a sequence, a page holds TDM_KV_PAGE_TOKENS of them. Functions that return int return 0, a TDM_E_* outcome
 * or -errno, and fill err then. */
#ifndef TDM_GPU_WORKER_VULKAN_MEMORY_KV_H
#define TDM_GPU_WORKER_VULKAN_MEMORY_KV_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "gpu-worker/vulkan/device/gpu.h"

/* What the device's copy of a sequence's cache is known to hold. */
struct tdm_vk_sequence {
        uint32_t n_valid; /* positions 0 … n_valid - 1 that are still in the tables; 0: nothing */
        uint32_t epoch;
        uint64_t last_hash; /* of the twin's last value row */
};

/* Where a layer's keys and values lie. A layer that reads another's has that one's. */
struct tdm_vk_kv_layer {
        uint64_t pieces;     /* address of its pieces' addresses */
        uint32_t first;      /* its first piece in buffers */
        uint32_t page_bytes; /* from page to page */
        uint32_t piece_shift;
};

struct tdm_vk_pages;

struct tdm_vk_kv {
        struct tdm_vk_device *device; /* these four are borrowed for the cache's life; NULL: not initialised */
        const struct tdm_hparams *hp;
        const struct tdm_kv_geometry *geometry;
        const struct tdm_steps_limits *limits;
        uint8_t *base; /* of the twin, [geometry.size_bytes]; NULL: none */
        bool clear;    /* attention reads what was never stored, times zero: it must be finite */

        struct tdm_vk_buffer *buffers; /* pieces of 1 << piece_shift pages, layer by layer; or the imported segment */
        unsigned n_buffers;
        struct tdm_vk_buffer pieces; /* their addresses */
        bool imported;
        struct tdm_error error;            /* why there is no cache; code 0: there is, or none was given */
        struct tdm_vk_pages *pages;        /* NULL: the kernel makes the segment's memory at the first touch */
        struct tdm_vk_buffer log;          /* two halves of [layer of the submission][row][kv head][key, value] */
        struct tdm_vk_kv_layer *layers;    /* [n_layers] */
        struct tdm_vk_sequence *sequences; /* [n_tables] */
        uint32_t *known_pages;             /* [n_tables][groups][table_entries] */
};

/* *kv is all zero. -ENOMEM; deinit then too. */
int tdm_vk_kv_init(struct tdm_vk_kv *kv, struct tdm_vk_device *device, const struct tdm_hparams *hp,
                   const struct tdm_kv_geometry *geometry, const struct tdm_steps_limits *limits);
/* Also of one that is all zero. The device uses it no more. */
void tdm_vk_kv_deinit(struct tdm_vk_kv *kv);
/* Another segment, or none: kv->error says where that failed. Addresses of the former one are void. */
void tdm_vk_kv_set(struct tdm_vk_kv *kv, uint8_t *base);
/* Bytes that one attention layer logs of a row, at most. */
uint64_t tdm_vk_kv_log_row_bytes(const struct tdm_vk_kv *kv);
/* How many attention layers of n_rows rows a half of the log holds. */
uint32_t tdm_vk_kv_log_layers(const struct tdm_vk_kv *kv, uint32_t n_rows);
/* Before the first attention layer of a step on this device: what the step's sequences look back on is on the device.
 */
int tdm_vk_kv_begin(struct tdm_vk_kv *kv, const struct tdm_step *step, struct tdm_error *err);
/* After a submission with attention layers [first, first + n): their rows go from its half of the log into the twin. */
void tdm_vk_kv_behind(struct tdm_vk_kv *kv, const struct tdm_step *step, uint32_t first_layer, uint32_t n_layers,
                      uint32_t half);
/* All attention layers of the step have run here. */
void tdm_vk_kv_end(struct tdm_vk_kv *kv, const struct tdm_step *step);

/* Fills in the pages of an item's first span; all else of the item is filled in. table: its sequence's; first_key: what
 * its first row sees first. */
static inline void tdm_vk_item_pages(struct tdm_vk_item *item, const uint32_t *table, uint32_t first_key)
{
        uint32_t span = item->span_first * TDM_VK_SPAN, end = TDM_MIN(item->end, span + TDM_VK_SPAN),
                 first = TDM_MAX(first_key, span) / TDM_VK_PAGE_TOKENS, last = (end - 1) / TDM_VK_PAGE_TOKENS;

        for (uint32_t i = 0; i < TDM_VK_SPAN / TDM_VK_PAGE_TOKENS; i++)
                item->pages[i] = table[TDM_MIN(TDM_MAX(span / TDM_VK_PAGE_TOKENS + i, first), last)];
}

/* The same for a kernel that rotates: see tdm_vk_attend_rotating_push. */
static inline struct tdm_vk_attend_rotating_push tdm_vk_attend_rotating(const struct tdm_vk_attend_push *push,
                                                                        uint64_t rotation, uint64_t log, uint32_t layer)
{
        static_assert(sizeof(struct tdm_vk_attend_push) == sizeof(struct tdm_vk_attend_rotating_push) &&
                              offsetof(struct tdm_vk_attend_push, rows) ==
                                      offsetof(struct tdm_vk_attend_rotating_push, rows) &&
                              offsetof(struct tdm_vk_attend_push, scale_sums) ==
                                      offsetof(struct tdm_vk_attend_rotating_push, log) &&
                              offsetof(struct tdm_vk_attend_push, scale_sums_rows) ==
                                      offsetof(struct tdm_vk_attend_rotating_push, layer) &&
                              offsetof(struct tdm_vk_attend_push, chain) ==
                                      offsetof(struct tdm_vk_attend_rotating_push, chain),
                      "one shader reads both");
        struct tdm_vk_attend_rotating_push ret;

        memcpy(&ret, push, sizeof(ret));
        ret.rotation = rotation;
        ret.log = log;
        ret.layer = layer;
        return ret;
}

#endif
