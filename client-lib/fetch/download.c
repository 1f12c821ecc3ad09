#include "client-lib/fetch/download.h"
#include "client-lib/fetch/part.h"

#include "common/util.h"

#include <curl/curl.h>
#include <strings.h>

#define CONNECT_TIMEOUT_S 30L
/* A transfer slower than this for this long is broken off and taken up again. */
#define STALL_BYTES_PER_S 1L
#define STALL_S 30L

/* A span is cut in two for another connection if each half has this many bytes. */
#define MIN_SPAN_BYTES ((uint64_t)8 << 20)
#define MAX_CONNECTIONS 8u

/* A server may send this much beside the file: headers of one request, and a page with an error or a redirection. */
#define MAX_HEADER_BYTES ((size_t)256 << 10)
#define MAX_PAGE_BYTES ((curl_off_t)1 << 20)
/* How often the room on the disk is looked at where the server tells no length. */
#define ROOM_BYTES ((uint64_t)1 << 20)

struct transfer;

/* One connection: it fetches one span, from what is here of it to its end. */
struct connection {
        struct transfer *transfer;
        CURL *curl; /* NULL: idle */
        struct curl_slist *headers;
        unsigned span;
        bool first_body, span_full, ranged;
        uint64_t fetched;
        size_t header_bytes;
        curl_off_t body_bytes; /* of all bodies that on_body() was given */
        const char *refusal;   /* why we ended it; NULL: we did not */
        bool retry_refused;    /* it may go better later */
        char detail[CURL_ERROR_SIZE];
        /* What the headers of the present response say. */
        long status;
        char etag[128];
        uint64_t total, range_begin, length;
        bool has_range, has_length, takes_ranges;
};

struct transfer {
        const struct download *download;
        struct part part;
        struct tdm_error *err;
        CURLM *multi;
        struct connection connections[MAX_CONNECTIONS];
        unsigned n_active, n_wanted; /* connections: at work, and how many there may be */
        uint64_t total;              /* 0: not known yet */
        char sha256[65];
        bool failed;       /* err says why, and no later try helps */
        bool takes_ranges; /* the server has said so */
        uint64_t fetched;
        double rate_bytes_per_s;
        uint64_t rate_from, rate_from_ns;
};

static int code_of(CURLcode code)
{
        switch (code) {
        case CURLE_WRITE_ERROR:
        case CURLE_ABORTED_BY_CALLBACK:
                return TDM_E_CANCELLED;
        case CURLE_OUT_OF_MEMORY:
                return -ENOMEM;
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT:
                return TDM_E_BAD_REQUEST;
        default:
                return TDM_E_PROTOCOL;
        }
}

/* Whether a later try may go better. */
static bool may_retry(CURLcode code, long status)
{
        switch (code) {
        case CURLE_OK:
                return status == 408 || status == 429 || status >= 500;
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_CONNECT:
        case CURLE_OPERATION_TIMEDOUT:
        case CURLE_PARTIAL_FILE:
        case CURLE_GOT_NOTHING:
        case CURLE_SEND_ERROR:
        case CURLE_RECV_ERROR:
        case CURLE_HTTP2:
        case CURLE_HTTP2_STREAM:
                return true;
        default:
                return false;
        }
}

/* ---- headers ---- */

static bool header_is(const char *line, size_t size, const char *name, const char **ret_value, size_t *ret_size)
{
        size_t n = strlen(name);

        if (size <= n || line[n] != ':' || strncasecmp(line, name, n) != 0)
                return false;
        line += n + 1;
        size -= n + 1;
        while (size > 0 && (*line == ' ' || *line == '\t'))
                line++, size--;
        while (size > 0 && (line[size - 1] == '\r' || line[size - 1] == '\n' || line[size - 1] == ' '))
                size--;
        *ret_value = line;
        *ret_size = size;
        return true;
}

static bool is_sha256(const char *text, size_t size)
{
        return size == 64 && strspn(text, "0123456789abcdefABCDEF") >= 64;
}

