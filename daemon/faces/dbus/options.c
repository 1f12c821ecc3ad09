/* What callers ask for, out of a{sv}: each option by name, type and range; an unknown one is refused by name, so that a
 * misspelt limit is never a limit that silently does not hold. Any integer type will do where a whole number is wanted
 * (a Python program sends int32 for 100), and a whole number where a real one is.
 *
 * Everything further (sampling ranges, prompt given twice, sizes) is tdm_job_new()'s to check, as for the socket. */
#include "daemon/faces/dbus/private.h"

#include <math.h>
#include "daemon/jobs/request.h"

enum kind {
        MODEL,
        MODEL_FD,
        PROMPT_IDS,
        MAX_TOKENS,
        TEMPERATURE,
        TOP_K,
        TOP_P,
        MIN_P,
        REPEAT_PENALTY,
        REPEAT_LAST,
        SEED,
        STOP,
        PRIORITY,
        IGNORE_END,
        PREFILL_CHUNK,
        PLACEMENT,
        DEADLINE_MS,
        TOKEN,
        LINGER,
        OUTPUT,
        N_OPTIONS
};

static const char *const names[N_OPTIONS] = {
        [MODEL] = "model",
        [MODEL_FD] = "model-fd",
        [PROMPT_IDS] = "prompt-ids",
        [MAX_TOKENS] = "max-tokens",
        [TEMPERATURE] = "temperature",
        [TOP_K] = "top-k",
        [TOP_P] = "top-p",
        [MIN_P] = "min-p",
        [REPEAT_PENALTY] = "repeat-penalty",
        [REPEAT_LAST] = "repeat-last",
        [SEED] = "seed",
        [STOP] = "stop",
        [PRIORITY] = "priority",
        [IGNORE_END] = "ignore-end",
        [PREFILL_CHUNK] = "prefill-chunk",
        [PLACEMENT] = "placement",
        [DEADLINE_MS] = "deadline-ms",
        [TOKEN] = "token",
        [LINGER] = "linger",
        [OUTPUT] = "output",
};

/* ---- single values ---- */

static int bad_type(struct tdm_error *err, const char *name, const char *want)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" wants %s", name, want);
}

static int read_whole(DBusMessageIter *at, const char *name, uint64_t max, uint64_t *ret, struct tdm_error *err)
{
        DBusBasicValue v;
        int64_t n;

        switch (dbus_message_iter_get_arg_type(at)) {
        case DBUS_TYPE_BYTE:
                dbus_message_iter_get_basic(at, &v);
                n = v.byt;
                break;
        case DBUS_TYPE_INT16:
                dbus_message_iter_get_basic(at, &v);
                n = v.i16;
                break;
        case DBUS_TYPE_UINT16:
                dbus_message_iter_get_basic(at, &v);
                n = v.u16;
                break;
        case DBUS_TYPE_INT32:
                dbus_message_iter_get_basic(at, &v);
                n = v.i32;
                break;
        case DBUS_TYPE_UINT32:
                dbus_message_iter_get_basic(at, &v);
                n = v.u32;
                break;
        case DBUS_TYPE_INT64:
                dbus_message_iter_get_basic(at, &v);
                n = v.i64;
                break;
        case DBUS_TYPE_UINT64:
                dbus_message_iter_get_basic(at, &v);
                if (v.u64 > max)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is out of range", name);
                *ret = v.u64;
                return 0;
        default:
                return bad_type(err, name, "a whole number");
        }
        if (n < 0 || (uint64_t)n > max)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is out of range: %lld", name, (long long)n);
        *ret = (uint64_t)n;
        return 0;
}

static int read_u32(DBusMessageIter *at, const char *name, uint32_t *ret, struct tdm_error *err)
{
        uint64_t n;
        int r = read_whole(at, name, UINT32_MAX, &n, err);

        if (r == 0)
                *ret = (uint32_t)n;
        return r;
}

