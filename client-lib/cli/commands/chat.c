/* tandem chat: a conversation. Every turn sends the whole of it; tandemd's prefix cache makes that cheap.
 *
 * Lines are read with read(2) and poll(2), so that Ctrl-C and the daemon's end are noticed while waiting; editing is
 * what the terminal itself gives. With piped input there are no prompts and one line is one turn. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <poll.h>

#define MAX_TURN_BYTES ((size_t)1 << 20)

struct chat_options {
        struct job_args job; /* first: command.h */
        const char *model, *system;
};

extern const struct command command_chat;

struct chat {
        struct cli *cli;
        struct tandem *tandem;
        struct run_progress progress;
        struct chat_options given;
        struct tandem_message *messages; /* texts owned */
        size_t n_messages, capacity;
        bool has_system;
        char input[4096];
        size_t input_at, input_end;
        bool input_ended;
};

enum line { LINE_OK, LINE_END, LINE_INTERRUPTED, LINE_FAILED };

static void prompt(const char *text)
{
        if (!term_stdin_tty)
                return;
        if (term_stdout_tty) {
                out_puts(text);
                out_flush();
        } else {
                fputs(text, stderr);
        }
}

/* One line without its newline, added to buf. */
static enum line read_line(struct chat *chat, struct buf *line)
{
        for (;;) {
                const char *newline;
                size_t n = chat->input_end - chat->input_at;
                struct pollfd fds[3];
                ssize_t got;

                newline = memchr(chat->input + chat->input_at, '\n', n);
                if (newline)
                        n = (size_t)(newline - (chat->input + chat->input_at));
                if (n > MAX_TURN_BYTES - TDM_MIN(line->size, MAX_TURN_BYTES)) {
                        complain("a turn has at most %zu KiB", MAX_TURN_BYTES >> 10);
                        return LINE_FAILED;
                }
                buf_add(line, chat->input + chat->input_at, n);
                chat->input_at += n + (newline != NULL);
                if (newline)
                        return LINE_OK;
                if (chat->input_ended)
                        return line->size > 0 ? LINE_OK : LINE_END;

                fds[0] = (struct pollfd){ .fd = STDIN_FILENO, .events = POLLIN };
                fds[1] = (struct pollfd){ .fd = signal_fd(), .events = POLLIN };
                fds[2] = (struct pollfd){ .fd = tandem_fd(chat->tandem), .events = tandem_events(chat->tandem) };
                (void)poll(fds, 3, -1);
                if (signal_take())
                        return LINE_INTERRUPTED;
                if (fds[2].revents && tandem_dispatch(chat->tandem, 0) != TANDEM_OK) {
                        if (term_stdin_tty && term_stdout_tty)
                                out_puts("\n");
                        complain_error(tandem_connection_error(chat->tandem));
                        return LINE_FAILED;
                }
                if (!fds[0].revents)
                        continue;
                got = read(STDIN_FILENO, chat->input, sizeof(chat->input));
                if (got < 0 && (errno == EINTR || errno == EAGAIN))
                        continue;
                if (got < 0) {
                        complain("cannot read standard input: %s", strerror(errno));
                        return LINE_FAILED;
                }
                chat->input_at = 0;
                chat->input_end = (size_t)got;
                chat->input_ended = got == 0;
        }
}

/* A turn: a line, lines joined by a backslash at their ends, or everything between two """. */
static enum line read_turn(struct chat *chat, struct buf *turn)
{
        enum line k;

        turn->size = 0;
        prompt("> ");
        k = read_line(chat, turn);
        if (k != LINE_OK)
                return k;
        buf_add(turn, "", 0);
        if (!turn->failed && turn->size >= 3 && memcmp(turn->data, "\"\"\"", 3) == 0) {
                memmove(turn->data, turn->data + 3, turn->size - 3);
                turn->size -= 3;
                for (;;) {
                        buf_add(turn, "", 0);
                        if (!turn->failed && turn->size >= 3 && memcmp(turn->data + turn->size - 3, "\"\"\"", 3) == 0) {
                                turn->size -= 3;
                                break;
                        }
                        if (turn->size > 0)
                                buf_puts(turn, "\n");
                        prompt("… ");
                        k = read_line(chat, turn);
                        if (k == LINE_END || (k == LINE_OK && chat->input_ended && chat->input_at == chat->input_end))
                                break;
                        if (k != LINE_OK)
                                return k;
                }
        } else {
                while (!turn->failed && turn->size > 0 && turn->data[turn->size - 1] == '\\') {
                        turn->data[turn->size - 1] = '\n';
                        prompt("… ");
                        k = read_line(chat, turn);
                        if (k == LINE_END)
                                break;
                        if (k != LINE_OK)
                                return k;
                }
        }
        buf_add(turn, "", 0);
        if (turn->failed) {
                complain("no memory for what was typed");
                return LINE_FAILED;
        }
        turn->data[turn->size] = '\0';
        return LINE_OK;
}

