/* tandem chat: a conversation. Every turn sends the whole of it; tandemd's prefix cache makes that cheap.
 *
 * On a terminal lines are edited (line-reader.h) and answers shown as Markdown (markdown.h). From a pipe there are no
 * prompts, and one line is one turn. */
#include "client-lib/cli/chat.h"

#include <inttypes.h>

extern const struct command command_chat;

/* A turn: a line, lines joined by a backslash at their ends, or everything between two """. */
static enum line read_turn(struct chat *chat, struct buf *turn)
{
        enum line k;

        turn->size = 0;
        k = line_read(chat->reader, "> ", turn);
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
                        k = line_read(chat->reader, "… ", turn);
                        if (k == LINE_END)
                                break;
                        if (k != LINE_OK)
                                return k;
                }
        } else {
                while (!turn->failed && turn->size > 0 && turn->data[turn->size - 1] == '\\') {
                        turn->data[turn->size - 1] = '\n';
                        k = line_read(chat->reader, "… ", turn);
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

static void on_chat_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata)
{
        run_show_progress(job, progress, &((struct chat *)userdata)->progress);
}

/* The oldest turns leave for good once the model answers without them. */
static void tell_forgotten(struct chat *chat)
{
        if (chat->n_forgotten == 0)
                return;
        progress_clear();
        complain("%s: the oldest %s",
                 chat->crowded ? "a request has no room for all pictures" : "the model's context is full",
                 chat->n_forgotten == 1 ? "turn is forgotten" : "turns are forgotten");
        chat->n_forgotten = 0;
}

static void on_chat_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct chat *chat = userdata;

        tell_forgotten(chat);
        progress_clear();
        thought_write(&chat->thought, token->thinking, token->thinking_size);
        if (token->size > 0)
                thought_end(&chat->thought);
        if (term_stdout_tty)
                markdown_write(&chat->markdown, token->text, token->size);
        else
                out_text(token->text, token->size);
        out_flush();
}

static void explain_error(const struct chat *chat, const struct tandem_error *err)
{
        if (err->code == TANDEM_E_TOO_LONG && chat->said.n - conversation_has_system(&chat->said) <= 1)
                complain("%s: %s. The message alone is too long, so it is left out of the conversation", err->name,
                         err->message);
        else if (err->code == TANDEM_E_TOO_LONG)
                complain("%s: %s. The conversation has outgrown the model's context: /reset begins a new one",
                         err->name, err->message);
        else if (err->code == TANDEM_E_UNSUPPORTED && strstr(err->message, "send the prompt raw"))
                complain("%s: %s (`tandem generate` continues raw text)", err->name, err->message);
        else if (err->code == TANDEM_E_UNSUPPORTED && strstr(err->message, "takes no pictures") && with_person())
                complain("%s: %s. /model takes another model; /image alone and /reset leave pictures out", err->name,
                         err->message);
        else if (tandem_connection_error(chat->tandem) && with_person())
                complain("%s: %s. The conversation is kept; the next message connects again", err->name, err->message);
        else
                chat_complain_model(chat, err, chat->given.model);
}

static bool connect_anew(struct chat *chat, struct tandem_error *err)
{
        struct tandem *anew;

        if (tandem_connect(&anew, chat->cli->socket, err) != TANDEM_OK)
                return false;
        tandem_close(chat->tandem);
        chat->tandem = anew;
        line_reader_set_connection(chat->reader, anew);
        return true;
}

bool chat_be_connected(struct chat *chat, struct tandem_error *err)
{
        if (!tandem_connection_error(chat->tandem) || !with_person())
                return true;
        if (!connect_anew(chat, err))
                return false;
        complain("tandemd was restarted meanwhile; the conversation goes on");
        return true;
}

