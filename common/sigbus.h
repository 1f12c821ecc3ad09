/* Reading a mapped file that another process may cut short: SIGBUS becomes an error and does not kill the process.
 * A handler maps a page of zeros over the missing one and marks the guard that covers the address; any other SIGBUS
 * still kills. Guards may be used by several threads at once, each guard by one.
 * The kernel itself fills the rest of the file's last page with zeros and raises nothing. A reader that must notice a
 * cut inside that page has to check the file's size afterwards, too. */
#ifndef TDM_COMMON_SIGBUS_H
#define TDM_COMMON_SIGBUS_H

#include "common/error.h"

struct tdm_sigbus_guard {
        const uint8_t *base;
        size_t size_bytes;
        int hit;  /* valid after guard_end(); before it, ask guard_hit() */
        int slot; /* 0: none, so that a zeroed guard may be ended */
};

int tdm_sigbus_init(void); /* once per process, before the first guard */
/* -ENOSPC: 64 at once. */
int tdm_sigbus_guard_begin(struct tdm_sigbus_guard *guard, const void *base, size_t size_bytes);
bool tdm_sigbus_guard_hit(const struct tdm_sigbus_guard *guard); /* true: something read there was not in the file */
void tdm_sigbus_guard_end(struct tdm_sigbus_guard *guard);

#endif
