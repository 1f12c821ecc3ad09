/* tandem generate: one prompt, one text. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/pictures.h"
#include "client-lib/cli/talk.h"
#include "client-lib/cli/thought.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <sys/stat.h>

/* How much of a prompt is shown before its continuation. */
#define ECHO_BYTES ((size_t)2048)
#define STDIN_PATIENCE_MS 2000
/* About a screen full. Many models continue a raw text until their context is full. */
#define RAW_TOKENS 256u

extern const struct command command_generate;

struct generate {
        struct run_progress progress; /* first: run_show_progress() */
        bool json;
        uint64_t seed;
        uint32_t max_tokens;    /* as asked for */
        bool own_limit;         /* nobody asked for that */
        uint32_t prompt_tokens; /* from acceptance, for a last line without the daemon's */
        const char *echo;       /* shown before the first token; NULL: nothing is */
        size_t echo_size;
        size_t n_tokens; /* that came */
        size_t n_said;   /* bytes of the answer, without thoughts */
        struct thought_view thought;
        bool asked_again;
        struct tandem_error refusal; /* why it is asked again */
};

/* A continuation begins in mid-sentence. People see what it continues: the prompt, dimmed, or its end. */
static void echo_prompt(struct generate *g)
{
        const char *text = g->echo;
        size_t size = g->echo_size;

        g->echo = NULL;
        if (!text || size == 0)
                return;
        term_style(TERM_DIM);
        if (size > ECHO_BYTES) {
                text += size - ECHO_BYTES;
                size = ECHO_BYTES;
                while (size > 0 && ((unsigned char)*text & 0xc0) == 0x80) /* never from within a character */
                        text++, size--;
                out_puts("…");
        }
        out_text(text, size);
        term_style(0);
}

static void on_job_accepted(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata)
{
        struct generate *g = userdata;

        g->prompt_tokens = accepted->prompt_tokens;
}

static void on_text_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct generate *g = userdata;
        struct buf line = { 0 };

        g->n_tokens++;
        g->n_said += token->size;
        progress_clear();
        if (!g->json) {
                echo_prompt(g);
                thought_write(&g->thought, token->thinking, token->thinking_size);
                if (token->size > 0)
                        thought_end(&g->thought);
                out_text(token->text, token->size);
                out_flush();
                return;
        }
        buf_puts(&line, "{");
        json_field_string(&line, "event", "token");
        json_field_u64(&line, "id", token->id);
        json_key(&line, "text");
        json_text(&line, token->text, token->size);
        json_field_number(&line, "logprob", token->logprob);
        if (token->thinking_size > 0) {
                json_key(&line, "thinking");
                json_text(&line, token->thinking, token->thinking_size);
        }
        if (token->n_top > 0) {
                json_key(&line, "top");
                for (size_t i = 0; i < token->n_top; i++) {
                        buf_printf(&line, "%s[%" PRIu32 ",", i == 0 ? "[" : ",", token->top[i].id);
                        json_number(&line, token->top[i].logprob);
                        buf_puts(&line, "]");
                }
                buf_puts(&line, "]");
        }
        buf_puts(&line, "}\n");
        if (!line.failed)
                out_write(line.data, line.size);
        out_flush();
        buf_free(&line);
}

