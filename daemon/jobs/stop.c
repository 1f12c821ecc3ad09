/* The matcher keeps the longest end of the text that begins a stop string, at most 255 bytes, and compares again with
 * every piece of text. Stop strings are few and short, so plain comparison is faster than an automaton. */
#include "daemon/jobs/stop.h"

#include <assert.h>
#include "common/utf8.h"

struct tdm_stop {
        size_t n;
        struct {
                char data[TDM_MAX_STOP_BYTES];
                size_t size;
        } strings[TDM_MAX_STOPS];
        char held[TDM_MAX_STOP_BYTES];
        size_t n_held;
};

int tdm_stop_new(struct tdm_stop **ret, const struct tdm_stop_string *strings, size_t n, struct tdm_error *err)
{
        _cleanup_(tdm_stop_destroyp) struct tdm_stop *s = NULL;

        if (n > TDM_MAX_STOPS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu stop strings; at most %u are taken", n,
                                     TDM_MAX_STOPS);
        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                if (strings[i].size == 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "stop string %zu is empty", i + 1);
                if (strings[i].size > TDM_MAX_STOP_BYTES)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "stop string %zu has %zu bytes; at most %u are taken", i + 1,
                                             strings[i].size, TDM_MAX_STOP_BYTES);
                if (!tdm_utf8_is_valid(strings[i].data, strings[i].size))
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "stop string %zu is not UTF-8", i + 1);
                memcpy(s->strings[i].data, strings[i].data, strings[i].size);
                s->strings[i].size = strings[i].size;
        }
        s->n = n;
        *ret = steal_ptr(&s);
        return 0;
}

void tdm_stop_destroy(struct tdm_stop *s)
{
        free(s);
}

void tdm_stop_destroyp(struct tdm_stop **s)
{
        free(*s);
        *s = NULL;
}

/* The number of bytes at the end of text that begin a stop string, but are not all of it. */
static size_t partial(const struct tdm_stop *s, const char *text, size_t size)
{
        size_t best = 0;

        for (size_t i = 0; i < s->n; i++) {
                for (size_t k = TDM_MIN(s->strings[i].size - 1, size); k > best; k--)
                        if (memcmp(text + size - k, s->strings[i].data, k) == 0) {
                                best = k;
                                break;
                        }
        }
        return best;
}

size_t tdm_stop_push(struct tdm_stop *s, const char *text, size_t size, char *out, bool *ret_hit)
{
        size_t all = s->n_held + size, at = SIZE_MAX;

        memmove(out + s->n_held, text, size); /* text may lie in out */
        memcpy(out, s->held, s->n_held);
        for (size_t i = 0; i < s->n; i++) {
                const char *p = memmem(out, all, s->strings[i].data, s->strings[i].size);

                if (p)
                        at = TDM_MIN(at, (size_t)(p - out));
        }
        *ret_hit = at != SIZE_MAX;
        if (*ret_hit) {
                s->n_held = 0;
                return at;
        }
        s->n_held = partial(s, out, all);
        assert(s->n_held < TDM_MAX_STOP_BYTES);
        memcpy(s->held, out + all - s->n_held, s->n_held);
        return all - s->n_held;
}

size_t tdm_stop_finish(struct tdm_stop *s, char *out)
{
        size_t n = s->n_held;

        memcpy(out, s->held, n);
        s->n_held = 0;
        return n;
}
