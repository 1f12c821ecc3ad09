/* The table of one instruction set, named TABLE, with LANES lanes: its file defines both, then includes this. */
#include "engine/sampling/lanes-noise.h"
#include "engine/sampling/lanes-scan.h"
#include "engine/sampling/lanes-table.h"

const struct tdm_lanes_table TABLE = { sum_exp, find_maxima, greatest_of, noise_scores, noise_bounds, noise_weights };
