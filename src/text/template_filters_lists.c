/* Filters on sequences. Those that jinja2 writes as generators are read lazily here too: an error in them is one only where
 * they are read, and they are read once. */
#include "text/template_filters.h"

#include <string.h>

static ag_tval lazy(ag_trun *r, ag_tval on, const ag_targs *args,
                    ag_tlist (*make)(ag_trun *r, ag_tval source, const ag_targs *args))
{
    ag_tlazy *l = ag_trun_alloc(r, 1, sizeof *l);
    *l = (ag_tlazy){.make = make, .source = on, .args = *args};
    return (ag_tval){.kind = AG_T_LAZY, .lazy = l};
}

static bool is_true(ag_tval v) { return ag_tval_given(v) && ag_tval_truth(v); }

static bool is_missing(ag_tval v) { return !ag_tval_given(v) || v.kind == AG_T_NONE; }

static ag_tval fold_case(ag_trun *r, ag_tval v) { return v.kind == AG_T_STR ? ag_text_lower(r, v.s) : v; }

/* The items, each by its attribute where one is given. */
static ag_tlist attributes(ag_trun *r, ag_tval v, ag_tval attribute)
{
    ag_tlist items = ag_tval_items(r, v);
    if (is_missing(attribute)) return items;
    ag_tval *at = ag_trun_alloc(r, items.n, sizeof *at);
    for (size_t i = 0; i < items.n; i++) at[i] = ag_tval_path(r, items.at[i], attribute, (ag_tval){.kind = AG_T_ABSENT});
    return (ag_tlist){at, items.n};
}

/* ---- plain ones
 * ------------------------------------------------------------------------------------------------------------------------------
 */
ag_tval ag_filter_length(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "length", NULL, 0, 0, NULL);
    return ag_tval_int((ag_tint)ag_tval_length(r, v));
}

ag_tval ag_filter_list(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "list", NULL, 0, 0, NULL);
    ag_tlist items = ag_tval_items(r, v);
    return ag_tval_list(r, AG_T_LIST, items.at, items.n);
}

ag_tval ag_filter_join(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "join", 0, a, "d", "attribute");
    ag_tlist items = attributes(r, v, a[1]);
    ag_ttext between = ag_tval_given(a[0]) ? ag_tval_to_text(r, a[0]).s : (ag_ttext){"", 0};
    size_t at = r->out.n;
    for (size_t i = 0; i < items.n; i++) {
        if (i) ag_trun_put_text(r, between);
        ag_trun_work(r, 1);
        ag_tval_print(r, items.at[i]);
    }
    return ag_trun_cut(r, at);
}

ag_tval ag_filter_first(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "first", NULL, 0, 0, NULL);
    if (v.kind == AG_T_LAZY) { /* takes one and leaves the rest */
        ag_tlist rest = ag_tval_items(r, v);
        if (rest.n) v.lazy->next -= rest.n - 1;
        return rest.n ? rest.at[0] : ag_tval_undefined("No first item, sequence was empty.", 34);
    }
    ag_tlist items = ag_tval_items(r, v);
    return items.n ? items.at[0] : ag_tval_undefined("No first item, sequence was empty.", 34);
}

static void need_reversible(ag_trun *r, ag_tval v)
{
    if (v.kind == AG_T_LAZY) ag_trun_fail(r, "TypeError", "'generator' object is not reversible");
}

ag_tval ag_filter_last(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "last", NULL, 0, 0, NULL);
    need_reversible(r, v);
    ag_tlist items = ag_tval_items(r, v);
    return items.n ? items.at[items.n - 1] : ag_tval_undefined("No last item, sequence was empty.", 33);
}

static ag_tlist reversed(ag_trun *r, ag_tval v, const ag_targs *args)
{
    (void)args;
    ag_tlist items = ag_tval_items(r, v);
    ag_tval *at = ag_trun_alloc(r, items.n, sizeof *at);
    for (size_t i = 0; i < items.n; i++) at[i] = items.at[items.n - 1 - i];
    return (ag_tlist){at, items.n};
}

