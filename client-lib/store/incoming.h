/* A file on its way into a model folder: the one way that `tandem add`, `add --from` and `pull` take.
 *
 * NAME.gguf.part is the lock of NAME: who brings a file of that name holds it (flock), so that two do not bring it at
 * once. The bytes of a copy go to a file without a name (O_TMPFILE), which a process that is killed leaves no trace of.
 * Where the file system has none, and for a download, which a later run takes up, they go to the lock file itself. A
 * file that is whole gets its name by a link to the descriptor that was written and checked, never by a path, and never
 * over another file. A lock file that a killed process leaves is taken over by the next one, or removed by `tandem rm`.
 *
 * All paths are relative to one descriptor of the folder: its owner cannot lead the process elsewhere in between. */
#ifndef TANDEM_STORE_INCOMING_H
#define TANDEM_STORE_INCOMING_H

#include "common/error.h"

struct incoming {
        int folder_fd;  /* the caller's */
        char *path;     /* FOLDER/NAME.gguf, for messages */
        char *name;     /* NAME.gguf */
        char *part;     /* NAME.gguf.part */
        char *info;     /* NAME.gguf.part.info: what a download keeps beside its bytes */
        int lock_fd;    /* of the part file */
        int fd;         /* where the bytes go; lock_fd or a file without a name; -1 before incoming_begin() */
        bool keep_part; /* incoming_close() leaves the part file to a later run */
};

/* "cannot WHAT PATH" with errno's reason: TDM_E_NO_MEMORY, TDM_E_DENIED or TDM_E_INTERNAL. */
int incoming_failed(struct tdm_error *err, const char *what, const char *path);

#define INCOMING_NONE ((struct incoming){ .folder_fd = -1, .lock_fd = -1, .fd = -1 })

/* Takes the lock of name (without .gguf). The folder's descriptor outlives it. TDM_E_BUSY: another process brings a
 * file of that name. TDM_E_DENIED: the part file is not the caller's. */
int incoming_open(struct incoming *in, int folder_fd, const char *folder, const char *name, struct tdm_error *err);
void incoming_close(struct incoming *in); /* without a link before, nothing of it stays but what keep_part says */

/* Chooses where the bytes go. named: the part file, which keeps what it has. */
int incoming_begin(struct incoming *in, bool named, struct tdm_error *err);
/* TDM_E_NO_MEMORY: the disk has no room for this many bytes more, with a message that says what to do. */
int incoming_check_room(const struct incoming *in, uint64_t missing_bytes, struct tdm_error *err);
/* Copies size_bytes from another descriptor. TDM_E_MODEL_CHANGED: it has fewer or more. TDM_E_CANCELLED: on_progress
 * returned false. */
int incoming_copy(struct incoming *in, int from_fd, uint64_t size_bytes, bool (*on_progress)(uint64_t done_bytes),
                  struct tdm_error *err);

/* Whether something of that name lies in the folder, a broken link included. */
bool incoming_is_taken(const struct incoming *in);
int incoming_taken(const struct incoming *in, struct tdm_error *err); /* says so: TDM_E_BAD_REQUEST */
/* Syncs the bytes and gives them their name. TDM_E_BAD_REQUEST: another file has it. */
int incoming_link(struct incoming *in, struct tdm_error *err);
/* Makes the name a symbolic link instead. */
int incoming_symlink(struct incoming *in, const char *target, struct tdm_error *err);
/* Takes back a name that incoming_link() or incoming_symlink() gave. */
void incoming_unlink(struct incoming *in);

/* Removes the part file of a name (without .gguf), and what lies beside it, that no process holds. *ret_bytes: what
 * they took. -ENOENT: there are none. TDM_E_BUSY: a process brings that name. TDM_E_DENIED. */
int incoming_forget(int folder_fd, const char *folder, const char *name, uint64_t *ret_bytes, struct tdm_error *err);

#endif
