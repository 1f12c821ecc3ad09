/* Calls whose form the template shows to the model, in the text that explains tools, and not in earlier turns.
 *
 * Only examples count: a JSON object with a name and arguments, in marks that belong together. Such an example is an
 * object of JSON once its placeholders are filled in, and the parser of turns has to find the call in it. All examples
 * of the text have to agree. What the text says in words is not read: a form is not guessed from it. */
#include "engine/chat/forms/private.h"
#include "engine/chat/forms/turn.h"

#define TEXT_MAX ((size_t)32 << 10) /* bytes that are searched; explanations that are known have a tenth */
#define PLACE_MAX 64u               /* bytes of a placeholder, of a mark, of white space */
#define OBJECT_MAX 512u             /* bytes of arguments */

/* Where something is in a text, behind its last byte too. */
struct span {
        size_t at, end;
};

struct example {
        struct span name, arguments, object; /* placeholders, with their quotes; {…} */
        struct span open, close;             /* the marks around; close is empty where there is none */
        size_t list, list_end;               /* the brackets of a list around, or SIZE_MAX */
        bool has_lines;                      /* it begins a line */
};

static size_t blanks_end(struct tdm_form_text text, size_t at)
{
        size_t end = at;

        while (end < text.size && end < at + PLACE_MAX && tdm_form_is_blank(text.data[end]))
                end++;
        return end;
}

static size_t blanks_begin(struct tdm_form_text text, size_t at)
{
        size_t begin = at;

        while (begin > 0 && begin + PLACE_MAX > at && tdm_form_is_blank(text.data[begin - 1]))
                begin--;
        return begin;
}

/* Where the word ends that stands behind white space at `at`, or SIZE_MAX. */
static size_t word_end(struct tdm_form_text text, size_t at, const char *word)
{
        size_t from = TDM_MIN(blanks_end(text, at), text.size), size = strlen(word);

        return from + size <= text.size && memcmp(text.data + from, word, size) == 0 ? from + size : SIZE_MAX;
}

/* ---- placeholders ---- */

static bool is_letter(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == ' ';
}

/* "…", <…>, or words up to a comma or a brace. */
static bool placeholder_find(struct tdm_form_text text, size_t at, struct span *ret)
{
        size_t from = blanks_end(text, at), end = from;
        char first = from < text.size ? text.data[from] : '\0', closing = first == '<' ? '>' :
                                                                          first == '"' ? '"' :
                                                                                         '\0';

        end += closing != '\0';
        while (end < text.size && end < from + PLACE_MAX &&
               (is_letter(text.data[end]) || (first == '"' && strchr("<>$.:{}", text.data[end]) && text.data[end])))
                end++;
        if (end >= text.size || end == from + (closing != '\0'))
                return false;
        if (closing ? text.data[end++] != closing : text.data[end] != ',' && text.data[end] != '}')
                return false;
        *ret = (struct span){ from, end };
        return true;
}

/* Where the brace at `at` is closed, or SIZE_MAX. */
static size_t object_end(struct tdm_form_text text, size_t at)
{
        bool in_string = false;
        unsigned depth = 0;

        for (size_t i = at; i < text.size && i < at + OBJECT_MAX; i++) {
                char c = text.data[i];

                if (in_string && c == '\\')
                        i++;
                else if (c == '"')
                        in_string = !in_string;
                else if (!in_string && c == '{')
                        depth++;
                else if (!in_string && c == '}' && --depth == 0)
                        return i + 1;
        }
        return SIZE_MAX;
}

static bool is_json(struct tdm_form_text text)
{
        struct tdm_json json = { 0 };
        struct tdm_error err;
        bool is = tdm_json_parse(&json, text.data, text.size, 16, &err) == 0;

        tdm_json_deinit(&json);
        return is;
}

/* An object of JSON, or a placeholder. */
static bool arguments_find(struct tdm_form_text text, size_t at, struct span *ret)
{
        size_t from = blanks_end(text, at), end;

        if (from >= text.size || text.data[from] != '{')
                return placeholder_find(text, at, ret) && text.data[ret->at] != '"';
        end = object_end(text, from);
        *ret = (struct span){ from, end };
        return end != SIZE_MAX && is_json(tdm_form_cut(text, from, end));
}

