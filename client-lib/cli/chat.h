/* A chat: commands/chat.c has turns and answers, chat-commands.c what begins with /. */
#ifndef TANDEM_CLI_CHAT_H
#define TANDEM_CLI_CHAT_H

#include "client-lib/cli/cli.h"
#include "client-lib/cli/talk.h"
#include "client-lib/cli/conversation.h"
#include "client-lib/cli/line-reader.h"
#include "client-lib/cli/markdown.h"
#include "client-lib/cli/settings.h"
#include "client-lib/cli/thought.h"

struct chat {
        struct cli *cli;
        struct tandem *tandem;
        struct line_reader *reader;
        struct run_progress progress;
        struct chat_options given;
        struct conversation said;
        struct conversation replaced; /* what /retry and /edit took out of it; it comes back if no answer comes */
        struct markdown markdown;
        struct thought_view thought;
        bool stats;                  /* a line about each answer */
        bool heard;                  /* that there was any line */
        bool warned;                 /* that one more Ctrl-C leaves */
        bool told_of_results;        /* that a chat gives none of tools */
        bool asks;                   /* a command left a message to be answered */
        size_t edits;                /* 1 + the message that the next line replaces; 0: none */
        struct cli_pictures waiting; /* for the next message */
        bool lost_picture;           /* one that was asked for is not there */
        bool took_back;              /* the last message got no answer, and has left the conversation */
        bool crowded;                /* turns leave because of their pictures' bytes */
        size_t n_forgotten;          /* turns that had to leave for this answer, not told of yet */
        struct arg_list owned;       /* texts of commands that options point to */
};

/* Whether a person sits at both ends. */
static inline bool with_person(void)
{
        return term_stdin_tty && term_stdout_tty;
}

/* A daemon that was restarted knows nothing of the conversation, and need not: every turn sends the whole of it. */
bool chat_be_connected(struct chat *chat, struct tandem_error *err);

/* complain_model() in the words of a chat, once it has begun. */
void chat_complain_model(const struct chat *chat, const struct tandem_error *err, const char *name);
/* Says what a person should know before the first message: which model answers, and whether it can chat. */
void chat_introduce_model(struct chat *chat);
/* Finds the model and has the daemon read its head, so that a wrong name or file is told before a message is typed.
 * name: NULL means the default one. */
bool chat_take_model(struct chat *chat, const char *name);
/* The messages from `at` on are replaced by this one of the user, which takes the pictures over. False: no memory,
 * complained about. */
bool chat_replace(struct chat *chat, size_t at, const char *text, size_t size, struct cli_pictures *pictures);
/* Says that pictures wait for the next message, those from this one on. */
void chat_tell_waiting(const struct chat *chat, size_t from);
/* line: begins with /. False: leave. */
bool chat_run_command(struct chat *chat, const char *line);

#endif
