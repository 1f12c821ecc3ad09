/* Texts of probes: what they share, and where their marks begin and end. */
#include "engine/chat/forms/private.h"

struct tdm_form_text tdm_form_cut(struct tdm_form_text text, size_t at, size_t end)
{
        return (struct tdm_form_text){ text.data + at, end - at };
}

size_t tdm_form_find(struct tdm_form_text text, const char *needle, size_t from)
{
        const char *at = from <= text.size ? memmem(text.data + from, text.size - from, needle, strlen(needle)) : NULL;

        return at ? (size_t)(at - text.data) : SIZE_MAX;
}

size_t tdm_form_find_slot(struct tdm_form_text text, enum tdm_form_slot slot, size_t from)
{
        const char *at = from < text.size ? memchr(text.data + from, slot, text.size - from) : NULL;

        return at ? (size_t)(at - text.data) : SIZE_MAX;
}

struct tdm_form_text tdm_form_trim(struct tdm_form_text text)
{
        while (text.size > 0 && tdm_form_is_blank(text.data[0])) {
                text.data++;
                text.size--;
        }
        while (text.size > 0 && tdm_form_is_blank(text.data[text.size - 1]))
                text.size--;
        return text;
}

bool tdm_form_ends_with(struct tdm_form_text text, struct tdm_form_text end)
{
        return text.size >= end.size && memcmp(text.data + text.size - end.size, end.data, end.size) == 0;
}

size_t tdm_form_common_start(struct tdm_form_text a, struct tdm_form_text b)
{
        size_t n = 0;

        while (n < a.size && n < b.size && a.data[n] == b.data[n])
                n++;
        return n;
}

size_t tdm_form_common_end(struct tdm_form_text a, struct tdm_form_text b)
{
        size_t n = 0;

        while (n < a.size && n < b.size && a.data[a.size - 1 - n] == b.data[b.size - 1 - n])
                n++;
        return n;
}

static char closing_bracket(char c)
{
        return c == '<' ? '>' : c == '[' ? ']' : '\0';
}

size_t tdm_form_first_mark(struct tdm_form_text text)
{
        char closing = text.size > 0 ? closing_bracket(text.data[0]) : '\0';
        size_t n = text.size > 0;

        if (closing) {
                const char *end = memchr(text.data, closing, text.size);

                return end ? (size_t)(end + 1 - text.data) : text.size;
        }
        while (n < text.size && text.data[n] != '<' && text.data[n] != '[' && !tdm_form_is_blank(text.data[n]))
                n++;
        return n;
}

size_t tdm_form_last_mark(struct tdm_form_text text)
{
        char opening;
        size_t n = text.size;

        if (n == 0)
                return 0;
        opening = text.data[n - 1] == '>' ? '<' : text.data[n - 1] == ']' ? '[' : '\0';
        if (!opening)
                return n;
        while (n > 0 && text.data[n - 1] != opening)
                n--;
        return n > 0 ? n - 1 : text.size;
}

size_t tdm_form_snap(struct tdm_form_text text, size_t at)
{
        for (size_t i = at; i > 0; i--) {
                char c = text.data[i - 1], closing = closing_bracket(c);

                if (c == '>' || c == ']')
                        return at;
                if (closing)
                        return at < text.size && memchr(text.data + at, closing, text.size - at) ? i - 1 : at;
                if (tdm_form_is_blank(c))
                        return at;
        }
        return at;
}

char *tdm_form_copy(struct tdm_form_text text)
{
        char *copy = malloc(text.size + 1);

        if (copy) {
                if (text.size > 0)
                        memcpy(copy, text.data, text.size);
                copy[text.size] = '\0';
        }
        return copy;
}

int tdm_form_set(char **to, struct tdm_form_text text)
{
        char *copy = tdm_form_copy(text);

        if (!copy)
                return -ENOMEM;
        free(*to); /* text may be a part of it */
        *to = copy;
        return 0;
}
