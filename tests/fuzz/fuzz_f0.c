/* Telemetry from anywhere: one JSON value as a marker, a sample, a skew record, a capability snapshot, a Green Context report or evidence
 * of a qualification; and, where it is a valid sample and marker, joined and summarized. */
#include "lab/f0_efficiency.h"
#include "lab/gpu_capability.h"
#include "lab/green_ctx_report.h"
#include "lab/qualification.h"
#include "lab/sanitizer_log.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void try_summary(const ag_f0_record *marker, const ag_f0_record *sample, json_t *line)
{
    ag_f0_record m = *marker, s = *sample;
    const ag_f0_stream markers = {&m, NULL, 1}, samples = {&s, NULL, 1};
    const ag_f0_line window = {line, 1};
    const ag_efficiency_input in = {&markers, &samples, &window, 1, line, NULL, 3};
    json_t *summary;
    ag_err err;
    if (ag_efficiency_summarize(&summary, &in, &err)) return;
    ag_str report = {0};
    ag_efficiency_report(&report, summary);
    ag_str_free(&report);
    json_decref(summary);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    json_t *root, *made;
    ag_err err;
    int64_t errors;
    ag_sanitizer_summary(&errors, (const char *)bytes, n);
    if (ag_json_parse(&root, (const char *)bytes, n, "fuzz", &err)) return 0;
    ag_arena arena = {0};
    const json_t *first = json_is_array(root) ? json_array_get(root, 0) : root, *second = json_is_array(root) ? json_array_get(root, 1) : root;
    ag_f0_record marker, sample;
    const bool has_marker = ag_f0_record_read(&marker, first, AG_F0_MARKER, &err) == AG_OK;
    const bool has_sample = ag_f0_record_read(&sample, second, AG_F0_SAMPLE, &err) == AG_OK;
    if (has_marker && has_sample) try_summary(&marker, &sample, json_array_get(root, 2));
    if (has_sample && ag_capability_bind(first, &sample, 1, &err) == AG_OK && !sample.capability_digest) abort();
    ag_clock_calibration c;
    if (ag_clock_record_check(&c, root, &arena, &err) == AG_OK) json_decref(ag_clock_record_make(&c, root));
    if (ag_capability_check(root, &err) == AG_OK) free(ag_capability_digest(root));
    const char *outcome;
    if (ag_green_ctx_report_check(&outcome, root, &err) == AG_OK && !outcome) abort();
    if (ag_qualification_judge(&made, root, &err) == AG_OK) json_decref(made);
    ag_arena_free(&arena);
    json_decref(root);
    return 0;
}
