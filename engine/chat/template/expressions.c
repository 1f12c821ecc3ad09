/* Expressions, in jinja2's order of binding. From weak to strong: if else, or, and, not, comparisons and in, + and -,
 * ~, * / // %, **, unary -, then filters and tests. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static struct jinja_node *binary_node(struct jinja_parser *p, enum jinja_node_kind kind, uint16_t op,
                                      struct jinja_node *left, struct jinja_node *right)
{
        struct jinja_node *node = tdm_jinja_node(p, kind);

        node->op = op;
        tdm_jinja_node_take(p, node, 0, left);
        tdm_jinja_node_take(p, node, 1, right);
        return node;
}

static struct jinja_node *name_node(struct jinja_parser *p, const struct jinja_string *name)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_NAME);

        node->name = name;
        return node;
}

static struct jinja_node *const_node(struct jinja_parser *p, struct jinja_value value)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_CONST);

        node->value = value;
        return node;
}

/* Literals. */

static uint32_t hex_take(struct jinja_parser *p, const char **at, const char *end, unsigned n)
{
        uint32_t c = 0;

        for (; n > 0; n--, (*at)++) {
                char digit = *at < end ? **at : '\0';

                if (digit >= '0' && digit <= '9')
                        c = c * 16 + (uint32_t)(digit - '0');
                else if ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f')
                        c = c * 16 + (uint32_t)((digit | 0x20) - 'a' + 10);
                else
                        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "an escape in a text has too few digits");
        }
        return c;
}

/* Behind a backslash. Python's escapes, but for names of characters; an unknown one stays as it stands. */
static void escape_take(struct jinja_parser *p, struct jinja_text *text, const char **at, const char *end)
{
        static const char letters[] = "abfnrtv\\'\"", bytes[] = "\a\b\f\n\r\t\v\\'\"";
        char c = *(*at)++;
        const char *known = c ? strchr(letters, c) : NULL;
        uint32_t character;

        if (c == '\n')
                return;
        if (known) {
                tdm_jinja_text_add(text, &bytes[known - letters], 1, true);
                return;
        }
        if (c >= '0' && c <= '7') {
                character = (uint32_t)(c - '0');
                for (unsigned i = 0; i < 2 && *at < end && **at >= '0' && **at <= '7'; i++)
                        character = character * 8 + (uint32_t)(*(*at)++ - '0');
        } else if (c == 'x' || c == 'u' || c == 'U') {
                character = hex_take(p, at, end, c == 'x' ? 2 : c == 'u' ? 4 : 8);
        } else if (c == 'N') {
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "characters by name (\\N) are not supported");
        } else {
                tdm_jinja_text_puts(text, "\\");
                (*at)--;
                return;
        }
        if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000))
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "an escape in a text names no character");
        tdm_jinja_text_char(text, character, true);
}

static void string_take(struct jinja_parser *p, struct jinja_text *text)
{
        const struct jinja_token *token = tdm_jinja_next(p);
        const char *at = p->tokens.source + token->at + 1, *end = at + token->size - 2;

        while (at < end) {
                const char *next = memchr(at, '\\', (size_t)(end - at));

                if (!next)
                        next = end;
                tdm_jinja_text_add(text, at, (size_t)(next - at), true);
                at = next;
                if (at < end) {
                        at++;
                        escape_take(p, text, &at, end);
                }
        }
}

/* Texts that stand beside each other are one. */
static struct jinja_node *string_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_CONST);
        struct jinja_text text = { .core = p->core };

        while (tdm_jinja_peek(p, 0)->kind == JINJA_TOKEN_STRING)
                string_take(p, &text);
        node->value = tdm_jinja_text_value(tdm_jinja_text_end(&text));
        return node;
}

