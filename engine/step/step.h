/* The `steps` segment of a model: what tandemd asks for and what comes back.
 *
 * A step is up to max_rows rows (tokens) from any mix of sequences: prefill chunks and decode rows together. tandemd
 * writes a step into one of TDM_STEP_SLOTS slots (a slot is one step in flight), posts a descriptor to the owner of its
 * first block, and hears when the last block is done. Each step carries its own plan (which worker runs each block), so
 * the split, all blocks on one worker, and a survivor's take-over are one mechanism. Several steps of disjoint
 * sequences may be in flight.
 *
 * tandemd writes, workers only read: the segment is mapped read-only by them. A worker copies a step out once
 * (tdm_step_read) and validates the copy; page tables too. Results go to a second segment, written by the worker that
 * runs the sample block. Where a mask did not come in time the result is TDM_NO_TOKEN, and tandemd has the row run
 * again. Results of bursts (burst.c) follow those of the rows: the first sequence's, then the next one's. Hidden rows
 * live in the `activations` segment: hidden [TDM_STEP_SLOTS][max_rows][residual_width] f32, the residual stream,
 * updated in place by each block.
 *
 * The rows of a picture are no tokens. A vision tower made them (engine/vision/tower.h), and they lie in the slot's
 * hidden rows before the step is posted, so the embed block leaves them alone. They are only computed with. A picture
 * is whole in a step, because its rows see each other on both sides, in every layer, whatever the layer's window.
 *
 * A sequence has a number, its `table`. Under it lies a page table for each group: entry i is the page of positions
 * i*TDM_KV_PAGE_TOKENS …, TDM_KV_NO_PAGE where there is none (not yet, or slid out). tandemd changes an entry only
 * while no step in flight can look at it. */
#ifndef TDM_ENGINE_STEP_STEP_H
#define TDM_ENGINE_STEP_STEP_H

#include "engine/step/kv.h"
#include "engine/sampling/sampler.h"

#define TDM_STEPS_MAGIC UINT32_C(0x50545354) /* "TSTP" */
#define TDM_STEPS_ABI 10u
#define TDM_STEP_SLOTS 4u
#define TDM_MAX_STEP_ROWS 4096u
#define TDM_MAX_STEP_SEQS 256u
#define TDM_MAX_STEP_LOGITS 512u
#define TDM_MAX_BURST 16u  /* tokens that a sequence draws beyond its rows (burst.c) */
#define TDM_CERTAINTIES 8u /* classes of how sure a model is of a token (tdm_step_certainty()) */

#define TDM_MAX_INPUT_BYTES (1u << 20)

enum tdm_worker_index { TDM_WORKER_NPU = 0, TDM_WORKER_GPU = 1, TDM_N_WORKERS = 2 };

struct tdm_step_row {
        uint32_t token;
        uint32_t position; /* absolute, 0-based */
        uint32_t seq;      /* index into the step's seqs */
        uint32_t logits;   /* index into the step's logits, or UINT32_MAX */
        uint32_t picture;  /* 1 + index into the step's pictures: one of its rows, and token is 0; 0: a token */
};

/* Consecutive rows of one sequence. */
struct tdm_step_picture {
        uint32_t first_row;
        uint32_t n_rows;
};

/* Where a sequence's state lies (kv.h): all TDM_KV_NO_PAGE in a model without. A step reads one page and writes others,
 * so it can be run again. Pages that a step writes are its sequence's alone. */
struct tdm_step_state {
        uint32_t from;   /* the state before the first row; TDM_KV_NO_PAGE where that is at position 0 */
        uint32_t to;     /* the one behind the last row */
        uint32_t kept;   /* the one behind n_kept rows; TDM_KV_NO_PAGE: none is wanted */
        uint32_t n_kept; /* 1 to n_rows - 1; 0 where none is wanted */
};

#define TDM_STEP_NO_STATE                                                                                              \
        (struct tdm_step_state)                                                                                        \
        {                                                                                                              \
                TDM_KV_NO_PAGE, TDM_KV_NO_PAGE, TDM_KV_NO_PAGE, 0                                                      \
        }

