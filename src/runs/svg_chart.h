/* Curves as SVG, to stand in a page: axes with round numbers, lines that pages colour by CSS (classes axis, grid, curve-0,
 * curve-1 …). A curve of many points is drawn by the least and the greatest of each column, so that no spike is lost and a page
 * stays small. */
#ifndef AG_SVG_CHART_H
#define AG_SVG_CHART_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *label;
    const double *x, *y; /* x ascending; where y is no finite number the line has a gap */
    size_t n;
    bool as_points;      /* dots joined by a line, for few values */
} ag_curve;

/* `title` is the chart's name for who does not see it. Nothing is added where no curve has a finite value. */
void ag_svg_chart(ag_str *out, const char *title, const ag_curve *curves, size_t n_curves);

/* Text inside HTML or an attribute: & < > " ' are escaped, malformed UTF-8 and control characters become U+FFFD. */
void ag_html_add(ag_str *out, const char *text);
void ag_html_add_n(ag_str *out, const char *text, size_t n);

#endif
