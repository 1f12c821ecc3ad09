/* See port-owner.h. /proc/net/tcp has a line for each socket with its inode, and /proc/PID/fd a link to that inode.
 * Only root sees the links of other users' processes. */
#include "http-gateway/port-owner.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pwd.h>

#define TCP_LISTEN_STATE 0x0au
#define ADDRESS_WORDS 4u /* of 32 bits; IPv4 has one */

struct listening {
        uint64_t inode;
        unsigned uid;
};

/* The kernel writes an address as words of the machine's own byte order. */
static unsigned address_words(const struct sockaddr *address, uint32_t ret[ADDRESS_WORDS])
{
        if (address->sa_family == AF_INET) {
                memcpy(ret, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
                return 1;
        }
        memcpy(ret, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
        return ADDRESS_WORDS;
}

static unsigned address_port(const struct sockaddr *address)
{
        return address->sa_family == AF_INET ? ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port) :
                                               ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port);
}

static bool words_are_zero(const uint32_t *words, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                if (words[i])
                        return false;
        return true;
}

/* Whether a socket that listens on one address keeps another from it: the same, or all addresses on either side. */
static bool address_collides(const uint32_t *a, unsigned n_a, const uint32_t *b, unsigned n_b)
{
        if (words_are_zero(a, n_a) || words_are_zero(b, n_b))
                return true;
        return n_a == n_b && memcmp(a, b, n_a * sizeof(*a)) == 0;
}

static bool find_listening(const char *path, const struct sockaddr *address, struct listening *ret)
{
        _cleanup_(fclosep) FILE *file = fopen(path, "re");
        uint32_t wanted[ADDRESS_WORDS];
        unsigned n_wanted = address_words(address, wanted);
        char line[512];

        while (file && fgets(line, sizeof(line), file)) {
                uint32_t local[ADDRESS_WORDS];
                char hex[ADDRESS_WORDS * 8 + 1];
                unsigned port, state, n = 0;

                if (sscanf(line, " %*u: %32[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u %*s %" SCNu64, hex, &port, &state,
                           &ret->uid, &ret->inode) != 5 ||
                    state != TCP_LISTEN_STATE || port != address_port(address))
                        continue;
                while (n < ADDRESS_WORDS && sscanf(hex + (size_t)n * 8, "%8" SCNx32, &local[n]) == 1)
                        n++;
                if (address_collides(wanted, n_wanted, local, n))
                        return true;
        }
        return false;
}

static bool process_has(const char *pid, uint64_t inode)
{
        char path[300], link[64], wanted[64];
        struct dirent *entry;
        bool found = false;
        DIR *folder;

        snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
        snprintf(path, sizeof(path), "/proc/%s/fd", pid);
        folder = opendir(path);
        if (!folder)
                return false;
        while (!found && (entry = readdir(folder))) {
                ssize_t n = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);

                found = n == (ssize_t)strlen(wanted) && memcmp(link, wanted, (size_t)n) == 0;
        }
        closedir(folder);
        return found;
}

/* "ollama (pid 4711)" */
static bool name_process(uint64_t inode, char *to, size_t size)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        bool found = false;

        while (proc && !found && (entry = readdir(proc))) {
                _cleanup_(fclosep) FILE *file = NULL;
                char path[300], name[32] = "";

                if (!isdigit((unsigned char)entry->d_name[0]) || !process_has(entry->d_name, inode))
                        continue;
                snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
                file = fopen(path, "re");
                if (!file || !fgets(name, sizeof(name), file))
                        continue;
                name[strcspn(name, "\n")] = '\0';
                for (char *p = name; *p; p++)
                        *p = isprint((unsigned char)*p) ? *p : '?';
                snprintf(to, size, "%s (pid %.16s)%s", name, entry->d_name,
                         strcmp(name, "systemd") == 0 ? " for a unit, perhaps tandem-http.socket" : "");
                found = true;
        }
        if (proc)
                closedir(proc);
        return found;
}

bool port_owner(const struct sockaddr *address, char *to, size_t size)
{
        struct listening found;
        const struct passwd *user;

        if (address->sa_family != AF_INET && address->sa_family != AF_INET6)
                return false;
        if (!find_listening("/proc/net/tcp", address, &found) && !find_listening("/proc/net/tcp6", address, &found))
                return false;
        if (name_process(found.inode, to, size))
                return true;
        user = getpwuid(found.uid);
        snprintf(to, size, "a process of user %s", user ? user->pw_name : "unknown");
        return true;
}