/* The rows of a sequence are consecutive in the step, with consecutive positions. */
struct tdm_step_seq {
        uint32_t table; /* number of the sequence: which page tables */
        uint32_t first_row;
        uint32_t n_rows;
        uint32_t n_burst; /* tokens to draw behind its last row's, each from a row of the one before (burst.c) */
        struct tdm_step_state state;
        /* A burst ends early behind its k-th token if the doubts of all k, by their classes, are more than most_doubt
         * [k - 1] together. All 0: it does not. */
        uint8_t doubts[TDM_CERTAINTIES], most_doubt[TDM_MAX_BURST];
        uint32_t second_from; /* its rows from this one on are of the second type of tokens; 0: none is */
};

/* One row whose logits are wanted: sampled, and/or scored against a target. */
struct tdm_step_logits {
        uint32_t row;
        uint32_t target; /* token whose log-probability is wanted, or UINT32_MAX */
        struct tdm_sampling sampling;
        uint32_t history_offset; /* into the step's history */
        uint32_t n_history;      /* <= TDM_HISTORY_MAX */
        uint32_t mask;           /* 1 + which of the slot's masks says what may be drawn; 0: all may */
        uint32_t n_repeated;     /* the last of the history, for the repetition penalty; <= n_history */
        uint32_t n_counted;      /* the last of it, for the frequency and presence penalties; <= n_history */
        uint32_t bias_offset;    /* into the step's biases, which rows may share */
        uint32_t n_biases;       /* <= TDM_MAX_BIASES */
        uint32_t repeat_last;    /* of a burst: to how many n_repeated grows, <= TDM_HISTORY_MAX */
};

struct tdm_step_head {
        uint64_t step_id;
        uint32_t epoch;
        uint32_t n_rows;
        uint32_t n_seqs;
        uint32_t n_logits;
        uint32_t n_history;
        /* A relay (engine/worker/relay.c): two pieces of one prompt run at once, as two steps on two workers. Each step
         * runs wholly on one worker. The later step follows the earlier one a layer behind. */
        uint32_t marks;      /* 1: a later step may follow; the worker sends a MARK after each attention block */
        uint64_t after_step; /* id of the step that this one follows: it does each attention block first; 0: none */
        uint32_t after_slot; /* that step's slot; 0 where after_step is 0 */
        uint32_t n_biases;
        uint32_t n_pictures;
        uint8_t plan[TDM_MAX_BLOCKS + 1]; /* block → enum tdm_worker_index */
};

struct tdm_steps_limits {
        uint32_t max_rows;      /* <= TDM_MAX_STEP_ROWS */
        uint32_t max_seqs;      /* in one step, <= TDM_MAX_STEP_SEQS */
        uint32_t max_logits;    /* <= TDM_MAX_STEP_LOGITS, >= max_seqs */
        uint32_t n_tables;      /* sequences that may have page tables */
        uint32_t table_entries; /* pages a sequence can have: ceil(n_ctx / TDM_KV_PAGE_TOKENS) */
        uint32_t mask_words;    /* of a mask: ceil(n_vocab / 64); 0: no row can have one */
        uint32_t input_bytes;   /* of the model's file that travel with each row; 0: none */
        uint32_t vector_width;  /* of a text's vector, where the model makes such; 0: it makes text */
        uint32_t max_pictures;  /* in one step; 0: the model takes none */
};

/* Header of the segment, followed by slots and tables; offsets are computed by tdm_steps_layout(), never read from it.
 */
struct tdm_steps_header {
        uint32_t magic;
        uint32_t abi;
        uint64_t size_bytes;
        struct tdm_steps_limits limits;
};

struct tdm_steps_layout {
        struct tdm_steps_limits limits;
        uint64_t slot_offset[TDM_STEP_SLOTS];
        uint64_t rows_offset, seqs_offset, logits_offset, history_offset; /* within a slot, after the head */
        uint64_t pictures_offset;                                         /* the same; [max_pictures] */
        uint64_t biases_offset;                                           /* the same; [max_logits][TDM_MAX_BIASES] */
        uint64_t inputs_offset;                                           /* the same; [max_rows][input_bytes] */
        uint64_t published_offset, masks_offset; /* _Atomic u64 [max_seqs]; u64 [max_seqs][mask_words] */
        uint64_t slot_bytes;
        uint64_t tables_offset;      /* u32 [n_tables][TDM_KV_GROUPS][table_entries] */
        uint64_t size_bytes;         /* of the steps segment */
        uint64_t results_slot_bytes; /* struct tdm_result [max_logits], then f32 [max_logits][vector_width] */
        uint64_t results_bytes;      /* of the results segment: TDM_STEP_SLOTS of them */
};

