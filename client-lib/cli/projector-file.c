#include "client-lib/cli/projector-file.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/follow.h"
#include "engine/model/projector.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define SEARCH_MAX 64u /* files that are opened in a folder */

static void take_architecture(const struct tdm_gguf *model, char *to, size_t size)
{
        struct tdm_gguf_string s;

        to[0] = '\0';
        if (tdm_gguf_get_string(model, "general.architecture", &s) == 0)
                snprintf(to, size, "%.*s", (int)TDM_MIN(s.size, size - 1), s.data);
}

int projector_file_check(int fd, const char *path, const struct tdm_gguf *model, uint32_t *ret_rows,
                         struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        struct tdm_model_description d = { 0 };
        struct tdm_projector projector;
        char architecture[64];
        int r = tdm_gguf_open(&gguf, fd, path, err);

        if (r != 0)
                return r;
        r = tdm_model_describe(model, &d, err);
        if (r != 0)
                return r;
        take_architecture(model, architecture, sizeof(architecture));
        r = tdm_projector_describe_for(&projector, gguf, &d, architecture, ret_rows, err);
        tdm_model_description_deinit(&d);
        return r > 0 ? tdm_error_prefix(err, "%s", path) : r;
}

bool projector_file_is_wanted(const struct tdm_gguf *model)
{
        struct tdm_model_description d = { 0 };
        struct tdm_projector fits = { 0 };
        char architecture[64];
        struct tdm_error err;
        bool wanted;

        if (tdm_model_describe(model, &d, &err) != 0)
                return false;
        take_architecture(model, architecture, sizeof(architecture));
        fits.n_out = d.hparams.d_model;
        wanted = tdm_projector_check_text(&fits, architecture, d.hparams.d_model, &err) == 0 &&
                 tdm_recipe_takes_pictures(&d.recipe, &d.hparams);
        tdm_model_description_deinit(&d);
        return wanted;
}

int projector_file_open(struct projector_file *ret, const char *path, bool careful, const struct tdm_gguf *model,
                        struct tdm_error *err)
{
        struct stat st;
        int r = 0;

        *ret = PROJECTOR_FILE_NONE;
        ret->path = strdup(path);
        if (!ret->path)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (careful)
                r = follow_open(AT_FDCWD, path, &ret->fd, &st, err);
        else
                ret->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (r == 0 && (ret->fd < 0 || fstat(ret->fd, &st) < 0))
                r = tdm_error_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
        if (r == 0 && !S_ISREG(st.st_mode))
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot open %s: it is not a regular file", path);
        if (r == 0) {
                ret->size_bytes = (uint64_t)st.st_size;
                r = projector_file_check(ret->fd, path, model, &ret->n_rows, err);
        }
        if (r != 0)
                projector_file_close(ret);
        return r;
}

void projector_file_close(struct projector_file *projector)
{
        closep(&projector->fd);
        free(projector->path);
        *projector = PROJECTOR_FILE_NONE;
}

char *projector_file_beside(const char *model_path)
{
        _cleanup_(freep) char *own = folder_name_of(model_path), *name = own ? folder_projector_name(own) : NULL;
        const char *slash = strrchr(model_path, '/');
        char *path;

        if (!name)
                return NULL;
        return asprintf(&path, "%.*s%s.gguf", slash ? (int)(slash - model_path + 1) : 0, model_path, name) < 0 ? NULL :
                                                                                                                 path;
}

static bool may_be_projector(const char *name)
{
        size_t n = strlen(name);

        return n > 5 && strcmp(name + n - 5, ".gguf") == 0 && strcasestr(name, "mmproj") && name[0] != '.';
}

int projector_file_search(struct projector_file *ret, const char *model_path, bool careful,
                          const struct tdm_gguf *model)
{
        const char *slash = strrchr(model_path, '/');
        _cleanup_(freep) char *folder = slash ? strndup(model_path, (size_t)(slash - model_path + 1)) : strdup("./");
        DIR *d = folder ? opendir(folder) : NULL;
        struct projector_file found = PROJECTOR_FILE_NONE;
        const struct dirent *e;
        unsigned n_opened = 0, n_fit = 0;

        while (d && n_fit < 2 && n_opened < SEARCH_MAX && (e = readdir(d))) {
                struct projector_file one = PROJECTOR_FILE_NONE;
                _cleanup_(freep) char *path = NULL;
                struct tdm_error err;

                if (!may_be_projector(e->d_name))
                        continue;
                if (asprintf(&path, "%s%s", folder, e->d_name) < 0) {
                        path = NULL;
                        break;
                }
                n_opened++;
                if (projector_file_open(&one, path, careful, model, &err) != 0)
                        continue;
                projector_file_close(&found);
                found = one;
                n_fit++;
        }
        if (d)
                closedir(d);
        if (n_fit != 1) {
                projector_file_close(&found);
                return -ENOENT;
        }
        *ret = found;
        return 0;
}
