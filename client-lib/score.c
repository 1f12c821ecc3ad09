/* What a score job collects: chunks of positions in order, checked so that the arrays handed out are dense and whole.
 */
#include "client-lib/job.h"

static int grow_array(void **array, size_t n, size_t item_bytes)
{
        void *p = realloc(*array, n && item_bytes ? n * item_bytes : 1);

        if (!p)
                return -ENOMEM;
        *array = p;
        return 0;
}

static int reserve_scores(struct score_buf *s, size_t n)
{
        size_t capacity = TDM_MAX(n, s->capacity * 2);

        if (n <= s->capacity)
                return 0;
        if (grow_array((void **)&s->nll, capacity, sizeof(*s->nll)) < 0 ||
            grow_array((void **)&s->n_top, capacity, sizeof(*s->n_top)) < 0 ||
            grow_array((void **)&s->top_ids, capacity, s->top * sizeof(*s->top_ids)) < 0 ||
            grow_array((void **)&s->top_logprobs, capacity, s->top * sizeof(*s->top_logprobs)) < 0)
                return -ENOMEM;
        s->capacity = capacity;
        return 0;
}

const char *score_add_chunk(struct tandem_job *job, const Tandem__ScoreChunk *chunk)
{
        struct score_buf *s = &job->score;

        if (chunk->first != s->n)
                return "scored positions came out of order";
        if (chunk->n_ids != chunk->n_positions)
                return "a chunk of scores has not as many ids as positions";
        if (chunk->n_positions > LIB_MAX_TOKENS - s->n ||
            (s->n_expected > 0 && chunk->n_positions > s->n_expected - s->n))
                return "more scored positions came than there are ids";
        if (reserve_scores(s, s->n + chunk->n_positions) < 0 || id_buf_add(&job->ids, chunk->ids, chunk->n_ids) < 0)
                return "there are more scores than fit into memory";
        for (size_t i = 0; i < chunk->n_positions; i++, s->n++) {
                const Tandem__ScoredPosition *p = chunk->positions[i];

                if (p->n_top_ids != p->n_top_logprobs || p->n_top_ids > s->top)
                        return "a scored position has a wrong number of alternatives";
                s->nll[s->n] = p->nll;
                s->n_top[s->n] = (uint32_t)p->n_top_ids;
                for (size_t k = 0; k < s->top; k++) {
                        s->top_ids[s->n * s->top + k] = k < p->n_top_ids ? p->top_ids[k] : 0;
                        s->top_logprobs[s->n * s->top + k] = k < p->n_top_ids ? p->top_logprobs[k] : 0;
                }
        }
        return NULL;
}

const char *score_finish(struct tandem_job *job)
{
        struct score_buf *s = &job->score;

        if (s->n == 0 || (s->n_expected > 0 && s->n != s->n_expected))
                return "a score job ended before all positions were scored";
        job->scores = (struct tandem_scores){
                .n = s->n,
                .ids = job->ids.data,
                .nll = s->nll,
                .top = s->top,
                .n_top = s->n_top,
                .top_ids = s->top_ids,
                .top_logprobs = s->top_logprobs,
        };
        return NULL;
}

void score_deinit(struct score_buf *s)
{
        free(s->nll);
        free(s->n_top);
        free(s->top_ids);
        free(s->top_logprobs);
}
