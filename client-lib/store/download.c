/* See download.h. */
#include "client-lib/store/download.h"
#include "client-lib/store/part.h"

#include <curl/curl.h>
#include <strings.h>

#define CONNECT_TIMEOUT_S 30L
/* A transfer slower than this for so long is broken off and taken up again. */
#define STALL_BYTES_PER_S 1L
#define STALL_S 30L

struct transfer {
        const struct download *download;
        struct part part;
        struct tdm_error *err;
        CURL *curl;
        /* Of the response at hand. */
        long status;
        char etag[128], sha256[65];
        uint64_t total, range_begin;
        bool has_range, first_body, failed;
        uint64_t fetched;
        uint64_t fetched_in_try;
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

static size_t on_header(char *line, size_t one, size_t size, void *userdata)
{
        struct transfer *t = userdata;
        const char *value;
        char text[160];
        size_t n;

        if (size >= 5 && strncmp(line, "HTTP/", 5) == 0) { /* a new response: of a redirection, or the last */
                t->etag[0] = '\0';
                t->has_range = false;
                return size;
        }
        if (header_is(line, size, "etag", &value, &n) && n < sizeof(t->etag)) {
                memcpy(t->etag, value, n);
                t->etag[n] = '\0';
        } else if (header_is(line, size, "x-linked-etag", &value, &n)) {
                /* Hugging Face: the SHA-256 of a large file, in quotes, on the redirection to where it lies. */
                if (n == 66 && value[0] == '"' && is_sha256(value + 1, n - 2)) {
                        memcpy(t->sha256, value + 1, 64);
                        t->sha256[64] = '\0';
                }
        } else if (header_is(line, size, "content-range", &value, &n) && n < sizeof(text)) {
                memcpy(text, value, n);
                text[n] = '\0';
                t->has_range = sscanf(text, "bytes %" SCNu64 "-%*u/%" SCNu64, &t->range_begin, &t->total) == 2;
        }
        return size;
}

/* ---- the body ---- */

static bool fail(struct transfer *t, int code)
{
        t->failed = true;
        return code == 0; /* false: for `return fail(…)` */
}

/* The first bytes of a body: is it what was asked for, and is there room for it? */
static bool begin_body(struct transfer *t)
{
        const struct download *d = t->download;
        uint64_t wanted = d->size_bytes;
        curl_off_t length = -1;
        int r;

        if (t->status == 200 && t->part.size > 0) { /* from its beginning: the server has no ranges, or another file */
                r = part_reset(&t->part, t->err);
                if (r != 0)
                        return fail(t, r);
        }
        if (t->status == 206 && (!t->has_range || t->range_begin != t->part.size))
                return fail(t,
                            tdm_error_set(t->err, TDM_E_PROTOCOL, "%s sends other bytes than those asked for", d->url));
        if (t->status == 200) {
                (void)curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
                t->total = length > 0 ? (uint64_t)length : 0;
        }
        if (wanted && t->total && wanted != t->total)
                return fail(t, tdm_error_set(t->err, TDM_E_BAD_MODEL,
                                             "%s has %" PRIu64 " bytes, %" PRIu64 " were announced", d->url, t->total,
                                             wanted));
        r = part_remember(&t->part, d->url, t->etag, t->err);
        if (r == 0 && t->total)
                r = part_check_room(&t->part, t->total, t->err);
        return r == 0 || fail(t, r);
}

static size_t on_body(char *data, size_t one, size_t size, void *userdata)
{
        struct transfer *t = userdata;
        int r;

        (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->status);
        if (t->status != 200 && t->status != 206)
                return size; /* an error's page */
        if (t->first_body) {
                t->first_body = false;
                if (!begin_body(t))
                        return 0;
        }
        if (t->total && size > t->total - TDM_MIN(t->part.size, t->total)) {
                (void)tdm_error_set(t->err, TDM_E_BAD_MODEL, "%s sends more than the %" PRIu64 " bytes it announced",
                                    t->download->url, t->total);
                t->failed = true;
                return 0;
        }
        r = part_add(&t->part, data, size, t->err);
        if (r != 0) {
                t->failed = true;
                return 0;
        }
        t->fetched += size;
        t->fetched_in_try += size;
        return size;
}

static int on_progress(void *userdata, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
        struct transfer *t = userdata;
        const struct download *d = t->download;
        curl_off_t rate = 0;

        (void)curl_easy_getinfo(t->curl, CURLINFO_SPEED_DOWNLOAD_T, &rate);
        return d->on_progress && !d->on_progress(t->part.size, t->total, (double)rate, d->userdata);
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

static int refused(const char *url, long status, struct tdm_error *err)
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

/* *ret_again: err says why, and a later try may go better. */
static int try_once(struct transfer *t, bool *ret_again)
{
        struct curl_slist *headers = NULL;
        char range[32], if_range[192], detail[CURL_ERROR_SIZE] = "";
        CURLcode code;

        *ret_again = false;
        t->curl = curl_easy_init();
        if (!t->curl)
                return tdm_error_set(t->err, -ENOMEM, "out of memory");
        set_common(t->curl, t->download->url, t->download->token);
        (void)curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, detail);
        (void)curl_easy_setopt(t->curl, CURLOPT_HEADERFUNCTION, on_header);
        (void)curl_easy_setopt(t->curl, CURLOPT_HEADERDATA, t);
        (void)curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_body);
        (void)curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
        (void)curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        (void)curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, t);
        (void)curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
        /* Without the ETag of what is here already, nobody knows whether the rest belongs to it. */
        if (t->part.size > 0 && t->part.etag[0]) {
                snprintf(range, sizeof(range), "%" PRIu64 "-", t->part.size);
                snprintf(if_range, sizeof(if_range), "If-Range: %s", t->part.etag);
                (void)curl_easy_setopt(t->curl, CURLOPT_RANGE, range);
                headers = curl_slist_append(headers, if_range);
                (void)curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);
        }
        t->first_body = true;
        t->status = 0;
        t->fetched_in_try = 0;
        code = curl_easy_perform(t->curl);
        (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->status);
        curl_easy_cleanup(t->curl);
        curl_slist_free_all(headers);

        if (t->failed)
                return t->err->code;
        *ret_again = may_retry(code, t->status);
        if (code == CURLE_ABORTED_BY_CALLBACK)
                return tdm_error_set(t->err, TDM_E_CANCELLED, "stopped; what is here is taken up by the next try");
        if (code != CURLE_OK)
                return tdm_error_set(t->err, code_of(code), "%s: %s", t->download->url,
                                     detail[0] ? detail : curl_easy_strerror(code));
        if (t->status == 416 && t->part.size > 0) { /* nothing is left to send: whole, or of another file */
                if (t->download->size_bytes && t->download->size_bytes == t->part.size)
                        return 0;
                *ret_again = true;
                t->failed = part_reset(&t->part, t->err) != 0;
                return tdm_error_set(t->err, TDM_E_PROTOCOL, "%s: the server knows no byte %" PRIu64, t->download->url,
                                     t->part.size);
        }
        if (t->status != 200 && t->status != 206)
                return refused(t->download->url, t->status, t->err);
        if (t->total && t->part.size < t->total) {
                *ret_again = true;
                return tdm_error_set(t->err, TDM_E_PROTOCOL,
                                     "%s: the transfer ended after %" PRIu64 " of %" PRIu64 " bytes", t->download->url,
                                     t->part.size, t->total);
        }
        return 0;
}

