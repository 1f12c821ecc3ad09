/* The executor: waits for descriptors from tandemd and from the peer, runs the blocks that the step's plan gives to
 * this worker, hands the step on.
 *
 * A step is copied out of shared memory once, and the copy is checked and used. Hidden rows are worked on where they
 * lie. A worker publishes its progress after it has handed a step on. So the watch always finds a step with a worker
 * that has it, and never with one that does not have it yet.
 *
 * What happens after a fault depends on where it came from. A bad descriptor of the peer, or an impossible index, ends
 * the epoch for both workers. A bad step of tandemd, or a step that the device cannot run, ends that step alone.
 * Nothing is allocated here while steps run. */
#include "engine/worker/private.h"

#include <inttypes.h>
#include <malloc.h>
#include "common/log.h"

/* A full ring gives no notice when it has room again, so it is tried this often. */
#define UNSENT_NS TDM_NSEC_PER_MSEC

/* Blocks of one step that this worker runs one after the other. */
struct execution {
        struct tdm_worker *worker;
        struct tdm_worker_model *model;
        uint32_t slot;
        const struct tdm_step *step;
        const struct tdm_hparams *hp;
        _Atomic uint64_t *published; /* the step's word in the progress table */
        uint32_t end;                /* first block that is not ours any more */
        uint64_t last_ns;
};

static const char *const ring_names[TDM_WORKER_N_RINGS] = {
        [TDM_WORKER_RING_FROM_DAEMON] = "from tandemd",
        [TDM_WORKER_RING_TO_DAEMON] = "to tandemd",
        [TDM_WORKER_RING_FROM_PEER] = "from the peer",
        [TDM_WORKER_RING_TO_PEER] = "to the peer",
};

/* The only writer of a word: load and store need not be one operation. */
static void count_up(_Atomic uint64_t *word, uint64_t n)
{
        atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + n, memory_order_relaxed);
}

static void set_state(struct tdm_worker *w, enum tdm_progress_state state)
{
        atomic_store_explicit(&w->progress->state, state, memory_order_relaxed);
}

static void drop_rings(struct tdm_worker *w)
{
        for (unsigned i = 0; i < TDM_WORKER_N_RINGS; i++)
                tdm_ring_destroyp(&w->rings[i]);
        for (unsigned i = 0; i < TDM_PROGRESS_MODELS; i++)
                memset(w->models[i].step_ids, 0, sizeof(w->models[i].step_ids));
        tdm_worker_relay_reset(w);
}

/* The process at the other end of a ring (tandemd or the peer, which is the other worker) broke the rules: this epoch
 * is over, tandemd will open another. */
static void ring_fault(struct tdm_worker *w, unsigned ring, const char *reason)
{
        tdm_log_warning("ring %s: %s", ring_names[ring], reason);
        drop_rings(w);
        tdm_worker_send_ring_fault(w, w->epoch, ring, reason);
}

static bool epoch_is_over(const struct tdm_worker *w)
{
        /* Acquire: pairs with the release in post_command(). */
        return atomic_load_explicit(&w->announced, memory_order_acquire) != w->epoch;
}

static void trace(struct tdm_worker *w, const struct tdm_trace_event *event)
{
        tdm_trace_add(tdm_progress_trace(w->progress), event);
}

static void trace_block(struct tdm_worker *w, uint64_t now, enum tdm_trace_kind kind, const struct tdm_hparams *hp,
                        uint64_t step_id, uint32_t block, uint32_t n_rows)
{
        const struct tdm_trace_event event = {
                .time_ns = now,
                .kind = kind,
                .step = step_id,
                .block = tdm_block_kind(hp, block),
                .layer = block > 0 ? tdm_block_layer(block) : 0,
                .rows = n_rows,
        };

        trace(w, &event);
}

/* A draft's steps and those of its target take turns, and the number of guesses varies: each has what was learned of
 * its like. */
