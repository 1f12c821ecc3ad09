/* What is said over the socket between tandem-picture-decoder and the process that wants a picture decoded: one order
 * with two fds, one answer. Both are of one build. */
#ifndef TDM_ENGINE_IMAGE_DECODER_ABI_H
#define TDM_ENGINE_IMAGE_DECODER_ABI_H

#include <stdint.h>

#define TDM_DECODER_MAGIC UINT32_C(0x54504943) /* "TPIC" */
#define TDM_DECODER_SOCKET_FD 3

/* With it come the file, to read from its start, and memory for most_pixels * 3 bytes, to map and write. */
struct tdm_decoder_order {
        uint32_t magic;
        uint32_t most_side;
        uint64_t most_pixels;
        uint64_t most_bytes;
        uint64_t memory_bytes; /* of address space that decoding may take, beyond the fds' and the programs' */
        uint32_t seconds;      /* after which the process ends itself */
        uint32_t reserved;
};

struct tdm_decoder_answer {
        uint32_t magic;
        int32_t code; /* of struct tdm_error; 0: decoded */
        uint32_t width, height;
        char message[512];
};

#endif
