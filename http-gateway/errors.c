/* One table from libtandem's codes to HTTP, and one shape for each API. */
#include "http-gateway/errors.h"

#include <stdarg.h>
#include "common/utf8.h"

#define RETRY_BUSY_MS 1000u
#define RETRY_DRAINING_MS 3000u

int failure_set(struct failure *f, int status, const char *code, const char *param, const char *fmt, ...)
{
        va_list args;

        f->status = status;
        f->code = code;
        f->retry_ms = 0;
        f->n_tokens = f->n_max = 0;
        snprintf(f->param, sizeof(f->param), "%.95s", param ? param : "");
        va_start(args, fmt);
        if (vsnprintf(f->message, sizeof(f->message), fmt, args) < 0)
                f->message[0] = '\0';
        va_end(args);
        tdm_utf8_mend(f->message); /* it may repeat what a client sent, and be cut */
        tdm_utf8_mend(f->param);
        return status;
}

static const struct {
        int tandem, status;
        const char *code;
        unsigned retry_ms;
} table[] = {
        { TANDEM_E_NO_MODEL, 404, "model_not_found", 0 },
        { TANDEM_E_BAD_MODEL, 500, "bad_model", 0 },
        { TANDEM_E_UNSUPPORTED, 400, "unsupported", 0 },
        { TANDEM_E_MODEL_CHANGED, 500, "model_changed", 0 },
        { TANDEM_E_BAD_REQUEST, 400, "invalid_request", 0 },
        { TANDEM_E_TOO_LONG, 400, "context_length_exceeded", 0 },
        { TANDEM_E_BUSY, 429, "rate_limit_exceeded", RETRY_BUSY_MS },
        { TANDEM_E_QUOTA, 429, "rate_limit_exceeded", RETRY_BUSY_MS },
        { TANDEM_E_NO_MEMORY, 503, "no_memory", RETRY_DRAINING_MS },
        { TANDEM_E_DENIED, 403, "denied", 0 },
        { TANDEM_E_DRAINING, 503, "draining", RETRY_DRAINING_MS },
        { TANDEM_E_CANCELLED, 500, "cancelled", 0 },
        { TANDEM_E_DEVICE_FAULT, 500, "device_fault", 0 },
        { TANDEM_E_DAEMON_LOST, 503, "daemon_lost", RETRY_BUSY_MS },
        { TANDEM_E_PROTOCOL, 502, "protocol", 0 },
        { TANDEM_E_NO_WORKER, 503, "no_worker", RETRY_DRAINING_MS },
        { TANDEM_E_DEADLINE, 504, "deadline", 0 },
        { TANDEM_E_NO_DAEMON, 503, "no_daemon", RETRY_DRAINING_MS },
        { TANDEM_E_TIMEOUT, 504, "timeout", 0 },
};

void failure_set_too_long(struct failure *f, unsigned n_tokens, unsigned n_max)
{
        f->n_tokens = n_tokens;
        f->n_max = n_max;
}

/* The daemon says it in words; tests hold these to daemon/jobs/job.c. */
static void find_lengths(struct failure *f)
{
        const char *of = strstr(f->message, "context is ");
        unsigned n_tokens, n_max;

        of = of ? of + strlen("context is ") : strstr(f->message, "context of ");
        if (of && strncmp(of, "context of ", 11) == 0)
                of += 11;
        if (of && sscanf(f->message, "the prompt has %u tokens", &n_tokens) == 1 && sscanf(of, "%u", &n_max) == 1)
                failure_set_too_long(f, n_tokens, n_max);
}

/* ---- folders of this machine, which are no client's business ---- */

/* What is said of a request names parts of it, which look like paths: "/properties/size". */
static bool may_name_a_path(const struct tandem_error *err)
{
        if (err->code == TANDEM_E_UNSUPPORTED)
                return strncmp(err->message, "tandemd at ", strlen("tandemd at ")) == 0 ||
                       strstr(err->message, "cannot open model ") || strstr(err->message, "cannot use model ");
        return err->code != TANDEM_E_BAD_REQUEST && err->code != TANDEM_E_TOO_LONG;
}

/* "no model is named nix: no nix.gguf in …" ends before it says where the daemon looked. */
static void cut_search(struct failure *f)
{
        const char *where = strstr(f->message, ".gguf in ");
        char *at = NULL;

        for (char *next = f->message; where && (next = strstr(next, ": no ")) && next < where; next++)
                at = next;
        if (at)
                snprintf(at, sizeof(f->message) - (size_t)(at - f->message),
                         "; GET /v1/models or /api/tags lists those that are");
}

/* A path keeps its last part. It may have spaces, so it ends where a mark does. Nodes of devices stay as they are: they
 * tell of a driver that is missing. */