/* Ends a connection: the caller returns what tells libcurl so. */
static bool refuse_response(struct connection *c, const char *why, bool may_retry)
{
        c->refusal = why;
        c->retry_refused = may_retry;
        return false;
}

/* A strong ETag: it stands for the bytes of a file, not for what they mean. One that cannot be sent back as it is
 * counts as none. */
static bool is_strong_etag(const char *text, size_t size)
{
        if (size < 2 || text[0] != '"' || text[size - 1] != '"')
                return false;
        for (size_t i = 1; i + 1 < size; i++)
                if ((unsigned char)text[i] <= 0x20 || text[i] == '"' || text[i] == 0x7f)
                        return false;
        return true;
}

/* "bytes BEGIN-END/TOTAL", of numbers that can be a file's. */
static bool read_range(struct connection *c, const char *value, size_t size)
{
        uint64_t begin, last, total;
        char text[160];

        if (size >= sizeof(text))
                return false;
        memcpy(text, value, size);
        text[size] = '\0';
        if (sscanf(text, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &begin, &last, &total) != 3 ||
            total > (uint64_t)INT64_MAX || last >= total || begin > last)
                return false;
        c->range_begin = begin;
        c->total = total;
        return true;
}

/* libcurl takes the last of several lengths, and one that overflows for none: a file that is cut would go unseen. */
static bool take_length(struct connection *c, const char *value, size_t size)
{
        uint64_t length = 0;

        if (size == 0)
                return false;
        for (size_t i = 0; i < size; i++) {
                if (value[i] < '0' || value[i] > '9' || length > ((uint64_t)INT64_MAX - 9) / 10)
                        return false;
                length = length * 10 + (uint64_t)(value[i] - '0');
        }
        if (c->has_length && c->length != length)
                return false;
        c->has_length = true;
        c->length = length;
        return true;
}

static size_t on_header(char *line, size_t one, size_t size, void *userdata)
{
        struct connection *c = userdata;
        const char *value;
        size_t n;

        c->header_bytes += size;
        if (c->header_bytes > MAX_HEADER_BYTES) {
                (void)refuse_response(c, "the server's headers have no end", false);
                return 0;
        }
        if (size >= 5 && strncmp(line, "HTTP/", 5) == 0) { /* a new response: of a redirection, or the last */
                c->etag[0] = '\0';
                c->has_range = c->has_length = c->takes_ranges = false;
                return size;
        }
        if (header_is(line, size, "etag", &value, &n)) {
                n = n < sizeof(c->etag) && is_strong_etag(value, n) ? n : 0;
                memcpy(c->etag, value, n);
                c->etag[n] = '\0';
        } else if (header_is(line, size, "x-linked-etag", &value, &n)) {
                /* Hugging Face: the SHA-256 of a large file, in quotes, on the redirection to where it lies. */
                if (n == 66 && value[0] == '"' && is_sha256(value + 1, n - 2)) {
                        memcpy(c->transfer->sha256, value + 1, 64);
                        c->transfer->sha256[64] = '\0';
                }
        } else if (header_is(line, size, "accept-ranges", &value, &n)) {
                c->takes_ranges = n == 5 && strncasecmp(value, "bytes", 5) == 0;
        } else if (header_is(line, size, "content-range", &value, &n)) {
                c->has_range = read_range(c, value, n);
        } else if (header_is(line, size, "content-length", &value, &n) && !take_length(c, value, n)) {
                (void)refuse_response(c, "the server gives a length that no file has, or two that differ", false);
                return 0;
        }
        return size;
}

/* ---- the body ---- */

static struct part_span *span_of(struct connection *c)
{
        return &c->transfer->part.info->spans[c->span];
}

/* The whole file came where a part of it was asked for: the server takes no ranges, or has another file by now. What
 * is here of the file is thrown away, and one connection fetches it from its beginning. */
static int begin_anew(struct connection *c)
{
        struct transfer *t = c->transfer;

        t->n_wanted = 1;
        c->span = 0;
        t->total = 0;
        return part_reset(&t->part, t->err);
}

