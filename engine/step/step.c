/* Steps: the layout of their segment, and the one place where a worker copies a step out of shared memory and checks
 * it.
 *
 * The peer may write while we read: every value is copied once, into memory of our own, and only the copy is looked at.
 * What passes here is safe to index with; whether it makes sense (two sequences that write one page) is for
 * tandemd to see to. */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>
#include "engine/step/step.h"

/* The public struct comes first: a step is handed around as that. */
struct step {
        struct tdm_step public;
        struct tdm_steps_limits limits;
};

/* The barrier keeps the compiler from looking at the peer's memory again instead of the copy. */
static void copy_once(void *to, const void *from, size_t size_bytes)
{
        memcpy(to, from, size_bytes);
        __asm__ volatile("" ::: "memory");
}

#define MAX_TABLES 65536u
#define MAX_VECTOR_WIDTH 65536u
#define MAX_MASK_WORDS 65536u /* of a vocabulary of four million */
/* of the longest context that tdm_hparams_check allows */
#define MAX_TABLE_ENTRIES ((UINT32_C(1) << 20) / TDM_KV_PAGE_TOKENS)

int tdm_steps_limits_check(const struct tdm_steps_limits *limits, struct tdm_error *err)
{
        const struct {
                const char *name;
                uint32_t value, min, max;
        } checks[] = {
                { "max_rows", limits->max_rows, 1, TDM_MAX_STEP_ROWS },
                { "max_seqs", limits->max_seqs, 1, TDM_MIN(limits->max_rows, TDM_MAX_STEP_SEQS) },
                { "max_logits", limits->max_logits, limits->max_seqs, TDM_MAX_STEP_LOGITS },
                { "n_tables", limits->n_tables, 1, MAX_TABLES },
                { "table_entries", limits->table_entries, 1, MAX_TABLE_ENTRIES },
                { "mask_words", limits->mask_words, 0, MAX_MASK_WORDS },
                { "input_bytes", limits->input_bytes, 0, TDM_MAX_INPUT_BYTES },
                { "vector_width", limits->vector_width, 0, MAX_VECTOR_WIDTH },
                { "max_pictures", limits->max_pictures, 0, limits->max_rows },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(checks); i++)
                if (checks[i].value < checks[i].min || checks[i].value > checks[i].max)
                        return tdm_error_set(err, TDM_E_PROTOCOL, "limits of steps: %s is %u, allowed is %u to %u",
                                             checks[i].name, checks[i].value, checks[i].min, checks[i].max);
        return 0;
}

void tdm_steps_layout(const struct tdm_steps_limits *limits, struct tdm_steps_layout *ret)
{
        struct tdm_steps_layout l = { .limits = *limits };
        uint64_t offset = TDM_ALIGN_UP((uint64_t)sizeof(struct tdm_step_head), UINT64_C(64));

        l.rows_offset = offset;
        offset += TDM_ALIGN_UP(limits->max_rows * (uint64_t)sizeof(struct tdm_step_row), UINT64_C(64));
        l.seqs_offset = offset;
        offset += TDM_ALIGN_UP(limits->max_seqs * (uint64_t)sizeof(struct tdm_step_seq), UINT64_C(64));
        l.pictures_offset = offset;
        offset += TDM_ALIGN_UP(limits->max_pictures * (uint64_t)sizeof(struct tdm_step_picture), UINT64_C(64));
        l.logits_offset = offset;
        offset += TDM_ALIGN_UP(limits->max_logits * (uint64_t)sizeof(struct tdm_step_logits), UINT64_C(64));
        l.history_offset = offset;
        offset += limits->max_logits * (uint64_t)TDM_HISTORY_MAX * sizeof(uint32_t);
        l.biases_offset = offset = TDM_ALIGN_UP(offset, UINT64_C(64));
        offset += limits->max_logits * (uint64_t)TDM_MAX_BIASES * sizeof(struct tdm_logit_bias);
        l.inputs_offset = offset = TDM_ALIGN_UP(offset, UINT64_C(64));
        offset += limits->max_rows * (uint64_t)limits->input_bytes;
        l.published_offset = offset = TDM_ALIGN_UP(offset, UINT64_C(64));
        offset += TDM_ALIGN_UP(limits->max_seqs * (uint64_t)sizeof(uint64_t), UINT64_C(64));
        l.masks_offset = offset;
        offset += (uint64_t)limits->max_seqs * limits->mask_words * sizeof(uint64_t);
        l.slot_bytes = TDM_ALIGN_UP(offset, UINT64_C(4096));

        offset = 4096;
        for (uint32_t i = 0; i < TDM_STEP_SLOTS; i++, offset += l.slot_bytes)
                l.slot_offset[i] = offset;
        l.tables_offset = offset;
        offset += (uint64_t)limits->n_tables * TDM_KV_GROUPS * limits->table_entries * sizeof(uint32_t);
        l.size_bytes = TDM_ALIGN_UP(offset, UINT64_C(4096));
        l.results_slot_bytes = TDM_ALIGN_UP(
                limits->max_logits * (sizeof(struct tdm_result) + limits->vector_width * (uint64_t)sizeof(float)),
                UINT64_C(4096));
        l.results_bytes = TDM_STEP_SLOTS * l.results_slot_bytes;
        *ret = l;
}

