/* Bodies of requests, with the schemas inside them; header values; texts of answers with calls. The first byte says which. */
#include "serve/constraint.h"
#include "serve/http_guard.h"
#include "serve/openai_request.h"
#include "serve/tool_calls.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void body(const char *text, size_t n, bool is_chat)
{
    ag_err err;
    ag_api_request r;
    ag_grammar *g = NULL;
    if (!ag_api_request_parse(&r, is_chat, text, n, &err)) {
        if (r.schema && !ag_grammar_of_schema(&g, r.schema, &err)) {
            ag_grammar_matches(g, "{\"a\": [1, true, \"x\"]}", 21);
            ag_grammar_free(&g);
        }
        if (r.tools && !ag_grammar_of_call(&g, r.tools, r.tool_name, AG_CALLS_HERMES, &err)) ag_grammar_free(&g);
    }
    ag_api_request_free(&r);
}

static void headers(const char *text, size_t n)
{
    char *value = malloc(n + 1);
    unsigned char known[1][AG_HTTP_KEY_DIGEST];
    memcpy(value, text, n);
    value[n] = 0;
    ag_http_key_digest(known[0], "key", 3);
    ag_http_host_is_loopback(value);
    ag_http_origin_is_fine(value, "localhost:80", NULL);
    ag_http_origin_is_fine("http://localhost:80", value, value);
    ag_http_key_is_known(value, known, 1);
    free(value);
}

static void calls(const char *text, size_t n)
{
    for (int style = AG_CALLS_NONE; style <= AG_CALLS_LLAMA; style++) {
        ag_tool_calls calls_of_text;
        ag_tool_calls_parse(&calls_of_text, (ag_call_style)style, text, n);
        const size_t certain = ag_tool_text_certain((ag_call_style)style, text, n);
        if (certain > n || calls_of_text.n_content > n) abort();
        ag_tool_calls_free(&calls_of_text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 4) {
    case 0: body(text, n - 1, true); break;
    case 1: body(text, n - 1, false); break;
    case 2: headers(text, n - 1); break;
    default: calls(text, n - 1); break;
    }
    return 0;
}
