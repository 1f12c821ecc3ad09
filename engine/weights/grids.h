/* The codebooks of IQ1, IQ2 and IQ3: which groups of magnitudes a file can name. They are facts of the format, as the
 * GGUF project publishes them (the tables `grid_hex` in gguf/quants.py of the Python package gguf 0.19, under the MIT
 * licence).
 *
 * An entry has the codes of a group's columns, the first one in the lowest bits: 8 columns of 2 bits each in IQ1 and
 * IQ2, 4 columns of 3 bits each in IQ3. What a code stands for: tdm_subblock_grid_values (subblock.h). */
#ifndef TDM_ENGINE_WEIGHTS_GRIDS_H
#define TDM_ENGINE_WEIGHTS_GRIDS_H

#include <stdint.h>

extern const uint16_t tdm_grid_iq1[2048]; /* of IQ1_S and IQ1_M */
extern const uint16_t tdm_grid_iq2_xxs[256];
extern const uint16_t tdm_grid_iq2_xs[512];
extern const uint16_t tdm_grid_iq2_s[1024];
extern const uint16_t tdm_grid_iq3_xxs[256];
extern const uint16_t tdm_grid_iq3_s[512];

#endif
