/* Sends to a client: replies, errors, and the end of a connection that breaks the rules. */
#include "daemon/faces/socket/private.h"

#include "common/log.h"

void face_send(struct client *c, uint32_t id, Tandem__Reply *reply)
{
        uint8_t small[2048], *data = small;
        size_t size;
        int r;

        reply->id = id;
        size = tandem__reply__get_packed_size(reply);
        if (size > TDM_CLIENT_MAX_FRAME_BYTES) {
                face_send_error(c, id, TDM_E_TOO_LONG, "the reply is longer than a frame may be");
                return;
        }
        if (size > sizeof(small))
                data = malloc(size);
        if (!data) {
                tdm_log_error("out of memory for a reply of %zu bytes", size);
                face_protocol_error(c, "out of memory for a reply");
                return;
        }
        tandem__reply__pack(reply, data);
        r = tdm_conn_send(c->conn, data, size, NULL, 0);
        if (r < 0)
                tdm_log_debug("cannot reply to client %d: %s", (int)c->pid, strerror(-r)); /* on_closed follows */
        if (data != small)
                free(data);
}

void face_send_error(struct client *c, uint32_t id, int code, const char *message)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Error error = TANDEM__ERROR__INIT;

        error.code = (char *)tdm_error_name(code);
        error.message = (char *)message;
        reply.kind_case = TANDEM__REPLY__KIND_ERROR;
        reply.error = &error;
        face_send(c, id, &reply);
}

void face_send_ok(struct client *c, uint32_t id)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Ok ok = TANDEM__OK__INIT;

        reply.kind_case = TANDEM__REPLY__KIND_OK;
        reply.ok = &ok;
        face_send(c, id, &reply);
}

void face_protocol_error(struct client *c, const char *message)
{
        struct request *request;

        if (c->finishing)
                return;
        c->finishing = true;
        tdm_log_debug("client %d of user %u hung up on: %s", (int)c->pid, (unsigned)c->uid, message);
        face_send_error(c, 0, TDM_E_PROTOCOL, message);
        tdm_list_for_each(request, &c->requests, struct request, node)
                if (request->job)
                        tdm_scheduler_cancel(c->face->scheduler, request->job, NULL);
        tdm_conn_finish(c->conn);
}

void face_mind_queue(struct client *c, struct tdm_job *job)
{
        uint64_t queued = tdm_conn_queued_bytes(c->conn);

        if (queued <= PAUSE_BYTES)
                return;
        if (job)
                tdm_job_pause(job, true);
        if (!c->paused) {
                c->paused = true;
                c->queued_bytes = queued;
                c->stalled_since_ns = tdm_now_ns();
                tdm_source_arm(c->face->reading, c->stalled_since_ns + QUEUE_LOOK_NS);
        }
}
