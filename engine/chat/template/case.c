/* Upper and lower case as Python has them: by code points, with the few that become several. */
#include <wctype.h>
#include <locale.h>
#include <pthread.h>
#include "engine/chat/template/private.h"
#include "engine/text/unicode.h"

static locale_t case_locale;
static pthread_once_t case_once = PTHREAD_ONCE_INIT;

static void case_init(void)
{
        /* glibc has it built in; the process's own locale is left alone. */
        case_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

/* Full mappings of one character to several, of Unicode's SpecialCasing: those that do not depend on what is around. */
static const struct {
        uint32_t from;
        enum jinja_case to;
        uint32_t into[3];
} several[] = {
        { 0xdf, JINJA_UPPER, { 'S', 'S' } },
        { 0xdf, JINJA_TITLE, { 'S', 's' } },
        { 0x130, JINJA_LOWER, { 'i', 0x307 } },
        { 0x149, JINJA_UPPER, { 0x2bc, 'N' } },
        { 0x149, JINJA_TITLE, { 0x2bc, 'N' } },
        { 0x1f0, JINJA_UPPER, { 'J', 0x30c } },
        { 0x1f0, JINJA_TITLE, { 'J', 0x30c } },
        { 0x390, JINJA_UPPER, { 0x399, 0x308, 0x301 } },
        { 0x390, JINJA_TITLE, { 0x399, 0x308, 0x301 } },
        { 0x3b0, JINJA_UPPER, { 0x3a5, 0x308, 0x301 } },
        { 0x3b0, JINJA_TITLE, { 0x3a5, 0x308, 0x301 } },
        { 0x587, JINJA_UPPER, { 0x535, 0x552 } },
        { 0x587, JINJA_TITLE, { 0x535, 0x582 } },
        { 0xfb00, JINJA_UPPER, { 'F', 'F' } },
        { 0xfb00, JINJA_TITLE, { 'F', 'f' } },
        { 0xfb01, JINJA_UPPER, { 'F', 'I' } },
        { 0xfb01, JINJA_TITLE, { 'F', 'i' } },
        { 0xfb02, JINJA_UPPER, { 'F', 'L' } },
        { 0xfb02, JINJA_TITLE, { 'F', 'l' } },
        { 0xfb03, JINJA_UPPER, { 'F', 'F', 'I' } },
        { 0xfb03, JINJA_TITLE, { 'F', 'f', 'i' } },
        { 0xfb04, JINJA_UPPER, { 'F', 'F', 'L' } },
        { 0xfb04, JINJA_TITLE, { 'F', 'f', 'l' } },
        { 0xfb05, JINJA_UPPER, { 'S', 'T' } },
        { 0xfb05, JINJA_TITLE, { 'S', 't' } },
        { 0xfb06, JINJA_UPPER, { 'S', 'T' } },
        { 0xfb06, JINJA_TITLE, { 'S', 't' } },
};

static void case_add(struct jinja_text *text, uint32_t c, enum jinja_case to, bool is_template)
{
        wint_t mapped;

        if (c >= 0x80)
                for (size_t i = 0; i < TDM_ARRAY_SIZE(several); i++)
                        if (several[i].from == c && several[i].to == to) {
                                for (unsigned k = 0; k < 3 && several[i].into[k]; k++)
                                        tdm_jinja_text_char(text, several[i].into[k], is_template);
                                return;
                        }
        if (to == JINJA_LOWER)
                mapped = towlower_l((wint_t)c, case_locale);
        else if (to == JINJA_TITLE && c >= 0x1c4 && c <= 0x1cc)
                mapped = (c - 0x1c4) / 3 * 3 + 0x1c5; /* DŽ, Dž, dž: the one in the middle */
        else if (to == JINJA_TITLE && c >= 0x1f1 && c <= 0x1f3)
                mapped = 0x1f2;
        else
                mapped = towupper_l((wint_t)c, case_locale);
        tdm_jinja_text_char(text, (uint32_t)mapped, is_template);
}

bool tdm_jinja_is_alphabetic(uint32_t c)
{
        switch (tdm_unicode_kind(c)) {
        case TDM_UNICODE_UPPER:
        case TDM_UNICODE_LOWER:
        case TDM_UNICODE_LETTER:
        case TDM_ASCII_UPPER:
        case TDM_ASCII_LOWER:
                return true;
        default:
                return false;
        }
}

static bool is_cased(uint32_t c)
{
        return towlower_l((wint_t)c, case_locale) != (wint_t)c || towupper_l((wint_t)c, case_locale) != (wint_t)c;
}

/* A sigma at the end of a word is another letter. */
static bool is_final_sigma(const char *data, size_t size, size_t at, bool letter_before)
{
        size_t length;

        at += 2;
        return letter_before && (at >= size || !tdm_jinja_is_alphabetic(tdm_jinja_char(data + at, size - at, &length)));
}

struct jinja_string *tdm_jinja_change_case(struct jinja_core *core, const struct jinja_string *string,
                                           enum jinja_case to)
{
        const char *data = tdm_jinja_bytes(core, string);
        struct jinja_text text = { .core = core };
        struct jinja_string *result;
        bool within = false; /* a word */
        size_t length;

        pthread_once(&case_once, case_init);
        if (case_locale == (locale_t)0)
                tdm_jinja_fail(core, "this system has no locale C.UTF-8");
        tdm_jinja_spend_bytes(core, string->size, JINJA_WRITTEN);
        for (size_t at = 0; at < string->size; at += length) {
                uint32_t c = tdm_jinja_char(data + at, string->size - at, &length);
                enum jinja_case want = to;

                if (to == JINJA_TITLE)
                        want = within ? JINJA_LOWER : JINJA_TITLE;
                else if (to == JINJA_CAPITALIZE)
                        want = at == 0 ? JINJA_TITLE : JINJA_LOWER;
                if (want == JINJA_LOWER && c == 0x3a3 && is_final_sigma(data, string->size, at, within))
                        tdm_jinja_text_char(&text, 0x3c2, tdm_jinja_is_template_at(string, at));
                else
                        case_add(&text, c, want, tdm_jinja_is_template_at(string, at));
                within = to == JINJA_TITLE ? is_cased(c) : tdm_jinja_is_alphabetic(c);
        }
        result = tdm_jinja_text_end(&text);
        result->is_markup = string->is_markup;
        return result;
}
