/* A step's way through the rings.
 *
 * Rings are made for one epoch. Steps are submitted into them, and results are read from them. When anything is wrong
 * with a ring, the epoch ends (epoch.c) and everything in flight is void.
 *
 * What a worker says is checked against what was submitted. A step is done when the worker of its last block says so;
 * any other descriptor is a fault of the ring. The fleet does not read results. */
#include "daemon/fleet/private.h"

#include <fcntl.h>
#include <sys/epoll.h>

void tdm_fleet_on_epoch_ack(struct tdm_fleet_worker *w, uint32_t epoch)
{
        if (epoch <= w->link.epoch_acked || epoch > w->link.epoch_sent) {
                tdm_fleet_worker_breach(w, "it acknowledges epoch %u, which it was not told", epoch);
                return;
        }
        w->link.epoch_acked = epoch;
        tdm_fleet_pump_soon(w->fleet);
}

/* ---- results ---- */

static void step_finished(struct tdm_fleet *f, struct tdm_fleet_step *step)
{
        /* Every worker that ran a block of the step has now finished one. */
        for (uint32_t b = 0; b < step->n_blocks; b++) {
                f->workers[step->plan[b]].record.deaths = 0;
                f->workers[step->plan[b]].record.idle_deaths = 0;
                f->workers[step->plan[b]].record.ring_faults = 0;
        }
        memset(step, 0, sizeof(*step));
}

/* 0: accepted; 1: of a model that has left; -EPROTO: nonsense. */
static int handle_desc(struct tdm_fleet_worker *w, const struct tdm_desc *desc)
{
        struct tdm_fleet *f = w->fleet;
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, desc->model_id);
        struct tdm_fleet_step *step;

        if (desc->kind == TDM_DESC_STEP || desc->kind == TDM_DESC_MARK || desc->slot >= TDM_STEP_SLOTS)
                return -EPROTO;
        if (!entry || entry->leaving)
                return 1;
        step = &entry->steps[desc->slot];
        if (desc->step_id == 0 || step->step_id != desc->step_id || step->queued)
                return -EPROTO;
        if (step->plan[step->n_blocks - 1] != w->index || desc->block != step->n_blocks)
                return -EPROTO;
        tdm_fleet_trace(f, TDM_TRACE_STEP_DONE, desc->step_id, step->n_rows, desc->model_id);
        w->link.done_ns = tdm_now_ns();
        step_finished(f, step);
        if (desc->step_id >= TDM_FLEET_OWN_STEPS)
                tdm_fleet_trial_step_done(f, entry);
        else if (f->steps.done)
                f->steps.done(desc->model_id, desc->slot, desc->step_id, f->steps_userdata);
        return 0;
}

/* A step in flight that ends on this worker; 0: none. */
static uint64_t step_to_end(const struct tdm_fleet_worker *w)
{
        const struct tdm_fleet *f = w->fleet;

        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                for (unsigned s = 0; f->models[i] && s < TDM_STEP_SLOTS; s++) {
                        const struct tdm_fleet_step *step = &f->models[i]->steps[s];

                        if (step->step_id != 0 && !step->queued && step->plan[step->n_blocks - 1] == w->index)
                                return step->step_id;
                }
        return 0;
}

/* Where a draft is on one worker and its target on the other, a step of the one follows the other's at once. Waking a
 * worker that sleeps takes 20 to 300 µs, so it is done while the step before still runs. Learned from the steps that
 * were posted: such a wake-up counts for some steps. */
#define HANDS_OVER 4u
#define HANDS_OVER_NS UINT64_C(200000)

static void wake_next(struct tdm_fleet_worker *w)
{
        if (w->link.hands_over == 0 || !tdm_spin_has_cores())
                return;
        w->link.hands_over--;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (i != w->index && w->fleet->workers[i].link.ring_to)
                        tdm_ring_wake_early(w->fleet->workers[i].link.ring_to);
}

static void learn_next(struct tdm_fleet *f, unsigned to, uint64_t now_ns)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (i != to && f->workers[i].link.done_ns != 0 && now_ns - f->workers[i].link.done_ns <= HANDS_OVER_NS)
                        f->workers[i].link.hands_over = HANDS_OVER;
}

