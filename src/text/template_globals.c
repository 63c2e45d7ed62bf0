/* Functions that every template sees, and what the tests (`x is …`) ask. */
#include "text/template_run.h"

#include <string.h>

/* ---- globals
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tval make_range(ag_trun *r, const ag_targs *args)
{
    if (args->n_keyword || !args->n || args->n > 3)
        ag_trun_fail(r, "TypeError", "range() takes 1 to 3 arguments (%zu given)", args->n);
    for (size_t i = 0; i < args->n; i++) ag_tval_need_defined(r, args->at[i]);
    int64_t start = args->n > 1 ? ag_targs_int(r, args->at[0], 0) : 0, stop = ag_targs_int(r, args->at[args->n > 1], 0);
    int64_t step = args->n > 2 ? ag_targs_int(r, args->at[2], 1) : 1;
    if (step == 0) ag_trun_fail(r, "ValueError", "range() arg 3 must not be zero");
    ag_tint span = step > 0 ? (ag_tint)stop - start : (ag_tint)start - stop, by = step > 0 ? step : -(ag_tint)step;
    ag_tint n = span > 0 ? (span - 1) / by + 1 : 0;
    if (n > 100000)
        ag_trun_fail(r, "OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    ag_trange *range = ag_trun_alloc(r, 1, sizeof *range);
    *range = (ag_trange){start, stop, step, (size_t)n};
    return (ag_tval){.kind = AG_T_RANGE, .range = range};
}

/* dict(mapping or pairs, **keywords) */
static ag_tdict *dict_from(ag_trun *r, const ag_targs *args)
{
    ag_tdict *d = ag_tdict_new(r);
    if (args->n > 1) ag_trun_fail(r, "TypeError", "dict expected at most 1 argument, got %zu", args->n);
    if (args->n) {
        ag_tval from = args->at[0];
        bool mapping = from.kind == AG_T_DICT;
        ag_tlist items = ag_tval_items(r, mapping ? (ag_tval){.kind = AG_T_ITEMS, .dict = from.dict} : from);
        for (size_t i = 0; i < items.n; i++) {
            ag_tlist pair = ag_tval_items(r, items.at[i]);
            if (pair.n != 2)
                ag_trun_fail(r, "ValueError", "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                             pair.n);
            ag_tdict_set(r, d, pair.at[0], pair.at[1]);
        }
    }
    for (size_t i = 0; i < args->n_keyword; i++)
        ag_tdict_set(r, d, ag_tval_text(args->keyword[i].name.p, args->keyword[i].name.n), args->keyword[i].value);
    return d;
}

static ag_tval make_dict(ag_trun *r, const ag_targs *args) { return ag_tval_dict(dict_from(r, args)); }

static ag_tval make_namespace(ag_trun *r, const ag_targs *args)
{
    ag_tdict *d = dict_from(r, args);
    for (size_t i = 0; i < d->n; i++)
        if (d->at[i].key.kind == AG_T_STR && d->at[i].key.s.n && d->at[i].key.s.p[0] == '_')
            ag_trun_fail(r, "SecurityError", "Chat templates cannot store underscore-prefixed attributes on a namespace");
    return (ag_tval){.kind = AG_T_NAMESPACE, .dict = d};
}

static ag_tval raise_exception(ag_trun *r, const ag_targs *args)
{
    AG_ARGS(r, args, "raise_exception", 1, a, "message");
    ag_trun_raise(r, ag_tval_to_text(r, a[0]).s);
}

static ag_tval strftime_now(ag_trun *r, const ag_targs *args)
{
    AG_ARGS(r, args, "strftime_now", 1, a, "format");
    return ag_text_strftime(r, ag_targs_text(r, a[0], "strftime_now"));
}

static ag_tval cycle_of(ag_trun *r, ag_tkind kind, ag_tlist items)
{
    ag_tcycle *cycle = ag_trun_alloc(r, 1, sizeof *cycle);
    cycle->items = items;
    return (ag_tval){.kind = (uint8_t)kind, .cycle = cycle};
}

static ag_tval make_cycler(ag_trun *r, const ag_targs *args)
{
    if (!args->n || args->n_keyword) ag_trun_fail(r, "RuntimeError", "at least one item has to be provided");
    return cycle_of(r, AG_T_CYCLER, (ag_tlist){args->at, args->n});
}

static ag_tval make_joiner(ag_trun *r, const ag_targs *args)
{
    AG_ARGS(r, args, "joiner", 0, a, "sep");
    ag_tval *sep = ag_trun_alloc(r, 1, sizeof *sep);
    *sep = ag_tval_given(a[0]) ? a[0] : ag_tval_word(", ");
    return cycle_of(r, AG_T_JOINER, (ag_tlist){sep, 1});
}

static ag_tval lipsum(ag_trun *r, const ag_targs *args)
{
    (void)args;
    ag_trun_refuse(r, "random text, which is what a call gives of", "lipsum");
}

void ag_trun_for_globals(ag_trun *r, void (*define)(ag_trun *r, const char *name, ag_tval v))
{
    static const ag_tfunction functions[] = {
        {"range", make_range},          {"dict", make_dict},
        {"namespace", make_namespace},  {"raise_exception", raise_exception},
        {"strftime_now", strftime_now}, {"cycler", make_cycler},
        {"joiner", make_joiner},        {"lipsum", lipsum},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        define(r, functions[i].name, (ag_tval){.kind = AG_T_FUNCTION, .function = &functions[i]});
}

/* ---- tests
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static void no_args(ag_trun *r, const ag_targs *args)
{
    if (args->n || args->n_keyword) ag_trun_fail(r, "TypeError", "this test takes no argument");
}

static ag_tval one_arg(ag_trun *r, const ag_targs *args)
{
    AG_ARGS(r, args, "test", 1, a, "other");
    return a[0];
}

static bool is_defined(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind != AG_T_UNDEFINED; }
static bool is_undefined(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_UNDEFINED; }
static bool is_none(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_NONE; }
static bool is_string(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_STR; }
static bool is_mapping(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_DICT; }
static bool is_iterable(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), ag_tval_can_iterate(v); }
static bool is_number(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), ag_tval_is_number(v); }
static bool is_integer(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_INT; }
static bool is_float(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_FLOAT; }
static bool is_boolean(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_BOOL; }
static bool is_true(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_BOOL && v.b; }
static bool is_false(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), v.kind == AG_T_BOOL && !v.b; }
static bool is_escaped(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args), v.kind == AG_T_STR && v.flags & AG_TF_SAFE;
}
static bool is_callable(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args);
    return v.kind == AG_T_MACRO || v.kind == AG_T_FUNCTION || v.kind == AG_T_METHOD || v.kind == AG_T_LOOP ||
           v.kind == AG_T_JOINER || v.kind == AG_T_UNDEFINED;
}

static bool is_sequence(ag_trun *r, ag_tval v, const ag_targs *args) /* has a length and items */
{
    no_args(r, args);
    return v.kind == AG_T_STR || v.kind == AG_T_LIST || v.kind == AG_T_TUPLE || v.kind == AG_T_DICT || v.kind == AG_T_RANGE ||
           v.kind == AG_T_UNDEFINED;
}

static bool is_lower(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args), ag_text_has_case(r, ag_tval_to_text(r, v).s, false);
}
static bool is_upper(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args), ag_text_has_case(r, ag_tval_to_text(r, v).s, true);
}

