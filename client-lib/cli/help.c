/* What `tandem help` says: one text for each command, written like the man page that will hold it. */
#include "client-lib/cli/cli.h"

static const char program_help[] =
        "tandem - run language models on the NPU and the GPU together\n"
        "\n"
        "usage: tandem [--socket PATH] COMMAND [ARGUMENTS]\n"
        "\n"
        "  generate   continue a text, or answer one message\n"
        "  chat       hold a conversation\n"
        "  status     the daemon, its workers, its models\n"
        "  models     the models there are\n"
        "  jobs       the jobs that run or wait\n"
        "  cancel     stop a job\n"
        "  restart    restart a worker (npu or gpu); its jobs go on afterwards\n"
        "  load       load a model before its first job\n"
        "  unload     give a model's memory back\n"
        "  tokenize   a text as token ids\n"
        "  score      how likely a model finds a text\n"
        "  bench      measure speed\n"
        "  top        what runs now, on one screen\n"
        "  trace      record what the workers do, block by block\n"
        "  help       this text, or help COMMAND\n"
        "\n"
        "  --socket PATH   where tandemd listens. Otherwise $TANDEM_SOCKET, else\n"
        "                  $XDG_RUNTIME_DIR/tandem/socket, else /run/tandem/socket\n"
        "  --version       versions of the program and the library\n"
        "\n"
        "A MODEL is a name from `tandem models`, or a file: a path with a '/', or a name ending in .gguf that exists.\n"
        "Files are opened here and handed to the daemon, so it needs no right to read them. No -m: the default model.\n"
        "\n"
        "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted (the job is cancelled).\n";

#define HELP_SAMPLING                                                                                                  \
        "  -m, --model MODEL      a name or a file; otherwise the default model\n"                                     \
        "  -n, --max-tokens N     at most N tokens; 0 (otherwise): until the model ends or its context is full\n"      \
        "      --temp T           temperature, 0 to 100; 0.8. 0 takes the likeliest token always\n"                    \
        "      --top-k K          only the K likeliest; 40. 0: off\n"                                                  \
        "      --top-p P          only the likeliest that sum up to P; 0.95. 0 or 1: off\n"                            \
        "      --min-p P          only those at least P times as likely as the first; 0: off\n"                        \
        "      --repeat-penalty R make tokens of the recent past less likely; 0 or 1 (otherwise): off\n"               \
        "      --repeat-last N    how far that past reaches; 64 tokens\n"                                              \
        "      --seed S           same seed, same request: same tokens. Otherwise random (--verbose shows it)\n"       \
        "      --stop STR         end before this text; may be given several times\n"                                  \
        "      --priority P       interactive (otherwise) or background\n"                                             \
        "  -v, --verbose          the summary on stderr always, with seed and numerics\n"
#define HELP_TESTING                                                                                                   \
        "      --ignore-end       go on behind the model's end token (for measurements)\n"                             \
        "      --prefill-chunk N  read the prompt N tokens a step (for tests; changes no token)\n"                     \
        "      --placement P      split, npu or gpu (for tests)\n"

static const char generate_help[] =
        "usage: tandem generate [OPTIONS] [PROMPT|-]\n"
        "\n"
        "Prints what the model makes of PROMPT, as it comes. With -, or without PROMPT when standard input is not a\n"
        "terminal, the prompt is read from there (one newline at its end is dropped). Only the generated text is\n"
        "printed, not the prompt. On a terminal control characters are shown as \\x1b and the like, and a summary\n"
        "follows on stderr.\n"
        "\n"
        "      --raw              continue PROMPT as it stands (this is what happens without --chat, too)\n"
        "      --chat             take PROMPT as a message, in the model's own chat template\n"
        "      --system TEXT      with --chat: a system message in front\n" HELP_SAMPLING
        "      --json             one JSON object a line: {\"event\":\"token\",\"id\":…,\"text\":…,\"logprob\":…},\n"
        "                         at last "
        "{\"event\":\"done\",\"reason\":\"stop|length|cancelled|error\",…}\n" HELP_TESTING "\n"
        "Ctrl-C cancels the job and exits with 130.\n"
        "\n"
        "examples:\n"
        "  tandem generate \"Once upon a time\"\n"
        "  tandem generate --chat -n 200 \"Why is the sky blue?\"\n"
        "  tandem generate --temp 0 --json - <prompt.txt\n";

static const char chat_help[] =
        "usage: tandem chat [OPTIONS]\n"
        "\n"
        "A conversation with a model that has a chat template. /help, /reset and /quit are commands; \"\"\" begins "
        "and\n"
        "ends a message of several lines, and a backslash at the end of a line goes on with the next one. Ctrl-C "
        "stops\n"
        "an answer; at the prompt it exits with 130, Ctrl-D with 0. From a pipe, each line is one message and the "
        "first\n"
        "failure ends it.\n"
        "\n"
        "      --system TEXT      what the model is told before everything else\n" HELP_SAMPLING HELP_TESTING;

static const char status_help[] =
        "usage: tandem status [--json]\n"
        "\n"
        "The daemon, each worker (device, state, pid, restarts, and how many blocks of which kind it ran: attention "
        "in\n"
        "one, ffn in the other when the model is split), the loaded models with their memory, jobs and recoveries.\n"
        "--json prints one object with the field names of tandem.proto.\n";

