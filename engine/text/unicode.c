/* Kinds of characters and normalization form C (Unicode Standard Annex 15), from generated tables.
 *
 * Most characters are stable: NFC keeps them, and joins them to nothing before them. Text is copied as it is from one
 * stable character to the next; only what lies between is taken apart, sorted and joined. Marks are sorted by counting,
 * so that a text of marks alone takes linear time too. */
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include "common/utf8.h"
#include "common/util.h"
#include "engine/text/unicode-tables.def"

#define UNSTABLE 128u
#define FEW 16u /* marks that are sorted by insertion */

static const uint32_t kinds[] = { TDM_UNICODE_KINDS };
static const uint32_t classes[] = { TDM_UNICODE_CLASSES };
static const uint32_t splits[][3] = { TDM_UNICODE_SPLITS };
static const uint32_t joins[][3] = { TDM_UNICODE_JOINS };
static const uint32_t wordpiece_kinds[] = { TDM_UNICODE_WORDPIECE };
static const uint32_t lowers[][2] = { TDM_UNICODE_LOWERS };

/* The entry of a table of runs that holds this character. */
static uint32_t look_up(const uint32_t *table, size_t n, uint32_t character)
{
        uint32_t key = character << 8 | 0xff;
        size_t low = 0, high = n; /* table[low] <= key, table[high] > key */

        while (high - low > 1) {
                size_t middle = low + (high - low) / 2;

                if (table[middle] <= key)
                        low = middle;
                else
                        high = middle;
        }
        return table[low];
}

static enum tdm_unicode_kind ascii_kind(uint32_t c, enum tdm_unicode_kind kind)
{
        switch (kind) {
        case TDM_UNICODE_UPPER:
                return TDM_ASCII_UPPER;
        case TDM_UNICODE_LOWER:
                return TDM_ASCII_LOWER;
        case TDM_UNICODE_NUMBER:
                return TDM_ASCII_DIGIT;
        case TDM_UNICODE_PUNCT:
                return c == '/' ? TDM_ASCII_SLASH : TDM_ASCII_PUNCT;
        case TDM_UNICODE_SYMBOL:
                return TDM_ASCII_SYMBOL;
        default:
                return c == ' ' ? TDM_ASCII_SPACE : c == '\r' ? TDM_ASCII_CR : c == '\n' ? TDM_ASCII_LF : kind;
        }
}

enum tdm_unicode_kind tdm_unicode_kind(uint32_t character)
{
        enum tdm_unicode_kind kind =
                (enum tdm_unicode_kind)(look_up(kinds, TDM_ARRAY_SIZE(kinds), character) & (UNSTABLE - 1));

        return character < 0x80 ? ascii_kind(character, kind) : kind;
}

enum tdm_wordpiece_kind tdm_unicode_wordpiece_kind(uint32_t character)
{
        return (enum tdm_wordpiece_kind)(look_up(wordpiece_kinds, TDM_ARRAY_SIZE(wordpiece_kinds), character) & 0xff);
}

uint32_t tdm_unicode_lower(uint32_t c)
{
        size_t low = 0, high = TDM_ARRAY_SIZE(lowers);

        if (c < 0x80)
                return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (lowers[middle][0] == c)
                        return lowers[middle][1];
                if (lowers[middle][0] < c)
                        low = middle + 1;
                else
                        high = middle;
        }
        return c;
}

uint32_t tdm_unicode_character(const uint8_t *text, int length)
{
        switch (length) {
        case 1:
                return text[0];
        case 2:
                return (text[0] & 0x1fu) << 6 | (text[1] & 0x3fu);
        case 3:
                return (text[0] & 0x0fu) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
        default:
                return (text[0] & 0x07u) << 18 | (text[1] & 0x3fu) << 12 | (text[2] & 0x3fu) << 6 | (text[3] & 0x3fu);
        }
}

