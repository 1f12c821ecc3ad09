/* tandem pull: fetches a model into a folder where tandemd finds it. The daemon has no part in it. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/download.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/source.h"

#include <inttypes.h>
#include <sys/stat.h>

struct pull_options {
        const char *to, *sha256, *name;
};

extern const struct command command_pull;

struct pull {
        const char *name;
        size_t part, n_parts;
};

static bool show_progress(uint64_t done, uint64_t total, double rate, void *userdata)
{
        const struct pull *p = userdata;
        char rest[32] = "", part[64] = "";

        if (signal_take())
                return false;
        if (p->n_parts > 1)
                snprintf(part, sizeof(part), " (part %zu of %zu)", p->part, p->n_parts);
        if (total > 0 && rate > 0) {
                format_duration(rest, sizeof(rest), (double)(total - TDM_MIN(done, total)) / rate);
                progress_show("%s%s… %u%% of %s, %s/s, %s left", term_safe(p->name), part,
                              (unsigned)(100 * (double)done / (double)total), human_bytes(total),
                              human_bytes((uint64_t)rate), rest);
        } else {
                progress_show("%s%s… %s", term_safe(p->name), part, human_bytes(done));
        }
        return true;
}

static void show_retry(const char *why, unsigned wait_ms, void *userdata)
{
        complain("%s; trying again in %u s", why, TDM_DIV_UP(wait_ms, 1000u));
}

/* Whether the whole file is there already. */
static bool is_there(const char *path, uint64_t size_bytes)
{
        struct stat st;

        return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size_bytes == 0 || (uint64_t)st.st_size == size_bytes);
}

static int pull_file(const struct source *source, size_t i, const struct pull_options *options, const char *folder)
{
        const struct source_file *f = &source->files[i];
        const char *name = options->name ? options->name : f->name;
        struct pull pull = { .name = name, .part = i + 1, .n_parts = source->n_files };
        struct download download = { .url = f->url,
                                     .token = source->token,
                                     .sha256 = options->sha256 ? options->sha256 :
                                               f->sha256[0]    ? f->sha256 :
                                                                 NULL,
                                     .size_bytes = f->size_bytes,
                                     .on_progress = show_progress,
                                     .on_retry = show_retry,
                                     .userdata = &pull };
        _cleanup_(freep) char *path = folder_file(folder, name);
        struct download_result result;
        struct tdm_error err;
        int r;

        if (!path)
                return complain("no memory");
        if (is_there(path, f->size_bytes)) {
                out_printf("%s is there already: %s\n", term_safe(name), term_safe(path));
                return EXIT_OK;
        }
        download.path = path;
        r = download_file(&download, &result, &err);
        progress_clear();
        if (r == TDM_E_CANCELLED) {
                complain("%s", err.message);
                return EXIT_INTERRUPTED;
        }
        if (r != 0)
                return complain("%s", err.message);
        out_printf("%s: %s, %s\n", term_safe(path), human_bytes(result.size_bytes),
                   result.checked ? "its SHA-256 is right" : "the server gave no SHA-256 to check it by");
        return EXIT_OK;
}

static int run(struct cli *cli, int argc, char **argv)
{
        struct pull_options options = { 0 };
        const char *what = NULL;
        _cleanup_(freep) char *folder = NULL;
        struct source source;
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
        if (r != 0 || folder_make(folder, &err) != 0)
                return complain("%s", r == -ENOMEM ? "no memory" : err.message);
        signal_set_mode(SIGNAL_ANSWER); /* the first Ctrl-C stops the download in order */
        r = source_find(what, &source, &err);
        if (r != 0)
                return complain("%s", err.message);
        status = EXIT_OK;
        if ((options.name || options.sha256) && source.n_files > 1)
                status = args_usage_error(argv[0], "--name and --sha256 are for one file; this model has %zu parts",
                                          source.n_files);
        for (size_t i = 0; i < source.n_files && status == EXIT_OK; i++)
                status = pull_file(&source, i, &options, folder);
        if (status == EXIT_OK && term_stdout_tty)
                out_printf("Try it: tandem generate -m %s --chat \"Hello!\"\n",
                           term_safe(options.name ? options.name : source.files[0].name));
        source_free(&source);
        return out_finish() != 0 && status == EXIT_OK ? EXIT_FAILED : status;
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
                .more = "otherwise what the file is called there",
        },
        {
                .name = "sha256",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct pull_options, sha256),
                .value = "HEX",
                .brief = "what the file's SHA-256 must be",
                .more = "otherwise what the server says, if it says any",
        },
};

const struct command command_pull = {
        .name = "pull",
        .summary = "fetch a model",
        .usage = "[OPTIONS] NAME|URL|hf:OWNER/REPO[:QUANT]",
        .about = "Fetches a GGUF file from a URL, or from a repository of Hugging Face: hf:OWNER/REPO means the "
                 "repository's Q4_K_M, hf:OWNER/REPO:Q8_0 another quantisation, hf:OWNER/REPO/FILE.gguf one file. "
                 "A model in several parts is fetched whole. HF_TOKEN is sent to Hugging Face alone, for models "
                 "that want an account.\n"
                 "\n"
                 "A transfer that breaks off is taken up where it stopped, now or by the same command later. The "
                 "file gets its name when it is whole, and its size and SHA-256 are right. Room on the disk is "
                 "checked first.\n"
                 "\n"
                 "Known by name: gemma3-1b, gemma3-4b, gemma3-12b, gemma3-27b, qwen3-4b, qwen3-30b-a3b, "
                 "gpt-oss-20b.",
        .examples = "  tandem pull gemma3-1b\n"
                    "  tandem pull hf:ggml-org/gemma-3-4b-it-GGUF:Q8_0\n"
                    "  sudo tandem pull --to " SYSTEM_MODEL_FOLDER " https://example.org/model.gguf",
        COMMAND_ARGS(args),
        .run = run,
};
