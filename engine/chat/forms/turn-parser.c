/* A model's turn, taken apart as it comes. See turn.h.
 *
 * A machine over bytes. In each state a few patterns may follow, which are the form's marks. Bytes that may be the
 * beginning of one are held; bytes that are not go where the state says: to the text, the thought, a name, a value.
 * Where two patterns fit, the longer one counts. */
#include "engine/chat/forms/turn-private.h"
#include "engine/grammar/compose.h"

#define PATTERNS_MAX 10u
#define WORD_MAX 256u   /* bytes of an argument's name, or of a value whose type is not known yet */
#define HEADER_MAX 320u /* bytes: two names and what stands around them */

enum state {
        IN_TEXT, /* that people read */
        IN_THOUGHT,
        IN_START, /* the turn may be a call as a whole: nothing was said yet */
        IN_NAME,
        BEHIND_NAME,
        IN_ARGUMENTS, /* a JSON object */
        BEHIND_ARGUMENTS,
        IN_KEY,
        IN_VALUE,
        IN_HEADER,  /* gpt-oss: of a message */
        IN_NOTHING, /* behind what was not understood */
        N_STATES,
};

struct pattern {
        const char *bytes;
        enum state next;
        char stop; /* of bytes, where not NUL */
        bool ends_call;
};

struct tdm_form_parser {
        const struct tdm_chat_form *form;
        struct tdm_form_marks marks;
        struct tdm_json tools;
        bool has_tools;
        bool must_call; /* there is no text */
        bool is_bound;  /* a text follows a grammar, so what has no header is none */
        enum state state;
        struct pattern patterns[PATTERNS_MAX];
        size_t n_patterns;
        char held[TDM_FORM_MARK_MAX];        /* may be the beginning of a pattern */
        uint8_t in_piece[TDM_FORM_MARK_MAX]; /* a control piece's byte */
        size_t n_held;
        char *no_id[2];                /* gap and after without the id that a call may leave out */
        struct tdm_json_buffer blanks; /* white space that is not given out yet */
        struct tdm_json_buffer head;   /* a header or a name, as far as it came */
        bool said;                     /* this text or thought has begun */
        bool trims;                    /* a text that begins now follows a thought, a call or another text */
        bool in_string, escaped;
        unsigned depth;
        /* a call whose arguments have marks of their own */
        unsigned n_arguments;
        enum value { VALUE_UNKNOWN, VALUE_TEXT, VALUE_JSON, VALUE_MARKED } value;
        enum tdm_form_values values;
        bool value_began;
        bool call_is_over;   /* though a longer mark may still follow */
        char word[WORD_MAX]; /* of a value of unknown type */
        size_t n_word;
        char name[TDM_FORM_NAME_MAX + 1];
        struct tdm_form_parts parts;
};

static void parser_enter(struct tdm_form_parser *p, enum state state);
static void parser_take(struct tdm_form_parser *p, char byte, bool in_piece);

/* ---- what goes out ---- */

static void part_give(struct tdm_form_parser *p, enum tdm_form_part_kind kind, const char *data, size_t size)
{
        tdm_form_parts_give(&p->parts, kind, data, size);
}

static void arguments_give(struct tdm_form_parser *p, const char *text)
{
        part_give(p, TDM_FORM_PART_ARGUMENTS, text, strlen(text));
}

static void call_give(struct tdm_form_parser *p, const char *name, size_t size)
{
        p->trims = true;
        p->n_arguments = 0;
        size = TDM_MIN(size, sizeof(p->name) - 1);
        memcpy(p->name, name, size);
        p->name[size] = '\0';
        tdm_form_parts_give_call(&p->parts, name, size);
}

static void escaped_give(struct tdm_form_parser *p, char c)
{
        tdm_form_parts_give_escaped(&p->parts, c);
}

static bool is_name_byte(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == '.';
}

