/* Notes about a file: see notes.h. */
#include "engine/file/notes.h"

#include <stdarg.h>

void tdm_note_add(struct tdm_notes *notes, const char *fmt, ...)
{
        size_t n = strlen(notes->text), room = sizeof(notes->text) - n;
        int size;
        va_list args;

        if (n > 0 && room > 2) {
                memcpy(notes->text + n, "; ", 3);
                room -= 2;
        }
        va_start(args, fmt);
        size = vsnprintf(notes->text + sizeof(notes->text) - room, room, fmt, args);
        va_end(args);
        if (size < 0 || (size_t)size >= room)
                notes->text[n] = '\0';
}
