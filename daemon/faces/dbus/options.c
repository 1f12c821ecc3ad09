/* What callers ask for, out of a{sv}: each option by name, type and range; an unknown one is refused by name, so that a
 * misspelt limit is never a limit that silently does not hold. Any integer type will do where a whole number is wanted
 * (a Python program sends int32 for 100), and a whole number where a real one is.
 *
 * The options of a job are the rows of common/job-options.def; a bad value is refused in the words of the socket and
 * the command. Beside them come those that only this face has: which model and prompt, and where the text goes. The
 * rest (prompt given twice, sizes) is checked by tdm_job_new(), as for the socket. */
#include "daemon/faces/dbus/private.h"

#include "daemon/jobs/request.h"

enum bus_option {
        MODEL,
        MODEL_FD,
        PROMPT_IDS,
        TOKEN,
        LINGER,
        OUTPUT,
        CALLS,
        ANSWERS,
        THOUGHTS,
        PICTURES,
        N_BUS_OPTIONS
};

static const char *const bus_options[N_BUS_OPTIONS] = {
        [MODEL] = "model",       [MODEL_FD] = "model-fd", [PROMPT_IDS] = "prompt-ids", [TOKEN] = "token",
        [LINGER] = "linger",     [OUTPUT] = "output",     [CALLS] = "tool-calls",      [ANSWERS] = "tool-answers",
        [THOUGHTS] = "thoughts", [PICTURES] = "pictures",
};

/* ---- single values ---- */

static int bad_type(struct tdm_error *err, const char *name, const char *want)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" wants %s", name, want);
}

/* How a value that is refused is shown. */
static void show_value(DBusMessageIter *at, char *text, size_t size)
{
        int type = dbus_message_iter_get_arg_type(at);
        DBusBasicValue v;

        if (type == DBUS_TYPE_ARRAY || !dbus_type_is_basic(type)) {
                snprintf(text, size, "(a value of type %c)", type);
                return;
        }
        dbus_message_iter_get_basic(at, &v);
        switch (type) {
        case DBUS_TYPE_BYTE:
                snprintf(text, size, "%u", v.byt);
                break;
        case DBUS_TYPE_BOOLEAN:
                snprintf(text, size, "%s", v.bool_val ? "true" : "false");
                break;
        case DBUS_TYPE_INT16:
                snprintf(text, size, "%d", v.i16);
                break;
        case DBUS_TYPE_UINT16:
                snprintf(text, size, "%u", v.u16);
                break;
        case DBUS_TYPE_INT32:
                snprintf(text, size, "%d", v.i32);
                break;
        case DBUS_TYPE_UINT32:
                snprintf(text, size, "%u", v.u32);
                break;
        case DBUS_TYPE_INT64:
                snprintf(text, size, "%lld", (long long)v.i64);
                break;
        case DBUS_TYPE_UINT64:
                snprintf(text, size, "%llu", (unsigned long long)v.u64);
                break;
        case DBUS_TYPE_DOUBLE:
                snprintf(text, size, "%g", v.dbl);
                break;
        case DBUS_TYPE_STRING:
        case DBUS_TYPE_OBJECT_PATH:
        case DBUS_TYPE_SIGNATURE:
                snprintf(text, size, "%.*s", TDM_UTF8_CUT(v.str, 60));
                break;
        default:
                snprintf(text, size, "(a value of type %c)", type);
                break;
        }
}

static int option_refuse(const struct tdm_job_option *option, DBusMessageIter *at, struct tdm_error *err)
{
        char text[80];

        show_value(at, text, sizeof(text));
        return tdm_job_option_refuse(option, text, err);
}

/* false: no whole number, or a negative one. */
static bool get_whole(DBusMessageIter *at, uint64_t *ret)
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
                *ret = v.u64;
                return true;
        default:
                return false;
        }
        *ret = (uint64_t)n;
        return n >= 0;
}

static bool get_real(DBusMessageIter *at, double *ret)
{
        uint64_t n;

        if (dbus_message_iter_get_arg_type(at) == DBUS_TYPE_DOUBLE) {
                dbus_message_iter_get_basic(at, ret);
                return true;
        }
        if (!get_whole(at, &n))
                return false;
        *ret = (double)n;
        return true;
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
                return bad_type(err, bus_options[PROMPT_IDS], "an array of uint32");
        dbus_message_iter_recurse(at, &inner);
        dbus_message_iter_get_fixed_array(&inner, &ids, &n);
        p->ids = ids;
        p->n_ids = (size_t)n;
        return 0;
}