/* The worker has woken us and the ring is empty: it says that its step is nearly done (tdm_ring_wake_early()). Spins
 * for the rest of the step, because sleeping and waking again would take longer. It does so once for a step, and only
 * while it pays, so that a worker which says so without end gets none of our time. */
static void await_step(struct tdm_fleet_worker *w)
{
        uint64_t step_id = step_to_end(w), spin_ns;

        if (step_id == 0 || step_id == w->link.awaited_step)
                return;
        w->link.awaited_step = step_id;
        wake_next(w);
        spin_ns = tdm_spin_next(&w->link.await, TDM_RING_EARLY_WAKE_NS);
        if (spin_ns > 0)
                tdm_spin_learn(&w->link.await, TDM_RING_EARLY_WAKE_NS, spin_ns,
                               tdm_ring_spin(w->link.ring_from, spin_ns));
}

static int on_ring(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;
        unsigned stale = 0;

        tdm_ring_disarm(w->link.ring_from);
        if (!tdm_ring_spin(w->link.ring_from, 0))
                await_step(w);
        do {
                struct tdm_desc desc;
                int r;

                while ((r = tdm_ring_pop(w->link.ring_from, &desc)) > 0) {
                        r = handle_desc(w, &desc);
                        if (!w->link.ring_from)
                                return 0; /* it has ended the epoch, and the ring is gone */
                        if (r < 0)
                                break;
                        stale += (unsigned)r;
                        if (stale > TDM_WORKER_RING_ENTRIES) {
                                r = -EPROTO;
                                break;
                        }
                }
                if (r < 0) {
                        tdm_fleet_ring_fault(w, "impossible index, or a descriptor for no step in flight");
                        return 0;
                }
                /* A descriptor that arrived meanwhile has not written to the eventfd, so the ring is read again. */
        } while (tdm_ring_arm(w->link.ring_from));
        return 0;
}

void tdm_fleet_on_step_failed(struct tdm_fleet_worker *w, uint32_t epoch, uint32_t model_id, uint32_t slot,
                              uint64_t step_id, const struct tdm_error *err)
{
        struct tdm_fleet *f = w->fleet;
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);
        bool followed = false;

        if (epoch != f->epoch || !entry || entry->leaving || slot >= TDM_STEP_SLOTS || step_id == 0 ||
            entry->steps[slot].step_id != step_id)
                return; /* void already */
        if (!memchr(entry->steps[slot].plan, (int)w->index, entry->steps[slot].n_blocks)) {
                tdm_fleet_worker_breach(w, "it says that a step failed in which it has no block");
                return;
        }
        tdm_fleet_trace(f, TDM_TRACE_STEP_FAILED, step_id, entry->steps[slot].n_rows, model_id);
        memset(&entry->steps[slot], 0, sizeof(entry->steps[slot]));
        for (unsigned s = 0; s < TDM_STEP_SLOTS; s++)
                followed = followed || (entry->steps[s].step_id != 0 && entry->steps[s].after == step_id);
        if (step_id >= TDM_FLEET_OWN_STEPS)
                tdm_fleet_trial_step_failed(f, entry, err);
        else if (f->steps.failed)
                f->steps.failed(model_id, slot, step_id, err, f->steps_userdata);
        /* A step that follows this one would wait for ever. */
        if (followed && epoch == f->epoch)
                tdm_fleet_end_epoch(f, w->index, "a step that another one follows has failed", 0);
}

/* ---- making rings ---- */

static int attach_ends(struct tdm_fleet *f, struct tdm_fleet_worker *w, int to_worker, int from_worker, int eventfd)
{
        _cleanup_(closep) int to = fcntl(to_worker, F_DUPFD_CLOEXEC, 3), from = fcntl(from_worker, F_DUPFD_CLOEXEC, 3),
                              efd = fcntl(eventfd, F_DUPFD_CLOEXEC, 3);
        struct tdm_error err = { 0 };
        int r;

        if (to < 0 || from < 0 || efd < 0)
                return -errno;
        r = tdm_ring_attach(&w->link.ring_to, to, -1, TDM_RING_PRODUCER, f->epoch, &err);
        if (r == 0) {
                to = -1;
                r = tdm_ring_attach(&w->link.ring_from, from, efd, TDM_RING_CONSUMER, f->epoch, &err);
        }
        if (r != 0) {
                tdm_log_error("cannot map a ring: %s", err.message);
                return r < 0 ? r : -EPROTO;
        }
        from = -1;
        efd = -1;
        r = tdm_loop_add_io(f->loop, tdm_ring_eventfd(w->link.ring_from), EPOLLIN, on_ring, w, &w->link.ring_source);
        if (r < 0)
                return r;
        (void)tdm_ring_arm(w->link.ring_from); /* the worker does not have it yet: nothing can be in it */
        return 0;
}

