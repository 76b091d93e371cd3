// SPDX-License-Identifier: Apache-2.0
#include "router/metrics/exposition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

const char *metric_type_name(enum metric_type type)
{
    static const char *const names[] = {"counter", "gauge", "histogram"};
    return names[type];
}

// --- text

static void append(struct exposition *e, const char *text, size_t size)
{
    if (e->size + size > e->capacity) {
        e->capacity = 2 * (e->size + size);
        e->text = mem_resize(e->text, e->capacity, 1);
    }
    memcpy(e->text + e->size, text, size);
    e->size += size;
}

static void append_text(struct exposition *e, const char *text)
{
    append(e, text, strlen(text));
}

static void append_number(struct exposition *e, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    append_text(e, text);
}

// --- labels

static void labels_put(struct labels *labels, const char *text, size_t size)
{
    if (labels->size + size >= sizeof labels->text) return;
    memcpy(labels->text + labels->size, text, size + 1);
    labels->size += size;
}

static const char *escaped(const char *c)
{
    switch (*c) {
    case '\\': return "\\\\";
    case '"': return "\\\"";
    case '\n': return "\\n";
    default: return NULL;
    }
}

void labels_add(struct labels *labels, const char *name, const char *value)
{
    if (labels->size) labels_put(labels, ",", 1);
    labels_put(labels, name, strlen(name));
    labels_put(labels, "=\"", 2);
    for (const char *c = value; *c && c < value + LABEL_BYTES; c++) {
        char plain[2] = {*c, 0};
        const char *text = escaped(c);
        labels_put(labels, text ? text : plain, text ? 2 : 1);
    }
    labels_put(labels, "\"", 1);
}

// --- samples

static void sample_name(struct exposition *e, const char *suffix, const struct labels *labels)
{
    append_text(e, e->metric->name);
    append_text(e, suffix);
    if (labels && labels->size) {
        append_text(e, "{");
        append(e, labels->text, labels->size);
        append_text(e, "}");
    }
    append_text(e, " ");
}

static void count_end(struct exposition *e, uint64_t value)
{
    char text[32];
    append(e, text, (size_t)snprintf(text, sizeof text, "%" PRIu64 "\n", value));
}

void exposition_count(struct exposition *e, const struct labels *labels, uint64_t value)
{
    sample_name(e, "", labels);
    count_end(e, value);
}

void exposition_number(struct exposition *e, const struct labels *labels, double value)
{
    sample_name(e, "", labels);
    append_number(e, value);
    append_text(e, "\n");
}

static void bucket_name(struct exposition *e, const struct labels *labels, const char *edge)
{
    append_text(e, e->metric->name);
    append_text(e, "_bucket{");
    if (labels && labels->size) {
        append(e, labels->text, labels->size);
        append_text(e, ",");
    }
    append_text(e, "le=\"");
    append_text(e, edge);
    append_text(e, "\"} ");
}

// Formats an edge of a bucket. OpenMetrics requires a decimal point.
static void edge_format(const struct exposition *e, const struct histogram_scale *scale, int i, char *text, size_t room)
{
    if (i == scale->n) {
        snprintf(text, room, "+Inf");
        return;
    }
    int n = snprintf(text, room, "%.15g", (double)scale->edges[i] * scale->unit);
    if (e->format == METRICS_OPENMETRICS && !strpbrk(text, ".e")) snprintf(text + n, room - (size_t)n, ".0");
}

void exposition_histogram(struct exposition *e, const struct labels *labels, const struct histogram *h)
{
    uint64_t count = 0;
    for (int i = 0; i <= h->scale->n; i++) {
        char edge[32];
        edge_format(e, h->scale, i, edge, sizeof edge);
        count += h->counts[i];
        bucket_name(e, labels, edge);
        count_end(e, count);
    }
    sample_name(e, "_sum", labels);
    append_number(e, (double)h->sum * h->scale->unit);
    append_text(e, "\n");
    sample_name(e, "_count", labels);
    count_end(e, count);
}

// --- families

// Returns the length of the family name. In OpenMetrics the family of a counter has no suffix; in the older format it
// has the suffix of its samples.
static size_t family_length(const struct exposition *e)
{
    size_t length = strlen(e->metric->name);
    bool is_cut = e->format == METRICS_OPENMETRICS && e->metric->type == METRIC_COUNTER;
    return is_cut ? length - strlen("_total") : length;
}

static void family_line(struct exposition *e, const char *keyword, const char *text)
{
    append_text(e, keyword);
    append(e, e->metric->name, family_length(e));
    append_text(e, " ");
    append_text(e, text);
    append_text(e, "\n");
}

char *metrics_write(const struct metrics_snapshot *snapshot, enum metrics_format format, size_t *size_p)
{
    struct exposition e = {.format = format};
    for (e.metric = metrics_table; e.metric->name; e.metric++) {
        family_line(&e, "# HELP ", e.metric->help);
        family_line(&e, "# TYPE ", metric_type_name(e.metric->type));
        e.metric->write(&e, e.metric, snapshot);
    }
    if (format == METRICS_OPENMETRICS) append_text(&e, "# EOF\n");
    *size_p = e.size;
    append(&e, "", 1);
    return e.text;
}

enum metrics_format metrics_format_for(const char *accept)
{
    return accept && strstr(accept, "application/openmetrics-text") ? METRICS_OPENMETRICS : METRICS_TEXT;
}

const char *metrics_content_type(enum metrics_format format)
{
    return format == METRICS_OPENMETRICS ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                         : "text/plain; version=0.0.4; charset=utf-8";
}
