/* Where tandemd keeps what it can do without, and folders on the way to a file. */
#ifndef TDM_COMMON_CACHE_DIR_H
#define TDM_COMMON_CACHE_DIR_H

#include "common/util.h"

/* NAME in $CACHE_DIRECTORY as a service, else of a system in /var/cache/tandem, else in $XDG_CACHE_HOME/tandem. make:
 * the folders before NAME. The caller frees it. -ENOENT: the environment names none. */
int tdm_cache_dir(bool system, const char *name, bool make, char **ret);

/* Makes the folders before the last name of an absolute path, where they are missing, for their owner alone. Where that
 * fails, whoever opens the path is told. path: changed meanwhile. */
void tdm_make_parents(char *path);

#endif