static void show_stats(const struct chat *chat, const struct tandem_result *result)
{
        const char *stopped = result->reason == TANDEM_REASON_CANCELLED ? "stopped; " : "";
        const struct tandem_generate_options *options = &chat->given.job.options;
        char rate[32];

        if (chat->given.job.verbose) {
                fprintf(stderr,
                        "%" PRIu32 " prompt tokens (%" PRIu32 " cached%s), %" PRIu32 " tokens, first after %.0f ms, "
                        "%.0f tokens/s, seed %" PRIu64 "\n",
                        result->prompt_tokens, result->cached_tokens, format_picture_tokens(result),
                        result->generated_tokens, result->ttft_ms, result->decode_tps, options->seed);
        } else if (chat->stats && result->generated_tokens > 1) {
                format_rate(rate, sizeof(rate), result->decode_tps);
                term_style(TERM_DIM);
                out_printf("%s%" PRIu32 " tokens, %s tokens/s", stopped, result->generated_tokens, rate);
                if (result->recoveries > 0)
                        out_printf(", %" PRIu32 " %s", result->recoveries,
                                   result->recoveries == 1 ? "recovery" : "recoveries");
                term_style(0);
                out_puts("\n");
                out_flush();
        }
}

/* The oldest turns leave when the context is full, so that the conversation can go on. False: nothing more can. */
static bool make_chat_room(struct chat *chat)
{
        size_t n = conversation_trim(&chat->said);

        chat->n_forgotten += n;
        return n > 0;
}

bool chat_replace(struct chat *chat, size_t at, const char *text, size_t size, struct cli_pictures *pictures)
{
        conversation_cut(&chat->replaced, 0);
        if (conversation_move(&chat->said, at, &chat->replaced)) {
                if (conversation_add(&chat->said, "user", text, size)) {
                        conversation_take_pictures(&chat->said, pictures);
                        return true;
                }
                (void)conversation_move(&chat->replaced, 0, &chat->said);
        }
        cli_pictures_free(pictures);
        return false;
}

/* Takes the message back that got no answer. What it replaced stands in its place again. */
static void take_back_message(struct chat *chat)
{
        conversation_cut(&chat->said, chat->said.n - 1);
        (void)conversation_move(&chat->replaced, 0, &chat->said);
        chat->took_back = true;
}

/* Asks for an answer to the last message, which is the user's. *ret_job is NULL where err says why. */
static enum run_outcome ask_model(struct chat *chat, struct tandem_job **ret_job, struct tandem_error *err)
{
        struct tandem_generate_options *options = &chat->given.job.options;
        _cleanup_(freep) struct tandem_picture *pictures = NULL;
        const char *crowded = conversation_lacks_room(&chat->said);
        struct tandem_callbacks callbacks;
        enum run_outcome outcome;
        int code;

        *ret_job = NULL;
        if (crowded || !conversation_list_pictures(&chat->said, &pictures, &options->n_pictures)) {
                *err = (struct tandem_error){ .code = crowded ? TANDEM_E_TOO_LONG : TANDEM_E_NO_MEMORY };
                snprintf(err->name, sizeof(err->name), "%s", tandem_code_name(err->code));
                snprintf(err->message, sizeof(err->message), "%s", crowded ? crowded : "a message with pictures");
                chat->crowded = crowded != NULL;
                return RUN_DONE;
        }
        if (!chat->given.job.given.seed) { /* a fresh one for every turn */
                struct tandem_generate_options fresh;

                tandem_generate_options_init(&fresh);
                options->seed = fresh.seed;
        }
        options->chat = chat->said.messages;
        options->chat_details = chat->said.details;
        options->n_chat = chat->said.n;
        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = on_chat_progress;
        callbacks.on_token = on_chat_token;
        if (!chat_be_connected(chat, err) || cli_take_draft(chat->tandem, options, err) != TANDEM_OK)
                return RUN_DONE;
        options->pictures = pictures;
        code = tandem_generate(chat->tandem, options, &callbacks, chat, ret_job, err);
        options->pictures = NULL; /* the library has a copy */
        options->n_pictures = 0;
        if (code != TANDEM_OK) {
                *ret_job = NULL;
                return RUN_DONE;
        }
        line_reader_hide_typing(chat->reader, true);
        outcome = run_jobs(chat->tandem, ret_job, 1, term_stdin_tty ? SIGNAL_ANSWER : SIGNAL_CANCEL);
        line_reader_hide_typing(chat->reader, false);
        return outcome;
}

