/* The public face: checks once for all levels, then either the reference or the blocked driver. */
#include "ops/linear/linear.h"

#include "ops/backend.h"
#include "ops/linear/linear_gemm.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

/* Columns that a thread takes at a time from the reference. */
enum { REF_COLS = 32 };

void ag_linear_use(ag_linear_slots *slots, ag_cpu_level level)
{
    *slots = (ag_linear_slots){.fwd = ag_linear_fwd_ref, .bwd = ag_linear_bwd_ref};
    const ag_linear_kernel *kernels = NULL;
    AG_USE_SIMD(kernels, ag_linear_kernels, level);
    if (kernels)
        for (int compute = 0; compute < 2; compute++) slots->kernel[compute] = &kernels[compute];
#if defined(__x86_64__)
    if (level >= AG_CPU_AVX512 && ag_cpu_has_avx512_bf16()) slots->kernel[AG_COMPUTE_BF16] = &ag_linear_kernel_avx512bf16;
    if (level >= AG_CPU_AMX) slots->kernel[AG_COMPUTE_BF16] = &ag_linear_kernel_amx;
#endif
}

size_t ag_linear_scratch_bytes(const ag_backend *be, int64_t T, int64_t K, int64_t N)
{
    size_t largest = 0;
    for (int compute = 0; compute < 2 && T > 0; compute++)
        if (be->linear.kernel[compute]) {
            const size_t bytes = ag_linear_gemm_scratch(be->linear.kernel[compute], be->n_threads, T, K, N);
            if (bytes > largest) largest = bytes;
        }
    return largest;
}

static ag_status check_count(int n, ag_err *err)
{
    if (n < 1 || n > AG_LINEAR_MAX)
        return ag_fail(err, AG_E_SHAPE, "linear: a call takes 1 to %d weights, not %d", AG_LINEAR_MAX, n);
    return AG_OK;
}

/* `shared` is x or dx [T,K], `own` y or dy of weight i. */
static ag_status check_weight(const ag_weight *w, int i, ag_tensor shared, const char *shared_name, ag_tensor own,
                              const char *own_name, ag_err *err)
{
    const int64_t T = shared.dim[0], K = shared.dim[1];
    if (!w || w->N < 1) return ag_fail(err, AG_E_SHAPE, "linear: weight %d is missing or has no rows", i);
    if (w->K != K)
        return ag_fail(err, AG_E_SHAPE, "linear: weight %d has %lld columns, %s has %lld", i, (long long)w->K, shared_name,
                       (long long)K);
    if (!ag_tensor_is(own, AG_F32, 2, T, w->N))
        return ag_fail(err, AG_E_SHAPE, "linear: %s[%d] must be a [%lld,%lld] f32 matrix", own_name, i, (long long)T,
                       (long long)w->N);
    if (own.data == shared.data)
        return ag_fail(err, AG_E_SHAPE, "linear: %s[%d] must not be %s itself", own_name, i, shared_name);
    return AG_OK;
}

static ag_status check_shared(ag_tensor t, const char *name, ag_err *err)
{
    if (!ag_tensor_is(t, AG_F32, 2, t.dim[0], t.dim[1]) || t.dim[0] < 0 || t.dim[1] < 1)
        return ag_fail(err, AG_E_SHAPE, "linear: %s must be a [T,K] f32 matrix", name);
    return AG_OK;
}

static void check_scratch(const ag_backend *be, const ag_linear_kernel *kernel, int64_t T, int64_t K, const ag_weight *const *w, int n)
{
    int64_t N = 0;
    for (int i = 0; i < n; i++)
        if (w[i]->N > N) N = w[i]->N;
    AG_ASSERT(be->scratch.bytes >= ag_linear_gemm_scratch(kernel, be->n_threads, T, K, N));
}

static double flop_of(int64_t T, const ag_weight *const *w, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += 2.0 * (double)T * (double)w[i]->N * (double)w[i]->K;
    return sum;
}

/* Weights once, the shared matrix once, each own matrix once. */
static double bytes_of(int64_t T, int64_t K, const ag_weight *const *w, int n)
{
    double sum = 4.0 * (double)(T * K);
    for (int i = 0; i < n; i++) sum += (double)ag_weight_bytes(w[i]) + 4.0 * (double)(T * w[i]->N);
    return sum;
}

ag_status ag_linear_fwd(const ag_backend *be, const ag_linear_fwd_args *a, ag_err *err)
{
    AG_TRY(check_count(a->n, err));
    AG_TRY(check_shared(a->x, "x", err));
    for (int i = 0; i < a->n; i++) AG_TRY(check_weight(a->w[i], i, a->x, "x", a->y[i], "y", err));
    const int64_t T = a->x.dim[0];
    AG_PROFILE(be, AG_PROFILE_LINEAR_FWD, flop_of(T, a->w, a->n), bytes_of(T, a->x.dim[1], a->w, a->n));
    const ag_linear_kernel *kernel = be->linear.kernel[a->compute];
    if (kernel && T > 0) {
        check_scratch(be, kernel, T, a->x.dim[1], a->w, a->n);
        if (T <= AG_LINEAR_FEW)
            ag_linear_few(be, kernel, a);
        else
            ag_linear_gemm_fwd(be, kernel, a);
        return AG_OK;
    }
    for (int i = 0; i < a->n; i++) {
        const int64_t N = a->w[i]->N;
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
        for (int64_t n = 0; n < N; n += REF_COLS) be->linear.fwd(a, i, n, n + REF_COLS < N ? n + REF_COLS : N);
    }
    return AG_OK;
}

ag_status ag_linear_bwd(const ag_backend *be, const ag_linear_bwd_args *a, ag_err *err)
{
    AG_TRY(check_count(a->n, err));
    AG_TRY(check_shared(a->dx, "dx", err));
    for (int i = 0; i < a->n; i++) AG_TRY(check_weight(a->w[i], i, a->dx, "dx", a->dy[i], "dy", err));
    const int64_t T = a->dx.dim[0], K = a->dx.dim[1];
    AG_PROFILE(be, AG_PROFILE_LINEAR_BWD, flop_of(T, a->w, a->n), bytes_of(T, K, a->w, a->n));
    const ag_linear_kernel *kernel = be->linear.kernel[a->compute];
    if (kernel && T > 0) {
        check_scratch(be, kernel, T, K, a->w, a->n);
        ag_linear_gemm_bwd(be, kernel, a);
        return AG_OK;
    }
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t k = 0; k < K; k += REF_COLS) be->linear.bwd(a, k, k + REF_COLS < K ? k + REF_COLS : K);
    return AG_OK;
}
