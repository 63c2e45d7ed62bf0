/* Statements of the template language, and the tree that they make. */
#include "text/template_syntax.h"
#include "text/template_run.h"

#include <stdio.h>
#include <string.h>

/* ---- names
 * ----------------------------------------------------------------------------------------------------------------------------
 */
static uint32_t hash_of(ag_ttext t)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < t.n; i++) h = (h ^ (unsigned char)t.p[i]) * 16777619u;
    return h;
}

static size_t slot_of(const ag_ttree *t, ag_ttext name)
{
    size_t at = hash_of(name) & (t->index.n - 1);
    while (t->index.slots[at] && ag_ttext_compare(t->names[t->index.slots[at] - 1], name)) at = (at + 1) & (t->index.n - 1);
    return at;
}

uint32_t ag_ttree_find_name(const ag_ttree *t, ag_ttext name)
{
    return t->index.n ? t->index.slots[slot_of(t, name)] - 1 : UINT32_MAX;
}

static void grow_names(ag_ttree *t)
{
    uint32_t room = t->index.room ? 2 * t->index.room : 64;
    ag_ttext *names = ag_arena_array(&t->arena, room, sizeof *names);
    if (t->n_names) memcpy(names, t->names, t->n_names * sizeof *names);
    t->names = names;
    t->index.room = room;
    t->index.n = 2 * (size_t)room;
    t->index.slots = ag_arena_array(&t->arena, t->index.n, sizeof *t->index.slots);
    for (uint32_t i = 0; i < t->n_names; i++) t->index.slots[slot_of(t, t->names[i])] = i + 1;
}

uint32_t ag_ttree_name(ag_ttree *t, ag_ttext name)
{
    if (t->n_names == t->index.room) grow_names(t);
    size_t slot = slot_of(t, name);
    if (!t->index.slots[slot]) {
        t->names[t->n_names] = name;
        t->index.slots[slot] = ++t->n_names;
    }
    return t->index.slots[slot] - 1;
}

/* ---- the parser's parts
 * ------------------------------------------------------------------------------------------------------------------ */
_Noreturn void ag_tparser_fail(ag_tparser *p, ag_status status, uint32_t line, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    p->status = ag_fail(p->err, status, "%s: line %u: %s%s", p->tree->name, line,
                        status == AG_E_FORMAT ? "TemplateSyntaxError: " : "", sentence);
    longjmp(p->leave, 1);
}

