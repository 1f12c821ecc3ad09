/* Which plan is the cheapest for a model on two devices that differ in bits? Tried out when the model is loaded, before
 * anybody hears of it: a step of one row and a step of many under each plan, in turns, a few times each, the best time
 * counts.
 *
 * What is chosen stays: a job's bits depend on it. So it is measured once for a model and a pair of devices, and a
 * restart, of a worker or of tandemd (memory.c), or the model's coming back, finds the same answer. Devices of equal
 * bits need none of this (plan.c): there the scheduler follows the load.
 *
 * The steps are like any other, in slot 0 with ids of their own, and on the first page of the cache: nobody's yet. A
 * device that dies of them is given three chances; then the plan is split. */
#include "daemon/fleet/private.h"

#define MANY_ROWS 32u
/* What is expected of a model between two prompts; both shapes count alike then. */
#define WEIGHT_OF_ONE 32u
#define MIN_TIMES 4u
#define MAX_TIMES 64u
#define MAX_LOSSES 3u
/* For each shape: a small model is tried for so long at least, or the load of a moment would choose; a big one no
 * longer. */
#define AMPLE_NS (200 * TDM_NSEC_PER_MSEC)
#define ENOUGH_NS (4 * TDM_NSEC_PER_SEC)

static const struct {
        enum tdm_measured measured;
        const char *plan;
} choices[TDM_FLEET_CHOICES] = {
        { TDM_MEASURED_SPLIT, "split" },
        { TDM_MEASURED_NPU, "npu" },
        { TDM_MEASURED_GPU, "gpu" },
};

static void identity(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry, char *text, size_t size)
{
        snprintf(text, size, "%s %llu %u %s %s", entry->name, (unsigned long long)entry->model.weights->size_bytes,
                 (unsigned)entry->model.precision, f->workers[TDM_WORKER_NPU].numerics_id,
                 f->workers[TDM_WORKER_GPU].numerics_id);
}

static struct tdm_fleet_memory *recall(struct tdm_fleet *f, const char *text)
{
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->memory[i].identity[0] && strcmp(f->memory[i].identity, text) == 0)
                        return &f->memory[i];
        return NULL;
}

/* The oldest makes room. */
void tdm_fleet_remember(struct tdm_fleet *f, const char *text, enum tdm_measured measured)
{
        struct tdm_fleet_memory *m = &f->memory[f->n_remembered++ % TDM_FLEET_MODELS];

        snprintf(m->identity, sizeof(m->identity), "%s", text);
        m->measured = measured;
}

static uint64_t cost(const struct tdm_fleet_measuring *m, unsigned choice)
{
        return WEIGHT_OF_ONE * m->best_ns[choice][0] + m->best_ns[choice][1];
}

static void settle(struct tdm_fleet *f, struct tdm_fleet_entry *entry, bool known)
{
        struct tdm_fleet_measuring *m = &entry->measuring;
        char text[TDM_FLEET_IDENTITY];
        unsigned best = 0;

        for (unsigned i = 1; known && i < TDM_FLEET_CHOICES; i++)
                if (cost(m, i) < cost(m, best))
                        best = i;
        entry->measured = choices[best].measured;
        m->done = true;
        m->step_id = 0;
        /* Who has no attention of it does not need the cache again when it comes back. */
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                entry->on[i].wants_kv = best == 0 ? i == TDM_WORKER_NPU :
                                                    choices[best].measured ==
                                                            (i == TDM_WORKER_NPU ? TDM_MEASURED_NPU : TDM_MEASURED_GPU);
        identity(f, entry, text, sizeof(text));
        tdm_fleet_remember(f, text, entry->measured);
        if (known)
                tdm_fleet_memory_save(f);
        if (!known) {
                tdm_log_warning("model %s: a device was lost whenever plans were tried out; taking %s", entry->name,
                                tdm_measured_name(entry->measured));
                return;
        }
        tdm_log_info("model %s: %s is the cheapest plan (one row, %u rows: split %.2f, %.2f ms; npu %.2f, %.2f ms; gpu "
                     "%.2f, %.2f ms)",
                     entry->name, tdm_measured_name(entry->measured), m->n_rows, (double)m->best_ns[0][0] / 1e6,
                     (double)m->best_ns[0][1] / 1e6, (double)m->best_ns[1][0] / 1e6, (double)m->best_ns[1][1] / 1e6,
                     (double)m->best_ns[2][0] / 1e6, (double)m->best_ns[2][1] / 1e6);
}