static int read_real(DBusMessageIter *at, const char *name, float *ret, struct tdm_error *err)
{
        uint64_t n;
        double d;

        if (dbus_message_iter_get_arg_type(at) == DBUS_TYPE_DOUBLE) {
                dbus_message_iter_get_basic(at, &d);
                if (!isfinite(d) || fabs(d) > 1e30)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is out of range", name);
        } else if (read_whole(at, name, UINT32_MAX, &n, err) == 0)
                d = (double)n;
        else
                return bad_type(err, name, "a number");
        *ret = (float)d;
        return 0;
}

static int read_bool(DBusMessageIter *at, const char *name, bool *ret, struct tdm_error *err)
{
        dbus_bool_t b;

        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_BOOLEAN)
                return bad_type(err, name, "a boolean");
        dbus_message_iter_get_basic(at, &b);
        *ret = b;
        return 0;
}

static int read_string(DBusMessageIter *at, const char *name, const char **ret, struct tdm_error *err)
{
        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_STRING)
                return bad_type(err, name, "a string");
        dbus_message_iter_get_basic(at, ret);
        return 0;
}

static int read_fd(DBusMessageIter *at, const char *name, int *ret, struct tdm_error *err)
{
        int fd;

        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_UNIX_FD)
                return bad_type(err, name, "a file descriptor");
        dbus_message_iter_get_basic(at, &fd);
        if (fd < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the file descriptor of option \"%s\" cannot be taken",
                                     name);
        *ret = fd;
        return 0;
}

/* ---- values of more than one ---- */

static int read_ids(DBusMessageIter *at, struct tdm_job_params *p, struct tdm_error *err)
{
        DBusMessageIter inner;
        const uint32_t *ids;
        int n;

        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_ARRAY ||
            dbus_message_iter_get_element_type(at) != DBUS_TYPE_UINT32)
                return bad_type(err, names[PROMPT_IDS], "an array of uint32");
        dbus_message_iter_recurse(at, &inner);
        dbus_message_iter_get_fixed_array(&inner, &ids, &n);
        p->ids = ids;
        p->n_ids = (size_t)n;
        return 0;
}

static int read_stops(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        DBusMessageIter inner;
        const char *s;
        size_t n = 0;

        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_ARRAY ||
            dbus_message_iter_get_element_type(at) != DBUS_TYPE_STRING)
                return bad_type(err, names[STOP], "an array of strings");
        for (dbus_message_iter_recurse(at, &inner); dbus_message_iter_get_arg_type(&inner) == DBUS_TYPE_STRING;
             dbus_message_iter_next(&inner)) {
                if (n == TDM_MAX_STOPS)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "more than %u stop strings", TDM_MAX_STOPS);
                dbus_message_iter_get_basic(&inner, &s);
                request->stops[n++] = (struct tdm_stop_string){ s, strlen(s) };
        }
        request->params.stops = request->stops;
        request->params.n_stops = n;
        return 0;
}

static int one_of(const char *name, const char *value, const char *const *values, size_t n, struct tdm_error *err)
{
        char list[160] = "";
        size_t at = 0;

        for (size_t i = 0; i < n; i++)
                if (strcmp(value, values[i]) == 0)
                        return -(int)i; /* never an error: those are positive */
        for (size_t i = 0; i < n && at < sizeof(list); i++)
                at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i ? ", " : "", values[i]);
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is \"%.40s\"; it can be %s", name, value, list);
}

