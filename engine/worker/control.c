/* The control socket, worker's end: the one file of the worker that knows worker.proto.
 *
 * The control thread blocks in recv(), turns each frame into a command of our own and puts it into the mailbox. Fds are
 * queued in the order in which they came and handed to the message that names them, so that a model of more chunks than
 * one message can carry needs no second mechanism. tandemd is trusted more than the peer but not blindly: sizes and
 * counts are checked here, what the fds hold is checked where they are mapped (models.c, common/ring.c).
 *
 * When tandemd goes, the process goes, from this thread, whatever the executor is doing: no process is left that a
 * result could go to, and the kernel gives everything back. It does not answer anything; that is the executor's. */
#include "engine/worker/private.h"

#include "common/log.h"
#include "common/thread.h"
#include "proto/worker.pb-c.h"

/* Chunks of one model's segments and their dma-bufs: no more can be named by one message. */
#define STASH_MAX (4u * (TDM_SEGMENT_MAX_CHUNKS + 1u))

struct tdm_worker_stash {
        int *fds;
        unsigned n, capacity;
        unsigned taken; /* of n, from the front */
};

static void stash_reset(struct tdm_worker_stash *stash)
{
        for (unsigned i = stash->taken; i < stash->n; i++)
                closep(&stash->fds[i]);
        stash->n = 0;
        stash->taken = 0;
}

static unsigned stash_left(const struct tdm_worker_stash *stash)
{
        return stash->n - stash->taken;
}

/* Takes all of fds. */
static int stash_add(struct tdm_worker_stash *stash, int *fds, unsigned n_fds)
{
        if (n_fds > STASH_MAX || stash->n > STASH_MAX - n_fds)
                return -E2BIG;
        if (stash->n + n_fds > stash->capacity) {
                unsigned capacity = TDM_MAX(2 * stash->capacity, stash->n + n_fds);
                int *p = realloc(stash->fds, capacity * sizeof(*p));

                if (!p)
                        return -ENOMEM;
                stash->fds = p;
                stash->capacity = capacity;
        }
        for (unsigned i = 0; i < n_fds; i++)
                stash->fds[stash->n++] = steal_fd(&fds[i]);
        return 0;
}

static int stash_take(struct tdm_worker_stash *stash)
{
        return stash_left(stash) > 0 ? steal_fd(&stash->fds[stash->taken++]) : -1;
}

void tdm_worker_command_free(struct tdm_worker_command *command)
{
        if (!command)
                return;
        for (unsigned i = 0; i < TDM_WORKER_N_SEGS; i++) {
                for (unsigned k = 0; command->segments[i].fds && k < command->segments[i].n_fds; k++)
                        closep(&command->segments[i].fds[k]);
                free(command->segments[i].fds);
                closep(&command->segments[i].dmabuf_fd);
        }
        for (unsigned i = 0; i < TDM_WORKER_N_RINGS; i++)
                closep(&command->ring_fds[i]);
        closep(&command->eventfd);
        free(command);
}

static void command_freep(struct tdm_worker_command **command)
{
        tdm_worker_command_free(*command);
        *command = NULL;
}

static struct tdm_worker_command *command_new(enum tdm_worker_command_kind kind)
{
        struct tdm_worker_command *command = calloc(1, sizeof(*command));

        if (!command)
                return NULL;
        command->kind = kind;
        command->eventfd = -1;
        for (unsigned i = 0; i < TDM_WORKER_N_SEGS; i++)
                command->segments[i].dmabuf_fd = -1;
        for (unsigned i = 0; i < TDM_WORKER_N_RINGS; i++)
                command->ring_fds[i] = -1;
        return command;
}

static int take_fds(struct tdm_worker *w, uint32_t n_fds, struct tdm_worker_segment *to)
{
        if (n_fds == 0 || n_fds > TDM_SEGMENT_MAX_CHUNKS || n_fds > stash_left(w->stash))
                return -EPROTO;
        to->fds = calloc(n_fds, sizeof(*to->fds));
        if (!to->fds)
                return -ENOMEM;
        to->n_fds = n_fds;
        for (unsigned i = 0; i < to->n_fds; i++)
                to->fds[i] = stash_take(w->stash);
        return 0;
}