static int make_worker_rings(struct tdm_fleet *f, struct tdm_fleet_worker *w)
{
        int none, r;

        r = tdm_ring_create(&f->rings.fds[w->index].from_daemon, &none, f->epoch, TDM_WORKER_RING_ENTRIES,
                            TDM_RING_WAKE_FUTEX);
        if (r == 0)
                r = tdm_ring_create(&f->rings.fds[w->index].to_daemon, &f->rings.fds[w->index].eventfd, f->epoch,
                                    TDM_WORKER_RING_ENTRIES, TDM_RING_WAKE_EVENTFD);
        if (r < 0)
                return r;
        return attach_ends(f, w, f->rings.fds[w->index].from_daemon, f->rings.fds[w->index].to_daemon,
                           f->rings.fds[w->index].eventfd);
}

/* One ring between the two workers: each gets an fd of its own, none stays here. */
static int make_peer_ring(struct tdm_fleet *f, enum tdm_worker_index from, enum tdm_worker_index to)
{
        int none, fd, r;

        r = tdm_ring_create(&fd, &none, f->epoch, TDM_WORKER_RING_ENTRIES, TDM_RING_WAKE_FUTEX);
        if (r < 0)
                return r;
        f->rings.fds[from].to_peer = fd;
        f->rings.fds[to].from_peer = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        return f->rings.fds[to].from_peer < 0 ? -errno : 0;
}

int tdm_fleet_make_rings(struct tdm_fleet *f)
{
        unsigned n = 0;
        int r = 0;

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                f->rings.fds[i].from_daemon = f->rings.fds[i].to_daemon = f->rings.fds[i].eventfd = -1;
                f->rings.fds[i].from_peer = f->rings.fds[i].to_peer = -1;
        }
        f->rings.made = true;
        for (unsigned i = 0; i < TDM_N_WORKERS && r == 0; i++)
                if (tdm_fleet_usable(&f->workers[i])) {
                        n++;
                        r = make_worker_rings(f, &f->workers[i]);
                }
        f->rings.has_peer = n == TDM_N_WORKERS && !tdm_fleet_link_is_cut(f);
        if (r == 0 && f->rings.has_peer)
                r = make_peer_ring(f, TDM_WORKER_NPU, TDM_WORKER_GPU);
        if (r == 0 && f->rings.has_peer)
                r = make_peer_ring(f, TDM_WORKER_GPU, TDM_WORKER_NPU);
        if (r < 0) {
                tdm_fleet_close_rings(f);
                for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                        tdm_fleet_close_ends(&f->workers[i]);
        }
        return r;
}

/* ---- submitting ---- */

static bool needs_kv(const struct tdm_fleet_entry *entry, const struct tdm_fleet_step *step, unsigned worker)
{
        for (uint32_t b = 0; b < step->n_blocks; b++)
                if (step->plan[b] == worker && tdm_block_kind(&entry->model.hparams, b) == TDM_BLOCK_ATTENTION)
                        return true;
        return false;
}

static bool kv_is_granted(const struct tdm_fleet_entry *entry, const struct tdm_fleet_step *step)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (entry->on[i].kv != TDM_FLEET_KV_GRANTED && needs_kv(entry, step, i))
                        return false;
        return true;
}