static int read_choice(DBusMessageIter *at, enum kind kind, struct bus_request *request, struct tdm_error *err)
{
        static const char *const priorities[] = {
                [TDM_JOB_INTERACTIVE] = "interactive", [TDM_JOB_BACKGROUND] = "background"
        };
        static const char *const outputs[] = {
                [BUS_OUTPUT_TEXT] = "text", [BUS_OUTPUT_EVENTS] = "events", [BUS_OUTPUT_NONE] = "none"
        };
        const char *value;
        int r = read_string(at, names[kind], &value, err);

        if (r != 0)
                return r;
        if (kind == PLACEMENT) {
                r = tdm_placement_from_name(value);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "placement \"%.40s\" is none of split, npu, gpu",
                                             value);
                request->params.placement = (enum tdm_placement)r;
                return 0;
        }
        r = kind == PRIORITY ? one_of(names[kind], value, priorities, TDM_ARRAY_SIZE(priorities), err) :
                               one_of(names[kind], value, outputs, TDM_ARRAY_SIZE(outputs), err);
        if (r > 0)
                return r;
        if (kind == PRIORITY)
                request->params.priority = (enum tdm_job_priority) - r;
        else
                request->output = (enum bus_output) - r;
        return 0;
}

/* It becomes a part of an object's path. */
static int read_token(DBusMessageIter *at, const char **ret, struct tdm_error *err)
{
        const char *s;
        size_t n;
        int r = read_string(at, names[TOKEN], &s, err);

        if (r != 0)
                return r;
        n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n == 0 || n > 64 || s[n])
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "option \"token\" wants 1 to 64 letters, digits and underscores");
        *ret = s;
        return 0;
}

static int read_option(DBusMessageIter *at, enum kind kind, struct bus_request *request, struct tdm_error *err)
{
        struct tdm_job_params *p = &request->params;
        struct tdm_sampling *s = &p->sampling;

        switch (kind) {
        case MODEL:
                return read_string(at, names[kind], &request->model, err);
        case MODEL_FD:
                return read_fd(at, names[kind], &request->model_fd, err);
        case PROMPT_IDS:
                return read_ids(at, p, err);
        case MAX_TOKENS:
                return read_u32(at, names[kind], &p->max_tokens, err);
        case TEMPERATURE:
                return read_real(at, names[kind], &s->temperature, err);
        case TOP_K:
                return read_u32(at, names[kind], &s->top_k, err);
        case TOP_P:
                return read_real(at, names[kind], &s->top_p, err);
        case MIN_P:
                return read_real(at, names[kind], &s->min_p, err);
        case REPEAT_PENALTY:
                return read_real(at, names[kind], &s->repeat_penalty, err);
        case REPEAT_LAST:
                return read_u32(at, names[kind], &p->repeat_last, err);
        case SEED:
                return read_whole(at, names[kind], UINT64_MAX, &s->seed, err);
        case STOP:
                return read_stops(at, request, err);
        case PRIORITY:
        case PLACEMENT:
        case OUTPUT:
                return read_choice(at, kind, request, err);
        case IGNORE_END:
                return read_bool(at, names[kind], &p->ignore_end, err);
        case PREFILL_CHUNK:
                return read_u32(at, names[kind], &p->prefill_chunk, err);
        case DEADLINE_MS:
                return read_u32(at, names[kind], &p->deadline_ms, err);
        case TOKEN:
                return read_token(at, &request->token, err);
        case LINGER:
                return read_bool(at, names[kind], &request->linger, err);
        case N_OPTIONS:
                break;
        }
        return TDM_E_INTERNAL;
}

/* ---- dictionaries ---- */

/* Takes the next entry of an a{sv}; false: there is none. */
static bool next_entry(DBusMessageIter *entries, const char **ret_name, DBusMessageIter *ret_value)
{
        DBusMessageIter entry;

        if (dbus_message_iter_get_arg_type(entries) != DBUS_TYPE_DICT_ENTRY)
                return false;
        dbus_message_iter_recurse(entries, &entry);
        dbus_message_iter_get_basic(&entry, ret_name);
        dbus_message_iter_next(&entry);
        dbus_message_iter_recurse(&entry, ret_value);
        dbus_message_iter_next(entries);
        return true;
}

