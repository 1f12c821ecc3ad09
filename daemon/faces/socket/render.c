/* Chats that a client wants to see as prompts. A template is a stranger's program, so it runs on a thread, never on the
 * loop. The chat is held as a job that no scheduler knows: it is checked, copied and charged as one that generates. */
#include "daemon/faces/socket/private.h"

struct rendering {
        struct request *request; /* NULL: the client waits no longer */
        void (*end)(struct request *request);
        struct tdm_job *job;     /* referenced */
        struct tdm_model *model; /* referenced, once a thread has it: its template and tokenizer are in use */
        struct tdm_chat_prompt prompt;
        struct tdm_job_encoded encoded;
        uint32_t *ends;                  /* [prompt.n_spans] */
        protobuf_c_boolean *of_template; /* [prompt.n_spans] */
        struct tdm_account *account;     /* referenced; is charged with … */
        uint64_t charged_bytes;          /* TDM_RESOURCE_WAITING_BYTES */
};

/* The charge before a rendering begins: its prompt, ids and spans, for each byte of the chat, and the template's
 * own text. The answer is charged as it is when it is there. */
#define RENDERED_BYTES_A_BYTE 4u
#define RENDERED_BYTES_LEAST ((uint64_t)64 << 10)

static void rendering_free(struct rendering *rendering)
{
        tdm_account_release(rendering->account, TDM_RESOURCE_WAITING_BYTES, rendering->charged_bytes);
        tdm_account_unref(rendering->account);
        tdm_job_unref(rendering->job);
        tdm_model_unref(rendering->model);
        if (rendering->prompt.text)
                explicit_bzero(rendering->prompt.text, rendering->prompt.size);
        tdm_chat_prompt_deinit(&rendering->prompt);
        free(rendering->encoded.ids);
        free(rendering->ends);
        free(rendering->of_template);
        free(rendering);
}

static int copy_spans(struct rendering *rendering)
{
        const struct tdm_chat_prompt *prompt = &rendering->prompt;

        rendering->ends = malloc((prompt->n_spans + 1) * sizeof(*rendering->ends));
        rendering->of_template = malloc((prompt->n_spans + 1) * sizeof(*rendering->of_template));
        if (!rendering->ends || !rendering->of_template)
                return -ENOMEM;
        for (size_t i = 0; i < prompt->n_spans; i++) {
                rendering->ends[i] = (uint32_t)prompt->spans[i].end;
                rendering->of_template[i] = prompt->spans[i].is_trusted;
        }
        return 0;
}

static void run_rendering(void *task)
{
        struct rendering *rendering = task;
        struct tdm_job_encoded *encoded = &rendering->encoded;

        tdm_job_render(rendering->job, rendering->model->metadata->chat, tdm_model_hparams(rendering->model),
                       &rendering->prompt, encoded);
        if (encoded->r == 0 && rendering->prompt.size > TDM_CLIENT_MAX_FRAME_BYTES)
                encoded->r = tdm_error_set(&encoded->error, TDM_E_TOO_LONG,
                                           "the prompt has %zu bytes; at most %u are shown at once",
                                           rendering->prompt.size, TDM_CLIENT_MAX_FRAME_BYTES);
        if (encoded->r == 0 && copy_spans(rendering) < 0)
                encoded->r = tdm_error_set(&encoded->error, -ENOMEM, "out of memory for the prompt's spans");
}

static uint64_t rendering_bytes(const struct rendering *rendering)
{
        const struct tdm_chat_prompt *prompt = &rendering->prompt;

        return prompt->size +
               prompt->n_spans * (sizeof(*prompt->spans) + sizeof(*rendering->ends) + sizeof(*rendering->of_template)) +
               (uint64_t)rendering->encoded.capacity * sizeof(*rendering->encoded.ids);
}

/* It holds this much until its answer is on the way. */
static int rendering_charge(struct rendering *rendering, uint64_t bytes, struct tdm_error *err)
{
        int r = 0;

        if (bytes > rendering->charged_bytes)
                r = tdm_account_charge(rendering->account, TDM_RESOURCE_WAITING_BYTES, bytes - rendering->charged_bytes,
                                       err);
        if (r == 0)
                rendering->charged_bytes = TDM_MAX(rendering->charged_bytes, bytes);
        return r;
}

static void answer_render(struct request *request, const struct rendering *rendering)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Rendered rendered = TANDEM__RENDERED__INIT;
        const struct tdm_job_encoded *encoded = &rendering->encoded;

        if (encoded->r != 0) {
                face_send_error(request->client, request->id, encoded->r < 0 ? TDM_E_INTERNAL : encoded->r,
                                encoded->error.message);
                return;
        }
        rendered.text =
                (ProtobufCBinaryData){ .len = rendering->prompt.size, .data = (uint8_t *)rendering->prompt.text };
        rendered.n_ids = encoded->n_ids;
        rendered.ids = encoded->ids;
        rendered.n_span_ends = rendered.n_span_template = rendering->prompt.n_spans;
        rendered.span_ends = rendering->ends;
        rendered.span_template = rendering->of_template;
        reply.kind_case = TANDEM__REPLY__KIND_RENDERED;
        reply.rendered = &rendered;
        face_send(request->client, request->id, &reply);
}

static void on_rendered(void *task, bool ran)
{
        struct rendering *rendering = task;

        tdm_job_end_encoding(rendering->job, NULL);
        if (rendering->request) {
                rendering->request->rendering = NULL;
                if (ran && rendering->encoded.r == 0)
                        rendering->encoded.r =
                                rendering_charge(rendering, rendering_bytes(rendering), &rendering->encoded.error);
                if (ran)
                        answer_render(rendering->request, rendering);
                rendering->end(rendering->request);
        }
        rendering_free(rendering);
}

int render_new(struct rendering **ret, struct request *request, struct tdm_job *job,
               void (*end)(struct request *request))
{
        struct rendering *rendering = calloc(1, sizeof(*rendering));

        if (!rendering)
                return -ENOMEM;
        *rendering = (struct rendering){ .request = request,
                                         .job = tdm_job_ref(job),
                                         .end = end,
                                         .account = job->account ? tdm_account_ref(job->account) : NULL };
        *ret = rendering;
        return 0;
}

void render_start(struct request *request)
{
        struct rendering *rendering = request->rendering;
        struct tdm_face *face = request->client->face;
        struct tdm_error err;
        int r;

        if (rendering->model)
                return;
        r = rendering_charge(
                rendering, tdm_job_pending_bytes(rendering->job) * RENDERED_BYTES_A_BYTE + RENDERED_BYTES_LEAST, &err);
        if (r != 0) {
                face_send_error(request->client, request->id, r, err.message);
                rendering->end(request);
                return;
        }
        rendering->model = tdm_model_ref(request->model);
        tdm_job_begin_encoding(rendering->job);
        if (tdm_background_add_for(face->background, rendering->job->login, run_rendering, on_rendered, rendering) <
            0) {
                face_send_error(request->client, request->id, TDM_E_BUSY,
                                "too many texts wait to be tokenized; try again later");
                on_rendered(rendering, false);
        }
}

void render_forget(struct rendering *rendering)
{
        if (!rendering)
                return;
        if (!rendering->model) {
                rendering_free(rendering);
                return;
        }
        rendering->request = NULL;
        tdm_job_finish(rendering->job, TDM_JOB_END_CANCELLED, NULL);
}
