/* Commands that ask for a vector or for scores of each of many texts: the jobs run some at a time. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

#define AT_ONCE 32u /* texts that are with the daemon at one time; it has a bound for each user */
#define MAX_TEXTS 65536u

void texts_free(struct texts *texts)
{
        free(texts->items);
}

bool texts_add(struct texts *texts, const char *data, size_t size)
{
        struct text *items;

        if (texts->n == MAX_TEXTS) {
                complain("there are more than %u texts; give them in parts", MAX_TEXTS);
                return false;
        }
        if (texts->n == texts->capacity) {
                size_t capacity = texts->capacity ? 2 * texts->capacity : 64;

                items = realloc(texts->items, capacity * sizeof(*items));
                if (!items) {
                        complain("no memory for the texts");
                        return false;
                }
                texts->items = items;
                texts->capacity = capacity;
        }
        texts->items[texts->n++] = (struct text){ data, size };
        return true;
}

bool texts_add_lines(struct texts *texts, const char *data, size_t size)
{
        for (size_t at = 0, end; at < size; at = end + 1) {
                const char *newline = memchr(data + at, '\n', size - at);

                end = newline ? (size_t)(newline - data) : size;
                if (end > at && !texts_add(texts, data + at, end - at))
                        return false;
        }
        return true;
}

static void free_jobs(struct tandem_job **jobs, size_t n)
{
        for (size_t i = 0; i < n; i++)
                tandem_job_free(jobs[i]);
}

/* 0; an exit status; -1: the daemon says in *err why not. */
static int look_at(const struct tandem_job *job, struct tandem_error *err)
{
        const struct tandem_result *result = tandem_job_result(job);

        if (result->reason == TANDEM_REASON_ERROR) {
                *err = result->error;
                return -1;
        }
        if (result->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
        return 0;
}

/* Some texts at once, from the one with this index: all are taken or none. An exit status, or -1 as above. */
static int ask_some(struct tandem *tandem, const struct texts *texts, const struct text_jobs *how, size_t first,
                    size_t n, struct tandem_error *err)
{
        struct run_progress progress = { .model = how->model };
        struct tandem_job *jobs[AT_ONCE] = { NULL };
        struct tandem_callbacks callbacks;
        enum run_outcome outcome;
        int status = 0;

        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;
        for (size_t i = 0; i < n; i++)
                if (how->start(how->userdata, tandem, &texts->items[first + i], &callbacks, &progress, &jobs[i], err) !=
                    TANDEM_OK) {
                        free_jobs(jobs, i);
                        return -1;
                }
        outcome = run_jobs(tandem, jobs, n, SIGNAL_CANCEL);
        if (outcome == RUN_INTERRUPTED)
                status = EXIT_INTERRUPTED;
        else if (outcome == RUN_OUTPUT_GONE)
                status = EXIT_FAILED;
        for (size_t i = 0; i < n && status == 0; i++)
                status = look_at(jobs[i], err);
        for (size_t i = 0; i < n && status == 0; i++)
                how->take(how->userdata, first + i, jobs[i]);
        free_jobs(jobs, n);
        return status;
}

int texts_ask(struct cli *cli, struct tandem **tandem, const struct texts *texts, const struct text_jobs *how)
{
        struct tandem_error err;
        bool anew = false;
        int status = 0;

        for (size_t i = 0; i < texts->n && status == 0; i += AT_ONCE) {
                do
                        status = ask_some(*tandem, texts, how, i, TDM_MIN(texts->n - i, (size_t)AT_ONCE), &err);
                while (status < 0 && cli_connect_anew(cli, tandem, &err, &anew));
        }
        return status < 0 ? complain_model(&err, how->model) : status;
}

void texts_add_printable(struct buf *b, const char *data, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                unsigned char c = (unsigned char)data[i], next = i + 1 < size ? (unsigned char)data[i + 1] : 0;
                bool is_control = c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);

                buf_add(b, is_control ? "?" : &data[i], 1);
                i += is_control && c == 0xc2;
        }
}
