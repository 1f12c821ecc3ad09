/* Subordinate uid ranges; see the header. */
#include "daemon/accounts/subuids.h"

#include <pwd.h>

int tdm_uid_of_name(const char *name, uid_t *ret)
{
        _cleanup_(freep) char *buffer = NULL;
        struct passwd entry, *found = NULL;
        size_t size = 16384;
        int r;

        buffer = malloc(size);
        if (!buffer)
                return -ENOMEM;
        r = getpwnam_r(name, &entry, buffer, size, &found);
        if (!found)
                return r ? -r : -ENOENT;
        *ret = entry.pw_uid;
        return 0;
}

/* A whole decimal number up to `most`. */
static bool parse_subuid_number(const char *text, uint64_t most, uint64_t *ret)
{
        uint64_t value = 0;

        if (!*text)
                return false;
        for (; *text; text++) {
                if (*text < '0' || *text > '9')
                        return false;
                value = value * 10 + (uint64_t)(*text - '0');
                if (value > most)
                        return false;
        }
        *ret = value;
        return true;
}

static bool parse_line(char *line, tdm_uid_of_name_fn uid_of_name, struct tdm_uid_range *ret)
{
        char *save = NULL, *name = strtok_r(line, ":", &save), *first = strtok_r(NULL, ":", &save);
        char *count = strtok_r(NULL, ":\n", &save);
        uint64_t owner, from, n;
        uid_t uid;

        if (!name || !first || !count || !parse_subuid_number(first, UINT32_MAX - 1, &from) ||
            !parse_subuid_number(count, UINT32_MAX - from, &n))
                return false;
        if (parse_subuid_number(name, UINT32_MAX - 1, &owner))
                uid = (uid_t)owner;
        else if (uid_of_name(name, &uid) < 0)
                return false;
        *ret = (struct tdm_uid_range){ .first = (uid_t)from, .count = (uid_t)n, .owner = uid };
        return true;
}

int tdm_subuids_read(const char *path, tdm_uid_of_name_fn uid_of_name, struct tdm_uid_range **ret_ranges, size_t *ret_n)
{
        _cleanup_(freep) struct tdm_uid_range *ranges = NULL;
        _cleanup_(fclosep) FILE *f = fopen(path, "re");
        _cleanup_(freep) char *line = NULL;
        size_t n = 0, capacity = 0, line_size = 0;

        if (!f && errno != ENOENT)
                return -errno;
        while (f && n < TDM_MAX_SUBUID_RANGES && getline(&line, &line_size, f) >= 0) {
                struct tdm_uid_range range;

                if (!parse_line(line, uid_of_name, &range))
                        continue;
                if (n == capacity) {
                        size_t more = capacity ? capacity * 2 : 64;
                        struct tdm_uid_range *grown = realloc(ranges, more * sizeof(*grown));

                        if (!grown)
                                return -ENOMEM;
                        ranges = grown;
                        capacity = more;
                }
                ranges[n++] = range;
        }
        *ret_ranges = steal_ptr(&ranges);
        *ret_n = n;
        return 0;
}
