/* Values as text: str() and repr() of Python, and tojson as transformers has it (json.dumps, nothing escaped for HTML). */
#include "base/json.h"
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void ag_trun_put_int(ag_trun *r, ag_tint i, unsigned base)
{
    char digits[132];
    size_t at = sizeof digits;
    unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i;
    do digits[--at] = "0123456789abcdef"[u % base];
    while (u /= base);
    if (i < 0) digits[--at] = '-';
    ag_trun_put(r, digits + at, sizeof digits - at);
}

static void put_float(ag_trun *r, double f, bool json)
{
    if (json && !isfinite(f)) {
        ag_trun_put_word(r, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
        return;
    }
    ag_trun_work(r, 1);
    ag_str_add_double(&r->out, f);
}

void ag_trun_put_escaped(ag_trun *r, ag_ttext t)
{
    static const char special[] = "&<>'\"", *const escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t from = 0;
    for (size_t i = 0; i < t.n; i++) {
        const char *found = t.p[i] ? strchr(special, t.p[i]) : NULL;
        if (!found) continue;
        ag_trun_put(r, t.p + from, i - from);
        ag_trun_put_word(r, escapes[found - special]);
        from = i + 1;
    }
    ag_trun_put(r, t.p + from, t.n - from);
}

/* ---- repr
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
static bool is_printable(uint32_t c)
{
    static const uint32_t not = AG_CAT_BIT(AG_CAT_CN) | AG_CAT_BIT(AG_CAT_CC) | AG_CAT_BIT(AG_CAT_CF) | AG_CAT_BIT(AG_CAT_CS) |
                                AG_CAT_BIT(AG_CAT_CO) | AG_CAT_BIT(AG_CAT_ZS) | AG_CAT_BIT(AG_CAT_ZL) | AG_CAT_BIT(AG_CAT_ZP);
    return c < 0x7f ? c >= 0x20 : !ag_kind_in(ag_unicode_kinds()[c], not );
}

static void repr_text(ag_trun *r, ag_ttext t)
{
    char quote = memchr(t.p, '\'', t.n) && !memchr(t.p, '"', t.n) ? '"' : '\'';
    ag_trun_put_char(r, (unsigned char)quote);
    for (size_t at = 0; at < t.n;) {
        size_t bytes;
        uint32_t c = ag_utf8_peek((const unsigned char *)t.p, at, &bytes);
        char escape[12] = "";
        if (c == (unsigned char)quote || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!is_printable(c))
            snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (*escape)
            ag_trun_put_word(r, escape);
        else
            ag_trun_put(r, t.p + at, bytes);
        at += bytes;
    }
    ag_trun_put_char(r, (unsigned char)quote);
}

static void repr_items(ag_trun *r, ag_tlist list, const char *open, const char *close)
{
    ag_trun_put_word(r, open);
    for (size_t i = 0; i < list.n; i++) {
        if (i) ag_trun_put_word(r, ", ");
        ag_tval_repr(r, list.at[i]);
    }
    ag_trun_put_word(r, close);
}

static void repr_dict(ag_trun *r, const ag_tdict *d)
{
    ag_trun_put_word(r, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) ag_trun_put_word(r, ", ");
        ag_tval_repr(r, d->at[i].key);
        ag_trun_put_word(r, ": ");
        ag_tval_repr(r, d->at[i].value);
    }
    ag_trun_put_word(r, "}");
}

static void repr_range(ag_trun *r, const ag_trange *range)
{
    ag_trun_put_word(r, "range(");
    ag_trun_put_int(r, range->start, 10);
    ag_trun_put_word(r, ", ");
    ag_trun_put_int(r, range->stop, 10);
    if (range->step != 1) {
        ag_trun_put_word(r, ", ");
        ag_trun_put_int(r, range->step, 10);
    }
    ag_trun_put_word(r, ")");
}

static void repr_view(ag_trun *r, ag_tval v)
{
    ag_trun_put_word(r, ag_tval_type(v));
    repr_items(r, ag_tval_items(r, v), "([", "])");
}

void ag_tval_repr(ag_trun *r, ag_tval v)
{
    ag_trun_enter(r);
    switch (v.kind) {
    case AG_T_UNDEFINED: ag_trun_put_word(r, "Undefined"); break;
    case AG_T_NONE: ag_trun_put_word(r, "None"); break;
    case AG_T_BOOL: ag_trun_put_word(r, v.b ? "True" : "False"); break;
    case AG_T_INT: ag_trun_put_int(r, v.i, 10); break;
    case AG_T_FLOAT: put_float(r, v.f, false); break;
    case AG_T_STR:
        if (v.flags & AG_TF_SAFE) ag_trun_put_word(r, "Markup(");
        repr_text(r, v.s);
        if (v.flags & AG_TF_SAFE) ag_trun_put_word(r, ")");
        break;
    case AG_T_LIST: repr_items(r, *v.list, "[", "]"); break;
    case AG_T_TUPLE: repr_items(r, *v.list, "(", v.list->n == 1 ? ",)" : ")"); break;
    case AG_T_DICT: repr_dict(r, v.dict); break;
    case AG_T_NAMESPACE:
        ag_trun_put_word(r, "<Namespace ");
        repr_dict(r, v.dict);
        ag_trun_put_word(r, ">");
        break;
    case AG_T_RANGE: repr_range(r, v.range); break;
    case AG_T_KEYS:
    case AG_T_VALUES:
    case AG_T_ITEMS: repr_view(r, v); break;
    case AG_T_MACRO:
        ag_trun_put_word(r, "<Macro ");
        repr_text(r, v.macro->node->text);
        ag_trun_put_word(r, ">");
        break;
    case AG_T_LOOP:
        ag_trun_put_word(r, "<LoopContext ");
        ag_trun_put_int(r, (ag_tint)v.loop->index0 + 1, 10);
        ag_trun_put_word(r, "/");
        ag_trun_put_int(r, (ag_tint)v.loop->items.n, 10);
        ag_trun_put_word(r, ">");
        break;
    default: ag_trun_refuse(r, "printing a value of type", ag_tval_type(v)); /* Python would print an address */
    }
    ag_trun_exit(r);
}

