/* Where tandemd keeps what it can do without. */
#ifndef TDM_COMMON_CACHE_DIR_H
#define TDM_COMMON_CACHE_DIR_H

#include "common/util.h"

/* NAME in $CACHE_DIRECTORY as a service, else of a system in /var/cache/tandem, else in $XDG_CACHE_HOME/tandem. make:
 * the folders before NAME. The caller frees it. -ENOENT: the environment names none. */
int tdm_cache_dir(bool system, const char *name, bool make, char **ret);

#endif