/* {"name": …, "arguments": …} at `at`. */
static bool object_find(struct tdm_form_text text, size_t at, struct example *ret)
{
        static const char *const keys[] = { "\"arguments\"", "\"parameters\"" };
        size_t end = word_end(text, at + 1, "\"name\""), behind = SIZE_MAX;

        end = end == SIZE_MAX ? end : word_end(text, end, ":");
        if (end == SIZE_MAX || !placeholder_find(text, end, &ret->name) ||
            tdm_form_find(tdm_form_cut(text, ret->name.at, ret->name.end), "zqf", 0) != SIZE_MAX)
                return false; /* or it is one of the tools */
        end = word_end(text, ret->name.end, ",");
        for (unsigned i = 0; end != SIZE_MAX && behind == SIZE_MAX && i < TDM_ARRAY_SIZE(keys); i++)
                behind = word_end(text, end, keys[i]);
        end = behind == SIZE_MAX ? behind : word_end(text, behind, ":");
        if (end == SIZE_MAX || !arguments_find(text, end, &ret->arguments))
                return false;
        end = word_end(text, ret->arguments.end, "}");
        ret->object = (struct span){ at, end };
        return end != SIZE_MAX;
}

/* ---- what stands around ---- */

/* Behind the first object of a list: others, or three dots and words. The list's end, or SIZE_MAX. */
static size_t list_end_find(struct tdm_form_text text, size_t at)
{
        struct example other;

        for (unsigned i = 0; i < 8; i++) {
                size_t end = word_end(text, at, "]"), next = word_end(text, at, ",");

                if (end != SIZE_MAX)
                        return end;
                at = blanks_end(text, next == SIZE_MAX ? at : next);
                if (next != SIZE_MAX && at < text.size && text.data[at] == '{' && object_find(text, at, &other)) {
                        at = other.object.end;
                        continue;
                }
                at = word_end(text, at, "...");
                if (at == SIZE_MAX)
                        return SIZE_MAX;
                for (size_t n = 0; at < text.size && n < PLACE_MAX && !strchr("[]{}\"<>", text.data[at]); n++)
                        at++;
        }
        return SIZE_MAX;
}

/* <…> or […] that ends at `end`. */
static bool mark_before(struct tdm_form_text text, size_t end, struct span *ret)
{
        char opening = end > 0 && text.data[end - 1] == '>' ? '<' : end > 0 && text.data[end - 1] == ']' ? '[' : '\0';
        size_t at = end;

        if (!opening)
                return false;
        for (at--; at > 0 && at + PLACE_MAX > end && text.data[at - 1] != opening; at--)
                if (tdm_form_is_blank(text.data[at - 1]) || strchr("<>[]{}\"/", text.data[at - 1]))
                        return false;
        if (at == 0 || text.data[at - 1] != opening)
                return false;
        *ret = (struct span){ at - 1, end };
        return true;
}

/* Whether the mark at `at` closes: the same word with a slash, or with begin as end. */
static bool mark_closes(struct tdm_form_text text, struct span open, size_t at, struct span *ret)
{
        static const char *const pairs[][2] = { { "<|", "<|/" },    { "<|", "</|" },    { "<", "</" },
                                                { "[", "[/" },      { "start", "end" }, { "START", "END" },
                                                { "begin", "end" }, { "BEGIN", "END" }, { "prefix", "suffix" } };
        size_t size = open.end - open.at;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(pairs); i++) {
                struct tdm_form_text mark = tdm_form_cut(text, open.at, open.end);
                size_t from = strlen(pairs[i][0]), to = strlen(pairs[i][1]),
                       where = tdm_form_find(mark, pairs[i][0], 0);

                if (where == SIZE_MAX || at + size - from + to > text.size ||
                    memcmp(text.data + at, mark.data, where) != 0 ||
                    memcmp(text.data + at + where, pairs[i][1], to) != 0 ||
                    memcmp(text.data + at + where + to, mark.data + where + from, size - where - from) != 0)
                        continue;
                *ret = (struct span){ at, at + size - from + to };
                return true;
        }
        return false;
}

/* A word right in front of a list (functools[…]). */
static bool word_before(struct tdm_form_text text, size_t end, struct span *ret)
{
        size_t at = end;

        while (at > 0 && at + PLACE_MAX > end && is_letter(text.data[at - 1]) && text.data[at - 1] != ' ')
                at--;
        *ret = (struct span){ at, end };
        return end - at >= 3;
}