ag_tnode *ag_tparser_node(ag_tparser *p, ag_tnode_kind kind, uint32_t line)
{
    ag_tnode *n = ag_arena_alloc(&p->tree->arena, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

static void too_deep(ag_tparser *p, uint32_t line)
{
    ag_tparser_fail(p, AG_E_UNSUPPORTED, line, "nests deeper than %d levels", AG_TEMPLATE_MAX_HEIGHT);
}

void ag_tparser_lift(ag_tparser *p, ag_tnode *node, const ag_tnode *child)
{
    if (child->height >= AG_TEMPLATE_MAX_HEIGHT) too_deep(p, node->line);
    if (node->height <= child->height) node->height = child->height + 1;
}

void ag_tparser_enter(ag_tparser *p)
{
    if (++p->depth > AG_TEMPLATE_MAX_HEIGHT) too_deep(p, p->token->line);
}

void ag_tparser_add(ag_tparser *p, ag_tnodes *list, ag_tnode *node)
{
    if ((list->n & (list->n - 1)) == 0) { /* full at every power of two */
        ag_tnode **grown = ag_arena_array(&p->tree->arena, list->n ? 2 * (size_t)list->n : 1, sizeof *grown);
        if (list->n) memcpy(grown, list->at, list->n * sizeof *grown);
        list->at = grown;
    }
    list->at[list->n++] = node;
}

const ag_ttoken *ag_tparser_next(ag_tparser *p) { return p->token->kind == AG_TT_EOF ? p->token : p->token++; }

bool ag_tparser_is(const ag_tparser *p, const char *name)
{
    return p->token->kind == AG_TT_NAME && ag_ttext_is(p->token->text, name);
}

bool ag_tparser_skip(ag_tparser *p, const char *name)
{
    bool there = ag_tparser_is(p, name);
    if (there) ag_tparser_next(p);
    return there;
}

bool ag_tparser_skip_kind(ag_tparser *p, ag_ttoken_kind kind)
{
    bool there = p->token->kind == kind;
    if (there) ag_tparser_next(p);
    return there;
}

static const char *kind_name(ag_ttoken_kind kind)
{
    static const char *const names[] = {
        "end of template",
        "template data",
        "begin of print statement",
        "end of print statement",
        "begin of statement block",
        "end of statement block",
        "name",
        "string",
        "integer",
        "float",
        "'+'",
        "'-'",
        "'*'",
        "'**'",
        "'/'",
        "'//'",
        "'%'",
        "'~'",
        "'=='",
        "'!='",
        "'<'",
        "'<='",
        "'>'",
        "'>='",
        "'in'",
        "'not in'",
        "'='",
        "'.'",
        "':'",
        "','",
        "'|'",
        "';'",
        "'('",
        "')'",
        "'['",
        "']'",
        "'{'",
        "'}'",
    };
    return names[kind];
}

const char *ag_ttoken_describe(const ag_ttoken *t) { return kind_name(t->kind); }

const ag_ttoken *ag_tparser_expect(ag_tparser *p, ag_ttoken_kind kind)
{
    if (p->token->kind != kind)
        ag_tparser_fail(p, AG_E_FORMAT, p->token->line, "expected %s, found %s", kind_name(kind), kind_name(p->token->kind));
    return ag_tparser_next(p);
}

static void expect_name(ag_tparser *p, const char *name)
{
    if (!ag_tparser_skip(p, name))
        ag_tparser_fail(p, AG_E_FORMAT, p->token->line, "expected '%s', found %s", name, kind_name(p->token->kind));
}

/* ---- statements
 * ------------------------------------------------------------------------------------------------------------------------ */
static void parse_until(ag_tparser *p, ag_tnodes *body, const char *const *ends, uint32_t opened);

/* "%}", then statements up to one of `ends`, at which the parser stands afterwards. */
static void parse_block(ag_tparser *p, ag_tnodes *body, const char *const *ends)
{
    uint32_t line = p->token->line;
    ag_tparser_skip_kind(p, AG_TT_COLON);
    ag_tparser_expect(p, AG_TT_BLOCK_END);
    parse_until(p, body, ends, line);
}

static void parse_to_end(ag_tparser *p, ag_tnodes *body, const char *end)
{
    parse_block(p, body, (const char *const[]){end, NULL});
    ag_tparser_next(p);
}

static ag_tnode *name_target(ag_tparser *p)
{
    const ag_ttoken *token = ag_tparser_expect(p, AG_TT_NAME);
    ag_ttext t = token->text;
    static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < 6; i++)
        if (ag_ttext_is(t, constants[i])) ag_tparser_fail(p, AG_E_FORMAT, token->line, "can't assign to '%s'", constants[i]);
    ag_tnode *n = ag_tparser_node(p, AG_TN_NAME, token->line);
    n->text = t;
    n->name = ag_ttree_name(p->tree, t);
    return n;
}

static void check_target(ag_tparser *p, const ag_tnode *n)
{
    if (n->kind == AG_TN_TUPLE) {
        for (uint32_t i = 0; i < n->body.n; i++) check_target(p, n->body.at[i]);
    } else if (n->kind != AG_TN_NAME && n->kind != AG_TN_NS_REF) {
        ag_tparser_fail(p, AG_E_FORMAT, n->line, "can't assign to this");
    }
}

static ag_tnode *assign_target(ag_tparser *p, bool with_namespace, const char *end_name)
{
    ag_tnode *n = ag_tparser_tuple(p, AG_TUPLE_SIMPLE | (with_namespace ? AG_TUPLE_NAMESPACE : 0), end_name);
    check_target(p, n);
    return n;
}

static ag_tnode *parse_for(ag_tparser *p, ag_tnode *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->a = assign_target(p, false, "in");
    expect_name(p, "in");
    n->b = ag_tparser_tuple(p, AG_TUPLE_NO_CHOICE, "recursive");
    if (ag_tparser_skip(p, "if")) n->c = ag_tparser_expression(p, true);
    if (ag_tparser_skip(p, "recursive")) n->flags |= AG_TNF_RECURSIVE;
    p->loops++;
    parse_block(p, &n->body, ends);
    p->loops--;
    if (ag_ttext_is(ag_tparser_next(p)->text, "else")) parse_to_end(p, &n->more, "endfor");
    return n;
}

static ag_tnode *parse_if(ag_tparser *p, ag_tnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    ag_tnode *whole = n;
    uint32_t depth = p->depth;
    for (;;) {
        ag_tparser_enter(p); /* an elif is an if in the else of the one before */
        n->a = ag_tparser_tuple(p, AG_TUPLE_NO_CHOICE, NULL);
        parse_block(p, &n->body, ends);
        const ag_ttoken *end = ag_tparser_next(p);
        if (ag_ttext_is(end->text, "elif")) {
            ag_tnode *next = ag_tparser_node(p, AG_TN_IF, end->line);
            ag_tparser_add(p, &n->more, next);
            n = next;
            continue;
        }
        if (ag_ttext_is(end->text, "else")) parse_to_end(p, &n->more, "endif");
        p->depth = depth;
        return whole;
    }
}

static ag_tnode *parse_set(ag_tparser *p, ag_tnode *n)
{
    n->a = assign_target(p, true, NULL);
    if (ag_tparser_skip_kind(p, AG_TT_ASSIGN)) {
        n->b = ag_tparser_tuple(p, 0, NULL);
        return n;
    }
    n->kind = AG_TN_SET_BLOCK;
    n->b = ag_tparser_filter(p, NULL, false);
    parse_to_end(p, &n->body, "endset");
    return n;
}

static void parse_signature(ag_tparser *p, ag_tnode *n)
{
    ag_tparser_expect(p, AG_TT_LPAREN);
    while (p->token->kind != AG_TT_RPAREN) {
        if (n->more.n) ag_tparser_expect(p, AG_TT_COMMA);
        ag_tnode *target = name_target(p);
        if (ag_tparser_skip_kind(p, AG_TT_ASSIGN))
            ag_tparser_add(p, &n->rest, ag_tparser_expression(p, true));
        else if (n->rest.n)
            ag_tparser_fail(p, AG_E_FORMAT, target->line, "non-default argument follows default argument");
        for (uint32_t i = 0; i < n->more.n; i++)
            if (n->more.at[i]->name == target->name)
                ag_tparser_fail(p, AG_E_FORMAT, target->line, "two parameters have the same name");
        ag_tparser_add(p, &n->more, target);
    }
    ag_tparser_expect(p, AG_TT_RPAREN);
}

/* The body of a function of Python's: loops around it are out of reach for break. */
static void parse_function(ag_tparser *p, ag_tnode *n, const char *end)
{
    if (p->n_macros == sizeof p->macros / sizeof *p->macros) too_deep(p, n->line);
    uint32_t loops = p->loops;
    p->loops = 0;
    p->macros[p->n_macros++] = n;
    parse_to_end(p, &n->body, end);
    p->n_macros--;
    p->loops = loops;
}

static ag_tnode *parse_macro(ag_tparser *p, ag_tnode *n)
{
    ag_tnode *target = name_target(p);
    n->name = target->name;
    n->text = target->text;
    parse_signature(p, n);
    parse_function(p, n, "endmacro");
    return n;
}

static ag_tnode *parse_call_block(ag_tparser *p, ag_tnode *n)
{
    if (p->token->kind == AG_TT_LPAREN) parse_signature(p, n);
    n->a = ag_tparser_expression(p, true);
    if (n->a->kind != AG_TN_CALL) ag_tparser_fail(p, AG_E_FORMAT, n->line, "expected call");
    n->text = (ag_ttext){"caller", 6};
    parse_function(p, n, "endcall");
    return n;
}

static ag_tnode *parse_filter_block(ag_tparser *p, ag_tnode *n)
{
    n->a = ag_tparser_filter(p, NULL, true);
    parse_to_end(p, &n->body, "endfilter");
    return n;
}

static ag_tnode *parse_with(ag_tparser *p, ag_tnode *n)
{
    while (p->token->kind != AG_TT_BLOCK_END) {
        if (n->more.n) ag_tparser_expect(p, AG_TT_COMMA);
        ag_tparser_add(p, &n->more, assign_target(p, false, NULL));
        ag_tparser_expect(p, AG_TT_ASSIGN);
        ag_tparser_add(p, &n->rest, ag_tparser_expression(p, true));
    }
    parse_to_end(p, &n->body, "endwith");
    return n;
}

static ag_tnode *parse_generation(ag_tparser *p, ag_tnode *n)
{
    p->tree->has_generation = true;
    n->text = (ag_ttext){"caller", 6};
    parse_function(p, n, "endgeneration");
    return n;
}

static ag_tnode *parse_jump(ag_tparser *p, ag_tnode *n)
{
    if (!p->loops) ag_tparser_fail(p, AG_E_FORMAT, n->line, "'%s' outside loop", n->kind == AG_TN_BREAK ? "break" : "continue");
    return n;
}

static ag_tnode *parse_print(ag_tparser *p, ag_tnode *n)
{
    n->kind = AG_TN_CONCAT;
    while (p->token->kind != AG_TT_BLOCK_END) {
        if (n->body.n) ag_tparser_expect(p, AG_TT_COMMA);
        ag_tparser_add(p, &n->body, ag_tparser_expression(p, true));
    }
    ag_tnode *print = ag_tparser_node(p, AG_TN_PRINT, n->line);
    print->a = n;
    return print;
}

static ag_tnode *parse_statement(ag_tparser *p)
{
    static const struct {
        const char *tag;
        ag_tnode_kind kind;
        ag_tnode *(*parse)(ag_tparser *p, ag_tnode *n); /* NULL: jinja2 has it, we do not */
    } statements[] = {
        {"if", AG_TN_IF, parse_if},
        {"for", AG_TN_FOR, parse_for},
        {"set", AG_TN_SET, parse_set},
        {"macro", AG_TN_MACRO, parse_macro},
        {"generation", AG_TN_GENERATION, parse_generation},
        {"break", AG_TN_BREAK, parse_jump},
        {"continue", AG_TN_CONTINUE, parse_jump},
        {"call", AG_TN_CALL_BLOCK, parse_call_block},
        {"filter", AG_TN_FILTER_BLOCK, parse_filter_block},
        {"with", AG_TN_WITH, parse_with},
        {"print", AG_TN_PRINT, parse_print},
        {"block", 0, NULL},
        {"extends", 0, NULL},
        {"include", 0, NULL},
        {"import", 0, NULL},
        {"from", 0, NULL},
        {"autoescape", 0, NULL},
    };
    if (p->token->kind != AG_TT_NAME) ag_tparser_fail(p, AG_E_FORMAT, p->token->line, "tag name expected");
    const ag_ttoken *token = ag_tparser_next(p);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!ag_ttext_is(token->text, statements[i].tag)) continue;
        if (!statements[i].parse)
            ag_tparser_fail(p, AG_E_UNSUPPORTED, token->line, "the tag '%s' is not supported: a chat template is one file",
                            statements[i].tag);
        ag_tparser_enter(p);
        ag_tnode *n = statements[i].parse(p, ag_tparser_node(p, statements[i].kind, token->line));
        p->depth--;
        return n;
    }
    ag_tparser_fail(p, AG_E_FORMAT, token->line, "Encountered unknown tag '%.*s'.", (int)token->text.n, token->text.p);
}

