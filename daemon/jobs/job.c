/* The parts of a job that need the tokenizer: from a request to ids, and from ids to text. The scheduler decides when
 * its rows run, and a face how its events look on a wire. Text is freed as soon as it has become ids, and is never
 * logged. */
#include "daemon/jobs/job.h"

static const char *const state_names[] = {
        [TDM_JOB_QUEUED] = "queued", [TDM_JOB_LOADING] = "loading",       [TDM_JOB_PREFILL] = "prefill",
        [TDM_JOB_DECODE] = "decode", [TDM_JOB_RECOVERING] = "recovering", [TDM_JOB_DONE] = "done",
};

/* The indices of the choices in common/job-options.def. */
static_assert(TDM_JOB_INTERACTIVE == 0 && TDM_JOB_BACKGROUND == 1, "priorities in the order of the table");
static_assert(TDM_PLACEMENT_ANY == 0 && TDM_PLACEMENT_SPLIT == 1 && TDM_PLACEMENT_NPU == 2 && TDM_PLACEMENT_GPU == 3,
              "placements in the order of the table, 0 for none");

static const char *const unguessed_texts[] = {
        [TDM_UNGUESSED_NOT] = "",
        [TDM_UNGUESSED_OFF] = "off",
        [TDM_UNGUESSED_GRAMMAR] = "its text follows a grammar",
        [TDM_UNGUESSED_SUSPECT] = "it was in a step that killed its worker",
        [TDM_UNGUESSED_PROMPT] = "prompts are read",
        [TDM_UNGUESSED_LAST] = "one token is left",
        [TDM_UNGUESSED_NO_MATCH] = "nothing like the end of its text stands further back",
        [TDM_UNGUESSED_MEASURING] = "a step without guesses is measured",
        [TDM_UNGUESSED_COST] = "guesses would cost more time than they save",
        [TDM_UNGUESSED_MEMORY] = "no page of the cache is free for them",
        [TDM_UNGUESSED_STATE] = "its model keeps a state, which cannot be cut back",
        [TDM_UNGUESSED_DRAFT_NONE] = "the configuration names no draft model",
        [TDM_UNGUESSED_DRAFT_LOADING] = "its draft model is not loaded yet",
        [TDM_UNGUESSED_DRAFT_MISSING] = "the draft model of the configuration cannot be opened",
        [TDM_UNGUESSED_DRAFT_DIFFERS] = "the draft model of the configuration has another vocabulary",
        [TDM_UNGUESSED_DRAFT_LOST] = "its draft model was lost",
        [TDM_UNGUESSED_DRAFT_BEHIND] = "its draft has not caught up",
        [TDM_UNGUESSED_DRAFT_MEMORY] = "no page of the draft's cache is free",
        [TDM_UNGUESSED_DRAFT_LONG] = "the text fills the draft's context",
        [TDM_UNGUESSED_DRAFT_BLIND] = "its draft model cannot see pictures",
};

const char *tdm_unguessed_text(enum tdm_unguessed why)
{
        return unguessed_texts[why];
}

const char *tdm_job_state_name(enum tdm_job_state state)
{
        return state_names[state];
}

/* Bytes that a job is charged with beside its text. */
#define JOB_BYTES 2048u

static int copy_text(struct tdm_job *job, const char *text, size_t size)
{
        job->prompt.text = malloc(size + 1);
        if (!job->prompt.text)
                return -ENOMEM;
        if (size)
                memcpy(job->prompt.text, text, size);
        job->prompt.text[size] = '\0';
        job->prompt.text_size = size;
        job->prompt.is_text = true;
        return 0;
}

/* A query, then the document. All came in one frame, so the sizes cannot overflow. */
static int copy_pair(struct tdm_job *job, const struct tdm_job_params *p)
{
        job->prompt.text = malloc(p->query_size + p->text_size + 1);
        if (!job->prompt.text)
                return -ENOMEM;
        if (p->query_size > 0)
                memcpy(job->prompt.text, p->query, p->query_size);
        if (p->text_size > 0)
                memcpy(job->prompt.text + p->query_size, p->text, p->text_size);
        job->prompt.query_size = p->query_size;
        job->prompt.text_size = p->query_size + p->text_size;
        job->prompt.text[job->prompt.text_size] = '\0';
        job->prompt.is_text = job->prompt.is_pair = true;
        return 0;
}

