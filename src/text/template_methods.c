/* Methods of Python's str, dict, list, tuple and numbers. Those of Python that nothing here does are known by name, so that
 * they are defined, as they are there, and refused when they are called. */
#define _GNU_SOURCE
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <math.h>
#include <string.h>

/* ---- arguments
 * ----------------------------------------------------------------------------------------------------------------------------
 */
void ag_targs_bind(ag_trun *r, const ag_targs *args, const char *function, const char *const *names, size_t n_names,
                   size_t need, ag_tval *out)
{
    if (args->n > n_names)
        ag_trun_fail(r, "TypeError", "%s() takes at most %zu arguments (%zu given)", function, n_names, args->n);
    for (size_t i = 0; i < n_names; i++) out[i] = i < args->n ? args->at[i] : (ag_tval){.kind = AG_T_ABSENT};
    for (size_t k = 0; k < args->n_keyword; k++) {
        size_t i = 0;
        ag_ttext name = args->keyword[k].name;
        while (i < n_names && !ag_ttext_is(name, names[i])) i++;
        if (i == n_names)
            ag_trun_fail(r, "TypeError", "%s() got an unexpected keyword argument '%.*s'", function, (int)name.n, name.p);
        if (i < args->n) ag_trun_fail(r, "TypeError", "%s() got multiple values for argument '%s'", function, names[i]);
        out[i] = args->keyword[k].value;
    }
    for (size_t i = 0; i < need; i++)
        if (!ag_tval_given(out[i])) ag_trun_fail(r, "TypeError", "%s() misses its argument '%s'", function, names[i]);
}

int64_t ag_targs_int(ag_trun *r, ag_tval v, int64_t missing)
{
    if (!ag_tval_given(v)) return missing;
    if (!ag_tval_is_integral(v))
        ag_trun_fail(r, "TypeError", "'%s' object cannot be interpreted as an integer", ag_tval_type(v));
    ag_tint i = ag_tval_integer(v);
    return i > INT64_MAX ? INT64_MAX : i < INT64_MIN ? INT64_MIN : (int64_t)i;
}

ag_ttext ag_targs_text(ag_trun *r, ag_tval v, const char *function)
{
    if (v.kind != AG_T_STR) ag_trun_fail(r, "TypeError", "%s() wants a str, not %s", function, ag_tval_type(v));
    return v.s;
}

/* Most methods of Python take no keywords. */
static void bind_plain(ag_trun *r, const ag_targs *args, const char *function, size_t need, size_t most, ag_tval *out)
{
    if (args->n_keyword) ag_trun_fail(r, "TypeError", "%s() takes no keyword arguments", function);
    if (args->n < need || args->n > most)
        ag_trun_fail(r, "TypeError", "%s() takes %zu to %zu arguments (%zu given)", function, need, most, args->n);
    for (size_t i = 0; i < most; i++) out[i] = i < args->n ? args->at[i] : (ag_tval){.kind = AG_T_ABSENT};
}

static ag_tval text_value(ag_ttext t) { return ag_tval_text(t.p, t.n); }

/* ---- split and join
 * ------------------------------------------------------------------------------------------------------------------------ */
static size_t space_at(ag_ttext t, size_t at) /* its bytes, 0 for none */
{
    size_t bytes;
    return ag_code_point_is_space(ag_utf8_peek((const unsigned char *)t.p, at, &bytes)) ? bytes : 0;
}

static void split_space(ag_trun *r, ag_ttext t, int64_t most, ag_tgrow *out)
{
    t = ag_ttext_strip(t, true, false);
    for (size_t from = 0; from < t.n; most--) {
        size_t end = from, bytes;
        if (most == 0) {
            ag_tgrow_add(r, out, ag_tval_text(t.p + from, t.n - from));
            return;
        }
        while (end < t.n && !space_at(t, end)) ag_utf8_peek((const unsigned char *)t.p, end, &bytes), end += bytes;
        ag_tgrow_add(r, out, ag_tval_text(t.p + from, end - from));
        while (end < t.n && (bytes = space_at(t, end))) end += bytes;
        from = end;
    }
}

