#include "ops/lora/lora.h"

#include "base/arena.h"
#include "ops/backend.h"
#include "ops/profile.h"
#include "ops/simd_levels.h"

void ag_lora_use(ag_lora_slots *slots, ag_cpu_level level)
{
    const ag_lora_kernel *kernel = &ag_lora_kernel_ref;
    AG_USE_SIMD(kernel, &ag_lora_kernel, level);
    *slots = (ag_lora_slots){.kernel = {kernel, kernel}};
#if defined(__x86_64__)
    if (level >= AG_CPU_AVX512 && ag_cpu_has_avx512_bf16()) slots->kernel[AG_COMPUTE_BF16] = &ag_lora_kernel_avx512bf16;
    if (level >= AG_CPU_AMX) slots->kernel[AG_COMPUTE_BF16] = &ag_lora_kernel_amx;
#endif
}

bool ag_dropout_keeps(const ag_dropout *dropout, uint64_t index)
{
    const dropout_plan plan = dropout_plan_make(dropout);
    return dropout_keeps(&plan, index);
}

float ag_dropout_scale(const ag_dropout *dropout) { return dropout_plan_make(dropout).scale; }

/* ---- sizes -------------------------------------------------------------------------------------------------------- */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
static int64_t padded(int64_t n, int64_t to) { return blocks(n, to) * to; }

static void set_sizes(ag_lora_plan *plan, int64_t T, int64_t K, int64_t N, int64_t R)
{
    plan->T = T, plan->K = K, plan->N = N, plan->R = R;
    plan->Kp = padded(K, LORA_PANEL), plan->Np = padded(N, LORA_PANEL), plan->Rp = padded(R, LORA_RANKS);
    plan->rows_per_group = padded(blocks(T, LORA_GROUPS), LORA_ROWS);
    if (plan->rows_per_group == 0) plan->rows_per_group = LORA_ROWS;
    plan->n_groups = blocks(T, plan->rows_per_group);
}

static void place(ag_lora_plan *plan, ag_layout *layout, bool backward)
{
    const size_t rank_bytes = (size_t)plan->Rp * sizeof(float);
    plan->a = ag_layout_place(layout, (size_t)plan->Kp * rank_bytes);
    plan->b = ag_layout_place(layout, (size_t)plan->Np * rank_bytes);
    if (!backward) return;
    plan->dh = ag_layout_place(layout, (size_t)padded(plan->T, LORA_ROWS) * rank_bytes);
    plan->da_part = ag_layout_place(layout, (size_t)(plan->n_groups * plan->Kp) * rank_bytes);
    plan->db_part = ag_layout_place(layout, (size_t)(plan->n_groups * plan->Np) * rank_bytes);
}

size_t ag_lora_scratch_bytes(const ag_backend *be, int64_t T, int64_t K, int64_t N, int64_t R)
{
    (void)be;
    ag_lora_plan plan = {0};
    ag_layout layout = {0};
    set_sizes(&plan, T, K, N, R);
    plan.n_groups = min64(blocks(T, LORA_ROWS), LORA_GROUPS); /* a call with fewer tokens may have more groups */
    place(&plan, &layout, true);
    return layout.bytes;
}

/* ---- checks ------------------------------------------------------------------------------------------------------- */

static ag_status check_matrix(ag_tensor t, const char *name, int64_t rows, int64_t columns, const char *shape, ag_err *err)
{
    if (ag_tensor_is(t, AG_F32, 2, rows, columns)) return AG_OK;
    return ag_fail(err, AG_E_SHAPE, "lora: %s is [%lld,%lld], must be f32 %s = [%lld,%lld]", name, (long long)t.dim[0],
                   (long long)t.dim[1], shape, (long long)rows, (long long)columns);
}

