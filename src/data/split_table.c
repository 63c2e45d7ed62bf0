#include "data/split_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void place(ag_split_table *t, ag_layout *layout)
{
    for (int k = 0; k < AG_N_SPLIT_KEYS; k++) t->key[k] = ag_layout_place(layout, t->n * sizeof(ag_split_key));
    t->parent = ag_layout_place(layout, t->n * sizeof *t->parent);
    t->split = ag_layout_place(layout, t->n);
}

ag_status ag_split_table_init(ag_split_table *t, size_t n, ag_err *err)
{
    *t = (ag_split_table){.n = n};
    if (n >= UINT32_MAX) return ag_fail(err, AG_E_UNSUPPORTED, "a dataset of %zu rows is too large; freeze it in pieces", n);
    ag_layout layout = {0};
    place(t, &layout);
    t->bytes = layout.bytes;
    AG_TRY(ag_pages_alloc(&t->block, layout.bytes, "the keys of the rows", err));
    layout = (ag_layout){.base = t->block};
    place(t, &layout);
    for (size_t i = 0; i < n; i++) t->parent[i] = (uint32_t)i;
    return AG_OK;
}

void ag_split_table_free(ag_split_table *t)
{
    ag_pages_free(t->block, t->bytes);
    *t = (ag_split_table){0};
}

void ag_split_table_set(ag_split_table *t, size_t i, ag_split_row *row, const ag_split_policy *policy)
{
    t->key[AG_SPLIT_KEY_CANONICAL][i] = ag_split_key_of(row->canonical_id.text, row->canonical_id.n);
    t->key[AG_SPLIT_KEY_LINEAGE][i] = ag_split_key_of(row->lineage_id.text, row->lineage_id.n);
    t->key[AG_SPLIT_KEY_GROUP][i] =
        row->group_id.n ? ag_split_key_of(row->group_id.text, row->group_id.n) : (ag_split_key){0, 0};
    t->key[AG_SPLIT_KEY_CONTENT][i] = ag_split_key_of_digest(&row->content);
    t->split[i] = (uint8_t)ag_split_row_bucket(row, policy);
}

/* ---- equal keys -------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_split_key key;
    uint32_t row;
} item;

static int by_key(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->key.high != y->key.high) return x->key.high < y->key.high ? -1 : 1;
    if (x->key.low != y->key.low) return x->key.low < y->key.low ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static bool same(const item *x, const item *y) { return x->key.high == y->key.high && x->key.low == y->key.low; }

/* Rows that have a key, sorted by it; those of one key in their own order. */
static item *sorted(size_t *n_items, const ag_split_key *key, size_t n)
{
    item *items = malloc((n + 1) * sizeof *items);
    if (!items) ag_out_of_memory((n + 1) * sizeof *items);
    *n_items = 0;
    for (size_t i = 0; i < n; i++)
        if (key[i].high | key[i].low) items[(*n_items)++] = (item){key[i], (uint32_t)i};
    qsort(items, *n_items, sizeof *items, by_key);
    return items;
}

bool ag_split_table_find_twice(const ag_split_key *key, size_t n, size_t *first, size_t *second)
{
    size_t n_items, best = n;
    item *items = sorted(&n_items, key, n);
    for (size_t i = 1; i < n_items; i++)
        if (same(&items[i], &items[i - 1]) && items[i].row < best) {
            best = *second = items[i].row;
            *first = items[i - 1].row;
        }
    free(items);
    return best < n;
}

size_t ag_split_table_count_crossing(const ag_split_key *key, const uint8_t *split, size_t n)
{
    size_t n_items, crossing = 0;
    item *items = sorted(&n_items, key, n);
    for (size_t i = 0; i < n_items;) {
        bool crosses = false;
        size_t end = i + 1;
        for (; end < n_items && same(&items[end], &items[i]); end++) crosses |= split[items[end].row] != split[items[i].row];
        crossing += crosses;
        i = end;
    }
    free(items);
    return crossing;
}

/* ---- components -------------------------------------------------------------------------------------------------- */
static uint32_t root_of(uint32_t *parent, uint32_t i)
{
    while (parent[i] != i) {
        parent[i] = parent[parent[i]];
        i = parent[i];
    }
    return i;
}