/* A byte of a text or a thought. White space at the ends is held until it is known to stand between words. */
static void word_say(struct tdm_form_parser *p, char byte)
{
        enum tdm_form_part_kind kind = p->state == IN_THOUGHT ? TDM_FORM_PART_THINKING : TDM_FORM_PART_TEXT;

        if (tdm_form_is_blank(byte)) {
                if (!p->said && (p->state == IN_THOUGHT || p->trims || p->blanks.size == TDM_FORM_BLANKS_MAX))
                        return; /* of white space in front, a little says enough */
                tdm_json_write(&p->blanks, &byte, 1);
                if (p->blanks.size == TDM_FORM_BLANKS_MAX && p->said) {
                        part_give(p, kind, p->blanks.data, p->blanks.size);
                        p->blanks.size = 0;
                }
                return;
        }
        part_give(p, kind, p->blanks.data, p->blanks.size);
        part_give(p, kind, &byte, 1);
        p->blanks.size = 0;
        p->said = true;
}

/* ---- patterns ---- */

enum fit { FITS_NOT, FITS_SO_FAR, FITS };

/* How the held bytes fit the pattern; *ret_size: of them. Around JSON, white space does not count but in front. */
static enum fit pattern_fit(const struct tdm_form_parser *p, const struct pattern *x, size_t *ret_size)
{
        bool loose = p->form->calls == TDM_FORM_CALLS_JSON || p->form->calls == TDM_FORM_CALLS_GENERIC;
        size_t j = 0;

        loose = loose && x->next != IN_TEXT && x->next != IN_THOUGHT;
        for (const char *c = x->bytes; *c;) {
                uint8_t slot = (uint8_t)*c;
                bool wild =
                        slot == TDM_FORM_ID || slot == TDM_FORM_INDEX || slot == TDM_FORM_NAME || slot == TDM_FORM_KEY;

                if (loose && tdm_form_is_blank(*c)) {
                        c++;
                } else if (j == p->n_held) {
                        return FITS_SO_FAR;
                } else if (wild && is_name_byte(p->held[j])) {
                        j++;
                } else if (wild) {
                        c++;
                } else if (loose && j > 0 && tdm_form_is_blank(p->held[j])) {
                        j++;
                } else if (p->held[j] == *c) {
                        j++;
                        c++;
                } else {
                        return FITS_NOT;
                }
        }
        *ret_size = j;
        return FITS;
}

static const struct pattern *pattern_find(struct tdm_form_parser *p, bool is_over, size_t *ret_size, bool *ret_waits)
{
        const struct pattern *best = NULL;
        size_t size;

        *ret_size = 0;
        *ret_waits = false;
        for (size_t i = 0; i < p->n_patterns; i++) {
                enum fit fit = pattern_fit(p, &p->patterns[i], &size);

                if (fit == FITS_SO_FAR && p->n_held < TDM_FORM_MARK_MAX && !is_over)
                        *ret_waits = true;
                if (fit != FITS || (best && size <= *ret_size))
                        continue;
                best = &p->patterns[i];
                *ret_size = size;
        }
        return best;
}

static void pattern_add(struct tdm_form_parser *p, const char *bytes, enum state next, bool ends_call)
{
        if (bytes && bytes[0] && p->n_patterns < PATTERNS_MAX)
                p->patterns[p->n_patterns++] = (struct pattern){ .bytes = bytes, .next = next, .ends_call = ends_call };
}

/* ---- values of arguments with marks of their own ---- */

static void value_begin(struct tdm_form_parser *p, enum value value)
{
        p->value = value;
        if (value == VALUE_TEXT)
                arguments_give(p, "\"");
        p->value_began = true;
}

/* Python's words as JSON's. */
static void word_give(struct tdm_form_parser *p, const char *data, size_t size)
{
        static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (size == strlen(words[i][0]) && memcmp(data, words[i][0], size) == 0) {
                        arguments_give(p, words[i][1]);
                        return;
                }
        part_give(p, TDM_FORM_PART_ARGUMENTS, data, size);
}

