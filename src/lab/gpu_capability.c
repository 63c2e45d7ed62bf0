#include "lab/gpu_capability.h"

#include "base/canonical_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1048576.0;
enum { PERFORMANCE_STATE = AG_F0_N_READINGS, THROTTLE, N_METRICS };

static const char *metric_key(int i)
{
    return i == PERFORMANCE_STATE ? "performance_state" : i == THROTTLE ? "throttle" : ag_f0_reading_key((ag_f0_reading)i);
}
static const char *metric_unit(int i) /* NULL: of throttle */
{
    return i == PERFORMANCE_STATE ? "pstate" : i == THROTTLE ? NULL : ag_f0_reading_unit((ag_f0_reading)i);
}
static const char *capability_of(ag_f0_status status)
{
    switch (status) {
    case AG_F0_UNSUPPORTED: return "unsupported";
    case AG_F0_PERMISSION_DENIED: return "permission_denied";
    case AG_F0_DEVICE_LOST: return "device_lost";
    default: return "supported";
    }
}
/* Readings that NVML gives as whole numbers stay whole in JSON. */
static bool is_whole(int i) { return i >= AG_F0_CLOCK_GRAPHICS; }

static const char *const device_statuses[] = {"ok",          "no_device",         "device_lost", "permission_denied",
                                              "transient_failure", "unsupported"};
static bool is_device_status(const char *text)
{
    for (size_t i = 0; text && i < sizeof device_statuses / sizeof *device_statuses; i++)
        if (strcmp(text, device_statuses[i]) == 0) return true;
    return false;
}

/* ---- probing ------------------------------------------------------------------------------------------------------- */
static void took(ag_gpu_probe *p, int metric, int code, double value)
{
    ag_f0_measurement m = {ag_nvml_status(code), 0};
    if (m.status == AG_F0_OK) m.value = value;
    p->codes[metric] = code;
    if (metric == PERFORMANCE_STATE)
        p->performance_state = m;
    else if (metric == THROTTLE)
        p->throttle = m.status;
    else
        p->readings[metric] = m;
}

void ag_gpu_probe_all(ag_gpu_probe *out, ag_nvml *nvml)
{
    *out = (ag_gpu_probe){0};
    unsigned value = 0, other = 0;
    int code = nvml->power_mw(nvml, &value);
    took(out, AG_F0_POWER, code, value / 1000.0);
    code = nvml->temperature_c(nvml, false, &value);
    took(out, AG_F0_TEMPERATURE_GPU, code, value);
    code = nvml->temperature_c(nvml, true, &value);
    took(out, AG_F0_TEMPERATURE_MEMORY, code, value);
    code = nvml->utilization(nvml, &value, &other);
    took(out, AG_F0_UTILIZATION_GPU, code, value);
    took(out, AG_F0_UTILIZATION_MEMORY, code, other);
    code = nvml->clock_mhz(nvml, false, &value);
    took(out, AG_F0_CLOCK_GRAPHICS, code, value);
    code = nvml->clock_mhz(nvml, true, &value);
    took(out, AG_F0_CLOCK_MEMORY, code, value);
    uint64_t total = 0, free_bytes = 0, used = 0; /* asked once, so that the parts belong together */
    code = nvml->memory_bytes(nvml, &total, &free_bytes, &used);
    took(out, AG_F0_VRAM_USED, code, floor((double)used / mib));
    took(out, AG_F0_VRAM_FREE, code, floor((double)free_bytes / mib));
    took(out, AG_F0_VRAM_TOTAL, code, floor((double)total / mib));
    took(out, AG_F0_HEADROOM, code, floor((double)free_bytes / mib));
    code = nvml->throttle_mask(nvml, &out->throttle_mask);
    took(out, THROTTLE, code, 0);
    code = nvml->performance_state(nvml, &value);
    took(out, PERFORMANCE_STATE, code, value);
}

static json_t *text_or_null(const char *text) { return text && *text ? json_string(text) : json_null(); }

static json_t *number(int metric, double value) { return is_whole(metric) ? json_integer((json_int_t)value) : json_real(value); }

static json_t *metric_json(const ag_gpu_probe *p, int i)
{
    const ag_f0_status status = i == THROTTLE ? p->throttle : i == PERFORMANCE_STATE ? p->performance_state.status : p->readings[i].status;
    json_t *m = json_object();
    json_object_set_new(m, "capability", json_string(capability_of(status)));
    json_object_set_new(m, "status", json_string(ag_f0_status_name(status)));
    json_object_set_new(m, "unit", text_or_null(metric_unit(i)));
    if (i == THROTTLE) {
        const char *names[AG_NVML_MAX_REASONS];
        const int n = ag_nvml_throttle_reasons(names, p->throttle_mask);
        json_t *reasons = status == AG_F0_OK ? json_array() : json_null();
        for (int k = 0; status == AG_F0_OK && k < n; k++) json_array_append_new(reasons, json_string(names[k]));
        json_object_set_new(m, "reasons", reasons);
        json_object_set_new(m, "value", json_null());
        return m;
    }
    const double value = i == PERFORMANCE_STATE ? p->performance_state.value : p->readings[i].value;
    json_object_set_new(m, "value", status == AG_F0_OK ? number(i, value) : json_null());
    return m;
}

