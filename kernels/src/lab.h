/* What the library's host code shares: contexts, streams, failing with a sentence, and the declaration of every op. */
#ifndef BKL_LAB_H
#define BKL_LAB_H

#include "bkl.h"

struct bkl_context {
    bkl_device_info info;
    int index;
    char error[1024];
};

struct bkl_stream {
    bkl_context *context;
    void *native;
    bkl_graph *capturing; /* the emulator's: what calls are recorded in */
};

/* Keeps the sentence as the context's error and returns `status`. */
bkl_status bkl_fail(bkl_context *context, bkl_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline void *bkl_stream_native(bkl_stream *stream) { return stream->native; }
/* After a kernel's launch: BKL_OK, or its error with the kernel's name. */
bkl_status bkl_launched(bkl_stream *stream, const char *kernel);

#define BKL_TRY(call)                \
    do {                             \
        bkl_status status_ = (call); \
        if (status_) return status_; \
    } while (0)

/* The entry checks what an op refuses: `condition`, or BKL_E_SHAPE with a sentence. */
#define BKL_EXPECT(stream, condition, ...)                                              \
    do {                                                                                \
        if (!(condition)) return bkl_fail((stream)->context, BKL_E_SHAPE, __VA_ARGS__); \
    } while (0)

#define BKL_NEED_WORKSPACE(stream, op, args, bytes)                                                                           \
    do {                                                                                                                      \
        const size_t need_ = bkl_##op##_workspace(args), has_ = (bytes);                                                      \
        if (has_ < need_)                                                                                                     \
            return bkl_fail((stream)->context, BKL_E_WORKSPACE, #op ": a workspace of %zu bytes; it needs %zu", has_, need_); \
    } while (0)

/* An op without a workspace. */
#define BKL_NO_WORKSPACE(op) \
    size_t bkl_##op##_workspace(const bkl_##op##_args *) { return 0; }

#define X(op)                                                                                                      \
    bkl_status bkl_##op(bkl_stream *stream, const bkl_##op##_args *args, void *workspace, size_t workspace_bytes); \
    size_t bkl_##op##_workspace(const bkl_##op##_args *args);
BKL_OPS(X)
#undef X

/* ---- the runtime: src/runtime.cu over CUDA, emu/emu_runtime.cc over the emulator; the same as in bkl_api ------------------
 */
bkl_status bkl_context_create(bkl_context **out, int index, char *sentence, size_t sentence_bytes);
void bkl_context_free(bkl_context **context);
bkl_status bkl_device_info_get(bkl_context *context, bkl_device_info *out);
bkl_status bkl_alloc(bkl_context *context, void **out, size_t bytes);
bkl_status bkl_free(bkl_context *context, void **p);
bkl_status bkl_alloc_host(bkl_context *context, void **out, size_t bytes);
bkl_status bkl_free_host(bkl_context *context, void **p);
bkl_status bkl_stream_create(bkl_context *context, bkl_stream **out);
void bkl_stream_free(bkl_stream **stream);
bkl_status bkl_synchronize(bkl_stream *stream);
bkl_status bkl_copy_in(bkl_stream *stream, void *device, const void *host, size_t bytes);
bkl_status bkl_copy_out(bkl_stream *stream, void *host, const void *device, size_t bytes);
bkl_status bkl_copy(bkl_stream *stream, void *to, const void *from, size_t bytes);
bkl_status bkl_fill(bkl_stream *stream, void *device, uint8_t byte, size_t bytes);
bkl_status bkl_event_create(bkl_context *context, bkl_event **out);
void bkl_event_free(bkl_event **event);
bkl_status bkl_event_record(bkl_stream *stream, bkl_event *event);
bkl_status bkl_event_ms(bkl_event *from, bkl_event *to, float *ms);
bkl_status bkl_capture_begin(bkl_stream *stream);
bkl_status bkl_capture_end(bkl_stream *stream, bkl_graph **out);
bkl_status bkl_graph_launch(bkl_stream *stream, bkl_graph *graph);
void bkl_graph_free(bkl_graph **graph);

#endif
