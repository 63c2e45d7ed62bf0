/* Contexts, memory, streams, events and graphs over the CUDA runtime. */
#include "lab.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

struct bkl_graph {
    cudaGraphExec_t native;
};

struct bkl_event {
    bkl_context *context;
    cudaEvent_t native;
};

static bkl_status failed(bkl_context *context, const char *what, cudaError_t error)
{
    return bkl_fail(context, error == cudaErrorMemoryAllocation ? BKL_E_MEMORY : BKL_E_DEVICE, "%s: %s", what,
                    cudaGetErrorString(error));
}

#define CUDA_TRY(context, call)                                       \
    do {                                                              \
        cudaError_t error_ = (call);                                  \
        if (error_) return failed((context), #call, error_);          \
    } while (0)

bkl_status bkl_launched(bkl_stream *stream, const char *kernel)
{
    const cudaError_t error = cudaGetLastError();
    return error ? failed(stream->context, kernel, error) : BKL_OK;
}

static bkl_status describe(bkl_context *context)
{
    cudaDeviceProp p;
    bkl_device_info *info = &context->info;
    CUDA_TRY(context, cudaSetDevice(context->index));
    CUDA_TRY(context, cudaGetDeviceProperties(&p, context->index));
    snprintf(info->name, sizeof info->name, "%s", p.name);
    info->major = p.major, info->minor = p.minor, info->n_sm = p.multiProcessorCount;
    info->memory_bus_bits = p.memoryBusWidth, info->shared_per_block = p.sharedMemPerBlockOptin;
    CUDA_TRY(context, cudaDeviceGetAttribute(&info->clock_khz, cudaDevAttrClockRate, context->index));
    CUDA_TRY(context, cudaDeviceGetAttribute(&info->memory_clock_khz, cudaDevAttrMemoryClockRate, context->index));
    CUDA_TRY(context, cudaDriverGetVersion(&info->driver_version));
    CUDA_TRY(context, cudaRuntimeGetVersion(&info->runtime_version));
    CUDA_TRY(context, cudaMemGetInfo(&info->memory_free, &info->memory_total));
    if (info->major < 8)
        return bkl_fail(context, BKL_E_UNSUPPORTED, "%s has compute capability %d.%d; the kernels need 8.0 or newer",
                        info->name, info->major, info->minor);
    return BKL_OK;
}

bkl_status bkl_context_create(bkl_context **out, int index, char *sentence, size_t sentence_bytes)
{
    *out = nullptr;
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error || n == 0) {
        snprintf(sentence, sentence_bytes, "no CUDA device: %s", error ? cudaGetErrorString(error) : "the driver counts none");
        return BKL_E_NO_DEVICE;
    }
    if (index < 0 || index >= n) {
        snprintf(sentence, sentence_bytes, "there is no CUDA device %d; the driver counts %d", index, n);
        return BKL_E_NO_DEVICE;
    }
    bkl_context *context = (bkl_context *)calloc(1, sizeof *context);
    if (!context) {
        snprintf(sentence, sentence_bytes, "no memory for a context");
        return BKL_E_MEMORY;
    }
    context->index = index;
    const bkl_status status = describe(context);
    if (status) {
        snprintf(sentence, sentence_bytes, "%s", context->error);
        free(context);
        return status;
    }
    *out = context;
    return BKL_OK;
}

void bkl_context_free(bkl_context **context)
{
    free(*context);
    *context = nullptr;
}

bkl_status bkl_device_info_get(bkl_context *context, bkl_device_info *out)
{
    CUDA_TRY(context, cudaMemGetInfo(&context->info.memory_free, &context->info.memory_total));
    *out = context->info;
    return BKL_OK;
}

bkl_status bkl_alloc(bkl_context *context, void **out, size_t bytes)
{
    *out = nullptr;
    CUDA_TRY(context, cudaMalloc(out, bytes));
    return BKL_OK;
}

bkl_status bkl_free(bkl_context *context, void **p)
{
    void *const had = *p;
    *p = nullptr;
    CUDA_TRY(context, cudaFree(had));
    return BKL_OK;
}

bkl_status bkl_alloc_host(bkl_context *context, void **out, size_t bytes)
{
    *out = nullptr;
    CUDA_TRY(context, cudaMallocHost(out, bytes));
    return BKL_OK;
}

bkl_status bkl_free_host(bkl_context *context, void **p)
{
    void *const had = *p;
    *p = nullptr;
    CUDA_TRY(context, cudaFreeHost(had));
    return BKL_OK;
}

