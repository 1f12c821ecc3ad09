/* A line of JSON, as events are told by pipe. What does not fit is cut: sizes are those of one token or message. */
#include "daemon/faces/dbus/private.h"

#include <stdarg.h>

void bus_line_add(struct bus_line *l, const char *fmt, ...)
{
        va_list ap;
        int n;

        va_start(ap, fmt);
        n = vsnprintf(l->text + l->size, sizeof(l->text) - l->size, fmt, ap);
        va_end(ap);
        if (n > 0)
                l->size = TDM_MIN(l->size + (size_t)n, sizeof(l->text) - 1);
}

void bus_line_add_json(struct bus_line *l, const char *key, const char *text, size_t size)
{
        bus_line_add(l, ",\"%s\":\"", key);
        for (size_t i = 0; i < size && l->size + 8 < sizeof(l->text) - 256; i++) {
                unsigned char c = (unsigned char)text[i];

                if (c == '"' || c == '\\')
                        bus_line_add(l, "\\%c", c);
                else if (c == '\n')
                        bus_line_add(l, "\\n");
                else if (c < 0x20 || c == 0x7f)
                        bus_line_add(l, "\\u%04x", c);
                else
                        l->text[l->size++] = (char)c;
        }
        l->text[l->size] = '\0';
        bus_line_add(l, "\"");
}
