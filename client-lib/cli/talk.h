/* What commands/generate.c and chat.c do once their options are read, for `tandem run`, which is both. */
#ifndef TANDEM_CLI_TALK_H
#define TANDEM_CLI_TALK_H

#include "client-lib/cli/cli.h"

/* ---- commands/generate.c ---- */

struct generate_options {
        struct job_args job; /* first: command.h */
        struct arg_list files, images;
        const char *model, *system;
        bool raw, chat, json;
};

void generate_options_deinit(struct generate_options *given);
/* Refuses what only --json prints, where it was not given. ARGS_OK, or an exit status. */
int generate_check_json(const struct generate_options *given, const char *command);
/* Refuses standard input as a picture and as text at once. prompt: as given. As above. */
int generate_check_stdin(const struct generate_options *given, const char *command, const char *prompt);
/* Asks for one text and prints it; an exit status. prompt: as given; NULL or "-": none, standard input is read. */
int generate_text(struct cli *cli, struct generate_options *given, const char *prompt);
/* The calls of tools that an answer made, each a line; as_event: of --json. */
void generate_print_calls(const struct tandem_job *job, bool as_event);
/* Whether text may come from standard input that nobody named: a pipe, a file or a socket, not a terminal, and not
 * /dev/null, which services and cron jobs have. */
bool stdin_has_text(void);

/* ---- commands/chat.c ---- */

struct chat_options {
        struct job_args job; /* first: command.h */
        struct arg_list images;
        const char *model, *system;
};

/* Holds a conversation to its end; an exit status. Takes the options over, also when it fails. */
int chat_hold(struct cli *cli, const struct chat_options *given);

#endif
