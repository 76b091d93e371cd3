// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench kernels`: kernels.c has the options and measures the gemms of one layer,
// kernels_attention.c measures attention, kernels_backend.c reads the dtype and the speed of a device. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "bench/commands/bench.h"
#include "kernels/backend.h"
#include "lib/text/config.h"

struct kernels_flags {
    char *model, *shape, *backend, *dtype, *m, *prefetch, *kv_dtype, *prompt_tokens, *cached_tokens, *batch, *context;
    int64_t threads, rounds, probe_ms, min_ms, head_size, token_budget;
    bool onednn, attention, json;
};

// Returns the dtype of the flag --dtype, or STATUS_UNSUPPORTED for another name.
enum status kernels_dtype(const char *name, enum dtype *dtype_p);

// Takes one reading of the device after the rounds, with about `ms` of arithmetic and `ms` of memory traffic. Computes
// from the reading which share of the device a run of `gflop` and `gbytes` reached. The backend must have ops->measure.
enum status kernels_read_device(struct backend *backend, int ms, double gflop, double gbytes, struct measurement *m,
                                struct rounds_readings *readings);

// Measures attention with one row for each combination of the flags, prints the rows and appends them to `rows`.
// `probe` may be NULL.
enum status kernels_measure_attention(const struct kernels_flags *flags, const struct model_config *config,
                                      struct probe *probe, json_t *rows);