size_t tdm_unicode_put(uint8_t *text, uint32_t c)
{
        if (c < 0x80) {
                text[0] = (uint8_t)c;
                return 1;
        }
        if (c < 0x800) {
                text[0] = (uint8_t)(0xc0 | c >> 6);
                text[1] = (uint8_t)(0x80 | (c & 0x3f));
                return 2;
        }
        if (c < 0x10000) {
                text[0] = (uint8_t)(0xe0 | c >> 12);
                text[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
                text[2] = (uint8_t)(0x80 | (c & 0x3f));
                return 3;
        }
        text[0] = (uint8_t)(0xf0 | c >> 18);
        text[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
        text[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        text[3] = (uint8_t)(0x80 | (c & 0x3f));
        return 4;
}

/* Hangul syllables are made of jamo by a formula (the Unicode Standard, 3.12). */
enum { S_FIRST = 0xac00, L_FIRST = 0x1100, V_FIRST = 0x1161, T_BEFORE = 0x11a7, N_L = 19, N_V = 21, N_T = 28 };

static bool in_range(uint32_t c, uint32_t first, uint32_t n)
{
        return c - first < n;
}

static const uint32_t *find_split(uint32_t c)
{
        size_t low = 0, high = TDM_ARRAY_SIZE(splits);

        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (splits[middle][0] == c)
                        return splits[middle];
                if (splits[middle][0] < c)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}

/* The character that two characters compose; 0: none. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
        size_t low = 0, high = TDM_ARRAY_SIZE(joins);

        if (in_range(a, L_FIRST, N_L) && in_range(b, V_FIRST, N_V))
                return S_FIRST + ((a - L_FIRST) * N_V + (b - V_FIRST)) * N_T;
        if (in_range(a, S_FIRST, N_L * N_V * N_T) && (a - S_FIRST) % N_T == 0 && in_range(b, T_BEFORE + 1, N_T - 1))
                return a + (b - T_BEFORE);
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                const uint32_t *j = joins[middle];

                if (j[0] == a && j[1] == b)
                        return j[2];
                if (j[0] < a || (j[0] == a && j[1] < b))
                        low = middle + 1;
                else
                        high = middle;
        }
        return 0;
}

size_t tdm_unicode_take_apart(uint32_t c, uint32_t parts[static TDM_UNICODE_PARTS_MAX])
{
        const uint32_t *split;
        size_t n;

        if (in_range(c, S_FIRST, N_L * N_V * N_T)) {
                uint32_t s = c - S_FIRST;

                parts[0] = L_FIRST + s / (N_V * N_T);
                parts[1] = V_FIRST + s % (N_V * N_T) / N_T;
                parts[2] = T_BEFORE + s % N_T;
                return s % N_T ? 3 : 2;
        }
        split = find_split(c);
        if (!split) {
                parts[0] = c;
                return 1;
        }
        n = tdm_unicode_take_apart(split[1], parts); /* only the first part can be taken apart again */
        if (split[2])
                parts[n++] = split[2];
        return n;
}

/* A growing array of characters, each with its class in the upper byte: 0 starts a new sequence. */
struct characters {
        uint32_t *data, *scratch;
        size_t n, capacity;
};

static uint32_t class_of(uint32_t c)
{
        return look_up(classes, TDM_ARRAY_SIZE(classes), c) & 0xff;
}

static int characters_append(struct characters *s, uint32_t c)
{
        uint32_t parts[TDM_UNICODE_PARTS_MAX];
        size_t n = tdm_unicode_take_apart(c, parts);

        if (s->n + n > s->capacity) {
                size_t capacity = 2 * s->capacity + 64;
                uint32_t *p = realloc(s->data, capacity * sizeof(*p));

                if (!p)
                        return -ENOMEM;
                s->data = p;
                p = realloc(s->scratch, capacity * sizeof(*p));
                if (!p)
                        return -ENOMEM;
                s->scratch = p;
                s->capacity = capacity;
        }
        for (size_t i = 0; i < n; i++)
                s->data[s->n++] = parts[i] | class_of(parts[i]) << 24;
        return 0;
}

/* Sorts marks by class; those of one class keep their order. */
static void sort_marks(uint32_t *marks, uint32_t *scratch, size_t n)
{
        size_t ends[257] = { 0 };

        if (n <= FEW) {
                for (size_t i = 1; i < n; i++) {
                        uint32_t mark = marks[i];
                        size_t k = i;

                        for (; k > 0 && marks[k - 1] >> 24 > mark >> 24; k--)
                                marks[k] = marks[k - 1];
                        marks[k] = mark;
                }
                return;
        }
        for (size_t i = 0; i < n; i++)
                ends[(marks[i] >> 24) + 1]++;
        for (size_t c = 1; c < 257; c++)
                ends[c] += ends[c - 1];
        for (size_t i = 0; i < n; i++)
                scratch[ends[marks[i] >> 24]++] = marks[i];
        memcpy(marks, scratch, n * sizeof(*marks));
}

/* Writes the sequence in form C and empties it. */
static size_t compose(struct characters *s, uint8_t *text)
{
        size_t n = 0, starter = SIZE_MAX, size = 0;
        uint32_t last = 0; /* class of the one before, + 1; 0 right behind the starter */

        for (size_t i = 0; i < s->n;) {
                size_t end = i;

                while (end < s->n && s->data[end] >> 24)
                        end++;
                sort_marks(s->data + i, s->scratch, end - i);
                i = end + 1;
        }
        for (size_t i = 0; i < s->n; i++) {
                uint32_t class = s->data[i] >> 24, c = s->data[i] & 0xffffff, joined;

                if (starter != SIZE_MAX && last < class + 1) {
                        joined = compose_pair(s->data[starter], c);
                        if (joined) {
                                s->data[starter] = joined;
                                continue;
                        }
                }
                if (class == 0) {
                        starter = n;
                        last = 0;
                } else
                        last = class + 1;
                s->data[n++] = c;
        }
        for (size_t i = 0; i < n; i++)
                size += tdm_unicode_put(text + size, s->data[i]);
        s->n = 0;
        return size;
}

/* Length of the next character; 1 and no character for a byte that is not UTF-8. */
static int next_character(const uint8_t *text, size_t size, bool *ret_unstable, uint32_t *ret)
{
        int length = text[0] < 0x80 ? 1 : tdm_utf8_length(text, size);

        *ret_unstable = false;
        if (length <= 0) {
                *ret = UINT32_MAX;
                return 1;
        }
        *ret = tdm_unicode_character(text, length);
        if (*ret >= 0x300) /* the first mark */
                *ret_unstable = look_up(kinds, TDM_ARRAY_SIZE(kinds), *ret) & UNSTABLE;
        return length;
}

/* The place of the first unstable character, or size. *ret_before: where the character before it starts. */
static size_t find_unstable(const uint8_t *text, size_t at, size_t size, size_t *ret_before)
{
        size_t before = at;

        while (at < size) {
                bool unstable;
                uint32_t c;
                int length = next_character(text + at, size - at, &unstable, &c);

                if (unstable)
                        break;
                before = at;
                at += (size_t)length;
        }
        *ret_before = before;
        return at;
}

static int normalize(const uint8_t *text, size_t size, const struct tdm_text_watch *watch, struct characters *s,
                     uint8_t *out, size_t *ret_size)
{
        size_t at = 0, n = 0, watched = 0;

        while (at < size) {
                size_t before, end = find_unstable(text, at, size, &before);
                int stop = watch && at - watched >= TDM_TEXT_WATCH_BYTES ? watch->check(watch->user) : 0;

                if (stop)
                        return stop;
                watched = at - watched >= TDM_TEXT_WATCH_BYTES ? at : watched;
                if (end == size)
                        before = size;
                memcpy(out + n, text + at, before - at);
                n += before - at;
                /* The stable one before, which may be joined, and all the unstable ones. */
                for (at = before; at < size;) {
                        bool unstable;
                        uint32_t c;
                        int length = next_character(text + at, size - at, &unstable, &c), r;

                        if (at >= end && !unstable)
                                break;
                        if (c == UINT32_MAX) /* before the first unstable one: nothing joins it */
                                out[n++] = text[at];
                        else {
                                r = characters_append(s, c);
                                if (r < 0)
                                        return r;
                        }
                        at += (size_t)length;
                }
                n += compose(s, out + n);
        }
        *ret_size = n;
        return 0;
}

int tdm_unicode_nfc(const uint8_t *text, size_t size, const struct tdm_text_watch *watch, uint8_t **ret,
                    size_t *ret_size)
{
        _cleanup_(freep) uint8_t *out = NULL;
        struct characters s = { 0 };
        size_t before;
        int r;

        if (find_unstable(text, 0, size, &before) == size) {
                *ret = NULL;
                *ret_size = size;
                return 0;
        }
        out = malloc(3 * size); /* U+0390 and its like, taken apart and not joined again, have 3 times the bytes */
        if (!out)
                return -ENOMEM;
        r = normalize(text, size, watch, &s, out, ret_size);
        free(s.data);
        free(s.scratch);
        if (r != 0)
                return r;
        *ret = steal_ptr(&out);
        return 0;
}
