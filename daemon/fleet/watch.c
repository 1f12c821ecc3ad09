/* The watch: finds workers that are alive and do nothing.
 *
 * Each step in flight is at one block: the one behind the furthest block that either worker has published. The worker
 * that the plan names for this block has to move; the other one may wait. A heartbeat (a finished chunk) or a finished
 * block counts as a move. Silence is counted in ticks of our own timer, and a late tick counts as one, because a worker
 * is not silent while tandemd itself did not run. The deadline is max(hang_min, 20 × p99 of such blocks), so that a
 * slow machine's worker is not taken for a hung one. Time in which the worker had no CPU is not counted (starved.c). A
 * worker that owes nothing is pinged once a second, so that a dead worker in reserve is found before it is needed. That
 * a block is done is the word of the worker that did it. So a worker that seems to hang in a block which its peer says
 * it has handed on is pinged first (conduct.c). */
#include "daemon/fleet/private.h"

#define HANG_P99_FACTOR 20u
/* A worker reads messages between its steps. For this long in all it may be in steps that move, before its silence
 * counts: what moves is its own word. */
#define CONTROL_BUSY_NS (60 * TDM_NSEC_PER_SEC)
#define CONTROL_BYTES_PER_SEC (UINT64_C(256) << 20)
/* How much of a silence is forgiven to a worker that had no CPU: in steps, and of what an answer to a message may take.
 * To take a model is work of many seconds, where a device compiles kernels. */
#define STEP_STARVED_NS (10 * TDM_NSEC_PER_SEC)
#define CONTROL_STARVED_FACTOR 9u
#define CONN_LOST_NS (100 * TDM_NSEC_PER_MSEC)
#define QUIT_NS TDM_NSEC_PER_SEC
/* A unit that we have hung up on has this long to leave by itself. */
#define HUNG_UP_NS (50 * TDM_NSEC_PER_MSEC)
#define PING_NS TDM_NSEC_PER_SEC
#define ABANDON_NS (5 * TDM_NSEC_PER_SEC)

static uint64_t owed_bytes(const struct tdm_fleet_worker *w)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                const struct tdm_fleet_entry *entry = w->fleet->models[i];

                if (entry && !entry->leaving && entry->on[w->index].load == TDM_FLEET_LOADING)
                        bytes += entry->on[w->index].n_sent * entry->model.weights->chunk_bytes;
        }
        return bytes;
}

/* Anything but the acknowledgement of an epoch, or of weights that are not the last. */
static bool owes_answer(const struct tdm_fleet_worker *w)
{
        if (w->process.phase == TDM_FLEET_PROCESS_STARTING)
                return true;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                const struct tdm_fleet_entry *entry = w->fleet->models[i];

                if (!entry)
                        continue;
                /* Both the first answer about a model and the last one may take long, and the worker is silent
                 * meanwhile. */
                if (entry->on[w->index].load == TDM_FLEET_LOADING &&
                    (entry->on[w->index].n_taken == 0 || entry->on[w->index].n_sent == entry->n_chunks))
                        return true;
                if (entry->on[w->index].load == TDM_FLEET_UNLOADING || entry->on[w->index].kv == TDM_FLEET_KV_ASKED)
                        return true;
        }
        return false;
}

/* Between the first and the last chunk of its weights the worker runs steps of other models. */
static bool owes_weights(const struct tdm_fleet_worker *w)
{
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                const struct tdm_fleet_entry *entry = w->fleet->models[i];

                if (entry && entry->on[w->index].load == TDM_FLEET_LOADING &&
                    entry->on[w->index].n_taken < entry->on[w->index].n_sent)
                        return true;
        }
        return false;
}

static bool owes_ack(const struct tdm_fleet_worker *w)
{
        return w->process.phase == TDM_FLEET_PROCESS_UP && w->link.epoch_sent != w->link.epoch_acked;
}

static bool owes_ping(const struct tdm_fleet_worker *w)
{
        return w->process.phase == TDM_FLEET_PROCESS_UP && w->progress &&
               atomic_load_explicit(&w->progress->answered, memory_order_relaxed) != w->silence.ping_sent;
}

bool tdm_fleet_owes_control(const struct tdm_fleet_worker *w)
{
        return owes_answer(w) || owes_weights(w) || owes_ack(w);
}