static bool is_end(const ag_tparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (ag_tparser_is(p, *ends)) return true;
    return false;
}

static void parse_until(ag_tparser *p, ag_tnodes *body, const char *const *ends, uint32_t opened)
{
    for (;;) {
        const ag_ttoken *token = p->token;
        switch (token->kind) {
        case AG_TT_EOF:
            if (ends)
                ag_tparser_fail(p, AG_E_FORMAT, opened, "Unexpected end of template. The block that begins here has no '%s'.",
                                ends[0]);
            return;
        case AG_TT_DATA: {
            ag_tnode *n = ag_tparser_node(p, AG_TN_DATA, token->line);
            n->text = token->text;
            ag_tparser_add(p, body, n);
            ag_tparser_next(p);
            break;
        }
        case AG_TT_PRINT_BEGIN: {
            ag_tparser_next(p);
            ag_tnode *n = ag_tparser_node(p, AG_TN_PRINT, token->line);
            n->a = ag_tparser_tuple(p, 0, NULL);
            ag_tparser_expect(p, AG_TT_PRINT_END);
            ag_tparser_add(p, body, n);
            break;
        }
        default:
            ag_tparser_expect(p, AG_TT_BLOCK_BEGIN);
            if (is_end(p, ends)) return;
            ag_tparser_add(p, body, parse_statement(p));
            ag_tparser_expect(p, AG_TT_BLOCK_END);
        }
    }
}

