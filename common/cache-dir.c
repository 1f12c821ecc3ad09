#include "common/cache-dir.h"

#include <sys/stat.h>

static int print_base(bool system, char *to, size_t size)
{
        const char *service = getenv("CACHE_DIRECTORY"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        int n;

        if (service && service[0] == '/')
                n = snprintf(to, size, "%.*s", (int)strcspn(service, ":"), service);
        else if (system)
                n = snprintf(to, size, "/var/cache/tandem");
        else if (xdg && xdg[0] == '/')
                n = snprintf(to, size, "%s/tandem", xdg);
        else if (home && home[0] == '/')
                n = snprintf(to, size, "%s/.cache/tandem", home);
        else
                return -ENOENT;
        return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

void tdm_make_parents(char *path)
{
        for (char *p = path + 1; (p = strchr(p, '/')); p++) {
                *p = 0;
                (void)mkdir(path, 0700);
                *p = '/';
        }
}

int tdm_cache_dir(bool system, const char *name, bool make, char **ret)
{
        char base[4096], *path;
        int r = print_base(system, base, sizeof(base));

        if (r < 0)
                return r;
        if (asprintf(&path, "%s/%s", base, name) < 0)
                return -ENOMEM;
        if (make)
                tdm_make_parents(path);
        *ret = path;
        return 0;
}
