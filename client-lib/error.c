/* Error records of the public interface: the daemon's codes under their public numbers, and texts of bounded size.
 *
 * The daemon's messages are shown to people by programs that did not write them, so they are made one line without
 * control characters here, once. */
#include "client-lib/internal.h"

#include <assert.h>

#define SAME(name) static_assert((int)TANDEM_E_##name == (int)TDM_E_##name, "public and internal code differ: " #name)
SAME(INTERNAL);
SAME(NO_MODEL);
SAME(BAD_MODEL);
SAME(UNSUPPORTED);
SAME(MODEL_CHANGED);
SAME(BAD_REQUEST);
SAME(TOO_LONG);
SAME(BUSY);
SAME(QUOTA);
SAME(NO_MEMORY);
SAME(DENIED);
SAME(NO_JOB);
SAME(DRAINING);
SAME(CANCELLED);
SAME(DEVICE_FAULT);
SAME(DAEMON_LOST);
SAME(PROTOCOL);
SAME(NO_WORKER);
SAME(DEADLINE);
static_assert((int)TDM_E_DEADLINE + 1 == (int)TDM_E_MAX, "a new code wants a public number in tandem.h");

const char *tandem_code_name(int code)
{
        switch (code) {
        case TANDEM_OK:
                return "ok";
        case TANDEM_E_NO_DAEMON:
                return "no-daemon";
        case TANDEM_E_TIMEOUT:
                return "timeout";
        case TANDEM_E_OTHER:
                return "other";
        default:
                return tdm_error_name(code);
        }
}

/* Copies at most size - 1 bytes, never half a character; control characters become spaces. */
static void copy_line(char *to, size_t size, const char *from)
{
        size_t n = strlen(from);

        if (n >= size) {
                n = size - 1;
                while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
                        n--;
        }
        for (size_t i = 0; i < n; i++)
                to[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7f ? ' ' : from[i];
        to[n] = '\0';
}

int lib_error(struct tandem_error *err, int code, const char *fmt, ...)
{
        char message[sizeof(err->message) + 8];
        va_list args;

        if (!err)
                return code;
        va_start(args, fmt);
        if (vsnprintf(message, sizeof(message), fmt, args) < 0)
                message[0] = '\0';
        va_end(args);
        err->code = code;
        copy_line(err->name, sizeof(err->name), tandem_code_name(code));
        copy_line(err->message, sizeof(err->message), message);
        return code;
}

int lib_error_from_wire(struct tandem_error *err, const Tandem__Error *wire)
{
        const char *name = wire && wire->code && *wire->code ? wire->code : "internal";
        int code = TANDEM_E_OTHER;

        for (int i = TDM_E_NONE + 1; i < TDM_E_MAX; i++)
                if (strcmp(name, tdm_error_name(i)) == 0)
                        code = i;
        if (!err)
                return code;
        err->code = code;
        copy_line(err->name, sizeof(err->name), name);
        copy_line(err->message, sizeof(err->message),
                  wire && wire->message && *wire->message ? wire->message : "the daemon gave no reason");
        return code;
}

int lib_error_copy(struct tandem_error *err, const struct tandem_error *from)
{
        int code = from->code;

        if (err && err != from)
                memcpy(err, from, sizeof(*err));
        return code;
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *tandem_version(void)
{
        return STRING(TANDEM_VERSION_MAJOR) "." STRING(TANDEM_VERSION_MINOR) "." STRING(TANDEM_VERSION_PATCH);
}

const char *tandem_priority_name(int priority)
{
        switch (priority) {
        case TANDEM_PRIORITY_INTERACTIVE:
                return "interactive";
        case TANDEM_PRIORITY_BACKGROUND:
                return "background";
        default:
                return "unknown";
        }
}

const char *tandem_job_state_name(int state)
{
        switch (state) {
        case TANDEM_JOB_QUEUED:
                return "queued";
        case TANDEM_JOB_LOADING:
                return "loading";
        case TANDEM_JOB_PREFILL:
                return "prefill";
        case TANDEM_JOB_DECODE:
                return "decode";
        case TANDEM_JOB_RECOVERING:
                return "recovering";
        case TANDEM_JOB_DONE:
                return "done";
        default:
                return "unknown";
        }
}

const char *tandem_reason_name(int reason)
{
        switch (reason) {
        case TANDEM_REASON_STOP:
                return "stop";
        case TANDEM_REASON_LENGTH:
                return "length";
        case TANDEM_REASON_CANCELLED:
                return "cancelled";
        case TANDEM_REASON_ERROR:
                return "error";
        default:
                return "unknown";
        }
}