/* ---- steps ---- */

static uint64_t published(const struct tdm_fleet_worker *w, const struct tdm_fleet_entry *entry, unsigned slot)
{
        /* Acquire: pairs with the releases in the worker's exec.c. */
        return w->progress ? atomic_load_explicit(&w->progress->steps[entry->index][slot], memory_order_acquire) : 0;
}

static uint32_t next_block(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry, unsigned slot)
{
        const struct tdm_fleet_step *step = &entry->steps[slot];
        uint32_t next = 0;

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                uint64_t word = published(&f->workers[i], entry, slot);

                if (tdm_progress_step(word) == step->step_id)
                        next = TDM_MAX(next, tdm_progress_block(word));
        }
        return TDM_MIN(next, step->n_blocks - 1);
}

/* The step that this one follows has not got past this block, so this one waits for it. */
static bool is_waiting(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry, unsigned slot, uint32_t block)
{
        const struct tdm_fleet_step *step = &entry->steps[slot], *before = &entry->steps[step->after_slot];

        return step->after != 0 && before->step_id == step->after &&
               tdm_block_kind(&entry->model.hparams, block) == TDM_BLOCK_ATTENTION &&
               next_block(f, entry, step->after_slot) <= block;
}

/* A step that waits for this worker; *ret_block is the block it is at, and *ret_of_peer whether its peer has the one
 * before. */
static const struct tdm_fleet_entry *owed_step(const struct tdm_fleet_worker *w, uint32_t *ret_block, bool *ret_of_peer)
{
        struct tdm_fleet *f = w->fleet;

        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                for (unsigned s = 0; f->models[i] && s < TDM_STEP_SLOTS; s++) {
                        const struct tdm_fleet_step *step = &f->models[i]->steps[s];
                        uint32_t block;

                        if (step->step_id == 0 || step->queued)
                                continue;
                        block = next_block(f, f->models[i], s);
                        if (step->plan[block] == w->index && !is_waiting(f, f->models[i], s, block)) {
                                *ret_block = block;
                                *ret_of_peer = block > 0 && step->plan[block - 1] != w->index;
                                return f->models[i];
                        }
                }
        return NULL;
}

/* Changes whenever the worker has done anything. */
static uint64_t signature(const struct tdm_fleet_worker *w)
{
        const struct tdm_progress *p = w->progress;
        uint64_t s;

        if (!p)
                return 0;
        s = atomic_load_explicit(&p->heartbeat, memory_order_relaxed);
        s = s * 31 + atomic_load_explicit(&p->handovers, memory_order_relaxed);
        s = s * 31 + atomic_load_explicit(&p->epoch, memory_order_relaxed);
        for (unsigned i = 0; i < TDM_N_BLOCK_KINDS; i++)
                s = s * 31 + atomic_load_explicit(&p->kinds[i].blocks, memory_order_relaxed);
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (w->fleet->models[i])
                        s = s * 31 + w->fleet->models[i]->on[w->index].n_taken;
        return s;
}

/* Upper edge of the bucket that holds the 99th percentile of this kind's blocks. */
static uint64_t p99_ns(const struct tdm_fleet_worker *w, enum tdm_block_kind kind)
{
        uint64_t total = 0, seen = 0;
        uint32_t bars[TDM_PROGRESS_BUCKETS];

        for (unsigned i = 0; i < TDM_PROGRESS_BUCKETS; i++) {
                bars[i] = atomic_load_explicit(&w->progress->kinds[kind].histogram[i], memory_order_relaxed);
                total += bars[i];
        }
        for (unsigned i = 0; i < TDM_PROGRESS_BUCKETS; i++) {
                seen += bars[i];
                if (total > 0 && seen * 100 >= total * 99)
                        return UINT64_C(2) << i;
        }
        return 0;
}

uint64_t tdm_fleet_hang_ns(const struct tdm_fleet_worker *w, enum tdm_block_kind kind)
{
        uint64_t ns = TDM_MIN(HANG_P99_FACTOR * p99_ns(w, kind), TDM_FLEET_HANG_MAX_NS);

        return TDM_MAX(w->fleet->hang_min_ns, ns);
}

