/* Base64 (common/base64.h) in requests and answers. */
#ifndef TDM_HTTP_BASE64_H
#define TDM_HTTP_BASE64_H

#include "http-gateway/buffer.h"
#include "http-gateway/errors.h"

/* That n bytes take. */
#define BASE64_BYTES(n) (((n) + 2) / 3 * 4)
void base64_add(struct buffer *to, const void *data, size_t size);
/* *ret is the caller's, and may be of no bytes. 0, or a failure that says of `name` what is wrong with it. */
int base64_read(const char *text, size_t size, const char *name, void **ret, size_t *ret_size, struct failure *f);

#endif
