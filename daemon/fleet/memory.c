/* What was measured, over the daemon's lives: one line "IDENTITY<tab>PLAN" for each model and pair of devices, in a
 * file of the state directory ($STATE_DIRECTORY as a service, else $XDG_STATE_HOME/tandem). A plan that changed with
 * every start would change a job's bits with it. Deleting the file makes tandemd measure again.
 *
 * The file is a help and never a need: one that cannot be read or written is said once and done without, and a line
 * that makes no sense is passed over. */
#include "daemon/fleet/private.h"

#include <fcntl.h>
#include <sys/stat.h>

#define MAX_FILE_BYTES (64u << 10)

static const char *const plan_names[] = {
        [TDM_MEASURED_SPLIT] = "split",
        [TDM_MEASURED_NPU] = "npu",
        [TDM_MEASURED_GPU] = "gpu",
};

/* The directory is there afterwards, or there is none. */
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
        for (char *p = path + 1; (p = strchr(p, '/')); p++) {
                *p = 0;
                (void)mkdir(path, 0700);
                *p = '/';
        }
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

static void take_line(struct tdm_fleet *f, char *line)
{
        char *tab = strchr(line, '\t');

        if (!tab || tab == line || tab - line >= TDM_FLEET_IDENTITY)
                return;
        *tab++ = 0;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(plan_names); i++)
                if (strcmp(tab, plan_names[i]) == 0)
                        tdm_fleet_remember(f, line, (enum tdm_measured)i);
}

void tdm_fleet_memory_load(struct tdm_fleet *f)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(closep) int fd = -1;
        char path[4096], *rest, *line;
        ssize_t n;

        if (file_path(path, sizeof(path), "") < 0)
                return;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
                return; /* nothing was measured yet */
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
                        take_line(f, line);
}

static int write_all(const struct tdm_fleet *f, FILE *file)
{
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->memory[i].identity[0] && f->memory[i].measured < TDM_ARRAY_SIZE(plan_names))
                        fprintf(file, "%s\t%s\n", f->memory[i].identity, plan_names[f->memory[i].measured]);
        return fflush(file) != 0 || ferror(file) ? -EIO : 0;
}

/* Whole or not at all. */
void tdm_fleet_memory_save(const struct tdm_fleet *f)
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
        if (!file || write_all(f, file) < 0 || rename(temporary, path) < 0)
                tdm_log_warning("cannot write %s: %m; plans will be measured again at the next start", path);
}