static_assert(sizeof(struct tdm_steps_header) <= 4096, "the header has a page of its own");

void tdm_steps_format(uint8_t *base, const struct tdm_steps_layout *layout)
{
        struct tdm_steps_header header = { .magic = TDM_STEPS_MAGIC,
                                           .abi = TDM_STEPS_ABI,
                                           .size_bytes = layout->size_bytes,
                                           .limits = layout->limits };

        memcpy(base, &header, sizeof(header));
}

int tdm_steps_check(const uint8_t *base, uint64_t size_bytes, struct tdm_steps_limits *ret, struct tdm_error *err)
{
        struct tdm_steps_header header;
        struct tdm_steps_layout layout;
        int r;

        if (size_bytes < sizeof(header))
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment of steps: %llu bytes are less than its header",
                                     (unsigned long long)size_bytes);
        copy_once(&header, base, sizeof(header));
        if (header.magic != TDM_STEPS_MAGIC || header.abi != TDM_STEPS_ABI)
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "segment of steps: magic %08x version %u, wanted %08x version %u "
                                     "(daemon and worker of different builds?)",
                                     header.magic, header.abi, TDM_STEPS_MAGIC, TDM_STEPS_ABI);
        r = tdm_steps_limits_check(&header.limits, err);
        if (r)
                return r;
        tdm_steps_layout(&header.limits, &layout);
        if (header.size_bytes != layout.size_bytes || size_bytes < layout.size_bytes)
                return tdm_error_set(err, TDM_E_PROTOCOL, "segment of steps: has %llu bytes, says %llu, needs %llu",
                                     (unsigned long long)size_bytes, (unsigned long long)header.size_bytes,
                                     (unsigned long long)layout.size_bytes);
        *ret = header.limits;
        return 0;
}

int tdm_step_new(struct tdm_step **ret, const struct tdm_steps_limits *limits)
{
        struct tdm_step *step = calloc(1, sizeof(struct step));
        bool complete;

        if (!step)
                return -ENOMEM;
        ((struct step *)step)->limits = *limits;
        step->rows = calloc(limits->max_rows, sizeof(*step->rows));
        step->seqs = calloc(limits->max_seqs, sizeof(*step->seqs));
        step->pictures = limits->max_pictures ? calloc(limits->max_pictures, sizeof(*step->pictures)) : NULL;
        step->logits = calloc(limits->max_logits, sizeof(*step->logits));
        step->history = calloc((size_t)limits->max_logits * TDM_HISTORY_MAX, sizeof(*step->history));
        step->biases = calloc((size_t)limits->max_logits * TDM_MAX_BIASES, sizeof(*step->biases));
        step->input_bytes = limits->input_bytes;
        step->inputs = limits->input_bytes ? calloc(limits->max_rows, limits->input_bytes) : NULL;
        step->bursts = calloc(limits->max_seqs, sizeof(*step->bursts));
        complete = step->rows && step->seqs && step->logits && step->history && step->biases && step->bursts &&
                   (step->inputs || !step->input_bytes) && (step->pictures || !limits->max_pictures);
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                step->tables[group] = calloc((size_t)limits->max_seqs * limits->table_entries, sizeof(uint32_t));
                complete = complete && step->tables[group];
        }
        if (!complete) {
                tdm_step_destroy(step);
                return -ENOMEM;
        }
        step->table_entries = limits->table_entries;
        step->mask_words = limits->mask_words;
        *ret = step;
        return 0;
}

