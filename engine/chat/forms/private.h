/* Shared by the sources of this folder: texts, and probes of a template. */
#ifndef TDM_ENGINE_CHAT_FORMS_PRIVATE_H
#define TDM_ENGINE_CHAT_FORMS_PRIVATE_H

#include "engine/chat/forms/forms.h"

struct tdm_form_text {
        const char *data;
        size_t size;
};

/* ---- texts (text.c) ---- */

static inline bool tdm_form_is_blank(char c)
{
        return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
/* The part of text from at to end. */
struct tdm_form_text tdm_form_cut(struct tdm_form_text text, size_t at, size_t end);
/* Where the needle is in text from `from` on, or SIZE_MAX. */
size_t tdm_form_find(struct tdm_form_text text, const char *needle, size_t from);
size_t tdm_form_find_slot(struct tdm_form_text text, enum tdm_form_slot slot, size_t from);
struct tdm_form_text tdm_form_trim(struct tdm_form_text text);
bool tdm_form_ends_with(struct tdm_form_text text, struct tdm_form_text end);
size_t tdm_form_common_start(struct tdm_form_text a, struct tdm_form_text b);
size_t tdm_form_common_end(struct tdm_form_text a, struct tdm_form_text b);
/* Bytes of the mark that text starts with (<…>, [WORD], a word up to the next bracket), or of all. */
size_t tdm_form_first_mark(struct tdm_form_text text);
/* Where the last mark of text begins. */
size_t tdm_form_last_mark(struct tdm_form_text text);
/* at, or the beginning of the bracketed mark that it stands inside of. */
size_t tdm_form_snap(struct tdm_form_text text, size_t at);
/* NULL without memory. */
char *tdm_form_copy(struct tdm_form_text text);
/* A copy in the place of *to. 0 or -ENOMEM. */
int tdm_form_set(char **to, struct tdm_form_text text);
static inline struct tdm_form_text tdm_form_string(const char *text)
{
        return (struct tdm_form_text){ text ? text : "", text ? strlen(text) : 0 };
}

/* ---- probes (probe.c) ---- */

struct tdm_form_probe {
        const struct tdm_template *template;
        const char *bos, *eos;
        uint64_t steps;                  /* of all renderings so far */
        bool is_exhausted;               /* a limit was reached: the template is not asked again */
        bool failed;                     /* no memory */
        char refusal[96];                /* of the last rendering */
        bool in_parts[TDM_FORM_N_ROLES]; /* texts are given as lists of parts */
};

/* The contents of the assistant's turn in a probe. Texts are JSON; NULL: not there. */
struct tdm_form_turn {
        const char *content;
        const char *reasoning_key; /* with TDM_FORM_THOUGHT */
        const char *calls;         /* an array */
        bool ends_with_user;       /* a user's message follows */
        const char *variables;     /* more members: "\"enable_thinking\":true," */
        bool has_tools, opens;     /* tools are given; the prompt for the next turn follows */
        bool has_system;           /* a system's message is in front */
        const char *result_of;     /* a tool's result follows, of the call with this id; or NULL */
};

/* Words that stand in no template. */
#define TDM_FORM_WORDS "Zqwords"
#define TDM_FORM_THOUGHT "Zqthought"
#define TDM_FORM_ASKED "Zqasked"
#define TDM_FORM_SYSTEM "Zqsystem"
#define TDM_FORM_RESULT "Zqresult"

/* The text, to be freed; NULL where the template fails. */
char *tdm_form_render(struct tdm_form_probe *p, const struct tdm_form_turn *turn);
/* Only the user's message, and what the template adds for the next turn. */
char *tdm_form_render_prompt(struct tdm_form_probe *p, const char *variables, bool with_tools);
/* A system's message in front of the user's. */
char *tdm_form_render_system(struct tdm_form_probe *p);

/* ---- what is derived ---- */

/* texts of the system, the user and the assistant (roles.c); first, since other probes give texts so. */
void tdm_form_derive_texts(struct tdm_chat_form *form, struct tdm_form_probe *p);
/* texts of tools. turn: with a call that the template shows, and a result. */
void tdm_form_derive_results(struct tdm_chat_form *form, struct tdm_form_probe *p, struct tdm_form_turn turn);
int tdm_form_derive_thinking(struct tdm_chat_form *form, struct tdm_form_probe *p);
int tdm_form_derive_calls(struct tdm_chat_form *form, struct tdm_form_probe *p);

/* The probe that renders calls (calls-json.c, calls-tagged.c). */
struct tdm_form_calls_probe {
        struct tdm_chat_form *form;
        struct tdm_form_probe *p;
        const char *content; /* JSON beside calls, or NULL */
        bool as_text;        /* arguments are given as JSON text */
        char *plain;         /* the turn with words and without calls */
        size_t words_at;
        char end[96]; /* behind the words: the end of a turn */
};

/* The part of a turn that calls make, with slots for needles; to be freed. arguments: of each call, "{…}". NULL: the
 * template fails, or shows no calls. */
char *tdm_form_calls_render(struct tdm_form_calls_probe *c, const char *const *arguments, unsigned n_calls);
/* Without the end of the turn. gap: what stands between calls, or NULL. */
struct tdm_form_text tdm_form_calls_behind(struct tdm_form_calls_probe *c, struct tdm_form_text behind,
                                           const char *gap);
/* Copies text to *to; a digit that is one more in `second`, where the rest is the same, becomes a slot. 0: they differ.
 * 1, -ENOMEM. */
int tdm_form_indexed(struct tdm_chat_form *form, struct tdm_form_text text, struct tdm_form_text second, char **to);
int tdm_form_why(struct tdm_chat_form *form, const char *why); /* returns 0 */
/* 0: form->why, or it is derived. */
int tdm_form_derive_json(struct tdm_form_calls_probe *c, const char *one);
int tdm_form_derive_tagged(struct tdm_form_calls_probe *c, const char *one);
/* From an example in the text that explains tools (calls-text.c). with: the prompt with tools. 0, -ENOMEM. */
int tdm_form_derive_text(struct tdm_chat_form *form, struct tdm_form_probe *p, struct tdm_form_text with);

#endif
