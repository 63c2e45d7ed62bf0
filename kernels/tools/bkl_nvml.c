/* nvml-capability: what GPU 0 lets itself be asked, checked, bound to samples, or tried on seven cards that are not there. */
#include "kernels/tools/bkl_command.h"

#include "base/canonical_json.h"
#include "base/clock.h"
#include "base/fs.h"
#include "lab/f0_clock.h"
#include "lab/gpu_capability.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURES "fixtures/f0-nvml-capability"
#define BOUND_CAPABILITY "fixtures/f0-correlation/bkl-gpu-capability.json"

typedef struct {
    bool write_fixtures, live, require_device;
    const char *stamp_samples, *fixture, *bind_samples, *capability, *fixtures_dir, *out, *run_id, *require_name, *require_capability;
} nvml_options;

/* ---- cards that are not there --------------------------------------------------------------------------------------------- */
typedef struct {
    const char *name, *timestamp;
    unsigned gpus, power_mw, utilization;
    int power, temperatures, memory_temperature, graphics_clock, every; /* NVML codes; `every`: of all readings */
} fake_card;
static const fake_card fakes[] = {
    {"full-support", "2026-09-14T17:59:59Z", 1, 180000, 47, 0, 0, 0, 0, 0},
    {"partial-support", "2026-09-15T04:00:00Z", 1, 45000, 10, 0, 0, AG_NVML_ERROR_NOT_SUPPORTED, 0, 0},
    {"permission-denied", "2026-09-14T17:59:59Z", 1, 0, 5, AG_NVML_ERROR_NO_PERMISSION, AG_NVML_ERROR_NO_PERMISSION, AG_NVML_ERROR_NO_PERMISSION, 0, 0},
    {"transient-failure", "2026-09-14T17:59:59Z", 1, 0, 20, AG_NVML_ERROR_TIMEOUT, 0, 0, AG_NVML_ERROR_NO_DATA, 0},
    {"device-lost", "2026-09-14T17:59:59Z", 1, 0, 0, 0, 0, 0, 0, AG_NVML_ERROR_GPU_IS_LOST},
    {"no-device", "2026-09-14T17:59:59Z", 0, 0, 0, 0, 0, 0, 0, 0},
    {"valid-zero", "2026-09-14T17:59:59Z", 1, 15000, 0, 0, 0, 0, 0, 0},
};
enum { N_FAKES = sizeof fakes / sizeof *fakes };

static const fake_card *card(ag_nvml *n) { return n->state; }

static int fake_versions(ag_nvml *n, char library[80], char driver[80])
{
    (void)n;
    strcpy(library, "13.3.58");
    strcpy(driver, "610.43.03");
    return 0;
}
static int fake_count(ag_nvml *n, unsigned *count) { return *count = card(n)->gpus, 0; }
static int fake_identity(ag_nvml *n, ag_nvml_identity *out)
{
    (void)n;
    *out = (ag_nvml_identity){"0000:01:00.0", "GPU-fixture-0001", "NVIDIA GeForce RTX 5080", "12.0"};
    return 0;
}
static int either(ag_nvml *n, int code) { return card(n)->every ? card(n)->every : code; }
static int fake_power(ag_nvml *n, unsigned *mw) { return *mw = card(n)->power_mw, either(n, card(n)->power); }
static int fake_temperature(ag_nvml *n, bool of_memory, unsigned *celsius)
{
    *celsius = of_memory ? 40 : 32;
    return either(n, of_memory ? card(n)->memory_temperature : card(n)->temperatures);
}
static int fake_utilization(ag_nvml *n, unsigned *gpu, unsigned *memory) { return *gpu = card(n)->utilization, *memory = 12, either(n, 0); }
static int fake_clock(ag_nvml *n, bool of_memory, unsigned *mhz)
{
    *mhz = of_memory ? 5000 : 300;
    return either(n, of_memory ? 0 : card(n)->graphics_clock);
}
static int fake_memory(ag_nvml *n, uint64_t *total, uint64_t *free_bytes, uint64_t *used)
{
    const uint64_t mib = 1 << 20;
    *total = 16303 * mib;
    *free_bytes = 14203 * mib;
    *used = 2100 * mib;
    return either(n, 0);
}
static int fake_throttle(ag_nvml *n, uint64_t *mask) { return *mask = 0, either(n, 0); }
static int fake_pstate(ag_nvml *n, unsigned *state) { return *state = 8, either(n, 0); }

