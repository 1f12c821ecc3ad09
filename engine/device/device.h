/* A device runs blocks of a model for a step. Every worker owns one device behind this table. The host device (CPU) is
 * the reference that the kernels of all other devices are tested against.
 *
 * Exactness: what run() computes for a row depends on the row's own sequence only. It does not depend on which other
 * rows are in the step, on how a prompt was cut, or on how many threads run (docs/exactness.md).
 * All buffers are allocated in model_load(); run() allocates nothing. One thread calls; the device may have its own. */
#ifndef TDM_ENGINE_DEVICE_DEVICE_H
#define TDM_ENGINE_DEVICE_DEVICE_H

#include <stdatomic.h>
#include "engine/device/counters.h"
#include "engine/step/step.h"
#include "engine/weights/weights.h"

enum tdm_precision {
        TDM_PRECISION_DEFAULT, /* 8-bit activations, 16-bit before the output and down projections */
        TDM_PRECISION_PRECISE, /* 16-bit activations everywhere */
        TDM_PRECISION_F32,     /* a test mode: everything in f32, KV too */
};
const char *tdm_precision_name(enum tdm_precision precision);
int tdm_precision_from_name(const char *name); /* -EINVAL */
/* The KV cache that goes with it: what is wanted (0: f16), but always f32 with f32. */
enum tdm_kv_type tdm_precision_kv_type(enum tdm_precision precision, enum tdm_kv_type wanted);

struct tdm_device_config {
        unsigned n_threads;          /* 0: as many as the process may run on */
        _Atomic uint64_t *heartbeat; /* bumped while run() works: at least every few milliseconds; never NULL */
        struct tdm_device_counters *counters; /* NULL: not counted */
        /* Settings of tandem.conf, for devices that know them; NULL and 0: not set there. */
        const char *device_name;   /* which of several: part of its name, or its number */
        const char *programs;      /* directory of ready-made programs */
        uint64_t memory_bytes;     /* budget of the device's buffers */
        const char *number_format; /* "bf16", "int8" */
};

/* What a model is to a device: mapped segments, all checked. Valid until model_unload(). */
struct tdm_device_model_config {
        const uint8_t *weights; /* checked by tdm_weights_check() */
        struct tdm_kv_geometry kv;
        uint8_t *kv_base; /* NULL while this worker has no attention blocks: see set_kv() */
        /* Where the hidden rows of every run() will lie, page-aligned, so that a device can import them once; NULL:
         * anywhere. */
        uint8_t *activations;
        uint64_t activations_bytes;
        /* The same memory as one dma-buf of that size, checked by tdm_dmabuf_import(); borrowed. 0: none. */
        int activations_dmabuf;
        bool dmabuf_only; /* where a driver is to import them: this way or not at all */
        struct tdm_steps_limits limits;
        enum tdm_precision precision;
};

/* Where a device's models lie. All 0: in the host's memory, which is the only limit. */
struct tdm_device_memory {
        uint64_t cache_bytes_max; /* a KV cache may take at most; 0: no limit of its own */
        bool holds_weights;       /* the weights of all models, and their caches, take of the same memory */
};

/* What a model needs of a device, or what a device leaves to others. */
struct tdm_device_needs {
        uint64_t features; /* TDM_FEATURE_BIT */
        uint64_t types;    /* of matrices: bit TDM_TYPE_* */
};
static inline bool tdm_device_needs_meet(const struct tdm_device_needs *a, const struct tdm_device_needs *b)
{
        return (a->features & b->features) != 0 || (a->types & b->types) != 0;
}
/* What a model needs. Of its weights only the header and the table of tensors are read, both checked. max_pictures: of
 * a step. */
struct tdm_device_needs tdm_device_needs_of(const uint8_t *weights, uint32_t max_pictures);

struct tdm_device;
struct tdm_device_model;

