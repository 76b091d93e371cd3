// SPDX-License-Identifier: Apache-2.0
// Windows of NCCL on memory from comm_memory_allocate (cuda.h).
#pragma once

#include <nccl.h>
#include <stddef.h>

// Called by all ranks with as many bytes each. *window_p is NULL if the library has no windows or none for these ranks:
// collectives then use the memory as any other.
ncclResult_t comm_memory_register(ncclComm_t nccl, void *memory, size_t bytes, void **window_p);
// After the last collective on the window has ended, before the communicator is finalised; an aborted communicator has
// no windows any more. NULL is fine.
ncclResult_t comm_memory_deregister(ncclComm_t nccl, void *window);
