/* States, and the rules of JSON itself (RFC 8259). White space between tokens is at most one space, or a line break and an indent: what
 * models write, and no endless blank. */
#include "serve/grammar_internal.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDENT = 24, MAX_INTEGER_DIGITS = 18, MAX_FRACTION_DIGITS = 17, MAX_EXPONENT_DIGITS = 3 };

int32_t ag_grammar_add(ag_grammar *g, ag_state state)
{
    if (g->n >= AG_GRAMMAR_MAX_STATES) {
        g->too_large = true;
        return 0;
    }
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 1024;
        g->states = realloc(g->states, (size_t)g->room * sizeof *g->states);
        if (!g->states) ag_out_of_memory((size_t)g->room * sizeof *g->states);
    }
    g->states[g->n] = state;
    return g->n++;
}

int32_t ag_grammar_bytes(ag_grammar *g, int low, int high, int32_t next)
{
    return ag_grammar_add(g, (ag_state){AG_STATE_BYTES, (uint8_t)low, (uint8_t)high, next, -1});
}

int32_t ag_grammar_literal(ag_grammar *g, const char *text, size_t n, int32_t next)
{
    while (n-- > 0) next = ag_grammar_bytes(g, (unsigned char)text[n], (unsigned char)text[n], next);
    return next;
}

int32_t ag_grammar_either(ag_grammar *g, int32_t a, int32_t b)
{
    if (a < 0) return b;
    if (b < 0) return a;
    return ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, a, b});
}

int32_t ag_grammar_call(ag_grammar *g, int32_t rule, int32_t next) { return ag_grammar_add(g, (ag_state){AG_STATE_CALL, 0, 0, rule, next}); }

int32_t ag_grammar_rule(ag_grammar *g)
{
    if (g->n_rules == g->rule_room) {
        g->rule_room = g->rule_room ? 2 * g->rule_room : 16;
        g->rules = realloc(g->rules, (size_t)g->rule_room * sizeof *g->rules);
        if (!g->rules) ag_out_of_memory((size_t)g->rule_room * sizeof *g->rules);
    }
    g->rules[g->n_rules] = -1;
    return g->n_rules++;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------------- */
static int32_t end_of(ag_grammar *g) { return ag_grammar_add(g, (ag_state){AG_STATE_RETURN, 0, 0, -1, -1}); }

static int32_t space(ag_grammar *g)
{
    const int32_t end = end_of(g);
    int32_t indent = end;
    for (int i = 0; i < MAX_INDENT; i++) indent = ag_grammar_either(g, end, ag_grammar_bytes(g, ' ', ' ', indent));
    return ag_grammar_either(g, end, ag_grammar_either(g, ag_grammar_bytes(g, ' ', ' ', end), ag_grammar_bytes(g, '\n', '\n', indent)));
}

static int32_t hex(ag_grammar *g, int n, int32_t next)
{
    for (int i = 0; i < n; i++)
        next = ag_grammar_either(g, ag_grammar_bytes(g, '0', '9', next),
                                 ag_grammar_either(g, ag_grammar_bytes(g, 'a', 'f', next), ag_grammar_bytes(g, 'A', 'F', next)));
    return next;
}

/* \uXXXX that is no surrogate, or a pair of them. */
static int32_t unicode_escape(ag_grammar *g, int32_t end)
{
    int32_t first = -1;
    for (const char *c = "0123456789abcefABCEF"; *c; c++) first = ag_grammar_either(g, ag_grammar_bytes(g, *c, *c, hex(g, 3, end)), first);
    const int32_t low3 = hex(g, 2, end);
    int32_t low2 = -1;
    for (const char *c = "cdefCDEF"; *c; c++) low2 = ag_grammar_either(g, ag_grammar_bytes(g, *c, *c, low3), low2);
    const int32_t d_low = ag_grammar_either(g, ag_grammar_bytes(g, 'd', 'd', low2), ag_grammar_bytes(g, 'D', 'D', low2));
    const int32_t high3 = hex(g, 2, ag_grammar_literal(g, "\\u", 2, d_low)), plain3 = hex(g, 2, end);
    int32_t after_d = ag_grammar_bytes(g, '0', '7', plain3);
    for (const char *c = "89abAB"; *c; c++) after_d = ag_grammar_either(g, ag_grammar_bytes(g, *c, *c, high3), after_d);
    first = ag_grammar_either(g, ag_grammar_either(g, ag_grammar_bytes(g, 'd', 'd', after_d), ag_grammar_bytes(g, 'D', 'D', after_d)), first);
    return ag_grammar_bytes(g, 'u', 'u', first);
}

/* One character of a string: UTF-8 without what must be escaped, or an escape. */
static int32_t character(ag_grammar *g)
{
    const int32_t end = end_of(g);
    const int32_t t1 = ag_grammar_bytes(g, 0x80, 0xbf, end), t2 = ag_grammar_bytes(g, 0x80, 0xbf, t1), t3 = ag_grammar_bytes(g, 0x80, 0xbf, t2);
    int32_t escape = unicode_escape(g, end);
    for (const char *c = "\"\\/bfnrt"; *c; c++) escape = ag_grammar_either(g, ag_grammar_bytes(g, *c, *c, end), escape);
    const int32_t ways[] = {
        ag_grammar_bytes(g, 0x20, 0x21, end), ag_grammar_bytes(g, 0x23, 0x5b, end), ag_grammar_bytes(g, 0x5d, 0x7f, end),
        ag_grammar_bytes(g, 0xc2, 0xdf, t1),
        ag_grammar_bytes(g, 0xe0, 0xe0, ag_grammar_bytes(g, 0xa0, 0xbf, t1)), ag_grammar_bytes(g, 0xe1, 0xec, t2),
        ag_grammar_bytes(g, 0xed, 0xed, ag_grammar_bytes(g, 0x80, 0x9f, t1)), ag_grammar_bytes(g, 0xee, 0xef, t2),
        ag_grammar_bytes(g, 0xf0, 0xf0, ag_grammar_bytes(g, 0x90, 0xbf, t2)), ag_grammar_bytes(g, 0xf1, 0xf3, t3),
        ag_grammar_bytes(g, 0xf4, 0xf4, ag_grammar_bytes(g, 0x80, 0x8f, t2)), ag_grammar_bytes(g, '\\', '\\', escape)};
    int32_t all = -1;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) all = ag_grammar_either(g, ways[i], all);
    return all;
}

