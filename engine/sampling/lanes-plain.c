/* Passes over logits for any machine: 4 lanes, as SSE2 and NEON have. */
#define LANES 4u
#define TABLE tdm_lanes_plain
#include "engine/sampling/lanes-all.h"
