/* Calls of tools, as they come with tokens. */
#include "client-lib/job.h"

static const char *call_list_append(struct call_list *calls, const char *id, const char *name)
{
        struct tandem_call *call;

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
        *call = (struct tandem_call){ .id = strdup(id), .name = strdup(name), .arguments = "" };
        calls->arguments[calls->n++] = (struct text_buf){ 0 };
        return call->id && call->name ? NULL : "no memory for a call";
}

const char *call_list_add(struct call_list *calls, const Tandem__CallDelta *delta, bool begun)
{
        const char *wrong = NULL;
        struct tandem_call *call;

        if (delta->call >= LIB_MAX_CALLS)
                return "an answer has more calls than this library can hold";
        while (begun && !wrong && calls->n < delta->call + !delta->name[0])
                wrong = call_list_append(calls, "", "");
        if (wrong)
                return wrong;
        if (delta->call > calls->n || (delta->call < calls->n && delta->name[0]))
                return "a piece of a call came out of order";
        if (delta->call == calls->n) {
                wrong = delta->name[0] && delta->id[0] ? call_list_append(calls, delta->id, delta->name) :
                                                         "a call came without a name";
                if (wrong)
                        return wrong;
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
