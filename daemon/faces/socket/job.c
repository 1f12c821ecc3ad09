/* Sends a job's events as replies. The last reply frees the request that the job came from. */
#include "daemon/faces/socket/private.h"

#include <math.h>

static_assert((int)TDM_JOB_QUEUED == TANDEM__JOB_STATE__JOB_QUEUED &&
                      (int)TDM_JOB_LOADING == TANDEM__JOB_STATE__JOB_LOADING &&
                      (int)TDM_JOB_PREFILL == TANDEM__JOB_STATE__JOB_PREFILL &&
                      (int)TDM_JOB_DECODE == TANDEM__JOB_STATE__JOB_DECODE &&
                      (int)TDM_JOB_RECOVERING == TANDEM__JOB_STATE__JOB_RECOVERING &&
                      (int)TDM_JOB_DONE == TANDEM__JOB_STATE__JOB_DONE,
              "states have the wire's numbers");
static_assert((int)TDM_JOB_END_STOP == TANDEM__DONE_REASON__DONE_STOP &&
                      (int)TDM_JOB_END_LENGTH == TANDEM__DONE_REASON__DONE_LENGTH &&
                      (int)TDM_JOB_END_CANCELLED == TANDEM__DONE_REASON__DONE_CANCELLED &&
                      (int)TDM_JOB_END_ERROR == TANDEM__DONE_REASON__DONE_ERROR,
              "ends have the wire's numbers");

static void on_face_job_accepted(struct tdm_job *job, void *userdata)
{
        struct request *request = userdata;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Accepted accepted = TANDEM__ACCEPTED__INIT;

        accepted.job = job->id;
        accepted.prompt_tokens = job->prompt_tokens;
        accepted.model = face_model_name(request->client, request->model);
        accepted.max_tokens = job->max_tokens;
        reply.kind_case = TANDEM__REPLY__KIND_ACCEPTED;
        reply.accepted = &accepted;
        face_send(request->client, request->id, &reply);
}

static void on_face_job_progress(struct tdm_job *job, void *userdata)
{
        struct request *request = userdata;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Progress progress = TANDEM__PROGRESS__INIT;

        progress.job = job->id;
        progress.state = (Tandem__JobState)job->state;
        progress.done = job->progress.done;
        progress.total = job->progress.total;
        progress.queue_position = job->state == TDM_JOB_QUEUED ? job->progress.queue_position : 0;
        reply.kind_case = TANDEM__REPLY__KIND_PROGRESS;
        reply.progress = &progress;
        face_send(request->client, request->id, &reply);
}

struct alternatives {
        Tandem__Alternative room[TDM_MAX_TOP], *list[TDM_MAX_TOP];
};

static void put_alternatives(const struct tdm_job *job, const struct tdm_job_token *t, struct alternatives *a,
                             Tandem__Token *token)
{
        uint32_t n = TDM_MIN(t->n_top, TDM_MAX_TOP);

        for (uint32_t i = 0; i < n; i++) {
                const char *text = NULL;
                size_t size = tdm_tokenizer_piece(job->text.tokenizer, t->top[i].id, true, &text);

                tandem__alternative__init(&a->room[i]);
                a->room[i].id = t->top[i].id;
                a->room[i].logprob = t->top[i].logprob;
                a->room[i].text.data = (uint8_t *)text;
                a->room[i].text.len = size;
                a->list[i] = &a->room[i];
        }
        token->n_top = n;
        token->top = a->list;
}

/* Text is what may be shown by now. It lags where a character or a stop text is not whole, and calls have none. */
static void put_piece(const struct tdm_job *job, const struct tdm_job_token *t, Tandem__Token *token)
{
        const char *piece = NULL;
        size_t size = tdm_tokenizer_piece(job->text.tokenizer, t->id, true, &piece);

        if (size == t->size && (size == 0 || memcmp(piece, t->text, size) == 0))
                return;
        token->piece.data = (uint8_t *)(uintptr_t)piece;
        token->piece.len = size;
}

/* Everything that a token adds beside its text, in one piece of memory that the caller frees: deltas, their list, names
 * with a NUL, and the thoughts in a row. NULL: no memory. */
