/* A model's projector, and its pictures as rows. The projector's file lies beside the model's: NAME.gguf has
 * mmproj-NAME.gguf, and both are one model. The tower runs in a process of its own (engine/vision/process.h), and so
 * does decoding (engine/image/decoder.h).
 *
 * Rows of the last pictures are kept for each model, so that the next turn of a conversation computes none again. What
 * one user's pictures became is found by that user alone. Opened on the thread that reads the metadata, used on threads
 * that may wait. */
#ifndef TDM_DAEMON_MODELS_PICTURES_H
#define TDM_DAEMON_MODELS_PICTURES_H

#include <stdatomic.h>
#include "common/siphash.h"
#include "engine/host/matmul.h"
#include "engine/model/model.h"
#include "engine/model/projector.h"

struct tdm_model_projector;
struct tdm_parse_limits;

struct tdm_projector_config {
        const char *program_dir;               /* of tandem-picture-worker and -decoder */
        unsigned n_threads;                    /* 0: as many as they may use */
        bool exact;                            /* numbers of the tower are f32 */
        uint32_t most_rows;                    /* of a picture, for which steps have room … */
        uint32_t more_rows;                    /* … beside these */
        uint8_t secret[TDM_SIPHASH_KEY_BYTES]; /* of this process: pictures are known by hashes under it */
};

/* path: of the model's file; NULL: nobody knows. *ret is NULL where the model has no file beside it. One that cannot be
 * used is an object too, which says why. -ENOMEM. */
int tdm_model_projector_open(struct tdm_model_projector **ret, const char *path,
                             const struct tdm_model_description *model, const char *architecture,
                             const struct tdm_projector_config *config, struct tdm_parse_limits *limits);
/* The model leaves memory: the tower's process ends, unless a picture is being read. */
void tdm_model_projector_rest(struct tdm_model_projector *projector);
void tdm_model_projector_free(struct tdm_model_projector *projector);
/* NULL: it can be used. */
const char *tdm_model_projector_why_not(const struct tdm_model_projector *projector);
const char *tdm_model_projector_path(const struct tdm_model_projector *projector);
/* Rows of each picture, and numbers of a row. */
uint32_t tdm_model_projector_rows(const struct tdm_model_projector *projector);
uint32_t tdm_model_projector_width(const struct tdm_model_projector *projector);
uint64_t tdm_model_projector_bytes(const struct tdm_model_projector *projector); /* of the file */
/* Whether the path beside the model's file has another file now, or one at all, or none any more. projector NULL: there
 * was none when the model at model_path (NULL: nobody knows) was read. Asks by name, and opens nothing. */
bool tdm_model_projector_is_news(const struct tdm_model_projector *projector, const char *model_path);
/* NULL, or the path of a file that is no longer what it was. */
const char *tdm_model_projector_changed(const struct tdm_model_projector *projector);

/* [blocking] A picture's file as rows [tdm_model_projector_rows()][width], and the hash of its pixels and of what made
 * the rows. reader: the identity of whom it belongs to. Any thread that holds the model. */
int tdm_model_projector_read(struct tdm_model_projector *projector, uint64_t reader, const void *file, size_t size,
                             const atomic_bool *cancelled, float *rows, uint8_t ret_hash[TDM_SIPHASH_BYTES],
                             struct tdm_error *err);

#endif