void tdm_step_destroy(struct tdm_step *step)
{
        if (!step)
                return;
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                free(step->tables[group]);
        free(step->inputs);
        free(step->bursts);
        free(step->biases);
        free(step->history);
        free(step->logits);
        free(step->pictures);
        free(step->seqs);
        free(step->rows);
        free(step);
}

void tdm_step_destroyp(struct tdm_step **step)
{
        tdm_step_destroy(*step);
        *step = NULL;
}

#define REFUSE(err, fmt, ...) tdm_error_set((err), TDM_E_PROTOCOL, "step: " fmt, ##__VA_ARGS__)

static int check_head(const struct tdm_step_head *head, const struct tdm_steps_limits *limits, uint64_t step_id,
                      uint32_t epoch, const struct tdm_hparams *hp, struct tdm_error *err)
{
        uint32_t n_blocks = tdm_model_n_blocks(hp);

        if (head->step_id != step_id || head->epoch != epoch)
                return REFUSE(err, "slot holds step %llu of epoch %u, wanted is %llu of %u",
                              (unsigned long long)head->step_id, head->epoch, (unsigned long long)step_id, epoch);
        if (head->n_rows < 1 || head->n_rows > limits->max_rows)
                return REFUSE(err, "%u rows, allowed are 1 to %u", head->n_rows, limits->max_rows);
        if (head->n_seqs < 1 || head->n_seqs > limits->max_seqs)
                return REFUSE(err, "%u sequences, allowed are 1 to %u", head->n_seqs, limits->max_seqs);
        if (head->n_logits > limits->max_logits)
                return REFUSE(err, "%u rows of logits, at most %u are allowed", head->n_logits, limits->max_logits);
        if (head->n_pictures > limits->max_pictures)
                return REFUSE(err, "%u pictures, at most %u are allowed", head->n_pictures, limits->max_pictures);
        if (head->n_history > limits->max_logits * TDM_HISTORY_MAX)
                return REFUSE(err, "%u tokens of history, at most %u are allowed", head->n_history,
                              limits->max_logits * TDM_HISTORY_MAX);
        if (head->n_biases > limits->max_logits * TDM_MAX_BIASES)
                return REFUSE(err, "%u biases, at most %u are allowed", head->n_biases,
                              limits->max_logits * TDM_MAX_BIASES);
        for (uint32_t b = 0; b < n_blocks; b++)
                if (head->plan[b] >= TDM_N_WORKERS)
                        return REFUSE(err, "block %u is planned on worker %u, which there is not", b, head->plan[b]);
        if (head->plan[n_blocks - 1] != head->plan[n_blocks - 2])
                return REFUSE(err, "head and sample are planned on different workers");
        if (head->marks > 1 || head->after_step >= head->step_id || head->after_slot >= TDM_STEP_SLOTS)
                return REFUSE(err, "it follows step %llu in slot %u and gives marks %u",
                              (unsigned long long)head->after_step, head->after_slot, head->marks);
        for (uint32_t b = 1; (head->marks || head->after_step) && b < n_blocks; b++)
                if (head->plan[b] != head->plan[0])
                        return REFUSE(err, "it is in a relay with another and runs on both workers");
        return 0;
}

static int check_rows(const struct tdm_step *step, const struct tdm_steps_limits *limits, const struct tdm_hparams *hp,
                      struct tdm_error *err)
{
        uint32_t row = 0;