/* ---- unknown filters and tests
 * --------------------------------------------------------------------------------------------------------- */
static void check(ag_tparser *p, const ag_tnode *n, bool soft);

static void check_all(ag_tparser *p, const ag_tnodes *list, bool soft)
{
    for (uint32_t i = 0; i < list->n; i++) check(p, list->at[i], soft);
}

/* As jinja2: an unknown filter or test is an error of the template, except right inside an if (`soft`), where it is one of the
 * run. */
static void check(ag_tparser *p, const ag_tnode *n, bool soft)
{
    if (!n || n->kind == AG_TN_CONST) return;
    bool inside = soft, around = soft; /* for the body, for what stands in the tag */
    switch (n->kind) {
    case AG_TN_IF:
    case AG_TN_CHOICE: inside = around = true; break;
    case AG_TN_FILTER_BLOCK:
    case AG_TN_SET_BLOCK: inside = around = false; break;
    case AG_TN_FOR:
    case AG_TN_MACRO:
    case AG_TN_CALL_BLOCK:
    case AG_TN_GENERATION:
    case AG_TN_WITH: inside = false; break;
    case AG_TN_FILTER:
    case AG_TN_TEST:
        if (!n->function && !soft)
            ag_tparser_fail(p, AG_E_UNSUPPORTED, n->line, "TemplateAssertionError: No %s named '%.*s'.",
                            n->kind == AG_TN_FILTER ? "filter" : "test", (int)n->text.n, n->text.p);
        break;
    default: break;
    }
    check(p, n->a, around);
    check(p, n->b, around);
    check(p, n->c, n->kind == AG_TN_FOR ? inside : around);
    check_all(p, &n->body, inside);
    check_all(p, &n->more, inside);
    check_all(p, &n->rest, n->kind == AG_TN_WITH ? around : inside);
}

ag_status ag_template_parse(ag_ttree *tree, const ag_ttoken *tokens, size_t n, ag_err *err)
{
    (void)n;
    ag_tparser *p = ag_arena_alloc(&tree->arena, sizeof *p);
    *p = (ag_tparser){.tree = tree, .token = tokens, .err = err};
    tree->name_loop = ag_ttree_name(tree, (ag_ttext){"loop", 4});
    tree->name_caller = ag_ttree_name(tree, (ag_ttext){"caller", 6});
    tree->name_varargs = ag_ttree_name(tree, (ag_ttext){"varargs", 7});
    tree->name_kwargs = ag_ttree_name(tree, (ag_ttext){"kwargs", 6});
    tree->name_block = ag_ttree_name(tree, (ag_ttext){"", 0});
    if (setjmp(p->leave)) return p->status;
    parse_until(p, &tree->body, NULL, 1);
    check_all(p, &tree->body, false);
    return AG_OK;
}
