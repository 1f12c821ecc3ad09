/* Decimal numbers, exactly: comparison, and the texts of JSON numbers in a range or that are multiples.
 *
 * Texts that readers with doubles would take for another value are left out: integers have at most 300 digits,
 * exponents stay below 308, and where a bound or a multiple is given, digits are so few (15 significant ones) that
 * rounding to a double cannot carry a value across the bound. */
#ifndef TDM_ENGINE_GRAMMAR_NUMBER_H
#define TDM_ENGINE_GRAMMAR_NUMBER_H

#include "engine/grammar/expr.h"

#define TDM_DECIMAL_DIGITS_MAX 400

/* ±digits · 10^exponent; digits without zeros at either end, none for zero. */
struct tdm_decimal {
        bool negative;
        uint16_t n;
        int32_t exponent;
        char digits[TDM_DECIMAL_DIGITS_MAX];
};

/* False where it has more digits or a larger exponent than are held. */
bool tdm_decimal_parse(struct tdm_decimal *decimal, const char *text, size_t size);
int tdm_decimal_compare(const struct tdm_decimal *a, const struct tdm_decimal *b);
bool tdm_decimal_is_integer(const struct tdm_decimal *decimal);
/* Without an exponent; returns the length, or 0 where it does not fit. */
size_t tdm_decimal_print(const struct tdm_decimal *decimal, char *text, size_t size);
/* As d.dde±n. */
size_t tdm_decimal_print_exponent(const struct tdm_decimal *decimal, char *text, size_t size);

#define TDM_NUMBER_MULTIPLES_MAX 4

struct tdm_number_range {
        bool has_low, has_high, low_open, high_open; /* open: the bound itself is out */
        struct tdm_decimal low, high;
        bool integer, no_exponent;
        struct tdm_decimal multiples[TDM_NUMBER_MULTIPLES_MAX];
        unsigned n_multiples;
};

/* TDM_EXPR_NONE where no number is in it. *ret_why is set, and NONE returned, for what is not held. */
uint32_t tdm_number_expr(struct tdm_arena *arena, const struct tdm_number_range *range, const char **ret_why);

/* The texts without exponents that have this value. */
uint32_t tdm_number_equal(struct tdm_arena *arena, const struct tdm_decimal *decimal);

#endif