static int32_t string(ag_grammar *g)
{
    const int32_t end = ag_grammar_bytes(g, '"', '"', end_of(g)), loop = ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, end, -1});
    const int32_t more = ag_grammar_call(g, AG_RULE_CHAR, loop);
    g->states[loop].b = more;
    return ag_grammar_bytes(g, '"', '"', loop);
}

/* At most n more digits. */
static int32_t digits(ag_grammar *g, int n, int32_t next)
{
    int32_t more = next;
    for (int i = 0; i < n; i++) more = ag_grammar_either(g, next, ag_grammar_bytes(g, '0', '9', more));
    return more;
}

static int32_t whole_number(ag_grammar *g, int32_t next)
{
    const int32_t unsigned_number = ag_grammar_either(g, ag_grammar_bytes(g, '0', '0', next),
                                                      ag_grammar_bytes(g, '1', '9', digits(g, MAX_INTEGER_DIGITS - 1, next)));
    return ag_grammar_either(g, unsigned_number, ag_grammar_bytes(g, '-', '-', unsigned_number));
}

static int32_t number(ag_grammar *g)
{
    const int32_t end = end_of(g), exponent_digits = ag_grammar_bytes(g, '0', '9', digits(g, MAX_EXPONENT_DIGITS - 1, end));
    const int32_t sign = ag_grammar_either(g, exponent_digits, ag_grammar_either(g, ag_grammar_bytes(g, '+', '+', exponent_digits),
                                                                                 ag_grammar_bytes(g, '-', '-', exponent_digits)));
    const int32_t exponent = ag_grammar_either(g, end, ag_grammar_either(g, ag_grammar_bytes(g, 'e', 'e', sign), ag_grammar_bytes(g, 'E', 'E', sign)));
    const int32_t fraction = ag_grammar_bytes(g, '.', '.', ag_grammar_bytes(g, '0', '9', digits(g, MAX_FRACTION_DIGITS - 1, exponent)));
    return whole_number(g, ag_grammar_either(g, exponent, fraction));
}

/* open (item (, item)*)? close; an item is the rule VALUE, behind a key where it is an object. */
static int32_t any_list(ag_grammar *g, char open, char close, bool has_keys)
{
    const int32_t end = ag_grammar_bytes(g, close, close, end_of(g)), closing = ag_grammar_call(g, AG_RULE_SPACE, end);
    const int32_t after = ag_grammar_add(g, (ag_state){AG_STATE_SPLIT, 0, 0, closing, -1});
    int32_t item = ag_grammar_call(g, AG_RULE_VALUE, after);
    if (has_keys)
        item = ag_grammar_call(g, AG_RULE_STRING, ag_grammar_bytes(g, ':', ':', ag_grammar_call(g, AG_RULE_SPACE, item)));
    g->states[after].b = ag_grammar_bytes(g, ',', ',', ag_grammar_call(g, AG_RULE_SPACE, item));
    return ag_grammar_bytes(g, open, open, ag_grammar_call(g, AG_RULE_SPACE, ag_grammar_either(g, item, end)));
}

static int32_t value(ag_grammar *g)
{
    const int32_t end = end_of(g);
    int32_t all = -1;
    for (int32_t rule = 0; rule < AG_N_RULES; rule++)
        if (rule == AG_RULE_STRING || rule == AG_RULE_NUMBER || rule == AG_RULE_OBJECT || rule == AG_RULE_ARRAY)
            all = ag_grammar_either(g, ag_grammar_call(g, rule, end), all);
    all = ag_grammar_either(g, ag_grammar_literal(g, "null", 4, end), all);
    all = ag_grammar_either(g, ag_grammar_literal(g, "true", 4, end), all);
    return ag_grammar_either(g, ag_grammar_literal(g, "false", 5, end), all);
}

ag_grammar *ag_grammar_create(void)
{
    ag_grammar *g = calloc(1, sizeof *g);
    if (!g) ag_out_of_memory(sizeof *g);
    for (int i = 0; i < AG_N_RULES; i++) ag_grammar_rule(g);
    g->rules[AG_RULE_SPACE] = space(g);
    g->rules[AG_RULE_CHAR] = character(g);
    g->rules[AG_RULE_STRING] = string(g);
    g->rules[AG_RULE_NUMBER] = number(g);
    g->rules[AG_RULE_INTEGER] = whole_number(g, end_of(g));
    g->rules[AG_RULE_OBJECT] = any_list(g, '{', '}', true);
    g->rules[AG_RULE_ARRAY] = any_list(g, '[', ']', false);
    g->rules[AG_RULE_VALUE] = value(g);
    return g;
}

void ag_grammar_free(ag_grammar **g)
{
    if (!g || !*g) return;
    free((*g)->states);
    free((*g)->rules);
    free(*g);
    *g = NULL;
}