static struct tdm_early_wake *early_wake_of(struct tdm_worker *w, const struct tdm_worker_model *m, uint32_t n_rows)
{
        return &w->early_wakes[((uint32_t)(m - w->models) * (TDM_WORKER_EARLY_WAKES / 2) + n_rows) %
                               TDM_WORKER_EARLY_WAKES];
}

static void wake_early(struct execution *run, uint32_t block, uint64_t now)
{
        uint32_t n_rows = run->step->head.n_rows;
        struct tdm_worker *w = run->worker;
        struct tdm_early_wake *learned = early_wake_of(w, run->model, n_rows);

        if (tdm_block_kind(run->hp, block) == TDM_BLOCK_SAMPLE)
                tdm_early_wake_end(learned, n_rows, now);
        else if (tdm_early_wake_block(learned, n_rows, block, now))
                tdm_ring_wake_early(w->rings[TDM_WORKER_RING_TO_DAEMON]);
}

static void on_block(uint32_t block, void *userdata)
{
        struct execution *run = userdata;
        struct tdm_progress *p = run->worker->progress;
        struct tdm_progress_kind *kind = &p->kinds[tdm_block_kind(run->hp, block)];
        uint64_t now = tdm_now_ns(), ns = now - run->last_ns;
        unsigned bucket = TDM_MIN(63u - (unsigned)__builtin_clzll(ns | 1), TDM_PROGRESS_BUCKETS - 1);
        _Atomic uint32_t *bar = &kind->histogram[bucket];

        run->last_ns = now;
        if (run->step->head.marks && tdm_block_kind(run->hp, block) == TDM_BLOCK_ATTENTION)
                tdm_worker_relay_mark(run->worker, run->model, run->slot, block + 1);
        trace_block(run->worker, now, TDM_TRACE_BLOCK_END, run->hp, run->step->head.step_id, block,
                    run->step->head.n_rows);
        if (block + 1 < run->end)
                trace_block(run->worker, now, TDM_TRACE_BLOCK_BEGIN, run->hp, run->step->head.step_id, block + 1,
                            run->step->head.n_rows);
        count_up(&kind->blocks, 1);
        count_up(&kind->rows, run->step->head.n_rows);
        count_up(&kind->ns, ns);
        count_up(&p->busy_ns, ns);
        atomic_store_explicit(bar, atomic_load_explicit(bar, memory_order_relaxed) + 1, memory_order_relaxed);
        if (run->worker->wakes_early && run->step->n_burst == 0 && run->step->n_passes == 0)
                wake_early(run, block, now);
        if (block + 1 >= run->end)
                return; /* published when the step has been handed on */
        atomic_store_explicit(&p->running, tdm_progress_pack(run->step->head.step_id, block + 1), memory_order_relaxed);
        /* Release: pairs with the watch's acquire. */
        atomic_store_explicit(run->published, tdm_progress_pack(run->step->head.step_id, block + 1),
                              memory_order_release);
}

/* A bad descriptor or step. From the peer it is a fault of the ring (-EPROTO), from tandemd a failed step (err set). */
static int _printf_(5, 6) refuse(struct tdm_worker *w, unsigned ring, const struct tdm_desc *desc,
                                 struct tdm_error *err, const char *fmt, ...)
{
        char text[TDM_ERROR_MESSAGE_MAX];
        va_list args;

        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        if (ring == TDM_WORKER_RING_FROM_PEER) {
                ring_fault(w, ring, text);
                return -EPROTO;
        }
        return tdm_error_set(err, TDM_E_PROTOCOL, "step %llu: %s", (unsigned long long)desc->step_id, text);
}

/* Copies the descriptor's step from shared memory, unless the copy in m->steps is of this step already, and checks that
 * the descriptor fits it. 0; -EPROTO after a fault of the ring; TDM_E_PROTOCOL. */
static int find_step(struct tdm_worker *w, unsigned ring, const struct tdm_desc *desc, struct tdm_worker_model *m,
                     struct tdm_error *err)
{
        struct tdm_step *step = m->steps[desc->slot];
        struct tdm_error why = { 0 };
        uint32_t n_blocks = tdm_model_n_blocks(&m->hparams);
        const uint8_t *plan = step->head.plan;
        int r;

