/* What tandemd sends to workers: messages of worker.proto, with fds. receive.c has what it gets. No other file of the
 * daemon knows worker.proto. The pump decides what is sent. */
#include "daemon/fleet/private.h"

#include <fcntl.h>
#include "proto/worker.pb-c.h"

static int send_message(struct tdm_fleet_worker *w, const Tandem__Worker__ToWorker *message, const int *fds,
                        unsigned n_fds)
{
        uint8_t data[4096];
        size_t size = tandem__worker__to_worker__get_packed_size(message);

        if (!w->link.conn)
                return -EPIPE;
        if (size > sizeof(data))
                return -EMSGSIZE;
        tandem__worker__to_worker__pack(message, data);
        return tdm_conn_send(w->link.conn, data, size, fds, n_fds);
}

#define TO_WORKER(field, KIND, body)                                                                                   \
        {                                                                                                              \
                .base = PROTOBUF_C_MESSAGE_INIT(&tandem__worker__to_worker__descriptor),                               \
                .kind_case = TANDEM__WORKER__TO_WORKER__KIND_##KIND, .field = (body)                                   \
        }

/* The fds of a message, those that do not fit into it sent ahead. */
static int send_with_fds(struct tdm_fleet_worker *w, const Tandem__Worker__ToWorker *message, const int *fds,
                         unsigned n_fds)
{
        Tandem__Worker__Fds body = TANDEM__WORKER__FDS__INIT;
        const Tandem__Worker__ToWorker ahead = TO_WORKER(fds, FDS, &body);

        while (n_fds > TDM_CONN_MAX_FDS) {
                int r = send_message(w, &ahead, fds, TDM_CONN_MAX_FDS);

                if (r < 0)
                        return r;
                fds += TDM_CONN_MAX_FDS;
                n_fds -= TDM_CONN_MAX_FDS;
        }
        return send_message(w, message, fds, n_fds);
}

struct fd_list {
        int *fds;
        unsigned n;
};

static void fd_list_deinit(struct fd_list *list)
{
        for (unsigned i = 0; i < list->n; i++)
                closep(&list->fds[i]);
        free(list->fds);
}

/* Room for n more. */
static int fd_list_grow(struct fd_list *list, unsigned n)
{
        int *fds = realloc(list->fds, (list->n + n) * sizeof(*fds));

        if (!fds)
                return -ENOMEM;
        list->fds = fds;
        return 0;
}

static int add_chunks(struct fd_list *list, const struct tdm_segment *segment, unsigned first, unsigned end)
{
        int r = fd_list_grow(list, end - first);

        if (r == 0)
                r = tdm_segment_dup_chunks(segment, first, end - first, list->fds + list->n);
        if (r == 0)
                list->n += end - first;
        return r;
}

static void describe_segment(const struct tdm_segment *segment, unsigned n_fds, Tandem__Worker__Segment *ret)
{
        tandem__worker__segment__init(ret);
        ret->size_bytes = segment->size_bytes;
        ret->chunk_bytes = segment->chunk_bytes;
        ret->n_fds = n_fds;
}

static int add_segment(struct fd_list *list, struct tdm_segment *segment, bool writable, Tandem__Worker__Segment *ret)
{
        int r = fd_list_grow(list, segment->n_chunks);

        if (r == 0)
                r = tdm_segment_dup_fds(segment, writable, list->fds + list->n);
        if (r < 0)
                return r;
        list->n += segment->n_chunks;
        describe_segment(segment, segment->n_chunks, ret);
        return 0;
}