static bool divides(ag_trun *r, ag_tval v, ag_tval by)
{
    return ag_tval_equal(r, ag_tval_binary(r, AG_TT_MOD, v, by), ag_tval_int(0));
}
static bool is_even(ag_trun *r, ag_tval v, const ag_targs *args) { return no_args(r, args), divides(r, v, ag_tval_int(2)); }
static bool is_odd(ag_trun *r, ag_tval v, const ag_targs *args)
{
    no_args(r, args);
    return ag_tval_equal(r, ag_tval_binary(r, AG_TT_MOD, v, ag_tval_int(2)), ag_tval_int(1));
}

static bool is_divisibleby(ag_trun *r, ag_tval v, const ag_targs *args) { return divides(r, v, one_arg(r, args)); }
static bool is_eq(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_equal(r, v, one_arg(r, args)); }
static bool is_ne(ag_trun *r, ag_tval v, const ag_targs *args) { return !ag_tval_equal(r, v, one_arg(r, args)); }
static bool is_lt(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_holds(r, AG_TT_LT, v, one_arg(r, args)); }
static bool is_le(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_holds(r, AG_TT_LE, v, one_arg(r, args)); }
static bool is_gt(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_holds(r, AG_TT_GT, v, one_arg(r, args)); }
static bool is_ge(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_holds(r, AG_TT_GE, v, one_arg(r, args)); }
static bool is_in(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_contains(r, one_arg(r, args), v); }
static bool is_sameas(ag_trun *r, ag_tval v, const ag_targs *args) { return ag_tval_same(v, one_arg(r, args)); }
static bool is_filter(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args), v.kind == AG_T_STR && ag_tfilter_find(v.s);
}
static bool is_test(ag_trun *r, ag_tval v, const ag_targs *args)
{
    return no_args(r, args), v.kind == AG_T_STR && ag_ttest_find(v.s);
}

const ag_ttest *ag_ttest_find(ag_ttext name)
{
    static const ag_ttest tests[] = {
        {"defined", is_defined},
        {"undefined", is_undefined},
        {"none", is_none},
        {"string", is_string},
        {"mapping", is_mapping},
        {"iterable", is_iterable},
        {"sequence", is_sequence},
        {"number", is_number},
        {"integer", is_integer},
        {"float", is_float},
        {"boolean", is_boolean},
        {"true", is_true},
        {"false", is_false},
        {"callable", is_callable},
        {"escaped", is_escaped},
        {"lower", is_lower},
        {"upper", is_upper},
        {"even", is_even},
        {"odd", is_odd},
        {"divisibleby", is_divisibleby},
        {"eq", is_eq},
        {"equalto", is_eq},
        {"==", is_eq},
        {"ne", is_ne},
        {"!=", is_ne},
        {"lt", is_lt},
        {"lessthan", is_lt},
        {"<", is_lt},
        {"le", is_le},
        {"<=", is_le},
        {"gt", is_gt},
        {"greaterthan", is_gt},
        {">", is_gt},
        {"ge", is_ge},
        {">=", is_ge},
        {"in", is_in},
        {"sameas", is_sameas},
        {"filter", is_filter},
        {"test", is_test},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (ag_ttext_is(name, tests[i].name)) return &tests[i];
    return NULL;
}
