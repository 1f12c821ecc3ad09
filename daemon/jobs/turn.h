/* A chat's answer, taken apart as its tokens come: text that people read, thoughts, and calls of tools.
 *
 * It belongs to one job. What a token adds stays valid until 1 + TDM_MAX_GUESSES more tokens were taken, since all
 * tokens of a step are told together. Loop thread only. */
#ifndef TDM_DAEMON_JOBS_TURN_H
#define TDM_DAEMON_JOBS_TURN_H

#include "engine/chat/tools.h"

struct tdm_job_token;
struct tdm_turn;

/* *ret NULL: the model has no thoughts, and no calls are wanted. tools: the job's, or empty. prompt and
 * flags: as of tdm_chat_parser_new(). */
int tdm_turn_new(struct tdm_turn **ret, const struct tdm_chat *chat, const struct tdm_tokenizer *tokenizer,
                 struct tdm_chat_text tools, enum tdm_form_prompt prompt, unsigned flags);
void tdm_turn_destroy(struct tdm_turn *turn);

/* Takes token id, whose text is data [size]; none: it may be a control piece. Sets the parts of token, and its text,
 * behind which there is room for TDM_MAX_STOP_BYTES more. -ENOMEM. */
int tdm_turn_take(struct tdm_turn *turn, uint32_t id, const char *data, size_t size, struct tdm_job_token *token);
/* As tdm_form_parser_begin_answer(). */
void tdm_turn_begin_answer(struct tdm_turn *turn);
/* Where the turn is. */
enum tdm_chat_place tdm_turn_place(const struct tdm_turn *turn);
/* Tokens so far that were no part of the answer: thoughts, and the marks around them. */
uint32_t tdm_turn_thinking_tokens(const struct tdm_turn *turn);
/* The last bytes, data [size], and what is still held. Returns the text of it, which is written to data, of which
 * TDM_TURN_TAIL_BYTES more than size can be written. */
#define TDM_TURN_TAIL_BYTES (2 * TDM_FORM_HELD_MAX)
size_t tdm_turn_finish(struct tdm_turn *turn, char *data, size_t size);

#endif
