/* tandem rm: removes a model from a model folder. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/incoming.h"
#include "common/suggest.h"

#include <fcntl.h>
#include <sys/stat.h>

struct rm_options {
        const char *to;
};

extern const struct command command_rm;

struct removing {
        const char *name, *folder;
        int folder_fd;
        bool is_shared;    /* its projector: another model has the same */
        bool is_file;      /* a single file has this name: sets of parts of the same name are other models */
        unsigned n_parts;  /* of the first set of this name; 0: there is none */
        unsigned n_others; /* files of sets with another number of parts */
        struct tdm_suggestion near;
        unsigned n_removed, n_leftovers, n_failed;
        char last[4096]; /* that was removed */
};

/* Another model may have the same name. Where the daemon tells no folder, the file was handed to it. */
static bool is_the_removed(const struct removing *r, const struct tandem_model *m)
{
        return m && (m->path[0] != '/' || strcmp(m->path, r->last) == 0);
}

static bool is_set_of(const char *asked, const char *name, unsigned *ret_n)
{
        size_t stem;
        unsigned part;

        return folder_is_part(name, &stem, &part, ret_n) && strlen(asked) == stem && strncmp(asked, name, stem) == 0;
}

/* Counts the files that the name may mean, before any is removed. */
static bool count_meant(const char *name, void *userdata)
{
        struct removing *r = userdata;
        _cleanup_(freep) char *path = folder_file(".", name);
        struct stat st;
        unsigned n;

        if (!path)
                return false;
        if (strcmp(name, r->name) == 0 && fstatat(r->folder_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
                r->is_file = true; /* more than what is left of one */
        if (is_set_of(r->name, name, &n) && r->n_parts == 0)
                r->n_parts = n;
        else if (is_set_of(r->name, name, &n) && n != r->n_parts)
                r->n_others++;
        return true;
}

/* The file itself, and the other parts of a model whose name is that of a part or of all of them. */
static bool name_means(const struct removing *r, const char *name)
{
        const char *asked = r->name;
        size_t stem, asked_stem;
        unsigned part, n, asked_n;

        if (strcmp(asked, name) == 0)
                return true;
        if (!folder_is_part(name, &stem, &part, &n))
                return false;
        if (folder_is_part(asked, &asked_stem, &part, &asked_n))
                return asked_n == n && asked_stem == stem && strncmp(asked, name, stem) == 0;
        return !r->is_file && is_set_of(asked, name, &n);
}

/* Removes what `tandem add` or `pull` left behind under the name. */
static void remove_leftovers(struct removing *r, const char *name)
{
        struct tdm_error err;
        uint64_t bytes;
        int k = incoming_forget(r->folder_fd, r->folder, name, &bytes, &err);

        if (k == -ENOENT)
                return;
        if (k != 0) {
                complain("%s", err.message);
                r->n_failed++;
                return;
        }
        out_printf("%s/%s.gguf.part: what was left of it is removed, %s\n", term_safe(r->folder), term_safe(name),
                   human_bytes(bytes));
        r->n_leftovers++;
}

static void remove_file(struct removing *r, const char *name)
{
        _cleanup_(freep) char *path = folder_file(r->folder, name);
        const char *base = path ? path + strlen(r->folder) + 1 : NULL;
        struct stat st;

        remove_leftovers(r, name);
        if (!path || fstatat(r->folder_fd, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return; /* a leftover alone, or removed when its name came first */
        if (unlinkat(r->folder_fd, base, 0) < 0) {
                complain("cannot remove %s: %s", path, strerror(errno));
                r->n_failed++;
                return;
        }
        if (S_ISLNK(st.st_mode))
                out_printf("%s: the link is removed, its file stays\n", term_safe(path));
        else
                out_printf("%s: removed, %s\n", term_safe(path), human_bytes((uint64_t)st.st_size));
        if (folder_is_projector(name) && !folder_is_projector(r->name))
                return; /* its model is what was removed */
        r->n_removed++;
        snprintf(r->last, sizeof(r->last), "%s", path);
}

static bool remove_if_meant(const char *name, void *userdata)
{
        struct removing *r = userdata;

        if (!folder_is_projector(name) || folder_is_projector(r->name))
                tdm_suggest(&r->near, name);
        if (name_means(r, name))
                remove_file(r, name);
        return true;
}

/* Whether another model has the same projector: a file and models in parts may be called alike. */
static bool note_shared(const char *name, void *userdata)
{
        struct removing *r = userdata;
        _cleanup_(freep) char *mine = folder_projector_name(r->name), *its = folder_projector_name(name);

        r->is_shared = r->is_shared || !mine || !its || strcmp(mine, its) == 0;
        return !r->is_shared;
}

/* A model and its projector are one. It goes behind the model, without which nothing finds it. */
static void remove_projector(struct removing *r)
{
        _cleanup_(freep) char *name = folder_projector_name(r->name);

        if (!name || r->n_removed + r->n_leftovers == 0 || r->n_failed > 0)
                return;
        folder_each_name(r->folder_fd, note_shared, r);
        if (!r->is_shared)
                remove_file(r, name);
}

/* The daemon is asked only for what else to say of the name; where none answers, nothing is said. */
static struct tandem_model_list *models_of_daemon(struct cli *cli)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_model_list *list = NULL;
        struct tandem_error err;

        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK)
                tandem = NULL;
        else if (tandem_list_models(tandem, &list, &err) != TANDEM_OK)
                list = NULL;
        return list;
}

static const struct tandem_model *listed_model(const struct tandem_model_list *list, const char *name)
{
        for (size_t i = 0; list && i < list->n_models; i++)
                if (strcmp(list->models[i]->name, name) == 0)
                        return list->models[i];
        return NULL;
}

static int complain_none(const char *folder, const char *name, const struct tandem_model *elsewhere,
                         const struct tdm_suggestion *near)
{
        const char *meant = tdm_suggest_best(near);

        if (elsewhere && strchr(elsewhere->path, '/'))
                return complain("there is no model %s in %s; the daemon has it from %s, and rm touches only your own "
                                "folder, or that of --to",
                                name, folder, elsewhere->path);
        if (meant)
                return complain("there is no model %s in %s; did you mean %s?", name, folder, meant);
        return complain("there is no model %s in %s (--to names another folder)", name, folder);
}

static int run_rm(struct cli *cli, int argc, char **argv)
{
        struct rm_options options = { 0 };
        struct removing removing = { 0 };
        _cleanup_(freep) char *folder = NULL, *bare = NULL;
        _cleanup_(closep) int folder_fd = -1;
        struct tandem_model_list *list;
        const struct tandem_model *m;
        const char *name = NULL;
        struct tdm_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_rm, argc, argv, &options, &name, 1, &n, &status))
                return status;
        if (n == 0)
                return args_usage_error(argv[0], "NAME is missing");
        if (strchr(name, '/'))
                return args_usage_error(argv[0], "'%.200s' is a path: rm takes a model's name", name);
        bare = folder_name_of(name);
        if (!bare || (options.to ? asprintf(&folder, "%s", options.to) < 0 : 0))
                return complain("no memory");
        if (!folder && folder_of_user(&folder, &err) != 0)
                return complain("%s", err.message);
        folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        removing.name = bare;
        removing.folder = folder;
        removing.folder_fd = folder_fd;
        removing.near = tdm_suggest_for(cli_plain_name(bare));
        folder_each_name(folder_fd, count_meant, &removing);
        if (!removing.is_file && removing.n_others > 0)
                return complain("%s are several models in %s, of %u parts and of another number; name one by a part of "
                                "it, like %s-%05u-of-%05u",
                                bare, folder, removing.n_parts, bare, 1u, removing.n_parts);
        folder_each_name(folder_fd, remove_if_meant, &removing);
        remove_projector(&removing);
        list = models_of_daemon(cli);
        m = listed_model(list, bare);
        status = EXIT_OK;
        if (removing.n_removed + removing.n_leftovers + removing.n_failed == 0)
                status = complain_none(folder, bare, m, &removing.near);
        else if (removing.n_removed > 0 && is_the_removed(&removing, m) && strcmp(m->state, "loaded") == 0)
                out_printf("The daemon still has it in memory: `tandem unload %s` gives that back.\n", term_safe(bare));
        tandem_model_list_free(list);
        if (status != EXIT_OK)
                return status;
        return out_finish() != 0 || removing.n_failed > 0 ? EXIT_FAILED : EXIT_OK;
}

static const struct arg args[] = {
        {
                .name = "to",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct rm_options, to),
                .value = "FOLDER",
                .brief = "the model folder",
                .more = "otherwise your own; " SYSTEM_MODEL_FOLDER " is that of the system service",
                .offer = OFFER_FILES,
        },
};

const struct command command_rm = {
        .name = "rm",
        .summary = "remove a model",
        .usage = "[--to FOLDER] NAME",
        .about = "Removes a model's file, or all parts of it, from the model folder. Where a single file and a model "
                 "in parts have the same name, it is the file. The projector beside it, with which it sees "
                 "pictures, goes with it. Of a model that was added as a link, the link is "
                 "removed. What a pull or a copy that was broken off has left of the name is removed, too. A daemon "
                 "that has it loaded goes on with it until it is unloaded.",
        COMMAND_ARGS(args),
        .offer = OFFER_MODELS,
        .run = run_rm,
};
