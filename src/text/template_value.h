/* Values of a chat template, with the semantics that Python gives them: what template_*.c share, and nobody else includes.
 *
 * A value is 32 bytes and is passed by copy. Whatever it points to lives in an arena, the tree's or the run's, and does not
 * change once it is made (namespaces, loops and half-read iterators excepted), so parts are shared freely: a slice of a string
 * or a list is a pointer into it.
 *
 * A run that fails leaves by one jump (ag_trun_fail): a template is a stranger's program, it may fail at any depth, and
 * everything that it made goes away with the run's arena. So nothing below owns memory elsewhere while a run lasts. */
#ifndef AG_TEMPLATE_VALUE_H
#define AG_TEMPLATE_VALUE_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef __int128 ag_tint; /* Python's integers have no bound; those over 127 bits are refused, never wrapped */

typedef enum {
    AG_T_UNDEFINED,
    AG_T_NONE,
    AG_T_BOOL,
    AG_T_INT,
    AG_T_FLOAT,
    AG_T_STR,
    AG_T_LIST,
    AG_T_TUPLE,
    AG_T_DICT,
    AG_T_KEYS, /* views of a dict */
    AG_T_VALUES,
    AG_T_ITEMS,
    AG_T_RANGE,
    AG_T_LAZY, /* a generator: what map, select and their like give */
    AG_T_NAMESPACE,
    AG_T_MACRO,
    AG_T_FUNCTION, /* a global */
    AG_T_METHOD,   /* bound to its object */
    AG_T_LOOP,
    AG_T_CYCLER,
    AG_T_JOINER,
    AG_T_ABSENT, /* an argument that was not given; never seen by a template */
} ag_tkind;

enum {
    AG_TF_SAFE = 1,   /* a text: marked as HTML (the safe filter) */
    AG_TF_UNSAFE = 2, /* undefined because the sandbox refused it */
    AG_TF_MEMBER = 4, /* undefined as a member of something of kind `of` */
    AG_TF_GROUP = 8,  /* a tuple of groupby: has .grouper and .list */
};

typedef struct ag_tlist ag_tlist;
typedef struct ag_tdict ag_tdict;
typedef struct ag_tlazy ag_tlazy;
typedef struct ag_tmacro ag_tmacro;
typedef struct ag_tmethod ag_tmethod;
typedef struct ag_tloop ag_tloop;
typedef struct ag_tcycle ag_tcycle;
typedef struct ag_tfunction ag_tfunction;
typedef struct ag_trun ag_trun;

typedef struct {
    const char *p;
    size_t n; /* bytes of valid UTF-8 */
} ag_ttext;

typedef struct {
    uint8_t kind, flags, of;
    union {
        bool b;
        ag_tint i;
        double f;
        ag_ttext s; /* AG_T_STR; AG_T_UNDEFINED: the missing name */
        struct {
            const ag_tlist *list;
            size_t start; /* unused */
        } l;
        const ag_tlist *list;
        ag_tdict *dict; /* dicts, views, namespaces */
        const struct ag_trange *range;
        ag_tlazy *lazy;
        const ag_tmacro *macro;
        const ag_tfunction *function;
        const ag_tmethod *method;
        ag_tloop *loop;
        ag_tcycle *cycle;
    };
} ag_tval;

struct ag_tlist {
    const ag_tval *at;
    size_t n;
};

typedef struct ag_trange {
    int64_t start, stop, step;
    size_t n;
} ag_trange;

typedef struct {
    ag_tval key, value;
    uint64_t hash;
} ag_tentry;

struct ag_tdict { /* in order of insertion */
    ag_tentry *at;
    size_t n, room;
    uint32_t *slots; /* open addressing over entry numbers + 1; NULL while the dict is small */
    size_t n_slots;
};

typedef struct {
    ag_ttext name;
    ag_tval value;
} ag_tkeyword;

typedef struct {
    const ag_tval *at;
    size_t n;
    const ag_tkeyword *keyword;
    size_t n_keyword;
} ag_targs;

