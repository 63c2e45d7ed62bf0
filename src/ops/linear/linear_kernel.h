/* What a level gives to the blocked driver (linear_gemm.c), and nobody else.
 *
 * Both directions are one product C[rows,cols] += A[rows,depth]·B[depth,cols]:
 *     forward     A = x    depth = K    B = Wᵀ    cols = outputs N
 *     backward    A = dy   depth = N    B = W     cols = inputs K
 * A is packed once per call into row blocks, which all panels of B share. B is dequantized straight into a panel of
 * AG_LINEAR_COLS columns and depth_block rows, which stays in the cache while all row blocks go over it. An element of C is
 * one chain of additions over the depth, block after block of depth_block, whatever the number of rows or threads. */
#ifndef AG_LINEAR_KERNEL_H
#define AG_LINEAR_KERNEL_H

#include "ops/linear/linear.h"

#include <stddef.h>

enum { AG_LINEAR_COLS = 32 };

/* One panel against a range of row blocks. */
typedef struct {
    float *c;              /* first row of the range, first column of the panel */
    int64_t c_stride;      /* floats from row to row */
    int64_t n_rows;
    int n_cols;            /* that exist; the panel has AG_LINEAR_COLS, the rest zeros */
    const void *a;         /* first row block, where the panel's depth begins */
    size_t a_block_bytes;  /* from one row block to the next */
    const void *panel;
    int64_t depth;         /* a multiple of depth_step */
    bool add;              /* += instead of = */
    float scale;
    const float *bias;     /* of the panel's columns, or NULL */
} ag_linear_block;

typedef struct ag_linear_kernel {
    int row_block;         /* rows that are packed together */
    int depth_step;        /* depth is filled up with zeros to a multiple of it */
    int depth_block;       /* depth of a panel, a multiple of depth_step */
    int element_bytes;     /* of packed A and B */
    /* One row block: rows [0,n_rows) of a, `depth` values each from a[r·stride]; filled up with zeros both ways. */
    void (*pack_a)(void *out, const float *a, int64_t stride, int64_t n_rows, int64_t depth);
    /* B[k0..k1, n0..n0+n_cols) of forward and B[n0..n1, k0..k0+n_cols) of backward. */
    void (*pack_fwd)(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1);
    void (*pack_bwd)(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1);
    void (*multiply)(const ag_linear_block *block);
    void (*thread_begin)(void); /* around a thread's share of a call; NULL: nothing to do */
    void (*thread_end)(void);
    /* Decoding. few_x puts T·K values of x into the form that `few` reads (4 bytes a value at most); NULL: as they are. `few`
     * computes outputs [n0,n1) of weight i for all T <= AG_LINEAR_FEW tokens. */
    void (*few_x)(void *out, const float *x, int64_t n);
    void (*few)(const ag_linear_fwd_args *args, const void *x, int i, int64_t n0, int64_t n1);
} ag_linear_kernel;

/* By ag_compute. The AVX512-BF16 kernel is for AG_COMPUTE_BF16 alone. */
extern const ag_linear_kernel ag_linear_kernels_neon[2], ag_linear_kernels_avx2[2], ag_linear_kernels_avx512[2];
extern const ag_linear_kernel ag_linear_kernel_avx512bf16, ag_linear_kernel_amx;

/* ---- between the files of one level ----------------------------------------------------------------------------------- */
/* out[r·stride + c] = weight (n0+r, k0+c) for r < n_rows, c < n_cols; the same bits as ag_weight_row. Fast where k0 is a
 * multiple of 32. */
typedef void ag_linear_decode_fn(float *out, int64_t stride, const ag_weight *w, int64_t n0, int64_t n_rows, int64_t k0,
                                 int64_t n_cols);
ag_linear_decode_fn ag_linear_decode_neon, ag_linear_decode_avx2, ag_linear_decode_avx512;

/* Panels of pairs for bf16 products, [depth/2][AG_LINEAR_COLS][2]: what VDPBF16PS and a tile's B operand read. depth_step: 2 or 32. */
void ag_linear_pack_pairs_fwd(void *panel, const ag_weight *w, int64_t n0, int n_cols, int64_t k0, int64_t k1, int depth_step);
void ag_linear_pack_pairs_bwd(void *panel, const ag_weight *w, int64_t k0, int n_cols, int64_t n0, int64_t n1, int depth_step);

/* A as bf16 tiles: [depth/32][n_packed/16][16][32], rows from n_rows on and depth filled up with zeros. */
void ag_linear_pack_tiles(void *out, const float *a, int64_t stride, int64_t n_rows, int n_packed, int64_t depth);

typedef void ag_linear_few_fn(const ag_linear_fwd_args *args, const void *x, int i, int64_t n0, int64_t n1);
ag_linear_few_fn ag_linear_few_f32_neon, ag_linear_few_f32_avx2, ag_linear_few_f32_avx512;
ag_linear_few_fn ag_linear_few_round_neon, ag_linear_few_round_avx2, ag_linear_few_round_avx512;
void ag_linear_few_x_round_neon(void *out, const float *x, int64_t n);
void ag_linear_few_x_round_avx2(void *out, const float *x, int64_t n);
void ag_linear_few_x_round_avx512(void *out, const float *x, int64_t n);
/* x as bf16. */
ag_linear_few_fn ag_linear_few_avx512bf16;
void ag_linear_few_x_avx512bf16(void *out, const float *x, int64_t n);

#endif
