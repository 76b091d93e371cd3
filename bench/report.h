// SPDX-License-Identifier: Apache-2.0
// A page for people out of a measurement: one HTML file with tables and plots (inline SVG) that needs no network and
// no script. Parts appear in the order they are added. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

struct report;

// Makes the file, so that a path that cannot be written is known before anything is measured: STATUS_INVALID.
enum status report_open(const char *path, const char *title, struct report **report_p);
// Ends the page; tells when not all of it could be written. NULL is fine.
enum status report_close(struct report *r);

void report_heading(struct report *r, const char *text);
void report_paragraph(struct report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

// A row per object of the list. A column is "key" or "key=Heading"; what a row does not have, or null, stays empty.
void report_table(struct report *r, const json_t *rows, const char *const *columns, int n_columns);

struct report_series {
    const char *name;
    const double *x, *y; // [n], x ascending; points that are not finite, or not positive on a log axis, are left out
    int n;
};

struct report_chart {
    const char *title, *x_title, *y_title;
    bool log_x, log_y; // a linear axis of y begins at 0
    const struct report_series *series;
    int n_series;
};
void report_lines(struct report *r, const struct report_chart *chart);

struct report_bars {
    const char *title, *y_title;
    const char *const *groups; // [n_groups] along the axis
    int n_groups;
    const char *const *series; // [n_series] side by side in a group
    int n_series;
    const double *values; // [n_series][n_groups], at least 0; NAN: no bar
};
void report_bars(struct report *r, const struct report_bars *bars);
