/* Lists of token ids as text: decimal numbers with commas between, and white space around them if one likes. Jobs carry
 * drawn tokens in this form. Any thread. */
#ifndef TDM_COMMON_ID_LIST_H
#define TDM_COMMON_ID_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The id at *at, which goes on to the next one, or to the end. False: there is none, or the list ends with a comma. */
bool tdm_id_list_next(const char **at, uint32_t *ret);
/* How many ids it has if it is one. NULL: none. */
uint32_t tdm_id_list_length(const char *list);
/* To be freed. NULL: no memory. */
char *tdm_id_list_format(const uint32_t *ids, size_t n);

#endif
