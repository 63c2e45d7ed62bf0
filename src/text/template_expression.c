/* Expressions of the template language, low precedence first, as jinja2's parser climbs them. */
#include "text/template_run.h"
#include "text/template_syntax.h"

#include <string.h>

static ag_tnode *parse_or(ag_tparser *p);
static ag_tnode *parse_unary(ag_tparser *p, bool with_filter);

static bool at_kind(const ag_tparser *p, ag_ttoken_kind kind) { return p->token->kind == kind; }

static ag_tnode *node_of(ag_tparser *p, ag_tnode_kind kind, uint32_t line, ag_tnode *a, ag_tnode *b)
{
    ag_tnode *n = ag_tparser_node(p, kind, line);
    n->a = a;
    n->b = b;
    if (a) ag_tparser_lift(p, n, a);
    if (b) ag_tparser_lift(p, n, b);
    return n;
}

static void add_child(ag_tparser *p, ag_tnode *n, ag_tnodes *list, ag_tnode *child)
{
    ag_tparser_add(p, list, child);
    ag_tparser_lift(p, n, child);
}

static ag_tnode *constant(ag_tparser *p, uint32_t line, ag_tval value)
{
    ag_tnode *n = ag_tparser_node(p, AG_TN_CONST, line);
    ag_tval *v = ag_arena_alloc(&p->tree->arena, sizeof *v);
    *v = value;
    n->value = v;
    return n;
}

ag_tnode *ag_tparser_expression(ag_tparser *p, bool with_choice)
{
    ag_tparser_enter(p);
    ag_tnode *n = parse_or(p);
    while (with_choice && ag_tparser_is(p, "if")) {
        uint32_t line = ag_tparser_next(p)->line;
        ag_tnode *choice = node_of(p, AG_TN_CHOICE, line, parse_or(p), n);
        if (ag_tparser_skip(p, "else")) {
            choice->c = ag_tparser_expression(p, true);
            ag_tparser_lift(p, choice, choice->c);
        }
        n = choice;
    }
    p->depth--;
    return n;
}

static ag_tnode *parse_and(ag_tparser *p);
static ag_tnode *parse_not(ag_tparser *p);

static ag_tnode *parse_or(ag_tparser *p)
{
    ag_tnode *left = parse_and(p);
    while (ag_tparser_is(p, "or")) {
        uint32_t line = ag_tparser_next(p)->line;
        left = node_of(p, AG_TN_OR, line, left, parse_and(p));
    }
    return left;
}

static ag_tnode *parse_and(ag_tparser *p)
{
    ag_tnode *left = parse_not(p);
    while (ag_tparser_is(p, "and")) {
        uint32_t line = ag_tparser_next(p)->line;
        left = node_of(p, AG_TN_AND, line, left, parse_not(p));
    }
    return left;
}

static ag_tnode *parse_concat(ag_tparser *p);

static ag_tnode *parse_sum(ag_tparser *p)
{
    ag_tnode *left = parse_concat(p);
    while (at_kind(p, AG_TT_ADD) || at_kind(p, AG_TT_SUB)) {
        const ag_ttoken *op = ag_tparser_next(p);
        left = node_of(p, AG_TN_BINARY, op->line, left, parse_concat(p));
        left->op = (uint8_t)op->kind;
    }
    return left;
}

/* The comparison operator that stands here, passed; AG_TT_EOF for none. */
static ag_ttoken_kind comparison(ag_tparser *p)
{
    ag_ttoken_kind kind = p->token->kind;
    if (kind >= AG_TT_EQ && kind <= AG_TT_GE) return ag_tparser_next(p), kind;
    if (ag_tparser_skip(p, "in")) return AG_TT_IN;
    if (ag_tparser_is(p, "not") && p->token[1].kind == AG_TT_NAME && ag_ttext_is(p->token[1].text, "in")) {
        ag_tparser_next(p);
        ag_tparser_next(p);
        return AG_TT_NOT_IN;
    }
    return AG_TT_EOF;
}

