/* Building a step. results.c takes what it gives.
 *
 * A step holds sequences of one class: one model, one placement, one group of suspects (or none). Classes that have
 * work take turns: first the one with the user who had the least device time, then the one that has waited longest.
 * Several steps may be in flight. A sequence is in one of them only, unless it is a prompt in a relay. Where the
 * placement runs several steps at once, each takes its share of the class's sequences (collect()).
 *
 * Every generating sequence that a step takes has one row in it, and one more for each guess at what comes next
 * (guess.c). Each of these draws a token as if it were the last row. The guesses up to the first that differs from
 * the token drawn before it are text (results.c); the rows behind it are void, and their positions are written again.
 *
 * Prompts get the rest of the row budget: interactive ones first, then those of the user who had the least device time,
 * then in order of arrival. Background prompts get only a small part of the budget while an interactive job has work.
 * A picture is read in one step, so a small part is none of it: a prompt that several steps passed over goes first.
 * device-time.c bounds how long a step takes.
 *
 * A relay: a prompt is in two steps at once, one piece on each worker. The later piece follows one layer behind
 * (engine/worker/relay.c). The pieces are committed in order. When the earlier one fails, the later one is void too.
 * A sequence's page tables only grow while it is in a step. */
#include "daemon/schedule/private.h"

#include <assert.h>
#include "common/log.h"

/* For this time after the last interactive job had rows, steps are kept short for the next one. */
#define INTERACTIVE_NS (10 * TDM_NSEC_PER_SEC)
/* The longest step of prompts, while no sequence generates. */
#define LONE_STEP_NS (250 * TDM_NSEC_PER_MSEC)
/* Classes that are tried for one step: each try walks over a model's sequences, while workers wait. */
#define MAX_TRIED 16u

/* The sequence has rows for a step now. A second step of one sequence has to follow the first one on the other worker.
 */
static bool has_work(const struct sequence *q)
{
        if (q->is_draft)
                return tdm_companion_has_work(q);
        if (q->job->paused || q->job->finished || q->leaving || q->job->text.masking || q->draft.waits ||
            q->recall.runs)
                return false;
        return q->in_flight == 0 || (q->in_flight == 1 && q->n_issued < q->job->n_ids && !q->suspects);
}

/* The class with work of the least served user, and of those the one that has waited longest; except those in `tried`.
 */
static bool pick_class(struct tdm_scheduler *s, uint64_t *const *tried, unsigned n_tried, struct step_class *ret)
{
        struct step_class best = { 0 };
        uint64_t best_served = 0;
        bool yield = s->n_companions > 0 && tdm_companion_must_yield(s);
        struct sequence *q;
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                if (lane->dead || lane->probe.waits || lane->model->fetching || lane->n_flights == TDM_STEP_SLOTS)
                        continue;
                tdm_scheduler_keep_placements(s, lane);
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        enum tdm_placement placement = tdm_scheduler_placement_of(s, q->job);
                        uint64_t *stamp = q->suspects                  ? &q->suspects->stamp :
                                          q->is_draft                  ? &lane->turns.drafts :
                                          q->kept != TDM_PLACEMENT_ANY ? &lane->turns.kept[q->kept] :
                                                                         &lane->turns.of[placement];
                        bool skip = !has_work(q) || (q->is_draft && yield);
                        uint64_t served;

                        if (skip)
                                continue;
                        served = tdm_scheduler_user(s, q->job->login)->served;
                        skip = best.lane && (served > best_served || (served == best_served && *stamp >= *best.stamp));
                        for (unsigned i = 0; i < n_tried && !skip; i++)
                                skip = tried[i] == stamp;
                        if (skip)
                                continue;
                        best = (struct step_class){ .lane = lane,
                                                    .placement = placement,
                                                    .kept = q->kept,
                                                    .suspects = q->suspects,
                                                    .drafts = q->is_draft,
                                                    .stamp = stamp };
                        best_served = served;
                }
        }
        *ret = best;
        return best.lane;
}

/* home: sequences that generate and had their last step there go first; 0: no preference. */
static bool goes_before(const struct sequence *a, const struct sequence *b, uint8_t home)
{
        bool a_decodes = sequence_is_decoding(a), b_decodes = sequence_is_decoding(b);

        if (a_decodes != b_decodes)
                return a_decodes;
        if (a_decodes && home && (a->home == home) != (b->home == home))
                return a->home == home;
        if (!a_decodes && tdm_sequence_is_overdue(a) != tdm_sequence_is_overdue(b))
                return tdm_sequence_is_overdue(a);
        if (a->job->request.priority != b->job->request.priority)
                return a->job->request.priority < b->job->request.priority;
        if (!a_decodes && a->user_served != b->user_served)
                return a->user_served < b->user_served;
        return a->job->id < b->job->id;
}

