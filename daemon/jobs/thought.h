/* Where a chat's answer is between its thought and what people read, as far as what may come next depends on it.
 *
 * A budget ends a thought: once the thought has that number of tokens, only the ids that end it are allowed. Where a
 * grammar follows, it binds the answer and not the thought. All follows from the ids so far, so that nothing that
 * happens to workers changes it. Embedded in a constraint. */
#ifndef TDM_DAEMON_JOBS_THOUGHT_H
#define TDM_DAEMON_JOBS_THOUGHT_H

#include "engine/chat/tools.h"

enum tdm_thought_phase {
        TDM_THOUGHT_OVER,   /* in the answer; there was no thought, or it has ended */
        TDM_THOUGHT_MAYBE,  /* the first token opens a thought or begins the answer */
        TDM_THOUGHT_OPEN,   /* in the thought */
        TDM_THOUGHT_ENDING, /* the ids of its end are due */
};

struct tdm_thought {
        struct tdm_chat_thought form;
        enum tdm_thought_phase phase;
        bool is_followed;     /* a grammar binds the answer alone */
        uint32_t budget;      /* tokens of it; 0: any number */
        uint32_t n_tokens;    /* of it so far */
        uint32_t n_end;       /* of form.end, that came */
        uint32_t answer_from; /* the index of the answer's first token, once it is over */
};

void tdm_thought_begin(struct tdm_thought *thought, const struct tdm_chat_thought *form, uint32_t budget,
                       bool is_followed);
/* Takes the token that was generated as number index, from 0; place: where the answer is behind it; waits: no end may
 * come here, so it is due behind the next token. */
void tdm_thought_take(struct tdm_thought *thought, uint32_t index, enum tdm_chat_place place, bool waits);
/* How many tokens may still come before an end is due; UINT32_MAX: it never is. 0: it is. */
uint32_t tdm_thought_left(const struct tdm_thought *thought);
/* The id that has to come next, while it is ending. */
static inline uint32_t tdm_thought_due(const struct tdm_thought *thought)
{
        return thought->form.end[thought->n_end];
}

#endif