        if (m->step_ids[desc->slot] != desc->step_id) {
                m->step_ids[desc->slot] = 0;
                m->relay[desc->slot].parked.kind = TDM_DESC_NONE;
                r = tdm_step_read(step, m->segments[TDM_WORKER_SEG_STEPS]->base, &m->layout, desc->slot, desc->step_id,
                                  w->epoch, &m->hparams, &m->geometry, &why);
                if (r != 0)
                        return refuse(w, ring, desc, err, "%s", why.message);
                m->step_ids[desc->slot] = desc->step_id;
        }
        if (desc->block >= n_blocks || plan[desc->block] != w->program->index)
                return refuse(w, ring, desc, err, "block %u is not this worker's", desc->block);
        if (desc->n_rows != step->head.n_rows)
                return refuse(w, ring, desc, err, "descriptor says %u rows, step %u", desc->n_rows, step->head.n_rows);
        if (ring == TDM_WORKER_RING_FROM_PEER && (desc->block == 0 || plan[desc->block - 1] == w->program->index))
                return refuse(w, ring, desc, err, "block %u does not come from the peer", desc->block);
        /* From here on a fault is one of the plan. tandemd wrote the plan, so the peer is not accused. */
        if (plan[n_blocks - 1] != plan[n_blocks - 2])
                return tdm_error_set(err, TDM_E_PROTOCOL, "step %llu: head and sample are on different workers",
                                     (unsigned long long)desc->step_id);
        return 0;
}

/* The number of blocks that one run() of this many rows gets. run_blocks() adapts it (run-length.h). */
static uint32_t *blocks_at_once(struct tdm_worker_model *m, uint32_t n_rows)
{
        unsigned size = tdm_run_size_of(n_rows);

        if (m->blocks_at_once[size] == 0)
                m->blocks_at_once[size] = tdm_run_first_guess(size);
        return &m->blocks_at_once[size];
}

static struct tdm_result *results_of(const struct tdm_worker_model *m, uint32_t slot)
{
        return (struct tdm_result *)(m->segments[TDM_WORKER_SEG_RESULTS]->base +
                                     (uint64_t)slot * m->layout.results_slot_bytes);
}

/* Counts numbers that were cut to the largest one that the cache can hold. Answers then differ from the model's, so
 * this is said once, as soon as it happens. */
static void count_saturated(struct tdm_worker *w, struct tdm_worker_model *m)
{
        uint64_t n = m->device->ops->n_saturated(m->device_model);

        if (n == m->n_saturated)
                return;
        if (m->n_saturated == 0)
                tdm_log_warning("model %s: of its keys and values %" PRIu64
                                " are beyond what a KV cache of %s holds, and "
                                "were cut: its answers are wrong; kv-type = f32 in tandem.conf holds them",
                                m->name, n, tdm_kv_type_name((enum tdm_kv_type)m->geometry.type));
        count_up(&w->progress->saturated, n - m->n_saturated);
        m->n_saturated = n;
}

static int run_blocks(struct tdm_worker *w, struct tdm_worker_model *m, const struct tdm_desc *desc, uint32_t end,
                      struct tdm_result *results, struct tdm_error *err)
{
        const struct tdm_step *step = m->steps[desc->slot];
        const uint32_t n_blocks = tdm_model_n_blocks(&m->hparams), n_rows = step->head.n_rows;
        uint32_t *limit = blocks_at_once(m, n_rows);
        float *hidden = (float *)m->segments[TDM_WORKER_SEG_ACTIVATIONS]->base +
                        (uint64_t)desc->slot * m->layout.limits.max_rows * m->hparams.residual_width;
        struct execution run = {
                .worker = w,
                .model = m,
                .slot = desc->slot,
                .step = step,
                .hp = &m->hparams,
                .published = &w->progress->steps[m - w->models][desc->slot],
                .end = end,
                .last_ns = tdm_now_ns(),
        };