static void *put_parts(Tandem__Token *token, const struct tdm_job_token *t)
{
        size_t n_bytes = 0;
        Tandem__CallDelta *deltas;
        char *at;

        for (size_t i = 0; i < t->n_parts; i++)
                n_bytes += t->parts[i].size + 1;
        deltas = malloc(t->n_parts * (sizeof(*deltas) + sizeof(*token->calls)) + 2 * n_bytes);
        if (!deltas)
                return NULL;
        token->calls = (Tandem__CallDelta **)(deltas + t->n_parts);
        at = (char *)(token->calls + t->n_parts);
        token->thinking.data = (uint8_t *)at + n_bytes;
        for (size_t i = 0; i < t->n_parts; i++) {
                const struct tdm_form_part *part = &t->parts[i];
                Tandem__CallDelta *call = &deltas[token->n_calls];

                if (part->kind == TDM_FORM_PART_THINKING) {
                        memcpy(token->thinking.data + token->thinking.len, part->data, part->size);
                        token->thinking.len += part->size;
                }
                if (part->kind != TDM_FORM_PART_CALL && part->kind != TDM_FORM_PART_ARGUMENTS)
                        continue;
                tandem__call_delta__init(call);
                call->call = part->call;
                if (part->kind == TDM_FORM_PART_CALL) {
                        call->id = (char *)(uintptr_t)part->id;
                        call->name = at;
                        memcpy(at, part->data, part->size);
                        at[part->size] = '\0';
                        at += part->size + 1;
                } else
                        call->arguments = (ProtobufCBinaryData){ part->size, (uint8_t *)(uintptr_t)part->data };
                token->calls[token->n_calls++] = call;
        }
        return deltas;
}

/* The client keeps it, in case that another daemon has to go on. */
static void put_numerics(struct request *request, const struct tdm_job *job, Tandem__Tokens *tokens)
{
        if (strcmp(request->told_numerics, job->stats.numerics_id) == 0)
                return;
        snprintf(request->told_numerics, sizeof(request->told_numerics), "%s", job->stats.numerics_id);
        tokens->numerics_id = request->told_numerics;
}

static void on_face_job_token(struct tdm_job *job, uint32_t index, const struct tdm_job_token *t, void *userdata)
{
        struct request *request = userdata;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Tokens tokens = TANDEM__TOKENS__INIT;
        Tandem__Token token = TANDEM__TOKEN__INIT, *list[1] = { &token };
        struct alternatives alternatives;
        _cleanup_(freep) void *parts = NULL;

        token.id = t->id;
        token.logprob = t->logprob;
        token.text.data = (uint8_t *)t->text;
        token.text.len = t->size;
        put_piece(job, t, &token);
        put_alternatives(job, t, &alternatives, &token);
        if (t->n_parts > 0) {
                parts = put_parts(&token, t);
                if (!parts) {
                        face_protocol_error(request->client, "out of memory for a token's calls");
                        return;
                }
        }
        tokens.job = job->id;
        tokens.index = index;
        tokens.n_tokens = 1;
        tokens.tokens = list;
        put_numerics(request, job, &tokens);
        reply.kind_case = TANDEM__REPLY__KIND_TOKENS;
        reply.tokens = &tokens;
        face_send(request->client, request->id, &reply);
        face_mind_queue(request->client, job);
}

/* Scratch for one chunk; the loop has one thread. */
struct score_scratch {
        Tandem__ScoredPosition positions[TDM_MAX_STEP_LOGITS], *list[TDM_MAX_STEP_LOGITS];
        uint32_t top_ids[TDM_MAX_STEP_LOGITS][TDM_MAX_TOP];
        float top_logprobs[TDM_MAX_STEP_LOGITS][TDM_MAX_TOP];
};

