/* Jobs whose result is a vector, or a score in the place of one: of a text, and of a query with a document. */
#include "daemon/faces/socket/private.h"

static int take_params(struct tdm_job_params *p, Tandem__Priority priority, uint32_t deadline_ms, struct client *c,
                       struct tdm_job **ret, struct tdm_error *err)
{
        p->identity = c->identity;
        p->account = c->account;
        p->options.deadline_ms = deadline_ms;
        p->options.priority =
                priority == TANDEM__PRIORITY__PRIORITY_BACKGROUND ? TDM_JOB_BACKGROUND : TDM_JOB_INTERACTIVE;
        return tdm_job_new(ret, p, err);
}

int vector_take_embed(struct client *c, const Tandem__Embed *embed, struct tdm_job **ret, struct tdm_error *err)
{
        struct tdm_job_params p = { .kind = TDM_JOB_EMBED,
                                    .text = (const char *)embed->text.data,
                                    .text_size = embed->text.len,
                                    .dimensions = embed->dimensions };

        return take_params(&p, embed->priority, embed->deadline_ms, c, ret, err);
}

int vector_take_rerank(struct client *c, const Tandem__Rerank *rerank, struct tdm_job **ret, struct tdm_error *err)
{
        struct tdm_job_params p = { .kind = TDM_JOB_RERANK,
                                    .query = (const char *)rerank->query.data,
                                    .query_size = rerank->query.len,
                                    .text = (const char *)rerank->document.data,
                                    .text_size = rerank->document.len };

        return take_params(&p, rerank->priority, rerank->deadline_ms, c, ret, err);
}
