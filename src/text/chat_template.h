/* Chat templates: the Jinja of published models, rendered as transformers' apply_chat_template renders them.
 *
 *     ag_chat_template *t;
 *     AG_TRY(ag_chat_template_compile(&t, source, n, "chat_template.jinja", err));
 *     AG_TRY(ag_chat_template_render(t, &(ag_chat_render_args){.messages = messages, .add_generation_prompt = true,
 *                                     .specials = specials, .n_specials = n}, &text, NULL, err));
 *     ag_chat_template_free(&t);
 *
 * A template is a program from a stranger. It sees what it is given and nothing else; its steps, its depth and the bytes that
 * it writes are bounded (AG_E_DATA says which bound it met); it cannot reach files, network or environment. A construct of the
 * language that is not there is refused, by name and line, when the template is compiled (an unknown filter right inside an if:
 * when it runs, as in jinja2). A compiled template never changes: any number of threads may render it.
 *
 * What is as in Python and jinja2 3.1: scopes, white space, undefined values, numbers (integers up to 127 bits), texts by code
 * point, repr and tojson, errors ("NAME: line N: TypeError: …", the class that Python has for it). What is refused though they
 * have it: tags that need other files (include, import, extends, block), autoescape, the filters pprint, random, urlize and
 * xmlattr, lipsum(), printing a generator or a bound method (Python prints its address). */
#ifndef AG_CHAT_TEMPLATE_H
#define AG_CHAT_TEMPLATE_H

#include "base/status.h"
#include "base/str.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct ag_chat_template ag_chat_template;

/* Keeps nothing of the bytes. AG_E_FORMAT for a syntax error, with line; AG_E_UNSUPPORTED for what we do not have. */
AG_MUST_USE ag_status ag_chat_template_compile(ag_chat_template **out, const char *source, size_t n, const char *name,
                                               ag_err *err);
void ag_chat_template_free(ag_chat_template **t);
bool ag_chat_template_has_generation(const ag_chat_template *t); /* {% generation %} stands in it */

typedef struct {
    const char *name, *text; /* "bos_token", "<s>" */
} ag_chat_special;

typedef struct {
    const json_t *messages; /* a list of objects; what transformers does to them before rendering is done here. Read them with
                             * ag_json_parse_exact, so that integers of any size print as they were written */
    const json_t *tools, *documents; /* lists, or NULL: None */
    const json_t *variables;         /* an object: further variables, over the special tokens; or NULL */
    bool add_generation_prompt;
    const ag_chat_special *specials; /* the special tokens that the tokenizer has; one that it lacks is undefined */
    size_t n_specials;
    const char *date; /* "YYYY-MM-DD" for strftime_now; NULL: now */
} ag_chat_render_args;

/* Byte ranges of the output, pairs [start, end), ascending. Grown by render; freed with free(range). */
typedef struct {
    struct {
        size_t start, end;
    } * range;
    size_t n, room;
} ag_chat_marks;

/* Appends the text to *out, nothing on failure. marks (may be NULL) receives the ranges inside {% generation %} blocks, in
 * bytes of *out. An error that the template itself raised (raise_exception) is AG_E_DATA with its own message and nothing else.
 * AG_E_USAGE for a variable that has the name of an argument. */
AG_MUST_USE ag_status ag_chat_template_render(const ag_chat_template *t, const ag_chat_render_args *args, ag_str *out,
                                              ag_chat_marks *marks, ag_err *err);

#endif
