// SPDX-License-Identifier: Apache-2.0
// The inner loops of the machine probe, chosen by the CPU's features. They run on the calling thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/probe.h"

struct probe_loop {
    const char *instruction;
    double operations;          // multiplications and additions of one iteration
    int (*run)(int iterations); // use the result, or the compiler drops the loop
};

// Returns the fastest loop for the type, or the f32 loop if the CPU has no arithmetic in the type.
const struct probe_loop *probe_loop_best(enum probe_type type);

// Reads `bytes` once: a multiple of 1,024, `data` aligned to 64. Use the result, or the compiler drops the loop.
// `prefetch`: with software prefetch, which is faster on some machines and slower on others.
typedef uint64_t (*probe_stream_fn)(const void *data, size_t bytes, bool prefetch);
probe_stream_fn probe_stream_best(void);
