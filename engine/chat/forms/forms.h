/* How a model writes thinking and calls of tools: its form.
 *
 * A form is derived once, when a model is loaded, from what the model's template renders. Probes are conversations that
 * differ in one thing: a call or none, one or two, a thought or none. What the renderings put around known needles are
 * the marks. Nothing is taken from the template's source. Where no form can be derived, the form says why, and calls
 * have the generic form, which a text explains to the model.
 *
 * A form is immutable, any thread may read it. */
#ifndef TDM_ENGINE_CHAT_FORMS_H
#define TDM_ENGINE_CHAT_FORMS_H

#include "engine/chat/template/template.h"

/* Bytes in marks that stand for something else. UTF-8 has none of them. */
enum tdm_form_slot {
        TDM_FORM_NAME = 0xf9,  /* the tool's name */
        TDM_FORM_ID = 0xfa,    /* the call's id */
        TDM_FORM_INDEX = 0xfb, /* the call's number in its turn */
        TDM_FORM_KEY = 0xfc,   /* an argument's name */
        TDM_FORM_VALUE = 0xfd,
        TDM_FORM_ARGUMENTS = 0xfe, /* a JSON object */
};

enum tdm_form_calls {
        TDM_FORM_CALLS_GENERIC,    /* none could be derived */
        TDM_FORM_CALLS_JSON,       /* arguments are one JSON object */
        TDM_FORM_CALLS_TAGGED,     /* each argument has marks of its own */
        TDM_FORM_CALLS_CHANNELLED, /* gpt-oss: a message to the tool, in a channel */
        TDM_FORM_N_CALLS,
};

/* The type of a value. The form writes each type in marks of its own. */
enum tdm_form_type {
        TDM_FORM_STRING,
        TDM_FORM_NUMBER,
        TDM_FORM_BOOLEAN,
        TDM_FORM_NULL,
        TDM_FORM_ARRAY,
        TDM_FORM_OBJECT,
        TDM_FORM_N_TYPES,
};

enum tdm_form_strings {
        TDM_FORM_STRINGS_BARE,   /* as they are, up to the mark behind them */
        TDM_FORM_STRINGS_JSON,   /* quoted */
        TDM_FORM_STRINGS_MARKED, /* between marks, also inside arrays and objects, whose keys are bare (Gemma 4) */
};

/* A turn with calls is: before NAME [between ARGUMENTS] (gap NAME [between ARGUMENTS])… after. With tagged arguments
 * it is: before NAME (open KEY as VALUE (next KEY as VALUE)… | nothing) gap or after; a call without arguments has a
 * gap and an end of its own. Texts are NULL where the form has none. */
struct tdm_form_call_marks {
        char *start;                /* that text before a call cannot hold; NULL: the whole turn is the call */
        char *before;               /* the first name */
        char *between;              /* name and arguments */
        char *gap;                  /* behind a call's arguments, up to the next name; NULL: one call a turn */
        char *after;                /* behind the last call's arguments */
        char *open;                 /* name and first key */
        char *as[TDM_FORM_N_TYPES]; /* key and value */
        char *next;                 /* value and next key */
        char *value_end;            /* behind a bare string, the mark that it cannot hold */
        char *close_string;         /* behind a string and in front of what follows a value; "" for bare ones */
        char *empty_gap, *empty_after;
};

/* How a prompt leaves the model with its thinking. */
enum tdm_form_prompt {
        TDM_FORM_PROMPT_SILENT, /* the model opens its thinking, or not */
        TDM_FORM_PROMPT_OPEN,   /* it has been opened */
        TDM_FORM_PROMPT_CLOSED, /* there is none: it is closed already, or empty */
};

enum tdm_form_role {
        TDM_FORM_SYSTEM_ROLE,
        TDM_FORM_USER_ROLE,
        TDM_FORM_ASSISTANT_ROLE,
        TDM_FORM_TOOL_ROLE,
        TDM_FORM_N_ROLES,
};

/* What the template does with the text of a role's message. */
enum tdm_form_text_as {
        TDM_FORM_TEXT_REFUSED, /* it refuses all that was tried, in its own words; or nothing is known */
        TDM_FORM_TEXT_DROPPED, /* it leaves the text out without a word */
        TDM_FORM_TEXT_STRING,  /* it shows a string */
        TDM_FORM_TEXT_PARTS,   /* it shows [{"type": "text", "text": …}] alone: a string is refused or dropped */
};

struct tdm_chat_form {
        enum tdm_form_text_as texts[TDM_FORM_N_ROLES];
        enum tdm_form_calls calls;
        struct tdm_form_call_marks marks;
        enum tdm_form_strings strings;
        unsigned first_index;     /* where marks have TDM_FORM_INDEX */
        bool renders_tools;       /* the template shows tools */
        bool renders_calls;       /* and calls of earlier turns */
        bool arguments_as_object; /* of earlier calls: the template takes an object, else JSON text */
        bool null_content;        /* and a content of null beside them: it takes no empty text */
        bool python_words;        /* True, False and None may stand for JSON's */
        bool is_kimi_id;          /* calls are named by their ids: functions.NAME:INDEX */

        char *think_begin, *think_end; /* both or none; without white space at their ends */
        char *text_begin, *text_end;   /* around what people read; or NULL */
        char *thinking_key;            /* of earlier turns; NULL: the template shows no thoughts of them */
        char *switch_variable;         /* that turns thinking on and off; NULL: there is none */
        enum tdm_form_prompt prompt_default, prompt_on, prompt_off;
        char *effort_variable; /* that says how much; NULL */

        char *ends[4]; /* of a turn, as text; NULL behind the last */
        char why[160]; /* calls are GENERIC: what could not be derived */
};

/* bos, eos: as in struct tdm_template_input. Bounded: some fifty small renderings, and the first that reaches a limit
 * is the last. -ENOMEM. */
int tdm_chat_form_derive(struct tdm_chat_form **ret, const struct tdm_template *template, const char *bos,
                         const char *eos);
/* How the generic form begins a call. */
#define TDM_FORM_FENCE "```tool_call"

/* Without a template. */
int tdm_chat_form_new_generic(struct tdm_chat_form **ret, const char *why);
void tdm_chat_form_destroy(struct tdm_chat_form *form);
void tdm_chat_form_destroyp(struct tdm_chat_form **form);

/* What the end of a prompt says of thinking. */
enum tdm_form_prompt tdm_chat_form_prompt(const struct tdm_chat_form *form, const char *text, size_t size);

/* One line a fact, with NUL at the end, to be freed; slots as {NAME}. -ENOMEM. */
int tdm_chat_form_describe(const struct tdm_chat_form *form, char **ret);

#endif