/* The last line of --json. */
static void print_done(const struct generate *g, const uint32_t *ids, size_t n_ids, const struct tandem_result *result)
{
        struct buf line = { 0 };

        buf_puts(&line, "{");
        json_field_string(&line, "event", "done");
        json_field_string(&line, "reason", tandem_reason_name(result->reason));
        if (result->reason == TANDEM_REASON_ERROR) {
                json_key(&line, "error");
                buf_puts(&line, "{");
                json_field_string(&line, "code", result->error.name);
                json_field_string(&line, "message", result->error.message);
                buf_puts(&line, "}");
        }
        json_field_u64(&line, "prompt_tokens", result->prompt_tokens);
        json_field_u64(&line, "cached_tokens", result->cached_tokens);
        json_field_u64(&line, "generated_tokens", result->generated_tokens);
        if (result->picture_tokens > 0)
                json_field_u64(&line, "picture_tokens", result->picture_tokens);
        if (result->thinking_tokens > 0)
                json_field_u64(&line, "thinking_tokens", result->thinking_tokens);
        json_key(&line, "ids");
        json_ids(&line, ids, n_ids);
        json_field_number(&line, "ttft_ms", result->ttft_ms);
        json_field_number(&line, "prefill_tps", result->prefill_tps);
        json_field_number(&line, "decode_tps", result->decode_tps);
        json_field_u64(&line, "recoveries", result->recoveries);
        json_field_bool(&line, "degraded", result->degraded);
        json_field_bool(&line, "incomplete", result->incomplete);
        json_field_u64(&line, "drafted", result->drafted);
        json_field_u64(&line, "accepted", result->accepted);
        json_field_string(&line, "unguessed", result->unguessed);
        json_key(&line, "tail");
        json_text(&line, result->tail, result->tail_size);
        json_field_u64(&line, "job", result->job);
        json_field_u64(&line, "seed", g->seed);
        json_field_string(&line, "numerics_id", result->numerics_id);
        buf_puts(&line, "}\n");
        if (!line.failed)
                out_write(line.data, line.size);
        buf_free(&line);
}

/* A job that was cancelled when tandemd had no time left to say more: only what is known here. */
static void print_cut(const struct generate *g, const struct tandem_job *job)
{
        struct tandem_result result = { .reason = TANDEM_REASON_CANCELLED,
                                        .job = tandem_job_id(job),
                                        .prompt_tokens = g->prompt_tokens,
                                        .ttft_ms = NAN,
                                        .prefill_tps = NAN,
                                        .decode_tps = NAN,
                                        .numerics_id = "",
                                        .unguessed = "",
                                        .tail = "" };
        const uint32_t *ids;
        size_t n_ids;

        ids = tandem_job_ids(job, &n_ids);
        result.generated_tokens = (uint32_t)n_ids;
        print_done(g, ids, n_ids, &result);
}

/* Reports a failure before there is a job. With --json, too, the last line says why. */
static int report_failure(const struct generate *g, const struct tandem_error *err, const char *model)
{
        struct tandem_result result = {
                .reason = TANDEM_REASON_ERROR, .error = *err, .numerics_id = "", .unguessed = "", .tail = ""
        };

        if (g->json)
                print_done(g, NULL, 0, &result);
        return complain_model(err, model);
}

static void print_summary(const struct generate *g, const struct tandem_result *r, bool verbose)
{
        char rate[32], prefill[32];

        if (r->generated_tokens > 1) {
                format_rate(rate, sizeof(rate), r->decode_tps);
                fprintf(stderr, "%" PRIu32 " prompt tokens, %" PRIu32 " tokens, first after %.0f ms, %s tokens/s",
                        r->prompt_tokens, r->generated_tokens, r->ttft_ms, rate);
        } else if (r->generated_tokens == 1) {
                fprintf(stderr, "%" PRIu32 " prompt tokens, 1 token after %.0f ms", r->prompt_tokens, r->ttft_ms);
        } else {
                fprintf(stderr, "%" PRIu32 " prompt tokens, no tokens", r->prompt_tokens);
        }
        if (r->recoveries > 0)
                fprintf(stderr, ", %" PRIu32 " %s", r->recoveries, r->recoveries == 1 ? "recovery" : "recoveries");
        if (r->degraded)
                fprintf(stderr,
                        ", degraded (a worker is out of service, or the arithmetic is another one: `tandem status`)");
        if (r->reason == TANDEM_REASON_CANCELLED)
                fprintf(stderr, ", cancelled");
        else if (r->reason == TANDEM_REASON_LENGTH && g->own_limit && r->generated_tokens >= g->max_tokens)
                fprintf(stderr, ", cut off as there is no -n (-n -1 goes on to the end)");
        else if (r->reason == TANDEM_REASON_LENGTH && g->max_tokens > 0 && r->generated_tokens >= g->max_tokens)
                fprintf(stderr, ", cut off at -n %" PRIu32, g->max_tokens);
        else if (r->reason == TANDEM_REASON_LENGTH)
                fprintf(stderr, ", cut off: %s", g->max_tokens > 0 ? "the context is full" : "-n asks for more");
        fprintf(stderr, "\n");
        if (verbose) {
                format_rate(prefill, sizeof(prefill), r->prefill_tps);
                fprintf(stderr,
                        "seed %" PRIu64 ", job %" PRIu64 ", ended by %s, prompt %s tokens/s (%" PRIu32
                        " cached%s), numerics %s\n",
                        g->seed, r->job, tandem_reason_name(r->reason), prefill, r->cached_tokens,
                        format_picture_tokens(r), term_safe(r->numerics_id));
        }
}

