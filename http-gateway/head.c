/* libmicrohttpd before 1.0 reads heads that other programs read otherwise: a space in front of a colon is part of the
 * name, a folded line becomes one too, and what stands behind a NUL is dropped without a trace. It parses in place, so
 * the names and values that it tells lie in the order of the head with nothing but a line end between one value and the
 * next name. What it dropped, or moved elsewhere, shows as a gap. From 1.0 on it refuses all of these itself. */
#include "http-gateway/head.h"

#include <strings.h>

static bool is_token(const char *name)
{
        static const char others[] = "!#$%&'*+-.^_`|~";

        for (const char *p = name; *p; p++)
                if (!((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z') ||
                      strchr(others, *p)))
                        return false;
        return *name != '\0';
}

/* Whether `at` is where the part behind a line end begins. */
static bool is_behind(const char *edge, const char *at)
{
        uintptr_t from = (uintptr_t)edge, to = (uintptr_t)at;

        return to == from + 1 || to == from + 2; /* \n, \r\n */
}

static enum MHD_Result on_header(void *userdata, enum MHD_ValueKind kind, const char *name, const char *value)
{
        struct head *h = userdata;
        const char *given = value;

        if (!value)
                value = "";
        if (!is_token(name))
                h->odd_name = true;
        if (!is_behind(h->edge, name) || !given || given < name)
                h->odd_place = true;
        h->edge = value + strlen(value);
        if (strcasecmp(name, "Host") == 0) {
                h->n_host++;
                h->host = value;
        } else if (strcasecmp(name, "Content-Length") == 0) {
                h->n_length++;
                h->length = value;
        } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
                h->n_encoding++;
                h->encoding = value;
        } else if (strcasecmp(name, "Origin") == 0) {
                h->origin = value;
        } else if (strcasecmp(name, "Expect") == 0) {
                h->expect = value;
        } else if (strcasecmp(name, "Authorization") == 0) {
                h->authorization = value;
        } else if (strcasecmp(name, "x-api-key") == 0) {
                h->x_api_key = value;
        } else if (strcasecmp(name, "Content-Encoding") == 0) {
                h->content_encoding = value;
        } else if (strcasecmp(name, "Access-Control-Request-Headers") == 0) {
                h->wants_headers = value;
        } else if (strcasecmp(name, "Access-Control-Request-Method") == 0) {
                h->wants_method = value;
        }
        return MHD_YES;
}

void head_read(struct head *h, struct MHD_Connection *mhd, const char *method, const char *version)
{
        const union MHD_ConnectionInfo *info;
        uintptr_t end;

        *h = (struct head){ .edge = version + strlen(version) };
        MHD_get_connection_values(mhd, MHD_HEADER_KIND, on_header, h);
        info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
        end = (uintptr_t)method + (info ? info->header_size : 0);
        if (!info || end < (uintptr_t)h->edge + 2 || end > (uintptr_t)h->edge + 4)
                h->odd_place = true;
        if (MHD_get_version()[0] != '0')
                h->odd_place = false; /* it may lay things out in another way, and looks itself */
}

int head_check_framing(const struct head *h, const char *version, struct failure *f)
{
        if (h->odd_name)
                return failure_set(f, 400, "invalid_request", NULL,
                                   "a header's name has a character that no name may have, such as a space before the "
                                   "colon");
        if (h->odd_place)
                return failure_set(f, 400, "invalid_request", NULL,
                                   "the request's head has a NUL, or a header that goes on in the next line");
        if (h->n_host > 1)
                return failure_set(f, 400, "invalid_request", NULL, "the request has two Host headers");
        if (h->n_length > 1)
                return failure_set(f, 400, "invalid_request", NULL, "the request has two Content-Length headers");
        if (h->n_length > 0 && h->n_encoding > 0)
                return failure_set(f, 400, "invalid_request", NULL,
                                   "the request has both Content-Length and Transfer-Encoding");
        if (h->n_encoding > 1 || (h->n_encoding == 1 && strcasecmp(h->encoding, "chunked") != 0))
                return failure_set(f, 400, "invalid_request", NULL, "no Transfer-Encoding but chunked is taken");
        if (h->length && (!*h->length || strspn(h->length, "0123456789") != strlen(h->length)))
                return failure_set(f, 400, "invalid_request", NULL, "the request's Content-Length is no number");
        if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
                return failure_set(f, 505, "invalid_request", NULL, "HTTP/1.1 and HTTP/1.0 are spoken here");
        if (h->n_encoding > 0 && strcmp(version, "HTTP/1.0") == 0)
                return failure_set(f, 400, "invalid_request", NULL, "HTTP/1.0 has no Transfer-Encoding");
        return 0;
}

const char *head_take_target(struct head *h, const char *target)
{
        const char *host, *path;

        if (strncasecmp(target, "http://", 7) != 0)
                return target;
        host = target + 7;
        path = host + strcspn(host, "/?#");
        if ((size_t)(path - host) >= sizeof(h->target_host))
                return target;
        memcpy(h->target_host, host, (size_t)(path - host));
        h->target_host[path - host] = '\0';
        h->host = h->target_host;
        return *path == '/' ? path : "/";
}
