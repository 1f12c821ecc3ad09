/* Files of pictures that a command was given. What is in them is the daemon's affair; here they are told from other
 * files by their first bytes, and read within the room that a request has. */
#ifndef TDM_CLI_PICTURES_H
#define TDM_CLI_PICTURES_H

#include "client-lib/cli/cli.h"

/* Of all pictures of a request, and a little less than the daemon takes, for the texts beside them. */
#define MAX_PICTURES_BYTES (((size_t)8 << 20) - ((size_t)64 << 10))
#define MAX_PICTURES 64u

/* Counted: a message that is asked again has the pictures of the first one. */
struct cli_picture {
        unsigned n_refs;
        const char *kind; /* "PNG" */
        struct buf file;
        char name[]; /* of the file without its folders */
};

/* In front of which byte of a text each stands, in order. All zero: none. */
struct cli_pictures {
        struct cli_placed_picture {
                struct cli_picture *picture;
                size_t offset;
        } * items; /* [n] */
        size_t n;
};

/* "PNG", "JPEG" or "WebP"; NULL: none of them. *ret_other, where not NULL: what it is then, or NULL. */
const char *picture_kind(const void *head, size_t size, const char **ret_other);
/* Takes the file's bytes over. Complains and returns NULL: it is none, or no memory. */
struct cli_picture *cli_picture_new(struct buf *file, const char *path);
/* Complains and returns NULL. */
struct cli_picture *cli_picture_read(const char *path);
void cli_picture_unref(struct cli_picture *picture);
/* "cat.png (PNG, 12.0 KiB)" in a ring of static buffers. */
const char *picture_text(const struct cli_picture *picture);

/* Takes the picture over, also when it fails, which was told. */
bool cli_pictures_add(struct cli_pictures *to, struct cli_picture *picture, size_t offset);
/* The pictures of another list behind those of this one. False: as above. */
bool cli_pictures_add_all(struct cli_pictures *to, const struct cli_pictures *from);
/* Reads all files, which stand at the text's begin. False: as above. */
bool cli_pictures_read(struct cli_pictures *to, const struct arg_list *paths);
void cli_pictures_free(struct cli_pictures *pictures);
/* Whether a request has room for so many more bytes. NULL: it has. Else why not, valid until the next call. */
const char *pictures_lack_room(size_t n_pictures, size_t n_bytes);
/* As the library takes those of one message or prompt. Writes to->n of them. */
void cli_pictures_put(const struct cli_pictures *from, uint32_t message, struct tandem_picture *to);

/* Finds paths of pictures in a line that was typed: words that say they are paths (typed-path.h), of files that are
 * there and are pictures by their first bytes. They are taken out of the text, and each picture stands where its path
 * stood. A line that is one path as a whole may have blanks in it as they are. Everything else stays text. */
enum typed_pictures {
        TYPED_NO_PICTURES,
        TYPED_PICTURES, /* *ret_text and *ret are set */
        TYPED_REFUSED,  /* one cannot be taken, which was told */
} pictures_find(const char *line, size_t size, struct buf *ret_text, struct cli_pictures *ret);
/* Whether such a path stands at the line's begin. */
bool picture_begins(const char *line, size_t size);

#endif
