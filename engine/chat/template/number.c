/* Python's arithmetic. Integers have 64 bits here: what does not fit is an error, never another number. */
#include <math.h>
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static _Noreturn void number_overflow(struct jinja_core *core)
{
        tdm_jinja_fail(core, "an integer is beyond 64 bits");
}

static int64_t integer_divide(struct jinja_core *core, int64_t a, int64_t b, bool want_rest)
{
        int64_t quotient, rest;

        if (b == 0)
                tdm_jinja_fail(core, "division by zero");
        if (b == -1) {
                if (want_rest)
                        return 0;
                if (a == INT64_MIN)
                        number_overflow(core);
                return -a;
        }
        quotient = a / b;
        rest = a % b;
        if (rest != 0 && (rest < 0) != (b < 0)) { /* Python rounds down */
                quotient--;
                rest += b;
        }
        return want_rest ? rest : quotient;
}

static struct jinja_value integer_power(struct jinja_core *core, int64_t base, int64_t exponent)
{
        int64_t result = 1;

        if (exponent < 0) {
                if (base == 0)
                        tdm_jinja_fail(core, "division by zero");
                return tdm_jinja_float(pow((double)base, (double)exponent));
        }
        while (exponent > 0) {
                if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
                        number_overflow(core);
                exponent >>= 1;
                if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
                        number_overflow(core);
        }
        return tdm_jinja_int(result);
}

static struct jinja_value integers_combine(struct jinja_core *core, char op, int64_t a, int64_t b)
{
        int64_t result;
        bool overflow = false;

        switch (op) {
        case '+':
                overflow = __builtin_add_overflow(a, b, &result);
                break;
        case '-':
                overflow = __builtin_sub_overflow(a, b, &result);
                break;
        case '*':
                overflow = __builtin_mul_overflow(a, b, &result);
                break;
        case '/':
                if (b == 0)
                        tdm_jinja_fail(core, "division by zero");
                return tdm_jinja_float((double)a / (double)b);
        case 'd':
        case '%':
                result = integer_divide(core, a, b, op == '%');
                break;
        default:
                return integer_power(core, a, b);
        }
        if (overflow)
                number_overflow(core);
        return tdm_jinja_int(result);
}

/* The rest has the sign of what is divided by. */
static double float_rest(double a, double b)
{
        double rest = fmod(a, b);

        if (rest == 0)
                return copysign(0.0, b);
        return (rest < 0) != (b < 0) ? rest + b : rest;
}

static double float_quotient(double a, double b)
{
        double quotient = (a - float_rest(a, b)) / b, whole = floor(quotient);

        if (quotient == 0)
                return copysign(0.0, a / b);
        return quotient - whole > 0.5 ? whole + 1 : whole;
}

static struct jinja_value floats_combine(struct jinja_core *core, char op, double a, double b)
{
        if ((op == '/' || op == 'd' || op == '%') && b == 0)
                tdm_jinja_fail(core, "division by zero");
        switch (op) {
        case '+':
                return tdm_jinja_float(a + b);
        case '-':
                return tdm_jinja_float(a - b);
        case '*':
                return tdm_jinja_float(a * b);
        case '/':
                return tdm_jinja_float(a / b);
        case 'd':
                return tdm_jinja_float(float_quotient(a, b));
        case '%':
                return tdm_jinja_float(float_rest(a, b));
        default:
                if (a < 0 && b != floor(b))
                        tdm_jinja_fail(core, "a power of a negative number is complex");
                if (a == 0 && b < 0)
                        tdm_jinja_fail(core, "division by zero");
                if (isinf(pow(a, b)) && !isinf(a) && !isinf(b))
                        tdm_jinja_fail(core, "a power is too large");
                return tdm_jinja_float(pow(a, b));
        }
}

struct jinja_value tdm_jinja_arithmetic(struct jinja_core *core, char op, struct jinja_value a, struct jinja_value b)
{
        if (a.kind == JINJA_BIG || b.kind == JINJA_BIG)
                number_overflow(core);
        if (!tdm_jinja_is_number(a) || !tdm_jinja_is_number(b))
                tdm_jinja_fail(core, "a %s and a %s have no \"%s\"", tdm_jinja_type_name(a), tdm_jinja_type_name(b),
                               op == 'd' ? "//" :
                               op == 'p' ? "**" :
                                           (char[]){ op, '\0' });
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
                return floats_combine(core, op,
                                      a.kind == JINJA_FLOAT ? a.number : (double)tdm_jinja_want_int(core, a, "it"),
                                      b.kind == JINJA_FLOAT ? b.number : (double)tdm_jinja_want_int(core, b, "it"));
        return integers_combine(core, op, tdm_jinja_want_int(core, a, "it"), tdm_jinja_want_int(core, b, "it"));
}

/* A number as JSON writes it. An integer keeps all its digits. */
struct jinja_value tdm_jinja_parse_number(struct jinja_core *core, const char *text, size_t size)
{
        char digits[400];
        long long integer;

        if (memchr(text, '.', size) || memchr(text, 'e', size) || memchr(text, 'E', size)) {
                if (size >= sizeof(digits))
                        tdm_jinja_fail(core, "a number of %zu digits", size);
                memcpy(digits, text, size);
                digits[size] = '\0';
                return tdm_jinja_float(strtod(digits, NULL));
        }
        if (size < 24) {
                memcpy(digits, text, size);
                digits[size] = '\0';
                errno = 0;
                integer = strtoll(digits, NULL, 10);
                if (errno == 0)
                        return tdm_jinja_int(integer);
        }
        return (struct jinja_value){ .kind = JINJA_BIG, .string = tdm_jinja_string(core, text, size, false) };
}
