/* Is a silent worker hung, or does nobody let it run? On a machine with more work than CPUs a thread may wait for its
 * turn for longer than any sensible deadline, and killing it would only make its work begin anew.
 *
 * The kernel knows: how long each thread ran, how long it waited to run, and whether it wants to run now. A thread that
 * wants to and hardly ran was starved, and so is the whole worker if it is the one that the others wait for; which one
 * that is cannot be told from outside, so the most starved thread counts. A worker that is stopped or sleeps wants
 * nothing and is forgiven nothing; one that spins for ever on a loaded machine is forgiven STARVED_MAX_NS and no more.
 * Where /proc does not say, nothing is forgiven. */
#include "daemon/fleet/private.h"

#include <dirent.h>
#include <fcntl.h>

#define STARVED_MAX_NS (10 * TDM_NSEC_PER_SEC)

static int read_file(pid_t pid, pid_t tid, const char *name, char *text, size_t size)
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
        int r = read_file(pid, tid, "schedstat", text, sizeof(text));

        if (r < 0)
                return r;
        if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
                return -EPROTO;
        r = read_file(pid, tid, "stat", text, sizeof(text));
        if (r < 0)
                return r;
        end = strrchr(text, ')'); /* the name may hold anything */
        *ret_wants = end && end[1] == ' ' && end[2] == 'R';
        *ret = (struct tdm_fleet_thread){ .tid = tid, .ran_ns = ran, .waited_ns = waited };
        return 0;
}

static const struct tdm_fleet_thread *find(const struct tdm_fleet_sample *s, pid_t tid)
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

uint64_t tdm_fleet_starved_ns(struct tdm_fleet_sample *s, pid_t pid, uint64_t elapsed_ns)
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
                before = find(s, tid);
                if (!before)
                        continue;
                /* Waiting that is not over is not counted by the kernel yet: what was not run was waited. */
                worst_ns = TDM_MAX(worst_ns, wants ? real_ns - TDM_MIN(real_ns, t->ran_ns - before->ran_ns) :
                                                     TDM_MIN(real_ns, t->waited_ns - before->waited_ns));
        }
        forgiven_ns = s->n > 0 && real_ns > 0 ? (uint64_t)((double)elapsed_ns * (double)worst_ns / (double)real_ns) : 0;
        forgiven_ns = TDM_MIN(forgiven_ns, STARVED_MAX_NS - TDM_MIN(STARVED_MAX_NS, now.forgiven_ns));
        now.forgiven_ns += forgiven_ns;
        *s = now;
        return TDM_MIN(forgiven_ns, elapsed_ns);
}