/* From the right: pieces are found last first. */
static void rsplit_space(ag_trun *r, ag_ttext t, int64_t most, ag_tgrow *out)
{
    t = ag_ttext_strip(t, false, true);
    for (; t.n; most--) {
        size_t from = t.n, bytes;
        if (most == 0) {
            ag_tgrow_add(r, out, text_value(t));
            return;
        }
        while (from > 0 && !ag_code_point_is_space(ag_utf8_before((const unsigned char *)t.p, from, &bytes))) from -= bytes;
        ag_tgrow_add(r, out, ag_tval_text(t.p + from, t.n - from));
        t.n = from;
        t = ag_ttext_strip(t, false, true);
    }
}

static const char *last_of(ag_trun *r, ag_ttext t, ag_ttext what)
{
    size_t from = t.n;
    for (size_t at = t.n + 1 - what.n; what.n <= t.n && at-- > 0;)
        if (memcmp(t.p + at, what.p, what.n) == 0) {
            from -= at;
            ag_trun_work(r, from / 64 * (what.n / 16 + 1));
            return t.p + at;
        }
    ag_trun_work(r, from / 64 * (what.n / 16 + 1));
    return NULL;
}

static void split_at(ag_trun *r, ag_ttext t, ag_ttext at, int64_t most, bool right, ag_tgrow *out)
{
    for (; most != 0; most--) {
        const char *found = right ? last_of(r, t, at) : memmem(t.p, t.n, at.p, at.n);
        if (!found) break;
        size_t before = (size_t)(found - t.p), after = t.n - before - at.n;
        ag_tgrow_add(r, out, right ? ag_tval_text(found + at.n, after) : ag_tval_text(t.p, before));
        t = right ? (ag_ttext){t.p, before} : (ag_ttext){found + at.n, after};
    }
    ag_tgrow_add(r, out, text_value(t));
}

static ag_tval split(ag_trun *r, ag_tval self, const ag_targs *args, bool right)
{
    AG_ARGS(r, args, "split", 0, a, "sep", "maxsplit");
    int64_t most = ag_targs_int(r, a[1], -1);
    ag_tgrow out = {0};
    ag_trun_work(r, self.s.n / 16);
    if (!ag_tval_given(a[0]) || a[0].kind == AG_T_NONE) {
        if (right)
            rsplit_space(r, self.s, most, &out);
        else
            split_space(r, self.s, most, &out);
    } else {
        ag_ttext at = ag_targs_text(r, a[0], "split");
        if (!at.n) ag_trun_fail(r, "ValueError", "empty separator");
        split_at(r, self.s, at, most, right, &out);
    }
    for (size_t i = 0, j = out.n; right && i + 1 < j; i++) {
        ag_tval swap = out.at[i];
        out.at[i] = out.at[--j];
        out.at[j] = swap;
    }
    for (size_t i = 0; i < out.n; i++) out.at[i].flags = self.flags;
    return ag_tval_list(r, AG_T_LIST, out.at, out.n);
}

static ag_tval str_split(ag_trun *r, ag_tval self, const ag_targs *args) { return split(r, self, args, false); }
static ag_tval str_rsplit(ag_trun *r, ag_tval self, const ag_targs *args) { return split(r, self, args, true); }

