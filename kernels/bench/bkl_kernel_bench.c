/* Times every kernel over the shapes of the two target models and says how much of the device's roofline it reaches; with
 * --predict says what the roofline promises, without a device. The library is opened by its interface alone, so the same
 * program runs on a GPU (libbkl.so) and, for a check of itself, under the emulator, whose times mean nothing and are marked so.
 *
 *     bkl_kernel_bench [--library PATH] [--model NAME] [--tokens N] [--rank N] [--filter OP] [--repeats N]
 *                      [--tflops X --gbs X] [--predict] [--out PATH]
 *
 * Exit 0: ran; 1: no device, or a call failed (a sentence on stderr); 2: wrong usage. */
#include "kernel_cases.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a kernel is expected to reach of the roofline until it was measured (--predict); docs/kernels.md says why. */
static const double EXPECTED_TENSOR = 0.65, EXPECTED_MEMORY = 0.80, LAUNCH_MS = 0.003;

/* Dense bf16 with f32 sums, and memory; from docs/kernels.md. */
static const struct {
    const char *name;
    double tflops, gbs;
} PEAKS[] = {{"RTX 5080", 112, 960}, {"H200", 990, 4800}, {"H100", 990, 3350}, {"A100", 312, 1935}};

typedef struct {
    const char *library, *model, *filter, *out;
    int64_t tokens, rank;
    int repeats;
    double tflops, gbs;
    bool predict;
} options;

static const bkl_api *bkl;
static bkl_context *context;
static bkl_stream *stream;
static bkl_device_info device;

_Noreturn static void die(const char *what, const char *why)
{
    fprintf(stderr, "bkl_kernel_bench: %s: %s\n", what, why);
    exit(1);
}

static void run(bkl_status status, const char *what)
{
    if (status) die(what, bkl->error(context));
}

/* ---- arguments ------------------------------------------------------------------------------------------------------------
 */
_Noreturn static void usage(void)
{
    fprintf(
        stderr,
        "usage: bkl_kernel_bench [--library PATH] [--model minicpm5-1b|granite-4.1-3b] [--tokens N] [--rank N] [--filter OP]\n"
        "                        [--repeats N] [--tflops X --gbs X] [--predict] [--out PATH]\n");
    exit(2);
}

static double number(const char *text, double least, double most)
{
    char *end;
    errno = 0;
    const double x = strtod(text, &end);
    if (errno || end == text || *end || !(x >= least && x <= most)) usage();
    return x;
}

static options parse(int argc, char **argv)
{
    options o = {.library = "libbkl.so", .tokens = 2048, .rank = 16, .repeats = 20};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--predict") == 0) {
            o.predict = true;
            continue;
        }
        if (++i == argc) usage();
        if (strcmp(name, "--library") == 0) o.library = argv[i];
        else if (strcmp(name, "--model") == 0) o.model = argv[i];
        else if (strcmp(name, "--filter") == 0) o.filter = argv[i];
        else if (strcmp(name, "--out") == 0) o.out = argv[i];
        else if (strcmp(name, "--tokens") == 0) o.tokens = (int64_t)number(argv[i], 1, 131072);
        else if (strcmp(name, "--rank") == 0) o.rank = (int64_t)number(argv[i], 8, 512) / 8 * 8;
        else if (strcmp(name, "--repeats") == 0) o.repeats = (int)number(argv[i], 1, 1000);
        else if (strcmp(name, "--tflops") == 0) o.tflops = number(argv[i], 1e-3, 1e6);
        else if (strcmp(name, "--gbs") == 0) o.gbs = number(argv[i], 1e-3, 1e6);
        else usage();
    }
    bool known = !o.model;
    for (int i = 0; i < N_KERNEL_MODELS; i++) known |= o.model && strcmp(o.model, KERNEL_MODELS[i].name) == 0;
    if (!known || (o.tflops > 0) != (o.gbs > 0)) usage();
    return o;
}

/* ---- the library ----------------------------------------------------------------------------------------------------------
 */
