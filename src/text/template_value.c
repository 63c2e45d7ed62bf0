#define _GNU_SOURCE
#include "text/template_value.h"
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bounds, memory, errors
 * -------------------------------------------------------------------------------------------------------------- */
/* Far above what a conversation of a million tokens needs, far below what hurts. */
enum { MAX_STEPS = 20 * 1000 * 1000, MAX_DEPTH = 2400, BYTES_PER_STEP = 64 };
static const size_t max_memory = (size_t)256 << 20, max_output = (size_t)64 << 20;

static _Noreturn void leave(ag_trun *r, ag_status status)
{
    r->status = status;
    longjmp(r->leave, 1);
}

_Noreturn void ag_trun_fail(ag_trun *r, const char *class, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    leave(r, ag_fail(r->err, AG_E_DATA, "%s: line %u: %s: %s", r->name, r->line, class, sentence));
}

_Noreturn void ag_trun_raise(ag_trun *r, ag_ttext message)
{
    if (!message.n) ag_trun_fail(r, "TemplateError", "the template raised an exception without a message");
    char sentence[1001];
    size_t n = message.n < sizeof sentence ? message.n : sizeof sentence - 1;
    for (size_t i = 0; i < n; i++) sentence[i] = message.p[i] ? message.p[i] : ' '; /* which would end it */
    leave(r, ag_fail(r->err, AG_E_DATA, "%.*s", (int)n, sentence));
}

_Noreturn void ag_trun_refuse(ag_trun *r, const char *what, const char *name)
{
    leave(r, ag_fail(r->err, AG_E_UNSUPPORTED, "%s: line %u: %s '%s' is not supported", r->name, r->line, what, name));
}

void ag_trun_work(ag_trun *r, size_t steps)
{
    r->steps += steps;
    if (r->steps > MAX_STEPS) ag_trun_fail(r, "RuntimeError", "the template runs for more than %d steps", MAX_STEPS);
}

void ag_trun_enter(ag_trun *r)
{
    ag_trun_work(r, 1);
    if (++r->depth > MAX_DEPTH)
        ag_trun_fail(r, "RecursionError", "the template, or a value that it makes, nests deeper than %d levels", MAX_DEPTH);
}

void *ag_trun_alloc(ag_trun *r, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > max_memory || r->arena.total_bytes > max_memory - bytes)
        ag_trun_fail(r, "MemoryError", "the template's values take more than %zu MiB", max_memory >> 20);
    ag_trun_work(r, 1 + bytes / BYTES_PER_STEP);
    return ag_arena_alloc(&r->arena, bytes);
}

/* ---- making texts
 * ---------------------------------------------------------------------------------------------------------------------------
 */
void ag_trun_put(ag_trun *r, const char *p, size_t n)
{
    if (n > max_output || r->out.n > max_output - n)
        ag_trun_fail(r, "MemoryError", "the template writes more than %zu MiB", max_output >> 20);
    ag_trun_work(r, n / BYTES_PER_STEP);
    ag_str_add_n(&r->out, p, n);
}

void ag_trun_put_word(ag_trun *r, const char *text) { ag_trun_put(r, text, strlen(text)); }

void ag_trun_put_char(ag_trun *r, uint32_t code_point)
{
    unsigned char bytes[4];
    ag_trun_put(r, (const char *)bytes, ag_utf8_put(bytes, code_point));
}

ag_tval ag_trun_cut(ag_trun *r, size_t at)
{
    size_t n = r->out.n - at;
    char *p = ag_trun_alloc(r, n + 1, 1);
    if (n) memcpy(p, r->out.text + at, n);
    r->out.n = at;
    return ag_tval_text(p, n);
}

/* ---- texts and code points
 * --------------------------------------------------------------------------------------------------------------------- */
ag_tval ag_tval_word(const char *text) { return ag_tval_text(text, strlen(text)); }

ag_tval ag_tval_no_member(ag_tval of, ag_ttext name)
{
    ag_tval v = ag_tval_undefined(name.p, name.n);
    v.flags = AG_TF_MEMBER;
    v.of = of.kind;
    return v;
}

bool ag_ttext_is(ag_ttext t, const char *word) { return strlen(word) == t.n && memcmp(t.p, word, t.n) == 0; }

