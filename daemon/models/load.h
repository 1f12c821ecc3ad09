/* The slow part of loading a model, on a thread of its own: reading a GGUF's metadata, and building the weights.
 *
 * The loop starts a stage and hears of its end through a callback. Only one stage of a load runs at a time, and until
 * its end no other code touches what it works on. */
#ifndef TDM_DAEMON_MODELS_LOAD_H
#define TDM_DAEMON_MODELS_LOAD_H

#include "daemon/models/models.h"

#define PART_PATH_BYTES 4400u
/* The second and later files of a model that was split. */
struct tdm_model_part {
        int fd; /* kept, to see whether the file is still what it was */
        struct tdm_file_identity identity;
        char path[PART_PATH_BYTES];
};
struct tdm_model_parts {
        uint32_t n;
        struct tdm_model_part files[]; /* [n] */
};
/* path: of the first of n_parts, as its name says. */
int tdm_model_parts_open(const char *path, uint32_t n_parts, struct tdm_model_parts **ret, struct tdm_error *err);
void tdm_model_parts_free(struct tdm_model_parts *parts);

/* The types and the number of the weights of a GGUF that was read. */
void tdm_quantisation_describe(const struct tdm_model_description *description, char *ret, size_t size);
uint64_t tdm_parameters_count(const struct tdm_gguf *gguf);
/* The other files of a model that was split. *ret (NULL: it is one file) is the caller's whatever comes back. */
int tdm_gguf_read_parts(struct tdm_gguf *gguf, const char *name, const char *path, struct tdm_parse_limits *limits,
                        struct tdm_model_parts **ret, struct tdm_error *err);

/* Frees the metadata and its parts. */
void tdm_model_metadata_free(struct tdm_model_metadata *metadata);
/* Memory that it takes. */
uint64_t tdm_model_metadata_bytes(const struct tdm_model_metadata *metadata);
/* Frees the parts that only building the weights needed. */
void tdm_model_metadata_trim(struct tdm_model_metadata *metadata);

/* r: 0, a TDM_E_* or negative errno as in err. From the loop; may destroy the load or start its next stage. */
typedef void (*tdm_model_load_fn)(struct tdm_model_load *load, int r, const struct tdm_error *err, void *userdata);

/* fd stays the caller's and open as long as the load. name: for messages. path: where it lies; other files of the same
 * model are opened beside it. NULL: they may not be. */
int tdm_model_load_new(struct tdm_model_load **ret, struct tdm_loop *loop, int fd, const char *name, const char *path,
                       tdm_model_load_fn done, void *userdata);
/* Cancels a stage that runs and waits for its thread: within milliseconds, unless the file itself hangs. */
void tdm_model_load_destroy(struct tdm_model_load *load);
void tdm_model_load_destroyp(struct tdm_model_load **load);

/* The stage ends soon, with -ECANCELED or with its result; done is called in either case. */
void tdm_model_load_cancel(struct tdm_model_load *load);

/* At most max_bytes of memory for it; 0: no limit. pictures outlives the load. */
int tdm_model_load_metadata(struct tdm_model_load *load, uint64_t max_bytes,
                            const struct tdm_projector_config *pictures);
struct tdm_model_metadata *tdm_model_load_take_metadata(struct tdm_model_load *load); /* after that stage's success */
/* The first n_chunks of the segment are built and sealed. Called from the loop, like tdm_model_load_fn. Not called for
 * the last chunk: only the stage's end says that the file was good. */
typedef void (*tdm_model_load_sealed_fn)(struct tdm_model_load *load, unsigned n_chunks, void *userdata);
/* Builds the weights in the segment, and seals it. */
int tdm_model_load_weights(struct tdm_model_load *load, const struct tdm_model_metadata *metadata,
                           struct tdm_segment *segment, tdm_model_load_sealed_fn sealed);
void tdm_model_load_progress(const struct tdm_model_load *load, uint64_t *ret_done, uint64_t *ret_total);

/* Bytes that are available without pushing out others: MemAvailable, or less where a memory cgroup or RLIMIT_AS allows
 * less. */
uint64_t tdm_memory_available(void);

#endif