static json_t *fake_snapshot(const fake_card *fake)
{
    fake_card copy = *fake;
    ag_nvml nvml = {fake_versions, fake_count, fake_identity, fake_power,    fake_temperature, fake_utilization,
                    fake_clock,    fake_memory, fake_throttle, fake_pstate, NULL,             &copy,
                    0,             ""};
    char run_id[64];
    snprintf(run_id, sizeof run_id, "cap_fixture_%s", fake->name);
    const ag_capability_context context = {run_id, "ShipOfTheseus", fake->timestamp, 0, "610.43.03"};
    return ag_capability_discover(&nvml, &context);
}

/* ---- self-test ---------------------------------------------------------------------------------------------------------------- */
static ag_status expect_refused(json_t *snapshot, const char *what, ag_err *err)
{
    ag_err ignored;
    const bool refused = ag_capability_check(snapshot, &ignored) != AG_OK;
    json_decref(snapshot);
    return refused ? AG_OK : ag_fail(err, AG_E_VERIFY, "guard: %s was accepted", what);
}

static ag_status check_guards(ag_err *err)
{
    for (int status = AG_F0_UNAVAILABLE; status < AG_F0_N_STATUSES; status++) {
        json_t *snapshot = fake_snapshot(&fakes[0]);
        json_t *power = json_object_get(json_object_get(snapshot, "metrics"), "power");
        json_object_set_new(power, "status", json_string(ag_f0_status_name((ag_f0_status)status)));
        json_object_set_new(power, "value", json_integer(0));
        AG_TRY(expect_refused(snapshot, "a zero in place of a missing value", err));
    }
    json_t *snapshot = fake_snapshot(&fakes[0]);
    json_object_set_new(snapshot, "timestamp_utc", json_string("2026-09-14 17:59:59"));
    AG_TRY(expect_refused(snapshot, "a malformed timestamp", err));
    fake_card no_power = fakes[0];
    no_power.power = 999; /* a code that no version of the library has */
    snapshot = fake_snapshot(&no_power);
    const json_t *metrics = json_object_get(snapshot, "metrics");
    const char *power = json_string_value(json_object_get(json_object_get(metrics, "power"), "status"));
    const char *clock = json_string_value(json_object_get(json_object_get(metrics, "clock_memory"), "status"));
    const bool good = power && clock && strcmp(power, "transient_failure") == 0 && strcmp(clock, "ok") == 0;
    json_decref(snapshot);
    return good ? AG_OK : ag_fail(err, AG_E_VERIFY, "guard: a failed power reading changed another reading");
}

static ag_status self_test(const char *folder, ag_arena *arena, ag_err *err)
{
    for (int i = 0; i < N_FAKES; i++) {
        const char *path = ag_arena_printf(arena, "%s/%s.json", folder, fakes[i].name);
        json_t *fixture, *made = fake_snapshot(&fakes[i]);
        ag_status status = bkl_json_load(&fixture, path, err);
        if (!status) {
            ag_str a = {0}, b = {0};
            ag_json_add_canonical(&a, fixture);
            ag_json_add_canonical(&b, made);
            status = ag_capability_check(fixture, err);
            if (status) ag_err_prefix(err, "%s", path);
            if (!status && strcmp(a.text, b.text) != 0) status = ag_fail(err, AG_E_VERIFY, "%s differs from what the backend makes", path);
            ag_str_free(&a);
            ag_str_free(&b);
            ag_json_free(&fixture);
        }
        json_decref(made);
        AG_TRY(status);
    }
    AG_TRY(check_guards(err));
    printf("nvml capability self-test ok; scenarios=%d; %s\n", (int)N_FAKES, folder);
    return AG_OK;
}

