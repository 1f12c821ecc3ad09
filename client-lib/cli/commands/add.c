/* tandem add: models that are on this machine already get a name for tandemd. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/elsewhere.h"
#include "client-lib/store/folder.h"

#include <fcntl.h>
#include <sys/stat.h>

struct add_options {
        const char *to, *name, *from;
        bool copy;
};

extern const struct command command_add;

struct adding {
        const struct add_options *options;
        const char *folder;
        unsigned n_failed;
};

/* To a name that appears when the copy is whole. */
static int copy_file(int from, const char *path)
{
        _cleanup_(freep) char *part = NULL, *block = malloc(1 << 20);
        _cleanup_(closep) int to = -1;
        ssize_t n;
        int r = 0;

        if (!block || asprintf(&part, "%s.part", path) < 0)
                return -ENOMEM;
        to = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (to < 0)
                return -errno;
        while (r == 0 && (n = read(from, block, 1 << 20)) != 0)
                r = n > 0 ? write_all(to, block, (size_t)n) : errno == EINTR ? 0 : -errno;
        if (r == 0 && (fsync(to) < 0 || rename(part, path) < 0))
                r = -errno;
        if (r < 0)
                (void)unlink(part);
        return r;
}

static int add_one(const struct add_options *options, const char *folder, const char *name, const char *file)
{
        _cleanup_(freep) char *path = folder_file(folder, name), *whole = realpath(file, NULL), *there = NULL;
        _cleanup_(closep) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        struct tdm_error err;
        char magic[4];
        struct stat st;
        int r;

        if (!path)
                return complain("no memory");
        if (fd < 0 || !whole || fstat(fd, &st) < 0)
                return complain("cannot open %s: %s", file, strerror(errno));
        if (!S_ISREG(st.st_mode) || pread(fd, magic, 4, 0) != 4 || memcmp(magic, "GGUF", 4) != 0)
                return complain("%s is no GGUF file", file);
        if (folder_check_name(name, &err) != 0)
                return complain("%s", err.message);
        there = realpath(path, NULL);
        if (there && strcmp(there, whole) == 0) {
                out_printf("%s is there already\n", term_safe(name));
                return EXIT_OK;
        }
        r = options->copy ? (there ? -EEXIST : copy_file(fd, path)) : symlink(whole, path) < 0 ? -errno : 0;
        if (r == -EEXIST)
                return complain("there is another %s already; choose a name with --name, or `tandem rm %s` first", path,
                                name);
        if (r < 0)
                return complain("cannot write %s: %s", path, strerror(-r));
        out_printf("%s: %s, %s\n", term_safe(name), human_bytes((uint64_t)st.st_size),
                   options->copy ? "copied" : "linked");
        return EXIT_OK;
}

static void add_found(const char *name, const char *path, uint64_t size_bytes, void *userdata)
{
        struct adding *adding = userdata;

        adding->n_failed += add_one(adding->options, adding->folder, name, path) != EXIT_OK;
}

static int run(struct cli *cli, int argc, char **argv)
{
        struct add_options options = { 0 };
        struct adding adding = { .options = &options };
        const char *file = NULL;
        _cleanup_(freep) char *folder = NULL, *name = NULL;
        struct tdm_error err;
        unsigned n;
        int status, r;

        if (cli_parse(cli, &command_add, argc, argv, &options, &file, 1, &n, &status))
                return status;
        if ((n == 1) == (options.from != NULL))
                return args_usage_error(argv[0], "give either a FILE or --from PROGRAM");
        if (options.from && options.name)
                return args_usage_error(argv[0], "--name is for one file");
        r = options.to ? (asprintf(&folder, "%s", options.to) < 0 ? -ENOMEM : 0) : folder_of_user(&folder, &err);
        if (r != 0 || folder_make(folder, &err) != 0)
                return complain("%s", r == -ENOMEM ? "no memory" : err.message);
        if (options.from) {
                adding.folder = folder;
                if (elsewhere_each(options.from, add_found, &adding, &err) == 0)
                        return complain("%s", err.message);
                return out_finish() != 0 || adding.n_failed > 0 ? EXIT_FAILED : EXIT_OK;
        }
        name = options.name ? strdup(options.name) : folder_name_of(file);
        status = name ? add_one(&options, folder, name, file) : complain("no memory");
        return out_finish() != 0 ? EXIT_FAILED : status;
}

static const char *const programs[] = { "ollama", "lmstudio", "hf", NULL };

static const struct arg args[] = {
        {
                .name = "from",
                .range = { .type = TDM_VALUE_NAME, .choices = programs },
                .at = offsetof(struct add_options, from),
                .value = "PROGRAM",
                .brief = "every GGUF model that Ollama, LM Studio or Hugging Face's tools have here",
        },
        {
                .name = "name",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct add_options, name),
                .value = "NAME",
                .brief = "what the model is called",
                .more = "otherwise as its file",
        },
        {
                .name = "copy",
                .at = offsetof(struct add_options, copy),
                .brief = "copy the file instead of linking it",
                .more = "the system service cannot follow a link into a home",
        },
        {
                .name = "to",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct add_options, to),
                .value = "FOLDER",
                .brief = "the model folder",
                .more = "otherwise your own; " SYSTEM_MODEL_FOLDER " is that of the system service",
                .offer = OFFER_FILES,
        },
};

const struct command command_add = {
        .name = "add",
        .summary = "give a model file a name",
        .usage = "[OPTIONS] FILE | --from PROGRAM",
        .about = "Links a GGUF file into the model folder, so that `-m NAME` finds it. Nothing is copied unless "
                 "--copy says so. With --from, all models of another program are linked.",
        .examples = "  tandem add ~/Downloads/gemma-3-4b-it-Q4_K_M.gguf\n"
                    "  tandem add --from ollama",
        COMMAND_ARGS(args),
        .offer = OFFER_FILES,
        .run = run,
};
