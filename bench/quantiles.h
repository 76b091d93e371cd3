// SPDX-License-Identifier: Apache-2.0
// A list of measured values, and its mean and percentiles.
#pragma once

struct samples { // starts as zero
    double *value;
    int n, capacity;
};

void samples_add(struct samples *s, double value);
void samples_free(struct samples *s);

// Percentiles are interpolated linearly between the two nearest values. An empty list gives NAN.
struct quantiles {
    double mean, p50, p90, p95, p99, max;
};

// Sorts the list.
struct quantiles samples_quantiles(struct samples *s);
double samples_percentile(struct samples *s, double percent); // 0 to 100; sorts the list
