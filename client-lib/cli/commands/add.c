/* tandem add: models that are on this machine already get a name for tandemd. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/model-file.h"
#include "client-lib/cli/projector-file.h"
#include "client-lib/store/elsewhere.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/incoming.h"

#include <fcntl.h>
#include <sys/stat.h>

struct add_options {
        const char *to, *name, *from, *mmproj;
        const char *program; /* as it was called */
        bool copy;
};

extern const struct command command_add;

struct adding {
        const struct add_options *options;
        const char *folder;
        int folder_fd;
        unsigned n_failed;
        bool stopped; /* by a signal */
};

/* One model on its way: its files, and for each its place in the folder. */
struct add_places {
        const struct add_options *options;
        struct model_files files;
        struct incoming in[MODEL_FILE_PARTS_MAX];
        bool there[MODEL_FILE_PARTS_MAX]; /* the place is this very file already */
        bool made[MODEL_FILE_PARTS_MAX];
        uint32_t n, n_there; /* n: places that are locked */
};

static bool show_copied(uint64_t done_bytes)
{
        progress_show("copying… %s", human_bytes(done_bytes));
        return !signal_take();
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

/* Refuses what the daemon would refuse when it loads the model: a file that is damaged, cut off, or of a kind
 * that Tandem does not know. */
static int examine_files(const int *fds, char *const *names, uint32_t n, bool *ret_chats, struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        struct tdm_model_description d = { 0 };
        struct tdm_gguf_string template;
        int r = model_files_read(fds, names, n, &gguf, err);

        if (r != 0)
                return r;
        r = tdm_model_describe(gguf, &d, err);
        if (r != 0)
                return tdm_error_prefix(err, "%s: Tandem cannot run it", names[0]);
        tdm_model_description_deinit(&d);
        *ret_chats = tdm_gguf_get_string(gguf, "tokenizer.chat_template", &template) == 0;
        return 0;
}

/* The name of part i, from 1, of a model that gets this name; NULL: no memory. */
static char *name_of_part(const char *name, uint32_t i, uint32_t n_parts)
{
        unsigned part, n;
        size_t stem;
        char *ret;

        if (n_parts == 1)
                return strdup(name);
        if (!folder_is_part(name, &stem, &part, &n))
                stem = strlen(name);
        return asprintf(&ret, "%.*s-%05u-of-%05u", (int)stem, name, i, n_parts) < 0 ? NULL : ret;
}

static bool is_file_at(const struct incoming *in, int fd)
{
        struct stat here, there;

        return fstat(fd, &here) == 0 && fstatat(in->folder_fd, in->name, &there, 0) == 0 &&
               here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

/* Locks the place of each file, and finds another file that has it before anything is copied. */
static int lock_places(struct add_places *p, const struct adding *adding, const char *name, struct tdm_error *err)
{
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < p->files.n; i++) {
                _cleanup_(freep) char *of_part = name_of_part(name, i + 1, p->files.n);

                r = of_part ? incoming_open(&p->in[i], adding->folder_fd, adding->folder, of_part, err) :
                              tdm_error_set(err, -ENOMEM, "out of memory");
                if (r != 0)
                        break;
                p->n++;
                p->there[i] = is_file_at(&p->in[i], p->files.fd[i]);
                p->n_there += p->there[i];
                if (!p->there[i] && incoming_is_taken(&p->in[i]))
                        r = incoming_taken(&p->in[i], err);
        }
        return r;
}

/* The copies are examined once more: their owner may have changed the files while they were read. */
static int copy_files(struct add_places *p, struct tdm_error *err)
{
        int fds[MODEL_FILE_PARTS_MAX], r = 0;
        bool chats;

        for (uint32_t i = 0; r == 0 && i < p->n; i++) {
                if (!p->there[i]) {
                        r = incoming_begin(&p->in[i], false, err);
                        if (r == 0)
                                r = incoming_copy(&p->in[i], p->files.fd[i], p->files.size_bytes[i], show_copied, err);
                }
                fds[i] = p->there[i] ? p->files.fd[i] : p->in[i].fd;
        }
        progress_clear();
        return r == 0 ? examine_files(fds, p->files.path, p->n, &chats, err) : r;
}

/* A link to the file that was examined. */
static int link_file(const char *path, int fd, struct incoming *in, struct tdm_error *err)
{
        _cleanup_(freep) char *whole = realpath(path, NULL);
        struct stat opened, now;

        if (!whole || stat(whole, &now) < 0 || fstat(fd, &opened) < 0)
                return tdm_error_set(err, TDM_E_MODEL_CHANGED, "cannot open %s: %s", path, strerror(errno));
        if (now.st_dev != opened.st_dev || now.st_ino != opened.st_ino)
                return tdm_error_set(err, TDM_E_MODEL_CHANGED, "%s became another file meanwhile; try again", path);
        return incoming_symlink(in, whole, err);
}

/* All parts or none, the first one last: a model in parts is found by its first, and so when it is whole. */
static int name_files(struct add_places *p, struct tdm_error *err)
{
        int r = 0;

        for (uint32_t i = p->n; r == 0 && i-- > 0;) {
                if (p->there[i])
                        continue;
                r = p->options->copy ? incoming_link(&p->in[i], err) :
                                       link_file(p->files.path[i], p->files.fd[i], &p->in[i], err);
                p->made[i] = r == 0;
        }
        for (uint32_t i = 0; r != 0 && i < p->n; i++)
                if (p->made[i])
                        incoming_unlink(&p->in[i]);
        return r;
}

static int place_files(struct add_places *p, const struct adding *adding, const char *name, bool *ret_chats,
                       struct tdm_error *err)
{
        int r = examine_files(p->files.fd, p->files.path, p->files.n, ret_chats, err);

        if (r == 0)
                r = lock_places(p, adding, name, err);
        if (r == 0 && p->options->copy && p->n_there < p->n)
                r = copy_files(p, err);
        return r == 0 ? name_files(p, err) : r;
}

/* ---- its projector ---- */

/* The projector that belongs to the model: the one that was named, mmproj-NAME.gguf beside the file, or the only one
 * that fits in the file's folder. Within the model folder names alone say what belongs together. -ENOENT: none. */
static int find_projector(const struct adding *adding, const char *file, const struct tdm_gguf *model,
                          struct projector_file *ret, struct tdm_error *err)
{
        const struct add_options *options = adding->options;
        _cleanup_(freep) char *beside = projector_file_beside(file), *folder = strdup(file);
        char *slash = folder ? strrchr(folder, '/') : NULL;
        struct stat here, there;

        if (options->mmproj)
                return projector_file_open(ret, options->mmproj, options->copy, model, err);
        if (!beside || !folder)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (access(beside, F_OK) == 0)
                return projector_file_open(ret, beside, options->copy, model, err);
        if (slash)
                slash[1] = '\0';
        if (!projector_file_is_wanted(model) || fstat(adding->folder_fd, &here) < 0 ||
            stat(slash ? folder : ".", &there) < 0 || (here.st_dev == there.st_dev && here.st_ino == there.st_ino))
                return -ENOENT;
        return projector_file_search(ret, file, options->copy, model);
}

static int copy_projector(const struct projector_file *p, struct incoming *in, const struct tdm_gguf *model,
                          struct tdm_error *err)
{
        uint32_t n_rows;
        int r = incoming_begin(in, false, err);

        if (r == 0)
                r = incoming_copy(in, p->fd, p->size_bytes, show_copied, err);
        progress_clear();
        if (r == 0) /* its owner may have changed the file while it was read */
                r = projector_file_check(in->fd, p->path, model, &n_rows, err);
        return r == 0 ? incoming_link(in, err) : r;
}

/* Another projector that has the name already stays, unless one was asked for. */
static int place_projector(const struct adding *adding, const char *name, const struct projector_file *p,
                           const struct tdm_gguf *model, bool *ret_made, struct tdm_error *err)
{
        _cleanup_(freep) char *own = folder_projector_name(name);
        struct incoming in = INCOMING_NONE;
        int r = own ? folder_check_name(own, err) : tdm_error_set(err, -ENOMEM, "out of memory");

        if (r == 0)
                r = incoming_open(&in, adding->folder_fd, adding->folder, own, err);
        if (r != 0)
                return r;
        if (incoming_is_taken(&in))
                r = is_file_at(&in, p->fd) || !adding->options->mmproj ? 0 : incoming_taken(&in, err);
        else {
                r = adding->options->copy ? copy_projector(p, &in, model, err) : link_file(p->path, p->fd, &in, err);
                *ret_made = r == 0;
        }
        incoming_close(&in);
        return r;
}

/* A model and its projector are one. The model is in its place already: what fails here leaves it one for texts. */
static int add_projector(const struct adding *adding, const char *name, const struct model_files *files)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *model = NULL;
        struct projector_file projector = PROJECTOR_FILE_NONE;
        bool made = false;
        struct tdm_error err;
        int r = model_files_read(files->fd, files->path, files->n, &model, &err);

        if (r == 0)
                r = find_projector(adding, files->path[0], model, &projector, &err);
        if (r == -ENOENT && !adding->options->mmproj)
                return 0;
        if (r == 0)
                r = place_projector(adding, name, &projector, model, &made, &err);
        if (made)
                out_printf("%s: sees pictures by %s, %s, %s\n", term_safe(name), term_safe(projector.path),
                           human_bytes(projector.size_bytes), adding->options->copy ? "copied" : "linked");
        projector_file_close(&projector);
        if (r != 0)
                complain("%s takes texts alone: %s", name, err.message);
        return r;
}

