/* The pictures of a request: files in base64, as the four APIs write them, and the places where they stand.
 *
 * A picture's text is freed as soon as it has become a file, so a request holds each picture once. What the file is,
 * tandemd's decoder says; here only its form is looked at. Nothing is fetched and no file is read: a gateway that did
 * so would lend its place in the network to whoever can send a request. Any thread: it uses nothing but its arguments.
 */
#ifndef TDM_HTTP_PICTURES_H
#define TDM_HTTP_PICTURES_H

#include "http-gateway/errors.h"

struct generation_request;

#define MAX_PICTURES 64u /* of a request; tandemd takes no more */
#define PICTURE_PLACE_BYTES 96u

struct request_pictures {
        struct tandem_picture *items;        /* [n], in order of their places; the files are owned */
        char (*places)[PICTURE_PLACE_BYTES]; /* [n]: as the request has them, "messages[0].content[1]" */
        size_t n;
        size_t size_bytes; /* of their files */
};
void request_pictures_free(struct request_pictures *p);

/* Whether a part or block of this type is a picture. */
bool picture_is_a_part(const char *type);
/* A part image_url or input_image, or a block image. It stands in front of byte `offset` of the message that is being
 * made. 0, or the status of the failure. */
int request_take_picture(struct generation_request *r, const json_t *part, size_t offset, const char *where,
                         struct failure *f);
/* Ollama's `images`: they stand in front of the text of the message with this number, or of the prompt. where: of the
 * array. NULL: none. */
int request_take_images(struct generation_request *r, const json_t *images, size_t message, const char *where,
                        struct failure *f);
/* For a peer, and from one. NULL: out of memory. */
json_t *request_pictures_json(const struct request_pictures *p);
int request_take_peers_pictures(struct generation_request *r, const json_t *pictures, struct failure *f);
/* The last message becomes a part of the one before it: its text stands `by` bytes behind that one's beginning. */
void request_pictures_join(struct generation_request *r, size_t by);
/* What tandemd says of "picture 2" gets its place in the request. */
void failure_name_picture(struct failure *f, const struct generation_request *r);

#endif
