/* Looking for weights that are no numbers, in the stored form: bits of plain numbers, scales of blocks. */
#include "model/model_internal.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

/* Bytes that a thread looks at in one go. */
enum { PIECE_BYTES = 1 << 20 };

/* Eight bytes at a time: a number is infinite or NaN where all bits of its exponent are set, so that one more at the exponent's
 * lowest bit carries into the (masked) sign. Lanes cannot disturb each other. */
typedef struct {
    uint64_t exponent, one, sign;
} lanes;
static const lanes lanes_f32 = {0x7f8000007f800000u, 0x0080000000800000u, 0x8000000080000000u};
static const lanes lanes_bf16 = {0x7f807f807f807f80u, 0x0080008000800080u, 0x8000800080008000u};
static const lanes lanes_f16 = {0x7c007c007c007c00u, 0x0400040004000400u, 0x8000800080008000u};

/* The first byte of an 8-byte word with a bad number in it, or n. */
static size_t first_bad_word(const unsigned char *bytes, size_t n, lanes l)
{
    size_t at = 0;
    for (; at + 8 <= n; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, sizeof word);
        if (((word & l.exponent) + l.one) & l.sign) return at;
    }
    uint64_t word = 0;
    memcpy(&word, bytes + at, n - at);
    return ((word & l.exponent) + l.one) & l.sign ? at : n;
}

/* Where the f16 scales of a block lie; quantized numbers times a finite scale are finite. -1: no second one. */
static const struct {
    int first, second;
} scales[AG_N_WEIGHT_TYPES] = {
    [AG_W_Q4_0] = {0, -1},  [AG_W_Q4_1] = {0, 2},    [AG_W_Q5_0] = {0, -1}, [AG_W_Q5_1] = {0, 2}, [AG_W_Q8_0] = {0, -1},
    [AG_W_Q2_K] = {80, 82}, [AG_W_Q3_K] = {108, -1}, [AG_W_Q4_K] = {0, 2},  [AG_W_Q5_K] = {0, 2}, [AG_W_Q6_K] = {208, -1},
};

static bool f16_is_bad(const unsigned char *at) { return (at[1] & 0x7c) == 0x7c; }

static size_t first_bad_block(const unsigned char *bytes, size_t n, ag_weight_type type)
{
    const size_t block = (size_t)ag_weight_block_bytes(type);
    for (size_t at = 0; at + block <= n; at += block)
        if (f16_is_bad(bytes + at + scales[type].first) ||
            (scales[type].second >= 0 && f16_is_bad(bytes + at + scales[type].second)))
            return at;
    return n;
}

static size_t first_bad_byte(const unsigned char *bytes, size_t n, ag_weight_type type)
{
    switch (type) {
    case AG_W_F32: return first_bad_word(bytes, n, lanes_f32);
    case AG_W_F16: return first_bad_word(bytes, n, lanes_f16);
    case AG_W_BF16: return first_bad_word(bytes, n, lanes_bf16);
    default: return first_bad_block(bytes, n, type);
    }
}

/* NF4: the first bad scale's first weight, or -1. */
static int64_t first_bad_nf4(const ag_weight *w)
{
    const int64_t n_blocks = (w->N * w->K + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK;
    for (int64_t b = 0; b < n_blocks; b++)
        if (!isfinite(w->absmax ? w->absmax[b] : w->nested_absmax[b / AG_NF4_NESTED_BLOCK] + w->offset))
            return b * AG_NF4_BLOCK;
    return -1;
}

/* The first bad weight, or of its block the first one, counted as they are stored; or -1. */
static int64_t first_bad(const ag_found *f, int n_threads)
{
    const ag_weight *w = &f->w;
    if (w->type == AG_W_NF4) return first_bad_nf4(w);
    const unsigned char *bytes = w->data;
    const int64_t block = ag_weight_block_bytes(w->type), n_bytes = (int64_t)ag_weight_bytes(w);
    const int64_t piece = PIECE_BYTES / (8 * block) * (8 * block); /* whole words and whole blocks */
    int64_t bad = n_bytes;
#pragma omp parallel for schedule(static) reduction(min : bad) num_threads(n_threads > 0 ? n_threads : 1)
    for (int64_t at = 0; at < n_bytes; at += piece) {
        const int64_t n = at + piece < n_bytes ? piece : n_bytes - at;
        const int64_t found = at + (int64_t)first_bad_byte(bytes + at, (size_t)n, w->type);
        if (found < at + n && found < bad) bad = found;
        ag_map_forget(f->map, (size_t)(bytes - f->map->bytes) + (size_t)at, (size_t)n);
    }
    if (bad == n_bytes) return -1;
    int64_t e = bad / block * ag_weight_block_weights(w->type); /* in a word of 8 bytes there are up to 4 numbers */
    const ag_weight flat = {.type = w->type, .N = 1, .K = w->N * w->K, .data = w->data};
    for (float x = 0; ag_weight_block_weights(w->type) == 1 && isfinite(x);) {
        ag_weight_row(&x, &flat, 0, e, e + 1);
        if (isfinite(x)) e++;
    }
    return e;
}

ag_status ag_model_check_finite(const ag_found *f, int n_threads, ag_err *err)
{
    const int64_t e = f->name ? first_bad(f, n_threads) : -1;
    if (f->name) ag_found_forget(f);
    if (e < 0) return AG_OK;
    return ag_fail(err, AG_E_NUMERIC,
                   "%s: tensor '%s' has a weight that is infinite or no number (row %lld, column %lld); the file cannot be "
                   "used",
                   f->file, f->name, (long long)(e / f->w.K), (long long)(e % f->w.K));
}