/* ---- one model ---- */

/* fd: of the file, taken, or -1. */
static int add_one(struct adding *adding, const char *name, const char *file, int fd)
{
        const struct add_options *options = adding->options;
        struct add_places places = { .options = options };
        uint64_t bytes = 0;
        bool chats = false;
        struct tdm_error err;
        int r, r_projector = 0;

        r = folder_check_name(name, &err);
        if (r != 0)
                closep(&fd);
        else
                r = model_files_open(&places.files, file, fd, options->copy, &err);
        if (r != 0)
                return complain("%s", err.message);
        r = place_files(&places, adding, name, &chats, &err);
        for (uint32_t i = 0; i < places.n; i++)
                incoming_close(&places.in[i]);
        for (uint32_t i = 0; i < places.files.n; i++)
                bytes += places.files.size_bytes[i];
        if (r != 0) {
                adding->stopped = r == TDM_E_CANCELLED;
                model_files_close(&places.files);
                return complain("%s", err.message);
        }
        if (places.n_there == places.n)
                out_printf("%s is there already\n", term_safe(name));
        else
                out_printf("%s: %s, %s\n", term_safe(name), human_bytes(bytes), options->copy ? "copied" : "linked");
        r_projector = add_projector(adding, name, &places.files);
        adding->stopped = r_projector == TDM_E_CANCELLED;
        model_files_close(&places.files);
        if (r_projector != 0 && (options->mmproj || adding->stopped))
                return EXIT_FAILED;
        if (term_stdout_tty && !options->from && !options->to)
                out_printf("Try it: %s %s -m %s%s\n", term_safe(options->program), chats ? "chat" : "generate",
                           term_safe(name), chats ? "" : " \"Once upon a time\"");
        return EXIT_OK;
}

