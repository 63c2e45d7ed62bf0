/* Passes over whole weights while loading: quantizing to NF4, looking for numbers that are none. Both let go of the pages they
 * have read, so that a model larger than memory in its stored form can still be quantized. */
#include "model/model_internal.h"

#include <math.h>
#include <omp.h>

/* Work for a thread at a time; a fixed number, so that bytes never depend on how many threads there are. 1 Mi weights. */
enum { CHUNK_BLOCKS = 16384, CHUNK_WEIGHTS = CHUNK_BLOCKS * AG_NF4_BLOCK };

static int64_t blocks_of(const ag_weight *w) { return (w->N * w->K + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK; }

void ag_found_forget(const ag_found *f)
{
    ag_map_forget(f->map, (size_t)((const unsigned char *)f->w.data - f->map->bytes), ag_weight_bytes(&f->w));
}

static void quantize_chunk(ag_weight *to, const ag_found *from, float *absmax, int64_t chunk)
{
    const int64_t n_blocks = blocks_of(to), first = chunk * CHUNK_BLOCKS;
    const int64_t end = first + CHUNK_BLOCKS < n_blocks ? first + CHUNK_BLOCKS : n_blocks;
    ag_nf4_quantize_blocks((uint8_t *)to->data, absmax, &from->w, first, end);
    const int64_t bytes = ag_weight_block_bytes(from->w.type);
    ag_map_forget(from->map,
                  (size_t)((const unsigned char *)from->w.data - from->map->bytes) + (size_t)(first * AG_NF4_BLOCK * bytes),
                  (size_t)((end - first) * AG_NF4_BLOCK * bytes));
}

static ag_status check_scales(const ag_found *from, const float *absmax, int64_t n_blocks, ag_err *err)
{
    for (int64_t b = 0; b < n_blocks; b++)
        if (!isfinite(absmax[b]))
            return ag_fail(err, AG_E_NUMERIC,
                           "%s: tensor '%s' has a weight that is infinite or no number (row %lld); the file cannot be used",
                           from->file, from->name, (long long)(b * AG_NF4_BLOCK / from->w.K));
    return AG_OK;
}

ag_status ag_model_quantize_nf4(ag_weight *to[], const ag_found *from[], int n, bool double_quant, int n_threads, ag_err *err)
{
    int64_t first_chunk[AG_N_PROJ + 1] = {0}, first_block[AG_N_PROJ + 1] = {0};
    void *scales = NULL;
    if (n == 0) return AG_OK;
    for (int i = 0; i < n; i++) {
        if (to[i]->N * to[i]->K % 2 != 0)
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' has an odd number of weights; NF4 packs two in a byte",
                           from[i]->file, from[i]->name);
        first_chunk[i + 1] = first_chunk[i] + (blocks_of(to[i]) + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
        first_block[i + 1] = first_block[i] + blocks_of(to[i]);
    }
    const size_t scale_bytes = (size_t)first_block[n] * sizeof(float);
    AG_TRY(ag_pages_alloc(&scales, scale_bytes, "the scales of a layer", err));
#pragma omp parallel for schedule(dynamic) num_threads(n_threads > 0 ? n_threads : 1)
    for (int64_t chunk = 0; chunk < first_chunk[n]; chunk++) {
        int i = 0;
        while (chunk >= first_chunk[i + 1]) i++;
        quantize_chunk(to[i], from[i], (float *)scales + first_block[i], chunk - first_chunk[i]);
    }
    ag_status status = AG_OK;
    for (int i = 0; i < n && !status; i++)
        status = check_scales(from[i], (float *)scales + first_block[i], blocks_of(to[i]), err);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads > 0 ? n_threads : 1)
    for (int i = 0; i < n; i++) {
        const float *absmax = (float *)scales + first_block[i];
        if (double_quant)
            ag_nf4_double_quantize((uint8_t *)to[i]->absmax_q, (float *)to[i]->nested_absmax, &to[i]->offset, absmax,
                                   blocks_of(to[i]));
        else
            for (int64_t b = 0; b < blocks_of(to[i]); b++) ((float *)to[i]->absmax)[b] = absmax[b];
        ag_found_forget(from[i]); /* the pages that lie in two chunks */
    }
    ag_pages_free(scales, scale_bytes);
    return status;
}

/* The first bad column of a row, or -1. */
static int64_t bad_column(const ag_weight *w, int64_t n)
{
    enum { PIECE = 1024 };
    float x[PIECE];
    for (int64_t k = 0; k < w->K; k += PIECE) {
        const int64_t end = k + PIECE < w->K ? k + PIECE : w->K;
        float sum = 0; /* 0·x is 0 for every number, and NaN for infinity and NaN */
        ag_weight_row(x, w, n, k, end);
        for (int64_t i = 0; i < end - k; i++) sum += 0 * x[i];
        for (int64_t i = 0; sum != 0 && i < end - k; i++)
            if (!isfinite(x[i])) return k + i;
    }
    return -1;
}

ag_status ag_model_check_finite(const ag_found *f, int n_threads, ag_err *err)
{
    if (!f->name) return AG_OK;
    int64_t first_bad = f->w.N;
#pragma omp parallel for schedule(static) reduction(min : first_bad) num_threads(n_threads > 0 ? n_threads : 1)
    for (int64_t n = 0; n < f->w.N; n++)
        if (n < first_bad && bad_column(&f->w, n) >= 0) first_bad = n;
    ag_status status = AG_OK;
    if (first_bad < f->w.N)
        status = ag_fail(err, AG_E_NUMERIC,
                         "%s: tensor '%s' has a weight that is infinite or no number (row %lld, column %lld); the file "
                         "cannot be used",
                         f->file, f->name, (long long)first_bad, (long long)bad_column(&f->w, first_bad));
    ag_found_forget(f);
    return status;
}