static size_t call_bytes(const struct tdm_chat_call *call)
{
        return call->id.size + call->name.size + call->arguments.size;
}

/* Texts go to *at; data stays NULL where it is. */
static struct tdm_chat_text copy_part(struct tdm_chat_text text, char **at)
{
        struct tdm_chat_text copy = { text.data ? *at : NULL, text.size };

        if (text.size)
                memcpy(*at, text.data, text.size);
        *at += text.size;
        return copy;
}

/* variables: for the template; NULL: none. */
static int copy_messages(struct tdm_job *job, const struct tdm_chat_message *messages, size_t n, const char *variables)
{
        size_t size = variables ? strlen(variables) : 0, n_calls = 0;
        struct tdm_chat_call *calls;
        char *at;

        for (size_t i = 0; i < n; i++) { /* all came in one frame, so this cannot overflow */
                const struct tdm_chat_message *m = &messages[i];

                size += m->size + m->thinking.size + m->call_id.size + m->name.size;
                for (size_t k = 0; k < m->n_calls; k++)
                        size += call_bytes(&m->calls[k]);
                n_calls += m->n_calls;
        }
        at = job->prompt.text = malloc(size + 1);
        job->prompt.messages = calloc(n, sizeof(*job->prompt.messages));
        calls = job->prompt.calls = calloc(n_calls + 1, sizeof(*calls));
        if (!job->prompt.text || !job->prompt.messages || !calls)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                const struct tdm_chat_message *m = &messages[i];
                struct tdm_chat_message *to = &job->prompt.messages[i];
                struct tdm_chat_text text = copy_part((struct tdm_chat_text){ m->text ? m->text : "", m->size }, &at);

                *to = (struct tdm_chat_message){ .role = m->role, .text = text.data, .size = text.size };
                to->pictures = tdm_picture_files_of(&job->prompt.pictures, (uint32_t)i, &to->n_pictures);
                to->thinking = copy_part(m->thinking, &at);
                to->call_id = copy_part(m->call_id, &at);
                to->name = copy_part(m->name, &at);
                to->calls = calls;
                to->n_calls = m->n_calls;
                for (size_t k = 0; k < m->n_calls; k++, calls++) {
                        calls->id = copy_part(m->calls[k].id, &at);
                        calls->name = copy_part(m->calls[k].name, &at);
                        calls->arguments = copy_part(m->calls[k].arguments, &at);
                }
        }
        if (variables)
                job->prompt.variables = copy_part((struct tdm_chat_text){ variables, strlen(variables) }, &at);
        job->prompt.text[size] = '\0';
        job->prompt.text_size = size;
        job->prompt.n_messages = n;
        job->prompt.n_calls = n_calls;
        job->prompt.is_chat = true;
        job->prompt.goes_on = tdm_chat_goes_on(messages, n);
        return 0;
}

static int copy_picture_files(struct tdm_job *job, const struct tdm_job_params *p, struct tdm_error *err)
{
        _cleanup_(freep) size_t *sizes = NULL;
        size_t n = TDM_MAX(p->n_messages, (size_t)1);

        if (p->n_picture_files == 0)
                return 0;
        sizes = calloc(n, sizeof(*sizes));
        if (!sizes)
                return -ENOMEM;
        sizes[0] = p->text_size;
        for (size_t i = 0; i < p->n_messages; i++)
                sizes[i] = p->messages[i].size;
        return tdm_picture_files_init(&job->prompt.pictures, p->picture_files, p->n_picture_files, sizes, n, err);
}

static int copy_ids(struct tdm_job *job, const uint32_t *ids, size_t n)
{
        if (n > (1u << 24))
                return -E2BIG;
        job->ids = malloc(n * sizeof(*ids));
        if (!job->ids)
                return -ENOMEM;
        memcpy(job->ids, ids, n * sizeof(*ids));
        job->n_ids = job->ids_capacity = (uint32_t)n;
        return 0;
}

