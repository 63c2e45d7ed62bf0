#include "adapter/merge.h"

#include <math.h>
#include <string.h>

/* DoRA: the row of W + s·B·A scaled to its magnitude. A row of length 0 gives what is not finite, which whoever writes it refuses. */
static void scale_row(float *row, int64_t K, float magnitude)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++) sum += (double)row[k] * (double)row[k];
    const float gain = magnitude / (float)sqrt(sum);
    for (int64_t k = 0; k < K; k++) row[k] *= gain;
}

static void merge_row(float *out, const ag_weight *w, const ag_lora_view *pair, int64_t n)
{
    const int64_t K = w->K;
    ag_weight_row(out, w, n, 0, K);
    if (!pair || pair->R == 0) return;
    const float *b = pair->b + n * pair->R;
    /* Σ_r b_r·A_r in one pass over a stretch that stays in the first-level cache, then scaled and added once, as PEFT does it */
    enum { STRETCH = 1024 };
    float delta[STRETCH];
    for (int64_t k0 = 0; k0 < K; k0 += STRETCH) {
        const int64_t n_k = K - k0 < STRETCH ? K - k0 : STRETCH;
        memset(delta, 0, (size_t)n_k * sizeof *delta);
        for (int64_t r = 0; r < pair->R; r++) {
            const float *a = pair->a + r * K + k0;
            const float b_r = b[r];
#pragma omp simd
            for (int64_t k = 0; k < n_k; k++) delta[k] += b_r * a[k];
        }
#pragma omp simd
        for (int64_t k = 0; k < n_k; k++) out[k0 + k] += pair->scale * delta[k];
    }
    if (pair->is_dora) scale_row(out, K, pair->magnitude[n]);
}

void ag_merge_rows(float *out, const ag_weight *w, const ag_lora_view *pair, int64_t n0, int64_t n1, int n_threads)
{
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t n = n0; n < n1; n++) merge_row(out + (n - n0) * w->K, w, pair, n);
}

ag_status ag_merge_weight(const ag_weight *w, const ag_lora_view *pair, float *buffer, int64_t n_buffer, int n_threads,
                          ag_merge_sink *sink, void *user, ag_err *err)
{
    AG_ASSERT(n_buffer >= w->K);
    const int64_t n_rows = n_buffer / w->K;
    for (int64_t n = 0; n < w->N; n += n_rows) {
        const int64_t end = n + n_rows < w->N ? n + n_rows : w->N;
        ag_merge_rows(buffer, w, pair, n, end, n_threads);
        AG_TRY(sink(user, buffer, n, end, err));
    }
    return AG_OK;
}

void ag_deviation_add(ag_deviation *d, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double distance = fabs((double)a[i] - (double)b[i]);
        if (distance > d->largest) d->largest = distance;
        d->sum += distance;
        d->sum_wanted += fabs((double)b[i]);
    }
    d->n += n;
}

double ag_deviation_mean(const ag_deviation *d) { return d->n > 0 ? d->sum / (double)d->n : 0; }

double ag_deviation_relative(const ag_deviation *d) { return d->sum_wanted > 0 ? d->sum / d->sum_wanted : 0; }

void ag_deviation_add_weights(ag_deviation *d, const ag_weight *quantized, const ag_weight *original, float *buffer)
{
    AG_ASSERT(quantized->N == original->N && quantized->K == original->K);
    for (int64_t n = 0; n < original->N; n++) {
        ag_weight_row(buffer, quantized, n, 0, original->K);
        ag_weight_row(buffer + original->K, original, n, 0, original->K);
        ag_deviation_add(d, buffer, buffer + original->K, original->K);
    }
}