bkl_status bkl_stream_create(bkl_context *context, bkl_stream **out)
{
    *out = nullptr;
    cudaStream_t native;
    CUDA_TRY(context, cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
    bkl_stream *stream = (bkl_stream *)calloc(1, sizeof *stream);
    if (!stream) {
        cudaStreamDestroy(native);
        return bkl_fail(context, BKL_E_MEMORY, "no memory for a stream");
    }
    stream->context = context, stream->native = native;
    *out = stream;
    return BKL_OK;
}

void bkl_stream_free(bkl_stream **stream)
{
    if (*stream) cudaStreamDestroy((cudaStream_t)(*stream)->native);
    free(*stream);
    *stream = nullptr;
}

bkl_status bkl_synchronize(bkl_stream *stream)
{
    CUDA_TRY(stream->context, cudaStreamSynchronize((cudaStream_t)stream->native));
    return BKL_OK;
}

static bkl_status copy_kind(bkl_stream *stream, void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    CUDA_TRY(stream->context, cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream->native));
    return BKL_OK;
}

bkl_status bkl_copy_in(bkl_stream *stream, void *device, const void *host, size_t bytes)
{
    return copy_kind(stream, device, host, bytes, cudaMemcpyHostToDevice);
}

bkl_status bkl_copy_out(bkl_stream *stream, void *host, const void *device, size_t bytes)
{
    return copy_kind(stream, host, device, bytes, cudaMemcpyDeviceToHost);
}

bkl_status bkl_copy(bkl_stream *stream, void *to, const void *from, size_t bytes)
{
    return copy_kind(stream, to, from, bytes, cudaMemcpyDeviceToDevice);
}

bkl_status bkl_fill(bkl_stream *stream, void *device, uint8_t byte, size_t bytes)
{
    CUDA_TRY(stream->context, cudaMemsetAsync(device, byte, bytes, (cudaStream_t)stream->native));
    return BKL_OK;
}

bkl_status bkl_event_create(bkl_context *context, bkl_event **out)
{
    *out = nullptr;
    cudaEvent_t native;
    CUDA_TRY(context, cudaEventCreate(&native));
    bkl_event *event = (bkl_event *)calloc(1, sizeof *event);
    if (!event) {
        cudaEventDestroy(native);
        return bkl_fail(context, BKL_E_MEMORY, "no memory for an event");
    }
    event->context = context, event->native = native;
    *out = event;
    return BKL_OK;
}

void bkl_event_free(bkl_event **event)
{
    if (*event) cudaEventDestroy((*event)->native);
    free(*event);
    *event = nullptr;
}

bkl_status bkl_event_record(bkl_stream *stream, bkl_event *event)
{
    CUDA_TRY(stream->context, cudaEventRecord(event->native, (cudaStream_t)stream->native));
    return BKL_OK;
}

bkl_status bkl_event_ms(bkl_event *from, bkl_event *to, float *ms)
{
    CUDA_TRY(to->context, cudaEventSynchronize(to->native));
    CUDA_TRY(to->context, cudaEventElapsedTime(ms, from->native, to->native));
    return BKL_OK;
}

bkl_status bkl_capture_begin(bkl_stream *stream)
{
    CUDA_TRY(stream->context, cudaStreamBeginCapture((cudaStream_t)stream->native, cudaStreamCaptureModeThreadLocal));
    return BKL_OK;
}

bkl_status bkl_capture_end(bkl_stream *stream, bkl_graph **out)
{
    *out = nullptr;
    cudaGraph_t recorded;
    CUDA_TRY(stream->context, cudaStreamEndCapture((cudaStream_t)stream->native, &recorded));
    bkl_graph *graph = (bkl_graph *)calloc(1, sizeof *graph);
    if (!graph) {
        cudaGraphDestroy(recorded);
        return bkl_fail(stream->context, BKL_E_MEMORY, "no memory for a graph");
    }
    const cudaError_t error = cudaGraphInstantiate(&graph->native, recorded, 0);
    cudaGraphDestroy(recorded);
    if (error) {
        free(graph);
        return failed(stream->context, "cudaGraphInstantiate", error);
    }
    *out = graph;
    return BKL_OK;
}

bkl_status bkl_graph_launch(bkl_stream *stream, bkl_graph *graph)
{
    CUDA_TRY(stream->context, cudaGraphLaunch(graph->native, (cudaStream_t)stream->native));
    return BKL_OK;
}

void bkl_graph_free(bkl_graph **graph)
{
    if (*graph) cudaGraphExecDestroy((*graph)->native);
    free(*graph);
    *graph = nullptr;
}
