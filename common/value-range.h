/* What a value may be: its type and its range, and the words for it. The command line, libtandem and the daemon's faces
 * check with these functions, so a value that one of them refuses is refused by all, in the same words:
 *
 *         NAME: 'VALUE' is not a number from 0 to 100
 *
 * Header only: the command links nothing of Tandem but libtandem. */
#ifndef TDM_COMMON_VALUE_RANGE_H
#define TDM_COMMON_VALUE_RANGE_H

#include "common/util.h"

enum tdm_value_type {
        TDM_VALUE_BOOL,
        TDM_VALUE_U32,
        TDM_VALUE_U64,
        TDM_VALUE_REAL,     /* float */
        TDM_VALUE_CHOICE,   /* one of choices, kept as its index */
        TDM_VALUE_NAME,     /* one of choices, kept as text; no text: none of them */
        TDM_VALUE_TEXT,     /* min to max bytes */
        TDM_VALUE_TEXTS,    /* several of them */
        TDM_VALUE_U32_LIST, /* "1,8,32"; on command lines only */
};

struct tdm_range {
        enum tdm_value_type type;
        double min, max;            /* of numbers, and of the bytes of a text; max 0: as far as the type reaches */
        bool below_max;             /* of a real number: max itself is not in the range */
        bool or_zero;               /* of a real number: 0 is in the range too, though min is above it */
        const char *const *choices; /* NULL at the end */
};

static inline bool tdm_range_has_u64(const struct tdm_range *range, uint64_t value)
{
        double max = range->max > 0 ? range->max : range->type == TDM_VALUE_U64 ? 0x1p64 : (double)UINT32_MAX;

        return (double)value >= range->min && (double)value <= max;
}

/* false for what is no finite number. */
static inline bool tdm_range_has_real(const struct tdm_range *range, double value)
{
        float f = (float)value, min = (float)range->min, max = (float)range->max;

        if (range->or_zero && f == 0)
                return true;
        return f >= min && (range->below_max ? f < max : f <= max);
}

static inline bool tdm_range_has_size(const struct tdm_range *range, size_t size_bytes)
{
        return (double)size_bytes >= range->min && (range->max == 0 || (double)size_bytes <= range->max);
}

/* The index of name among the choices, or -1. */
static inline int tdm_range_choice(const struct tdm_range *range, const char *name)
{
        for (int i = 0; range->choices[i]; i++)
                if (strcmp(range->choices[i], name) == 0)
                        return i;
        return -1;
}

static inline int tdm_range_n_choices(const struct tdm_range *range)
{
        int n = 0;

        while (range->choices[n])
                n++;
        return n;
}

/* "split, npu or gpu" */
static inline void tdm_range_list_choices(const struct tdm_range *range, char *to, size_t size)
{
        size_t used = 0;
        int n = tdm_range_n_choices(range);

        to[0] = '\0';
        for (int i = 0; i < n && used < size; i++)
                used += (size_t)snprintf(to + used, size - used, "%s%s",
                                         i == 0     ? "" :
                                         i == n - 1 ? " or " :
                                                      ", ",
                                         range->choices[i]);
}

#define TDM_RANGE_TEXT_MAX 256

/* What comes behind "is not": "a whole number from 0 to 256". Writes to text and returns it. */
static inline const char *tdm_range_text(const struct tdm_range *range, char text[TDM_RANGE_TEXT_MAX])
{
        switch (range->type) {
        case TDM_VALUE_BOOL:
                snprintf(text, TDM_RANGE_TEXT_MAX, "true or false");
                break;
        case TDM_VALUE_U32:
        case TDM_VALUE_U64:
                if (range->max == 0 && range->type == TDM_VALUE_U64)
                        snprintf(text, TDM_RANGE_TEXT_MAX, "a whole number from %.0f to 18446744073709551615",
                                 range->min);
                else
                        snprintf(text, TDM_RANGE_TEXT_MAX, "a whole number from %.0f to %.0f", range->min,
                                 range->max > 0 ? range->max : (double)UINT32_MAX);
                break;
        case TDM_VALUE_REAL:
                snprintf(text, TDM_RANGE_TEXT_MAX, "%sa number from %g to %s%g", range->or_zero ? "0 or " : "",
                         range->min, range->below_max ? "less than " : "", range->max);
                break;
        case TDM_VALUE_CHOICE:
        case TDM_VALUE_NAME:
                tdm_range_list_choices(range, text, TDM_RANGE_TEXT_MAX);
                break;
        case TDM_VALUE_TEXT:
        case TDM_VALUE_TEXTS:
                snprintf(text, TDM_RANGE_TEXT_MAX, "a text of %.0f to %.0f bytes", range->min, range->max);
                break;
        case TDM_VALUE_U32_LIST:
                snprintf(text, TDM_RANGE_TEXT_MAX, "a list like 1,8,32 of numbers from %.0f to %.0f", range->min,
                         range->max);
                break;
        }
        return text;
}

#endif
