// SPDX-License-Identifier: Apache-2.0
// Exports of the module besides backend_open_cuda.
#include "kernels/module.h"

#include <cuda_runtime_api.h>

const int forepack_cuda_layout = CUDA_MODULE_LAYOUT;

int cuda_count_devices(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