/* A daemon that ends takes no new job; the next one gets a connection that the service manager's socket holds. */
static bool may_ask_anew(const struct tandem_job *job, const struct tandem_error *err)
{
        size_t n = 0;

        if (job)
                (void)tandem_job_ids(job, &n);
        return err->code == TANDEM_E_DRAINING && n == 0;
}

/* An answer stays in the conversation, also when it was cut short. A turn without an answer is taken back. */
static bool keep_answer(struct chat *chat, const struct tandem_job *job)
{
        const struct tandem_result *result = tandem_job_result(job);
        size_t size, n, n_whole = 0;
        const char *text = tandem_job_text(job, &size);
        const struct tandem_call *calls = tandem_job_calls(job, &n);

        for (size_t i = 0; i < n; i++)
                n_whole += call_is_whole(&calls[i]);
        if (n_whole < n)
                complain("a call of a tool was cut off, and is not kept%s",
                         result->reason == TANDEM_REASON_LENGTH ? " (-n takes more tokens)" : "");
        if (n_whole > 0 && !chat->told_of_results) {
                chat->told_of_results = true;
                complain("chat gives no results of tools: use `tandem generate --chat`, or HTTP");
        }
        if (n_whole > 0)
                return conversation_add_calls(&chat->said, text, size, calls, n);
        if (size > 0)
                return conversation_add(&chat->said, "assistant", text, size);
        take_back_message(chat);
        if (n == 0)
                thought_complain_alone(result);
        return true;
}

/* Without an answer the conversation is as it was before the message. What had come of one when the daemon was lost
 * stays, as a person has read it. */
static int fail_message(struct chat *chat, const struct tandem_job *job, const struct tandem_error *err)
{
        size_t size = 0;

        if (job && tandem_connection_error(chat->tandem) && with_person())
                (void)tandem_job_text(job, &size);
        markdown_end(&chat->markdown);
        if (out_mid_line())
                out_puts("\n");
        explain_error(chat, err);
        if (size > 0) {
                conversation_forget(&chat->said);
                (void)keep_answer(chat, job);
                conversation_cut(&chat->replaced, 0);
        } else {
                conversation_take_back(&chat->said);
                take_back_message(chat);
        }
        chat->n_forgotten = 0;
        return EXIT_FAILED;
}

/* Says that an answer did not come to its own end. */
static void explain_length(const struct chat *chat, const struct tandem_result *result)
{
        uint32_t limit = chat->given.job.options.max_tokens;

        if (result->reason != TANDEM_REASON_LENGTH || !term_stdin_tty)
                return;
        if (limit > 0 && result->generated_tokens >= limit)
                complain("the answer was cut off at %" PRIu32 " tokens (/set n takes another number)", limit);
        else
                complain("the answer filled the model's context; the next message makes room by forgetting the oldest");
}

/* The last message is the user's. Returns EXIT_OK, EXIT_FAILED (the turn is taken back) or EXIT_INTERRUPTED when the
 * program has to end. */
