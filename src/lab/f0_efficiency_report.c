#include "lab/f0_efficiency.h"

/* A number of the summary as text; n/a where there is none. */
static void add_number(ag_str *out, const json_t *value)
{
    if (json_is_integer(value))
        ag_str_printf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        ag_str_add_double(out, json_real_value(value));
    else if (json_is_boolean(value))
        ag_str_add(out, json_is_true(value) ? "yes" : "no");
    else
        ag_str_add(out, "n/a");
}

static void row(ag_str *out, const char *label, const json_t *block, const char *key, const char *unit)
{
    ag_str_printf(out, "- %s: ", label);
    const json_t *value = json_object_get(block, key);
    add_number(out, value);
    if (value && !json_is_null(value) && *unit) ag_str_printf(out, " %s", unit);
    ag_str_add_char(out, '\n');
}

/* Names come from files: a line break would end the line of the report. */
static void add_name(ag_str *out, const char *text)
{
    for (; *text; text++) ag_str_add_char(out, (unsigned char)*text < ' ' ? ' ' : *text);
}

static void add_text(ag_str *out, const json_t *value) { add_name(out, json_is_string(value) ? json_string_value(value) : "n/a"); }

static void phases(ag_str *out, const json_t *by_phase)
{
    const char *phase;
    json_t *block;
    ag_str_add(out, "\n## By phase\n\n");
    if (!json_object_size(by_phase)) ag_str_add(out, "n/a\n");
    json_object_foreach((json_t *)(uintptr_t)by_phase, phase, block) {
        ag_str_add(out, "- ");
        add_name(out, phase);
        ag_str_add(out, ": samples ");
        add_number(out, json_object_get(block, "sample_count"));
        static const char *const parts[][3] = {{"utilization_gpu", "avg", "GPU % avg"}, {"power", "avg_w", "W avg"}, {"vram", "peak_used_mib", "MiB peak"}};
        for (int i = 0; i < 3; i++) {
            ag_str_add(out, ", ");
            add_number(out, json_object_get(json_object_get(block, parts[i][0]), parts[i][1]));
            ag_str_printf(out, " %s", parts[i][2]);
        }
        ag_str_add_char(out, '\n');
    }
}

static void windows(ag_str *out, const json_t *list)
{
    if (!json_array_size(list)) return;
    ag_str_add(out, "\n## Profiler windows\n\n");
    size_t i;
    const json_t *window;
    json_array_foreach(list, i, window) {
        ag_str_add(out, "- ");
        add_text(out, json_object_get(window, "profile_window_ref"));
        ag_str_add(out, ": samples ");
        add_number(out, json_object_get(window, "sample_count"));
        ag_str_add(out, ", power ");
        add_number(out, json_object_get(window, "power_avg_w"));
        ag_str_add(out, " W avg, kernels ");
        add_number(out, json_object_get(json_object_get(window, "compact_summary"), "kernel_count"));
        ag_str_add(out, ", run time ");
        add_number(out, json_object_get(json_object_get(window, "compact_summary"), "runtime_ms"));
        ag_str_add(out, " ms\n");
    }
}

void ag_efficiency_report(ag_str *out, const json_t *summary)
{
    const json_t *run = json_object_get(summary, "run"), *part = json_object_get(summary, "throughput");
    ag_str_add(out, "# GPU efficiency (" AG_EFFICIENCY_SCHEMA ")\n\n- run: ");
    add_text(out, json_object_get(run, "agoge_run_id"));
    ag_str_add(out, "\n- model: ");
    add_text(out, json_object_get(run, "model_id"));
    ag_str_add(out, "\n- host: ");
    add_text(out, json_object_get(json_object_get(run, "host"), "hostname"));
    ag_str_add(out, "\n\n## Throughput\n\n");
    row(out, "tokens", part, "tokens_per_s", "token/s");
    row(out, "examples", part, "examples_per_s", "example/s");
    row(out, "elapsed", part, "elapsed_s", "s");
    row(out, "step time, mean", json_object_get(summary, "step_time"), "mean", "s");
    row(out, "step time, standard deviation", json_object_get(summary, "step_time"), "stdev", "s");
    part = json_object_get(summary, "vram");
    ag_str_add(out, "\n## VRAM / headroom\n\n");
    row(out, "peak used", part, "peak_used_mib", "MiB");
    row(out, "least free", part, "min_free_mib", "MiB");
    row(out, "least effective headroom", part, "effective_min_headroom_mib", "MiB");
    row(out, "floor", part, "headroom_floor_mib", "MiB");
    row(out, "floor met", part, "meets_host_floor", "");
    ag_str_add(out, "\n## Power / thermal\n\n");
    row(out, "power, mean", json_object_get(summary, "power"), "avg_w", "W");
    row(out, "power, peak", json_object_get(summary, "power"), "peak_w", "W");
    row(out, "GPU temperature, mean", json_object_get(summary, "temperature_gpu"), "avg_c", "C");
    row(out, "GPU temperature, peak", json_object_get(summary, "temperature_gpu"), "peak_c", "C");
    row(out, "GPU utilization, mean", json_object_get(summary, "utilization_gpu"), "avg", "%");
    part = json_object_get(summary, "energy");
    ag_str_add(out, "\n## Energy (approximate)\n\nIntegrated from sampled board power; not a measurement at the wall.\n\n");
    row(out, "energy", part, "approximate_joules", "J");
    row(out, "over", part, "integrated_span_s", "s");
    row(out, "per step", part, "approximate_joules_per_step", "J");
    row(out, "per token", part, "approximate_joules_per_token", "J");
    part = json_object_get(summary, "coverage");
    ag_str_add(out, "\n## Coverage\n\n");
    row(out, "markers", part, "marker_count", "");
    row(out, "samples", part, "sample_count", "");
    row(out, "joined", part, "joined_count", "");
    row(out, "expected samples", part, "expected_samples", "");
    row(out, "coverage", part, "coverage_ratio", "");
    row(out, "long gaps", part, "long_gap_count", "");
    row(out, "samples of another GPU or host, left out", summary, "excluded_foreign_sample_count", "");
    phases(out, json_object_get(summary, "by_phase"));
    windows(out, json_object_get(summary, "profile_windows"));
}
