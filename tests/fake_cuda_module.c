// SPDX-License-Identifier: Apache-2.0
// CUDA modules for check_cuda_module: with or without a version, with a call of a function that no program has, and
// with a GPU that computes in bf16 only.
#include "kernels/module.h"
#include "kernels/module_version.h"

#ifdef MODULE_VERSION
const char forepack_cuda_version[] = CUDA_MODULE_MARK MODULE_VERSION;
#endif

#ifdef MODULE_CALLS
int no_program_has_this(void);
#else
static int no_program_has_this(void)
{
    return 0;
}
#endif

#ifdef MODULE_BF16
enum { FINDS_GPU = 1 };
#else
enum { FINDS_GPU = 0 };
#endif

static const struct backend_ops ops = {.name = "cuda"};
static struct backend backend = {&ops};

enum status backend_open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    if (!FINDS_GPU) return shape->max_rows == no_program_has_this() ? STATUS_OK : STATUS_NOT_FOUND;
    *backend_p = &backend;
    return dtype == DTYPE_BF16 ? STATUS_OK : STATUS_UNSUPPORTED;
}

int cuda_list_devices(struct gpu_id *ids, int max)
{
    return 0;
}