static int read_texts(DBusMessageIter *at, const struct tdm_job_option *option, struct tdm_stop_string *room,
                      const struct tdm_stop_string **ret, size_t *ret_n, struct tdm_error *err)
{
        DBusMessageIter inner;
        const char *s;
        size_t n = 0;

        if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_ARRAY ||
            dbus_message_iter_get_element_type(at) != DBUS_TYPE_STRING)
                return bad_type(err, option->name, "an array of strings");
        for (dbus_message_iter_recurse(at, &inner); dbus_message_iter_get_arg_type(&inner) == DBUS_TYPE_STRING;
             dbus_message_iter_next(&inner)) {
                if (n == TDM_JOB_MAX_TEXTS)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %d texts are more than %u", option->name,
                                             dbus_message_iter_get_element_count(at), TDM_JOB_MAX_TEXTS);
                dbus_message_iter_get_basic(&inner, &s);
                room[n++] = (struct tdm_stop_string){ s, strlen(s) };
        }
        *ret = room;
        *ret_n = n;
        return 0;
}

static void dbus_freep(char **text)
{
        dbus_free(*text);
}

/* The strings behind the index of a message; false: it has none of that index. */
static bool read_strings(DBusMessageIter *entry, struct bus_request *request, struct tdm_chat_message **ret_message,
                         struct tdm_chat_text *texts, size_t n)
{
        DBusMessageIter inner;
        dbus_uint32_t index;
        const char *s;

        dbus_message_iter_recurse(entry, &inner);
        dbus_message_iter_get_basic(&inner, &index);
        for (size_t i = 0; i < n; i++) {
                dbus_message_iter_next(&inner);
                dbus_message_iter_get_basic(&inner, &s);
                texts[i] = (struct tdm_chat_text){ s, strlen(s) };
        }
        if (index >= request->params.n_messages)
                return false;
        *ret_message = &request->messages[index];
        return true;
}

/* a(usss): the index of a message of the assistant's, and a call that it made: id, name, arguments. */
static int read_calls(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        int count = dbus_message_iter_get_arg_type(at) == DBUS_TYPE_ARRAY ? dbus_message_iter_get_element_count(at) : 0;
        _cleanup_(dbus_freep) char *signature = dbus_message_iter_get_signature(at);
        struct tdm_chat_message *message, *last = NULL;
        struct tdm_chat_text texts[3];
        DBusMessageIter entries;

        if (!signature || strcmp(signature, "a(usss)") != 0)
                return bad_type(err, bus_options[CALLS], "an array of (usss): message, id, name, arguments");
        if ((unsigned)count > TDM_MAX_CHAT_CALLS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %d are more than %u", bus_options[CALLS], count,
                                     TDM_MAX_CHAT_CALLS);
        request->calls = calloc((size_t)count + 1, sizeof(*request->calls));
        if (!request->calls)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        dbus_message_iter_recurse(at, &entries);
        for (int i = 0; i < count; i++, dbus_message_iter_next(&entries)) {
                if (!read_strings(&entries, request, &message, texts, 3) || message < last)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "%s: entry %d is of no message, or of an earlier one than that before it",
                                             bus_options[CALLS], i + 1);
                if (message != last)
                        message->calls = &request->calls[i];
                message->n_calls++;
                last = message;
                request->calls[i] = (struct tdm_chat_call){ .id = texts[0], .name = texts[1], .arguments = texts[2] };
        }
        return 0;
}

/* a(uss): the index of a message of a tool's, the id of the call that it answers, and the tool's name. */
static int read_answers(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        _cleanup_(dbus_freep) char *signature = dbus_message_iter_get_signature(at);
        struct tdm_chat_message *message;
        struct tdm_chat_text texts[2];
        DBusMessageIter entries;

        if (!signature || strcmp(signature, "a(uss)") != 0)
                return bad_type(err, bus_options[ANSWERS], "an array of (uss): message, id, name");
        for (dbus_message_iter_recurse(at, &entries); dbus_message_iter_get_arg_type(&entries) == DBUS_TYPE_STRUCT;
             dbus_message_iter_next(&entries)) {
                if (!read_strings(&entries, request, &message, texts, 2) || message->role != TDM_CHAT_TOOL)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: an entry is of no message with the role tool",
                                             bus_options[ANSWERS]);
                message->call_id = texts[0];
                message->name = texts[1];
        }
        return 0;
}

