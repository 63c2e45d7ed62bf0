/* Answers that keep to a grammar: which tokens may come next, byte by byte.
 *
 * A grammar is a graph of states over bytes with calls of rules (a recursive automaton), made from a JSON schema. A constraint walks it
 * for one answer: the set of places where the answer may be (a state and a stack of returns each) is one number, steps from set to
 * set are remembered, and so are the tokens that a set allows. All of it is bounded: a schema that needs too many states, or an answer
 * that nests deeper than AG_GRAMMAR_DEPTH, is refused or cannot come.
 *
 *     ag_grammar *g;
 *     AG_TRY(ag_grammar_of_schema(&g, schema, err));
 *     ag_constraint *c = ag_constraint_create(g, table);
 *     for each token: ag_constraint_mask(c, logits); id = …; ag_constraint_accept(c, id);
 *
 * Of JSON Schema: type (also a list), properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum, const,
 * anyOf, oneOf (as anyOf), allOf of one schema, minLength, maxLength, $ref to #, #/$defs/… and #/definitions/…; annotations (title,
 * description, default, examples, …) are read over. Every other keyword is refused by name. Properties come in the schema's order;
 * where a schema names properties, others are not written (a schema that allows them allows also that none comes). */
#ifndef AG_CONSTRAINT_H
#define AG_CONSTRAINT_H

#include "base/status.h"
#include "serve/token_table.h"
#include "serve/tool_calls.h"

#include <jansson.h>

enum { AG_GRAMMAR_MAX_STATES = 1 << 17, AG_GRAMMAR_DEPTH = 64 };

typedef struct ag_grammar ag_grammar;
/* AG_E_UNSUPPORTED names the keyword, AG_E_FORMAT what makes no sense. Nothing of the schema is kept. */
AG_MUST_USE ag_status ag_grammar_of_schema(ag_grammar **out, const json_t *schema, ag_err *err);
AG_MUST_USE ag_status ag_grammar_of_any_object(ag_grammar **out, ag_err *err);
/* One call of one of the tools (of the one named, where name is not NULL), as the style writes it. */
AG_MUST_USE ag_status ag_grammar_of_call(ag_grammar **out, const json_t *tools, const char *name, ag_call_style style, ag_err *err);
void ag_grammar_free(ag_grammar **g);
/* Does the text belong to the grammar? For tests. */
bool ag_grammar_matches(const ag_grammar *g, const char *text, size_t n);

typedef struct ag_constraint ag_constraint;
ag_constraint *ag_constraint_create(const ag_grammar *g, const ag_token_table *table); /* borrows both */
void ag_constraint_free(ag_constraint **c);
/* Logits of tokens that cannot come next become -infinity. Ids that end the answer may come where the grammar ends; other special
 * tokens only at the very beginning, where the grammar spells one out. Nothing is left where no token fits: then ..._error says so. */
void ag_constraint_mask(ag_constraint *c, float *logits);
void ag_constraint_accept(ag_constraint *c, int32_t id);
const char *ag_constraint_error(const ag_constraint *c); /* NULL: none */

#endif