static int parse_segment(struct tdm_worker *w, const Tandem__Worker__Segment *from, struct tdm_worker_segment *to)
{
        int r = from ? take_fds(w, from->n_fds, to) : -EPROTO;

        if (r < 0)
                return r;
        to->size_bytes = from->size_bytes;
        to->chunk_bytes = from->chunk_bytes;
        if (from->dmabuf && stash_left(w->stash) == 0)
                return -EPROTO;
        if (from->dmabuf)
                to->dmabuf_fd = stash_take(w->stash);
        return 0;
}

static int parse_load(struct tdm_worker *w, const Tandem__Worker__Load *load, struct tdm_worker_command *command)
{
        const Tandem__Worker__Segment *segments[TDM_WORKER_N_SEGS] = {
                [TDM_WORKER_SEG_WEIGHTS] = load->weights,
                [TDM_WORKER_SEG_STEPS] = load->steps,
                [TDM_WORKER_SEG_ACTIVATIONS] = load->activations,
                [TDM_WORKER_SEG_RESULTS] = load->results,
        };

        command->model_id = load->model_id;
        command->index = load->index;
        snprintf(command->name, sizeof(command->name), "%s", load->name);
        command->precision = load->precision;
        command->kv_type = load->kv_type;
        command->kv_pages[TDM_KV_FULL] = load->kv_full_pages;
        command->kv_pages[TDM_KV_WINDOW] = load->kv_window_pages;
        command->kv_pages[TDM_KV_STATE] = load->kv_states;
        command->dmabuf_only = load->dmabuf_only;
        for (unsigned i = 0; i < TDM_WORKER_N_SEGS; i++) {
                int r = parse_segment(w, segments[i], &command->segments[i]);

                if (r < 0)
                        return r;
        }
        return 0;
}

static int parse_epoch(struct tdm_worker *w, const Tandem__Worker__Epoch *epoch, struct tdm_worker_command *command)
{
        if (stash_left(w->stash) != (epoch->has_peer ? 5u : 3u))
                return -EPROTO;
        command->epoch = epoch->epoch;
        command->has_peer = epoch->has_peer;
        command->ring_fds[TDM_WORKER_RING_FROM_DAEMON] = stash_take(w->stash);
        command->ring_fds[TDM_WORKER_RING_TO_DAEMON] = stash_take(w->stash);
        command->eventfd = stash_take(w->stash);
        if (epoch->has_peer) {
                command->ring_fds[TDM_WORKER_RING_FROM_PEER] = stash_take(w->stash);
                command->ring_fds[TDM_WORKER_RING_TO_PEER] = stash_take(w->stash);
        }
        return 0;
}

static void post_command(struct tdm_worker *w, struct tdm_worker_command *command)
{
        /* Release: pairs with the executor's acquire between blocks; nothing but the number itself is published. */
        if (command->kind == TDM_WORKER_EPOCH)
                atomic_store_explicit(&w->announced, command->epoch, memory_order_release);
        else if (command->kind == TDM_WORKER_QUIT)
                atomic_store_explicit(&w->announced, UINT32_MAX, memory_order_release);

        pthread_mutex_lock(&w->mailbox_lock);
        *w->mailbox_tail = command;
        w->mailbox_tail = &command->next;
        pthread_mutex_unlock(&w->mailbox_lock);
        tdm_ring_kick(&w->kick);
}

struct tdm_worker_command *tdm_worker_take_command(struct tdm_worker *w)
{
        struct tdm_worker_command *command;

        pthread_mutex_lock(&w->mailbox_lock);
        command = w->mailbox_head;
        if (command) {
                w->mailbox_head = command->next;
                if (!w->mailbox_head)
                        w->mailbox_tail = &w->mailbox_head;
                command->next = NULL;
        }
        pthread_mutex_unlock(&w->mailbox_lock);
        return command;
}

static void message_freep(Tandem__Worker__ToWorker **message)
{
        if (*message)
                tandem__worker__to_worker__free_unpacked(*message, NULL);
        *message = NULL;
}