        for (uint32_t s = 0; s < step->head.n_seqs; s++) {
                const struct tdm_step_seq *seq = &step->seqs[s];
                uint32_t first;

                if (seq->table >= limits->n_tables)
                        return REFUSE(err, "sequence %u has page table %u of %u", s, seq->table, limits->n_tables);
                for (uint32_t other = 0; other < s; other++)
                        if (step->seqs[other].table == seq->table)
                                return REFUSE(err, "sequences %u and %u share page table %u", other, s, seq->table);
                if (seq->first_row != row || seq->n_rows < 1 || seq->n_rows > step->head.n_rows - row)
                        return REFUSE(err, "sequence %u has rows %u to %llu, wanted from %u and below %u", s,
                                      seq->first_row, (unsigned long long)seq->first_row + seq->n_rows, row,
                                      step->head.n_rows);
                if (seq->second_from >= seq->n_rows)
                        return REFUSE(err, "sequence %u has a second type from row %u on, and only %u rows", s,
                                      seq->second_from, seq->n_rows);
                first = step->rows[row].position;
                for (uint32_t i = 0; i < seq->n_rows; i++, row++) {
                        const struct tdm_step_row *r = &step->rows[row];

                        if (r->seq != s)
                                return REFUSE(err, "row %u says sequence %u and lies in %u", row, r->seq, s);
                        if (r->token >= hp->n_vocab)
                                return REFUSE(err, "row %u has token %u, the vocabulary has %u", row, r->token,
                                              hp->n_vocab);
                        if (r->position >= hp->n_ctx || r->position / TDM_KV_PAGE_TOKENS >= limits->table_entries)
                                return REFUSE(err, "row %u is at position %u, past the context or its page table", row,
                                              r->position);
                        if (r->position != first + i)
                                return REFUSE(err, "row %u is at position %u, wanted is %u", row, r->position,
                                              first + i);
                        if (r->logits != UINT32_MAX &&
                            (r->logits >= step->head.n_logits || step->logits[r->logits].row != row))
                                return REFUSE(err, "row %u wants logits %u, which are not its own", row, r->logits);
                }
        }
        if (row != step->head.n_rows)
                return REFUSE(err, "%u rows belong to no sequence", step->head.n_rows - row);
        return 0;
}

/* Behind check_rows(). Each picture's rows say so, and no others do. */
static int check_pictures(const struct tdm_step *step, struct tdm_error *err)
{
        uint32_t end = 0, n_rows = 0, n_said = 0;

        for (uint32_t p = 0; p < step->head.n_pictures; p++) {
                const struct tdm_step_picture *picture = &step->pictures[p];

                if (picture->first_row < end || picture->first_row >= step->head.n_rows || picture->n_rows < 1 ||
                    picture->n_rows > step->head.n_rows - picture->first_row)
                        return REFUSE(err, "picture %u has %u rows from %u, wanted from %u and below %u", p,
                                      picture->n_rows, picture->first_row, end, step->head.n_rows);
                end = picture->first_row + picture->n_rows;
                n_rows += picture->n_rows;
                for (uint32_t row = picture->first_row; row < end; row++) {
                        const struct tdm_step_row *r = &step->rows[row];

                        if (r->picture != p + 1 || r->token != 0 || r->seq != step->rows[picture->first_row].seq)
                                return REFUSE(err, "row %u is no row of picture %u", row, p);
                }
        }
        for (uint32_t row = 0; row < step->head.n_rows; row++)
                n_said += step->rows[row].picture != 0;
        if (n_said != n_rows)
                return REFUSE(err, "%u rows are of pictures, which have %u", n_said, n_rows);
        return 0;
}

