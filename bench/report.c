// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/page/page.h"

struct report {
    FILE *out;
    char *path;
};

enum { COLOURS = 8 };

// ---- text -----------------------------------------------------------------------------------------------------------

static void report_put_text(struct report *r, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", r->out); break;
        case '<': fputs("&lt;", r->out); break;
        case '>': fputs("&gt;", r->out); break;
        case '"': fputs("&quot;", r->out); break;
        default: fputc(*text, r->out);
        }
    }
}

static void report_put_element(struct report *r, const char *element, const char *text)
{
    fprintf(r->out, "<%s>", element);
    report_put_text(r, text);
    fprintf(r->out, "</%s>\n", element);
}

static enum status report_fail(const char *path)
{
    return status_fail(STATUS_INVALID, "--report %s: %s", path, strerror(errno));
}

enum status report_open(const char *path, const char *title, struct report **report_p)
{
    FILE *out = fopen(path, "w");
    if (!out) return report_fail(path);
    struct report *r = mem_alloc(sizeof *r);
    *r = (struct report){.out = out, .path = mem_string(path)};
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n", r->out);
    fputs("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n", r->out);
    report_put_element(r, "title", title);
    fputs("<style>", r->out);
    fwrite(page_style, 1, page_style_size, r->out);
    fputs("</style></head><body>\n", r->out);
    report_put_element(r, "h1", title);
    *report_p = r;
    return STATUS_OK;
}

enum status report_close(struct report *r)
{
    if (!r) return STATUS_OK;
    fputs("</body></html>\n", r->out);
    bool bad = ferror(r->out);
    enum status status = fclose(r->out) != 0 || bad ? report_fail(r->path) : STATUS_OK;
    free(r->path);
    free(r);
    return status;
}

void report_paragraph(struct report *r, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) abort(); // out of memory, as in mem_alloc
    va_end(args);
    report_put_element(r, "p", text);
    free(text);
}

// ---- tables ---------------------------------------------------------------------------------------------------------

static void report_put_value(struct report *r, const json_t *value)
{
    if (json_is_integer(value)) {
        fprintf(r->out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        double x = json_real_value(value);
        fprintf(r->out, fabs(x) >= 1000 && fabs(x) < 1e15 ? "%.0f" : "%.4g", x);
    } else if (json_is_boolean(value)) {
        fputs(json_is_true(value) ? "yes" : "no", r->out);
    } else if (json_is_string(value)) {
        report_put_text(r, json_string_value(value));
    } else if (value && !json_is_null(value)) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(4));
        report_put_text(r, text ? text : "");
        free(text);
    }
}

void report_table(struct report *r, const json_t *rows, const char *const *columns, int n_columns)
{
    fputs("<div class=\"wide card\"><table><thead><tr>", r->out);
    for (int c = 0; c < n_columns; c++) {
        const char *heading = strchr(columns[c], '=');
        fputs("<th scope=\"col\">", r->out);
        report_put_text(r, heading ? heading + 1 : columns[c]);
        fputs("</th>", r->out);
    }
    fputs("</tr></thead>\n", r->out);
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        fputs("<tr>", r->out);
        for (int c = 0; c < n_columns; c++) {
            char *key = strndup(columns[c], strcspn(columns[c], "="));
            fputs("<td>", r->out);
            report_put_value(r, json_object_get(row, key));
            fputs("</td>", r->out);
            free(key);
        }
        fputs("</tr>\n", r->out);
    }
    fputs("</table></div>\n", r->out);
}

// ---- axes -----------------------------------------------------------------------------------------------------------

enum { WIDTH = 900, HEIGHT = 380, LEFT = 70, RIGHT = 20, TOP = 40, BOTTOM = 60 };

struct axis {
    double from, to; // range of the values, or of their logarithms if `log`
    bool log;
    double step; // distance between ticks of a linear axis
};

static bool axis_shows(bool log, double value)
{
    return isfinite(value) && (!log || value > 0);
}

