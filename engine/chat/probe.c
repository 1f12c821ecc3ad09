/* What a template takes and writes, found by rendering short conversations when the model is loaded (forms/). */
#include "engine/chat/private.h"

int tdm_chat_probe(const struct tdm_chat *chat, struct tdm_chat_template *t)
{
        static const char *const channels[] = { "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>" };
        int r = tdm_chat_form_derive(&t->form, t->template, chat->bos, chat->eos);
        uint32_t id;

        /* Without these pieces, messages in channels cannot be told from their texts. */
        for (unsigned i = 0; r == 0 && t->form->calls == TDM_FORM_CALLS_CHANNELLED && i < TDM_ARRAY_SIZE(channels); i++)
                if (tdm_tokenizer_find_marker(chat->tokenizer, channels[i], &id) < 0) {
                        tdm_chat_form_destroy(t->form);
                        t->form = NULL;
                        return 0;
                }
        return r;
}