        trace_block(w, run.last_ns, TDM_TRACE_BLOCK_BEGIN, run.hp, desc->step_id, desc->block, n_rows);
        tdm_early_wake_begin(early_wake_of(w, m, n_rows));
        for (uint32_t first = desc->block; first < end;) {
                uint32_t n = TDM_MIN(*limit, end - first);
                bool full = n == *limit;
                uint64_t begin_ns = tdm_now_ns();
                int r;

                if (first + n == n_blocks - 1)
                        n++; /* head and sample are one run: logits never leave it */
                if (epoch_is_over(w))
                        return -ECANCELED;
                r = m->device->ops->run(m->device_model, step, first, n, hidden, results, on_block, &run, err);
                if (r != 0)
                        return r;
                first += n;
                if (full)
                        tdm_run_learn(limit, tdm_now_ns() - begin_ns, n_blocks);
        }
        count_saturated(w, m);
        return 0;
}

static void hand_on(struct tdm_worker *w, struct tdm_worker_model *m, const struct tdm_desc *desc, uint32_t end)
{
        bool done = end == tdm_model_n_blocks(&m->hparams);
        unsigned ring = done ? TDM_WORKER_RING_TO_DAEMON : TDM_WORKER_RING_TO_PEER;
        struct tdm_desc next = {
                .kind = done ? TDM_DESC_DONE : TDM_DESC_STEP,
                .epoch = w->epoch,
                .step_id = desc->step_id,
                .model_id = desc->model_id,
                .slot = desc->slot,
                .block = end,
                .n_rows = desc->n_rows,
                .posted_ns = tdm_now_ns(),
        };
        int r = tdm_ring_push(w->rings[ring], &next);

        if (r < 0) {
                ring_fault(w, ring, r == -EAGAIN ? "full, which cannot be" : "impossible consumer index");
                return;
        }
        if (!done)
                trace_block(w, next.posted_ns, TDM_TRACE_HANDED_ON, &m->hparams, desc->step_id, end, desc->n_rows);
        /* Release: pairs with the watch's acquire. */
        atomic_store_explicit(&w->progress->steps[m - w->models][desc->slot], tdm_progress_pack(desc->step_id, end),
                              memory_order_release);
}

/* A step with bursts, which is all this worker's: one pass after the other. */
static int run_passes(struct tdm_worker *w, struct tdm_worker_model *m, const struct tdm_desc *desc, uint32_t n_blocks,
                      struct tdm_error *err)
{
        struct tdm_step *step = m->steps[desc->slot];
        struct tdm_desc pass = *desc;
        uint64_t begin_ns;
        int r;

        m->step_ids[desc->slot] = 0; /* the copy changes, so it cannot be run again */
        for (;;) {
                begin_ns = tdm_now_ns();
                r = run_blocks(w, m, &pass, n_blocks, m->drawn, err);
                if (r != 0)
                        return r;
                tdm_step_take(step, m->drawn, results_of(m, desc->slot));
                r = tdm_step_next_pass(step, m->drawn, &m->hparams);
                if (r < 0)
                        return tdm_error_set(err, TDM_E_DEVICE_FAULT, "%s has drawn a token that there is not",
                                             w->program->name);
                if (r == 0)
                        return 0;
                /* A pass takes as long as the one before: this is the last one. */
                if (step->n_burst == 0 && w->wakes_bursts && tdm_now_ns() - begin_ns <= TDM_RING_EARLY_WAKE_NS)
                        tdm_ring_wake_early(w->rings[TDM_WORKER_RING_TO_DAEMON]);
                pass.block = 0;
                /* Release: pairs with the watch's acquire. */
                atomic_store_explicit(&w->progress->steps[m - w->models][desc->slot],
                                      tdm_progress_pack(desc->step_id, 0), memory_order_release);
        }
}

/* Blocks up to `end`, or up to where it has to wait for the step before it. */
static int run_until(struct tdm_worker *w, struct tdm_worker_model *m, const struct tdm_desc *desc, uint32_t end,
                     struct tdm_error *err)
{
        uint32_t stop = tdm_worker_relay_stop(m, m->steps[desc->slot], desc->block, end);
        struct tdm_desc rest = *desc;
        int r;

