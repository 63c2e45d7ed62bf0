#include "lab/f0_efficiency.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double host_floor_mib = 2048, train_fit_tolerance_mib = 1.0, span_tolerance_s = 1e-6;

typedef struct { /* a number, or none */
    bool has;
    double value;
} maybe;

/* What one pass over the bundle works on. */
typedef struct {
    const ag_efficiency_input *in;
    const char *run_id;
    ag_f0_record *markers, *samples; /* of the run; samples of the run's own GPU alone */
    size_t n_markers, n_samples, n_foreign;
    const ag_f0_record **marker_order, **sample_order; /* by time */
    ag_f0_pair *pairs;
    ag_arena arena;
} bundle;

/* Six decimals, rounded from the exact value as Python's round does. */
static double rounded(double value)
{
    char text[400];
    snprintf(text, sizeof text, "%.6f", value);
    return strtod(text, NULL);
}

static json_t *real_or_null(maybe m) { return m.has && isfinite(m.value) ? json_real(rounded(m.value)) : json_null(); }

static void put(json_t *object, const char *key, json_t *value) { json_object_set_new(object, key, value); }

/* ---- readings -------------------------------------------------------------------------------------------------------- */
typedef struct {
    size_t ok, unavailable, unsupported, invalid, missing;
    maybe min, max, mean;
} reading_stats;

static reading_stats stats_of(const ag_f0_record *const *samples, size_t n, ag_f0_reading which)
{
    reading_stats s = {0};
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const ag_f0_measurement m = samples[i]->readings[which];
        if (m.status != AG_F0_OK) {
            s.unavailable += m.status == AG_F0_UNAVAILABLE;
            s.unsupported += m.status == AG_F0_UNSUPPORTED;
            s.missing++;
            continue;
        }
        if (!s.ok || m.value < s.min.value) s.min = (maybe){true, m.value};
        if (!s.ok || m.value > s.max.value) s.max = (maybe){true, m.value};
        sum += m.value;
        s.ok++;
    }
    if (s.ok) s.mean = (maybe){true, sum / (double)s.ok};
    return s;
}

static void put_counts(json_t *object, const reading_stats *s)
{
    put(object, "ok_count", json_integer((json_int_t)s->ok));
    put(object, "unavailable_count", json_integer((json_int_t)s->unavailable));
    put(object, "unsupported_count", json_integer((json_int_t)s->unsupported));
    put(object, "invalid_count", json_integer((json_int_t)s->invalid));
    put(object, "missing_count", json_integer((json_int_t)s->missing));
}

static json_t *short_counts(const reading_stats *s)
{
    return json_pack("{sI sI sI sI}", "ok", (json_int_t)s->ok, "unavailable", (json_int_t)s->unavailable, "unsupported",
                     (json_int_t)s->unsupported, "invalid", (json_int_t)s->invalid);
}

/* {avg…, peak…, unit, counts} with the suffix of the unit in the keys. */
static json_t *reading_block(const ag_f0_record *const *samples, size_t n, ag_f0_reading which, const char *suffix)
{
    const reading_stats s = stats_of(samples, n, which);
    char avg[16], peak[16];
    snprintf(avg, sizeof avg, "avg%s", suffix);
    snprintf(peak, sizeof peak, "peak%s", suffix);
    json_t *block = json_object();
    put(block, avg, real_or_null(s.mean));
    put(block, peak, real_or_null(s.max));
    put(block, "unit", json_string(ag_f0_reading_unit(which)));
    put_counts(block, &s);
    return block;
}

static maybe effective_min_headroom(const ag_f0_record *const *samples, size_t n)
{
    maybe lowest = {0};
    for (size_t i = 0; i < n; i++) {
        const ag_f0_measurement *headroom = &samples[i]->readings[AG_F0_HEADROOM], *left = &samples[i]->readings[AG_F0_VRAM_FREE];
        const ag_f0_measurement *m = headroom->status == AG_F0_OK ? headroom : left;
        if (m->status == AG_F0_OK && (!lowest.has || m->value < lowest.value)) lowest = (maybe){true, m->value};
    }
    return lowest;
}

