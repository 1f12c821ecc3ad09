/* Who uses a model, who holds it, and what it costs that user.
 *
 * The user who wants a model first holds it: it pays the model's place, and what is known of the model. Others may have
 * jobs on it too, as its guests. Being a guest is counted like holding: while a user is a guest, it has jobs on no more
 * models than its share of places. What root holds, and the default model, is there for everybody and counts for nobody
 * else. places.c has what happens when places run out. */
#include "daemon/models/private.h"

bool tdm_model_is_idle(const struct tdm_model *model)
{
        /* Steps without a job are those of drafts. */
        return model->use.n_jobs == 0 && !model->load;
}

void tdm_model_give_place(struct tdm_model *model)
{
        if (model->charges.has_place)
                tdm_account_release(model->holder, TDM_RESOURCE_MODELS, 1);
        model->charges.has_place = false;
}

const struct tdm_account *tdm_model_payer(const struct tdm_model *model)
{
        return model->charges.has_place ? model->holder : model->account;
}

uint64_t tdm_account_n_models(const struct tdm_account *account)
{
        return account ? account->used[TDM_RESOURCE_MODELS] : 0;
}

struct model_user *tdm_model_user_of(const struct tdm_model *model, const struct tdm_account *account)
{
        struct model_user *user;

        tdm_list_for_each(user, &model->users, struct model_user, node) {
                if (user->account == account)
                        return user;
        }
        return NULL;
}

bool tdm_model_is_held(const struct tdm_model *model)
{
        return model->charges.has_place && model->holder && model->holder->identity != 0 &&
               !tdm_model_is_default(model);
}

static bool is_for_guests(const struct tdm_model *model, const struct tdm_account *account)
{
        return account && account->identity != 0 && tdm_model_is_held(model) && model->holder != account;
}

bool tdm_model_may_leave(const struct tdm_model *model)
{
        return tdm_model_is_idle(model) && (model->state == TDM_MODEL_READY || model->state == TDM_MODEL_DESCRIBED);
}

uint64_t tdm_model_cost(const struct tdm_model *model, enum tdm_resource resource)
{
        uint64_t bytes = 0;

        if (resource == TDM_RESOURCE_MODELS)
                return 1;
        if (model->charges.metadata_payer == model->holder && !model->charges.reads)
                bytes += model->charges.metadata;
        if (model->charges.vocabulary_payer == model->holder)
                bytes += model->charges.vocabulary;
        return bytes;
}

uint64_t tdm_models_guest_cost(struct tdm_models *m, const struct tdm_account *account, enum tdm_resource resource)
{
        struct tdm_model *model;
        uint64_t cost = 0;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (is_for_guests(model, account) && tdm_model_user_of(model, account))
                        cost += tdm_model_cost(model, resource);
        }
        return cost;
}

/* The cost of the account's other models: those that it has jobs on, and those that it holds and that are on their way
 * into the fleet. Models that it holds for guests alone can be handed over. */
static uint64_t used_beside(const struct tdm_model *except, const struct tdm_account *account,
                            enum tdm_resource resource)
{
        const struct tdm_model *model;
        uint64_t cost = 0;

        tdm_list_for_each(model, &except->models->list, struct tdm_model, node) {
                bool comes = model->holder == account && model->use.n_jobs == 0 && !tdm_model_may_leave(model);

                if (model != except && tdm_model_is_held(model) && (tdm_model_user_of(model, account) || comes))
                        cost += tdm_model_cost(model, resource);
        }
        return cost;
}

static int refuse_place(struct tdm_account *account, enum tdm_resource resource, uint64_t used, uint64_t cost,
                        uint64_t share, struct tdm_error *err)
{
        account->n_refused[resource]++;
        if (resource == TDM_RESOURCE_MODELS)
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "this user (uid %u%s) has jobs on %llu models, and may have them on %llu now; "
                                     "wait for those on one model to end",
                                     (unsigned)account->uid, tdm_account_label_suffix(account),
                                     (unsigned long long)used, (unsigned long long)share);
        return tdm_error_set(err, TDM_E_QUOTA,
                             "the models that this user (uid %u%s) would have jobs on need %llu %s, and its share is "
                             "%llu now; wait for its jobs on another model to end",
                             (unsigned)account->uid, tdm_account_label_suffix(account),
                             (unsigned long long)(used + cost), tdm_resource_name(resource), (unsigned long long)share);
}

int tdm_model_check_user(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        static const enum tdm_resource resources[] = { TDM_RESOURCE_MODELS, TDM_RESOURCE_METADATA_BYTES };
        struct model_user *user = tdm_model_user_of(model, account);
        bool guest = is_for_guests(model, account), own = tdm_model_is_held(model) && model->holder == account;

        if ((!guest && !own) || (user && user->admitted))
                return 0;
        /* Who is nobody's guest has its own models as it likes: they are charged. */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(resources); i++) {
                enum tdm_resource resource = resources[i];
                uint64_t used = used_beside(model, account, resource), cost = tdm_model_cost(model, resource);
                uint64_t share = tdm_account_share(account, resource);

                if (!guest && tdm_models_guest_cost(model->models, account, resource) == 0)
                        continue;
                if (used > 0 && used + cost > share) /* one model everybody may use */
                        return refuse_place(account, resource, used, cost, share, err);
        }
        if (user)
                user->admitted = true;
        return 0;
}

int tdm_model_add_user(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        struct model_user *user = tdm_model_user_of(model, account);
        int r;

        if (!user) {
                r = tdm_model_check_user(model, account, err);
                if (r != 0)
                        return r;
                user = calloc(1, sizeof(*user));
                if (!user)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                user->account = account ? tdm_account_ref(account) : NULL;
                user->admitted = account && tdm_model_is_held(model); /* checked just now */
                tdm_list_append(&model->users, &user->node);
        }
        user->n_jobs++;
        return 0;
}

void tdm_model_remove_user(struct tdm_model *model, const struct tdm_account *account)
{
        struct model_user *user = tdm_model_user_of(model, account);

        if (!user || --user->n_jobs > 0)
                return;
        tdm_list_remove(&user->node);
        tdm_account_unref(user->account);
        free(user);
}

/* ---- whose it is ---- */

static void pay(struct tdm_account **payer, struct tdm_account *to, enum tdm_resource resource, uint64_t n)
{
        tdm_account_move(*payer, to, resource, n);
        tdm_account_unref(*payer);
        *payer = tdm_account_ref(to);
}

void tdm_model_give_to(struct tdm_model *model, struct tdm_account *to)
{
        const struct tdm_account *from = model->holder;

        if (model->charges.metadata_payer == from)
                pay(&model->charges.metadata_payer, to, TDM_RESOURCE_METADATA_BYTES, model->charges.metadata);
        if (model->charges.vocabulary_payer == from)
                pay(&model->charges.vocabulary_payer, to, TDM_RESOURCE_METADATA_BYTES, model->charges.vocabulary);
        pay(&model->holder, to, TDM_RESOURCE_MODELS, 1);
}

void tdm_model_give_to_root(struct tdm_model *model)
{
        struct tdm_account *root = model->models->root;

        if (model->charges.has_place && model->holder && root && model->holder != root)
                tdm_model_give_to(model, root);
}