static int handle_frame(struct tdm_worker *w, const uint8_t *data, size_t size, int *fds, unsigned n_fds)
{
        _cleanup_(message_freep) Tandem__Worker__ToWorker *message =
                tandem__worker__to_worker__unpack(NULL, size, data);
        _cleanup_(command_freep) struct tdm_worker_command *command = NULL;
        int r;

        if (!message)
                return -EPROTO;
        r = stash_add(w->stash, fds, n_fds);
        if (r < 0)
                return r;

        switch (message->kind_case) {
        case TANDEM__WORKER__TO_WORKER__KIND_FDS:
                return 0; /* they stay in the stash */
        case TANDEM__WORKER__TO_WORKER__KIND_LOAD:
                command = command_new(TDM_WORKER_LOAD);
                r = command ? parse_load(w, message->load, command) : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_WEIGHTS:
                command = command_new(TDM_WORKER_WEIGHTS);
                if (command)
                        command->model_id = message->weights->model_id;
                r = command ? take_fds(w, message->weights->n_fds, &command->segments[0]) : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_KV:
                command = command_new(TDM_WORKER_KV);
                if (command)
                        command->model_id = message->kv->model_id;
                r = command ? parse_segment(w, message->kv->kv, &command->segments[0]) : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_UNLOAD:
                command = command_new(TDM_WORKER_UNLOAD);
                if (command)
                        command->model_id = message->unload->model_id;
                r = command ? 0 : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_EPOCH:
                command = command_new(TDM_WORKER_EPOCH);
                r = command ? parse_epoch(w, message->epoch, command) : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_QUIT:
                command = command_new(TDM_WORKER_QUIT);
                r = command ? 0 : -ENOMEM;
                break;
        case TANDEM__WORKER__TO_WORKER__KIND_PING:
                command = command_new(TDM_WORKER_PING);
                if (command)
                        command->ping = message->ping->number;
                r = command ? 0 : -ENOMEM;
                break;
        default: /* a second Init, or a message of a newer protocol */
                r = -EPROTO;
                break;
        }
        if (r < 0)
                return r;
        if (stash_left(w->stash) > 0)
                return -EPROTO; /* fds that belong to no message */
        stash_reset(w->stash);
        post_command(w, steal_ptr(&command));
        return 0;
}

/* Frames until the socket ends. Returns only with an error of the protocol; a vanished daemon ends the process. */
static int control_loop(struct tdm_worker *w)
{
        for (;;) {
                const uint8_t *data;
                size_t size;
                int *fds, r;
                unsigned n_fds;
                ssize_t n;

                while ((r = tdm_frame_reader_next(w->reader, &data, &size, &fds, &n_fds)) > 0) {
                        r = handle_frame(w, data, size, fds, n_fds);
                        if (r < 0)
                                return r;
                }
                if (r < 0)
                        return r;
                n = tdm_frame_reader_fill(w->reader, w->control_fd);
                if (n == 0 || n == -ECONNRESET)
                        _exit(EXIT_SUCCESS);
                if (n < 0 && n != -EINTR && n != -EAGAIN)
                        return (int)n;
        }
}

static void *control_main(void *arg)
{
        struct tdm_worker *w = arg;
        int r = control_loop(w);

        tdm_log_error("message from tandemd refused: %s", strerror(-r));
        _exit(EXIT_FAILURE);
        return NULL;
}

int tdm_worker_control_init(struct tdm_worker *w)
{
        int r = pthread_mutex_init(&w->mailbox_lock, NULL);

        if (r != 0)
                return -r;
        w->mailbox_tail = &w->mailbox_head;
        w->stash = calloc(1, sizeof(*w->stash));
        if (!w->stash)
                return -ENOMEM;
        return tdm_frame_reader_new(&w->reader, TDM_WORKER_MAX_FRAME);
}

/* Only while no control thread runs. */
void tdm_worker_control_deinit(struct tdm_worker *w)
{
        struct tdm_worker_command *command;

        while ((command = tdm_worker_take_command(w)))
                tdm_worker_command_free(command);
        tdm_frame_reader_destroyp(&w->reader);
        if (w->stash) {
                stash_reset(w->stash);
                free(w->stash->fds);
                free(steal_ptr(&w->stash));
        }
        pthread_mutex_destroy(&w->mailbox_lock);
}

