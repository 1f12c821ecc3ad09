/* Passes over logits for AVX2. */
#ifdef __x86_64__
#define LANES 8u
#define TABLE tdm_lanes_avx2
#include "engine/sampling/lanes-all.h"
#endif
