/* What a job's text must follow: a JSON schema, a grammar, a regular expression or the form of its tools' calls, and
 * where the thought in front of it ends; and how far the text is in it.
 *
 * It belongs to one job. The source is compiled on a thread, with the vocabulary of the job's model. From then on it
 * gives the mask of the next token for the job's ids. It lives in the daemon and follows the tokens that were accepted.
 * So the loss of a worker, an eviction and another cut of the prompt change nothing about it.
 *
 * One thread at a time: the loop's, or the one that the loop has given it to. Memory is counted against the user's
 * account, with what it takes. */
#ifndef TDM_DAEMON_JOBS_CONSTRAINT_H
#define TDM_DAEMON_JOBS_CONSTRAINT_H

#include "daemon/accounts/accounts.h"
#include "daemon/jobs/grammar-cache.h"
#include "daemon/jobs/options.h"
#include "engine/chat/tools.h"

struct tdm_constraint;

/* From the options of a job; *ret NULL where they constrain nothing. is_chat: its prompt is a chat, and the model
 * begins the answer. The source is copied. TDM_E_BAD_REQUEST: more than one is given, or together with ignore-end.
 * TDM_E_QUOTA, TDM_E_BUSY. */
int tdm_constraint_new(struct tdm_constraint **ret, const struct tdm_job_options *options, bool is_chat,
                       struct tdm_account *account, struct tdm_error *err);
void tdm_constraint_destroy(struct tdm_constraint *constraint);
void tdm_constraint_destroyp(struct tdm_constraint **constraint);

/* The job's tools as JSON; empty: none. */
struct tdm_chat_text tdm_constraint_tools(const struct tdm_constraint *constraint);
/* TDM_CHAT_TURN_*, of the answer that it binds. constraint may be NULL. */
unsigned tdm_constraint_turn_flags(const struct tdm_constraint *constraint);

/* False: it ends a thought and has nothing to compile. */
bool tdm_constraint_has_grammar(const struct tdm_constraint *constraint);
/* Does for a constraint without a grammar what compile() does for one with a grammar. TDM_E_UNSUPPORTED: the model has
 * no thoughts, or the end of its thoughts is not known. */
int tdm_constraint_prepare(struct tdm_constraint *constraint, const struct tdm_chat *chat,
                           const struct tdm_tokenizer *tokenizer, uint32_t n_vocab, struct tdm_error *err);

/* Compiles the source, and makes the first mask. Tools are compiled for the form of calls that the model's template
 * has. Any thread. TDM_E_BAD_REQUEST, TDM_E_UNSUPPORTED: what the source holds that is wrong or not held, with its
 * place. */
int tdm_constraint_compile(struct tdm_constraint *constraint, const struct tdm_chat *chat,
                           const struct tdm_tokenizer *tokenizer, struct tdm_vocabulary *vocabulary,
                           struct tdm_error *err);

/* find() takes the grammar from the cache, so that it is not compiled. keep() puts it there once it is. identity: that
 * of the login account; model: its number, which no other model ever has. Loop only, and not while a thread compiles.
 */
void tdm_constraint_find(struct tdm_constraint *constraint, struct tdm_grammar_cache *cache, uint64_t identity,
                         uint32_t model);
void tdm_constraint_keep(struct tdm_constraint *constraint, struct tdm_grammar_cache *cache, uint64_t identity,
                         uint32_t model);

/* Tells it of the token that was generated as number index, from 0; place: where the answer is behind it; splits: it
 * ends in the midst of a character. Only for a job whose answer is taken apart. Returns whether a thought is over and
 * the next token is the first that the grammar binds. */
bool tdm_constraint_take(struct tdm_constraint *constraint, uint32_t index, enum tdm_chat_place place, bool splits);
/* Whether the next token needs a mask, and how many tokens that may be guessed need none; UINT32_MAX: any number that
 * n_unbound() leaves. */
bool tdm_constraint_binds(const struct tdm_constraint *constraint);
/* Whether the id is the one that has to come since a thought ends: it does not end the turn, whatever else it does. */
bool tdm_constraint_is_due(const struct tdm_constraint *constraint, uint32_t id);
/* Whether another id is due. What the grammar forbids is not looked at. */
bool tdm_constraint_is_overdue(const struct tdm_constraint *constraint, uint32_t id);
uint32_t tdm_constraint_n_free(const struct tdm_constraint *constraint);
/* How many of these guesses behind the text need no mask, whichever of them are right: behind a thought those in front
 * of what may open another one. */
uint32_t tdm_constraint_n_unbound(const struct tdm_constraint *constraint, const uint32_t *ids, uint32_t n);

enum tdm_constraint_effort {
        TDM_CONSTRAINT_QUICK,  /* on the loop: some 100 µs at most */
        TDM_CONSTRAINT_LOOKUP, /* only what is there already */
        TDM_CONSTRAINT_FULL,   /* on a thread: what the limits allow */
};
/* The mask of the token behind ids [n_ids], the tokens generated so far; the first of them are those of the last call.
 * words are valid until the next call. 0; -EAGAIN: it takes more effort; -ENODATA: no token may follow;
 * TDM_E_UNSUPPORTED: it takes more than the limits allow. TDM_E_BAD_REQUEST: a token of ids is not allowed. */
int tdm_constraint_mask(struct tdm_constraint *constraint, const uint32_t *ids, size_t n_ids,
                        enum tdm_constraint_effort effort, const uint64_t **ret_words, struct tdm_error *err);
uint32_t tdm_constraint_n_words(const struct tdm_constraint *constraint); /* of a mask; 0 before it is compiled */
/* The same with tokens behind ids that may never become text: ahead [n_ahead], n_ahead > 0. ret_words: as many words as
 * a mask has. Not with TDM_CONSTRAINT_LOOKUP. */
int tdm_constraint_mask_ahead(struct tdm_constraint *constraint, const uint32_t *ids, size_t n_ids,
                              const uint32_t *ahead, size_t n_ahead, enum tdm_constraint_effort effort,
                              uint64_t *ret_words, struct tdm_error *err);
/* How many of the tokens in ahead may follow ids, one after the other, as far as a quick look tells. */
size_t tdm_constraint_n_allowed(struct tdm_constraint *constraint, const uint32_t *ids, size_t n_ids,
                                const uint32_t *ahead, size_t n_ahead);
/* Whether a text of these ids satisfies it. False also where that takes more than a quick look. */
bool tdm_constraint_is_whole(struct tdm_constraint *constraint, const uint32_t *ids, size_t n_ids);
/* Charges what it takes now. Past the user's share its caches are emptied, and the last mask stays. Loop only.
 * TDM_E_QUOTA, TDM_E_BUSY: too much even with its caches emptied. */
int tdm_constraint_charge(struct tdm_constraint *constraint, struct tdm_error *err);

#endif
