/* Python's operators on values. */
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <math.h>
#include <string.h>

static const char *spelled(ag_ttoken_kind op)
{
    switch (op) {
    case AG_TT_ADD: return "+";
    case AG_TT_SUB: return "-";
    case AG_TT_MUL: return "*";
    case AG_TT_DIV: return "/";
    case AG_TT_FLOORDIV: return "//";
    case AG_TT_MOD: return "%";
    case AG_TT_POW: return "** or pow()";
    case AG_TT_LT: return "<";
    case AG_TT_LE: return "<=";
    case AG_TT_GT: return ">";
    default: return ">=";
    }
}

static _Noreturn void overflow(ag_trun *r)
{
    ag_trun_fail(r, "OverflowError", "integers of more than 127 bits are not supported");
}

static ag_tint floor_divide(ag_tint a, ag_tint b)
{
    ag_tint q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static ag_tval int_power(ag_trun *r, ag_tint a, ag_tint b)
{
    if (b < 0) {
        if (a == 0) ag_trun_fail(r, "ZeroDivisionError", "zero to a negative power");
        return ag_tval_float(pow((double)a, (double)b)); /* never above 1 */
    }
    ag_tint x = 1;
    if (a == 0 || a == 1) return ag_tval_int(b == 0 ? 1 : a);
    if (a == -1) return ag_tval_int(b % 2 ? -1 : 1);
    for (; b > 0; b--) /* |a| >= 2: at most 127 rounds */
        if (__builtin_mul_overflow(x, a, &x)) overflow(r);
    return ag_tval_int(x);
}

static ag_tval of_ints(ag_trun *r, ag_ttoken_kind op, ag_tint a, ag_tint b)
{
    ag_tint x;
    switch (op) {
    case AG_TT_ADD:
        if (__builtin_add_overflow(a, b, &x)) overflow(r);
        return ag_tval_int(x);
    case AG_TT_SUB:
        if (__builtin_sub_overflow(a, b, &x)) overflow(r);
        return ag_tval_int(x);
    case AG_TT_MUL:
        if (__builtin_mul_overflow(a, b, &x)) overflow(r);
        return ag_tval_int(x);
    case AG_TT_POW: return int_power(r, a, b);
    default: break;
    }
    if (b == 0) ag_trun_fail(r, "ZeroDivisionError", op == AG_TT_DIV ? "division by zero" : "integer modulo by zero");
    if (op == AG_TT_DIV) return ag_tval_float((double)a / (double)b);
    if (b == -1) { /* the smallest integer has no negative */
        if (__builtin_sub_overflow((ag_tint)0, a, &x)) overflow(r);
        return ag_tval_int(op == AG_TT_MOD ? 0 : x);
    }
    ag_tint q = floor_divide(a, b);
    return ag_tval_int(op == AG_TT_FLOORDIV ? q : a - q * b);
}

static ag_tval of_floats(ag_trun *r, ag_ttoken_kind op, double a, double b)
{
    switch (op) {
    case AG_TT_ADD: return ag_tval_float(a + b);
    case AG_TT_SUB: return ag_tval_float(a - b);
    case AG_TT_MUL: return ag_tval_float(a * b);
    case AG_TT_POW:
        if (a == 0 && b < 0) ag_trun_fail(r, "ZeroDivisionError", "zero to a negative power");
        if (a < 0 && b != floor(b)) ag_trun_refuse(r, "a power that is", "complex");
        if (isfinite(a) && isfinite(b) && isinf(pow(a, b)))
            ag_trun_fail(r, "OverflowError", "the power is too large for a float");
        return ag_tval_float(pow(a, b));
    default: break;
    }
    if (b == 0) ag_trun_fail(r, "ZeroDivisionError", "float division by zero");
    if (op == AG_TT_DIV) return ag_tval_float(a / b);
    double rest = fmod(a, b); /* as CPython's float_divmod */
    if (rest != 0 && (b < 0) != (rest < 0))
        rest += b;
    else if (rest == 0)
        rest = copysign(0, b);
    if (op == AG_TT_MOD) return ag_tval_float(rest);
    double quotient = (a - rest) / b, whole = floor(quotient);
    if (quotient - whole > 0.5) whole += 1;
    return ag_tval_float(quotient == 0 ? copysign(0, a / b) : whole);
}

/* Text + text. A marked side escapes the other. */
static ag_tval add_texts(ag_trun *r, ag_tval a, ag_tval b)
{
    bool mark = (a.flags | b.flags) & AG_TF_SAFE;
    if (!mark && !a.s.n) return b;
    if (!mark && !b.s.n) return a;
    size_t at = r->out.n;
    if (mark && !(a.flags & AG_TF_SAFE))
        ag_trun_put_escaped(r, a.s);
    else
        ag_trun_put_text(r, a.s);
    if (mark && !(b.flags & AG_TF_SAFE))
        ag_trun_put_escaped(r, b.s);
    else
        ag_trun_put_text(r, b.s);
    ag_tval v = ag_trun_cut(r, at);
    v.flags = mark ? AG_TF_SAFE : 0;
    return v;
}

static ag_tval add_lists(ag_trun *r, ag_tval a, ag_tval b)
{
    size_t n = a.list->n + b.list->n;
    ag_tval *at = ag_trun_alloc(r, n, sizeof *at);
    if (a.list->n) memcpy(at, a.list->at, a.list->n * sizeof *at);
    if (b.list->n) memcpy(at + a.list->n, b.list->at, b.list->n * sizeof *at);
    return ag_tval_list(r, a.kind, at, n);
}

static ag_tval repeat(ag_trun *r, ag_tval v, ag_tint times)
{
    if (times < 0) times = 0;
    if (times > INT32_MAX) times = INT32_MAX; /* meets the bounds below, unless the value is empty */
    if (v.kind == AG_T_STR) {
        size_t at = r->out.n;
        for (ag_tint i = 0; i < times && v.s.n; i++) ag_trun_put_text(r, v.s);
        ag_tval text = ag_trun_cut(r, at);
        text.flags = v.flags;
        return text;
    }
    size_t n = v.list->n, total;
    if (__builtin_mul_overflow(n, (size_t)times, &total)) overflow(r);
    ag_tval *at = ag_trun_alloc(r, total, sizeof *at);
    for (size_t i = 0; i < total; i++) at[i] = v.list->at[i % n];
    return ag_tval_list(r, v.kind, at, total);
}

static bool is_sequence(ag_tval v) { return v.kind == AG_T_STR || v.kind == AG_T_LIST || v.kind == AG_T_TUPLE; }

ag_tval ag_tval_binary(ag_trun *r, ag_ttoken_kind op, ag_tval a, ag_tval b)
{
    ag_tval_need_defined(r, a);
    if (op == AG_TT_MOD && a.kind == AG_T_STR) return ag_text_percent(r, a, b);
    ag_tval_need_defined(r, b);
    if (ag_tval_is_number(a) && ag_tval_is_number(b)) {
        if (a.kind == AG_T_FLOAT || b.kind == AG_T_FLOAT) return of_floats(r, op, ag_tval_double(a), ag_tval_double(b));
        return of_ints(r, op, ag_tval_integer(a), ag_tval_integer(b));
    }
    if (op == AG_TT_ADD && is_sequence(a)) {
        if (a.kind == b.kind) return a.kind == AG_T_STR ? add_texts(r, a, b) : add_lists(r, a, b);
        ag_trun_fail(r, "TypeError", "can only concatenate %s (not \"%s\") to %s", ag_tval_type(a), ag_tval_type(b),
                     ag_tval_type(a));
    }
    if (op == AG_TT_MUL && is_sequence(a) && ag_tval_is_integral(b)) return repeat(r, a, ag_tval_integer(b));
    if (op == AG_TT_MUL && is_sequence(b) && ag_tval_is_integral(a)) return repeat(r, b, ag_tval_integer(a));
    if (op == AG_TT_MUL && (is_sequence(a) || is_sequence(b)))
        ag_trun_fail(r, "TypeError", "can't multiply sequence by non-int of type '%s'", ag_tval_type(is_sequence(a) ? b : a));
    ag_trun_fail(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'", spelled(op), ag_tval_type(a),
                 ag_tval_type(b));
}

ag_tval ag_tval_negate(ag_trun *r, ag_tval v)
{
    ag_tval_need_defined(r, v);
    if (v.kind == AG_T_FLOAT) return ag_tval_float(-v.f);
    if (!ag_tval_is_integral(v)) ag_trun_fail(r, "TypeError", "bad operand type for unary -: '%s'", ag_tval_type(v));
    return of_ints(r, AG_TT_SUB, 0, ag_tval_integer(v));
}

bool ag_tval_holds(ag_trun *r, ag_ttoken_kind op, ag_tval a, ag_tval b)
{
    switch (op) {
    case AG_TT_EQ: return ag_tval_equal(r, a, b);
    case AG_TT_NE: return !ag_tval_equal(r, a, b);
    case AG_TT_IN: return ag_tval_contains(r, b, a);
    case AG_TT_NOT_IN: return !ag_tval_contains(r, b, a);
    default: break;
    }
    int order = ag_tval_compare(r, a, b, spelled(op));
    if (order == 2) return false;
    return op == AG_TT_LT ? order < 0 : op == AG_TT_LE ? order <= 0 : op == AG_TT_GT ? order > 0 : order >= 0;
}

/* ---- slices
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static ag_tint index_of(ag_trun *r, ag_tval v)
{
    if (!ag_tval_is_integral(v))
        ag_trun_fail(r, "TypeError", "slice indices must be integers or None or have an __index__ method");
    return ag_tval_integer(v);
}

/* One end of a slice, clipped as Python clips it. */
static ag_tint clip(ag_trun *r, ag_tval v, ag_tint n, bool backward, ag_tint missing)
{
    if (v.kind == AG_T_NONE || v.kind == AG_T_ABSENT) return missing;
    ag_tint i = index_of(r, v);
    if (i < 0) i += n;
    if (i < 0) return backward ? -1 : 0;
    return i >= n ? (backward ? n - 1 : n) : i;
}

static ag_tval text_slice(ag_trun *r, ag_ttext t, ag_tint start, ag_tint step, size_t n)
{
    if (step == 1) {
        size_t from = ag_ttext_offset(t, (size_t)start);
        ag_ttext rest = {t.p + from, t.n - from};
        ag_trun_work(r, t.n / 64);
        return ag_tval_text(rest.p, ag_ttext_offset(rest, n));
    }
    ag_tlist all = ag_tval_items(r, ag_tval_text(t.p, t.n));
    size_t at = r->out.n;
    for (size_t i = 0; i < n; i++, start += step) ag_trun_put_text(r, all.at[start].s);
    return ag_trun_cut(r, at);
}

ag_tval ag_tval_slice(ag_trun *r, ag_tval v, ag_tval start, ag_tval stop, ag_tval step)
{
    ag_tval_need_defined(r, v);
    if (!is_sequence(v) && v.kind != AG_T_RANGE) ag_trun_fail(r, "TypeError", "'%s' object cannot be sliced", ag_tval_type(v));
    ag_tint by = step.kind == AG_T_NONE || step.kind == AG_T_ABSENT ? 1 : index_of(r, step),
            total = (ag_tint)ag_tval_length(r, v);
    if (by > total) by = total + 1; /* the same slice */
    if (by < -total) by = -total - 1;
    if (by == 0) ag_trun_fail(r, "ValueError", "slice step cannot be zero");
    ag_tint from = clip(r, start, total, by < 0, by < 0 ? total - 1 : 0),
            to = clip(r, stop, total, by < 0, by < 0 ? -1 : total);
    ag_tint n = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0) : to < from ? (from - to - 1) / -by + 1 : 0;
    if (v.kind == AG_T_STR) {
        ag_tval text = text_slice(r, v.s, n ? from : 0, by, (size_t)n);
        text.flags = v.flags;
        return text;
    }
    if (v.kind == AG_T_RANGE) {
        ag_trange *range = ag_trun_alloc(r, 1, sizeof *range);
        *range = (ag_trange){(int64_t)(v.range->start + from * v.range->step), (int64_t)(v.range->start + to * v.range->step),
                             (int64_t)(v.range->step * by), (size_t)n};
        return (ag_tval){.kind = AG_T_RANGE, .range = range};
    }
    if (by == 1) return ag_tval_list(r, v.kind, n ? v.list->at + from : NULL, (size_t)n);
    ag_tval *at = ag_trun_alloc(r, (size_t)n, sizeof *at);
    for (ag_tint i = 0; i < n; i++) at[i] = v.list->at[from + i * by];
    return ag_tval_list(r, v.kind, at, (size_t)n);
}