/* a(us): the index of a message of the assistant's, and what it thought before the text. */
static int read_thoughts(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        _cleanup_(dbus_freep) char *signature = dbus_message_iter_get_signature(at);
        struct tdm_chat_message *message;
        struct tdm_chat_text text;
        DBusMessageIter entries;

        if (!signature || strcmp(signature, "a(us)") != 0)
                return bad_type(err, bus_options[THOUGHTS], "an array of (us): message, thought");
        for (dbus_message_iter_recurse(at, &entries); dbus_message_iter_get_arg_type(&entries) == DBUS_TYPE_STRUCT;
             dbus_message_iter_next(&entries)) {
                if (!read_strings(&entries, request, &message, &text, 1) || message->role != TDM_CHAT_ASSISTANT)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "%s: an entry is of no message with the role assistant",
                                             bus_options[THOUGHTS]);
                message->thinking = text;
        }
        return 0;
}

/* The file of one picture: its bytes, or an open file. */
static int read_picture(DBusMessageIter *at, struct bus_request *request, size_t i, struct tdm_error *err)
{
        struct tdm_picture_file *picture = &request->pictures[i];
        DBusMessageIter entry, value, bytes;
        const uint8_t *data;
        int n;

        dbus_message_iter_recurse(at, &entry);
        dbus_message_iter_get_basic(&entry, &picture->message);
        dbus_message_iter_next(&entry);
        dbus_message_iter_get_basic(&entry, &picture->offset);
        dbus_message_iter_next(&entry);
        dbus_message_iter_recurse(&entry, &value);
        if (dbus_message_iter_get_arg_type(&value) == DBUS_TYPE_UNIX_FD) {
                request->n_picture_fds++;
                return read_fd(&value, bus_options[PICTURES], &request->picture_fds[i], err);
        }
        if (dbus_message_iter_get_arg_type(&value) != DBUS_TYPE_ARRAY ||
            dbus_message_iter_get_element_type(&value) != DBUS_TYPE_BYTE)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "%s: picture %zu is neither an array of bytes (ay) nor a file descriptor (h)",
                                     bus_options[PICTURES], i + 1);
        dbus_message_iter_recurse(&value, &bytes);
        dbus_message_iter_get_fixed_array(&bytes, &data, &n);
        picture->file = (struct tdm_chat_text){ (const char *)data, (size_t)n };
        return 0;
}

/* a(uuv): the index of a message (0 of Generate), the byte of its text before which the picture stands, its file. */
static int read_pictures(DBusMessageIter *at, struct bus_request *request, struct tdm_error *err)
{
        int count = dbus_message_iter_get_arg_type(at) == DBUS_TYPE_ARRAY ? dbus_message_iter_get_element_count(at) : 0;
        _cleanup_(dbus_freep) char *signature = dbus_message_iter_get_signature(at);
        DBusMessageIter entries;
        int r = 0;

        if (!signature || strcmp(signature, "a(uuv)") != 0)
                return bad_type(err, bus_options[PICTURES], "an array of (uuv): message, byte, file (ay or h)");
        if ((unsigned)count > TDM_MAX_JOB_PICTURES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%d pictures; at most %u are taken", count,
                                     TDM_MAX_JOB_PICTURES);
        request->pictures = calloc((size_t)count + 1, sizeof(*request->pictures));
        request->picture_fds = calloc((size_t)count + 1, sizeof(*request->picture_fds));
        if (!request->pictures || !request->picture_fds)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (int i = 0; i < count; i++)
                request->picture_fds[i] = -1;
        request->params.picture_files = request->pictures;
        request->params.n_picture_files = (size_t)count;
        dbus_message_iter_recurse(at, &entries);
        for (int i = 0; r == 0 && i < count; i++, dbus_message_iter_next(&entries))
                r = read_picture(&entries, request, (size_t)i, err);
        return r;
}

static int read_output(DBusMessageIter *at, enum bus_output *ret, struct tdm_error *err)
{
        static const char *const outputs[] = {
                [BUS_OUTPUT_TEXT] = "text", [BUS_OUTPUT_EVENTS] = "events", [BUS_OUTPUT_NONE] = "none"
        };
        const char *value;
        int r = read_string(at, bus_options[OUTPUT], &value, err);

        if (r != 0)
                return r;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(outputs); i++) {
                if (strcmp(value, outputs[i]) != 0)
                        continue;
                *ret = (enum bus_output)i;
                return 0;
        }
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: '%.*s' is not text, events or none", bus_options[OUTPUT],
                             TDM_UTF8_CUT(value, 60));
}

/* It becomes a part of an object's path. */
static int read_token(DBusMessageIter *at, const char **ret, struct tdm_error *err)
{
        const char *s;
        size_t n;
        int r = read_string(at, bus_options[TOKEN], &s, err);

        if (r != 0)
                return r;
        n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n == 0 || n > 64 || s[n])
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "%s: '%.*s' is not 1 to 64 letters, digits and underscores", bus_options[TOKEN],
                                     TDM_UTF8_CUT(s, 70));
        *ret = s;
        return 0;
}

