/* Pictures as they came; see picture-files.h. The pair is Gemma 3's, the one kind of tower that there is: its processor
 * puts two line ends around each picture. */
#include "daemon/jobs/picture-files.h"

#define MARKER "<start_of_image>"
#define END "<end_of_image>"
#define PAIR "\n\n" MARKER END "\n\n"

int tdm_picture_files_init(struct tdm_picture_files *ret, const struct tdm_picture_file *files, size_t n,
                           const size_t *sizes, size_t n_texts, struct tdm_error *err)
{
        struct tdm_picture_files p = { .n = n };
        uint8_t *at;

        if (n > TDM_MAX_JOB_PICTURES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu pictures; at most %u are taken", n,
                                     TDM_MAX_JOB_PICTURES);
        for (size_t i = 0; i < n; i++) {
                if (files[i].message >= n_texts || files[i].offset > sizes[files[i].message])
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "picture %zu stands at byte %u of message %u, which there is not", i + 1,
                                             files[i].offset, files[i].message + 1);
                if (i > 0 && (files[i].message < files[i - 1].message ||
                              (files[i].message == files[i - 1].message && files[i].offset < files[i - 1].offset)))
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "picture %zu stands before picture %zu", i + 1, i);
                if (files[i].file.size == 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "picture %zu is empty", i + 1);
                p.size_bytes += files[i].file.size;
        }
        p.items = malloc(n * sizeof(*p.items) + p.size_bytes);
        p.offsets = calloc(n + 1, sizeof(*p.offsets));
        if (!p.items || !p.offsets) {
                tdm_picture_files_deinit(&p);
                return -ENOMEM;
        }
        at = (uint8_t *)(p.items + n);
        for (size_t i = 0; i < n; i++) {
                p.items[i] = files[i];
                p.items[i].file.data = memcpy(at, files[i].file.data, files[i].file.size);
                p.offsets[i] = files[i].offset;
                at += files[i].file.size;
        }
        *ret = p;
        return 0;
}

void tdm_picture_files_deinit(struct tdm_picture_files *files)
{
        free(files->items);
        free(files->offsets);
        *files = (struct tdm_picture_files){ 0 };
}

const uint32_t *tdm_picture_files_of(const struct tdm_picture_files *files, uint32_t message, size_t *ret_n)
{
        size_t first = 0, n = 0;

        while (first < files->n && files->items[first].message < message)
                first++;
        while (first + n < files->n && files->items[first + n].message == message)
                n++;
        *ret_n = n;
        return n > 0 ? files->offsets + first : NULL;
}

int tdm_picture_files_write(const struct tdm_picture_files *files, const char *text, size_t size, char **ret,
                            size_t *ret_size)
{
        char *to = malloc(size + files->n * strlen(PAIR) + 1), *at = to;
        size_t from = 0;

        if (!to)
                return -ENOMEM;
        for (size_t i = 0; i < files->n; i++) {
                at = mempcpy(at, text + from, files->items[i].offset - from);
                at = mempcpy(at, PAIR, strlen(PAIR));
                from = files->items[i].offset;
        }
        at = mempcpy(at, text + from, size - from);
        *at = '\0';
        *ret = to;
        *ret_size = (size_t)(at - to);
        return 0;
}

/* Copies the prompt's text to `to` with a pair for each marker that the template wrote, and moves the ends of spans.
 * to NULL: only counts. Returns how many there are. */
static size_t wrap_markers(struct tdm_chat_prompt *p, char *to)
{
        size_t at = 0, n = 0;

        for (size_t i = 0; i < p->n_spans; i++) {
                const size_t end = p->spans[i].end;
                const char *found;

                while (p->spans[i].is_trusted && (found = memmem(p->text + at, end - at, MARKER, strlen(MARKER)))) {
                        size_t size = (size_t)(found - p->text) - at;

                        to = to ? mempcpy(mempcpy(to, p->text + at, size), PAIR, strlen(PAIR)) : NULL;
                        at += size + strlen(MARKER);
                        n++;
                }
                to = to ? mempcpy(to, p->text + at, end - at) : NULL;
                at = end;
                if (to)
                        p->spans[i].end = end + n * (strlen(PAIR) - strlen(MARKER));
        }
        if (to)
                *to = '\0';
        return n;
}

int tdm_picture_files_wrap(const struct tdm_picture_files *files, struct tdm_chat_prompt *p, struct tdm_error *err)
{
        size_t n = wrap_markers(p, NULL), size = p->size + n * (strlen(PAIR) - strlen(MARKER));
        char *text;

        if (n != files->n)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model's chat template has no place for a picture in one of these messages: "
                                     "it wrote %zu markers for %zu pictures",
                                     n, files->n);
        text = malloc(size + 1);
        if (!text)
                return -ENOMEM;
        wrap_markers(p, text);
        free(p->text);
        p->text = text;
        p->size = size;
        return 0;
}

int tdm_picture_files_find(const struct tdm_picture_files *files, const struct tdm_tokenizer *tokenizer,
                           const uint32_t *ids, uint32_t n_ids, uint32_t *ret, struct tdm_error *err)
{
        uint32_t marker, end;
        size_t n = 0;

        if (tdm_tokenizer_find_marker(tokenizer, MARKER, &marker) < 0 ||
            tdm_tokenizer_find_marker(tokenizer, END, &end) < 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model's vocabulary has no pieces " MARKER " and " END
                                     ", between which pictures stand");
        for (uint32_t i = 0; i + 1 < n_ids; i++) {
                if (ids[i] != marker || ids[i + 1] != end)
                        continue;
                if (n < files->n)
                        ret[n] = i + 1;
                n++;
        }
        if (n != files->n)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the prompt has " MARKER END
                                     " of its own, or not all of its pictures have a place: %zu for %zu pictures",
                                     n, files->n);
        return 0;
}
