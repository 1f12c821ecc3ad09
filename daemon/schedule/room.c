/* Room in the KV cache: what a job is promised when it is admitted, how it grows, and which job is pushed out when
 * there is no room.
 *
 * A job is admitted on the pages of what it has to read and a little more, not on all that it may need later. So pages
 * run out when many jobs grow. Then the least important job that runs gives its pages back, returns to its place in the
 * queue, and later reads its prompt and what it has generated again, to the same bits. Paused jobs are least important,
 * then background ones, then younger ones. A job is never pushed out for a less important one, so the most important
 * job always advances, and after it the next. A job that was pushed out is promised more each time before it comes
 * back, which bounds how often this happens.
 *
 * A sequence in flight cannot be pushed out at once. It is marked, gets no more rows, and is pushed out when its step
 * has landed. */
#include "daemon/schedule/private.h"

#include <assert.h>
#include "common/log.h"

#define HEADROOM_TOKENS 64u

struct tdm_pages_need tdm_scheduler_promise(const struct tdm_scheduler *s, const struct tdm_job *job)
{
        const struct tdm_model *model = job->model;
        uint64_t headroom = (uint64_t)HEADROOM_TOKENS << TDM_MIN(job->stats.evictions, 16u);
        uint64_t n = TDM_MIN(job->n_ids + headroom, (uint64_t)job->prompt_tokens + job->max_tokens);

        return tdm_pages_need(tdm_model_hparams(model), &model->geometry, (uint32_t)n, s->config.max_rows);
}

static bool has_room(const struct tdm_pages *pages, const struct tdm_pages_need *need)
{
        for (int g = 0; g < TDM_KV_POOLS; g++)
                if (need->n[g] > tdm_pages_room(pages, (enum tdm_kv_group)g))
                        return false;
        return true;
}

/* True if a is less important than b. age: of equal jobs the younger is. */
static bool is_less(const struct sequence *of_a, const struct sequence *of_b, bool age)
{
        const struct tdm_job *a = of_a->job, *b = of_b->job;

        if (of_a->is_draft != of_b->is_draft)
                return of_a->is_draft;
        if (a->paused != b->paused)
                return a->paused;
        if (a->request.priority != b->request.priority)
                return a->request.priority > b->request.priority;
        return age && a->id > b->id;
}

static void evict(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct sequence *other, *before = NULL;

        assert(!q->in_flight && !q->job->finished);
        if (q->is_draft) {
                tdm_companion_evict(s, lane, q);
                return;
        }
        tdm_companion_drop(q);
        tdm_log_debug("job %llu makes room: %u tokens will be read again", (unsigned long long)q->job->id,
                      q->n_committed);
        tdm_scheduler_release(s, lane, q);
        tdm_job_count_eviction(q->job);
        s->stats.evictions++;
        tdm_job_set_state(q->job, TDM_JOB_QUEUED);
        tdm_list_for_each(other, &s->waiting, struct sequence, queue) {
                if (!before && other->job->id > q->job->id)
                        before = other;
        }
        tdm_list_append(before ? &before->queue : &s->waiting, &q->queue);
}

static bool is_in(const struct flight *f, const struct sequence *q)
{
        for (uint32_t i = 0; f && i < f->n_seqs; i++)
                if (f->seqs[i].seq == q)
                        return true;
        return false;
}

/* need without the pages that this sequence has or was promised. */
static void subtract_pages(struct tdm_pages_need *need, const struct sequence *q)
{
        for (int g = 0; g < TDM_KV_GROUPS; g++)
                need->n[g] -= TDM_MIN(need->n[g], q->n_pages[g] - q->first_page[g] + q->reserved.n[g]);
        need->n[TDM_KV_STATE] -=
                TDM_MIN(need->n[TDM_KV_STATE], (q->state.page != TDM_KV_NO_PAGE) + (q->state.next != TDM_KV_NO_PAGE) +
                                                       q->reserved.n[TDM_KV_STATE]);
}

