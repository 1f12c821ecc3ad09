/* Which configuration files are read, in which order: the main file, then drop-ins (*.conf of the directories beside
 * it), sorted by their names over all directories. A drop-in of a later directory replaces one of the same name in an
 * earlier directory, so an administrator can replace a vendor's file, or disable it with an empty file or a link to
 * /dev/null. Reading again (SIGHUP) begins with fresh defaults, so a key that was removed from a file gets its default
 * back. What a key means is in config-ini.c. */
#include "daemon/service/config-private.h"

#include <dirent.h>
#include <sys/stat.h>

#define MAX_DROP_INS 256u
#define MAX_PATH_BYTES 4200u

struct drop_in {
        char *name; /* points into path */
        char *path;
};

struct drop_ins {
        struct drop_in list[MAX_DROP_INS];
        size_t n;
};

static void drop_ins_deinit(struct drop_ins *d)
{
        for (size_t i = 0; i < d->n; i++)
                free(d->list[i].path);
        d->n = 0;
}

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct drop_in *)a)->name, ((const struct drop_in *)b)->name);
}

static int add_drop_in(struct drop_ins *d, const char *dir, const char *name, struct tdm_error *err)
{
        struct drop_in *at = NULL;
        char *path;

        if (asprintf(&path, "%s/%s", dir, name) < 0)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < d->n; i++)
                if (strcmp(d->list[i].name, name) == 0)
                        at = &d->list[i];
        if (!at && d->n == MAX_DROP_INS) {
                free(path);
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s has more than %u configuration files", dir,
                                     MAX_DROP_INS);
        }
        if (at)
                free(at->path);
        else
                at = &d->list[d->n++];
        *at = (struct drop_in){ .path = path, .name = strrchr(path, '/') + 1 };
        return 0;
}

/* A missing directory is normal; one that cannot be read is reported. */
static int scan_directory(struct drop_ins *d, const char *dir, struct tdm_error *err)
{
        DIR *stream = opendir(dir);
        struct dirent *e;
        int r = 0;

        if (!stream)
                return errno == ENOENT || errno == ENOTDIR ?
                               0 :
                               tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot read configuration %s: %s", dir,
                                             strerror(errno));
        while (r == 0 && (e = readdir(stream))) {
                size_t len = strlen(e->d_name);

                if (e->d_name[0] != '.' && len > 5 && strcmp(e->d_name + len - 5, ".conf") == 0)
                        r = add_drop_in(d, dir, e->d_name, err);
        }
        closedir(stream);
        return r;
}

static int read_one(struct tdm_config *c, const char *path, struct tdm_error *err)
{
        int r = tdm_config_strv_add(&c->files, path, strlen(path));

        return r < 0 ? tdm_error_set(err, r, "out of memory") : tdm_config_read_file(c, path, err);
}

int tdm_config_read_files(struct tdm_config *c, const char *main_path, const char *const *dirs, struct tdm_error *err)
{
        _cleanup_(freep) struct drop_ins *d = calloc(1, sizeof(*d));
        int r = 0;

        if (!d)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (main_path)
                r = read_one(c, main_path, err);
        for (; r == 0 && *dirs; dirs++)
                r = scan_directory(d, *dirs, err);
        qsort(d->list, d->n, sizeof(d->list[0]), by_name);
        for (size_t i = 0; r == 0 && i < d->n; i++)
                r = read_one(c, d->list[i].path, err);
        drop_ins_deinit(d);
        return r;
}

int tdm_config_read_default_files(struct tdm_config *c, struct tdm_error *err)
{
        const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
        char path[MAX_PATH_BYTES], beside[MAX_PATH_BYTES + 2];
        const char *dirs[3] = { NULL };
        size_t n = 0;

        if (c->file) {
                snprintf(path, sizeof(path), "%.4100s", c->file);
        } else if (c->system) {
                snprintf(path, sizeof(path), "/etc/tandem/tandem.conf");
                dirs[n++] = "/usr/lib/tandem/tandem.conf.d";
        } else if (xdg && xdg[0] == '/') {
                snprintf(path, sizeof(path), "%.4100s/tandem/tandem.conf", xdg);
        } else if (home && home[0] == '/') {
                snprintf(path, sizeof(path), "%.4100s/.config/tandem/tandem.conf", home);
        } else {
                return 0; /* nowhere to look */
        }
        snprintf(beside, sizeof(beside), "%s.d", path);
        dirs[n++] = beside;
        return tdm_config_read_files(c, c->file || access(path, F_OK) == 0 ? path : NULL, dirs, err);
}
