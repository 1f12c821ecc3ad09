/* See drawn.h. All but the last token are taken first. Then the grammar catches up with them on a thread, since that
 * may take long, and the last one is held against its mask. So a job that ends with the last one knows whether its text
 * is whole. */
#include "daemon/jobs/job.h"

#include "common/id-list.h"
#include "common/utf8.h"

#define TOKENS_AT_ONCE 64u /* between looks at the clock */

int tdm_job_drawn_init(struct tdm_job_drawn *drawn, const struct tdm_job_options *o, struct tdm_error *err)
{
        const char *at = o->drawn;
        uint32_t n = tdm_id_list_length(at);

        if (n > TDM_CTX_MAX)
                return tdm_error_set(err, TDM_E_TOO_LONG, "drawn: %u tokens; no model takes more than %u", n,
                                     TDM_CTX_MAX);
        drawn->ids = malloc(n * sizeof(*drawn->ids));
        if (!drawn->ids)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                const char *from = at;

                if (!tdm_id_list_next(&at, &drawn->ids[i]))
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "drawn: number %u of the list is no token id: '%.*s'; give ids with "
                                             "commas between",
                                             i + 1, TDM_UTF8_CUT(from, 20));
        }
        drawn->n = n;
        drawn->may_degrade = o->may_degrade;
        snprintf(drawn->numerics_id, sizeof(drawn->numerics_id), "%s", o->drawn_numerics ? o->drawn_numerics : "");
        return 0;
}

int tdm_job_drawn_check(const struct tdm_job_drawn *drawn, uint32_t n_vocab, uint32_t max_tokens, struct tdm_error *err)
{
        for (uint32_t i = 0; i < drawn->n; i++)
                if (drawn->ids[i] >= n_vocab)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "drawn: token id %u (number %u) is not in the vocabulary of %u",
                                             drawn->ids[i], i + 1, n_vocab);
        if (drawn->n > max_tokens)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "drawn: %u tokens, and the job may have %u (max-tokens, or what the context "
                                     "leaves)",
                                     drawn->n, max_tokens);
        return 0;
}

static int refuse_grammar(const struct tdm_job *job, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "drawn: the %u tokens break what the text has to follow (%s)",
                             job->drawn.n, "json-schema, grammar, regex or tools");
}

/* Takes the next token. */
static int take_next(struct tdm_job *job, struct tdm_error *err)
{
        struct tdm_job_drawn *d = &job->drawn;
        struct tdm_job_token token;
        uint32_t at = d->n_taken, id = d->ids[at];
        bool told, last = at + 1 == d->n;

        if (job->text.constraint && tdm_constraint_is_overdue(job->text.constraint, id))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "drawn: token id %u (number %u) cannot be: the thought ends there "
                                     "(thinking-budget)",
                                     id, at + 1);
        d->n_taken++;
        told = tdm_job_take_token(job, id, 0, 0, &token);
        if (job->finished && job->end == TDM_JOB_END_ERROR) {
                *err = job->error;
                return job->error.code;
        }
        if (!told)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "drawn: token id %u (number %u) ends the text, and is no part of it", id, at + 1);
        if (job->finished && !last)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "drawn: the text ends at token %u of %u", at + 1, d->n);
        return 0;
}

/* Whether the last token may be: 0, -EBUSY: its mask takes a thread. */
static int last_is_allowed(struct tdm_job *job, struct tdm_error *err)
{
        uint32_t id = job->drawn.ids[job->drawn.n - 1];
        const uint64_t *words;
        int r;

        r = tdm_constraint_mask(job->text.constraint, job->ids + job->prompt_tokens, job->generated,
                                TDM_CONSTRAINT_QUICK, &words, err);
        if (r == -EAGAIN)
                return -EBUSY;
        if (r != 0 || id / 64 >= tdm_constraint_n_words(job->text.constraint) || !(words[id / 64] >> id % 64 & 1))
                return refuse_grammar(job, err);
        return 0;
}

int tdm_job_take_drawn(struct tdm_job *job, uint64_t until_ns, struct tdm_error *err)
{
        struct tdm_job_drawn *d = &job->drawn;
        int r = 0;

        while (r == 0 && d->n_taken + 1 < d->n) {
                if (d->n_taken % TOKENS_AT_ONCE == 0 && tdm_now_ns() >= until_ns)
                        return -EAGAIN;
                r = take_next(job, err);
        }
        if (r == 0 && tdm_job_has_grammar(job))
                r = last_is_allowed(job, err);
        if (r == 0)
                r = take_next(job, err);
        if (r != 0)
                return r;
        free(steal_ptr(&d->ids));
        tdm_job_settle_charge(job);
        job->stats.first_token_ns = job->stats.last_token_ns = 0; /* it has made none itself */
        return 0;
}

void tdm_job_refuse_drawn(struct tdm_job *job, const struct tdm_error *err)
{
        tdm_job_finish(job, TDM_JOB_END_ERROR, err);
        job->end = TDM_JOB_END_ERROR;
        job->error = *err;
}
