/* Wall clock against monotonic clock. Records of one host are ordered by the monotonic clock; the wall clock is for people. What a
 * calibration says is whether the two ran together: their offset, their drift, and every place where one of them jumped, so that no
 * reading is joined to a step across a jump.
 *
 * An observation is one reading of both clocks. Between neighbours in monotonic order, with m and w the time that passed on each:
 *     w < 0            backward_wall_clock   refused
 *     w - m >  bound   forward_jump          degraded
 *     w - m < -bound   backward_wall_clock   refused
 * and, where observations have roles, a monotonic clock that falls in the order of writing is a monotonic_regression (refused).
 * Drift is judged between neighbours only; a slow one is reported and not flagged. */
#ifndef AG_F0_CLOCK_H
#define AG_F0_CLOCK_H

#include "base/arena.h"
#include "lab/f0_record.h"

typedef enum { AG_CLOCK_NO_ROLE, AG_CLOCK_START, AG_CLOCK_END, AG_CLOCK_SAMPLE } ag_clock_role;
typedef struct {
    ag_clock_role role;
    int64_t monotonic_ns, wall_ns;
    const char *timestamp; /* as it was written; borrowed */
} ag_clock_observation;

typedef enum { AG_CLOCK_OK, AG_CLOCK_DEGRADED, AG_CLOCK_REFUSED } ag_clock_grade; /* later is worse */
const char *ag_clock_validity_name(ag_clock_grade grade);    /* ok, degraded, refused */
const char *ag_clock_correlation_name(ag_clock_grade grade); /* allowed, degraded, refused */

typedef enum { AG_CLOCK_FORWARD_JUMP, AG_CLOCK_BACKWARD_WALL, AG_CLOCK_REGRESSION } ag_clock_jump_kind;
const char *ag_clock_jump_name(ag_clock_jump_kind kind);
ag_clock_grade ag_clock_jump_grade(ag_clock_jump_kind kind);

typedef struct {
    ag_clock_jump_kind kind;
    ag_clock_observation from, to;
} ag_clock_jump;

enum { AG_CLOCK_DEFAULT_BOUND_NS = 1000000000 };
typedef struct {
    int64_t bound_ns;                                   /* at least 1 */
    int64_t monotonic_resolution_ns, wall_resolution_ns; /* at least 1 */
} ag_clock_settings;
#define AG_CLOCK_DEFAULTS {AG_CLOCK_DEFAULT_BOUND_NS, 1, 1}

typedef struct {
    ag_clock_settings settings;
    const ag_clock_observation *observations; /* borrowed, in the order of writing */
    size_t n_observations;
    ag_clock_observation start, end; /* end only where has_end */
    bool has_end, has_drift;
    int64_t offset_ns, end_offset_ns; /* wall - monotonic */
    double drift_ns_per_s;
    ag_clock_jump *jumps; /* regressions first, then by monotonic time */
    size_t n_jumps;
    ag_clock_grade validity, correlation;
} ag_clock_calibration;

/* Jumps lie in the arena; `observations` must outlive the result. At least one observation. */
AG_MUST_USE ag_status ag_clock_calibrate(ag_clock_calibration *out, const ag_clock_observation *observations, size_t n,
                                         ag_clock_settings settings, ag_arena *arena, ag_err *err);
/* What joins a marker to a sample taken later: the worst jump that lies between them. */
ag_clock_grade ag_clock_between(const ag_clock_calibration *calibration, int64_t marker_ns, int64_t sample_ns);

/* A list of {role?, timestamp_utc, monotonic_ns, wall_ns?}; without wall_ns the timestamp says it, with it the timestamp is not asked. */
AG_MUST_USE ag_status ag_clock_observations_read(ag_clock_observation **out, size_t *n, const json_t *list, ag_arena *arena, ag_err *err);
/* `assumed_utc_bound_ns` and `clock_resolution` of an object, with the defaults where they are missing. */
AG_MUST_USE ag_status ag_clock_settings_read(ag_clock_settings *out, const json_t *object, ag_err *err);

/* Both clocks now, and their resolutions (at least 1 ns each). */
void ag_clock_observe(ag_clock_observation *out, ag_clock_role role, char timestamp[40]);
ag_clock_settings ag_clock_settings_here(void);

/* A bkl_clock_skew record. `envelope` gives agoge_run_id, host, gpu and collector. The caller frees the result. */
json_t *ag_clock_record_make(const ag_clock_calibration *calibration, const json_t *envelope);
/* Checks every field of a record, and that calibrating its own observations gives what it says; *out borrows from it. */
AG_MUST_USE ag_status ag_clock_record_check(ag_clock_calibration *out, const json_t *record, ag_arena *arena, ag_err *err);

#endif