void ag_tval_print(ag_trun *r, ag_tval v)
{
    if (v.kind == AG_T_STR) {
        ag_trun_put_text(r, v.s);
    } else if (v.kind != AG_T_UNDEFINED) {
        ag_tval_repr(r, v);
    }
}

ag_tval ag_tval_to_text(ag_trun *r, ag_tval v)
{
    if (v.kind == AG_T_STR) return v;
    size_t at = r->out.n;
    ag_tval_print(r, v);
    return ag_trun_cut(r, at);
}

/* ---- tojson
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
typedef struct {
    bool ascii, sort, lines;
    ag_ttext indent, item, key; /* separators */
} json_style;

static void put_u(ag_trun *r, uint32_t unit)
{
    char escape[16];
    snprintf(escape, sizeof escape, "\\u%04x", (unsigned)unit);
    ag_trun_put_word(r, escape);
}

static void json_text(ag_trun *r, ag_ttext t, const json_style *style)
{
    static const char special[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    ag_trun_put_word(r, "\"");
    size_t from = 0, at = 0;
    while (at < t.n) {
        size_t bytes;
        uint32_t c = ag_utf8_peek((const unsigned char *)t.p, at, &bytes);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !style->ascii)) {
            at += bytes;
            continue;
        }
        ag_trun_put(r, t.p + from, at - from);
        const char *found = c && c < 0x80 ? strchr(special, (int)c) : NULL;
        if (found)
            ag_trun_put(r, (char[]){'\\', letters[found - special]}, 2);
        else if (c < 0x10000)
            put_u(r, c);
        else
            put_u(r, 0xd800 + ((c - 0x10000) >> 10)), put_u(r, 0xdc00 + ((c - 0x10000) & 0x3ff));
        from = at += bytes;
    }
    ag_trun_put(r, t.p + from, at - from);
    ag_trun_put_word(r, "\"");
}

static void json_line(ag_trun *r, const json_style *style, size_t level)
{
    if (!style->lines) return;
    ag_trun_put_word(r, "\n");
    for (size_t i = 0; i < level; i++) ag_trun_put_text(r, style->indent);
}

static void json_value(ag_trun *r, ag_tval v, const json_style *style, size_t level);

static void json_key(ag_trun *r, ag_tval key, const json_style *style)
{
    if (key.kind == AG_T_STR) {
        json_text(r, key.s, style);
        return;
    }
    if (key.kind == AG_T_TUPLE || key.kind > AG_T_STR || key.kind == AG_T_UNDEFINED)
        ag_trun_fail(r, "TypeError", "keys must be str, int, float, bool or None, not %s", ag_tval_type(key));
    ag_trun_put_word(r, "\"");
    json_value(r, key, style, 0);
    ag_trun_put_word(r, "\"");
}

