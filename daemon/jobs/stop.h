/* Stop strings, matched over the decoded text across token borders.
 *
 * Text goes in as it is decoded (whole characters). It comes out as soon as it can no longer be part of a stop string;
 * the stop string itself never comes out. The earliest match ends the text. Stop strings are well-formed UTF-8, so
 * whole characters come out too. */
#ifndef TDM_DAEMON_JOBS_STOP_H
#define TDM_DAEMON_JOBS_STOP_H

#include "common/error.h"

#define TDM_MAX_STOPS 16u
#define TDM_MAX_STOP_BYTES 256u

struct tdm_stop;

struct tdm_stop_string {
        const char *data;
        size_t size;
};

/* Copies the strings. TDM_E_BAD_REQUEST: too many, too long, empty, not UTF-8. */
int tdm_stop_new(struct tdm_stop **ret, const struct tdm_stop_string *strings, size_t n, struct tdm_error *err);
void tdm_stop_destroy(struct tdm_stop *stop);
void tdm_stop_destroyp(struct tdm_stop **stop);

/* Writes the text that can no longer be part of a stop string to out (room: TDM_MAX_STOP_BYTES + size) and returns its
 * size. *ret_hit: a stop string is complete, and the text is over. */
size_t tdm_stop_push(struct tdm_stop *stop, const char *text, size_t size, char *out, bool *ret_hit);
/* Writes the text that is still held, when the text ends without a stop string: at most TDM_MAX_STOP_BYTES. */
size_t tdm_stop_finish(struct tdm_stop *stop, char *out);

#endif
