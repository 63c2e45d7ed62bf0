#include "runs/svg_chart.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 260, LEFT = 64, RIGHT = 28, TOP = 12, BOTTOM = 34, COLUMNS = 600, N_Y_TICKS = 5, N_X_TICKS = 8 };

/* ---- text -------------------------------------------------------------------------------------------------------- */
void ag_html_add_n(ag_str *out, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const uint32_t c = ag_utf8_next(text, n, &at);
        switch (c) {
        case '&': ag_str_add(out, "&amp;"); break;
        case '<': ag_str_add(out, "&lt;"); break;
        case '>': ag_str_add(out, "&gt;"); break;
        case '"': ag_str_add(out, "&quot;"); break;
        case '\'': ag_str_add(out, "&#39;"); break;
        default: ag_str_add_code_point(out, (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) ? 0xfffd : c);
        }
    }
}

void ag_html_add(ag_str *out, const char *text) { ag_html_add_n(out, text, strlen(text)); }

/* ---- scales ------------------------------------------------------------------------------------------------------ */
typedef struct {
    double low, high, step;
} scale;

/* 1, 2 or 5 times a power of ten, so that about n of them cover the span. */
static double round_step(double span, int n)
{
    const double raw = span / n, power = pow(10, floor(log10(raw))), factor = raw / power;
    return (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10) * power;
}

static scale scale_of(double low, double high, int n_ticks)
{
    if (high - low < 1e-12 * (1 + fabs(high))) { /* a flat line stands in the middle */
        const double pad = high == 0 ? 1 : fabs(high) * 0.1;
        low -= pad;
        high += pad;
    }
    const double step = round_step(high - low, n_ticks);
    return (scale){floor(low / step) * step, ceil(high / step) * step, step};
}

static double px(const scale *s, double x) { return LEFT + (x - s->low) / (s->high - s->low) * (WIDTH - LEFT - RIGHT); }
static double py(const scale *s, double y)
{
    return HEIGHT - BOTTOM - (y - s->low) / (s->high - s->low) * (HEIGHT - TOP - BOTTOM);
}

static bool find_scales(scale *x, scale *y, const ag_curve *curves, size_t n)
{
    double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
    for (size_t c = 0; c < n; c++)
        for (size_t i = 0; i < curves[c].n; i++) {
            if (!isfinite(curves[c].y[i]) || !isfinite(curves[c].x[i])) continue;
            x_low = fmin(x_low, curves[c].x[i]);
            x_high = fmax(x_high, curves[c].x[i]);
            y_low = fmin(y_low, curves[c].y[i]);
            y_high = fmax(y_high, curves[c].y[i]);
        }
    if (!(x_low <= x_high)) return false;
    *y = scale_of(y_low, y_high, N_Y_TICKS);
    *x = scale_of(x_low, x_high, N_X_TICKS);
    x->low = x_low < x_high ? x_low : x->low; /* the line begins at the axis */
    x->high = x_low < x_high ? x_high : x->high;
    return true;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */
static void add_axes(ag_str *out, const scale *x, const scale *y)
{
    for (int i = 0; i <= 2 * N_Y_TICKS + 2; i++) {
        const double value = y->low + i * y->step;
        if (value > y->high + y->step * 1e-6) break;
        ag_str_printf(
            out,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"axis\" x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">%g</text>\n",
            LEFT, WIDTH - RIGHT, py(y, value), py(y, value), LEFT - 6, py(y, value) + 4,
            fabs(value) < y->step * 1e-6 ? 0.0 : value);
    }
    for (double value = ceil(x->low / x->step) * x->step; value <= x->high + x->step * 1e-6; value += x->step)
        ag_str_printf(out, "<text class=\"axis\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", px(x, value),
                      HEIGHT - BOTTOM + 18, value);
}

static void add_point(ag_str *out, bool *begins, const scale *x, const scale *y, double at, double value)
{
    ag_str_printf(out, "%c%.1f %.1f", *begins ? 'M' : 'L', px(x, at), py(y, value));
    *begins = false;
}

/* [begin, end) of one column of the page, by its least and greatest value in their order. */
static void add_column(ag_str *out, bool *begins, const scale *x, const scale *y, const ag_curve *c, size_t begin, size_t end)
{
    size_t least = end, greatest = end;
    for (size_t i = begin; i < end; i++) {
        if (!isfinite(c->y[i])) continue;
        if (least == end || c->y[i] < c->y[least]) least = i;
        if (greatest == end || c->y[i] > c->y[greatest]) greatest = i;
    }
    if (least == end) {
        *begins = true;
        return;
    }
    const size_t first = least < greatest ? least : greatest, second = least < greatest ? greatest : least;
    add_point(out, begins, x, y, c->x[first], c->y[first]);
    if (second != first) add_point(out, begins, x, y, c->x[second], c->y[second]);
}

static void add_curve(ag_str *out, const scale *x, const scale *y, const ag_curve *c, size_t index)
{
    const size_t n_columns = c->n < 2 * COLUMNS ? c->n : COLUMNS;
    bool begins = true;
    ag_str_printf(out, "<path class=\"curve curve-%zu\" d=\"", index);
    for (size_t i = 0; i < n_columns; i++) add_column(out, &begins, x, y, c, i * c->n / n_columns, (i + 1) * c->n / n_columns);
    ag_str_add(out, "\"/>\n");
    for (size_t i = 0; c->as_points && i < c->n && c->n < 2 * COLUMNS; i++)
        if (isfinite(c->y[i]))
            ag_str_printf(out, "<circle class=\"dot-%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%g: %.6g</title></circle>\n",
                          index, px(x, c->x[i]), py(y, c->y[i]), c->x[i], c->y[i]);
}

void ag_svg_chart(ag_str *out, const char *title, const ag_curve *curves, size_t n_curves)
{
    scale x, y;
    if (!find_scales(&x, &y, curves, n_curves)) return;
    ag_str_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    ag_html_add(out, title);
    ag_str_add(out, "\">\n");
    add_axes(out, &x, &y);
    for (size_t i = 0; i < n_curves; i++)
        if (curves[i].n > 0) add_curve(out, &x, &y, &curves[i], i);
    ag_str_add(out, "</svg>\n");
    if (n_curves < 2) return;
    ag_str_add(out, "<p class=\"legend\">");
    for (size_t i = 0; i < n_curves; i++) {
        ag_str_printf(out, "<span class=\"key key-%zu\">", i);
        ag_html_add(out, curves[i].label);
        ag_str_add(out, "</span> ");
    }
    ag_str_add(out, "</p>\n");
}