static int copy_biases(struct tdm_job *job, const char *text, struct tdm_error *err)
{
        struct tdm_logit_bias biases[TDM_MAX_BIASES];
        uint32_t n;
        int r = tdm_job_options_biases(text, biases, &n, err);

        if (r != 0 || n == 0)
                return r;
        job->request.biases = malloc(n * sizeof(*biases));
        if (!job->request.biases)
                return -ENOMEM;
        memcpy(job->request.biases, biases, n * sizeof(*biases));
        job->request.n_biases = n;
        return 0;
}

static int check_params(const struct tdm_job_params *p, struct tdm_error *err)
{
        struct tdm_sampling sampling;
        int r;

        if ((p->n_ids > 0) + (p->n_messages > 0) + (p->text_size > 0) > 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the prompt is given more than once (as text, as messages, as ids)");
        if (p->kind == TDM_JOB_RERANK && p->query_size == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the query is empty; give at least one character");
        if ((p->kind == TDM_JOB_GENERATE || p->kind == TDM_JOB_SCORE) && p->n_ids == 0 && p->n_messages == 0 &&
            p->text_size == 0 && p->n_picture_files == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the prompt is empty; give at least one character");
        if (p->n_messages > TDM_MAX_CHAT_MESSAGES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu messages; at most %u are taken", p->n_messages,
                                     TDM_MAX_CHAT_MESSAGES);
        if (p->n_ids > TDM_CTX_MAX)
                return tdm_error_set(err, TDM_E_TOO_LONG, "the prompt has %zu tokens; no model takes more than %u",
                                     p->n_ids, TDM_CTX_MAX);
        if (p->options.tools && p->n_messages == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "tools: a model is told of them in a chat; give messages");
        if (p->options.chat_variables && p->n_messages == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "chat-variables: a chat template reads them; give messages");
        if ((p->options.thinking || p->options.thinking_budget) && p->n_messages == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: a model thinks in a chat; give messages",
                                     p->options.thinking ? "thinking" : "thinking-budget");
        if (!p->options.drawn && p->options.drawn_numerics)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "drawn-numerics is given, and there are no drawn tokens");
        if (p->options.thinking == TDM_THINKING_OFF && p->options.thinking_budget > 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "thinking-budget is given, and thinking is off");
        if (p->n_pictures > 0 && (p->kind != TDM_JOB_GENERATE || p->n_ids == 0 || p->options.drawn))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "pictures belong to a prompt that is to be continued from its end");
        if (p->n_picture_files > 0 && (p->kind != TDM_JOB_GENERATE || p->n_ids > 0))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "pictures stand in a text or in a chat that is continued");
        if (p->n_top > TDM_MAX_TOP)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%u alternatives were asked for; at most %u are given",
                                     p->n_top, TDM_MAX_TOP);
        r = tdm_job_options_check(&p->options, err);
        if (r != 0)
                return r;
        sampling = tdm_job_options_sampling(&p->options);
        return tdm_sampling_check(&sampling, err);
}

static void take_sampling(struct tdm_job *job)
{
        const struct tdm_job_options *o = &job->request.options;
        uint32_t n_top = job->request.sampling.n_top;

        job->request.sampling = tdm_job_options_sampling(o);
        job->request.sampling.n_top = n_top;
        job->request.repeat_last = o->repeat_last ? o->repeat_last : 64;
}

void tdm_job_take_recommended(struct tdm_job *job, const struct tdm_recommended *recommended)
{
        if (job->kind != TDM_JOB_GENERATE)
                return;
        tdm_job_options_take_recommended(&job->request.options, recommended);
        take_sampling(job);
}

