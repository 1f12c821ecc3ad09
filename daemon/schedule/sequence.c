#include "daemon/schedule/private.h"

int tdm_sequence_new(struct sequence **ret, struct tdm_job *job)
{
        struct sequence *q = calloc(1, sizeof(*q));

        if (!q)
                return -ENOMEM;
        q->job = tdm_job_ref(job);
        tdm_list_init(&q->node);
        tdm_list_init(&q->queue);
        tdm_list_init(&q->active);
        q->table = UINT32_MAX;
        tdm_sequence_reset_state(q);
        q->told_state = TDM_JOB_DONE; /* nothing told yet */
        *ret = q;
        return 0;
}

void tdm_suspects_unref(struct suspects *g)
{
        if (g && --g->n_refs == 0)
                free(g);
}

void tdm_sequence_acquit(struct sequence *q)
{
        tdm_suspects_unref(steal_ptr(&q->suspects));
        q->bad_results = 0;
}

void tdm_sequence_free(struct sequence *q)
{
        tdm_list_remove(&q->node);
        tdm_list_remove(&q->queue);
        tdm_list_remove(&q->active);
        tdm_suspects_unref(q->suspects);
        tdm_guesses_deinit(&q->guesses);
        tdm_model_unref(q->draft.model);
        tdm_job_unref(q->job);
        free(q);
}

void tdm_sequence_reset(struct sequence *q)
{
        q->table = UINT32_MAX;
        q->n_committed = q->n_issued = 0;
        memset(q->n_pages, 0, sizeof(q->n_pages));
        memset(q->first_page, 0, sizeof(q->first_page));
        q->reserved = (struct tdm_pages_need){ 0 };
        q->numerics = 0;
        q->cursor = (struct tdm_prefix_cursor){ 0 };
        tdm_sequence_reset_state(q);
        q->looked_up = q->leaving = q->recall.done = false;
        q->recall.n = 0;
        q->in_flight = 0;
        q->home = 0;
        q->draft.waits = false;
}