/* A value whose type was not known is over, or too long for a word. */
static void unknown_settle(struct tdm_form_parser *p)
{
        size_t from = 0, end = p->n_word;

        while (from < end && tdm_form_is_blank(p->word[from]))
                from++;
        while (end > from && tdm_form_is_blank(p->word[end - 1]))
                end--;
        if (tdm_form_is_json_word(p->word + from, end - from) || p->values == TDM_FORM_VALUES_OTHERS) {
                value_begin(p, VALUE_JSON);
                word_give(p, p->word + from, end - from);
        } else {
                value_begin(p, VALUE_TEXT);
                for (size_t i = 0; i < p->n_word; i++)
                        escaped_give(p, p->word[i]);
        }
        p->n_word = 0;
}

static void json_take(struct tdm_form_parser *p, char byte)
{
        part_give(p, TDM_FORM_PART_ARGUMENTS, &byte, 1);
        if (p->in_string) {
                p->in_string = p->escaped || byte != '"';
                p->escaped = !p->escaped && byte == '\\';
        } else if (byte == '"') {
                p->in_string = true;
        } else if (byte == '{' || byte == '[') {
                p->depth++;
        } else if ((byte == '}' || byte == ']') && p->depth > 0) {
                p->depth--;
        }
}

/* Gemma 4: keys are bare, strings stand between marks; the marks themselves are patterns. */
static void marked_take(struct tdm_form_parser *p, char byte)
{
        if (p->in_string) {
                escaped_give(p, byte);
                return;
        }
        if (is_name_byte(byte) && p->n_word + 1 < WORD_MAX) {
                p->word[p->n_word++] = byte;
                return;
        }
        if (p->n_word > 0 && byte == ':') {
                arguments_give(p, "\"");
                part_give(p, TDM_FORM_PART_ARGUMENTS, p->word, p->n_word);
                arguments_give(p, "\"");
        } else {
                word_give(p, p->word, p->n_word);
        }
        p->n_word = 0;
        json_take(p, byte);
}

static void value_take(struct tdm_form_parser *p, char byte)
{
        if (p->value == VALUE_UNKNOWN) {
                bool is_first = true;

                for (size_t i = 0; i < p->n_word; i++)
                        is_first = is_first && tdm_form_is_blank(p->word[i]);
                if (is_first && (byte == '{' || byte == '[' || (byte == '"' && p->values == TDM_FORM_VALUES_OTHERS))) {
                        p->n_word = 0;
                        value_begin(p, VALUE_JSON);
                } else if (p->n_word < 40) {
                        p->word[p->n_word++] = byte;
                        return;
                } else {
                        unknown_settle(p);
                }
        }
        if (p->value == VALUE_TEXT)
                escaped_give(p, byte);
        else if (p->value == VALUE_MARKED)
                marked_take(p, byte);
        else
                json_take(p, byte);
}

static void value_end(struct tdm_form_parser *p)
{
        if (p->value == VALUE_UNKNOWN)
                unknown_settle(p);
        if (p->value == VALUE_MARKED)
                word_give(p, p->word, p->n_word);
        if (p->value == VALUE_TEXT)
                arguments_give(p, "\"");
        p->n_word = 0;
}

/* The key is over: `as` stands behind it. */
static void key_end(struct tdm_form_parser *p, const char *as)
{
        const struct tdm_form_call_marks *m = &p->marks.calls;
        bool differ = strcmp(m->as[TDM_FORM_STRING], m->as[TDM_FORM_NUMBER]) != 0;

        arguments_give(p, p->n_arguments++ > 0 ? ", \"" : "{\"");
        for (size_t i = 0; i < p->head.size; i++)
                escaped_give(p, p->head.data[i]);
        arguments_give(p, "\": ");
        p->values = tdm_form_values_find(&p->tools, p->name, p->head.data ? p->head.data : "", p->head.size);
        parser_enter(p, IN_VALUE);
        p->value = VALUE_UNKNOWN;
        p->n_word = 0;
        if (p->form->strings == TDM_FORM_STRINGS_MARKED) {
                p->value = VALUE_MARKED;
                p->values = TDM_FORM_VALUES_MIXED;
        } else if (p->form->strings == TDM_FORM_STRINGS_JSON) {
                p->values = TDM_FORM_VALUES_OTHERS; /* quoted strings are JSON as others are */
        } else if (differ) {
                p->values = strcmp(as, m->as[TDM_FORM_STRING]) == 0 ? TDM_FORM_VALUES_STRINGS : TDM_FORM_VALUES_OTHERS;
        }
        if (p->values == TDM_FORM_VALUES_STRINGS && p->value == VALUE_UNKNOWN)
                value_begin(p, VALUE_TEXT);
}

