/* A model's turn in a form (forms.h): the grammar that it must follow, and the parser that takes it apart.
 *
 * A turn is thinking, if there is any, then text, then calls. The grammar allows calls only in the form's marks, with
 * the name of a tool and arguments that satisfy its schema; thinking is free. The parser runs for every turn, also
 * without tools, since thinking has to be told from text. A turn that was cut off may end anywhere. Both are about
 * bytes: the text of the pieces, and for control pieces what tdm_vocabulary_marker() gives. */
#ifndef TDM_ENGINE_CHAT_TURN_H
#define TDM_ENGINE_CHAT_TURN_H

#include "engine/chat/forms/forms.h"
#include "engine/grammar/grammar.h"
#include "engine/text/tokenizer.h"

#define TDM_FORM_NAME_MAX 64u         /* bytes of a tool's name */
#define TDM_FORM_TOOLS_MAX 1024u      /* of a job */
#define TDM_FORM_PROPERTIES_MAX 1024u /* of an object whose arguments have marks of their own */
#define TDM_FORM_MARK_MAX 512u        /* bytes that may be held since a mark may begin there */
#define TDM_FORM_BLANKS_MAX 128u      /* bytes of white space that may be held in front of them */
#define TDM_FORM_HELD_MAX (TDM_FORM_MARK_MAX + TDM_FORM_BLANKS_MAX) /* bytes of text that finish() may give */
#define TDM_FORM_ID_BYTES 9u                                        /* of a call, as Mistral's templates want it */

enum tdm_form_choice {
        TDM_FORM_CHOICE_AUTO, /* text, calls or both, as the model likes */
        TDM_FORM_CHOICE_NONE, /* text only */
        TDM_FORM_CHOICE_REQUIRED,
        TDM_FORM_CHOICE_NAMED,
};

struct tdm_form_use {
        const char *tools; /* a JSON array of {"type": "function", "function": {…}}; NULL: none */
        size_t tools_size;
        enum tdm_form_choice choice;
        const char *name; /* of TDM_FORM_CHOICE_NAMED */
        size_t name_size;
        bool one_call;      /* at most one in a turn; some forms never have more */
        const char *schema; /* JSON Schema that the text satisfies; NULL: any text */
        size_t schema_size;
        enum tdm_form_prompt prompt; /* how the prompt leaves thinking */
        bool goes_on;                /* the prompt ends with a text, and the model goes on with it */
};

/* REQUIRED and NAMED begin with the call: no text and no thought comes before it. TDM_E_BAD_REQUEST,
 * TDM_E_UNSUPPORTED: the tools are malformed, or hold something that is not held. tokenizer may be NULL: no mark is a
 * control piece. */
int tdm_form_grammar(struct tdm_grammar **ret, const struct tdm_chat_form *form, const struct tdm_tokenizer *tokenizer,
                     const struct tdm_form_use *use, const struct tdm_grammar_limits *limits, struct tdm_error *err);

/* TDM_E_BAD_REQUEST: more than TDM_FORM_TOOLS_MAX. */
int tdm_form_check_tools(uint32_t n, struct tdm_error *err);

enum tdm_form_part_kind {
        TDM_FORM_PART_TEXT,      /* what people read */
        TDM_FORM_PART_THINKING,  /* what the model thought */
        TDM_FORM_PART_CALL,      /* a call begins: data is the tool's name */
        TDM_FORM_PART_ARGUMENTS, /* the next piece of its arguments, a JSON object in the end */
};

/* One piece of a turn. Text and thoughts lose the white space at their ends where a call or the answer follows. A text
 * loses that in front of it behind a thought, a call or another text. One that a prompt's text goes on with, or that a
 * schema binds, keeps all of it. */
struct tdm_form_part {
        enum tdm_form_part_kind kind;
        uint32_t call; /* which call, from 0 */
        const char *data;
        size_t size;
        char id[TDM_FORM_ID_BYTES + 1]; /* of a CALL */
};

struct tdm_form_parser;

/* Borrows the form. Only tools, prompt, goes_on, choice and whether there is a schema count; use->tools NULL: no calls
 * are looked for. -ENOMEM. */
int tdm_form_parser_new(struct tdm_form_parser **ret, const struct tdm_chat_form *form,
                        const struct tdm_tokenizer *tokenizer, const struct tdm_form_use *use);
void tdm_form_parser_destroy(struct tdm_form_parser *parser);
void tdm_form_parser_destroyp(struct tdm_form_parser **parser);
/* Takes the bytes of the next token; *ret_parts [*ret_n] are what they add, valid until the next call. A control
 * piece, from TDM_MARKER_BYTE to its bracket or the end of the push, says nothing where it is no mark. 0 or -ENOMEM. */
int tdm_form_parser_push(struct tdm_form_parser *parser, const char *data, size_t size,
                         const struct tdm_form_part **ret_parts, size_t *ret_n);
/* What is still held, where the turn is over. */
int tdm_form_parser_finish(struct tdm_form_parser *parser, const struct tdm_form_part **ret_parts, size_t *ret_n);
/* Behind a thought, a schema binds the text from here on: white space so far was the template's. */
void tdm_form_parser_begin_answer(struct tdm_form_parser *parser);
/* Whether the model is thinking now. */
bool tdm_form_parser_is_thinking(const struct tdm_form_parser *parser);
/* Whether it is in what stands around messages (gpt-oss): the next is a thought, a text or a call. */
bool tdm_form_parser_is_in_header(const struct tdm_form_parser *parser);

#endif