static void send_ping(struct tdm_fleet_worker *w)
{
        int r;

        w->silence.pinged_ns = tdm_now_ns();
        w->silence.ping_sent++;
        r = tdm_fleet_wire_ping(w, w->silence.ping_sent);
        if (r < 0)
                tdm_fleet_cannot_send(w, r);
}

/* Has it been idle since its peer said that this block is its turn? It answers pings between steps only. */
static bool was_not_given(struct tdm_fleet_worker *w, bool of_peer, uint64_t deadline_ns)
{
        if (of_peer && w->silence.doubt == 0 && w->silence.step_ns > deadline_ns / 2) {
                send_ping(w);
                w->silence.doubt = w->silence.ping_sent;
        }
        return w->silence.doubt != 0 && w->silence.step_ns > deadline_ns && !owes_ping(w);
}

static void watch_steps(struct tdm_fleet_worker *w, uint64_t elapsed_ns)
{
        uint32_t block = 0;
        bool of_peer = false;
        const struct tdm_fleet_entry *entry = owed_step(w, &block, &of_peer);
        uint64_t now = signature(w), deadline_ns = w->fleet->hang_min_ns;
        enum tdm_block_kind kind = TDM_BLOCK_ATTENTION;

        /* While it maps a model it may be silent about steps; the control deadline covers that. */
        if ((!entry && !owes_ack(w) && !owes_ping(w)) || owes_answer(w) || now != w->silence.signature) {
                w->silence.signature = now;
                w->silence.step_ns = 0;
                w->silence.doubt = 0;
                w->silence.sample.n = 0;
                w->silence.sample.forgiven_ns = 0;
                return;
        }
        w->silence.step_ns +=
                elapsed_ns - tdm_fleet_starved_ns(&w->silence.sample, w->process.pid, elapsed_ns, STEP_STARVED_NS);
        if (entry) {
                kind = tdm_block_kind(&entry->model.hparams, block);
                deadline_ns = tdm_fleet_hang_ns(w, kind);
        }
        if (was_not_given(w, of_peer, deadline_ns)) {
                w->silence.step_ns = 0;
                w->silence.doubt = 0;
                tdm_fleet_on_false_claim(w);
                return;
        }
        if (w->silence.step_ns <= deadline_ns)
                return;
        if (!entry) {
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "no answer to a %s for %llu ms%s",
                                      owes_ack(w) ? "new epoch" : "ping",
                                      (unsigned long long)(w->silence.step_ns / TDM_NSEC_PER_MSEC),
                                      tdm_fleet_worker_is_stopped(w) ? " (stopped by a signal)" : "");
                return;
        }
        if (kind == TDM_BLOCK_ATTENTION || kind == TDM_BLOCK_FFN)
                tdm_fleet_worker_lost(w, tdm_fleet_worker_is_stopped(w) ? TDM_FLEET_NO_BLAME : TDM_FLEET_BLAME_STEP,
                                      "no progress for %llu ms in %s %u%s",
                                      (unsigned long long)(w->silence.step_ns / TDM_NSEC_PER_MSEC),
                                      tdm_block_kind_name(kind), tdm_block_layer(block),
                                      tdm_fleet_worker_is_stopped(w) ? " (stopped by a signal)" : "");
        else
                tdm_fleet_worker_lost(
                        w, tdm_fleet_worker_is_stopped(w) ? TDM_FLEET_NO_BLAME : TDM_FLEET_BLAME_STEP,
                        "no progress for %llu ms in %s%s", (unsigned long long)(w->silence.step_ns / TDM_NSEC_PER_MSEC),
                        tdm_block_kind_name(kind), tdm_fleet_worker_is_stopped(w) ? " (stopped by a signal)" : "");
}

/* ---- messages, and dying ---- */

/* Since the last tick. */
static bool moves_in_step(const struct tdm_fleet_worker *w)
{
        uint32_t block;
        bool of_peer;

        return owed_step(w, &block, &of_peer) && signature(w) != w->silence.signature;
}

