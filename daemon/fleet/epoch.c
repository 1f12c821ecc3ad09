/* The end of an epoch: its rings are closed, and everything in flight is void. rings.c makes the next ones. */
#include "daemon/fleet/private.h"

static void close_ring_fds(struct tdm_fleet_rings *rings, unsigned worker)
{
        closep(&rings->fds[worker].from_daemon);
        closep(&rings->fds[worker].to_daemon);
        closep(&rings->fds[worker].eventfd);
        closep(&rings->fds[worker].from_peer);
        closep(&rings->fds[worker].to_peer);
}

void tdm_fleet_close_rings(struct tdm_fleet *f)
{
        if (f->rings.made)
                for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                        close_ring_fds(&f->rings, i);
        f->rings.made = false;
}

void tdm_fleet_close_ends(struct tdm_fleet_worker *w)
{
        tdm_source_destroyp(&w->link.ring_source);
        tdm_ring_destroyp(&w->link.ring_to);
        tdm_ring_destroyp(&w->link.ring_from);
}

static struct tdm_fleet_step *find_step(struct tdm_fleet *f, uint64_t step_id, uint32_t *ret_model, uint32_t *ret_slot)
{
        for (unsigned i = 0; step_id != 0 && i < TDM_FLEET_MODELS; i++)
                for (unsigned s = 0; f->models[i] && s < TDM_STEP_SLOTS; s++)
                        if (f->models[i]->steps[s].step_id == step_id) {
                                *ret_model = f->models[i]->model.model_id;
                                *ret_slot = s;
                                return &f->models[i]->steps[s];
                        }
        return NULL;
}

void tdm_fleet_end_epoch(struct tdm_fleet *f, enum tdm_worker_index worker, const char *reason, uint64_t guilty_step)
{
        bool was_ready = f->ready;
        uint32_t model = 0, slot = 0;

        if (!find_step(f, guilty_step, &model, &slot))
                guilty_step = 0;
        f->ready = false;
        f->epoch++;
        tdm_fleet_trace(f, TDM_TRACE_EPOCH, 0, 0, f->epoch);
        tdm_fleet_close_rings(f);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                tdm_fleet_close_ends(&f->workers[i]);
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i])
                        memset(f->models[i]->steps, 0, sizeof(f->models[i]->steps));
        tdm_fleet_pump_soon(f);
        if (!was_ready)
                return; /* the owner has heard of this reset already */
        f->recoveries++;
        if (f->steps.reset)
                f->steps.reset(reason, model, slot, guilty_step, f->steps_userdata);
        if (f->callbacks.on_epoch_ended)
                f->callbacks.on_epoch_ended(f->userdata);
}