int ag_ttext_compare(ag_ttext a, ag_ttext b) /* UTF-8 sorts as its code points do */
{
    int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

size_t ag_ttext_count(ag_trun *r, ag_ttext t)
{
    ag_trun_work(r, t.n / BYTES_PER_STEP);
    size_t n = 0;
    for (size_t i = 0; i < t.n; i++) n += (t.p[i] & 0xc0) != 0x80;
    return n;
}

size_t ag_ttext_offset(ag_ttext t, size_t code_points)
{
    size_t at = 0;
    for (; at < t.n; at++)
        if ((t.p[at] & 0xc0) != 0x80 && code_points-- == 0) break;
    return at;
}

bool ag_code_point_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

ag_ttext ag_ttext_strip(ag_ttext t, bool left, bool right)
{
    size_t bytes;
    while (left && t.n && ag_code_point_is_space(ag_utf8_peek((const unsigned char *)t.p, 0, &bytes)))
        t.p += bytes, t.n -= bytes;
    while (right && t.n && ag_code_point_is_space(ag_utf8_before((const unsigned char *)t.p, t.n, &bytes))) t.n -= bytes;
    return t;
}

/* ---- containers
 * --------------------------------------------------------------------------------------------------------------------------------
 */
void ag_tgrow_add(ag_trun *r, ag_tgrow *g, ag_tval v)
{
    if (g->n == g->room) {
        size_t room = g->room ? 2 * g->room : 8;
        ag_tval *at = ag_trun_alloc(r, room, sizeof *at);
        if (g->n) memcpy(at, g->at, g->n * sizeof *at);
        g->at = at;
        g->room = room;
    }
    g->at[g->n++] = v;
}

ag_tval ag_tval_list(ag_trun *r, ag_tkind kind, const ag_tval *at, size_t n)
{
    ag_tlist *list = ag_trun_alloc(r, 1, sizeof *list);
    *list = (ag_tlist){at, n};
    return (ag_tval){.kind = (uint8_t)kind, .list = list};
}

ag_tval ag_tval_pair(ag_trun *r, ag_tval a, ag_tval b)
{
    ag_tval *at = ag_trun_alloc(r, 2, sizeof *at);
    at[0] = a;
    at[1] = b;
    return ag_tval_list(r, AG_T_TUPLE, at, 2);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_text(ag_ttext t)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < t.n; i++) h = (h ^ (unsigned char)t.p[i]) * 1099511628211u;
    return h;
}

/* Equal keys have equal hashes: 1, 1.0 and True are one key. False: lists and dicts are no keys. */
static bool hash_of(ag_trun *r, ag_tval v, uint64_t *h)
{
    switch (v.kind) {
    case AG_T_STR: *h = hash_text(v.s); return true;
    case AG_T_NONE: *h = 0x4e; return true;
    case AG_T_BOOL:
    case AG_T_INT:
    case AG_T_FLOAT: {
        double d = ag_tval_double(v);
        if (d == 0) d = 0; /* -0.0 too */
        memcpy(h, &d, sizeof d);
        *h = mix(7, *h);
        return true;
    }
    case AG_T_TUPLE:
        ag_trun_enter(r);
        *h = 0x70;
        for (size_t i = 0; i < v.list->n; i++) {
            uint64_t one;
            if (!hash_of(r, v.list->at[i], &one)) return ag_trun_exit(r), false;
            *h = mix(*h, one);
        }
        ag_trun_exit(r);
        return true;
    case AG_T_LIST:
    case AG_T_DICT:
    case AG_T_KEYS:
    case AG_T_VALUES:
    case AG_T_ITEMS: return false;
    case AG_T_UNDEFINED: *h = 0x55; return true;
    default: *h = mix(v.kind, (uint64_t)(uintptr_t)v.list); return true;
    }
}

ag_tdict *ag_tdict_new(ag_trun *r) { return ag_trun_alloc(r, 1, sizeof(ag_tdict)); }

enum { SMALL_DICT = 8 };

/* The entry with that key, or NULL and, in a large dict, the free slot. r is NULL for text keys, which compare without it. */
static ag_tentry *find(ag_trun *r, const ag_tdict *d, ag_tval key, uint64_t hash, size_t *slot)
{
    if (!d->slots) {
        for (size_t i = 0; i < d->n; i++)
            if (d->at[i].hash == hash && ag_tval_equal(r, d->at[i].key, key)) return &d->at[i];
        return NULL;
    }
    size_t at = mix(1, hash) & (d->n_slots - 1);
    for (; d->slots[at]; at = (at + 1) & (d->n_slots - 1)) {
        ag_tentry *e = &d->at[d->slots[at] - 1];
        if (e->hash == hash && ag_tval_equal(r, e->key, key)) return e;
    }
    *slot = at;
    return NULL;
}

