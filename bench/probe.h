// SPDX-License-Identifier: Apache-2.0
// The machine probe measures the arithmetic and memory rates that the machine reaches at this moment, so that other
// rates can be given as shares of these. It measures operations per second in registers in one number type, and bytes
// per second streamed from memory, on as many threads as the measured code uses. The memory bandwidth of a shared or
// virtual machine changes within seconds: take a reading right before and right after each measurement.
//
// A probe of probe_open() is a child process that sleeps between readings, so that its memory does not count in this
// process and no library here pins its threads. Open it before MPI, before any thread and before large allocations. A
// probe of probe_open_device() measures a GPU from this process. One thread at a time.
#pragma once

#include "engine/model/model.h"

enum probe_type { PROBE_F32, PROBE_BF16, PROBE_INT8, PROBE_TYPES };

struct probe;

struct probe_reading {
    double gflops; // 10^9 multiplications and additions per second, of integers for int8
    // 10^9 bytes per second. On a CPU: read from memory, with or without software prefetch, whichever is faster. On a
    // GPU: read and written by a copy.
    double gbytes_per_s;
    const char *instruction; // instruction of the arithmetic, such as "vdpbf16ps zmm"
};

// Opens a probe. Each of the two parts of a reading takes `duration_ms`.
enum status probe_open(int threads, int duration_ms, struct probe **probe_p);
// Opens a probe of `devices` equal devices: measures the device of `m` and multiplies the rates by `devices`. Always
// measures a bf16 gemm, whatever type is asked for. Returns NULL if the model's backend cannot measure its device.
// Borrows the model.
struct probe *probe_open_device(struct model *m, int devices, int duration_ms);
void probe_close(struct probe *p); // may be NULL

enum status probe_read(struct probe *p, enum probe_type type, struct probe_reading *reading_p);
