/* Quantizing to NF4 while loading. Pages that were read are let go of, so that a model larger than memory in its stored form
 * can still be quantized. */
#include "model/model_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Weights after which pages are let go of. */
enum { CHUNK_BLOCKS = 16384 };

static int64_t blocks_of(const ag_weight *w) { return (w->N * w->K + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK; }

void ag_found_forget(const ag_found *f)
{
    ag_map_forget(f->map, (size_t)((const unsigned char *)f->w.data - f->map->bytes), ag_weight_bytes(&f->w));
}

/* One matrix; absmax is this thread's room for its scales. Gives the first block whose scale is not finite, or -1. */
static int64_t quantize(ag_weight *to, const ag_found *from, float *absmax, bool double_quant)
{
    const int64_t n_blocks = blocks_of(to), block_bytes = AG_NF4_BLOCK * ag_weight_block_bytes(from->w.type);
    const size_t offset = (size_t)((const unsigned char *)from->w.data - from->map->bytes);
    for (int64_t b = 0; b < n_blocks; b += CHUNK_BLOCKS) {
        const int64_t end = b + CHUNK_BLOCKS < n_blocks ? b + CHUNK_BLOCKS : n_blocks;
        ag_nf4_quantize_blocks((uint8_t *)to->data, absmax, &from->w, b, end);
        ag_map_forget(from->map, offset + (size_t)(b * block_bytes), (size_t)((end - b) * block_bytes));
    }
    ag_found_forget(from); /* the pages that lie in two chunks */
    for (int64_t b = 0; b < n_blocks; b++)
        if (!isfinite(absmax[b])) return b;
    if (double_quant)
        ag_nf4_double_quantize((uint8_t *)to->absmax_q, (float *)to->nested_absmax, &to->offset, absmax, n_blocks);
    else
        memcpy((float *)to->absmax, absmax, (size_t)n_blocks * sizeof *absmax);
    return -1;
}

ag_status ag_model_quantize_nf4(const ag_nf4_job *jobs, int64_t n, bool double_quant, int n_threads, ag_err *err)
{
    const int n_used = n_threads < 1 ? 1 : n < n_threads ? (int)n : n_threads;
    int64_t most_blocks = 0, bad_job = n, bad_block = 0;
    void *scales = NULL;
    for (int64_t i = 0; i < n; i++) {
        const ag_weight *w = &jobs[i].from->w;
        if (w->N * w->K % 2 != 0)
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' has an odd number of weights; NF4 packs two in a byte",
                           jobs[i].from->file, jobs[i].from->name);
        if (blocks_of(w) > most_blocks) most_blocks = blocks_of(w);
    }
    if (n == 0) return AG_OK;
    const size_t bytes = (size_t)n_used * (size_t)most_blocks * sizeof(float);
    AG_TRY(ag_pages_alloc(&scales, bytes, "the scales of the matrices that are being quantized", err));
    /* A matrix belongs to one thread, which does all of it: the bytes cannot depend on how many threads there are. */
#pragma omp parallel for schedule(dynamic) num_threads(n_used)
    for (int64_t i = 0; i < n; i++) {
        float *absmax = (float *)scales + omp_get_thread_num() * most_blocks;
        const int64_t bad = quantize(jobs[i].to, jobs[i].from, absmax, double_quant);
#pragma omp critical
        if (bad >= 0 && i < bad_job) bad_job = i, bad_block = bad;
    }
    ag_pages_free(scales, bytes);
    if (bad_job == n) return AG_OK;
    const ag_found *f = jobs[bad_job].from;
    return ag_fail(err, AG_E_NUMERIC,
                   "%s: tensor '%s' has a weight that is infinite or no number (row %lld); the file cannot be used", f->file,
                   f->name, (long long)(bad_block * AG_NF4_BLOCK / f->w.K));
}