static int write_step(struct tdm_fleet *f, struct tdm_fleet_entry *entry, const char *plan, uint32_t n_rows)
{
        const struct tdm_steps_layout *l = &entry->model.layout;
        uint8_t *base = entry->model.steps->base;
        struct tdm_step_head *head = tdm_steps_head(base, l, 0);
        struct tdm_step_row *rows = tdm_steps_rows(base, l, 0);

        memset(head, 0, sizeof(*head));
        head->step_id = TDM_FLEET_OWN_STEPS + ++f->n_own_steps;
        head->epoch = f->epoch;
        head->n_rows = n_rows;
        head->n_seqs = 1;
        head->n_logits = 1;
        for (uint32_t i = 0; i < n_rows; i++)
                rows[i] = (struct tdm_step_row){ .token = i % entry->model.hparams.n_vocab,
                                                 .position = i,
                                                 .logits = i + 1 == n_rows ? 0 : UINT32_MAX };
        tdm_steps_seqs(base, l, 0)[0] = (struct tdm_step_seq){ .n_rows = n_rows };
        tdm_steps_logits(base, l, 0)[0] = (struct tdm_step_logits){
                .row = n_rows - 1,
                .target = UINT32_MAX,
                .sampling = { .top_p = 1, .repeat_penalty = 1 },
        };
        for (unsigned g = 0; g < TDM_KV_GROUPS; g++)
                tdm_steps_table(base, l, 0, (enum tdm_kv_group)g)[0] = 0;
        return tdm_fleet_plan(f, &entry->model.hparams, plan, head->plan, NULL);
}

static void post_next(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_measuring *m = &entry->measuring;
        int r;

        m->n_rows = TDM_MIN(MANY_ROWS, entry->model.layout.limits.max_rows);
        m->posted_ns = tdm_now_ns(); /* it may be done before we get to run again */
        r = write_step(f, entry, choices[m->choice].plan, m->shape == 0 ? 1 : m->n_rows);
        if (r == 0)
                r = tdm_fleet_submit(f, entry->model.model_id, 0);
        if (r == -EAGAIN)
                return; /* on the next pump */
        if (r < 0) {
                tdm_log_warning("model %s: cannot try out its plans: %s", entry->name, strerror(-r));
                settle(f, entry, false);
                return;
        }
        m->step_id = entry->steps[0].step_id;
}

bool tdm_fleet_measure(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_measuring *m = &entry->measuring;
        char text[TDM_FLEET_IDENTITY];
        const struct tdm_fleet_memory *memory;

        if (m->done || tdm_fleet_equal_bits(f) || !tdm_fleet_usable(&f->workers[TDM_WORKER_NPU]) ||
            !tdm_fleet_usable(&f->workers[TDM_WORKER_GPU]))
                return true;
        identity(f, entry, text, sizeof(text));
        memory = recall(f, text);
        if (memory) {
                entry->measured = memory->measured;
                m->done = true;
                return true;
        }
        if (m->step_id != 0 && entry->steps[0].step_id == m->step_id)
                return false;  /* on its way */
        if (m->step_id != 0) { /* void: a worker was lost, or could not run it */
                m->step_id = 0;
                if (++m->n_losses == MAX_LOSSES)
                        settle(f, entry, false);
        }
        if (!m->done && tdm_fleet_worker_is_up(f, TDM_WORKER_NPU) && tdm_fleet_worker_is_up(f, TDM_WORKER_GPU))
                post_next(f, entry);
        return m->done;
}

/* Twice as slow with one row as the best: it cannot make up for that, for many rows never take longer than as many
 * times one. A device that is far too slow (a GPU played by the CPU) would take minutes to show it. */
static bool is_hopeless(const struct tdm_fleet_measuring *m, unsigned choice)
{
        for (unsigned i = 0; i < TDM_FLEET_CHOICES; i++)
                if (m->best_ns[choice][0] >= 2 * m->best_ns[i][0])
                        return true;
        return false;
}

static bool is_enough(const struct tdm_fleet_measuring *m)
{
        return m->n >= MAX_TIMES || (m->n >= MIN_TIMES && m->spent_ns > AMPLE_NS) ||
               (m->n > 0 && m->spent_ns > ENOUGH_NS);
}

/* The next thing to try; false: all is known. One row first; the plans in turns, so that the machine's moods hit all.
 */
static bool advance(struct tdm_fleet_measuring *m)
{
        do {
                if (++m->choice == TDM_FLEET_CHOICES) {
                        m->choice = 0;
                        m->n++;
                }
                if (m->choice == 0 && is_enough(m)) {
                        m->n = 0;
                        m->spent_ns = 0;
                        m->shape++;
                        for (unsigned i = 0; m->shape == 1 && i < TDM_FLEET_CHOICES; i++)
                                if (is_hopeless(m, i))
                                        m->best_ns[i][1] = m->n_rows * m->best_ns[i][0];
                }
        } while (m->shape == 1 && is_hopeless(m, m->choice));
        return m->shape < 2;
}

void tdm_fleet_measure_step_done(struct tdm_fleet *f, struct tdm_fleet_entry *entry)
{
        struct tdm_fleet_measuring *m = &entry->measuring;
        uint64_t *best = &m->best_ns[m->choice][m->shape], ns = tdm_now_ns() - m->posted_ns;

        m->step_id = 0;
        m->spent_ns += ns;
        if (*best == 0 || ns < *best) /* the first ones warm up, and are no better */
                *best = ns;
        tdm_fleet_pump_soon(f);
        if (!advance(m))
                settle(f, entry, true);
}