static json_t *vram_block(const bundle *b)
{
    const reading_stats used = stats_of(b->sample_order, b->n_samples, AG_F0_VRAM_USED);
    const reading_stats left = stats_of(b->sample_order, b->n_samples, AG_F0_VRAM_FREE);
    const reading_stats headroom = stats_of(b->sample_order, b->n_samples, AG_F0_HEADROOM);
    const maybe effective = effective_min_headroom(b->sample_order, b->n_samples);
    json_t *block = json_object();
    put(block, "unit", json_string("MiB"));
    put(block, "peak_used_mib", real_or_null(used.max));
    put(block, "min_free_mib", real_or_null(left.min));
    put(block, "min_headroom_mib", real_or_null(headroom.min));
    put(block, "effective_min_headroom_mib", real_or_null(effective));
    put(block, "headroom_floor_mib", json_integer((json_int_t)host_floor_mib));
    put(block, "meets_host_floor", effective.has ? json_boolean(effective.value >= host_floor_mib) : json_null());
    put(block, "peak_used_counts", short_counts(&used));
    put(block, "min_free_counts", short_counts(&left));
    put(block, "min_headroom_counts", short_counts(&headroom));
    put_counts(block, &used);
    put(block, "note", json_string("Peak/min are extrema of ok samples only. Missing \xE2\x89\xA0 zero. Effective headroom coalesces ok "
                                   "headroom, else ok vram_free, per sample. docs/TRAIN_FIT_5080.md (#44 / RM-1053) remains the concise "
                                   "train-fit summary."));
    return block;
}

/* ---- progress of training --------------------------------------------------------------------------------------------- */
/* Last minus first of a counter; none where an end is missing or it ever falls. */
static maybe counter_delta(const bundle *b, size_t offset)
{
    int64_t first = AG_F0_NO_COUNT, last = AG_F0_NO_COUNT;
    for (size_t i = 0; i < b->n_markers; i++) {
        int64_t value;
        memcpy(&value, (const char *)b->marker_order[i] + offset, sizeof value);
        if (i == 0) first = value;
        if (i + 1 == b->n_markers && value == AG_F0_NO_COUNT) return (maybe){0};
        if (value != AG_F0_NO_COUNT && last != AG_F0_NO_COUNT && value < last) return (maybe){0};
        if (value != AG_F0_NO_COUNT) last = value;
    }
    return first == AG_F0_NO_COUNT || b->n_markers < 2 ? (maybe){0} : (maybe){true, (double)(last - first)};
}

static maybe elapsed_of(const bundle *b)
{
    if (b->n_markers < 2) return (maybe){0};
    const double s = (double)(b->marker_order[b->n_markers - 1]->monotonic_ns - b->marker_order[0]->monotonic_ns) / 1e9;
    return s > 0 ? (maybe){true, s} : (maybe){0};
}

static json_t *count_or_null(maybe m) { return m.has ? json_integer((json_int_t)m.value) : json_null(); }

static maybe ratio(maybe a, maybe b) { return a.has && b.has && b.value > 0 ? (maybe){true, a.value / b.value} : (maybe){0}; }

static json_t *throughput_block(const bundle *b)
{
    const maybe elapsed = elapsed_of(b), tokens = counter_delta(b, offsetof(ag_f0_record, tokens_accepted)),
                examples = counter_delta(b, offsetof(ag_f0_record, examples_accepted));
    json_t *block = json_object();
    const json_t *reported = NULL;
    for (size_t i = 0; i < b->n_markers; i++) {
        const json_t *r = json_object_get(b->marker_order[i]->json, "throughput_tokens_per_s");
        if (json_is_object(r)) reported = r;
    }
    put(block, "source", json_string("agoge_counters_and_monotonic_ns"));
    put(block, "not_inferred_from_gpu_load", json_true());
    put(block, "marker_count", json_integer((json_int_t)b->n_markers));
    put(block, "tokens_accepted_delta", count_or_null(tokens));
    put(block, "examples_accepted_delta", count_or_null(examples));
    put(block, "elapsed_s", real_or_null(elapsed));
    put(block, "tokens_per_s", real_or_null(ratio(tokens, elapsed)));
    put(block, "examples_per_s", real_or_null(ratio(examples, elapsed)));
    json_t *copy = reported ? json_object() : json_null();
    static const char *const parts[] = {"value", "unit", "status"};
    for (int i = 0; reported && i < 3; i++) json_object_set(copy, parts[i], json_object_get(reported, parts[i]));
    if (reported) put(copy, "note", json_string("Agoge-owned optional field; not used to derive tokens/s here"));
    put(block, "agoge_reported_tokens_per_s", copy);
    return block;
}

