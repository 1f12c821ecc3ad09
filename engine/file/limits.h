/* What reading a stranger's model file may cost, and how the reader keeps count of it.
 *
 * The caller may stop a reader from another thread, give it less memory than the format allows, and watch what it
 * takes. gguf.c and tokenizer.c use this. */
#ifndef TDM_ENGINE_FILE_LIMITS_H
#define TDM_ENGINE_FILE_LIMITS_H

#include <stdatomic.h>
#include "common/error.h"

struct tdm_parse_limits {
        uint64_t max_bytes; /* of memory for this object; 0: what the format's own limits allow */
        const atomic_bool
                *cancelled; /* NULL: it cannot be cancelled. When true: TDM_E_CANCELLED, within milliseconds */
        /* NULL, or a counter to which memory is added as it is taken. A reader that fails takes off what it added. One
         * that succeeds leaves the object's memory in it: who destroys the object takes that off. */
        _Atomic uint64_t *n_bytes;
};

/* Kept by the object. */
struct tdm_parse_account {
        const struct tdm_parse_limits *limits; /* while it is being read */
        uint64_t held;
};

/* Before bytes are allocated. 0, or TDM_E_NO_MEMORY. */
static inline int tdm_parse_charge(struct tdm_parse_account *a, uint64_t bytes, struct tdm_error *err)
{
        const struct tdm_parse_limits *l = a->limits;

        if (l && l->max_bytes && (a->held > l->max_bytes || bytes > l->max_bytes - a->held))
                return tdm_error_set(err, TDM_E_NO_MEMORY,
                                     "its metadata takes more than the %llu bytes of memory that are left for it",
                                     (unsigned long long)l->max_bytes);
        a->held += bytes;
        if (l && l->n_bytes) /* relaxed: a figure, nothing is published through it */
                atomic_fetch_add_explicit(l->n_bytes, bytes, memory_order_relaxed);
        return 0;
}

static inline void tdm_parse_uncharge(struct tdm_parse_account *a, uint64_t bytes)
{
        a->held -= bytes;
        if (a->limits && a->limits->n_bytes)
                atomic_fetch_sub_explicit(a->limits->n_bytes, bytes, memory_order_relaxed);
}

/* 0, or TDM_E_CANCELLED. */
static inline int tdm_parse_check(const struct tdm_parse_account *a, struct tdm_error *err)
{
        if (!a->limits || !a->limits->cancelled || !atomic_load_explicit(a->limits->cancelled, memory_order_relaxed))
                return 0;
        return tdm_error_set(err, TDM_E_CANCELLED, "reading it was cancelled");
}

#endif
