/* The report of bkl_green_ctx_bench (schema bkl.green_ctx_bench.v1) and its writing: to a temporary file beside it, then
 * renamed. */
#ifndef BKL_GREEN_REPORT_H
#define BKL_GREEN_REPORT_H

#include "bench_cuda.h"

#include <math.h>
#include <unistd.h>

enum { SENSITIVE_ITERATIONS = 12000, BLOCK_THREADS = 1024, DELAY_US = 10000, WAVES = 3, MAX_INVOCATIONS = 3, MAX_SAMPLES = 7 };
static const long long REQUIRED_HEADROOM = 2147483648ll;
static const double REQUIRED_IMPROVEMENT = 10.0;

typedef struct {
    bool partitioned_first, correct, gate_pass;
    double gpu_ms[2][MAX_SAMPLES], host_ms[2][MAX_SAMPLES]; /* ordinary, partitioned */
    double median_ms[2], improvement;
} green_invocation;

typedef struct {
    char run_id[96], timestamp[32];
    const char *outcome, *skipped; /* skipped: NULL when measured */
    const char *error_stage;       /* NULL: no driver error */
    char error_name[96], error_description[256];

    cudaDeviceProp device;
    int runtime_version, driver_version, header_version;
    long long total, free_before, planned, free_after /* -1: null */, free_least /* -1: null */;

    bool has_api, has_query;
    int sm_total, min_partition, alignment, split_min_count /* -1: null */, groups, sensitive_sms, background_sms,
        remainder_sms;
    int priority_high, priority_low;
    int active_blocks, grid_blocks;
    long long delay_cycles;

    int n_invocations, n_samples;
    bool is_smoke;
    green_invocation invocation[MAX_INVOCATIONS];
    double median_ms[2], improvement;
    bool passed_all;
} green_report;

static inline double micro_rounded(double ms) { return round(ms * 1e6) / 1e6; }

static inline void json_int_or_null(FILE *f, const char *key, bool is_there, long long value, const char *end)
{
    if (is_there)
        fprintf(f, "    \"%s\": %lld%s\n", key, value, end);
    else
        fprintf(f, "    \"%s\": null%s\n", key, end);
}

static inline void json_real_or_null(FILE *f, const char *key, bool is_there, double value, const char *end)
{
    if (is_there)
        fprintf(f, "    \"%s\": %.6f%s\n", key, value, end);
    else
        fprintf(f, "    \"%s\": null%s\n", key, end);
}

static inline void json_list(FILE *f, const char *key, const double *values, int n)
{
    fprintf(f, "      \"%s\": [", key);
    for (int i = 0; i < n; i++) fprintf(f, "%s%.6f", i ? ", " : "", values[i]);
    fprintf(f, "],\n");
}

