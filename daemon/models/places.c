/* Places in the fleet: which user's a model has, and which models make room for others.
 *
 * The user who wants a model first holds it: it pays the model's place, and what is known of the model. Others may have
 * jobs on it too, as its guests. Their jobs keep it from being idle. So that nobody can use up another user's places
 * this way, the holder's need decides: where only guests have jobs on a model, and its holder needs a place, one of the
 * guests becomes the holder. Being a guest is therefore counted like holding: while a user is a guest, it has jobs on
 * no more models than its share of places. What root holds, and the default model, is there for everybody and counts
 * for nobody else. */
#include "daemon/models/private.h"

#include "common/log.h"

/* How long a model stays after its last use while memory is short: a client that reads an answer may ask on at once,
 * and a load makes memory short by itself. */
#define RELIEF_IDLE_NS (10 * TDM_NSEC_PER_SEC)

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

static const struct tdm_account *payer(const struct tdm_model *model)
{
        return model->charges.has_place ? model->holder : model->account;
}

static uint64_t n_held(const struct tdm_account *account)
{
        return account ? account->used[TDM_RESOURCE_MODELS] : 0;
}

/* ---- who uses a model ---- */

struct model_user {
        struct tdm_list node;
        struct tdm_account *account; /* NULL: nobody's jobs */
        unsigned n_jobs;
        bool admitted; /* more jobs on the same model need no more */
};

static struct model_user *user_of(const struct tdm_model *model, const struct tdm_account *account)
{
        struct model_user *user;

        tdm_list_for_each(user, &model->users, struct model_user, node) {
                if (user->account == account)
                        return user;
        }
        return NULL;
}

/* A user's, and not everybody's. */
static bool is_held(const struct tdm_model *model)
{
        return model->charges.has_place && model->holder && model->holder->identity != 0 &&
               !tdm_model_is_default(model);
}

static bool is_for_guests(const struct tdm_model *model, const struct tdm_account *account)
{
        return account && account->identity != 0 && is_held(model) && model->holder != account;
}

static bool may_leave(const struct tdm_model *model)
{
        return tdm_model_is_idle(model) && (model->state == TDM_MODEL_READY || model->state == TDM_MODEL_DESCRIBED);
}

/* What its holder would give up with it. While it is read, what it may take is charged, and it takes much less. */
static uint64_t cost_of(const struct tdm_model *model, enum tdm_resource resource)
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
                if (is_for_guests(model, account) && user_of(model, account))
                        cost += cost_of(model, resource);
        }
        return cost;
}

/* What the other models cost that it has jobs on, or that it holds and that are on their way into the fleet. Those that
 * it holds for guests alone can be handed over. */
static uint64_t used_beside(const struct tdm_model *except, const struct tdm_account *account,
                            enum tdm_resource resource)
{
        const struct tdm_model *model;
        uint64_t cost = 0;

        tdm_list_for_each(model, &except->models->list, struct tdm_model, node) {
                bool comes = model->holder == account && model->use.n_jobs == 0 && !may_leave(model);

                if (model != except && is_held(model) && (user_of(model, account) || comes))
                        cost += cost_of(model, resource);
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
        struct model_user *user = user_of(model, account);
        bool guest = is_for_guests(model, account), own = is_held(model) && model->holder == account;

        if ((!guest && !own) || (user && user->admitted))
                return 0;
        /* Who is nobody's guest has its own models as it likes: they are charged. */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(resources); i++) {
                enum tdm_resource resource = resources[i];
                uint64_t used = used_beside(model, account, resource), cost = cost_of(model, resource);
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
        struct model_user *user = user_of(model, account);
        int r;

        if (!user) {
                r = tdm_model_check_user(model, account, err);
                if (r != 0)
                        return r;
                user = calloc(1, sizeof(*user));
                if (!user)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                user->account = account ? tdm_account_ref(account) : NULL;
                user->admitted = account && is_held(model); /* checked just now */
                tdm_list_append(&model->users, &user->node);
        }
        user->n_jobs++;
        return 0;
}

void tdm_model_remove_user(struct tdm_model *model, const struct tdm_account *account)
{
        struct model_user *user = user_of(model, account);

        if (!user || --user->n_jobs > 0)
                return;
        tdm_list_remove(&user->node);
        tdm_account_unref(user->account);
        free(user);
}

/* ---- which models make room ---- */

/* Which of two idle models goes first. */
static bool goes_before(const struct tdm_model *a, const struct tdm_model *b, const struct tdm_account *asker)
{
        bool own_a = payer(a) == asker, own_b = payer(b) == asker;

        if (own_a != own_b)
                return own_a;
        if (n_held(payer(a)) != n_held(payer(b)))
                return n_held(payer(a)) > n_held(payer(b));
        return a->use.last_ns < b->use.last_ns;
}

static struct tdm_model *find_idle(struct tdm_models *m, const struct tdm_account *asker, const struct tdm_model *keep,
                                   bool with_place)
{
        struct tdm_model *model, *first = NULL;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model == keep || !may_leave(model) || (with_place && !model->charges.has_place))
                        continue;
                if (!first || goes_before(model, first, asker))
                        first = model;
        }
        return first;
}

