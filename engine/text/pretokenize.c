/* Runs the expressions of a pre-tokenizer over a text.
 *
 * Each byte gets a mark: what kind of character starts there, and whether a word does. A stage goes through the words
 * there are and cuts them further. The patterns are so made that none is tried again and again over the same text:
 * a step that fails behind a long run (no line end behind white space, no small letter behind capitals) is followed by
 * an alternative that takes the run. */
#include "engine/text/pretokenize.h"

#include <assert.h>
#include "common/utf8.h"
#include "common/util.h"
#include "engine/text/unicode.h"

#define KIND_BITS 5u
#define KIND_MASK ((1u << KIND_BITS) - 1)
#define INSIDE UINT16_C(0x4000) /* not the first byte of a character */
#define NO_MATCH SIZE_MAX

#define WHITE (1u << TDM_UNICODE_WHITE | 1u << TDM_ASCII_SPACE | 1u << TDM_ASCII_CR | 1u << TDM_ASCII_LF)

static_assert(TDM_UNICODE_N_KINDS <= 1u << KIND_BITS, "a kind fits into a mark");

/* The word that is looked at. */
struct matcher {
        const uint8_t *text;
        const uint16_t *marks;
        size_t end;
        size_t tail; /* where the white space at its end starts */
};

static bool is_in(uint16_t mark, uint32_t kinds, uint16_t properties)
{
        return (kinds >> (mark & KIND_MASK) & 1) || (mark >> KIND_BITS & 0xffu & properties);
}

static size_t next(const struct matcher *m, size_t at)
{
        for (at++; at < m->end && m->marks[at] & INSIDE; at++)
                ;
        return at;
}

static size_t previous(const struct matcher *m, size_t at)
{
        for (at--; m->marks[at] & INSIDE; at--)
                ;
        return at;
}

/* Bytes of a contraction, or 0. */
static size_t contraction(const struct matcher *m, size_t at, bool any_case)
{
        uint8_t a, b, fold = any_case ? 0x20 : 0;
        size_t left = m->end - at;

        if (left < 2 || m->text[at] != '\'')
                return 0;
        a = m->text[at + 1] | fold;
        if (a == 's' || a == 't' || a == 'm' || a == 'd')
                return 2;
        if (left < 3)
                return 0;
        b = m->text[at + 2] | fold;
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
                return 3;
        return any_case && m->text[at + 1] == 0xc5 && m->text[at + 2] == 0xbf ? 3 : 0; /* U+017F */
}

static size_t match(const struct matcher *m, const struct tdm_pattern *p, unsigned step, size_t at)
{
        const struct tdm_pattern_step *s = &p->steps[step];
        size_t end = at, size, found;
        uint32_t n = 0;

        if (step == TDM_PATTERN_STEPS_MAX || s->max == 0)
                return at;
        if (s->contraction) {
                size = contraction(m, at, s->contraction == TDM_CONTRACTION_ANY_CASE);
                found = size ? match(m, p, step + 1, at + size) : NO_MATCH;
                return found == NO_MATCH && s->min == 0 ? match(m, p, step + 1, at) : found;
        }
        for (; n < s->max && end < m->end && is_in(m->marks[end], s->kinds, s->properties); n++)
                end = next(m, end);
        for (;; n--) {
                if (n < s->min)
                        return NO_MATCH;
                found = match(m, p, step + 1, end);
                if (found != NO_MATCH)
                        return found;
                if (n == 0)
                        return NO_MATCH;
                end = previous(m, end);
        }
}

/* The end of what matches at this place, or NO_MATCH; never an empty match. */
static size_t match_pattern(const struct matcher *m, const struct tdm_pattern *p, size_t at)
{
        size_t end;

        if (p->look == TDM_LOOK_END && at < m->tail)
                return NO_MATCH;
        end = match(m, p, 0, at);
        if (end == NO_MATCH || end == at)
                return NO_MATCH;
        if (p->look == TDM_LOOK_NO_TEXT && end < m->end && !is_in(m->marks[end], WHITE, 0)) {
                end = previous(m, end); /* white space, so that white space follows */
                return end > at ? end : NO_MATCH;
        }
        return p->look == TDM_LOOK_END && end < m->end ? NO_MATCH : end;
}

static size_t match_stage(const struct matcher *m, const struct tdm_pattern_stage *stage, size_t at)
{
        for (unsigned i = 0; i < TDM_PATTERN_ALTERNATIVES_MAX && stage->alternatives[i].steps[0].max > 0; i++) {
                size_t end = match_pattern(m, &stage->alternatives[i], at);

                if (end != NO_MATCH)
                        return end;
        }
        return NO_MATCH;
}

static int cut_word(const struct tdm_pattern_stage *stage, struct matcher *m, size_t start,
                    const struct tdm_text_watch *watch, uint16_t *marks)
{
        size_t next_check = start + TDM_TEXT_WATCH_BYTES;

        m->tail = m->end;
        while (m->tail > start && is_in(marks[previous(m, m->tail)], WHITE, 0))
                m->tail = previous(m, m->tail);
        for (size_t at = start; at < m->end;) {
                size_t end;

                if (watch && at >= next_check) {
                        int r = watch->check(watch->user);

                        if (r != 0)
                                return r;
                        next_check = at + TDM_TEXT_WATCH_BYTES;
                }
                end = match_stage(m, stage, at);
                if (end == NO_MATCH) {
                        at = next(m, at);
                        continue;
                }
                marks[at] |= TDM_MARK_START;
                if (end < m->end)
                        marks[end] |= TDM_MARK_START;
                at = end;
        }
        return 0;
}

static int mark_characters(const struct tdm_pretokenizer *p, const uint8_t *text, size_t size,
                           const struct tdm_text_watch *watch, uint16_t *marks)
{
        static const uint32_t replacement = 0xfffd;
        size_t next_check = TDM_TEXT_WATCH_BYTES;
        int r;

        for (size_t at = 0; at < size;) {
                int length = text[at] < 0x80 ? 1 : tdm_utf8_length(text + at, size - at);
                uint32_t c = length > 0 ? tdm_unicode_character(text + at, length) : replacement;

                if (watch && at >= next_check) {
                        next_check = at + TDM_TEXT_WATCH_BYTES;
                        r = watch->check(watch->user);
                        if (r != 0)
                                return r;
                }
                marks[at] = (uint16_t)tdm_unicode_kind(c);
                if (p->properties)
                        marks[at] |= (uint16_t)(p->properties(c) << KIND_BITS);
                at++;
                for (; length > 1; length--)
                        marks[at++] = INSIDE;
        }
        return 0;
}

int tdm_pretokenize(const struct tdm_pretokenizer *p, const uint8_t *text, size_t size,
                    const struct tdm_text_watch *watch, uint16_t *marks)
{
        struct matcher m = { .text = text, .marks = marks };
        int r;

        if (size == 0)
                return 0;
        r = mark_characters(p, text, size, watch, marks);
        if (r != 0)
                return r;
        marks[0] |= TDM_MARK_START;
        for (unsigned i = 0; i < TDM_PATTERN_STAGES_MAX && p->stages[i]; i++) {
                for (size_t start = 0; start < size; start = m.end) {
                        for (m.end = start + 1; m.end < size && !(marks[m.end] & TDM_MARK_START); m.end++)
                                ;
                        r = cut_word(p->stages[i], &m, start, watch, marks);
                        if (r != 0)
                                return r;
                }
        }
        return 0;
}