static json_t *step_time_block(const bundle *b)
{
    size_t n = 0;
    double min = 0, max = 0, mean = 0, squares = 0; /* Welford's sums */
    for (size_t i = 1; i < b->n_markers; i++) {
        const ag_f0_record *from = b->marker_order[i - 1], *to = b->marker_order[i];
        if (to->global_step <= from->global_step) continue;
        const double s = (double)(to->monotonic_ns - from->monotonic_ns) / 1e9 / (double)(to->global_step - from->global_step);
        if (!n || s < min) min = s;
        if (!n || s > max) max = s;
        const double before = s - mean;
        mean += before / (double)++n;
        squares += before * (s - mean);
    }
    const maybe variance = n >= 2 ? (maybe){true, squares / (double)(n - 1)} : (maybe){0};
    json_t *block = json_object();
    put(block, "unit", json_string("s"));
    put(block, "count", json_integer((json_int_t)n));
    put(block, "min", real_or_null((maybe){n > 0, min}));
    put(block, "max", real_or_null((maybe){n > 0, max}));
    put(block, "mean", real_or_null((maybe){n > 0, mean}));
    put(block, "variance", real_or_null(variance));
    put(block, "stdev", real_or_null((maybe){variance.has, sqrt(variance.value)}));
    return block;
}

/* ---- coverage and energy ----------------------------------------------------------------------------------------------- */
static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static maybe median(double *values, size_t n)
{
    if (n == 0) return (maybe){0};
    qsort(values, n, sizeof *values, by_value);
    return (maybe){true, n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2};
}

typedef struct {
    json_t *long_gaps;
    size_t integrated, long_gap, missing_power, non_increasing;
    double joules, span_s;
} energy;

static void integrate(energy *e, const bundle *b)
{
    e->long_gaps = json_array();
    for (size_t i = 1; i < b->n_samples; i++) {
        const ag_f0_record *from = b->sample_order[i - 1], *to = b->sample_order[i];
        const int64_t dt = to->monotonic_ns - from->monotonic_ns;
        if (dt <= 0) {
            e->non_increasing++;
            continue;
        }
        const int64_t cadence = from->cadence_ms < to->cadence_ms ? from->cadence_ms : to->cadence_ms;
        const double allowed = trunc(b->in->max_gap_factor * (double)cadence * 1e6);
        const bool is_long = (double)dt > allowed;
        const ag_f0_measurement p = from->readings[AG_F0_POWER], q = to->readings[AG_F0_POWER];
        const bool no_power = p.status != AG_F0_OK || q.status != AG_F0_OK;
        if (is_long) {
            e->long_gap++;
            json_array_append_new(e->long_gaps, json_pack("{sI sI sf sf ss}", "from_monotonic_ns", (json_int_t)from->monotonic_ns,
                                                          "to_monotonic_ns", (json_int_t)to->monotonic_ns, "dt_ms",
                                                          rounded((double)dt / 1e6), "max_allowed_ms", rounded(allowed / 1e6), "reason",
                                                          "dt_exceeds_max_gap_factor"));
        }
        e->missing_power += no_power;
        if (is_long || no_power) continue;
        e->integrated++;
        e->joules += 0.5 * (p.value + q.value) * (double)dt / 1e9;
        e->span_s += (double)dt / 1e9;
    }
}

static bool energy_covers_run(const energy *e, const bundle *b)
{
    const maybe elapsed = elapsed_of(b);
    if (!e->integrated || e->long_gap || e->missing_power || !elapsed.has) return false;
    const int64_t first = b->marker_order[0]->monotonic_ns, last = b->marker_order[b->n_markers - 1]->monotonic_ns;
    for (size_t i = 0; i < b->n_samples; i++)
        if (b->samples[i].monotonic_ns < first || b->samples[i].monotonic_ns > last) return false;
    return fabs(e->span_s - elapsed.value) <= span_tolerance_s;
}