static void leave_out_folders(char *message)
{
        char *to = message;

        for (const char *from = message; *from;) {
                bool begins = from == message || strchr(" (\"'=", from[-1]);
                const char *last = from;

                if (*from == '/' && begins && strncmp(from, "/dev/", strlen("/dev/")) != 0) {
                        size_t n = strcspn(from, ":;,()\"'");

                        for (size_t i = 0; i < n; i++)
                                if (from[i] == '/' && i + 1 < n && from[i + 1] != ' ')
                                        last = from + i + 1;
                        from = last > from ? last : from + 1;
                        if (!*from)
                                break; /* it was "/", and the end */
                }
                *to++ = *from++;
        }
        *to = '\0';
}

static void leave_paths_out(struct failure *f, const struct tandem_error *err)
{
        char *tried = strstr(f->message, "; tried ");

        if (!may_name_a_path(err))
                return;
        if (tried && (err->code == TANDEM_E_NO_DAEMON || err->code == TANDEM_E_DENIED))
                *tried = '\0'; /* where, and how an administrator starts it */
        leave_out_folders(f->message);
        if (err->code == TANDEM_E_NO_MODEL)
                cut_search(f);
        if (err->code == TANDEM_E_NO_DAEMON) {
                size_t n = strlen(f->message);

                snprintf(f->message + n, sizeof(f->message) - n,
                         "; start it on the gateway's machine, where tandem-http's log says more");
        }
}

int failure_from_tandem(struct failure *f, const struct tandem_error *err, const char *model)
{
        bool of_draft = strncmp(err->message, "draft: ", strlen("draft: ")) == 0;

        if (err->code == TANDEM_E_NO_MODEL && !of_draft && !(model && *model))
                return failure_set(f, 404, "model_not_found", "model",
                                   "no model was named, and the default model is not there; GET /v1/models or "
                                   "/api/tags lists those that are");
        if (err->code == TANDEM_E_NO_MODEL && !of_draft)
                return failure_set(f, 404, "model_not_found", "model",
                                   "the model '%.200s' does not exist; GET /v1/models or /api/tags lists those that do",
                                   model);
        failure_set(f, 500, "internal", of_draft ? "draft" : NULL, "%s", err->message);
        leave_paths_out(f, err);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(table); i++)
                if (table[i].tandem == err->code) {
                        f->status = table[i].status;
                        f->code = table[i].code;
                        f->retry_ms = table[i].retry_ms;
                }
        if (err->code == TANDEM_E_TOO_LONG)
                find_lengths(f);
        return f->status;
}

static const char *openai_type(int status)
{
        return status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
}

static const char *anthropic_type(int status)
{
        switch (status) {
        case 401:
                return "authentication_error";
        case 403:
                return "permission_error";
        case 404:
                return "not_found_error";
        case 413:
                return "request_too_large";
        case 429:
                return "rate_limit_error";
        case 503:
                return "overloaded_error";
        default:
                return status >= 500 ? "api_error" : "invalid_request_error";
        }
}

/* A prompt that is too long in the provider's words: agents look for them, and shorten their conversation then. */
static void write_message(const struct failure *f, enum dialect dialect, char *to, size_t size)
{
        if (f->n_max == 0 && (strcmp(f->code, "context_length_exceeded") != 0 || dialect == DIALECT_OPENAI))
                snprintf(to, size, "%s", f->message);
        else if (f->n_max == 0)
                snprintf(to, size, "prompt is too long: %s", f->message);
        else if (dialect == DIALECT_ANTHROPIC)
                snprintf(to, size, "prompt is too long: %u tokens > %u maximum", f->n_tokens, f->n_max);
        else if (dialect == DIALECT_OLLAMA)
                snprintf(to, size,
                         "the input length exceeds the context length: prompt is too long: %u tokens > %u maximum (%s)",
                         f->n_tokens, f->n_max, f->message);
        else
                snprintf(to, size,
                         "This model's maximum context length is %u tokens. However, your messages resulted in %u "
                         "tokens (%s)",
                         f->n_max, f->n_tokens, f->message);
        tdm_utf8_mend(to);
}

json_t *failure_json(const struct failure *f, enum dialect dialect, const char *request_id)
{
        char message[sizeof(f->message) + 200];

        write_message(f, dialect, message, sizeof(message));
        switch (dialect) {
        case DIALECT_ANTHROPIC:
                return json_pack("{s:s, s:{s:s, s:s}, s:s}", "type", "error", "error", "type",
                                 anthropic_type(f->status), "message", message, "request_id", request_id);
        case DIALECT_OLLAMA:
                return json_pack("{s:s}", "error", message);
        default:
                return json_pack("{s:{s:s, s:s, s:s?, s:s}}", "error", "message", message, "type",
                                 openai_type(f->status), "param", f->param[0] ? f->param : NULL, "code", f->code);
        }
}
