/* From a template's text to its tree: what the lexer, the parser and the renderer share. The language is that of facts about
 * jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and {% generation %}, which is how transformers reads chat
 * templates. */
#ifndef AG_TEMPLATE_SYNTAX_H
#define AG_TEMPLATE_SYNTAX_H

#include "text/template_value.h"

typedef enum {
    AG_TT_EOF,
    AG_TT_DATA,
    AG_TT_PRINT_BEGIN,
    AG_TT_PRINT_END,
    AG_TT_BLOCK_BEGIN,
    AG_TT_BLOCK_END,
    AG_TT_NAME,
    AG_TT_STRING,
    AG_TT_INT,
    AG_TT_FLOAT,
    AG_TT_ADD,
    AG_TT_SUB,
    AG_TT_MUL,
    AG_TT_POW,
    AG_TT_DIV,
    AG_TT_FLOORDIV,
    AG_TT_MOD,
    AG_TT_TILDE,
    AG_TT_EQ,
    AG_TT_NE,
    AG_TT_LT,
    AG_TT_LE,
    AG_TT_GT,
    AG_TT_GE,
    AG_TT_IN,     /* made by the parser */
    AG_TT_NOT_IN, /* made by the parser */
    AG_TT_ASSIGN,
    AG_TT_DOT,
    AG_TT_COLON,
    AG_TT_COMMA,
    AG_TT_PIPE,
    AG_TT_SEMICOLON,
    AG_TT_LPAREN,
    AG_TT_RPAREN,
    AG_TT_LBRACKET,
    AG_TT_RBRACKET,
    AG_TT_LBRACE,
    AG_TT_RBRACE,
} ag_ttoken_kind;

typedef struct {
    ag_ttoken_kind kind;
    uint32_t line;
    ag_ttext text; /* data, names, strings (read) */
    ag_tval value; /* numbers */
} ag_ttoken;

typedef enum {
    /* statements */
    AG_TN_DATA,
    AG_TN_PRINT,        /* a */
    AG_TN_IF,           /* a; body, or more */
    AG_TN_FOR,          /* a target, b iterable, c filter; body, more = else */
    AG_TN_SET,          /* a target, b value */
    AG_TN_SET_BLOCK,    /* a target, b filter on the body */
    AG_TN_MACRO,        /* name; more = parameters, rest = defaults, body */
    AG_TN_CALL_BLOCK,   /* a the call; as a macro */
    AG_TN_FILTER_BLOCK, /* a filter; body */
    AG_TN_WITH,         /* more = targets, rest = values, body */
    AG_TN_GENERATION,
    AG_TN_BREAK,
    AG_TN_CONTINUE,
    /* expressions */
    AG_TN_CONST,
    AG_TN_NAME,
    AG_TN_NS_REF,  /* name . text */
    AG_TN_ATTR,    /* a . text */
    AG_TN_ITEM,    /* a [ b ] */
    AG_TN_SLICE,   /* a : b : c */
    AG_TN_CALL,    /* a ( body = arguments, more = keywords, *b, **c ) */
    AG_TN_FILTER,  /* a (NULL: the body of a block) | text ( … as a call ) */
    AG_TN_TEST,    /* a is text ( … ) */
    AG_TN_KEYWORD, /* text = a */
    AG_TN_NOT,
    AG_TN_NEGATE,
    AG_TN_PLUS,
    AG_TN_BINARY,  /* a op b */
    AG_TN_CONCAT,  /* body */
    AG_TN_COMPARE, /* a, then body: nodes AG_TN_OPERAND */
    AG_TN_OPERAND, /* op a */
    AG_TN_AND,
    AG_TN_OR,
    AG_TN_CHOICE, /* b if a else c */
    AG_TN_LIST,
    AG_TN_TUPLE,
    AG_TN_DICT, /* body: nodes AG_TN_PAIR */
    AG_TN_PAIR, /* a : b */
} ag_tnode_kind;

typedef struct ag_tnode ag_tnode;
typedef struct {
    ag_tnode **at;
    uint32_t n;
} ag_tnodes;

enum { AG_TNF_RECURSIVE = 1, AG_TNF_CALLER = 2, AG_TNF_VARARGS = 4, AG_TNF_KWARGS = 8 };

