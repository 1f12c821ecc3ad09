/* From a job's text, chat and pictures to ids. On any thread: the job is only read. */
#include "daemon/jobs/job.h"

/* Sets the template's options of thinking as the job wants them. TDM_E_UNSUPPORTED: the model cannot do it. */
static int choose_thinking(enum tdm_thinking wanted, const struct tdm_chat *chat, struct tdm_chat_options *options,
                           struct tdm_error *err)
{
        static const enum tdm_chat_effort efforts[] = { [TDM_THINKING_LOW] = TDM_CHAT_EFFORT_LOW,
                                                        [TDM_THINKING_MEDIUM] = TDM_CHAT_EFFORT_MEDIUM,
                                                        [TDM_THINKING_HIGH] = TDM_CHAT_EFFORT_HIGH };
        enum tdm_chat_thoughts thoughts = tdm_chat_thoughts_of(chat);

        if (wanted == TDM_THINKING_OFF && thoughts > TDM_CHAT_THOUGHTS_NONE && thoughts != TDM_CHAT_THOUGHTS_SWITCH)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "thinking: off is not possible, this model always thinks%s",
                                     thoughts == TDM_CHAT_THOUGHTS_EFFORT ? "; ask for low" : "");
        if (wanted > TDM_THINKING_OFF && thoughts == TDM_CHAT_THOUGHTS_NONE)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "thinking: the model's chat template has no form for thoughts");
        if (wanted >= TDM_THINKING_LOW && tdm_chat_reads(chat, "reasoning_effort"))
                options->effort = efforts[wanted];
        if (wanted != TDM_THINKING_AUTO && thoughts == TDM_CHAT_THOUGHTS_SWITCH)
                options->thinking = wanted == TDM_THINKING_OFF ? TDM_CHAT_THINK_OFF : TDM_CHAT_THINK_ON;
        return 0;
}

/* Ids of the prompt; n, which may be more than there is room for, or an error of the tokenizer. */
static ssize_t encode_text(const struct tdm_job *job, const char *text, size_t size,
                           const struct tdm_tokenizer *tokenizer, struct tdm_encode_budget *budget, uint32_t *ids,
                           size_t capacity, uint32_t *ret_second)
{
        const struct tdm_job_prompt *p = &job->prompt;
        unsigned flags = job->kind == TDM_JOB_GENERATE ? TDM_TOKENIZE_SPECIAL :
                         tdm_job_wants_vector(job)     ? TDM_TOKENIZE_EOS :
                                                         0;

        if (p->is_pair)
                return tdm_tokenizer_encode_pair(tokenizer, p->text, p->query_size, p->text + p->query_size,
                                                 p->text_size - p->query_size, budget, ids, capacity, ret_second);
        budget->steps = TDM_ENCODE_STEPS(size);
        return tdm_tokenizer_encode_within(tokenizer, text, size, TDM_TOKENIZE_BOS | flags, budget, ids, capacity);
}

const char *tdm_job_prompt_name(const struct tdm_job *job)
{
        return job->kind == TDM_JOB_RERANK ? "the query with its document" :
               tdm_job_wants_vector(job)   ? "the text" :
                                             "the prompt";
}

static int check_size(size_t size, const char *what, const struct tdm_hparams *hp, struct tdm_error *err)
{
        if (size <= (uint64_t)TDM_PROMPT_BYTES_PER_TOKEN * hp->n_ctx)
                return 0;
        return tdm_error_set(err, TDM_E_TOO_LONG,
                             "%s has %zu bytes; a model with a context of %u tokens takes at most %llu", what, size,
                             hp->n_ctx, (unsigned long long)TDM_PROMPT_BYTES_PER_TOKEN * hp->n_ctx);
}

static int render(const struct tdm_job *job, const struct tdm_chat *chat, const struct tdm_hparams *hp,
                  struct tdm_chat_prompt *ret, struct tdm_error *err)
{
        struct tdm_chat_options options = { .tools = tdm_constraint_tools(job->text.constraint),
                                            .variables = job->prompt.variables };
        int r;

        r = choose_thinking((enum tdm_thinking)job->request.options.thinking, chat, &options, err);
        if (r == 0)
                r = tdm_chat_render(chat, job->prompt.messages, job->prompt.n_messages, &options, ret, err);
        if (r != 0)
                return r;
        r = check_size(ret->size, "the prompt that the chat template makes", hp, err);
        return r == 0 && job->prompt.pictures.n > 0 ? tdm_picture_files_wrap(&job->prompt.pictures, ret, err) : r;
}

/* The count of tokens alone says whether the prompt fits, so there is never need of room for more than a context.
 * ret_prompt: what a chat became; NULL: nobody asks. */
static int encode(const struct tdm_job *job, const struct tdm_tokenizer *tokenizer, const struct tdm_chat *chat,
                  const struct tdm_hparams *hp, struct tdm_chat_prompt *ret_prompt, struct tdm_job_encoded *ret,
                  struct tdm_error *err)
{
        struct tdm_encode_budget budget = { .cancelled = &job->prompt.cancel_encoding };
        _cleanup_(tdm_chat_prompt_deinit) struct tdm_chat_prompt prompt = { .size = job->prompt.text_size };
        _cleanup_(freep) uint32_t *ids = NULL;
        size_t capacity;
        ssize_t n;
        int r;

