// SPDX-License-Identifier: Apache-2.0
// Windows of NCCL (memory that GPUs of all ranks access directly, see comm_memory.c) on memory from
// comm_memory_allocate (cuda.h).
#pragma once

#include <nccl.h>
#include <stddef.h>

// Registers a window. Called by all ranks with the same number of bytes. *window_p is NULL if the library has no
// windows, or none for these ranks. Collectives then use the memory as ordinary memory.
ncclResult_t comm_memory_register(ncclComm_t nccl, void *memory, size_t bytes, void **window_p);
// Deregisters a window after its last collective has ended, and before the communicator is finalised. An aborted
// communicator has no windows any more. `window` may be NULL.
ncclResult_t comm_memory_deregister(ncclComm_t nccl, void *window);