static void add_found(struct elsewhere_model *model, void *userdata)
{
        struct adding *adding = userdata;

        if (adding->stopped)
                return;
        if (model->fd < 0)
                adding->n_failed += complain("%s", model->err->message) != EXIT_OK;
        else
                adding->n_failed += add_one(adding, model->name, model->path, steal_fd(&model->fd)) != EXIT_OK;
}

static int make_folder(const struct add_options *options, char **ret, int *ret_fd)
{
        struct tdm_error err;
        int r = options->to ? (asprintf(ret, "%s", options->to) < 0 ? -ENOMEM : 0) : folder_of_user(ret, &err);

        if (r == 0)
                r = folder_make(*ret, ret_fd, &err);
        if (r == 0 && faccessat(*ret_fd, ".", W_OK, 0) < 0)
                return complain("cannot write into %s: %s%s", *ret, strerror(errno),
                                is_system_folder(*ret) ? " (root may, by sudo, and the members of the group tandem)" :
                                                         "");
        return r == 0 ? EXIT_OK : complain("%s", r == -ENOMEM ? "no memory" : err.message);
}

static int add_all(struct adding *adding)
{
        struct tdm_error err;

        if (elsewhere_each(adding->options->from, add_found, adding, &err) == 0)
                return complain("%s", err.message);
        return adding->n_failed > 0 ? EXIT_FAILED : EXIT_OK;
}

