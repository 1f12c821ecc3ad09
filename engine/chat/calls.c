/* A model's turn, taken apart as it comes: the parser of its template's form. See tools.h. */
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

int tdm_chat_parser_new(struct tdm_form_parser **ret, const struct tdm_chat *chat, struct tdm_chat_text tools,
                        enum tdm_form_prompt prompt, unsigned flags)
{
        const struct tdm_chat_template *t = tdm_chat_template_for(chat, tools.size > 0);
        const struct tdm_form_use use = { .tools = tools.size > 0 ? tools.data : NULL,
                                          .tools_size = tools.size,
                                          .choice = flags & TDM_CHAT_TURN_MUST_CALL ? TDM_FORM_CHOICE_REQUIRED :
                                                                                      TDM_FORM_CHOICE_AUTO,
                                          .schema = flags & TDM_CHAT_TURN_IS_BOUND ? "" : NULL,
                                          .goes_on = flags & TDM_CHAT_TURN_GOES_ON,
                                          .prompt = flags & TDM_CHAT_TURN_GOES_ON ? TDM_FORM_PROMPT_SILENT : prompt };

        if (tools.size > 0 ? !tdm_chat_has_tools(chat) : !tdm_chat_template_thinks(t))
                return -EOPNOTSUPP;
        return tdm_form_parser_new(ret, t->form, chat->tokenizer, &use);
}

enum tdm_chat_place tdm_chat_parser_place(const struct tdm_form_parser *p)
{
        return tdm_form_parser_is_thinking(p)  ? TDM_CHAT_IN_THOUGHT :
               tdm_form_parser_is_in_header(p) ? TDM_CHAT_BEFORE_ANSWER :
                                                 TDM_CHAT_IN_ANSWER;
}