static json_t *energy_block(const energy *e, const bundle *b)
{
    int64_t steps = 0;
    for (size_t i = 1; i < b->n_markers; i++)
        if (b->marker_order[i]->global_step > b->marker_order[i - 1]->global_step)
            steps += b->marker_order[i]->global_step - b->marker_order[i - 1]->global_step;
    const maybe tokens = counter_delta(b, offsetof(ag_f0_record, tokens_accepted));
    const maybe joules = {e->integrated > 0, e->joules}, span = {e->integrated > 0, e->span_s};
    const bool rates = energy_covers_run(e, b);
    const maybe for_rates = {rates, e->joules};
    json_t *block = json_object();
    put(block, "label", json_string("approximate"));
    put(block, "method", json_string("trapezoidal_board_power"));
    put(block, "max_gap_factor", json_real(b->in->max_gap_factor));
    put(block, "pairs_integrated", json_integer((json_int_t)e->integrated));
    put(block, "pairs_skipped_long_gap", json_integer((json_int_t)e->long_gap));
    put(block, "pairs_skipped_missing_power", json_integer((json_int_t)e->missing_power));
    put(block, "pairs_skipped_non_increasing", json_integer((json_int_t)e->non_increasing));
    put(block, "integrated_span_s", real_or_null(span));
    put(block, "approximate_joules", real_or_null(joules));
    put(block, "approximate_joules_per_step", real_or_null(ratio(for_rates, (maybe){true, (double)steps})));
    put(block, "approximate_joules_per_token", real_or_null(ratio(for_rates, tokens)));
    put(block, "step_count_for_energy", json_integer(steps));
    put(block, "token_count_for_energy", count_or_null(tokens));
    put(block, "rates_omitted_reason", rates ? json_null() : json_string("energy_window_mismatch"));
    json_object_set(block, "long_gaps", e->long_gaps);
    put(block, "note", json_string("APPROXIMATE estimate from sampled board power (W), not laboratory-grade wall-power. Do not treat as "
                                   "datacenter energy efficiency."));
    return block;
}

static json_t *coverage_block(bundle *b, const energy *e, size_t joined)
{
    double *cadences = ag_arena_array(&b->arena, b->n_samples + 1, sizeof *cadences);
    double *intervals = ag_arena_array(&b->arena, b->n_samples + 1, sizeof *intervals);
    const size_t n = b->n_samples;
    for (size_t i = 0; i < n; i++) cadences[i] = (double)b->sample_order[i]->cadence_ms;
    for (size_t i = 1; i < n; i++)
        intervals[i - 1] = (double)(b->sample_order[i]->monotonic_ns - b->sample_order[i - 1]->monotonic_ns) / 1e6;
    const maybe cadence = median(cadences, n), interval = median(intervals, n ? n - 1 : 0);
    maybe expected = {0};
    if (n == 1) expected = (maybe){true, 1};
    if (n > 1) {
        const double span_ms = (double)(b->sample_order[n - 1]->monotonic_ns - b->sample_order[0]->monotonic_ns) / 1e6;
        expected = (maybe){true, 1 + floor(span_ms / cadence.value)};
    }
    json_t *block = json_object(), *planned = json_array();
    for (size_t i = 0; i < n; i++) /* sorted by median() */
        if (i == 0 || cadences[i] != cadences[i - 1]) json_array_append_new(planned, json_integer((json_int_t)cadences[i]));
    put(block, "marker_count", json_integer((json_int_t)b->n_markers));
    put(block, "sample_count", json_integer((json_int_t)n));
    put(block, "joined_count", json_integer((json_int_t)joined));
    put(block, "unjoined_count", json_integer((json_int_t)(n - joined)));
    put(block, "planned_cadence_ms", planned);
    put(block, "observed_median_interval_ms", real_or_null(interval));
    put(block, "expected_samples", count_or_null(expected));
    put(block, "coverage_ratio", real_or_null(ratio((maybe){true, (double)n}, expected)));
    put(block, "long_gap_count", json_integer((json_int_t)e->long_gap));
    json_object_set(block, "long_gaps", e->long_gaps);
    put(block, "missing_sample_policy",
        json_string("Counts preserve unavailable/unsupported/invalid per field. Energy does not interpolate across gaps > max_gap_factor "
                    "\xC3\x97 cadence or pairs with missing power. Missing power is never treated as 0 W. Cadence gaps are recorded even "
                    "when a power endpoint is missing."));
    return block;
}

