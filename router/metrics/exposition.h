// SPDX-License-Identifier: Apache-2.0
// Writes the text of metrics: samples with their labels. Only table.c uses it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "router/core/histogram.h"
#include "router/metrics/metrics.h"

struct exposition;

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
const char *metric_type_name(enum metric_type type);

struct metric {
    const char *name; // the full name; NULL ends the table
    enum metric_type type;
    const char *labels; // names of the labels, for the docs, such as "pool, node"; "" if there are none
    const char *help;   // one sentence
    void (*write)(struct exposition *e, const struct metric *metric, const struct metrics_snapshot *s);
    size_t offset; // offset of the value in the struct that write() reads, if write() needs one
    int roles;     // bit set of 1 << enum node_role: roles whose nodes have the metric
};
extern const struct metric metrics_table[];

struct exposition {
    char *text;
    size_t size, capacity;
    enum metrics_format format;
    const struct metric *metric; // the metric whose samples are written
};

// The labels of a sample, as text between the braces. Names are not escaped. Values are escaped, and cut after
// LABEL_BYTES.
enum { LABEL_BYTES = 512, LABELS_MAX = 4 };
struct labels {
    char text[LABELS_MAX * (2 * LABEL_BYTES + 32)];
    size_t size;
};
void labels_add(struct labels *labels, const char *name, const char *value);

// Add a sample. `labels` may be NULL.
void exposition_count(struct exposition *e, const struct labels *labels, uint64_t value);
void exposition_number(struct exposition *e, const struct labels *labels, double value);
void exposition_histogram(struct exposition *e, const struct labels *labels, const struct histogram *h);