static void on_scores(struct tdm_job *job, uint32_t first, const struct tdm_result *results, uint32_t n, void *userdata)
{
        static struct score_scratch scratch;
        struct request *request = userdata;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__ScoreChunk chunk = TANDEM__SCORE_CHUNK__INIT;

        for (uint32_t i = 0; i < n; i++) {
                Tandem__ScoredPosition *p = &scratch.positions[i];

                tandem__scored_position__init(p);
                p->nll = first + i + 1 < job->n_ids ? -results[i].target_logprob : 0;
                p->n_top_ids = p->n_top_logprobs = results[i].n_top;
                p->top_ids = scratch.top_ids[i];
                p->top_logprobs = scratch.top_logprobs[i];
                for (uint32_t k = 0; k < results[i].n_top; k++) {
                        p->top_ids[k] = results[i].top[k].id;
                        p->top_logprobs[k] = results[i].top[k].logprob;
                }
                scratch.list[i] = p;
        }
        chunk.first = first;
        chunk.n_positions = n;
        chunk.positions = scratch.list;
        chunk.n_ids = n;
        chunk.ids = job->ids + first;
        reply.kind_case = TANDEM__REPLY__KIND_SCORE;
        reply.score = &chunk;
        face_send(request->client, request->id, &reply);
        face_mind_queue(request->client, job);
}

static void send_vector(struct request *request, const struct tdm_job *job)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Vector vector = TANDEM__VECTOR__INIT;

        vector.job = job->id;
        vector.n_numbers = job->n_vector;
        vector.numbers = job->vector;
        vector.probability = job->probability;
        if (job->labels) {
                vector.n_labels = job->labels->n;
                vector.labels = job->labels->names;
        }
        reply.kind_case = TANDEM__REPLY__KIND_VECTOR;
        reply.vector = &vector;
        face_send(request->client, request->id, &reply);
}

static void on_face_job_done(struct tdm_job *job, void *userdata)
{
        struct request *request = userdata;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Done done = TANDEM__DONE__INIT;
        Tandem__Error error = TANDEM__ERROR__INIT;

        if (!job->progress.told_accepted) {
                if (job->end == TDM_JOB_END_ERROR)
                        face_send_error(request->client, request->id, job->error.code, job->error.message);
                else
                        face_send_error(request->client, request->id, TDM_E_CANCELLED, "cancelled before it began");
                request_free(request);
                return;
        }
        if (job->vector)
                send_vector(request, job);
        done.job = job->id;
        done.reason = (Tandem__DoneReason)job->end;
        if (job->end == TDM_JOB_END_ERROR) {
                error.code = (char *)tdm_error_name(job->error.code);
                error.message = job->error.message;
                done.error = &error;
        }
        done.prompt_tokens = job->prompt_tokens;
        done.cached_tokens = job->stats.cached_tokens;
        done.generated_tokens = job->generated;
        done.ttft_ms = tdm_job_ttft_ms(job);
        done.prefill_tps = tdm_job_prefill_tps(job);
        done.decode_tps = tdm_job_decode_tps(job);
        done.recoveries = job->stats.recoveries;
        done.evictions = job->stats.evictions;
        done.reread_tokens = job->stats.reread_tokens;
        done.degraded = job->stats.degraded;
        done.incomplete = job->text.incomplete;
        done.thinking_tokens = tdm_job_thinking_tokens(job);
        done.picture_tokens = tdm_job_pictures_rows(&job->pictures);
        done.drafted = job->stats.n_drafted;
        done.accepted = job->stats.n_accepted;
        done.n_drafted_at = done.n_accepted_at = TDM_MAX_GUESSES;
        done.drafted_at = job->stats.drafted_at;
        done.accepted_at = job->stats.accepted_at;
        done.unguessed = (char *)tdm_unguessed_text(job->stats.unguessed);
        done.numerics_id = job->stats.numerics_id;
        done.text.data = (uint8_t *)job->text.tail;
        done.text.len = job->text.tail_size;
        reply.kind_case = TANDEM__REPLY__KIND_DONE;
        reply.done = &done;
        face_send(request->client, request->id, &reply);
        request_free(request);
}

const struct tdm_job_events face_job_events = {
        .accepted = on_face_job_accepted,
        .progress = on_face_job_progress,
        .token = on_face_job_token,
        .scores = on_scores,
        .done = on_face_job_done,
};