static json_t *gpu_json(const ag_nvml_identity *identity)
{
    json_t *gpu = json_object();
    json_object_set_new(gpu, "pci_bus_id", text_or_null(identity->pci_bus_id));
    json_object_set_new(gpu, "uuid", text_or_null(identity->uuid));
    json_object_set_new(gpu, "name", text_or_null(identity->name));
    json_object_set_new(gpu, "compute_capability", text_or_null(identity->compute_capability));
    return gpu;
}

/* Every metric with the status that the device's own failure gives it. */
static void miss_all(ag_gpu_probe *p, int code)
{
    *p = (ag_gpu_probe){0};
    for (int i = 0; i < N_METRICS; i++) took(p, i, code, 0);
}

static const char *device_status_of(int code)
{
    const char *name = ag_f0_status_name(ag_nvml_status(code));
    return is_device_status(name) && strcmp(name, "ok") != 0 ? name : "transient_failure";
}

static void add_notes(json_t *snapshot, const ag_gpu_probe *p, const char *gpu_count, const char *identity, bool probed)
{
    json_t *notes = json_object();
    for (int i = 0; probed && i < N_METRICS; i++)
        if (p->codes[i]) json_object_set_new(notes, metric_key(i), json_string(ag_nvml_code_name(p->codes[i])));
    if (gpu_count) json_object_set_new(notes, "gpu_count", json_string(gpu_count));
    if (identity) json_object_set_new(notes, "identity", json_string(identity));
    if (json_object_size(notes)) json_object_set(snapshot, "metric_notes", notes);
    json_decref(notes);
}

json_t *ag_capability_discover(ag_nvml *nvml, const ag_capability_context *context)
{
    char library[80] = "", driver[80] = "";
    const bool versions = nvml->versions(nvml, library, driver) == AG_NVML_SUCCESS;
    ag_nvml_identity identity = {0};
    ag_gpu_probe probe;
    unsigned count = 0;
    const char *device = "ok", *count_note = NULL, *identity_note = NULL;
    bool probed = false;
    int code = nvml->gpu_count(nvml, &count);
    if (code) {
        device = device_status_of(code);
        count_note = ag_nvml_code_name(code);
        miss_all(&probe, code);
    } else if (count == 0) {
        device = "no_device";
        miss_all(&probe, AG_NVML_ERROR_NOT_SUPPORTED);
    } else {
        code = nvml->identity(nvml, &identity);
        if (code) {
            identity = (ag_nvml_identity){0};
            device = device_status_of(code);
            identity_note = ag_nvml_code_name(code);
        }
        ag_gpu_probe_all(&probe, nvml);
        probed = true;
        for (int i = 0; !code && i < N_METRICS; i++)
            if (ag_nvml_status(probe.codes[i]) == AG_F0_DEVICE_LOST) device = "device_lost";
    }
    json_t *snapshot = json_object(), *metrics = json_object(), *tools = json_object(), *host = json_object(), *collector = json_object();
    for (int i = 0; i < N_METRICS; i++) json_object_set_new(metrics, metric_key(i), metric_json(&probe, i));
    json_object_set_new(tools, "nvml_version", text_or_null(versions ? library : NULL));
    json_object_set_new(tools, "driver_version", text_or_null(versions ? driver : NULL));
    json_object_set_new(tools, "nvidia_smi", text_or_null(versions ? context->nvidia_smi : NULL));
    json_object_set_new(host, "hostname", json_string(context->hostname));
    json_object_set_new(collector, "id", json_string("bkl-nvml-capability"));
    json_object_set_new(collector, "version", json_string("0.1.0"));
    json_object_set_new(snapshot, "schema_version", json_string(AG_CAPABILITY_SCHEMA));
    json_object_set_new(snapshot, "record_kind", json_string("bkl_gpu_capability"));
    json_object_set_new(snapshot, "agoge_run_id", json_string(context->run_id));
    json_object_set_new(snapshot, "host", host);
    json_object_set_new(snapshot, "gpu", gpu_json(&identity));
    json_object_set_new(snapshot, "timestamp_utc", json_string(context->timestamp));
    json_object_set_new(snapshot, "monotonic_ns", json_integer(context->monotonic_ns));
    json_object_set_new(snapshot, "collector", collector);
    json_object_set_new(snapshot, "tools", tools);
    json_object_set_new(snapshot, "device_status", json_string(device));
    json_object_set_new(snapshot, "metrics", metrics);
    add_notes(snapshot, &probe, count_note, identity_note, probed);
    char *digest = ag_capability_digest(snapshot);
    json_object_set_new(snapshot, "capability_digest", json_string(digest));
    free(digest);
    return snapshot;
}

