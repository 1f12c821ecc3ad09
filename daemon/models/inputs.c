/* Rows of a second embedding that stay in the model's file: one for each token of a step. A file of several gigabytes
 * of which a token needs some kilobytes is not copied, and not mapped either: it is read, so that a file that was cut
 * short is a short read and no signal. What was read before is in the page cache.
 *
 * A step's rows are asked for together and then read one by one, so that a disk works on all of them at once. */
#include <fcntl.h>
#include <unistd.h>

#include "daemon/models/private.h"

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

/* The whole row, in as many reads as the kernel makes of it. */
static int read_row(struct tdm_model *model, uint32_t token, uint8_t *to)
{
        const struct tdm_model_inputs *inputs = &model->metadata->inputs;
        uint64_t at = inputs->offset + (uint64_t)token * inputs->row_bytes;

        for (uint32_t done = 0; done < inputs->row_bytes;) {
                ssize_t n = pread(file_of(model), to + done, inputs->row_bytes - done, (off_t)(at + done));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return changed(model, token, strerror(errno));
                if (n == 0)
                        return changed(model, token, "the file was cut short while it was in use");
                done += (uint32_t)n;
        }
        return 0;
}

int tdm_model_read_inputs(struct tdm_model *model, const struct tdm_step_row *rows, uint32_t n_rows, uint8_t *to)
{
        const struct tdm_model_inputs *inputs = &model->metadata->inputs;
        int fd = inputs->row_bytes ? file_of(model) : -1;

        for (uint32_t i = 0; n_rows > 1 && inputs->row_bytes && i < n_rows; i++) {
                uint64_t at = inputs->offset + (uint64_t)rows[i].token * inputs->row_bytes;

                (void)posix_fadvise(fd, (off_t)at, inputs->row_bytes, POSIX_FADV_WILLNEED); /* a wish */
        }
        for (uint32_t i = 0; inputs->row_bytes && i < n_rows; i++) {
                int r = read_row(model, rows[i].token, to + (size_t)i * inputs->row_bytes);

                if (r != 0)
                        return r;
        }
        return 0;
}