struct ag_tlazy { /* made when it is first read; read once */
    ag_tlist (*make)(ag_trun *r, ag_tval source, const ag_targs *args);
    ag_tval source;
    ag_targs args;
    bool made;
    ag_tlist items;
    size_t next;
};

struct ag_tmethod {
    ag_tval self;
    const char *name;
    ag_tval (*call)(ag_trun *r, ag_tval self, const ag_targs *args); /* NULL: Python has it, we do not */
};

struct ag_tfunction {
    const char *name;
    ag_tval (*call)(ag_trun *r, const ag_targs *args);
};

struct ag_tcycle { /* cycler and joiner */
    ag_tlist items;
    size_t at;
};

/* ---- constants
 * ---------------------------------------------------------------------------------------------------------------- */
static inline ag_tval ag_tval_none(void) { return (ag_tval){.kind = AG_T_NONE}; }
static inline ag_tval ag_tval_bool(bool b) { return (ag_tval){.kind = AG_T_BOOL, .b = b}; }
static inline ag_tval ag_tval_int(ag_tint i) { return (ag_tval){.kind = AG_T_INT, .i = i}; }
static inline ag_tval ag_tval_float(double f) { return (ag_tval){.kind = AG_T_FLOAT, .f = f}; }
static inline ag_tval ag_tval_text(const char *p, size_t n) { return (ag_tval){.kind = AG_T_STR, .s = {p, n}}; }
ag_tval ag_tval_word(const char *text); /* borrows */
static inline ag_tval ag_tval_undefined(const char *name, size_t n)
{
    return (ag_tval){.kind = AG_T_UNDEFINED, .s = {name, n}};
}
static inline ag_tval ag_tval_dict(ag_tdict *d) { return (ag_tval){.kind = AG_T_DICT, .dict = d}; }
ag_tval ag_tval_no_member(ag_tval of, ag_ttext name); /* undefined, and says of what */

bool ag_ttext_is(ag_ttext t, const char *word);
int ag_ttext_compare(ag_ttext a, ag_ttext b);

/* ---- a run: bounds, memory, errors
 * ---------------------------------------------------------------------------------------------- */
typedef struct ag_tframe ag_tframe;

struct ag_trun {
    jmp_buf leave;
    ag_arena arena;
    ag_str out; /* what is printed; captures and texts being made stand behind what was printed before */
    size_t steps, depth;
    uint32_t line;    /* of the statement or call that runs */
    const char *name; /* of the template, for sentences */
    ag_err *err;
    ag_status status;
    const struct ag_ttree *tree;
    ag_tframe *frame;
    const char *date;
    size_t outer_capture; /* where the outermost capture starts; SIZE_MAX outside captures */
    struct ag_tmark {
        size_t start, end;
    } * marks; /* in the arena */
    size_t n_marks, room_marks;
};

