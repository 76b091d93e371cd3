// SPDX-License-Identifier: Apache-2.0
// A GPU emulated on the CPU, for tests: the functions of the CUDA runtime, cuBLASLt and NCCL that the CUDA backend
// calls, linked instead of the NVIDIA libraries. The kernels come from kernels/cuda, compiled by g++ (see device.h).
//
// Streams are lazy: operations run only when something waits for them. This exposes a host that frees or changes
// memory while a queued operation still needs it. Calls that wait are synchronising calls, cudaFree, copies without
// Async, and copies from or to memory that is not pinned. cudaFree of device memory also waits for NCCL's kernels on
// the device. Device memory begins as NaN. AddressSanitizer detects kernels that access memory beyond an allocation,
// and host code that accesses device memory. Access by the host is detected only in the first bytes of an allocation.
//
// Settings apply to the process; set them before the backend is opened.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulator_set_devices(int n); // initially 1; 0 is a machine without GPUs
// Shows the calling thread only devices first .. first + n - 1, like CUDA_VISIBLE_DEVICES; initially all.
void emulator_show_devices(int first, int n);
void emulator_set_memory(size_t bytes);                // of each device; initially 512 MiB
void emulator_set_memory_of(int device, size_t bytes); // 0: the same as for the other devices
void emulator_set_capability(int major, int minor);    // initially 9.0
// From now on cuBLASLt finds no algorithm for FP8 gemms whose number of rows is in from_rows..to_rows. An empty range
// (from_rows > to_rows) refuses none.
void emulator_refuse_fp8(int from_rows, int to_rows);
void emulator_refuse_fast_accum(void);
size_t emulator_memory_used(void); // on all devices
size_t emulator_memory_used_on(int device);
// Counts device memory from now on instead of allocating it: allocations are addresses without memory, and kernels,
// gemms, copies and fills do nothing. So a model of any size opens in seconds. Set it while nothing is allocated.
void emulator_count_only(bool on);
int emulator_launches(void); // kernels and gemms run so far, also within graphs
int emulator_graph_launches(void);
int emulator_pageable_reads(void); // copies from the device into memory that is not pinned, so far
// Sets how many operations can wait in a stream. A call that adds one more blocks until there is room. Initially 1024,
// as on GPUs.
void emulator_set_launch_queue(int n);
// Makes cudaGraphInstantiate fail for the n-th captured graph from now on, as if memory were lacking. 0: no graph
// fails.
void emulator_fail_graph(int n);
int emulator_map_encodes(void); // descriptions of tensors for TMA made so far (cuTensorMapEncodeTiled)
// Makes the n-th operation from now on, and every call after it, fail as on a lost device. 0: no failure.
void emulator_fail_after(int n);

// Sets the time of every gemm from now on: us(i) is the microseconds of algorithm i (0, 1, 2). If `us` is NULL, every
// gemm takes EMULATED_GEMM_US.
void emulator_set_gemm_time(int64_t (*us)(int algorithm));
enum { EMULATED_GEMM_US = 50000 };

int emulator_gemm_multiprocessors(void); // number that the latest gemm may use; 0: all
int emulator_nccl_blocks(void); // limit of thread blocks of a collective in the newest communicator; 0: NCCL decides

// Sets NCCL's version, as 10000 * major + 100 * minor + patch; initially EMULATED_NCCL. Versions older than 2.27 have
// no windows. NCCL 2.28 to 2.30.6 starts sums in windows before the previous kernel has ended. So the emulator ends a
// program that registers a window with such a version.
enum { EMULATED_NCCL = 23007 };
void emulator_set_nccl_version(int version);
// From now on communicators have windows, have none (like GPUs that do not reach each other), or fail to register them.
enum { EMULATED_WINDOWS, EMULATED_WINDOWS_NONE, EMULATED_WINDOWS_FAIL };
void emulator_set_nccl_windows(int kind);
int emulator_nccl_windows(void);         // number of windows open at present, on all ranks
int emulator_nccl_sums_in_windows(void); // number of bf16 sums so far in window memory, once for each rank
int emulator_nccl_sums_in_memory(void);  // number of bf16 sums in other memory

// Makes rank `rank` of every communicator fail from now on. The calls of the other ranks fail, too. -1: no rank.
void emulator_fail_rank(int rank);

// From now on NCCL's calls on this rank neither return nor fail, until another rank is set; -1: no rank.
void emulator_hang_rank(int rank);

// While `on` is true, NCCL's kernels never end unless their communicator is aborted, like kernels of GPUs that cannot
// reach each other.
void emulator_spin_nccl(bool on);

// Returns how many connections NCCL has made so far. A rank makes one at its first call of each kind.
int emulator_nccl_connections(void);
// Returns how many calls and groups of calls so far returned ncclInProgress, to be issued later. This happens only on
// communicators that do not block the host.
int emulator_nccl_issued_later(void);

#ifdef __cplusplus
}
#endif
