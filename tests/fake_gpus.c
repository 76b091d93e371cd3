// SPDX-License-Identifier: Apache-2.0
// A CUDA backend whose GPUs are the CPU, for integration_gpu_health: the CPU backend under the name of the CUDA
// backend, with the address 0000:0N:00.0 for GPU N - 1. It is linked into fake_gpu_worker (kernels/module.c).
#include <stdio.h>
#include <string.h>

#include "kernels/module.h"

enum { GPUS = 2 };

static struct backend_ops ops;
static char address[32]; // address of the one GPU that a rank opens

static const char *gpu_address(const struct backend *b)
{
    return address;
}

enum status backend_open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    if (shape->gpu.device == GPU_NONE) return status_fail(STATUS_INVALID, "there are %d GPUs", GPUS);
    TRY(backend_open_cpu(shape, dtype, 1, backend_p));
    snprintf(address, sizeof address, "0000:%02x:00.0", (unsigned)shape->gpu.device + 1);
    ops = *(*backend_p)->ops;
    ops.name = "cuda";
    ops.gpu_address = gpu_address;
    (*backend_p)->ops = &ops;
    return STATUS_OK;
}

int cuda_list_devices(struct gpu_id *ids, int max)
{
    int n = GPUS < max ? GPUS : max;
    for (int i = 0; i < n; i++)
        memset(ids[i].bytes, i + 1, sizeof ids[i].bytes);
    return n;
}