ag_tval ag_filter_reverse(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "reverse", NULL, 0, 0, NULL);
    if (v.kind == AG_T_STR) return ag_tval_slice(r, v, ag_tval_none(), ag_tval_none(), ag_tval_int(-1));
    if (!ag_tval_can_iterate(v)) ag_trun_fail(r, "FilterArgumentError", "argument must be iterable");
    return lazy(r, v, &(ag_targs){0}, reversed);
}

ag_tval ag_filter_sum(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "sum", 0, a, "attribute", "start");
    ag_tlist items = attributes(r, v, a[0]);
    ag_tval total = ag_tval_given(a[1]) ? a[1] : ag_tval_int(0);
    if (total.kind == AG_T_STR) ag_trun_fail(r, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < items.n; i++) total = ag_tval_binary(r, AG_TT_ADD, total, items.at[i]);
    return total;
}

static ag_tlist items_of(ag_trun *r, ag_tval v, const ag_targs *args)
{
    (void)args;
    if (v.kind == AG_T_UNDEFINED) return (ag_tlist){0};
    if (v.kind != AG_T_DICT) ag_trun_fail(r, "TypeError", "Can only get item pairs from a mapping.");
    v.kind = AG_T_ITEMS;
    return ag_tval_items(r, v);
}

ag_tval ag_filter_items(ag_trun *r, ag_tval v, const ag_targs *args)
{
    ag_targs_bind(r, args, "items", NULL, 0, 0, NULL);
    return lazy(r, v, &(ag_targs){0}, items_of);
}

/* ---- map, select and reject: what is false, None and 0 too, has no items for them ---- */
static ag_tlist map_items(ag_trun *r, ag_tval v, const ag_targs *args)
{
    if (!ag_tval_truth(v)) return (ag_tlist){0};
    ag_tlist items = ag_tval_items(r, v);
    ag_tval *at = ag_trun_alloc(r, items.n, sizeof *at);
    if (!args->n && args->n_keyword) {
        AG_ARGS(r, args, "map", 0, a, "attribute", "default");
        if (!ag_tval_given(a[0])) ag_trun_fail(r, "FilterArgumentError", "map requires a filter argument");
        ag_tval missing = a[1].kind == AG_T_NONE ? (ag_tval){.kind = AG_T_ABSENT} : a[1];
        for (size_t i = 0; i < items.n; i++) at[i] = ag_tval_path(r, items.at[i], a[0], missing);
        return (ag_tlist){at, items.n};
    }
    if (!args->n) ag_trun_fail(r, "FilterArgumentError", "map requires a filter argument");
    const ag_tfilter *filter = args->at[0].kind == AG_T_STR ? ag_tfilter_find(args->at[0].s) : NULL;
    if (!filter)
        ag_trun_fail(r, "TemplateRuntimeError", "No filter named '%.*s'.",
                     args->at[0].kind == AG_T_STR ? (int)args->at[0].s.n : 0, args->at[0].s.p);
    ag_targs rest = {args->at + 1, args->n - 1, args->keyword, args->n_keyword};
    for (size_t i = 0; i < items.n; i++) {
        ag_trun_enter(r);
        at[i] = filter->call(r, items.at[i], &rest);
        ag_trun_exit(r);
    }
    return (ag_tlist){at, items.n};
}

ag_tval ag_filter_map(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, map_items); }