/* Behind the segment's own fds. */
static int add_dmabuf(struct fd_list *list, const struct tdm_segment *segment, Tandem__Worker__Segment *ret)
{
        int r = fd_list_grow(list, 1), fd;

        if (r < 0)
                return r;
        fd = fcntl(segment->dmabuf_fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        list->fds[list->n++] = fd;
        ret->dmabuf = true;
        return 0;
}

int tdm_fleet_wire_init(struct tdm_fleet_worker *w)
{
        Tandem__Worker__Init body = TANDEM__WORKER__INIT__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(init, INIT, &body);
        _cleanup_(closep) int fd = -1;
        int r;

        r = tdm_segment_dup_fds(w->progress_segment, true, &fd);
        if (r < 0)
                return r;
        body.abi = TDM_WORKER_ABI;
        body.worker = w->index;
        body.requested = w->pinned && !w->is_required ? w->about.device : w->requested;
        body.n_threads = w->fleet->n_threads;
        if (w->index == TDM_WORKER_NPU) {
                body.programs = w->fleet->npu_programs ? w->fleet->npu_programs : body.programs;
                body.number_format = w->fleet->npu_format ? w->fleet->npu_format : body.number_format;
                body.memory_bytes = w->fleet->npu_memory_bytes;
        } else {
                body.device_name = w->fleet->gpu_device ? w->fleet->gpu_device : body.device_name;
                body.memory_bytes = w->fleet->gpu_memory_bytes;
        }
        return send_message(w, &message, &fd, 1);
}

int tdm_fleet_wire_load(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry, unsigned n_chunks)
{
        const struct tdm_fleet_model *m = &entry->model;
        Tandem__Worker__Load body = TANDEM__WORKER__LOAD__INIT;
        Tandem__Worker__Segment weights, steps, activations, results;
        const Tandem__Worker__ToWorker message = TO_WORKER(load, LOAD, &body);
        _cleanup_(fd_list_deinit) struct fd_list list = { 0 };
        int r;

        describe_segment(m->weights, n_chunks, &weights);
        r = add_chunks(&list, m->weights, 0, n_chunks);
        if (r == 0)
                r = add_segment(&list, m->steps, false, &steps);
        if (r == 0)
                r = add_segment(&list, m->activations, true, &activations);
        if (r == 0 && w->index == TDM_WORKER_GPU && m->activations->dmabuf_fd >= 0)
                r = add_dmabuf(&list, m->activations, &activations);
        if (r == 0)
                r = add_segment(&list, m->results, true, &results);
        if (r < 0)
                return r;
        body.model_id = m->model_id;
        body.index = entry->index;
        body.name = entry->name;
        body.precision = (uint32_t)m->precision;
        body.kv_type = m->kv_geometry.type;
        body.kv_full_pages = m->kv_geometry.n_pages[TDM_KV_FULL];
        body.kv_window_pages = m->kv_geometry.n_pages[TDM_KV_WINDOW];
        body.kv_states = m->kv_geometry.n_pages[TDM_KV_STATE];
        body.weights = &weights;
        body.steps = &steps;
        body.activations = &activations;
        body.results = &results;
        body.dmabuf_only = m->dmabuf_only;
        return send_with_fds(w, &message, list.fds, list.n);
}

int tdm_fleet_wire_weights(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry, unsigned first, unsigned end)
{
        Tandem__Worker__Weights body = TANDEM__WORKER__WEIGHTS__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(weights, WEIGHTS, &body);
        _cleanup_(fd_list_deinit) struct fd_list list = { 0 };
        int r = add_chunks(&list, entry->model.weights, first, end);

        if (r < 0)
                return r;
        body.model_id = entry->model.model_id;
        body.n_fds = list.n;
        return send_with_fds(w, &message, list.fds, list.n);
}

int tdm_fleet_wire_kv(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry)
{
        Tandem__Worker__Kv body = TANDEM__WORKER__KV__INIT;
        Tandem__Worker__Segment kv;
        const Tandem__Worker__ToWorker message = TO_WORKER(kv, KV, &body);
        _cleanup_(fd_list_deinit) struct fd_list list = { 0 };
        int r;

        r = add_segment(&list, entry->model.kv, true, &kv);
        if (r < 0)
                return r;
        body.model_id = entry->model.model_id;
        body.kv = &kv;
        return send_with_fds(w, &message, list.fds, list.n);
}

int tdm_fleet_wire_unload(struct tdm_fleet_worker *w, uint32_t model_id)
{
        Tandem__Worker__Unload body = TANDEM__WORKER__UNLOAD__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(unload, UNLOAD, &body);

        body.model_id = model_id;
        return send_message(w, &message, NULL, 0);
}

int tdm_fleet_wire_epoch(struct tdm_fleet_worker *w)
{
        const struct tdm_fleet_rings *rings = &w->fleet->rings;
        Tandem__Worker__Epoch body = TANDEM__WORKER__EPOCH__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(epoch, EPOCH, &body);
        const int fds[] = {
                rings->fds[w->index].from_daemon, rings->fds[w->index].to_daemon, rings->fds[w->index].eventfd,
                rings->fds[w->index].from_peer,   rings->fds[w->index].to_peer,
        };

        body.epoch = w->fleet->epoch;
        body.has_peer = rings->has_peer;
        return send_message(w, &message, fds, rings->has_peer ? 5 : 3);
}

int tdm_fleet_wire_ping(struct tdm_fleet_worker *w, uint64_t number)
{
        Tandem__Worker__Ping body = TANDEM__WORKER__PING__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(ping, PING, &body);

        body.number = number;
        return send_message(w, &message, NULL, 0);
}

int tdm_fleet_wire_quit(struct tdm_fleet_worker *w)
{
        Tandem__Worker__Quit body = TANDEM__WORKER__QUIT__INIT;
        const Tandem__Worker__ToWorker message = TO_WORKER(quit, QUIT, &body);

        return send_message(w, &message, NULL, 0);
}
