/* Shared by the files of this folder that work on expressions. */
#ifndef TDM_ENGINE_GRAMMAR_EXPR_PRIVATE_H
#define TDM_ENGINE_GRAMMAR_EXPR_PRIVATE_H

#include "engine/grammar/expr.h"

/* Bytes that no set of the arena tells apart form a class. Writes one byte of each class and, unless NULL, the class of
 * each of the 256 bytes; returns how many classes there are. */
unsigned tdm_arena_representatives(const struct tdm_arena *arena, uint8_t *class_of, uint8_t *representatives);

#endif