static bool add_message(struct chat *chat, const char *role, const char *text, size_t size)
{
        char *copy = malloc(size + 1);

        if (chat->n_messages == chat->capacity) {
                size_t capacity = TDM_MAX(chat->capacity * 2, (size_t)16);
                struct tandem_message *p = realloc(chat->messages, capacity * sizeof(*p));

                if (p) {
                        chat->messages = p;
                        chat->capacity = capacity;
                }
        }
        if (!copy || chat->n_messages == chat->capacity) {
                free(copy);
                complain("no memory for the conversation");
                return false;
        }
        memcpy(copy, text, size);
        copy[size] = '\0';
        chat->messages[chat->n_messages++] = (struct tandem_message){ role, copy, size };
        return true;
}

static void drop_messages(struct chat *chat, size_t keep)
{
        while (chat->n_messages > keep)
                free((char *)(uintptr_t)chat->messages[--chat->n_messages].text);
}

static void on_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata)
{
        run_show_progress(job, progress, &((struct chat *)userdata)->progress);
}

static void on_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        progress_clear();
        out_text(token->text, token->size);
        out_flush();
}

static void explain_error(const struct tandem_error *err)
{
        if (err->code == TANDEM_E_TOO_LONG)
                complain("%s: %s. The conversation has outgrown the model's context: /reset begins a new one",
                         err->name, err->message);
        else if (err->code == TANDEM_E_UNSUPPORTED)
                complain("%s: %s (a model without a chat template: `tandem generate` continues raw text)", err->name,
                         err->message);
        else
                complain_error(err);
}

/* The last message is the user's. Returns EXIT_OK, EXIT_FAILED (the turn is taken back) or EXIT_INTERRUPTED when the
 * program has to end. */
static int answer(struct chat *chat)
{
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        struct tandem_generate_options *options = &chat->given.job.options;
        struct tandem_callbacks callbacks;
        const struct tandem_result *result;
        struct tandem_error err;
        enum run_outcome outcome;
        const char *text;
        size_t size;

        if (!chat->given.job.given.seed) { /* a fresh one for every turn */
                struct tandem_generate_options fresh;

                tandem_generate_options_init(&fresh);
                options->seed = fresh.seed;
        }
        options->chat = chat->messages;
        options->n_chat = chat->n_messages;
        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = on_progress;
        callbacks.on_token = on_token;
        if (tandem_generate(chat->tandem, options, &callbacks, chat, &job, &err) != TANDEM_OK) {
                drop_messages(chat, chat->n_messages - 1);
                explain_error(&err);
                return EXIT_FAILED;
        }
        outcome = run_jobs(chat->tandem, &job, 1, term_stdin_tty ? SIGNAL_ANSWER : SIGNAL_CANCEL);
        if (outcome == RUN_OUTPUT_GONE || (outcome == RUN_INTERRUPTED && !term_stdin_tty))
                return EXIT_INTERRUPTED;

        result = tandem_job_result(job);
        out_text(result->tail, result->tail_size);
        if (out_mid_line() || (result->generated_tokens == 0 && result->reason != TANDEM_REASON_ERROR))
                out_puts("\n");
        out_flush();
        text = tandem_job_text(job, &size);
        if (result->reason == TANDEM_REASON_ERROR) {
                drop_messages(chat, chat->n_messages - 1);
                explain_error(&result->error);
                return EXIT_FAILED;
        }
        if (result->reason == TANDEM_REASON_CANCELLED && outcome != RUN_INTERRUPTED)
                complain("cancelled: the answer was cancelled from elsewhere");
        /* What was said stays said, also when it was cut short; a turn without an answer is taken back. */
        if (size == 0)
                drop_messages(chat, chat->n_messages - 1);
        else if (!add_message(chat, "assistant", text, size))
                return EXIT_FAILED;
        if (result->reason == TANDEM_REASON_LENGTH && options->max_tokens == 0 && term_stdin_tty)
                complain("the answer filled the model's context: /reset begins a new conversation");
        if (chat->given.job.verbose)
                fprintf(stderr,
                        "%" PRIu32 " prompt tokens (%" PRIu32 " cached), %" PRIu32 " tokens, first after %.0f ms, "
                        "%.0f tokens/s, seed %" PRIu64 "\n",
                        result->prompt_tokens, result->cached_tokens, result->generated_tokens, result->ttft_ms,
                        result->decode_tps, options->seed);
        return EXIT_OK;
}

