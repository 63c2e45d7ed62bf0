/* The library's one symbol: its table. */
#include "lab.h"

#include <stdarg.h>
#include <stdio.h>

bkl_status bkl_fail(bkl_context *context, bkl_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(context->error, sizeof context->error, format, args);
    va_end(args);
    return status;
}

static const char *status_text(bkl_status status)
{
    switch (status) {
#define X(code, text) \
    case code: return text;
        BKL_STATUSES(X)
#undef X
    }
    return "an unknown status";
}

static const char *error_sentence(const bkl_context *context) { return context->error; }

static const bkl_api api = {
    BKL_ABI_VERSION,
    sizeof(bkl_api),
    status_text,
    bkl_context_create,
    bkl_context_free,
    error_sentence,
    bkl_device_info_get,
    bkl_alloc,
    bkl_free,
    bkl_alloc_host,
    bkl_free_host,
    bkl_stream_create,
    bkl_stream_free,
    bkl_synchronize,
    bkl_copy_in,
    bkl_copy_out,
    bkl_copy,
    bkl_fill,
    bkl_event_create,
    bkl_event_free,
    bkl_event_record,
    bkl_event_ms,
    bkl_capture_begin,
    bkl_capture_end,
    bkl_graph_launch,
    bkl_graph_free,
#define X(op) bkl_##op, bkl_##op##_workspace,
    BKL_OPS(X)
#undef X
};

extern "C" __attribute__((visibility("default"))) const bkl_api *bkl_api_get(uint32_t abi_version, char *sentence,
                                                                             size_t sentence_bytes)
{
    if (abi_version == BKL_ABI_VERSION) return &api;
    snprintf(sentence, sentence_bytes,
             "the program was built for version %u of the kernel library's interface, this library has version %u; "
             "take both from one build",
             abi_version, BKL_ABI_VERSION);
    return nullptr;
}
