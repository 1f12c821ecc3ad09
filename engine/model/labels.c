#include "engine/model/labels.h"

#include <inttypes.h>
#include "common/utf8.h"

/* What cannot be told on a terminal, over D-Bus or as a C string: NULL, or why. */
static const char *fault_of(struct tdm_gguf_string s)
{
        if (s.size > TDM_LABEL_BYTES_MAX)
                return "is too long";
        if (!tdm_utf8_is_valid(s.data, s.size))
                return "is not UTF-8";
        for (size_t i = 0; i < s.size; i++) {
                unsigned char c = (unsigned char)s.data[i], next = i + 1 < s.size ? (unsigned char)s.data[i + 1] : 0;

                if (c < 0x20 || c == 0x7f || (c == 0xc2 && next < 0xa0))
                        return "has a control character";
        }
        return NULL;
}

static int check_names(const struct tdm_gguf *g, const char *key, uint32_t n, size_t *ret_bytes, struct tdm_error *err)
{
        struct tdm_gguf_array names;
        int r = tdm_gguf_array_begin(&names, g, key);

        for (uint32_t i = 0; i < n; i++) {
                struct tdm_gguf_string s;
                const char *fault;

                if (r < 0 || tdm_gguf_array_next_string(&names, &s) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of strings", key);
                fault = fault_of(s);
                if (fault)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED, "name %" PRIu32 " of the key %s %s", i, key,
                                             fault);
                *ret_bytes += s.size + 1;
        }
        return 0;
}

static size_t count_own_names(uint32_t n)
{
        size_t bytes = 0;

        for (uint32_t i = 0; i < n; i++)
                bytes += (size_t)snprintf(NULL, 0, "LABEL_%" PRIu32, i) + 1;
        return bytes;
}

int tdm_labels_new(struct tdm_labels **ret, const struct tdm_gguf *g, const char *architecture, uint32_t n,
                   struct tdm_error *err)
{
        struct tdm_labels *labels;
        uint64_t n_named = 0;
        size_t bytes = 0;
        struct tdm_gguf_array names;
        char key[96], *at, *end;
        bool are_named;
        int r;

        snprintf(key, sizeof(key), "%s.classifier.output_labels", architecture);
        r = tdm_gguf_get_array_size(g, key, &n_named);
        if (r < 0 && r != -ENOENT)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of strings", key);
        are_named = r == 0;
        if (are_named && n_named != n)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key %s has %" PRIu64 " names, and the head tells %" PRIu32 " classes apart",
                                     key, n_named, n);
        if (!are_named)
                bytes = count_own_names(n);
        else if ((r = check_names(g, key, n, &bytes, err)) != 0)
                return r;
        if (bytes > TDM_LABELS_BYTES_MAX)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the names of its classes have %zu bytes, at most %u are supported (key %s)",
                                     bytes, TDM_LABELS_BYTES_MAX, key);
        labels = malloc(sizeof(*labels) + n * sizeof(labels->names[0]) + bytes);
        if (!labels)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        *labels = (struct tdm_labels){ .n_refs = 1,
                                       .n = n,
                                       .bytes = sizeof(*labels) + n * sizeof(labels->names[0]) + bytes,
                                       .names = (char **)(labels + 1) };
        at = (char *)(labels->names + n);
        end = at + bytes;
        if (are_named)
                (void)tdm_gguf_array_begin(&names, g, key);
        for (uint32_t i = 0; i < n; i++) {
                struct tdm_gguf_string s = { 0 };

                labels->names[i] = at;
                if (are_named && tdm_gguf_array_next_string(&names, &s) == 0) {
                        memcpy(at, s.data, s.size);
                        at[s.size] = '\0';
                } else {
                        snprintf(at, (size_t)(end - at), "LABEL_%" PRIu32, i);
                }
                at += strlen(at) + 1;
        }
        *ret = labels;
        return 0;
}

struct tdm_labels *tdm_labels_ref(struct tdm_labels *labels)
{
        labels->n_refs++;
        return labels;
}

void tdm_labels_unref(struct tdm_labels *labels)
{
        if (labels && --labels->n_refs == 0)
                free(labels);
}
