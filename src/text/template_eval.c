/* Expressions and calls. */
#include "text/template_run.h"

#include <string.h>

static ag_tval eval_name(ag_trun *r, const ag_tnode *e)
{
    ag_tval v;
    return ag_tframe_get(r->frame, e->name, &v) ? v : ag_tval_undefined(e->text.p, e->text.n);
}

static ag_tval *eval_all(ag_trun *r, const ag_tnodes *nodes)
{
    ag_tval *at = ag_trun_alloc(r, nodes->n, sizeof *at);
    for (uint32_t i = 0; i < nodes->n; i++) at[i] = ag_trun_eval(r, nodes->at[i]);
    return at;
}

static ag_tval eval_dict(ag_trun *r, const ag_tnode *e)
{
    ag_tdict *d = ag_tdict_new(r);
    for (uint32_t i = 0; i < e->body.n; i++) {
        ag_tval key = ag_trun_eval(r, e->body.at[i]->a);
        ag_tdict_set(r, d, key, ag_trun_eval(r, e->body.at[i]->b));
    }
    return ag_tval_dict(d);
}

static bool eval_compare(ag_trun *r, const ag_tnode *e)
{
    ag_tval left = ag_trun_eval(r, e->a);
    for (uint32_t i = 0; i < e->body.n; i++) {
        ag_tval right = ag_trun_eval(r, e->body.at[i]->a);
        if (!ag_tval_holds(r, e->body.at[i]->op, left, right)) return false;
        left = right;
    }
    return true;
}

static ag_tval eval_concat(ag_trun *r, const ag_tnode *e)
{
    ag_tval *parts = eval_all(r, &e->body);
    for (uint32_t i = 0; i < e->body.n; i++) parts[i] = ag_tval_to_text(r, parts[i]);
    size_t at = r->out.n;
    for (uint32_t i = 0; i < e->body.n; i++) ag_trun_put_text(r, parts[i].s);
    return ag_trun_cut(r, at);
}

static ag_tval eval_optional(ag_trun *r, const ag_tnode *e) { return e ? ag_trun_eval(r, e) : ag_tval_none(); }

static ag_tval eval_item(ag_trun *r, const ag_tnode *e)
{
    ag_tval on = ag_trun_eval(r, e->a);
    if (e->b->kind != AG_TN_SLICE) return ag_tval_item(r, on, ag_trun_eval(r, e->b));
    ag_tval start = eval_optional(r, e->b->a), stop = eval_optional(r, e->b->b), step = eval_optional(r, e->b->c);
    return ag_tval_slice(r, on, start, stop, step);
}

/* The arguments of a call, filter or test. */
static ag_targs eval_args(ag_trun *r, const ag_tnode *e, const ag_tval *caller)
{
    ag_targs args = {eval_all(r, &e->body), e->body.n, NULL, 0};
    size_t n = e->more.n + (caller != NULL);
    ag_tkeyword *keyword = n ? ag_trun_alloc(r, n, sizeof *keyword) : NULL;
    for (uint32_t i = 0; i < e->more.n; i++) keyword[i] = (ag_tkeyword){e->more.at[i]->text, ag_trun_eval(r, e->more.at[i]->a)};
    if (caller) keyword[n - 1] = (ag_tkeyword){{"caller", 6}, *caller};
    args.keyword = keyword;
    args.n_keyword = n;
    if (e->b) {
        ag_tlist more = ag_tval_items(r, ag_trun_eval(r, e->b));
        ag_tval *at = ag_trun_alloc(r, args.n + more.n, sizeof *at);
        if (args.n) memcpy(at, args.at, args.n * sizeof *at);
        if (more.n) memcpy(at + args.n, more.at, more.n * sizeof *at);
        args.at = at;
        args.n += more.n;
    }
    if (e->c) {
        ag_tval more = ag_trun_eval(r, e->c);
        if (more.kind != AG_T_DICT)
            ag_trun_fail(r, "TypeError", "argument after ** must be a mapping, not %s", ag_tval_type(more));
        ag_tkeyword *all = ag_trun_alloc(r, n + more.dict->n, sizeof *all);
        if (n) memcpy(all, keyword, n * sizeof *all);
        for (size_t i = 0; i < more.dict->n; i++) {
            if (more.dict->at[i].key.kind != AG_T_STR) ag_trun_fail(r, "TypeError", "keywords must be strings");
            for (size_t j = 0; j < n; j++)
                if (!ag_ttext_compare(all[j].name, more.dict->at[i].key.s))
                    ag_trun_fail(r, "TypeError", "got multiple values for a keyword argument");
            all[n + i] = (ag_tkeyword){more.dict->at[i].key.s, more.dict->at[i].value};
        }
        ag_trun_work(r, n * more.dict->n);
        args.keyword = all;
        args.n_keyword += more.dict->n;
    }
    return args;
}

static ag_tval call_loop(ag_trun *r, const ag_tloop *loop, const ag_targs *args)
{
    if (!(loop->node->flags & AG_TNF_RECURSIVE))
        ag_trun_fail(r, "TypeError", "The loop must have the 'recursive' marker to be called recursively.");
    AG_ARGS(r, args, "loop", 1, a, "iterable");
    ag_trun_enter(r);
    size_t at = r->out.n, outer = r->outer_capture;
    if (outer == SIZE_MAX) r->outer_capture = at;
    ag_trun_loop(r, loop->node, loop->frame, a[0], loop->depth0 + 1);
    r->outer_capture = outer;
    ag_trun_exit(r);
    return ag_trun_cut(r, at);
}

