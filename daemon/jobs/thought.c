/* See thought.h. */
#include "daemon/jobs/thought.h"

void tdm_thought_begin(struct tdm_thought *t, const struct tdm_chat_thought *form, uint32_t budget, bool is_followed)
{
        *t = (struct tdm_thought){ .form = *form, .budget = budget, .is_followed = is_followed };
        t->phase = form->is_begun ? TDM_THOUGHT_OPEN : TDM_THOUGHT_MAYBE;
}

static void thought_end(struct tdm_thought *t, uint32_t answer_from)
{
        t->phase = TDM_THOUGHT_OVER;
        t->answer_from = answer_from;
}

/* The model closed it. Before an answer that is bound, the template's white space is due, which no grammar has. */
static void thought_close(struct tdm_thought *t, uint32_t index)
{
        t->n_end = t->form.n_close;
        if (t->is_followed && t->n_end < t->form.n_end)
                t->phase = TDM_THOUGHT_ENDING;
        else
                thought_end(t, index + 1);
}

void tdm_thought_take(struct tdm_thought *t, uint32_t index, enum tdm_chat_place place, bool waits)
{
        switch (t->phase) {
        case TDM_THOUGHT_OVER: /* a free answer may open another thought, for which the same budget counts */
                if (place == TDM_CHAT_IN_THOUGHT && t->budget > 0 && !t->is_followed) {
                        t->phase = TDM_THOUGHT_OPEN;
                        t->n_end = 0;
                }
                break;
        case TDM_THOUGHT_MAYBE:
                if (place == TDM_CHAT_IN_THOUGHT)
                        t->phase = TDM_THOUGHT_OPEN;
                else
                        thought_end(t, index);
                break;
        case TDM_THOUGHT_OPEN:
                t->n_tokens++;
                if (place == TDM_CHAT_IN_ANSWER)
                        thought_close(t, index);
                break;
        case TDM_THOUGHT_ENDING:
                if (++t->n_end == t->form.n_end)
                        thought_end(t, index + 1);
                break;
        }
        if (t->phase == TDM_THOUGHT_OPEN && t->budget > 0 && t->n_tokens >= t->budget && !waits &&
            place == TDM_CHAT_IN_THOUGHT)
                t->phase = TDM_THOUGHT_ENDING;
}

uint32_t tdm_thought_left(const struct tdm_thought *t)
{
        if (t->phase == TDM_THOUGHT_ENDING)
                return 0;
        if (t->budget == 0 || (t->phase == TDM_THOUGHT_OVER && t->is_followed))
                return UINT32_MAX;
        /* In a header, and in an answer that may open another thought, it is over budget and not due. */
        return t->n_tokens < t->budget ? t->budget - t->n_tokens : 1;
}
