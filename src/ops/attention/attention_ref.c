/* The reference: the formulas, in double, one score after the other. Never optimized; every level answers to it. */
#include "ops/attention/attention_slots.h"

#include <math.h>

size_t ag_attention_worker_bytes_ref(int64_t longest, int64_t H, int64_t G, int64_t D)
{
    (void)H;
    (void)G;
    return (size_t)(longest + 2 * D) * sizeof(double);
}

static double dot(const float *a, const float *b, int64_t D)
{
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)a[d] * b[d];
    return sum;
}

static double capped(double s, float cap) { return cap > 0 ? (double)cap * tanh(s / (double)cap) : s; }

void ag_attention_fwd_ref(const ag_attention_fwd_args *a, const ag_attention_unit *u, void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], kv0 = u->span->kv0;
    const float *K = a->k.data, *V = a->v.data;
    double *p = scratch, *o = p + u->span->n_kv;
    for (int64_t t = u->t0; t < u->t1; t++) {
        const int64_t first = ag_attention_keys_first(u->span, a->window, t), end = ag_attention_keys_end(u->span, t);
        for (int64_t h = u->g * (H / G); h < (u->g + 1) * (H / G); h++) {
            const int64_t row = (u->span->q0 + t) * H + h;
            const float *q = (const float *)a->q.data + row * D;
            double max = -INFINITY, sum = 0;
            for (int64_t j = first; j < end; j++) {
                p[j] = capped((double)a->scale * dot(q, K + ((kv0 + j) * G + u->g) * D, D), a->softcap);
                max = fmax(max, p[j]);
            }
            for (int64_t d = 0; d < D; d++) o[d] = 0;
            for (int64_t j = first; j < end; j++) {
                const float *v = V + ((kv0 + j) * G + u->g) * D;
                p[j] = exp(p[j] - max);
                sum += p[j];
                for (int64_t d = 0; d < D; d++) o[d] += p[j] * v[d];
            }
            for (int64_t d = 0; d < D; d++) ((float *)a->o.data)[row * D + d] = (float)(o[d] / sum);
            if (a->lse.data) ((float *)a->lse.data)[row] = (float)(max + log(sum));
        }
    }
}

/* p[i,j] and ds[i,j] of query row `row` (token·H + head) and key row `key` (token·G + group). */
static void pair(const ag_attention_bwd_args *a, int64_t row, int64_t key, double *p, double *ds)
{
    const int64_t D = a->q.dim[2];
    const float *q = (const float *)a->q.data + row * D, *k = (const float *)a->k.data + key * D;
    const float *v = (const float *)a->v.data + key * D;
    const float *d_o = (const float *)a->d_o.data + row * D, *o = (const float *)a->o.data + row * D;
    const double s = capped((double)a->scale * dot(q, k, D), a->softcap), t = a->softcap > 0 ? s / (double)a->softcap : 0;
    *p = exp(s - ((const float *)a->lse.data)[row]);
    *ds = *p * (dot(d_o, v, D) - dot(d_o, o, D)) * (1 - t * t);
}

void ag_attention_bwd_ref(const ag_attention_bwd_args *a, const ag_attention_unit *u, float *dk, float *dv, int64_t pitch,
                          void *scratch)
{
    const int64_t H = a->q.dim[1], G = a->k.dim[1], D = a->q.dim[2], h0 = u->g * (H / G), h1 = h0 + H / G;
    double *x = scratch, *y = x + D, p, ds;
    for (int64_t t = u->t0; t < u->t1; t++)
        for (int64_t h = h0; h < h1; h++) {
            const int64_t row = (u->span->q0 + t) * H + h;
            for (int64_t d = 0; d < D; d++) x[d] = 0;
            for (int64_t j = ag_attention_keys_first(u->span, a->window, t); j < ag_attention_keys_end(u->span, t); j++) {
                const int64_t key = (u->span->kv0 + j) * G + u->g;
                pair(a, row, key, &p, &ds);
                for (int64_t d = 0; d < D; d++) x[d] += ds * ((const float *)a->k.data)[key * D + d];
            }
            for (int64_t d = 0; d < D; d++) ((float *)a->dq.data)[row * D + d] = (float)((double)a->scale * x[d]);
        }
    for (int64_t j = 0; j < u->span->n_kv; j++) {
        const int64_t key = (u->span->kv0 + j) * G + u->g;
        for (int64_t d = 0; d < D; d++) x[d] = y[d] = 0;
        for (int64_t h = h0; h < h1; h++)
            for (int64_t t = u->t0; t < u->t1; t++) {
                if (j < ag_attention_keys_first(u->span, a->window, t) || j >= ag_attention_keys_end(u->span, t)) continue;
                const int64_t row = (u->span->q0 + t) * H + h;
                pair(a, row, key, &p, &ds);
                for (int64_t d = 0; d < D; d++) {
                    x[d] += ds * ((const float *)a->q.data)[row * D + d];
                    y[d] += p * ((const float *)a->d_o.data)[row * D + d];
                }
            }
        for (int64_t d = 0; d < D; d++) {
            dk[j * pitch + d] += (float)((double)a->scale * x[d]);
            dv[j * pitch + d] += (float)y[d];
        }
    }
}
