/* Connections: who may connect, and what becomes of a client that breaks the rules, stops reading or leaves.
 *
 * A connection that ends by a breach is told why: its socket is kept alive by a second descriptor until the reason has
 * been put into it, for the connection object has closed its own by then. */
#include "daemon/faces/socket/private.h"

#include <fcntl.h>
#include <sys/socket.h>
#include "common/log.h"

static void client_free(struct client *c)
{
        struct request *request;

        tdm_list_for_each(request, &c->requests, struct request, node) {
                struct tdm_job *job = request->job;

                if (job) {
                        tdm_job_listen(job, NULL, NULL);
                        tdm_job_pause(job, false);
                        tdm_scheduler_cancel(c->face->scheduler, job, NULL);
                }
                request_free(request);
        }
        tdm_list_remove(&c->node);
        c->face->n_clients--;
        tdm_gate_forget(c->gate);
        tdm_turns_forget(&c->waiter);
        tdm_conn_destroyp(&c->conn);
        closep(&c->fd);
        tdm_account_release(c->account, TDM_RESOURCE_CONNECTIONS, 1);
        tdm_account_unref(c->account);
        free(c);
}

/* One small frame, if it fits into the socket right now. */
static void send_last_words(int fd, int code, const char *message)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Error error = TANDEM__ERROR__INIT;
        uint8_t frame[4 + 64 + TDM_ERROR_MESSAGE_MAX];
        size_t size;

        error.code = (char *)tdm_error_name(code);
        error.message = (char *)message;
        reply.kind_case = TANDEM__REPLY__KIND_ERROR;
        reply.error = &error;
        size = tandem__reply__get_packed_size(&reply);
        if (size > sizeof(frame) - 4)
                return;
        tandem__reply__pack(&reply, frame + 4);
        for (unsigned i = 0; i < 4; i++)
                frame[i] = (uint8_t)(size >> (8 * i));
        if (send(fd, frame, size + 4, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                tdm_log_debug("the last words to a client were not taken: %s", strerror(errno));
}

static void on_client_closed(struct tdm_conn *conn, const struct tdm_error *err, void *userdata)
{
        struct client *c = userdata;

        if (err->code > 0) {
                tdm_log_debug("client %d of user %u hung up on: %s", (int)c->pid, (unsigned)c->uid, err->message);
                send_last_words(c->fd, err->code, err->message);
        }
        client_free(c);
}

static int on_frame(struct tdm_conn *conn, const uint8_t *data, size_t size, int *fds, unsigned n_fds, void *userdata)
{
        struct client *c = userdata;

        struct tdm_face *face = c->face;
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = tdm_account_ref(c->account);

        if (!c->finishing)
                face_handle(c, data, size, fds, n_fds);
        for (unsigned i = 0; i < n_fds; i++)
                if (fds[i] >= 0)
                        tdm_models_close_file(face->models, account, steal_fd(&fds[i]));
        return 0;
}

static bool may_read(void *userdata)
{
        struct client *c = userdata;

        if (tdm_turns_may(c->face->turns, c->account))
                return true;
        tdm_turns_wait(c->face->turns, c->account, &c->waiter);
        return false;
}

static void took(uint64_t ns, void *userdata)
{
        struct client *c = userdata;

        tdm_turns_took(c->face->turns, c->account, ns);
}

static void client_read_on(struct tdm_waiter *waiter)
{
        tdm_conn_go_on(tdm_container_of(waiter, struct client, waiter)->conn);
}

/* Clients that do not read: their jobs go on when they have caught up; in the end it is hung up on them. */
static int on_reading(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_face *face = userdata;
        struct client *c;
        bool any = false;

        tdm_list_for_each(c, &face->clients, struct client, node) {
                uint64_t queued;
                struct request *request;

                if (!c->paused)
                        continue;
                queued = tdm_conn_queued_bytes(c->conn);
                if (queued <= PAUSE_BYTES / 2) {
                        c->paused = false;
                        tdm_list_for_each(request, &c->requests, struct request, node)
                                if (request->job)
                                        tdm_job_pause(request->job, false);
                        tdm_scheduler_kick(face->scheduler);
                        continue;
                }
                any = true;
                if (queued < c->queued_bytes)
                        c->stalled_since_ns = now_ns;
                c->queued_bytes = queued;
                if (now_ns - c->stalled_since_ns > face->not_reading_ns) {
                        tdm_log_info("client %d of user %u hung up on: it has not read its replies for %llu s",
                                     (int)c->pid, (unsigned)c->uid,
                                     (unsigned long long)(face->not_reading_ns / TDM_NSEC_PER_SEC));
                        client_free(c);
                }
        }
        if (any)
                tdm_source_arm(face->reading, now_ns + QUEUE_LOOK_NS);
        return 0;
}

int tdm_face_new(struct tdm_face **ret, struct tdm_loop *loop, struct tdm_models *models,
                 struct tdm_scheduler *scheduler, const struct tdm_face_config *config)
{
        _cleanup_(tdm_face_destroyp) struct tdm_face *face = calloc(1, sizeof(*face));
        int r;

        if (!face)
                return -ENOMEM;
        face->loop = loop;
        face->models = models;
        face->scheduler = scheduler;
        face->system = config->system;
        face->accounts = config->accounts;
        face->authority = config->authority;
        face->half_frame_ns = config->half_frame_ns ? config->half_frame_ns : 30 * TDM_NSEC_PER_SEC;
        face->not_reading_ns = config->not_reading_ns ? config->not_reading_ns : 120 * TDM_NSEC_PER_SEC;
        face->started_ns = tdm_now_ns();
        tdm_list_init(&face->clients);
        face->socket = strdup(config->socket ? config->socket : "");
        if (!face->socket)
                return -ENOMEM;
        tdm_utf8_mend(face->socket);
        r = tdm_loop_add_timer(loop, on_reading, face, &face->reading);
        if (r == 0)
                r = tdm_turns_new(&face->turns, loop);
        if (r == 0)
                r = tdm_background_new_pool(&face->background, loop, TDM_JOB_POOL_THREADS);
        if (r == 0 && face->system)
                r = tdm_gates_new(&face->gates, loop);
        if (r < 0)
                return r;
        *ret = steal_ptr(&face);
        return 0;
}

void tdm_face_set_gateway(struct tdm_face *face, enum tdm_face_gateway state, uid_t uid)
{
        face->gateway_state = state;
        face->gateway = uid;
}

void tdm_face_set_fleet(struct tdm_face *face, struct tdm_fleet *fleet)
{
        face->fleet = fleet;
}

void tdm_face_destroy(struct tdm_face *face)
{
        struct client *c;

        if (!face)
                return;
        tdm_list_for_each(c, &face->clients, struct client, node)
                client_free(c);
        tdm_turns_destroyp(&face->turns);
        tdm_gates_destroyp(&face->gates);
        tdm_background_destroyp(&face->background);
        tdm_source_destroyp(&face->reading);
        free(face->socket);
        free(face);
}

void tdm_face_destroyp(struct tdm_face **face)
{
        tdm_face_destroy(*face);
        *face = NULL;
}

static int on_hold(uint64_t bytes, struct tdm_error *err, void *userdata)
{
        struct client *c = userdata;
        int r = 0;

        if (bytes > c->held_bytes)
                r = tdm_account_charge(c->account, TDM_RESOURCE_FRAME_BYTES, bytes - c->held_bytes, err);
        else
                tdm_account_release(c->account, TDM_RESOURCE_FRAME_BYTES, c->held_bytes - bytes);
        if (r == 0)
                c->held_bytes = bytes;
        return r;
}

static void on_gate(const struct tdm_error *err, uint8_t first, const int *fds, unsigned n_fds, void *userdata)
{
        struct client *c = userdata;

        c->gate = NULL;
        if (err)
                face_protocol_error(c, err->message);
        else
                tdm_conn_fds_came(c->conn, first, fds, n_fds);
}

/* Root and the daemon's own user may pass files of any file system: what they would stop is theirs. */
static int on_fds(int fd, struct tdm_error *err, void *userdata)
{
        struct client *c = userdata;

        return tdm_gates_receive(c->face->gates, c->account, fd, client_is_admin(c), on_gate, c, &c->gate, err);
}

/* Charges the connection to its user's account, a new reference. Or the code of a refusal. */
static int charge_peer(struct tdm_face *face, const struct ucred *peer, struct tdm_account **ret, struct tdm_error *err)
{
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = NULL;
        int r;

        if (!face->system && peer->uid != geteuid() && peer->uid != 0)
                return tdm_error_set(err, TDM_E_DENIED, "this tandemd serves user %u only", (unsigned)geteuid());
        account = tdm_accounts_get(face->accounts, peer->uid);
        if (!account)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "out of memory");
        r = tdm_account_charge(account, TDM_RESOURCE_CONNECTIONS, 1, err);
        if (r != 0)
                return r;
        *ret = steal_ptr(&account);
        return 0;
}

