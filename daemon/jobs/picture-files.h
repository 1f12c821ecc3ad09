/* The pictures of a prompt as they came: files and the places at which they stand in the prompt's text. A thread makes
 * rows of them (daemon/schedule/encode.c).
 *
 * In the text a picture is the marker and the end that the model knows, side by side, and the rows go between their
 * tokens. The pair is written where the picture stands. Only a chat template or this code writes it: what a person
 * wrote in a message never becomes these tokens. In a raw prompt it may: then there are too many pairs, which is
 * refused. */
#ifndef TDM_DAEMON_JOBS_PICTURE_FILES_H
#define TDM_DAEMON_JOBS_PICTURE_FILES_H

#include "daemon/jobs/pictures.h"
#include "engine/chat/chat.h"

struct tdm_picture_file {
        struct tdm_chat_text file;
        uint32_t message; /* of a chat: in which one it stands, from 0 on */
        uint32_t offset;  /* in bytes of that message's text, or of the prompt; in order */
};

/* All zero: none. */
struct tdm_picture_files {
        struct tdm_picture_file *items; /* [n], in one piece of memory with their files */
        size_t n;
        size_t size_bytes;
        uint32_t *offsets; /* [n]: those of items, as messages have them */
};

/* Copies them. sizes: of the messages' texts [n_texts], or of the one prompt. TDM_E_BAD_REQUEST, -ENOMEM. */
int tdm_picture_files_init(struct tdm_picture_files *ret, const struct tdm_picture_file *files, size_t n,
                           const size_t *sizes, size_t n_texts, struct tdm_error *err);
void tdm_picture_files_deinit(struct tdm_picture_files *files);
/* Those of one message: *ret_n offsets. */
const uint32_t *tdm_picture_files_of(const struct tdm_picture_files *files, uint32_t message, size_t *ret_n);

/* A raw prompt with a pair at each place. *ret is the caller's. -ENOMEM. */
int tdm_picture_files_write(const struct tdm_picture_files *files, const char *text, size_t size, char **ret,
                            size_t *ret_size);
/* Makes pairs of the markers that the template wrote. TDM_E_UNSUPPORTED: they are not as many as pictures. -ENOMEM. */
int tdm_picture_files_wrap(const struct tdm_picture_files *files, struct tdm_chat_prompt *prompt,
                           struct tdm_error *err);
/* Where the rows go: behind these ids, [files->n]. TDM_E_UNSUPPORTED: the vocabulary has no such pieces.
 * TDM_E_BAD_REQUEST: the pairs are not as many as pictures. */
int tdm_picture_files_find(const struct tdm_picture_files *files, const struct tdm_tokenizer *tokenizer,
                           const uint32_t *ids, uint32_t n_ids, uint32_t *ret, struct tdm_error *err);

#endif