static ag_tnode *parse_compare(ag_tparser *p)
{
    uint32_t line = p->token->line;
    ag_tnode *first = parse_sum(p), *compare = NULL;
    for (ag_ttoken_kind op; (op = comparison(p)) != AG_TT_EOF;) {
        if (!compare) compare = node_of(p, AG_TN_COMPARE, line, first, NULL);
        ag_tnode *operand = node_of(p, AG_TN_OPERAND, p->token->line, parse_sum(p), NULL);
        operand->op = (uint8_t)op;
        add_child(p, compare, &compare->body, operand);
    }
    return compare ? compare : first;
}

static ag_tnode *parse_not(ag_tparser *p)
{
    if (!ag_tparser_is(p, "not")) return parse_compare(p);
    uint32_t line = ag_tparser_next(p)->line;
    ag_tparser_enter(p);
    ag_tnode *n = node_of(p, AG_TN_NOT, line, parse_not(p), NULL);
    p->depth--;
    return n;
}

static ag_tnode *parse_power(ag_tparser *p)
{
    ag_tnode *left = parse_unary(p, true);
    while (at_kind(p, AG_TT_POW)) {
        const ag_ttoken *op = ag_tparser_next(p);
        left = node_of(p, AG_TN_BINARY, op->line, left, parse_unary(p, true));
        left->op = AG_TT_POW;
    }
    return left;
}

static ag_tnode *parse_product(ag_tparser *p)
{
    ag_tnode *left = parse_power(p);
    while (at_kind(p, AG_TT_MUL) || at_kind(p, AG_TT_DIV) || at_kind(p, AG_TT_FLOORDIV) || at_kind(p, AG_TT_MOD)) {
        const ag_ttoken *op = ag_tparser_next(p);
        left = node_of(p, AG_TN_BINARY, op->line, left, parse_power(p));
        left->op = (uint8_t)op->kind;
    }
    return left;
}

static ag_tnode *parse_concat(ag_tparser *p)
{
    ag_tnode *first = parse_product(p);
    if (!at_kind(p, AG_TT_TILDE)) return first;
    ag_tnode *n = ag_tparser_node(p, AG_TN_CONCAT, p->token->line);
    add_child(p, n, &n->body, first);
    while (ag_tparser_skip_kind(p, AG_TT_TILDE)) add_child(p, n, &n->body, parse_product(p));
    return n;
}

/* ---- postfix
 * ------------------------------------------------------------------------------------------------------------------------ */
static ag_tnode *parse_subscribed(ag_tparser *p)
{
    uint32_t line = p->token->line;
    ag_tnode *start = NULL;
    if (!at_kind(p, AG_TT_COLON)) {
        start = ag_tparser_expression(p, true);
        if (!at_kind(p, AG_TT_COLON)) return start;
    }
    ag_tparser_next(p);
    ag_tnode *slice = node_of(p, AG_TN_SLICE, line, start, NULL);
    if (!at_kind(p, AG_TT_COLON) && !at_kind(p, AG_TT_RBRACKET) && !at_kind(p, AG_TT_COMMA)) {
        slice->b = ag_tparser_expression(p, true);
        ag_tparser_lift(p, slice, slice->b);
    }
    if (ag_tparser_skip_kind(p, AG_TT_COLON) && !at_kind(p, AG_TT_RBRACKET) && !at_kind(p, AG_TT_COMMA)) {
        slice->c = ag_tparser_expression(p, true);
        ag_tparser_lift(p, slice, slice->c);
    }
    return slice;
}

static ag_tnode *parse_subscript(ag_tparser *p, ag_tnode *on)
{
    const ag_ttoken *token = ag_tparser_next(p);
    if (token->kind == AG_TT_DOT) {
        const ag_ttoken *member = ag_tparser_next(p);
        if (member->kind == AG_TT_NAME) {
            ag_tnode *n = node_of(p, AG_TN_ATTR, token->line, on, NULL);
            n->text = member->text;
            return n;
        }
        if (member->kind != AG_TT_INT) ag_tparser_fail(p, AG_E_FORMAT, member->line, "expected name or number");
        return node_of(p, AG_TN_ITEM, token->line, on, constant(p, member->line, member->value));
    }
    ag_tnode *item = NULL, *tuple = NULL;
    while (!at_kind(p, AG_TT_RBRACKET)) {
        if (item) ag_tparser_expect(p, AG_TT_COMMA);
        if (item && !tuple) {
            tuple = ag_tparser_node(p, AG_TN_TUPLE, token->line);
            add_child(p, tuple, &tuple->body, item);
        }
        item = parse_subscribed(p);
        if (tuple) add_child(p, tuple, &tuple->body, item);
    }
    ag_tparser_expect(p, AG_TT_RBRACKET);
    if (!item) tuple = ag_tparser_node(p, AG_TN_TUPLE, token->line);
    return node_of(p, AG_TN_ITEM, token->line, on, tuple ? tuple : item);
}

