#include "lab/f0_join.h"

#include <stdlib.h>
#include <string.h>

static int by_time(const void *a, const void *b)
{
    const ag_f0_record *x = *(const ag_f0_record *const *)a, *y = *(const ag_f0_record *const *)b;
    if (x->monotonic_ns != y->monotonic_ns) return x->monotonic_ns < y->monotonic_ns ? -1 : 1;
    if (x->wall_ns != y->wall_ns) return x->wall_ns < y->wall_ns ? -1 : 1;
    return x < y ? -1 : x > y; /* file order */
}

const ag_f0_record **ag_f0_sorted(const ag_f0_record *records, size_t n, ag_arena *arena)
{
    const ag_f0_record **sorted = ag_arena_array(arena, n + 1, sizeof *sorted);
    for (size_t i = 0; i < n; i++) sorted[i] = &records[i];
    qsort(sorted, n, sizeof *sorted, by_time);
    return sorted;
}

ag_f0_pair *ag_f0_join(const ag_f0_record *markers, size_t n_markers, const ag_f0_record *samples, size_t n_samples, ag_arena *arena)
{
    const ag_f0_record **sorted = ag_f0_sorted(markers, n_markers, arena);
    ag_f0_pair *pairs = ag_arena_array(arena, n_samples + 1, sizeof *pairs);
    for (size_t i = 0; i < n_samples; i++) {
        const ag_f0_record *s = &samples[i];
        size_t low = 0, high = n_markers; /* markers[low..] are later than the sample */
        while (low < high) {
            const size_t middle = low + (high - low) / 2;
            if (sorted[middle]->monotonic_ns <= s->monotonic_ns)
                low = middle + 1;
            else
                high = middle;
        }
        pairs[i].sample = s;
        while (low-- > 0) {
            const ag_f0_record *m = sorted[low];
            if (strcmp(m->run_id, s->run_id) == 0 && strcmp(m->hostname, s->hostname) == 0 && ag_f0_same_gpu(&m->gpu, &s->gpu)) {
                pairs[i].marker = m;
                break;
            }
        }
    }
    return pairs;
}

ag_f0_join_counts ag_f0_join_classify(const ag_f0_pair *pairs, size_t n, const ag_clock_calibration *calibration)
{
    ag_f0_join_counts counts = {0};
    for (size_t i = 0; i < n; i++) {
        if (!pairs[i].marker) {
            counts.unjoined++;
            continue;
        }
        switch (ag_clock_between(calibration, pairs[i].marker->monotonic_ns, pairs[i].sample->monotonic_ns)) {
        case AG_CLOCK_OK: counts.ok++; break;
        case AG_CLOCK_DEGRADED: counts.degraded++; break;
        case AG_CLOCK_REFUSED: counts.refused++; break;
        }
    }
    return counts;
}