static ag_status check(ag_tensor x, ag_tensor a, ag_tensor b, ag_tensor h, ag_tensor y, const char *y_name,
                       const ag_dropout *dropout, ag_err *err)
{
    const int64_t T = x.dim[0], K = x.dim[1], R = a.dim[0], N = b.dim[0];
    AG_TRY(check_matrix(x, "x", T, K, "[T,K]", err));
    AG_TRY(check_matrix(a, "a", R, K, "[R,K]", err));
    AG_TRY(check_matrix(b, "b", N, R, "[N,R]", err));
    AG_TRY(check_matrix(h, "h", T, R, "[T,R]", err));
    AG_TRY(check_matrix(y, y_name, T, N, "[T,N]", err));
    if (R < 1 || R > AG_LORA_MAX_R)
        return ag_fail(err, AG_E_UNSUPPORTED, "lora: rank %lld is not supported; give a rank from 1 to %d", (long long)R,
                       AG_LORA_MAX_R);
    if (!(dropout->p >= 0 && dropout->p < 1))
        return ag_fail(err, AG_E_CONFIG, "lora: dropout is %g; it must be at least 0 and below 1", (double)dropout->p);
    return AG_OK;
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

static ag_lora_plan make_plan(const ag_backend *be, ag_tensor x, ag_tensor b, const ag_dropout *dropout, ag_compute compute,
                              bool backward)
{
    ag_lora_plan plan = {.bf16 = compute == AG_COMPUTE_BF16, .dropout = dropout_plan_make(dropout)};
    ag_layout layout = {.base = be->scratch.data};
    set_sizes(&plan, x.dim[0], x.dim[1], b.dim[0], b.dim[1]);
    place(&plan, &layout, backward);
    AG_ASSERT(be->scratch.data && layout.bytes <= be->scratch.bytes);
    return plan;
}

/* Calls `fn` for the panels of A, then for those of B, dealt to threads. */
static void over_panels(const ag_backend *be, const ag_lora_plan *plan, ag_lora_sums_fn *fn)
{
    const int64_t n_k = blocks(plan->K, LORA_PANEL), n_n = blocks(plan->N, LORA_PANEL);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t i = 0; i < n_k + n_n; i++) {
        const int64_t at = LORA_PANEL * (i < n_k ? i : i - n_k);
        if (i < n_k)
            fn(plan, at, min64(at + LORA_PANEL, plan->K), 0, 0);
        else
            fn(plan, 0, 0, at, min64(at + LORA_PANEL, plan->N));
    }
}

ag_status ag_lora_fwd(const ag_backend *be, const ag_lora_fwd_args *a, ag_err *err)
{
    AG_TRY(check(a->x, a->a, a->b, a->h, a->y, "y", &a->dropout, err));
    ag_lora_plan plan = make_plan(be, a->x, a->b, &a->dropout, a->compute, false);
    plan.fwd = a;
    AG_PROFILE(be, AG_PROFILE_LORA_FWD, 2.0 * (double)plan.T * (double)plan.R * (double)(plan.K + plan.N),
               4.0 * (double)((plan.K + plan.N) * plan.R + plan.T * (plan.K + plan.R + 2 * plan.N)));
    const ag_lora_kernel *kernel = be->lora.kernel[a->compute];
    if (kernel->few && plan.T <= AG_LORA_FEW) {
        kernel->few(&plan);
        return AG_OK;
    }
    over_panels(be, &plan, kernel->pack);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t t = 0; t < plan.T; t += LORA_ROWS)
        kernel->fwd(&plan, t, min64(t + LORA_ROWS, plan.T));
    return AG_OK;
}

ag_status ag_lora_bwd(const ag_backend *be, const ag_lora_bwd_args *a, ag_err *err)
{
    AG_TRY(check(a->x, a->a, a->b, a->h, a->dy, "dy", &a->dropout, err));
    AG_TRY(check_matrix(a->da, "da", a->a.dim[0], a->a.dim[1], "[R,K]", err));
    AG_TRY(check_matrix(a->db, "db", a->b.dim[0], a->b.dim[1], "[N,R]", err));
    if (a->dx.data) AG_TRY(check_matrix(a->dx, "dx", a->x.dim[0], a->x.dim[1], "[T,K]", err));
    ag_lora_plan plan = make_plan(be, a->x, a->b, &a->dropout, a->compute, true);
    plan.bwd = a;
    AG_PROFILE(be, AG_PROFILE_LORA_BWD, 2.0 * (double)plan.T * (double)plan.R * (double)((a->dx.data ? 2 : 1) * plan.K + 2 * plan.N),
               4.0 * (double)(3 * (plan.K + plan.N) * plan.R + plan.T * ((a->dx.data ? 3 : 1) * plan.K + plan.N + plan.R)));
    const ag_lora_kernel *kernel = be->lora.kernel[a->compute];
    over_panels(be, &plan, kernel->pack);
#pragma omp parallel for schedule(static) num_threads(be->n_threads)
    for (int64_t group = 0; group < plan.n_groups; group++) kernel->bwd(&plan, group);
    over_panels(be, &plan, kernel->sums);
    return AG_OK;
}
