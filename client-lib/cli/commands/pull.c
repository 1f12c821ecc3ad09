/* tandem pull: fetches a model into a folder where tandemd finds it. The daemon has no part in it. The work is that of
 * another program (client-lib/fetch/pull.c), so that no other command loads what it needs. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/folder.h"

struct pull_options {
        const char *to, *sha256, *name;
        uint32_t connections;
        bool text_only;
};

extern const struct command command_pull;

static int run_pull(struct cli *cli, int argc, char **argv)
{
        struct pull_options options = { 0 };
        const char *what = NULL;
        _cleanup_(freep) char *folder = NULL;
        char program[4300], connections[16];
        struct tdm_error err;
        unsigned n;
        int status, r;

        if (cli_parse(cli, &command_pull, argc, argv, &options, &what, 1, &n, &status))
                return status;
        if (n == 0)
                return args_usage_error(argv[0], "there is no NAME, URL or hf:OWNER/REPO");
        if (options.sha256 && (strlen(options.sha256) != 64 || strspn(options.sha256, "0123456789abcdefABCDEF") != 64))
                return args_usage_error(argv[0], "--sha256: '%.80s' is not 64 hexadecimal digits", options.sha256);
        if (options.name && folder_check_name(options.name, &err) != 0)
                return args_usage_error(argv[0], "--name: %s", err.message);
        r = options.to ? (asprintf(&folder, "%s", options.to) < 0 ? -ENOMEM : 0) : folder_of_user(&folder, &err);
        if (r != 0)
                return complain("%s", r == -ENOMEM ? "no memory" : err.message);
        if (!cli_find_program("tandem-pull", program, sizeof(program)))
                return complain("cannot find the program tandem-pull (%s): the installation is incomplete", program);
        snprintf(connections, sizeof(connections), "%u", options.connections);
        execl(program, "tandem-pull", folder, what, options.name ? options.name : "",
              options.sha256 ? options.sha256 : "", connections, options.to ? "" : cli->program,
              options.text_only ? "text-only" : "", NULL);
        return complain("cannot run %s: %s", program, strerror(errno));
}

static const struct arg args[] = {
        {
                .name = "to",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct pull_options, to),
                .value = "FOLDER",
                .brief = "where the file goes",
                .more = "otherwise your own model folder; " SYSTEM_MODEL_FOLDER " is that of the system service",
                .offer = OFFER_FILES,
        },
        {
                .name = "name",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct pull_options, name),
                .value = "NAME",
                .brief = "what the model is called here",
                .more = "otherwise the NAME that was asked for, or what the file is called there",
        },
        {
                .name = "sha256",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct pull_options, sha256),
                .value = "HEX",
                .brief = "what the file's SHA-256 must be",
                .more = "otherwise what the server says, if it says any",
        },
        {
                .name = "connections",
                .range = { .type = TDM_VALUE_U32, .min = 1, .max = 8 },
                .at = offsetof(struct pull_options, connections),
                .default_value = 4,
                .value = "N",
                .brief = "how many connections fetch a big file",
                .more = "a server that takes no ranges gets one",
        },
        {
                .name = "text-only",
                .at = offsetof(struct pull_options, text_only),
                .brief = "leave out the projector, with which a model sees pictures",
        },
};

const struct command command_pull = {
        .name = "pull",
        .summary = "fetch a model",
        .usage = "[OPTIONS] NAME|URL|hf:OWNER/REPO[:QUANT]",
        .about = "Fetches a GGUF file from a URL, or from a repository of Hugging Face: hf:OWNER/REPO means the "
                 "repository's Q4_K_M, hf:OWNER/REPO:Q8_0 another quantisation, hf:OWNER/REPO/FILE.gguf one file. "
                 "A model in several parts is fetched whole. If a projector (mmproj) is in the repository and Tandem "
                 "takes pictures with the model, it is fetched too, as mmproj-NAME.gguf. HF_TOKEN is sent to Hugging "
                 "Face alone, for models "
                 "that want an account.\n"
                 "\n"
                 "A transfer that breaks off is taken up where it stopped, now or by the same command later. The "
                 "file gets its name when it is whole, and its size and SHA-256 are right. Until then its bytes "
                 "are in NAME.gguf.part beside it, which `tandem rm NAME` removes. Room on the disk is checked "
                 "first. A file that has the name already is not replaced.\n"
                 "\n"
                 "Known by name, and so named here: of SmolLM2 smollm2-135m (0.1 GB) and smollm2-360m (0.4 GB), of "
                 "Gemma 3 gemma3-270m (0.3 GB), gemma3-1b (0.8 GB), gemma3-4b (2.5 GB), gemma3-12b (7.3 GB) and "
                 "gemma3-27b (16.5 GB), of Qwen 3 qwen3-4b (2.5 GB) and qwen3-30b-a3b (18.6 GB), and gpt-oss-20b "
                 "(12.1 GB), each without its projector. Gemma's makers have terms of their own; the others are under "
                 "Apache-2.0.",
        .examples = "  tandem pull smollm2-135m\n"
                    "  tandem pull hf:ggml-org/gemma-3-4b-it-GGUF:Q8_0\n"
                    "  sudo tandem pull --to " SYSTEM_MODEL_FOLDER " https://example.org/model.gguf",
        COMMAND_ARGS(args),
        .run = run_pull,
};
