// SPDX-License-Identifier: Apache-2.0
// Loading the CUDA backend. It is a shared object beside the programs (libforepack_cuda.so, built with
// -DFOREPACK_CUDA=ON), loaded at first use, so that programs start without the NVIDIA libraries. It calls functions of
// the program that loads it. Any thread may call.
#pragma once

#include "kernels/backend.h"
#include "kernels/comm.h"

// The functions of the module.
struct cuda_module {
    enum status (*open)(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
    int (*count_devices)(void);
};

// From the program itself if the backend is linked in (tests), else from the module. STATUS_UNSUPPORTED: there is no
// module beside the program; STATUS_NOT_FOUND: its libraries are missing; STATUS_UNAVAILABLE: it belongs to another
// build.
enum status cuda_module_load(struct cuda_module *module_p);

// Number of GPUs visible to this process; 0 without a driver. It initialises CUDA: the process must not fork
// afterwards.
int cuda_count_devices(void);

// A checksum of the structs that program and module exchange. The module exports it as `forepack_cuda_layout`, so that
// a module of another build is refused.
enum {
    CUDA_MODULE_LAYOUT = sizeof(struct backend_ops) + sizeof(struct comm) + 1000 * sizeof(struct backend_shape) +
                         1000000 * (sizeof(struct ragged_batch) / sizeof(void *)) + 100000000 * (int)DTYPE_COUNT
};
extern const int forepack_cuda_layout;
