#include "text/chat_template.h"

#include "base/json.h"
#include "text/template_run.h"
#include "text/template_syntax.h"

#include <stdlib.h>
#include <string.h>

struct ag_chat_template {
    ag_ttree tree;
};

/* ---- compiling
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
static ag_status compile(ag_ttree *tree, const char *source, size_t n, ag_err *err)
{
    if (n > AG_TEMPLATE_MAX_SOURCE)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the template has %zu bytes; at most %d are read", tree->name, n,
                       AG_TEMPLATE_MAX_SOURCE);
    if (!ag_utf8_valid(source, n)) return ag_fail(err, AG_E_FORMAT, "%s: the template is not valid UTF-8", tree->name);
    ag_ttoken *tokens;
    size_t n_tokens;
    AG_TRY(ag_template_lex(&tokens, &n_tokens, source, n, &tree->arena, tree->name, err));
    return ag_template_parse(tree, tokens, n_tokens, err);
}

ag_status ag_chat_template_compile(ag_chat_template **out, const char *source, size_t n, const char *name, ag_err *err)
{
    *out = NULL;
    ag_chat_template *t = calloc(1, sizeof *t);
    if (!t) ag_out_of_memory(sizeof *t);
    t->tree.name = ag_arena_strdup(&t->tree.arena, name);
    ag_status status = compile(&t->tree, source, n, err);
    if (status) ag_chat_template_free(&t);
    *out = t;
    return status;
}

void ag_chat_template_free(ag_chat_template **t)
{
    if (!t || !*t) return;
    ag_arena_free(&(*t)->tree.arena);
    free(*t);
    *t = NULL;
}

bool ag_chat_template_has_generation(const ag_chat_template *t) { return t->tree.has_generation; }

/* ---- variables
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval from_json(ag_trun *r, const json_t *v);

static ag_tval text_of(const json_t *v) { return ag_tval_text(json_string_value(v), json_string_length(v)); }

/* jansson iterates in the order of insertion; its iterators want the object mutable but leave it alone. */
static json_t *mutable(const json_t *v) { return (json_t *)(uintptr_t)v; }

static ag_tval list_of(ag_trun *r, const json_t *v)
{
    size_t n = json_array_size(v);
    ag_tval *at = ag_trun_alloc(r, n, sizeof *at);
    for (size_t i = 0; i < n; i++) at[i] = from_json(r, json_array_get(v, i));
    return ag_tval_list(r, AG_T_LIST, at, n);
}

static ag_tval big_integer(ag_trun *r, const char *digits)
{
    bool negative = *digits == '-';
    ag_tint i = 0;
    for (const char *c = digits + negative; *c; c++) {
        if (*c < '0' || *c > '9') ag_trun_fail(r, "ValueError", "'%.60s' is no integer", digits);
        if (__builtin_mul_overflow(i, (ag_tint)10, &i) ||
            __builtin_add_overflow(i, (ag_tint)(negative ? '0' - *c : *c - '0'), &i))
            ag_trun_fail(r, "OverflowError",
                         "the integer %.60s of the conversation has more than 127 bits, which is not supported", digits);
    }
    return ag_tval_int(i);
}

static ag_tval dict_of(ag_trun *r, const json_t *v)
{
    if (ag_json_big_integer(v)) return big_integer(r, ag_json_big_integer(v));
    ag_tdict *d = ag_tdict_new(r);
    json_t *object = mutable(v);
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it))
        ag_tdict_set(r, d, ag_tval_word(json_object_iter_key(it)), from_json(r, json_object_iter_value(it)));
    return ag_tval_dict(d);
}

static ag_tval from_json(ag_trun *r, const json_t *v)
{
    ag_tval out = ag_tval_none();
    if (!v) return out;
    ag_trun_enter(r);
    switch (json_typeof(v)) {
    case JSON_OBJECT: out = dict_of(r, v); break;
    case JSON_ARRAY: out = list_of(r, v); break;
    case JSON_STRING: out = text_of(v); break;
    case JSON_INTEGER: out = ag_tval_int(json_integer_value(v)); break;
    case JSON_REAL: out = ag_tval_float(json_real_value(v)); break;
    case JSON_TRUE: out = ag_tval_bool(true); break;
    case JSON_FALSE: out = ag_tval_bool(false); break;
    case JSON_NULL: break;
    }
    ag_trun_exit(r);
    return out;
}

/* What transformers does to a message first: keys whose value is null go; reasoning has one name, and the older one too. */
static ag_tval message_of(ag_trun *r, const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const json_t *reasoning = NULL;
    for (int i = 0; i < 3 && !reasoning; i++) {
        const json_t *v = json_object_get(message, names[i]);
        if (v && !json_is_null(v)) reasoning = v;
    }
    ag_tdict *d = ag_tdict_new(r);
    ag_tval thought = from_json(r, reasoning);
    if (reasoning) ag_tdict_set(r, d, ag_tval_word("thinking"), thought);
    json_t *object = mutable(message);
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const json_t *value = json_object_iter_value(it);
        if (!json_is_null(value)) ag_tdict_set(r, d, ag_tval_word(json_object_iter_key(it)), from_json(r, value));
    }
    if (reasoning) ag_tdict_set(r, d, ag_tval_word("reasoning_content"), thought);
    return ag_tval_dict(d);
}

