/* Hand-over time of the descriptor ring between two processes: one descriptor there and one back, p50 and p99, for each
 * way of waiting. It tells what a hop between workers costs, and how long a spin is worth its core.
 *
 * bench-ring [-n ROUNDS] [-t SECONDS] [-g GAP_US]: at most ROUNDS or SECONDS for each way; GAP_US is the work between
 * two hand-overs (spun away), as a block of a model would be. */
#include "common/ring.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum style { STYLE_SPIN, STYLE_SPIN_FUTEX, STYLE_FUTEX, STYLE_EVENTFD, N_STYLES };
static const char *const style_names[N_STYLES] = { "spin", "spin 50us, then futex", "futex", "eventfd" };
static const uint64_t style_spin_ns[N_STYLES] = { UINT64_MAX, 50000, 0, 0 };

#define STOP UINT64_MAX

static int take(struct tdm_ring *ring, enum style style, struct tdm_desc *d)
{
        for (;;) {
                int r = tdm_ring_pop(ring, d);

                if (r != 0)
                        return r;
                if (style == STYLE_EVENTFD) {
                        struct pollfd p = { .fd = tdm_ring_eventfd(ring), .events = POLLIN };

                        if (!tdm_ring_arm(ring) && poll(&p, 1, 10000) <= 0)
                                return -ETIMEDOUT;
                        tdm_ring_disarm(ring);
                } else {
                        r = tdm_ring_wait_any(&ring, 1, NULL, 0, style_spin_ns[style], 10 * TDM_NSEC_PER_SEC);
                        if (r != 0)
                                return r;
                }
        }
}

static void spin_away(uint64_t ns)
{
        for (uint64_t until = tdm_now_ns() + ns; tdm_now_ns() < until;)
                ;
}

static int echo(struct tdm_ring *in, struct tdm_ring *out, enum style style, uint64_t gap_ns)
{
        struct tdm_desc d;

        for (;;) {
                if (take(in, style, &d) != 1)
                        return 1;
                if (d.step_id == STOP)
                        return 0;
                spin_away(gap_ns);
                if (tdm_ring_push(out, &d) != 0)
                        return 1;
        }
}

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

static int make(struct tdm_ring **producer, struct tdm_ring **consumer, enum style style)
{
        enum tdm_ring_wake wake = style == STYLE_EVENTFD ? TDM_RING_WAKE_EVENTFD : TDM_RING_WAKE_FUTEX;
        int memfd, efd, r;

        r = tdm_ring_create(&memfd, &efd, 1, 64, wake);
        if (r < 0)
                return r;
        r = tdm_ring_attach(producer, fcntl(memfd, F_DUPFD_CLOEXEC, 3), efd < 0 ? -1 : fcntl(efd, F_DUPFD_CLOEXEC, 3),
                            TDM_RING_PRODUCER, 1, NULL);
        return r != 0 ? r : tdm_ring_attach(consumer, memfd, efd, TDM_RING_CONSUMER, 1, NULL);
}

static int bench(enum style style, uint64_t *times, size_t max_rounds, uint64_t max_ns, uint64_t gap_ns)
{
        _cleanup_(tdm_ring_destroyp) struct tdm_ring *there_in = NULL, *there_out = NULL;
        _cleanup_(tdm_ring_destroyp) struct tdm_ring *back_in = NULL, *back_out = NULL;
        struct tdm_desc d = { .kind = TDM_DESC_STEP, .epoch = 1 };
        uint64_t end_ns;
        size_t n = 0;
        int status;
        pid_t pid;

        if (make(&there_out, &there_in, style) != 0 || make(&back_out, &back_in, style) != 0)
                return -1;
        pid = fork();
        if (pid < 0)
                return -1;
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                _exit(echo(there_in, back_out, style, gap_ns));
        }
        end_ns = tdm_now_ns() + max_ns;
        while (n < max_rounds && tdm_now_ns() < end_ns) {
                uint64_t start = tdm_now_ns();

                d.step_id = n;
                if (tdm_ring_push(there_out, &d) != 0 || take(back_in, style, &d) != 1)
                        break;
                times[n++] = tdm_now_ns() - start - gap_ns;
                spin_away(gap_ns);
        }
        d.step_id = STOP;
        tdm_ring_push(there_out, &d);
        waitpid(pid, &status, 0);
        if (status != 0 || n == 0)
                return -1;
        qsort(times, n, sizeof(*times), compare);
        printf("%-22s  p50 %8.2f us  p99 %8.2f us  max %8.2f us  (%zu round trips)\n", style_names[style],
               (double)times[n / 2] / 1e3, (double)times[n * 99 / 100] / 1e3, (double)times[n - 1] / 1e3, n);
        return 0;
}

int main(int argc, char **argv)
{
        _cleanup_(freep) uint64_t *times = NULL;
        uint64_t max_ns = TDM_NSEC_PER_SEC, gap_ns = 0;
        size_t max_rounds = 100000;
        int c;

        while ((c = getopt(argc, argv, "n:t:g:")) != -1)
                switch (c) {
                case 'n':
                        max_rounds = strtoull(optarg, NULL, 10);
                        break;
                case 't':
                        max_ns = (uint64_t)(strtod(optarg, NULL) * 1e9);
                        break;
                case 'g':
                        gap_ns = strtoull(optarg, NULL, 10) * 1000;
                        break;
                default:
                        fprintf(stderr, "usage: bench-ring [-n ROUNDS] [-t SECONDS] [-g GAP_US]\n");
                        return 2;
                }
        if (max_rounds < 1 || max_rounds > 10000000)
                return 2;
        times = calloc(max_rounds, sizeof(*times));
        if (!times)
                return 1;
        for (int style = 0; style < N_STYLES; style++)
                if (bench((enum style)style, times, max_rounds, max_ns, gap_ns) < 0) {
                        fprintf(stderr, "%s: failed\n", style_names[style]);
                        return 1;
                }
        return 0;
}