/* The step that another step of this sequence would follow; NULL: none may follow. */
static const struct flight *relay_of(const struct lane *lane, const struct tdm_route *route, const struct sequence *q)
{
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                const struct flight *f = &lane->flights[i];

                for (uint32_t k = 0; f->used && k < f->n_seqs; k++)
                        if (f->seqs[k].seq == q)
                                return f->relays && !f->done && !f->doomed && f->workers == 1u << !route->worker ? f :
                                                                                                                   NULL;
        }
        return NULL;
}

/* Can this sequence be in the next step? If it is in flight, the next step has to follow that flight. *before is the
 * flight that the step follows, once a sequence has set it. */
static bool is_candidate(const struct step_class *c, const struct tdm_route *route, const struct sequence *q,
                         const struct flight **before)
{
        const struct flight *f;

        if (!has_work(q))
                return false;
        if (q->in_flight == 0)
                return true;
        f = route->whole ? relay_of(c->lane, route, q) : NULL;
        if (!f || (*before && *before != f))
                return false;
        *before = f;
        return true;
}

/* Collects the class's sequences in the order in which they get rows. */
static uint32_t collect(struct tdm_scheduler *s, const struct step_class *c, const struct tdm_route *route,
                        const struct tdm_share *share, const struct flight **before)
{
        uint32_t n = 0, n_class = 0, n_decode = 0, n_drop;
        const uint8_t home = (uint8_t)(1 + route->worker), preferred = route->whole ? home : 0; /* 0: none */
        struct sequence *q;

        tdm_list_for_each(q, &c->lane->active, struct sequence, active) {
                uint32_t i;

                if (!tdm_class_has(s, c, q))
                        continue;
                n_class++;
                if (!is_candidate(c, route, q, before))
                        continue;
                n_decode += sequence_is_decoding(q);
                q->user_served = tdm_scheduler_user(s, q->job->login)->served;
                for (i = n++; i > 0 && goes_before(q, s->candidates[i - 1], preferred); i--)
                        s->candidates[i] = s->candidates[i - 1];
                s->candidates[i] = q;
        }
        if (route->whole) {
                n_drop = n_decode - TDM_MIN(n_decode, share->n_decode);
                memmove(s->candidates + n_decode - n_drop, s->candidates + n_decode,
                        (n - n_decode) * sizeof(s->candidates[0]));
                return n - n_drop;
        }
        /* With several steps in flight each one takes its share of the sequences, or there would be none left for the
         * next step. */
        return TDM_MIN(n, TDM_MAX(1u, TDM_DIV_UP(n_class, TDM_MAX(route->width, 1u))));
}

/* The same of companions: all that have work. */
static uint32_t collect_drafts(struct tdm_scheduler *s, const struct step_class *c)
{
        struct sequence *q;
        uint32_t n = 0;

        tdm_list_for_each(q, &c->lane->active, struct sequence, active) {
                if (tdm_class_has(s, c, q) && has_work(q))
                        s->candidates[n++] = q;
        }
        return n;
}

static void fill_pages(struct lane *lane, struct sequence *q, uint32_t n_positions)
{
        struct tdm_model *model = lane->model;

        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                uint32_t *table = tdm_steps_table(model->steps->base, &model->layout, q->table, (enum tdm_kv_group)g);

                if (model->geometry.n_layers[g] == 0)
                        continue;
                while (q->n_pages[g] * TDM_KV_PAGE_TOKENS < n_positions) {
                        table[q->n_pages[g]] = tdm_pages_alloc(model->pages, (enum tdm_kv_group)g, q->job->identity);
                        q->reserved.n[g]--;
                        q->n_pages[g]++;
                }
        }
}

/* A step under construction. */
struct build {
        struct tdm_scheduler *s;
        struct lane *lane;
        uint32_t slot;
        struct flight *flight;
        const struct bits *bits;
        struct tdm_share share;
        struct tdm_step_row *rows;
        struct tdm_step_seq *seqs;
        struct tdm_step_logits *logits;
        uint32_t *history;
        struct tdm_logit_bias *biases;
        uint32_t n_rows, n_history, n_biases, n_pictures, n_burst, fit_rows;
        uint32_t n_left; /* candidates that may get rows yet, this one included */
};