int tdm_job_new(struct tdm_job **ret, const struct tdm_job_params *p, struct tdm_error *err)
{
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = NULL;
        const struct tdm_job_options *o = &p->options;
        int r = check_params(p, err);

        if (r != 0)
                return r;
        job = calloc(1, sizeof(*job));
        if (!job)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        job->n_refs = 1;
        tdm_list_init(&job->node);
        job->kind = p->kind;
        job->identity = p->identity;
        job->login = p->account ? p->account->identity : p->identity;
        job->request.options = tdm_job_options_without_texts(o);
        job->request.priority = (enum tdm_job_priority)o->priority;
        job->request.placement = (enum tdm_placement)o->placement;
        job->max_tokens = o->max_tokens;
        take_sampling(job);
        job->request.sampling.n_top = p->kind == TDM_JOB_GENERATE ? o->top_logprobs : p->n_top;
        job->request.dimensions = p->dimensions;
        job->request.raw = p->raw;
        job->request.prefill_chunk = o->prefill_chunk;
        job->request.ignore_end = o->ignore_end;
        job->stats.created_ns = tdm_now_ns();
        if (o->deadline_ms > 0)
                job->request.deadline_ns = job->stats.created_ns + o->deadline_ms * TDM_NSEC_PER_MSEC;

        r = copy_picture_files(job, p, err);
        if (r > 0)
                return r;
        if (r < 0)
                return tdm_error_set(err, r, "cannot hold the pictures: %s", strerror(-r));
        if (p->n_ids > 0)
                r = copy_ids(job, p->ids, p->n_ids);
        else if (p->n_messages > 0)
                r = copy_messages(job, p->messages, p->n_messages, o->chat_variables);
        else if (p->query)
                r = copy_pair(job, p);
        else
                r = copy_text(job, p->text, p->text_size);
        if (r == 0 && o->logit_bias)
                r = copy_biases(job, o->logit_bias, err);
        if (r == 0 && o->drawn)
                r = tdm_job_drawn_init(&job->drawn, o, err);
        if (r == 0 && o->n_stop > 0)
                r = tdm_stop_new(&job->text.stop, o->stop, o->n_stop, err);
        if (r == 0 && p->kind == TDM_JOB_GENERATE)
                r = tdm_constraint_new(&job->text.constraint, o, p->n_messages > 0 && !job->prompt.goes_on, p->account,
                                       err);
        if (r < 0)
                return tdm_error_set(err, r, "cannot hold the prompt: %s", strerror(-r));
        if (r > 0)
                return r;
        if (o->draft && o->draft[0]) {
                job->request.draft_name = strdup(o->draft);
                if (!job->request.draft_name)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        job->account = p->account ? tdm_account_ref(p->account) : NULL;
        if (p->n_pictures > 0)
                r = tdm_job_pictures_init(&job->pictures, p->pictures, p->n_pictures, p->picture_width, job->ids,
                                          job->n_ids, p->account, err);
        if (r != 0)
                return r;
        r = tdm_account_charge(job->account, TDM_RESOURCE_WAITING_BYTES, tdm_job_pending_bytes(job) + JOB_BYTES, err);
        if (r != 0)
                return r;
        job->charged_bytes = tdm_job_pending_bytes(job) + JOB_BYTES;
        *ret = steal_ptr(&job);
        return 0;
}

static void drop_text(struct tdm_job *job)
{
        if (job->prompt.text)
                explicit_bzero(job->prompt.text, job->prompt.text_size);
        free(steal_ptr(&job->prompt.text));
        free(steal_ptr(&job->prompt.messages));
        free(steal_ptr(&job->prompt.calls));
        tdm_picture_files_deinit(&job->prompt.pictures);
        job->prompt.text_size = job->prompt.n_messages = job->prompt.n_calls = 0;
        job->prompt.variables = (struct tdm_chat_text){ 0 };
}

void tdm_job_settle_charge(struct tdm_job *job)
{
        tdm_account_release(job->account, TDM_RESOURCE_WAITING_BYTES, job->charged_bytes);
        job->charged_bytes = 0;
}

struct tdm_job *tdm_job_ref(struct tdm_job *job)
{
        job->n_refs++;
        return job;
}

void tdm_job_unref(struct tdm_job *job)
{
        if (!job || --job->n_refs > 0)
                return;
        drop_text(job);
        tdm_job_settle_charge(job);
        tdm_account_unref(job->account);
        tdm_job_pictures_deinit(&job->pictures);
        tdm_job_encoded_deinit(&job->prompt.from_text);
        free(job->ids);
        free(job->drawn.ids);
        free(job->request.draft_name);
        free(job->request.biases);
        tdm_stop_destroy(job->text.stop);
        tdm_constraint_destroy(job->text.constraint);
        tdm_turn_destroy(job->text.turn);
        free(job->text.room);
        free(job->vector);
        tdm_labels_unref(job->labels);
        free(job);
}

void tdm_job_unrefp(struct tdm_job **job)
{
        tdm_job_unref(*job);
        *job = NULL;
}

size_t tdm_job_pending_bytes(const struct tdm_job *job)
{
        return job->prompt.text_size + job->prompt.pictures.size_bytes +
               job->prompt.n_messages * sizeof(*job->prompt.messages) +
               job->prompt.n_calls * sizeof(*job->prompt.calls) +
               ((size_t)job->ids_capacity + job->drawn.n) * sizeof(*job->ids);
}

size_t tdm_job_text_to_encode(const struct tdm_job *job)
{
        return job->prompt.encoded ? 0 : job->prompt.text_size;
}

/* Thinking as the template sees it, where it has a switch for it. */
static enum tdm_chat_thinking thinking_mode(const struct tdm_job *job)
{
        enum tdm_thinking wanted = (enum tdm_thinking)job->request.options.thinking;

        return wanted == TDM_THINKING_AUTO ? TDM_CHAT_THINK_AS_TRAINED :
               wanted == TDM_THINKING_OFF  ? TDM_CHAT_THINK_OFF :
                                             TDM_CHAT_THINK_ON;
}

int tdm_job_prepare(struct tdm_job *job, const struct tdm_tokenizer *tokenizer, const struct tdm_chat *chat,
                    const struct tdm_hparams *hp, struct tdm_error *err)
{
        uint32_t left;
        int r;

        if (job->text.constraint && job->prompt.encoded && job->prompt.from_text.r != 0) {
                *err = job->prompt.from_text.error;
                return job->prompt.from_text.r;
        }
        if (job->prompt.is_text || job->prompt.is_chat) {
                if (!job->prompt.encoded)
                        tdm_job_encode(job, tokenizer, chat, hp, &job->prompt.from_text);
                r = job->prompt.from_text.r;
                if (r != 0) {
                        *err = job->prompt.from_text.error;
                        return r;
                }
                job->ids = steal_ptr(&job->prompt.from_text.ids);
                job->ids_capacity = job->prompt.from_text.capacity;
                job->n_ids = job->prompt.from_text.n_ids;
                if (job->prompt.from_text.n_pictures > 0)
                        tdm_job_pictures_take(&job->pictures, steal_ptr(&job->prompt.from_text.pictures),
                                              job->prompt.from_text.n_pictures, job->prompt.from_text.picture_width,
                                              steal_ptr(&job->prompt.from_text.picture_rows));
                job->second_from = job->prompt.from_text.second_from;
                drop_text(job);
        }
        if (job->n_ids == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "the prompt is empty; give at least one character");
        if (job->n_ids > hp->n_ctx)
                return tdm_error_set(err, TDM_E_TOO_LONG, "the prompt has %u tokens; the model's context is %u",
                                     job->n_ids, hp->n_ctx);
        for (uint32_t i = 0; i < job->n_ids; i++)
                if (job->ids[i] >= hp->n_vocab && !tdm_job_pictures_at(&job->pictures, i))
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "token id %u at %u is not in the vocabulary of %u",
                                             job->ids[i], i, hp->n_vocab);
        for (uint32_t i = 0; i < job->request.n_biases; i++)
                if (job->request.biases[i].id >= hp->n_vocab)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "logit-bias: token id %u is not in the vocabulary of %u",
                                             job->request.biases[i].id, hp->n_vocab);
        if (!tdm_job_drawn_waits(&job->drawn))
                tdm_job_settle_charge(job);
        job->prompt_tokens = job->n_ids;
        job->text.tokenizer = tokenizer;
        if (job->kind != TDM_JOB_GENERATE) {
                job->max_tokens = 0;
                return 0;
        }
        left = hp->n_ctx - job->n_ids;
        if (left == 0)
                return tdm_error_set(
                        err, TDM_E_TOO_LONG,
                        "the prompt has %u tokens and fills the model's context of %u: no room for an answer",
                        job->n_ids, hp->n_ctx);
        job->request.implicit_limit = job->max_tokens == 0;
        job->max_tokens = TDM_MIN(left, job->max_tokens ? job->max_tokens : TDM_IMPLICIT_MAX_TOKENS);
        r = tdm_job_drawn_check(&job->drawn, hp->n_vocab, job->max_tokens, err);
        if (r != 0)
                return r;
        tdm_decoder_init(&job->text.decoder, tokenizer, false);
        if (job->prompt.is_chat) {
                struct tdm_chat_text tools = tdm_constraint_tools(job->text.constraint);

                r = tdm_turn_new(&job->text.turn, chat, tokenizer, tools,
                                 tdm_chat_prompt_end(chat, tools.size > 0, thinking_mode(job)),
                                 tdm_constraint_turn_flags(job->text.constraint) |
                                         (job->prompt.goes_on ? TDM_CHAT_TURN_GOES_ON : 0));
                if (r < 0)
                        return tdm_error_set(err, r, "cannot take the model's answer apart: %s", strerror(-r));
        }
        if (job->text.constraint && !tdm_constraint_has_grammar(job->text.constraint)) {
                r = tdm_constraint_prepare(job->text.constraint, chat, tokenizer, hp->n_vocab, err);
                if (r != 0)
                        return r;
        }
        job->text.room_size = TDM_DECODER_ROOM(tokenizer) + TDM_MAX_STOP_BYTES;
        job->text.n_rooms = 1 + TDM_MAX_GUESSES;
        job->text.room = malloc(job->text.n_rooms * job->text.room_size);
        if (!job->text.room)
                return tdm_error_set(err, -ENOMEM, "out of memory for a token's text");
        return 0;
}

