/* Statements: frames, loops, macros. */
#include "text/template_run.h"

#include <string.h>

/* ---- frames
 * ------------------------------------------------------------------------------------------------------------------------------
 */
ag_tframe *ag_tframe_new(ag_trun *r, ag_tframe *parent)
{
    ag_tframe *f = ag_trun_alloc(r, 1, sizeof *f);
    f->parent = parent;
    if (!parent) {
        f->n = f->room = r->tree->n_names;
        f->values = ag_trun_alloc(r, f->n, sizeof *f->values);
        for (uint32_t i = 0; i < f->n; i++) f->values[i].kind = AG_T_ABSENT;
    }
    return f;
}

void ag_tframe_set(ag_trun *r, ag_tframe *f, uint32_t name, ag_tval v)
{
    if (!f->parent) {
        f->values[name] = v;
        return;
    }
    for (uint32_t i = 0; i < f->n; i++)
        if (f->names[i] == name) {
            f->values[i] = v;
            return;
        }
    ag_trun_work(r, f->n / 16);
    if (f->n == f->room) {
        uint32_t room = f->room ? 2 * f->room : 4;
        uint32_t *names = ag_trun_alloc(r, room, sizeof *names);
        ag_tval *values = ag_trun_alloc(r, room, sizeof *values);
        if (f->n) {
            memcpy(names, f->names, f->n * sizeof *names);
            memcpy(values, f->values, f->n * sizeof *values);
        }
        f->names = names;
        f->values = values;
        f->room = room;
    }
    f->names[f->n] = name;
    f->values[f->n++] = v;
}

bool ag_tframe_get(const ag_tframe *f, uint32_t name, ag_tval *v)
{
    for (; f->parent; f = f->parent)
        for (uint32_t i = 0; i < f->n; i++)
            if (f->names[i] == name) {
                *v = f->values[i];
                return v->kind != AG_T_ABSENT;
            }
    *v = f->values[name];
    return v->kind != AG_T_ABSENT;
}

/* ---- captures
 * ----------------------------------------------------------------------------------------------------------------------------
 */
/* What is printed from here on becomes a value. Generation marks inside count from where the outermost capture began, as they
 * do in transformers, which sees a text only once the template has printed it. */
typedef struct {
    size_t at, outer;
    ag_tframe *frame;
} capture;

static capture capture_begin(ag_trun *r, ag_tframe *frame)
{
    capture c = {r->out.n, r->outer_capture, r->frame};
    if (c.outer == SIZE_MAX) r->outer_capture = c.at;
    r->frame = frame;
    return c;
}

static ag_tval capture_end(ag_trun *r, capture c)
{
    r->outer_capture = c.outer;
    r->frame = c.frame;
    return ag_trun_cut(r, c.at);
}

/* ---- assignments
 * -------------------------------------------------------------------------------------------------------------------------- */
