/* Statements of a template, and what its parser is made of. Expressions are in expressions.c. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

struct jinja_node *tdm_jinja_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
        struct jinja_node *node = tdm_jinja_calloc(p->core, sizeof(*node));

        node->kind = (uint8_t)kind;
        node->line = tdm_jinja_peek(p, 0)->line;
        node->height = 1;
        return node;
}

void tdm_jinja_node_take(struct jinja_parser *p, struct jinja_node *node, unsigned i, struct jinja_node *child)
{
        node->child[i] = child;
        for (; child; child = child->next)
                node->height = (uint16_t)TDM_MAX(node->height, child->height + 1);
        if (node->height > JINJA_MAX_HEIGHT)
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "an expression is nested too deeply");
}

const struct jinja_token *tdm_jinja_peek(const struct jinja_parser *p, size_t ahead)
{
        return &p->tokens.tokens[TDM_MIN(p->at + ahead, p->tokens.n - 1)];
}

/* Errors are at this token. */
static void parser_stand(struct jinja_parser *p, const struct jinja_token *token)
{
        p->core->line = token->line;
        p->core->at = token->at;
}

const struct jinja_token *tdm_jinja_next(struct jinja_parser *p)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);

        p->at += token->kind != JINJA_TOKEN_END;
        parser_stand(p, token);
        return token;
}

static bool token_is_name(const struct jinja_parser *p, const struct jinja_token *token, const char *name)
{
        return token->kind == JINJA_TOKEN_NAME && token->size == strlen(name) &&
               memcmp(p->tokens.source + token->at, name, token->size) == 0;
}

bool tdm_jinja_is_name(const struct jinja_parser *p, const char *name)
{
        return token_is_name(p, tdm_jinja_peek(p, 0), name);
}

bool tdm_jinja_take_name(struct jinja_parser *p, const char *name)
{
        bool is = tdm_jinja_is_name(p, name);

        if (is)
                tdm_jinja_next(p);
        return is;
}

bool tdm_jinja_is_op(const struct jinja_parser *p, uint16_t op)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);

        return token->kind == JINJA_TOKEN_OPERATOR && token->op == op;
}

bool tdm_jinja_take_op(struct jinja_parser *p, uint16_t op)
{
        bool is = tdm_jinja_is_op(p, op);

        if (is)
                tdm_jinja_next(p);
        return is;
}

void tdm_jinja_unexpected(struct jinja_parser *p, const char *wanted)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);
        const char *what = p->tokens.source + token->at;

        parser_stand(p, token);
        switch (token->kind) {
        case JINJA_TOKEN_END:
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "%s is missing: the template ends", wanted);
        case JINJA_TOKEN_PRINT_END:
        case JINJA_TOKEN_BLOCK_END:
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "%s is missing: the tag ends", wanted);
        default:
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "%s is missing before \"%.*s\"", wanted,
                                    TDM_UTF8_CUT(what, TDM_MIN(token->size, 40u)));
        }
}

void tdm_jinja_expect_op(struct jinja_parser *p, uint16_t op)
{
        char wanted[] = "a \"?\"";

        wanted[3] = (char)op;
        if (!tdm_jinja_take_op(p, op))
                tdm_jinja_unexpected(p, wanted);
}

const struct jinja_string *tdm_jinja_expect_name(struct jinja_parser *p, const char *what)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);

        if (token->kind != JINJA_TOKEN_NAME)
                tdm_jinja_unexpected(p, what);
        tdm_jinja_next(p);
        return tdm_jinja_intern(p->template, p->tokens.source + token->at, token->size);
}

void tdm_jinja_enter(struct jinja_parser *p)
{
        if (++p->nesting > JINJA_MAX_NESTING) {
                parser_stand(p, tdm_jinja_peek(p, 0));
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "it is nested too deeply");
        }
}

void tdm_jinja_leave(struct jinja_parser *p)
{
        p->nesting--;
}

/* Blocks. */

static struct jinja_node *body_parse(struct jinja_parser *p, const char *const *ends);

static void block_end_expect(struct jinja_parser *p)
{
        if (tdm_jinja_peek(p, 0)->kind != JINJA_TOKEN_BLOCK_END)
                tdm_jinja_unexpected(p, "the end of the tag");
        tdm_jinja_next(p);
}

/* A body up to {% end %}, which is taken. */
static struct jinja_node *body_until(struct jinja_parser *p, const char *end)
{
        const char *const ends[] = { end, NULL };
        struct jinja_node *body;

        block_end_expect(p);
        body = body_parse(p, ends);
        tdm_jinja_next(p); /* its name */
        block_end_expect(p);
        return body;
}

