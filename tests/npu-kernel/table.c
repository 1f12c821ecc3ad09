/* Handles of an open file: the lowest free number from 1, as DRM gives them, so that a stale handle soon means
 * something else. */
#include "tests/npu-kernel/kernel.h"

int table_add(struct table *table, void *p, uint32_t *ret_handle)
{
        uint32_t i = 0;

        while (i < table->n && table->entry[i])
                i++;
        if (i == MAX_HANDLES)
                return -ENOSPC;
        if (i == table->n) {
                uint32_t n = table->n ? table->n * 2 : 64;
                void **entry = realloc(table->entry, n * sizeof(*entry));

                if (!entry)
                        return -ENOMEM;
                memset(entry + table->n, 0, (n - table->n) * sizeof(*entry));
                table->entry = entry;
                table->n = n;
        }
        table->entry[i] = p;
        *ret_handle = i + 1;
        return 0;
}

void *table_get(const struct table *table, uint32_t handle)
{
        return handle == 0 || handle > table->n ? NULL : table->entry[handle - 1];
}

void *table_remove(struct table *table, uint32_t handle)
{
        void *p = table_get(table, handle);

        if (p)
                table->entry[handle - 1] = NULL;
        return p;
}