static inline void green_write_body(FILE *f, const green_report *r)
{
    const bool measured = !r->skipped, split = r->groups == 2;
    fprintf(f,
            "{\n  \"schema\": \"bkl.green_ctx_bench.v1\",\n  \"schema_version\": 1,\n  \"run_id\": \"%s\",\n  "
            "\"timestamp_utc\": \"%s\",\n  \"outcome\": \"%s\",\n",
            r->run_id, r->timestamp, r->outcome);
    if (measured)
        fprintf(f, "  \"measurement_skipped_reason\": null,\n");
    else
        fprintf(f, "  \"measurement_skipped_reason\": \"%s\",\n", r->skipped);
    if (r->error_stage) {
        fprintf(f, "  \"driver_error\": {\n    \"stage\": \"%s\",\n    \"name\": ", r->error_stage);
        json_string(f, r->error_name);
        fprintf(f, ",\n    \"description\": ");
        json_string(f, r->error_description);
        fprintf(f, "\n  },\n");
    } else {
        fprintf(f, "  \"driver_error\": null,\n");
    }
    fprintf(f, "  \"host\": {\n    \"gpu_name\": ");
    json_string(f, r->device.name);
    fprintf(f,
            ",\n    \"compute_capability\": \"%d.%d\",\n    \"cuda_runtime_version\": %d,\n    \"cuda_driver_version\": %d,\n  "
            "  \"cuda_header_version\": %d,\n"
            "    \"vram_total_bytes\": %lld,\n    \"vram_free_before_bytes\": %lld,\n    \"planned_allocation_bytes\": %lld,\n "
            "   \"projected_free_after_bytes\": %lld,\n",
            r->device.major, r->device.minor, r->runtime_version, r->driver_version, r->header_version, r->total,
            r->free_before, r->planned, r->free_before - r->planned);
    json_int_or_null(f, "vram_free_after_allocation_bytes", r->free_after >= 0, r->free_after, ",");
    json_int_or_null(f, "vram_min_observed_bytes", r->free_least >= 0, r->free_least, ",");
    fprintf(f, "    \"required_headroom_bytes\": %lld\n  },\n", REQUIRED_HEADROOM);

    fprintf(f, "  \"capability\": {\n    \"compile_time_green_context_api\": %s,\n    \"resource_query_succeeded\": %s,\n",
            r->has_api ? "true" : "false", r->has_query ? "true" : "false");
    json_int_or_null(f, "sm_total", r->has_query, r->sm_total, ",");
    json_int_or_null(f, "min_sm_partition_size", r->has_query, r->min_partition, ",");
    json_int_or_null(f, "sm_coscheduled_alignment", r->has_query, r->alignment, ",");
    json_int_or_null(f, "split_min_count", r->groups > 0, r->split_min_count, ",");
    fprintf(f, "    \"created_groups\": %d,\n", r->groups);
    json_int_or_null(f, "sensitive_sm_count", split, r->sensitive_sms, ",");
    json_int_or_null(f, "background_sm_count", split, r->background_sms, ",");
    json_int_or_null(f, "remainder_sm_count", split, r->remainder_sms, ",");
    fprintf(f,
            "    \"ordinary_stream_priority\": {\"sensitive\": %d, \"background\": %d},\n    \"partitioned_stream_priority\": "
            "{\"sensitive\": %d, \"background\": %d}\n  },\n",
            r->priority_high, r->priority_low, r->priority_high, r->priority_low);

    const double all = (double)r->active_blocks * r->sm_total, part = (double)r->active_blocks * r->background_sms;
    fprintf(f,
            "  \"workload\": {\n    \"background_block_threads\": %d,\n    \"background_active_blocks_per_sm\": %d,\n    "
            "\"background_grid_blocks\": %d,\n",
            (int)BLOCK_THREADS, r->active_blocks, r->grid_blocks);
    json_real_or_null(f, "ordinary_background_waves", r->has_query && all > 0, all > 0 ? r->grid_blocks / all : 0, ",");
    json_real_or_null(f, "partitioned_background_waves", split && part > 0, part > 0 ? r->grid_blocks / part : 0, ",");
    fprintf(f,
            "    \"background_delay_us_per_block\": %d,\n    \"background_delay_cycles\": %lld,\n    "
            "\"sensitive_block_threads\": %d,\n    \"sensitive_blocks\": 1,\n"
            "    \"sensitive_iterations\": %d,\n    \"samples_per_mode\": %d,\n    \"independent_invocations\": %d\n  },\n",
            (int)DELAY_US, r->delay_cycles, (int)BLOCK_THREADS, (int)SENSITIVE_ITERATIONS, r->n_samples, r->n_invocations);

    fprintf(f, "  \"invocations\": [");
    for (int i = 0; measured && i < r->n_invocations; i++) {
        const green_invocation *v = &r->invocation[i];
        fprintf(f, "%s\n    {\n      \"index\": %d,\n      \"order\": \"%s\",\n", i ? "," : "", i + 1,
                v->partitioned_first ? "partitioned_then_ordinary" : "ordinary_then_partitioned");
        json_list(f, "ordinary_gpu_latency_ms", v->gpu_ms[0], r->n_samples);
        json_list(f, "partitioned_gpu_latency_ms", v->gpu_ms[1], r->n_samples);
        json_list(f, "ordinary_host_launch_to_sync_ms", v->host_ms[0], r->n_samples);
        json_list(f, "partitioned_host_launch_to_sync_ms", v->host_ms[1], r->n_samples);
        fprintf(f,
                "      \"ordinary_median_ms\": %.6f,\n      \"partitioned_median_ms\": %.6f,\n      \"improvement_percent\": "
                "%.6f,\n      \"correctness\": %s,\n      \"gate_pass\": %s\n    }",
                v->median_ms[0], v->median_ms[1], v->improvement, v->correct ? "true" : "false",
                v->gate_pass ? "true" : "false");
    }
    fprintf(f, "%s],\n  \"summary\": {\n", measured ? "\n  " : "");
    json_real_or_null(f, "ordinary_median_ms", measured, r->median_ms[0], ",");
    json_real_or_null(f, "partitioned_median_ms", measured, r->median_ms[1], ",");
    json_real_or_null(f, "improvement_percent", measured, r->improvement, "");
    fprintf(f,
            "  },\n  \"decision\": {\n    \"required_improvement_percent\": %.1f,\n    \"passed_all_three\": %s,\n    "
            "\"follow_up_justified\": %s\n  },\n",
            REQUIRED_IMPROVEMENT,
            !measured       ? "null"
            : r->passed_all ? "true"
                            : "false",
            measured && r->passed_all ? "true" : "false");
    fprintf(f,
            "  \"notes\": \"Synthetic: a latency-sensitive kernel beside a long background kernel. Event latency is submission "
            "to completion, queueing included%s.\"\n}\n",
            r->is_smoke ? "; smoke scale measures nothing" : "");
}

/* false with errno; nothing half written is left behind. */
static inline bool green_write(const green_report *r, const char *path)
{
    char temporary[4200];
    if (!make_parents(path)) return false;
    if (snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid()) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    FILE *f = fopen(temporary, "w");
    if (!f) return false;
    green_write_body(f, r);
    bool good = fflush(f) == 0 && !ferror(f);
    good = fclose(f) == 0 && good;
    if (good && rename(temporary, path) == 0) return true;
    const int why = errno;
    unlink(temporary);
    errno = why;
    return false;
}

#endif