static ag_tval str_splitlines(ag_trun *r, ag_tval self, const ag_targs *args)
{
    AG_ARGS(r, args, "splitlines", 0, a, "keepends");
    bool keep = ag_tval_given(a[0]) && ag_tval_truth(a[0]);
    ag_tgrow out = {0};
    size_t from = 0, at = 0;
    while (at < self.s.n) {
        size_t bytes;
        uint32_t c = ag_utf8_peek((const unsigned char *)self.s.p, at, &bytes);
        size_t end = at + bytes;
        if (!((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)) {
            at = end;
            continue;
        }
        if (c == '\r' && end < self.s.n && self.s.p[end] == '\n') end++;
        ag_tgrow_add(r, &out, ag_tval_text(self.s.p + from, (keep ? end : at) - from));
        from = at = end;
    }
    if (from < self.s.n) ag_tgrow_add(r, &out, ag_tval_text(self.s.p + from, self.s.n - from));
    return ag_tval_list(r, AG_T_LIST, out.at, out.n);
}

static ag_tval partition(ag_trun *r, ag_tval self, const ag_targs *args, bool right)
{
    ag_tval a;
    bind_plain(r, args, "partition", 1, 1, &a);
    ag_ttext t = self.s, at = ag_targs_text(r, a, "partition");
    if (!at.n) ag_trun_fail(r, "ValueError", "empty separator");
    const char *found = right ? last_of(r, t, at) : memmem(t.p, t.n, at.p, at.n);
    ag_tval *part = ag_trun_alloc(r, 3, sizeof *part);
    for (int i = 0; i < 3; i++) part[i] = ag_tval_text("", 0);
    if (found) {
        part[0] = ag_tval_text(t.p, (size_t)(found - t.p));
        part[1] = text_value(at);
        part[2] = ag_tval_text(found + at.n, t.n - part[0].s.n - at.n);
    } else {
        part[right ? 2 : 0] = text_value(t);
    }
    return ag_tval_list(r, AG_T_TUPLE, part, 3);
}

static ag_tval str_partition(ag_trun *r, ag_tval self, const ag_targs *args) { return partition(r, self, args, false); }
static ag_tval str_rpartition(ag_trun *r, ag_tval self, const ag_targs *args) { return partition(r, self, args, true); }

static ag_tval str_join(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a;
    bind_plain(r, args, "join", 1, 1, &a);
    if (!ag_tval_can_iterate(a)) ag_trun_fail(r, "TypeError", "can only join an iterable");
    ag_tlist items = ag_tval_items(r, a);
    size_t at = r->out.n;
    for (size_t i = 0; i < items.n; i++) {
        if (items.at[i].kind != AG_T_STR)
            ag_trun_fail(r, "TypeError", "sequence item %zu: expected str instance, %s found", i, ag_tval_type(items.at[i]));
        if (i) ag_trun_put_text(r, self.s);
        ag_trun_put_text(r, items.at[i].s);
    }
    return ag_trun_cut(r, at);
}

/* ---- strip, find, replace
 * -------------------------------------------------------------------------------------------------------------------- */
static ag_tval strip(ag_trun *r, ag_tval self, const ag_targs *args, bool left, bool right)
{
    ag_tval a;
    bind_plain(r, args, "strip", 0, 1, &a);
    ag_ttext t = !ag_tval_given(a) || a.kind == AG_T_NONE
                     ? ag_ttext_strip(self.s, left, right)
                     : ag_text_strip_set(self.s, ag_targs_text(r, a, "strip"), left, right);
    self.s = t;
    return self;
}

static ag_tval str_strip(ag_trun *r, ag_tval self, const ag_targs *args) { return strip(r, self, args, true, true); }
static ag_tval str_lstrip(ag_trun *r, ag_tval self, const ag_targs *args) { return strip(r, self, args, true, false); }
static ag_tval str_rstrip(ag_trun *r, ag_tval self, const ag_targs *args) { return strip(r, self, args, false, true); }

static ag_tval without(ag_trun *r, ag_tval self, const ag_targs *args, bool left)
{
    ag_tval a;
    bind_plain(r, args, left ? "removeprefix" : "removesuffix", 1, 1, &a);
    ag_ttext what = ag_targs_text(r, a, "removeprefix"), t = self.s;
    if (what.n <= t.n && memcmp(left ? t.p : t.p + t.n - what.n, what.p, what.n) == 0)
        self.s = (ag_ttext){left ? t.p + what.n : t.p, t.n - what.n};
    return self;
}

static ag_tval str_removeprefix(ag_trun *r, ag_tval self, const ag_targs *args) { return without(r, self, args, true); }
static ag_tval str_removesuffix(ag_trun *r, ag_tval self, const ag_targs *args) { return without(r, self, args, false); }

/* The part of a text that [start:stop] names; *skipped counts the code points before it. False: start lies behind the end. */
static bool window(ag_trun *r, ag_ttext *t, ag_tval start, ag_tval stop, int64_t *skipped)
{
    int64_t n = (int64_t)ag_ttext_count(r, *t);
    int64_t from = start.kind == AG_T_NONE ? 0 : ag_targs_int(r, start, 0),
            to = stop.kind == AG_T_NONE ? n : ag_targs_int(r, stop, n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (to > n) to = n;
    *skipped = from;
    if (from > to) return false;
    size_t begin = ag_ttext_offset(*t, (size_t)from), end = ag_ttext_offset(*t, (size_t)to);
    *t = (ag_ttext){t->p + begin, end - begin};
    return true;
}

static bool has_end(ag_trun *r, ag_ttext t, ag_tval what, bool at_start)
{
    if (what.kind == AG_T_TUPLE) {
        for (size_t i = 0; i < what.list->n; i++)
            if (has_end(r, t, what.list->at[i], at_start)) return true;
        return false;
    }
    ag_ttext w = ag_targs_text(r, what, at_start ? "startswith" : "endswith");
    return w.n <= t.n && memcmp(at_start ? t.p : t.p + t.n - w.n, w.p, w.n) == 0;
}

static ag_tval test_end(ag_trun *r, ag_tval self, const ag_targs *args, bool at_start)
{
    ag_tval a[3];
    int64_t skipped;
    bind_plain(r, args, at_start ? "startswith" : "endswith", 1, 3, a);
    ag_ttext t = self.s;
    bool inside = args->n == 1 || window(r, &t, a[1], a[2], &skipped);
    return ag_tval_bool(inside && has_end(r, t, a[0], at_start));
}

static ag_tval str_startswith(ag_trun *r, ag_tval self, const ag_targs *args) { return test_end(r, self, args, true); }
static ag_tval str_endswith(ag_trun *r, ag_tval self, const ag_targs *args) { return test_end(r, self, args, false); }

static int64_t find(ag_trun *r, ag_tval self, const ag_targs *args, bool right)
{
    ag_tval a[3];
    int64_t skipped;
    bind_plain(r, args, "find", 1, 3, a);
    ag_ttext t = self.s, what = ag_targs_text(r, a[0], "find");
    if (!window(r, &t, a[1], a[2], &skipped)) return -1;
    const char *found = right ? last_of(r, t, what) : what.n ? memmem(t.p, t.n, what.p, what.n) : t.p;
    return found ? skipped + (int64_t)ag_ttext_count(r, (ag_ttext){t.p, (size_t)(found - t.p)}) : -1;
}

static ag_tval str_find(ag_trun *r, ag_tval self, const ag_targs *args) { return ag_tval_int(find(r, self, args, false)); }
static ag_tval str_rfind(ag_trun *r, ag_tval self, const ag_targs *args) { return ag_tval_int(find(r, self, args, true)); }

static ag_tval must_find(ag_trun *r, int64_t at)
{
    if (at < 0) ag_trun_fail(r, "ValueError", "substring not found");
    return ag_tval_int(at);
}

static ag_tval str_index(ag_trun *r, ag_tval self, const ag_targs *args) { return must_find(r, find(r, self, args, false)); }
static ag_tval str_rindex(ag_trun *r, ag_tval self, const ag_targs *args) { return must_find(r, find(r, self, args, true)); }

static ag_tval str_count(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a[3];
    int64_t skipped, n = 0;
    bind_plain(r, args, "count", 1, 3, a);
    ag_ttext t = self.s, what = ag_targs_text(r, a[0], "count");
    if (!window(r, &t, a[1], a[2], &skipped)) return ag_tval_int(0);
    if (!what.n) return ag_tval_int((ag_tint)ag_ttext_count(r, t) + 1);
    for (const char *found; (found = memmem(t.p, t.n, what.p, what.n)); n++) {
        t.n -= (size_t)(found - t.p) + what.n;
        t.p = found + what.n;
    }
    return ag_tval_int(n);
}

static ag_tval str_replace(ag_trun *r, ag_tval self, const ag_targs *args)
{
    AG_ARGS(r, args, "replace", 2, a, "old", "new", "count");
    ag_ttext from = ag_targs_text(r, a[0], "replace"), to = ag_targs_text(r, a[1], "replace");
    if (self.flags & AG_TF_SAFE && !(a[1].flags & AG_TF_SAFE)) { /* a marked text stays HTML */
        size_t at = r->out.n;
        ag_trun_put_escaped(r, to);
        to = ag_trun_cut(r, at).s;
    }
    ag_tval v = ag_text_replace(r, self.s, from, to, ag_targs_int(r, a[2], -1));
    v.flags = self.flags;
    return v;
}

/* ---- letters
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
#define CASE_METHOD(name)                                                                                                      \
    static ag_tval str_##name(ag_trun *r, ag_tval self, const ag_targs *args)                                                  \
    {                                                                                                                          \
        bind_plain(r, args, #name, 0, 0, NULL);                                                                                \
        return ag_text_##name(r, self.s);                                                                                      \
    }
CASE_METHOD(upper)
CASE_METHOD(lower)
CASE_METHOD(title)
CASE_METHOD(capitalize)
CASE_METHOD(casefold)
CASE_METHOD(swapcase)

/* True for a text that is not empty and whose code points all are in `cats`. */
static ag_tval all_in(ag_trun *r, ag_tval self, const ag_targs *args, uint32_t cats)
{
    bind_plain(r, args, "is…", 0, 0, NULL);
    ag_trun_work(r, self.s.n / 16);
    for (size_t at = 0, bytes; at < self.s.n; at += bytes)
        if (!ag_kind_in(ag_unicode_kinds()[ag_utf8_peek((const unsigned char *)self.s.p, at, &bytes)], cats))
            return ag_tval_bool(false);
    return ag_tval_bool(self.s.n > 0);
}

static ag_tval str_isalpha(ag_trun *r, ag_tval self, const ag_targs *args) { return all_in(r, self, args, AG_CATS_LETTER); }
static ag_tval str_isdecimal(ag_trun *r, ag_tval self, const ag_targs *args)
{
    return all_in(r, self, args, AG_CAT_BIT(AG_CAT_ND));
}
static ag_tval str_isnumeric(ag_trun *r, ag_tval self, const ag_targs *args) { return all_in(r, self, args, AG_CATS_NUMBER); }
static ag_tval str_isalnum(ag_trun *r, ag_tval self, const ag_targs *args)
{
    return all_in(r, self, args, AG_CATS_LETTER | AG_CATS_NUMBER);
}

static ag_tval str_isdigit(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "isdigit", 0, 0, NULL);
    for (size_t at = 0, bytes; at < self.s.n; at += bytes) {
        uint32_t c = ag_utf8_peek((const unsigned char *)self.s.p, at, &bytes);
        bool superscript =
            c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
        if (!superscript && !ag_kind_in(ag_unicode_kinds()[c], AG_CAT_BIT(AG_CAT_ND))) return ag_tval_bool(false);
    }
    return ag_tval_bool(self.s.n > 0);
}

static ag_tval str_isspace(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "isspace", 0, 0, NULL);
    return ag_tval_bool(self.s.n > 0 && ag_ttext_strip(self.s, true, false).n == 0);
}

