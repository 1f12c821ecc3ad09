#include "tests/spirv-executor/faults.h"
bool plant_fault(uint32_t *words, size_t n, const char *fault)
{
        (void)words;
        (void)n;
        (void)fault;
        return false;
}