/* A tag has to be closed. A special piece, or a word, may stand right in front of a list alone. */
static bool marks_find(struct tdm_form_text text, struct example *x)
{
        size_t at = x->object.at, end = x->object.end, before;

        x->list = x->list_end = SIZE_MAX;
        before = blanks_begin(text, at);
        if (before > 0 && text.data[before - 1] == '[') {
                x->list = before - 1;
                x->list_end = list_end_find(text, end);
                if (x->list_end == SIZE_MAX)
                        return false;
                at = x->list;
                end = x->list_end;
        }
        before = blanks_begin(text, at);
        if (mark_before(text, before, &x->open) && mark_closes(text, x->open, blanks_end(text, end), &x->close)) {
                x->has_lines = x->open.at == 0 || text.data[x->open.at - 1] == '\n';
                return true;
        }
        x->close = (struct span){ end, end };
        if (x->list == SIZE_MAX || before != at)
                return false;
        if (mark_before(text, at, &x->open))
                return text.data[x->open.at] == '[' || text.data[x->open.at + 1] == '|';
        return word_before(text, at, &x->open);
}

/* ---- the form ---- */

/* Parts of a text, one behind another; to be freed. */
static char *texts_join(const struct tdm_form_text *parts, size_t n)
{
        struct tdm_json_buffer to = { 0 };

        for (size_t i = 0; i < n; i++)
                tdm_json_write(&to, parts[i].data, parts[i].size);
        tdm_json_write(&to, "", 1);
        if (!to.failed)
                return to.data;
        free(to.data);
        return NULL;
}

/* The text behind the first object: the list's end and the closing mark. */
static struct tdm_form_text bracket_behind(const struct example *x)
{
        return tdm_form_string(x->list == SIZE_MAX ? "" : "]");
}

static struct tdm_form_text close_behind(struct tdm_form_text text, const struct example *x)
{
        return tdm_form_cut(text, x->list == SIZE_MAX ? x->object.end : x->list_end, x->close.end);
}

static bool marks_take(struct tdm_form_text text, const struct example *x, struct tdm_form_call_marks *m)
{
        const struct tdm_form_text quote = tdm_form_string("\""), brace = tdm_form_string("}"),
                                   before[] = { tdm_form_cut(text, x->open.at, x->name.at), quote },
                                   between[] = { quote, tdm_form_cut(text, x->name.end, x->arguments.at) },
                                   after[] = { brace, bracket_behind(x), close_behind(text, x) };
        struct tdm_form_text gap[3] = { brace };

        m->before = texts_join(before, 2);
        m->between = texts_join(between, 2);
        m->after = texts_join(after, 3);
        if (!m->before || !m->between || !m->after)
                return false;
        if (x->list != SIZE_MAX) {
                gap[1] = tdm_form_string(", {\"name\": \"");
        } else {
                gap[0] = tdm_form_string(m->after);
                gap[1] = tdm_form_string(x->has_lines ? "\n" : "");
                gap[2] = tdm_form_string(m->before);
        }
        m->gap = texts_join(gap, 3);
        m->start = tdm_form_copy(tdm_form_cut(text, x->open.at, x->open.end + is_letter(text.data[x->open.at])));
        return m->gap && m->start;
}

