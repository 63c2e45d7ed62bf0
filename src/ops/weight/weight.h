/* A frozen weight matrix W [N,K] in the form in which it is stored: N outputs (rows), K inputs (columns), y = x·Wᵀ.
 *
 * It is a view into a mapped file or into the model's arena and never owns. Ops dequantize it while they pack it; no
 * dequantized copy of a weight ever exists. Block layouts: facts in docs/formats.md, one decoder each in weight.c.
 *
 * Logical and stored rows. GGUF files of the llama family store the rows of q and k permuted per head, because llama.cpp
 * rotates neighbouring pairs where Hugging Face rotates halves. Here everything is in Hugging Face's order, so that adapters
 * need no permutation: `rope_pairs_head_dim` D > 0 says that logical row h·D + i·(D/2) + j lies at stored row h·D + 2j + i. */
#ifndef AG_WEIGHT_H
#define AG_WEIGHT_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*    type          name     weights   bytes    a block of so many weights takes so many bytes */
#define AG_WEIGHT_TYPES(X)                 \
    X(AG_W_F32,     "f32",   1,        4)  \
    X(AG_W_F16,     "f16",   1,        2)  \
    X(AG_W_BF16,    "bf16",  1,        2)  \
    X(AG_W_NF4,     "nf4",   2,        1)  \
    X(AG_W_Q4_0,    "q4_0",  32,      18)  \
    X(AG_W_Q4_1,    "q4_1",  32,      20)  \
    X(AG_W_Q5_0,    "q5_0",  32,      22)  \
    X(AG_W_Q5_1,    "q5_1",  32,      24)  \
    X(AG_W_Q8_0,    "q8_0",  32,      34)  \
    X(AG_W_Q2_K,    "q2_k",  256,     84)  \
    X(AG_W_Q3_K,    "q3_k",  256,    110)  \
    X(AG_W_Q4_K,    "q4_k",  256,    144)  \
    X(AG_W_Q5_K,    "q5_k",  256,    176)  \
    X(AG_W_Q6_K,    "q6_k",  256,    210)

typedef enum {
#define X(type, name, weights, bytes) type,
    AG_WEIGHT_TYPES(X)
#undef X
    AG_N_WEIGHT_TYPES
} ag_weight_type;

typedef struct {
    ag_weight_type type;
    int64_t N, K;             /* rows (outputs), columns (inputs); K is a multiple of the type's block, NF4: N·K even */
    const void *data;         /* stored rows, one after the other */
    int rope_pairs_head_dim;  /* 0: logical row n is stored row n */

    /* NF4 only (bitsandbytes): element e = first + n·K + k is nf4[nibble]·absmax(e / 64); nibbles high first; blocks of 64 run
     * over the flattened matrix and may straddle rows. Either absmax is given, or (double quantization) absmax_q with
     * absmax(b) = dynamic_map[absmax_q[b]]·nested_absmax[b / 256] + offset. `first` is 0 but for a slice of rows, which keeps
     * the whole matrix's pointers: its rows may begin inside a byte and inside a block. */
    int64_t first;
    const float *absmax;
    const uint8_t *absmax_q;
    const float *nested_absmax;
    float offset;
} ag_weight;

const char *ag_weight_type_name(ag_weight_type type);
AG_MUST_USE ag_status ag_weight_type_parse(ag_weight_type *out, const char *name, ag_err *err);
int64_t ag_weight_block_weights(ag_weight_type type);
int64_t ag_weight_block_bytes(ag_weight_type type);
int64_t ag_weight_row_bytes(ag_weight_type type, int64_t K); /* not for NF4, whose rows may end inside a byte */
size_t ag_weight_bytes(const ag_weight *w);                  /* stored bytes, NF4 with its scales */
/* How many bits a weight takes, scales included, for reports. */
double ag_weight_bits(const ag_weight *w);
/* The rows [n0,n1) as a weight of their own, over the same bytes. Where rows are stored in rope pairs, n0 and n1 must be
 * multiples of the head dim (an assertion), because rows are permuted within a head. */
ag_weight ag_weight_rows(const ag_weight *w, int64_t n0, int64_t n1);

static inline int64_t ag_weight_stored_row(const ag_weight *w, int64_t n)
{
    const int64_t D = w->rope_pairs_head_dim;
    if (D == 0) return n;
    const int64_t in_head = n % D, half = D / 2;
    return n - in_head + 2 * (in_head % half) + in_head / half;
}

/* out[0..k1-k0) = logical row n, columns [k0,k1), as f32. The exact decoder that every level answers to: products in f32
 * in the order in which ggml and bitsandbytes take them. k0 and k1 may be anything in 0..K. */
void ag_weight_row(float *out, const ag_weight *w, int64_t n, int64_t k0, int64_t k1);

/* ---- making quantized weights ----------------------------------------------------------------------------------- */
enum { AG_NF4_BLOCK = 64, AG_NF4_NESTED_BLOCK = 256 };
/* NF4 as bitsandbytes makes it (blocks of 64, nearest code by f32 midpoints, ties to the lower code, scale by the f32
 * reciprocal, an all-zero block is 0x77…). x holds `n` weights; packed takes (n+1)/2 bytes, absmax (n+63)/64 floats.
 * Runs on the best vector level there is; the bytes are the same on all. */
void ag_nf4_quantize(uint8_t *packed, float *absmax, const float *x, int64_t n);
/* Blocks [block0,block1) of w (f32, f16 or bf16, whole, rows as stored), so that threads can share the work: packed and absmax
 * are the whole matrix's, and only the range's part is written. The last block may be short. */
void ag_nf4_quantize_blocks(uint8_t *packed, float *absmax, const ag_weight *w, int64_t block0, int64_t block1);
/* Double quantization of n_blocks absmax: offset = mean (double sum), nearest code of the signed dynamic map by f32 distance,
 * the lower of equals, blocks of 256; nested takes (n_blocks+255)/256 floats. */
void ag_nf4_double_quantize(uint8_t *absmax_q, float *nested_absmax, float *offset, const float *absmax, int64_t n_blocks);
extern const float ag_nf4_code[16];
const float *ag_dynamic_map_signed(void); /* 256 values, ascending; bitsandbytes' create_dynamic_map(signed=True) */
const float *ag_dynamic_map_unsigned(void);

/* One row of K weights into a GGUF type: f32, f16 and bf16 rounded to nearest even, q8_0 as ggml's reference quantizer makes it, q4_0,
 * q5_0, q5_1, q4_k, q5_k and q6_k by the search of weight_encode.h; the same bytes on every level. Another type is AG_E_UNSUPPORTED,
 * a weight that is not finite AG_E_NUMERIC. */
AG_MUST_USE ag_status ag_weight_quantize_row(void *out, ag_weight_type type, const float *x, int64_t K, ag_err *err);

#endif
