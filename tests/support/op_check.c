#include "support/op_check.h"

enum { GUARD = 16 };
static const float GUARD_VALUE = 12345.0f;

float *check_floats(int64_t n)
{
    float *p = malloc((size_t)(n + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) p[i] = GUARD_VALUE;
    return p + GUARD;
}

void check_free(float *p)
{
    if (p) free(p - GUARD);
}

void check_guards(const float *p, int64_t n, const char *what)
{
    for (int i = 1; i <= GUARD; i++)
        if (p[-i] != GUARD_VALUE || p[n + i - 1] != GUARD_VALUE) fail_msg("%s: written outside its %lld values", what, (long long)n);
}

void check_fill(float *p, int64_t n, uint32_t seed, float scale)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        p[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
}

void check_close(const float *got, const float *want, int64_t n, double tolerance, const char *what)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    if (!(largest > 0)) fail_msg("%s: the reference is all zeros, so comparing proves nothing", what);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * largest))
            fail_msg("%s: [%lld] is %.9g, want %.9g (largest %.3g, tolerance %.3g)", what, (long long)i, (double)got[i],
                     (double)want[i], largest, tolerance);
}

ag_backend check_backend(ag_cpu_level level, int n_threads)
{
    ag_backend be;
    ag_err err;
    if (ag_backend_init_cpu(&be, level, n_threads, &err)) fail_msg("%s", err.text);
    return be;
}

void check_backend_scratch(ag_backend *be, size_t bytes)
{
    if (bytes <= be->scratch.bytes) return;
    free(be->scratch.data);
    be->scratch.bytes = (bytes + 63) & ~(size_t)63;
    be->scratch.data = aligned_alloc(64, be->scratch.bytes);
    assert_non_null(be->scratch.data);
}

void check_backend_free(ag_backend *be)
{
    free(be->scratch.data);
    be->scratch.data = NULL;
    be->scratch.bytes = 0;
}

const ag_cpu_level *check_levels(void)
{
    static ag_cpu_level levels[AG_N_CPU_LEVELS];
    int n = 0;
    for (int i = AG_CPU_REF + 1; i < AG_N_CPU_LEVELS; i++)
        if (ag_cpu_has_level((ag_cpu_level)i)) levels[n++] = (ag_cpu_level)i;
    levels[n] = AG_CPU_REF;
    return levels;
}