static ag_tval call_cycle(ag_trun *r, ag_tval callee, const ag_targs *args)
{
    if (callee.kind != AG_T_JOINER) ag_trun_fail(r, "TypeError", "'%s' object is not callable", ag_tval_type(callee));
    if (args->n || args->n_keyword) ag_trun_fail(r, "TypeError", "a joiner takes no arguments");
    return callee.cycle->at++ ? callee.cycle->items.at[0] : ag_tval_text("", 0);
}

ag_tval ag_trun_call(ag_trun *r, ag_tval callee, const ag_targs *args)
{
    switch (callee.kind) {
    case AG_T_UNDEFINED: ag_tval_undefined_error(r, callee);
    case AG_T_MACRO: return ag_tmacro_call(r, callee.macro, args);
    case AG_T_FUNCTION: return callee.function->call(r, args);
    case AG_T_METHOD:
        if (!callee.method->call) ag_trun_refuse(r, "the method", callee.method->name);
        return callee.method->call(r, callee.method->self, args);
    case AG_T_LOOP: return call_loop(r, callee.loop, args);
    default: return call_cycle(r, callee, args);
    }
}

ag_tval ag_trun_eval_call(ag_trun *r, const ag_tnode *e, const ag_tval *caller)
{
    ag_tval callee = ag_trun_eval(r, e->a);
    ag_targs args = eval_args(r, e, caller);
    r->line = e->line;
    return ag_trun_call(r, callee, &args);
}

static ag_tval eval_filter(ag_trun *r, const ag_tnode *e)
{
    ag_tval on;
    if (e->a)
        on = ag_trun_eval(r, e->a);
    else
        ag_tframe_get(r->frame, r->tree->name_block, &on);
    ag_targs args = eval_args(r, e, NULL);
    const ag_tfilter *filter = e->function;
    r->line = e->line;
    if (!filter) ag_trun_fail(r, "TemplateRuntimeError", "No filter named '%.*s'.", (int)e->text.n, e->text.p);
    return filter->call(r, on, &args);
}

static bool eval_test(ag_trun *r, const ag_tnode *e)
{
    ag_tval on = ag_trun_eval(r, e->a);
    ag_targs args = eval_args(r, e, NULL);
    const ag_ttest *test = e->function;
    r->line = e->line;
    if (!test) ag_trun_fail(r, "TemplateRuntimeError", "No test named '%.*s'.", (int)e->text.n, e->text.p);
    return test->call(r, on, &args);
}

static ag_tval eval_binary(ag_trun *r, const ag_tnode *e)
{
    ag_tval a = ag_trun_eval(r, e->a), b = ag_trun_eval(r, e->b);
    r->line = e->line;
    return ag_tval_binary(r, e->op, a, b);
}

static ag_tval eval_plus(ag_trun *r, const ag_tnode *e)
{
    ag_tval v = ag_trun_eval(r, e->a);
    ag_tval_need_defined(r, v);
    if (!ag_tval_is_number(v)) ag_trun_fail(r, "TypeError", "bad operand type for unary +: '%s'", ag_tval_type(v));
    return v.kind == AG_T_BOOL ? ag_tval_int(v.b) : v;
}

static ag_tval eval_choice(ag_trun *r, const ag_tnode *e)
{
    if (ag_tval_truth(ag_trun_eval(r, e->a))) return ag_trun_eval(r, e->b);
    static const char sentence[] = "the inline if-expression evaluated to false and no else section was defined.";
    return e->c ? ag_trun_eval(r, e->c) : ag_tval_undefined(sentence, sizeof sentence - 1);
}

static ag_tval eval_expression(ag_trun *r, const ag_tnode *e)
{
    ag_tval v;
    switch (e->kind) {
    case AG_TN_CONST: return *e->value;
    case AG_TN_NAME: return eval_name(r, e);
    case AG_TN_ATTR: return ag_tval_attr(r, ag_trun_eval(r, e->a), e->text);
    case AG_TN_ITEM: return eval_item(r, e);
    case AG_TN_CALL: return ag_trun_eval_call(r, e, NULL);
    case AG_TN_FILTER: return eval_filter(r, e);
    case AG_TN_TEST: return ag_tval_bool(eval_test(r, e));
    case AG_TN_NOT: return ag_tval_bool(!ag_tval_truth(ag_trun_eval(r, e->a)));
    case AG_TN_NEGATE: return ag_tval_negate(r, ag_trun_eval(r, e->a));
    case AG_TN_PLUS: return eval_plus(r, e);
    case AG_TN_BINARY: return eval_binary(r, e);
    case AG_TN_CONCAT: return eval_concat(r, e);
    case AG_TN_COMPARE: return ag_tval_bool(eval_compare(r, e));
    case AG_TN_AND: return v = ag_trun_eval(r, e->a), ag_tval_truth(v) ? ag_trun_eval(r, e->b) : v;
    case AG_TN_OR: return v = ag_trun_eval(r, e->a), ag_tval_truth(v) ? v : ag_trun_eval(r, e->b);
    case AG_TN_CHOICE: return eval_choice(r, e);
    case AG_TN_LIST: return ag_tval_list(r, AG_T_LIST, eval_all(r, &e->body), e->body.n);
    case AG_TN_TUPLE: return ag_tval_list(r, AG_T_TUPLE, eval_all(r, &e->body), e->body.n);
    case AG_TN_DICT: return eval_dict(r, e);
    case AG_TN_SLICE: ag_trun_refuse(r, "a slice inside a tuple of", "subscripts");
    default: AG_ASSERT(!"an expression");
    }
    return ag_tval_none();
}

ag_tval ag_trun_eval(ag_trun *r, const ag_tnode *e)
{
    ag_trun_enter(r);
    ag_tval v = eval_expression(r, e);
    ag_trun_exit(r);
    return v;
}