static int run_add(struct cli *cli, int argc, char **argv)
{
        struct add_options options = { .program = cli->program };
        struct adding adding = { .options = &options };
        const char *file = NULL, *closed;
        _cleanup_(freep) char *folder = NULL, *name = NULL, *whole = NULL;
        _cleanup_(closep) int folder_fd = -1;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_add, argc, argv, &options, &file, 1, &n, &status))
                return status;
        if ((n == 1) == (options.from != NULL))
                return args_usage_error(argv[0], "give either a FILE or --from PROGRAM");
        if (options.from && (options.name || options.mmproj))
                return args_usage_error(argv[0], "%s is for one file", options.name ? "--name" : "--mmproj");
        if (options.to && is_system_folder(options.to) && !options.copy) {
                whole = file ? realpath(file, NULL) : NULL;
                closed = options.from ? "homes are closed to it" : whole ? closed_to_service(whole) : NULL;
                if (!closed && options.mmproj) {
                        free(whole);
                        whole = realpath(options.mmproj, NULL);
                        closed = whole ? closed_to_service(whole) : NULL;
                }
                if (closed)
                        return complain("the system service could not follow a link to %s: %s; --copy copies instead",
                                        whole ? whole : "what is in a home", closed);
        }
        status = make_folder(&options, &folder, &folder_fd);
        if (status != EXIT_OK)
                return status;
        adding.folder = folder;
        adding.folder_fd = folder_fd;
        signal_set_mode(SIGNAL_ANSWER); /* the first Ctrl-C ends a copy in order */
        if (options.from) {
                status = add_all(&adding);
        } else {
                name = options.name ? strdup(options.name) : folder_name_of(file);
                status = name ? add_one(&adding, name, file, -1) : complain("no memory");
        }
        if (adding.stopped)
                status = EXIT_INTERRUPTED;
        return out_finish() != 0 && status == EXIT_OK ? EXIT_FAILED : status;
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
                .name = "mmproj",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct add_options, mmproj),
                .value = "FILE",
                .brief = "the projector with which the model sees pictures",
                .more = "otherwise mmproj-*.gguf beside FILE, if one alone fits the model",
                .offer = OFFER_FILES,
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
        .about =
                "Links a GGUF file into your own model folder, so that `-m NAME` finds it; of a model in several "
                "files all parts, when the first is named. Nothing is copied unless --copy says so. A file that "
                "Tandem cannot run is refused. A copy is made only of what those users may read, too, who own a "
                "folder or a link on the way to it. A projector, with which the model sees pictures, is brought along "
                "under "
                "a name by which it is found: mmproj-NAME.gguf. With --from, all models of another program are linked.",
        .examples = "  tandem add ~/Downloads/gemma-3-4b-it-Q4_K_M.gguf\n"
                    "  tandem add --from ollama\n"
                    "  sudo tandem add --copy --to " SYSTEM_MODEL_FOLDER " model.gguf",
        COMMAND_ARGS(args),
        .offer = OFFER_FILES,
        .run = run_add,
};
