/* Calls of tools in what a model writes: the grammar that a turn must follow, and the parser that takes it apart.
 *
 * Models write calls in several forms. The grammar allows a call only in the form of the model's template, with the
 * name of a tool and arguments that satisfy the tool's schema, so the parser meets nothing else; a turn that was cut
 * off may end anywhere. The parser tells thoughts from the answer too. Both are about bytes: the text of the pieces,
 * and for control pieces what tdm_vocabulary_marker() gives. */
#ifndef TDM_ENGINE_CHAT_TOOLS_H
#define TDM_ENGINE_CHAT_TOOLS_H

#include "engine/chat/chat.h"
#include "engine/chat/forms/turn.h"

struct tdm_chat_tool_use {
        struct tdm_chat_text tools; /* as in struct tdm_chat_options */
        enum tdm_form_choice choice;
        struct tdm_chat_text name; /* of TDM_FORM_CHOICE_NAMED */
        bool thought_is_open;      /* the prompt ends with the start of a thought */
        bool one_call;             /* at most one in a turn; in some forms there are never more */
};

/* The grammar of the model's turn behind a prompt of tdm_chat_render(). REQUIRED and NAMED begin with the call: no text
 * and no thought comes before it. TDM_E_BAD_REQUEST, TDM_E_UNSUPPORTED: the tools are malformed, hold something that is
 * not held, or the model's template has no form for calls. */
int tdm_chat_tools_grammar(struct tdm_grammar **ret, const struct tdm_chat *chat, const struct tdm_chat_tool_use *use,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err);

/* How the thought in front of an answer ends. */
#define TDM_CHAT_THOUGHT_END_MAX 32u
struct tdm_chat_thought {
        bool is_begun;                          /* the prompt has opened it, or what leads to one */
        int64_t open;                           /* the id that opens it, where the turn begins without; -1: none */
        char last;                              /* byte of what opens one anywhere in a turn; NUL: not known */
        uint32_t end[TDM_CHAT_THOUGHT_END_MAX]; /* [n_end]: closes it, and leads to the answer */
        uint32_t n_end;
        uint32_t n_close; /* of these, what closes it; the rest is white space that templates write there */
};
/* 0. is_open: the prompt ends with the start of one. -EOPNOTSUPP: the model has none. -ENOENT: the vocabulary cannot
 * write the end. */
int tdm_chat_thought_of(const struct tdm_chat *chat, bool is_open, struct tdm_chat_thought *ret);

#define TDM_CHAT_TURN_MUST_CALL 1u /* the grammar's choice was REQUIRED or NAMED */
#define TDM_CHAT_TURN_IS_BOUND 2u  /* a grammar binds the answer, and not what comes before it */
#define TDM_CHAT_TURN_GOES_ON 4u   /* the model goes on with the last message (tdm_chat_goes_on()) */

/* How the prompt leaves thinking, where the model begins its answer. */
enum tdm_form_prompt tdm_chat_prompt_end(const struct tdm_chat *chat, bool with_tools, enum tdm_chat_thinking thinking);

/* The parser of one turn (forms/turn.h). tools: as in struct tdm_chat_options; without any, only thoughts are told from
 * text. prompt: as of tdm_chat_prompt_end(), which TDM_CHAT_TURN_GOES_ON leaves out.
 * flags: TDM_CHAT_TURN_*. -EOPNOTSUPP: the model's template has no form for calls, or none for thoughts. */
int tdm_chat_parser_new(struct tdm_form_parser **ret, const struct tdm_chat *chat, struct tdm_chat_text tools,
                        enum tdm_form_prompt prompt, unsigned flags);
enum tdm_chat_place {
        TDM_CHAT_IN_ANSWER,
        TDM_CHAT_IN_THOUGHT,
        TDM_CHAT_BEFORE_ANSWER, /* in what stands around messages: the next is a thought, an answer or a call */
};
/* Where the turn is, behind all that was pushed. */
enum tdm_chat_place tdm_chat_parser_place(const struct tdm_form_parser *parser);

#endif