/* ---- by phase, by window ------------------------------------------------------------------------------------------------- */
static size_t samples_where(const ag_f0_record **out, const bundle *b, const char *phase, const char *window)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_samples; i++) {
        const ag_f0_pair *p = &b->pairs[i];
        if (phase && !(p->marker && strcmp(p->marker->phase, phase) == 0)) continue;
        if (window && !(p->sample->profile_window_ref && strcmp(p->sample->profile_window_ref, window) == 0)) continue;
        out[n++] = p->sample;
    }
    return n;
}

static json_t *phase_block(const ag_f0_record *const *samples, size_t n)
{
    const reading_stats used = stats_of(samples, n, AG_F0_VRAM_USED), left = stats_of(samples, n, AG_F0_VRAM_FREE);
    const reading_stats headroom = stats_of(samples, n, AG_F0_HEADROOM);
    json_t *block = json_object(), *vram = json_object();
    put(block, "sample_count", json_integer((json_int_t)n));
    put(block, "utilization_gpu", reading_block(samples, n, AG_F0_UTILIZATION_GPU, ""));
    put(block, "utilization_memory", reading_block(samples, n, AG_F0_UTILIZATION_MEMORY, ""));
    put(block, "power", reading_block(samples, n, AG_F0_POWER, "_w"));
    put(block, "temperature_gpu", reading_block(samples, n, AG_F0_TEMPERATURE_GPU, "_c"));
    put(vram, "peak_used_mib", real_or_null(used.max));
    put(vram, "min_free_mib", real_or_null(left.min));
    put(vram, "min_headroom_mib", real_or_null(headroom.min));
    put(vram, "ok_count", json_integer((json_int_t)used.ok));
    put(vram, "missing_count", json_integer((json_int_t)used.missing));
    put(block, "vram", vram);
    return block;
}

