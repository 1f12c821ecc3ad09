/* Decimals and the texts of numbers. A range of numbers of equally many digits is cut digit by digit: the first digit
 * lies strictly between those of the bounds and the others are free, or it is a bound's and the others are in that
 * bound's half. */
#include "engine/grammar/number.h"

enum { INT_DIGITS_MAX = 300, EXACT_DIGITS = 15, EXPONENT_MAX = 5000, DIVISOR_MAX = 20000 };

bool tdm_decimal_parse(struct tdm_decimal *d, const char *text, size_t size)
{
        size_t i = 0;
        int64_t exponent = 0, given = 0;
        bool point = false, minus = false;

        *d = (struct tdm_decimal){ 0 };
        if (i < size && text[i] == '-') {
                d->negative = true;
                i++;
        }
        for (; i < size && text[i] != 'e' && text[i] != 'E'; i++) {
                if (text[i] == '.') {
                        point = true;
                        continue;
                }
                exponent -= point;
                if (d->n == 0 && text[i] == '0')
                        continue;
                if (d->n == TDM_DECIMAL_DIGITS_MAX)
                        return false;
                d->digits[d->n++] = text[i];
        }
        if (i < size) {
                i++;
                if (i < size && (text[i] == '+' || text[i] == '-'))
                        minus = text[i++] == '-';
                for (; i < size; i++)
                        given = TDM_MIN(given * 10 + (text[i] - '0'), INT64_C(1000000));
                exponent += minus ? -given : given;
        }
        while (d->n > 0 && d->digits[d->n - 1] == '0') {
                d->n--;
                exponent++;
        }
        if (d->n == 0) {
                d->negative = false;
                return true;
        }
        d->exponent = (int32_t)exponent;
        return exponent > -EXPONENT_MAX && exponent < EXPONENT_MAX;
}

/* Compares magnitudes. */
static int compare_size(const struct tdm_decimal *a, const struct tdm_decimal *b)
{
        int32_t top_a = a->exponent + a->n, top_b = b->exponent + b->n;
        int r;

        if (a->n == 0 || b->n == 0)
                return (a->n > 0) - (b->n > 0);
        if (top_a != top_b)
                return top_a < top_b ? -1 : 1;
        r = memcmp(a->digits, b->digits, TDM_MIN(a->n, b->n));
        return r ? r : a->n - b->n;
}

int tdm_decimal_compare(const struct tdm_decimal *a, const struct tdm_decimal *b)
{
        if (a->negative != b->negative)
                return a->negative ? -1 : 1;
        return a->negative ? compare_size(b, a) : compare_size(a, b);
}

bool tdm_decimal_is_integer(const struct tdm_decimal *d)
{
        return d->n == 0 || d->exponent >= 0;
}

/* Digits before and behind the point, of the magnitude. Returns false where they do not fit. */
static bool split(const struct tdm_decimal *d, char *whole, size_t *ret_n_whole, char *part, size_t *ret_n_part,
                  size_t capacity)
{
        int32_t top = d->n + d->exponent; /* digits before the point */
        size_t n_whole = top > 0 ? (size_t)top : 0, n_part = d->exponent < 0 && d->n > 0 ? (size_t)-d->exponent : 0;

        if (n_whole > capacity || n_part > capacity)
                return false;
        for (size_t i = 0; i < n_whole; i++)
                whole[i] = i < d->n ? d->digits[i] : '0';
        for (size_t i = 0; i < n_part; i++) { /* the digit of weight 10^-(i+1) has index top + i */
                int32_t k = top + (int32_t)i;

                part[i] = k >= 0 && k < d->n ? d->digits[k] : '0';
        }
        if (d->n == 0)
                n_whole = 0;
        *ret_n_whole = n_whole;
        *ret_n_part = n_part;
        return true;
}

size_t tdm_decimal_print(const struct tdm_decimal *d, char *text, size_t size)
{
        char whole[1024], part[1024];
        size_t n_whole, n_part, at = 0;

        if (!split(d, whole, &n_whole, part, &n_part, sizeof(whole)) || n_whole + n_part + 4 > size)
                return 0;
        if (d->negative)
                text[at++] = '-';
        if (n_whole == 0)
                text[at++] = '0';
        memcpy(text + at, whole, n_whole);
        at += n_whole;
        if (n_part > 0) {
                text[at++] = '.';
                memcpy(text + at, part, n_part);
                at += n_part;
        }
        text[at] = 0;
        return at;
}

