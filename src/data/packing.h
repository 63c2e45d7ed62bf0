/* Which rows share a packed row of at most `capacity` tokens: best-fit decreasing, as TRL's "bfd" packs.
 *
 * Rows are taken from the longest to the shortest (equal ones in their order) and go where the least room is left that still
 * takes them, into the one that has had that room for the longest time; else into a new packed row. Deterministic. Documents
 * of a packed row do not see each other: each keeps its own positions and its own attention span (batch.h).
 *
 *     ag_packing p;
 *     AG_TRY(ag_packing_make(&p, x->offset, x->n, 512, err));
 *     … packed row b holds rows p.row[p.offset[b] … p.offset[b+1]) …
 *     ag_packing_free(&p); */
#ifndef AG_PACKING_H
#define AG_PACKING_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    int64_t *row;                      /* [n_rows], grouped by packed row */
    int64_t *offset;                   /* [n + 1] */
    int64_t n;                         /* packed rows */
    int64_t longest_tokens, most_rows; /* the largest packed row, and the one with the most documents */
} ag_packing;

/* offset: n_rows + 1 ascending numbers; row r has offset[r+1] - offset[r] tokens, 1 to capacity (a longer one is AG_E_DATA). */
AG_MUST_USE ag_status ag_packing_make(ag_packing *p, const int64_t *offset, int64_t n_rows, int64_t capacity, ag_err *err);
void ag_packing_free(ag_packing *p);

#endif
