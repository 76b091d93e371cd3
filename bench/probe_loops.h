// SPDX-License-Identifier: Apache-2.0
// The innermost loops of the probe. Each runs on the calling thread and is chosen by what the CPU has.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "bench/probe.h"

struct probe_loop {
    const char *instruction;
    double operations;          // of one iteration, multiplications and additions
    int (*run)(int iterations); // the result is there to be used, so that no compiler drops the loop
};

// The fastest loop there is for the type; f32's where the CPU has no arithmetic of the type itself.
const struct probe_loop *probe_loop_best(enum probe_type type);

// Reads `bytes` (a multiple of 256, aligned to 64) once. The sum is there to be used.
typedef uint64_t (*probe_stream_fn)(const void *data, size_t bytes);
probe_stream_fn probe_stream_best(void);