size_t tdm_decimal_print_exponent(const struct tdm_decimal *d, char *text, size_t size)
{
        size_t at = 0;

        if (d->n == 0 || (size_t)d->n + 16 > size)
                return 0;
        if (d->negative)
                text[at++] = '-';
        text[at++] = d->digits[0];
        if (d->n > 1) {
                text[at++] = '.';
                memcpy(text + at, d->digits + 1, d->n - 1u);
                at += d->n - 1u;
        }
        at += (size_t)snprintf(text + at, size - at, "e%d", (int)(d->exponent + d->n - 1));
        return at;
}

/* ---- texts ---- */

static uint32_t digit(struct tdm_arena *a, char low, char high)
{
        return low <= high ? tdm_expr_range(a, (uint8_t)low, (uint8_t)high) : TDM_EXPR_NONE;
}

static uint32_t any_digits(struct tdm_arena *a, uint32_t min, uint32_t max)
{
        return tdm_expr_rep(a, digit(a, '0', '9'), min, max);
}

/* n digits, at least or at most those of bound. */
static uint32_t same_length(struct tdm_arena *a, const char *low, const char *high, size_t n)
{
        uint32_t at_low = TDM_EXPR_EPS, at_high = TDM_EXPR_EPS, both;
        size_t common = 0;

        while (common < n && low[common] == high[common])
                common++;
        if (common == n)
                return tdm_expr_literal(a, low, n);
        if (low[common] > high[common])
                return TDM_EXPR_NONE;
        for (size_t i = n; i-- > common + 1;) {
                uint32_t rest = any_digits(a, (uint32_t)(n - i - 1), (uint32_t)(n - i - 1));

                at_low = tdm_expr_alt(a, tdm_expr_cat(a, digit(a, low[i], low[i]), at_low),
                                      low[i] < '9' ? tdm_expr_cat(a, digit(a, (char)(low[i] + 1), '9'), rest) :
                                                     TDM_EXPR_NONE);
                at_high = tdm_expr_alt(a, tdm_expr_cat(a, digit(a, high[i], high[i]), at_high),
                                       high[i] > '0' ? tdm_expr_cat(a, digit(a, '0', (char)(high[i] - 1)), rest) :
                                                       TDM_EXPR_NONE);
        }
        both = tdm_expr_alt(a, tdm_expr_cat(a, digit(a, low[common], low[common]), at_low),
                            tdm_expr_cat(a, digit(a, high[common], high[common]), at_high));
        if (low[common] + 1 < high[common])
                both = tdm_expr_alt(a,
                                    tdm_expr_cat(a, digit(a, (char)(low[common] + 1), (char)(high[common] - 1)),
                                                 any_digits(a, (uint32_t)(n - common - 1), (uint32_t)(n - common - 1))),
                                    both);
        return tdm_expr_cat(a, tdm_expr_literal(a, low, common), both);
}

/* Whole numbers from low to high, as digits without leading zeros ("" is 0). n_high SIZE_MAX: no upper bound but
 * max_digits. */
static uint32_t whole_range(struct tdm_arena *a, const char *low, size_t n_low, const char *high, size_t n_high,
                            size_t max_digits)
{
        char edge[INT_DIGITS_MAX + 8];
        uint32_t e = TDM_EXPR_NONE;

        if (n_low == 0) { /* zero by itself, then from 1 */
                e = digit(a, '0', '0');
                if (n_high == 0)
                        return e;
                return tdm_expr_alt(a, e, whole_range(a, "1", 1, high, n_high, max_digits));
        }
        if (n_high != SIZE_MAX && (n_low > n_high || (n_low == n_high && memcmp(low, high, n_low) > 0)))
                return TDM_EXPR_NONE;
        if (n_low == n_high)
                return same_length(a, low, high, n_low);
        memset(edge, '9', n_low);
        e = same_length(a, low, edge, n_low);
        {
                size_t last = n_high == SIZE_MAX ? TDM_MAX(max_digits, n_low) : n_high - 1;

                if (last > n_low)
                        e = tdm_expr_alt(a, e,
                                         tdm_expr_cat(a, digit(a, '1', '9'),
                                                      any_digits(a, (uint32_t)n_low, (uint32_t)last - 1)));
        }
        if (n_high != SIZE_MAX) {
                memset(edge, '0', n_high);
                edge[0] = '1';
                e = tdm_expr_alt(a, e, same_length(a, edge, high, n_high));
        }
        return e;
}

