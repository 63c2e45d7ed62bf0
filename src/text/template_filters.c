/* Filters on single values, and the table of all filters. Those on sequences stand in template_filters_lists.c. */
#define _GNU_SOURCE
#include "text/template_filters.h"
#include "text/unicode_class.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ag_ttext text_of(ag_trun *r, ag_tval v) { return ag_tval_to_text(r, v).s; }

static ag_tval same_mark(ag_tval out, ag_tval on)
{
    if (on.kind == AG_T_STR) out.flags = on.flags;
    return out;
}

static void no_args(ag_trun *r, const ag_targs *args, const char *name)
{
    if (args->n || args->n_keyword) ag_trun_fail(r, "TypeError", "the filter '%s' takes no arguments", name);
}

/* ---- texts
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval do_string(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "string"), ag_tval_to_text(r, v);
}
static ag_tval do_upper(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "upper"), same_mark(ag_text_upper(r, text_of(r, v)), v);
}
static ag_tval do_lower(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "lower"), same_mark(ag_text_lower(r, text_of(r, v)), v);
}
static ag_tval do_capitalize(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "capitalize"), same_mark(ag_text_capitalize(r, text_of(r, v)), v);
}

/* jinja2's own: words begin after white space, -, ( { [ and <. */
static ag_tval do_title(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args, "title");
    ag_ttext t = text_of(r, v);
    size_t start = r->out.n, from = 0, bytes;
    while (from < t.n) {
        uint32_t c = ag_utf8_peek((const unsigned char *)t.p, from, &bytes);
        ag_trun_put_text(r, ag_text_upper(r, (ag_ttext){t.p + from, bytes}).s);
        from += bytes;
        if (ag_code_point_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c)) continue;
        size_t end = from;
        for (; end < t.n; end += bytes) {
            c = ag_utf8_peek((const unsigned char *)t.p, end, &bytes);
            if (ag_code_point_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c)) break;
        }
        ag_trun_put_text(r, ag_text_lower(r, (ag_ttext){t.p + from, end - from}).s);
        from = end;
    }
    return ag_trun_cut(r, start);
}

static ag_tval do_trim(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "trim", 0, a, "chars");
    ag_tval t = ag_tval_to_text(r, v);
    if (!ag_tval_given(a[0]) || a[0].kind == AG_T_NONE)
        t.s = ag_ttext_strip(t.s, true, true);
    else
        t.s = ag_text_strip_set(t.s, ag_targs_text(r, a[0], "strip"), true, true);
    return t;
}

static ag_tval do_replace(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "replace", 2, a, "old", "new", "count");
    int64_t count = a[2].kind == AG_T_NONE ? -1 : ag_targs_int(r, a[2], -1);
    return ag_text_replace(r, text_of(r, v), text_of(r, a[0]), text_of(r, a[1]), count);
}

static ag_tval do_safe(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args, "safe");
    v = ag_tval_to_text(r, v);
    v.flags = AG_TF_SAFE;
    return v;
}

static ag_tval escape(ag_trun *r, ag_tval v, bool again)
{
    bool done = v.kind == AG_T_STR && v.flags & AG_TF_SAFE && !again;
    v = ag_tval_to_text(r, v);
    if (!done) {
        size_t at = r->out.n;
        ag_trun_put_escaped(r, v.s);
        v = ag_trun_cut(r, at);
    }
    v.flags = AG_TF_SAFE;
    return v;
}

static ag_tval do_escape(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "escape"), escape(r, v, false);
}
static ag_tval do_forceescape(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args, "forceescape"), escape(r, v, true);
}

