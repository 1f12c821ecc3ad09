/* Chat templates: the part of Jinja that released templates use, as Hugging Face's transformers sets it up.
 *
 * A template is parsed once, when its model is loaded, and rendered for each conversation. Both are bounded: a template
 * is a stranger's program. Every operation costs steps and every value costs bytes; when either is spent, rendering
 * ends with an error. Nothing outside is reached: no files, no other templates, and the clock is the caller's.
 *
 * The text comes with spans that say which of it the template wrote and which came in with the conversation. Only the
 * template's own text may become control tokens. Rendering the same input twice gives the same text.
 *
 * A template is immutable, any thread may render it. Where it does what jinja2 does not define, or what is not
 * supported, it is refused with the line; nothing is guessed. */
#ifndef TDM_ENGINE_TEMPLATE_H
#define TDM_ENGINE_TEMPLATE_H

#include "common/error.h"
#include "engine/grammar/json.h"

struct tdm_template;

/* Parses UTF-8 text. TDM_E_UNSUPPORTED: it cannot be used, err says the line, the column and why. -ENOMEM. */
int tdm_template_new(struct tdm_template **ret, const char *source, size_t size, struct tdm_error *err);
void tdm_template_destroy(struct tdm_template *template);
void tdm_template_destroyp(struct tdm_template **template);
/* Bytes that it holds. */
size_t tdm_template_memory(const struct tdm_template *template);
/* Whether it reads a variable of this name anywhere: a switch that it does not read has no effect. */
bool tdm_template_reads(const struct tdm_template *template, const char *name);

struct tdm_template_limits {
        uint64_t steps;
        size_t bytes;
};
/* For a conversation of that many bytes: more is allowed for longer ones, in proportion. */
struct tdm_template_limits tdm_template_limits_for(size_t input_bytes);

struct tdm_template_input {
        const struct tdm_json *json; /* its members are the template's variables; messages is one of them */
        uint32_t object;             /* the node that holds them */
        const char *const *hidden;   /* members that are no variables, NULL at the end; or NULL */
        const char *bos, *eos; /* bos_token and eos_token, NUL-terminated; they count as the template's own text */
        const struct tm *now;  /* local time, for strftime_now() */
        bool continue_final;   /* the text ends where the last message's content ends */
};

/* Text up to end (from the end of the span before it) comes from the template, or from the conversation. */
struct tdm_template_span {
        size_t end;
        bool is_template;
};

struct tdm_template_result {
        char *text; /* with a NUL behind it; it may hold others */
        size_t size;
        struct tdm_template_span *spans;
        size_t n_spans;
        char *refusal;  /* what the template itself says with raise_exception(), else NULL */
        uint64_t steps; /* that it took */
};

/* TDM_E_BAD_REQUEST: the template refuses the conversation (refusal is set), or it fails on it; err says the line and
 * why. TDM_E_TOO_LONG: a limit was reached. -ENOMEM. ret is filled in any case and wants
 * tdm_template_result_deinit(). */
int tdm_template_render(const struct tdm_template *template, const struct tdm_template_input *input,
                        const struct tdm_template_limits *limits, struct tdm_template_result *ret,
                        struct tdm_error *err);
void tdm_template_result_deinit(struct tdm_template_result *result);

/* One line of `tandem render-template`: a JSON object with id, template, bos, eos, now and the variables. *ret is the
 * answer, an object with id and either text or error, which the caller frees. -ENOMEM. */
int tdm_template_render_line(const char *line, size_t size, char **ret);

#endif