static int check_logits(const struct tdm_step *step, const struct tdm_steps_limits *limits,
                        const struct tdm_hparams *hp, struct tdm_error *err)
{
        if (limits->mask_words && limits->mask_words != TDM_DIV_UP(hp->n_vocab, 64u))
                return REFUSE(err, "masks have %u words, a vocabulary of %u needs %u", limits->mask_words, hp->n_vocab,
                              TDM_DIV_UP(hp->n_vocab, 64u));
        for (uint32_t i = 0; i < step->head.n_logits; i++) {
                const struct tdm_step_logits *l = &step->logits[i];
                struct tdm_error why;

                if (l->row >= step->head.n_rows || step->rows[l->row].logits != i)
                        return REFUSE(err, "logits %u are of row %u, which does not want them", i, l->row);
                if (l->target != UINT32_MAX && l->target >= hp->n_vocab)
                        return REFUSE(err, "logits %u have target %u, the vocabulary has %u", i, l->target,
                                      hp->n_vocab);
                if (l->n_history > TDM_HISTORY_MAX || l->history_offset > step->head.n_history ||
                    l->n_history > step->head.n_history - l->history_offset)
                        return REFUSE(err, "logits %u have %u tokens of history from %u, there are %u", i, l->n_history,
                                      l->history_offset, step->head.n_history);
                if (l->n_repeated > l->n_history || l->n_counted > l->n_history || l->repeat_last > TDM_HISTORY_MAX)
                        return REFUSE(err, "logits %u use %u and %u tokens of a history of %u, and later %u", i,
                                      l->n_repeated, l->n_counted, l->n_history, l->repeat_last);
                if (l->n_biases > TDM_MAX_BIASES || l->bias_offset > step->head.n_biases ||
                    l->n_biases > step->head.n_biases - l->bias_offset)
                        return REFUSE(err, "logits %u have %u biases from %u, there are %u", i, l->n_biases,
                                      l->bias_offset, step->head.n_biases);
                if (l->mask > (limits->mask_words ? limits->max_seqs : 0))
                        return REFUSE(err, "logits %u have mask %u of %u, of %u words", i, l->mask, limits->max_seqs,
                                      limits->mask_words);
                if (tdm_sampling_check(&l->sampling, &why))
                        return REFUSE(err, "logits %u: %s", i, why.message);
        }
        for (uint32_t i = 0; i < step->head.n_history; i++)
                if (step->history[i] >= hp->n_vocab)
                        return REFUSE(err, "token %u of the history is %u, the vocabulary has %u", i, step->history[i],
                                      hp->n_vocab);
        for (uint32_t i = 0; i < step->head.n_biases; i++)
                if (step->biases[i].id >= hp->n_vocab || !(fabsf(step->biases[i].bias) <= TDM_MAX_BIAS))
                        return REFUSE(err, "bias %u is %g of token %u, the vocabulary has %u", i,
                                      (double)step->biases[i].bias, step->biases[i].id, hp->n_vocab);
        return 0;
}

/* A step with bursts runs wholly on one worker, because the other one has no copy of what is drawn. */
static int check_bursts(struct tdm_step *step, const struct tdm_steps_limits *limits, const struct tdm_hparams *hp,
                        struct tdm_error *err)
{
        const struct tdm_step_head *head = &step->head;
        uint32_t at = head->n_logits;

        step->n_burst = step->n_passes = 0;
        for (uint32_t s = 0; s < head->n_seqs; s++) {
                const struct tdm_step_seq *seq = &step->seqs[s];
                const struct tdm_step_row *row = &step->rows[seq->first_row + seq->n_rows - 1];
                const struct tdm_step_logits *l = row->logits == UINT32_MAX ? NULL : &step->logits[row->logits];

                step->bursts[s] = (struct tdm_step_burst){ seq->n_burst, at, 0 };
                if (seq->n_burst == 0)
                        continue;
                if (seq->n_burst > TDM_MAX_BURST || seq->n_burst > limits->max_logits - at)
                        return REFUSE(err, "sequence %u has a burst of %u tokens, at most %u are allowed", s,
                                      seq->n_burst, TDM_MIN(TDM_MAX_BURST, limits->max_logits - at));
                if (!l || l->mask || l->target != UINT32_MAX)
                        return REFUSE(err, "sequence %u has a burst behind a row that cannot go on", s);
                if (seq->n_burst >= hp->n_ctx - row->position ||
                    (row->position + seq->n_burst) / TDM_KV_PAGE_TOKENS >= limits->table_entries)
                        return REFUSE(err, "sequence %u has a burst of %u tokens from position %u, past the context", s,
                                      seq->n_burst, row->position);
                if (seq->n_burst > head->n_history - l->history_offset - l->n_history &&
                    tdm_sampling_looks_back(&l->sampling))
                        return REFUSE(err, "sequence %u has a burst of %u tokens and no room for its history", s,
                                      seq->n_burst);
                at += seq->n_burst;
                step->n_burst += seq->n_burst;
        }
        if (step->n_burst == 0)
                return 0;
        if (limits->input_bytes || limits->vector_width || head->marks || head->after_step)
                return REFUSE(err, "it has bursts and needs what only tandemd has");
        for (uint32_t b = 1; b < tdm_model_n_blocks(hp); b++)
                if (head->plan[b] != head->plan[0])
                        return REFUSE(err, "it has bursts and runs on both workers");
        for (uint32_t i = 1; i < head->n_logits; i++)
                if (step->logits[i].row <= step->logits[i - 1].row)
                        return REFUSE(err, "it has bursts, and its logits are not in the order of its rows");
        return 0;
}

