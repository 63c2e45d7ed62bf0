#define _GNU_SOURCE
#include "serve/tool_calls.h"

#include "base/arena.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 64 };

/* Marks that begin a call. */
static const char *const marks[][3] = {
    [AG_CALLS_NONE] = {NULL},
    [AG_CALLS_HERMES] = {"<tool_call>", NULL},
    [AG_CALLS_MISTRAL] = {"[TOOL_CALLS]", NULL},
    [AG_CALLS_GRANITE] = {"<|tool_call|>", "<tool_call>", NULL},
    [AG_CALLS_LLAMA] = {"<|python_tag|>", "{", NULL},
};

ag_call_style ag_call_style_of(const char *t)
{
    if (!t || !strstr(t, "tools")) return AG_CALLS_NONE;
    if (strstr(t, "[TOOL_CALLS]")) return AG_CALLS_MISTRAL;
    if (strstr(t, "<|tool_call|>")) return AG_CALLS_GRANITE;
    /* Qwen3-Coder and its like have the same mark around a form of their own. */
    if (strstr(t, "<tool_call>") && !strstr(t, "<function=")) return AG_CALLS_HERMES;
    if (strstr(t, "\"parameters\"") && (strstr(t, "python_tag") || strstr(t, "ipython"))) return AG_CALLS_LLAMA;
    return AG_CALLS_NONE;
}

void ag_call_frame(ag_call_style style, const char **prefix, const char **arguments_key, const char **suffix)
{
    static const char *const prefixes[] = {"", "<tool_call>\n", "[TOOL_CALLS][", "<|tool_call|>[", ""};
    static const char *const suffixes[] = {"", "\n</tool_call>", "]", "]", ""};
    *prefix = prefixes[style];
    *suffix = suffixes[style];
    *arguments_key = style == AG_CALLS_LLAMA ? "parameters" : "arguments";
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static void skip_space(const char *text, size_t n, size_t *at)
{
    while (*at < n && is_space(text[*at])) ++*at;
}

static bool skip_word(const char *text, size_t n, size_t *at, const char *word)
{
    const size_t k = strlen(word);
    if (n - *at < k || memcmp(text + *at, word, k) != 0) return false;
    *at += k;
    return true;
}

/* Where the object or list that begins at text[at] ends; n: it does not. */
static size_t value_end(const char *text, size_t n, size_t at)
{
    int depth = 0;
    bool in_string = false;
    for (; at < n; at++) {
        const char c = text[at];
        if (in_string) {
            if (c == '\\') at++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == '{' || c == '[') depth++;
        else if ((c == '}' || c == ']') && --depth == 0) return at + 1;
    }
    return n + 1;
}

static bool read_value(json_t **value, const char *text, size_t n, size_t *at, char open)
{
    if (*at >= n || text[*at] != open) return false;
    const size_t end = value_end(text, n, *at);
    if (end > n || ag_json_parse_exact(value, text + *at, end - *at, "call", NULL)) return false;
    *at = end;
    return true;
}

static bool add_call(ag_tool_calls *out, const char *name, const json_t *arguments)
{
    if (!name || !*name || out->n == MAX_CALLS) return false;
    ag_tool_call call = {.name = strdup(name)};
    if (!call.name) ag_out_of_memory(strlen(name));
    if (json_is_string(arguments)) ag_str_add_n(&call.arguments, json_string_value(arguments), json_string_length(arguments));
    else if (json_is_object(arguments)) {
        ag_json_writer w = {.out = &call.arguments};
        ag_jw_value(&w, NULL, arguments);
    } else ag_str_add(&call.arguments, "{}");
    out->calls = realloc(out->calls, (out->n + 1) * sizeof *out->calls);
    if (!out->calls) ag_out_of_memory(sizeof call);
    out->calls[out->n++] = call;
    return true;
}

static bool add_object(ag_tool_calls *out, const json_t *call)
{
    const json_t *arguments = json_object_get(call, "arguments");
    if (!arguments) arguments = json_object_get(call, "parameters");
    return add_call(out, json_string_value(json_object_get(call, "name")), arguments);
}

static bool read_object(ag_tool_calls *out, const char *text, size_t n, size_t *at)
{
    json_t *call;
    if (!read_value(&call, text, n, at, '{')) return false;
    const bool fine = add_object(out, call);
    ag_json_free(&call);
    return fine;
}

static bool read_list(ag_tool_calls *out, const char *text, size_t n, size_t *at)
{
    json_t *list;
    if (!read_value(&list, text, n, at, '[')) return false;
    bool fine = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list) && fine; i++) fine = add_object(out, json_array_get(list, i));
    ag_json_free(&list);
    return fine;
}

