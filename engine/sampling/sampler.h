/* Choosing a token from logits. Counter-based: the noise of a draw is a function of (seed, position, token) only, so
 * that a replayed, batched or moved job draws the same token.
 *
 * Order: mask, penalties over the past and biases, temperature, top-k, top-p, min-p, draw. The draw is the largest of
 * logit / temperature + noise (noise.h) among the tokens that are left. Ties go to the lower id everywhere; top-k and
 * top-p take tokens by falling logit, then rising id. Reported log-probabilities are of the model itself: log-softmax
 * of the raw logits (before mask, penalties, biases and temperature). Every sum has one order (given in sampler.c),
 * whatever the number of threads. Plain C, any thread, no allocation. */
#ifndef TDM_ENGINE_SAMPLING_SAMPLER_H
#define TDM_ENGINE_SAMPLING_SAMPLER_H

#include "engine/sampling/noise.h"

#define TDM_MAX_TOP 64u      /* alternatives reported for a position */
#define TDM_MAX_TOP_K 1024u  /* candidates that top-p and min-p choose among where top_k is 0 */
#define TDM_HISTORY_MAX 256u /* tokens the repetition penalty looks back on */
#define TDM_MAX_BIASES 512u  /* of a row */
#define TDM_MAX_BIAS 100.0f  /* as OpenAI's API has it; and the least is its negative */
#define TDM_MAX_MOVED (TDM_HISTORY_MAX + TDM_MAX_BIASES)
#define TDM_NO_TOKEN UINT32_MAX /* as a result's token: none was drawn, because the row's mask did not come */

struct tdm_sampling {
        float temperature;    /* 0: greedy */
        float top_p;          /* (0, 1]; 1: off */
        float min_p;          /* [0, 1); 0: off */
        float repeat_penalty; /* 1: off; > 0 */
        uint32_t top_k;       /* 0: off; more than TDM_MAX_TOP_K counts as that, and so does 0 beside top-p or min-p */
        uint32_t n_top;       /* alternatives to report, <= TDM_MAX_TOP */
        uint64_t seed;
        float frequency_penalty; /* 0: off; taken off a logit for each time that the token is in the counted past */
        float presence_penalty;  /* 0: off; taken off once if it is there at all */
};

/* What is added to a token's logit after the penalties. */
struct tdm_logit_bias {
        uint32_t id;
        float bias;
};

/* Penalties and biases of a draw, which change no reported log-probability. The history ends with the latest token. */
struct tdm_past {
        const uint32_t *history; /* [n_history] */
        uint32_t n_history;      /* <= TDM_HISTORY_MAX */
        uint32_t n_repeated;     /* the last of them, for the repetition penalty */
        uint32_t n_counted;      /* the last of them, for the frequency and presence penalties */
        uint32_t n_biases;       /* <= TDM_MAX_BIASES */
        const struct tdm_logit_bias *biases;
};

struct tdm_top {
        uint32_t id;
        float logprob;
};

struct tdm_result {
        uint32_t token;       /* the choice, or TDM_NO_TOKEN */
        float logprob;        /* its log-probability */
        float target_logprob; /* of the row's target token, NAN when it has none */
        uint32_t n_top;
        struct tdm_top top[TDM_MAX_TOP]; /* sorted by falling log-probability, then id */
};

/* Whether a draw looks at the history. */
static inline bool tdm_sampling_repeats(const struct tdm_sampling *s)
{
        return s->repeat_penalty != 1.0f;
}
static inline bool tdm_sampling_counts(const struct tdm_sampling *s)
{
        return s->frequency_penalty != 0.0f || s->presence_penalty != 0.0f;
}
static inline bool tdm_sampling_looks_back(const struct tdm_sampling *s)
{
        return tdm_sampling_repeats(s) || tdm_sampling_counts(s);
}