static ag_status write_fixtures(const char *folder, ag_arena *arena, ag_err *err)
{
    for (int i = 0; i < N_FAKES; i++) {
        json_t *made = fake_snapshot(&fakes[i]);
        const char *path = ag_arena_printf(arena, "%s/%s.json", folder, fakes[i].name);
        ag_status status = bkl_json_publish(path, made, err);
        json_decref(made);
        AG_TRY(status);
        printf("wrote %s\n", path);
    }
    return AG_OK;
}

/* ---- files ---------------------------------------------------------------------------------------------------------------------- */
static ag_status load_snapshot(json_t **out, const char *path, ag_err *err)
{
    AG_TRY(bkl_json_load(out, path, err));
    if (ag_capability_check(*out, err) == AG_OK) return AG_OK;
    ag_json_free(out);
    return ag_err_prefix(err, "%s", path);
}

static const char *digest_of(const json_t *snapshot) { return json_string_value(json_object_get(snapshot, "capability_digest")); }

static ag_status check_fixture(const char *path, ag_err *err)
{
    json_t *snapshot;
    AG_TRY(load_snapshot(&snapshot, path, err));
    printf("%s: capability snapshot ok digest=%s\n", path, digest_of(snapshot));
    ag_json_free(&snapshot);
    return AG_OK;
}

static ag_status bind_samples(const nvml_options *o, ag_err *err)
{
    json_t *snapshot;
    ag_f0_stream samples;
    AG_TRY(load_snapshot(&snapshot, o->capability, err));
    ag_status status = ag_f0_stream_load(&samples, o->bind_samples, AG_F0_SAMPLE, err);
    if (!status) {
        status = ag_capability_bind(snapshot, samples.records, samples.n, err);
        if (status) ag_err_prefix(err, "%s", o->bind_samples);
        ag_f0_stream_free(&samples);
    }
    if (!status) printf("bound %s to %s\n", o->bind_samples, o->capability);
    ag_json_free(&snapshot);
    return status;
}

/* Writes the snapshot's digest into every sample of a file, in place (whole or not at all). */
static ag_status stamp_samples(const nvml_options *o, ag_err *err)
{
    json_t *snapshot;
    ag_f0_stream samples;
    AG_TRY(load_snapshot(&snapshot, o->capability, err));
    ag_status status = ag_f0_stream_load(&samples, o->stamp_samples, AG_F0_SAMPLE, err);
    if (!status) {
        ag_str text = {0};
        for (size_t i = 0; i < samples.n; i++) {
            json_object_set(samples.lines[i].json, "capability_digest", json_object_get(snapshot, "capability_digest"));
            ag_json_writer w = {.out = &text, .indent = -1, .ascii = true};
            ag_jw_value(&w, NULL, samples.lines[i].json);
            ag_str_add_char(&text, '\n');
        }
        status = ag_file_publish(o->stamp_samples, text.text, text.n, err);
        if (!status) printf("stamped %zu sample(s) of %s with %s\n", samples.n, o->stamp_samples, digest_of(snapshot));
        ag_str_free(&text);
        ag_f0_stream_free(&samples);
    }
    ag_json_free(&snapshot);
    return status;
}

/* ---- live ------------------------------------------------------------------------------------------------------------------------- */
static ag_status need_live(const nvml_options *o, const json_t *snapshot, const char *detail, ag_err *err)
{
    const json_t *gpu = json_object_get(snapshot, "gpu");
    const char *status = json_string_value(json_object_get(snapshot, "device_status")), *name = json_string_value(json_object_get(gpu, "name"));
    const char *capability = json_string_value(json_object_get(gpu, "compute_capability"));
    if ((o->require_device || o->require_name || o->require_capability) && strcmp(status, "ok") != 0)
        return ag_fail(err, AG_E_VERIFY, "a GPU is required and the device is '%s'%s%s", status, *detail ? ": " : "", detail);
    if (o->require_name && (!name || strcmp(name, o->require_name) != 0))
        return ag_fail(err, AG_E_VERIFY, "the GPU is '%s', required is '%s'", name ? name : "unnamed", o->require_name);
    if (o->require_capability && (!capability || strcmp(capability, o->require_capability) != 0))
        return ag_fail(err, AG_E_VERIFY, "the compute capability is '%s', required is '%s'", capability ? capability : "unknown", o->require_capability);
    return AG_OK;
}