static struct jinja_node *number_parse(struct jinja_parser *p)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_CONST);
        char digits[512];
        size_t n = 0;
        int base = 10;
        char *end;

        tdm_jinja_next(p);
        for (uint32_t i = 0; i < token->size; i++) {
                char c = p->tokens.source[token->at + i];

                if (c == '_')
                        continue;
                if (n == sizeof(digits) - 1)
                        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "a number has too many digits");
                digits[n++] = c;
        }
        digits[n] = '\0';
        if (token->kind == JINJA_TOKEN_FLOAT) {
                node->value = tdm_jinja_float(strtod(digits, NULL));
                return node;
        }
        if (n > 2 && digits[0] == '0')
                base = (digits[1] | 0x20) == 'x' ? 16 :
                       (digits[1] | 0x20) == 'b' ? 2 :
                       (digits[1] | 0x20) == 'o' ? 8 :
                                                   10;
        errno = 0;
        node->value = tdm_jinja_int(strtoll(digits + (base != 10 ? 2 : 0), &end, base));
        if (*end != '\0')
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "a number has a digit that is none");
        if (errno == ERANGE) {
                struct jinja_text text = { .core = p->core };

                if (base != 10)
                        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "a number is beyond 64 bits");
                tdm_jinja_text_puts(&text, digits);
                node->value = (struct jinja_value){ .kind = JINJA_BIG, .string = tdm_jinja_text_end(&text) };
        }
        return node;
}

static struct jinja_node *list_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_LIST), *first = NULL, **last = &first;

        tdm_jinja_next(p);
        while (!tdm_jinja_is_op(p, ']')) {
                if (first)
                        tdm_jinja_expect_op(p, ',');
                if (tdm_jinja_is_op(p, ']'))
                        break;
                *last = tdm_jinja_parse_expression(p, true);
                last = &(*last)->next;
        }
        tdm_jinja_expect_op(p, ']');
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}

static struct jinja_node *dict_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_DICT), *first = NULL, **last = &first;

        tdm_jinja_next(p);
        while (!tdm_jinja_is_op(p, '}')) {
                struct jinja_node *pair;

                if (first)
                        tdm_jinja_expect_op(p, ',');
                if (tdm_jinja_is_op(p, '}'))
                        break;
                pair = tdm_jinja_node(p, JINJA_NODE_PAIR);
                tdm_jinja_node_take(p, pair, 0, tdm_jinja_parse_expression(p, true));
                tdm_jinja_expect_op(p, ':');
                tdm_jinja_node_take(p, pair, 1, tdm_jinja_parse_expression(p, true));
                *last = pair;
                last = &pair->next;
        }
        tdm_jinja_expect_op(p, '}');
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}

static struct jinja_node *named_parse(struct jinja_parser *p)
{
        static const char *const constants[] = { "none", "None", "true", "True", "false", "False" };
        const struct jinja_token *token = tdm_jinja_peek(p, 0);

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(constants); i++)
                if (tdm_jinja_take_name(p, constants[i]))
                        return const_node(p, i < 2 ? tdm_jinja_none() : tdm_jinja_bool(i < 4));
        if (token->size > 1 && p->tokens.source[token->at] == '_' && p->tokens.source[token->at + 1] == '_')
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "names with two underscores are not allowed");
        return name_node(p, tdm_jinja_expect_name(p, "a name"));
}

/* Whether a tuple that has begun, or is empty, ends here. */
static bool tuple_ends(struct jinja_parser *p, const char *ends)
{
        uint8_t kind = tdm_jinja_peek(p, 0)->kind;

        return kind == JINJA_TOKEN_PRINT_END || kind == JINJA_TOKEN_BLOCK_END || kind == JINJA_TOKEN_END ||
               tdm_jinja_is_op(p, ')') || (ends && tdm_jinja_is_name(p, ends));
}

static struct jinja_node *tuple_parse(struct jinja_parser *p, bool with_choice, const char *ends, bool in_parentheses)
{
        struct jinja_node *node, *first = NULL, **last = &first;
        bool has_comma = false;