/* Adds the tokens that the penalties of a row count, up to the row's own token, and the job's biases. Some of these
 * tokens may be guesses. The repetition penalty counts the prompt, the others do not. */
static void add_past(struct build *b, const struct sequence *q, uint32_t position, struct tdm_step_logits *l)
{
        const struct tdm_job *job = q->job;
        const struct tdm_sampling *s = &job->request.sampling;
        uint32_t *to = b->history + b->n_history, n = position + 1, n_kept = 0;

        l->repeat_last = job->request.repeat_last;
        if (tdm_sampling_repeats(s))
                l->n_repeated = TDM_MIN(job->request.repeat_last, n);
        if (tdm_sampling_counts(s))
                l->n_counted = TDM_MIN(n - TDM_MIN(n, job->prompt_tokens), TDM_HISTORY_MAX);
        l->n_history = TDM_MAX(l->n_repeated, l->n_counted);
        /* Rows of pictures, which are in the prompt only, are left out. */
        for (uint32_t at = n - l->n_history; at < n; at++) {
                to[n_kept] = at < job->n_ids ? job->ids[at] : q->guesses.ids[at - job->n_ids];
                n_kept += !(to[n_kept] & TDM_PICTURE_ID);
        }
        l->n_repeated -= TDM_MIN(l->n_repeated, l->n_history - n_kept);
        l->n_history = n_kept;
        b->n_history += l->n_history;
        l->bias_offset = b->n_biases;
        l->n_biases = job->request.n_biases;
        if (job->request.n_biases > 0)
                memcpy(b->biases + b->n_biases, job->request.biases,
                       job->request.n_biases * sizeof(*job->request.biases));
        b->n_biases += job->request.n_biases;
}

static void add_logits(struct build *b, const struct sequence *q, uint32_t row, uint32_t position)
{
        const struct tdm_job *job = q->job;
        struct tdm_step_logits *l = &b->logits[b->flight->n_logits];

        *l = (struct tdm_step_logits){
                .row = row, .target = UINT32_MAX, .sampling = job->request.sampling, .history_offset = b->n_history
        };
        if (job->kind == TDM_JOB_SCORE && position + 1 < job->n_ids)
                l->target = job->ids[position + 1];
        if (job->kind == TDM_JOB_GENERATE)
                add_past(b, q, position, l);
        if (job->text.constraint && tdm_constraint_binds(job->text.constraint)) {
                b->flight->seqs[b->flight->n_seqs].masked = MASK_WANTED;
                l->mask = ++b->flight->n_masks;
        }
        b->rows[row].logits = b->flight->n_logits++;
}

/* Types of tokens belong to models that read a text as a whole. */
static uint32_t second_from(const struct build *b, const struct sequence *q, uint32_t first, uint32_t n)
{
        bool is_whole = first == 0 && tdm_recipe_is_whole(tdm_model_recipe(b->lane->model));

        return is_whole && q->job->second_from < n ? q->job->second_from : 0;
}

/* n_guesses: of the n rows, the last. n_burst: tokens to draw behind these rows' one. */
static void add_sequence(struct build *b, struct sequence *q, uint32_t n, uint32_t n_guesses, uint32_t n_burst)
{
        struct flight *f = b->flight;
        struct tdm_job *job = q->job;
        uint32_t first = q->n_issued;

        fill_pages(b->lane, q, first + n + n_burst);
        q->n_passed_over = 0;
        b->seqs[f->n_seqs] = (struct tdm_step_seq){ .table = q->table,
                                                    .first_row = b->n_rows,
                                                    .n_rows = n,
                                                    .n_burst = n_burst,
                                                    .state = tdm_sequence_give_state(b->lane, q, n),
                                                    .second_from = second_from(b, q, first, n) };
        if (n_burst > 0) {
                const struct tdm_draft_plan *d = &q->owner->draft.plan;

                memcpy(b->seqs[f->n_seqs].doubts, d->doubts, sizeof(d->doubts));
                memcpy(b->seqs[f->n_seqs].most_doubt, d->most_doubt, sizeof(d->most_doubt));
        }
        f->seqs[f->n_seqs] = (struct flight_seq){ .seq = q,
                                                  .first = first,
                                                  .n_rows = n,
                                                  .first_logits = f->n_logits,
                                                  .n_guesses = n_guesses,
                                                  .n_burst = n_burst };
        memcpy(f->seqs[f->n_seqs].guesses, q->guesses.ids, n_guesses * sizeof(uint32_t));
        for (uint32_t i = 0; i < n; i++) {
                uint32_t row = b->n_rows + i, position = first + i;

                b->rows[row] =
                        (struct tdm_step_row){ .token = position < job->n_ids ? job->ids[position] :
                                                                                q->guesses.ids[position - job->n_ids],
                                               .position = position,
                                               .seq = f->n_seqs,
                                               .logits = UINT32_MAX };
                if (job->kind == TDM_JOB_SCORE ? position >= q->n_told : position + 1 >= job->n_ids)
                        add_logits(b, q, row, position);
        }
        if (job->pictures.n > 0)
                b->n_pictures = tdm_scheduler_add_pictures(b->lane, b->slot, job, first, n, b->n_rows, b->n_pictures);
        f->seqs[f->n_seqs].n_logits = f->n_logits - f->seqs[f->n_seqs].first_logits;
        f->n_passes = TDM_MAX(f->n_passes, 1 + n_burst);
        f->n_seqs++;
        b->n_rows += n;
        b->n_burst += n_burst;
        /* The tokens that follow get their place in the history when they are drawn. */
        if (n_burst > 0 && tdm_sampling_looks_back(&job->request.sampling)) {
                memset(b->history + b->n_history, 0, n_burst * sizeof(*b->history));
                b->n_history += n_burst;
        }
        tdm_job_note_issued(job, tdm_now_ns());
}

