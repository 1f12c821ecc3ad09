/* How a model's name goes over the wire: as it is, or as a file that is opened here with the caller's own rights, so
 * that the daemon needs none and cannot be used to read what the caller may not.
 *
 * Only regular files are opened; what is inside is the daemon's to judge. */
#include "client-lib/internal.h"

#include <fcntl.h>
#include <sys/stat.h>

static bool names_a_file(const char *name)
{
        static const char suffix[] = ".gguf";
        size_t n = strlen(name);

        if (strchr(name, '/'))
                return true;
        return n > strlen(suffix) && strcmp(name + n - strlen(suffix), suffix) == 0 && access(name, F_OK) == 0;
}

int lib_model_ref(Tandem__ModelRef *ref, const char *name, int *ret_fd, struct tandem_error *err)
{
        _cleanup_(closep) int fd = -1;
        struct stat st;

        tandem__model_ref__init(ref);
        if (!name)
                name = "";
        ref->name = (char *)(uintptr_t)name;
        if (!names_a_file(name)) {
                *ret_fd = -1;
                return TANDEM_OK;
        }

        /* O_NONBLOCK: a FIFO must not hold us up before fstat() can refuse it. */
        fd = open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0) {
                int e = errno;
                return lib_error(err, e == EACCES || e == EPERM ? TANDEM_E_DENIED : TANDEM_E_NO_MODEL,
                                 "cannot open model %s: %s%s", name, strerror(e),
                                 e == ENOENT ? " (a name without '/' is looked up in the daemon's model directories; "
                                               "`tandem models` lists them)" :
                                               "");
        }
        if (fstat(fd, &st) < 0)
                return lib_error(err, TANDEM_E_NO_MODEL, "cannot look at model %s: %s", name, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return lib_error(err, TANDEM_E_NO_MODEL, "cannot use %s as a model: it is %s, not a regular file", name,
                                 S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
        ref->from_fd = true;
        *ret_fd = steal_fd(&fd);
        return TANDEM_OK;
}
