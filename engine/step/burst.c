/* Bursts: a sequence draws several tokens in one step, each from a row of the token before it. So a draft model guesses
 * several tokens ahead without a trip to tandemd for each.
 *
 * The step runs in passes on the worker's copy. The first has the rows that tandemd wrote. Each later one has one row
 * for each sequence that draws on: of the token that it has just drawn, at the next position, with the same sampling
 * and a history that ends with this token. So a token is the one that a step of its own would have drawn. The copy was
 * checked with the pages and positions of all passes. What is drawn is read from the worker's own memory, never from
 * the segment of results, which the other worker may write too.
 *
 * Passes keep the order of the sequences, and those that are done drop out. n_burst is 0 in the last pass.
 *
 * A burst ends early where its tokens are so unsure that nobody would look at further ones. tandemd says with each step
 * what a class of certainty counts. So it knows from the results where a burst has ended. */
#include "engine/step/step.h"

#include <assert.h>

/* The bounds between classes, as logarithms of 0.1, 0.2, 0.3, 0.45, 0.6, 0.8 and 0.95. */
static const float class_ends[TDM_CERTAINTIES - 1] = { -2.303f, -1.609f, -1.204f, -0.799f, -0.511f, -0.223f, -0.051f };

uint8_t tdm_step_certainty(float logprob)
{
        uint8_t i = 0;

        while (i < TDM_CERTAINTIES - 1 && logprob >= class_ends[i])
                i++;
        return i;
}

bool tdm_step_burst_ends(const struct tdm_step_seq *seq, uint32_t n_before, float logprob, uint32_t *doubt)
{
        *doubt += seq->doubts[tdm_step_certainty(logprob)];
        return *doubt > seq->most_doubt[n_before];
}

void tdm_step_take(const struct tdm_step *step, const struct tdm_result *drawn, struct tdm_result *results)
{
        for (uint32_t i = 0; i < step->head.n_logits; i++) {
                uint32_t to = step->n_passes == 0 ? i : step->bursts[i].at - 1;
                uint32_t n_top = TDM_MIN(drawn[i].n_top, TDM_MAX_TOP);

                memcpy(&results[to], &drawn[i], offsetof(struct tdm_result, top) + n_top * sizeof(drawn[i].top[0]));
        }
}

/* The token is the latest of its row's past. */
static void look_back(struct tdm_step *step, struct tdm_step_logits *l, uint32_t token)
{
        uint32_t end = l->history_offset + l->n_history;

        if (!tdm_sampling_looks_back(&l->sampling))
                return;
        step->history[end++] = token;
        if (tdm_sampling_repeats(&l->sampling))
                l->n_repeated = TDM_MIN(l->n_repeated + 1, l->repeat_last);
        if (tdm_sampling_counts(&l->sampling))
                l->n_counted = TDM_MIN(l->n_counted + 1, TDM_HISTORY_MAX);
        l->n_history = TDM_MAX(l->n_repeated, l->n_counted);
        l->history_offset = end - l->n_history;
}

int tdm_step_next_pass(struct tdm_step *step, const struct tdm_result *drawn, const struct tdm_hparams *hp)
{
        uint32_t n = 0;

        if (step->n_burst == 0)
                return 0;
        for (uint32_t s = 0; s < step->head.n_seqs; s++) {
                struct tdm_step_seq seq = step->seqs[s];
                struct tdm_step_burst burst = step->bursts[s];
                struct tdm_step_row row = step->rows[seq.first_row + seq.n_rows - 1];

                if (burst.n_left == 0)
                        continue;
                assert(n <= row.logits && n <= s);
                if (drawn[row.logits].token >= hp->n_vocab)
                        return -EPROTO;
                if (tdm_step_burst_ends(&seq, step->n_passes, drawn[row.logits].logprob, &burst.doubt)) {
                        step->n_burst -= burst.n_left;
                        continue;
                }
                step->logits[n] = step->logits[row.logits];
                step->logits[n].row = n;
                look_back(step, &step->logits[n], drawn[row.logits].token);
                step->rows[n] = (struct tdm_step_row){ drawn[row.logits].token, row.position + 1, n, n };
                seq.first_row = n;
                seq.n_rows = 1;
                seq.n_burst = 0;
                step->seqs[n] = seq;
                step->bursts[n] = (struct tdm_step_burst){ burst.n_left - 1, burst.at + 1, burst.doubt };
                for (int g = 0; g < TDM_KV_GROUPS && n != s; g++)
                        memcpy(step->tables[g] + (size_t)n * step->table_entries,
                               step->tables[g] + (size_t)s * step->table_entries,
                               step->table_entries * sizeof(step->tables[g][0]));
                step->n_burst--;
                n++;
        }
        step->head.n_rows = step->head.n_seqs = step->head.n_logits = n;
        step->head.n_pictures = 0;
        step->n_passes++;
        return n > 0;
}
