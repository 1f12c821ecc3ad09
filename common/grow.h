/* Arrays that grow by doubling. */
#ifndef TDM_COMMON_GROW_H
#define TDM_COMMON_GROW_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* Room for n elements of item_bytes each. array is the address of the pointer to them; `least` is the first capacity.
 * Returns 0, or -ENOMEM, and then nothing has changed. The caller bounds n. */
static inline int tdm_grow(void *array, size_t *capacity, size_t n, size_t least, size_t item_bytes)
{
        void **items = array, *p;
        size_t wanted = *capacity * 2 > least ? *capacity * 2 : least;

        if (n <= *capacity)
                return 0;
        wanted = wanted > n ? wanted : n;
        p = reallocarray(*items, wanted, item_bytes);
        if (!p)
                return -ENOMEM;
        *items = p;
        *capacity = wanted;
        return 0;
}

#endif
