// SPDX-License-Identifier: Apache-2.0
// Opens a backend by name.
#include <string.h>

#include "kernels/backend.h"
#include "kernels/module.h"
#include "lib/base/log.h"

static enum status open_cuda(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p)
{
    struct cuda_module module;
    enum status status = cuda_module_load(&module);
    return status ? status : module.open(shape, dtype, backend_p);
}

static enum status open_named(const char *name, const struct backend_shape *shape, enum dtype dtype, int threads,
                              struct backend **backend_p)
{
    if (!strcmp(name, "cuda")) return open_cuda(shape, dtype, backend_p);
    if (!strcmp(name, "cpu")) return backend_open_cpu(shape, dtype, threads, backend_p);
    if (!strcmp(name, "reference")) return backend_open_reference(shape, dtype, backend_p);
    return status_fail(STATUS_INVALID, "backend '%s': must be one of auto|cpu|cuda|reference", name);
}

// Opens a named backend in *dtype_p, or else in `second`.
static enum status open_in_either(const char *name, const struct backend_shape *shape, enum dtype second, int threads,
                                  enum dtype *dtype_p, struct backend **backend_p)
{
    enum status status = open_named(name, shape, *dtype_p, threads, backend_p);
    if (status != STATUS_UNSUPPORTED || second == *dtype_p) return status;
    TRY(open_named(name, shape, second, threads, backend_p));
    *dtype_p = second;
    return STATUS_OK;
}

// Opens the GPU. Opens the CPU instead if the CUDA module cannot be loaded, if there is no GPU, or if the GPU supports
// the shape in neither dtype. Any other failure of the GPU is an error: the CPU would serve the same model many times
// slower.
static enum status open_auto(const struct backend_shape *shape, enum dtype second, int threads, enum dtype *dtype_p,
                             struct backend **backend_p)
{
    struct cuda_module module;
    const bool loaded = cuda_module_load(&module) == STATUS_OK;
    enum status status =
        loaded ? open_in_either("cuda", shape, second, threads, dtype_p, backend_p) : STATUS_UNSUPPORTED;
    if (status == STATUS_OK)
        log_event(LOG_INFO, "backend_chosen", LOG_FIELD("backend", "cuda"), LOG_FIELD("reason", "a GPU was found"));
    if (status != STATUS_NOT_FOUND && status != STATUS_UNSUPPORTED) return status;
    log_event(cuda_device_may_exist() ? LOG_WARN : LOG_INFO, "backend_chosen", LOG_FIELD("backend", "cpu"), LOG_REASON);
    return open_in_either("cpu", shape, second, threads, dtype_p, backend_p);
}

enum status backend_open_either(const char *name, const struct backend_shape *shape, enum dtype second, int threads,
                                enum dtype *dtype_p, struct backend **backend_p)
{
    if (!strcmp(name, "auto")) return open_auto(shape, second, threads, dtype_p, backend_p);
    return open_in_either(name, shape, second, threads, dtype_p, backend_p);
}

enum status backend_open(const char *name, const struct backend_shape *shape, enum dtype dtype, int threads,
                         struct backend **backend_p)
{
    return backend_open_either(name, shape, dtype, threads, &dtype, backend_p);
}