static void chat_help(void)
{
        out_puts("/help   this text\n"
                 "/reset  forget the conversation (the --system text stays)\n"
                 "/quit   leave (Ctrl-D does, too)\n"
                 "\"\"\"     begins and ends a message of several lines; \\ at the end of a line goes on, too\n"
                 "//      at the beginning of a message stands for one /\n"
                 "Ctrl-C  while an answer comes: stops it; at the prompt: leaves\n");
        out_flush();
}

/* Returns the program's exit status. */
static int converse(struct chat *chat)
{
        _cleanup_(buf_freep) struct buf turn = { 0 };
        const char *text;
        size_t size;
        int status;

        for (;;) {
                signal_set_mode(term_stdin_tty ? SIGNAL_ANSWER : SIGNAL_EXIT);
                switch (read_turn(chat, &turn)) {
                case LINE_INTERRUPTED:
                        prompt("\n");
                        return EXIT_INTERRUPTED;
                case LINE_END:
                        prompt("\n");
                        return EXIT_OK;
                case LINE_FAILED:
                        return EXIT_FAILED;
                case LINE_OK:
                        break;
                }
                text = turn.data;
                size = turn.size;
                if (size == 0)
                        continue;
                if (text[0] == '/' && text[1] != '/') {
                        if (strcmp(text, "/quit") == 0) {
                                return EXIT_OK;
                        } else if (strcmp(text, "/reset") == 0) {
                                drop_messages(chat, chat->has_system ? 1 : 0);
                                if (term_stdin_tty)
                                        out_puts("A new conversation.\n");
                        } else if (strcmp(text, "/help") == 0) {
                                chat_help();
                        } else {
                                complain("there is no command %.40s; /help lists them (// begins a text with /)", text);
                        }
                        continue;
                }
                if (text[0] == '/')
                        text++, size--;
                if (!add_message(chat, "user", text, size))
                        return EXIT_FAILED;
                status = answer(chat);
                if (status == EXIT_INTERRUPTED)
                        return out_broken() ? out_finish() : EXIT_INTERRUPTED;
                /* A script stops at its first failure, a person decides. */
                if (status != EXIT_OK && (!term_stdin_tty || tandem_connection_error(chat->tandem)))
                        return status;
        }
}

static int run(struct cli *cli, int argc, char **argv)
{
        struct chat chat = { .cli = cli };
        unsigned n_positional;
        int status;

        job_args_init(&chat.given.job);
        if (cli_parse(cli, &command_chat, argc, argv, &chat.given, NULL, 0, &n_positional, &status))
                goto out;
        status = EXIT_FAILED;
        if (!job_args_finish(&chat.given.job))
                goto out;
        chat.given.job.options.model = chat.progress.model = chat.given.model;
        chat.tandem = cli_connect(cli);
        if (!chat.tandem)
                goto out;
        if (chat.given.system) {
                if (!add_message(&chat, "system", chat.given.system, strlen(chat.given.system)))
                        goto out;
                chat.has_system = true;
        }
        if (term_stdin_tty && term_stdout_tty)
                out_puts("/help lists commands, /quit or Ctrl-D leaves.\n");
        status = converse(&chat);
        if (out_finish() != 0 && status == EXIT_OK)
                status = EXIT_FAILED;
out:
        drop_messages(&chat, 0);
        free(chat.messages);
        tandem_close(chat.tandem);
        job_args_deinit(&chat.given.job);
        return status;
}

static const struct arg args[] = {
        {
                .name = "system",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct chat_options, system),
                .value = "TEXT",
                .brief = "a system message before the conversation",
        },
        ARG_MODEL(struct chat_options, model),
};

const struct command command_chat = {
        .name = "chat",
        .summary = "hold a conversation",
        .usage = "[OPTIONS]",
        .about = "Holds a conversation with a model that has a chat template. /help, /reset and /quit are "
                 "commands. \"\"\" begins and ends a message of several lines. A backslash at the end of a line "
                 "goes on with the next one. Ctrl-C stops an answer; at the prompt it exits with 130, Ctrl-D "
                 "with 0. From a pipe, each line is one message, and the first failure ends it.",
        COMMAND_ARGS(args),
        .job_args = JOB_ARGS_ALL,
        .run = run,
};