static bool read_hermes(ag_tool_calls *out, const char *text, size_t n, size_t at)
{
    while (at < n) {
        if (!skip_word(text, n, &at, "<tool_call>")) return false;
        skip_space(text, n, &at);
        if (!read_object(out, text, n, &at)) return false;
        skip_space(text, n, &at);
        if (!skip_word(text, n, &at, "</tool_call>") && at < n) return false; /* the end token may stand for the last one */
        skip_space(text, n, &at);
    }
    return out->n > 0;
}

static bool read_mistral(ag_tool_calls *out, const char *text, size_t n, size_t at)
{
    while (at < n) {
        if (!skip_word(text, n, &at, "[TOOL_CALLS]")) return false;
        skip_space(text, n, &at);
        if (at < n && text[at] == '[') {
            if (!read_list(out, text, n, &at)) return false;
        } else {
            const char *args = memmem(text + at, n - at, "[ARGS]", 6);
            if (!args) return false;
            char *name = strndup(text + at, (size_t)(args - text) - at);
            if (!name) ag_out_of_memory(n);
            at = (size_t)(args - text) + 6;
            json_t *arguments = NULL;
            const bool fine = read_value(&arguments, text, n, &at, '{') && add_call(out, name, arguments);
            if (arguments) ag_json_free(&arguments);
            free(name);
            if (!fine) return false;
        }
        skip_space(text, n, &at);
    }
    return out->n > 0;
}

static bool read_granite(ag_tool_calls *out, const char *text, size_t n, size_t at)
{
    if (!skip_word(text, n, &at, "<|tool_call|>") && !skip_word(text, n, &at, "<tool_call>")) return false;
    skip_space(text, n, &at);
    if (!read_list(out, text, n, &at)) return false;
    skip_space(text, n, &at);
    return at == n;
}

static bool read_llama(ag_tool_calls *out, const char *text, size_t n, size_t at)
{
    skip_word(text, n, &at, "<|python_tag|>");
    skip_space(text, n, &at);
    while (at < n) {
        if (!read_object(out, text, n, &at)) return false;
        skip_space(text, n, &at);
        if (at < n && !skip_word(text, n, &at, ";")) return false;
        skip_space(text, n, &at);
    }
    return out->n > 0;
}

static bool read_calls(ag_tool_calls *out, ag_call_style style, const char *text, size_t n, size_t at)
{
    switch (style) {
    case AG_CALLS_HERMES: return read_hermes(out, text, n, at);
    case AG_CALLS_MISTRAL: return read_mistral(out, text, n, at);
    case AG_CALLS_GRANITE: return read_granite(out, text, n, at);
    case AG_CALLS_LLAMA: return read_llama(out, text, n, at);
    case AG_CALLS_NONE: break;
    }
    return false;
}

/* Where the first mark stands; n: nowhere. Llama's brace is a mark only where the answer begins. */
static size_t first_mark(ag_call_style style, const char *text, size_t n)
{
    size_t first = n;
    for (int i = 0; marks[style][i]; i++) {
        const char *mark = marks[style][i];
        size_t at = 0;
        skip_space(text, n, &at);
        if (style == AG_CALLS_LLAMA && mark[0] == '{') {
            if (at < n && text[at] == '{') first = 0;
            continue;
        }
        const char *found = n ? memmem(text, n, mark, strlen(mark)) : NULL;
        if (found && (size_t)(found - text) < first) first = (size_t)(found - text);
    }
    return first;
}

void ag_tool_calls_parse(ag_tool_calls *out, ag_call_style style, const char *text, size_t n)
{
    *out = (ag_tool_calls){.n_content = n};
    const size_t mark = first_mark(style, text, n);
    if (mark == n) return;
    size_t at = mark;
    skip_space(text, n, &at);
    if (!read_calls(out, style, text, n, at)) {
        ag_tool_calls_free(out);
        out->n_content = n;
        return;
    }
    out->n_content = mark;
    while (out->n_content > 0 && is_space(text[out->n_content - 1])) out->n_content--;
}

void ag_tool_calls_free(ag_tool_calls *calls)
{
    for (size_t i = 0; i < calls->n; i++) {
        free(calls->calls[i].name);
        ag_str_free(&calls->calls[i].arguments);
    }
    free(calls->calls);
    *calls = (ag_tool_calls){0};
}

size_t ag_tool_text_certain(ag_call_style style, const char *text, size_t n)
{
    size_t certain = first_mark(style, text, n);
    if (certain == n)
        for (int i = 0; marks[style][i]; i++) {
            const size_t n_mark = strlen(marks[style][i]);
            size_t k = n_mark - 1 < n ? n_mark - 1 : n;
            while (k > 0 && memcmp(text + n - k, marks[style][i], k) != 0) k--;
            if (n - k < certain) certain = n - k;
        }
    if (style != AG_CALLS_NONE) /* white space in front of a call is dropped */
        while (certain > 0 && is_space(text[certain - 1])) certain--;
    return certain;
}
