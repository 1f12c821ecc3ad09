/* What several commands need: connecting, reading input, the sampling options, numbers for people. */
#include "client-lib/cli/cli.h"

#include <fcntl.h>
#include <math.h>

const char *const priority_choices[] = { "interactive", "background", NULL };
const char *const placement_choices[] = { "split", "npu", "gpu", NULL };

bool cli_parse(const struct arg *args, size_t n_args, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional, int *ret_status)
{
        int k = args_parse(args, n_args, argc, argv, positional, max_positional, ret_n_positional);

        if (k == ARGS_OK)
                return false;
        *ret_status = k == ARGS_HELP ? help_print(argv[0]) : k;
        return true;
}

struct tandem *cli_connect(struct cli *cli)
{
        struct tandem *tandem;
        struct tandem_error err;

        if (tandem_connect(&tandem, cli->socket, &err) == TANDEM_OK)
                return tandem;
        complain_error(&err);
        return NULL;
}

void tandem_closep(struct tandem **tandem)
{
        tandem_close(*tandem);
}

void tandem_job_freep(struct tandem_job **job)
{
        tandem_job_free(*job);
}

void buf_freep(struct buf *buf)
{
        buf_free(buf);
}

bool read_all(const char *path, size_t max_bytes, struct buf *ret)
{
        bool is_stdin = strcmp(path, "-") == 0;
        const char *what = is_stdin ? "standard input" : path;
        _cleanup_(closep) int fd = -1;
        char chunk[16384];
        ssize_t n;

        if (!is_stdin) {
                fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
                if (fd < 0) {
                        complain("cannot open %s: %s", what, strerror(errno));
                        return false;
                }
        }
        for (;;) {
                n = read(is_stdin ? STDIN_FILENO : fd, chunk, sizeof(chunk));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        complain("cannot read %s: %s", what, strerror(errno));
                        return false;
                }
                if (n == 0)
                        break;
                if ((size_t)n > max_bytes - ret->size) {
                        complain("%s is longer than %zu MiB: no model takes that much text", what, max_bytes >> 20);
                        return false;
                }
                buf_add(ret, chunk, (size_t)n);
        }
        buf_add(ret, "", 0); /* an empty input is an empty text */
        if (ret->failed)
                complain("no memory for what %s holds", what);
        return !ret->failed;
}

void sampling_args_init(struct sampling_args *s)
{
        struct tandem_generate_options defaults;

        tandem_generate_options_init(&defaults);
        *s = (struct sampling_args){
                .seed = defaults.seed,
                .temperature = defaults.temperature,
                .top_k = defaults.top_k,
                .top_p = defaults.top_p,
                .min_p = defaults.min_p,
                .repeat_penalty = defaults.repeat_penalty,
                .placement = -1,
        };
}

bool sampling_args_check(const struct sampling_args *s, const char *command)
{
        for (size_t i = 0; i < s->stop.n; i++) {
                if (*s->stop.items[i])
                        continue;
                (void)args_usage_error(command, "--stop: an empty text would end every job at once");
                return false;
        }
        return true;
}

void sampling_args_apply(const struct sampling_args *s, struct tandem_generate_options *o)
{
        o->model = s->model;
        o->max_tokens = s->max_tokens;
        o->temperature = s->temperature;
        o->top_k = s->top_k;
        o->top_p = s->top_p;
        o->min_p = s->min_p;
        o->repeat_penalty = s->repeat_penalty;
        o->repeat_last = s->repeat_last;
        o->seed = s->seed;
        o->stop = s->stop.items;
        o->n_stop = s->stop.n;
        o->priority = (enum tandem_priority)s->priority;
        o->ignore_end = s->ignore_end;
        o->prefill_chunk = s->prefill_chunk;
        o->placement = s->placement >= 0 ? placement_choices[s->placement] : NULL;
}

const char *human_bytes(uint64_t bytes)
{
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
        static char ring[8][24];
        static unsigned next;
        char *to = ring[next++ % TDM_ARRAY_SIZE(ring)];
        double value = (double)bytes;
        unsigned unit = 0;

        while (value >= 1000 && unit + 1 < TDM_ARRAY_SIZE(units)) {
                value /= 1024;
                unit++;
        }
        snprintf(to, sizeof(ring[0]), unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, units[unit]);
        return to;
}

void format_rate(char *to, size_t size, double rate)
{
        if (!isfinite(rate) || rate < 0)
                snprintf(to, size, "?");
        else
                snprintf(to, size, rate < 10 ? "%.1f" : "%.0f", rate);
}