int tdm_sampling_check(const struct tdm_sampling *sampling, struct tdm_error *err); /* ranges, NaN */
size_t tdm_sampler_scratch_bytes(uint32_t n_vocab);
/* logits [n_vocab], left as they are; finite or -inf (NaN, +inf, or nothing but -inf gives -EDOM, as do maxima of other
 * logits). allowed [n_vocab / 64, rounded up]: the mask, bit id % 64 of word id / 64 of each token that may be chosen;
 * NULL: all may. -ENODATA where it allows none. It is read more than once and may change meanwhile. Alternatives and
 * target are not subject to it. position: absolute position of the token that is being chosen. past: NULL for none.
 * target: UINT32_MAX for none. scratch: tdm_sampler_scratch_bytes() bytes, 64-byte aligned. */
int tdm_sample(const float *logits, uint32_t n_vocab, const struct tdm_sampling *sampling, const uint64_t *allowed,
               const struct tdm_past *past, uint32_t position, uint32_t target, void *scratch, struct tdm_result *ret);

/* tdm_sample() in two: what is found by looking at all logits, and the choice. scan() is cheaper in parts, where other
 * threads have nothing to do; parts begin at multiples of TDM_SAMPLE_SUM_BLOCK. First the maxima of all parts: each
 * returns the greatest logit of the part, -inf where none is finite, NAN where one is NaN or +inf. Then the sums of all
 * parts, with max: the greatest of these, or NAN where one is. Then take_own() with the same max. */
void tdm_sample_scan(const float *logits, uint32_t n_vocab, void *scratch);
float tdm_sample_maxima(const float *logits, uint32_t n_vocab, uint32_t first, uint32_t n, void *scratch);
void tdm_sample_sums(const float *logits, uint32_t first, uint32_t n, float max, void *scratch);
void tdm_sample_take_own(float max, void *scratch);
int tdm_sample_finish(const float *logits, uint32_t n_vocab, const struct tdm_sampling *sampling,
                      const uint64_t *allowed, const struct tdm_past *past, uint32_t position, uint32_t target,
                      void *scratch, struct tdm_result *ret);

#define TDM_SAMPLE_MAX_BLOCK 64u
#define TDM_SAMPLE_SUM_BLOCK 256u
#define TDM_SAMPLE_LANES 16u
/* Instead of scan(), where the device that made the logits has computed these numbers, so that not all logits need
 * come here. maxima: the greatest of some of the logits each, of all together, NAN where one is NaN or +inf.
 * block_sums: of each TDM_SAMPLE_SUM_BLOCK logits the sum of e^(logit - greatest of all), in floats: lane i is the sum
 * of logits i, i + TDM_SAMPLE_LANES, … of the block, in this order, by the operations of exp_negative() in lanes.h;
 * then lane i takes lane i + 8, i + 4, i + 2 and i + 1, each time half of them. seen: the n_wanted blocks of
 * TDM_SAMPLE_MAX_BLOCK logits (or all) that have the greatest maxima, of equal ones the first, each once, in any
 * order; more do no harm. finish() reads no other logits than theirs, the target's and those that the past moves
 * (n_moved of them). With a mask every block is wanted, because the allowed tokens may lie in any. One scratch for
 * both; all of it is read until then.
 *
 * Without any filter every token can be drawn, and the greatest maxima do not tell where from. Then seen has the
 * n_wanted blocks (maybe none) and each block whose bound (tdm_noise_bounds(), with the greatest of all) is not below
 * the score of some token that the past does not move. tdm_sample_noise() says whether it is so, and with which
 * noise. */
bool tdm_sample_noise(const struct tdm_sampling *sampling, bool masked, uint32_t position, struct tdm_noise *ret);
uint32_t tdm_sample_n_wanted(const struct tdm_sampling *sampling, bool masked, uint32_t n_vocab, uint32_t n_moved);
/* The tokens whose logits the past moves, in any order and maybe more than once. ret_ids [TDM_MAX_MOVED]. */
uint32_t tdm_sample_moved(const struct tdm_sampling *sampling, const struct tdm_past *past, uint32_t n_vocab,
                          uint32_t *ret_ids);
void tdm_sample_take(const float *maxima, uint32_t n_maxima, const float *block_sums, const uint32_t *seen,
                     uint32_t n_seen, void *scratch);

#endif