int tdm_worker_receive_init(struct tdm_worker *w, struct tdm_worker_init *ret, struct tdm_error *err)
{
        _cleanup_(message_freep) Tandem__Worker__ToWorker *message = NULL;
        const uint8_t *data;
        size_t size;
        int *fds, r;
        unsigned n_fds;

        while ((r = tdm_frame_reader_next(w->reader, &data, &size, &fds, &n_fds)) == 0) {
                ssize_t n = tdm_frame_reader_fill(w->reader, w->control_fd);

                if (n == 0)
                        return tdm_error_set(err, -EPIPE, "tandemd closed the control socket before it said anything");
                if (n < 0 && n != -EINTR)
                        return tdm_error_set(err, (int)n,
                                             "cannot read from fd %d: %s (this program is started by tandemd)",
                                             w->control_fd, strerror((int)-n));
        }
        if (r < 0)
                return tdm_error_set(err, r, "bad frame from tandemd: %s", strerror(-r));
        message = tandem__worker__to_worker__unpack(NULL, size, data);
        if (!message || message->kind_case != TANDEM__WORKER__TO_WORKER__KIND_INIT || n_fds != 1)
                return tdm_error_set(err, -EPROTO, "the first message from tandemd is not Init with one fd");
        ret->abi = message->init->abi;
        ret->worker = message->init->worker;
        ret->n_threads = message->init->n_threads;
        snprintf(ret->requested, sizeof(ret->requested), "%s", message->init->requested);
        ret->memory_bytes = message->init->memory_bytes;
        snprintf(ret->device_name, sizeof(ret->device_name), "%s", message->init->device_name);
        snprintf(ret->number_format, sizeof(ret->number_format), "%s", message->init->number_format);
        if (snprintf(ret->programs, sizeof(ret->programs), "%s", message->init->programs) >= (int)sizeof(ret->programs))
                return tdm_error_set(err, -ENAMETOOLONG, "the path of the device's programs is too long");
        ret->progress_fd = steal_fd(&fds[0]);
        return 0;
}

int tdm_worker_control_start(struct tdm_worker *w)
{
        int r = tdm_thread_new(&w->control_thread, control_main, w);

        if (r != 0)
                return r;
        w->control_started = true;
        return 0;
}

/* ---- executor's side ---- */

static void send_message(struct tdm_worker *w, const Tandem__Worker__FromWorker *message)
{
        uint8_t small[1024];
        size_t size = tandem__worker__from_worker__get_packed_size(message);
        _cleanup_(freep) uint8_t *large = NULL;
        uint8_t *data = small;
        int r;

        if (size > sizeof(small))
                data = large = malloc(size);
        if (!data)
                _exit(EXIT_FAILURE);
        tandem__worker__from_worker__pack(message, data);
        r = tdm_frame_send(w->control_fd, data, size, NULL, 0);
        if (r < 0) {
                tdm_log_debug("cannot talk to tandemd: %s", strerror(-r));
                _exit(EXIT_SUCCESS);
        }
}

#define FROM_WORKER(field, KIND)                                                                                       \
        {                                                                                                              \
                .base = PROTOBUF_C_MESSAGE_INIT(&tandem__worker__from_worker__descriptor),                             \
                .kind_case = TANDEM__WORKER__FROM_WORKER__KIND_##KIND, .field = &body                                  \
        }

void tdm_worker_send_hello(struct tdm_worker *w)
{
        Tandem__Worker__Hello body = TANDEM__WORKER__HELLO__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(hello, HELLO);
        struct tdm_device_memory memory = { 0 };

        if (w->device->ops->memory)
                w->device->ops->memory(w->device, &memory);
        body.abi = TDM_WORKER_ABI;
        body.device = (char *)w->device->ops->name;
        body.detail = (char *)w->device->ops->describe(w->device);
        body.numerics_id = (char *)w->device->ops->numerics_id(w->device);
        body.sandbox = (char *)tdm_sandbox_describe(&w->sandbox);
        body.cache_bytes_max = memory.cache_bytes_max;
        body.holds_weights = memory.holds_weights;
        body.left_features = w->device->ops->left_to_host.features;
        body.left_types = w->device->ops->left_to_host.types;
        if (w->host)
                body.left_numerics_id = (char *)w->host->ops->numerics_id(w->host);
        body.reason = w->device->ops->reason ? (char *)w->device->ops->reason(w->device) : w->why_auto;
        send_message(w, &message);
}

