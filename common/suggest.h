/* Which of the names that exist was meant by one that does not: for "did you mean" in messages.
 *
 * Names are compared without case, as sequences of bytes, by the number of edits between them (optimal string
 * alignment: insert, delete, replace, swap neighbours). */
#ifndef TDM_COMMON_SUGGEST_H
#define TDM_COMMON_SUGGEST_H

#include <stddef.h>

#define TDM_SUGGEST_MAX 64u /* longer names are compared as wholes only */

struct tdm_suggestion {
        const char *given;
        size_t cost; /* of best */
        char best[256];
};

static inline struct tdm_suggestion tdm_suggest_for(const char *given)
{
        return (struct tdm_suggestion){ .given = given, .cost = (size_t)-1 };
}
/* Considers a name. It is copied. The first of equals stays. */
void tdm_suggest(struct tdm_suggestion *suggestion, const char *name);
/* The nearest name so far; NULL: none is near enough, which is a third of the given name's bytes and at least one. */
const char *tdm_suggest_best(const struct tdm_suggestion *suggestion);

#endif