/* Will there be room when all marked sequences are out? Pages that they share do not become free, so the answer may be
 * wrong; the caller asks again when they are out. */
static bool will_have_room(const struct lane *lane, const struct tdm_pages_need *need)
{
        struct tdm_pages_need rest = *need;
        const struct sequence *q;

        for (int g = 0; g < TDM_KV_POOLS; g++)
                rest.n[g] -= TDM_MIN(rest.n[g], tdm_pages_room(lane->model->pages, (enum tdm_kv_group)g));
        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->leaving || q->job->finished)
                        subtract_pages(&rest, q);
        }
        return rest.n[TDM_KV_FULL] == 0 && rest.n[TDM_KV_WINDOW] == 0 && rest.n[TDM_KV_STATE] == 0;
}

static uint32_t n_running(struct tdm_scheduler *s, const struct sequence *q)
{
        return tdm_scheduler_user(s, q->job->login)->n_running;
}

/* May q be pushed out for `than`? A waiting sequence takes the place of one that is paused or of a lower class. It also
 * takes the place of one of its own class, if that one's user has at least two more running than its own user: then
 * they are even at most. */
static bool may_go(struct tdm_scheduler *s, const struct sequence *q, const struct sequence *than, bool runs)
{
        if (q == than || q->leaving || q->job->finished)
                return false;
        if (is_less(q, than, runs))
                return true;
        return !runs && !is_less(than, q, false) && n_running(s, q) >= n_running(s, than) + 2;
}

/* The sequence to push out first: the least important one, or one of the user who has the most. */
static struct sequence *least(struct tdm_scheduler *s, struct lane *lane, const struct sequence *than, bool runs)
{
        struct sequence *q, *found = NULL;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                bool before = !found;

                if (!may_go(s, q, than, runs))
                        continue;
                if (found && is_less(q, found, false) != is_less(found, q, false))
                        before = is_less(q, found, false);
                else if (found && !runs && n_running(s, q) != n_running(s, found))
                        before = n_running(s, q) > n_running(s, found);
                else if (found)
                        before = q->job->id > found->job->id;
                if (before)
                        found = q;
        }
        return found;
}

static void dismiss(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct flight *building)
{
        if (q->in_flight > 0 || is_in(building, q))
                q->leaving = true;
        else
                evict(s, lane, q);
}

/* Would there be room if all sequences were pushed out that may be? If not, none is, because they would come back at
 * once and be pushed out again. */
static bool could_have_room(struct tdm_scheduler *s, struct lane *lane, const struct sequence *than,
                            const struct tdm_pages_need *need)
{
        struct tdm_pages_need rest = *need;
        struct sequence *q;

        for (int g = 0; g < TDM_KV_POOLS; g++)
                rest.n[g] -= TDM_MIN(rest.n[g], tdm_pages_room(lane->model->pages, (enum tdm_kv_group)g));
        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->leaving || q->job->finished || may_go(s, q, than, false))
                        subtract_pages(&rest, q);
        }
        return rest.n[TDM_KV_FULL] == 0 && rest.n[TDM_KV_WINDOW] == 0 && rest.n[TDM_KV_STATE] == 0;
}

int tdm_scheduler_make_room(struct tdm_scheduler *s, struct lane *lane, const struct sequence *q,
                            const struct tdm_pages_need *need, const struct flight *building)
{
        bool runs = q->table != UINT32_MAX;

        while (!has_room(lane->model->pages, need)) {
                struct sequence *victim;

                if (will_have_room(lane, need))
                        return -EAGAIN;
                /* A running sequence takes every page that becomes free: even fewer than it needs let it go on. */
                victim = runs || could_have_room(s, lane, q, need) ? least(s, lane, q, runs) : NULL;
                if (!victim)
                        return -ENOSPC;
                dismiss(s, lane, victim, building);
        }
        return 0;
}

