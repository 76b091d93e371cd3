// SPDX-License-Identifier: Apache-2.0
// The page of `forepack bench prefill-quality`: right answers by keep rate as plots and a table.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/quality.h"
#include "lib/base/mem.h"

enum { PLOT_LINES_MAX = 64 };

struct task_plot {
    struct report_series series[PLOT_LINES_MAX];
    double x[PLOT_LINES_MAX][NUMBER_LIST_MAX + 1], y[PLOT_LINES_MAX][NUMBER_LIST_MAX + 1];
    int n;
    double everything; // the value if everything is kept: the end of all lines
};

static void plot_add_rows(struct task_plot *plot, const json_t *rows, int class, int length)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        const char *row_task = json_string_value(json_object_get(row, "task"));
        if (strcmp(row_task, quality_class_name(class)) != 0) continue;
        if (json_integer_value(json_object_get(row, "tokens")) != length) continue;
        const char *name = json_string_value(json_object_get(row, "name"));
        if (strcmp(name, "everything") == 0) {
            plot->everything = bench_row_number(row, "score");
            continue;
        }
        int n = plot->n;
        if (!n || strcmp(plot->series[n - 1].name, name) != 0) {
            if (n == PLOT_LINES_MAX) break;
            plot->series[n] = (struct report_series){name, plot->x[n], plot->y[n], 0};
            n = ++plot->n;
        }
        struct report_series *line = &plot->series[n - 1];
        plot->x[n - 1][line->n] = bench_row_number(row, "keep_rate");
        plot->y[n - 1][line->n++] = bench_row_number(row, "score");
    }
}

// Sorts the points of line `s` by keep rate: the flag usually lists the rates in descending order.
static void plot_sort_line(struct task_plot *plot, int s)
{
    double *x = plot->x[s], *y = plot->y[s];
    for (int a = 0; a < plot->series[s].n; a++)
        for (int b = a + 1; b < plot->series[s].n; b++)
            if (x[b] < x[a]) {
                double t = x[a];
                x[a] = x[b], x[b] = t;
                t = y[a];
                y[a] = y[b], y[b] = t;
            }
}

// Adds a plot of the score by keep rate for one class and prompt length, with one line per policy.
static void report_table_plot(struct report *report, const struct quality *q, int class, int length)
{
    struct task_plot *plot = mem_alloc(sizeof *plot);
    plot->everything = NAN;
    plot_add_rows(plot, q->rows, class, length);
    for (int s = 0; s < plot->n; s++) {
        plot_sort_line(plot, s);
        struct report_series *line = &plot->series[s];
        plot->x[s][line->n] = 1;
        plot->y[s][line->n++] = plot->everything;
    }
    char *text = mem_format("%s, prompts of %d tokens", quality_class_name(class), length);
    report_lines(report, &(struct report_chart){.title = text,
                                                .x_title = "keep rate",
                                                .y_title = "right answers",
                                                .series = plot->series,
                                                .n_series = plot->n});
    free(text);
    free(plot);
}

void quality_report_tasks(struct report *report, const struct quality *q)
{
    static const char *const columns[] = {"task=Task",           "tokens=Tokens",         "name=Selected by",
                                          "keep_rate=Keep rate", "kept_ratio=Kept ratio", "score=Right answers",
                                          "documents=Documents"};
    const struct quality_flags *f = q->flags;
    report_paragraph(report, "Main model %s, speculator %s; %lld documents of each class and length, seed %lld.",
                     f->main, f->spec, (long long)f->documents, (long long)f->seed);
    for (int class = 0; class < QUALITY_CLASSES; class ++)
        for (int i = 0; i < q->lengths.n && quality_class_runs(q, class); i++)
            report_table_plot(report, q, class, q->lengths.count[i]);
    report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
}
