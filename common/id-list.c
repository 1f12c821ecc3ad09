/* See id-list.h. */
#include "common/id-list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ID_BYTES 11u /* of the longest id, with its comma */

static const char *skip_spaces(const char *at)
{
        while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
                at++;
        return at;
}

bool tdm_id_list_next(const char **at, uint32_t *ret)
{
        const char *p = skip_spaces(*at);
        uint64_t id = 0;

        if (*p < '0' || *p > '9')
                return false;
        for (; *p >= '0' && *p <= '9'; p++) {
                id = id * 10 + (uint64_t)(*p - '0');
                if (id > UINT32_MAX)
                        return false;
        }
        p = skip_spaces(p);
        if (*p != ',' && *p != '\0')
                return false;
        *at = *p == ',' ? p + 1 : p;
        *ret = (uint32_t)id;
        return *p == '\0' || *skip_spaces(*at) != '\0';
}

uint32_t tdm_id_list_length(const char *list)
{
        uint32_t n = list != NULL;

        for (const char *p = list; p && *p; p++)
                n += *p == ',';
        return n;
}

char *tdm_id_list_format(const uint32_t *ids, size_t n)
{
        char *text = malloc(n * ID_BYTES + 1), *at = text;

        if (text)
                *text = '\0';
        for (size_t i = 0; text && i < n; i++)
                at += sprintf(at, i > 0 ? ",%" PRIu32 : "%" PRIu32, ids[i]);
        return text;
}
