// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for check_gpus. It has FAKE_CUDA_DEVICES devices, and fails if that variable is not set.
#include <stdlib.h>

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NO_DEVICE = 100 };

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count_p);

int cuInit(unsigned flags)
{
    return getenv("FAKE_CUDA_DEVICES") ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

int cuDeviceGetCount(int *count_p)
{
    *count_p = atoi(getenv("FAKE_CUDA_DEVICES"));
    return CUDA_SUCCESS;
}