int tdm_steps_limits_check(const struct tdm_steps_limits *limits, struct tdm_error *err);
void tdm_steps_layout(const struct tdm_steps_limits *limits, struct tdm_steps_layout *ret);
void tdm_steps_format(uint8_t *base, const struct tdm_steps_layout *layout); /* tandemd: writes the header */
int tdm_steps_check(const uint8_t *base, uint64_t size_bytes, struct tdm_steps_limits *ret, struct tdm_error *err);

/* The vectors behind a slot's results. A model that makes them draws no tokens: its results are all zero. */
static inline float *tdm_steps_vectors(struct tdm_result *results, const struct tdm_steps_limits *limits)
{
        return (float *)(results + limits->max_logits);
}

/* Parts of a slot, in place. */
static inline struct tdm_step_head *tdm_steps_head(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (struct tdm_step_head *)(base + l->slot_offset[slot]);
}
static inline struct tdm_step_row *tdm_steps_rows(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (struct tdm_step_row *)(base + l->slot_offset[slot] + l->rows_offset);
}
static inline struct tdm_step_seq *tdm_steps_seqs(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (struct tdm_step_seq *)(base + l->slot_offset[slot] + l->seqs_offset);
}
static inline struct tdm_step_picture *tdm_steps_pictures(uint8_t *base, const struct tdm_steps_layout *l,
                                                          uint32_t slot)
{
        return (struct tdm_step_picture *)(base + l->slot_offset[slot] + l->pictures_offset);
}
static inline struct tdm_step_logits *tdm_steps_logits(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (struct tdm_step_logits *)(base + l->slot_offset[slot] + l->logits_offset);
}
static inline uint32_t *tdm_steps_history(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (uint32_t *)(base + l->slot_offset[slot] + l->history_offset);
}
static inline struct tdm_logit_bias *tdm_steps_biases(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return (struct tdm_logit_bias *)(base + l->slot_offset[slot] + l->biases_offset);
}
/* The parts of the file for the rows' tokens (engine/weights/weights.h, TDM_LAYOUT_FILE). */
static inline uint8_t *tdm_steps_inputs(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot)
{
        return base + l->slot_offset[slot] + l->inputs_offset;
}
static inline uint32_t *tdm_steps_table(uint8_t *base, const struct tdm_steps_layout *l, uint32_t table,
                                        enum tdm_kv_group group)
{
        return (uint32_t *)(base + l->tables_offset) +
               ((uint64_t)table * TDM_KV_GROUPS + group) * l->limits.table_entries;
}

/* Masks (engine/grammar/grammar.h) are made while the workers run the step already, so they are no part of the copy
 * that a worker makes of it. A worker looks for a mask when it is about to draw. tandemd tells for each mask that it is
 * there: the word is the step's id, or its complement where there will be none. */
static inline uint64_t *tdm_steps_mask(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot, uint32_t mask)
{
        return (uint64_t *)(base + l->slot_offset[slot] + l->masks_offset) + (uint64_t)mask * l->limits.mask_words;
}
static inline _Atomic uint64_t *tdm_steps_published(uint8_t *base, const struct tdm_steps_layout *l, uint32_t slot,
                                                    uint32_t mask)
{
        return (_Atomic uint64_t *)(base + l->slot_offset[slot] + l->published_offset) + mask;
}
/* words: NULL where there will be none. Of a mask with fewer than mask_words words the rest is zero, of one with more
 * the rest is left out. */
void tdm_steps_publish(uint8_t *base, const struct tdm_steps_layout *layout, uint32_t slot, uint32_t mask,
                       uint64_t step_id, const uint64_t *words, uint32_t n_words);

