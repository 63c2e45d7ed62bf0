#include "runs/run_report_parts.h"

#include <math.h>

/* What a mean over some steps shows that single steps hide: their weight falls by half every fiftieth of the run. */
static void smooth(double *out, const double *y, size_t n)
{
    const double half_life = n / 50.0 > 1 ? n / 50.0 : 1, keep = pow(0.5, 1 / half_life);
    double sum = 0, weight = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(y[i])) {
            sum = keep * sum + y[i];
            weight = keep * weight + 1;
        }
        out[i] = weight > 0 ? sum / weight : (double)NAN;
    }
}

static void add_figure(ag_report *r, const char *title, const char *caption, const ag_curve *curves, size_t n)
{
    const size_t before = r->out->n;
    ag_str_printf(r->out, "<figure><figcaption>%s</figcaption>\n", caption);
    const size_t begun = r->out->n;
    ag_svg_chart(r->out, title, curves, n);
    if (r->out->n == begun) { /* nothing to draw */
        r->out->n = before;
        r->out->text[before] = 0;
        return;
    }
    ag_str_add(r->out, "</figure>\n");
}

static void add_evaluations(ag_report *r)
{
    ag_str_add(r->out, "<div class=\"scroll\"><table>\n<tr><th scope=\"col\" class=\"n\">step</th><th scope=\"col\" "
                       "class=\"n\">held-out loss</th>"
                       "<th scope=\"col\" class=\"n\">perplexity</th><th scope=\"col\" class=\"n\">tokens</th></tr>\n");
    for (size_t i = 0; i < r->series.n_evals; i++) {
        const ag_eval_point *e = &r->series.evals[i];
        ag_str_printf(
            r->out,
            "<tr><td class=\"n\">%lld</td><td class=\"n\">%.4f</td><td class=\"n\">%.4g</td><td class=\"n\">%lld</td></tr>\n",
            (long long)e->step, e->loss, exp(e->loss), (long long)e->targets);
    }
    ag_str_add(r->out, "</table></div>\n");
}

void ag_report_curves(ag_report *r)
{
    const ag_series *s = &r->series;
    const size_t n = s->n_steps, m = s->n_evals;
    enum { LOSS, LR, NORM, SPEED, SMOOTH, STEP, N };
    double *column[N];
    for (int i = 0; i < N; i++) column[i] = ag_arena_array(r->arena, n, sizeof **column);
    double *eval_step = ag_arena_array(r->arena, m + 1, sizeof *eval_step),
           *eval_loss = ag_arena_array(r->arena, m + 1, sizeof *eval_loss);
    for (size_t i = 0; i < n; i++) {
        column[STEP][i] = (double)s->steps[i].step;
        column[LOSS][i] = s->steps[i].loss;
        column[LR][i] = s->steps[i].lr;
        column[NORM][i] = s->steps[i].grad_norm;
        column[SPEED][i] = s->steps[i].tok_s;
    }
    for (size_t i = 0; i < m; i++) {
        eval_step[i] = (double)s->evals[i].step;
        eval_loss[i] = s->evals[i].loss;
    }
    smooth(column[SMOOTH], column[LOSS], n);
    ag_report_section(r, "Curves");
    const ag_curve loss[] = {{"training loss, smoothed", column[STEP], column[SMOOTH], n, false},
                             {"held-out loss", eval_step, eval_loss, m, true}};
    add_figure(r, "Training and held-out loss over steps", "Loss by step", loss, m > 0 ? 2 : 1);
    const ag_curve raw[] = {{"training loss", column[STEP], column[LOSS], n, false}};
    add_figure(r, "Training loss of every step", "Training loss of every step, as it was", raw, 1);
    const ag_curve lr[] = {{"learning rate", column[STEP], column[LR], n, false}};
    add_figure(r, "Learning rate over steps", "Learning rate", lr, 1);
    const ag_curve norm[] = {{"gradient norm", column[STEP], column[NORM], n, false}};
    add_figure(r, "Gradient norm over steps, before clipping", "Gradient norm, before clipping", norm, 1);
    const ag_curve speed[] = {{"tokens a second", column[STEP], column[SPEED], n, false}};
    add_figure(r, "Tokens a second over steps", "Tokens a second", speed, 1);
    if (m > 0) add_evaluations(r);
    if (s->n_unreadable > 0)
        ag_str_printf(r->out, "<p class=\"soft\">%zu lines of metrics.jsonl could not be read and are not drawn.</p>\n",
                      s->n_unreadable);
    ag_report_end(r);
}
