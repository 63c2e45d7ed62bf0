/* The graph of a grammar, for those that make it and those that walk it. */
#ifndef AG_GRAMMAR_INTERNAL_H
#define AG_GRAMMAR_INTERNAL_H

#include "serve/constraint.h"

typedef enum { AG_STATE_BYTES, AG_STATE_SPLIT, AG_STATE_CALL, AG_STATE_RETURN } ag_state_kind;
typedef struct {
    uint8_t kind, low, high; /* BYTES: a byte in [low, high] leads to a */
    int32_t a, b;            /* SPLIT: a and b (-1: none). CALL: rule a, then state b. */
} ag_state;

struct ag_grammar {
    ag_state *states;
    int32_t n, room;
    int32_t *rules; /* entry state of each; -1 while it is made */
    int32_t n_rules, rule_room;
    int32_t start;
    bool too_large;
};

/* Building goes backward: each function makes the states of a piece in front of `next` and gives the first of them. */
int32_t ag_grammar_add(ag_grammar *g, ag_state state);
int32_t ag_grammar_bytes(ag_grammar *g, int low, int high, int32_t next);
int32_t ag_grammar_literal(ag_grammar *g, const char *text, size_t n, int32_t next);
int32_t ag_grammar_either(ag_grammar *g, int32_t a, int32_t b); /* -1 is none */
int32_t ag_grammar_call(ag_grammar *g, int32_t rule, int32_t next);
int32_t ag_grammar_rule(ag_grammar *g); /* a new one, entry -1 */

/* Rules that every JSON grammar has, in this order. */
enum { AG_RULE_SPACE, AG_RULE_STRING, AG_RULE_CHAR, AG_RULE_VALUE, AG_RULE_NUMBER, AG_RULE_INTEGER, AG_RULE_OBJECT, AG_RULE_ARRAY, AG_N_RULES };
ag_grammar *ag_grammar_create(void); /* with them */

bool ag_grammar_allows_nothing(const ag_grammar *g); /* not even a first byte */

#endif