char *ag_capability_digest(const json_t *snapshot)
{
    json_t *identity = json_object(), *metrics = json_object();
    static const char *const carried[] = {"schema_version", "device_status", "gpu", "tools"};
    for (size_t i = 0; i < sizeof carried / sizeof *carried; i++)
        json_object_set(identity, carried[i], json_object_get(snapshot, carried[i]));
    for (int i = 0; i < N_METRICS; i++) {
        const json_t *m = json_object_get(json_object_get(snapshot, "metrics"), metric_key(i));
        json_t *reduced = json_object();
        json_object_set(reduced, "capability", json_object_get(m, "capability"));
        json_object_set_new(reduced, "unit", i == THROTTLE ? json_null() : json_incref(json_object_get(m, "unit")));
        json_object_set_new(metrics, metric_key(i), reduced);
    }
    json_object_set_new(identity, "metrics", metrics);
    ag_str text = {0}, digest = {0};
    ag_json_writer w = {.out = &text, .indent = -1, .ascii = true};
    ag_jw_sorted(&w, NULL, identity);
    ag_str_printf(&digest, "sha256:%s", ag_sha256_bytes(text.text, text.n).hex);
    ag_str_free(&text);
    json_decref(identity);
    return digest.text;
}

/* ---- checking ------------------------------------------------------------------------------------------------------ */
static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_string_length(value) && strlen(json_string_value(value)) == json_string_length(value) ? json_string_value(value) : NULL;
}

static ag_status need_text(const json_t *object, const char *key, ag_err *err)
{
    return text_of(object, key) ? AG_OK : ag_fail(err, AG_E_FORMAT, "'%s' must be a text that is not empty", key);
}

/* Keys that must be there and be null or a text. */
static ag_status need_texts_or_null(const json_t *object, const char *of, const char *const *keys, ag_err *err)
{
    if (!json_is_object(object)) return ag_fail(err, AG_E_FORMAT, "'%s' must be an object", of);
    for (; *keys; keys++) {
        const json_t *value = json_object_get(object, *keys);
        if (!value) return ag_fail(err, AG_E_FORMAT, "'%s' has no key '%s'; write null where it is not known", of, *keys);
        if (!json_is_null(value) && !text_of(object, *keys))
            return ag_fail(err, AG_E_FORMAT, "'%s.%s' must be null or a text that is not empty", of, *keys);
    }
    return AG_OK;
}

static ag_status check_throttle(const json_t *m, ag_f0_status status, ag_err *err)
{
    if (!json_is_null(json_object_get(m, "value")) || !json_is_null(json_object_get(m, "unit")))
        return ag_fail(err, AG_E_FORMAT, "'throttle' must have a null value and a null unit");
    return ag_f0_throttle_check(json_object_get(m, "reasons"), status, err);
}

static ag_status check_metric(const json_t *metrics, int i, ag_err *err)
{
    const json_t *m = json_object_get(metrics, metric_key(i));
    if (!json_is_object(m)) return ag_fail(err, AG_E_FORMAT, "the metric '%s' is missing; all %d must be there", metric_key(i), (int)N_METRICS);
    const char *name = text_of(m, "status"), *capability = text_of(m, "capability");
    ag_f0_status status;
    if (!name || !ag_f0_status_find(&status, name)) return ag_fail(err, AG_E_FORMAT, "'%s' has no status that is known", metric_key(i));
    if (!capability || strcmp(capability, capability_of(status)) != 0)
        return ag_fail(err, AG_E_FORMAT, "'%s' is %s, so its capability must be '%s'", metric_key(i), name, capability_of(status));
    if (i == THROTTLE) return check_throttle(m, status, err);
    ag_f0_measurement ignored;
    return ag_f0_measurement_read(&ignored, m, metric_key(i), metric_unit(i), err);
}