struct ag_tnode {
    uint8_t kind, op, flags;
    uint16_t height; /* of the tree below */
    uint32_t line;
    uint32_t name; /* number of the name, for lookups */
    ag_ttext text;
    union {
        ag_tnode *a;
        const ag_tval *value;
    };
    ag_tnode *b, *c;
    ag_tnodes body, more, rest;
    const void *function; /* of a filter or test: its entry; NULL: unknown, an error when it runs */
};

typedef struct ag_ttree {
    ag_arena arena;
    char *name;
    ag_tnodes body;
    ag_ttext *names; /* by number */
    uint32_t n_names;
    uint32_t name_loop, name_caller, name_varargs, name_kwargs,
        name_block; /* name_block: the text of a block that is filtered */
    bool has_generation;
    struct {
        uint32_t *slots; /* name number + 1 */
        size_t n;
        uint32_t room;
    } index;
} ag_ttree;

uint32_t ag_ttree_name(ag_ttree *t, ag_ttext name);            /* its number; made where it is new */
uint32_t ag_ttree_find_name(const ag_ttree *t, ag_ttext name); /* UINT32_MAX: the template does not know it */

enum { AG_TEMPLATE_MAX_SOURCE = 1 << 20, AG_TEMPLATE_MAX_HEIGHT = 200 };

/* All tokens, in the arena. `source` must be valid UTF-8 and outlive nothing: texts are copied. */
AG_MUST_USE ag_status ag_template_lex(ag_ttoken **out, size_t *n, const char *source, size_t n_source, ag_arena *arena,
                                      const char *name, ag_err *err);
/* Fills tree->body and the rest from tokens that end in AG_TT_EOF. */
AG_MUST_USE ag_status ag_template_parse(ag_ttree *tree, const ag_ttoken *tokens, size_t n, ag_err *err);

/* The parser's own parts: template_parse.c has statements, template_expression.c expressions. */
typedef struct {
    ag_ttree *tree;
    const ag_ttoken *token; /* the current one */
    ag_err *err;
    jmp_buf leave; /* a syntax error leaves by one jump: nothing lives outside the tree's arena */
    ag_status status;
    uint32_t loops; /* open ones in this function: may a break stand here? */
    uint32_t depth;
    ag_tnode *macros[AG_TEMPLATE_MAX_HEIGHT]; /* open ones */
    uint32_t n_macros;
} ag_tparser;

ag_tnode *ag_tparser_node(ag_tparser *p, ag_tnode_kind kind, uint32_t line);
_Noreturn void ag_tparser_fail(ag_tparser *p, ag_status status, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool ag_tparser_is(const ag_tparser *p, const char *name); /* is the current token this name? */
bool ag_tparser_skip(ag_tparser *p, const char *name);     /* and passes it */
bool ag_tparser_skip_kind(ag_tparser *p, ag_ttoken_kind kind);
const ag_ttoken *ag_tparser_expect(ag_tparser *p, ag_ttoken_kind kind); /* passes it */
const ag_ttoken *ag_tparser_next(ag_tparser *p);                        /* passes the current token and returns it */
void ag_tparser_add(ag_tparser *p, ag_tnodes *list, ag_tnode *node);
void ag_tparser_enter(ag_tparser *p); /* one level of recursion more; p->depth-- when it is left */
void ag_tparser_lift(ag_tparser *p, ag_tnode *node, const ag_tnode *child); /* height; refuses what is too deep */
const char *ag_ttoken_describe(const ag_ttoken *t);

ag_tnode *ag_tparser_expression(ag_tparser *p, bool with_choice);
ag_tnode *ag_tparser_primary(ag_tparser *p, bool with_namespace);
enum { AG_TUPLE_SIMPLE = 1, AG_TUPLE_NO_CHOICE = 2, AG_TUPLE_PARENS = 4, AG_TUPLE_NAMESPACE = 8 };
ag_tnode *ag_tparser_tuple(ag_tparser *p, unsigned how, const char *end_name);
ag_tnode *ag_tparser_filter(ag_tparser *p, ag_tnode *on, bool start_inline);

#endif