int tdm_job_append(struct tdm_job *job, uint32_t id)
{
        if (job->n_ids == job->ids_capacity) {
                /* Never more than prompt and limit allow together. */
                uint32_t most = job->prompt_tokens + job->max_tokens;
                uint32_t capacity = TDM_MIN(most, job->ids_capacity + TDM_MAX(64u, job->ids_capacity / 2));
                uint32_t *ids = realloc(job->ids, capacity * sizeof(*ids));

                if (!ids)
                        return -ENOMEM;
                job->ids = ids;
                job->ids_capacity = capacity;
        }
        job->ids[job->n_ids++] = id;
        return 0;
}

int tdm_job_new_draft(struct tdm_job **ret, const struct tdm_job *of, struct tdm_model *draft, uint32_t n_vocab)
{
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = calloc(1, sizeof(*job));

        if (!job)
                return -ENOMEM;
        job->n_refs = 1;
        tdm_list_init(&job->node);
        job->id = of->id;
        job->kind = TDM_JOB_GENERATE;
        job->identity = of->identity;
        job->login = of->login;
        job->request.priority = TDM_JOB_BACKGROUND;
        job->model = draft;
        job->accepted = true;
        job->prompt_tokens = of->prompt_tokens;
        job->max_tokens = of->max_tokens;
        job->request.sampling = of->request.sampling;
        job->request.sampling.n_top = 0;
        job->request.repeat_last = of->request.repeat_last;
        job->request.biases = malloc((of->request.n_biases + 1) * sizeof(*job->request.biases));
        job->ids_capacity = of->n_ids + 64;
        job->ids = malloc(job->ids_capacity * sizeof(*job->ids));
        if (!job->request.biases || !job->ids)
                return -ENOMEM;
        for (uint32_t i = 0; i < of->request.n_biases; i++)
                if (of->request.biases[i].id < n_vocab)
                        job->request.biases[job->request.n_biases++] = of->request.biases[i];
        *ret = steal_ptr(&job);
        return 0;
}