/* Each call of a tool is a line of JSON, its arguments a text, as they may be cut off. */
void generate_print_calls(const struct tandem_job *job, bool as_event)
{
        size_t n;
        const struct tandem_call *calls = tandem_job_calls(job, &n);

        if (n > 0 && !as_event && out_mid_line())
                out_puts("\n");
        for (size_t i = 0; i < n; i++) {
                struct buf line = { 0 };

                buf_puts(&line, "{");
                if (as_event)
                        json_field_string(&line, "event", "call");
                json_field_string(&line, "id", calls[i].id);
                json_field_string(&line, "name", calls[i].name);
                json_field_string(&line, "arguments", calls[i].arguments);
                buf_puts(&line, "}\n");
                if (!line.failed)
                        out_write(line.data, line.size);
                buf_free(&line);
        }
}

/* A script must not take half an object for a whole one. A program that reads events finds it in the last of them. */
static int complain_incomplete(const struct generate *g, const struct tandem_result *result)
{
        complain("the text is incomplete: it ended by %s before it satisfied the schema or grammar%s",
                 tandem_reason_name(result->reason),
                 result->reason == TANDEM_REASON_LENGTH ? " (-n takes more tokens)" : "");
        return g->json ? EXIT_OK : EXIT_FAILED;
}

static bool has_calls(const struct tandem_job *job)
{
        size_t n;

        (void)tandem_job_calls(job, &n);
        return n > 0;
}

static int report_end(struct generate *g, const struct tandem_job *job, enum run_outcome outcome, bool verbose)
{
        const struct tandem_result *result = tandem_job_result(job);

        if (outcome == RUN_OUTPUT_GONE)
                return out_finish();
        if (result && !g->json) {
                if (result->tail_size > 0) {
                        echo_prompt(g);
                        thought_end(&g->thought);
                }
                out_text(result->tail, result->tail_size);
        }
        if (result && !g->json && term_stdout_tty && result->reason == TANDEM_REASON_LENGTH) {
                term_style(TERM_DIM);
                out_puts("…");
                term_style(0);
        }
        generate_print_calls(job, g->json);
        if (g->json && result) {
                size_t n_ids;
                const uint32_t *ids = tandem_job_ids(job, &n_ids);

                print_done(g, ids, n_ids, result);
        } else if (g->json) {
                print_cut(g, job);
        }
        if (!g->json && term_stdout_tty && out_mid_line())
                out_puts("\n");
        if (out_finish() != 0)
                return EXIT_FAILED;

        if (result && (verbose || (!g->json && term_stdout_tty)) && result->reason != TANDEM_REASON_ERROR)
                print_summary(g, result, verbose);
        if (outcome == RUN_INTERRUPTED)
                return EXIT_INTERRUPTED;
        if (result->reason == TANDEM_REASON_ERROR)
                return complain_model(&result->error, g->progress.model);
        if (result->reason == TANDEM_REASON_CANCELLED)
                return complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
        if (result->incomplete)
                return complain_incomplete(g, result);
        if (!g->json && !has_calls(job) && g->n_said + result->tail_size == 0)
                thought_complain_alone(result);
        return EXIT_OK;
}

