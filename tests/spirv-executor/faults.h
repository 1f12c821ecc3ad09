/* Faults that tests plant in a shader for matrix units, to see that what proves such shaders finds them. */
#ifndef TDM_TESTS_SPIRV_EXECUTOR_FAULTS_H
#define TDM_TESTS_SPIRV_EXECUTOR_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Changes the words of a module in place; of one without matrices nothing. Returns false where it has matrices and no
 * place for such a fault. Faults: see faults.c. */
bool plant_fault(uint32_t *words, size_t n, const char *fault);

#endif
