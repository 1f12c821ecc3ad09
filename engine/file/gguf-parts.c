/* A model that was split into several files (llama.cpp's gguf-split): the keys are in the first one, tensors in any.
 * Each file says which part it is and how many there are; the first also how many tensors there are in all. Every part
 * has been opened, and so checked, as a file of its own. */
#include "engine/file/gguf-private.h"

#include <inttypes.h>

static int get_number(const struct tdm_gguf *g, const char *key, uint64_t otherwise, uint64_t *ret,
                      struct tdm_error *err)
{
        int r;

        *ret = otherwise;
        r = tdm_gguf_get_u64(g, key, ret);
        if (r == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "cannot use %s: the key %s is not a whole number", g->name,
                                     key);
        return 0;
}

int tdm_gguf_part(const struct tdm_gguf *g, uint32_t *ret_no, uint32_t *ret_n, struct tdm_error *err)
{
        uint64_t no, n;
        int r = get_number(g, "split.no", 0, &no, err);

        if (r == 0)
                r = get_number(g, "split.count", 1, &n, err);
        if (r != 0)
                return r;
        n = TDM_MAX(n, UINT64_C(1)); /* 0: some tools mean that it was not split */
        if (n > TDM_GGUF_PARTS_MAX || no >= n)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "cannot use %s: it says that it is part %" PRIu64 " (from 0 on) of %" PRIu64
                                     ", at most %u are allowed",
                                     g->name, no, n, TDM_GGUF_PARTS_MAX);
        *ret_no = (uint32_t)no;
        *ret_n = (uint32_t)n;
        return 0;
}

uint32_t tdm_gguf_n_parts(const struct tdm_gguf *g)
{
        return g->n_parts + 1;
}

/* They are the parts that the first one announces, in order. */
static int check_parts(const struct tdm_gguf *first, struct tdm_gguf *const *others, uint32_t n, struct tdm_error *err)
{
        uint64_t announced, n_tensors = first->n_tensors;
        uint32_t no, n_all;
        int r = tdm_gguf_part(first, &no, &n_all, err);

        if (r == 0 && (no != 0 || n_all != n + 1))
                r = tdm_error_set(err, TDM_E_BAD_MODEL, "cannot use %s: it is part %u of %u, not the first of %u",
                                  first->name, no + 1, n_all, n + 1);
        for (uint32_t i = 0; i < n && r == 0; i++) {
                r = tdm_gguf_part(others[i], &no, &n_all, err);
                if (r == 0 && (no != i + 1 || n_all != n + 1))
                        r = tdm_error_set(err, TDM_E_BAD_MODEL,
                                          "cannot use %s: it says that it is part %u of %u, its name says %u of %u",
                                          others[i]->name, no + 1, n_all, i + 2, n + 1);
                n_tensors += others[i]->n_tensors;
        }
        if (r == 0)
                r = get_number(first, "split.tensors.count", n_tensors, &announced, err);
        if (r == 0 && (announced != n_tensors || n_tensors > TDM_GGUF_TENSORS_MAX))
                r = tdm_error_set(err, TDM_E_BAD_MODEL,
                                  "cannot use %s: it announces %" PRIu64 " tensors in all parts, which have %" PRIu64
                                  "; at most %u are allowed",
                                  first->name, announced, n_tensors, TDM_GGUF_TENSORS_MAX);
        return r;
}

static int compare_names(const void *a, const void *b, void *tensors)
{
        const struct tdm_gguf_tensor *t = tensors;
        const struct tdm_gguf_string *y = &t[*(const uint32_t *)b].name;

        return tdm_gguf_string_compare(&t[*(const uint32_t *)a].name, y->data, y->size);
}

/* One table of all tensors. Their names stay in the metadata of their parts. */
static int merge(struct tdm_gguf *g, struct tdm_gguf *const *others, uint32_t n, struct tdm_error *err)
{
        uint64_t n_tensors = g->n_tensors, at = g->n_tensors;
        struct tdm_gguf_tensor *tensors;
        uint32_t *by_name;

        for (uint32_t i = 0; i < n; i++)
                n_tensors += others[i]->n_tensors;
        tensors = reallocarray(g->tensors, TDM_MAX(n_tensors, 1u), sizeof(*tensors));
        if (tensors)
                g->tensors = tensors;
        by_name = tensors ? reallocarray(g->by_name, TDM_MAX(n_tensors, 1u), sizeof(*by_name)) : NULL;
        if (by_name)
                g->by_name = by_name;
        if (!tensors || !by_name)
                return tdm_error_set(err, -ENOMEM, "out of memory for %" PRIu64 " tensors", n_tensors);
        for (uint32_t i = 0; i < n; i++)
                for (uint64_t k = 0; k < others[i]->n_tensors; k++, at++) {
                        tensors[at] = others[i]->tensors[k];
                        tensors[at].part = i + 1;
                }
        for (uint64_t i = 0; i < n_tensors; i++)
                by_name[i] = (uint32_t)i;
        qsort_r(by_name, n_tensors, sizeof(*by_name), compare_names, tensors);
        for (uint64_t i = 1; i < n_tensors; i++)
                if (compare_names(&by_name[i - 1], &by_name[i], tensors) == 0) {
                        const struct tdm_gguf_string *name = &tensors[by_name[i]].name;

                        return tdm_error_set(err, TDM_E_BAD_MODEL, "cannot use %s: two of its parts have a tensor %.*s",
                                             g->name, (int)name->size, name->data);
                }
        g->n_tensors = n_tensors;
        return 0;
}

int tdm_gguf_join(struct tdm_gguf *first, struct tdm_gguf **others, uint32_t n, struct tdm_error *err)
{
        struct tdm_gguf **parts;
        struct tdm_error local;
        int r;

        err = err ? err : &local;
        r = check_parts(first, others, n, err);
        if (r != 0)
                return r;
        parts = calloc(n, sizeof(*parts));
        if (!parts)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u parts", n);
        r = merge(first, others, n, err);
        if (r != 0) {
                free(parts);
                return r;
        }
        memcpy(parts, others, n * sizeof(*parts));
        first->parts = parts;
        first->n_parts = n;
        return 0;
}
