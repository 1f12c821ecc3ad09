/* A vision tower in a process of its own, tandem-picture-worker, as tandemd sees it.
 *
 * The process starts with the first picture, and stays until the tower is destroyed. One that dies is started again:
 * a picture is tried twice, and its rows are the same bits. Calls block, so they are for threads that may wait. Several
 * threads may call: one picture is computed after the other. */
#ifndef TDM_ENGINE_VISION_PROCESS_H
#define TDM_ENGINE_VISION_PROCESS_H

#include <stdatomic.h>
#include "engine/image/decoder.h"
#include "engine/vision/tower.h"

struct tdm_tower_process_config {
        const char *program; /* copied */
        int fd;              /* of the projector's file; borrowed */
        const char *name;    /* of the file, for messages; copied */
        unsigned n_threads;  /* 0: as many as it may use */
        enum tdm_act act;
        enum tdm_kv_type kv;
        uint32_t n_rows, n_out; /* what the file's description says */
};

struct tdm_tower_process;

int tdm_tower_process_new(struct tdm_tower_process **ret, const struct tdm_tower_process_config *config);
/* out: [n_rows][n_out]. TDM_E_CANCELLED: *cancelled was set. TDM_E_DEADLINE. TDM_E_INTERNAL: the process died twice, or
 * cannot be started. Its own errors. */
int tdm_tower_process_run(struct tdm_tower_process *tower, const struct tdm_picture *picture, uint64_t deadline_ns,
                          const atomic_bool *cancelled, float *out, struct tdm_error *err);
/* Gives its memory back, unless a call is running; the next call starts it again. */
void tdm_tower_process_rest(struct tdm_tower_process *tower);
/* No call may be running. */
void tdm_tower_process_destroy(struct tdm_tower_process *tower);
void tdm_tower_process_destroyp(struct tdm_tower_process **tower);

#endif