        if (stop > desc->block) {
                r = m->steps[desc->slot]->n_burst > 0 ? run_passes(w, m, desc, end, err) :
                                                        run_blocks(w, m, desc, stop, results_of(m, desc->slot), err);
                if (r == 0 && stop == end)
                        hand_on(w, m, desc, end);
                if (r != 0 || stop == end)
                        return r;
        }
        rest.block = stop;
        tdm_worker_relay_park(w, m, &rest);
        /* Release: pairs with the watch's acquire. */
        atomic_store_explicit(&w->progress->steps[m - w->models][desc->slot], tdm_progress_pack(desc->step_id, stop),
                              memory_order_release);
        return 0;
}

static int run_step(struct tdm_worker *w, unsigned ring, const struct tdm_desc *desc, struct tdm_worker_model *m,
                    struct tdm_error *err)
{
        const uint8_t *plan = m->steps[desc->slot]->head.plan;
        uint32_t n_blocks = tdm_model_n_blocks(&m->hparams), end;
        int r = find_step(w, ring, desc, m, err);

        if (r != 0)
                return r;
        for (end = desc->block; end < n_blocks && plan[end] == w->program->index; end++)
                if (tdm_block_kind(&m->hparams, end) == TDM_BLOCK_ATTENTION && !m->kv)
                        return tdm_error_set(err, TDM_E_PROTOCOL, "step %llu: attention without a KV cache",
                                             (unsigned long long)desc->step_id);
        if (end < n_blocks && !w->rings[TDM_WORKER_RING_TO_PEER])
                return tdm_error_set(err, TDM_E_PROTOCOL, "step %llu: block %u is for a worker that is not there",
                                     (unsigned long long)desc->step_id, end);

        return run_until(w, m, desc, end, err);
}

/* Runs the step, and tells tandemd when it cannot be run. */
static void run_or_tell(struct tdm_worker *w, unsigned ring, const struct tdm_desc *desc, struct tdm_worker_model *m)
{
        struct tdm_error err = { 0 };
        int r;

        /* Before anything of the step is looked at: whatever ends this process from here on is that step's doing. */
        atomic_store_explicit(&w->progress->running, tdm_progress_pack(desc->step_id, desc->block),
                              memory_order_relaxed);
        r = run_step(w, ring, desc, m, &err);
        atomic_store_explicit(&w->progress->running, 0, memory_order_relaxed);
        if (r == 0 || r == -EPROTO || r == -ECANCELED)
                return; /* -EPROTO: told already */
        m->step_ids[desc->slot] = 0;
        if (err.code == 0)
                tdm_error_set(&err, r > 0 ? r : TDM_E_DEVICE_FAULT, "%s could not run step %llu: %s", w->program->name,
                              (unsigned long long)desc->step_id, r < 0 ? strerror(-r) : tdm_error_name(r));
        tdm_worker_send_step_failed(w, desc, &err);
}

static bool names_step(const struct tdm_desc *desc, const struct tdm_worker_model *m)
{
        return m && desc->slot < TDM_STEP_SLOTS && desc->step_id != 0;
}