/* A worker's private, validated copy of a step. */
struct tdm_step {
        struct tdm_step_head head;
        struct tdm_step_row *rows;         /* [max_rows] */
        struct tdm_step_seq *seqs;         /* [max_seqs] */
        struct tdm_step_picture *pictures; /* [max_pictures] */
        struct tdm_step_logits *logits;    /* [max_logits] */
        uint32_t *history;                 /* [max_logits * TDM_HISTORY_MAX] */
        struct tdm_logit_bias *biases;     /* [max_logits * TDM_MAX_BIASES] */
        uint8_t *inputs;                   /* [max_rows][input_bytes]; its values are not checked: only computed with */
        uint32_t input_bytes;
        /* [n_seqs][table_entries], of this step's seqs in order; copied as far as needed */
        uint32_t *tables[TDM_KV_GROUPS];
        uint32_t table_entries;
        /* For each sequence: tokens still to be drawn behind that of this pass, and where its next result goes. */
        struct tdm_step_burst {
                uint32_t n_left, at, doubt;
        } * bursts;        /* [max_seqs] */
        uint32_t n_burst;  /* the sum of n_left; 0: this is the last pass */
        uint32_t n_passes; /* that were taken */
        /* tandemd's: see tdm_step_mask() */
        const _Atomic uint64_t *published; /* [max_seqs] */
        const uint64_t *masks;             /* [max_seqs][mask_words] */
        uint32_t mask_words;
};

int tdm_step_new(struct tdm_step **ret, const struct tdm_steps_limits *limits);
void tdm_step_destroy(struct tdm_step *step);
void tdm_step_destroyp(struct tdm_step **step);

/* Copies slot `slot` and checks it: counts within limits, rows consecutive, pictures whole, tokens < n_vocab,
 * positions < n_ctx, pages that a row will read or write exist and are < n_pages, plan entries known, history in range.
 * TDM_E_PROTOCOL with the reason; also when step_id or epoch are not the expected ones. */
int tdm_step_read(struct tdm_step *step, const uint8_t *base, const struct tdm_steps_layout *layout, uint32_t slot,
                  uint64_t step_id, uint32_t epoch, const struct tdm_hparams *hp, const struct tdm_kv_geometry *kv,
                  struct tdm_error *err);

/* Bursts: see burst.c. How sure a model is of a token, by the log-probability that it gives it: the class, from 0 for
 * not sure. */
uint8_t tdm_step_certainty(float logprob);
/* Whether a burst ends behind a token. n_before: tokens of it before this one, below TDM_MAX_BURST. *doubt: 0 at first.
 */
bool tdm_step_burst_ends(const struct tdm_step_seq *seq, uint32_t n_before, float logprob, uint32_t *doubt);
/* After a pass over the step: drawn [n_logits], the worker's own copy of what was drawn, goes to its places in the
 * results. */
void tdm_step_take(const struct tdm_step *step, const struct tdm_result *drawn, struct tdm_result *results);
/* The copy becomes the next pass: a row for each sequence that draws on, of the token that it has just drawn. 1: there
 * is such a pass; 0: all is drawn; -EPROTO: a token that cannot be. */
int tdm_step_next_pass(struct tdm_step *step, const struct tdm_result *drawn, const struct tdm_hparams *hp);

/* So long a worker waits for a mask that is late. tandemd makes nearly all in some microseconds, while a step runs. */
#define TDM_STEP_MASK_WAIT_NS (UINT64_C(5) * TDM_NSEC_PER_MSEC)
/* The mask of logits `i`; *ret NULL where there is none for them. It lies in shared memory: see tdm_sample(). False:
 * it did not come until until_ns (tdm_now_ns()), or there will be none, and no token is drawn. */
bool tdm_step_mask(const struct tdm_step *step, uint32_t i, uint64_t until_ns, const uint64_t **ret);

/* What moves logits `i` before a draw. */
static inline struct tdm_past tdm_step_past(const struct tdm_step *step, uint32_t i)
{
        const struct tdm_step_logits *l = &step->logits[i];

        return (struct tdm_past){ .history = step->history + l->history_offset,
                                  .n_history = l->n_history,
                                  .n_repeated = l->n_repeated,
                                  .n_counted = l->n_counted,
                                  .biases = step->biases + l->bias_offset,
                                  .n_biases = l->n_biases };
}

/* First position that a row at `position` may look at in a layer of this group. */
static inline uint32_t tdm_window_first(const struct tdm_hparams *hp, enum tdm_kv_group group, uint32_t position)
{
        return group == TDM_KV_WINDOW && position + 1 > hp->window ? position + 1 - hp->window : 0;
}

#endif
