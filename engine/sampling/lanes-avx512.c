/* Passes over logits for AVX-512. */
#ifdef __x86_64__
#define LANES 16u
#define TABLE tdm_lanes_avx512
#include "engine/sampling/lanes-all.h"
#endif
