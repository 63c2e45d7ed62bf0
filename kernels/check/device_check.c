#include "device_check.h"

#include "base/num.h"

#include <dlfcn.h>
#include <stdio.h>

enum { GUARD_BYTES = 256 };

const bkl_api *bkl;
bkl_stream *device_stream;
bkl_device_info device_info;
static bkl_context *context;
static void *library;

/* ---- the library ----------------------------------------------------------------------------------------------------------
 */
int device_open(void **state)
{
    (void)state;
    char sentence[512] = "";
    const char *path = getenv("BKL_LIBRARY");
    if (!path) fail_msg("BKL_LIBRARY names no library");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    void *symbol = dlsym(library, "bkl_api_get");
    assert_non_null(symbol);
    bkl_api_get_fn *get;
    memcpy(&get, &symbol, sizeof get);
    bkl = get(BKL_ABI_VERSION, sentence, sizeof sentence);
    if (!bkl) fail_msg("%s", sentence);
    const bkl_status status = bkl->context_create(&context, 0, sentence, sizeof sentence);
    if (status == BKL_E_NO_DEVICE) {
        printf("SKIP: %s\n", sentence);
        exit(77);
    }
    if (status) fail_msg("%s", sentence);
    must_run(bkl->device_info(context, &device_info));
    must_run(bkl->stream_create(context, &device_stream));
    return 0;
}

int device_close(void **state)
{
    (void)state;
    bkl->stream_free(&device_stream);
    bkl->context_free(&context);
    dlclose(library);
    return 0;
}

const char *device_error(void) { return bkl->error(context); }

/* ---- arrays: on a GPU with guard bytes around them; the emulator has its own, closer watch --------------------------------
 */
typedef struct array {
    struct array *next;
    unsigned char *p;
    size_t bytes, guard;
} array;
static array *arrays;

void *device_bytes(const void *host, size_t bytes)
{
    array *a = malloc(sizeof *a);
    assert_non_null(a);
    void *block;
    a->bytes = bytes, a->guard = device_info.emulated ? 0 : GUARD_BYTES;
    must_run(bkl->alloc(context, &block, bytes + 2 * a->guard));
    a->p = (unsigned char *)block + a->guard;
    a->next = arrays, arrays = a;
    if (a->guard) must_run(bkl->fill(device_stream, block, 0xa5, bytes + 2 * a->guard));
    if (host) must_run(bkl->copy_in(device_stream, a->p, host, bytes));
    must_run(bkl->synchronize(device_stream));
    return a->p;
}

void device_drop(void *p)
{
    if (!p) return;
    array **link = &arrays;
    while (*link && (*link)->p != p) link = &(*link)->next;
    if (!*link) fail_msg("an array was dropped that nobody made");
    array *a = *link;
    *link = a->next;
    if (a->guard) {
        unsigned char around[2][GUARD_BYTES];
        fetch_bytes(around[0], a->p - GUARD_BYTES, GUARD_BYTES);
        fetch_bytes(around[1], a->p + a->bytes, GUARD_BYTES);
        for (int i = 0; i < 2 * GUARD_BYTES; i++)
            if (around[i / GUARD_BYTES][i % GUARD_BYTES] != 0xa5)
                fail_msg("a kernel wrote outside an array of %zu bytes", a->bytes);
    }
    void *block = a->p - a->guard;
    must_run(bkl->free(context, &block));
    free(a);
}

float *device_f32(const float *host, int64_t n) { return device_bytes(host, (size_t)n * sizeof(float)); }
int32_t *device_i32(const int32_t *host, int64_t n) { return device_bytes(host, (size_t)n * sizeof(int32_t)); }

bkl_bf16 *device_bf16(float *host, int64_t n)
{
    if (!host) return device_bytes(NULL, (size_t)n * sizeof(bkl_bf16));
    bkl_bf16 *rounded = malloc((size_t)n * sizeof *rounded + 1);
    assert_non_null(rounded);
    for (int64_t i = 0; i < n; i++) rounded[i] = ag_f32_to_bf16(host[i]), host[i] = ag_bf16_to_f32(rounded[i]);
    bkl_bf16 *p = device_bytes(rounded, (size_t)n * sizeof *rounded);
    free(rounded);
    return p;
}

void fetch_bytes(void *host, const void *device, size_t bytes)
{
    must_run(bkl->copy_out(device_stream, host, device, bytes));
    must_run(bkl->synchronize(device_stream));
}

void fetch_f32(float *host, const float *device, int64_t n) { fetch_bytes(host, device, (size_t)n * sizeof *host); }

void fetch_bf16(float *host, const bkl_bf16 *device, int64_t n)
{
    bkl_bf16 *rounded = malloc((size_t)n * sizeof *rounded + 1);
    assert_non_null(rounded);
    fetch_bytes(rounded, device, (size_t)n * sizeof *rounded);
    for (int64_t i = 0; i < n; i++) host[i] = ag_bf16_to_f32(rounded[i]);
    free(rounded);
}

void check_bf16(const bkl_bf16 *got, const float *want, int64_t n, double tolerance, const char *what)
{
    float *host = host_floats(n);
    fetch_bf16(host, got, n);
    check_close(host, want, n, tolerance, what);
    free(host);
}

void check_f32(const float *got, const float *want, int64_t n, double tolerance, const char *what)
{
    float *host = host_floats(n);
    fetch_f32(host, got, n);
    check_close(host, want, n, tolerance, what);
    free(host);
}

float *host_floats(int64_t n)
{
    float *p = malloc((size_t)n * sizeof *p + 1);
    assert_non_null(p);
    return p;
}
