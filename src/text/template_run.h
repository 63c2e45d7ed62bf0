/* Running a template's tree: frames, calls, and the tables of filters, tests, methods and globals. */
#ifndef AG_TEMPLATE_RUN_H
#define AG_TEMPLATE_RUN_H

#include "text/template_syntax.h"
#include "text/template_value.h"

/* A scope. Look-ups go up the parents; assignments stay in the frame where they are made. */
struct ag_tframe {
    ag_tframe *parent;
    uint32_t n, room;
    uint32_t *names; /* NULL in the root, whose values stand at their names' numbers */
    ag_tval *values;
};
ag_tframe *ag_tframe_new(ag_trun *r, ag_tframe *parent);
void ag_tframe_set(ag_trun *r, ag_tframe *f, uint32_t name, ag_tval v);
bool ag_tframe_get(const ag_tframe *f, uint32_t name, ag_tval *v);

struct ag_tmacro {
    const ag_tnode *node; /* a macro, a call block or a generation block */
    ag_tframe *frame;     /* where it was defined */
};

struct ag_tloop {
    const ag_tnode *node;
    ag_tframe *frame; /* around the loop */
    ag_tlist items;
    size_t index0, depth0;
    ag_tval changed; /* the last arguments of changed(), a tuple; AG_T_ABSENT before */
};

ag_tval ag_trun_eval(ag_trun *r, const ag_tnode *e);
ag_tval ag_trun_eval_call(ag_trun *r, const ag_tnode *call,
                          const ag_tval *caller); /* caller: one keyword argument more, or NULL */
ag_tval ag_trun_call(ag_trun *r, ag_tval callee, const ag_targs *args);
typedef enum { AG_FLOW_NEXT, AG_FLOW_BREAK, AG_FLOW_CONTINUE } ag_tflow;
ag_tflow ag_trun_body(ag_trun *r, const ag_tnodes *body);
void ag_trun_assign(ag_trun *r, const ag_tnode *target, ag_tval v);
void ag_trun_loop(ag_trun *r, const ag_tnode *node, ag_tframe *frame, ag_tval items,
                  size_t depth0); /* a for statement's rounds */
ag_tval ag_tmacro_call(ag_trun *r, const ag_tmacro *m, const ag_targs *args);
void ag_trun_for_globals(ag_trun *r, void (*define)(ag_trun *r, const char *name, ag_tval v));

/* ---- operators (template_operators.c)
 * ------------------------------------------------------------------------------------------------- */
ag_tval ag_tval_binary(ag_trun *r, ag_ttoken_kind op, ag_tval a, ag_tval b);
ag_tval ag_tval_negate(ag_trun *r, ag_tval v);
bool ag_tval_holds(ag_trun *r, ag_ttoken_kind op, ag_tval a, ag_tval b); /* comparisons and in */
ag_tval ag_tval_slice(ag_trun *r, ag_tval v, ag_tval start, ag_tval stop, ag_tval step);

/* ---- members (template_members.c)
 * ------------------------------------------------------------------------------------------------------ */
ag_tval ag_tval_attr(ag_trun *r, ag_tval v, ag_ttext name);      /* v.name */
ag_tval ag_tval_item(ag_trun *r, ag_tval v, ag_tval key);        /* v[key] */
ag_tval ag_tval_only_attr(ag_trun *r, ag_tval v, ag_ttext name); /* the filter attr: never an item */
/* The attribute= of filters: "a.b.0" or an integer. `missing`, unless absent, stands in for what is undefined. */
ag_tval ag_tval_path(ag_trun *r, ag_tval v, ag_tval path, ag_tval missing);
const ag_tmethod *ag_tmethod_find(ag_trun *r, ag_tval self, ag_ttext name,
                                  bool *changes); /* NULL: Python has none of that name */

/* ---- filters and tests
 * --------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    ag_tval (*call)(ag_trun *r, ag_tval on, const ag_targs *args);
} ag_tfilter;
const ag_tfilter *ag_tfilter_find(ag_ttext name);
typedef struct {
    const char *name;
    bool (*call)(ag_trun *r, ag_tval on, const ag_targs *args);
} ag_ttest;
const ag_ttest *ag_ttest_find(ag_ttext name);

/* Puts arguments in the order of `names`; AG_T_ABSENT where one is not given. TypeError for too many, unknown or doubled ones,
 * and for less than `need`. */
void ag_targs_bind(ag_trun *r, const ag_targs *args, const char *function, const char *const *names, size_t n_names,
                   size_t need, ag_tval *out);
#define AG_ARGS(r, args, function, need, out, ...)                                                                             \
    static const char *const names_[] = {__VA_ARGS__};                                                                         \
    ag_tval out[sizeof names_ / sizeof *names_];                                                                               \
    ag_targs_bind(r, args, function, names_, sizeof names_ / sizeof *names_, need, out)
static inline bool ag_tval_given(ag_tval v) { return v.kind != AG_T_ABSENT; }
/* An argument that Python wants as an integer, `missing` where it is absent. */
int64_t ag_targs_int(ag_trun *r, ag_tval v, int64_t missing);
ag_ttext ag_targs_text(ag_trun *r, ag_tval v, const char *function); /* TypeError unless a str */

/* text operations that filters and methods share (template_text.c) */
ag_tval ag_text_replace(ag_trun *r, ag_ttext t, ag_ttext from, ag_ttext to, int64_t count); /* count < 0: all */
ag_tval ag_text_upper(ag_trun *r, ag_ttext t);
ag_tval ag_text_lower(ag_trun *r, ag_ttext t);
ag_tval ag_text_title(ag_trun *r, ag_ttext t);
ag_tval ag_text_capitalize(ag_trun *r, ag_ttext t);
ag_tval ag_text_casefold(ag_trun *r, ag_ttext t);
ag_tval ag_text_swapcase(ag_trun *r, ag_ttext t);
bool ag_text_has_case(ag_trun *r, ag_ttext t, bool upper); /* str.isupper, str.islower */
ag_ttext ag_text_strip_set(ag_ttext t, ag_ttext set, bool left, bool right);
ag_tval ag_text_percent(ag_trun *r, ag_tval format, ag_tval values);       /* printf formatting */
ag_tval ag_text_format(ag_trun *r, ag_ttext format, const ag_targs *args); /* str.format */
void ag_trun_put_fixed(ag_trun *r, double f, int digits);                  /* "%.*f" */
ag_tval ag_text_strftime(ag_trun *r, ag_ttext format);
ag_tval ag_text_center(ag_trun *r, ag_ttext t, int64_t width, uint32_t fill, int where); /* where: -1 left, 0 centre, 1 right */

#endif
