#include "data/packing.h"

#include "base/arena.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Open packed rows by the room that is left in them: for each room a queue, and a tree that finds the smallest room of at
 * least a given size that has one. */
typedef struct {
    int64_t capacity, n_leaves;
    int64_t *first, *last; /* [capacity + 1], by room; -1: none */
    int64_t *next;         /* [n_rows], by packed row: the next one of its queue */
    uint8_t *any;          /* [2·n_leaves]: whether a room below this node has one; leaf i stands for room i */
} rooms;

static void mark(rooms *r, int64_t room, bool has)
{
    int64_t i = r->n_leaves + room;
    r->any[i] = has;
    for (i >>= 1; i >= 1; i >>= 1) r->any[i] = r->any[2 * i] | r->any[2 * i + 1];
}

static void push(rooms *r, int64_t room, int64_t bin)
{
    r->next[bin] = -1;
    if (r->first[room] < 0) {
        r->first[room] = bin;
        mark(r, room, true);
    } else {
        r->next[r->last[room]] = bin;
    }
    r->last[room] = bin;
}

static int64_t pop(rooms *r, int64_t room)
{
    int64_t bin = r->first[room];
    r->first[room] = r->next[bin];
    if (r->first[room] < 0) mark(r, room, false);
    return bin;
}

/* The smallest room >= size that has an open packed row; -1: none. */
static int64_t find(const rooms *r, int64_t size)
{
    int64_t i = r->n_leaves + size;
    if (r->any[i]) return size;
    while (i > 1 && !((i & 1) == 0 && r->any[i + 1])) i >>= 1; /* up, to where something lies to the right */
    if (i <= 1) return -1;
    for (i++; i < r->n_leaves;) i = r->any[2 * i] ? 2 * i : 2 * i + 1;
    return i - r->n_leaves;
}

/* Rows from the longest to the shortest, equal ones in their order: counted by length. */
static void sort_descending(int64_t *sorted, const int64_t *offset, int64_t n_rows, int64_t *count, int64_t capacity)
{
    memset(count, 0, (size_t)(capacity + 1) * sizeof *count);
    for (int64_t r = 0; r < n_rows; r++) count[offset[r + 1] - offset[r]]++;
    int64_t at = 0;
    for (int64_t length = capacity; length >= 0; length--) {
        int64_t here = count[length];
        count[length] = at;
        at += here;
    }
    for (int64_t r = 0; r < n_rows; r++) sorted[count[offset[r + 1] - offset[r]]++] = r;
}

/* From the packed row of each row to rows grouped by packed row, in the order in which they came (that of `sorted`). */
static void group(ag_packing *p, const int64_t *sorted, const int64_t *bin_of, const int64_t *offset, int64_t n_rows,
                  int64_t *place)
{
    for (int64_t i = 0; i < n_rows; i++) p->offset[bin_of[sorted[i]] + 1]++;
    for (int64_t b = 0; b < p->n; b++) {
        int64_t rows = p->offset[b + 1];
        p->most_rows = rows > p->most_rows ? rows : p->most_rows;
        place[b] = p->offset[b];
        p->offset[b + 1] += p->offset[b];
    }
    for (int64_t i = 0; i < n_rows; i++) p->row[place[bin_of[sorted[i]]]++] = sorted[i];
    for (int64_t b = 0; b < p->n; b++) {
        int64_t tokens = 0;
        for (int64_t i = p->offset[b]; i < p->offset[b + 1]; i++) tokens += offset[p->row[i] + 1] - offset[p->row[i]];
        p->longest_tokens = tokens > p->longest_tokens ? tokens : p->longest_tokens;
    }
}

ag_status ag_packing_make(ag_packing *p, const int64_t *offset, int64_t n_rows, int64_t capacity, ag_err *err)
{
    *p = (ag_packing){0};
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t length = offset[r + 1] - offset[r];
        if (length < 1 || length > capacity)
            return ag_fail(err, AG_E_DATA, "row %lld has %lld tokens and cannot be packed into %lld", (long long)r + 1,
                           (long long)length, (long long)capacity);
    }
    rooms r = {.capacity = capacity, .n_leaves = 1};
    while (r.n_leaves <= capacity) r.n_leaves *= 2;
    size_t by_room = (size_t)capacity + 1, by_row = (size_t)n_rows;
    ag_arena scratch = {0};
    r.first = ag_arena_array(&scratch, by_room, sizeof *r.first);
    r.last = ag_arena_array(&scratch, by_room, sizeof *r.last);
    r.next = ag_arena_array(&scratch, by_row, sizeof *r.next);
    r.any = ag_arena_alloc(&scratch, 2 * (size_t)r.n_leaves);
    int64_t *sorted = ag_arena_array(&scratch, by_row, sizeof *sorted),
            *bin_of = ag_arena_array(&scratch, by_row, sizeof *bin_of);
    memset(r.first, -1, by_room * sizeof *r.first);
    sort_descending(sorted, offset, n_rows, r.last, capacity); /* `last` means nothing yet */
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t row = sorted[i], length = offset[row + 1] - offset[row], room = find(&r, length);
        int64_t bin = room < 0 ? p->n++ : pop(&r, room);
        if (room < 0) room = capacity;
        bin_of[row] = bin;
        if (room > length) push(&r, room - length, bin);
    }
    p->row = calloc(by_row + 1, sizeof *p->row);
    p->offset = calloc((size_t)p->n + 1, sizeof *p->offset);
    if (!p->row || !p->offset) ag_out_of_memory(by_row * sizeof *p->row);
    group(p, sorted, bin_of, offset, n_rows, r.next);
    ag_arena_free(&scratch);
    return AG_OK;
}

void ag_packing_free(ag_packing *p)
{
    free(p->row);
    free(p->offset);
    *p = (ag_packing){0};
}
