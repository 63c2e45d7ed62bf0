/* Kernels that are wrong on purpose, one mistake each: the emulator must report every one (emu/check_broken.c), so its silence
 * about the others means something. Built into its own library, never into libbkl. */
#include "broken.h"
#include "device.h"
#include "lab.h"

#include <vector>

__global__ void missing_barrier(int *out)
{
    BKL_SHARED(int, x, [64]);
    x[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = x[63 - threadIdx.x];
}

__global__ void missing_warp_barrier(int *out)
{
    BKL_SHARED(int, x, [64]);
    x[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = x[threadIdx.x ^ 1];
}

__global__ void two_writers(int *out)
{
    BKL_SHARED(int, x, [64]);
    x[threadIdx.x / 2] = (int)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x / 2];
}

__global__ void overwritten_while_read(int *out)
{
    BKL_SHARED(int, x, [64]);
    x[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    const int other = x[63 - threadIdx.x];
    x[threadIdx.x] = other; /* the second barrier is missing */
    out[threadIdx.x] = other;
}

__global__ void divergent_barrier(int *out)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void barrier_in_a_branch(int *out)
{
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void divergent_shuffle(int *out)
{
    int x = (int)threadIdx.x;
    if (threadIdx.x % 2) x = shuffle_xor(x, 1);
    out[threadIdx.x] = x;
}

__global__ void barrier_against_shuffle(int *out)
{
    int x = 0;
    if (threadIdx.x % 2)
        x = shuffle_xor(x, 1);
    else
        __syncthreads();
    out[threadIdx.x] = x;
}

__global__ void past_an_array(int *out)
{
    BKL_SHARED(int, x, [64]);
    x[threadIdx.x + 1] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x + 1];
}

__global__ void past_dynamic_memory(int *out)
{
    BKL_DYNAMIC_SHARED(memory);
    ((int *)memory)[threadIdx.x] = 1; /* launched with room for 32 */
    __syncthreads();
    out[threadIdx.x] = ((int *)memory)[threadIdx.x];
}

__global__ void past_an_allocation(int *out) { out[threadIdx.x + 1] = 1; }

__global__ void nobody_wrote_it(int *out)
{
    BKL_SHARED(int, x, [64]);
    if (threadIdx.x) x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}

__global__ void nobody_filled_it(int *out) { out[threadIdx.x] = out[threadIdx.x] + 1; }

__global__ void missing_copy_wait(int *out, const int *in)
{
    BKL_SHARED(int, x, [256]);
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    __syncthreads();
    out[threadIdx.x] = x[4 * threadIdx.x];
    copy_wait<0>();
}

__global__ void copy_wait_without_barrier(int *out, const int *in)
{
    BKL_SHARED(int, x, [256]);
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    copy_wait<0>();
    out[threadIdx.x] = x[4 * (63 - threadIdx.x)];
}

__global__ void copy_over_what_is_read(int *out, const int *in)
{
    BKL_SHARED(int, x, [256]);
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    out[threadIdx.x] = x[4 * (63 - threadIdx.x)];
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    copy_wait<0>();
}

__global__ void never_waited(int *out, const int *in)
{
    BKL_SHARED(int, x, [256]);
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    out[threadIdx.x] = 1;
}

__global__ void crooked_matrix(int *out)
{
    BKL_SHARED(bf16, x, [1024]);
    for (int i = 0; i < 16; i++) x[16 * threadIdx.x + i] = 0;
    __syncthreads();
    uint32_t r[4];
    load_matrices(r, x + 8 * (threadIdx.x % 32) + 1);
    out[threadIdx.x] = (int)r[0];
}

__global__ void blocks_write_one_place(int *out) { out[threadIdx.x] = (int)blockIdx.x; }

__global__ void block_reads_another(int *out)
{
    out[64 * blockIdx.x + threadIdx.x] = 1;
    if (blockIdx.x) out[64 * blockIdx.x + threadIdx.x] = out[threadIdx.x];
}

__global__ void plain_beside_atomic(int *out)
{
    atomic_add(out, 1);
    if (threadIdx.x == 5) out[0] = 0;
}

__global__ void host_pointer(int *out, const int *in) { out[threadIdx.x] = in[threadIdx.x]; }

__global__ void too_much_shared(int *out)
{
    BKL_DYNAMIC_SHARED(memory);
    memory[threadIdx.x] = 0;
    out[threadIdx.x] = memory[threadIdx.x];
}

/* Right: what the mistakes above look like without them. */
__global__ void nothing_wrong(int *out, const int *in)
{
    BKL_SHARED(int, x, [256]);
    copy16_async(x + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    const int y = x[4 * (63 - threadIdx.x)];
    __syncthreads();
    x[threadIdx.x] = shuffle_xor(y, 1);
    __syncwarp();
    const int z = x[threadIdx.x ^ 1];
    __syncthreads();
    if (threadIdx.x == 0) x[0] = 0;
    __syncthreads();
    atomic_add(x, z);
    __syncthreads();
    out[64 * blockIdx.x + threadIdx.x] = x[0];
}

bkl_status bkl_broken_run(bkl_stream *stream, const char *name, int *out, const int *in)
{
    const std::vector<int> at_host(64);
#define RUN(kernel, grid, shared, ...) \
    if (strcmp(name, #kernel) == 0) return BKL_LAUNCH(stream, kernel, grid, 64, shared, __VA_ARGS__)
    RUN(missing_barrier, 1, 0, out);
    RUN(missing_warp_barrier, 1, 0, out);
    RUN(two_writers, 1, 0, out);
    RUN(overwritten_while_read, 1, 0, out);
    RUN(divergent_barrier, 1, 0, out);
    RUN(barrier_in_a_branch, 1, 0, out);
    RUN(divergent_shuffle, 1, 0, out);
    RUN(barrier_against_shuffle, 1, 0, out);
    RUN(past_an_array, 1, 0, out);
    RUN(past_dynamic_memory, 1, 32 * sizeof(int), out);
    RUN(past_an_allocation, 1, 0, out);
    RUN(nobody_wrote_it, 1, 0, out);
    RUN(nobody_filled_it, 1, 0, out);
    RUN(missing_copy_wait, 1, 0, out, in);
    RUN(copy_wait_without_barrier, 1, 0, out, in);
    RUN(copy_over_what_is_read, 1, 0, out, in);
    RUN(never_waited, 1, 0, out, in);
    RUN(crooked_matrix, 1, 0, out);
    RUN(blocks_write_one_place, 2, 0, out);
    RUN(block_reads_another, 2, 0, out);
    RUN(plain_beside_atomic, 1, 0, out);
    RUN(host_pointer, 1, 0, out, at_host.data());
    RUN(too_much_shared, 1, 100 << 10, out);
    RUN(nothing_wrong, 2, 0, out, in);
    return bkl_fail(stream->context, BKL_E_UNSUPPORTED, "there is no kernel '%s'", name);
}