/* ---- one option ---- */

static int read_bus_option(DBusMessageIter *at, enum bus_option which, struct bus_request *request,
                           struct tdm_error *err)
{
        switch (which) {
        case MODEL:
                return read_string(at, bus_options[which], &request->model, err);
        case MODEL_FD:
                return read_fd(at, bus_options[which], &request->model_fd, err);
        case PROMPT_IDS:
                return read_ids(at, &request->params, err);
        case TOKEN:
                return read_token(at, &request->token, err);
        case LINGER:
                return read_bool(at, bus_options[which], &request->linger, err);
        case OUTPUT:
                return read_output(at, &request->output, err);
        case CALLS:
                return read_calls(at, request, err);
        case ANSWERS:
                return read_answers(at, request, err);
        case THOUGHTS:
                return read_thoughts(at, request, err);
        case PICTURES:
                return read_pictures(at, request, err);
        case N_BUS_OPTIONS:
                break;
        }
        return TDM_E_INTERNAL;
}

/* Into the member of the row. Numbers are checked here, because the member may be too small for them. Texts are checked
 * by tdm_job_new(), as for the socket. */
static int read_job_option(DBusMessageIter *at, size_t which, struct bus_request *request, struct tdm_error *err)
{
        const struct tdm_job_option *option = &tdm_job_options[which];
        void *to = (char *)&request->params.options + tdm_job_option_offsets[which];
        const char *name;
        dbus_bool_t b;
        uint64_t n;
        double d;

        switch (option->range.type) {
        case TDM_VALUE_BOOL:
                if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_BOOLEAN)
                        return option_refuse(option, at, err);
                dbus_message_iter_get_basic(at, &b);
                *(bool *)to = b;
                return 0;
        case TDM_VALUE_U32:
        case TDM_VALUE_U64:
                if (!get_whole(at, &n) || !tdm_range_has_u64(&option->range, n))
                        return option_refuse(option, at, err);
                if (option->range.type == TDM_VALUE_U32)
                        *(uint32_t *)to = (uint32_t)n;
                else
                        *(uint64_t *)to = n;
                return 0;
        case TDM_VALUE_REAL:
                if (!get_real(at, &d) || !tdm_range_has_real(&option->range, d))
                        return option_refuse(option, at, err);
                *(float *)to = (float)d;
                return 0;
        case TDM_VALUE_CHOICE:
        case TDM_VALUE_NAME:
                if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_STRING)
                        return option_refuse(option, at, err);
                dbus_message_iter_get_basic(at, &name);
                return tdm_job_option_choose(option, name, to, err);
        case TDM_VALUE_TEXT:
                if (dbus_message_iter_get_arg_type(at) != DBUS_TYPE_STRING)
                        return option_refuse(option, at, err);
                dbus_message_iter_get_basic(at, to);
                return 0;
        case TDM_VALUE_TEXTS:
        case TDM_VALUE_U32_LIST:
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

/* Each option once. */
static int take_once(const char *name, size_t index, uint64_t *seen, struct tdm_error *err)
{
        if (*seen & UINT64_C(1) << index)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%s\" is given twice", name);
        *seen |= UINT64_C(1) << index;
        return 0;
}

static int unknown(const char *name, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "option \"%.*s\" is not known here", TDM_UTF8_CUT(name, 60));
}

static_assert(TDM_N_JOB_OPTIONS + N_BUS_OPTIONS <= 64, "a bit for each option");

static int read_option(const char *name, DBusMessageIter *at, struct bus_request *request, uint64_t *seen,
                       struct tdm_error *err)
{
        int r;

        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++) {
                if (strcmp(name, tdm_job_options[i].name) != 0)
                        continue;
                r = take_once(name, i, seen, err);
                if (r != 0)
                        return r;
                if (i == TDM_JOB_OPTION_stop)
                        return read_texts(at, &tdm_job_options[i], request->stops, &request->params.options.stop,
                                          &request->params.options.n_stop, err);
                return read_job_option(at, i, request, err);
        }
        for (size_t i = 0; i < N_BUS_OPTIONS; i++) {
                if (strcmp(name, bus_options[i]) != 0)
                        continue;
                r = take_once(name, TDM_N_JOB_OPTIONS + i, seen, err);
                return r != 0 ? r : read_bus_option(at, (enum bus_option)i, request, err);
        }
        return unknown(name, err);
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
                                             "role \"%.*s\" of message %zu is none of system, user, assistant, tool",
                                             TDM_UTF8_CUT(role, 40), n + 1);
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
        uint64_t seen = 0;
        int r = 0;

        *ret = (struct bus_request){ .model_fd = -1, .params = { .kind = TDM_JOB_GENERATE } };
        if (chat)
                r = read_chat(args, ret, err);
        else {
                dbus_message_iter_get_basic(args, &ret->params.text);
                ret->params.text_size = strlen(ret->params.text);
        }
        dbus_message_iter_next(args);
        dbus_message_iter_recurse(args, &entries);
        while (r == 0 && next_entry(&entries, &name, &value))
                r = read_option(name, &value, ret, &seen, err);
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++)
                if (!(seen & UINT64_C(1) << i))
                        ret->params.options.left_open |= tdm_job_options[i].open_bit;
        return r;
}