        node = tdm_jinja_node(p, JINJA_NODE_TUPLE);
        while (!tuple_ends(p, ends)) {
                *last = tdm_jinja_parse_expression(p, with_choice);
                last = &(*last)->next;
                if (!tdm_jinja_take_op(p, ','))
                        break;
                has_comma = true;
        }
        if (!first && !in_parentheses)
                tdm_jinja_unexpected(p, "an expression");
        if (first && !has_comma)
                return first;
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}

struct jinja_node *tdm_jinja_parse_tuple(struct jinja_parser *p, bool with_choice, const char *ends)
{
        return tuple_parse(p, with_choice, ends, false);
}

static struct jinja_node *primary_parse(struct jinja_parser *p)
{
        struct jinja_node *node;

        switch (tdm_jinja_peek(p, 0)->kind) {
        case JINJA_TOKEN_NAME:
                return named_parse(p);
        case JINJA_TOKEN_STRING:
                return string_parse(p);
        case JINJA_TOKEN_INT:
        case JINJA_TOKEN_FLOAT:
                return number_parse(p);
        default:
                break;
        }
        if (tdm_jinja_is_op(p, '['))
                return list_parse(p);
        if (tdm_jinja_is_op(p, '{'))
                return dict_parse(p);
        if (!tdm_jinja_take_op(p, '('))
                tdm_jinja_unexpected(p, "a value");
        node = tuple_parse(p, true, NULL, true);
        tdm_jinja_expect_op(p, ')');
        return node;
}

/* Behind a value: attributes, subscripts, calls, filters, tests. */

static struct jinja_node *arguments_parse(struct jinja_parser *p)
{
        struct jinja_node *first = NULL, **last = &first;
        bool has_named = false;

        tdm_jinja_expect_op(p, '(');
        while (!tdm_jinja_is_op(p, ')')) {
                struct jinja_node *argument;

                if (first)
                        tdm_jinja_expect_op(p, ',');
                if (tdm_jinja_is_op(p, ')'))
                        break;
                argument = tdm_jinja_node(p, JINJA_NODE_ARGUMENT);
                if (tdm_jinja_take_op(p, '*')) {
                        argument->op = '*';
                } else if (tdm_jinja_take_op(p, JINJA_OP2('*', '*'))) {
                        argument->op = JINJA_OP2('*', '*');
                } else if (tdm_jinja_peek(p, 0)->kind == JINJA_TOKEN_NAME &&
                           tdm_jinja_peek(p, 1)->kind == JINJA_TOKEN_OPERATOR && tdm_jinja_peek(p, 1)->op == '=') {
                        argument->name = tdm_jinja_expect_name(p, "a name");
                        tdm_jinja_next(p);
                        has_named = true;
                } else if (has_named) {
                        tdm_jinja_unexpected(p, "the name of an argument");
                }
                tdm_jinja_node_take(p, argument, 0, tdm_jinja_parse_expression(p, true));
                *last = argument;
                last = &argument->next;
        }
        tdm_jinja_expect_op(p, ')');
        return first;
}

static struct jinja_node *subscript_parse(struct jinja_parser *p)
{
        struct jinja_node *slice = tdm_jinja_node(p, JINJA_NODE_SLICE);
        unsigned n_colons = 0;

        for (;;) {
                if (tdm_jinja_take_op(p, ':')) {
                        if (++n_colons > 2)
                                tdm_jinja_unexpected(p, "\"]\"");
                        continue;
                }
                if (tdm_jinja_is_op(p, ']'))
                        break;
                if (slice->child[n_colons])
                        tdm_jinja_unexpected(p, "\"]\"");
                tdm_jinja_node_take(p, slice, n_colons, tdm_jinja_parse_expression(p, true));
                if (n_colons == 0 && !tdm_jinja_is_op(p, ':'))
                        return slice->child[0];
        }
        if (n_colons == 0)
                tdm_jinja_unexpected(p, "a subscript");
        return slice;
}

/* `.name`, `.0` or `[…]`. */
static struct jinja_node *member_parse(struct jinja_parser *p, struct jinja_node *object)
{
        struct jinja_node *node;

