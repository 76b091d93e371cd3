// SPDX-License-Identifier: Apache-2.0
// Results of a measurement as JSON.
#pragma once

#include <jansson.h>

#include "bench/quantiles.h"

// Returns a JSON number, or null if the value is not finite.
json_t *bench_number(double value);
// Returns a number of the row, or NAN if it is missing or null.
double bench_row_number(const json_t *row, const char *key);
// Adds NAME_ms_mean, NAME_ms_p50, _p90, _p95, _p99 and _max. Sorts the list.
void bench_row_add_quantiles(json_t *row, const char *name, struct samples *samples);
