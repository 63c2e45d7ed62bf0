/* Walking a grammar: sets of places as numbers, made when they are met. */
#include "serve/grammar_internal.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PLACES = 4096,      /* in one set */
    MAX_SETS = 16384,       /* known at once; a longer answer forgets and begins anew */
    FORGET_SETS = 8192, FORGET_MASKS = 256, FORGET_STACKS = 1 << 16,
    N_BUCKETS = 1 << 14,
};
enum { UNKNOWN = -2, DEAD = -1 };

typedef struct {
    int32_t state, stack;
} place;
typedef struct {
    int32_t first, n; /* of the pool of places */
    bool ends;        /* the text may end here */
    int32_t *next;    /* [256], or NULL */
    uint32_t *mask;   /* tokens that may come, or NULL */
    int32_t chain;    /* of the same bucket */
} place_set;
typedef struct {
    int32_t state, below, depth, chain;
} stack_node; /* 0 is the empty stack */

typedef struct {
    const ag_grammar *g;
    place *pool;
    size_t n_pool, pool_room;
    place_set *sets;
    int32_t n_sets, set_room, n_masks;
    int32_t set_bucket[N_BUCKETS];
    stack_node *stacks;
    int32_t n_stacks, stack_room, stack_bucket[N_BUCKETS];
    place *work;              /* [MAX_PLACES + …] of the set that is being made */
    int32_t n_work, seen[N_BUCKETS], seen_chain[MAX_PLACES];
    bool overflow;
} walker;

/* ---- sets ------------------------------------------------------------------------------------------------------------------------ */
static void *grown(void *p, size_t *room, size_t needed, size_t size)
{
    if (needed <= *room) return p;
    while (*room < needed) *room = *room ? 2 * *room : 256;
    p = realloc(p, *room * size);
    if (!p) ag_out_of_memory(*room * size);
    return p;
}

static uint32_t hash2(uint32_t a, uint32_t b)
{
    uint32_t h = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu;
    return h ^ h >> 15;
}

static void clear(walker *w)
{
    for (int32_t i = 0; i < w->n_sets; i++) {
        free(w->sets[i].next);
        free(w->sets[i].mask);
    }
    w->n_sets = w->n_masks = 0;
    w->n_pool = 0;
    w->n_stacks = 1;
    memset(w->set_bucket, 0xff, sizeof w->set_bucket);
    memset(w->stack_bucket, 0xff, sizeof w->stack_bucket);
}

static void open_walker(walker *w, const ag_grammar *g)
{
    w->g = g;
    w->work = malloc(MAX_PLACES * sizeof *w->work);
    w->stack_room = 256;
    w->stacks = calloc((size_t)w->stack_room, sizeof *w->stacks);
    if (!w->work || !w->stacks) ag_out_of_memory(MAX_PLACES * sizeof *w->work);
    clear(w);
}

static void close_walker(walker *w)
{
    clear(w);
    free(w->pool);
    free(w->sets);
    free(w->stacks);
    free(w->work);
}

/* -1: too deep. */
static int32_t push_return(walker *w, int32_t state, int32_t below)
{
    const uint32_t bucket = hash2((uint32_t)state, (uint32_t)below) % N_BUCKETS;
    for (int32_t i = w->stack_bucket[bucket]; i >= 0; i = w->stacks[i].chain)
        if (w->stacks[i].state == state && w->stacks[i].below == below) return i;
    const int32_t depth = w->stacks[below].depth + 1;
    if (depth > AG_GRAMMAR_DEPTH) return -1;
    size_t room = (size_t)w->stack_room;
    w->stacks = grown(w->stacks, &room, (size_t)w->n_stacks + 1, sizeof *w->stacks);
    w->stack_room = (int32_t)room;
    w->stacks[w->n_stacks] = (stack_node){state, below, depth, w->stack_bucket[bucket]};
    w->stack_bucket[bucket] = w->n_stacks;
    return w->n_stacks++;
}

static void begin_set(walker *w)
{
    w->n_work = 0;
    memset(w->seen, 0xff, sizeof w->seen);
}

static void add_place(walker *w, int32_t state, int32_t stack)
{
    if (state < 0 || stack < 0) return;
    const uint32_t bucket = hash2((uint32_t)state, (uint32_t)stack) % N_BUCKETS;
    for (int32_t i = w->seen[bucket]; i >= 0; i = w->seen_chain[i])
        if (w->work[i].state == state && w->work[i].stack == stack) return;
    if (w->n_work == MAX_PLACES) {
        w->overflow = true;
        return;
    }
    w->work[w->n_work] = (place){state, stack};
    w->seen_chain[w->n_work] = w->seen[bucket];
    w->seen[bucket] = w->n_work++;
}

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->state != y->state) return x->state < y->state ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

