/* Opens a file to be copied so that no other user chooses what is copied.
 *
 * A path may lead through folders and links of other users. Who owns one of them decides where the path ends, and may
 * decide anew at any moment. When root copies what lies there, a link to a file that root alone may read would publish
 * that file. So the path is walked step by step, each step on the descriptor of the one before, and the owners on the
 * way are held against the file that was opened in the end.
 *
 * Trusted on the way are root, the caller, and who owns "/" (inside a user namespace that may be neither). The file
 * must be readable for each other owner: its own, or readable for everybody, with folders behind that owner's link or
 * folder which that owner may enter. Groups are not looked at. */
#ifndef TANDEM_STORE_FOLLOW_H
#define TANDEM_STORE_FOLLOW_H

#include "common/error.h"

#include <sys/stat.h>

/* *ret_fd reads a regular file, *ret_st is what fstat() says of it. folder_fd: where a relative path begins, or
 * AT_FDCWD. TDM_E_DENIED: another user chose a file which that user may not read. TDM_E_BAD_REQUEST: not a regular
 * file. A negative errno: it cannot be opened. All with a message that names path. */
int follow_open(int folder_fd, const char *path, int *ret_fd, struct stat *ret_st, struct tdm_error *err);

#endif
