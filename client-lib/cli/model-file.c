#include "client-lib/cli/model-file.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/follow.h"

#include <fcntl.h>

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

static int open_part_file(struct model_files *files, uint32_t i, bool careful, struct tdm_error *err)
{
        const char *path = files->path[i];
        struct stat st;
        int r = 0;

        if (files->fd[i] < 0 && careful)
                r = follow_open(AT_FDCWD, path, &files->fd[i], &st, err);
        else if (files->fd[i] < 0)
                files->fd[i] = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (r == 0 && (files->fd[i] < 0 || fstat(files->fd[i], &st) < 0))
                r = tdm_error_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
        if (r == 0)
                files->size_bytes[i] = (uint64_t)st.st_size;
        return r;
}

/* How many parts the model has whose first one this is. */
static int count_parts(const char *path, int fd, uint32_t *ret, struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        _cleanup_(freep) char *self = NULL;
        uint32_t no, n = 1;
        int r = tdm_gguf_open(&gguf, fd, path, err);

        if (r == 0)
                r = tdm_gguf_part(gguf, &no, &n, err);
        if (r == 0 && n > 1) {
                self = model_file_part(path, 1, n);
                if (!self || no != 0 || n > MODEL_FILE_PARTS_MAX)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "%s is one of %u parts: name the first of them",
                                             path, n);
        }
        if (r == 0)
                *ret = n;
        return r;
}

void model_files_close(struct model_files *files)
{
        for (size_t i = 0; i < MODEL_FILE_PARTS_MAX; i++) {
                closep(&files->fd[i]);
                free(files->path[i]);
                files->path[i] = NULL;
        }
}

/* The other parts lie beside the first, under names that differ in their number alone. */
int model_files_open(struct model_files *ret, const char *path, int fd, bool careful, struct tdm_error *err)
{
        int r;

        *ret = (struct model_files){ .n = 1 };
        for (size_t i = 0; i < MODEL_FILE_PARTS_MAX; i++)
                ret->fd[i] = -1;
        ret->fd[0] = fd;
        ret->path[0] = strdup(path);
        r = ret->path[0] ? open_part_file(ret, 0, careful, err) : tdm_error_set(err, -ENOMEM, "out of memory");
        if (r == 0)
                r = count_parts(path, ret->fd[0], &ret->n, err);
        for (uint32_t i = 1; r == 0 && i < ret->n; i++) {
                ret->path[i] = model_file_part(path, i + 1, ret->n);
                r = ret->path[i] ? open_part_file(ret, i, careful, err) : tdm_error_set(err, -ENOMEM, "out of memory");
        }
        if (r != 0)
                model_files_close(ret);
        return r;
}

int model_files_read(const int *fds, char *const *names, uint32_t n, struct tdm_gguf **ret, struct tdm_error *err)
{
        struct tdm_gguf *parts[MODEL_FILE_PARTS_MAX] = { 0 };
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < n; i++)
                r = tdm_gguf_open(&parts[i], fds[i], names[i], err);
        if (r == 0 && n > 1)
                r = tdm_gguf_join(parts[0], parts + 1, n - 1, err);
        if (r == 0)
                *ret = steal_ptr(&parts[0]);
        for (uint32_t i = 0; r != 0 && i < n; i++)
                tdm_gguf_close(parts[i]);
        return r;
}

int model_file_open(const char *path, struct tdm_gguf **ret, uint32_t *ret_n_parts, uint64_t *ret_bytes,
                    struct tdm_error *err)
{
        struct model_files files;
        uint64_t bytes = 0;
        int r = model_files_open(&files, path, -1, false, err);

        if (r != 0)
                return r;
        for (uint32_t i = 0; i < files.n; i++)
                bytes += files.size_bytes[i];
        r = model_files_read(files.fd, files.path, files.n, ret, err);
        if (r == 0) {
                *ret_bytes = bytes;
                *ret_n_parts = files.n;
        }
        model_files_close(&files);
        return r;
}