static int answer_message(struct chat *chat)
{
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        const struct tandem_result *result;
        struct tandem_error err, other;
        enum run_outcome outcome;
        bool anew = false;
        size_t n_calls;

        chat->took_back = chat->crowded = false;
        for (;;) {
                outcome = ask_model(chat, &job, &err);
                if (outcome == RUN_OUTPUT_GONE || (outcome == RUN_INTERRUPTED && !term_stdin_tty)) {
                        conversation_forget(&chat->said); /* the program ends */
                        return EXIT_INTERRUPTED;
                }
                result = job ? tandem_job_result(job) : NULL;
                if (result && result->reason == TANDEM_REASON_ERROR)
                        err = result->error;
                else if (job)
                        break;
                if (may_ask_anew(job, &err) && !anew && connect_anew(chat, &other)) {
                        anew = true;
                } else if (err.code != TANDEM_E_TOO_LONG || !term_stdin_tty || !make_chat_room(chat)) {
                        return fail_message(chat, job, &err);
                }
                tandem_job_free(job);
                job = NULL;
        }

        markdown_end(&chat->markdown);
        (void)tandem_job_calls(job, &n_calls);
        if (result->tail_size > 0 || n_calls > 0)
                thought_end(&chat->thought);
        chat->thought.open = false;
        out_text(result->tail, result->tail_size);
        generate_print_calls(job, false);
        if (out_mid_line() || result->generated_tokens == 0 ||
            (outcome == RUN_INTERRUPTED && !line_reader_edits(chat->reader))) /* behind the ^C */
                out_puts("\n");
        out_flush();
        if (result->reason == TANDEM_REASON_CANCELLED && outcome != RUN_INTERRUPTED)
                complain("cancelled: the answer was cancelled from elsewhere");
        tell_forgotten(chat);
        conversation_forget(&chat->said);
        if (!keep_answer(chat, job))
                return EXIT_FAILED;
        conversation_cut(&chat->replaced, 0);
        explain_length(chat, result);
        show_stats(chat, result);
        return EXIT_OK;
}

/* Ctrl-C at the prompt. With something typed it drops the line. At an empty prompt it says once how to leave. True: the
 * person means it. */
static bool was_interrupted(struct chat *chat)
{
        if (!with_person())
                return true;
        out_puts("\n");
        out_flush();
        if (line_was_begun(chat->reader)) {
                chat->warned = false;
                return false;
        }
        if (chat->warned)
                return true;
        chat->warned = true;
        complain("Ctrl-C once more leaves (so does Ctrl-D or /bye)");
        return false;
}

void chat_tell_waiting(const struct chat *chat, size_t from)
{
        if (term_stdin_tty)
                for (size_t i = from; i < chat->waiting.n; i++)
                        out_printf("%s goes with the next message.\n", picture_text(chat->waiting.items[i].picture));
        out_flush();
}

static void tell_found(const struct cli_pictures *found)
{
        term_style(TERM_DIM);
        for (size_t i = 0; i < found->n; i++)
                out_printf("With the picture %s\n", picture_text(found->items[i].picture));
        term_style(0);
        out_flush();
}

/* What a person typed may have paths of pictures in it, which terminals write where a file is dropped. A pasted text of
 * several lines is taken as it is, and so is what comes behind //. */
static enum typed_pictures find_pictures(const char *line, size_t size, struct buf *ret_text, struct cli_pictures *ret)
{
        if (!with_person() || memchr(line, '\n', size) || (size > 1 && memcmp(line, "//", 2) == 0))
                return TYPED_NO_PICTURES;
        return pictures_find(line, size, ret_text, ret);
}

/* The line stands at the next prompt, and edits the same message. */
static void offer_again(struct chat *chat, const char *line, size_t edits)
{
        if (!line_reader_edits(chat->reader))
                return;
        line_offer(chat->reader, line);
        chat->edits = edits;
}

/* The line becomes the conversation's last message, in the place of the one that is edited, with pictures that it
 * names, that wait, and that the other one had. *ret_shown: there are pictures of the first two kinds. False: nothing
 * is to be asked, which was told. */
static bool compose_message(struct chat *chat, const char *line, size_t size, size_t edits, bool *ret_shown)
{
        _cleanup_(buf_freep) struct buf words = { 0 };
        _cleanup_(cli_pictures_free) struct cli_pictures found = { 0 };
        struct cli_pictures all = { 0 };
        size_t at = edits > 0 ? conversation_last_question(&chat->said) : chat->said.n, n_waiting = chat->waiting.n;
        enum typed_pictures typed = find_pictures(line, size, &words, &found);

        if (typed == TYPED_REFUSED) {
                offer_again(chat, line, edits);
                return false;
        }
        if (typed == TYPED_PICTURES && words.size == 0) {
                (void)cli_pictures_add_all(&chat->waiting, &found);
                chat_tell_waiting(chat, n_waiting);
                chat->edits = edits; /* the text is still to come */
                return false;
        }
        if (typed == TYPED_PICTURES) {
                tell_found(&found);
                line = words.data;
                size = words.size;
        } else if (size > 1 && memcmp(line, "//", 2) == 0) {
                line++, size--;
        }
        if (at < chat->said.n && !cli_pictures_add_all(&all, &chat->said.pictures[at]))
                goto fail;
        for (size_t i = 0; i < all.n; i++)
                all.items[i].offset = 0; /* the text is another one */
        if (!cli_pictures_add_all(&all, &chat->waiting) || !cli_pictures_add_all(&all, &found))
                goto fail;
        *ret_shown = found.n + chat->waiting.n > 0;
        return chat_replace(chat, at, line, size, &all);
fail:
        cli_pictures_free(&all);
        return false;
}