static ag_tlist choose(ag_trun *r, ag_tval v, const ag_targs *args, bool by_attribute, bool wanted)
{
    if (!ag_tval_truth(v)) return (ag_tlist){0};
    ag_tlist items = ag_tval_items(r, v);
    ag_tgrow kept = {0};
    size_t used = by_attribute;
    if (args->n < used) ag_trun_fail(r, "FilterArgumentError", "Missing parameter for attribute name");
    const ag_ttest *test = NULL;
    ag_targs rest = {0};
    if (args->n > used) {
        ag_tval name = args->at[used++];
        test = name.kind == AG_T_STR ? ag_ttest_find(name.s) : NULL;
        if (!test)
            ag_trun_fail(r, "TemplateRuntimeError", "No test named '%.*s'.", name.kind == AG_T_STR ? (int)name.s.n : 0,
                         name.s.p);
        rest = (ag_targs){args->at + used, args->n - used, args->keyword, args->n_keyword};
    }
    for (size_t i = 0; i < items.n; i++) {
        ag_tval on = by_attribute ? ag_tval_path(r, items.at[i], args->at[0], (ag_tval){.kind = AG_T_ABSENT}) : items.at[i];
        ag_trun_work(r, 1);
        if ((test ? test->call(r, on, &rest) : ag_tval_truth(on)) == wanted) ag_tgrow_add(r, &kept, items.at[i]);
    }
    return (ag_tlist){kept.at, kept.n};
}

static ag_tlist selected(ag_trun *r, ag_tval v, const ag_targs *args) { return choose(r, v, args, false, true); }
static ag_tlist rejected(ag_trun *r, ag_tval v, const ag_targs *args) { return choose(r, v, args, false, false); }
static ag_tlist selected_by(ag_trun *r, ag_tval v, const ag_targs *args) { return choose(r, v, args, true, true); }
static ag_tlist rejected_by(ag_trun *r, ag_tval v, const ag_targs *args) { return choose(r, v, args, true, false); }

ag_tval ag_filter_select(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, selected); }
ag_tval ag_filter_reject(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, rejected); }
ag_tval ag_filter_selectattr(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, selected_by); }
ag_tval ag_filter_rejectattr(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, rejected_by); }

/* ---- order
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
typedef struct {
    ag_tval key, item;
} keyed;

/* A stable merge sort: comparing may leave the run, which the library's sort does not allow. */
static keyed *sort_keyed(ag_trun *r, keyed *from, size_t n, bool backward)
{
    keyed *to = ag_trun_alloc(r, n, sizeof *to);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t a = start, middle = start + width < n ? start + width : n, b = middle,
                   end = middle + width < n ? middle + width : n;
            for (size_t i = start; i < end; i++) {
                bool left = a < middle;
                if (left && b < end) {
                    ag_trun_work(r, 1);
                    left = backward ? ag_tval_compare(r, from[a].key, from[b].key, "<") != -1
                                    : ag_tval_compare(r, from[b].key, from[a].key, "<") != -1;
                }
                to[i] = left ? from[a++] : from[b++];
            }
        }
        keyed *swap = from;
        from = to, to = swap;
    }
    return from;
}

static ag_tval items_in_order(ag_trun *r, keyed *k, size_t n)
{
    ag_tval *at = ag_trun_alloc(r, n, sizeof *at);
    for (size_t i = 0; i < n; i++) at[i] = k[i].item;
    return ag_tval_list(r, AG_T_LIST, at, n);
}

ag_tval ag_filter_dictsort(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "dictsort", 0, a, "case_sensitive", "by", "reverse");
    ag_tval_need_defined(r, v);
    if (v.kind != AG_T_DICT) ag_trun_fail(r, "AttributeError", "'%s' object has no attribute 'items'", ag_tval_type(v));
    bool by_value = ag_tval_is_text(a[1], "value");
    if (ag_tval_given(a[1]) && !by_value && !ag_tval_is_text(a[1], "key"))
        ag_trun_fail(r, "FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
    size_t n = v.dict->n;
    v.kind = AG_T_ITEMS;
    ag_tlist items = ag_tval_items(r, v);
    keyed *k = ag_trun_alloc(r, n, sizeof *k);
    for (size_t i = 0; i < n; i++) {
        ag_tval key = items.at[i].list->at[by_value];
        k[i] = (keyed){is_true(a[0]) ? key : fold_case(r, key), items.at[i]};
    }
    return items_in_order(r, sort_keyed(r, k, n, is_true(a[2])), n);
}