/* Rows that this sequence gets in the step; 0: it waits for the next step. */
static uint32_t rows_for(const struct build *b, const struct sequence *q, uint32_t prompt_budget)
{
        const struct tdm_steps_limits *limits = &b->lane->model->layout.limits;
        uint32_t n = q->job->n_ids - q->n_issued;

        if (b->flight->n_seqs == limits->max_seqs || b->n_rows == limits->max_rows ||
            b->flight->n_logits == limits->max_logits)
                return 0;
        /* All of a text or nothing. One that is longer than the budget goes first in a step. */
        if (tdm_recipe_is_whole(tdm_model_recipe(b->lane->model)))
                return n <= limits->max_rows - b->n_rows && (n <= prompt_budget || b->n_rows == 0) ? n : 0;
        if (!sequence_is_decoding(q)) {
                n = TDM_MIN(TDM_MIN(n, prompt_budget), b->share.chunk_rows);
                n = TDM_MIN(n, tdm_rows_at_depth(b->fit_rows, b->lane->lengths.fit_depth, q->n_issued));
                /* A sequence reserves pages for at most max_rows in flight. */
                n = TDM_MIN(n, limits->max_rows - TDM_MIN(limits->max_rows, q->n_issued - q->n_committed));
                if (q->job->request.prefill_chunk)
                        n = TDM_MIN(n, q->job->request.prefill_chunk);
                n = tdm_sequence_state_rows(b->lane, q, n);
        }
        if (q->job->kind == TDM_JOB_SCORE)
                n = TDM_MIN(n, limits->max_logits - b->flight->n_logits);
        n = TDM_MIN(n, limits->max_rows - b->n_rows);
        if (q->job->pictures.n == 0 || sequence_is_decoding(q))
                return n;
        return tdm_scheduler_picture_rows(b->lane, q, n, b->flight->reads ? 0 : limits->max_rows - b->n_rows,
                                          b->n_pictures);
}

/* Rows for background prompts. An interactive job that arrives waits for the step in flight, and then for one with its
 * own prompt. So both are kept short while an interactive job has work, and for INTERACTIVE_NS after. */
static uint32_t background_budget(struct tdm_scheduler *s, uint32_t n_candidates, uint32_t budget)
{
        uint64_t now = tdm_now_ns();
        bool reading = false;

        for (uint32_t i = 0; i < n_candidates; i++) {
                if (s->candidates[i]->job->request.priority != TDM_JOB_INTERACTIVE)
                        continue;
                s->interactive_ns = now;
                reading = reading || !sequence_is_decoding(s->candidates[i]);
        }
        if (s->interactive_ns == 0 || now - s->interactive_ns > INTERACTIVE_NS)
                return budget;
        return TDM_MIN(budget, TDM_MAX(s->config.prefill_rows / (reading ? 32u : 8u), 1u));
}

/* Fewer and longer steps read a prompt sooner, but a job that arrives meanwhile waits for the step in flight. */
static uint32_t prompt_rows(const struct build *b, uint32_t n_decode)
{
        const struct tdm_scheduler_config *config = &b->s->config;

        if (n_decode > 0 || config->lone_rows <= config->prefill_rows || b->lane->lengths.prompt_row_ns == 0 ||
            b->lane->lengths.prompt_row_ns > LONE_STEP_NS / config->lone_rows)
                return config->prefill_rows;
        return config->lone_rows;
}

