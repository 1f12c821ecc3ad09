/* The device and its models: shared by npu-device.c, which makes both, load.c, which fills a model, and attention.c and
 * attention-block.c, which run it. */
#ifndef TDM_NPU_DEVICE_PRIVATE_H
#define TDM_NPU_DEVICE_PRIVATE_H

#include "engine/host/forward.h"
#include "npu-worker/device/npu-device.h"
#include "npu-worker/npu/block.h"
#include "npu-worker/telemetry/telemetry.h"

struct tdm_npu_layer {
        /* The two products, or the whole block; all NULL: the host runs this layer. */
        struct tdm_npu_weights *qkv, *out;
        struct tdm_npu_block_weights *block;
};

struct tdm_npu_device {
        struct tdm_device public;
        struct tdm_device *host;
        struct tdm_npu *npu;
        enum tdm_npu_type type;
        char *description, *numerics_id;
        struct tdm_device_counters *counters, own_counters; /* the first may be the second */
        struct tdm_npu_telemetry telemetry;
};

struct tdm_npu_model {
        struct tdm_npu_device *device;
        struct tdm_npu *npu;
        struct tdm_host_model *host;       /* weights, cache, scratch, pool: all that is not on the NPU */
        struct tdm_npu_product *qkv, *out; /* NULL where there is block */
        struct tdm_npu_block *block;
        struct tdm_npu_part *reads, *writes; /* [rows and pages of a command, at most] */
        struct tdm_npu_layer *layers;        /* [n_layers] */
        uint32_t n_npu_layers;
        uint64_t npu_macs, host_macs;
        char plan[448]; /* for people */
};

/* n_pages: of the longest sequence. Of a model that the NPU cannot take, or may not in this precision, no layer runs
 * there, which is no error. */
int tdm_npu_load(struct tdm_npu_model *model, uint32_t n_pages, enum tdm_precision precision, struct tdm_error *err);
void tdm_npu_attention(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t layer, float *hidden);
/* The same where the layer is one command. */
void tdm_npu_attention_block(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t layer, float *hidden);
/* Multiplications of a layer's attention beside its products: scores and values of all rows. */
uint64_t tdm_npu_attend_macs(const struct tdm_hparams *hp, const struct tdm_step *step, uint32_t layer);

#endif
