// SPDX-License-Identifier: Apache-2.0
// A GPU emulated on the CPU, for tests: the functions of the CUDA runtime, cuBLASLt and NCCL that the CUDA backend
// calls, linked instead of the NVIDIA libraries. The kernels come from kernels/cuda, compiled by g++ (see device.h).
//
// Streams are lazy: operations run when something waits for them, so that memory which the host frees or changes too
// early is detected. Synchronising calls, cudaFree, copies without Async, and copies from or to memory that is not
// pinned wait. cudaFree of device memory also waits for NCCL's kernels on the device. Device memory begins as NaN.
// AddressSanitizer guards its edges against kernels, and the first bytes of each allocation against the host.
//
// Settings apply to the process; set them before the backend is opened.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulator_set_devices(int n); // initially 1; 0: a machine without GPUs
// Shows the calling thread only devices first .. first + n - 1, like CUDA_VISIBLE_DEVICES; initially all.
void emulator_show_devices(int first, int n);
void emulator_set_memory(size_t bytes);                // of each device; initially 512 MiB
void emulator_set_memory_of(int device, size_t bytes); // 0: as the other devices
void emulator_set_capability(int major, int minor);    // initially 9.0
// Makes FP8 gemms of from_rows to to_rows rows have no algorithm. If from_rows > to_rows, all have one.
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
// Operations that wait in a stream; a call that adds one more waits until there is room. Initially 1024, as on GPUs.
void emulator_set_launch_queue(int n);
// The n-th captured graph from now on cannot be made executable, as without memory for it; 0: all can.
void emulator_fail_graph(int n);
int emulator_map_encodes(void); // descriptions of tensors for TMA made so far (cuTensorMapEncodeTiled)
// The n-th operation from now on fails as on a lost device, and every call after it; 0: no failure.
void emulator_fail_after(int n);

// Sets the microseconds of every gemm from now on, by the number of the algorithm (0, 1, 2). NULL: EMULATED_GEMM_US for
// each.
void emulator_set_gemm_time(int64_t (*us)(int algorithm));
enum { EMULATED_GEMM_US = 50000 };

// Return the multiprocessors of the gemm called last (0: all), which leaves the others to NCCL, and the thread blocks
// of a collective in the communicator opened last (0: its own choice).
int emulator_gemm_multiprocessors(void);
int emulator_nccl_blocks(void);

// Sets NCCL's version, as 10000 * major + 100 * minor + patch; initially EMULATED_NCCL. Versions older than 2.27 have
// no windows, and sums in windows of 2.28 to 2.30.6 do not wait for the previous kernel: a program that asks these
// versions for a window ends.
enum { EMULATED_NCCL = 23007 };
void emulator_set_nccl_version(int version);
// Makes communicators have no windows from now on, like GPUs that do not reach each other, or makes registering a
// window fail.
enum { EMULATED_WINDOWS, EMULATED_WINDOWS_NONE, EMULATED_WINDOWS_FAIL };
void emulator_set_nccl_windows(int kind);
int emulator_nccl_windows(void);         // number of windows open at present, on all ranks
int emulator_nccl_sums_in_windows(void); // number of bf16 sums so far whose memory is in windows, counted on every rank
int emulator_nccl_sums_in_memory(void);  // number of bf16 sums in other memory

// Makes this rank of every NCCL group fail from now on, and notifies the other ranks. -1: no rank.
void emulator_fail_rank(int rank);

// From now on NCCL's calls on this rank neither return nor fail, until another rank is set; -1: no rank.
void emulator_hang_rank(int rank);

// While on, NCCL's kernels never end unless their communicator is aborted, as where GPUs cannot reach each other.
void emulator_spin_nccl(bool on);

// Connections that calls of NCCL made because they were the first of their kind on their rank, so far.
int emulator_nccl_connections(void);
// Returns how many calls and groups of calls, so far, communicators that do not block the host issued later than
// called.
int emulator_nccl_issued_later(void);

#ifdef __cplusplus
}
#endif