static void watch_control(struct tdm_fleet_worker *w, uint64_t elapsed_ns)
{
        uint64_t deadline_ns;

        if (w->link.conn_lost) {
                w->silence.control_ns += elapsed_ns;
                if (w->silence.control_ns > CONN_LOST_NS)
                        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "it closed its control socket");
                return;
        }
        if (!tdm_fleet_owes_control(w)) {
                tdm_fleet_heard(w);
                return;
        }
        if (moves_in_step(w) && w->silence.control_busy_ns < CONTROL_BUSY_NS) {
                w->silence.control_busy_ns += elapsed_ns;
                return;
        }
        deadline_ns = w->fleet->control_ns + owed_bytes(w) / CONTROL_BYTES_PER_SEC * TDM_NSEC_PER_SEC;
        w->silence.control_ns += elapsed_ns - tdm_fleet_starved_ns(&w->silence.control_sample, w->process.pid,
                                                                   elapsed_ns, CONTROL_STARVED_FACTOR * deadline_ns);
        if (w->silence.control_ns > w->fleet->hang_min_ns && tdm_fleet_worker_is_stopped(w)) {
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "no answer for %llu ms (stopped by a signal)",
                                      (unsigned long long)(w->silence.control_ns / TDM_NSEC_PER_MSEC));
                return;
        }
        if (w->silence.control_ns > deadline_ns)
                tdm_fleet_worker_lost(w, TDM_FLEET_BLAME_MODEL, "no answer for %llu s while %s",
                                      (unsigned long long)(w->silence.control_ns / TDM_NSEC_PER_SEC),
                                      w->process.phase == TDM_FLEET_PROCESS_STARTING ? "starting" : "taking a model");
}

static void watch_dying(struct tdm_fleet_worker *w, uint64_t elapsed_ns)
{
        if (w->process.abandoned)
                return;
        w->process.dying_ns += elapsed_ns;
        if (w->process.asked_to_leave && !w->process.quit_killed && w->process.dying_ns > QUIT_NS)
                tdm_fleet_worker_kill(w);
        if (w->process.not_ours && w->process.dying_ns > HUNG_UP_NS + (w->process.asked_to_leave ? QUIT_NS : 0))
                tdm_fleet_unit_kill(w);
        if (w->process.dying_ns > ABANDON_NS + (w->process.asked_to_leave ? QUIT_NS : 0))
                tdm_fleet_worker_abandon(w);
}

/* A worker with steps is watched by them and needs no ping. */
static void ping(struct tdm_fleet_worker *w)
{
        uint32_t block;
        bool of_peer;

        if (w->process.phase != TDM_FLEET_PROCESS_UP || owes_ping(w) || tdm_now_ns() - w->silence.pinged_ns < PING_NS ||
            owed_step(w, &block, &of_peer))
                return;
        send_ping(w);
}

static bool worth_watching(const struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                const struct tdm_fleet_worker *w = &f->workers[i];

                if (w->link.conn_lost || (w->process.phase == TDM_FLEET_PROCESS_DYING && !w->process.abandoned))
                        return true;
                if (owes_ping(w) && tdm_now_ns() - w->silence.pinged_ns >= PING_NS)
                        return true;
                if ((w->process.phase == TDM_FLEET_PROCESS_STARTING || w->process.phase == TDM_FLEET_PROCESS_UP) &&
                    tdm_fleet_owes_control(w))
                        return true;
        }
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                for (unsigned s = 0; f->models[i] && s < TDM_STEP_SLOTS; s++)
                        if (f->models[i]->steps[s].step_id != 0)
                                return true;
        return false;
}

static int on_watch(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_fleet *f = userdata;
        const uint64_t elapsed_ns = tdm_fleet_tick_ns(f);
        bool up = false;

        f->watch_due_ns = 0;
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct tdm_fleet_worker *w = &f->workers[i];

                if (w->process.phase == TDM_FLEET_PROCESS_STARTING || w->process.phase == TDM_FLEET_PROCESS_UP)
                        watch_control(w, elapsed_ns);
                if (w->process.phase == TDM_FLEET_PROCESS_UP)
                        watch_steps(w, elapsed_ns);
                else if (w->process.phase == TDM_FLEET_PROCESS_DYING)
                        watch_dying(w, elapsed_ns);
                ping(w);
                up = up || w->process.phase == TDM_FLEET_PROCESS_UP;
        }
        if (worth_watching(f))
                tdm_fleet_watch_soon(f);
        else if (up)
                tdm_fleet_watch_at(f, tdm_now_ns() + PING_NS);
        return 0;
}

int tdm_fleet_watch_init(struct tdm_fleet *f)
{
        return tdm_loop_add_timer(f->loop, on_watch, f, &f->watch);
}