static ag_tval do_indent(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "indent", 0, a, "width", "first", "blank");
    ag_tval_need_defined(r, v);
    if (v.kind == AG_T_LIST) ag_trun_fail(r, "AttributeError", "'list' object has no attribute 'splitlines'");
    if (v.kind != AG_T_STR) ag_trun_fail(r, "TypeError", "unsupported operand type(s) for +=: '%s' and 'str'", ag_tval_type(v));
    ag_ttext indent;
    if (a[0].kind == AG_T_STR)
        indent = a[0].s;
    else
        indent = ag_text_center(r, (ag_ttext){"", 0}, ag_targs_int(r, a[0], 4), ' ', 1).s;
    bool blank = ag_tval_given(a[2]) && ag_tval_truth(a[2]);
    size_t start = r->out.n;
    ag_trun_put_text(r, v.s);
    ag_trun_put_word(r, "\n"); /* so that the last line is one */
    ag_tval whole = ag_trun_cut(r, start);
    bool changes;
    const ag_tmethod *lines_of = ag_tmethod_find(r, whole, (ag_ttext){"splitlines", 10}, &changes);
    ag_tlist lines = *lines_of->call(r, whole, &(ag_targs){0}).list;
    if (ag_tval_given(a[1]) && ag_tval_truth(a[1])) ag_trun_put_text(r, indent);
    for (size_t i = 0; i < lines.n; i++) {
        if (i) ag_trun_put_word(r, "\n");
        if (i && (blank || lines.at[i].s.n)) ag_trun_put_text(r, indent);
        ag_trun_put_text(r, lines.at[i].s);
    }
    return ag_trun_cut(r, start);
}

static ag_tval do_center(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "center", 0, a, "width");
    return ag_text_center(r, text_of(r, v), ag_targs_int(r, a[0], 80), ' ', 0);
}

static ag_tval do_truncate(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "truncate", 0, a, "length", "killwords", "end", "leeway");
    ag_ttext t = v.s, end = ag_tval_given(a[2]) ? ag_targs_text(r, a[2], "truncate") : (ag_ttext){"...", 3};
    int64_t length = ag_targs_int(r, a[0], 255), leeway = a[3].kind == AG_T_NONE ? 5 : ag_targs_int(r, a[3], 5);
    int64_t n_end = (int64_t)ag_ttext_count(r, end);
    if (length < n_end || leeway < 0)
        ag_trun_fail(r, "AssertionError", "truncate expects a length of at least %lld", (long long)n_end);
    if ((ag_tint)ag_tval_length(r, v) <= (ag_tint)length + leeway) return v;
    if (v.kind != AG_T_STR) ag_trun_fail(r, "TypeError", "can only truncate a str, not %s", ag_tval_type(v));
    t.n = ag_ttext_offset(t, (size_t)(length - n_end));
    if (!ag_tval_given(a[1]) || !ag_tval_truth(a[1])) {
        const char *space = memrchr(t.p, ' ', t.n);
        if (space) t.n = (size_t)(space - t.p);
    }
    size_t at = r->out.n;
    ag_trun_put_text(r, t);
    ag_trun_put_text(r, end);
    return ag_trun_cut(r, at);
}

static ag_tval do_wordcount(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args, "wordcount");
    ag_ttext t = text_of(r, v);
    ag_tint n = 0;
    bool inside = false;
    for (size_t at = 0, bytes; at < t.n; at += bytes) {
        uint32_t c = ag_utf8_peek((const unsigned char *)t.p, at, &bytes);
        bool word = c == '_' || ag_kind_in(ag_unicode_kinds()[c], AG_CATS_LETTER | AG_CATS_NUMBER);
        n += word && !inside;
        inside = word;
    }
    return ag_tval_int(n);
}

/* textwrap.wrap on each line, words taken whole between spaces. */
static void wrap_line(ag_trun *r, ag_ttext line, int64_t width, bool breaks, ag_ttext between)
{
    size_t at = 0, bytes, n_lines = 0;
    int64_t used = 0;
    while (at < line.n) {
        size_t space = at, end;
        while (at < line.n && ag_code_point_is_space(ag_utf8_peek((const unsigned char *)line.p, at, &bytes))) at += bytes;
        for (end = at; end < line.n && !ag_code_point_is_space(ag_utf8_peek((const unsigned char *)line.p, end, &bytes));)
            end += bytes;
        ag_ttext gap = {line.p + space, at - space}, word = {line.p + at, end - at};
        if (!word.n) return;
        int64_t n_gap = (int64_t)ag_ttext_count(r, gap), n_word = (int64_t)ag_ttext_count(r, word);
        bool fits = used + n_gap + n_word <= width;
        if (fits && (used || !n_lines)) {
            ag_trun_put_text(r, gap);
            used += n_gap + n_word;
        } else {
            if (used) ag_trun_put_text(r, between), n_lines++;
            for (used = n_word; breaks && used > width; used -= width) {
                size_t part = ag_ttext_offset(word, (size_t)width);
                ag_trun_put(r, word.p, part);
                ag_trun_put_text(r, between);
                word.p += part, word.n -= part;
                n_lines++;
            }
        }
        ag_trun_put_text(r, word);
        at = end;
    }
}

