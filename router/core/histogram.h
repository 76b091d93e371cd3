// SPDX-License-Identifier: Apache-2.0
// A histogram as in Prometheus: values counted in buckets with fixed upper edges, and their sum. Adding a value takes a
// binary search of four or five steps without branches, and allocates nothing. One thread.
#pragma once

#include <stdint.h>

enum { HISTOGRAM_EDGES_MAX = 31 };

struct histogram_scale {
    const char *name;                   // name in the docs
    double unit;                        // unit of values and edges when exported: 1e-6 for microseconds
    int n;                              // edges; a power of two less 1
    int64_t edges[HISTOGRAM_EDGES_MAX]; // ascending; a value that equals an edge is below it
};

extern const struct histogram_scale histogram_request_us;    // 1 ms to 1000 s, five edges to a decade
extern const struct histogram_scale histogram_token_us;      // 1 ms to 1 s, finest around 10 ms
extern const struct histogram_scale histogram_plan_us;       // 10 us to 0.5 s
extern const struct histogram_scale histogram_share_ppm;     // 5 % to 100 %, in millionths
extern const struct histogram_scale histogram_deviation_ppm; // a ratio: 0.4 to 8, finest around 1, in millionths

struct histogram {
    const struct histogram_scale *scale;
    uint64_t counts[HISTOGRAM_EDGES_MAX + 1]; // values in each bucket, not cumulative; the last used bucket has no edge
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
