/* Rows of a second embedding that stay in the model's file: one for each token of a step. A file of several gigabytes
 * of which a token needs some kilobytes is not copied, and not mapped either: it is read, so that a file that was cut
 * short is a short read and no signal. What was read before is in the page cache.
 *
 * The event loop must not wait for a disk. It takes what is in the page cache (RWF_NOWAIT). Where a row is not, a
 * thread reads all rows of the step, and the step is made anew when they are there. A file system that cannot say what
 * it has in memory has its rows read by the thread first, always. */
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/models/private.h"

#define FETCH_THREADS 4u
#define FETCH_BYTES (256u << 10) /* read at once, to have it in memory */

/* A thread's work: it reads pages, and their content stays in the page cache. */
struct fetch {
        struct tdm_model *model; /* a reference */
        int fd;
        uint64_t offset; /* of the first token's row */
        uint32_t row_bytes, n;
        uint32_t tokens[];
};

static int changed(struct tdm_model *model, uint32_t token, const char *why)
{
        struct tdm_error err;

        tdm_error_set(
                &err, TDM_E_MODEL_CHANGED,
                "model file %.*s cannot be read at token %u of its second embedding: %s; ask again to load it anew",
                TDM_UTF8_CUT(tdm_model_told_path(model), 200), token, why);
        tdm_model_fail(model, &err);
        return TDM_E_MODEL_CHANGED;
}

static int file_of(const struct tdm_model *model)
{
        uint32_t part = model->metadata->inputs.part;

        return part == 0 ? model->fd : model->metadata->parts->files[part - 1].fd;
}

/* The whole row, in as many reads as the kernel makes of it. -EAGAIN: some of it is not in memory. */
static int read_row(struct tdm_model *model, uint32_t token, uint8_t *to, bool may_wait)
{
        const struct tdm_model_inputs *inputs = &model->metadata->inputs;
        uint64_t at = inputs->offset + (uint64_t)token * inputs->row_bytes;

        for (uint32_t done = 0; done < inputs->row_bytes;) {
                struct iovec rest = { to + done, inputs->row_bytes - done };
                ssize_t n = preadv2(file_of(model), &rest, 1, (off_t)(at + done), may_wait ? 0 : RWF_NOWAIT);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && !may_wait && (errno == EAGAIN || errno == EOPNOTSUPP))
                        return -EAGAIN;
                if (n < 0)
                        return changed(model, token, strerror(errno));
                if (n == 0)
                        return changed(model, token, "the file was cut short while it was in use");
                done += (uint32_t)n;
        }
        return 0;
}

static int by_token(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return (x > y) - (x < y);
}

static bool was_fetched(const struct fetch *f, uint32_t token)
{
        return f && bsearch(&token, f->tokens, f->n, sizeof(token), by_token);
}

/* All of them are asked for first, so that a disk works on them at once. An error is found again by the loop. */
static void run_fetch(void *task)
{
        const struct fetch *f = task;
        _cleanup_(freep) uint8_t *room = malloc(FETCH_BYTES);

        for (uint32_t i = 0; i < f->n; i++)
                (void)posix_fadvise(f->fd, (off_t)(f->offset + (uint64_t)f->tokens[i] * f->row_bytes), f->row_bytes,
                                    POSIX_FADV_WILLNEED); /* a wish */
        for (uint32_t i = 0; room && i < f->n; i++)
                for (uint32_t done = 0; done < f->row_bytes; done += FETCH_BYTES)
                        if (pread(f->fd, room, TDM_MIN(f->row_bytes - done, FETCH_BYTES),
                                  (off_t)(f->offset + (uint64_t)f->tokens[i] * f->row_bytes + done)) <= 0)
                                return;
}

static void on_fetched(void *task, bool ran)
{
        struct fetch *f = task;
        struct tdm_model *model = f->model;

        model->fetching = false;
        free(model->fetched);
        model->fetched = f;
        if (ran && model->models->on_rows)
                model->models->on_rows(model, model->models->rows_userdata);
        tdm_model_unref(model);
}

static int start_fetch(struct tdm_model *model, const struct tdm_step_row *rows, uint32_t n_rows)
{
        const struct tdm_model_inputs *inputs = &model->metadata->inputs;
        struct tdm_models *m = model->models;
        struct fetch *f = malloc(sizeof(*f) + n_rows * sizeof(f->tokens[0]));
        int r = 0;

        if (!f)
                return -ENOMEM;
        if (!m->fetcher)
                r = tdm_background_new_pool(&m->fetcher, m->loop, FETCH_THREADS);
        if (r < 0) {
                free(f);
                return r;
        }
        *f = (struct fetch){ .model = tdm_model_ref(model),
                             .fd = file_of(model),
                             .offset = inputs->offset,
                             .row_bytes = inputs->row_bytes,
                             .n = n_rows };
        for (uint32_t i = 0; i < n_rows; i++)
                f->tokens[i] = rows[i].token;
        qsort(f->tokens, n_rows, sizeof(f->tokens[0]), by_token);
        model->fetching = true;
        r = tdm_background_add_for(m->fetcher, model->account ? model->account->identity : 0, run_fetch, on_fetched, f);
        if (r < 0) {
                model->fetching = false;
                tdm_model_unref(model);
                free(f);
        }
        return r;
}

static int read_rows(struct tdm_model *model, const struct tdm_step_row *rows, uint32_t n_rows, uint8_t *to,
                     bool may_wait)
{
        uint32_t row_bytes = model->metadata->inputs.row_bytes;
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < n_rows; i++)
                r = read_row(model, rows[i].token, to + (size_t)i * row_bytes,
                             may_wait || was_fetched(model->fetched, rows[i].token));
        return r;
}

int tdm_model_read_inputs(struct tdm_model *model, const struct tdm_step_row *rows, uint32_t n_rows, uint8_t *to)
{
        const struct tdm_model_inputs *inputs = &model->metadata->inputs;
        int r;

        if (!inputs->row_bytes)
                return 0;
        if (model->fetching)
                return -EAGAIN;
        r = read_rows(model, rows, n_rows, to, false);
        if (r == -EAGAIN && start_fetch(model, rows, n_rows) < 0)
                r = read_rows(model, rows, n_rows, to, true); /* no thread is to be had, and jobs must go on */
        if (r != -EAGAIN)
                free(steal_ptr(&model->fetched));
        return r;
}
