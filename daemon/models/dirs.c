/* The directories of models. A name is a file's name without .gguf, never a path: a client that wants another file
 * opens it with its own rights and passes the fd. No path is compiled in: an installed prefix and a build tree are
 * found relative to this executable. */
#include "daemon/models/private.h"
#include "common/fnv.h"
#include "common/log.h"
#include "common/suggest.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MAX_NAME_BYTES 240u
#define MAX_SCANNED 8192u            /* names in all directories; a longer list is cut, and the log says so */
#define SCAN_SLOTS (2 * MAX_SCANNED) /* of the table of names; a power of two */

void tdm_strv_freep(char ***strv)
{
        if (*strv)
                for (char **p = *strv; *p; p++)
                        free(*p);
        free(*strv);
        *strv = NULL;
}

static int add_dir(char **dirs, size_t *n, const char *dir)
{
        if (*n >= TDM_MAX_MODEL_DIRS)
                return 0;
        for (size_t i = 0; i < *n; i++)
                if (strcmp(dirs[i], dir) == 0)
                        return 0;
        dirs[*n] = strdup(dir);
        if (!dirs[*n])
                return -ENOMEM;
        (*n)++;
        return 0;
}

/* DIR/../sub and DIR/../../sub of this executable's directory, where they exist. */
static int add_beside_executable(char **dirs, size_t *n, const char *sub)
{
        char exe[4096], path[4200], *slash;
        ssize_t size = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

        if (size <= 0)
                return 0;
        exe[size] = '\0';
        for (int up = 0; up < 3; up++) {
                struct stat st;
                int r;

                slash = strrchr(exe, '/');
                if (!slash || slash == exe)
                        return 0;
                *slash = '\0';
                if (up == 0)
                        continue; /* bin itself */
                snprintf(path, sizeof(path), "%s/%s", exe, sub);
                if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
                        continue;
                r = add_dir(dirs, n, path);
                if (r < 0)
                        return r;
        }
        return 0;
}

int tdm_models_default_dirs(const char *const *configured, char ***ret)
{
        _cleanup_(tdm_strv_freep) char **dirs = calloc(TDM_MAX_MODEL_DIRS + 1, sizeof(*dirs));
        const char *env = getenv("TANDEM_MODEL_PATH"), *home = getenv("XDG_DATA_HOME");
        char path[4200];
        size_t n = 0;
        int r = 0;

        if (!dirs)
                return -ENOMEM;
        while (env && *env && r == 0) {
                size_t len = strcspn(env, ":");

                if (len > 0 && len < sizeof(path)) {
                        snprintf(path, sizeof(path), "%.*s", (int)len, env);
                        r = add_dir(dirs, &n, path);
                }
                env += len + (env[len] == ':');
        }
        for (; configured && *configured && r == 0; configured++)
                r = add_dir(dirs, &n, *configured);
        if (r == 0 && home && home[0] == '/') {
                snprintf(path, sizeof(path), "%.4000s/tandem/models", home);
                r = add_dir(dirs, &n, path);
        } else if (r == 0 && getenv("HOME") && getenv("HOME")[0] == '/') {
                snprintf(path, sizeof(path), "%.4000s/.local/share/tandem/models", getenv("HOME"));
                r = add_dir(dirs, &n, path);
        }
        if (r == 0)
                r = add_dir(dirs, &n, "/var/lib/tandem/models");
        if (r == 0)
                r = add_beside_executable(dirs, &n, "share/tandem/models");
        if (r == 0)
                r = add_beside_executable(dirs, &n, "models");
        if (r < 0)
                return r;
        *ret = steal_ptr(&dirs);
        return 0;
}

char *tdm_model_name_of_path(const char *path)
{
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        size_t len = strlen(base), name_bytes;
        uint32_t no, n;
        char *name;

        if (len > 5 && strcmp(base + len - 5, ".gguf") == 0)
                len -= 5;
        if (tdm_part_of_name(base, len, &name_bytes, &no, &n) && no == 1 && n > 1)
                len = name_bytes;
        name = strndup(base, TDM_MIN(len, (size_t)MAX_NAME_BYTES));
        return name ? tdm_utf8_mend(name) : NULL;
}

static void consider(const char *name, const char *path, uint64_t size_bytes, const struct tdm_file_identity *identity,
                     void *userdata)
{
        tdm_suggest(userdata, name);
}

/* The name that was meant, if one is near: "Tale" and "tale.gguf" mean tale. Else where the daemon looked. */
static int no_such_name(struct tdm_models *m, const char *name, struct tdm_error *err)
{
        _cleanup_(freep) char *bare = tdm_model_name_of_path(name);
        struct tdm_suggestion near = tdm_suggest_for(bare ? bare : name);
        char searched[600] = "";
        size_t used = 0, n = 0;
        const char *meant;

        (void)tdm_models_scan(m, consider, &near);
        meant = tdm_suggest_best(&near);
        if (meant)
                return tdm_error_set(err, TDM_E_NO_MODEL, "no model is named %s; did you mean %s?", name, meant);
        for (; m->dirs[n]; n++) {
                size_t room = sizeof(searched) - used;
                int k = snprintf(searched + used, room, "%s%s", n ? ", " : "", m->dirs[n]);

                if (k < 0 || (size_t)k >= room) {
                        searched[used] = '\0'; /* as many as fit, each in full */
                        break;
                }
                used += (size_t)k;
        }
        return tdm_error_set(err, TDM_E_NO_MODEL, "no model is named %s: no %s.gguf in %s%s", name, bare ? bare : name,
                             n ? searched : "any model directory", m->dirs[n] ? " and others" : "");
}

