/* A chat on its way to the daemon, for jobs and for who wants to see its prompt. */
#include "client-lib/job.h"

#include <sys/stat.h>

void generate_wire_deinit(struct generate_wire *wire)
{
        for (size_t i = 0; wire->rooms && i < wire->options.n_chat; i++)
                free(wire->rooms[i]);
        free(wire->rooms);
        free(wire->message_ptrs);
        free(wire->messages);
        free(wire->stops);
        free(wire->pictures);
        for (size_t i = 0; wire->picture_files && i < wire->options.n_pictures; i++)
                free(wire->picture_files[i]);
        free(wire->picture_files);
}

static char *unconst_text(const char *text)
{
        return (char *)(uintptr_t)(text ? text : "");
}

/* A message with its details, in memory of *ret_room, which is freed after packing. */
static int put_chat_message(Tandem__ChatMessage *to, const struct tandem_message *message,
                            const struct tandem_message_details *given, void **ret_room, struct tandem_error *err)
{
        struct tandem_message_details details = { 0 };
        Tandem__ChatCall *calls;

        tandem__chat_message__init(to);
        to->role = unconst_text(message->role);
        to->text = lib_bytes(message->text, message->size);
        *ret_room = NULL;
        if (!given)
                return TANDEM_OK;
        memcpy(&details, given, TDM_MIN(given->struct_size, sizeof(details)));
        if (details.thinking)
                to->thinking = lib_bytes(details.thinking, SIZE_MAX);
        to->call_id = unconst_text(details.call_id);
        to->name = unconst_text(details.name);
        if (details.n_calls > LIB_MAX_CALLS)
                return lib_error(err, TANDEM_E_TOO_LONG, "more calls of tools than any model takes");
        calls = calloc(details.n_calls + 1, sizeof(*calls) + sizeof(*to->calls));
        if (!calls)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a message");
        to->calls = (Tandem__ChatCall **)(calls + details.n_calls);
        to->n_calls = details.n_calls;
        for (size_t i = 0; i < details.n_calls; i++) {
                tandem__chat_call__init(&calls[i]);
                calls[i].id = unconst_text(details.calls[i].id);
                calls[i].name = unconst_text(details.calls[i].name);
                calls[i].arguments =
                        lib_bytes(details.calls[i].arguments ? details.calls[i].arguments : "{}", SIZE_MAX);
                to->calls[i] = &calls[i];
        }
        *ret_room = calls;
        return TANDEM_OK;
}

static int put_chat(struct generate_wire *wire, struct tandem_error *err)
{
        const struct tandem_generate_options *o = &wire->options;

        for (size_t i = 0; i < o->n_chat; i++) {
                int code = put_chat_message(&wire->messages[i], &o->chat[i],
                                            o->chat_details ? o->chat_details[i] : NULL, &wire->rooms[i], err);

                if (code != TANDEM_OK)
                        return code;
                wire->message_ptrs[i] = &wire->messages[i];
        }
        return TANDEM_OK;
}

/* All of a file, into memory of *ret_room. */
static int read_picture(int fd, size_t number, ProtobufCBinaryData *ret, void **ret_room, struct tandem_error *err)
{
        struct stat st;
        size_t at = 0;

        if (fstat(fd, &st) < 0)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "picture %zu: descriptor %d: %s", number, fd,
                                 strerror(errno));
        if (!S_ISREG(st.st_mode))
                return lib_error(err, TANDEM_E_BAD_REQUEST, "picture %zu: descriptor %d is of no regular file", number,
                                 fd);
        if ((uint64_t)st.st_size > LIB_MAX_PICTURE_BYTES)
                return lib_error(err, TANDEM_E_TOO_LONG, "picture %zu has %jd bytes; at most %zu are taken", number,
                                 (intmax_t)st.st_size, LIB_MAX_PICTURE_BYTES);
        *ret_room = malloc((size_t)st.st_size + 1);
        if (!*ret_room)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a picture");
        while (at < (size_t)st.st_size) {
                ssize_t n = pread(fd, (char *)*ret_room + at, (size_t)st.st_size - at, (off_t)at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return lib_error(err, TANDEM_E_BAD_REQUEST, "cannot read picture %zu: %s", number,
                                         strerror(errno));
                if (n == 0)
                        break; /* it became shorter */
                at += (size_t)n;
        }
        *ret = (ProtobufCBinaryData){ .data = *ret_room, .len = at };
        return TANDEM_OK;
}

static int put_pictures(struct generate_wire *wire, struct tandem_error *err)
{
        const struct tandem_generate_options *o = &wire->options;
        Tandem__Picture *pictures;

        if (o->n_pictures == 0)
                return TANDEM_OK;
        if (o->n_pictures > LIB_MAX_PICTURES)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "%zu pictures; at most %u are taken", o->n_pictures,
                                 LIB_MAX_PICTURES);
        pictures = wire->pictures = calloc(o->n_pictures, sizeof(*pictures) + sizeof(*wire->generate.pictures));
        wire->picture_files = calloc(o->n_pictures, sizeof(*wire->picture_files));
        if (!pictures || !wire->picture_files)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job");
        wire->generate.pictures = (Tandem__Picture **)(pictures + o->n_pictures);
        wire->generate.n_pictures = o->n_pictures;
        for (size_t i = 0; i < o->n_pictures; i++) {
                tandem__picture__init(&pictures[i]);
                if (o->pictures[i].file || !o->picture_fds) {
                        pictures[i].file = lib_bytes(o->pictures[i].file, o->pictures[i].size);
                } else {
                        int code =
                                read_picture(o->picture_fds[i], i + 1, &pictures[i].file, &wire->picture_files[i], err);

                        if (code != TANDEM_OK)
                                return code;
                }
                pictures[i].message = o->pictures[i].message;
                pictures[i].offset = o->pictures[i].offset;
                wire->generate.pictures[i] = &pictures[i];
        }
        return TANDEM_OK;
}

