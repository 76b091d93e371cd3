// SPDX-License-Identifier: Apache-2.0
// A list of measured values, and the few numbers that stand for it.
#pragma once

struct samples { // starts as zero
    double *value;
    int n, capacity;
};

void samples_add(struct samples *s, double value);
void samples_free(struct samples *s);

// Percentiles are interpolated linearly between the two values beside them. All NAN without values.
struct quantiles {
    double mean, p50, p90, p99, max;
};

// Sorts the list.
struct quantiles samples_quantiles(struct samples *s);
double samples_percentile(struct samples *s, double percent); // 0 to 100; sorts the list
