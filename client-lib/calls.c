/* Calls of tools: as a chat's messages tell of them, and as they come with tokens. */
#include "client-lib/job.h"

#define MAX_CALLS 4096u

const char *call_list_add(struct call_list *calls, const Tandem__CallDelta *delta)
{
        struct tandem_call *call;

        if (delta->call > calls->n || delta->call >= MAX_CALLS || (delta->call < calls->n && delta->name[0]))
                return "a piece of a call came out of order";
        if (delta->call == calls->n) {
                if (!delta->name[0] || !delta->id[0])
                        return "a call came without a name";
                if (calls->n == calls->capacity) {
                        size_t capacity = TDM_MAX(calls->capacity * 2, (size_t)4);
                        struct tandem_call *items = reallocarray(calls->items, capacity, sizeof(*items));
                        struct text_buf *arguments;

                        if (items)
                                calls->items = items;
                        arguments = items ? reallocarray(calls->arguments, capacity, sizeof(*arguments)) : NULL;
                        if (!arguments)
                                return "no memory for a call";
                        calls->arguments = arguments;
                        calls->capacity = capacity;
                }
                call = &calls->items[calls->n];
                *call = (struct tandem_call){ .id = strdup(delta->id), .name = strdup(delta->name), .arguments = "" };
                calls->arguments[calls->n++] = (struct text_buf){ 0 };
                if (!call->id || !call->name)
                        return "no memory for a call";
        }
        call = &calls->items[delta->call];
        if (text_add(&calls->arguments[delta->call], delta->arguments.data, delta->arguments.len) < 0)
                return "a call's arguments are longer than this library can hold";
        call->arguments = calls->arguments[delta->call].data;
        return NULL;
}

void call_list_deinit(struct call_list *calls)
{
        for (size_t i = 0; i < calls->n; i++) {
                free((char *)(uintptr_t)calls->items[i].id);
                free((char *)(uintptr_t)calls->items[i].name);
                free(calls->arguments[i].data);
        }
        free(calls->items);
        free(calls->arguments);
}

const struct tandem_call *tandem_job_calls(const struct tandem_job *job, size_t *ret_n)
{
        *ret_n = job->calls.n;
        return job->calls.n > 0 ? job->calls.items : NULL;
}

static char *unconst_text(const char *text)
{
        return (char *)(uintptr_t)(text ? text : "");
}

int lib_put_message(Tandem__ChatMessage *to, const struct tandem_message *message,
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
        if (details.n_calls > MAX_CALLS)
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