struct tdm_device_ops {
        const char *name; /* "host", "vulkan", "xrt" */
        /* A model that needs one of these is no model for this device: the worker runs it whole on a host device, which
         * it opens beside this one. All 0: there is none. */
        struct tdm_device_needs left_to_host;
        int (*open)(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err);
        void (*close)(struct tdm_device *device);
        /* One line for people: "AVX-512 VNNI, 2 threads". */
        const char *(*describe)(const struct tdm_device *device);
        /* Devices with equal ids give equal bits. */
        const char *(*numerics_id)(const struct tdm_device *device);
        int (*model_load)(struct tdm_device *device, const struct tdm_device_model_config *config,
                          struct tdm_device_model **ret, struct tdm_error *err);
        /* Optional, all three or none: model_load() in pieces. A device with memory of its own then uploads the first
         * weights while the last ones are still read from the file.
         * load_begin: only the header and the table of tensors of config->weights may be read.
         * load_weights: the first n_bytes may be read. It is called any number of times, with rising n_bytes.
         * load_end: all weights may be read and load_weights was told of them. After it the model is loaded.
         * model_unload() may follow at any time. After a failure of any of the three nothing else may follow. */
        int (*load_begin)(struct tdm_device *device, const struct tdm_device_model_config *config,
                          struct tdm_device_model **ret, struct tdm_error *err);
        int (*load_weights)(struct tdm_device_model *model, uint64_t n_bytes, struct tdm_error *err);
        int (*load_end)(struct tdm_device_model *model, struct tdm_error *err);
        void (*model_unload)(struct tdm_device_model *model);
        /* Between load_begin() and load_end() too. */
        void (*set_kv)(struct tdm_device_model *model, uint8_t *kv_base);
        uint64_t (*model_scratch_bytes)(const struct tdm_device_model *model);
        /* Runs blocks first … first + n - 1, which are all this worker's, in order. hidden: [n_rows][residual_width]
         * f32, in place. results [n_logits]: written by the sample block, else untouched (may be NULL when sample is
         * not among them). A device with memory of its own may keep hidden rows there while the step's plan gives the
         * next block to the same worker as `first`: the next run() of the step finds them, and nothing else reads them.
         * Head and sample always run on the same worker (logits never leave it). on_block(block, userdata) is called
         * after each finished block. 0, TDM_E_DEVICE_FAULT, or a negative errno: the step's rows are garbage then. */
        int (*run)(struct tdm_device_model *model, const struct tdm_step *step, uint32_t first, uint32_t n,
                   float *hidden, struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata),
                   void *userdata, struct tdm_error *err);
        /* Optional. Why it is this device that "auto" took and no other; "": nothing to say. */
        const char *(*reason)(const struct tdm_device *device);
        /* Optional; without: the host's memory. As it is before the first model is loaded. */
        void (*memory)(struct tdm_device *device, struct tdm_device_memory *ret);
        /* Optional. One line: what of the model runs where, and where its rows lie. */
        const char *(*plan)(const struct tdm_device_model *model);
        /* Values that had to be saturated to fit f16 (V rows), since load. */
        uint64_t (*n_saturated)(const struct tdm_device_model *model);
};

struct tdm_device {
        const struct tdm_device_ops *ops;
};

/* check.c: whether a device can take the model: its precision, its recipe, and what a peer says of its sizes.
 * more_features: what it computes besides what all devices do (TDM_FEATURE_BIT). device: its name, for messages.
 * TDM_E_PROTOCOL, TDM_E_UNSUPPORTED. */
int tdm_device_check_model(const struct tdm_device_model_config *config, uint64_t more_features, const char *device,
                           struct tdm_error *err);

extern const struct tdm_device_ops tdm_host_device_ops;

/* The features that the host device computes besides those of all devices. */
#define TDM_HOST_FEATURES                                                                                              \
        (TDM_FEATURE_BIT(TDM_FEATURE_ROPE_PARTIAL) | TDM_FEATURE_BIT(TDM_FEATURE_WINDOW_BY_LAYER) |                    \
         TDM_FEATURE_BIT(TDM_FEATURE_SHORT_CONV) | TDM_FEATURE_BIT(TDM_FEATURE_GATED_DELTA) |                          \
         TDM_FEATURE_BIT(TDM_FEATURE_ATTENTION_GATE) | TDM_FEATURE_BIT(TDM_FEATURE_SHARED_EXPERT) |                    \
         TDM_FEATURE_BIT(TDM_FEATURE_ROUTER_SIGMOID) | TDM_FEATURE_BIT(TDM_FEATURE_ODD_HEADS) |                        \
         TDM_FEATURE_BIT(TDM_FEATURE_QK_NORM_EACH) | TDM_FEATURE_BIT(TDM_FEATURE_NORMS_OF_SUMS) |                      \
         TDM_FEATURE_BIT(TDM_FEATURE_FFN_GELU) | TDM_FEATURE_BIT(TDM_FEATURE_POSITIONS) |                              \
         TDM_FEATURE_BIT(TDM_FEATURE_PICTURES))

#endif
