/* The reference: the formulas of linear.h with sums in double, weights by their exact decoder. Never optimized. */
#include "base/num.h"
#include "ops/linear/linear_slots.h"

enum { ROWS = 16, DEPTH = 256, COLS = 64 };

static float operand(float x, ag_compute compute) { return compute == AG_COMPUTE_BF16 ? ag_round_bf16(x) : x; }

void ag_linear_fwd_ref(const ag_linear_fwd_args *a, int i, int64_t n0, int64_t n1)
{
    const int64_t T = a->x.dim[0], K = a->x.dim[1], N = a->w[i]->N;
    const float *x = a->x.data;
    float *y = a->y[i].data;
    for (int64_t n = n0; n < n1; n++)
        for (int64_t t0 = 0; t0 < T; t0 += ROWS) {
            const int64_t t1 = t0 + ROWS < T ? t0 + ROWS : T;
            double sum[ROWS] = {0};
            for (int64_t k0 = 0; k0 < K; k0 += DEPTH) {
                float w[DEPTH];
                const int64_t k1 = k0 + DEPTH < K ? k0 + DEPTH : K;
                ag_weight_row(w, a->w[i], n, k0, k1);
                for (int64_t t = t0; t < t1; t++)
                    for (int64_t k = k0; k < k1; k++)
                        sum[t - t0] += (double)operand(x[t * K + k], a->compute) * operand(w[k - k0], a->compute);
            }
            for (int64_t t = t0; t < t1; t++) {
                const double before = a->accumulate ? y[t * N + n] : 0, bias = a->bias[i] ? a->bias[i][n] : 0;
                y[t * N + n] = (float)(before + a->scale * sum[t - t0] + bias);
            }
        }
}

void ag_linear_bwd_ref(const ag_linear_bwd_args *a, int64_t k0, int64_t k1)
{
    const int64_t T = a->dx.dim[0], K = a->dx.dim[1];
    float *dx = a->dx.data;
    for (int64_t t0 = 0; t0 < T; t0 += ROWS)
        for (int64_t c0 = k0; c0 < k1; c0 += COLS) {
            const int64_t t1 = t0 + ROWS < T ? t0 + ROWS : T, c1 = c0 + COLS < k1 ? c0 + COLS : k1;
            double sum[ROWS][COLS] = {{0}};
            for (int i = 0; i < a->n; i++) {
                const int64_t N = a->w[i]->N;
                const float *dy = a->dy[i].data;
                for (int64_t n = 0; n < N; n++) {
                    float w[COLS];
                    ag_weight_row(w, a->w[i], n, c0, c1);
                    for (int64_t t = t0; t < t1; t++)
                        for (int64_t c = c0; c < c1; c++)
                            sum[t - t0][c - c0] += (double)operand(dy[t * N + n], a->compute) * operand(w[c - c0], a->compute);
                }
            }
            for (int64_t t = t0; t < t1; t++)
                for (int64_t c = c0; c < c1; c++) {
                    const double before = a->accumulate ? dx[t * K + c] : 0;
                    dx[t * K + c] = (float)(before + a->scale * sum[t - t0][c - c0]);
                }
        }
}
