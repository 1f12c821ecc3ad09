/* tandem-pull: what `tandem pull` runs to fetch a model. A program of its own, since loading libcurl and its 30
 * libraries takes longer than most commands do. `tandem pull` has checked the arguments; this interface is between the
 * two alone: tandem-pull FOLDER WHAT NAME SHA256 CONNECTIONS TANDEM TEXT-ONLY, an empty text for what was not given.
 * TANDEM is how the command was called, where the model lies in a folder that it looks into. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/model-file.h"
#include "client-lib/cli/projector-file.h"
#include "client-lib/fetch/download.h"
#include "client-lib/fetch/part.h"
#include "client-lib/fetch/source.h"
#include "client-lib/store/folder.h"

#include <fcntl.h>
#include <inttypes.h>
#include <strings.h>
#include <sys/stat.h>

struct pull_options {
        const char *folder, *sha256, *name; /* NULL: not given */
        bool text_only;
        unsigned n_connections;
        int folder_fd;
};

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

/* Checks that the file is whole, which it says itself where the server told no length. Whether Tandem can run it is
 * another question. */
static int look_at_file(int fd, const char *path, struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        int r = tdm_gguf_open(&gguf, fd, path, err);

        return r == TDM_E_BAD_MODEL ? r : 0;
}

/* Whether the file is there already, and is the one that is wanted: of that size, with that SHA-256, where they are
 * known. EXIT_FAILED, said: another file has its name. */
static int check_there(const struct download *d, const char *path, bool *ret_there)
{
        _cleanup_(freep) char *base = NULL;
        _cleanup_(closep) int fd = -1;
        char found[65];
        uint64_t bytes;
        struct tdm_error err;
        struct stat st;

        *ret_there = false;
        if (asprintf(&base, "%s.gguf", d->name) < 0) {
                base = NULL;
                return complain("no memory");
        }
        fd = openat(d->folder_fd, base, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return EXIT_OK;
        if (d->size_bytes && d->size_bytes != (uint64_t)st.st_size)
                return complain("there is another %s already: it has %" PRIu64 " bytes, not %" PRIu64
                                "; choose a name with --name, or remove it first (tandem help rm)",
                                path, (uint64_t)st.st_size, d->size_bytes);
        if (d->sha256) {
                if (part_hash(fd, path, (uint64_t)st.st_size, found, &err) != 0)
                        return complain("%s", err.message);
                if (strcasecmp(found, d->sha256) != 0)
                        return complain("there is another %s already: its SHA-256 is %s, not %s; choose a name with "
                                        "--name, or remove it first (tandem help rm)",
                                        path, found, d->sha256);
        }
        /* Removes what earlier runs left: one that was killed just behind its link, or one before the file came. */
        (void)incoming_forget(d->folder_fd, d->folder, d->name, &bytes, &err);
        *ret_there = true;
        return EXIT_OK;
}

static int pull_file(const struct source *source, const struct source_file *f, const char *name, const char *sha256,
                     const struct pull_options *options)
{
        bool is_part = f != &source->projector;
        struct pull pull = { .name = name,
                             .part = is_part ? (size_t)(f - source->files) + 1 : 1,
                             .n_parts = is_part ? source->n_files : 1 };
        struct download download = { .url = f->url,
                                     .folder_fd = options->folder_fd,
                                     .folder = options->folder,
                                     .name = name,
                                     .token = source->token,
                                     .sha256 = sha256       ? sha256 :
                                               f->sha256[0] ? f->sha256 :
                                                              NULL,
                                     .size_bytes = f->size_bytes,
                                     .n_connections = options->n_connections,
                                     .on_progress = show_progress,
                                     .on_retry = show_retry,
                                     .userdata = &pull,
                                     .look = look_at_file };
        _cleanup_(freep) char *path = folder_file(options->folder, name);
        struct download_result result;
        struct tdm_error err;
        bool there;
        int r;

        if (!path)
                return complain("no memory");
        r = check_there(&download, path, &there);
        if (r != EXIT_OK)
                return r;
        if (there) {
                out_printf("%s is there already: %s%s\n", term_safe(name), term_safe(path),
                           download.sha256 ? ", its SHA-256 is right" : "");
                return EXIT_OK;
        }
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

/* The first part comes last. A model in parts is found by its first: so it is found when it is whole. */
static int pull_files(const struct source *source, const struct pull_options *options)
{
        int status = EXIT_OK;

        for (size_t i = 0; i < source->n_files && status == EXIT_OK; i++) {
                const struct source_file *f = &source->files[(i + 1) % source->n_files];

                status = pull_file(source, f, options->name ? options->name : f->name, options->sha256, options);
        }
        return status;
}

/* The model is there. Its projector follows, if the model would see by one. */
static int pull_projector(const struct source *source, const char *path, const char *name,
                          const struct pull_options *options)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *model = NULL;
        _cleanup_(freep) char *own = folder_projector_name(name), *its_path = NULL;
        struct projector_file projector;
        struct tdm_error err;
        uint32_t n_parts;
        uint64_t bytes;
        int status;

        if (!source->projector.url || options->text_only || model_file_open(path, &model, &n_parts, &bytes, &err) != 0)
                return EXIT_OK;
        if (!projector_file_is_wanted(model)) {
                out_printf("%s.gguf is not fetched: Tandem takes no pictures with this model\n",
                           term_safe(source->projector.name));
                return EXIT_OK;
        }
        its_path = own ? folder_file(options->folder, own) : NULL;
        if (!its_path)
                return complain("no memory");
        status = pull_file(source, &source->projector, own, NULL, options);
        if (status != EXIT_OK)
                return status;
        if (projector_file_open(&projector, its_path, false, model, &err) != 0)
                return complain("%s takes texts alone: %s", name, err.message);
        projector_file_close(&projector);
        return EXIT_OK;
}

/* Says what to do with it now. If Tandem cannot run it, that is said here and not by the first prompt. */
static void say_what_next(const char *path, const char *name, const char *tandem)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        struct tdm_model_description d = { 0 };
        struct tdm_gguf_string template;
        struct tdm_error err;
        uint32_t n_parts;
        uint64_t bytes;
        bool chats;

        if (model_file_open(path, &gguf, &n_parts, &bytes, &err) != 0 || tdm_model_describe(gguf, &d, &err) != 0) {
                complain("Tandem cannot run %s: %s", name, err.message);
                return;
        }
        tdm_model_description_deinit(&d);
        chats = tdm_gguf_get_string(gguf, "tokenizer.chat_template", &template) == 0;
        if (term_stdout_tty)
                out_printf("Try it: %s %s -m %s%s\n", *tandem ? term_safe(tandem) : "tandem",
                           chats ? "chat" : "generate", term_safe(*tandem ? name : path),
                           chats ? "" : " \"Once upon a time\"");
}

