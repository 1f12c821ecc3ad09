/* What models cost their users before they are loaded: reads under way, and metadata.
 *
 * Metadata is charged before it is read with what it may take, and afterwards with what it takes. Models that are only
 * described, because a text was tokenized with them, stay as a small cache: the oldest go first. */
#include "daemon/models/private.h"

/* Bounds of the described models that no job and no request uses. */
#define CACHE_MAX_BYTES (UINT64_C(64) << 20)
#define CACHE_MAX_MODELS 16u

/* Described, and no request waits for it or reads its vocabulary. A client's file that failed counts too: it keeps a
 * place and an fd. */
static bool is_cached(const struct tdm_model *model)
{
        bool failed = model->state == TDM_MODEL_FAILED && !model->by_name;

        return (model->state == TDM_MODEL_DESCRIBED || failed) && tdm_model_is_idle(model) && model->n_refs == 1;
}

struct tdm_model *tdm_models_oldest_described(struct tdm_models *m, const struct tdm_account *account)
{
        struct tdm_model *model, *oldest = NULL;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (is_cached(model) && (!account || model->charges.metadata_payer == account) &&
                    (!oldest || model->use.last_ns < oldest->use.last_ns))
                        oldest = model;
        }
        return oldest;
}

bool tdm_models_have_too_many_described(struct tdm_models *m)
{
        struct tdm_model *model;
        uint64_t bytes = 0;
        unsigned n = 0;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (!is_cached(model))
                        continue;
                n++;
                bytes += model->metadata ? tdm_model_metadata_bytes(model->metadata) : 0;
        }
        return n > CACHE_MAX_MODELS || bytes > CACHE_MAX_BYTES;
}

static void end_reading(struct tdm_model *model)
{
        if (model->charges.reads)
                tdm_account_release(model->account, TDM_RESOURCE_LOADS, 1);
        model->charges.reads = false;
}

void tdm_model_charge_read(struct tdm_model *model)
{
        uint64_t bytes = model->metadata ? tdm_model_metadata_bytes(model->metadata) : 0;

        end_reading(model);
        if (bytes >= model->charges.metadata)
                return;
        tdm_account_release(model->charges.metadata_payer, TDM_RESOURCE_METADATA_BYTES,
                            model->charges.metadata - bytes);
        model->charges.metadata = bytes;
}

int tdm_model_want_vocabulary(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        uint64_t bytes =
                TDM_VOCABULARY_BYTES + (uint64_t)tdm_model_hparams(model)->n_vocab * TDM_VOCABULARY_BYTES_PER_PIECE;
        int r;

        if (model->charges.vocabulary)
                return 0;
        r = tdm_account_charge(account, TDM_RESOURCE_METADATA_BYTES, bytes, err);
        if (r != 0)
                return r;
        model->charges.vocabulary = bytes;
        model->charges.vocabulary_payer = account ? tdm_account_ref(account) : NULL;
        return 0;
}

int tdm_model_make_vocabulary(struct tdm_model *model, struct tdm_vocabulary **ret)
{
        struct tdm_model_metadata *m = model->metadata;
        int r = 0;

        pthread_mutex_lock(&m->vocabulary_lock);
        if (!m->vocabulary)
                r = tdm_vocabulary_new_tokenizer(&m->vocabulary, m->tokenizer, tdm_model_hparams(model)->n_vocab);
        if (r == 0)
                *ret = tdm_vocabulary_ref(m->vocabulary);
        pthread_mutex_unlock(&m->vocabulary_lock);
        return r;
}

void tdm_model_made_vocabulary(struct tdm_model *model)
{
        struct tdm_model_metadata *m = model->metadata;
        uint64_t bytes = model->charges.vocabulary;

        pthread_mutex_lock(&m->vocabulary_lock);
        if (m->vocabulary)
                bytes = TDM_MIN(bytes, (uint64_t)tdm_vocabulary_bytes(m->vocabulary));
        pthread_mutex_unlock(&m->vocabulary_lock);
        tdm_account_release(model->charges.vocabulary_payer, TDM_RESOURCE_METADATA_BYTES,
                            model->charges.vocabulary - bytes);
        model->charges.vocabulary = bytes;
}

void tdm_model_uncharge(struct tdm_model *model)
{
        tdm_account_release(model->charges.vocabulary_payer, TDM_RESOURCE_METADATA_BYTES, model->charges.vocabulary);
        model->charges.vocabulary = 0;
        tdm_account_unref(steal_ptr(&model->charges.vocabulary_payer));
        end_reading(model);
        tdm_model_give_place(model);
        tdm_account_release(model->charges.metadata_payer, TDM_RESOURCE_METADATA_BYTES, model->charges.metadata);
        model->charges.metadata = 0;
        tdm_account_unref(steal_ptr(&model->charges.metadata_payer));
        tdm_account_unref(steal_ptr(&model->account));
        tdm_account_unref(steal_ptr(&model->holder));
}
