/* Hosts, origins and keys: see guard.h. Nothing is looked up: names are compared as they are written. */
#include "http-gateway/guard.h"

#include <arpa/inet.h>
#include <strings.h>

#define MAX_HOST_BYTES 255u

/* The name in front of ":port", without the brackets of IPv6, lower case. False: that is no host. */
static bool split_host(const char *value, char name[MAX_HOST_BYTES + 1])
{
        const char *end, *port;
        size_t n;

        if (value[0] == '[') {
                end = strchr(value, ']');
                if (!end)
                        return false;
                port = end + 1;
                value++;
        } else {
                end = port = value + strcspn(value, ":");
        }
        if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1) || strlen(port) > 6))
                return false;
        n = (size_t)(end - value);
        if (n == 0 || n > MAX_HOST_BYTES)
                return false;
        for (size_t i = 0; i < n; i++) {
                if (value[i] <= ' ' || value[i] >= 127 || strchr("/@?#\\,;", value[i]))
                        return false;
                name[i] = value[i] >= 'A' && value[i] <= 'Z' ? (char)(value[i] + 32) : value[i];
        }
        if (n > 1 && name[n - 1] == '.') /* the root's dot */
                n--;
        name[n] = '\0';
        return true;
}

/* A loopback address, or the one at which the connection came in. */
static bool is_our_literal(const struct sockaddr_storage *local, const char *name)
{
        struct in6_addr six;
        struct in_addr four;

        if (inet_pton(AF_INET, name, &four) == 1) {
                if (ntohl(four.s_addr) >> 24 == 127)
                        return true;
                if (local->ss_family == AF_INET6) { /* a socket for both kinds */
                        const struct in6_addr *mapped = &((const struct sockaddr_in6 *)local)->sin6_addr;

                        return IN6_IS_ADDR_V4MAPPED(mapped) && memcmp(mapped->s6_addr + 12, &four, sizeof(four)) == 0;
                }
                return local->ss_family == AF_INET && four.s_addr != INADDR_ANY &&
                       four.s_addr == ((const struct sockaddr_in *)local)->sin_addr.s_addr;
        }
        if (inet_pton(AF_INET6, name, &six) == 1)
                return IN6_IS_ADDR_LOOPBACK(&six) ||
                       (local->ss_family == AF_INET6 && !IN6_IS_ADDR_UNSPECIFIED(&six) &&
                        IN6_ARE_ADDR_EQUAL(&six, &((const struct sockaddr_in6 *)local)->sin6_addr));
        return false;
}

static bool ends_in(const char *name, const char *suffix)
{
        size_t n = strlen(name), m = strlen(suffix);

        return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Names that no public name server gives out, so that no page from elsewhere can make them lead here; and the
 * machine's own. */
static bool is_of_the_network(const char *name)
{
        char own[MAX_HOST_BYTES + 1];

        if (ends_in(name, ".local") || ends_in(name, ".internal"))
                return true;
        if (gethostname(own, sizeof(own)) < 0)
                return false;
        own[sizeof(own) - 1] = '\0';
        return own[0] && strcasecmp(name, own) == 0;
}

static bool is_admitted(const struct config *c, const struct sockaddr_storage *local, const char *name)
{
        size_t n = strlen(name);

        if (strcmp(name, "localhost") == 0 || is_our_literal(local, name))
                return true;
        for (unsigned i = 0; i < c->n_hosts; i++) {
                const char *allowed = c->hosts[i];
                size_t m = strlen(allowed);

                if (strcasecmp(name, allowed) == 0)
                        return true;
                if (m > 2 && allowed[0] == '*' && allowed[1] == '.' && n > m - 1 &&
                    strcasecmp(name + n - (m - 1), allowed + 1) == 0)
                        return true;
        }
        return false;
}

int guard_check_host(const struct config *c, const struct sockaddr_storage *local, const char *host, struct failure *f)
{
        char name[MAX_HOST_BYTES + 1];

        if (!host)
                return failure_set(f, 400, "invalid_host", NULL, "the request has no Host");
        if (!split_host(host, name))
                return failure_set(f, 400, "invalid_host", NULL, "the request's Host is not a host");
        if (!is_admitted(c, local, name) && !is_of_the_network(name))
                return failure_set(f, 403, "host_not_allowed", NULL,
                                   "this server does not answer under the name '%.200s'; --host allows names", name);
        return 0;
}

int guard_check_origin(const struct config *c, const struct sockaddr_storage *local, const char *origin,
                       struct failure *f)
{
        char name[MAX_HOST_BYTES + 1];
        const char *host = NULL;

        for (unsigned i = 0; i < c->n_origins; i++) {
                size_t n = strlen(c->origins[i]);

                if (strcmp(origin, c->origins[i]) == 0 ||
                    (n > 1 && c->origins[i][n - 1] == '*' && strncmp(origin, c->origins[i], n - 1) == 0))
                        return 0;
        }
        if (strncasecmp(origin, "http://", 7) == 0)
                host = origin + 7;
        else if (strncasecmp(origin, "https://", 8) == 0)
                host = origin + 8;
        if (host && split_host(host, name) && is_admitted(c, local, name))
                return 0;
        return failure_set(f, 403, "origin_not_allowed", NULL,
                           "pages of '%.200s' may not use this server; --origin allows origins", origin);
}

/* Looks at every byte of every key, whatever matches. */
static const struct api_key *find_key(const struct config *c, const char *given)
{
        char padded[MAX_KEY_BYTES] = { 0 };
        const struct api_key *found = NULL;
        size_t n = strlen(given);

        if (n == 0 || n >= sizeof(padded))
                return NULL;
        memcpy(padded, given, n);
        for (unsigned i = 0; i < c->n_keys; i++) {
                volatile unsigned char difference = 0;

                for (size_t b = 0; b < sizeof(padded); b++)
                        difference = difference | ((unsigned char)padded[b] ^ (unsigned char)c->keys[i].key[b]);
                found = difference == 0 ? &c->keys[i] : found;
        }
        explicit_bzero(padded, sizeof(padded));
        return found;
}

int guard_check_key(const struct config *c, const char *authorization, const char *x_api_key, const char **ret,
                    struct failure *f)
{
        const char *given = x_api_key;
        const struct api_key *key;

        *ret = NULL;
        if (c->n_keys == 0)
                return 0;
        if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
                given = authorization + 7 + strspn(authorization + 7, " ");
        if (!given)
                return failure_set(f, 401, "invalid_api_key", NULL,
                                   "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
        key = find_key(c, given);
        *ret = key ? key->label : NULL;
        return key ? 0 : failure_set(f, 401, "invalid_api_key", NULL, "this API key is not known here");
}
