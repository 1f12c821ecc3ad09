/* Jobs whose result is a vector, or scores in the place of one: of a text, of a query with a document, of two texts. */
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

int vector_take_classify(struct client *c, const Tandem__Classify *classify, struct tdm_job **ret,
                         struct tdm_error *err)
{
        const ProtobufCBinaryData *last = classify->pair ? &classify->second : &classify->text;
        struct tdm_job_params p = {
                .kind = TDM_JOB_CLASSIFY, .text = (const char *)last->data, .text_size = last->len, .raw = classify->raw
        };

        if (!classify->pair && classify->second.len > 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a second text is given, and no pair is asked for");
        if (classify->pair) {
                p.query = classify->text.len > 0 ? (const char *)classify->text.data : "";
                p.query_size = classify->text.len;
        }
        return take_params(&p, classify->priority, classify->deadline_ms, c, ret, err);
}