static ag_tval do_wordwrap(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "wordwrap", 0, a, "width", "break_long_words", "wrapstring", "break_on_hyphens");
    ag_tval t = v;
    ag_tval_need_defined(r, v);
    if (v.kind != AG_T_STR) ag_trun_fail(r, "AttributeError", "'%s' object has no attribute 'splitlines'", ag_tval_type(v));
    int64_t width = ag_targs_int(r, a[0], 79);
    bool breaks = !ag_tval_given(a[1]) || ag_tval_truth(a[1]), hyphens = !ag_tval_given(a[3]) || ag_tval_truth(a[3]);
    ag_ttext between = ag_tval_given(a[2]) && a[2].kind != AG_T_NONE ? ag_targs_text(r, a[2], "wordwrap") : (ag_ttext){"\n", 1};
    if (width <= 0) ag_trun_fail(r, "ValueError", "invalid width %lld (must be > 0)", (long long)width);
    if (hyphens && memchr(t.s.p, '-', t.s.n)) ag_trun_refuse(r, "breaking a text at its hyphens, in the filter", "wordwrap");
    bool changes;
    ag_tlist lines = *ag_tmethod_find(r, t, (ag_ttext){"splitlines", 10}, &changes)->call(r, t, &(ag_targs){0}).list;
    size_t at = r->out.n;
    for (size_t i = 0; i < lines.n; i++) {
        if (i) ag_trun_put_text(r, between);
        wrap_line(r, lines.at[i].s, width, breaks, between);
    }
    return ag_trun_cut(r, at);
}

static void put_quoted(ag_trun *r, ag_ttext t, bool plus)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.p[i];
        char escape[4];
        bool plain = (c | 0x20u) - 'a' < 26u || c - (unsigned)'0' < 10u || (c && strchr("_.-~", c)) || (c == '/' && !plus);
        ag_trun_work(r, (i & 15) == 0);
        if (plain)
            ag_trun_put(r, t.p + i, 1);
        else if (c == ' ' && plus)
            ag_trun_put_word(r, "+");
        else
            snprintf(escape, sizeof escape, "%%%02X", c), ag_trun_put_word(r, escape);
    }
}

static ag_tval do_urlencode(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args, "urlencode");
    size_t at = r->out.n;
    if (v.kind == AG_T_STR || !ag_tval_can_iterate(v)) {
        put_quoted(r, text_of(r, v), false);
        return ag_trun_cut(r, at);
    }
    if (v.kind == AG_T_DICT) v.kind = AG_T_ITEMS;
    ag_tlist items = ag_tval_items(r, v);
    ag_tval *pairs = ag_trun_alloc(r, 2 * items.n, sizeof *pairs);
    for (size_t i = 0; i < items.n; i++) {
        ag_tlist pair = ag_tval_items(r, items.at[i]);
        if (pair.n != 2) ag_trun_fail(r, "ValueError", "not enough values to unpack (expected 2, got %zu)", pair.n);
        pairs[2 * i] = ag_tval_to_text(r, pair.at[0]);
        pairs[2 * i + 1] = ag_tval_to_text(r, pair.at[1]);
    }
    for (size_t i = 0; i < 2 * items.n; i++) {
        if (i) ag_trun_put_word(r, i % 2 ? "=" : "&");
        put_quoted(r, pairs[i].s, true);
    }
    return ag_trun_cut(r, at);
}

