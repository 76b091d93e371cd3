// SPDX-License-Identifier: Apache-2.0
#include "bench/throughput_share.h"

#include <math.h>
#include <stdlib.h>

#include "bench/quantiles.h"
#include "lib/base/mem.h"

enum { COMPLETE_MIN = 8 };

static double median_of(const double *values, int n)
{
    struct samples samples = {0};
    for (int i = 0; i < n; i++)
        samples_add(&samples, values[i]);
    const double median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

double throughput_share(const double *due_s, const double *e2e_s, int n)
{
    double *due = mem_alloc_array((size_t)n + 1, sizeof *due), *e2e = mem_alloc_array((size_t)n + 1, sizeof *e2e);
    int complete = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(e2e_s[i])) continue;
        due[complete] = due_s[i];
        e2e[complete++] = e2e_s[i];
    }
    double share = n ? (double)complete / n : 0;
    if (complete >= COMPLETE_MIN) {
        const int quarter = complete / 4, last = complete - quarter;
        const double growth_s = median_of(e2e + last, quarter) - median_of(e2e, quarter);
        const double seconds = median_of(due + last, quarter) - median_of(due, quarter);
        if (growth_s > 0 && seconds > 0) share /= 1 + growth_s / seconds;
    }
    free(due);
    free(e2e);
    return share;
}
