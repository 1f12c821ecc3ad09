/* Places in the fleet: which user's a model has, and which models make room for others. */
#include "daemon/models/private.h"

#include "common/log.h"

/* When memory is short, a model stays for so long after its last use: whoever reads an answer may ask on at once, and a
 * load makes memory short by itself. */
#define RELIEF_IDLE_NS (10 * TDM_NSEC_PER_SEC)

bool tdm_model_is_idle(const struct tdm_model *model)
{
        /* Steps without a job are those of drafts. */
        return model->n_jobs == 0 && !model->load;
}

void tdm_model_give_place(struct tdm_model *model)
{
        if (model->has_place)
                tdm_account_release(model->holder, TDM_RESOURCE_MODELS, 1);
        model->has_place = false;
}

static const struct tdm_account *payer(const struct tdm_model *model)
{
        return model->has_place ? model->holder : model->account;
}

static uint64_t n_held(const struct tdm_account *account)
{
        return account ? account->used[TDM_RESOURCE_MODELS] : 0;
}

/* Which of two idle models goes first. */
static bool goes_before(const struct tdm_model *a, const struct tdm_model *b, const struct tdm_account *asker)
{
        bool own_a = payer(a) == asker, own_b = payer(b) == asker;

        if (own_a != own_b)
                return own_a;
        if (n_held(payer(a)) != n_held(payer(b)))
                return n_held(payer(a)) > n_held(payer(b));
        return a->last_used_ns < b->last_used_ns;
}

static struct tdm_model *find_idle(struct tdm_models *m, const struct tdm_account *asker, const struct tdm_model *keep,
                                   bool with_place)
{
        struct tdm_model *model, *first = NULL;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (model == keep || !tdm_model_is_idle(model) || (with_place && !model->has_place))
                        continue;
                if (model->state != TDM_MODEL_READY && model->state != TDM_MODEL_DESCRIBED)
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
                    now - model->last_used_ns < RELIEF_IDLE_NS)
                        continue;
                if (!first || model->last_used_ns < first->last_used_ns)
                        first = model;
        }
        if (!first)
                return false;
        tdm_log_info("model %s unloaded: idle, and the machine is short of memory", first->name);
        tdm_model_retire(first);
        return true;
}

/* MODELS of the model's holder. Its own idle models make room; others' only when it has none at all, or is root. */
int tdm_model_take_place(struct tdm_model *model, struct tdm_error *err)
{
        int r;

        while ((r = tdm_account_charge(model->holder, TDM_RESOURCE_MODELS, 1, err)) != 0) {
                struct tdm_model *idle = find_idle(model->models, model->holder, model, true);

                if (model->only_draft || !idle ||
                    (idle->holder != model->holder && r != TDM_E_BUSY && model->holder->identity != 0))
                        return r;
                tdm_log_info("model %s unloaded: idle, and user %u, who holds %llu models, asks for another",
                             idle->name, (unsigned)model->holder->uid, (unsigned long long)n_held(model->holder));
                tdm_model_retire(idle);
        }
        model->has_place = true;
        return 0;
}
