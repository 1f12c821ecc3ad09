/* What travels between tandemd and a tandem-picture-worker: packets over the socket that the process has as its fd 3.
 * First an order to load, with the projector's file. Then orders to run, each with a picture's pixels and the memory
 * for its rows. Each order has one answer. The process ends when the socket does. */
#ifndef TDM_ENGINE_VISION_PROCESS_ABI_H
#define TDM_ENGINE_VISION_PROCESS_ABI_H

#include <stdint.h>

#define TDM_TOWER_SOCKET_FD 3
#define TDM_TOWER_MAGIC UINT32_C(0x74647477)

enum tdm_tower_order_kind { TDM_TOWER_LOAD = 1, TDM_TOWER_RUN = 2 };

struct tdm_tower_order {
        uint32_t magic, kind;
        uint32_t n_threads;     /* of LOAD; 0: as many as it may use */
        uint32_t act, kv;       /* of LOAD: struct tdm_tower_options */
        uint32_t width, height; /* of RUN: the picture, as bytes of RGB */
        uint32_t reserved;
};

struct tdm_tower_answer {
        uint32_t magic;
        int32_t code;           /* of struct tdm_error; 0: done */
        uint32_t n_rows, n_out; /* of every picture */
        uint64_t memory_bytes;  /* of the tower */
        char message[512];
};

#endif
