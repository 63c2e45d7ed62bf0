/* A tensor is a view: where numbers lie, their type and their shape. It never owns memory.
 *
 * Dimensions are outermost first and contiguous. Shapes use one alphabet everywhere: B batch, T tokens, C width,
 * H query heads, G key/value heads, D head dim, F feed-forward width, V vocabulary, L layers, R adapter rank,
 * M,N,K of a GEMM. Weights, which may be quantized, are ag_weight (weight.h). */
#ifndef AG_TENSOR_H
#define AG_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { AG_F32, AG_I32 } ag_dtype;

typedef struct {
    void *data;
    ag_dtype dtype;
    int rank;        /* 1..4 */
    int64_t dim[4];
} ag_tensor;

static inline ag_tensor ag_vec_f32(float *data, int64_t n)
{
    return (ag_tensor){.data = data, .dtype = AG_F32, .rank = 1, .dim = {n}};
}

static inline ag_tensor ag_mat_f32(float *data, int64_t n_rows, int64_t n_cols)
{
    return (ag_tensor){.data = data, .dtype = AG_F32, .rank = 2, .dim = {n_rows, n_cols}};
}

static inline ag_tensor ag_cube_f32(float *data, int64_t d0, int64_t d1, int64_t d2)
{
    return (ag_tensor){.data = data, .dtype = AG_F32, .rank = 3, .dim = {d0, d1, d2}};
}

static inline ag_tensor ag_vec_i32(int32_t *data, int64_t n)
{
    return (ag_tensor){.data = data, .dtype = AG_I32, .rank = 1, .dim = {n}};
}

static inline bool ag_tensor_is(ag_tensor t, ag_dtype dtype, int rank, int64_t d0, int64_t d1)
{
    return t.data && t.dtype == dtype && t.rank == rank && t.dim[0] == d0 && (rank < 2 || t.dim[1] == d1);
}

static inline bool ag_tensor_is_cube(ag_tensor t, int64_t d0, int64_t d1, int64_t d2)
{
    return t.data && t.dtype == AG_F32 && t.rank == 3 && t.dim[0] == d0 && t.dim[1] == d1 && t.dim[2] == d2;
}

#endif