        r = check_size(job->prompt.text_size, tdm_job_prompt_name(job), hp, err);
        if (r == 0 && job->prompt.is_chat)
                r = render(job, chat, hp, &prompt, err);
        else if (r == 0 && job->prompt.pictures.n > 0)
                r = tdm_picture_files_write(&job->prompt.pictures, job->prompt.text, job->prompt.text_size,
                                            &prompt.text, &prompt.size);
        if (r != 0)
                return r < 0 ? tdm_error_set(err, r, "cannot hold the prompt: %s", strerror(-r)) : r;
        if (job->prompt.is_pair)
                prompt.size += tdm_tokenizer_pair_bytes(tokenizer);
        capacity = TDM_MIN(prompt.size + 16, (size_t)hp->n_ctx + 1);
        ids = malloc(capacity * sizeof(*ids));
        if (!ids)
                return tdm_error_set(err, -ENOMEM, "out of memory for the prompt's tokens");
        budget.steps = TDM_ENCODE_SPANS_STEPS(prompt.size);
        n = job->prompt.is_chat ? tdm_chat_encode(chat, &prompt, &budget, ids, capacity) :
                                  encode_text(job, prompt.text ? prompt.text : job->prompt.text, prompt.size, tokenizer,
                                              &budget, ids, capacity, &ret->second_from);
        if (n < 0)
                return tdm_error_set(err, (int)n, "cannot tokenize the prompt: %s", strerror((int)-n));
        if ((uint64_t)n > hp->n_ctx)
                return tdm_error_set(err, TDM_E_TOO_LONG, "%s has %zd tokens; the model's context is %u",
                                     tdm_job_prompt_name(job), n, hp->n_ctx);
        if (job->prompt.pictures.n > 0)
                r = tdm_picture_files_find(&job->prompt.pictures, tdm_chat_tokenizer(chat), ids, (uint32_t)n,
                                           ret->places, err);
        if (r != 0)
                return r;
        ret->ids = steal_ptr(&ids);
        ret->capacity = (uint32_t)capacity;
        ret->n_ids = (uint32_t)n;
        if (ret_prompt) {
                *ret_prompt = prompt;
                prompt = (struct tdm_chat_prompt){ 0 };
        }
        return 0;
}

void tdm_job_encode(const struct tdm_job *job, const struct tdm_tokenizer *tokenizer, const struct tdm_chat *chat,
                    const struct tdm_hparams *hp, struct tdm_job_encoded *ret)
{
        *ret = (struct tdm_job_encoded){ 0 };
        ret->r = encode(job, tokenizer, chat, hp, NULL, ret, &ret->error);
}

void tdm_job_encoded_deinit(struct tdm_job_encoded *e)
{
        free(steal_ptr(&e->ids));
        free(steal_ptr(&e->pictures));
        free(steal_ptr(&e->picture_rows));
}

int tdm_job_check_length(const struct tdm_job *job, const struct tdm_job_encoded *e, uint32_t n_rows,
                         const struct tdm_hparams *hp, struct tdm_error *err)
{
        uint64_t n_ids = (uint64_t)job->prompt.pictures.n * n_rows + e->n_ids;

        return n_ids > hp->n_ctx ? tdm_error_set(err, TDM_E_TOO_LONG,
                                                 "the prompt has %llu tokens, of which %u are of each picture; the "
                                                 "model's context is %u",
                                                 (unsigned long long)n_ids, n_rows, hp->n_ctx) :
                                   0;
}

int tdm_job_place_pictures(const struct tdm_job *job, struct tdm_job_encoded *e,
                           const uint8_t (*hashes)[TDM_PICTURE_HASH_BYTES], uint32_t n_rows, uint32_t width,
                           float *rows, struct tdm_error *err)
{
        uint32_t n = (uint32_t)job->prompt.pictures.n, from = 0, at = 0;
        uint64_t n_ids = (uint64_t)n * n_rows + e->n_ids;
        _cleanup_(freep) uint32_t *ids = NULL;

        e->picture_rows = rows;
        ids = malloc(n_ids * sizeof(*ids));
        e->pictures = calloc(n, sizeof(*e->pictures));
        if (!ids || !e->pictures)
                return tdm_error_set(err, -ENOMEM, "out of memory for the prompt's tokens");
        for (uint32_t i = 0; i < n; i++) {
                struct tdm_job_picture *p = &e->pictures[i];

                memcpy(ids + at, e->ids + from, (e->places[i] - from) * sizeof(*ids));
                at += e->places[i] - from;
                from = e->places[i];
                *p = (struct tdm_job_picture){ .first = at,
                                               .n_rows = n_rows,
                                               .rows = rows + (size_t)i * n_rows * width };
                memcpy(p->hash, hashes[i], sizeof(p->hash));
                for (uint32_t row = 0; row < n_rows; row++)
                        ids[at++] = tdm_job_picture_id(p->hash, row);
        }
        memcpy(ids + at, e->ids + from, (e->n_ids - from) * sizeof(*ids));
        free(e->ids);
        e->ids = steal_ptr(&ids);
        e->n_ids = e->capacity = (uint32_t)n_ids;
        e->n_pictures = n;
        e->picture_width = width;
        return 0;
}

void tdm_job_render(const struct tdm_job *job, const struct tdm_chat *chat, const struct tdm_hparams *hp,
                    struct tdm_chat_prompt *ret_prompt, struct tdm_job_encoded *ret)
{
        *ret = (struct tdm_job_encoded){ 0 };
        ret->r = encode(job, NULL, chat, hp, ret_prompt, ret, &ret->error);
}