static ag_tval key_part(ag_trun *r, ag_tval item, ag_tval attribute, bool with_case)
{
    ag_tval v = is_missing(attribute) ? item : ag_tval_path(r, item, attribute, (ag_tval){.kind = AG_T_ABSENT});
    return with_case ? v : fold_case(r, v);
}

/* What sort(attribute='a,b') compares: a list of its parts, a single one too, so that undefined ones are equal instead of an
 * error. */
static ag_tval sort_key(ag_trun *r, ag_tval item, ag_tval attribute, bool with_case)
{
    ag_tgrow parts = {0};
    if (attribute.kind != AG_T_STR) ag_tgrow_add(r, &parts, key_part(r, item, attribute, with_case));
    for (ag_ttext rest = attribute.s; attribute.kind == AG_T_STR;) {
        const char *comma = memchr(rest.p, ',', rest.n);
        size_t n = comma ? (size_t)(comma - rest.p) : rest.n;
        ag_tgrow_add(r, &parts, key_part(r, item, ag_tval_text(rest.p, n), with_case));
        if (!comma) break;
        rest = (ag_ttext){comma + 1, rest.n - n - 1};
    }
    return ag_tval_list(r, AG_T_LIST, parts.at, parts.n);
}

static keyed *with_keys(ag_trun *r, ag_tlist items, ag_tval attribute, bool with_case)
{
    keyed *k = ag_trun_alloc(r, items.n, sizeof *k);
    for (size_t i = 0; i < items.n; i++) k[i] = (keyed){sort_key(r, items.at[i], attribute, with_case), items.at[i]};
    return k;
}

ag_tval ag_filter_sort(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "sort", 0, a, "reverse", "case_sensitive", "attribute");
    ag_tlist items = ag_tval_items(r, v);
    return items_in_order(r, sort_keyed(r, with_keys(r, items, a[2], is_true(a[1])), items.n, is_true(a[0])), items.n);
}

static ag_tval extreme(ag_trun *r, ag_tval v, const ag_targs *args, bool largest)
{
    AG_ARGS(r, args, largest ? "max" : "min", 0, a, "case_sensitive", "attribute");
    ag_tlist items = ag_tval_items(r, v);
    if (!items.n) return ag_tval_undefined("No aggregated item, sequence was empty.", 39);
    keyed *k = ag_trun_alloc(r, items.n, sizeof *k);
    size_t best = 0;
    for (size_t i = 0; i < items.n; i++) {
        ag_tval key = is_missing(a[1]) ? items.at[i] : ag_tval_path(r, items.at[i], a[1], (ag_tval){.kind = AG_T_ABSENT});
        k[i].key = is_true(a[0]) ? key : fold_case(r, key);
        if (i == 0) continue;
        if (largest ? ag_tval_compare(r, k[i].key, k[best].key, ">") == 1
                    : ag_tval_compare(r, k[i].key, k[best].key, "<") == -1)
            best = i;
    }
    return items.at[best];
}

ag_tval ag_filter_min(ag_trun *r, ag_tval v, const ag_targs *args) { return extreme(r, v, args, false); }
ag_tval ag_filter_max(ag_trun *r, ag_tval v, const ag_targs *args) { return extreme(r, v, args, true); }

static ag_tlist unique_items(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "unique", 0, a, "case_sensitive", "attribute");
    ag_tlist items = ag_tval_items(r, v);
    ag_tdict *seen = ag_tdict_new(r);
    ag_tgrow kept = {0};
    for (size_t i = 0; i < items.n; i++) {
        ag_tval key = is_missing(a[1]) ? items.at[i] : ag_tval_path(r, items.at[i], a[1], (ag_tval){.kind = AG_T_ABSENT});
        if (!is_true(a[0])) key = fold_case(r, key);
        size_t n = seen->n;
        ag_tdict_set(r, seen, key, ag_tval_none());
        if (seen->n > n) ag_tgrow_add(r, &kept, items.at[i]);
    }
    return (ag_tlist){kept.at, kept.n};
}