static ag_tval str_isascii(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "isascii", 0, 0, NULL);
    return ag_tval_bool(ag_ttext_count(r, self.s) == self.s.n);
}

static ag_tval str_isupper(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "isupper", 0, 0, NULL);
    return ag_tval_bool(ag_text_has_case(r, self.s, true));
}

static ag_tval str_islower(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "islower", 0, 0, NULL);
    return ag_tval_bool(ag_text_has_case(r, self.s, false));
}

/* ---- padding
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval pad(ag_trun *r, ag_tval self, const ag_targs *args, int where)
{
    ag_tval a[2];
    bind_plain(r, args, "center", 1, 2, a);
    uint32_t fill = ' ';
    if (ag_tval_given(a[1])) {
        ag_ttext t = ag_targs_text(r, a[1], "center");
        size_t bytes = 0;
        if (t.n) fill = ag_utf8_peek((const unsigned char *)t.p, 0, &bytes);
        if (!t.n || bytes != t.n) ag_trun_fail(r, "TypeError", "The fill character must be exactly one character long");
    }
    return ag_text_center(r, self.s, ag_targs_int(r, a[0], 0), fill, where);
}

static ag_tval str_ljust(ag_trun *r, ag_tval self, const ag_targs *args) { return pad(r, self, args, -1); }
static ag_tval str_center(ag_trun *r, ag_tval self, const ag_targs *args) { return pad(r, self, args, 0); }
static ag_tval str_rjust(ag_trun *r, ag_tval self, const ag_targs *args) { return pad(r, self, args, 1); }

static ag_tval str_zfill(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a;
    bind_plain(r, args, "zfill", 1, 1, &a);
    ag_ttext t = self.s;
    int64_t width = ag_targs_int(r, a, 0);
    size_t at = r->out.n, sign = t.n && (t.p[0] == '-' || t.p[0] == '+');
    ag_trun_put(r, t.p, sign);
    ag_ttext rest = {t.p + sign, t.n - sign};
    ag_tval digits = ag_text_center(r, rest, width > INT64_MIN ? width - (int64_t)sign : 0, '0', 1);
    ag_trun_put_text(r, digits.s);
    return ag_trun_cut(r, at);
}

static ag_tval str_format(ag_trun *r, ag_tval self, const ag_targs *args) { return ag_text_format(r, self.s, args); }

/* ---- dicts, lists, numbers, loops
 * ---------------------------------------------------------------------------------------------------------------- */