static void handle_desc(struct tdm_worker *w, unsigned ring, const struct tdm_desc *desc)
{
        struct tdm_worker_model *m = tdm_worker_model_find(w, desc->model_id);
        uint64_t now = tdm_now_ns(), waited_ns = now - desc->posted_ns;
        struct tdm_trace_event taken = {
                .time_ns = now,
                .kind = TDM_TRACE_TAKEN,
                .step = desc->step_id,
                .from_peer = ring == TDM_WORKER_RING_FROM_PEER,
                .rows = desc->n_rows,
                .arg = waited_ns,
        };

        if (!m && desc->model_id != 0 && desc->model_id <= w->newest_model_id)
                return; /* unloaded while the step was on its way */
        if (desc->kind == TDM_DESC_MARK && ring == TDM_WORKER_RING_FROM_PEER && names_step(desc, m)) {
                const char *wrong = tdm_worker_relay_hear(m, desc);

                if (wrong)
                        ring_fault(w, ring, wrong);
                return;
        }
        if (desc->kind != TDM_DESC_STEP || !names_step(desc, m)) {
                ring_fault(w, ring, "descriptor names no step");
                return;
        }
        if (waited_ns < 10 * TDM_NSEC_PER_SEC) { /* else posted_ns is not a time that the peer read from the clock */
                count_up(&w->progress->handovers, 1);
                count_up(&w->progress->handover_ns, waited_ns);
        }
        taken.block = tdm_block_kind(&m->hparams, desc->block);
        taken.layer = desc->block > 0 ? tdm_block_layer(desc->block) : 0;
        trace(w, &taken);
        run_or_tell(w, ring, desc, m);
}

/* The peer's steps first: they are further on. */
static bool take_desc(struct tdm_worker *w)
{
        static const unsigned order[] = { TDM_WORKER_RING_FROM_PEER, TDM_WORKER_RING_FROM_DAEMON };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(order); i++) {
                struct tdm_desc desc;
                int r = w->rings[order[i]] ? tdm_ring_pop(w->rings[order[i]], &desc) : 0;

                if (r < 0) {
                        ring_fault(w, order[i], "impossible index, epoch or kind");
                        return true;
                }
                if (r > 0) {
                        set_state(w, TDM_PROGRESS_BUSY);
                        handle_desc(w, order[i], &desc);
                        return true;
                }
        }
        return false;
}

/* A step that had to wait for the peer's and need not any more. */
static bool resume(struct tdm_worker *w)
{
        struct tdm_desc desc;
        struct tdm_worker_model *m = w->n_parked > 0 ? tdm_worker_relay_next(w, &desc) : NULL;

        if (!m)
                return false;
        set_state(w, TDM_PROGRESS_BUSY);
        run_or_tell(w, TDM_WORKER_RING_FROM_DAEMON, &desc, m);
        return true;
}

/* ---- commands ---- */

static int open_epoch(struct tdm_worker *w, struct tdm_worker_command *command, struct tdm_error *err)
{
        static const enum tdm_ring_end ends[TDM_WORKER_N_RINGS] = {
                [TDM_WORKER_RING_FROM_DAEMON] = TDM_RING_CONSUMER,
                [TDM_WORKER_RING_TO_DAEMON] = TDM_RING_PRODUCER,
                [TDM_WORKER_RING_FROM_PEER] = TDM_RING_CONSUMER,
                [TDM_WORKER_RING_TO_PEER] = TDM_RING_PRODUCER,
        };

        drop_rings(w);
        for (unsigned i = 0; i < TDM_WORKER_N_RINGS; i++) {
                int eventfd = i == TDM_WORKER_RING_TO_DAEMON ? command->eventfd : -1, r;

                if (command->ring_fds[i] < 0)
                        continue;
                r = tdm_ring_attach(&w->rings[i], command->ring_fds[i], eventfd, ends[i], command->epoch, err);
                if (r != 0)
                        return r;
                command->ring_fds[i] = -1;
                if (i == TDM_WORKER_RING_TO_DAEMON)
                        command->eventfd = -1;
        }
        w->epoch = command->epoch;
        atomic_store_explicit(&w->progress->epoch, w->epoch, memory_order_relaxed);
        return 0;
}