static ag_status run_live(const nvml_options *o, ag_err *err)
{
    ag_nvml nvml;
    char timestamp[40];
    ag_clock_observation now;
    ag_nvml_open(&nvml, getenv("BKL_NVML_LIBRARY"));
    ag_clock_observe(&now, AG_CLOCK_NO_ROLE, timestamp);
    const ag_capability_context context = {o->run_id, bkl_hostname(), timestamp, now.monotonic_ns, NULL};
    json_t *snapshot = ag_capability_discover(&nvml, &context);
    ag_status status = ag_capability_check(snapshot, err);
    if (!status) status = need_live(o, snapshot, nvml.detail, err);
    if (!status && o->out) status = bkl_json_publish(o->out, snapshot, err);
    const char *name = json_string_value(json_object_get(json_object_get(snapshot, "gpu"), "name"));
    if (!status && !o->out) bkl_json_print(snapshot);
    if (!status)
        fprintf(o->out ? stdout : stderr, "live device_status=%s name=%s digest=%s\n", json_string_value(json_object_get(snapshot, "device_status")),
                name ? name : "none", digest_of(snapshot));
    json_decref(snapshot);
    ag_nvml_close(&nvml);
    return status;
}

static int run(int argc, char **argv)
{
    nvml_options o = {.capability = BOUND_CAPABILITY, .fixtures_dir = FIXTURES, .run_id = "live-nvml-capability"};
    CLI_PARSE(&bkl_nvml_capability, &o, argc, argv);
    ag_arena arena = {0};
    ag_err err;
    ag_status status;
    if (o.write_fixtures)
        status = write_fixtures(o.fixtures_dir, &arena, &err);
    else if (o.stamp_samples)
        status = stamp_samples(&o, &err);
    else if (o.fixture)
        status = check_fixture(o.fixture, &err);
    else if (o.live)
        status = run_live(&o, &err);
    else if (o.bind_samples)
        status = bind_samples(&o, &err);
    else
        status = self_test(o.fixtures_dir, &arena, &err);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

static const cli_option table[] = {
    CLI_FLAG("write-fixtures", nvml_options, write_fixtures, "write the seven fixtures anew"),
    CLI_STRING("stamp-samples", nvml_options, stamp_samples, "F", "write the snapshot's digest into every sample of F", 0),
    CLI_STRING("fixture", nvml_options, fixture, "F", "check one snapshot", 0),
    CLI_FLAG("live", nvml_options, live, "ask the machine's GPU 0 (library: BKL_NVML_LIBRARY)"),
    CLI_STRING("bind-samples", nvml_options, bind_samples, "F", "check that F was sampled under the snapshot", 0),
    CLI_STRING("capability", nvml_options, capability, "F", "the snapshot to bind to", 0),
    CLI_STRING("fixtures", nvml_options, fixtures_dir, "DIR", "where the fixtures lie", 0),
    CLI_STRING("out", nvml_options, out, "F", "of --live: write the snapshot there", 0),
    CLI_STRING("agoge-run-id", nvml_options, run_id, "ID", "of --live: the run it belongs to", 0),
    CLI_FLAG("require-device", nvml_options, require_device, "of --live: fail without a GPU"),
    CLI_STRING("require-name", nvml_options, require_name, "NAME", "of --live: fail on another GPU", 0),
    CLI_STRING("require-compute-capability", nvml_options, require_capability, "N.N", "of --live: fail on another capability", 0),
    CLI_END};
const cli_command bkl_nvml_capability = {"nvml-capability", NULL, "what the GPU lets itself be asked: probe, check, bind, self-test",
                                         "Without options the self-test runs.", table, run};
