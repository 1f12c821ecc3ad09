/* tandem add: models that are on this machine already get a name for tandemd. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/model-file.h"
#include "client-lib/store/elsewhere.h"
#include "client-lib/store/folder.h"

#include <fcntl.h>
#include <sys/stat.h>

struct add_options {
        const char *to, *name, *from;
        const char *program; /* as it was called */
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
        uint64_t done = 0;
        ssize_t n;
        int r = 0;

        if (!block || asprintf(&part, "%s.part", path) < 0)
                return -ENOMEM;
        to = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (to < 0)
                return -errno;
        while (r == 0 && (n = read(from, block, 1 << 20)) != 0) {
                r = n > 0 ? write_all(to, block, (size_t)n) : errno == EINTR ? 0 : -errno;
                done += (uint64_t)TDM_MAX(n, (ssize_t)0);
                if (done % (64u << 20) == 0)
                        progress_show("copying… %s", human_bytes(done));
        }
        progress_clear();
        if (r == 0 && (fsync(to) < 0 || rename(part, path) < 0))
                r = -errno;
        if (r < 0)
                (void)unlink(part);
        return r;
}

static bool is_system_folder(const char *folder)
{
        size_t n = strlen(folder);

        while (n > 1 && folder[n - 1] == '/')
                n--;
        return n == strlen(SYSTEM_MODEL_FOLDER) && strncmp(folder, SYSTEM_MODEL_FOLDER, n) == 0;
}

/* Why the system service could not follow a link to the file: its unit closes homes and /tmp to it, and it is a user
 * of its own. NULL: it could. */
static const char *closed_to_service(const char *whole)
{
        static const char *const closed[] = { "/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/" };
        _cleanup_(freep) char *path = strdup(whole);
        struct stat st;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(closed); i++)
                if (strncmp(whole, closed[i], strlen(closed[i])) == 0)
                        return i < 2 ? "homes are closed to it" : "that folder is closed to it";
        if (stat(whole, &st) == 0 && !(st.st_mode & S_IROTH))
                return "others may not read the file";
        for (char *slash = path ? strrchr(path, '/') : NULL; slash && slash > path; slash = strrchr(path, '/')) {
                *slash = '\0';
                if (stat(path, &st) == 0 && !(st.st_mode & S_IXOTH))
                        return "others may not enter a folder above it";
        }
        return NULL;
}

/* One file, under one name. *ret_there: it was there already. */
static int place_file(const struct add_options *options, const char *path, const char *file, bool *ret_there)
{
        _cleanup_(closep) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        _cleanup_(freep) char *whole = fd < 0 ? NULL : realpath(file, NULL), *there = NULL;
        int error = errno, r;

        there = realpath(path, NULL);
        if (fd < 0 || !whole)
                return complain("cannot open %s: %s", file, strerror(error));
        *ret_there = there && strcmp(there, whole) == 0;
        if (*ret_there)
                return EXIT_OK;
        r = options->copy ? (there ? -EEXIST : copy_file(fd, path)) : symlink(whole, path) < 0 ? -errno : 0;
        if (r == -EEXIST)
                return complain("there is another %s already; choose a name with --name, or remove it first "
                                "(tandem help rm)",
                                path);
        return r < 0 ? complain("cannot write %s: %s", path, strerror(-r)) : EXIT_OK;
}

/* What the daemon would refuse when it loads the model is refused here: a file that is damaged, cut off, or of a kind
 * that Tandem does not know. */
static int examine(const char *file, uint32_t *ret_n_parts, uint64_t *ret_bytes, bool *ret_chats)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        struct tdm_model_description d = { 0 };
        struct tdm_gguf_string template;
        struct tdm_error err;
        int r = model_file_open(file, &gguf, ret_n_parts, ret_bytes, &err);

        if (r != 0)
                return complain("%s", err.message);
        r = tdm_model_describe(gguf, &d, &err);
        if (r != 0)
                return complain("%s: Tandem cannot run it: %s", file, err.message);
        tdm_model_description_deinit(&d);
        *ret_chats = tdm_gguf_get_string(gguf, "tokenizer.chat_template", &template) == 0;
        return EXIT_OK;
}

/* The path of part i, from 1, of a model that gets this name; NULL: no memory. */
static char *place_of(const char *folder, const char *name, uint32_t i, uint32_t n_parts)
{
        _cleanup_(freep) char *of_part = NULL;
        unsigned part, n;
        size_t stem;

        if (n_parts == 1)
                return folder_file(folder, name);
        if (!folder_is_part(name, &stem, &part, &n))
                stem = strlen(name);
        if (asprintf(&of_part, "%.*s-%05u-of-%05u", (int)stem, name, i, n_parts) < 0)
                return NULL;
        return folder_file(folder, of_part);
}

