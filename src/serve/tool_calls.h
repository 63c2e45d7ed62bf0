/* Calls of functions in an answer's text, in the forms that model families document.
 *
 *     HERMES   <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>, one or more          (Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3)
 *     MISTRAL  [TOOL_CALLS][{"name": …, "arguments": {…}}, …]  or  [TOOL_CALLS]name[ARGS]{…}…  (Mistral: v3, and v11 and later)
 *     GRANITE  <|tool_call|>[{"name": …, "arguments": {…}}, …], with or without the bars        (Granite 3)
 *     LLAMA    {"name": …, "parameters": {…}}, "; " between several, <|python_tag|> before     (Llama 3.1 and later)
 * Which form a model speaks is read from its chat template, which names the marks. What is no whole call stays text. */
#ifndef AG_TOOL_CALLS_H
#define AG_TOOL_CALLS_H

#include "base/str.h"

typedef enum { AG_CALLS_NONE, AG_CALLS_HERMES, AG_CALLS_MISTRAL, AG_CALLS_GRANITE, AG_CALLS_LLAMA } ag_call_style;
/* NONE: the template does not take tools, or shows no form of a call that is known here. */
ag_call_style ag_call_style_of(const char *chat_template);

typedef struct {
    char *name;
    ag_str arguments; /* JSON text of an object */
} ag_tool_call;
typedef struct {
    ag_tool_call *calls;
    size_t n;
    size_t n_content; /* bytes in front of the calls; all where there are none */
} ag_tool_calls;

void ag_tool_calls_parse(ag_tool_calls *out, ag_call_style style, const char *text, size_t n);
void ag_tool_calls_free(ag_tool_calls *calls);
/* Leading bytes of an unfinished answer that certainly belong to no call. */
size_t ag_tool_text_certain(ag_call_style style, const char *text, size_t n);

/* What stands around the JSON of one call, for making an answer begin with one: prefix, the key of the arguments, suffix. */
void ag_call_frame(ag_call_style style, const char **prefix, const char **arguments_key, const char **suffix);

#endif
