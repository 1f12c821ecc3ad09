/* See model-file.h. */
#include "client-lib/cli/model-file.h"
#include "client-lib/store/folder.h"

#include <fcntl.h>

static int open_one(const char *path, struct tdm_gguf **ret, struct tdm_error *err)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

        if (fd < 0)
                return tdm_error_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
        return tdm_gguf_open(ret, fd, path, err);
}

char *model_file_part(const char *path, uint32_t i, uint32_t n)
{
        _cleanup_(freep) char *name = folder_name_of(path);
        const char *slash = strrchr(path, '/');
        unsigned part, n_named;
        size_t stem;
        char *ret;

        if (!name || !folder_is_part(name, &stem, &part, &n_named) || n_named != n)
                return NULL;
        if (asprintf(&ret, "%.*s%.*s-%05u-of-%05u.gguf", slash ? (int)(slash - path + 1) : 0, path, (int)stem, name, i,
                     n) < 0)
                return NULL;
        return ret;
}

/* The other parts lie beside the first, under names that differ in their number alone. */
static int open_parts(const char *path, struct tdm_gguf *first, uint32_t no, uint32_t n, uint64_t *bytes,
                      struct tdm_error *err)
{
        struct tdm_gguf *others[MODEL_FILE_PARTS_MAX - 1] = { 0 };
        _cleanup_(freep) char *self = model_file_part(path, 1, n);
        int r = 0;

        if (!self || no != 0 || n > MODEL_FILE_PARTS_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is one of %u parts: name the first of them", path, n);
        for (uint32_t i = 0; r == 0 && i + 1 < n; i++) {
                _cleanup_(freep) char *other = model_file_part(path, i + 2, n);

                r = other ? open_one(other, &others[i], err) : tdm_error_set(err, -ENOMEM, "out of memory");
                if (r == 0)
                        *bytes += tdm_gguf_file_size(others[i]);
        }
        if (r == 0)
                r = tdm_gguf_join(first, others, n - 1, err);
        if (r != 0)
                for (size_t i = 0; i < TDM_ARRAY_SIZE(others); i++)
                        tdm_gguf_close(others[i]);
        return r;
}

int model_file_open(const char *path, struct tdm_gguf **ret, uint32_t *ret_n_parts, uint64_t *ret_bytes,
                    struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        uint32_t no, n_parts = 1;
        int r = open_one(path, &gguf, err);

        if (r == 0)
                r = tdm_gguf_part(gguf, &no, &n_parts, err);
        if (r == 0) {
                *ret_bytes = tdm_gguf_file_size(gguf);
                if (n_parts > 1)
                        r = open_parts(path, gguf, no, n_parts, ret_bytes, err);
        }
        if (r != 0)
                return r;
        *ret_n_parts = n_parts;
        *ret = steal_ptr(&gguf);
        return 0;
}
