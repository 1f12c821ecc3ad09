/* Guesses from a job's own prompt and text: what stood behind the same tokens before.
 *
 * The index knows of each place the three tokens that end there, and the place before it with the same hash. The place
 * whose tokens agree with the end of the text furthest back gives the guesses; of equal ones the latest. It costs no
 * model, 8 to 16 bytes a token, and some microseconds a step. Loop thread only.
 *
 * A text that is edited agrees with the old one up to a token that is changed, and mostly again behind it. So the place
 * of the last guesses is gone on with behind one token that differs. Else three tokens of the new text would have to
 * come first, each with a step of its own. */
#ifndef TDM_DAEMON_SPECULATE_LOOKUP_H
#define TDM_DAEMON_SPECULATE_LOOKUP_H

#include "common/error.h"

#define TDM_LOOKUP_LEAST 3u /* tokens that have to agree */
#define TDM_LOOKUP_MOST 32u /* more are not compared */
/* Tokens that have to agree before one that differs. Fewer may be chance, and then what stands behind it says nothing.
 * It also is the bound: of two changed tokens that are closer, the second ends the copy. */
#define TDM_LOOKUP_BEFORE_CHANGE 8u

struct tdm_lookup;

/* Where guesses come from. */
struct tdm_lookup_match {
        uint32_t length;     /* tokens before that agree; one that differs among them does not count */
        bool behind_changed; /* the first guess follows on the token that differs */
};

int tdm_lookup_new(struct tdm_lookup **ret);
void tdm_lookup_destroy(struct tdm_lookup *lookup);
/* Guesses at the tokens behind ids [n_ids], at most `most`. ids begin with those of the last call. Returns how many; 0
 * also while the index still has to read a long prompt, a piece a call. *match is set with guesses only. */
uint32_t tdm_lookup_guess(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids, uint32_t most, uint32_t *ret,
                          struct tdm_lookup_match *match);

#endif