static ag_tval dict_view(ag_trun *r, ag_tval self, const ag_targs *args, ag_tkind kind)
{
    bind_plain(r, args, "items", 0, 0, NULL);
    self.kind = (uint8_t)kind;
    return self;
}

static ag_tval dict_items(ag_trun *r, ag_tval self, const ag_targs *args) { return dict_view(r, self, args, AG_T_ITEMS); }
static ag_tval dict_keys(ag_trun *r, ag_tval self, const ag_targs *args) { return dict_view(r, self, args, AG_T_KEYS); }
static ag_tval dict_values(ag_trun *r, ag_tval self, const ag_targs *args) { return dict_view(r, self, args, AG_T_VALUES); }

static ag_tval dict_get(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a[2];
    bind_plain(r, args, "get", 1, 2, a);
    if (a[0].kind == AG_T_LIST || a[0].kind == AG_T_DICT)
        ag_trun_fail(r, "TypeError", "unhashable type: '%s'", ag_tval_type(a[0]));
    const ag_tval *found = ag_tdict_find(r, self.dict, a[0]);
    return found ? *found : ag_tval_given(a[1]) ? a[1] : ag_tval_none();
}

static ag_tval any_copy(ag_trun *r, ag_tval self, const ag_targs *args)
{
    return bind_plain(r, args, "copy", 0, 0, NULL), self;
}