static bool fail_transfer(struct transfer *t)
{
        t->failed = true;
        return false;
}

/* Part of the file comes. It must be what was asked for, of the file that the bytes here are of: a server that does not
 * know If-Range sends a part of whatever file it has by now, and says so by its ETag. */
static bool check_range(struct connection *c)
{
        struct transfer *t = c->transfer;
        const struct part_info *i = t->part.info;
        uint64_t at = span_of(c)->begin + span_of(c)->here;

        if (!c->ranged)
                return refuse_response(c, "the server sends a part of the file where all of it was asked for", false);
        if (!c->etag[0] || strcmp(c->etag, i->etag) != 0) {
                t->takes_ranges = false; /* only one that asks for all of it can know what it gets */
                t->n_wanted = 1;
                if (t->n_active == 1 && begin_anew(c) != 0)
                        return fail_transfer(t);
                return refuse_response(c, "the server has another file by now, or does not say which", true);
        }
        if (c->has_range && c->range_begin == at && (!t->total || c->total == t->total))
                return true;
        (void)tdm_error_set(t->err, TDM_E_PROTOCOL, "%s sends other bytes than those asked for", t->download->url);
        return fail_transfer(t);
}

/* All of the file comes. */
static bool check_whole_body(struct connection *c)
{
        struct transfer *t = c->transfer;
        uint64_t at = span_of(c)->begin + span_of(c)->here;
        curl_off_t length = -1;

        if (at > 0 || t->part.info->n_spans > 1) {
                if (t->n_active > 1) { /* the others' bytes are of no use; the last one asks again for the whole */
                        t->takes_ranges = false;
                        t->n_wanted = 1;
                        return refuse_response(c, "the server sends the whole file for a range", true);
                }
                if (begin_anew(c) != 0)
                        return fail_transfer(t);
        }
        (void)curl_easy_getinfo(c->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        c->total = length > 0 ? (uint64_t)length : t->download->size_bytes;
        return true;
}

/* The first bytes of a body: is it what was asked for, and is there room for it? */
static bool begin_body(struct connection *c)
{
        struct transfer *t = c->transfer;
        const struct download *d = t->download;
        uint64_t wanted = d->size_bytes;

        if (!(c->status == 206 ? check_range(c) : check_whole_body(c)))
                return false;
        if (wanted && c->total && wanted != c->total) {
                (void)tdm_error_set(t->err, TDM_E_BAD_MODEL, "%s has %" PRIu64 " bytes, %" PRIu64 " were announced",
                                    d->url, c->total, wanted);
                return fail_transfer(t);
        }
        if (t->n_active == 1) { /* the others rely on what the first has found */
                t->total = c->total;
                t->takes_ranges = c->status == 206 || c->takes_ranges;
                if ((c->status == 200 || span_of(c)->end == PART_NO_END) &&
                    part_remember(&t->part, c->etag, t->total, t->err) != 0)
                        return fail_transfer(t);
        }
        if (t->total && part_check_room(&t->part, t->total, t->err) != 0)
                return fail_transfer(t);
        return true;
}

static size_t on_body(char *data, size_t one, size_t size, void *userdata)
{
        struct connection *c = userdata;
        struct transfer *t = c->transfer;
        struct part_span *s;
        uint64_t room;

        (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->status);
        c->body_bytes += (curl_off_t)size;
        if (c->status != 200 && c->status != 206)
                return c->body_bytes > MAX_PAGE_BYTES ? 0 : size; /* an error's page */
        if (c->first_body) {
                c->first_body = false;
                if (!begin_body(c))
                        return 0;
        }
        s = span_of(c);
        room = s->end == PART_NO_END ? UINT64_MAX : s->end - s->begin - s->here;
        if (size > room && s->end == t->total) {
                (void)tdm_error_set(t->err, TDM_E_BAD_MODEL, "%s sends more than the %" PRIu64 " bytes it announced",
                                    t->download->url, t->total);
                t->failed = true;
                return 0;
        }
        if (!t->total && t->fetched / ROOM_BYTES != (t->fetched + size) / ROOM_BYTES &&
            part_check_room(&t->part, t->part.size + size, t->err) != 0) {
                t->failed = true;
                return 0;
        }
        if (part_add(&t->part, c->span, data, TDM_MIN(size, room), t->err) != 0) {
                t->failed = true;
                return 0;
        }
        t->fetched += TDM_MIN(size, room);
        c->fetched += TDM_MIN(size, room);
        c->span_full = size >= room && s->end != t->total; /* another connection fetches what follows */
        return c->span_full && size > room ? 0 : size;
}

/* libcurl keeps the page of a redirection to itself: one without an end is ended here. */
static int on_transfer(void *userdata, curl_off_t total, curl_off_t here, curl_off_t up_total, curl_off_t up)
{
        struct connection *c = userdata;

        if (here <= c->body_bytes + MAX_PAGE_BYTES)
                return 0;
        (void)refuse_response(c, "the server's redirection has no end", false);
        return 1;
}

/* The rate of the last second or two. */
static bool tell_transfer_progress(struct transfer *t)
{
        const struct download *d = t->download;
        uint64_t now = tdm_now_ns(), ns = now - t->rate_from_ns;

        if (t->rate_from_ns == 0 || ns >= 1000000000u) {
                if (t->rate_from_ns)
                        t->rate_bytes_per_s = (double)(t->fetched - t->rate_from) * 1e9 / (double)ns;
                t->rate_from = t->fetched;
                t->rate_from_ns = now;
        }
        return !d->on_progress || d->on_progress(t->part.size, t->total, t->rate_bytes_per_s, d->userdata);
}

/* ---- one request ---- */

/* A redirection may go to another host, never from HTTPS to HTTP; a token goes to the first host alone. */
static void set_common(CURL *curl, const char *url, const char *token)
{
        bool https = strncasecmp(url, "https:", 6) == 0;

        (void)curl_easy_setopt(curl, CURLOPT_URL, url);
        (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
        (void)curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
        (void)curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
        (void)curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
        (void)curl_easy_setopt(curl, CURLOPT_USERAGENT, "tandem");
        (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
        (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, STALL_BYTES_PER_S);
        (void)curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, STALL_S);
        (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        if (token && *token) {
                (void)curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
                (void)curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, token);
        }
}

static int status_refused(const char *url, long status, struct tdm_error *err)
{
        switch (status) {
        case 401:
        case 403:
                return tdm_error_set(err, TDM_E_DENIED,
                                     "%s: the server answers %ld: it wants a token of somebody who may read it "
                                     "(HF_TOKEN), or the file's terms accepted there",
                                     url, status);
        case 404:
        case 410:
                return tdm_error_set(err, TDM_E_NO_MODEL, "%s: there is no such file (%ld)", url, status);
        default:
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s: the server answers %ld", url, status);
        }
}

static int begin_connection(struct transfer *t, struct connection *c, unsigned span)
{
        const struct part_info *i = t->part.info;
        const struct part_span *s = &i->spans[span];
        uint64_t at = s->begin + s->here;
        char range[48], if_range[192];

        *c = (struct connection){ .transfer = t, .span = span, .first_body = true, .curl = curl_easy_init() };
        if (!c->curl)
                return tdm_error_set(t->err, -ENOMEM, "out of memory");
        set_common(c->curl, t->download->url, t->download->token);
        (void)curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
        (void)curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->detail);
        (void)curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
        (void)curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, c);
        (void)curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_body);
        (void)curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
        (void)curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, on_transfer);
        (void)curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
        (void)curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
        /* Without the ETag of what is here already, nobody knows whether the rest belongs to it. */
        if (at > 0 && i->etag[0]) {
                if (s->end == PART_NO_END || s->end == t->total)
                        snprintf(range, sizeof(range), "%" PRIu64 "-", at);
                else
                        snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, at, s->end - 1);
                snprintf(if_range, sizeof(if_range), "If-Range: %s", i->etag);
                (void)curl_easy_setopt(c->curl, CURLOPT_RANGE, range);
                c->ranged = true;
                c->headers = curl_slist_append(NULL, if_range);
                (void)curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
        }
        if (curl_multi_add_handle(t->multi, c->curl) != CURLM_OK)
                return tdm_error_set(t->err, -ENOMEM, "out of memory");
        t->n_active++;
        return 0;
}