/* A message with pictures that got no answer is offered anew, and pictures that waited wait on. */
static void settle_pictures(struct chat *chat, const char *line, size_t edits)
{
        if (chat->took_back && with_person())
                offer_again(chat, line, edits);
        else
                cli_pictures_free(&chat->waiting);
}

/* Returns the program's exit status. */
static int hold_conversation(struct chat *chat)
{
        _cleanup_(buf_freep) struct buf turn = { 0 };
        const char *text;
        size_t size, edits;
        bool shown;
        int status;

        for (;;) {
                signal_set_mode(term_stdin_tty ? SIGNAL_ANSWER : SIGNAL_EXIT);
                switch (read_turn(chat, &turn)) {
                case LINE_INTERRUPTED:
                        chat->edits = 0;
                        if (was_interrupted(chat))
                                return EXIT_INTERRUPTED;
                        continue;
                case LINE_END:
                        if (with_person())
                                out_puts("\n");
                        else if (!chat->heard)
                                complain("standard input has no message: chat reads one a line, or is used on a "
                                         "terminal");
                        return EXIT_OK;
                case LINE_FAILED:
                        return EXIT_FAILED;
                case LINE_OK:
                        break;
                }
                chat->warned = false;
                chat->heard = true;
                text = turn.data;
                size = turn.size;
                edits = chat->edits;
                chat->edits = 0;
                if (size == 0)
                        continue;
                line_remember(chat->reader, text);
                if (with_person() && (strcmp(text, "exit") == 0 || strcmp(text, "quit") == 0))
                        return EXIT_OK; /* what is meant, where a shell stands behind the prompt */
                shown = false;
                if (text[0] == '/' && text[1] != '/' && !(with_person() && picture_begins(text, size))) {
                        chat->asks = false;
                        if (!chat_run_command(chat, text))
                                return EXIT_OK;
                        if (chat->lost_picture && !term_stdin_tty)
                                return EXIT_FAILED;
                        if (!chat->asks)
                                continue;
                } else if (!compose_message(chat, text, size, edits, &shown)) {
                        if (!with_person())
                                return EXIT_FAILED;
                        continue;
                }
                status = answer_message(chat);
                if (shown)
                        settle_pictures(chat, text, edits);
                if (with_person()) /* between two turns */
                        out_puts("\n");
                out_flush();
                if (status == EXIT_INTERRUPTED)
                        return out_broken() ? out_finish() : EXIT_INTERRUPTED;
                /* A script stops at its first failure, a person decides. */
                if (status != EXIT_OK && (!term_stdin_tty || (tandem_connection_error(chat->tandem) && !with_person())))
                        return status;
        }
}