static ag_tval list_count(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a;
    bind_plain(r, args, "count", 1, 1, &a);
    ag_tlist items = ag_tval_items(r, self);
    ag_tint n = 0;
    for (size_t i = 0; i < items.n; i++) n += ag_tval_equal(r, items.at[i], a);
    return ag_tval_int(n);
}

static ag_tval list_index(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval a[3];
    bind_plain(r, args, "index", 1, 3, a);
    ag_tlist items = ag_tval_items(r, self);
    int64_t n = (int64_t)items.n, from = ag_targs_int(r, a[1], 0), to = ag_targs_int(r, a[2], n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < to && i < n; i++)
        if (ag_tval_equal(r, items.at[i], a[0])) return ag_tval_int(i);
    ag_trun_fail(r, "ValueError", "the value is not in the list");
}

static ag_tval float_is_integer(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "is_integer", 0, 0, NULL);
    return ag_tval_bool(isfinite(self.f) && floor(self.f) == self.f);
}

static ag_tval int_bit_length(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "bit_length", 0, 0, NULL);
    ag_tint i = ag_tval_integer(self);
    int n = 0;
    for (unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i; u; u >>= 1) n++;
    return ag_tval_int(n);
}

static ag_tval loop_cycle(ag_trun *r, ag_tval self, const ag_targs *args)
{
    if (!args->n || args->n_keyword) ag_trun_fail(r, "TypeError", "no items for cycling given");
    return args->at[self.loop->index0 % args->n];
}