        if (tdm_jinja_take_op(p, '[')) {
                node = binary_node(p, JINJA_NODE_ITEM, 0, object, subscript_parse(p));
                if (tdm_jinja_is_op(p, ','))
                        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "several subscripts at once are not supported");
                tdm_jinja_expect_op(p, ']');
                return node;
        }
        tdm_jinja_next(p);
        if (tdm_jinja_peek(p, 0)->kind == JINJA_TOKEN_INT)
                return binary_node(p, JINJA_NODE_ITEM, 0, object, number_parse(p));
        node = tdm_jinja_node(p, JINJA_NODE_ATTRIBUTE);
        node->name = tdm_jinja_expect_name(p, "the name of an attribute");
        tdm_jinja_node_take(p, node, 0, object);
        return node;
}

static struct jinja_node *postfix_parse(struct jinja_parser *p, struct jinja_node *node)
{
        for (;;) {
                if (tdm_jinja_is_op(p, '.') || tdm_jinja_is_op(p, '['))
                        node = member_parse(p, node);
                else if (tdm_jinja_is_op(p, '('))
                        node = binary_node(p, JINJA_NODE_CALL, 0, node, arguments_parse(p));
                else
                        return node;
        }
}

/* The name of a filter or a test, with dots. */
static const struct jinja_string *dotted_name(struct jinja_parser *p, const char *what)
{
        const struct jinja_string *name = tdm_jinja_expect_name(p, what);

        if (tdm_jinja_is_op(p, '.'))
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "there is no filter or test with a dot in its name");
        return name;
}

static struct jinja_node *one_filter(struct jinja_parser *p, struct jinja_node *input)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_FILTER);

        node->name = dotted_name(p, "the name of a filter");
        node->builtin = tdm_jinja_find_filter(node->name->data, node->name->size);
        if (input)
                tdm_jinja_node_take(p, node, 0, input);
        if (tdm_jinja_is_op(p, '('))
                tdm_jinja_node_take(p, node, 1, arguments_parse(p));
        return node;
}

struct jinja_node *tdm_jinja_parse_filters(struct jinja_parser *p, struct jinja_node *input, bool is_first)
{
        while (is_first || tdm_jinja_take_op(p, '|')) {
                is_first = false;
                input = one_filter(p, input);
        }
        return input;
}

/* Whether what follows a test's name is its argument. */
static bool test_has_argument(struct jinja_parser *p)
{
        switch (tdm_jinja_peek(p, 0)->kind) {
        case JINJA_TOKEN_NAME:
                return !tdm_jinja_is_name(p, "else") && !tdm_jinja_is_name(p, "or") && !tdm_jinja_is_name(p, "and");
        case JINJA_TOKEN_STRING:
        case JINJA_TOKEN_INT:
        case JINJA_TOKEN_FLOAT:
                return true;
        default:
                return tdm_jinja_is_op(p, '[') || tdm_jinja_is_op(p, '{');
        }
}

static struct jinja_node *test_parse(struct jinja_parser *p, struct jinja_node *input)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_TEST), *inverted;
        bool is_inverted;

        tdm_jinja_next(p); /* is */
        is_inverted = tdm_jinja_take_name(p, "not");
        node->name = dotted_name(p, "the name of a test");
        node->builtin = tdm_jinja_find_test(node->name->data, node->name->size);
        tdm_jinja_node_take(p, node, 0, input);
        if (tdm_jinja_is_op(p, '(')) {
                tdm_jinja_node_take(p, node, 1, arguments_parse(p));
        } else if (test_has_argument(p)) {
                struct jinja_node *argument = tdm_jinja_node(p, JINJA_NODE_ARGUMENT);

                if (tdm_jinja_is_name(p, "is"))
                        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "one test cannot follow another");
                tdm_jinja_node_take(p, argument, 0, postfix_parse(p, primary_parse(p)));
                tdm_jinja_node_take(p, node, 1, argument);
        }
        if (!is_inverted)
                return node;
        inverted = tdm_jinja_node(p, JINJA_NODE_NOT);
        tdm_jinja_node_take(p, inverted, 0, node);
        return inverted;
}

