/* Shared by the tests of huge pages: how much of a segment this process sees through them. */
#ifndef TDM_COMMON_TEST_HUGEPAGE_H
#define TDM_COMMON_TEST_HUGEPAGE_H

#include "common/hugepage.h"
#include "common/shm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

/* As the kernel says it of the mappings in this range. */
static uint64_t test_huge_bytes(const struct tdm_segment *s)
{
        unsigned long long from, to, kib;
        uint64_t bytes = 0;
        bool inside = false;
        char line[4096];
        FILE *f = fopen("/proc/self/smaps", "re");

        assert_non_null(f);
        while (fgets(line, sizeof(line), f)) {
                if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
                        inside = from >= (uintptr_t)s->base && to <= (uintptr_t)s->base + s->size_bytes;
                else if (inside && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
                        bytes += kib * 1024;
        }
        fclose(f);
        return bytes;
}

#endif