/* ---- states ---- */

static void patterns_of_text(struct tdm_form_parser *p, enum state state)
{
        if (p->form->calls == TDM_FORM_CALLS_CHANNELLED) {
                pattern_add(p, p->marks.think_end, IN_HEADER, false);
                return;
        }
        pattern_add(p, p->marks.think_begin, IN_THOUGHT, false);
        pattern_add(p, p->marks.think_end, IN_TEXT, false);
        if (state == IN_THOUGHT)
                return;
        pattern_add(p, p->marks.text_begin, IN_TEXT, false);
        pattern_add(p, p->marks.text_end, IN_TEXT, false);
        if (p->has_tools && (p->marks.calls.start || state == IN_START))
                pattern_add(p, p->marks.calls.before, IN_NAME, false);
}

static void patterns_of_call(struct tdm_form_parser *p, enum state state)
{
        const struct tdm_form_call_marks *m = &p->marks.calls;

        switch (state) {
        case BEHIND_NAME:
                if (p->form->calls != TDM_FORM_CALLS_TAGGED) {
                        pattern_add(p, m->between, IN_ARGUMENTS, false);
                        return;
                }
                pattern_add(p, m->open, IN_KEY, false);
                pattern_add(p, m->empty_gap, IN_NAME, true);
                pattern_add(p, m->empty_after, IN_TEXT, true);
                return;
        case BEHIND_ARGUMENTS:
                pattern_add(p, m->gap, IN_NAME, false);
                pattern_add(p, p->no_id[0], IN_NAME, false);
                pattern_add(p, m->after, IN_TEXT, false);
                pattern_add(p, p->no_id[1], IN_TEXT, false);
                return;
        case IN_KEY:
                for (unsigned i = 0; i < TDM_FORM_N_TYPES; i++)
                        if (i != TDM_FORM_STRING || p->form->strings != TDM_FORM_STRINGS_MARKED)
                                pattern_add(p, m->as[i], IN_VALUE, false);
                return;
        case IN_VALUE:
                if (p->value == VALUE_MARKED)
                        pattern_add(p, m->close_string, IN_VALUE, false);
                if (p->value == VALUE_MARKED && p->in_string)
                        return;
                if (p->depth > 0 || p->in_string)
                        return;
                pattern_add(p, m->next, IN_KEY, false);
                pattern_add(p, m->gap, IN_NAME, true);
                pattern_add(p, m->after, IN_TEXT, true);
                return;
        default:
                return;
        }
}

static void patterns_set(struct tdm_form_parser *p)
{
        p->n_patterns = 0;
        if (p->state == IN_TEXT || p->state == IN_THOUGHT || p->state == IN_START)
                patterns_of_text(p, p->state);
        else if (p->state == IN_HEADER)
                pattern_add(p, p->marks.message, IN_ARGUMENTS, false);
        else
                patterns_of_call(p, p->state);
}

static void parser_enter(struct tdm_form_parser *p, enum state state)
{
        p->state = state;
        p->call_is_over = false;
        p->trims |= p->said;
        p->said = false;
        p->blanks.size = p->head.size = 0;
        p->depth = 0;
        p->in_string = p->escaped = false;
        patterns_set(p);
}