static struct jinja_node *filters_and_tests(struct jinja_parser *p, struct jinja_node *node)
{
        for (;;) {
                if (tdm_jinja_is_op(p, '|'))
                        node = tdm_jinja_parse_filters(p, node, false);
                else if (tdm_jinja_is_name(p, "is"))
                        node = test_parse(p, node);
                else if (tdm_jinja_is_op(p, '('))
                        node = binary_node(p, JINJA_NODE_CALL, 0, node, arguments_parse(p));
                else
                        return node;
        }
}

struct jinja_node *tdm_jinja_parse_unary(struct jinja_parser *p, bool with_filter)
{
        struct jinja_node *node;

        tdm_jinja_enter(p);
        if (tdm_jinja_is_op(p, '-') || tdm_jinja_is_op(p, '+')) {
                node = tdm_jinja_node(p, tdm_jinja_next(p)->op == '-' ? JINJA_NODE_NEGATE : JINJA_NODE_PLUS);
                tdm_jinja_node_take(p, node, 0, tdm_jinja_parse_unary(p, false));
        } else {
                node = primary_parse(p);
        }
        node = postfix_parse(p, node);
        if (with_filter)
                node = filters_and_tests(p, node);
        tdm_jinja_leave(p);
        return node;
}

static struct jinja_node *power_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_parse_unary(p, true);

        while (tdm_jinja_take_op(p, JINJA_OP2('*', '*')))
                node = binary_node(p, JINJA_NODE_BINARY, JINJA_OP2('*', '*'), node, tdm_jinja_parse_unary(p, true));
        return node;
}

static struct jinja_node *product_parse(struct jinja_parser *p)
{
        struct jinja_node *node = power_parse(p);

        for (;;) {
                uint16_t op = tdm_jinja_peek(p, 0)->op;

                if (tdm_jinja_peek(p, 0)->kind != JINJA_TOKEN_OPERATOR ||
                    (op != '*' && op != '/' && op != '%' && op != JINJA_OP2('/', '/')))
                        return node;
                tdm_jinja_next(p);
                node = binary_node(p, JINJA_NODE_BINARY, op, node, power_parse(p));
        }
}

static struct jinja_node *concat_parse(struct jinja_parser *p)
{
        struct jinja_node *first = product_parse(p), *node, **last = &first->next;

        if (!tdm_jinja_is_op(p, '~'))
                return first;
        node = tdm_jinja_node(p, JINJA_NODE_CONCAT);
        while (tdm_jinja_take_op(p, '~')) {
                *last = product_parse(p);
                last = &(*last)->next;
        }
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}

static struct jinja_node *sum_parse(struct jinja_parser *p)
{
        struct jinja_node *node = concat_parse(p);

        while (tdm_jinja_is_op(p, '+') || tdm_jinja_is_op(p, '-')) {
                uint16_t op = tdm_jinja_next(p)->op;

                node = binary_node(p, JINJA_NODE_BINARY, op, node, concat_parse(p));
        }
        return node;
}

/* The comparison that stands here, taken; 0: none. */
static uint16_t comparison_take(struct jinja_parser *p)
{
        static const uint16_t ops[] = {
                JINJA_OP2('=', '='), JINJA_OP2('!', '='), JINJA_OP2('<', '='), JINJA_OP2('>', '='), '<', '>'
        };
        const struct jinja_token *next = tdm_jinja_peek(p, 1);

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ops); i++)
                if (tdm_jinja_take_op(p, ops[i]))
                        return ops[i];
        if (tdm_jinja_take_name(p, "in"))
                return 'i';
        if (tdm_jinja_is_name(p, "not") && next->kind == JINJA_TOKEN_NAME && next->size == 2 &&
            memcmp(p->tokens.source + next->at, "in", 2) == 0) {
                tdm_jinja_next(p);
                tdm_jinja_next(p);
                return 'n';
        }
        return 0;
}