void tdm_face_accept(struct tdm_face *face, int taken_fd)
{
        struct tdm_conn_limits limits = { .max_frame_bytes = TDM_CLIENT_MAX_FRAME_BYTES,
                                          .max_queue_bytes = MAX_QUEUE_BYTES,
                                          .stall_timeout_ns = face->half_frame_ns,
                                          .frame_timeout_ns = 2 * face->half_frame_ns,
                                          .hold = on_hold,
                                          .receive_fds = face->gates ? on_fds : NULL,
                                          .may_read = may_read,
                                          .took = took };
        _cleanup_(closep) int fd = taken_fd;
        socklen_t len = sizeof(struct ucred);
        struct tdm_account *account = NULL;
        struct ucred peer;
        struct tdm_error err;
        struct client *c;
        int r;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
                return;
        if (charge_peer(face, &peer, &account, &err) != 0) {
                tdm_log_debug("connection of process %d, user %u refused: %s", (int)peer.pid, (unsigned)peer.uid,
                              err.message);
                send_last_words(fd, err.code, err.message);
                return;
        }
        c = calloc(1, sizeof(*c));
        r = c ? 0 : -ENOMEM;
        if (r == 0) {
                c->face = face;
                tdm_waiter_init(&c->waiter, client_read_on);
                c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                r = c->fd < 0 ? -errno : tdm_conn_new(&c->conn, face->loop, fd, &limits, on_frame, on_client_closed, c);
        }
        if (r < 0) {
                tdm_log_warning("cannot serve process %d of user %u: %s", (int)peer.pid, (unsigned)peer.uid,
                                strerror(-r));
                tdm_account_release(account, TDM_RESOURCE_CONNECTIONS, 1);
                tdm_account_unref(account);
                if (c)
                        closep(&c->fd);
                free(c);
                return;
        }
        fd = -1;
        c->account = account;
        c->pid = peer.pid;
        c->uid = peer.uid;
        c->identity = peer.uid;
        if (face->system)
                process_remember(c);
        tdm_list_init(&c->requests);
        tdm_list_append(&face->clients, &c->node);
        face->n_clients++;
}

void tdm_face_on_model_changed(struct tdm_face *face, struct tdm_model *model)
{
        struct request *request;
        struct client *c;

        tdm_list_for_each(c, &face->clients, struct client, node)
                tdm_list_for_each(request, &c->requests, struct request, node)
                        if (request->model == model && request->kind != REQUEST_JOB)
                                request_model_changed(request);
}

void tdm_face_set_draining(struct tdm_face *face)
{
        struct request *request;
        struct client *c;

        face->draining = true;
        tdm_list_for_each(c, &face->clients, struct client, node) {
                tdm_list_for_each(request, &c->requests, struct request, node) {
                        if (request->kind != REQUEST_LOAD)
                                continue;
                        face_send_error(c, request->id, TDM_E_DRAINING, REQUEST_NO_LOADS);
                        request_free(request);
                }
        }
}

void tdm_face_finish(struct tdm_face *face)
{
        struct client *c;

        tdm_list_for_each(c, &face->clients, struct client, node) {
                c->finishing = true;
                tdm_conn_finish(c->conn);
        }
}

uint32_t tdm_face_n_connections(const struct tdm_face *face)
{
        return face->n_clients;
}
