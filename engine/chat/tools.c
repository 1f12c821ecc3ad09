/* Which texts a model may write where it has tools: the grammar of its template's form. See tools.h. */
#include <assert.h>
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

static_assert(TDM_CHAT_TOOL_NAME_MAX == TDM_FORM_NAME_MAX && TDM_CHAT_HELD_MAX == TDM_FORM_HELD_MAX &&
                      TDM_CHAT_CALL_ID_BYTES == TDM_FORM_ID_BYTES,
              "tools.h says of turns what forms/turn.h says");

int tdm_chat_tools_grammar(struct tdm_grammar **ret, const struct tdm_chat *chat, const struct tdm_chat_tool_use *use,
                           const struct tdm_grammar_limits *limits, struct tdm_error *err)
{
        static const enum tdm_form_choice choices[] = { [TDM_CHAT_CHOICE_AUTO] = TDM_FORM_CHOICE_AUTO,
                                                        [TDM_CHAT_CHOICE_NONE] = TDM_FORM_CHOICE_NONE,
                                                        [TDM_CHAT_CHOICE_REQUIRED] = TDM_FORM_CHOICE_REQUIRED,
                                                        [TDM_CHAT_CHOICE_NAMED] = TDM_FORM_CHOICE_NAMED };
        const struct tdm_chat_form *form = tdm_chat_template_for(chat, true)->form;
        const struct tdm_form_use u = {
                .tools = use->tools.data ? use->tools.data : "",
                .tools_size = use->tools.size,
                .choice = choices[use->choice],
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