static ag_tval loop_changed(ag_trun *r, ag_tval self, const ag_targs *args)
{
    ag_tval now = ag_tval_list(r, AG_T_TUPLE, args->at, args->n);
    bool changed = self.loop->changed.kind == AG_T_ABSENT || !ag_tval_equal(r, self.loop->changed, now);
    if (changed) self.loop->changed = now;
    return ag_tval_bool(changed);
}

static ag_tval cycler_next(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "next", 0, 0, NULL);
    ag_tval v = self.cycle->items.at[self.cycle->at];
    self.cycle->at = (self.cycle->at + 1) % self.cycle->items.n;
    return v;
}

static ag_tval cycler_reset(ag_trun *r, ag_tval self, const ag_targs *args)
{
    bind_plain(r, args, "reset", 0, 0, NULL);
    self.cycle->at = 0;
    return ag_tval_none();
}

/* ---- the tables
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
typedef struct {
    const char *name;
    ag_tval (*call)(ag_trun *r, ag_tval self, const ag_targs *args);
    bool changes; /* its object: the sandbox does not give it out */
} method;

static const method str_methods[] = {{"split", str_split, 0},
                                     {"strip", str_strip, 0},
                                     {"lstrip", str_lstrip, 0},
                                     {"rstrip", str_rstrip, 0},
                                     {"startswith", str_startswith, 0},
                                     {"endswith", str_endswith, 0},
                                     {"replace", str_replace, 0},
                                     {"join", str_join, 0},
                                     {"upper", str_upper, 0},
                                     {"lower", str_lower, 0},
                                     {"title", str_title, 0},
                                     {"capitalize", str_capitalize, 0},
                                     {"find", str_find, 0},
                                     {"rfind", str_rfind, 0},
                                     {"index", str_index, 0},
                                     {"rindex", str_rindex, 0},
                                     {"count", str_count, 0},
                                     {"rsplit", str_rsplit, 0},
                                     {"splitlines", str_splitlines, 0},
                                     {"partition", str_partition, 0},
                                     {"rpartition", str_rpartition, 0},
                                     {"removeprefix", str_removeprefix, 0},
                                     {"removesuffix", str_removesuffix, 0},
                                     {"isalpha", str_isalpha, 0},
                                     {"isdigit", str_isdigit, 0},
                                     {"isdecimal", str_isdecimal, 0},
                                     {"isnumeric", str_isnumeric, 0},
                                     {"isalnum", str_isalnum, 0},
                                     {"isspace", str_isspace, 0},
                                     {"isascii", str_isascii, 0},
                                     {"isupper", str_isupper, 0},
                                     {"islower", str_islower, 0},
                                     {"casefold", str_casefold, 0},
                                     {"swapcase", str_swapcase, 0},
                                     {"ljust", str_ljust, 0},
                                     {"center", str_center, 0},
                                     {"rjust", str_rjust, 0},
                                     {"zfill", str_zfill, 0},
                                     {"format", str_format, 0},
                                     {"format_map", NULL, 0},
                                     {"encode", NULL, 0},
                                     {"expandtabs", NULL, 0},
                                     {"isidentifier", NULL, 0},
                                     {"isprintable", NULL, 0},
                                     {"istitle", NULL, 0},
                                     {"maketrans", NULL, 0},
                                     {"translate", NULL, 0},
                                     {NULL, NULL, 0}};