void bus_request_deinit(struct bus_request *request)
{
        closep(&request->model_fd);
        for (size_t i = 0; request->picture_fds && i < request->params.n_picture_files; i++)
                closep(&request->picture_fds[i]);
        free(steal_ptr(&request->picture_fds));
        free(steal_ptr(&request->pictures));
        free(steal_ptr(&request->messages));
        free(steal_ptr(&request->calls));
}

void bus_request_free(struct tdm_dbus *bus, const struct tdm_account *account, struct bus_request *request)
{
        if (!request)
                return;
        tdm_models_close_file(bus->models, account, steal_fd(&request->model_fd));
        for (size_t i = 0; request->picture_fds && i < request->params.n_picture_files; i++)
                tdm_models_close_file(bus->models, account, steal_fd(&request->picture_fds[i]));
        bus_request_deinit(request);
        free(request);
}

int bus_read_load(DBusMessageIter *options, bool *ret_wait, int *ret_fd, struct tdm_error *err)
{
        static const char *const known[] = { "wait", "model-fd" };
        DBusMessageIter entries, value;
        bool wait = false;
        const char *name;
        uint64_t seen = 0;
        int r = 0;

        dbus_message_iter_recurse(options, &entries);
        while (r == 0 && next_entry(&entries, &name, &value)) {
                size_t i = 0;

                while (i < TDM_ARRAY_SIZE(known) && strcmp(name, known[i]) != 0)
                        i++;
                if (!ret_wait || i == TDM_ARRAY_SIZE(known))
                        return unknown(name, err);
                r = take_once(name, i, &seen, err);
                if (r == 0)
                        r = i == 0 ? read_bool(&value, name, &wait, err) : read_fd(&value, name, ret_fd, err);
        }
        if (r != 0)
                return r;
        if (ret_wait)
                *ret_wait = wait;
        return 0;
}

int bus_read_embed(DBusMessageIter *options, const char **ret_model, struct tdm_job_params *ret, struct tdm_error *err)
{
        static const struct {
                const char *name;
                unsigned kinds;
        } known[] = {
                { "model", 1u << TDM_JOB_EMBED | 1u << TDM_JOB_RERANK | 1u << TDM_JOB_CLASSIFY },
                { "dimensions", 1u << TDM_JOB_EMBED },
                { "second", 1u << TDM_JOB_CLASSIFY },
                { "raw", 1u << TDM_JOB_CLASSIFY },
        };
        DBusMessageIter entries, value;
        const char *name;
        uint64_t seen = 0, n = 0;
        int r = 0;

        dbus_message_iter_recurse(options, &entries);
        while (r == 0 && next_entry(&entries, &name, &value)) {
                size_t i = 0;

                while (i < TDM_ARRAY_SIZE(known) &&
                       (strcmp(name, known[i].name) != 0 || !(known[i].kinds & 1u << ret->kind)))
                        i++;
                if (i == TDM_ARRAY_SIZE(known))
                        return unknown(name, err);
                r = take_once(name, i, &seen, err);
                if (r == 0 && (i == 0 || i == 2)) {
                        if (dbus_message_iter_get_arg_type(&value) != DBUS_TYPE_STRING)
                                return bad_type(err, name, "a string");
                        dbus_message_iter_get_basic(&value, i == 0 ? ret_model : &ret->text);
                } else if (r == 0 && i == 3)
                        r = read_bool(&value, name, &ret->raw, err);
                else if (r == 0 && (!get_whole(&value, &n) || n < 1 || n > 65536))
                        return bad_type(err, name, "a whole number from 1 to 65536");
        }
        ret->dimensions = (uint32_t)n;
        return r;
}

int bus_read_no_options(DBusMessageIter *options, struct tdm_error *err)
{
        return bus_read_load(options, NULL, NULL, err);
}