/* gpt-oss: a message begins; its header says what it is. */
static void header_end(struct tdm_form_parser *p)
{
        static const char to[] = "to=functions.";
        const char *data = p->head.data ? p->head.data : "", *name = memmem(data, p->head.size, to, sizeof(to) - 1);

        if (name && p->has_tools) {
                const char *end = name += sizeof(to) - 1;

                while (end < data + p->head.size && is_name_byte(*end))
                        end++;
                call_give(p, name, (size_t)(end - name));
                parser_enter(p, IN_ARGUMENTS);
        } else {
                parser_enter(p, memmem(data, p->head.size, "analysis", 8) ? IN_THOUGHT : IN_TEXT);
        }
}

/* Whether a header may go on from what has come: a control piece begins it, or to whom the message goes. */
static bool header_is_likely(const struct tdm_form_parser *p)
{
        static const char *const starts[] = { "<|", "to=functions." };
        const char *data = p->head.data;
        size_t size = p->head.size;

        for (; size > 0 && tdm_form_is_blank(*data); size--)
                data++;
        if (p->head.size > HEADER_MAX)
                return false;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(starts); i++)
                if (memcmp(data, starts[i], TDM_MIN(size, strlen(starts[i]))) == 0)
                        return true;
        return (uint8_t)*data == TDM_MARKER_BYTE;
}

/* The model wrote no whole header: a text, but for control pieces, or a thought where a grammar binds the text. */
static void header_take(struct tdm_form_parser *p, char byte)
{
        struct tdm_json_buffer head;
        bool in_piece = false;

        tdm_json_write(&p->head, &byte, 1);
        if (p->head.failed || header_is_likely(p))
                return;
        head = p->head;
        p->head = (struct tdm_json_buffer){ 0 };
        parser_enter(p, p->is_bound ? IN_THOUGHT : IN_TEXT);
        for (size_t i = 0; i < head.size; i++) {
                in_piece = in_piece || (uint8_t)head.data[i] == TDM_MARKER_BYTE;
                if (!in_piece)
                        word_say(p, head.data[i]);
                in_piece = in_piece && head.data[i] != '>';
        }
        free(head.data);
}

static void call_end(struct tdm_form_parser *p)
{
        if (p->state == IN_VALUE)
                value_end(p);
        arguments_give(p, p->n_arguments > 0 ? "}" : "{}");
        p->call_is_over = true;
}

/* Ends the call where anything that follows would end it: its arguments need not wait for what comes behind them. */
static void call_end_early(struct tdm_form_parser *p, const struct pattern *x)
{
        size_t size;

        if (!x || !x->ends_call || p->call_is_over)
                return;
        for (size_t i = 0; i < p->n_patterns; i++)
                if (!p->patterns[i].ends_call && pattern_fit(p, &p->patterns[i], &size) != FITS_NOT)
                        return;
        call_end(p);
}

static void pattern_take(struct tdm_form_parser *p, const struct pattern *x)
{
        enum state from = p->state, next = x->next;
        const char *bytes = x->bytes;

        if (from == IN_HEADER) {
                header_end(p);
                return;
        }
        if (from == IN_KEY) {
                key_end(p, bytes);
                patterns_set(p);
                return;
        }
        if (from == IN_VALUE && next == IN_VALUE) { /* a string's mark */
                arguments_give(p, "\"");
                p->in_string = !p->in_string;
                patterns_set(p);
                return;
        }
        if (from == IN_VALUE && !x->ends_call)
                value_end(p);
        if (x->ends_call && !p->call_is_over)
                call_end(p);
        if (from == IN_THOUGHT && next == IN_THOUGHT && p->said) {
                for (const char *c = bytes; *c; c++)
                        if ((uint8_t)*c != TDM_MARKER_BYTE)
                                word_say(p, *c); /* in the midst of a thought, its own beginning is a word */
                return;
        }
        p->trims |= from == IN_THOUGHT || bytes == p->marks.think_end;
        if (next == IN_TEXT && from == IN_THOUGHT && p->has_tools && !p->marks.calls.start)
                next = IN_START;
        parser_enter(p, next);
}

