/* AdamW over flat arrays, and the norm of a gradient. What changes from step to step (learning rate, bias corrections, the clip
 * factor) is read from device memory, so that a captured graph can be launched again.
 *
 *     m ← m + (g - m)·(1-β1)      v ← v·β2 + g²·(1-β2)      p ← p·decay - step_size·m / (sqrt(v)/root_correction2 + eps)
 *
 * The 8-bit form keeps m and v as codes of two 256-entry maps (ascending; signed for m, unsigned for v), a block of 256
 * elements having one scale (bitsandbytes' blockwise states, Dettmers et al. 2022). A block of threads holds one such block. */
#include "device.h"
#include "lab.h"

enum { THREADS = 256, STATE_BLOCK = 256 };

BKL_FN float stepped(float p, float m, float v, const bkl_adamw_coefficients *c)
{
    return p * c->decay - c->step_size * m / (sqrtf(v) / c->root_correction2 + c->eps);
}

__global__ void __launch_bounds__(THREADS) adamw_kernel(bkl_adamw_args a)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n) return;
    const bkl_adamw_coefficients c = *a.coefficients;
    const float g = a.g[i] * (a.grad_scale ? *a.grad_scale : 1.0f);
    const float m = a.m[i] + (g - a.m[i]) * c.one_minus_beta1, v = a.v[i] * c.beta2 + g * g * c.one_minus_beta2;
    const float p = stepped(a.p[i], m, v, &c);
    a.m[i] = m, a.v[i] = v, a.p[i] = p;
    if (a.p_bf16) a.p_bf16[i] = f32_to_bf16(p);
}

/* The code whose value is nearest, the lower of equals. */
BKL_FN int nearest(const float *map, float x)
{
    int low = 0, high = 255; /* map[low] <= x < map[high], but for the ends */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (map[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return fabsf(x - map[low]) <= fabsf(x - map[high]) ? low : high;
}

__global__ void __launch_bounds__(THREADS) adamw8_kernel(bkl_adamw8_args a)
{
    BKL_SHARED(float, signed_map, [256]);
    BKL_SHARED(float, unsigned_map, [256]);
    BKL_SHARED(float, partial, [WARP]);
    BKL_SHARED(float, partial_of_v, [WARP]);
    const int64_t block = blockIdx.x, i = block * STATE_BLOCK + threadIdx.x;
    signed_map[threadIdx.x] = a.signed_map[threadIdx.x], unsigned_map[threadIdx.x] = a.unsigned_map[threadIdx.x];
    __syncthreads();
    const bkl_adamw_coefficients c = *a.coefficients;
    float m = 0, v = 0;
    if (i < a.n) {
        const float g = a.g[i] * (a.grad_scale ? *a.grad_scale : 1.0f);
        const float m0 = signed_map[a.m[i]] * a.m_scale[block], v0 = unsigned_map[a.v[i]] * a.v_scale[block];
        m = m0 + (g - m0) * c.one_minus_beta1, v = v0 * c.beta2 + g * g * c.one_minus_beta2;
        const float p = stepped(a.p[i], m, v, &c);
        a.p[i] = p;
        if (a.p_bf16) a.p_bf16[i] = f32_to_bf16(p);
    }
    const float m_most = block_max(fabsf(m), partial), v_most = block_max(v, partial_of_v);
    if (i < a.n) {
        a.m[i] = (uint8_t)nearest(signed_map, m_most > 0 ? m / m_most : 0);
        a.v[i] = (uint8_t)nearest(unsigned_map, v_most > 0 ? v / v_most : 0);
    }
    if (threadIdx.x == 0) a.m_scale[block] = m_most, a.v_scale[block] = v_most;
}

BKL_NO_WORKSPACE(adamw)
bkl_status bkl_adamw(bkl_stream *stream, const bkl_adamw_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n > 0 && a->coefficients, "adamw: %lld elements, %s", (long long)a->n,
               a->coefficients ? "none to change" : "and no coefficients");
    return BKL_LAUNCH(stream, adamw_kernel, (unsigned)ceil_div(a->n, THREADS), THREADS, 0, *a);
}

BKL_NO_WORKSPACE(adamw8)
bkl_status bkl_adamw8(bkl_stream *stream, const bkl_adamw8_args *a, void *, size_t)
{
    BKL_EXPECT(stream, a->n > 0 && a->coefficients, "adamw8: %lld elements, %s", (long long)a->n,
               a->coefficients ? "none to change" : "and no coefficients");
    return BKL_LAUNCH(stream, adamw8_kernel, (unsigned)ceil_div(a->n, STATE_BLOCK), THREADS, 0, *a);
}

/* ---- the norm: sums of 4,096 elements in f32 a thread's sixteen, then in double -------------------------------------------
 */
enum { OF_THREAD = 16, OF_BLOCK = THREADS * OF_THREAD };

BKL_FN double block_sum_double(double x, double *partial)
{
    partial[threadIdx.x] = x;
    __syncthreads();
    for (unsigned n = THREADS / 2; n; n /= 2) {
        if (threadIdx.x < n) partial[threadIdx.x] += partial[threadIdx.x + n];
        __syncthreads();
    }
    return partial[0];
}

__global__ void __launch_bounds__(THREADS) squares_kernel(const float *x, int64_t n, double *parts)
{
    BKL_SHARED(double, partial, [THREADS]);
    float sum = 0;
    BKL_UNROLL
    for (int i = 0; i < OF_THREAD; i++) {
        const int64_t at = (int64_t)blockIdx.x * OF_BLOCK + i * THREADS + threadIdx.x;
        const float y = at < n ? x[at] : 0;
        sum += y * y;
    }
    const double all = block_sum_double(sum, partial);
    if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

__global__ void __launch_bounds__(THREADS) norm_kernel(bkl_grad_norm_args a, const double *parts, int64_t n_parts)
{
    BKL_SHARED(double, partial, [THREADS]);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n_parts; i += THREADS) sum += parts[i];
    sum = block_sum_double(sum, partial);
    if (threadIdx.x != 0) return;
    const float norm = (float)sqrt(sum);
    a.out[0] = norm;
    a.out[1] = a.max_norm > 0 && norm > a.max_norm ? a.max_norm / (norm + 1e-6f) : 1.0f;
}

size_t bkl_grad_norm_workspace(const bkl_grad_norm_args *a)
{
    return a->n > 0 ? (size_t)ceil_div(a->n, OF_BLOCK) * sizeof(double) : 0;
}

bkl_status bkl_grad_norm(bkl_stream *stream, const bkl_grad_norm_args *a, void *workspace, size_t workspace_bytes)
{
    BKL_EXPECT(stream, a->n > 0, "grad_norm: %lld elements", (long long)a->n);
    BKL_NEED_WORKSPACE(stream, grad_norm, a, workspace_bytes);
    const int64_t n_parts = ceil_div(a->n, OF_BLOCK);
    BKL_TRY(BKL_LAUNCH(stream, squares_kernel, (unsigned)n_parts, THREADS, 0, a->g, a->n, (double *)workspace));
    return BKL_LAUNCH(stream, norm_kernel, 1, THREADS, 0, *a, (const double *)workspace, n_parts);
}
