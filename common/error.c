/* Error records and their names on the wire. A record is a plain struct of fixed size, so that filling one can never
 * fail for want of memory; a message that is too long is cut, with "…" to say so. It does not log: the owner does. */
#include "common/error.h"
#include "common/utf8.h"

static const char *const error_names[TDM_E_MAX] = {
        [TDM_E_NONE] = "none",
        [TDM_E_INTERNAL] = "internal",
        [TDM_E_NO_MODEL] = "no-model",
        [TDM_E_BAD_MODEL] = "bad-model",
        [TDM_E_UNSUPPORTED] = "unsupported",
        [TDM_E_MODEL_CHANGED] = "model-changed",
        [TDM_E_BAD_REQUEST] = "bad-request",
        [TDM_E_TOO_LONG] = "too-long",
        [TDM_E_BUSY] = "busy",
        [TDM_E_QUOTA] = "quota",
        [TDM_E_NO_MEMORY] = "no-memory",
        [TDM_E_DENIED] = "denied",
        [TDM_E_NO_JOB] = "no-job",
        [TDM_E_DRAINING] = "draining",
        [TDM_E_CANCELLED] = "cancelled",
        [TDM_E_DEVICE_FAULT] = "device-fault",
        [TDM_E_DAEMON_LOST] = "daemon-lost",
        [TDM_E_PROTOCOL] = "protocol",
        [TDM_E_NO_WORKER] = "no-worker",
        [TDM_E_DEADLINE] = "deadline",
};

/* A cut message ends in an ellipsis and never in half a UTF-8 character. */
static void mark_cut(char *message)
{
        static const char ellipsis[] = "\xe2\x80\xa6";
        size_t end = TDM_ERROR_MESSAGE_MAX - sizeof(ellipsis);

        while (end > 0 && ((unsigned char)message[end] & 0xc0) == 0x80)
                end--;
        memcpy(message + end, ellipsis, sizeof(ellipsis));
}

/* Into the record: well-formed, and without characters that a terminal or a log would obey. Messages quote what peers
 * and files say, whole or cut anywhere (%.60s). */
static void error_keep_message(struct tdm_error *err, char *message)
{
        char escaped[TDM_ERROR_MESSAGE_MAX] = { 0 };

        tdm_utf8_mend(message);
        if (!tdm_utf8_escape(escaped, sizeof(escaped), message)) {
                size_t end = tdm_utf8_cut(escaped, TDM_ERROR_MESSAGE_MAX - 4);

                memcpy(escaped + end, "\xe2\x80\xa6", 4);
        }
        memcpy(err->message, escaped, sizeof(escaped));
}

int tdm_error_set(struct tdm_error *err, int code, const char *fmt, ...)
{
        char message[TDM_ERROR_MESSAGE_MAX];
        va_list args;
        int n;

        if (!err)
                return code;

        /* Formatted in a buffer of its own, because an argument may point into err->message. */
        va_start(args, fmt);
        n = vsnprintf(message, sizeof(message), fmt, args);
        va_end(args);
        if (n < 0)
                message[0] = '\0';
        else if ((size_t)n >= sizeof(message))
                mark_cut(message);
        err->code = code;
        error_keep_message(err, message);
        return code;
}

int tdm_error_prefix(struct tdm_error *err, const char *fmt, ...)
{
        char message[TDM_ERROR_MESSAGE_MAX];
        size_t old_len = strnlen(err->message, sizeof(err->message) - 1), len;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vsnprintf(message, sizeof(message), fmt, args);
        va_end(args);
        if (n < 0)
                return err->code;

        if ((size_t)n >= sizeof(message)) {
                mark_cut(message);
                error_keep_message(err, message);
                return err->code;
        }

        len = (size_t)n;
        err->message[old_len] = '\0';
        n = snprintf(message + len, sizeof(message) - len, ": %s", err->message);
        if (n < 0)
                return err->code;
        if ((size_t)n >= sizeof(message) - len)
                mark_cut(message);
        error_keep_message(err, message);
        return err->code;
}

const char *tdm_error_name(int code)
{
        if (code < 0 || code >= TDM_E_MAX)
                return error_names[TDM_E_INTERNAL];
        return error_names[code];
}

int tdm_error_from_name(const char *name)
{
        for (int i = 0; i < TDM_E_MAX; i++)
                if (strcmp(name, error_names[i]) == 0)
                        return i;
        return TDM_E_INTERNAL;
}