/* A text without tags, white space run together, entities as what they stand for. */
static ag_tval do_striptags(ag_trun *r, ag_tval v, const ag_targs *args)
{
    static const struct {
        const char *name, *text;
    } entities[] = {{"&amp;", "&"}, {"&lt;", "<"},   {"&gt;", ">"},   {"&quot;", "\""},
                    {"&#39;", "'"}, {"&#34;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\u00a0"}};
    no_args(r, args, "striptags");
    ag_ttext t = text_of(r, v);
    size_t start = r->out.n;
    for (size_t at = 0; at < t.n; at++) {
        const char *end = NULL;
        if (t.n - at >= 4 && memcmp(t.p + at, "<!--", 4) == 0)
            end = memmem(t.p + at, t.n - at, "-->", 3), end = end ? end + 2 : NULL;
        else if (t.p[at] == '<')
            end = memchr(t.p + at, '>', t.n - at);
        ag_trun_work(r, 1);
        if (end)
            at = (size_t)(end - t.p);
        else if (t.p[at] == '<')
            return ag_trun_put(r, t.p + at, t.n - at), ag_trun_cut(r, start);
        else
            ag_trun_put(r, t.p + at, 1);
    }
    ag_tval plain = ag_trun_cut(r, start);
    bool changes;
    ag_tlist words = *ag_tmethod_find(r, plain, (ag_ttext){"split", 5}, &changes)->call(r, plain, &(ag_targs){0}).list;
    for (size_t i = 0; i < words.n; i++) {
        ag_ttext w = words.at[i].s;
        if (i) ag_trun_put_word(r, " ");
        for (size_t at = 0; at < w.n;) {
            size_t k = 0, n_entities = sizeof entities / sizeof *entities;
            while (k < n_entities && strncmp(w.p + at, entities[k].name, strlen(entities[k].name))) k++;
            if (w.p[at] == '&' && k < n_entities && w.n - at >= strlen(entities[k].name)) {
                ag_trun_put_word(r, entities[k].text);
                at += strlen(entities[k].name);
            } else if (w.p[at] == '&' && memchr(w.p + at, ';', w.n - at)) {
                ag_trun_refuse(r, "an entity in the filter", "striptags");
            } else {
                ag_trun_put(r, w.p + at++, 1);
            }
        }
    }
    return ag_trun_cut(r, start);
}

static ag_tval do_format(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_tval t = ag_tval_to_text(r, v);
    if (args->n && args->n_keyword)
        ag_trun_fail(r, "FilterArgumentError", "can't handle positional and keyword arguments at the same time");
    if (!args->n_keyword) return ag_text_percent(r, t, ag_tval_list(r, AG_T_TUPLE, args->at, args->n));
    ag_tdict *d = ag_tdict_new(r);
    for (size_t i = 0; i < args->n_keyword; i++)
        ag_tdict_set(r, d, ag_tval_text(args->keyword[i].name.p, args->keyword[i].name.n), args->keyword[i].value);
    return ag_text_percent(r, t, ag_tval_dict(d));
}

/* ---- numbers
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval do_abs(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args, "abs");
    if (!ag_tval_is_number(v)) ag_trun_fail(r, "TypeError", "bad operand type for abs(): '%s'", ag_tval_type(v));
    if (v.kind == AG_T_FLOAT) return ag_tval_float(fabs(v.f));
    return ag_tval_integer(v) < 0 ? ag_tval_negate(r, v) : ag_tval_int(ag_tval_integer(v));
}

/* Python's round(float, digits): the nearest decimal of the exact binary value, halves to even. */
static double round_to(double x, int64_t digits)
{
    if (!isfinite(x) || digits > 323) return x;
    if (digits < 0) {
        if (digits < -308) return 0 * x;
        double scale = pow(10, (double)-digits);
        return nearbyint(x / scale) * scale;
    }
    char text[700];
    snprintf(text, sizeof text, "%.*f", (int)digits, x);
    return strtod(text, NULL);
}

static ag_tval do_round(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "round", 0, a, "precision", "method");
    int64_t digits = ag_targs_int(r, a[0], 0);
    bool common = !ag_tval_given(a[1]) || ag_tval_is_text(a[1], "common"), up = ag_tval_is_text(a[1], "ceil");
    if (!common && !up && !ag_tval_is_text(a[1], "floor"))
        ag_trun_fail(r, "FilterArgumentError", "method must be common, ceil or floor");
    if (!ag_tval_is_number(v)) ag_trun_fail(r, "TypeError", "type %s doesn't define __round__ method", ag_tval_type(v));
    if (common && v.kind != AG_T_FLOAT && digits >= 0) return ag_tval_int(ag_tval_integer(v));
    if (common && v.kind != AG_T_FLOAT) return ag_tval_int((ag_tint)round_to((double)ag_tval_integer(v), digits));
    if (common) return ag_tval_float(round_to(v.f, digits));
    double scale = pow(10, (double)digits), x = ag_tval_double(v) * scale;
    if (!isfinite(x)) ag_trun_fail(r, "OverflowError", "cannot convert float to integer");
    return ag_tval_float((up ? ceil(x) : floor(x)) / scale);
}