int chat_hold(struct cli *cli, const struct chat_options *given)
{
        struct chat chat = { .cli = cli, .given = *given };
        int status = EXIT_FAILED;

        if (!job_args_finish(&chat.given.job) || !cli_pictures_read(&chat.waiting, &given->images))
                goto out;
        chat.stats = with_person();
        chat.tandem = cli_connect(cli);
        if (!chat.tandem)
                goto out;
        if (!chat_take_model(&chat, chat.given.model))
                goto out;
        chat.reader = line_reader_new(chat.tandem);
        if (!chat.reader)
                goto out;
        if (chat.given.system && !conversation_set_system(&chat.said, chat.given.system))
                goto out;
        if (with_person())
                chat_introduce_model(&chat);
        chat_tell_waiting(&chat, 0);
        status = hold_conversation(&chat);
        if (out_finish() != 0 && status == EXIT_OK)
                status = EXIT_FAILED;
out:
        line_reader_free(chat.reader);
        conversation_free(&chat.said);
        conversation_free(&chat.replaced);
        cli_pictures_free(&chat.waiting);
        arg_list_free(&chat.given.images);
        for (size_t i = 0; i < chat.owned.n; i++)
                free((char *)(uintptr_t)chat.owned.items[i]);
        arg_list_free(&chat.owned);
        tandem_close(chat.tandem);
        job_args_deinit(&chat.given.job);
        return status;
}

static int check_usage(const struct chat_options *given, const char *command)
{
        if (given->job.given.top_logprobs)
                return args_usage_error(command, "--top-logprobs is for `tandem generate --json`: a chat does not "
                                                 "show them");
        for (size_t i = 0; i < given->images.n; i++)
                if (strcmp(given->images.items[i], "-") == 0)
                        return args_usage_error(command, "--image needs a file: standard input has the messages");
        return ARGS_OK;
}

static int run_chat(struct cli *cli, int argc, char **argv)
{
        struct chat_options given = { 0 };
        unsigned n_positional;
        int status;

        job_args_init(&given.job);
        if (!cli_parse(cli, &command_chat, argc, argv, &given, NULL, 0, &n_positional, &status)) {
                status = check_usage(&given, argv[0]);
                if (status == ARGS_OK)
                        return chat_hold(cli, &given);
        }
        arg_list_free(&given.images);
        job_args_deinit(&given.job);
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
        {
                .name = "image",
                .range.type = TDM_VALUE_TEXTS,
                .at = offsetof(struct chat_options, images),
                .value = "FILE",
                .brief = "a picture before the first message: PNG, JPEG or WebP, for models that see",
                .more = "may be given several times",
                .offer = OFFER_FILES,
        },
        ARG_MODEL(struct chat_options, model),
};

const struct command command_chat = {
        .name = "chat",
        .summary = "hold a conversation",
        .usage = "[OPTIONS]",
        .about = "Holds a conversation with a model that has a chat template. On a terminal lines are edited as in "
                 "a shell, with a history that is kept in $XDG_STATE_HOME/tandem/chat_history, and a text pasted "
                 "in one piece is one message. /help lists the commands: /save and /load keep a conversation, "
                 "/model, /system and /set change what the next message goes to, /retry and /edit the last one.\n"
                 "\n"
                 "\"\"\" begins and ends a message of several lines. A backslash at the end of a line goes on "
                 "with the next one. Ctrl-C stops an answer; at the prompt it drops what was typed, and at an "
                 "empty prompt it warns once and then exits with 130, Ctrl-D with 0. When the model's context is "
                 "full, the oldest turns are forgotten, and this is said. What the model thinks before it answers is "
                 "shown dimmed on a terminal and is left out elsewhere; /think off (or on, low, medium, high) "
                 "changes whether it does. From a pipe, each line is one message, "
                 "and the first failure ends it.\n"
                 "\n"
                 "A model that sees takes pictures: /image FILE adds one to the next message. On a terminal a file can "
                 "be dropped into the line, or its path written there, with quotes or backslashes as in a shell. If "
                 "the path begins with /, ./, ../, ~/ or file:// and the file is a PNG, JPEG or WebP by its first "
                 "bytes, the picture stands in the message in the path's place, and this is said. A line that has "
                 "only paths adds them to the next message. // at the beginning, and lines that were pasted together, "
                 "leave paths as they are. The conversation keeps its pictures, /retry and /edit too. /save writes "
                 "them into its file, and /load reads them from there.",
        .examples = "  tandem chat -m gemma3-4b --image cat.jpg\n"
                    "  tandem chat -m gemma3-4b --image cat.jpg <questions.txt",
        COMMAND_ARGS(args),
        .job_args = JOB_ARGS_ALL,
        .run = run_chat,
};
