/* The library's runtime over the emulator: everything happens at once, and a graph is a list of what to do again. */
#include "emu_state.h"
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

bkl_status emu_run(const char *name, dim3 grid, unsigned threads, size_t shared_bytes, const emu_closure &closure,
                   char *sentence, size_t sentence_bytes);

struct bkl_event {
    double ms;
};

enum step_kind { LAUNCH, COPY_IN, COPY_OUT, COPY, FILL };
struct step {
    step_kind kind;
    const char *kernel;
    dim3 grid;
    unsigned threads;
    size_t shared_bytes;
    emu_closure closure;
    void *to;
    const void *from;
    size_t bytes;
    uint8_t byte;
};

struct bkl_graph {
    std::vector<step> steps;
};

/* ---- device memory without a watch: guards on both sides ------------------------------------------------------------------
 */
#ifndef EMU_WATCH
#include <map>
enum { GUARD = 256 };
static std::map<uintptr_t, size_t> allocations;

void *emu_device_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX - 3 * GUARD) return nullptr;
    unsigned char *block = (unsigned char *)aligned_alloc(GUARD, (bytes + 3 * GUARD - 1) / GUARD * GUARD);
    if (!block) return nullptr;
    memset(block, 0xa5, GUARD);
    memset(block + GUARD, 0xff, bytes);
    memset(block + GUARD + bytes, 0xa5, GUARD);
    allocations[(uintptr_t)block + GUARD] = bytes;
    return block + GUARD;
}

bool emu_device_free(void *p)
{
    const auto it = allocations.find((uintptr_t)p);
    if (it == allocations.end()) return false;
    const unsigned char *x = (const unsigned char *)p;
    bool whole = true;
    for (size_t i = 0; i < GUARD; i++) whole &= x[-1 - (ptrdiff_t)i] == 0xa5 && x[it->second + i] == 0xa5;
    allocations.erase(it);
    free((unsigned char *)p - GUARD);
    return whole;
}

bool emu_device_holds(const void *p, size_t bytes)
{
    auto it = allocations.upper_bound((uintptr_t)p);
    if (it == allocations.begin()) return false;
    --it;
    return (uintptr_t)p - it->first <= it->second && bytes <= it->second - ((uintptr_t)p - it->first);
}

void emu_device_written(void *, size_t) {}
#endif

/* ---- what a stream does ---------------------------------------------------------------------------------------------------
 */
static bkl_status run(bkl_context *context, const step &s)
{
    if (s.kind == LAUNCH)
        return emu_run(s.kernel, s.grid, s.threads, s.shared_bytes, s.closure, context->error, sizeof context->error);
    const bool reads_device = s.kind == COPY_OUT || s.kind == COPY, writes_device = s.kind != COPY_OUT;
    if ((writes_device && !emu_device_holds(s.to, s.bytes)) || (reads_device && !emu_device_holds(s.from, s.bytes)))
        return bkl_fail(context, BKL_E_DEVICE, "%s of %zu bytes: not all of them lie in one allocation of device memory",
                        s.kind == FILL ? "a fill" : "a copy", s.bytes);
    if (s.kind == FILL)
        memset(s.to, s.byte, s.bytes);
    else
        memmove(s.to, s.from, s.bytes);
    if (writes_device) emu_device_written(s.to, s.bytes);
    return BKL_OK;
}

static bkl_status submit(bkl_stream *stream, const step &s)
{
    if (!stream->capturing) return run(stream->context, s);
    stream->capturing->steps.push_back(s);
    return BKL_OK;
}

bkl_status emu_launch(bkl_stream *stream, const char *name, dim3 grid, unsigned threads, size_t shared_bytes,
                      const emu_closure &closure)
{
    step s = {};
    s.kind = LAUNCH, s.kernel = name, s.grid = grid, s.threads = threads, s.shared_bytes = shared_bytes, s.closure = closure;
    return submit(stream, s);
}

static bkl_status transfer(bkl_stream *stream, step_kind kind, void *to, const void *from, size_t bytes, uint8_t byte)
{
    step s = {};
    s.kind = kind, s.to = to, s.from = from, s.bytes = bytes, s.byte = byte;
    return submit(stream, s);
}

