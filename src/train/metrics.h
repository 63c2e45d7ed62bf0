/* What a run leaves behind about its steps: metrics.jsonl, one object a line, and a TensorBoard event file beside it.
 *
 *     {"step": 3, "loss": 2.81, "lr": 0.0002, "grad_norm": 1.9, "tokens": 512, "supervised_tokens": 311, "tok_s": 204.1, "ms": 2508.6,
 *      "cpu": "avx512+bf16", "n_steps": 72, "peak_rss_bytes": 581500928}    (on a device instead of "cpu" "backend": "bkl cuda")
 *     {"step": 50, "eval_loss": 1.93, "eval_targets": 812}
 *
 * A line is written with one system call and is there when the call returns. Opening for a run that resumes behind step k first drops
 * what was written for later steps, and a last line that a crash cut in two, so that a step never stands there twice. */
#ifndef AG_METRICS_H
#define AG_METRICS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t step;
    double loss, lr, grad_norm;
    int64_t n_tokens, n_targets;
    double tok_s, ms;
    const char *cpu;     /* ag_cpu_numerics_name: what the bits of this line depend on … */
    const char *backend; /* … or what computed it on a device; NULL: the CPU */
    int64_t n_steps;     /* of the whole run: who watches it can say when it will end */
    uint64_t peak_rss_bytes;
} ag_step_metrics;

typedef struct ag_metrics ag_metrics;
/* Creates `dir` where it is missing. resumed_step: 0 starts anew (an older metrics.jsonl is replaced). */
AG_MUST_USE ag_status ag_metrics_open(ag_metrics **out, const char *dir, int64_t resumed_step, ag_err *err);
AG_MUST_USE ag_status ag_metrics_step(ag_metrics *metrics, const ag_step_metrics *step, ag_err *err);
/* {"step", "samples": [{"prompt", "answer"}]}: answers of the model as it is behind this step; step 0 is the base's. */
AG_MUST_USE ag_status ag_metrics_samples(ag_metrics *metrics, int64_t step, const char *const *prompts, const char *const *answers, size_t n,
                                         ag_err *err);
AG_MUST_USE ag_status ag_metrics_eval(ag_metrics *metrics, int64_t step, double loss, int64_t n_targets, ag_err *err);
void ag_metrics_close(ag_metrics **metrics);

#endif
