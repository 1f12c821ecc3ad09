/* tandemd is installed among the commands. Its workers are not, because people do not start them. The path from one
 * folder to the other is fixed by the installation, and the prefix is not, so that a tree can be moved or unpacked
 * anywhere. */
#include "daemon/service/worker-dir.h"

#include "common/util.h"

char *tdm_installed_worker_dir(void)
{
        char exe[4096], dir[4300], program[4400], *slash;
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

        if (n <= 0)
                return NULL;
        exe[n] = '\0';
        slash = strrchr(exe, '/');
        if (!slash)
                return NULL;
        *slash = '\0';
        snprintf(program, sizeof(program), "%s/tandem-npu-worker", exe);
        if (access(program, X_OK) == 0)
                return NULL;
        snprintf(dir, sizeof(dir), "%s/" TANDEM_WORKER_DIR, exe);
        snprintf(program, sizeof(program), "%s/tandem-npu-worker", dir);
        return access(program, X_OK) == 0 ? strdup(dir) : NULL;
}