static struct jinja_node *if_parse(struct jinja_parser *p)
{
        static const char *const ends[] = { "elif", "else", "endif", NULL };
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_IF), *first = NULL, **last = &first;
        bool is_else = false;

        for (;;) {
                struct jinja_node *branch = tdm_jinja_node(p, JINJA_NODE_BRANCH);

                if (!is_else)
                        tdm_jinja_node_take(p, branch, 0, tdm_jinja_parse_tuple(p, false, NULL));
                block_end_expect(p);
                tdm_jinja_node_take(p, branch, 1, body_parse(p, is_else ? &ends[2] : ends));
                *last = branch;
                last = &branch->next;
                if (tdm_jinja_take_name(p, "endif"))
                        break;
                is_else = tdm_jinja_is_name(p, "else");
                tdm_jinja_next(p);
        }
        block_end_expect(p);
        tdm_jinja_node_take(p, node, 0, first);
        return node;
}

static struct jinja_node *for_parse(struct jinja_parser *p)
{
        static const char *const ends[] = { "else", "endfor", NULL };
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_FOR);

        tdm_jinja_node_take(p, node, 0, tdm_jinja_parse_target(p, "in", false));
        if (!tdm_jinja_take_name(p, "in"))
                tdm_jinja_unexpected(p, "\"in\"");
        tdm_jinja_node_take(p, node, 1, tdm_jinja_parse_tuple(p, false, "recursive"));
        if (tdm_jinja_take_name(p, "if"))
                tdm_jinja_node_take(p, node, 2, tdm_jinja_parse_expression(p, true));
        if (tdm_jinja_is_name(p, "recursive"))
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "recursive loops are not supported");
        block_end_expect(p);
        p->n_loops++;
        tdm_jinja_node_take(p, node, 3, body_parse(p, ends));
        p->n_loops--;
        if (tdm_jinja_take_name(p, "else"))
                tdm_jinja_node_take(p, node, 4, body_until(p, "endfor"));
        else {
                tdm_jinja_next(p);
                block_end_expect(p);
        }
        return node;
}

static struct jinja_node *set_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_SET);
        struct jinja_node *target = tdm_jinja_parse_target(p, NULL, true);

        if (tdm_jinja_take_op(p, '=')) {
                tdm_jinja_node_take(p, node, 0, target);
                tdm_jinja_node_take(p, node, 1, tdm_jinja_parse_tuple(p, true, NULL));
                block_end_expect(p);
                return node;
        }
        node->kind = JINJA_NODE_SET_BLOCK;
        tdm_jinja_node_take(p, node, 0, target);
        if (tdm_jinja_is_op(p, '|'))
                tdm_jinja_node_take(p, node, 1, tdm_jinja_parse_filters(p, NULL, false));
        tdm_jinja_node_take(p, node, 2, body_until(p, "endset"));
        return node;
}

static struct jinja_node *parameters_parse(struct jinja_parser *p)
{
        struct jinja_node *first = NULL, **last = &first;
        bool has_default = false;

        tdm_jinja_expect_op(p, '(');
        while (!tdm_jinja_is_op(p, ')')) {
                struct jinja_node *parameter = tdm_jinja_node(p, JINJA_NODE_PARAMETER);

                if (first)
                        tdm_jinja_expect_op(p, ',');
                parameter->name = tdm_jinja_expect_name(p, "the name of a parameter");
                if (tdm_jinja_take_op(p, '=')) {
                        has_default = true;
                        tdm_jinja_node_take(p, parameter, 0, tdm_jinja_parse_expression(p, true));
                } else if (has_default) {
                        tdm_jinja_unexpected(p, "a default");
                }
                *last = parameter;
                last = &parameter->next;
        }
        tdm_jinja_expect_op(p, ')');
        return first;
}

/* A body that is a function of its own: loops around it cannot be left from it. */
static struct jinja_node *function_body(struct jinja_parser *p, const char *end)
{
        unsigned n_loops = p->n_loops;
        struct jinja_node *body;

        p->n_loops = 0;
        body = body_until(p, end);
        p->n_loops = n_loops;
        return body;
}

static struct jinja_node *macro_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_MACRO);

        node->name = tdm_jinja_expect_name(p, "the macro's name");
        tdm_jinja_node_take(p, node, 0, parameters_parse(p));
        tdm_jinja_node_take(p, node, 1, function_body(p, "endmacro"));
        return node;
}

static struct jinja_node *call_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_CALL_BLOCK);

        if (tdm_jinja_is_op(p, '('))
                tdm_jinja_node_take(p, node, 1, parameters_parse(p));
        tdm_jinja_node_take(p, node, 0, tdm_jinja_parse_expression(p, true));
        if (node->child[0]->kind != JINJA_NODE_CALL)
                tdm_jinja_unexpected(p, "a call");
        tdm_jinja_node_take(p, node, 2, function_body(p, "endcall"));
        return node;
}

static struct jinja_node *filter_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_FILTER_BLOCK);

        tdm_jinja_node_take(p, node, 0, tdm_jinja_parse_filters(p, NULL, true));
        tdm_jinja_node_take(p, node, 1, function_body(p, "endfilter"));
        return node;
}

