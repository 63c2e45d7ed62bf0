/* Between run_report.c (the page), run_report_curves.c, run_report_samples.c and run_report_records.c. */
#ifndef AG_RUN_REPORT_PARTS_H
#define AG_RUN_REPORT_PARTS_H

#include "runs/metrics_series.h"
#include "runs/run_report.h"
#include "runs/svg_chart.h"

#include <jansson.h>

typedef struct {
    ag_str *out;
    ag_arena *arena;
    const ag_run_status *status;
    const char *logging_dir, *eval_dir; /* NULL: there is none */
    ag_series series;
    json_t *manifest;                   /* NULL: there is none */
} ag_report;

void ag_report_curves(ag_report *r);
void ag_report_samples(ag_report *r);
void ag_report_records(ag_report *r); /* memory, configuration, environment, data, digests */

/* src/runs/page/report.css as it is in the tree, put into the program by cmake/embed.cmake. */
extern const char ag_report_style[];
extern const size_t ag_report_style_bytes;

/* A section's begin: <section><h2>title</h2>. */
void ag_report_section(ag_report *r, const char *title);
void ag_report_end(ag_report *r);
/* One row of a two-column table, both cells escaped. */
void ag_report_row(ag_report *r, const char *label, const char *value);
void ag_report_row_printf(ag_report *r, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
