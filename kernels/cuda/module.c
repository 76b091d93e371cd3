// SPDX-License-Identifier: Apache-2.0
// Exports of the module in addition to backend_open_cuda.
#include "kernels/module.h"

#include <cuda_runtime_api.h>
#include <string.h>

#include "kernels/module_version.h"

const char forepack_cuda_version[] = CUDA_MODULE_MARK CUDA_MODULE_VERSION;

int cuda_list_devices(struct gpu_id *ids, int max)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
    if (n > max) n = max;
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) return i;
        memcpy(ids[i].bytes, properties.uuid.bytes, sizeof ids[i].bytes);
    }
    return n;
}