static struct jinja_node *comparison_parse(struct jinja_parser *p)
{
        struct jinja_node *node = sum_parse(p), *compare, *first = NULL, **last = &first;
        uint16_t op;

        while ((op = comparison_take(p))) {
                struct jinja_node *operand = tdm_jinja_node(p, JINJA_NODE_OPERAND);

                operand->op = op;
                tdm_jinja_node_take(p, operand, 0, sum_parse(p));
                *last = operand;
                last = &operand->next;
        }
        if (!first)
                return node;
        compare = tdm_jinja_node(p, JINJA_NODE_COMPARE);
        tdm_jinja_node_take(p, compare, 0, node);
        tdm_jinja_node_take(p, compare, 1, first);
        return compare;
}

static struct jinja_node *not_parse(struct jinja_parser *p)
{
        struct jinja_node *node;

        if (!tdm_jinja_is_name(p, "not"))
                return comparison_parse(p);
        tdm_jinja_enter(p);
        tdm_jinja_next(p);
        node = tdm_jinja_node(p, JINJA_NODE_NOT);
        tdm_jinja_node_take(p, node, 0, not_parse(p));
        tdm_jinja_leave(p);
        return node;
}

static struct jinja_node *and_parse(struct jinja_parser *p)
{
        struct jinja_node *node = not_parse(p);

        while (tdm_jinja_take_name(p, "and"))
                node = binary_node(p, JINJA_NODE_AND, 0, node, not_parse(p));
        return node;
}

static struct jinja_node *or_parse(struct jinja_parser *p)
{
        struct jinja_node *node = and_parse(p);

        while (tdm_jinja_take_name(p, "or"))
                node = binary_node(p, JINJA_NODE_OR, 0, node, and_parse(p));
        return node;
}

struct jinja_node *tdm_jinja_parse_expression(struct jinja_parser *p, bool with_choice)
{
        struct jinja_node *node;

        tdm_jinja_enter(p);
        node = or_parse(p);
        while (with_choice && tdm_jinja_is_name(p, "if")) {
                struct jinja_node *choice = tdm_jinja_node(p, JINJA_NODE_CHOICE);

                tdm_jinja_next(p);
                tdm_jinja_node_take(p, choice, 1, node);
                tdm_jinja_node_take(p, choice, 0, or_parse(p));
                if (tdm_jinja_take_name(p, "else"))
                        tdm_jinja_node_take(p, choice, 2, tdm_jinja_parse_expression(p, true));
                node = choice;
        }
        tdm_jinja_leave(p);
        return node;
}

/* What is set: a name, several, or a member of a namespace. */
static struct jinja_node *one_target(struct jinja_parser *p, bool with_member)
{
        struct jinja_node *node;

        if (tdm_jinja_take_op(p, '(')) {
                tdm_jinja_enter(p);
                node = tdm_jinja_parse_target(p, NULL, false);
                tdm_jinja_leave(p);
                tdm_jinja_expect_op(p, ')');
                return node;
        }
        node = name_node(p, tdm_jinja_expect_name(p, "a name"));
        if (with_member && tdm_jinja_take_op(p, '.')) {
                struct jinja_node *member = name_node(p, tdm_jinja_expect_name(p, "the name of a member"));

                node->kind = JINJA_NODE_MEMBER;
                tdm_jinja_node_take(p, node, 0, member);
        }
        return node;
}

struct jinja_node *tdm_jinja_parse_target(struct jinja_parser *p, const char *ends, bool with_member)
{
        struct jinja_node *first = one_target(p, with_member), *node, **last = &first->next;

        if (!tdm_jinja_is_op(p, ','))
                return first;
        node = tdm_jinja_node(p, JINJA_NODE_TUPLE);
        while (tdm_jinja_take_op(p, ',') && !(ends && tdm_jinja_is_name(p, ends))) {
                *last = one_target(p, false);
                last = &(*last)->next;
        }
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}