/* Rows for guesses: each sequence that generates has its row in any case. */
static uint32_t guess_rows(const struct build *b, uint32_t n_decode)
{
        const struct tdm_steps_limits *limits = &b->lane->model->layout.limits;
        uint32_t most = TDM_MIN(limits->max_rows, limits->max_logits);

        return most - TDM_MIN(most, n_decode);
}

/* Guesses of a text with a grammar need a mask each, of which a step has as many as sequences. The others' first. */
static uint32_t most_masks(const struct build *b, const struct sequence *q)
{
        const struct tdm_steps_limits *limits = &b->lane->model->layout.limits;
        uint32_t n = b->flight->n_masks + b->n_left;

        return tdm_job_has_grammar(q->job) ? limits->max_seqs - TDM_MIN(n, limits->max_seqs) : UINT32_MAX;
}

/* How many of its guesses the sequence has pages and masks for, behind its n_positions. */
static uint32_t grow_for_guesses(const struct build *b, struct sequence *q, uint32_t n_positions)
{
        uint32_t n = TDM_MIN(q->guesses.n, most_masks(b, q));

        if (n > 0) {
                n = tdm_scheduler_grow_spare(b->lane, q, n_positions + n);
                n -= TDM_MIN(n, n_positions);
        }
        tdm_job_note_guesses(q->job, n, n < q->guesses.n ? TDM_UNGUESSED_MEMORY : q->job->stats.unguessed);
        return n;
}

static void fill_rows(struct build *b, uint32_t n_candidates)
{
        struct tdm_scheduler *s = b->s;
        uint32_t n_decode = 0, rows, budget, behind;

        while (n_decode < n_candidates && sequence_is_decoding(s->candidates[n_decode]))
                n_decode++;
        /* Prompts always get at least a quarter of the budget, however many sequences generate. */
        b->fit_rows = tdm_scheduler_fit_rows(s, b->lane);
        rows = TDM_MIN(prompt_rows(b, n_decode), b->fit_rows);
        budget = TDM_MIN(TDM_MAX(rows - TDM_MIN(rows, n_decode), TDM_MAX(rows / 4, 1u)), b->share.prompt_rows);
        behind = background_budget(s, n_candidates, budget);
        b->flight->reads = false;
        tdm_scheduler_plan_guesses(s, b->lane, n_decode, guess_rows(b, n_decode), n_decode < n_candidates);
        for (uint32_t i = 0; i < n_candidates; i++) {
                struct sequence *q = s->candidates[i];
                uint32_t n, first,
                        most = q->job->request.priority == TDM_JOB_BACKGROUND ? TDM_MIN(budget, behind) : budget;

                b->n_left = n_candidates - i;
                /* A sequence before it in this step may have taken its pages. */
                if (q->table == UINT32_MAX || !has_work(q))
                        continue;
                if (rows_for(b, q, most) == 0) {
                        q->n_passed_over += b->flight->reads && tdm_job_pictures_at(&q->job->pictures, q->n_issued);
                        continue;
                }
                if (!tdm_scheduler_may_go_on(q, b->bits))
                        continue;
                if (!tdm_scheduler_look_up(s, b->lane, q, b->bits))
                        continue;
                first = q->n_issued;
                n = tdm_scheduler_grow(s, b->lane, q, first + rows_for(b, q, most), b->flight);
                if (n <= first || (tdm_recipe_is_whole(tdm_model_recipe(b->lane->model)) && n < q->job->n_ids))
                        continue;
                n = tdm_job_pictures_fit(&q->job->pictures, first, n - first, UINT32_MAX);
                if (n == 0)
                        continue;
                if (i < n_decode) {
                        uint32_t n_guesses = grow_for_guesses(b, q, first + n);

                        add_sequence(b, q, n + n_guesses, n_guesses, 0);
                        continue;
                }
                add_sequence(b, q, n, 0, 0);
                b->flight->depth = TDM_MAX(b->flight->reads ? b->flight->depth : 0, first);
                b->flight->reads = true;
                budget -= TDM_MIN(budget, n);
                if (q->job->request.priority == TDM_JOB_BACKGROUND)
                        behind -= TDM_MIN(behind, n);
        }
}

/* The workers can go on with tokens that they draw: one of them has all blocks, and needs nothing that is in the file
 * only. */
static bool can_burst(const struct build *b, const uint8_t *plan)
{
        uint32_t n_blocks = tdm_model_n_blocks(tdm_model_hparams(b->lane->model));

        for (uint32_t i = 1; i < n_blocks; i++)
                if (plan[i] != plan[0])
                        return false;
        return b->lane->model->layout.limits.input_bytes == 0;
}