/* The parser of turns has to find one call in the example, and nothing else. */
static int example_prove(struct tdm_chat_form *form, struct tdm_form_text text, const struct example *x)
{
        static const char name[] = "zqfa", arguments[] = "{\"zqka\": \"zqva\"}";
        const struct tdm_form_text parts[] = { tdm_form_cut(text, x->open.at, x->name.at),
                                               tdm_form_string("\"zqfa\""),
                                               tdm_form_cut(text, x->name.end, x->arguments.at),
                                               tdm_form_string(arguments),
                                               tdm_form_cut(text, x->arguments.end, x->object.end),
                                               bracket_behind(x),
                                               close_behind(text, x) };
        const struct tdm_form_use use = { .tools = "[]", .tools_size = 2, .prompt = TDM_FORM_PROMPT_CLOSED };
        _cleanup_(tdm_form_parser_destroyp) struct tdm_form_parser *parser = NULL;
        _cleanup_(freep) char *turn = texts_join(parts, TDM_ARRAY_SIZE(parts));
        char got[64] = "";
        unsigned n_calls = 0;
        bool fits = true;

        if (!turn || tdm_form_parser_new(&parser, form, NULL, &use) < 0)
                return -ENOMEM;
        for (const char *at = turn;; at++) {
                const struct tdm_form_part *p;
                size_t n;

                if ((*at ? tdm_form_parser_push(parser, at, 1, &p, &n) : tdm_form_parser_finish(parser, &p, &n)) < 0)
                        return -ENOMEM;
                for (size_t i = 0; i < n; i++) {
                        bool is_call = p[i].kind == TDM_FORM_PART_CALL;

                        fits = fits && (is_call ? p[i].size == 4 && memcmp(p[i].data, name, 4) == 0 :
                                                  p[i].kind == TDM_FORM_PART_ARGUMENTS &&
                                                          strlen(got) + p[i].size < sizeof(got));
                        n_calls += is_call;
                        if (fits && !is_call)
                                strncat(got, p[i].data, p[i].size);
                }
                if (!*at)
                        return fits && n_calls == 1 && strcmp(got, arguments) == 0;
        }
}

/* Whether two examples have the same marks, but for white space. */
static bool is_same_mark(const char *a, const char *b)
{
        for (;; a++, b++) {
                while (tdm_form_is_blank(*a))
                        a++;
                while (tdm_form_is_blank(*b))
                        b++;
                if (*a != *b || !*a)
                        return *a == *b;
        }
}

static void marks_clear(struct tdm_form_call_marks *m)
{
        free(steal_ptr(&m->start));
        free(steal_ptr(&m->before));
        free(steal_ptr(&m->between));
        free(steal_ptr(&m->gap));
        free(steal_ptr(&m->after));
}

/* 1: the form has these marks; 0: it has others already, or they are not proven. */
static int example_take(struct tdm_chat_form *form, struct tdm_form_text text, const struct example *x)
{
        struct tdm_form_call_marks m = { 0 };
        int r;

        if (!marks_take(text, x, &m)) {
                marks_clear(&m);
                return -ENOMEM;
        }
        if (form->calls == TDM_FORM_CALLS_JSON) {
                r = is_same_mark(m.before, form->marks.before) && is_same_mark(m.between, form->marks.between) &&
                    is_same_mark(m.after, form->marks.after);
                marks_clear(&m);
                return r;
        }
        form->marks = m;
        form->calls = TDM_FORM_CALLS_JSON;
        return example_prove(form, text, x);
}

/* The part of the prompt that is there because of the tools. */
static struct tdm_form_text explanation_cut(struct tdm_form_text with, struct tdm_form_text without)
{
        size_t at = tdm_form_snap(with, tdm_form_common_start(with, without)),
               end = with.size - tdm_form_common_end(tdm_form_cut(with, at, with.size),
                                                     tdm_form_cut(without, TDM_MIN(at, without.size), without.size));
        size_t mark = end < with.size && end > 0 ? tdm_form_snap(with, end) : end;

        if (mark < end) /* the end is inside of a mark, which is shared in part */
                end = (size_t)((const char *)memchr(with.data + end, with.data[mark] == '<' ? '>' : ']',
                                                    with.size - end) -
                               with.data) +
                      1;
        return tdm_form_cut(with, at, end);
}

int tdm_form_derive_text(struct tdm_chat_form *form, struct tdm_form_probe *p, struct tdm_form_text with)
{
        _cleanup_(freep) char *without = tdm_form_render_prompt(p, NULL, false);
        struct tdm_form_text text;
        int r = 1;

        if (!without)
                return 0;
        text = explanation_cut(with, tdm_form_string(without));
        if (text.size > TEXT_MAX)
                return 0;
        for (size_t at = tdm_form_find(text, "{", 0); at != SIZE_MAX && r == 1; at = tdm_form_find(text, "{", at + 1)) {
                struct example x = { 0 };

                if (object_find(text, at, &x) && marks_find(text, &x))
                        r = example_take(form, text, &x);
        }
        if (r == 0) {
                marks_clear(&form->marks);
                form->calls = TDM_FORM_CALLS_GENERIC;
                return tdm_form_why(form, "the template's text shows calls in a way that is not clear");
        }
        if (r > 0 && form->calls == TDM_FORM_CALLS_JSON)
                tdm_form_why(form, "");
        return r < 0 ? r : 0;
}
