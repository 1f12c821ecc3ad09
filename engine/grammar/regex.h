/* Regular expressions as ECMA writes them, the regular part: no back references, no look-behind, look-ahead only at the
 * beginning, ^ and $ only where they stand at the beginning and the end of what is matched. Characters are Unicode code
 * points, as with the flag u. */
#ifndef TDM_ENGINE_GRAMMAR_REGEX_H
#define TDM_ENGINE_GRAMMAR_REGEX_H

#include "common/error.h"
#include "engine/grammar/chars.h"

struct tdm_regex_info {
        uint32_t min_chars, max_chars; /* of the whole text; TDM_EXPR_INF: any number */
};

/* The texts in which the pattern is found (search), or that it matches as a whole. On TDM_E_UNSUPPORTED and
 * TDM_E_BAD_REQUEST the message tells about the pattern; the caller puts its place in front. */
int tdm_regex_expr(struct tdm_arena *arena, const char *pattern, size_t size, enum tdm_text_form form, bool search,
                   uint32_t *ret, struct tdm_regex_info *ret_info, struct tdm_error *err);

#endif