static ag_tdict *namespace_of(ag_trun *r, const ag_tnode *target)
{
    ag_tval ns;
    if (!ag_tframe_get(r->frame, target->name, &ns) || ns.kind != AG_T_NAMESPACE)
        ag_trun_fail(r, "TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    return ns.dict;
}

/* Before the value is computed, as jinja2 does. */
static void check_targets(ag_trun *r, const ag_tnode *target)
{
    if (target->kind == AG_TN_NS_REF) namespace_of(r, target);
    if (target->kind == AG_TN_TUPLE)
        for (uint32_t i = 0; i < target->body.n; i++) check_targets(r, target->body.at[i]);
}

void ag_trun_assign(ag_trun *r, const ag_tnode *target, ag_tval v)
{
    if (target->kind == AG_TN_NAME) {
        ag_tframe_set(r, r->frame, target->name, v);
        return;
    }
    if (target->kind == AG_TN_NS_REF) {
        if (target->text.n && target->text.p[0] == '_')
            ag_trun_fail(r, "SecurityError", "Chat templates cannot store underscore-prefixed attributes on a namespace");
        ag_tdict_set(r, namespace_of(r, target), ag_tval_text(target->text.p, target->text.n), v);
        return;
    }
    if (!ag_tval_can_iterate(v)) ag_trun_fail(r, "TypeError", "cannot unpack non-iterable %s object", ag_tval_type(v));
    ag_tlist items = ag_tval_items(r, v);
    if (items.n != target->body.n)
        ag_trun_fail(r, "ValueError", "%s values to unpack (expected %u, got %zu)",
                     items.n > target->body.n ? "too many" : "not enough", target->body.n, items.n);
    for (uint32_t i = 0; i < target->body.n; i++) ag_trun_assign(r, target->body.at[i], items.at[i]);
}

/* ---- loops
 * --------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tlist filtered(ag_trun *r, const ag_tnode *node, ag_tframe *frame, ag_tlist items)
{
    ag_tgrow kept = {0};
    ag_tframe *around = r->frame, *round = ag_tframe_new(r, frame);
    for (size_t i = 0; i < items.n; i++) {
        r->frame = round;
        round->n = 0;
        ag_trun_assign(r, node->a, items.at[i]);
        if (ag_tval_truth(ag_trun_eval(r, node->c))) ag_tgrow_add(r, &kept, items.at[i]);
    }
    r->frame = around;
    return (ag_tlist){kept.at, kept.n};
}

/* All rounds have one frame, empty when a round begins and after the last: a macro made in one round and called in another sees
 * the names of the round that calls it, as in jinja2. */
void ag_trun_loop(ag_trun *r, const ag_tnode *node, ag_tframe *frame, ag_tval over, size_t depth0)
{
    ag_tlist items = ag_tval_items(r, over);
    if (node->c) items = filtered(r, node, frame, items);
    ag_tloop *loop = ag_trun_alloc(r, 1, sizeof *loop);
    *loop = (ag_tloop){.node = node, .frame = frame, .items = items, .depth0 = depth0, .changed = {.kind = AG_T_ABSENT}};
    ag_tframe *around = r->frame, *round = ag_tframe_new(r, frame);
    for (size_t i = 0; i < items.n; i++) {
        loop->index0 = i;
        r->frame = round;
        round->n = 0;
        ag_tframe_set(r, r->frame, r->tree->name_loop, (ag_tval){.kind = AG_T_LOOP, .loop = loop});
        ag_trun_assign(r, node->a, items.at[i]);
        if (ag_trun_body(r, &node->body) == AG_FLOW_BREAK) break;
    }
    round->n = 0;
    if (!items.n && node->more.n) {
        r->frame = round;
        ag_trun_body(r, &node->more);
    }
    r->frame = around;
}

/* ---- macros
 * --------------------------------------------------------------------------------------------------------------------------------
 */
static const ag_tkeyword *keyword(const ag_targs *args, ag_ttext name)
{
    for (size_t i = 0; i < args->n_keyword; i++)
        if (ag_ttext_compare(args->keyword[i].name, name) == 0) return &args->keyword[i];
    return NULL;
}

static bool is_parameter(const ag_tnode *node, ag_ttext name)
{
    for (uint32_t i = 0; i < node->more.n; i++)
        if (ag_ttext_compare(node->more.at[i]->text, name) == 0) return true;
    return false;
}

static void bind_rest(ag_trun *r, const ag_tnode *node, const ag_targs *args)
{
    static const ag_ttext caller = {"caller", 6};
    const ag_tkeyword *call = is_parameter(node, caller) ? NULL : keyword(args, caller);
    if (call && !(node->flags & AG_TNF_CALLER) && !(node->flags & AG_TNF_KWARGS))
        ag_trun_fail(r, "TypeError", "macro '%.*s' was invoked with a caller, but takes none", (int)node->text.n, node->text.p);
    if (node->flags & AG_TNF_CALLER && !is_parameter(node, caller))
        ag_tframe_set(r, r->frame, r->tree->name_caller, call ? call->value : ag_tval_undefined("No caller defined", 17));
    ag_tdict *rest = node->flags & AG_TNF_KWARGS ? ag_tdict_new(r) : NULL;
    for (size_t i = 0; i < args->n_keyword; i++) {
        ag_ttext name = args->keyword[i].name;
        if (is_parameter(node, name) || (&args->keyword[i] == call && node->flags & AG_TNF_CALLER)) continue;
        if (!rest)
            ag_trun_fail(r, "TypeError", "macro '%.*s' takes no keyword argument '%.*s'", (int)node->text.n, node->text.p,
                         (int)name.n, name.p);
        ag_tdict_set(r, rest, ag_tval_text(name.p, name.n), args->keyword[i].value);
    }
    if (rest) ag_tframe_set(r, r->frame, r->tree->name_kwargs, ag_tval_dict(rest));
    if (node->flags & AG_TNF_VARARGS) {
        size_t n = args->n > node->more.n ? args->n - node->more.n : 0;
        ag_tframe_set(r, r->frame, r->tree->name_varargs, ag_tval_list(r, AG_T_TUPLE, n ? args->at + node->more.n : NULL, n));
    } else if (args->n > node->more.n) {
        ag_trun_fail(r, "TypeError", "macro '%.*s' takes not more than %u argument(s)", (int)node->text.n, node->text.p,
                     node->more.n);
    }
}

ag_tval ag_tmacro_call(ag_trun *r, const ag_tmacro *m, const ag_targs *args)
{
    const ag_tnode *node = m->node;
    ag_trun_enter(r);
    capture c = capture_begin(r, ag_tframe_new(r, m->frame));
    size_t first_default = node->more.n - node->rest.n;
    /* All given arguments first, then the defaults, which may name any of them. */
    for (uint32_t i = 0; i < node->more.n; i++) {
        const ag_tnode *p = node->more.at[i];
        const ag_tkeyword *k = keyword(args, p->text);
        if (k && i < args->n)
            ag_trun_fail(r, "TypeError", "macro '%.*s' got two values for '%.*s'", (int)node->text.n, node->text.p,
                         (int)p->text.n, p->text.p);
        ag_tval absent = {.kind = AG_T_ABSENT};
        ag_tframe_set(r, r->frame, p->name, i < args->n ? args->at[i] : k ? k->value : absent);
    }
    bind_rest(r, node, args);
    for (uint32_t i = 0; i < node->more.n; i++) {
        const ag_tnode *p = node->more.at[i];
        ag_tval v;
        if (ag_tframe_get(r->frame, p->name, &v)) continue;
        v = i < first_default ? ag_tval_undefined(p->text.p, p->text.n) : ag_trun_eval(r, node->rest.at[i - first_default]);
        ag_tframe_set(r, r->frame, p->name, v);
    }
    ag_trun_body(r, &node->body);
    ag_trun_exit(r);
    return capture_end(r, c);
}

static ag_tval macro_value(ag_trun *r, const ag_tnode *node)
{
    ag_tmacro *m = ag_trun_alloc(r, 1, sizeof *m);
    *m = (ag_tmacro){node, r->frame};
    return (ag_tval){.kind = AG_T_MACRO, .macro = m};
}

/* ---- statements
 * ----------------------------------------------------------------------------------------------------------------------------
 */
static void run_generation(ag_trun *r, const ag_tnode *node)
{
    ag_tval text = ag_tmacro_call(r, &(ag_tmacro){node, r->frame}, &(ag_targs){0});
    if (r->n_marks == r->room_marks) {
        size_t room = r->room_marks ? 2 * r->room_marks : 16;
        struct ag_tmark *marks = ag_trun_alloc(r, room, sizeof *marks);
        if (r->n_marks) memcpy(marks, r->marks, r->n_marks * sizeof *marks);
        r->marks = marks;
        r->room_marks = room;
    }
    size_t start = r->outer_capture == SIZE_MAX ? r->out.n : r->outer_capture;
    r->marks[r->n_marks++] = (struct ag_tmark){start, start + text.s.n};
    ag_trun_put_text(r, text.s);
}

static ag_tflow run_set_block(ag_trun *r, const ag_tnode *node)
{
    check_targets(r, node->a);
    capture c = capture_begin(r, ag_tframe_new(r, r->frame));
    ag_tflow flow = ag_trun_body(r, &node->body);
    ag_tframe *inner = r->frame;
    ag_tval v = capture_end(r, c);
    if (flow != AG_FLOW_NEXT) return flow;
    if (node->b) {
        r->frame = inner;
        ag_tframe_set(r, inner, r->tree->name_block, v);
        v = ag_trun_eval(r, node->b);
        r->frame = c.frame;
    }
    ag_trun_assign(r, node->a, v);
    return AG_FLOW_NEXT;
}

static ag_tflow run_filter_block(ag_trun *r, const ag_tnode *node)
{
    capture c = capture_begin(r, ag_tframe_new(r, r->frame));
    ag_tflow flow = ag_trun_body(r, &node->body);
    ag_tframe *inner = r->frame, *around = c.frame;
    ag_tval v = capture_end(r, c);
    if (flow != AG_FLOW_NEXT) return flow; /* what was printed is lost, as in jinja2 */
    r->frame = inner;
    ag_tframe_set(r, inner, r->tree->name_block, v);
    v = ag_trun_eval(r, node->a);
    r->frame = around;
    if (v.kind != AG_T_STR) ag_trun_fail(r, "TypeError", "a filtered block must become a str, not %s", ag_tval_type(v));
    ag_trun_put_text(r, v.s);
    return AG_FLOW_NEXT;
}

static ag_tflow run_with(ag_trun *r, const ag_tnode *node)
{
    ag_tframe *around = r->frame, *inner = ag_tframe_new(r, around);
    for (uint32_t i = 0; i < node->more.n; i++) {
        ag_tval v = ag_trun_eval(r, node->rest.at[i]);
        r->frame = inner;
        ag_trun_assign(r, node->more.at[i], v);
        r->frame = around;
    }
    r->frame = inner;
    ag_tflow flow = ag_trun_body(r, &node->body);
    r->frame = around;
    return flow;
}

static void run_call_block(ag_trun *r, const ag_tnode *node)
{
    ag_tval caller = macro_value(r, node);
    ag_tval printed = ag_trun_eval_call(r, node->a, &caller);
    ag_tval_print(r, printed);
}

static ag_tflow run_statement(ag_trun *r, const ag_tnode *node)
{
    switch (node->kind) {
    case AG_TN_DATA: ag_trun_put_text(r, node->text); break;
    case AG_TN_PRINT: ag_tval_print(r, ag_trun_eval(r, node->a)); break;
    case AG_TN_IF: return ag_trun_body(r, ag_tval_truth(ag_trun_eval(r, node->a)) ? &node->body : &node->more);
    case AG_TN_FOR: ag_trun_loop(r, node, r->frame, ag_trun_eval(r, node->b), 0); break;
    case AG_TN_SET:
        check_targets(r, node->a);
        ag_trun_assign(r, node->a, ag_trun_eval(r, node->b));
        break;
    case AG_TN_SET_BLOCK: return run_set_block(r, node);
    case AG_TN_MACRO: ag_tframe_set(r, r->frame, node->name, macro_value(r, node)); break;
    case AG_TN_CALL_BLOCK: run_call_block(r, node); break;
    case AG_TN_FILTER_BLOCK: return run_filter_block(r, node);
    case AG_TN_WITH: return run_with(r, node);
    case AG_TN_GENERATION: run_generation(r, node); break;
    case AG_TN_BREAK: return AG_FLOW_BREAK;
    case AG_TN_CONTINUE: return AG_FLOW_CONTINUE;
    default: AG_ASSERT(!"a statement");
    }
    return AG_FLOW_NEXT;
}

ag_tflow ag_trun_body(ag_trun *r, const ag_tnodes *body)
{
    ag_tflow flow = AG_FLOW_NEXT;
    ag_trun_enter(r);
    for (uint32_t i = 0; i < body->n && flow == AG_FLOW_NEXT; i++) {
        r->line = body->at[i]->line;
        ag_trun_work(r, 1);
        flow = run_statement(r, body->at[i]);
    }
    ag_trun_exit(r);
    return flow;
}