static ag_tval messages_of(ag_trun *r, const json_t *messages)
{
    size_t n = json_array_size(messages);
    ag_tval *at = ag_trun_alloc(r, n, sizeof *at);
    for (size_t i = 0; i < n; i++) at[i] = message_of(r, json_array_get(messages, i));
    return ag_tval_list(r, AG_T_LIST, at, n);
}

static void define(ag_trun *r, const char *name, ag_tval v)
{
    uint32_t number = ag_ttree_find_name(r->tree, (ag_ttext){name, strlen(name)});
    if (number != UINT32_MAX) ag_tframe_set(r, r->frame, number, v);
}

static void define_all(ag_trun *r, const ag_chat_render_args *args)
{
    r->frame = ag_tframe_new(r, NULL);
    ag_trun_for_globals(r, define);
    for (size_t i = 0; i < args->n_specials; i++) define(r, args->specials[i].name, ag_tval_word(args->specials[i].text));
    json_t *variables = mutable(args->variables);
    for (void *it = json_object_iter(variables); it; it = json_object_iter_next(variables, it))
        define(r, json_object_iter_key(it), from_json(r, json_object_iter_value(it)));
    define(r, "messages", messages_of(r, args->messages));
    define(r, "tools", from_json(r, args->tools));
    define(r, "documents", from_json(r, args->documents));
    define(r, "add_generation_prompt", ag_tval_bool(args->add_generation_prompt));
}

/* ---- rendering
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_status check_args(const ag_ttree *tree, const ag_chat_render_args *args, ag_err *err)
{
    static const char *const ours[] = {"messages", "tools", "documents", "add_generation_prompt"};
    if (!json_is_array(args->messages) || json_array_size(args->messages) == 0)
        return ag_fail(err, AG_E_DATA, "%s: a conversation must be a list of at least one message", tree->name);
    for (size_t i = 0; i < json_array_size(args->messages); i++)
        if (!json_is_object(json_array_get(args->messages, i)))
            return ag_fail(err, AG_E_DATA, "%s: message %zu of the conversation must be an object", tree->name, i + 1);
    if (args->variables && !json_is_object(args->variables))
        return ag_fail(err, AG_E_DATA, "%s: the variables must be an object", tree->name);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_object_get(args->variables, ours[i]))
            return ag_fail(err, AG_E_USAGE, "%s: the variable '%s' is given by the conversation and cannot be set", tree->name,
                           ours[i]);
    return AG_OK;
}

/* Ascending, inside the text, none over another. */
static void hand_over_marks(ag_chat_marks *out, struct ag_tmark *marks, size_t n, size_t n_text, size_t offset)
{
    for (size_t i = 1; i < n; i++) { /* nearly in order: only nested blocks are not */
        struct ag_tmark m = marks[i];
        size_t at = i;
        for (; at > 0 && marks[at - 1].start > m.start; at--) marks[at] = marks[at - 1];
        marks[at] = m;
    }
    for (size_t i = 0; i < n; i++) {
        size_t start = marks[i].start, end = marks[i].end < n_text ? marks[i].end : n_text;
        if (start > end) start = end;
        if (out->n && out->range[out->n - 1].end > start + offset) { /* inside another */
            if (out->range[out->n - 1].end < end + offset) out->range[out->n - 1].end = end + offset;
            continue;
        }
        if (out->n == out->room) {
            out->room = out->room ? 2 * out->room : 16;
            out->range = realloc(out->range, out->room * sizeof *out->range);
            if (!out->range) ag_out_of_memory(out->room * sizeof *out->range);
        }
        out->range[out->n].start = start + offset;
        out->range[out->n++].end = end + offset;
    }
}

/* Apart from its caller, whose variables then outlive the jump. */
static void run_tree(ag_trun *r, const ag_chat_render_args *args)
{
    if (setjmp(r->leave)) return;
    define_all(r, args);
    ag_trun_body(r, &r->tree->body);
}

ag_status ag_chat_template_render(const ag_chat_template *t, const ag_chat_render_args *args, ag_str *out, ag_chat_marks *marks,
                                  ag_err *err)
{
    AG_TRY(check_args(&t->tree, args, err));
    ag_trun r = {.name = t->tree.name, .err = err, .tree = &t->tree, .date = args->date, .outer_capture = SIZE_MAX, .line = 1};
    run_tree(&r, args);
    if (!r.status) {
        if (marks) hand_over_marks(marks, r.marks, r.n_marks, r.out.n, out->n);
        if (r.out.n)
            ag_str_add_n(out, r.out.text, r.out.n);
        else
            ag_str_add(out, "");
    }
    ag_str_free(&r.out);
    ag_arena_free(&r.arena);
    return r.status;
}
