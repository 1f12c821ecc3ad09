#include "common/suggest.h"
#include "common/util.h"

#include <string.h>
#include <strings.h>

static unsigned char lower(char c)
{
        return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static size_t min3(size_t a, size_t b, size_t c)
{
        return TDM_MIN(TDM_MIN(a, b), c);
}

/* Both have at most TDM_SUGGEST_MAX bytes. */
static size_t edits(const char *a, size_t n_a, const char *b, size_t n_b)
{
        size_t rows[3][TDM_SUGGEST_MAX + 1], *before = rows[0], *last = rows[1], *now = rows[2];

        for (size_t j = 0; j <= n_b; j++)
                last[j] = j;
        for (size_t i = 1; i <= n_a; i++) {
                size_t *free_row = before;

                now[0] = i;
                for (size_t j = 1; j <= n_b; j++) {
                        bool same = lower(a[i - 1]) == lower(b[j - 1]);

                        now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + !same);
                        if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
                                now[j] = TDM_MIN(now[j], before[j - 2] + 1);
                }
                before = last;
                last = now;
                now = free_row;
        }
        return last[n_b];
}

void tdm_suggest(struct tdm_suggestion *s, const char *name)
{
        size_t n_given = strlen(s->given), n_name = strlen(name), cost;

        if (n_name >= sizeof(s->best))
                return;
        if (n_given > TDM_SUGGEST_MAX || n_name > TDM_SUGGEST_MAX)
                cost = strcasecmp(s->given, name) == 0 ? 0 : (size_t)-1;
        else if (n_given >= 3 && n_given < n_name && strncasecmp(name, s->given, n_given) == 0)
                cost = 1; /* the beginning of a longer name */
        else
                cost = edits(s->given, n_given, name, n_name);
        if (cost >= s->cost)
                return;
        s->cost = cost;
        memcpy(s->best, name, n_name + 1);
}

const char *tdm_suggest_best(const struct tdm_suggestion *s)
{
        return s->cost <= TDM_MAX(strlen(s->given) / 3, (size_t)1) ? s->best : NULL;
}