/* Digits behind a point ("" with no point), so that 0.digits is at least (or at most) 0.bound, of at most max digits.
 * open: not the bound itself. */
static uint32_t part_above(struct tdm_arena *a, const char *bound, size_t n, size_t max, bool open)
{
        /* Behind the bound's digits: zeros are the bound itself, anything else is above. */
        size_t left = max - n;
        uint32_t e = open ? TDM_EXPR_NONE : any_digits(a, 0, (uint32_t)left);

        for (size_t k = 1; open && k <= left; k++) /* k digits or fewer, not all of them zeros */
                e = tdm_expr_alt(a, tdm_expr_cat(a, digit(a, '0', '0'), e),
                                 tdm_expr_cat(a, digit(a, '1', '9'), any_digits(a, 0, (uint32_t)k - 1)));
        for (size_t i = n; i-- > 0;) {
                uint32_t more = bound[i] < '9' ? tdm_expr_cat(a, digit(a, (char)(bound[i] + 1), '9'),
                                                              any_digits(a, 0, (uint32_t)(max - i - 1))) :
                                                 TDM_EXPR_NONE;

                e = tdm_expr_alt(a, more, tdm_expr_cat(a, digit(a, bound[i], bound[i]), e));
        }
        return e;
}

static uint32_t part_below(struct tdm_arena *a, const char *bound, size_t n, size_t max, bool open)
{
        size_t left = max - n;
        uint32_t e = open ? TDM_EXPR_NONE : tdm_expr_rep(a, digit(a, '0', '0'), 0, (uint32_t)left);

        for (size_t i = n; i-- > 0;) {
                uint32_t less = bound[i] > '0' ? tdm_expr_cat(a, digit(a, '0', (char)(bound[i] - 1)),
                                                              any_digits(a, 0, (uint32_t)(max - i - 1))) :
                                                 TDM_EXPR_NONE;

                e = tdm_expr_alt(a, less, tdm_expr_cat(a, digit(a, bound[i], bound[i]), e));
                e = tdm_expr_alt(a, e, TDM_EXPR_EPS); /* fewer digits: smaller, as the bound ends in no zero */
        }
        return e;
}

/* ".digits" where digits are not empty; nothing where they may be empty and empty is allowed. */
static uint32_t with_point(struct tdm_arena *a, uint32_t digits, bool empty)
{
        struct tdm_expr x = *tdm_expr_get(a, digits);
        uint32_t some = digits;

        if (x.kind == TDM_EXPR_KIND_REP && x.b == 0)
                some = tdm_expr_rep(a, x.a, 1, x.c);
        else if (tdm_expr_nullable(a, digits))
                some = tdm_expr_and(a, digits, any_digits(a, 1, TDM_EXPR_INF));
        if (!tdm_expr_alive(a, some))
                some = TDM_EXPR_NONE;
        some = tdm_expr_cat(a, digit(a, '.', '.'), some);
        return empty ? tdm_expr_opt(a, some) : some;
}

struct bound {
        char whole[INT_DIGITS_MAX + 8], part[INT_DIGITS_MAX + 8];
        size_t n_whole, n_part;
        bool open;
};

/* whole + 1, in place. */
static void increment(struct bound *b)
{
        size_t i = b->n_whole;

        while (i > 0 && b->whole[i - 1] == '9')
                b->whole[--i] = '0';
        if (i > 0) {
                b->whole[i - 1]++;
                return;
        }
        memmove(b->whole + 1, b->whole, b->n_whole++);
        b->whole[0] = '1';
}

static void decrement(struct bound *b)
{
        size_t i = b->n_whole;

        while (i > 0 && b->whole[i - 1] == '0')
                b->whole[--i] = '9';
        b->whole[i - 1]--;
        if (b->whole[0] == '0')
                memmove(b->whole, b->whole + 1, --b->n_whole);
}

static int compare_whole(const struct bound *a, const struct bound *b)
{
        if (a->n_whole != b->n_whole)
                return a->n_whole < b->n_whole ? -1 : 1;
        return memcmp(a->whole, b->whole, a->n_whole);
}