/* A byte that begins no mark. */
static void byte_take(struct tdm_form_parser *p, char byte, bool in_piece)
{
        if (in_piece && p->state != IN_HEADER)
                return; /* a control piece that means nothing here */
        switch (p->state) {
        case IN_START:
        case IN_TEXT:
        case IN_THOUGHT:
                if (p->state == IN_START && !tdm_form_is_blank(byte)) {
                        p->state = IN_TEXT;
                        patterns_set(p);
                }
                word_say(p, byte);
                break;
        case IN_KEY:
                if (p->head.size < WORD_MAX)
                        tdm_json_write(&p->head, &byte, 1);
                break;
        case IN_HEADER:
                header_take(p, byte);
                break;
        case IN_VALUE:
                value_take(p, byte);
                patterns_set(p);
                break;
        default:
                if (!tdm_form_is_blank(byte))
                        parser_enter(p, IN_NOTHING);
                break;
        }
}

static void held_drop(struct tdm_form_parser *p, size_t n)
{
        memmove(p->held, p->held + n, p->n_held - n);
        memmove(p->in_piece, p->in_piece + n, p->n_held - n);
        p->n_held -= n;
}

/* Settles the text that is held, because it cannot wait any longer, or because the turn is over. */
static void held_settle(struct tdm_form_parser *p, bool is_over)
{
        while (p->n_held > 0) {
                size_t size, n;
                bool waits;
                const struct pattern *x = pattern_find(p, is_over, &size, &waits);
                char rest[TDM_FORM_MARK_MAX];
                uint8_t in_piece[TDM_FORM_MARK_MAX];

                if (waits) {
                        call_end_early(p, x);
                        return;
                }
                n = x ? size : 1;
                memcpy(rest, p->held, p->n_held);
                memcpy(in_piece, p->in_piece, p->n_held);
                size = p->n_held;
                held_drop(p, p->n_held);
                if (x)
                        pattern_take(p, x);
                else
                        byte_take(p, rest[0], in_piece[0]);
                for (size_t i = n; i < size; i++)
                        parser_take(p, rest[i], in_piece[i]);
        }
}

static void parser_take(struct tdm_form_parser *p, char byte, bool in_piece)
{
        if (p->state == IN_NAME) {
                if (is_name_byte(byte) && p->head.size < TDM_FORM_NAME_MAX) {
                        tdm_json_write(&p->head, &byte, 1);
                        return;
                }
                if (p->head.size == 0) {
                        parser_enter(p, IN_NOTHING);
                        return;
                }
                call_give(p, p->head.data, p->head.size);
                parser_enter(p, BEHIND_NAME);
        }
        if (p->state == IN_ARGUMENTS) {
                if ((p->depth == 0 && byte != '{') || (uint8_t)byte == TDM_MARKER_BYTE)
                        return;
                json_take(p, byte);
                if (p->depth == 0)
                        parser_enter(p, p->form->calls == TDM_FORM_CALLS_CHANNELLED ? IN_NOTHING : BEHIND_ARGUMENTS);
                return;
        }
        if (p->n_held == TDM_FORM_MARK_MAX)
                held_settle(p, true);
        p->held[p->n_held] = byte;
        p->in_piece[p->n_held++] = in_piece;
        held_settle(p, false);
}

/* ---- the turn ---- */

static int parser_hand_out(struct tdm_form_parser *p, const struct tdm_form_part **ret_parts, size_t *ret_n)
{
        return p->blanks.failed || p->head.failed ? -ENOMEM : tdm_form_parts_hand_out(&p->parts, ret_parts, ret_n);
}

int tdm_form_parser_push(struct tdm_form_parser *p, const char *data, size_t size,
                         const struct tdm_form_part **ret_parts, size_t *ret_n)
{
        bool in_piece = false;

        tdm_form_parts_begin(&p->parts);
        for (size_t i = 0; i < size; i++) {
                in_piece = in_piece || (uint8_t)data[i] == TDM_MARKER_BYTE;
                parser_take(p, data[i], in_piece);
                in_piece = in_piece && data[i] != '>' && data[i] != ']';
        }
        return parser_hand_out(p, ret_parts, ret_n);
}