// Makes an axis from `min` to `max`. A linear axis is extended to whole ticks.
static struct axis axis_make(bool log, double min, double max)
{
    struct axis axis = {.log = log};
    if (!(min <= max)) min = log ? 1 : 0, max = 1; // no values
    if (log) {
        axis.from = log10(min);
        axis.to = log10(max);
        double margin = axis.to > axis.from ? 0.03 * (axis.to - axis.from) : 0.5;
        axis.from -= margin;
        axis.to += margin;
        return axis;
    }
    double span = max > min ? max - min : max != 0 ? fabs(max) : 1, power = pow(10, floor(log10(span / 5)));
    double steps = span / 5 / power;
    axis.step = power * (steps <= 1 ? 1 : steps <= 2 ? 2 : steps <= 5 ? 5 : 10);
    axis.from = floor(min / axis.step + 1e-9) * axis.step;
    axis.to = ceil(max / axis.step - 1e-9) * axis.step;
    if (axis.to <= axis.from) axis.to = axis.from + axis.step;
    return axis;
}

// Returns the place of a value: 0 at the start of the axis, 1 at its end.
static double axis_at(const struct axis *axis, double value)
{
    return ((axis->log ? log10(value) : value) - axis->from) / (axis->to - axis->from);
}

static double axis_x(const struct axis *axis, double value)
{
    return LEFT + axis_at(axis, value) * (WIDTH - LEFT - RIGHT);
}

static double axis_y(const struct axis *axis, double value)
{
    return HEIGHT - BOTTOM - axis_at(axis, value) * (HEIGHT - TOP - BOTTOM);
}

static void report_put_tick(struct report *r, const struct axis *axis, bool vertical, double value)
{
    double at = axis_at(axis, value);
    if (at < -1e-9 || at > 1 + 1e-9) return;
    double x = vertical ? LEFT : axis_x(axis, value), y = vertical ? axis_y(axis, value) : HEIGHT - BOTTOM;
    fprintf(r->out, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x, y,
            vertical ? WIDTH - RIGHT : x, vertical ? y : TOP);
    fprintf(r->out, "<text class=\"dim\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.6g</text>\n", vertical ? x - 8 : x,
            vertical ? y + 4 : y + 18, vertical ? "end" : "middle", value);
}

static void report_put_axis(struct report *r, const struct axis *axis, bool vertical)
{
    if (!axis->log) {
        int n = (int)lround((axis->to - axis->from) / axis->step);
        for (int i = 0; i <= n; i++)
            report_put_tick(r, axis, vertical, (lround(axis->from / axis->step) + i) * axis->step);
        return;
    }
    static const double within[] = {1, 2, 5};
    int n = axis->to - axis->from > 4 ? 1 : 3; // only powers of ten if there are many decades
    for (int decade = (int)floor(axis->from); decade <= (int)ceil(axis->to); decade++)
        for (int i = 0; i < n; i++)
            report_put_tick(r, axis, vertical, within[i] * pow(10, decade));
}