/* "( … )" into a call, filter or test. */
static void parse_arguments(ag_tparser *p, ag_tnode *call)
{
    uint32_t line = ag_tparser_expect(p, AG_TT_LPAREN)->line;
    bool comma = false;
    while (!at_kind(p, AG_TT_RPAREN)) {
        if (comma) {
            ag_tparser_expect(p, AG_TT_COMMA);
            if (at_kind(p, AG_TT_RPAREN)) break;
        }
        comma = true;
        bool good;
        ag_tnode *child;
        if (ag_tparser_skip_kind(p, AG_TT_MUL)) {
            good = !call->b && !call->c;
            child = call->b = ag_tparser_expression(p, true);
        } else if (ag_tparser_skip_kind(p, AG_TT_POW)) {
            good = !call->c;
            child = call->c = ag_tparser_expression(p, true);
        } else if (at_kind(p, AG_TT_NAME) && p->token[1].kind == AG_TT_ASSIGN) {
            good = !call->c;
            const ag_ttoken *name = ag_tparser_next(p);
            ag_tparser_next(p);
            child = node_of(p, AG_TN_KEYWORD, name->line, ag_tparser_expression(p, true), NULL);
            child->text = name->text;
            for (uint32_t i = 0; i < call->more.n; i++)
                if (call->more.at[i]->text.n == name->text.n &&
                    memcmp(call->more.at[i]->text.p, name->text.p, name->text.n) == 0)
                    ag_tparser_fail(p, AG_E_FORMAT, name->line, "keyword argument repeated: %.*s", (int)name->text.n,
                                    name->text.p);
            ag_tparser_add(p, &call->more, child);
        } else {
            good = !call->b && !call->c && !call->more.n;
            child = ag_tparser_expression(p, true);
            ag_tparser_add(p, &call->body, child);
        }
        if (!good) ag_tparser_fail(p, AG_E_FORMAT, line, "invalid syntax for function call expression");
        ag_tparser_lift(p, call, child);
    }
    ag_tparser_expect(p, AG_TT_RPAREN);
}

static ag_tnode *parse_call(ag_tparser *p, ag_tnode *on)
{
    ag_tnode *n = node_of(p, AG_TN_CALL, p->token->line, on, NULL);
    parse_arguments(p, n);
    return n;
}

static ag_tnode *parse_postfix(ag_tparser *p, ag_tnode *on)
{
    for (;;) {
        if (at_kind(p, AG_TT_DOT) || at_kind(p, AG_TT_LBRACKET))
            on = parse_subscript(p, on);
        else if (at_kind(p, AG_TT_LPAREN))
            on = parse_call(p, on);
        else
            return on;
    }
}

/* "name" or "name.name", joined in the arena. */
static ag_ttext dotted_name(ag_tparser *p)
{
    ag_ttext name = ag_tparser_expect(p, AG_TT_NAME)->text;
    while (ag_tparser_skip_kind(p, AG_TT_DOT)) {
        ag_ttext next = ag_tparser_expect(p, AG_TT_NAME)->text;
        char *joined = ag_arena_printf(&p->tree->arena, "%.*s.%.*s", (int)name.n, name.p, (int)next.n, next.p);
        name = (ag_ttext){joined, strlen(joined)};
    }
    return name;
}