/* A text as float() reads it. False: it is none. */
static bool read_float(ag_ttext t, double *out)
{
    char copy[400];
    t = ag_ttext_strip(t, true, true);
    size_t n = 0;
    for (size_t i = 0; i < t.n && n < sizeof copy - 1; i++) {
        char c = t.p[i];
        bool between = i > 0 && i + 1 < t.n && t.p[i - 1] - '0' >= 0 && t.p[i - 1] - '0' < 10 && t.p[i + 1] - '0' >= 0 &&
                       t.p[i + 1] - '0' < 10;
        if (c == '_' && between) continue;
        if (!c || !strchr("0123456789+-.eEinfatyINFATY", c)) return false;
        copy[n++] = c;
    }
    copy[n] = 0;
    char *end;
    *out = strtod(copy, &end);
    return n > 0 && !*end;
}

static bool read_int(ag_trun *r, ag_ttext t, int64_t base, ag_tint *out)
{
    t = ag_ttext_strip(t, true, true);
    bool negative = t.n && t.p[0] == '-', digits = false;
    size_t i = t.n && (t.p[0] == '-' || t.p[0] == '+');
    if (t.n >= i + 2 && t.p[i] == '0') {
        char kind = t.p[i + 1] | 0x20;
        int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
        if (named && (base == named || base == 0)) base = named, i += 2;
    }
    if (base == 0) base = 10;
    if (base < 2 || base > 36) ag_trun_fail(r, "ValueError", "int() base must be >= 2 and <= 36, or 0");
    *out = 0;
    for (; i < t.n; i++) {
        char c = t.p[i] | 0x20;
        int64_t digit = t.p[i] >= '0' && t.p[i] <= '9' ? t.p[i] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (t.p[i] == '_' && digits && i + 1 < t.n) continue;
        if (digit >= base) return false;
        digits = true;
        if (__builtin_mul_overflow(*out, (ag_tint)base, out) ||
            __builtin_add_overflow(*out, (ag_tint)(negative ? -digit : digit), out))
            ag_trun_fail(r, "OverflowError", "integers of more than 127 bits are not supported");
    }
    return digits;
}

static bool int_of_float(double f, ag_tint *out)
{
    if (!(fabs(f) < 0x1p126)) return false;
    *out = (ag_tint)f;
    return true;
}

static ag_tval do_int(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "int", 0, a, "default", "base");
    ag_tval missing = ag_tval_given(a[0]) ? a[0] : ag_tval_int(0);
    ag_tint i;
    double f;
    ag_tval_need_defined(r, v);
    if (ag_tval_is_integral(v)) return ag_tval_int(ag_tval_integer(v));
    if (v.kind == AG_T_FLOAT) {
        if (isinf(v.f)) ag_trun_fail(r, "OverflowError", "cannot convert float infinity to integer");
        return int_of_float(v.f, &i) ? ag_tval_int(i) : missing;
    }
    if (v.kind != AG_T_STR) return missing;
    if (read_int(r, v.s, ag_targs_int(r, a[1], 10), &i)) return ag_tval_int(i);
    return read_float(v.s, &f) && int_of_float(f, &i) ? ag_tval_int(i) : missing;
}

static ag_tval do_float(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "float", 0, a, "default");
    double f;
    ag_tval_need_defined(r, v);
    if (ag_tval_is_number(v)) return ag_tval_float(ag_tval_double(v));
    if (v.kind == AG_T_STR && read_float(v.s, &f)) return ag_tval_float(f);
    return ag_tval_given(a[0]) ? a[0] : ag_tval_float(0);
}

