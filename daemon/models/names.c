/* What a model is called, and to whom.
 *
 * A file that a client passes has the path that this client said. Where one daemon serves several users, the path is
 * that user's own. Others who pass the same file share the model, and did not call it so. So lists call such a model to
 * each user what that user called it. Messages may reach anybody who shares it, and call it by no name. */
#include "daemon/models/private.h"

#define SAID_OF_ONE_MAX 2u /* of one user's names for a file */
#define PASSED "(passed as a file)"

static bool is_private(const struct tdm_model *model)
{
        return model->models->serves_all && !model->by_name;
}

const char *tdm_model_told_name(const struct tdm_model *model)
{
        return is_private(model) ? PASSED : model->name;
}

const char *tdm_model_told_path(const struct tdm_model *model)
{
        return is_private(model) ? PASSED : model->path;
}

const char *tdm_model_shown_error(const struct tdm_model *model)
{
        if (model->state != TDM_MODEL_FAILED)
                return "";
        /* Clients that asked for the model got the reason with their answer. */
        return is_private(model) ? "it failed; who asked for it was told why" : model->error.message;
}

/* The name that this user gave it last, unless this user is the one who asked first. */
static const struct tdm_model_said *said_last(const struct tdm_model *model, const struct tdm_account *account)
{
        const struct tdm_model_said *last = NULL;

        for (unsigned i = 0; account && i < TDM_MODEL_SAID_MAX; i++) {
                const struct tdm_model_said *said = &model->said[i];

                if (said->path && said->by == account->identity && (!last || said->at > last->at))
                        last = said;
        }
        return last;
}

static bool asked_first(const struct tdm_model *model, const struct tdm_account *account)
{
        return account && model->account && model->account->identity == account->identity;
}

const char *tdm_model_name_for(const struct tdm_model *model, const struct tdm_account *account)
{
        const struct tdm_model_said *said;

        if (model->by_name || asked_first(model, account))
                return model->name;
        said = said_last(model, account);
        return said ? said->name : NULL;
}

const char *tdm_model_path_for(const struct tdm_model *model, const struct tdm_account *account)
{
        const struct tdm_model_said *said;
        const char *path = model->path, *slash;

        if (!model->by_name && !asked_first(model, account)) {
                said = said_last(model, account);
                if (!said)
                        return NULL;
                path = said->path;
        }
        slash = is_private(model) ? strrchr(path, '/') : NULL;
        return slash ? slash + 1 : path;
}

struct tdm_model_said *tdm_model_said_by(struct tdm_model *model, const struct tdm_account *account, const char *path)
{
        for (unsigned i = 0; account && i < TDM_MODEL_SAID_MAX; i++)
                if (model->said[i].path && model->said[i].by == account->identity &&
                    strcmp(model->said[i].path, path) == 0)
                        return &model->said[i];
        return NULL;
}

/* The user's own place, where one user has all that are allowed; else a free one, or the oldest. So nobody takes the
 * places of all others. */
static struct tdm_model_said *place_for_said(struct tdm_model *model, uint64_t by)
{
        struct tdm_model_said *own = NULL, *other = &model->said[0];
        unsigned n_own = 0;

        for (unsigned i = 0; i < TDM_MODEL_SAID_MAX; i++) {
                struct tdm_model_said *said = &model->said[i];

                if (said->path && said->by == by) {
                        n_own++;
                        own = own && own->at < said->at ? own : said;
                }
                other = said->at < other->at ? said : other;
        }
        return n_own >= SAID_OF_ONE_MAX ? own : other;
}

static void free_said(struct tdm_model_said *said)
{
        free(said->path);
        free(said->name);
        *said = (struct tdm_model_said){ 0 };
}

void tdm_model_forget_said(struct tdm_model *model)
{
        for (unsigned i = 0; i < TDM_MODEL_SAID_MAX; i++)
                free_said(&model->said[i]);
}

void tdm_model_remember_said(struct tdm_model *model, const struct tdm_account *account, const char *path)
{
        struct tdm_model_said *said;
        char *copy, *name;

        if (!account)
                return;
        said = tdm_model_said_by(model, account, path);
        if (!said) {
                copy = strdup(path);
                name = tdm_model_name_of_path(path);
                if (!copy || !name) {
                        free(copy);
                        free(name);
                        return;
                }
                said = place_for_said(model, account->identity);
                free_said(said);
                *said = (struct tdm_model_said){ .path = copy, .name = name, .by = account->identity };
        }
        said->at = ++model->models->n_said;
}
