/* The reference: the formulas, in double, one product after the other. Never optimized; every level answers to it. */
#include "base/num.h"
#include "ops/lora/lora_slots.h"

static double operand(const ag_lora_plan *plan, float x) { return plan->bf16 ? ag_round_bf16(x) : x; }

static double dropped(const ag_lora_plan *plan, const float *x, int64_t t, int64_t k)
{
    const int64_t index = t * plan->K + k;
    if (plan->dropout.drop == 0) return operand(plan, x[index]);
    return dropout_keeps(&plan->dropout, (uint64_t)index) ? operand(plan, x[index] * plan->dropout.scale) : 0;
}

static void pack(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1)
{
    (void)plan, (void)k0, (void)k1, (void)n0, (void)n1; /* the reference reads A and B where they lie */
}

static void forward(const ag_lora_plan *plan, int64_t t0, int64_t t1)
{
    const int64_t K = plan->K, N = plan->N, R = plan->R;
    const float *x = plan->fwd->x.data, *a = plan->fwd->a.data, *b = plan->fwd->b.data;
    float *h = plan->fwd->h.data, *y = plan->fwd->y.data;
    for (int64_t t = t0; t < t1; t++) {
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += dropped(plan, x, t, k) * operand(plan, a[r * K + k]);
            h[t * R + r] = (float)sum;
        }
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t r = 0; r < R; r++) sum += operand(plan, h[t * R + r]) * operand(plan, b[n * R + r]);
            y[t * N + n] = (float)(y[t * N + n] + plan->fwd->scale * sum);
        }
    }
}

static void backward(const ag_lora_plan *plan, int64_t group)
{
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp;
    const float *dy = plan->bwd->dy.data, *a = plan->bwd->a.data, *b = plan->bwd->b.data;
    float *dx = plan->bwd->dx.data;
    const int64_t t0 = group * plan->rows_per_group;
    for (int64_t t = t0; t < t0 + plan->rows_per_group && t < plan->T; t++) {
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t n = 0; n < N; n++) sum += operand(plan, dy[t * N + n]) * operand(plan, b[n * R + r]);
            plan->dh[t * Rp + r] = (float)(plan->bwd->scale * sum);
        }
        for (int64_t k = 0; dx && k < K; k++) {
            if (plan->dropout.drop && !dropout_keeps(&plan->dropout, (uint64_t)(t * K + k))) continue;
            double sum = 0;
            for (int64_t r = 0; r < R; r++) sum += operand(plan, plan->dh[t * Rp + r]) * operand(plan, a[r * K + k]);
            dx[t * K + k] = (float)(dx[t * K + k] + plan->dropout.scale * sum);
        }
    }
}

static void sums(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1)
{
    const int64_t K = plan->K, N = plan->N, R = plan->R, Rp = plan->Rp;
    const float *dy = plan->bwd->dy.data, *x = plan->bwd->x.data, *h = plan->bwd->h.data;
    float *da = plan->bwd->da.data, *db = plan->bwd->db.data;
    for (int64_t k = k0; k < k1; k++)
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t t = 0; t < plan->T; t++) sum += operand(plan, plan->dh[t * Rp + r]) * dropped(plan, x, t, k);
            da[r * K + k] = (float)(da[r * K + k] + sum);
        }
    for (int64_t n = n0; n < n1; n++)
        for (int64_t r = 0; r < R; r++) {
            double sum = 0;
            for (int64_t t = 0; t < plan->T; t++) sum += operand(plan, dy[t * N + n]) * operand(plan, h[t * R + r]);
            db[n * R + r] = (float)(db[n * R + r] + plan->bwd->scale * sum);
        }
}

const ag_lora_kernel ag_lora_kernel_ref = {.pack = pack, .fwd = forward, .bwd = backward, .sums = sums};