int generate_wire_init(struct generate_wire *wire, const struct tandem_generate_options *given,
                       struct tandem_error *err)
{
        struct tandem_generate_options *o = &wire->options;
        int code;

        tandem_generate_options_init(o);
        memcpy(o, given, TDM_MIN(given->struct_size, sizeof(*o)));
        if ((o->prompt != NULL) + (o->n_chat > 0) + (o->n_prompt_ids > 0) != 1)
                return lib_error(err, TANDEM_E_BAD_REQUEST,
                                 o->prompt || o->n_chat || o->n_prompt_ids ?
                                         "a job takes one of prompt, chat and prompt_ids, not several" :
                                         "there is nothing to generate from: give a prompt, a chat or prompt_ids");
        if (o->n_chat > LIB_MAX_MESSAGES)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "%zu chat messages; at most %u are taken", o->n_chat,
                                 LIB_MAX_MESSAGES);
        if (o->n_prompt_ids > LIB_MAX_TOKENS)
                return lib_error(err, TANDEM_E_TOO_LONG, "more prompt ids than any model takes");
        code = lib_check_options(o, err);
        if (code != TANDEM_OK)
                return code;
        wire->stops = calloc(o->n_stop + 1, sizeof(*wire->stops));
        wire->messages = calloc(o->n_chat + 1, sizeof(*wire->messages));
        wire->message_ptrs = calloc(o->n_chat + 1, sizeof(*wire->message_ptrs));
        wire->rooms = calloc(o->n_chat + 1, sizeof(*wire->rooms));
        if (!wire->stops || !wire->messages || !wire->message_ptrs || !wire->rooms)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job");
        tandem__generate__init(&wire->generate);
        tandem__sampling__init(&wire->sampling);
        code = put_chat(wire, err);
        if (code == TANDEM_OK)
                code = put_pictures(wire, err);
        if (code != TANDEM_OK)
                return code;
        lib_put_options(&wire->generate, &wire->sampling, wire->stops, o);
        if (o->prompt)
                wire->generate.prompt = lib_bytes(o->prompt, o->prompt_size);
        wire->generate.n_chat = o->n_chat;
        wire->generate.chat = wire->message_ptrs;
        wire->generate.n_prompt_ids = o->n_prompt_ids;
        wire->generate.prompt_ids = (uint32_t *)(uintptr_t)o->prompt_ids;
        wire->generate.sampling = &wire->sampling;
        return TANDEM_OK;
}

/* All in one piece of memory: the struct, spans, ids, text. */
static struct tandem_rendered *copy_rendered(const Tandem__Rendered *from)
{
        struct tandem_rendered *to = malloc(sizeof(*to) + from->n_span_ends * sizeof(*to->spans) +
                                            from->n_ids * sizeof(*to->ids) + from->text.len + 1);
        struct tandem_span *spans;
        uint32_t *ids;
        char *text;

        if (!to)
                return NULL;
        spans = (struct tandem_span *)(to + 1);
        ids = (uint32_t *)(spans + from->n_span_ends);
        text = (char *)(ids + from->n_ids);
        for (size_t i = 0; i < from->n_span_ends; i++)
                spans[i] = (struct tandem_span){ .end = from->span_ends[i], .of_template = from->span_template[i] };
        if (from->n_ids)
                memcpy(ids, from->ids, from->n_ids * sizeof(*ids));
        if (from->text.len)
                memcpy(text, from->text.data, from->text.len);
        text[from->text.len] = '\0';
        *to = (struct tandem_rendered){ .text = text,
                                        .size = from->text.len,
                                        .ids = ids,
                                        .n_ids = from->n_ids,
                                        .spans = spans,
                                        .n_spans = from->n_span_ends };
        return to;
}

/* Whether callers can cut the text by the spans. */
static bool spans_cover(const Tandem__Rendered *rendered)
{
        size_t n = rendered->n_span_ends;

        if (rendered->n_span_template != n || (n ? rendered->span_ends[n - 1] : 0) != rendered->text.len)
                return false;
        for (size_t i = 1; i < n; i++)
                if (rendered->span_ends[i] < rendered->span_ends[i - 1])
                        return false;
        return true;
}

int tandem_render(struct tandem *t, const struct tandem_generate_options *given, struct tandem_rendered **ret,
                  struct tandem_error *err)
{
        _cleanup_(generate_wire_deinit) struct generate_wire wire = { 0 };
        _cleanup_(free_replyp) Tandem__Reply *reply = NULL;
        _cleanup_(closep) int fd = -1;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__ModelRef ref;
        int code;

        code = generate_wire_init(&wire, given, err);
        if (code != TANDEM_OK)
                return code;
        if (wire.options.n_chat == 0)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "there is no chat to render");
        code = lib_model_ref(&ref, wire.options.model, &fd, err);
        if (code != TANDEM_OK)
                return code;
        wire.generate.model = &ref;
        request.kind_case = TANDEM__REQUEST__KIND_RENDER;
        request.render = &wire.generate;
        code = lib_request(t, &request, fd, t->timeout_ms, TANDEM__REPLY__KIND_RENDERED, &reply, err);
        if (code != TANDEM_OK)
                return code;
        if (!spans_cover(reply->rendered))
                return lib_error(err, TANDEM_E_PROTOCOL, "the spans of the prompt do not fit its text");
        *ret = copy_rendered(reply->rendered);
        return *ret ? TANDEM_OK : lib_error(err, TANDEM_E_NO_MEMORY, "no memory for the prompt");
}
