/* Files of pictures; see pictures.h. What is in them is the daemon's affair. */
#include "client-lib/cli/pictures.h"

#define MAX_PICTURE_BYTES ((size_t)8 << 20) /* a request has no room for more */

bool cli_pictures_read(struct cli_pictures *ret, const struct arg_list *paths, uint32_t message)
{
        struct cli_pictures p = { 0 };

        p.items = calloc(paths->n + 1, sizeof(*p.items));
        p.files = calloc(paths->n + 1, sizeof(*p.files));
        for (size_t i = 0; p.items && p.files && i < paths->n; i++) {
                if (!read_all(paths->items[i], MAX_PICTURE_BYTES, &p.files[i])) {
                        cli_pictures_free(&p);
                        return false;
                }
                p.n++;
                p.items[i] =
                        (struct tandem_picture){ .file = p.files[i].data, .size = p.files[i].size, .message = message };
        }
        if (!p.items || !p.files) {
                complain("no memory for pictures");
                cli_pictures_free(&p);
                return false;
        }
        *ret = p;
        return true;
}

void cli_pictures_free(struct cli_pictures *p)
{
        for (size_t i = 0; i < p->n; i++)
                buf_free(&p->files[i]);
        free(p->items);
        free(p->files);
        *p = (struct cli_pictures){ 0 };
}