ag_tval ag_filter_unique(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, unique_items); }

/* ---- groups
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
ag_tval ag_filter_groupby(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "groupby", 1, a, "attribute", "default", "case_sensitive");
    ag_tval missing = a[1].kind == AG_T_NONE ? (ag_tval){.kind = AG_T_ABSENT} : a[1];
    bool with_case = is_true(a[2]);
    ag_tlist items = ag_tval_items(r, v);
    keyed *k = ag_trun_alloc(r, items.n, sizeof *k);
    for (size_t i = 0; i < items.n; i++) {
        ag_tval key = ag_tval_path(r, items.at[i], a[0], missing);
        k[i] = (keyed){with_case ? key : fold_case(r, key), items.at[i]};
    }
    k = sort_keyed(r, k, items.n, false);
    ag_tgrow groups = {0};
    for (size_t i = 0; i < items.n;) {
        ag_tgrow group = {0};
        size_t first = i;
        for (; i < items.n && ag_tval_equal(r, k[i].key, k[first].key); i++) ag_tgrow_add(r, &group, k[i].item);
        if (i == first) ag_tgrow_add(r, &group, k[i++].item); /* a NaN is not even itself */
        ag_tval named =
            ag_tval_pair(r, ag_tval_path(r, k[first].item, a[0], missing), ag_tval_list(r, AG_T_LIST, group.at, group.n));
        named.flags = AG_TF_GROUP;
        ag_tgrow_add(r, &groups, named);
    }
    return ag_tval_list(r, AG_T_LIST, groups.at, groups.n);
}

static ag_tlist batches(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "batch", 1, a, "linecount", "fill_with");
    ag_tlist items = ag_tval_items(r, v);
    int64_t size = ag_targs_int(r, a[0], 0);
    ag_tgrow out = {0};
    for (size_t i = 0; i < items.n;) {
        size_t n = size <= 0 || (size_t)size > items.n - i ? items.n - i : (size_t)size;
        ag_tgrow row = {0};
        for (size_t j = 0; j < n; j++) ag_tgrow_add(r, &row, items.at[i + j]);
        while (!is_missing(a[1]) && size > 0 && row.n < (size_t)size) ag_tgrow_add(r, &row, a[1]);
        ag_tgrow_add(r, &out, ag_tval_list(r, AG_T_LIST, row.at, row.n));
        i += n;
    }
    return (ag_tlist){out.at, out.n};
}

ag_tval ag_filter_batch(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, batches); }

static ag_tlist slices(ag_trun *r, ag_tval v, const ag_targs *args)
{
    AG_ARGS(r, args, "slice", 1, a, "slices", "fill_with");
    ag_tlist items = ag_tval_items(r, v);
    int64_t n = ag_targs_int(r, a[0], 0);
    if (n == 0) ag_trun_fail(r, "ZeroDivisionError", "integer division or modulo by zero");
    ag_tgrow out = {0};
    size_t each = n > 0 ? items.n / (size_t)n : 0, extra = n > 0 ? items.n % (size_t)n : 0, at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t n_row = each + ((size_t)i < extra);
        ag_tgrow row = {0};
        for (size_t j = 0; j < n_row; j++) ag_tgrow_add(r, &row, items.at[at++]);
        if (!is_missing(a[1]) && (size_t)i >= extra) ag_tgrow_add(r, &row, a[1]);
        ag_tgrow_add(r, &out, ag_tval_list(r, AG_T_LIST, row.at, row.n));
    }
    return (ag_tlist){out.at, out.n};
}

ag_tval ag_filter_slice(ag_trun *r, ag_tval v, const ag_targs *args) { return lazy(r, v, args, slices); }