bkl_status bkl_copy_in(bkl_stream *stream, void *device, const void *host, size_t bytes)
{
    return transfer(stream, COPY_IN, device, host, bytes, 0);
}
bkl_status bkl_copy_out(bkl_stream *stream, void *host, const void *device, size_t bytes)
{
    return transfer(stream, COPY_OUT, host, device, bytes, 0);
}
bkl_status bkl_copy(bkl_stream *stream, void *to, const void *from, size_t bytes)
{
    return transfer(stream, COPY, to, from, bytes, 0);
}
bkl_status bkl_fill(bkl_stream *stream, void *device, uint8_t byte, size_t bytes)
{
    return transfer(stream, FILL, device, nullptr, bytes, byte);
}
bkl_status bkl_synchronize(bkl_stream *) { return BKL_OK; }

/* ---- contexts, memory -----------------------------------------------------------------------------------------------------
 */
bkl_status bkl_context_create(bkl_context **out, int index, char *sentence, size_t sentence_bytes)
{
    *out = nullptr;
    if (index != 0) {
        snprintf(sentence, sentence_bytes, "there is no device %d; the emulator has one", index);
        return BKL_E_NO_DEVICE;
    }
    bkl_context *context = (bkl_context *)calloc(1, sizeof *context);
    if (!context) {
        snprintf(sentence, sentence_bytes, "no memory for a context");
        return BKL_E_MEMORY;
    }
    bkl_device_info *info = &context->info;
    snprintf(info->name, sizeof info->name, "emulator");
    info->major = 12, info->n_sm = 1, info->shared_per_block = EMU_SHARED_LIMIT, info->emulated = true;
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
    *out = context->info;
    return BKL_OK;
}

bkl_status bkl_alloc(bkl_context *context, void **out, size_t bytes)
{
    *out = emu_device_alloc(bytes);
    return *out ? BKL_OK : bkl_fail(context, BKL_E_MEMORY, "no memory for %zu bytes", bytes);
}

bkl_status bkl_free(bkl_context *context, void **p)
{
    void *const had = *p;
    *p = nullptr;
    if (!had || emu_device_free(had)) return BKL_OK;
    return bkl_fail(context, BKL_E_DEVICE, "freed %p, which no allocation gave or whose guard bytes were overwritten", had);
}

bkl_status bkl_alloc_host(bkl_context *context, void **out, size_t bytes)
{
    *out = malloc(bytes ? bytes : 1);
    return *out ? BKL_OK : bkl_fail(context, BKL_E_MEMORY, "no memory for %zu bytes", bytes);
}

bkl_status bkl_free_host(bkl_context *, void **p)
{
    free(*p);
    *p = nullptr;
    return BKL_OK;
}

bkl_status bkl_stream_create(bkl_context *context, bkl_stream **out)
{
    *out = (bkl_stream *)calloc(1, sizeof **out);
    if (!*out) return bkl_fail(context, BKL_E_MEMORY, "no memory for a stream");
    (*out)->context = context;
    return BKL_OK;
}

void bkl_stream_free(bkl_stream **stream)
{
    if (*stream) delete (*stream)->capturing;
    free(*stream);
    *stream = nullptr;
}

/* ---- events, graphs -------------------------------------------------------------------------------------------------------
 */
bkl_status bkl_event_create(bkl_context *context, bkl_event **out)
{
    *out = (bkl_event *)calloc(1, sizeof **out);
    return *out ? BKL_OK : bkl_fail(context, BKL_E_MEMORY, "no memory for an event");
}

void bkl_event_free(bkl_event **event)
{
    free(*event);
    *event = nullptr;
}

bkl_status bkl_event_record(bkl_stream *, bkl_event *event)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    return BKL_OK;
}

bkl_status bkl_event_ms(bkl_event *from, bkl_event *to, float *ms)
{
    *ms = (float)(to->ms - from->ms);
    return BKL_OK;
}

bkl_status bkl_capture_begin(bkl_stream *stream)
{
    if (stream->capturing) return bkl_fail(stream->context, BKL_E_DEVICE, "the stream is being captured already");
    stream->capturing = new bkl_graph;
    return BKL_OK;
}

bkl_status bkl_capture_end(bkl_stream *stream, bkl_graph **out)
{
    *out = stream->capturing;
    stream->capturing = nullptr;
    return *out ? BKL_OK : bkl_fail(stream->context, BKL_E_DEVICE, "the stream is not being captured");
}

bkl_status bkl_graph_launch(bkl_stream *stream, bkl_graph *graph)
{
    for (const step &s : graph->steps) BKL_TRY(submit(stream, s));
    return BKL_OK;
}

void bkl_graph_free(bkl_graph **graph)
{
    delete *graph;
    *graph = nullptr;
}
