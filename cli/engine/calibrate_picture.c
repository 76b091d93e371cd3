// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/calibrate_picture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "speculator/calibration.h"

enum { WIDTH = 760, LEFT = 70, TOP = 70, PLOT_WIDTH = 480, PLOT_HEIGHT = 300, LEGEND_LINES = 16 };
static const char *const colours[] = {"#0969da", "#1a7f37", "#bf8700", "#cf222e", "#8250df", "#6e7781"};

static double x_of(double keep_rate)
{
    return LEFT + PLOT_WIDTH * keep_rate;
}

static double y_of(double share)
{
    return TOP + PLOT_HEIGHT * (1 - share);
}

// Writes text with the characters of markup replaced: a task's name comes from the user's file.
static void write_escaped(FILE *file, const char *text)
{
    for (; *text; text++)
        if (strchr("<>&\"'", *text) || (unsigned char)*text < ' ')
            fprintf(file, "&#%d;", (unsigned char)*text < ' ' ? ' ' : *text);
        else
            fputc(*text, file);
}

static void write_axes(FILE *file)
{
    for (int k = 0; k <= 10; k += 2) {
        fprintf(file, "<path d=\"M%d %.1fh%d\" stroke=\"#d0d7de\"/>\n", LEFT, y_of(k / 10.0), PLOT_WIDTH);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n", LEFT - 8, y_of(k / 10.0) + 4,
                10 * k);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.1f</text>\n", x_of(k / 10.0),
                TOP + PLOT_HEIGHT + 20, k / 10.0);
    }
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">keep rate</text>\n", LEFT + PLOT_WIDTH / 2,
            TOP + PLOT_HEIGHT + 42);
}

// Draws a task: the line of fixed keep rates, and the point that the calibration reaches at its quality.
static void write_group(FILE *file, const json_t *group, int number)
{
    const char *colour = colours[number % (int)(sizeof colours / sizeof *colours)];
    const json_t *right = json_object_get(group, "kept_right");
    fprintf(file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"%d\" d=\"M", colour, number ? 1 : 3);
    for (size_t r = 0; r < json_array_size(right); r++)
        fprintf(file, "%.1f %.1fL", x_of(quality_rates[r]), y_of(json_number_value(json_array_get(right, r))));
    fprintf(file, "%.1f %.1f\"/>\n", x_of(1), y_of(1));
    double reached = json_number_value(json_object_get(group, "quality"));
    fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n",
            x_of(json_number_value(json_object_get(group, "keep_rate"))), y_of(reached > 1 ? 1 : reached), colour);
    if (number >= LEGEND_LINES) return;
    fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"%s\">", LEFT + PLOT_WIDTH + 20, TOP + 12 + 20 * number, colour);
    write_escaped(file, json_string_value(json_object_get(group, "task")));
    fprintf(file, ", %lld</text>\n", (long long)json_integer_value(json_object_get(group, "documents")));
}

static void write_picture(FILE *file, const json_t *measured)
{
    size_t i;
    const json_t *group;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, TOP + PLOT_HEIGHT + 60, WIDTH, TOP + PLOT_HEIGHT + 60, WIDTH, TOP + PLOT_HEIGHT + 60);
    fprintf(file,
            "<text x=\"%d\" y=\"28\" font-size=\"17\">Answers that pruning leaves right, by keep rate</text>\n"
            "<text x=\"%d\" y=\"48\">Lines: fixed keep rates. Points: the calibration at quality %g; it promises at "
            "most %g.</text>\n",
            LEFT, LEFT, json_number_value(json_object_get(measured, "quality")),
            json_number_value(json_object_get(measured, "highest_quality")));
    write_axes(file);
    json_array_foreach(json_object_get(measured, "groups"), i, group) write_group(file, group, (int)i);
    fprintf(file, "</svg>\n");
}

enum status calibrate_picture_write(const char *path, const json_t *measured)
{
    FILE *file = fopen(path, "w");
    if (!file) return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
    write_picture(file, measured);
    const bool failed = ferror(file);
    if (fclose(file) || failed) return status_fail(STATUS_INTERNAL, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}