/* "NAME: line N: CLASS: sentence", AG_E_DATA; class is the name Python has for the error. Does not return. */
_Noreturn void ag_trun_fail(ag_trun *r, const char *class, const char *format, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void ag_trun_raise(ag_trun *r, ag_ttext message);                    /* raise_exception: its own words alone */
_Noreturn void ag_trun_refuse(ag_trun *r, const char *what, const char *name); /* AG_E_UNSUPPORTED: what we do not have */
void *ag_trun_alloc(ag_trun *r, size_t n, size_t size);                        /* zeroed; meets the bound on memory */
void ag_trun_work(ag_trun *r, size_t steps);                                   /* meets the bound on steps */
void ag_trun_enter(ag_trun *r);                                                /* meets the bound on depth */
static inline void ag_trun_exit(ag_trun *r) { r->depth--; }

/* Texts are made at the end of r->out: at = r->out.n; put, put, …; then ag_trun_cut(r, at) takes them off again as a value. */
void ag_trun_put(ag_trun *r, const char *p, size_t n);
static inline void ag_trun_put_text(ag_trun *r, ag_ttext t) { ag_trun_put(r, t.p, t.n); }
void ag_trun_put_word(ag_trun *r, const char *text);
void ag_trun_put_char(ag_trun *r, uint32_t code_point);
ag_tval ag_trun_cut(ag_trun *r, size_t at);

/* ---- containers
 * ---------------------------------------------------------------------------------------------------------------- */
typedef struct { /* a list that grows */
    ag_tval *at;
    size_t n, room;
} ag_tgrow;
void ag_tgrow_add(ag_trun *r, ag_tgrow *g, ag_tval v);
ag_tval ag_tval_list(ag_trun *r, ag_tkind kind, const ag_tval *at, size_t n); /* keeps `at` */
ag_tval ag_tval_pair(ag_trun *r, ag_tval a, ag_tval b);                       /* a tuple of two */

ag_tdict *ag_tdict_new(ag_trun *r);
void ag_tdict_set(ag_trun *r, ag_tdict *d, ag_tval key, ag_tval value); /* TypeError for a key that has no hash */
ag_tval *ag_tdict_find(ag_trun *r, const ag_tdict *d, ag_tval key);     /* NULL: not there, or no hash */
ag_tval *ag_tdict_find_text(const ag_tdict *d, ag_ttext key);

/* ---- what Python does with any value
 * ----------------------------------------------------------------------------------------------- */
const char *ag_tval_type(ag_tval v); /* "str", "NoneType", … */
bool ag_tval_is_text(ag_tval v, const char *word);
bool ag_tval_truth(ag_tval v);
bool ag_tval_equal(ag_trun *r, ag_tval a, ag_tval b);
bool ag_tval_same(ag_tval a, ag_tval b);                                     /* is */
int ag_tval_compare(ag_trun *r, ag_tval a, ag_tval b, const char *operator); /* <0, 0, >0; 2: neither (nan). TypeError */
bool ag_tval_contains(ag_trun *r, ag_tval container, ag_tval item);          /* in */
bool ag_tval_is_number(ag_tval v);                                           /* int, float or bool */
static inline bool ag_tval_is_integral(ag_tval v) { return v.kind == AG_T_INT || v.kind == AG_T_BOOL; }
static inline ag_tint ag_tval_integer(ag_tval v) { return v.kind == AG_T_BOOL ? (ag_tint)v.b : v.i; }
double ag_tval_double(ag_tval v);
bool ag_tval_has_length(ag_tval v, size_t *n);
size_t ag_tval_length(ag_trun *r, ag_tval v);
ag_tlist ag_tval_items(ag_trun *r, ag_tval v); /* iterates; reads a generator to its end. TypeError */
bool ag_tval_can_iterate(ag_tval v);
_Noreturn void ag_tval_undefined_error(ag_trun *r, ag_tval v);
static inline void ag_tval_need_defined(ag_trun *r, ag_tval v)
{
    if (v.kind == AG_T_UNDEFINED) ag_tval_undefined_error(r, v);
}

/* ---- texts (template_print.c)
 * -------------------------------------------------------------------------------------------------------- */
void ag_tval_print(ag_trun *r, ag_tval v); /* str(v) to the end of r->out */
void ag_tval_repr(ag_trun *r, ag_tval v);
ag_tval ag_tval_to_text(ag_trun *r, ag_tval v); /* str(v); keeps a mark */
ag_tval ag_filter_tojson(ag_trun *r, ag_tval v, const ag_targs *args);
void ag_trun_put_int(ag_trun *r, ag_tint i, unsigned base);
void ag_trun_put_escaped(ag_trun *r, ag_ttext t); /* & < > ' " for HTML */

/* ---- code points
 * ---------------------------------------------------------------------------------------------------------------- */
size_t ag_ttext_count(ag_trun *r, ag_ttext t);
size_t ag_ttext_offset(ag_ttext t, size_t code_points);     /* the byte at which that code point begins */
bool ag_code_point_is_space(uint32_t c);                    /* Python's str.isspace */
ag_ttext ag_ttext_strip(ag_ttext t, bool left, bool right); /* white space */

#endif