static const char models_help[] = "usage: tandem models [--json]\n"
                                  "\n"
                                  "The models in the daemon's model directories and those that clients handed over.\n";

static const char jobs_help[] = "usage: tandem jobs [--json]\n"
                                "\n"
                                "The jobs that run or wait, with the tokens read and made so far.\n";

static const char cancel_help[] = "usage: tandem cancel JOB\n"
                                  "\n"
                                  "Stops the job with this number (`tandem jobs`) at the next step.\n";

static const char restart_help[] =
        "usage: tandem restart npu|gpu\n"
        "\n"
        "Ends a worker and starts it again. Running jobs wait and go on with the same tokens; a quarantine ends.\n";

static const char load_help[] =
        "usage: tandem load MODEL\n"
        "\n"
        "Loads a model (a name or a file) now, so that its first job does not wait; returns when it is ready.\n";

static const char unload_help[] = "usage: tandem unload MODEL\n"
                                  "\n"
                                  "Unloads a model, by its name in `tandem models`.\n";

static const char tokenize_help[] =
        "usage: tandem tokenize [-m MODEL] [--special] [--no-bos] [TEXT|-]\n"
        "\n"
        "Prints the token ids of TEXT as a JSON array on one line. Standard input is taken byte for byte.\n"
        "\n"
        "  -m, --model MODEL   a name or a file; otherwise the default model\n"
        "      --special       recognise control pieces such as <start_of_turn> in the text\n"
        "      --no-bos        put no beginning-of-text token in front\n";

static const char score_help[] =
        "usage: tandem score [-m MODEL] [--top K] [--ids FILE | --text FILE]\n"
        "\n"
        "Prints one JSON object: {\"ids\":[…],\"nll\":[…],\"top\":[[[id,logprob],…],…]}. nll[i] is -log p(ids[i+1]),\n"
        "so it has one entry less than ids; top[i] is the distribution after ids[0..i].\n"
        "\n"
        "  -m, --model MODEL   a name or a file; otherwise the default model\n"
        "      --top K         the K likeliest tokens at each position, 0 (otherwise) to 64\n"
        "      --ids FILE      a JSON array of token ids, taken as they are; - is standard input\n"
        "      --text FILE     a text, tokenized with a beginning-of-text token; - is standard input\n";

static const char bench_help[] =
        "usage: tandem bench [-m MODEL] [-p 128] [-n 32] [-b 1,8,32] [--json]\n"
        "\n"
        "Measures through the daemon, like any client. For each batch size that many jobs start together, each with "
        "its\n"
        "own prompt (no two runs have the same); they run to N tokens. Prefill is prompt tokens until every job has "
        "its\n"
        "first token; decode is what comes after that: each stream's, and of all together while all generate.\n"
        "\n"
        "  -m, --model MODEL       a name or a file; otherwise the default model\n"
        "  -p, --prompt-tokens P   tokens in each prompt; 128\n"
        "  -n, --max-tokens N      tokens generated by each job; 32\n"
        "  -b, --batch LIST        numbers of concurrent jobs; 1,8,32\n"
        "      --json              one object with all results\n";

static const char top_help[] =
        "usage: tandem top [-d SECONDS] [-n N]\n"
        "\n"
        "Shows what the daemon does, again and again: jobs with their speed, all tokens a second, cache pages, how "
        "busy\n"
        "each worker is, how long it takes to hand a step over. Rates and shares are those of the last interval. On a\n"
        "terminal it fills the screen and q ends it; otherwise each round is printed as plain text. Shown are your "
        "own\n"
        "jobs; root sees everybody's.\n"
        "\n"
        "  -d, --delay SECONDS   between two rounds, 0.1 to 3600; 1\n"
        "  -n, --rounds N        end after N rounds; otherwise with q or Ctrl-C\n";

static const char trace_help[] = "usage: tandem trace -o FILE [--seconds S] [--past]\n"
                                 "\n"
                                 "Records what tandemd and its workers do, block by block, as a JSON file that "
                                 "https://ui.perfetto.dev opens, and\n"
                                 "sums it up on stderr: how busy each worker was, what a hand-over took, how long "
                                 "nobody worked. Ctrl-C ends it\n"
                                 "early. Only root and the daemon's own user may.\n"
                                 "\n"
                                 "  -o, --output FILE   where to; - is standard output\n"
                                 "      --seconds S     how long, 0 to 600; 5\n"
                                 "      --past          begin with what happened last, as far as it is still known; "
                                 "with --seconds 0 only that\n";

static const char help_help[] = "usage: tandem help [COMMAND]\n";

static const struct {
        const char *command, *text;
} texts[] = {
        { "generate", generate_help }, { "chat", chat_help },   { "status", status_help },
        { "models", models_help },     { "jobs", jobs_help },   { "cancel", cancel_help },
        { "restart", restart_help },   { "load", load_help },   { "unload", unload_help },
        { "tokenize", tokenize_help }, { "score", score_help }, { "bench", bench_help },
        { "top", top_help },           { "trace", trace_help }, { "help", help_help },
};

const char *help_text(const char *command)
{
        if (!command)
                return program_help;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(texts); i++)
                if (strcmp(texts[i].command, command) == 0)
                        return texts[i].text;
        return NULL;
}

int help_print(const char *command)
{
        const char *text = help_text(command);

        if (!text)
                return args_usage_error("help", "there is no command '%.60s'", command);
        out_puts(text);
        return out_finish();
}
