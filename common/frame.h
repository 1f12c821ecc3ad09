/* Shared by frame.c and conn.c beyond common/conn.h: the header's size and one sendmsg() with fds. */
#ifndef TDM_COMMON_FRAME_H
#define TDM_COMMON_FRAME_H

#include <sys/types.h>
#include "common/conn.h"

#define TDM_FRAME_HEADER_BYTES 4u

void tdm_frame_header(uint8_t header[TDM_FRAME_HEADER_BYTES], uint32_t size);

/* Sends what the kernel takes of one frame, from byte `sent` of header and data on; the fds go with byte 0.
 * Returns the number of bytes taken, or a negative errno; -EPIPE when the peer is gone. */
ssize_t tdm_frame_send_some(int fd, const void *data, size_t size, size_t sent, const int *fds, unsigned n_fds);

/* After tdm_frame_reader_fill() gave -EPROTO: fills err with TDM_E_PROTOCOL and what the peer did. */
int tdm_frame_reader_explain(const struct tdm_frame_reader *reader, struct tdm_error *err);

#endif
