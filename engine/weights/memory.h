/* How much memory a file's weights take. */
#ifndef TDM_ENGINE_WEIGHTS_MEMORY_H
#define TDM_ENGINE_WEIGHTS_MEMORY_H

#include <stdint.h>

/* What file_bytes of a tensor of a file's type take in memory: more where the type is packed as another one, with
 * larger blocks (rewrite.c). Padding of panels is not counted. */
uint64_t tdm_weights_memory_bytes(uint32_t type, uint64_t file_bytes);

#endif