/* The number of the set whose places are in `work`: those that read a byte, and whether the text may end. */
static int32_t end_set(walker *w)
{
    bool ends = false;
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_work; i++) { /* grows while it runs */
        const place p = w->work[i];
        const ag_state *s = &w->g->states[p.state];
        if (s->kind == AG_STATE_SPLIT) {
            add_place(w, s->a, p.stack);
            add_place(w, s->b, p.stack);
        } else if (s->kind == AG_STATE_CALL) {
            /* A call right in front of a return needs no return of its own. */
            const bool is_last = w->g->states[s->b].kind == AG_STATE_RETURN;
            add_place(w, w->g->rules[s->a], is_last ? p.stack : push_return(w, s->b, p.stack));
        } else if (s->kind == AG_STATE_RETURN) {
            if (p.stack == 0) ends = true;
            else add_place(w, w->stacks[p.stack].state, w->stacks[p.stack].below);
        }
    }
    for (int32_t i = 0; i < w->n_work; i++)
        if (w->g->states[w->work[i].state].kind == AG_STATE_BYTES) w->work[n++] = w->work[i];
    if (n == 0 && !ends) return DEAD;
    qsort(w->work, (size_t)n, sizeof *w->work, by_place);
    uint32_t hash = ends;
    for (int32_t i = 0; i < n; i++) hash = hash2(hash ^ (uint32_t)w->work[i].state, (uint32_t)w->work[i].stack);
    hash %= N_BUCKETS;
    for (int32_t i = w->set_bucket[hash]; i >= 0; i = w->sets[i].chain) {
        const place_set *s = &w->sets[i];
        if (s->n == n && s->ends == ends && memcmp(w->pool + s->first, w->work, (size_t)n * sizeof *w->work) == 0) return i;
    }
    if (w->n_sets == MAX_SETS) {
        w->overflow = true;
        return DEAD;
    }
    w->pool = grown(w->pool, &w->pool_room, w->n_pool + (size_t)n, sizeof *w->pool);
    memcpy(w->pool + w->n_pool, w->work, (size_t)n * sizeof *w->work);
    size_t room = (size_t)w->set_room;
    w->sets = grown(w->sets, &room, (size_t)w->n_sets + 1, sizeof *w->sets);
    w->set_room = (int32_t)room;
    w->sets[w->n_sets] = (place_set){.first = (int32_t)w->n_pool, .n = n, .ends = ends, .chain = w->set_bucket[hash]};
    w->n_pool += (size_t)n;
    w->set_bucket[hash] = w->n_sets;
    return w->n_sets++;
}

static int32_t start_set(walker *w)
{
    begin_set(w);
    add_place(w, w->g->start, 0);
    return end_set(w);
}

static int32_t step(walker *w, int32_t set, unsigned char byte)
{
    if (set < 0) return DEAD;
    place_set *s = &w->sets[set];
    if (!s->next) {
        s->next = malloc(256 * sizeof *s->next);
        if (!s->next) ag_out_of_memory(256 * sizeof *s->next);
        for (int i = 0; i < 256; i++) s->next[i] = UNKNOWN;
    }
    if (s->next[byte] != UNKNOWN) return s->next[byte];
    begin_set(w);
    for (int32_t i = 0; i < s->n; i++) {
        const place p = w->pool[s->first + i];
        const ag_state *state = &w->g->states[p.state];
        if (byte >= state->low && byte <= state->high) add_place(w, state->a, p.stack);
    }
    const int32_t next = end_set(w);
    w->sets[set].next[byte] = next; /* the sets may have moved */
    return next;
}

bool ag_grammar_allows_nothing(const ag_grammar *g)
{
    walker *w = calloc(1, sizeof *w);
    if (!w) ag_out_of_memory(sizeof *w);
    open_walker(w, g);
    const bool nothing = start_set(w) == DEAD;
    close_walker(w);
    free(w);
    return nothing;
}