static void grow_dict(ag_trun *r, ag_tdict *d)
{
    size_t room = d->room ? 2 * d->room : 4;
    ag_tentry *at = ag_trun_alloc(r, room, sizeof *at);
    if (d->n) memcpy(at, d->at, d->n * sizeof *at);
    d->at = at;
    d->room = room;
    if (room <= SMALL_DICT) return;
    d->n_slots = 4 * room;
    d->slots = ag_trun_alloc(r, d->n_slots, sizeof *d->slots);
    for (size_t i = 0; i < d->n; i++) {
        size_t slot = mix(1, at[i].hash) & (d->n_slots - 1);
        while (d->slots[slot]) slot = (slot + 1) & (d->n_slots - 1);
        d->slots[slot] = (uint32_t)i + 1;
    }
}

void ag_tdict_set(ag_trun *r, ag_tdict *d, ag_tval key, ag_tval value)
{
    uint64_t hash;
    size_t slot = 0;
    if (!hash_of(r, key, &hash)) ag_trun_fail(r, "TypeError", "unhashable type: '%s'", ag_tval_type(key));
    ag_tentry *e = find(r, d, key, hash, &slot);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->room) {
        grow_dict(r, d);
        find(r, d, key, hash, &slot);
    }
    d->at[d->n] = (ag_tentry){key, value, hash};
    d->n++;
    if (d->slots) d->slots[slot] = (uint32_t)d->n;
}

ag_tval *ag_tdict_find(ag_trun *r, const ag_tdict *d, ag_tval key)
{
    uint64_t hash;
    size_t slot;
    if (!hash_of(r, key, &hash)) return NULL;
    ag_tentry *e = find(r, d, key, hash, &slot);
    return e ? &e->value : NULL;
}

ag_tval *ag_tdict_find_text(const ag_tdict *d, ag_ttext key)
{
    size_t slot;
    ag_tentry *e = find(NULL, d, (ag_tval){.kind = AG_T_STR, .s = key}, hash_text(key), &slot);
    return e ? &e->value : NULL;
}

/* ---- what a value is
 * -------------------------------------------------------------------------------------------------------------------------- */
const char *ag_tval_type(ag_tval v)
{
    static const char *const names[] = {"Undefined",   "NoneType",   "bool",   "int",         "float",
                                        "str",         "list",       "tuple",  "dict",        "dict_keys",
                                        "dict_values", "dict_items", "range",  "generator",   "TemplateNamespace",
                                        "Macro",       "function",   "method", "LoopContext", "Cycler",
                                        "Joiner",      "missing"};
    return names[v.kind];
}

bool ag_tval_is_text(ag_tval v, const char *word) { return v.kind == AG_T_STR && ag_ttext_is(v.s, word); }

bool ag_tval_is_number(ag_tval v) { return v.kind == AG_T_INT || v.kind == AG_T_FLOAT || v.kind == AG_T_BOOL; }

double ag_tval_double(ag_tval v) { return v.kind == AG_T_FLOAT ? v.f : (double)ag_tval_integer(v); }

_Noreturn void ag_tval_undefined_error(ag_trun *r, ag_tval v)
{
    int n = v.s.n > 200 ? 200 : (int)v.s.n;
    const char *of = ag_tval_type((ag_tval){.kind = v.of});
    if (v.flags & AG_TF_UNSAFE)
        ag_trun_fail(r, "SecurityError", "access to attribute '%.*s' of '%s' object is unsafe.", n, v.s.p, of);
    if (v.flags & AG_TF_MEMBER && v.of == AG_T_NONE)
        ag_trun_fail(r, "UndefinedError", "'None' has no attribute '%.*s'", n, v.s.p);
    if (v.flags & AG_TF_MEMBER) ag_trun_fail(r, "UndefinedError", "'%s object' has no attribute '%.*s'", of, n, v.s.p);
    ag_trun_fail(r, "UndefinedError", "'%.*s' is undefined", n, v.s.p);
}

bool ag_tval_has_length(ag_tval v, size_t *n)
{
    switch (v.kind) {
    case AG_T_LIST:
    case AG_T_TUPLE: *n = v.list->n; return true;
    case AG_T_DICT:
    case AG_T_KEYS:
    case AG_T_VALUES:
    case AG_T_ITEMS: *n = v.dict->n; return true;
    case AG_T_RANGE: *n = v.range->n; return true;
    case AG_T_UNDEFINED: *n = 0; return true;
    case AG_T_LOOP: *n = v.loop->items.n; return true;
    default: return false;
    }
}

