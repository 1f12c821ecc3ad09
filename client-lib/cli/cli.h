/* What the commands share. Each command is one function; main.c finds it, help.c tells about it. */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H

#include "client-lib/cli/args.h"
#include "client-lib/cli/json.h"
#include "client-lib/cli/term.h"
#include "client-lib/include/tandem.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* argv[0] is the command's name. *socket is from in front of the command, or NULL; an option behind it wins. */
struct cli {
        const char *socket;
};

int cli_generate(struct cli *cli, int argc, char **argv);
int cli_chat(struct cli *cli, int argc, char **argv);
int cli_status(struct cli *cli, int argc, char **argv);
int cli_models(struct cli *cli, int argc, char **argv);
int cli_jobs(struct cli *cli, int argc, char **argv);
int cli_cancel(struct cli *cli, int argc, char **argv);
int cli_restart(struct cli *cli, int argc, char **argv);
int cli_load(struct cli *cli, int argc, char **argv);
int cli_unload(struct cli *cli, int argc, char **argv);
int cli_tokenize(struct cli *cli, int argc, char **argv);
int cli_score(struct cli *cli, int argc, char **argv);
int cli_bench(struct cli *cli, int argc, char **argv);
int cli_top(struct cli *cli, int argc, char **argv);
int cli_trace(struct cli *cli, int argc, char **argv);

/* help.c: the text of one command (NULL: of the whole program); NULL when there is no such command. */
const char *help_text(const char *command);
int help_print(const char *command); /* to standard output; an exit status */

/* The option every command has. */
#define ARG_SOCKET(cli)                                                                                                \
        {                                                                                                              \
                0, "socket", ARG_STRING, &(cli)->socket                                                                \
        }

/* Parses and handles --help; returns true with *ret_status when the command is over already. */
bool cli_parse(const struct arg *args, size_t n_args, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional, int *ret_status);
/* Connects, or complains and returns NULL. */
struct tandem *cli_connect(struct cli *cli);
void tandem_closep(struct tandem **tandem);
void tandem_job_freep(struct tandem_job **job);
void buf_freep(struct buf *buf);

/* A whole file ("-": standard input), at most max_bytes. Complains and returns false. */
bool read_all(const char *path, size_t max_bytes, struct buf *ret);
#define MAX_INPUT_BYTES ((size_t)64 << 20)

/* ---- run.c ---- */

enum run_outcome {
        RUN_DONE,        /* every job is done */
        RUN_INTERRUPTED, /* Ctrl-C: Cancel was sent, done or not */
        RUN_OUTPUT_GONE, /* nobody reads standard output any more; Cancel was sent */
};

/* Dispatches until the jobs are done. In SIGNAL_CANCEL mode a signal cancels them and ends the wait shortly after; in
 * SIGNAL_ANSWER mode it cancels them and the wait goes on. The mode is SIGNAL_EXIT again afterwards. */
enum run_outcome run_jobs(struct tandem *tandem, struct tandem_job *const *jobs, size_t n_jobs, enum signal_mode mode);
/* on_progress of the commands that show it: userdata begins with a struct run_progress. */
struct run_progress {
        const char *model; /* as asked for; may be NULL */
        bool off;          /* draw nothing */
};
void run_show_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata);

/* ---- sampling options that generate and chat share ---- */

struct sampling_args {
        uint64_t seed;
        bool seed_given;
        float temperature, top_p, min_p, repeat_penalty;
        uint32_t top_k, max_tokens, repeat_last, prefill_chunk;
        int priority;
        int placement; /* -1: the daemon's choice */
        const char *model;
        struct arg_list stop;
        bool ignore_end, verbose;
};

extern const char *const priority_choices[], *const placement_choices[];

void sampling_args_init(struct sampling_args *s);
/* Everything but the prompt. */
void sampling_args_apply(const struct sampling_args *s, struct tandem_generate_options *options);
bool sampling_args_check(const struct sampling_args *s, const char *command); /* after parsing: no empty --stop */

#define ARGS_SAMPLING(s)                                                                                               \
        { 'm', "model", ARG_STRING, &(s)->model }, { 'n', "max-tokens", ARG_U32, &(s)->max_tokens, 0, 1u << 24 },      \
                { 0, "temp", ARG_F32, &(s)->temperature, 0, 100 }, { 0, "top-k", ARG_U32, &(s)->top_k },               \
                { 0, "top-p", ARG_F32, &(s)->top_p, 0, 1 }, { 0, "min-p", ARG_F32, &(s)->min_p, 0, 1 },                \
                { 0, "repeat-penalty", ARG_F32, &(s)->repeat_penalty, 0, 100 },                                        \
                { 0, "repeat-last", ARG_U32, &(s)->repeat_last },                                                      \
                { 0, "seed", ARG_U64, &(s)->seed, .given = &(s)->seed_given }, { 0, "stop", ARG_LIST, &(s)->stop },    \
                { 0, "priority", ARG_CHOICE, &(s)->priority, .choices = priority_choices },                            \
                { 0, "prefill-chunk", ARG_U32, &(s)->prefill_chunk },                                                  \
                { 0, "placement", ARG_CHOICE, &(s)->placement, .choices = placement_choices },                         \
                { 0, "ignore-end", ARG_FLAG, &(s)->ignore_end },                                                       \
        {                                                                                                              \
                'v', "verbose", ARG_FLAG, &(s)->verbose                                                                \
        }

/* "1.2 GiB" in a ring of static buffers. */
const char *human_bytes(uint64_t bytes);

/* The summary line's parts: "212" or "8.3". */
void format_rate(char *to, size_t size, double rate);

/* status.c */
void format_duration(char *to, size_t size, double seconds); /* "8.3 s", "12 min" */
const char *user_name(uint32_t uid); /* its number where it has no name; valid until the next call */

#endif