static void end_connection(struct connection *c)
{
        if (!c->curl)
                return;
        (void)curl_multi_remove_handle(c->transfer->multi, c->curl);
        curl_easy_cleanup(c->curl);
        curl_slist_free_all(c->headers);
        c->curl = NULL;
        c->headers = NULL;
        c->transfer->n_active--;
}

/* How a response ended: 0, or err is set. *ret_again: a later try may go better. */
static int judge_response(struct connection *c, CURLcode code, bool *ret_again)
{
        struct transfer *t = c->transfer;
        const char *url = t->download->url;
        const struct part_span *s;

        *ret_again = false;
        (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->status);
        if (t->failed)
                return t->err->code;
        if (c->span_full)
                return 0;
        if (c->refusal) {
                *ret_again = c->retry_refused;
                return tdm_error_set(t->err, TDM_E_PROTOCOL, "%s: %s", url, c->refusal);
        }
        if (code == CURLE_WRITE_ERROR && c->status != 200 && c->status != 206)
                code = CURLE_OK; /* on_body() had enough of an error's page */
        *ret_again = may_retry(code, c->status);
        if (code == CURLE_PARTIAL_FILE) /* in our own words: libcurl's differ by version */
                return tdm_error_set(t->err, code_of(code), "%s: the transfer ended before its last byte", url);
        if (code != CURLE_OK)
                return tdm_error_set(t->err, code_of(code), "%s: %s", url,
                                     c->detail[0] ? c->detail : curl_easy_strerror(code));
        if (c->status == 416 && t->part.size > 0) { /* nothing is left to send: whole, or of another file */
                if (t->download->size_bytes && t->download->size_bytes == t->part.size)
                        return 0;
                *ret_again = true;
                t->n_wanted = 1;
                t->total = t->n_active == 1 ? 0 : t->total;
                if (t->n_active == 1)
                        t->failed = part_reset(&t->part, t->err) != 0;
                return tdm_error_set(t->err, TDM_E_PROTOCOL, "%s: the server does not have the bytes asked for", url);
        }
        if (c->status != 200 && c->status != 206)
                return status_refused(url, c->status, t->err);
        s = span_of(c);
        if (s->end != PART_NO_END && s->here < s->end - s->begin) {
                *ret_again = true;
                return tdm_error_set(t->err, TDM_E_PROTOCOL,
                                     "%s: the transfer ended after %" PRIu64 " of %" PRIu64 " bytes", url, t->part.size,
                                     t->total);
        }
        return 0;
}

