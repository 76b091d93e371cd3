// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as programs reach it. It is a shared object beside them (libforepack_cuda.so, built with
// -DFOREPACK_CUDA=ON) that is loaded when first asked for, so that programs start where the NVIDIA libraries are not
// installed. What it calls of ours it finds in the program.
#pragma once

#include "kernels/backend.h"
#include "kernels/comm.h"

// What the backend gives programs.
struct cuda_module {
    enum status (*open)(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
    int (*count_devices)(void);
};

// Of the program itself where the backend is linked in (tests do), else of the module. STATUS_UNSUPPORTED: none lies
// beside the program; STATUS_NOT_FOUND: the libraries that it needs are not here.
enum status cuda_module_load(struct cuda_module *module_p);

// GPUs that CUDA shows this process; 0 also where there is no driver. CUDA is then in use in this process, which must
// not fork any more.
int cuda_count_devices(void);

// A module that was built with other headers than the program would be called wrongly: it exports this number as
// `forepack_cuda_layout`.
enum {
    CUDA_MODULE_LAYOUT = sizeof(struct backend_ops) + sizeof(struct comm) + 1000 * sizeof(struct backend_shape) +
                         1000000 * (sizeof(struct ragged_batch) / sizeof(void *)) + 100000000 * (int)DTYPE_COUNT
};
extern const int forepack_cuda_layout;