/* Magnitudes from low to high (NULL: no bound), without sign. */
static uint32_t magnitudes(struct tdm_arena *a, struct bound low, const struct bound *high_given, bool integer,
                           size_t max_digits)
{
        static const struct bound none;
        struct bound high = high_given ? *high_given : none;
        size_t widest = TDM_MAX(low.n_whole, high.n_whole), max_part;
        uint32_t e = TDM_EXPR_NONE, some;

        if (integer) {
                if (low.n_part > 0 || low.open)
                        increment(&low);
                if (high_given && high.n_part == 0 && high.open) {
                        if (high.n_whole == 0)
                                return TDM_EXPR_NONE;
                        decrement(&high);
                }
                return whole_range(a, low.whole, low.n_whole, high.whole, high_given ? high.n_whole : SIZE_MAX,
                                   max_digits);
        }
        max_part = widest < EXACT_DIGITS ? EXACT_DIGITS - widest : 1;
        max_part = TDM_MAX(max_part, TDM_MAX(low.n_part, high.n_part));
        if (high_given && compare_whole(&low, &high) > 0)
                return TDM_EXPR_NONE;
        if (high_given && compare_whole(&low, &high) == 0) {
                some = tdm_expr_and(a, part_above(a, low.part, low.n_part, max_part, low.open),
                                    part_below(a, high.part, high.n_part, max_part, high.open));
                if (!tdm_expr_alive(a, some))
                        return TDM_EXPR_NONE;
                return tdm_expr_cat(a, whole_range(a, low.whole, low.n_whole, low.whole, low.n_whole, max_digits),
                                    with_point(a, some, tdm_expr_nullable(a, some)));
        }
        some = part_above(a, low.part, low.n_part, max_part, low.open);
        e = tdm_expr_cat(a, whole_range(a, low.whole, low.n_whole, low.whole, low.n_whole, max_digits),
                         with_point(a, some, low.n_part == 0 && !low.open));
        increment(&low);
        if (high_given) {
                some = part_below(a, high.part, high.n_part, max_part, high.open);
                e = tdm_expr_alt(
                        a, e,
                        tdm_expr_cat(a, whole_range(a, high.whole, high.n_whole, high.whole, high.n_whole, max_digits),
                                     with_point(a, some, high.n_part > 0 || !high.open)));
                if (compare_whole(&low, &high) >= 0)
                        return e;
                decrement(&high);
        }
        some = whole_range(a, low.whole, low.n_whole, high.whole, high_given ? high.n_whole : SIZE_MAX, max_digits);
        return tdm_expr_alt(a, e, tdm_expr_cat(a, some, with_point(a, any_digits(a, 0, (uint32_t)max_part), true)));
}

static bool bound_of(struct bound *b, const struct tdm_decimal *d, bool open)
{
        b->open = open;
        return split(d, b->whole, &b->n_whole, b->part, &b->n_part, INT_DIGITS_MAX);
}

/* Digits, a point and digits, so that the number is a multiple. NONE with *ret_why where it is not held. */
static uint32_t multiple(struct tdm_arena *a, const struct tdm_decimal *m, bool integer, const char **ret_why)
{
        uint64_t divisor = 0, places = m->exponent < 0 ? (uint64_t)-m->exponent : 0;
        uint32_t e = TDM_EXPR_NONE;

        for (unsigned i = 0; i < m->n && divisor <= DIVISOR_MAX; i++)
                divisor = divisor * 10 + (uint64_t)(m->digits[i] - '0');
        for (int32_t i = 0; i < m->exponent && divisor <= DIVISOR_MAX; i++)
                divisor *= 10;
        if (divisor > DIVISOR_MAX || places > 9) {
                *ret_why = "a multiple of so many digits is not held";
                return TDM_EXPR_NONE;
        }
        for (uint64_t k = 0; k <= (integer ? 0 : places); k++) { /* k digits behind the point */
                uint64_t x = divisor, y = 1, rest;
                uint32_t shape = any_digits(a, 1, TDM_EXPR_INF);

                for (uint64_t i = k; i < places; i++)
                        y *= 10;
                while (y > 0) { /* the greatest common divisor, into x */
                        rest = x % y;
                        x = y;
                        y = rest;
                }
                if (k > 0)
                        shape = tdm_expr_cat3(a, shape, digit(a, '.', '.'), any_digits(a, (uint32_t)k, (uint32_t)k));
                e = tdm_expr_alt(a, e, tdm_expr_and(a, shape, tdm_expr_mod(a, (uint32_t)(divisor / x), 0)));
        }
        return e;
}

