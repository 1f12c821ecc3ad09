/* What the fake daemon writes of the requests that it gets: an object a line. */
#include "client-lib/test-fake-daemon.h"
#include "client-lib/cli/json.h"

#include <sys/stat.h>

static void log_texts(struct buf *b, const ProtobufCBinaryData *texts, size_t n)
{
        buf_puts(b, "[");
        for (size_t i = 0; i < n; i++) {
                buf_puts(b, i ? "," : "");
                json_text(b, (char *)texts[i].data, texts[i].len);
        }
        buf_puts(b, "]");
}

#define LOG_BOOL(m, field) json_field_bool(b, #field, (m)->field)
#define LOG_U32(m, field) json_field_u64(b, #field, (m)->field)
#define LOG_U64(m, field) json_field_u64(b, #field, (m)->field)
#define LOG_REAL(m, field) json_field_number(b, #field, (m)->field)
#define LOG_CHOICE(m, field) json_field_u64(b, #field, (m)->field)
#define LOG_NAME(m, field) json_field_string(b, #field, (m)->field)
#define LOG_TEXT(m, field) json_field_string(b, #field, (m)->field)
#define LOG_TEXTS(m, field)                                                                                            \
        json_key(b, #field);                                                                                           \
        log_texts(b, (m)->field, (m)->n_##field)

/* Each row of common/job-options.def, as it came over the wire. */
static void log_options(struct buf *b, const Tandem__Generate *generate, const Tandem__Sampling *sampling)
{
#define OPTION(TYPE, message, field, ...) LOG_##TYPE(message, field);
#include "common/job-options.def"
#undef OPTION
}

static void log_call(struct buf *b, const Tandem__ChatCall *call)
{
        buf_puts(b, ",[");
        json_text(b, call->id, strlen(call->id));
        buf_puts(b, ",");
        json_text(b, call->name, strlen(call->name));
        buf_puts(b, ",");
        json_text(b, (char *)call->arguments.data, call->arguments.len);
        buf_puts(b, "]");
}

static void log_pictures(struct buf *b, const Tandem__Generate *generate)
{
        json_key(b, "pictures");
        buf_puts(b, "[");
        for (size_t i = 0; i < generate->n_pictures; i++) {
                const Tandem__Picture *p = generate->pictures[i];

                buf_printf(b, "%s[%u,%u,", i ? "," : "", p->message, p->offset);
                json_text(b, (char *)p->file.data, TDM_MIN(p->file.len, (size_t)32));
                buf_puts(b, "]");
        }
        buf_puts(b, "]");
}

void fake_log_request(FILE *log, const Tandem__Request *r, const int *fds, unsigned n_fds)
{
        struct buf b = { 0 };
        struct stat st;

        if (!log)
                return;
        buf_puts(&b, "{");
        json_field_u64(&b, "kind", r->kind_case);
        json_field_u64(&b, "n_fds", n_fds);
        if (n_fds == 1 && fstat(fds[0], &st) == 0)
                json_field_u64(&b, "fd_bytes", (uint64_t)st.st_size);
        switch (r->kind_case) {
        case TANDEM__REQUEST__KIND_GENERATE:
                json_field_string(&b, "request", "generate");
                json_field_string(&b, "model", r->generate->model->name);
                json_field_bool(&b, "from_fd", r->generate->model->from_fd);
                json_key(&b, "prompt");
                json_text(&b, (char *)r->generate->prompt.data, r->generate->prompt.len);
                log_options(&b, r->generate, r->generate->sampling);
                json_key(&b, "prompt_ids");
                json_ids(&b, r->generate->prompt_ids, r->generate->n_prompt_ids);
                json_key(&b, "chat");
                buf_puts(&b, "[");
                for (size_t i = 0; i < r->generate->n_chat; i++) {
                        buf_puts(&b, i ? ",[" : "[");
                        json_text(&b, r->generate->chat[i]->role, strlen(r->generate->chat[i]->role));
                        buf_puts(&b, ",");
                        json_text(&b, (char *)r->generate->chat[i]->text.data, r->generate->chat[i]->text.len);
                        for (size_t k = 0; k < r->generate->chat[i]->n_calls; k++)
                                log_call(&b, r->generate->chat[i]->calls[k]);
                        buf_puts(&b, "]");
                }
                buf_puts(&b, "]");
                log_pictures(&b, r->generate);
                break;
        case TANDEM__REQUEST__KIND_CANCEL:
                json_field_string(&b, "request", "cancel");
                json_field_u64(&b, "job", r->cancel->job);
                break;
        case TANDEM__REQUEST__KIND_TOKENIZE:
                json_field_string(&b, "request", "tokenize");
                json_field_bool(&b, "special", r->tokenize->special);
                json_field_bool(&b, "no_bos", r->tokenize->no_bos);
                break;
        case TANDEM__REQUEST__KIND_RESTART:
                json_field_string(&b, "request", "restart");
                json_field_string(&b, "worker", r->restart->worker);
                break;
        case TANDEM__REQUEST__KIND_LOAD:
                json_field_string(&b, "request", "load");
                json_field_string(&b, "model", r->load->model->name);
                break;
        case TANDEM__REQUEST__KIND_UNLOAD:
                json_field_string(&b, "request", "unload");
                json_field_string(&b, "model", r->unload->name);
                break;
        default:
                break;
        }
        buf_puts(&b, "}\n");
        fwrite(b.data, 1, b.size, log);
        fflush(log);
        buf_free(&b);
}