static void open_library(const options *o)
{
    char sentence[512] = "";
    void *library = dlopen(o->library, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("cannot open the kernel library", dlerror());
    void *symbol = dlsym(library, "bkl_api_get");
    if (!symbol) die(o->library, "it is no kernel library: it has no bkl_api_get");
    bkl_api_get_fn *get;
    memcpy(&get, &symbol, sizeof get);
    bkl = get(BKL_ABI_VERSION, sentence, sizeof sentence);
    if (!bkl) die(o->library, sentence);
    if (bkl->context_create(&context, 0, sentence, sizeof sentence)) die(o->library, sentence);
    run(bkl->device_info(context, &device), "device_info");
    run(bkl->stream_create(context, &stream), "stream_create");
}

/* 0 and 0 for a device that is not in the table */
static void peaks_of(options *o)
{
    for (size_t i = 0; i < sizeof PEAKS / sizeof *PEAKS && o->tflops == 0; i++)
        if (strstr(o->predict ? "RTX 5080" : device.name, PEAKS[i].name)) o->tflops = PEAKS[i].tflops, o->gbs = PEAKS[i].gbs;
}

static bkl_status call(const kernel_case *c, void *workspace, size_t bytes)
{
    switch (c->op) {
#define X(op) \
    case OP_##op: return bkl->op(stream, &c->args.op, workspace, bytes);
        BKL_OPS(X)
#undef X
    case N_OPS: break;
    }
    return BKL_E_UNSUPPORTED;
}

static size_t workspace_of(const kernel_case *c)
{
    switch (c->op) {
#define X(op) \
    case OP_##op: return bkl->op##_workspace(&c->args.op);
        BKL_OPS(X)
#undef X
    case N_OPS: break;
    }
    return 0;
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------
 */
static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median and least of `repeats` calls, each between two events, after one that is not timed. */
static void measure(kernel_case *c, int repeats, double *median, double *least)
{
    void *memory[MAX_BUFFERS], *workspace = NULL;
    float ms[1000];
    for (int i = 0; i < c->n_buffers; i++) {
        run(bkl->alloc(context, &memory[i], c->buffer[i].bytes), "alloc");
        run(bkl->fill(stream, memory[i], 0, c->buffer[i].bytes), "fill");
        memcpy((char *)&c->args + c->buffer[i].at, &memory[i], sizeof memory[i]);
        for (size_t j = 0; i == c->filled_with_T && j < c->buffer[i].bytes; j += sizeof c->T)
            run(bkl->copy_in(stream, (char *)memory[i] + j, &c->T, sizeof c->T), "copy_in");
    }
    const size_t bytes = workspace_of(c);
    if (bytes) run(bkl->alloc(context, &workspace, bytes), "alloc");
    bkl_event *begin, *end;
    run(bkl->event_create(context, &begin), "event_create");
    run(bkl->event_create(context, &end), "event_create");
    const bkl_status status = call(c, workspace, bytes);
    if (status != BKL_E_UNSUPPORTED) run(status, kernel_op_name(c->op));
    run(bkl->synchronize(stream), kernel_op_name(c->op));
    if (status == BKL_E_UNSUPPORTED) repeats = 0; /* the device has no such instructions */
    for (int i = 0; i < repeats; i++) {
        run(bkl->event_record(stream, begin), "event_record");
        run(call(c, workspace, bytes), kernel_op_name(c->op));
        run(bkl->event_record(stream, end), "event_record");
        run(bkl->event_ms(begin, end, &ms[i]), kernel_op_name(c->op));
    }
    qsort(ms, (size_t)repeats, sizeof *ms, compare);
    *median = *least = NAN;
    if (repeats) *median = repeats % 2 ? ms[repeats / 2] : (ms[repeats / 2 - 1] + ms[repeats / 2]) / 2, *least = ms[0];
    bkl->event_free(&begin), bkl->event_free(&end);
    if (workspace) run(bkl->free(context, &workspace), "free");
    for (int i = 0; i < c->n_buffers; i++) run(bkl->free(context, &memory[i]), "free");
}

/* ---- the report -----------------------------------------------------------------------------------------------------------
 */
static void report_case(FILE *f, const options *o, kernel_case *c, double *step_ms, double *roofline_step_ms, bool first)
{
    const double math_ms = o->tflops > 0 ? c->flops / (o->tflops * 1e9) : 0,
                 memory_ms = o->gbs > 0 ? c->bytes / (o->gbs * 1e6) : 0;
    const double roofline = fmax(math_ms, memory_ms);
    double median = 0, least = 0;
    if (o->predict)
        median = least = fmax(math_ms / EXPECTED_TENSOR, memory_ms / EXPECTED_MEMORY) + LAUNCH_MS;
    else
        measure(c, o->repeats, &median, &least);
    if (isnan(median)) {
        fprintf(f, "%s\n        {\"op\": \"%s\", \"shape\": \"%s\", \"skipped\": \"not supported on this device\"}",
                first ? "" : ",", kernel_op_name(c->op), c->shape);
        return;
    }
    *step_ms += c->per_step * median, *roofline_step_ms += c->per_step * roofline;
    fprintf(f,
            "%s\n        {\"op\": \"%s\", \"shape\": \"%s\", \"calls_per_step\": %d, \"gflop\": %.4f, \"mbytes\": %.4f, "
            "\"%s\": %.6f, \"%s\": %.6f, ",
            first ? "" : ",", kernel_op_name(c->op), c->shape, c->per_step, c->flops * 1e-9, c->bytes * 1e-6,
            o->predict ? "predicted_ms" : "median_ms", median, o->predict ? "predicted_step_ms" : "least_ms",
            o->predict ? c->per_step * median : least);
    if (o->tflops > 0)
        fprintf(f, "\"bound_by\": \"%s\", \"roofline_ms\": %.6f, \"percent_of_roofline\": %.2f}",
                math_ms > memory_ms ? "tensor" : "memory", roofline, median > 0 ? 100 * roofline / median : 0);
    else
        fprintf(f, "\"bound_by\": null, \"roofline_ms\": null, \"percent_of_roofline\": null}");
}

static void report_model(FILE *f, const options *o, const kernel_model *m, bool first)
{
    static kernel_case cases[MAX_CASES];
    const int n = kernel_cases_make(cases, m, o->tokens, o->rank);
    double step_ms = 0, roofline_ms = 0;
    bool none = true;
    fprintf(f, "%s\n    {\n      \"model\": \"%s\",\n      \"cases\": [", first ? "" : ",", m->name);
    for (int i = 0; i < n; i++) {
        if (o->filter && strcmp(o->filter, kernel_op_name(cases[i].op)) != 0) continue;
        report_case(f, o, &cases[i], &step_ms, &roofline_ms, none);
        none = false;
    }
    fprintf(f, "\n      ],\n      \"sum_of_a_step_ms\": %.4f,\n      \"roofline_of_a_step_ms\": %.4f\n    }", step_ms,
            roofline_ms);
}

int main(int argc, char **argv)
{
    options o = parse(argc, argv);
    if (!o.predict) open_library(&o);
    peaks_of(&o);
    FILE *f = o.out ? fopen(o.out, "w") : stdout;
    if (!f) die(o.out, strerror(errno));
    char now[32];
    const time_t seconds = time(NULL);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fprintf(f, "{\n  \"schema\": \"bkl.kernel_bench.v1\",\n  \"timestamp_utc\": \"%s\",\n  \"kind\": \"%s\",\n", now,
            o.predict         ? "predicted"
            : device.emulated ? "emulated"
                              : "measured");
    fprintf(f,
            "  \"device\": {\"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, \"driver\": %d, "
            "\"runtime\": %d},\n",
            o.predict ? "RTX 5080 (no device was used)" : device.name, device.major, device.minor, device.n_sm,
            device.driver_version, device.runtime_version);
    fprintf(f,
            "  \"peak\": {\"bf16_tflops\": %.3f, \"memory_gbs\": %.3f},\n  \"tokens\": %lld,\n  \"rank\": %lld,\n  "
            "\"repeats\": %d,\n",
            o.tflops, o.gbs, (long long)o.tokens, (long long)o.rank, o.predict ? 0 : o.repeats);
    if (o.predict)
        fprintf(f, "  \"assumed\": {\"of_tensor_peak\": %.2f, \"of_memory_peak\": %.2f, \"launch_ms\": %.4f},\n",
                EXPECTED_TENSOR, EXPECTED_MEMORY, LAUNCH_MS);
    fprintf(f, "  \"models\": [");
    bool first = true;
    for (int i = 0; i < N_KERNEL_MODELS; i++) {
        if (o.model && strcmp(o.model, KERNEL_MODELS[i].name) != 0) continue;
        report_model(f, &o, &KERNEL_MODELS[i], first);
        first = false;
    }
    fprintf(f, "\n  ]\n}\n");
    const bool good = !ferror(f) && fflush(f) == 0;
    if (!good || (o.out && fclose(f) != 0)) die(o.out ? o.out : "stdout", strerror(errno));
    return 0;
}