static uint32_t free_number(struct tdm_arena *a)
{
        uint32_t part = tdm_expr_opt(a, tdm_expr_cat(a, digit(a, '.', '.'), any_digits(a, 1, TDM_EXPR_INF)));
        uint32_t whole = whole_range(a, "", 0, NULL, SIZE_MAX, INT_DIGITS_MAX);
        uint32_t exponent = tdm_expr_cat(a, digit(a, '1', '2'), any_digits(a, 2, 2));
        struct tdm_byte_set e = { 0 }, sign = { 0 };

        tdm_byte_set_add(&e, 'e', 'e');
        tdm_byte_set_add(&e, 'E', 'E');
        tdm_byte_set_add(&sign, '+', '+');
        tdm_byte_set_add(&sign, '-', '-');
        exponent = tdm_expr_alt(a, exponent, tdm_expr_cat(a, tdm_expr_text(a, "30"), digit(a, '0', '7')));
        exponent = tdm_expr_alt(a, any_digits(a, 1, 2), exponent);
        exponent = tdm_expr_cat3(a, tdm_expr_bytes(a, &e), tdm_expr_opt(a, tdm_expr_bytes(a, &sign)), exponent);
        exponent = tdm_expr_cat3(a, digit(a, '0', '9'), part, exponent);
        whole = tdm_expr_cat(a, whole, part);
        return tdm_expr_cat(a, tdm_expr_opt(a, digit(a, '-', '-')), tdm_expr_alt(a, whole, exponent));
}

uint32_t tdm_number_expr(struct tdm_arena *a, const struct tdm_number_range *range, const char **ret_why)
{
        static const struct bound zero;
        struct bound low = zero, high = zero;
        size_t max_digits = range->n_multiples > 0 ? EXACT_DIGITS : INT_DIGITS_MAX;
        bool integer = range->integer;
        uint32_t positive = TDM_EXPR_NONE, negative = TDM_EXPR_NONE, m;

        *ret_why = NULL;
        for (unsigned i = 0; i < range->n_multiples; i++)
                integer = integer || tdm_decimal_is_integer(&range->multiples[i]);
        if (!range->has_low && !range->has_high && range->n_multiples == 0 && !integer && !range->no_exponent)
                return free_number(a);
        if ((range->has_low && !bound_of(&low, &range->low, range->low_open)) ||
            (range->has_high && !bound_of(&high, &range->high, range->high_open))) {
                *ret_why = "a bound of so many digits is not held";
                return TDM_EXPR_NONE;
        }
        if (!range->has_high || !range->high.negative) {
                struct bound from = range->has_low && !range->low.negative ? low : zero;

                positive = magnitudes(a, from, range->has_high ? &high : NULL, integer, max_digits);
        }
        if (!range->has_low || range->low.negative) {
                struct bound from = range->has_high && range->high.negative ? high : zero;

                if (range->has_high && range->high.n == 0)
                        from.open = range->high_open;
                negative = magnitudes(a, from, range->has_low ? &low : NULL, integer, max_digits);
        }
        for (unsigned i = 0; i < range->n_multiples; i++) {
                m = multiple(a, &range->multiples[i], integer, ret_why);
                if (*ret_why)
                        return TDM_EXPR_NONE;
                positive = tdm_expr_and(a, positive, m);
                negative = tdm_expr_and(a, negative, m);
        }
        if (!tdm_expr_alive(a, positive))
                positive = TDM_EXPR_NONE;
        if (!tdm_expr_alive(a, negative))
                negative = TDM_EXPR_NONE;
        positive = tdm_expr_alt(a, positive, tdm_expr_cat(a, digit(a, '-', '-'), negative));
        if (integer && !range->integer) /* whole for its multiple alone: it may be written as 3.0 */
                positive = tdm_expr_cat(a, positive, tdm_expr_opt(a, tdm_expr_text(a, ".0")));
        return positive;
}

uint32_t tdm_number_equal(struct tdm_arena *a, const struct tdm_decimal *d)
{
        struct bound b;
        uint32_t e, zeros = tdm_expr_rep(a, digit(a, '0', '0'), 0, TDM_EXPR_INF);

        if (!bound_of(&b, d, false))
                return TDM_EXPR_NONE;
        e = tdm_expr_cat3(a, digit(a, '.', '.'), tdm_expr_literal(a, b.part, b.n_part), zeros);
        if (b.n_part == 0)
                e = tdm_expr_opt(a, e);
        e = tdm_expr_cat(a, b.n_whole == 0 ? digit(a, '0', '0') : tdm_expr_literal(a, b.whole, b.n_whole), e);
        if (d->negative)
                return tdm_expr_cat(a, digit(a, '-', '-'), e);
        return d->n == 0 ? tdm_expr_cat(a, tdm_expr_opt(a, digit(a, '-', '-')), e) : e;
}