/* A file that was opened, with its path and the name that it has here. */
static int give_file(int fd, const char *path, char *name, int *ret_fd, char **ret_path, char **ret_name)
{
        char *copy = strdup(path);

        if (!copy || !name) {
                close(fd);
                free(copy);
                free(name);
                return -ENOMEM;
        }
        *ret_fd = fd;
        *ret_path = copy;
        *ret_name = name;
        return 0;
}

/* NAME.gguf of a directory, or its first part, with its path. */
static int open_in_dir(const char *dir, const char *name, char *path, size_t size)
{
        int fd;

        snprintf(path, size, "%.4096s/%s.gguf", dir, name);
        fd = tdm_open_model_file(path);
        return fd == -ENOENT ? tdm_open_first_part(dir, name, path, size) : fd;
}

static bool may_be_name(const char *name)
{
        return !strchr(name, '/') && name[0] != '.' && strlen(name) <= MAX_NAME_BYTES;
}

bool tdm_models_have_name(char *const *dirs, const char *name)
{
        char path[4400];

        for (; may_be_name(name) && *dirs; dirs++) {
                int fd = open_in_dir(*dirs, name, path, sizeof(path));

                if (fd < 0)
                        continue;
                close(fd);
                return true;
        }
        return false;
}

int tdm_models_open_name(struct tdm_models *m, const char *name, int *ret_fd, char **ret_path, char **ret_name,
                         struct tdm_error *err)
{
        char path[4400];

        for (unsigned i = 0; i < m->n_files; i++) {
                int fd;

                if (strcmp(m->files[i].name, name) != 0)
                        continue;
                fd = tdm_open_model_file(m->files[i].path);
                if (fd < 0)
                        return tdm_error_set(err, TDM_E_NO_MODEL, "cannot open model %s at %s: %s", name,
                                             m->files[i].path, strerror(-fd));
                return give_file(fd, m->files[i].path, strdup(name), ret_fd, ret_path, ret_name);
        }
        if (!may_be_name(name))
                return tdm_error_set(
                        err, TDM_E_NO_MODEL,
                        "%.*s is not a model's name; a file outside the model directories has to be opened by "
                        "the client",
                        TDM_UTF8_CUT(name, 200));
        for (char **dir = m->dirs; *dir; dir++) {
                int fd = open_in_dir(*dir, name, path, sizeof(path));

                if (fd == -ENOENT || fd == -ENOTDIR)
                        continue;
                if (fd < 0)
                        return tdm_error_set(err, TDM_E_NO_MODEL, "cannot open model %s at %s: %s", name, path,
                                             strerror(-fd));
                return give_file(fd, path, tdm_model_name_of_path(path), ret_fd, ret_path, ret_name);
        }
        return no_such_name(m, name, err);
}

struct scan {
        char *names[SCAN_SLOTS]; /* a hash table of those that were told */
        size_t n;
        bool cut;
        tdm_models_scanned_fn fn;
        void *userdata;
};

/* Tells a file of a name that was not told yet. */
static void scan_add(struct scan *s, const char *name, const char *path)
{
        struct tdm_file_identity identity;
        size_t at = tdm_fnv64(TDM_FNV64_BEGIN, name, strlen(name)) % SCAN_SLOTS;

        for (; s->names[at]; at = (at + 1) % SCAN_SLOTS)
                if (strcmp(s->names[at], name) == 0)
                        return;
        if (tdm_file_identify_path(path, &identity) < 0 || identity.size_bytes == 0)
                return;
        if (s->n == MAX_SCANNED) {
                s->cut = true;
                return;
        }
        s->names[at] = strdup(name);
        if (!s->names[at])
                return;
        s->n++;
        s->fn(name, path, identity.size_bytes + tdm_size_of_other_parts(path), &identity, s->userdata);
}

static void scan_dir(struct scan *s, const char *dir)
{
        DIR *d = opendir(dir);
        struct dirent *e;
        char path[4400];

        while (d && (e = readdir(d))) {
                size_t len = strlen(e->d_name);
                char name[256];
                size_t name_bytes;
                uint32_t no, n;
                bool is_part;

                if (e->d_name[0] == '.' || len < 6 || len > MAX_NAME_BYTES ||
                    strcmp(e->d_name + len - 5, ".gguf") != 0 || !tdm_utf8_is_valid(e->d_name, len))
                        continue;
                is_part = tdm_part_of_name(e->d_name, len - 5, &name_bytes, &no, &n) && n > 1;
                if ((is_part && no != 1) || tdm_is_projector_name(e->d_name))
                        continue;
                snprintf(name, sizeof(name), "%.*s", (int)(is_part ? name_bytes : len - 5), e->d_name);
                snprintf(path, sizeof(path), "%.4096s/%s", dir, e->d_name);
                scan_add(s, name, path);
        }
        if (d)
                closedir(d);
}

int tdm_models_scan(struct tdm_models *m, tdm_models_scanned_fn fn, void *userdata)
{
        struct scan *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->fn = fn;
        s->userdata = userdata;
        for (unsigned i = 0; i < m->n_files; i++)
                scan_add(s, m->files[i].name, m->files[i].path);
        for (char **dir = m->dirs; *dir; dir++)
                scan_dir(s, *dir);
        if (s->cut && !m->said_cut)
                tdm_log_warning("there are more than %u models in the model directories; lists end with the %uth. "
                                "Those beyond it can be used by their names",
                                MAX_SCANNED, MAX_SCANNED);
        m->said_cut = m->said_cut || s->cut;
        for (size_t i = 0; i < SCAN_SLOTS; i++)
                free(s->names[i]);
        free(s);
        return 0;
}

void tdm_models_take_dirs(struct tdm_models *models, char **dirs)
{
        tdm_strv_freep(&models->dirs);
        models->dirs = dirs;
}
