/* tandem cache: beginnings of prompts on disk. It looks into the folder itself, so it works without a daemon. One that
 * runs notices by itself what is missing. */
#include "client-lib/cli/cli.h"
#include "common/cache-dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

struct cache_options {
        bool json, system;
};

extern const struct command command_cache;

/* PATH/vN/uUID/SET/PAGE: files lie at this depth. */
#define PAGE_DEPTH 4

struct cache_walk {
        bool drops;
        uint64_t n_pages, n_bytes, n_failed;
        time_t used_s; /* when the last one was */
};

static void cache_count(struct cache_walk *w, int at, const char *name)
{
        struct stat st;

        if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return;
        if (w->drops && unlinkat(at, name, 0) < 0 && errno != ENOENT) {
                w->n_failed++;
                return;
        }
        w->n_pages++;
        w->n_bytes += (uint64_t)st.st_size;
        w->used_s = TDM_MAX(w->used_s, st.st_mtim.tv_sec);
}

/* Only folders with names of the store are entered, and no link is followed. */
static int cache_enter(struct cache_walk *w, int at, const char *name, int depth)
{
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *e;

        if (!dir) {
                int r = -errno;

                closep(&fd);
                return r;
        }
        while ((e = readdir(dir))) {
                if (e->d_name[0] == '.' || (depth == 1 && e->d_name[0] != 'v') || (depth == 2 && e->d_name[0] != 'u'))
                        continue;
                if (depth == PAGE_DEPTH)
                        cache_count(w, dirfd(dir), e->d_name);
                else if (cache_enter(w, dirfd(dir), e->d_name, depth + 1) == 0 && w->drops)
                        (void)unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
        }
        closedir(dir);
        return 0;
}

static int cache_print(const struct cache_options *o, const struct cache_walk *w, const char *path)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        char when[64];
        struct tm tm;

        if (o->json) {
                buf_puts(&b, "{");
                json_field_string(&b, "path", path);
                json_field_u64(&b, "pages", w->n_pages);
                json_field_u64(&b, "bytes", w->n_bytes);
                json_field_bool(&b, "dropped", w->drops);
                buf_puts(&b, "}");
                return print_json(&b);
        }
        if (w->n_pages == 0)
                out_printf("%s: no prefixes\n", path);
        else if (w->drops)
                out_printf("%s: dropped %llu pages, %s\n", path, (unsigned long long)w->n_pages,
                           human_bytes(w->n_bytes));
        else {
                strftime(when, sizeof(when), "%Y-%m-%d %H:%M", localtime_r(&w->used_s, &tm));
                out_printf("%s: %llu pages, %s, last used %s\n", path, (unsigned long long)w->n_pages,
                           human_bytes(w->n_bytes), when);
        }
        return out_finish();
}

static int run_cache(struct cli *cli, int argc, char **argv)
{
        struct cache_options options = { 0 };
        _cleanup_(freep) char *path = NULL;
        struct cache_walk walk = { 0 };
        const char *what = NULL;
        unsigned n;
        int status, r;

        if (cli_parse(cli, &command_cache, argc, argv, &options, &what, 1, &n, &status))
                return status;
        if (n > 0 && strcmp(what, "show") != 0 && strcmp(what, "drop") != 0) {
                complain("%s is neither show nor drop", what);
                return EXIT_USAGE;
        }
        walk.drops = n > 0 && strcmp(what, "drop") == 0;
        r = tdm_cache_dir(options.system, "prefixes", false, &path);
        if (r < 0)
                return complain("no folder for prefixes: %s", strerror(-r));
        r = cache_enter(&walk, AT_FDCWD, path, 1);
        if (r < 0 && r != -ENOENT)
                return complain("cannot look into %s: %s", path, strerror(-r));
        if (walk.n_failed > 0)
                return complain("%llu pages in %s cannot be removed", (unsigned long long)walk.n_failed, path);
        return cache_print(&options, &walk, path);
}

static const struct arg args[] = {
        { .name = "system",
          .at = offsetof(struct cache_options, system),
          .brief = "those of the system's service, for root" },
        ARG_JSON(struct cache_options, json, "one JSON object: path, pages, bytes, dropped"),
};

static const char *const choices[] = { "show", "drop", NULL };

const struct command command_cache = {
        .name = "cache",
        .summary = "beginnings of prompts that are kept on disk",
        .usage = "[--system] [--json] [show|drop]",
        .about = "tandemd keeps on disk what it has read of prompts, so that it does not read them again after a "
                 "restart (prefix-store in tandem.conf). This command shows how much that is, or drops it all.\n\n"
                 "What a daemon has in memory stays there until its model leaves.",
        COMMAND_ARGS(args),
        .choices = choices,
        .run = run_cache,
};
