#include "client-lib/store/folder.h"
#include "common/utf8.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MAX_NAME_BYTES 235u /* with .gguf as many as tandemd lists */

static int out_of_memory(struct tdm_error *err)
{
        return tdm_error_set(err, -ENOMEM, "out of memory");
}

int folder_of_user(char **ret, struct tdm_error *err)
{
        const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
        int n;

        if (data && data[0] == '/')
                n = asprintf(ret, "%s/tandem/models", data);
        else if (home && home[0] == '/')
                n = asprintf(ret, "%s/.local/share/tandem/models", home);
        else
                return tdm_error_set(err, TDM_E_DENIED, "HOME is not set: say with --to where models shall lie");
        return n < 0 ? out_of_memory(err) : 0;
}

int folder_make(const char *path, int *ret_fd, struct tdm_error *err)
{
        _cleanup_(freep) char *copy = strdup(path);
        int fd;

        if (!copy)
                return out_of_memory(err);
        for (char *p = copy + 1;; p++) {
                if (*p != '/' && *p != '\0')
                        continue;
                char kept = *p;

                *p = '\0';
                if (mkdir(copy, 0755) < 0 && errno != EEXIST)
                        return tdm_error_set(err, TDM_E_DENIED, "cannot make the folder %s: %s", copy, strerror(errno));
                if (!kept)
                        break;
                *p = kept;
        }
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOTDIR)
                return tdm_error_set(err, TDM_E_DENIED, "%s is not a folder", path);
        if (fd < 0)
                return tdm_error_set(err, TDM_E_DENIED, "cannot open the folder %s: %s", path, strerror(errno));
        *ret_fd = fd;
        return 0;
}

char *folder_file(const char *folder, const char *name)
{
        char *path;

        return asprintf(&path, "%s/%s.gguf", folder, name) < 0 ? NULL : path;
}

char *folder_name_of(const char *path)
{
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        size_t n = strlen(base);

        if (n > 5 && strcmp(base + n - 5, ".gguf") == 0)
                n -= 5;
        return strndup(base, n);
}

int folder_check_name(const char *name, struct tdm_error *err)
{
        size_t n = strlen(name);

        if (n == 0 || n > MAX_NAME_BYTES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a model's name has 1 to %u bytes", MAX_NAME_BYTES);
        if (name[0] == '.' || strchr(name, '/'))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "'%s' is not a model's name: it begins with '.' or has a '/' in it", name);
        for (size_t i = 0; i < n; i++)
                if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "a model's name has no control characters");
        if (!tdm_utf8_is_valid(name, n))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a model's name is UTF-8");
        return 0;
}

bool folder_is_part(const char *name, size_t *ret_stem, unsigned *ret_part, unsigned *ret_n)
{
        static const char form[] = "-00000-of-00000";
        size_t n = strlen(name), size = sizeof(form) - 1;
        const char *end;

        if (n <= size)
                return false;
        end = name + n - size;
        for (size_t i = 0; i < size; i++)
                if (form[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != form[i])
                        return false;
        *ret_stem = n - size;
        *ret_part = (unsigned)strtoul(end + 1, NULL, 10);
        *ret_n = (unsigned)strtoul(end + 10, NULL, 10);
        return *ret_part >= 1 && *ret_part <= *ret_n;
}

bool folder_is_projector(const char *base)
{
        return strncmp(base, "mmproj-", 7) == 0;
}

char *folder_projector_name(const char *name)
{
        size_t stem = strlen(name);
        unsigned part, n;
        char *ret;

        if (!folder_is_part(name, &stem, &part, &n))
                stem = strlen(name);
        return asprintf(&ret, "mmproj-%.*s", (int)stem, name) < 0 ? NULL : ret;
}

void folder_each(const char *folder, bool (*fn)(const char *path, uint64_t size_bytes, void *userdata), void *userdata)
{
        DIR *d = opendir(folder);
        const struct dirent *e;
        bool more = true;

        while (d && more && (e = readdir(d))) {
                size_t n = strlen(e->d_name);
                _cleanup_(freep) char *path = NULL;
                struct stat st;

                if (e->d_name[0] == '.' || n <= 5 || strcmp(e->d_name + n - 5, ".gguf") != 0 ||
                    folder_is_projector(e->d_name))
                        continue;
                if (asprintf(&path, "%s/%s", folder, e->d_name) < 0)
                        path = NULL;
                if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
                        more = fn(path, (uint64_t)st.st_size, userdata);
        }
        if (d)
                closedir(d);
}

/* How many bytes of the name are the model's: it ends in .gguf, or in what incoming.h puts behind that. 0: neither. */
static size_t model_name_bytes(const char *base)
{
        static const char *const endings[] = { ".gguf", ".gguf.part", ".gguf.part.info" };
        size_t n = strlen(base);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(endings); i++) {
                size_t m = strlen(endings[i]);

                if (n > m && strcmp(base + n - m, endings[i]) == 0)
                        return n - m;
        }
        return 0;
}

void folder_each_name(int folder_fd, bool (*fn)(const char *name, void *userdata), void *userdata)
{
        int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        const struct dirent *e;
        bool more = true;

        while (d && more && (e = readdir(d))) {
                size_t n = model_name_bytes(e->d_name);
                _cleanup_(freep) char *name = n > 0 && e->d_name[0] != '.' ? strndup(e->d_name, n) : NULL;

                if (name)
                        more = fn(name, userdata);
        }
        if (d)
                closedir(d);
        else
                closep(&fd);
}

struct finding {
        const char *name;
        char *path; /* found; owned */
        struct tdm_suggestion *near;
};

static bool find_one(const char *path, uint64_t size_bytes, void *userdata)
{
        struct finding *f = userdata;
        _cleanup_(freep) char *name = folder_name_of(path);
        size_t stem, n_name = strlen(f->name);
        unsigned part, n;

        if (!name)
                return false;
        if (folder_is_part(name, &stem, &part, &n) && part == 1 && n_name == stem && strncmp(name, f->name, stem) == 0)
                name[stem] = '\0';
        tdm_suggest(f->near, name);
        if (strcmp(name, f->name) == 0)
                f->path = strdup(path);
        return f->path == NULL;
}

char *folder_find(const char *folder, const char *name, struct tdm_suggestion *near)
{
        struct finding f = { .name = name, .near = near };

        folder_each(folder, find_one, &f);
        return f.path;
}