static bool is_active(const struct transfer *t, unsigned span)
{
        for (unsigned i = 0; i < MAX_CONNECTIONS; i++)
                if (t->connections[i].curl && t->connections[i].span == span)
                        return true;
        return false;
}

/* A span for one more connection: one that none fetches, else the second half of the one that lacks most. False:
 * there is none. */
static bool find_span(struct transfer *t, unsigned *ret)
{
        const struct part_info *i = t->part.info;
        uint64_t most = 0;
        unsigned longest = 0;

        for (unsigned k = 0; k < i->n_spans; k++) {
                uint64_t rest = i->spans[k].end - i->spans[k].begin - i->spans[k].here;

                if (part_span_done(&t->part, k))
                        continue;
                if (!is_active(t, k)) {
                        *ret = k;
                        return true;
                }
                if (i->spans[k].end != PART_NO_END && rest > most) {
                        most = rest;
                        longest = k;
                }
        }
        if (!t->takes_ranges || !i->etag[0] || most < 2 * MIN_SPAN_BYTES || i->n_spans == PART_MAX_SPANS ||
            part_split(&t->part, longest, t->err) != 0)
                return false;
        for (unsigned k = 0; k < MAX_CONNECTIONS; k++)
                if (t->connections[k].curl && t->connections[k].span > longest)
                        t->connections[k].span++;
        *ret = longest + 1;
        return true;
}

