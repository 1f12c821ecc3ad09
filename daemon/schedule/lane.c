/* What the scheduler keeps for a model that is ready: its flights, and its sequences with their places and pages. Also
 * finds users. Nothing here decides. */
#include "daemon/schedule/private.h"

void tdm_lane_free(struct tdm_scheduler *s, struct lane *lane)
{
        tdm_list_remove(&lane->node);
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++)
                free(lane->flights[i].seqs);
        free(lane->table_used);
        free(lane->mask);
        tdm_model_unref(lane->model);
        free(lane);
}

void tdm_scheduler_sweep_lane(struct tdm_scheduler *s, struct lane *lane)
{
        if (lane->dead && lane->n_flights == 0 && tdm_list_empty(&lane->active))
                tdm_lane_free(s, lane);
}

int tdm_lane_new(struct tdm_scheduler *s, struct tdm_model *model)
{
        struct lane *lane = calloc(1, sizeof(*lane));
        bool ok;

        if (!lane)
                return -ENOMEM;
        tdm_list_init(&lane->active);
        tdm_list_append(&s->lanes, &lane->node);
        lane->model = tdm_model_ref(model);
        lane->table_used = calloc(s->config.max_sequences, sizeof(*lane->table_used));
        lane->mask = calloc(model->layout.limits.mask_words + 1, sizeof(*lane->mask));
        ok = lane->table_used && lane->mask;
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                lane->flights[i].seqs = calloc(s->config.max_sequences, sizeof(*lane->flights[i].seqs));
                ok = ok && lane->flights[i].seqs;
        }
        if (ok && s->config.page_store && model->prefix)
                ok = tdm_prefix_note_new(model->prefix) == 0;
        if (!ok) {
                tdm_lane_free(s, lane);
                return -ENOMEM;
        }
        return 0;
}

struct lane *tdm_scheduler_lane(struct tdm_scheduler *s, uint32_t model_id)
{
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                if (lane->model->id == model_id)
                        return lane;
        }
        return NULL;
}

struct user *tdm_scheduler_user(struct tdm_scheduler *s, uint64_t login)
{
        for (uint32_t i = 0; i < s->n_users; i++)
                if (s->users[i].login == login)
                        return &s->users[i];
        return NULL;
}

void tdm_scheduler_enter_lane(struct lane *lane, struct sequence *q)
{
        for (q->table = 0; lane->table_used[q->table]; q->table++)
                ;
        lane->table_used[q->table] = true;
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                uint32_t *table =
                        tdm_steps_table(lane->model->steps->base, &lane->model->layout, q->table, (enum tdm_kv_group)g);

                for (uint32_t i = 0; i < lane->model->layout.limits.table_entries; i++)
                        table[i] = TDM_KV_NO_PAGE;
        }
        tdm_list_append(&lane->active, &q->active);
        lane->n_active++;
}

void tdm_scheduler_release(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct tdm_model *model = lane->model;

        /* A dead lane's pages are gone with the model. */
        for (int g = 0; !lane->dead && g < TDM_KV_GROUPS; g++) {
                const uint32_t *table =
                        tdm_steps_table(model->steps->base, &model->layout, q->table, (enum tdm_kv_group)g);

                /* The last pages first: the beginning of a text is more likely to be used again. */
                for (uint32_t i = q->n_pages[g]; i > q->first_page[g]; i--)
                        tdm_pages_free(model->pages, (enum tdm_kv_group)g, table[i - 1], false);
        }
        if (!lane->dead) {
                tdm_sequence_free_state(lane, q);
                tdm_pages_unreserve(model->pages, &q->reserved);
        }
        lane->table_used[q->table] = false;
        tdm_list_remove(&q->active);
        lane->n_active--;
        if (!q->is_draft)
                tdm_scheduler_user(s, q->job->login)->n_running--;
        tdm_sequence_reset(q);
}

void tdm_sequence_free_slid_out(struct lane *lane, struct sequence *q)
{
        struct tdm_model *model = lane->model;
        uint32_t first = tdm_window_first(tdm_model_hparams(model), TDM_KV_WINDOW, sequence_kept(q));
        const struct tdm_pages_need one = { .n[TDM_KV_WINDOW] = 1 };
        uint32_t *table = tdm_steps_table(model->steps->base, &model->layout, q->table, TDM_KV_WINDOW);

        if (model->geometry.n_layers[TDM_KV_WINDOW] == 0)
                return;
        while (q->first_page[TDM_KV_WINDOW] < q->n_pages[TDM_KV_WINDOW] &&
               (q->first_page[TDM_KV_WINDOW] + 1) * TDM_KV_PAGE_TOKENS <= first) {
                uint32_t i = q->first_page[TDM_KV_WINDOW]++;

                /* Cold: a long text uses its own pages again before it takes other sequences' pages. The freed room is
                 * promised to the sequence for its next page, unless another sequence still uses the page. */
                tdm_pages_free(model->pages, TDM_KV_WINDOW, table[i], true);
                if (tdm_pages_reserve(model->pages, &one))
                        q->reserved.n[TDM_KV_WINDOW]++;
                table[i] = TDM_KV_NO_PAGE;
        }
}
