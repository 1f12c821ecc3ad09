/* Messages, written without a check after every value.
 *
 * libdbus can only fail for want of memory here, and it ends the process over a string that is not UTF-8. So failure is
 * kept until the end, and every string, wherever it came from (a file name, a piece of an error message cut in the
 * middle of a character), is made well-formed first. */
#include "daemon/faces/dbus/private.h"

#include "common/utf8.h"

size_t bus_clean_text(const char *text, size_t size, char *out)
{
        static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
        size_t n = 0;

        for (size_t i = 0; i < size;) {
                int len = tdm_utf8_length((const uint8_t *)text + i, size - i);

                if (len <= 0 || text[i] == '\0') {
                        memcpy(out + n, replacement, 3);
                        n += 3;
                        i++;
                        continue;
                }
                memcpy(out + n, text + i, (size_t)len);
                n += (size_t)len;
                i += (size_t)len;
        }
        return n;
}

void bus_writer_init(struct bus_writer *w, DBusMessage *message)
{
        w->message = message;
        w->depth = 0;
        w->failed = !message;
        if (message)
                dbus_message_iter_init_append(message, &w->at[0]);
}

void bus_write(struct bus_writer *w, int type, const void *value)
{
        if (!w->failed && !dbus_message_iter_append_basic(&w->at[w->depth], type, value))
                w->failed = true;
}

void bus_write_string(struct bus_writer *w, const char *s)
{
        _cleanup_(freep) char *clean = NULL;
        size_t size;

        if (w->failed)
                return;
        s = s ? s : "";
        if (dbus_validate_utf8(s, NULL)) {
                bus_write(w, DBUS_TYPE_STRING, &s);
                return;
        }
        size = strlen(s);
        clean = malloc(3 * size + 1);
        if (!clean) {
                w->failed = true;
                return;
        }
        clean[bus_clean_text(s, size, clean)] = '\0';
        bus_write(w, DBUS_TYPE_STRING, &clean);
}

void bus_write_path(struct bus_writer *w, const char *path)
{
        bus_write(w, DBUS_TYPE_OBJECT_PATH, &path);
}

void bus_write_u32(struct bus_writer *w, uint32_t v)
{
        dbus_uint32_t value = v;

        bus_write(w, DBUS_TYPE_UINT32, &value);
}

void bus_write_u64(struct bus_writer *w, uint64_t v)
{
        dbus_uint64_t value = v;

        bus_write(w, DBUS_TYPE_UINT64, &value);
}

void bus_write_double(struct bus_writer *w, double v)
{
        bus_write(w, DBUS_TYPE_DOUBLE, &v);
}

void bus_write_bool(struct bus_writer *w, bool v)
{
        dbus_bool_t value = v;

        bus_write(w, DBUS_TYPE_BOOLEAN, &value);
}

void bus_open(struct bus_writer *w, int type, const char *contents)
{
        if (w->failed)
                return;
        if (w->depth == BUS_WRITER_DEPTH ||
            !dbus_message_iter_open_container(&w->at[w->depth], type, contents, &w->at[w->depth + 1]))
                w->failed = true;
        else
                w->depth++;
}

void bus_close(struct bus_writer *w)
{
        if (w->failed)
                return;
        w->depth--;
        if (!dbus_message_iter_close_container(&w->at[w->depth], &w->at[w->depth + 1]))
                w->failed = true;
}

static void entry_open(struct bus_writer *w, const char *key, const char *type)
{
        bus_open(w, DBUS_TYPE_DICT_ENTRY, NULL);
        bus_write_string(w, key);
        bus_open(w, DBUS_TYPE_VARIANT, type);
}

static void entry_close(struct bus_writer *w)
{
        bus_close(w);
        bus_close(w);
}

void bus_entry_string(struct bus_writer *w, const char *key, const char *value)
{
        entry_open(w, key, "s");
        bus_write_string(w, value);
        entry_close(w);
}

void bus_entry_path(struct bus_writer *w, const char *key, const char *value)
{
        entry_open(w, key, "o");
        bus_write_path(w, value);
        entry_close(w);
}

void bus_entry_u32(struct bus_writer *w, const char *key, uint32_t value)
{
        entry_open(w, key, "u");
        bus_write_u32(w, value);
        entry_close(w);
}

void bus_entry_u64(struct bus_writer *w, const char *key, uint64_t value)
{
        entry_open(w, key, "t");
        bus_write_u64(w, value);
        entry_close(w);
}

void bus_entry_double(struct bus_writer *w, const char *key, double value)
{
        entry_open(w, key, "d");
        bus_write_double(w, value);
        entry_close(w);
}

void bus_entry_bool(struct bus_writer *w, const char *key, bool value)
{
        entry_open(w, key, "b");
        bus_write_bool(w, value);
        entry_close(w);
}

DBusMessage *bus_writer_finish(struct bus_writer *w)
{
        DBusMessage *message = steal_ptr(&w->message);

        if (!w->failed)
                return message;
        while (message && w->depth > 0) {
                w->depth--;
                dbus_message_iter_abandon_container_if_open(&w->at[w->depth], &w->at[w->depth + 1]);
        }
        if (message)
                dbus_message_unref(message);
        return NULL;
}
