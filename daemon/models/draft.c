/* Models that guess for others: whether one fits, and how it is loaded.
 *
 * A draft's guesses are token ids, so an id must mean the same to both models. The draft's vocabulary is the target's
 * or its first part, piece by piece. */
#include "daemon/models/private.h"

#include "common/log.h"

#define SHOWN_BYTES 40u

/* The first id that differs; UINT32_MAX: none does. */
static uint32_t first_difference(const struct tdm_model *target, const struct tdm_model *draft)
{
        uint32_t n = tdm_model_hparams(target)->n_vocab, n_draft = tdm_model_hparams(draft)->n_vocab;
        uint32_t n_both = TDM_MIN(n, n_draft), id;

        if (target == draft)
                return UINT32_MAX;
        id = tdm_tokenizer_first_difference(target->metadata->tokenizer, draft->metadata->tokenizer, n_both);
        if (id < n_both)
                return id;
        return n_draft > n ? n : UINT32_MAX;
}

/* A piece as an error may show it. */
static void show_piece(const struct tdm_model *model, uint32_t id, char *ret, size_t size)
{
        const char *data;
        size_t n = tdm_tokenizer_piece(model->metadata->tokenizer, id, true, &data);
        char text[SHOWN_BYTES + 1];

        n = TDM_MIN(n, (size_t)SHOWN_BYTES);
        memcpy(text, data, n);
        text[n] = '\0';
        for (size_t i = 0; i < n; i++)
                if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
                        text[i] = '?';
        tdm_utf8_mend(text);
        snprintf(ret, size, "%s", text);
}

int tdm_model_check_draft(struct tdm_model *target, struct tdm_model *draft, struct tdm_error *err)
{
        char of_draft[4 * SHOWN_BYTES], of_target[4 * SHOWN_BYTES];
        uint32_t n = tdm_model_hparams(target)->n_vocab, n_draft = tdm_model_hparams(draft)->n_vocab, id;

        if (tdm_model_recipe(draft)->pooling != TDM_POOLING_NONE || tdm_recipe_is_whole(tdm_model_recipe(draft)))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "draft: model %s makes vectors of texts and no text, so it cannot guess",
                                     tdm_model_told_name(draft));
        for (unsigned i = 0; i < 2; i++) {
                const struct tdm_model *model = i == 0 ? draft : target;

                if (tdm_recipe_has_state(tdm_model_recipe(model), tdm_model_hparams(model)))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "draft: model %s keeps a state that cannot be cut back behind a wrong "
                                             "guess, so it %s",
                                             tdm_model_told_name(model), i == 0 ? "cannot guess" : "takes no guesses");
        }
        id = first_difference(target, draft);
        if (id == UINT32_MAX)
                return 0;
        if (id >= n)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "draft: the vocabulary of model %s differs from that of %s at token id %u: it has "
                                     "%u tokens, and %s has %u",
                                     tdm_model_told_name(draft), tdm_model_told_name(target), id, n_draft,
                                     tdm_model_told_name(target), n);
        show_piece(draft, id, of_draft, sizeof(of_draft));
        show_piece(target, id, of_target, sizeof(of_target));
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "draft: the vocabulary of model %s differs from that of %s at token id %u: \"%s\", not "
                             "\"%s\"",
                             tdm_model_told_name(draft), tdm_model_told_name(target), id, of_draft, of_target);
}

void tdm_model_want_draft(struct tdm_model *model, struct tdm_account *account)
{
        struct tdm_error err;

        if (model->wanted)
                return;
        model->only_draft = true;
        if (tdm_model_need(model, account, &err) != 0)
                tdm_log_debug("model %s is not loaded to guess for others: %s", model->name, err.message);
}

int tdm_model_want(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        model->only_draft = false;
        return tdm_model_need(model, account, err);
}

void tdm_model_drafted(struct tdm_model *model)
{
        tdm_model_touch(model);
}
