/* Unicode properties in regular expressions: the general categories that the tables of pre-tokenizers tell apart,
 * decimal digits, and three names beyond categories. Scripts and the other properties are not held. */
#include "engine/grammar/chars.h"
#include "engine/text/unicode-tables.def"
#include "engine/text/unicode.h"

#define BIT(kind) (1u << (kind))
#define UPPER BIT(TDM_UNICODE_UPPER)
#define LETTERS (UPPER | BIT(TDM_UNICODE_LOWER) | BIT(TDM_UNICODE_LETTER))

/* Lt, which the tables count with Lu. */
static const struct tdm_char_range title[] = {
        { 0x1c5, 0x1c5 },   { 0x1c8, 0x1c8 },   { 0x1cb, 0x1cb },   { 0x1f2, 0x1f2 },   { 0x1f88, 0x1f8f },
        { 0x1f98, 0x1f9f }, { 0x1fa8, 0x1faf }, { 0x1fbc, 0x1fbc }, { 0x1fcc, 0x1fcc }, { 0x1ffc, 0x1ffc },
};

/* Nd: each of these and the nine behind it, in Unicode 15.0. */
static const uint32_t zeros[] = {
        0x30,    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,   0xc66,   0xce6,
        0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,  0x1810,  0x1946,  0x19d0,  0x1a80,
        0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,  0xa900,  0xa9d0,  0xa9f0,  0xaa50,  0xabf0,
        0xff10,  0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0,
        0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x11f50, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8,
        0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e4f0, 0x1e950, 0x1fbf0,

};

/* The first character << 8 | kind, until the next. The flag 128 is not about kinds. */
static const uint32_t kinds[] = { TDM_UNICODE_KINDS };

static void add_kinds(struct tdm_chars *chars, unsigned set)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                uint32_t end = i + 1 < TDM_ARRAY_SIZE(kinds) ? kinds[i + 1] >> 8 : 0x110000;

                if (set >> (kinds[i] & 127) & 1)
                        tdm_chars_add(chars, kinds[i] >> 8, end - 1);
        }
}

static void add_upper(struct tdm_chars *chars)
{
        struct tdm_chars others = { 0 };

        add_kinds(&others, ~UPPER);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(title); i++)
                tdm_chars_add(&others, title[i].low, title[i].high);
        tdm_chars_sort(&others);
        tdm_chars_invert(&others);
        tdm_chars_add_all(chars, &others);
        chars->failed |= others.failed;
        tdm_chars_deinit(&others);
}

bool tdm_chars_add_property(struct tdm_chars *chars, const char *name, size_t size)
{
        enum special { KINDS, UPPERCASE, TITLE, DIGIT, ASCII, ANY, WHITE };
        static const char *const prefixes[] = { "General_Category=", "gc=" };
        static const struct {
                const char *name, *other;
                enum special special;
                unsigned set;
        } names[] = {
                { "L", "Letter", KINDS, LETTERS },
                { "Lu", "Uppercase_Letter", UPPERCASE, 0 },
                { "Ll", "Lowercase_Letter", KINDS, BIT(TDM_UNICODE_LOWER) },
                { "Lt", "Titlecase_Letter", TITLE, 0 },
                { "LC", "Cased_Letter", KINDS, UPPER | BIT(TDM_UNICODE_LOWER) },
                { "M", "Mark", KINDS, BIT(TDM_UNICODE_MARK) },
                { "M", "Combining_Mark", KINDS, BIT(TDM_UNICODE_MARK) },
                { "N", "Number", KINDS, BIT(TDM_UNICODE_NUMBER) },
                { "Nd", "Decimal_Number", DIGIT, 0 },
                { "Nd", "digit", DIGIT, 0 },
                { "P", "Punctuation", KINDS, BIT(TDM_UNICODE_PUNCT) },
                { "P", "punct", KINDS, BIT(TDM_UNICODE_PUNCT) },
                { "S", "Symbol", KINDS, BIT(TDM_UNICODE_SYMBOL) },
        };
        static const struct {
                const char *name;
                enum special special;
        } others[] = { { "ASCII", ASCII }, { "Any", ANY }, { "White_Space", WHITE }, { "space", WHITE } };
        enum special special = KINDS;
        unsigned set = 0;
        bool found = false, category = false;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(prefixes) && !category; i++) {
                size_t n = strlen(prefixes[i]);

                category = size > n && memcmp(name, prefixes[i], n) == 0;
                if (category)
                        name += n, size -= n;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(names) && !found; i++) {
                found = (strlen(names[i].name) == size && memcmp(names[i].name, name, size) == 0) ||
                        (strlen(names[i].other) == size && memcmp(names[i].other, name, size) == 0);
                special = names[i].special;
                set = names[i].set;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(others) && !found && !category; i++) {
                found = strlen(others[i].name) == size && memcmp(others[i].name, name, size) == 0;
                special = others[i].special;
        }
        if (!found)
                return false;
        switch (special) {
        case KINDS:
                add_kinds(chars, set);
                break;
        case UPPERCASE:
                add_upper(chars);
                break;
        case TITLE:
                for (size_t i = 0; i < TDM_ARRAY_SIZE(title); i++)
                        tdm_chars_add(chars, title[i].low, title[i].high);
                break;
        case DIGIT:
                for (size_t i = 0; i < TDM_ARRAY_SIZE(zeros); i++)
                        tdm_chars_add(chars, zeros[i], zeros[i] + 9);
                break;
        case ASCII:
                tdm_chars_add(chars, 0, 0x7f);
                break;
        case ANY:
                tdm_chars_add(chars, 0, 0x10ffff);
                break;
        case WHITE:
                add_kinds(chars, BIT(TDM_UNICODE_WHITE));
                break;
        }
        return true;
}