static void post(struct tdm_fleet *f, struct tdm_fleet_entry *entry, uint32_t slot)
{
        struct tdm_fleet_step *step = &entry->steps[slot];
        struct tdm_fleet_worker *w = &f->workers[step->plan[0]];
        const struct tdm_desc desc = {
                .kind = TDM_DESC_STEP,
                .epoch = f->epoch,
                .step_id = step->step_id,
                .model_id = entry->model.model_id,
                .slot = slot,
                .block = 0,
                .n_rows = step->n_rows,
                .posted_ns = tdm_now_ns(),
        };

        step->queued = false;
        learn_next(f, w->index, desc.posted_ns);
        tdm_fleet_trace(f, TDM_TRACE_STEP_POSTED, step->step_id, step->n_rows, entry->model.model_id);
        if (tdm_ring_push(w->link.ring_to, &desc) < 0) {
                /* The ring holds more than can be in flight, so a worker has tampered with it. The step is void with
                 * the epoch. */
                w->link.ring_fault = true;
                tdm_fleet_pump_soon(f);
        }
        tdm_fleet_watch_soon(f);
}

void tdm_fleet_flush_queued(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        for (unsigned s = 0; s < TDM_STEP_SLOTS; s++)
                if (entry->steps[s].step_id != 0 && entry->steps[s].queued && kv_is_granted(entry, &entry->steps[s]))
                        post(f, entry, s);
}

/* Checks what the submitter wants. It is our own process, so a mistake is a bug and not an attack. */
static int take_step(struct tdm_fleet *f, struct tdm_fleet_entry *entry, const struct tdm_step_head *head,
                     struct tdm_fleet_step *ret)
{
        memset(ret, 0, sizeof(*ret));
        ret->step_id = head->step_id;
        ret->n_rows = head->n_rows;
        ret->after = head->after_step;
        ret->after_slot = head->after_slot;
        ret->n_blocks = tdm_model_n_blocks(&entry->model.hparams);
        ret->queued = true;
        memcpy(ret->plan, head->plan, ret->n_blocks);
        if (head->step_id == 0 || head->epoch != f->epoch || head->after_slot >= TDM_STEP_SLOTS)
                return -EINVAL;
        for (uint32_t b = 0; b < ret->n_blocks; b++) {
                if (ret->plan[b] >= TDM_N_WORKERS)
                        return -EINVAL;
                if (!tdm_fleet_usable(&f->workers[ret->plan[b]]))
                        return -EHOSTDOWN;
                if (ret->plan[b] != ret->plan[0] && !f->rings.has_peer)
                        return -EAGAIN;
                if (!tdm_fleet_worker_is_up(f, (enum tdm_worker_index)ret->plan[b]) ||
                    entry->on[ret->plan[b]].load != TDM_FLEET_LOADED)
                        return -EAGAIN;
        }
        return 0;
}

void tdm_fleet_listen(struct tdm_fleet *f, const struct tdm_fleet_step_events *events, void *userdata)
{
        f->steps = events ? *events : (struct tdm_fleet_step_events){ 0 };
        f->steps_userdata = userdata;
}

int tdm_fleet_submit(struct tdm_fleet *f, uint32_t model_id, uint32_t slot, const struct tdm_step_head *head)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);
        struct tdm_fleet_step step;
        int r;

        if (!entry || entry->leaving)
                return -ENOENT;
        if (slot >= TDM_STEP_SLOTS)
                return -EINVAL;
        if (!f->ready)
                return -EAGAIN;
        if (entry->steps[slot].step_id != 0)
                return -EBUSY;
        r = take_step(f, entry, head, &step);
        if (r < 0)
                return r;

        *tdm_steps_head(entry->model.steps->base, &entry->model.layout, slot) = *head;
        entry->steps[slot] = step;
        for (uint32_t b = 0; b < step.n_blocks; b++)
                f->workers[step.plan[b]].had_step = true;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct tdm_fleet_worker *w = &f->workers[i];

                if (entry->on[i].kv != TDM_FLEET_KV_NONE || !needs_kv(entry, &step, i))
                        continue;
                entry->on[i].wants_kv = true;
                entry->on[i].kv = TDM_FLEET_KV_ASKED;
                r = tdm_fleet_wire_kv(w, entry);
                if (r < 0)
                        tdm_fleet_cannot_send(w, r); /* the step stays queued and is void with the epoch */
                tdm_fleet_watch_soon(f);
        }
        if (kv_is_granted(entry, &step))
                post(f, entry, slot);
        return 0;
}
