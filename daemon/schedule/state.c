/* States of sequences: what layers without keys and values keep of them (engine/step/kv.h, docs/state.md).
 *
 * A state has no positions, so it cannot be cut back. A sequence has two pages for it: the state behind its committed
 * positions, and the one that a step writes. The pages change places when the step is committed, and only then. So a
 * step that is lost leaves the state that it read as it was, and is run again.
 *
 * The prefix cache keeps states at borders of pages: every so many pages of a prompt, near a prompt's end, and at the
 * last border that a text has passed. Steps end at such a border, or keep a state of their middle. A page that the
 * cache keeps is read by any number of sequences, and written by none. */
#include "daemon/schedule/private.h"

/* What follows a user's words in a prompt is often rendered otherwise in the next one. The last checkpoint of a prompt
 * is before these tokens. */
#define TURN_TOKENS 8u

static const struct tdm_pages_need one_state = { .n[TDM_KV_STATE] = 1 };

bool tdm_sequence_state_passes(const struct lane *lane, const struct sequence *q)
{
        return sequence_is_decoding(q) &&
               q->n_committed % (tdm_pages_state_spacing(&lane->model->geometry) * TDM_KV_PAGE_TOKENS) != 0;
}

bool tdm_lane_has_state(const struct lane *lane)
{
        return lane->model->geometry.n_layers[TDM_KV_STATE] > 0;
}

void tdm_sequence_reset_state(struct sequence *q)
{
        q->state = (struct sequence_state){ .page = TDM_KV_NO_PAGE, .next = TDM_KV_NO_PAGE, .kept = TDM_KV_NO_PAGE };
}

static uint32_t draw_page(struct lane *lane, struct sequence *q)
{
        q->reserved.n[TDM_KV_STATE]--;
        return tdm_pages_alloc(lane->model->pages, TDM_KV_STATE, q->job->identity);
}

static void give_page(struct lane *lane, uint32_t *page)
{
        if (*page != TDM_KV_NO_PAGE)
                tdm_pages_free(lane->model->pages, TDM_KV_STATE, *page, false);
        *page = TDM_KV_NO_PAGE;
}

/* ---- where states are kept ---- */

void tdm_sequence_drop_kept(struct lane *lane, struct sequence *q)
{
        give_page(lane, &q->state.kept);
}

/* The first border behind `first` at which the prefix cache wants a state of the sequence; UINT32_MAX: none. */
static uint32_t next_checkpoint(const struct lane *lane, const struct sequence *q, uint32_t first)
{
        const uint32_t spacing = tdm_pages_state_spacing(&lane->model->geometry) * TDM_KV_PAGE_TOKENS;
        const uint32_t n = q->job->n_ids, every = (first / spacing + 1) * spacing;
        uint32_t last = n > TURN_TOKENS ? (n - TURN_TOKENS) / TDM_KV_PAGE_TOKENS * TDM_KV_PAGE_TOKENS : 0;

        if (last <= first)
                return every;
        return TDM_MIN(last, every);
}

uint32_t tdm_sequence_state_rows(const struct lane *lane, const struct sequence *q, uint32_t n)
{
        uint32_t kept, end;

        if (!tdm_lane_has_state(lane) || !lane->model->prefix || n < 2)
                return n;
        kept = next_checkpoint(lane, q, q->n_issued);
        if (kept >= q->n_issued + n)
                return n;
        end = next_checkpoint(lane, q, kept);
        return TDM_MIN(n, end - q->n_issued);
}

/* A state of the middle of the step, if a page is free for it: no sequence loses one. */
static void keep_of_middle(struct lane *lane, struct sequence *q, uint32_t n, struct tdm_step_state *ret)
{
        uint32_t at = lane->model->prefix ? next_checkpoint(lane, q, q->n_issued) : UINT32_MAX;

        /* A step that could not be submitted may have left one. */
        if (at - q->n_issued >= n) {
                tdm_sequence_drop_kept(lane, q);
                return;
        }
        if (q->state.kept == TDM_KV_NO_PAGE) {
                if (!tdm_pages_reserve(lane->model->pages, &one_state))
                        return;
                q->state.kept = tdm_pages_alloc(lane->model->pages, TDM_KV_STATE, q->job->identity);
        }
        q->state.n_kept = at;
        ret->kept = q->state.kept;
        ret->n_kept = at - q->n_issued;
}

/* ---- steps ---- */

uint32_t tdm_sequence_state_need(const struct lane *lane, const struct sequence *q)
{
        return tdm_lane_has_state(lane) && q->state.next == TDM_KV_NO_PAGE && q->reserved.n[TDM_KV_STATE] == 0;
}

struct tdm_step_state tdm_sequence_give_state(struct lane *lane, struct sequence *q, uint32_t n)
{
        struct tdm_step_state ret = TDM_STEP_NO_STATE;

        if (!tdm_lane_has_state(lane))
                return ret;
        if (q->state.next == TDM_KV_NO_PAGE)
                q->state.next = draw_page(lane, q);
        ret.from = q->state.page;
        ret.to = q->state.next;
        keep_of_middle(lane, q, n, &ret);
        return ret;
}

void tdm_sequence_take_state(struct lane *lane, struct sequence *q)
{
        uint32_t before = q->state.page;

        q->state.page = q->state.next;
        q->state.next = TDM_KV_NO_PAGE;
        if (before != TDM_KV_NO_PAGE && tdm_pages_is_sole(lane->model->pages, TDM_KV_STATE, before)) {
                q->state.next = before;
                return;
        }
        give_page(lane, &before);
        /* If other sequences still use the page, there may be no room for another one: see tdm_scheduler_grow(). */
        if (q->reserved.n[TDM_KV_STATE] == 0 && tdm_pages_reserve(lane->model->pages, &one_state))
                q->reserved.n[TDM_KV_STATE] = 1;
}

void tdm_sequence_free_state(struct lane *lane, struct sequence *q)
{
        give_page(lane, &q->state.kept);
        give_page(lane, &q->state.next);
        give_page(lane, &q->state.page);
}
