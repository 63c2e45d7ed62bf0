/* All rows of a dataset as keys: which belong together, which split each component has, and what stands in two splits. Private
 * to data/.
 *
 *     ag_split_table t;
 *     AG_TRY(ag_split_table_init(&t, n_rows, err));
 *     … ag_split_table_set(&t, i, &row, &policy) for every i, from any thread …
 *     ag_split_table_assign(&t, &policy, reader, err);      // t.split[i]
 *     ag_split_table_free(&t);
 *
 * 64 bytes of keys and 5 of links a row; each pass over one kind of key takes 24 bytes a row more for a while. */
#ifndef AG_SPLIT_TABLE_H
#define AG_SPLIT_TABLE_H

#include "data/split_row.h"

typedef enum {
    AG_SPLIT_KEY_CANONICAL,
    AG_SPLIT_KEY_LINEAGE,
    AG_SPLIT_KEY_GROUP,
    AG_SPLIT_KEY_CONTENT,
    AG_N_SPLIT_KEYS
} ag_split_key_kind;

typedef struct {
    size_t n;
    ag_split_key *key[AG_N_SPLIT_KEYS]; /* [n] each; a row without a group has {0, 0} there */
    uint32_t *parent;                   /* [n]; of the union-find forest */
    uint8_t *split;                     /* [n] */
    void *block;
    size_t bytes;
} ag_split_table;

/* AG_E_UNSUPPORTED for more rows than 32 bits count. */
AG_MUST_USE ag_status ag_split_table_init(ag_split_table *t, size_t n, ag_err *err);
void ag_split_table_free(ag_split_table *t);
/* The row's keys, and as its split the one that it would have alone. */
void ag_split_table_set(ag_split_table *t, size_t i, ag_split_row *row, const ag_split_policy *policy);

/* Reads the ids of row i again; called from several threads, each with its own row. */
typedef struct {
    ag_status (*read)(void *user, size_t i, ag_split_row *row, ag_err *err);
    void *user;
} ag_split_reader;
/* Joins rows that share a lineage, a group or a content, and gives each component one split. */
AG_MUST_USE ag_status ag_split_table_assign(ag_split_table *t, const ag_split_policy *policy, const ag_split_reader *reader,
                                            int n_threads, ag_err *err);

/* The first two rows that have the same key, in the order of rows. */
bool ag_split_table_find_twice(const ag_split_key *key, size_t n, size_t *first, size_t *second);
/* How many keys stand in more than one split. */
size_t ag_split_table_count_crossing(const ag_split_key *key, const uint8_t *split, size_t n);

/* Sorts rows[n_rows] by canonical id, which no two of them share. */
AG_MUST_USE ag_status ag_split_table_order(uint32_t *rows, size_t n_rows, const ag_split_reader *reader, int n_threads,
                                           ag_err *err);

#endif
