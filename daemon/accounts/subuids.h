/* Subordinate uid ranges, as subuid(5) lists them: which uids a login account may take with newuidmap(1).
 *
 * Reading names a user may go through the system's user database, which can be slow: not on the event loop. */
#ifndef TDM_DAEMON_ACCOUNTS_SUBUIDS_H
#define TDM_DAEMON_ACCOUNTS_SUBUIDS_H

#include "daemon/accounts/accounts.h"

#define TDM_SUBUIDS_PATH "/etc/subuid"
#define TDM_MAX_SUBUID_RANGES 65536u

/* The uid of a login name; negative errno when there is none. */
typedef int (*tdm_uid_of_name_fn)(const char *name, uid_t *ret);
/* By the system's user database. */
int tdm_uid_of_name(const char *name, uid_t *ret);

/* Reads "name-or-uid:first:count" lines. A file that is not there has no ranges. Lines that are damaged, or name
 * no user, are left out. *ret_ranges [*ret_n] is the caller's to free. Negative errno. */
int tdm_subuids_read(const char *path, tdm_uid_of_name_fn uid_of_name, struct tdm_uid_range **ret_ranges,
                     size_t *ret_n);

#endif
