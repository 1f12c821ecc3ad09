/* Names of the classes that a head tells apart, as the file has them. Counted; one thread at a time.
 *
 * A file without the key (converters leave out names that a training gave nobody) has "LABEL_0", "LABEL_1" and so on,
 * as transformers calls them. */
#ifndef TDM_ENGINE_MODEL_LABELS_H
#define TDM_ENGINE_MODEL_LABELS_H

#include "common/error.h"
#include "engine/file/gguf.h"

#define TDM_LABEL_BYTES_MAX 256u
#define TDM_LABELS_BYTES_MAX 65536u /* of all names: each answer has them */

struct tdm_labels {
        unsigned n_refs;
        uint32_t n;
        size_t bytes;
        char **names; /* [n]: UTF-8, without control characters; lies behind this struct, as the names do */
};

/* n: how many the head has. TDM_E_BAD_MODEL: the file names another number of them. TDM_E_UNSUPPORTED: a name that
 * cannot be shown, or too much of them. */
int tdm_labels_new(struct tdm_labels **ret, const struct tdm_gguf *gguf, const char *architecture, uint32_t n,
                   struct tdm_error *err);
struct tdm_labels *tdm_labels_ref(struct tdm_labels *labels);
void tdm_labels_unref(struct tdm_labels *labels); /* NULL: nothing */

#endif
