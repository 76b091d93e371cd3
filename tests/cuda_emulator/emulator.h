// SPDX-License-Identifier: Apache-2.0
// A GPU for tests, played by the CPU: the functions of the CUDA runtime, of cuBLASLt and of NCCL that the CUDA backend
// calls, linked in place of the NVIDIA libraries. Kernels are the ones of kernels/cuda, compiled by g++ (see device.h).
//
// As lazy as the real one may be: what is put into a stream runs when something waits for it, so that memory which the
// host gives back or changes too early shows. What waits: the synchronising calls, cudaFree, copies without Async, and
// copies from or to memory that is not pinned. Device memory begins as NaN, and AddressSanitizer guards it: its edges
// in kernels, all of it from the host's hands (the first bytes of each allocation).
//
// Settings hold for the process; set them before the backend is opened.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulator_set_devices(int n);                   // 1 at first; 0: as a machine without any
void emulator_set_memory(size_t bytes);             // of each device; 512 MiB at first
void emulator_set_capability(int major, int minor); // 9.0 at first
size_t emulator_memory_used(void);                  // of all devices
int emulator_launches(void);                        // kernels and products run so far, those of graphs included
int emulator_graph_launches(void);
// From now on the n-th operation that runs fails the way a lost device does, and every call after it; 0: none does.
void emulator_fail_after(int n);

// From now on this rank of every NCCL group has failed, as the others learn; -1: none has.
void emulator_fail_rank(int rank);

// From now on this rank's all-reduces do not return, nor fail, until it is another; -1: none.
void emulator_hang_rank(int rank);

#ifdef __cplusplus
}
#endif
