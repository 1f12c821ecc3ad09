/* Models of the caller's own folder. A daemon that serves everybody does not look into a home, nor may it: so a name
 * that is found there goes to it as an open file. Here names and files become what the library is asked for. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/folder.h"
#include "common/suggest.h"

/* FOLDER/NAME.gguf of the caller's own; NULL: there is none. */
static char *own_file(const char *name, struct tdm_suggestion *near)
{
        _cleanup_(freep) char *folder = NULL;
        struct tdm_error err;

        return folder_of_user(&folder, &err) == 0 ? folder_find(folder, name, near) : NULL;
}

static bool is_plain_name(const char *name)
{
        size_t n = name ? strlen(name) : 0;

        return n > 0 && !strchr(name, '/') && !(n > 5 && strcmp(name + n - 5, ".gguf") == 0 && access(name, F_OK) == 0);
}

static bool daemon_knows(struct tandem *tandem, const char *name)
{
        struct tandem_error err;
        uint32_t *ids;
        size_t n;

        if (tandem_tokenize(tandem, name, "", 0, 0, &ids, &n, &err) != TANDEM_OK)
                return err.code != TANDEM_E_NO_MODEL;
        tandem_free(ids);
        return true;
}

/* Whether the daemon looks into the folder itself. What it lists as available it found there. What is loaded from
 * there may have been handed over; then its name is another file's where the daemon lists one. */
static bool daemon_finds(struct tandem *tandem, const char *name, const char *path)
{
        struct tandem_model_list *list;
        struct tandem_error err;
        const char *state = NULL;
        bool found, other = false;

        if (tandem_list_models(tandem, &list, &err) != TANDEM_OK)
                return true; /* the next request says what is wrong */
        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];

                if (strcmp(m->path, path) == 0)
                        state = m->state;
                else if (strcmp(m->name, name) == 0 && m->path[0] == '/')
                        other = true;
        }
        found = state && !other && (strcmp(state, "available") == 0 || daemon_knows(tandem, name));
        tandem_model_list_free(list);
        return found;
}

/* The file in the caller's own folder, where the daemon does not find it by this name. */
static char *own_path(struct tandem *tandem, const char *name)
{
        struct tdm_suggestion near = tdm_suggest_for(name);
        _cleanup_(freep) char *path = own_file(name, &near);

        return path && !daemon_finds(tandem, name, path) ? steal_ptr(&path) : NULL;
}

const char *cli_plain_name(const char *name)
{
        static const char tag[] = ":latest";
        static char kept[512];
        size_t n = name ? strlen(name) : 0;

        if (n < sizeof(tag) || n >= sizeof(kept) || strchr(name, '/') || strcmp(name + n - strlen(tag), tag) != 0)
                return name;
        memcpy(kept, name, n - strlen(tag));
        kept[n - strlen(tag)] = '\0';
        return kept;
}

const char *cli_model(struct tandem *tandem, const char *said)
{
        static char kept[4352];
        const char *name = cli_plain_name(said);
        _cleanup_(freep) char *path = is_plain_name(name) ? own_path(tandem, name) : NULL;

        if (!path || strlen(path) >= sizeof(kept))
                return name;
        memcpy(kept, path, strlen(path) + 1);
        return kept;
}

int cli_take_draft(struct tandem *tandem, struct tandem_generate_options *options, struct tandem_error *err)
{
        static char kept[4096];
        _cleanup_(freep) char *path = NULL;
        uint32_t *ids;
        size_t n;
        int code;

        if (!options->draft)
                return TANDEM_OK;
        if (is_plain_name(options->draft))
                path = own_path(tandem, options->draft);
        else if (!(path = realpath(options->draft, NULL)))
                path = strdup(options->draft); /* to be told why it does not open */
        if (!path || strlen(path) >= sizeof(kept))
                return TANDEM_OK; /* the daemon says what is wrong with it */
        code = tandem_tokenize(tandem, path, "", 0, 0, &ids, &n, err);
        if (code != TANDEM_OK)
                return code;
        tandem_free(ids);
        memcpy(kept, path, strlen(path) + 1);
        options->draft = kept;
        return TANDEM_OK;
}

