/* How much memory a model may take. Shared segments are shmem: they count against MemAvailable and against the memory
 * cgroup, so the smaller of both is available. This file only reads small files of the kernel. */
#include "daemon/models/load.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>

static int read_memory_file(const char *path, char *buffer, size_t size)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n;

        if (fd < 0)
                return -errno;
        n = read(fd, buffer, size - 1);
        if (n < 0)
                return -errno;
        buffer[n] = '\0';
        return 0;
}

static uint64_t meminfo_available(void)
{
        char text[4096];
        uint64_t kib;
        const char *p;

        if (read_memory_file("/proc/meminfo", text, sizeof(text)) < 0)
                return UINT64_MAX;
        p = strstr(text, "MemAvailable:");
        if (!p || sscanf(p, "MemAvailable: %" SCNu64, &kib) != 1)
                return UINT64_MAX;
        return kib * 1024;
}

/* How much a limit (a number, or "max") allows beyond the current use. File cache that can be reclaimed does not count
 * as used. */
static uint64_t limit_left(const char *dir, const char *limit_name, const char *used_name)
{
        char path[512], limit[64], used[64], stat[8192];
        uint64_t n_limit, n_used, n_file = 0;
        const char *p;

        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, limit_name) >= sizeof(path) ||
            read_memory_file(path, limit, sizeof(limit)) < 0 || sscanf(limit, "%" SCNu64, &n_limit) != 1)
                return UINT64_MAX;
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, used_name) >= sizeof(path) ||
            read_memory_file(path, used, sizeof(used)) < 0 || sscanf(used, "%" SCNu64, &n_used) != 1)
                return UINT64_MAX;
        if ((size_t)snprintf(path, sizeof(path), "%s/memory.stat", dir) < sizeof(path) &&
            read_memory_file(path, stat, sizeof(stat)) == 0) {
                p = strstr(stat, "inactive_file ");
                if (p)
                        (void)sscanf(p, "inactive_file %" SCNu64, &n_file);
        }
        n_used -= TDM_MIN(n_used, n_file);
        return n_limit - TDM_MIN(n_limit, n_used);
}

/* cgroup v2: every ancestor may have a limit. */
static uint64_t cgroup_left(void)
{
        char text[1024], dir[600], *path, *end;
        uint64_t left = UINT64_MAX;

        if (read_memory_file("/proc/self/cgroup", text, sizeof(text)) < 0)
                return UINT64_MAX;
        path = strstr(text, "0::/");
        if (!path)
                return UINT64_MAX;
        path += strlen("0::");
        path[strcspn(path, "\n")] = '\0';
        for (;;) {
                uint64_t here;

                if ((size_t)snprintf(dir, sizeof(dir), "/sys/fs/cgroup%s", path) >= sizeof(dir))
                        return left;
                here = limit_left(dir, "memory.max", "memory.current");
                left = TDM_MIN(left, here);
                end = strrchr(path, '/');
                if (!end || end == path)
                        return left;
                *end = '\0';
        }
}

static uint64_t address_space_left(void)
{
        struct rlimit limit;
        char text[128];
        uint64_t pages, used;

        if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
                return UINT64_MAX;
        if (read_memory_file("/proc/self/statm", text, sizeof(text)) < 0 || sscanf(text, "%" SCNu64, &pages) != 1)
                return UINT64_MAX;
        used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
        return limit.rlim_cur - TDM_MIN((uint64_t)limit.rlim_cur, used);
}

uint64_t tdm_memory_available(void)
{
        uint64_t n = meminfo_available(), cgroup = cgroup_left(), space = address_space_left();

        n = TDM_MIN(n, cgroup);
        return TDM_MIN(n, space);
}