size_t ag_tval_length(ag_trun *r, ag_tval v)
{
    size_t n;
    if (v.kind == AG_T_STR) return ag_ttext_count(r, v.s);
    if (!ag_tval_has_length(v, &n)) ag_trun_fail(r, "TypeError", "object of type '%s' has no len()", ag_tval_type(v));
    return n;
}

bool ag_tval_truth(ag_tval v)
{
    size_t n;
    switch (v.kind) {
    case AG_T_NONE: return false;
    case AG_T_BOOL: return v.b;
    case AG_T_INT: return v.i != 0;
    case AG_T_FLOAT: return v.f != 0;
    case AG_T_STR: return v.s.n > 0;
    default: return ag_tval_has_length(v, &n) ? n > 0 : true;
    }
}

bool ag_tval_can_iterate(ag_tval v)
{
    return v.kind == AG_T_UNDEFINED || (v.kind >= AG_T_STR && v.kind <= AG_T_LAZY) || v.kind == AG_T_LOOP;
}

static ag_tlist code_points(ag_trun *r, ag_ttext t)
{
    size_t n = ag_ttext_count(r, t), at = 0;
    ag_tval *items = ag_trun_alloc(r, n, sizeof *items);
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        ag_utf8_peek((const unsigned char *)t.p, at, &bytes);
        items[i] = ag_tval_text(t.p + at, bytes);
        at += bytes;
    }
    return (ag_tlist){items, n};
}

ag_tlist ag_tval_items(ag_trun *r, ag_tval v)
{
    ag_tval *items;
    switch (v.kind) {
    case AG_T_LIST:
    case AG_T_TUPLE: return *v.list;
    case AG_T_UNDEFINED: return (ag_tlist){0};
    case AG_T_STR: return code_points(r, v.s);
    case AG_T_DICT:
    case AG_T_KEYS:
    case AG_T_VALUES:
    case AG_T_ITEMS:
        items = ag_trun_alloc(r, v.dict->n, sizeof *items);
        for (size_t i = 0; i < v.dict->n; i++) {
            const ag_tentry *e = &v.dict->at[i];
            items[i] = v.kind == AG_T_VALUES ? e->value : v.kind == AG_T_ITEMS ? ag_tval_pair(r, e->key, e->value) : e->key;
        }
        return (ag_tlist){items, v.dict->n};
    case AG_T_RANGE:
        items = ag_trun_alloc(r, v.range->n, sizeof *items);
        for (size_t i = 0; i < v.range->n; i++) items[i] = ag_tval_int((ag_tint)v.range->start + (ag_tint)i * v.range->step);
        return (ag_tlist){items, v.range->n};
    case AG_T_LAZY: {
        ag_tlazy *lazy = v.lazy;
        if (!lazy->made) {
            lazy->made = true;
            ag_trun_enter(r);
            lazy->items = lazy->make(r, lazy->source, &lazy->args);
            ag_trun_exit(r);
        }
        if (!lazy->items.n) return (ag_tlist){0};
        ag_tlist rest = {lazy->items.at + lazy->next, lazy->items.n - lazy->next};
        lazy->next = lazy->items.n;
        return rest;
    }
    default: ag_trun_fail(r, "TypeError", "'%s' object is not iterable", ag_tval_type(v));
    }
}

/* ---- comparing
 * ----------------------------------------------------------------------------------------------------------------------------------
 */
bool ag_tval_same(ag_tval a, ag_tval b)
{
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case AG_T_NONE: return true;
    case AG_T_BOOL: return a.b == b.b;
    case AG_T_INT: return a.i == b.i;
    case AG_T_FLOAT: return a.f == b.f;
    case AG_T_STR: return a.s.p == b.s.p && a.s.n == b.s.n;
    case AG_T_UNDEFINED: return a.s.p == b.s.p;
    default: return a.list == b.list;
    }
}

static bool equal_lists(ag_trun *r, const ag_tlist *a, const ag_tlist *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!ag_tval_equal(r, a->at[i], b->at[i])) return false;
    return true;
}

