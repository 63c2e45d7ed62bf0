/* One row of a frozen dataset: its identities and digests. Private to data/. */
#ifndef AG_SPLIT_ROW_H
#define AG_SPLIT_ROW_H

#include "base/fs.h"
#include "base/json.h"
#include "data/split.h"

enum { AG_SPLIT_MAX_ID_BYTES = 4096, AG_SPLIT_FORGET_ROWS = 2048 /* read in any order before their pages are let go */ };

/* 128 bits of SHA-256: two texts have the same key only where they are the same text. {0, 0} is no text's. */
typedef struct {
    uint64_t high, low;
} ag_split_key;
ag_split_key ag_split_key_of(const char *bytes, size_t n);
ag_split_key ag_split_key_of_digest(const ag_sha256 *digest); /* of hexadecimal digits */

typedef struct {
    json_t *root;                              /* owned */
    ag_str canonical_id, lineage_id, group_id; /* trimmed; group_id.n 0: none */
    ag_sha256 content;
    ag_str made; /* for digests */
} ag_split_row;

/* Reads one line into *row, whose memory is used again from row to row ({0} at first). For a new snapshot (is_new) the row must
 * be text. The sentence begins "<name>: line <number>: ". */
AG_MUST_USE ag_status ag_split_row_read(ag_split_row *row, const char *line, size_t n, const ag_split_identity *identity,
                                        bool is_new, const char *name, size_t number, ag_err *err);
/* Only the three ids: what assigning and ordering need again. */
AG_MUST_USE ag_status ag_split_row_read_ids(ag_split_row *row, const char *line, size_t n, const ag_split_identity *identity,
                                            const char *name, size_t number, ag_err *err);
void ag_split_row_free(ag_split_row *row);

/* The split of a component with this anchor. */
ag_split_name ag_split_bucket(const ag_split_policy *policy, const char *anchor, size_t n);
/* Of a row alone: its group's, else its lineage's. */
ag_split_name ag_split_row_bucket(ag_split_row *row, const ag_split_policy *policy);

/* The lines of a mapped file that are not blank. */
typedef struct {
    uint64_t start;
    uint32_t n;      /* bytes, without the newline */
    uint32_t number; /* from 1 */
} ag_split_line;
typedef struct {
    ag_split_line *line;
    size_t n, bytes; /* bytes: of the block */
} ag_split_lines;
/* Also takes the file's digest, and lets go of its pages behind itself. */
AG_MUST_USE ag_status ag_split_lines_find(ag_split_lines *lines, ag_sha256 *digest, const ag_map *map, const char *name,
                                          ag_err *err);
void ag_split_lines_free(ag_split_lines *lines);

#endif
