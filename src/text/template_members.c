/* Members: attributes and items of values, as jinja2's sandbox gives them out. */
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <string.h>

static ag_tval unsafe(ag_tval of, ag_ttext name)
{
    ag_tval v = ag_tval_no_member(of, name);
    v.flags = AG_TF_UNSAFE;
    return v;
}

static ag_tval text_value(ag_ttext t) { return ag_tval_text(t.p, t.n); }

static bool loop_member(ag_trun *r, const ag_tloop *loop, ag_ttext name, ag_tval *out)
{
    size_t i = loop->index0, n = loop->items.n;
    static const char *const numbers[] = {"index", "index0", "revindex", "revindex0", "length", "depth", "depth0"};
    const size_t values[] = {i + 1, i, n - i, n - i - 1, n, loop->depth0 + 1, loop->depth0};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (ag_ttext_is(name, numbers[k])) return *out = ag_tval_int((ag_tint)values[k]), true;
    if (ag_ttext_is(name, "first")) return *out = ag_tval_bool(i == 0), true;
    if (ag_ttext_is(name, "last")) return *out = ag_tval_bool(i + 1 == n), true;
    if (ag_ttext_is(name, "previtem"))
        return *out = i ? loop->items.at[i - 1] : ag_tval_undefined("there is no previous item", 25), true;
    if (ag_ttext_is(name, "nextitem"))
        return *out = i + 1 < n ? loop->items.at[i + 1] : ag_tval_undefined("there is no next item", 21), true;
    (void)r;
    return false;
}

static bool macro_member(ag_trun *r, const ag_tmacro *m, ag_ttext name, ag_tval *out)
{
    const ag_tnode *node = m->node;
    if (ag_ttext_is(name, "name")) return *out = text_value(node->text), true;
    if (ag_ttext_is(name, "caller")) return *out = ag_tval_bool(node->flags & AG_TNF_CALLER), true;
    if (ag_ttext_is(name, "catch_kwargs")) return *out = ag_tval_bool(node->flags & AG_TNF_KWARGS), true;
    if (ag_ttext_is(name, "catch_varargs")) return *out = ag_tval_bool(node->flags & AG_TNF_VARARGS), true;
    if (!ag_ttext_is(name, "arguments")) return false;
    ag_tval *at = ag_trun_alloc(r, node->more.n, sizeof *at);
    for (uint32_t i = 0; i < node->more.n; i++) at[i] = text_value(node->more.at[i]->text);
    *out = ag_tval_list(r, AG_T_TUPLE, at, node->more.n);
    return true;
}

static bool number_member(ag_tval v, ag_ttext name, ag_tval *out)
{
    bool whole = v.kind != AG_T_FLOAT;
    if (ag_ttext_is(name, "real") || (whole && ag_ttext_is(name, "numerator")))
        return *out = whole ? ag_tval_int(ag_tval_integer(v)) : v, true;
    if (ag_ttext_is(name, "imag")) return *out = whole ? ag_tval_int(0) : ag_tval_float(0), true;
    if (whole && ag_ttext_is(name, "denominator")) return *out = ag_tval_int(1), true;
    return false;
}

/* Python's getattr: true with the member, which may be one that the sandbox refuses. */
static bool python_attr(ag_trun *r, ag_tval v, ag_ttext name, ag_tval *out)
{
    if (name.n >= 2 && name.p[0] == '_' && name.p[1] == '_') { /* internals: there, or not, but never given out */
        *out = unsafe(v, name);
        return true;
    }
    switch (v.kind) {
    case AG_T_LOOP:
        if (loop_member(r, v.loop, name, out)) return true;
        break;
    case AG_T_MACRO: return macro_member(r, v.macro, name, out);
    case AG_T_NAMESPACE: {
        const ag_tval *found = ag_tdict_find_text(v.dict, name);
        if (found) *out = *found;
        return found != NULL;
    }
    case AG_T_RANGE:
        if (ag_ttext_is(name, "start")) return *out = ag_tval_int(v.range->start), true;
        if (ag_ttext_is(name, "stop")) return *out = ag_tval_int(v.range->stop), true;
        if (ag_ttext_is(name, "step")) return *out = ag_tval_int(v.range->step), true;
        break;
    case AG_T_BOOL:
    case AG_T_INT:
    case AG_T_FLOAT:
        if (number_member(v, name, out)) return true;
        break;
    case AG_T_TUPLE:
        if (v.flags & AG_TF_GROUP && ag_ttext_is(name, "grouper")) return *out = v.list->at[0], true;
        if (v.flags & AG_TF_GROUP && ag_ttext_is(name, "list")) return *out = v.list->at[1], true;
        break;
    default: break;
    }
    bool changes;
    const ag_tmethod *method = ag_tmethod_find(r, v, name, &changes);
    if (!method) return false;
    *out = changes ? unsafe(v, name) : (ag_tval){.kind = AG_T_METHOD, .method = method};
    return true;
}