/* All parts or none: half a model has a name and does not load. *ret_there: all were there already. */
static int place_all(const struct add_options *options, const char *folder, const char *name, const char *file,
                     uint32_t n_parts, bool *ret_there)
{
        _cleanup_(freep) bool *made = calloc(n_parts, sizeof(*made));
        int k = made ? EXIT_OK : complain("no memory");

        *ret_there = true;
        for (uint32_t i = 0; k == EXIT_OK && i < n_parts; i++) {
                _cleanup_(freep) char *from = n_parts == 1 ? strdup(file) : model_file_part(file, i + 1, n_parts);
                _cleanup_(freep) char *path = place_of(folder, name, i + 1, n_parts);
                bool there = false;

                k = from && path ? place_file(options, path, from, &there) : complain("no memory");
                made[i] = k == EXIT_OK && !there;
                *ret_there = *ret_there && there;
        }
        for (uint32_t i = 0; made && k != EXIT_OK && i < n_parts; i++) {
                _cleanup_(freep) char *path = made[i] ? place_of(folder, name, i + 1, n_parts) : NULL;

                if (path)
                        unlink(path);
        }
        return k;
}

static int add_one(const struct add_options *options, const char *folder, const char *name, const char *file)
{
        uint32_t n_parts = 1;
        uint64_t bytes = 0;
        bool is_there = false, chats = false;
        struct tdm_error err;
        int k;

        if (folder_check_name(name, &err) != 0)
                return complain("%s", err.message);
        k = examine(file, &n_parts, &bytes, &chats);
        if (k == EXIT_OK)
                k = place_all(options, folder, name, file, n_parts, &is_there);
        if (k != EXIT_OK)
                return k;
        if (is_there)
                out_printf("%s is there already\n", term_safe(name));
        else
                out_printf("%s: %s, %s\n", term_safe(name), human_bytes(bytes), options->copy ? "copied" : "linked");
        if (term_stdout_tty && !options->from && !options->to)
                out_printf("Try it: %s %s -m %s%s\n", term_safe(options->program), chats ? "chat" : "generate",
                           term_safe(name), chats ? "" : " \"Once upon a time\"");
        return EXIT_OK;
}

static void add_found(const char *name, const char *path, uint64_t size_bytes, void *userdata)
{
        struct adding *adding = userdata;

        adding->n_failed += add_one(adding->options, adding->folder, name, path) != EXIT_OK;
}

static int make_folder(const struct add_options *options, char **ret)
{
        struct tdm_error err;
        int r = options->to ? (asprintf(ret, "%s", options->to) < 0 ? -ENOMEM : 0) : folder_of_user(ret, &err);

        if (r == 0)
                r = folder_make(*ret, &err);
        if (r == 0 && access(*ret, W_OK) < 0)
                return complain("cannot write into %s: %s%s", *ret, strerror(errno),
                                is_system_folder(*ret) ? " (root may, by sudo, and the members of the group tandem)" :
                                                         "");
        return r == 0 ? EXIT_OK : complain("%s", r == -ENOMEM ? "no memory" : err.message);
}

static int run(struct cli *cli, int argc, char **argv)
{
        struct add_options options = { .program = cli->program };
        struct adding adding = { .options = &options };
        const char *file = NULL, *closed;
        _cleanup_(freep) char *folder = NULL, *name = NULL, *whole = NULL;
        struct tdm_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_add, argc, argv, &options, &file, 1, &n, &status))
                return status;
        if ((n == 1) == (options.from != NULL))
                return args_usage_error(argv[0], "give either a FILE or --from PROGRAM");
        if (options.from && options.name)
                return args_usage_error(argv[0], "--name is for one file");
        if (options.to && is_system_folder(options.to) && !options.copy) {
                whole = file ? realpath(file, NULL) : NULL;
                closed = options.from ? "homes are closed to it" : whole ? closed_to_service(whole) : NULL;
                if (closed)
                        return complain("the system service could not follow a link to %s: %s; --copy copies instead",
                                        whole ? whole : "what is in a home", closed);
        }
        status = make_folder(&options, &folder);
        if (status != EXIT_OK)
                return status;
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
                .more = "otherwise your own; " SYSTEM_MODEL_FOLDER " is that of the system service, for everybody",
                .offer = OFFER_FILES,
        },
};

const struct command command_add = {
        .name = "add",
        .summary = "give a model file a name",
        .usage = "[OPTIONS] FILE | --from PROGRAM",
        .about = "Links a GGUF file into your own model folder, so that `-m NAME` finds it; of a model in several "
                 "files all parts, when the first is named. Nothing is copied unless --copy says so. A file that "
                 "Tandem cannot run is refused. With --from, all models of another program are linked.",
        .examples = "  tandem add ~/Downloads/gemma-3-4b-it-Q4_K_M.gguf\n"
                    "  tandem add --from ollama\n"
                    "  sudo tandem add --copy --to " SYSTEM_MODEL_FOLDER " model.gguf",
        COMMAND_ARGS(args),
        .offer = OFFER_FILES,
        .run = run,
};