static void finish_without_memory(struct tdm_job *job)
{
        struct tdm_error err;

        tdm_error_set(&err, TDM_E_NO_MEMORY, "out of memory for the job's tokens");
        tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
}

bool tdm_job_take_token(struct tdm_job *job, uint32_t id, float logprob, uint64_t now_ns,
                        struct tdm_job_token *ret_token)
{
        char *room;
        size_t size;
        bool hit = false;

        if (job->stats.first_token_ns == 0)
                job->stats.first_token_ns = now_ns;
        job->stats.last_token_ns = now_ns;
        if (!job->request.ignore_end && tdm_tokenizer_is_end(job->text.tokenizer, id) &&
            !(job->text.constraint && tdm_constraint_is_due(job->text.constraint, id))) {
                job->text.at_end_token = true;
                tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
                return false;
        }
        if (tdm_job_append(job, id) < 0) {
                finish_without_memory(job);
                return false;
        }
        job->generated++;
        room = job->text.room + job->text.room_at * job->text.room_size;
        job->text.room_at = (job->text.room_at + 1) % job->text.n_rooms;
        *ret_token = (struct tdm_job_token){ .id = id, .logprob = logprob };
        size = tdm_decoder_push(&job->text.decoder, id, room, job->text.room_size - TDM_MAX_STOP_BYTES);
        if (job->text.turn) {
                if (tdm_turn_take(job->text.turn, id, room, size, ret_token) < 0) {
                        finish_without_memory(job);
                        return false;
                }
                room = (char *)(uintptr_t)ret_token->text;
                size = ret_token->size;
                if (job->text.constraint &&
                    tdm_constraint_take(job->text.constraint, job->generated - 1, tdm_turn_place(job->text.turn),
                                        job->text.decoder.n_held > 0))
                        tdm_turn_begin_answer(job->text.turn);
        }
        if (job->text.stop)
                size = tdm_stop_push(job->text.stop, room, size, room, &hit);
        ret_token->text = room;
        ret_token->size = size;
        if (hit) {
                job->text.is_over = true;
                tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
        } else if (job->generated >= job->max_tokens)
                tdm_job_finish(job, TDM_JOB_END_LENGTH, NULL);
        return true;
}

