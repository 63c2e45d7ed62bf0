#include "lab/gpu_sampler.h"

#include "lab/f0_clock.h"

static void add_reading(ag_json_writer *w, ag_f0_reading which, const ag_f0_measurement *m)
{
    ag_jw_object(w, ag_f0_reading_key(which));
    if (m->status == AG_F0_OK)
        ag_jw_double(w, "value", m->value);
    else
        ag_jw_null(w, "value");
    ag_jw_string(w, "unit", ag_f0_reading_unit(which));
    ag_jw_string(w, "status", ag_f0_status_name(m->status));
    ag_jw_end(w);
}

static void add_throttle(ag_json_writer *w, const ag_gpu_probe *p)
{
    ag_jw_object(w, "throttle");
    ag_jw_string(w, "status", ag_f0_status_name(p->throttle));
    if (p->throttle == AG_F0_OK) {
        const char *names[AG_NVML_MAX_REASONS];
        const int n = ag_nvml_throttle_reasons(names, p->throttle_mask);
        ag_jw_array(w, "reasons");
        for (int i = 0; i < n; i++) ag_jw_string(w, NULL, names[i]);
        ag_jw_end(w);
    } else {
        ag_jw_null(w, "reasons");
    }
    ag_jw_end(w);
}

void ag_gpu_sample_add(ag_str *out, const ag_gpu_sampler *s, ag_nvml *nvml)
{
    ag_gpu_probe probe;
    ag_clock_observation now;
    char timestamp[40];
    ag_clock_observe(&now, AG_CLOCK_NO_ROLE, timestamp); /* before the probe: a reading is of this moment or later */
    ag_gpu_probe_all(&probe, nvml);
    ag_json_writer w = {.out = out, .indent = -1, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "schema_version", AG_F0_SCHEMA);
    ag_jw_string(&w, "record_kind", ag_f0_kind_name(AG_F0_SAMPLE));
    ag_jw_string(&w, "agoge_run_id", s->run_id);
    ag_jw_object(&w, "host");
    ag_jw_string(&w, "hostname", s->hostname);
    ag_jw_end(&w);
    ag_jw_value(&w, "gpu", json_object_get(s->snapshot, "gpu"));
    ag_jw_string(&w, "timestamp_utc", timestamp);
    ag_jw_int(&w, "monotonic_ns", now.monotonic_ns);
    ag_jw_object(&w, "collector");
    ag_jw_string(&w, "id", "bkl-gpu-sampler");
    ag_jw_string(&w, "version", "0.1.0");
    ag_jw_end(&w);
    ag_jw_int(&w, "cadence_ms", s->cadence_ms);
    for (int i = 0; i < AG_F0_N_READINGS; i++) add_reading(&w, (ag_f0_reading)i, &probe.readings[i]);
    add_throttle(&w, &probe);
    ag_jw_string(&w, "profile_window_ref", s->window);
    ag_jw_object(&w, "cuda");
    ag_jw_value(&w, "driver_version", json_object_get(json_object_get(s->snapshot, "tools"), "driver_version"));
    ag_jw_null(&w, "runtime_version");
    ag_jw_string(&w, "tool", "nvml");
    ag_jw_end(&w);
    ag_jw_value(&w, "capability_digest", json_object_get(s->snapshot, "capability_digest"));
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}
