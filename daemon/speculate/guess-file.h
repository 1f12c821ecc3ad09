/* For tests: guesses from a file of texts instead of a job's own. The texts are what the jobs will generate, so every
 * number of guesses comes with every number of right ones. */
#ifndef TDM_DAEMON_SPECULATE_GUESS_FILE_H
#define TDM_DAEMON_SPECULATE_GUESS_FILE_H

#include "daemon/jobs/job.h"
#include "daemon/speculate/lookup.h"

struct tdm_guess_file;

/* Decimal ids, TDM_NO_TOKEN between texts. "copy:PATH": lookup's guesses, as if the prompt had given the texts; as many
 * are checked as pay. -errno. */
int tdm_guess_file_open(struct tdm_guess_file **ret, const char *path);
void tdm_guess_file_close(struct tdm_guess_file *file);
bool tdm_guess_file_copies(const struct tdm_guess_file *file);
/* Guesses the tokens behind the place that agrees with the most tokens before it. How many they are, and which one is
 * made wrong, if any, follows from the job's seed and length alone. */
uint32_t tdm_guess_file_guess(void *file, const struct tdm_job *job, uint32_t most, uint32_t *ret);
/* Guesses of a file that copies. It keeps what it has read of one job. If jobs take turns, each turn reads anew. */
uint32_t tdm_guess_file_look_up(struct tdm_guess_file *file, const struct tdm_job *job, uint32_t most, uint32_t *ret,
                                struct tdm_lookup_match *match);

#endif
