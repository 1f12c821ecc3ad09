/* The machine's files, and what is found: see machine.h. */
#include "client-lib/cli/doctor/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>

enum { MAX_NAMES = 512 };

/* ---- findings ---- */

static void write_line(struct doctor *d, const char *state, const char *what, const char *text)
{
        buf_printf(d->to, "%-5s %-12s %s\n", state, what, text);
}

static void format_text(char *to, size_t size, const char *fmt, va_list args) __attribute__((format(printf, 3, 0)));
static void format_text(char *to, size_t size, const char *fmt, va_list args)
{
        char text[1024];

        vsnprintf(text, sizeof(text), fmt, args);
        snprintf(to, size, "%s", term_safe(text));
}

void doctor_ok(struct doctor *d, const char *what, const char *fmt, ...)
{
        char text[1024];
        va_list args;

        va_start(args, fmt);
        format_text(text, sizeof(text), fmt, args);
        va_end(args);
        write_line(d, "ok", what, text);
}

void doctor_note(struct doctor *d, const char *what, const char *fmt, ...)
{
        char text[1024];
        va_list args;

        va_start(args, fmt);
        format_text(text, sizeof(text), fmt, args);
        va_end(args);
        write_line(d, "note", what, text);
}

/* rank: 1 and more, the lowest is said first. */
static void write_mend(struct doctor *d, unsigned rank, const char *mend, const char *what, const char *text)
{
        buf_printf(d->to, "%-18s %s\n", "", mend);
        if (d->first_rank != 0 && d->first_rank <= rank)
                return;
        d->first_rank = rank;
        snprintf(d->first, sizeof(d->first), "%s: %s", what, text);
        snprintf(d->first_mend, sizeof(d->first_mend), "%s", mend);
}

void doctor_advise(struct doctor *d, enum doctor_rank rank, const char *mend, const char *what, const char *fmt, ...)
{
        char text[1024];
        va_list args;

        va_start(args, fmt);
        format_text(text, sizeof(text), fmt, args);
        va_end(args);
        write_line(d, "note", what, text);
        write_mend(d, 101 + (unsigned)rank, mend, what, text);
}

void doctor_problem(struct doctor *d, enum doctor_rank rank, const char *mend, const char *what, const char *fmt, ...)
{
        char text[1024];
        va_list args;

        va_start(args, fmt);
        format_text(text, sizeof(text), fmt, args);
        va_end(args);
        write_line(d, "MEND", what, text);
        write_mend(d, 1 + (unsigned)rank, mend, what, text);
        d->n_problems++;
}

/* ---- files ---- */

void doctor_path(const struct doctor *d, char *to, size_t size, const char *fmt, ...)
{
        int n = snprintf(to, size, "%s", d->root);
        va_list args;

        if (n < 0 || (size_t)n >= size)
                return;
        va_start(args, fmt);
        vsnprintf(to + n, size - (size_t)n, fmt, args);
        va_end(args);
}

void doctor_read_line(const char *path, char *to, size_t size)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);

        if (fd >= 0)
                close(fd);
        to[TDM_MAX(n, 0)] = '\0';
        to[strcspn(to, "\n")] = '\0';
}

void doctor_read(const struct doctor *d, const char *path, char *to, size_t size)
{
        char full[4500];

        doctor_path(d, full, sizeof(full), "%s", path);
        doctor_read_line(full, to, size);
}

bool doctor_has(const struct doctor *d, const char *folder, const char *file)
{
        char path[4500];

        doctor_path(d, path, sizeof(path), "%s/%s", folder, file);
        return access(path, F_OK) == 0;
}