bool stdin_has_text(void)
{
        struct stat st;

        return fstat(STDIN_FILENO, &st) == 0 && !S_ISCHR(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* A pipe that its other end keeps open would hold up a prompt that was given in full. The reason is told. */
static void wait_for_stdin(void)
{
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };

        if (poll(&p, 1, STDIN_PATIENCE_MS) == 0)
                complain("waiting for standard input, which is added to PROMPT (</dev/null gives it none)");
}

/* Adds the text of a file ("-": standard input) after an empty line. One newline at its end is dropped: `echo text |`
 * means the text, and a newline would change what the model goes on with. */
static bool add_input(struct buf *to, const char *path)
{
        _cleanup_(buf_freep) struct buf input = { 0 };

        if (!read_all(path, MAX_INPUT_BYTES - TDM_MIN(to->size, MAX_INPUT_BYTES), &input))
                return false;
        if (input.size > 0 && input.data[input.size - 1] == '\n')
                input.size--;
        if (to->size > 0 && input.size > 0)
                buf_puts(to, "\n\n");
        buf_add(to, input.data, input.size);
        if (to->failed)
                complain("no memory for the prompt");
        return !to->failed;
}

static bool names_stdin(const struct arg_list *files)
{
        for (size_t i = 0; i < files->n; i++)
                if (strcmp(files->items[i], "-") == 0)
                        return true;
        return false;
}

/* PROMPT, then the files, then standard input, where that is no picture. prompt: as given; NULL or "-": none. */
static bool gather_prompt(struct buf *ret, const char *prompt, const struct arg_list *files,
                          const struct arg_list *images)
{
        bool from_stdin = prompt && strcmp(prompt, "-") == 0;

        if (prompt && !from_stdin)
                buf_puts(ret, prompt);
        for (size_t i = 0; i < files->n; i++) {
                from_stdin = from_stdin || strcmp(files->items[i], "-") == 0;
                if (strcmp(files->items[i], "-") != 0 && !add_input(ret, files->items[i]))
                        return false;
        }
        if (!prompt && files->n == 0)
                from_stdin = true;
        if (!from_stdin && !names_stdin(images) && stdin_has_text()) {
                from_stdin = true;
                wait_for_stdin();
        }
        return (!from_stdin || add_input(ret, "-")) && !ret->failed;
}

/* A raw text that nobody bounds ends nevertheless. An answer ends by itself; JSON and what follows a grammar must not
 * be cut. True: the limit is this command's. */
static bool limit_raw_text(struct generate_options *given)
{
        struct tandem_generate_options *o = &given->job.options;

        if (given->job.given.max_tokens || given->chat || o->json_schema || o->grammar || o->regex)
                return false;
        o->max_tokens = RAW_TOKENS;
        return true;
}

/* A daemon that ends takes no new job, and the next one gets a connection that the service manager's socket holds. So a
 * job of which nothing came is asked for once more. */
static bool may_ask_again(const struct generate *g, const struct tandem_error *err)
{
        return err->code == TANDEM_E_DRAINING && !g->asked_again && g->n_tokens == 0;
}

/* True: ask once more. Else *ret_status is the command's. */
static bool ask(struct cli *cli, struct generate *g, struct generate_options *given, int *ret_status)
{
        struct tandem_generate_options *options = &given->job.options;
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(tandem_job_freep) struct tandem_job *job = NULL;
        struct tandem_callbacks callbacks;
        const struct tandem_result *result;
        struct tandem_error err;
        enum run_outcome outcome;

        tandem_callbacks_init(&callbacks);
        callbacks.on_accepted = on_job_accepted;
        callbacks.on_progress = run_show_progress;
        callbacks.on_token = on_text_token;
        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK) {
                *ret_status = report_failure(g, g->asked_again ? &g->refusal : &err, given->model);
                return false;
        }
        options->model = cli_model(tandem, given->model);
        if (cli_take_draft(tandem, options, &err) != TANDEM_OK) {
                g->refusal = err;
                if (may_ask_again(g, &err))
                        return true;
                *ret_status = report_failure(g, &err, NULL);
                return false;
        }
        if (tandem_generate(tandem, options, &callbacks, g, &job, &err) != TANDEM_OK) {
                job = NULL;
                g->refusal = err;
                if (may_ask_again(g, &err))
                        return true;
                *ret_status = report_failure(g, &err, given->model);
                return false;
        }
        outcome = run_jobs(tandem, &job, 1, SIGNAL_CANCEL);
        result = tandem_job_result(job);
        if (outcome == RUN_DONE && result && result->reason == TANDEM_REASON_ERROR &&
            may_ask_again(g, &result->error)) {
                g->refusal = result->error;
                return true;
        }
        *ret_status = report_end(g, job, outcome, given->job.verbose);
        return false;
}