static bool wait_ms(const struct transfer *t, unsigned ms)
{
        const struct download *d = t->download;

        for (unsigned waited = 0; waited < ms; waited += 100) {
                if (d->on_progress && !d->on_progress(t->part.size, t->total, 0, d->userdata))
                        return false;
                (void)usleep(100000);
        }
        return true;
}

static int fetch(struct transfer *t)
{
        const struct download *d = t->download;
        unsigned n_tries = d->n_tries ? d->n_tries : 5, n_failed = 0, wait = d->first_wait_ms ? d->first_wait_ms : 1000;

        for (;;) {
                bool again;
                int r = try_once(t, &again);

                if (r == 0 || !again || t->failed)
                        return r;
                if (t->fetched_in_try > 0) {
                        n_failed = 0;
                        wait = d->first_wait_ms ? d->first_wait_ms : 1000;
                }
                if (++n_failed >= n_tries)
                        return r;
                if (d->on_retry)
                        d->on_retry(t->err->message, wait, d->userdata);
                if (!wait_ms(t, wait))
                        return tdm_error_set(t->err, TDM_E_CANCELLED,
                                             "stopped; what is here is taken up by the next try");
                wait = TDM_MIN(wait * 2, 30000u);
        }
}

int download_file(const struct download *download, struct download_result *ret, struct tdm_error *err)
{
        struct transfer t = { .download = download, .err = err };
        const char *sha256;
        int r;

        r = part_open(&t.part, download->path, download->url, err);
        if (r != 0)
                return r;
        r = fetch(&t);
        sha256 = download->sha256 ? download->sha256 : t.sha256[0] ? t.sha256 : NULL;
        if (r == 0)
                r = part_finish(&t.part, download->size_bytes, sha256, err);
        *ret = (struct download_result){ .size_bytes = t.part.size, .fetched_bytes = t.fetched, .checked = sha256 };
        part_close(&t.part);
        return r;
}

/* ---- a small text ---- */

struct text {
        char *data;
        size_t size, max;
};

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
        code = curl_easy_perform(curl);
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(curl);
        if (code == CURLE_OK && status == 200 && text.data) {
                *ret = text.data;
                return 0;
        }
        free(text.data);
        if (code == CURLE_WRITE_ERROR)
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s: the answer is longer than %zu bytes", url, max_bytes);
        if (code != CURLE_OK)
                return tdm_error_set(err, code_of(code), "%s: %s", url, curl_easy_strerror(code));
        return refused(url, status, err);
}
