/* A relay: two pieces of one prompt run at the same time, as two steps on two workers. The later piece follows the
 * earlier one a layer behind, because its attention reads the keys that the earlier one writes.
 *
 * The worker of the earlier piece sends a MARK to its peer after each attention block, through the ring between them.
 * The ring's release and acquire make the keys visible that were written before. The other worker parks its step at the
 * first attention block whose mark it has not heard, and goes on when it has; meanwhile it may run other steps. Marks
 * of one slot replace each other: one that finds the ring full is kept and sent later, or the next one replaces it.
 *
 * A peer that lies about a mark makes this worker read keys that are not there yet: wrong numbers, which it could write
 * itself. A mark never moves an access. */
#include "engine/worker/private.h"

void tdm_worker_relay_reset(struct tdm_worker *w)
{
        for (unsigned i = 0; i < TDM_PROGRESS_MODELS; i++)
                memset(w->models[i].relay, 0, sizeof(w->models[i].relay));
        w->n_parked = 0;
        w->n_unsent = 0;
}

/* ---- telling ---- */

static void send(struct tdm_worker *w, struct tdm_worker_relay *relay)
{
        /* Any failure keeps it: what it means is found out in flush(), which may drop the rings. */
        if (tdm_ring_push(w->rings[TDM_WORKER_RING_TO_PEER], &relay->unsent) == 0)
                relay->unsent.kind = TDM_DESC_NONE;
        else
                w->n_unsent++;
}

void tdm_worker_relay_mark(struct tdm_worker *w, struct tdm_worker_model *m, uint32_t slot, uint32_t next_block)
{
        struct tdm_worker_relay *relay = &m->relay[slot];
        const struct tdm_step *step = m->steps[slot];

        if (!step->head.marks || !w->rings[TDM_WORKER_RING_TO_PEER])
                return;
        relay->unsent = (struct tdm_desc){
                .kind = TDM_DESC_MARK,
                .epoch = w->epoch,
                .step_id = step->head.step_id,
                .model_id = m->model_id,
                .slot = slot,
                .block = next_block,
                .n_rows = step->head.n_rows,
                .posted_ns = tdm_now_ns(),
        };
        send(w, relay);
}

int tdm_worker_relay_flush(struct tdm_worker *w)
{
        uint32_t before = w->n_unsent;

        w->n_unsent = 0;
        for (unsigned i = 0; before > 0 && i < TDM_PROGRESS_MODELS; i++)
                for (unsigned s = 0; s < TDM_STEP_SLOTS; s++) {
                        struct tdm_worker_relay *relay = &w->models[i].relay[s];
                        int r;

                        if (relay->unsent.kind == TDM_DESC_NONE)
                                continue;
                        r = tdm_ring_push(w->rings[TDM_WORKER_RING_TO_PEER], &relay->unsent);
                        if (r < 0 && r != -EAGAIN)
                                return r;
                        if (r < 0)
                                w->n_unsent++;
                        else
                                relay->unsent.kind = TDM_DESC_NONE;
                }
        return 0;
}

/* ---- hearing ---- */

const char *tdm_worker_relay_hear(struct tdm_worker_model *m, const struct tdm_desc *desc)
{
        struct tdm_worker_relay *relay = &m->relay[desc->slot];

        if (desc->block > tdm_model_n_blocks(&m->hparams))
                return "a mark of a block that there is not";
        if (desc->step_id < relay->heard_step ||
            (desc->step_id == relay->heard_step && desc->block < relay->heard_block))
                return "a mark that goes backwards";
        relay->heard_step = desc->step_id;
        relay->heard_block = desc->block;
        return NULL;
}

/* Later steps in the slot mean that the one before is long done. */
static bool has_heard(const struct tdm_worker_model *m, const struct tdm_step *step, uint32_t block)
{
        const struct tdm_worker_relay *relay = &m->relay[step->head.after_slot];

        return relay->heard_step > step->head.after_step ||
               (relay->heard_step == step->head.after_step && relay->heard_block > block);
}

uint32_t tdm_worker_relay_stop(const struct tdm_worker_model *m, const struct tdm_step *step, uint32_t first,
                               uint32_t end)
{
        if (step->head.after_step == 0)
                return end;
        for (uint32_t b = first; b < end; b++)
                if (tdm_block_kind(&m->hparams, b) == TDM_BLOCK_ATTENTION && !has_heard(m, step, b))
                        return b;
        return end;
}

void tdm_worker_relay_park(struct tdm_worker *w, struct tdm_worker_model *m, const struct tdm_desc *desc)
{
        m->relay[desc->slot].parked = *desc;
        w->n_parked++;
}

struct tdm_worker_model *tdm_worker_relay_next(struct tdm_worker *w, struct tdm_desc *ret)
{
        uint32_t before = w->n_parked;

        w->n_parked = 0;
        for (unsigned i = 0; before > 0 && i < TDM_PROGRESS_MODELS; i++)
                for (unsigned s = 0; s < TDM_STEP_SLOTS; s++) {
                        struct tdm_worker_model *m = &w->models[i];
                        struct tdm_desc *parked = &m->relay[s].parked;

                        if (m->model_id == 0 || parked->kind == TDM_DESC_NONE)
                                continue;
                        if (!has_heard(m, m->steps[s], parked->block)) {
                                w->n_parked++;
                                continue;
                        }
                        *ret = *parked;
                        parked->kind = TDM_DESC_NONE;
                        w->n_parked = before; /* the others have not been looked at: counted again next time */
                        return m;
                }
        return NULL;
}