static bool equal_dicts(ag_trun *r, const ag_tdict *a, const ag_tdict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const ag_tval *other = ag_tdict_find(r, b, a->at[i].key);
        if (!other || !ag_tval_equal(r, a->at[i].value, *other)) return false;
    }
    return true;
}

bool ag_tval_equal(ag_trun *r, ag_tval a, ag_tval b)
{
    if (ag_tval_is_number(a) && ag_tval_is_number(b)) {
        if (a.kind == AG_T_FLOAT || b.kind == AG_T_FLOAT) return ag_tval_double(a) == ag_tval_double(b);
        return ag_tval_integer(a) == ag_tval_integer(b);
    }
    if (a.kind != b.kind) return false;
    bool equal;
    switch (a.kind) {
    case AG_T_STR: return a.s.n == b.s.n && memcmp(a.s.p, b.s.p, a.s.n) == 0;
    case AG_T_UNDEFINED: return true;
    case AG_T_RANGE:
        return a.range->n == b.range->n &&
               (!a.range->n || (a.range->start == b.range->start && (a.range->n == 1 || a.range->step == b.range->step)));
    case AG_T_LIST:
    case AG_T_TUPLE:
    case AG_T_DICT:
        ag_trun_enter(r);
        equal = a.list == b.list || (a.kind == AG_T_DICT ? equal_dicts(r, a.dict, b.dict) : equal_lists(r, a.list, b.list));
        ag_trun_exit(r);
        return equal;
    case AG_T_METHOD:
        return ag_tval_same(a.method->self, b.method->self) && a.method->call == b.method->call &&
               !strcmp(a.method->name, b.method->name);
    default: return ag_tval_same(a, b);
    }
}

int ag_tval_compare(ag_trun *r, ag_tval a, ag_tval b, const char *operator)
{
    ag_tval_need_defined(r, a);
    ag_tval_need_defined(r, b);
    if (ag_tval_is_number(a) && ag_tval_is_number(b)) {
        if (a.kind == AG_T_FLOAT || b.kind == AG_T_FLOAT) {
            double x = ag_tval_double(a), y = ag_tval_double(b);
            return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
        }
        ag_tint x = ag_tval_integer(a), y = ag_tval_integer(b);
        return x < y ? -1 : x > y;
    }
    if (a.kind == AG_T_STR && b.kind == AG_T_STR) {
        int order = ag_ttext_compare(a.s, b.s);
        return order < 0 ? -1 : order > 0;
    }
    if (a.kind == b.kind && (a.kind == AG_T_LIST || a.kind == AG_T_TUPLE)) {
        ag_trun_enter(r);
        size_t n = a.list->n < b.list->n ? a.list->n : b.list->n, i = 0;
        while (i < n && ag_tval_equal(r, a.list->at[i], b.list->at[i])) i++;
        int order = i < n                   ? ag_tval_compare(r, a.list->at[i], b.list->at[i], operator)
                    : a.list->n < b.list->n ? -1
                                            : a.list->n > b.list->n;
        ag_trun_exit(r);
        return order;
    }
    ag_trun_fail(r, "TypeError", "'%s' not supported between instances of '%s' and '%s'", operator, ag_tval_type(a),
                 ag_tval_type(b));
}

static bool holds_item(ag_trun *r, ag_tlist items, ag_tval item)
{
    ag_trun_work(r, items.n);
    for (size_t i = 0; i < items.n; i++)
        if (ag_tval_equal(r, items.at[i], item)) return true;
    return false;
}

bool ag_tval_contains(ag_trun *r, ag_tval container, ag_tval item)
{
    switch (container.kind) {
    case AG_T_STR:
        if (item.kind != AG_T_STR)
            ag_trun_fail(r, "TypeError", "'in <string>' requires string as left operand, not %s", ag_tval_type(item));
        ag_trun_work(r, container.s.n / BYTES_PER_STEP);
        return item.s.n == 0 || memmem(container.s.p, container.s.n, item.s.p, item.s.n) != NULL;
    case AG_T_DICT:
    case AG_T_KEYS:
        if (item.kind == AG_T_LIST || item.kind == AG_T_DICT)
            ag_trun_fail(r, "TypeError", "unhashable type: '%s'", ag_tval_type(item));
        return ag_tdict_find(r, container.dict, item) != NULL;
    default:
        if (!ag_tval_can_iterate(container))
            ag_trun_fail(r, "TypeError", "argument of type '%s' is not iterable", ag_tval_type(container));
        return holds_item(r, ag_tval_items(r, container), item);
    }
}