/* The text that is still held is sent with the end, unless a stop string came before it. */
static void finish_text(struct tdm_job *job)
{
        char text[32 + TDM_TURN_TAIL_BYTES];
        size_t size;
        bool hit = false;

        if (!job->text.room || job->text.is_over)
                return;
        size = tdm_decoder_finish(&job->text.decoder, text, 32);
        if (job->text.turn)
                size = tdm_turn_finish(job->text.turn, text, size);
        if (!job->text.stop) {
                memcpy(job->text.tail, text, size);
                job->text.tail_size = size;
                return;
        }
        job->text.tail_size = tdm_stop_push(job->text.stop, text, size, job->text.tail, &hit);
        if (!hit)
                job->text.tail_size += tdm_stop_finish(job->text.stop, job->text.tail + job->text.tail_size);
}

void tdm_job_finish(struct tdm_job *job, enum tdm_job_end end, const struct tdm_error *err)
{
        if (job->finished)
                return;
        job->finished = true;
        job->end = end;
        if (err)
                job->error = *err;
        /* A job that ends at an end token has a whole text, or the token would not have been allowed. One that ends
         * among its drawn tokens is told of to nobody, and the grammar has not followed them. */
        job->text.incomplete =
                job->text.constraint && !job->text.at_end_token &&
                (job->prompt.encoding || job->text.masking || tdm_job_drawn_waits(&job->drawn) ||
                 !tdm_constraint_is_whole(job->text.constraint, job->ids + job->prompt_tokens, job->generated));
        finish_text(job);
        atomic_store_explicit(&job->prompt.cancel_encoding, true, memory_order_relaxed);
        if (!job->prompt.encoding) {
                drop_text(job);
                tdm_job_settle_charge(job);
        }
}

double tdm_job_ttft_ms(const struct tdm_job *job)
{
        return job->stats.first_token_ns ? (double)(job->stats.first_token_ns - job->stats.accepted_ns) / 1e6 : 0;
}

double tdm_job_prefill_tps(const struct tdm_job *job)
{
        uint64_t end = job->stats.first_token_ns ? job->stats.first_token_ns : job->stats.last_token_ns;

        return job->stats.prefill_ns && end > job->stats.prefill_ns ?
                       (double)(job->prompt_tokens + job->drawn.n - job->stats.cached_tokens) * 1e9 /
                               (double)(end - job->stats.prefill_ns) :
                       0;
}

double tdm_job_decode_tps(const struct tdm_job *job)
{
        return job->generated > 1 + job->drawn.n && job->stats.last_token_ns > job->stats.first_token_ns ?
                       (double)(job->generated - job->drawn.n - 1) * 1e9 /
                               (double)(job->stats.last_token_ns - job->stats.first_token_ns) :
                       0;
}
