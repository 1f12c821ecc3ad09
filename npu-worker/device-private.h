/* A model on the NPU: shared by device.c, which makes it, and attention.c, which runs it. */
#ifndef TDM_NPU_DEVICE_PRIVATE_H
#define TDM_NPU_DEVICE_PRIVATE_H

#include "engine/host/forward.h"
#include "npu-worker/device.h"

struct tdm_npu_layer {
        struct tdm_npu_weights *qkv, *out; /* NULL: the host runs this layer */
};

struct tdm_npu_device; /* device.c */

struct tdm_npu_model {
        struct tdm_npu_device *device;
        struct tdm_npu *npu;
        struct tdm_host_model *host;      /* weights, cache, scratch, pool: all that is not on the NPU */
        struct tdm_npu_product *qkv, *out;
        struct tdm_npu_layer *layers;     /* [n_layers] */
        uint32_t n_npu_layers;
        uint64_t npu_macs, host_macs;
        char plan[256]; /* for people */
};

void tdm_npu_attention(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t layer, float *hidden);
/* Multiplications of a layer's attention beside its products: scores and values of all rows. */
uint64_t tdm_npu_attend_macs(const struct tdm_hparams *hp, const struct tdm_step *step, uint32_t layer);

#endif