static json_t *by_phase(bundle *b, const ag_f0_record **room)
{
    json_t *phases = json_object();
    for (size_t i = 0; i < b->n_samples; i++) {
        if (!b->pairs[i].marker || json_object_get(phases, b->pairs[i].marker->phase)) continue;
        const size_t n = samples_where(room, b, b->pairs[i].marker->phase, NULL);
        put(phases, b->pairs[i].marker->phase, phase_block(room, n));
    }
    return phases;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static json_t *window_block(const bundle *b, const char *ref, const json_t *compact, const ag_f0_record **room)
{
    const size_t n = samples_where(room, b, NULL, ref);
    const reading_stats power = stats_of(room, n, AG_F0_POWER);
    maybe span = {0};
    if (n >= 2) {
        int64_t first = room[0]->monotonic_ns, last = first;
        for (size_t i = 1; i < n; i++) {
            if (room[i]->monotonic_ns < first) first = room[i]->monotonic_ns;
            if (room[i]->monotonic_ns > last) last = room[i]->monotonic_ns;
        }
        span = (maybe){true, (double)(last - first) / 1e9};
    }
    const char **phases = calloc(n + 1, sizeof *phases);
    if (!phases) ag_out_of_memory(n * sizeof *phases);
    size_t n_phases = 0;
    for (size_t i = 0; i < b->n_samples; i++)
        if (b->pairs[i].marker && b->pairs[i].sample->profile_window_ref && strcmp(b->pairs[i].sample->profile_window_ref, ref) == 0)
            phases[n_phases++] = b->pairs[i].marker->phase;
    qsort(phases, n_phases, sizeof *phases, by_text);
    json_t *block = json_object(), *joined = json_array();
    for (size_t i = 0; i < n_phases; i++)
        if (i == 0 || strcmp(phases[i], phases[i - 1]) != 0) json_array_append_new(joined, json_string(phases[i]));
    free(phases);
    put(block, "profile_window_ref", json_string(ref));
    put(block, "sample_count", json_integer((json_int_t)n));
    put(block, "joined_phases", joined);
    put(block, "span_s", real_or_null(span));
    put(block, "power_avg_w", real_or_null(power.mean));
    put(block, "power_ok_count", json_integer((json_int_t)power.ok));
    put(block, "power_missing_count", json_integer((json_int_t)power.missing));
    json_t *summary = compact ? json_deep_copy(compact) : json_null();
    if (compact) json_object_del(summary, "schema_version");
    put(block, "compact_summary", summary);
    put(block, "note", json_string(n ? "Window identity comes from bkl_gpu_sample.profile_window_ref. Kernel/runtime fields come from "
                                       "optional #54 compact summaries."
                                     : "No sample of the bundle carries this window; the compact record stands alone."));
    return block;
}

static ag_status profile_windows(json_t **out, bundle *b, const ag_f0_record **room, ag_err *err)
{
    json_t *compact = json_object(); /* ref: record; a later one of the same window wins */
    *out = json_array();
    ag_status status = AG_OK;
    for (size_t i = 0; i < b->in->n_windows && !status; i++) {
        const json_t *line = b->in->windows[i].json, *run = json_object_get(line, "agoge_run_id");
        const char *ref = json_string_value(json_object_get(line, "profile_window_ref"));
        const char *schema = json_string_value(json_object_get(line, "schema_version"));
        if (!schema || strcmp(schema, AG_PROFILE_WINDOW_SCHEMA) != 0)
            status = ag_fail(err, AG_E_FORMAT, "profile windows, line %zu: 'schema_version' is '%s', expected '%s'", b->in->windows[i].number,
                             schema ? schema : "(none)", AG_PROFILE_WINDOW_SCHEMA);
        else if (!ref || !*ref)
            status = ag_fail(err, AG_E_FORMAT, "profile windows, line %zu: 'profile_window_ref' must be a text that is not empty", b->in->windows[i].number);
        else if (!run || json_is_null(run) || (json_is_string(run) && strcmp(json_string_value(run), b->run_id) == 0))
            json_object_set(compact, ref, (json_t *)(uintptr_t)line);
    }
    const char **refs = ag_arena_array(&b->arena, b->n_samples + 1, sizeof *refs);
    size_t n_refs = 0;
    for (size_t i = 0; i < b->n_samples; i++)
        if (b->samples[i].profile_window_ref) refs[n_refs++] = b->samples[i].profile_window_ref;
    qsort(refs, n_refs, sizeof *refs, by_text);
    for (size_t i = 0; i < n_refs && !status; i++) {
        if (i > 0 && strcmp(refs[i], refs[i - 1]) == 0) continue;
        json_array_append_new(*out, window_block(b, refs[i], json_object_get(compact, refs[i]), room));
        json_object_del(compact, refs[i]);
    }
    const char *ref;
    json_t *alone;
    json_object_foreach(compact, ref, alone) json_array_append_new(*out, window_block(b, ref, alone, room));
    json_decref(compact);
    return status;
}

/* ---- the train-fit table ---------------------------------------------------------------------------------------------------- */
static maybe number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? (maybe){true, json_number_value(value)} : (maybe){0};
}

static void compare(json_t *block, maybe derived, maybe reference)
{
    const bool both = derived.has && reference.has;
    const double delta = derived.value - reference.value;
    const bool agree = both && fabs(delta) <= train_fit_tolerance_mib;
    put(block, "agreement", both ? json_boolean(agree) : json_null());
    put(block, "delta", real_or_null((maybe){both, delta}));
    put(block, "tolerance", json_real(train_fit_tolerance_mib));
    put(block, "unit", json_string("MiB"));
    put(block, "reason", !both ? json_string("one_or_both_values_missing") : agree ? json_null() : json_string("outside_tolerance"));
}