/* Copies the entries that rows of sequence s will look at in this group, and checks them. */
static int read_table(struct tdm_step *step, const uint8_t *base, const struct tdm_steps_layout *layout, uint32_t s,
                      enum tdm_kv_group group, const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv,
                      struct tdm_error *err)
{
        const struct tdm_step_seq *seq = &step->seqs[s];
        const uint32_t *from = (const uint32_t *)(base + layout->tables_offset) +
                               ((uint64_t)seq->table * TDM_KV_GROUPS + group) * layout->limits.table_entries;
        uint32_t *to = step->tables[group] + (uint64_t)s * step->table_entries;
        uint32_t position = step->rows[seq->first_row].position;
        uint32_t first = tdm_window_first(hp, group, position) / TDM_KV_PAGE_TOKENS;
        uint32_t last = (position + seq->n_rows - 1 + seq->n_burst) / TDM_KV_PAGE_TOKENS;

        if (!kv->n_layers[group])
                return 0;
        copy_once(to + first, from + first, (last - first + 1) * sizeof(uint32_t));
        for (uint32_t i = first; i <= last; i++)
                if (to[i] >= kv->n_pages[group])
                        return REFUSE(err, "sequence %u has page %u of %u for positions from %u (%s layers)", s, to[i],
                                      kv->n_pages[group], i * TDM_KV_PAGE_TOKENS,
                                      group == TDM_KV_WINDOW ? "window" : "full");
        return 0;
}

/* What is read and what is written are pages that there are. In a model without states nobody looks at them. */
static int check_state(const struct tdm_step *step, uint32_t s, const struct tdm_kv_geometry *kv, struct tdm_error *err)
{
        const struct tdm_step_seq *seq = &step->seqs[s];
        const struct tdm_step_state *state = &seq->state;
        const uint32_t n_pages = kv->n_pages[TDM_KV_STATE];
        const bool begins = step->rows[seq->first_row].position == 0, keeps = state->kept != TDM_KV_NO_PAGE;

        if (!kv->n_layers[TDM_KV_STATE])
                return 0;
        if (begins ? state->from != TDM_KV_NO_PAGE : state->from >= n_pages)
                return REFUSE(err, "sequence %u reads state %u of %u at position %u", s, state->from, n_pages,
                              step->rows[seq->first_row].position);
        if (state->to >= n_pages || state->to == state->from)
                return REFUSE(err, "sequence %u reads state %u and writes state %u of %u", s, state->from, state->to,
                              n_pages);
        if (keeps ? state->kept >= n_pages || state->kept == state->to || state->kept == state->from ||
                            state->n_kept < 1 || state->n_kept >= seq->n_rows :
                    state->n_kept != 0)
                return REFUSE(err, "sequence %u keeps state %u of %u behind %u of %u rows", s, state->kept, n_pages,
                              state->n_kept, seq->n_rows);
        if (seq->n_burst > 0)
                return REFUSE(err, "sequence %u has a burst, and a state that cannot be cut back", s);
        return 0;
}