/* How long the companion's burst is behind n_positions, which are all that it has: as many as there are pages and
 * places for. */
static uint32_t grow_for_burst(struct build *b, struct sequence *q, uint32_t n_positions)
{
        const struct tdm_steps_limits *limits = &b->lane->model->layout.limits;
        uint32_t n = TDM_MIN(tdm_companion_burst(q), TDM_MAX_BURST), have;

        n = TDM_MIN(n, limits->max_logits - b->flight->n_logits - b->n_burst - 1);
        n = TDM_MIN(n, limits->max_logits * TDM_HISTORY_MAX - TDM_HISTORY_MAX - b->n_history);
        have = n > 0 ? tdm_scheduler_grow_spare(b->lane, q, n_positions + n) : n_positions;
        return TDM_MIN(n, have - TDM_MIN(have, n_positions));
}

/* Companions have free pages only. One that finds none is dropped. */
static void fill_drafts(struct build *b, uint32_t n_candidates, bool bursts)
{
        const struct tdm_steps_limits *limits = &b->lane->model->layout.limits;
        uint32_t most = TDM_MIN(limits->max_rows, tdm_scheduler_fit_rows(b->s, b->lane));
        uint32_t at;

        b->flight->reads = false;
        for (uint32_t i = 0; i < n_candidates && b->n_rows < most; i++) {
                struct sequence *q = b->s->candidates[i];
                uint32_t first, n, n_burst = 0;

                if (b->flight->n_seqs == limits->max_seqs || b->flight->n_logits + b->n_burst == limits->max_logits)
                        break;
                /* Pages of the prefix cache count as promised, so all pages are reserved first. */
                if (!q->looked_up && tdm_scheduler_grow_spare(b->lane, q, q->job->n_ids) == q->job->n_ids)
                        (void)tdm_scheduler_look_up(b->s, b->lane, q, b->bits);
                q->looked_up = true;
                first = q->n_issued;
                n = first + TDM_MIN(tdm_companion_rows(q), most - b->n_rows);
                n = tdm_scheduler_grow_spare(b->lane, q, n);
                if (n <= first) {
                        tdm_companion_lose(q, TDM_UNGUESSED_DRAFT_MEMORY);
                        continue;
                }
                if (bursts && n == q->job->n_ids)
                        n_burst = grow_for_burst(b, q, n);
                add_sequence(b, q, n - first, 0, n_burst);
                b->flight->reads = b->flight->reads || n - first > 1 + TDM_MAX_GUESSES;
        }
        at = b->flight->n_logits;
        for (uint32_t i = 0; i < b->flight->n_seqs; i++) {
                b->flight->seqs[i].first_burst = at;
                at += b->flight->seqs[i].n_burst;
        }
}

/* No worker can run this class, so its jobs end. */
static void fail_class(struct tdm_scheduler *s, const struct step_class *c, int r)
{
        const char *placement = tdm_placement_name(c->placement);
        struct tdm_error err;
        struct sequence *q;

        if (r == -EHOSTDOWN)
                tdm_error_set(&err, TDM_E_NO_WORKER,
                              "no worker can run model %s%s%s: off or quarantined (see `tandem status`; "
                              "`tandem restart` ends a quarantine)",
                              tdm_model_told_name(c->lane->model), placement[0] ? " with placement " : "", placement);
        else
                tdm_error_set(&err, TDM_E_INTERNAL, "cannot issue a step of model %s: %s",
                              tdm_model_told_name(c->lane->model), strerror(-r));
        tdm_list_for_each(q, &c->lane->active, struct sequence, active) {
                if (!tdm_class_has(s, c, q) || !has_work(q))
                        continue;
                if (q->is_draft)
                        tdm_companion_lose(q, TDM_UNGUESSED_DRAFT_LOST);
                else
                        tdm_job_finish(q->job, TDM_JOB_END_ERROR, &err);
        }
}

/* Begins a step in a free slot. */
static struct build build_begin(struct tdm_scheduler *s, struct lane *lane)
{
        struct tdm_model *model = lane->model;
        struct build b = { .s = s, .lane = lane };
        uint8_t *base = model->steps->base;

