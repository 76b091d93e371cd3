// SPDX-License-Identifier: Apache-2.0
// A histogram as in Prometheus: it counts values in buckets with fixed upper edges, and sums the values. Adding a value
// takes a binary search of four or five steps with no branch, and allocates nothing. One thread.
#pragma once

#include <stdint.h>

enum { HISTOGRAM_EDGES_MAX = 31 };

struct histogram_scale {
    const char *name;                   // name in the docs
    double unit;                        // factor from values and edges to the exported unit: 1e-6 for microseconds
    int n;                              // number of edges; one less than a power of two
    int64_t edges[HISTOGRAM_EDGES_MAX]; // ascending; a value equal to an edge counts in the bucket below the edge
};

extern const struct histogram_scale histogram_request_us;    // 1 ms to 1000 s, five edges per decade
extern const struct histogram_scale histogram_token_us;      // 1 ms to 1 s, finest around 10 ms
extern const struct histogram_scale histogram_plan_us;       // 10 us to 0.5 s
extern const struct histogram_scale histogram_share_ppm;     // 5 % to 100 %, in millionths
extern const struct histogram_scale histogram_deviation_ppm; // ratios from 0.4 to 8, finest around 1, in millionths

struct histogram {
    const struct histogram_scale *scale;
    uint64_t counts[HISTOGRAM_EDGES_MAX + 1]; // values per bucket, not cumulative; bucket `n` has no upper edge
    int64_t sum;
};

static inline void histogram_init(struct histogram *h, const struct histogram_scale *scale)
{
    *h = (struct histogram){.scale = scale};
}

static inline void histogram_add(struct histogram *h, int64_t value)
{
    const int64_t *edges = h->scale->edges;
    unsigned bucket = 0;
    for (unsigned step = (unsigned)(h->scale->n + 1) >> 1; step; step >>= 1)
        bucket += edges[bucket + step - 1] < value ? step : 0;
    h->counts[bucket]++;
    h->sum += value;
}

static inline int64_t histogram_share(int64_t part, int64_t whole) // returns millionths
{
    return whole ? part * 1000000 / whole : 0;
}

uint64_t histogram_count(const struct histogram *h);
