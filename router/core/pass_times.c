// SPDX-License-Identifier: Apache-2.0
#include "router/core/pass_times.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"

#define DEVIATION_PPM_MAX 1e9 // far beyond the last bucket, and small enough for the sum

void pass_times_add(struct pass_times *times, bool has_prompts, int64_t rows, int64_t pairs, int64_t us,
                    double predicted_us)
{
    struct pass_class **place = &times->classes[has_prompts][cost_size(rows)], *class = *place;
    if (!class) {
        class = *place = mem_alloc(sizeof *class);
        histogram_init(&class->deviation, &histogram_deviation_ppm);
    }
    class->passes++;
    class->rows += (uint64_t)rows;
    class->pairs += (uint64_t)pairs;
    class->us += (uint64_t)us;
    if (predicted_us > 0)
        histogram_add(&class->deviation, (int64_t)fmin(1e6 * (double)us / predicted_us, DEVIATION_PPM_MAX));
}

void pass_times_fini(struct pass_times *times)
{
    for (int kind = 0; kind < PASS_KINDS; kind++)
        for (int size = 0; size < COST_SIZES; size++)
            free(times->classes[kind][size]);
}
