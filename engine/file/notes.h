/* What was passed over, or taken otherwise than written, while a file was read: the model can be used, and its owner is
 * told once. Embed it, all zero. What does not fit any more is left out. */
#ifndef TDM_ENGINE_FILE_NOTES_H
#define TDM_ENGINE_FILE_NOTES_H

#include "common/util.h"

struct tdm_notes {
        char text[1024]; /* sentences with "; " in between; "" where there are none */
};

void tdm_note_add(struct tdm_notes *notes, const char *fmt, ...) _printf_(2, 3);

#endif