char *cli_listed_file(struct cli *cli, const char *name, bool *ret_answered)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_model_list *list = NULL;
        struct tandem_error err;
        char *path = NULL;

        *ret_answered = tandem_connect(&tandem, cli->socket, &err) == TANDEM_OK &&
                        tandem_list_models(tandem, &list, &err) == TANDEM_OK;
        if (!*ret_answered)
                return NULL;
        for (size_t i = 0; i < list->n_models && !path; i++) {
                const struct tandem_model *m = list->models[i];

                if (strcmp(m->name, name) == 0 && m->path[0] == '/' && access(m->path, R_OK) == 0)
                        path = strdup(m->path);
        }
        tandem_model_list_free(list);
        return path;
}

int complain_model(const struct tandem_error *err, const char *name)
{
        return complain_model_with(err, name, "`tandem models` lists what there is; -m ./FILE.gguf names a file");
}

int complain_model_with(const struct tandem_error *err, const char *name, const char *hint)
{
        struct tdm_suggestion near = tdm_suggest_for(name ? name : "");
        _cleanup_(freep) char *here = NULL;
        const char *meant;

        if (err->code == TANDEM_E_NO_MODEL && is_plain_name(name) && !strstr(err->message, "did you mean") &&
            strncmp(err->message, "draft: ", 7) != 0) { /* which is another name */
                here = folder_file(".", name);
                if (here && access(here, R_OK) == 0)
                        return complain("%s: no model is named %s; did you mean the file %s?", err->name, name, here);
                free(own_file(name, &near));
                meant = tdm_suggest_best(&near);
                if (meant)
                        return complain("%s: no model is named %s; did you mean %s?", err->name, name, meant);
        }
        if (strstr(err->message, "no model is named ") && !strstr(err->message, "did you mean"))
                return complain("%s: %s (%s)", err->name, name_users(err->message), hint);
        return complain_error(err);
}

/* ---- `tandem models` ---- */

struct merging {
        struct model_listing *to;
        const struct tandem_model_list *from;
};

static bool add_own(const char *path, uint64_t size_bytes, void *userdata)
{
        struct merging *m = userdata;
        _cleanup_(freep) char *name = folder_name_of(path);
        struct tandem_model *own;
        size_t stem, at = 0;
        unsigned part, n_parts;

        if (!name)
                return false;
        if (folder_is_part(name, &stem, &part, &n_parts) && n_parts > 1) {
                if (part > 1)
                        return true;
                name[stem] = '\0';
        }
        for (size_t i = 0; i < m->from->n_models; i++)
                if (strcmp(m->from->models[i]->path, path) == 0)
                        return true;
        if (m->to->n_own == MODEL_LISTING_MAX)
                return false;
        own = &m->to->own[m->to->n_own++];
        *own = (struct tandem_model){ .state = "available",
                                      .error = "",
                                      .architecture = "",
                                      .quantisation = "",
                                      .file_bytes = size_bytes,
                                      .placement = "",
                                      .precision = "",
                                      .chat = "",
                                      .kv_type = "",
                                      .capabilities = "" };
        /* The daemon tells only the name of a file that was handed over: it is this one. */
        while (at < m->from->n_models && strcmp(m->from->models[at]->path, strrchr(path, '/') + 1) != 0)
                at++;
        if (at < m->from->n_models)
                *own = *m->from->models[at];
        own->name = steal_ptr(&name);
        own->path = strdup(path);
        if (!own->path)
                return false;
        m->to->all[at < m->from->n_models ? at : m->to->list.n_models++] = own;
        return true;
}

bool model_listing_make(struct model_listing *to, const struct tandem_model_list *from)
{
        struct merging m = { .to = to, .from = from };
        _cleanup_(freep) char *folder = NULL;
        struct tdm_error err;

        *to = (struct model_listing){ .own = calloc(MODEL_LISTING_MAX, sizeof(*to->own)) };
        to->all = calloc(from->n_models + MODEL_LISTING_MAX, sizeof(*to->all));
        if (!to->own || !to->all) {
                model_listing_free(to);
                return false;
        }
        for (size_t i = 0; i < from->n_models; i++)
                to->all[to->list.n_models++] = from->models[i];
        if (folder_of_user(&folder, &err) == 0)
                folder_each(folder, add_own, &m);
        to->list.models = to->all;
        return true;
}

void model_listing_free(struct model_listing *listing)
{
        for (size_t i = 0; i < listing->n_own; i++) {
                free((char *)(uintptr_t)listing->own[i].name);
                free((char *)(uintptr_t)listing->own[i].path);
        }
        free(listing->own);
        free(listing->all);
        *listing = (struct model_listing){ 0 };
}
