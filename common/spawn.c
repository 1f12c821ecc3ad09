/* posix_spawn() with what workers and gates have in common: see spawn.h. */
#include "common/spawn.h"
#include "common/util.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

static const int held_signals[] = { SIGHUP, SIGINT, SIGTERM };

void tdm_spawned_ignore(int signo)
{
        sigset_t set;

        signal(signo, SIG_IGN); /* which drops one that has come already */
        sigemptyset(&set);
        sigaddset(&set, signo);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int tdm_spawn(const char *path, char *const argv[], int socket, int socket_fd, pid_t *ret_pid)
{
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        sigset_t held, all;
        int r = posix_spawn_file_actions_init(&actions);

        if (r != 0)
                return -r;
        r = posix_spawnattr_init(&attr);
        if (r != 0) {
                posix_spawn_file_actions_destroy(&actions);
                return -r;
        }
        r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, socket, socket_fd);
        if (r == 0)
                r = posix_spawn_file_actions_addclosefrom_np(&actions, socket_fd + 1);
        sigemptyset(&held);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(held_signals); i++)
                sigaddset(&held, held_signals[i]);
        sigfillset(&all);
        if (r == 0)
                r = posix_spawnattr_setsigmask(&attr, &held);
        if (r == 0)
                r = posix_spawnattr_setsigdefault(&attr, &all);
        if (r == 0)
                r = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if (r == 0)
                r = posix_spawn(ret_pid, path, &actions, &attr, argv, environ);
        posix_spawnattr_destroy(&attr);
        posix_spawn_file_actions_destroy(&actions);
        return -r;
}