ag_status ag_capability_check(const json_t *snapshot, ag_err *err)
{
    static const char *const gpu_keys[] = {"pci_bus_id", "uuid", "name", "compute_capability", NULL};
    static const char *const tool_keys[] = {"nvml_version", "driver_version", "nvidia_smi", NULL};
    if (!json_is_object(snapshot)) return ag_fail(err, AG_E_FORMAT, "a capability snapshot must be an object");
    const char *schema = text_of(snapshot, "schema_version"), *kind = text_of(snapshot, "record_kind");
    if (!schema || strcmp(schema, AG_CAPABILITY_SCHEMA) != 0)
        return ag_fail(err, AG_E_FORMAT, "'schema_version' is '%s', expected '%s'", schema ? schema : "(none)", AG_CAPABILITY_SCHEMA);
    if (!kind || strcmp(kind, "bkl_gpu_capability") != 0)
        return ag_fail(err, AG_E_FORMAT, "'record_kind' is '%s', expected 'bkl_gpu_capability'", kind ? kind : "(none)");
    AG_TRY(need_text(snapshot, "agoge_run_id", err));
    AG_TRY(need_text(json_object_get(snapshot, "host"), "hostname", err));
    AG_TRY(need_text(json_object_get(snapshot, "collector"), "id", err));
    AG_TRY(need_text(json_object_get(snapshot, "collector"), "version", err));
    const json_t *gpu = json_object_get(snapshot, "gpu"), *monotonic = json_object_get(snapshot, "monotonic_ns");
    AG_TRY(need_texts_or_null(gpu, "gpu", gpu_keys, err));
    AG_TRY(need_texts_or_null(json_object_get(snapshot, "tools"), "tools", tool_keys, err));
    int64_t wall_ns;
    AG_TRY(need_text(snapshot, "timestamp_utc", err));
    AG_TRY(ag_f0_timestamp_parse(&wall_ns, text_of(snapshot, "timestamp_utc"), err));
    if (!json_is_integer(monotonic) || json_integer_value(monotonic) < 0)
        return ag_fail(err, AG_E_FORMAT, "'monotonic_ns' must be a whole number of at least 0");
    const char *device = text_of(snapshot, "device_status");
    if (!is_device_status(device)) return ag_fail(err, AG_E_FORMAT, "'device_status' is '%s', which is not known", device ? device : "(none)");
    if (strcmp(device, "ok") == 0 && !text_of(gpu, "uuid") && !text_of(gpu, "pci_bus_id"))
        return ag_fail(err, AG_E_FORMAT, "the device is ok, so its 'uuid' or 'pci_bus_id' must be there");
    for (int i = 0; i < N_METRICS; i++) AG_TRY(check_metric(json_object_get(snapshot, "metrics"), i, err));
    const char *stated = text_of(snapshot, "capability_digest");
    char *digest = ag_capability_digest(snapshot);
    const bool same = stated && strcmp(stated, digest) == 0;
    ag_status status = same ? AG_OK : ag_fail(err, AG_E_VERIFY, "'capability_digest' is '%s', the snapshot's own is '%s'",
                                              stated ? stated : "(none)", digest);
    free(digest);
    return status;
}

ag_status ag_capability_bind(const json_t *snapshot, const ag_f0_record *samples, size_t n, ag_err *err)
{
    AG_TRY(ag_capability_check(snapshot, err));
    if (n == 0) return ag_fail(err, AG_E_DATA, "there is no sample to bind");
    const char *run = text_of(snapshot, "agoge_run_id"), *host = text_of(json_object_get(snapshot, "host"), "hostname");
    const char *digest = text_of(snapshot, "capability_digest");
    const bool has_device = strcmp(text_of(snapshot, "device_status"), "ok") == 0;
    const int64_t monotonic_ns = json_integer_value(json_object_get(snapshot, "monotonic_ns"));
    int64_t wall_ns;
    ag_f0_gpu gpu;
    AG_TRY(ag_f0_timestamp_parse(&wall_ns, text_of(snapshot, "timestamp_utc"), err));
    AG_TRY(ag_f0_gpu_read(&gpu, json_object_get(snapshot, "gpu"), false, err));
    for (size_t i = 0; i < n; i++) {
        const ag_f0_record *s = &samples[i];
        if (strcmp(s->run_id, run) != 0)
            return ag_fail(err, AG_E_VERIFY, "sample %zu belongs to the run '%s', the snapshot to '%s'", i, s->run_id, run);
        if (!s->capability_digest || strcmp(s->capability_digest, digest) != 0)
            return ag_fail(err, AG_E_VERIFY, "sample %zu: its capability digest is %s, the snapshot's is %s", i,
                           s->capability_digest ? s->capability_digest : "missing", digest);
        if (strcmp(s->hostname, host) != 0)
            return ag_fail(err, AG_E_VERIFY, "sample %zu was taken on the host '%s', the snapshot on '%s'", i, s->hostname, host);
        if (has_device && !ag_f0_same_gpu(&gpu, &s->gpu)) return ag_fail(err, AG_E_VERIFY, "sample %zu is of another GPU than the snapshot", i);
        if (monotonic_ns > s->monotonic_ns || wall_ns > s->wall_ns)
            return ag_fail(err, AG_E_VERIFY, "sample %zu was taken before the snapshot; the snapshot comes first", i);
    }
    return AG_OK;
}