int tdm_form_parser_finish(struct tdm_form_parser *p, const struct tdm_form_part **ret_parts, size_t *ret_n)
{
        tdm_form_parts_begin(&p->parts);
        if (p->must_call && (p->state == IN_TEXT || p->state == IN_START))
                p->n_held = p->blanks.size = 0; /* the beginning of a call that was cut off */
        held_settle(p, true);
        if (p->said && p->state != IN_THOUGHT)
                part_give(p, TDM_FORM_PART_TEXT, p->blanks.data, p->blanks.size);
        if (p->must_call)
                tdm_form_parts_drop_text(&p->parts); /* the beginning of another call that was cut off */
        p->n_held = p->blanks.size = p->head.size = 0;
        return parser_hand_out(p, ret_parts, ret_n);
}

void tdm_form_parser_begin_answer(struct tdm_form_parser *p)
{
        p->blanks.size = 0;
        p->said = p->state == IN_TEXT;
}

bool tdm_form_parser_is_in_header(const struct tdm_form_parser *p)
{
        return p->state == IN_HEADER;
}

bool tdm_form_parser_is_thinking(const struct tdm_form_parser *p)
{
        return p->state == IN_THOUGHT;
}

static int parser_init(struct tdm_form_parser *p, const struct tdm_tokenizer *tokenizer, const struct tdm_form_use *use)
{
        struct tdm_error err;
        int r = tdm_form_marks_init(&p->marks, p->form, tokenizer);

        if (r == 0 && use->tools) {
                r = tdm_json_parse(&p->tools, use->tools, use->tools_size, 64, &err);
                p->has_tools = r == 0 && tdm_json_get(&p->tools, 0)->type == TDM_JSON_ARRAY;
                r = TDM_MIN(r, 0); /* the grammar has refused what is no JSON */
        }
        r = r == 0 ? tdm_form_without_id(p->marks.calls.gap, &p->no_id[0]) : r;
        return r == 0 ? tdm_form_without_id(p->marks.calls.after, &p->no_id[1]) : r;
}

int tdm_form_parser_new(struct tdm_form_parser **ret, const struct tdm_chat_form *form,
                        const struct tdm_tokenizer *tokenizer, const struct tdm_form_use *use)
{
        _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *p = calloc(1, sizeof(*p));
        bool has_header = form->calls == TDM_FORM_CALLS_CHANNELLED && (use->tools || !use->goes_on);
        int r;

        if (!p)
                return -ENOMEM;
        p->form = form;
        p->is_bound = use->schema;
        p->must_call = use->tools && use->choice >= TDM_FORM_CHOICE_REQUIRED;
        r = parser_init(p, tokenizer, use);
        if (r < 0)
                return r;
        parser_enter(p, has_header                            ? IN_HEADER :
                        use->prompt == TDM_FORM_PROMPT_OPEN   ? IN_THOUGHT :
                        p->has_tools && !p->marks.calls.start ? IN_START :
                                                                IN_TEXT);
        p->trims = use->prompt == TDM_FORM_PROMPT_CLOSED || (has_header && !use->goes_on);
        p->said = (p->state == IN_TEXT || p->state == IN_START) && (use->goes_on || p->is_bound);
        *ret = steal_ptr(&p);
        return 0;
}

void tdm_form_parser_destroy(struct tdm_form_parser *p)
{
        if (!p)
                return;
        tdm_form_marks_deinit(&p->marks);
        tdm_json_deinit(&p->tools);
        free(p->no_id[0]);
        free(p->no_id[1]);
        free(p->blanks.data);
        free(p->head.data);
        tdm_form_parts_deinit(&p->parts);
        free(p);
}

void tdm_form_parser_destroyp(struct tdm_form_parser **p)
{
        tdm_form_parser_destroy(*p);
}
