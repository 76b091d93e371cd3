// SPDX-License-Identifier: Apache-2.0
// What the chip can do at this moment, so that a measured rate is also a share of a limit: multiply-adds a second out
// of registers in the number type at hand, and bytes a second streamed from memory, on as many threads as the
// measured code uses. Memory bandwidth of a shared or virtual machine changes within seconds: take a reading right
// before and right after what is measured.
//
// A probe is a child process that sleeps between readings. So its memory does not count in this process, its threads
// are not pinned by whatever library pins here, and nothing it does outlives it. Open it first of all: before MPI,
// before any thread, before memory is filled. One thread at a time.
#pragma once

#include "model/model.h"

enum probe_type { PROBE_F32, PROBE_BF16, PROBE_INT8, PROBE_TYPES };

struct probe;

struct probe_reading {
    double gflops;           // 10^9 multiplications and additions a second; for int8 of integers
    double gbytes_per_s;     // 10^9 bytes a second read from memory that no cache holds
    const char *instruction; // that the arithmetic used, such as "vdpbf16ps zmm"
};

// `duration_ms` for each of the two halves of a reading.
enum status probe_open(int threads, int duration_ms, struct probe **probe_p);
// Of devices that measure themselves, `devices` of one kind of which the model of this process has the first; NULL
// where its backend does not. Borrows the model. A product in bf16, whatever the type asked for.
struct probe *probe_open_device(struct model *m, int devices, int duration_ms);
void probe_close(struct probe *p); // NULL is fine

enum status probe_read(struct probe *p, enum probe_type type, struct probe_reading *reading_p);