static bool is_whole(const struct transfer *t)
{
        for (unsigned k = 0; k < t->part.info->n_spans; k++)
                if (!part_span_done(&t->part, k))
                        return false;
        return true;
}

/* Starts as many connections as there is work for. The first alone until it has told how long the file is. */
static int begin_all(struct transfer *t)
{
        unsigned span;
        int r = 0;

        for (unsigned i = 0; r == 0 && i < MAX_CONNECTIONS && t->n_active < t->n_wanted; i++) {
                if (t->connections[i].curl || (t->n_active > 0 && !t->takes_ranges) || !find_span(t, &span))
                        continue;
                r = begin_connection(t, &t->connections[i], span);
        }
        return r;
}

static void end_all(struct transfer *t)
{
        for (unsigned i = 0; i < MAX_CONNECTIONS; i++)
                end_connection(&t->connections[i]);
}

static int transfer_stopped(struct transfer *t)
{
        return tdm_error_set(t->err, TDM_E_CANCELLED, "stopped; what is here is taken up by the next try");
}

static bool wait_ms(struct transfer *t, unsigned ms)
{
        for (unsigned waited = 0; waited < ms; waited += 100) {
                if (!tell_transfer_progress(t))
                        return false;
                (void)usleep(100000);
        }
        return true;
}

/* Runs connections until the file is whole or none is left. A connection that fails without a byte while others go on
 * lowers their number, and its span is taken up by what remains. Returns how the last one ended. */
static int run_connections(struct transfer *t, bool *ret_again, bool *ret_any_bytes)
{
        for (;;) {
                int running, left, r;
                CURLMsg *m;

                if (is_whole(t)) /* an earlier run was ended just before it gave the file its name */
                        return 0;
                r = begin_all(t);
                if (r != 0) {
                        t->failed = true;
                        return r;
                }
                (void)curl_multi_perform(t->multi, &running);
                while ((m = curl_multi_info_read(t->multi, &left))) {
                        struct connection *c;
                        bool any_bytes;

                        if (m->msg != CURLMSG_DONE)
                                continue;
                        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
                        r = judge_response(c, m->data.result, ret_again);
                        any_bytes = c->fetched > 0;
                        *ret_any_bytes |= any_bytes;
                        end_connection(c);
                        if (t->failed || (r == 0 && t->part.info->spans[0].end == PART_NO_END) || is_whole(t))
                                return t->failed ? t->err->code : 0;
                        if (r != 0 && t->n_active == 0)
                                return r;
                        if (r != 0 && !any_bytes)
                                t->n_wanted = TDM_MIN(t->n_wanted, t->n_active);
                }
                if (!tell_transfer_progress(t)) {
                        *ret_again = false;
                        return transfer_stopped(t);
                }
                (void)curl_multi_poll(t->multi, NULL, 0, 200, NULL);
        }
}

static int fetch_file(struct transfer *t)
{
        const struct download *d = t->download;
        unsigned n_tries = d->n_tries ? d->n_tries : 5, first_wait = d->first_wait_ms ? d->first_wait_ms : 1000;
        unsigned n_failed = 0, wait = first_wait;
        uint64_t most = 0;

        for (;;) {
                bool again = false, any_bytes = false;
                int r;

                r = run_connections(t, &again, &any_bytes);
                end_all(t);
                if (r == 0 || !again || t->failed)
                        return r;
                /* Bytes that come again are no progress: a server could have us fetch them for ever. */
                if (any_bytes && t->part.size > most) {
                        most = t->part.size;
                        n_failed = 0;
                        wait = first_wait;
                }
                if (++n_failed >= n_tries)
                        return r;
                if (d->on_retry)
                        d->on_retry(t->err->message, wait, d->userdata);
                if (!wait_ms(t, wait))
                        return transfer_stopped(t);
                wait = TDM_MIN(wait * 2, 30000u);
        }
}

