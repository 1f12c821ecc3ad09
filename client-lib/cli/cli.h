/* What the commands share: connecting, reading input, waiting for jobs, the options of jobs, numbers for people. */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H

#include "client-lib/cli/command.h"
#include "client-lib/cli/json.h"
#include "client-lib/cli/term.h"
#include "client-lib/include/tandem.h"
#include "common/job-options.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* The options in front of the command. */
struct cli {
        const char *program; /* as it was called: for commands in messages */
        const char *socket;  /* NULL: where the library looks; an option behind the command wins */
        uint32_t colour;     /* enum term_colour */
};

/* Parses what a command takes into its options, whose defaults are set first (those of its struct job_args are set by
 * job_args_init() before). Handles --help. Returns true with *ret_status when the command is over already. */
bool cli_parse(struct cli *cli, const struct command *command, int argc, char **argv, void *options,
               const char **positional, unsigned max_positional, unsigned *ret_n_positional, int *ret_status);
/* Parses a command that takes one argument (what: its name in messages) and no option of its own. */
bool cli_parse_one_argument(struct cli *cli, const struct command *command, int argc, char **argv, const char *what,
                            const char **ret, int *ret_status);
/* A program of Tandem's that people do not start: beside `tandem` in a build tree, else in the folder of the workers.
 * False: *ret is where it should be. */
bool cli_find_program(const char *name, char *ret, size_t size);
int complain_error(const struct tandem_error *err); /* "tandem: no-model: …". Returns 1. */
/* Connects, or complains and returns NULL. */
struct tandem *cli_connect(struct cli *cli);
/* A daemon that ends takes nothing new. The next one gets a connection that the service manager's socket holds. True:
 * *tandem is such a connection, so ask once more. *anew is false before the first time. */
bool cli_connect_anew(struct cli *cli, struct tandem **tandem, const struct tandem_error *err, bool *anew);
void tandem_closep(struct tandem **tandem);
void tandem_job_freep(struct tandem_job **job);

/* A whole file ("-": standard input), at most max_bytes. Complains and returns false. */
bool read_all(const char *path, size_t max_bytes, struct buf *ret);
#define MAX_INPUT_BYTES ((size_t)64 << 20)
/* Answers each line of standard input that is not empty with a line, at once. answer gives a text that is freed here;
 * -ENOMEM. Returns an exit status. */
int answer_lines(int (*answer)(const char *line, size_t size, char **ret));

/* ---- own-model.c: models of the caller's own folder ---- */

/* What to ask the library for: the name as it is, or the file in the caller's own folder where the daemon does not look
 * there. The library hands that over. The text is valid until the next call. */
const char *cli_model(struct tandem *tandem, const char *name);
/* The name without ":latest", which Ollama's users write behind names. The text is valid until the next call. */
const char *cli_plain_name(const char *name);
/* A draft is asked for by its name alone. A file, also one in the caller's own folder, is passed to the daemon before:
 * its whole path is its name from then on, for this user. The text is valid until the next call. */
int cli_take_draft(struct tandem *tandem, struct tandem_generate_options *options, struct tandem_error *err);
/* The file of a name that a daemon lists, if one answers and this user may read it. NULL: not so. */
char *cli_listed_file(struct cli *cli, const char *name, bool *ret_answered);
/* complain_error() of a request for a model. Where no model has that name, it asks for the one that may be meant. */
int complain_model(const struct tandem_error *err, const char *name);
/* The same; hint says where else models are listed. */
int complain_model_with(const struct tandem_error *err, const char *name, const char *hint);

#define MODEL_LISTING_MAX 256u
/* The daemon's list and what the caller's own folder has beside it. */
struct model_listing {
        struct tandem_model_list list;
        const struct tandem_model **all;
        struct tandem_model *own;
        size_t n_own;
};
bool model_listing_make(struct model_listing *to, const struct tandem_model_list *from); /* which outlives it */
void model_listing_free(struct model_listing *listing);

/* ---- run.c ---- */

enum run_outcome {
        RUN_DONE,        /* every job is done */
        RUN_INTERRUPTED, /* Ctrl-C: Cancel was sent, done or not */
        RUN_OUTPUT_GONE, /* the reader of standard output has gone; Cancel was sent */
};

/* Dispatches until the jobs are done. In SIGNAL_CANCEL mode a signal cancels them and ends the wait shortly after; in
 * SIGNAL_ANSWER mode it cancels them and the wait goes on, and the mode stays; else it is SIGNAL_EXIT again. */