/* Which of the names it is, each once; a positive TDM_E_* otherwise. */
static int which(const char *name, const char *const *known, size_t n, uint32_t *seen, size_t *ret,
                 struct tdm_error *err)
{
        for (size_t i = 0; i < n; i++) {
                if (strcmp(name, known[i]) != 0)
                        continue;
                if (*seen & UINT32_C(1) << i)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is given twice", known[i]);
                *seen |= UINT32_C(1) << i;
                *ret = i;
                return 0;
        }
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%.60s\" is not known here", name);
}

static int read_chat(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        DBusMessageIter messages, message;
        const char *role, *text;
        int count = dbus_message_iter_get_element_count(at);
        size_t n = 0;
        int r;

        if (count == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "there are no messages");
        if ((unsigned)count > TDM_MAX_CHAT_MESSAGES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%d messages; at most %u are taken", count,
                                     TDM_MAX_CHAT_MESSAGES);
        request->messages = calloc((size_t)count, sizeof(*request->messages));
        if (!request->messages)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (dbus_message_iter_recurse(at, &messages);
             n < (size_t)count && dbus_message_iter_get_arg_type(&messages) == DBUS_TYPE_STRUCT;
             dbus_message_iter_next(&messages)) {
                dbus_message_iter_recurse(&messages, &message);
                dbus_message_iter_get_basic(&message, &role);
                dbus_message_iter_next(&message);
                dbus_message_iter_get_basic(&message, &text);
                r = tdm_request_role(role);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "role \"%.40s\" of message %zu is none of system, user, assistant", role,
                                             n + 1);
                request->messages[n++] =
                        (struct tdm_chat_message){ .role = (enum tdm_chat_role)r, .text = text, .size = strlen(text) };
        }
        request->params.messages = request->messages;
        request->params.n_messages = n;
        return 0;
}

int bus_read_request(DBusMessageIter *args, bool chat, struct bus_request *ret, struct tdm_error *err)
{
        DBusMessageIter entries, value;
        const char *name;
        uint32_t seen = 0;
        size_t which_one = 0;
        int r = 0;

        *ret = (struct bus_request){
                .model_fd = -1, .params = { .kind = TDM_JOB_GENERATE, .sampling = { .top_p = 1, .repeat_penalty = 1 } }
        };
        if (chat)
                r = read_chat(args, ret, err);
        else {
                dbus_message_iter_get_basic(args, &ret->params.text);
                ret->params.text_size = strlen(ret->params.text);
        }
        dbus_message_iter_next(args);
        dbus_message_iter_recurse(args, &entries);
        while (r == 0 && next_entry(&entries, &name, &value)) {
                r = which(name, names, N_OPTIONS, &seen, &which_one, err);
                if (r == 0)
                        r = read_option(&value, (enum kind)which_one, ret, err);
        }
        tdm_request_zero_is_off(&ret->params.sampling);
        return r;
}

void bus_request_deinit(struct bus_request *request)
{
        closep(&request->model_fd);
        free(steal_ptr(&request->messages));
}

int bus_read_load(DBusMessageIter *options, bool *ret_wait, int *ret_fd, struct tdm_error *err)
{
        static const char *const known[] = { "wait", "model-fd" };
        DBusMessageIter entries, value;
        _cleanup_(closep) int fd = -1;
        bool wait = false;
        const char *name;
        uint32_t seen = 0;
        size_t i = 0;
        int r;

        dbus_message_iter_recurse(options, &entries);
        while (next_entry(&entries, &name, &value)) {
                r = which(name, known, ret_wait ? TDM_ARRAY_SIZE(known) : 0, &seen, &i, err);
                if (r == 0)
                        r = i == 0 ? read_bool(&value, name, &wait, err) : read_fd(&value, name, &fd, err);
                if (r != 0)
                        return r;
        }
        if (ret_wait) {
                *ret_wait = wait;
                *ret_fd = steal_fd(&fd);
        }
        return 0;
}

int bus_read_no_options(DBusMessageIter *options, struct tdm_error *err)
{
        return bus_read_load(options, NULL, NULL, err);
}
