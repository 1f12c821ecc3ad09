/* The results of trials, kept in a file over the daemon's lives.
 *
 * The file has one line "IDENTITY<tab>PLACEMENT" for each model and pair of devices. It is called "plans" and lies in
 * the state directory ($STATE_DIRECTORY as a service, else $XDG_STATE_HOME/tandem). A job's bits depend on the
 * placement, so a restart alone must not change it. Deleting the file makes tandemd measure before the first job.
 *
 * tandemd works without the file too. A file that cannot be read or written is logged once, and a line that cannot be
 * understood is skipped. */
#include "daemon/placement/placement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include "common/cache-dir.h"
#include "common/log.h"

#define MAX_FILE_BYTES (64u << 10)

struct tdm_placement_store {
        unsigned max_entries, n_added;
        struct {
                char identity[TDM_PLACEMENT_IDENTITY]; /* empty: free */
                enum tdm_placement placement;
        } entries[];
};

/* Makes the directory where it is missing. -ENOENT: the environment names none. */
static int state_directory(char *path, size_t size)
{
        const char *service = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
        int n;

        if (service && service[0] == '/')
                n = snprintf(path, size, "%.*s", (int)strcspn(service, ":"), service);
        else if (xdg && xdg[0] == '/')
                n = snprintf(path, size, "%s/tandem", xdg);
        else if (home && home[0] == '/')
                n = snprintf(path, size, "%s/.local/state/tandem", home);
        else
                return -ENOENT;
        if (n < 0 || (size_t)n >= size)
                return -ENAMETOOLONG;
        tdm_make_parents(path);
        return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

static int file_path(char *path, size_t size, const char *suffix)
{
        int r = state_directory(path, size);
        size_t n = strlen(path);

        if (r < 0)
                return r;
        return (size_t)snprintf(path + n, size - n, "/plans%s", suffix) < size - n ? 0 : -ENAMETOOLONG;
}

static enum tdm_placement kept_from_name(const char *name)
{
        for (int i = 0; i < (int)TDM_N_PLACEMENTS; i++)
                if (tdm_placement_is_fixed((enum tdm_placement)i) &&
                    strcmp(name, tdm_placement_name((enum tdm_placement)i)) == 0)
                        return (enum tdm_placement)i;
        return TDM_PLACEMENT_ANY;
}

static void take_line(struct tdm_placement_store *store, char *line)
{
        char *tab = strchr(line, '\t');
        enum tdm_placement placement;

        if (!tab || tab == line || tab - line >= TDM_PLACEMENT_IDENTITY)
                return;
        *tab++ = 0;
        placement = kept_from_name(tab);
        if (placement != TDM_PLACEMENT_ANY)
                tdm_placement_store_add(store, line, placement);
}

static void store_read_file(struct tdm_placement_store *store)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(closep) int fd = -1;
        char path[4096], *rest, *line;
        ssize_t n;

        if (file_path(path, sizeof(path), "") < 0)
                return;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
                return; /* no trial has been run yet */
        text = malloc(MAX_FILE_BYTES + 1);
        n = text ? read(fd, text, MAX_FILE_BYTES) : -1;
        if (n < 0) {
                tdm_log_warning("cannot read %s, so plans are measured again: %m", path);
                return;
        }
        text[n] = 0;
        rest = text;
        while ((line = strsep(&rest, "\n")))
                if (rest) /* a line without an end was cut */
                        take_line(store, line);
}

int tdm_placement_store_new(struct tdm_placement_store **ret, unsigned max_entries)
{
        struct tdm_placement_store *store = calloc(1, sizeof(*store) + max_entries * sizeof(store->entries[0]));

        if (!store)
                return -ENOMEM;
        store->max_entries = max_entries;
        store_read_file(store);
        *ret = store;
        return 0;
}

void tdm_placement_store_destroy(struct tdm_placement_store *store)
{
        free(store);
}

enum tdm_placement tdm_placement_store_find(const struct tdm_placement_store *store, const char *identity)
{
        for (unsigned i = 0; i < store->max_entries; i++)
                if (store->entries[i].identity[0] && strcmp(store->entries[i].identity, identity) == 0)
                        return store->entries[i].placement;
        return TDM_PLACEMENT_ANY;
}

void tdm_placement_store_add(struct tdm_placement_store *store, const char *identity, enum tdm_placement placement)
{
        unsigned i = 0;

        while (i < store->max_entries && strcmp(store->entries[i].identity, identity) != 0)
                i++;
        if (i == store->max_entries)
                i = store->n_added++ % store->max_entries;
        snprintf(store->entries[i].identity, sizeof(store->entries[i].identity), "%s", identity);
        store->entries[i].placement = placement;
}

unsigned tdm_placement_store_n_added(const struct tdm_placement_store *store)
{
        return store->n_added;
}

static int write_all(const struct tdm_placement_store *store, FILE *file)
{
        for (unsigned i = 0; i < store->max_entries; i++)
                if (store->entries[i].identity[0] && tdm_placement_is_fixed(store->entries[i].placement))
                        fprintf(file, "%s\t%s\n", store->entries[i].identity,
                                tdm_placement_name(store->entries[i].placement));
        return fflush(file) != 0 || ferror(file) ? -EIO : 0;
}

/* Writes a new file and renames it, so that a reader never sees half a file. */
void tdm_placement_store_save(const struct tdm_placement_store *store)
{
        _cleanup_(fclosep) FILE *file = NULL;
        char path[4096], temporary[4096];
        int r = file_path(path, sizeof(path), ""), fd;

        if (r == 0)
                r = file_path(temporary, sizeof(temporary), ".new");
        if (r < 0)
                return;
        (void)unlink(temporary);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        file = fd < 0 ? NULL : fdopen(fd, "w");
        if (!file && fd >= 0)
                close(fd);
        if (!file || write_all(store, file) < 0 || rename(temporary, path) < 0)
                tdm_log_warning("cannot write %s: %m; plans will be measured again at the next start", path);
}
