/* Which texts a model may write where it has tools: the grammar of its template's form. See tools.h. */
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

int tdm_chat_tools_grammar(struct tdm_grammar **ret, const struct tdm_chat *chat, const struct tdm_chat_tool_use *use,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        const struct tdm_chat_form *form = tdm_chat_template_for(chat, true)->form;
        const struct tdm_form_use u = {
                .tools = use->tools.data ? use->tools.data : "",
                .tools_size = use->tools.size,
                .choice = use->choice,
                .name = use->name.data,
                .name_size = use->name.size,
                .one_call = use->one_call,
                .prompt = use->thought_is_open ? TDM_FORM_PROMPT_OPEN : TDM_FORM_PROMPT_SILENT,
        };

        if (chat->refusal[0])
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "tools: %s", chat->refusal);
        if (!tdm_chat_has_tools(chat))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "tools have no form in the model's chat template");
        return tdm_form_grammar(ret, form, chat->tokenizer, &u, limits, err);
}