static ag_tval do_filesizeformat(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "filesizeformat", 0, a, "binary");
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool twos = ag_tval_given(a[0]) && ag_tval_truth(a[0]);
    double base = twos ? 1024 : 1000, n, unit = base;
    char text[64];
    ag_tval_need_defined(r, v);
    if (ag_tval_is_number(v))
        n = ag_tval_double(v);
    else if (v.kind != AG_T_STR || !read_float(v.s, &n))
        ag_trun_fail(r, "ValueError", "could not convert to float");
    if (!isfinite(n)) ag_trun_fail(r, "ValueError", "a size must be finite");
    size_t at = r->out.n, i = 0;
    if (n == 1) {
        ag_trun_put_word(r, "1 Byte");
    } else if (n < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(n) == 0 ? 0 : trunc(n));
        if (strlen(text) < sizeof text) ag_trun_put_word(r, text);
    } else {
        for (unit = base * base; i < 7 && n >= unit; i++) unit *= base;
        ag_trun_put_fixed(r, base * n / unit, 1);
        ag_trun_put_word(r, " ");
        ag_trun_put_word(r, twos ? binary[i] : units[i]);
    }
    return ag_trun_cut(r, at);
}

/* ---- any value
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval do_default(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "default", 0, a, "default_value", "boolean");
    bool missing = v.kind == AG_T_UNDEFINED || (ag_tval_given(a[1]) && ag_tval_truth(a[1]) && !ag_tval_truth(v));
    return !missing ? v : ag_tval_given(a[0]) ? a[0] : ag_tval_text("", 0);
}

static ag_tval do_attr(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "attr", 1, a, "name");
    return ag_tval_only_attr(r, v, text_of(r, a[0]));
}

#define REFUSED(name)                                                                                                          \
    static ag_tval refuse_##name(ag_trun *r, ag_tval v, const ag_targs *args)                                                  \
    {                                                                                                                          \
        (void)v, (void)args;                                                                                                   \
        ag_trun_refuse(r, "the filter", #name);                                                                                \
    }
REFUSED(pprint)
REFUSED(random)
REFUSED(urlize)
REFUSED(xmlattr)

const ag_tfilter *ag_tfilter_find(ag_ttext name)
{
    static const ag_tfilter filters[] = {
        {"tojson", ag_filter_tojson},
        {"length", ag_filter_length},
        {"count", ag_filter_length},
        {"trim", do_trim},
        {"string", do_string},
        {"join", ag_filter_join},
        {"default", do_default},
        {"d", do_default},
        {"items", ag_filter_items},
        {"list", ag_filter_list},
        {"selectattr", ag_filter_selectattr},
        {"rejectattr", ag_filter_rejectattr},
        {"select", ag_filter_select},
        {"reject", ag_filter_reject},
        {"map", ag_filter_map},
        {"safe", do_safe},
        {"lower", do_lower},
        {"upper", do_upper},
        {"title", do_title},
        {"capitalize", do_capitalize},
        {"replace", do_replace},
        {"indent", do_indent},
        {"int", do_int},
        {"float", do_float},
        {"round", do_round},
        {"abs", do_abs},
        {"dictsort", ag_filter_dictsort},
        {"sort", ag_filter_sort},
        {"unique", ag_filter_unique},
        {"min", ag_filter_min},
        {"max", ag_filter_max},
        {"sum", ag_filter_sum},
        {"first", ag_filter_first},
        {"last", ag_filter_last},
        {"reverse", ag_filter_reverse},
        {"groupby", ag_filter_groupby},
        {"batch", ag_filter_batch},
        {"slice", ag_filter_slice},
        {"escape", do_escape},
        {"e", do_escape},
        {"forceescape", do_forceescape},
        {"striptags", do_striptags},
        {"urlencode", do_urlencode},
        {"wordcount", do_wordcount},
        {"truncate", do_truncate},
        {"center", do_center},
        {"wordwrap", do_wordwrap},
        {"format", do_format},
        {"attr", do_attr},
        {"filesizeformat", do_filesizeformat},
        {"pprint", refuse_pprint},
        {"random", refuse_random},
        {"urlize", refuse_urlize},
        {"xmlattr", refuse_xmlattr},
    };
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (ag_ttext_is(name, filters[i].name)) return &filters[i];
    return NULL;
}
