/* From a GGUF to what a model is: its sizes (hparams.h), its recipe (recipe.h) and its tensors (tensors.h). */
#ifndef TDM_ENGINE_MODEL_MODEL_H
#define TDM_ENGINE_MODEL_MODEL_H

#include "engine/file/gguf.h"
#include "engine/file/notes.h"
#include "engine/model/tensors.h"

/* One tensor that the model needs, found in the file with exactly this shape, or as rows of one. */
struct tdm_tensor_ref {
        uint32_t kind;  /* enum tdm_tensor_kind */
        uint32_t layer; /* 0 for the ones without */
        uint32_t rows;  /* 1 for vectors */
        uint32_t cols;
        const struct tdm_gguf_tensor *tensor; /* owned by the gguf */
        struct tdm_tensor_cut cut;            /* which of that tensor's rows */
};

struct tdm_model_description {
        struct tdm_hparams hparams;
        struct tdm_recipe recipe;
        uint32_t n_tensors;
        struct tdm_tensor_ref *tensors; /* [n_tensors], owned */
        struct tdm_notes notes;         /* for the log */
};

/* Finds the file's architecture among the known ones (TDM_E_UNSUPPORTED with its name otherwise) and makes the
 * description. Refused are: a key out of its range; a key that would change the result and that the architecture does
 * not follow; a tensor that is missing or has another shape (the message names tensor, wanted and found shape); a
 * tensor that the architecture does not know, unless it is harmless; a tokenizer with more pieces than the embedding
 * has rows. TDM_E_BAD_MODEL: the file is wrong. TDM_E_UNSUPPORTED: it asks for what is not done here.
 *
 * ret is filled on success only; the caller owns it and deinits it before the gguf is closed. */
int tdm_model_describe(const struct tdm_gguf *gguf, struct tdm_model_description *ret, struct tdm_error *err);
/* Idempotent. hparams and recipe stay readable. */
void tdm_model_description_deinit(struct tdm_model_description *description);

/* The set of tensors that the model does without and which this one belongs to: "vision", "audio" or "draft head".
 * NULL: none of them. description: of the same file. */
const char *tdm_model_set_of(const struct tdm_gguf *gguf, const struct tdm_model_description *description,
                             const struct tdm_gguf_tensor *tensor);

/* Gemma 3's recipe for models of these sizes, with the defaults of everything that a file's keys may say. For tests,
 * and for describing a file. hp has its layers filled. */
void tdm_gemma3_recipe(struct tdm_recipe *ret, const struct tdm_hparams *hp);

#endif