static const method dict_methods[] = {{"items", dict_items, 0},   {"get", dict_get, 0},    {"keys", dict_keys, 0},
                                      {"values", dict_values, 0}, {"copy", any_copy, 0},   {"fromkeys", NULL, 0},
                                      {"pop", NULL, 1},           {"update", NULL, 1},     {"clear", NULL, 1},
                                      {"popitem", NULL, 1},       {"setdefault", NULL, 1}, {NULL, NULL, 0}};
static const method list_methods[] = {{"count", list_count, 0}, {"index", list_index, 0}, {"copy", any_copy, 0},
                                      {"append", NULL, 1},      {"pop", NULL, 1},         {"insert", NULL, 1},
                                      {"extend", NULL, 1},      {"clear", NULL, 1},       {"sort", NULL, 1},
                                      {"reverse", NULL, 1},     {"remove", NULL, 1},      {NULL, NULL, 0}};
static const method tuple_methods[] = {{"count", list_count, 0}, {"index", list_index, 0}, {NULL, NULL, 0}};
static const method int_methods[] = {{"bit_length", int_bit_length, 0},
                                     {"conjugate", any_copy, 0},
                                     {"as_integer_ratio", NULL, 0},
                                     {"bit_count", NULL, 0},
                                     {"to_bytes", NULL, 0},
                                     {"from_bytes", NULL, 0},
                                     {NULL, NULL, 0}};
static const method float_methods[] = {{"is_integer", float_is_integer, 0},
                                       {"conjugate", any_copy, 0},
                                       {"as_integer_ratio", NULL, 0},
                                       {"hex", NULL, 0},
                                       {"fromhex", NULL, 0},
                                       {NULL, NULL, 0}};
static const method view_methods[] = {{"isdisjoint", NULL, 0}, {"mapping", NULL, 0}, {NULL, NULL, 0}};
static const method loop_methods[] = {{"cycle", loop_cycle, 0}, {"changed", loop_changed, 0}, {NULL, NULL, 0}};
static const method cycler_methods[] = {{"next", cycler_next, 0}, {"reset", cycler_reset, 0}, {NULL, NULL, 0}};

const ag_tmethod *ag_tmethod_find(ag_trun *r, ag_tval self, ag_ttext name, bool *changes)
{
    static const method *const tables[] = {
        [AG_T_STR] = str_methods,       [AG_T_DICT] = dict_methods,   [AG_T_LIST] = list_methods,  [AG_T_TUPLE] = tuple_methods,
        [AG_T_RANGE] = tuple_methods,   [AG_T_INT] = int_methods,     [AG_T_BOOL] = int_methods,   [AG_T_FLOAT] = float_methods,
        [AG_T_KEYS] = view_methods,     [AG_T_VALUES] = view_methods, [AG_T_ITEMS] = view_methods, [AG_T_LOOP] = loop_methods,
        [AG_T_CYCLER] = cycler_methods, [AG_T_ABSENT] = NULL};
    const method *m = tables[self.kind];
    while (m && m->name && !ag_ttext_is(name, m->name)) m++;
    if (!m || !m->name) return NULL;
    ag_tmethod *found = ag_trun_alloc(r, 1, sizeof *found);
    *found = (ag_tmethod){self, m->name, m->call};
    *changes = m->changes;
    return found;
}