        while (lane->flights[b.slot].used)
                b.slot++;
        b.flight = &lane->flights[b.slot];
        b.flight->n_passes = b.flight->n_masks = 0;
        b.rows = tdm_steps_rows(base, &model->layout, b.slot);
        b.seqs = tdm_steps_seqs(base, &model->layout, b.slot);
        b.logits = tdm_steps_logits(base, &model->layout, b.slot);
        b.history = tdm_steps_history(base, &model->layout, b.slot);
        b.biases = tdm_steps_biases(base, &model->layout, b.slot);
        return b;
}

/* Another step may follow this one, because a prompt in it goes on. Companions are in one step at a time. */
static bool may_be_followed(const struct build *b)
{
        const struct flight *f = b->flight;

        /* A state is known when all of a step is done. */
        if (tdm_lane_has_state(b->lane))
                return false;
        for (uint32_t i = 0; b->share.relay && !f->seqs[0].seq->is_draft && i < f->n_seqs; i++)
                if (f->seqs[i].first + f->seqs[i].n_rows < f->seqs[i].seq->job->n_ids)
                        return true;
        return false;
}

static void write_head(const struct build *b, const struct flight *before, struct tdm_step_head *head)
{
        struct tdm_scheduler *s = b->s;

        head->step_id = ++s->last_step_id;
        head->epoch = tdm_fleet_epoch(s->fleet);
        head->n_rows = b->n_rows;
        head->n_seqs = b->flight->n_seqs;
        head->n_logits = b->flight->n_logits;
        head->n_history = b->n_history;
        head->n_biases = b->n_biases;
        head->n_pictures = b->n_pictures;
        head->marks = may_be_followed(b);
        head->after_step = before ? before->step_id : 0;
        head->after_slot = before ? (uint32_t)(before - b->lane->flights) : 0;
}

/* The masks that are there already. The others are made when the step is on its way. */
static void publish_masks(struct tdm_scheduler *s, struct lane *lane, struct flight *f, uint64_t step_id)
{
        f->wants_masks = false;
        f->step_id = step_id;
        for (uint32_t i = 0; i < f->n_seqs; i++) {
                struct flight_seq *fs = &f->seqs[i];

                if (fs->masked == MASK_NONE)
                        continue;
                if (tdm_scheduler_publish_known(s, lane, f, fs->first_logits, fs->seq->job))
                        fs->masked = MASK_EARLY;
                f->wants_masks = f->wants_masks || fs->masked == MASK_WANTED || fs->n_guesses > 0;
        }
}

static void take_off(struct tdm_scheduler *s, const struct step_class *c, const struct build *b,
                     const struct tdm_route *route, const struct tdm_step_head *head)
{
        uint32_t n_blocks = tdm_model_n_blocks(tdm_model_hparams(c->lane->model));
        struct flight *f = b->flight;

        f->used = true;
        f->probes = false;
        f->placement = tdm_class_plan(c);
        f->degraded = route->degraded;
        f->done = f->doomed = f->charged = false;
        f->relays = head->marks;
        f->step_id = head->step_id;
        f->after = head->after_step;
        f->n_rows = head->n_rows;
        f->workers = 0;
        for (uint32_t i = 0; i < n_blocks; i++)
                f->workers |= (uint8_t)(1u << (head->plan[i] == TDM_WORKER_NPU ? TDM_WORKER_NPU : TDM_WORKER_GPU));
        f->last_worker = head->plan[n_blocks - 1];
        f->paced = route->whole && s->load[route->worker] == 0;
        f->busy_ns = f->paced ? tdm_fleet_busy_ns(s->fleet, route->worker) : 0;
        f->issued_ns = tdm_scheduler_now(s);
        f->lone_ns = s->n_in_flight == 0 ? f->issued_ns : 0;
        for (unsigned w = 0; w < TDM_N_WORKERS; w++)
                s->load[w] += f->workers >> w & 1;
        for (uint32_t i = 0; i < f->n_seqs; i++) {
                struct sequence *q = f->seqs[i].seq;

                tdm_scheduler_note_bits(q, b->bits);
                q->in_flight++;
                q->n_issued = f->seqs[i].first + f->seqs[i].n_rows + f->seqs[i].n_burst;
                q->home = route->whole ? (uint8_t)(1 + route->worker) : 0;
        }
        c->lane->n_flights++;
        s->n_in_flight++;
        tdm_model_step_begin(c->lane->model);
}

