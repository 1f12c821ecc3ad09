/* Decoding a picture's file in a process of its own, tandem-picture-decoder. The code that reads a stranger's bytes
 * there can open no file and reach no other process, and its memory and its time are bounded. Each picture has a
 * process of its own, so that no picture meets what another one left.
 *
 * Blocks until the pixels are there or the deadline has passed: for a thread that may wait, not for an event loop. The
 * pixels are memory that nobody can write any more. */
#ifndef TDM_ENGINE_IMAGE_DECODER_H
#define TDM_ENGINE_IMAGE_DECODER_H

#include "engine/image/resize.h"

struct tdm_decoder_limits {
        uint64_t most_bytes;  /* of the file */
        uint64_t most_pixels; /* of the picture */
        uint32_t most_side;
        uint64_t deadline_ns; /* on CLOCK_MONOTONIC */
};
/* 64 million pixels are a camera's largest; files of pictures that clients send are below 20 MiB. */
#define TDM_DECODER_MOST_BYTES (UINT64_C(32) << 20)
#define TDM_DECODER_MOST_PIXELS (UINT64_C(64) << 20)
#define TDM_DECODER_MOST_SIDE 16384u

struct tdm_picture {
        struct tdm_image_size size;
        const uint8_t *rgb; /* [size.height][size.width][3] */
        int fd;             /* the same as a sealed memfd */
};

/* program: the path of tandem-picture-decoder. fd: the file; stays the caller's, its offset changes. TDM_E_BAD_REQUEST:
 * what is wrong with the picture, TDM_E_DEADLINE, TDM_E_INTERNAL where the program does not answer as it should. */
int tdm_picture_decode(struct tdm_picture **ret, const char *program, int fd, const struct tdm_decoder_limits *limits,
                       struct tdm_error *err);
void tdm_picture_destroy(struct tdm_picture *picture);
void tdm_picture_destroyp(struct tdm_picture **picture);

#endif