static int run_command(struct tdm_worker *w, struct tdm_worker_command *command)
{
        struct tdm_error err = { 0 };
        struct tdm_worker_model *m = NULL;
        int r;

        set_state(w, TDM_PROGRESS_CONTROL);
        switch (command->kind) {
        case TDM_WORKER_LOAD:
        case TDM_WORKER_WEIGHTS:
                r = command->kind == TDM_WORKER_LOAD ? tdm_worker_model_load(w, command, &m, &err) :
                                                       tdm_worker_model_weights(w, command, &m, &err);
                if (r != 0)
                        tdm_worker_send_load_failed(w, command->model_id, &err);
                else if (m && m->loading)
                        tdm_worker_send_weights_taken(w, m);
                else if (m)
                        tdm_worker_send_loaded(w, m);
                break;
        case TDM_WORKER_KV:
                if (tdm_worker_model_kv(w, command, &err) != 0)
                        tdm_worker_send_load_failed(w, command->model_id, &err);
                else
                        tdm_worker_send_kv_ready(w, command->model_id);
                break;
        case TDM_WORKER_UNLOAD:
                tdm_worker_model_unload(w, command->model_id);
                malloc_trim(0); /* its work buffers lie in the heap */
                tdm_worker_send_unloaded(w, command->model_id);
                break;
        case TDM_WORKER_EPOCH:
                r = open_epoch(w, command, &err);
                if (r != 0) {
                        tdm_log_error("cannot open epoch %u: %s", command->epoch, err.message);
                        return r < 0 ? r : -EPROTO;
                }
                tdm_worker_send_epoch_ack(w, w->epoch);
                break;
        case TDM_WORKER_QUIT:
                w->quit = true;
                break;
        case TDM_WORKER_PING:
                atomic_store_explicit(&w->progress->answered, command->ping, memory_order_relaxed);
                break;
        }
        return 0;
}

static int wait_for_news(struct tdm_worker *w, uint32_t seen)
{
        struct tdm_ring *const rings[] = { w->rings[TDM_WORKER_RING_FROM_PEER], w->rings[TDM_WORKER_RING_FROM_DAEMON] };
        uint64_t spin_ns = tdm_spin_next(&w->spin, w->spin_max_ns), t0 = tdm_now_ns(), t1;
        struct tdm_trace_event event = { .time_ns = t0, .kind = TDM_TRACE_WAIT_BEGIN };
        int r;

        atomic_store_explicit(&w->progress->waiting_since_ns, t0, memory_order_relaxed);
        trace(w, &event);
        r = tdm_ring_wait_any(rings, TDM_ARRAY_SIZE(rings), &w->kick, seen, spin_ns,
                              w->n_unsent > 0 ? UNSENT_NS : UINT64_MAX);
        t1 = tdm_now_ns();
        event.time_ns = t1;
        event.kind = TDM_TRACE_WAIT_END;
        trace(w, &event);
        atomic_store_explicit(&w->progress->waiting_since_ns, 0, memory_order_relaxed);
        count_up(&w->progress->waiting_ns, t1 - t0);
        tdm_spin_learn(&w->spin, w->spin_max_ns, spin_ns, t1 - t0 <= spin_ns);
        return r == -ETIMEDOUT ? 0 : r;
}

int tdm_worker_run(struct tdm_worker *w)
{
        while (!w->quit) {
                struct tdm_worker_command *command;
                bool weights = false;
                /* Acquire: pairs with the release in tdm_ring_kick(). Read before the mailbox is looked at, so that
                 * what comes afterwards ends the wait. */
                uint32_t seen = atomic_load_explicit(&w->kick, memory_order_acquire);
                int r;

                command = tdm_worker_take_command(w);
                if (command) {
                        weights = command->kind == TDM_WORKER_WEIGHTS;
                        r = run_command(w, command);
                        tdm_worker_command_free(command);
                        if (r < 0)
                                return r;
                        /* Weights come in hundreds of messages: between two of them others' steps have their turn. */
                        if (!weights)
                                continue;
                }
                if (w->n_unsent > 0 && tdm_worker_relay_flush(w) < 0) {
                        ring_fault(w, TDM_WORKER_RING_TO_PEER, "impossible consumer index");
                        continue;
                }
                if (resume(w) || take_desc(w) || weights)
                        continue;
                set_state(w, TDM_PROGRESS_IDLE);
                r = wait_for_news(w, seen);
                if (r < 0) {
                        tdm_log_error("cannot wait for the rings: %s", strerror(-r));
                        return r;
                }
        }
        return 0;
}
