/* Requests with one answer that the caller waits for: everything but jobs. An answer of a kind that was not asked for
 * is a breach of protocol, except progress, which may come before the answer of a load. */
#include "client-lib/internal.h"

static bool sync_on_reply(struct call *call, Tandem__Reply *reply)
{
        struct sync_call *sync = (struct sync_call *)((char *)call - offsetof(struct sync_call, call));

        if (sync->done || reply->kind_case == TANDEM__REPLY__KIND_PROGRESS)
                return false;
        sync->reply = reply;
        sync->done = true;
        return true;
}

static void sync_on_lost(struct call *call, const struct tandem_error *err, bool silent)
{
        struct sync_call *sync = (struct sync_call *)((char *)call - offsetof(struct sync_call, call));

        if (sync->done)
                return; /* its answer came first */
        lib_error_copy(&sync->err, err);
        sync->done = true;
}

static void sync_on_away(struct call *call)
{
}

static bool sync_is_done(const struct call *call)
{
        return ((const struct sync_call *)((const char *)call - offsetof(struct sync_call, call)))->done;
}

static void sync_again(struct call *call)
{
        struct sync_call *sync = (struct sync_call *)((char *)call - offsetof(struct sync_call, call));

        if (lib_send(sync->tandem, sync->request, sync->fd, call, &sync->err) != TANDEM_OK) {
                lib_call_unlink(sync->tandem, call);
                sync->done = true;
        }
}

/* A load takes long, and may be begun anew. Other answers are of the daemon that was asked. */
int lib_request(struct tandem *t, Tandem__Request *request, int fd, int timeout_ms, Tandem__Reply__KindCase wanted,
                Tandem__Reply **ret, struct tandem_error *err)
{
        struct sync_call sync = { .call = { .on_reply = sync_on_reply, .on_lost = sync_on_lost },
                                  .tandem = t,
                                  .request = request,
                                  .fd = fd };
        int code;

        if (request->kind_case == TANDEM__REQUEST__KIND_LOAD) {
                sync.call.on_away = sync_on_away;
                sync.call.again = sync_again;
                sync.call.is_given_up = sync_is_done;
        }

        if (t->depth > 0)
                return lib_error(err, TANDEM_E_BAD_REQUEST,
                                 "a callback asked for something that has to wait for tandemd");
        code = lib_send(t, request, fd, &sync.call, err);
        if (code != TANDEM_OK)
                return code;
        lib_ref(t);
        code = lib_wait(t, &sync.done, timeout_ms, err);
        if (sync.call.linked)
                lib_call_unlink(t, &sync.call);

        if (code != TANDEM_OK) {
                ;
        } else if (!sync.reply) {
                code = lib_error_copy(err, &sync.err);
        } else if (sync.reply->kind_case == TANDEM__REPLY__KIND_ERROR) {
                code = lib_error_from_wire(err, sync.reply->error);
        } else if (sync.reply->kind_case != wanted) {
                lib_protocol_error(t, "it answered a request of kind %d with a reply of kind %d", request->kind_case,
                                   sync.reply->kind_case);
                code = lib_error_copy(err, &t->dead_error);
        } else {
                *ret = sync.reply;
                sync.reply = NULL;
        }
        free_reply(sync.reply);
        lib_unref(t);
        return code;
}

int lib_request_ok(struct tandem *t, Tandem__Request *request, int fd, struct tandem_error *err)
{
        _cleanup_(free_replyp) Tandem__Reply *reply = NULL;

        return lib_request(t, request, fd, t->timeout_ms, TANDEM__REPLY__KIND_OK, &reply, err);
}

int tandem_tokenize(struct tandem *t, const char *model, const char *text, size_t size, unsigned flags,
                    uint32_t **ret_ids, size_t *ret_n, struct tandem_error *err)
{
        _cleanup_(free_replyp) Tandem__Reply *reply = NULL;
        _cleanup_(closep) int fd = -1;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Tokenize tokenize = TANDEM__TOKENIZE__INIT;
        Tandem__ModelRef ref;
        uint32_t *ids;
        size_t n;
        int code;

        if (!text)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "there is no text to tokenize");
        if (flags & ~(TANDEM_TOKENIZE_SPECIAL | TANDEM_TOKENIZE_NO_BOS))
                return lib_error(err, TANDEM_E_BAD_REQUEST, "unknown tokenize flags 0x%x", flags);
        code = lib_model_ref(&ref, model, &fd, err);
        if (code != TANDEM_OK)
                return code;
        tokenize.model = &ref;
        tokenize.text = (ProtobufCBinaryData){ .len = size == SIZE_MAX ? strlen(text) : size,
                                               .data = (uint8_t *)(uintptr_t)text };
        tokenize.special = (flags & TANDEM_TOKENIZE_SPECIAL) != 0;
        tokenize.no_bos = (flags & TANDEM_TOKENIZE_NO_BOS) != 0;
        request.kind_case = TANDEM__REQUEST__KIND_TOKENIZE;
        request.tokenize = &tokenize;
        code = lib_request(t, &request, fd, t->timeout_ms, TANDEM__REPLY__KIND_TOKENIZE, &reply, err);
        if (code != TANDEM_OK)
                return code;

        n = reply->tokenize->n_ids;
        ids = malloc((n ? n : 1) * sizeof(*ids));
        if (!ids)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for %zu ids", n);
        if (n)
                memcpy(ids, reply->tokenize->ids, n * sizeof(*ids));
        *ret_ids = ids;
        *ret_n = n;
        return TANDEM_OK;
}

void tandem_free(void *memory)
{
        free(memory);
}

int tandem_restart_worker(struct tandem *t, const char *worker, struct tandem_error *err)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__RestartWorker restart = TANDEM__RESTART_WORKER__INIT;

        if (!worker || (strcmp(worker, "npu") != 0 && strcmp(worker, "gpu") != 0))
                return lib_error(err, TANDEM_E_BAD_REQUEST, "no worker is called '%s': the workers are npu and gpu",
                                 worker ? worker : "");
        restart.worker = (char *)(uintptr_t)worker;
        request.kind_case = TANDEM__REQUEST__KIND_RESTART;
        request.restart = &restart;
        return lib_request_ok(t, &request, -1, err);
}

int tandem_load_model(struct tandem *t, const char *model, struct tandem_error *err)
{
        _cleanup_(closep) int fd = -1;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__LoadModel load = TANDEM__LOAD_MODEL__INIT;
        Tandem__ModelRef ref;
        int code;

        code = lib_model_ref(&ref, model, &fd, err);
        if (code != TANDEM_OK)
                return code;
        load.model = &ref;
        request.kind_case = TANDEM__REQUEST__KIND_LOAD;
        request.load = &load;
        return lib_request_ok(t, &request, fd, err);
}

int tandem_unload_model(struct tandem *t, const char *name, struct tandem_error *err)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__UnloadModel unload = TANDEM__UNLOAD_MODEL__INIT;

        if (!name || !*name)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "unload needs the name of a model");
        unload.name = (char *)(uintptr_t)name;
        request.kind_case = TANDEM__REQUEST__KIND_UNLOAD;
        request.unload = &unload;
        return lib_request_ok(t, &request, -1, err);
}
