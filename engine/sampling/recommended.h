/* How a model's file recommends to draw: its keys general.sampling.*. They go before the defaults of programs, and what
 * a request says goes before them. Keys and their meaning are llama.cpp's. */
#ifndef TDM_ENGINE_SAMPLING_RECOMMENDED_H
#define TDM_ENGINE_SAMPLING_RECOMMENDED_H

#include "engine/file/gguf.h"
#include "engine/file/notes.h"

struct tdm_recommended {
        uint32_t has; /* TDM_OPEN_* of common/job-options.h */
        float temperature, top_p, min_p, repeat_penalty;
        uint32_t top_k;       /* 0: off */
        uint32_t repeat_last; /* 0: the penalty is off */
};

/* Values that no option takes are passed over with a note, and so are ways to draw that are not known here. */
void tdm_recommended_read(const struct tdm_gguf *gguf, struct tdm_recommended *ret, struct tdm_notes *notes);

#endif
