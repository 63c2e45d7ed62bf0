/* The reference: the formulas, in double, one row after the other over the whole vocabulary. Never optimized; every level
 * answers to it. */
#include "base/num.h"
#include "ops/head_ce/head_ce_slots.h"

#include <math.h>

static double operand(const ag_head_ce_args *a, float x) { return a->compute == AG_COMPUTE_BF16 ? ag_round_bf16(x) : x; }

void ag_head_ce_row_ref(const ag_head_ce_args *a, int64_t m, float *weight_row, double *logits)
{
    const int64_t C = a->w->K, V = a->w->N;
    const float *x = (const float *)a->x.data + m * C;
    const int32_t target = ((const int32_t *)a->targets.data)[m];

    int64_t best = 0;
    for (int64_t v = 0; v < V; v++) {
        ag_weight_row(weight_row, a->w, v, 0, C);
        double dot = 0;
        for (int64_t c = 0; c < C; c++) dot += operand(a, x[c]) * operand(a, weight_row[c]);
        logits[v] = a->logit_scale * dot;
        if (a->softcap > 0) logits[v] = (double)a->softcap * tanh(logits[v] / (double)a->softcap);
        if (logits[v] > logits[best]) best = v;
    }
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - logits[best]);
    ((float *)a->nll.data)[m] = (float)(log(sum) + logits[best] - logits[target]);
    if (a->best.data) ((int32_t *)a->best.data)[m] = (int32_t)best;
    if (!a->dx.data) return;

    double *dx = logits + V;
    for (int64_t c = 0; c < C; c++) dx[c] = 0;
    for (int64_t v = 0; v < V; v++) {
        const double t = a->softcap > 0 ? logits[v] / (double)a->softcap : 0;
        const double dlogit = (exp(logits[v] - logits[best]) / sum - (v == target)) * (1 - t * t);
        ag_weight_row(weight_row, a->w, v, 0, C);
        for (int64_t c = 0; c < C; c++) dx[c] += dlogit * operand(a, weight_row[c]);
    }
    for (int64_t c = 0; c < C; c++) ((float *)a->dx.data)[m * C + c] = (float)((double)a->dloss * a->logit_scale * dx[c]);
}