static void report_put_frame(struct report *r, const char *title, const char *x_title, const char *y_title)
{
    fprintf(r->out, "<div class=\"wide\"><svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    report_put_text(r, title);
    fprintf(r->out, "\">\n<text x=\"%d\" y=\"18\" class=\"name\">", LEFT);
    report_put_text(r, title);
    fprintf(r->out, "</text><text class=\"dim\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", WIDTH - RIGHT, HEIGHT - 26);
    report_put_text(r, x_title);
    fprintf(r->out, "</text><text class=\"dim\" x=\"8\" y=\"%d\">", TOP - 8);
    report_put_text(r, y_title);
    fputs("</text>\n", r->out);
}

static void report_put_legend(struct report *r, int i, int n, const char *name)
{
    double x = LEFT + (double)i * (WIDTH - LEFT - RIGHT) / n;
    fprintf(r->out,
            "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"var(--c%d)\"/><text x=\"%.1f\" y=\"%d\">", x,
            HEIGHT - 18, i % COLOURS, x + 18, HEIGHT - 8);
    report_put_text(r, name);
    fputs("</text>\n", r->out);
}

// ---- plots ----------------------------------------------------------------------------------------------------------

static void report_put_series(struct report *r, const struct report_series *s, int i, const struct axis *x,
                              const struct axis *y)
{
    fprintf(r->out, "<polyline fill=\"none\" stroke=\"var(--c%d)\" stroke-width=\"2\" points=\"", i % COLOURS);
    for (int p = 0; p < s->n; p++)
        if (axis_shows(x->log, s->x[p]) && axis_shows(y->log, s->y[p]))
            fprintf(r->out, "%.1f,%.1f ", axis_x(x, s->x[p]), axis_y(y, s->y[p]));
    fputs("\"/>\n", r->out);
    for (int p = 0; p < s->n; p++) {
        if (!axis_shows(x->log, s->x[p]) || !axis_shows(y->log, s->y[p])) continue;
        fprintf(r->out, "<circle r=\"%.1f\" fill=\"var(--c%d)\" cx=\"%.1f\" cy=\"%.1f\"><title>", s->n > 40 ? 1.5 : 3.5,
                i % COLOURS, axis_x(x, s->x[p]), axis_y(y, s->y[p]));
        report_put_text(r, s->name);
        fprintf(r->out, ": %.6g, %.6g</title></circle>\n", s->x[p], s->y[p]);
    }
}

void report_lines(struct report *r, const struct report_chart *chart)
{
    double x_min = INFINITY, x_max = -INFINITY, y_min = chart->log_y ? INFINITY : 0, y_max = -INFINITY;
    for (int i = 0; i < chart->n_series; i++)
        for (int p = 0; p < chart->series[i].n; p++) {
            double x = chart->series[i].x[p], y = chart->series[i].y[p];
            if (!axis_shows(chart->log_x, x) || !axis_shows(chart->log_y, y)) continue;
            x_min = fmin(x_min, x);
            x_max = fmax(x_max, x);
            y_min = fmin(y_min, y);
            y_max = fmax(y_max, y);
        }
    struct axis x = axis_make(chart->log_x, x_min, x_max), y = axis_make(chart->log_y, y_min, y_max);
    report_put_frame(r, chart->title, chart->x_title, chart->y_title);
    report_put_axis(r, &x, false);
    report_put_axis(r, &y, true);
    for (int i = 0; i < chart->n_series; i++) {
        report_put_series(r, &chart->series[i], i, &x, &y);
        report_put_legend(r, i, chart->n_series, chart->series[i].name);
    }
    fputs("</svg></div>\n", r->out);
}

void report_bars(struct report *r, const struct report_bars *bars)
{
    double max = -INFINITY;
    for (int i = 0; i < bars->n_series * bars->n_groups; i++)
        if (isfinite(bars->values[i])) max = fmax(max, bars->values[i]);
    struct axis y = axis_make(false, 0, max);
    report_put_frame(r, bars->title, "", bars->y_title);
    report_put_axis(r, &y, true);
    double group = (double)(WIDTH - LEFT - RIGHT) / (bars->n_groups ? bars->n_groups : 1);
    double width = 0.8 * group / (bars->n_series ? bars->n_series : 1);
    for (int g = 0; g < bars->n_groups; g++) {
        double left = LEFT + g * group;
        fprintf(r->out, "<text class=\"dim\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", left + group / 2,
                HEIGHT - BOTTOM + 18);
        report_put_text(r, bars->groups[g]);
        fputs("</text>\n", r->out);
        for (int s = 0; s < bars->n_series; s++) {
            double value = bars->values[s * bars->n_groups + g];
            if (!isfinite(value)) continue;
            double top = axis_y(&y, value);
            fprintf(r->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"var(--c%d)\"><title>",
                    left + 0.1 * group + s * width, top, 0.92 * width, HEIGHT - BOTTOM - top, s % COLOURS);
            report_put_text(r, bars->series[s]);
            fprintf(r->out, ": %.6g</title></rect>\n", value);
        }
    }
    for (int s = 0; s < bars->n_series; s++)
        report_put_legend(r, s, bars->n_series, bars->series[s]);
    fputs("</svg></div>\n", r->out);
}