/* The smaller row becomes the root, so that the forest is the same whatever was joined first. */
static void join(uint32_t *parent, uint32_t a, uint32_t b)
{
    a = root_of(parent, a);
    b = root_of(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

static void join_equal(ag_split_table *t, const ag_split_key *key)
{
    size_t n_items;
    item *items = sorted(&n_items, key, t->n);
    for (size_t i = 1; i < n_items; i++)
        if (same(&items[i], &items[i - 1])) join(t->parent, items[i].row, items[i - 1].row);
    free(items);
}

static bool is_less(const ag_str *a, const ag_str *b)
{
    const int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    return order ? order < 0 : a->n < b->n;
}

static void keep_smaller(ag_str *best, const ag_str *id)
{
    if (id->n == 0 || (best->n && !is_less(id, best))) return;
    ag_str_clear(best);
    ag_str_add_n(best, id->text, id->n);
}

/* The split of a component of several rows, by its smallest ids. */
static ag_status assign_component(ag_split_table *t, const item *member, size_t n, const ag_split_policy *policy,
                                  const ag_split_reader *reader, ag_err *err)
{
    ag_split_row row = {0}, best = {0};
    ag_status status = AG_OK;
    for (size_t i = 0; i < n && !status; i++) {
        status = reader->read(reader->user, member[i].row, &row, err);
        if (status) break;
        keep_smaller(&best.group_id, &row.group_id);
        keep_smaller(&best.lineage_id, &row.lineage_id);
    }
    const uint8_t split = status ? 0 : (uint8_t)ag_split_row_bucket(&best, policy);
    for (size_t i = 0; i < n; i++) t->split[member[i].row] = split;
    ag_split_row_free(&row);
    ag_split_row_free(&best);
    return status;
}

ag_status ag_split_table_assign(ag_split_table *t, const ag_split_policy *policy, const ag_split_reader *reader, int n_threads,
                                ag_err *err)
{
    join_equal(t, t->key[AG_SPLIT_KEY_LINEAGE]);
    join_equal(t, t->key[AG_SPLIT_KEY_GROUP]);
    join_equal(t, t->key[AG_SPLIT_KEY_CONTENT]);

    item *items = malloc((t->n + 1) * sizeof *items);
    uint32_t *start = malloc((t->n + 1) * sizeof *start); /* of components of several rows */
    if (!items || !start) ag_out_of_memory((t->n + 1) * sizeof *items);
    for (size_t i = 0; i < t->n; i++) items[i] = (item){{root_of(t->parent, (uint32_t)i), 0}, (uint32_t)i};
    qsort(items, t->n, sizeof *items, by_key);
    size_t n_components = 0;
    for (size_t i = 1; i < t->n; i++)
        if (same(&items[i], &items[i - 1]) && (i == 1 || !same(&items[i - 1], &items[i - 2])))
            start[n_components++] = (uint32_t)i - 1;

    ag_status failed = AG_OK;
#pragma omp parallel for schedule(dynamic, 64) num_threads(n_threads)
    for (size_t c = 0; c < n_components; c++) {
        size_t end = start[c] + 1u;
        while (end < t->n && same(&items[end], &items[start[c]])) end++;
        ag_err own;
        const ag_status status = assign_component(t, items + start[c], end - start[c], policy, reader, &own);
        if (!status) continue;
#pragma omp critical(ag_split_assign)
        {
            failed = status;
            if (err) *err = own;
        }
    }
    free(items);
    free(start);
    return failed;
}

/* ---- order by canonical id --------------------------------------------------------------------------------------- */
static uint64_t big_endian(const char *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < 8; i++) value = value << 8 | (i < n ? (unsigned char)bytes[i] : 0);
    return value;
}

/* 16 bytes of each row's id from `depth` on. Ids hold no NUL, so that a shorter one sorts first. */
static ag_status take_pieces(item *items, const uint32_t *rows, size_t n, size_t depth, const ag_split_reader *reader,
                             int n_threads, ag_err *err)
{
    ag_status failed = AG_OK;
#pragma omp parallel num_threads(n_threads)
    {
        ag_split_row row = {0};
        ag_err own;
#pragma omp for schedule(dynamic, 256)
        for (size_t i = 0; i < n; i++) {
            const ag_status status = reader->read(reader->user, rows[i], &row, &own);
            const size_t left = !status && row.canonical_id.n > depth ? row.canonical_id.n - depth : 0;
            const char *piece = left ? row.canonical_id.text + depth : "";
            items[i] =
                (item){{big_endian(piece, left), big_endian(left > 8 ? piece + 8 : "", left > 8 ? left - 8 : 0)}, rows[i]};
            if (!status) continue;
#pragma omp critical(ag_split_order)
            {
                failed = status;
                if (err) *err = own;
            }
        }
        ag_split_row_free(&row);
    }
    return failed;
}

/* By pieces of 16 bytes: rows that are equal in one are sorted by the next, which is at most AG_SPLIT_MAX_ID_BYTES / 16 deep.
 */
static ag_status order_from(uint32_t *rows, size_t n, size_t depth, const ag_split_reader *reader, int n_threads, ag_err *err)
{
    AG_ASSERT(depth <= AG_SPLIT_MAX_ID_BYTES); /* two ids are never equal */
    item *items = malloc(n * sizeof *items);
    uint8_t *as_before = malloc(n);
    if (!items || !as_before) ag_out_of_memory(n * sizeof *items);
    ag_status status = take_pieces(items, rows, n, depth, reader, n_threads, err);
    if (!status) {
        qsort(items, n, sizeof *items, by_key);
        for (size_t i = 0; i < n; i++) {
            rows[i] = items[i].row;
            as_before[i] = i > 0 && same(&items[i], &items[i - 1]);
        }
    }
    free(items);
    for (size_t i = 0; i < n && !status;) {
        size_t end = i + 1;
        while (end < n && as_before[end]) end++;
        if (end - i > 1) status = order_from(rows + i, end - i, depth + 16, reader, n_threads, err);
        i = end;
    }
    free(as_before);
    return status;
}

ag_status ag_split_table_order(uint32_t *rows, size_t n_rows, const ag_split_reader *reader, int n_threads, ag_err *err)
{
    return n_rows > 1 ? order_from(rows, n_rows, 0, reader, n_threads, err) : AG_OK;
}