static ag_tval nth(ag_trun *r, ag_tval v, ag_tint i, bool *found)
{
    size_t n;
    *found = false;
    if (v.kind == AG_T_STR)
        n = ag_ttext_count(r, v.s);
    else if (v.kind == AG_T_LIST || v.kind == AG_T_TUPLE || v.kind == AG_T_RANGE)
        ag_tval_has_length(v, &n);
    else
        return v;
    if (i < 0) i += (ag_tint)n;
    if (i < 0 || i >= (ag_tint)n) return v;
    *found = true;
    if (v.kind == AG_T_RANGE) return ag_tval_int(v.range->start + i * v.range->step);
    if (v.kind != AG_T_STR) return v.list->at[i];
    size_t at = v.s.n == n ? (size_t)i : ag_ttext_offset(v.s, (size_t)i), bytes;
    ag_utf8_peek((const unsigned char *)v.s.p, at, &bytes);
    ag_tval one = ag_tval_text(v.s.p + at, bytes);
    one.flags = v.flags;
    return one;
}

/* Python's v[key]. */
static bool python_item(ag_trun *r, ag_tval v, ag_tval key, ag_tval *out)
{
    bool found = false;
    if (v.kind == AG_T_DICT) {
        const ag_tval *value = ag_tdict_find(r, v.dict, key);
        if (value) *out = *value;
        return value != NULL;
    }
    if (ag_tval_is_integral(key)) {
        ag_tval item = nth(r, v, ag_tval_integer(key), &found);
        if (found) *out = item;
    }
    return found;
}

ag_tval ag_tval_attr(ag_trun *r, ag_tval v, ag_ttext name)
{
    ag_tval_need_defined(r, v);
    ag_tval out;
    if (python_attr(r, v, name, &out)) {
        if (name.n && name.p[0] == '_' && v.kind != AG_T_UNDEFINED) return unsafe(v, name);
        return out;
    }
    return python_item(r, v, text_value(name), &out) ? out : ag_tval_no_member(v, name);
}

ag_tval ag_tval_item(ag_trun *r, ag_tval v, ag_tval key)
{
    ag_tval_need_defined(r, v);
    ag_tval out;
    if (python_item(r, v, key, &out)) return out;
    if (key.kind == AG_T_STR && python_attr(r, v, key.s, &out)) return key.s.n && key.s.p[0] == '_' ? unsafe(v, key.s) : out;
    if (key.kind == AG_T_STR) return ag_tval_no_member(v, key.s);
    size_t at = r->out.n;
    if (ag_tval_is_number(key))
        ag_tval_print(r, key);
    else
        ag_trun_put_word(r, "that key");
    return ag_tval_no_member(v, ag_trun_cut(r, at).s);
}

ag_tval ag_tval_only_attr(ag_trun *r, ag_tval v, ag_ttext name)
{
    ag_tval out;
    ag_tval_need_defined(r, v);
    if (!python_attr(r, v, name, &out)) return ag_tval_no_member(v, name);
    return name.n && name.p[0] == '_' ? unsafe(v, name) : out;
}

static ag_tval part_of(ag_trun *r, ag_tval v, ag_tval key, ag_tval missing)
{
    v = ag_tval_item(r, v, key);
    return v.kind == AG_T_UNDEFINED && ag_tval_given(missing) ? missing : v;
}

ag_tval ag_tval_path(ag_trun *r, ag_tval v, ag_tval path, ag_tval missing)
{
    if (path.kind != AG_T_STR) return part_of(r, v, path, missing);
    for (ag_ttext rest = path.s;;) {
        const char *dot = memchr(rest.p, '.', rest.n);
        ag_ttext part = {rest.p, dot ? (size_t)(dot - rest.p) : rest.n};
        bool digits = part.n > 0 && part.n < 10;
        ag_tint number = 0;
        for (size_t i = 0; i < part.n && digits; i++) {
            digits = part.p[i] >= '0' && part.p[i] <= '9';
            number = number * 10 + (part.p[i] - '0');
        }
        v = part_of(r, v, digits ? ag_tval_int(number) : text_value(part), missing);
        if (!dot) return v;
        rest.n -= part.n + 1;
        rest.p = dot + 1;
    }
}
