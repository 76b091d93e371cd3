// SPDX-License-Identifier: Apache-2.0
#include "bench/row.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"

json_t *bench_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

double bench_row_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

void bench_row_add_quantiles(json_t *row, const char *name, struct samples *samples)
{
    struct quantiles q = samples_quantiles(samples);
    const struct {
        const char *name;
        double value;
    } all[] = {{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p95", q.p95}, {"p99", q.p99}, {"max", q.max}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char *key = mem_format("%s_ms_%s", name, all[i].name);
        json_object_set_new(row, key, bench_number(all[i].value));
        free(key);
    }
}