int main(int argc, char **argv)
{
        struct pull_options options = { .folder_fd = -1 };
        struct source source;
        struct tdm_error err;
        int status = EXIT_OK, r;

        if (argc != 8) {
                fputs("tandem-pull: a part of `tandem pull`, which runs it\n", stderr);
                return EXIT_USAGE;
        }
        term_init();
        signal_init();
        options.name = argv[3][0] ? argv[3] : NULL;
        options.sha256 = argv[4][0] ? argv[4] : NULL;
        options.n_connections = (unsigned)strtoul(argv[5], NULL, 10);
        options.folder = argv[1];
        options.text_only = argv[7][0] != '\0';
        if (folder_make(argv[1], &options.folder_fd, &err) != 0)
                return complain("%s", err.message);
        r = source_find(argv[2], &source, &err);
        if (r != 0)
                return complain("%s", err.message);
        if ((options.name || options.sha256) && source.n_files > 1)
                status = args_usage_error("pull", "--name and --sha256 are for one file; this model has %zu parts",
                                          source.n_files);
        signal_set_mode(SIGNAL_ANSWER); /* the first Ctrl-C stops the download in order */
        if (status == EXIT_OK)
                status = pull_files(&source, &options);
        if (status == EXIT_OK) {
                _cleanup_(freep) char *name = strdup(options.name ? options.name : source.files[0].name);
                _cleanup_(freep) char *path = name ? folder_file(argv[1], name) : NULL;
                unsigned part, n_parts;
                size_t stem;

                if (path)
                        status = pull_projector(&source, path, name, &options);
                if (name && folder_is_part(name, &stem, &part, &n_parts))
                        name[stem] = '\0';
                if (path && status == EXIT_OK)
                        say_what_next(path, name, argv[6]);
        }
        source_free(&source);
        return out_finish() != 0 && status == EXIT_OK ? EXIT_FAILED : status;
}