static int name_compare(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

void doctor_each(struct doctor *d, const char *folder, const char *prefix,
                 void (*fn)(struct doctor *d, const char *path, const char *name))
{
        char path[4096], entry[4400], *names[MAX_NAMES];
        struct dirent *e;
        size_t n = 0;
        DIR *dir;

        doctor_path(d, path, sizeof(path), "%s", folder);
        dir = opendir(path);
        if (!dir)
                return;
        while (n < MAX_NAMES && (e = readdir(dir))) {
                if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, strlen(prefix)) != 0)
                        continue;
                names[n] = strdup(e->d_name);
                n += names[n] != NULL;
        }
        closedir(dir);
        qsort(names, n, sizeof(names[0]), name_compare);
        for (size_t i = 0; i < n; i++) {
                snprintf(entry, sizeof(entry), "%s/%s", path, names[i]);
                fn(d, entry, names[i]);
                free(names[i]);
        }
}

bool doctor_booted_with(const struct doctor *d, const char *word)
{
        char line[4096], *rest = line, *w;

        doctor_read(d, "/proc/cmdline", line, sizeof(line));
        while ((w = strsep(&rest, " ")))
                if (strcmp(w, word) == 0)
                        return true;
        return false;
}

/* ---- groups ---- */

/* The numbers behind "Groups:" or "Gid:" of the process: those of this session. */
static bool session_has_gid(const struct doctor *d, unsigned long gid)
{
        char path[4500], line[4096];
        bool found = false;
        FILE *f;

        doctor_path(d, path, sizeof(path), "/proc/self/status");
        f = fopen(path, "re");
        while (f && !found && fgets(line, sizeof(line), f)) {
                char *at = strchr(line, ':'), *end;

                if (!at || (strncmp(line, "Groups:", 7) != 0 && strncmp(line, "Gid:", 4) != 0))
                        continue;
                for (at++; !found; at = end) {
                        unsigned long number = strtoul(at, &end, 10);

                        if (end == at)
                                break;
                        found = number == gid;
                }
        }
        if (f)
                fclose(f);
        return found;
}

/* A line of passwd or group whose third field is the number, or whose first is the name (number: ULONG_MAX). */
static bool find_account(const struct doctor *d, const char *file, const char *name, unsigned long number, char *to,
                         size_t size)
{
        char path[4500], line[4096];
        bool found = false;
        FILE *f;

        doctor_path(d, path, sizeof(path), "%s", file);
        f = fopen(path, "re");
        while (f && !found && fgets(line, sizeof(line), f)) {
                char *third = strchr(line, ':');
                size_t n = strcspn(line, ":");

                third = third ? strchr(third + 1, ':') : NULL;
                if (!third)
                        continue;
                line[strcspn(line, "\n")] = '\0';
                found = name ? strlen(name) == n && memcmp(line, name, n) == 0 : strtoul(third + 1, NULL, 10) == number;
                if (found)
                        snprintf(to, size, "%s", line);
        }
        if (f)
                fclose(f);
        return found;
}

static unsigned long session_uid(const struct doctor *d)
{
        char path[4500], line[256];
        unsigned long uid = geteuid();
        FILE *f;

        doctor_path(d, path, sizeof(path), "/proc/self/status");
        f = fopen(path, "re");
        while (f && fgets(line, sizeof(line), f))
                (void)sscanf(line, "Uid: %lu", &uid);
        if (f)
                fclose(f);
        return uid;
}

bool doctor_in_group(const struct doctor *d, const char *group, bool *ret_listed)
{
        char line[4096], user[4096], *fields[4] = { 0 }, *rest = line, *member;

        *ret_listed = false;
        if (!find_account(d, "/etc/group", group, 0, line, sizeof(line)))
                return false;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(fields) && rest; i++)
                fields[i] = strsep(&rest, ":");
        if (!fields[2])
                return false;
        if (fields[3] && find_account(d, "/etc/passwd", NULL, session_uid(d), user, sizeof(user))) {
                user[strcspn(user, ":")] = '\0';
                while ((member = strsep(&fields[3], ",")))
                        *ret_listed = *ret_listed || strcmp(member, user) == 0;
        }
        return session_has_gid(d, strtoul(fields[2], NULL, 10));
}
