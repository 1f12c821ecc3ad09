/* Guesses from a job's own prompt and text: what stood behind the same tokens before.
 *
 * The index knows of each place the three tokens that end there, and the place before it with the same hash. The place
 * whose tokens agree with the end of the text furthest back gives the guesses; of equal ones the latest. It costs no
 * model, 8 to 16 bytes a token, and some microseconds a step. Loop thread only. */
#ifndef TDM_DAEMON_SCHEDULE_LOOKUP_H
#define TDM_DAEMON_SCHEDULE_LOOKUP_H

#include "common/error.h"

#define TDM_LOOKUP_LEAST 3u /* tokens that have to agree */
#define TDM_LOOKUP_MOST 32u /* more are not compared */

struct tdm_lookup;

int tdm_lookup_new(struct tdm_lookup **ret);
void tdm_lookup_destroy(struct tdm_lookup *lookup);
/* Guesses at the tokens behind ids [n_ids], at most `most`. ids begin with those of the last call. Returns how many; 0
 * also while the index still has to read a long prompt, a piece a call. *ret_length: the tokens that agree. */
uint32_t tdm_lookup_guess(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids, uint32_t most, uint32_t *ret,
                          uint32_t *ret_length);

#endif