bool tdm_models_evict_one(struct tdm_models *m, const struct tdm_account *account, const struct tdm_model *keep)
{
        struct tdm_model *model = find_idle(m, account, keep, false);

        if (!model)
                return false;
        tdm_log_info("model %s unloaded: idle, and its memory is needed", model->name);
        tdm_model_retire(model);
        return true;
}

bool tdm_models_relieve(struct tdm_models *m)
{
        struct tdm_model *model, *first = NULL;
        uint64_t now = tdm_now_ns();

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model->state != TDM_MODEL_READY || !tdm_model_is_idle(model) ||
                    now - model->use.last_ns < RELIEF_IDLE_NS)
                        continue;
                if (!first || model->use.last_ns < first->use.last_ns)
                        first = model;
        }
        if (!first)
                return false;
        tdm_log_info("model %s unloaded: idle, and the machine is short of memory", first->name);
        tdm_model_retire(first);
        return true;
}

/* ---- whose place it is ---- */

static void pay(struct tdm_account **payer, struct tdm_account *to, enum tdm_resource resource, uint64_t n)
{
        tdm_account_move(*payer, to, resource, n);
        tdm_account_unref(*payer);
        *payer = tdm_account_ref(to);
}

static void give_to(struct tdm_model *model, struct tdm_account *to)
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
                give_to(model, root);
}

/* The new holder's jobs were admitted with this in mind. What it holds idle makes room. */
static void hand_over(struct tdm_model *model, struct tdm_account *to)
{
        static const enum tdm_resource resources[] = { TDM_RESOURCE_MODELS, TDM_RESOURCE_METADATA_BYTES };
        struct tdm_model *idle;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(resources); i++)
                while (tdm_account_available(to, resources[i]) < cost_of(model, resources[i]) &&
                       (idle = find_idle(model->models, to, model, true)) && idle->holder == to)
                        tdm_model_retire(idle);
        tdm_log_debug("model %s: user %u holds it now, who has jobs on it, and user %u no more", model->name,
                      (unsigned)to->uid, (unsigned)model->holder->uid);
        give_to(model, to);
}

bool tdm_models_hand_over_one(struct tdm_models *m, struct tdm_account *account, enum tdm_resource resource)
{
        struct tdm_model *model;

        if (!account)
                return false;
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                struct model_user *user, *to = NULL;

                if (!is_held(model) || model->holder != account || user_of(model, account) ||
                    cost_of(model, resource) == 0)
                        continue;
                tdm_list_for_each(user, &model->users, struct model_user, node) {
                        if (user->admitted && (!to || n_held(user->account) < n_held(to->account)))
                                to = user;
                }
                if (!to)
                        continue;
                hand_over(model, to->account);
                return true;
        }
        return false;
}

/* A user may hold as many as its share is, less those that it is a guest of. */
static int charge_place(struct tdm_model *model, struct tdm_error *err)
{
        struct tdm_account *holder = model->holder;
        uint64_t guest = tdm_models_guest_cost(model->models, holder, TDM_RESOURCE_MODELS);
        uint64_t share = tdm_account_share(holder, TDM_RESOURCE_MODELS);

        if (guest > 0 && n_held(holder) + guest + 1 > share) {
                holder->n_refused[TDM_RESOURCE_MODELS]++;
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "this user (uid %u%s) has %llu loaded models and jobs on %llu of others, and "
                                     "%llu is its share now; wait for its jobs on another model to end",
                                     (unsigned)holder->uid, tdm_account_label_suffix(holder),
                                     (unsigned long long)n_held(holder), (unsigned long long)guest,
                                     (unsigned long long)share);
        }
        return tdm_account_charge(holder, TDM_RESOURCE_MODELS, 1, err);
}

/* MODELS of the model's holder. Its own idle models make room, and those that only others use; others' idle ones only
 * when it has none at all, or is root. */
int tdm_model_take_place(struct tdm_model *model, struct tdm_error *err)
{
        int r;

        while ((r = charge_place(model, err)) != 0) {
                struct tdm_model *idle = find_idle(model->models, model->holder, model, true);
                bool own = idle && idle->holder == model->holder;

                if (model->only_draft)
                        return r;
                if (!own && tdm_models_hand_over_one(model->models, model->holder, TDM_RESOURCE_MODELS))
                        continue;
                if (!idle || (!own && r != TDM_E_BUSY && model->holder->identity != 0))
                        return r;
                tdm_log_info("model %s unloaded: idle, and user %u, who holds %llu models, asks for another",
                             idle->name, (unsigned)model->holder->uid, (unsigned long long)n_held(model->holder));
                tdm_model_retire(idle);
        }
        model->charges.has_place = true;
        return 0;
}