static struct jinja_node *with_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_SCOPE), *first = NULL, **last = &first;

        while (tdm_jinja_peek(p, 0)->kind != JINJA_TOKEN_BLOCK_END) {
                struct jinja_node *set = tdm_jinja_node(p, JINJA_NODE_SET);

                if (first)
                        tdm_jinja_expect_op(p, ',');
                tdm_jinja_node_take(p, set, 0, tdm_jinja_parse_target(p, NULL, false));
                tdm_jinja_expect_op(p, '=');
                tdm_jinja_node_take(p, set, 1, tdm_jinja_parse_expression(p, true));
                *last = set;
                last = &set->next;
        }
        tdm_jinja_node_take(p, node, 1, first);
        tdm_jinja_node_take(p, node, 0, body_until(p, "endwith"));
        return node;
}

/* Marks what a model was trained on; here it is only a scope. */
static struct jinja_node *generation_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_SCOPE);

        tdm_jinja_node_take(p, node, 0, function_body(p, "endgeneration"));
        return node;
}

static struct jinja_node *leave_loop_parse(struct jinja_parser *p, enum jinja_node_kind kind)
{
        struct jinja_node *node = tdm_jinja_node(p, kind);

        if (p->n_loops == 0)
                tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "break or continue stands outside of a loop");
        block_end_expect(p);
        return node;
}

static struct jinja_node *statement_parse(struct jinja_parser *p)
{
        const struct jinja_token *token = tdm_jinja_peek(p, 0);

        if (token->kind != JINJA_TOKEN_NAME)
                tdm_jinja_unexpected(p, "the name of a tag");
        tdm_jinja_next(p);
        if (token_is_name(p, token, "if"))
                return if_parse(p);
        if (token_is_name(p, token, "for"))
                return for_parse(p);
        if (token_is_name(p, token, "set"))
                return set_parse(p);
        if (token_is_name(p, token, "macro"))
                return macro_parse(p);
        if (token_is_name(p, token, "call"))
                return call_parse(p);
        if (token_is_name(p, token, "filter"))
                return filter_parse(p);
        if (token_is_name(p, token, "with"))
                return with_parse(p);
        if (token_is_name(p, token, "generation"))
                return generation_parse(p);
        if (token_is_name(p, token, "break"))
                return leave_loop_parse(p, JINJA_NODE_BREAK);
        if (token_is_name(p, token, "continue"))
                return leave_loop_parse(p, JINJA_NODE_CONTINUE);
        tdm_jinja_fail_code(p->core, TDM_E_UNSUPPORTED, "the tag \"%.*s\" is not supported",
                            TDM_UTF8_CUT(p->tokens.source + token->at, TDM_MIN(token->size, 40u)));
}

static bool body_ends(const struct jinja_parser *p, const char *const *ends)
{
        for (; ends && *ends; ends++)
                if (token_is_name(p, tdm_jinja_peek(p, 1), *ends))
                        return true;
        return false;
}

static struct jinja_node *data_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_DATA);
        const struct jinja_token *token = tdm_jinja_next(p);

        node->value = tdm_jinja_text_value(tdm_jinja_string(p->core, p->tokens.source + token->at, token->size, true));
        return node;
}

static struct jinja_node *print_parse(struct jinja_parser *p)
{
        struct jinja_node *node = tdm_jinja_node(p, JINJA_NODE_PRINT);

        tdm_jinja_next(p);
        tdm_jinja_node_take(p, node, 0, tdm_jinja_parse_tuple(p, true, NULL));
        if (tdm_jinja_peek(p, 0)->kind != JINJA_TOKEN_PRINT_END)
                tdm_jinja_unexpected(p, "\"}}\"");
        tdm_jinja_next(p);
        return node;
}

/* Statements up to a tag of one of these names, whose name is the next token; up to the end of all without ends. */
static struct jinja_node *body_parse(struct jinja_parser *p, const char *const *ends)
{
        struct jinja_node *first = NULL, **last = &first;

        tdm_jinja_enter(p);
        for (;;) {
                struct jinja_node *node;

                switch (tdm_jinja_peek(p, 0)->kind) {
                case JINJA_TOKEN_DATA:
                        node = data_parse(p);
                        break;
                case JINJA_TOKEN_PRINT_BEGIN:
                        node = print_parse(p);
                        break;
                case JINJA_TOKEN_BLOCK_BEGIN:
                        if (body_ends(p, ends)) {
                                tdm_jinja_next(p);
                                tdm_jinja_leave(p);
                                return first;
                        }
                        tdm_jinja_next(p);
                        node = statement_parse(p);
                        break;
                default:
                        if (!ends) {
                                tdm_jinja_leave(p);
                                return first;
                        }
                        while (ends[1])
                                ends++;
                        tdm_jinja_unexpected(p, ends[0]);
                }
                *last = node;
                last = &node->next;
        }
}

struct jinja_node *tdm_jinja_parse(struct jinja_parser *p)
{
        return body_parse(p, NULL);
}