bool ag_grammar_matches(const ag_grammar *g, const char *text, size_t n)
{
    walker *w = calloc(1, sizeof *w);
    if (!w) ag_out_of_memory(sizeof *w);
    open_walker(w, g);
    int32_t set = start_set(w);
    for (size_t i = 0; i < n && set >= 0; i++) set = step(w, set, (unsigned char)text[i]);
    const bool matches = set >= 0 && w->sets[set].ends;
    close_walker(w);
    free(w);
    return matches;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------------ */
struct ag_constraint {
    walker w;
    const ag_token_table *table;
    int32_t set;
    bool began;
    int32_t *path; /* sets behind each byte of a token */
    const char *error;
};

ag_constraint *ag_constraint_create(const ag_grammar *g, const ag_token_table *table)
{
    ag_constraint *c = calloc(1, sizeof *c);
    uint32_t longest = 0;
    for (size_t i = 0; i < table->n; i++)
        if (table->entries[i].n > longest) longest = table->entries[i].n;
    if (c) c->path = malloc(((size_t)longest + 1) * sizeof *c->path);
    if (!c || !c->path) ag_out_of_memory(sizeof *c);
    open_walker(&c->w, g);
    c->table = table;
    c->set = start_set(&c->w);
    return c;
}

void ag_constraint_free(ag_constraint **c)
{
    if (!c || !*c) return;
    close_walker(&(*c)->w);
    free((*c)->path);
    free(*c);
    *c = NULL;
}

static void find_tokens(ag_constraint *c, uint32_t *mask)
{
    const ag_token_table *t = c->table;
    uint32_t dead_at = UINT32_MAX; /* the entry before failed at this byte */
    c->path[0] = c->set;
    for (size_t i = 0; i < t->n; i++) {
        const ag_token_entry *e = &t->entries[i];
        if (e->shared > dead_at) continue; /* it fails at the same byte; what it shares with the next does not change */
        dead_at = UINT32_MAX;
        uint32_t at = e->shared;
        for (; at < e->n; at++) {
            c->path[at + 1] = step(&c->w, c->path[at], (unsigned char)e->bytes[at]);
            if (c->path[at + 1] < 0) {
                dead_at = at;
                break;
            }
        }
        if (at == e->n && (!e->special || !c->began)) mask[e->id / 32] |= 1u << e->id % 32;
    }
    for (int i = 0; i < t->n_ends; i++)
        if (t->ends[i] < t->V) {
            mask[t->ends[i] / 32] &= ~(1u << t->ends[i] % 32);
            if (c->w.sets[c->set].ends) mask[t->ends[i] / 32] |= 1u << t->ends[i] % 32;
        }
}

void ag_constraint_mask(ag_constraint *c, float *logits)
{
    const int64_t V = c->table->V;
    if (c->set < 0) {
        c->error = "the answer left the grammar";
        return;
    }
    const size_t n_words = (size_t)(V + 31) / 32;
    uint32_t *mask = c->w.sets[c->set].mask;
    if (!mask) {
        mask = calloc(n_words, sizeof *mask);
        if (!mask) ag_out_of_memory(n_words * sizeof *mask);
        find_tokens(c, mask);
        if (c->w.overflow) c->error = "the grammar has too many ways to go on; simplify the schema";
        if (c->began) {
            c->w.sets[c->set].mask = mask;
            c->w.n_masks++;
        }
    }
    bool any = false;
    for (int64_t v = 0; v < V; v++) {
        if (mask[v / 32] >> v % 32 & 1) any = true;
        else logits[v] = -INFINITY;
    }
    if (!any) c->error = "no token of this model goes on as the grammar wants; simplify the schema";
    if (c->w.sets[c->set].mask != mask) free(mask);
}

/* Makes the current set again in an empty walker. */
static void forget(ag_constraint *c)
{
    walker *w = &c->w;
    const place_set s = w->sets[c->set];
    if (s.n == 0) return;
    int32_t(*stacks)[AG_GRAMMAR_DEPTH + 2] = calloc((size_t)s.n + 1, sizeof *stacks);
    if (!stacks) ag_out_of_memory((size_t)s.n * sizeof *stacks);
    for (int32_t i = 0; i < s.n; i++) {
        const place p = w->pool[s.first + i];
        stacks[i][0] = p.state;
        for (int32_t at = p.stack, k = w->stacks[p.stack].depth; at != 0; at = w->stacks[at].below) stacks[i][k--] = w->stacks[at].state;
        stacks[i][AG_GRAMMAR_DEPTH + 1] = w->stacks[p.stack].depth;
    }
    clear(w);
    begin_set(w);
    for (int32_t i = 0; i < s.n; i++) {
        int32_t stack = 0;
        for (int32_t k = 1; k <= stacks[i][AG_GRAMMAR_DEPTH + 1]; k++) stack = push_return(w, stacks[i][k], stack);
        add_place(w, stacks[i][0], stack);
    }
    free(stacks);
    c->set = end_set(w);
    if (c->set >= 0) w->sets[c->set].ends |= s.ends;
}

void ag_constraint_accept(ag_constraint *c, int32_t id)
{
    const ag_text bytes = ag_tokenizer_token_bytes(c->table->tokenizer, id);
    for (size_t i = 0; i < bytes.n && c->set >= 0; i++) c->set = step(&c->w, c->set, (unsigned char)bytes.text[i]);
    c->began = true;
    if (c->set >= 0 && (c->w.n_sets > FORGET_SETS || c->w.n_masks > FORGET_MASKS || c->w.n_stacks > FORGET_STACKS)) forget(c);
}

const char *ag_constraint_error(const ag_constraint *c) { return c->error; }