bool tdm_scheduler_make_place(struct tdm_scheduler *s, struct lane *lane, const struct sequence *q)
{
        struct sequence *victim;

        tdm_list_for_each(victim, &lane->active, struct sequence, active) {
                if (victim->leaving || victim->job->finished)
                        return false; /* its place is free soon */
        }
        victim = least(s, lane, q, false);
        if (victim)
                dismiss(s, lane, victim, NULL);
        return lane->n_active < s->config.max_sequences;
}

uint32_t tdm_scheduler_grow(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, uint32_t n_positions,
                            const struct flight *building)
{
        const struct tdm_model *model = lane->model;
        struct tdm_pages_need more = { 0 };
        uint32_t n_pages = TDM_DIV_UP(n_positions, TDM_KV_PAGE_TOKENS);

        for (int g = 0; g < TDM_KV_GROUPS; g++)
                if (model->geometry.n_layers[g] && n_pages > q->n_pages[g] + q->reserved.n[g])
                        more.n[g] = n_pages - q->n_pages[g] - q->reserved.n[g];
        more.n[TDM_KV_STATE] = tdm_sequence_state_need(lane, q);
        if (tdm_scheduler_make_room(s, lane, q, &more, building) < 0) {
                if (more.n[TDM_KV_STATE] > tdm_pages_room(model->pages, TDM_KV_STATE))
                        return 0;
                /* There is room for some of the pages only. */
                for (int g = 0; g < TDM_KV_GROUPS; g++) {
                        uint32_t room = tdm_pages_room(model->pages, (enum tdm_kv_group)g);

                        if (model->geometry.n_layers[g])
                                n_pages = TDM_MIN(n_pages, q->n_pages[g] + q->reserved.n[g] + TDM_MIN(room, more.n[g]));
                }
                for (int g = 0; g < TDM_KV_GROUPS; g++)
                        more.n[g] = model->geometry.n_layers[g] && n_pages > q->n_pages[g] + q->reserved.n[g] ?
                                            n_pages - q->n_pages[g] - q->reserved.n[g] :
                                            0;
        }
        if (!tdm_pages_reserve(model->pages, &more))
                return 0; /* not possible: the room was counted */
        for (int g = 0; g < TDM_KV_POOLS; g++)
                q->reserved.n[g] += more.n[g];
        return TDM_MIN(n_positions, n_pages * TDM_KV_PAGE_TOKENS);
}

uint32_t tdm_scheduler_grow_spare(struct lane *lane, struct sequence *q, uint32_t n_positions)
{
        const struct tdm_model *model = lane->model;
        struct tdm_pages_need more = { 0 };
        uint32_t n_pages = TDM_DIV_UP(n_positions, TDM_KV_PAGE_TOKENS);

        for (int g = 0; g < TDM_KV_GROUPS; g++)
                if (model->geometry.n_layers[g])
                        n_pages = TDM_MIN(n_pages, q->n_pages[g] + q->reserved.n[g] +
                                                           tdm_pages_room(model->pages, (enum tdm_kv_group)g));
        for (int g = 0; g < TDM_KV_GROUPS; g++)
                if (model->geometry.n_layers[g] && n_pages > q->n_pages[g] + q->reserved.n[g])
                        more.n[g] = n_pages - q->n_pages[g] - q->reserved.n[g];
        if (!tdm_pages_reserve(model->pages, &more))
                return 0; /* not possible: the room was counted */
        for (int g = 0; g < TDM_KV_GROUPS; g++)
                q->reserved.n[g] += more.n[g];
        return TDM_MIN(n_positions, n_pages * TDM_KV_PAGE_TOKENS);
}

void tdm_scheduler_sweep_leaving(struct tdm_scheduler *s, struct lane *lane)
{
        struct sequence *q;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->leaving && !q->in_flight && !q->job->finished && !lane->dead)
                        evict(s, lane, q);
        }
}
