/* Which models make room for others: for a place in the fleet, for memory, for what is known of another one.
 *
 * The jobs of guests keep a model from being idle (users.c). So that nobody can use up another user's places this way,
 * the holder's need decides: where only guests have jobs on a model, and its holder needs a place, one of the guests
 * becomes the holder.
 *
 * Metadata is charged before it is read with what it may take, and afterwards with what it takes (charges.c). */
#include "daemon/models/private.h"

#include "common/log.h"

/* How long a model stays after its last use while memory is short: a client that reads an answer may ask on at once,
 * and a load makes memory short by itself. */
#define RELIEF_IDLE_NS (10 * TDM_NSEC_PER_SEC)
/* Real models take up to 60 MiB (262,144 pieces). A byte of a file cannot become more than about 30 of memory. */
#define METADATA_MAX_BYTES (UINT64_C(256) << 20)
#define METADATA_BYTES_PER_FILE_BYTE 32u
#define METADATA_MIN_BYTES (UINT64_C(1) << 20)
#define METADATA_REAL_BYTES (UINT64_C(64) << 20)

/* ---- which models make room ---- */

/* Which of two idle models goes first. */
static bool goes_before(const struct tdm_model *a, const struct tdm_model *b, const struct tdm_account *asker)
{
        bool own_a = tdm_model_payer(a) == asker, own_b = tdm_model_payer(b) == asker;

        if (own_a != own_b)
                return own_a;
        if (tdm_account_n_models(tdm_model_payer(a)) != tdm_account_n_models(tdm_model_payer(b)))
                return tdm_account_n_models(tdm_model_payer(a)) > tdm_account_n_models(tdm_model_payer(b));
        return a->use.last_ns < b->use.last_ns;
}

static struct tdm_model *find_idle(struct tdm_models *m, const struct tdm_account *asker, const struct tdm_model *keep,
                                   bool with_place)
{
        struct tdm_model *model, *first = NULL;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model == keep || !tdm_model_may_leave(model) || (with_place && !model->charges.has_place))
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

/* The new holder's jobs were admitted with this in mind. What it holds idle makes room. */
static void hand_over(struct tdm_model *model, struct tdm_account *to)
{
        static const enum tdm_resource resources[] = { TDM_RESOURCE_MODELS, TDM_RESOURCE_METADATA_BYTES };
        struct tdm_model *idle;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(resources); i++)
                while (tdm_account_available(to, resources[i]) < tdm_model_cost(model, resources[i]) &&
                       (idle = find_idle(model->models, to, model, true)) && idle->holder == to)
                        tdm_model_retire(idle);
        tdm_log_debug("model %s: user %u holds it now, who has jobs on it, and user %u no more", model->name,
                      (unsigned)to->uid, (unsigned)model->holder->uid);
        tdm_model_give_to(model, to);
}

bool tdm_models_hand_over_one(struct tdm_models *m, struct tdm_account *account, enum tdm_resource resource)
{
        struct tdm_model *model;

        if (!account)
                return false;
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                struct model_user *user, *to = NULL;

                if (!tdm_model_is_held(model) || model->holder != account || tdm_model_user_of(model, account) ||
                    tdm_model_cost(model, resource) == 0)
                        continue;
                tdm_list_for_each(user, &model->users, struct model_user, node) {
                        if (user->admitted &&
                            (!to || tdm_account_n_models(user->account) < tdm_account_n_models(to->account)))
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

        if (guest > 0 && tdm_account_n_models(holder) + guest + 1 > share) {
                holder->n_refused[TDM_RESOURCE_MODELS]++;
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "this user (uid %u%s) has %llu loaded models and jobs on %llu of others, and "
                                     "%llu is its share now; wait for its jobs on another model to end",
                                     (unsigned)holder->uid, tdm_account_label_suffix(holder),
                                     (unsigned long long)tdm_account_n_models(holder), (unsigned long long)guest,
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
                             idle->name, (unsigned)model->holder->uid,
                             (unsigned long long)tdm_account_n_models(model->holder));
                tdm_model_retire(idle);
        }
        model->charges.has_place = true;
        return 0;
}

/* ---- metadata ---- */

void tdm_models_drop_described(struct tdm_models *m)
{
        while (tdm_models_have_too_many_described(m))
                tdm_model_retire(tdm_models_oldest_described(m, NULL));
}

/* Beside what others' models cost that this user has jobs on: one of those may become its own. */
static uint64_t available_metadata(struct tdm_models *m, const struct tdm_account *account)
{
        uint64_t available = tdm_account_available(account, TDM_RESOURCE_METADATA_BYTES);
        uint64_t guest = tdm_models_guest_cost(m, account, TDM_RESOURCE_METADATA_BYTES);

        return available - TDM_MIN(available, guest);
}

int tdm_model_charge_reading(struct tdm_model *model, uint64_t *ret_max_bytes, struct tdm_error *err)
{
        uint64_t wanted = METADATA_MIN_BYTES, available;
        struct tdm_account *payer = model->charges.metadata_payer;
        struct tdm_models *m = model->models;
        struct tdm_model *other;
        int r;

        /* A sparse file can have any size. */
        wanted += TDM_MIN(model->identity.size_bytes, METADATA_MAX_BYTES) * METADATA_BYTES_PER_FILE_BYTE;
        wanted = TDM_MIN(wanted, METADATA_MAX_BYTES);
        while ((available = available_metadata(m, payer)) < wanted && (other = tdm_models_oldest_described(m, payer)))
                tdm_model_retire(other);
        /* Most files need much less than they may. */
        while (available < TDM_MIN(wanted, METADATA_REAL_BYTES) &&
               tdm_models_hand_over_one(m, payer, TDM_RESOURCE_METADATA_BYTES))
                available = available_metadata(m, payer);
        /* With less the model may still fit; reading finds out. */
        wanted = TDM_MAX(TDM_MIN(wanted, available), METADATA_MIN_BYTES);
        r = tdm_account_charge(model->account, TDM_RESOURCE_LOADS, 1, err);
        if (r != 0)
                return r;
        do
                r = tdm_account_charge(payer, TDM_RESOURCE_METADATA_BYTES, wanted, err);
        while (r == TDM_E_BUSY && (other = tdm_models_oldest_described(m, NULL)) && (tdm_model_retire(other), true));
        if (r != 0) {
                tdm_account_release(model->account, TDM_RESOURCE_LOADS, 1);
                return r;
        }
        model->charges.reads = true;
        model->charges.metadata = wanted;
        *ret_max_bytes = wanted;
        return 0;
}
