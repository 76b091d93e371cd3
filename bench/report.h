// SPDX-License-Identifier: Apache-2.0
// The HTML page of a measurement: one file with tables and plots (inline SVG), without network access or scripts. Parts
// appear in the order they are added. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

struct report;

// Creates the file before the measurement, so that a path that cannot be written is refused early: STATUS_INVALID.
enum status report_open(const char *path, const char *title, struct report **report_p);
// Ends the page and frees `r`, which may be NULL. Fails when a part of the page could not be written.
enum status report_close(struct report *r);

void report_paragraph(struct report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Adds a table with one row per object of the list. A column is "key" or "key=Heading". The cell of a missing key or
// null is empty.
void report_table(struct report *r, const json_t *rows, const char *const *columns, int n_columns);

struct report_series {
    const char *name;
    const double *x, *y; // [n], x ascending; a point that is not finite, or not positive on a log axis, is left out
    int n;
};

struct report_chart {
    const char *title, *x_title, *y_title;
    bool log_x, log_y; // a linear y axis starts at 0
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
    const double *values; // [n_series][n_groups], 0 or more; NAN: no bar
};
void report_bars(struct report *r, const struct report_bars *bars);
