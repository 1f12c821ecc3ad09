/* The options of a job as a chat sets them: what its command /set does, but for reading a value. */
#ifndef TANDEM_CLI_SETTINGS_H
#define TANDEM_CLI_SETTINGS_H

#include "client-lib/cli/cli.h"

/* Prints the values that were set, and the names of the options that a chat has. */
void settings_list(const struct job_args *set);
/* Prints what an option does and what it is set to. False: there is none of that name or letter, or it takes no
 * value. */
bool settings_explain(const struct job_args *set, const char *name, size_t size);
/* Whether a chat could show nothing of what the option asks for. */
bool settings_is_for_json(const char *name, size_t size);
/* An option is again as if it had never been given. False: there is none of that name or letter. */
bool settings_take_back(struct job_args *set, const char *name, size_t size);
/* Sets an option that takes no value, where the word is "on" or "off". False: another option, or another word. */
bool settings_switch(struct job_args *set, const char *name, size_t size, const char *word);
bool settings_is_given(const struct job_args *set, const char *name, size_t size);
/* The words of /set that stop these settings from asking for thoughts; NULL: nothing asks for them. */
const char *settings_to_stop_thinking(const struct job_args *set);

#endif