int tdm_step_read(struct tdm_step *step, const uint8_t *base, const struct tdm_steps_layout *layout, uint32_t slot,
                  uint64_t step_id, uint32_t epoch, const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv,
                  struct tdm_error *err)
{
        const struct tdm_steps_limits *limits = &((struct step *)step)->limits;
        const uint8_t *from;
        int r;

        assert(memcmp(limits, &layout->limits, sizeof(*limits)) == 0);
        if (slot >= TDM_STEP_SLOTS)
                return REFUSE(err, "slot %u of %u", slot, TDM_STEP_SLOTS);
        from = base + layout->slot_offset[slot];

        copy_once(&step->head, from, sizeof(step->head));
        r = check_head(&step->head, limits, step_id, epoch, hp, err);
        if (r)
                return r;
        copy_once(step->rows, from + layout->rows_offset, step->head.n_rows * sizeof(*step->rows));
        copy_once(step->seqs, from + layout->seqs_offset, step->head.n_seqs * sizeof(*step->seqs));
        if (step->head.n_pictures > 0)
                copy_once(step->pictures, from + layout->pictures_offset,
                          step->head.n_pictures * sizeof(*step->pictures));
        copy_once(step->logits, from + layout->logits_offset, step->head.n_logits * sizeof(*step->logits));
        if (step->inputs)
                copy_once(step->inputs, from + layout->inputs_offset, (size_t)step->head.n_rows * step->input_bytes);
        copy_once(step->history, from + layout->history_offset, step->head.n_history * sizeof(*step->history));
        copy_once(step->biases, from + layout->biases_offset, step->head.n_biases * sizeof(*step->biases));
        r = check_rows(step, limits, hp, err);
        if (r == 0)
                r = check_pictures(step, err);
        if (r)
                return r;
        step->published = (const _Atomic uint64_t *)(from + layout->published_offset);
        step->masks = (const uint64_t *)(from + layout->masks_offset);
        r = check_logits(step, limits, hp, err);
        if (r == 0)
                r = check_bursts(step, limits, hp, err);
        if (r)
                return r;
        for (uint32_t s = 0; s < step->head.n_seqs; s++) {
                r = check_state(step, s, kv, err);
                if (r)
                        return r;
                for (int group = 0; group < TDM_KV_GROUPS; group++) {
                        r = read_table(step, base, layout, s, (enum tdm_kv_group)group, hp, kv, err);
                        if (r)
                                return r;
                }
        }
        return 0;
}

/* ---- masks ---- */

/* Release: pairs with the acquire in tdm_step_mask(). */
void tdm_steps_publish(uint8_t *base, const struct tdm_steps_layout *layout, uint32_t slot, uint32_t mask,
                       uint64_t step_id, const uint64_t *words, uint32_t n_words)
{
        uint64_t *to = tdm_steps_mask(base, layout, slot, mask);
        uint32_t n = TDM_MIN(n_words, layout->limits.mask_words);

        if (words) {
                memcpy(to, words, n * sizeof(*words));
                memset(to + n, 0, (layout->limits.mask_words - n) * sizeof(*words));
        }
        atomic_store_explicit(tdm_steps_published(base, layout, slot, mask), words ? step_id : ~step_id,
                              memory_order_release);
}

/* A mask is late by microseconds, or tandemd has no CPU. */
#define MASK_SPINS 2000u
#define MASK_NAP_NS 50000

bool tdm_step_mask(const struct tdm_step *step, uint32_t i, uint64_t until_ns, const uint64_t **ret)
{
        uint32_t mask = step->logits[i].mask - 1;
        uint64_t id = step->head.step_id;

        *ret = NULL;
        if (step->logits[i].mask == 0)
                return true;
        for (unsigned round = 0;; round++) {
                uint64_t word = atomic_load_explicit(&step->published[mask], memory_order_acquire);

                if (word == id)
                        break;
                if (word == ~id)
                        return false;
                if (round < MASK_SPINS) {
                        tdm_cpu_relax();
                        continue;
                }
                if (tdm_now_ns() >= until_ns)
                        return false;
                nanosleep(&(struct timespec){ .tv_nsec = MASK_NAP_NS }, NULL);
        }
        *ret = step->masks + (size_t)mask * step->mask_words;
        return true;
}