ag_tnode *ag_tparser_filter(ag_tparser *p, ag_tnode *on, bool start_inline)
{
    while (start_inline || at_kind(p, AG_TT_PIPE)) {
        if (!start_inline) ag_tparser_next(p);
        start_inline = false;
        ag_tnode *n = node_of(p, AG_TN_FILTER, p->token->line, on, NULL);
        n->text = dotted_name(p);
        if (at_kind(p, AG_TT_LPAREN)) parse_arguments(p, n);
        n->function = ag_tfilter_find(n->text);
        on = n;
    }
    return on;
}

static ag_tnode *parse_test(ag_tparser *p, ag_tnode *on)
{
    uint32_t line = ag_tparser_next(p)->line;
    bool negated = ag_tparser_skip(p, "not");
    ag_tnode *n = node_of(p, AG_TN_TEST, line, on, NULL);
    n->text = dotted_name(p);
    ag_ttoken_kind kind = p->token->kind;
    if (kind == AG_TT_LPAREN) {
        parse_arguments(p, n);
    } else if (kind == AG_TT_NAME ? !ag_tparser_is(p, "else") && !ag_tparser_is(p, "or") && !ag_tparser_is(p, "and")
                                  : kind == AG_TT_STRING || kind == AG_TT_INT || kind == AG_TT_FLOAT ||
                                        kind == AG_TT_LBRACKET || kind == AG_TT_LBRACE) {
        if (ag_tparser_is(p, "is")) ag_tparser_fail(p, AG_E_FORMAT, line, "You cannot chain multiple tests with is");
        add_child(p, n, &n->body, parse_postfix(p, ag_tparser_primary(p, false)));
    }
    n->function = ag_ttest_find(n->text);
    return negated ? node_of(p, AG_TN_NOT, line, n, NULL) : n;
}

static ag_tnode *parse_filters(ag_tparser *p, ag_tnode *on)
{
    for (;;) {
        if (at_kind(p, AG_TT_PIPE))
            on = ag_tparser_filter(p, on, false);
        else if (ag_tparser_is(p, "is"))
            on = parse_test(p, on);
        else if (at_kind(p, AG_TT_LPAREN))
            on = parse_call(p, on);
        else
            return on;
    }
}

static ag_tnode *parse_unary(ag_tparser *p, bool with_filter)
{
    ag_tnode *n;
    if (at_kind(p, AG_TT_SUB) || at_kind(p, AG_TT_ADD)) {
        const ag_ttoken *sign = ag_tparser_next(p);
        ag_tparser_enter(p);
        n = node_of(p, sign->kind == AG_TT_SUB ? AG_TN_NEGATE : AG_TN_PLUS, sign->line, parse_unary(p, false), NULL);
        p->depth--;
    } else {
        n = ag_tparser_primary(p, false);
    }
    n = parse_postfix(p, n);
    return with_filter ? parse_filters(p, n) : n;
}

/* ---- primary
 * ------------------------------------------------------------------------------------------------------------------------ */
static ag_tnode *parse_name(ag_tparser *p, bool with_namespace)
{
    const ag_ttoken *token = ag_tparser_next(p);
    ag_ttext t = token->text;
    if (ag_ttext_is(t, "true") || ag_ttext_is(t, "True")) return constant(p, token->line, ag_tval_bool(true));
    if (ag_ttext_is(t, "false") || ag_ttext_is(t, "False")) return constant(p, token->line, ag_tval_bool(false));
    if (ag_ttext_is(t, "none") || ag_ttext_is(t, "None")) return constant(p, token->line, ag_tval_none());
    ag_tnode *n = ag_tparser_node(p, AG_TN_NAME, token->line);
    n->text = t;
    n->name = ag_ttree_name(p->tree, t);
    if (with_namespace && ag_tparser_skip_kind(p, AG_TT_DOT)) {
        n->kind = AG_TN_NS_REF;
        n->text = ag_tparser_expect(p, AG_TT_NAME)->text;
    }
    uint8_t special = n->name == p->tree->name_caller    ? AG_TNF_CALLER
                      : n->name == p->tree->name_varargs ? AG_TNF_VARARGS
                      : n->name == p->tree->name_kwargs  ? AG_TNF_KWARGS
                                                         : 0;
    if (special)
        for (uint32_t i = 0; i < p->n_macros; i++) p->macros[i]->flags |= special;
    return n;
}

