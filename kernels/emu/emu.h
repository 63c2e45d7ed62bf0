/* CUDA's words for a C++ compiler: kernels run on the CPU, every thread a fiber, every rule of shared memory watched.
 *
 * One block runs at a time. Its threads change places at barriers and at operations of a warp, in an order that the seed
 * (BKL_EMU_SEED) shuffles. What a GPU leaves undefined is an error here, and ends the launch with a sentence:
 *   - a barrier, or an operation of a warp, that not all its threads reach at the same place; threads that wait for each other;
 *   - more threads or shared memory than a block may have;
 * and where the kernel files are compiled with -fsanitize=thread (emu_watch.cc then takes the compiler's calls at each access):
 *   - two accesses to a byte of shared or global memory, one of them a write, that no barrier separates;
 *   - an access outside every allocation, or to memory that nobody wrote;
 *   - a read of what cp.async still carries. */
#ifndef BKL_EMU_H
#define BKL_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <new>
#include <tuple>

#define __global__
#define __host__
#define __device__
#define __launch_bounds__(...)
#define BKL_FN static inline
#define BKL_TABLE(type, name, extent) static const type name extent
#define BKL_UNROLL

/* ---- where a thread is ----------------------------------------------------------------------------------------------------
 */
struct emu_place {
    const char *file;
    int line;
};
#define EMU_HERE {__builtin_FILE(), __builtin_LINE()} /* as a default argument: where the caller is */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct emu_thread_index {
    unsigned x;
};
extern emu_thread_index threadIdx;
extern dim3 blockIdx, blockDim, gridDim;

/* ---- launches -------------------------------------------------------------------------------------------------------------
 */
/* A kernel with its arguments, copied, so that a graph can keep it. */
struct emu_closure {
    void (*call)(const emu_closure *);
    alignas(16) unsigned char bytes[1024];
};
bkl_status emu_launch(bkl_stream *stream, const char *name, dim3 grid, unsigned threads, size_t shared_bytes,
                      const emu_closure &closure);

template <class... P, class... A> emu_closure emu_bind(void (*kernel)(P...), A... a)
{
    struct bound {
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    };
    static_assert(sizeof(bound) <= sizeof emu_closure::bytes, "the arguments of a kernel take more room than a launch has");
    emu_closure closure = {};
    new (closure.bytes) bound{kernel, std::tuple<P...>(static_cast<P>(a)...)};
    closure.call = [](const emu_closure *self) {
        const bound *b = (const bound *)self->bytes;
        std::apply(b->kernel, b->arguments);
    };
    return closure;
}
#define BKL_LAUNCH(stream, kernel, grid, threads, shared_bytes, ...) \
    emu_launch(stream, #kernel, grid, threads, shared_bytes, emu_bind(kernel, __VA_ARGS__))

/* ---- shared memory --------------------------------------------------------------------------------------------------------
 */
void *emu_static_shared(size_t *place, size_t bytes);
unsigned char *emu_dynamic_shared();
#define BKL_SHARED(type, name, extent)       \
    typedef type name##_extent extent;       \
    static size_t name##_place;              \
    name##_extent &name = *(name##_extent *)emu_static_shared(&name##_place, sizeof(name##_extent))
#define BKL_DYNAMIC_SHARED(name) unsigned char *const name = emu_dynamic_shared()

/* ---- barriers -------------------------------------------------------------------------------------------------------------
 */
void emu_block_barrier(emu_place place);
void emu_warp_barrier(emu_place place);
static inline void __syncthreads(emu_place place = EMU_HERE) { emu_block_barrier(place); }
static inline void __syncwarp(emu_place place = EMU_HERE) { emu_warp_barrier(place); }

/* ---- numbers --------------------------------------------------------------------------------------------------------------
 */
static inline float __uint_as_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static inline uint32_t __float_as_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline bf16 f32_to_bf16(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* what the instruction gives for a NaN */
    return (bf16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
static inline uint32_t bf16_pair(float low, float high) { return (uint32_t)f32_to_bf16(high) << 16 | f32_to_bf16(low); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }

static inline float mul_add_unfused(float a, float b, float c) { return a * b + c; }

static inline int bits_set(uint32_t x) { return __builtin_popcount(x); }

static inline int64_t opaque(int64_t x) { return x; }

/* ---- memory ---------------------------------------------------------------------------------------------------------------
 */
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
uint4 load16(const void *from);
void store16(void *to, uint4 value);
uint32_t load4(const void *from);
void store4(void *to, uint32_t value);

void copy16_async(void *shared, const void *global, int n_valid);
void copy_commit();
void emu_copy_wait(int n);
template <int n> inline void copy_wait() { emu_copy_wait(n); }

float atomic_add(float *p, float x);
int atomic_add(int *p, int x);
uint64_t atomic_add(uint64_t *p, uint64_t x);
int atomic_max(int *p, int x);

/* ---- a warp ---------------------------------------------------------------------------------------------------------------
 */
uint32_t emu_shuffle(uint32_t x, int lane, bool is_xor, emu_place place);
uint32_t emu_ballot(bool x, emu_place place);
static inline float shuffle_xor(float x, int lanes, emu_place place = EMU_HERE)
{
    return __uint_as_float(emu_shuffle(__float_as_uint(x), lanes, true, place));
}
static inline int shuffle_xor(int x, int lanes, emu_place place = EMU_HERE)
{
    return (int)emu_shuffle((uint32_t)x, lanes, true, place);
}
static inline float shuffle(float x, int lane, emu_place place = EMU_HERE)
{
    return __uint_as_float(emu_shuffle(__float_as_uint(x), lane, false, place));
}
static inline int shuffle(int x, int lane, emu_place place = EMU_HERE)
{
    return (int)emu_shuffle((uint32_t)x, lane, false, place);
}
static inline uint32_t vote_ballot(bool x, emu_place place = EMU_HERE) { return emu_ballot(x, place); }
static inline bool vote_any(bool x, emu_place place = EMU_HERE) { return emu_ballot(x, place) != 0; }
static inline bool vote_all(bool x, emu_place place = EMU_HERE) { return emu_ballot(x, place) == 0xffffffffu; }

/* ---- matrices -------------------------------------------------------------------------------------------------------------
 */
void emu_load_matrices(uint32_t r[4], const void *row, bool transposed, emu_place place);
void emu_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place);
static inline void load_matrices(uint32_t r[4], const void *row, emu_place place = EMU_HERE)
{
    emu_load_matrices(r, row, false, place);
}
static inline void load_matrices_transposed(uint32_t r[4], const void *row, emu_place place = EMU_HERE)
{
    emu_load_matrices(r, row, true, place);
}
static inline void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place = EMU_HERE)
{
    emu_mma_bf16(c, a, b0, b1, place);
}

void emu_mma_fp8(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place);
void emu_mma_nvfp4(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, uint32_t a_scales, uint32_t b_scales,
                   emu_place place);
static inline void mma_fp8(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place = EMU_HERE)
{
    emu_mma_fp8(c, a, b0, b1, place);
}
static inline void mma_nvfp4(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, uint32_t a_scales, uint32_t b_scales,
                             emu_place place = EMU_HERE)
{
    emu_mma_nvfp4(c, a, b0, b1, a_scales, b_scales, place);
}

#endif
