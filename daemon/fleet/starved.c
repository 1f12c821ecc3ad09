/* Says whether a silent worker hangs, or has no CPU. On a machine with more work than CPUs a thread may wait for its
 * turn longer than any sensible deadline, and a killed worker would only begin its work anew.
 *
 * The kernel says of each thread how long it ran, how long it waited to run, and whether it wants to run now. A thread
 * that wants to run and hardly ran was starved. Then the whole worker was, if its other threads wait for that one.
 * Which thread they wait for cannot be seen from outside, so the most starved one counts. A worker that is stopped or
 * sleeps does not want to run, and no time is forgiven. A worker that spins for ever on a loaded machine is forgiven so
 * much as the caller says. Where /proc does not say, no time is forgiven. */
#include "daemon/fleet/private.h"

#include <dirent.h>
#include <fcntl.h>

static int read_thread_file(pid_t pid, pid_t tid, const char *name, char *text, size_t size)
{
        _cleanup_(closep) int fd = -1;
        char path[64];
        ssize_t n;

        snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, (int)tid, name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        n = read(fd, text, size - 1);
        if (n <= 0)
                return -EIO;
        text[n] = 0;
        return 0;
}

static int read_thread(pid_t pid, pid_t tid, struct tdm_fleet_thread *ret, bool *ret_wants)
{
        unsigned long long ran, waited;
        char text[512], *end;
        int r = read_thread_file(pid, tid, "schedstat", text, sizeof(text));

        if (r < 0)
                return r;
        if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
                return -EPROTO;
        r = read_thread_file(pid, tid, "stat", text, sizeof(text));
        if (r < 0)
                return r;
        end = strrchr(text, ')'); /* the name in the parentheses may hold any character */
        *ret_wants = end && end[1] == ' ' && end[2] == 'R';
        *ret = (struct tdm_fleet_thread){ .tid = tid, .ran_ns = ran, .waited_ns = waited };
        return 0;
}

static const struct tdm_fleet_thread *thread_find(const struct tdm_fleet_sample *s, pid_t tid)
{
        for (unsigned i = 0; i < s->n; i++)
                if (s->threads[i].tid == tid)
                        return &s->threads[i];
        return NULL;
}

static void closedirp(DIR **dir)
{
        if (*dir)
                closedir(*dir);
}

uint64_t tdm_fleet_starved_ns(struct tdm_fleet_sample *s, pid_t pid, uint64_t elapsed_ns, uint64_t max_ns)
{
        struct tdm_fleet_sample now = { .at_ns = tdm_now_ns(), .forgiven_ns = s->forgiven_ns };
        uint64_t real_ns = now.at_ns - s->at_ns, worst_ns = 0, forgiven_ns;
        _cleanup_(closedirp) DIR *dir = NULL;
        struct dirent *entry;
        char path[40];

        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        dir = opendir(path);
        while (dir && now.n < TDM_FLEET_THREADS && (entry = readdir(dir))) {
                pid_t tid = atoi(entry->d_name);
                struct tdm_fleet_thread *t = &now.threads[now.n];
                const struct tdm_fleet_thread *before;
                bool wants;

                if (tid <= 0 || read_thread(pid, tid, t, &wants) < 0)
                        continue;
                now.n++;
                before = thread_find(s, tid);
                if (!before)
                        continue;
                /* The kernel counts a wait when it is over. So all the time in which the thread did not run counts as
                 * waited. */
                worst_ns = TDM_MAX(worst_ns, wants ? real_ns - TDM_MIN(real_ns, t->ran_ns - before->ran_ns) :
                                                     TDM_MIN(real_ns, t->waited_ns - before->waited_ns));
        }
        forgiven_ns = s->n > 0 && real_ns > 0 ? (uint64_t)((double)elapsed_ns * (double)worst_ns / (double)real_ns) : 0;
        forgiven_ns = TDM_MIN(forgiven_ns, max_ns - TDM_MIN(max_ns, now.forgiven_ns));
        now.forgiven_ns += forgiven_ns;
        *s = now;
        return TDM_MIN(forgiven_ns, elapsed_ns);
}
