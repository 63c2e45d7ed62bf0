/* Which marker a GPU sample belongs to: on one run and host, the last marker at or before the sample whose GPU is the sample's. The
 * monotonic clock orders; the wall clock only breaks ties. A sample before the first marker belongs to none. */
#ifndef AG_F0_JOIN_H
#define AG_F0_JOIN_H

#include "base/arena.h"
#include "lab/f0_clock.h"
#include "lab/f0_record.h"

typedef struct {
    const ag_f0_record *sample, *marker; /* marker NULL: unjoined */
} ag_f0_pair;

/* One pair per sample, in the order given; in the arena. Markers need run_id, hostname, gpu, monotonic_ns and wall_ns alone. */
ag_f0_pair *ag_f0_join(const ag_f0_record *markers, size_t n_markers, const ag_f0_record *samples, size_t n_samples, ag_arena *arena);

/* The markers sorted as a join reads them: by monotonic_ns, then by timestamp. */
const ag_f0_record **ag_f0_sorted(const ag_f0_record *records, size_t n, ag_arena *arena);

typedef struct {
    size_t ok, degraded, refused, unjoined;
} ag_f0_join_counts;
ag_f0_join_counts ag_f0_join_classify(const ag_f0_pair *pairs, size_t n, const ag_clock_calibration *calibration);

#endif