static ag_tnode *parse_string(ag_tparser *p)
{
    const ag_ttoken *first = ag_tparser_next(p);
    ag_ttext text = first->text;
    if (at_kind(p, AG_TT_STRING)) {
        size_t n = text.n, at = text.n;
        for (const ag_ttoken *t = p->token; t->kind == AG_TT_STRING; t++) n += t->text.n;
        char *joined = ag_arena_alloc(&p->tree->arena, n + 1);
        memcpy(joined, text.p, text.n);
        for (; at_kind(p, AG_TT_STRING); ag_tparser_next(p)) {
            memcpy(joined + at, p->token->text.p, p->token->text.n);
            at += p->token->text.n;
        }
        text = (ag_ttext){joined, n};
    }
    return constant(p, first->line, ag_tval_text(text.p, text.n));
}

static ag_tnode *parse_container(ag_tparser *p)
{
    const ag_ttoken *open = ag_tparser_next(p);
    bool dict = open->kind == AG_TT_LBRACE;
    ag_ttoken_kind close = dict ? AG_TT_RBRACE : AG_TT_RBRACKET;
    ag_tnode *n = ag_tparser_node(p, dict ? AG_TN_DICT : AG_TN_LIST, open->line);
    while (!at_kind(p, close)) {
        if (n->body.n) {
            ag_tparser_expect(p, AG_TT_COMMA);
            if (at_kind(p, close)) break;
        }
        ag_tnode *item = ag_tparser_expression(p, true);
        if (dict) {
            ag_tparser_expect(p, AG_TT_COLON);
            item = node_of(p, AG_TN_PAIR, item->line, item, ag_tparser_expression(p, true));
        }
        add_child(p, n, &n->body, item);
    }
    ag_tparser_expect(p, close);
    return n;
}

ag_tnode *ag_tparser_primary(ag_tparser *p, bool with_namespace)
{
    switch (p->token->kind) {
    case AG_TT_NAME: return parse_name(p, with_namespace);
    case AG_TT_STRING: return parse_string(p);
    case AG_TT_INT:
    case AG_TT_FLOAT: {
        const ag_ttoken *t = ag_tparser_next(p);
        return constant(p, t->line, t->value);
    }
    case AG_TT_LPAREN: {
        ag_tparser_next(p);
        ag_tnode *n = ag_tparser_tuple(p, AG_TUPLE_PARENS, NULL);
        ag_tparser_expect(p, AG_TT_RPAREN);
        return n;
    }
    case AG_TT_LBRACKET:
    case AG_TT_LBRACE: return parse_container(p);
    default: ag_tparser_fail(p, AG_E_FORMAT, p->token->line, "unexpected %s", ag_ttoken_describe(p->token));
    }
}

ag_tnode *ag_tparser_tuple(ag_tparser *p, unsigned how, const char *end_name)
{
    ag_tnode *first = NULL, *tuple = NULL;
    uint32_t line = p->token->line;
    for (;;) {
        if (first) ag_tparser_expect(p, AG_TT_COMMA);
        ag_ttoken_kind kind = p->token->kind;
        if (kind == AG_TT_PRINT_END || kind == AG_TT_BLOCK_END || kind == AG_TT_RPAREN ||
            (end_name && ag_tparser_is(p, end_name)))
            break;
        ag_tnode *item = how & AG_TUPLE_SIMPLE ? ag_tparser_primary(p, how & AG_TUPLE_NAMESPACE)
                                               : ag_tparser_expression(p, !(how & AG_TUPLE_NO_CHOICE));
        bool comma = at_kind(p, AG_TT_COMMA);
        if (!first && !comma) return item;
        if (!tuple) tuple = ag_tparser_node(p, AG_TN_TUPLE, line);
        add_child(p, tuple, &tuple->body, item);
        first = item;
        if (!comma) break;
    }
    if (tuple) return tuple;
    if (!(how & AG_TUPLE_PARENS))
        ag_tparser_fail(p, AG_E_FORMAT, line, "Expected an expression, got %s", ag_ttoken_describe(p->token));
    return ag_tparser_node(p, AG_TN_TUPLE, line);
}