int download_file(const struct download *download, struct download_result *ret, struct tdm_error *err)
{
        unsigned n = download->n_connections ? download->n_connections : DOWNLOAD_CONNECTIONS;
        struct transfer t = { .download = download, .err = err, .n_wanted = TDM_MIN(n, MAX_CONNECTIONS) };
        const struct part_info *i;
        const char *sha256;
        int r;

        r = part_open(&t.part, download->folder_fd, download->folder, download->name, download->url, err);
        if (r != 0)
                return r;
        i = t.part.info;
        if (i->etag[0] && i->spans[i->n_spans - 1].end != PART_NO_END) { /* begun earlier */
                t.total = i->spans[i->n_spans - 1].end;
                t.takes_ranges = i->n_spans > 1;
        }
        t.multi = curl_multi_init();
        /* One HTTP/2 connection for all requests would be no faster than one request. */
        (void)curl_multi_setopt(t.multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
        r = t.multi ? fetch_file(&t) : tdm_error_set(err, -ENOMEM, "out of memory");
        (void)curl_multi_cleanup(t.multi);
        sha256 = download->sha256 ? download->sha256 : t.sha256[0] ? t.sha256 : NULL;
        if (r == 0)
                r = part_finish(&t.part, download->size_bytes, sha256, download->look, err);
        *ret = (struct download_result){ .size_bytes = t.part.size, .fetched_bytes = t.fetched, .checked = sha256 };
        part_close(&t.part);
        return r;
}

/* ---- a small text ---- */

struct text {
        char *data;
        size_t size, max, header_bytes;
        bool has_no_end; /* the headers, or the page of a redirection */
};

static size_t on_text_header(char *line, size_t one, size_t size, void *userdata)
{
        struct text *text = userdata;

        text->header_bytes += size;
        text->has_no_end |= text->header_bytes > MAX_HEADER_BYTES;
        return text->has_no_end ? 0 : size;
}

static int on_text_transfer(void *userdata, curl_off_t total, curl_off_t here, curl_off_t up_total, curl_off_t up)
{
        struct text *text = userdata;

        text->has_no_end |= here > (curl_off_t)text->size + MAX_PAGE_BYTES;
        return text->has_no_end ? 1 : 0;
}

static size_t on_text(char *data, size_t one, size_t size, void *userdata)
{
        struct text *text = userdata;
        char *p;

        if (size > text->max - text->size)
                return 0;
        p = realloc(text->data, text->size + size + 1);
        if (!p)
                return 0;
        text->data = p;
        memcpy(p + text->size, data, size);
        text->size += size;
        p[text->size] = '\0';
        return size;
}

int download_text(const char *url, const char *token, size_t max_bytes, char **ret, struct tdm_error *err)
{
        struct text text = { .max = max_bytes };
        CURL *curl = curl_easy_init();
        CURLcode code;
        long status = 0;

        if (!curl)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        set_common(curl, url, token);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_text);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, &text);
        (void)curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_text_header);
        (void)curl_easy_setopt(curl, CURLOPT_HEADERDATA, &text);
        (void)curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_text_transfer);
        (void)curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &text);
        (void)curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        code = curl_easy_perform(curl);
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(curl);
        if (code == CURLE_OK && status == 200 && text.data) {
                *ret = text.data;
                return 0;
        }
        free(text.data);
        if (text.has_no_end)
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s: the server's headers or its redirection have no end",
                                     url);
        if (code == CURLE_WRITE_ERROR)
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s: the answer is longer than %zu bytes", url, max_bytes);
        if (code != CURLE_OK)
                return tdm_error_set(err, code_of(code), "%s: %s", url, curl_easy_strerror(code));
        return status_refused(url, status, err);
}
