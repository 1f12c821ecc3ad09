/* The arrays of a case of JSON Schema, between schema-array.c and schema-unique.c. */
#ifndef TDM_ENGINE_GRAMMAR_SCHEMA_ARRAY_H
#define TDM_ENGINE_GRAMMAR_SCHEMA_ARRAY_H

#include "engine/grammar/schema.h"

enum { PREFIX_MAX = 2000, STATES_MAX = 20000, CONTAINS_MAX = 4 };

struct arrays {
        struct tdm_schema *s;
        const struct tdm_schema_case *c;
        uint32_t n_prefix, min, max;
        struct contained {
                uint32_t node, part;
                uint32_t low, high;       /* how many items it counts; high may be TDM_EXPR_INF */
                uint32_t n_count, stride; /* counts above n_count are one; a state is the sum of count * stride */
        } contains[CONTAINS_MAX];
        unsigned n_contains;
        bool unique;
};

/* The schemas of the item at index; index n_prefix stands for all behind the prefix. set: the contains that count it,
 * which leave nothing of it to unevaluatedItems around them. Their own schemas are not among them. */
void tdm_schema_item(struct arrays *a, uint32_t index, unsigned set, struct tdm_schema_nodes *value);

/* The arrays whose items differ from each other, where each item is one of few values. */
uint32_t tdm_schema_unique(struct arrays *a);

#endif
