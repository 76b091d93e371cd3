// SPDX-License-Identifier: Apache-2.0
// Chooses the software prefetch that streams weights fastest. A gemm of few rows reads each panel once, at the speed of
// memory. Requesting lines ahead of their use is faster on some machines. On other machines it disturbs the hardware
// prefetcher and is slower. So a backend measures the candidates once its weights are loaded, on these weights and on
// all its threads, as a decode step reads them. That takes about 30 ms, and the packed weight cache keeps the choice
// for later starts. Weights below 128 MiB, which caches may hold, keep the default of the level.
//
// A prefetch never changes a result.
#pragma once

#include "kernels/cpu/isa.h"

struct cpu;

enum { STREAM_CANDIDATES = 6, STREAM_ROUNDS_MAX = 31 };
extern const struct stream_prefetch stream_candidates[STREAM_CANDIDATES]; // the first candidate is no prefetch

const char *stream_target_name(enum stream_target target); // "none", "L1", "L2"
int stream_default(const struct cpu_isa *isa);             // default of a level: the index of a candidate

// Returns the candidate to use, from the times [rounds][STREAM_CANDIDATES] of reading the same amount with each:
// `usual`, unless another candidate is clearly faster in three quarters of the rounds.
int stream_choose(double seconds[][STREAM_CANDIDATES], int rounds, int usual);

// Called after the last weight of the backend: sets cpu->prefetch, and logs it if it is not the default.
void cpu_stream_tune(struct cpu *cpu);
// Does the same, but also measures weights below 128 MiB, and always logs the choice. Returns false, with cpu->prefetch
// unchanged, if there is too little to measure.
bool cpu_stream_measure(struct cpu *cpu);
// Returns the key under which the packed weight cache keeps a choice, see backend_ops.machine.
uint64_t stream_machine(const struct cpu *cpu);

// For benchmarks. A name is "none" or "L1:2048", the target and the bytes ahead.
enum { STREAM_NAME_BYTES = 16 };
void cpu_stream_name(const struct backend *b, char name[STREAM_NAME_BYTES]); // name of the prefetch in use
// Makes backends that load weights afterwards use this candidate and measure nothing. Returns false if no candidate has
// the name. Not thread-safe.
bool stream_prefer(const char *name);