static bool has_basis(const json_t *reference, const char *key, const char *basis)
{
    const char *found = json_string_value(json_object_get(reference, key));
    return found && strcmp(found, basis) == 0;
}

static json_t *train_fit_block(const bundle *b, const json_t *vram)
{
    const json_t *reference = b->in->train_fit;
    const bool peak_fits = has_basis(reference, "peak_basis", "bkl_gpu_sample.vram_used");
    const bool free_fits = has_basis(reference, "min_free_basis", "bkl_gpu_sample.vram_free");
    json_t *block = json_object(), *peak = json_null(), *headroom = json_null();
    if (reference) {
        peak = json_object();
        headroom = json_object();
        json_object_set(peak, "derived_peak_used_mib", json_object_get(vram, "peak_used_mib"));
        json_object_set(peak, "reference_peak_mib", json_object_get(reference, "peak_allocated_mib"));
        if (peak_fits)
            compare(peak, number_of(vram, "peak_used_mib"), number_of(reference, "peak_allocated_mib"));
        else {
            json_object_set(peak, "reference_basis", json_object_get(reference, "peak_basis"));
            put(peak, "agreement", json_null());
            put(peak, "reason", json_string("different_measurement_basis"));
        }
        json_object_set(headroom, "reference_min_free_mib", json_object_get(reference, "min_free_mib"));
        if (free_fits) {
            json_object_set(headroom, "derived_min_free_mib", json_object_get(vram, "min_free_mib"));
            compare(headroom, number_of(vram, "min_free_mib"), number_of(reference, "min_free_mib"));
        } else {
            json_object_set(headroom, "derived_effective_min_headroom_mib", json_object_get(vram, "effective_min_headroom_mib"));
            put(headroom, "agreement", json_null());
            put(headroom, "reason", json_string("train_fit_min_free_not_on_sampler_basis_or_missing"));
        }
    }
    put(block, "source_of_truth", json_string("docs/TRAIN_FIT_5080.md (#44 / RM-1053)"));
    put(block, "derived_is_evidence_only", json_true());
    put(block, "comparable_peak", json_boolean(peak_fits));
    put(block, "comparable_headroom", json_boolean(free_fits));
    put(block, "peak_vram", peak);
    put(block, "min_headroom", headroom);
    put(block, "reference", reference ? json_deep_copy(reference) : json_null());
    put(block, "note", json_string("Do not replace the #44 train-fit table with this derivation. Trainer allocated bytes and sampler "
                                   "vram_used are different bases."));
    return block;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------- */
static ag_status choose_run(bundle *b, ag_err *err)
{
    b->run_id = b->in->run_id;
    const ag_f0_stream *streams[] = {b->in->markers, b->in->samples};
    bool found = false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < streams[k]->n; i++) {
            const char *run = streams[k]->records[i].run_id;
            if (!b->run_id) b->run_id = run;
            const bool same = strcmp(run, b->run_id) == 0;
            found |= same;
            if (!same && !b->in->run_id)
                return ag_fail(err, AG_E_DATA, "the bundle holds several runs ('%s', '%s'); choose one with --run-id", b->run_id, run);
        }
    if (!found) return ag_fail(err, AG_E_NOT_FOUND, "no marker and no sample belongs to the run '%s'", b->run_id ? b->run_id : "");
    return AG_OK;
}

static void select_records(bundle *b)
{
    const ag_f0_stream *m = b->in->markers, *s = b->in->samples;
    b->markers = ag_arena_array(&b->arena, m->n + 1, sizeof *b->markers);
    b->samples = ag_arena_array(&b->arena, s->n + 1, sizeof *b->samples);
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->records[i].run_id, b->run_id) == 0) b->markers[b->n_markers++] = m->records[i];
    const ag_f0_record *device = b->n_markers ? &b->markers[0] : NULL;
    for (size_t i = 0; i < s->n; i++) {
        const ag_f0_record *r = &s->records[i];
        if (strcmp(r->run_id, b->run_id) != 0) continue;
        if (!device) device = r;
        if (strcmp(r->hostname, device->hostname) == 0 && ag_f0_same_gpu(&r->gpu, &device->gpu))
            b->samples[b->n_samples++] = *r;
        else
            b->n_foreign++;
    }
    b->marker_order = ag_f0_sorted(b->markers, b->n_markers, &b->arena);
    b->sample_order = ag_f0_sorted(b->samples, b->n_samples, &b->arena);
    b->pairs = ag_f0_join(b->markers, b->n_markers, b->samples, b->n_samples, &b->arena);
}