int generate_text(struct cli *cli, struct generate_options *given, const char *prompt)
{
        struct tandem_generate_options *options = &given->job.options;
        _cleanup_(buf_freep) struct buf input = { 0 };
        _cleanup_(cli_pictures_free) struct cli_pictures pictures = { 0 };
        _cleanup_(freep) struct tandem_picture *put = NULL;
        struct tandem_message messages[2];
        struct generate g;
        bool own_limit;
        int status = EXIT_FAILED;

        if (!gather_prompt(&input, prompt, &given->files, &given->images))
                return EXIT_FAILED;
        buf_add(&input, "", 0); /* an empty prompt is an empty text */
        if (!job_args_finish(&given->job))
                return EXIT_FAILED;
        if (given->chat) {
                if (given->system)
                        messages[options->n_chat++] =
                                (struct tandem_message){ "system", given->system, strlen(given->system) };
                messages[options->n_chat++] = (struct tandem_message){ "user", input.data, input.size };
                options->chat = messages;
        } else {
                options->prompt = input.data;
                options->prompt_size = input.size;
        }
        if (!cli_pictures_read(&pictures, &given->images))
                return EXIT_FAILED;
        put = calloc(pictures.n + 1, sizeof(*put));
        if (!put)
                return complain("no memory for pictures");
        cli_pictures_put(&pictures, options->n_chat > 1, put);
        options->pictures = put;
        options->n_pictures = pictures.n;
        own_limit = limit_raw_text(given);
        g = (struct generate){ .progress = { .model = given->model },
                               .json = given->json,
                               .seed = options->seed,
                               .own_limit = own_limit,
                               .max_tokens = options->max_tokens };
        if (!given->chat && !given->json && term_stdout_tty) {
                g.echo = input.data;
                g.echo_size = input.size;
        }
        while (ask(cli, &g, given, &status))
                g.asked_again = true;
        return status;
}

void generate_options_deinit(struct generate_options *given)
{
        arg_list_free(&given->files);
        arg_list_free(&given->images);
        job_args_deinit(&given->job);
}

int generate_check_json(const struct generate_options *given, const char *command)
{
        if (given->job.given.top_logprobs && !given->json)
                return args_usage_error(command, "--top-logprobs needs --json: text alone does not show them");
        return ARGS_OK;
}

int generate_check_stdin(const struct generate_options *given, const char *command, const char *prompt)
{
        size_t n = 0;

        for (size_t i = 0; i < given->images.n; i++)
                n += strcmp(given->images.items[i], "-") == 0;
        if (n > 1)
                return args_usage_error(command, "--image - was given twice: standard input is one picture");
        if (n == 1 &&
            ((!prompt && given->files.n == 0) || (prompt && strcmp(prompt, "-") == 0) || names_stdin(&given->files)))
                return args_usage_error(command, "--image - takes standard input, so the text has to come from an "
                                                 "argument or a file");
        return ARGS_OK;
}

static int check_usage(struct generate_options *given, const char *command, const char *prompt)
{
        /* Which only a chat template tells the model of. */
        given->chat = given->chat || given->job.given.tools || given->job.given.chat_variables ||
                      given->job.given.thinking || given->job.given.thinking_budget;
        if (given->raw && given->chat)
                return args_usage_error(
                        command, "--raw excludes --chat, and what goes with it (--tools, --think, --think-budget)");
        if (given->system && !given->chat)
                return args_usage_error(command, "--system needs --chat: raw text has no system message");
        if (!prompt && given->files.n == 0 && term_stdin_tty)
                return args_usage_error(command, "there is no PROMPT (give a text, or - to type one)");
        if (generate_check_stdin(given, command, prompt) != ARGS_OK)
                return ARGS_USAGE;
        return generate_check_json(given, command);
}

