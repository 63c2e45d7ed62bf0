/* Says which device is there, and lets it say so itself. Exit 0 with the sentinel as the last line, 1 with a sentence on
 * stderr. */
#include <cuda_runtime.h>

#include <stdio.h>

__global__ void hello_kernel() { printf("bkl device_hello sm_120 ok\n"); }

static int fail(const char *what, cudaError_t error)
{
    fprintf(stderr, "%s failed: %s\n", what, cudaGetErrorString(error));
    return 1;
}

int main()
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error) return fail("cudaGetDeviceCount", error);
    if (n == 0) {
        fprintf(stderr, "no CUDA devices\n");
        return 1;
    }
    cudaDeviceProp p;
    error = cudaGetDeviceProperties(&p, 0);
    if (error) return fail("cudaGetDeviceProperties", error);
    printf("device0: %s compute %d.%d\n", p.name, p.major, p.minor);
    fflush(stdout);
    hello_kernel<<<1, 1>>>();
    error = cudaGetLastError();
    if (error) return fail("kernel launch", error);
    error = cudaDeviceSynchronize();
    if (error) return fail("kernel", error);
    return 0;
}