static int by_key(ag_trun *r, const ag_tentry *a, const ag_tentry *b) { return ag_tval_compare(r, a->key, b->key, "<"); }

/* Entries in the order of their keys: a merge sort, for comparing may leave the run. */
static ag_tentry *sorted(ag_trun *r, const ag_tdict *d)
{
    ag_tentry *from = ag_trun_alloc(r, d->n, sizeof *from), *to = ag_trun_alloc(r, d->n, sizeof *to);
    if (d->n) memcpy(from, d->at, d->n * sizeof *from);
    for (size_t width = 1; width < d->n; width *= 2) {
        for (size_t start = 0; start < d->n; start += 2 * width) {
            size_t a = start, middle = start + width < d->n ? start + width : d->n, b = middle;
            size_t end = middle + width < d->n ? middle + width : d->n;
            for (size_t i = start; i < end; i++)
                to[i] = a < middle && (b == end || by_key(r, &from[b], &from[a]) >= 0) ? from[a++] : from[b++];
        }
        ag_tentry *swap = from;
        from = to, to = swap;
    }
    return from;
}

static void json_dict(ag_trun *r, const ag_tdict *d, const json_style *style, size_t level)
{
    const ag_tentry *at = style->sort ? sorted(r, d) : d->at;
    ag_trun_put_word(r, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) ag_trun_put_text(r, style->item);
        json_line(r, style, level + 1);
        json_key(r, at[i].key, style);
        ag_trun_put_text(r, style->key);
        json_value(r, at[i].value, style, level + 1);
    }
    if (d->n) json_line(r, style, level);
    ag_trun_put_word(r, "}");
}

static void json_list(ag_trun *r, const ag_tlist *list, const json_style *style, size_t level)
{
    ag_trun_put_word(r, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i) ag_trun_put_text(r, style->item);
        json_line(r, style, level + 1);
        json_value(r, list->at[i], style, level + 1);
    }
    if (list->n) json_line(r, style, level);
    ag_trun_put_word(r, "]");
}

static void json_value(ag_trun *r, ag_tval v, const json_style *style, size_t level)
{
    ag_trun_enter(r);
    switch (v.kind) {
    case AG_T_NONE: ag_trun_put_word(r, "null"); break;
    case AG_T_BOOL: ag_trun_put_word(r, v.b ? "true" : "false"); break;
    case AG_T_INT: ag_trun_put_int(r, v.i, 10); break;
    case AG_T_FLOAT: put_float(r, v.f, true); break;
    case AG_T_STR: json_text(r, v.s, style); break;
    case AG_T_LIST:
    case AG_T_TUPLE: json_list(r, v.list, style, level); break;
    case AG_T_DICT: json_dict(r, v.dict, style, level); break;
    default: ag_trun_fail(r, "TypeError", "Object of type %s is not JSON serializable", ag_tval_type(v));
    }
    ag_trun_exit(r);
}

ag_tval ag_filter_tojson(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "tojson", 0, a, "ensure_ascii", "indent", "separators", "sort_keys");
    json_style style = {.item = {", ", 2}, .key = {": ", 2}};
    style.ascii = ag_tval_given(a[0]) && ag_tval_truth(a[0]);
    style.sort = ag_tval_given(a[3]) && ag_tval_truth(a[3]);
    if (ag_tval_given(a[1]) && a[1].kind != AG_T_NONE) {
        style.lines = true;
        style.item = (ag_ttext){",", 1};
        if (a[1].kind == AG_T_STR) {
            style.indent = a[1].s;
        } else {
            int64_t n = ag_targs_int(r, a[1], 0);
            size_t at = r->out.n;
            for (int64_t i = 0; i < n; i++) ag_trun_put_word(r, " ");
            style.indent = ag_trun_cut(r, at).s;
        }
    }
    if (ag_tval_given(a[2]) && a[2].kind != AG_T_NONE) {
        ag_tlist pair = ag_tval_items(r, a[2]);
        if (pair.n != 2 || pair.at[0].kind != AG_T_STR || pair.at[1].kind != AG_T_STR)
            ag_trun_fail(r, "ValueError", "separators must be two texts");
        style.item = pair.at[0].s;
        style.key = pair.at[1].s;
    }
    size_t at = r->out.n;
    json_value(r, v, &style, 0);
    return ag_trun_cut(r, at);
}