void tdm_worker_send_no_device(struct tdm_worker *w, const char *reason)
{
        Tandem__Worker__NoDevice body = TANDEM__WORKER__NO_DEVICE__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(no_device, NO_DEVICE);

        body.reason = (char *)reason;
        send_message(w, &message);
}

void tdm_worker_send_weights_taken(struct tdm_worker *w, const struct tdm_worker_model *m)
{
        Tandem__Worker__WeightsTaken body = TANDEM__WORKER__WEIGHTS_TAKEN__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(weights_taken, WEIGHTS_TAKEN);

        body.model_id = m->model_id;
        body.n_chunks = m->segments[TDM_WORKER_SEG_WEIGHTS]->n_mapped;
        send_message(w, &message);
}

void tdm_worker_send_loaded(struct tdm_worker *w, const struct tdm_worker_model *m)
{
        Tandem__Worker__Loaded body = TANDEM__WORKER__LOADED__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(loaded, LOADED);

        body.model_id = m->model_id;
        body.scratch_bytes = m->device->ops->model_scratch_bytes(m->device_model);
        if (m->plan[0])
                body.plan = (char *)m->plan;
        else if (m->device->ops->plan)
                body.plan = (char *)m->device->ops->plan(m->device_model);
        send_message(w, &message);
}

void tdm_worker_send_load_failed(struct tdm_worker *w, uint32_t model_id, const struct tdm_error *err)
{
        Tandem__Worker__LoadFailed body = TANDEM__WORKER__LOAD_FAILED__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(load_failed, LOAD_FAILED);

        body.model_id = model_id;
        body.code = (char *)tdm_error_name(err->code);
        body.message = (char *)err->message;
        send_message(w, &message);
}

void tdm_worker_send_kv_ready(struct tdm_worker *w, uint32_t model_id)
{
        Tandem__Worker__KvReady body = TANDEM__WORKER__KV_READY__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(kv_ready, KV_READY);

        body.model_id = model_id;
        send_message(w, &message);
}

void tdm_worker_send_unloaded(struct tdm_worker *w, uint32_t model_id)
{
        Tandem__Worker__Unloaded body = TANDEM__WORKER__UNLOADED__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(unloaded, UNLOADED);

        body.model_id = model_id;
        send_message(w, &message);
}

void tdm_worker_send_epoch_ack(struct tdm_worker *w, uint32_t epoch)
{
        Tandem__Worker__EpochAck body = TANDEM__WORKER__EPOCH_ACK__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(epoch_ack, EPOCH_ACK);

        body.epoch = epoch;
        send_message(w, &message);
}

void tdm_worker_send_ring_fault(struct tdm_worker *w, uint32_t epoch, unsigned ring, const char *reason)
{
        static const Tandem__Worker__RingName names[TDM_WORKER_N_RINGS] = {
                [TDM_WORKER_RING_FROM_DAEMON] = TANDEM__WORKER__RING_NAME__RING_FROM_DAEMON,
                [TDM_WORKER_RING_TO_DAEMON] = TANDEM__WORKER__RING_NAME__RING_TO_DAEMON,
                [TDM_WORKER_RING_FROM_PEER] = TANDEM__WORKER__RING_NAME__RING_FROM_PEER,
                [TDM_WORKER_RING_TO_PEER] = TANDEM__WORKER__RING_NAME__RING_TO_PEER,
        };
        Tandem__Worker__RingFault body = TANDEM__WORKER__RING_FAULT__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(ring_fault, RING_FAULT);

        body.epoch = epoch;
        body.ring = names[ring];
        body.reason = (char *)reason;
        send_message(w, &message);
}

void tdm_worker_send_step_failed(struct tdm_worker *w, const struct tdm_desc *desc, const struct tdm_error *err)
{
        Tandem__Worker__StepFailed body = TANDEM__WORKER__STEP_FAILED__INIT;
        const Tandem__Worker__FromWorker message = FROM_WORKER(step_failed, STEP_FAILED);

        body.epoch = desc->epoch;
        body.model_id = desc->model_id;
        body.slot = desc->slot;
        body.step_id = desc->step_id;
        body.code = (char *)tdm_error_name(err->code);
        body.message = (char *)err->message;
        send_message(w, &message);
}