/* The routes that a step of the class can take now. */
static uint32_t find_routes(struct tdm_scheduler *s, const struct step_class *c, struct tdm_route ret[2])
{
        struct tdm_placement_model model = {
                .hparams = tdm_model_hparams(c->lane->model),
                .asked = c->placement,
                .pace = &c->lane->pace,
        };
        struct tdm_placement_load load = { .max_steps = s->config.steps_in_flight };

        tdm_fleet_placement_workers(s->fleet, c->lane->model->id, &load.workers);
        model.measured = c->kept != TDM_PLACEMENT_ANY ? tdm_placement_measured(&load.workers, c->kept) :
                                                        tdm_fleet_measured(s->fleet, c->lane->model->id);
        memcpy(load.n_steps, s->load, sizeof(load.n_steps));
        return tdm_placement_choose(&model, &load, ret);
}

static struct tdm_share class_share(struct tdm_scheduler *s, const struct step_class *c, const struct tdm_route *route)
{
        struct tdm_placement_work work = { .max_rows = s->config.max_rows,
                                           .may_relay = !s->config.no_relay && !c->suspects &&
                                                        !tdm_lane_has_state(c->lane) };
        struct tdm_share share;
        struct sequence *q;

        tdm_list_for_each(q, &c->lane->active, struct sequence, active) {
                if (!tdm_class_has(s, c, q))
                        continue;
                if (sequence_is_decoding(q))
                        work.n_decode++;
                else
                        work.prompt_rows += sequence_pending_rows(q);
        }
        tdm_placement_share(&c->lane->pace, route, &work, &share);
        return share;
}

/* NO_ROWS: no sequence of the class can use this route now. HAD_TURN: a step was submitted, its rows of the file are
 * being read, or the class or its model has failed. -EAGAIN: the worker's ring is full. */
enum { NO_ROWS, HAD_TURN };
static int issue_on(struct tdm_scheduler *s, const struct step_class *c, const struct tdm_route *route)
{
        struct tdm_model *model = c->lane->model;
        const struct flight *before = NULL;
        struct tdm_step_head head = { 0 };
        uint32_t n_candidates;
        struct build b;
        int r;

        if (route->error < 0) {
                fail_class(s, c, route->error);
                return HAD_TURN;
        }
        b = build_begin(s, c->lane);
        memcpy(head.plan, route->plan, tdm_model_n_blocks(tdm_model_hparams(model)));
        b.bits = tdm_scheduler_bits(s, c, head.plan);
        b.share = class_share(s, c, route);
        if (c->drafts)
                fill_drafts(&b, collect_drafts(s, c), can_burst(&b, head.plan));
        else {
                n_candidates = collect(s, c, route, &b.share, &before);
                fill_rows(&b, n_candidates);
        }
        if (b.flight->n_seqs == 0)
                return NO_ROWS;
        /* The sequence that is in the flight before may have got no rows. Then this step follows none. */
        for (uint32_t i = 0; before; i++) {
                if (i == b.flight->n_seqs)
                        before = NULL;
                else if (b.flight->seqs[i].seq->in_flight)
                        break;
        }
        tdm_model_step_begin(model); /* its segments stay, should it fail */
        r = tdm_model_read_inputs(model, b.rows, b.n_rows,
                                  tdm_steps_inputs(model->steps->base, &model->layout, b.slot));
        if (r != 0)
                tdm_flight_drop(b.flight);
        tdm_model_step_end(model);
        if (r != 0)
                return HAD_TURN;
        write_head(&b, before, &head);
        publish_masks(s, c->lane, b.flight, head.step_id);
        r = tdm_fleet_submit(s->fleet, model->id, b.slot, &head);
        if (r < 0) {
                tdm_flight_drop(b.flight);
                if (r == -EAGAIN)
                        return r;
                fail_class(s, c, r);
                return HAD_TURN;
        }
        take_off(s, c, &b, route, &head);
        return HAD_TURN;
}

bool tdm_scheduler_issue(struct tdm_scheduler *s)
{
        uint32_t most = s->config.steps_in_flight > 0 ? s->config.steps_in_flight : TDM_N_WORKERS * TDM_STEP_SLOTS;
        uint64_t *tried[MAX_TRIED];
        unsigned n_tried = 0;
        struct step_class c;

        if (!s->fleet || s->held || s->n_in_flight >= most || !tdm_fleet_is_ready(s->fleet))
                return false;
        while (n_tried < MAX_TRIED && pick_class(s, tried, n_tried, &c)) {
                struct tdm_route routes[2];
                uint32_t n = find_routes(s, &c, routes);

                tried[n_tried++] = c.stamp;
                for (uint32_t i = 0; i < n; i++) {
                        int r = issue_on(s, &c, &routes[i]);

                        if (r < 0)
                                return false;
                        if (r == HAD_TURN) {
                                *c.stamp = ++s->stamp;
                                return true;
                        }
                }
        }
        return false;
}