static int run_generate(struct cli *cli, int argc, char **argv)
{
        _cleanup_(generate_options_deinit) struct generate_options given = { 0 };
        const char *prompt = NULL;
        unsigned n_positional;
        int status;

        job_args_init(&given.job);
        if (cli_parse(cli, &command_generate, argc, argv, &given, &prompt, 1, &n_positional, &status))
                return status;
        status = check_usage(&given, argv[0], prompt);
        return status == ARGS_OK ? generate_text(cli, &given, prompt) : status;
}

static const struct arg args[] = {
        {
                .name = "raw",
                .at = offsetof(struct generate_options, raw),
                .brief = "continue PROMPT as it stands",
                .more = "so does generate without --chat",
        },
        {
                .name = "chat",
                .at = offsetof(struct generate_options, chat),
                .brief = "take PROMPT as a message, in the model's own chat template",
        },
        {
                .name = "system",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct generate_options, system),
                .value = "TEXT",
                .brief = "with --chat: a system message before the conversation",
        },
        {
                .letter = 'f',
                .name = "file",
                .range.type = TDM_VALUE_TEXTS,
                .at = offsetof(struct generate_options, files),
                .value = "FILE",
                .brief = "add a file's text to the prompt, after an empty line",
                .more = "may be given several times",
                .offer = OFFER_FILES,
        },
        {
                .name = "image",
                .range.type = TDM_VALUE_TEXTS,
                .at = offsetof(struct generate_options, images),
                .value = "FILE",
                .brief = "a picture before PROMPT: PNG, JPEG or WebP, for models that see",
                .more = "may be given several times; - is standard input",
                .offer = OFFER_FILES,
        },
        ARG_JSON(struct generate_options, json,
                 "one JSON object a line: {\"event\":\"token\", \"id\":…, \"text\":…, \"logprob\":…}, at last "
                 "{\"event\":\"done\", \"reason\":\"stop|length|cancelled|error\", …}"),
        ARG_MODEL(struct generate_options, model),
};

const struct command command_generate = {
        .name = "generate",
        .summary = "continue a text, or answer one message",
        .usage = "[OPTIONS] [PROMPT|-]",
        .about = "Continues PROMPT and prints the new text as it comes. Text from a pipe or a redirected "
                 "file is part of the prompt: PROMPT comes first, then each FILE, then standard input, with an "
                 "empty line between two. One newline at the end of each is dropped. In a loop that reads "
                 "standard input itself, give tandem </dev/null.\n"
                 "\n"
                 "Without -n a raw text ends after 256 tokens. With --chat, --schema, --grammar or --regex it goes on "
                 "to its end, as with -n 0.\n"
                 "\n"
                 "On a terminal the prompt is shown dimmed before its continuation, a … follows a text that was cut "
                 "off, control characters are "
                 "shown as \\x1b and the like, and a summary follows on standard error. Elsewhere only the new "
                 "text is printed. Ctrl-C cancels the job and exits with 130.\n"
                 "\n"
                 "What a model thinks before it answers is shown dimmed on a terminal and is left out elsewhere. "
                 "--json has it in the tokens' \"thinking\". --think, --think-budget, --tools and --chat-variables "
                 "take PROMPT as a message, as --chat does.\n"
                 "\n"
                 "A text that was cut off before it satisfied its schema, grammar or pattern is printed as far as "
                 "it came, and the exit status is 1. With --json it is 0, and the last line has \"incomplete\": true.",
        .examples = "  tandem generate \"Once upon a time\"\n"
                    "  tandem generate --chat -n 200 \"Why is the sky blue?\"\n"
                    "  cat letter.txt | tandem generate --chat \"Summarise this letter.\"\n"
                    "  tandem generate --chat -f a.txt -f b.txt \"What do these two have in common?\"\n"
                    "  tandem generate --chat --image cat.jpg \"What is this?\"\n"
                    "  tandem generate --temp 0 --json - <prompt.txt",
        COMMAND_ARGS(args),
        .job_args = JOB_ARGS_ALL,
        .run = run_generate,
};