enum run_outcome run_jobs(struct tandem *tandem, struct tandem_job *const *jobs, size_t n_jobs, enum signal_mode mode);
/* on_progress of the commands that show it: userdata begins with a struct run_progress. */
struct run_progress {
        const char *model; /* as asked for; may be NULL */
        bool off;          /* draw nothing */
        /* When a prompt was first seen being read, and how far it had been read by then. 0: none is read. */
        uint64_t reading_since_ns, reading_first;
};
void run_show_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata);
/* "reading the prompt: 1,234 of 8,000 tokens (15%), 12 s left". The time follows once a second of reading was seen. */
void run_describe_reading(struct run_progress *show, uint64_t done, uint64_t total, uint64_t now_ns, char *to,
                          size_t size);

/* ---- texts.c: a job for each of many texts ---- */

struct text {
        const char *data; /* not copied */
        size_t size;
};

struct texts {
        struct text *items; /* [n] */
        size_t n, capacity;
};

void texts_free(struct texts *texts);
/* Complain and return false: there are too many, or no memory. */
bool texts_add(struct texts *texts, const char *data, size_t size);
bool texts_add_lines(struct texts *texts, const char *data, size_t size); /* each line that is not empty is one */

struct text_jobs {
        const char *model; /* as asked for; may be NULL */
        void *userdata;
        int (*start)(void *userdata, struct tandem *tandem, const struct text *text,
                     const struct tandem_callbacks *callbacks, void *progress, struct tandem_job **ret,
                     struct tandem_error *err);
        void (*take)(void *userdata, size_t index, const struct tandem_job *job); /* in order, each once */
};

/* Asks for all of them, some at a time. An exit status: it has complained. */
int texts_ask(struct cli *cli, struct tandem **tandem, const struct texts *texts, const struct text_jobs *how);
/* Nothing in it is a line's end, a tab, or a command to a terminal. */
void texts_add_printable(struct buf *b, const char *data, size_t size);

/* ---- job-args.c: the options of a job, for the commands that start jobs ---- */

struct job_args {
        struct tandem_generate_options options; /* all but the prompt, after job_args_finish() */
        struct arg_list stop;
        struct buf files[TDM_N_JOB_OPTIONS]; /* their texts */
        bool verbose;
        struct {
#define OPTION(TYPE, message, field, ...) bool field;
#include "common/job-options.def"
#undef OPTION
        } given;
};

void job_args_init(struct job_args *args);
/* After parsing: reads the files that options name. Complains and returns false. */
bool job_args_finish(struct job_args *args);
/* An option of job_args_table() is again as if it had never been given. */
void job_args_take_back(struct job_args *args, const struct arg *arg);
void job_args_deinit(struct job_args *args);

/* -m of the commands that have it. */
#define ARG_MODEL(options_type, member)                                                                                \
        {                                                                                                              \
                .letter = 'm', .name = "model", .range.type = TDM_VALUE_TEXT, .at = offsetof(options_type, member),    \
                .value = "MODEL", .brief = "a name or a file", .more = "otherwise the default model",                  \
                .offer = OFFER_MODELS                                                                                  \
        }
#define ARG_JSON(options_type, member, text)                                                                           \
        {                                                                                                              \
                .name = "json", .at = offsetof(options_type, member), .brief = (text)                                  \
        }

/* ---- format.c: numbers and names for people ---- */

/* How many columns a text takes on a terminal: wide characters take two. */
int text_columns(const char *text);
/* "1.2 GiB" in a ring of static buffers. */
const char *human_bytes(uint64_t bytes);

/* The summary line's parts: "212" or "8.3". */
void format_rate(char *to, size_t size, double rate);

/* ", 256 of pictures", or "" where there were none. Valid until the next call. */
const char *format_picture_tokens(const struct tandem_result *result);

/* "1,234,567" */
void format_count(char *to, size_t size, uint64_t count);

void format_duration(char *to, size_t size, double seconds); /* "8.3 s", "12 min" */
/* The daemon's text with "user 1001" by its name, where it has one: the daemon looks up no names. Valid until the next
 * call. */
const char *name_users(const char *text);
const char *user_name(uint32_t uid); /* its number where it has no name; valid until the next call */

/* ---- status-json.c: objects with the wire's field names ---- */

void json_status(struct buf *b, const struct tandem_status *status);
void json_models(struct buf *b, const struct tandem_model_list *list); /* "models":[…] in an object */
void json_jobs(struct buf *b, const struct tandem_job_list *list);
int print_json(struct buf *b);                            /* an exit status */
double device_share(const struct tandem_device_use *use); /* of the multiplications of its blocks, those on it */

#endif