static json_t *run_block(const bundle *b)
{
    const json_t *from = b->n_markers ? b->markers[0].json : b->n_samples ? b->samples[0].json : NULL;
    static const char *const carried[] = {"model_id", "model_revision", "dataset", "host", "gpu"};
    json_t *block = json_object();
    put(block, "agoge_run_id", json_string(b->run_id));
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++) {
        json_t *value = json_object_get(from, carried[i]);
        put(block, carried[i], value ? json_deep_copy(value) : json_null());
    }
    put(block, "formulas_are_model_agnostic", json_true());
    return block;
}

static json_t *field_counts(const bundle *b)
{
    json_t *block = json_object();
    for (int i = 0; i < AG_F0_N_READINGS; i++) {
        const reading_stats s = stats_of(b->sample_order, b->n_samples, (ag_f0_reading)i);
        put(block, ag_f0_reading_key((ag_f0_reading)i), short_counts(&s));
    }
    return block;
}

static ag_status summarize(json_t *out, bundle *b, ag_err *err)
{
    AG_TRY(choose_run(b, err));
    select_records(b);
    size_t joined = 0;
    for (size_t i = 0; i < b->n_samples; i++) joined += b->pairs[i].marker != NULL;
    const ag_f0_record **room = ag_arena_array(&b->arena, b->n_samples + 1, sizeof *room);
    json_t *windows;
    ag_status status = profile_windows(&windows, b, room, err);
    put(out, "profile_windows", windows);
    AG_TRY(status);
    energy e = {0};
    integrate(&e, b);
    put(out, "schema_version", json_string(AG_EFFICIENCY_SCHEMA));
    put(out, "energy_is_approximate", json_true());
    put(out, "hardware_note", json_string("RTX 5080 / sm_120 / ~16 GB. Leave \xE2\x89\xA5" "2 GiB free. Derived measurements, not a trainer or "
                                          "safety controller."));
    put(out, "run", run_block(b));
    put(out, "coverage", coverage_block(b, &e, joined));
    put(out, "throughput", throughput_block(b));
    put(out, "step_time", step_time_block(b));
    put(out, "vram", vram_block(b));
    put(out, "power", reading_block(b->sample_order, b->n_samples, AG_F0_POWER, "_w"));
    put(out, "temperature_gpu", reading_block(b->sample_order, b->n_samples, AG_F0_TEMPERATURE_GPU, "_c"));
    put(out, "utilization_gpu", reading_block(b->sample_order, b->n_samples, AG_F0_UTILIZATION_GPU, ""));
    put(out, "utilization_memory", reading_block(b->sample_order, b->n_samples, AG_F0_UTILIZATION_MEMORY, ""));
    put(out, "energy", energy_block(&e, b));
    put(out, "by_phase", by_phase(b, room));
    put(out, "unjoined_sample_count", json_integer((json_int_t)(b->n_samples - joined)));
    put(out, "excluded_foreign_sample_count", json_integer((json_int_t)b->n_foreign));
    put(out, "field_status_counts", field_counts(b));
    put(out, "train_fit_comparison", train_fit_block(b, json_object_get(out, "vram")));
    json_decref(e.long_gaps);
    return AG_OK;
}

ag_status ag_efficiency_summarize(json_t **out, const ag_efficiency_input *input, ag_err *err)
{
    *out = NULL;
    if (!isfinite(input->max_gap_factor) || input->max_gap_factor <= 0)
        return ag_fail(err, AG_E_USAGE, "the gap factor is %g; it must be a finite number above 0", input->max_gap_factor);
    bundle b = {.in = input};
    json_t *summary = json_object();
    ag_status status = summarize(summary, &b, err);
    ag_arena_free(&b.arena);
    if (status) {
        json_decref(summary);
        return status;
    }
    *out = summary;
    return AG_OK;
}
